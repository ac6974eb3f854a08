// SPDX-License-Identifier: BSD-2-Clause
//! The log of connections that NAT makes and ends, and could not make, which a program takes out now and then.

/// Most events that wait to be taken; those that find no room are counted.
pub(super) const MAX_EVENTS: usize = 16_384;
/// Milliseconds from one connection that could not be made to the next one that is in the log, for the same reason.
pub(super) const FAILURES_EVERY: u64 = 1000;

/// A change of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NatChange {
    /// A connection was made.
    Begins,
    /// It has ended.
    Ends,
    /// None was made: no port is free.
    NoPort,
    /// None was made: the table is full of so many connections.
    Full(u32),
}

/// A connection that was made, has ended, or could not be made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NatEvent {
    /// When, as of [`Now`](crate::Now).
    pub millis: u64,
    /// Its change.
    pub change: NatChange,
    /// Number of the instance of NAT.
    pub number: u16,
    /// Protocol of IP.
    pub proto: u8,
    /// Address and port inside; for ICMP the port is the identifier.
    pub inside: (u32, u16),
    /// Address and port that the remote end sees, or was to see.
    pub alias: (u32, u16),
    /// Address and port of the remote end.
    pub remote: (u32, u16),
}
