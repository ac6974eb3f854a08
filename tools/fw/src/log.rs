// SPDX-License-Identifier: BSD-2-Clause
//! Packets that rules log: lines as ipfw writes them, or a file of packets.

use std::fs::{self, File};
use std::io::{self, BufWriter, Write as _};
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::sync::mpsc::Receiver;

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
pub(crate) fn run(entries: &Receiver<LogEntry>, ports: &[String; 2], events: &Events, mut file: Option<PacketLog>) {
    while let Ok(first) = entries.recv() {
        for entry in std::iter::once(first).chain(entries.try_iter()) {
            let line = line(&entry, ports);
            events.add(&entry, &line, &ports[1]);
            match &mut file {
                None => note(&line),
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

/// A pcapng file of packets, each with its line as a comment. When half of the space is used, the file gets the ending
/// `.1` and another one begins.
pub(crate) struct PacketLog {
    path: PathBuf,
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
        let (writer, written) = begin(path).map_err(|e| format!("--log {}: {e}", path.display()))?;
        Ok(PacketLog { path: path.to_owned(), max: bytes / 2, written, writer })
    }

    fn packet(&mut self, entry: &LogEntry, line: &str) -> Result<(), String> {
        let kept = (entry.len as usize).min(HEADER_BYTES);
        let size = BLOCK + kept as u64 + line.len() as u64;
        if self.written + size > self.max {
            self.flush()?;
            let mut old = self.path.clone().into_os_string();
            old.push(".1");
            fs::rename(&self.path, old).map_err(|e| e.to_string())?;
            (self.writer, self.written) = begin(&self.path)?;
        }
        let (time, bytes) = (entry.time, &entry.bytes[..kept]);
        let written = write::packet_with_comment(&mut self.writer, time, bytes, entry.len, line);
        self.written += written.map_err(|e| e.to_string())?;
        Ok(())
    }

    fn flush(&mut self) -> Result<(), String> {
        self.writer.flush().map_err(|e: io::Error| e.to_string())
    }
}

/// Returns a file that has only its header, and the header's bytes.
fn begin(path: &Path) -> Result<(BufWriter<File>, u64), String> {
    let mut writer = BufWriter::new(File::create(path).map_err(|e| e.to_string())?);
    let info = CaptureInfo { port: String::new(), filter: String::new(), snaplen: HEADER_BYTES as u32, times: "" };
    let bytes = write::begin(&mut writer, Format::Pcapng, &info).map_err(|e| e.to_string())?;
    Ok((writer, bytes))
}
