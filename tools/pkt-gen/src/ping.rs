// SPDX-License-Identifier: BSD-2-Clause
//! Round trips: `ping` sends packets that contain a timestamp, `pong` returns them.

use std::time::{Duration, Instant, SystemTime};

use hdrhistogram::Histogram;
use serde_json::{Map, Value, json};
use tool_common::generator::{STOP_CHECK_INTERVAL, print_report};
use tool_common::print;
use unetmap::abi::{NS_MOREFRAG, NS_REPORT};
use unetmap::{Interest, Ring, SlotRef};

use crate::dump;
use crate::packet::{ETHERNET, Packet, payload_offset, swap_addresses, udp_payload};
use crate::report::{Reporter, Style};
use crate::worker::{Outcome, Pacer, PingOutcome, Worker};

/// An answer that takes longer counts as lost.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(1);
/// Maximum round-trip time of the histogram, in ns.
const MAX_RTT: u64 = 60_000_000_000;
/// Bytes of a sequence number and a time.
const TIMESTAMP_LEN: usize = 12;

/// A monotonic clock that starts at the time of day.
struct Clock {
    start: Instant,
    offset: Duration,
}

impl Clock {
    fn new() -> Clock {
        let offset = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        Clock { start: Instant::now(), offset }
    }

    fn now(&self) -> Duration {
        self.offset + self.start.elapsed()
    }
}

/// Encodes sequence number, seconds and nanoseconds: 32 bits each, in host byte order.
fn timestamp(number: u32, time: Duration) -> [u8; TIMESTAMP_LEN] {
    let mut bytes = [0; TIMESTAMP_LEN];
    bytes[..4].copy_from_slice(&number.to_ne_bytes());
    bytes[4..8].copy_from_slice(&(time.as_secs() as u32).to_ne_bytes()); // the low 32 bits, as the format defines
    bytes[8..].copy_from_slice(&time.subsec_nanos().to_ne_bytes());
    bytes
}

/// Decodes a [`timestamp`]: the sequence number, and the time since it was sent (None if that is in the future). The
/// upper 32 bits of the seconds are those of `now`.
fn read_timestamp(bytes: [u8; TIMESTAMP_LEN], now: Duration) -> (u32, Option<Duration>) {
    let word = |at: usize| u32::from_ne_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]]);
    let high = now.as_secs() & !u64::from(u32::MAX);
    let sent = Duration::from_secs(high | u64::from(word(4))) + Duration::from_nanos(u64::from(word(8)));
    (word(0), now.checked_sub(sent))
}

/// Round-trip times since the last report.
#[derive(Default)]
struct RttInterval {
    count: u64,
    min: u64,
    sum: u64,
}

impl RttInterval {
    fn record(&mut self, rtt: u64) {
        self.min = if self.count == 0 { rtt } else { self.min.min(rtt) };
        self.sum = self.sum.saturating_add(rtt);
        self.count += 1;
    }

    fn average(&self) -> u64 {
        self.sum / self.count.max(1)
    }

    fn line(&self) -> String {
        format!("count {} RTT: min {} av {} ns", self.count, self.min, self.average())
    }

    /// Adds the members of the JSON report that only ping has.
    fn members(&self, to: &mut Map<String, Value>) {
        to.insert("answers".into(), json!(self.count));
        if self.count > 0 {
            to.insert("rtt_ns".into(), json!({"min": self.min, "avg": self.average()}));
        }
    }
}

/// The state of ping.
struct Pinger<'a> {
    worker: &'a Worker<'a>,
    clock: Clock,
    /// The sequence numbers of the current burst are `[first, next)`.
    first: u32,
    next: u32,
    /// Number of unanswered packets of the current burst.
    outstanding: u32,
    /// Time at which the last packet of the burst was sent.
    sent: Duration,
    /// With `--slot-times`: the time of each packet of the burst, 0 if unknown.
    sent_ns: Vec<u64>,
    rtt: Histogram<u64>,
    interval_rtt: RttInterval,
    interval_start: Instant,
    reporter: Reporter<'a>,
    scratch: Vec<u8>,
}

/// Repeatedly sends a burst and waits for its answers.
pub(crate) fn ping(worker: &Worker<'_>, mut packet: Packet) -> Result<Outcome, String> {
    let rtt = Histogram::new_with_bounds(1, MAX_RTT, 3)
        .map_err(|e| format!("ping: cannot create the histogram of round-trip times: {e}"))?;
    let mut pacer = Pacer::new(worker.rate);
    let counters = std::slice::from_ref(worker.counters);
    let style = Style::of(worker.config);
    let mut pinger = Pinger {
        worker,
        clock: Clock::new(),
        first: 0,
        next: 0,
        outstanding: 0,
        sent: Duration::ZERO,
        sent_ns: Vec::new(),
        rtt,
        interval_rtt: RttInterval::default(),
        interval_start: Instant::now(),
        reporter: Reporter::new(style, worker.config.function.name(), counters, worker.interval),
        scratch: Vec::new(),
    };
    worker.port.tx_rings().first().into_iter().for_each(prefault);
    let begin = Instant::now();
    let (mut sent, mut lost) = (0, 0);
    while sent < worker.count && !worker.stopped() {
        pacer.wait(worker.stop);
        pinger.report();
        let max = (worker.count - sent).min(u64::from(worker.config.burst)) as u32; // at most a burst, which is 32 bits
        let now = pinger.send(&mut packet, max)?;
        sent += u64::from(now);
        pacer.sent(u64::from(now));
        lost += u64::from(pinger.await_answers()?);
    }
    let span = (sent > 0).then(|| (begin, Instant::now()));
    Ok(Outcome { span, ping: Some(PingOutcome { rtt: pinger.rtt, lost }), ..Outcome::default() })
}

impl Pinger<'_> {
    /// Sends a burst of up to `max` pings, limited by the free slots. Returns their number.
    fn send(&mut self, packet: &mut Packet, max: u32) -> Result<u32, String> {
        let Worker { port, config, .. } = self.worker;
        let Some(ring) = port.tx_rings().first() else {
            return Err(no_ring(port.spec(), "tx"));
        };
        if ring.is_empty() {
            port.poll(Interest::TX, Some(STOP_CHECK_INTERVAL)).map_err(|e| e.to_string())?;
        }
        let space = ring.space();
        let n = space.min(max);
        self.first = self.next;
        for slot in ring.available().take(n as usize) {
            self.sent = self.clock.now();
            packet.set_payload(0, &timestamp(self.next, self.sent));
            self.scratch.clear();
            self.scratch.resize(config.vnet_hdr, 0);
            self.scratch.extend_from_slice(packet.longest());
            slot.frame().write(0, &self.scratch);
            slot.set_len_flags(self.scratch.len() as u16, NS_REPORT); // `check_port` has validated the length
            self.next = self.next.wrapping_add(1);
        }
        self.outstanding = n;
        if n > 0 {
            // Printed only after sending, because the round-trip time is already being measured.
            let dumped: String = format_slots(config.dump, ring, n).collect();
            let first = ring.head();
            ring.advance(n);
            port.txsync().map_err(|e| e.to_string())?;
            if config.slot_times {
                let times = ring.run(first, n).map(|slot| slot_ns(ring, &slot));
                self.sent_ns.clear();
                self.sent_ns.extend(times);
            }
            ring.first(n).for_each(|slot| slot.fetch_to_write());
            if !dumped.is_empty() {
                print(&dumped);
            }
            self.worker.counters.add(
                self.worker.interval,
                u64::from(n),
                u64::from(n) * self.scratch.len() as u64,
                space,
            );
        }
        Ok(n)
    }

    /// Waits for the answers to the burst. Returns the number of packets without an answer.
    fn await_answers(&mut self) -> Result<u32, String> {
        let port = self.worker.port;
        let mut now = self.sent;
        loop {
            self.report();
            if self.outstanding == 0 {
                return Ok(0);
            }
            if self.worker.stopped() || now.saturating_sub(self.sent) > ANSWER_TIMEOUT {
                return Ok(self.outstanding);
            }
            port.poll(Interest::RX, Some(STOP_CHECK_INTERVAL)).map_err(|e| e.to_string())?;
            now = self.clock.now();
            for ring in port.rx_rings() {
                self.receive_answers(ring, now);
            }
        }
    }

    fn receive_answers(&mut self, ring: &Ring, now: Duration) {
        let prefix = self.worker.config.vnet_hdr;
        let n = ring.space();
        for slot in ring.available().take(n as usize) {
            let mut head = [0; payload_offset(false) + TIMESTAMP_LEN];
            let max_len = head.len().min(usize::from(slot.len()).saturating_sub(prefix));
            let got = slot.frame().read(prefix, &mut head[..max_len]);
            // An interface also receives other packets.
            let Some(stamp) = udp_payload(&head[..got]).and_then(|payload| payload.first_chunk()) else { continue };
            let (number, rtt) = read_timestamp(*stamp, now);
            let Some(rtt) = rtt else { continue };
            // A late answer to an earlier burst is ignored: it was already counted as lost.
            if self.outstanding > 0 && number.wrapping_sub(self.first) < self.next.wrapping_sub(self.first) {
                self.outstanding -= 1;
                let rtt = match self.sent_ns.get(number.wrapping_sub(self.first) as usize) {
                    Some(&sent) if sent > 0 => slot_ns(ring, &slot).saturating_sub(sent),
                    _ => u64::try_from(rtt.as_nanos()).unwrap_or(u64::MAX),
                };
                self.rtt.saturating_record(rtt);
                self.interval_rtt.record(rtt);
            }
        }
        format_slots(self.worker.config.dump, ring, n).for_each(|text| print(&text));
        ring.advance(n);
    }

    fn report(&mut self) {
        let config = self.worker.config;
        if config.report.is_some_and(|every| self.interval_start.elapsed() >= every) {
            let interval = std::mem::take(&mut self.interval_rtt);
            let mut members = self.reporter.members(self.interval_start.elapsed());
            self.interval_start = Instant::now();
            interval.members(&mut members);
            let line = if config.json { Value::Object(members).to_string() } else { interval.line() };
            print_report(&line, config.json);
        }
    }
}

/// Returns the time of a slot, 0 if unknown.
fn slot_ns(ring: &Ring, slot: &SlotRef<'_>) -> u64 {
    ring.slot_time(slot.pos()).map_or(0, |time| time.ns)
}

/// Writes to every free buffer of the ring, so that its memory is allocated before a round trip is measured and the
/// first pass over the ring takes no page faults. The peer does the same with its buffers.
fn prefault(ring: &Ring) {
    ring.available().for_each(|slot| {
        slot.frame().write(0, &[0]);
    });
}

/// Formats the first `n` slots of a ring for -X, or none if not `wanted`.
fn format_slots(wanted: bool, ring: &Ring, n: u32) -> impl Iterator<Item = String> {
    ring.available().take(if wanted { n as usize } else { 0 }).map(|slot| dump::format_slot(ring, &slot))
}

/// Returns every packet to its sender.
pub(crate) fn pong(worker: &Worker<'_>) -> Result<Outcome, String> {
    let port = worker.port;
    let (Some(tx), rx) = (port.tx_rings().first(), port.rx_rings()) else {
        return Err(no_ring(port.spec(), "tx"));
    };
    prefault(tx);
    let mut answered = 0;
    let mut begin = None;
    let mut end = Instant::now();
    while answered < worker.count && !worker.stopped() {
        let ready = port.poll(Interest::RX, Some(STOP_CHECK_INTERVAL)).map_err(|e| e.to_string())?;
        if ready.is_none() {
            continue;
        }
        begin.get_or_insert_with(Instant::now);
        for ring in rx {
            let space = ring.space();
            // At most `space`, which is 32 bits.
            let mut n = u64::from(space.min(worker.config.burst)).min(worker.count - answered) as u32;
            if n == 0 {
                continue;
            }
            if tx.space() < n {
                port.txsync().map_err(|e| e.to_string())?;
            }
            if tx.is_empty() {
                port.poll(Interest::TX, Some(STOP_CHECK_INTERVAL)).map_err(|e| e.to_string())?;
            }
            n = n.min(tx.space());
            let (packets, bytes) = reflect(ring, tx, n, worker.config.vnet_hdr);
            for ring in [ring, tx] {
                format_slots(worker.config.dump, ring, n).for_each(|text| print(&text));
            }
            ring.advance(n);
            tx.advance(n);
            port.txsync().map_err(|e| e.to_string())?;
            // The peer read these buffers last. Claims their cache lines now, so that the next answers need not wait
            // for them.
            tx.first(n).for_each(|slot| slot.fetch_to_write());
            answered += packets;
            if n > 0 {
                worker.counters.add(worker.interval, packets, bytes, space);
            }
        }
        end = Instant::now();
    }
    port.rxsync().map_err(|e| e.to_string())?;
    Ok(Outcome { span: begin.map(|b| (b, end.max(b))), ..Outcome::default() })
}

/// Copies the first `n` slots of `from` into `to` with swapped addresses. Returns the number of packets and bytes.
fn reflect(from: &Ring, to: &Ring, n: u32, prefix: usize) -> (u64, u64) {
    let (mut packets, mut bytes) = (0, 0);
    for (request, answer) in from.available().zip(to.available()).take(n as usize) {
        let (len, flags) = (request.len(), request.flags() & NS_MOREFRAG);
        let (source, target) = (request.frame(), answer.frame());
        target.copy_from(&source, usize::from(len));
        let mut head = [0; ETHERNET + 20];
        let max_len = head.len().min(usize::from(len).saturating_sub(prefix));
        let got = source.read(prefix, &mut head[..max_len]);
        swap_addresses(&mut head[..got]);
        target.write(prefix, &head[..got]);
        answer.set_len_flags(len, flags);
        packets += u64::from(flags == 0);
        bytes += u64::from(len);
    }
    (packets, bytes)
}

fn no_ring(spec: &str, direction: &str) -> String {
    format!("{spec}: the port has no {direction} ring, which this function needs (leave out /R or /T)")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_timestamp_is_decoded() {
        let sent = Duration::new(1_800_000_000, 999_999_999);
        let bytes = timestamp(7, sent);
        assert_eq!(bytes[..4], 7_u32.to_ne_bytes());
        assert_eq!(bytes[4..8], 1_800_000_000_u32.to_ne_bytes());
        assert_eq!(bytes[8..], 999_999_999_u32.to_ne_bytes());
        let now = sent + Duration::from_nanos(400);
        assert_eq!(read_timestamp(bytes, now), (7, Some(Duration::from_nanos(400))));
        assert_eq!(read_timestamp(bytes, sent - Duration::from_nanos(1)), (7, None), "from the future");
        // Arbitrary bytes must not panic.
        assert_eq!(read_timestamp([0xff; TIMESTAMP_LEN], now).0, u32::MAX);
    }

    #[test]
    fn the_interval_line_has_netmaps_format() {
        let mut interval = RttInterval::default();
        assert_eq!(interval.line(), "count 0 RTT: min 0 av 0 ns");
        let mut members = Map::new();
        interval.members(&mut members);
        assert_eq!(Value::Object(members), json!({"answers": 0}));
        [500, 400, 600].into_iter().for_each(|rtt| interval.record(rtt));
        assert_eq!(interval.line(), "count 3 RTT: min 400 av 500 ns");
        let mut members = Map::new();
        interval.members(&mut members);
        assert_eq!(Value::Object(members), json!({"answers": 3, "rtt_ns": {"min": 400, "avg": 500}}));
    }
}
