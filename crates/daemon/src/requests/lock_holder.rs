// SPDX-License-Identifier: BSD-2-Clause
//! Lock holders: processes, and the numbers that identify them in the locks of rings.

use std::collections::BTreeSet;
use std::os::fd::OwnedFd;

use crate::ports::mediators::DAEMON_HOLDER;

/// A process that has a holder ID.
pub(crate) struct LockHolder {
    pub(crate) id: u32,
    /// Readable when the process has exited. A connection alone does not show that, as forked children keep it open.
    pub(crate) pidfd: Option<OwnedFd>,
}

/// The holder IDs in use.
#[derive(Default)]
pub(crate) struct LockHolders {
    last: u32,
    in_use: BTreeSet<u32>,
}

impl LockHolders {
    /// Gives out a holder ID.
    pub(super) fn allocate(&mut self) -> u32 {
        loop {
            self.last = self.last.wrapping_add(1).max(1);
            if self.last != DAEMON_HOLDER && self.in_use.insert(self.last) {
                return self.last;
            }
        }
    }

    /// The holder ID that was given out last.
    pub(crate) fn last(&self) -> u32 {
        self.last
    }

    /// Records the holder IDs that an earlier daemon gave out.
    pub(crate) fn restore(&mut self, last: u32, in_use: impl Iterator<Item = u32>) {
        self.last = last;
        self.in_use = in_use.collect();
    }

    /// Frees a holder ID.
    pub(crate) fn free(&mut self, holder: &LockHolder) {
        self.in_use.remove(&holder.id);
    }
}
