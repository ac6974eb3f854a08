// SPDX-License-Identifier: BSD-2-Clause
//! A UDP packet in an Ethernet frame, built once and then changed in place. Checksums are updated with each change.
//!
//! ```text
//!      0       14        34 (IPv6: 54)  42 (IPv6: 62)      len
//!      [ Ethernet | IPv4 or IPv6 | UDP    | payload ......... )
//! ```

use std::net::{IpAddr, SocketAddr};

use crate::addr::Mac;

/// Bytes of an Ethernet header.
pub(crate) const ETHERNET: usize = 14;
const IPV4: usize = 20;
const IPV6: usize = 40;
const UDP: usize = 8;

const ETHERTYPE_IPV4: [u8; 2] = [0x08, 0x00];
const ETHERTYPE_IPV6: [u8; 2] = [0x86, 0xdd];
const PROTOCOL_UDP: u8 = 17;
const TTL: u8 = 64;

/// The payload consists of repetitions of this text.
const FILLER: &[u8] = b"unetmap pkt-gen ";

/// Returns the offset of the UDP payload from the start of the Ethernet header.
pub(crate) const fn payload_offset(ipv6: bool) -> usize {
    ETHERNET + if ipv6 { IPV6 } else { IPV4 } + UDP
}

/// Source and destination of a packet.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Flow {
    pub(crate) src_mac: Mac,
    pub(crate) dst_mac: Mac,
    pub(crate) src: SocketAddr,
    pub(crate) dst: SocketAddr,
}

/// A packet that is always ready to send: each setter updates lengths and checksums.
#[derive(Clone, Debug)]
pub(crate) struct Packet {
    /// The packet at its maximum length. `[0, len)` is the current packet.
    bytes: Vec<u8>,
    len: usize,
    payload: usize,
    /// One's complement sums of the bytes that the IPv4 and the UDP checksum cover.
    ip_sum: Sum,
    udp_sum: Sum,
    /// `payload_sums[i]` is the sum of the first `2 * i` payload bytes. Empty unless the length varies.
    payload_sums: Vec<Sum>,
}

impl Packet {
    /// Builds a packet of `len` bytes from the Ethernet header to the end of the payload. Source and destination must
    /// have the same address family, `len` at least [`payload_offset`] and at most 65535.
    pub(crate) fn new(flow: &Flow, len: usize) -> Packet {
        let ipv6 = flow.src.is_ipv6();
        let payload = payload_offset(ipv6);
        let mut bytes = Vec::with_capacity(len);
        bytes.extend_from_slice(&flow.dst_mac.0);
        bytes.extend_from_slice(&flow.src_mac.0);
        if ipv6 {
            bytes.extend_from_slice(&ETHERTYPE_IPV6);
            bytes.extend_from_slice(&[0x60, 0, 0, 0, 0, 0, PROTOCOL_UDP, TTL]);
        } else {
            bytes.extend_from_slice(&ETHERTYPE_IPV4);
            // "Don't fragment", which permits identification 0.
            bytes.extend_from_slice(&[0x45, 0, 0, 0, 0, 0, 0x40, 0, TTL, PROTOCOL_UDP, 0, 0]);
        }
        push_ip(&mut bytes, flow.src.ip());
        push_ip(&mut bytes, flow.dst.ip());
        bytes.extend_from_slice(&flow.src.port().to_be_bytes());
        bytes.extend_from_slice(&flow.dst.port().to_be_bytes());
        bytes.extend_from_slice(&[0; 4]);
        bytes.extend(FILLER.iter().copied().cycle().take(len.saturating_sub(payload)));

        let mut packet = Packet { bytes, len, payload, ip_sum: Sum(0), udp_sum: Sum(0), payload_sums: Vec::new() };
        packet.write_lengths();
        packet.compute_sums();
        packet.write_checksums();
        packet
    }

    /// Enables [`Packet::set_len`], with lengths up to that given to `new`.
    pub(crate) fn vary_len(mut self) -> Packet {
        let mut sum = Sum(0);
        self.payload_sums.push(sum);
        for pair in self.bytes[self.payload..].chunks_exact(2) {
            sum.add([pair[0], pair[1]]);
            self.payload_sums.push(sum);
        }
        self
    }

    /// Returns the current packet.
    #[cfg(test)]
    pub(crate) fn as_bytes(&self) -> &[u8] {
        &self.bytes[..self.len]
    }

    /// Returns the packet at its maximum length, which is written into fresh buffers.
    pub(crate) fn longest(&self) -> &[u8] {
        &self.bytes
    }

    /// Returns the bytes from the Ethernet header to the end of the payload.
    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// Sets the packet's length: truncates or restores its payload. [`Packet::vary_len`] must have been called. `len`
    /// must be between the length of the headers and the maximum length.
    pub(crate) fn set_len(&mut self, len: usize) {
        let len = len.clamp(self.payload, self.bytes.len());
        let before = (self.len, self.payload_sum());
        self.len = len;
        let after = self.payload_sum();
        self.udp_sum.replace_sum(before.1, after);
        // The UDP length is summed twice: in the UDP header and in the pseudo header.
        let (old, new) = (self.udp_len(before.0), self.udp_len(len));
        self.udp_sum.replace(old, new);
        self.udp_sum.replace(old, new);
        let ip = |len: usize| low16(len - ETHERNET);
        self.ip_sum.replace(ip(before.0), ip(len));
        self.write_lengths();
        self.write_checksums();
    }

    /// Sets the source, which must have the same address family.
    pub(crate) fn set_src(&mut self, src: SocketAddr) {
        self.set_endpoint(src, 0);
    }

    /// Sets the destination, which must have the same address family.
    pub(crate) fn set_dst(&mut self, dst: SocketAddr) {
        self.set_endpoint(dst, 1);
    }

    /// Writes an even number of `bytes` into the payload at the even offset `at`. Omits bytes beyond the packet's end.
    /// Must not be combined with [`Packet::set_len`], because it does not update `payload_sums`.
    pub(crate) fn set_payload(&mut self, at: usize, bytes: &[u8]) {
        let start = self.payload + at;
        for (i, new) in bytes.chunks_exact(2).enumerate() {
            let place = start + 2 * i;
            if place + 2 <= self.len {
                self.replace([new[0], new[1]], place, false);
            }
        }
        self.write_checksums();
    }

    /// `which` is 0 for the source and 1 for the destination.
    fn set_endpoint(&mut self, to: SocketAddr, which: usize) {
        match to.ip() {
            IpAddr::V4(ip) => self.replace_all(&ip.octets(), ETHERNET + 12 + 4 * which, true),
            IpAddr::V6(ip) => self.replace_all(&ip.octets(), ETHERNET + 8 + 16 * which, false),
        }
        self.replace_all(&to.port().to_be_bytes(), self.payload - UDP + 2 * which, false);
        self.write_checksums();
    }

    fn replace_all(&mut self, new: &[u8], at: usize, in_ip_header: bool) {
        for (i, pair) in new.chunks_exact(2).enumerate() {
            self.replace([pair[0], pair[1]], at + 2 * i, in_ip_header);
        }
    }

    fn replace(&mut self, new: [u8; 2], at: usize, in_ip_header: bool) {
        let old = [self.bytes[at], self.bytes[at + 1]];
        if old != new {
            self.bytes[at..at + 2].copy_from_slice(&new);
            self.udp_sum.replace(old, new);
            if in_ip_header {
                self.ip_sum.replace(old, new);
            }
        }
    }

    fn is_ipv6(&self) -> bool {
        self.payload == payload_offset(true)
    }

    fn udp_len(&self, len: usize) -> [u8; 2] {
        low16(len + UDP - self.payload)
    }

    fn payload_sum(&self) -> Sum {
        let bytes = self.len - self.payload;
        let mut sum = self.payload_sums[bytes / 2];
        if bytes % 2 == 1 {
            sum.add([self.bytes[self.len - 1], 0]);
        }
        sum
    }

    fn write_lengths(&mut self) {
        let udp = self.payload - UDP;
        let udp_len = self.udp_len(self.len);
        self.bytes[udp + 4..udp + 6].copy_from_slice(&udp_len);
        if self.is_ipv6() {
            self.bytes[ETHERNET + 4..ETHERNET + 6].copy_from_slice(&udp_len);
        } else {
            self.bytes[ETHERNET + 2..ETHERNET + 4].copy_from_slice(&low16(self.len - ETHERNET));
        }
    }

    fn write_checksums(&mut self) {
        if !self.is_ipv6() {
            self.bytes[ETHERNET + 10..ETHERNET + 12].copy_from_slice(&self.ip_sum.checksum());
        }
        let udp = self.payload - UDP;
        // A checksum of zero is sent as 0xffff, because zero means "no checksum".
        let checksum = match self.udp_sum.checksum() {
            [0, 0] => [0xff, 0xff],
            other => other,
        };
        self.bytes[udp + 6..udp + 8].copy_from_slice(&checksum);
    }

    /// Computes both sums. Both checksum fields must still be zero.
    fn compute_sums(&mut self) {
        let udp = self.payload - UDP;
        let addresses = if self.is_ipv6() { ETHERNET + 8..udp } else { ETHERNET + 12..udp };
        self.ip_sum = Sum::of(&self.bytes[ETHERNET..ETHERNET + IPV4]);
        self.udp_sum = Sum::of(&self.bytes[udp..]);
        self.udp_sum.add_sum(Sum::of(&self.bytes[addresses]));
        self.udp_sum.add([0, PROTOCOL_UDP]);
        self.udp_sum.add(self.udp_len(self.len));
    }
}

/// A one's complement sum of 16-bit words.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Sum(u16);

impl Sum {
    fn of(bytes: &[u8]) -> Sum {
        let mut sum = Sum(0);
        for pair in bytes.chunks(2) {
            sum.add([pair[0], pair.get(1).copied().unwrap_or(0)]);
        }
        sum
    }

    fn add(&mut self, word: [u8; 2]) {
        self.add_sum(Sum(u16::from_be_bytes(word)));
    }

    fn add_sum(&mut self, other: Sum) {
        let (sum, carry) = self.0.overflowing_add(other.0);
        // There is no second carry: a sum that overflowed is at most 0xfffe.
        self.0 = sum + u16::from(carry);
    }

    fn replace(&mut self, old: [u8; 2], new: [u8; 2]) {
        self.replace_sum(Sum(u16::from_be_bytes(old)), Sum(u16::from_be_bytes(new)));
    }

    fn replace_sum(&mut self, old: Sum, new: Sum) {
        self.add_sum(Sum(!old.0));
        self.add_sum(new);
    }

    fn checksum(self) -> [u8; 2] {
        (!self.0).to_be_bytes()
    }
}

fn push_ip(bytes: &mut Vec<u8>, ip: IpAddr) {
    match ip {
        IpAddr::V4(ip) => bytes.extend_from_slice(&ip.octets()),
        IpAddr::V6(ip) => bytes.extend_from_slice(&ip.octets()),
    }
}

/// Converts a length, which the caller of [`Packet::new`] limits to 65535.
fn low16(n: usize) -> [u8; 2] {
    (n as u16).to_be_bytes()
}

/// Swaps the Ethernet addresses of a frame, and its IPv4 addresses if it is IPv4. This does not change any checksum.
/// `head` has the first bytes of the frame.
pub(crate) fn swap_addresses(head: &mut [u8]) {
    if let Some(macs) = head.get_mut(..12) {
        let (dst, src) = macs.split_at_mut(6);
        dst.swap_with_slice(src);
    }
    if head.get(12..14) == Some(&ETHERTYPE_IPV4)
        && let Some(ips) = head.get_mut(ETHERNET + 12..ETHERNET + 20)
    {
        let (src, dst) = ips.split_at_mut(4);
        src.swap_with_slice(dst);
    }
}

/// Returns the part of the UDP payload that is in `head`, the first bytes of a frame. None if the packet is not UDP, or
/// has IPv4 options or IPv6 extension headers: an interface also receives packets that pkt-gen did not send.
pub(crate) fn udp_payload(head: &[u8]) -> Option<&[u8]> {
    let (ipv6, protocol) = match head.get(12..14)?.try_into().ok()? {
        ETHERTYPE_IPV4 => (false, head.get(ETHERNET + 9)?),
        ETHERTYPE_IPV6 => (true, head.get(ETHERNET + 6)?),
        _ => return None,
    };
    let plain = ipv6 || head.get(ETHERNET)? & 0x0f == 5;
    (plain && *protocol == PROTOCOL_UDP).then(|| head.get(payload_offset(ipv6)..))?
}

/// Returns the first four bytes of the UDP payload as a number, if `head` has them.
pub(crate) fn sequence_number(head: &[u8]) -> Option<u32> {
    Some(u32::from_be_bytes(*udp_payload(head)?.first_chunk()?))
}

#[cfg(test)]
mod tests {
    use super::*;
    use etherparse::{NetSlice, SlicedPacket, TransportSlice};
    use proptest::prelude::*;

    /// Parses a packet with etherparse and verifies its lengths and checksums.
    fn parse_verified(bytes: &[u8]) -> (SocketAddr, SocketAddr, usize) {
        let sliced = SlicedPacket::from_ethernet(bytes).unwrap();
        let Some(TransportSlice::Udp(udp)) = &sliced.transport else { panic!("no UDP: {sliced:?}") };
        let header = udp.to_header();
        let payload = udp.payload();
        let (src, dst) = match sliced.net.as_ref().unwrap() {
            NetSlice::Ipv4(ip) => {
                let ip = ip.header();
                assert_eq!(ip.header_checksum(), ip.to_header().calc_header_checksum());
                assert_eq!(usize::from(ip.total_len()) + ETHERNET, bytes.len());
                assert_eq!(header.checksum, header.calc_checksum_ipv4(&ip.to_header(), payload).unwrap());
                (IpAddr::V4(ip.source_addr()), IpAddr::V4(ip.destination_addr()))
            }
            NetSlice::Ipv6(ip) => {
                let ip = ip.header();
                assert_eq!(usize::from(ip.payload_length()) + ETHERNET + IPV6, bytes.len());
                assert_eq!(header.checksum, header.calc_checksum_ipv6(&ip.to_header(), payload).unwrap());
                (IpAddr::V6(ip.source_addr()), IpAddr::V6(ip.destination_addr()))
            }
            other => panic!("not IP: {other:?}"),
        };
        assert_eq!(usize::from(header.length), UDP + payload.len());
        (SocketAddr::new(src, header.source_port), SocketAddr::new(dst, header.destination_port), payload.len())
    }

    fn flow(src: SocketAddr, dst: SocketAddr) -> Flow {
        Flow { src_mac: Mac([2, 0, 0, 0, 0, 1]), dst_mac: Mac::BROADCAST, src, dst }
    }

    fn endpoint(ipv6: bool) -> BoxedStrategy<SocketAddr> {
        // Words of all ones and all zeros are the critical cases of one's complement sums.
        let word = || prop_oneof![Just(0_u16), Just(0xffff), any::<u16>()];
        if ipv6 {
            (prop::array::uniform8(word()), word()).prop_map(|(ip, port)| (ip, port).into()).boxed()
        } else {
            (word(), word(), word())
                .prop_map(|(a, b, port)| {
                    let ip = std::net::Ipv4Addr::from(u32::from(a) << 16 | u32::from(b));
                    (ip, port).into()
                })
                .boxed()
        }
    }

    #[derive(Clone, Debug)]
    enum Change {
        Src(SocketAddr),
        Dst(SocketAddr),
        Len(usize),
        Seq(u32),
    }

    fn changes(ipv6: bool, vary_len: bool) -> impl Strategy<Value = Vec<Change>> {
        let last = if vary_len {
            (payload_offset(ipv6)..1600).prop_map(Change::Len).boxed()
        } else {
            any::<u32>().prop_map(Change::Seq).boxed()
        };
        let one = prop_oneof![endpoint(ipv6).prop_map(Change::Src), endpoint(ipv6).prop_map(Change::Dst), last,];
        prop::collection::vec(one, 0..20)
    }

    type Case = (bool, bool, SocketAddr, SocketAddr, usize, Vec<Change>);

    fn case() -> impl Strategy<Value = Case> {
        (any::<bool>(), any::<bool>()).prop_flat_map(|(ipv6, vary_len)| {
            (
                Just(ipv6),
                Just(vary_len),
                endpoint(ipv6),
                endpoint(ipv6),
                payload_offset(ipv6) + 4..1600,
                changes(ipv6, vary_len),
            )
        })
    }

    proptest! {
        #[test]
        fn checksums_are_correct_after_every_change((_, vary_len, src, dst, len, changes) in case()) {
            let mut packet = Packet::new(&flow(src, dst), len);
            if vary_len {
                packet = packet.vary_len();
            }
            let (mut src, mut dst) = (src, dst);
            for change in changes {
                match change {
                    Change::Src(to) => { packet.set_src(to); src = to; }
                    Change::Dst(to) => { packet.set_dst(to); dst = to; }
                    Change::Len(to) => {
                        packet.set_len(to);
                        prop_assert_eq!(packet.len(), to.min(len));
                    }
                    Change::Seq(to) => {
                        packet.set_payload(0, &to.to_be_bytes());
                        prop_assert_eq!(sequence_number(packet.as_bytes()), Some(to));
                    }
                }
                let (s, d, payload) = parse_verified(packet.as_bytes());
                prop_assert_eq!((s, d), (src, dst));
                prop_assert_eq!(payload, packet.len() - packet.payload);
            }
        }

        #[test]
        fn swapping_addresses_twice_restores_the_frame(bytes in prop::collection::vec(any::<u8>(), 0..80)) {
            let mut frame = bytes.clone();
            swap_addresses(&mut frame);
            swap_addresses(&mut frame);
            prop_assert_eq!(frame, bytes);
        }
    }

    #[test]
    fn a_new_packet_has_correct_lengths_and_checksums() {
        for (src, dst, len) in [
            ("10.0.0.1:1234", "10.1.0.1:1234", 60),
            ("10.0.0.1:1234", "10.1.0.1:1234", 42),
            ("[fd00::1]:1234", "[fd00::2]:1234", 62),
            ("[fd00::1]:1234", "[fd00::2]:1234", 65535),
            ("10.0.0.1:1234", "10.1.0.1:1234", 65535),
        ] {
            let (src, dst) = (src.parse().unwrap(), dst.parse().unwrap());
            let packet = Packet::new(&flow(src, dst), len);
            assert_eq!(packet.len(), len);
            let (s, d, payload) = parse_verified(packet.as_bytes());
            assert_eq!((s, d, payload), (src, dst, len - payload_offset(src.is_ipv6())));
        }
    }

    #[test]
    fn a_packet_with_swapped_addresses_has_correct_checksums() {
        let packet = Packet::new(&flow("10.0.0.1:5".parse().unwrap(), "10.0.0.2:6".parse().unwrap()), 60);
        let mut frame = packet.as_bytes().to_vec();
        swap_addresses(&mut frame[..34]);
        let (src, dst, _) = parse_verified(&frame);
        assert_eq!((src.to_string(), dst.to_string()), ("10.0.0.2:5".into(), "10.0.0.1:6".into()));
        assert_eq!(frame[..6], [2, 0, 0, 0, 0, 1]);
        assert_eq!(frame[6..12], [0xff; 6]);
    }

    #[test]
    fn short_frames_have_no_sequence_number() {
        let packet = Packet::new(&flow("[::1]:1".parse().unwrap(), "[::2]:2".parse().unwrap()), 66);
        assert!(sequence_number(packet.as_bytes()).is_some());
        assert_eq!(sequence_number(&packet.as_bytes()[..65]), None);
        assert_eq!(sequence_number(&[0; 13]), None);
    }

    #[test]
    fn packets_other_than_plain_udp_have_no_sequence_number() {
        for ip in ["1.1.1.1:1", "[::1]:1"] {
            let numbered = Packet::new(&flow(ip.parse().unwrap(), ip.parse().unwrap()), 80).as_bytes().to_vec();
            assert!(sequence_number(&numbered).is_some());
            let v6 = ip.starts_with('[');
            // TCP, ARP, and a longer header.
            for (at, byte) in
                [(if v6 { 20 } else { 23 }, 6), (13, 0x06), (if v6 { 20 } else { 14 }, if v6 { 0 } else { 0x46 })]
            {
                let mut other = numbered.clone();
                other[at] = byte;
                assert_eq!(sequence_number(&other), None, "{ip} {at}");
            }
        }
        assert_eq!(sequence_number(&[0; 60]), None);
    }
}
