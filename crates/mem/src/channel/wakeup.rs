//! A wake-up request word: its values, how a peer takes the request, and the futex wait on it.

use crate::atomic::{AtomicU32, Ordering};
#[cfg(not(loom))]
use crate::tuning::STORE_PROPAGATION_SPINS;

/// Value of a wake-up request word: the side sleeps until its doorbell is notified.
pub(super) const WAITS_ON_DOORBELL: u32 = 1;
/// Value of a wake-up request word: the side is in a futex wait on this word.
#[cfg(not(loom))]
pub(super) const WAITS_ON_FUTEX: u32 = 2;

/// Takes the request in `word`, wakes a futex waiter; `true` if a doorbell must be notified.
#[inline(always)]
pub(super) fn take_wakeup(word: &AtomicU32) -> bool {
    // Relaxed: the caller's fence orders this load behind its store of the position.
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

/// Waits on `word`, if no other thread waits there and `idle` still holds.
#[cfg(not(loom))]
#[cold]
pub(super) fn futex_wait(word: &AtomicU32, same_cpu: bool, idle: impl FnOnce() -> bool) {
    // SeqCst: the request is set before `idle` loads the position.
    if word.compare_exchange(0, WAITS_ON_FUTEX, Ordering::SeqCst, Ordering::Relaxed).is_err() {
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
    // Relaxed: nothing else is handed over by it.
    let _ = word.compare_exchange(WAITS_ON_FUTEX, 0, Ordering::Relaxed, Ordering::Relaxed);
}
