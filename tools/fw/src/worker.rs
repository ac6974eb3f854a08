// SPDX-License-Identifier: BSD-2-Clause
//! Evaluates the packets of both directions, and moves those that pass.

use std::cell::RefCell;
use std::sync::atomic::{AtomicU64, Ordering::Acquire, Ordering::Relaxed, Ordering::Release};
use std::sync::mpsc::SyncSender;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Instant, SystemTime, UNIX_EPOCH};

use tool_common::forward::{Counts, Mover, copy_slot, count_all, move_all, swap_slot};
use unetmap::abi::NS_MOREFRAG;
use unetmap::{Ring, SlotRef};
use unetmap_filter::{
    Direction, Engine, HEADER_BYTES, Headers, MAX_REPLY, Now, Ruleset, SWEEP_PER_BATCH, StateCounts, Verdict, reply,
};

/// Packets whose headers are fetched into the cache before they are needed.
const FETCH_AHEAD: usize = 8;
/// Replies that wait for room in a ring.
const MAX_REPLIES: usize = 64;

/// The rules that packets are evaluated with, which another thread replaces.
pub(crate) struct Shared {
    set: Mutex<Arc<Ruleset>>,
    /// Number of the set: a change is noticed without the lock.
    generation: AtomicU64,
    /// Counts of the workers, for the other thread.
    pub(crate) totals: Totals,
}

/// Counts that another thread reads.
#[derive(Default)]
pub(crate) struct Totals {
    /// By direction.
    pub(crate) passed: [AtomicU64; 2],
    pub(crate) dropped: [AtomicU64; 2],
    pub(crate) malformed: AtomicU64,
    pub(crate) replies: AtomicU64,
    /// Replies for which there was no room.
    pub(crate) lost_replies: AtomicU64,
    /// Log lines that were not written because too many waited.
    pub(crate) lost_logs: AtomicU64,
    pub(crate) states: Mutex<StateCounts>,
}

impl Shared {
    pub(crate) fn new(set: Ruleset) -> Shared {
        Shared { set: Mutex::new(Arc::new(set)), generation: AtomicU64::new(1), totals: Totals::default() }
    }

    /// Replaces the rules: each batch of packets is evaluated with the old ones or with the new ones.
    pub(crate) fn replace(&self, set: Ruleset) {
        let old = std::mem::replace(&mut *self.set.lock().unwrap_or_else(PoisonError::into_inner), Arc::new(set));
        self.generation.fetch_add(1, Release);
        drop(old);
    }
}

/// A packet that a rule logs.
pub(crate) struct LogEntry {
    pub(crate) number: u16,
    pub(crate) action: &'static str,
    pub(crate) headers: Headers,
    pub(crate) direction: Direction,
}

/// What both directions of a thread share.
pub(crate) struct Worker<'a> {
    shared: &'a Shared,
    generation: u64,
    set: Arc<Ruleset>,
    pub(crate) engine: Engine,
    begin: Instant,
    log: SyncSender<LogEntry>,
    /// By the direction that they travel in: frames and their lengths.
    replies: [Vec<([u8; MAX_REPLY], usize)>; 2],
}

impl<'a> Worker<'a> {
    pub(crate) fn new(shared: &'a Shared, states: usize, log: SyncSender<LogEntry>) -> Worker<'a> {
        let set = Arc::clone(&shared.set.lock().unwrap_or_else(PoisonError::into_inner));
        let seed = SystemTime::now().duration_since(UNIX_EPOCH).map_or(1, |time| time.as_nanos() as u64);
        Worker {
            shared,
            generation: 1,
            set,
            engine: Engine::new(0, states, seed),
            begin: Instant::now(),
            log,
            replies: [Vec::with_capacity(MAX_REPLIES), Vec::with_capacity(MAX_REPLIES)],
        }
    }

    /// Takes new rules, if there are any.
    fn update(&mut self) {
        let generation = self.shared.generation.load(Acquire);
        if generation != self.generation {
            self.set = Arc::clone(&self.shared.set.lock().unwrap_or_else(PoisonError::into_inner));
            self.generation = generation;
        }
    }

    fn now(&self) -> Now {
        let seconds = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |time| time.as_secs());
        Now { millis: self.begin.elapsed().as_millis() as u64, seconds }
    }

    /// Evaluates a packet. A refused one may be answered.
    #[inline]
    fn accepts(&mut self, bytes: &[u8], len: usize, direction: Direction, now: Now) -> bool {
        let totals = &self.shared.totals;
        let headers = match Headers::parse(bytes, len) {
            Ok(headers) => headers,
            Err(_) => {
                add(&totals.malformed, 1);
                return false;
            }
        };
        let log = &self.log;
        let verdict = self.engine.evaluate(&self.set, &headers, direction, len as u64, now, |rule| {
            let entry = LogEntry { number: rule.number, action: rule.action_name(), headers, direction };
            if log.try_send(entry).is_err() {
                add(&totals.lost_logs, 1);
            }
        });
        if matches!(verdict, Verdict::Accept | Verdict::Deny) {
            return verdict == Verdict::Accept;
        }
        let mut frame = [0; MAX_REPLY];
        if let Some(len) = reply(verdict, &headers, bytes, &mut frame) {
            let queue = &mut self.replies[if direction == Direction::Out { 1 } else { 0 }];
            if queue.len() < MAX_REPLIES {
                queue.push((frame, len));
            } else {
                add(&totals.lost_replies, 1);
            }
        }
        false
    }
}

/// Adds to a counter that only this thread writes.
fn add(counter: &AtomicU64, n: u64) {
    counter.store(counter.load(Relaxed) + n, Relaxed);
}

/// One direction of a worker.
pub(crate) struct Filter<'w, 'a> {
    pub(crate) worker: &'w RefCell<Worker<'a>>,
    pub(crate) direction: Direction,
    /// True to exchange buffers, false to copy.
    pub(crate) swap: bool,
    /// Bytes of the virtio-net header before each packet.
    pub(crate) header: usize,
    pub(crate) total: Counts,
    pub(crate) dropped: u64,
}

impl Filter<'_, '_> {
    fn index(&self) -> usize {
        usize::from(self.direction == Direction::In)
    }

    /// Moves or drops all packets of a batch.
    #[inline]
    fn move_packets(&mut self, worker: &mut Worker<'_>, from: &Ring, to: &Ring, n: u32, now: Now) -> u32 {
        let (mut sent, mut targets) = (0, to.available());
        let mut sources = from.first(n);
        let mut ahead = from.first(n);
        ahead.by_ref().take(FETCH_AHEAD).for_each(|slot| slot.fetch());
        let mut bytes = [0; HEADER_BYTES];
        while let Some(first) = sources.next() {
            if let Some(slot) = ahead.next() {
                slot.fetch();
            }
            let (len, flags) = first.len_flags();
            let mut read = read_header(&first, self.header, len, &mut bytes, 0);
            let (mut slots, mut packet) = (1, usize::from(len));
            let start = first.pos();
            let mut more = flags & NS_MOREFRAG != 0;
            while more {
                let Some(slot) = sources.next() else { break };
                let (len, flags) = slot.len_flags();
                ahead.next();
                read += read_header(&slot, 0, len, &mut bytes, read);
                slots += 1;
                packet += usize::from(len);
                more = flags & NS_MOREFRAG != 0;
            }
            let len = packet.saturating_sub(self.header);
            if !worker.accepts(&bytes[..read], len, self.direction, now) {
                self.dropped += 1;
                continue;
            }
            let mut header: &[u8] = &bytes[..read];
            for source in from.run(start, slots) {
                let Some(target) = targets.next() else { break };
                if self.swap {
                    swap_slot(&source, &target);
                    continue;
                }
                let (len, _) = copy_slot(&source, &target);
                // The bytes that were checked, whatever the sender has written meanwhile.
                let at = if header.len() == read { self.header } else { 0 };
                let part = header.len().min(usize::from(len).saturating_sub(at));
                target.frame().write(at, &header[..part]);
                header = &header[part..];
            }
            self.total.add(Counts { packets: 1, bytes: packet as u64 });
            sent += slots;
        }
        sent
    }
}

/// Copies bytes of a slot, after `skip` of them, to `bytes[at..]`; returns how many.
#[inline]
fn read_header(slot: &SlotRef<'_>, skip: usize, len: u16, bytes: &mut [u8; HEADER_BYTES], at: usize) -> usize {
    let n = usize::from(len).saturating_sub(skip).min(HEADER_BYTES - at);
    slot.frame().read(skip, &mut bytes[at..at + n])
}

impl Mover for Filter<'_, '_> {
    fn move_slots(&mut self, from: &Ring, to: &Ring, n: u32) -> Result<u32, String> {
        let worker = &mut *self.worker.borrow_mut();
        worker.update();
        let now = worker.now();
        let sent = if Engine::decides_always(&worker.set) {
            // The verdict is the same for all: no packet is looked at.
            let counts = count_all(from, n);
            match worker.engine.always(&worker.set, counts.packets, counts.bytes, now) {
                Some(Verdict::Accept) => {
                    self.total.add(move_all(from, to, n, self.swap));
                    n
                }
                _ => {
                    self.dropped += counts.packets;
                    0
                }
            }
        } else {
            self.move_packets(worker, from, to, n, now)
        };
        worker.engine.states.sweep(SWEEP_PER_BATCH, now.millis);
        let totals = &worker.shared.totals;
        totals.passed[self.index()].store(self.total.packets, Relaxed);
        totals.dropped[self.index()].store(self.dropped, Relaxed);
        if let Ok(mut states) = totals.states.try_lock() {
            *states = worker.engine.states.counts;
        }
        Ok(sent)
    }

    fn own_packets(&mut self, to: &Ring) -> u32 {
        let worker = &mut *self.worker.borrow_mut();
        worker.update();
        let queue = &mut worker.replies[self.index()];
        let room = (to.space() as usize).min(queue.len());
        if room == 0 {
            return 0;
        }
        for ((frame, len), slot) in queue.drain(..room).zip(to.available()) {
            let empty = [0; 16];
            slot.frame().write(0, &empty[..self.header.min(16)]);
            slot.frame().write(self.header, &frame[..len]);
            slot.set_len_flags((self.header + len) as u16, 0);
        }
        add(&worker.shared.totals.replies, room as u64);
        room as u32
    }
}
