// SPDX-License-Identifier: BSD-2-Clause
//! How long packets are in a switch, by samples: from when its thread first sees that a ring has sent them until all of
//! them are delivered, those of the ring's queue before them included. What passes between a program's sync and that
//! look is not in it, nor what waits in a receiver's ring.
//!
//! One batch of [`LATENCY_BATCHES`] begins a sample, which costs a look at the ring's position and two readings of the
//! clock.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use super::poll_set::RingId;
use crate::tuning::LATENCY_BATCHES;

/// Upper bounds: 1 µs, 2 µs, 4 µs and so on until 0.5 s; and none.
pub const BUCKETS: usize = 21;

/// A sample that takes longer is given up.
const MOST_NS: u64 = 1_000_000_000;

/// The samples of a switch, of all its threads.
#[derive(Debug, Default)]
pub struct Latency {
    counts: [AtomicU64; BUCKETS],
    sum_ns: AtomicU64,
}

/// The samples so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LatencyCounts {
    /// Samples by the first bound that they do not exceed.
    pub counts: [u64; BUCKETS],
    /// The sum of all, in nanoseconds.
    pub sum_ns: u64,
}

/// Returns the upper bound of a bucket in nanoseconds; `None`: the last has none.
pub fn bound_ns(bucket: usize) -> Option<u64> {
    (bucket + 1 < BUCKETS).then(|| 1000 << bucket)
}

impl Latency {
    fn add(&self, ns: u64) {
        let bucket = (0..BUCKETS).find(|bucket| bound_ns(*bucket).is_none_or(|bound| ns <= bound));
        self.counts[bucket.unwrap_or(BUCKETS - 1)].fetch_add(1, Relaxed);
        self.sum_ns.fetch_add(ns, Relaxed);
    }

    /// Returns what was sampled.
    pub fn counts(&self) -> LatencyCounts {
        let counts = std::array::from_fn(|bucket| self.counts[bucket].load(Relaxed));
        LatencyCounts { counts, sum_ns: self.sum_ns.load(Relaxed) }
    }
}

/// The sample of a thread that is under way, if there is one.
#[derive(Default)]
pub(crate) struct Sampler {
    /// Batches until the next one begins.
    batches: u32,
    watched: Option<Watched>,
}

struct Watched {
    ring: RingId,
    /// Slots that the ring had then and that are not delivered yet.
    slots: u32,
    since_ns: u64,
}

impl Sampler {
    /// Before a batch of a ring: `queued` returns how many slots it has, `now` the time.
    #[inline(always)]
    pub(crate) fn before(&mut self, ring: RingId, queued: impl FnOnce() -> u32, now: impl FnOnce() -> u64) {
        if self.batches > 0 {
            self.batches -= 1;
        } else {
            self.begin(ring, queued, now());
        }
    }

    /// Begins a sample, unless one is under way: one that takes long may be of a ring that delivers nothing any more.
    #[cold]
    fn begin(&mut self, ring: RingId, queued: impl FnOnce() -> u32, since_ns: u64) {
        self.batches = LATENCY_BATCHES;
        if self.watched.as_ref().is_none_or(|watched| since_ns.saturating_sub(watched.since_ns) > MOST_NS) {
            let slots = queued();
            self.watched = (slots > 0).then_some(Watched { ring, slots, since_ns });
        }
    }

    /// After a batch, of which so many slots were delivered.
    #[inline(always)]
    pub(crate) fn after(&mut self, ring: RingId, slots: u32, latency: &Latency, now: impl FnOnce() -> u64) {
        if let Some(watched) = self.watched.as_mut().filter(|watched| watched.ring == ring) {
            watched.slots = watched.slots.saturating_sub(slots);
            if watched.slots == 0 {
                latency.add(now().saturating_sub(watched.since_ns));
                self.watched = None;
            }
        }
    }

    /// Forgets the sample under way: the ring may be another one's.
    pub(crate) fn reset(&mut self) {
        self.watched = None;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_time_is_in_the_bucket_of_its_bound() {
        let latency = Latency::default();
        for ns in [0, 1000, 1001, 2000, 524_288_000, 524_288_001, u64::MAX / 4] {
            latency.add(ns);
        }
        let counts = latency.counts();
        assert_eq!(
            (counts.counts[0], counts.counts[1], counts.counts[BUCKETS - 2], counts.counts[BUCKETS - 1]),
            (2, 2, 1, 2)
        );
        assert_eq!(counts.counts.iter().sum::<u64>(), 7);
        assert_eq!((bound_ns(0), bound_ns(BUCKETS - 2), bound_ns(BUCKETS - 1)), (Some(1000), Some(524_288_000), None));
    }

    #[test]
    fn a_sample_lasts_until_all_that_was_queued_is_delivered() {
        let (latency, mut sampler, ring, other) = (Latency::default(), Sampler::default(), (0, 1, 0), (0, 2, 0));
        let of = |latency: &Latency| (latency.counts().counts.iter().sum::<u64>(), latency.counts().sum_ns);
        sampler.before(ring, || 700, || 100);
        sampler.after(ring, 512, &latency, || 200);
        sampler.after(other, 512, &latency, || 250);
        assert_eq!(of(&latency), (0, 0), "some wait still");
        sampler.after(ring, 200, &latency, || 5_100);
        assert_eq!(of(&latency), (1, 5_000));
        // The next one begins after so many batches.
        for _ in 0..LATENCY_BATCHES {
            sampler.before(other, || unreachable!("too early"), || unreachable!("too early"));
            sampler.after(other, 1, &latency, || unreachable!("too early"));
        }
        sampler.before(other, || 1, || 0);
        // It takes too long.
        for _ in 0..LATENCY_BATCHES {
            sampler.before(ring, || unreachable!("too early"), || unreachable!("too early"));
        }
        sampler.before(ring, || 1, || MOST_NS + 1);
        sampler.after(ring, 1, &latency, || MOST_NS + 1001);
        assert_eq!(of(&latency), (2, 6_000));
        for _ in 0..LATENCY_BATCHES {
            sampler.before(other, || unreachable!("too early"), || unreachable!("too early"));
        }
        sampler.before(other, || 1, || 0);
        sampler.reset();
        sampler.after(other, 1, &latency, || unreachable!("it was forgotten"));
        assert_eq!(of(&latency), (2, 6_000));
    }
}
