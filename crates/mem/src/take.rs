//! Taking a run of slots from another party: one pass that copies, judges and claims.
//!
//! For each 64-byte line of the producer's slots: load it once, judge every index and length on the copy in the
//! registers, store the copy into the consumer's own ring, and *claim* the line by writing one word of it back. The
//! claim makes the consumer's core the owner of the line, so that its next transfer to the producer is a hand-over
//! instead of a shared line's invalidation: 2 to 4 times the rate between two cores.
//!
//! `NS_BUF_CHANGED` is the producer's note to the sync before this one; it is cleared on the way, in both rings.

use unetmap_abi::NS_BUF_CHANGED;

use crate::pos::{Pos, Span};
use crate::slot::{Limits, SLOT_BYTES, SlotRing};

/// Which slot copy this processor gets. Only this module makes one, after asking the processor: that is what makes it
/// sound to run it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct CopyKind(Kind);

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Kind {
    /// Slot by slot with plain 64-bit words: any processor.
    Portable,
    /// Two slots a step with AVX2.
    #[cfg(target_arch = "x86_64")]
    Avx2,
    /// A whole line of four slots a step with AVX-512.
    #[cfg(target_arch = "x86_64")]
    Avx512,
}

/// Vectors that a processor has: that of a [`CopyKind`] does.
#[cfg(target_arch = "x86_64")]
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Vectors {
    /// AVX2.
    Avx2,
    /// AVX-512 F and BW.
    Avx512,
}

impl CopyKind {
    /// All that this processor can run, the portable one first, the best one last.
    pub fn available() -> Vec<CopyKind> {
        let kinds = [
            Some(Kind::Portable),
            #[cfg(target_arch = "x86_64")]
            is_x86_feature_detected!("avx2").then_some(Kind::Avx2),
            #[cfg(target_arch = "x86_64")]
            (is_x86_feature_detected!("avx512f") && is_x86_feature_detected!("avx512bw")).then_some(Kind::Avx512),
        ];
        kinds.into_iter().flatten().map(CopyKind).collect()
    }

    /// The vectors that this processor has for more than slots.
    #[cfg(target_arch = "x86_64")]
    #[inline(always)]
    pub(crate) fn vectors(self) -> Option<Vectors> {
        match self.0 {
            Kind::Portable => None,
            Kind::Avx2 => Some(Vectors::Avx2),
            Kind::Avx512 => Some(Vectors::Avx512),
        }
    }

    /// The best that this processor has.
    pub fn best() -> CopyKind {
        Self::available().pop().unwrap_or(CopyKind(Kind::Portable))
    }
}

const LINE_SLOTS: u32 = 64 / SLOT_BYTES as u32;

/// Copies the slots of `span` from `from` into the same places of `to`, claiming each line; returns whether every slot
/// obeyed `limits`. Both rings have the same number of slots. Afterwards the copies in `to` are complete either way:
/// the caller mends bad ones there, and never looks at `from` again.
#[inline]
pub(crate) fn take(kind: CopyKind, from: &SlotRing, to: &SlotRing, span: Span, limits: Limits) -> bool {
    debug_assert_eq!(from.slots(), to.slots());
    let mut good = true;
    for (start, count) in from.slots().runs(span) {
        if count > 0 {
            good &= take_run(kind, from, to, start, count, limits);
        }
    }
    good
}

/// One contiguous run: whole lines by the chosen kernel, the partial ones at both ends slot by slot.
#[inline]
fn take_run(kind: CopyKind, from: &SlotRing, to: &SlotRing, start: Pos, count: u32, limits: Limits) -> bool {
    let lead = (LINE_SLOTS - start.raw() % LINE_SLOTS) % LINE_SLOTS;
    let lead = lead.min(count);
    let lines = (count - lead) / LINE_SLOTS;
    let tail = count - lead - lines * LINE_SLOTS;
    let first_line = start.raw() + lead;
    let mut good = take_slots(from, to, start.raw(), lead, limits);
    if lines > 0 {
        good &= take_lines(kind, from, to, first_line, lines, limits);
    }
    good & take_slots(from, to, first_line + lines * LINE_SLOTS, tail, limits)
}

/// `lines` whole lines from slot `first`, a multiple of four.
#[inline]
fn take_lines(kind: CopyKind, from: &SlotRing, to: &SlotRing, first: u32, lines: u32, limits: Limits) -> bool {
    #[cfg(target_arch = "x86_64")]
    if kind.0 != Kind::Portable {
        let at = from.slots().pos(first).unwrap_or(Pos::ZERO);
        let (src, dst) = (from.at(at), to.at(at));
        // SAFETY: the lines are part of a run that lies inside both rings, which have the same number of slots, so all
        // of them are readable and writable; `first` is a multiple of four slots and both rings start on a 64-byte
        // boundary, so they are aligned; the processor has the kind, or nobody could have made it.
        return unsafe {
            match kind.0 {
                Kind::Avx512 => x86::take_lines_avx512(src, dst, lines as usize, limits),
                _ => x86::take_lines_avx2(src, dst, lines as usize, limits),
            }
        };
    }
    let _ = kind;
    (0..lines).fold(true, |good, line| good & take_slots(from, to, first + line * LINE_SLOTS, LINE_SLOTS, limits))
}

/// Up to a line: the claim goes to the first slot taken, because an earlier one may be the producer's again.
#[inline]
fn take_slots(from: &SlotRing, to: &SlotRing, start: u32, count: u32, limits: Limits) -> bool {
    let mut good = true;
    for i in 0..count {
        let Some(p) = from.slots().pos(start + i) else { return false };
        let mut v = from.load(p);
        let changed = v.flags & NS_BUF_CHANGED != 0;
        v.flags &= !NS_BUF_CHANGED;
        good &= limits.allow(v);
        to.store(p, v);
        if i == 0 || changed {
            from.set_flags(p, v.flags);
        }
    }
    good
}

/// Claims the lines of `span` without copying them: writes the flags of a slot of each back, of the first one that lies in
/// the span, because an earlier one may be another party's.
#[inline]
pub(crate) fn claim(ring: &SlotRing, span: Span) {
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

/// Whether any slot of `span` carries `NS_BUF_CHANGED`: read on release, when the lines are still in the own cache.
#[inline]
pub(crate) fn any_changed(kind: CopyKind, ring: &SlotRing, span: Span) -> bool {
    ring.slots().runs(span).into_iter().any(|(start, count)| {
        // SAFETY: the run lies inside the ring (M3); the processor has `kind`.
        count > 0 && unsafe { any_changed_run(kind, ring.at(start), count as usize) }
    })
}

/// # Safety
/// `at` is aligned to 16 and valid for reads of `count` slots; the processor has `kind`.
#[inline]
unsafe fn any_changed_run(kind: CopyKind, at: *mut u8, count: usize) -> bool {
    #[cfg(target_arch = "x86_64")]
    let (done, mut any) = if kind.0 == Kind::Avx512 && count >= 4 {
        let done = count & !3;
        // SAFETY: the caller's promise, for a multiple of four slots.
        (done, u64::from(unsafe { x86::any_changed_avx512(at, done) }) * CHANGED_WORD)
    } else {
        (0, 0)
    };
    #[cfg(not(target_arch = "x86_64"))]
    let (done, mut any, _) = (0, 0u64, kind);
    for i in done..count {
        // SAFETY: i < count (caller); volatile, because others may write (M1).
        any |= unsafe { at.add(i * SLOT_BYTES).cast::<u64>().read_volatile() };
    }
    any & CHANGED_WORD != 0
}

/// `NS_BUF_CHANGED` in the first eight bytes of a slot.
const CHANGED_WORD: u64 = (NS_BUF_CHANGED as u64) << 48;

/// The vector twins. A line is loaded by one instruction, and what is judged and stored is the register: should another
/// party write the line meanwhile, the copy is some mixture of old and new, but it is the mixture that was judged.
#[cfg(target_arch = "x86_64")]
mod x86 {
    use std::arch::x86_64::*;

    use unetmap_abi::NS_BUF_CHANGED;

    use super::{Limits, SLOT_BYTES};
    use crate::pos::BufIdx;

    /// The bit of `NS_BUF_CHANGED` in the second 32-bit word (length, flags) of a slot.
    const CHANGED_BIT: i32 = (NS_BUF_CHANGED as i32) << 16;

    /// Writes the flags that are now in the copy back to all four slots of the line.
    ///
    /// # Safety
    /// Both lines are valid for 64 bytes and aligned.
    #[cold]
    unsafe fn clear_changed(src: *mut u8, dst: *mut u8) {
        for at in (0..64).step_by(SLOT_BYTES) {
            // SAFETY: at + 8 <= 64 (caller); volatile because others may write (M1).
            unsafe {
                let flags = dst.add(at + 6).cast::<u16>().read_volatile();
                src.add(at + 6).cast::<u16>().write_volatile(flags);
            }
        }
    }

    /// # Safety
    /// `src` and `dst` are aligned to 64 and valid for reads and writes of `lines * 64` bytes; the processor has AVX-512 F
    /// and BW.
    #[target_feature(enable = "avx512f,avx512bw")]
    pub(super) unsafe fn take_lines_avx512(src: *mut u8, dst: *mut u8, lines: usize, limits: Limits) -> bool {
        // Lanes of 32 bits: 0 4 8 12 are indexes, 1 5 9 13 length and flags.
        const INDEX: __mmask16 = 0x1111;
        const LEN: __mmask16 = 0x2222;
        let first = _mm512_set1_epi32(BufIdx::FIRST.0 as i32);
        let usable = _mm512_set1_epi32(limits.bufs.wrapping_sub(BufIdx::FIRST.0) as i32);
        let low_half = _mm512_set1_epi32(0xffff);
        let longest = _mm512_set1_epi32(limits.buf_size as i32);
        let changed = _mm512_set1_epi32(CHANGED_BIT);
        let mut bad: __mmask16 = 0;
        for line in 0..lines {
            // SAFETY: line < lines, so 64 aligned bytes are valid at both addresses (caller).
            unsafe {
                let (s, d) = (src.add(line * 64), dst.add(line * 64));
                let v = _mm512_load_si512(s.cast());
                bad |= _mm512_mask_cmpge_epu32_mask(INDEX, _mm512_sub_epi32(v, first), usable);
                bad |= _mm512_mask_cmpgt_epu32_mask(LEN, _mm512_and_si512(v, low_half), longest);
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
        bad == 0
    }

    /// # Safety
    /// `at` is valid for reads of `count` slots, a multiple of four; the processor has AVX-512 F.
    #[target_feature(enable = "avx512f")]
    pub(super) unsafe fn any_changed_avx512(at: *const u8, count: usize) -> bool {
        let mut all = _mm512_setzero_si512();
        for i in (0..count).step_by(4) {
            // SAFETY: i + 4 <= count (caller); an unaligned load, because a run may start anywhere.
            all = _mm512_or_si512(all, unsafe { _mm512_loadu_si512(at.add(i * SLOT_BYTES).cast()) });
        }
        _mm512_mask_test_epi32_mask(0x2222, all, _mm512_set1_epi32(CHANGED_BIT)) != 0
    }

    /// # Safety
    /// As `take_lines_avx512`, but the processor has AVX2.
    #[target_feature(enable = "avx2")]
    pub(super) unsafe fn take_lines_avx2(src: *mut u8, dst: *mut u8, lines: usize, limits: Limits) -> bool {
        // Unsigned compares by flipping the top bit: a >= b is not (b > a).
        let flip = _mm256_set1_epi32(i32::MIN);
        let index_lanes = _mm256_set_epi32(0, 0, 0, -1, 0, 0, 0, -1);
        let len_lanes = _mm256_set_epi32(0, 0, 0xffff, 0, 0, 0, 0xffff, 0);
        let first = _mm256_set1_epi32(BufIdx::FIRST.0 as i32);
        let usable = _mm256_xor_si256(_mm256_set1_epi32(limits.bufs.wrapping_sub(BufIdx::FIRST.0) as i32), flip);
        let longest = _mm256_set1_epi32(limits.buf_size as i32);
        let changed = _mm256_set_epi32(0, 0, CHANGED_BIT, 0, 0, 0, CHANGED_BIT, 0);
        let mut bad = _mm256_setzero_si256();
        for line in 0..lines {
            // SAFETY: line < lines, so 64 aligned bytes are valid at both addresses (caller).
            unsafe {
                let (s, d) = (src.add(line * 64), dst.add(line * 64));
                let halves = [_mm256_load_si256(s.cast()), _mm256_load_si256(s.add(32).cast())];
                let mut any = _mm256_setzero_si256();
                for (i, v) in halves.into_iter().enumerate() {
                    let below = _mm256_cmpgt_epi32(usable, _mm256_xor_si256(_mm256_sub_epi32(v, first), flip));
                    bad = _mm256_or_si256(bad, _mm256_andnot_si256(below, index_lanes));
                    bad = _mm256_or_si256(bad, _mm256_cmpgt_epi32(_mm256_and_si256(v, len_lanes), longest));
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
        _mm256_testz_si256(bad, bad) != 0
    }
}

#[cfg(test)]
mod tests;
