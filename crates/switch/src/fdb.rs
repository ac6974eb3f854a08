//! The learning table: behind which port of a switch an address was last seen.
//!
//! ```text
//! bucket, one cache line:   | entry | entry | entry | entry | entry | entry | entry | entry |
//! entry, one word:          0, or bits 0..39 rest of the address, 39..51 VLAN, 51..56 epoch, 56..64 port + 1
//! ```
//! The 48 bits of an address are scrambled, in a way that can be undone; nine of them say which bucket, 39 stand in the
//! entry. An address is learned for each VLAN by itself: what one says about it moves nothing in another.
//!
//! Bounded, and fair: where a bucket is full a new address takes the place of one of the port that has the most addresses
//! in the whole table, and of none that has fewer than its own. Whoever floods the table with addresses displaces its own.
//!
//! Addresses age if that is asked for. Then somebody calls [`Table::tick`] from time to time, which begins a new epoch: who
//! remembers an answer asks again, an address that is heard moves into the epoch, and one that was not heard for
//! [`LIFE`] of them goes.
//!
//! Threads look up without a lock; what changes the table takes one, and moves the generation, so that who remembers an
//! answer knows when to ask again.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering::*};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Ports of a switch: numbers `0..PORTS`.
pub const PORTS: usize = 254;
/// Addresses that the table holds at most.
pub const ENTRIES: usize = BUCKETS * WAYS;
/// Epochs that an address stays which is not heard.
pub const LIFE: u32 = 16;

const WAYS: usize = 8;
const BUCKETS: usize = 512;
const ADDRESS_BITS: u32 = 48;
const ADDRESS: u64 = (1 << ADDRESS_BITS) - 1;
/// Bits of the scrambled address that an entry has.
const REST_BITS: u32 = ADDRESS_BITS - BUCKETS.ilog2();
const REST: u64 = (1 << REST_BITS) - 1;
const VLAN_BITS: u32 = 12;
/// What of an entry says whose it is.
const KEY: u64 = (1 << (REST_BITS + VLAN_BITS)) - 1;
const EPOCH_SHIFT: u32 = REST_BITS + VLAN_BITS;
const EPOCHS: u64 = 32;
const PORT_SHIFT: u32 = 56;
const _: () = assert!(EPOCH_SHIFT + EPOCHS.ilog2() == PORT_SHIFT && (LIFE as u64) < EPOCHS);

/// Odd, so that multiplying by it can be undone; the digits are the golden ratio's.
const SCRAMBLE: u64 = 0x9e37_79b9_7f4b;
/// Its inverse modulo 2^48.
const UNSCRAMBLE: u64 = inverse(SCRAMBLE);
const _: () = assert!(SCRAMBLE.wrapping_mul(UNSCRAMBLE) & ADDRESS == 1);

/// By Newton's iteration, which doubles the bits that are right; the first three always are.
const fn inverse(odd: u64) -> u64 {
    let (mut found, mut bits) = (odd, 3);
    while bits < u64::BITS {
        found = found.wrapping_mul(2u64.wrapping_sub(odd.wrapping_mul(found)));
        bits *= 2;
    }
    found
}

/// An Ethernet address, in a VLAN.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Mac(u64);

impl Mac {
    /// The address in six bytes, in the order of the wire, in no VLAN.
    #[inline(always)]
    pub fn new(bytes: [u8; 6]) -> Mac {
        let [a, b, c, d, e, f] = bytes;
        Mac(u64::from_le_bytes([a, b, c, d, e, f, 0, 0]))
    }

    /// Destination and source of the frame that starts with `header`, in VLAN `vlan` (0: none).
    #[inline(always)]
    pub fn pair(header: [u8; 16], vlan: u16) -> (Mac, Mac) {
        let whole = u128::from_le_bytes(header);
        let vlan = u64::from(vlan & ((1 << VLAN_BITS) - 1)) << ADDRESS_BITS;
        (Mac(whole as u64 & ADDRESS | vlan), Mac((whole >> 48) as u64 & ADDRESS | vlan))
    }

    /// Whether it names a group of stations, or all.
    #[inline(always)]
    pub fn is_multicast(self) -> bool {
        self.0 & 1 != 0
    }

    /// Its bucket, and what an entry of it has in the bits of [`KEY`].
    #[inline(always)]
    fn place(self) -> (usize, u64) {
        let (scrambled, vlan) = (self.0.wrapping_mul(SCRAMBLE) & ADDRESS, self.0 >> ADDRESS_BITS);
        ((scrambled >> REST_BITS) as usize ^ shift_of(vlan), scrambled & REST | vlan << REST_BITS)
    }

    /// The address whose entry, in this bucket, is `entry`.
    fn found(bucket: usize, entry: u64) -> ([u8; 6], u16) {
        let vlan = (entry & KEY) >> REST_BITS;
        let scrambled = ((bucket ^ shift_of(vlan)) as u64) << REST_BITS | entry & REST;
        let [a, b, c, d, e, f, ..] = (scrambled.wrapping_mul(UNSCRAMBLE) & ADDRESS).to_le_bytes();
        ([a, b, c, d, e, f], vlan as u16)
    }
}

/// Spreads the same address in several VLANs over the buckets.
#[inline(always)]
fn shift_of(vlan: u64) -> usize {
    (vlan.wrapping_mul(0x9e37_79b9) >> 16) as usize % BUCKETS
}

#[repr(align(64))]
struct Bucket([AtomicU64; WAYS]);

/// An address that the table holds.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Known {
    /// The address, in the order of the wire.
    pub mac: [u8; 6],
    /// Its VLAN, 1..=4095; 0: none.
    pub vlan: u16,
    /// The port behind which it was last heard.
    pub port: u8,
    /// Epochs since then, `0..LIFE`.
    pub age: u32,
}

/// See the module.
pub struct Table {
    buckets: Box<[Bucket; BUCKETS]>,
    /// Addresses that each port has.
    counts: Box<[AtomicU32]>,
    generation: AtomicU64,
    /// The present one, below [`EPOCHS`], where entries have it. It stays where it is unless somebody ticks.
    epoch: AtomicU64,
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
            buckets: Box::new(std::array::from_fn(|_| bucket())),
            counts: (0..PORTS).map(|_| AtomicU32::new(0)).collect(),
            generation: AtomicU64::new(0),
            epoch: AtomicU64::new(0),
            writer: Mutex::new(()),
        }
    }

    /// Moves whenever an answer of [`Table::port_of`] may have changed.
    #[inline(always)]
    pub fn generation(&self) -> u64 {
        self.generation.load(Acquire)
    }

    /// Who remembers an answer is to ask again.
    pub fn ask_again(&self) {
        self.generation.fetch_add(1, Release);
    }

    /// The port behind which `mac` was last seen.
    #[inline(always)]
    pub fn port_of(&self, mac: Mac) -> Option<u8> {
        let (bucket, key) = mac.place();
        let [first, others @ ..] = &self.buckets[bucket].0;
        let is = |entry: u64| entry & KEY == key && entry != 0;
        let entry = first.load(Relaxed);
        if is(entry) {
            return Some(port_in(entry));
        }
        others.iter().map(|entry| entry.load(Relaxed)).find(|entry| is(*entry)).map(port_in)
    }

    /// `mac` was seen behind `port`.
    #[inline]
    pub fn learn(&self, mac: Mac, port: u8) {
        let (bucket, key) = mac.place();
        let entry = key | self.epoch.load(Relaxed) | (u64::from(port) + 1) << PORT_SHIFT;
        if !self.buckets[bucket].0.iter().any(|known| known.load(Relaxed) == entry) {
            self.change(bucket, entry);
        }
    }

    fn lock(&self) -> MutexGuard<'_, ()> {
        self.writer.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Moves an address, or makes a place for a new one, or only notes that it was heard.
    #[cold]
    fn change(&self, bucket: usize, entry: u64) {
        let _writer = self.lock();
        let (bucket, port) = (&self.buckets[bucket].0, port_in(entry));
        let has = |port: u8| self.counts[usize::from(port)].load(Relaxed);
        let known = bucket.iter().find(|known| {
            let known = known.load(Relaxed);
            known != 0 && (known ^ entry) & KEY == 0
        });
        let place = known.or_else(|| bucket.iter().find(|known| known.load(Relaxed) == 0)).or_else(|| {
            let richest = bucket.iter().max_by_key(|known| has(port_in(known.load(Relaxed))))?;
            (has(port_in(richest.load(Relaxed))) >= has(port)).then_some(richest)
        });
        let Some(place) = place else { return };
        let before = place.swap(entry, Relaxed);
        if before != 0 {
            if (before ^ entry) & KEY == 0 && port_in(before) == port {
                return;
            }
            self.counts[usize::from(port_in(before))].fetch_sub(1, Relaxed);
        }
        self.counts[usize::from(port)].fetch_add(1, Relaxed);
        self.ask_again();
    }

    /// Forgets all addresses of a port, which has gone.
    pub fn forget(&self, port: u8) {
        self.forget_if(|entry| port_in(entry) == port);
    }

    /// Forgets all addresses.
    pub fn forget_all(&self) {
        self.forget_if(|_| true);
    }

    fn forget_if(&self, which: impl Fn(u64) -> bool) {
        let _writer = self.lock();
        for entry in self.buckets.iter().flat_map(|bucket| &bucket.0) {
            let was = entry.load(Relaxed);
            if was != 0 && which(was) {
                entry.store(0, Relaxed);
                self.counts[usize::from(port_in(was))].fetch_sub(1, Relaxed);
            }
        }
        self.ask_again();
    }

    /// Begins a new epoch, and forgets what was not heard for [`LIFE`] of them.
    pub fn tick(&self) {
        let next = ((self.epoch.load(Relaxed) >> EPOCH_SHIFT) + 1) % EPOCHS;
        self.epoch.store(next << EPOCH_SHIFT, Relaxed);
        self.forget_if(|entry| age_in(entry, next) >= LIFE);
    }

    /// All addresses count as just heard: ageing begins now.
    pub fn rejuvenate(&self) {
        let _writer = self.lock();
        let epoch = self.epoch.load(Relaxed);
        for entry in self.buckets.iter().flat_map(|bucket| &bucket.0) {
            let was = entry.load(Relaxed);
            if was != 0 {
                entry.store(was & !((EPOCHS - 1) << EPOCH_SHIFT) | epoch, Relaxed);
            }
        }
    }

    /// All addresses, in no order; one that moves meanwhile may be missing.
    pub fn known(&self) -> Vec<Known> {
        let epoch = self.epoch.load(Relaxed) >> EPOCH_SHIFT;
        let entries = self.buckets.iter().enumerate().flat_map(|(n, bucket)| bucket.0.iter().map(move |e| (n, e)));
        let found = entries.map(|(n, entry)| (n, entry.load(Relaxed))).filter(|(_, entry)| *entry != 0);
        let known = found.map(|(n, entry)| {
            let (mac, vlan) = Mac::found(n, entry);
            Known { mac, vlan, port: port_in(entry), age: age_in(entry, epoch) }
        });
        known.collect()
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
    ((entry >> PORT_SHIFT) as u8).wrapping_sub(1)
}

/// Epochs from the one in an entry to `epoch`.
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
    fn addresses_are_read_in_the_order_of_the_wire() {
        let header = [1, 2, 3, 4, 5, 6, 0xf0, 8, 9, 10, 11, 0xff, 0xee, 0xee, 0xee, 0xee];
        assert_eq!(Mac::pair(header, 0), (Mac::new([1, 2, 3, 4, 5, 6]), Mac::new([0xf0, 8, 9, 10, 11, 0xff])));
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
                let listed: HashMap<_, _> = table.known().into_iter().map(|known| (known.mac, known.port)).collect();
                prop_assert_eq!(listed, oracle.iter().map(|(n, port)| (bytes(*n), *port)).collect::<HashMap<_, _>>());
            }
        }

        /// Whatever the address and the VLAN, the table tells both as they were.
        #[test]
        fn an_entry_is_an_address(mac: [u8; 6], vlan in 0..4096u16, port in 0..254u8) {
            let mut header = [0; 16];
            header[..6].copy_from_slice(&mac);
            let (destination, _) = Mac::pair(header, vlan);
            let table = Table::new();
            table.learn(destination, port);
            prop_assert_eq!(table.port_of(destination), Some(port));
            prop_assert_eq!(table.known(), vec![Known { mac, vlan, port, age: 0 }]);
        }
    }

    #[test]
    fn each_vlan_has_addresses_of_its_own() {
        let table = Table::new();
        let in_vlan = |vlan| Mac::pair([2; 16], vlan).0;
        (0..254).for_each(|vlan: u8| table.learn(in_vlan(vlan.into()), vlan));
        (0..254).for_each(|vlan: u8| assert_eq!(table.port_of(in_vlan(vlan.into())), Some(vlan)));
        assert_eq!(table.port_of(in_vlan(1000)), None);
    }

    #[test]
    fn what_is_not_heard_goes() {
        let table = Table::new();
        // From an epoch that is about to begin anew.
        (0..EPOCHS - 3).for_each(|_| table.tick());
        let (quiet, talks) = (mac(1), mac(2));
        table.learn(quiet, 1);
        table.learn(talks, 2);
        for age in 1..=LIFE {
            assert_eq!((table.port_of(quiet), table.port_of(talks)), (Some(1), Some(2)), "epoch {age}");
            let before = table.generation();
            table.tick();
            assert_ne!(table.generation(), before, "who remembers an answer must ask again, or would be silent");
            let before = table.generation();
            table.learn(talks, 2);
            assert_eq!(table.generation(), before, "nothing has changed for anybody");
            let mut ages: Vec<u32> = table.known().iter().map(|known| known.age).collect();
            ages.sort_unstable();
            assert_eq!(ages, if age < LIFE { vec![0, age] } else { vec![0] });
        }
        assert_eq!((table.port_of(quiet), table.port_of(talks), table.len()), (None, Some(2), 1));
        (0..LIFE - 1).for_each(|_| table.tick());
        table.rejuvenate();
        (0..LIFE - 1).for_each(|_| table.tick());
        assert_eq!(table.len(), 1);
        table.forget_all();
        assert!(table.is_empty() && table.known().is_empty());
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
