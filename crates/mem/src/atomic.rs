//! The atomics and fences of shared words: the CPU's, or the model checker's under `--cfg loom`.

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

/// Not 0: this process is registered for the sleepers' `membarrier`. Relaxed accesses: it is set before the first
/// publish of the process, and a stale 0 only costs a fence.
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
