// SPDX-License-Identifier: BSD-2-Clause
//! Work that is kept back so that the daemon can be replaced.

use std::time::Instant;

use crate::server::work::Work;
use crate::tuning::handover::DRAIN_LIMIT;

pub(crate) struct Drain {
    /// The connection of the process that is to replace this one.
    pub(super) successor: u64,
    /// When work is no longer kept back or, if it `is_over`, when it can be again.
    pub(super) until: Instant,
    pub(super) held: Vec<(u32, Work)>,
    pub(super) is_over: bool,
}

impl Drain {
    pub(super) fn new(successor: u64) -> Drain {
        Drain { successor, until: Instant::now() + DRAIN_LIMIT, held: Vec::new(), is_over: false }
    }

    /// Keeps back work that would begin something while only what is in progress is completed; else returns it.
    pub(crate) fn hold_back(&mut self, uid: u32, work: Work) -> Option<Work> {
        let begins = match work {
            Work::Message(token) => token != self.successor,
            Work::Admit => true,
            _ => false,
        };
        if self.is_over || !begins {
            return Some(work);
        }
        self.held.push((uid, work));
        None
    }
}
