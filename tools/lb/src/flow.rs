// SPDX-License-Identifier: BSD-2-Clause
//! Computes the flow of a frame: a number that is equal for both directions of a connection.
//!
//! ```text
//!   Ethernet [VLAN tag ...] IPv4                              addresses, protocol, ports
//!                           IPv6 [extension header ...]       the same
//!                           either, of a fragmented packet    addresses, protocol
//!                           anything else                     Ethernet addresses, type
//! ```
//!
//! All fragments of a packet have the same flow; their ports are ignored, because only the first fragment has them. The
//! hash has no secret key, so that programs at both ends of a link compute the same flow.

use tool_common::mix;

/// Maximum number of bytes of a frame that are read. If the ports are beyond them, the flow depends on the addresses
/// alone.
pub(crate) const HEADERS: usize = 128;

/// Maximum number of VLAN tags, more than any network uses.
const MAX_TAGS: usize = 4;
/// Maximum number of IPv6 extension headers.
const MAX_EXTENSIONS: usize = 8;

/// EtherTypes of four-byte tags: 802.1Q, 802.1ad, and the older 0x9100.
const TAG_TYPES: [u16; 3] = [0x8100, 0x88a8, 0x9100];
const IPV4: u16 = 0x0800;
const IPV6: u16 = 0x86dd;
/// Protocols whose header begins with two port numbers: TCP, UDP, DCCP, SCTP, UDP-Lite.
const WITH_PORTS: [u8; 5] = [6, 17, 33, 132, 136];

/// Address and port of one side of a flow.
#[derive(Clone, Copy, Default)]
struct Endpoint {
    address: u128,
    port: u16,
}

/// Returns the flow of the frame that begins with `frame`. Any bytes have a flow, also short or invalid frames.
pub(crate) fn flow(frame: &[u8]) -> u32 {
    ip_flow(frame).unwrap_or_else(|| {
        let kind = read_u16(frame, 12).unwrap_or_default();
        let side = |at| Endpoint { address: read_uint::<6>(frame, at).unwrap_or_default(), port: 0 };
        symmetric_hash(side(0), side(6), u64::from(kind))
    })
}

/// Returns the pipe of a flow, less than `n`.
pub(crate) fn choose(flow: u32, n: usize) -> usize {
    ((u64::from(flow) * n as u64) >> 32) as usize
}

fn ip_flow(frame: &[u8]) -> Option<u32> {
    let mut at = 12;
    for _ in 0..MAX_TAGS {
        if !TAG_TYPES.contains(&read_u16(frame, at)?) {
            break;
        }
        at += 4;
    }
    let (kind, ip) = (read_u16(frame, at)?, frame.get(at + 2..)?);
    match kind {
        IPV4 => ipv4_flow(ip),
        IPV6 => ipv6_flow(ip),
        _ => None,
    }
}

fn ipv4_flow(ip: &[u8]) -> Option<u32> {
    let header = usize::from(ip.first()? & 15) * 4;
    let (version, protocol) = (ip[0] >> 4, *ip.get(9)?);
    if version != 4 || header < 20 {
        return None;
    }
    // A fragment has the flag "more fragments" or an offset.
    let unfragmented = read_u16(ip, 6)? & 0x3fff == 0;
    let ports = ports(ip, header, protocol).filter(|_| unfragmented);
    Some(flow_hash([read_uint::<4>(ip, 12)?, read_uint::<4>(ip, 16)?], ports, protocol))
}

fn ipv6_flow(ip: &[u8]) -> Option<u32> {
    if ip.first()? >> 4 != 6 {
        return None;
    }
    let addresses = [read_uint::<16>(ip, 8)?, read_uint::<16>(ip, 24)?];
    let (mut next, mut at) = (*ip.get(6)?, 40);
    for _ in 0..MAX_EXTENSIONS {
        let length = |units: u8, unit: usize, more: usize| (usize::from(units) + more) * unit;
        let Some(&[following, units]) = ip.get(at..at + 2) else { break };
        match next {
            // Hop-by-hop, routing, destination options.
            0 | 43 | 60 => at += length(units, 8, 1),
            // Authentication.
            51 => at += length(units, 4, 2),
            44 => {
                // A fragment, unless it is the whole packet.
                let Some(0) = read_u16(ip, at + 2).map(|word| word & 0xfff9) else {
                    return Some(flow_hash(addresses, None, following));
                };
                at += 8;
            }
            _ => break,
        }
        next = following;
    }
    Some(flow_hash(addresses, ports(ip, at, next), next))
}

fn ports(ip: &[u8], at: usize, protocol: u8) -> Option<[u16; 2]> {
    WITH_PORTS.contains(&protocol).then_some(())?;
    Some([read_u16(ip, at)?, read_u16(ip, at + 2)?])
}

fn flow_hash(addresses: [u128; 2], ports: Option<[u16; 2]>, protocol: u8) -> u32 {
    let ports = ports.unwrap_or_default();
    let [a, b] = [0, 1].map(|i| Endpoint { address: addresses[i], port: ports[i] });
    symmetric_hash(a, b, u64::from(protocol))
}

/// Hashes two endpoints independently of their order: each is hashed separately, and the hashes are added.
fn symmetric_hash(a: Endpoint, b: Endpoint, kind: u64) -> u32 {
    let side = |side: Endpoint| {
        let (high, low) = ((side.address >> 64) as u64, side.address as u64);
        mix(mix(high).wrapping_add(low).wrapping_add(u64::from(side.port) << 48))
    };
    (mix(side(a).wrapping_add(side(b)).wrapping_add(kind)) >> 32) as u32
}

fn read_u16(bytes: &[u8], at: usize) -> Option<u16> {
    Some(u16::from_be_bytes(bytes.get(at..at + 2)?.try_into().ok()?))
}

fn read_uint<const N: usize>(bytes: &[u8], at: usize) -> Option<u128> {
    Some(bytes.get(at..at + N)?.iter().fold(0, |number, byte| number << 8 | u128::from(*byte)))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Builds a frame with `tags` tags.
    fn frame(kind: u16, tags: usize, ip: &[u8]) -> Vec<u8> {
        let mut bytes = vec![2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2];
        (0..tags).for_each(|tag| bytes.extend([0x81, 0, 0, tag as u8]));
        bytes.extend(kind.to_be_bytes());
        bytes.extend(ip);
        bytes
    }

    fn ipv4(from: (u8, u16), to: (u8, u16), protocol: u8, fragment: u16) -> Vec<u8> {
        let [high, low] = fragment.to_be_bytes();
        let mut ip = vec![0x45, 0, 0, 40, 0, 7, high, low, 64, protocol, 0, 0];
        ip.extend([10, 0, 0, from.0, 10, 0, 0, to.0]);
        ip.extend(from.1.to_be_bytes());
        ip.extend(to.1.to_be_bytes());
        ip
    }

    fn ipv6(from: (u8, u16), to: (u8, u16), extensions: &[u8]) -> Vec<u8> {
        let mut ip = vec![0x60, 0, 0, 0, 0, 40, extensions.first().map_or(17, |_| extensions[0]), 64];
        for side in [from.0, to.0] {
            ip.extend([0xfd; 15]);
            ip.push(side);
        }
        ip.extend(extensions.get(1..).unwrap_or_default());
        ip.extend(from.1.to_be_bytes());
        ip.extend(to.1.to_be_bytes());
        ip
    }

    #[test]
    fn both_directions_have_the_same_flow_with_and_without_tags() {
        let (a, b) = ((1, 1000), (2, 53));
        for tags in 0..=MAX_TAGS {
            let flows = [ipv4(a, b, 17, 0), ipv4(b, a, 17, 0)].map(|ip| flow(&frame(IPV4, tags, &ip)));
            assert_eq!(flows[0], flows[1]);
            assert_eq!(flows[0], flow(&frame(IPV4, 0, &ipv4(a, b, 17, 0))), "tags do not matter");
            let flows = [ipv6(a, b, &[]), ipv6(b, a, &[])].map(|ip| flow(&frame(IPV6, tags, &ip)));
            assert_eq!(flows[0], flows[1]);
        }
        let mut back = frame(0x88b5, 0, b"x");
        let there = flow(&back);
        back[..12].rotate_left(6);
        assert_eq!(there, flow(&back));
    }

    #[test]
    fn different_connections_have_different_flows() {
        let all = [
            frame(IPV4, 0, &ipv4((1, 1000), (2, 53), 17, 0)),
            frame(IPV4, 0, &ipv4((1, 1001), (2, 53), 17, 0)),
            frame(IPV4, 0, &ipv4((1, 53), (2, 1000), 17, 0)),
            frame(IPV4, 0, &ipv4((1, 1000), (3, 53), 17, 0)),
            frame(IPV4, 0, &ipv4((1, 1000), (2, 53), 6, 0)),
            frame(IPV6, 0, &ipv6((1, 1000), (2, 53), &[])),
            frame(0x88b5, 0, b"x"),
        ];
        let flows: std::collections::HashSet<u32> = all.iter().map(|bytes| flow(bytes)).collect();
        assert_eq!(flows.len(), all.len());
    }

    #[test]
    fn fragments_of_a_packet_have_the_same_flow() {
        // The first fragment has ports, the others arbitrary bytes in their place. 0x2000 is "more fragments".
        let flows = [(1000, 0x2000), (7, 0x2001), (8, 0x0002)];
        let flows = flows.map(|(port, fragment)| flow(&frame(IPV4, 0, &ipv4((1, port), (2, 53), 17, fragment))));
        assert!(flows.iter().all(|flow| *flow == flows[0]), "{flows:x?}");
        let flows = [[0u8, 1], [0, 9], [0x10, 0]].map(|[high, low]| {
            let port = u16::from_be_bytes([low, high]);
            flow(&frame(IPV6, 0, &ipv6((1, port), (2, 53), &[44, 17, 0, high, low, 0, 0, 0, 9])))
        });
        assert!(flows.iter().all(|flow| *flow == flows[0]), "{flows:x?}");
    }

    #[test]
    fn extension_headers_are_skipped() {
        let (a, b) = ((1, 1000), (2, 53));
        let plain = flow(&frame(IPV6, 0, &ipv6(a, b, &[])));
        let options = [&[0u8, 17, 0][..], &[0; 6]].concat();
        let authentic = [&[51u8, 17, 1][..], &[0; 10]].concat();
        let atomic = [44u8, 17, 0, 0, 0, 0, 0, 0, 9];
        for extensions in [&options[..], &authentic, &atomic] {
            assert_eq!(flow(&frame(IPV6, 0, &ipv6(a, b, extensions))), plain, "{extensions:?}");
        }
    }

    #[test]
    fn any_bytes_have_a_flow() {
        let whole = frame(IPV6, 2, &ipv6((1, 1), (2, 2), &[0, 43, 255, 0, 0]));
        (0..=whole.len()).for_each(|n| assert!(choose(flow(&whole[..n]), 3) < 3));
        for byte in 0..=255 {
            let mut bytes = frame(IPV4, 1, &ipv4((1, 1), (2, 2), byte, 0));
            bytes[18] = byte;
            assert!(choose(flow(&bytes), 7) < 7);
        }
    }

    #[test]
    fn flows_are_distributed_evenly() {
        let mut counts = [0; 4];
        for port in 1000..5000 {
            counts[choose(flow(&frame(IPV4, 0, &ipv4((1, port), (2, 53), 17, 0))), 4)] += 1;
        }
        assert!(counts.iter().all(|&n| (850..1150).contains(&n)), "{counts:?}");
    }
}
