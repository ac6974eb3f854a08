// SPDX-License-Identifier: BSD-2-Clause
//! Handing all that the daemon has to another process, its *successor*, without closing a port: to a newer daemon that
//! replaces it (`--replace`), or after a crash (`--keep-ports`) to one that is started with what a third process, the
//! [`store`], has kept. Both are the same [`State`], sent by the same messages:
//!
//! ```text
//! successor                   daemon, or store
//!   Begin              -->
//!                      <--    Refused: why it goes on as before; or
//!                      <--    Descriptors, several times
//!                      <--    State
//!   rebuilds everything       (switches of a daemon forward packets until here)
//!   Ready              -->
//!                      <--    Positions: where the threads of the switches stopped; or Recover: it has crashed
//!   Commit             -->
//!                      <--    Released: nothing was closed, as the successor has the descriptors
//! ```
//! They are sent as those of the broker ([`crate::channel`]), and depend on no version of the control protocol. A
//! successor reads the states of earlier daemons, too ([`OLDEST_VERSION`]), an earlier daemon none of a later one. What
//! is handed over are the daemon's private records. Shared memory needs no change: programs notice nothing.
//!
//! ```text
//!                          a replacement                            a crash
//! the state                is saved when all is settled             is what was kept after the last change
//! who may begin            the daemon's user and root               only the daemon that the store has started
//! connections              all, with messages that wait             of sessions and lock holders, but for that whose
//!                                                                   message was being answered
//! positions of switches    where their threads stopped              those in the rings, checked
//! mediators' threads       are paused, and go on                    are started anew: what they had copied and not
//!                                                                   passed on is copied again; their locks are broken
//! the node                 its requests are answered later          its files and ports end, and it is on again
//! the broker               goes on                                  undoes what was made since; drops its answers
//! if the successor ends    the daemon goes on                       another one is started, at most MAX_CRASHES times
//! at the end               the daemon exits                         the store keeps what the successor has
//! ```

mod crash;
pub(crate) mod drain;
mod giving;
mod messages;
mod replacement;
mod save;
mod state;
pub(crate) mod store;
mod taking;

use std::os::unix::fs::MetadataExt as _;
use std::{fs, io};

pub(crate) use messages::{Reply, Request};
pub(crate) use state::{SavedForCrash, State};
pub(crate) use taking::{Predecessor, Taken};

/// The version of [`State`]. It changes with every change of what is in it, of which a test has a list, and of the
/// broker's requests: a successor may have to go on with the broker of an earlier release, which refuses an operation
/// that it does not know.
pub(crate) const VERSION: u32 = 22;

/// The oldest version that this program reads. What was added since has a default (`#[serde(default)]`), what was left
/// out is not looked at, and a part that has another form now is read from its former one (`#[serde(from)]`). If none
/// of these is possible, this becomes [`VERSION`]: a successor is refused, and says so, while the running daemon goes
/// on.
pub(crate) const OLDEST_VERSION: u32 = 15;

const _: () = assert!(OLDEST_VERSION <= VERSION);

/// Device and inode of the file that this process runs.
pub(crate) fn own_program() -> io::Result<(u64, u64)> {
    fs::metadata("/proc/self/exe").map(|file| (file.dev(), file.ino()))
}

/// Why the daemon no longer serves.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum End {
    /// It is no longer needed.
    Unused,
    /// Another process has everything that this one had.
    Replaced,
}
