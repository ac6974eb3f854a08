//! The learning table: behind which port of a switch an address was last seen.
//!
//! ```text
//! bucket, one cache line:   | entry | entry | entry | entry | entry | entry | entry | entry |
//! entry, one word:          0, or bits 0..48 address, bits 48..56 port + 1
//! ```
//! Bounded, and fair: where a bucket is full a new address takes the place of one of the port that has the most addresses
//! in the whole table, and of none that has fewer than its own. Whoever floods the table with addresses displaces its own.
//!
//! Threads look up without a lock; what changes the table takes one, and moves the generation, so that who remembers an
//! answer knows when to ask again.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering::*};
use std::sync::{Mutex, PoisonError};

/// Ports of a switch: numbers `0..PORTS`.
pub const PORTS: usize = 254;
/// Addresses that the table holds at most.
pub const ENTRIES: usize = BUCKETS * WAYS;

const WAYS: usize = 8;
const BUCKETS: usize = 512;
const ADDRESS: u64 = (1 << 48) - 1;

/// An Ethernet address.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Mac(u64);

impl Mac {
    /// The address in six bytes, in the order of the wire.
    #[inline(always)]
    pub fn new(bytes: [u8; 6]) -> Mac {
        let [a, b, c, d, e, f] = bytes;
        Mac(u64::from_le_bytes([a, b, c, d, e, f, 0, 0]))
    }

    /// Destination and source of the frame that starts with `header`.
    #[inline(always)]
    pub fn pair(header: [u8; 16]) -> (Mac, Mac) {
        let whole = u128::from_le_bytes(header);
        (Mac(whole as u64 & ADDRESS), Mac((whole >> 48) as u64 & ADDRESS))
    }

    /// Whether it names a group of stations, or all.
    #[inline(always)]
    pub fn is_multicast(self) -> bool {
        self.0 & 1 != 0
    }

    #[inline(always)]
    fn bucket(self) -> usize {
        (self.0.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> (64 - BUCKETS.ilog2())) as usize
    }

    #[inline(always)]
    fn at(self, port: u8) -> u64 {
        self.0 | (u64::from(port) + 1) << 48
    }
}

#[repr(align(64))]
struct Bucket([AtomicU64; WAYS]);

/// See the module.
pub struct Table {
    buckets: Box<[Bucket]>,
    /// Addresses that each port has.
    counts: Box<[AtomicU32]>,
    generation: AtomicU64,
    writer: Mutex<()>,
}

impl Default for Table {
    fn default() -> Table {
        Table::new()
    }
}

impl Table {
    /// An empty table.
    pub fn new() -> Table {
        let bucket = || Bucket(std::array::from_fn(|_| AtomicU64::new(0)));
        Table {
            buckets: (0..BUCKETS).map(|_| bucket()).collect(),
            counts: (0..PORTS).map(|_| AtomicU32::new(0)).collect(),
            generation: AtomicU64::new(0),
            writer: Mutex::new(()),
        }
    }

    /// Moves whenever an answer of [`Table::port_of`] may have changed.
    #[inline(always)]
    pub fn generation(&self) -> u64 {
        self.generation.load(Acquire)
    }

    /// The port behind which `mac` was last seen.
    #[inline]
    pub fn port_of(&self, mac: Mac) -> Option<u8> {
        let entries = self.buckets[mac.bucket()].0.iter().map(|entry| entry.load(Relaxed));
        entries.into_iter().find(|entry| entry & ADDRESS == mac.0 && *entry != 0).map(port_in)
    }

    /// `mac` was seen behind `port`.
    #[inline]
    pub fn learn(&self, mac: Mac, port: u8) {
        if self.port_of(mac) != Some(port) {
            self.change(mac, port);
        }
    }

    /// Moves an address, or makes a place for a new one.
    #[cold]
    fn change(&self, mac: Mac, port: u8) {
        let _writer = self.writer.lock().unwrap_or_else(PoisonError::into_inner);
        let bucket = &self.buckets[mac.bucket()].0;
        let has = |port: u8| self.counts[usize::from(port)].load(Relaxed);
        let known = bucket.iter().find(|entry| {
            let entry = entry.load(Relaxed);
            entry != 0 && entry & ADDRESS == mac.0
        });
        let place = known.or_else(|| bucket.iter().find(|entry| entry.load(Relaxed) == 0)).or_else(|| {
            let richest = bucket.iter().max_by_key(|entry| has(port_in(entry.load(Relaxed))))?;
            (has(port_in(richest.load(Relaxed))) >= has(port)).then_some(richest)
        });
        let Some(place) = place else { return };
        match place.load(Relaxed) {
            0 => {}
            before => {
                self.counts[usize::from(port_in(before))].fetch_sub(1, Relaxed);
            }
        }
        place.store(mac.at(port), Relaxed);
        self.counts[usize::from(port)].fetch_add(1, Relaxed);
        self.generation.fetch_add(1, Release);
    }

    /// Forgets all addresses of a port, which has gone.
    pub fn forget(&self, port: u8) {
        let _writer = self.writer.lock().unwrap_or_else(PoisonError::into_inner);
        for entry in self.buckets.iter().flat_map(|bucket| &bucket.0) {
            let was = entry.load(Relaxed);
            if was != 0 && port_in(was) == port {
                entry.store(0, Relaxed);
            }
        }
        self.counts[usize::from(port)].store(0, Relaxed);
        self.generation.fetch_add(1, Release);
    }

    /// How many addresses it holds.
    pub fn len(&self) -> usize {
        self.counts.iter().map(|count| count.load(Relaxed) as usize).sum()
    }

    /// Whether it holds none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// The port in an entry that is not 0.
#[inline(always)]
fn port_in(entry: u64) -> u8 {
    ((entry >> 48) as u8).wrapping_sub(1)
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use proptest::prelude::*;

    use super::*;

    fn mac(n: u64) -> Mac {
        let [a, b, c, d, ..] = n.to_le_bytes();
        Mac::new([2, 0, d, c, b, a])
    }

    #[test]
    fn addresses_are_read_in_the_order_of_the_wire() {
        let header = [1, 2, 3, 4, 5, 6, 0xf0, 8, 9, 10, 11, 0xff, 0xee, 0xee, 0xee, 0xee];
        assert_eq!(Mac::pair(header), (Mac::new([1, 2, 3, 4, 5, 6]), Mac::new([0xf0, 8, 9, 10, 11, 0xff])));
        assert!(Mac::new([1, 0, 0, 0, 0, 0]).is_multicast());
        assert!(!Mac::new([2, 1, 1, 1, 1, 1]).is_multicast());
    }

    proptest! {
        /// As long as no bucket overflows the table is a map from address to the port that was heard last.
        #[test]
        fn it_is_a_map(steps in prop::collection::vec((0..3u8, 0..200u64, 0..254u8), 1..100)) {
            let (table, mut oracle) = (Table::new(), HashMap::new());
            for (what, n, port) in steps {
                let before = (table.generation(), table.port_of(mac(n)));
                match what {
                    0 => {
                        table.forget(port);
                        oracle.retain(|_, known| *known != port);
                    }
                    _ => {
                        table.learn(mac(n), port);
                        oracle.insert(n, port);
                    }
                }
                prop_assert!(table.generation() != before.0 || table.port_of(mac(n)) == before.1);
                for n in 0..200 {
                    prop_assert_eq!(table.port_of(mac(n)), oracle.get(&n).copied());
                }
                prop_assert_eq!(table.len(), oracle.len());
            }
        }
    }

    #[test]
    fn the_address_of_zeros_is_one_like_any_other() {
        let table = Table::new();
        let zero = Mac::new([0; 6]);
        assert_eq!(table.port_of(zero), None);
        table.learn(zero, 0);
        assert_eq!((table.port_of(zero), table.len()), (Some(0), 1));
        table.learn(zero, 253);
        assert_eq!(table.port_of(zero), Some(253));
        table.forget(253);
        assert_eq!((table.port_of(zero), table.is_empty()), (None, true));
    }

    #[test]
    fn a_million_addresses_displace_their_own() {
        let table = Table::new();
        let flood = |from: u64| (from..from + 500_000).for_each(|n| table.learn(mac(1000 + n), 7));
        (0..100).for_each(|n| table.learn(mac(n), 10 + n as u8));
        flood(0);
        // Who comes in the middle of it is heard as well.
        (100..200).for_each(|n| table.learn(mac(n), 10 + n as u8));
        flood(500_000);
        (0..200).for_each(|n| assert_eq!(table.port_of(mac(n)), Some(10 + n as u8), "host {n}"));
        assert!(table.len() <= ENTRIES);
        let counted = (0..254).map(|port| table.counts[port].load(Relaxed)).sum::<u32>();
        let there = table.buckets.iter().flat_map(|b| &b.0).filter(|e| e.load(Relaxed) != 0).count();
        assert_eq!(counted as usize, there);
    }
}
