// SPDX-License-Identifier: BSD-2-Clause
//! Queue of packets that wait for room in their pipe, in extra buffers that are not in any ring.
//!
//! All buffers of a group belong to one pool, so that a pipe can use those that the others do not need. If the pool is
//! empty, the pipe with the longest queue loses its oldest packets, so that a slow reader loses its own packets only.

use std::collections::VecDeque;

use unetmap::abi::NS_MOREFRAG;
use unetmap::{BufIdx, Slot};

/// One slot of a queued packet.
#[derive(Clone, Copy, Debug)]
pub(crate) struct QueuedSlot {
    pub(crate) slot: Slot,
    pub(crate) flow: u32,
}

impl QueuedSlot {
    /// Returns true if this is the packet's last slot.
    pub(crate) fn ends_packet(&self) -> bool {
        self.slot.flags & NS_MOREFRAG == 0
    }
}

/// Complete packets, the oldest first.
#[derive(Debug, Default)]
pub(crate) struct Queue(VecDeque<QueuedSlot>);

impl Queue {
    /// Allocates memory for `slots` slots in advance.
    pub(crate) fn with_capacity(slots: usize) -> Queue {
        Queue(VecDeque::with_capacity(slots))
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Returns the number of queued slots.
    pub(crate) fn len(&self) -> usize {
        self.0.len()
    }

    /// Appends the next slot of a packet.
    pub(crate) fn push(&mut self, queued: QueuedSlot) {
        self.0.push_back(queued);
    }

    /// Removes the next slot of the oldest packet.
    pub(crate) fn pop(&mut self) -> Option<QueuedSlot> {
        self.0.pop_front()
    }

    /// Returns the number of slots of the oldest packet, or 0 if the queue is empty.
    pub(crate) fn first_packet(&self) -> u32 {
        self.0.iter().zip(1..).find(|(queued, _)| queued.ends_packet()).map_or(0, |(_, n)| n)
    }

    /// Drops the oldest packets, at least `slots` slots if there are as many, and adds their buffers to `free`. Returns
    /// the number of dropped packets.
    pub(crate) fn drop_oldest(&mut self, slots: usize, free: &mut Vec<BufIdx>) -> u64 {
        let (mut dropped, mut packets) = (0, 0);
        while let Some(queued) = self.0.pop_front() {
            free.push(queued.slot.buf_idx);
            dropped += 1;
            packets += u64::from(queued.ends_packet());
            if dropped >= slots && queued.ends_packet() {
                break;
            }
        }
        packets
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn queued_slot(idx: u32, more: bool) -> QueuedSlot {
        let flags = if more { NS_MOREFRAG } else { 0 };
        QueuedSlot { slot: Slot { buf_idx: BufIdx(idx), len: 60, flags, ptr: 0 }, flow: 7 }
    }

    #[test]
    fn complete_packets_are_dropped_oldest_first() {
        let (mut queue, mut free) = (Queue::with_capacity(8), Vec::new());
        for (idx, more) in [(2, true), (3, false), (4, false), (5, true), (6, true), (7, false)] {
            queue.push(queued_slot(idx, more));
        }
        assert_eq!(queue.first_packet(), 2);
        assert_eq!(queue.drop_oldest(1, &mut free), 1);
        assert_eq!(free, [2, 3].map(BufIdx));
        assert_eq!((queue.len(), queue.first_packet()), (4, 1));
        assert_eq!(queue.drop_oldest(2, &mut free), 2);
        assert_eq!((queue.is_empty(), queue.first_packet(), free.len()), (true, 0, 6));
        assert_eq!(queue.drop_oldest(9, &mut free), 0);
    }
}
