// SPDX-License-Identifier: BSD-2-Clause
//! One stream: what is sent, and when.

use crate::packet::Packet;
use crate::schedule::Schedule;

/// A stream that was described completely and consistently.
#[derive(Clone, Debug)]
pub struct Stream {
    /// Its number in signatures, from 1.
    pub id: u16,
    /// Its name in reports.
    pub name: String,
    /// The packet that is sent.
    pub packet: Packet,
    /// When.
    pub schedule: Schedule,
}
