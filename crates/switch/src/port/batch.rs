//! A batch of slots that a port has sent, on its way to others.

use unetmap_mem::{Consumer, Offsets, Pos, SlotRing};

use crate::worker::backpressure::Patience;
use super::{Attached, Outgoing};

/// A batch that is being served: whose it is, and what all share who move its packets.
#[derive(Clone, Copy)]
pub(in super::super) struct Served<'a> {
    /// Who sent it.
    pub(in super::super) port: &'a Attached,
    /// On which of its rings, and that one's number.
    pub(in super::super) ring: &'a Outgoing,
    pub(in super::super) number: usize,
    pub(in super::super) batch: Batch<'a>,
    pub(in super::super) patience: &'a Patience,
}

impl<'a> Served<'a> {
    /// What follows after `n` slots.
    pub(in super::super) fn from(&self, n: u32) -> Served<'a> {
        Served { batch: self.batch.from(n), ..*self }
    }
}

/// Slots that were taken from a source: the copies, and where they start.
///
/// A copy stays as it was taken when its buffer has changed sides; then the packet is the receiver's.
#[derive(Clone, Copy)]
pub(in super::super) struct Batch<'a> {
    pub(crate) line: &'a Consumer,
    pub(in super::super) slots: &'a SlotRing,
    pub(in super::super) start: Pos,
    pub(in super::super) len: u32,
    /// Where in their buffers packets begin.
    pub(in super::super) offsets: Offsets,
    /// Whether the source had no more.
    pub(in super::super) all: bool,
    /// Whether some of them broke the limits: they name the reserved buffer 0 now.
    pub(in super::super) bad: bool,
}

impl<'a> Batch<'a> {
    /// The position of the slot `i` slots after the first.
    #[inline(always)]
    pub(in super::super) fn at(&self, i: u32) -> Pos {
        self.slots.slots().add(self.start, i)
    }

    /// What follows after `n` slots.
    pub(in super::super) fn from(&self, n: u32) -> Batch<'a> {
        Batch { start: self.at(n), len: self.len - n, ..*self }
    }
}
