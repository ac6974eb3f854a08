// SPDX-License-Identifier: BSD-2-Clause
//! Counters, periodic reports and the summary, as text and as JSON.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use serde_json::{Map, Value, json};
use tool_common::generator::{Totals, common_members, per_second, scaled};

use crate::options::Config;

/// Bytes that Ethernet adds to each packet: preamble, FCS and inter-frame gap.
const FRAMING: u64 = 24;
/// Number of intervals in the statistics of -A.
const AVERAGED_RATES: usize = 60;

/// One thread's counters. Only that thread writes them, once per batch or per few batches; the reporter reads them.
/// They have cache lines of their own to avoid false sharing.
#[derive(Debug, Default)]
#[repr(align(128))]
pub(crate) struct Counters {
    packets: AtomicU64,
    bytes: AtomicU64,
    batches: AtomicU64,
    /// Minimum number of free (tx) or filled (rx) slots found in a ring during the interval.
    min_space: AtomicU32,
    /// The interval of `min_space`.
    interval: AtomicU32,
}

impl Counters {
    /// Adds one batch, before which `space` slots were available. Must be called by the thread that owns the counters
    /// only.
    pub(crate) fn add(&self, now: &IntervalNumber, packets: u64, bytes: u64, space: u32) {
        self.add_batches(now, (packets, bytes, 1), space);
    }

    /// Adds several batches. `space` is the minimum of the slots available before each.
    pub(crate) fn add_batches(&self, now: &IntervalNumber, (packets, bytes, batches): (u64, u64, u64), space: u32) {
        let add = |counter: &AtomicU64, n: u64| counter.store(counter.load(Relaxed) + n, Relaxed);
        add(&self.packets, packets);
        add(&self.bytes, bytes);
        add(&self.batches, batches);
        let interval = now.0.load(Relaxed);
        if interval != self.interval.load(Relaxed) {
            self.interval.store(interval, Relaxed);
            self.min_space.store(space, Relaxed);
        } else if space < self.min_space.load(Relaxed) {
            self.min_space.store(space, Relaxed);
        }
    }

    fn totals(&self) -> Totals {
        Totals {
            packets: self.packets.load(Relaxed),
            bytes: self.bytes.load(Relaxed),
            batches: self.batches.load(Relaxed),
        }
    }
}

/// The number of the current interval. Only the reporter changes it.
#[derive(Debug)]
#[repr(align(128))]
pub(crate) struct IntervalNumber(AtomicU32);

impl IntervalNumber {
    pub(crate) fn new() -> IntervalNumber {
        // Differs from the initial value of the counters, so that a thread's first batch resets its minimum.
        IntervalNumber(AtomicU32::new(1))
    }
}

/// Returns the sums over all threads.
pub(crate) fn totals_of(counters: &[Counters]) -> Totals {
    counters.iter().map(Counters::totals).fold(Totals::default(), |a, b| Totals {
        packets: a.packets + b.packets,
        bytes: a.bytes + b.bytes,
        batches: a.batches + b.batches,
    })
}

/// The format of reports.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Style {
    pub(crate) raw_units: bool,
    pub(crate) framing: bool,
    pub(crate) stats: bool,
    pub(crate) json: bool,
}

impl Style {
    pub(crate) fn of(config: &Config) -> Style {
        Style { raw_units: config.raw_units, framing: config.framing, stats: config.stats, json: config.json }
    }
}

fn ratio(n: u64, of: u64) -> f64 {
    if of == 0 { 0.0 } else { n as f64 / of as f64 }
}

/// Makes the periodic reports.
pub(crate) struct Reporter<'a> {
    style: Style,
    function: &'static str,
    counters: &'a [Counters],
    interval: &'a IntervalNumber,
    before: Totals,
    rates: VecDeque<f64>,
}

impl<'a> Reporter<'a> {
    pub(crate) fn new(
        style: Style,
        function: &'static str,
        counters: &'a [Counters],
        interval: &'a IntervalNumber,
    ) -> Reporter<'a> {
        Reporter { style, function, counters, interval, before: Totals::default(), rates: VecDeque::new() }
    }

    /// Ends an interval of length `time`. Returns its report.
    pub(crate) fn line(&mut self, time: Duration) -> String {
        let (now, min_space) = self.end_interval(time);
        if self.style.json {
            return Value::Object(self.json(now, time, min_space)).to_string();
        }
        let mut line = interval_line(self.style, now, time, min_space);
        if self.style.stats {
            let (mean, deviation) = mean_and_deviation(&self.rates);
            let raw = self.style.raw_units;
            line += &format!(" mean {}pps stddev {}pps", scaled(mean, raw), scaled(deviation, raw));
        }
        line
    }

    /// Ends an interval of length `time`. Returns the members of its JSON report.
    pub(crate) fn members(&mut self, time: Duration) -> Map<String, Value> {
        let (now, min_space) = self.end_interval(time);
        self.json(now, time, min_space)
    }

    /// Starts the next interval. Returns the counts of the one that ended, and its minimum number of slots.
    fn end_interval(&mut self, time: Duration) -> (Totals, u32) {
        let totals = totals_of(self.counters);
        let number = self.interval.0.load(Relaxed);
        let fresh = self.counters.iter().filter(|c| c.interval.load(Relaxed) == number);
        let min_space = fresh.map(|c| c.min_space.load(Relaxed)).min().unwrap_or(0);
        self.interval.0.store(number.wrapping_add(1), Relaxed);
        let now = totals.since(self.before);
        self.before = totals;

        let pps = per_second(now.packets, time);
        if self.rates.len() == AVERAGED_RATES {
            self.rates.pop_front();
        }
        self.rates.push_back(pps);
        (now, min_space)
    }

    fn json(&self, now: Totals, time: Duration, min_space: u32) -> Map<String, Value> {
        let mut object = common_members("interval", self.function, now, time);
        object.insert("avg_batch".into(), json!(ratio(now.packets, now.batches)));
        object.insert("min_space".into(), json!(min_space));
        if self.style.stats {
            let (mean, deviation) = mean_and_deviation(&self.rates);
            object.insert("pps_mean".into(), json!(mean));
            object.insert("pps_stddev".into(), json!(deviation));
        }
        object
    }
}

fn interval_line(style: Style, now: Totals, time: Duration, min_space: u32) -> String {
    let n = |v: f64| scaled(v, style.raw_units);
    let framing = if style.framing { now.packets * FRAMING } else { 0 };
    format!(
        "{}pps ({}pkts {}bps in {} usec) {:.2} avg_batch {min_space} min_space",
        n(per_second(now.packets, time)),
        n(now.packets as f64),
        n(per_second(8 * (now.bytes + framing), time)),
        time.as_micros(),
        ratio(now.packets, now.batches),
    )
}

fn mean_and_deviation(rates: &VecDeque<f64>) -> (f64, f64) {
    let n = rates.len().max(1) as f64;
    let mean = rates.iter().sum::<f64>() / n;
    let variance = rates.iter().map(|r| (r - mean).powi(2)).sum::<f64>() / n;
    (mean, variance.sqrt())
}

/// Formats the summary. `verb` is "Sent" or "Received".
pub(crate) fn summary(style: Style, verb: &str, totals: Totals, time: Duration) -> String {
    if totals.packets == 0 {
        return format!("{verb} nothing.");
    }
    let n = |v: f64| scaled(v, style.raw_units);
    let size = (totals.bytes + totals.packets / 2) / totals.packets;
    format!(
        "{verb} {} packets {} bytes {} events {size} bytes each in {:.2} seconds.\n\
         Speed: {}pps Bandwidth: {}bps (raw {}bps). Average batch: {:.2} pkts",
        totals.packets,
        totals.bytes,
        totals.batches,
        time.as_secs_f64(),
        n(per_second(totals.packets, time)),
        n(per_second(8 * totals.bytes, time)),
        n(per_second(8 * (totals.bytes + totals.packets * FRAMING), time)),
        ratio(totals.packets, totals.batches),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    const STYLE: Style = Style { raw_units: false, framing: false, stats: false, json: false };

    #[test]
    fn the_interval_line_has_netmaps_format() {
        let now = Totals { packets: 14_881_000, bytes: 892_860_000, batches: 29_064 };
        let time = Duration::from_micros(1_000_500);
        assert_eq!(
            interval_line(STYLE, now, time, 12),
            "14.874 Mpps (14.881 Mpkts 7.139 Gbps in 1000500 usec) 512.01 avg_batch 12 min_space"
        );
        let framed = Style { framing: true, raw_units: true, ..STYLE };
        let one = Totals { packets: 2, bytes: 120, batches: 1 };
        assert_eq!(
            interval_line(framed, one, Duration::from_secs(1), 0),
            "2.000 pps (2.000 pkts 1344.000 bps in 1000000 usec) 2.00 avg_batch 0 min_space"
        );
        assert_eq!(
            interval_line(STYLE, Totals::default(), Duration::ZERO, 0),
            "0.000 pps (0.000 pkts 0.000 bps in 0 usec) 0.00 avg_batch 0 min_space"
        );
    }

    #[test]
    fn the_summary_has_netmaps_format() {
        let totals = Totals { packets: 1_000_000, bytes: 60_000_000, batches: 2_000 };
        assert_eq!(
            summary(STYLE, "Sent", totals, Duration::from_millis(500)),
            "Sent 1000000 packets 60000000 bytes 2000 events 60 bytes each in 0.50 seconds.\n\
             Speed: 2.000 Mpps Bandwidth: 960.000 Mbps (raw 1.344 Gbps). Average batch: 500.00 pkts"
        );
        assert_eq!(summary(STYLE, "Sent", Totals::default(), Duration::ZERO), "Sent nothing.");
        assert_eq!(summary(STYLE, "Received", Totals::default(), Duration::ZERO), "Received nothing.");
    }

    #[test]
    fn counters_are_summed_over_threads_and_the_minimum_is_per_interval() {
        let counters = [Counters::default(), Counters::default()];
        let interval = IntervalNumber::new();
        let mut reporter = Reporter::new(STYLE, "tx", &counters, &interval);
        counters[0].add(&interval, 10, 600, 100);
        counters[0].add(&interval, 10, 600, 50);
        counters[1].add(&interval, 5, 300, 70);
        let line = reporter.line(Duration::from_secs(1));
        assert_eq!(line, "25.000 pps (25.000 pkts 12.000 Kbps in 1000000 usec) 8.33 avg_batch 50 min_space");
        counters[1].add(&interval, 1, 60, 90);
        assert!(reporter.line(Duration::from_secs(1)).ends_with(" 1.00 avg_batch 90 min_space"));
        assert!(reporter.line(Duration::from_secs(1)).ends_with(" 0.00 avg_batch 0 min_space"));
        assert_eq!(totals_of(&counters), Totals { packets: 26, bytes: 1560, batches: 4 });
    }

    #[test]
    fn statistics_cover_the_last_intervals() {
        let counters = [Counters::default()];
        let interval = IntervalNumber::new();
        let mut reporter = Reporter::new(Style { stats: true, ..STYLE }, "rx", &counters, &interval);
        for _ in 0..AVERAGED_RATES {
            reporter.line(Duration::from_secs(1));
        }
        for _ in 0..AVERAGED_RATES {
            counters[0].add(&interval, 2000, 1, 1);
            reporter.line(Duration::from_secs(1));
        }
        counters[0].add(&interval, 2000, 1, 1);
        let line = reporter.line(Duration::from_secs(1));
        assert!(line.ends_with(" mean 2.000 Kpps stddev 0.000 pps"), "{line}");
    }

    #[test]
    fn json_reports_are_valid_json() {
        let counters = [Counters::default()];
        let interval = IntervalNumber::new();
        let mut reporter = Reporter::new(Style { json: true, ..STYLE }, "tx", &counters, &interval);
        counters[0].add(&interval, 10, 600, 3);
        let value: Value = serde_json::from_str(&reporter.line(Duration::from_millis(500))).unwrap();
        assert_eq!(value["event"], "interval");
        assert_eq!(value["function"], "tx");
        assert_eq!((&value["packets"], &value["bytes"], &value["batches"]), (&json!(10), &json!(600), &json!(1)));
        assert_eq!((&value["pps"], &value["min_space"]), (&json!(20.0), &json!(3)));
    }
}
