// SPDX-License-Identifier: BSD-2-Clause
//! Writes a packet into slots anew, when its bytes move.

use unetmap::abi::NS_MOREFRAG;
use unetmap::{Frame, SlotIter, SlotRef};

/// Slots that are filled one after the other.
struct Pack<'t, 'r> {
    targets: &'t mut SlotIter<'r>,
    /// The slot that is filled, and its bytes until now.
    slot: Option<SlotRef<'r>>,
    at: usize,
    slots: u32,
    /// Most bytes of a slot.
    most: usize,
}

impl<'r> Pack<'_, 'r> {
    /// Returns the rest of the slot that is filled, or the next one; `None`: there is none.
    fn room(&mut self) -> Option<Frame<'r>> {
        if let Some(slot) = self.slot {
            if self.at < slot.frame().capacity().min(self.most) {
                return Some(slot.frame().skip(self.at));
            }
            slot.set_len_flags(self.at as u16, NS_MOREFRAG);
        }
        let next = self.targets.next();
        self.at = 0;
        self.slots += u32::from(next.is_some());
        self.slot = next;
        next.map(|slot| slot.frame()).filter(|frame| frame.capacity() > 0)
    }

    /// Adds `len` bytes, which `write` writes to a frame from one of them on, so many.
    fn add(&mut self, len: usize, write: impl Fn(&Frame<'_>, usize, usize) -> usize) {
        let mut done = 0;
        while done < len {
            let Some(frame) = self.room() else { return };
            let n = write(&frame, done, (len - done).min(frame.capacity()).min(self.most - self.at));
            if n == 0 {
                return;
            }
            (done, self.at) = (done + n, self.at + n);
        }
    }
}

/// Writes the packet that has `parts`, and after them `rest` bytes of `sources` without their first `skip`. Returns the
/// slots of `targets` that it takes: it has no byte that was in their buffers before, also if another program makes the
/// source shorter meanwhile. `most`: bytes of a slot.
pub(crate) fn pack(
    parts: [&[u8]; 2],
    sources: SlotIter<'_>,
    mut skip: usize,
    mut rest: usize,
    targets: &mut SlotIter<'_>,
    most: usize,
) -> u32 {
    let mut to = Pack { targets, slot: None, at: 0, slots: 0, most };
    for part in parts {
        to.add(part.len(), |frame, from, n| frame.write(0, &part[from..from + n]));
    }
    for source in sources {
        let (frame, len) = (source.frame(), usize::from(source.len()));
        let len = len.min(frame.capacity());
        let before = skip.min(len);
        let n = (len - before).min(rest);
        to.add(n, |target, from, n| target.copy_from(&frame.skip(before + from), n));
        (skip, rest) = (skip - before, rest - n);
    }
    if let Some(slot) = to.slot {
        slot.set_len_flags(to.at as u16, 0);
    }
    to.slots
}
