// SPDX-License-Identifier: BSD-2-Clause
//! Futex waits on the wake-up request words of channels, and how they end.

use std::sync::atomic::{AtomicU32, Ordering};

use unetmap_sys::clock::spin_hint;
use unetmap_sys::futex;

use super::wakeup::{WAITS_ON_DOORBELL, WAITS_ON_FUTEX, request_futex_wake, take_wakeup};
use super::{ChannelWords, SharedRef};
use crate::tuning::STORE_PROPAGATION_SPINS;

/// One side of a channel that waits, on its futex or its doorbell, and is to be woken later.
pub struct Waiter {
    pub(super) words: SharedRef<ChannelWords>,
    pub(super) is_consumer: bool,
}

impl Waiter {
    /// Whether both are the same side of the same channel.
    pub fn is_same(&self, other: &Waiter) -> bool {
        self.is_consumer == other.is_consumer && std::ptr::eq(self.words(), other.words())
    }

    fn words(&self) -> &ChannelWords {
        &self.words
    }

    fn word(&self) -> &AtomicU32 {
        self.words().wakeup_word(self.is_consumer)
    }

    /// Whether the side sleeps on its doorbell. Relaxed: a hint (O3).
    pub fn waits_on_doorbell(&self) -> bool {
        self.word().load(Ordering::Relaxed) == WAITS_ON_DOORBELL
    }

    /// Takes the side's wake-up request, if it still waits. A futex waiter is woken here. Returns `true` if the caller
    /// must notify the side's doorbell.
    pub fn wake(&self) -> bool {
        take_wakeup(self.word())
    }
}

/// A futex wait on many channels at once. The caller is the only thread on its side of each; a channel on which another
/// thread is in a futex wait already is left out.
#[derive(Default)]
pub struct FutexWaitSet<'a> {
    words: [Option<&'a AtomicU32>; futex::MAX_WORDS],
    n: usize,
}

impl<'a> FutexWaitSet<'a> {
    /// Adds a channel as its consumer. `false`: the set is full.
    pub fn add_consumer(&mut self, channel: &'a ChannelWords) -> bool {
        self.add(channel.wakeup_word(true))
    }

    /// Adds a channel as its producer. `false`: the set is full.
    pub fn add_producer(&mut self, channel: &'a ChannelWords) -> bool {
        self.add(channel.wakeup_word(false))
    }

    fn add(&mut self, word: &'a AtomicU32) -> bool {
        let entry = self.words.get_mut(self.n);
        let fits = entry.is_some();
        if let Some(entry) = entry {
            *entry = Some(word);
            self.n += 1;
        }
        fits
    }

    /// Waits until the peer of one of the channels has moved its position, at most 5 ms, if `idle` returns true after
    /// the requests are set. Returns whether it was woken. Before Linux 5.16 only the first channel counts.
    #[cold]
    pub fn wait(&self, idle: impl FnOnce() -> bool) -> bool {
        let mut own = self.words;
        let all = own.iter_mut().filter_map(|entry| Some((entry.take()?, entry)));
        // A request left by an earlier sleep is replaced; another thread's futex wait on the word goes on.
        // Relaxed (O4): the word is the whole message.
        let kept = all.filter(|(word, _)| word.swap(WAITS_ON_FUTEX, Ordering::Relaxed) != WAITS_ON_FUTEX);
        request_futex_wake(|| kept.for_each(|(word, entry)| *entry = Some(word)));
        // The peers may run on other CPUs: a store that was in progress becomes visible meanwhile.
        (0..STORE_PROPAGATION_SPINS).for_each(|_| spin_hint());
        let own = || own.iter().copied().flatten();
        let woken = idle() && futex::wait_any(own(), WAITS_ON_FUTEX);
        for word in own() {
            // Withdraws the request. Relaxed (O4).
            let _ = word.compare_exchange(WAITS_ON_FUTEX, 0, Ordering::Relaxed, Ordering::Relaxed);
        }
        woken
    }
}
