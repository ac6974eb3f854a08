// SPDX-License-Identifier: BSD-2-Clause
//! Finds entries of a table by their hash: open addressing, without allocation after it was made.

/// Places of entries by hash.
#[derive(Debug)]
pub(crate) struct Buckets {
    /// Bits 32..64: hash; 0..32: entry + 1. 0: empty. A power of two, at least twice as many as entries.
    words: Vec<u64>,
}

impl Buckets {
    /// Makes room for `max` entries.
    pub(crate) fn new(max: usize) -> Buckets {
        Buckets { words: vec![0; (max * 2).next_power_of_two().max(2)] }
    }

    /// Returns the memory.
    pub(crate) fn memory(&self) -> (*const u8, usize) {
        (self.words.as_ptr().cast(), size_of_val(&self.words[..]))
    }

    /// Returns the word at which a search for this hash begins.
    #[inline]
    pub(crate) fn first(&self, hash: u32) -> u64 {
        self.words[hash as usize & (self.words.len() - 1)]
    }

    /// Returns the first entry with this hash that `is` the one.
    #[inline]
    pub(crate) fn find(&self, hash: u32, is: impl Fn(u32) -> bool) -> Option<u32> {
        let mask = self.words.len() - 1;
        let mut bucket = hash as usize & mask;
        loop {
            let word = self.words[bucket];
            if word == 0 {
                return None;
            }
            let at = word as u32 - 1;
            if (word >> 32) as u32 == hash && is(at) {
                return Some(at);
            }
            bucket = (bucket + 1) & mask;
        }
    }

    pub(crate) fn insert(&mut self, hash: u32, at: u32) {
        let mask = self.words.len() - 1;
        let mut bucket = hash as usize & mask;
        while self.words[bucket] != 0 {
            bucket = (bucket + 1) & mask;
        }
        self.words[bucket] = u64::from(hash) << 32 | u64::from(at + 1);
    }

    /// Removes an entry, and moves those that its bucket had displaced back.
    pub(crate) fn remove(&mut self, hash: u32, at: u32) {
        let mask = self.words.len() - 1;
        let mut hole = hash as usize & mask;
        while self.words[hole] as u32 != at + 1 {
            hole = (hole + 1) & mask;
        }
        let mut next = hole;
        loop {
            next = (next + 1) & mask;
            let word = self.words[next];
            if word == 0 {
                break;
            }
            let home = (word >> 32) as usize & mask;
            // Whether its home is not in (hole, next].
            if next.wrapping_sub(home) & mask >= next.wrapping_sub(hole) & mask {
                self.words[hole] = word;
                hole = next;
            }
        }
        self.words[hole] = 0;
    }
}
