// SPDX-License-Identifier: BSD-2-Clause
//! When the packets of a stream leave. Departures are computed from what was sent since the start, so that errors of
//! single departures do not add up.

use crate::{Random, SECOND};

/// Bytes that Ethernet adds to each packet: preamble, FCS and the gap between frames.
pub const FRAMING: u64 = 24;

/// The unit that a rate counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unit {
    /// Packets.
    Packets,
    /// Bits of packets, without FCS.
    Bits,
    /// Bits on the link, with FCS, preamble and gap.
    LinkBits,
}

/// A rate.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Rate {
    /// In millionths of a unit per second, at least 1.
    micro: u64,
    unit: Unit,
}

impl Rate {
    /// Returns the rate of `per_second` units; None if it is below a millionth, or above 10^13.
    pub fn new(per_second: f64, unit: Unit) -> Option<Rate> {
        let micro = (per_second * 1e6).round();
        (1.0..=1e19).contains(&micro).then_some(Rate { micro: micro as u64, unit })
    }

    /// Returns the units per second.
    pub fn per_second(&self) -> f64 {
        self.micro as f64 / 1e6
    }

    /// Returns what the rate counts.
    pub fn unit(&self) -> Unit {
        self.unit
    }

    /// Returns the units of a packet.
    fn units(&self, size: usize) -> u64 {
        match self.unit {
            Unit::Packets => 1,
            Unit::Bits => 8 * size as u64,
            Unit::LinkBits => 8 * (size as u64 + FRAMING),
        }
    }
}

/// How departures are distributed over time.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub enum Shape {
    /// At equal distances.
    #[default]
    Constant,
    /// So many packets at once, at the mean rate.
    Burst(u32),
    /// Random distances, exponentially distributed, of the mean rate.
    Poisson,
    /// From this many units per second to the rate, in `over` nanoseconds; then at the rate.
    Ramp {
        /// Units per second at the start.
        from: f64,
        /// Duration of the change, in nanoseconds.
        over: u64,
    },
    /// At the rate for `on` nanoseconds, then nothing for `off`.
    OnOff {
        /// Nanoseconds.
        on: u64,
        /// Nanoseconds.
        off: u64,
    },
}

/// The departures of one stream.
#[derive(Clone, Debug)]
pub struct Schedule {
    rate: Rate,
    shape: Shape,
    start: u64,
    stop: Option<u64>,
    left: u64,
    /// Units of all packets until now; of bursts, those before the current one.
    units: u128,
    burst_units: u128,
    in_burst: u32,
    /// Of Poisson: nanoseconds after the start.
    at: f64,
    random: Random,
}

impl Schedule {
    /// Returns the departures of at most `count` packets, from `start` until before `stop`, in nanoseconds.
    pub fn new(rate: Rate, shape: Shape, (start, stop): (u64, Option<u64>), count: u64, seed: u64) -> Schedule {
        let random = Random(seed ^ 0x5ced);
        Schedule { rate, shape, start, stop, left: count, units: 0, burst_units: 0, in_burst: 0, at: 0.0, random }
    }

    /// Returns when the next packet leaves; None after the last.
    pub fn next(&self) -> Option<u64> {
        if self.left == 0 {
            return None;
        }
        let at = self.start.saturating_add(self.after_start());
        self.stop.is_none_or(|stop| at < stop).then_some(at)
    }

    fn after_start(&self) -> u64 {
        let evenly = || {
            let ns = self.units * u128::from(SECOND) * 1_000_000 / u128::from(self.rate.micro);
            u64::try_from(ns).unwrap_or(u64::MAX)
        };
        match self.shape {
            Shape::Constant | Shape::Burst(_) => evenly(),
            Shape::Poisson => self.at as u64,
            Shape::Ramp { from, over } => ramp(from, self.rate.per_second(), over, self.units as f64),
            Shape::OnOff { on, off } => {
                let active = evenly();
                (active / on).saturating_mul(on.saturating_add(off)).saturating_add(active % on)
            }
        }
    }

    /// Takes note that the next packet has left, of `size` bytes.
    pub fn sent(&mut self, size: usize) {
        self.left = self.left.saturating_sub(1);
        let units = self.rate.units(size);
        match self.shape {
            Shape::Burst(packets) => {
                self.burst_units += u128::from(units);
                self.in_burst += 1;
                if self.in_burst >= packets {
                    self.units += std::mem::take(&mut self.burst_units);
                    self.in_burst = 0;
                }
            }
            Shape::Poisson => {
                let mean = units as f64 * SECOND as f64 / self.rate.per_second();
                self.at -= mean * self.random.unit().ln();
            }
            Shape::Constant | Shape::Ramp { .. } | Shape::OnOff { .. } => self.units += u128::from(units),
        }
    }
}

/// Returns the nanoseconds until `units` have left, if the rate rises (or falls) evenly from `from` to `to` in `over`.
fn ramp(from: f64, to: f64, over: u64, units: f64) -> u64 {
    let time = over as f64 / SECOND as f64;
    let whole = (from + to) / 2.0 * time;
    let seconds = if units >= whole {
        time + (units - whole) / to
    } else {
        // The root of from * t + slope / 2 * t^2 = units, in the form that also holds for a slope near zero.
        let slope = (to - from) / time;
        2.0 * units / (from + (from * from + 2.0 * slope * units).max(0.0).sqrt())
    };
    (seconds * SECOND as f64) as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    const EVERY: (u64, Option<u64>) = (0, None);

    fn departures(shape: Shape, per_second: f64, n: usize) -> Vec<u64> {
        let rate = Rate::new(per_second, Unit::Packets).unwrap();
        let mut schedule = Schedule::new(rate, shape, EVERY, u64::MAX, 1);
        let mut next = || {
            let at = schedule.next().unwrap();
            schedule.sent(60);
            at
        };
        (0..n).map(|_| next()).collect()
    }

    #[test]
    fn constant_rates_do_not_drift() {
        // A third of a nanosecond is lost by rounding down, once.
        let all = departures(Shape::Constant, 3e6, 3_000_001);
        assert_eq!((all[1], all[2], all[3], all[3_000_000]), (333, 666, 1000, 1_000_000_000));
        let slow = departures(Shape::Constant, 0.5, 3);
        assert_eq!(slow, [0, 2_000_000_000, 4_000_000_000]);
    }

    #[test]
    fn bits_and_shares_of_the_link_count_sizes() {
        for (unit, bits) in [(Unit::Bits, 8 * 60 + 8 * 1514), (Unit::LinkBits, 8 * 84 + 8 * 1538)] {
            let rate = Rate::new(1e9, unit).unwrap();
            let mut schedule = Schedule::new(rate, Shape::Constant, EVERY, u64::MAX, 1);
            for i in 0..100_000 {
                schedule.sent(if i % 2 == 0 { 60 } else { 1514 });
            }
            assert_eq!(schedule.next(), Some(50_000 * bits));
        }
    }

    #[test]
    fn bursts_leave_at_once_at_the_mean_rate() {
        let all = departures(Shape::Burst(32), 1e6, 32 * 100 + 1);
        for (i, burst) in all.chunks_exact(32).enumerate() {
            assert!(burst.iter().all(|at| *at == i as u64 * 32_000), "burst {i}: {burst:?}");
        }
        assert_eq!(all[3200], 3_200_000);
    }

    #[test]
    fn poisson_departures_have_the_mean_and_the_variance_of_their_rate() {
        let n = 1_000_000;
        let all = departures(Shape::Poisson, 1e6, n + 1);
        let mean = all[n] as f64 / n as f64;
        // The mean of n distances deviates by a thousandth of a distance (n^-0.5): four times that.
        assert!((mean - 1000.0).abs() < 4.0, "{mean}");
        let variance = all.windows(2).map(|w| ((w[1] - w[0]) as f64 - mean).powi(2)).sum::<f64>() / n as f64;
        assert!((variance.sqrt() / mean - 1.0).abs() < 0.01, "{variance}");
    }

    #[test]
    fn ramps_rise_and_fall_evenly() {
        for (from, to) in [(1e5, 1e6), (1e6, 1e5), (0.0, 1e6), (1e6, 1e6)] {
            let all = departures(Shape::Ramp { from, over: SECOND }, to, 2_000_000);
            assert!(all.is_sorted());
            let until = |seconds: f64| all.partition_point(|at| (*at as f64) < seconds * 1e9) as f64;
            for t in [0.25, 0.5, 0.75, 1.0] {
                let expected = from * t + (to - from) * t * t / 2.0;
                assert!((until(t) - expected).abs() <= expected * 1e-3 + 1.0, "{from} {to} {t}: {}", until(t));
            }
            let after = until(1.1) - until(1.0);
            assert!((after - to * 0.1).abs() <= to * 1e-4 + 1.0, "{from} {to}: {after}");
        }
    }

    #[test]
    fn on_and_off_alternate() {
        let all = departures(Shape::OnOff { on: 1_000_000, off: 9_000_000 }, 1e6, 10_000);
        for (i, on) in all.chunks_exact(1000).enumerate() {
            let begin = i as u64 * 10_000_000;
            assert_eq!((on[0], on[999]), (begin, begin + 999_000));
        }
    }

    #[test]
    fn count_start_and_stop_bound_a_stream() {
        let rate = Rate::new(1e3, Unit::Packets).unwrap();
        let all = |times, count| {
            let mut schedule = Schedule::new(rate, Shape::Constant, times, count, 1);
            std::iter::from_fn(|| schedule.next().inspect(|_| schedule.sent(60))).collect::<Vec<_>>()
        };
        assert_eq!(all((5_000_000, None), 2), [5_000_000, 6_000_000]);
        assert_eq!(all((5_000_000, Some(8_000_000)), 100).len(), 3);
        assert_eq!(all((0, Some(0)), 100).len(), 0);
        assert_eq!(all((0, None), 0).len(), 0);
    }
}
