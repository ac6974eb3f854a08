// SPDX-License-Identifier: BSD-2-Clause
//! A wake-up request word: its values, how a peer takes the request, and the futex wait on it.

use crate::atomic::{AtomicU32, Ordering, fence};
#[cfg(not(loom))]
use crate::tuning::STORE_PROPAGATION_SPINS;

/// Value of a wake-up request word: the side sleeps until its doorbell is notified.
pub(super) const WAITS_ON_DOORBELL: u32 = 1;
/// Value of a wake-up request word: the side is in a futex wait on this word.
pub(super) const WAITS_ON_FUTEX: u32 = 2;

/// Takes the request in `word`, wakes a futex waiter; `true` if a doorbell must be notified.
#[inline(always)]
pub(super) fn take_wakeup(word: &AtomicU32) -> bool {
    // Relaxed (O6): the caller's fence orders this load behind its store of the position.
    word.load(Ordering::Relaxed) != 0 && take_request(word)
}

#[cold]
fn take_request(word: &AtomicU32) -> bool {
    // AcqRel: of several takers one gets the request; the waiter's next request comes after it.
    match word.swap(0, Ordering::AcqRel) {
        0 => false,
        #[cfg(not(loom))]
        WAITS_ON_FUTEX => {
            unetmap_sys::futex::wake_one(word);
            false
        }
        _ => true,
    }
}

/// Sets the requests of a futex waiter by `set`, before it checks the positions for the last time.
#[inline(always)]
pub(super) fn request_futex_wake<T>(set: impl FnOnce() -> T) -> T {
    let result = set();
    // O6. The exchange that sets a request is no fence: on arm64 it may be a pair of a load and a store, and a later
    // load of a position may come before that store.
    fence(Ordering::SeqCst);
    result
}

/// Sets the request of one futex waiter; `false`: another thread waits on `word`.
pub(super) fn begin_futex_wait(word: &AtomicU32) -> bool {
    // Relaxed (O4): the word is the whole message.
    request_futex_wake(|| word.compare_exchange(0, WAITS_ON_FUTEX, Ordering::Relaxed, Ordering::Relaxed).is_ok())
}

/// Waits on `word`, if no other thread waits there and `idle` still holds.
#[cfg(not(loom))]
#[cold]
pub(super) fn futex_wait(word: &AtomicU32, same_cpu: bool, idle: impl FnOnce() -> bool) {
    if !begin_futex_wait(word) {
        return;
    }
    if !same_cpu {
        // A store of the peer that was in progress becomes visible meanwhile.
        (0..STORE_PROPAGATION_SPINS).for_each(|_| unetmap_sys::clock::spin_hint());
    }
    if idle() {
        unetmap_sys::futex::wait(word, WAITS_ON_FUTEX);
    }
    // Withdraws the request. The side that woke this thread, or another thread that sleeps since, has changed the word.
    // Relaxed (O4).
    let _ = word.compare_exchange(WAITS_ON_FUTEX, 0, Ordering::Relaxed, Ordering::Relaxed);
}
