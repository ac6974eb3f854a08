// SPDX-License-Identifier: BSD-2-Clause
//! `unetmap extract`: finds packets in captures, by their index.

use std::collections::BTreeSet;
use std::fs::File;
use std::io;
use std::path::PathBuf;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use clap::Args;
use pcap::BpfProgram;
use rustix::fs::{Advice, fadvise};
use serde_json::json;
use tool_common::{Failure, note, source};
use unetmap_capture::index::{Extract, Found, Query, ReadAt};
use unetmap_capture::write::{CaptureInfo, Counters, Format};
use unetmap_capture::{Error, MAX_PACKET};

use crate::capture::compile;
use crate::capture::files::{Files, Limits, Style};

/// Copy the packets of a flow, an address or a time out of captures.
///
/// Reads of files that `unetmap capture` has written no more than these packets need, by the index in them; of other
/// files all. Packets of several files are sorted by their times.
#[derive(Debug, Args)]
pub(crate) struct ExtractArgs {
    /// Capture files: pcapng with an index, compressed or not; or any other capture file
    #[arg(value_name = "FILE", required = true)]
    files: Vec<PathBuf>,

    /// File to write (pcapng, with an index), - for standard output
    #[arg(short, long, value_name = "FILE", required_unless_present = "check")]
    write: Option<PathBuf>,

    /// Packets from this time on: 2026-07-01T12:00:00.5Z, or seconds since 1970
    #[arg(long, value_name = "TIME", value_parser = time)]
    from: Option<Duration>,

    /// Packets up to this time
    #[arg(long, value_name = "TIME", value_parser = time)]
    to: Option<Duration>,

    /// Packets that match this tcpdump expression (pcap-filter(7)). Words such as `host A`, `port N`, `tcp`, joined by
    /// `and`, are looked up in the index; for others all packets of the time are read
    #[arg(short, long, value_name = "FILTER", default_value = "")]
    filter: String,

    /// Compress by zstd, at this level: 1 is the fastest, 19 the smallest
    #[arg(long, value_name = "LEVEL", num_args = 0..=1, default_missing_value = "3", require_equals = true, value_parser = clap::value_parser!(i32).range(1..=19))]
    zstd: Option<i32>,

    /// Read everything, and compare each index with its packets; the exit status is 1 if one is wrong
    #[arg(long)]
    check: bool,

    /// Print one JSON object: packets, bytes, read, size, chunks, skipped, unindexed, notes
    #[arg(long)]
    json: bool,
}

/// Parses a time of the calendar (UTC), or in seconds since 1970.
fn time(text: &str) -> Result<Duration, String> {
    let whole = text.split('.').next().unwrap_or_default();
    if !whole.is_empty() && whole.bytes().all(|byte| byte.is_ascii_digit()) {
        return unetmap_quantity::seconds(text);
    }
    let parsed = humantime::parse_rfc3339_weak(text).map_err(|e| {
        format!("{e}; give a time such as 2026-07-01T12:00:00Z, or seconds since 1970 such as 1782907200.5")
    })?;
    SystemTime::duration_since(&parsed, UNIX_EPOCH).map_err(|_| "give a time from 1970 on".into())
}

/// The part of a file that was there when it was opened: it may grow all the time.
struct Start {
    file: File,
    size: u64,
}

impl ReadAt for Start {
    fn read_at(&self, to: &mut [u8], at: u64) -> io::Result<usize> {
        let len = self.size.saturating_sub(at).min(to.len() as u64) as usize;
        ReadAt::read_at(&self.file, &mut to[..len], at)
    }
}

/// A file with its next packet.
struct Input {
    name: String,
    size: u64,
    extract: Extract<Start>,
    packet: Vec<u8>,
    next: Option<Found>,
    /// Why the file is not read to its end.
    failed: Option<Error>,
}

impl Input {
    fn open(path: &std::path::Path, args: &ExtractArgs) -> Result<Input, String> {
        let name = path.display().to_string();
        let failed = |e: &dyn std::fmt::Display| format!("{name}: {e}");
        let file = source::open(path).map_err(|e| failed(&tool_common::without_codes(&e.to_string())))?;
        let (size, file) = (file.limit(), file.into_inner());
        // The kernel reads no more than is asked for. Fails for a file that is no file of a disk.
        let _ = fadvise(&file, 0, None, Advice::Random);
        let query = Query::of_filter(&args.filter);
        let extract =
            Extract::new(Start { file, size }, query, [args.from, args.to], args.check).map_err(|e| failed(&e))?;
        Ok(Input { name, size, extract, packet: Vec::new(), next: None, failed: None })
    }

    /// Takes the next packet that the filter accepts.
    fn advance(&mut self, filter: Option<&BpfProgram>) {
        loop {
            self.next = self.extract.next_packet(&mut self.packet).unwrap_or_else(|error| {
                self.failed = Some(error);
                None
            });
            if self.next.is_none() || filter.is_none_or(|filter| filter.filter(&self.packet)) {
                return;
            }
        }
    }

    fn notes(&self) -> Vec<String> {
        let mut notes: Vec<String> = self.extract.notes().iter().map(|note| format!("{}: {note}", self.name)).collect();
        let (packets, at) = self.extract.unindexed();
        if packets > 0 && notes.is_empty() {
            notes.push(format!("{}: {packets} packets from byte {at} on have no index, and were read", self.name));
        }
        notes.extend(self.failed.iter().map(|error| format!("{}: {error}", self.name)));
        notes
    }
}

/// Extracts, and prints what was read.
pub(crate) fn run(args: &ExtractArgs) -> Result<u8, Failure> {
    let failed = |why: String| Failure::Work(why).within("extract");
    let wrong = |why: String| Failure::Usage(why).within("extract");
    let filter = compile(&args.filter).map_err(wrong)?;
    let mut inputs =
        args.files.iter().map(|path| Input::open(path, args)).collect::<Result<Vec<_>, _>>().map_err(failed)?;
    let info = CaptureInfo { port: String::new(), filter: args.filter.clone(), snaplen: MAX_PACKET, times: "" };
    let mut out = match &args.write {
        None => None,
        Some(path) => {
            let style = Style { format: Format::Pcapng, has_index: path.as_os_str() != "-", level: args.zstd };
            Some(Files::create(path, style, info, Limits::default()).map_err(failed)?)
        }
    };
    // The time of each file's next packet, and the file's number.
    let mut queue = BTreeSet::new();
    for (i, input) in inputs.iter_mut().enumerate() {
        input.advance(filter.as_ref());
        queue.extend(input.next.map(|found| (found.time, i)));
    }
    let (mut counters, mut bytes, mut last) = (Counters::default(), 0, Duration::ZERO);
    while let Some((time, i)) = queue.pop_first() {
        let input = &mut inputs[i];
        let Some(found) = input.next else { continue };
        last = time.unwrap_or(last);
        counters.received += 1;
        counters.accepted += 1;
        bytes += found.original as u64;
        if let Some(out) = &mut out {
            out.packet(last, &input.packet, found.original as u32, || counters).map_err(failed)?;
        }
        input.advance(filter.as_ref());
        queue.extend(input.next.map(|found| (found.time, i)));
    }
    if let Some(out) = &mut out {
        out.finish(last, counters).map_err(failed)?;
    }
    report(args, &inputs, counters.accepted, bytes).map_err(failed)
}

fn report(args: &ExtractArgs, inputs: &[Input], packets: u64, bytes: u64) -> Result<u8, String> {
    let sum = |of: &dyn Fn(&Input) -> u64| inputs.iter().map(of).sum::<u64>();
    // Bytes that are read twice, such as those of a file's end, count once.
    let read = sum(&|input| input.extract.bytes_read().min(input.size));
    let size = sum(&|input| input.size);
    let [chunks, skipped] = [0, 1].map(|i| sum(&|input| input.extract.chunks[i]));
    let unindexed = sum(&|input| input.extract.unindexed().0);
    let notes: Vec<String> = inputs.iter().flat_map(Input::notes).collect();
    let is_damaged = inputs.iter().any(|input| input.failed.is_some() || !input.extract.notes().is_empty());
    if args.json {
        let line = json!({"packets": packets, "bytes": bytes, "read": read, "size": size, "chunks": chunks,
            "skipped": skipped, "unindexed": unindexed, "notes": notes});
        if args.write.as_ref().is_some_and(|path| path.as_os_str() == "-") {
            note(&line.to_string());
        } else {
            crate::print("extract", &format!("{line}\n"))?;
        }
    } else {
        notes.iter().for_each(|line| note(&format!("extract: {line}")));
        let share = 100.0 * read as f64 / size.max(1) as f64;
        note(&format!("{packets} packets, {bytes} bytes; read {read} of {size} bytes ({share:.2} %)"));
    }
    Ok(u8::from(is_damaged))
}
