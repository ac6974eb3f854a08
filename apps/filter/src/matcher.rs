// SPDX-License-Identifier: BSD-2-Clause
//! Tests of a rule, on the headers of one packet.

use crate::packet::{Family, Headers, proto, tcp};
use crate::rule::{Field, Literal, Side, Test, fragment_flag};
use crate::table::Table;

/// A packet as the tests see it.
#[derive(Clone, Copy)]
pub(crate) struct Subject<'a> {
    pub(crate) headers: &'a Headers,
    /// 1: from the first port to the second, 2: the other way.
    pub(crate) direction: u8,
    /// Tags that earlier rules have set.
    pub(crate) tags: &'a [u16],
    /// Type of service, as earlier rules have left it.
    pub(crate) tos: u8,
}

/// Whether all groups of tests match. `argument` gets the value of the last table entry that was found.
#[inline]
pub(crate) fn matches(
    tests: &[Literal],
    subject: Subject<'_>,
    tables: &[Option<std::sync::Arc<Table>>],
    argument: &mut u32,
) -> bool {
    let mut rest = tests.iter();
    while let Some(literal) = rest.next() {
        let mut literal = literal;
        loop {
            let alternatives = literal.or;
            if test(&literal.test, subject, tables, argument) != literal.negated {
                // The other alternatives are not tested.
                if alternatives {
                    rest.by_ref().find(|other| !other.or);
                }
                break;
            }
            match rest.next() {
                Some(next) if alternatives => literal = next,
                _ => return false,
            }
        }
    }
    true
}

fn in_ranges(ranges: &[(u16, u16)], number: u16) -> bool {
    ranges.iter().any(|&(from, to)| (from..=to).contains(&number))
}

#[inline]
fn test(test: &Test, subject: Subject<'_>, tables: &[Option<std::sync::Arc<Table>>], argument: &mut u32) -> bool {
    let h = subject.headers;
    match test {
        Test::Always(value) => *value,
        Test::Direction(mask) => mask & subject.direction != 0,
        Test::Proto(number) => h.family != Family::Other && h.proto == *number,
        Test::Family(family) => h.family == *family,
        Test::Nets(side, nets) => match h.family {
            Family::V4 => {
                let address = if *side == Side::Src { h.src4 } else { h.dst4 };
                nets.v4.iter().any(|&(net, mask)| address & mask == net)
            }
            Family::V6 => {
                let address = if *side == Side::Src { h.src6 } else { h.dst6 };
                nets.v6.iter().any(|&(net, mask)| address & mask == net)
            }
            Family::Other => false,
        },
        Test::LastByte(side, base, set) => {
            let address = if *side == Side::Src { h.src4 } else { h.dst4 };
            let byte = address as usize & 255;
            h.family == Family::V4 && address >> 8 == *base && set[byte / 64] >> (byte % 64) & 1 != 0
        }
        Test::Table(side, table, wanted) => {
            let Some(value) = find(tables, *table, h, *side) else { return false };
            let matches = wanted.is_none_or(|wanted| wanted == value);
            if matches {
                *argument = value;
            }
            matches
        }
        Test::Own(side, table) => find(tables, *table, h, *side).is_some(),
        Test::Number(field, ranges) => number(*field, h).is_some_and(|number| in_ranges(ranges, number)),
        Test::LaterFragment => h.frag_offset != 0,
        Test::Fragment(set, clear) => {
            let bit = |on: bool, bit: u8| if on { bit } else { 0 };
            let flags = bit(h.dont_fragment, fragment_flag::DF)
                | bit(h.more_fragments, fragment_flag::MF)
                | bit(h.reserved_flag, fragment_flag::RF)
                | bit(h.frag_offset != 0, fragment_flag::OFFSET);
            h.family == Family::V4 && flags & set == *set && flags & clear == 0
        }
        Test::Tos(set, clear) => h.family == Family::V4 && subject.tos & set == *set && subject.tos & clear == 0,
        Test::Dscp(map) => h.family != Family::Other && map >> (subject.tos >> 2) & 1 != 0,
        Test::Version(version) => match h.family {
            Family::V4 => *version == 4,
            Family::V6 => *version == 6,
            Family::Other => false,
        },
        Test::TcpFlags(set, clear) => h.is_tcp() && h.tcp_flags & set == *set && h.tcp_flags & clear == 0,
        Test::Established => h.is_tcp() && h.tcp_flags & (tcp::SYN | tcp::ACK | tcp::RST) != tcp::SYN,
        Test::TcpSeq(number) => h.is_tcp() && h.tcp_seq == *number,
        Test::TcpAck(number) => h.is_tcp() && h.tcp_ack == *number,
        Test::IcmpTypes(map) => {
            h.family == Family::V4
                && h.proto == proto::ICMP
                && h.has_transport
                && h.icmp_type < 32
                && map >> h.icmp_type & 1 != 0
        }
        Test::Icmp6Types(map) => {
            let (word, bit) = (usize::from(h.icmp_type / 64), h.icmp_type % 64);
            h.family == Family::V6 && h.proto == proto::ICMP6 && h.has_transport && map[word] >> bit & 1 != 0
        }
        Test::Mac(addresses) => {
            let [(dst, dst_mask), (src, src_mask)] = **addresses;
            h.dst_mac & dst_mask == dst && h.src_mac & src_mask == src
        }
        Test::Tagged(ranges) => subject.tags.iter().any(|&tag| in_ranges(ranges, tag)),
        Test::Extensions(bits) => h.extensions & bits != 0,
    }
}

/// Returns the value of the entry of a table that has an address of the packet.
#[inline]
fn find(tables: &[Option<std::sync::Arc<Table>>], table: u16, h: &Headers, side: Side) -> Option<u32> {
    let table = tables.get(usize::from(table))?.as_ref()?;
    match (h.family, side) {
        (Family::V4, Side::Src) => table.get4(h.src4),
        (Family::V4, Side::Dst) => table.get4(h.dst4),
        (Family::V6, Side::Src) => table.get6(h.src6),
        (Family::V6, Side::Dst) => table.get6(h.dst6),
        (Family::Other, _) => None,
    }
}

fn number(field: Field, h: &Headers) -> Option<u16> {
    match field {
        Field::SrcPort if h.has_ports() => Some(h.src_port),
        Field::DstPort if h.has_ports() => Some(h.dst_port),
        Field::IpLen if h.family != Family::Other => Some(h.ip_len),
        Field::IpId if h.family == Family::V4 => Some(h.ip_id),
        Field::IpTtl if h.family == Family::V4 => Some(h.ttl.into()),
        Field::TcpWindow if h.is_tcp() => Some(h.tcp_window),
        Field::TcpDataLen if h.is_tcp() => Some(h.tcp_data),
        Field::EtherType => Some(h.ethertype),
        _ => None,
    }
}
