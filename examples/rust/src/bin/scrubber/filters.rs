//! The chain of filters that a packet from the wire goes through, each cheaper than the next.

use std::time::Duration;

use crate::packet::{ACK, FIN, Ip, Kind, Packet, RST, SYN};
use crate::proxy::SynProxy;
use crate::table::{Table, mix};

/// What becomes of a packet.
pub(crate) enum Verdict {
    /// The next filter, or the host, gets it.
    Pass,
    /// It ends here.
    Drop,
    /// It ends here, and this frame goes back to where it came from.
    Answer(Vec<u8>),
}

/// One stage of the chain.
pub(crate) trait Filter: Send {
    /// How it is called in reports.
    fn name(&self) -> &'static str;

    /// `now` is any time that does not go backwards.
    fn judge(&mut self, packet: &Packet<'_>, now: Duration) -> Verdict;
}

/// The chain as `secret` and the program's arguments make it.
pub(crate) fn chain(secret: u64, packets_per_second: u32) -> Vec<Box<dyn Filter>> {
    vec![
        Box::new(Malformed),
        Box::new(Bogon),
        Box::new(Rate::new(secret, packets_per_second)),
        Box::new(SynProxy::new(secret)),
    ]
}

/// Drops what no stack sends: broken headers, packets to oneself, flags that contradict each other.
struct Malformed;

impl Filter for Malformed {
    fn name(&self) -> &'static str {
        "malformed"
    }

    fn judge(&mut self, packet: &Packet<'_>, _now: Duration) -> Verdict {
        let good = match &packet.kind {
            Kind::Malformed => false,
            Kind::Other => true,
            Kind::Ip(ip) => ip.source != ip.destination && sane_tcp(packet, ip),
        };
        if good { Verdict::Pass } else { Verdict::Drop }
    }
}

fn sane_tcp(packet: &Packet<'_>, ip: &Ip) -> bool {
    if ip.protocol != crate::packet::TCP {
        return true;
    }
    let Some((_, tcp)) = packet.tcp() else { return false };
    let header = usize::from(tcp[12] >> 4) * 4;
    let flags = tcp[13] & (FIN | SYN | RST | ACK);
    let contradiction = matches!(flags, 0 | FIN) || flags & SYN != 0 && flags & (FIN | RST) != 0;
    header >= 20 && ip.payload - ip.at + header <= ip.len && !contradiction
}

/// Drops what comes from addresses that nobody has.
struct Bogon;

/// IPv4 networks that no packet comes from: this network, loopback, link-local, for documentation (three) and tests, and
/// from 224 on multicast and what is reserved. Private ones may be the neighbours.
const NETS: [(u32, u32); 9] = [
    (0x0000_0000, 8),
    (0x7f00_0000, 8),
    (0xa9fe_0000, 16),
    (0xc000_0000, 24),
    (0xc000_0200, 24),
    (0xc612_0000, 15),
    (0xc633_6400, 24),
    (0xcb00_7100, 24),
    (0xe000_0000, 3),
];

impl Filter for Bogon {
    fn name(&self) -> &'static str {
        "bogon"
    }

    fn judge(&mut self, packet: &Packet<'_>, _now: Duration) -> Verdict {
        let Some(ip) = packet.ip() else { return Verdict::Pass };
        let nobodys = if ip.v6 {
            let source = u128::from_be_bytes(ip.source);
            // Loopback, IPv4 in disguise, multicast, documentation. Unspecified is who asks for an address.
            source == 1 || source >> 32 == 0xffff || source >> 120 == 0xff || source >> 96 == 0x2001_0db8
        } else {
            let source = u128::from_be_bytes(ip.source) as u32;
            NETS.iter().any(|(net, bits)| (source ^ net) >> (32 - bits) == 0)
        };
        if nobodys { Verdict::Drop } else { Verdict::Pass }
    }
}

/// Lets each source send so many packets in a second, and as many at once.
struct Rate {
    secret: u64,
    per_second: u32,
    sources: Table<Bucket>,
}

/// What is left to a source, in packets, and when that was so.
#[derive(Clone, Copy, Default)]
struct Bucket {
    tokens: f32,
    at: Duration,
}

/// Sources whose rate is known at a time; of more the one unseen for longest is forgotten.
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

    fn judge(&mut self, packet: &Packet<'_>, now: Duration) -> Verdict {
        let Some(ip) = packet.ip() else { return Verdict::Pass };
        let most = self.per_second as f32;
        let full = Bucket { tokens: most, at: now };
        let bucket = self.sources.entry(source_key(ip, self.secret), now, || full);
        let grown = bucket.tokens + (now.saturating_sub(bucket.at)).as_secs_f32() * most;
        *bucket = Bucket { tokens: grown.min(most), at: now };
        if bucket.tokens < 1.0 {
            return Verdict::Drop;
        }
        bucket.tokens -= 1.0;
        Verdict::Pass
    }
}

/// A number for the source that nobody outside can choose. Who has an IPv6 network has all addresses of it, so its first
/// half is the source.
pub(crate) fn source_key(ip: &Ip, secret: u64) -> u64 {
    let address = u128::from_be_bytes(ip.source);
    let source = if ip.v6 { (address >> 64) as u64 } else { address as u64 };
    mix(mix(source ^ secret).wrapping_add(u64::from(ip.v6)))
}
