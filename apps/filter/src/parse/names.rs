// SPDX-License-Identifier: BSD-2-Clause
//! Names of protocols, services, codes and flags.

use crate::packet::{Family, extension, proto, tcp};
use crate::rule::fragment_flag;

fn find<T: Copy>(table: &[(&str, T)], name: &str) -> Option<T> {
    table.iter().find(|(known, _)| *known == name).map(|(_, value)| *value)
}

/// Returns the family of a protocol's name (`None` for any), and the name that is listed.
pub(super) fn family(name: &str) -> Option<(Option<Family>, &'static str)> {
    match name {
        "ip" | "all" | "any" => Some((None, "ip")),
        "ip4" | "ipv4" => Some((Some(Family::V4), "ip4")),
        "ip6" | "ipv6" => Some((Some(Family::V6), "ip6")),
        _ => None,
    }
}

const PROTOCOLS: [(&str, u8); 16] = [
    ("icmp", proto::ICMP),
    ("igmp", 2),
    ("ipencap", 4),
    ("tcp", proto::TCP),
    ("udp", proto::UDP),
    ("gre", 47),
    ("esp", proto::ESP),
    ("ah", proto::AH),
    ("ipv6-icmp", proto::ICMP6),
    ("icmp6", proto::ICMP6),
    ("ospf", 89),
    ("pim", 103),
    ("carp", 112),
    ("vrrp", 112),
    ("sctp", proto::SCTP),
    ("udplite", proto::UDPLITE),
];

pub(super) fn protocol(name: &str) -> Option<u8> {
    find(&PROTOCOLS, name)
}

/// Names of protocols, and of families.
pub(super) fn protocols() -> impl Iterator<Item = &'static str> {
    PROTOCOLS.iter().map(|(name, _)| *name).chain(["ip", "all", "ip4", "ipv4", "ip6", "ipv6"])
}

const PORTS: [(&str, u16); 22] = [
    ("ftp-data", 20),
    ("ftp", 21),
    ("ssh", 22),
    ("telnet", 23),
    ("smtp", 25),
    ("domain", 53),
    ("bootps", 67),
    ("bootpc", 68),
    ("tftp", 69),
    ("http", 80),
    ("pop3", 110),
    ("sunrpc", 111),
    ("ntp", 123),
    ("imap", 143),
    ("snmp", 161),
    ("bgp", 179),
    ("ldap", 389),
    ("https", 443),
    ("syslog", 514),
    ("ldaps", 636),
    ("imaps", 993),
    ("pop3s", 995),
];

pub(super) fn port(name: &str) -> Option<u16> {
    find(&PORTS, name)
}

/// Whether a word is a list of ports.
pub(super) fn begins_ports(word: &str) -> bool {
    let first = word.split(',').next().unwrap_or_default();
    first.starts_with(|c: char| c.is_ascii_digit()) || port(first).is_some()
}

/// Returns the code of an ICMP destination unreachable message.
pub(super) fn unreach(name: &str) -> Option<u8> {
    const NAMES: [&str; 16] = [
        "net",
        "host",
        "protocol",
        "port",
        "needfrag",
        "srcfail",
        "net-unknown",
        "host-unknown",
        "isolated",
        "net-prohib",
        "host-prohib",
        "tosnet",
        "toshost",
        "filter-prohib",
        "host-precedence",
        "precedence-cutoff",
    ];
    NAMES.iter().position(|known| *known == name).map(|code| code as u8)
}

/// Returns the code of an ICMPv6 destination unreachable message.
pub(super) fn unreach6(name: &str) -> Option<u8> {
    find(&[("no-route", 0), ("admin-prohib", 1), ("address", 3), ("port", 4)], name)
}

pub(super) const TCP_FLAGS: [(&str, u8); 6] =
    [("fin", tcp::FIN), ("syn", tcp::SYN), ("rst", tcp::RST), ("psh", tcp::PSH), ("ack", tcp::ACK), ("urg", tcp::URG)];

pub(super) const FRAGMENT_FLAGS: [(&str, u8); 4] = [
    ("df", fragment_flag::DF),
    ("mf", fragment_flag::MF),
    ("rf", fragment_flag::RF),
    ("offset", fragment_flag::OFFSET),
];

pub(super) const TOS: [(&str, u8); 5] =
    [("lowdelay", 0x10), ("throughput", 0x08), ("reliability", 0x04), ("mincost", 0x02), ("congestion", 0x01)];

pub(super) const EXTENSIONS: [(&str, u8); 8] = [
    ("frag", extension::FRAG),
    ("hopopt", extension::HOPOPT),
    ("route", extension::ROUTE),
    ("dstopt", extension::DSTOPT),
    ("ah", extension::AH),
    ("esp", extension::ESP),
    ("rthdr0", extension::RTHDR0),
    ("rthdr2", extension::RTHDR2),
];

/// Returns the flags of a list that must be set, and those that must be clear (`!`).
pub(super) fn flags(table: &[(&str, u8)], list: &str) -> Option<(u8, u8)> {
    let (mut set, mut clear) = (0, 0);
    for item in list.split(',') {
        match item.strip_prefix('!') {
            Some(name) => clear |= find(table, name)?,
            None => set |= find(table, item)?,
        }
    }
    Some((set, clear))
}

/// Returns a DSCP value by its name or number.
pub(super) fn dscp(name: &str) -> Option<u8> {
    let digit = |text: &str, max: u8| text.parse::<u8>().ok().filter(|&n| n <= max);
    match name {
        "ef" => Some(46),
        "be" => Some(0),
        "va" => Some(44),
        _ => {
            let class = name.strip_prefix("cs").and_then(|n| digit(n, 7)).map(|n| n * 8);
            let assured = name.strip_prefix("af").and_then(|n| digit(n, 43));
            let assured = assured.filter(|n| (1..=4).contains(&(n / 10)) && (1..=3).contains(&(n % 10)));
            class.or(assured.map(|n| n / 10 * 8 + n % 10 * 2)).or_else(|| digit(name, 63))
        }
    }
}

/// Returns an EtherType by its name or its number in hexadecimal.
pub(super) fn ethertype(name: &str) -> Option<u16> {
    const TABLE: [(&str, u16); 8] = [
        ("ip", 0x0800),
        ("ipv4", 0x0800),
        ("ipv6", 0x86dd),
        ("arp", 0x0806),
        ("rarp", 0x8035),
        ("vlan", 0x8100),
        ("pppoe_disc", 0x8863),
        ("pppoe_sess", 0x8864),
    ];
    find(&TABLE, name).or_else(|| u16::from_str_radix(name.strip_prefix("0x").unwrap_or(name), 16).ok())
}
