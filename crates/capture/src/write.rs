// SPDX-License-Identifier: BSD-2-Clause
//! Writes the capture file formats: pcap with nanoseconds, or pcapng with an interface description at the beginning and
//! its counters at the end.
//!
//! ```text
//! pcap     header | packet | packet | ...
//! pcapng   section header | interface description | packet | packet | ... | interface statistics
//! ```
//! Numbers have the byte order of this machine, which readers detect by the magic number in the header.

use std::io::{self, Write};
use std::time::Duration;

/// Link type of Ethernet, in both formats.
const LINK: u16 = 1;
/// Block types of pcapng.
const SECTION: u32 = 0x0a0d_0d0a;
const INTERFACE: u32 = 1;
const STATISTICS: u32 = 5;
const PACKET: u32 = 6;

/// The file format.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    /// The older format, which every program reads.
    Pcap,
    /// The newer format, which contains drop counters.
    Pcapng,
}

/// Description of the capture in the header of a file. Empty texts are left out.
#[derive(Clone, Debug)]
pub struct CaptureInfo {
    /// Name of the interface.
    pub port: String,
    /// The filter expression; empty: all packets.
    pub filter: String,
    /// Most bytes of a packet that are stored.
    pub snaplen: u32,
    /// Description of the interface: what took the packets' times.
    pub times: &'static str,
}

/// Packet counters since the capture started.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Packets that the port received, including those that the filter rejected.
    pub received: u64,
    /// Packets that the filter accepted.
    pub accepted: u64,
    /// Packets dropped because the port's rings were full.
    pub dropped: u64,
}

/// A number of packets, with their lengths before they were truncated.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Volume {
    /// Number of packets.
    pub packets: u64,
    /// Their bytes.
    pub bytes: u64,
}

impl Volume {
    /// Adds both numbers.
    pub fn add(&mut self, other: Volume) {
        self.packets += other.packets;
        self.bytes += other.bytes;
    }
}

/// Writes the header of a file; returns its size in bytes.
///
/// # Errors
/// As of [`Write::write_all`].
pub fn begin(out: &mut impl Write, format: Format, info: &CaptureInfo) -> io::Result<u64> {
    if format == Format::Pcap {
        // Version 2.4; the two zeros are time zone and accuracy, which are unused.
        let words = [0xa1b2_3c4d, 4 << 16 | 2, 0, 0, info.snaplen, LINK.into()];
        // The version is two 16-bit numbers.
        let mut bytes: Vec<u8> = words.iter().flat_map(|word: &u32| word.to_ne_bytes()).collect();
        bytes[4..8].copy_from_slice(&[2u16.to_ne_bytes(), 4u16.to_ne_bytes()].concat());
        out.write_all(&bytes)?;
        return Ok(bytes.len() as u64);
    }
    let mut section = [0x1a2b_3c4d_u32.to_ne_bytes().as_slice(), &1u16.to_ne_bytes(), &0u16.to_ne_bytes()].concat();
    // The section length is unknown: -1.
    section.extend(u64::MAX.to_ne_bytes());
    let program = concat!("unetmap ", env!("CARGO_PKG_VERSION"));
    push_option(&mut section, 4, program.as_bytes());
    end_options(&mut section);
    let mut interface = [LINK.to_ne_bytes(), 0u16.to_ne_bytes()].concat();
    interface.extend(info.snaplen.to_ne_bytes());
    for (code, text) in [(2, info.port.as_str()), (3, info.times)].into_iter().filter(|(_, text)| !text.is_empty()) {
        push_option(&mut interface, code, text.as_bytes());
    }
    // Timestamps have a resolution of 10^-9 seconds.
    push_option(&mut interface, 9, &[9]);
    if !info.filter.is_empty() {
        push_option(&mut interface, 11, &[b"\0", info.filter.as_bytes()].concat());
    }
    end_options(&mut interface);
    Ok(block(out, SECTION, &section)? + block(out, INTERFACE, &interface)?)
}

/// Returns the size in the file of a packet with `bytes`, including its header and padding.
pub fn packet_size(format: Format, bytes: &[u8]) -> u64 {
    match format {
        Format::Pcap => 16 + bytes.len() as u64,
        Format::Pcapng => 32 + bytes.len().next_multiple_of(4) as u64,
    }
}

/// Returns how many of the first `bytes` bytes of these records are whole records, and the packets after them.
pub fn whole_records(format: Format, records: &[u8], bytes: usize) -> (usize, Volume) {
    let word = |at: usize| records.get(at..at + 4).and_then(|b| b.try_into().ok()).map_or(0, u32::from_ne_bytes);
    let (mut at, mut whole, mut left) = (0, 0, Volume::default());
    while at < records.len() {
        let (size, packets, len) = match format {
            Format::Pcap => (16 + word(at + 8), 1, word(at + 12)),
            Format::Pcapng if word(at) == PACKET => (word(at + 4), 1, word(at + 24)),
            Format::Pcapng => (word(at + 4).max(12), 0, 0),
        };
        at += size as usize;
        if at <= bytes {
            whole = at;
        } else {
            left.add(Volume { packets, bytes: len.into() });
        }
    }
    (whole, left)
}

/// Writes as many of the bytes as can be; returns their number.
pub fn write_some(out: &mut impl Write, bytes: &[u8]) -> (usize, io::Result<()>) {
    let mut done = 0;
    while done < bytes.len() {
        match out.write(&bytes[done..]) {
            Ok(0) => return (done, Err(io::ErrorKind::WriteZero.into())),
            Ok(n) => done += n,
            Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
            Err(e) => return (done, Err(e)),
        }
    }
    (done, Ok(()))
}

/// Returns the size of the end of a file, in bytes.
pub fn end_size(format: Format) -> u64 {
    match format {
        Format::Pcap => 0,
        // An interface number and a timestamp, then five options of 8 bytes each.
        Format::Pcapng => 12 + 4 + 8 + 5 * (4 + 8) + 4,
    }
}

/// Writes a packet of `len` bytes, truncated to `bytes`, received at `time` since 1970; returns its size in the file.
///
/// # Errors
/// As of [`Write::write_all`].
#[inline]
pub fn packet(out: &mut impl Write, format: Format, time: Duration, bytes: &[u8], len: u32) -> io::Result<u64> {
    let kept = bytes.len() as u32;
    if format == Format::Pcap {
        let head: [u32; 4] = [time.as_secs() as u32, time.subsec_nanos(), kept, len];
        out.write_all(words(&head).as_flattened())?;
        out.write_all(bytes)?;
        return Ok(packet_size(format, bytes));
    }
    let [high, low] = halves(time);
    let padding = bytes.len().next_multiple_of(4) - bytes.len();
    let total = packet_size(format, bytes) as u32;
    out.write_all(words(&[PACKET, total, 0, high, low, kept, len]).as_flattened())?;
    out.write_all(bytes)?;
    out.write_all(&[0; 3][..padding])?;
    out.write_all(&total.to_ne_bytes())?;
    Ok(total.into())
}

/// Writes a packet to a pcapng file as [`packet`] does, with a comment.
///
/// # Errors
/// As of [`Write::write_all`].
pub fn packet_with_comment(
    out: &mut impl Write,
    time: Duration,
    bytes: &[u8],
    len: u32,
    comment: &str,
) -> io::Result<u64> {
    let [high, low] = halves(time);
    let mut body = words(&[0, high, low, bytes.len() as u32, len]).concat();
    body.extend(bytes);
    body.resize(body.len().next_multiple_of(4), 0);
    push_option(&mut body, 1, comment.as_bytes());
    end_options(&mut body);
    block(out, PACKET, &body)
}

/// Writes the end of a file: the counters at `now`, of a capture that started at `begin`.
///
/// # Errors
/// As of [`Write::write_all`].
pub fn end(out: &mut impl Write, format: Format, begin: Duration, now: Duration, counters: Counters) -> io::Result<()> {
    if format == Format::Pcap {
        return Ok(());
    }
    let [high, low] = halves(now);
    let mut body = words(&[0, high, low]).concat();
    for (code, time) in [(2, begin), (3, now)] {
        push_option(&mut body, code, words(&halves(time)).as_flattened());
    }
    for (code, count) in [(4, counters.received), (5, counters.dropped), (6, counters.accepted)] {
        push_option(&mut body, code, &count.to_ne_bytes());
    }
    end_options(&mut body);
    let bytes = block(out, STATISTICS, &body)?;
    debug_assert_eq!(bytes, end_size(format));
    Ok(())
}

/// Returns the two halves of a time in nanoseconds, the upper half first.
fn halves(time: Duration) -> [u32; 2] {
    let ns = time.as_nanos() as u64;
    [(ns >> 32) as u32, ns as u32]
}

fn words<const N: usize>(words: &[u32; N]) -> [[u8; 4]; N] {
    words.map(u32::to_ne_bytes)
}

fn push_option(body: &mut Vec<u8>, code: u16, value: &[u8]) {
    // A filter expression can be longer than an option: truncate it.
    let value = &value[..value.len().min(usize::from(u16::MAX))];
    body.extend(code.to_ne_bytes());
    body.extend((value.len() as u16).to_ne_bytes());
    body.extend(value);
    body.resize(body.len().next_multiple_of(4), 0);
}

fn end_options(body: &mut Vec<u8>) {
    body.extend([0; 4]);
}

fn block(out: &mut impl Write, kind: u32, body: &[u8]) -> io::Result<u64> {
    let total = 12 + body.len() as u32;
    out.write_all(words(&[kind, total]).as_flattened())?;
    out.write_all(body)?;
    out.write_all(&total.to_ne_bytes())?;
    Ok(total.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn written_files_are_read() {
        let info = CaptureInfo { port: "eth0".into(), filter: String::new(), snaplen: 262_144, times: "" };
        let times = [0, 1_700_000_000_123_456_789].map(Duration::from_nanos);
        for format in [Format::Pcap, Format::Pcapng] {
            let mut file = Vec::new();
            let mut bytes = begin(&mut file, format, &info).unwrap();
            for (time, len) in times.into_iter().zip([61, 1514]) {
                let packet_bytes = packet(&mut file, format, time, &vec![7; len], 2000).unwrap();
                assert_eq!(packet_bytes, packet_size(format, &vec![7; len]));
                bytes += packet_bytes;
            }
            if format == Format::Pcapng {
                bytes += packet_with_comment(&mut file, times[1], &[7; 61], 61, "a packet").unwrap();
            }
            end(&mut file, format, times[0], times[1], Counters::default()).unwrap();
            assert_eq!(file.len() as u64, bytes + end_size(format));
            let mut frames = crate::Frames::new(&file[..]).unwrap();
            for (time, len) in times.into_iter().zip([61, 1514]) {
                let frame = frames.next_frame().unwrap().unwrap();
                assert_eq!((frame.time, frame.bytes, frame.truncated), (Some(time), &vec![7; len][..], true));
            }
            let last = frames.next_frame().unwrap().map(|frame| (frame.bytes.len(), frame.truncated));
            assert_eq!(last, (format == Format::Pcapng).then_some((61, false)));
        }
    }

    #[test]
    fn whole_records_end_before_the_given_byte() {
        for format in [Format::Pcap, Format::Pcapng] {
            let mut records = Vec::new();
            for len in [60, 61, 1514] {
                packet(&mut records, format, Duration::ZERO, &vec![0; len], len as u32).unwrap();
            }
            let [one, two] = [60, 61].map(|len| packet_size(format, &vec![0; len]) as usize);
            for (bytes, whole, left) in [
                (0, 0, (3, 60 + 61 + 1514)),
                (one - 1, 0, (3, 60 + 61 + 1514)),
                (one, one, (2, 61 + 1514)),
                (one + two + 1, one + two, (1, 1514)),
                (records.len(), records.len(), (0, 0)),
            ] {
                let left = Volume { packets: left.0, bytes: left.1 };
                assert_eq!(whole_records(format, &records, bytes), (whole, left), "{format:?} {bytes}");
            }
            end(&mut records, format, Duration::ZERO, Duration::ZERO, Counters::default()).unwrap();
            assert_eq!(whole_records(format, &records, records.len()).1, Volume::default());
        }
    }
}
