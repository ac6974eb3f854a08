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

use crate::control::client;
use crate::error::Error;
use crate::sync::mirror::Asked;
use crate::control::wire::Kind;

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

/// The lease that a port uses. Nobody waits for the lock: a child that is forked while a thread has it would do so for ever.
pub(crate) struct Kept(Mutex<Arc<Lease>>);

impl Kept {
    pub(crate) fn new(lease: Arc<Lease>) -> Kept {
        Kept(Mutex::new(lease))
    }

    /// The lease, if it is that of a process that was forked so often, and nobody is at it.
    pub(crate) fn get(&self, forks: u32) -> Option<Arc<Lease>> {
        self.0.try_lock().ok().filter(|kept| kept.forks == forks).map(|kept| kept.clone())
    }

    /// Keeps `lease` from now on. One that might be in use still is never ended, which costs a connection until this process
    /// ends: another thread may have taken one for the same process, or nobody can be told apart from one who has the lock.
    pub(crate) fn keep(&self, lease: Arc<Lease>) {
        let Ok(mut kept) = self.0.try_lock() else { return std::mem::forget(lease) };
        let forks = lease.forks;
        let before = std::mem::replace(&mut *kept, lease);
        if before.forks == forks {
            std::mem::forget(before);
        }
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

#[cfg(test)]
mod tests {
    use super::*;

    fn lease(number: u32, forks: u32) -> Arc<Lease> {
        let connection = std::fs::File::open("/dev/null").unwrap().into();
        Arc::new(Lease { number, forks, connection, asking: Mutex::new(()) })
    }

    /// As a child finds it that was forked at that moment.
    #[test]
    fn a_lock_that_is_never_given_back_stops_nobody() {
        let kept = Kept::new(lease(1, 0));
        let guard = kept.0.lock().unwrap();
        assert!(kept.get(0).is_none() && kept.get(1).is_none());
        let new = lease(2, 1);
        let observer = Arc::downgrade(&new);
        kept.keep(new);
        assert!(observer.upgrade().is_some(), "it lives as long as the process");
        drop(guard);
        assert_eq!(kept.get(0).map(|lease| lease.number), Some(1));
    }

    #[test]
    fn a_lease_of_this_process_is_never_ended_by_another() {
        let kept = Kept::new(lease(1, 0));
        let (parents, mine) = (kept.get(0).map(|lease| Arc::downgrade(&lease)).unwrap(), lease(2, 1));
        let of_mine = Arc::downgrade(&mine);
        kept.keep(mine);
        assert!(parents.upgrade().is_none(), "the parent has its own connection");
        assert!(kept.get(0).is_none() && kept.get(1).is_some());
        kept.keep(lease(3, 1));
        assert!(of_mine.upgrade().is_some(), "another thread may have told its number already");
        assert_eq!(kept.get(1).map(|lease| lease.number), Some(3));
    }
}
