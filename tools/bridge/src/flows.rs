// SPDX-License-Identifier: BSD-2-Clause
//! `--flows`: the packets that pass are counted by flow.

use std::cell::RefCell;
use std::time::Duration;

use tool_common::forward::Mover;
use unetmap::Ring;
use unetmap_flows::{Observer, Origin};

use crate::{All, Forwards};

/// Forwards packets, and has those counted that the other port gets.
pub(crate) struct Observed<'o> {
    pub(crate) all: All,
    pub(crate) observer: &'o RefCell<Observer>,
    /// Index of the port that receives.
    pub(crate) source: u16,
}

impl Mover for Observed<'_> {
    #[inline]
    fn move_slots(&mut self, from: &Ring, to: &Ring, n: u32) -> Result<u32, String> {
        let (moved, counts) = self.all.move_packets(from, to, n);
        self.observer.borrow_mut().observe(to, moved, counts, Origin { port: self.source, dropped: 0 });
        Ok(moved)
    }

    fn own_packets(&mut self, _to: &Ring) -> u32 {
        self.observer.borrow_mut().tick();
        0
    }

    fn next_packet(&mut self) -> Option<Duration> {
        Some(self.observer.borrow_mut().sleeps())
    }
}

impl Forwards for Observed<'_> {
    fn all(&self) -> All {
        self.all
    }
}
