//! A process's lease: the number by which the locks of rings name it, and a connection by which the daemon learns of
//! its death.
//!
//! A forked child shares its parent's memory, connections and lease number; it must get a lease of its own before its
//! first sync, or the daemon could not tell which of the two died with a lock.

use std::collections::HashMap;
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use unetmap_sys::process;
use zerocopy::IntoBytes;

use crate::client;
use crate::error::Error;
use crate::watch::Asked;
use crate::wire::Kind;

/// What this process may write into the locks of one daemon's rings.
pub(crate) struct Lease {
    /// Not 0.
    pub(crate) number: u32,
    /// How often this process had been forked from another when it got the lease.
    pub(crate) forks: u32,
    /// Open as long as the lease is in use.
    connection: OwnedFd,
    /// Held by the thread that waits for an answer on it.
    asking: Mutex<()>,
}

impl Lease {
    /// Asks the daemon for the next monitor of a session. `None`: there is none, or no answer.
    pub(crate) fn watchers(&self, asked: &str, question: &Asked) -> Option<(Vec<u8>, Vec<OwnedFd>)> {
        let _alone = self.asking.lock().unwrap_or_else(PoisonError::into_inner);
        match client::call(self.connection.as_fd(), asked, Kind::Watchers, question.as_bytes()) {
            Ok(reply) if reply.errno == 0 && !reply.payload.is_empty() => Some((reply.payload, reply.fds)),
            _ => None,
        }
    }

    /// Another descriptor of its connection, by which the daemon's end is seen.
    pub(crate) fn connection(&self) -> std::io::Result<OwnedFd> {
        self.connection.try_clone()
    }

    /// The daemon's own, which ends with it.
    pub(crate) fn of_daemon(number: u32, connection: &OwnedFd) -> std::io::Result<Lease> {
        Ok(Lease { number, forks: process::fork_count(), connection: connection.try_clone()?, asking: Mutex::new(()) })
    }
}

/// The leases of this process by daemon; weak, so that the last port's close ends the lease.
static LEASES: Mutex<Option<HashMap<PathBuf, std::sync::Weak<Lease>>>> = Mutex::new(None);

/// The lease of this very process with the daemon behind `socket`. The daemon is asked without holding the lock: a child
/// that is forked meanwhile would find it locked for ever.
pub(crate) fn of_this_process(socket: &Path) -> Result<Arc<Lease>, Error> {
    let forks = process::fork_count();
    if let Some(lease) = known(socket)
        && lease.forks == forks
        && !unetmap_sys::event::hung_up(lease.connection.as_fd())
    {
        return Ok(lease);
    }
    let (connection, number) = client::take_lease(socket)?;
    let lease = Arc::new(Lease { number, forks, connection, asking: Mutex::new(()) });
    if let Ok(mut leases) = LEASES.try_lock() {
        leases.get_or_insert_default().insert(socket.to_owned(), Arc::downgrade(&lease));
    }
    Ok(lease)
}

/// The lease in the list; none when the list is busy, which costs one lease more.
fn known(socket: &Path) -> Option<Arc<Lease>> {
    LEASES.try_lock().ok()?.as_ref()?.get(socket)?.upgrade()
}
