// SPDX-License-Identifier: BSD-2-Clause
//! Packets that begin behind the start of their buffers: the option OFFSETS of a port's rings.
//!
//! A sent packet begins where the sender's slot says; a received packet is written where the receiver's slot says,
//! whatever the sender's is. Such packets are copied one by one.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering::Relaxed};

use unetmap_mem::Offsets;

/// Where packets of a ring may begin in their buffers. The daemon sets it before a program uses the ring.
#[derive(Default)]
pub(crate) struct HeadroomOffsets {
    mask: AtomicU64,
    max: AtomicU32,
}

impl HeadroomOffsets {
    #[inline(always)]
    pub(crate) fn get(&self) -> Offsets {
        Offsets { mask: self.mask.load(Relaxed), max: self.max.load(Relaxed) }
    }

    pub(crate) fn set(&self, offsets: Offsets) {
        self.max.store(offsets.max, Relaxed);
        self.mask.store(offsets.mask, Relaxed);
    }

    /// True if packets always begin at the start of their buffers.
    #[inline(always)]
    pub(crate) fn none(&self) -> bool {
        self.get().mask == 0
    }
}
