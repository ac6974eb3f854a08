// SPDX-License-Identifier: BSD-2-Clause
//! Flows: what packets have in common, and the numbers that are given to them.

use crate::pool::NONE;
use crate::random::mix;

/// Addresses, protocol and ports of a packet; 0 where it has none.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FlowKey {
    /// Source address; an IPv4 address is in the low 32 bits.
    pub src: u128,
    /// Destination address, likewise.
    pub dst: u128,
    /// Source port.
    pub src_port: u16,
    /// Destination port.
    pub dst_port: u16,
    /// Protocol of the IP payload.
    pub proto: u8,
    /// Whether the addresses are those of IPv6.
    pub v6: bool,
}

impl FlowKey {
    /// Returns a hash, which differs with the seed.
    #[inline]
    pub fn hash(&self, seed: u64) -> u64 {
        let ports = u64::from(self.src_port) << 32 | u64::from(self.dst_port) << 16;
        let mut hash = mix(seed ^ ports ^ u64::from(self.proto) << 8 ^ u64::from(self.v6));
        for word in [self.src as u64, self.dst as u64] {
            hash = mix(hash.wrapping_add(0x9e37_79b9_7f4a_7c15) ^ word);
        }
        if self.v6 {
            for word in [self.src, self.dst] {
                hash = mix(hash.wrapping_add(0x9e37_79b9_7f4a_7c15) ^ (word >> 64) as u64);
            }
        }
        hash
    }
}

/// The bits of a key that make a flow: packets that agree in them belong to one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Mask {
    /// IPv4 addresses: source and destination.
    pub v4: [u32; 2],
    /// IPv6 addresses, likewise.
    pub v6: [u128; 2],
    /// Ports, likewise.
    pub ports: [u16; 2],
    /// Protocol.
    pub proto: u8,
}

impl Mask {
    /// All bits.
    pub const ALL: Mask = Mask { v4: [!0; 2], v6: [!0; 2], ports: [!0; 2], proto: !0 };

    /// Whether all packets are one flow.
    pub fn is_empty(&self) -> bool {
        *self == Mask::default()
    }

    /// Returns the bits of both masks.
    pub fn union(&self, other: &Mask) -> Mask {
        Mask {
            v4: [self.v4[0] | other.v4[0], self.v4[1] | other.v4[1]],
            v6: [self.v6[0] | other.v6[0], self.v6[1] | other.v6[1]],
            ports: [self.ports[0] | other.ports[0], self.ports[1] | other.ports[1]],
            proto: self.proto | other.proto,
        }
    }

    /// Returns the key with the other bits cleared.
    #[inline]
    pub fn apply(&self, key: &FlowKey) -> FlowKey {
        let [src, dst] = match key.v6 {
            true => self.v6,
            false => self.v4.map(u128::from),
        };
        FlowKey {
            src: key.src & src,
            dst: key.dst & dst,
            src_port: key.src_port & self.ports[0],
            dst_port: key.dst_port & self.ports[1],
            proto: key.proto & self.proto,
            // Addresses of one family are no flow with those of the other, if addresses matter.
            v6: key.v6 && (self.v4 != [0; 2] || self.v6 != [0; 2]),
        }
    }
}

/// Entries that are looked at to find one that can be used again.
const SEARCH: usize = 16;

/// Numbers flows from 0, up to a maximum, without allocation.
#[derive(Clone, Debug)]
pub struct FlowMap {
    /// First entry of each bucket.
    buckets: Box<[u32]>,
    keys: Vec<(u32, FlowKey)>,
    next: Vec<u32>,
    max: usize,
    hand: usize,
    seed: u64,
}

impl FlowMap {
    /// Makes a map of at most `max` flows, at least 1. `group` of a key tells apart equal keys.
    pub fn new(max: usize, seed: u64) -> FlowMap {
        let max = max.max(1);
        FlowMap {
            buckets: vec![NONE; max.next_power_of_two()].into(),
            keys: Vec::with_capacity(max),
            next: Vec::with_capacity(max),
            max,
            hand: 0,
            seed,
        }
    }

    #[inline]
    fn bucket(&self, group: u32, key: &FlowKey) -> usize {
        key.hash(self.seed ^ u64::from(group) << 32) as usize & (self.buckets.len() - 1)
    }

    /// Returns the number of a flow. A new flow gets a number that was not used, or one of a flow that is idle. If
    /// there is none, it shares that of another flow of its group; `None` if its group has none.
    #[inline]
    pub fn number(&mut self, group: u32, key: &FlowKey, is_idle: impl Fn(usize) -> bool) -> Option<usize> {
        let bucket = self.bucket(group, key);
        let mut at = self.buckets[bucket];
        while at != NONE {
            if self.keys[at as usize] == (group, *key) {
                return Some(at as usize);
            }
            at = self.next[at as usize];
        }
        self.add(bucket, group, key, is_idle)
    }

    #[cold]
    fn add(&mut self, bucket: usize, group: u32, key: &FlowKey, is_idle: impl Fn(usize) -> bool) -> Option<usize> {
        let at = if self.keys.len() < self.max {
            self.keys.push((group, *key));
            self.next.push(NONE);
            self.keys.len() - 1
        } else {
            let mut shared = None;
            let mut found = None;
            for _ in 0..SEARCH.min(self.max) {
                self.hand = (self.hand + 1) % self.max;
                if is_idle(self.hand) {
                    found = Some(self.hand);
                    break;
                }
                if self.keys[self.hand].0 == group {
                    shared = Some(self.hand);
                }
            }
            let Some(at) = found else { return shared };
            self.unlink(at);
            self.keys[at] = (group, *key);
            at
        };
        self.next[at] = self.buckets[bucket];
        self.buckets[bucket] = at as u32;
        Some(at)
    }

    fn unlink(&mut self, at: usize) {
        let (group, key) = self.keys[at];
        let bucket = self.bucket(group, &key);
        let after = self.next[at];
        let mut before = self.buckets[bucket];
        if before == at as u32 {
            self.buckets[bucket] = after;
            return;
        }
        while before != NONE {
            let next = &mut self.next[before as usize];
            if *next == at as u32 {
                *next = after;
                return;
            }
            before = *next;
        }
    }

    /// Returns the keys by number.
    pub fn keys(&self) -> impl Iterator<Item = &FlowKey> {
        self.keys.iter().map(|(_, key)| key)
    }

    /// Returns how many numbers are given.
    pub fn len(&self) -> usize {
        self.keys.len()
    }

    /// Whether no number is given.
    pub fn is_empty(&self) -> bool {
        self.keys.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(n: u128) -> FlowKey {
        FlowKey { src: n, ..FlowKey::default() }
    }

    #[test]
    fn masks_decide_what_is_one_flow() {
        let mask = Mask { v4: [0xffff_ff00, 0], ports: [0, !0], ..Mask::default() };
        let of = |src, dst_port, v6| mask.apply(&FlowKey { src, dst_port, v6, dst: 9, proto: 6, src_port: 4 });
        assert_eq!(of(0x0a00_0001, 80, false), of(0x0a00_00ff, 80, false));
        assert_ne!(of(0x0a00_0001, 80, false), of(0x0a00_0001, 81, false));
        assert_ne!(of(0x0a00_0001, 80, false), of(0x0a00_0101, 80, false));
        assert_ne!(of(0, 80, false), of(0, 80, true), "families are told apart");
        assert_eq!(Mask::default().apply(&key(5)), FlowKey::default());
        assert_eq!(Mask::ALL.apply(&key(5)), key(5));
        assert_eq!(mask.union(&Mask::ALL), Mask::ALL);
    }

    #[test]
    fn numbers_are_stable_bounded_and_used_again() {
        let mut map = FlowMap::new(100, 3);
        let busy = |_: usize| false;
        for n in 0..100 {
            assert_eq!(map.number(0, &key(n), busy), Some(n as usize));
        }
        for n in 0..100 {
            assert_eq!(map.number(0, &key(n), busy), Some(n as usize));
        }
        assert_eq!(map.number(1, &key(5), busy), None, "another group, and all are busy");
        assert!(map.number(0, &key(500), busy).is_some(), "shared");
        // All are idle: the numbers go to 1000 others, in turn.
        for n in 1000..2000 {
            let number = map.number(1, &key(n), |_| true).expect("an idle one");
            assert_eq!(map.number(1, &key(n), busy), Some(number));
        }
        assert_eq!((map.len(), map.number(0, &key(5), busy)), (100, None), "the old keys are gone");
    }
}
