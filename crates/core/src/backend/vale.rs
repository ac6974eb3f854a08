//! Ports of a switch: a line each way, at whose other end is a thread of the daemon.
//!
//! A slot may say that its data is elsewhere in the program's memory (`NS_INDIRECT`). Whoever syncs brings it, from his own
//! memory, before the slot is handed over: the daemon never follows a pointer.
//!
//! The daemon is believed where a pipe's peer is not. It takes all that is sent, sooner or later; what a receiver has no
//! room for it drops there.

use std::sync::Arc;

use unetmap_abi::{NS_INDIRECT, NS_MOREFRAG};
use unetmap_mem::{BufIdx, Inbox, Offsets, Pos, Region, Span};
use unetmap_sys::Doorbell;
use unetmap_sys::thread::current_cpu;
use unetmap_sys::user_memory::MAX_PIECES;

use super::pipe::PipeTx;
use super::{Filled, Nonsense, Rx, Sleeper, Tx};

/// The sending end: a pipe's, but that what is handed over ends a packet. The switch judges the slots.
pub(crate) struct ValeTx {
    pub(crate) pipe: PipeTx,
    pub(crate) offsets: Offsets,
    /// Where data goes that is elsewhere; `None` in the daemon, whose memory is no program's.
    pub(crate) region: Option<Arc<Region>>,
}

impl ValeTx {
    /// Brings the data of the slots that have it elsewhere. What cannot be read, or is longer than a buffer, is left empty,
    /// and such a packet goes nowhere. Returns how many slots that were.
    #[cold]
    #[inline(never)]
    fn bring(&self, window: Span) -> u32 {
        let ring = self.pipe.line.slots();
        // Where offsets lie in the pointers these are no addresses.
        let region = self.region.as_deref().filter(|_| self.offsets.mask == 0);
        let mut elsewhere = ring.slots().walk(window).filter(|p| ring.flags(*p) & NS_INDIRECT != 0).peekable();
        let mut bad = 0;
        while let Some(first) = elsewhere.peek().copied() {
            let (mut at, mut wanted) = ([first; MAX_PIECES], [(0, 0, BufIdx(0)); MAX_PIECES]);
            let mut n = 0;
            for p in elsewhere.by_ref().take(MAX_PIECES) {
                let slot = ring.load(p);
                (at[n], wanted[n]) = (p, (slot.ptr, slot.len, slot.buf_idx));
                n += 1;
            }
            let missed = region.map_or(u64::MAX, |region| region.bring(&wanted[..n]));
            for p in (0..n).filter(|i| missed & 1 << i != 0).map(|i| at[i]) {
                ring.set_len(p, 0);
                bad += 1;
            }
        }
        bad
    }
}

impl Tx for ValeTx {
    #[inline]
    fn send(&self, window: Span) -> u32 {
        let ring = self.pipe.line.slots();
        let last = ring.slots().prev(window.to);
        let flags = ring.flags(last);
        if flags & NS_MOREFRAG != 0 {
            ring.set_flags(last, flags & !NS_MOREFRAG);
        }
        let any = ring.slots().walk(window).fold(0, |any, p| any | ring.flags(p));
        let bad = if any & NS_INDIRECT != 0 { self.bring(window) } else { 0 };
        self.pipe.line.words().producer_is_on(current_cpu());
        self.pipe.send(window) + bad
    }

    #[inline]
    fn finished(&self, known: Pos, sent: Pos) -> Result<Pos, Nonsense> {
        self.pipe.finished(known, sent)
    }

    #[inline]
    fn moved(&self, known: Pos) -> Option<u32> {
        self.pipe.moved(known)
    }

    fn sleeper(&self) -> Option<&dyn Sleeper> {
        Some(self)
    }
}

impl Sleeper for ValeTx {
    fn arm(&self) {
        self.pipe.arm();
    }

    fn bell(&self) -> &Doorbell {
        self.pipe.bell()
    }

    fn give_way(&self, known: Pos) -> bool {
        let words = self.pipe.line.words();
        let shares = words.consumer_shares(current_cpu());
        if shares {
            words.producer_nap(known, true);
        }
        shares
    }
}

/// The receiving end: the switch writes into our slots, and into the buffers that it finds there.
pub(crate) struct ValeRx {
    pub(crate) line: Inbox,
    /// Rung by the switch when it delivered and we sleep.
    pub(crate) mine: Doorbell,
}

impl Rx for ValeRx {
    #[inline]
    fn release(&self, window: Span) -> u32 {
        // Nobody is woken by this: the switch drops what has no room, or naps until all is read (`fill`).
        self.line.words().consumer_is_on(current_cpu());
        self.line.words().release(window.to);
        0
    }

    #[inline]
    fn fill(&self, held: Pos, taken: Pos) -> Result<Filled, Nonsense> {
        let to = self.line.words().sent(self.line.slots().slots(), held, taken).ok_or(Nonsense)?;
        if to == taken {
            if held == taken {
                self.line.words().producer_sleeps();
            }
            return Ok(Filled { to, bad: 0 });
        }
        self.line.claim(Span { from: taken, to });
        Ok(Filled { to, bad: 0 })
    }

    #[inline]
    fn is_near(&self) -> bool {
        self.line.words().producer_is_near(current_cpu())
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

    fn bell(&self) -> &Doorbell {
        &self.mine
    }

    fn give_way(&self, known: Pos) -> bool {
        let words = self.line.words();
        // A thread that was asleep has no processor yet, and may be waiting for this one.
        let near = words.producer_shares(current_cpu());
        let naps = near || words.producer_is_just_up();
        if naps {
            words.consumer_nap(known, near);
        }
        naps
    }
}
