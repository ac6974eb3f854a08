// SPDX-License-Identifier: BSD-2-Clause
//! The scheduling policy of a thread that shares its CPU with a client: `SCHED_BATCH` while the client sends a stream.
//!
//! A sender on the thread's CPU wakes the thread with its first batch, and the kernel runs a thread that has slept at
//! once. So the two alternate with each batch, however much room the ring has left. While turns (the slots taken
//! between two yields) are large, the thread therefore preempts no other task (`SCHED_BATCH`): the sender continues
//! until its ring is full, and then waits. The first small turn ends that.

use unetmap_sys::thread::set_wakeup_preemption;

use crate::tuning::{LARGE_TURN_SLOTS, SMALL_TURN_SLOTS, STREAM_TURNS};

/// Counts the slots of turns, and sets the policy of the calling thread.
#[derive(Default)]
pub(crate) struct SchedBatch {
    /// Slots taken in this turn.
    slots: u32,
    /// Large turns in a row.
    large_turns: u32,
    /// The thread has `SCHED_BATCH`.
    active: bool,
}

impl SchedBatch {
    /// Counts slots that were taken.
    #[inline]
    pub(crate) fn add_slots(&mut self, slots: u32) {
        self.slots = self.slots.saturating_add(slots);
    }

    /// True if the turn had few slots until now, so that polling for a reply is worth it.
    pub(crate) fn is_small_turn(&self) -> bool {
        self.slots < SMALL_TURN_SLOTS
    }

    /// Ends the turn: the thread yields the CPU to a client.
    pub(crate) fn end_turn(&mut self) {
        let slots = std::mem::take(&mut self.slots);
        self.large_turns = if slots >= LARGE_TURN_SLOTS { self.large_turns.saturating_add(1) } else { 0 };
        self.set(self.large_turns >= STREAM_TURNS);
    }

    /// Returns to the normal policy: the thread sleeps or restarts, and the task that wakes it is in no stream.
    pub(crate) fn reset(&mut self) {
        (self.slots, self.large_turns) = (0, 0);
        self.set(false);
    }

    fn set(&mut self, active: bool) {
        if self.active != active {
            self.active = active;
            set_wakeup_preemption(!active);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the scheduling policy of the calling thread: 0, or 3 for `SCHED_BATCH`; field 41 of its `stat`.
    fn policy() -> u32 {
        let stat = std::fs::read_to_string("/proc/thread-self/stat").unwrap();
        let after_name = stat.rsplit_once(')').unwrap().1;
        after_name.split_whitespace().nth(41 - 3).unwrap().parse().unwrap()
    }

    #[test]
    fn the_policy_is_sched_batch_while_turns_are_large() {
        // The policy is a property of the thread.
        std::thread::spawn(|| {
            let mut sched = SchedBatch::default();
            let mut turn = |slots: u32| {
                assert!(sched.is_small_turn());
                (0..slots).for_each(|_| sched.add_slots(1));
                assert_eq!(sched.is_small_turn(), slots < SMALL_TURN_SLOTS);
                sched.end_turn();
                policy()
            };
            for _ in 1..STREAM_TURNS {
                assert_eq!(turn(LARGE_TURN_SLOTS), 0);
            }
            assert_eq!(turn(LARGE_TURN_SLOTS), 3);
            assert_eq!(turn(1000), 3);
            assert_eq!(turn(LARGE_TURN_SLOTS - 1), 0);
            assert_eq!(turn(LARGE_TURN_SLOTS), 0);
            assert_eq!((0..STREAM_TURNS).map(|_| turn(LARGE_TURN_SLOTS)).last(), Some(3));
            sched.reset();
            assert_eq!(policy(), 0);
        })
        .join()
        .unwrap();
    }
}
