//! The atomics of shared words: the processor's, or the model checker's under `--cfg loom`.

#[cfg(loom)]
pub(crate) use loom::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};
#[cfg(not(loom))]
pub(crate) use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

/// A full barrier: what was stored before it is seen by others before anything after it is loaded.
///
/// On x86-64 a locked instruction on the own stack does this in half the time of `mfence`.
#[inline(always)]
#[cfg(not(loom))]
pub(crate) fn fence_full() {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: adds 0 to four bytes of the red zone, which no compiled code can hold live across an asm block that
    // declares to use the stack; the default clobbers order all memory accesses around it.
    unsafe {
        std::arch::asm!("lock or dword ptr [rsp - 8], 0");
    }
    #[cfg(not(target_arch = "x86_64"))]
    std::sync::atomic::fence(Ordering::SeqCst);
}

#[cfg(loom)]
pub(crate) fn fence_full() {
    fence(Ordering::SeqCst);
}
