// SPDX-License-Identifier: BSD-2-Clause
//! Times of packets, slot by slot, for programs that request them: a back end that wraps another one and records when
//! each slot was passed on. Rings without times have no such wrapper, and no cost.
//!
//! The times are in the program's own memory. A slot that another process has synced keeps the time before.

use std::io;
use std::sync::Arc;

use unetmap_mem::{Pos, Slots, Span};
use unetmap_sys::clock;

use super::ring::RingBackend;
use super::sides::{Delivered, InvalidPeerIndex, NextRing, Rx, Tx, WakeupSource};
use super::times::{TimeSource, Times};

impl RingBackend {
    /// Adds times to a back end of a ring with `count` slots; `None` if the ring cannot have any.
    pub(crate) fn timed(self, count: Slots) -> (RingBackend, Option<Arc<Times>>) {
        let recording = || Arc::new(Times::new(count, TimeSource::Sync));
        let tx = |inner: Box<dyn Tx>| {
            let times = recording();
            (RingBackend::Tx(Box::new(TimedTx { inner, times: times.clone() })), Some(times))
        };
        let rx = |inner: Box<dyn Rx>| {
            let of_monitored = Arc::new(Times::new(count, TimeSource::MonitoredSync));
            if inner.record_times(&of_monitored) {
                return (RingBackend::Rx(inner), Some(of_monitored));
            }
            let times = recording();
            (RingBackend::Rx(Box::new(TimedRx { inner, times: times.clone() })), Some(times))
        };
        match self {
            RingBackend::PipeTx(inner) => tx(inner),
            RingBackend::Tx(inner) => tx(inner),
            RingBackend::PipeRx(inner) => rx(inner),
            RingBackend::Rx(inner) => rx(inner),
            RingBackend::ReadOnly => (RingBackend::ReadOnly, None),
        }
    }
}

/// The sending side.
struct TimedTx {
    inner: Box<dyn Tx>,
    times: Arc<Times>,
}

impl Tx for TimedTx {
    fn send(&self, span: Span) -> u32 {
        self.times.set_all(span, clock::wall_ns());
        self.inner.send(span)
    }

    fn has_unsent(&self) -> bool {
        self.inner.has_unsent()
    }

    fn sendable(&self, window: Span) -> Pos {
        self.inner.sendable(window)
    }

    fn indirect_data(&self, window: Span) -> Vec<(u64, u16)> {
        self.inner.indirect_data(window)
    }

    fn completed(&self, known: Pos, sent: Pos) -> Result<Pos, InvalidPeerIndex> {
        self.inner.completed(known, sent)
    }

    fn peer_moved(&self, known: Pos) -> Option<u32> {
        self.inner.peer_moved(known)
    }

    fn wakeup(&self) -> Option<&dyn WakeupSource> {
        self.inner.wakeup()
    }

    fn missed_by_receiver(&self, sent: Pos) -> u32 {
        self.inner.missed_by_receiver(sent)
    }

    fn give_up(&self) -> io::Result<()> {
        self.inner.give_up()
    }

    fn go_on(&self, next: NextRing<'_>) -> io::Result<()> {
        self.inner.go_on(next)
    }
}

/// The receiving side.
struct TimedRx {
    inner: Box<dyn Rx>,
    times: Arc<Times>,
}

impl Rx for TimedRx {
    fn release(&self, span: Span) -> u32 {
        self.inner.release(span)
    }

    fn deliver(&self, held: Pos, received: Pos) -> Result<Delivered, InvalidPeerIndex> {
        let delivered = self.inner.deliver(held, received)?;
        if delivered.to != received {
            self.times.set_all(Span { from: received, to: delivered.to }, clock::wall_ns());
        }
        Ok(delivered)
    }

    fn sleeps_between_polls(&self) -> bool {
        self.inner.sleeps_between_polls()
    }

    fn peer_on_this_cpu(&self) -> bool {
        self.inner.peer_on_this_cpu()
    }

    fn peer_moved(&self, received: Pos) -> Option<u32> {
        self.inner.peer_moved(received)
    }

    fn has_packets_left(&self, unread: bool) -> bool {
        self.inner.has_packets_left(unread)
    }

    fn wakeup(&self) -> Option<&dyn WakeupSource> {
        self.inner.wakeup()
    }

    fn undelivered(&self, received: Pos) -> u32 {
        self.inner.undelivered(received)
    }

    fn give_up(&self) -> io::Result<()> {
        self.inner.give_up()
    }

    fn go_on(&self, next: NextRing<'_>) -> io::Result<()> {
        self.inner.go_on(next)
    }
}
