// SPDX-License-Identifier: BSD-2-Clause
//! The end of what threads of a scope do.

use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

/// Sets it when it is dropped, also by a panic: the scope would wait for its threads for ever, and they would take the
/// processors of all other tests.
#[derive(Debug)]
pub struct Stop<'a>(pub &'a AtomicBool);

impl Drop for Stop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Relaxed);
    }
}
