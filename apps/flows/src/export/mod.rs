// SPDX-License-Identifier: BSD-2-Clause
//! Sends records, or samples of packets, to a collector by UDP.

mod collector;
mod field;
mod message;
mod sflow;

use std::time::{Duration, Instant};

pub(crate) use field::Record;
pub(crate) use message::Domain;
pub(crate) use sflow::Sample;

use collector::{Collector, Sent};
use message::{Stream, Version};
use sflow::Samples;

/// Time after which templates are sent again: a collector that began later knows none.
const TEMPLATES_AGAIN: Duration = Duration::from_secs(20);
/// Longest time that a record waits for its message to become full.
const MAX_WAIT: Duration = Duration::from_secs(1);

/// The protocol to a collector.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Protocol {
    Ipfix,
    Netflow9,
    /// Version 5: chosen packets, and no records.
    Sflow,
}

/// A collector, and the streams to it.
pub(crate) struct Exporter {
    collector: Collector,
    /// By source; empty for sFlow.
    streams: Vec<Stream>,
    /// Of sFlow.
    samples: Option<Samples>,
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
        let version = match protocol {
            Protocol::Ipfix => Some(Version::Ipfix),
            Protocol::Netflow9 => Some(Version::Netflow9),
            Protocol::Sflow => None,
        };
        let streams = |version| domains.iter().map(move |domain| Stream::new(version, domain.clone(), sampling, both));
        let collector = Collector::connect(to)?;
        let samples = version.is_none().then(|| Samples::new(collector.own_address(), domains.len(), sampling));
        let began = Instant::now();
        Ok(Exporter {
            collector,
            streams: version.into_iter().flat_map(streams).collect(),
            samples,
            templates_due: began,
            due: vec![false; domains.len()],
            flush_due: began + MAX_WAIT,
        })
    }

    /// Sets the time of the first packet, in milliseconds since 1970, at which the uptime of NetFlow and sFlow is 0.
    pub(crate) fn begin(&mut self, now: u64) {
        self.samples.iter_mut().for_each(|samples| samples.begin(now));
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

    /// Adds a chosen packet, for sFlow alone. `now`: milliseconds since 1970.
    #[inline(always)]
    pub(crate) fn sample(&mut self, sample: Sample<'_>, now: u64) {
        let Some(samples) = &mut self.samples else { return };
        if !samples.has_room() {
            send_samples(samples, &mut self.collector, now);
        }
        samples.add(sample);
    }

    /// Adds a record to its stream, which sFlow does not have. `now`: milliseconds since 1970.
    pub(crate) fn add(&mut self, record: Record<'_>, now: u64) {
        let index = usize::from(record.flow.key.source);
        if self.samples.is_some() {
            return;
        }
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
        let has_templates = at >= self.templates_due;
        if has_templates {
            self.templates_due = at + TEMPLATES_AGAIN;
            self.due.fill(true);
        }
        if has_templates || at >= self.flush_due {
            self.flush_due = at + MAX_WAIT;
            self.flush(now);
        }
        if has_templates {
            self.collector.rest();
        }
    }

    /// Sends all messages that are begun, and templates that are due.
    pub(crate) fn flush(&mut self, now: u64) {
        if let Some(samples) = self.samples.as_mut().filter(|samples| !samples.is_empty()) {
            send_samples(samples, &mut self.collector, now);
        }
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

/// Sends the datagram that is being written.
fn send_samples(samples: &mut Samples, collector: &mut Collector, now: u64) {
    let (datagram, count) = samples.end(now);
    collector.send(datagram, count);
}
