// SPDX-License-Identifier: BSD-2-Clause
//! Why packets do not pass, and how many did not.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// Why a packet does not pass.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Reason {
    /// A header that no host sends, or a wrong checksum of IPv4.
    Malformed,
    /// From a source that no host may have.
    Bogon,
    /// From a source of a list.
    Listed,
    /// From a port whose services answer more than they are asked.
    Amplification,
    /// A rule of the user denies it.
    Rule,
    /// More than its source may send.
    Source,
    /// More than its source's prefix may send.
    Prefix,
    /// More than its destination may get.
    Destination,
    /// A segment of a TCP handshake that was answered, or that belongs to no connection.
    Handshake,
    /// It has no room within GRE, or with a tag.
    TooBig,
}

impl Reason {
    /// All of them, in their order.
    pub(crate) const ALL: [Reason; 10] = [
        Reason::Malformed,
        Reason::Bogon,
        Reason::Listed,
        Reason::Amplification,
        Reason::Rule,
        Reason::Source,
        Reason::Prefix,
        Reason::Destination,
        Reason::Handshake,
        Reason::TooBig,
    ];

    /// Its name in reports.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Reason::Malformed => "malformed",
            Reason::Bogon => "bogon",
            Reason::Listed => "listed",
            Reason::Amplification => "amplification",
            Reason::Rule => "rule",
            Reason::Source => "source",
            Reason::Prefix => "prefix",
            Reason::Destination => "destination",
            Reason::Handshake => "handshake",
            Reason::TooBig => "too-big",
        }
    }

    /// Whether connections that harm nobody have such packets, too: their sources are none of an attack.
    pub(crate) fn is_usual(self) -> bool {
        matches!(self, Reason::Handshake | Reason::TooBig)
    }
}

/// Packets and bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Sum {
    pub(crate) packets: u64,
    pub(crate) bytes: u64,
}

impl Sum {
    pub(crate) fn add(&mut self, other: Sum) {
        self.packets += other.packets;
        self.bytes += other.bytes;
    }

    pub(crate) fn since(self, before: Sum) -> Sum {
        Sum { packets: self.packets - before.packets, bytes: self.bytes - before.bytes }
    }
}

/// A sum that one thread adds to, and others read.
#[derive(Debug, Default)]
pub(crate) struct Counter {
    packets: AtomicU64,
    bytes: AtomicU64,
}

impl Counter {
    pub(crate) fn add(&self, sum: Sum) {
        add(&self.packets, sum.packets);
        add(&self.bytes, sum.bytes);
    }

    pub(crate) fn get(&self) -> Sum {
        Sum { packets: self.packets.load(Relaxed), bytes: self.bytes.load(Relaxed) }
    }
}

/// Adds to a counter that only this thread writes.
pub(crate) fn add(counter: &AtomicU64, n: u64) {
    counter.store(counter.load(Relaxed) + n, Relaxed);
}

/// Counts of the thread that moves packets. All that is received is passed or dropped.
#[derive(Debug, Default)]
pub(crate) struct Totals {
    /// From the first port.
    pub(crate) received: Counter,
    pub(crate) passed: Counter,
    /// Passed packets that left within GRE or with a tag, with the bytes of frames as they left.
    pub(crate) returned: Counter,
    pub(crate) dropped: [Counter; Reason::ALL.len()],
    /// From the second port, and those of them that belong to no connection of the proxy.
    pub(crate) back: Counter,
    pub(crate) back_dropped: Counter,
    /// Segments of the proxy and ICMP errors that were sent, and those for which there was no room.
    pub(crate) replies: AtomicU64,
    pub(crate) lost_replies: AtomicU64,
    /// Sources, prefixes and destinations whose places others took.
    pub(crate) evicted: AtomicU64,
    /// Dropped packets that were chosen for the file and are not in it.
    pub(crate) unrecorded: AtomicU64,
}

impl Totals {
    /// Dropped packets, by reason.
    pub(crate) fn dropped(&self) -> [Sum; Reason::ALL.len()] {
        self.dropped.each_ref().map(Counter::get)
    }
}
