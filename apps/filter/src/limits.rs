// SPDX-License-Identifier: BSD-2-Clause
//! How many states there are for each value that a `limit` option counts by. All memory is allocated at first.

use std::collections::HashMap;

use crate::rule::RuleId;
use crate::tuning::{LIFETIME_MIN, MAX_LIMITS, WALKED_PER_MILLI};

/// A value that a `limit` option counts states for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct LimitKey {
    pub(crate) rule: RuleId,
    pub(crate) proto: u8,
    pub(crate) is_ipv6: bool,
    pub(crate) addresses: [u128; 2],
    pub(crate) ports: [u16; 2],
}

/// Why a state is not counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Refused {
    /// As many as allowed are counted, by the value at this place; some of them may have expired.
    MayHaveExpired(u32),
    /// None of those that are counted has expired, or there are too many different values.
    Full,
}

/// A value and its states.
#[derive(Debug)]
struct Limit {
    key: LimitKey,
    states: u32,
    /// No state of the value expires before. Only an estimate if [`WALKED_PER_MILLI`] delays it.
    none_before: u64,
}

/// The counts.
#[derive(Debug)]
pub(crate) struct Limits {
    places: HashMap<LimitKey, u32>,
    entries: Vec<Limit>,
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

    /// Counts a state that is made at `now`, if there are fewer than `most`; returns the place of its value.
    pub(crate) fn take(&mut self, key: LimitKey, most: u32, now: u64) -> Result<u32, Refused> {
        let none_before = now + LIFETIME_MIN;
        if let Some(&at) = self.places.get(&key) {
            let limit = &mut self.entries[at as usize];
            if limit.states >= most {
                return Err(if now >= limit.none_before { Refused::MayHaveExpired(at) } else { Refused::Full });
            }
            limit.states += 1;
            limit.none_before = limit.none_before.min(none_before);
            return Ok(at);
        }
        let limit = Limit { key, states: 1, none_before };
        let at = match self.free.pop() {
            Some(at) => {
                self.entries[at as usize] = limit;
                at
            }
            None if self.entries.len() < MAX_LIMITS => {
                self.entries.push(limit);
                self.entries.len() as u32 - 1
            }
            None => return Err(Refused::Full),
        };
        self.places.insert(key, at);
        Ok(at)
    }

    /// Counts a state of the value at this place no more.
    pub(crate) fn release(&mut self, at: u32) {
        let Some(limit) = self.entries.get_mut(at as usize) else { return };
        limit.states -= 1;
        if limit.states == 0 {
            self.places.remove(&limit.key);
            self.free.push(at);
        }
    }

    /// Begins a walk through the states of the value at this place, which may go on while others are counted.
    pub(crate) fn begin_walk(&mut self, at: u32) {
        if let Some(limit) = self.entries.get_mut(at as usize) {
            limit.none_before = u64::MAX;
        }
    }

    /// Ends a walk at `now` that removed expired states; of those that it left none expires before `first`.
    pub(crate) fn end_walk(&mut self, at: u32, first: u64, now: u64) {
        let Some(limit) = self.entries.get_mut(at as usize) else { return };
        // The lifetime of a state may have become shorter meanwhile, but no shorter than any.
        let none_before = first.min(now + LIFETIME_MIN).min(limit.none_before);
        // Long walks are rare: else their states could be made to expire one by one, for a walk each.
        limit.none_before = none_before.max(now + u64::from(limit.states / WALKED_PER_MILLI));
    }
}
