// SPDX-License-Identifier: BSD-2-Clause
//! A packet of a ring, and a copy of its first bytes.

use unetmap::abi::NS_MOREFRAG;
use unetmap::{Pos, SlotIter, SlotRef};
use unetmap_filter::{HEADER_BYTES, Headers, Verdict};
use unetmap_shape::held::PacketSlots;

/// A packet whose headers are parsed, or whose verdict is known without that.
pub(crate) struct Parsed {
    pub(crate) slots: PacketSlots,
    /// A copy of its first bytes.
    pub(crate) bytes: [u8; HEADER_BYTES],
    /// How many they are.
    pub(crate) read: usize,
    pub(crate) headers: Headers,
    pub(crate) malformed: bool,
    /// The verdict that its flow had before.
    pub(crate) known: Option<Verdict>,
}

impl Parsed {
    pub(crate) fn new(start: Pos) -> Parsed {
        Parsed {
            slots: PacketSlots { start, slots: 0, bytes: 0 },
            bytes: [0; HEADER_BYTES],
            read: 0,
            headers: Headers::default(),
            malformed: false,
            known: None,
        }
    }

    /// Copies the first bytes of the packet that begins in `first` and goes on in `rest`, after `header` bytes that are
    /// not of its frame.
    #[inline(always)]
    pub(crate) fn read(&mut self, first: &SlotRef<'_>, rest: &mut SlotIter<'_>, header: usize) {
        let (len, flags) = first.len_flags();
        self.read = read_header(first, header, len, &mut self.bytes, 0);
        self.slots = PacketSlots { start: first.pos(), slots: 1, bytes: usize::from(len) };
        let mut more = flags & NS_MOREFRAG != 0;
        while more {
            let Some(slot) = rest.next() else { break };
            let (len, flags) = slot.len_flags();
            self.read += read_header(&slot, 0, len, &mut self.bytes, self.read);
            self.slots.slots += 1;
            self.slots.bytes += usize::from(len);
            more = flags & NS_MOREFRAG != 0;
        }
    }

    /// The first bytes of its frame, and the length of the whole.
    #[inline(always)]
    pub(crate) fn frame(&self, header: usize) -> (&[u8], usize) {
        (&self.bytes[..self.read], self.slots.bytes.saturating_sub(header))
    }
}

/// Copies bytes of a slot, after `skip` of them, to `bytes[at..]`; returns how many.
#[inline]
fn read_header(slot: &SlotRef<'_>, skip: usize, len: u16, bytes: &mut [u8; HEADER_BYTES], at: usize) -> usize {
    let n = usize::from(len).saturating_sub(skip).min(HEADER_BYTES - at);
    slot.frame().read(skip, &mut bytes[at..at + n])
}
