// SPDX-License-Identifier: BSD-2-Clause
//! Sends packets: `tx` and `txseq`.
//!
//! For each batch, the sender polls once, which publishes the previous batch, and then writes length and flags of the
//! free slots. It writes a payload into each buffer during the first pass over the ring. After that it only writes into
//! a buffer that the peer exchanged (`NS_BUF_CHANGED`), or if the packet differs from the previous one. If all packets
//! are equal, an exchanged buffer is only written if it does not already contain the packet.

use std::time::{Duration, Instant};

use tool_common::generator::{STALL_TIMEOUT, STOP_CHECK_INTERVAL, Stall};
use tool_common::print;
use unetmap::abi::{NS_BUF_CHANGED, NS_INDIRECT, NS_MOREFRAG, NS_REPORT};
use unetmap::{Interest, Port, Pos, Ring, SlotRef};

use crate::dump;
use crate::options::{Function, MAX_FRAGS};
use crate::source::{Fixed, Replay, Source, Varied};
use crate::worker::{Outcome, Pacer, Worker};

mod replay;
use replay::ReplayFill;

/// The longest time without a released slot, after a signal, which must end the program soon. Beside builds, receivers
/// of `make demo` at nice 10 did not run for half a second.
const DRAIN_TIMEOUT_STOPPED: Duration = Duration::from_secs(2);

/// Number of slots by which the prefetch of exchanged buffers precedes the write.
const PREFETCH_DISTANCE: usize = 32;

/// The packets to send.
pub(crate) enum TxSource {
    Fixed(Fixed),
    Varied(Box<Varied>),
    Replay(Replay),
}

/// Sends until the count is reached or a signal arrives, then waits until the peer has released all slots.
pub(crate) fn run(worker: &Worker<'_>, source: TxSource) -> Result<Outcome, String> {
    let config = worker.config;
    let plain = config.frags == 1 && !config.copy && !config.dump;
    // A slot's length has 16 bits.
    let max_len = slot_size(worker.port).min(usize::from(u16::MAX));
    match source {
        TxSource::Fixed(fixed) if plain && fixed.bytes.len() <= max_len => match config.indirect {
            true => send_loop(worker, IndirectFill { bytes: fixed.bytes }),
            false => send_loop(worker, PreparedPacket::new(&fixed.bytes, !config.rubbish)),
        },
        _ if config.indirect => Err(
            "-I: an indirect buffer must hold one constant packet in one slot; leave out -I, or the options that split, \
             change or print packets (-F, -P, -X, -z, -Z, -o, a second -l, ranges of addresses)"
                .into(),
        ),
        TxSource::Fixed(source) => send_loop(worker, PerPacketFill::new(worker, source)),
        TxSource::Varied(source) => send_loop(worker, PerPacketFill::new(worker, *source)),
        TxSource::Replay(source) if plain && config.vnet_hdr + source.longest() <= max_len => {
            send_loop(worker, ReplayFill::new(worker, &source))
        }
        TxSource::Replay(source) => send_loop(worker, PerPacketFill::new(worker, source)),
    }
}

/// Most bytes of a packet in one slot.
pub(crate) fn slot_size(port: &Port) -> usize {
    port.tx_rings().iter().map(Ring::slot_size).min().unwrap_or(0) as usize
}

/// Counts of one batch in one ring, or of several.
#[derive(Clone, Copy, Default)]
struct Batch {
    packets: u64,
    bytes: u64,
    slots: u32,
}

/// A ring. The `unfilled` slots from its head have buffers into which no packet has been written.
struct TxRing<'a> {
    ring: &'a Ring,
    unfilled: u32,
}

/// Writes packets into free slots.
trait Fill {
    /// Writes at most `max` packets into the `space` free slots of the ring, which begin at `head`. `space` and `max`
    /// are at least 1.
    fn fill(&mut self, to: &mut TxRing<'_>, head: Pos, space: u32, max: u32) -> Batch;
}

/// Sends packets until the count is reached. Generic, so that there is one function per `Fill`, whose variables stay in
/// registers.
#[inline(never)]
fn send_loop(worker: &Worker<'_>, mut fill: impl Fill) -> Result<Outcome, String> {
    let (config, port) = (worker.config, worker.port);
    // Sequence numbers are sent through one ring only, because the receiver checks each of its rings separately.
    let rings = if config.function == Function::Txseq { 1 } else { port.tx_rings().len() };
    let mut rings: Vec<TxRing<'_>> =
        port.tx_rings()[..rings].iter().map(|ring| TxRing { ring, unfilled: ring.num_slots() }).collect();
    let mut pacer = Pacer::new(worker.rate);
    let mut sent = 0;
    let mut stall = FullRings::new(&rings, (port, &config.port));
    let begin = Instant::now();
    while sent < worker.count && !worker.stopped() && !stall.gave_up {
        let left = worker.count - sent;
        // Not with dump: printing is slow, so each batch is counted separately.
        if let ([to], None, false) = (&mut rings[..], worker.rate, config.dump) {
            // A constant burst of 1 lets the compiler specialize the loop for single packets.
            let round = match config.burst {
                1 => send_on_one_ring(worker, to, &mut fill, left, 1)?,
                burst => send_on_one_ring(worker, to, &mut fill, left, burst)?,
            };
            sent += round;
            stall.observe(round, sent, &rings);
            continue;
        }
        pacer.wait(worker.stop);
        poll(port)?;
        let mut round = 0;
        for to in &mut rings {
            let (head, space) = (to.ring.head(), to.ring.space());
            let due = if worker.rate.is_some() { u64::from(config.burst) - round } else { u64::from(config.burst) };
            let max = due.min(left - round) as u32; // at most a burst, which is 32 bits
            if space == 0 || max == 0 {
                continue;
            }
            let (batch, _) = send_batch(to, &mut fill, head, space, max);
            if batch.slots > 0 {
                round += batch.packets;
                worker.counters.add(worker.interval, batch.packets, batch.bytes, space);
            }
        }
        sent += round;
        stall.observe(round, sent, &rings);
        if worker.rate.is_some() {
            // Sends now, because the next poll may be much later.
            port.txsync().map_err(|e| e.to_string())?;
            pacer.sent(round);
        }
    }
    let sent_at = Instant::now();
    let left = if stall.gave_up { unreleased(&rings) } else { drain(worker, &rings)? };
    let end = if left == 0 { Instant::now() } else { sent_at };
    Ok(Outcome { span: (sent > 0).then_some((begin, end)), unreleased: left, ..Outcome::default() })
}

#[inline(always)]
fn poll(port: &Port) -> Result<(), String> {
    port.poll(Interest::TX, Some(STOP_CHECK_INTERVAL)).map(drop).map_err(|e| e.to_string())
}

/// Writes a batch of at most `max` packets into a ring with `space` free slots from `head` on. Returns the batch and
/// the new `head`.
#[inline(always)]
fn send_batch(to: &mut TxRing<'_>, fill: &mut impl Fill, head: Pos, space: u32, max: u32) -> (Batch, Pos) {
    let batch = fill.fill(to, head, space, max);
    let next = to.ring.add(head, batch.slots);
    if batch.slots == 0 {
        // The free slots do not suffice for a packet: the next poll must wait for more.
        to.ring.set_cur(to.ring.tail());
    } else {
        to.ring.advance_to(next);
    }
    (batch, next)
}

/// Sends on one ring without rate limit: waits for free slots, and sends up to `left` packets in batches until the
/// slots are used. For speed, keeps the ring's position in local variables and updates the counters once. Returns the
/// number of packets sent.
#[inline(always)]
fn send_on_one_ring(
    worker: &Worker<'_>,
    to: &mut TxRing<'_>,
    fill: &mut impl Fill,
    left: u64,
    burst: u32,
) -> Result<u64, String> {
    let port = worker.port;
    poll(port)?;
    let mut local = TxRing { ..*to };
    let (mut head, mut space) = (local.ring.head(), local.ring.space());
    let (mut sum, mut batches, mut min_space) = (Batch::default(), 0, space);
    let mut result = Ok(());
    while space > 0 && sum.packets < left {
        // A packet needs at least one slot.
        let max = u64::from(burst.min(space)).min(left - sum.packets) as u32;
        let (batch, next) = send_batch(&mut local, fill, head, space, max);
        if batch.slots == 0 {
            break;
        }
        sum.packets += batch.packets;
        sum.bytes += batch.bytes;
        batches += 1;
        min_space = space;
        head = next;
        space -= batch.slots;
        if space > 0
            && let Err(e) = poll(port)
        {
            result = Err(e);
            break;
        }
        // The port waits for the next daemon, or goes on with one in a new ring.
        if local.ring.head() != head || local.ring.space() < space {
            break;
        }
    }
    if batches > 0 {
        worker.counters.add_batches(worker.interval, (sum.packets, sum.bytes, batches), min_space);
    }
    *to = local;
    result.map(|()| sum.packets)
}

/// Number of slots that the peer has not released.
fn unreleased(rings: &[TxRing<'_>]) -> u64 {
    rings.iter().map(|to| u64::from(to.ring.num_slots() - 1 - to.ring.space())).sum()
}

/// Detects that a receiver releases no more slots.
struct FullRings<'a> {
    opened: &'a Port,
    port: &'a str,
    /// The rings' tails before the first packet, and the number of packets that they hold at least.
    tails: Vec<Pos>,
    capacity: u64,
    stall: Stall,
    gave_up: bool,
}

impl<'a> FullRings<'a> {
    fn new(rings: &[TxRing<'_>], (opened, port): (&'a Port, &'a str)) -> FullRings<'a> {
        let tails = rings.iter().map(|to| to.ring.tail()).collect();
        let capacity = rings.iter().map(|to| u64::from(to.ring.num_slots())).sum();
        FullRings { opened, port, tails, capacity, stall: Stall::default(), gave_up: false }
    }

    /// Takes note of a round that sent `round` packets, after which `sent` were sent altogether.
    #[inline(always)]
    fn observe(&mut self, round: u64, sent: u64, rings: &[TxRing<'_>]) {
        if round > 0 {
            self.stall.sent();
        } else {
            self.observe_full_rings(sent, rings);
        }
    }

    #[cold]
    fn observe_full_rings(&mut self, sent: u64, rings: &[TxRing<'_>]) {
        if self.opened.awaits_daemon() {
            return self.stall.sent();
        }
        let moved = || self.tails.iter().zip(rings).any(|(tail, to)| *tail != to.ring.tail());
        self.gave_up = self.stall.full(self.port, || sent > self.capacity || moved());
    }
}

/// Waits until the peer has released every slot. Gives up if the peer releases none for [`STALL_TIMEOUT`]. Returns the
/// number of slots that it has not released.
fn drain(worker: &Worker<'_>, rings: &[TxRing<'_>]) -> Result<u64, String> {
    let mut before = u64::MAX;
    let mut progress = Instant::now();
    loop {
        worker.port.txsync().map_err(|e| e.to_string())?;
        if !rings.iter().any(|to| to.ring.pending()) {
            return Ok(0);
        }
        let left = unreleased(rings);
        let now = Instant::now();
        if left < before {
            before = left;
            progress = now;
        }
        let timeout = if worker.stopped() { DRAIN_TIMEOUT_STOPPED } else { STALL_TIMEOUT };
        if now - progress > timeout {
            return Ok(left);
        }
        std::thread::sleep(Duration::from_micros(50));
    }
}

/// A packet that fits one slot, laid out for fast writes. As a [`Fill`], sends the same packet again and again.
struct PreparedPacket {
    /// Bytes of the packet, at most those of a buffer and at most 65535.
    len: u16,
    /// The packet in cache lines, padded with zeros. Empty if the buffers must not be written.
    lines: Vec<[u8; 64]>,
}

impl PreparedPacket {
    fn new(bytes: &[u8], write: bool) -> PreparedPacket {
        let line = |chunk: &[u8]| std::array::from_fn(|i| chunk.get(i).copied().unwrap_or(0));
        let lines = if write { bytes.chunks(64).map(line).collect() } else { Vec::new() };
        PreparedPacket { len: bytes.len() as u16, lines }
    }

    /// [`Self::write_packet`] out of line, for loops in which it is rare.
    #[cold]
    #[inline(never)]
    fn write_packet_cold(&self, slot: SlotRef<'_>) {
        self.write_packet(&slot);
    }

    /// Writes the packet into a slot's buffer. The padding fits, because a buffer is a whole number of cache lines.
    /// Writes only lines that differ: a buffer returned by a receiver that only read it contains the packet already,
    /// and a write would evict the lines from the receiver's cache.
    #[inline(always)]
    fn write_packet(&self, slot: &SlotRef<'_>) {
        slot.frame().write_changed_lines(&self.lines);
    }
}

impl Fill for PreparedPacket {
    #[inline(always)]
    fn fill(&mut self, to: &mut TxRing<'_>, head: Pos, space: u32, max: u32) -> Batch {
        let (n, len) = (space.min(max), self.len);
        let batch = Batch { packets: u64::from(n), bytes: u64::from(n) * u64::from(len), slots: n };
        let first = to.ring.slot(head);
        if to.unfilled > 0 {
            // The first pass over the ring.
            to.ring.run(head, n).take(to.unfilled as usize).for_each(|slot| self.write_packet(&slot));
            to.unfilled -= to.unfilled.min(n);
        }
        if n == 1 {
            // Without the overhead of a loop.
            if first.flags() & NS_BUF_CHANGED != 0 {
                self.write_packet_cold(first);
            }
            first.set_len_flags(len, NS_REPORT);
            return batch;
        }
        let slots = to.ring.run(head, n);
        if first.flags() & NS_BUF_CHANGED != 0 {
            // The next slots were probably exchanged too, and their buffers were last used on another processor.
            let mut ahead = to.ring.run(head, n);
            ahead.by_ref().take(PREFETCH_DISTANCE).for_each(|slot| slot.fetch());
            slots.for_each(|slot| {
                if let Some(next) = ahead.next() {
                    next.fetch();
                }
                self.write_packet(&slot);
                slot.set_len_flags(len, 0);
            });
        } else {
            // Length and flags are written even if they do not change: a pipe is slowest if one side only reads the
            // cache lines of the slots.
            slots.for_each(|slot| {
                if slot.flags() & NS_BUF_CHANGED != 0 {
                    self.write_packet_cold(slot);
                }
                slot.set_len_flags(len, 0);
            });
        }
        to.ring.slot(to.ring.add(head, n - 1)).set_flags(NS_REPORT);
        batch
    }
}

/// Sends one constant packet, which stays in the program's memory: the sync copies it from there.
struct IndirectFill {
    bytes: Vec<u8>,
}

impl Fill for IndirectFill {
    fn fill(&mut self, to: &mut TxRing<'_>, head: Pos, space: u32, max: u32) -> Batch {
        let n = space.min(max);
        let len = self.bytes.len() as u16; // at most a buffer
        let mut last = None;
        for slot in to.ring.run(head, n) {
            slot.set_ptr(self.bytes.as_ptr().expose_provenance() as u64);
            slot.set_len_flags(len, NS_INDIRECT);
            last = Some(slot);
        }
        if let Some(last) = last {
            last.set_flags(NS_INDIRECT | NS_REPORT);
        }
        Batch { packets: u64::from(n), bytes: u64::from(n) * u64::from(len), slots: n }
    }
}

/// Handles each packet separately: for packets that change, take several slots, or are copied or dumped.
struct PerPacketFill<S> {
    source: S,
    split: Split,
    /// Number of zero bytes before each packet.
    prefix: usize,
    copy: bool,
    write: bool,
    dump: bool,
    scratch: Vec<u8>,
}

impl<S: Source> PerPacketFill<S> {
    fn new(worker: &Worker<'_>, source: S) -> PerPacketFill<S> {
        let config = worker.config;
        PerPacketFill {
            source,
            split: Split {
                frags: config.frags,
                frag_size: config.frag_size.unwrap_or(usize::MAX),
                slot_size: slot_size(worker.port),
            },
            prefix: config.vnet_hdr,
            copy: config.copy,
            write: !config.rubbish,
            dump: config.dump,
            scratch: Vec::new(),
        }
    }

    /// Writes the current packet into one slot. `fresh` means that no packet has been written into the buffer before.
    /// Returns its length with the prefix.
    #[inline]
    fn write_whole(&self, slot: &SlotRef<'_>, fresh: bool) -> usize {
        let now = self.source.current();
        if self.write {
            let frame = slot.frame();
            if fresh || self.copy || slot.flags() & NS_BUF_CHANGED != 0 {
                frame.write(0, &[0; 12][..self.prefix]);
                frame.write(self.prefix, now.bytes);
            } else {
                frame.write(self.prefix, &now.bytes[..now.changed]);
            }
        }
        self.prefix + now.len
    }

    /// Writes the current packet into several slots. Writes all of it, because each buffer may contain any part of an
    /// earlier packet.
    fn write_parts<'a>(&mut self, slots: &mut impl Iterator<Item = SlotRef<'a>>, parts: Parts) {
        let now = self.source.current();
        self.scratch.clear();
        self.scratch.resize(self.prefix, 0);
        self.scratch.extend_from_slice(&now.bytes[..now.len]);
        let mut rest = &self.scratch[..];
        for (i, slot) in (1..=parts.count).zip(slots) {
            let last = i == parts.count;
            let (part, after) = rest.split_at(if last { rest.len() } else { parts.size });
            rest = after;
            if self.write {
                slot.frame().write(0, part);
            }
            let flags = if last { 0 } else { NS_MOREFRAG };
            slot.set_len_flags(part.len() as u16, flags); // parts fit a buffer
        }
    }
}

impl<S: Source> Fill for PerPacketFill<S> {
    fn fill(&mut self, to: &mut TxRing<'_>, head: Pos, space: u32, max: u32) -> Batch {
        let mut batch = Batch::default();
        let mut slots = to.ring.run(head, space);
        while batch.packets < u64::from(max) {
            let total = self.prefix + self.source.current().len;
            let parts = self.split.parts_of(total);
            if parts.count > (space - batch.slots) as usize {
                break;
            }
            if parts.count == 1 {
                let Some(slot) = slots.next() else { break };
                let len = self.write_whole(&slot, to.unfilled > batch.slots);
                slot.set_len_flags(len as u16, 0); // one part fits a buffer
            } else {
                self.write_parts(&mut slots, parts);
            }
            batch.slots += parts.count as u32; // at most MAX_FRAGS
            batch.bytes += total as u64;
            batch.packets += 1;
            self.source.advance();
        }
        to.unfilled -= batch.slots.min(to.unfilled);
        self.finish(to.ring, head, batch.slots);
        batch
    }
}

impl<S: Source> PerPacketFill<S> {
    /// Requests a completion report for the batch's last slot, and dumps the packets if requested.
    fn finish(&self, ring: &Ring, head: Pos, slots: u32) {
        if slots == 0 {
            return;
        }
        ring.slot(ring.add(head, slots - 1)).set_flags(NS_REPORT);
        if self.dump {
            for slot in ring.run(head, slots) {
                print(&dump::format_slot(ring, &slot));
            }
        }
    }
}

/// The rule for splitting packets over slots.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Split {
    pub(crate) frags: usize,
    /// Maximum bytes in each part except the last.
    pub(crate) frag_size: usize,
    pub(crate) slot_size: usize,
}

/// A packet in `count` slots: each except the last has `size` bytes, the last has the remainder.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Parts {
    pub(crate) count: usize,
    pub(crate) size: usize,
}

impl Split {
    /// Returns the parts of a packet of `total` bytes: `frags` parts, or as few as fit the slots if those do not fit.
    #[inline]
    pub(crate) fn parts_of(&self, total: usize) -> Parts {
        if self.frags == 1 && total <= self.slot_size {
            return Parts { count: 1, size: total };
        }
        let size = total.div_ceil(self.frags).min(self.frag_size).min(self.slot_size).max(1);
        // A short packet has fewer parts.
        let count = self.frags.min(total.div_ceil(size)).max(1);
        if total - size * (count - 1) <= self.slot_size {
            return Parts { count, size };
        }
        Parts { count: total.div_ceil(self.slot_size), size: self.slot_size }
    }

    /// Returns an error if packets of `total` bytes need more slots than a packet, or a ring of `num_slots`, can have.
    pub(crate) fn check(&self, total: usize, num_slots: u32) -> Result<(), String> {
        let count = self.parts_of(total).count;
        let max = MAX_FRAGS.min(num_slots as usize - 1);
        if count <= max {
            return Ok(());
        }
        Err(format!(
            "a packet of {total} bytes needs {count} slots of {} bytes, but can have at most {max}",
            self.slot_size
        ))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn split(frags: usize, frag_size: usize) -> Split {
        Split { frags, frag_size, slot_size: 2048 }
    }

    #[test]
    fn packets_are_split_into_parts() {
        let of = |frags, frag_size, total| {
            let parts = split(frags, frag_size).parts_of(total);
            (parts.count, parts.size)
        };
        assert_eq!(of(1, usize::MAX, 60), (1, 60));
        assert_eq!(of(1, usize::MAX, 2049), (2, 2048), "replay of a long packet");
        assert_eq!(of(3, usize::MAX, 100), (3, 34));
        assert_eq!(of(3, 20, 100), (3, 20), "20, 20, 60");
        assert_eq!(of(3, 500, 100), (3, 34), "-M only makes parts smaller");
        assert_eq!(of(64, usize::MAX, 60), (60, 1));
        assert_eq!(of(2, 10, 4000), (2, 2048), "the last part would not fit");
    }

    proptest! {
        #[test]
        fn parts_cover_the_packet_and_fit(frags in 1_usize..=64, frag_size in 1_usize..3000, total in 1_usize..70_000) {
            let parts = split(frags, frag_size).parts_of(total);
            prop_assert!(parts.count >= 1);
            let before_last = parts.size * (parts.count - 1);
            prop_assert!(before_last < total, "no empty part");
            prop_assert!(parts.size <= 2048 || parts.count == 1);
            prop_assert!(total - before_last <= 2048);
        }
    }

    #[test]
    fn packets_that_need_too_many_slots_are_refused() {
        assert!(split(1, usize::MAX).check(60, 4).is_ok());
        assert!(split(4, usize::MAX).check(60, 4).unwrap_err().contains("needs 4 slots"));
        assert!(Split { frags: 1, frag_size: usize::MAX, slot_size: 512 }.check(65_535, 1024).is_err());
    }
}
