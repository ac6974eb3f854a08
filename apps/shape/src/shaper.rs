// SPDX-License-Identifier: BSD-2-Clause
//! Many links, as a firewall has them: each is named by a number, and a mask makes one for each flow.
//!
//! A [`Plan`] says which links there are. A shaper takes a new one at any time: links that did not change keep their
//! packets and their state; packets of the others still arrive when their old link delivers them.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use crate::Nanos;
use crate::flow::{FlowKey, FlowMap, Mask};
use crate::pipe::{Dropped, Pipe, PipeConfig};
use crate::pool::{Packet, Pool, Queue};

/// Counts of a link, which one thread writes and others read.
#[derive(Debug, Default)]
pub struct LinkCounters {
    /// Packets that came.
    pub packets: AtomicU64,
    /// Their bytes.
    pub bytes: AtomicU64,
    /// Packets that were lost or dropped.
    pub dropped: AtomicU64,
    /// Packets in the queues and on the way.
    pub held: AtomicU64,
    /// Links: one, or as many as a mask has made.
    pub links: AtomicU64,
}

/// A link of a plan.
#[derive(Clone, Debug)]
pub struct Node {
    /// Properties of the link. With a mask, each flow has a link of its own with these.
    pub config: PipeConfig,
    /// The header bits that tell flows apart, each with a link of its own.
    pub mask: Mask,
    /// Maximum number of those.
    pub max_flows: usize,
    /// A number that no other link has, and that changes when the link does.
    pub revision: u64,
    /// Its counts.
    pub counters: Arc<LinkCounters>,
}

/// The links of a shaper.
#[derive(Clone, Debug, Default)]
pub struct Plan {
    nodes: Vec<Node>,
    /// Number of a pipe, its node; in order.
    pipes: Vec<(u16, u32)>,
    /// Number of a queue, its node and its class there; in order.
    queues: Vec<(u16, u32, u16)>,
}

/// Where a packet goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Target {
    /// The link with this number.
    Pipe(u16),
    /// The queue with this number, which is a class of a link's scheduler.
    Queue(u16),
}

impl Plan {
    /// Adds a link that packets are given to by its number.
    pub fn add_pipe(&mut self, number: u16, node: Node) {
        let at = self.pipes.partition_point(|entry| entry.0 < number);
        self.pipes.insert(at, (number, self.nodes.len() as u32));
        self.nodes.push(node);
    }

    /// Adds a link that packets are given to by its queues: class *i* of its scheduler is queue `queues[i]`.
    pub fn add_queues(&mut self, queues: &[u16], node: Node) {
        for (class, &number) in queues.iter().enumerate() {
            let at = self.queues.partition_point(|entry| entry.0 < number);
            self.queues.insert(at, (number, self.nodes.len() as u32, class as u16));
        }
        self.nodes.push(node);
    }

    /// Whether there is no link.
    pub fn is_empty(&self) -> bool {
        self.nodes.is_empty()
    }

    #[inline]
    fn find(&self, target: Target) -> Option<(usize, u16)> {
        match target {
            Target::Pipe(number) => {
                let at = self.pipes.binary_search_by_key(&number, |entry| entry.0).ok()?;
                Some((self.pipes[at].1 as usize, 0))
            }
            Target::Queue(number) => {
                let at = self.queues.binary_search_by_key(&number, |entry| entry.0).ok()?;
                Some((self.queues[at].1 as usize, self.queues[at].2))
            }
        }
    }
}

/// The link of one flow.
#[derive(Debug)]
struct Instance {
    pipe: Pipe,
    counters: Arc<LinkCounters>,
    /// The earliest of its times in the list of timers.
    scheduled: Option<Nanos>,
    /// Whether no packet comes any more, because the plan has changed.
    orphan: bool,
}

/// The flows of a node.
#[derive(Debug)]
struct Flows {
    map: FlowMap,
    /// Place of each flow's link in the shaper's list.
    instances: Vec<u32>,
    revision: u64,
    seed: u64,
}

/// Links with their packets.
#[derive(Debug, Default)]
pub struct Shaper {
    plan: Arc<Plan>,
    flows: Vec<Flows>,
    instances: Vec<Option<Instance>>,
    free: Vec<u32>,
    timers: BinaryHeap<Reverse<(Nanos, u32)>>,
    /// Packets that have arrived, by output. A packet's tag is the number of its output.
    out: Box<[Queue]>,
    /// Packets in links.
    held: usize,
}

impl Shaper {
    /// Makes a shaper without links, with this number of outputs, which is not 0.
    pub fn new(outputs: usize) -> Shaper {
        Shaper { out: (0..outputs).map(|_| Queue::default()).collect(), ..Shaper::default() }
    }

    /// Takes another plan. Senders who know `seed` can choose flows that share a queue or a bucket.
    pub fn update(&mut self, plan: Arc<Plan>, seed: u64) {
        let mut old = std::mem::take(&mut self.flows);
        for node in &plan.nodes {
            let known = old.iter().position(|flows| flows.revision == node.revision);
            self.flows.push(known.map_or_else(
                || {
                    let map = FlowMap::new(if node.mask.is_empty() { 1 } else { node.max_flows }, seed);
                    node.counters.links.store(0, Relaxed);
                    Flows { map, instances: Vec::new(), revision: node.revision, seed }
                },
                |at| old.swap_remove(at),
            ));
        }
        for at in old.iter().flat_map(|flows| &flows.instances) {
            if let Some(instance) = &mut self.instances[*at as usize] {
                instance.orphan = true;
            }
            self.remove_if_done(*at);
        }
        self.plan = plan;
    }

    /// Returns the number of packets that are in links or have arrived.
    pub fn packets(&self) -> usize {
        self.held + self.out.iter().map(|queue| queue.packets as usize).sum::<usize>()
    }

    /// Returns the number of packets that have arrived at an output.
    pub fn arrived(&self, output: usize) -> usize {
        self.out[output].packets as usize
    }

    /// Gives a packet to a link.
    ///
    /// # Errors
    /// The packet was dropped and freed: also if there is no such link.
    #[inline]
    pub fn enqueue(
        &mut self,
        pool: &mut Pool,
        packet: Packet,
        target: Target,
        key: &FlowKey,
        now: Nanos,
    ) -> Result<(), Dropped> {
        let Some((node, class)) = self.plan.find(target) else {
            pool.free(packet);
            return Err(Dropped);
        };
        let Some(at) = self.instance(node, key) else {
            pool.free(packet);
            return Err(Dropped);
        };
        let Some(instance) = &mut self.instances[at as usize] else {
            pool.free(packet);
            return Err(Dropped);
        };
        let (before, dropped) = (instance.pipe.packets(), instance.pipe.counts.dropped());
        add(&instance.counters.packets, 1);
        add(&instance.counters.bytes, u64::from(pool.len(packet)));
        let result = instance.pipe.enqueue(pool, packet, class, key, now);
        add(&instance.counters.dropped, instance.pipe.counts.dropped() - dropped);
        let after = instance.pipe.packets();
        self.held = self.held + after - before;
        add_signed(&instance.counters.held, before, after);
        self.schedule(pool, at);
        result
    }

    /// Moves a packet, which no link has, to its output.
    #[inline]
    pub fn deliver(&mut self, pool: &mut Pool, packet: Packet) {
        let output = pool.tag(packet) as usize % self.out.len();
        self.out[output].push(pool, packet);
    }

    /// Returns the place of the link of a flow.
    #[inline]
    fn instance(&mut self, node: usize, key: &FlowKey) -> Option<u32> {
        let settings = &self.plan.nodes[node];
        let flows = &mut self.flows[node];
        let (instances, places) = (&self.instances, &flows.instances);
        let idle = |flow: usize| instances[places[flow] as usize].as_ref().is_none_or(|i| i.pipe.packets() == 0);
        let number = flows.map.number(0, &settings.mask.apply(key), idle)?;
        if let Some(&at) = flows.instances.get(number) {
            return Some(at);
        }
        // A flow that was not seen before: the only place that allocates.
        let mut config = settings.config.clone();
        config.seed = config.seed.wrapping_add(number as u64) ^ flows.seed;
        let pipe = Pipe::new(config, 0);
        let instance = Instance { pipe, counters: Arc::clone(&settings.counters), scheduled: None, orphan: false };
        let at = self.free.pop().unwrap_or_else(|| {
            self.instances.push(None);
            self.instances.len() as u32 - 1
        });
        self.instances[at as usize] = Some(instance);
        flows.instances.push(at);
        settings.counters.links.store(flows.instances.len() as u64, Relaxed);
        Some(at)
    }

    /// Puts the next time of a link in the list of timers.
    #[inline]
    fn schedule(&mut self, pool: &Pool, at: u32) {
        let Some(instance) = &mut self.instances[at as usize] else { return };
        let Some(due) = instance.pipe.next_due(pool) else { return };
        if instance.scheduled.is_none_or(|scheduled| due < scheduled) {
            instance.scheduled = Some(due);
            self.timers.push(Reverse((due, at)));
        }
    }

    fn remove_if_done(&mut self, at: u32) {
        let done = |instance: &Instance| instance.orphan && instance.pipe.packets() == 0;
        if self.instances[at as usize].as_ref().is_some_and(done) {
            self.instances[at as usize] = None;
            self.free.push(at);
        }
    }

    /// Moves packets that have arrived by `now` to the outputs.
    #[inline]
    pub fn advance(&mut self, pool: &mut Pool, now: Nanos) {
        while let Some(&Reverse((due, at))) = self.timers.peek().filter(|Reverse((due, _))| *due <= now) {
            self.timers.pop();
            let Some(instance) = &mut self.instances[at as usize] else { continue };
            if instance.scheduled != Some(due) {
                continue;
            }
            instance.scheduled = None;
            // By their times across links, however late the caller is.
            self.drain(pool, at, |pipe, pool| pipe.take_due(pool, due));
            self.schedule(pool, at);
            self.remove_if_done(at);
        }
    }

    /// Moves packets of a link to the outputs.
    #[inline]
    fn drain(&mut self, pool: &mut Pool, at: u32, mut take: impl FnMut(&mut Pipe, &mut Pool) -> Option<Packet>) {
        let Some(instance) = &mut self.instances[at as usize] else { return };
        let (before, dropped) = (instance.pipe.packets(), instance.pipe.counts.dropped());
        while let Some(packet) = take(&mut instance.pipe, pool) {
            let output = pool.tag(packet) as usize % self.out.len();
            self.out[output].push(pool, packet);
        }
        let after = instance.pipe.packets();
        self.held = self.held + after - before;
        add(&instance.counters.dropped, instance.pipe.counts.dropped() - dropped);
        add_signed(&instance.counters.held, before, after);
    }

    /// Moves all packets to the outputs: the shaper ends.
    pub fn end(&mut self, pool: &mut Pool) {
        for at in 0..self.instances.len() as u32 {
            self.drain(pool, at, Pipe::take_any);
        }
    }

    /// Returns the first packet of an output.
    #[inline]
    pub fn first(&self, output: usize) -> Option<Packet> {
        self.out[output].first()
    }

    /// Takes the first packet of an output.
    #[inline]
    pub fn take(&mut self, pool: &Pool, output: usize) -> Option<Packet> {
        self.out[output].pop(pool)
    }

    /// Returns when [`Shaper::advance`] is due.
    #[inline]
    pub fn next_due(&self) -> Option<Nanos> {
        self.timers.peek().map(|Reverse((due, _))| *due)
    }
}

/// Adds to a counter that only this thread writes.
fn add(counter: &AtomicU64, n: u64) {
    if n > 0 {
        counter.store(counter.load(Relaxed).wrapping_add(n), Relaxed);
    }
}

/// Adds the difference of two numbers of packets.
fn add_signed(counter: &AtomicU64, before: usize, after: usize) {
    let value = counter.load(Relaxed).wrapping_add(after as u64).wrapping_sub(before as u64);
    counter.store(value, Relaxed);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::link::Rate;
    use crate::{Delay, MILLISECOND, SECOND};

    fn node(bits: u64, delay: Nanos, mask: Mask, revision: u64) -> Node {
        let config = PipeConfig { rate: Rate::Bits(bits), delay: Delay::Constant(delay), ..PipeConfig::default() };
        Node { config, mask, max_flows: 4, revision, counters: Arc::default() }
    }

    fn send(shaper: &mut Shaper, pool: &mut Pool, target: Target, src: u128, tag: u32, now: Nanos) -> bool {
        let packet = pool.allocate(1000, 0, tag, now).expect("room");
        shaper.enqueue(pool, packet, target, &FlowKey { src, ..FlowKey::default() }, now).is_ok()
    }

    /// Times at which packets of an output arrive.
    fn receive(shaper: &mut Shaper, pool: &mut Pool, output: usize, until: Nanos) -> Vec<Nanos> {
        shaper.advance(pool, until);
        let mut times = Vec::new();
        while let Some(packet) = shaper.take(pool, output) {
            times.push(pool.due(packet) / MILLISECOND);
            pool.free(packet);
        }
        times
    }

    #[test]
    fn each_flow_of_a_mask_has_the_whole_bandwidth() {
        let (mut shaper, mut pool, mut plan) = (Shaper::new(2), Pool::new(1 << 20), Plan::default());
        let by_source = Mask { v4: [!0, 0], ..Mask::default() };
        plan.add_pipe(7, node(8_000_000, 0, by_source, 1));
        plan.add_pipe(3, node(8_000_000, 0, Mask::default(), 2));
        shaper.update(plan.into(), 0);
        for i in 0..4 {
            assert!(send(&mut shaper, &mut pool, Target::Pipe(7), i % 2, 0, 0));
            assert!(send(&mut shaper, &mut pool, Target::Pipe(3), i % 2, 1, 0));
        }
        assert!(!send(&mut shaper, &mut pool, Target::Pipe(8), 0, 0, 0), "no such link");
        assert!(!send(&mut shaper, &mut pool, Target::Queue(7), 0, 0, 0), "no such queue");
        assert_eq!((shaper.packets(), shaper.next_due()), (8, Some(MILLISECOND)));
        assert_eq!(receive(&mut shaper, &mut pool, 0, SECOND), [1, 1, 2, 2]);
        assert_eq!(receive(&mut shaper, &mut pool, 1, SECOND), [1, 2, 3, 4]);
        assert_eq!((shaper.packets(), pool.packets()), (0, 0));
    }

    #[test]
    fn a_changed_link_still_delivers_and_others_keep_their_state() {
        let (mut shaper, mut pool) = (Shaper::new(2), Pool::new(1 << 20));
        let plan = |delay, revision| {
            let mut plan = Plan::default();
            plan.add_pipe(1, node(8_000_000, delay, Mask::default(), revision));
            plan.add_pipe(2, node(8_000_000, 0, Mask::default(), 99));
            Arc::new(plan)
        };
        shaper.update(plan(50 * MILLISECOND, 1), 0);
        for number in [1, 2] {
            assert!(send(&mut shaper, &mut pool, Target::Pipe(number), 0, u32::from(number == 2), 0));
        }
        shaper.update(plan(10 * MILLISECOND, 2), 0);
        for number in [1, 2] {
            assert!(send(&mut shaper, &mut pool, Target::Pipe(number), 0, u32::from(number == 2), 0));
        }
        assert_eq!(receive(&mut shaper, &mut pool, 0, SECOND), [11, 51]);
        assert_eq!(receive(&mut shaper, &mut pool, 1, SECOND), [1, 2], "one link, not two");
        shaper.update(Arc::default(), 0);
        assert!(!send(&mut shaper, &mut pool, Target::Pipe(1), 0, 0, 0));
        assert_eq!((shaper.instances.iter().flatten().count(), pool.packets()), (0, 0));
    }

    #[test]
    fn flows_beyond_the_maximum_share_and_the_end_gives_all_packets() {
        let (mut shaper, mut pool, mut plan) = (Shaper::new(2), Pool::new(1 << 20), Plan::default());
        plan.add_pipe(1, node(8000, SECOND, Mask::ALL, 1));
        shaper.update(plan.into(), 0);
        assert!((0..40).all(|src| send(&mut shaper, &mut pool, Target::Pipe(1), src, 0, 0)));
        assert_eq!((shaper.instances.len(), shaper.packets()), (4, 40));
        shaper.end(&mut pool);
        assert_eq!(receive(&mut shaper, &mut pool, 0, 0).len(), 40);
        assert_eq!((shaper.packets(), pool.packets()), (0, 0));
    }
}
