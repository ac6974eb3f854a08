// SPDX-License-Identifier: BSD-2-Clause
//! Pipes: a channel to the peer process; the daemon takes no part in the data path.

use std::io;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

use unetmap_abi::NS_MOREFRAG;
use unetmap_mem::{
    BufIdx, ChannelRef, Consumer, Offsets, Pos, Producer, Received, RingShape, RingView, SimdLevel, SlotValue, Span,
};
use unetmap_sys::Doorbell;

use super::peer_doorbell::PeerDoorbell;
use super::sides::{Delivered, InvalidPeerIndex, NextRing, RingParts, Rx, Tx, WakeupSource};
use crate::tuning::PEER_POLL;

/// The sending end of a channel.
pub(crate) struct PipeTx {
    pub(crate) channel: Producer,
    /// Notified by the consumer when it released slots and this side sleeps.
    pub(crate) doorbell: Doorbell,
    /// Wakes the consumer.
    pub(crate) peer_doorbell: PeerDoorbell,
    /// Whether nobody notifies the doorbell.
    pub(crate) no_wakeups: bool,
}

impl PipeTx {
    pub(super) fn open(parts: &RingParts<'_>) -> Option<PipeTx> {
        let channel = Producer::new(&parts.channels(), parts.bound.channel as usize, parts.view.slots().clone())?;
        let (doorbell, peer_doorbell) = (parts.doorbell()?, parts.peer_doorbell()?);
        Some(PipeTx { channel, doorbell, peer_doorbell, no_wakeups: parts.no_wakeups })
    }

    /// Returns the position after the last slot of `span` that ends a packet, because a chain of fragments is sent as a
    /// whole; `None` if no packet ends in the span.
    #[inline]
    fn last_end(&self, span: Span) -> Option<Pos> {
        let (slots, ring) = (self.channel.slots().slots(), self.channel.slots());
        let mut end = span.to;
        while end != span.from {
            let last = slots.prev(end);
            if ring.flags(last) & NS_MOREFRAG == 0 {
                return Some(end);
            }
            end = last;
        }
        None
    }

    /// Sends the one slot `at`, before `next`, for the thread that the ring's lock is biased to, if it is a packet in
    /// an unchanged buffer. Otherwise does nothing and returns `false`.
    #[inline(always)]
    pub(crate) fn send_one(&self, at: Pos, next: Pos) -> bool {
        let is_sent = self.channel.try_publish_single(at, next);
        if is_sent && self.channel.words().take_consumer_wakeup_biased() {
            self.peer_doorbell.notify();
        }
        is_sent
    }

    /// Sends `span`; its last slot must end a packet.
    #[inline(always)]
    pub(crate) fn send_whole(&self, span: Span) {
        self.channel.publish(span);
        if self.channel.words().take_consumer_wakeup() {
            self.peer_doorbell.notify();
        }
    }
}

impl Tx for PipeTx {
    #[inline]
    fn send(&self, span: Span) -> u32 {
        if let Some(end) = self.last_end(span) {
            self.send_whole(Span { from: span.from, to: end });
        }
        // The receiver validates the slots.
        0
    }

    #[inline]
    fn completed(&self, known: Pos, sent: Pos) -> Result<Pos, InvalidPeerIndex> {
        self.channel.words().validated_cons(self.channel.slots().slots(), known, sent).ok_or(InvalidPeerIndex)
    }

    #[inline]
    fn peer_moved(&self, known: Pos) -> Option<u32> {
        self.channel.words().cons_if_moved(known)
    }

    fn wakeup(&self) -> Option<&dyn WakeupSource> {
        Some(self)
    }

    fn channel(&self) -> Option<ChannelRef> {
        Some(self.channel.words_ref())
    }

    fn missed_by_receiver(&self, sent: Pos) -> u32 {
        let slots = self.channel.slots().slots();
        self.channel.words().left_at(slots).map_or(0, |counted| slots.distance(counted, sent))
    }

    fn go_on(&self, next: NextRing<'_>) -> io::Result<()> {
        self.doorbell.replace(next.doorbell)?;
        self.peer_doorbell.replace(next.other)
    }
}

impl WakeupSource for PipeTx {
    fn request_wakeup(&self) -> bool {
        self.channel.words().producer_request_wakeup();
        if self.no_wakeups {
            self.doorbell.notify_after(PEER_POLL);
        }
        true
    }

    fn doorbell(&self) -> &Doorbell {
        &self.doorbell
    }
}

/// The receiving end of a channel.
pub(crate) struct PipeRx {
    pub(crate) channel: Consumer,
    /// Replaces a buffer that does not exist.
    pub(crate) placeholder: AtomicU32,
    /// Where in their buffers the program expects packets.
    pub(crate) offsets: Offsets,
    /// Notified by the producer when it sent slots and this side sleeps.
    pub(crate) doorbell: Doorbell,
    /// Wakes the producer.
    pub(crate) peer_doorbell: PeerDoorbell,
    /// Whether nobody notifies the doorbell.
    pub(crate) no_wakeups: bool,
}

impl PipeRx {
    pub(super) fn open(parts: &RingParts<'_>) -> Option<PipeRx> {
        let (bound, slots) = (parts.bound, parts.view.shape().slots);
        let peer = RingShape { offset: bound.peer_offset, slots, id: bound.id, dir: 0 };
        let peer_slots = RingView::new(parts.region, peer)?.slots().clone();
        let (own_slots, limits) = (parts.view.slots().clone(), parts.region.shared_limits());
        Some(PipeRx {
            channel: Consumer::new(
                &parts.channels(),
                bound.channel as usize,
                peer_slots,
                own_slots,
                limits,
                SimdLevel::best(),
            )?,
            placeholder: AtomicU32::new(bound.placeholder_or_longest),
            offsets: parts.offsets(),
            doorbell: parts.doorbell()?,
            peer_doorbell: parts.peer_doorbell()?,
            no_wakeups: parts.no_wakeups,
        })
    }

    /// Empties packets of `span` that would end outside their buffer at the program's offset. Returns how many.
    #[inline(never)]
    fn validate_offsets(&self, span: Span) -> u32 {
        let (ring, limits) = (self.channel.slots(), self.channel.limits());
        let mut bad = 0;
        for p in ring.slots().walk(span) {
            let slot = ring.load(p);
            if !self.offsets.allow(limits, slot) {
                ring.store(p, SlotValue { len: 0, ptr: self.offsets.put(slot.ptr, 0), ..slot });
                bad += 1;
            }
        }
        bad
    }
}

impl Rx for PipeRx {
    #[inline(always)]
    fn release(&self, span: Span) -> u32 {
        let bad = self.channel.return_buffers(span);
        self.channel.words().release(span.to);
        if self.channel.words().take_producer_wakeup() {
            self.peer_doorbell.notify();
        }
        bad
    }

    #[inline(always)]
    fn deliver(&self, held: Pos, received: Pos) -> Result<Delivered, InvalidPeerIndex> {
        let to = self
            .channel
            .words()
            .validated_prod(self.channel.slots().slots(), held, received)
            .ok_or(InvalidPeerIndex)?;
        let span = Span { from: received, to };
        let placeholder = BufIdx(self.placeholder.load(Relaxed));
        let got = if to == received { Received::default() } else { self.channel.receive(span, placeholder) };
        let mut bad = got.invalid;
        if self.offsets.mask != 0 {
            bad += self.validate_offsets(span);
        }
        Ok(Delivered { to, bad, bytes: got.bytes })
    }

    #[inline]
    fn peer_moved(&self, received: Pos) -> Option<u32> {
        self.channel.words().prod_if_moved(received)
    }

    fn wakeup(&self) -> Option<&dyn WakeupSource> {
        Some(self)
    }

    fn channel(&self) -> Option<ChannelRef> {
        Some(self.channel.words_ref())
    }

    fn undelivered(&self, received: Pos) -> u32 {
        let slots = self.channel.slots().slots();
        let Some(to) = slots.pos(self.channel.words().raw_prod()) else { return 0 };
        // A sender that has not noticed the end of the daemon may go on.
        self.channel.words().leave(to);
        slots.distance(received, to)
    }

    fn go_on(&self, next: NextRing<'_>) -> io::Result<()> {
        self.placeholder.store(next.bound.placeholder_or_longest, Relaxed);
        self.doorbell.replace(next.doorbell)?;
        self.peer_doorbell.replace(next.other)
    }
}

impl WakeupSource for PipeRx {
    fn request_wakeup(&self) -> bool {
        self.channel.words().consumer_request_wakeup();
        if self.no_wakeups {
            self.doorbell.notify_after(PEER_POLL);
        }
        true
    }

    fn doorbell(&self) -> &Doorbell {
        &self.doorbell
    }
}
