// SPDX-License-Identifier: BSD-2-Clause
//! Fan-out: consecutive single-slot packets to different destinations. One pass reads their headers and lists them by
//! destination; then they are copied, one destination after the other.
//!
//! The path ends at the first packet of another kind, which goes packet by packet (`batch.rs`) with the rest of its
//! batch: a packet of several slots, a flooded one, one to a port named in the slot, or one to a port that does not
//! [accept copies](crate::port::SwitchPort::accepts_copies).

use unetmap_mem::{RUN_BREAK_FLAGS, SlotHead, Span};

use super::config::SwitchConfig;
use super::resolve::resolve_target;
use crate::fdb::ETHERNET_HEADER;
use crate::fdb::Mac;
use crate::forward::{Packet, Target};
use crate::port::{BatchContext, TxState};
use crate::tuning::{BATCH_SLOTS, ENTRY_PREFETCH_SLOTS, HEADER_PREFETCH_SLOTS};

/// Elements of a list: one for each packet of a batch, and a cache line more, since lists that begin at the same
/// distance from the start of a page would compete for the same cache sets.
const LIST_STRIDE: usize = BATCH_SLOTS + 8;
/// No element.
const NONE: u32 = u32::MAX;

/// Packets by destination.
pub(crate) struct FanoutLists {
    /// Index in `packets` of the next packet to each port.
    next: [u32; 256],
    /// The ports that have lists, in the order of the lists.
    ports: Vec<u8>,
    /// One list after the other, each of [`LIST_STRIDE`] elements.
    packets: Vec<SlotHead>,
}

impl Default for FanoutLists {
    fn default() -> FanoutLists {
        FanoutLists { next: [NONE; 256], ports: Vec::new(), packets: Vec::new() }
    }
}

impl FanoutLists {
    fn clear(&mut self) {
        for port in self.ports.drain(..) {
            self.next[usize::from(port)] = NONE;
        }
    }

    /// Adds a packet to the list of a port; `false` if the port has none.
    #[inline(always)]
    fn add(&mut self, to: u8, packet: SlotHead) -> bool {
        let next = &mut self.next[usize::from(to)];
        let Some(element) = self.packets.get_mut(*next as usize) else { return false };
        *element = packet;
        *next += 1;
        true
    }

    /// Begins the list of a port that has none.
    #[cold]
    #[inline(never)]
    fn begin_list(&mut self, to: u8) {
        let first = self.ports.len() * LIST_STRIDE;
        if first == self.packets.len() {
            self.packets.resize(first + LIST_STRIDE, SlotHead::default());
        }
        self.ports.push(to);
        self.next[usize::from(to)] = first as u32;
    }

    /// Returns the lists by port.
    fn lists(&self) -> impl Iterator<Item = (u8, &[SlotHead])> {
        self.ports.iter().zip(self.packets.chunks(LIST_STRIDE)).map(|(&port, list)| {
            let len = self.next[usize::from(port)] as usize % LIST_STRIDE;
            (port, &list[..len])
        })
    }
}

/// Forwards packets of a batch without invalid slots, from the first on. Returns how many slots that were; the next
/// packet is of another kind.
pub(crate) fn serve(
    lists: &mut FanoutLists,
    switch: &SwitchConfig,
    context: &BatchContext<'_>,
    state: &mut TxState,
) -> u32 {
    lists.clear();
    let done = list(lists, switch, context, state);
    for (to, packets) in lists.lists() {
        if let Some(to) = switch.member(to) {
            context.ring.count_copies(packets.len() as u64);
            to.deliver_copies(context, packets);
        }
    }
    done
}

/// Lists the packets of a batch up to the first one of another kind; returns how many.
#[inline(always)]
fn list(lists: &mut FanoutLists, switch: &SwitchConfig, context: &BatchContext<'_>, state: &mut TxState) -> u32 {
    let BatchContext { port, batch, .. } = context;
    let (table, slots, n) = (&*switch.table, batch.slots, batch.slots.slots());
    let (mut source, mut done, is_large) = (state.cache.source(table), 0, table.is_large());
    for run in n.runs(Span { from: batch.start, to: batch.at(batch.len) }) {
        let fetch = |at| port.region.prefetch(slots.buf_idx(at));
        let addresses = |at| Mac::pair(port.region.frame(slots.buf_idx(at)).header(), 0);
        let (mut ahead, mut near) = (n.run(run), is_large.then(|| n.run(run)));
        ahead.by_ref().take(HEADER_PREFETCH_SLOTS as usize).for_each(fetch);
        near.iter_mut().flatten().take(ENTRY_PREFETCH_SLOTS as usize).for_each(drop);
        for at in n.run(run) {
            let head = slots.head(at);
            if head.flags() & RUN_BREAK_FLAGS != 0 || head.len() < ETHERNET_HEADER {
                return done;
            }
            ahead.next().into_iter().for_each(fetch);
            if let Some(at) = near.as_mut().and_then(Iterator::next) {
                let (destination, from) = addresses(at);
                table.prefetch(destination);
                table.prefetch(from);
            }
            let (destination, from) = Mac::pair(port.region.frame(head.buf_idx()).header(), 0);
            if source != Some(from) && table.has_learned(from, port.index()) {
                source = Some(from);
            }
            // The first packet to a port takes the slow path below, which begins the list.
            let known = source == Some(from) && !destination.is_multicast();
            let listed = known && table.port_of(destination).is_some_and(|to| lists.add(to, head));
            if !listed {
                let at = Packet { at: done as u16, frags: 1 };
                if !list_resolved(lists, switch, context, state, (at, head)) {
                    return done;
                }
                source = state.cache.source(table);
            }
            done += 1;
        }
    }
    done
}

/// Lists a packet whose source is not known, or that begins a list; `false` if it is of another kind.
#[cold]
#[inline(never)]
fn list_resolved(
    lists: &mut FanoutLists,
    switch: &SwitchConfig,
    context: &BatchContext<'_>,
    state: &mut TxState,
    (at, head): (Packet, SlotHead),
) -> bool {
    let to = match resolve_target(switch, context, &mut state.cache, at) {
        Target::Port(to) => switch.member(to),
        Target::Flood => switch.only_other(context.port.index()),
        Target::Drop(reason) => {
            context.ring.count_drop(reason);
            return true;
        }
    };
    let Some(to) = to.filter(|to| to.accepts_copies(context)) else { return false };
    if !lists.add(to.index(), head) {
        lists.begin_list(to.index());
        lists.add(to.index(), head);
    }
    true
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lengths(lists: &FanoutLists) -> Vec<(u8, usize)> {
        lists.lists().map(|(port, list)| (port, list.len())).collect()
    }

    #[test]
    fn lists_are_empty_after_clear_and_hold_a_whole_batch() {
        let mut lists = FanoutLists::default();
        for ports in [[0, 7, 253], [253, 1, 0]] {
            assert!(
                ports.iter().all(|&port| !lists.add(port, SlotHead::default())),
                "a list of the previous batch is left"
            );
            for (port, n) in ports.into_iter().zip([BATCH_SLOTS, 0, 3]) {
                lists.begin_list(port);
                assert!((0..n).all(|_| lists.add(port, SlotHead::default())));
            }
            assert_eq!(lengths(&lists), [(ports[0], BATCH_SLOTS), (ports[1], 0), (ports[2], 3)]);
            lists.clear();
            assert_eq!(lengths(&lists), []);
        }
    }
}
