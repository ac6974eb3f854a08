// SPDX-License-Identifier: BSD-2-Clause
//! Prefaulting of receive buffers: memory for the packets to come.
//!
//! A page of a region gets its memory when it is used first, and the switch is the first to use a receive buffer. A
//! page fault for each buffer, while the receiver waits for the packet and the sender for the reply, takes as long as
//! everything else that the thread does for a packet. So after a delivery, when all waiting clients are awake, the
//! next buffers are populated, many with one call: once for each slot, since a ring that was filled to its end has
//! memory for all of them.

use unetmap_mem::{BufIdx, SlotRing, Slots, Span};

use crate::tuning::{PREFAULT_MAX_BUF, PREFAULT_SLOTS};

/// How far the buffers of one receive ring are prefaulted.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Prefault {
    /// Slots after the last filled one whose buffers are prefaulted.
    prefaulted: u32,
    /// Slots after these that were neither filled nor prefaulted.
    untouched: u32,
}

impl Prefault {
    /// The state of a ring to which nothing was delivered, with buffers of `buf_size` bytes.
    pub(crate) fn new(slots: Slots, buf_size: u32) -> Prefault {
        Prefault { prefaulted: 0, untouched: if buf_size <= PREFAULT_MAX_BUF { slots.get() } else { 0 } }
    }

    /// True if some slot was neither filled nor prefaulted yet.
    #[inline(always)]
    pub(crate) fn unfinished(self) -> bool {
        self.untouched > 0
    }

    /// Notes that the slots of `filled` were filled. Returns the first buffer to prefault and the number of buffers,
    /// if few prefaulted ones are left. Never after a large batch: it is not waited for as urgently, and large
    /// batches reach the end of the ring soon.
    #[cold]
    pub(crate) fn next(&mut self, ring: &SlotRing, filled: Span) -> Option<(BufIdx, u32)> {
        let n = ring.slots();
        let moved = n.distance(filled.from, filled.to);
        self.untouched = self.untouched.saturating_sub(moved.saturating_sub(self.prefaulted));
        self.prefaulted = self.prefaulted.saturating_sub(moved);
        if moved > PREFAULT_SLOTS || self.prefaulted >= PREFAULT_SLOTS / 2 || self.untouched == 0 {
            return None;
        }
        let count = PREFAULT_SLOTS.min(self.untouched);
        let at = |i| ring.buf_idx(n.add(filled.to, self.prefaulted + i));
        let (first, last) = (at(0), at(count - 1));
        self.untouched -= count;
        self.prefaulted += count;
        // Consecutive buffers, as the daemon laid them out; if the client changed that, they fault when they are used.
        (first.0.checked_add(count - 1) == Some(last.0)).then_some((first, count))
    }
}

#[cfg(test)]
mod tests {
    use unetmap_mem::Pos;

    use super::super::tx_ring::private_slots;
    use super::*;

    /// Fills a ring, whose buffers are consecutive from 100 on, in batches of `batch` packets until each slot was
    /// filled twice. Returns the slots whose buffers were prefaulted, in order.
    fn prefaulted(batch: u32) -> Vec<u32> {
        let slots = Slots::new(256).unwrap();
        let ring = private_slots(slots).unwrap();
        slots.walk(Span { from: Pos::ZERO, to: slots.add(Pos::ZERO, 255) }).zip(100..).for_each(|(p, i)| {
            ring.set_buf_idx(p, BufIdx(i));
        });
        ring.set_buf_idx(slots.prev(Pos::ZERO), BufIdx(355));
        let (mut prefault, mut at, mut all) = (Prefault::new(slots, 2112), Pos::ZERO, Vec::new());
        for _ in 0..2 * 256 / batch {
            let filled = Span { from: at, to: slots.add(at, batch) };
            at = filled.to;
            if prefault.unfinished()
                && let Some((first, n)) = prefault.next(&ring, filled)
            {
                assert!(n <= PREFAULT_SLOTS && first.0 >= 100 + at.raw(), "{first:?} is in use, at {at:?}");
                all.extend((0..n).map(|i| first.0 - 100 + i));
            }
        }
        assert!(!prefault.unfinished(), "prefaulting ends");
        all
    }

    #[test]
    fn each_slot_is_prefaulted_once_and_before_it_is_used() {
        assert_eq!(prefaulted(1), (1..256).collect::<Vec<_>>());
        assert_eq!(prefaulted(16), (16..256).collect::<Vec<_>>());
        assert!(prefaulted(32).len() >= 128);
    }

    #[test]
    fn large_batches_are_not_prefaulted() {
        assert!(prefaulted(64).is_empty());
    }

    #[test]
    fn buffers_that_the_client_moved_are_not_prefaulted() {
        let slots = Slots::new(64).unwrap();
        let ring = private_slots(slots).unwrap();
        let one = Span { from: Pos::ZERO, to: slots.next(Pos::ZERO) };
        // All slots name the same buffer, or one that does not exist.
        for idx in [0, 7, u32::MAX] {
            slots
                .walk(Span { from: Pos::ZERO, to: slots.prev(Pos::ZERO) })
                .for_each(|p| ring.set_buf_idx(p, BufIdx(idx)));
            assert_eq!(Prefault::new(slots, 2112).next(&ring, one), None);
        }
    }
}
