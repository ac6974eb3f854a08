// SPDX-License-Identifier: BSD-2-Clause
//! A hash table of fixed size that an attacker cannot fill: a new key replaces the least recently used key of its set.

use std::time::Duration;

/// Entries per set. A key is stored in one of them.
const WAYS: usize = 4;

/// Maps keys to values. Keys should be hashed with a secret, so that an attacker cannot choose their sets.
pub(crate) struct Table<T> {
    sets: Vec<[Entry<T>; WAYS]>,
}

#[derive(Clone, Copy, Default)]
struct Entry<T> {
    /// 0: the entry is free.
    key: u64,
    last_used: Duration,
    value: T,
}

impl<T: Copy + Default> Table<T> {
    /// Creates a table for about `entries` keys.
    pub(crate) fn new(entries: usize) -> Table<T> {
        Table { sets: vec![[Entry::default(); WAYS]; (entries / WAYS).next_power_of_two()] }
    }

    /// Returns the value of a key, which is `initial()` for a new key.
    pub(crate) fn entry(&mut self, key: u64, now: Duration, initial: impl FnOnce() -> T) -> &mut T {
        let key = key.max(1);
        let set = self.set(key);
        let found = set.iter().position(|entry| entry.key == key);
        let place =
            found.unwrap_or_else(|| (0..WAYS).min_by_key(|&i| (set[i].key != 0, set[i].last_used)).unwrap_or(0));
        let entry = &mut set[place];
        if found.is_none() {
            *entry = Entry { key, last_used: now, value: initial() };
        }
        entry.last_used = now;
        &mut entry.value
    }

    /// Returns the value of a key if it is present.
    pub(crate) fn get(&mut self, key: u64) -> Option<T> {
        let key = key.max(1);
        self.set(key).iter().find(|entry| entry.key == key).map(|entry| entry.value)
    }

    fn set(&mut self, key: u64) -> &mut [Entry<T>; WAYS] {
        let sets = self.sets.len();
        &mut self.sets[(key >> 32) as usize & (sets - 1)]
    }
}

/// Mixes the bits: each bit of the result depends on every bit of `x` (the finalizer of SplitMix64).
pub(crate) fn mix(x: u64) -> u64 {
    let x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ (x >> 31)
}
