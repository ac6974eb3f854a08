// SPDX-License-Identifier: BSD-2-Clause
//! Measures streams by the signatures of their packets: loss, order, duplicates, latency and jitter.

use crate::latencies::{Latencies, Summary};
use crate::pace::{Pace, Pacer};
use crate::signature::Signature;

/// Streams that a receiver measures, at most: each needs a few pages to 16 megabytes, as its latencies spread.
pub const MAX_STREAMS: usize = 256;
/// Packets of a stream within which duplicates are found.
const WINDOW: u64 = 65_536;
/// Numbers that a packet's number may be ahead of the highest. Beyond it, the packet is of another run.
const MAX_AHEAD: u64 = 1 << 30;

/// Counts of the packets of a stream that arrived.
#[derive(Clone, Debug)]
pub struct StreamReport {
    /// Number of the stream.
    pub id: u16,
    /// Packets, with duplicates.
    pub packets: u64,
    /// Their bytes.
    pub bytes: u64,
    /// The highest number that arrived, and one: as many packets were sent at least.
    pub expected: u64,
    /// Packets that arrived again, within 65536 packets.
    pub duplicates: u64,
    /// Packets that arrived after one with a higher number (RFC 4737).
    pub reordered: u64,
    /// Jitter (RFC 3550), in nanoseconds.
    pub jitter: f64,
    /// Latencies.
    pub latency: Latencies,
    pacer: Option<Pacer>,
}

impl StreamReport {
    /// Returns how evenly the packets left, if the receiver was told their rate.
    pub fn pace(&self) -> Option<Pace> {
        self.pacer?.pace()
    }

    /// Returns how many packets are missing of `sent` ones, or of those that are known to have been sent.
    pub fn lost(&self, sent: Option<u64>) -> u64 {
        sent.unwrap_or(0).max(self.expected).saturating_sub(self.packets - self.duplicates)
    }
}

/// Counts of the packets of a stream that arrived in an interval.
#[derive(Clone, Debug)]
pub struct IntervalReport {
    /// Number of the stream.
    pub id: u16,
    /// Packets, with duplicates.
    pub packets: u64,
    /// Their bytes.
    pub bytes: u64,
    /// Packets that were found to be missing, less those that came late.
    pub lost: i64,
    /// Packets that arrived again.
    pub duplicates: u64,
    /// Packets that arrived after one with a higher number.
    pub reordered: u64,
    /// Jitter (RFC 3550) at the end, in nanoseconds.
    pub jitter: f64,
    /// Latencies.
    pub latency: Summary,
}

struct Measured {
    total: StreamReport,
    /// The totals at the start of the interval.
    before: (u64, u64, u64, u64, u64),
    interval: Latencies,
    /// A bit for each of the last numbers: it has arrived.
    seen: Vec<u64>,
    transit: Option<u64>,
}

/// Measures all streams that arrive at a port.
pub struct Receiver {
    streams: Vec<Measured>,
    /// The index in `streams`, by number of the stream.
    index: Vec<Option<u16>>,
    /// Packets of further streams.
    ignored: u64,
    /// Packets without a signature.
    unsigned: u64,
    /// Packets per second of each stream, if known.
    pps: Option<f64>,
}

impl Default for Receiver {
    fn default() -> Receiver {
        Receiver { streams: Vec::new(), index: vec![None; 1 << 16], ignored: 0, unsigned: 0, pps: None }
    }
}

impl Receiver {
    /// Makes a receiver of streams that are sent at even distances, `pps` packets per second each.
    pub fn with_rate(pps: f64) -> Receiver {
        Receiver { pps: Some(pps), ..Receiver::default() }
    }

    /// Takes note of a packet of `bytes` bytes that arrived at `now`.
    #[inline]
    pub fn packet(&mut self, signature: Option<Signature>, bytes: usize, now: u64) {
        let Some(signature) = signature else {
            self.unsigned += 1;
            return;
        };
        let index = match self.index[usize::from(signature.stream)] {
            Some(index) => usize::from(index),
            None => match self.begin(signature.stream) {
                Some(index) => index,
                None => {
                    self.ignored += 1;
                    return;
                }
            },
        };
        self.streams[index].packet(&signature, bytes, now, self.pps);
    }

    /// Begins to measure a stream. None if there are too many.
    #[cold]
    fn begin(&mut self, id: u16) -> Option<usize> {
        let index = self.streams.len();
        if index == MAX_STREAMS {
            return None;
        }
        let total = StreamReport {
            id,
            packets: 0,
            bytes: 0,
            expected: 0,
            duplicates: 0,
            reordered: 0,
            jitter: 0.0,
            latency: Latencies::default(),
            pacer: None,
        };
        let seen = vec![0; WINDOW as usize / 64];
        self.streams.push(Measured {
            total,
            before: (0, 0, 0, 0, 0),
            interval: Latencies::default(),
            seen,
            transit: None,
        });
        self.index[usize::from(id)] = Some(index as u16);
        Some(index)
    }

    /// Ends an interval. Returns what arrived in it, by stream.
    pub fn end_interval(&mut self) -> Vec<IntervalReport> {
        self.streams.iter_mut().map(Measured::end_interval).collect()
    }

    /// Returns what arrived, by stream, in the order of their first packets.
    pub fn streams(&self) -> impl Iterator<Item = &StreamReport> {
        self.streams.iter().map(|stream| &stream.total)
    }

    /// Returns the stream of this number, if a packet of it arrived.
    pub fn stream(&self, id: u16) -> Option<&StreamReport> {
        self.index[usize::from(id)].map(|index| &self.streams[usize::from(index)].total)
    }

    /// Returns the packets of all measured streams.
    pub fn packets(&self) -> u64 {
        self.streams().map(|stream| stream.packets).sum()
    }

    /// Returns the packets without a signature, and those of streams beyond [`MAX_STREAMS`].
    pub fn others(&self) -> (u64, u64) {
        (self.unsigned, self.ignored)
    }
}

impl Measured {
    fn packet(&mut self, signature: &Signature, bytes: usize, now: u64, pps: Option<f64>) {
        let total = &mut self.total;
        total.packets += 1;
        total.bytes += bytes as u64;
        // The number nearest to the next one that has these low bits.
        let ahead = signature.number.wrapping_sub(total.expected as u32) as i32;
        let number = total.expected.wrapping_add_signed(i64::from(ahead));
        let (word, bit) = ((number % WINDOW) as usize / 64, 1_u64 << (number % 64));
        if ahead >= 0 && ahead as u64 <= MAX_AHEAD {
            forget(&mut self.seen, total.expected, ahead as u64);
            self.seen[word] |= bit;
            total.expected = number + 1;
            if let Some(pps) = pps {
                match &mut total.pacer {
                    Some(pacer) => pacer.packet(number, signature.time),
                    None => total.pacer = Some(Pacer::new(pps, number, signature.time)),
                }
            }
        } else if ahead < 0 && total.expected - number.min(total.expected) <= WINDOW && self.seen[word] & bit != 0 {
            total.duplicates += 1;
        } else {
            total.reordered += 1;
            if total.expected.wrapping_sub(number) <= WINDOW {
                self.seen[word] |= bit;
            }
        }
        let transit = signature.age(now);
        if let Some(before) = self.transit.replace(transit) {
            total.jitter += (transit.abs_diff(before) as f64 - total.jitter) / 16.0;
        }
        total.latency.record(transit);
        self.interval.record(transit);
    }

    fn end_interval(&mut self) -> IntervalReport {
        let total = &self.total;
        let now = (total.packets, total.bytes, total.lost(None), total.duplicates, total.reordered);
        let before = std::mem::replace(&mut self.before, now);
        let latency = self.interval.summary();
        self.interval.clear();
        IntervalReport {
            id: total.id,
            packets: now.0 - before.0,
            bytes: now.1 - before.1,
            lost: now.2 as i64 - before.2 as i64,
            duplicates: now.3 - before.3,
            reordered: now.4 - before.4,
            jitter: total.jitter,
            latency,
        }
    }
}

/// Clears the bits of `count` numbers from `from` on, which were skipped.
fn forget(seen: &mut [u64], from: u64, count: u64) {
    for number in from..from + (count + 1).min(WINDOW) {
        let number = number % WINDOW;
        seen[number as usize / 64] &= !(1 << (number % 64));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn measure(arrivals: impl IntoIterator<Item = (u64, u64, u64)>) -> StreamReport {
        let mut receiver = Receiver::default();
        for (number, sent, received) in arrivals {
            receiver.packet(Some(Signature { stream: 7, number: number as u32, time: sent }), 60, received);
        }
        receiver.stream(7).unwrap().clone()
    }

    fn numbers(all: &[u64]) -> (u64, u64, u64) {
        let report = measure(all.iter().map(|n| (*n, 0, 0)));
        (report.lost(None), report.duplicates, report.reordered)
    }

    #[test]
    fn loss_order_and_duplicates_are_told_apart() {
        assert_eq!(numbers(&[0, 1, 2]), (0, 0, 0));
        assert_eq!(numbers(&[0, 2, 5]), (3, 0, 0));
        assert_eq!(numbers(&[3]), (3, 0, 0), "streams begin at 0");
        assert_eq!(numbers(&[0, 2, 1, 3]), (0, 0, 1));
        assert_eq!(numbers(&[0, 1, 1, 2, 2, 2]), (0, 3, 0));
        assert_eq!(numbers(&[2, 0, 0, 1]), (0, 1, 2));
        assert_eq!(numbers(&[0, 3, 1, 1]), (1, 1, 1));
        assert_eq!(numbers(&[0, 70_000, 1]), (69_998, 0, 1), "beyond the window");
        assert_eq!(measure([(0, 0, 0), (1, 0, 0)]).lost(Some(5)), 3, "the last three");
    }

    #[test]
    fn numbers_pass_32_bits() {
        let step = 1 << 30;
        let high = 4 * step;
        let report = measure([0, step, 2 * step, 3 * step, high - 1, high, high + 2, high + 1].map(|n| (n, 0, 0)));
        assert_eq!((report.expected, report.packets, report.reordered), (high + 3, 8, 1));
    }

    #[test]
    fn a_window_that_was_passed_is_forgotten() {
        let report = measure((0..3 * WINDOW).filter(|n| n % 3 != 0).map(|n| (n, 0, 0)));
        assert_eq!((report.duplicates, report.reordered, report.lost(Some(3 * WINDOW))), (0, 0, WINDOW));
    }

    /// A forwarder on a clock of its own, with known shares.
    #[test]
    fn what_a_forwarder_did_is_reported() {
        let (mut arrivals, mut dropped, mut twice) = (Vec::new(), 0, 0);
        for number in 0..100_000_u64 {
            let sent = number * 1000;
            if number % 100 == 3 {
                dropped += 1;
                continue;
            }
            // One of a thousand is overtaken by the next five packets.
            let late = if number % 1000 == 500 { 5_500 } else { 0 };
            arrivals.push((sent + 2_000_000 + late, number, sent));
            if number % 250 == 7 {
                twice += 1;
                arrivals.push((sent + 2_000_100, number, sent));
            }
        }
        arrivals.sort_unstable();
        let report = measure(arrivals.iter().map(|(at, number, sent)| (*number, *sent, *at)));
        assert_eq!((report.lost(None), report.duplicates, report.reordered), (dropped, twice, 100));
        let latency = report.latency.summary();
        assert_eq!((latency.min, latency.max), (2_000_000, 2_005_500));
        assert!(latency.percentiles[0].abs_diff(2_000_000) <= 1_000, "{latency:?}");
        assert!((latency.mean - 2_000_005.5).abs() < 1.0, "{latency:?}");
    }

    #[test]
    fn jitter_follows_rfc_3550() {
        let constant = measure((0..100).map(|n| (n, n * 1000, n * 1000 + 500)));
        assert_eq!(constant.jitter, 0.0);
        // Transit times that alternate by 1600 ns: the estimate approaches 1600.
        let alternating = |packets| measure((0..packets).map(|n| (n, n * 10_000, n * 10_000 + 500 + n % 2 * 1600)));
        assert_eq!(alternating(2).jitter, 100.0);
        assert!((alternating(1000).jitter - 1600.0).abs() < 0.001);
    }

    #[test]
    fn intervals_add_up_and_streams_are_bounded() {
        let mut receiver = Receiver::default();
        let packet = |receiver: &mut Receiver, stream, number| {
            receiver.packet(Some(Signature { stream, number, time: 0 }), 60, 1000);
        };
        packet(&mut receiver, 1, 0);
        packet(&mut receiver, 1, 2);
        let first = receiver.end_interval();
        assert_eq!((first[0].packets, first[0].bytes, first[0].lost, first[0].latency.len), (2, 120, 1, 2));
        packet(&mut receiver, 1, 1);
        let second = receiver.end_interval();
        assert_eq!((second[0].packets, second[0].lost, second[0].reordered, second[0].latency.len), (1, -1, 1, 1));
        for stream in 0..=MAX_STREAMS as u16 {
            packet(&mut receiver, stream, 0);
        }
        receiver.packet(None, 60, 0);
        assert_eq!((receiver.streams().count(), receiver.others()), (MAX_STREAMS, (1, 1)));
    }
}
