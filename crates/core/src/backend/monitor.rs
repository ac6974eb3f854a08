//! Monitors: copies of what crosses the rings of another port, from a shelf that those who run that port fill.
//!
//! What is on the shelf is believed no more than what a pipe's peer writes. A monitor's ring shows what one transmit ring
//! sends, what one receive ring receives, or both in the order in which they were copied.

use unetmap_abi::{NS_BUF_CHANGED, NS_MOREFRAG};
use unetmap_mem::{Inbox, Offsets, Pos, Region, SlotRing, SlotValue, Span, fence_before_sleep};
use unetmap_sys::Doorbell;

use super::{Filled, Nonsense, Rx, Sleeper};

/// What stands for all positions that cannot be: no position of any ring.
const SAYS_NONSENSE: u32 = u32::MAX - 1;

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
    /// Whether the shelves lie in the same region, and buffers are exchanged.
    pub(crate) trades: bool,
    /// Rung when there are copies and we sleep.
    pub(crate) bell: Doorbell,
}

/// How far one shelf was looked through.
struct Progress<'a> {
    shelf: &'a Shelf,
    /// Packets that wait.
    waiting: Span,
}

impl<'a> Progress<'a> {
    fn of(shelf: &'a Shelf) -> Result<Progress<'a>, Nonsense> {
        Ok(Progress { shelf, waiting: shelf.waiting()? })
    }

    /// When the next packet was put here.
    fn stamp(&self) -> Option<u64> {
        (self.waiting.from != self.waiting.to).then(|| self.shelf.line.slots().ptr(self.waiting.from))
    }

    /// The slots of the next packet, at most what waits.
    fn slots(&self) -> u32 {
        let ring = self.shelf.line.slots();
        let more = ring.slots().walk(self.waiting).take_while(|p| ring.flags(*p) & NS_MOREFRAG != 0).count() as u32;
        (more + 1).min(ring.slots().distance(self.waiting.from, self.waiting.to))
    }
}

impl MonitorRx {
    /// The position of a shelf on which something waits.
    fn waits(&self) -> Option<u32> {
        let lines = self.shelves.iter().flatten().filter_map(|shelf| shelf.waiting().ok());
        lines.filter(|line| line.from != line.to).map(|line| line.to.raw()).next()
    }

    /// Whether a shelf has positions that cannot be.
    fn nonsense(&self) -> bool {
        self.shelves.iter().flatten().any(|shelf| shelf.waiting().is_err())
    }

    /// Delivers one slot of a shelf into slot `at`; whether it could be.
    fn take(&self, shelf: &Shelf, from: Pos, at: Pos, last: bool) -> bool {
        let (slot, mine) = (shelf.line.slots().load(from), self.mine.load(at));
        let flags = shelf.mark | if last { 0 } else { NS_MOREFRAG };
        if self.trades {
            let limits = self.region.limits();
            if !limits.allow(slot) || !limits.index_ok(mine.buf_idx) {
                self.mine.store(at, SlotValue { len: 0, flags, ..mine });
                return false;
            }
            self.mine.store(at, SlotValue { flags: flags | NS_BUF_CHANGED, ptr: 0, ..slot });
            shelf.line.slots().set_buf_idx(from, mine.buf_idx);
            return true;
        }
        let to = self.region.frame(mine.buf_idx).behind(self.offsets.of(mine.ptr) as usize);
        let len = to.copy_from(&shelf.region.frame(slot.buf_idx), usize::from(slot.len));
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
        // One whose positions cannot be has nothing; the other one may.
        let mut ways = self.shelves.each_ref().map(|shelf| Progress::of(shelf.as_ref()?).ok());
        let (mut at, mut bad) = (taken, 0);
        loop {
            let stamp = |i: usize| ways[i].as_ref().and_then(Progress::stamp);
            let earliest = match (stamp(0), stamp(1)) {
                (Some(tx), Some(rx)) => usize::from(rx < tx),
                (Some(_), None) => 0,
                (None, Some(_)) => 1,
                (None, None) => break,
            };
            let Some(way) = &mut ways[earliest] else { break };
            let count = way.slots();
            if count > slots.distance(at, full) {
                break;
            }
            for left in (0..count).rev() {
                bad += u32::from(!self.take(way.shelf, way.waiting.from, at, left == 0));
                at = slots.next(at);
                way.waiting.from = slots.next(way.waiting.from);
            }
        }
        ways.iter().flatten().for_each(|way| way.shelf.line.words().release(way.waiting.from));
        if at == taken && self.nonsense() {
            return Err(Nonsense);
        }
        Ok(Filled { to: at, bad })
    }

    fn moved(&self, _taken: Pos) -> Option<u32> {
        self.waits().or_else(|| self.nonsense().then_some(SAYS_NONSENSE))
    }

    fn left(&self, unread: bool) -> bool {
        unread || self.waits().is_some()
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

    fn bell(&self) -> &Doorbell {
        &self.bell
    }
}
