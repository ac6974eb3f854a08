//! Where the packets that are sent come from.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use crate::addr::{self, Range};
use crate::capture::Capture;
use crate::packet::Packet;

/// The packet to send next.
pub(crate) struct Current<'a> {
    /// What a fresh buffer must be filled with; the packet is its first `len` bytes.
    pub(crate) bytes: &'a [u8],
    /// Bytes of the packet.
    pub(crate) len: usize,
    /// A buffer that held an earlier packet of this source needs only its first `changed` bytes written anew.
    pub(crate) changed: usize,
}

/// Packets without end.
pub(crate) trait Source {
    /// The packet to send next, again and again until [`Source::step`].
    fn current(&self) -> Current<'_>;
    /// Goes on to the packet after it.
    fn step(&mut self);
}

/// One packet, always the same.
pub(crate) struct Fixed {
    pub(crate) bytes: Vec<u8>,
}

impl Source for Fixed {
    fn current(&self) -> Current<'_> {
        Current { bytes: &self.bytes, len: self.bytes.len(), changed: 0 }
    }

    fn step(&mut self) {}
}

/// The packets of a file, from the first again after the last.
pub(crate) struct Replay {
    capture: Capture,
    at: usize,
}

impl Replay {
    pub(crate) fn new(capture: Capture) -> Replay {
        Replay { capture, at: 0 }
    }

    /// Bytes of the longest packet.
    pub(crate) fn longest(&self) -> usize {
        self.capture.longest()
    }

    /// The packets of the file, each behind `prefix` zeros.
    pub(crate) fn prefixed(&self, prefix: usize) -> impl Iterator<Item = Vec<u8>> {
        (0..self.capture.len()).map(move |i| [&vec![0; prefix][..], self.capture.packet(i)].concat())
    }
}

impl Source for Replay {
    fn current(&self) -> Current<'_> {
        let bytes = self.capture.packet(self.at);
        Current { bytes, len: bytes.len(), changed: bytes.len() }
    }

    fn step(&mut self) {
        self.at += 1;
        if self.at == self.capture.len() {
            self.at = 0;
        }
    }
}

/// What changes from packet to packet.
pub(crate) struct Variation {
    pub(crate) src: Range,
    pub(crate) dst: Range,
    pub(crate) random_src: bool,
    pub(crate) random_dst: bool,
    /// Shortest and longest packet, both included.
    pub(crate) len: (usize, usize),
    /// Sequence numbers in the payload.
    pub(crate) numbered: bool,
}

impl Variation {
    /// True if every packet is like the first.
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
    /// The headers, and the sequence number behind them.
    changed: usize,
}

impl Varied {
    /// `packet` is the longest one, from the first source to the first destination. `seed` is for what is random.
    pub(crate) fn new(packet: Packet, vary: Variation, seed: u64) -> Varied {
        let (src, dst) = (vary.src.first, vary.dst.first);
        let headers = crate::packet::payload_offset(src.is_ipv6());
        let changed = headers + if vary.numbered { 4 } else { 0 };
        let packet = if vary.len.0 < vary.len.1 { packet.vary_len() } else { packet };
        let mut varied = Varied { packet, vary, src, dst, next_number: 0, random: Random(seed | 1), changed };
        varied.prepare();
        varied
    }

    /// Everything but the walk through the ranges.
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

    /// Source ports are the fastest wheel, destination addresses the slowest.
    fn walk(&mut self) {
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
    fn current(&self) -> Current<'_> {
        Current { bytes: self.packet.longest(), len: self.packet.len(), changed: self.changed.min(self.packet.len()) }
    }

    fn step(&mut self) {
        self.walk();
        self.prepare();
    }
}

/// xorshift64*: fast, and random enough to spread packets.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }

    /// A number in `[0, n)`.
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
    use crate::packet::{Flow, sequence_of};
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
                source.step();
                bytes
            })
            .collect()
    }

    #[test]
    fn the_whole_product_of_two_ranges_and_again() {
        let mut source = varied(|v| {
            v.src = "10.0.0.1:1-10.0.0.2:2".parse().unwrap();
            v.dst = "10.1.0.1:2-10.1.0.1:4".parse().unwrap();
        });
        let packets = take(&mut source, 24);
        assert_eq!(packets[..12], packets[12..]);
        assert_eq!(packets[..12].iter().collect::<HashSet<_>>().len(), 12);
        // Source port, then source address, then destination port.
        assert_eq!((packets[1][35], packets[1][29], packets[1][37]), (2, 1, 2));
        assert_eq!((packets[2][35], packets[2][29], packets[2][37]), (1, 2, 2));
        assert_eq!((packets[4][35], packets[4][29], packets[4][37]), (1, 1, 3));
    }

    #[test]
    fn numbers_start_at_zero() {
        let mut source = varied(|v| v.numbered = true);
        let numbers: Vec<_> = take(&mut source, 3).iter().map(|p| sequence_of(p)).collect();
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
    fn buffers_filled_once_need_only_the_changed_bytes() {
        let mut source = varied(|v| {
            v.numbered = true;
            v.src = "10.0.0.1:1-10.0.0.9:9".parse().unwrap();
        });
        let mut buffer = source.current().bytes.to_vec();
        for _ in 0..100 {
            source.step();
            let now = source.current();
            buffer[..now.changed].copy_from_slice(&now.bytes[..now.changed]);
            assert_eq!(buffer, now.bytes);
        }
    }
}
