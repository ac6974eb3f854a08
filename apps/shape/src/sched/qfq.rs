// SPDX-License-Identifier: BSD-2-Clause
//! QFQ (Checconi, Rizzo and Valente, 2013): WF2Q+ in constant time. Flows are in groups by their weight, and a flow's
//! virtual start is rounded down to a slot of its group, so that flows need not be sorted. Of the groups whose first
//! slot begins not after the virtual time, the one whose first slot ends earliest sends.
//!
//! ```text
//! group g:  slot = start >> (LEAST_SHIFT + g)     [first .. first + SLOTS): lists of flows, in a ring
//!           a slot ends, for the choice, two slots after it begins
//! ```
//! The authors find that group by four bitmaps of groups; there are so few that this looks at each.

use super::wf2q::{FRACTION, virtual_time};
use super::{Flow, Queues};
use crate::pool::{NONE, Packet};

/// Bytes of a packet that a slot of its flow's group has room for. A flow with longer packets skips slots.
const PACKET: u64 = 2048;
/// Digits of the slots of the greatest weight, 65,536.
const LEAST_SHIFT: u32 = 27;
/// Groups, each of flows with at most twice the weight of the next one's.
const GROUPS: usize = 17;
/// Slots of a group. A start is at most 33 slots after the virtual time, as the longest packet has 64 KiB, and the
/// first slot begins at most two before it.
const SLOTS: u64 = 64;

#[derive(Clone, Debug)]
struct Group {
    /// First flow of each slot.
    flows: [u32; SLOTS as usize],
    /// Bit `slot % SLOTS`: the slot has flows.
    used: u64,
    /// Number of the first slot that has flows.
    first: u64,
}

#[derive(Clone, Debug)]
pub(crate) struct Qfq {
    time: u128,
    /// Sum of the weights of flows that have packets.
    weights: u64,
    groups: Box<[Group; GROUPS]>,
    /// Bits of groups that have flows.
    used: u32,
}

/// Returns the group of flows with this weight.
fn group_of(weight: u32) -> usize {
    let slot = (PACKET << FRACTION) / u64::from(weight.max(1));
    slot.next_power_of_two().trailing_zeros().saturating_sub(LEAST_SHIFT).min(GROUPS as u32 - 1) as usize
}

fn shift(group: usize) -> u32 {
    LEAST_SHIFT + group as u32
}

impl Qfq {
    pub(crate) fn new() -> Qfq {
        let group = Group { flows: [NONE; SLOTS as usize], used: 0, first: 0 };
        Qfq { time: 0, weights: 0, groups: Box::new(std::array::from_fn(|_| group.clone())), used: 0 }
    }

    /// Whether a flow without packets can be forgotten: it is neither ahead of its share nor behind it.
    pub(crate) fn is_past(&self, flow: &Flow) -> bool {
        flow.finish <= self.time
    }

    /// A flow's queue is no longer empty.
    pub(crate) fn activate(&mut self, flow: u32, queues: &mut Queues<'_>) {
        self.weights += u64::from(queues.weight(flow));
        let state = &mut queues.flows[flow as usize];
        state.start = state.finish.max(self.time);
        self.insert(flow, queues);
    }

    /// Puts a flow in the slot of its start.
    fn insert(&mut self, flow: u32, queues: &mut Queues<'_>) {
        let index = group_of(queues.weight(flow));
        let (group, state) = (&mut self.groups[index], &mut queues.flows[flow as usize]);
        let mut slot = (state.start >> shift(index)) as u64;
        if group.used == 0 || slot < group.first {
            group.first = slot;
        }
        debug_assert!(slot - group.first < SLOTS, "{slot} after {}", group.first);
        slot = slot.min(group.first + SLOTS - 1);
        state.next = std::mem::replace(&mut group.flows[(slot % SLOTS) as usize], flow);
        group.used |= 1 << (slot % SLOTS);
        self.used |= 1 << index;
    }

    /// Takes the first flow of a group out of it.
    fn remove(&mut self, index: usize, queues: &mut Queues<'_>) -> u32 {
        let group = &mut self.groups[index];
        let at = (group.first % SLOTS) as usize;
        let flow = group.flows[at];
        group.flows[at] = std::mem::replace(&mut queues.flows[flow as usize].next, NONE);
        if group.flows[at] == NONE {
            group.used &= !(1 << at);
            match group.used {
                0 => self.used &= !(1 << index),
                used => group.first += u64::from(used.rotate_right(at as u32).trailing_zeros()),
            }
        }
        flow
    }

    /// Returns the group that sends next. The virtual time goes on to the earliest start if all are after it.
    fn choose(&mut self) -> Option<usize> {
        let (mut best, mut earliest) = (None, u128::MAX);
        let mut left = self.used;
        while left != 0 {
            let index = left.trailing_zeros() as usize;
            left &= left - 1;
            let begin = |slot: u64| u128::from(slot) << shift(index);
            let first = self.groups[index].first;
            earliest = earliest.min(begin(first));
            let end = begin(first + 2);
            if begin(first) <= self.time && best.is_none_or(|(other, _)| end < other) {
                best = Some((end, index));
            }
        }
        if best.is_none() && self.used != 0 {
            self.time = earliest;
            return self.choose();
        }
        best.map(|(_, index)| index)
    }

    pub(crate) fn dequeue(&mut self, queues: &mut Queues<'_>) -> Option<Packet> {
        loop {
            let index = self.choose()?;
            let flow = self.remove(index, queues);
            let packet = queues.dequeue(flow);
            let weight = u64::from(queues.weight(flow));
            let state = &mut queues.flows[flow as usize];
            if let Some(packet) = packet {
                let len = queues.pool.len(packet);
                state.finish = state.start + virtual_time(len, weight);
                state.start = state.finish;
                self.time += virtual_time(len, self.weights);
            }
            match state.queue.is_empty() {
                false => self.insert(flow, queues),
                true => self.weights -= weight,
            }
            if packet.is_some() {
                return packet;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_packet_fits_into_a_slot_of_its_flows_group() {
        for weight in [1, 2, 3, 100, 1 << 15, 65_535, 1 << 16] {
            let slot = 1u64 << shift(group_of(weight));
            let packet = (PACKET << FRACTION) / u64::from(weight);
            assert!((packet..2 * packet).contains(&slot) || slot == packet, "{weight}: {slot}, {packet}");
        }
        assert_eq!((group_of(1), group_of(1 << 16)), (GROUPS - 1, 0));
    }
}
