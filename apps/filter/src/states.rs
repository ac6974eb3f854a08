// SPDX-License-Identifier: BSD-2-Clause
//! The states that a thread uses: its own, or those that all threads share.

use std::sync::Arc;

use crate::packet::Headers;
use crate::reply::MAX_REPLY;
use crate::rule::RuleId;
use crate::shared::{Parts, locked};
use crate::state::{StateCounts, StateInfo, StateTable};
use crate::tuning::{KEEPALIVE_PERIOD, MIN_PART, PARTS_PER_THREAD};

/// States.
#[derive(Debug)]
pub struct States {
    seed: u64,
    tables: Tables,
}

/// How far the walk of a thread through states is, in which idle connections are asked.
#[derive(Debug, Default)]
pub(crate) struct Walk {
    /// When the next one begins.
    due: u64,
    /// Whether one is under way.
    pub(crate) is_going_on: bool,
    part: usize,
    at: usize,
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

    /// Uses the table that a packet's state is in, to install that. If a limit is reached, states that count towards it
    /// and have expired are removed, and `run` is called again.
    #[inline]
    pub(crate) fn install<R>(&mut self, h: &Headers, now: u64, mut run: impl FnMut(&mut StateTable) -> R) -> R {
        let mut once = |states: &mut States| {
            states.of(h, |table| {
                let result = run(table);
                (result, table.reached_limit())
            })
        };
        let (mut result, mut reached) = once(self);
        if reached.is_some_and(|limit| self.expire_limited(limit, now)) {
            (result, reached) = once(self);
        }
        if reached.is_some() {
            self.of(h, |table| table.counts.limited += 1);
        }
        result
    }

    /// Removes expired states that count towards the limit of a value. Returns whether there were some.
    fn expire_limited(&mut self, limit: u32, now: u64) -> bool {
        let limits = match &self.tables {
            Tables::Own(table) => table.limits(),
            Tables::Shared(parts) => match parts.iter().next() {
                Some(table) => table.limits(),
                None => return false,
            },
        };
        locked(&limits).begin_walk(limit);
        let mut total = (false, u64::MAX);
        let mut add = |(has_removed, first): (bool, u64)| total = (total.0 | has_removed, total.1.min(first));
        match &mut self.tables {
            Tables::Own(table) => add(table.expire_limited(limit, now)),
            Tables::Shared(parts) => parts.iter().for_each(|mut table| add(table.expire_limited(limit, now))),
        }
        locked(&limits).end_walk(limit, total.1, now);
        total.0
    }

    /// Goes on with the walk of a thread of `threads`, or begins one if it is time: see [`StateTable::ask_idle`].
    pub(crate) fn ask_idle(
        &mut self,
        walk: &mut Walk,
        (thread, threads): (usize, usize),
        now: u64,
        passes: impl Fn(RuleId) -> bool,
        send: impl FnMut(bool, &[u8; MAX_REPLY], usize),
    ) {
        if !walk.is_going_on {
            if now < walk.due {
                return;
            }
            *walk = Walk { due: now + KEEPALIVE_PERIOD, is_going_on: true, part: thread, at: 0 };
        }
        walk.is_going_on = match &mut self.tables {
            Tables::Own(table) => table.ask_idle(&mut walk.at, now, passes, send),
            Tables::Shared(parts) => {
                if let Some(mut table) = parts.get(walk.part)
                    && !table.ask_idle(&mut walk.at, now, passes, send)
                {
                    (walk.part, walk.at) = (walk.part + threads, 0);
                }
                walk.part < parts.len()
            }
        };
    }

    /// Whether there may be states.
    #[inline]
    pub(crate) fn may_have_some(&self) -> bool {
        match &self.tables {
            Tables::Own(table) => table.counts.states > 0,
            Tables::Shared(_) => true,
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

    /// Returns the states among the next `n` places from `at` on; `None` at the end. Those that threads share are
    /// listed by [`crate::SharedTables::states`].
    pub fn list_part(&self, at: &mut usize, n: usize, now: u64) -> Option<Vec<StateInfo>> {
        match &self.tables {
            Tables::Own(table) => table.list_part(at, n, now),
            Tables::Shared(_) => None,
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
