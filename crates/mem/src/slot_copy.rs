// SPDX-License-Identifier: BSD-2-Clause
//! Copies slots from a producer's ring into the consumer's: one pass that copies, validates and claims.
//!
//! For each 64-byte cache line of the producer's slots: load it once, validate every index and length in the copy in
//! registers, store the copy into the consumer's own ring, and *claim* the line by writing one word of it back
//! unchanged. The claim moves the line's ownership to the consumer's core, so that the producer's next write to it
//! costs a transfer of ownership instead of the invalidation of a shared line: 2 to 4 times the rate between two cores.
//!
//! The producer set `NS_BUF_CHANGED` for its own sync; the flag is cleared on the way, in both rings.

use unetmap_abi::NS_BUF_CHANGED;

use crate::pos::{Pos, Span};
use crate::slot::{Limits, SLOT_BYTES, SlotRing};

/// The vector instructions that slots and packets are copied with. Only [`SimdLevel::available`] makes a value, after
/// it has checked that the CPU has the instructions (M5).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SimdLevel(Level);

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Level {
    /// Slot by slot with 64-bit words: any CPU.
    Portable,
    /// Two slots a step, with AVX2.
    #[cfg(target_arch = "x86_64")]
    Avx2,
    /// A whole line of four slots a step, with AVX-512 F and BW.
    #[cfg(target_arch = "x86_64")]
    Avx512,
}

/// The vector instructions of a [`SimdLevel`] above the portable one. The CPU has them, as for the level (M5).
#[cfg(target_arch = "x86_64")]
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Vectors {
    /// AVX2.
    Avx2,
    /// AVX-512 F and BW.
    Avx512,
}

impl SimdLevel {
    /// All levels that this CPU can run, the portable one first, the best one last.
    pub fn available() -> Vec<SimdLevel> {
        let levels = [
            Some(Level::Portable),
            #[cfg(target_arch = "x86_64")]
            is_x86_feature_detected!("avx2").then_some(Level::Avx2),
            #[cfg(target_arch = "x86_64")]
            (is_x86_feature_detected!("avx512f") && is_x86_feature_detected!("avx512bw")).then_some(Level::Avx512),
        ];
        levels.into_iter().flatten().map(SimdLevel).collect()
    }

    /// The vector instructions for packets; `None` for the portable level.
    #[cfg(target_arch = "x86_64")]
    #[inline(always)]
    pub(crate) fn vectors(self) -> Option<Vectors> {
        match self.0 {
            Level::Portable => None,
            Level::Avx2 => Some(Vectors::Avx2),
            Level::Avx512 => Some(Vectors::Avx512),
        }
    }

    /// The best level that this CPU can run.
    pub fn best() -> SimdLevel {
        Self::available().pop().unwrap_or(SimdLevel(Level::Portable))
    }
}

const LINE_SLOTS: u32 = 64 / SLOT_BYTES as u32;

/// Properties of copied slots.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Copied {
    /// Every slot is within the limits.
    pub(crate) valid: bool,
    /// The sum of the slots' lengths, of invalid ones too.
    pub(crate) bytes: u64,
}

impl Copied {
    const NONE: Copied = Copied { valid: true, bytes: 0 };

    #[inline(always)]
    fn and(self, other: Copied) -> Copied {
        Copied { valid: self.valid & other.valid, bytes: self.bytes + other.bytes }
    }
}

/// Copies the slots of `span` from `from` into the same positions of `to` and claims each cache line. Both rings have
/// the same number of slots. The copies in `to` are complete also if some are invalid: the caller replaces these there
/// and does not read `from` again (M4).
#[inline]
pub(crate) fn copy_slots(simd: SimdLevel, from: &SlotRing, to: &SlotRing, span: Span, limits: Limits) -> Copied {
    debug_assert_eq!(from.slots(), to.slots());
    let mut copied = Copied::NONE;
    for (start, count) in from.slots().runs(span) {
        if count > 0 {
            copied = copied.and(copy_run(simd, from, to, start, count, limits));
        }
    }
    copied
}

/// One contiguous run: whole lines with vectors, the partial lines at both ends slot by slot.
#[inline]
fn copy_run(simd: SimdLevel, from: &SlotRing, to: &SlotRing, start: Pos, count: u32, limits: Limits) -> Copied {
    let lead = (LINE_SLOTS - start.raw() % LINE_SLOTS) % LINE_SLOTS;
    let lead = lead.min(count);
    let lines = (count - lead) / LINE_SLOTS;
    let tail = count - lead - lines * LINE_SLOTS;
    let first_line = start.raw() + lead;
    let mut copied = copy_single_slots(from, to, start.raw(), lead, limits);
    if lines > 0 {
        copied = copied.and(copy_lines(simd, from, to, first_line, lines, limits));
    }
    copied.and(copy_single_slots(from, to, first_line + lines * LINE_SLOTS, tail, limits))
}

/// `lines` whole lines from slot `first`, a multiple of four.
#[inline]
fn copy_lines(simd: SimdLevel, from: &SlotRing, to: &SlotRing, first: u32, lines: u32, limits: Limits) -> Copied {
    #[cfg(target_arch = "x86_64")]
    if simd.0 != Level::Portable {
        let at = from.slots().pos(first).unwrap_or(Pos::ZERO);
        let (src, dst) = (from.at(at), to.at(at));
        // SAFETY: the lines are part of a run that lies inside both rings, which have the same number of slots, so all
        // of them are readable and writable (M2, M3); `first` is a multiple of four slots and both rings start on a
        // 64-byte boundary, so they are aligned; the CPU has the instructions of the level (M5).
        return unsafe {
            match simd.0 {
                Level::Avx512 => x86::copy_lines_avx512(src, dst, lines as usize, limits),
                _ => x86::copy_lines_avx2(src, dst, lines as usize, limits),
            }
        };
    }
    let _ = simd;
    (0..lines).fold(Copied::NONE, |copied, line| {
        copied.and(copy_single_slots(from, to, first + line * LINE_SLOTS, LINE_SLOTS, limits))
    })
}

/// At most a line of slots. The claim writes the first copied slot, because an earlier one may be the producer's again.
#[inline]
fn copy_single_slots(from: &SlotRing, to: &SlotRing, start: u32, count: u32, limits: Limits) -> Copied {
    let mut copied = Copied::NONE;
    for i in 0..count {
        let Some(p) = from.slots().pos(start + i) else { return Copied { valid: false, ..copied } };
        let mut v = from.load(p);
        let changed = v.flags & NS_BUF_CHANGED != 0;
        v.flags &= !NS_BUF_CHANGED;
        copied = copied.and(Copied { valid: limits.allow(v), bytes: v.len.into() });
        to.store(p, v);
        if i == 0 || changed {
            from.set_flags(p, v.flags);
        }
    }
    copied
}

/// Claims the cache lines of `span` without copying them: writes back the flags of one slot of each, the first one
/// inside the span, because an earlier one may be the peer's.
#[inline]
pub(crate) fn claim_lines(ring: &SlotRing, span: Span) {
    let slots = ring.slots();
    for (start, count) in slots.runs(span) {
        let end = start.raw() + count;
        let mut at = start.raw();
        while at < end {
            if let Some(p) = slots.pos(at) {
                ring.set_flags(p, ring.flags(p));
            }
            at = (at + LINE_SLOTS) & !(LINE_SLOTS - 1);
        }
    }
}

/// Whether any slot of `span` has `NS_BUF_CHANGED`. Called on release, while the lines are still in this core's cache.
#[inline]
pub(crate) fn any_buf_changed(simd: SimdLevel, ring: &SlotRing, span: Span) -> bool {
    ring.slots().runs(span).into_iter().any(|(start, count)| {
        // SAFETY: the run lies inside the ring (M2, M3); the CPU has the instructions of `simd` (M5).
        count > 0 && unsafe { any_buf_changed_run(simd, ring.at(start), count as usize) }
    })
}

/// # Safety
/// `at` is aligned to 16 and valid for reads of `count` slots; the CPU has the instructions of `simd`.
#[inline]
unsafe fn any_buf_changed_run(simd: SimdLevel, at: *mut u8, count: usize) -> bool {
    #[cfg(target_arch = "x86_64")]
    let (done, mut any) = if simd.0 == Level::Avx512 && count >= 4 {
        let done = count & !3;
        // SAFETY: guaranteed by the caller, for a multiple of four slots (M2, M5).
        (done, u64::from(unsafe { x86::any_buf_changed_avx512(at, done) }) * CHANGED_WORD)
    } else {
        (0, 0)
    };
    #[cfg(not(target_arch = "x86_64"))]
    let (done, mut any, _) = (0, 0u64, simd);
    for i in done..count {
        // SAFETY: i < count (M2, caller); volatile, because other processes may write it (M1).
        any |= unsafe { at.add(i * SLOT_BYTES).cast::<u64>().read_volatile() };
    }
    any & CHANGED_WORD != 0
}

/// `NS_BUF_CHANGED` in the first eight bytes of a slot.
const CHANGED_WORD: u64 = (NS_BUF_CHANGED as u64) << 48;

/// The vector versions. One instruction loads a line, and the register is what is validated and stored (M4): if another
/// process writes the line at the same time, the copy is a mixture of old and new, but the validated mixture.
#[cfg(target_arch = "x86_64")]
mod x86 {
    use std::arch::x86_64::*;

    use unetmap_abi::NS_BUF_CHANGED;

    use super::{Copied, Limits, SLOT_BYTES};
    use crate::pos::BufIdx;

    /// The bit of `NS_BUF_CHANGED` in the second 32-bit word (length, flags) of a slot.
    const CHANGED_BIT: i32 = (NS_BUF_CHANGED as i32) << 16;

    /// Writes the flags in the copy back to all four slots of the line.
    ///
    /// # Safety
    /// Both lines are valid for 64 bytes and aligned.
    #[cold]
    unsafe fn clear_changed(src: *mut u8, dst: *mut u8) {
        for at in (0..64).step_by(SLOT_BYTES) {
            // SAFETY: at + 8 <= 64 (M2, caller); volatile, because other processes may write it (M1).
            unsafe {
                let flags = dst.add(at + 6).cast::<u16>().read_volatile();
                src.add(at + 6).cast::<u16>().write_volatile(flags);
            }
        }
    }

    /// # Safety
    /// `src` and `dst` are aligned to 64 and valid for reads and writes of `lines * 64` bytes; the CPU has AVX-512 F
    /// and BW.
    #[target_feature(enable = "avx512f,avx512bw")]
    pub(super) unsafe fn copy_lines_avx512(src: *mut u8, dst: *mut u8, lines: usize, limits: Limits) -> Copied {
        // Lanes of 32 bits: 0 4 8 12 are buffer indexes, 1 5 9 13 are length and flags.
        const INDEX: __mmask16 = 0x1111;
        const LEN: __mmask16 = 0x2222;
        let first = _mm512_set1_epi32(BufIdx::FIRST.0 as i32);
        let usable = _mm512_set1_epi32(limits.bufs.wrapping_sub(BufIdx::FIRST.0) as i32);
        let low_half = _mm512_set1_epi32(0xffff);
        let longest = _mm512_set1_epi32(limits.buf_size as i32);
        let changed = _mm512_set1_epi32(CHANGED_BIT);
        let mut invalid: __mmask16 = 0;
        // Per lane. A ring has at most 2^14 slots, so 32 bits hold the sum of their lengths.
        let mut lens = _mm512_setzero_si512();
        for line in 0..lines {
            // SAFETY: line < lines, so 64 aligned bytes are valid at both addresses (M2, caller); raw copies (M1).
            unsafe {
                let (s, d) = (src.add(line * 64), dst.add(line * 64));
                let v = _mm512_load_si512(s.cast());
                invalid |= _mm512_mask_cmpge_epu32_mask(INDEX, _mm512_sub_epi32(v, first), usable);
                let low = _mm512_and_si512(v, low_half);
                invalid |= _mm512_mask_cmpgt_epu32_mask(LEN, low, longest);
                lens = _mm512_add_epi32(lens, low);
                if _mm512_mask_test_epi32_mask(LEN, v, changed) == 0 {
                    _mm512_store_si512(d.cast(), v);
                    let head = _mm_cvtsi128_si64(_mm512_castsi512_si128(v)) as u64;
                    s.add(6).cast::<u16>().write_volatile((head >> 48) as u16);
                } else {
                    _mm512_store_si512(d.cast(), _mm512_mask_andnot_epi32(v, LEN, changed, v));
                    clear_changed(s, d);
                }
            }
        }
        let lens = _mm512_maskz_mov_epi32(LEN, lens);
        let wide = _mm512_srli_epi64::<32>(lens);
        Copied { valid: invalid == 0, bytes: _mm512_reduce_add_epi64(wide) as u64 }
    }

    /// # Safety
    /// `at` is valid for reads of `count` slots, a multiple of four; the CPU has AVX-512 F.
    #[target_feature(enable = "avx512f")]
    pub(super) unsafe fn any_buf_changed_avx512(at: *const u8, count: usize) -> bool {
        let mut all = _mm512_setzero_si512();
        for i in (0..count).step_by(4) {
            // SAFETY: i + 4 <= count (M2, caller); an unaligned load, because a run may start at any slot.
            all = _mm512_or_si512(all, unsafe { _mm512_loadu_si512(at.add(i * SLOT_BYTES).cast()) });
        }
        _mm512_mask_test_epi32_mask(0x2222, all, _mm512_set1_epi32(CHANGED_BIT)) != 0
    }

    /// # Safety
    /// As `copy_lines_avx512`, but the CPU has AVX2.
    #[target_feature(enable = "avx2")]
    pub(super) unsafe fn copy_lines_avx2(src: *mut u8, dst: *mut u8, lines: usize, limits: Limits) -> Copied {
        // Unsigned comparison by flipping the top bit: a >= b is not (b > a).
        let flip = _mm256_set1_epi32(i32::MIN);
        let index_lanes = _mm256_set_epi32(0, 0, 0, -1, 0, 0, 0, -1);
        let len_lanes = _mm256_set_epi32(0, 0, 0xffff, 0, 0, 0, 0xffff, 0);
        let first = _mm256_set1_epi32(BufIdx::FIRST.0 as i32);
        let usable = _mm256_xor_si256(_mm256_set1_epi32(limits.bufs.wrapping_sub(BufIdx::FIRST.0) as i32), flip);
        let longest = _mm256_set1_epi32(limits.buf_size as i32);
        let changed = _mm256_set_epi32(0, 0, CHANGED_BIT, 0, 0, 0, CHANGED_BIT, 0);
        let mut invalid = _mm256_setzero_si256();
        // Per lane, as with AVX-512.
        let mut lens = _mm256_setzero_si256();
        for line in 0..lines {
            // SAFETY: line < lines, so 64 aligned bytes are valid at both addresses (M2, caller); raw copies (M1).
            unsafe {
                let (s, d) = (src.add(line * 64), dst.add(line * 64));
                let halves = [_mm256_load_si256(s.cast()), _mm256_load_si256(s.add(32).cast())];
                let mut any = _mm256_setzero_si256();
                for (i, v) in halves.into_iter().enumerate() {
                    let below = _mm256_cmpgt_epi32(usable, _mm256_xor_si256(_mm256_sub_epi32(v, first), flip));
                    invalid = _mm256_or_si256(invalid, _mm256_andnot_si256(below, index_lanes));
                    let len = _mm256_and_si256(v, len_lanes);
                    invalid = _mm256_or_si256(invalid, _mm256_cmpgt_epi32(len, longest));
                    lens = _mm256_add_epi32(lens, len);
                    any = _mm256_or_si256(any, _mm256_and_si256(v, changed));
                    _mm256_store_si256(d.add(i * 32).cast(), _mm256_andnot_si256(changed, v));
                }
                if _mm256_testz_si256(any, any) != 0 {
                    let head = _mm256_extract_epi64::<0>(halves[0]) as u64;
                    s.add(6).cast::<u16>().write_volatile((head >> 48) as u16);
                } else {
                    clear_changed(s, d);
                }
            }
        }
        let first = _mm256_extract_epi32::<1>(lens) as u32;
        let second = _mm256_extract_epi32::<5>(lens) as u32;
        Copied { valid: _mm256_testz_si256(invalid, invalid) != 0, bytes: u64::from(first) + u64::from(second) }
    }
}

#[cfg(test)]
mod tests;
