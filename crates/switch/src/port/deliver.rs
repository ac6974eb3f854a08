// SPDX-License-Identifier: BSD-2-Clause
//! The ways of a batch into a port: as a run, as copies, or packet by packet.

use std::sync::atomic::Ordering::Relaxed;

use unetmap_mem::{MAC_PAIR_BYTES, SlotHead};

use super::SwitchPort;
use super::context::BatchContext;
use super::vnet_hdr::deliver_converted;
use crate::forward::Packet;

impl SwitchPort {
    /// True if packets from another port's transmit ring `ring` begin at the start of the buffer.
    #[inline(always)]
    fn rx_without_offsets(&self, ring: usize) -> bool {
        self.rx_for(ring).is_some_and(|rx| rx.offsets.none())
    }

    /// True if same-destination runs of another port's transmit ring `ring` can be delivered: neither a virtio-net
    /// header nor an offset precedes the packets, and their buffers may be swapped.
    #[inline(always)]
    pub(crate) fn accepts_runs(&self, ring: usize) -> bool {
        self.vnet_hdr_len() == 0 && self.rx_without_offsets(ring) && !self.keeps_buffers.load(Relaxed)
    }

    /// True if packets of this batch can be copied unchanged into buffers of this port.
    #[inline]
    pub(crate) fn accepts_copies(&self, context: &BatchContext<'_>) -> bool {
        let source_region = &context.port.region;
        self.accepts_runs(context.ring_index)
            && !self.region.is_same_mapping(source_region)
            && self.region.limits().buf_size >= source_region.limits().buf_size
    }

    /// Delivers a same-destination run: the packets of a batch from slot `at` on that begin with `addresses`, as far as
    /// there is room. Publishes them, and wakes the client if it sleeps. Returns how many.
    #[inline]
    pub(crate) fn deliver_run(&self, context: &BatchContext<'_>, (addresses, at): ([u8; MAC_PAIR_BYTES], u32)) -> u32 {
        let Some(rx) = self.rx_for(context.ring_index) else { return 0 };
        context.backpressure.note_delivery(self.index());
        let mut done = 0;
        loop {
            let (packets, full) = rx.fill_run(&self.region, context.source(), addresses, at + done);
            done += packets;
            if !full || !rx.wait_for_room(context.backpressure) {
                context.ring.count_copies(done.into());
                return done;
            }
        }
    }

    /// Delivers copies of single-slot packets of a port whose [copies it accepts](SwitchPort::accepts_copies), as
    /// [`SwitchPort::deliver`] does.
    #[inline]
    pub(crate) fn deliver_copies(&self, context: &BatchContext<'_>, packets: &[SlotHead]) -> bool {
        let Some(rx) = self.rx_for(context.ring_index) else { return true };
        context.backpressure.note_delivery(self.index());
        let mut left = packets;
        loop {
            let done = rx.fill_copies(&self.region, context.source(), left);
            left = left.get(done..).unwrap_or_default();
            if left.is_empty() {
                return true;
            }
            if !rx.wait_for_room(context.backpressure) {
                break;
            }
        }
        rx.count_drops(left.len() as u64);
        left.len() < packets.len()
    }

    /// Delivers packets of a batch to the receive ring that corresponds to their transmit ring, as far as there is
    /// room; publishes them, and wakes the client if it sleeps. May wait for a client without room; counts what is
    /// dropped. With `unicast` the packets go to no other port, so that within one region buffers are swapped. Returns
    /// false if all were dropped.
    #[inline]
    pub(crate) fn deliver(
        &self,
        context: &BatchContext<'_>,
        (mut packets, unicast): (impl Iterator<Item = Packet>, bool),
    ) -> bool {
        let Some(rx) = self.rx_for(context.ring_index) else { return true };
        context.backpressure.note_delivery(self.index());
        if self.vnet_hdr_len() != context.port.vnet_hdr_len() {
            deliver_converted(rx, self, context, packets);
            return true;
        }
        let without_offsets = context.batch.offsets.mask == 0 && rx.offsets.none();
        let may_swap = [self, context.port].iter().all(|port| !port.keeps_buffers.load(Relaxed));
        let swap = unicast && without_offsets && may_swap && self.region.is_same_mapping(&context.port.region);
        let mut next = packets.next();
        let first = next;
        let mut any = false;
        while let Some(packet) = next {
            next = rx.fill_packets(&self.region, (context.source(), swap), packet, &mut packets);
            any |= next != first;
            if next.is_none() {
                return true;
            }
            if !rx.wait_for_room(context.backpressure) {
                break;
            }
        }
        let dropped = usize::from(next.is_some()) + packets.count();
        rx.count_drops(dropped as u64);
        any
    }
}
