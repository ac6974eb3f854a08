// SPDX-License-Identifier: BSD-2-Clause
//! Pseudo-random numbers: equal seeds give equal sequences, so that a run can be repeated.

/// A generator of 64 random bits (SplitMix64): fast, and good enough to draw losses and delays.
#[derive(Clone, Debug)]
pub struct Random(u64);

impl Random {
    /// Makes a generator.
    pub fn new(seed: u64) -> Random {
        Random(seed)
    }

    /// Returns the next 64 bits.
    #[inline]
    pub fn bits(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        mix(self.0)
    }

    /// Returns a number in `[0, 1)`.
    #[inline]
    pub fn unit(&mut self) -> f64 {
        (self.bits() >> 11) as f64 / (1u64 << 53) as f64
    }

    /// Returns true with this probability.
    #[inline]
    pub fn chance(&mut self, probability: f64) -> bool {
        probability > 0.0 && self.unit() < probability
    }

    /// Returns a number below `n`, which is not 0.
    #[inline]
    pub fn below(&mut self, n: u64) -> u64 {
        ((u128::from(self.bits()) * u128::from(n)) >> 64) as u64
    }

    /// Returns a number of the normal distribution with mean 0 and deviation 1 (Box and Muller's transform).
    pub fn normal(&mut self) -> f64 {
        // 1 - unit() is above 0, so that its logarithm is finite.
        let radius = (-2.0 * (1.0 - self.unit()).ln()).sqrt();
        radius * (std::f64::consts::TAU * self.unit()).cos()
    }
}

/// Distributes the bits of a number over all bits of the result.
#[inline]
pub(crate) fn mix(value: u64) -> u64 {
    let value = (value ^ (value >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let value = (value ^ (value >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    value ^ (value >> 31)
}
