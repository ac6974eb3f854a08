//! Sends packets: `tx` and `txseq`.
//!
//! One batch is: one poll (which publishes the batch before it), then a walk over the free slots that writes length
//! and flags. Payload is written into a buffer the first time round the ring, and after that only into a buffer that
//! came back exchanged (`NS_BUF_CHANGED`), or whose packet differs from the one before. Where all packets are alike, one
//! that came back exchanged is written only if it does not hold the packet.

use std::time::{Duration, Instant};

use tool_common::print;
use unetmap::{Interest, Port, Pos, Ring, SlotRef};
use unetmap_abi::{NS_BUF_CHANGED, NS_INDIRECT, NS_MOREFRAG, NS_REPORT};

use crate::dump;
use crate::options::{Function, MAX_FRAGS};
use crate::source::{Fixed, Replay, Source, Varied};
use crate::worker::{Outcome, PATIENCE, Pacer, Worker};

mod replayed;
use replayed::Replayed;

/// How long the other side may release nothing before draining gives up.
const DRAIN_PATIENCE: Duration = Duration::from_secs(5);
/// The same after a signal: whoever sent it is waiting.
const DRAIN_PATIENCE_STOPPED: Duration = Duration::from_millis(500);

/// Slots ahead of which exchanged buffers are fetched into the cache.
const AHEAD: usize = 32;

/// What to send.
pub(crate) enum Load {
    Fixed(Fixed),
    Varied(Box<Varied>),
    Replay(Replay),
}

/// Sends until the count is reached or a signal comes, then waits for the other side to take it all.
pub(crate) fn run(worker: &Worker<'_>, load: Load) -> Result<Outcome, String> {
    let config = worker.config;
    let plain = config.frags == 1 && !config.copy && !config.dump;
    // What a slot can say, and its buffer hold.
    let room = (worker.port.buf_size() as usize).min(usize::from(u16::MAX));
    match load {
        Load::Fixed(fixed) if plain && fixed.bytes.len() <= room => match config.indirect {
            true => pump(worker, Elsewhere { bytes: fixed.bytes }),
            false => pump(worker, Same::new(&fixed.bytes, !config.rubbish)),
        },
        _ if config.indirect => Err(
            "-I: only one packet in one slot that stays the same can lie elsewhere; leave out -I, or what spreads, \
                 changes or shows packets (-F, -P, -X, -z, -Z, -o, a second -l, ranges of addresses)"
                .into(),
        ),
        Load::Fixed(source) => pump(worker, Each::new(worker, source)),
        Load::Varied(source) => pump(worker, Each::new(worker, *source)),
        Load::Replay(source) if plain && config.vnet_hdr + source.longest() <= room => {
            pump(worker, Replayed::new(worker, &source))
        }
        Load::Replay(source) => pump(worker, Each::new(worker, source)),
    }
}

/// What one batch in one ring came to, or several together.
#[derive(Clone, Copy, Default)]
struct Batch {
    packets: u64,
    bytes: u64,
    slots: u32,
}

/// A ring and how many of its buffers have never been filled: the next ones from its head.
struct TxRing<'a> {
    ring: &'a Ring,
    unfilled: u32,
}

/// Puts packets into free slots.
trait Fill {
    /// Fills at most `max` packets into the `space` free slots of the ring, which begin at `head`; `space` and `max` are at
    /// least 1.
    fn fill(&mut self, to: &mut TxRing<'_>, head: Pos, space: u32, max: u32) -> Batch;
}

/// A function for each way to fill, so that what the loop needs stays in registers.
#[inline(never)]
fn pump(worker: &Worker<'_>, mut fill: impl Fill) -> Result<Outcome, String> {
    let (config, port) = (worker.config, worker.port);
    // Numbers go into one ring only: each ring of the receiver is judged by itself.
    let rings = if config.function == Function::Txseq { 1 } else { port.tx_rings().len() };
    let mut rings: Vec<TxRing<'_>> =
        port.tx_rings()[..rings].iter().map(|ring| TxRing { ring, unfilled: ring.num_slots() }).collect();
    let mut pacer = Pacer::new(worker.rate);
    let mut sent = 0;
    let begin = Instant::now();
    while sent < worker.count && !worker.stopped() {
        let left = worker.count - sent;
        // What is printed takes its time: then each batch is looked at by itself.
        if let ([to], None, false) = (&mut rings[..], worker.rate, config.dump) {
            // Single packets have a loop of their own, of what they need alone.
            sent += match config.burst {
                1 => stream(worker, to, &mut fill, left, 1)?,
                burst => stream(worker, to, &mut fill, left, burst)?,
            };
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
            let (batch, _) = put(to, &mut fill, head, space, max);
            if batch.slots > 0 {
                round += batch.packets;
                worker.counters.add(worker.interval, batch.packets, batch.bytes, space);
            }
        }
        sent += round;
        if worker.rate.is_some() {
            // The next poll may be far away.
            port.txsync().map_err(|e| e.to_string())?;
            pacer.sent(round);
        }
    }
    let sent_at = Instant::now();
    let left = drain(worker, &rings)?;
    let end = if left == 0 { Instant::now() } else { sent_at };
    Ok(Outcome { span: (sent > 0).then_some((begin, end)), left, ..Outcome::default() })
}

#[inline(always)]
fn poll(port: &Port) -> Result<(), String> {
    port.poll(Interest::TX, Some(PATIENCE)).map(drop).map_err(|e| e.to_string())
}

/// A batch of at most `max` packets into a ring of which `space` slots are free, from `head` on; and where `head` is then.
#[inline(always)]
fn put(to: &mut TxRing<'_>, fill: &mut impl Fill, head: Pos, space: u32, max: u32) -> (Batch, Pos) {
    let batch = fill.fill(to, head, space, max);
    let next = to.ring.add(head, batch.slots);
    if batch.slots == 0 {
        // Room, but not for a whole packet: wake up when there is more.
        to.ring.set_cur(to.ring.tail());
    } else {
        to.ring.advance_to(next);
    }
    (batch, next)
}

/// One ring, as fast as it goes: waits for free slots, and sends up to `left` packets in them, batch for batch. Only what
/// changes with each batch is looked at with each batch. Returns how many it sent.
#[inline(always)]
fn stream(
    worker: &Worker<'_>,
    to: &mut TxRing<'_>,
    fill: &mut impl Fill,
    left: u64,
    burst: u32,
) -> Result<u64, String> {
    let port = worker.port;
    poll(port)?;
    let mut here = TxRing { ..*to };
    let (mut head, mut space) = (here.ring.head(), here.ring.space());
    let (mut sum, mut batches, mut least) = (Batch::default(), 0, space);
    let mut result = Ok(());
    while space > 0 && sum.packets < left {
        // A packet takes a slot at least.
        let max = u64::from(burst.min(space)).min(left - sum.packets) as u32;
        let (batch, next) = put(&mut here, fill, head, space, max);
        if batch.slots == 0 {
            break;
        }
        sum.packets += batch.packets;
        sum.bytes += batch.bytes;
        batches += 1;
        least = space;
        head = next;
        space -= batch.slots;
        if space > 0
            && let Err(e) = poll(port)
        {
            result = Err(e);
            break;
        }
    }
    if batches > 0 {
        worker.counters.add_batches(worker.interval, (sum.packets, sum.bytes, batches), least);
    }
    *to = here;
    result.map(|()| sum.packets)
}

/// Waits until the other side has released every slot; gives up when it releases none for a while. Returns how many
/// slots were left.
fn drain(worker: &Worker<'_>, rings: &[TxRing<'_>]) -> Result<u64, String> {
    let taken = |to: &TxRing<'_>| u64::from(to.ring.num_slots() - 1 - to.ring.space());
    let mut before = u64::MAX;
    let mut progress = Instant::now();
    loop {
        worker.port.txsync().map_err(|e| e.to_string())?;
        if !rings.iter().any(|to| to.ring.pending()) {
            return Ok(0);
        }
        let left = rings.iter().map(taken).sum();
        let now = Instant::now();
        if left < before {
            before = left;
            progress = now;
        }
        let patience = if worker.stopped() { DRAIN_PATIENCE_STOPPED } else { DRAIN_PATIENCE };
        if now - progress > patience {
            return Ok(left);
        }
        std::thread::sleep(Duration::from_micros(50));
    }
}

/// One packet in one slot, the same each time: the fast way.
struct Same {
    /// Bytes of the packet: at most a buffer, which is at most 65536; options allow 65535 + 12.
    len: u16,
    /// The packet, and zeros behind it; nothing: the buffers stay as they are.
    lines: Vec<[u8; 64]>,
}

impl Same {
    fn new(bytes: &[u8], write: bool) -> Same {
        let line = |chunk: &[u8]| std::array::from_fn(|i| chunk.get(i).copied().unwrap_or(0));
        let lines = if write { bytes.chunks(64).map(line).collect() } else { Vec::new() };
        Same { len: bytes.len() as u16, lines }
    }

    /// The same where it is rare: kept out of the loop.
    #[cold]
    #[inline(never)]
    fn refill_one(&self, slot: SlotRef<'_>) {
        self.refill(&slot);
    }

    /// Has the packet in a slot's buffer. Buffers are whole lines long, so that it fits with what is behind it. One that comes
    /// back from a receiver that only read it holds it already: then nobody's cache loses the line.
    #[inline(always)]
    fn refill(&self, slot: &SlotRef<'_>) {
        slot.frame().put_lines(&self.lines);
    }
}

impl Fill for Same {
    #[inline(always)]
    fn fill(&mut self, to: &mut TxRing<'_>, head: Pos, space: u32, max: u32) -> Batch {
        let (n, len) = (space.min(max), self.len);
        let batch = Batch { packets: u64::from(n), bytes: u64::from(n) * u64::from(len), slots: n };
        let first = to.ring.slot(head);
        if to.unfilled > 0 {
            // The first time round: some of these buffers may hold the packet already, which does no harm.
            to.ring.run(head, n).take(to.unfilled as usize).for_each(|slot| self.refill(&slot));
            to.unfilled -= to.unfilled.min(n);
        }
        if n == 1 {
            // Without what it takes to begin and end a loop.
            if first.flags() & NS_BUF_CHANGED != 0 {
                self.refill_one(first);
            }
            first.set_len_flags(len, NS_REPORT);
            return batch;
        }
        let slots = to.ring.run(head, n);
        if first.flags() & NS_BUF_CHANGED != 0 {
            // So will be the next ones: somebody else had their buffers just now.
            let mut ahead = to.ring.run(head, n);
            ahead.by_ref().take(AHEAD).for_each(|slot| slot.fetch());
            slots.for_each(|slot| {
                if let Some(next) = ahead.next() {
                    next.fetch();
                }
                self.refill(&slot);
                slot.set_len_flags(len, 0);
            });
        } else {
            // Written even if nothing changes: a line of slots that one side only reads is what slows a pipe most.
            slots.for_each(|slot| {
                if slot.flags() & NS_BUF_CHANGED != 0 {
                    self.refill_one(slot);
                }
                slot.set_len_flags(len, 0);
            });
        }
        to.ring.slot(to.ring.add(head, n - 1)).set_flags(NS_REPORT);
        batch
    }
}

/// One packet in one slot, the same each time, which stays where it is: the sync fetches it.
struct Elsewhere {
    bytes: Vec<u8>,
}

impl Fill for Elsewhere {
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

/// A packet that is looked at one by one: it changes, is spread over slots, copied or dumped.
struct Each<S> {
    source: S,
    split: Split,
    /// Bytes of zeros before each packet.
    prefix: usize,
    copy: bool,
    write: bool,
    dump: bool,
    scratch: Vec<u8>,
}

impl<S: Source> Each<S> {
    fn new(worker: &Worker<'_>, source: S) -> Each<S> {
        let config = worker.config;
        Each {
            source,
            split: Split {
                frags: config.frags,
                frag_size: config.frag_size.unwrap_or(usize::MAX),
                buf_size: worker.port.buf_size() as usize,
            },
            prefix: config.vnet_hdr,
            copy: config.copy,
            write: !config.rubbish,
            dump: config.dump,
            scratch: Vec::new(),
        }
    }

    /// The current packet into one slot.
    #[inline]
    fn put_whole(&self, slot: &SlotRef<'_>, fresh: bool) -> usize {
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

    /// The current packet over several slots. Any buffer may have held any part of an earlier packet, so that all
    /// of it is written each time.
    fn put_parts<'a>(&mut self, slots: &mut impl Iterator<Item = SlotRef<'a>>, parts: Parts) {
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

impl<S: Source> Fill for Each<S> {
    fn fill(&mut self, to: &mut TxRing<'_>, head: Pos, space: u32, max: u32) -> Batch {
        let mut batch = Batch::default();
        let mut slots = to.ring.run(head, space);
        while batch.packets < u64::from(max) {
            let total = self.prefix + self.source.current().len;
            let parts = self.split.of(total);
            if parts.count > (space - batch.slots) as usize {
                break;
            }
            if parts.count == 1 {
                let Some(slot) = slots.next() else { break };
                let len = self.put_whole(&slot, to.unfilled > batch.slots);
                slot.set_len_flags(len as u16, 0); // one part fits a buffer
            } else {
                self.put_parts(&mut slots, parts);
            }
            batch.slots += parts.count as u32; // at most MAX_FRAGS
            batch.bytes += total as u64;
            batch.packets += 1;
            self.source.step();
        }
        to.unfilled -= batch.slots.min(to.unfilled);
        self.finish(to.ring, head, batch.slots);
        batch
    }
}

impl<S: Source> Each<S> {
    /// Asks for a completion report with the batch's last slot, and dumps.
    fn finish(&self, ring: &Ring, head: Pos, slots: u32) {
        if slots == 0 {
            return;
        }
        ring.slot(ring.add(head, slots - 1)).set_flags(NS_REPORT);
        if self.dump {
            for slot in ring.run(head, slots) {
                print(&dump::slot(ring, &slot));
            }
        }
    }
}

/// How packets are spread over slots.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Split {
    pub(crate) frags: usize,
    /// Bytes in each part but the last, at most.
    pub(crate) frag_size: usize,
    pub(crate) buf_size: usize,
}

/// `count` slots: all but the last hold `size` bytes, the last what is left.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Parts {
    pub(crate) count: usize,
    pub(crate) size: usize,
}

impl Split {
    /// The parts of a packet of `total` bytes: as many as asked, or as few as fit the buffers.
    #[inline]
    pub(crate) fn of(&self, total: usize) -> Parts {
        if self.frags == 1 && total <= self.buf_size {
            return Parts { count: 1, size: total };
        }
        let size = total.div_ceil(self.frags).min(self.frag_size).min(self.buf_size).max(1);
        // A packet shorter than its parts takes fewer.
        let count = self.frags.min(total.div_ceil(size)).max(1);
        if total - size * (count - 1) <= self.buf_size {
            return Parts { count, size };
        }
        Parts { count: total.div_ceil(self.buf_size), size: self.buf_size }
    }

    /// Refuses packets of up to `total` bytes that no ring of `num_slots` could carry.
    pub(crate) fn check(&self, total: usize, num_slots: u32) -> Result<(), String> {
        let count = self.of(total).count;
        let most = MAX_FRAGS.min(num_slots as usize - 1);
        if count <= most {
            return Ok(());
        }
        Err(format!(
            "a packet of {total} bytes takes {count} slots of {} bytes; at most {most} are possible",
            self.buf_size
        ))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn split(frags: usize, frag_size: usize) -> Split {
        Split { frags, frag_size, buf_size: 2048 }
    }

    #[test]
    fn parts_of_a_packet() {
        let of = |frags, frag_size, total| {
            let parts = split(frags, frag_size).of(total);
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
            let parts = split(frags, frag_size).of(total);
            prop_assert!(parts.count >= 1);
            let before_last = parts.size * (parts.count - 1);
            prop_assert!(before_last < total, "no empty part");
            prop_assert!(parts.size <= 2048 || parts.count == 1);
            prop_assert!(total - before_last <= 2048);
        }
    }

    #[test]
    fn what_cannot_be_carried_is_refused() {
        assert!(split(1, usize::MAX).check(60, 4).is_ok());
        assert!(split(4, usize::MAX).check(60, 4).unwrap_err().contains("takes 4 slots"));
        assert!(Split { frags: 1, frag_size: usize::MAX, buf_size: 512 }.check(65_535, 1024).is_err());
    }
}
