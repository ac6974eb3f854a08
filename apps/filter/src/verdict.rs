// SPDX-License-Identifier: BSD-2-Clause
//! The verdict of a rule set on a packet.

use crate::rule::Rule;

/// The fate of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// It passes.
    Accept,
    /// It is dropped.
    Deny,
    /// It is dropped, and its sender gets an ICMP error with this code.
    Unreach(u8),
    /// As `Unreach`, for IPv6.
    Unreach6(u8),
    /// It is dropped, and its sender gets a TCP reset.
    Reset,
    /// As `Reset`, for IPv6 only.
    Reset6,
    /// It passes after it went through this link; it is dropped if there is none.
    Link(unetmap_shape::Target),
    /// It is translated by this NAT instance ([`crate::Engine::translate`]).
    Nat(u16),
    /// It is a segment of a connection whose handshake is completed for the server, by the rule at this place
    /// ([`crate::Engine::proxy`]).
    SynProxy(u32),
}

/// A change that a rule makes to a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Change {
    /// The DSCP becomes this, 0..=63.
    Dscp(u8),
    /// The maximum segment size that a SYN names becomes this, in bytes, if it is larger.
    Mss(u16),
}

/// An effect of a rule besides its verdict.
#[derive(Clone, Copy, Debug)]
pub enum Effect<'r> {
    /// The rule logs it.
    Log(&'r Rule),
    /// The port of a rule `tee` with this number gets a copy of the packet as it came.
    Copy(u16),
    /// The packet is changed before it goes on ([`Change::write`]). Tests of later rules see it changed.
    Change(Change),
}
