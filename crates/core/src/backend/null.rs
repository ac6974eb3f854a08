// SPDX-License-Identifier: BSD-2-Clause
//! A port without a data path: memory, rings, and syncs that move nothing (`NR_REG_NULL`).

use std::io;

use unetmap_mem::{Pos, Span};

use super::ring::RingBackend;
use super::sides::{Delivered, InvalidPeerIndex, NextRing, RingParts, Rx, Tx, WakeupSource};

/// Both sides of a ring.
pub(crate) struct Null;

/// Constructs a side of a ring.
pub(super) fn open(parts: &RingParts<'_>) -> Option<RingBackend> {
    Some(if parts.is_tx() { RingBackend::Tx(Box::new(Null)) } else { RingBackend::Rx(Box::new(Null)) })
}

impl Tx for Null {
    fn send(&self, _span: Span) -> u32 {
        0
    }

    fn completed(&self, known: Pos, _sent: Pos) -> Result<Pos, InvalidPeerIndex> {
        Ok(known)
    }

    fn peer_moved(&self, _known: Pos) -> Option<u32> {
        None
    }

    fn wakeup(&self) -> Option<&dyn WakeupSource> {
        None
    }

    fn go_on(&self, _next: NextRing<'_>) -> io::Result<()> {
        Ok(())
    }
}

impl Rx for Null {
    fn release(&self, _span: Span) -> u32 {
        0
    }

    fn deliver(&self, _held: Pos, received: Pos) -> Result<Delivered, InvalidPeerIndex> {
        Ok(Delivered { to: received, bad: 0, bytes: 0 })
    }

    fn peer_moved(&self, _taken: Pos) -> Option<u32> {
        None
    }

    fn wakeup(&self) -> Option<&dyn WakeupSource> {
        None
    }

    fn go_on(&self, _next: NextRing<'_>) -> io::Result<()> {
        Ok(())
    }
}
