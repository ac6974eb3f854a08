// SPDX-License-Identifier: BSD-2-Clause
//! Counters in memory that outlives a process: the process that goes on with a port goes on with its counters. No
//! program maps the page.

use std::ops::Deref;

use crate::atomic::AtomicU64;
use crate::mapped_range::{MappedRange, SharedRef};

/// A page of counters, each of which begins at 0.
#[derive(Clone)]
pub struct CounterPage {
    range: MappedRange,
}

impl CounterPage {
    /// A view of a mapping.
    pub fn new(range: MappedRange) -> CounterPage {
        CounterPage { range }
    }

    /// Bytes to map for so many counters.
    pub const fn bytes(counters: usize) -> usize {
        (counters * size_of::<u64>()).next_multiple_of(4096)
    }

    /// A counter by its index; `None`: the page has fewer.
    pub fn counter(&self, index: usize) -> Option<Counter> {
        // SAFETY: the type is an atomic (M1).
        unsafe { self.range.shared_ref(index.checked_mul(size_of::<u64>())?) }.map(Counter)
    }
}

/// A counter of a [`CounterPage`], which it keeps mapped.
#[derive(Clone)]
pub struct Counter(SharedRef<AtomicU64>);

impl Deref for Counter {
    type Target = AtomicU64;

    #[inline(always)]
    fn deref(&self) -> &AtomicU64 {
        &self.0
    }
}
