//! When a packet is due.

use std::time::{Duration, Instant};

/// Waits that are shorter than this are not slept, but spun: a sleep lasts longer than it was told.
const SPIN: Duration = Duration::from_micros(100);

/// Packets a second.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Rate {
    /// As many as the port takes.
    Most,
    /// So many, above 0.
    Of(f64),
}

/// `max`, or a number with k, M or G behind it.
pub(crate) fn rate(text: &str) -> Result<Rate, String> {
    if text == "max" {
        return Ok(Rate::Most);
    }
    crate::scaled(text).map(|n| Rate::Of(n as f64))
}

/// A number above 0.
pub(crate) fn factor(text: &str) -> Result<f64, String> {
    text.parse().ok().filter(|f: &f64| *f > 0.0 && f.is_finite()).ok_or_else(|| "a number above 0".into())
}

/// The time that passes while a capture is sent.
pub(crate) struct Pace {
    rate: Option<Rate>,
    speed: f64,
    begun: Instant,
    /// The capture's first time.
    first: Option<Duration>,
    sent: u64,
}

impl Pace {
    /// By `rate`, or if there is none as it was captured, `speed` times as fast.
    pub(crate) fn new(rate: Option<Rate>, speed: f64) -> Pace {
        Pace { rate, speed, begun: Instant::now(), first: None, sent: 0 }
    }

    /// The capture begins once more: by its own times it begins now, at a rate it goes on.
    pub(crate) fn begin(&mut self) {
        if self.rate.is_none() {
            self.begun = Instant::now();
            self.first = None;
        }
    }

    /// How long it is until the next packet is due, which was captured at `time`; `None`: it is.
    pub(crate) fn wait(&mut self, time: Duration) -> Option<Duration> {
        let due = match self.rate {
            Some(Rate::Most) => return None,
            Some(Rate::Of(rate)) => self.sent as f64 / rate,
            // A capture that goes back in time does not wait.
            None => time.saturating_sub(*self.first.get_or_insert(time)).as_secs_f64() / self.speed,
        };
        // A time that is too far away is waited for in pieces.
        let due = Duration::try_from_secs_f64(due).unwrap_or(Duration::MAX);
        due.checked_sub(self.begun.elapsed()).filter(|left| !left.is_zero())
    }

    pub(crate) fn sent(&mut self) {
        self.sent += 1;
    }
}

/// Passes time, without oversleeping.
pub(crate) fn pause(wait: Duration) {
    if wait > SPIN {
        std::thread::sleep(wait - SPIN);
    } else {
        std::hint::spin_loop();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    #[test]
    fn a_captures_own_time_passes() {
        let mut pace = Pace::new(None, 1.0);
        pace.begin();
        assert_eq!(pace.wait(50 * SECOND), None, "the first is due at once");
        let wait = pace.wait(80 * SECOND).unwrap();
        assert!(wait > 29 * SECOND && wait <= 30 * SECOND, "{wait:?}");
        assert_eq!(pace.wait(40 * SECOND), None, "back in time");
        pace.speed = 10.0;
        let wait = pace.wait(80 * SECOND).unwrap();
        assert!(wait > 2 * SECOND && wait <= 3 * SECOND, "{wait:?}");
        pace.begin();
        assert_eq!(pace.wait(80 * SECOND), None, "once more");
        assert!(pace.wait(Duration::MAX).is_some());
    }

    #[test]
    fn a_rate_does_not_care_for_it() {
        let mut pace = Pace::new(Some(Rate::Of(1.0)), 1.0);
        pace.begin();
        assert_eq!(pace.wait(Duration::ZERO), None);
        pace.sent();
        let wait = pace.wait(Duration::ZERO).unwrap();
        assert!(wait <= SECOND, "{wait:?}");
        assert_eq!(Pace::new(Some(Rate::Most), 1.0).wait(80 * SECOND), None);
    }

    #[test]
    fn rates_as_people_write_them() {
        assert_eq!(rate("max"), Ok(Rate::Most));
        assert_eq!(rate("1500"), Ok(Rate::Of(1500.0)));
        assert_eq!(rate("2k"), Ok(Rate::Of(2000.0)));
        assert_eq!(rate("14.88M"), Ok(Rate::Of(14_880_000.0)));
        for wrong in ["", "0", "-1", "k", "1x", "nan", "inf", "1e99"] {
            assert!(rate(wrong).is_err(), "{wrong}");
        }
        assert!(factor("0").is_err() && factor("inf").is_err() && factor("2.5") == Ok(2.5));
    }
}
