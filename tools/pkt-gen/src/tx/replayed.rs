//! Packets of a file, each whole in one slot: the fast way to replay them.
//!
//! Most rings come round with the very packet that a slot's buffer holds already: where as many packets as the file has fit
//! the ring a whole number of times, and nobody exchanged the buffer meanwhile. So for each slot it is kept what was
//! written there, and only what differs is written.

use unetmap::{Pos, SlotRef};
use unetmap_abi::{NS_BUF_CHANGED, NS_REPORT};

use super::{Batch, Fill, TxRing};
use crate::source::Replay;
use crate::worker::Worker;

/// What a slot's buffer holds.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Held {
    /// Index of the buffer.
    buffer: u32,
    /// Number of the packet, far below [`NOTHING`], as all are in memory; or that: none of ours.
    packet: u32,
}

const NOTHING: u32 = u32::MAX;

/// See the module.
pub(super) struct Replayed {
    /// With what precedes them, and how long that is: each fits a buffer.
    packets: Vec<Vec<u8>>,
    lens: Vec<u16>,
    /// Number of the packet to send next.
    next: usize,
    write: bool,
    /// By the ring's number, and slot.
    held: Vec<Vec<Held>>,
}

impl Replayed {
    /// Sends the packets of `replay`, each of which fits a buffer of the worker's port.
    pub(super) fn new(worker: &Worker<'_>, replay: Replay) -> Replayed {
        let packets = replay.into_prefixed(worker.config.vnet_hdr);
        let none = Held { buffer: 0, packet: NOTHING };
        let rings = worker.port.tx_rings().iter();
        Replayed {
            lens: packets.iter().map(|packet| packet.len() as u16).collect(),
            packets,
            next: 0,
            write: !worker.config.rubbish,
            held: rings.map(|ring| vec![none; ring.num_slots() as usize]).collect(),
        }
    }
}

/// Writes a packet into a slot's buffer: kept out of the loop.
#[cold]
#[inline(never)]
fn write(slot: &SlotRef<'_>, packet: &[u8]) {
    slot.frame().write(0, packet);
}

impl Fill for Replayed {
    fn fill(&mut self, to: &mut TxRing<'_>, head: Pos, space: u32, max: u32) -> Batch {
        let n = space.min(max);
        let (mut bytes, mut next) = (0, self.next);
        let held = &mut self.held[to.number];
        to.ring.run(head, n).for_each(|slot| {
            let wanted = Held { buffer: slot.buf_idx(), packet: next as u32 };
            let held = &mut held[slot.pos().raw() as usize];
            if *held != wanted || slot.flags() & NS_BUF_CHANGED != 0 {
                *held = wanted;
                if self.write {
                    write(&slot, &self.packets[next]);
                }
            }
            let len = self.lens[next];
            slot.set_len_flags(len, 0);
            bytes += u64::from(len);
            next += 1;
            if next == self.lens.len() {
                next = 0;
            }
        });
        to.ring.slot(to.ring.add(head, n - 1)).set_flags(NS_REPORT);
        self.next = next;
        Batch { packets: u64::from(n), bytes, slots: n }
    }
}
