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

/// Packets ahead of which buffers are fetched into the cache: their sender, on another processor, has just written them.
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
/// It stops where [`copy_run`](crate::copy_run) does.
#[inline]
pub fn swap_run(source: &Consumer, from: Pos, target: &SlotRing, to: Pos, region: &Region, run: Run) -> u32 {
    let (copies, limits) = (source.slots(), source.limits());
    let left = |ring: &SlotRing, at: Pos| ring.slots().get().saturating_sub(at.raw());
    let most = run.most.min(left(copies, from)).min(left(target, to));
    let fetch = |i: u32| region.fetch_to_write(copies.buf_idx(copies.slots().add(from, i)));
    (0..most.min(AHEAD)).for_each(fetch);
    for i in 0..most {
        let (at, into) = (copies.slots().add(from, i), target.slots().add(to, i));
        let slot = copies.load(at);
        if !plain(slot, target.buf_idx(into), limits.buf_size, limits, limits) {
            return i;
        }
        if i + AHEAD < most {
            fetch(i + AHEAD);
        }
        let frame = region.frame(slot.buf_idx);
        if frame.header()[..ADDRESSES] != run.addresses || !swap_one(source, at, target, into, run.flags) {
            return i;
        }
        // Its next writer is a sender, to whom it comes back by another exchange.
        frame.claim();
    }
    most
}

#[cfg(test)]
mod tests;
