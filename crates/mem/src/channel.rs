// SPDX-License-Identifier: BSD-2-Clause
//! A channel: a one-way single-producer single-consumer descriptor ring between two peers that do not trust each other.
//!
//! ```text
//!            the producer's slots (n of them, in the region)
//!            ... [ cons ........ prod ) ...
//!                  published, not     free: the producer fills them
//!                  yet released
//!   producer -- writes prod, reads cons -->  two words, two cache lines
//!   consumer -- reads prod, writes cons -->
//! ```
//! The consumer owns `[cons, prod)`, the producer owns the rest. Each word has one writer (the daemon takes the place
//! of a crashed peer) and moves with one atomic store, so both words are valid after a crash of either peer at any
//! instruction. Slots that a crashed producer had not published are still its own. Slots that a crashed consumer had
//! not released are delivered to its successor again, from after the last slot whose buffer the consumer had exchanged.
//!
//! The consumer borrows slots: it copies the producer's slots into its own ring and works on the copies. On release it
//! writes back the slots whose buffer its program exchanged: index and `NS_BUF_CHANGED`.
//!
//! Wake-ups: before a side sleeps on its doorbell it sets its wake-up request word, executes a fence, and checks the
//! position once more. A side that has moved a position executes a fence and tests the other side's request word. It
//! makes a system call only if the request is set.
//!
//! Futex waits: a side that has no work and finds that its peer last ran on the same CPU yields that CPU by a short
//! futex wait on its own request word. No `membarrier` is needed: on one CPU program order is enough. If one of the two
//! migrates to another CPU at that moment the wake-up may be lost, and the wait ends by its time limit. A side that has
//! moved a position and finds a futex waiter on its own CPU may defer the wake-up until it has no work itself.

use crate::mapped_range::{MappedRange, SharedRef};

mod consumer;
#[cfg(not(loom))]
mod futex_wait;
mod producer;
mod receiver;
mod wakeup;
mod words;

pub use consumer::{Consumer, ProdWord, Received};
#[cfg(not(loom))]
pub use futex_wait::{FutexWaitSet, Waiter};
pub use producer::{ConsWord, Producer};
pub use receiver::Receiver;
pub use words::{ChannelWords, fence_before_sleep};

/// Bytes of one channel's words in a channel page.
pub const CHANNEL_BYTES: usize = 512;

/// The mapped page or pages with the words of all channels of a pipe or port.
#[derive(Clone)]
pub struct ChannelPage {
    range: MappedRange,
}

impl ChannelPage {
    /// A view of a mapping that holds `range.len() / CHANNEL_BYTES` channels.
    pub fn new(range: MappedRange) -> ChannelPage {
        ChannelPage { range }
    }

    /// Bytes to map for `channels` channels.
    pub fn bytes(channels: usize) -> usize {
        (channels * CHANNEL_BYTES).next_multiple_of(4096)
    }

    /// The words of channel `index`, or `None` when the page has no such channel.
    pub fn words(&self, index: usize) -> Option<&ChannelWords> {
        let offset = index.checked_mul(CHANNEL_BYTES)?;
        // SAFETY: ChannelWords is made of atomics only (M1).
        let ptr = unsafe { self.range.at::<ChannelWords>(offset) }?;
        // SAFETY: in bounds and aligned (`at`), mapped while `self` lives (M2), atomics only (M1).
        Some(unsafe { &*ptr })
    }

    /// As [`ChannelPage::words`], as a handle that keeps the page mapped.
    fn words_ref(&self, index: usize) -> Option<SharedRef<ChannelWords>> {
        // SAFETY: ChannelWords is made of atomics only (M1).
        unsafe { self.range.shared_ref(index.checked_mul(CHANNEL_BYTES)?) }
    }
}
