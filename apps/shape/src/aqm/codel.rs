// SPDX-License-Identifier: BSD-2-Clause
//! CoDel (RFC 8289): packets are dropped at the head of a queue once their delay was above the target for an interval,
//! and then at intervals that become shorter with the square root of the number of drops.

use super::{Actions, Codel};
use crate::Nanos;
use crate::ecn;
use crate::pool::{Packet, Pool, Queue};

/// Bytes up to which a queue is never too long: a packet of the usual largest size.
const MAX_PACKET: u64 = 1514;

#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct CodelState {
    /// When the delay will have been above the target for an interval; 0 while it is below.
    above_until: Nanos,
    /// When the next packet is dropped, if `dropping`.
    next_drop: Nanos,
    count: u32,
    last_count: u32,
    dropping: bool,
}

impl CodelState {
    pub(super) fn dequeue(
        &mut self,
        codel: &Codel,
        queue: &mut Queue,
        pool: &mut Pool,
        now: Nanos,
        actions: &mut Actions,
    ) -> Option<Packet> {
        let (mut packet, mut may_drop) = self.take(codel, queue, pool, now);
        if self.dropping {
            if !may_drop {
                self.dropping = false;
            }
            while self.dropping && now >= self.next_drop {
                self.count += 1;
                self.next_drop = self.after(codel, self.next_drop);
                if !drop_or_mark(codel, pool, packet?, actions) {
                    return packet;
                }
                (packet, may_drop) = self.take(codel, queue, pool, now);
                self.dropping &= may_drop;
            }
        } else if may_drop {
            let dropped = drop_or_mark(codel, pool, packet?, actions);
            if dropped {
                packet = self.take(codel, queue, pool, now).0;
            }
            self.dropping = true;
            // A queue that was in this state a short while ago goes on about where it was.
            let recent = self.count - self.last_count;
            let soon = now < self.next_drop.saturating_add(16 * codel.interval);
            self.count = if recent > 1 && soon { recent } else { 1 };
            self.last_count = self.count;
            self.next_drop = self.after(codel, now);
        }
        packet
    }

    /// Takes a packet. The flag says whether its delay, and that of its predecessors, was above the target for an
    /// interval.
    fn take(&mut self, codel: &Codel, queue: &mut Queue, pool: &Pool, now: Nanos) -> (Option<Packet>, bool) {
        let Some(packet) = queue.pop(pool) else {
            self.above_until = 0;
            return (None, false);
        };
        let delay = now - pool.arrived(packet).min(now);
        if delay < codel.target || queue.bytes <= MAX_PACKET {
            self.above_until = 0;
            return (Some(packet), false);
        }
        if self.above_until == 0 {
            self.above_until = now + codel.interval;
            return (Some(packet), false);
        }
        (Some(packet), now >= self.above_until)
    }

    fn after(&self, codel: &Codel, time: Nanos) -> Nanos {
        time + (codel.interval as f64 / f64::from(self.count.max(1)).sqrt()) as Nanos
    }
}

/// Marks a packet, if that is wanted and its sender understands it; else frees it and returns true.
fn drop_or_mark(codel: &Codel, pool: &mut Pool, packet: Packet, actions: &mut Actions) -> bool {
    if codel.ecn && ecn::mark(pool.head_mut(packet)) {
        actions.marked += 1;
        return false;
    }
    actions.drop(pool, packet);
    true
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{MILLISECOND, SECOND};

    /// Fills a queue twice as fast as it is emptied, a packet of 1000 bytes each millisecond; returns when packets were
    /// dropped.
    fn overload(codel: Codel, from: Nanos, until: Nanos) -> Vec<Nanos> {
        let (mut state, mut queue, mut pool) = (CodelState::default(), Queue::default(), Pool::new(1 << 24));
        let mut drops = Vec::new();
        for ms in 0..until {
            let now = ms * MILLISECOND + SECOND;
            let n = if ms < from { 1 } else { 2 };
            for _ in 0..n {
                let packet = pool.allocate(1000, 0, 0, now).expect("room");
                queue.push(&mut pool, packet);
            }
            let mut actions = Actions::default();
            if let Some(packet) = state.dequeue(&codel, &mut queue, &mut pool, now, &mut actions) {
                pool.free(packet);
            }
            drops.extend((0..actions.dropped).map(|_| ms));
        }
        drops
    }

    #[test]
    fn drops_begin_after_an_interval_and_come_closer_by_the_square_root() {
        let drops = overload(Codel::default(), 100, 1500);
        // The delay is above 5 ms from about 110 ms on; 100 ms later is the first drop.
        assert!((205..=215).contains(&drops[0]), "{drops:?}");
        let mut expected = drops[0] as f64;
        for (i, &drop) in drops.iter().enumerate().take(30).skip(1) {
            expected += 100.0 / (i as f64).sqrt();
            assert!((drop as f64 - expected).abs() <= 1.5, "drop {i} at {drop}, expected {expected}: {drops:?}");
        }
    }

    #[test]
    fn a_queue_below_the_target_loses_nothing() {
        assert_eq!(overload(Codel::default(), 3000, 3000), [0; 0]);
    }
}
