//! A process's lease: the number that identifies it in the locks of rings, and a connection that tells the daemon when the
//! process has exited.
//!
//! A forked child shares its parent's memory, connections and lease number. It gets a lease of its own before its first
//! sync; otherwise the daemon could not determine which of the two exited while it held a lock.

use std::collections::HashMap;
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use unetmap_sys::process;

use crate::control::NextMonitorRequest;
use crate::control::client;
use crate::error::Error;

/// A lease of this process with one daemon.
pub(crate) struct Lease {
    /// Written into the locks of rings; not 0.
    pub(crate) number: u32,
    /// Forks between the first process and this one when it got the lease.
    pub(crate) forks: u32,
    /// Open while the lease is in use.
    connection: OwnedFd,
    /// Held by the thread that waits for a reply on it.
    request_lock: Mutex<()>,
}

impl Lease {
    /// Requests the next monitor of a session; `None` if there is none, or no reply.
    pub(crate) fn next_monitor(&self, subject: &str, request: &NextMonitorRequest) -> Option<(Vec<u8>, Vec<OwnedFd>)> {
        let _guard = self.request_lock.lock().unwrap_or_else(PoisonError::into_inner);
        match client::send(self.connection.as_fd(), subject, request) {
            Ok(reply) if reply.errno == 0 && !reply.payload.is_empty() => Some((reply.payload, reply.fds)),
            _ => None,
        }
    }

    /// Returns a duplicate of its connection, which hangs up when the daemon exits.
    pub(crate) fn connection(&self) -> std::io::Result<OwnedFd> {
        self.connection.try_clone()
    }

    /// Returns the daemon's own lease.
    pub(crate) fn of_daemon(number: u32, connection: &OwnedFd) -> std::io::Result<Lease> {
        Ok(Lease {
            number,
            forks: process::fork_count(),
            connection: connection.try_clone()?,
            request_lock: Mutex::new(()),
        })
    }
}

/// The lease that a port uses. No thread waits for the lock: a child that is forked while another thread holds it would
/// wait for ever.
pub(crate) struct LeaseCell(Mutex<Arc<Lease>>);

impl LeaseCell {
    pub(crate) fn new(lease: Arc<Lease>) -> LeaseCell {
        LeaseCell(Mutex::new(lease))
    }

    /// Returns the lease, if it belongs to the process with `forks` forks and the lock is free.
    pub(crate) fn get(&self, forks: u32) -> Option<Arc<Lease>> {
        self.0.try_lock().ok().filter(|cell| cell.forks == forks).map(|cell| cell.clone())
    }

    /// Stores `lease`. A lease that might still be in use is leaked, which costs a connection until this process exits: the
    /// old one if it belongs to the same process, because another thread may have read its number; the new one if the lock
    /// is held, because the holder may be a thread that does not exist in this process.
    pub(crate) fn set(&self, lease: Arc<Lease>) {
        let Ok(mut cell) = self.0.try_lock() else { return std::mem::forget(lease) };
        let forks = lease.forks;
        let before = std::mem::replace(&mut *cell, lease);
        if before.forks == forks {
            std::mem::forget(before);
        }
    }
}

/// The leases of this process by daemon; weak, so that closing the last port releases the lease.
static LEASES: Mutex<Option<HashMap<PathBuf, std::sync::Weak<Lease>>>> = Mutex::new(None);

/// Returns the lease of this process with the daemon behind `socket`. Sends the request without holding the lock, because
/// a child that is forked meanwhile would find it locked for ever.
pub(crate) fn of_this_process(socket: &Path) -> Result<Arc<Lease>, Error> {
    let forks = process::fork_count();
    if let Some(lease) = known(socket)
        && lease.forks == forks
        && !unetmap_sys::event::hung_up(lease.connection.as_fd())
    {
        return Ok(lease);
    }
    let (connection, number) = client::take_lease(socket)?;
    let lease = Arc::new(Lease { number, forks, connection, request_lock: Mutex::new(()) });
    if let Ok(mut leases) = LEASES.try_lock() {
        leases.get_or_insert_default().insert(socket.to_owned(), Arc::downgrade(&lease));
    }
    Ok(lease)
}

/// Returns the lease in the list; `None` if the list is locked, which costs one lease more.
fn known(socket: &Path) -> Option<Arc<Lease>> {
    LEASES.try_lock().ok()?.as_ref()?.get(socket)?.upgrade()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lease(number: u32, forks: u32) -> Arc<Lease> {
        let connection = std::fs::File::open("/dev/null").unwrap().into();
        Arc::new(Lease { number, forks, connection, request_lock: Mutex::new(()) })
    }

    /// As in a child that was forked at that moment.
    #[test]
    fn a_lock_that_is_never_released_blocks_no_thread() {
        let cell = LeaseCell::new(lease(1, 0));
        let guard = cell.0.lock().unwrap();
        assert!(cell.get(0).is_none() && cell.get(1).is_none());
        let new = lease(2, 1);
        let observer = Arc::downgrade(&new);
        cell.set(new);
        assert!(observer.upgrade().is_some(), "it lives as long as the process");
        drop(guard);
        assert_eq!(cell.get(0).map(|lease| lease.number), Some(1));
    }

    #[test]
    fn a_new_lease_never_releases_one_of_the_same_process() {
        let cell = LeaseCell::new(lease(1, 0));
        let (parents, mine) = (cell.get(0).map(|lease| Arc::downgrade(&lease)).unwrap(), lease(2, 1));
        let of_mine = Arc::downgrade(&mine);
        cell.set(mine);
        assert!(parents.upgrade().is_none(), "the parent has its own connection");
        assert!(cell.get(0).is_none() && cell.get(1).is_some());
        cell.set(lease(3, 1));
        assert!(of_mine.upgrade().is_some(), "another thread may have told its number already");
        assert_eq!(cell.get(1).map(|lease| lease.number), Some(3));
    }
}
