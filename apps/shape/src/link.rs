// SPDX-License-Identifier: BSD-2-Clause
//! When a link has sent a packet.

use std::sync::Arc;

use crate::trace::{OPPORTUNITY, Trace};
use crate::{Nanos, SECOND};

/// How fast a link sends.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Rate {
    /// Without limit.
    #[default]
    Unlimited,
    /// Bits per second, not 0.
    Bits(u64),
    /// At the times of a trace.
    Trace(Arc<Trace>),
}

/// Time of a link: when it has sent what it was given.
#[derive(Clone, Debug, Default)]
pub(crate) struct LinkClock {
    /// When the link is free.
    free_at: Nanos,
    /// Remainder of the last division, in bits times nanoseconds: no fraction of a bit is lost in the long run.
    rest: u64,
    /// Trace: when it began.
    begin: Option<Nanos>,
    /// Trace: the next opportunity.
    next: u64,
    /// Trace: bytes left of the last opportunity.
    left: u32,
}

impl LinkClock {
    /// When the link can begin with the next packet.
    #[inline]
    pub(crate) fn free_at(&self) -> Nanos {
        self.free_at
    }

    /// Sends a packet of `len` bytes that was ready at `start`, which is not before [`LinkClock::free_at`]. After idle
    /// time, `burst` bytes are sent at once. Returns when the packet has been sent.
    #[inline]
    pub(crate) fn transmit(&mut self, rate: &Rate, burst: u64, start: Nanos, len: u32) -> Nanos {
        match rate {
            Rate::Unlimited => start,
            Rate::Bits(bits) => {
                let credit = u128::from(burst) * 8 * u128::from(SECOND) / u128::from(*bits);
                let earliest = start.saturating_sub(u64::try_from(credit).unwrap_or(u64::MAX));
                if self.free_at < earliest {
                    self.free_at = earliest;
                    self.rest = 0;
                }
                let work = u64::from(len) * 8 * SECOND + self.rest;
                self.free_at += work / bits;
                self.rest = work % bits;
                self.free_at.max(start)
            }
            Rate::Trace(trace) => self.transmit_by_trace(trace, start, len),
        }
    }

    fn transmit_by_trace(&mut self, trace: &Trace, start: Nanos, mut len: u32) -> Nanos {
        let begin = *self.begin.get_or_insert(start);
        if start > self.free_at || self.next == 0 {
            // The link was idle: opportunities have passed unused, the rest of the last one too.
            self.next = self.next.max(trace.first_at(start - begin));
            self.left = 0;
        }
        while len > self.left {
            len -= self.left;
            self.left = OPPORTUNITY;
            self.free_at = begin + trace.time(self.next);
            self.next += 1;
        }
        self.left -= len;
        self.free_at
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::MILLISECOND;

    #[test]
    fn the_long_run_rate_is_exact() {
        // 60 bytes at 7 Mbit/s take 68571.43 ns each.
        let (mut clock, rate) = (LinkClock::default(), Rate::Bits(7_000_000));
        let mut end = 0;
        for _ in 0..700_000 {
            end = clock.transmit(&rate, 0, end, 60);
        }
        assert_eq!(end, 48 * SECOND);
    }

    #[test]
    fn idle_time_gives_a_burst_and_no_more() {
        let rate = Rate::Bits(8_000_000); // a byte each microsecond
        let mut clock = LinkClock::default();
        let start = SECOND;
        let ends: Vec<_> = (0..4).map(|_| clock.transmit(&rate, 2000, start, 1000) - start).collect();
        assert_eq!(ends, [0, 0, MILLISECOND, 2 * MILLISECOND]);
        // Without a burst, idle time gives nothing.
        let mut clock = LinkClock::default();
        assert_eq!(clock.transmit(&rate, 0, start, 1000), start + MILLISECOND);
    }

    #[test]
    fn a_trace_sends_1504_bytes_at_each_of_its_times() {
        let trace = Rate::Trace(Arc::new(Trace::parse("10\n20\n20\n40").unwrap()));
        let mut clock = LinkClock::default();
        let begin = 5 * SECOND;
        let mut send = |start: Nanos, len| (clock.transmit(&trace, 0, begin + start, len) - begin) / MILLISECOND;
        assert_eq!(send(0, 1504), 10);
        assert_eq!(send(10 * MILLISECOND, 1000), 20);
        // The rest of that opportunity, and the second at the same time.
        assert_eq!(send(20 * MILLISECOND, 1000), 20);
        assert_eq!(send(20 * MILLISECOND, 2000), 40);
        // Idle until the second round: an opportunity at 60.
        assert_eq!(send(55 * MILLISECOND, 10), 60);
        // What an idle link leaves of an opportunity is lost.
        assert_eq!(send(61 * MILLISECOND, 10), 80);
    }
}
