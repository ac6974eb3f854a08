//! What every function's loop starts from and ends with.

use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::{Duration, Instant};

use hdrhistogram::Histogram;
use unetmap::Port;

use crate::options::Config;
use crate::report::{Counters, Interval};
use crate::sequence::Gaps;

/// How long a loop waits before it looks whether it should stop.
pub(crate) const PATIENCE: Duration = Duration::from_millis(100);

/// One thread's share of the work.
pub(crate) struct Worker<'a> {
    pub(crate) config: &'a Config,
    pub(crate) port: &'a Port,
    pub(crate) counters: &'a Counters,
    /// Those of all threads, these among them.
    pub(crate) all: &'a [Counters],
    pub(crate) interval: &'a Interval,
    pub(crate) stop: &'a AtomicBool,
    /// Packets to send or receive; `u64::MAX` is no limit.
    pub(crate) count: u64,
    /// Packets a second.
    pub(crate) rate: Option<f64>,
}

impl Worker<'_> {
    pub(crate) fn stopped(&self) -> bool {
        self.stop.load(Relaxed)
    }
}

/// How a thread's work ended.
#[derive(Default)]
pub(crate) struct Outcome {
    /// First and last moment of the work; None if there was none.
    pub(crate) span: Option<(Instant, Instant)>,
    pub(crate) gaps: Option<Gaps>,
    pub(crate) ping: Option<PingOutcome>,
    /// Slots sent that the other side has not released.
    pub(crate) left: u64,
}

/// Round trips.
pub(crate) struct PingOutcome {
    /// Nanoseconds.
    pub(crate) rtt: Histogram<u64>,
    pub(crate) lost: u64,
}

/// Keeps a rate: batches start at even distances.
pub(crate) struct Pacer {
    rate: Option<f64>,
    next: Instant,
}

/// A sleep ends up to this late; the rest is spun.
const SLEEP_SLACK: Duration = Duration::from_micros(100);
/// A sender that was held up makes up for this much, no more.
const MAX_DEBT: Duration = Duration::from_millis(100);

impl Pacer {
    pub(crate) fn new(rate: Option<f64>) -> Pacer {
        Pacer { rate, next: Instant::now() }
    }

    /// Waits until the next batch is due; returns at once without a rate.
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
                let debt = now.saturating_duration_since(self.next);
                self.next += debt.saturating_sub(MAX_DEBT);
                return;
            }
            if stop.load(Relaxed) {
                return;
            }
            if ahead > SLEEP_SLACK {
                std::thread::sleep((ahead - SLEEP_SLACK).min(PATIENCE));
            } else {
                std::hint::spin_loop();
            }
        }
    }

    /// `packets` were sent: the next batch is due that much later.
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
        // Late is allowed (the machine may be busy), early is not: the 20th batch is due after 19 ms.
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
