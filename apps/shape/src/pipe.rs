// SPDX-License-Identifier: BSD-2-Clause
//! A link with its faults and its scheduler.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use crate::Nanos;
use crate::aqm::Actions;
use crate::delay::Delay;
use crate::flow::FlowKey;
use crate::link::{LinkClock, Rate};
use crate::loss::{Loss, LossState};
use crate::pool::{Packet, Pool, Queue};
use crate::random::Random;
use crate::sched::{Admission, Class, Kind, Scheduler};

/// Properties of a link.
#[derive(Clone, Debug)]
pub struct PipeConfig {
    /// Bandwidth.
    pub rate: Rate,
    /// Bytes that are sent at once after idle time.
    pub burst: u64,
    /// Delay, after a packet was sent.
    pub delay: Delay,
    /// Whether packets with a shorter delay overtake others. Otherwise they wait for them.
    pub overtake: bool,
    /// Packets that are lost on the link, before they are queued.
    pub loss: Loss,
    /// Probability that a packet has no delay, and so overtakes others.
    pub reorder: f64,
    /// Probability that a packet comes twice.
    pub duplicate: f64,
    /// Probability that one bit of a packet is inverted.
    pub corrupt: f64,
    /// The scheduler.
    pub kind: Kind,
    /// Its classes.
    pub classes: Vec<Class>,
    /// Maximum number of flows that masks make.
    pub max_flows: usize,
    /// Equal seeds draw equal numbers.
    pub seed: u64,
}

impl Default for PipeConfig {
    fn default() -> PipeConfig {
        PipeConfig {
            rate: Rate::Unlimited,
            burst: 0,
            delay: Delay::default(),
            overtake: false,
            loss: Loss::None,
            reorder: 0.0,
            duplicate: 0.0,
            corrupt: 0.0,
            kind: Kind::Fifo,
            classes: vec![Class::default()],
            max_flows: 1024,
            seed: 1,
        }
    }
}

/// Counts of packets by their fate.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Packets that came.
    pub packets: u64,
    /// Their bytes.
    pub bytes: u64,
    /// Packets that were sent.
    pub sent: u64,
    /// Their bytes.
    pub sent_bytes: u64,
    /// Packets that the link lost.
    pub lost: u64,
    /// Packets that found their queue full.
    pub full: u64,
    /// Packets that a queue manager dropped.
    pub managed: u64,
    /// Packets that were marked in place of being dropped.
    pub marked: u64,
    /// Packets that came twice.
    pub duplicated: u64,
    /// Packets with an inverted bit.
    pub corrupted: u64,
    /// Packets without delay.
    pub reordered: u64,
}

impl Counts {
    /// Returns the number of packets that were lost or dropped.
    pub fn dropped(&self) -> u64 {
        self.lost + self.full + self.managed
    }
}

/// A packet was dropped, and its memory is free again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Dropped;

/// Packets that a link has sent, until they arrive.
#[derive(Clone, Debug, Default)]
struct DelayLine {
    /// In the order of their times.
    line: Queue,
    /// Time of the last one in `line`.
    last: Nanos,
    /// Without delay: in the order of their times.
    early: Queue,
    /// By time, then in the order of sending: packets that overtake.
    any: BinaryHeap<Reverse<(Nanos, u64, Packet)>>,
    sequence: u64,
}

impl DelayLine {
    #[inline]
    fn push(&mut self, pool: &mut Pool, packet: Packet, due: Nanos, overtake: bool) {
        if overtake {
            pool.meta_mut(packet).due = due;
            self.sequence += 1;
            self.any.push(Reverse((due, self.sequence, packet)));
        } else {
            self.last = self.last.max(due);
            pool.meta_mut(packet).due = self.last;
            self.line.push(pool, packet);
        }
    }

    #[inline]
    fn push_early(&mut self, pool: &mut Pool, packet: Packet, due: Nanos) {
        pool.meta_mut(packet).due = due;
        self.early.push(pool, packet);
    }

    /// Returns the time of the next packet and which list it is in.
    #[inline]
    fn first(&self, pool: &Pool) -> Option<(Nanos, u8)> {
        let of = |queue: &Queue, list| queue.first().map(|packet| (pool.due(packet), list));
        let any = self.any.peek().map(|Reverse((due, ..))| (*due, 2));
        [of(&self.line, 1), of(&self.early, 0), any].into_iter().flatten().min()
    }

    #[inline]
    fn take(&mut self, pool: &Pool, until: Nanos) -> Option<Packet> {
        let (_, list) = self.first(pool).filter(|(due, _)| *due <= until)?;
        match list {
            0 => self.early.pop(pool),
            1 => self.line.pop(pool),
            _ => self.any.pop().map(|Reverse((.., packet))| packet),
        }
    }

    fn packets(&self) -> usize {
        self.line.packets as usize + self.early.packets as usize + self.any.len()
    }
}

/// A link.
#[derive(Clone, Debug)]
pub struct Pipe {
    config: PipeConfig,
    clock: LinkClock,
    loss: LossState,
    /// Draws about packets that come.
    random: Random,
    /// Draws about packets that are sent: a generator of its own, as the order between the two depends on the caller.
    send_random: Random,
    scheduler: Scheduler,
    /// When the first packet of the present backlog came.
    ready_at: Nanos,
    line: DelayLine,
    /// Counts of all packets so far.
    pub counts: Counts,
}

impl Pipe {
    /// Makes a link. It allocates all that it needs; `max_packets` is the capacity of the pool.
    pub fn new(config: PipeConfig, max_packets: usize) -> Pipe {
        let scheduler = Scheduler::new(config.kind, &config.classes, config.max_flows, config.seed);
        let mut line = DelayLine::default();
        if config.overtake && config.delay.varies() {
            line.any.reserve(max_packets);
        }
        Pipe {
            clock: LinkClock::default(),
            loss: LossState::default(),
            random: Random::new(!config.seed),
            send_random: Random::new(config.seed),
            scheduler,
            ready_at: 0,
            line,
            counts: Counts::default(),
            config,
        }
    }

    /// Returns what the link is like.
    pub fn config(&self) -> &PipeConfig {
        &self.config
    }

    /// Returns the scheduler.
    pub fn scheduler(&self) -> &Scheduler {
        &self.scheduler
    }

    /// Returns the number of packets in the queues and on the way.
    pub fn packets(&self) -> usize {
        self.scheduler.packets() as usize + self.line.packets()
    }

    /// Takes a packet, which belongs to a class and has a key.
    ///
    /// # Errors
    /// The packet was dropped and freed.
    #[inline]
    pub fn enqueue(
        &mut self,
        pool: &mut Pool,
        packet: Packet,
        class: u16,
        key: &FlowKey,
        now: Nanos,
    ) -> Result<(), Dropped> {
        let len = pool.len(packet);
        self.counts.packets += 1;
        self.counts.bytes += u64::from(len);
        if self.loss.lost(&self.config.loss, len, &mut self.random) {
            pool.free(packet);
            self.counts.lost += 1;
            return Err(Dropped);
        }
        self.advance(pool, now);
        if self.random.chance(self.config.duplicate)
            && let Some(copy) = pool.duplicate(packet)
        {
            self.counts.duplicated += 1;
            // Its queue may have room for one packet only.
            let _ = self.admit(pool, copy, class, key, now);
        }
        if len > 0 && self.random.chance(self.config.corrupt) {
            let bit = self.random.below(u64::from(len) * 8);
            pool.flip(packet, bit);
            self.counts.corrupted += 1;
        }
        self.admit(pool, packet, class, key, now)
    }

    fn admit(&mut self, pool: &mut Pool, packet: Packet, class: u16, key: &FlowKey, now: Nanos) -> Result<(), Dropped> {
        if self.scheduler.packets() == 0 {
            self.ready_at = now;
        }
        let mut actions = Actions::default();
        let admission = self.scheduler.enqueue(pool, packet, (class, key), now, &mut self.random, &mut actions);
        self.count(actions);
        match admission {
            Admission::Added => {
                self.advance(pool, now);
                return Ok(());
            }
            Admission::Full => self.counts.full += 1,
            Admission::Managed => self.counts.managed += 1,
        }
        pool.free(packet);
        Err(Dropped)
    }

    #[inline]
    fn count(&mut self, actions: Actions) {
        self.counts.managed += u64::from(actions.dropped);
        self.counts.marked += u64::from(actions.marked);
    }

    /// Sends what the link can begin with until `until`.
    #[inline]
    pub fn advance(&mut self, pool: &mut Pool, until: Nanos) {
        while self.scheduler.packets() > 0 {
            let at = self.clock.free_at().max(self.ready_at);
            if at > until {
                return;
            }
            let mut actions = Actions::default();
            let packet = self.scheduler.dequeue(pool, at, &mut actions);
            self.count(actions);
            let Some(packet) = packet else { continue };
            let len = pool.len(packet);
            let sent = self.clock.transmit(&self.config.rate, self.config.burst, at, len);
            self.counts.sent += 1;
            self.counts.sent_bytes += u64::from(len);
            if self.send_random.chance(self.config.reorder) {
                self.counts.reordered += 1;
                self.line.push_early(pool, packet, sent);
            } else {
                let due = sent + self.config.delay.sample(&mut self.send_random);
                self.line.push(pool, packet, due, self.config.overtake);
            }
        }
    }

    /// Returns when something is due next: a packet arrives, or the link can send another one.
    #[inline]
    pub fn next_due(&self, pool: &Pool) -> Option<Nanos> {
        let sends = (self.scheduler.packets() > 0).then(|| self.clock.free_at().max(self.ready_at));
        let arrives = self.line.first(pool).map(|(due, _)| due);
        [sends, arrives].into_iter().flatten().min()
    }

    /// Takes a packet that has arrived by `now`, the earliest first.
    #[inline]
    pub fn take_due(&mut self, pool: &mut Pool, now: Nanos) -> Option<Packet> {
        self.advance(pool, now);
        self.line.take(pool, now)
    }

    /// Takes any packet, the earliest first: the link ends.
    pub fn take_any(&mut self, pool: &mut Pool) -> Option<Packet> {
        loop {
            if let Some(packet) = self.line.take(pool, Nanos::MAX) {
                return Some(packet);
            }
            if self.scheduler.packets() == 0 {
                return None;
            }
            let mut actions = Actions::default();
            let at = self.clock.free_at().max(self.ready_at);
            if let Some(packet) = self.scheduler.dequeue(pool, at, &mut actions) {
                return Some(packet);
            }
        }
    }
}
