// SPDX-License-Identifier: BSD-2-Clause
//! A queue with the descriptors by which its peer and this process wake each other.

use std::os::fd::OwnedFd;

use crate::queue::{Queue, RingAddresses};
use crate::tuning::IDLE_KICKS;

/// A queue, running or not.
#[derive(Default)]
pub(crate) struct Vring {
    pub(crate) size: u32,
    pub(crate) addresses: RingAddresses,
    pub(crate) base: u32,
    /// `None` with a running queue: the guest does not kick, the queue is polled.
    pub(crate) kick: Option<OwnedFd>,
    pub(crate) call: Option<OwnedFd>,
    /// Times that the kick has ended a sleep since a packet was moved, up to [`IDLE_KICKS`].
    pub(crate) idle_kicks: u32,
    pub(crate) is_enabled: bool,
    /// While it runs.
    pub(crate) queue: Option<Queue>,
}

impl Vring {
    /// A queue that runs.
    pub(crate) fn running(queue: Queue, kick: Option<OwnedFd>, call: Option<OwnedFd>) -> Vring {
        Vring { queue: Some(queue), kick, call, is_enabled: true, ..Vring::default() }
    }

    pub(crate) fn is_active(&self) -> bool {
        self.is_enabled && self.queue.is_some()
    }

    /// The kick, unless it has ended sleep after sleep without a packet: such a queue is polled.
    pub(crate) fn usable_kick(&self) -> Option<&OwnedFd> {
        self.kick.as_ref().filter(|_| self.idle_kicks < IDLE_KICKS)
    }

    /// Stops the queue, and remembers its positions.
    pub(crate) fn stop(&mut self) {
        if let Some(queue) = self.queue.take() {
            queue.close();
            self.base = queue.base();
        }
        self.kick = None;
    }
}
