//! Memory for the packets to come.
//!
//! A region's pages have memory when they are used first, and the switch is the first to use a receive buffer. A fault
//! for each page, while the receiver waits for what is copied there and the sender for the answer, takes as long as the
//! rest of what the thread does. So when a delivery is done, and whoever waited is awake, the next buffers get theirs,
//! many with one call: once for each slot, as a ring that has been filled to its end has all of it.

use unetmap_mem::{BufIdx, SlotRing, Slots, Span};

/// Slots that are prepared at a time: 64 KiB in buffers of 2 KiB, as much as the kernel maps at a fault of who only
/// reads.
const AT_A_TIME: u32 = 32;
/// Bytes of a buffer at most: of a larger one a packet may need a small part.
const LARGEST: u32 = 4096;

/// See the module. Of one receive ring.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Ahead {
    /// Slots from the last one filled on that are prepared.
    ready: u32,
    /// Slots behind these that were never filled.
    fresh: u32,
}

impl Ahead {
    /// Nothing was ever delivered to the ring, whose buffers have so many bytes.
    pub(crate) fn new(slots: Slots, buf_size: u32) -> Ahead {
        Ahead { ready: 0, fresh: if buf_size <= LARGEST { slots.get() } else { 0 } }
    }

    /// Whether anything is left to prepare.
    #[inline(always)]
    pub(crate) fn any(self) -> bool {
        self.fresh > 0
    }

    /// The slots of `filled` have been: which buffers are to be prepared, if few are left that are. What comes in large
    /// batches is not waited for so much, and is over soon.
    #[cold]
    pub(crate) fn next(&mut self, ring: &SlotRing, filled: Span) -> Option<(BufIdx, u32)> {
        let n = ring.slots();
        let moved = n.distance(filled.from, filled.to);
        self.fresh = self.fresh.saturating_sub(moved.saturating_sub(self.ready));
        self.ready = self.ready.saturating_sub(moved);
        if moved > AT_A_TIME || self.ready >= AT_A_TIME / 2 || self.fresh == 0 {
            return None;
        }
        let most = AT_A_TIME.min(self.fresh);
        let at = |i| ring.buf_idx(n.add(filled.to, self.ready + i));
        let (first, last) = (at(0), at(most - 1));
        self.fresh -= most;
        self.ready += most;
        // As the daemon laid them out; where the client has changed that, memory comes when it is used.
        (first.0.checked_add(most - 1) == Some(last.0)).then_some((first, most))
    }
}

#[cfg(test)]
mod tests {
    use unetmap_mem::Pos;

    use super::super::tx_ring::own_slots;
    use super::*;

    /// A ring whose buffers lie one behind the other, from 100 on, and packets that come in batches of `batch` until
    /// each slot was filled twice. Which slots were prepared, and how many at that moment were neither filled nor
    /// prepared before.
    fn prepared(batch: u32) -> Vec<u32> {
        let slots = Slots::new(256).unwrap();
        let ring = own_slots(slots).unwrap();
        slots.walk(Span { from: Pos::ZERO, to: slots.add(Pos::ZERO, 255) }).zip(100..).for_each(|(p, i)| {
            ring.set_buf_idx(p, BufIdx(i));
        });
        ring.set_buf_idx(slots.prev(Pos::ZERO), BufIdx(355));
        let (mut ahead, mut at, mut all) = (Ahead::new(slots, 2112), Pos::ZERO, Vec::new());
        for _ in 0..2 * 256 / batch {
            let filled = Span { from: at, to: slots.add(at, batch) };
            at = filled.to;
            if ahead.any()
                && let Some((first, n)) = ahead.next(&ring, filled)
            {
                assert!(n <= AT_A_TIME && first.0 >= 100 + at.raw(), "{first:?} is in use, at {at:?}");
                all.extend((0..n).map(|i| first.0 - 100 + i));
            }
        }
        assert!(!ahead.any(), "it comes to an end");
        all
    }

    #[test]
    fn each_slot_is_prepared_once_and_before_it_is_used() {
        assert_eq!(prepared(1), (1..256).collect::<Vec<_>>());
        assert_eq!(prepared(16), (16..256).collect::<Vec<_>>());
        assert!(prepared(32).len() >= 128);
    }

    #[test]
    fn large_batches_are_not_prepared_for() {
        assert!(prepared(64).is_empty());
    }

    #[test]
    fn buffers_that_the_client_has_moved_are_left_alone() {
        let slots = Slots::new(64).unwrap();
        let ring = own_slots(slots).unwrap();
        let one = Span { from: Pos::ZERO, to: slots.next(Pos::ZERO) };
        // All of them name one buffer, or none that could be.
        for idx in [0, 7, u32::MAX] {
            slots
                .walk(Span { from: Pos::ZERO, to: slots.prev(Pos::ZERO) })
                .for_each(|p| ring.set_buf_idx(p, BufIdx(idx)));
            assert_eq!(Ahead::new(slots, 2112).next(&ring, one), None);
        }
    }
}
