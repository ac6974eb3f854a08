// SPDX-License-Identifier: BSD-2-Clause
//! Computes when the next packet is due.

use std::time::{Duration, Instant};

/// Waits shorter than this spin, because a sleep lasts longer than requested.
const SPIN_BELOW: Duration = Duration::from_micros(100);

/// Packets per second that can be given.
const RATE: std::ops::RangeInclusive<f64> = 1e-3..=1e15;

/// Packets per second.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Rate {
    /// As fast as the port can send.
    Max,
    /// This number, above 0.
    PerSecond(f64),
}

/// Parses `max`, or packets per second.
pub(crate) fn rate(text: &str) -> Result<Rate, String> {
    if text == "max" {
        return Ok(Rate::Max);
    }
    let rate = unetmap_quantity::packet_rate(text).map_err(|why| format!("{why}; or max"))?.as_f64();
    if RATE.contains(&rate) {
        Ok(Rate::PerSecond(rate))
    } else {
        Err("give a number above 0, 0.001 to 1e15 packets per second, or max".into())
    }
}

/// Parses a number above 0.
pub(crate) fn factor(text: &str) -> Result<f64, String> {
    text.parse().ok().filter(|f: &f64| *f > 0.0 && f.is_finite()).ok_or_else(|| "give a number above 0".into())
}

/// The schedule by which a capture is sent.
pub(crate) struct Pace {
    rate: Option<Rate>,
    speed: f64,
    begin: Instant,
    /// Timestamp of the first packet of the capture.
    first: Option<Duration>,
    sent: u64,
}

impl Pace {
    /// Returns a schedule by `rate`, or by the timestamps of the capture divided by `speed`.
    pub(crate) fn new(rate: Option<Rate>, speed: f64) -> Pace {
        Pace { rate, speed, begin: Instant::now(), first: None, sent: 0 }
    }

    /// Starts the capture from its beginning. A schedule by timestamps restarts; a schedule by rate continues.
    pub(crate) fn begin(&mut self) {
        if self.rate.is_none() {
            self.begin = Instant::now();
            self.first = None;
        }
    }

    /// Returns the time until the next packet is due, which was captured at `time` (`None`: unknown); `None` if it is
    /// due now.
    pub(crate) fn wait(&mut self, time: Option<Duration>) -> Option<Duration> {
        let due = match self.rate {
            Some(Rate::Max) => return None,
            Some(Rate::PerSecond(rate)) => self.sent as f64 / rate,
            // A packet with a timestamp before the first one is due at once, and so is one without.
            None => {
                time.map_or(0.0, |time| time.saturating_sub(*self.first.get_or_insert(time)).as_secs_f64() / self.speed)
            }
        };
        // The caller limits each wait, so a time that is out of range only has to be long.
        let due = Duration::try_from_secs_f64(due).unwrap_or(Duration::MAX);
        due.checked_sub(self.begin.elapsed()).filter(|left| !left.is_zero())
    }

    pub(crate) fn sent(&mut self) {
        self.sent += 1;
    }
}

/// Waits for at most `wait`. May return early, so the caller calls it in a loop.
pub(crate) fn pause(wait: Duration) {
    if wait > SPIN_BELOW {
        std::thread::sleep(wait - SPIN_BELOW);
    } else {
        std::hint::spin_loop();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    #[test]
    fn without_a_rate_packets_are_due_by_their_timestamps() {
        let mut pace = Pace::new(None, 1.0);
        pace.begin();
        assert_eq!(pace.wait(None), None, "a packet without a timestamp");
        assert_eq!(pace.wait(Some(50 * SECOND)), None, "the first packet is due at once");
        let wait = pace.wait(Some(80 * SECOND)).unwrap();
        assert!(wait > 29 * SECOND && wait <= 30 * SECOND, "{wait:?}");
        assert_eq!(pace.wait(Some(40 * SECOND)), None, "a timestamp before the first one");
        pace.speed = 10.0;
        let wait = pace.wait(Some(80 * SECOND)).unwrap();
        assert!(wait > 2 * SECOND && wait <= 3 * SECOND, "{wait:?}");
        pace.begin();
        assert_eq!(pace.wait(Some(80 * SECOND)), None, "the first packet of the next round");
        assert!(pace.wait(Some(Duration::MAX)).is_some());
    }

    #[test]
    fn with_a_rate_timestamps_are_ignored() {
        let mut pace = Pace::new(Some(Rate::PerSecond(1.0)), 1.0);
        pace.begin();
        assert_eq!(pace.wait(Some(Duration::ZERO)), None);
        pace.sent();
        let wait = pace.wait(Some(Duration::ZERO)).unwrap();
        assert!(wait <= SECOND, "{wait:?}");
        assert_eq!(Pace::new(Some(Rate::Max), 1.0).wait(Some(80 * SECOND)), None);
    }

    #[test]
    fn rates_are_parsed_or_refused() {
        assert_eq!(rate("max"), Ok(Rate::Max));
        assert_eq!(rate("1500"), Ok(Rate::PerSecond(1500.0)));
        assert_eq!((rate("2k"), rate("2Kpps")), (Ok(Rate::PerSecond(2000.0)), Ok(Rate::PerSecond(2000.0))));
        assert_eq!(rate("14.88M"), Ok(Rate::PerSecond(14_880_000.0)));
        for wrong in ["", "0", "-1", "k", "1x", "2Mbit", "nan", "inf", "1e99"] {
            assert!(rate(wrong).is_err(), "{wrong}");
        }
        assert!(factor("0").is_err() && factor("inf").is_err() && factor("2.5") == Ok(2.5));
    }
}
