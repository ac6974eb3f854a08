// SPDX-License-Identifier: BSD-2-Clause
//! Where a port keeps its control blocks.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};

use unetmap_sys::user_memory::UserArray;

/// The arrays of a port.
#[derive(Clone, Copy, Debug)]
pub struct ControlBlocks {
    /// Written by the program: 64 bytes for each bound ring.
    pub atok: UserArray,
    /// Written by the loop, of the same size.
    pub ktoa: UserArray,
}

/// The control blocks of a port, if it has any.
#[derive(Default)]
pub(crate) struct CsbCell {
    set: AtomicBool,
    blocks: Mutex<Option<ControlBlocks>>,
}

impl CsbCell {
    #[inline]
    pub(crate) fn is_set(&self) -> bool {
        // Acquire: pairs with `store`.
        self.set.load(Ordering::Acquire)
    }

    pub(super) fn get(&self) -> Option<ControlBlocks> {
        *self.blocks.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn store(&self, blocks: ControlBlocks) {
        *self.blocks.lock().unwrap_or_else(PoisonError::into_inner) = Some(blocks);
        // Release: a thread that reads the flag finds the blocks.
        self.set.store(true, Ordering::Release);
    }
}
