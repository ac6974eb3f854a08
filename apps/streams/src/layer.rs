// SPDX-License-Identifier: BSD-2-Clause
//! The layers of a packet: names (also scapy's), default headers, fields, and what may follow.

use crate::field::Kind;

/// A kind of header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Layer {
    Ethernet,
    Vlan,
    QinQ,
    Mpls,
    Ipv4,
    Ipv6,
    Udp,
    Tcp,
    Icmp,
    Gre,
    Vxlan,
}

use Layer::{Ethernet, Gre, Icmp, Ipv4, Ipv6, Mpls, QinQ, Tcp, Udp, Vlan, Vxlan};

/// A field of a header: `bits` bits from bit `at` on.
pub(crate) struct Field {
    pub(crate) name: &'static str,
    pub(crate) at: usize,
    pub(crate) bits: u32,
    pub(crate) kind: Kind,
}

const fn number(name: &'static str, at: usize, bits: u32) -> Field {
    Field { name, at, bits, kind: Kind::Number }
}

const fn address(name: &'static str, at: usize, kind: Kind) -> Field {
    let bits = match kind {
        Kind::Mac => 48,
        Kind::Ipv6 => 128,
        Kind::Number | Kind::Ipv4 => 32,
    };
    Field { name, at, bits, kind }
}

/// The UDP port of VXLAN.
pub(crate) const VXLAN_PORT: u16 = 4789;
/// A protocol number without meaning, for packets that end with an IP header (RFC 3692).
const IP_EXPERIMENT: u8 = 253;
/// The same for Ethernet (IEEE 802, local experiments).
const ETHERTYPE_EXPERIMENT: u16 = 0x88b5;
/// GRE's protocol of Ethernet frames.
pub(crate) const TRANSPARENT_ETHERNET: u16 = 0x6558;

impl Layer {
    pub(crate) const ALL: [Layer; 11] = [Ethernet, Vlan, QinQ, Mpls, Ipv4, Ipv6, Udp, Tcp, Icmp, Gre, Vxlan];

    /// Returns the names of the layer, the first for messages.
    pub(crate) fn names(self) -> &'static [&'static str] {
        match self {
            Ethernet => &["ether", "Ether", "ethernet"],
            Vlan => &["vlan", "Dot1Q"],
            QinQ => &["qinq", "Dot1AD"],
            Mpls => &["mpls", "MPLS"],
            Ipv4 => &["ip", "IP", "ipv4"],
            Ipv6 => &["ipv6", "IPv6"],
            Udp => &["udp", "UDP"],
            Tcp => &["tcp", "TCP"],
            Icmp => &["icmp", "ICMP"],
            Gre => &["gre", "GRE"],
            Vxlan => &["vxlan", "VXLAN"],
        }
    }

    pub(crate) fn by_name(name: &str) -> Option<Layer> {
        Layer::ALL.into_iter().find(|layer| layer.names().contains(&name))
    }

    /// Returns the header with its defaults. Lengths, checksums and the protocol that follows are filled in later.
    pub(crate) fn header(self) -> &'static [u8] {
        match self {
            Ethernet => &[0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 2, 0, 0, 0, 0, 1, 0, 0],
            Vlan | QinQ => &[0, 1, 0, 0],
            Mpls => &[0, 1, 0, 64],
            // "Don't fragment", which permits identification 0.
            Ipv4 => &[0x45, 0, 0, 0, 0, 0, 0x40, 0, 64, 0, 0, 0, 10, 0, 0, 1, 10, 1, 0, 1],
            Ipv6 => &[
                0x60, 0, 0, 0, 0, 0, 0, 64, 0xfd, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0xfd, 0, 0, 0, 0, 0, 0,
                0, 0, 0, 0, 0, 0, 0, 0, 2,
            ],
            Udp => &[4, 210, 4, 210, 0, 0, 0, 0],
            Tcp => &[4, 210, 4, 210, 0, 0, 0, 0, 0, 0, 0, 0, 0x50, 0x10, 0xff, 0xff, 0, 0, 0, 0],
            Icmp => &[8, 0, 0, 0, 0, 1, 0, 0],
            Gre => &[0, 0, 0, 0],
            Vxlan => &[8, 0, 0, 0, 0, 0, 1, 0],
        }
    }

    /// Returns the fields that a file may set. Scapy's names, where it has the field.
    pub(crate) fn fields(self) -> &'static [Field] {
        const ETHERNET: &[Field] =
            &[address("dst", 0, Kind::Mac), address("src", 48, Kind::Mac), number("type", 96, 16)];
        const TAG: &[Field] =
            &[number("prio", 0, 3), number("dei", 3, 1), number("vlan", 4, 12), number("type", 16, 16)];
        const MPLS: &[Field] = &[number("label", 0, 20), number("cos", 20, 3), number("ttl", 24, 8)];
        const IPV4: &[Field] = &[
            address("src", 96, Kind::Ipv4),
            address("dst", 128, Kind::Ipv4),
            number("ttl", 64, 8),
            number("tos", 8, 8),
            number("id", 32, 16),
            number("proto", 72, 8),
        ];
        const IPV6: &[Field] = &[
            address("src", 64, Kind::Ipv6),
            address("dst", 192, Kind::Ipv6),
            number("hlim", 56, 8),
            number("tc", 4, 8),
            number("fl", 12, 20),
            number("nh", 48, 8),
        ];
        const UDP: &[Field] = &[number("sport", 0, 16), number("dport", 16, 16)];
        const TCP: &[Field] = &[
            number("sport", 0, 16),
            number("dport", 16, 16),
            number("seq", 32, 32),
            number("ack", 64, 32),
            number("flags", 104, 8),
            number("window", 112, 16),
        ];
        const ICMP: &[Field] =
            &[number("type", 0, 8), number("code", 8, 8), number("id", 32, 16), number("seq", 48, 16)];
        const GRE: &[Field] = &[number("proto", 16, 16)];
        const VXLAN: &[Field] = &[number("vni", 32, 24)];
        match self {
            Ethernet => ETHERNET,
            Vlan | QinQ => TAG,
            Mpls => MPLS,
            Ipv4 => IPV4,
            Ipv6 => IPV6,
            Udp => UDP,
            Tcp => TCP,
            Icmp => ICMP,
            Gre => GRE,
            Vxlan => VXLAN,
        }
    }

    pub(crate) fn may_precede(self, next: Layer) -> bool {
        let next_is = |list: &[Layer]| list.contains(&next);
        match self {
            Ethernet | Vlan | QinQ => next_is(&[Vlan, QinQ, Mpls, Ipv4, Ipv6]),
            Mpls => next_is(&[Mpls, Ipv4, Ipv6, Ethernet]),
            Ipv4 | Ipv6 => next_is(&[Udp, Tcp, Icmp, Gre, Ipv4, Ipv6]),
            Gre => next_is(&[Ethernet, Ipv4, Ipv6, Mpls]),
            Udp => next_is(&[Vxlan]),
            Vxlan => next_is(&[Ethernet]),
            Tcp | Icmp => false,
        }
    }

    /// Writes into the header at the start of `bytes` what says that `next` follows.
    pub(crate) fn link(self, bytes: &mut [u8], next: Option<Layer>) {
        let ethertype = match next {
            Some(Vlan) => 0x8100,
            Some(QinQ) => 0x88a8,
            Some(Mpls) => 0x8847,
            Some(Ipv4) => 0x0800,
            Some(Ipv6) => 0x86dd,
            Some(Ethernet) => TRANSPARENT_ETHERNET,
            _ => ETHERTYPE_EXPERIMENT,
        };
        let protocol = match next {
            Some(Udp) => 17,
            Some(Tcp) => 6,
            // ICMPv6, an echo request.
            Some(Icmp) if self == Ipv6 => 58,
            Some(Icmp) => 1,
            Some(Gre) => 47,
            Some(Ipv4) => 4,
            Some(Ipv6) => 41,
            _ => IP_EXPERIMENT,
        };
        match self {
            Ethernet => bytes[12..14].copy_from_slice(&u16::to_be_bytes(ethertype)),
            Vlan | QinQ | Gre => bytes[2..4].copy_from_slice(&u16::to_be_bytes(ethertype)),
            // The bottom of the stack.
            Mpls => bytes[2] = bytes[2] & 0xfe | u8::from(next != Some(Mpls)),
            Ipv4 => bytes[9] = protocol,
            Ipv6 => bytes[6] = protocol,
            Udp if next == Some(Vxlan) => bytes[2..4].copy_from_slice(&VXLAN_PORT.to_be_bytes()),
            Udp | Tcp | Icmp | Vxlan => {}
        }
    }
}
