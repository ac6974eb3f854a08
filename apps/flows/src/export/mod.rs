// SPDX-License-Identifier: BSD-2-Clause
//! Sends records to a collector by UDP.

mod collector;
mod field;
mod message;

use std::time::{Duration, Instant};

pub(crate) use field::Record;
pub(crate) use message::{Domain, Protocol};

use collector::{Collector, Sent};
use message::Stream;

/// Time after which templates are sent again: a collector that began later knows none.
const TEMPLATES_AGAIN: Duration = Duration::from_secs(20);
/// Longest time that a record waits for its message to become full.
const MAX_WAIT: Duration = Duration::from_secs(1);

/// A collector, and the streams to it.
pub(crate) struct Exporter {
    collector: Collector,
    /// By source.
    streams: Vec<Stream>,
    templates_due: Instant,
    /// By stream: its next message begins with the templates.
    due: Vec<bool>,
    flush_due: Instant,
}

impl Exporter {
    /// Makes an exporter for these sources.
    ///
    /// # Errors
    /// A sentence: the name of the collector has no address that can be reached.
    pub(crate) fn new(
        to: &str,
        protocol: Protocol,
        domains: &[Domain],
        sampling: u32,
        both: bool,
    ) -> Result<Exporter, String> {
        let stream = |domain: &Domain| Stream::new(protocol, domain.clone(), sampling, both);
        let began = Instant::now();
        Ok(Exporter {
            collector: Collector::connect(to)?,
            streams: domains.iter().map(stream).collect(),
            templates_due: began,
            due: vec![false; domains.len()],
            flush_due: began + MAX_WAIT,
        })
    }

    /// Sets the time of the first packet, in milliseconds since 1970, at which the uptime of NetFlow is 0.
    pub(crate) fn begin(&mut self, now: u64) {
        self.streams.iter_mut().for_each(|stream| stream.begin(now));
    }

    /// As of [`Collector::pace`].
    pub(crate) fn pace(&mut self) {
        self.collector.pace();
    }

    /// The numbers of messages and records so far.
    pub(crate) fn sent(&self) -> Sent {
        self.collector.sent
    }

    /// Adds a record to its stream. `now`: milliseconds since 1970.
    pub(crate) fn add(&mut self, record: Record<'_>, now: u64) {
        let index = usize::from(record.flow.key.source);
        if !self.streams[index].has_room(record) {
            self.send(index, now);
        }
        let stream = &mut self.streams[index];
        if stream.is_empty() && std::mem::take(&mut self.due[index]) {
            stream.add_templates();
        }
        stream.add(record);
    }

    /// Sends what is due. `now`: milliseconds since 1970.
    pub(crate) fn tick(&mut self, now: u64, at: Instant) {
        if at >= self.templates_due {
            self.templates_due = at + TEMPLATES_AGAIN;
            self.due.fill(true);
        }
        if at >= self.flush_due {
            self.flush_due = at + MAX_WAIT;
            self.flush(now);
        }
    }

    /// Sends all messages that are begun, and templates that are due.
    pub(crate) fn flush(&mut self, now: u64) {
        for index in 0..self.streams.len() {
            if self.streams[index].is_empty() && std::mem::take(&mut self.due[index]) {
                self.streams[index].add_templates();
            }
            self.send(index, now);
        }
    }

    fn send(&mut self, index: usize, now: u64) {
        let stream = &mut self.streams[index];
        if stream.is_empty() {
            return;
        }
        let (message, records) = stream.end(now);
        self.collector.send(message, records);
        stream.clear();
    }
}
