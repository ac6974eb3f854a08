// SPDX-License-Identifier: BSD-2-Clause
//! The states that count towards a limit, in a list for each value, so that expired ones are found when it is reached.

use std::sync::{Arc, Mutex};

use super::{Flow, NONE, StateTable, joined};
use crate::limits::{LimitKey, Limits, Refused};
use crate::rule::{Limit, RuleId, limit_field};
use crate::shared::locked;
use crate::tuning::MAX_LIMITS;

/// The limited states of one table.
#[derive(Debug)]
pub(super) struct Limited {
    /// The counts of all tables.
    limits: Arc<Mutex<Limits>>,
    /// By the place of a value in `limits`: its first state.
    first: Vec<u32>,
    /// By state: its neighbours.
    links: Vec<[u32; 2]>,
    /// The place of a value that the last [`StateTable::install`] found used up, although some of its states may have
    /// expired.
    reached: Option<u32>,
}

impl Limited {
    pub(super) fn new(max: usize, limits: Arc<Mutex<Limits>>) -> Limited {
        Limited { limits, first: vec![NONE; MAX_LIMITS], links: Vec::with_capacity(max), reached: None }
    }

    /// Counts a state no more that was not installed.
    pub(super) fn release(&self, limit: u32) {
        if limit != NONE {
            locked(&self.limits).release(limit);
        }
    }

    /// Puts a state into the list of a value.
    pub(super) fn insert(&mut self, limit: u32, at: u32) {
        let Some(first) = self.first.get_mut(limit as usize) else { return };
        let next = std::mem::replace(first, at);
        if self.links.len() <= at as usize {
            self.links.resize(at as usize + 1, [NONE; 2]);
        }
        self.links[at as usize] = [NONE, next];
        if let Some([prev, _]) = self.links.get_mut(next as usize) {
            *prev = at;
        }
    }

    /// Takes a state out of the list of a value, and counts it no more.
    pub(super) fn remove(&mut self, limit: u32, at: u32) {
        if limit == NONE {
            return;
        }
        let [prev, next] = self.links[at as usize];
        match prev {
            NONE => self.first[limit as usize] = next,
            prev => self.links[prev as usize][1] = next,
        }
        if let Some([of_next, _]) = self.links.get_mut(next as usize) {
            *of_next = prev;
        }
        self.release(limit);
    }
}

impl StateTable {
    /// Counts a state towards a limit. `None` if that is reached, or if too many different values are counted.
    pub(super) fn take_limit(
        &mut self,
        flow: &Flow,
        swapped: bool,
        rule: RuleId,
        limit: Limit,
        now: u64,
    ) -> Option<u32> {
        let (src, dst) = if swapped { (1, 0) } else { (0, 1) };
        let pick = |bit: u8, value: u128| if limit.fields & bit != 0 { value } else { 0 };
        let port = |bit: u8, value: u16| if limit.fields & bit != 0 { value } else { 0 };
        let key = LimitKey {
            rule,
            proto: flow.proto,
            is_ipv6: flow.is_ipv6,
            addresses: [
                pick(limit_field::SRC_ADDR, joined(flow.high[src], flow.low[src])),
                pick(limit_field::DST_ADDR, joined(flow.high[dst], flow.low[dst])),
            ],
            ports: [port(limit_field::SRC_PORT, flow.ports[src]), port(limit_field::DST_PORT, flow.ports[dst])],
        };
        let taken = locked(&self.limited.limits).take(key, limit.count, now);
        match taken {
            Ok(at) => return Some(at),
            Err(Refused::MayHaveExpired(at)) => self.limited.reached = Some(at),
            Err(Refused::Full) => self.counts.limited += 1,
        }
        None
    }

    /// Returns the place of the value that the last installation found used up, if some of its states may have expired:
    /// the packet is not counted as denied yet.
    pub(crate) fn reached_limit(&mut self) -> Option<u32> {
        self.limited.reached.take()
    }

    /// Returns the counts of limits.
    pub(crate) fn limits(&self) -> Arc<Mutex<Limits>> {
        Arc::clone(&self.limited.limits)
    }

    /// Removes expired states of a value. Returns whether there were some, and when the first of the others expires.
    pub(crate) fn expire_limited(&mut self, limit: u32, now: u64) -> (bool, u64) {
        let (mut has_removed, mut first) = (false, u64::MAX);
        let mut at = self.limited.first.get(limit as usize).copied().unwrap_or(NONE);
        while at != NONE {
            let next = self.limited.links[at as usize][1];
            let expires = self.entries[at as usize].expires;
            if expires <= now {
                self.remove(at);
                has_removed = true;
            } else {
                first = first.min(expires);
            }
            at = next;
        }
        (has_removed, first)
    }
}
