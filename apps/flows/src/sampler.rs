// SPDX-License-Identifier: BSD-2-Clause
//! The choice of packets that are counted (RFC 5475), before anything of them is read.

use std::hash::{BuildHasher as _, RandomState};

use clap::ValueEnum;

use crate::packet::{Key, Seed};

/// With fewer packets for a chosen one, many are read.
const READ: u32 = 8;

/// How one of n packets is chosen.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Choice {
    /// One packet of each N, at random
    Random,
    /// The first packet of each N
    Count,
    /// All packets of one flow of N, in both directions, by a hash with a random key: all packets are parsed
    Flow,
}

/// One of how many packets, or of flows, is chosen, and how.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Sampling {
    pub(crate) n: u32,
    pub(crate) by: Choice,
}

impl Sampling {
    /// Whether so many packets are read that all slots are walked through, and what is read next is fetched.
    pub(crate) fn reads_many(self) -> bool {
        self.n < READ || self.by == Choice::Flow
    }
}

/// Chooses packets.
pub(crate) struct Sampler {
    pub(crate) sampling: Sampling,
    /// Packets before the next chosen one.
    left: u64,
    /// Packets after the next chosen one that are of the same n (at random).
    rest: u64,
    random: u64,
    /// Of the hash of flows.
    seed: Seed,
}

impl Sampler {
    pub(crate) fn new(sampling: Sampling) -> Sampler {
        let mut sampler =
            Sampler { sampling, left: 0, rest: 0, random: RandomState::new().hash_one(0), seed: Seed::random() };
        if sampling.by == Choice::Random {
            sampler.left = sampler.gap();
        }
        sampler
    }

    /// The packets between a chosen one and the next.
    fn gap(&mut self) -> u64 {
        let n = u64::from(self.sampling.n);
        match self.sampling.by {
            _ if n == 1 => 0,
            Choice::Flow => 0,
            Choice::Count => n - 1,
            Choice::Random => {
                self.random = self.random.wrapping_add(0x9e37_79b9_7f4a_7c15);
                let chosen = ((u128::from(tool_common::mix(self.random)) * u128::from(n)) >> 64) as u64;
                let rest = std::mem::replace(&mut self.rest, n - 1 - chosen);
                rest + chosen
            }
        }
    }

    /// Returns how many of the next `n` packets are before the chosen one; `None`: none of them is chosen. All up to
    /// the chosen one, or all n, are done with.
    #[inline(always)]
    pub(crate) fn skip(&mut self, n: u64) -> Option<u64> {
        if self.left >= n {
            self.left -= n;
            return None;
        }
        let next = self.gap();
        Some(std::mem::replace(&mut self.left, next))
    }

    /// Whether the next packet is chosen.
    #[inline(always)]
    pub(crate) fn takes(&mut self) -> bool {
        self.skip(1).is_some()
    }

    /// Whether the packets of a flow are chosen, from whichever port they come.
    #[inline]
    pub(crate) fn takes_flow(&self, key: &Key) -> bool {
        let hash = self.seed.hash(&Key { source: 0, ..key.of_both().0 });
        ((hash >> 32) * u64::from(self.sampling.n)) >> 32 == 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The positions of the chosen ones among the first `of`, looked for in steps of any size.
    fn chosen(n: u32, by: Choice, of: u64, step: impl Fn(u64) -> u64) -> Vec<u64> {
        let (mut sampler, mut at, mut all) = (Sampler::new(Sampling { n, by }), 0, Vec::new());
        while at < of {
            let end = of.min(at + step(at));
            while let Some(skipped) = sampler.skip(end - at) {
                all.push(at + skipped);
                at += skipped + 1;
            }
            at = end;
        }
        all
    }

    #[test]
    fn one_of_each_n_is_chosen_however_many_are_looked_at_together() {
        for n in [1u32, 2, 7, 100, 1000] {
            for step in [1, 3, 64, 5000] {
                let step = |at: u64| step + at % 3;
                let random = chosen(n, Choice::Random, 100_000, step);
                // The last n may be cut before its chosen one.
                let most = 100_000u64.div_ceil(n.into());
                assert!((most - 1..=most).contains(&(random.len() as u64)), "{n}: {}", random.len());
                assert!(random.iter().zip(0..).all(|(at, i)| at / u64::from(n) == i), "one of each {n}");
                let counted = chosen(n, Choice::Count, 100_000, step);
                assert!(counted.iter().zip(0..).all(|(at, i)| *at == i * u64::from(n)), "each {n}th");
                assert_eq!(chosen(n, Choice::Flow, 1000, step).len(), 1000, "all are parsed");
            }
        }
        let places: Vec<u64> = chosen(10, Choice::Random, 100_000, |_| 1).iter().map(|at| at % 10).collect();
        for place in 0..10 {
            let times = places.iter().filter(|other| **other == place).count();
            assert!((700..1300).contains(&times), "place {place}: {times} of 10000");
        }
    }
}
