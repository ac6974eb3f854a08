//! Judges the sequence numbers that arrive in one ring.

/// What was wrong in a run of numbers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Gaps {
    /// Places where numbers were left out.
    pub(crate) gaps: u64,
    /// Numbers left out, over all gaps.
    pub(crate) missing: u64,
    /// Packets whose number was behind its time: late, or seen before.
    pub(crate) late: u64,
    /// Packets too short to carry a number.
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

/// Follows the numbers of one ring.
#[derive(Clone, Debug, Default)]
pub(crate) struct Follower {
    expected: Option<u32>,
    pub(crate) gaps: Gaps,
}

impl Follower {
    /// Takes the next packet's number. Numbers wrap: a step of up to 2^31 - 1 is forward, any other backward.
    pub(crate) fn see(&mut self, number: Option<u32>) {
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
        let mut follower = Follower::default();
        numbers.iter().for_each(|&n| follower.see(Some(n)));
        follower.gaps
    }

    #[test]
    fn judgements() {
        let gaps = |gaps, missing, late| Gaps { gaps, missing, late, unnumbered: 0 };
        assert_eq!(after(&[]), Gaps::default());
        assert_eq!(after(&[7, 8, 9]), Gaps::default(), "any first number will do");
        assert_eq!(after(&[u32::MAX - 1, u32::MAX, 0, 1]), Gaps::default(), "numbers wrap");
        assert_eq!(after(&[0, 1, 5, 6]), gaps(1, 3, 0));
        assert_eq!(after(&[0, 2, 4]), gaps(2, 2, 0));
        assert_eq!(after(&[0, 1, 1, 2]), gaps(0, 0, 1), "twice");
        assert_eq!(after(&[0, 2, 1, 3]), gaps(1, 1, 1), "swapped");
        assert_eq!(after(&[u32::MAX, 3]), gaps(1, 3, 0), "a gap over the wrap");
        let mut follower = Follower::default();
        follower.see(None);
        assert_eq!(follower.gaps.unnumbered, 1);
    }

    proptest! {
        #[test]
        fn leaving_out_is_counted_exactly(start: u32, keep in prop::collection::vec(any::<bool>(), 1..200)) {
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
