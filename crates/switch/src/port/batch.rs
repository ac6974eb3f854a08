// SPDX-License-Identifier: BSD-2-Clause
//! A batch of slots that were taken from a transmit ring.

use std::ops::AddAssign;

use unetmap_mem::{BufIdx, Consumer, Frame, Offsets, Pos, Region, SlotRing, SlotValue};

use crate::backpressure::Backpressure;
use crate::forward::Packet;

/// Slots taken from a transmit ring: validated copies in the daemon's memory, and their position.
///
/// After the buffer of a slot was swapped its copy still has the old index; that buffer is the receiver's then.
#[derive(Clone, Copy)]
pub(crate) struct Batch<'a> {
    pub(crate) channel: &'a Consumer,
    pub(crate) slots: &'a SlotRing,
    /// Position of the first slot.
    pub(crate) start: Pos,
    /// Number of slots.
    pub(crate) len: u32,
    /// Where packets begin in their buffers.
    pub(crate) offsets: Offsets,
    /// Bytes in the slots that were taken, skipped ones included.
    pub(crate) bytes: u64,
    /// True if the ring had no further slots.
    pub(crate) drained: bool,
    /// True if some slots were invalid: they name the reserved buffer 0 now.
    pub(crate) has_invalid: bool,
}

/// A batch for a receive ring.
#[derive(Clone, Copy)]
pub(crate) struct BatchSource<'a> {
    /// The memory of the port that sent it.
    pub(crate) region: &'a Region,
    pub(crate) batch: &'a Batch<'a>,
    pub(crate) backpressure: &'a Backpressure,
}

/// The part of a batch that was forwarded or dropped.
#[derive(Clone, Copy, Default)]
pub(crate) struct Served {
    pub(crate) slots: u32,
    /// Packets that begin there: of one that is too long, the first piece.
    pub(crate) packets: u32,
}

impl Served {
    /// So many packets of one slot.
    pub(crate) fn single(packets: u32) -> Served {
        Served { slots: packets, packets }
    }
}

impl AddAssign for Served {
    fn add_assign(&mut self, other: Served) {
        self.slots += other.slots;
        self.packets += other.packets;
    }
}

impl<'a> Batch<'a> {
    /// Returns the position of slot `i`.
    #[inline(always)]
    pub(crate) fn at(&self, i: u32) -> Pos {
        self.slots.slots().add(self.start, i)
    }

    /// Returns the bytes in its first `n` slots; it is a batch of which none were skipped.
    pub(crate) fn bytes_of(&self, n: u32) -> u64 {
        match n == self.len {
            true => self.bytes,
            // The rest is the beginning of a packet.
            false => (0..n).map(|i| u64::from(self.slots.len(self.at(i)))).sum(),
        }
    }

    /// Returns the batch without its first `n` slots.
    pub(crate) fn skip(&self, n: u32) -> Batch<'a> {
        Batch { start: self.at(n), len: self.len - n, ..*self }
    }

    /// Returns the part of a slot's buffer that starts where the packet begins.
    #[inline(always)]
    pub(crate) fn frame<'r>(&self, region: &'r Region, slot: SlotValue) -> Frame<'r> {
        self.offsets.within(region.frame(slot.buf_idx), || slot.ptr)
    }

    /// True if a slot of the packet was invalid.
    #[inline(always)]
    pub(crate) fn is_invalid(&self, region: &Region, packet: Packet) -> bool {
        if !self.has_invalid {
            return false;
        }
        let mut indexes = (0..packet.frags).map(|i| self.slots.buf_idx(self.at(u32::from(packet.at + i))));
        indexes.any(|idx: BufIdx| !region.limits().index_ok(idx))
    }
}
