// SPDX-License-Identifier: BSD-2-Clause
//! Frames whose every byte follows from their number, so that a frame tells what it should be.
//!
//! ```text
//! 0            6         12     14       22        26     27        35       37            LENGTH
//! destination  source    type   magic    round     way    number    length   pattern
//! ```

/// EtherType for local experiments (IEEE 802): no stack answers it.
const TYPE: [u8; 2] = [0x88, 0xb5];
const MAGIC: [u8; 8] = *b"unetmap\x01";
/// Bytes before the pattern.
const HEAD: usize = 37;
/// Bytes of the shortest frame: shorter ones are padded by the device.
pub(super) const SHORTEST: usize = 60;

/// The identity of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Tag {
    pub(super) round: u32,
    /// The end that sent it: 0 or 1.
    pub(super) from: u8,
    pub(super) number: u64,
}

/// A number that follows from another one (SplitMix64).
pub(super) fn mix(seed: u64) -> u64 {
    tool_common::mix(seed.wrapping_add(0x9e37_79b9_7f4a_7c15))
}

/// Fills bytes with a pattern that no other seed has.
pub(super) fn fill(bytes: &mut [u8], seed: u64) {
    for (word, n) in bytes.chunks_mut(8).zip(0u64..) {
        word.copy_from_slice(&mix(seed ^ n << 40).to_ne_bytes()[..word.len()]);
    }
}

impl Tag {
    fn seed(self) -> u64 {
        mix(u64::from(self.round) << 1 | u64::from(self.from)) ^ mix(self.number)
    }

    /// Writes the frame.
    pub(super) fn write(self, addresses: ([u8; 6], [u8; 6]), frame: &mut [u8]) {
        let length = frame.len() as u16;
        let head = [
            &addresses.0[..],
            &addresses.1,
            &TYPE,
            &MAGIC,
            &self.round.to_be_bytes(),
            &[self.from],
            &self.number.to_be_bytes(),
            &length.to_be_bytes(),
        ]
        .concat();
        let (start, pattern) = frame.split_at_mut(HEAD);
        start.copy_from_slice(&head);
        fill(pattern, self.seed());
    }
}

/// A classified arrival.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Arrived {
    /// A whole frame of the prover's.
    Frame(Tag),
    /// A frame of someone else's: of another type.
    Foreign,
    /// No frame that was ever sent, and how it differs from one.
    Damaged(String),
}

/// Tells what bytes are.
pub(super) fn read(bytes: &[u8]) -> Arrived {
    if bytes.get(12..14) != Some(&TYPE) {
        // The types of Ethernet begin at 1536, and smaller numbers are lengths: a guard's pattern is hardly either.
        return Arrived::Foreign;
    }
    let part = |from: usize, to: usize| bytes.get(from..to);
    let head = (|| {
        let round = u32::from_be_bytes(part(22, 26)?.try_into().ok()?);
        let number = u64::from_be_bytes(part(27, 35)?.try_into().ok()?);
        let length = u16::from_be_bytes(part(35, HEAD)?.try_into().ok()?);
        Some((Tag { round, from: *bytes.get(26)?, number }, usize::from(length)))
    })();
    let Some((tag, length)) = head.filter(|_| part(14, 22) == Some(&MAGIC)) else {
        return Arrived::Damaged("its first bytes are those of no frame".into());
    };
    if length != bytes.len() {
        return Arrived::Damaged(format!("frame {} had {length} bytes, and has {} now", tag.number, bytes.len()));
    }
    let mut expected = vec![0; length - HEAD];
    fill(&mut expected, tag.seed());
    match bytes[HEAD..].iter().zip(&expected).position(|(has, should)| has != should) {
        None => Arrived::Frame(tag),
        Some(at) => Arrived::Damaged(format!(
            "frame {} of {length} bytes of round {}: byte {} is {:#04x} instead of {:#04x}",
            tag.number,
            tag.round,
            at + HEAD,
            bytes[at + HEAD],
            expected[at]
        )),
    }
}

/// The length of a frame: each from the shortest to `longest` in turn, forwards and backwards.
pub(super) fn length(number: u64, longest: usize) -> usize {
    let lengths = (longest.max(SHORTEST) - SHORTEST + 1) as u64;
    let at = (number / 2 % lengths) as usize;
    if number.is_multiple_of(2) { SHORTEST + at } else { longest.max(SHORTEST) - at }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_frame_tells_what_it_is_and_each_changed_byte() {
        let tag = Tag { round: 7, from: 1, number: 1 << 40 };
        for length in [SHORTEST, 61, 1514] {
            let mut frame = vec![0; length];
            tag.write(([1; 6], [2; 6]), &mut frame);
            assert_eq!(read(&frame), Arrived::Frame(tag));
            for at in 14..length {
                frame[at] ^= 1;
                assert!(matches!(read(&frame), Arrived::Damaged(_)), "byte {at} of {length}");
                frame[at] ^= 1;
            }
            assert!(matches!(read(&frame[..length - 1]), Arrived::Damaged(_)));
            frame[13] ^= 1;
            assert_eq!(read(&frame), Arrived::Foreign);
        }
        assert_eq!((read(&[]), read(&[0; 14])), (Arrived::Foreign, Arrived::Foreign));
    }

    #[test]
    fn all_lengths_come_both_early_and_late() {
        let lengths: std::collections::BTreeSet<usize> = (0..2 * 1455).map(|n| length(n, 1514)).collect();
        assert_eq!((lengths.first(), lengths.last(), lengths.len()), (Some(&60), Some(&1514), 1455));
        assert_eq!((length(0, 1514), length(1, 1514), length(3, 1514), length(9, 60)), (60, 1514, 1513, 60));
    }
}
