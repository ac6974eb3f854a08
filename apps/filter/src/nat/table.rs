// SPDX-License-Identifier: BSD-2-Clause
//! Translated connections. All memory is allocated when the table is made; a full table drops the oldest connection
//! that is half-open: a TCP connection that is not up, or another that was never answered.

use std::hash::Hasher as _;

use super::log::{FAILURES_EVERY, MAX_EVENTS, NatChange, NatEvent};
use super::rewrite::End;
use crate::buckets::Buckets;
use crate::packet::{proto, tcp};
use crate::table::AddressHasher;

const NONE: u32 = u32::MAX;
/// Milliseconds between two moves of a connection to the end of its list: the lists are in order to that precision.
const STEP: u64 = 1000;
/// Connections that are examined for expired ones in each batch of packets.
const SWEEP: usize = 16;

/// How long a connection lives after its last packet: its list.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
enum Life {
    /// TCP that is not up.
    Opening,
    /// Other protocols, not answered.
    Unanswered,
    /// Other protocols.
    Answered,
    /// TCP that is up.
    Connected,
    /// TCP that one side has closed.
    HalfClosed,
    /// TCP that both sides have closed.
    Closed,
}

const LIVES: [Life; 6] =
    [Life::Opening, Life::Unanswered, Life::Answered, Life::Connected, Life::HalfClosed, Life::Closed];

impl Life {
    /// Milliseconds, as in libalias.
    fn millis(self) -> u64 {
        match self {
            Life::Opening => 300_000,
            Life::Unanswered | Life::Answered => 60_000,
            Life::Connected => 86_400_000,
            Life::HalfClosed => 90_000,
            Life::Closed => 10_000,
        }
    }
}

/// A connection: `inside` is translated to `alias` for `remote`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Connection {
    /// The instance, and how often it was reset.
    pub(super) nat: u32,
    /// The instance's number in rules.
    pub(super) number: u16,
    pub(super) proto: u8,
    pub(super) inside: End,
    pub(super) alias: End,
    pub(super) remote: End,
}

impl Connection {
    /// The end that packets of a direction have besides the remote one.
    fn near(&self, out: bool) -> End {
        if out { self.inside } else { self.alias }
    }

    fn hash(&self, out: bool, seed: u64) -> u32 {
        hash(seed, (self.nat, self.proto), self.near(out), self.remote)
    }
}

fn hash(seed: u64, (nat, proto): (u32, u8), near: End, remote: End) -> u32 {
    let mut hasher = AddressHasher::with_seed(seed);
    hasher.write_u64(u64::from(near.0) << 32 | u64::from(remote.0));
    hasher.write_u64(u64::from(near.1) | u64::from(remote.1) << 16 | u64::from(proto) << 32);
    hasher.write_u64(nat.into());
    (hasher.finish() >> 32) as u32
}

#[derive(Clone, Copy, Debug)]
struct Entry {
    connection: Connection,
    /// TCP flags that were seen, by direction: out, in.
    flags: [u8; 2],
    life: Life,
    used: bool,
    /// Time of the last packet, to [`STEP`].
    last: u64,
    /// Neighbours in the list of `life`; `next` is also the next free entry.
    prev: u32,
    next: u32,
}

/// Counts of translations.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct NatCounts {
    /// Connections now.
    pub connections: u64,
    /// Connections that were made.
    pub created: u64,
    /// Half-open connections that were dropped because the table was full.
    pub dropped_half_open: u64,
    /// Packets that were dropped because the table was full of connections that are up.
    pub full: u64,
    /// Packets that were dropped because no port was free.
    pub no_port: u64,
    /// Packets from outside that were dropped because of `deny_in`.
    pub denied_in: u64,
    /// Later fragments that were dropped, because their first was not seen.
    pub fragments: u64,
    /// Packets that were turned back to a host inside.
    pub turned_back: u64,
    /// Events that are not in the log, which was full.
    pub lost_events: u64,
}

/// Connections of one thread.
#[derive(Debug)]
pub(super) struct Connections {
    /// Of the hashes.
    seed: u64,
    entries: Vec<Entry>,
    max: usize,
    free: u32,
    /// By the ends that packets have on their way in and out.
    buckets: [Buckets; 2],
    /// Oldest and newest entry of each life.
    lists: [(u32, u32); LIVES.len()],
    /// Events that were not taken yet; `None`: there is no log.
    events: Option<Vec<NatEvent>>,
    /// From when on the log takes one that was not made: for want of a port, of room.
    failures_due: [u64; 2],
    pub(super) counts: NatCounts,
}

impl Connections {
    pub(super) fn new(max: usize, seed: u64) -> Connections {
        Connections {
            seed,
            entries: Vec::with_capacity(max),
            max,
            free: NONE,
            buckets: [Buckets::new(max), Buckets::new(max)],
            lists: [(NONE, NONE); LIVES.len()],
            events: None,
            failures_due: [0; 2],
            counts: NatCounts::default(),
        }
    }

    /// Returns the memory that is read at random places: start, bytes.
    pub(super) fn memory(&self) -> [(*const u8, usize); 3] {
        let entries = (self.entries.as_ptr().cast(), self.entries.capacity() * size_of::<Entry>());
        [self.buckets[0].memory(), self.buckets[1].memory(), entries]
    }

    /// Returns the connection of a packet: of one on its way out by `near` inside, of one on its way in by the alias.
    #[inline]
    pub(super) fn find(&self, out: bool, nat: u32, proto: u8, near: End, remote: End, now: u64) -> Option<u32> {
        let hash = hash(self.seed, (nat, proto), near, remote);
        let at = self.buckets[usize::from(out)].find(hash, |at| {
            let c = &self.entries[at as usize].connection;
            c.near(out) == near && c.remote == remote && c.proto == proto && c.nat == nat
        })?;
        let entry = &self.entries[at as usize];
        (entry.last + entry.life.millis() > now).then_some(at)
    }

    pub(super) fn get(&self, at: u32) -> &Connection {
        &self.entries[at as usize].connection
    }

    /// Notes a packet of a connection.
    #[inline]
    pub(super) fn touch(&mut self, at: u32, out: bool, tcp_flags: u8, now: u64) {
        let entry = &mut self.entries[at as usize];
        entry.flags[usize::from(!out)] |= tcp_flags | SEEN;
        let life = life(entry.connection.proto, entry.flags);
        if life != entry.life || now >= entry.last + STEP {
            self.unlink(at);
            let entry = &mut self.entries[at as usize];
            (entry.life, entry.last) = (life, now);
            self.link(at);
        }
    }

    /// Adds a connection, which neither direction has. `None`: the table is full.
    pub(super) fn add(&mut self, connection: Connection, now: u64) -> Option<u32> {
        let Some(at) = self.allocate(now) else {
            self.counts.full += 1;
            self.fail(NatChange::Full(self.max as u32), &connection, now);
            return None;
        };
        // Expired ones that were not found are still in the way.
        for out in [false, true] {
            let old = self.buckets[usize::from(out)].find(connection.hash(out, self.seed), |at| {
                let c = &self.entries[at as usize].connection;
                let same = c.near(out) == connection.near(out) && c.remote == connection.remote;
                same && c.proto == connection.proto && c.nat == connection.nat
            });
            old.into_iter().for_each(|old| self.remove(old, now));
        }
        let life = life(connection.proto, [0; 2]);
        self.entries[at as usize] =
            Entry { connection, flags: [0; 2], life, used: true, last: now, prev: NONE, next: NONE };
        self.link(at);
        for out in [false, true] {
            self.buckets[usize::from(out)].insert(connection.hash(out, self.seed), at);
        }
        self.counts.connections += 1;
        self.counts.created += 1;
        self.note(NatChange::Begins, &connection, now);
        Some(at)
    }

    /// Removes expired connections, some at a time.
    pub(super) fn sweep(&mut self, now: u64) {
        for life in LIVES {
            for _ in 0..SWEEP {
                let oldest = self.lists[life as usize].0;
                if oldest == NONE || self.entries[oldest as usize].last + life.millis() > now {
                    break;
                }
                self.remove(oldest, now);
            }
        }
    }

    /// Begins a log of the connections that are made and that end.
    pub(super) fn log(&mut self) {
        self.events.get_or_insert_with(|| Vec::with_capacity(MAX_EVENTS));
    }

    /// Moves the events of the log.
    pub(super) fn take_events(&mut self, to: &mut Vec<NatEvent>) {
        self.events.iter_mut().for_each(|events| to.append(events));
    }

    /// Ends connections, as many as the log has room for; returns whether there may be others.
    pub(super) fn end_some(&mut self, now: u64) -> bool {
        let room = MAX_EVENTS - self.events.as_ref().map_or(0, Vec::len);
        for _ in 0..room {
            let Some(at) = self.lists.iter().map(|list| list.0).find(|&at| at != NONE) else { return false };
            self.remove(at, now);
        }
        true
    }

    /// A connection cannot be made, as no port is free.
    pub(super) fn no_port(&mut self, connection: &Connection, now: u64) {
        self.counts.no_port += 1;
        self.fail(NatChange::NoPort, connection, now);
    }

    /// Notes a connection that cannot be made, now and then: each of its packets would be one.
    fn fail(&mut self, change: NatChange, connection: &Connection, now: u64) {
        let due = &mut self.failures_due[usize::from(change != NatChange::NoPort)];
        if now >= *due {
            *due = now + FAILURES_EVERY;
            self.note(change, connection, now);
        }
    }

    fn note(&mut self, change: NatChange, connection: &Connection, millis: u64) {
        let Some(events) = &mut self.events else { return };
        if events.len() == MAX_EVENTS {
            self.counts.lost_events += 1;
            return;
        }
        let Connection { number, proto, inside, alias, remote, .. } = *connection;
        events.push(NatEvent { millis, change, number, proto, inside, alias, remote });
    }

    /// Returns the number of connections that have not expired.
    pub(super) fn live(&self, now: u64) -> usize {
        self.entries.iter().filter(|entry| entry.used && entry.last + entry.life.millis() > now).count()
    }

    fn allocate(&mut self, now: u64) -> Option<u32> {
        if self.free == NONE && self.entries.len() < self.max {
            let connection = Connection { nat: 0, number: 0, proto: 0, inside: (0, 0), alias: (0, 0), remote: (0, 0) };
            let (life, used) = (Life::Closed, false);
            self.entries.push(Entry { connection, flags: [0; 2], life, used, last: 0, prev: NONE, next: NONE });
            return Some(self.entries.len() as u32 - 1);
        }
        if self.free == NONE {
            self.sweep(now);
        }
        if self.free == NONE {
            let oldest = [Life::Opening, Life::Unanswered].map(|life| self.lists[life as usize].0);
            let oldest =
                oldest.into_iter().filter(|&at| at != NONE).min_by_key(|&at| self.entries[at as usize].last)?;
            self.remove(oldest, now);
            self.counts.dropped_half_open += 1;
        }
        let at = self.free;
        self.free = self.entries[at as usize].next;
        Some(at)
    }

    fn remove(&mut self, at: u32, now: u64) {
        self.unlink(at);
        let connection = self.entries[at as usize].connection;
        for out in [false, true] {
            self.buckets[usize::from(out)].remove(connection.hash(out, self.seed), at);
        }
        let entry = &mut self.entries[at as usize];
        (entry.used, entry.next) = (false, self.free);
        self.free = at;
        self.counts.connections -= 1;
        self.note(NatChange::Ends, &connection, now);
    }

    fn link(&mut self, at: u32) {
        let (oldest, newest) = &mut self.lists[self.entries[at as usize].life as usize];
        let before = std::mem::replace(newest, at);
        if before == NONE {
            *oldest = at;
        } else {
            self.entries[before as usize].next = at;
        }
        let entry = &mut self.entries[at as usize];
        (entry.prev, entry.next) = (before, NONE);
    }

    fn unlink(&mut self, at: u32) {
        let Entry { prev, next, life, .. } = self.entries[at as usize];
        let (oldest, newest) = &mut self.lists[life as usize];
        match prev {
            NONE => *oldest = next,
            prev => self.entries[prev as usize].next = next,
        }
        match next {
            NONE => *newest = prev,
            next => self.entries[next as usize].prev = prev,
        }
    }
}

/// A bit that TCP does not use in [`Entry::flags`]: a packet was seen.
const SEEN: u8 = 0x80;

fn life(proto: u8, [out, back]: [u8; 2]) -> Life {
    let closed = |flags: u8| flags & (tcp::FIN | tcp::RST) != 0;
    if proto != proto::TCP {
        return if out & back & SEEN != 0 { Life::Answered } else { Life::Unanswered };
    }
    match (closed(out), closed(back)) {
        (true, true) => Life::Closed,
        (false, false) if out & back & tcp::SYN == 0 => Life::Opening,
        (false, false) => Life::Connected,
        _ => Life::HalfClosed,
    }
}
