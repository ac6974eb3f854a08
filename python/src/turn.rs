// SPDX-License-Identifier: BSD-2-Clause
//! Which thread moves the rings of a direction.

use std::process;
use std::sync::atomic::{AtomicU32, Ordering::SeqCst};

use pyo3::PyResult;
use unetmap::errno;

use crate::refused;

/// Number of the process in which a thread uses the direction; 0: none does. A process that was forked meanwhile has a
/// copy of the word, but not that thread.
pub(crate) struct Turn(AtomicU32);

impl Turn {
    pub(crate) const fn new() -> Turn {
        Turn(AtomicU32::new(0))
    }

    /// Takes the direction for this thread, until the guard is dropped.
    ///
    /// # Errors
    /// `EBUSY` if another thread of this process has it.
    pub(crate) fn take(&self, spec: &str) -> PyResult<Guard<'_>> {
        let own = process::id();
        let take = |user| (user != own).then_some(own);
        match self.0.fetch_update(SeqCst, SeqCst, take) {
            Ok(_) => Ok(Guard(&self.0)),
            Err(_) => {
                let reason = "another thread uses this direction of the port (one thread for each direction, or a port \
                              for each thread)";
                Err(refused(spec, errno::EBUSY, reason))
            }
        }
    }
}

/// The direction of a thread.
pub(crate) struct Guard<'a>(&'a AtomicU32);

impl Drop for Guard<'_> {
    fn drop(&mut self) {
        self.0.store(0, SeqCst);
    }
}
