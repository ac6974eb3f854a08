// SPDX-License-Identifier: BSD-2-Clause
//! The switch's own memory of a port from one batch to the next: another process that goes on with the port needs it.

use std::sync::atomic::Ordering::Relaxed;
use std::sync::{MutexGuard, PoisonError};

use serde::{Deserialize, Serialize};
use unetmap_mem::Pos;

use super::rx_ring::PortRx;
use super::tx_ring::PortTx;
use super::{SwitchPort, TxState};
use crate::forward::PacketCutter;

/// Positions of a port, for [`SwitchPort::set_positions`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PortPositions {
    tx: Vec<TxPositions>,
    rx: Vec<RxPositions>,
}

/// Of a transmit ring.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct TxPositions {
    cons: u32,
    /// The next slot continues a packet that has too many slots.
    skipping: bool,
}

/// Of a receive ring.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct RxPositions {
    prod: u32,
    cons: u32,
}

impl SwitchPort {
    /// Returns its positions. No thread may be using the port.
    pub fn positions(&self) -> PortPositions {
        PortPositions {
            tx: self.tx.iter().map(PortTx::positions).collect(),
            rx: self.rx.iter().map(PortRx::positions).collect(),
        }
    }

    /// Goes on where another process stopped; `false`: these are not positions of such a port. No thread may be using
    /// the port yet.
    pub fn set_positions(&self, from: &PortPositions) -> bool {
        let fits = from.tx.len() == self.tx.len() && from.rx.len() == self.rx.len();
        fits && self.tx.iter().zip(&from.tx).all(|(ring, from)| ring.set_positions(from).is_some())
            && self.rx.iter().zip(&from.rx).all(|(ring, from)| ring.set_positions(from).is_some())
    }
}

impl SwitchPort {
    /// Goes on where the channels say that another process stopped, which had no time to tell. Their client can have
    /// written anything there: what is no position of the ring is ignored, and other positions spoil its own packets
    /// only. No thread may be using the port yet.
    pub fn recover_positions(&self) {
        self.tx.iter().for_each(PortTx::recover_positions);
        self.rx.iter().for_each(PortRx::recover_positions);
    }
}

impl PortTx {
    fn recover_positions(&self) {
        let mut state = self.state();
        if let Some(span) = self.channel.words().positions(self.channel.slots().slots()) {
            state.cons = span.from;
        }
        self.empty_at.store(state.cons.raw(), Relaxed);
    }

    fn state(&self) -> MutexGuard<'_, TxState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn positions(&self) -> TxPositions {
        let state = self.state();
        TxPositions { cons: state.cons.raw(), skipping: !state.cutter.at_packet_start() }
    }

    /// `None` if a position is outside the ring.
    fn set_positions(&self, from: &TxPositions) -> Option<()> {
        let mut state = self.state();
        state.cons = self.channel.slots().slots().pos(from.cons)?;
        // A new ring takes position 0 for empty, where a full one may be, which then nobody would serve.
        self.empty_at.store(from.cons, Relaxed);
        state.cutter = PacketCutter::at(from.skipping);
        Some(())
    }
}

impl PortRx {
    fn recover_positions(&self) {
        let mut state = self.lock();
        self.read_counters(&mut state);
        if let Some(span) = self.channel.words().positions(self.channel.slots().slots()) {
            (state.prod, state.cons) = (span.to, span.from);
        }
    }

    fn positions(&self) -> RxPositions {
        let state = self.lock();
        RxPositions { prod: state.prod.raw(), cons: state.cons.raw() }
    }

    /// `None` if a position is outside the ring.
    fn set_positions(&self, from: &RxPositions) -> Option<()> {
        let position = |raw| -> Option<Pos> { self.channel.slots().slots().pos(raw) };
        let mut state = self.lock();
        (state.prod, state.cons) = (position(from.prod)?, position(from.cons)?);
        self.read_counters(&mut state);
        Some(())
    }
}
