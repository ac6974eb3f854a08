// SPDX-License-Identifier: BSD-2-Clause
//! The flow of a frame: its key, and what the packet adds to the flow's record.

use std::hash::{BuildHasher as _, RandomState};

use unetmap_filter::{Family, HEADER_BYTES, Headers, proto};

use crate::tunnel::{Kind, Tunnel, unwrap};

/// Labels of an MPLS stack that are skipped; frames with more belong to a flow of their Ethernet addresses.
const MAX_LABELS: usize = 8;
/// Fragmented packets whose ports are known; a power of two. The next first fragment takes the place of an earlier one.
const FRAGMENTED: usize = 1024;
/// Milliseconds after which the fragments of a packet are given up, as by receivers (RFC 8200, 4.5).
const REASSEMBLY: u64 = 60_000;
/// Bit of `Headers::extensions`: the packet has a fragment header.
const FRAGMENT_HEADER: u8 = 1;
/// Bytes of an Ethernet header.
const ETHERNET: usize = 14;
/// Bytes of a fragment header.
const FRAGMENT_BYTES: usize = 8;

/// The packets of a flow have this in common.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct Key {
    /// Addresses: IPv6, IPv4 in the low 32 bits, or the low 48 bits are the MAC address of a frame of another family.
    pub(crate) src: u128,
    pub(crate) dst: u128,
    /// Source and destination ports. ICMP has type and code in the place of the destination's, and a frame that is
    /// neither IPv4 nor IPv6 its EtherType.
    pub(crate) ports: [u16; 2],
    /// VLANs, the outer one first; 0: none.
    pub(crate) vlans: [u16; 2],
    /// Index of the source of packets.
    pub(crate) source: u16,
    /// Identifier of the tunnel whose inner packet this is; 0: none, or it has none.
    pub(crate) tunnel: u32,
    pub(crate) proto: u8,
    pub(crate) family: u8,
}

/// Values of [`Key::family`].
pub(crate) mod family {
    pub(crate) const OTHER: u8 = 0;
    pub(crate) const V4: u8 = 4;
    pub(crate) const V6: u8 = 6;
}

impl Key {
    /// The key of the other direction.
    pub(crate) fn reversed(self) -> Key {
        let [src, dst] = self.ports;
        let ports = if self.family == family::OTHER { self.ports } else { [dst, src] };
        Key { src: self.dst, dst: self.src, ports, ..self }
    }

    /// EtherType of a frame that is neither IPv4 nor IPv6; 0: it is one of them.
    pub(crate) fn ethertype(&self) -> u16 {
        if self.family == family::OTHER { self.ports[1] } else { 0 }
    }

    /// The ports; those of a frame that has none are 0.
    pub(crate) fn transport_ports(&self) -> [u16; 2] {
        if self.family == family::OTHER { [0; 2] } else { self.ports }
    }

    /// Returns one key for both directions, and whether it is the other direction's.
    pub(crate) fn of_both(self) -> (Key, bool) {
        let [source, target] = self.transport_ports();
        let is_reversed = (self.src, source) > (self.dst, target);
        (if is_reversed { self.reversed() } else { self }, is_reversed)
    }
}

/// Random numbers that make the hashes of flows unpredictable: senders cannot choose flows of one hash.
#[derive(Clone, Copy)]
pub(crate) struct Seed([u64; 6]);

impl Seed {
    pub(crate) fn random() -> Seed {
        Seed(std::array::from_fn(|_| RandomState::new().hash_one(0)))
    }

    /// Folds the product of two numbers.
    #[inline(always)]
    fn fold(a: u64, b: u64) -> u64 {
        let product = u128::from(a) * u128::from(b);
        product as u64 ^ (product >> 64) as u64
    }

    #[inline]
    pub(crate) fn hash(&self, key: &Key) -> u64 {
        let [a, b, c, d, e, f] = self.0;
        let [high, low] = [(key.src >> 64) as u64, key.src as u64];
        let [to_high, to_low] = [(key.dst >> 64) as u64, key.dst as u64];
        let [source, target] = key.ports.map(u64::from);
        let [outer, inner] = key.vlans.map(u64::from);
        let ports = source | target << 16 | outer << 32 | inner << 48;
        let kind = u64::from(key.source) << 16 | u64::from(key.proto) << 8 | u64::from(key.family);
        let rest = u64::from(key.tunnel) | kind << 32;
        let addresses = Seed::fold(low ^ a, to_low ^ b) ^ Seed::fold(high ^ c, to_high ^ d);
        Seed::fold(addresses ^ ports ^ e, Seed::fold(ports ^ f, rest ^ a) ^ b)
    }
}

/// A packet, as a flow's record counts it.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Packet {
    pub(crate) key: Key,
    pub(crate) hash: u64,
    /// Milliseconds since 1970.
    pub(crate) time: u64,
    /// Bytes of the IP packet; of other frames, those after the EtherType.
    pub(crate) octets: u32,
    /// Bytes of the frame, without FCS.
    pub(crate) frame: u32,
    pub(crate) tcp_flags: u8,
    pub(crate) tos: u8,
    /// The packet's direction is the other one of `key`.
    pub(crate) is_reversed: bool,
    pub(crate) tunnel: Kind,
    /// Why it was dropped, as [`Flow::dropped`](crate::cache::Flow::dropped) says it.
    pub(crate) dropped: u8,
}

/// The ports of a packet's first fragment.
#[derive(Clone, Copy, Default)]
struct Fragmented {
    /// Without ports.
    key: Key,
    id: u32,
    ports: [u16; 2],
    time: u64,
}

/// Packets that have one key.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Keys {
    /// Both directions.
    pub(crate) both: bool,
    /// Packets of tunnels: the inner ones count.
    pub(crate) inner: bool,
}

/// Finds the flows of frames.
pub(crate) struct Parser {
    seed: Seed,
    keys: Keys,
    fragmented: Vec<Fragmented>,
    headers: Headers,
    /// Frames with headers that are cut or inconsistent.
    pub(crate) malformed: u64,
}

impl Parser {
    pub(crate) fn new(keys: Keys) -> Parser {
        Parser {
            seed: Seed::random(),
            keys,
            fragmented: vec![Fragmented::default(); FRAGMENTED],
            headers: Headers::default(),
            malformed: 0,
        }
    }

    /// Parses the frame of `len` bytes of which `bytes` are the first [`HEADER_BYTES`], or all if it has fewer.
    #[inline]
    pub(crate) fn parse(&mut self, bytes: &[u8], len: usize, source: u16, time: u64) -> Packet {
        let len = len.max(bytes.len());
        let mut valid = self.headers.set(bytes, len).is_ok();
        if bytes.len() < ETHERNET {
            // It has left the headers of another frame.
            self.headers = Headers::default();
        }
        let tags = self.headers.tags;
        let mut own = [0; HEADER_BYTES];
        let (mut seen, mut left, mut tunnel) = (bytes, len, Tunnel::default());
        if valid && matches!(self.headers.ethertype, 0x8847 | 0x8848) {
            let ethertype = self.headers.ethertype;
            if let Some((count, stack)) = without_labels(bytes, usize::from(self.headers.l3), &mut own) {
                (seen, left) = (&own[..count], len - stack);
                valid = self.headers.set(seen, left).is_ok();
            }
            if self.headers.family == Family::Other {
                self.headers.ethertype = ethertype;
            }
        }
        self.malformed += u64::from(!valid);
        let mut within;
        if self.keys.inner && valid {
            within = [0; HEADER_BYTES];
            within[..seen.len()].copy_from_slice(seen);
            let count;
            (tunnel, count, left) = unwrap(&mut self.headers, &mut within, (seen.len(), left));
            seen = &within[..count];
        }
        let h = &self.headers;
        let (src, dst, kind) = match h.family {
            Family::V4 => (h.src4.into(), h.dst4.into(), family::V4),
            Family::V6 => (h.src6, h.dst6, family::V6),
            Family::Other => (h.src_mac.into(), h.dst_mac.into(), family::OTHER),
        };
        let is_ip = kind != family::OTHER;
        let key = Key {
            src,
            dst,
            ports: [0; 2],
            vlans: vlans(tags),
            source,
            tunnel: tunnel.id,
            proto: h.proto,
            family: kind,
        };
        let octets = if is_ip { h.ip_len.into() } else { left.saturating_sub(h.l3.into()) };
        let (tcp_flags, tos) = (h.tcp_flags, h.tos);
        let ports = self.ports(&key, seen, time);
        let key = Key { ports, ..key };
        let (key, is_reversed) = if self.keys.both { key.of_both() } else { (key, false) };
        let hash = self.seed.hash(&key);
        Packet {
            key,
            hash,
            time,
            octets: octets as u32,
            frame: len as u32,
            tcp_flags,
            tos,
            is_reversed,
            tunnel: tunnel.kind,
            dropped: 0,
        }
    }

    /// The ports of the packet whose headers were parsed last; of a later fragment, those of the first one.
    #[inline]
    fn ports(&mut self, key: &Key, bytes: &[u8], time: u64) -> [u16; 2] {
        let h = &self.headers;
        let is_icmp = matches!((h.proto, key.family), (proto::ICMP, family::V4) | (proto::ICMP6, family::V6));
        let ports = match h.has_transport {
            // Both directions have types of their own.
            true if is_icmp && self.keys.both => [0; 2],
            true if is_icmp => {
                let code = bytes.get(usize::from(h.l4) + 1).copied().unwrap_or(0);
                [0, u16::from_be_bytes([h.icmp_type, code])]
            }
            _ if key.family == family::OTHER => [0, h.ethertype],
            _ => [h.src_port, h.dst_port],
        };
        if key.family == family::OTHER || (!h.more_fragments && h.frag_offset == 0) {
            return ports;
        }
        self.of_fragment(key, bytes, ports, time)
    }

    #[cold]
    fn of_fragment(&mut self, key: &Key, bytes: &[u8], ports: [u16; 2], time: u64) -> [u16; 2] {
        let h = &self.headers;
        let id = match key.family {
            family::V4 => u32::from(h.ip_id),
            // The fragment header is the last of a later fragment, and mostly of a first one.
            _ if h.extensions & FRAGMENT_HEADER != 0 => {
                let at = usize::from(h.l4).saturating_sub(FRAGMENT_BYTES / 2);
                bytes.get(at..).and_then(|id| id.first_chunk()).map_or(0, |id| u32::from_be_bytes(*id))
            }
            _ => return ports,
        };
        let place = (self.seed.hash(&Key { ports: [id as u16, (id >> 16) as u16], ..*key }) as usize) % FRAGMENTED;
        let known = &mut self.fragmented[place];
        if h.frag_offset == 0 {
            *known = Fragmented { key: *key, id, ports, time };
            return ports;
        }
        let is_this = known.key == *key && known.id == id && time.saturating_sub(known.time) < REASSEMBLY;
        if is_this { known.ports } else { ports }
    }
}

/// VLANs of the tags as [`Headers::tags`] has them: the outer one first.
#[inline]
fn vlans(tags: u64) -> [u16; 2] {
    let id = |tag: u64| tag as u16 & 0xfff;
    match tags >> 32 {
        0 => [id(tags), 0],
        outer => [id(outer), id(tags)],
    }
}

/// Copies a frame's Ethernet addresses and the packet after its MPLS labels, which begin at `at`, as if there were
/// none. Returns the bytes that were copied, and how many the frame is shorter. `None`: too many labels, or neither
/// IPv4 nor IPv6 follows.
fn without_labels(bytes: &[u8], at: usize, to: &mut [u8; HEADER_BYTES]) -> Option<(usize, usize)> {
    let labels = bytes.get(at..)?.chunks_exact(4).take(MAX_LABELS);
    let last = labels.into_iter().position(|label| label[2] & 1 != 0)?;
    let packet = bytes.get(at + 4 * (last + 1)..)?;
    let ethertype: [u8; 2] = match packet.first()? >> 4 {
        4 => [0x08, 0x00],
        6 => [0x86, 0xdd],
        _ => return None,
    };
    to[..12].copy_from_slice(bytes.get(..12)?);
    to[12..14].copy_from_slice(&ethertype);
    to.get_mut(14..14 + packet.len())?.copy_from_slice(packet);
    Some((14 + packet.len(), bytes.len() - 14 - packet.len()))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Ethernet, MPLS labels, and an IPv4 packet of UDP.
    fn labelled(labels: usize) -> Vec<u8> {
        let mut frame = [[2; 6], [4; 6]].concat();
        frame.extend([0x88, 0x47]);
        for i in 1..=labels {
            frame.extend([0, 0, u8::from(i == labels), 64]);
        }
        frame.extend([0x45, 0, 0, 28, 0, 1, 0, 0, 64, 17, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2, 1, 0, 2, 0, 0, 8, 0, 0]);
        frame
    }

    #[test]
    fn labels_are_skipped_up_to_a_bound() {
        let mut parser = Parser::new(Keys::default());
        for labels in 1..=MAX_LABELS {
            let frame = labelled(labels);
            let packet = parser.parse(&frame, frame.len(), 0, 1);
            assert_eq!((packet.key.family, packet.key.ports, packet.octets), (family::V4, [256, 512], 28), "{labels}");
            assert_eq!(packet.frame as usize, frame.len());
        }
        let frame = labelled(MAX_LABELS + 1);
        let key = parser.parse(&frame, frame.len(), 0, 1).key;
        assert_eq!((key.family, key.ethertype(), key.src), (family::OTHER, 0x8847, 0x0404_0404_0404));
    }

    /// Any bytes make a packet, with the bytes that the frame has.
    #[test]
    fn frames_that_are_cut_or_random_are_counted() {
        let mut parser = Parser::new(Keys { both: true, inner: true });
        let mut random = 0u64;
        for i in 0..200_000u64 {
            let mut frame = labelled(1 + i as usize % 10);
            frame.truncate(tool_common::mix(i) as usize % (frame.len() + 1));
            for _ in 0..i % 4 {
                random = tool_common::mix(random + i);
                let at = random as usize % frame.len().max(1);
                if let Some(byte) = frame.get_mut(at) {
                    *byte = (random >> 32) as u8;
                }
            }
            if i.is_multiple_of(3) && frame.len() > 14 {
                frame[12..14].copy_from_slice(&[0x86, 0xdd]);
            }
            let longer = random as usize % 3000;
            let packet = parser.parse(&frame, frame.len() + longer, 3, i);
            assert_eq!((packet.frame as usize, packet.key.source), (frame.len() + longer, 3));
            assert!(packet.octets <= packet.frame, "{frame:02x?}");
        }
        assert!(parser.malformed > 1000);
    }

    #[test]
    fn both_directions_have_one_key() {
        let mut parser = Parser::new(Keys { both: true, inner: true });
        let mut frame = labelled(1);
        let there = parser.parse(&frame, frame.len(), 0, 1);
        // The addresses and the ports.
        frame[30..38].rotate_left(4);
        frame[38..42].rotate_left(2);
        let back = parser.parse(&frame, frame.len(), 0, 1);
        assert!(there.key == back.key && there.hash == back.hash && there.is_reversed != back.is_reversed);
        let other = Parser::new(Keys { both: true, inner: true }).parse(&frame, frame.len(), 0, 1);
        assert!(other.key == back.key && other.hash != back.hash, "no program has the hashes of another one");
    }
}
