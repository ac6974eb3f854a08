//! Packets that begin behind the start of their buffers: the option OFFSETS of a port's rings.
//!
//! A sent packet is where its slot says, a received one is written where the receiver's slot says; the other's slot tells
//! nothing. Such packets are copied one by one.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering::Relaxed};

use unetmap_mem::{BufIdx, Frame, Limits, Offsets, Pos, Region, SlotValue, Span};

use super::{Attached, Batch, Incoming, Outgoing, Packet};

/// Where the packets of a ring may begin. The daemon sets it before a program has the ring.
#[derive(Default)]
pub(crate) struct Begin {
    mask: AtomicU64,
    max: AtomicU32,
}

impl Begin {
    #[inline(always)]
    pub(crate) fn get(&self) -> Offsets {
        Offsets { mask: self.mask.load(Relaxed), max: self.max.load(Relaxed) }
    }

    fn set(&self, offsets: Offsets) {
        self.max.store(offsets.max, Relaxed);
        self.mask.store(offsets.mask, Relaxed);
    }
}

impl Attached {
    /// Where the packets of transmit or receive ring `ring` begin from now on.
    pub fn set_offsets(&self, transmit: bool, ring: usize, offsets: Offsets) {
        let begin = match transmit {
            true => self.tx.get(ring).map(|tx| &tx.begin),
            false => self.rx.get(ring).map(|rx| &rx.begin),
        };
        if let Some(begin) = begin {
            begin.set(offsets);
        }
    }

    /// Whether what comes from another port's transmit ring `ring` is to begin where its buffer does.
    #[inline(always)]
    pub(in super::super) fn begins_at_start(&self, ring: usize) -> bool {
        self.incoming(ring).is_some_and(|rx| rx.begin.get().mask == 0)
    }
}

impl Batch<'_> {
    /// What a slot of the batch says is in its buffer, from where it begins.
    #[inline(always)]
    pub(in super::super) fn frame<'r>(&self, region: &'r Region, slot: SlotValue) -> Frame<'r> {
        self.offsets.within(region.frame(slot.buf_idx), || slot.ptr)
    }
}

impl Outgoing {
    /// Slots whose packets would end outside their buffers are bad. Whether there are any.
    #[cold]
    pub(crate) fn judge_offsets(&self, span: Span, offsets: Offsets, limits: Limits) -> bool {
        let slots = self.line.slots();
        let mut bad = false;
        for p in slots.slots().walk(span) {
            let slot = slots.load(p);
            if offsets.of(slot.ptr) + u32::from(slot.len) > limits.buf_size {
                slots.store(p, SlotValue { buf_idx: BufIdx(0), len: 0, ..slot });
                bad = true;
            }
        }
        bad
    }
}

impl Incoming {
    /// Bytes of a packet that each slot can hold, wherever it may begin; at least 1, for who divides by it.
    pub(crate) fn size(&self, region: &Region) -> usize {
        (region.limits().buf_size.saturating_sub(self.begin.get().max) as usize).max(1)
    }

    /// Whether the slots from `to` on have room for those of a packet.
    #[cold]
    pub(crate) fn fits(&self, region: &Region, batch: &Batch<'_>, packet: Packet, to: Pos) -> bool {
        let (slots, begin, size) = (self.line.slots(), self.begin.get(), region.limits().buf_size);
        (0..packet.frags).map(u32::from).all(|i| {
            let offset = begin.of(slots.ptr(slots.slots().add(to, i)));
            let len = batch.slots.len(batch.at(u32::from(packet.at) + i));
            u32::from(len) + offset <= size
        })
    }
}
