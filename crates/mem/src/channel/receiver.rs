// SPDX-License-Identifier: BSD-2-Clause
//! The consumer's side of a channel whose producer writes into the consumer's slots.

use super::{ChannelPage, ChannelWords};
use crate::mapped_range::SharedRef;
use crate::polled_rings::ChannelRef;
use crate::pos::Span;
use crate::slot::SlotRing;
use crate::slot_copy::claim_lines;

/// A consumer without a second ring: its producer, which is trusted, writes into the consumer's own slots.
///
/// ```text
/// the consumer's slots    ... [ cons ........ prod ) ...
///                               to be read           free: the producer fills them and the buffers that they name
/// ```
#[derive(Clone)]
pub struct Receiver {
    words: SharedRef<ChannelWords>,
    slots: SlotRing,
}

impl Receiver {
    /// Joins channel `index` of `page` as the owner of `slots`; `None` when the page has no such channel.
    pub fn new(page: &ChannelPage, index: usize, slots: SlotRing) -> Option<Receiver> {
        Some(Receiver { words: page.words_ref(index)?, slots })
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

    /// The consumer's own slots.
    #[inline(always)]
    pub fn slots(&self) -> &SlotRing {
        &self.slots
    }

    /// Claims the cache lines of `span`, which must lie in `[cons, prod)`: the next access to them is the producer's
    /// write.
    #[inline]
    pub fn claim(&self, span: Span) {
        claim_lines(&self.slots, span);
    }
}
