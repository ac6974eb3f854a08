// SPDX-License-Identifier: BSD-2-Clause
//! Merges the streams of a port: the packet that is due first leaves first.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use crate::signature::Signature;
use crate::stream::Stream;

/// Counts of the packets of a stream that were sent.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SentCounts {
    /// Packets.
    pub packets: u64,
    /// Their bytes.
    pub bytes: u64,
}

/// All streams of a port.
#[derive(Debug)]
pub struct Sender {
    streams: Vec<(Stream, SentCounts)>,
    /// The next departure of each stream that has not ended; of equal ones the stream of the lowest index.
    due: BinaryHeap<Reverse<(u64, usize)>>,
}

impl Sender {
    /// Returns a sender; times count from its start.
    pub fn new(streams: Vec<Stream>) -> Sender {
        let due = streams.iter().enumerate().filter_map(|(i, stream)| Some(Reverse((stream.schedule.next()?, i))));
        let due = due.collect();
        Sender { streams: streams.into_iter().map(|stream| (stream, SentCounts::default())).collect(), due }
    }

    /// Returns when the next packet is due, in nanoseconds; None if all streams have ended.
    pub fn due(&self) -> Option<u64> {
        self.due.peek().map(|Reverse((at, _))| *at)
    }

    /// Takes the packet that is due next. `time` is written into its signature.
    pub fn take(&mut self, time: u64) -> Option<&[u8]> {
        let Reverse((_, index)) = self.due.pop()?;
        let (stream, sent) = self.streams.get_mut(index)?;
        let size = stream.packet.advance();
        let number = sent.packets as u32; // its low 32 bits
        sent.packets += 1;
        sent.bytes += size as u64;
        stream.schedule.sent(size);
        if let Some(at) = stream.schedule.next() {
            self.due.push(Reverse((at, index)));
        }
        Some(stream.packet.sign(&Signature { stream: stream.id, number, time }))
    }

    /// Returns each stream with what was sent of it.
    pub fn streams(&self) -> impl Iterator<Item = (&Stream, SentCounts)> {
        self.streams.iter().map(|(stream, sent)| (stream, *sent))
    }

    /// Returns the size of the largest packet of all streams.
    pub fn largest(&self) -> usize {
        self.streams.iter().map(|(stream, _)| stream.packet.largest()).max().unwrap_or(0)
    }
}
