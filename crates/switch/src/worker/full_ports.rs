// SPDX-License-Identifier: BSD-2-Clause
//! Ports without room, which a stream of flooded packets leaves out.
//!
//! Offering a batch to a port costs some 30 ns, and counting the drops of a full one as much again: with 252 full ports
//! more than the delivery to the others. So a port whose ring had no room for a whole batch is left out of the batches
//! that follow, for [`FULL_PORT_SLOTS`] slots. The packets that it misses are counted in one sum; its own counter gets
//! them in one step, when it is offered packets again or the stream ends.

use std::sync::Arc;

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
    /// The ports, each with the sum when it was added.
    ports: Vec<(Arc<SwitchPort>, u64)>,
    /// Flooded packets until now, this batch included, and those of this batch.
    flooded: u64,
    of_batch: u64,
    /// Slots since the ports were last offered packets.
    slots: u32,
}

impl FullPorts {
    /// Counts the slots of a batch, flooded or not: after many all ports are offered packets again.
    #[inline]
    pub(crate) fn age(&mut self, slots: u32) {
        self.slots = self.slots.saturating_add(slots);
        if self.slots >= FULL_PORT_SLOTS {
            self.flush();
        }
    }

    /// Begins a batch with `flooded` flooded packets. All ports are offered packets if it is of another stream, or of
    /// none.
    pub(crate) fn begin_batch(&mut self, stream: StreamId, streaming: bool, flooded: u64) {
        if stream != self.stream || !streaming {
            self.flush();
            self.stream = stream;
        }
        self.flooded += flooded;
        self.of_batch = flooded;
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
        {
            *word |= 1 << (index % 64);
            self.ports.push((port.clone(), self.flooded));
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
        for (port, since) in self.ports.drain(..) {
            port.count_rx_drops(self.stream.2, until.saturating_sub(since));
        }
        (self.mask, self.slots) = ([0; 4], 0);
    }
}
