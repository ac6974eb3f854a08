//! A process's lease: the number by which the locks of rings name it, and a connection by which the daemon learns of
//! its death.
//!
//! A forked child shares its parent's memory, connections and lease number; it must get a lease of its own before its
//! first sync, or the daemon could not tell which of the two died with a lock.

use std::collections::HashMap;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use unetmap_sys::process;

use crate::client;
use crate::error::Error;

/// What this process may write into the locks of one daemon's rings.
pub(crate) struct Lease {
    /// Not 0.
    pub(crate) number: u32,
    /// How often this process had been forked from another when it got the lease.
    pub(crate) forks: u32,
    /// Open as long as the lease is in use.
    connection: OwnedFd,
}

/// The leases of this process by daemon; weak, so that the last port's close ends the lease.
static LEASES: Mutex<Option<HashMap<PathBuf, std::sync::Weak<Lease>>>> = Mutex::new(None);

/// The lease of this very process with the daemon behind `socket`.
pub(crate) fn of_this_process(socket: &Path) -> Result<Arc<Lease>, Error> {
    let mut leases = LEASES.lock().unwrap_or_else(PoisonError::into_inner);
    let leases = leases.get_or_insert_default();
    let forks = process::fork_count();
    if let Some(lease) = leases.get(socket).and_then(std::sync::Weak::upgrade)
        && lease.forks == forks
        && !unetmap_sys::event::hung_up(std::os::fd::AsFd::as_fd(&lease.connection))
    {
        return Ok(lease);
    }
    let (connection, number) = client::take_lease(socket)?;
    let lease = Arc::new(Lease { number, forks, connection });
    leases.insert(socket.to_owned(), Arc::downgrade(&lease));
    Ok(lease)
}
