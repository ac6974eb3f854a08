//! The quick way of a sync.
//!
//! A sender that polls with each packet costs what the instructions of its poll cost: where both cores are near each other
//! that is several times what the transfer itself takes. The usual case is therefore a way of its own: a pipe that nobody
//! watches, packets to be sent, and free slots left. It judges what `sync` judges, and leaves everything else to that.
//!
//! So does a receiver that has given everything back and waits for what comes next: what it does with that counts in full
//! for a question that waits for its answer.
//!
//! A thread that alone syncs a ring comes to own it, and takes no lock from then on (`RingState::enter`).

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering::Relaxed};

use unetmap_abi::NS_MOREFRAG;
use unetmap_mem::{Pos, RingState, Span, SyncGuard};
use unetmap_sys::process;

use super::{NO_NONSENSE, Path, SyncRing, WallTime, judge};
use crate::backend::Rx;

/// So many syncs of one thread in a row under the lock make the ring its own: far more than a program that opens a port in one
/// thread, and uses it in another, makes in the first.
const OWN_AFTER: u32 = 1000;

/// Which thread of this process took the lock of a ring last, and how often in a row. Written with the lock.
#[derive(Default)]
pub(crate) struct Habit {
    thread: AtomicU64,
    in_a_row: AtomicU32,
}

impl SyncRing {
    /// Sends the one packet that the program handed over, if the thread owns the ring and nothing else is to be done: the
    /// packet is one slot whose buffer stays, and more slots are left. `false`: nothing was done.
    ///
    /// A single step of `head` needs no distances to be judged: it goes where `hwcur` was followed to before, and not beyond
    /// `tail`. The step over the ring's end is left to [`SyncRing::send_quickly`].
    #[inline(always)]
    pub(crate) fn send_one(&self, lease: u32) -> bool {
        let Path::PipeTx(tx) = &self.path else { return false };
        let (state, slots) = (self.state(), self.view.shape().slots);
        let head = self.view.raw_head();
        let before = head.wrapping_sub(1);
        if !state.hwcur_is(before) {
            return false;
        }
        let (Some(at), Some(next)) = (slots.pos(before), slots.pos(head)) else { return false };
        let Some(_guard) = state.enter(lease, process::this_thread()) else { return false };
        if state.notice() != 0 || !state.hwcur_is(before) || self.view.raw_cur() != head {
            return false;
        }
        let tail = self.view.raw_tail();
        if !state.hwtail_is(tail) || slots.pos(tail).is_none() || tail == before || tail == head {
            return false;
        }
        let is_sent = tx.send_one(at, next);
        if is_sent {
            state.set_hwcur(next);
            state.count(1);
        }
        is_sent
    }

    /// Sends what the program handed over, as a poll's sync would, if nothing else is to be done, and slots are left beyond
    /// the program's wake-up point; `false`: nothing was done.
    #[inline(always)]
    pub(crate) fn send_quickly(&self, lease: u32) -> bool {
        let Path::PipeTx(tx) = &self.path else { return false };
        let (state, slots) = (self.state(), self.view.shape().slots);
        if state.hwcur_is(self.view.raw_head()) {
            return false;
        }
        let Some(_guard) = self.go_inside(state, lease) else { return false };
        if state.notice() != 0 {
            return false;
        }
        let Some((hwcur, hwtail)) = state.positions(slots) else { return false };
        let (head, cur) = (self.view.raw_head(), self.view.raw_cur());
        let Some(asked) = judge(slots, hwcur, hwtail, head, cur) else { return false };
        if asked.head == hwcur || asked.cur == hwtail || self.view.raw_tail() != hwtail.raw() {
            return false;
        }
        if tx.line.slots().flags(slots.prev(asked.head)) & NS_MOREFRAG != 0 {
            return false;
        }
        tx.send_whole(Span { from: hwcur, to: asked.head });
        state.set_hwcur(asked.head);
        state.count(slots.distance(hwcur, asked.head));
        true
    }

    /// Gives back what the program has read, if that is all there was and nothing else is to be done; `false`: nothing was
    /// done. Where nothing was left to give back it is done.
    #[inline(always)]
    pub(crate) fn release_quickly(&self, lease: u32) -> bool {
        let Path::PipeRx(rx) = &self.path else { return false };
        let Some(_guard) = self.go_inside(self.state(), lease) else { return false };
        let Some((hwcur, hwtail)) = self.emptied() else { return false };
        if hwcur != hwtail {
            let bad = rx.release(Span { from: hwcur, to: hwtail });
            self.state().set_hwcur(hwtail);
            if bad > 0 {
                self.state().count_bad_slots(bad);
            }
        }
        true
    }

    /// Takes what has come to a ring of which everything was given back, as the sync of a poll that knows the time would, if
    /// nothing else is to be done; `false`: nothing was done.
    #[inline(always)]
    pub(crate) fn receive_quickly(&self, lease: u32, now: WallTime) -> bool {
        let Path::PipeRx(rx) = &self.path else { return false };
        let Some(_guard) = self.go_inside(self.state(), lease) else { return false };
        let Some((hwcur, hwtail)) = self.emptied() else { return false };
        if hwcur != hwtail {
            return false;
        }
        let filled = match rx.fill(hwtail, hwtail) {
            Ok(filled) if filled.to != hwtail => filled,
            _ => return false,
        };
        let state = self.state();
        state.count(self.view.shape().slots.distance(hwtail, filled.to));
        if filled.bad > 0 {
            state.count_bad_slots(filled.bad);
        }
        self.stamp(Some(now));
        state.set_hwtail(filled.to);
        self.view.set_tail(filled.to);
        true
    }

    /// With the right to sync: where the last sync left the ring, if the program keeps nothing of it, its pointers are what
    /// they should be, and nothing is to be said about it.
    #[inline(always)]
    fn emptied(&self) -> Option<(Pos, Pos)> {
        let (state, view) = (self.state(), &self.view);
        let (hwcur, hwtail) = state.positions(view.shape().slots)?;
        let tail = hwtail.raw();
        let empty = view.raw_head() == tail && view.raw_cur() == tail && view.raw_tail() == tail;
        let usual = state.notice() == 0 && self.nonsense.load(Relaxed) == NO_NONSENSE && !self.forwards();
        (empty && usual).then_some((hwcur, hwtail))
    }

    /// Takes the right to sync a ring of which nothing is to be said, as its owner if possible.
    #[inline(always)]
    pub(super) fn go_inside<'r>(&self, state: &'r RingState, lease: u32) -> Option<SyncGuard<'r>> {
        let thread = process::this_thread();
        state.enter(lease, thread).or_else(|| self.lock_or_own(state, lease, thread))
    }

    /// Takes the lock. A thread that has done so often, and is alone with the ring, will need it no more.
    #[inline(never)]
    fn lock_or_own<'r>(&self, state: &'r RingState, lease: u32, thread: u64) -> Option<SyncGuard<'r>> {
        let guard = state.try_lock(lease, thread)?;
        let habit = &self.habit;
        let before = if habit.thread.load(Relaxed) == thread { habit.in_a_row.load(Relaxed) } else { 0 };
        habit.thread.store(thread, Relaxed);
        habit.in_a_row.store(before.saturating_add(1), Relaxed);
        if before == OWN_AFTER && state.sharers() <= 1 && state.notice() == 0 {
            state.own(lease, thread);
        }
        Some(guard)
    }
}
