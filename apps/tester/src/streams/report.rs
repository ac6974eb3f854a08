// SPDX-License-Identifier: BSD-2-Clause
//! Reports of streams: lines, a table at the end, and JSON.

use std::collections::BTreeMap;
use std::time::Duration;

use serde_json::{Map, Value, json};
use tool_common::generator::{Totals, common_members, scaled};
use tool_common::link;
use unetmap_streams::{IntervalReport, Receiver, Sender, SentCounts, StreamReport, Summary};

use super::engine::{Done, Interval};
use super::percentiles;

/// Makes the reports of a run.
pub(crate) struct Report<'a> {
    names: BTreeMap<u16, String>,
    json: bool,
    port: &'a str,
}

impl<'a> Report<'a> {
    pub(crate) fn new(names: BTreeMap<u16, String>, json: bool, port: &'a str) -> Report<'a> {
        Report { names, json, port }
    }

    fn name(&self, id: u16) -> String {
        self.names.get(&id).cloned().unwrap_or_else(|| format!("stream{id}"))
    }

    /// Returns a line for each stream from which packets arrived in the interval, or were found to be missing.
    pub(crate) fn interval(&self, interval: &Interval) -> Vec<String> {
        let moved = interval.streams.iter().filter(|stream| stream.packets > 0 || stream.lost != 0);
        moved.map(|stream| self.interval_line(stream, interval.time)).collect()
    }

    fn interval_line(&self, stream: &IntervalReport, time: Duration) -> String {
        let totals = Totals { packets: stream.packets, bytes: stream.bytes, batches: 0 };
        if self.json {
            let mut object = self.members("interval", stream.id, totals, time);
            object.insert("lost".into(), json!(stream.lost));
            arrival_members(&mut object, stream.duplicates, stream.reordered, stream.jitter, &stream.latency);
            return Value::Object(object).to_string();
        }
        format!(
            "{}: {}pps, {} lost, {} reordered, {} twice, latency {} us, jitter {} us",
            self.name(stream.id),
            scaled(stream.packets as f64 / time.as_secs_f64(), false),
            stream.lost,
            stream.reordered,
            stream.duplicates,
            microseconds(stream.latency.mean),
            microseconds(stream.jitter),
        )
    }

    fn members(&self, event: &str, id: u16, totals: Totals, time: Duration) -> Map<String, Value> {
        let mut object = common_members(event, "streams", totals, time);
        object.remove("batches");
        object.insert("port".into(), json!(self.port));
        object.insert("stream".into(), json!(id));
        object.insert("name".into(), json!(self.name(id)));
        object
    }

    /// Returns the report at the end of a run.
    pub(crate) fn end(&self, done: &Done, sender: Option<&Sender>) -> String {
        let mut rows: BTreeMap<u16, (Option<SentCounts>, Option<&StreamReport>)> = BTreeMap::new();
        for (stream, sent) in sender.iter().flat_map(|sender| sender.streams()) {
            rows.entry(stream.id).or_default().0 = Some(sent);
        }
        for stream in done.receiver.iter().flat_map(Receiver::streams) {
            rows.entry(stream.id).or_default().1 = Some(stream);
        }
        match self.json {
            true => self.end_json(done, &rows),
            false => self.table(done, &rows),
        }
    }

    fn end_json(&self, done: &Done, rows: &BTreeMap<u16, (Option<SentCounts>, Option<&StreamReport>)>) -> String {
        let mut text = String::new();
        for (id, (sent, stream)) in rows {
            let sent_packets = sent.map(|sent| sent.packets);
            let counted = sent.unwrap_or_default();
            let totals = Totals { packets: counted.packets, bytes: counted.bytes, batches: 0 };
            let mut object = self.members("stream", *id, totals, done.sending);
            if sent.is_none() {
                ["packets", "bytes", "seconds", "pps", "bps"].iter().for_each(|key| drop(object.remove(*key)));
            }
            if done.receiver.is_some() {
                let lost = stream.map_or(sent_packets.unwrap_or(0), |stream| stream.lost(sent_packets));
                object.insert("lost".into(), json!(lost));
                object.insert("received".into(), json!(stream.map_or(0, |stream| stream.packets)));
                object.insert("received_bytes".into(), json!(stream.map_or(0, |stream| stream.bytes)));
            }
            if let Some(s) = stream {
                arrival_members(&mut object, s.duplicates, s.reordered, s.jitter, &s.latency.summary());
            }
            text += &format!("{}\n", Value::Object(object));
        }
        let packets = |rows: &BTreeMap<u16, (Option<SentCounts>, _)>| {
            rows.values().filter_map(|(sent, _)| *sent).fold(Totals::default(), |all, sent| Totals {
                packets: all.packets + sent.packets,
                bytes: all.bytes + sent.bytes,
                batches: 0,
            })
        };
        let mut summary = common_members("summary", "streams", packets(rows), done.sending);
        summary.remove("batches");
        summary.insert("port".into(), json!(self.port));
        summary.insert("late_ns".into(), json!(done.late));
        summary.insert("left".into(), json!(done.unreleased));
        if let Some(receiver) = &done.receiver {
            let (unsigned, ignored) = receiver.others();
            summary.insert("received".into(), json!(receiver.packets()));
            summary.insert("unsigned".into(), json!(unsigned));
            summary.insert("ignored".into(), json!(ignored));
        }
        let mut summary = Value::Object(summary);
        link::add_down(&mut summary);
        text + &format!("{summary}\n")
    }

    fn table(&self, done: &Done, rows: &BTreeMap<u16, (Option<SentCounts>, Option<&StreamReport>)>) -> String {
        let mut text = format!(
            "{:<16} {:>12} {:>12} {:>10} {:>8} {:>9} {:>9} {:>9} {:>9} {:>9} {:>9}\n",
            "stream",
            "sent",
            "received",
            "lost",
            "twice",
            "reordered",
            "min us",
            "mean us",
            "p99 us",
            "max us",
            "jitter us"
        );
        for (id, (sent, stream)) in rows {
            let sent = sent.map(|sent| sent.packets);
            let known = |n: Option<u64>| n.map_or("-".into(), |n| n.to_string());
            text += &format!("{:<16} {:>12} ", self.name(*id), known(sent));
            match stream {
                Some(s) => {
                    let l = s.latency.summary();
                    let times = [l.min as f64, l.mean, l.percentiles[2] as f64, l.max as f64, s.jitter];
                    let times: Vec<_> = times.iter().map(|ns| format!("{:>9}", microseconds(*ns))).collect();
                    let counts = (s.packets, s.lost(sent), s.duplicates, s.reordered);
                    text += &format!("{:>12} {:>10} {:>8} {:>9} ", counts.0, counts.1, counts.2, counts.3);
                    text += &times.join(" ");
                }
                None if done.receiver.is_some() => text += &format!("{:>12} {:>10}", 0, known(sent)),
                None => text += &format!("{:>12}", "-"),
            }
            text.push('\n');
        }
        if rows.values().any(|(sent, _)| sent.is_some()) {
            let (time, late) = (done.sending.as_secs_f64(), microseconds(done.late as f64));
            text += &format!("Sent in {time:.2} seconds; a packet left at most {late} us late.\n");
        }
        let (unsigned, ignored) = done.receiver.as_ref().map_or((0, 0), Receiver::others);
        if unsigned + ignored > 0 {
            text += &format!("Also received: {unsigned} packets without a signature, {ignored} of too many streams.\n");
        }
        text
    }
}

fn arrival_members(object: &mut Map<String, Value>, duplicates: u64, reordered: u64, jitter: f64, latency: &Summary) {
    object.insert("duplicates".into(), json!(duplicates));
    object.insert("reordered".into(), json!(reordered));
    object.insert("jitter_ns".into(), json!(jitter));
    if latency.len > 0 {
        object.insert("latency_ns".into(), percentiles(latency));
    }
}

fn microseconds(ns: f64) -> String {
    format!("{:.1}", ns / 1000.0)
}
