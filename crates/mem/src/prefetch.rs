// SPDX-License-Identifier: BSD-2-Clause
//! Prefetch hints.

/// Prefetches the first cache line of `value` for reading, on x86-64.
#[inline(always)]
pub fn prefetch_value<T>(value: &T) {
    for_read(value);
}

/// Prefetches the cache line at `at` for reading, on x86-64.
#[inline(always)]
pub(crate) fn for_read<T>(at: *const T) {
    // SAFETY: a hint that faults at no address and changes no memory (M7).
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    unsafe {
        use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        _mm_prefetch::<_MM_HINT_T0>(at.cast());
    }
    #[cfg(any(not(target_arch = "x86_64"), miri))]
    let _ = at;
}

/// Prefetches the cache line at `at` for writing (`prefetchw`): the line becomes exclusive to this core, copies in
/// other caches are invalidated. No effect on the contents, whatever `at` is. No effect at all on other processor
/// families.
///
/// Inline assembly because the compiler's intrinsic emits a prefetch for reading when it compiles for a CPU that it
/// does not know to have the instruction, such as the baseline x86-64. All 64-bit x86 CPUs execute it or treat it as a
/// no-op.
#[inline(always)]
pub(crate) fn for_write<T>(at: *const T) {
    // SAFETY: a hint that faults at no address and changes no register and no memory (M7).
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    unsafe {
        std::arch::asm!("prefetchw [{}]", in(reg) at, options(nostack, preserves_flags, readonly))
    };
    #[cfg(any(not(target_arch = "x86_64"), miri))]
    let _ = at;
}
