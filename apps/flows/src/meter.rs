// SPDX-License-Identifier: BSD-2-Clause
//! Counts packets in the cache, and hands the records that end to the outputs.
//!
//! ```text
//! frame --Sampler--> chosen --Parser--> packet --batch--> Cache --record--> collector, lines, tables
//! ```

use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::cache::{Cache, End, Flow, Timeouts, Watch};
use crate::export::{Exporter, Record, Sample};
use crate::history::History;
use crate::metrics::Published;
use crate::packet::{Keys, Packet, Parser};
use crate::report::Lines;
use crate::sampler::{Choice, Sampler, Sampling};
use crate::top::Top;

/// Packets whose flows are looked up together.
const BATCH: usize = 64;
/// Milliseconds between two looks at what is due, while packets come.
const TICK: u64 = 100;

/// Packets, and bytes of their frames.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Volume {
    pub(crate) packets: u64,
    pub(crate) bytes: u64,
}

impl Volume {
    pub(crate) fn add(&mut self, other: Volume) {
        self.packets += other.packets;
        self.bytes += other.bytes;
    }

    pub(crate) fn since(self, before: Volume) -> Volume {
        Volume { packets: self.packets - before.packets, bytes: self.bytes - before.bytes }
    }

    /// All of a flow.
    pub(crate) fn of(flow: &Flow) -> Volume {
        Volume { packets: flow.packets.iter().sum(), bytes: flow.frames.iter().sum() }
    }
}

/// The destinations of records.
pub(crate) struct Outputs {
    pub(crate) exporter: Option<Exporter>,
    pub(crate) lines: Option<Lines>,
    pub(crate) top: Option<Top>,
    pub(crate) history: Option<History>,
    /// Records by [`End::ALL`].
    ended: [u64; 4],
    /// Packets in these records.
    recorded: Volume,
    /// Milliseconds since 1970.
    now: u64,
}

impl Watch for Outputs {
    fn ended(&mut self, place: usize, flow: &Flow, end: End) {
        End::ALL.iter().zip(&mut self.ended).filter(|(each, _)| **each == end).for_each(|(_, records)| *records += 1);
        self.recorded.add(Volume::of(flow));
        let record = Record { flow, end };
        if let Some(exporter) = &mut self.exporter {
            exporter.add(record, self.now);
        }
        if let Some(lines) = &mut self.lines {
            lines.add(record);
        }
        if let Some(top) = &mut self.top {
            top.add(place, flow, true);
        }
        if let Some(history) = &mut self.history {
            history.add(flow);
        }
    }

    fn goes_on(&mut self, place: usize, flow: &Flow) {
        if let Some(top) = &mut self.top {
            top.add(place, flow, false);
        }
    }

    fn sees_live(&self) -> bool {
        self.top.is_some()
    }
}

/// Counts packets.
pub(crate) struct Meter {
    pub(crate) sampler: Sampler,
    parser: Parser,
    cache: Cache,
    batch: Vec<Packet>,
    pub(crate) outputs: Outputs,
    /// For other threads.
    pub(crate) published: Option<Published>,
    /// All packets, by source.
    seen: Vec<Volume>,
    /// The chosen ones.
    chosen: Volume,
    /// Time of the last packet, in milliseconds since 1970: times do not go back.
    now: u64,
    /// Times of the first packet, and when something was last done that is due.
    began: u64,
    ticked: u64,
}

impl Meter {
    pub(crate) fn new(flows: usize, timeouts: Timeouts, sampling: Sampling, keys: Keys, sources: usize) -> Meter {
        Meter {
            sampler: Sampler::new(sampling),
            parser: Parser::new(keys),
            cache: Cache::new(flows, timeouts),
            batch: Vec::with_capacity(BATCH),
            outputs: Outputs {
                exporter: None,
                lines: None,
                top: None,
                history: None,
                ended: [0; 4],
                recorded: Volume::default(),
                now: 0,
            },
            published: None,
            seen: vec![Volume::default(); sources],
            chosen: Volume::default(),
            now: 0,
            began: 0,
            ticked: 0,
        }
    }

    /// Number of places for flows.
    pub(crate) fn places(&self) -> usize {
        self.cache.places()
    }

    /// Takes note of packets of a source, and of the bytes of their frames.
    #[inline(always)]
    pub(crate) fn see(&mut self, source: u16, packets: u64, bytes: u64) {
        let seen = &mut self.seen[usize::from(source)];
        seen.packets += packets;
        seen.bytes += bytes;
    }

    /// All packets of all sources.
    pub(crate) fn seen(&self) -> Volume {
        self.seen.iter().fold(Volume::default(), |mut sum, source| {
            sum.add(*source);
            sum
        })
    }

    /// Counts a chosen packet at the time of [`Meter::advance`]. `bytes`: its first
    /// [`HEADER_BYTES`](unetmap_filter::HEADER_BYTES), or all. `dropped`: as of [`Packet`].
    #[inline]
    pub(crate) fn count(&mut self, bytes: &[u8], len: usize, source: u16, dropped: u8) {
        let mut packet = self.parser.parse(bytes, len, source, self.now);
        packet.dropped = dropped;
        if self.sampler.sampling.by == Choice::Flow && !self.sampler.takes_flow(&packet.key) {
            return;
        }
        self.chosen.packets += 1;
        self.chosen.bytes += u64::from(packet.frame);
        if let Some(exporter) = &mut self.outputs.exporter {
            let pool = self.seen[usize::from(source)].packets;
            exporter.sample(Sample { bytes, len: packet.frame, source, pool }, self.now);
        }
        self.batch.push(packet);
        if self.batch.len() >= BATCH {
            self.count_batch();
        }
    }

    fn count_batch(&mut self) {
        self.cache.fetch(&self.batch);
        for packet in self.batch.drain(..) {
            self.cache.count(&packet, &mut self.outputs);
        }
    }

    /// Sets the time of the packets that follow, in milliseconds since 1970; ends the records of idle flows, and sends
    /// what is due.
    #[inline]
    pub(crate) fn advance(&mut self, now: u64) {
        if now <= self.now {
            return;
        }
        self.count_batch();
        self.note_rates();
        if self.now == 0 {
            self.began = now;
            self.outputs.exporter.iter_mut().for_each(|exporter| exporter.begin(now));
        }
        (self.now, self.outputs.now) = (now, now);
        self.cache.sweep(now, &mut self.outputs);
        if now - self.ticked >= TICK {
            self.ticked = now;
            self.send_due();
        }
    }

    /// The packets since the last call came at the time of the last [`Meter::advance`].
    fn note_rates(&mut self) {
        if self.outputs.history.is_some() && self.now > 0 {
            let (now, seen) = (self.now, self.seen());
            self.outputs.history.iter_mut().for_each(|history| history.note(now, seen));
        }
    }

    /// Sends what is due by the clock.
    fn send_due(&mut self) {
        let Outputs { exporter, lines, now, .. } = &mut self.outputs;
        exporter.iter_mut().for_each(|exporter| exporter.tick(*now, Instant::now()));
        lines.iter_mut().for_each(Lines::flush);
        if let Some(published) = &self.published {
            published.set(self.summary());
        }
    }

    /// No port waits for the program any more: the collector and the reader of lines are given time.
    pub(crate) fn wait_for_readers(&mut self) {
        self.outputs.exporter.iter_mut().for_each(Exporter::pace);
        self.outputs.lines.iter_mut().for_each(|lines| lines.waits = true);
    }

    /// Ends all records.
    pub(crate) fn finish(&mut self) {
        self.wait_for_readers();
        self.count_batch();
        self.note_rates();
        self.cache.end_all(End::Forced, &mut self.outputs);
        let now = self.now;
        self.outputs.exporter.iter_mut().for_each(|exporter| exporter.finish(now));
        self.outputs.lines.iter_mut().for_each(Lines::finish);
    }

    /// The tables since the last call, which was `time` ago; `None`: since the first packet.
    pub(crate) fn tables(&mut self, time: Option<Duration>) -> Option<String> {
        let time = time.unwrap_or(Duration::from_millis(self.now - self.began));
        self.outputs.top.as_mut().map(|top| top.tables(self.cache.len, time))
    }

    /// The page about packets of these ports or files, if one is wanted.
    pub(crate) fn page(&mut self, names: &str) -> Option<String> {
        let (seen, chosen) = (self.seen(), self.chosen);
        let note = match self.sampler.sampling.n {
            1 => String::new(),
            n => format!("One of {n} was chosen: the tables are of {} packets.", chosen.packets),
        };
        self.outputs.history.as_mut().map(|history| history.page(names, seen, &note))
    }

    /// The summary, as JSON.
    pub(crate) fn summary(&self) -> Value {
        let seen = self.seen();
        let Outputs { exporter, lines, ended, recorded, .. } = &self.outputs;
        let records: serde_json::Map<String, Value> =
            End::ALL.iter().zip(ended).map(|(end, records)| (end.name().to_owned(), (*records).into())).collect();
        let mut summary = json!({
            "event": "summary", "packets": seen.packets, "bytes": seen.bytes,
            "sampled_packets": self.chosen.packets, "sampled_bytes": self.chosen.bytes,
            "malformed": self.parser.malformed, "flows": self.cache.len, "records": records,
            "recorded_packets": recorded.packets, "recorded_bytes": recorded.bytes,
        });
        if let Some(exporter) = exporter {
            let sent = exporter.sent();
            summary["collector"] = json!({"messages": sent.messages, "records": sent.records,
                "unsent_messages": sent.unsent_messages, "unsent_records": sent.unsent, "refused": sent.refused,
                "connections": sent.connections});
        }
        if let Some(lines) = lines {
            summary["unprinted_records"] = lines.lost.into();
        }
        summary
    }

    /// The summary, for people.
    pub(crate) fn summary_text(&self) -> String {
        let seen = self.seen();
        let Outputs { exporter, lines, ended, .. } = &self.outputs;
        let mut text = format!("{} packets, {} bytes", seen.packets, seen.bytes);
        if self.chosen != seen {
            text += &format!(", of which {} packets were chosen", self.chosen.packets);
        }
        let [idle, active, forced, evicted] = ended;
        text += &format!(
            "; {} records: {idle} idle, {active} by age, {forced} at the end, {evicted} early as the cache was full",
            ended.iter().sum::<u64>()
        );
        if self.parser.malformed > 0 {
            text += &format!("; {} malformed packets", self.parser.malformed);
        }
        if let Some(exporter) = exporter {
            let sent = exporter.sent();
            text += &format!("; {} records sent in {} messages", sent.records, sent.messages);
            if sent.unsent_messages > 0 {
                text += &format!(", {} in {} messages were not", sent.unsent, sent.unsent_messages);
            }
            if sent.refused > 0 {
                text += &format!("; the collector was not there {} times", sent.refused);
            }
            if sent.connections > 1 {
                text += &format!("; {} connections were made", sent.connections);
            }
        }
        if let Some(lost) = lines.as_ref().map(|lines| lines.lost).filter(|lost| *lost > 0) {
            text += &format!("; {lost} records were not printed, as the reader was slow");
        }
        text
    }
}
