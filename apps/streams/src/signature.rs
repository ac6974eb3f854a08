// SPDX-License-Identifier: BSD-2-Clause
//! The signature of a packet: its last 18 bytes, so that it survives changes of headers, tags and tunnels on the way.
//!
//! ```text
//!      0        4          6         10          16         18 = end of the packet
//!      [ magic  | stream   | number  | time      | check    )   big endian
//! ```
//! `check` makes the one's complement sum of the 18 bytes zero. So the time can be written last: no checksum of UDP or
//! TCP changes, at an even offset or an odd one.

/// Bytes of a signature. With the headers of Ethernet, IPv4 and UDP they fill the shortest frame.
pub const BYTES: usize = 18;
/// Padding that may follow a signature: a tag that was removed from a short frame leaves 4 bytes, two leave 8.
pub const MAX_PADDING: usize = 46;
/// Bytes at a packet's end among which [`find`] searches.
pub const TAIL: usize = BYTES + MAX_PADDING;

const MAGIC: [u8; 4] = *b"uNm\xa7";
/// Times have 48 bits: they begin again after 78 hours.
const TIME_BITS: u32 = 48;

/// The signature that a sender writes into a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Signature {
    /// Number of the stream, from 1.
    pub stream: u16,
    /// Number of the packet in its stream, from 0; its low 32 bits.
    pub number: u32,
    /// Nanoseconds on the sender's clock, the low 48 bits.
    pub time: u64,
}

impl Signature {
    /// Returns the 18 bytes.
    pub fn encode(&self) -> [u8; BYTES] {
        let mut bytes = [0; BYTES];
        bytes[..4].copy_from_slice(&MAGIC);
        bytes[4..6].copy_from_slice(&self.stream.to_be_bytes());
        bytes[6..10].copy_from_slice(&self.number.to_be_bytes());
        bytes[10..16].copy_from_slice(&self.time.to_be_bytes()[2..]);
        let check = !sum(&bytes[..16]);
        bytes[16..].copy_from_slice(&check.to_be_bytes());
        bytes
    }

    fn decode(bytes: &[u8; BYTES]) -> Option<Signature> {
        let [a, b, c, d, s1, s0, n3, n2, n1, n0, t5, t4, t3, t2, t1, t0, _, _] = *bytes;
        let valid = [a, b, c, d] == MAGIC && sum(bytes) == 0xffff;
        valid.then(|| Signature {
            stream: u16::from_be_bytes([s1, s0]),
            number: u32::from_be_bytes([n3, n2, n1, n0]),
            time: u64::from_be_bytes([0, 0, t5, t4, t3, t2, t1, t0]),
        })
    }

    /// Returns the time from this signature's until `now`: 0 if the clocks disagree so that it would be negative.
    pub fn age(&self, now: u64) -> u64 {
        let age = elapsed(self.time, now);
        if age >> (TIME_BITS - 1) == 0 { age } else { 0 }
    }
}

/// Returns the nanoseconds from one time of a signature to a later one.
pub(crate) fn elapsed(from: u64, to: u64) -> u64 {
    to.wrapping_sub(from) & ((1 << TIME_BITS) - 1)
}

/// Finds the signature in the last bytes of a packet ([`TAIL`] suffice): at its end, or before padding.
pub fn find(tail: &[u8]) -> Option<Signature> {
    let at_end = tail.last_chunk().and_then(Signature::decode);
    at_end.or_else(|| {
        let starts = tail.len().saturating_sub(TAIL)..tail.len().saturating_sub(BYTES);
        starts.rev().find_map(|at| Signature::decode(tail.get(at..)?.first_chunk()?))
    })
}

/// The one's complement sum of 16-bit words; an odd byte at the end is the high one of a word.
pub(crate) fn sum(bytes: &[u8]) -> u16 {
    let words = bytes.chunks(2).map(|pair| u64::from(pair[0]) << 8 | pair.get(1).map_or(0, |low| u64::from(*low)));
    fold(words.sum())
}

/// Adds the carries of a sum of words.
pub(crate) fn fold(mut sum: u64) -> u16 {
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    sum as u16
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn signatures_are_found_before_padding_and_change_no_checksum(
            stream: u16, number: u32, time in 0_u64..1 << 48, before in prop::collection::vec(any::<u8>(), 0..70),
            padding in 0..=MAX_PADDING,
        ) {
            let signature = Signature { stream, number, time };
            let packet = [&before[..], &signature.encode(), &vec![0; padding]].concat();
            prop_assert_eq!(find(&packet), Some(signature));
            let zeros = [&before[..], &[0; BYTES], &vec![0; padding]].concat();
            prop_assert_eq!(sum(&packet) % 0xffff, sum(&zeros) % 0xffff);
        }

        #[test]
        fn other_bytes_are_no_signature(bytes in prop::collection::vec(any::<u8>(), 0..100)) {
            prop_assert_eq!(find(&bytes), None);
        }
    }

    #[test]
    fn a_damaged_signature_is_none() {
        let good = Signature { stream: 1, number: 2, time: 3 }.encode();
        for at in 0..BYTES {
            let mut bytes = good;
            bytes[at] ^= 0x10;
            assert_eq!(find(&bytes), None, "byte {at}");
        }
    }

    #[test]
    fn ages_pass_the_end_of_the_clock() {
        let at = |time| Signature { stream: 1, number: 0, time };
        assert_eq!(at(5).age(12), 7);
        assert_eq!(at((1 << 48) - 5).age(1 << 48 | 2), 7);
        assert_eq!(at(12).age(5), 0, "a clock behind the sender's");
    }
}
