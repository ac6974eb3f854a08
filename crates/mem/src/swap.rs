// SPDX-License-Identifier: BSD-2-Clause
//! Swapping buffers between two ports that share a region: packets move without a copy.
//!
//! ```text
//!            slot of the sender         slot of the receiver
//! before     A, its packet              B, free
//! after      B, NS_BUF_CHANGED          A, the packet's length, NS_BUF_CHANGED
//! ```
//! The caller owns both slots: the sender's is published and not yet released, the receiver's is free. The sender's
//! index is the validated one in the copy of its slot; the receiver's index is read once and validated (M4). So both
//! slots together name the same buffers as before. A program that writes its slots at the same time corrupts only its
//! own packets.

use unetmap_abi::NS_BUF_CHANGED;

use crate::channel::Consumer;
use crate::copy::{MAC_PAIR_BYTES, Moved, Run, may_join_run};
use crate::pos::Pos;
use crate::region::Region;
use crate::slot::{SlotRing, SlotValue};
use crate::tuning::SWAP_PREFETCH_PACKETS as AHEAD;

/// Swaps the buffer in slot `from` of a sender's ring, as it was received, with the one in slot `to` of a receiver's
/// ring, whose slot gets the packet's length and `flags`. `false`, without any change, if one of the two slots is not
/// valid.
#[inline]
pub fn swap_one(source: &Consumer, from: Pos, target: &SlotRing, to: Pos, flags: u16) -> bool {
    let (slot, into) = (source.slots().load(from), target.buf_idx(to));
    let valid = source.limits().allow(slot) && source.limits().index_ok(into);
    if valid {
        source
            .producer_slots()
            .store_head(from, SlotValue { buf_idx: into, flags: slot.flags | NS_BUF_CHANGED, ..slot });
        target.store_head(to, SlotValue { flags: flags | NS_BUF_CHANGED, ..slot });
    }
    valid
}

/// Swaps packets from slot `from` on, at most up to the end of either ring, as long as they are of the run; all buffers
/// are of `region`.
///
/// Stops where [`copy_run`](crate::copy_run) does. Buffers are only read: a sender whose buffers already hold what it
/// sends next, so that it only reads them too, keeps them in its own cache.
#[inline]
pub fn swap_run(source: &Consumer, from: Pos, target: &SlotRing, to: Pos, region: &Region, run: Run) -> Moved {
    let (copies, limits) = (source.slots(), region.limits());
    let left = |ring: &SlotRing, at: Pos| ring.slots().get().saturating_sub(at.raw());
    let max = run.max.min(left(copies, from)).min(left(target, to));
    #[cfg(target_arch = "x86_64")]
    let mut moved = if let Some(vectors) = source.simd().vectors() {
        let rings = [copies.at(from), source.producer_slots().at(from), target.at(to)];
        // SAFETY: `max` slots lie inside each of the rings (`left`, M2; the sender's is as large as that of the
        // copies), and the CPU has the vector instructions (M5).
        unsafe { x86::swap_vectors(vectors, rings, region, Run { max, ..run }) }
    } else {
        Moved::default()
    };
    #[cfg(not(target_arch = "x86_64"))]
    let mut moved = Moved::default();
    let done = moved.packets;
    let slot_of = |i: u32| copies.load(copies.slots().add(from, i));
    (done..max.min(done + AHEAD)).for_each(|i| region.prefetch(slot_of(i).buf_idx));
    for i in done..max {
        let (slot, into) = (slot_of(i), target.slots().add(to, i));
        if i + AHEAD < max {
            region.prefetch(slot_of(i + AHEAD).buf_idx);
        }
        if !may_join_run(slot, target.buf_idx(into), limits.buf_size, limits, limits)
            || region.frame(slot.buf_idx).header()[..MAC_PAIR_BYTES] != run.addresses
            || !swap_one(source, copies.slots().add(from, i), target, into, run.flags)
        {
            return moved;
        }
        moved = moved.and(slot.len);
    }
    moved
}

#[cfg(target_arch = "x86_64")]
mod x86;

#[cfg(test)]
mod tests;
