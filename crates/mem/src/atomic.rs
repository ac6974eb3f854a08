//! The atomics of shared words: the processor's, or the model checker's under `--cfg loom`.

#[cfg(loom)]
pub(crate) use loom::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};
#[cfg(not(loom))]
pub(crate) use std::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};

/// Between a publisher's store of its position and its look at the other side's wish to be woken.
///
/// A registered process (see `unetmap_sys::barrier`) only has to keep the compiler from exchanging the two: the sleeper
/// brings the barrier. Fencing here would make the publisher wait for its store to reach the other core each time.
#[inline(always)]
#[cfg(not(loom))]
pub(crate) fn fence_publisher() {
    if LIGHT.load(Ordering::Relaxed) != 0 {
        std::sync::atomic::compiler_fence(Ordering::SeqCst);
    } else {
        fence(Ordering::SeqCst);
    }
}

/// The same where this process is known to be registered.
#[inline(always)]
#[cfg(not(loom))]
pub(crate) fn fence_light_publisher() {
    std::sync::atomic::compiler_fence(Ordering::SeqCst);
}

/// Between a sleeper's wish to be woken and its last look.
#[cfg(not(loom))]
pub(crate) fn fence_sleeper() {
    fence(Ordering::SeqCst);
    if unetmap_sys::barrier::everywhere().is_err() {
        // Without the kernel's help: by then every store that a processor had in hand has reached the memory.
        std::thread::sleep(std::time::Duration::from_micros(50));
    }
}

/// Not 0: this process is registered for the sleepers' barrier.
#[cfg(not(loom))]
static LIGHT: AtomicU32 = AtomicU32::new(0);

/// To be called before this process publishes: lets it do so without a fence, where the kernel helps.
#[cfg(not(loom))]
pub fn register_publisher() {
    LIGHT.store(u32::from(unetmap_sys::barrier::register()), Ordering::Relaxed);
}

/// Whether [`fence_publisher`] costs nothing in this process.
#[cfg(not(loom))]
pub(crate) fn publishes_lightly() -> bool {
    LIGHT.load(Ordering::Relaxed) != 0
}

/// The model checker tries what only pays there.
#[cfg(loom)]
pub(crate) fn publishes_lightly() -> bool {
    true
}

/// The model checker knows plain fences only: both sides have one.
#[cfg(loom)]
pub(crate) fn fence_publisher() {
    fence(Ordering::SeqCst);
}

/// As above.
#[cfg(loom)]
pub(crate) fn fence_light_publisher() {
    fence(Ordering::SeqCst);
}

/// As above.
#[cfg(loom)]
pub(crate) fn fence_sleeper() {
    fence(Ordering::SeqCst);
}
