// SPDX-License-Identifier: BSD-2-Clause
//! Strict priority: a flow sends only while no flow of a class with a smaller weight has packets. Flows of equal weight
//! send a packet each in turn.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use super::Queues;
use crate::pool::Packet;

#[derive(Clone, Debug)]
pub(crate) struct Priority {
    /// Flows with packets: weight, turn, flow.
    waiting: BinaryHeap<Reverse<(u32, u64, u32)>>,
    turn: u64,
}

impl Priority {
    /// Makes one for at most `max` flows.
    pub(crate) fn new(max: usize) -> Priority {
        Priority { waiting: BinaryHeap::with_capacity(max), turn: 0 }
    }

    /// A flow's queue is no longer empty.
    pub(crate) fn activate(&mut self, flow: u32, queues: &mut Queues<'_>) {
        self.turn += 1;
        self.waiting.push(Reverse((queues.weight(flow), self.turn, flow)));
    }

    pub(crate) fn dequeue(&mut self, queues: &mut Queues<'_>) -> Option<Packet> {
        loop {
            let Reverse((_, _, flow)) = self.waiting.pop()?;
            // A queue's manager may have dropped all of its packets.
            let packet = queues.dequeue(flow);
            if !queues.flows[flow as usize].queue.is_empty() {
                self.activate(flow, queues);
            }
            if packet.is_some() {
                return packet;
            }
        }
    }
}
