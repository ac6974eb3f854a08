// SPDX-License-Identifier: BSD-2-Clause
//! Swaps with vector instructions. AVX2 and AVX-512 differ in how many slots are swapped at a time, [`SlotVector`].

use std::arch::x86_64::*;

use unetmap_abi::NS_BUF_CHANGED;

use crate::copy::{MIN_LEN, Moved, RUN_BREAK_FLAGS, Run};
use crate::pos::BufIdx;
use crate::region::Region;
use crate::slot::SLOT_BYTES;
use crate::slot_copy::Vectors;
use crate::tuning::SWAP_PREFETCH_PACKETS as AHEAD;

/// Some slots in registers, each of four words of 32 bits: index, length and flags, and two of `ptr`. Each method must
/// be inlined into a function that has the target features of its implementation.
///
/// # Safety
/// The CPU has the instructions of the implementation whose method is called.
trait SlotVector: Copy {
    /// The number of slots.
    const SLOTS: u32;

    /// The same four words in every slot.
    unsafe fn splat(words: [u32; 4]) -> Self;

    /// Loads slots from memory, which must be valid for reads.
    unsafe fn load(from: *const u8) -> Self;

    /// Per slot: the first two words of `self`, then the first two words of `other`.
    unsafe fn join_heads(self, other: Self) -> Self;

    /// Per slot: the first 16 bytes of its buffer. `at` returns the buffer's address, which must be valid for reads.
    unsafe fn load_headers(self, at: impl Fn(u32) -> *const u8) -> Self;

    /// Bitwise and.
    unsafe fn and(self, other: Self) -> Self;

    /// Bitwise or.
    unsafe fn or(self, other: Self) -> Self;

    /// Whether each word is at least `min`, and at most `span` above it.
    unsafe fn within(self, min: Self, span: Self) -> bool;

    /// Per slot: the words 2 1 0 1.
    unsafe fn cross(self) -> Self;

    /// Adds each word.
    unsafe fn add(self, other: Self) -> Self;

    /// The sum of the second words of the slots.
    unsafe fn sum_of_lens(self) -> u64;

    /// Stores the first two words of each slot as the heads of the slots at `first`, the other two as those at
    /// `second`; both must be valid for writes.
    unsafe fn store_heads(self, first: *mut u8, second: *mut u8);
}

/// The shuffle mask of the words 2 1 0 1.
const CROSSED: i32 = 0b01_00_01_10;

/// Two slots, with AVX2.
#[derive(Clone, Copy)]
struct TwoSlots(__m256i);

impl SlotVector for TwoSlots {
    const SLOTS: u32 = 2;

    #[inline(always)]
    unsafe fn splat([a, b, c, d]: [u32; 4]) -> TwoSlots {
        // SAFETY: the CPU has AVX2 (M5, caller).
        unsafe { TwoSlots(_mm256_broadcastsi128_si256(_mm_set_epi32(d as i32, c as i32, b as i32, a as i32))) }
    }

    #[inline(always)]
    unsafe fn load(from: *const u8) -> TwoSlots {
        // SAFETY: 32 bytes are valid (M2), the CPU has AVX2 (M5), both guaranteed by the caller; a raw copy (M1).
        unsafe { TwoSlots(_mm256_loadu_si256(from.cast())) }
    }

    #[inline(always)]
    unsafe fn join_heads(self, other: TwoSlots) -> TwoSlots {
        // SAFETY: the CPU has AVX2 (M5, caller).
        unsafe { TwoSlots(_mm256_unpacklo_epi64(self.0, other.0)) }
    }

    #[inline(always)]
    unsafe fn load_headers(self, at: impl Fn(u32) -> *const u8) -> TwoSlots {
        // SAFETY: 16 bytes are valid at each address (M2), the CPU has the instructions (M5), both guaranteed by the
        // caller.
        unsafe {
            let a = at(_mm256_extract_epi32::<0>(self.0) as u32);
            let b = at(_mm256_extract_epi32::<4>(self.0) as u32);
            TwoSlots(_mm256_inserti128_si256::<1>(
                _mm256_castsi128_si256(_mm_loadu_si128(a.cast())),
                _mm_loadu_si128(b.cast()),
            ))
        }
    }

    #[inline(always)]
    unsafe fn and(self, other: TwoSlots) -> TwoSlots {
        // SAFETY: the CPU has AVX2 (M5, caller).
        unsafe { TwoSlots(_mm256_and_si256(self.0, other.0)) }
    }

    #[inline(always)]
    unsafe fn or(self, other: TwoSlots) -> TwoSlots {
        // SAFETY: the CPU has AVX2 (M5, caller).
        unsafe { TwoSlots(_mm256_or_si256(self.0, other.0)) }
    }

    #[inline(always)]
    unsafe fn within(self, min: TwoSlots, span: TwoSlots) -> bool {
        // SAFETY: the CPU has AVX2 (M5, caller).
        unsafe {
            let above = _mm256_sub_epi32(self.0, min.0);
            _mm256_movemask_epi8(_mm256_cmpeq_epi32(_mm256_min_epu32(above, span.0), above)) == -1
        }
    }

    #[inline(always)]
    unsafe fn cross(self) -> TwoSlots {
        // SAFETY: the CPU has AVX2 (M5, caller).
        unsafe { TwoSlots(_mm256_shuffle_epi32::<CROSSED>(self.0)) }
    }

    #[inline(always)]
    unsafe fn add(self, other: TwoSlots) -> TwoSlots {
        // SAFETY: the CPU has AVX2 (M5, caller).
        unsafe { TwoSlots(_mm256_add_epi32(self.0, other.0)) }
    }

    #[inline(always)]
    unsafe fn sum_of_lens(self) -> u64 {
        // SAFETY: the CPU has AVX2 (M5, caller).
        let lens = unsafe { [_mm256_extract_epi32::<1>(self.0), _mm256_extract_epi32::<5>(self.0)] };
        lens.map(|len| u64::from(len as u32)).iter().sum()
    }

    #[inline(always)]
    unsafe fn store_heads(self, first: *mut u8, second: *mut u8) {
        // SAFETY: 8 bytes of each of two slots are valid at both (M2), the CPU has AVX2 (M5), both guaranteed by the
        // caller.
        unsafe {
            let (a, b) = (_mm256_castsi256_si128(self.0), _mm256_extracti128_si256::<1>(self.0));
            _mm_storel_epi64(first.cast(), a);
            _mm_storel_epi64(first.add(SLOT_BYTES).cast(), b);
            _mm_storeh_pd(second.cast(), _mm_castsi128_pd(a));
            _mm_storeh_pd(second.add(SLOT_BYTES).cast(), _mm_castsi128_pd(b));
        }
    }
}

/// Four slots, with AVX-512 F and BW.
#[derive(Clone, Copy)]
struct FourSlots(__m512i);

impl SlotVector for FourSlots {
    const SLOTS: u32 = 4;

    #[inline(always)]
    unsafe fn splat([a, b, c, d]: [u32; 4]) -> FourSlots {
        // SAFETY: the CPU has AVX-512 F (M5, caller).
        unsafe { FourSlots(_mm512_set4_epi32(d as i32, c as i32, b as i32, a as i32)) }
    }

    #[inline(always)]
    unsafe fn load(from: *const u8) -> FourSlots {
        // SAFETY: 64 bytes are valid (M2), the CPU has AVX-512 F (M5), both guaranteed by the caller; a raw copy (M1).
        unsafe { FourSlots(_mm512_loadu_si512(from.cast())) }
    }

    #[inline(always)]
    unsafe fn join_heads(self, other: FourSlots) -> FourSlots {
        // SAFETY: the CPU has AVX-512 F (M5, caller).
        unsafe { FourSlots(_mm512_unpacklo_epi64(self.0, other.0)) }
    }

    #[inline(always)]
    unsafe fn load_headers(self, at: impl Fn(u32) -> *const u8) -> FourSlots {
        // SAFETY: 16 bytes are valid at each address (M2), the CPU has the instructions (M5), both guaranteed by the
        // caller.
        unsafe {
            let a = at(_mm_cvtsi128_si32(_mm512_castsi512_si128(self.0)) as u32);
            let b = at(_mm_cvtsi128_si32(_mm512_extracti32x4_epi32::<1>(self.0)) as u32);
            let c = at(_mm_cvtsi128_si32(_mm512_extracti32x4_epi32::<2>(self.0)) as u32);
            let d = at(_mm_cvtsi128_si32(_mm512_extracti32x4_epi32::<3>(self.0)) as u32);
            let all = _mm512_castsi128_si512(_mm_loadu_si128(a.cast()));
            let all = _mm512_inserti32x4::<1>(all, _mm_loadu_si128(b.cast()));
            let all = _mm512_inserti32x4::<2>(all, _mm_loadu_si128(c.cast()));
            FourSlots(_mm512_inserti32x4::<3>(all, _mm_loadu_si128(d.cast())))
        }
    }

    #[inline(always)]
    unsafe fn and(self, other: FourSlots) -> FourSlots {
        // SAFETY: the CPU has AVX-512 F (M5, caller).
        unsafe { FourSlots(_mm512_and_si512(self.0, other.0)) }
    }

    #[inline(always)]
    unsafe fn or(self, other: FourSlots) -> FourSlots {
        // SAFETY: the CPU has AVX-512 F (M5, caller).
        unsafe { FourSlots(_mm512_or_si512(self.0, other.0)) }
    }

    #[inline(always)]
    unsafe fn within(self, min: FourSlots, span: FourSlots) -> bool {
        // SAFETY: the CPU has AVX-512 F (M5, caller).
        unsafe { _mm512_cmpgt_epu32_mask(_mm512_sub_epi32(self.0, min.0), span.0) == 0 }
    }

    #[inline(always)]
    unsafe fn cross(self) -> FourSlots {
        // SAFETY: the CPU has AVX-512 F (M5, caller).
        unsafe { FourSlots(_mm512_shuffle_epi32::<CROSSED>(self.0)) }
    }

    #[inline(always)]
    unsafe fn add(self, other: FourSlots) -> FourSlots {
        // SAFETY: the CPU has AVX-512 F (M5, caller).
        unsafe { FourSlots(_mm512_add_epi32(self.0, other.0)) }
    }

    #[inline(always)]
    unsafe fn sum_of_lens(self) -> u64 {
        const LENS: __mmask16 = 0x2222;
        // SAFETY: the CPU has AVX-512 F (M5, caller).
        unsafe { _mm512_reduce_add_epi64(_mm512_srli_epi64::<32>(_mm512_maskz_mov_epi32(LENS, self.0))) as u64 }
    }

    #[inline(always)]
    unsafe fn store_heads(self, first: *mut u8, second: *mut u8) {
        const HEADS: __mmask16 = 0x3333;
        // SAFETY: four slots are valid at both (M2), the CPU has AVX-512 F (M5), both guaranteed by the caller.
        unsafe {
            _mm512_mask_storeu_epi32(first.cast(), HEADS, self.0);
            _mm512_mask_storeu_epi32(second.cast(), HEADS, _mm512_unpackhi_epi64(self.0, self.0));
        }
    }
}

/// [`swap_run`](super::swap_run), a vector of packets at a time, as long as all packets of the vector are of the run.
/// The three pointers are to the slots of the copies, of the sender's ring and of the receiver's ring.
///
/// # Safety
/// `run.max` slots are valid for reads and writes from each of the three pointers on; the CPU has the instructions.
#[inline]
pub(super) unsafe fn swap_vectors(vectors: Vectors, slots: [*mut u8; 3], region: &Region, run: Run) -> Moved {
    // SAFETY: guaranteed by the caller (M2, M5).
    unsafe {
        match vectors {
            Vectors::Avx2 => swap_avx2(slots, region, run),
            Vectors::Avx512 => swap_avx512(slots, region, run),
        }
    }
}

/// # Safety
/// As [`swap_vectors`]; the CPU has AVX2.
#[target_feature(enable = "avx2")]
unsafe fn swap_avx2(slots: [*mut u8; 3], region: &Region, run: Run) -> Moved {
    // SAFETY: guaranteed by the caller (M2, M5).
    unsafe { swap::<TwoSlots>(slots, region, run) }
}

/// # Safety
/// As [`swap_vectors`]; the CPU has AVX-512 F and BW.
#[target_feature(enable = "avx512f,avx512bw")]
unsafe fn swap_avx512(slots: [*mut u8; 3], region: &Region, run: Run) -> Moved {
    // SAFETY: guaranteed by the caller (M2, M5).
    unsafe { swap::<FourSlots>(slots, region, run) }
}

/// # Safety
/// As [`swap_vectors`]; the CPU has the instructions of `F`.
#[inline(always)]
unsafe fn swap<F: SlotVector>([copies, sender, receiver]: [*mut u8; 3], region: &Region, run: Run) -> Moved {
    const FIRST: u32 = BufIdx::FIRST.0;
    const ALL: u32 = u32::MAX;
    let (limits, buffers) = (region.limits(), region.bufs_ptr());
    let flags = |flags: u16| u32::from(flags) << 16;
    // Masks and bounds of two slot heads, the sender's and the receiver's. A forbidden flag makes the length word too
    // large.
    let checked = [ALL, flags(RUN_BREAK_FLAGS) | 0xffff, ALL, 0];
    let min = [FIRST, MIN_LEN.into(), FIRST, 0];
    // No underflow: there are more buffers than the reserved ones, and they hold the shortest packet (M6).
    let max = [limits.bufs - 1, limits.buf_size, limits.bufs - 1, 0];
    let span = [0, 1, 2, 3].map(|i| max[i] - min[i]);
    let mut addresses = [0; 4];
    for (word, bytes) in addresses.iter_mut().zip(run.addresses.as_chunks().0) {
        *word = u32::from_ne_bytes(*bytes);
    }
    // The sender's slot gets the receiver's index and keeps length and flags; the receiver's slot gets the sender's
    // index and length.
    let kept = [ALL, ALL, ALL, 0xffff];
    let added = [0, flags(NS_BUF_CHANGED), 0, flags(run.flags | NS_BUF_CHANGED)];
    // SAFETY: the CPU has the instructions (M5, caller).
    let [checked, min, span, compared, addresses, none, kept, added] = unsafe {
        [
            F::splat(checked),
            F::splat(min),
            F::splat(span),
            F::splat([ALL, ALL, ALL, 0]),
            F::splat(addresses),
            F::splat([0; 4]),
            F::splat(kept),
            F::splat(added),
        ]
    };
    let at = |idx: u32| buffers.wrapping_add(idx as usize * limits.buf_size as usize).cast_const();
    // SAFETY: slot i < max is inside the ring (M2, caller), aligned to 16; volatile, because other processes may write
    // it (M1). A prefetch faults at no address (M7).
    let prefetch = |i: u32| unsafe {
        let idx = copies.add(i as usize * SLOT_BYTES).cast::<u32>().read_volatile();
        _mm_prefetch::<_MM_HINT_T0>(at(idx).cast());
    };
    (0..run.max.min(AHEAD)).for_each(prefetch);
    // A ring has at most 2^14 slots, so 32 bits hold the sum of their lengths; those of the indexes are not used.
    let (mut done, mut sum) = (0, none);
    while done + F::SLOTS <= run.max {
        let slot = done as usize * SLOT_BYTES;
        // SAFETY: F::SLOTS slots are inside the rings from `done` on (caller). Each index is below the number of
        // buffers when its packet is read (`within`), so the pointer is that of a buffer (M2) of at least 64 bytes
        // (M6). The loaded copy is validated and not loaded again (M4). The CPU has the instructions (M5, caller).
        unsafe {
            let heads = F::load(copies.add(slot)).join_heads(F::load(receiver.add(slot)));
            let valid = heads.and(checked);
            if !valid.within(min, span) {
                break;
            }
            (done + AHEAD..run.max.min(done + AHEAD + F::SLOTS)).for_each(prefetch);
            if !heads.load_headers(at).and(compared).within(addresses, none) {
                break;
            }
            heads.cross().and(kept).or(added).store_heads(sender.add(slot), receiver.add(slot));
            sum = sum.add(valid);
        }
        done += F::SLOTS;
    }
    // SAFETY: the CPU has the instructions (M5, caller).
    Moved { packets: done, bytes: unsafe { sum.sum_of_lens() } }
}
