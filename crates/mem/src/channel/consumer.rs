// SPDX-License-Identifier: BSD-2-Clause
//! The consumer's side of a channel: copies the producer's slots into a ring of its own.

use super::{ChannelPage, ChannelWords};
use crate::mapped_range::SharedRef;
use crate::polled_rings::ChannelRef;
use crate::pos::{BufIdx, Span};
use crate::slot::{Limits, SharedLimits, SlotRing, SlotValue};
use crate::slot_copy::{SimdLevel, any_buf_changed, copy_slots};
use unetmap_abi::{NS_BUF_CHANGED, NS_MOREFRAG};

#[cfg(not(loom))]
use super::Waiter;

/// The consumer's side of a channel: the producer's slots, and the ring that they are copied to.
#[derive(Clone)]
pub struct Consumer {
    words: SharedRef<ChannelWords>,
    producer_slots: SlotRing,
    slots: SlotRing,
    limits: SharedLimits,
    simd: SimdLevel,
}

/// A handle to the `prod` word of one channel, for polling many channels; see [`Consumer::prod_word`].
#[derive(Clone)]
pub struct ProdWord {
    words: SharedRef<ChannelWords>,
}

impl ProdWord {
    /// The value of `prod`, not validated.
    #[inline(always)]
    pub fn get(&self) -> u32 {
        self.words.raw_prod()
    }
}

/// The result of receiving.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Received {
    /// Slots that were replaced, as they were invalid.
    pub invalid: u32,
    /// Bytes of packets in the valid ones.
    pub bytes: u64,
}

impl Consumer {
    /// Joins channel `index` of `page`, to copy slots from `producer_slots` to `slots`, validated against `limits`.
    /// `None` when the page has no such channel, or the rings differ in size.
    pub fn new(
        page: &ChannelPage,
        index: usize,
        producer_slots: SlotRing,
        slots: SlotRing,
        limits: impl Into<SharedLimits>,
        simd: SimdLevel,
    ) -> Option<Consumer> {
        let (words, limits) = (page.words_ref(index)?, limits.into());
        (producer_slots.slots() == slots.slots()).then_some(Consumer { words, producer_slots, slots, limits, simd })
    }

    /// The words of the channel.
    #[inline(always)]
    pub fn words(&self) -> &ChannelWords {
        &self.words
    }

    /// A handle to the words of the channel, for polling many channels.
    pub fn words_ref(&self) -> ChannelRef {
        ChannelRef(self.words.clone())
    }

    /// A handle to the `prod` word, for polling many channels without following pointers to each.
    pub fn prod_word(&self) -> ProdWord {
        ProdWord { words: self.words.clone() }
    }

    /// The consumer's own slots.
    #[inline(always)]
    pub fn slots(&self) -> &SlotRing {
        &self.slots
    }

    /// The producer's slots. The consumer may write those that are published and not released.
    #[inline(always)]
    pub(crate) fn producer_slots(&self) -> &SlotRing {
        &self.producer_slots
    }

    /// The producer, if it is in a futex wait on CPU `cpu`, the caller's.
    #[cfg(not(loom))]
    #[inline]
    pub fn futex_waiter(&self, cpu: u32) -> Option<Waiter> {
        let waits = self.words().producer_futex_waits_on(cpu);
        waits.then(|| Waiter { words: self.words.clone(), is_consumer: false })
    }

    /// The instruction set that copies the slots.
    #[cfg(target_arch = "x86_64")]
    #[inline(always)]
    pub(crate) fn simd(&self) -> SimdLevel {
        self.simd
    }

    /// The limits that slots are validated against.
    pub fn limits(&self) -> Limits {
        self.limits.now()
    }

    /// Copies the slots of `span`, which must lie in `[cons, prod)`, into the own ring and claims their cache lines. An
    /// invalid slot is delivered with length 0 in the buffer `placeholder`; it keeps `NS_MOREFRAG`, so a chain of
    /// fragments stays one.
    #[inline(always)]
    pub fn receive(&self, span: Span, placeholder: BufIdx) -> Received {
        if self.slots.slots().next(span.from) == span.to
            && let Some(mut slot) = self.words().inline_slot(span.to)
        {
            slot.flags &= !NS_BUF_CHANGED;
            self.slots.store(span.from, slot);
            return match self.limits().allow(slot) {
                true => Received { invalid: 0, bytes: slot.len.into() },
                false => self.replace_invalid(span, placeholder),
            };
        }
        self.receive_run(span, placeholder)
    }

    /// Not inlined into `receive`: one packet takes a few instructions, this path hundreds.
    #[inline(never)]
    fn receive_run(&self, span: Span, placeholder: BufIdx) -> Received {
        let copied = copy_slots(self.simd, &self.producer_slots, &self.slots, span, self.limits());
        if copied.valid {
            Received { invalid: 0, bytes: copied.bytes }
        } else {
            self.replace_invalid(span, placeholder)
        }
    }

    /// Empties the invalid slots of the own ring.
    #[cold]
    fn replace_invalid(&self, span: Span, placeholder: BufIdx) -> Received {
        let (mut received, limits) = (Received::default(), self.limits());
        for p in self.slots.slots().walk(span) {
            let slot = self.slots.load(p);
            if limits.allow(slot) {
                received.bytes += u64::from(slot.len);
            } else {
                self.slots
                    .store(p, SlotValue { buf_idx: placeholder, len: 0, flags: slot.flags & NS_MOREFRAG, ptr: 0 });
                received.invalid += 1;
            }
        }
        received
    }

    /// Writes the buffers that the program exchanged in the slots of `span` (it set `NS_BUF_CHANGED`) into the
    /// producer's slots. Must be called before the release. An index out of bounds is not written; returns the number
    /// of those.
    #[inline]
    pub fn return_buffers(&self, span: Span) -> u32 {
        if any_buf_changed(self.simd, &self.slots, span) { self.write_back_exchanged(span) } else { 0 }
    }

    /// A second call, by a successor of a process that crashed in between, changes nothing more.
    #[inline(never)]
    fn write_back_exchanged(&self, span: Span) -> u32 {
        let (mut invalid, limits) = (0, self.limits());
        for p in self.slots.slots().walk(span) {
            let v = self.slots.load(p);
            if v.flags & NS_BUF_CHANGED == 0 {
                continue;
            }
            if limits.index_ok(v.buf_idx) {
                self.producer_slots.set_buf_idx(p, v.buf_idx);
                self.producer_slots.set_flags(p, v.flags);
            } else {
                invalid += 1;
            }
            self.slots.set_flags(p, v.flags & !NS_BUF_CHANGED);
        }
        invalid
    }
}
