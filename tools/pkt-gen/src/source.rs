// SPDX-License-Identifier: BSD-2-Clause
//! Sources of the packets to send.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use crate::addr::{self, Range};
use crate::capture::Capture;
use crate::packet::Packet;

/// The packet to send next.
pub(crate) struct CurrentPacket<'a> {
    /// The bytes to write into a fresh buffer. The packet is the first `len` of them.
    pub(crate) bytes: &'a [u8],
    /// Length of the packet in bytes.
    pub(crate) len: usize,
    /// Only the first `changed` bytes must be written into a buffer that contains an earlier packet of this source.
    pub(crate) changed: usize,
}

/// An infinite sequence of packets.
pub(crate) trait Source {
    /// Returns the next packet to send, the same one until [`Source::advance`] is called.
    fn current(&self) -> CurrentPacket<'_>;
    /// Advances to the next packet.
    fn advance(&mut self);
}

/// One constant packet.
pub(crate) struct Fixed {
    pub(crate) bytes: Vec<u8>,
}

impl Source for Fixed {
    fn current(&self) -> CurrentPacket<'_> {
        CurrentPacket { bytes: &self.bytes, len: self.bytes.len(), changed: 0 }
    }

    fn advance(&mut self) {}
}

/// The packets of a file, repeated.
pub(crate) struct Replay {
    capture: Capture,
    at: usize,
}

impl Replay {
    pub(crate) fn new(capture: Capture) -> Replay {
        Replay { capture, at: 0 }
    }

    /// Returns the length of the longest packet in bytes.
    pub(crate) fn longest(&self) -> usize {
        self.capture.longest()
    }

    /// Returns the packets of the file, each after `prefix` zero bytes.
    pub(crate) fn prefixed(&self, prefix: usize) -> impl Iterator<Item = Vec<u8>> {
        (0..self.capture.len()).map(move |i| [&vec![0; prefix][..], self.capture.packet(i)].concat())
    }
}

impl Source for Replay {
    fn current(&self) -> CurrentPacket<'_> {
        let bytes = self.capture.packet(self.at);
        CurrentPacket { bytes, len: bytes.len(), changed: bytes.len() }
    }

    fn advance(&mut self) {
        self.at += 1;
        if self.at == self.capture.len() {
            self.at = 0;
        }
    }
}

/// The fields that change from packet to packet.
pub(crate) struct Variation {
    pub(crate) src: Range,
    pub(crate) dst: Range,
    pub(crate) random_src: bool,
    pub(crate) random_dst: bool,
    /// Minimum and maximum packet length, both inclusive.
    pub(crate) len: (usize, usize),
    /// True if the payload contains a sequence number.
    pub(crate) numbered: bool,
}

impl Variation {
    /// Returns true if all packets are equal.
    pub(crate) fn is_none(&self) -> bool {
        self.src.is_single()
            && self.dst.is_single()
            && !self.random_src
            && !self.random_dst
            && self.len.0 == self.len.1
            && !self.numbered
    }
}

/// One packet with changing addresses, ports, length or sequence number.
pub(crate) struct Varied {
    packet: Packet,
    vary: Variation,
    src: SocketAddr,
    dst: SocketAddr,
    next_number: u32,
    random: Random,
    /// Bytes of the headers and the sequence number.
    changed: usize,
}

impl Varied {
    /// `packet` has the maximum length, the first source and the first destination. `seed` initializes the random
    /// fields.
    pub(crate) fn new(packet: Packet, vary: Variation, seed: u64) -> Varied {
        let (src, dst) = (vary.src.first, vary.dst.first);
        let headers = crate::packet::payload_offset(src.is_ipv6());
        let changed = headers + if vary.numbered { 4 } else { 0 };
        let packet = if vary.len.0 < vary.len.1 { packet.vary_len() } else { packet };
        let mut varied = Varied { packet, vary, src, dst, next_number: 0, random: Random(seed | 1), changed };
        varied.prepare();
        varied
    }

    /// Writes the current endpoints and number into the packet, after choosing its random fields.
    fn prepare(&mut self) {
        if self.vary.random_src {
            self.src = self.random.endpoint(self.src.is_ipv6());
        }
        if self.vary.random_dst {
            self.dst = self.random.endpoint(self.dst.is_ipv6());
        }
        self.packet.set_src(self.src);
        self.packet.set_dst(self.dst);
        let (min, max) = self.vary.len;
        if min < max {
            let len = min + self.random.below(max - min + 1);
            self.packet.set_len(len);
        }
        if self.vary.numbered {
            self.packet.set_payload(0, &self.next_number.to_be_bytes());
            self.next_number = self.next_number.wrapping_add(1);
        }
    }

    /// Advances within the ranges: source ports change with each packet, destination addresses least often.
    fn next_endpoints(&mut self) {
        if !self.vary.random_src {
            if let Some(next) = addr::successor(&self.vary.src, self.src) {
                self.src = next;
                return;
            }
            self.src = self.vary.src.first;
        }
        if !self.vary.random_dst {
            self.dst = addr::successor(&self.vary.dst, self.dst).unwrap_or(self.vary.dst.first);
        }
    }
}

impl Source for Varied {
    fn current(&self) -> CurrentPacket<'_> {
        CurrentPacket {
            bytes: self.packet.longest(),
            len: self.packet.len(),
            changed: self.changed.min(self.packet.len()),
        }
    }

    fn advance(&mut self) {
        self.next_endpoints();
        self.prepare();
    }
}

/// xorshift64*: fast, and sufficiently random to distribute packets.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }

    /// Returns a number in `[0, n)`.
    fn below(&mut self, n: usize) -> usize {
        ((u128::from(self.next()) * n as u128) >> 64) as usize
    }

    fn endpoint(&mut self, ipv6: bool) -> SocketAddr {
        let (a, b) = (self.next(), self.next());
        let ip = if ipv6 {
            IpAddr::V6(Ipv6Addr::from(u128::from(a) << 64 | u128::from(b)))
        } else {
            IpAddr::V4(Ipv4Addr::from((a >> 32) as u32))
        };
        SocketAddr::new(ip, (self.next() >> 48) as u16)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::addr::Mac;
    use crate::packet::{Flow, sequence_number};
    use std::collections::HashSet;

    fn varied(change: impl FnOnce(&mut Variation)) -> Varied {
        let one = |s: &str| s.parse::<Range>().unwrap();
        let mut vary = Variation {
            src: one("10.0.0.1:1"),
            dst: one("10.1.0.1:2"),
            random_src: false,
            random_dst: false,
            len: (60, 60),
            numbered: false,
        };
        change(&mut vary);
        let flow = Flow { src_mac: Mac::BROADCAST, dst_mac: Mac::BROADCAST, src: vary.src.first, dst: vary.dst.first };
        Varied::new(Packet::new(&flow, vary.len.1), vary, 7)
    }

    fn take(source: &mut impl Source, n: usize) -> Vec<Vec<u8>> {
        (0..n)
            .map(|_| {
                let now = source.current();
                let bytes = now.bytes[..now.len].to_vec();
                source.advance();
                bytes
            })
            .collect()
    }

    #[test]
    fn two_ranges_yield_all_combinations_repeatedly() {
        let mut source = varied(|v| {
            v.src = "10.0.0.1:1-10.0.0.2:2".parse().unwrap();
            v.dst = "10.1.0.1:2-10.1.0.1:4".parse().unwrap();
        });
        let packets = take(&mut source, 24);
        assert_eq!(packets[..12], packets[12..]);
        assert_eq!(packets[..12].iter().collect::<HashSet<_>>().len(), 12);
        // The source port changes first, then the source address, then the destination port.
        assert_eq!((packets[1][35], packets[1][29], packets[1][37]), (2, 1, 2));
        assert_eq!((packets[2][35], packets[2][29], packets[2][37]), (1, 2, 2));
        assert_eq!((packets[4][35], packets[4][29], packets[4][37]), (1, 1, 3));
    }

    #[test]
    fn sequence_numbers_start_at_zero() {
        let mut source = varied(|v| v.numbered = true);
        let numbers: Vec<_> = take(&mut source, 3).iter().map(|p| sequence_number(p)).collect();
        assert_eq!(numbers, [Some(0), Some(1), Some(2)]);
    }

    #[test]
    fn random_lengths_stay_in_range_and_reach_both_ends() {
        let mut source = varied(|v| v.len = (60, 63));
        let lengths: HashSet<_> = take(&mut source, 200).iter().map(Vec::len).collect();
        assert_eq!(lengths, HashSet::from([60, 61, 62, 63]));
    }

    #[test]
    fn random_sources_differ() {
        let mut source = varied(|v| v.random_src = true);
        let seen: HashSet<_> = take(&mut source, 100).iter().map(|p| p[26..30].to_vec()).collect();
        assert!(seen.len() > 90);
    }

    #[test]
    fn a_filled_buffer_needs_only_the_changed_bytes() {
        let mut source = varied(|v| {
            v.numbered = true;
            v.src = "10.0.0.1:1-10.0.0.9:9".parse().unwrap();
        });
        let mut buffer = source.current().bytes.to_vec();
        for _ in 0..100 {
            source.advance();
            let now = source.current();
            buffer[..now.changed].copy_from_slice(&now.bytes[..now.changed]);
            assert_eq!(buffer, now.bytes);
        }
    }
}
