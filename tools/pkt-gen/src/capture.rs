// SPDX-License-Identifier: BSD-2-Clause
//! Reads the packets of a pcap or pcapng file to send them, and writes received packets to a pcap file.

use std::fs::File;
use std::io::{BufReader, BufWriter, Read, Seek as _, Write as _};
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::time::Duration;

use pcap_file::pcap::{PcapHeader, PcapPacket, PcapReader, PcapWriter};
use pcap_file::pcapng::{Block, PcapNgReader};
use pcap_file::{DataLink, Endianness, PcapError, TsResolution};

/// Snap length of the written file in bytes, more than any received packet has.
const SNAPLEN: u32 = 262_144;

/// The first bytes of a pcapng file, in either byte order.
const PCAPNG: [u8; 4] = [0x0a, 0x0d, 0x0d, 0x0a];

/// All packets of a file, in order.
#[derive(Clone, Debug, Default)]
pub(crate) struct Capture {
    bytes: Vec<u8>,
    packets: Vec<Range<usize>>,
    /// Number of packets that the capture truncated.
    pub(crate) truncated: usize,
}

impl Capture {
    /// Reads a pcap or pcapng file of Ethernet packets.
    pub(crate) fn read(path: &Path) -> Result<Capture, String> {
        let fail = |what: String| format!("-P {}: {what}", path.display());
        let mut file = File::open(path).map_err(|e| fail(e.to_string()))?;
        let mut magic = Vec::new();
        let begun = (&file).take(4).read_to_end(&mut magic).and_then(|_| file.rewind());
        begun.map_err(|e| fail(e.to_string()))?;
        let mut capture = Capture::default();
        let file = BufReader::new(file);
        match magic[..] == PCAPNG {
            true => capture.read_pcapng(file),
            false => capture.read_pcap(file),
        }
        .map_err(fail)?;
        if capture.packets.is_empty() { Err(fail("it contains no packet".into())) } else { Ok(capture) }
    }

    fn read_pcap(&mut self, file: impl Read) -> Result<(), String> {
        let mut reader =
            PcapReader::new(file).map_err(|e| format!("it is not a pcap or pcapng file: {}", reason(&e)))?;
        check_link(reader.header().datalink)?;
        // Raw packets, because those truncated by the snap length are valid here: their captured bytes are sent.
        while let Some(packet) = reader.next_raw_packet() {
            let packet = packet.map_err(|e| self.damaged(&e))?;
            self.push(&packet.data, packet.orig_len);
        }
        Ok(())
    }

    fn read_pcapng(&mut self, file: impl Read) -> Result<(), String> {
        let mut reader = PcapNgReader::new(file).map_err(|e| format!("it is a damaged pcapng file: {}", reason(&e)))?;
        while let Some(block) = reader.next_block() {
            match block.map_err(|e| self.damaged(&e))? {
                // Interfaces are described before their packets.
                Block::InterfaceDescription(interface) => check_link(interface.linktype)?,
                Block::EnhancedPacket(packet) => self.push(&packet.data, packet.original_len),
                Block::Packet(packet) => self.push(&packet.data, packet.original_len),
                Block::SimplePacket(packet) => {
                    // The rest is padding.
                    let len = packet.data.len().min(packet.original_len as usize);
                    self.push(&packet.data[..len], packet.original_len);
                }
                _ => {}
            }
        }
        Ok(())
    }

    /// Appends a packet of `original` bytes, of which `captured` are in the file.
    fn push(&mut self, captured: &[u8], original: u32) {
        if captured.is_empty() {
            return;
        }
        let start = self.bytes.len();
        self.bytes.extend_from_slice(captured);
        self.packets.push(start..self.bytes.len());
        self.truncated += usize::from(captured.len() < original as usize);
    }

    fn damaged(&self, error: &PcapError) -> String {
        format!("it is damaged after packet {}: {}", self.packets.len(), reason(error))
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

fn check_link(link: DataLink) -> Result<(), String> {
    match link {
        DataLink::ETHERNET => Ok(()),
        other => Err(format!("it contains {other:?} packets; only Ethernet packets can be sent")),
    }
}

fn reason(error: &PcapError) -> String {
    match error {
        PcapError::IoError(io) => io.to_string(),
        PcapError::IncompleteBuffer => "it is truncated".into(),
        other => other.to_string(),
    }
}

/// Writes a pcap file with timestamps in nanoseconds.
pub(crate) struct CaptureWriter {
    path: PathBuf,
    out: PcapWriter<BufWriter<File>>,
}

impl CaptureWriter {
    pub(crate) fn create(path: &Path) -> Result<CaptureWriter, String> {
        let fail = |e: String| format!("--write {}: {e}", path.display());
        let file = File::create(path).map_err(|e| fail(e.to_string()))?;
        let header = PcapHeader {
            snaplen: SNAPLEN,
            datalink: DataLink::ETHERNET,
            ts_resolution: TsResolution::NanoSecond,
            // The library's default is big endian, which simple parsers may not support.
            endianness: Endianness::native(),
            ..PcapHeader::default()
        };
        let out =
            PcapWriter::with_header(BufWriter::with_capacity(1 << 20, file), header).map_err(|e| fail(reason(&e)))?;
        Ok(CaptureWriter { path: path.into(), out })
    }

    /// Appends one packet. `time` counts from 1970.
    pub(crate) fn packet(&mut self, time: Duration, bytes: &[u8]) -> Result<(), String> {
        let len = u32::try_from(bytes.len()).unwrap_or(u32::MAX);
        let packet = PcapPacket::new(time, len, bytes);
        self.out.write_packet(&packet).map(drop).map_err(|e| format!("--write {}: {}", self.path.display(), reason(&e)))
    }

    /// Flushes the buffered packets to the file.
    pub(crate) fn finish(self) -> Result<(), String> {
        let path = self.path;
        self.out.into_writer().flush().map_err(|e| format!("--write {}: {e}", path.display()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

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
            prop_assert_eq!(capture.truncated, 0);
        }
    }

    /// Builds a pcap file: header with `snaplen` and link type, then packets of zeros with (incl_len, orig_len).
    fn file(snaplen: u32, link: u32, packets: &[(u32, u32)]) -> Vec<u8> {
        let mut bytes = Vec::new();
        let words = [0xa1b2_c3d4_u32, 0x0004_0002, 0, 0, snaplen, link];
        bytes.extend(words.iter().flat_map(|w| w.to_le_bytes()));
        for &(incl, orig) in packets {
            bytes.extend([0, 0, incl, orig].iter().flat_map(|w| w.to_le_bytes()));
            bytes.resize(bytes.len() + incl as usize, 0);
        }
        bytes
    }

    /// Builds a pcapng file: a section, an interface with this link type, and packets of these lengths; a name record
    /// and a simple packet of 21 bytes are between them.
    fn pcapng(link: u32, lengths: &[u32]) -> Vec<u8> {
        let mut bytes = Vec::new();
        let mut block = |kind: u32, words: &[u32], data: usize| {
            let len = (12 + words.len() * 4 + data.next_multiple_of(4)) as u32;
            bytes.extend([kind, len].iter().chain(words).flat_map(|w| w.to_le_bytes()));
            bytes.resize(bytes.len() + data.next_multiple_of(4), 0);
            bytes.extend(len.to_le_bytes());
        };
        block(u32::from_le_bytes(PCAPNG), &[0x1a2b_3c4d, 1, u32::MAX, u32::MAX], 0);
        block(1, &[link, 96], 0);
        for (i, &len) in lengths.iter().enumerate() {
            block(6, &[0, 0, 0, len, len + 4], len as usize);
            if i == 0 && lengths.len() > 2 {
                block(4, &[0], 0);
                block(3, &[21], 21);
            }
        }
        bytes
    }

    #[test]
    fn pcapng_files_are_read() {
        let capture = read(&pcapng(1, &[60, 96, 61])).unwrap();
        let lengths: Vec<usize> = (0..capture.len()).map(|i| capture.packet(i).len()).collect();
        assert_eq!((lengths, capture.truncated, capture.longest()), (vec![60, 21, 96, 61], 3, 96));
    }

    fn read(bytes: &[u8]) -> Result<Capture, String> {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a.pcap");
        std::fs::write(&path, bytes).unwrap();
        Capture::read(&path)
    }

    #[test]
    fn truncated_packets_are_read_as_captured() {
        let capture = read(&file(96, 1, &[(96, 1500), (60, 60)])).unwrap();
        assert_eq!((capture.len(), capture.truncated), (2, 1));
        assert_eq!(capture.packet(0).len(), 96);
    }

    #[test]
    fn invalid_files_are_refused_with_a_reason() {
        for (bytes, part) in [
            (b"hello".to_vec(), "not a pcap or pcapng file"),
            (PCAPNG.repeat(20), "damaged pcapng file"),
            (pcapng(101, &[60]), "only Ethernet"),
            (pcapng(1, &[]), "contains no packet"),
            (pcapng(1, &[60, 60])[..150].to_vec(), "damaged after packet 1"),
            (file(96, 1, &[]), "contains no packet"),
            (file(96, 101, &[(20, 20)]), "only Ethernet"),
            (file(96, 1, &[(20, 20), (60, 60)])[..90].to_vec(), "damaged after packet 1"),
        ] {
            let message = read(&bytes).unwrap_err();
            assert!(message.contains(part), "{message}");
        }
        let message = Capture::read(Path::new("/nowhere/x.pcap")).unwrap_err();
        assert!(message.contains("/nowhere/x.pcap") && message.contains("No such file"), "{message}");
    }
}
