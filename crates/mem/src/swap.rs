//! Exchanging buffers between two ports that share a region: packets cross without being copied.
//!
//! ```text
//!            slot of the sender         slot of the receiver
//! before     A, its packet              B, free
//! after      B, NS_BUF_CHANGED          A, the packet's length, NS_BUF_CHANGED
//! ```
//! Both slots belong to whoever exchanges: the sender's is sent and not yet released, the receiver's is free. Which buffer
//! is the sender's is what was judged in the copy of its slot, which buffer is the receiver's is read once, and judged.
//! So the slots of the two hold the same buffers as before, whatever their programs write meanwhile, or one of the programs
//! has spoiled what is its own.

use unetmap_abi::NS_BUF_CHANGED;

use crate::copy::{ADDRESSES, Run, plain};
use crate::line::Consumer;
use crate::pos::Pos;
use crate::region::Region;
use crate::slot::{SlotRing, SlotValue};
#[cfg(target_arch = "x86_64")]
use crate::take::Vectors;

/// Packets ahead of which buffers are fetched into the cache: their sender, on another processor, may have written them.
const AHEAD: u32 = 32;

/// Exchanges the buffer in slot `from` of a sender's, as it was taken, for the one in slot `to` of a receiver's, whose slot
/// gets the length and these `flags`. `false`, and nothing is changed, when the receiver's slot names no buffer.
#[inline]
pub fn swap_one(source: &Consumer, from: Pos, target: &SlotRing, to: Pos, flags: u16) -> bool {
    let (slot, into) = (source.slots().load(from), target.buf_idx(to));
    let good = source.limits().allow(slot) && source.limits().index_ok(into);
    if good {
        source.theirs().store_head(from, SlotValue { buf_idx: into, flags: slot.flags | NS_BUF_CHANGED, ..slot });
        target.store_head(to, SlotValue { flags: flags | NS_BUF_CHANGED, ..slot });
    }
    good
}

/// The same with packets from slot `from` on, at most up to the end of either ring, as long as they are of the run; all
/// buffers are of `region`. Returns how many.
///
/// It stops where [`copy_run`](crate::copy_run) does. Buffers are only read: a sender that only reads them, too, because
/// they hold already what it wants to send, finds them in its own cache.
#[inline]
pub fn swap_run(source: &Consumer, from: Pos, target: &SlotRing, to: Pos, region: &Region, run: Run) -> u32 {
    let (copies, limits) = (source.slots(), region.limits());
    let left = |ring: &SlotRing, at: Pos| ring.slots().get().saturating_sub(at.raw());
    let most = run.most.min(left(copies, from)).min(left(target, to));
    #[cfg(target_arch = "x86_64")]
    let done = if source.copy_kind().vectors() == Some(Vectors::Avx512) {
        let rings = [copies.at(from), source.theirs().at(from), target.at(to)];
        // SAFETY: `most` slots lie inside each of the rings (`left`; the sender's is as large as that of the copies), and
        // the processor has the kind.
        unsafe { x86::swap_fours(rings, region, Run { most, ..run }) }
    } else {
        0
    };
    #[cfg(not(target_arch = "x86_64"))]
    let done = 0;
    let slot_of = |i: u32| copies.load(copies.slots().add(from, i));
    (done..most.min(done + AHEAD)).for_each(|i| region.fetch(slot_of(i).buf_idx));
    for i in done..most {
        let (slot, into) = (slot_of(i), target.slots().add(to, i));
        if i + AHEAD < most {
            region.fetch(slot_of(i + AHEAD).buf_idx);
        }
        if !plain(slot, target.buf_idx(into), limits.buf_size, limits, limits)
            || region.frame(slot.buf_idx).header()[..ADDRESSES] != run.addresses
            || !swap_one(source, copies.slots().add(from, i), target, into, run.flags)
        {
            return i;
        }
    }
    most
}

#[cfg(target_arch = "x86_64")]
mod x86 {
    use std::arch::x86_64::*;

    use unetmap_abi::NS_BUF_CHANGED;

    use super::AHEAD;
    use crate::copy::{ADDRESSES, NOT_PLAIN, Run, SHORTEST};
    use crate::pos::BufIdx;
    use crate::region::Region;
    use crate::slot::SLOT_BYTES;

    /// [`swap_run`](super::swap_run) as long as the next four packets are all of the run: a line of slots at a time. The
    /// slots are those of the copies, of the sender's ring and of the receiver's.
    ///
    /// # Safety
    /// `run.most` slots are valid for reads and writes from each of the three pointers on; the processor has AVX-512 F and
    /// BW.
    #[target_feature(enable = "avx512f,avx512bw")]
    pub(super) unsafe fn swap_fours([copies, theirs, into]: [*mut u8; 3], region: &Region, run: Run) -> u32 {
        // Lanes of 32 bits: 0 4 8 12 are indexes, 1 5 9 13 length and flags; the others are the programs' own.
        const INDEX: __mmask16 = 0x1111;
        const LEN: __mmask16 = 0x2222;
        const ADDRESS: __mmask16 = 0x7777;
        let (limits, buffers) = (region.limits(), region.buffers());
        let at = |idx: u32| buffers.wrapping_add(idx as usize * limits.buf_size as usize);
        let flags = |flags: u16| _mm512_set1_epi32(i32::from(flags) << 16);
        let first = _mm512_set1_epi32(BufIdx::FIRST.0 as i32);
        let usable = _mm512_set1_epi32(limits.bufs.saturating_sub(BufIdx::FIRST.0) as i32);
        let low_half = _mm512_set1_epi32(0xffff);
        let shortest = _mm512_set1_epi32(SHORTEST.into());
        let longest = _mm512_set1_epi32(limits.buf_size as i32);
        let (not_plain, changed) = (flags(NOT_PLAIN), flags(NS_BUF_CHANGED));
        let arrives = flags(run.flags | NS_BUF_CHANGED);
        let mut addresses = [0; 16];
        addresses[..ADDRESSES].copy_from_slice(&run.addresses);
        // SAFETY: 16 bytes of our own.
        let addresses = _mm512_broadcast_i32x4(unsafe { _mm_loadu_si128(addresses.as_ptr().cast()) });
        // SAFETY: slot i < most is inside the ring (caller), aligned to 16; volatile, because others may write (M1). A
        // prefetch reads nothing, wherever it points.
        let fetch = |i: u32| unsafe {
            let idx = copies.add(i as usize * SLOT_BYTES).cast::<u32>().read_volatile();
            _mm_prefetch::<_MM_HINT_T0>(at(idx).cast_const().cast());
        };
        (0..run.most.min(AHEAD)).for_each(fetch);
        let mut done = 0;
        while done + 4 <= run.most {
            let slot = done as usize * SLOT_BYTES;
            // SAFETY: four slots from `done` on are inside the rings (caller).
            let (sent, free) =
                unsafe { (_mm512_loadu_si512(copies.add(slot).cast()), _mm512_loadu_si512(into.add(slot).cast())) };
            let len = _mm512_and_si512(sent, low_half);
            let bad = _mm512_mask_cmpge_epu32_mask(INDEX, _mm512_sub_epi32(sent, first), usable)
                | _mm512_mask_cmpge_epu32_mask(INDEX, _mm512_sub_epi32(free, first), usable)
                | _mm512_mask_test_epi32_mask(LEN, sent, not_plain)
                | _mm512_mask_cmplt_epu32_mask(LEN, len, shortest)
                | _mm512_mask_cmpgt_epu32_mask(LEN, len, longest);
            if bad != 0 {
                break;
            }
            (done + AHEAD..run.most.min(done + AHEAD + 4)).for_each(fetch);
            let [a, b, c, d] = [
                _mm512_castsi512_si128(sent),
                _mm512_extracti32x4_epi32::<1>(sent),
                _mm512_extracti32x4_epi32::<2>(sent),
                _mm512_extracti32x4_epi32::<3>(sent),
            ]
            // SAFETY: the index is below the number of buffers (`bad`), so that the pointer is that of a buffer (M2), which
            // has at least 64 bytes (`Geometry`); others may write them: what is loaded is judged, and not loaded again (M4).
            .map(|slot| unsafe { _mm_loadu_si128(at(_mm_cvtsi128_si32(slot) as u32).cast_const().cast()) });
            let heads = _mm512_inserti32x4::<1>(_mm512_castsi128_si512(a), b);
            let heads = _mm512_inserti32x4::<3>(_mm512_inserti32x4::<2>(heads, c), d);
            if _mm512_mask_cmpneq_epi32_mask(ADDRESS, heads, addresses) != 0 {
                break;
            }
            // SAFETY: as above; only indexes, lengths and flags are stored.
            unsafe {
                let back = _mm512_mask_or_epi32(free, LEN, sent, changed);
                _mm512_mask_storeu_epi32(theirs.add(slot).cast(), INDEX | LEN, back);
                let come = _mm512_mask_or_epi32(sent, LEN, len, arrives);
                _mm512_mask_storeu_epi32(into.add(slot).cast(), INDEX | LEN, come);
            }
            done += 4;
        }
        done
    }
}

#[cfg(test)]
mod tests;
