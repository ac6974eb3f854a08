// SPDX-License-Identifier: BSD-2-Clause
//! Models of lost packets.

use crate::random::Random;

/// Which packets a link loses.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub enum Loss {
    /// None.
    #[default]
    None,
    /// Each with this probability.
    Random(f64),
    /// Packets with a wrong bit are lost; each bit is wrong with this probability.
    BitError(f64),
    /// Gilbert's and Elliott's model: the link is good or bad, and changes before each packet.
    GilbertElliott {
        /// Probability that a good link becomes bad.
        p: f64,
        /// Probability that a bad link becomes good.
        r: f64,
        /// Loss in the bad state.
        bad: f64,
        /// Loss in the good state.
        good: f64,
    },
}

/// State of a link's losses.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct LossState {
    bad: bool,
}

impl LossState {
    /// Whether the next packet, of `len` bytes, is lost.
    #[inline]
    pub(crate) fn lost(&mut self, loss: &Loss, len: u32, random: &mut Random) -> bool {
        match *loss {
            Loss::None => false,
            Loss::Random(probability) => random.chance(probability),
            Loss::BitError(rate) => random.chance(-(f64::from(len) * 8.0 * (-rate).ln_1p()).exp_m1()),
            Loss::GilbertElliott { p, r, bad, good } => {
                if random.chance(if self.bad { r } else { p }) {
                    self.bad = !self.bad;
                }
                random.chance(if self.bad { bad } else { good })
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PACKETS: usize = 400_000;

    fn losses(loss: Loss, len: u32) -> Vec<bool> {
        let (mut state, mut random) = (LossState::default(), Random::new(9));
        (0..PACKETS).map(|_| state.lost(&loss, len, &mut random)).collect()
    }

    fn rate(losses: &[bool]) -> f64 {
        losses.iter().filter(|lost| **lost).count() as f64 / losses.len() as f64
    }

    #[test]
    fn losses_have_the_rate_of_their_model() {
        assert_eq!(rate(&losses(Loss::None, 60)), 0.0);
        assert_eq!(rate(&losses(Loss::Random(1.0), 60)), 1.0);
        // Four deviations of a binomial distribution: 4 * sqrt(p (1-p) / n) is below 0.002 here.
        for (loss, len, expected) in [
            (Loss::Random(0.02), 60, 0.02),
            (Loss::BitError(1e-5), 1500, 1.0 - (1.0f64 - 1e-5).powi(12_000)),
            (Loss::BitError(1e-5), 60, 1.0 - (1.0f64 - 1e-5).powi(480)),
        ] {
            let found = rate(&losses(loss, len));
            assert!((found - expected).abs() < 0.002, "{loss:?}, {len} bytes: {found}, expected {expected}");
        }
    }

    #[test]
    fn gilberts_and_elliotts_losses_come_in_bursts() {
        // Loss (r good + p bad) / (p + r), and bursts of 1 / r packets if a bad link loses all.
        let (p, r) = (0.01, 0.25);
        let lost = losses(Loss::GilbertElliott { p, r, bad: 1.0, good: 0.0 }, 60);
        assert!((rate(&lost) - p / (p + r)).abs() < 0.003, "{}", rate(&lost));
        let bursts = lost.windows(2).filter(|pair| !pair[0] && pair[1]).count();
        let mean = lost.iter().filter(|lost| **lost).count() as f64 / bursts as f64;
        assert!((mean - 1.0 / r).abs() < 0.15, "bursts of {mean} packets");
        let mixed = losses(Loss::GilbertElliott { p: 0.1, r: 0.1, bad: 0.4, good: 0.2 }, 60);
        assert!((rate(&mixed) - 0.3).abs() < 0.005, "{}", rate(&mixed));
    }
}
