//! Monitors: copies of what crosses the rings of another port, from a shelf that those who run that port fill.
//!
//! What is on the shelf is believed no more than what a pipe's peer writes. A monitor's ring shows what one transmit ring
//! sends, what one receive ring receives, or both in the order in which they were copied.

use unetmap_abi::NS_MOREFRAG;
use unetmap_mem::{Inbox, Offsets, Pos, Region, SlotRing, SlotValue, Span, fence_before_sleep};
use unetmap_sys::Bell;

use super::{Filled, Nonsense, Rx, Sleeper};

/// A watched ring's copies.
pub(crate) struct Shelf {
    pub(crate) line: Inbox,
    pub(crate) region: Region,
    /// `NS_TXMON` or 0.
    pub(crate) mark: u16,
}

/// A monitor's ring.
pub(crate) struct MonitorRx {
    /// Of a transmit ring, of a receive ring.
    pub(crate) shelves: [Option<Shelf>; 2],
    pub(crate) mine: SlotRing,
    pub(crate) region: Region,
    /// Where in their buffers the program looks for packets.
    pub(crate) offsets: Offsets,
    /// Rung when there are copies and we sleep.
    pub(crate) bell: Bell,
}

/// How far one shelf was looked through.
struct Progress<'a> {
    shelf: &'a Shelf,
    /// Copies that wait.
    waiting: Span,
    /// Up to where whole packets were taken.
    whole: Pos,
}

impl<'a> Progress<'a> {
    fn of(shelf: &'a Shelf) -> Result<Progress<'a>, Nonsense> {
        let waiting = shelf.waiting()?;
        Ok(Progress { shelf, waiting, whole: waiting.from })
    }

    fn next(&self) -> Option<SlotValue> {
        (self.waiting.from != self.waiting.to).then(|| self.shelf.line.slots().load(self.waiting.from))
    }
}

impl MonitorRx {
    /// Copies one slot; whether it could be.
    fn take(&self, shelf: &Shelf, slot: SlotValue, at: Pos) -> bool {
        let mine = self.mine.load(at);
        let to = self.region.frame(mine.buf_idx).behind(self.offsets.of(mine.ptr) as usize);
        let from = shelf.region.frame(slot.buf_idx);
        let len = to.copy_from(&from, usize::from(slot.len));
        let flags = slot.flags & NS_MOREFRAG | shelf.mark;
        self.mine.store(at, SlotValue { len: len as u16, flags, ..mine });
        len == usize::from(slot.len)
    }
}

impl Shelf {
    fn waiting(&self) -> Result<Span, Nonsense> {
        self.line.words().positions(self.line.slots().slots()).ok_or(Nonsense)
    }
}

impl Rx for MonitorRx {
    fn release(&self, _window: Span) -> u32 {
        // The slots keep their buffers, and nobody waits for them.
        0
    }

    fn fill(&self, held: Pos, taken: Pos) -> Result<Filled, Nonsense> {
        let slots = self.mine.slots();
        let full = slots.prev(held);
        let [tx, rx] = &self.shelves;
        let mut ways = [tx.as_ref().map(Progress::of).transpose()?, rx.as_ref().map(Progress::of).transpose()?];
        let (mut at, mut to, mut bad) = (taken, taken, 0);
        // A packet's slots come from one shelf.
        let mut within: Option<usize> = None;
        while at != full {
            let next = |i: usize| ways[i].as_ref().and_then(Progress::next);
            let earliest = || match (next(0), next(1)) {
                (Some(tx), Some(rx)) => Some(usize::from(rx.ptr < tx.ptr)),
                (tx, rx) => tx.map(|_| 0).or(rx.map(|_| 1)),
            };
            let Some(i) = within.filter(|&i| next(i).is_some()).or_else(earliest) else { break };
            let (Some(slot), Some(way)) = (next(i), &mut ways[i]) else { break };
            bad += u32::from(!self.take(way.shelf, slot, at));
            at = slots.next(at);
            way.waiting.from = way.shelf.line.slots().slots().next(way.waiting.from);
            within = (slot.flags & NS_MOREFRAG != 0).then_some(i);
            if within.is_none() {
                to = at;
                ways.iter_mut().flatten().for_each(|way| way.whole = way.waiting.from);
            }
        }
        ways.iter().flatten().for_each(|way| way.shelf.line.words().release(way.whole));
        Ok(Filled { to, bad })
    }

    fn moved(&self, _taken: Pos) -> Option<u32> {
        self.shelves.iter().flatten().find_map(|shelf| match shelf.waiting() {
            Ok(line) => (line.from != line.to).then_some(line.to.raw()),
            Err(Nonsense) => Some(shelf.line.words().sent_word()),
        })
    }

    fn left(&self, unread: bool) -> bool {
        unread || self.moved(Pos::ZERO).is_some()
    }

    fn sleeper(&self) -> Option<&dyn Sleeper> {
        Some(self)
    }
}

impl Sleeper for MonitorRx {
    fn arm(&self) {
        self.shelves.iter().flatten().for_each(|shelf| shelf.line.words().consumer_ask());
        fence_before_sleep();
    }

    fn bell(&self) -> &Bell {
        &self.bell
    }
}
