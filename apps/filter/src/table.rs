// SPDX-License-Identifier: BSD-2-Clause
//! Tables of addresses: the longest prefix that contains an address, with its value.
//!
//! One hash table for each prefix length that occurs, searched from the longest: a lookup costs a cache miss for each
//! of them, whatever their number of entries.

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};
use std::net::IpAddr;

/// Multiplies and folds: addresses are distributed well enough. A table whose entries senders choose has a secret seed,
/// so that they cannot find many with one hash; of others the owner chooses the entries.
#[derive(Clone, Copy, Default)]
pub(crate) struct AddressHasher(u64);

impl AddressHasher {
    #[inline(always)]
    pub(crate) fn with_seed(seed: u64) -> AddressHasher {
        AddressHasher(seed)
    }
}

impl Hasher for AddressHasher {
    fn write(&mut self, bytes: &[u8]) {
        bytes.iter().for_each(|&byte| self.write_u64(byte.into()));
    }

    #[inline(always)]
    fn write_u32(&mut self, value: u32) {
        self.write_u64(value.into());
    }

    #[inline(always)]
    fn write_u64(&mut self, value: u64) {
        let product = u128::from(self.0 ^ value ^ 0x9e37_79b9_7f4a_7c15) * 0xd6e8_feb8_6659_fd93;
        self.0 = product as u64 ^ (product >> 64) as u64;
    }

    #[inline(always)]
    fn write_u128(&mut self, value: u128) {
        self.write_u64(value as u64);
        self.write_u64((value >> 64) as u64);
    }

    #[inline(always)]
    fn finish(&self) -> u64 {
        self.0
    }
}

type Map<K> = HashMap<K, u32, BuildHasherDefault<AddressHasher>>;

/// Prefixes of one family.
#[derive(Clone, Debug, Default)]
struct Prefixes<K> {
    /// Prefix length and the prefixes of it, the longest first. Without empty maps.
    levels: Vec<(u8, Map<K>)>,
}

impl<K: Copy + Eq + std::hash::Hash + Masked> Prefixes<K> {
    fn insert(&mut self, key: K, bits: u8, value: u32) -> Option<u32> {
        let at = match self.levels.binary_search_by(|(level, _)| bits.cmp(level)) {
            Ok(at) => at,
            Err(at) => {
                self.levels.insert(at, (bits, Map::default()));
                at
            }
        };
        self.levels[at].1.insert(key.masked(bits), value)
    }

    fn remove(&mut self, key: K, bits: u8) -> Option<u32> {
        let at = self.levels.binary_search_by(|(level, _)| bits.cmp(level)).ok()?;
        let removed = self.levels[at].1.remove(&key.masked(bits));
        if self.levels[at].1.is_empty() {
            self.levels.remove(at);
        }
        removed
    }

    #[inline]
    fn get(&self, key: K) -> Option<u32> {
        self.levels.iter().find_map(|(bits, map)| map.get(&key.masked(*bits)).copied())
    }
}

/// An address whose first bits are its prefix.
trait Masked {
    fn masked(self, bits: u8) -> Self;
}

impl Masked for u32 {
    #[inline(always)]
    fn masked(self, bits: u8) -> u32 {
        self & u32::MAX.checked_shl(32 - u32::from(bits)).unwrap_or(0)
    }
}

impl Masked for u128 {
    #[inline(always)]
    fn masked(self, bits: u8) -> u128 {
        self & u128::MAX.checked_shl(128 - u32::from(bits)).unwrap_or(0)
    }
}

/// An address and the length of its prefix: at most 32 bits of an IPv4 address, 128 of an IPv6 address.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Prefix {
    /// The address; bits after the prefix are 0.
    pub address: IpAddr,
    /// Bits of the prefix.
    pub bits: u8,
}

impl Prefix {
    /// Parses `ADDRESS` or `ADDRESS/BITS`.
    pub fn parse(text: &str) -> Option<Prefix> {
        let (address, bits) = text.split_once('/').map_or((text, None), |(address, bits)| (address, Some(bits)));
        let address: IpAddr = address.parse().ok()?;
        let max = if address.is_ipv4() { 32 } else { 128 };
        let bits = bits.map_or(Some(max), |bits| bits.parse().ok())?;
        let address = match address {
            _ if bits > max => return None,
            IpAddr::V4(address) => IpAddr::V4(u32::from(address).masked(bits).into()),
            IpAddr::V6(address) => IpAddr::V6(u128::from(address).masked(bits).into()),
        };
        Some(Prefix { address, bits })
    }
}

impl std::fmt::Display for Prefix {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}/{}", self.address, self.bits)
    }
}

/// A table of prefixes of both families, each with a value.
#[derive(Clone, Debug, Default)]
pub struct Table {
    v4: Prefixes<u32>,
    v6: Prefixes<u128>,
}

impl Table {
    /// Adds a prefix, or changes its value. Returns the previous value.
    pub fn insert(&mut self, prefix: Prefix, value: u32) -> Option<u32> {
        match prefix.address {
            IpAddr::V4(address) => self.v4.insert(address.into(), prefix.bits, value),
            IpAddr::V6(address) => self.v6.insert(address.into(), prefix.bits, value),
        }
    }

    /// Removes a prefix. Returns its value.
    pub fn remove(&mut self, prefix: Prefix) -> Option<u32> {
        match prefix.address {
            IpAddr::V4(address) => self.v4.remove(address.into(), prefix.bits),
            IpAddr::V6(address) => self.v6.remove(address.into(), prefix.bits),
        }
    }

    /// Returns the value of the longest prefix that contains the address.
    #[inline]
    pub fn get4(&self, address: u32) -> Option<u32> {
        self.v4.get(address)
    }

    /// As [`Table::get4`].
    #[inline]
    pub fn get6(&self, address: u128) -> Option<u32> {
        self.v6.get(address)
    }

    /// Returns the number of prefixes.
    pub fn len(&self) -> usize {
        let v4: usize = self.v4.levels.iter().map(|(_, map)| map.len()).sum();
        v4 + self.v6.levels.iter().map(|(_, map)| map.len()).sum::<usize>()
    }

    /// Whether the table has no prefix.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns all prefixes with their values, in order.
    pub fn entries(&self) -> Vec<(Prefix, u32)> {
        let v4 = self.v4.levels.iter().flat_map(|(bits, map)| {
            map.iter().map(|(&key, &value)| (Prefix { address: IpAddr::V4(key.into()), bits: *bits }, value))
        });
        let v6 = self.v6.levels.iter().flat_map(|(bits, map)| {
            map.iter().map(|(&key, &value)| (Prefix { address: IpAddr::V6(key.into()), bits: *bits }, value))
        });
        let mut all: Vec<_> = v4.chain(v6).collect();
        all.sort_unstable();
        all
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn prefix(text: &str) -> Prefix {
        Prefix::parse(text).unwrap_or_else(|| panic!("{text}"))
    }

    #[test]
    fn the_longest_prefix_wins() {
        let mut table = Table::default();
        for (text, value) in [("0.0.0.0/0", 1), ("10.0.0.0/8", 2), ("10.1.2.3", 3), ("10.1.0.0/16", 4)] {
            assert_eq!(table.insert(prefix(text), value), None);
        }
        table.insert(prefix("2001:db8::/32"), 5);
        table.insert(prefix("::/0"), 6);
        let v4 = |text: &str| table.get4(text.parse::<std::net::Ipv4Addr>().unwrap().into());
        let v6 = |text: &str| table.get6(text.parse::<std::net::Ipv6Addr>().unwrap().into());
        assert_eq!(
            [v4("10.1.2.3"), v4("10.1.2.4"), v4("10.2.0.0"), v4("11.0.0.0")],
            [Some(3), Some(4), Some(2), Some(1)]
        );
        assert_eq!([v6("2001:db8::7"), v6("2001:db9::")], [Some(5), Some(6)]);
        let texts: Vec<String> = table.entries().iter().map(|(prefix, value)| format!("{prefix} {value}")).collect();
        assert_eq!(
            texts,
            ["0.0.0.0/0 1", "10.0.0.0/8 2", "10.1.0.0/16 4", "10.1.2.3/32 3", "::/0 6", "2001:db8::/32 5"]
        );
        assert_eq!(
            (table.remove(prefix("10.1.2.3")), table.remove(prefix("10.1.2.3")), table.len()),
            (Some(3), None, 5)
        );
    }

    #[test]
    fn prefixes_are_parsed_or_refused() {
        assert_eq!(prefix("10.1.2.3/8").to_string(), "10.0.0.0/8");
        for text in ["", "10.0.0.1/33", "::/129", "10.0.0", "10.0.0.1/x", "10.0.0.1/-1", "a"] {
            assert_eq!(Prefix::parse(text), None, "{text}");
        }
    }

    #[test]
    fn a_million_addresses_are_found() {
        let mut table = Table::default();
        for i in 0..1_000_000 {
            table.insert(Prefix { address: IpAddr::V4((0x0a00_0000 + i * 3).into()), bits: 32 }, i);
        }
        assert_eq!(table.len(), 1_000_000);
        for i in (0..1_000_000).step_by(997) {
            assert_eq!((table.get4(0x0a00_0000 + i * 3), table.get4(0x0a00_0001 + i * 3)), (Some(i), None));
        }
    }
}
