//! Samples, the classes they belong to, and what many of them say together.

use std::fmt;

/// Round trips of one cache line below this many nanoseconds are class [`Class::L`].
pub(crate) const NEAR_BELOW_NS: f64 = 200.0;

/// How far apart the two cores were while a sample was taken. Figures of different classes are never compared.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Class {
    /// Local: a cache line goes there and back in less than 200 ns (the cores share a cache).
    L,
    /// Remote: it takes 200 ns or more.
    R,
}

impl Class {
    /// Both, nearest first.
    pub const ALL: [Class; 2] = [Class::L, Class::R];

    /// The class of a round trip, in nanoseconds.
    pub(crate) fn of_round_trip(ns: f64) -> Class {
        if ns < NEAR_BELOW_NS { Class::L } else { Class::R }
    }

    /// As it is written in JSON.
    pub(crate) fn from_letter(text: &str) -> Option<Class> {
        Class::ALL.into_iter().find(|class| class.to_string() == text)
    }
}

impl fmt::Display for Class {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Class::L => "L",
            Class::R => "R",
        })
    }
}

/// One measurement, or a summary of several that its maker has already made.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Sample {
    pub(crate) median: f64,
    /// At most `median`.
    pub(crate) min: f64,
    /// At least `median`.
    pub(crate) max: f64,
    /// How many measurements this stands for, 1 or more.
    pub(crate) n: u32,
}

impl Sample {
    /// A single measurement.
    pub(crate) fn one(value: f64) -> Sample {
        Sample { median: value, min: value, max: value, n: 1 }
    }
}

/// All samples of one side in one class.
#[derive(Clone, Debug, Default)]
pub(crate) struct Samples(Vec<Sample>);

impl Samples {
    pub(crate) fn add(&mut self, sample: Sample) {
        self.0.push(sample);
    }

    /// Measurements, each counted once.
    pub(crate) fn count(&self) -> u32 {
        self.0.iter().map(|s| s.n).sum()
    }

    /// Everything together: the median of the medians, each weighted by its `n`, and the extremes. `None` when empty.
    pub(crate) fn summary(&self) -> Option<Sample> {
        Some(Sample {
            median: weighted_median(&self.0)?,
            min: self.0.iter().map(|s| s.min).min_by(f64::total_cmp)?,
            max: self.0.iter().map(|s| s.max).max_by(f64::total_cmp)?,
            n: self.count(),
        })
    }
}

/// The value with half of the weight on each side; between two such values, their mean. With weights of 1 this is the
/// usual median.
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

/// The middle of `values`: of an even number the mean of the two in the middle; 0 of none.
pub(crate) fn median(values: &[f64]) -> f64 {
    let samples: Vec<Sample> = values.iter().copied().map(Sample::one).collect();
    weighted_median(&samples).unwrap_or(0.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn samples(list: &[(f64, f64, f64, u32)]) -> Samples {
        Samples(list.iter().map(|&(median, min, max, n)| Sample { median, min, max, n }).collect())
    }

    #[test]
    fn the_median_is_in_the_middle() {
        assert_eq!(median(&[]), 0.0);
        assert_eq!(median(&[3.0]), 3.0);
        assert_eq!(median(&[9.0, 1.0, 3.0]), 3.0);
        assert_eq!(median(&[9.0, 1.0, 3.0, 4.0]), 3.5);
        assert_eq!(median(&[1.0, 2.0]), 1.5);
    }

    #[test]
    fn weights_count() {
        let all = samples(&[(10.0, 8.0, 11.0, 1), (20.0, 15.0, 30.0, 8)]).summary().unwrap();
        assert_eq!(all, Sample { median: 20.0, min: 8.0, max: 30.0, n: 9 });
        let even = samples(&[(30.0, 30.0, 30.0, 2), (10.0, 10.0, 10.0, 3), (20.0, 20.0, 20.0, 1)]).summary().unwrap();
        assert_eq!((even.median, even.n), (15.0, 6));
        assert_eq!(samples(&[]).summary(), None);
    }

    #[test]
    fn a_weight_is_as_good_as_repetition() {
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
        assert_eq!(Class::of_round_trip(199.9), Class::L);
        assert_eq!(Class::of_round_trip(200.0), Class::R);
        for class in Class::ALL {
            assert_eq!(Class::from_letter(&class.to_string()), Some(class));
        }
        assert_eq!(Class::from_letter("S"), None);
        assert_eq!(Class::from_letter(""), None);
    }
}
