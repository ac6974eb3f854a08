//! Copying packets from buffers of one region into buffers of another.
//!
//! A switch moves most packets in runs: one after the other from the same sender to the same receiver. [`copy_run`] does
//! such a run in one pass: each block of 64 bytes is loaded once, the first is compared with the header that the run has,
//! and what is stored is what was compared. Behind the end of a packet, up to a multiple of 64 bytes, either nothing is
//! written or zeros: never what else is in the sender's buffer.

use unetmap_abi::NS_MOREFRAG;

use crate::frame::Frame;
use crate::pos::{BufIdx, Pos};
use crate::region::Region;
use crate::slot::{Limits, SlotRing, SlotValue};
use crate::take::CopyKind;

/// Bytes of an Ethernet frame that say from where to where.
pub const ADDRESSES: usize = 12;
/// In a slot's flags: the packet is not one of a run.
pub(crate) const NOT_PLAIN: u16 = NS_MOREFRAG | 0xff00;
/// Bytes of the shortest packet of a run.
pub(crate) const SHORTEST: u16 = 14;

/// Slots, and the region of their buffers.
#[derive(Clone, Copy)]
pub struct Side<'a> {
    /// The slots.
    pub slots: &'a SlotRing,
    /// Where the buffers are.
    pub region: &'a Region,
}

/// What all packets of a run have in common.
#[derive(Clone, Copy, Debug)]
pub struct Run {
    /// The first bytes of each.
    pub addresses: [u8; ADDRESSES],
    /// What the flags of the slots become that they are copied to.
    pub flags: u16,
    /// Packets at most.
    pub most: u32,
}

/// Copies packets from slot `from` on into the buffers of the slots from `to` on, and sets their lengths and flags; at most
/// up to the end of either ring. Returns how many.
///
/// It stops before the first packet that begins otherwise, has more than one slot, less than 14 bytes or a port's number in
/// its flags, or for which either buffer does not exist or is too small.
#[inline]
pub fn copy_run(kind: CopyKind, source: Side<'_>, from: Pos, target: Side<'_>, to: Pos, run: Run) -> u32 {
    let left = |side: Side<'_>, at: Pos| side.slots.slots().get().saturating_sub(at.raw());
    let run = Run { most: run.most.min(left(source, from)).min(left(target, to)), ..run };
    #[cfg(target_arch = "x86_64")]
    if kind.has_avx512() {
        // SAFETY: both runs of slots lie inside their rings (`left`), and the processor has the kind.
        return unsafe { x86::copy_run_avx512(source, from, target, to, run) };
    }
    let _ = kind;
    let at = |side: Side<'_>, first: Pos, i: u32| side.slots.slots().add(first, i);
    (0..run.most).take_while(|i| copy_one(source, at(source, from, *i), target, at(target, to, *i), &run)).count()
        as u32
}

/// One packet of a run, on any processor; `false` when the run ends before it.
fn copy_one(source: Side<'_>, from: Pos, target: Side<'_>, to: Pos, run: &Run) -> bool {
    let (slot, into) = (source.slots.load(from), target.slots.buf_idx(to));
    if !plain(slot, into, longest(source, target), source.region.limits(), target.region.limits()) {
        return false;
    }
    let (read, write) = (source.region.frame(slot.buf_idx), target.region.frame(into));
    if read.header()[..ADDRESSES] != run.addresses {
        return false;
    }
    write.copy_from(&read, usize::from(slot.len));
    // The sender may have exchanged them since they were compared.
    write.write(0, &run.addresses);
    target.slots.set_len_flags(to, slot.len, run.flags);
    true
}

/// Bytes that the buffers of both sides hold.
#[inline(always)]
fn longest(source: Side<'_>, target: Side<'_>) -> u32 {
    source.region.limits().buf_size.min(target.region.limits().buf_size)
}

/// Whether a slot's packet may be part of a run, into the buffer `into`.
#[inline(always)]
pub(crate) fn plain(slot: SlotValue, into: BufIdx, longest: u32, theirs: Limits, mine: Limits) -> bool {
    slot.flags & NOT_PLAIN == 0
        && slot.len >= SHORTEST
        && u32::from(slot.len) <= longest
        && theirs.index_ok(slot.buf_idx)
        && mine.index_ok(into)
}

/// Copies the first `len` bytes of a packet, a block of 64 bytes at a time where the processor can; returns how many both
/// buffers could hold.
#[inline]
pub fn copy_packet(kind: CopyKind, to: &Frame<'_>, from: &Frame<'_>, len: usize) -> usize {
    let len = len.min(to.capacity()).min(from.capacity());
    #[cfg(target_arch = "x86_64")]
    if kind.has_avx512() && len.next_multiple_of(64) <= to.capacity() {
        // SAFETY: `from` is valid for len bytes, `to` for as many rounded up to 64; the processor has the kind.
        unsafe { x86::copy_blocks(from.as_ptr(), to.as_ptr(), len) };
        return len;
    }
    let _ = kind;
    to.copy_from(from, len)
}

#[cfg(target_arch = "x86_64")]
mod x86 {
    use std::arch::x86_64::*;

    use super::{ADDRESSES, Run, Side, longest, plain};
    use crate::pos::{BufIdx, Pos};
    use crate::slot::{SLOT_BYTES, SlotValue};

    /// Packets ahead of which buffers are fetched into the cache.
    const AHEAD: u32 = 8;

    /// Copies `len` bytes, and zeros up to the next multiple of 64.
    ///
    /// # Safety
    /// `from` is valid for reads of `len` bytes, `to` for writes of as many, rounded up to a multiple of 64; the processor
    /// has AVX-512 F and BW.
    #[inline]
    #[target_feature(enable = "avx512f,avx512bw")]
    pub(super) unsafe fn copy_blocks(from: *const u8, to: *mut u8, len: usize) {
        let mut at = 0;
        while at < len {
            // SAFETY: a block is loaded no further than `len`, and stored within `len` rounded up (caller).
            unsafe { _mm512_storeu_si512(to.add(at).cast(), block(from, at, len)) };
            at += 64;
        }
    }

    /// The 64 bytes from `at` on, as far as they are below `len`; zeros beyond.
    ///
    /// # Safety
    /// `from` is valid for reads of `len` bytes, and `at < len`; the processor has AVX-512 F and BW.
    #[inline]
    #[target_feature(enable = "avx512f,avx512bw")]
    unsafe fn block(from: *const u8, at: usize, len: usize) -> __m512i {
        // SAFETY: bytes [at, at + 64) below len are valid (caller); those that the mask leaves out are not touched.
        unsafe {
            if at + 64 <= len {
                _mm512_loadu_si512(from.add(at).cast())
            } else {
                _mm512_maskz_loadu_epi8(u64::MAX >> (64 - (len - at)), from.add(at).cast())
            }
        }
    }

    /// # Safety
    /// `run.most` slots from `from` on lie inside the source's ring, and as many from `to` on inside the target's; the
    /// processor has AVX-512 F and BW.
    #[target_feature(enable = "avx512f,avx512bw")]
    pub(super) unsafe fn copy_run_avx512(source: Side<'_>, from: Pos, target: Side<'_>, to: Pos, run: Run) -> u32 {
        let (theirs, mine) = (source.region.limits(), target.region.limits());
        let longest = longest(source, target);
        let (read, write) = (source.region.buffers(), target.region.buffers());
        let (slots, into) = (source.slots.at(from), target.slots.at(to));
        let mut first = [0; 64];
        first[..ADDRESSES].copy_from_slice(&run.addresses);
        // SAFETY: 64 bytes of our own.
        let addresses = unsafe { _mm512_loadu_si512(first.as_ptr().cast()) };
        for i in 0..run.most {
            let at = i as usize * SLOT_BYTES;
            // SAFETY: slot i < most is inside both rings (caller), aligned to 16; volatile, because others may write (M1).
            let (head, idx) =
                unsafe { (slots.add(at).cast::<u64>().read_volatile(), into.add(at).cast::<u32>().read_volatile()) };
            let (slot, idx) = (SlotValue::from_words(head, 0), BufIdx(idx));
            if !plain(slot, idx, longest, theirs, mine) {
                return i;
            }
            if i + AHEAD < run.most {
                // SAFETY: slot i + AHEAD < most is inside both rings; a prefetch reads nothing, wherever it points.
                unsafe {
                    let ahead = at + AHEAD as usize * SLOT_BYTES;
                    let next = slots.add(ahead).cast::<u32>().read_volatile() as usize;
                    _mm_prefetch::<_MM_HINT_T0>(read.wrapping_add(next * theirs.buf_size as usize).cast());
                    let next = into.add(ahead).cast::<u32>().read_volatile() as usize;
                    _mm_prefetch::<_MM_HINT_ET0>(write.wrapping_add(next * mine.buf_size as usize).cast());
                }
            }
            let len = usize::from(slot.len);
            // SAFETY: both indexes are below the number of buffers of their regions (`plain`), so that the pointers are those of
            // buffers of buf_size bytes (M2); `len` is at most the smaller buf_size, and at least 14; sizes of buffers
            // are multiples of 64 (`Geometry`), so that rounding up stays inside.
            unsafe {
                let from = read.add(slot.buf_idx.0 as usize * theirs.buf_size as usize);
                let to = write.add(idx.0 as usize * mine.buf_size as usize);
                let first = block(from, 0, len);
                if _mm512_mask_cmpneq_epi32_mask(0b111, first, addresses) != 0 {
                    return i;
                }
                _mm512_storeu_si512(to.cast(), first);
                if len > 64 {
                    copy_blocks(from.add(64), to.add(64), len - 64);
                }
                into.add(at + 4).cast::<u32>().write_volatile(u32::from(slot.len) | u32::from(run.flags) << 16);
            }
        }
        run.most
    }
}

#[cfg(test)]
pub(crate) mod tests;
