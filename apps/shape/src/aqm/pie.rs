// SPDX-License-Identifier: BSD-2-Clause
//! PIE (RFC 8033): packets are dropped when they come, with a probability that a controller derives from the delay of
//! the packets that leave.

use super::Pie;
use crate::ecn;
use crate::pool::{Packet, Pool, Queue};
use crate::random::Random;
use crate::{Nanos, SECOND};

/// Bytes up to which no packet is dropped: two packets of the mean size that the RFC assumes.
const SHORT_QUEUE: u64 = 2 * 800;
/// Updates that are made up for after idle time; the probability is 0 after that many.
const MAX_UPDATES: u64 = 1024;

#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct PieState {
    probability: f64,
    /// Sum of the probabilities since the last drop: makes drops regular.
    accumulated: f64,
    /// Delay of the packet that left last.
    delay: Nanos,
    /// That of the last update.
    old_delay: Nanos,
    /// Time left without drops.
    burst: Nanos,
    /// When the probability is updated next; 0 before the first packet.
    next_update: Nanos,
}

/// The decision on a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Decision {
    Admit,
    Mark,
    Drop,
}

impl PieState {
    pub(super) fn dequeued(&mut self, delay: Nanos) {
        self.delay = delay;
    }

    pub(super) fn decide(
        &mut self,
        pie: &Pie,
        queue: &Queue,
        pool: &mut Pool,
        packet: Packet,
        now: Nanos,
        random: &mut Random,
    ) -> Decision {
        if self.next_update == 0 {
            self.next_update = now + pie.update;
            self.burst = pie.max_burst;
        }
        if queue.is_empty() {
            self.delay = 0;
        }
        let due = if now >= self.next_update { 1 + (now - self.next_update) / pie.update } else { 0 };
        for _ in 0..due.min(MAX_UPDATES) {
            self.update(pie);
        }
        self.next_update += due * pie.update;
        if !self.drops(pie, queue, random) {
            return Decision::Admit;
        }
        let marks = pie.ecn && self.probability <= pie.max_ecn;
        if marks && ecn::mark(pool.head_mut(packet)) { Decision::Mark } else { Decision::Drop }
    }

    fn drops(&mut self, pie: &Pie, queue: &Queue, random: &mut Random) -> bool {
        let calm = self.old_delay < pie.target / 2 && self.probability < 0.2;
        if self.burst > 0 || calm || queue.bytes <= SHORT_QUEUE {
            return false;
        }
        if self.probability == 0.0 {
            self.accumulated = 0.0;
        }
        self.accumulated += self.probability;
        if self.accumulated < 0.85 {
            return false;
        }
        let drops = self.accumulated >= 8.5 || random.chance(self.probability);
        if drops {
            self.accumulated = 0.0;
        }
        drops
    }

    /// Derives the probability from the delay.
    fn update(&mut self, pie: &Pie) {
        let seconds = |time: Nanos| time as f64 / SECOND as f64;
        let (delay, old, target) = (seconds(self.delay), seconds(self.old_delay), seconds(pie.target));
        let mut step = pie.alpha * (delay - target) + pie.beta * (delay - old);
        // A small probability changes slowly.
        let p = self.probability;
        step *= match p {
            p if p < 0.000_001 => 1.0 / 2048.0,
            p if p < 0.000_01 => 1.0 / 512.0,
            p if p < 0.000_1 => 1.0 / 128.0,
            p if p < 0.001 => 1.0 / 32.0,
            p if p < 0.01 => 1.0 / 8.0,
            p if p < 0.1 => 1.0 / 2.0,
            _ => 1.0,
        };
        if p >= 0.1 {
            step = step.min(0.02);
        }
        if delay > 0.25 {
            step += 0.02;
        }
        self.probability = (p + step).clamp(0.0, 1.0);
        if self.delay == 0 && self.old_delay == 0 {
            self.probability *= 1.0 - 1.0 / 64.0;
        }
        let is_calm = self.delay < pie.target / 2 && self.old_delay < pie.target / 2;
        if self.probability == 0.0 && is_calm {
            self.burst = pie.max_burst;
        }
        self.burst = self.burst.saturating_sub(pie.update);
        self.old_delay = self.delay;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::MILLISECOND;
    use crate::aqm::{Actions, Aqm, AqmState};

    #[test]
    fn an_overloaded_queue_settles_at_the_target() {
        // 1000 bytes leave each millisecond; 1.25 times as many come.
        let aqm = Aqm::Pie(Pie::default());
        let (mut state, mut queue, mut pool) = (AqmState::default(), Queue::default(), Pool::new(1 << 26));
        let mut random = Random::new(3);
        let (mut delays, mut dropped, mut offered) = (Vec::new(), 0, 0);
        for ms in 0..60_000u64 {
            let now = SECOND + ms * MILLISECOND;
            for _ in 0..1 + u64::from(ms % 4 == 0) {
                let packet = pool.allocate(1000, 0, 0, now).expect("room");
                let mut actions = Actions::default();
                offered += u64::from(ms > 30_000);
                if state.admits(&aqm, &queue, (&mut pool, packet), now, &mut random, &mut actions) {
                    queue.push(&mut pool, packet);
                } else {
                    pool.free(packet);
                    dropped += u64::from(ms > 30_000);
                    assert!(ms > 150, "no drop in the first burst");
                }
            }
            if let Some(packet) = state.dequeue(&aqm, &mut queue, &mut pool, now, &mut Actions::default()) {
                if ms > 30_000 {
                    delays.push(now - pool.arrived(packet));
                }
                pool.free(packet);
            }
        }
        let mean = delays.iter().sum::<u64>() as f64 / delays.len() as f64 / MILLISECOND as f64;
        let share = dropped as f64 / f64::from(offered as u32);
        assert!((12.0..=18.0).contains(&mean), "a mean delay of {mean} ms");
        assert!((share - 0.2).abs() < 0.01, "{share} of the packets were dropped: a fifth is too much for the link");
    }
}
