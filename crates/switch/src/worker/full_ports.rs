// SPDX-License-Identifier: BSD-2-Clause
//! Ports without room, which a stream of flooded packets leaves out.
//!
//! Offering a batch to a port costs some 30 ns, and counting the drops of a full one as much again: with 252 full ports
//! more than the delivery to the others. So a port whose ring had no room for a whole batch, and for whose client the
//! switch waits no more, is left out of the batches that follow until its client has read. The client's position is
//! compared after each [`FULL_PORT_SLOTS`] slots, and before a small batch, such as the rest of a ring. The packets
//! that such a port misses are counted in one sum. Its own counter gets them in one step: at each comparison, when it
//! is offered packets again, and before the thread waits.
//!
//! While all but one port are left out, flooded packets go to the one as a same-destination run.

use std::sync::Arc;

use super::config::SwitchConfig;
use crate::port::SwitchPort;
use crate::tuning::FULL_PORT_SLOTS;

/// The stream that ports are full for: a switch, by the address of its configuration, the index of the sending port,
/// and the number of its ring.
pub(crate) type StreamId = (usize, u8, usize);

/// The full ports of one stream.
#[derive(Default)]
pub(crate) struct FullPorts {
    stream: StreamId,
    /// A bit for each port index.
    mask: [u64; 4],
    ports: Vec<FullPort>,
    /// Flooded packets until now, this batch included, and those of this batch.
    flooded: u64,
    of_batch: u64,
    /// `flooded` when the clients' positions were compared last.
    counted: u64,
    /// Slots since the clients' positions were compared, at least: [`FULL_PORT_SLOTS`] after a wait.
    slots: u32,
}

struct FullPort {
    port: Arc<SwitchPort>,
    index: usize,
    /// The sum when the port was added or its drops were counted.
    since: u64,
    /// The client's position at which its ring is full.
    cons: u32,
}

impl FullPorts {
    /// Returns the stream of this ring.
    pub(crate) fn stream(switch: &SwitchConfig, port: &SwitchPort, ring: usize) -> StreamId {
        (std::ptr::from_ref(switch).addr(), port.index(), ring)
    }

    /// Counts the slots of a batch, flooded or not: after many, ports whose clients have read are offered packets
    /// again.
    #[inline]
    pub(crate) fn age(&mut self, slots: u32) {
        self.slots = self.slots.saturating_add(slots);
        if self.slots >= FULL_PORT_SLOTS {
            self.compare();
        }
    }

    /// Before the thread waits, perhaps for long: counts what the ports missed. The positions are compared again before
    /// the next batch.
    pub(crate) fn settle(&mut self) {
        if self.flooded != self.counted {
            self.compare();
        }
        self.slots = FULL_PORT_SLOTS;
    }

    #[inline(never)]
    fn compare(&mut self) {
        let (ring, flooded, mask) = (self.stream.2, self.flooded, &mut self.mask);
        (self.slots, self.counted) = (0, flooded);
        self.ports.retain_mut(|full| {
            full.port.count_rx_drops(ring, flooded.saturating_sub(full.since));
            full.since = flooded;
            let is_full = full.port.rx_cons_is(ring, full.cons);
            if !is_full {
                mask[full.index / 64] &= !(1 << (full.index % 64));
            }
            is_full
        });
    }

    /// Begins a batch with `flooded` flooded packets. All ports are offered packets if it is of another stream; those
    /// whose clients have read also if it is small.
    pub(crate) fn begin_batch(&mut self, stream: StreamId, streaming: bool, flooded: u64) {
        if stream != self.stream {
            self.flush();
            self.stream = stream;
        } else if !streaming {
            self.compare();
        }
        self.flooded += flooded;
        self.of_batch = flooded;
    }

    /// Returns the port that flooded packets of the stream go to, if all others are left out.
    #[inline]
    pub(crate) fn only_open<'a>(
        &mut self,
        stream: StreamId,
        switch: &'a SwitchConfig,
        streaming: bool,
    ) -> Option<&'a SwitchPort> {
        if stream != self.stream || self.ports.is_empty() {
            return None;
        }
        if !streaming {
            self.compare();
        }
        if self.ports.len() + 2 != switch.ports {
            return None;
        }
        // The ports themselves are in other cache lines.
        let is_open = |index: usize| index != usize::from(stream.1) && !self.contains(index);
        let mut all = switch.members.iter().enumerate().filter_map(|(index, port)| Some((index, port.as_ref()?)));
        all.find(|(index, _)| is_open(*index)).map(|(_, port)| &**port)
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
            && let Some(cons) = port.full_at(self.stream.2)
        {
            *word |= 1 << (index % 64);
            self.ports.push(FullPort { port: port.clone(), index, since: self.flooded, cons });
        }
    }

    /// Counts what the ports missed, the batch included, and offers them packets again.
    pub(crate) fn flush(&mut self) {
        self.count(self.flooded);
    }

    /// The same without this batch, which the ports are offered now.
    pub(crate) fn flush_before_batch(&mut self) {
        self.count(self.flooded - self.of_batch);
    }

    fn count(&mut self, until: u64) {
        for full in self.ports.drain(..) {
            full.port.count_rx_drops(self.stream.2, until.saturating_sub(full.since));
        }
        (self.mask, self.slots) = ([0; 4], 0);
    }
}
