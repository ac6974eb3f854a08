//! Turns with a client on the thread's processor: how much comes with each.
//!
//! A sender there that hands over its first batch wakes the thread, which the kernel then lets run at once, as it has slept: so
//! the two change with each batch, however much room the ring has left. While turns are large the thread therefore interrupts
//! nobody (`SCHED_BATCH`): the sender goes on until its ring is full, and naps. As soon as little came with a turn that is over.

use unetmap_sys::thread::set_wakeup_preemption;

/// Slots that make a turn large: what they cost to move is as much as the change of processes.
const LARGE: u32 = 256;
/// Slots that leave a turn small: it may be a question.
const SMALL: u32 = 32;
/// Large turns in a row that are believed to be a stream.
const STREAM: u32 = 16;

/// See the module. Of one thread.
#[derive(Default)]
pub(crate) struct Turns {
    /// Slots that were taken in this turn.
    slots: u32,
    /// Large turns in a row.
    large: u32,
    polite: bool,
}

impl Turns {
    /// Slots were taken.
    #[inline]
    pub(crate) fn took(&mut self, slots: u32) {
        self.slots = self.slots.saturating_add(slots);
    }

    /// Whether little was taken in this turn until now: less than a look for an answer is worth.
    pub(crate) fn is_small(&self) -> bool {
        self.slots < SMALL
    }

    /// The processor goes to a client.
    pub(crate) fn end(&mut self) {
        let slots = std::mem::take(&mut self.slots);
        self.large = if slots >= LARGE { self.large.saturating_add(1) } else { 0 };
        self.be_polite(self.large >= STREAM);
    }

    /// The thread goes to sleep, or begins anew: who wakes it is not in a stream.
    pub(crate) fn forget(&mut self) {
        (self.slots, self.large) = (0, 0);
        self.be_polite(false);
    }

    fn be_polite(&mut self, polite: bool) {
        if self.polite != polite {
            self.polite = polite;
            set_wakeup_preemption(!polite);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What the kernel says of the calling thread: 0, or 3 for `SCHED_BATCH`. Field 41 of its `stat`.
    fn policy() -> u32 {
        let stat = std::fs::read_to_string("/proc/thread-self/stat").unwrap();
        let behind_name = stat.rsplit_once(')').unwrap().1;
        behind_name.split_whitespace().nth(41 - 3).unwrap().parse().unwrap()
    }

    #[test]
    fn a_thread_is_polite_while_turns_are_large() {
        // A thread of its own, as the policy is the thread's.
        std::thread::spawn(|| {
            let mut turns = Turns::default();
            let mut turn = |slots: u32| {
                assert!(turns.is_small());
                (0..slots).for_each(|_| turns.took(1));
                assert_eq!(turns.is_small(), slots < SMALL);
                turns.end();
                policy()
            };
            for _ in 1..STREAM {
                assert_eq!(turn(LARGE), 0);
            }
            assert_eq!(turn(LARGE), 3);
            assert_eq!(turn(1000), 3);
            assert_eq!(turn(LARGE - 1), 0);
            assert_eq!(turn(LARGE), 0);
            assert_eq!((0..STREAM).map(|_| turn(LARGE)).last(), Some(3));
            turns.forget();
            assert_eq!(policy(), 0);
        })
        .join()
        .unwrap();
    }
}
