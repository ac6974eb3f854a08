//! Having cache lines brought.

/// Has the cache line at `at` brought to this processor to be written: whoever has it, or copies of it, gives it up. Reads and
/// writes nothing, wherever `at` points. Where the processor has no such instruction nothing happens.
///
/// Not the compiler's own: for processors that it does not know to have the instruction, as those of an unnamed kind, it takes
/// the one that brings a copy to be read. All that run 64-bit programs do it, or take it for nothing.
#[inline(always)]
pub(crate) fn to_write<T>(at: *const T) {
    // SAFETY: a hint, which no address makes fault, and which changes no register and no memory.
    #[cfg(target_arch = "x86_64")]
    unsafe {
        std::arch::asm!("prefetchw [{}]", in(reg) at, options(nostack, preserves_flags, readonly))
    };
    #[cfg(not(target_arch = "x86_64"))]
    let _ = at;
}
