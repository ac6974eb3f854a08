//! Receives packets: `rx` and `rxseq`.

use std::time::{Duration, Instant, SystemTime};

use tool_common::print;
use unetmap::{Interest, Ring, SlotRef};
use unetmap_abi::NS_MOREFRAG;

use crate::capture::Writer;
use crate::dump;
use crate::options::Function;
use crate::packet::{payload_offset, sequence_of};
use crate::report::{Counters, Totals};
use crate::sequence::{Follower, Gaps};
use crate::worker::{Outcome, PATIENCE, Worker};

/// How long a thread that got nothing for long waits for packets, at most. A signal ends it.
const LONGEST_WAIT: Duration = Duration::from_millis(500);
/// With -W: nothing for this long after the first packet is the end.
const IDLE: Duration = Duration::from_secs(1);
/// Bytes from a virtio-net header to the end of a sequence number, at most.
const HEAD: usize = 12 + payload_offset(true) + 4;

/// Receives until the count is reached, a signal comes or (with -W) the sender has stopped.
pub(crate) fn run(worker: &Worker<'_>) -> Result<Outcome, String> {
    let config = worker.config;
    let seq = config.function == Function::Rxseq;
    if !seq && !config.access && !config.dump && config.write.is_none() {
        return pump(worker, Count);
    }
    let rings = worker.port.rx_rings().len();
    pump(
        worker,
        Inspect {
            prefix: config.vnet_hdr,
            followers: if seq { vec![Follower::default(); rings] } else { Vec::new() },
            access: config.access,
            dump: config.dump,
            writer: config.write.as_deref().map(Writer::create).transpose()?,
            partial: vec![Vec::new(); rings],
            starts: vec![true; rings],
        },
    )
}

/// What one batch from one ring came to.
#[derive(Clone, Copy, Default)]
struct Batch {
    packets: u64,
    bytes: u64,
}

/// Looks at received slots.
trait Sink {
    /// Takes the first `n` slots of the ring, which is the `index`-th.
    fn take(&mut self, ring: &Ring, index: usize, n: u32) -> Result<Batch, String>;
    /// The end; gaps if they were counted.
    fn finish(self) -> Result<Option<Gaps>, String>;
}

fn pump(worker: &Worker<'_>, mut sink: impl Sink) -> Result<Outcome, String> {
    let (config, port) = (worker.config, worker.port);
    let rings = port.rx_rings();
    let mut received = 0;
    let mut begin = None;
    let mut idle_since = None;
    let mut quiet = Quiet::default();
    // A signal interrupts only one of several threads, and the end of all traffic is to be seen in time.
    let mut wait = Wait::new(config.threads == 1 && !config.exit_when_idle);
    while received < worker.count && !worker.stopped() {
        let ready = port.poll(Interest::RX, Some(wait.time)).map_err(|e| e.to_string())?;
        if ready.is_none() {
            wait.was_in_vain();
            // Nobody asks for the time while packets flow; an empty poll took as long as it may.
            let now = Instant::now();
            idle_since.get_or_insert_with(|| now.checked_sub(PATIENCE).unwrap_or(now));
            if config.exit_when_idle && quiet.is_over(worker.all, now) {
                break;
            }
            continue;
        }
        (idle_since, wait.time) = (None, PATIENCE);
        begin.get_or_insert_with(Instant::now);
        for (index, ring) in rings.iter().enumerate() {
            let space = ring.space();
            let n = u64::from(space.min(config.burst)).min(worker.count - received) as u32; // at most `space`
            if n == 0 {
                continue;
            }
            let batch = sink.take(ring, index, n)?;
            ring.advance(n);
            received += batch.packets;
            worker.counters.add(worker.interval, batch.packets, batch.bytes, space);
        }
    }
    // The sender is told what was released: it may be waiting for just that.
    port.rxsync().map_err(|e| e.to_string())?;
    let end = idle_since.unwrap_or_else(Instant::now);
    let gaps = sink.finish()?;
    let span = begin.map(|begin| (begin, end.max(begin)));
    Ok(Outcome { span, gaps, ..Outcome::default() })
}

/// How long to wait for packets: where none came for long, longer, as each look takes a processor from those who have some.
struct Wait {
    time: Duration,
    /// It is not longer than this.
    most: Duration,
}

impl Wait {
    fn new(may_grow: bool) -> Wait {
        Wait { time: PATIENCE, most: if may_grow { LONGEST_WAIT } else { PATIENCE } }
    }

    #[cold]
    fn was_in_vain(&mut self) {
        self.time = self.time.saturating_mul(2).min(self.most);
    }
}

/// Watches for the end of all traffic, in whatever ring it came: the rings of other threads count too.
#[derive(Default)]
struct Quiet {
    /// Batches that all threads had received, and when this was seen first.
    seen: Option<(u64, Instant)>,
}

impl Quiet {
    /// Whether something came, and then nothing for [`IDLE`].
    fn is_over(&mut self, all: &[Counters], now: Instant) -> bool {
        let batches = Totals::of(all).batches;
        match self.seen {
            Some((before, since)) if before == batches => batches > 0 && now.saturating_duration_since(since) >= IDLE,
            _ => {
                self.seen = Some((batches, now));
                false
            }
        }
    }
}

/// Counts, and reads nothing else.
struct Count;

impl Sink for Count {
    #[inline]
    fn take(&mut self, ring: &Ring, _: usize, n: u32) -> Result<Batch, String> {
        let mut bytes = 0_u64;
        let mut unfinished = 0_u64;
        ring.first(n).for_each(|slot| {
            let (len, flags) = slot.len_flags();
            bytes += u64::from(len);
            unfinished += u64::from(flags & NS_MOREFRAG);
        });
        Ok(Batch { packets: u64::from(n) - unfinished / u64::from(NS_MOREFRAG), bytes })
    }

    fn finish(self) -> Result<Option<Gaps>, String> {
        Ok(None)
    }
}

/// Looks into each packet.
struct Inspect {
    /// Bytes before the Ethernet header.
    prefix: usize,
    /// One a ring; none if numbers do not matter.
    followers: Vec<Follower>,
    access: bool,
    dump: bool,
    writer: Option<Writer>,
    /// Per ring: the parts so far of the packet that is being received, kept for the writer.
    partial: Vec<Vec<u8>>,
    /// Per ring: true if the next slot begins a packet.
    starts: Vec<bool>,
}

impl Inspect {
    fn slot(&mut self, slot: &SlotRef<'_>, ring: &Ring, index: usize, time: Duration) -> Result<bool, String> {
        let (len, flags) = (usize::from(slot.len()), slot.flags());
        let last = flags & NS_MOREFRAG == 0;
        let first = std::mem::replace(&mut self.starts[index], last);
        if self.access || (first && !self.followers.is_empty()) {
            let mut head = [0; HEAD];
            let got = slot.frame().read(0, &mut head[..len.min(HEAD)]);
            std::hint::black_box(&head);
            if let Some(follower) = self.followers.get_mut(index).filter(|_| first) {
                follower.see(head[..got].get(self.prefix..).and_then(sequence_of));
            }
        }
        if self.dump {
            print(&dump::slot(ring, slot));
        }
        if let Some(writer) = &mut self.writer {
            let packet = &mut self.partial[index];
            let before = packet.len();
            packet.resize(before + len, 0);
            let got = slot.frame().read(0, &mut packet[before..]);
            packet.truncate(before + got);
            if last {
                writer.packet(time, packet.get(self.prefix..).unwrap_or(&[]))?;
                packet.clear();
            }
        }
        Ok(last)
    }
}

impl Sink for Inspect {
    fn take(&mut self, ring: &Ring, index: usize, n: u32) -> Result<Batch, String> {
        // One time for the batch: that is when it was seen.
        let time = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        let mut batch = Batch::default();
        for slot in ring.window().take(n as usize) {
            batch.bytes += u64::from(slot.len());
            batch.packets += u64::from(self.slot(&slot, ring, index, time)?);
        }
        Ok(batch)
    }

    fn finish(self) -> Result<Option<Gaps>, String> {
        if let Some(writer) = self.writer {
            writer.finish()?;
        }
        let counted = !self.followers.is_empty();
        let mut sum = Gaps::default();
        self.followers.iter().for_each(|f| sum.add(f.gaps));
        Ok(counted.then_some(sum))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::Interval;

    #[test]
    fn traffic_is_over_when_no_ring_of_any_thread_gets_more() {
        let all = [Counters::default(), Counters::default()];
        let interval = Interval::new();
        let mut quiet = Quiet::default();
        let begin = Instant::now();
        let mut is_over_after = |ms: u64| quiet.is_over(&all, begin + Duration::from_millis(ms));
        assert!(!is_over_after(0) && !is_over_after(60_000), "nothing has come yet");
        all[1].add(&interval, 1, 60, 1);
        assert!(!is_over_after(60_100) && !is_over_after(61_099));
        all[0].add(&interval, 1, 60, 1);
        assert!(!is_over_after(61_100) && !is_over_after(62_099));
        assert!(is_over_after(62_100));
    }

    #[test]
    fn waits_in_vain_become_longer() {
        let times = |mut wait: Wait| {
            [(); 4].map(|()| {
                let time = wait.time;
                wait.was_in_vain();
                time.as_millis()
            })
        };
        assert_eq!(times(Wait::new(true)), [100, 200, 400, 500]);
        assert_eq!(times(Wait::new(false)), [100; 4]);
    }
}
