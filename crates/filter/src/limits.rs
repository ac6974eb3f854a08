// SPDX-License-Identifier: BSD-2-Clause
//! How many states there are for each value that a `limit` option counts by. All memory is allocated at first.

use std::collections::HashMap;

use crate::rule::RuleId;
use crate::tuning::MAX_LIMITS;

/// A value that a `limit` option counts states for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct LimitKey {
    pub(crate) rule: RuleId,
    pub(crate) proto: u8,
    pub(crate) is_ipv6: bool,
    pub(crate) addresses: [u128; 2],
    pub(crate) ports: [u16; 2],
}

/// The counts.
#[derive(Debug)]
pub(crate) struct Limits {
    places: HashMap<LimitKey, u32>,
    /// Each value and its number of states.
    entries: Vec<(LimitKey, u32)>,
    free: Vec<u32>,
}

impl Limits {
    pub(crate) fn new() -> Limits {
        Limits {
            places: HashMap::with_capacity(MAX_LIMITS),
            entries: Vec::with_capacity(MAX_LIMITS),
            free: Vec::with_capacity(MAX_LIMITS),
        }
    }

    /// Counts a state; returns the place of its value. `None` if `most` are reached, or if too many different values
    /// are counted.
    pub(crate) fn take(&mut self, key: LimitKey, most: u32) -> Option<u32> {
        if let Some(&at) = self.places.get(&key) {
            let count = &mut self.entries[at as usize].1;
            if *count >= most {
                return None;
            }
            *count += 1;
            return Some(at);
        }
        let at = match self.free.pop() {
            Some(at) => at,
            None if self.entries.len() < MAX_LIMITS => {
                self.entries.push((key, 0));
                self.entries.len() as u32 - 1
            }
            None => return None,
        };
        self.entries[at as usize] = (key, 1);
        self.places.insert(key, at);
        Some(at)
    }

    /// Counts a state of the value at this place no more.
    pub(crate) fn release(&mut self, at: u32) {
        let Some((key, count)) = self.entries.get_mut(at as usize) else { return };
        *count -= 1;
        if *count == 0 {
            self.places.remove(key);
            self.free.push(at);
        }
    }
}
