// SPDX-License-Identifier: BSD-2-Clause
//! The filters that are applied to a packet from the interface, the cheapest first.

use std::sync::Arc;
use std::time::Duration;

use crate::packet::{ACK, FIN, Ip, Kind, Packet, RST, SYN};
use crate::proxy::SynProxy;
use crate::rules::{Evaluate, Rules};
use crate::table::{Table, mix};

/// The decision of a filter.
pub(crate) enum Verdict {
    /// The packet goes to the next filter, or to the host after the last one.
    Pass,
    /// The packet is dropped.
    Drop,
    /// The packet is dropped, and this frame is sent to its source.
    Reply(Vec<u8>),
}

/// One stage of the chain.
pub(crate) trait Filter: Send {
    /// Returns the filter's name in reports.
    fn name(&self) -> &'static str;

    /// Decides about a packet. `now` must be monotonic.
    fn check(&mut self, packet: &Packet<'_>, now: Duration) -> Verdict;
}

/// Creates the filters of a thread.
pub(crate) fn chain(rules: &Arc<Rules>, thread: usize, secret: u64, packets_per_second: u32) -> Vec<Box<dyn Filter>> {
    vec![
        Box::new(Malformed),
        Box::new(Evaluate::new(rules, thread, secret)),
        Box::new(Rate::new(secret, packets_per_second)),
        Box::new(SynProxy::new(secret)),
    ]
}

/// Drops packets that no stack sends: invalid headers, equal source and destination, contradictory TCP flags.
struct Malformed;

impl Filter for Malformed {
    fn name(&self) -> &'static str {
        "malformed"
    }

    fn check(&mut self, packet: &Packet<'_>, _now: Duration) -> Verdict {
        let valid = match &packet.kind {
            Kind::Malformed => false,
            Kind::Other => true,
            Kind::Ip(ip) => ip.source != ip.destination && is_valid_tcp(packet, ip),
        };
        if valid { Verdict::Pass } else { Verdict::Drop }
    }
}

fn is_valid_tcp(packet: &Packet<'_>, ip: &Ip) -> bool {
    if ip.protocol != crate::packet::TCP {
        return true;
    }
    let Some((_, tcp)) = packet.tcp() else { return false };
    let header = usize::from(tcp[12] >> 4) * 4;
    let flags = tcp[13] & (FIN | SYN | RST | ACK);
    let contradiction = matches!(flags, 0 | FIN) || flags & SYN != 0 && flags & (FIN | RST) != 0;
    header >= 20 && ip.payload - ip.at + header <= ip.len && !contradiction
}

/// Limits the rate of each source with a token bucket. The maximum burst is the packets of one second.
struct Rate {
    secret: u64,
    per_second: u32,
    sources: Table<Bucket>,
}

/// The tokens of a source, in packets, at a time.
#[derive(Clone, Copy, Default)]
struct Bucket {
    tokens: f32,
    at: Duration,
}

/// Maximum number of sources whose rate is tracked. A new source replaces a least recently used one.
const SOURCES: usize = 1 << 16;

impl Rate {
    fn new(secret: u64, per_second: u32) -> Rate {
        Rate { secret, per_second, sources: Table::new(SOURCES) }
    }
}

impl Filter for Rate {
    fn name(&self) -> &'static str {
        "rate"
    }

    fn check(&mut self, packet: &Packet<'_>, now: Duration) -> Verdict {
        let Some(ip) = packet.ip() else { return Verdict::Pass };
        let max = self.per_second as f32;
        let full = Bucket { tokens: max, at: now };
        let bucket = self.sources.entry(source_key(ip, self.secret), now, || full);
        let tokens = bucket.tokens + (now.saturating_sub(bucket.at)).as_secs_f32() * max;
        *bucket = Bucket { tokens: tokens.min(max), at: now };
        if bucket.tokens < 1.0 {
            return Verdict::Drop;
        }
        bucket.tokens -= 1.0;
        Verdict::Pass
    }
}

/// Returns a key for the source of a packet, which an attacker cannot choose. For IPv6 it is derived from the upper
/// half of the address, because a host can use all addresses of its network.
pub(crate) fn source_key(ip: &Ip, secret: u64) -> u64 {
    let address = u128::from_be_bytes(ip.source);
    let source = if ip.v6 { (address >> 64) as u64 } else { address as u64 };
    mix(mix(source ^ secret).wrapping_add(u64::from(ip.v6)))
}
