// SPDX-License-Identifier: BSD-2-Clause
//! Starts the daemon's threads. Only the control thread of root's daemon, and the one that keeps interfaces alive, have
//! a priority above their clients'.

use std::io;
use std::thread::{Builder, JoinHandle};

use unetmap_sys::thread::set_nice;

/// Starts a thread of this name.
///
/// # Errors
/// There are too many threads.
pub(crate) fn start<T: Send + 'static>(
    name: impl Into<String>,
    work: impl FnOnce() -> T + Send + 'static,
) -> io::Result<JoinHandle<T>> {
    Builder::new().name(name.into()).spawn(|| {
        // Inherited from the control thread. Everybody may be nicer.
        let _ = set_nice(0);
        work()
    })
}
