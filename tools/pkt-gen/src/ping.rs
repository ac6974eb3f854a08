//! Round trips: `ping` sends packets with the time in them, `pong` sends them back.

use std::time::{Duration, Instant, SystemTime};

use hdrhistogram::Histogram;
use serde_json::{Map, Value, json};
use tool_common::print;
use unetmap::{Interest, Ring};
use unetmap_abi::{NS_MOREFRAG, NS_REPORT};

use crate::dump;
use crate::packet::{ETHERNET, Packet, payload_of, payload_offset, turn_around};
use crate::report::{Reporter, Style};
use crate::worker::{Outcome, PATIENCE, Pacer, PingOutcome, Worker};

/// An answer that takes longer is lost.
const LOST_AFTER: Duration = Duration::from_secs(1);
/// The longest round trip that the histogram can hold, in ns.
const LONGEST_RTT: u64 = 60_000_000_000;
/// Bytes of sequence number and time.
const STAMP: usize = 12;

/// A clock that starts at the time of day and never jumps.
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

/// Sequence number, seconds, nanoseconds: 32 bits each, in host order.
fn stamp(number: u32, time: Duration) -> [u8; STAMP] {
    let mut bytes = [0; STAMP];
    bytes[..4].copy_from_slice(&number.to_ne_bytes());
    bytes[4..8].copy_from_slice(&(time.as_secs() as u32).to_ne_bytes()); // its low 32 bits, by definition
    bytes[8..].copy_from_slice(&time.subsec_nanos().to_ne_bytes());
    bytes
}

/// What [`stamp`] wrote; the seconds that 32 bits cannot hold are taken from `now`.
fn read_stamp(bytes: [u8; STAMP], now: Duration) -> (u32, Option<Duration>) {
    let word = |at: usize| u32::from_ne_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]]);
    let high = now.as_secs() & !u64::from(u32::MAX);
    let sent = Duration::from_secs(high | u64::from(word(4))) + Duration::from_nanos(u64::from(word(8)));
    (word(0), now.checked_sub(sent))
}

/// Round trips since the last report.
#[derive(Default)]
struct Lap {
    count: u64,
    min: u64,
    sum: u64,
}

impl Lap {
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

    /// The members of its JSON line, besides those that every interval has.
    fn members(&self, to: &mut Map<String, Value>) {
        to.insert("answers".into(), json!(self.count));
        if self.count > 0 {
            to.insert("rtt_ns".into(), json!({"min": self.min, "avg": self.average()}));
        }
    }
}

/// What is known of the pings on their way.
struct Pinger<'a> {
    worker: &'a Worker<'a>,
    clock: Clock,
    /// Answers come to the burst `[first, next)`.
    first: u32,
    next: u32,
    /// Of the burst, not answered yet.
    open: u32,
    /// When the last of it was sent.
    sent: Duration,
    rtt: Histogram<u64>,
    lap: Lap,
    lap_began: Instant,
    reporter: Reporter<'a>,
    scratch: Vec<u8>,
}

/// Sends a burst, waits for its answers, and so on.
pub(crate) fn ping(worker: &Worker<'_>, mut packet: Packet) -> Result<Outcome, String> {
    let rtt = Histogram::new_with_bounds(1, LONGEST_RTT, 3).map_err(|e| format!("histogram: {e}"))?;
    let mut pacer = Pacer::new(worker.rate);
    let counters = std::slice::from_ref(worker.counters);
    let style = Style::of(worker.config);
    let mut pinger = Pinger {
        worker,
        clock: Clock::new(),
        first: 0,
        next: 0,
        open: 0,
        sent: Duration::ZERO,
        rtt,
        lap: Lap::default(),
        lap_began: Instant::now(),
        reporter: Reporter::new(style, worker.config.function.name(), counters, worker.interval),
        scratch: Vec::new(),
    };
    worker.port.tx_rings().first().into_iter().for_each(touch);
    let begin = Instant::now();
    let (mut sent, mut lost) = (0, 0);
    while sent < worker.count && !worker.stopped() {
        pacer.wait(worker.stop);
        pinger.report();
        let max = (worker.count - sent).min(u64::from(worker.config.burst)) as u32; // at most a burst
        let now = pinger.send(&mut packet, max)?;
        sent += u64::from(now);
        pacer.sent(u64::from(now));
        lost += u64::from(pinger.collect()?);
    }
    let span = (sent > 0).then(|| (begin, Instant::now()));
    Ok(Outcome { span, ping: Some(PingOutcome { rtt: pinger.rtt, lost }), ..Outcome::default() })
}

impl Pinger<'_> {
    /// Sends up to `max` pings, as many as there is room for.
    fn send(&mut self, packet: &mut Packet, max: u32) -> Result<u32, String> {
        let Worker { port, config, .. } = self.worker;
        let Some(ring) = port.tx_rings().first() else {
            return Err(no_ring(port.spec(), "tx"));
        };
        if ring.is_empty() {
            port.poll(Interest::TX, Some(PATIENCE)).map_err(|e| e.to_string())?;
        }
        let space = ring.space();
        let n = space.min(max);
        self.first = self.next;
        for slot in ring.window().take(n as usize) {
            self.sent = self.clock.now();
            packet.set_payload(0, &stamp(self.next, self.sent));
            self.scratch.clear();
            self.scratch.resize(config.vnet_hdr, 0);
            self.scratch.extend_from_slice(packet.longest());
            slot.frame().write(0, &self.scratch);
            slot.set_len_flags(self.scratch.len() as u16, NS_REPORT); // checked when the port was opened
            self.next = self.next.wrapping_add(1);
        }
        self.open = n;
        if n > 0 {
            // Printed after they are on their way: their time is running.
            let dumped: String = dumps(config.dump, ring, n).collect();
            ring.advance(n);
            port.txsync().map_err(|e| e.to_string())?;
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

    /// Waits for the answers to the burst; returns how many did not come.
    fn collect(&mut self) -> Result<u32, String> {
        let port = self.worker.port;
        let mut now = self.sent;
        loop {
            self.report();
            if self.open == 0 {
                return Ok(0);
            }
            if self.worker.stopped() || now.saturating_sub(self.sent) > LOST_AFTER {
                return Ok(self.open);
            }
            port.poll(Interest::RX, Some(PATIENCE)).map_err(|e| e.to_string())?;
            now = self.clock.now();
            for ring in port.rx_rings() {
                self.take(ring, now);
            }
        }
    }

    fn take(&mut self, ring: &Ring, now: Duration) {
        let prefix = self.worker.config.vnet_hdr;
        let n = ring.space();
        for slot in ring.window().take(n as usize) {
            let mut head = [0; payload_offset(false) + STAMP];
            let want = head.len().min(usize::from(slot.len()).saturating_sub(prefix));
            let got = slot.frame().read(prefix, &mut head[..want]);
            // An interface receives other packets, too.
            let Some(stamp) = payload_of(&head[..got]).and_then(|payload| payload.first_chunk()) else { continue };
            let (number, rtt) = read_stamp(*stamp, now);
            let Some(rtt) = rtt else { continue };
            // An answer to an earlier burst was counted as lost when it was given up.
            if self.open > 0 && number.wrapping_sub(self.first) < self.next.wrapping_sub(self.first) {
                self.open -= 1;
                let rtt = u64::try_from(rtt.as_nanos()).unwrap_or(u64::MAX);
                self.rtt.saturating_record(rtt);
                self.lap.record(rtt);
            }
        }
        dumps(self.worker.config.dump, ring, n).for_each(|text| print(&text));
        ring.advance(n);
    }

    fn report(&mut self) {
        let config = self.worker.config;
        if config.report.is_some_and(|every| self.lap_began.elapsed() >= every) {
            let lap = std::mem::take(&mut self.lap);
            let mut members = self.reporter.members(self.lap_began.elapsed());
            self.lap_began = Instant::now();
            lap.members(&mut members);
            let line = if config.json { Value::Object(members).to_string() } else { lap.line() };
            crate::tell(&line, config.json);
        }
    }
}

/// Writes to every buffer that the program holds, so that its memory is there before anybody waits for it: the first round
/// through a ring is like all others. The port's other side does the same with its own.
fn touch(ring: &Ring) {
    ring.window().for_each(|slot| {
        slot.frame().write(0, &[0]);
    });
}

/// With -X: what to print of the first `n` slots of a ring.
fn dumps(wanted: bool, ring: &Ring, n: u32) -> impl Iterator<Item = String> {
    ring.window().take(if wanted { n as usize } else { 0 }).map(|slot| dump::slot(ring, &slot))
}

/// Sends every packet back to where it came from.
pub(crate) fn pong(worker: &Worker<'_>) -> Result<Outcome, String> {
    let port = worker.port;
    let (Some(tx), rx) = (port.tx_rings().first(), port.rx_rings()) else {
        return Err(no_ring(port.spec(), "tx"));
    };
    touch(tx);
    let mut answered = 0;
    let mut begin = None;
    let mut end = Instant::now();
    while answered < worker.count && !worker.stopped() {
        let ready = port.poll(Interest::RX, Some(PATIENCE)).map_err(|e| e.to_string())?;
        if ready.is_none() {
            continue;
        }
        begin.get_or_insert_with(Instant::now);
        for ring in rx {
            let space = ring.space();
            // At most `space`, so it fits.
            let mut n = u64::from(space.min(worker.config.burst)).min(worker.count - answered) as u32;
            if n == 0 {
                continue;
            }
            if tx.space() < n {
                port.txsync().map_err(|e| e.to_string())?;
            }
            if tx.is_empty() {
                port.poll(Interest::TX, Some(PATIENCE)).map_err(|e| e.to_string())?;
            }
            n = n.min(tx.space());
            let (packets, bytes) = answer(ring, tx, n, worker.config.vnet_hdr);
            for ring in [ring, tx] {
                dumps(worker.config.dump, ring, n).for_each(|text| print(&text));
            }
            ring.advance(n);
            tx.advance(n);
            port.txsync().map_err(|e| e.to_string())?;
            // The other side read them last; the next answers are not to wait until they are ours again.
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

/// Copies the first `n` slots of `from` into `to`, turned around.
fn answer(from: &Ring, to: &Ring, n: u32, prefix: usize) -> (u64, u64) {
    let (mut packets, mut bytes) = (0, 0);
    for (question, answer) in from.window().zip(to.window()).take(n as usize) {
        let (len, flags) = (question.len(), question.flags() & NS_MOREFRAG);
        let (source, target) = (question.frame(), answer.frame());
        target.copy_from(&source, usize::from(len));
        let mut head = [0; ETHERNET + 20];
        let want = head.len().min(usize::from(len).saturating_sub(prefix));
        let got = source.read(prefix, &mut head[..want]);
        turn_around(&mut head[..got]);
        target.write(prefix, &head[..got]);
        answer.set_len_flags(len, flags);
        packets += u64::from(flags == 0);
        bytes += u64::from(len);
    }
    (packets, bytes)
}

fn no_ring(spec: &str, direction: &str) -> String {
    format!("{spec}: has no {direction} ring, and this function needs one (leave out /R or /T)")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stamp_is_read_back() {
        let sent = Duration::new(1_800_000_000, 999_999_999);
        let bytes = stamp(7, sent);
        assert_eq!(bytes[..4], 7_u32.to_ne_bytes());
        assert_eq!(bytes[4..8], 1_800_000_000_u32.to_ne_bytes());
        assert_eq!(bytes[8..], 999_999_999_u32.to_ne_bytes());
        let now = sent + Duration::from_nanos(400);
        assert_eq!(read_stamp(bytes, now), (7, Some(Duration::from_nanos(400))));
        assert_eq!(read_stamp(bytes, sent - Duration::from_nanos(1)), (7, None), "from the future");
        // Whatever arrives must not panic.
        assert_eq!(read_stamp([0xff; STAMP], now).0, u32::MAX);
    }

    #[test]
    fn the_interval_line_is_what_scripts_parse() {
        let mut lap = Lap::default();
        assert_eq!(lap.line(), "count 0 RTT: min 0 av 0 ns");
        let mut members = Map::new();
        lap.members(&mut members);
        assert_eq!(Value::Object(members), json!({"answers": 0}));
        [500, 400, 600].into_iter().for_each(|rtt| lap.record(rtt));
        assert_eq!(lap.line(), "count 3 RTT: min 400 av 500 ns");
        let mut members = Map::new();
        lap.members(&mut members);
        assert_eq!(Value::Object(members), json!({"answers": 3, "rtt_ns": {"min": 400, "avg": 500}}));
    }
}
