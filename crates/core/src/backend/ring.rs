// SPDX-License-Identifier: BSD-2-Clause
//! One side of a ring, of whichever back end.

use std::io;

use unetmap_mem::{ChannelRef, Pos, Slots};

use super::pipe::{PipeRx, PipeTx};
use super::sides::{NextRing, Rx, Tx};

/// One side of a ring. Pipes have variants of their own: a call that the compiler can inline costs a small batch half
/// as much.
pub(crate) enum RingBackend {
    PipeTx(Box<PipeTx>),
    PipeRx(Box<PipeRx>),
    Tx(Box<dyn Tx>),
    Rx(Box<dyn Rx>),
    /// A transmit ring that cannot send.
    ReadOnly,
}

impl RingBackend {
    /// Returns the transmit side, if it is one.
    #[inline(always)]
    pub(crate) fn tx(&self) -> Option<&dyn Tx> {
        match self {
            RingBackend::PipeTx(tx) => Some(&**tx),
            RingBackend::Tx(tx) => Some(&**tx),
            RingBackend::PipeRx(_) | RingBackend::Rx(_) | RingBackend::ReadOnly => None,
        }
    }

    /// Returns the receive side, if it is one.
    #[inline(always)]
    pub(crate) fn rx(&self) -> Option<&dyn Rx> {
        match self {
            RingBackend::PipeRx(rx) => Some(&**rx),
            RingBackend::Rx(rx) => Some(&**rx),
            RingBackend::PipeTx(_) | RingBackend::Tx(_) | RingBackend::ReadOnly => None,
        }
    }

    /// Returns the channel that [`PolledRings`](unetmap_mem::PolledRings) need of a ring.
    pub(crate) fn channel(&self) -> Option<ChannelRef> {
        self.tx().and_then(Tx::channel).or_else(|| self.rx()?.channel())
    }

    /// As [`Tx::give_up`].
    pub(crate) fn give_up(&self) -> io::Result<()> {
        match (self.tx(), self.rx()) {
            (Some(tx), _) => tx.give_up(),
            (None, Some(rx)) => rx.give_up(),
            (None, None) => Ok(()),
        }
    }

    /// Goes on with the ring of the next daemon's port.
    pub(crate) fn go_on(&self, next: NextRing<'_>) -> io::Result<()> {
        match (self.tx(), self.rx()) {
            (Some(tx), _) => tx.go_on(next),
            (None, Some(rx)) => rx.go_on(next),
            (None, None) => Ok(()),
        }
    }

    /// Returns the peer's position if it has moved since the sync that set `hwtail`. Takes no lock and does not
    /// validate.
    #[inline(always)]
    pub(crate) fn peer_moved(&self, slots: Slots, hwtail: Pos) -> Option<u32> {
        match self {
            RingBackend::PipeTx(tx) => tx.peer_moved(slots.next(hwtail)),
            RingBackend::PipeRx(rx) => rx.peer_moved(hwtail),
            RingBackend::Tx(tx) => tx.peer_moved(slots.next(hwtail)),
            RingBackend::Rx(rx) => rx.peer_moved(hwtail),
            RingBackend::ReadOnly => None,
        }
    }
}
