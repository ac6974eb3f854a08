//! Ports of a switch: a line each way, at whose other end is a thread of the daemon.
//!
//! The daemon is believed where a pipe's peer is not. It takes all that is sent, sooner or later; what a receiver has no
//! room for it drops there.

use unetmap_abi::NS_MOREFRAG;
use unetmap_mem::{Inbox, Pos, Span};
use unetmap_sys::Bell;

use super::pipe::PipeTx;
use super::{Filled, Nonsense, Rx, Sleeper, Tx};

/// The sending end: a pipe's, but that what is handed over ends a packet. The switch judges the slots.
pub(crate) struct ValeTx(pub(crate) PipeTx);

impl Tx for ValeTx {
    #[inline]
    fn send(&self, window: Span) -> u32 {
        let ring = self.0.line.slots();
        let last = ring.slots().prev(window.to);
        let flags = ring.flags(last);
        if flags & NS_MOREFRAG != 0 {
            ring.set_flags(last, flags & !NS_MOREFRAG);
        }
        self.0.send(window)
    }

    #[inline]
    fn finished(&self, known: Pos, sent: Pos) -> Result<Pos, Nonsense> {
        self.0.finished(known, sent)
    }

    #[inline]
    fn moved(&self, known: Pos) -> Option<u32> {
        self.0.moved(known)
    }

    fn sleeper(&self) -> Option<&dyn Sleeper> {
        self.0.sleeper()
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
