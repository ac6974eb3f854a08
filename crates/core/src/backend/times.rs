// SPDX-License-Identifier: BSD-2-Clause
//! The times of the packets in a ring's slots.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use unetmap_mem::{Pos, Slots, Span};

/// The sync that took the time of a packet.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum TimeSource {
    /// The sync of this port that sent or delivered the packet.
    Sync,
    /// The sync of the monitored port that moved the packet.
    MonitoredSync,
}

/// When a packet was sent or received.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SlotTime {
    /// Nanoseconds since 1970, of the machine's wall clock.
    pub ns: u64,
    /// The sync that took the time.
    pub source: TimeSource,
}

/// The times of a ring's slots.
pub(crate) struct Times {
    /// Nanoseconds since 1970; 0: none.
    slots: Box<[AtomicU64]>,
    count: Slots,
    source: TimeSource,
}

impl Times {
    pub(super) fn new(count: Slots, source: TimeSource) -> Times {
        Times { slots: (0..count.get()).map(|_| AtomicU64::new(0)).collect(), count, source }
    }

    /// The time of a slot.
    pub(crate) fn get(&self, at: Pos) -> Option<SlotTime> {
        let ns = self.slots.get(at.raw() as usize)?.load(Relaxed);
        (ns != 0).then_some(SlotTime { ns, source: self.source })
    }

    /// Records the time of a slot.
    pub(crate) fn set(&self, at: Pos, ns: u64) {
        if let Some(slot) = self.slots.get(at.raw() as usize) {
            slot.store(ns, Relaxed);
        }
    }

    pub(super) fn set_all(&self, span: Span, ns: u64) {
        self.count.walk(span).for_each(|at| self.set(at, ns));
    }
}
