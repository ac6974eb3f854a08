// SPDX-License-Identifier: BSD-2-Clause
//! The fast path of a sync.
//!
//! A sender that polls for each packet executes a whole poll each time. Between near cores that takes several times as
//! long as the transfer itself. The common case therefore has a path of its own: a pipe without
//! monitors, packets to be sent, and free slots left. It validates what `sync` validates, and leaves everything else to
//! it.
//!
//! The same holds for a receiver that has released everything and waits for the next packet: its instructions add in
//! full to the latency of a request that waits for its reply.
//!
//! The lock of a ring that only one thread syncs is biased to that thread, which takes no lock from then on
//! (`SyncState::enter_biased`).

use std::sync::atomic::Ordering::Relaxed;

use unetmap_abi::NS_MOREFRAG;
use unetmap_mem::{Pos, Span, SyncGuard, SyncState};
use unetmap_sys::process;

use super::{NO_INDEX, SyncRing, WallTime, validate};
use crate::backend::{RingBackend, Rx};
use crate::tuning::{BATCH_AHEAD, BIAS_AFTER, SLOTS_AHEAD};

impl SyncRing {
    /// Sends one packet, if the lock is biased to the thread and the sync has nothing else to do: the packet is one
    /// slot with an unchanged buffer, and more slots are left. Otherwise does nothing and returns `false`.
    ///
    /// A single step of `head` can be validated without distances: it begins at `hwcur` and does not pass `tail`. The
    /// step over the end of the ring is left to [`SyncRing::send_fast`].
    #[inline(always)]
    pub(crate) fn send_one(&self, holder: u32) -> bool {
        let RingBackend::PipeTx(tx) = &self.backend else { return false };
        let (state, slots) = (self.state(), self.view.shape().slots);
        let head = self.view.raw_head();
        let before = head.wrapping_sub(1);
        if !state.hwcur_is(before) {
            return false;
        }
        let (Some(at), Some(next)) = (slots.pos(before), slots.pos(head)) else { return false };
        let Some(_guard) = state.enter_biased(holder, process::this_thread()) else { return false };
        if state.status() != 0 || !state.hwcur_is(before) || self.view.raw_cur() != head {
            return false;
        }
        let tail = self.view.raw_tail();
        if !state.hwtail_is(tail) || slots.pos(tail).is_none() || tail == before || tail == head {
            return false;
        }
        let is_sent = tx.send_one(at, next);
        if is_sent {
            state.set_hwcur(next);
            state.count_batch(1);
        }
        is_sent
    }

    /// Sends the new slots, as the sync of a poll would, if it has nothing else to do and slots are left beyond the
    /// program's wake-up point. Otherwise does nothing and returns `false`.
    #[inline(always)]
    pub(crate) fn send_fast(&self, holder: u32) -> bool {
        let RingBackend::PipeTx(tx) = &self.backend else { return false };
        let (state, slots) = (self.state(), self.view.shape().slots);
        if state.hwcur_is(self.view.raw_head()) {
            return false;
        }
        let Some(_guard) = self.begin_sync(state, holder) else { return false };
        if state.status() != 0 {
            return false;
        }
        let Some((hwcur, hwtail)) = state.positions(slots) else { return false };
        let (head, cur) = (self.view.raw_head(), self.view.raw_cur());
        let Some(program) = validate(slots, hwcur, hwtail, head, cur) else { return false };
        if program.head == hwcur || program.cur == hwtail || self.view.raw_tail() != hwtail.raw() {
            return false;
        }
        if tx.channel.slots().flags(slots.prev(program.head)) & NS_MOREFRAG != 0 {
            return false;
        }
        tx.send_whole(Span { from: hwcur, to: program.head });
        state.set_hwcur(program.head);
        let sent = slots.distance(hwcur, program.head);
        state.count_batch(sent);
        self.prefetch_free_slots(sent, Span { from: program.head, to: hwtail });
        true
    }

    /// After a batch of `sent` slots: prefetches as many of the free ones, some way ahead of the program.
    #[inline(always)]
    pub(super) fn prefetch_free_slots(&self, sent: u32, free: Span) {
        let slots = self.view.shape().slots;
        if sent <= BATCH_AHEAD && slots.distance(free.from, free.to) > SLOTS_AHEAD + sent {
            let from = slots.add(free.from, SLOTS_AHEAD);
            self.view.slots().prefetch_for_write(Span { from, to: slots.add(from, sent) });
        }
    }

    /// Releases the slots that the program has read, if these are all and the sync has nothing else to do. Otherwise
    /// does nothing and returns `false`. Returns `true` also if there was nothing to release.
    #[inline(always)]
    pub(crate) fn release_fast(&self, holder: u32) -> bool {
        let RingBackend::PipeRx(rx) = &self.backend else { return false };
        let Some(_guard) = self.begin_sync(self.state(), holder) else { return false };
        let Some((hwcur, hwtail)) = self.fully_read() else { return false };
        if hwcur != hwtail {
            let bad = rx.release(Span { from: hwcur, to: hwtail });
            self.state().set_hwcur(hwtail);
            if bad > 0 {
                self.state().count_bad_slots(bad);
            }
        }
        true
    }

    /// Receives on a ring whose slots are all released, as the sync of a poll that knows the time would, if it has
    /// nothing else to do. Otherwise does nothing and returns `false`.
    #[inline(always)]
    pub(crate) fn receive_fast(&self, holder: u32, now: WallTime) -> bool {
        let RingBackend::PipeRx(rx) = &self.backend else { return false };
        let Some(_guard) = self.begin_sync(self.state(), holder) else { return false };
        let Some((hwcur, hwtail)) = self.fully_read() else { return false };
        if hwcur != hwtail {
            return false;
        }
        let delivered = match rx.deliver(hwtail, hwtail) {
            Ok(delivered) if delivered.to != hwtail => delivered,
            _ => return false,
        };
        let state = self.state();
        state.count_batch(self.view.shape().slots.distance(hwtail, delivered.to));
        state.count_bytes(delivered.bytes);
        if delivered.bad > 0 {
            state.count_bad_slots(delivered.bad);
        }
        self.write_timestamp(Some(now));
        state.set_hwtail(delivered.to);
        self.view.set_tail(delivered.to);
        true
    }

    /// Returns `hwcur` and `hwtail` if the program has read everything, its pointers are valid, and no status, invalid
    /// peer position or forwarding needs the normal path. The caller has the right to sync.
    #[inline(always)]
    fn fully_read(&self) -> Option<(Pos, Pos)> {
        let (state, view) = (self.state(), &self.view);
        let (hwcur, hwtail) = state.positions(view.shape().slots)?;
        let tail = hwtail.raw();
        let empty = view.raw_head() == tail && view.raw_cur() == tail && view.raw_tail() == tail;
        let is_normal = state.status() == 0 && self.invalid_index.load(Relaxed) == NO_INDEX && !self.forwards();
        (empty && is_normal).then_some((hwcur, hwtail))
    }

    /// Takes the right to sync a ring with status 0, without the lock if it is biased to the thread.
    #[inline(always)]
    pub(super) fn begin_sync<'r>(&self, state: &'r SyncState, holder: u32) -> Option<SyncGuard<'r>> {
        let thread = process::this_thread();
        state.enter_biased(holder, thread).or_else(|| self.lock_or_bias(state, holder, thread))
    }

    /// Takes the lock. A thread that has done so often, and is the only user of the ring, gets the bias.
    #[inline(never)]
    fn lock_or_bias<'r>(&self, state: &'r SyncState, holder: u32, thread: u64) -> Option<SyncGuard<'r>> {
        let guard = state.try_lock(holder, thread)?;
        let history = &self.lock_history;
        let before = if history.thread.load(Relaxed) == thread { history.in_a_row.load(Relaxed) } else { 0 };
        history.thread.store(thread, Relaxed);
        history.in_a_row.store(before.saturating_add(1), Relaxed);
        if before == BIAS_AFTER && state.session_count() <= 1 && state.status() == 0 {
            state.set_bias(holder, thread);
        }
        Some(guard)
    }
}
