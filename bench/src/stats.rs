// SPDX-License-Identifier: BSD-2-Clause
//! Samples, placement classes, and summaries.

use std::fmt;

/// A round trip of one cache line below this many nanoseconds is class [`PlacementClass::L`].
pub(crate) const NEAR_BELOW_NS: f64 = 200.0;

/// The distance of the two cores while a sample was measured. Figures of different classes are never compared.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PlacementClass {
    /// Local: the round trip of a cache line takes less than 200 ns (the cores share a cache).
    L,
    /// Remote: the round trip takes 200 ns or more.
    R,
}

impl PlacementClass {
    /// Both classes, local first.
    pub const ALL: [PlacementClass; 2] = [PlacementClass::L, PlacementClass::R];

    /// Returns the class of a round trip in nanoseconds.
    pub(crate) fn of_round_trip(ns: f64) -> PlacementClass {
        if ns < NEAR_BELOW_NS { PlacementClass::L } else { PlacementClass::R }
    }

    /// Returns what the letter stands for.
    pub(crate) fn meaning(self) -> &'static str {
        match self {
            PlacementClass::L => "the cores are near each other",
            PlacementClass::R => "the cores are far from each other",
        }
    }

    /// Parses the letter in JSON.
    pub(crate) fn from_letter(text: &str) -> Option<PlacementClass> {
        PlacementClass::ALL.into_iter().find(|class| class.to_string() == text)
    }
}

impl fmt::Display for PlacementClass {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            PlacementClass::L => "L",
            PlacementClass::R => "R",
        })
    }
}

/// One measurement, or a peer's summary of several.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Sample {
    pub(crate) median: f64,
    /// At most `median`.
    pub(crate) min: f64,
    /// At least `median`.
    pub(crate) max: f64,
    /// Number of measurements, 1 or more.
    pub(crate) n: u32,
}

impl Sample {
    /// Creates a sample of a single measurement.
    pub(crate) fn one(value: f64) -> Sample {
        Sample { median: value, min: value, max: value, n: 1 }
    }
}

/// All samples of one contestant in one class.
#[derive(Clone, Debug, Default)]
pub(crate) struct Samples(Vec<Sample>);

impl Samples {
    pub(crate) fn add(&mut self, sample: Sample) {
        self.0.push(sample);
    }

    /// Returns the interval that contains the median of all measurements that could be made with a probability of 95 %
    /// or more: two of the samples, by the binomial distribution. Of fewer than six samples it is their range.
    pub(crate) fn interval(&self) -> Option<(f64, f64)> {
        let mut medians: Vec<f64> = self.0.iter().map(|s| s.median).collect();
        medians.sort_by(f64::total_cmp);
        let n = medians.len();
        if self.0.iter().any(|s| s.n > 1) || n < 6 {
            return self.summary().map(|all| (all.min, all.max));
        }
        let (mut k, mut below, mut term) = (0, 0.0, 0.5_f64.powi(n as i32));
        while below + term <= 0.025 {
            below += term;
            term *= (n - k) as f64 / (k + 1) as f64;
            k += 1;
        }
        Some((medians[k.max(1) - 1], medians[n - k.max(1)]))
    }

    /// Returns the number of measurements.
    pub(crate) fn count(&self) -> u32 {
        self.0.iter().map(|s| s.n).sum()
    }

    /// Returns the median of the medians, each weighted by its `n`, and the extremes; `None` if there are no samples.
    pub(crate) fn summary(&self) -> Option<Sample> {
        Some(Sample {
            median: weighted_median(&self.0)?,
            min: self.0.iter().map(|s| s.min).min_by(f64::total_cmp)?,
            max: self.0.iter().map(|s| s.max).max_by(f64::total_cmp)?,
            n: self.count(),
        })
    }
}

/// Returns the value with half of the weight on each side, or the mean of two such values. With weights of 1 this is
/// the ordinary median.
fn weighted_median(samples: &[Sample]) -> Option<f64> {
    let mut sorted: Vec<&Sample> = samples.iter().collect();
    sorted.sort_by(|a, b| a.median.total_cmp(&b.median));
    let total: u64 = sorted.iter().map(|s| u64::from(s.n)).sum();
    let mut below = 0;
    for (i, sample) in sorted.iter().enumerate() {
        below += u64::from(sample.n);
        if 2 * below > total {
            return Some(sample.median);
        }
        if 2 * below == total {
            let next = sorted.get(i + 1).map_or(sample.median, |s| s.median);
            return Some(f64::midpoint(sample.median, next));
        }
    }
    None
}

/// Returns the value that 99 of 100 values do not exceed; 0 if there are none.
pub(crate) fn p99(values: &[f64]) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let rank = (sorted.len() * 99).div_ceil(100);
    sorted.get(rank.saturating_sub(1)).copied().unwrap_or(0.0)
}

/// Returns the median of `values`; 0 if there are none.
pub(crate) fn median(values: &[f64]) -> f64 {
    let samples: Vec<Sample> = values.iter().copied().map(Sample::one).collect();
    weighted_median(&samples).unwrap_or(0.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_value_of_a_hundred_is_above_the_99th_percentile() {
        let rising: Vec<f64> = (1..=100).rev().map(f64::from).collect();
        assert_eq!((p99(&rising), p99(&rising[..10]), p99(&[7.0]), p99(&[])), (99.0, 100.0, 7.0, 0.0));
        let many: Vec<f64> = (1..=1000).map(f64::from).collect();
        assert_eq!(p99(&many), 990.0);
    }

    fn samples(list: &[(f64, f64, f64, u32)]) -> Samples {
        Samples(list.iter().map(|&(median, min, max, n)| Sample { median, min, max, n }).collect())
    }

    #[test]
    fn the_median_is_the_middle_value_or_the_mean_of_two() {
        assert_eq!(median(&[]), 0.0);
        assert_eq!(median(&[3.0]), 3.0);
        assert_eq!(median(&[9.0, 1.0, 3.0]), 3.0);
        assert_eq!(median(&[9.0, 1.0, 3.0, 4.0]), 3.5);
        assert_eq!(median(&[1.0, 2.0]), 1.5);
    }

    #[test]
    fn the_summary_weights_samples_by_n() {
        let all = samples(&[(10.0, 8.0, 11.0, 1), (20.0, 15.0, 30.0, 8)]).summary().unwrap();
        assert_eq!(all, Sample { median: 20.0, min: 8.0, max: 30.0, n: 9 });
        let even = samples(&[(30.0, 30.0, 30.0, 2), (10.0, 10.0, 10.0, 3), (20.0, 20.0, 20.0, 1)]).summary().unwrap();
        assert_eq!((even.median, even.n), (15.0, 6));
        assert_eq!(samples(&[]).summary(), None);
    }

    #[test]
    fn the_interval_is_that_of_order_statistics() {
        let of = |n: u32| Samples((1..=n).map(|i| Sample::one(f64::from(i))).collect()).interval();
        assert_eq!(of(0), None);
        assert_eq!(of(3), Some((1.0, 3.0)));
        assert_eq!(of(7), Some((1.0, 7.0)));
        assert_eq!((of(9), of(20)), (Some((2.0, 8.0)), Some((6.0, 15.0))));
        assert_eq!(samples(&[(10.0, 8.0, 11.0, 9)]).interval(), Some((8.0, 11.0)));
    }

    #[test]
    fn a_weight_is_equivalent_to_repetition() {
        let values = [5.0, 1.0, 4.0, 4.5, 2.0];
        for weights in [[1, 1, 1, 1, 1], [3, 1, 2, 1, 7], [1, 9, 1, 1, 1]] {
            let mut repeated = Vec::new();
            let mut weighted = Samples::default();
            for (&value, n) in values.iter().zip(weights) {
                repeated.extend(std::iter::repeat_n(value, n as usize));
                weighted.add(Sample { n, ..Sample::one(value) });
            }
            assert_eq!(weighted.summary().unwrap().median, median(&repeated));
        }
    }

    #[test]
    fn classes_have_letters() {
        assert_eq!(PlacementClass::of_round_trip(199.9), PlacementClass::L);
        assert_eq!(PlacementClass::of_round_trip(200.0), PlacementClass::R);
        for class in PlacementClass::ALL {
            assert_eq!(PlacementClass::from_letter(&class.to_string()), Some(class));
        }
        assert_eq!(PlacementClass::from_letter("S"), None);
        assert_eq!(PlacementClass::from_letter(""), None);
    }
}
