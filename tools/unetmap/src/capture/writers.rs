// SPDX-License-Identifier: BSD-2-Clause
//! The files of a capture: of one writer, or of several, each a thread with files of its own.
//!
//! ```text
//! reader --batches by the flow--> writer 1 --> FILE_w1
//!        <------ memory --------> writer 2 --> FILE_w2
//! ```
//! Both directions of a flow have the same writer. The reader waits for a writer that is slower, and then the port's
//! rings become full, which is counted.

use std::path::Path;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread::JoinHandle;
use std::time::Duration;

use unetmap_capture::index::spread;
use unetmap_capture::write::{CaptureInfo, Counters, Volume};

use super::files::{Files, Limits, Style, numbered};

/// Bytes of packets that are given to a writer at once.
const BATCH: usize = 1 << 18;
/// Batches that wait for a writer.
const BATCHES: usize = 16;
/// Bytes of a packet's header in a batch: time, stored bytes, length.
const HEAD: usize = 16;

/// Packets for a writer.
struct Batch {
    packets: Vec<u8>,
    /// Of the whole capture.
    counters: Counters,
    /// The file is to have them at once.
    flush: bool,
}

/// A writer, as the reader sees it.
struct Writer {
    batch: Vec<u8>,
    batches: SyncSender<Batch>,
    /// Memory of batches that were written.
    memory: Receiver<Vec<u8>>,
    thread: JoinHandle<(Files, Result<(), String>)>,
}

/// All that is written.
pub(crate) enum Output {
    /// By the reader itself.
    One(Box<Files>),
    /// By threads.
    Several(Several),
}

/// Several writers.
#[derive(Default)]
pub(crate) struct Several {
    writers: Vec<Writer>,
    /// As of the last flush.
    dropped: u64,
}

/// The files that were written.
pub(crate) struct Written {
    pub(crate) files: u32,
    /// Packets that could not be written.
    pub(crate) unwritten: Volume,
    pub(crate) result: Result<(), String>,
}

impl Output {
    /// Creates the first files.
    ///
    /// # Errors
    /// A sentence.
    pub(crate) fn create(
        path: &Path,
        style: Style,
        info: &CaptureInfo,
        limits: Limits,
        writers: u16,
    ) -> Result<Output, String> {
        if writers == 1 {
            return Files::create(path, style, info.clone(), limits).map(|files| Output::One(Box::new(files)));
        }
        let mut all = Several::default();
        for number in 1..=writers {
            let files = Files::create(&numbered(path, &format!("_w{number}")), style, info.clone(), limits)?;
            let (batches, full) = sync_channel(BATCHES);
            let (give_back, memory) = sync_channel(BATCHES + 2);
            let thread = std::thread::spawn(move || write(files, &full, &give_back));
            all.writers.push(Writer { batch: Vec::with_capacity(BATCH), batches, memory, thread });
        }
        Ok(Output::Several(all))
    }

    /// Writes a packet of `len` bytes, of which these are kept.
    ///
    /// # Errors
    /// A sentence.
    #[inline]
    pub(crate) fn packet(
        &mut self,
        time: Duration,
        bytes: &[u8],
        len: u32,
        counters: Counters,
        dropped: impl Fn() -> u64,
    ) -> Result<(), String> {
        let all = match self {
            Output::One(files) => {
                return files.packet(time, bytes, len, || Counters { dropped: dropped(), ..counters });
            }
            Output::Several(all) => all,
        };
        let number = spread(bytes) as usize % all.writers.len();
        let writer = &mut all.writers[number];
        writer.batch.extend((time.as_nanos() as u64).to_ne_bytes());
        writer.batch.extend((bytes.len() as u32).to_ne_bytes());
        writer.batch.extend(len.to_ne_bytes());
        writer.batch.extend(bytes);
        if writer.batch.len() >= BATCH {
            return writer.send(Counters { dropped: all.dropped, ..counters }, false);
        }
        Ok(())
    }

    /// Has the files get all packets so far.
    ///
    /// # Errors
    /// A sentence.
    pub(crate) fn flush(&mut self, counters: Counters, dropped: impl Fn() -> u64) -> Result<(), String> {
        match self {
            Output::One(files) => files.flush(),
            Output::Several(all) => {
                all.dropped = dropped();
                let counters = Counters { dropped: all.dropped, ..counters };
                all.writers.iter_mut().try_for_each(|writer| writer.send(counters, true))
            }
        }
    }

    /// Writes the ends of the files.
    pub(crate) fn finish(self, now: Duration, counters: Counters) -> Written {
        let mut written = Written { files: 0, unwritten: Volume::default(), result: Ok(()) };
        let mut end = |mut files: Files, result: Result<(), String>| {
            let ended = files.finish(now, counters);
            written.files += files.number();
            written.unwritten.add(files.unwritten());
            let result = result.and(ended);
            if written.result.is_ok() {
                written.result = result;
            }
        };
        match self {
            Output::One(files) => end(*files, Ok(())),
            Output::Several(all) => {
                for mut writer in all.writers {
                    // A writer that has failed goes on to count, so it takes this.
                    let sent = writer.send(counters, false);
                    drop(writer.batches);
                    let (files, result) = writer.thread.join().expect("no panic");
                    end(files, sent.and(result));
                }
            }
        }
        written
    }
}

impl Writer {
    fn send(&mut self, counters: Counters, flush: bool) -> Result<(), String> {
        let next = self.memory.try_recv().unwrap_or_else(|_| Vec::with_capacity(BATCH + (BATCH >> 2)));
        let packets = std::mem::replace(&mut self.batch, next);
        self.batches.send(Batch { packets, counters, flush }).map_err(|_| "a writer has ended".into())
    }
}

/// The work of a writer.
fn write(mut files: Files, batches: &Receiver<Batch>, give_back: &SyncSender<Vec<u8>>) -> (Files, Result<(), String>) {
    let mut result = Ok(());
    for Batch { mut packets, counters, flush } in batches {
        let mut rest: &[u8] = &packets;
        while let Some((head, after)) = rest.split_first_chunk::<HEAD>() {
            let word = |at: usize| u32::from_ne_bytes(std::array::from_fn(|i| head[at + i]));
            let time = Duration::from_nanos(u64::from_ne_bytes(std::array::from_fn(|i| head[i])));
            let (bytes, after) = after.split_at(word(8) as usize);
            rest = after;
            match &result {
                Ok(()) => result = files.packet(time, bytes, word(12), || counters),
                Err(_) => files.lose(word(12)),
            }
        }
        if flush && result.is_ok() {
            result = files.flush();
        }
        packets.clear();
        // There is room unless the reader has ended.
        let _ = give_back.try_send(packets);
    }
    (files, result)
}
