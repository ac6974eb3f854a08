// SPDX-License-Identifier: BSD-2-Clause
//! Input and result of each thread, and the rate limit.

use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::{Duration, Instant};

use hdrhistogram::Histogram;
use tool_common::generator::STOP_CHECK_INTERVAL;
use unetmap::Port;

use crate::options::Config;
use crate::report::{Counters, IntervalNumber};
use crate::sequence::Gaps;

/// The input of one thread.
pub(crate) struct Worker<'a> {
    pub(crate) config: &'a Config,
    pub(crate) port: &'a Port,
    pub(crate) counters: &'a Counters,
    /// The counters of all threads, including `counters`.
    pub(crate) all: &'a [Counters],
    pub(crate) interval: &'a IntervalNumber,
    pub(crate) stop: &'a AtomicBool,
    /// Packets to send or receive. `u64::MAX`: no limit.
    pub(crate) count: u64,
    /// Packets per second.
    pub(crate) rate: Option<f64>,
}

impl Worker<'_> {
    pub(crate) fn stopped(&self) -> bool {
        self.stop.load(Relaxed)
    }
}

/// The result of one thread.
#[derive(Default)]
pub(crate) struct Outcome {
    /// Start and end of the transfer. None if no packet was transferred.
    pub(crate) span: Option<(Instant, Instant)>,
    pub(crate) gaps: Option<Gaps>,
    pub(crate) ping: Option<PingOutcome>,
    /// Sent slots that the peer has not released.
    pub(crate) unreleased: u64,
}

/// The result of ping.
pub(crate) struct PingOutcome {
    /// Round-trip times in nanoseconds.
    pub(crate) rtt: Histogram<u64>,
    pub(crate) lost: u64,
}

/// Limits the rate: batches start at regular intervals.
pub(crate) struct Pacer {
    rate: Option<f64>,
    next: Instant,
}

/// A sleep may end this much too late; the rest of a wait is spun.
const SLEEP_SLACK: Duration = Duration::from_micros(100);
/// A delayed sender catches up on at most this much time.
const MAX_CATCH_UP: Duration = Duration::from_millis(100);

impl Pacer {
    pub(crate) fn new(rate: Option<f64>) -> Pacer {
        Pacer { rate, next: Instant::now() }
    }

    /// Waits until the next batch is due. Returns at once without a rate.
    #[inline(always)]
    pub(crate) fn wait(&mut self, stop: &AtomicBool) {
        if self.rate.is_some() {
            self.wait_for_rate(stop);
        }
    }

    #[inline(never)]
    fn wait_for_rate(&mut self, stop: &AtomicBool) {
        loop {
            let now = Instant::now();
            let ahead = self.next.saturating_duration_since(now);
            if ahead.is_zero() {
                let delay = now.saturating_duration_since(self.next);
                self.next += delay.saturating_sub(MAX_CATCH_UP);
                return;
            }
            if stop.load(Relaxed) {
                return;
            }
            if ahead > SLEEP_SLACK {
                std::thread::sleep((ahead - SLEEP_SLACK).min(STOP_CHECK_INTERVAL));
            } else {
                std::hint::spin_loop();
            }
        }
    }

    /// Records that `packets` were sent, which delays the next batch accordingly.
    pub(crate) fn sent(&mut self, packets: u64) {
        if let Some(rate) = self.rate {
            self.next += Duration::from_secs_f64(packets as f64 / rate);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pacer_never_runs_ahead_of_its_rate() {
        let stop = AtomicBool::new(false);
        let begin = Instant::now();
        let mut pacer = Pacer::new(Some(100_000.0));
        for _ in 0..20 {
            pacer.wait(&stop);
            pacer.sent(100);
        }
        // The pacer may be late, because the machine may be busy, but never early: the 20th batch is due after 19 ms.
        assert!(begin.elapsed() >= Duration::from_millis(19));
    }

    #[test]
    fn a_stopped_pacer_returns() {
        let stop = AtomicBool::new(true);
        let mut pacer = Pacer::new(Some(0.001));
        pacer.sent(1);
        pacer.wait(&stop);
    }
}
