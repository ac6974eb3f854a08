// SPDX-License-Identifier: BSD-2-Clause
//! The context of a batch, which all steps that move its packets share.

use super::SwitchPort;
use super::batch::{Batch, BatchSource};
use super::tx_ring::PortTx;
use crate::backpressure::Backpressure;

/// A batch that is being forwarded, with its source.
#[derive(Clone, Copy)]
pub(crate) struct BatchContext<'a> {
    /// The port that sent it.
    pub(crate) port: &'a SwitchPort,
    /// The transmit ring that it was sent on, and the index of that ring in the port.
    pub(crate) ring: &'a PortTx,
    pub(crate) ring_index: usize,
    pub(crate) batch: Batch<'a>,
    pub(crate) backpressure: &'a Backpressure,
}

impl<'a> BatchContext<'a> {
    /// Returns the part of the context that receive rings read.
    #[inline(always)]
    pub(crate) fn source(&self) -> BatchSource<'_> {
        BatchSource { region: &self.port.region, batch: &self.batch, backpressure: self.backpressure }
    }

    /// Returns the context of the batch without its first `n` slots.
    pub(crate) fn skip(&self, n: u32) -> BatchContext<'a> {
        BatchContext { batch: self.batch.skip(n), ..*self }
    }
}
