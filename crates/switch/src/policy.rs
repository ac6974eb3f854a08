// SPDX-License-Identifier: BSD-2-Clause
//! The policies of switch ports: VLANs, filters and rate limits that the owner of a switch configured. Most ports
//! have none.
//!
//! ```text
//! ingress (what the port sends):    filter, VLAN, (forwarding decision), storm limit, rate limit
//! egress (what the port receives):  VLAN, filter, rate limit
//! ```
//! A packet that a policy refuses is dropped and counted by reason; nothing is queued.
//!
//! A new policy adds its configuration to [`PortPolicy`] and its check to one of `PolicyCheck::accept_frame`,
//! `PolicyCheck::accept_forwarding` (both ingress) and `PolicyCheck::accept_egress`; a policy on egress also makes
//! `PolicySet::new` set `applies_to_all`.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

pub use unetmap_core::control::drops::DropReason;
use unetmap_core::control::nic::Filter;
pub(crate) use unetmap_core::control::vale::{Direction, VlanMode};
use unetmap_core::control::vale::{PortPolicy, RateLimit};
use unetmap_sys::clock;
use unetmap_sys::xdp::ClassicProgram;

use crate::fdb::ETHERNET_HEADER;
use crate::tuning::{BATCH_INSNS, RATE_BURST};

/// Femtoseconds: the unit of token buckets, small enough for the time of one bit.
const FS_PER_NS: u128 = 1_000_000;
const FS_PER_SECOND: u128 = 1_000_000_000 * FS_PER_NS;
/// [`RATE_BURST`] in femtoseconds.
const BURST: u128 = RATE_BURST.as_nanos() * FS_PER_NS;

/// Bytes of a VLAN tag.
pub(crate) const TAG_BYTES: usize = 4;
/// The type of a VLAN tag (802.1Q).
pub(crate) const TAG_TYPE: [u8; 2] = [0x81, 0x00];

/// The policy of one port, with compiled filters and the state of its limits.
pub struct ActivePolicy {
    rules: PortPolicy,
    /// By [`Direction`].
    filters: [Option<ClassicProgram>; 2],
    /// By [`Direction`].
    limiters: [Mutex<RateLimiter>; 2],
}

/// The limits of one direction.
#[derive(Debug)]
struct RateLimiter {
    packets: TokenBucket,
    bits: TokenBucket,
    /// Flooded packets.
    storm: TokenBucket,
}

impl ActivePolicy {
    /// Compiles the filters and resets the limits.
    ///
    /// # Errors
    /// A filter is not a valid program; the text says why.
    pub fn new(rules: PortPolicy) -> Result<ActivePolicy, String> {
        let program = |filter: &Option<Filter>| filter.as_ref().map(|f| ClassicProgram::new(&f.program)).transpose();
        let [ingress, egress] = &rules.filters;
        let filters = [program(ingress)?, program(egress)?];
        let limiter = |limit: RateLimit, storm| {
            Mutex::new(RateLimiter {
                packets: TokenBucket::new(limit.packets),
                bits: TokenBucket::new(limit.bits),
                storm: TokenBucket::new(storm),
            })
        };
        let limiters = [limiter(rules.limits[0], rules.storm), limiter(rules.limits[1], 0)];
        Ok(ActivePolicy { rules, filters, limiters })
    }

    /// Returns the configuration.
    pub fn rules(&self) -> &PortPolicy {
        &self.rules
    }

    /// Returns the number of instructions of its filters.
    pub fn filter_insns(&self) -> usize {
        self.filters.iter().flatten().map(ClassicProgram::len).sum()
    }

    /// Begins the checks of one batch in one direction.
    pub(crate) fn check(&self, direction: Direction) -> PolicyCheck<'_> {
        let (limit, index) = (self.rules.limits[direction as usize], direction as usize);
        let limited = limit != RateLimit::default() || direction == Direction::In && self.rules.storm > 0;
        let now = if limited { u128::from(clock::now_ns()) * FS_PER_NS } else { 0 };
        let limiter = self.limiters[index].lock().unwrap_or_else(PoisonError::into_inner);
        PolicyCheck { filter: self.filters[index].as_ref(), limiter, now }
    }
}

/// Checks the packets of one batch against the policy of one port in one direction; holds the lock of its limits.
pub(crate) struct PolicyCheck<'a> {
    filter: Option<&'a ClassicProgram>,
    limiter: MutexGuard<'a, RateLimiter>,
    /// The time of the batch in femtoseconds; 0 if there are no limits.
    now: u128,
}

impl PolicyCheck<'_> {
    /// Ingress, before the forwarding decision: checks the frame as it was sent.
    pub(crate) fn accept_frame(&self, frame: &[u8]) -> Result<(), DropReason> {
        match self.filter {
            Some(filter) if !filter.accepts(frame) => Err(DropReason::Filter),
            _ => Ok(()),
        }
    }

    /// Ingress, after the forwarding decision: checks the limits for a frame of `bytes` bytes and, if it passes,
    /// counts it.
    pub(crate) fn accept_forwarding(&mut self, flooded: bool, bytes: usize) -> Result<(), DropReason> {
        if flooded {
            self.count_flooded()?;
        }
        self.count(bytes)
    }

    /// Egress: checks the frame as it would be delivered and, if it passes, counts it.
    pub(crate) fn accept_egress(&mut self, frame: &[u8]) -> Result<(), DropReason> {
        self.accept_frame(frame)?;
        self.count(frame.len())
    }

    /// Counts one more flooded packet, if the storm limit allows it.
    fn count_flooded(&mut self) -> Result<(), DropReason> {
        match self.limiter.storm.ready(self.now) {
            true => {
                self.limiter.storm.take(self.now, 1);
                Ok(())
            }
            false => Err(DropReason::StormLimit),
        }
    }

    /// Counts a frame of `bytes` bytes, if the limits of packets and bits both allow it.
    fn count(&mut self, bytes: usize) -> Result<(), DropReason> {
        let (limiter, now) = (&mut *self.limiter, self.now);
        if !limiter.packets.ready(now) || !limiter.bits.ready(now) {
            return Err(DropReason::RateLimit);
        }
        limiter.packets.take(now, 1);
        limiter.bits.take(now, bytes as u128 * 8);
        Ok(())
    }
}

/// A token bucket, represented by the time at which all tokens taken will have been refilled: it is ready while that
/// time is at most [`BURST`] ahead.
#[derive(Debug)]
struct TokenBucket {
    /// Femtoseconds in which one token is refilled; 0: unlimited.
    refill_time: u128,
    refilled_at: u128,
}

impl TokenBucket {
    fn new(per_second: u64) -> TokenBucket {
        TokenBucket { refill_time: FS_PER_SECOND.checked_div(per_second.into()).unwrap_or(0), refilled_at: 0 }
    }

    fn ready(&self, now: u128) -> bool {
        self.refilled_at <= now + BURST
    }

    fn take(&mut self, now: u128, tokens: u128) {
        if self.refill_time > 0 {
            self.refilled_at = self.refilled_at.max(now) + tokens * self.refill_time;
        }
    }
}

/// The VLAN tag of a frame, or the tag that its access port stands for.
#[derive(Clone, Copy)]
pub(crate) struct Tag {
    /// Priority and VLAN number.
    pub(crate) control: u16,
    /// True if the frame contains the tag, which is removed.
    pub(crate) in_frame: bool,
}

impl Tag {
    pub(crate) fn vlan(self) -> u16 {
        self.control & 0xfff
    }
}

/// The policies of all ports of a switch, as one thread uses them.
#[derive(Default)]
pub(crate) struct PolicySet {
    /// By port index; empty when no port has a policy.
    ports: Vec<Option<Arc<ActivePolicy>>>,
    /// Some port has a VLAN.
    vlans: bool,
    /// Packets to some port may be refused there, so that packets of all ports take the policed path.
    applies_to_all: bool,
    /// Slots of a batch at most.
    batch_slots: u32,
}

impl PolicySet {
    /// The policies `ports`, by port index. Batches have `most` slots if there are none, and at least `least`.
    pub(crate) fn new(ports: Vec<Option<Arc<ActivePolicy>>>, (least, most): (u32, u32)) -> PolicySet {
        let any = |has: fn(&PortPolicy) -> bool| ports.iter().flatten().any(|policy| has(&policy.rules));
        let vlans = any(|rules| rules.vlan.is_some());
        let egress = |rules: &PortPolicy| rules.filters[1].is_some() || rules.limits[1] != RateLimit::default();
        let insns: usize = ports.iter().flatten().map(|policy| policy.filter_insns()).sum();
        let batch_slots = (BATCH_INSNS / insns.max(1)).clamp(least as usize, most as usize) as u32;
        match ports.iter().any(Option::is_some) {
            true => PolicySet { vlans, applies_to_all: vlans || any(egress), ports, batch_slots },
            false => PolicySet { batch_slots: most, ..PolicySet::default() },
        }
    }

    /// True if a policy applies to packets that this port sends.
    #[inline(always)]
    pub(crate) fn applies_to(&self, port: u8) -> bool {
        self.applies_to_all || self.of(port).is_some()
    }

    /// Returns the policy of a port.
    #[inline(always)]
    pub(crate) fn of(&self, port: u8) -> Option<&ActivePolicy> {
        self.ports.get(usize::from(port))?.as_deref()
    }

    /// Returns how many slots a batch has at most.
    #[inline(always)]
    pub(crate) fn batch_slots(&self) -> u32 {
        self.batch_slots
    }

    /// Returns the VLAN configuration of a port.
    pub(crate) fn vlan_of(&self, port: u8) -> Option<&VlanMode> {
        self.of(port)?.rules.vlan.as_ref()
    }

    /// True if a port receives frames of VLAN `vlan` (0: none).
    pub(crate) fn carries(&self, port: u8, vlan: u16) -> bool {
        self.vlan_of(port).is_none_or(|rule| rule.carries(vlan))
    }

    /// Returns the VLAN tag of a frame that `port` sent; `None`: it is in no VLAN.
    pub(crate) fn classify_vlan(&self, port: u8, frame: &[u8]) -> Result<Option<Tag>, DropReason> {
        if !self.vlans {
            return Ok(None);
        }
        // A tag is followed at least by another type.
        let tagged = frame.len() >= usize::from(ETHERNET_HEADER) + TAG_BYTES && frame[12..14] == TAG_TYPE;
        let found = tagged.then(|| Tag { control: u16::from_be_bytes([frame[14], frame[15]]), in_frame: true });
        match (self.vlan_of(port), found) {
            (Some(VlanMode::Access(vlan)), None) => Ok(Some(Tag { control: *vlan, in_frame: false })),
            // A priority tag, without a VLAN.
            (Some(VlanMode::Access(vlan)), Some(tag)) if tag.vlan() == 0 => {
                Ok(Some(Tag { control: tag.control | vlan, in_frame: true }))
            }
            (Some(VlanMode::Trunk(all)), Some(tag)) if all.has(tag.vlan()) => Ok(Some(tag)),
            (Some(_), _) => Err(DropReason::Vlan),
            (None, tag) => Ok(tag.filter(|tag| tag.vlan() != 0)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_bucket_passes_its_rate() {
        for rate in [1u64, 7, 1000, 1_000_000, 40_000_000_000] {
            let mut bucket = TokenBucket::new(rate);
            let (mut now, mut passed) = (5 * FS_PER_SECOND, 0u64);
            // Ten seconds in 1000 steps; in each, as much as the bucket accepts, in packets of many tokens.
            for _ in 0..1000 {
                now += FS_PER_SECOND / 100;
                let tokens = (rate / 1000).max(1);
                for _ in 0..100 {
                    if bucket.ready(now) {
                        bucket.take(now, tokens.into());
                        passed += tokens;
                    }
                }
            }
            // The burst comes on top, and the last packet may overdraw.
            let most = rate * 10 + rate / 10 + 2 * (rate / 1000).max(1);
            assert!((rate * 10..=most).contains(&passed), "{rate}: {passed}");
        }
        let mut none = TokenBucket::new(0);
        (0..1000).for_each(|_| none.take(0, 1 << 40));
        assert!(none.ready(0));
    }

    #[test]
    fn a_refused_packet_takes_no_tokens() {
        let limit = RateLimit { packets: 10, bits: 1000 };
        let policy =
            ActivePolicy::new(PortPolicy { limits: [limit, RateLimit::default()], ..Default::default() }).unwrap();
        let mut ingress = policy.check(Direction::In);
        assert_eq!(ingress.count(1500), Ok(()));
        // 12 seconds of bits are taken; refused packets take no packet tokens.
        (0..100).for_each(|_| assert_eq!(ingress.count(60), Err(DropReason::RateLimit)));
        let packets = ingress.limiter.packets.refilled_at;
        assert_eq!(packets, ingress.now + FS_PER_SECOND / 10);
        drop(ingress);
        let mut egress = policy.check(Direction::Out);
        (0..1000).for_each(|_| assert_eq!((egress.count(1500), egress.count_flooded()), (Ok(()), Ok(()))));
    }
}
