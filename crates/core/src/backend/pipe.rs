//! Pipes: a line to the peer, and no daemon on the way.

use unetmap_abi::NS_MOREFRAG;
use unetmap_mem::{BufIdx, Consumer, Offsets, Pos, Producer, SlotValue, Span};
use unetmap_sys::Doorbell;

use super::{Filled, Nonsense, Rx, Sleeper, Tx};

/// The sending end of a line.
pub(crate) struct PipeTx {
    pub(crate) line: Producer,
    /// Rung by the consumer when it released slots and we sleep.
    pub(crate) mine: Doorbell,
    /// Wakes the consumer.
    pub(crate) theirs: Doorbell,
}

impl PipeTx {
    /// One past the last slot of `window` that ends a packet: a chain of fragments crosses whole. `None`: no packet ends
    /// in the window.
    #[inline]
    fn last_end(&self, window: Span) -> Option<Pos> {
        let (slots, ring) = (self.line.slots().slots(), self.line.slots());
        let mut end = window.to;
        while end != window.from {
            let last = slots.prev(end);
            if ring.flags(last) & NS_MOREFRAG == 0 {
                return Some(end);
            }
            end = last;
        }
        None
    }

    /// Sends the one slot `at`, before `next`, for who owns the ring, if it is a packet in a buffer that stays; else nothing is
    /// done.
    #[inline(always)]
    pub(crate) fn send_one(&self, at: Pos, next: Pos) -> bool {
        let is_sent = self.line.publish_plain(at, next);
        if is_sent && self.line.words().consumer_of_an_owner_sleeps() {
            self.theirs.notify();
        }
        is_sent
    }

    /// Sends `window`, whose last slot ends a packet.
    #[inline(always)]
    pub(crate) fn send_whole(&self, window: Span) {
        self.line.publish(window);
        if self.line.words().consumer_sleeps() {
            self.theirs.notify();
        }
    }
}

impl Tx for PipeTx {
    #[inline]
    fn send(&self, window: Span) -> u32 {
        if let Some(end) = self.last_end(window) {
            self.send_whole(Span { from: window.from, to: end });
        }
        // The receiver judges them.
        0
    }

    #[inline]
    fn finished(&self, known: Pos, sent: Pos) -> Result<Pos, Nonsense> {
        self.line.words().released(self.line.slots().slots(), known, sent).ok_or(Nonsense)
    }

    #[inline]
    fn moved(&self, known: Pos) -> Option<u32> {
        self.line.words().released_beyond(known)
    }

    fn sleeper(&self) -> Option<&dyn Sleeper> {
        Some(self)
    }
}

impl Sleeper for PipeTx {
    fn arm(&self) {
        self.line.words().producer_arm();
    }

    fn bell(&self) -> &Doorbell {
        &self.mine
    }
}

/// The receiving end of a line.
pub(crate) struct PipeRx {
    pub(crate) line: Consumer,
    /// Delivered in place of a buffer that does not exist.
    pub(crate) spare: BufIdx,
    /// Where in their buffers the program looks for packets.
    pub(crate) offsets: Offsets,
    /// Rung by the producer when it sent slots and we sleep.
    pub(crate) mine: Doorbell,
    /// Wakes the producer.
    pub(crate) theirs: Doorbell,
}

impl PipeRx {
    /// A packet that would end outside its buffer, where the program will look for it, is delivered empty.
    #[inline(never)]
    fn judge_offsets(&self, window: Span) -> u32 {
        let (ring, limits) = (self.line.slots(), self.line.limits());
        let mut bad = 0;
        for p in ring.slots().walk(window) {
            let slot = ring.load(p);
            if !self.offsets.allow(limits, slot) {
                ring.store(p, SlotValue { len: 0, ptr: self.offsets.put(slot.ptr, 0), ..slot });
                bad += 1;
            }
        }
        bad
    }
}

impl Rx for PipeRx {
    #[inline(always)]
    fn release(&self, window: Span) -> u32 {
        let bad = self.line.give_back(window);
        self.line.words().release(window.to);
        if self.line.words().producer_sleeps() {
            self.theirs.notify();
        }
        bad
    }

    #[inline(always)]
    fn fill(&self, held: Pos, taken: Pos) -> Result<Filled, Nonsense> {
        let to = self.line.words().sent(self.line.slots().slots(), held, taken).ok_or(Nonsense)?;
        let window = Span { from: taken, to };
        let mut bad = if to == taken { 0 } else { self.line.take(window, self.spare) };
        if self.offsets.mask != 0 {
            bad += self.judge_offsets(window);
        }
        Ok(Filled { to, bad })
    }

    #[inline]
    fn moved(&self, taken: Pos) -> Option<u32> {
        self.line.words().sent_beyond(taken)
    }

    fn sleeper(&self) -> Option<&dyn Sleeper> {
        Some(self)
    }
}

impl Sleeper for PipeRx {
    fn arm(&self) {
        self.line.words().consumer_arm();
    }

    fn bell(&self) -> &Doorbell {
        &self.mine
    }
}
