// SPDX-License-Identifier: BSD-2-Clause
//! Ports with many rings: what a poll reads of each, and one descriptor a direction to sleep on.
//!
//! ```text
//! poll: connection, tx set, rx set          a descriptor each, however many rings there are
//!                     |        '-- doorbell of rx 0, rx 1, ..
//!                     '-- doorbell of tx 0, tx 1, ..
//! ```
//! A set is made by the first sleep that needs it. It is not made again after a fork: the child's doorbells are the
//! same open files. Event loops ([`Port::wait_fds`](super::Port::wait_fds)) wait for the doorbells themselves.

use std::sync::OnceLock;
use std::sync::atomic::AtomicU64;
use std::time::Duration;

use unetmap_mem::PolledRings;
use unetmap_sys::event::{Epoll, EventFlags};

use crate::backend::WakeupSource;
use crate::port::ring::Ring;
use crate::tuning::MANY_RINGS;

/// See the module. All empty at a port with few rings.
#[derive(Default)]
pub(crate) struct ManyRings {
    pub(crate) tx: PolledRings,
    pub(crate) rx: PolledRings,
    /// The receive rings that were ready at the last poll, a bit for each by its number modulo 64. A hint: the program
    /// may have read since, and a sync may have brought packets.
    pub(crate) readable: AtomicU64,
    /// `None`: it cannot be made, for instance because no descriptor is left.
    tx_set: OnceLock<Option<Epoll>>,
    rx_set: OnceLock<Option<Epoll>>,
}

impl ManyRings {
    pub(crate) fn new(tx: &[Ring], rx: &[Ring]) -> ManyRings {
        ManyRings { tx: polled(tx), rx: polled(rx), ..ManyRings::default() }
    }

    /// Returns the set of the doorbells of `rings`, which are those of this direction; `None`: they are few, or there
    /// can be no set.
    pub(super) fn set(&self, is_tx: bool, rings: &[Ring]) -> Option<&Epoll> {
        let (polled, set) = if is_tx { (&self.tx, &self.tx_set) } else { (&self.rx, &self.rx_set) };
        if polled.is_empty() {
            return None;
        }
        set.get_or_init(|| set_of(rings)).as_ref()
    }

    fn made_sets<'r>(&self, tx: &'r [Ring], rx: &'r [Ring]) -> impl Iterator<Item = (&Epoll, &'r [Ring])> {
        let sets = [(&self.tx_set, tx), (&self.rx_set, rx)];
        sets.into_iter().filter_map(|(set, rings)| Some((set.get()?.as_ref()?, rings)))
    }

    /// Takes the doorbells out of the sets: others are to get their numbers.
    pub(super) fn clear_sets(&self, tx: &[Ring], rx: &[Ring]) {
        for (set, rings) in self.made_sets(tx, rx) {
            rings.iter().filter_map(wakeup_source).for_each(|source| _ = set.delete(source.doorbell()));
        }
    }

    /// Adds the doorbells that have their numbers.
    pub(super) fn fill_sets(&self, tx: &[Ring], rx: &[Ring]) {
        for (set, rings) in self.made_sets(tx, rx) {
            for (source, number) in rings.iter().filter_map(wakeup_source).zip(0..) {
                // One that is missing is found by the longest sleep.
                let _ = set.add(source.doorbell(), number, true, false);
            }
        }
    }
}

/// Clears the doorbells of those of `rings` that fired.
pub(crate) fn clear_fired(set: &Epoll, rings: &[Ring]) {
    let mut fired: Vec<(u64, EventFlags)> = Vec::new();
    // Those beyond the number of events that one call returns stay readable: the next sleep ends at once.
    if set.wait(&mut fired, Some(Duration::ZERO)).is_ok() {
        let fired = fired.iter().filter_map(|(number, _)| rings.get(usize::try_from(*number).ok()?));
        fired.filter_map(wakeup_source).for_each(|source| source.doorbell().clear());
    }
}

/// Returns what wakes the program when the ring has moved.
pub(crate) fn wakeup_source(ring: &Ring) -> Option<&dyn WakeupSource> {
    let backend = &ring.inner.backend;
    backend.tx().and_then(|tx| tx.wakeup()).or_else(|| backend.rx()?.wakeup())
}

fn polled(rings: &[Ring]) -> PolledRings {
    let mut all = PolledRings::default();
    if rings.len() >= MANY_RINGS {
        for ring in rings {
            let Some(channel) = ring.inner.backend.channel() else { return PolledRings::default() };
            all.push(&ring.inner.state, &ring.inner.view, channel);
        }
    }
    all
}

fn set_of(rings: &[Ring]) -> Option<Epoll> {
    let set = Epoll::new().ok()?;
    for (ring, number) in rings.iter().zip(0..) {
        set.add(wakeup_source(ring)?.doorbell(), number, true, false).ok()?;
    }
    Some(set)
}
