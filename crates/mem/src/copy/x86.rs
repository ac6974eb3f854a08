//! Copies with the vectors that a processor has. What differs between them is a block of 64 bytes, [`Block`].

use std::arch::x86_64::*;

use super::{ADDRESSES, Run, Side, fits, longest, plain};
use crate::fetch;
use crate::pos::{BufIdx, Pos};
use crate::region::Region;
use crate::slot::{SLOT_BYTES, SlotHead, SlotValue};
use crate::take::Vectors;

/// Packets ahead of which buffers are fetched into the cache.
const AHEAD: u32 = 8;

/// 64 bytes in registers. Each method must become part of a function that has the features of the block's kind.
trait Block: Copy {
    /// The first `len` of 64 bytes, zeros beyond.
    ///
    /// # Safety
    /// `from` is valid for reads of 64 bytes, and `0 < len <= 64`.
    unsafe fn load(from: *const u8, len: usize) -> Self;

    /// # Safety
    /// `to` is valid for writes of 64 bytes.
    unsafe fn store(self, to: *mut u8);

    /// Whether both begin with the same addresses.
    ///
    /// # Safety
    /// The processor has the block's kind.
    unsafe fn same_addresses(self, other: Self) -> bool;
}

/// With AVX2.
#[derive(Clone, Copy)]
struct Halves(__m256i, __m256i);

/// 64 bytes that stay and 64 that do not: the 64 from `64 - len` on keep `len`.
static KEEP: [u8; 128] = {
    let mut keep = [0; 128];
    let mut at = 0;
    while at < 64 {
        keep[at] = u8::MAX;
        at += 1;
    }
    keep
};

impl Block for Halves {
    #[inline(always)]
    unsafe fn load(from: *const u8, len: usize) -> Halves {
        // SAFETY: 64 bytes are valid (caller); of `KEEP` those from 64 - len <= 64 on.
        unsafe {
            let whole = Halves(_mm256_loadu_si256(from.cast()), _mm256_loadu_si256(from.add(32).cast()));
            if len >= 64 {
                return whole;
            }
            let keep = KEEP.as_ptr().add(64 - len);
            Halves(
                _mm256_and_si256(whole.0, _mm256_loadu_si256(keep.cast())),
                _mm256_and_si256(whole.1, _mm256_loadu_si256(keep.add(32).cast())),
            )
        }
    }

    #[inline(always)]
    unsafe fn store(self, to: *mut u8) {
        // SAFETY: 64 bytes are valid (caller).
        unsafe {
            _mm256_storeu_si256(to.cast(), self.0);
            _mm256_storeu_si256(to.add(32).cast(), self.1);
        }
    }

    #[inline(always)]
    unsafe fn same_addresses(self, other: Halves) -> bool {
        const ALL: i32 = (1 << ADDRESSES) - 1;
        // SAFETY: the processor has AVX2 (caller).
        unsafe { _mm256_movemask_epi8(_mm256_cmpeq_epi8(self.0, other.0)) & ALL == ALL }
    }
}

/// With AVX-512 F and BW.
#[derive(Clone, Copy)]
struct Whole(__m512i);

impl Block for Whole {
    #[inline(always)]
    unsafe fn load(from: *const u8, len: usize) -> Whole {
        // SAFETY: 64 bytes are valid (caller).
        unsafe {
            if len >= 64 {
                Whole(_mm512_loadu_si512(from.cast()))
            } else {
                Whole(_mm512_maskz_loadu_epi8(u64::MAX >> (64 - len), from.cast()))
            }
        }
    }

    #[inline(always)]
    unsafe fn store(self, to: *mut u8) {
        // SAFETY: 64 bytes are valid (caller).
        unsafe { _mm512_storeu_si512(to.cast(), self.0) };
    }

    #[inline(always)]
    unsafe fn same_addresses(self, other: Whole) -> bool {
        // SAFETY: the processor has AVX-512 F (caller).
        unsafe { _mm512_mask_cmpneq_epi32_mask(0b111, self.0, other.0) == 0 }
    }
}

/// Copies `len` bytes, and zeros up to the next multiple of 64.
///
/// # Safety
/// `from` is valid for reads and `to` for writes of `len` bytes, rounded up to a multiple of 64; the processor has the vectors.
#[inline]
pub(super) unsafe fn copy_blocks(vectors: Vectors, from: *const u8, to: *mut u8, len: usize) {
    // SAFETY: the caller's promise.
    unsafe {
        match vectors {
            Vectors::Avx2 => copy_blocks_avx2(from, to, len),
            Vectors::Avx512 => copy_blocks_avx512(from, to, len),
        }
    }
}

/// Copies a run, see [`copy_run`](super::copy_run).
///
/// # Safety
/// `run.most` slots from `from` on lie inside the source's ring, and as many from `to` on inside the target's; the
/// processor has the vectors.
#[inline]
pub(super) unsafe fn copy_run(
    vectors: Vectors,
    source: Side<'_>,
    from: Pos,
    target: Side<'_>,
    to: Pos,
    run: Run,
) -> u32 {
    // SAFETY: the caller's promise.
    unsafe {
        match vectors {
            Vectors::Avx2 => copy_run_avx2(source, from, target, to, run),
            Vectors::Avx512 => copy_run_avx512(source, from, target, to, run),
        }
    }
}

/// Copies some packets, see [`copy_some`](super::copy_some).
///
/// # Safety
/// As many slots as there are packets lie inside the target's ring from `to` on; the processor has the vectors.
#[inline]
pub(super) unsafe fn copy_some(
    vectors: Vectors,
    source: &Region,
    packets: &[SlotHead],
    target: Side<'_>,
    to: Pos,
    flags: u16,
) -> u32 {
    // SAFETY: the caller's promise.
    unsafe {
        match vectors {
            Vectors::Avx2 => copy_some_avx2(source, packets, target, to, flags),
            Vectors::Avx512 => copy_some_avx512(source, packets, target, to, flags),
        }
    }
}

/// # Safety
/// As [`copy_blocks`]; the processor has AVX2.
#[inline]
#[target_feature(enable = "avx2")]
unsafe fn copy_blocks_avx2(from: *const u8, to: *mut u8, len: usize) {
    // SAFETY: the caller's promise.
    unsafe { blocks::<Halves>(from, to, len) }
}

/// # Safety
/// As [`copy_blocks`]; the processor has AVX-512 F and BW.
#[inline]
#[target_feature(enable = "avx512f,avx512bw")]
unsafe fn copy_blocks_avx512(from: *const u8, to: *mut u8, len: usize) {
    // SAFETY: the caller's promise.
    unsafe { blocks::<Whole>(from, to, len) }
}

/// # Safety
/// As [`copy_run`]; the processor has AVX2.
#[target_feature(enable = "avx2")]
unsafe fn copy_run_avx2(source: Side<'_>, from: Pos, target: Side<'_>, to: Pos, run: Run) -> u32 {
    // SAFETY: the caller's promise.
    unsafe { packets::<Halves>(source, from, target, to, run) }
}

/// # Safety
/// As [`copy_run`]; the processor has AVX-512 F and BW.
#[target_feature(enable = "avx512f,avx512bw")]
unsafe fn copy_run_avx512(source: Side<'_>, from: Pos, target: Side<'_>, to: Pos, run: Run) -> u32 {
    // SAFETY: the caller's promise.
    unsafe { packets::<Whole>(source, from, target, to, run) }
}

/// # Safety
/// As [`copy_some`]; the processor has AVX2.
#[target_feature(enable = "avx2")]
unsafe fn copy_some_avx2(source: &Region, packets: &[SlotHead], target: Side<'_>, to: Pos, flags: u16) -> u32 {
    // SAFETY: the caller's promise.
    unsafe { some_packets::<Halves>(source, packets, target, to, flags) }
}

/// # Safety
/// As [`copy_some`]; the processor has AVX-512 F and BW.
#[target_feature(enable = "avx512f,avx512bw")]
unsafe fn copy_some_avx512(source: &Region, packets: &[SlotHead], target: Side<'_>, to: Pos, flags: u16) -> u32 {
    // SAFETY: the caller's promise.
    unsafe { some_packets::<Whole>(source, packets, target, to, flags) }
}

/// # Safety
/// As [`copy_blocks`]; the processor has the block's kind.
#[inline(always)]
unsafe fn blocks<B: Block>(from: *const u8, to: *mut u8, len: usize) {
    let mut at = 0;
    while at < len {
        // SAFETY: the block ends within `len` rounded up to 64 (caller).
        unsafe { B::load(from.add(at), (len - at).min(64)).store(to.add(at)) };
        at += 64;
    }
}

/// # Safety
/// As [`copy_run`]; the processor has the block's kind.
#[inline(always)]
unsafe fn packets<B: Block>(source: Side<'_>, from: Pos, target: Side<'_>, to: Pos, run: Run) -> u32 {
    let (theirs, mine) = (source.region.limits(), target.region.limits());
    let longest = longest(source.region, target.region);
    let (read, write) = (source.region.buffers(), target.region.buffers());
    let (slots, into) = (source.slots.at(from), target.slots.at(to));
    let mut first = [0; 64];
    first[..ADDRESSES].copy_from_slice(&run.addresses);
    // SAFETY: 64 bytes of our own.
    let addresses = unsafe { B::load(first.as_ptr(), 64) };
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
                fetch::to_write(write.wrapping_add(next * mine.buf_size as usize));
            }
        }
        let len = usize::from(slot.len);
        // SAFETY: both indexes are below the number of buffers of their regions (`plain`), so that the pointers are those of
        // buffers of buf_size bytes (M2); `len` is at most the smaller buf_size, and at least 14; sizes of buffers
        // are multiples of 64 (`Geometry`), so that rounding up stays inside both.
        unsafe {
            let from = read.add(slot.buf_idx.0 as usize * theirs.buf_size as usize);
            let to = write.add(idx.0 as usize * mine.buf_size as usize);
            let first = B::load(from, len.min(64));
            if !first.same_addresses(addresses) {
                return i;
            }
            first.store(to);
            if len > 64 {
                blocks::<B>(from.add(64), to.add(64), len - 64);
            }
            into.add(at + 4).cast::<u32>().write_volatile(u32::from(slot.len) | u32::from(run.flags) << 16);
        }
    }
    run.most
}

/// # Safety
/// As [`copy_some`]; the processor has the block's kind.
#[inline(always)]
unsafe fn some_packets<B: Block>(source: &Region, packets: &[SlotHead], target: Side<'_>, to: Pos, flags: u16) -> u32 {
    let (theirs, mine) = (source.limits(), target.region.limits());
    let longest = longest(source, target.region);
    let (read, write, into) = (source.buffers(), target.region.buffers(), target.slots.at(to));
    for (i, packet) in packets.iter().enumerate() {
        let at = i * SLOT_BYTES;
        // SAFETY: slot i is inside the ring (caller), aligned to 16; volatile, because others may write (M1).
        let idx = BufIdx(unsafe { into.add(at).cast::<u32>().read_volatile() });
        if !fits(packet.buf_idx(), packet.len(), idx, longest, (theirs, mine)) {
            return i as u32;
        }
        if i + (AHEAD as usize) < packets.len() {
            // SAFETY: slot i + AHEAD is inside the ring (caller).
            let next = unsafe { into.add(at + AHEAD as usize * SLOT_BYTES).cast::<u32>().read_volatile() };
            fetch::to_write(write.wrapping_add(next as usize * mine.buf_size as usize));
        }
        // SAFETY: both indexes are below the number of buffers of their regions, and the length is at most the smaller
        // buf_size (`fits`), a multiple of 64 (`Geometry`); the slot is inside the ring.
        unsafe {
            let from = read.add(packet.buf_idx().0 as usize * theirs.buf_size as usize);
            blocks::<B>(from, write.add(idx.0 as usize * mine.buf_size as usize), usize::from(packet.len()));
            into.add(at + 4).cast::<u32>().write_volatile(u32::from(packet.len()) | u32::from(flags) << 16);
        }
    }
    packets.len() as u32
}
