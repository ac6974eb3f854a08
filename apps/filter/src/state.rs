// SPDX-License-Identifier: BSD-2-Clause
//! States of flows: packets of a flow, in both directions, get the action of the rule that admitted its first packet.
//!
//! All memory is allocated when the table is made. A full table keeps the flows that were answered, and gives up the
//! oldest of the others, the *half-open* ones:
//!
//! ```text
//! buckets: hash -> entry        half-open: oldest <-> ... <-> newest
//! ```

mod keepalive;
mod limited;
mod list;

use std::hash::Hasher as _;
use std::sync::{Arc, Mutex};

use crate::buckets::Buckets;
use crate::handshake::Proxy;
use crate::limits::Limits;
use crate::packet::{Family, Headers, proto, tcp};
use crate::rule::{ANY_STATE, RuleId, StateOption};
use crate::table::AddressHasher;
use crate::tuning::{
    FETCH_STATES, LIFETIME_ACK, LIFETIME_FIN, LIFETIME_RST, LIFETIME_SHORT, LIFETIME_SYN, LIFETIME_UDP, SWEEP_WHEN_FULL,
};

use limited::Limited;
pub use list::StateInfo;

const NONE: u32 = u32::MAX;

/// A flow, with its lower endpoint first, so that both directions have the same key.
#[derive(Clone, Copy, Debug)]
struct Flow {
    /// IPv4 addresses, or the lower halves of IPv6 addresses.
    low: [u64; 2],
    /// Upper halves of IPv6 addresses.
    high: [u64; 2],
    ports: [u16; 2],
    proto: u8,
    is_ipv6: bool,
}

impl Flow {
    /// Returns the flow of a packet, and whether the packet's source is the flow's second endpoint.
    #[inline]
    fn of(h: &Headers) -> Option<(Flow, bool)> {
        let (low, high) = match h.family {
            Family::V4 => ([h.src4, h.dst4].map(u64::from), [0; 2]),
            Family::V6 => ([h.src6, h.dst6].map(|a| a as u64), [h.src6, h.dst6].map(|a| (a >> 64) as u64)),
            Family::Other => return None,
        };
        let end = |i: usize, port: u16| (high[i], low[i], port);
        let swapped = end(0, h.src_port) > end(1, h.dst_port);
        let ports = [h.src_port, h.dst_port];
        let (i, j) = (usize::from(swapped), usize::from(!swapped));
        let flow = Flow {
            low: [low[i], low[j]],
            high: [high[i], high[j]],
            ports: [ports[i], ports[j]],
            proto: h.proto,
            is_ipv6: h.family == Family::V6,
        };
        Some((flow, swapped))
    }

    #[inline]
    fn hash(&self, seed: u64) -> u32 {
        let mut hasher = AddressHasher::with_seed(seed);
        let [a, b] = self.low;
        match self.is_ipv6 {
            true => [a, b, self.high[0], self.high[1]].into_iter().for_each(|half| hasher.write_u64(half)),
            false => hasher.write_u64(a << 32 | b),
        }
        hasher.write_u64(
            u64::from(self.ports[0])
                | u64::from(self.ports[1]) << 16
                | u64::from(self.proto) << 32
                | u64::from(self.is_ipv6) << 40,
        );
        (hasher.finish() >> 32) as u32
    }
}

/// The fields of a state that most packets need: one cache line.
#[derive(Clone, Copy, Debug, Default)]
#[repr(align(64))]
struct Entry {
    /// As in [`Flow`]; the upper halves of IPv6 addresses are in [`Rest`].
    low: [u64; 2],
    ports: [u16; 2],
    proto: u8,
    is_ipv6: bool,
    /// TCP flags that were seen, by direction.
    flags: [u8; 2],
    rule: RuleId,
    expires: u64,
    packets: u64,
    bytes: u64,
    hash: u32,
    name: u16,
    /// The flow's first packet was sent by its second endpoint.
    swapped: bool,
    /// A packet of the other direction was seen.
    answered: bool,
}

const _: () = assert!(size_of::<Entry>() == 64);

/// The rest of a state, in a second cache line: for IPv6, established TCP, and states that come and go.
#[derive(Clone, Copy, Debug)]
#[repr(align(64))]
struct Rest {
    high: [u64; 2],
    /// Highest acknowledgement number, by direction; valid where `has_ack` has the bit.
    ack: [u32; 2],
    /// Bit by direction: an acknowledgement was seen since the lifetime was last renewed.
    acked: u8,
    /// Bit by direction: `ack` is valid. Bit [`FIRST_WAS_OUT`]: the first packet travelled out.
    has_ack: u8,
    /// MAC addresses of the source and of the destination of the first packet.
    macs: [[u8; 6]; 2],
    proxy: Proxy,
    /// Place in `limits`, or `NONE`.
    limit: u32,
    /// Neighbours in the list of half-open states, or the next free entry. Once a state was answered: the VLAN tags of
    /// its packets, as in [`Headers::tags`].
    prev: u32,
    next: u32,
}

/// Bit of [`Rest::has_ack`].
const FIRST_WAS_OUT: u8 = 4;

const _: () = assert!(size_of::<Rest>() == 64);

/// Counts of the table's events.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StateCounts {
    /// States now.
    pub states: u64,
    /// States that were made.
    pub created: u64,
    /// Half-open states that were dropped because the table was full.
    pub dropped_half_open: u64,
    /// Packets that were denied because the table was full of answered flows.
    pub full: u64,
    /// Packets that were denied because of a `limit`.
    pub limited: u64,
    /// Packets that asked ends of idle connections.
    pub keepalives: u64,
}

impl StateCounts {
    /// Adds other counts.
    pub(crate) fn plus(self, other: StateCounts) -> StateCounts {
        StateCounts {
            states: self.states + other.states,
            created: self.created + other.created,
            dropped_half_open: self.dropped_half_open + other.dropped_half_open,
            full: self.full + other.full,
            limited: self.limited + other.limited,
            keepalives: self.keepalives + other.keepalives,
        }
    }
}

/// The state of a proxied connection.
pub(crate) struct Proxied<'t> {
    /// Whether the packet travels as the client's do.
    pub(crate) from_client: bool,
    /// Whether it was reset, or both ends have closed it.
    pub(crate) has_ended: bool,
    pub(crate) proxy: &'t mut Proxy,
}

/// The states of one thread.
#[derive(Debug)]
pub(crate) struct StateTable {
    /// Of the hashes of flows.
    seed: u64,
    buckets: Buckets,
    entries: Vec<Entry>,
    /// As many as `entries`.
    rest: Vec<Rest>,
    max: usize,
    free: u32,
    oldest: u32,
    newest: u32,
    swept: usize,
    limited: Box<Limited>,
    /// Whether threads look for states that may have different rules for a moment.
    is_shared: bool,
    /// Counts of events.
    pub counts: StateCounts,
}

impl StateTable {
    /// Makes a table for at most `max` states. Who knows `seed` can make lookups slow.
    pub(crate) fn new(max: usize, seed: u64) -> StateTable {
        StateTable {
            seed,
            buckets: Buckets::new(max),
            entries: Vec::with_capacity(max),
            rest: Vec::with_capacity(max),
            max,
            free: NONE,
            oldest: NONE,
            newest: NONE,
            swept: 0,
            limited: Box::new(Limited::new(max, Arc::new(Mutex::new(Limits::new())))),
            is_shared: false,
            counts: StateCounts::default(),
        }
    }

    /// Makes `n` tables for `max` states together, which threads share: each has the states of some flows. Limits count
    /// the states of all.
    pub(crate) fn parts(n: usize, max: usize, seed: u64) -> Vec<StateTable> {
        let limits = Arc::new(Mutex::new(Limits::new()));
        let max = max.div_ceil(n);
        let part = |_| StateTable {
            limited: Box::new(Limited::new(max, Arc::clone(&limits))),
            is_shared: true,
            ..StateTable::new(max, seed)
        };
        (0..n).map(part).collect()
    }

    /// Returns a hash of a packet's flow, which both of its directions have.
    #[inline]
    pub(crate) fn flow_hash(h: &Headers, seed: u64) -> u32 {
        Flow::of(h).map_or(0, |(flow, _)| flow.hash(seed))
    }

    /// Returns the memory that is read at random places: start, bytes.
    pub(crate) fn memory(&self) -> [(*const u8, usize); 3] {
        let entries = (self.entries.as_ptr().cast(), self.entries.capacity() * size_of::<Entry>());
        let rest = (self.rest.as_ptr().cast(), self.rest.capacity() * size_of::<Rest>());
        [self.buckets.memory(), entries, rest]
    }

    /// Reads what lookups of these packets will read, so that the memory's latency is waited for once and not by each
    /// of them.
    #[inline]
    pub(crate) fn fetch<'h>(&self, packets: impl Iterator<Item = &'h Headers>) {
        if self.counts.states == 0 {
            return;
        }
        let mut hashes = [0; FETCH_STATES];
        for (hash, headers) in hashes.iter_mut().zip(packets) {
            *hash = Flow::of(headers).map_or(0, |(flow, _)| flow.hash(self.seed));
        }
        // No read of a pass depends on another, so that a processor makes them at the same time.
        let words = hashes.map(|hash| self.buckets.first(hash));
        let entries = words.iter().filter_map(|word| self.entries.get((*word as u32).wrapping_sub(1) as usize));
        std::hint::black_box(entries.fold(0, |sum, entry| sum ^ entry.hash));
    }

    /// Returns the rule of the packet's state, and counts the packet there. States of rules that no longer exist are
    /// removed.
    pub(crate) fn lookup(
        &mut self,
        h: &Headers,
        is_out: bool,
        name: u16,
        bytes: u64,
        now: u64,
        exists: impl Fn(RuleId) -> bool,
    ) -> Option<RuleId> {
        if self.counts.states == 0 {
            return None;
        }
        let (flow, swapped) = Flow::of(h)?;
        let at = self.find(&flow, flow.hash(self.seed), name)?;
        let entry = &self.entries[at as usize];
        let is_of_a_rule = exists(entry.rule);
        if entry.expires <= now || !is_of_a_rule {
            // Another thread may have the state's rule already.
            if is_of_a_rule || !self.is_shared {
                self.remove(at);
            }
            return None;
        }
        let direction = usize::from(entry.swapped != swapped);
        if direction == 1 && !entry.answered {
            self.unlink(at);
            self.entries[at as usize].answered = true;
            self.rest[at as usize].set_path(h, is_out);
        }
        self.renew(at, h, direction, now);
        let entry = &mut self.entries[at as usize];
        entry.packets += 1;
        entry.bytes += bytes;
        Some(entry.rule)
    }

    /// Installs a state for the packet of a rule, or renews it. Returns false if the packet must be denied: the table
    /// is full, or a limit reached ([`StateTable::reached_limit`]). Frames that are not IP have no states.
    pub(crate) fn install(&mut self, h: &Headers, rule: RuleId, option: StateOption, bytes: u64, now: u64) -> bool {
        let Some((flow, swapped)) = Flow::of(h) else { return true };
        let hash = flow.hash(self.seed);
        if let Some(at) = self.find(&flow, hash, option.name) {
            if self.entries[at as usize].expires > now && self.entries[at as usize].rule == rule {
                return true;
            }
            self.remove(at);
        }
        let limit = match option.limit {
            None => NONE,
            Some(limit) => match self.take_limit(&flow, swapped, rule, limit, now) {
                Some(limit) => limit,
                None => return false,
            },
        };
        let Some(at) = self.allocate(now) else {
            self.counts.full += 1;
            self.limited.release(limit);
            return false;
        };
        let Flow { low, high, ports, proto, is_ipv6 } = flow;
        self.entries[at as usize] = Entry {
            low,
            ports,
            proto,
            is_ipv6,
            flags: [0; 2],
            rule,
            expires: now,
            packets: 1,
            bytes,
            hash,
            name: option.name,
            swapped,
            answered: false,
        };
        self.rest[at as usize] = Rest { high, limit, prev: self.newest, ..Rest::EMPTY };
        self.limited.insert(limit, at);
        self.renew(at, h, 0, now);
        match self.newest {
            NONE => self.oldest = at,
            newest => self.rest[newest as usize].next = at,
        }
        self.newest = at;
        self.buckets.insert(hash, at);
        self.counts.states += 1;
        self.counts.created += 1;
        true
    }

    /// Returns the state of a connection that a rule proxies, if there is one.
    pub(crate) fn proxied(&mut self, h: &Headers, rule: RuleId, name: u16, now: u64) -> Option<Proxied<'_>> {
        let (flow, swapped) = Flow::of(h)?;
        let at = self.find(&flow, flow.hash(self.seed), name)?;
        let entry = &self.entries[at as usize];
        if entry.expires <= now || entry.rule != rule {
            return None;
        }
        let [forward, back] = entry.flags;
        let has_ended = (forward | back) & tcp::RST != 0 || forward & back & tcp::FIN != 0;
        Some(Proxied { from_client: entry.swapped == swapped, has_ended, proxy: &mut self.rest[at as usize].proxy })
    }

    /// Installs the state of a connection that a rule proxies, whose client has sent this segment. Returns as
    /// [`StateTable::install`] does.
    pub(crate) fn install_proxied(
        &mut self,
        h: &Headers,
        rule: RuleId,
        option: StateOption,
        proxy: Proxy,
        now: u64,
    ) -> bool {
        let Some((flow, swapped)) = Flow::of(h) else { return false };
        // A connection that has ended makes room for the next one.
        if let Some(at) = self.find(&flow, flow.hash(self.seed), option.name) {
            self.remove(at);
        }
        if !self.install(h, rule, option, u64::from(h.ip_len), now) {
            return false;
        }
        let Some(at) = self.find(&flow, flow.hash(self.seed), option.name) else { return false };
        let (entry, rest) = (&mut self.entries[at as usize], &mut self.rest[at as usize]);
        // The client has sent its SYN, and this is its acknowledgement.
        entry.flags[0] |= tcp::SYN;
        rest.acked |= 1;
        entry.expires = now + LIFETIME_SYN;
        rest.proxy = proxy;
        debug_assert_eq!(entry.swapped, swapped);
        true
    }

    /// Examines `n` entries for expired states, and removes these.
    pub(crate) fn sweep(&mut self, n: usize, now: u64) {
        for _ in 0..n.min(self.entries.len()) {
            self.swept = if self.swept + 1 < self.entries.len() { self.swept + 1 } else { 0 };
            let entry = &self.entries[self.swept];
            if entry.packets > 0 && entry.expires <= now {
                self.remove(self.swept as u32);
            }
        }
    }

    /// Renews a state's lifetime. `direction`: 0 for packets that travel as the first one did.
    #[inline]
    fn renew(&mut self, at: u32, h: &Headers, direction: usize, now: u64) {
        const SYN: u8 = tcp::SYN;
        const BOTH: u8 = 3;
        let entry = &mut self.entries[at as usize];
        let lifetime = match h.proto {
            proto::TCP => {
                entry.flags[direction] |= h.tcp_flags & (tcp::SYN | tcp::FIN | tcp::RST);
                let [forward, back] = entry.flags;
                let closing = (forward | back) & tcp::FIN != 0;
                let both_closing = forward & back & tcp::FIN != 0;
                match (forward & SYN, back & SYN) {
                    _ if (forward | back) & tcp::RST != 0 => LIFETIME_RST,
                    (SYN, 0) if !closing => LIFETIME_SYN,
                    (SYN, SYN) if both_closing => LIFETIME_FIN,
                    (SYN, SYN) => {
                        let rest = &mut self.rest[at as usize];
                        rest.acknowledge(h, direction);
                        // The lifetime is renewed once both sides acknowledged something.
                        if rest.acked != BOTH {
                            return;
                        }
                        rest.acked = 0;
                        LIFETIME_ACK
                    }
                    _ => LIFETIME_RST,
                }
            }
            proto::UDP | proto::UDPLITE => LIFETIME_UDP,
            _ => LIFETIME_SHORT,
        };
        entry.expires = now + lifetime;
    }

    #[inline]
    fn find(&self, flow: &Flow, hash: u32, name: u16) -> Option<u32> {
        self.buckets.find(hash, |at| {
            let entry = &self.entries[at as usize];
            entry.is_of(flow)
                && (!flow.is_ipv6 || self.rest[at as usize].high == flow.high)
                && (entry.name == name || name == ANY_STATE)
        })
    }

    fn remove(&mut self, at: u32) {
        let entry = self.entries[at as usize];
        self.buckets.remove(entry.hash, at);
        if !entry.answered {
            self.unlink(at);
        }
        self.limited.remove(self.rest[at as usize].limit, at);
        self.entries[at as usize].packets = 0;
        self.rest[at as usize].next = self.free;
        self.free = at;
        self.counts.states -= 1;
    }

    /// Takes an entry out of the list of half-open states.
    fn unlink(&mut self, at: u32) {
        let Rest { prev, next, .. } = self.rest[at as usize];
        match prev {
            NONE => self.oldest = next,
            prev => self.rest[prev as usize].next = next,
        }
        match next {
            NONE => self.newest = prev,
            next => self.rest[next as usize].prev = prev,
        }
    }

    /// Returns an unused entry. If all are used, removes expired states, else the oldest half-open one.
    fn allocate(&mut self, now: u64) -> Option<u32> {
        if self.free == NONE && self.entries.len() < self.max {
            self.entries.push(Entry::default());
            self.rest.push(Rest::EMPTY);
            return Some(self.entries.len() as u32 - 1);
        }
        if self.free == NONE {
            self.sweep(SWEEP_WHEN_FULL, now);
        }
        if self.free == NONE && self.oldest != NONE {
            self.remove(self.oldest);
            self.counts.dropped_half_open += 1;
        }
        if self.free == NONE {
            return None;
        }
        let at = self.free;
        self.free = self.rest[at as usize].next;
        Some(at)
    }
}

/// Returns an address from its halves.
fn joined(high: u64, low: u64) -> u128 {
    u128::from(high) << 64 | u128::from(low)
}

impl Entry {
    /// Whether this is the flow's entry, as far as it can be told here.
    #[inline]
    fn is_of(&self, flow: &Flow) -> bool {
        self.low == flow.low && self.ports == flow.ports && (self.proto, self.is_ipv6) == (flow.proto, flow.is_ipv6)
    }
}

impl Rest {
    const EMPTY: Rest = Rest {
        high: [0; 2],
        ack: [0; 2],
        acked: 0,
        has_ack: 0,
        macs: [[0; 6]; 2],
        proxy: Proxy::NONE,
        limit: NONE,
        prev: NONE,
        next: NONE,
    };

    /// Notes the way of the packets of an answered state, of which this is the first answer.
    fn set_path(&mut self, h: &Headers, is_out: bool) {
        let mac = |address: u64| {
            let [_, _, mac @ ..] = address.to_be_bytes();
            mac
        };
        self.macs = [mac(h.dst_mac), mac(h.src_mac)];
        (self.prev, self.next) = ((h.tags >> 32) as u32, h.tags as u32);
        self.has_ack |= if is_out { 0 } else { FIRST_WAS_OUT };
    }

    /// Notes an acknowledgement that is not older than the last.
    fn acknowledge(&mut self, h: &Headers, direction: usize) {
        let bit = 1 << direction;
        let is_older = self.has_ack & bit != 0 && (h.tcp_ack.wrapping_sub(self.ack[direction]) as i32) < 0;
        if h.tcp_flags & tcp::ACK != 0 && !is_older {
            self.ack[direction] = h.tcp_ack;
            self.acked |= bit;
            self.has_ack |= bit;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn flows_that_share_a_hash_do_not_with_another_seed() {
        let flow = |i: u64| Flow { low: [1, i], high: [0; 2], ports: [5, 80], proto: 6, is_ipv6: false };
        // As many as have a bucket of 2^10 in common by the first seed.
        let shared: Vec<Flow> = (0..1 << 20).map(flow).filter(|flow| flow.hash(1) & 1023 == 0).collect();
        assert!(shared.len() > 500, "{}", shared.len());
        let by_other: std::collections::HashSet<u32> = shared.iter().map(|flow| flow.hash(2) & 1023).collect();
        assert!(by_other.len() > 300, "{}", by_other.len());
    }

    #[test]
    fn addresses_that_agree_in_their_lower_halves_are_different_flows() {
        let headers = |src6: u128| Headers {
            family: Family::V6,
            src6,
            dst6: 5 << 64 | 1,
            src_port: 7,
            dst_port: 53,
            proto: proto::UDP,
            has_transport: true,
            ..Headers::default()
        };
        let (first, second) = (headers(3 << 64 | 1), headers(4 << 64 | 1));
        let rule = RuleId { slot: 4, generation: 2 };
        let option = StateOption { name: 0, limit: None, defer: false, probe: true };
        let mut table = StateTable::new(1, 1);
        assert!(table.install(&first, rule, option, 60, 0));
        assert_eq!(table.lookup(&first, true, 0, 60, 1, |_| true), Some(rule));
        assert_eq!(table.lookup(&second, true, 0, 60, 1, |_| true), None);
        let (at, flow) = (0, Flow::of(&second).unwrap().0);
        assert!(table.entries[at].is_of(&flow) && table.rest[at].high != flow.high);
        let back = Headers { src6: first.dst6, dst6: first.src6, src_port: 53, dst_port: 7, ..first };
        assert_eq!(table.lookup(&back, false, 0, 60, 1, |_| true), Some(rule), "the other direction");
        let listed = table.list(1);
        let end = |address: u128, port| (std::net::Ipv6Addr::from(address).into(), port);
        assert_eq!(listed[0].ends, [end(first.src6, 7), end(first.dst6, 53)]);
        assert_eq!((listed[0].packets, listed[0].bytes), (3, 180));
    }
}
