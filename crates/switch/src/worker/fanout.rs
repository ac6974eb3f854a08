//! Packets of one slot each that follow each other to different stations: where each goes is decided in one pass, which only
//! reads their headers; then they are copied, one destination after the other.
//!
//! What is not so plain is moved [one by one](mod@super::batch): packets of several slots, to all, to a named port, or to one
//! that does not just [take copies](super::super::port::Attached::takes_copies).

use unetmap_mem::{NOT_PLAIN, SlotHead, Span};

use crate::forward::{BATCH, HEADER, Packet, Target};
use crate::fdb::Mac;
use crate::port::{Sent, Served};
use super::View;
use super::batch::{AHEAD, target};

/// Places of a list: one for each packet of a batch, and a cache line more, as lists that all begin at the same distance
/// from a page's start would be in each other's way.
const ROW: usize = BATCH + 8;
/// No place.
const NONE: u32 = u32::MAX;

/// Packets by destination.
pub(crate) struct Spread {
    /// Where the next packet to each port is listed.
    next: [u32; 256],
    /// The ports that have lists, in the order of the lists.
    ports: Vec<u8>,
    /// One list after the other, each of [`ROW`] places.
    packets: Vec<SlotHead>,
}

impl Default for Spread {
    fn default() -> Spread {
        Spread { next: [NONE; 256], ports: Vec::new(), packets: Vec::new() }
    }
}

impl Spread {
    fn clear(&mut self) {
        for port in self.ports.drain(..) {
            self.next[usize::from(port)] = NONE;
        }
    }

    /// Lists a packet to a port that has a list; `false` if it has none.
    #[inline(always)]
    fn add(&mut self, to: u8, packet: SlotHead) -> bool {
        let next = &mut self.next[usize::from(to)];
        let Some(place) = self.packets.get_mut(*next as usize) else { return false };
        *place = packet;
        *next += 1;
        true
    }

    /// Begins the list of a port that has none.
    #[cold]
    #[inline(never)]
    fn begin(&mut self, to: u8) {
        let first = self.ports.len() * ROW;
        if first == self.packets.len() {
            self.packets.resize(first + ROW, SlotHead::default());
        }
        self.ports.push(to);
        self.next[usize::from(to)] = first as u32;
    }

    /// The lists by port.
    fn lists(&self) -> impl Iterator<Item = (u8, &[SlotHead])> {
        self.ports.iter().zip(self.packets.chunks(ROW)).map(|(&port, list)| {
            let len = self.next[usize::from(port)] as usize % ROW;
            (port, &list[..len])
        })
    }
}

/// Moves packets of a batch whose slots are all good, from the first on. Returns how many slots that were: what follows is not so
/// plain.
pub(crate) fn serve(spread: &mut Spread, view: &View, served: &Served<'_>, sent: &mut Sent) -> u32 {
    spread.clear();
    let done = list(spread, view, served, sent);
    for (to, packets) in spread.lists() {
        if let Some(to) = view.member(to) {
            to.deliver_some(served, packets);
        }
    }
    done
}

/// Lists the packets of a batch, as far as they are plain; how many those are.
#[inline(always)]
fn list(spread: &mut Spread, view: &View, served: &Served<'_>, sent: &mut Sent) -> u32 {
    let Served { port, batch, .. } = served;
    let (table, slots, n) = (&*view.table, batch.slots, batch.slots.slots());
    let mut source = sent.memory.source(table);
    let mut done = 0;
    for run in n.runs(Span { from: batch.start, to: batch.at(batch.len) }) {
        let fetch = |at| port.region.fetch(slots.buf_idx(at));
        let mut ahead = n.run(run);
        ahead.by_ref().take(AHEAD as usize).for_each(fetch);
        for at in n.run(run) {
            let head = slots.head(at);
            if head.flags() & NOT_PLAIN != 0 || head.len() < HEADER {
                return done;
            }
            ahead.next().into_iter().for_each(fetch);
            let (destination, from) = Mac::pair(port.region.frame(head.buf_idx()).header(), 0);
            // A list is begun by a packet that takes the longer way.
            let known = source == Some(from) && !destination.is_multicast();
            let listed = known && table.port_of(destination).is_some_and(|to| spread.add(to, head));
            if !listed {
                let at = Packet { at: done as u16, frags: 1 };
                if !list_asked(spread, view, served, sent, (at, head)) {
                    return done;
                }
                source = sent.memory.source(table);
            }
            done += 1;
        }
    }
    done
}

/// Lists a packet that nothing is known about yet, or that begins a list; `false` if it is not so plain.
#[cold]
#[inline(never)]
fn list_asked(
    spread: &mut Spread,
    view: &View,
    served: &Served<'_>,
    sent: &mut Sent,
    (at, head): (Packet, SlotHead),
) -> bool {
    let to = match target(view, served, &mut sent.memory, at) {
        Target::Port(to) => view.member(to),
        Target::All => view.only_other(served.port.index),
        Target::Nowhere(why) => {
            served.ring.lose(why);
            return true;
        }
    };
    let Some(to) = to.filter(|to| to.takes_copies(served)) else { return false };
    if !spread.add(to.index, head) {
        spread.begin(to.index);
        spread.add(to.index, head);
    }
    true
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lists(spread: &Spread) -> Vec<(u8, usize)> {
        spread.lists().map(|(port, list)| (port, list.len())).collect()
    }

    #[test]
    fn each_port_has_a_list_for_a_batch() {
        let mut spread = Spread::default();
        for ports in [[0, 7, 253], [253, 1, 0]] {
            assert!(ports.iter().all(|&port| !spread.add(port, SlotHead::default())), "lists of the batch before");
            for (port, n) in ports.into_iter().zip([BATCH, 0, 3]) {
                spread.begin(port);
                assert!((0..n).all(|_| spread.add(port, SlotHead::default())));
            }
            assert_eq!(lists(&spread), [(ports[0], BATCH), (ports[1], 0), (ports[2], 3)]);
            spread.clear();
            assert_eq!(lists(&spread), []);
        }
    }
}
