// SPDX-License-Identifier: BSD-2-Clause
//! The values that the tests of a rule exclude, field by field, for the index.

use crate::packet::{Family, tcp};
use crate::rule::{Field, Literal, Side, Test};

/// Value of a port field for packets without ports.
pub(crate) const NO_PORT: u32 = 1 << 16;
/// Value of the flags field for packets that have no TCP header.
pub(crate) const NO_FLAGS: u8 = 64;

/// Returns the first field's value: direction and family, which are in the low bits.
pub(crate) fn kind(family: Family, direction: u8) -> u8 {
    family as u8 | (direction & 2) << 1
}

/// Values of a field that a rule allows; `None`: all.
pub(crate) type Keys<K> = Option<Vec<(K, K)>>;

/// Values of each field that a rule allows. It may allow more than the rule's tests do, never less.
#[derive(Debug, Default)]
pub(crate) struct Constraint {
    pub(crate) kind: Keys<u32>,
    pub(crate) proto: Keys<u32>,
    pub(crate) flags: Keys<u32>,
    /// Source and destination.
    pub(crate) ports: [Keys<u32>; 2],
    /// Source and destination.
    pub(crate) v4: [Keys<u32>; 2],
    /// Source and destination.
    pub(crate) v6: [Keys<u128>; 2],
}

impl Constraint {
    pub(crate) fn of(tests: &[Literal]) -> Constraint {
        let mut constraint = Constraint::default();
        let mut rest = tests;
        while !rest.is_empty() {
            let end = rest.iter().position(|literal| !literal.or).map_or(rest.len(), |at| at + 1);
            let (group, after) = rest.split_at(end);
            constraint.add(group);
            rest = after;
        }
        constraint
    }

    /// Restricts the constraint by a group of alternatives.
    fn add(&mut self, group: &[Literal]) {
        restrict(&mut self.kind, union(group, kinds));
        restrict(&mut self.proto, union(group, protocols));
        restrict(&mut self.flags, union(group, flags));
        for (i, side) in [Side::Src, Side::Dst].into_iter().enumerate() {
            restrict(&mut self.ports[i], union(group, |test| ports(test, side)));
            restrict(&mut self.v4[i], union(group, |test| v4(test, side)));
            restrict(&mut self.v6[i], union(group, |test| v6(test, side)));
        }
    }
}

/// The values that a group allows: those that one of its alternatives allows.
fn union<K>(group: &[Literal], of: impl Fn(&Test) -> Keys<K>) -> Keys<K> {
    let mut all = Vec::new();
    for literal in group {
        if literal.negated {
            return None;
        }
        all.extend(of(&literal.test)?);
    }
    Some(all)
}

/// Keeps the shorter of two lists: each alone allows all that both allow.
fn restrict<K>(current: &mut Keys<K>, new: Keys<K>) {
    let better = match (&current, &new) {
        (_, None) => false,
        (None, Some(_)) => true,
        (Some(current), Some(new)) => new.len() < current.len(),
    };
    if better {
        *current = new;
    }
}

/// Directions and families.
fn kinds(test: &Test) -> Keys<u32> {
    let all = [Family::Other, Family::V4, Family::V6];
    let (families, directions) = match test {
        Test::Direction(mask) => (&all[..], *mask),
        Test::Family(family) => (std::slice::from_ref(family), 3),
        Test::Always(false) => (&[][..], 3),
        Test::LastByte(..) | Test::Fragment(..) | Test::Tos(..) | Test::IcmpTypes(_) => (&all[1..2], 3),
        Test::Icmp6Types(_) | Test::Extensions(_) => (&all[2..], 3),
        Test::Proto(_)
        | Test::Table(..)
        | Test::Own(..)
        | Test::Dscp(_)
        | Test::Version(_)
        | Test::TcpFlags(..)
        | Test::Established => (&all[1..], 3),
        Test::Nets(_, nets) => match (nets.v4.is_empty(), nets.v6.is_empty()) {
            (false, true) => (&all[1..2], 3),
            (true, false) => (&all[2..], 3),
            _ => (&all[1..], 3),
        },
        _ => return None,
    };
    let mut keys = Vec::new();
    for direction in [1, 2].into_iter().filter(|direction| directions & direction != 0) {
        keys.extend(families.iter().map(|family| u32::from(kind(*family, direction))).map(|key| (key, key)));
    }
    Some(keys)
}

fn protocols(test: &Test) -> Keys<u32> {
    match test {
        Test::Proto(number) => Some(vec![(u32::from(*number), u32::from(*number))]),
        Test::TcpFlags(..) | Test::Established => {
            Some(vec![(crate::packet::proto::TCP.into(), crate::packet::proto::TCP.into())])
        }
        _ => None,
    }
}

fn flags(test: &Test) -> Keys<u32> {
    let keep = |matches: &dyn Fn(u8) -> bool| {
        Some((0..NO_FLAGS).filter(|flags| matches(*flags)).map(|flags| (u32::from(flags), u32::from(flags))).collect())
    };
    match test {
        Test::TcpFlags(set, clear) => keep(&|flags| flags & set == *set && flags & clear == 0),
        Test::Established => keep(&|flags| flags & (tcp::SYN | tcp::ACK | tcp::RST) != tcp::SYN),
        _ => None,
    }
}

fn ports(test: &Test, side: Side) -> Keys<u32> {
    let wanted = if side == Side::Src { Field::SrcPort } else { Field::DstPort };
    match test {
        Test::Number(field, ranges) if *field == wanted => {
            Some(ranges.iter().map(|&(from, to)| (u32::from(from), u32::from(to))).collect())
        }
        _ => None,
    }
}

fn v4(test: &Test, side: Side) -> Keys<u32> {
    match test {
        Test::Nets(of, nets) if *of == side => nets
            .v4
            .iter()
            .map(|&(net, mask)| {
                // A mask with holes has no single range.
                let contiguous = (!mask).wrapping_add(1) & !mask == 0;
                contiguous.then_some((net, net | !mask))
            })
            .collect(),
        Test::LastByte(of, base, _) if *of == side => Some(vec![(base << 8, base << 8 | 255)]),
        _ => None,
    }
}

fn v6(test: &Test, side: Side) -> Keys<u128> {
    match test {
        Test::Nets(of, nets) if *of == side => Some(nets.v6.iter().map(|&(net, mask)| (net, net | !mask)).collect()),
        Test::LastByte(of, ..) if *of == side => Some(Vec::new()),
        _ => None,
    }
}
