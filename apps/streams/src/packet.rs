// SPDX-License-Identifier: BSD-2-Clause
//! The packets of a stream: a template, whose changing fields, lengths and checksums are written for each packet.
//!
//! The payload is zeros, or that of a captured packet; the signature at its end changes no checksum, but that of SCTP.
//! So a checksum is computed from the headers that it covers, and a constant for the payload.

use crate::field::{Values, Varying, write_bits};
use crate::layer::Layer;
use crate::signature::{self, Signature, fold, sum};
use crate::template;
use crate::{Random, crc32c};

/// Bytes of the longest packet.
pub const MAX_SIZE: usize = 65_535;
/// The sizes of IMIX (7 : 4 : 1), without FCS: 64, 594 and 1518 bytes with it.
const IMIX: [usize; 12] = [60, 590, 60, 60, 590, 60, 60, 590, 60, 1514, 590, 60];

/// The sizes of packets, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sizes {
    /// All have this size.
    Fixed(usize),
    /// Random sizes, both ends included.
    Range(usize, usize),
    /// Seven packets of 60 bytes to four of 590 and one of 1514.
    Imix,
}

/// A length field, of 16 bits: the bytes of the packet behind `from`.
#[derive(Clone, Copy, Debug)]
struct Length {
    at: usize,
    from: usize,
}

/// A checksum field.
#[derive(Clone, Copy, Debug)]
struct Checksum {
    at: usize,
    /// The part of the headers that it covers: `[from, to)`.
    from: usize,
    to: usize,
    /// The addresses and the protocol of the pseudo header.
    pseudo: Option<(usize, usize, u8)>,
    /// It covers the payload.
    payload: bool,
}

/// The generator of a stream's packets.
#[derive(Clone, Debug)]
pub struct Packet {
    /// The packet at its largest size.
    bytes: Vec<u8>,
    sizes: Sizes,
    shortest: usize,
    varying: Vec<Varying>,
    lengths: Vec<Length>,
    checksums: Vec<Checksum>,
    payload_sum: u16,
    /// Where the SCTP header begins, of a captured packet that has one.
    sctp: Option<usize>,
    size: usize,
    count: usize,
    random: Random,
}

/// A layer with the fields that are set.
pub(crate) type Described = (Layer, Fields);

/// Fields by their names, with their values.
type Fields = Vec<(&'static str, Values)>;

impl Packet {
    /// Builds the packets of these layers.
    pub(crate) fn new(layers: &[Described], sizes: Option<Sizes>, seed: u64) -> Result<Packet, String> {
        match layers.first() {
            Some((Layer::Ethernet, _)) => {}
            _ => return Err("layers: the first one is ether, as in [{ ether = {} }, { ip = {} }, { udp = {} }]".into()),
        }
        let mut bytes = Vec::new();
        let mut at = Vec::new();
        for (i, (layer, _)) in layers.iter().enumerate() {
            let next = layers.get(i + 1).map(|(next, _)| *next);
            if let Some(next) = next.filter(|next| !layer.may_precede(*next)) {
                let can = Layer::ALL.into_iter().filter(|next| layer.may_precede(*next)).map(|next| next.names()[0]);
                let can = can.collect::<Vec<_>>().join(" ");
                let can = if can.is_empty() { "nothing can" } else { &can };
                let (layer, next) = (layer.names()[0], next.names()[0]);
                return Err(format!("layers: {next} cannot follow {layer}; what can: {can}"));
            }
            at.push((*layer, bytes.len()));
            let begin = bytes.len();
            bytes.extend_from_slice(layer.header());
            layer.link(&mut bytes[begin..], next);
            if let (Layer::Icmp, Some((Layer::Ipv6, _))) = (layer, i.checked_sub(1).and_then(|i| layers.get(i))) {
                bytes[begin] = 128; // ICMPv6's echo request
            }
        }
        let all: Vec<_> = at.iter().zip(layers).map(|((layer, at), (_, fields))| (*layer, *at, fields)).collect();
        let varying = set_fields(&mut bytes, &all);
        let headers = bytes.len();
        Packet::finish(bytes, at, (headers, headers), varying, sizes, seed)
    }

    /// Builds packets from a captured one. `changes` are fields of its layers, in the order of the layers.
    pub(crate) fn from_template(
        template: &[u8],
        changes: &[Described],
        sizes: Option<Sizes>,
        seed: u64,
    ) -> Result<Packet, String> {
        let mut bytes = template.to_vec();
        let (at, headers) = template::layers_of(&bytes);
        let sctp = template::sctp(&bytes, &at, headers);
        // A header whose checksum does not depend on the others, so that it need not be a layer.
        let kept = headers + sctp.map_or(0, |_| template::SCTP_HEADER);
        let mut rest = at.iter();
        let mut all = Vec::new();
        for (layer, fields) in changes {
            let found = rest.find(|(found, _)| found == layer);
            let (_, at) = found.ok_or_else(|| {
                let has: Vec<_> = at.iter().map(|(layer, _)| layer.names()[0]).collect();
                let has = has.join(" ");
                format!(
                    "layers: the captured packet has no such layer {} in this order; it has: {has}",
                    layer.names()[0]
                )
            })?;
            all.push((*layer, *at, fields));
        }
        let varying = set_fields(&mut bytes, &all);
        let own = Sizes::Fixed(bytes.len().max(kept + signature::BYTES));
        let packet = Packet::finish(bytes, at, (headers, kept), varying, Some(sizes.unwrap_or(own)), seed)?;
        Ok(Packet { sctp, ..packet })
    }

    /// The layers end at `headers`; what is before `kept` is not payload either.
    fn finish(
        mut bytes: Vec<u8>,
        layers: Vec<(Layer, usize)>,
        (headers, kept): (usize, usize),
        varying: Vec<Varying>,
        sizes: Option<Sizes>,
        seed: u64,
    ) -> Result<Packet, String> {
        let shortest = kept + signature::BYTES;
        let sizes = sizes.unwrap_or(Sizes::Fixed(shortest.max(60)));
        let (smallest, largest) = match sizes {
            Sizes::Fixed(size) => (size, size),
            Sizes::Range(from, to) => (from, to),
            Sizes::Imix => (shortest, 1514.max(shortest)),
        };
        if smallest < shortest {
            return Err(format!(
                "size: packets of {smallest} bytes are too short: headers and signature need {shortest}"
            ));
        }
        if largest > MAX_SIZE {
            return Err(format!("size: packets of {largest} bytes are too long: {MAX_SIZE} at most"));
        }
        // The payload's sum must not depend on the size.
        if sizes != Sizes::Fixed(bytes.len()) {
            bytes.truncate(kept);
        }
        bytes.resize(largest, 0);
        let len = bytes.len();
        bytes[len - signature::BYTES..].fill(0);
        let (lengths, checksums) = fixed_parts(&layers, headers);
        // A tunnel's checksum is zero, as RFC 7348 has it.
        let tunnels = layers.iter().rev().skip(1).filter(|(layer, _)| *layer == Layer::Udp);
        tunnels.for_each(|(_, at)| bytes[at + 6..at + 8].fill(0));
        // Transport headers have an even length, so the words of the payload begin at its start.
        let payload_sum = sum(&bytes[headers..]);
        let mut packet = Packet {
            bytes,
            sizes,
            shortest,
            varying,
            lengths,
            checksums,
            payload_sum,
            sctp: None,
            size: largest,
            count: 0,
            random: Random(seed),
        };
        packet.complete();
        Ok(packet)
    }

    /// Returns the size of the largest packet.
    pub fn largest(&self) -> usize {
        self.bytes.len()
    }

    /// Prepares the next packet. Returns its size.
    pub(crate) fn advance(&mut self) -> usize {
        let size = match self.sizes {
            Sizes::Fixed(size) => size,
            Sizes::Range(from, to) => from + (self.random.next() % (to - from + 1) as u64) as usize,
            Sizes::Imix => IMIX[self.count % IMIX.len()].max(self.shortest),
        };
        self.count = self.count.wrapping_add(1);
        if self.size == size && self.varying.is_empty() {
            return size;
        }
        if self.size != size {
            // The signature of the last packet must not become payload of this one.
            let begin = self.size - signature::BYTES;
            self.bytes[begin..self.size].fill(0);
            self.size = size;
        }
        for varying in &mut self.varying {
            let value = varying.next(&mut self.random);
            write_bits(&mut self.bytes, varying.bit, varying.bits, value);
        }
        self.complete();
        size
    }

    /// Returns the current packet, with this signature.
    pub(crate) fn sign(&mut self, signature: &Signature) -> &[u8] {
        let bytes = &mut self.bytes[..self.size];
        let begin = bytes.len() - signature::BYTES;
        bytes[begin..].copy_from_slice(&signature.encode());
        if let Some(at) = self.sctp {
            let field = at + template::SCTP_HEADER - 4;
            bytes[field..field + 4].fill(0);
            let sum = crc32c::of(&bytes[at..]);
            bytes[field..field + 4].copy_from_slice(&sum);
        }
        bytes
    }

    /// Writes lengths, then checksums.
    fn complete(&mut self) {
        let put = |bytes: &mut [u8], at: usize, word: u16| bytes[at..at + 2].copy_from_slice(&word.to_be_bytes());
        for length in &self.lengths {
            put(&mut self.bytes, length.at, (self.size - length.from) as u16);
        }
        for checksum in &self.checksums {
            put(&mut self.bytes, checksum.at, 0);
            let mut total = u64::from(sum(&self.bytes[checksum.from..checksum.to]));
            if let Some((from, to, protocol)) = checksum.pseudo {
                total += u64::from(sum(&self.bytes[from..to])) + u64::from(protocol);
                total += (self.size - checksum.from) as u64;
            }
            if checksum.payload {
                total += u64::from(self.payload_sum);
            }
            // UDP's zero means that there is none; as a one's complement sum, 0xffff is the same number.
            let value = match !fold(total) {
                0 if checksum.pseudo.is_some() => 0xffff,
                value => value,
            };
            put(&mut self.bytes, checksum.at, value);
        }
    }
}

/// Writes the first values of the fields; returns those that change.
fn set_fields(bytes: &mut [u8], layers: &[(Layer, usize, &Fields)]) -> Vec<Varying> {
    let mut varying = Vec::new();
    for (layer, at, fields) in layers {
        for (name, values) in *fields {
            let Some(field) = layer.fields().iter().find(|field| field.name == *name) else { continue };
            let bit = at * 8 + field.at;
            write_bits(bytes, bit, field.bits, values.first());
            if !values.is_fixed() {
                varying.push(Varying::new(bit, field.bits, values.clone()));
            }
        }
    }
    varying
}

/// Returns the lengths and checksums of the layers, which end at `headers`.
fn fixed_parts(layers: &[(Layer, usize)], headers: usize) -> (Vec<Length>, Vec<Checksum>) {
    let (mut lengths, mut checksums) = (Vec::new(), Vec::new());
    for (i, &(layer, from)) in layers.iter().enumerate() {
        let end = layers.get(i + 1).map_or(headers, |(_, at)| *at);
        let is_last = i + 1 == layers.len();
        // Addresses of the IP header before this one, and whether it is IPv6.
        let ip = i.checked_sub(1).and_then(|i| match layers[i] {
            (Layer::Ipv4, at) => Some((at + 12, at + 20, false)),
            (Layer::Ipv6, at) => Some((at + 8, at + 40, true)),
            _ => None,
        });
        let mut transport = |at: usize, protocol: Option<u8>| {
            let pseudo = protocol.zip(ip).map(|(protocol, (begin, end, _))| (begin, end, protocol));
            checksums.push(Checksum { at: from + at, from, to: end, pseudo, payload: true });
        };
        match layer {
            Layer::Ipv4 => {
                lengths.push(Length { at: from + 2, from });
                checksums.push(Checksum { at: from + 10, from, to: end, pseudo: None, payload: false });
            }
            Layer::Ipv6 => lengths.push(Length { at: from + 4, from: from + 40 }),
            Layer::Udp => {
                lengths.push(Length { at: from + 4, from });
                if is_last {
                    transport(6, Some(17));
                }
            }
            Layer::Tcp => transport(16, Some(6)),
            Layer::Icmp => transport(2, ip.is_some_and(|(_, _, v6)| v6).then_some(58)),
            Layer::Ethernet | Layer::Vlan | Layer::QinQ | Layer::Mpls | Layer::Gre | Layer::Vxlan => {}
        }
    }
    (lengths, checksums)
}
