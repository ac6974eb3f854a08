// SPDX-License-Identifier: BSD-2-Clause
//! Datagrams of sFlow version 5: the first bytes of chosen packets, which the collector parses.

use std::net::IpAddr;

use super::message::Ended;

/// Most bytes of a datagram: with the headers of UDP and IPv6 it fits an Ethernet frame.
const MAX_DATAGRAM: usize = 1452;
/// Most bytes of a packet in a sample.
pub(crate) const MAX_HEADER: usize = 128;
/// Bytes of a sample without the packet's.
const SAMPLE: usize = 64;
/// Bytes of a datagram before its samples, with an IPv6 address.
const MAX_HEAD: usize = 40;
/// Bytes of a frame's checksum, which are part of its length and not sampled.
const FCS: u32 = 4;

const _: () = assert!(MAX_HEAD + SAMPLE + MAX_HEADER <= MAX_DATAGRAM);

/// A chosen packet.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Sample<'p> {
    pub(crate) bytes: &'p [u8],
    /// Bytes of the frame, without FCS.
    pub(crate) len: u32,
    /// Index of its source.
    pub(crate) source: u16,
    /// Packets of this source so far.
    pub(crate) pool: u64,
}

/// The datagrams of a program. One of them is being written.
pub(super) struct Samples {
    agent: IpAddr,
    sampling: u32,
    /// Number of the next datagram, and of the next sample by source.
    sequence: u32,
    numbers: Vec<u32>,
    /// The samples.
    body: Vec<u8>,
    count: u32,
    began: u64,
    datagram: Vec<u8>,
}

impl Samples {
    pub(super) fn new(agent: IpAddr, sources: usize, sampling: u32) -> Samples {
        Samples {
            agent,
            sampling,
            sequence: 0,
            numbers: vec![0; sources],
            body: Vec::with_capacity(MAX_DATAGRAM),
            count: 0,
            began: 0,
            datagram: Vec::with_capacity(MAX_DATAGRAM),
        }
    }

    /// Sets the time at which the uptime is 0.
    pub(super) fn begin(&mut self, now: u64) {
        self.began = now;
    }

    pub(super) fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// Whether the datagram has room for a sample.
    pub(super) fn has_room(&self) -> bool {
        MAX_HEAD + self.body.len() + SAMPLE + MAX_HEADER <= MAX_DATAGRAM
    }

    /// Adds a sample, for which there is room.
    pub(super) fn add(&mut self, sample: Sample<'_>) {
        let bytes = &sample.bytes[..sample.bytes.len().min(MAX_HEADER)];
        let padded = bytes.len().next_multiple_of(4) as u32;
        let number = &mut self.numbers[usize::from(sample.source)];
        *number = number.wrapping_add(1);
        let interface = u32::from(sample.source) + 1;
        let words = [
            // A flow sample, and its bytes from here on.
            1,
            SAMPLE as u32 - 8 + padded,
            // Its number, the source, the rate, packets it was chosen from, and those that were dropped.
            *number,
            interface,
            self.sampling,
            sample.pool as u32,
            0,
            // Interfaces by which it came and left (unknown); one record.
            interface,
            0,
            1,
            // The packet's first bytes: their number, of Ethernet, bytes of the frame, and those cut from its end.
            1,
            16 + padded,
            1,
            sample.len + FCS,
            FCS,
        ];
        words.iter().for_each(|word: &u32| self.body.extend(word.to_be_bytes()));
        self.body.extend((bytes.len() as u32).to_be_bytes());
        self.body.extend_from_slice(bytes);
        self.body.resize(self.body.len().next_multiple_of(4), 0);
        self.count += 1;
    }

    /// Ends the datagram.
    pub(super) fn end(&mut self, now: u64) -> Ended<'_> {
        self.datagram.clear();
        let mut put = |word: u32| self.datagram.extend(word.to_be_bytes());
        put(5);
        match self.agent {
            IpAddr::V4(address) => {
                put(1);
                put(address.to_bits());
            }
            IpAddr::V6(address) => {
                put(2);
                address
                    .octets()
                    .chunks(4)
                    .for_each(|word| put(u32::from_be_bytes([word[0], word[1], word[2], word[3]])));
            }
        }
        // The part of the agent, the datagram's number, the uptime in milliseconds.
        [0, self.sequence, now.wrapping_sub(self.began) as u32, self.count].into_iter().for_each(put);
        self.datagram.extend_from_slice(&self.body);
        self.sequence = self.sequence.wrapping_add(1);
        let count = std::mem::take(&mut self.count);
        self.body.clear();
        Ended { bytes: &self.datagram, data: 0, flows: count.into() }
    }
}
