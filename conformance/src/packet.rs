// SPDX-License-Identifier: BSD-2-Clause
//! Packets with the number of their sender, a sequence number, and contents in which every changed byte is detected.

/// Bytes of a packet.
pub const BYTES: usize = 60;
const MAGIC: u64 = 0x756e_6574_6d61_7001;

/// Makes packet number `seq` of sender `sender`.
pub fn make(sender: u64, seq: u64) -> [u8; BYTES] {
    let mut bytes = [0; BYTES];
    let words = [MAGIC, sender, seq];
    let mixed = mix(sender, seq);
    for (to, from) in bytes.chunks_mut(8).zip(words.into_iter().chain((0..).map(|i| mixed.rotate_left(i * 8)))) {
        to.copy_from_slice(&from.to_ne_bytes()[..to.len()]);
    }
    bytes
}

/// Validates a packet; returns its sender and its number.
///
/// # Errors
/// The packet was changed, or no test sent it.
pub fn check(bytes: &[u8]) -> Result<(u64, u64), String> {
    let word = |at: usize| Some(u64::from_ne_bytes(bytes.get(at..at + 8)?.try_into().ok()?));
    match (word(8), word(16)) {
        (Some(sender), Some(seq)) if bytes == make(sender, seq) => Ok((sender, seq)),
        _ => Err(format!("not a packet of a test: {} bytes, {bytes:02x?}", bytes.len())),
    }
}

fn mix(sender: u64, seq: u64) -> u64 {
    (sender.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ seq).wrapping_mul(0xff51_afd7_ed55_8ccd) | 1
}

/// A pseudo-random number generator; the seed makes runs repeatable.
pub struct Rng(pub u64);

impl Rng {
    /// The next number, 48 bits.
    pub fn next_u64(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 16
    }

    /// A number below `n`.
    pub fn below(&mut self, n: u64) -> u64 {
        self.next_u64() % n
    }
}

/// Checks the checksums of a frame: that of an IPv4 header, and that of TCP or UDP in a packet that is no fragment.
#[track_caller]
pub fn assert_checksums(frame: &[u8]) {
    if frame.get(12..14) != Some(&[8, 0]) {
        return;
    }
    let sum = |parts: &[&[u8]]| {
        let bytes = parts.concat();
        let words = bytes.chunks(2).map(|word| u32::from(word[0]) << 8 | word.get(1).map_or(0, |low| u32::from(*low)));
        let all: u32 = words.sum();
        let folded = (all & 0xffff) + (all >> 16);
        (folded & 0xffff) + (folded >> 16)
    };
    let length = usize::from(u16::from_be_bytes([frame[16], frame[17]]));
    let packet = &frame[14..14 + length];
    assert_eq!(sum(&[&packet[..20]]), 0xffff, "the header's checksum");
    let is_fragment = u16::from_be_bytes([packet[6], packet[7]]) & 0x3fff != 0;
    if matches!(packet[9], 6 | 17) && !is_fragment {
        let bytes = (packet.len() - 20) as u16;
        let pseudo = [&packet[12..20], &[0, packet[9]], &bytes.to_be_bytes()].concat();
        assert_eq!(sum(&[&pseudo, &packet[20..]]), 0xffff, "the checksum of {bytes} bytes, protocol {}", packet[9]);
    }
}

/// A TCP packet over IPv4 with `payload` bytes behind a virtio-net header of `header` bytes, which requests checksums
/// and segments of 1000 bytes; its fields are as a sender sets them that relies on offloads.
pub fn gso_packet(payload: usize, header: usize) -> Vec<u8> {
    let mut bytes = vec![0; header];
    (bytes[0], bytes[1]) = (1, 1);
    bytes[4..10].copy_from_slice(&[1000u16, 34, 16].map(u16::to_le_bytes).concat());
    let total = (40 + payload) as u16;
    bytes.extend([2, 0, 0, 0, 0, 9, 2, 0, 0, 0, 0, 8, 8, 0]);
    bytes.extend([0x45, 0, (total >> 8) as u8, total as u8, 0, 0, 0, 0, 64, 6, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2]);
    bytes.extend([0, 1, 0, 2, 0, 0, 0, 5, 0, 0, 0, 0, 0x50, 0x18, 1, 0, 0, 0, 0, 0]);
    bytes.extend((0..payload).map(|i| (i % 251) as u8));
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_changed_byte_is_found() {
        let good = make(3, 77);
        assert_eq!(check(&good), Ok((3, 77)));
        for i in 0..BYTES {
            let mut bad = good;
            bad[i] ^= 0x10;
            assert!(check(&bad).is_err(), "byte {i}");
        }
        assert!(check(&good[..59]).is_err());
        assert!(check(&[]).is_err());
    }
}
