// SPDX-License-Identifier: BSD-2-Clause
//! Deficit round robin (Shreedhar and Varghese, 1995): each flow sends some bytes in its turn. FQ-CoDel and FQ-PIE (RFC
//! 8290) serve flows that have just begun before the others.

use super::Queues;
use crate::pool::{NONE, Packet};

/// Bytes that a flow of weight 1 sends in its turn.
const QUANTUM: u32 = 1500;

/// Flows in turn: a list, linked by [`super::Flow::next`].
#[derive(Clone, Copy, Debug)]
struct Turns {
    first: u32,
    last: u32,
}

impl Turns {
    fn push(&mut self, flow: u32, queues: &mut Queues<'_>) {
        // The last flow links to itself, so that a flow without a link is in no list.
        queues.flows[flow as usize].next = flow;
        match self.first {
            NONE => self.first = flow,
            _ => queues.flows[self.last as usize].next = flow,
        }
        self.last = flow;
    }

    fn pop(&mut self, queues: &mut Queues<'_>) {
        let flow = &mut queues.flows[self.first as usize];
        let next = std::mem::replace(&mut flow.next, NONE);
        self.first = if next == self.first { NONE } else { next };
    }
}

#[derive(Clone, Debug)]
pub(crate) struct RoundRobin {
    /// Flows that have just begun; only with a fixed quantum.
    new: Turns,
    old: Turns,
    /// Bytes of a turn; `None`: by weight.
    quantum: Option<u32>,
}

impl RoundRobin {
    pub(crate) fn new(quantum: Option<u32>) -> RoundRobin {
        let empty = Turns { first: NONE, last: NONE };
        RoundRobin { new: empty, old: empty, quantum }
    }

    fn quantum(&self, queues: &Queues<'_>, flow: u32) -> i64 {
        self.quantum.map_or_else(|| i64::from(QUANTUM) * i64::from(queues.weight(flow)), i64::from)
    }

    /// A flow's queue is no longer empty.
    pub(crate) fn activate(&mut self, flow: u32, queues: &mut Queues<'_>) {
        if queues.flows[flow as usize].next == NONE {
            queues.flows[flow as usize].deficit = self.quantum(queues, flow);
            let turns = if self.quantum.is_some() { &mut self.new } else { &mut self.old };
            turns.push(flow, queues);
        }
    }

    pub(crate) fn dequeue(&mut self, queues: &mut Queues<'_>) -> Option<Packet> {
        loop {
            let is_new = self.new.first != NONE;
            let turns = if is_new { &mut self.new } else { &mut self.old };
            let flow = turns.first;
            if flow == NONE {
                return None;
            }
            if queues.flows[flow as usize].deficit <= 0 {
                turns.pop(queues);
                let quantum = self.quantum(queues, flow);
                queues.flows[flow as usize].deficit += quantum;
                self.old.push(flow, queues);
                continue;
            }
            if let Some(packet) = queues.dequeue(flow) {
                queues.flows[flow as usize].deficit -= i64::from(queues.pool.len(packet));
                return Some(packet);
            }
            turns.pop(queues);
            // A flow that has just begun waits for one round, so that it does not begin anew with each packet.
            if is_new {
                self.old.push(flow, queues);
            }
        }
    }
}
