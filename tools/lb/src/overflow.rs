//! Packets that wait for room in their pipe, in buffers beside those of the rings.
//!
//! All buffers belong to one pool, so that a pipe may use what the others do not need. When the pool is empty the pipe
//! that has most of them loses its oldest packets: whoever does not read loses his own.

use std::collections::VecDeque;

use unetmap::{BufIdx, Slot};
use unetmap_abi::NS_MOREFRAG;

/// One buffer of a waiting packet.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Waiting {
    pub(crate) slot: Slot,
    pub(crate) flow: u32,
}

impl Waiting {
    /// Whether its packet has no more slots.
    pub(crate) fn ends(&self) -> bool {
        self.slot.flags & NS_MOREFRAG == 0
    }
}

/// Whole packets, the oldest first.
#[derive(Debug, Default)]
pub(crate) struct Queue(VecDeque<Waiting>);

impl Queue {
    /// With room for so many slots, so that none is made while packets come.
    pub(crate) fn with_capacity(slots: usize) -> Queue {
        Queue(VecDeque::with_capacity(slots))
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Slots that wait.
    pub(crate) fn len(&self) -> usize {
        self.0.len()
    }

    /// Puts the next slot of a packet at the end.
    pub(crate) fn push(&mut self, waiting: Waiting) {
        self.0.push_back(waiting);
    }

    /// Takes the next slot of the oldest packet.
    pub(crate) fn pop(&mut self) -> Option<Waiting> {
        self.0.pop_front()
    }

    /// Slots of the oldest packet; 0 when there is none.
    pub(crate) fn first_packet(&self) -> u32 {
        self.0.iter().zip(1..).find(|(waiting, _)| waiting.ends()).map_or(0, |(_, n)| n)
    }

    /// Drops the oldest packets, about `slots` slots of them, whose buffers go to `free`; returns how many packets.
    pub(crate) fn drop_oldest(&mut self, slots: usize, free: &mut Vec<BufIdx>) -> u64 {
        let (mut dropped, mut packets) = (0, 0);
        while let Some(waiting) = self.0.pop_front() {
            free.push(waiting.slot.buf_idx);
            dropped += 1;
            packets += u64::from(waiting.ends());
            if dropped >= slots && waiting.ends() {
                break;
            }
        }
        packets
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn waiting(idx: u32, more: bool) -> Waiting {
        let flags = if more { NS_MOREFRAG } else { 0 };
        Waiting { slot: Slot { buf_idx: BufIdx(idx), len: 60, flags, ptr: 0 }, flow: 7 }
    }

    #[test]
    fn packets_are_dropped_whole_and_the_oldest_first() {
        let (mut queue, mut free) = (Queue::with_capacity(8), Vec::new());
        for (idx, more) in [(2, true), (3, false), (4, false), (5, true), (6, true), (7, false)] {
            queue.push(waiting(idx, more));
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
