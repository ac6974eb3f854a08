// SPDX-License-Identifier: BSD-2-Clause
//! Checks the sequence numbers that arrive in one ring.

/// Counts of irregular sequence numbers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Gaps {
    /// Number of places where numbers are missing.
    pub(crate) gaps: u64,
    /// Number of missing numbers, over all gaps.
    pub(crate) missing: u64,
    /// Packets with a number lower than expected: late or duplicate.
    pub(crate) late: u64,
    /// Packets without a number: too short, or not UDP.
    pub(crate) unnumbered: u64,
}

impl Gaps {
    pub(crate) fn add(&mut self, other: Gaps) {
        self.gaps += other.gaps;
        self.missing += other.missing;
        self.late += other.late;
        self.unnumbered += other.unnumbered;
    }
}

/// Tracks the numbers of one ring.
#[derive(Clone, Debug, Default)]
pub(crate) struct SequenceChecker {
    expected: Option<u32>,
    pub(crate) gaps: Gaps,
}

impl SequenceChecker {
    /// Checks the next packet's number. Numbers wrap: a step of up to 2^31 - 1 is forward, any other backward.
    pub(crate) fn check(&mut self, number: Option<u32>) {
        let Some(number) = number else {
            self.gaps.unnumbered += 1;
            return;
        };
        let step = number.wrapping_sub(self.expected.unwrap_or(number));
        if step > u32::MAX / 2 {
            self.gaps.late += 1;
            return;
        }
        if step > 0 {
            self.gaps.gaps += 1;
            self.gaps.missing += u64::from(step);
        }
        self.expected = Some(number.wrapping_add(1));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn after(numbers: &[u32]) -> Gaps {
        let mut checker = SequenceChecker::default();
        numbers.iter().for_each(|&n| checker.check(Some(n)));
        checker.gaps
    }

    #[test]
    fn gaps_and_late_packets_are_counted() {
        let gaps = |gaps, missing, late| Gaps { gaps, missing, late, unnumbered: 0 };
        assert_eq!(after(&[]), Gaps::default());
        assert_eq!(after(&[7, 8, 9]), Gaps::default(), "any first number is valid");
        assert_eq!(after(&[u32::MAX - 1, u32::MAX, 0, 1]), Gaps::default(), "numbers wrap");
        assert_eq!(after(&[0, 1, 5, 6]), gaps(1, 3, 0));
        assert_eq!(after(&[0, 2, 4]), gaps(2, 2, 0));
        assert_eq!(after(&[0, 1, 1, 2]), gaps(0, 0, 1), "duplicate");
        assert_eq!(after(&[0, 2, 1, 3]), gaps(1, 1, 1), "swapped");
        assert_eq!(after(&[u32::MAX, 3]), gaps(1, 3, 0), "a gap across the wrap");
        let mut checker = SequenceChecker::default();
        checker.check(None);
        assert_eq!(checker.gaps.unnumbered, 1);
    }

    proptest! {
        #[test]
        fn missing_numbers_are_counted_exactly(start: u32, keep in prop::collection::vec(any::<bool>(), 1..200)) {
            let numbers: Vec<u32> = (0..).zip(&keep).filter(|(_, k)| **k).map(|(i, _)| start.wrapping_add(i)).collect();
            let (first, last) = (keep.iter().position(|k| *k), keep.iter().rposition(|k| *k));
            let inner = match (first, last) {
                (Some(a), Some(b)) => &keep[a..=b],
                _ => &[],
            };
            let missing = inner.iter().filter(|k| !**k).count() as u64;
            let gaps = inner.windows(2).filter(|w| w[0] && !w[1]).count() as u64;
            prop_assert_eq!(after(&numbers), Gaps { gaps, missing, late: 0, unnumbered: 0 });
        }
    }
}
