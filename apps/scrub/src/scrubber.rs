// SPDX-License-Identifier: BSD-2-Clause
//! Decides about packets, wherever they come from: malformed, rules and lists, rates, handshakes, the way back, in this
//! order.

use std::hash::{BuildHasher as _, RandomState};
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use unetmap_filter::{
    Change, Direction, Effect, Engine, Family, Headers, MAX_REPLY, Now, Ruleset, SWEEP_PER_BATCH, Verdict, checksum,
    proto, tcp,
};

use crate::rate::Rates;
use crate::reason::{Reason, Sum};
use crate::record::Recorder;
use crate::rules::{ALLOWED, reason_of};
use crate::shared::Shared;
use crate::top::{Top, source};
use crate::tunnel::{Exit, Tunnel};

/// Sources, prefixes and destinations that have a place each.
const KEYS: usize = 1 << 16;
/// Time between two copies of the top sources for the other thread.
const PUBLISH: u64 = 100;

/// The fate of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fate {
    Pass,
    /// It passes, and its first bytes have changed.
    Changed,
    /// It passes behind the head of [`Scrubber::tunnel`].
    Behind,
    Drop(Reason),
}

/// Packets a second of each source, prefix and destination; `None`: any number.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Limits {
    pub(crate) source: Option<u32>,
    pub(crate) prefix: Option<u32>,
    pub(crate) destination: Option<u32>,
}

/// Returns a number that nobody outside knows, for keys of tables.
pub(crate) fn secret() -> u64 {
    RandomState::new().hash_one(0)
}

/// The state of the thread that decides.
pub(crate) struct Scrubber {
    pub(crate) shared: Arc<Shared>,
    generation: u64,
    set: Arc<Ruleset>,
    engine: Engine,
    /// Of sources, prefixes and destinations, with the reason of what exceeds them.
    rates: Vec<(Rates, Reason)>,
    top: Top,
    attack: u64,
    published: u64,
    recorder: Option<Recorder>,
    changes: Vec<Change>,
    /// The way of what passes.
    pub(crate) tunnel: Option<Tunnel>,
}

impl Scrubber {
    pub(crate) fn new(shared: Arc<Shared>, limits: Limits, states: usize, recorder: Option<Recorder>) -> Scrubber {
        let kinds = [
            (limits.source, Reason::Source),
            (limits.prefix, Reason::Prefix),
            (limits.destination, Reason::Destination),
        ];
        let rates = kinds.into_iter().filter_map(|(rate, reason)| Some((Rates::new(rate?, KEYS, secret()), reason)));
        Scrubber {
            generation: shared.rules.generation(),
            set: shared.rules.set(),
            engine: Engine::new(0, states, secret()),
            rates: rates.collect(),
            top: Top::new(secret()),
            attack: 0,
            published: 0,
            recorder,
            changes: Vec::new(),
            tunnel: None,
            shared,
        }
    }

    /// Begins a batch: takes new rules, and tells the other thread what it asks for.
    pub(crate) fn begin(&mut self, now: Now) {
        let generation = self.shared.rules.generation();
        if generation != self.generation {
            self.set = self.shared.rules.set();
            self.generation = generation;
        }
        self.engine.sweep(SWEEP_PER_BATCH, now.millis);
        let evicted = self.rates.iter().map(|(rates, _)| rates.evicted).sum();
        self.shared.totals.evicted.store(evicted, Relaxed);
        let attack = self.shared.attack.load(Relaxed);
        if now.millis < self.published + PUBLISH && attack == self.attack {
            return;
        }
        self.published = now.millis;
        if attack != self.attack {
            self.attack = attack;
            self.top.clear();
        }
        if let Ok(mut top) = self.shared.top.try_lock() {
            *top = self.top.first();
        }
    }

    /// Decides about a packet of `len` bytes that begins with `bytes`, counts it, and may change its first bytes. `Out`
    /// is from the wire. `send` gets the segments of the proxy and ICMP errors, and whether each goes back.
    pub(crate) fn judge(
        &mut self,
        bytes: &mut [u8],
        len: usize,
        direction: Direction,
        now: Now,
        mut send: impl FnMut(bool, &[u8; MAX_REPLY], usize),
    ) -> Fate {
        let sum = Sum { packets: 1, bytes: len as u64 };
        if direction == Direction::In {
            let fate = self.back(bytes, len, now, send);
            let totals = &self.shared.totals;
            let counter = if matches!(fate, Fate::Drop(_)) { &totals.back_dropped } else { &totals.back };
            counter.add(sum);
            return fate;
        }
        self.shared.totals.received.add(sum);
        let mut headers = Headers::default();
        let fate = match headers.set(bytes, len) {
            Ok(()) if is_possible(&headers, bytes) => self.decide(&headers, bytes, len, now, &mut send),
            _ => Fate::Drop(Reason::Malformed),
        };
        let fate = match fate {
            Fate::Drop(_) => fate,
            _ => self.exit(&headers, bytes, len, now.millis, send).unwrap_or(fate),
        };
        match fate {
            Fate::Drop(reason) => self.drop(reason, &headers, bytes, sum),
            _ => self.shared.totals.passed.add(sum),
        }
        fate
    }

    fn drop(&mut self, reason: Reason, headers: &Headers, bytes: &[u8], sum: Sum) {
        self.shared.totals.dropped[reason as usize].add(sum);
        if !reason.is_usual()
            && let Some(source) = source(headers)
        {
            self.top.count(source, sum.bytes);
        }
        if let Some(recorder) = &mut self.recorder {
            recorder.dropped(reason, bytes, sum.bytes as u32, &self.shared.totals.unrecorded);
        }
    }

    /// Decides how a packet that passes leaves; `None`: as it is.
    fn exit(
        &mut self,
        headers: &Headers,
        bytes: &[u8],
        len: usize,
        millis: u64,
        mut send: impl FnMut(bool, &[u8; MAX_REPLY], usize),
    ) -> Option<Fate> {
        let tunnel = self.tunnel.as_mut()?;
        match tunnel.exit(headers, bytes, len) {
            Exit::AsItIs => None,
            Exit::Behind(bytes) => {
                self.shared.totals.returned.add(Sum { packets: 1, bytes: bytes as u64 });
                Some(Fate::Behind)
            }
            Exit::TooBig(most) => {
                let mut error = [0; MAX_REPLY];
                if let Some(len) = tunnel.refuse(most, headers, bytes, millis, &mut error) {
                    send(true, &error, len);
                }
                Some(Fate::Drop(Reason::TooBig))
            }
        }
    }

    /// Decides about a packet from the wire.
    fn decide(
        &mut self,
        headers: &Headers,
        bytes: &mut [u8],
        len: usize,
        now: Now,
        send: impl FnMut(bool, &[u8; MAX_REPLY], usize),
    ) -> Fate {
        let (verdict, rule) = self.evaluate(headers, len, Direction::Out, now);
        match verdict {
            Verdict::Accept | Verdict::SynProxy(_) => {}
            _ => return Fate::Drop(reason_of(rule)),
        }
        if rule != Some(ALLOWED)
            && let Some(reason) = self.exceeds(headers, now.millis)
        {
            return Fate::Drop(reason);
        }
        let is_changed = self.change(headers, bytes);
        let Verdict::SynProxy(rule) = verdict else {
            return if is_changed { Fate::Changed } else { Fate::Pass };
        };
        let passes = self.engine.proxy(&self.set, rule, headers, bytes, now, send);
        if passes { Fate::Changed } else { Fate::Drop(Reason::Handshake) }
    }

    /// Decides about a packet of the hosts that are protected: only the proxy has something to do.
    fn back(
        &mut self,
        bytes: &mut [u8],
        len: usize,
        now: Now,
        send: impl FnMut(bool, &[u8; MAX_REPLY], usize),
    ) -> Fate {
        let mut headers = Headers::default();
        if headers.set(bytes, len).is_err() {
            return Fate::Pass;
        }
        let (verdict, _) = self.evaluate(&headers, len, Direction::In, now);
        match verdict {
            Verdict::Accept => match self.change(&headers, bytes) {
                true => Fate::Changed,
                false => Fate::Pass,
            },
            Verdict::SynProxy(rule) => match self.engine.proxy(&self.set, rule, &headers, bytes, now, send) {
                true => Fate::Changed,
                false => Fate::Drop(Reason::Handshake),
            },
            _ => Fate::Drop(Reason::Rule),
        }
    }

    /// Returns the verdict of the rules, and the number of the last rule that has logged.
    fn evaluate(&mut self, headers: &Headers, len: usize, direction: Direction, now: Now) -> (Verdict, Option<u16>) {
        let (mut rule, changes) = (None, &mut self.changes);
        changes.clear();
        let verdict = self.engine.evaluate(&self.set, headers, direction, len as u64, now, |effect| match effect {
            Effect::Log(log) => rule = Some(log.number),
            Effect::Change(change) => changes.push(change),
            Effect::Copy(_) => {}
        });
        (verdict, rule)
    }

    fn change(&mut self, headers: &Headers, bytes: &mut [u8]) -> bool {
        self.changes.drain(..).fold(false, |is_changed, change| change.write(headers, bytes) | is_changed)
    }

    /// Takes tokens of the packet's source, prefix and destination; returns the reason if one has none.
    fn exceeds(&mut self, headers: &Headers, millis: u64) -> Option<Reason> {
        let (source, prefix, destination) = match headers.family {
            Family::V4 => (headers.src4.into(), u128::from(headers.src4 >> 8), headers.dst4.into()),
            // A host has all addresses of its network.
            Family::V6 => (headers.src6 >> 64, headers.src6 >> 80, headers.dst6),
            Family::Other => return None,
        };
        let is_v6 = u128::from(headers.family == Family::V6) << 127;
        self.rates.iter_mut().find_map(|(rates, reason)| {
            let key = match reason {
                Reason::Source => source,
                Reason::Prefix => prefix,
                _ => destination,
            };
            (!rates.takes(key ^ is_v6, millis)).then_some(*reason)
        })
    }
}

/// Whether a host may have sent the packet: another destination than source, flags of TCP that make sense, and the
/// checksum of IPv4.
fn is_possible(headers: &Headers, bytes: &[u8]) -> bool {
    let has_ends = match headers.family {
        Family::V4 => headers.src4 != headers.dst4 && has_checksum(headers, bytes),
        Family::V6 => headers.src6 != headers.dst6,
        Family::Other => return true,
    };
    if headers.proto != proto::TCP || !headers.has_transport {
        return has_ends;
    }
    let flags = headers.tcp_flags & (tcp::FIN | tcp::SYN | tcp::RST | tcp::ACK);
    let is_nonsense = matches!(flags, 0 | tcp::FIN) || flags & tcp::SYN != 0 && flags & (tcp::FIN | tcp::RST) != 0;
    has_ends && !is_nonsense && headers.src_port != 0 && headers.dst_port != 0
}

fn has_checksum(headers: &Headers, bytes: &[u8]) -> bool {
    let Some(first) = bytes.get(usize::from(headers.l3)) else { return false };
    let Some(header) = bytes.get(usize::from(headers.l3)..).and_then(|all| all.get(..usize::from(first & 0xf) * 4))
    else {
        return false;
    };
    checksum(header, 0) == 0
}
