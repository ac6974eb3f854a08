// SPDX-License-Identifier: BSD-2-Clause
//! Evaluates the packets of both directions, and moves those that pass.

mod flows;

use std::cell::RefCell;
use std::hash::{BuildHasher as _, RandomState};
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::mpsc::SyncSender;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use tool_common::forward::{Counts, Mover, count_all, move_all, move_judged};
use tool_common::host::memory::prefer_huge_pages;
use unetmap::{Ring, SlotIter};
use unetmap_filter::{
    Change, Direction, EXAMINED_PER_CALL, Effect, Engine, FETCH_STATES, HEADER_BYTES, Headers, MAX_REPLY, MaybeShared,
    NatEvent, Now, Ruleset, SWEEP_PER_BATCH, Translated, Verdict, reply,
};
use unetmap_flows::{Observer, Origin};
use unetmap_shape::held::{PacketSlots, emit, slots_needed, store};
use unetmap_shape::{FlowKey, Nanos, Pool, Shaper, Target};

use crate::fate::{CONSUMED, DENIED, DROPPED, Fate, LIMITED, MALFORMED};
use crate::parsed::Parsed;
use crate::shared::{LogEntry, Shared, Totals, add};
use crate::tee::Tees;

/// Packets whose headers are fetched into the cache before they are needed.
const FETCH_AHEAD: usize = 8;
/// Replies that wait for room in a ring: more than those to a batch of the usual size, in which each packet is a
/// connection request.
const MAX_REPLIES: usize = 1024;

/// Time until there may be a packet, for a worker that must not sleep.
const SOON: Duration = Duration::from_nanos(1);

/// Links, and the packets in them. Each direction of each worker has an output.
pub(crate) struct Links {
    pool: Pool,
    shaper: Shaper,
    /// Number of the rules that the links are of.
    generation: u64,
    /// Of flows' hashes, and of losses.
    seed: u64,
}

/// The parts of which a worker is made.
pub(crate) struct Parts {
    pub(crate) engine: Engine,
    /// Links of the rules, once there are some.
    pub(crate) links: MaybeShared<Option<Links>>,
    pub(crate) log: SyncSender<LogEntry>,
    pub(crate) tees: MaybeShared<Tees>,
    /// Bytes for packets in links.
    pub(crate) memory: usize,
    /// Counts packets by flow.
    pub(crate) observer: Option<Observer>,
    /// The engine has a log of NAT, whose events the observer sends.
    pub(crate) logs_nat: bool,
}

/// State that both directions of a thread share.
pub(crate) struct Worker<'a> {
    shared: &'a Shared,
    totals: &'a Totals,
    generation: u64,
    set: Arc<Ruleset>,
    pub(crate) engine: Engine,
    log: SyncSender<LogEntry>,
    pub(crate) tees: MaybeShared<Tees>,
    /// Numbers of the ports that get copies of the packet.
    copies: Vec<u16>,
    /// Changes of the packet, in their order.
    changes: Vec<Change>,
    /// Whether packets of this batch were copied.
    has_copied: bool,
    links: MaybeShared<Option<Links>>,
    /// Whether there were links, so that they are looked at.
    has_links: bool,
    memory: usize,
    observer: Option<Observer>,
    /// Events of NAT that the observer sends next; `None`: there is no log.
    nat_events: Option<Vec<NatEvent>>,
    /// By the direction that they travel in: frames and their lengths.
    replies: [Vec<([u8; MAX_REPLY], usize)>; 2],
}

impl<'a> Worker<'a> {
    pub(crate) fn new(shared: &'a Shared, parts: Parts) -> Worker<'a> {
        let set = shared.set();
        let Parts { engine, links, log, tees, memory, observer, logs_nat } = parts;
        let totals = &shared.totals[engine.thread()];
        let mut worker = Worker {
            shared,
            totals,
            generation: 1,
            set,
            engine,
            log,
            tees,
            copies: Vec::new(),
            changes: Vec::new(),
            has_copied: false,
            links,
            has_links: false,
            memory,
            observer,
            nat_events: logs_nat.then(Vec::new),
            replies: [Vec::with_capacity(MAX_REPLIES), Vec::with_capacity(MAX_REPLIES)],
        };
        if worker.engine.thread() == 0 {
            worker.engine.tables().for_each(|(start, bytes)| prefer_huge_pages(start, bytes));
        }
        worker.update_links();
        worker
    }

    /// Shows the counts of its tables, of which shared ones are read where they are.
    fn publish_tables(&self) {
        if self.shared.tables.is_none()
            && let (Ok(mut states), Ok(mut nat)) = (self.totals.states.try_lock(), self.totals.nat.try_lock())
        {
            (*states, *nat) = (self.engine.states.counts(), self.engine.nat_counts());
        }
    }

    /// Takes the links of the rules.
    fn update_links(&mut self) {
        let (plan, outputs, memory) = (self.set.plan(), self.shared.totals.len() * 2, self.memory);
        // Packets that NAT turns back wait there, too.
        self.has_links |= !plan.is_empty() || self.set.has_nat();
        if !self.has_links {
            return;
        }
        let generation = self.generation;
        self.links.with(|links| {
            let new = || Links {
                pool: Pool::new(memory),
                shaper: Shaper::new(outputs),
                generation: 0,
                seed: RandomState::new().hash_one(0),
            };
            let links = links.get_or_insert_with(new);
            // Another worker may have taken them, or newer ones.
            if links.generation < generation {
                links.shaper.update(Arc::clone(plan), links.seed);
                links.generation = generation;
            }
        });
    }

    /// Returns the number of a direction's output.
    fn output(&self, index: usize) -> usize {
        self.engine.thread() * 2 + index
    }

    /// Writes replies of a direction to a ring; returns how many.
    fn send_replies(&mut self, index: usize, header: usize, space: u32, targets: &mut SlotIter<'_>) -> u32 {
        let queue = &mut self.replies[index];
        let room = (space as usize).min(queue.len());
        for ((frame, len), slot) in queue.drain(..room).zip(targets) {
            let empty = [0; 16];
            slot.frame().write(0, &empty[..header.min(16)]);
            slot.frame().write(header, &frame[..len]);
            slot.set_len_flags((header + len) as u16, 0);
        }
        add(&self.totals.replies, room as u64);
        room as u32
    }

    /// Asks the ends of idle connections, if it is time and there is room for what is sent.
    fn ask_idle(&mut self) {
        let has_room = self.replies.iter().all(|queue| queue.len() + EXAMINED_PER_CALL <= MAX_REPLIES);
        if !has_room || !self.engine.may_ask_idle() {
            return;
        }
        let (millis, totals, replies) = (self.shared.millis(), self.totals, &mut self.replies);
        self.engine.ask_idle(&self.set, millis, |direction, frame, len| {
            queue_reply(&mut replies[index(direction)], frame, len, totals);
        });
    }

    fn nanos(&self) -> Nanos {
        self.shared.begin.elapsed().as_nanos() as Nanos
    }

    /// Takes new rules, if there are any.
    fn update(&mut self) {
        let generation = self.shared.generation();
        if generation != self.generation {
            self.set = self.shared.set();
            self.generation = generation;
            self.update_links();
        }
        if self.shared.is_listing() {
            self.shared.list(&self.engine.states);
        }
    }

    fn now(&self) -> Now {
        let seconds = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |time| time.as_secs());
        Now { millis: self.shared.millis(), seconds }
    }

    /// Evaluates a packet of `len` bytes that begins with `bytes`, which are parsed. Notes its copies and changes.
    #[inline]
    fn evaluate(&mut self, headers: &Headers, bytes: &[u8], len: usize, direction: Direction, now: Now) -> Verdict {
        let (totals, log, copies, changes) = (self.totals, &self.log, &mut self.copies, &mut self.changes);
        self.engine.evaluate(&self.set, headers, direction, len as u64, now, |effect| {
            let rule = match effect {
                Effect::Log(rule) => rule,
                Effect::Copy(number) => return copies.push(number),
                Effect::Change(change) => return changes.push(change),
            };
            let mut entry = LogEntry {
                time: SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default(),
                bytes: [0; HEADER_BYTES],
                len: len as u32,
                number: rule.number,
                action: rule.action_name(),
                headers: *headers,
                direction,
            };
            entry.bytes[..bytes.len()].copy_from_slice(bytes);
            if log.try_send(entry).is_err() {
                add(&totals.lost_logs, 1);
            }
        })
    }

    /// Sends the copies of a packet that its evaluation has noted.
    #[cold]
    fn copy(&mut self, from: &Ring, packet: &PacketSlots, header: usize, head: &[u8]) {
        let (copies, totals) = (&mut self.copies, self.totals);
        self.tees.with(|tees| {
            for number in copies.drain(..) {
                let copied = tees.copy(number, from, packet, header, head);
                add(if copied { &totals.copies } else { &totals.lost_copies }, 1);
            }
        });
        self.has_copied = true;
    }

    /// Makes the changes that a packet's evaluation has noted, in its first `bytes`. Returns whether there were any.
    #[cold]
    fn change(&mut self, headers: &Headers, bytes: &mut [u8]) -> bool {
        self.changes.drain(..).fold(false, |is_changed, change| change.write(headers, bytes) | is_changed)
    }

    /// Does what a verdict says with a packet, and may change its first `bytes`, which are parsed. A refused packet may
    /// be answered.
    #[inline]
    fn obey(&mut self, verdict: Verdict, headers: &Headers, bytes: &mut [u8], direction: Direction, now: Now) -> Fate {
        let totals = self.totals;
        match verdict {
            Verdict::Accept => return Fate::Pass,
            Verdict::Deny => return Fate::Drop(DENIED),
            Verdict::Link(target) => return Fate::Link(target, headers.flow_key()),
            Verdict::Nat(number) => {
                return match self.engine.translate(&self.set, number, direction, headers, bytes, now) {
                    Translated::Pass => Fate::Changed,
                    Translated::Back => Fate::Back,
                    Translated::Drop => Fate::Drop(DROPPED),
                };
            }
            Verdict::SynProxy(rule) => {
                let replies = &mut self.replies;
                let passes = self.engine.proxy(&self.set, rule, headers, bytes, now, |back, frame, len| {
                    queue_reply(&mut replies[index(direction) ^ usize::from(back)], frame, len, totals);
                });
                return if passes { Fate::Changed } else { Fate::Drop(CONSUMED) };
            }
            _ => {}
        }
        let mut frame = [0; MAX_REPLY];
        if let Some(len) = reply(verdict, headers, bytes, &mut frame) {
            queue_reply(&mut self.replies[index(direction) ^ 1], &frame, len, totals);
        }
        Fate::Drop(DENIED)
    }

    /// Copies a packet into memory of its own, as a packet of a direction. `head` are its first bytes, as they were
    /// evaluated, whatever the sender has written meanwhile. Returns false if it is dropped.
    fn keep(&mut self, from: &Ring, packet: &PacketSlots, header: usize, head: &[u8], to: Keep) -> bool {
        let now = self.nanos();
        self.links.with(|links| {
            let Some(Links { pool, shaper, .. }) = links else { return false };
            let Some(stored) = store(pool, from, packet, header, to.output, now) else { return false };
            pool.head_mut(stored)[..head.len()].copy_from_slice(head);
            match to.link {
                Some((target, key)) => shaper.enqueue(pool, stored, target, &key, now).is_ok(),
                None => {
                    shaper.deliver(pool, stored);
                    true
                }
            }
        })
    }
}

/// Returns the place of a direction in arrays.
fn index(direction: Direction) -> usize {
    usize::from(direction == Direction::In)
}

fn queue_reply(queue: &mut Vec<([u8; MAX_REPLY], usize)>, frame: &[u8; MAX_REPLY], len: usize, totals: &Totals) {
    if queue.len() < MAX_REPLIES {
        queue.push((*frame, len));
    } else {
        add(&totals.lost_replies, 1);
    }
}

/// Where a packet that is kept goes.
struct Keep {
    /// Its link; `None`: to the output at once.
    link: Option<(Target, FlowKey)>,
    /// Number of its output.
    output: u32,
}

/// One direction of a worker.
pub(crate) struct Filter<'w, 'a> {
    pub(crate) worker: &'w RefCell<Worker<'a>>,
    pub(crate) direction: Direction,
    /// True to exchange buffers, false to copy.
    pub(crate) swap: bool,
    /// Bytes of the virtio-net header before each packet.
    pub(crate) header: usize,
    /// Bytes of the buffers of the port that sends.
    pub(crate) buf_size: u32,
    pub(crate) total: Counts,
    pub(crate) dropped: u64,
    /// Why the last one was.
    pub(crate) reason: u8,
    /// Packets of a batch that are parsed, and whose states are fetched, before the first of them is evaluated. The
    /// memory is used again.
    pub(crate) group: Vec<Parsed>,
}

impl Filter<'_, '_> {
    fn index(&self) -> usize {
        index(self.direction)
    }

    /// Moves or drops all packets of a batch.
    #[inline]
    fn move_packets(&mut self, worker: &mut Worker<'_>, from: &Ring, to: &Ring, n: u32, now: Now) -> u32 {
        let (mut sent, mut targets) = (0, to.available());
        let mut sources = from.first(n);
        let mut ahead = from.first(n);
        ahead.by_ref().take(FETCH_AHEAD).for_each(|slot| slot.fetch());
        // Taken from `self` so that its packets can be given to its functions.
        let mut group = std::mem::take(&mut self.group);
        loop {
            let mut parsed = 0;
            while parsed < FETCH_STATES {
                let Some(first) = sources.next() else { break };
                if parsed == group.len() {
                    group.push(Parsed::new(first.pos()));
                }
                if let Some(slot) = ahead.next() {
                    slot.fetch();
                }
                let packet = &mut group[parsed];
                packet.read(&first, &mut sources, self.header);
                for _ in 1..packet.slots.slots {
                    ahead.next();
                }
                let (bytes, len) = packet.frame(self.header);
                packet.known = worker.engine.recall(&worker.set, bytes, len, self.direction, now);
                if packet.known.is_none() {
                    packet.malformed = packet.headers.set(&packet.bytes[..packet.read], len).is_err();
                }
                parsed += 1;
            }
            if parsed == 0 {
                break;
            }
            let group = &mut group[..parsed];
            worker.engine.fetch(&worker.set, group.iter().map(|packet| &packet.headers));
            for packet in group {
                sent += self.take(worker, from, packet, &mut targets, now);
            }
        }
        self.group = group;
        sent
    }

    /// Counts a packet by its flow, if there are records of flows and it is chosen, and moves or drops it.
    #[inline(always)]
    fn take(
        &mut self,
        worker: &mut Worker<'_>,
        from: &Ring,
        packet: &mut Parsed,
        targets: &mut SlotIter<'_>,
        now: Now,
    ) -> u32 {
        let (len, port) = (packet.slots.bytes.saturating_sub(self.header), self.index() as u16);
        if !worker.observer.as_mut().is_some_and(|observer| observer.chooses(len, port)) {
            return self.move_packet(worker, from, packet, targets, now);
        }
        // As it came: its addresses may be translated.
        let (head, before) = (packet.bytes, self.dropped);
        let sent = self.move_packet(worker, from, packet, targets, now);
        let dropped = if self.dropped > before { self.reason } else { 0 };
        if let Some(observer) = &mut worker.observer {
            observer.count(&head[..packet.read], len, Origin { port, dropped });
        }
        sent
    }

    /// Counts a dropped packet, and keeps why.
    fn drop(&mut self, reason: u8) {
        self.dropped += 1;
        self.reason = reason;
    }

    /// Moves or drops one packet; returns how many slots of the other ring it takes.
    #[inline]
    fn move_packet(
        &mut self,
        worker: &mut Worker<'_>,
        from: &Ring,
        packet: &mut Parsed,
        targets: &mut SlotIter<'_>,
        now: Now,
    ) -> u32 {
        let Parsed { slots, bytes, read, headers, malformed, known } = packet;
        let read = *read;
        let fate = match (known, malformed) {
            (Some(Verdict::Accept), _) => Fate::Pass,
            (Some(Verdict::Deny), _) => Fate::Drop(DENIED),
            (_, true) => {
                add(&worker.totals.malformed, 1);
                Fate::Drop(MALFORMED)
            }
            (_, false) => {
                let len = slots.bytes.saturating_sub(self.header);
                let verdict = worker.evaluate(headers, &bytes[..read], len, self.direction, now);
                if !worker.copies.is_empty() {
                    worker.copy(from, slots, self.header, &bytes[..read]);
                }
                let is_changed = !worker.changes.is_empty() && worker.change(headers, &mut bytes[..read]);
                match worker.obey(verdict, headers, &mut bytes[..read], self.direction, now) {
                    Fate::Pass if is_changed => Fate::Changed,
                    fate => fate,
                }
            }
        };
        let keep = match fate {
            Fate::Pass | Fate::Changed => None,
            Fate::Drop(reason) => {
                self.drop(reason);
                return 0;
            }
            Fate::Link(target, key) => {
                Some(Keep { link: Some((target, key)), output: worker.output(self.index()) as u32 })
            }
            Fate::Back => {
                swap_macs(bytes);
                Some(Keep { link: None, output: worker.output(self.index() ^ 1) as u32 })
            }
        };
        if let Some(keep) = keep {
            let kept = worker.keep(from, slots, self.header, &bytes[..read], keep);
            if !kept {
                self.drop(LIMITED);
            }
            return 0;
        }
        let head = (!self.swap || fate == Fate::Changed).then_some(&bytes[..read]);
        move_judged(from.run(slots.start, slots.slots), targets, self.swap, self.header, head);
        self.total.add(Counts { packets: 1, bytes: slots.bytes as u64 });
        slots.slots
    }
}

/// Exchanges source and destination of an Ethernet header.
fn swap_macs(bytes: &mut [u8; HEADER_BYTES]) {
    let (dst, rest) = bytes.split_at_mut(6);
    dst.swap_with_slice(&mut rest[..6]);
}

impl Mover for Filter<'_, '_> {
    fn move_slots(&mut self, from: &Ring, to: &Ring, n: u32) -> Result<u32, String> {
        let worker = &mut *self.worker.borrow_mut();
        worker.update();
        let now = worker.now();
        let sent = if let Some(verdict) = Engine::always(&worker.set) {
            // The verdict is the same for all: no packet is looked at.
            let passes = verdict == Verdict::Accept;
            let counts = if passes { move_all(from, to, n, self.swap) } else { count_all(from, n) };
            worker.engine.count_always(&worker.set, counts.packets, counts.bytes, now);
            if let Some(observer) = &mut worker.observer {
                let (ring, dropped) = if passes { (to, 0) } else { (from, DENIED) };
                observer.observe(ring, n, counts, Origin { port: self.index() as u16, dropped });
            }
            if passes {
                self.total.add(counts);
            } else {
                self.dropped += counts.packets;
            }
            if passes { n } else { 0 }
        } else {
            self.move_packets(worker, from, to, n, now)
        };
        worker.engine.sweep(SWEEP_PER_BATCH, now.millis);
        worker.send_nat_events();
        if std::mem::take(&mut worker.has_copied) {
            worker.tees.with(Tees::send);
        }
        let totals = worker.totals;
        totals.passed[self.index()].store(self.total.packets, Relaxed);
        totals.dropped[self.index()].store(self.dropped, Relaxed);
        worker.publish_tables();
        if let Ok(mut handshakes) = totals.handshakes.try_lock() {
            *handshakes = worker.engine.handshakes;
        }
        Ok(sent)
    }

    fn own_packets(&mut self, to: &Ring) -> u32 {
        let worker = &mut *self.worker.borrow_mut();
        worker.update();
        worker.tick();
        if self.direction == Direction::Out {
            worker.ask_idle();
        }
        let mut targets = to.available();
        let replies = worker.send_replies(self.index(), self.header, to.space(), &mut targets);
        if !worker.has_links {
            return replies;
        }
        let (now, output) = (worker.nanos(), worker.output(self.index()));
        worker.links.with(|links| {
            let Some(Links { pool, shaper, .. }) = links else { return replies };
            shaper.advance(pool, now);
            let (mut used, room) = (replies, to.space());
            while let Some(packet) = shaper.first(output) {
                let needed = slots_needed(pool, packet, self.buf_size);
                let too_long = needed >= to.num_slots();
                if !too_long && used + needed > room {
                    break;
                }
                shaper.take(pool, output);
                if too_long {
                    pool.free(packet);
                    self.dropped += 1;
                    continue;
                }
                self.total.add(Counts { packets: 1, bytes: pool.stored(packet) as u64 });
                used += emit(pool, packet, &mut targets, self.buf_size);
            }
            used
        })
    }

    fn end(&mut self) -> usize {
        let worker = &mut *self.worker.borrow_mut();
        let output = worker.output(self.index());
        worker.links.with(|links| {
            let Some(Links { pool, shaper, .. }) = links else { return 0 };
            shaper.end(pool);
            shaper.arrived(output)
        })
    }

    fn next_packet(&mut self) -> Option<Duration> {
        let worker = &mut *self.worker.borrow_mut();
        if worker.engine.is_asking_idle() || worker.shared.is_listing() {
            return Some(SOON);
        }
        let look = worker.observer.as_mut().map(Observer::sleeps);
        if !worker.has_links {
            return look;
        }
        let output = worker.output(self.index());
        let due = worker.links.read(|links| {
            let shaper = &links.as_ref()?.shaper;
            if shaper.first(output).is_some() {
                return Some(Duration::ZERO);
            }
            // A packet that has become due since does not wait for room.
            shaper.next_due().map(|due| Duration::from_nanos(due.saturating_sub(worker.nanos()).max(1)))
        });
        due.into_iter().chain(look).min()
    }
}
