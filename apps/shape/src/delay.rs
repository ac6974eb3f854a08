// SPDX-License-Identifier: BSD-2-Clause
//! Distributions of a link's delay.

use std::fmt;

use crate::Nanos;
use crate::random::Random;

/// How long a packet travels, after the link has sent it.
#[derive(Clone, Debug, PartialEq)]
pub enum Delay {
    /// The same for all packets.
    Constant(Nanos),
    /// All delays from the first to the second are equally probable.
    Uniform(Nanos, Nanos),
    /// Mean and standard deviation. Negative values become 0.
    Normal(Nanos, Nanos),
    /// A cumulative distribution: probabilities with delays, linear in between. Made by [`Delay::empirical`].
    Empirical(Box<[(f64, Nanos)]>),
}

/// Why a list is no distribution.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DelayError {
    /// Fewer than two points.
    Few,
    /// A probability outside of 0 to 1, or not a number.
    Probability,
    /// A probability or a delay that is below its predecessor.
    Order,
}

impl fmt::Display for DelayError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            DelayError::Few => "a distribution has at least two points, each a probability and a delay",
            DelayError::Probability => "a probability is a number from 0 to 1",
            DelayError::Order => "probabilities and delays must not decrease",
        })
    }
}

impl Default for Delay {
    fn default() -> Delay {
        Delay::Constant(0)
    }
}

impl Delay {
    /// Makes a distribution from points: the delay is at most `delay` with probability `probability`.
    ///
    /// # Errors
    /// Why the points are no distribution.
    pub fn empirical(points: Vec<(f64, Nanos)>) -> Result<Delay, DelayError> {
        if points.len() < 2 {
            return Err(DelayError::Few);
        }
        if points.iter().any(|(probability, _)| !(0.0..=1.0).contains(probability)) {
            return Err(DelayError::Probability);
        }
        if points.windows(2).any(|pair| pair[0].0 > pair[1].0 || pair[0].1 > pair[1].1) {
            return Err(DelayError::Order);
        }
        Ok(Delay::Empirical(points.into()))
    }

    /// Whether the delays of two packets can differ.
    pub fn varies(&self) -> bool {
        !matches!(self, Delay::Constant(_))
    }

    /// Draws a delay.
    #[inline]
    pub fn sample(&self, random: &mut Random) -> Nanos {
        match self {
            Delay::Constant(delay) => *delay,
            Delay::Uniform(from, to) => from + random.below((to.saturating_sub(*from)).saturating_add(1)),
            Delay::Normal(mean, deviation) => (*mean as f64 + random.normal() * *deviation as f64).max(0.0) as Nanos,
            Delay::Empirical(points) => quantile(points, random.unit()),
        }
    }
}

/// Returns the delay that a share `probability` of packets do not exceed.
fn quantile(points: &[(f64, Nanos)], probability: f64) -> Nanos {
    let after = points.partition_point(|point| point.0 <= probability);
    match (after.checked_sub(1).and_then(|at| points.get(at)), points.get(after)) {
        (Some(&(low, from)), Some(&(high, to))) => {
            from + ((probability - low) / (high - low) * (to - from) as f64) as Nanos
        }
        (Some(&(_, delay)), None) | (None, Some(&(_, delay))) => delay,
        (None, None) => 0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const DRAWS: usize = 200_000;

    /// Sorted draws.
    fn draws(delay: &Delay) -> Vec<Nanos> {
        let mut random = Random::new(5);
        let mut all: Vec<_> = (0..DRAWS).map(|_| delay.sample(&mut random)).collect();
        all.sort_unstable();
        all
    }

    /// The largest distance between the cumulative distributions of the draws and of `theory` (Kolmogorov and Smirnov):
    /// below 1.95 / sqrt(n) with a probability of 99.9 %.
    fn distance(draws: &[Nanos], theory: impl Fn(f64) -> f64) -> f64 {
        let n = draws.len() as f64;
        let gap = |(i, &x): (usize, &Nanos)| (i as f64 / n - theory(x as f64)).abs();
        draws.iter().enumerate().step_by(20).map(gap).fold(0.0, f64::max)
    }

    /// The cumulative normal distribution, by a sum (Simpson's rule).
    fn normal(x: f64) -> f64 {
        let density = |t: f64| (-t * t / 2.0).exp() / std::f64::consts::TAU.sqrt();
        let (steps, x) = (200, x.clamp(-8.0, 8.0));
        let h = x / f64::from(steps);
        let inner: f64 = (1..steps).map(|i| density(f64::from(i) * h) * if i % 2 == 1 { 4.0 } else { 2.0 }).sum();
        0.5 + (density(0.0) + density(x) + inner) * h / 3.0
    }

    #[test]
    fn draws_follow_their_distribution() {
        let bound = 1.95 / (DRAWS as f64).sqrt();
        let uniform = draws(&Delay::Uniform(10_000, 50_000));
        assert!(uniform[0] >= 10_000 && uniform[DRAWS - 1] <= 50_000);
        assert!(distance(&uniform, |x| (x - 10_000.0) / 40_000.0) < bound);
        let bell = draws(&Delay::Normal(1_000_000, 100_000));
        assert!(distance(&bell, |x| normal((x - 1_000_000.0) / 100_000.0)) < bound);
        let points = vec![(0.0, 1000), (0.5, 2000), (0.9, 10_000), (1.0, 100_000)];
        let drawn = draws(&Delay::empirical(points).expect("a distribution"));
        let theory = |x: f64| match x {
            x if x < 2000.0 => (x - 1000.0) / 2000.0,
            x if x < 10_000.0 => 0.5 + (x - 2000.0) / 20_000.0,
            x => 0.9 + (x - 10_000.0) / 900_000.0,
        };
        // Delays are whole nanoseconds: a step of 1 in 1000 of the first part.
        assert!(distance(&drawn, theory) < bound + 0.001);
        assert!(draws(&Delay::Constant(7)).iter().all(|&delay| delay == 7));
        assert_eq!(draws(&Delay::Normal(10, 1000))[0], 0, "no delay is negative");
    }

    #[test]
    fn lists_that_are_no_distribution_are_refused() {
        assert_eq!(Delay::empirical(vec![(0.5, 1)]), Err(DelayError::Few));
        assert_eq!(Delay::empirical(vec![(0.0, 1), (1.5, 2)]), Err(DelayError::Probability));
        assert_eq!(Delay::empirical(vec![(f64::NAN, 1), (1.0, 2)]), Err(DelayError::Probability));
        assert_eq!(Delay::empirical(vec![(0.0, 2), (1.0, 1)]), Err(DelayError::Order));
        let steps = Delay::empirical(vec![(0.2, 5), (0.2, 9), (0.8, 9)]).expect("a distribution");
        assert!(draws(&steps).iter().all(|delay| (5..=9).contains(delay)));
    }
}
