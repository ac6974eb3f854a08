// SPDX-License-Identifier: BSD-2-Clause
//! Copies with vector instructions. AVX2 and AVX-512 differ in how a block of 64 bytes is handled, [`Block`].

use std::arch::x86_64::*;

use super::{MAC_PAIR_BYTES, Moved, RingRef, Run, fits, max_len, may_join_run};
use crate::pos::{BufIdx, Pos};
use crate::prefetch;
use crate::region::Region;
use crate::slot::{SLOT_BYTES, SlotHead, SlotValue};
use crate::slot_copy::Vectors;
use crate::tuning::COPY_PREFETCH_PACKETS as AHEAD;

/// 64 bytes in registers. Each method must be inlined into a function that has the target features of its
/// implementation.
trait Block: Copy {
    /// The first `len` of 64 bytes, zeros beyond.
    ///
    /// # Safety
    /// `from` is valid for reads of 64 bytes, and `0 < len <= 64`; the CPU has the instructions.
    unsafe fn load(from: *const u8, len: usize) -> Self;

    /// Stores all 64 bytes.
    ///
    /// # Safety
    /// `to` is valid for writes of 64 bytes; the CPU has the instructions.
    unsafe fn store(self, to: *mut u8);

    /// Whether both begin with the same MAC addresses.
    ///
    /// # Safety
    /// The CPU has the instructions.
    unsafe fn same_addresses(self, other: Self) -> bool;
}

/// Two halves, with AVX2.
#[derive(Clone, Copy)]
struct Avx2Block(__m256i, __m256i);

/// A mask table: 64 bytes of ones, 64 of zeros. The 64 bytes from `64 - len` on keep the first `len` bytes of a block.
static KEEP: [u8; 128] = {
    let mut keep = [0; 128];
    let mut at = 0;
    while at < 64 {
        keep[at] = u8::MAX;
        at += 1;
    }
    keep
};

impl Block for Avx2Block {
    #[inline(always)]
    unsafe fn load(from: *const u8, len: usize) -> Avx2Block {
        // SAFETY: 64 bytes are valid (M2, caller), of `KEEP` those from 64 - len <= 64 on; the CPU has AVX2 (M5,
        // caller).
        unsafe {
            let whole = Avx2Block(_mm256_loadu_si256(from.cast()), _mm256_loadu_si256(from.add(32).cast()));
            if len >= 64 {
                return whole;
            }
            let keep = KEEP.as_ptr().add(64 - len);
            Avx2Block(
                _mm256_and_si256(whole.0, _mm256_loadu_si256(keep.cast())),
                _mm256_and_si256(whole.1, _mm256_loadu_si256(keep.add(32).cast())),
            )
        }
    }

    #[inline(always)]
    unsafe fn store(self, to: *mut u8) {
        // SAFETY: 64 bytes are valid (M2) and the CPU has AVX2 (M5), both guaranteed by the caller; a raw copy (M1).
        unsafe {
            _mm256_storeu_si256(to.cast(), self.0);
            _mm256_storeu_si256(to.add(32).cast(), self.1);
        }
    }

    #[inline(always)]
    unsafe fn same_addresses(self, other: Avx2Block) -> bool {
        const ALL: i32 = (1 << MAC_PAIR_BYTES) - 1;
        // SAFETY: the CPU has AVX2 (M5, caller).
        unsafe { _mm256_movemask_epi8(_mm256_cmpeq_epi8(self.0, other.0)) & ALL == ALL }
    }
}

/// One register, with AVX-512 F and BW.
#[derive(Clone, Copy)]
struct Avx512Block(__m512i);

impl Block for Avx512Block {
    #[inline(always)]
    unsafe fn load(from: *const u8, len: usize) -> Avx512Block {
        // SAFETY: 64 bytes are valid (M2) and the CPU has AVX-512 (M5), both guaranteed by the caller; a raw copy (M1).
        unsafe {
            if len >= 64 {
                Avx512Block(_mm512_loadu_si512(from.cast()))
            } else {
                Avx512Block(_mm512_maskz_loadu_epi8(u64::MAX >> (64 - len), from.cast()))
            }
        }
    }

    #[inline(always)]
    unsafe fn store(self, to: *mut u8) {
        // SAFETY: 64 bytes are valid (M2) and the CPU has AVX-512 (M5), both guaranteed by the caller; a raw copy (M1).
        unsafe { _mm512_storeu_si512(to.cast(), self.0) };
    }

    #[inline(always)]
    unsafe fn same_addresses(self, other: Avx512Block) -> bool {
        // SAFETY: the CPU has AVX-512 F (M5, caller).
        unsafe { _mm512_mask_cmpneq_epi32_mask(0b111, self.0, other.0) == 0 }
    }
}

/// Copies `len` bytes and writes zeros up to the next multiple of 64.
///
/// # Safety
/// `from` is valid for reads and `to` for writes of `len` bytes, rounded up to a multiple of 64; the CPU has the
/// instructions.
#[inline]
pub(super) unsafe fn copy_blocks(vectors: Vectors, from: *const u8, to: *mut u8, len: usize) {
    // SAFETY: guaranteed by the caller (M2, M5).
    unsafe {
        match vectors {
            Vectors::Avx2 => copy_blocks_avx2(from, to, len),
            Vectors::Avx512 => copy_blocks_avx512(from, to, len),
        }
    }
}

/// Copies a run; see [`copy_run`](super::copy_run).
///
/// # Safety
/// `run.max` slots from `from` on lie inside the source's ring, and as many from `to` on inside the target's; the
/// CPU has the instructions.
#[inline]
pub(super) unsafe fn copy_run(
    vectors: Vectors,
    source: RingRef<'_>,
    from: Pos,
    target: RingRef<'_>,
    to: Pos,
    run: Run,
) -> Moved {
    // SAFETY: guaranteed by the caller (M2, M5).
    unsafe {
        match vectors {
            Vectors::Avx2 => copy_run_avx2(source, from, target, to, run),
            Vectors::Avx512 => copy_run_avx512(source, from, target, to, run),
        }
    }
}

/// Copies listed packets; see [`copy_list`](super::copy_list).
///
/// # Safety
/// As many slots as there are packets lie inside the target's ring from `to` on; the CPU has the instructions.
#[inline]
pub(super) unsafe fn copy_list(
    vectors: Vectors,
    source: &Region,
    packets: &[SlotHead],
    target: RingRef<'_>,
    to: Pos,
    flags: u16,
) -> Moved {
    // SAFETY: guaranteed by the caller (M2, M5).
    unsafe {
        match vectors {
            Vectors::Avx2 => copy_list_avx2(source, packets, target, to, flags),
            Vectors::Avx512 => copy_list_avx512(source, packets, target, to, flags),
        }
    }
}

/// # Safety
/// As [`copy_blocks`]; the CPU has AVX2.
#[inline]
#[target_feature(enable = "avx2")]
unsafe fn copy_blocks_avx2(from: *const u8, to: *mut u8, len: usize) {
    // SAFETY: guaranteed by the caller (M2, M5).
    unsafe { copy_whole_blocks::<Avx2Block>(from, to, len) }
}

/// # Safety
/// As [`copy_blocks`]; the CPU has AVX-512 F and BW.
#[inline]
#[target_feature(enable = "avx512f,avx512bw")]
unsafe fn copy_blocks_avx512(from: *const u8, to: *mut u8, len: usize) {
    // SAFETY: guaranteed by the caller (M2, M5).
    unsafe { copy_whole_blocks::<Avx512Block>(from, to, len) }
}

/// # Safety
/// As [`copy_run`]; the CPU has AVX2.
#[target_feature(enable = "avx2")]
unsafe fn copy_run_avx2(source: RingRef<'_>, from: Pos, target: RingRef<'_>, to: Pos, run: Run) -> Moved {
    // SAFETY: guaranteed by the caller (M2, M5).
    unsafe { copy_run_packets::<Avx2Block>(source, from, target, to, run) }
}

/// # Safety
/// As [`copy_run`]; the CPU has AVX-512 F and BW.
#[target_feature(enable = "avx512f,avx512bw")]
unsafe fn copy_run_avx512(source: RingRef<'_>, from: Pos, target: RingRef<'_>, to: Pos, run: Run) -> Moved {
    // SAFETY: guaranteed by the caller (M2, M5).
    unsafe { copy_run_packets::<Avx512Block>(source, from, target, to, run) }
}

/// # Safety
/// As [`copy_list`]; the CPU has AVX2.
#[target_feature(enable = "avx2")]
unsafe fn copy_list_avx2(source: &Region, packets: &[SlotHead], target: RingRef<'_>, to: Pos, flags: u16) -> Moved {
    // SAFETY: guaranteed by the caller (M2, M5).
    unsafe { copy_listed_packets::<Avx2Block>(source, packets, target, to, flags) }
}

/// # Safety
/// As [`copy_list`]; the CPU has AVX-512 F and BW.
#[target_feature(enable = "avx512f,avx512bw")]
unsafe fn copy_list_avx512(source: &Region, packets: &[SlotHead], target: RingRef<'_>, to: Pos, flags: u16) -> Moved {
    // SAFETY: guaranteed by the caller (M2, M5).
    unsafe { copy_listed_packets::<Avx512Block>(source, packets, target, to, flags) }
}

/// # Safety
/// As [`copy_blocks`]; the CPU has the block's instructions.
#[inline(always)]
unsafe fn copy_whole_blocks<B: Block>(from: *const u8, to: *mut u8, len: usize) {
    let mut at = 0;
    while at < len {
        // SAFETY: the block ends within `len` rounded up to 64 (M2, M5, caller).
        unsafe { B::load(from.add(at), (len - at).min(64)).store(to.add(at)) };
        at += 64;
    }
}

/// # Safety
/// As [`copy_run`]; the CPU has the block's instructions.
#[inline(always)]
unsafe fn copy_run_packets<B: Block>(source: RingRef<'_>, from: Pos, target: RingRef<'_>, to: Pos, run: Run) -> Moved {
    let (source_limits, target_limits) = (source.region.limits(), target.region.limits());
    let max_len = max_len(source.region, target.region);
    let (read, write) = (source.region.bufs_ptr(), target.region.bufs_ptr());
    let (slots, into) = (source.slots.at(from), target.slots.at(to));
    let mut first = [0; 64];
    first[..MAC_PAIR_BYTES].copy_from_slice(&run.addresses);
    // SAFETY: 64 bytes of a local array; the CPU has the instructions (M5, caller).
    let addresses = unsafe { B::load(first.as_ptr(), 64) };
    let mut moved = Moved::default();
    for i in 0..run.max {
        let at = i as usize * SLOT_BYTES;
        // SAFETY: slot i < max is inside both rings (M2, caller), aligned to 16; volatile, because other processes may
        // write it (M1).
        let (head, idx) =
            unsafe { (slots.add(at).cast::<u64>().read_volatile(), into.add(at).cast::<u32>().read_volatile()) };
        let (slot, idx) = (SlotValue::from_words(head, 0), BufIdx(idx));
        if !may_join_run(slot, idx, max_len, source_limits, target_limits) {
            return moved;
        }
        if i + AHEAD < run.max {
            // SAFETY: slot i + AHEAD < max is inside both rings (M2, caller), read as above (M1); a prefetch faults at
            // no address (M7).
            unsafe {
                let ahead = at + AHEAD as usize * SLOT_BYTES;
                let next = slots.add(ahead).cast::<u32>().read_volatile() as usize;
                _mm_prefetch::<_MM_HINT_T0>(read.wrapping_add(next * source_limits.buf_size as usize).cast());
                let next = into.add(ahead).cast::<u32>().read_volatile() as usize;
                prefetch::for_write(write.wrapping_add(next * target_limits.buf_size as usize));
            }
        }
        let len = usize::from(slot.len);
        // SAFETY: both indexes, validated copies (M4), are below the number of buffers of their regions
        // (`may_join_run`), so the pointers are those of buffers of buf_size bytes (M2); `len` is at most the smaller
        // buf_size, and at least 14; buffer sizes are multiples of 64, so rounding up stays inside both (M6). Raw
        // copies (M1). The CPU has the instructions (M5, caller).
        unsafe {
            let from = read.add(slot.buf_idx.0 as usize * source_limits.buf_size as usize);
            let to = write.add(idx.0 as usize * target_limits.buf_size as usize);
            let first = B::load(from, len.min(64));
            if !first.same_addresses(addresses) {
                return moved;
            }
            first.store(to);
            if len > 64 {
                copy_whole_blocks::<B>(from.add(64), to.add(64), len - 64);
            }
            into.add(at + 4).cast::<u32>().write_volatile(u32::from(slot.len) | u32::from(run.flags) << 16);
        }
        moved = moved.and(slot.len);
    }
    moved
}

/// # Safety
/// As [`copy_list`]; the CPU has the block's instructions.
#[inline(always)]
unsafe fn copy_listed_packets<B: Block>(
    source: &Region,
    packets: &[SlotHead],
    target: RingRef<'_>,
    to: Pos,
    flags: u16,
) -> Moved {
    let (source_limits, target_limits) = (source.limits(), target.region.limits());
    let max_len = max_len(source, target.region);
    let (read, write, into) = (source.bufs_ptr(), target.region.bufs_ptr(), target.slots.at(to));
    let mut moved = Moved::default();
    for (i, packet) in packets.iter().enumerate() {
        let at = i * SLOT_BYTES;
        // SAFETY: slot i is inside the ring (M2, caller), aligned to 16; volatile, because other processes may write it
        // (M1).
        let idx = BufIdx(unsafe { into.add(at).cast::<u32>().read_volatile() });
        if !fits(packet.buf_idx(), packet.len(), idx, max_len, (source_limits, target_limits)) {
            return moved;
        }
        if i + (AHEAD as usize) < packets.len() {
            // SAFETY: slot i + AHEAD is inside the ring (M2, caller), read as above (M1).
            let next = unsafe { into.add(at + AHEAD as usize * SLOT_BYTES).cast::<u32>().read_volatile() };
            prefetch::for_write(write.wrapping_add(next as usize * target_limits.buf_size as usize));
        }
        // SAFETY: both indexes, validated copies (M4), are below the number of buffers of their regions (M2), and the
        // length is at most the smaller buf_size (`fits`), a multiple of 64 (M6); the slot is inside the ring (caller).
        // Raw copies (M1). The CPU has the instructions (M5, caller).
        unsafe {
            let from = read.add(packet.buf_idx().0 as usize * source_limits.buf_size as usize);
            copy_whole_blocks::<B>(
                from,
                write.add(idx.0 as usize * target_limits.buf_size as usize),
                usize::from(packet.len()),
            );
            into.add(at + 4).cast::<u32>().write_volatile(u32::from(packet.len()) | u32::from(flags) << 16);
        }
        moved = moved.and(packet.len());
    }
    moved
}
