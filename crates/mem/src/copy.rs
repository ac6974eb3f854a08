// SPDX-License-Identifier: BSD-2-Clause
//! Copying packets from buffers of one region into buffers of another.
//!
//! A switch moves most packets in runs: consecutive packets of one sender with the same addresses, and so the same
//! receiver. [`copy_run`] copies such a run in one pass: each block of 64 bytes is loaded once, the addresses of the
//! first block are compared with those of the run, and the compared bytes are stored (M4). The bytes after the end of a
//! packet, up to a multiple of 64, stay as they are or become zeros: never other bytes of the sender's buffer.

use unetmap_abi::NS_MOREFRAG;

use crate::frame::Frame;
use crate::pos::{BufIdx, Pos};
use crate::region::Region;
use crate::slot::{Limits, SlotHead, SlotRing, SlotValue};
use crate::slot_copy::SimdLevel;

/// Bytes of the destination and source MAC address at the start of an Ethernet frame.
pub const MAC_PAIR_BYTES: usize = 12;
/// Slot flags that exclude a packet from a run: it has more fragments, or the flags name its destination port.
pub const RUN_BREAK_FLAGS: u16 = NS_MOREFRAG | 0xff00;
/// Bytes of the shortest packet of a run: an Ethernet header.
pub(crate) const MIN_LEN: u16 = 14;

/// The slots of a ring, and the region of their buffers.
#[derive(Clone, Copy)]
pub struct RingRef<'a> {
    /// The slots.
    pub slots: &'a SlotRing,
    /// The region of the buffers.
    pub region: &'a Region,
}

/// A run: what its packets have in common, and its bound.
#[derive(Clone, Copy, Debug)]
pub struct Run {
    /// Destination and source MAC address of each packet.
    pub addresses: [u8; MAC_PAIR_BYTES],
    /// The flags to set in the receiving slots.
    pub flags: u16,
    /// The most packets to move.
    pub max: u32,
}

/// The result of copying or swapping.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Moved {
    /// Packets of one slot each.
    pub packets: u32,
    /// The sum of their lengths.
    pub bytes: u64,
}

impl Moved {
    /// One packet more.
    #[inline(always)]
    pub(crate) fn and(self, len: u16) -> Moved {
        Moved { packets: self.packets + 1, bytes: self.bytes + u64::from(len) }
    }
}

/// Copies packets from slot `from` on into the buffers of the slots from `to` on, and sets their lengths and flags; at
/// most up to the end of either ring.
///
/// Stops before the first packet that has other addresses, more than one slot, less than 14 bytes or a port number in
/// its flags, or for which either buffer does not exist or is too small.
#[inline]
pub fn copy_run(simd: SimdLevel, source: RingRef<'_>, from: Pos, target: RingRef<'_>, to: Pos, run: Run) -> Moved {
    let left = |side: RingRef<'_>, at: Pos| side.slots.slots().get().saturating_sub(at.raw());
    let run = Run { max: run.max.min(left(source, from)).min(left(target, to)), ..run };
    #[cfg(target_arch = "x86_64")]
    if let Some(vectors) = simd.vectors() {
        // SAFETY: both runs of slots lie inside their rings (`left`, M2), and the CPU has the vector instructions (M5).
        return unsafe { x86::copy_run(vectors, source, from, target, to, run) };
    }
    let _ = simd;
    let at = |side: RingRef<'_>, first: Pos, i: u32| side.slots.slots().add(first, i);
    let lens = (0..run.max).map_while(|i| copy_one(source, at(source, from, i), target, at(target, to, i), &run));
    lens.fold(Moved::default(), Moved::and)
}

/// Copies packets of one slot each, listed by the heads of their slots, from buffers of `source` into the buffers of
/// the slots from `to` on, and sets their lengths and flags; at most up to the end of that ring.
///
/// Stops before the first packet for which either buffer does not exist or is too small.
#[inline]
pub fn copy_list(
    simd: SimdLevel,
    source: &Region,
    packets: &[SlotHead],
    target: RingRef<'_>,
    to: Pos,
    flags: u16,
) -> Moved {
    let left = target.slots.slots().get().saturating_sub(to.raw()) as usize;
    let packets = &packets[..packets.len().min(left)];
    #[cfg(target_arch = "x86_64")]
    if let Some(vectors) = simd.vectors() {
        // SAFETY: as many slots lie inside the target's ring (`left`, M2), and the CPU has the vector instructions
        // (M5).
        return unsafe { x86::copy_list(vectors, source, packets, target, to, flags) };
    }
    let _ = simd;
    let one = |(i, packet): (u32, &SlotHead)| {
        let to = target.slots.slots().add(to, i);
        let into = target.slots.buf_idx(to);
        let ok = fits(
            packet.buf_idx(),
            packet.len(),
            into,
            max_len(source, target.region),
            (source.limits(), target.region.limits()),
        );
        if ok {
            target.region.frame(into).copy_from(&source.frame(packet.buf_idx()), usize::from(packet.len()));
            target.slots.set_len_flags(to, packet.len(), flags);
        }
        ok.then(|| packet.len())
    };
    (0..).zip(packets).map_while(one).fold(Moved::default(), Moved::and)
}

/// Copies one packet of a run without vectors; returns its length, or `None` if the run ends before it.
fn copy_one(source: RingRef<'_>, from: Pos, target: RingRef<'_>, to: Pos, run: &Run) -> Option<u16> {
    let (slot, into) = (source.slots.load(from), target.slots.buf_idx(to));
    if !may_join_run(slot, into, max_len(source.region, target.region), source.region.limits(), target.region.limits())
    {
        return None;
    }
    let (read, write) = (source.region.frame(slot.buf_idx), target.region.frame(into));
    if read.header()[..MAC_PAIR_BYTES] != run.addresses {
        return None;
    }
    write.copy_from(&read, usize::from(slot.len));
    // The sender may have changed the addresses since they were compared (M4).
    write.write(0, &run.addresses);
    target.slots.set_len_flags(to, slot.len, run.flags);
    Some(slot.len)
}

/// The longest packet that buffers of both regions hold, bytes.
#[inline(always)]
fn max_len(source: &Region, target: &Region) -> u32 {
    source.limits().buf_size.min(target.limits().buf_size)
}

/// Whether a slot's packet may be part of a run, copied into the buffer `into`.
#[inline(always)]
pub(crate) fn may_join_run(slot: SlotValue, into: BufIdx, max_len: u32, source: Limits, target: Limits) -> bool {
    slot.flags & RUN_BREAK_FLAGS == 0
        && slot.len >= MIN_LEN
        && fits(slot.buf_idx, slot.len, into, max_len, (source, target))
}

/// Whether a packet of `len` bytes can be copied from buffer `from` into buffer `into`.
#[inline(always)]
fn fits(from: BufIdx, len: u16, into: BufIdx, max_len: u32, (source, target): (Limits, Limits)) -> bool {
    u32::from(len) <= max_len && source.index_ok(from) && target.index_ok(into)
}

/// Copies the first `len` bytes of a packet, at most what both buffers hold, in blocks of 64 bytes where the CPU has
/// vector instructions; returns how many bytes.
#[inline]
pub fn copy_packet(simd: SimdLevel, to: &Frame<'_>, from: &Frame<'_>, len: usize) -> usize {
    let len = len.min(to.capacity()).min(from.capacity());
    #[cfg(target_arch = "x86_64")]
    if let Some(vectors) = simd.vectors()
        && len.next_multiple_of(64) <= to.capacity().min(from.capacity())
    {
        // SAFETY: both are valid for len bytes, rounded up to 64 (M2); the CPU has the vector instructions (M5).
        unsafe { x86::copy_blocks(vectors, from.as_ptr(), to.as_ptr(), len) };
        return len;
    }
    let _ = simd;
    to.copy_from(from, len)
}

#[cfg(target_arch = "x86_64")]
mod x86;

#[cfg(test)]
pub(crate) mod tests;
