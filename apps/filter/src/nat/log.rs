// SPDX-License-Identifier: BSD-2-Clause
//! The log of connections that NAT makes and ends, which a program takes out now and then.

/// Most events that wait to be taken; those that find no room are counted.
pub(super) const MAX_EVENTS: usize = 16_384;

/// A connection that was made, or has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NatEvent {
    /// When, as of [`Now`](crate::Now).
    pub millis: u64,
    /// It was made; otherwise it has ended.
    pub begins: bool,
    /// Number of the instance of NAT.
    pub number: u16,
    /// Protocol of IP.
    pub proto: u8,
    /// Address and port inside; for ICMP the port is the identifier.
    pub inside: (u32, u16),
    /// Address and port that the remote end sees.
    pub alias: (u32, u16),
    /// Address and port of the remote end.
    pub remote: (u32, u16),
}
