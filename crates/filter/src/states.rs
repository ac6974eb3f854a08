// SPDX-License-Identifier: BSD-2-Clause
//! The states that a thread uses: its own, or those that all threads share.

use std::sync::Arc;

use crate::packet::Headers;
use crate::shared::Parts;
use crate::state::{StateCounts, StateInfo, StateTable};
use crate::tuning::{MIN_PART, PARTS_PER_THREAD};

/// States.
#[derive(Debug)]
pub struct States {
    seed: u64,
    tables: Tables,
}

#[derive(Debug)]
enum Tables {
    Own(StateTable),
    Shared(Arc<Parts<StateTable>>),
}

impl States {
    /// Makes the states of `n` threads, `max` together.
    pub(crate) fn for_threads(n: usize, max: usize, seed: u64) -> Vec<States> {
        if n == 1 {
            return vec![States { seed, tables: Tables::Own(StateTable::new(max, seed)) }];
        }
        // Full parts have no room although others have: there are few small ones.
        let parts = (n * PARTS_PER_THREAD).min(max / MIN_PART).max(1);
        let shared = Arc::new(Parts::new(StateTable::parts(parts, max, seed)));
        (0..n).map(|_| States { seed, tables: Tables::Shared(Arc::clone(&shared)) }).collect()
    }

    /// Uses the table that a packet's state is in.
    #[inline]
    pub(crate) fn of<R>(&mut self, h: &Headers, run: impl FnOnce(&mut StateTable) -> R) -> R {
        match &mut self.tables {
            Tables::Own(table) => run(table),
            Tables::Shared(parts) => run(&mut parts.of(StateTable::flow_hash(h, self.seed))),
        }
    }

    /// As [`StateTable::fetch`], for states of this thread.
    #[inline]
    pub(crate) fn fetch<'h>(&self, packets: impl Iterator<Item = &'h Headers>) {
        if let Tables::Own(table) = &self.tables {
            table.fetch(packets);
        }
    }

    /// Examines `n` states for expired ones, and removes these.
    pub fn sweep(&mut self, n: usize, now: u64) {
        match &mut self.tables {
            Tables::Own(table) => table.sweep(n, now),
            Tables::Shared(parts) => {
                if let Some(mut table) = parts.next() {
                    table.sweep(n, now);
                }
            }
        }
    }

    /// Returns the counts of events.
    pub fn counts(&self) -> StateCounts {
        match &self.tables {
            Tables::Own(table) => table.counts,
            Tables::Shared(parts) => parts.iter().fold(StateCounts::default(), |sum, table| sum.plus(table.counts)),
        }
    }

    /// Returns the states that have not expired.
    pub fn list(&self, now: u64) -> Vec<StateInfo> {
        match &self.tables {
            Tables::Own(table) => table.list(now),
            Tables::Shared(parts) => parts.iter().flat_map(|table| table.list(now)).collect(),
        }
    }

    /// As [`StateTable::memory`].
    pub(crate) fn memory(&self) -> Vec<(*const u8, usize)> {
        match &self.tables {
            Tables::Own(table) => table.memory().into(),
            Tables::Shared(parts) => parts.iter().flat_map(|table| table.memory()).collect(),
        }
    }

    /// Returns another handle of states that are shared.
    pub(crate) fn handle(&self) -> Option<States> {
        match &self.tables {
            Tables::Own(_) => None,
            Tables::Shared(parts) => Some(States { seed: self.seed, tables: Tables::Shared(Arc::clone(parts)) }),
        }
    }
}
