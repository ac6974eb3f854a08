// SPDX-License-Identifier: BSD-2-Clause
//! Reads the packets of a capture file to send them, and writes received packets to a pcap file.

use std::fs::File;
use std::io;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::time::Duration;

use tool_common::source;
use unetmap_capture::write::{self, CaptureInfo, Format};
use unetmap_capture::{Counts, Error, Frames, MAX_PACKET};
use unetmap_sys::place;

/// All Ethernet packets of a file, in order.
#[derive(Clone, Debug, Default)]
pub(crate) struct Capture {
    bytes: Vec<u8>,
    packets: Vec<Range<usize>>,
    /// Counts of the packets that were read, and of those that were passed over.
    pub(crate) counts: Counts,
    /// Why the rest of the file could not be read.
    pub(crate) damage: Option<String>,
}

impl Capture {
    /// Reads a pcap or pcapng file of Ethernet packets. If it is damaged, what is before the damage is read.
    ///
    /// # Errors
    /// A sentence that begins with the path, if the file cannot be read or has no such packet.
    pub(crate) fn read(path: &Path) -> Result<Capture, String> {
        let fail = |what: String| format!("{}: {what}", path.display());
        let file = source::open(path).map_err(Error::Io).and_then(Frames::new);
        let mut file = file.map_err(|e| fail(e.to_string()))?;
        let mut capture = Capture::default();
        loop {
            match file.next_frame() {
                Ok(Some(frame)) => {
                    let start = capture.bytes.len();
                    capture.bytes.extend_from_slice(frame.bytes);
                    capture.packets.push(start..capture.bytes.len());
                }
                Ok(None) => break,
                Err(damage) => capture.damage = Some(damage.to_string()),
            }
        }
        capture.counts = file.counts().clone();
        if capture.packets.is_empty() {
            return Err(fail(capture.damage.unwrap_or_else(|| capture.counts.nothing())));
        }
        Ok(capture)
    }

    /// Returns sentences about what is not sent, or not whole.
    pub(crate) fn notes(&self) -> Vec<String> {
        let damage = self.damage.iter().map(|damage| format!("{damage}; the packets before are sent"));
        self.counts.notes().into_iter().chain(damage).collect()
    }

    /// Returns the number of packets, at least 1.
    pub(crate) fn len(&self) -> usize {
        self.packets.len()
    }

    /// Returns packet `i`, which must be less than `len()`.
    pub(crate) fn packet(&self, i: usize) -> &[u8] {
        &self.bytes[self.packets[i].clone()]
    }

    /// Returns the length of the longest packet in bytes.
    pub(crate) fn longest(&self) -> usize {
        self.packets.iter().map(ExactSizeIterator::len).max().unwrap_or(0)
    }
}

/// Bytes of records that are written at once.
const BUFFER: usize = 1 << 20;

/// Writes a pcap file with timestamps in nanoseconds. If it cannot be written any longer, as on a full disk, it ends
/// with its last whole packet.
pub(crate) struct CaptureWriter {
    path: PathBuf,
    file: File,
    /// Whole records that are not in the file yet.
    buffer: Vec<u8>,
    /// Bytes of the file.
    written: u64,
    /// Packets in the file and the buffer.
    packets: u64,
}

impl CaptureWriter {
    pub(crate) fn create(path: &Path) -> Result<CaptureWriter, String> {
        let failed = |e: io::Error| format!("--write {}: {e}", path.display());
        let mut file = place::create(path).map_err(failed)?;
        let info = CaptureInfo { port: String::new(), filter: String::new(), snaplen: MAX_PACKET, times: "" };
        let written = write::begin(&mut file, Format::Pcap, &info).map_err(failed)?;
        Ok(CaptureWriter { path: path.into(), file, buffer: Vec::with_capacity(BUFFER), written, packets: 0 })
    }

    /// Appends one packet. `time` counts from 1970.
    pub(crate) fn packet(&mut self, time: Duration, bytes: &[u8]) -> Result<(), String> {
        if self.buffer.len() + write::packet_size(Format::Pcap, bytes) as usize > BUFFER {
            self.flush()?;
        }
        let len = u32::try_from(bytes.len()).unwrap_or(u32::MAX);
        self.packets += 1;
        let added = write::packet(&mut self.buffer, Format::Pcap, time, bytes, len);
        added.map(drop).map_err(|e| format!("--write {}: {e}", self.path.display()))
    }

    /// Writes the buffered packets to the file.
    pub(crate) fn finish(mut self) -> Result<(), String> {
        self.flush()
    }

    fn flush(&mut self) -> Result<(), String> {
        let (done, result) = write::write_some(&mut self.file, &self.buffer);
        let (whole, left) = write::whole_records(Format::Pcap, &self.buffer, done);
        self.written += whole as u64;
        self.packets -= left.packets;
        self.buffer.clear();
        result.map_err(|e| {
            // Fails for a file that has no size, such as a device.
            let _ = self.file.set_len(self.written);
            format!("--write {}: {e}; {} packets are in the file", self.path.display(), self.packets)
        })
    }
}

/// Reads a packet of a capture, by its number from 1.
#[cfg(feature = "apps")]
pub(crate) fn packet(path: &Path, number: usize) -> Result<Vec<u8>, String> {
    let capture = Capture::read(path)?;
    let index = number.checked_sub(1).filter(|index| *index < capture.len());
    let index = index.ok_or_else(|| {
        let notes: String = capture.notes().iter().map(|what| format!("; {what}")).collect();
        format!("packet {number} of {}: it has {}{notes}", path.display(), capture.len())
    })?;
    Ok(capture.packet(index).to_vec())
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use unetmap_capture::testing::Pcap;

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(32))]
        #[test]
        fn written_packets_are_read_back(packets in prop::collection::vec(prop::collection::vec(any::<u8>(), 1..3000), 1..20)) {
            let dir = tempfile::tempdir().unwrap();
            let path = dir.path().join("a.pcap");
            let mut writer = CaptureWriter::create(&path).unwrap();
            for (i, packet) in packets.iter().enumerate() {
                writer.packet(Duration::new(1_700_000_000, u32::try_from(i).unwrap()), packet).unwrap();
            }
            writer.finish().unwrap();
            let capture = Capture::read(&path).unwrap();
            prop_assert_eq!(capture.len(), packets.len());
            for (i, packet) in packets.iter().enumerate() {
                prop_assert_eq!(capture.packet(i), &packet[..]);
            }
            prop_assert_eq!(capture.longest(), packets.iter().map(Vec::len).max().unwrap());
            prop_assert_eq!(capture.notes(), Vec::<String>::new());
        }
    }

    /// `/dev/full` takes nothing, as a full disk.
    #[test]
    fn a_full_disk_is_reported_with_the_packets_in_the_file() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a.pcap");
        let mut writer = CaptureWriter::create(&path).unwrap();
        writer.packet(Duration::ZERO, &[1; 60]).unwrap();
        writer.flush().unwrap();
        let file = std::mem::replace(&mut writer.file, File::options().write(true).open("/dev/full").unwrap());
        writer.packet(Duration::ZERO, &[2; 60]).unwrap();
        let said = writer.flush().unwrap_err();
        assert!(said.contains("No space left") && said.ends_with("; 1 packets are in the file"), "{said}");
        writer.file = file;
        writer.finish().unwrap();
        assert_eq!(Capture::read(&path).unwrap().len(), 1);
    }

    fn read(bytes: &[u8]) -> Result<Capture, String> {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a.pcap");
        std::fs::write(&path, bytes).unwrap();
        Capture::read(&path)
    }

    #[test]
    fn samples_are_read_with_notes_about_what_is_not_sent() {
        for sample in unetmap_capture::testing::samples() {
            let capture = read(&sample.bytes).unwrap();
            let packets: Vec<_> = (0..capture.len()).map(|i| capture.packet(i)).collect();
            assert_eq!(packets, sample.frames, "{}", sample.name);
            let notes = capture.notes().join("\n");
            assert!(sample.notes.iter().all(|part| notes.contains(part)), "{}: {notes}", sample.name);
            assert!(notes.contains(sample.damage), "{}: {notes}", sample.name);
            assert_eq!(notes.is_empty(), sample.notes.is_empty() && sample.damage.is_empty(), "{}", sample.name);
        }
    }

    #[test]
    fn files_without_packets_are_refused_with_a_reason() {
        let ended = &Pcap::usual().record(0, &[1; 60], 60).bytes[..90];
        for (bytes, part) in [
            (&b"hello"[..], "a.pcap: it is not a pcap or pcapng file"),
            (&Pcap::usual().bytes, "a.pcap: it contains no packet"),
            (ended, "a.pcap: it ends within a record, after packet 0"),
        ] {
            let message = read(bytes).unwrap_err();
            assert!(message.contains(part), "{message}");
        }
        let message = Capture::read(Path::new("/nowhere/x.pcap")).unwrap_err();
        assert!(message.contains("/nowhere/x.pcap") && message.contains("No such file"), "{message}");
    }
}
