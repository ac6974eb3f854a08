// SPDX-License-Identifier: BSD-2-Clause
//! The producer's side of a channel.

use super::{ChannelPage, ChannelWords};
use crate::mapped_range::SharedRef;
use crate::polled_rings::ChannelRef;
use crate::pos::{Pos, Span};
use crate::slot::SlotRing;
use unetmap_abi::{NS_BUF_CHANGED, NS_MOREFRAG};

#[cfg(not(loom))]
use super::Waiter;

/// The producer's side of a channel.
#[derive(Clone)]
pub struct Producer {
    words: SharedRef<ChannelWords>,
    slots: SlotRing,
}

/// A handle to the `cons` word of one channel, for polling many channels; see [`Producer::cons_word`].
#[derive(Clone)]
pub struct ConsWord {
    words: SharedRef<ChannelWords>,
}

impl ConsWord {
    /// The value of `cons`, not validated.
    #[inline(always)]
    pub fn get(&self) -> u32 {
        self.words.raw_cons()
    }
}

impl Producer {
    /// Joins channel `index` of `page` as the owner of `slots`; `None` when the page has no such channel.
    pub fn new(page: &ChannelPage, index: usize, slots: SlotRing) -> Option<Producer> {
        Some(Producer { words: page.words_ref(index)?, slots })
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

    /// A handle to the `cons` word, for polling many channels without following pointers to each.
    pub fn cons_word(&self) -> ConsWord {
        ConsWord { words: self.words.clone() }
    }

    /// The producer's own slots.
    #[inline(always)]
    pub fn slots(&self) -> &SlotRing {
        &self.slots
    }

    /// The consumer, if it is in a futex wait on CPU `cpu`, the caller's.
    #[cfg(not(loom))]
    #[inline]
    pub fn futex_waiter(&self, cpu: u32) -> Option<Waiter> {
        self.words().consumer_futex_waits_on(cpu).then(|| self.waiter())
    }

    /// The consumer, after `publish`, if it sleeps on its doorbell.
    #[cfg(not(loom))]
    #[inline]
    pub fn doorbell_waiter(&self) -> Option<Waiter> {
        self.words().consumer_waits_on_doorbell().then(|| self.waiter())
    }

    #[cfg(not(loom))]
    #[cold]
    fn waiter(&self) -> Waiter {
        Waiter { words: self.words.clone(), is_consumer: true }
    }

    /// Publishes the slot `at`, before `next`, which no earlier call has published, if it is a whole packet whose
    /// buffer was not exchanged. Returns whether it did.
    #[inline(always)]
    pub fn try_publish_single(&self, at: Pos, next: Pos) -> bool {
        let slot = self.slots.load_by_field(at);
        let publishes = slot.flags & (NS_BUF_CHANGED | NS_MOREFRAG) == 0;
        if publishes {
            self.words().publish_one(next, slot);
        }
        publishes
    }

    /// Publishes the slots of `span`, the first of which no earlier call has published.
    #[inline(always)]
    pub fn publish(&self, span: Span) {
        if self.slots.slots().next(span.from) != span.to {
            return self.words().publish(span.to);
        }
        let slot = self.slots.load_by_field(span.from);
        if slot.flags & NS_BUF_CHANGED != 0 {
            // A consumer that reads the inline copy does not access this slot, so it cannot clear the flag here.
            self.slots.set_flags(span.from, slot.flags & !NS_BUF_CHANGED);
        }
        self.words().publish_one(span.to, slot);
    }
}
