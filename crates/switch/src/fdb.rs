// SPDX-License-Identifier: BSD-2-Clause
//! The forwarding database (MAC table) of a switch: the port behind which each address was last seen.
//!
//! ```text
//! bucket, one cache line:   | entry | entry | entry | entry | entry | entry | entry | entry |
//! entry, one word:          0, or bits 0..39 rest of the address, 39..51 VLAN, 51..56 epoch, 56..64 port + 1
//! ```
//! The 48 bits of an address are scrambled by an invertible multiplication; the upper ones, at least nine, select the
//! bucket, and the lower 39 are stored in the entry. Addresses are learned for each VLAN separately: learning one in a
//! VLAN changes no other VLAN.
//!
//! The table is bounded by its size, which the daemon's owner may configure, and eviction is fair: in a full bucket a
//! new address replaces an entry of the port that has the most addresses in the whole table, and never one of a port
//! that has fewer than the new address's own port. A port that floods the table with addresses evicts only its own.
//!
//! Addresses age only if the owner of the switch configured it. Then the daemon calls [`MacTable::advance_epoch`]
//! periodically: cached lookups become invalid, an address that sends a packet moves into the new epoch, and an address
//! that sent none for [`LIFETIME_EPOCHS`] epochs is removed.
//!
//! Lookups take no lock. Changes take one. A change that moves or removes an address increments the generation, which
//! invalidates cached lookups. A new address in a free place changes only lookups that found nothing: it increments the
//! number of insertions alone, so that known flows do not notice it.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering::*};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Bytes of an Ethernet header; a shorter frame is a runt.
pub const ETHERNET_HEADER: u16 = 14;

/// Ports of a switch at most: indexes `0..MAX_PORTS`.
pub const MAX_PORTS: usize = 254;
/// Addresses that a table holds at most, unless configured otherwise.
pub const DEFAULT_ENTRIES: usize = MIN_BUCKETS * WAYS;
/// Addresses that a table can be configured to hold: 8 MiB.
pub const MAX_ENTRIES: usize = 1 << 20;
/// Epochs after which an address that sends nothing is removed. Below `EPOCHS`, which an entry has room for.
pub const LIFETIME_EPOCHS: u32 = 16;

const WAYS: usize = 8;
/// Buckets of the smallest table: an entry stores the bits of the address that do not select one of so many.
const MIN_BUCKETS: usize = 512;
const ADDRESS_BITS: u32 = 48;
const ADDRESS: u64 = (1 << ADDRESS_BITS) - 1;
/// Bits of the scrambled address that an entry stores.
const REST_BITS: u32 = ADDRESS_BITS - MIN_BUCKETS.ilog2();
const REST: u64 = (1 << REST_BITS) - 1;
const VLAN_BITS: u32 = 12;
/// The bits of an entry that identify address and VLAN within a bucket.
const KEY: u64 = (1 << (REST_BITS + VLAN_BITS)) - 1;
const EPOCH_SHIFT: u32 = REST_BITS + VLAN_BITS;
const EPOCHS: u64 = 32;
const PORT_SHIFT: u32 = 56;
const _: () = assert!(EPOCH_SHIFT + EPOCHS.ilog2() == PORT_SHIFT && (LIFETIME_EPOCHS as u64) < EPOCHS);

/// Multiplier of the scrambling: odd, hence invertible modulo 2^48; digits of the golden ratio.
const SCRAMBLE: u64 = 0x9e37_79b9_7f4b;
/// Its inverse modulo 2^48.
const UNSCRAMBLE: u64 = inverse(SCRAMBLE);
const _: () = assert!(SCRAMBLE.wrapping_mul(UNSCRAMBLE) & ADDRESS == 1);

/// Returns the inverse modulo 2^64 by Newton's iteration, which doubles the correct bits; the first three always are.
const fn inverse(odd: u64) -> u64 {
    let (mut inverse, mut correct_bits) = (odd, 3);
    while correct_bits < u64::BITS {
        inverse = inverse.wrapping_mul(2u64.wrapping_sub(odd.wrapping_mul(inverse)));
        correct_bits *= 2;
    }
    inverse
}

/// A MAC address in a VLAN.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Mac(u64);

impl Mac {
    /// The address of these six bytes, in wire order, without a VLAN.
    #[inline(always)]
    pub fn new(bytes: [u8; 6]) -> Mac {
        let [a, b, c, d, e, f] = bytes;
        Mac(u64::from_le_bytes([a, b, c, d, e, f, 0, 0]))
    }

    /// Returns destination and source of the frame that starts with `header`, in VLAN `vlan` (0: none).
    #[inline(always)]
    pub fn pair(header: [u8; 16], vlan: u16) -> (Mac, Mac) {
        let whole = u128::from_le_bytes(header);
        let vlan = u64::from(vlan & ((1 << VLAN_BITS) - 1)) << ADDRESS_BITS;
        (Mac(whole as u64 & ADDRESS | vlan), Mac((whole >> 48) as u64 & ADDRESS | vlan))
    }

    /// True for a group address, broadcast included.
    #[inline(always)]
    pub fn is_multicast(self) -> bool {
        self.0 & 1 != 0
    }

    /// Returns its bucket, of `1 << bits`, and the bits of [`KEY`] in its entry.
    #[inline(always)]
    fn bucket_and_key(self, bits: u32) -> (usize, u64) {
        let (scrambled, vlan) = (self.0.wrapping_mul(SCRAMBLE) & ADDRESS, self.0 >> ADDRESS_BITS);
        let bucket = (scrambled >> (ADDRESS_BITS - bits)) as usize ^ vlan_hash(vlan);
        (bucket, scrambled & REST | vlan << REST_BITS)
    }

    /// Returns address and VLAN of an entry of this bucket, of `1 << bits`.
    fn decode((bucket, bits): (usize, u32), entry: u64) -> ([u8; 6], u16) {
        let vlan = (entry & KEY) >> REST_BITS;
        // Bits of the address that both have are equal.
        let scrambled = ((bucket ^ vlan_hash(vlan)) as u64) << (ADDRESS_BITS - bits) | entry & REST;
        let [a, b, c, d, e, f, ..] = (scrambled.wrapping_mul(UNSCRAMBLE) & ADDRESS).to_le_bytes();
        ([a, b, c, d, e, f], vlan as u16)
    }
}

/// Distributes one address in several VLANs over the buckets.
#[inline(always)]
fn vlan_hash(vlan: u64) -> usize {
    (vlan.wrapping_mul(0x9e37_79b9) >> 16) as usize % MIN_BUCKETS
}

#[repr(align(64))]
struct Bucket([AtomicU64; WAYS]);

/// An address in the table.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct MacEntry {
    /// The address, in wire order.
    pub mac: [u8; 6],
    /// Its VLAN, 1..=4095; 0: none.
    pub vlan: u16,
    /// The port that it was learned from.
    pub port: u8,
    /// Epochs since it last sent a packet, `0..LIFETIME_EPOCHS`.
    pub age: u32,
}

/// The contents of a table at some moment.
#[derive(Default)]
pub struct TableMark(Vec<u64>);

/// The MAC table of one switch.
pub struct MacTable {
    /// A power of two, [`MIN_BUCKETS`] or more.
    buckets: Box<[Bucket]>,
    /// Its binary logarithm.
    bucket_bits: u32,
    /// Number of addresses of each port.
    counts: Box<[AtomicU32]>,
    generation: AtomicU64,
    /// Changes whenever an address became known.
    insertions: AtomicU64,
    /// The current epoch, below [`EPOCHS`], shifted as in entries. Constant unless ageing is configured.
    epoch: AtomicU64,
    /// Whether addresses are recorded.
    learns: bool,
    writer: Mutex<()>,
}

impl Default for MacTable {
    fn default() -> MacTable {
        MacTable::new()
    }
}

impl MacTable {
    /// An empty table for [`DEFAULT_ENTRIES`] addresses.
    pub fn new() -> MacTable {
        MacTable::with_capacity(DEFAULT_ENTRIES)
    }

    /// An empty table for `entries` addresses, rounded up to a power of two from [`DEFAULT_ENTRIES`] to
    /// [`MAX_ENTRIES`].
    pub fn with_capacity(entries: usize) -> MacTable {
        let bucket = || Bucket(std::array::from_fn(|_| AtomicU64::new(0)));
        let buckets = MacTable::buckets(entries);
        MacTable {
            buckets: (0..buckets).map(|_| bucket()).collect(),
            bucket_bits: buckets.ilog2(),
            counts: (0..MAX_PORTS).map(|_| AtomicU32::new(0)).collect(),
            generation: AtomicU64::new(0),
            insertions: AtomicU64::new(0),
            epoch: AtomicU64::new(0),
            learns: true,
            writer: Mutex::new(()),
        }
    }

    /// A table that remains empty: a switch of two ports with this table is a wire.
    pub fn without_learning() -> MacTable {
        MacTable { learns: false, ..MacTable::new() }
    }

    /// Returns the number of addresses that the table holds at most.
    pub fn capacity(&self) -> usize {
        self.buckets.len() * WAYS
    }

    /// Bytes of a table made for `entries` addresses, with the number of addresses of each port.
    pub fn bytes(entries: usize) -> usize {
        MacTable::buckets(entries) * size_of::<Bucket>() + MAX_PORTS * size_of::<AtomicU32>()
    }

    fn buckets(entries: usize) -> usize {
        entries.clamp(DEFAULT_ENTRIES, MAX_ENTRIES).next_power_of_two() / WAYS
    }

    /// Changes whenever a result of [`MacTable::port_of`] other than `None` may have changed.
    #[inline(always)]
    pub fn generation(&self) -> u64 {
        self.generation.load(Acquire)
    }

    /// Changes whenever a result `None` of [`MacTable::port_of`] may have changed, unless the generation does.
    #[inline(always)]
    pub fn insertions(&self) -> u64 {
        self.insertions.load(Acquire)
    }

    /// Invalidates all cached lookups.
    pub fn invalidate_caches(&self) {
        self.generation.fetch_add(1, Release);
    }

    /// Returns the port that `mac` was last learned from.
    #[inline(always)]
    pub fn port_of(&self, mac: Mac) -> Option<u8> {
        let (bucket, key) = mac.bucket_and_key(self.bucket_bits);
        let [first, others @ ..] = &self.buckets[bucket].0;
        let matches = |entry: u64| entry & KEY == key && entry != 0;
        let entry = first.load(Relaxed);
        if matches(entry) {
            return Some(port_in(entry));
        }
        others.iter().map(|entry| entry.load(Relaxed)).find(|entry| matches(*entry)).map(port_in)
    }

    /// Prefetches what [`MacTable::port_of`] and [`MacTable::learn`] read.
    #[inline(always)]
    pub fn prefetch(&self, mac: Mac) {
        unetmap_mem::prefetch_value(&self.buckets[mac.bucket_and_key(self.bucket_bits).0]);
    }

    /// True if the table is larger than [`DEFAULT_ENTRIES`]: it exceeds the first-level cache.
    #[inline(always)]
    pub fn is_large(&self) -> bool {
        self.buckets.len() > MIN_BUCKETS
    }

    /// Returns the bucket of an address, and the entry that says that it sends from `port`.
    #[inline(always)]
    fn bucket_and_entry(&self, mac: Mac, port: u8) -> (usize, u64) {
        let (bucket, key) = mac.bucket_and_key(self.bucket_bits);
        (bucket, key | self.epoch.load(Relaxed) | (u64::from(port) + 1) << PORT_SHIFT)
    }

    #[inline(always)]
    fn has(&self, (bucket, entry): (usize, u64)) -> bool {
        self.buckets[bucket].0.iter().any(|current| current.load(Relaxed) == entry)
    }

    /// True if [`MacTable::learn`] would change nothing.
    #[inline(always)]
    pub fn has_learned(&self, mac: Mac, port: u8) -> bool {
        self.has(self.bucket_and_entry(mac, port))
    }

    /// Records that `mac` sent a packet from `port`.
    #[inline]
    pub fn learn(&self, mac: Mac, port: u8) {
        let (bucket, entry) = self.bucket_and_entry(mac, port);
        if !self.has((bucket, entry)) {
            self.change(bucket, entry);
        }
    }

    fn lock(&self) -> MutexGuard<'_, ()> {
        self.writer.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Stores `entry`: moves the address to another port, inserts a new one (perhaps by eviction), or only updates
    /// its epoch.
    #[cold]
    fn change(&self, bucket: usize, entry: u64) {
        if !self.learns {
            return;
        }
        let _writer = self.lock();
        let (bucket, port) = (&self.buckets[bucket].0, port_in(entry));
        let count = |port: u8| self.counts[usize::from(port)].load(Relaxed);
        let same_address = bucket.iter().find(|current| {
            let current = current.load(Relaxed);
            current != 0 && (current ^ entry) & KEY == 0
        });
        let way = same_address.or_else(|| bucket.iter().find(|current| current.load(Relaxed) == 0)).or_else(|| {
            let victim = bucket.iter().max_by_key(|current| count(port_in(current.load(Relaxed))))?;
            (count(port_in(victim.load(Relaxed))) >= count(port)).then_some(victim)
        });
        let Some(way) = way else { return };
        let before = way.swap(entry, Relaxed);
        if before != 0 {
            if (before ^ entry) & KEY == 0 && port_in(before) == port {
                return;
            }
            self.counts[usize::from(port_in(before))].fetch_sub(1, Relaxed);
        }
        self.counts[usize::from(port)].fetch_add(1, Relaxed);
        if before == 0 {
            self.insertions.fetch_add(1, Release);
        } else {
            self.invalidate_caches();
        }
    }

    /// Removes all addresses of a port.
    pub fn remove_port(&self, port: u8) {
        self.remove_if(|entry| port_in(entry) == port);
    }

    /// Removes all addresses.
    pub fn clear(&self) {
        self.remove_if(|_| true);
    }

    fn remove_if(&self, matches: impl Fn(u64) -> bool) {
        let _writer = self.lock();
        for entry in self.buckets.iter().flat_map(|bucket| &bucket.0) {
            let before = entry.load(Relaxed);
            if before != 0 && matches(before) {
                entry.store(0, Relaxed);
                self.counts[usize::from(port_in(before))].fetch_sub(1, Relaxed);
            }
        }
        self.invalidate_caches();
    }

    /// Begins a new epoch, and removes addresses that sent nothing for [`LIFETIME_EPOCHS`] epochs.
    pub fn advance_epoch(&self) {
        let next = ((self.epoch.load(Relaxed) >> EPOCH_SHIFT) + 1) % EPOCHS;
        self.epoch.store(next << EPOCH_SHIFT, Relaxed);
        self.remove_if(|entry| age_in(entry, next) >= LIFETIME_EPOCHS);
    }

    /// Sets the age of all addresses to 0: ageing begins now.
    pub fn reset_ages(&self) {
        let _writer = self.lock();
        let epoch = self.epoch.load(Relaxed);
        for entry in self.buckets.iter().flat_map(|bucket| &bucket.0) {
            let before = entry.load(Relaxed);
            if before != 0 {
                entry.store(before & !((EPOCHS - 1) << EPOCH_SHIFT) | epoch, Relaxed);
            }
        }
    }

    /// Returns all addresses, in no order; an address that moves during the call may be missing.
    pub fn entries(&self) -> Vec<MacEntry> {
        self.entries_since(&TableMark::default())
    }

    /// Returns a mark of the present contents, for [`MacTable::entries_since`].
    pub fn mark(&self) -> TableMark {
        TableMark(self.buckets.iter().flat_map(|bucket| &bucket.0).map(|word| word.load(Relaxed)).collect())
    }

    /// Returns, as [`MacTable::entries`], the addresses that were learned, moved or refreshed since `mark` was made.
    pub fn entries_since(&self, mark: &TableMark) -> Vec<MacEntry> {
        let epoch = self.epoch.load(Relaxed) >> EPOCH_SHIFT;
        let words = self.buckets.iter().enumerate().flat_map(|(n, bucket)| bucket.0.iter().map(move |e| (n, e)));
        let before = mark.0.iter().copied().chain(std::iter::repeat(0));
        let now = words.zip(before).map(|((n, word), before)| (n, word.load(Relaxed), before));
        let entries = now.filter(|(_, entry, before)| *entry != 0 && entry != before).map(|(n, entry, _)| {
            let (mac, vlan) = Mac::decode((n, self.bucket_bits), entry);
            MacEntry { mac, vlan, port: port_in(entry), age: age_in(entry, epoch) }
        });
        entries.collect()
    }

    /// Adds addresses that another table had, with their ages. Invalid ones are left out.
    pub fn add(&self, entries: impl IntoIterator<Item = MacEntry>) {
        let now = self.epoch.load(Relaxed) >> EPOCH_SHIFT;
        for MacEntry { mac, vlan, port, age } in entries {
            if usize::from(port) >= MAX_PORTS || age >= LIFETIME_EPOCHS {
                continue;
            }
            let vlan = u64::from(vlan) & ((1 << VLAN_BITS) - 1);
            let (bucket, key) = Mac(Mac::new(mac).0 | vlan << ADDRESS_BITS).bucket_and_key(self.bucket_bits);
            let epoch = (now + EPOCHS - u64::from(age)) % EPOCHS;
            self.change(bucket, key | epoch << EPOCH_SHIFT | (u64::from(port) + 1) << PORT_SHIFT);
        }
    }

    /// Returns the number of addresses.
    pub fn len(&self) -> usize {
        self.counts.iter().map(|count| count.load(Relaxed) as usize).sum()
    }

    /// True if the table holds no address.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// Returns the port of an entry that is not 0.
#[inline(always)]
fn port_in(entry: u64) -> u8 {
    ((entry >> PORT_SHIFT) as u8).wrapping_sub(1)
}

/// Returns the number of epochs from that of an entry to `epoch`.
fn age_in(entry: u64, epoch: u64) -> u32 {
    (epoch.wrapping_sub(entry >> EPOCH_SHIFT) % EPOCHS) as u32
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use proptest::prelude::*;

    use super::*;

    fn bytes(n: u64) -> [u8; 6] {
        let [a, b, c, d, ..] = n.to_le_bytes();
        [2, 0, d, c, b, a]
    }

    fn mac(n: u64) -> Mac {
        Mac::new(bytes(n))
    }

    #[test]
    fn addresses_are_read_in_wire_order() {
        let header = [1, 2, 3, 4, 5, 6, 0xf0, 8, 9, 10, 11, 0xff, 0xee, 0xee, 0xee, 0xee];
        assert_eq!(Mac::pair(header, 0), (Mac::new([1, 2, 3, 4, 5, 6]), Mac::new([0xf0, 8, 9, 10, 11, 0xff])));
        assert!(Mac::new([1, 0, 0, 0, 0, 0]).is_multicast());
        assert!(!Mac::new([2, 1, 1, 1, 1, 1]).is_multicast());
    }

    proptest! {
        /// While no bucket overflows, the table maps each address to the port that it was last learned from.
        #[test]
        fn table_behaves_like_a_map(steps in prop::collection::vec((0..3u8, 0..200u64, 0..254u8), 1..100)) {
            let (table, mut oracle) = (MacTable::new(), HashMap::new());
            for (what, n, port) in steps {
                let before = (table.generation(), table.port_of(mac(n)), table.insertions());
                match what {
                    0 => {
                        table.remove_port(port);
                        oracle.retain(|_, learned| *learned != port);
                    }
                    _ => {
                        table.learn(mac(n), port);
                        oracle.insert(n, port);
                    }
                }
                let is_new = before.1.is_none() && table.insertions() != before.2;
                prop_assert!(table.generation() != before.0 || table.port_of(mac(n)) == before.1 || is_new);
                for n in 0..200 {
                    prop_assert_eq!(table.port_of(mac(n)), oracle.get(&n).copied());
                }
                prop_assert_eq!(table.len(), oracle.len());
                let learned = |n| oracle.get(&n).copied();
                (0..200).for_each(|n| assert_eq!(table.has_learned(mac(n), port), learned(n) == Some(port)));
                let listed: HashMap<_, _> = table.entries().into_iter().map(|entry| (entry.mac, entry.port)).collect();
                prop_assert_eq!(listed, oracle.iter().map(|(n, port)| (bytes(*n), *port)).collect::<HashMap<_, _>>());
            }
        }

        /// The table returns address and VLAN unchanged, whatever they are.
        #[test]
        fn entries_decode_to_address_and_vlan(
            mac: [u8; 6],
            vlan in 0..4096u16,
            port in 0..254u8,
            entries in prop_oneof![Just(0), Just(5000), Just(MAX_ENTRIES), Just(usize::MAX)],
        ) {
            let mut header = [0; 16];
            header[..6].copy_from_slice(&mac);
            let (destination, _) = Mac::pair(header, vlan);
            let table = MacTable::with_capacity(entries);
            table.learn(destination, port);
            prop_assert_eq!(table.port_of(destination), Some(port));
            prop_assert_eq!(table.entries(), vec![MacEntry { mac, vlan, port, age: 0 }]);
        }
    }

    #[test]
    fn a_table_goes_on_with_the_addresses_and_ages_of_another() {
        let before = MacTable::new();
        (0..3).for_each(|_| before.advance_epoch());
        before.learn(mac(1), 7);
        (0..5).for_each(|_| before.advance_epoch());
        let mark = before.mark();
        before.learn(mac(2), 8);
        assert_eq!(before.entries_since(&mark), [MacEntry { mac: bytes(2), vlan: 0, port: 8, age: 0 }]);
        let after = MacTable::new();
        let invalid = MacEntry { mac: bytes(3), vlan: 0, port: 255, age: 0 };
        after.add(before.entries().into_iter().chain([invalid, MacEntry { port: 1, age: LIFETIME_EPOCHS, ..invalid }]));
        let sorted = |table: &MacTable| {
            let mut entries = table.entries();
            entries.sort_by_key(|entry| entry.mac);
            entries
        };
        assert_eq!((sorted(&after), after.len()), (sorted(&before), 2));
        (0..LIFETIME_EPOCHS - 5).for_each(|_| after.advance_epoch());
        assert_eq!(after.entries().iter().map(|entry| entry.port).collect::<Vec<_>>(), [8]);
    }

    #[test]
    fn a_large_table_holds_a_hundred_thousand_addresses_and_new_ones_keep_cached_lookups() {
        let table = MacTable::with_capacity(MAX_ENTRIES);
        assert_eq!((table.capacity(), MacTable::new().capacity()), (MAX_ENTRIES, DEFAULT_ENTRIES));
        let before = (table.generation(), table.insertions());
        (0..100_000).for_each(|n| table.learn(mac(n), (n % 250) as u8));
        assert_eq!(table.len(), 100_000);
        (0..100_000).for_each(|n| assert_eq!(table.port_of(mac(n)), Some((n % 250) as u8)));
        assert_eq!((table.generation(), table.insertions()), (before.0, before.1 + 100_000));
        table.learn(mac(1), 7);
        assert!(table.generation() != before.0, "an address moved");
    }

    #[test]
    fn vlans_have_separate_addresses() {
        let table = MacTable::new();
        let in_vlan = |vlan| Mac::pair([2; 16], vlan).0;
        (0..254).for_each(|vlan: u8| table.learn(in_vlan(vlan.into()), vlan));
        (0..254).for_each(|vlan: u8| assert_eq!(table.port_of(in_vlan(vlan.into())), Some(vlan)));
        assert_eq!(table.port_of(in_vlan(1000)), None);
    }

    #[test]
    fn silent_addresses_expire() {
        let table = MacTable::new();
        // Starts shortly before the epoch counter wraps.
        (0..EPOCHS - 3).for_each(|_| table.advance_epoch());
        let (silent, active) = (mac(1), mac(2));
        table.learn(silent, 1);
        table.learn(active, 2);
        for age in 1..=LIFETIME_EPOCHS {
            assert_eq!((table.port_of(silent), table.port_of(active)), (Some(1), Some(2)), "epoch {age}");
            let before = table.generation();
            table.advance_epoch();
            assert_ne!(
                table.generation(),
                before,
                "cached lookups must become invalid, or an active address would not be refreshed"
            );
            let before = table.generation();
            table.learn(active, 2);
            assert_eq!(table.generation(), before, "a refresh changes no lookup");
            let mut ages: Vec<u32> = table.entries().iter().map(|entry| entry.age).collect();
            ages.sort_unstable();
            assert_eq!(ages, if age < LIFETIME_EPOCHS { vec![0, age] } else { vec![0] });
        }
        assert_eq!((table.port_of(silent), table.port_of(active), table.len()), (None, Some(2), 1));
        (0..LIFETIME_EPOCHS - 1).for_each(|_| table.advance_epoch());
        table.reset_ages();
        (0..LIFETIME_EPOCHS - 1).for_each(|_| table.advance_epoch());
        assert_eq!(table.len(), 1);
        table.clear();
        assert!(table.is_empty() && table.entries().is_empty());
    }

    #[test]
    fn a_table_without_learning_remains_empty() {
        let table = MacTable::without_learning();
        let before = table.generation();
        table.learn(mac(1), 3);
        assert_eq!((table.port_of(mac(1)), table.len(), table.generation()), (None, 0, before));
    }

    #[test]
    fn the_all_zero_address_is_valid() {
        let table = MacTable::new();
        let zero = Mac::new([0; 6]);
        assert_eq!(table.port_of(zero), None);
        table.learn(zero, 0);
        assert_eq!((table.port_of(zero), table.len()), (Some(0), 1));
        table.learn(zero, 253);
        assert_eq!(table.port_of(zero), Some(253));
        table.remove_port(253);
        assert_eq!((table.port_of(zero), table.is_empty()), (None, true));
    }

    #[test]
    fn a_flooding_port_evicts_only_its_own_addresses() {
        let table = MacTable::new();
        let flood = |from: u64| (from..from + 500_000).for_each(|n| table.learn(mac(1000 + n), 7));
        (0..100).for_each(|n| table.learn(mac(n), 10 + n as u8));
        flood(0);
        // Addresses that appear during the flood are learned as well.
        (100..200).for_each(|n| table.learn(mac(n), 10 + n as u8));
        flood(500_000);
        (0..200).for_each(|n| assert_eq!(table.port_of(mac(n)), Some(10 + n as u8), "host {n}"));
        assert!(table.len() <= table.capacity());
        let counted = (0..254).map(|port| table.counts[port].load(Relaxed)).sum::<u32>();
        let used_ways = table.buckets.iter().flat_map(|b| &b.0).filter(|e| e.load(Relaxed) != 0).count();
        assert_eq!(counted as usize, used_ways);
    }
}
