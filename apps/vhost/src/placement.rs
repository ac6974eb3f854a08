// SPDX-License-Identifier: BSD-2-Clause
//! On which CPU the process runs.
//!
//! A front end that polls never gives its CPU up, so a process beside it is kept waiting. The switch's thread does give
//! it up, to a process beside it that it waits for, by a futex wait. The kernel knows neither, and with fewer CPUs than
//! threads it puts the process beside one or the other.
//!
//! ```text
//!   free ---- kept waiting in a stream, and the switch is elsewhere ----> beside the switch
//!     ^                                                                       |
//!     '---- fewer packets than before, no stream, the switch has left, -------'
//!           or PLACEMENT_STAY is over
//! ```
//! Where each thread finds an idle CPU nothing is kept waiting, and nothing changes.

use std::time::{Duration, Instant};

use tool_common::host::process::{cpus_allowed, run_on_cpus};
use tool_common::host::process::{current_cpu, run_delay};
use tool_common::host::wait::STREAM;
use unetmap::Interest;

use crate::tuning::{PLACEMENT_INTERVAL, PLACEMENT_REST, PLACEMENT_STAY, PLACEMENT_WAIT_SHARE};

/// Moves the calling thread.
pub(crate) struct Placement {
    policy: Policy,
    /// The begin of the interval, and the thread's time of waiting for a CPU until then.
    since: Instant,
    waited: Duration,
    /// Packets in the interval, and how many of them the peer has received.
    packets: u64,
    received: u64,
    /// The CPUs that the thread may run on, while it may run on one of them only.
    allowed: Vec<usize>,
}

/// A sample of one interval.
#[derive(Clone, Copy)]
struct Sample {
    end: Instant,
    took: Duration,
    /// Time for which the thread was ready to run, and another one had its CPU.
    waited: Duration,
    packets: u64,
    cpu: u32,
    /// The CPU of the switch's thread, if it runs.
    switch_cpu: Option<u32>,
}

/// Decides where the thread runs.
#[derive(Default)]
struct Policy {
    /// The CPU on which the thread is kept.
    kept: Option<Kept>,
    /// It is not moved before this time.
    rests_until: Option<Instant>,
}

struct Kept {
    cpu: u32,
    until: Instant,
    /// Packets per second before, until they are compared to those since.
    before: Option<f64>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Move {
    To(u32),
    Release,
}

impl Placement {
    pub(crate) fn new() -> Placement {
        Placement {
            policy: Policy::default(),
            since: Instant::now(),
            waited: Duration::ZERO,
            packets: 0,
            received: 0,
            allowed: Vec::new(),
        }
    }

    /// Notes the packets of a round.
    #[inline]
    pub(crate) fn moved(&mut self, packets: u64, received: u64) {
        self.packets += packets;
        self.received += received;
    }

    /// Moves the thread if it is time to. `switch_cpu` returns the CPU of the thread that a ring's packets come from or
    /// go to.
    pub(crate) fn check(&mut self, switch_cpu: impl FnOnce(Interest) -> Option<u32>) {
        let end = Instant::now();
        let took = end - self.since;
        if took < PLACEMENT_INTERVAL {
            return;
        }
        // Without schedstat nothing is known, and nothing changes.
        let Ok(delay) = run_delay() else { return };
        let (packets, received) = (std::mem::take(&mut self.packets), std::mem::take(&mut self.received));
        let direction = if 2 * received > packets { Interest::RX } else { Interest::TX };
        let sample = Sample {
            end,
            took,
            waited: delay.saturating_sub(self.waited),
            packets,
            cpu: current_cpu(),
            switch_cpu: switch_cpu(direction),
        };
        (self.since, self.waited) = (end, delay);
        match self.policy.next(sample) {
            Some(Move::To(cpu)) => self.keep_on(cpu),
            Some(Move::Release) => self.release(),
            None => {}
        }
    }

    fn keep_on(&mut self, cpu: u32) {
        let allowed = cpus_allowed();
        if !allowed.contains(&(cpu as usize)) || run_on_cpus(&[cpu as usize]).is_err() {
            // An administrator has chosen the CPUs of this process.
            return self.policy.rest(Instant::now());
        }
        self.allowed = allowed;
    }

    /// Allows the CPUs of before, unless somebody else has chosen others meanwhile.
    fn release(&mut self) {
        if cpus_allowed().len() == 1 {
            let _ = run_on_cpus(&self.allowed);
        }
    }
}

impl Policy {
    fn rest(&mut self, now: Instant) {
        (self.kept, self.rests_until) = (None, Some(now + PLACEMENT_REST));
    }

    fn next(&mut self, sample: Sample) -> Option<Move> {
        let rate = sample.packets as f64 / sample.took.as_secs_f64();
        let is_stream = sample.packets >= STREAM;
        let Some(kept) = &mut self.kept else {
            let rests = self.rests_until.is_some_and(|until| sample.end < until);
            let is_kept_waiting = sample.waited * PLACEMENT_WAIT_SHARE >= sample.took;
            let cpu = sample.switch_cpu.filter(|cpu| *cpu != sample.cpu)?;
            if rests || !is_stream || !is_kept_waiting {
                return None;
            }
            self.kept = Some(Kept { cpu, until: sample.end + PLACEMENT_STAY, before: Some(rate) });
            return Some(Move::To(cpu));
        };
        let is_worse = kept.before.take().is_some_and(|before| rate < before);
        let has_left = sample.switch_cpu.is_some_and(|cpu| cpu != kept.cpu);
        if is_worse {
            self.rest(sample.end);
        } else if !is_stream || has_left || sample.end >= kept.until {
            self.kept = None;
        } else {
            return None;
        }
        Some(Move::Release)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    /// An interval of 10 ms that ends so many of them after `start`.
    fn sample(start: Instant, number: u32, waited: Duration, packets: u64, cpu: u32) -> Sample {
        let took = PLACEMENT_INTERVAL;
        Sample { end: start + took * number, took, waited, packets, cpu, switch_cpu: Some(0) }
    }

    #[test]
    fn a_thread_that_is_kept_waiting_moves_to_the_switch() {
        let (start, mut policy) = (Instant::now(), Policy::default());
        assert_eq!(policy.next(sample(start, 1, Duration::ZERO, 1000, 1)), None, "nobody keeps it waiting");
        assert_eq!(policy.next(sample(start, 2, 5 * MS, STREAM - 1, 1)), None, "there is no stream");
        assert_eq!(policy.next(sample(start, 3, 5 * MS, 1000, 0)), None, "it is there");
        let asleep = Sample { switch_cpu: None, ..sample(start, 4, 5 * MS, 1000, 1) };
        assert_eq!(policy.next(asleep), None, "the switch sleeps");
        assert_eq!(policy.next(sample(start, 5, 5 * MS, 1000, 1)), Some(Move::To(0)));
        // It stays there, even if it waits for the switch, until its time is over.
        let stay = (PLACEMENT_STAY.as_micros() / PLACEMENT_INTERVAL.as_micros()) as u32;
        assert!((6..5 + stay).all(|n| policy.next(sample(start, n, 5 * MS, 1000, 0)).is_none()));
        assert_eq!(policy.next(sample(start, 5 + stay, 5 * MS, 1000, 0)), Some(Move::Release));
        assert_eq!(policy.next(sample(start, 6 + stay, 5 * MS, 1000, 1)), Some(Move::To(0)), "it is moved again");
    }

    #[test]
    fn a_thread_is_released_where_the_move_was_no_good() {
        let moved = |start| {
            let mut policy = Policy::default();
            assert_eq!(policy.next(sample(start, 1, 5 * MS, 1000, 1)), Some(Move::To(0)));
            policy
        };
        let start = Instant::now();
        let mut policy = moved(start);
        assert_eq!(policy.next(sample(start, 2, MS, 999, 0)), Some(Move::Release), "fewer packets than before");
        assert_eq!(policy.next(sample(start, 3, 5 * MS, 1000, 1)), None, "it is not tried again at once");
        let rest = (PLACEMENT_REST.as_micros() / PLACEMENT_INTERVAL.as_micros()) as u32;
        assert_eq!(policy.next(sample(start, 2 + rest, 5 * MS, 1000, 1)), Some(Move::To(0)));

        let mut policy = moved(start);
        assert_eq!(policy.next(sample(start, 2, MS, 1000, 0)), None);
        let elsewhere = Sample { switch_cpu: Some(2), ..sample(start, 3, MS, 10, 0) };
        assert_eq!(policy.next(Sample { packets: 1000, ..elsewhere }), Some(Move::Release), "the switch has left");
        let mut policy = moved(start);
        assert_eq!(policy.next(sample(start, 2, MS, 1000, 0)), None);
        assert_eq!(policy.next(sample(start, 3, MS, 10, 0)), Some(Move::Release), "the stream has ended");
    }

    #[test]
    fn a_released_thread_may_run_where_it_might_before() {
        // Affinity is a property of the thread.
        std::thread::spawn(|| {
            let (allowed, mut placement) = (cpus_allowed(), Placement::new());
            let cpu = *allowed.last().unwrap();
            placement.keep_on(cpu as u32);
            assert_eq!(cpus_allowed(), [cpu]);
            placement.release();
            assert_eq!(cpus_allowed(), allowed);
            placement.keep_on(u32::MAX);
            assert_eq!(cpus_allowed(), allowed);
            assert!(placement.policy.rests_until.is_some());
        })
        .join()
        .unwrap();
    }
}
