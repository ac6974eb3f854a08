// SPDX-License-Identifier: BSD-2-Clause
//! Sends records, or samples of packets, to a collector.

mod collector;
mod connection;
mod field;
mod message;
mod nat;
mod session;
mod sflow;
mod tls;
mod udp;

use std::time::{Duration, Instant};

pub(crate) use collector::{Destination, Security, Transport};
pub(crate) use field::{Form, Record, Second};
pub(crate) use message::Domain;
pub(crate) use sflow::Sample;

use collector::{Collector, Sent};
use connection::Connector;
use message::{Stream, Version};
use session::{Message, Session};
use sflow::Samples;
use udp::Udp;
use unetmap_filter::NatEvent;

use crate::sampler::Sampling;

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
    /// `None`: a connection begins with them, and only UDP has them sent again.
    templates_due: Option<Instant>,
    /// By stream: its next message begins with the templates.
    due: Vec<bool>,
    flush_due: Instant,
}

impl Exporter {
    /// Makes an exporter for these sources. By TCP, only for IPFIX.
    ///
    /// # Errors
    /// A sentence: the name of the collector has no address that can be reached, or a file of TLS is wrong.
    pub(crate) fn new(
        (to, security): (&Destination, &Security),
        protocol: Protocol,
        domains: &[Domain],
        sampling: Sampling,
        form: Form,
    ) -> Result<Exporter, String> {
        let version = match protocol {
            Protocol::Ipfix => Some(Version::Ipfix),
            Protocol::Netflow9 => Some(Version::Netflow9),
            Protocol::Sflow => None,
        };
        let streams = |version| domains.iter().map(move |domain| Stream::new(version, domain.clone(), sampling, form));
        let mut streams: Vec<Stream> = version.into_iter().flat_map(streams).collect();
        let (began, mut samples) = (Instant::now(), None);
        let collector = if to.transport == Transport::Udp {
            let udp = Udp::connect(to)?;
            samples = version.is_none().then(|| Samples::new(udp.own_address(), domains.len(), sampling.n));
            Collector::Udp(udp)
        } else {
            let connector = Connector::new(to.clone(), security)?;
            let templates = streams.iter_mut().enumerate().map(|(domain, stream)| {
                stream.add_templates();
                let message = Message::new(domain, &stream.end(0));
                stream.clear();
                message
            });
            Collector::Session(Session::start(connector, templates.collect())?)
        };
        Ok(Exporter {
            templates_due: matches!(collector, Collector::Udp(_)).then_some(began),
            collector,
            streams,
            samples,
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
        self.collector.sent()
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
        let bytes = self.streams[index].bytes_of(record);
        self.make_room(index, bytes, now);
        self.streams[index].add(record);
    }

    /// Adds an event of NAT, which happened at `time`, to the stream of the first source. `now`: as of
    /// [`Exporter::add`].
    pub(crate) fn add_nat(&mut self, event: &NatEvent, time: u64, now: u64) {
        self.make_room(0, nat::BYTES, now);
        self.streams[0].add_nat(event, time);
    }

    /// Sends the message of a stream that has no room for a record of these bytes. One that begins has the templates
    /// that are due.
    fn make_room(&mut self, index: usize, bytes: usize, now: u64) {
        if !self.streams[index].has_room(bytes) {
            self.send(index, now);
        }
        let stream = &mut self.streams[index];
        if stream.is_empty() && std::mem::take(&mut self.due[index]) {
            stream.add_templates();
        }
    }

    /// Sends what is due. `now`: milliseconds since 1970.
    pub(crate) fn tick(&mut self, now: u64, at: Instant) {
        let has_templates = self.templates_due.is_some_and(|due| at >= due);
        if has_templates {
            self.templates_due = Some(at + TEMPLATES_AGAIN);
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
        self.collector.send(index, stream.end(now));
        stream.clear();
    }

    /// Sends all that is left, and waits until a connection has taken it.
    pub(crate) fn finish(&mut self, now: u64) {
        self.flush(now);
        self.collector.finish();
    }
}

/// Sends the datagram that is being written.
fn send_samples(samples: &mut Samples, collector: &mut Collector, now: u64) {
    collector.send(0, samples.end(now));
}
