// SPDX-License-Identifier: BSD-2-Clause
//! Packet schedulers: which of several queues sends next.
//!
//! A scheduler has *flows*, each with a queue of packets, a limit and a queue manager. Flows belong to *classes*, which
//! have weights. FQ-CoDel and FQ-PIE hash packets to their flows.

mod priority;
mod qfq;
mod round_robin;
mod wf2q;

use crate::Nanos;
use crate::aqm::{Actions, Aqm, AqmState, Codel, Pie};
use crate::flow::{FlowKey, FlowMap, Mask};
use crate::pool::{NONE, Packet, Pool, Queue};
use crate::random::Random;
use priority::Priority;
use qfq::Qfq;
use round_robin::RoundRobin;
use wf2q::Wf2q;

/// Maximum number of packets that are dropped at once when FQ-CoDel or FQ-PIE have too many.
const MAX_DROPS: u32 = 64;

/// The algorithm of a scheduler.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Kind {
    /// First in, first out: one queue.
    Fifo,
    /// Deficit round robin: flows in turn, each for weight times 1500 bytes.
    Drr,
    /// WF2Q+: bandwidth by weight, as close to a fluid system as packets allow.
    Wf2q,
    /// QFQ: the same in constant time, with flows grouped by weight.
    Qfq,
    /// Strict priority: flows of a smaller weight first, those of equal weight in turn.
    Priority,
    /// FQ-CoDel (RFC 8290).
    FqCodel(Fq, Codel),
    /// FQ-PIE: the same with PIE.
    FqPie(Fq, Pie),
}

/// Parameters of FQ-CoDel and FQ-PIE.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fq {
    /// Number of flows that packets are hashed to.
    pub flows: u32,
    /// Bytes that a flow sends in its turn.
    pub quantum: u32,
    /// Maximum number of packets in all flows.
    pub limit: u32,
}

impl Default for Fq {
    fn default() -> Fq {
        Fq { flows: 1024, quantum: 1514, limit: 10_240 }
    }
}

/// When a queue is full.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Limit {
    /// At this number of packets.
    Packets(u32),
    /// When a packet would make it longer than this number of bytes.
    Bytes(u64),
}

impl Default for Limit {
    fn default() -> Limit {
        Limit::Packets(50)
    }
}

/// Properties that all flows of a class share.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Class {
    /// Share of the bandwidth of each flow, compared with the other flows; not 0. For [`Kind::Priority`] the place in
    /// the order of classes.
    pub weight: u32,
    /// When a flow's queue is full.
    pub limit: Limit,
    /// The manager of a flow's queue.
    pub aqm: Aqm,
    /// The header bits that tell flows of the class apart.
    pub mask: Mask,
}

impl Default for Class {
    fn default() -> Class {
        Class { weight: 1, limit: Limit::default(), aqm: Aqm::None, mask: Mask::default() }
    }
}

/// One queue of packets.
#[derive(Clone, Debug)]
pub(crate) struct Flow {
    pub(crate) queue: Queue,
    pub(crate) aqm: AqmState,
    pub(crate) class: u16,
    /// Round robin: bytes that the flow may still send in this turn.
    pub(crate) deficit: i64,
    /// Round robin: the next flow in turn. QFQ: the next one of the slot.
    pub(crate) next: u32,
    /// WF2Q+ and QFQ: virtual start of the first packet.
    pub(crate) start: u128,
    /// WF2Q+ and QFQ: virtual finish of the last packet that was sent.
    pub(crate) finish: u128,
}

impl Flow {
    fn new(class: u16) -> Flow {
        let (queue, aqm) = (Queue::default(), AqmState::default());
        Flow { queue, aqm, class, deficit: 0, next: NONE, start: 0, finish: 0 }
    }
}

#[derive(Clone, Debug)]
enum Algorithm {
    Fifo,
    RoundRobin(RoundRobin),
    Wf2q(Wf2q),
    Qfq(Qfq),
    Priority(Priority),
}

/// Whether a packet was added.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Admission {
    Added,
    /// Its queue is full, or there are too many flows.
    Full,
    /// The queue's manager dropped it.
    Managed,
}

/// A scheduler with its flows.
#[derive(Clone, Debug)]
pub struct Scheduler {
    kind: Kind,
    classes: Vec<Class>,
    flows: Vec<Flow>,
    map: FlowMap,
    algorithm: Algorithm,
    packets: u32,
    bytes: u64,
    seed: u64,
}

/// Flows of one scheduler and their classes, for the algorithms.
pub(crate) struct Queues<'a> {
    pub(crate) flows: &'a mut [Flow],
    pub(crate) classes: &'a [Class],
    pub(crate) pool: &'a mut Pool,
    pub(crate) now: Nanos,
    pub(crate) actions: &'a mut Actions,
}

impl Queues<'_> {
    /// Takes a flow's next packet, past those that its manager drops.
    #[inline]
    pub(crate) fn dequeue(&mut self, flow: u32) -> Option<Packet> {
        let flow = &mut self.flows[flow as usize];
        let aqm = &self.classes[usize::from(flow.class)].aqm;
        flow.aqm.dequeue(aqm, &mut flow.queue, self.pool, self.now, self.actions)
    }

    #[inline]
    pub(crate) fn weight(&self, flow: u32) -> u32 {
        self.classes[usize::from(self.flows[flow as usize].class)].weight
    }
}

impl Scheduler {
    /// Makes a scheduler with classes, at least one, and at most `max_flows` flows of all of them. FQ-CoDel and FQ-PIE
    /// have their own number of flows and a single class.
    pub fn new(kind: Kind, classes: &[Class], max_flows: usize, seed: u64) -> Scheduler {
        let mut classes = classes.to_vec();
        if classes.is_empty() {
            classes.push(Class::default());
        }
        let unmasked = |class: &Class| class.mask.is_empty();
        let max = match kind {
            Kind::Fifo => 1,
            Kind::FqCodel(fq, _) | Kind::FqPie(fq, _) => fq.flows.max(1) as usize,
            Kind::Drr | Kind::Wf2q | Kind::Qfq | Kind::Priority if classes.iter().all(unmasked) => classes.len(),
            Kind::Drr | Kind::Wf2q | Kind::Qfq | Kind::Priority => max_flows.max(classes.len()),
        };
        let algorithm = match kind {
            Kind::Fifo => Algorithm::Fifo,
            Kind::Drr => Algorithm::RoundRobin(RoundRobin::new(None)),
            Kind::FqCodel(fq, codel) => {
                classes = vec![Class { limit: Limit::Packets(fq.limit), aqm: Aqm::Codel(codel), ..Class::default() }];
                Algorithm::RoundRobin(RoundRobin::new(Some(fq.quantum)))
            }
            Kind::FqPie(fq, pie) => {
                classes = vec![Class { limit: Limit::Packets(fq.limit), aqm: Aqm::Pie(pie), ..Class::default() }];
                Algorithm::RoundRobin(RoundRobin::new(Some(fq.quantum)))
            }
            Kind::Wf2q => Algorithm::Wf2q(Wf2q::new(max)),
            Kind::Qfq => Algorithm::Qfq(Qfq::new()),
            Kind::Priority => Algorithm::Priority(Priority::new(max)),
        };
        let map = FlowMap::new(max, seed);
        Scheduler { kind, classes, flows: vec![Flow::new(0); max], map, algorithm, packets: 0, bytes: 0, seed }
    }

    /// Returns the algorithm.
    pub fn kind(&self) -> &Kind {
        &self.kind
    }

    /// Returns the number of packets in all queues.
    pub fn packets(&self) -> u32 {
        self.packets
    }

    /// Returns the bytes in all queues.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Returns the number of flows that have packets.
    pub fn backlogged(&self) -> usize {
        self.flows.iter().filter(|flow| !flow.queue.is_empty()).count()
    }

    /// Adds a packet of a class, unless its queue is full or its manager drops it; then it remains the caller's.
    /// `actions` counts what managers did to other packets.
    #[inline]
    pub(crate) fn enqueue(
        &mut self,
        pool: &mut Pool,
        packet: Packet,
        (class, key): (u16, &FlowKey),
        now: Nanos,
        random: &mut Random,
        actions: &mut Actions,
    ) -> Admission {
        let Some(index) = self.flow_of(class, key) else { return Admission::Full };
        let flow = &mut self.flows[index];
        let settings = &self.classes[usize::from(flow.class)];
        let fq = matches!(self.kind, Kind::FqCodel(..) | Kind::FqPie(..));
        let full = match settings.limit {
            _ if fq => false,
            Limit::Packets(max) => flow.queue.packets >= max,
            Limit::Bytes(max) => flow.queue.bytes + u64::from(pool.len(packet)) > max,
        };
        if full {
            return Admission::Full;
        }
        if !flow.aqm.admits(&settings.aqm, &flow.queue, (pool, packet), now, random, actions) {
            return Admission::Managed;
        }
        let was_empty = flow.queue.is_empty();
        flow.queue.push(pool, packet);
        self.packets += 1;
        self.bytes += u64::from(pool.len(packet));
        let mut queues = Queues { flows: &mut self.flows, classes: &self.classes, pool, now, actions };
        if was_empty {
            match &mut self.algorithm {
                Algorithm::Fifo => {}
                Algorithm::RoundRobin(algorithm) => algorithm.activate(index as u32, &mut queues),
                Algorithm::Wf2q(algorithm) => algorithm.activate(index as u32, &mut queues),
                Algorithm::Qfq(algorithm) => algorithm.activate(index as u32, &mut queues),
                Algorithm::Priority(algorithm) => algorithm.activate(index as u32, &mut queues),
            }
        }
        if let (true, Limit::Packets(max)) = (fq, self.classes[0].limit)
            && self.packets > max
        {
            self.drop_from_the_longest(pool, actions);
        }
        Admission::Added
    }

    /// Returns the queue of a packet.
    #[inline]
    fn flow_of(&mut self, class: u16, key: &FlowKey) -> Option<usize> {
        match self.kind {
            Kind::Fifo => Some(0),
            Kind::FqCodel(..) | Kind::FqPie(..) => {
                Some(((u128::from(key.hash(self.seed)) * self.flows.len() as u128) >> 64) as usize)
            }
            Kind::Drr | Kind::Wf2q | Kind::Qfq | Kind::Priority => {
                let masked = self.classes.get(usize::from(class))?.mask.apply(key);
                let (flows, algorithm) = (&self.flows, &self.algorithm);
                let idle = |flow: usize| {
                    flows[flow].queue.is_empty()
                        && match algorithm {
                            Algorithm::Wf2q(wf2q) => wf2q.is_past(&flows[flow]),
                            Algorithm::Qfq(qfq) => qfq.is_past(&flows[flow]),
                            Algorithm::RoundRobin(_) | Algorithm::Fifo => flows[flow].next == NONE,
                            Algorithm::Priority(_) => true,
                        }
                };
                let number = self.map.number(class.into(), &masked, idle)?;
                self.flows[number].class = class;
                Some(number)
            }
        }
    }

    /// Takes the packet that is sent next at `now`.
    #[inline]
    pub(crate) fn dequeue(&mut self, pool: &mut Pool, now: Nanos, actions: &mut Actions) -> Option<Packet> {
        let before = *actions;
        let mut queues = Queues { flows: &mut self.flows, classes: &self.classes, pool, now, actions };
        let packet = match &mut self.algorithm {
            Algorithm::Fifo => queues.dequeue(0),
            Algorithm::RoundRobin(algorithm) => algorithm.dequeue(&mut queues),
            Algorithm::Wf2q(algorithm) => algorithm.dequeue(&mut queues),
            Algorithm::Qfq(algorithm) => algorithm.dequeue(&mut queues),
            Algorithm::Priority(algorithm) => algorithm.dequeue(&mut queues),
        };
        self.packets -= u32::from(packet.is_some()) + (actions.dropped - before.dropped);
        self.bytes -= packet.map_or(0, |packet| u64::from(pool.len(packet)));
        self.bytes -= actions.dropped_bytes - before.dropped_bytes;
        packet
    }

    /// Drops packets from the head of the queue with the most bytes, up to half of it.
    #[cold]
    fn drop_from_the_longest(&mut self, pool: &mut Pool, actions: &mut Actions) {
        let Some(longest) = self.flows.iter_mut().max_by_key(|flow| flow.queue.bytes) else { return };
        for _ in 0..longest.queue.packets.div_ceil(2).min(MAX_DROPS) {
            let Some(packet) = longest.queue.pop(pool) else { break };
            self.packets -= 1;
            self.bytes -= u64::from(pool.len(packet));
            actions.drop(pool, packet);
        }
    }
}
