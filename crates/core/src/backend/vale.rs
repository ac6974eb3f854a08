//! Ports of a switch: a line each way, at whose other end is a thread of the daemon.
//!
//! The daemon is believed where a pipe's peer is not. It takes all that is sent, sooner or later; what a receiver has no
//! room for it drops there.

use unetmap_abi::NS_MOREFRAG;
use unetmap_mem::{Inbox, Pos, Producer, Span};
use unetmap_sys::Bell;

use super::{Filled, Nonsense, Rx, Sleeper, Tx};

/// The sending end.
pub(crate) struct ValeTx {
    pub(crate) line: Producer,
    /// Rung by the switch when it has taken slots and we sleep.
    pub(crate) mine: Bell,
    /// Wakes the switch.
    pub(crate) theirs: Bell,
}

impl Tx for ValeTx {
    #[inline]
    fn send(&self, window: Span) -> u32 {
        let ring = self.line.slots();
        let last = ring.slots().prev(window.to);
        let flags = ring.flags(last);
        if flags & NS_MOREFRAG != 0 {
            // A packet ends with what is handed over.
            ring.set_flags(last, flags & !NS_MOREFRAG);
        }
        self.line.publish(window);
        if self.line.words().consumer_sleeps() {
            self.theirs.ring();
        }
        // The switch judges them.
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

impl Sleeper for ValeTx {
    fn arm(&self) {
        self.line.words().producer_arm();
    }

    fn bell(&self) -> &Bell {
        &self.mine
    }
}

/// The receiving end: the switch writes into our slots, and into the buffers that it finds there.
pub(crate) struct ValeRx {
    pub(crate) line: Inbox,
    /// Rung by the switch when it delivered and we sleep.
    pub(crate) mine: Bell,
}

impl Rx for ValeRx {
    #[inline]
    fn release(&self, window: Span) -> u32 {
        // Nobody waits for these slots: the switch drops what has no room.
        self.line.words().release(window.to);
        0
    }

    #[inline]
    fn fill(&self, held: Pos, taken: Pos) -> Result<Filled, Nonsense> {
        let to = self.line.words().sent(self.line.slots().slots(), held, taken).ok_or(Nonsense)?;
        self.line.claim(Span { from: taken, to });
        Ok(Filled { to, bad: 0 })
    }

    #[inline]
    fn moved(&self, taken: Pos) -> Option<u32> {
        self.line.words().sent_beyond(taken)
    }

    fn sleeper(&self) -> Option<&dyn Sleeper> {
        Some(self)
    }
}

impl Sleeper for ValeRx {
    fn arm(&self) {
        self.line.words().consumer_arm();
    }

    fn bell(&self) -> &Bell {
        &self.mine
    }
}
