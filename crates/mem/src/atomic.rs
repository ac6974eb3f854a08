// SPDX-License-Identifier: BSD-2-Clause
//! The atomics and fences of shared words: the CPU's, or the model checker's under `--cfg loom`.
//!
//! Rules of memory order, cited by number beside relaxed accesses and fences in all crates. They hold on CPUs that
//! reorder more than x86-64 does, such as arm64:
//!
//! | rule | accesses | why that is enough |
//! |---|---|---|
//! | O1 | hand-over | The store that gives memory to another side (a position, a lock, a flag behind which data stands) is a release, the load that takes it an acquire. Accesses to that memory itself are relaxed or raw copies. |
//! | O2 | right to sync | Only the holder of the right writes the word: the acquire that takes the right and the release that returns it order it. |
//! | O3 | hint | The value decides only whether to check again, to wake or to wait. What acts on it loads again by O1, or a wrong value costs at most a time limit that is named there. |
//! | O4 | whole message | The word says everything itself: a counter, a flag, a number. No other memory is read because of it. Two values that must fit together are one word. |
//! | O5 | handed over otherwise | The word was written before another thread could have it: before a thread was started, a message sent, a mutex released. |
//! | O6 | store, then load | Each of two sides stores one word, then loads the other's, and one must see the other's store. Both have a sequentially consistent fence in between. The frequent side has a compiler fence if its process is registered for `membarrier`, which the rare side then calls. A read-modify-write is no such fence. |

#[cfg(loom)]
pub(crate) use loom::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};
#[cfg(not(loom))]
pub(crate) use std::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};

/// The publisher's fence, between the store of its position and the load of the peer's wake-up request.
///
/// A process that is registered for `membarrier` (see `unetmap_sys::barrier`) needs a compiler fence only, because the
/// sleeper executes the barrier on all CPUs. A CPU fence here would stall the publisher until its store has reached the
/// other core, in every batch.
#[inline(always)]
#[cfg(not(loom))]
pub(crate) fn fence_publisher() {
    if publisher_is_registered() {
        fence_registered_publisher();
    } else {
        fence(Ordering::SeqCst);
    }
}

/// As [`fence_publisher`], in a process that is known to be registered.
#[inline(always)]
#[cfg(not(loom))]
pub(crate) fn fence_registered_publisher() {
    std::sync::atomic::compiler_fence(Ordering::SeqCst);
}

/// The sleeper's fence, between the store of its wake-up request and its last check of the position.
#[cfg(not(loom))]
pub(crate) fn fence_sleeper() {
    fence(Ordering::SeqCst);
    if unetmap_sys::barrier::all_cpus().is_err() {
        // The kernel refuses `membarrier`.
        std::thread::sleep(std::time::Duration::from_micros(crate::tuning::STORE_DRAIN_US));
    }
}

/// Not 0: this process is registered for the sleepers' `membarrier`. Relaxed (O4): it is set before the first publish
/// of the process, and a stale 0 only costs a fence.
#[cfg(not(loom))]
static REGISTERED: AtomicU32 = AtomicU32::new(0);

/// Registers this process for the sleepers' `membarrier`, where the kernel allows it, so that it publishes without a
/// CPU fence. To be called before the process publishes.
#[cfg(not(loom))]
pub fn register_publisher() {
    REGISTERED.store(u32::from(unetmap_sys::barrier::register()), Ordering::Relaxed);
}

/// Whether [`fence_publisher`] is a compiler fence in this process.
#[inline(always)]
#[cfg(not(loom))]
pub(crate) fn publisher_is_registered() -> bool {
    REGISTERED.load(Ordering::Relaxed) != 0
}

/// The model checker also checks what only registered processes do.
#[cfg(loom)]
pub(crate) fn publisher_is_registered() -> bool {
    true
}

/// The model checker has no `membarrier`: both sides execute a fence.
#[cfg(loom)]
pub(crate) fn fence_publisher() {
    fence(Ordering::SeqCst);
}

/// As above.
#[cfg(loom)]
pub(crate) fn fence_registered_publisher() {
    fence(Ordering::SeqCst);
}

/// As above.
#[cfg(loom)]
pub(crate) fn fence_sleeper() {
    fence(Ordering::SeqCst);
}
