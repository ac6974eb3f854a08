//! Exchanging with the vectors that a processor has. What differs between them is how many slots are exchanged at a
//! time, [`Few`].

use std::arch::x86_64::*;

use unetmap_abi::NS_BUF_CHANGED;

use super::AHEAD;
use crate::copy::{NOT_PLAIN, Run, SHORTEST};
use crate::pos::BufIdx;
use crate::region::Region;
use crate::slot::SLOT_BYTES;
use crate::take::Vectors;

/// A few slots in registers, each of four words of 32 bits: index, length and flags, two of the program's own. Each
/// method must become part of a function that has the features of this kind.
///
/// # Safety
/// The processor has the kind of which a method is called.
trait Few: Copy {
    /// How many.
    const SLOTS: u32;

    /// All of them these words.
    unsafe fn all(words: [u32; 4]) -> Self;

    /// Slots from memory, which must be valid for reads.
    unsafe fn load(from: *const u8) -> Self;

    /// The first words of each, and behind them those of the other's.
    unsafe fn heads(self, other: Self) -> Self;

    /// The 16 bytes where each index says that its buffer is, which must be valid for reads.
    unsafe fn packets(self, at: impl Fn(u32) -> *const u8) -> Self;

    /// Bit by bit, as [`Few::or`].
    unsafe fn and(self, other: Self) -> Self;

    /// Bit by bit.
    unsafe fn or(self, other: Self) -> Self;

    /// Whether each word is one of those from `least` on, and not more than `span` above it.
    unsafe fn within(self, least: Self, span: Self) -> bool;

    /// Of each the words 2 1 0 1.
    unsafe fn crossed(self) -> Self;

    /// Stores the first two words of each as the heads of the slots at `first`, the other two as those at `second`;
    /// both must be valid for writes.
    unsafe fn store_heads(self, first: *mut u8, second: *mut u8);
}

/// The words 2 1 0 1, for shuffles.
const CROSSED: i32 = 0b01_00_01_10;

/// With AVX2.
#[derive(Clone, Copy)]
struct Two(__m256i);

impl Few for Two {
    const SLOTS: u32 = 2;

    #[inline(always)]
    unsafe fn all([a, b, c, d]: [u32; 4]) -> Two {
        // SAFETY: the processor has AVX2 (caller).
        unsafe { Two(_mm256_broadcastsi128_si256(_mm_set_epi32(d as i32, c as i32, b as i32, a as i32))) }
    }

    #[inline(always)]
    unsafe fn load(from: *const u8) -> Two {
        // SAFETY: 32 bytes are valid (caller).
        unsafe { Two(_mm256_loadu_si256(from.cast())) }
    }

    #[inline(always)]
    unsafe fn heads(self, other: Two) -> Two {
        // SAFETY: the processor has AVX2 (caller).
        unsafe { Two(_mm256_unpacklo_epi64(self.0, other.0)) }
    }

    #[inline(always)]
    unsafe fn packets(self, at: impl Fn(u32) -> *const u8) -> Two {
        // SAFETY: 16 bytes are valid at each (caller).
        unsafe {
            let a = at(_mm256_extract_epi32::<0>(self.0) as u32);
            let b = at(_mm256_extract_epi32::<4>(self.0) as u32);
            Two(_mm256_inserti128_si256::<1>(
                _mm256_castsi128_si256(_mm_loadu_si128(a.cast())),
                _mm_loadu_si128(b.cast()),
            ))
        }
    }

    #[inline(always)]
    unsafe fn and(self, other: Two) -> Two {
        // SAFETY: the processor has AVX2 (caller).
        unsafe { Two(_mm256_and_si256(self.0, other.0)) }
    }

    #[inline(always)]
    unsafe fn or(self, other: Two) -> Two {
        // SAFETY: the processor has AVX2 (caller).
        unsafe { Two(_mm256_or_si256(self.0, other.0)) }
    }

    #[inline(always)]
    unsafe fn within(self, least: Two, span: Two) -> bool {
        // SAFETY: the processor has AVX2 (caller).
        unsafe {
            let above = _mm256_sub_epi32(self.0, least.0);
            _mm256_movemask_epi8(_mm256_cmpeq_epi32(_mm256_min_epu32(above, span.0), above)) == -1
        }
    }

    #[inline(always)]
    unsafe fn crossed(self) -> Two {
        // SAFETY: the processor has AVX2 (caller).
        unsafe { Two(_mm256_shuffle_epi32::<CROSSED>(self.0)) }
    }

    #[inline(always)]
    unsafe fn store_heads(self, first: *mut u8, second: *mut u8) {
        // SAFETY: 8 bytes of each of two slots are valid at both (caller).
        unsafe {
            let (a, b) = (_mm256_castsi256_si128(self.0), _mm256_extracti128_si256::<1>(self.0));
            _mm_storel_epi64(first.cast(), a);
            _mm_storel_epi64(first.add(SLOT_BYTES).cast(), b);
            _mm_storeh_pd(second.cast(), _mm_castsi128_pd(a));
            _mm_storeh_pd(second.add(SLOT_BYTES).cast(), _mm_castsi128_pd(b));
        }
    }
}

/// With AVX-512 F and BW.
#[derive(Clone, Copy)]
struct Four(__m512i);

impl Few for Four {
    const SLOTS: u32 = 4;

    #[inline(always)]
    unsafe fn all([a, b, c, d]: [u32; 4]) -> Four {
        // SAFETY: the processor has AVX-512 F (caller).
        unsafe { Four(_mm512_set4_epi32(d as i32, c as i32, b as i32, a as i32)) }
    }

    #[inline(always)]
    unsafe fn load(from: *const u8) -> Four {
        // SAFETY: 64 bytes are valid (caller).
        unsafe { Four(_mm512_loadu_si512(from.cast())) }
    }

    #[inline(always)]
    unsafe fn heads(self, other: Four) -> Four {
        // SAFETY: the processor has AVX-512 F (caller).
        unsafe { Four(_mm512_unpacklo_epi64(self.0, other.0)) }
    }

    #[inline(always)]
    unsafe fn packets(self, at: impl Fn(u32) -> *const u8) -> Four {
        // SAFETY: 16 bytes are valid at each (caller).
        unsafe {
            let a = at(_mm_cvtsi128_si32(_mm512_castsi512_si128(self.0)) as u32);
            let b = at(_mm_cvtsi128_si32(_mm512_extracti32x4_epi32::<1>(self.0)) as u32);
            let c = at(_mm_cvtsi128_si32(_mm512_extracti32x4_epi32::<2>(self.0)) as u32);
            let d = at(_mm_cvtsi128_si32(_mm512_extracti32x4_epi32::<3>(self.0)) as u32);
            let all = _mm512_castsi128_si512(_mm_loadu_si128(a.cast()));
            let all = _mm512_inserti32x4::<1>(all, _mm_loadu_si128(b.cast()));
            let all = _mm512_inserti32x4::<2>(all, _mm_loadu_si128(c.cast()));
            Four(_mm512_inserti32x4::<3>(all, _mm_loadu_si128(d.cast())))
        }
    }

    #[inline(always)]
    unsafe fn and(self, other: Four) -> Four {
        // SAFETY: the processor has AVX-512 F (caller).
        unsafe { Four(_mm512_and_si512(self.0, other.0)) }
    }

    #[inline(always)]
    unsafe fn or(self, other: Four) -> Four {
        // SAFETY: the processor has AVX-512 F (caller).
        unsafe { Four(_mm512_or_si512(self.0, other.0)) }
    }

    #[inline(always)]
    unsafe fn within(self, least: Four, span: Four) -> bool {
        // SAFETY: the processor has AVX-512 F (caller).
        unsafe { _mm512_cmpgt_epu32_mask(_mm512_sub_epi32(self.0, least.0), span.0) == 0 }
    }

    #[inline(always)]
    unsafe fn crossed(self) -> Four {
        // SAFETY: the processor has AVX-512 F (caller).
        unsafe { Four(_mm512_shuffle_epi32::<CROSSED>(self.0)) }
    }

    #[inline(always)]
    unsafe fn store_heads(self, first: *mut u8, second: *mut u8) {
        const HEADS: __mmask16 = 0x3333;
        // SAFETY: four slots are valid at both (caller), of which the heads are stored.
        unsafe {
            _mm512_mask_storeu_epi32(first.cast(), HEADS, self.0);
            _mm512_mask_storeu_epi32(second.cast(), HEADS, _mm512_unpackhi_epi64(self.0, self.0));
        }
    }
}

/// [`swap_run`](super::swap_run) as long as the next few packets are all of the run. The slots are those of the copies,
/// of the sender's ring and of the receiver's.
///
/// # Safety
/// `run.most` slots are valid for reads and writes from each of the three pointers on; the processor has the vectors.
#[inline]
pub(super) unsafe fn swap_few(vectors: Vectors, slots: [*mut u8; 3], region: &Region, run: Run) -> u32 {
    // SAFETY: the caller's promise.
    unsafe {
        match vectors {
            Vectors::Avx2 => swap_avx2(slots, region, run),
            Vectors::Avx512 => swap_avx512(slots, region, run),
        }
    }
}

/// # Safety
/// As [`swap_few`]; the processor has AVX2.
#[target_feature(enable = "avx2")]
unsafe fn swap_avx2(slots: [*mut u8; 3], region: &Region, run: Run) -> u32 {
    // SAFETY: the caller's promise.
    unsafe { swap::<Two>(slots, region, run) }
}

/// # Safety
/// As [`swap_few`]; the processor has AVX-512 F and BW.
#[target_feature(enable = "avx512f,avx512bw")]
unsafe fn swap_avx512(slots: [*mut u8; 3], region: &Region, run: Run) -> u32 {
    // SAFETY: the caller's promise.
    unsafe { swap::<Four>(slots, region, run) }
}

/// # Safety
/// As [`swap_few`]; the processor has the kind of the slots.
#[inline(always)]
unsafe fn swap<F: Few>([copies, theirs, into]: [*mut u8; 3], region: &Region, run: Run) -> u32 {
    const FIRST: u32 = BufIdx::FIRST.0;
    const ALL: u32 = u32::MAX;
    let (limits, buffers) = (region.limits(), region.buffers());
    let flags = |flags: u16| u32::from(flags) << 16;
    // Of two slots the heads. Flags that must not be there make a length too large.
    let judged = [ALL, flags(NOT_PLAIN) | 0xffff, ALL, 0];
    let least = [FIRST, SHORTEST.into(), FIRST, 0];
    // There are more buffers than the reserved ones, and they hold the shortest packet (`Geometry`).
    let most = [limits.bufs - 1, limits.buf_size, limits.bufs - 1, 0];
    let span = [0, 1, 2, 3].map(|i| most[i] - least[i]);
    let mut addresses = [0; 4];
    for (word, bytes) in addresses.iter_mut().zip(run.addresses.as_chunks().0) {
        *word = u32::from_ne_bytes(*bytes);
    }
    // The receiver's index goes with the sender's length and flags, the sender's with its length.
    let kept = [ALL, ALL, ALL, 0xffff];
    let added = [0, flags(NS_BUF_CHANGED), 0, flags(run.flags | NS_BUF_CHANGED)];
    // SAFETY: the processor has the kind (caller).
    let [judged, least, span, compared, addresses, none, kept, added] = unsafe {
        [
            F::all(judged),
            F::all(least),
            F::all(span),
            F::all([ALL, ALL, ALL, 0]),
            F::all(addresses),
            F::all([0; 4]),
            F::all(kept),
            F::all(added),
        ]
    };
    let at = |idx: u32| buffers.wrapping_add(idx as usize * limits.buf_size as usize).cast_const();
    // SAFETY: slot i < most is inside the ring (caller), aligned to 16; volatile, because others may write (M1). A
    // prefetch reads nothing, wherever it points.
    let fetch = |i: u32| unsafe {
        let idx = copies.add(i as usize * SLOT_BYTES).cast::<u32>().read_volatile();
        _mm_prefetch::<_MM_HINT_T0>(at(idx).cast());
    };
    (0..run.most.min(AHEAD)).for_each(fetch);
    let mut done = 0;
    while done + F::SLOTS <= run.most {
        let slot = done as usize * SLOT_BYTES;
        // SAFETY: as many slots are inside the rings from `done` on (caller). Each index is below the number of buffers
        // when its packet is read (`within`), so that the pointer is that of a buffer (M2), which has at least 64 bytes
        // (`Geometry`); others may write them: what is loaded is judged, and not loaded again (M4).
        unsafe {
            let heads = F::load(copies.add(slot)).heads(F::load(into.add(slot)));
            if !heads.and(judged).within(least, span) {
                break;
            }
            (done + AHEAD..run.most.min(done + AHEAD + F::SLOTS)).for_each(fetch);
            if !heads.packets(at).and(compared).within(addresses, none) {
                break;
            }
            heads.crossed().and(kept).or(added).store_heads(theirs.add(slot), into.add(slot));
        }
        done += F::SLOTS;
    }
    done
}
