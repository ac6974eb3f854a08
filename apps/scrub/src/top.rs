// SPDX-License-Identifier: BSD-2-Clause
//! The sources of most dropped packets: a sketch of fixed size (space-saving, in sets). A source that takes the place
//! of another one begins with its count, so that no count is too low; `error` is how much too high it may be.

use std::net::IpAddr;

use tool_common::mix;
use unetmap_filter::{Family, Headers};

use crate::reason::Sum;

const SETS: usize = 1024;
const WAYS: usize = 8;
/// Sources in a report.
const REPORTED: usize = 10;

/// A source, and what of it was dropped.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Source {
    /// IPv4's are those that IPv6 maps.
    address: u128,
    pub(crate) sum: Sum,
    pub(crate) error: u64,
}

impl Source {
    pub(crate) fn address(&self) -> IpAddr {
        IpAddr::V6(self.address.into()).to_canonical()
    }
}

/// The sketch.
#[derive(Debug)]
pub(crate) struct Top {
    sets: Box<[[Source; WAYS]]>,
    secret: u64,
}

/// Returns the source of a packet, if it has one.
pub(crate) fn source(headers: &Headers) -> Option<u128> {
    match headers.family {
        Family::V4 => Some(0xffff_0000_0000 | u128::from(headers.src4)),
        Family::V6 => Some(headers.src6),
        Family::Other => None,
    }
}

impl Top {
    pub(crate) fn new(secret: u64) -> Top {
        Top { sets: vec![[Source::default(); WAYS]; SETS].into(), secret }
    }

    /// Counts a dropped packet of a source.
    pub(crate) fn count(&mut self, address: u128, bytes: u64) {
        let hash = mix(mix(address as u64 ^ self.secret).wrapping_add((address >> 64) as u64));
        let set = &mut self.sets[(hash >> 32) as usize & (SETS - 1)];
        let found = set.iter().position(|source| source.address == address);
        let place = found.unwrap_or_else(|| (0..WAYS).min_by_key(|&i| set[i].sum.packets).unwrap_or(0));
        let source = &mut set[place];
        if found.is_none() {
            source.error = source.sum.packets;
            source.address = address;
        }
        source.sum.add(Sum { packets: 1, bytes });
    }

    /// Returns the sources of most packets.
    pub(crate) fn first(&self) -> Vec<Source> {
        let mut all: Vec<Source> =
            self.sets.iter().flatten().copied().filter(|source| source.sum.packets > 0).collect();
        all.sort_unstable_by_key(|source| (std::cmp::Reverse(source.sum.packets), source.address));
        all.truncate(REPORTED);
        all
    }

    /// Forgets all, for the next attack.
    pub(crate) fn clear(&mut self) {
        self.sets.fill([Source::default(); WAYS]);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Among a million random sources, the heavy ones come first, with counts of at least what they sent.
    #[test]
    fn heavy_sources_are_found_among_many() {
        let mut top = Top::new(3);
        for i in 0..1_000_000u64 {
            top.count(u128::from(mix(i)), 60);
            if i % 100 == 0 {
                (0..i % 500 / 100 + 1).for_each(|heavy| top.count(u128::from(heavy) + 1, 60));
            }
        }
        let first = top.first();
        let heavy: Vec<u128> = first[..5].iter().map(|source| source.address).collect();
        assert_eq!(heavy, [1, 2, 3, 4, 5]);
        assert!(first[0].sum.packets >= 10_000 && first[0].sum.packets - first[0].error <= 10_000, "{first:?}");
        top.clear();
        assert!(top.first().is_empty());
    }
}
