// SPDX-License-Identifier: BSD-2-Clause
//! Ports without room, which flooded packets leave out.
//!
//! Offering a batch to a port costs some 30 ns, and counting the drops of a full one as much again: with 252 full ports
//! more than the delivery to the others. So a port whose ring had no room for a whole batch, and for whose client the
//! switch waits no more, is left out of the batches that follow, by its bit in a mask, until its client has read. The
//! clients' positions are compared by the clock, so that comparing takes a small part of the time, however small the
//! batches are: [`FULL_PORT_COMPARE_NS`] for each port.
//!
//! The packets that full ports miss are counted in one sum for all. A port's own counter gets its part in one step:
//! when it is offered packets again, before the thread sleeps, and every [`FULL_PORT_COUNT_NS`].
//!
//! While all but one port are left out, flooded packets go to the one as a same-destination run.

use std::sync::Arc;

use unetmap_mem::ConsWord;
use unetmap_sys::clock::now_ns;

use super::config::SwitchConfig;
use crate::port::SwitchPort;
use crate::tuning::{FULL_PORT_COMPARE_NS, FULL_PORT_COUNT_NS};

/// The receive rings that are left out: those for packets of transmit rings with this number, in the switch whose
/// configuration has this address.
pub(crate) type RingsId = (usize, usize);

/// The full ports of one switch, for transmit rings with one number.
#[derive(Default)]
pub(crate) struct FullPorts {
    rings: RingsId,
    /// A bit for each port index.
    mask: [u64; 4],
    ports: Vec<FullPort>,
    /// Their clients' positions, in the same order: side by side, their cache lines are fetched in parallel.
    positions: Vec<FullAt>,
    /// Flooded packets until now, this batch included, and those of this batch.
    flooded: u64,
    of_batch: u64,
    /// `flooded` when the ports' counters were set last.
    counted: u64,
    /// The times of the last comparison, and at which the counters were set.
    compared_at: u64,
    counted_at: u64,
}

struct FullPort {
    port: Arc<SwitchPort>,
    index: usize,
    /// The sum when the port was added or its drops were counted.
    since: u64,
}

/// A client's position, and its value at which the ring is full.
struct FullAt {
    word: ConsWord,
    cons: u32,
}

impl FullAt {
    #[inline(always)]
    fn holds(&self) -> bool {
        self.word.get() == self.cons
    }
}

impl FullPorts {
    /// Returns the receive rings for packets of a transmit ring with this number.
    pub(crate) fn rings(switch: &SwitchConfig, ring: usize) -> RingsId {
        (std::ptr::from_ref(switch).addr(), ring)
    }

    /// At the start of a batch, flooded or not: if it is time, offers packets again to ports whose clients have read,
    /// and counts what the others missed.
    #[inline]
    pub(crate) fn tick(&mut self) {
        if !self.ports.is_empty() {
            self.tick_at(now_ns());
        }
    }

    #[inline(never)]
    fn tick_at(&mut self, now: u64) {
        if now.saturating_sub(self.compared_at) >= self.ports.len() as u64 * FULL_PORT_COMPARE_NS {
            self.compared_at = now;
            // Without a branch for each, so that no load waits for another.
            if !self.positions.iter().fold(true, |all, full| all & full.holds()) {
                self.remove_where(|full, _| !full.holds());
            }
        }
        if now.saturating_sub(self.counted_at) >= FULL_PORT_COUNT_NS {
            self.counted_at = now;
            self.settle();
        }
    }

    /// Counts what the ports missed until now: before the thread sleeps, perhaps for long.
    pub(crate) fn settle(&mut self) {
        if self.flooded != self.counted {
            self.counted = self.flooded;
            self.ports.iter_mut().for_each(|full| full.count(self.rings, self.flooded));
        }
    }

    /// Offers packets again to some of the ports.
    #[cold]
    fn remove_where(&mut self, mut is_removed: impl FnMut(&FullAt, usize) -> bool) {
        let mut at = 0;
        while let Some(full) = self.positions.get(at) {
            if is_removed(full, self.ports[at].index) {
                let mut port = self.ports.swap_remove(at);
                self.positions.swap_remove(at);
                port.count(self.rings, self.flooded);
                self.mask[port.index / 64] &= !(1 << (port.index % 64));
            } else {
                at += 1;
            }
        }
    }

    /// Begins a batch with `flooded` flooded packets of port `source`. All ports are offered packets if it is for other
    /// rings.
    pub(crate) fn begin_batch(&mut self, rings: RingsId, source: usize, flooded: u64) {
        if rings != self.rings {
            self.flush();
            self.rings = rings;
        } else if self.contains(source) {
            // A port misses no packets of its own.
            self.remove_where(|_, index| index == source);
        }
        self.flooded += flooded;
        self.of_batch = flooded;
    }

    /// Returns the port that flooded packets of port `source` go to, if all others are left out.
    #[inline]
    pub(crate) fn only_open<'a>(
        &self,
        rings: RingsId,
        switch: &'a SwitchConfig,
        source: usize,
    ) -> Option<&'a SwitchPort> {
        if rings != self.rings || self.ports.len() + 2 != switch.ports || self.contains(source) {
            return None;
        }
        let open = self.mask.iter().enumerate().flat_map(|(i, &word)| ones(!word).map(move |bit| 64 * i + bit));
        let mut others = open.filter(|&index| index != source);
        others.find_map(|index| switch.members.get(index)?.as_deref())
    }

    /// Returns the number of ports that are left out.
    #[inline]
    pub(crate) fn left_out(&self) -> u64 {
        self.ports.len() as u64
    }

    /// Counts packets that were flooded to [`FullPorts::only_open`].
    #[inline]
    pub(crate) fn add_flooded(&mut self, packets: u32) {
        self.flooded += u64::from(packets);
    }

    /// True if the port with this index is left out.
    #[inline(always)]
    pub(crate) fn contains(&self, index: usize) -> bool {
        self.mask.get(index / 64).is_some_and(|word| word & 1 << (index % 64) != 0)
    }

    /// Leaves a port out of the batches that follow: it had no room for this one.
    pub(crate) fn add(&mut self, index: usize, port: &Arc<SwitchPort>) {
        if let Some(word) = self.mask.get_mut(index / 64)
            && *word & 1 << (index % 64) == 0
            && let Some((cons, position)) = port.full_at(self.rings.1)
        {
            *word |= 1 << (index % 64);
            self.ports.push(FullPort { port: port.clone(), index, since: self.flooded });
            self.positions.push(FullAt { word: position, cons });
        }
    }

    /// Counts what the ports missed, the batch included, and offers them packets again.
    pub(crate) fn flush(&mut self) {
        self.count_all(self.flooded);
    }

    /// The same without this batch, which the ports are offered now.
    pub(crate) fn flush_before_batch(&mut self) {
        self.count_all(self.flooded - self.of_batch);
    }

    fn count_all(&mut self, until: u64) {
        self.ports.drain(..).for_each(|mut full| full.count(self.rings, until));
        self.positions.clear();
        self.mask = [0; 4];
    }
}

impl FullPort {
    /// Counts what it missed of `until` flooded packets.
    fn count(&mut self, rings: RingsId, until: u64) {
        self.port.count_rx_drops(rings.1, until.saturating_sub(self.since));
        self.since = until;
    }
}

/// The numbers of the bits that are set.
fn ones(mut word: u64) -> impl Iterator<Item = usize> {
    std::iter::from_fn(move || {
        let bit = word.trailing_zeros();
        word &= word.wrapping_sub(1);
        (bit < u64::BITS).then_some(bit as usize)
    })
}
