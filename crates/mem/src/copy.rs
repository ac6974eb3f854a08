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
use crate::slot::{Limits, SlotHead, SlotRing, SlotValue};
use crate::take::CopyKind;

/// Bytes of an Ethernet frame that say from where to where.
pub const ADDRESSES: usize = 12;
/// In a slot's flags: more slots belong to the packet, or it names its port. So it is not one of a run.
pub const NOT_PLAIN: u16 = NS_MOREFRAG | 0xff00;
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
    if let Some(vectors) = kind.vectors() {
        // SAFETY: both runs of slots lie inside their rings (`left`), and the processor has the vectors.
        return unsafe { x86::copy_run(vectors, source, from, target, to, run) };
    }
    let _ = kind;
    let at = |side: Side<'_>, first: Pos, i: u32| side.slots.slots().add(first, i);
    (0..run.most).take_while(|i| copy_one(source, at(source, from, *i), target, at(target, to, *i), &run)).count()
        as u32
}

/// Copies packets of one slot each, from buffers of `source`, into the buffers of the slots from `to` on, and sets their
/// lengths and flags, at most up to the end of that ring. Returns how many.
///
/// It stops before the first for which either buffer does not exist or is too small.
#[inline]
pub fn copy_some(kind: CopyKind, source: &Region, packets: &[SlotHead], target: Side<'_>, to: Pos, flags: u16) -> u32 {
    let left = target.slots.slots().get().saturating_sub(to.raw()) as usize;
    let packets = &packets[..packets.len().min(left)];
    #[cfg(target_arch = "x86_64")]
    if let Some(vectors) = kind.vectors() {
        // SAFETY: as many slots lie inside the target's ring (`left`), and the processor has the vectors.
        return unsafe { x86::copy_some(vectors, source, packets, target, to, flags) };
    }
    let _ = kind;
    let one = |(i, packet): (u32, &SlotHead)| {
        let to = target.slots.slots().add(to, i);
        let into = target.slots.buf_idx(to);
        let good = fits(
            packet.buf_idx(),
            packet.len(),
            into,
            longest(source, target.region),
            (source.limits(), target.region.limits()),
        );
        if good {
            target.region.frame(into).copy_from(&source.frame(packet.buf_idx()), usize::from(packet.len()));
            target.slots.set_len_flags(to, packet.len(), flags);
        }
        good
    };
    (0..).zip(packets).take_while(|packet| one(*packet)).count() as u32
}

/// One packet of a run, on any processor; `false` when the run ends before it.
fn copy_one(source: Side<'_>, from: Pos, target: Side<'_>, to: Pos, run: &Run) -> bool {
    let (slot, into) = (source.slots.load(from), target.slots.buf_idx(to));
    if !plain(slot, into, longest(source.region, target.region), source.region.limits(), target.region.limits()) {
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

/// Bytes that the buffers of both hold.
#[inline(always)]
fn longest(source: &Region, target: &Region) -> u32 {
    source.limits().buf_size.min(target.limits().buf_size)
}

/// Whether a slot's packet may be part of a run, into the buffer `into`.
#[inline(always)]
pub(crate) fn plain(slot: SlotValue, into: BufIdx, longest: u32, theirs: Limits, mine: Limits) -> bool {
    slot.flags & NOT_PLAIN == 0 && slot.len >= SHORTEST && fits(slot.buf_idx, slot.len, into, longest, (theirs, mine))
}

/// Whether a packet can be copied from one buffer into another.
#[inline(always)]
fn fits(from: BufIdx, len: u16, into: BufIdx, longest: u32, (theirs, mine): (Limits, Limits)) -> bool {
    u32::from(len) <= longest && theirs.index_ok(from) && mine.index_ok(into)
}

/// Copies the first `len` bytes of a packet, a block of 64 bytes at a time where the processor can; returns how many both
/// buffers could hold.
#[inline]
pub fn copy_packet(kind: CopyKind, to: &Frame<'_>, from: &Frame<'_>, len: usize) -> usize {
    let len = len.min(to.capacity()).min(from.capacity());
    #[cfg(target_arch = "x86_64")]
    if let Some(vectors) = kind.vectors()
        && len.next_multiple_of(64) <= to.capacity().min(from.capacity())
    {
        // SAFETY: both are valid for len bytes, rounded up to 64; the processor has the vectors.
        unsafe { x86::copy_blocks(vectors, from.as_ptr(), to.as_ptr(), len) };
        return len;
    }
    let _ = kind;
    to.copy_from(from, len)
}

#[cfg(target_arch = "x86_64")]
mod x86;

#[cfg(test)]
pub(crate) mod tests;
