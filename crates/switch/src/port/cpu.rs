//! Where a port's client is, as far as the thread's processor is concerned, and what is done for it before its packets are
//! dropped.

use std::sync::atomic::Ordering::Relaxed;

use unetmap_mem::{LineWords, Pos};
use unetmap_sys::clock::{now_ns, spin_hint};

use crate::worker::backpressure::Patience;
use super::rx_ring::Filled;
use super::{Attached, Incoming, Outgoing};

/// How often a client that has no room is given the processor before its packets are dropped without that.
const CHANCES: u32 = 64;
/// How many of these a nap, or a wait, is worth in which it read nothing.
const NAP_CHANCES: u32 = 16;
/// How long a client that is held up on another processor is waited for, nanoseconds: a timer and what it has to do there.
const HELD_UP: u64 = 100_000;
/// How often the processor is given to a client that does nothing with it.
const GIVEN_IN_VAIN: u32 = 4;

/// Where a client is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(in super::super) enum Place {
    /// On the thread's processor.
    Here,
    /// On another, or asleep.
    Elsewhere,
    /// It has not said.
    Unknown,
}

impl Attached {
    /// Whether a thread that has nothing to do is in the client's way: it was last on the thread's processor, `cpu`, waits for
    /// nothing, and makes use of what it is given.
    pub(in super::super) fn needs(&self, cpu: u32) -> bool {
        if !self.pairs().any(|(tx, rx)| runs_on(tx, rx, cpu)) {
            return false;
        }
        let stands = self.pairs().fold(0, |sum: u32, (tx, rx)| {
            let tx = tx.map_or(0, |tx| tx.line.words().sent_word());
            let rx = rx.map_or(0, |rx| rx.line.words().released_word());
            sum.wrapping_mul(31).wrapping_add(tx).wrapping_mul(31).wrapping_add(rx)
        });
        let [stood, times] = &self.given;
        if stood.swap(stands, Relaxed) != stands {
            times.store(0, Relaxed);
        }
        times.fetch_add(1, Relaxed) < GIVEN_IN_VAIN
    }

    /// Whether the client, which was just sent something, may answer while the thread looks: it is awake on a processor other than
    /// `cpu`.
    pub(in super::super) fn may_answer(&self, cpu: u32) -> bool {
        self.rx.iter().any(|rx| rx.line.words().consumer_is_awake_elsewhere(cpu))
    }

    /// Each transmit ring with the receive ring of the same number, which one program or thread is likely to look after.
    fn pairs(&self) -> impl Iterator<Item = (Option<&Outgoing>, Option<&Incoming>)> {
        (0..self.tx.len().max(self.rx.len())).map(|i| (self.tx.get(i), self.rx.get(i)))
    }
}

impl Incoming {
    /// Whether to let the client run before packets of the batch with that number are dropped: once in each, and not if it had
    /// many chances, and did not read.
    #[cold]
    pub(in super::super) fn worth_waiting(&self, batch: u32) -> bool {
        let mut state = self.lock();
        if state.batch == batch {
            return false;
        }
        state.batch = batch;
        state.chances += u32::from(state.chances < CHANCES);
        state.chances < CHANCES
    }

    /// Something was published: wakes the client if it sleeps, or later if that is soon enough.
    #[inline(always)]
    pub(crate) fn wake(&self, cpu: u32, filled: Filled, patience: &Patience) {
        let later = match self.line.napper(cpu) {
            None if patience.streams() => self.line.sleeper().filter(|_| self.may_sleep_on(filled)),
            napper => napper,
        };
        if later.is_some_and(|one| patience.owes(one, &self.client)) {
            return;
        }
        if self.line.words().consumer_sleeps() {
            self.client.notify_now();
        }
    }

    /// Whether a client that sleeps may go on to, for a while: less than a quarter of its ring is filled.
    #[cold]
    fn may_sleep_on(&self, filled: Filled) -> bool {
        let n = self.line.slots().slots();
        let cons = self.line.words().released(n, filled.cons, filled.prod);
        cons.is_some_and(|cons| n.distance(cons, filled.prod) < n.get() / 4)
    }

    /// Where the client says it is, seen from processor `cpu`.
    pub(in super::super) fn place(&self, cpu: u32) -> Place {
        let words = self.line.words();
        if words.consumer_shares(cpu) {
            Place::Here
        } else if words.consumer_is_somewhere() {
            Place::Elsewhere
        } else {
            Place::Unknown
        }
    }

    /// Whether the client had read most of what it got when it was looked at last.
    pub(in super::super) fn keeps_up(&self) -> bool {
        self.lock().keeps_up
    }

    /// Whether there is much room, perhaps after another look.
    pub(in super::super) fn has_much_room(&self) -> bool {
        let n = self.line.slots().slots();
        let mut state = self.lock();
        let mut filled = *state;
        self.look(&mut filled);
        *state = filled;
        filled.room(n) >= n.get() / 2
    }

    /// Naps until the client has read.
    #[cold]
    pub(in super::super) fn nap(&self) {
        let known = self.lock().cons;
        self.line.words().producer_nap(known, true);
        self.after_wait(known, true);
    }

    /// Waits, for a short time, until the client has read most.
    #[cold]
    pub(in super::super) fn wait(&self) {
        let n = self.line.slots().slots();
        let known = self.lock().cons;
        let end = now_ns() + HELD_UP;
        while now_ns() < end {
            (0..16).for_each(|_| spin_hint());
            let mut filled = *self.lock();
            self.look(&mut filled);
            if filled.room(n) >= n.get() / 4 * 3 {
                break;
            }
        }
        self.after_wait(known, false);
    }

    fn after_wait(&self, known: Pos, keeps_up: bool) {
        let mut state = self.lock();
        let mut filled = *state;
        self.look(&mut filled);
        if filled.cons == known {
            filled.chances = (filled.chances + NAP_CHANCES).min(CHANCES);
        }
        filled.keeps_up = keeps_up;
        *state = filled;
    }
}

/// Whether the client of two rings is on processor `cpu`, and waits for neither.
fn runs_on(tx: Option<&Outgoing>, rx: Option<&Incoming>, cpu: u32) -> bool {
    let (tx, rx) = (tx.map(|tx| tx.line.words()), rx.map(|rx| rx.line.words()));
    (tx.is_some_and(|tx| tx.producer_shares(cpu)) || rx.is_some_and(|rx| rx.consumer_shares(cpu)))
        && !tx.is_some_and(LineWords::producer_waits)
        && !rx.is_some_and(LineWords::consumer_waits)
}
