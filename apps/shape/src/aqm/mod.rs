// SPDX-License-Identifier: BSD-2-Clause
//! Active queue management: packets are dropped, or marked, before a queue is full, so that delays stay short.

mod codel;
mod pie;

use crate::pool::{Packet, Pool, Queue};
use crate::random::Random;
use crate::{MILLISECOND, Nanos};
use codel::CodelState;
use pie::PieState;

/// The manager of a queue.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub enum Aqm {
    /// None: packets are dropped when the queue is full.
    #[default]
    None,
    /// CoDel (RFC 8289).
    Codel(Codel),
    /// PIE (RFC 8033).
    Pie(Pie),
}

/// Parameters of CoDel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Codel {
    /// Delay that a queue may have for long.
    pub target: Nanos,
    /// How long is long.
    pub interval: Nanos,
    /// Whether packets are marked, if their sender understands it, in place of being dropped.
    pub ecn: bool,
}

impl Default for Codel {
    fn default() -> Codel {
        Codel { target: 5 * MILLISECOND, interval: 100 * MILLISECOND, ecn: false }
    }
}

/// Parameters of PIE.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Pie {
    /// Delay that the queue is held at.
    pub target: Nanos,
    /// Time between two updates of the probability, not 0.
    pub update: Nanos,
    /// Weight of the deviation from the target, per second.
    pub alpha: f64,
    /// Weight of the delay's change, per second.
    pub beta: f64,
    /// How long packets are admitted without a drop after the queue was empty.
    pub max_burst: Nanos,
    /// Whether packets are marked, if their sender understands it.
    pub ecn: bool,
    /// Probability up to which packets are marked; above, they are dropped.
    pub max_ecn: f64,
}

impl Default for Pie {
    fn default() -> Pie {
        Pie {
            target: 15 * MILLISECOND,
            update: 15 * MILLISECOND,
            alpha: 0.125,
            beta: 1.25,
            max_burst: 150 * MILLISECOND,
            ecn: false,
            max_ecn: 0.1,
        }
    }
}

/// Counts of a manager's actions.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Actions {
    /// Packets that were dropped.
    pub(crate) dropped: u32,
    /// Their bytes.
    pub(crate) dropped_bytes: u64,
    /// Packets that were marked.
    pub(crate) marked: u32,
}

/// A manager's state for one queue.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct AqmState {
    codel: CodelState,
    pie: PieState,
}

impl Actions {
    /// Frees a packet that is dropped.
    pub(crate) fn drop(&mut self, pool: &mut Pool, packet: Packet) {
        self.dropped += 1;
        self.dropped_bytes += u64::from(pool.len(packet));
        pool.free(packet);
    }
}

impl AqmState {
    /// Whether a packet that comes may enter the queue. It may be marked.
    #[inline]
    pub(crate) fn admits(
        &mut self,
        aqm: &Aqm,
        queue: &Queue,
        (pool, packet): (&mut Pool, Packet),
        now: Nanos,
        random: &mut Random,
        actions: &mut Actions,
    ) -> bool {
        let Aqm::Pie(pie) = aqm else { return true };
        match self.pie.decide(pie, queue, pool, packet, now, random) {
            pie::Decision::Admit => true,
            pie::Decision::Mark => {
                actions.marked += 1;
                true
            }
            pie::Decision::Drop => false,
        }
    }

    /// Takes the next packet from the queue; those that the manager drops are freed.
    #[inline]
    pub(crate) fn dequeue(
        &mut self,
        aqm: &Aqm,
        queue: &mut Queue,
        pool: &mut Pool,
        now: Nanos,
        actions: &mut Actions,
    ) -> Option<Packet> {
        match aqm {
            Aqm::None => queue.pop(pool),
            Aqm::Codel(codel) => self.codel.dequeue(codel, queue, pool, now, actions),
            Aqm::Pie(_) => {
                let packet = queue.pop(pool)?;
                self.pie.dequeued(now - pool.arrived(packet).min(now));
                Some(packet)
            }
        }
    }
}
