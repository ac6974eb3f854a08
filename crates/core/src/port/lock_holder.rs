// SPDX-License-Identifier: BSD-2-Clause
//! A process as a holder of ring locks: its holder ID, which identifies it in the locks, and a connection that tells
//! the daemon when the process has exited.
//!
//! A forked child shares its parent's memory, connections and holder ID. It gets a holder ID of its own before its
//! first sync; otherwise the daemon could not determine which of the two exited while it held a lock.

use std::collections::HashMap;
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError, TryLockError};
use std::time::Instant;

use unetmap_sys::process;

use crate::control::client::{self, RequestedHolder};
use crate::control::{NextMonitorRequest, PeerDoorbellsRequest};
use crate::error::Error;
use crate::tuning::{REQUEST_LIMIT, TURN_POLL};

/// This process as a lock holder at one daemon.
pub(crate) struct LockHolder {
    /// The holder ID, written into the locks of rings; not 0.
    pub(crate) id: u32,
    /// Forks between the first process and this one when it got the ID.
    pub(crate) forks: u32,
    /// Open while the ID is in use.
    connection: OwnedFd,
    /// Held by the thread that waits for a reply on it.
    request_lock: Mutex<()>,
}

/// Returns the ID in a [`LockHolder::word`].
#[inline(always)]
pub(crate) fn id_in(word: u64) -> u32 {
    word as u32
}

/// Returns the number of forks in a [`LockHolder::word`].
#[inline(always)]
pub(crate) fn forks_in(word: u64) -> u32 {
    (word >> 32) as u32
}

impl LockHolder {
    /// Returns the ID and its number of forks in one word.
    pub(crate) fn word(&self) -> u64 {
        u64::from(self.forks) << 32 | u64::from(self.id)
    }

    /// Requests the next monitor of a session; `None` if there is none, or no reply.
    pub(crate) fn next_monitor(&self, subject: &str, request: &NextMonitorRequest) -> Option<(Vec<u8>, Vec<OwnedFd>)> {
        let _guard = self.request_lock.lock().unwrap_or_else(PoisonError::into_inner);
        match client::send(self.connection.as_fd(), subject, request) {
            Ok(reply) if reply.errno == 0 && !reply.payload.is_empty() => Some((reply.payload, reply.fds)),
            _ => None,
        }
    }

    /// Requests the doorbells of the other end of a session's pipe; `None` if there is no reply. It does not wait for
    /// long for another request on the connection, which this very thread may have made before a signal.
    pub(crate) fn peer_doorbells(&self, subject: &str, request: &PeerDoorbellsRequest) -> Option<Vec<OwnedFd>> {
        let start = Instant::now();
        let _guard = loop {
            match self.request_lock.try_lock() {
                Ok(guard) => break guard,
                Err(TryLockError::Poisoned(poisoned)) => break poisoned.into_inner(),
                Err(TryLockError::WouldBlock) if start.elapsed() > REQUEST_LIMIT => return None,
                Err(TryLockError::WouldBlock) => std::thread::sleep(TURN_POLL),
            }
        };
        let reply = client::send_in_sync(self.connection.as_fd(), subject, request).ok()?;
        (reply.errno == 0).then_some(reply.fds)
    }

    /// Returns a duplicate of its connection, which hangs up when the daemon exits.
    pub(crate) fn connection(&self) -> std::io::Result<OwnedFd> {
        self.connection.try_clone()
    }

    /// Returns the daemon itself as a lock holder.
    pub(crate) fn of_daemon(id: u32, connection: &OwnedFd) -> std::io::Result<LockHolder> {
        Ok(LockHolder {
            id,
            forks: process::fork_count(),
            connection: connection.try_clone()?,
            request_lock: Mutex::new(()),
        })
    }
}

/// The lock holder that a port uses. No thread waits for the lock: a child that is forked while another thread holds it
/// would wait for ever.
pub(crate) struct LockHolderCell(Mutex<Arc<LockHolder>>);

impl LockHolderCell {
    pub(crate) fn new(holder: Arc<LockHolder>) -> LockHolderCell {
        LockHolderCell(Mutex::new(holder))
    }

    /// Returns the lock holder, if it is the process with `forks` forks and the lock is free.
    pub(crate) fn get(&self, forks: u32) -> Option<Arc<LockHolder>> {
        self.0.try_lock().ok().filter(|cell| cell.forks == forks).map(|cell| cell.clone())
    }

    /// Stores `holder`, of another daemon than the former one, which has ended.
    pub(crate) fn replace(&self, holder: Arc<LockHolder>) {
        match self.0.try_lock() {
            Ok(mut cell) => *cell = holder,
            Err(_) => std::mem::forget(holder),
        }
    }

    /// Stores `holder`. A former one that might still be in use is leaked, which costs a connection until this process
    /// exits: the old one if it belongs to the same process, because another thread may have read its holder ID; the
    /// new one if the lock is held, because the holder may be a thread that does not exist in this process.
    pub(crate) fn set(&self, holder: Arc<LockHolder>) {
        let Ok(mut cell) = self.0.try_lock() else { return std::mem::forget(holder) };
        let forks = holder.forks;
        let before = std::mem::replace(&mut *cell, holder);
        if before.forks == forks {
            std::mem::forget(before);
        }
    }
}

/// This process as a lock holder, by daemon; weak, so that closing the last port frees the holder ID.
static LOCK_HOLDERS: Mutex<Option<HashMap<PathBuf, std::sync::Weak<LockHolder>>>> = Mutex::new(None);

/// Returns this process as a lock holder at the daemon behind `socket`. Sends the request without holding the lock,
/// because a child that is forked meanwhile would find it locked for ever.
pub(crate) fn of_this_process(socket: &Path) -> Result<Arc<LockHolder>, Error> {
    Requested::send(socket)?.receive(socket)
}

/// This process as a lock holder, which it is already or has asked to be.
pub(crate) enum Requested {
    Known(Arc<LockHolder>),
    /// The request, and the forks when it was sent.
    Sent(RequestedHolder, u32),
}

impl Requested {
    /// Asks the daemon behind `socket`, unless this process is known there.
    pub(crate) fn send(socket: &Path) -> Result<Requested, Error> {
        let forks = process::fork_count();
        if let Some(holder) = known(socket)
            && holder.forks == forks
            && !unetmap_sys::event::hung_up(holder.connection.as_fd())
        {
            return Ok(Requested::Known(holder));
        }
        Ok(Requested::Sent(client::request_lock_holder(socket)?, forks))
    }

    /// Returns the lock holder at the daemon behind `socket`.
    pub(crate) fn receive(self, socket: &Path) -> Result<Arc<LockHolder>, Error> {
        let (request, forks) = match self {
            Requested::Known(holder) => return Ok(holder),
            Requested::Sent(request, forks) => (request, forks),
        };
        let (connection, id) = request.receive()?;
        let holder = Arc::new(LockHolder { id, forks, connection, request_lock: Mutex::new(()) });
        if let Ok(mut lock_holders) = LOCK_HOLDERS.try_lock() {
            lock_holders.get_or_insert_default().insert(socket.to_owned(), Arc::downgrade(&holder));
        }
        Ok(holder)
    }
}

/// Returns the lock holder in the list; `None` if the list is locked, which costs one holder ID more.
fn known(socket: &Path) -> Option<Arc<LockHolder>> {
    LOCK_HOLDERS.try_lock().ok()?.as_ref()?.get(socket)?.upgrade()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn holder(id: u32, forks: u32) -> Arc<LockHolder> {
        let connection = std::fs::File::open("/dev/null").unwrap().into();
        Arc::new(LockHolder { id, forks, connection, request_lock: Mutex::new(()) })
    }

    #[test]
    fn a_word_has_id_and_forks() {
        let word = holder(0x8000_0001, 7).word();
        assert_eq!((id_in(word), forks_in(word)), (0x8000_0001, 7));
    }

    /// As in a child that was forked at that moment.
    #[test]
    fn a_lock_that_is_never_released_blocks_no_thread() {
        let cell = LockHolderCell::new(holder(1, 0));
        let guard = cell.0.lock().unwrap();
        assert!(cell.get(0).is_none() && cell.get(1).is_none());
        let new = holder(2, 1);
        let observer = Arc::downgrade(&new);
        cell.set(new);
        assert!(observer.upgrade().is_some(), "it lives as long as the process");
        drop(guard);
        assert_eq!(cell.get(0).map(|holder| holder.id), Some(1));
    }

    #[test]
    fn a_new_lock_holder_never_releases_one_of_the_same_process() {
        let cell = LockHolderCell::new(holder(1, 0));
        let (parents, mine) = (cell.get(0).map(|holder| Arc::downgrade(&holder)).unwrap(), holder(2, 1));
        let of_mine = Arc::downgrade(&mine);
        cell.set(mine);
        assert!(parents.upgrade().is_none(), "the parent has its own connection");
        assert!(cell.get(0).is_none() && cell.get(1).is_some());
        cell.set(holder(3, 1));
        assert!(of_mine.upgrade().is_some(), "another thread may have sent its holder ID already");
        assert_eq!(cell.get(1).map(|holder| holder.id), Some(3));
    }
}
