// SPDX-License-Identifier: BSD-2-Clause
//! Where the daemons listen.

use std::path::PathBuf;

pub use unetmap_core::control::client::SYSTEM_SOCKET;

use crate::Error;

/// Returns the path of the socket at which this user's daemon listens, or will: programs put sockets of their own
/// beside it. Starts no daemon, but creates the folder.
///
/// # Errors
/// The folder cannot be created, or belongs to another user.
///
/// ```
/// # let _daemon = include!(concat!(env!("CARGO_MANIFEST_DIR"), "/doctest_daemon.rs"));
/// assert!(unetmap::daemon::own_socket()?.is_absolute());
/// # Ok::<(), unetmap::Error>(())
/// ```
pub fn own_socket() -> Result<PathBuf, Error> {
    unetmap_core::control::client::own_socket()
}
