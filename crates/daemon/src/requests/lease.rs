//! Leases: numbers that identify processes in the locks of rings.

use std::collections::BTreeSet;
use std::os::fd::OwnedFd;

use unetmap_core::errno::EINVAL;
use unetmap_sys::socket;

use super::{Answer, Call, Reply};
use crate::ports::mediator::DAEMON_LEASE;

/// The lease of a process.
pub(crate) struct Lease {
    pub(crate) number: u32,
    /// Readable when the process has exited. A connection alone does not show that, as forked children keep it open.
    pub(crate) pidfd: Option<OwnedFd>,
}

/// All leases.
#[derive(Default)]
pub(crate) struct Leases {
    last: u32,
    in_use: BTreeSet<u32>,
}

impl Leases {
    fn allocate(&mut self) -> u32 {
        loop {
            self.last = self.last.wrapping_add(1).max(1);
            if self.last != DAEMON_LEASE && self.in_use.insert(self.last) {
                return self.last;
            }
        }
    }

    /// Frees a lease's number.
    pub(crate) fn free(&mut self, lease: &Lease) {
        self.in_use.remove(&lease.number);
    }
}

/// Lease: a number for the process that is connected.
pub(super) fn lease(call: &mut Call<'_>) -> Reply {
    if call.lease.is_some() {
        return Reply::Invalid(EINVAL, "a second lease on one connection");
    }
    let number = call.leases.allocate();
    let pidfd = socket::peer_pidfd(call.connection);
    let pidfd = pidfd.inspect_err(|e| {
        tracing::debug!(
            pid = call.peer.pid,
            "no pidfd; the end of the connection counts as the exit of the process: {e}"
        );
    });
    *call.lease = Some(Lease { number, pidfd: pidfd.ok() });
    Reply::Answer(Answer { lease: number, ..Default::default() })
}
