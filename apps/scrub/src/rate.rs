// SPDX-License-Identifier: BSD-2-Clause
//! Rates of sources, prefixes and destinations: a table of token buckets of fixed size, which no attack fills. A new
//! key takes the place of the one of its set that was used longest ago, and that is counted.

use tool_common::mix;

/// Entries of a set: a key is in one of them.
const WAYS: usize = 4;
/// Tokens are thousandths of packets, so that a millisecond has a whole number.
const TOKEN: u64 = 1000;

/// A bucket of a key.
#[derive(Clone, Copy, Debug, Default)]
struct Bucket {
    /// 0: free.
    key: u64,
    tokens: u64,
    /// When tokens came last, in milliseconds.
    millis: u64,
    /// When it was used last, in packets: many come in a millisecond.
    used: u64,
}

/// Lets so many packets of each key pass in a second. A bucket holds those of one second.
#[derive(Debug)]
pub(crate) struct Rates {
    sets: Box<[[Bucket; WAYS]]>,
    per_second: u64,
    /// Without it, a sender could choose the keys of a set.
    secret: u64,
    packets: u64,
    /// Keys that lost their places.
    pub(crate) evicted: u64,
}

impl Rates {
    /// For about so many keys.
    pub(crate) fn new(per_second: u32, keys: usize, secret: u64) -> Rates {
        let sets = (keys / WAYS).next_power_of_two();
        Rates {
            sets: vec![[Bucket::default(); WAYS]; sets].into(),
            per_second: per_second.into(),
            secret,
            packets: 0,
            evicted: 0,
        }
    }

    /// Takes a token of a key, `None` of which is never limited; returns whether it had one.
    #[inline]
    pub(crate) fn takes(&mut self, key: u128, millis: u64) -> bool {
        let hash = mix(mix(key as u64 ^ self.secret).wrapping_add((key >> 64) as u64)).max(1);
        let most = self.per_second * TOKEN;
        let mask = self.sets.len() - 1;
        let set = &mut self.sets[(hash >> 32) as usize & mask];
        let found = set.iter().position(|bucket| bucket.key == hash);
        let place = found.unwrap_or_else(|| (0..WAYS).min_by_key(|&i| (set[i].key != 0, set[i].used)).unwrap_or(0));
        self.packets += 1;
        let bucket = &mut set[place];
        if found.is_none() {
            self.evicted += u64::from(bucket.key != 0);
            *bucket = Bucket { key: hash, tokens: most, millis, used: 0 };
        }
        let passed = millis.saturating_sub(bucket.millis);
        bucket.tokens = bucket.tokens.saturating_add(passed.saturating_mul(self.per_second)).min(most);
        (bucket.millis, bucket.used) = (millis, self.packets);
        let has_token = bucket.tokens >= TOKEN;
        bucket.tokens -= if has_token { TOKEN } else { 0 };
        has_token
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_passes_at_its_rate_after_a_burst_of_a_second() {
        let mut rates = Rates::new(100, 64, 7);
        let passed = (0..1000).filter(|_| rates.takes(1, 0)).count();
        assert_eq!(passed, 100);
        assert!(rates.takes(2, 0), "another key has a bucket of its own");
        // Ten seconds of 1000 packets a second.
        let passed = (0..10_000u64).filter(|i| rates.takes(1, 1 + i)).count();
        assert!((999..=1001).contains(&passed), "{passed}");
    }

    /// A million sources take no more memory than the table has, and those that come often keep their places.
    #[test]
    fn many_keys_take_places_and_are_counted() {
        let mut rates = Rates::new(10, 1024, 7);
        let mut passed = 0;
        for i in 0..1_000_000u64 {
            rates.takes(u128::from(i) + 1000, i / 1000);
            if i % 10 == 0 {
                passed += u64::from(rates.takes(1, i / 1000));
            }
        }
        assert_eq!(rates.sets.len() * WAYS, 1024);
        assert!(rates.evicted > 990_000, "{}", rates.evicted);
        assert!((10..=30).contains(&passed), "{passed}");
    }
}
