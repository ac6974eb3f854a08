// SPDX-License-Identifier: BSD-2-Clause
//! Packets within tunnels: where the inner one begins, and of which tunnel it is.

use unetmap_filter::{Family, HEADER_BYTES, Headers, proto};

/// Tunnels within each other that are looked into.
const MAX_DEPTH: usize = 4;
/// Bytes of an Ethernet header.
const ETHERNET: usize = 14;
/// Numbers of protocols.
const IPV4: u8 = 4;
const IPV6: u8 = 41;
const GRE: u8 = 47;
/// UDP ports.
const VXLAN: u16 = 4789;
const GENEVE: u16 = 6081;
const GTP: u16 = 2152;
/// EtherTypes: of IPv4, of IPv6, and of a frame within another packet.
const IPV4_TYPE: u16 = 0x0800;
const IPV6_TYPE: u16 = 0x86dd;
const BRIDGED: u16 = 0x6558;
/// GTP: the type of messages that have a user's packet.
const USER_PACKET: u8 = 255;

/// How a tunnel carries packets.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Kind {
    #[default]
    None,
    /// RFC 7348. Its identifier is the VNI.
    Vxlan,
    /// RFC 8926. Its identifier is the VNI.
    Geneve,
    /// RFC 2784, 2890. Its identifier is the key, if there is one.
    Gre,
    /// RFC 2003, 4213. It has no identifier.
    Ip,
    /// 3GPP TS 29.281. Its identifier is that of the endpoint.
    Gtp,
}

impl Kind {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Kind::None => "",
            Kind::Vxlan => "vxlan",
            Kind::Geneve => "geneve",
            Kind::Gre => "gre",
            Kind::Ip => "ip",
            Kind::Gtp => "gtp-u",
        }
    }
}

/// The innermost tunnel of a packet.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Tunnel {
    pub(crate) kind: Kind,
    pub(crate) id: u32,
}

/// A packet within another one.
struct Inner {
    tunnel: Tunnel,
    /// Where it begins.
    at: usize,
    /// The EtherType of an IP packet; that of a frame is [`BRIDGED`].
    ethertype: u16,
}

/// Looks for a tunnel in the packet with these headers, which begins with `bytes`.
fn find(headers: &Headers, bytes: &[u8]) -> Option<Inner> {
    if headers.family == Family::Other || headers.frag_offset != 0 || headers.more_fragments {
        return None;
    }
    let at = usize::from(headers.l4);
    let inner = |kind, id, at, ethertype| Some(Inner { tunnel: Tunnel { kind, id }, at, ethertype });
    match (headers.proto, headers.dst_port) {
        (IPV4, _) => inner(Kind::Ip, 0, at, IPV4_TYPE),
        (IPV6, _) => inner(Kind::Ip, 0, at, IPV6_TYPE),
        (GRE, _) => gre(bytes, at),
        (proto::UDP, VXLAN) => {
            let header = bytes.get(at + 8..)?.first_chunk::<8>()?;
            // The flag says that there is a VNI.
            if header[0] & 8 == 0 { None } else { inner(Kind::Vxlan, vni(header), at + 16, BRIDGED) }
        }
        (proto::UDP, GENEVE) => {
            let header = bytes.get(at + 8..)?.first_chunk::<8>()?;
            let options = usize::from(header[0] & 0x3f) * 4;
            let ethertype = u16::from_be_bytes([header[2], header[3]]);
            if header[0] >> 6 == 0 { inner(Kind::Geneve, vni(header), at + 16 + options, ethertype) } else { None }
        }
        (proto::UDP, GTP) => gtp(bytes, at + 8),
        _ => None,
    }
}

fn vni(header: &[u8; 8]) -> u32 {
    u32::from_be_bytes([0, header[4], header[5], header[6]])
}

fn gre(bytes: &[u8], at: usize) -> Option<Inner> {
    let &[flags, version, high, low] = bytes.get(at..)?.first_chunk::<4>()?;
    // A checksum, a key and a sequence number may follow. Bits for source routes, and other versions, are not read.
    if flags & 0x4f != 0 || version & 7 != 0 {
        return None;
    }
    let has = |bit: u8| if flags & bit != 0 { 4 } else { 0 };
    let key_at = at + 4 + has(0x80);
    let id = match flags & 0x20 {
        0 => 0,
        _ => u32::from_be_bytes(*bytes.get(key_at..)?.first_chunk()?),
    };
    let ethertype = u16::from_be_bytes([high, low]);
    Some(Inner { tunnel: Tunnel { kind: Kind::Gre, id }, at: key_at + has(0x20) + has(0x10), ethertype })
}

fn gtp(bytes: &[u8], at: usize) -> Option<Inner> {
    let &[flags, message, _, _, a, b, c, d] = bytes.get(at..)?.first_chunk::<8>()?;
    // Version 1 of GTP, and not of GTP'.
    if flags >> 4 != 3 || message != USER_PACKET {
        return None;
    }
    let mut next = at + 8;
    if flags & 7 != 0 {
        // A sequence number, and extension headers, each with the type of the one after it as its last byte.
        next += 4;
        let mut kind = *bytes.get(next - 1)?;
        while flags & 4 != 0 && kind != 0 {
            let words = usize::from(*bytes.get(next)?);
            if words == 0 {
                return None;
            }
            next += 4 * words;
            kind = *bytes.get(next - 1)?;
        }
    }
    let ethertype = match bytes.get(next)? >> 4 {
        4 => IPV4_TYPE,
        6 => IPV6_TYPE,
        _ => return None,
    };
    let id = u32::from_be_bytes([a, b, c, d]);
    Some(Inner { tunnel: Tunnel { kind: Kind::Gtp, id }, at: next, ethertype })
}

/// Replaces the first `n` bytes of a frame of `len` bytes, whose headers are given, by those of the innermost packet
/// that is whole as far as it is looked at, with a header of Ethernet before it. Returns its tunnel, and as many bytes
/// of it, and its length.
pub(crate) fn unwrap(
    headers: &mut Headers,
    bytes: &mut [u8; HEADER_BYTES],
    (mut n, mut len): (usize, usize),
) -> (Tunnel, usize, usize) {
    let mut tunnel = Tunnel::default();
    for _ in 0..MAX_DEPTH {
        let Some(inner) = find(headers, &bytes[..n]).filter(|inner| inner.at < n) else { break };
        let is_frame = inner.ethertype == BRIDGED;
        if !is_frame && !matches!(inner.ethertype, IPV4_TYPE | IPV6_TYPE) {
            break;
        }
        let start = if is_frame { 0 } else { ETHERNET };
        let (outer, before) = (*headers, *bytes);
        bytes.copy_within(inner.at..n, start);
        if !is_frame {
            bytes[12..ETHERNET].copy_from_slice(&inner.ethertype.to_be_bytes());
        }
        let shorter = inner.at - start;
        if headers.set(&bytes[..n - shorter], len - shorter).is_err() {
            (*headers, *bytes) = (outer, before);
            break;
        }
        (n, len, tunnel) = (n - shorter, len - shorter, inner.tunnel);
    }
    (tunnel, n, len)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::packet::{Keys, Packet, Parser, family};

    fn ipv4(protocol: u8, payload: &[u8]) -> Vec<u8> {
        let [high, low] = (20 + payload.len() as u16).to_be_bytes();
        let head = [0x45, 0, high, low, 0, 1, 0, 0, 64, protocol, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2];
        [&head[..], payload].concat()
    }

    fn ipv6(next: u8, payload: &[u8]) -> Vec<u8> {
        let [high, low] = (payload.len() as u16).to_be_bytes();
        let head = [&[0x60, 0, 0, 0, high, low, next, 64][..], &[0x20; 15], &[1], &[0x20; 15], &[2]].concat();
        [&head[..], payload].concat()
    }

    fn udp(ports: [u16; 2], payload: &[u8]) -> Vec<u8> {
        let length = 8 + payload.len() as u16;
        [ports.map(u16::to_be_bytes).concat(), [length.to_be_bytes(), [0; 2]].concat(), payload.to_vec()].concat()
    }

    fn frame(ethertype: u16, payload: &[u8]) -> Vec<u8> {
        [&[2; 6][..], &[4; 6], &ethertype.to_be_bytes(), payload].concat()
    }

    /// The innermost packet: UDP from port 7 to 8, with 4 bytes.
    fn payload() -> Vec<u8> {
        ipv4(17, &udp([7, 8], b"text"))
    }

    /// A packet in each tunnel, the tunnel, and the bytes of the inner packet.
    fn tunnels() -> Vec<(Vec<u8>, Kind, u32)> {
        let (four, six) = (payload(), ipv6(17, &udp([7, 8], b"text")));
        let vxlan = |vni: [u8; 3], inner: &[u8]| {
            udp([9, VXLAN], &[&[8, 0, 0, 0, vni[0], vni[1], vni[2], 0], &frame(0x0800, inner)[..]].concat())
        };
        let gtp = |head: &[u8], inner: &[u8]| udp([9, GTP], &[head, inner].concat());
        let options = [0x02, 0, 0x65, 0x58, 0, 1, 0, 0, 1, 1, 1, 1, 1, 1, 1, 1];
        vec![
            (frame(0x0800, &ipv4(17, &vxlan([1, 2, 3], &four))), Kind::Vxlan, 0x1_0203),
            (frame(0x86dd, &ipv6(17, &vxlan([0, 0, 9], &four))), Kind::Vxlan, 9),
            (
                frame(0x0800, &ipv4(17, &udp([9, GENEVE], &[&options[..], &frame(0x0800, &four)].concat()))),
                Kind::Geneve,
                0x100,
            ),
            (
                frame(0x0800, &ipv4(17, &udp([9, GENEVE], &[&[0, 0, 8, 0, 0, 0, 5, 0], &four[..]].concat()))),
                Kind::Geneve,
                5,
            ),
            (frame(0x0800, &ipv4(GRE, &[&[0, 0, 8, 0], &four[..]].concat())), Kind::Gre, 0),
            (
                frame(
                    0x0800,
                    &ipv4(GRE, &[&[0xb0, 0, 0x86, 0xdd, 0, 0, 0, 0, 0, 0, 0, 6, 0, 0, 0, 1], &six[..]].concat()),
                ),
                Kind::Gre,
                6,
            ),
            (
                frame(0x0800, &ipv4(GRE, &[&[0x20, 0, 0x65, 0x58, 0, 0, 1, 0], &frame(0x0800, &four)[..]].concat())),
                Kind::Gre,
                256,
            ),
            (frame(0x0800, &ipv4(IPV4, &four)), Kind::Ip, 0),
            (frame(0x86dd, &ipv6(IPV4, &four)), Kind::Ip, 0),
            (frame(0x0800, &ipv4(IPV6, &six)), Kind::Ip, 0),
            (frame(0x0800, &ipv4(17, &gtp(&[0x30, 255, 0, 32, 0, 0, 0, 4], &four))), Kind::Gtp, 4),
            (
                frame(0x0800, &ipv4(17, &gtp(&[0x34, 255, 0, 40, 0, 0, 0, 8, 0, 0, 0, 0x85, 1, 0, 0, 0], &six))),
                Kind::Gtp,
                8,
            ),
            // A tunnel in a tunnel.
            (frame(0x0800, &ipv4(IPV4, &ipv4(17, &gtp(&[0x30, 255, 0, 32, 0, 0, 0, 3], &four)))), Kind::Gtp, 3),
        ]
    }

    fn parse(bytes: &[u8], keys: Keys) -> Packet {
        Parser::new(keys).parse(&bytes[..bytes.len().min(HEADER_BYTES)], bytes.len(), 0, 1)
    }

    const INNER: Keys = Keys { both: false, inner: true };

    #[test]
    fn the_flow_of_a_packet_in_a_tunnel_is_that_of_the_inner_one() {
        for (i, (bytes, kind, id)) in tunnels().iter().enumerate() {
            let packet = parse(bytes, INNER);
            assert_eq!((packet.key.ports, packet.key.proto), ([7, 8], 17), "{i}");
            assert_eq!((packet.tunnel, packet.key.tunnel), (*kind, *id), "{i}");
            let inner = if packet.key.family == family::V4 { 32 } else { 52 };
            assert_eq!((packet.octets, packet.frame as usize), (inner, bytes.len()), "{i}");
            let outer = parse(bytes, Keys::default());
            assert_eq!((outer.tunnel, outer.key.tunnel), (Kind::None, 0), "{i}");
            assert!(outer.key.ports != [7, 8] && outer.octets > inner, "{i}");
        }
    }

    /// Two tenants with the same addresses have two flows.
    #[test]
    fn tunnels_with_other_identifiers_have_other_flows() {
        let (mut bytes, ..) = tunnels().swap_remove(0);
        let first = parse(&bytes, INNER).key;
        // The last byte of the VNI.
        bytes[14 + 20 + 8 + 6] ^= 1;
        let second = parse(&bytes, INNER).key;
        assert!(first != second && first.src == second.src && first.ports == second.ports);
    }

    /// The flow of a packet whose inner headers are cut or wrong is that of its outer ones.
    #[test]
    fn packets_that_are_cut_or_random_are_counted() {
        let mut random = 0u64;
        for (i, (bytes, ..)) in (0..).zip(tunnels()) {
            for cut in 0..bytes.len() {
                let packet = Parser::new(INNER).parse(&bytes[..cut.min(HEADER_BYTES)], bytes.len(), 0, 1);
                assert_eq!(packet.frame as usize, bytes.len());
            }
            for _ in 0..5000 {
                let mut changed = bytes.clone();
                for _ in 0..1 + random % 3 {
                    random = tool_common::mix(random + i);
                    let at = random as usize % changed.len();
                    changed[at] = (random >> 32) as u8;
                }
                let packet = parse(&changed, INNER);
                assert!(packet.octets <= packet.frame && packet.frame as usize == bytes.len(), "{changed:02x?}");
            }
        }
    }
}
