//! Programs of libpcap's on ports: the overlay that `unetmap run` puts before the system's libpcap, and frames that such
//! programs understand.

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::home::program;

/// Builds the overlay beside the `unetmap` that tests run, unless it is there and newer than its source.
#[track_caller]
pub fn overlay() -> PathBuf {
    overlay_in(program("unetmap").parent().expect("a file in a folder"))
}

/// The same, for the programs in `folder`.
#[track_caller]
pub fn overlay_in(folder: &Path) -> PathBuf {
    let folder = folder.join("pcap");
    let status = Command::new("make")
        .args(["--silent", "-C"])
        .arg(Path::new(env!("CARGO_MANIFEST_DIR")).join("../pcap"))
        .arg(format!("OUT={}", folder.display()))
        .status()
        .expect("make (apt-get install make)");
    assert!(status.success(), "the overlay does not compile");
    folder
}

/// A UDP packet over IPv4 from 10.9.0.2 to 10.9.0.1, as tcpdump takes it for good, with `payload`.
pub fn udp(from: u16, to: u16, payload: &[u8]) -> Vec<u8> {
    let mut bytes = vec![0x02, 0, 0, 0, 0, 0x0a, 0x02, 0, 0, 0, 0, 0x0b, 0x08, 0x00];
    let udp_len = 8 + payload.len() as u16;
    let mut ip = vec![0x45, 0];
    ip.extend((20 + udp_len).to_be_bytes());
    ip.extend([0, 1, 0, 0, 64, 17, 0, 0, 10, 9, 0, 2, 10, 9, 0, 1]);
    let sum = ip.chunks(2).map(|two| u32::from(two[0]) << 8 | u32::from(two[1])).sum::<u32>();
    let sum = !((sum & 0xffff) + (sum >> 16)) as u16;
    ip[10..12].copy_from_slice(&sum.to_be_bytes());
    bytes.extend(ip);
    bytes.extend([from.to_be_bytes(), to.to_be_bytes(), udp_len.to_be_bytes(), [0, 0]].concat());
    bytes.extend(payload);
    bytes
}

/// A packet of a capture file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Captured {
    /// Nanoseconds since 1970.
    pub time: u64,
    /// Bytes of the packet on the wire.
    pub len: u32,
    /// Those that were kept.
    pub bytes: Vec<u8>,
}

/// The packets of a pcap file of this machine's byte order, with micro- or nanoseconds.
#[track_caller]
pub fn read_pcap(path: &Path) -> Vec<Captured> {
    let bytes = std::fs::read(path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
    let word = |at: usize| u32::from_ne_bytes(bytes[at..at + 4].try_into().expect("four bytes"));
    let unit = match word(0) {
        0xa1b2_c3d4 => 1000,
        0xa1b2_3c4d => 1,
        magic => panic!("{}: no pcap file of this machine: {magic:#x}", path.display()),
    };
    let (mut at, mut packets) = (24, Vec::new());
    while at < bytes.len() {
        let (kept, len) = (word(at + 8) as usize, word(at + 12));
        let time = u64::from(word(at)) * 1_000_000_000 + u64::from(word(at + 4)) * unit;
        packets.push(Captured { time, len, bytes: bytes[at + 16..at + 16 + kept].to_vec() });
        at += 16 + kept;
    }
    packets
}
