// SPDX-License-Identifier: BSD-2-Clause
//! Fast replay of a file whose packets fit one slot each.
//!
//! A slot's buffer often already contains the packet that is due there: if the ring's size is a multiple of the number
//! of packets in the file, and nothing else wrote into the buffer. Each buffer is therefore compared, and only cache
//! lines that differ are written.

use unetmap::Pos;
use unetmap::abi::NS_REPORT;

use super::{Batch, Fill, PreparedPacket, TxRing};
use crate::source::Replay;
use crate::worker::Worker;

/// Sends the packets of a file, each in one slot.
pub(super) struct ReplayFill {
    /// With their prefixes. Each fits a buffer.
    packets: Vec<PreparedPacket>,
    /// Index of the next packet.
    next: usize,
}

impl ReplayFill {
    /// `replay`'s packets must fit a buffer of the worker's port and the 16-bit length of a slot.
    pub(super) fn new(worker: &Worker<'_>, replay: &Replay) -> ReplayFill {
        let config = worker.config;
        ReplayFill {
            packets: replay.prefixed(config.vnet_hdr).map(|p| PreparedPacket::new(&p, !config.rubbish)).collect(),
            next: 0,
        }
    }
}

impl Fill for ReplayFill {
    fn fill(&mut self, to: &mut TxRing<'_>, head: Pos, space: u32, max: u32) -> Batch {
        let n = space.min(max);
        let (mut bytes, mut next) = (0, self.next);
        to.ring.run(head, n).for_each(|slot| {
            let packet = &self.packets[next];
            packet.write_packet(&slot);
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
