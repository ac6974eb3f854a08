// SPDX-License-Identifier: BSD-2-Clause
//! A histogram of latencies that tells 5 us apart at any delay up to a second.
//!
//! ```text
//! latency        below 2 us   2 us to 8.4 ms   8.4 ms to 1.07 s   1.07 s to 60 s
//! bucket's width 1 ns         below 0.1 %      4.1 us             below 0.001 %
//! ```
//! A logarithmic histogram with three digits would have buckets of half a millisecond at a second; one with five would
//! have as many buckets for a microsecond as for a second. Memory is taken by the kernel page by page, as latencies
//! come: a few pages if they are alike, eight megabytes if they spread over all.

/// Longest latency that is told apart, in nanoseconds. Longer ones are in the last bucket.
const LONGEST: u64 = 60_000_000_000;
/// Bits of a latency that tell apart, below and above the part with equal widths.
const FINE_BITS: u32 = 10;
const COARSE_BITS: u32 = 17;
/// The width of equal buckets, as a power of two, in nanoseconds.
const EQUAL: u32 = 12;
const BUCKETS: usize = index(LONGEST) + 1;

// 5 us are told apart up to a second: the middle of a bucket is at most half of this from any latency in it.
const _: () = assert!(1 << shift(1_000_000_000) <= 5_000);

/// Returns how many low bits of this latency do not tell apart.
const fn shift(ns: u64) -> u32 {
    let top = (ns | 1).ilog2();
    let fine = top.saturating_sub(FINE_BITS);
    let coarse = top.saturating_sub(COARSE_BITS);
    let fine = if fine < EQUAL { fine } else { EQUAL };
    if coarse > fine { coarse } else { fine }
}

/// Returns the index that the value 0 would have if all buckets were as wide as those of this shift.
const fn base(shift: u32) -> usize {
    let fine = if shift < EQUAL { shift } else { EQUAL };
    ((fine as usize) << FINE_BITS) + (((shift - fine) as usize) << COARSE_BITS)
}

const fn index(ns: u64) -> usize {
    let shift = shift(ns);
    (ns >> shift) as usize + base(shift)
}

/// Returns the latency in the middle of a bucket.
fn middle(index: usize) -> u64 {
    // The last shift whose buckets begin at or before this one.
    let first = |shift: u32| match shift {
        0 => 0,
        1..=EQUAL => base(shift) + (1 << FINE_BITS),
        _ => base(shift) + (1 << COARSE_BITS),
    };
    let shift = (1..=shift(LONGEST)).take_while(|shift| first(*shift) <= index).last().unwrap_or(0);
    ((index - base(shift)) as u64) << shift | (1 << shift) >> 1
}

/// Latencies in nanoseconds.
#[derive(Clone, Debug)]
pub struct Latencies {
    counts: Vec<u64>,
    /// The buckets outside of this range are empty.
    used: std::ops::Range<usize>,
    len: u64,
    sum: u128,
    min: u64,
    max: u64,
}

/// A summary of latencies, in nanoseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Summary {
    /// Number of latencies; the others are 0 if there are none.
    pub len: u64,
    /// The shortest.
    pub min: u64,
    /// The longest.
    pub max: u64,
    /// The mean.
    pub mean: f64,
    /// The median, and the percentiles 90, 99 and 99.9.
    pub percentiles: [u64; 4],
}

/// The percentiles of a [`Summary`], in tenths.
const PERCENTILES: [u128; 4] = [500, 900, 990, 999];

impl Default for Latencies {
    fn default() -> Latencies {
        Latencies { counts: vec![0; BUCKETS], used: 0..0, len: 0, sum: 0, min: u64::MAX, max: 0 }
    }
}

impl Latencies {
    /// Takes note of a latency.
    #[inline]
    pub fn record(&mut self, ns: u64) {
        let index = index(ns.min(LONGEST));
        self.counts[index] += 1;
        let used = if self.len == 0 { index..index } else { self.used.clone() };
        self.used = used.start.min(index)..used.end.max(index + 1);
        self.len += 1;
        self.sum += u128::from(ns);
        (self.min, self.max) = (self.min.min(ns), self.max.max(ns));
    }

    /// Forgets all.
    pub fn clear(&mut self) {
        self.counts[self.used.clone()].fill(0);
        *self =
            Latencies { counts: std::mem::take(&mut self.counts), used: 0..0, len: 0, sum: 0, min: u64::MAX, max: 0 };
    }

    /// Returns what is reported of them.
    pub fn summary(&self) -> Summary {
        if self.len == 0 {
            return Summary::default();
        }
        let mut percentiles = [self.max; 4];
        let ranks = PERCENTILES.map(|tenths| (u128::from(self.len) * tenths).div_ceil(1000));
        let (mut below, mut next) = (0_u128, 0);
        for index in self.used.clone() {
            below += u128::from(self.counts[index]);
            while next < ranks.len() && below >= ranks[next] {
                percentiles[next] = middle(index).clamp(self.min, self.max);
                next += 1;
            }
            if next == ranks.len() {
                break;
            }
        }
        let mean = self.sum as f64 / self.len as f64;
        Summary { len: self.len, min: self.min, max: self.max, mean, percentiles }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buckets_are_in_order_without_gaps() {
        let mut at = 0;
        let mut before = 0;
        while at < LONGEST {
            let (here, wide) = (index(at), 1 << shift(at));
            assert!(here == before || here == before + 1, "{at}: {before} {here}");
            assert!(here == BUCKETS - 1 || (middle(here) as i64 - at as i64).unsigned_abs() <= wide / 2, "{at}");
            before = here;
            // Each bucket, and each step from one to the next, of those that are few; some of the others.
            at += if at < 20_000 { 1 } else { wide - 1 + u64::from(here % 2 == 0) };
        }
        assert_eq!(index(LONGEST), BUCKETS - 1);
    }

    /// A logarithmic histogram with three digits reports 5 us too much or too little from 10 ms on.
    #[test]
    fn five_microseconds_are_told_apart_up_to_a_second() {
        for delay in [200, 5_000, 1_000_000, 10_000_000, 123_456_789, 999_995_000] {
            let mut latencies = Latencies::default();
            (0..600).for_each(|_| latencies.record(delay));
            (0..400).for_each(|_| latencies.record(delay + 5_000));
            let [p50, p90, p99, p999] = latencies.summary().percentiles;
            assert!(p50.abs_diff(delay) <= 2_500 && p90.abs_diff(delay + 5_000) <= 2_500, "{delay}: {p50} {p90}");
            assert!(p50 < p90 && p90 == p99 && p99 == p999, "{delay}: {p50} {p90}");
        }
    }

    #[test]
    fn a_summary_is_exact_where_it_can_be() {
        let mut latencies = Latencies::default();
        assert_eq!(latencies.summary(), Summary::default());
        for _ in 0..2 {
            (1..=1000).for_each(|n| latencies.record(n));
            let summary = latencies.summary();
            assert_eq!((summary.len, summary.min, summary.max, summary.mean), (1000, 1, 1000, 500.5));
            assert_eq!(summary.percentiles, [500, 900, 990, 999]);
            latencies.clear();
        }
        latencies.record(u64::MAX);
        assert_eq!((latencies.summary().max, latencies.summary().len), (u64::MAX, 1));
        latencies.record(0);
        assert_eq!(latencies.summary().percentiles[0], 0);
    }
}
