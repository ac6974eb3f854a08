// SPDX-License-Identifier: BSD-2-Clause
//! The headers of a captured packet, found as far as their layers are known.

use crate::layer::{Layer, TRANSPARENT_ETHERNET, VXLAN_PORT};

/// Returns the layers of a packet and where each begins, and the end of the last one.
pub(crate) fn layers_of(bytes: &[u8]) -> (Vec<(Layer, usize)>, usize) {
    let mut layers = Vec::new();
    let mut at = 0;
    let mut next = Some(Layer::Ethernet);
    while let Some(layer) = next {
        let Some((len, following)) = header(layer, bytes.get(at..).unwrap_or_default(), &layers) else { break };
        layers.push((layer, at));
        at += len;
        next = following;
    }
    (layers, at)
}

/// SCTP's protocol number, and the bytes of its header, which ends with its checksum.
const SCTP: u8 = 132;
pub(crate) const SCTP_HEADER: usize = 12;

/// Returns where an SCTP header begins, if one follows the last of the layers at `end`.
pub(crate) fn sctp(bytes: &[u8], layers: &[(Layer, usize)], end: usize) -> Option<usize> {
    let protocol = match layers.last()? {
        // A fragment has a part of the packet only.
        (Layer::Ipv4, at) if u16::from_be_bytes([bytes[at + 6], bytes[at + 7]]) & 0x3fff == 0 => bytes[at + 9],
        (Layer::Ipv6, at) => bytes[at + 6],
        _ => return None,
    };
    (protocol == SCTP && bytes.len() >= end + SCTP_HEADER).then_some(end)
}

/// Returns the length of a header at the start of `bytes` and the layer that follows. None if it is not whole.
fn header(layer: Layer, bytes: &[u8], before: &[(Layer, usize)]) -> Option<(usize, Option<Layer>)> {
    let word = |at: usize| bytes.get(at..at + 2).map(|b| u16::from_be_bytes([b[0], b[1]]));
    let len = layer.header().len();
    bytes.get(..len)?;
    let next = match layer {
        Layer::Ethernet => by_ethertype(word(12)?),
        Layer::Vlan | Layer::QinQ => by_ethertype(word(2)?),
        Layer::Mpls if bytes[2] & 1 == 0 => Some(Layer::Mpls),
        Layer::Mpls => match bytes.get(len)? >> 4 {
            4 => Some(Layer::Ipv4),
            6 => Some(Layer::Ipv6),
            _ => None,
        },
        Layer::Ipv4 => {
            let len = usize::from(bytes[0] & 15) * 4;
            if bytes[0] >> 4 != 4 || len < 20 || bytes.len() < len {
                return None;
            }
            // Fragments have no checksum of their own.
            let whole = word(6)? & 0x3fff == 0;
            return Some((len, if whole { by_protocol(bytes[9], 1) } else { None }));
        }
        Layer::Ipv6 => by_protocol(bytes[6], 58),
        Layer::Udp if word(2) == Some(VXLAN_PORT) => Some(Layer::Vxlan),
        Layer::Tcp => {
            let len = usize::from(bytes[12] >> 4) * 4;
            return (len >= 20 && bytes.len() >= len).then_some((len, None));
        }
        // Only the form without checksum, key and sequence number.
        Layer::Gre if word(0) == Some(0) => by_ethertype(word(2)?),
        Layer::Vxlan => Some(Layer::Ethernet),
        Layer::Udp | Layer::Icmp | Layer::Gre => None,
    };
    // A bound for packets that tunnel themselves.
    (before.len() < 16).then_some((len, next))
}

fn by_ethertype(number: u16) -> Option<Layer> {
    match number {
        0x0800 => Some(Layer::Ipv4),
        0x86dd => Some(Layer::Ipv6),
        0x8100 => Some(Layer::Vlan),
        0x88a8 => Some(Layer::QinQ),
        0x8847 => Some(Layer::Mpls),
        TRANSPARENT_ETHERNET => Some(Layer::Ethernet),
        _ => None,
    }
}

fn by_protocol(number: u8, icmp: u8) -> Option<Layer> {
    match number {
        6 => Some(Layer::Tcp),
        17 => Some(Layer::Udp),
        4 => Some(Layer::Ipv4),
        41 => Some(Layer::Ipv6),
        47 => Some(Layer::Gre),
        n if n == icmp => Some(Layer::Icmp),
        _ => None,
    }
}
