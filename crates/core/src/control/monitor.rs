// SPDX-License-Identifier: BSD-2-Clause
//! Requests about the monitors of a port: a program requests them one after the other.
//!
//! ```text
//! request   the session, its key, the monitor returned last (0 at first)
//! reply     the next monitor: a head, then its mirrored rings; empty after the last.
//!           Descriptors: the mirror's memory, its ring states, its channels, then each ring's doorbell
//! ```
//! See `sync::mirror` for what a program does with them.

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use crate::control::binding::BoundPool;
use crate::control::wire::{ControlRequest, Kind};
use crate::error::errno;

/// Asks for the next monitor of a session of the caller's own.
#[derive(Clone, Copy, PartialEq, Eq, Debug, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct NextMonitorRequest {
    /// The session.
    pub session: u64,
    /// The session's key, known only to processes that received its binding.
    pub key: u64,
    /// The monitor that was returned last; 0 asks for the first.
    pub after: u64,
}

impl ControlRequest for NextMonitorRequest {
    const KIND: Kind = Kind(8);

    fn encode(&self) -> Vec<u8> {
        self.as_bytes().to_vec()
    }

    fn decode(payload: &[u8]) -> Result<NextMonitorRequest, i32> {
        NextMonitorRequest::read_from_bytes(payload).map_err(|_| errno::EPROTO)
    }
}

/// The fixed part of the reply.
#[derive(Clone, Copy, Debug, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct MonitorHead {
    /// Identifies the monitor; never 0.
    pub monitor: u64,
    /// The mirror's interfaces (unused), rings, buffers.
    pub pools: [BoundPool; 3],
    /// Ring states, and channels.
    pub states: u32,
    /// Bytes of the channels' page.
    pub channels_bytes: u32,
}

/// A monitored ring and the mirror ring that its packets go to.
#[derive(Clone, Copy, Debug, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct MirroredRing {
    /// The mirror ring, bytes from the start of the mirror's memory.
    pub offset: u64,
    /// Its slots.
    pub slots: u32,
    /// Index of its channel and of its state.
    pub channel: u32,
    /// The monitored ring: its number within its direction.
    pub id: u16,
    /// The monitored ring: 0 transmit, 1 receive.
    pub dir: u16,
    /// 1: the mirror is in the monitored ring's region, and buffers are exchanged; 0: packets are copied.
    pub zero_copy: u32,
}

/// The reply: one monitor of a session's rings.
#[derive(Clone, Debug)]
pub struct MonitorReply {
    /// The fixed part.
    pub head: MonitorHead,
    /// The rings that it monitors.
    pub rings: Vec<MirroredRing>,
}

impl MonitorReply {
    /// Descriptors before those of the rings: the mirror's memory, its ring states, its channels.
    pub const FIXED_FDS: usize = 3;

    /// Returns the payload.
    pub fn encode(&self) -> Vec<u8> {
        let mut out = self.head.as_bytes().to_vec();
        out.extend_from_slice(self.rings.as_bytes());
        out
    }

    /// Parses a payload; `None` if the sizes do not fit.
    pub fn decode(bytes: &[u8]) -> Option<MonitorReply> {
        let (head, rest) = MonitorHead::read_from_prefix(bytes).ok()?;
        Some(MonitorReply { head, rings: <[MirroredRing]>::ref_from_bytes(rest).ok()?.to_vec() })
    }
}
