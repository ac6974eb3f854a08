// SPDX-License-Identifier: BSD-2-Clause
//! Backpressure: how a thread helps receivers before it drops their packets, and wake-ups that it defers.
//!
//! **Waiting for room.** A client without room, on a machine with few CPUs, often waits for the very CPU that the
//! thread runs on. A futex wait hands the CPU over. A client on another CPU that kept up until now was delayed there,
//! and is busy-waited for. For a client that has not published its CPU the thread yields (`sched_yield`).
//!
//! Meanwhile the thread serves no other port, so waiting is budgeted: each nanosecond of work pays for one of a futex
//! wait or a yield, as if the scheduler had divided the CPU between the two, or for a seventh of a busy-wait. A
//! client that claims the thread's CPU and never notifies the thread gains no more than that; neither does one that
//! never publishes its CPU.
//!
//! **Deferred wake-ups.** A woken client that shares the thread's CPU preempts the thread at once, perhaps for a few
//! packets only. So a client in a futex wait there is woken when the thread has no work, or needs room, or after
//! [`MAX_WAKEUP_DELAY_NS`].
//!
//! Waking a receiver that sleeps on another CPU takes as long as moving a thousand packets, so in a stream that
//! wake-up is deferred too: until the same events, or until a quarter of the receiver's ring is filled. Small batches
//! are no stream: their receivers are woken at once.
//!
//! All of this is state of one thread. The receive ring uses it (`port/rx_wait.rs`, `port/rx_ring.rs`); this module
//! knows no ring.

use std::cell::{Cell, RefCell};
use std::sync::Arc;

use unetmap_mem::Waiter;
use unetmap_sys::Doorbell;
use unetmap_sys::clock::now_ns;

use crate::tuning::{
    MAX_DEFERRED_WAKEUPS, MAX_MISSED_REPLIES, MAX_WAIT_BUDGET_NS, MAX_WAKEUP_DELAY_NS, RECENT_PORTS,
    REPLY_RETRY_INTERVAL, STREAM_BATCH_SLOTS,
};

/// A port of a thread: the index of its switch, and its index in the switch.
pub(crate) type PortId = (usize, u8);

/// A thread's wait budget and deferred wake-ups, and the ports that were active last.
#[derive(Default)]
pub(crate) struct Backpressure {
    /// Number of the current batch.
    batch: Cell<u32>,
    /// Index of the switch that the current batch belongs to.
    switch: Cell<usize>,
    /// The current batch is part of a stream.
    streaming: Cell<bool>,
    budget: WaitBudget,
    deferred: DeferredWakeups,
    /// The ports that sent or received last.
    recent: [Cell<Option<PortId>>; RECENT_PORTS],
    /// Index in `recent` that is replaced next.
    oldest: Cell<usize>,
    /// The receiver of the last delivery, until it is taken.
    last_receiver: Cell<Option<PortId>>,
    /// Opportunities to poll for a reply since one came.
    missed_replies: Cell<u32>,
}

impl Backpressure {
    /// Begins a batch of a port of the switch with this index.
    #[inline]
    pub(crate) fn begin_batch(&self, switch: usize, port: u8) {
        self.batch.set(self.batch.get().wrapping_add(1));
        self.switch.set(switch);
        self.note_active(port);
        self.deferred.flush_overdue();
    }

    /// Notes how many slots the batch has.
    #[inline]
    pub(crate) fn set_batch_slots(&self, slots: u32) {
        self.streaming.set(slots >= STREAM_BATCH_SLOTS);
    }

    /// Returns the number of the batch: a receiver is waited for at most once in each.
    pub(crate) fn batch(&self) -> u32 {
        self.batch.get()
    }

    /// True if the batch is part of a stream, so that wake-ups of sleeping clients may be deferred.
    #[inline]
    pub(crate) fn streaming(&self) -> bool {
        self.streaming.get()
    }

    /// Defers a wake-up; `false`: it must be done now.
    #[inline]
    pub(crate) fn defer_wakeup(&self, waiter: Waiter, doorbell: &Arc<Doorbell>) -> bool {
        self.deferred.defer(waiter, doorbell)
    }

    /// Does all deferred wake-ups; true if there were any.
    pub(crate) fn flush_wakeups(&self) -> bool {
        self.deferred.flush()
    }

    /// Runs `wait`, at `cost` nanoseconds of work for each nanosecond, if the budget allows it; true if it did.
    pub(crate) fn spend(&self, cost: i64, wait: impl FnOnce()) -> bool {
        self.budget.spend(cost, wait)
    }

    /// Notes a delivery to a port of the current switch.
    #[inline]
    pub(crate) fn note_delivery(&self, port: u8) {
        self.last_receiver.set(Some((self.switch.get(), port)));
        self.note_active(port);
    }

    /// Takes the receiver of the last delivery: returns each delivery once.
    pub(crate) fn take_last_receiver(&self) -> Option<PortId> {
        self.last_receiver.take()
    }

    /// A reply may come: true if polling for it is worth it, which is seldom where replies failed to come.
    pub(crate) fn should_poll_for_reply(&self) -> bool {
        let missed = self.missed_replies.get();
        self.missed_replies.set(missed.wrapping_add(1));
        missed < MAX_MISSED_REPLIES || missed.is_multiple_of(REPLY_RETRY_INTERVAL)
    }

    /// The reply has come.
    pub(crate) fn reply_arrived(&self) {
        self.missed_replies.set(0);
    }

    /// Notes that a port of the current switch sent or receives.
    #[inline]
    pub(crate) fn note_active(&self, port: u8) {
        let id = Some((self.switch.get(), port));
        if self.recent.iter().any(|recent| recent.get() == id) {
            return;
        }
        let at = self.oldest.get();
        self.recent[at].set(id);
        self.oldest.set((at + 1) % RECENT_PORTS);
    }

    /// Returns the ports that sent or received last.
    pub(crate) fn recent(&self) -> impl Iterator<Item = PortId> {
        self.recent.iter().filter_map(Cell::get)
    }

    /// Forgets all ports: the indexes of switches and ports change their meaning.
    pub(crate) fn forget_ports(&self) {
        self.recent.iter().for_each(|recent| recent.set(None));
        self.last_receiver.set(None);
    }
}

/// Nanoseconds that a thread may wait for others, earned by work.
struct WaitBudget {
    /// Budget, negative when overdrawn, and the time at which it was computed.
    saved: Cell<(i64, u64)>,
}

impl Default for WaitBudget {
    fn default() -> WaitBudget {
        WaitBudget { saved: Cell::new((MAX_WAIT_BUDGET_NS, now_ns())) }
    }
}

impl WaitBudget {
    fn spend(&self, cost: i64, wait: impl FnOnce()) -> bool {
        let start = now_ns();
        let (saved, since) = self.saved.get();
        let worked = i64::try_from(start.saturating_sub(since)).unwrap_or(MAX_WAIT_BUDGET_NS);
        let saved = saved.saturating_add(worked).min(MAX_WAIT_BUDGET_NS);
        if saved < 0 {
            self.saved.set((saved, start));
            return false;
        }
        wait();
        let end = now_ns();
        let waited = i64::try_from(end.saturating_sub(start)).unwrap_or(i64::MAX);
        self.saved.set((saved.saturating_sub(waited.saturating_mul(cost)), end));
        true
    }
}

/// Clients whose wake-up is deferred, each with its doorbell.
struct DeferredWakeups {
    waiters: RefCell<Vec<(Waiter, Arc<Doorbell>)>>,
    /// The time at which the first one was deferred.
    since: Cell<u64>,
}

impl Default for DeferredWakeups {
    fn default() -> DeferredWakeups {
        DeferredWakeups { waiters: RefCell::new(Vec::with_capacity(MAX_DEFERRED_WAKEUPS)), since: Cell::new(0) }
    }
}

impl DeferredWakeups {
    #[inline]
    fn pending(&self) -> bool {
        !self.waiters.borrow().is_empty()
    }

    #[cold]
    fn defer(&self, waiter: Waiter, doorbell: &Arc<Doorbell>) -> bool {
        let mut waiters = self.waiters.borrow_mut();
        if waiters.iter().any(|(deferred, _)| deferred.is_same(&waiter)) {
            return true;
        }
        if waiters.len() == MAX_DEFERRED_WAKEUPS {
            return false;
        }
        if waiters.is_empty() {
            self.since.set(now_ns());
        }
        waiters.push((waiter, doorbell.clone()));
        true
    }

    fn flush(&self) -> bool {
        let any = self.pending();
        if any {
            let mut waiters = self.waiters.borrow_mut();
            waiters.drain(..).filter(|(waiter, _)| waiter.wake()).for_each(|(_, doorbell)| doorbell.notify());
        }
        any
    }

    /// Does wake-ups that were deferred for too long.
    #[inline]
    fn flush_overdue(&self) {
        if self.pending() && now_ns() - self.since.get() > MAX_WAKEUP_DELAY_NS {
            self.flush_some();
        }
    }

    /// Wakes all clients in a futex wait, and one that sleeps: a doorbell takes long, and other ports wait meanwhile.
    #[cold]
    fn flush_some(&self) {
        let mut notified = false;
        self.waiters.borrow_mut().retain(|(waiter, doorbell)| {
            if notified && waiter.waits_on_doorbell() {
                return true;
            }
            if waiter.wake() {
                doorbell.notify();
                notified = true;
            }
            false
        });
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use unetmap_sys::futex::WAIT_LIMIT;

    use super::*;
    use crate::tuning::{OTHER_CPU_WAIT_COST, SAME_CPU_WAIT_COST};

    /// Spends as much of 60 ms as the budget allows on waits, and checks the share that the cost leaves.
    fn assert_share_of_60_ms(cost: i64) {
        let budget = WaitBudget::default();
        let start = now_ns();
        let mut waited = 0;
        while now_ns() < start + 60_000_000 {
            budget.spend(cost, || {
                let begin = now_ns();
                std::thread::sleep(Duration::from_millis(1));
                waited += now_ns() - begin;
            });
        }
        assert!(waited > 0);
        // The last wait may overdraw the budget, which would be earned after the end.
        let overdrawn = budget.saved.get().0.min(0).unsigned_abs();
        let all = now_ns() - start + overdrawn;
        let share = all / (cost.unsigned_abs() + 1);
        assert!(waited <= share + WAIT_LIMIT.as_nanos() as u64, "{waited} of {all} ns");
    }

    #[test]
    fn same_cpu_waits_take_at_most_half_of_the_time_and_other_cpu_waits_an_eighth() {
        assert_eq!((SAME_CPU_WAIT_COST, OTHER_CPU_WAIT_COST), (1, 7));
        assert_share_of_60_ms(SAME_CPU_WAIT_COST);
        assert_share_of_60_ms(OTHER_CPU_WAIT_COST);
    }

    #[test]
    fn replies_are_polled_for_seldom_where_none_comes() {
        let backpressure = Backpressure::default();
        assert_eq!((0..160).filter(|_| backpressure.should_poll_for_reply()).count(), 4 + 9);
        assert!((0..REPLY_RETRY_INTERVAL).any(|_| backpressure.should_poll_for_reply()), "a reply may come again");
        backpressure.reply_arrived();
        assert!((0..MAX_MISSED_REPLIES).all(|_| backpressure.should_poll_for_reply()));
    }

    #[test]
    fn each_delivery_is_returned_once() {
        let backpressure = Backpressure::default();
        backpressure.begin_batch(1, 5);
        assert_eq!(backpressure.take_last_receiver(), None, "it sent");
        backpressure.note_delivery(6);
        backpressure.note_delivery(7);
        assert_eq!([backpressure.take_last_receiver(), backpressure.take_last_receiver()], [Some((1, 7)), None]);
        assert_eq!(backpressure.recent().count(), 3);
        backpressure.note_delivery(6);
        backpressure.forget_ports();
        assert_eq!(backpressure.take_last_receiver(), None);
    }

    #[test]
    fn the_last_active_ports_are_remembered() {
        let backpressure = Backpressure::default();
        for n in 0..RECENT_PORTS as u8 {
            backpressure.begin_batch(1, n);
            backpressure.note_active(0);
        }
        let recent = || backpressure.recent().map(|(_, port)| port).collect::<Vec<_>>();
        assert_eq!(recent(), (0..RECENT_PORTS as u8).collect::<Vec<_>>());
        backpressure.note_active(200);
        assert!(!recent().contains(&0) && recent().contains(&200) && recent().contains(&1));
        backpressure.forget_ports();
        assert!(recent().is_empty());
    }
}
