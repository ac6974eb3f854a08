// SPDX-License-Identifier: BSD-2-Clause
//! A sink: its transmit ring takes the program's slots at a set rate and discards them, as a link of that rate would.
//!
//! ```text
//! now            idle_at                         time
//!  |-- slot_ns --|-- slot_ns --|-- slot_ns --|   each slot that was sent and not taken moves idle_at by slot_ns
//! ```
//! The time at which the ring is idle stays in the process: programs that share a ring each get the whole rate. Receive
//! rings of a sink are those of `null`.

use std::io;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use unetmap_mem::{Pos, RingView, Slots, Span};
use unetmap_sys::{Doorbell, clock};

use super::ring::RingBackend;
use super::sides::{InvalidPeerIndex, NextRing, RingParts, Tx, WakeupSource};
use crate::tuning::{SINK_SLEEP_MAX, TX_COMPLETION_POLL};

/// The transmit side.
pub(crate) struct SinkTx {
    view: RingView,
    /// Nanoseconds that each slot takes.
    slot_ns: u64,
    /// When all slots that were sent have been taken, on the monotonic clock, nanoseconds.
    idle_at: AtomicU64,
    /// Notified by its own timer.
    doorbell: Doorbell,
}

/// Constructs the transmit side; `None` for a receive ring.
pub(super) fn open(parts: &RingParts<'_>) -> Option<RingBackend> {
    if !parts.is_tx() {
        return None;
    }
    let (view, idle_at, doorbell) = (parts.view.clone(), AtomicU64::new(0), parts.doorbell()?);
    Some(RingBackend::Tx(Box::new(SinkTx { view, slot_ns: parts.bound.slot_ns, idle_at, doorbell })))
}

impl SinkTx {
    fn slots(&self) -> Slots {
        self.view.shape().slots
    }

    /// Returns how many of the last sent slots are not taken yet; 0 if the ring has no rate.
    fn waiting(&self) -> u64 {
        if self.slot_ns == 0 {
            return 0;
        }
        self.idle_at.load(Relaxed).saturating_sub(clock::now_ns()).div_ceil(self.slot_ns)
    }
}

impl Tx for SinkTx {
    fn send(&self, span: Span) -> u32 {
        if self.slot_ns > 0 {
            let time = u64::from(self.slots().distance(span.from, span.to)).saturating_mul(self.slot_ns);
            let begin = self.idle_at.load(Relaxed).max(clock::now_ns());
            self.idle_at.store(begin.saturating_add(time), Relaxed);
        }
        0
    }

    fn completed(&self, known: Pos, sent: Pos) -> Result<Pos, InvalidPeerIndex> {
        let slots = self.slots();
        let pending = slots.distance(known, sent);
        let waiting = u32::try_from(self.waiting()).unwrap_or(u32::MAX).min(pending);
        Ok(slots.add(known, pending - waiting))
    }

    fn peer_moved(&self, known: Pos) -> Option<u32> {
        // The last slot that can have been sent, whichever process sent it.
        let sent = self.slots().pos(self.view.raw_head())?;
        let pending = u64::from(self.slots().distance(known, sent));
        (self.waiting() < pending).then_some(sent.raw())
    }

    fn wakeup(&self) -> Option<&dyn WakeupSource> {
        Some(self)
    }

    fn go_on(&self, next: NextRing<'_>) -> io::Result<()> {
        self.doorbell.replace(next.doorbell)
    }
}

impl WakeupSource for SinkTx {
    fn request_wakeup(&self) -> bool {
        let slot = Duration::from_nanos(self.slot_ns);
        self.doorbell.notify_after(slot.clamp(TX_COMPLETION_POLL, SINK_SLEEP_MAX));
        false
    }

    fn doorbell(&self) -> &Doorbell {
        &self.doorbell
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use unetmap_mem::{Geometry, Region, RingShape};

    fn sink(slot_ns: u64) -> SinkTx {
        let geometry = Geometry::new((1, 256), (2, 512), (4, 64)).expect("valid sizes");
        let (region, _) = Region::create("sink", geometry).expect("memory");
        let slots = Slots::new(8).expect("a ring");
        let shape = RingShape { offset: geometry.rings.offset, slots, id: 0, dir: 0 };
        let view = RingView::new(&region, shape).expect("inside");
        SinkTx { view, slot_ns, idle_at: AtomicU64::new(0), doorbell: Doorbell::new().expect("a timer") }
    }

    #[test]
    fn without_a_rate_all_slots_are_taken_at_once() {
        let sink = sink(0);
        let at = |raw| sink.slots().pos(raw).expect("in the ring");
        assert_eq!(sink.send(Span { from: at(6), to: at(2) }), 0);
        assert_eq!(sink.completed(at(6), at(2)), Ok(at(2)));
    }

    #[test]
    fn each_slot_takes_its_time() {
        // An hour each.
        let sink = sink(3_600_000_000_000);
        let at = |raw| sink.slots().pos(raw).expect("in the ring");
        sink.send(Span { from: at(6), to: at(2) });
        assert_eq!(sink.completed(at(6), at(2)), Ok(at(6)));
        // As if two and a half hours had passed.
        sink.idle_at.fetch_sub(9_000_000_000_000, Relaxed);
        assert_eq!(sink.completed(at(6), at(2)), Ok(at(0)));
        assert_eq!(sink.completed(at(0), at(2)), Ok(at(0)), "never back");
        sink.idle_at.store(0, Relaxed);
        assert_eq!(sink.completed(at(0), at(2)), Ok(at(2)));
        // An idle link starts anew: the time before does not count.
        sink.send(Span { from: at(2), to: at(3) });
        assert_eq!(sink.completed(at(2), at(3)), Ok(at(2)));
    }
}
