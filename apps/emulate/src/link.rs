// SPDX-License-Identifier: BSD-2-Clause
//! One direction of an emulated link.

use std::cell::RefCell;
use std::sync::Arc;
use std::sync::mpsc::SyncSender;
use std::time::{Duration, Instant};

use hdrhistogram::Histogram;
use tool_common::forward::Mover;
use unetmap::Ring;
use unetmap_filter::{HEADER_BYTES, Headers};
use unetmap_shape::held::{emit, next_packet, slots_needed, store};
use unetmap_shape::{Counts, FlowKey, Kind, Nanos, Packet, Pipe, PipeConfig, Pool, SECOND};

use super::metrics::Published;
use super::order::Order;
use super::report::{Delays, Report, Total};

/// Slots whose buffers are fetched into the cache before they are needed.
const FETCH_AHEAD: usize = 8;
/// Longest delay that is distinguished, in microseconds.
const MAX_DELAY: u64 = 3_600_000_000;

/// Packets with the same delay, as those of a batch have.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
struct Same {
    delay: u64,
    late: u64,
    packets: u64,
}

/// Significant digits of delays, in the summary and in the line of a second: one more digit takes ten times the memory.
const DIGITS: u8 = 4;
const DIGITS_OF_A_SECOND: u8 = 3;

/// One direction.
pub(crate) struct Link<'p> {
    way: &'static str,
    pipe: Pipe,
    pool: &'p RefCell<Pool>,
    begin: Instant,
    header: usize,
    buf_size: u32,
    /// Whether flows must be told apart.
    has_flows: bool,
    /// The order of packets, if some can overtake others.
    order: Option<Order>,
    /// A packet that waits for room.
    waiting: Option<Packet>,
    /// Whether the link ends: packets are due at once.
    ended: bool,
    /// Packets that found no memory.
    no_memory: u64,
    /// Packets with more slots than the other port's ring.
    too_long: u64,
    arrived: u64,
    arrived_bytes: u64,
    /// Delays of packets that have arrived, in microseconds, of this second. Small, as it is read and cleared while
    /// packets wait.
    delays: Histogram<u64>,
    /// The delays of all packets.
    all_delays: Histogram<u64>,
    /// How much later than due they were written to the ring, in nanoseconds.
    late: Histogram<u64>,
    /// Packets that have arrived last and agree in both, which are not in the histograms yet.
    same: Same,
    last: (Counts, u64, u64, u64),
    next_report: Nanos,
    reports: SyncSender<Report>,
    /// For another thread.
    pub(crate) published: Arc<Published>,
}

impl<'p> Link<'p> {
    pub(crate) fn new(
        way: &'static str,
        config: PipeConfig,
        pool: &'p RefCell<Pool>,
        begin: Instant,
        header: usize,
        buf_size: u32,
        reports: SyncSender<Report>,
    ) -> Link<'p> {
        let delays = |digits| Histogram::new_with_bounds(1, MAX_DELAY, digits).expect("bounds that are valid");
        let has_flows = !matches!(config.kind, Kind::Fifo);
        let capacity = pool.borrow().capacity();
        let overtakes = config.reorder > 0.0 || config.overtake && config.delay.varies();
        let pipe = Pipe::new(config, capacity);
        Link {
            way,
            pipe,
            pool,
            begin,
            header,
            buf_size,
            has_flows,
            order: overtakes.then(|| Order::new(capacity)),
            waiting: None,
            ended: false,
            no_memory: 0,
            too_long: 0,
            arrived: 0,
            arrived_bytes: 0,
            delays: delays(DIGITS_OF_A_SECOND),
            all_delays: delays(DIGITS),
            late: delays(DIGITS),
            same: Same::default(),
            last: (Counts::default(), 0, 0, 0),
            next_report: SECOND,
            reports,
            published: Arc::default(),
        }
    }

    /// Shows the numbers to another thread, in the order of `metrics`.
    #[inline]
    fn publish(&self) {
        let c = &self.pipe.counts;
        self.published.set([
            c.packets,
            c.bytes,
            self.arrived,
            self.arrived_bytes,
            c.lost,
            c.full,
            c.managed,
            self.no_memory,
            self.too_long,
            c.marked,
            c.duplicated,
            c.corrupted,
            c.reordered,
            self.packets() as u64,
        ]);
    }

    fn now(&self) -> Nanos {
        self.begin.elapsed().as_nanos() as Nanos
    }

    /// Returns the number of packets that the link holds.
    fn packets(&self) -> usize {
        self.pipe.packets() + usize::from(self.waiting.is_some())
    }

    /// Takes the next packet that is due.
    #[inline]
    fn take(&mut self, now: Nanos) -> Option<Packet> {
        let pool = &mut *self.pool.borrow_mut();
        match self.waiting.take() {
            Some(packet) => Some(packet),
            None if self.ended => self.pipe.take_any(pool),
            None => self.pipe.take_due(pool, now),
        }
    }

    #[inline]
    fn count(&mut self, packet: Packet, now: Nanos) {
        let pool = self.pool.borrow();
        if let Some(order) = &mut self.order {
            order.leaves(pool.tag(packet));
        }
        self.arrived += 1;
        self.arrived_bytes += u64::from(pool.len(packet));
        if !self.ended {
            let (delay, late) = (now - pool.arrived(packet), now - pool.due(packet));
            if (delay, late) != (self.same.delay, self.same.late) {
                drop(pool);
                self.record();
                self.same = Same { delay, late, packets: 0 };
            }
            self.same.packets += 1;
        }
    }

    /// Puts the last packets into the histograms.
    fn record(&mut self) {
        let Same { delay, late, packets } = std::mem::take(&mut self.same);
        if packets > 0 {
            self.delays.saturating_record_n(delay / 1000, packets);
            self.all_delays.saturating_record_n(delay / 1000, packets);
            self.late.saturating_record_n(late, packets);
        }
    }

    fn report(&mut self, now: Nanos) {
        self.record();
        let counts = self.pipe.counts;
        let dropped = counts.lost + counts.full + counts.managed + self.no_memory + self.too_long;
        let (before, arrived, bytes, dropped_before) = self.last;
        let seconds = (now - (self.next_report - SECOND)) as f64 / SECOND as f64;
        let report = Report {
            way: self.way,
            time: now as f64 / SECOND as f64,
            packets: ((self.arrived - arrived) as f64 / seconds) as u64,
            bits: ((self.arrived_bytes - bytes) as f64 * 8.0 / seconds) as u64,
            offered: counts.packets - before.packets,
            dropped: dropped - dropped_before,
            queued: self.pipe.scheduler().packets().into(),
            held: self.packets() as u64,
            delays: Delays::of(&self.delays),
        };
        // A reader that does not keep up gets fewer lines.
        let _ = self.reports.try_send(report);
        self.delays.reset();
        self.last = (counts, self.arrived, self.arrived_bytes, dropped);
        self.next_report = now + SECOND;
    }

    /// Returns what has happened in all.
    pub(crate) fn total(&mut self) -> Total {
        self.record();
        Total {
            way: self.way,
            counts: self.pipe.counts,
            arrived: self.arrived,
            arrived_bytes: self.arrived_bytes,
            no_memory: self.no_memory,
            too_long: self.too_long,
            delays: Delays::of(&self.all_delays),
            overtaken: self.order.as_ref().map_or(0, Order::overtaken),
            late: [0.5, 0.99].map(|part| self.late.value_at_quantile(part)),
        }
    }
}

impl Mover for Link<'_> {
    fn move_slots(&mut self, from: &Ring, _to: &Ring, n: u32) -> Result<u32, String> {
        let now = self.now();
        let pool = &mut *self.pool.borrow_mut();
        let mut slots = from.first(n);
        // Another core wrote the packets.
        let mut ahead = from.first(n);
        ahead.by_ref().take(FETCH_AHEAD).for_each(|slot| slot.fetch());
        while let Some(packet) = next_packet(&mut slots) {
            ahead.by_ref().take(packet.slots as usize).for_each(|slot| slot.fetch());
            let Some(stored) = store(pool, from, &packet, self.header, 0, now) else {
                self.no_memory += 1;
                continue;
            };
            let needs_flow = self.has_flows || self.order.is_some();
            let key = if needs_flow { flow(pool, stored) } else { FlowKey::default() };
            if let Some(order) = &mut self.order {
                pool.set_tag(stored, order.came(&key));
            }
            // A packet that is dropped is counted by the link.
            let _ = self.pipe.enqueue(pool, stored, 0, &key, now);
        }
        self.publish();
        Ok(0)
    }

    fn own_packets(&mut self, to: &Ring) -> u32 {
        let now = self.now();
        let (room, mut used) = (to.space(), 0);
        let mut targets = to.available();
        // Another core read what was in the buffers before.
        let mut ahead = to.available();
        let mut fetch = FETCH_AHEAD;
        while let Some(packet) = self.take(now) {
            let needed = slots_needed(&self.pool.borrow(), packet, self.buf_size);
            if needed >= to.num_slots() {
                self.too_long += 1;
                self.pool.borrow_mut().free(packet);
                continue;
            }
            if used + needed > room {
                self.waiting = Some(packet);
                break;
            }
            self.count(packet, now);
            fetch += needed as usize;
            ahead.by_ref().take(std::mem::take(&mut fetch)).for_each(|slot| slot.fetch_to_write());
            used += emit(&mut self.pool.borrow_mut(), packet, &mut targets, self.buf_size);
        }
        if now >= self.next_report && !self.ended {
            self.report(now);
        }
        self.publish();
        used
    }

    /// Not while packets that are due wait for room: those that come meanwhile wait in the ring, where they take no
    /// memory, and their sender sees that the other port is full.
    fn keeps_packets(&self) -> bool {
        self.waiting.is_none()
    }

    fn end(&mut self) -> usize {
        self.ended = true;
        self.packets()
    }

    fn next_packet(&mut self) -> Option<Duration> {
        if self.waiting.is_some() {
            return Some(Duration::ZERO);
        }
        let due = self.pipe.next_due(&self.pool.borrow())?;
        // A packet that has become due since was not tried yet: it does not wait for room.
        Some(Duration::from_nanos(due.saturating_sub(self.now()).max(1)))
    }
}

/// Returns the flow of a packet. Frames that are not valid IP are one flow.
fn flow(pool: &mut Pool, packet: Packet) -> FlowKey {
    let len = pool.len(packet) as usize;
    let head = pool.head_mut(packet);
    let head = &head[..head.len().min(HEADER_BYTES)];
    Headers::parse(head, len).map(|headers| headers.flow_key()).unwrap_or_default()
}
