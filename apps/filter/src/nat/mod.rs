// SPDX-License-Identifier: BSD-2-Clause
//! Network address translation of IPv4, as libalias does it.
//!
//! ```text
//! out:  inside -> remote   becomes   alias  -> remote
//! in:   remote -> alias    becomes   remote -> inside
//! back: inside -> alias of a redirect: both, and the packet returns to the inside
//! ```
//! ICMP errors are translated by the packet that they quote; later fragments as their first.

mod log;
pub(crate) mod rewrite;
mod table;

use crate::packet::{Family, Headers, proto};
use crate::table::AddressHasher;
pub use log::{NatChange, NatEvent};
use rewrite::{End, Layout};
use std::hash::Hasher as _;
pub use table::NatCounts;
use table::{Connection, Connections};

/// Ports of aliases, unless `port_range` says otherwise.
pub(crate) const ALIAS_PORTS: (u16, u16) = (0x8000, 0xffff);
/// Ports that are tried for a connection.
const ATTEMPTS: u32 = 20;
/// Fragmented packets that are remembered: sets of [`WAYS`].
const FRAGMENT_SETS: usize = 1024;
const WAYS: usize = 4;
/// Milliseconds that they are.
const FRAGMENT_LIFE: u64 = 10_000;

/// An instance of NAT.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct NatSettings {
    /// The instance's number for connections: another one after it was reset.
    pub(crate) identity: u32,
    /// The instance's number in rules.
    pub(crate) number: u16,
    /// `None`: the interface has no address now.
    pub(crate) address: Option<u32>,
    pub(crate) ports: (u16, u16),
    pub(crate) deny_in: bool,
    pub(crate) same_ports: bool,
    pub(crate) reverse: bool,
    pub(crate) proxy_only: bool,
    /// Only sources of private networks are translated.
    pub(crate) unregistered_only: bool,
    /// Addresses of carriers (100.64.0.0/10) are translated, too.
    pub(crate) carrier: bool,
    pub(crate) redirects: Vec<Redirect>,
}

/// An address inside that hosts outside reach without being asked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Redirect {
    /// `None`: all protocols.
    pub(crate) proto: Option<u8>,
    /// Servers inside with their first ports; several take turns.
    pub(crate) servers: Vec<End>,
    /// Address outside; `None`: that of the instance.
    pub(crate) public: Option<u32>,
    /// First port outside, and how many; `None`: all ports, which stay as they are.
    pub(crate) ports: Option<(u16, u16)>,
    /// The only remote end; port 0: any.
    pub(crate) remote: Option<(u32, u16, u16)>,
}

/// The result of translating a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Translated {
    /// It passes.
    Pass,
    /// It is dropped.
    Drop,
    /// It returns to the side that it came from.
    Back,
}

/// No connection can be made.
struct Full;

#[derive(Clone, Copy, Debug, Default)]
struct Fragments {
    out: bool,
    key: (u32, u32, u16, u8),
    /// Source and destination of the translated packet.
    becomes: (u32, u32),
    expires: u64,
}

/// Connections of one thread.
#[derive(Debug)]
pub(crate) struct NatTable {
    connections: Connections,
    fragments: Vec<[Fragments; WAYS]>,
    /// Of the hashes of fragments.
    seed: u64,
    /// State of the generator of random ports.
    random: u64,
    /// Next server of a redirect.
    turn: usize,
}

impl NatTable {
    /// Makes a table for `max` connections.
    pub(crate) fn new(max: usize, seed: u64) -> NatTable {
        NatTable {
            connections: Connections::new(max, seed),
            fragments: vec![[Fragments::default(); WAYS]; FRAGMENT_SETS],
            seed,
            random: seed,
            turn: 0,
        }
    }

    /// Returns the memory that is read at random places: start, bytes.
    pub(crate) fn memory(&self) -> [(*const u8, usize); 3] {
        self.connections.memory()
    }

    /// Returns the counts.
    pub(crate) fn counts(&self) -> NatCounts {
        self.connections.counts
    }

    /// Removes expired connections, some at a time.
    pub(crate) fn sweep(&mut self, now: u64) {
        self.connections.sweep(now);
    }

    /// Begins the log.
    pub(crate) fn log(&mut self) {
        self.connections.log();
    }

    /// Moves the events of the log.
    pub(crate) fn take_events(&mut self, to: &mut Vec<NatEvent>) {
        self.connections.take_events(to);
    }

    /// Ends connections and moves the events of the log; returns whether there may be other connections.
    pub(crate) fn end_some(&mut self, now: u64, to: &mut Vec<NatEvent>) -> bool {
        let may_have_more = self.connections.end_some(now);
        self.connections.take_events(to);
        may_have_more
    }

    /// Translates a packet, whose first bytes are `bytes`, from the first port or the second. `now`: milliseconds.
    pub(crate) fn translate(
        &mut self,
        nat: &NatSettings,
        from_first: bool,
        h: &Headers,
        bytes: &mut [u8],
        now: u64,
    ) -> Translated {
        if h.family != Family::V4 || nat.proxy_only {
            return Translated::Pass;
        }
        let out = from_first != nat.reverse;
        if h.frag_offset != 0 {
            return self.later_fragment(out, h, bytes, now);
        }
        // An ICMP message without the field of the identifier.
        if h.proto == proto::ICMP && h.ip_len < u16::from(h.l4 - h.l3) + 8 {
            return Translated::Drop;
        }
        let before = (h.src4, h.dst4);
        let (translated, after) = match (is_error(h), out) {
            (true, true) => self.error_out(nat, h, bytes, now),
            (true, false) => self.error_in(nat, h, bytes, now),
            (false, true) => self.out(nat, h, bytes, now),
            (false, false) => match self.inward(nat, h, (ends(h), bytes), now) {
                Ok(Some(to)) => (Translated::Pass, (h.src4, to.0)),
                Ok(None) if nat.deny_in => {
                    self.connections.counts.denied_in += 1;
                    (Translated::Drop, before)
                }
                Ok(None) => (Translated::Pass, before),
                Err(Full) => (Translated::Drop, before),
            },
        };
        if h.more_fragments && translated == Translated::Pass {
            self.first_fragment(out, h, after, now);
        }
        translated
    }

    /// A packet from inside.
    fn out(&mut self, nat: &NatSettings, h: &Headers, bytes: &mut [u8], now: u64) -> (Translated, (u32, u32)) {
        let ((near, remote), before) = (ends(h), (h.src4, h.dst4));
        let known = self.connections.find(true, nat.identity, h.proto, near, remote, now);
        let at = match known {
            Some(at) => at,
            None if nat.unregistered_only && !is_private(h.src4, nat.carrier) => return (Translated::Pass, before),
            None => match self.connect(nat, h.proto, near, remote, now) {
                Some(at) => at,
                None => return (Translated::Drop, before),
            },
        };
        self.connections.touch(at, true, h.tcp_flags, now);
        let alias = self.connections.get(at).alias;
        Layout::of(h).set_source(bytes, alias);
        if nat.is_public(h.dst4) {
            match self.inward(nat, h, ((alias, remote), bytes), now) {
                Ok(Some(to)) => {
                    self.connections.counts.turned_back += 1;
                    return (Translated::Back, (alias.0, to.0));
                }
                Ok(None) => {}
                Err(Full) => return (Translated::Drop, before),
            }
        }
        (Translated::Pass, (alias.0, h.dst4))
    }

    /// A packet from outside, from and to these ends: the end inside that it goes to, if there is one.
    fn inward(
        &mut self,
        nat: &NatSettings,
        h: &Headers,
        ((remote, near), bytes): ((End, End), &mut [u8]),
        now: u64,
    ) -> Result<Option<End>, Full> {
        // The identifier of an ICMP query is in the place of either port.
        let (remote, near) = if h.proto == proto::ICMP { ((remote.0, 0), (near.0, remote.1)) } else { (remote, near) };
        let at = match self.connections.find(false, nat.identity, h.proto, near, remote, now) {
            Some(at) => at,
            None => {
                let Some(inside) = nat.redirected(h.proto, near, remote, self.turn) else { return Ok(None) };
                self.turn = self.turn.wrapping_add(1);
                let connection = nat.connection(h.proto, inside, near, remote);
                self.connections.add(connection, now).ok_or(Full)?
            }
        };
        self.connections.touch(at, false, h.tcp_flags, now);
        let inside = self.connections.get(at).inside;
        Layout::of(h).set_destination(bytes, inside);
        Ok(Some(inside))
    }

    /// Makes a connection of a packet from inside. `None`: there is no room, address or port.
    fn connect(&mut self, nat: &NatSettings, proto: u8, inside: End, remote: End, now: u64) -> Option<u32> {
        let connection = |alias: End| nat.connection(proto, inside, alias, remote);
        if let Some(alias) = nat.published(proto, inside, remote)
            && self.is_free(nat, proto, alias, remote, now)
        {
            return self.connections.add(connection(alias), now);
        }
        let address = nat.address?;
        let has_ports = matches!(proto, proto::TCP | proto::UDP | proto::UDPLITE | proto::ICMP);
        for attempt in 0..=ATTEMPTS {
            let port = match attempt {
                0 if nat.same_ports || !has_ports => inside.1,
                0 => continue,
                _ if !has_ports => break,
                _ => self.random_port(nat.ports),
            };
            if self.is_free(nat, proto, (address, port), remote, now) {
                return self.connections.add(connection((address, port)), now);
            }
        }
        self.connections.no_port(&connection((address, 0)), now);
        None
    }

    fn is_free(&self, nat: &NatSettings, proto: u8, alias: End, remote: End, now: u64) -> bool {
        self.connections.find(false, nat.identity, proto, alias, remote, now).is_none()
    }

    fn random_port(&mut self, (from, to): (u16, u16)) -> u16 {
        let mut hasher = AddressHasher::default();
        hasher.write_u64(self.random);
        self.random = hasher.finish().wrapping_add(0x9e37_79b9_7f4a_7c15);
        let range = u64::from(to - from) + 1;
        from + (((self.random >> 32) * range) >> 32) as u16
    }

    /// An ICMP error from inside, about a packet that was translated on its way in.
    fn error_out(&mut self, nat: &NatSettings, h: &Headers, bytes: &mut [u8], now: u64) -> (Translated, (u32, u32)) {
        let before = (h.src4, h.dst4);
        let Some((quoted, remote, near)) = Layout::quoted(h, bytes) else {
            return (Translated::Drop, before);
        };
        let (remote, near) = swap_identifier(bytes, h, remote, near);
        let found = self.connections.find(true, nat.identity, inner_proto(h, bytes), near, remote, now);
        let alias = match found.map(|at| self.connections.get(at).alias) {
            Some(alias) => alias,
            None if nat.unregistered_only && !is_private(h.src4, nat.carrier) => return (Translated::Pass, before),
            None => return (Translated::Drop, before),
        };
        quoted.change_quoted(bytes, h, |quoted, bytes| quoted.set_destination(bytes, alias));
        // The router that sends the error, behind this one, is not shown.
        Layout::of(h).set_addresses(bytes, alias.0, h.dst4);
        (Translated::Pass, (alias.0, h.dst4))
    }

    /// An ICMP error from outside, about a packet that was translated on its way out.
    fn error_in(&mut self, nat: &NatSettings, h: &Headers, bytes: &mut [u8], now: u64) -> (Translated, (u32, u32)) {
        let before = (h.src4, h.dst4);
        let Some((quoted, near, remote)) = Layout::quoted(h, bytes) else {
            return (Translated::Drop, before);
        };
        let found = self.connections.find(false, nat.identity, inner_proto(h, bytes), near, remote, now);
        let Some(inside) = found.map(|at| self.connections.get(at).inside) else {
            // It may be for the router itself.
            self.connections.counts.denied_in += u64::from(nat.deny_in);
            return (if nat.deny_in { Translated::Drop } else { Translated::Pass }, before);
        };
        quoted.change_quoted(bytes, h, |quoted, bytes| quoted.set_source(bytes, inside));
        Layout::of(h).set_addresses(bytes, h.src4, inside.0);
        (Translated::Pass, (h.src4, inside.0))
    }

    fn fragment_set(&mut self, key: (u32, u32, u16, u8)) -> &mut [Fragments; WAYS] {
        let mut hasher = AddressHasher::with_seed(self.seed);
        hasher.write_u64(u64::from(key.0) << 32 | u64::from(key.1));
        hasher.write_u64(u64::from(key.2) << 8 | u64::from(key.3));
        &mut self.fragments[(hasher.finish() >> 40) as usize % FRAGMENT_SETS]
    }

    /// Remembers how the first fragment was translated. The oldest of a set makes room.
    fn first_fragment(&mut self, out: bool, h: &Headers, becomes: (u32, u32), now: u64) {
        let key = (h.src4, h.dst4, h.ip_id, h.proto);
        let set = self.fragment_set(key);
        let same = set.iter().position(|f| (f.out, f.key) == (out, key));
        let oldest = (0..WAYS).min_by_key(|&i| set[i].expires).unwrap_or(0);
        set[same.unwrap_or(oldest)] = Fragments { out, key, becomes, expires: now + FRAGMENT_LIFE };
    }

    fn later_fragment(&mut self, out: bool, h: &Headers, bytes: &mut [u8], now: u64) -> Translated {
        let key = (h.src4, h.dst4, h.ip_id, h.proto);
        let found = self.fragment_set(key).iter().find(|f| (f.out, f.key) == (out, key) && f.expires > now).copied();
        let Some(Fragments { becomes: (src, dst), .. }) = found else {
            self.connections.counts.fragments += 1;
            return Translated::Drop;
        };
        Layout::of(h).set_addresses(bytes, src, dst);
        Translated::Pass
    }

    /// Returns the number of connections that have not expired.
    pub(crate) fn live(&self, now: u64) -> usize {
        self.connections.live(now)
    }
}

impl NatSettings {
    /// A connection of this instance.
    fn connection(&self, proto: u8, inside: End, alias: End, remote: End) -> Connection {
        Connection { nat: self.identity, number: self.number, proto, inside, alias, remote }
    }

    /// Whether packets to an address are for this instance.
    fn is_public(&self, address: u32) -> bool {
        self.address == Some(address) || self.redirects.iter().any(|redirect| redirect.public == Some(address))
    }

    /// Returns the end inside for a packet from outside, if a redirect has one.
    fn redirected(&self, proto: u8, near: End, remote: End, turn: usize) -> Option<End> {
        let redirect = self.redirects.iter().find(|redirect| {
            let remote_matches = redirect.remote.is_none_or(|(address, from, to)| {
                (address == 0 || address == remote.0) && (from == 0 || (from..=to).contains(&remote.1))
            });
            redirect.proto.is_none_or(|wanted| wanted == proto)
                && redirect.public.or(self.address) == Some(near.0)
                && redirect.ports.is_none_or(|(first, count)| near.1.wrapping_sub(first) < count)
                && remote_matches
        })?;
        let (address, first) = *redirect.servers.get(turn % redirect.servers.len().max(1))?;
        let port = redirect.ports.map_or(near.1, |(public, _)| first.wrapping_add(near.1.wrapping_sub(public)));
        Some((address, port))
    }

    /// Returns the alias of a server that a redirect names, for a connection that the server opens.
    fn published(&self, proto: u8, inside: End, remote: End) -> Option<End> {
        self.redirects.iter().find_map(|redirect| {
            let public = redirect.public.or(self.address)?;
            // Servers that take turns have no alias that is theirs alone.
            let [(address, first)] = *redirect.servers.as_slice() else { return None };
            if address != inside.0 || redirect.proto.is_some_and(|wanted| wanted != proto) {
                return None;
            }
            if redirect.remote.is_some_and(|(wanted, from, _)| (wanted != 0 && wanted != remote.0) || from != 0) {
                return None;
            }
            match redirect.ports {
                None => Some((public, inside.1)),
                Some((public_port, count)) => {
                    let offset = inside.1.wrapping_sub(first);
                    (offset < count).then(|| (public, public_port.wrapping_add(offset)))
                }
            }
        })
    }
}

/// Source and destination of a packet. For ICMP queries the identifier is the port of the source.
fn ends(h: &Headers) -> (End, End) {
    match h.proto {
        proto::ICMP => ((h.src4, h.icmp_id), (h.dst4, 0)),
        _ if h.has_ports() && h.proto != proto::SCTP => ((h.src4, h.src_port), (h.dst4, h.dst_port)),
        _ => ((h.src4, 0), (h.dst4, 0)),
    }
}

fn is_error(h: &Headers) -> bool {
    h.proto == proto::ICMP && h.has_transport && matches!(h.icmp_type, 3 | 4 | 5 | 11 | 12)
}

/// Protocol of the packet that an error quotes, whose header is complete.
fn inner_proto(h: &Headers, bytes: &[u8]) -> u8 {
    bytes.get(usize::from(h.l4) + 8 + 9).copied().unwrap_or(0)
}

/// A quoted ICMP answer has its identifier in the place of the source's port; it belongs to the end inside.
fn swap_identifier(bytes: &[u8], h: &Headers, remote: End, near: End) -> (End, End) {
    match inner_proto(h, bytes) {
        proto::ICMP => ((remote.0, 0), (near.0, remote.1)),
        _ => (remote, near),
    }
}

fn is_private(address: u32, carrier: bool) -> bool {
    address >> 24 == 10 || address >> 20 == 0xac1 || address >> 16 == 0xc0a8 || carrier && address >> 22 == 0x191
}
