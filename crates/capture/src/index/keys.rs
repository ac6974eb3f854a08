// SPDX-License-Identifier: BSD-2-Clause
//! The keys by which a frame is found: a number for its flow, and one for each of its addresses.
//!
//! A key exists for whatever a filter of libpcap reads at the same place: a filter that names an address matches no
//! frame without that address's key. So versions and lengths of headers are not checked here, as filters do not either.

use std::net::IpAddr;

/// Most keys of a frame.
pub(super) const MAX_KEYS: usize = 3;
/// Most VLAN tags that are passed over.
pub(crate) const MAX_TAGS: usize = 4;

/// Protocols with ports.
pub(crate) const TCP: u8 = 6;
pub(crate) const UDP: u8 = 17;
pub(crate) const SCTP: u8 = 132;

/// The keys of a frame.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Keys {
    keys: [u32; MAX_KEYS],
    len: usize,
}

impl Keys {
    pub(crate) fn as_slice(&self) -> &[u32] {
        &self.keys[..self.len]
    }

    fn push(&mut self, key: u32) {
        if !self.as_slice().contains(&key) {
            self.keys[self.len] = key;
            self.len += 1;
        }
    }
}

/// Mixes the bits (the finalizer of SplitMix64). Files have keys made by it: it stays as it is.
fn mix(x: u64) -> u64 {
    let x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ (x >> 31)
}

/// IPv4's addresses are those that IPv6 maps.
fn number(address: IpAddr) -> u128 {
    match address {
        IpAddr::V4(v4) => v4.to_ipv6_mapped().to_bits(),
        IpAddr::V6(v6) => v6.to_bits(),
    }
}

fn fold(start: u64, address: u128) -> u64 {
    mix(mix(start ^ address as u64).wrapping_add((address >> 64) as u64))
}

fn of_number(address: u128) -> u32 {
    (fold(0x61, address) >> 32) as u32
}

fn of_ends(protocol: u8, ends: [(u128, u16); 2]) -> u32 {
    let [a, b] = if ends[0] <= ends[1] { ends } else { [ends[1], ends[0]] };
    let ports = u64::from(a.1) << 32 | u64::from(b.1) << 8 | u64::from(protocol);
    (fold(fold(mix(ports ^ 0x66), a.0), b.0) >> 32) as u32
}

/// Returns the key of an address.
pub(crate) fn of_address(address: IpAddr) -> u32 {
    of_number(number(address))
}

/// Returns the key of a flow, the same for both directions.
pub(crate) fn of_flow(protocol: u8, ends: [(IpAddr, u16); 2]) -> u32 {
    of_ends(protocol, ends.map(|(address, port)| (number(address), port)))
}

fn word(bytes: &[u8], at: usize) -> Option<u16> {
    bytes.get(at..)?.first_chunk().map(|&bytes| u16::from_be_bytes(bytes))
}

fn v4(bytes: &[u8], at: usize) -> Option<u128> {
    bytes.get(at..)?.first_chunk().map(|&octets: &[u8; 4]| 0xffff_0000_0000 | u128::from(u32::from_be_bytes(octets)))
}

fn v6(bytes: &[u8], at: usize) -> Option<u128> {
    bytes.get(at..)?.first_chunk().map(|&octets| u128::from_be_bytes(octets))
}

/// The network layer of a frame.
struct Parts {
    addresses: [Option<u128>; 2],
    /// Protocol, and where its header begins, unless this is a later fragment.
    transport: Option<(u8, usize)>,
    is_fragment: bool,
}

impl Parts {
    fn new(bytes: &[u8]) -> Option<Parts> {
        let (mut at, mut tags) = (12, 0);
        while tags < MAX_TAGS && matches!(word(bytes, at)?, 0x8100 | 0x88a8 | 0x9100 | 0x9200) {
            (at, tags) = (at + 4, tags + 1);
        }
        let (kind, at) = (word(bytes, at)?, at + 2);
        match kind {
            0x0800 => {
                let fragment = word(bytes, at + 6).unwrap_or(0);
                let header = bytes.get(at).map_or(0, |first| usize::from(first & 0xf) * 4);
                let protocol = bytes.get(at + 9).copied().filter(|_| fragment & 0x1fff == 0);
                Some(Parts {
                    addresses: [v4(bytes, at + 12), v4(bytes, at + 16)],
                    transport: protocol.map(|protocol| (protocol, at + header)),
                    is_fragment: fragment & 0x3fff != 0,
                })
            }
            0x86dd => Some(Parts {
                addresses: [v6(bytes, at + 8), v6(bytes, at + 24)],
                transport: bytes.get(at + 6).map(|&protocol| (protocol, at + 40)),
                is_fragment: false,
            }),
            // ARP and RARP, of Ethernet and IPv4.
            0x0806 | 0x8035 => {
                Some(Parts { addresses: [v4(bytes, at + 14), v4(bytes, at + 24)], transport: None, is_fragment: false })
            }
            _ => None,
        }
    }

    /// The key of the flow, if it has ports.
    fn flow(&self, bytes: &[u8]) -> Option<u32> {
        let ([Some(src), Some(dst)], Some((protocol @ (TCP | UDP | SCTP), at))) = (self.addresses, self.transport)
        else {
            return None;
        };
        Some(of_ends(protocol, [(src, word(bytes, at)?), (dst, word(bytes, at + 2)?)]))
    }
}

/// Returns the keys of a frame.
pub(crate) fn of_frame(bytes: &[u8]) -> Keys {
    let mut keys = Keys::default();
    let Some(parts) = Parts::new(bytes) else { return keys };
    parts.flow(bytes).into_iter().for_each(|key| keys.push(key));
    parts.addresses.into_iter().flatten().for_each(|address| keys.push(of_number(address)));
    keys
}

/// Returns a number that is the same for all frames of a flow in both directions, and for all fragments between two
/// addresses; 0 for other frames.
pub fn spread(bytes: &[u8]) -> u32 {
    let Some(parts) = Parts::new(bytes) else { return 0 };
    if let Some(flow) = parts.flow(bytes).filter(|_| !parts.is_fragment) {
        return flow;
    }
    let [Some(src), Some(dst)] = parts.addresses else { return 0 };
    of_ends(0, [(src, 0), (dst, 0)])
}
