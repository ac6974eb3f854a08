// SPDX-License-Identifier: BSD-2-Clause
//! Messages of IPFIX (RFC 7011) and NetFlow version 9 (RFC 3954): a header, and sets of templates and of records.

use unetmap_filter::NatEvent;

use crate::sampler::{Choice, Sampling};

use super::field::{Form, REVERSE, Record, TEMPLATES, Template, template_of, templates};
use super::nat;

/// Most bytes of a message: with the headers of UDP and IPv6 it fits an Ethernet frame.
const MAX_MESSAGE: usize = 1452;
/// Numbers of the options templates.
const SAMPLING: u16 = 512;
const INTERFACE: u16 = 513;
/// Bytes of an interface's name in NetFlow, and most in IPFIX.
const MAX_NAME: usize = 64;

/// The protocol of messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Version {
    Ipfix,
    Netflow9,
}

/// Where a stream's records come from.
#[derive(Clone, Debug)]
pub(crate) struct Domain {
    /// Number of the observation domain, and of the interface in its records.
    pub(crate) number: u32,
    pub(crate) name: String,
}

/// A message that is to be sent.
pub(super) struct Ended<'m> {
    pub(super) bytes: &'m [u8],
    /// Its data records, as IPFIX numbers them; those of options are some.
    pub(super) data: u32,
    /// The records of flows and of NAT in it.
    pub(super) flows: u64,
}

/// The messages of an observation domain. One of them is being written.
pub(crate) struct Stream {
    protocol: Version,
    domain: Domain,
    sampling: Sampling,
    templates: [Template; TEMPLATES],
    /// There are records of NAT as well.
    has_nat: bool,
    /// Empty, or with its header and at least one set.
    message: Vec<u8>,
    /// Where the last set begins, if records can be added to it, and its number.
    set: Option<(usize, u16)>,
    /// Records and templates in the message.
    records: u16,
    /// IPFIX: of records in earlier messages; NetFlow: of messages.
    sequence: u32,
    /// Data records of the message, as IPFIX numbers them.
    data: u32,
    /// Records of flows and of NAT in the message.
    flows: u64,
    /// Time in milliseconds since 1970 at which the uptime of NetFlow is 0.
    began: u64,
}

impl Stream {
    pub(crate) fn new(protocol: Version, domain: Domain, sampling: Sampling, form: Form) -> Stream {
        Stream {
            protocol,
            domain,
            sampling,
            templates: templates(protocol == Version::Ipfix, form),
            has_nat: form.nat,
            message: Vec::with_capacity(MAX_MESSAGE),
            set: None,
            records: 0,
            sequence: 0,
            data: 0,
            flows: 0,
            began: 0,
        }
    }

    /// Sets the time at which the uptime of NetFlow is 0.
    pub(crate) fn begin(&mut self, now: u64) {
        self.began = now;
    }

    /// Bytes of a record.
    pub(crate) fn bytes_of(&self, record: Record<'_>) -> usize {
        self.templates[template_of(record.flow.key.family)].bytes
    }

    /// Whether the message has room for a record of these bytes.
    pub(crate) fn has_room(&self, bytes: usize) -> bool {
        // The header of a set, and padding at its end.
        self.message.len() + bytes + 8 <= MAX_MESSAGE
    }

    /// Whether nothing waits to be sent.
    pub(crate) fn is_empty(&self) -> bool {
        self.message.is_empty()
    }

    /// Adds a record, for which there is room.
    pub(crate) fn add(&mut self, record: Record<'_>) {
        let index = template_of(record.flow.key.family);
        self.begin_record(self.templates[index].id);
        for field in &self.templates[index].fields {
            field.put(record, self.began, &mut self.message);
        }
    }

    /// Adds an event of NAT, for which there is room.
    pub(crate) fn add_nat(&mut self, event: &NatEvent, time: u64) {
        self.begin_record(nat::template_of(event));
        nat::put(event, time, &mut self.message);
    }

    /// Counts a record, and begins a set for it unless the last one is of its template.
    fn begin_record(&mut self, template: u16) {
        if self.set.is_none_or(|(_, id)| id != template) {
            self.begin_set(template);
        }
        self.records += 1;
        self.data += 1;
        self.flows += 1;
    }

    /// Begins the message with all templates, the sampling rate and the interface's name. Only in an empty message.
    pub(crate) fn add_templates(&mut self) {
        let is_ipfix = self.protocol == Version::Ipfix;
        self.begin_set(if is_ipfix { 2 } else { 0 });
        for Template { id, fields, .. } in &self.templates {
            put16(&mut self.message, &[*id, fields.len() as u16]);
            for spec in fields.iter().map(|field| field.spec()) {
                let flag = if spec.enterprise.is_some() { 0x8000 } else { 0 };
                put16(&mut self.message, &[spec.id | flag, spec.bytes]);
                if spec.enterprise.is_some() {
                    self.message.extend(REVERSE.to_be_bytes());
                }
            }
        }
        self.records += TEMPLATES as u16;
        for (id, fields) in nat::TEMPLATES.iter().filter(|_| self.has_nat) {
            put16(&mut self.message, &[*id, fields.len() as u16]);
            fields.iter().for_each(|(id, bytes)| put16(&mut self.message, &[*id, *bytes]));
            self.records += 1;
        }
        self.begin_set(if is_ipfix { 3 } else { 1 });
        if is_ipfix {
            // Number, fields, fields of the scope; then number and bytes of each.
            let selection: &[u16] = match self.sampling.by {
                // The algorithm, size and population; or the algorithm, interval and space.
                Choice::Random => &[304, 2, 309, 4, 310, 4],
                Choice::Count => &[304, 2, 305, 4, 306, 4],
                // The algorithm for flows, and their probability.
                Choice::Flow => &[390, 2, 311, 8],
            };
            put16(&mut self.message, &[SAMPLING, 4 + selection.len() as u16 / 2, 1, 149, 4, 302, 2]);
            put16(&mut self.message, selection);
            put16(&mut self.message, &[34, 4, 35, 1]);
            put16(&mut self.message, &[INTERFACE, 2, 1, 10, 4, 82, 0xffff]);
        } else {
            // Number, bytes of the scope's fields, bytes of the others. The scopes: 1 the system, 2 an interface.
            put16(&mut self.message, &[SAMPLING, 4, 8, 1, 4, 34, 4, 35, 1]);
            put16(&mut self.message, &[INTERFACE, 4, 4, 2, 4, 82, MAX_NAME as u16]);
        }
        self.records += 2;
        self.add_options(is_ipfix);
    }

    /// Appends the records of the options templates.
    fn add_options(&mut self, is_ipfix: bool) {
        // RFC 5475: by count (5.1), n out of N at random (5.2.1). RFC 7014: flows, each with the same probability.
        const BY_COUNT: u16 = 1;
        const N_OUT_OF_N: u16 = 3;
        const UNIFORM: u16 = 4;
        // NetFlow's numbers.
        const DETERMINISTIC: u8 = 1;
        const RANDOM: u8 = 2;
        let Sampling { n, by } = self.sampling;
        let number = self.domain.number;
        self.begin_set(SAMPLING);
        self.message.extend(number.to_be_bytes());
        if is_ipfix {
            let (algorithm, words) = match by {
                Choice::Random => (N_OUT_OF_N, [1, n]),
                Choice::Count => (BY_COUNT, [1, n - 1]),
                Choice::Flow => {
                    let bits = (1.0 / f64::from(n)).to_bits();
                    (UNIFORM, [(bits >> 32) as u32, bits as u32])
                }
            };
            put16(&mut self.message, &[1, algorithm]);
            words.iter().for_each(|word| self.message.extend(word.to_be_bytes()));
        }
        self.message.extend(n.to_be_bytes());
        self.message.push(if by == Choice::Count { DETERMINISTIC } else { RANDOM });
        self.begin_set(INTERFACE);
        self.message.extend(number.to_be_bytes());
        let name = shortened(&self.domain.name);
        if is_ipfix {
            self.message.push(name.len() as u8);
        }
        self.message.extend_from_slice(name.as_bytes());
        if !is_ipfix {
            self.message.extend(std::iter::repeat_n(0, MAX_NAME - name.len()));
        }
        self.records += 2;
        self.data += 2;
        self.end_set();
    }

    /// Ends the message, which the caller sends.
    pub(super) fn end(&mut self, now: u64) -> Ended<'_> {
        self.end_set();
        let (seconds, uptime) = ((now / 1000) as u32, now.wrapping_sub(self.began) as u32);
        let (domain, sequence) = (self.domain.number, self.sequence);
        let version: u16 = if self.protocol == Version::Ipfix { 10 } else { 9 };
        let mut header = Vec::with_capacity(HEADER_9);
        put16(&mut header, &[version]);
        match self.protocol {
            Version::Ipfix => {
                put16(&mut header, &[self.message.len() as u16]);
                [seconds, sequence, domain].iter().for_each(|word| header.extend(word.to_be_bytes()));
                self.sequence = sequence.wrapping_add(self.data);
            }
            Version::Netflow9 => {
                put16(&mut header, &[self.records]);
                [uptime, seconds, sequence, domain].iter().for_each(|word| header.extend(word.to_be_bytes()));
                self.sequence = sequence.wrapping_add(1);
            }
        }
        self.message[..header.len()].copy_from_slice(&header);
        self.records = 0;
        Ended { data: std::mem::take(&mut self.data), flows: std::mem::take(&mut self.flows), bytes: &self.message }
    }

    /// Empties the message.
    pub(crate) fn clear(&mut self) {
        self.message.clear();
    }

    /// Begins a set, and ends the one before.
    fn begin_set(&mut self, id: u16) {
        self.end_set();
        if self.message.is_empty() {
            self.message.resize(if self.protocol == Version::Ipfix { HEADER_10 } else { HEADER_9 }, 0);
        }
        let start = self.message.len();
        put16(&mut self.message, &[id, 0]);
        self.set = Some((start, id));
    }

    /// Pads the last set to whole words, and writes its length.
    fn end_set(&mut self) {
        let Some((start, _)) = self.set.take() else { return };
        // A record of a template is longer than the padding.
        self.message.resize(self.message.len().next_multiple_of(4), 0);
        let bytes = (self.message.len() - start) as u16;
        self.message[start + 2..start + 4].copy_from_slice(&bytes.to_be_bytes());
    }
}

/// Bytes of the headers of messages.
const HEADER_10: usize = 16;
const HEADER_9: usize = 20;

fn put16(to: &mut Vec<u8>, numbers: &[u16]) {
    numbers.iter().for_each(|number| to.extend(number.to_be_bytes()));
}

/// The beginning of a name that fits.
fn shortened(name: &str) -> &str {
    let ends = (0..=name.len().min(MAX_NAME)).rev();
    ends.into_iter().find_map(|end| name.get(..end)).unwrap_or("")
}
