//! Packets of a file, each whole in one slot: the fast way to replay them.
//!
//! Most rings come round with the very packet that a slot's buffer holds already: where as many packets as the file has fit
//! the ring a whole number of times, and nobody wrote there meanwhile. So each buffer is looked at, and only what differs is
//! written.

use unetmap::Pos;
use unetmap_abi::NS_REPORT;

use super::{Batch, Fill, Same, TxRing};
use crate::source::Replay;
use crate::worker::Worker;

/// See the module.
pub(super) struct Replayed {
    /// With what precedes them: each fits a buffer.
    packets: Vec<Same>,
    /// Number of the packet to send next.
    next: usize,
}

impl Replayed {
    /// Sends the packets of `replay`, each of which fits a buffer of the worker's port, and a slot's length.
    pub(super) fn new(worker: &Worker<'_>, replay: &Replay) -> Replayed {
        let config = worker.config;
        Replayed {
            packets: replay.prefixed(config.vnet_hdr).map(|p| Same::new(&p, !config.rubbish)).collect(),
            next: 0,
        }
    }
}

impl Fill for Replayed {
    fn fill(&mut self, to: &mut TxRing<'_>, head: Pos, space: u32, max: u32) -> Batch {
        let n = space.min(max);
        let (mut bytes, mut next) = (0, self.next);
        to.ring.run(head, n).for_each(|slot| {
            let packet = &self.packets[next];
            packet.refill(&slot);
            slot.set_len_flags(packet.len, 0);
            bytes += u64::from(packet.len);
            next += 1;
            if next == self.packets.len() {
                next = 0;
            }
        });
        to.ring.slot(to.ring.add(head, n - 1)).set_flags(NS_REPORT);
        self.next = next;
        Batch { packets: u64::from(n), bytes, slots: n }
    }
}
