// SPDX-License-Identifier: BSD-2-Clause
//! Back ends: how the slots of one ring move. One file each; the smallest is `null`.
//!
//! A sync passes spans of slots to a back end, under the ring's lock, and the back end moves them in bulk. A back end
//! never reads the program's pointers: the sync validates them before.
//!
//! Each back end constructs its side of a ring itself ([`open_ring`]) from the daemon's binding. A new back end is a
//! file of its own, a line in [`open_ring`], and a number in `control::binding::BackendKind`.

use crate::control::binding::BackendKind;
use pipe::{PipeRx, PipeTx};
pub(crate) use ring::RingBackend;
pub(crate) use sides::{NextRing, RingParts, Rx, Tx, WakeupSource};

mod monitor;
mod nic;
mod null;
mod packet;
pub(crate) mod peer_doorbell;
pub(crate) mod pipe;
pub(crate) mod region_cache;
mod ring;
mod sides;
mod sink;
mod timed;
pub(crate) mod times;
pub(crate) mod vale;

/// Constructs the side of a ring that the daemon's reply describes; `None` if the description is inconsistent.
pub(crate) fn open_ring(parts: &RingParts<'_>) -> Option<RingBackend> {
    match BackendKind::from_raw(parts.bound.backend)? {
        BackendKind::Null => null::open(parts),
        BackendKind::Pipe if parts.is_tx() => Some(RingBackend::PipeTx(Box::new(PipeTx::open(parts)?))),
        BackendKind::Pipe => Some(RingBackend::PipeRx(Box::new(PipeRx::open(parts)?))),
        BackendKind::Nic => nic::open(parts),
        BackendKind::Vale => vale::open(parts),
        BackendKind::Monitor => monitor::open(parts),
        BackendKind::Sink => sink::open(parts),
        BackendKind::Packet => packet::open(parts),
    }
}
