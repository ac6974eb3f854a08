// SPDX-License-Identifier: BSD-2-Clause
//! Output of `unetmap emulate`: a line each second and direction, and a summary.

use hdrhistogram::Histogram;
use serde_json::{Value, json};
use tool_common::{link, print};
use unetmap_shape::Counts;

/// Percentiles of delays, in milliseconds.
#[derive(Clone, Copy)]
pub(crate) struct Delays {
    percentiles: [f64; 4],
}

impl Delays {
    /// `histogram` is in microseconds.
    pub(crate) fn of(histogram: &Histogram<u64>) -> Delays {
        let ms = |part| histogram.value_at_quantile(part) as f64 / 1000.0;
        Delays { percentiles: [0.5, 0.9, 0.99, 1.0].map(ms) }
    }

    fn json(&self) -> Value {
        let [p50, p90, p99, max] = self.percentiles;
        json!({"p50": p50, "p90": p90, "p99": p99, "max": max})
    }

    fn text(&self) -> String {
        let [p50, p90, p99, max] = self.percentiles;
        format!("delay {p50:.3} ms, 90 % {p90:.3}, 99 % {p99:.3}, max {max:.3}")
    }
}

/// One second of one direction.
pub(crate) struct Report {
    pub(crate) way: &'static str,
    /// Seconds since the begin.
    pub(crate) time: f64,
    /// Arrived, per second.
    pub(crate) packets: u64,
    pub(crate) bits: u64,
    /// Packets that came.
    pub(crate) offered: u64,
    pub(crate) dropped: u64,
    /// Packets in the queue.
    pub(crate) queued: u64,
    /// Packets in the queue and on the way.
    pub(crate) held: u64,
    pub(crate) delays: Delays,
}

/// Parts of 100; 0 of nothing.
fn percent(part: u64, whole: u64) -> f64 {
    if whole == 0 { 0.0 } else { part as f64 * 100.0 / whole as f64 }
}

impl Report {
    pub(crate) fn print(&self, json: bool) {
        let Report { way, time, packets, bits, offered, dropped, queued, held, delays } = self;
        let line = if json {
            json!({
                "event": "second", "way": way, "time": time, "packets": packets, "bits": bits, "offered": offered,
                "dropped": dropped, "queued": queued, "held": held, "delay_ms": delays.json(),
            })
            .to_string()
        } else {
            format!(
                "{time:6.1} s {way:3} {packets:>9} packets/s {:>9.3} Mbit/s, {}, loss {:.2} %, queue {queued}",
                *bits as f64 / 1e6,
                delays.text(),
                percent(*dropped, *offered)
            )
        };
        print(&format!("{line}\n"));
    }
}

/// All of one direction.
pub(crate) struct Total {
    pub(crate) way: &'static str,
    pub(crate) counts: Counts,
    pub(crate) arrived: u64,
    pub(crate) arrived_bytes: u64,
    pub(crate) no_memory: u64,
    pub(crate) too_long: u64,
    pub(crate) delays: Delays,
    /// Packets that a later one of their flow has overtaken.
    pub(crate) overtaken: u64,
    /// Median and 99th percentile of how much later than due packets were sent, in nanoseconds.
    pub(crate) late: [u64; 2],
}

impl Total {
    fn json(&self) -> Value {
        let c = &self.counts;
        json!({
            "offered": c.packets, "arrived": self.arrived, "bytes": self.arrived_bytes,
            "dropped": {
                "loss": c.lost, "full": c.full, "managed": c.managed, "memory": self.no_memory, "long": self.too_long,
            },
            "marked": c.marked, "duplicated": c.duplicated, "corrupted": c.corrupted, "reordered": c.reordered,
            "overtaken": self.overtaken, "delay_ms": self.delays.json(), "late_us": {"p50": self.late[0] as f64 / 1e3, "p99": self.late[1] as f64 / 1e3},
        })
    }

    fn text(&self, seconds: f64) -> String {
        let c = &self.counts;
        format!(
            "{}: {} of {} packets, {:.3} Mbit/s, {}; dropped: {} by loss, {} by a full queue, {} by its manager, {} for \
             memory, {} too long; {} marked, {} doubled, {} corrupted, {} reordered, {} overtaken; late by {:.1} us, 99 % {:.1}",
            self.way,
            self.arrived,
            c.packets,
            self.arrived_bytes as f64 * 8.0 / seconds.max(0.001) / 1e6,
            self.delays.text(),
            c.lost,
            c.full,
            c.managed,
            self.no_memory,
            self.too_long,
            c.marked,
            c.duplicated,
            c.corrupted,
            c.reordered,
            self.overtaken,
            self.late[0] as f64 / 1e3,
            self.late[1] as f64 / 1e3
        )
    }
}

/// Prints the summary. `left` packets could not be sent at the end.
pub(crate) fn summary([out, back]: &[Total; 2], seconds: f64, left: usize, json: bool) {
    let text = if json {
        let ways = json!({"out": out.json(), "in": back.json()});
        let mut object = json!({"event": "summary", "seconds": seconds, "left": left, "ways": ways});
        link::add_down(&mut object);
        object.to_string()
    } else {
        let left =
            if left > 0 { format!("\n{left} packets were not taken by their port in time") } else { String::new() };
        format!("Emulated for {seconds:.2} seconds\n{}\n{}{left}", out.text(seconds), back.text(seconds))
    };
    print(&format!("{text}\n"));
}
