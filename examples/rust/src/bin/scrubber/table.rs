//! A table that an attacker cannot fill: of fixed size, and who comes in takes the place of who was unseen for longest.

use std::time::Duration;

/// Entries that a key may be in.
const WAYS: usize = 4;

/// Values by keys. Keys should be mixed with a secret, so that nobody can choose where they go.
pub(crate) struct Table<T> {
    sets: Vec<[Entry<T>; WAYS]>,
}

#[derive(Clone, Copy, Default)]
struct Entry<T> {
    /// 0: nobody's.
    key: u64,
    seen: Duration,
    value: T,
}

impl<T: Copy + Default> Table<T> {
    /// For about `entries` keys.
    pub(crate) fn new(entries: usize) -> Table<T> {
        Table { sets: vec![[Entry::default(); WAYS]; (entries / WAYS).next_power_of_two()] }
    }

    /// The value of a key; a new one is `first()`.
    pub(crate) fn entry(&mut self, key: u64, now: Duration, first: impl FnOnce() -> T) -> &mut T {
        let key = key.max(1);
        let set = self.set(key);
        let found = set.iter().position(|entry| entry.key == key);
        let place = found.unwrap_or_else(|| (0..WAYS).min_by_key(|&i| (set[i].key != 0, set[i].seen)).unwrap_or(0));
        let entry = &mut set[place];
        if found.is_none() {
            *entry = Entry { key, seen: now, value: first() };
        }
        entry.seen = now;
        &mut entry.value
    }

    /// The value of a key that is there.
    pub(crate) fn get(&mut self, key: u64) -> Option<T> {
        let key = key.max(1);
        self.set(key).iter().find(|entry| entry.key == key).map(|entry| entry.value)
    }

    fn set(&mut self, key: u64) -> &mut [Entry<T>; WAYS] {
        let sets = self.sets.len();
        &mut self.sets[(key >> 32) as usize & (sets - 1)]
    }
}

/// Each bit of the result depends on every bit of `x` (the finish of SplitMix64).
pub(crate) fn mix(x: u64) -> u64 {
    let x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ (x >> 31)
}
