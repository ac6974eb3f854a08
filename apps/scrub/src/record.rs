// SPDX-License-Identifier: BSD-2-Clause
//! Some of the packets that were dropped, in a pcapng file, each with the reason as its comment. The file is bounded.

use std::fs::File;
use std::io::{BufWriter, Write as _};
use std::path::Path;
use std::sync::atomic::AtomicU64;
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::thread::JoinHandle;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use tool_common::host::place::Place;
use tool_common::note;
use unetmap_capture::write::{self, CaptureInfo, Format};
use unetmap_filter::HEADER_BYTES;

use crate::reason::{Reason, add};

/// Packets that wait to be written.
const QUEUE: usize = 1024;
/// Longest time that written packets are not in the file.
const FLUSH: Duration = Duration::from_millis(200);

/// A packet that was chosen.
struct Entry {
    /// Since 1970.
    time: Duration,
    bytes: [u8; HEADER_BYTES],
    read: usize,
    len: u32,
    reason: Reason,
}

/// Chooses one of so many packets.
pub(crate) struct Recorder {
    every: u64,
    left: u64,
    entries: SyncSender<Entry>,
}

/// The thread that writes, which ends after the recorder.
pub(crate) type Writer = JoinHandle<()>;

impl Recorder {
    /// Creates the file, of `max` bytes at most.
    ///
    /// # Errors
    /// A sentence.
    pub(crate) fn create(path: &Path, every: u64, max: u64) -> Result<(Recorder, Writer), String> {
        let failed = |e: std::io::Error| format!("--dropped {}: {e}", path.display());
        let file = Place::of_target(path).and_then(|place| place.create(0o666)).map_err(failed)?;
        let mut out = BufWriter::new(file);
        let info = CaptureInfo {
            port: "scrub".into(),
            filter: String::new(),
            snaplen: HEADER_BYTES as u32,
            times: "times: software, when the packet was dropped",
        };
        let head = write::begin(&mut out, Format::Pcapng, &info).map_err(failed)?;
        let (entries, queue) = sync_channel(QUEUE);
        let name = path.display().to_string();
        let writer = std::thread::spawn(move || write_all(&queue, out, max.saturating_sub(head), &name));
        Ok((Recorder { every, left: 0, entries }, writer))
    }

    /// Notes a packet that was dropped.
    #[inline]
    pub(crate) fn dropped(&mut self, reason: Reason, bytes: &[u8], len: u32, lost: &AtomicU64) {
        if self.left > 0 {
            self.left -= 1;
            return;
        }
        self.left = self.every - 1;
        let mut entry = Entry {
            time: SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default(),
            bytes: [0; HEADER_BYTES],
            read: bytes.len().min(HEADER_BYTES),
            len,
            reason,
        };
        entry.bytes[..entry.read].copy_from_slice(&bytes[..entry.read]);
        if self.entries.try_send(entry).is_err() {
            add(lost, 1);
        }
    }
}

/// Writes packets until the recorder is gone, or the file is full; its end makes further packets lost ones.
fn write_all(queue: &Receiver<Entry>, mut out: BufWriter<File>, mut left: u64, name: &str) {
    loop {
        let entry = match queue.recv_timeout(FLUSH) {
            Ok(entry) => entry,
            Err(RecvTimeoutError::Timeout) => {
                if let Err(e) = out.flush() {
                    return note(&format!("--dropped {name}: {e}; no more packets are written"));
                }
                continue;
            }
            Err(RecvTimeoutError::Disconnected) => break,
        };
        let bytes = &entry.bytes[..entry.read];
        let size = write::packet_size(Format::Pcapng, bytes) + 32;
        if size > left {
            note(&format!("--dropped {name}: the file is full; no more packets are written"));
            break;
        }
        match write::packet_with_comment(
            &mut out,
            entry.time,
            bytes,
            entry.len.max(bytes.len() as u32),
            entry.reason.name(),
        ) {
            Ok(size) => left = left.saturating_sub(size),
            Err(e) => return note(&format!("--dropped {name}: {e}; no more packets are written")),
        }
    }
    if let Err(e) = out.flush() {
        note(&format!("--dropped {name}: {e}"));
    }
}
