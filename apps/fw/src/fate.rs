// SPDX-License-Identifier: BSD-2-Clause
//! The fates of packets, and the reasons of those that are dropped.

use unetmap_shape::{FlowKey, Target};

/// Why packets are dropped, as IPFIX's `forwardingStatus` has it: unknown, by a list, for their header, by a limit; and
/// those that were for the firewall itself.
pub(crate) const DROPPED: u8 = 128;
pub(crate) const DENIED: u8 = 129;
pub(crate) const MALFORMED: u8 = 136;
pub(crate) const LIMITED: u8 = 138;
pub(crate) const CONSUMED: u8 = 195;

/// The fate of a packet.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Fate {
    Pass,
    /// It passes, and its first bytes have changed.
    Changed,
    /// It has changed, and returns to the port that it came from.
    Back,
    /// It is dropped, and this is why.
    Drop(u8),
    Link(Target, FlowKey),
}
