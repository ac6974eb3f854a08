// SPDX-License-Identifier: BSD-2-Clause
//! How evenly the packets of a stream left, as the receiver sees it by the times in their signatures.

use crate::signature::elapsed;

/// Packets of a batch, at most: a stream that is due does not wait longer for another.
pub const BATCH: u32 = 64;

/// Observations of the departures of a stream whose rate is known.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Pace {
    /// Packets per second, from the first packet that arrived to the last.
    pub pps: f64,
    /// The longest burst: packets beyond what the rate allows in any span of time.
    pub burst: u64,
    /// The part of the packets that left within a batch ([`BATCH`]) of their place in the schedule.
    pub in_step: f64,
}

/// Follows the departures of a stream.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Pacer {
    pps: f64,
    first: (u64, u64),
    last: (u64, u64),
    /// The farthest behind the schedule so far, in packets; negative.
    lowest: f64,
    burst: f64,
    packets: u64,
    in_step: u64,
}

impl Pacer {
    /// Begins with a packet, which is in its place.
    pub(crate) fn new(pps: f64, number: u64, time: u64) -> Pacer {
        let first = (number, time);
        Pacer { pps, first, last: first, lowest: 0.0, burst: 1.0, packets: 1, in_step: 1 }
    }

    /// Takes note of a packet with a higher number than those before.
    #[inline]
    pub(crate) fn packet(&mut self, number: u64, time: u64) {
        self.last = (number, time);
        let due = elapsed(self.first.1, time) as f64 * self.pps / 1e9;
        let ahead = (number - self.first.0) as f64 - due;
        self.lowest = self.lowest.min(ahead);
        self.burst = self.burst.max(ahead - self.lowest + 1.0);
        self.packets += 1;
        self.in_step += u64::from(ahead.abs() <= f64::from(BATCH));
    }

    /// Returns what was seen; `None` of a single packet.
    pub(crate) fn pace(&self) -> Option<Pace> {
        let time = elapsed(self.first.1, self.last.1);
        (self.packets > 1 && time > 0).then(|| Pace {
            pps: (self.last.0 - self.first.0) as f64 * 1e9 / time as f64,
            burst: self.burst.round() as u64,
            in_step: self.in_step as f64 / self.packets as f64,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The pace of packets at these times, in microseconds, of a stream with a packet each microsecond.
    fn pace(times: impl IntoIterator<Item = (u64, u64)>) -> Pace {
        let mut times = times.into_iter();
        let (number, time) = times.next().expect("a packet");
        let mut pacer = Pacer::new(1e6, number, time * 1000);
        times.for_each(|(number, time)| pacer.packet(number, time * 1000));
        pacer.pace().expect("some packets")
    }

    #[test]
    fn an_even_stream_has_its_rate_and_no_burst() {
        assert_eq!(pace((7..1000).map(|n| (n, n))), Pace { pps: 1e6, burst: 1, in_step: 1.0 });
        let lossy = pace((0..1000).filter(|n| n % 3 != 1).map(|n| (n, n)));
        assert_eq!(lossy, Pace { pps: 1e6, burst: 1, in_step: 1.0 }, "lost packets have left in time");
    }

    #[test]
    fn a_sender_that_catches_up_sends_a_burst() {
        // It stands still for 200 us after 500 packets, and then sends what it has missed at once.
        let late = pace((0..1000).map(|n| (n, if (500..700).contains(&n) { 700 } else { n })));
        assert_eq!((late.pps, late.burst), (1e6, 201));
        let out_of_step = 1.0 - late.in_step;
        assert!((out_of_step - 0.136).abs() < 0.001, "136 of the 200 were later than 64 packets: {out_of_step}");
        // Batches: as many at once as there are in a batch.
        let batches = pace((0..1024).map(|n| (n, n / 64 * 64 + 63)));
        assert_eq!((batches.burst, batches.in_step), (64, 1.0));
    }

    #[test]
    fn a_slower_sender_is_seen() {
        let slow = pace((0..10_000).map(|n| (n, n * 10 / 9)));
        assert!((slow.pps / 9e5 - 1.0).abs() < 1e-3 && slow.in_step < 0.1, "{slow:?}");
        assert_eq!(Pacer::new(1e6, 0, 5).pace(), None);
    }
}
