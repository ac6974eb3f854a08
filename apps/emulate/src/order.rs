// SPDX-License-Identifier: BSD-2-Clause
//! Counts packets that a later packet of their flow has overtaken, as RFC 4737 does: what a receiver sees as
//! reordering.

use unetmap_shape::{FlowKey, FlowMap};

/// Flows that are told apart. Further ones are counted together with another.
const FLOWS: usize = 65_536;

/// A packet on the link: its place in the order of arrival at the link, from 1; whether a copy of it has left; its
/// flow. One word, of which zero is no packet, so that the kernel gives memory only for what is used.
#[derive(Clone, Copy)]
struct Entry(u64);

const FLOW_BITS: u32 = FLOWS.ilog2();

impl Entry {
    fn new(order: u64, flow: usize) -> Entry {
        Entry(order << (FLOW_BITS + 1) | flow as u64)
    }

    fn order(self) -> u64 {
        self.0 >> (FLOW_BITS + 1)
    }

    fn has_left(self) -> bool {
        self.0 >> FLOW_BITS & 1 != 0
    }

    fn flow(self) -> usize {
        self.0 as usize & (FLOWS - 1)
    }

    fn leave(self) -> Entry {
        Entry(self.0 | 1 << FLOW_BITS)
    }
}

/// The order in which packets came.
pub(crate) struct Order {
    flows: FlowMap,
    /// The last packet of each flow that has left, in the order of arrival.
    last: Vec<u64>,
    /// The latest packets, by the low bits of their order.
    entries: Vec<u64>,
    came: u64,
    overtaken: u64,
}

impl Order {
    /// `packets` is the number that the link can hold.
    pub(crate) fn new(packets: usize) -> Order {
        Order {
            flows: FlowMap::new(FLOWS, 0),
            last: vec![0; FLOWS],
            // Twice as many: some packets leave sooner than others that came before them, or are lost.
            entries: vec![0; (2 * packets).next_power_of_two()],
            came: 0,
            overtaken: 0,
        }
    }

    fn slot(&self, order: u64) -> usize {
        order as usize & (self.entries.len() - 1)
    }

    /// Takes note of a packet that came. Returns its tag, which its copies have, too.
    #[inline]
    pub(crate) fn came(&mut self, flow: &FlowKey) -> u32 {
        self.came += 1;
        let flow = self.flows.number(0, flow, |_| false).unwrap_or(0);
        let slot = self.slot(self.came);
        self.entries[slot] = Entry::new(self.came, flow).0;
        self.came as u32
    }

    /// Takes note of a packet that leaves the link.
    #[inline]
    pub(crate) fn leaves(&mut self, tag: u32) {
        let slot = self.slot(u64::from(tag));
        let entry = Entry(self.entries[slot]);
        // A second copy is no reordering. A packet that was replaced here was on the link for too long.
        if entry.order() as u32 != tag || entry.has_left() {
            return;
        }
        self.entries[slot] = entry.leave().0;
        let last = &mut self.last[entry.flow()];
        self.overtaken += u64::from(entry.order() < *last);
        *last = entry.order().max(*last);
    }

    /// Returns the number of packets that were overtaken.
    pub(crate) fn overtaken(&self) -> u64 {
        self.overtaken
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Lets packets of these flows come, and leave in an order given by their indexes. Returns how many were overtaken.
    fn overtaken(flows: &[u16], leave: &[usize]) -> u64 {
        let mut order = Order::new(4);
        let tags: Vec<u32> =
            flows.iter().map(|port| order.came(&FlowKey { src_port: *port, ..FlowKey::default() })).collect();
        leave.iter().for_each(|index| order.leaves(tags[*index]));
        order.overtaken()
    }

    #[test]
    fn packets_are_overtaken_by_later_ones_of_their_flow() {
        assert_eq!(overtaken(&[1; 4], &[0, 1, 2, 3]), 0);
        assert_eq!(overtaken(&[1; 4], &[3, 0, 1, 2]), 3, "one overtakes three");
        assert_eq!(overtaken(&[1; 4], &[1, 2, 3, 0]), 1);
        assert_eq!(overtaken(&[1, 2, 1, 2], &[2, 0, 3, 1]), 2);
        assert_eq!(overtaken(&[1, 1, 2, 2], &[2, 3, 0, 1]), 0, "another flow");
        assert_eq!(overtaken(&[1; 4], &[3, 1]), 1, "the others are lost");
    }

    #[test]
    fn copies_are_no_reordering() {
        assert_eq!(overtaken(&[1; 3], &[0, 0, 1, 2, 1]), 0);
        assert_eq!(overtaken(&[1; 3], &[2, 0, 0, 1]), 2);
    }

    #[test]
    fn a_packet_that_was_on_the_link_too_long_is_not_mistaken_for_another() {
        let mut leave: Vec<usize> = (1..20).collect();
        leave.push(0);
        assert_eq!(overtaken(&[1; 20], &leave), 0);
    }
}
