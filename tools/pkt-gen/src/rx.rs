// SPDX-License-Identifier: BSD-2-Clause
//! Receives packets: `rx` and `rxseq`.

use std::time::{Duration, Instant, SystemTime};

use tool_common::generator::STOP_CHECK_INTERVAL;
use tool_common::print;
use unetmap::abi::NS_MOREFRAG;
use unetmap::{Interest, Ring, SlotRef};

use crate::capture::CaptureWriter;
use crate::dump;
use crate::options::Function;
use crate::packet::{payload_offset, sequence_number};
use crate::report::{Counters, totals_of};
use crate::sequence::{Gaps, SequenceChecker};
use crate::worker::{Outcome, Worker};

/// Longest poll of a thread that received nothing for a long time. A signal ends it.
const MAX_POLL_TIMEOUT: Duration = Duration::from_millis(500);
/// With -W: the receiver ends if no packet arrives for this time, after the first one.
const IDLE_EXIT_TIME: Duration = Duration::from_secs(1);
/// Maximum bytes from the start of a virtio-net header to the end of a sequence number.
const MAX_HEADERS: usize = 12 + payload_offset(true) + 4;

/// Receives until the count is reached, a signal arrives, or (with -W) the traffic has ended.
pub(crate) fn run(worker: &Worker<'_>) -> Result<Outcome, String> {
    let config = worker.config;
    let seq = config.function == Function::Rxseq;
    if !seq && !config.access && !config.dump && config.write.is_none() {
        return receive_loop(worker, CountOnly);
    }
    let rings = worker.port.rx_rings().len();
    receive_loop(
        worker,
        Inspect {
            prefix: config.vnet_hdr,
            checkers: if seq { vec![SequenceChecker::default(); rings] } else { Vec::new() },
            access: config.access,
            dump: config.dump,
            writer: config.write.as_deref().map(CaptureWriter::create).transpose()?,
            partial: vec![Vec::new(); rings],
            starts: vec![true; rings],
        },
    )
}

/// Counts of one batch from one ring.
#[derive(Clone, Copy, Default)]
struct Batch {
    packets: u64,
    bytes: u64,
}

/// Processes received slots.
trait Sink {
    /// Processes the first `n` slots of the ring with number `index`.
    fn receive(&mut self, ring: &Ring, index: usize, n: u32) -> Result<Batch, String>;
    /// Finishes the work. Returns the gaps if they were counted.
    fn finish(self) -> Result<Option<Gaps>, String>;
}

fn receive_loop(worker: &Worker<'_>, mut sink: impl Sink) -> Result<Outcome, String> {
    let (config, port) = (worker.config, worker.port);
    let rings = port.rx_rings();
    let mut received = 0;
    let mut begin = None;
    let mut idle_since = None;
    let mut idle_detector = IdleDetector::default();
    // Polls become longer only if one thread runs, because a signal interrupts only one thread, and without -W, which
    // must detect the end of the traffic in time.
    let mut timeout = PollTimeout::new(config.threads == 1 && !config.exit_when_idle);
    while received < worker.count && !worker.stopped() {
        let ready = port.poll(Interest::RX, Some(timeout.current)).map_err(|e| e.to_string())?;
        if ready.is_none() {
            timeout.poll_expired();
            // The clock is not read while packets arrive. The expired poll lasted at least STOP_CHECK_INTERVAL, so the
            // idle time began that much earlier.
            let now = Instant::now();
            idle_since.get_or_insert_with(|| now.checked_sub(STOP_CHECK_INTERVAL).unwrap_or(now));
            if config.exit_when_idle && idle_detector.traffic_ended(worker.all, now) {
                break;
            }
            continue;
        }
        (idle_since, timeout.current) = (None, STOP_CHECK_INTERVAL);
        begin.get_or_insert_with(Instant::now);
        for (index, ring) in rings.iter().enumerate() {
            let space = ring.space();
            let n = u64::from(space.min(config.burst)).min(worker.count - received) as u32; // at most `space`
            if n == 0 {
                continue;
            }
            let batch = sink.receive(ring, index, n)?;
            ring.advance(n);
            received += batch.packets;
            worker.counters.add(worker.interval, batch.packets, batch.bytes, space);
        }
    }
    // Publishes the released slots: the sender may be waiting for them.
    port.rxsync().map_err(|e| e.to_string())?;
    let end = idle_since.unwrap_or_else(Instant::now);
    let gaps = sink.finish()?;
    let span = begin.map(|begin| (begin, end.max(begin)));
    Ok(Outcome { span, gaps, ..Outcome::default() })
}

/// The timeout of a poll. It grows while no packets arrive, because each wake-up uses a processor that others may need.
struct PollTimeout {
    current: Duration,
    max: Duration,
}

impl PollTimeout {
    fn new(may_grow: bool) -> PollTimeout {
        PollTimeout { current: STOP_CHECK_INTERVAL, max: if may_grow { MAX_POLL_TIMEOUT } else { STOP_CHECK_INTERVAL } }
    }

    #[cold]
    fn poll_expired(&mut self) {
        self.current = self.current.saturating_mul(2).min(self.max);
    }
}

/// Detects the end of the traffic, by the counters of all threads.
#[derive(Default)]
struct IdleDetector {
    /// Number of batches that all threads have received, and when this number was first seen.
    seen: Option<(u64, Instant)>,
}

impl IdleDetector {
    /// Returns true if packets have arrived, and then none for [`IDLE_EXIT_TIME`].
    fn traffic_ended(&mut self, all: &[Counters], now: Instant) -> bool {
        let batches = totals_of(all).batches;
        match self.seen {
            Some((before, since)) if before == batches => {
                batches > 0 && now.saturating_duration_since(since) >= IDLE_EXIT_TIME
            }
            _ => {
                self.seen = Some((batches, now));
                false
            }
        }
    }
}

/// Counts packets and bytes without reading buffers.
struct CountOnly;

impl Sink for CountOnly {
    #[inline]
    fn receive(&mut self, ring: &Ring, _: usize, n: u32) -> Result<Batch, String> {
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

/// Reads the buffer of each packet.
struct Inspect {
    /// Bytes of the virtio-net header before the Ethernet header.
    prefix: usize,
    /// One per ring for rxseq, else empty.
    checkers: Vec<SequenceChecker>,
    access: bool,
    dump: bool,
    writer: Option<CaptureWriter>,
    /// Per ring: the bytes received so far of the current packet, collected for the writer.
    partial: Vec<Vec<u8>>,
    /// Per ring: true if the next slot is the first of a packet.
    starts: Vec<bool>,
}

impl Inspect {
    fn slot(&mut self, slot: &SlotRef<'_>, ring: &Ring, index: usize, time: Duration) -> Result<bool, String> {
        let (len, flags) = (usize::from(slot.len()), slot.flags());
        let last = flags & NS_MOREFRAG == 0;
        let first = std::mem::replace(&mut self.starts[index], last);
        if self.access || (first && !self.checkers.is_empty()) {
            let mut head = [0; MAX_HEADERS];
            let got = slot.frame().read(0, &mut head[..len.min(MAX_HEADERS)]);
            std::hint::black_box(&head);
            if let Some(checker) = self.checkers.get_mut(index).filter(|_| first) {
                checker.check(head[..got].get(self.prefix..).and_then(sequence_number));
            }
        }
        if self.dump {
            print(&dump::format_slot(ring, slot));
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
    fn receive(&mut self, ring: &Ring, index: usize, n: u32) -> Result<Batch, String> {
        // All packets of a batch get the same timestamp: the time of their arrival is not known more precisely.
        let time = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        let mut batch = Batch::default();
        for slot in ring.available().take(n as usize) {
            batch.bytes += u64::from(slot.len());
            batch.packets += u64::from(self.slot(&slot, ring, index, time)?);
        }
        Ok(batch)
    }

    fn finish(self) -> Result<Option<Gaps>, String> {
        if let Some(writer) = self.writer {
            writer.finish()?;
        }
        let counted = !self.checkers.is_empty();
        let mut sum = Gaps::default();
        self.checkers.iter().for_each(|f| sum.add(f.gaps));
        Ok(counted.then_some(sum))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::IntervalNumber;

    #[test]
    fn traffic_has_ended_when_no_thread_receives_more() {
        let all = [Counters::default(), Counters::default()];
        let interval = IntervalNumber::new();
        let mut idle_detector = IdleDetector::default();
        let begin = Instant::now();
        let mut ended_after = |ms: u64| idle_detector.traffic_ended(&all, begin + Duration::from_millis(ms));
        assert!(!ended_after(0) && !ended_after(60_000), "no packet has arrived yet");
        all[1].add(&interval, 1, 60, 1);
        assert!(!ended_after(60_100) && !ended_after(61_099));
        all[0].add(&interval, 1, 60, 1);
        assert!(!ended_after(61_100) && !ended_after(62_099));
        assert!(ended_after(62_100));
    }

    #[test]
    fn timeouts_grow_after_expired_polls() {
        let times = |mut timeout: PollTimeout| {
            [(); 4].map(|()| {
                let time = timeout.current;
                timeout.poll_expired();
                time.as_millis()
            })
        };
        assert_eq!(times(PollTimeout::new(true)), [100, 200, 400, 500]);
        assert_eq!(times(PollTimeout::new(false)), [100; 4]);
    }
}
