// SPDX-License-Identifier: BSD-2-Clause
//! WF2Q+ (Bennett and Zhang, 1997). Each flow's first packet has a virtual start and finish; of the flows whose start
//! is not after the virtual time, the one with the earliest finish is sent. No flow gets ahead of its share, or behind,
//! by more than a packet.
//!
//! ```text
//! start  = max(virtual time, the flow's last finish)      finish = start + length / weight
//! the virtual time advances by length / (sum of weights) with each packet, and is never before the earliest start
//! ```

use super::{Flow, Queues};
use crate::heap::FlowHeap;
use crate::pool::Packet;

/// Binary digits of a virtual time after the point.
pub(super) const FRACTION: u32 = 32;

#[derive(Clone, Debug)]
pub(crate) struct Wf2q {
    time: u128,
    /// Sum of the weights of flows that have packets, or whose last finish is not past.
    weights: u64,
    /// Flows whose start is not after the virtual time, by finish.
    eligible: FlowHeap,
    /// Flows whose start is after it, by start.
    waiting: FlowHeap,
    /// Flows without packets whose last finish is after it, by that.
    idle: FlowHeap,
}

impl Wf2q {
    pub(crate) fn new(flows: usize) -> Wf2q {
        let heap = || FlowHeap::new(flows);
        Wf2q { time: 0, weights: 0, eligible: heap(), waiting: heap(), idle: heap() }
    }

    /// Whether a flow without packets can be forgotten: it is neither ahead of its share nor behind it.
    pub(crate) fn is_past(&self, flow: &Flow) -> bool {
        flow.finish <= self.time
    }

    /// A flow's queue is no longer empty.
    pub(crate) fn activate(&mut self, flow: u32, queues: &mut Queues<'_>) {
        if !self.idle.remove(flow) {
            self.weights += u64::from(queues.weight(flow));
        }
        let state = &mut queues.flows[flow as usize];
        state.start = state.finish.max(self.time);
        if self.eligible.is_empty() && self.waiting.is_empty() {
            self.time = self.time.max(state.start);
        }
        self.place(flow, queues);
    }

    /// Puts a flow with packets in the heap of its start.
    fn place(&mut self, flow: u32, queues: &Queues<'_>) {
        let state = &queues.flows[flow as usize];
        if state.start > self.time {
            self.waiting.push(flow, state.start);
            return;
        }
        let len = state.queue.first().map_or(0, |packet| queues.pool.len(packet));
        self.eligible.push(flow, state.start + virtual_time(len, queues.weight(flow).into()));
    }

    pub(crate) fn dequeue(&mut self, queues: &mut Queues<'_>) -> Option<Packet> {
        loop {
            self.make_eligible(queues);
            let (_, flow) = self.eligible.pop()?;
            let packet = queues.dequeue(flow);
            let weight = u64::from(queues.weight(flow));
            if let Some(packet) = packet {
                let len = queues.pool.len(packet);
                let state = &mut queues.flows[flow as usize];
                state.finish = state.start + virtual_time(len, weight);
                self.time += virtual_time(len, self.weights);
            }
            let state = &mut queues.flows[flow as usize];
            if !state.queue.is_empty() {
                state.start = state.finish;
                self.place(flow, queues);
            } else if state.finish > self.time {
                self.idle.push(flow, state.finish);
            } else {
                self.weights -= weight;
            }
            self.forget(queues);
            if packet.is_some() {
                return packet;
            }
        }
    }

    /// Moves flows whose start has come.
    fn make_eligible(&mut self, queues: &Queues<'_>) {
        if self.eligible.is_empty()
            && let Some((start, _)) = self.waiting.first()
        {
            self.time = self.time.max(start);
        }
        while let Some((start, flow)) = self.waiting.first().filter(|(start, _)| *start <= self.time) {
            debug_assert!(start <= self.time);
            self.waiting.pop();
            self.place(flow, queues);
        }
    }

    /// Forgets the weights of flows whose last finish is past.
    fn forget(&mut self, queues: &Queues<'_>) {
        while let Some((_, flow)) = self.idle.first().filter(|(finish, _)| *finish <= self.time) {
            self.idle.pop();
            self.weights -= u64::from(queues.weight(flow));
        }
        if self.eligible.is_empty() && self.waiting.is_empty() {
            // Nothing is sent, so no flow is served before another one.
            while let Some((finish, flow)) = self.idle.pop() {
                self.time = self.time.max(finish);
                self.weights -= u64::from(queues.weight(flow));
            }
        }
    }
}

/// Returns the virtual time that a packet takes.
pub(super) fn virtual_time(len: u32, weight: u64) -> u128 {
    (u128::from(len) << FRACTION) / u128::from(weight.max(1))
}
