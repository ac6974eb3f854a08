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
    let done = if let Some(vectors) = source.copy_kind().vectors() {
        let rings = [copies.at(from), source.theirs().at(from), target.at(to)];
        // SAFETY: `most` slots lie inside each of the rings (`left`; the sender's is as large as that of the copies), and
        // the processor has the vectors.
        unsafe { x86::swap_few(vectors, rings, region, Run { most, ..run }) }
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
mod x86;

#[cfg(test)]
mod tests;
