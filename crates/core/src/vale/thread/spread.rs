//! Packets of one slot each that follow each other to different stations: where each goes is decided in one pass, which only
//! reads their headers; then they are copied, one destination after the other.
//!
//! What is not so plain is left to [`one_by_one`](super::one_by_one): packets of several slots, to all, to a named port, or to
//! one that does not just [take copies](Attached::takes_copies).

use unetmap_abi::NS_MOREFRAG;
use unetmap_mem::{SlotHead, Span};

use super::super::forward::{BATCH, HEADER, Packet, Target, decide_known};
use super::super::patience::Patience;
use super::super::port::{Attached, Batch, Outgoing, Sent};
use super::{AHEAD, View, target};

/// In a slot's flags: more slots belong to the packet, or it names its port.
const NOT_PLAIN: u16 = NS_MOREFRAG | 0xff00;
/// No list.
const NONE: u8 = u8::MAX;

/// Packets by destination.
pub(super) struct Spread {
    /// The list of each port.
    number: [u8; 256],
    lists: Vec<List>,
    /// How many of them are in use.
    used: usize,
}

struct List {
    port: u8,
    len: usize,
    packets: [SlotHead; BATCH],
}

impl Default for Spread {
    fn default() -> Spread {
        Spread { number: [NONE; 256], lists: Vec::new(), used: 0 }
    }
}

impl Spread {
    fn clear(&mut self) {
        for list in &self.lists[..self.used] {
            self.number[usize::from(list.port)] = NONE;
        }
        self.used = 0;
    }

    /// The list of a port that has none yet, if the port just takes copies. There are fewer ports than [`NONE`].
    #[inline(never)]
    fn begin(&mut self, to: u8, good: bool) -> u8 {
        if !good {
            return NONE;
        }
        let number = self.used;
        if number == self.lists.len() {
            self.lists.push(List { port: to, len: 0, packets: [SlotHead::default(); BATCH] });
        }
        (self.lists[number].port, self.lists[number].len) = (to, 0);
        self.used += 1;
        self.number[usize::from(to)] = number as u8;
        number as u8
    }
}

/// Moves packets of a batch whose slots are all good, from the first on. Returns how many slots that were: what follows is not so
/// plain.
pub(super) fn serve(
    spread: &mut Spread,
    view: &View,
    port: &Attached,
    (number, ring): (usize, &Outgoing),
    sent: &mut Sent,
    batch: &Batch<'_>,
    patience: &Patience,
) -> u32 {
    spread.clear();
    let done = list(spread, view, port, (number, ring), sent, batch);
    for list in &spread.lists[..spread.used] {
        if let Some(to) = view.member(list.port) {
            to.deliver_some(port, number, &list.packets[..list.len.min(BATCH)], patience);
        }
    }
    done
}

/// Lists the packets of a batch, as far as they are plain; how many those are.
#[inline(always)]
fn list(
    spread: &mut Spread,
    view: &View,
    port: &Attached,
    (number, ring): (usize, &Outgoing),
    sent: &mut Sent,
    batch: &Batch<'_>,
) -> u32 {
    let (slots, n) = (batch.slots, batch.slots.slots());
    let mut done = 0;
    for run in n.runs(Span { from: batch.start, to: batch.at(batch.len) }) {
        for at in n.run(run) {
            let head = slots.head(at);
            if head.flags() & NOT_PLAIN != 0 || head.len() < HEADER {
                return done;
            }
            // Behind the end of the batch it is whatever was there before.
            port.region.fetch(slots.buf_idx(n.add(at, AHEAD.min(n.get()))));
            let header = port.region.frame(head.buf_idx()).header();
            let known = decide_known(&view.table, &sent.memory, port.index, header);
            let to = match known.unwrap_or_else(|| asked(view, port, sent, batch, done)) {
                Target::Port(to) => to,
                Target::All => match view.only_other(port.index) {
                    Some(to) => to.index,
                    None => return done,
                },
                Target::Nowhere(why) => {
                    ring.lose(why);
                    done += 1;
                    continue;
                }
            };
            let mut list = spread.number[usize::from(to)];
            if list == NONE {
                list = spread.begin(to, view.member(to).is_some_and(|to| to.takes_copies(port, number)));
            }
            let Some(list) = spread.lists.get_mut(usize::from(list)) else { return done };
            list.packets[list.len % BATCH] = head;
            list.len += 1;
            done += 1;
        }
    }
    done
}

/// Where a packet goes that its source knows nothing about yet.
#[cold]
#[inline(never)]
fn asked(view: &View, port: &Attached, sent: &mut Sent, batch: &Batch<'_>, at: u32) -> Target {
    target(view, port, &mut sent.memory, batch, Packet { at: at as u16, frags: 1 })
}
