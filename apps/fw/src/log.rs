// SPDX-License-Identifier: BSD-2-Clause
//! Packets that rules log: lines as ipfw writes them, or a file of packets.

use std::fs::File;
use std::io::{self, BufWriter, Write as _};
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::time::Duration;

use tool_common::host::log::Bounds;
use tool_common::host::place::{Identity, Place};
use tool_common::note;
use unetmap_capture::write::{self, CaptureInfo, Format};
use unetmap_filter::{Direction, Family, HEADER_BYTES, Headers, proto};

use crate::events::Events;
use crate::shared::LogEntry;

/// Returns `ipfw: RULE ACTION PROTO SRC:PORT DST:PORT in|out via PORT [frag]`.
pub(crate) fn line(entry: &LogEntry, ports: &[String; 2]) -> String {
    let LogEntry { number, action, headers: h, direction, .. } = entry;
    let direction = if *direction == Direction::Out { "out" } else { "in" };
    let fragment = if h.frag_offset != 0 { " frag" } else { "" };
    format!("ipfw: {number} {action} {} {direction} via {}{fragment}", packet(h), ports[1])
}

fn packet(h: &Headers) -> String {
    let (src, dst) = match h.family {
        Family::V4 => (IpAddr::V4(h.src4.into()), IpAddr::V4(h.dst4.into())),
        Family::V6 => (IpAddr::V6(h.src6.into()), IpAddr::V6(h.dst6.into())),
        Family::Other => return format!("type 0x{:04x}", h.ethertype),
    };
    let name = match h.proto {
        proto::TCP => "TCP",
        proto::UDP => "UDP",
        proto::ICMP => return format!("ICMP:{} {src} {dst}", h.icmp_type),
        proto::ICMP6 => return format!("ICMPv6:{} {src} {dst}", h.icmp_type),
        other => return format!("P:{other} {src} {dst}"),
    };
    let end = |address: IpAddr, port: u16| match address {
        _ if !h.has_ports() => address.to_string(),
        IpAddr::V4(_) => format!("{address}:{port}"),
        IpAddr::V6(_) => format!("[{address}]:{port}"),
    };
    format!("{name} {} {}", end(src, h.src_port), end(dst, h.dst_port))
}

/// Keeps what rules log as events, and writes it until the sender is gone: lines to standard error, or packets to a
/// file.
///
/// Of the lines of a rule so many are written in a period: the senders of the packets could fill the disk. `again`: the
/// file may have been moved away, and another one begins.
pub(crate) fn run(
    entries: &Receiver<LogEntry>,
    ports: &[String; 2],
    events: &Events,
    mut file: Option<PacketLog>,
    again: &AtomicBool,
) {
    let mut bounds = Bounds::default();
    loop {
        let first = match entries.recv_timeout(LOOK_EVERY) {
            Err(RecvTimeoutError::Disconnected) => {
                return bounds.take().iter().for_each(|unlogged| note(&unlogged.to_string()));
            }
            first => first.ok(),
        };
        bounds.end().iter().for_each(|unlogged| note(&unlogged.to_string()));
        if let Some(Err(e)) = file.as_mut().filter(|_| again.swap(false, Relaxed)).map(PacketLog::follow) {
            note(&format!("the log cannot begin again: {e}"));
        }
        for entry in first.into_iter().chain(entries.try_iter()) {
            let line = line(&entry, ports);
            events.add(&entry, &line, &ports[1]);
            match &mut file {
                None if bounds.admit(entry.number, None, TIMES_OF_RULE, || line.clone()) => note(&line),
                None => {}
                Some(log) => {
                    if let Err(e) = log.packet(&entry, &line) {
                        note(&format!("the log {}: {e}; packets are lines from now on", log.path.display()));
                        file = None;
                    }
                }
            }
        }
        if let Some(Err(e)) = file.as_mut().map(PacketLog::flush) {
            note(&format!("the log: {e}"));
        }
    }
}

/// Time between two looks at the flag that SIGHUP sets.
const LOOK_EVERY: Duration = Duration::from_millis(200);
/// How many times more lines of a rule are written than of other messages: 100 in a minute.
const TIMES_OF_RULE: u32 = 5;

/// A pcapng file of packets, each with its line as a comment. When half of the space is used, the file gets the ending
/// `.1` and another one begins.
pub(crate) struct PacketLog {
    path: PathBuf,
    /// In a folder that is held open.
    place: Place,
    /// Most bytes of one file.
    max: u64,
    written: u64,
    writer: BufWriter<File>,
}

/// Bytes of a packet's block besides the packet and the comment, at most.
const BLOCK: u64 = 48;

impl PacketLog {
    /// Creates the file; it and the one before it have at most `bytes`.
    ///
    /// # Errors
    /// A sentence.
    pub(crate) fn create(path: &Path, bytes: u64) -> Result<PacketLog, String> {
        let failed = |e: io::Error| format!("--log {}: {e}", path.display());
        let place = Place::of_target(path).map_err(failed)?;
        let (writer, written) = begin(&place).map_err(failed)?;
        Ok(PacketLog { path: path.to_owned(), place, max: bytes / 2, written, writer })
    }

    fn packet(&mut self, entry: &LogEntry, line: &str) -> Result<(), String> {
        let kept = (entry.len as usize).min(HEADER_BYTES);
        let size = BLOCK + kept as u64 + line.len() as u64;
        if self.written + size > self.max {
            self.place.set_aside().map_err(|e| e.to_string())?;
            self.begin_again()?;
        }
        let (time, bytes) = (entry.time, &entry.bytes[..kept]);
        let written = write::packet_with_comment(&mut self.writer, time, bytes, entry.len, line);
        self.written += written.map_err(|e| e.to_string())?;
        Ok(())
    }

    /// Goes on with another file if this one was moved away.
    fn follow(&mut self) -> Result<(), String> {
        self.flush()?;
        let own = Identity::of(self.writer.get_ref()).map_err(|e| e.to_string())?;
        if self.place.identity() == Some(own) { Ok(()) } else { self.begin_again() }
    }

    /// Goes on with another file of that name, as this one has its most bytes, or was moved away.
    fn begin_again(&mut self) -> Result<(), String> {
        self.flush()?;
        (self.writer, self.written) = begin(&self.place).map_err(|e| e.to_string())?;
        Ok(())
    }

    fn flush(&mut self) -> Result<(), String> {
        self.writer.flush().map_err(|e: io::Error| e.to_string())
    }
}

/// Returns a file that has only its header, and the header's bytes.
fn begin(place: &Place) -> io::Result<(BufWriter<File>, u64)> {
    let mut writer = BufWriter::new(place.create(0o666)?);
    let info = CaptureInfo { port: String::new(), filter: String::new(), snaplen: HEADER_BYTES as u32, times: "" };
    let bytes = write::begin(&mut writer, Format::Pcapng, &info)?;
    Ok((writer, bytes))
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn a_packet_log_begins_again_if_it_was_moved_away_and_follows_no_link() {
        let folder = tempfile::tempdir().unwrap();
        let (path, moved) = (folder.path().join("log"), folder.path().join("moved"));
        let mut log = PacketLog::create(&path, 1 << 20).unwrap();
        log.writer.write_all(b"packets").unwrap();
        log.follow().unwrap();
        let written = fs::read(&path).unwrap();
        assert!(written.ends_with(b"packets"), "it is where it was: nothing begins again");
        fs::rename(&path, &moved).unwrap();
        log.follow().unwrap();
        assert_eq!(fs::read(&moved).unwrap(), written);
        log.flush().unwrap();
        assert_eq!(fs::read(&path).unwrap(), written[..written.len() - b"packets".len()]);
        // Another program puts a link in its place.
        fs::remove_file(&path).unwrap();
        std::os::unix::fs::symlink(&moved, &path).unwrap();
        assert!(log.follow().unwrap_err().contains("symbolic link"));
        assert_eq!(fs::read(&moved).unwrap(), written);
    }
}
