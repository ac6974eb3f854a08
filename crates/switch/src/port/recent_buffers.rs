// SPDX-License-Identifier: BSD-2-Clause
//! Receive buffers that are still in a cache.
//!
//! A ring visits its buffers in turn: each packet is written into the buffer that was used longest ago. With packets of
//! many cache lines a ring of 1024 or 4096 buffers is larger than a core's cache, though the client holds few of them
//! at a time. So the buffers of free slots are exchanged: the next packets get those that the client returned last.
//!
//! ```text
//! free slots     prod  ............................................  cons
//!                next packets ->                 <- returned last
//!                     '----- exchange of buffers -----'
//! ```
//! All these slots are the switch's, and it validates each index when it writes a packet. `NS_BUF_CHANGED` is not set:
//! to a zero-copy monitor it means that the buffer holds another packet.

use unetmap_mem::{Pos, SlotRing};

use crate::tuning::RECENT_BUFFER_BYTES;

/// Which free slots of a receive ring have recently used buffers.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RecentBuffers {
    /// Bytes in a slot, in the last delivery.
    slot_bytes: u32,
    /// The slot from which the two others count.
    at: Pos,
    /// So many free slots have got their buffer.
    given: u32,
    /// After so many free slots the buffers have been given away.
    left: u32,
}

impl RecentBuffers {
    pub(crate) fn new() -> RecentBuffers {
        RecentBuffers { slot_bytes: 0, at: Pos::ZERO, given: 0, left: 0 }
    }

    /// Notes a delivery of `slots` slots with `bytes` bytes in all.
    #[inline(always)]
    pub(crate) fn delivered(&mut self, slots: u32, bytes: u64) {
        self.slot_bytes = (bytes / u64::from(slots.max(1))) as u32;
    }

    /// Whether packets are so large that the buffers matter.
    #[inline(always)]
    pub(crate) fn matter(self) -> bool {
        self.slot_bytes >= RECENT_BUFFER_BYTES
    }

    /// Gives the next `wanted` of the `room` free slots from `prod` on the buffers that the client has returned last.
    /// `returned`: it has returned some since the last call.
    pub(crate) fn give(&mut self, ring: &SlotRing, prod: Pos, (wanted, room): (u32, u32), returned: bool) {
        let n = ring.slots();
        let delivered = n.distance(self.at, prod);
        let mut given = self.given.saturating_sub(delivered);
        let mut left = if returned { room } else { self.left.saturating_sub(delivered).min(room) };
        while given < wanted && given + 1 < left {
            left -= 1;
            let (to, from) = (n.add(prod, given), n.add(prod, left));
            let (old, recent) = (ring.buf_idx(to), ring.buf_idx(from));
            ring.set_buf_idx(to, recent);
            ring.set_buf_idx(from, old);
            given += 1;
        }
        *self = RecentBuffers { at: prod, given, left, ..*self };
    }
}

#[cfg(test)]
mod tests {
    use unetmap_mem::{BufIdx, Slots, Span};

    use super::super::tx_ring::private_slots;
    use super::*;

    /// A ring whose slots have the buffers 100, 101, ...
    fn ring(slots: u32) -> SlotRing {
        let slots = Slots::new(slots).unwrap();
        let ring = private_slots(slots).unwrap();
        let all = (0..slots.get()).map(|i| slots.add(Pos::ZERO, i));
        all.zip(100..).for_each(|(p, idx)| ring.set_buf_idx(p, BufIdx(idx)));
        ring
    }

    fn buffers(ring: &SlotRing, from: u32, to: u32) -> Vec<u32> {
        let at = |raw| ring.slots().add(Pos::ZERO, raw);
        ring.slots().walk(Span { from: at(from), to: at(to) }).map(|p| ring.buf_idx(p).0).collect()
    }

    #[test]
    fn a_client_that_keeps_up_gets_the_same_few_buffers_again() {
        let (ring, n) = (ring(64), Slots::new(64).unwrap());
        let (mut recent, mut prod, mut used) = (RecentBuffers::new(), Pos::ZERO, Vec::new());
        for batch in 0..100 {
            // It has read everything.
            recent.give(&ring, prod, (4, 63), batch > 0);
            let to = n.add(prod, 4);
            used.extend(buffers(&ring, prod.raw(), to.raw()));
            prod = to;
        }
        used.sort_unstable();
        used.dedup();
        assert!(used.len() <= 8, "{used:?}");
        let mut all: Vec<_> = buffers(&ring, 0, 63);
        all.push(ring.buf_idx(n.prev(Pos::ZERO)).0);
        all.sort_unstable();
        assert_eq!(all, (100..164).collect::<Vec<_>>(), "each buffer is in one slot");
    }

    #[test]
    fn a_slot_gets_a_buffer_once_and_none_is_given_twice() {
        let ring = ring(64);
        let mut recent = RecentBuffers::new();
        recent.give(&ring, Pos::ZERO, (4, 10), true);
        assert_eq!(buffers(&ring, 0, 11), [109, 108, 107, 106, 104, 105, 103, 102, 101, 100, 110]);
        // Nothing was delivered, and nothing returned.
        recent.give(&ring, Pos::ZERO, (4, 10), false);
        assert_eq!(buffers(&ring, 0, 4), [109, 108, 107, 106]);
        // The others meet in the middle.
        recent.give(&ring, Pos::ZERO, (10, 10), false);
        assert_eq!(buffers(&ring, 0, 11), [109, 108, 107, 106, 105, 104, 103, 102, 101, 100, 110]);
        for room in [0, 1] {
            recent.give(&ring, Pos::ZERO, (10, room), true);
        }
        assert_eq!(buffers(&ring, 0, 11), [109, 108, 107, 106, 105, 104, 103, 102, 101, 100, 110]);
    }

    #[test]
    fn only_large_packets_matter() {
        let mut recent = RecentBuffers::new();
        assert!(!recent.matter());
        recent.delivered(10, 10 * u64::from(RECENT_BUFFER_BYTES));
        assert!(recent.matter());
        recent.delivered(10, 600);
        assert!(!recent.matter());
        recent.delivered(0, 0);
    }
}
