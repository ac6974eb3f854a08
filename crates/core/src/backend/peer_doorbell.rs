// SPDX-License-Identifier: BSD-2-Clause
//! The doorbells of a pipe's other end. While that end was never open they do not exist: the daemon makes them when it
//! is opened, and a side that is to notify one for the first time asks for them.
//!
//! That happens within a sync, once for all rings of the port: the peer sleeps already, and would be woken late
//! otherwise. A sync that gets no answer does not notify; a sleeper looks at its rings from time to time.

use std::io;
use std::os::fd::OwnedFd;
use std::sync::{Arc, OnceLock};

use unetmap_sys::Doorbell;

/// Wakes the peer of a ring.
pub(crate) enum PeerDoorbell {
    Known(Doorbell),
    /// That of the ring with this number in the binding.
    Later(Arc<LaterDoorbells>, usize),
}

impl PeerDoorbell {
    /// Notifies the peer.
    #[inline]
    pub(crate) fn notify(&self) {
        match self {
            PeerDoorbell::Known(doorbell) => doorbell.notify(),
            PeerDoorbell::Later(doorbells, ring) => doorbells.get(*ring).into_iter().for_each(Doorbell::notify),
        }
    }

    /// From now on it is that of the peer at the next daemon.
    pub(crate) fn replace(&self, new: OwnedFd) -> io::Result<()> {
        match self {
            PeerDoorbell::Known(doorbell) => doorbell.replace(new),
            PeerDoorbell::Later(doorbells, ring) => doorbells.replace(*ring, new),
        }
    }
}

/// The doorbells of all rings of a port's peer, once they were asked for.
pub(crate) struct LaterDoorbells {
    /// `None`: no answer.
    ask: Box<dyn Fn() -> Option<Vec<OwnedFd>> + Send + Sync>,
    /// By the ring's number in the binding.
    known: Vec<OnceLock<Doorbell>>,
}

impl LaterDoorbells {
    /// `ask` returns those of `rings` rings, in the order of the binding.
    pub(crate) fn new(rings: usize, ask: impl Fn() -> Option<Vec<OwnedFd>> + Send + Sync + 'static) -> LaterDoorbells {
        LaterDoorbells { ask: Box::new(ask), known: std::iter::repeat_with(OnceLock::new).take(rings).collect() }
    }

    #[inline]
    fn get(&self, ring: usize) -> Option<&Doorbell> {
        let known = self.known.get(ring)?;
        known.get().or_else(|| {
            self.receive();
            known.get()
        })
    }

    fn replace(&self, ring: usize, new: OwnedFd) -> io::Result<()> {
        let Some(known) = self.known.get(ring) else { return Ok(()) };
        match known.get() {
            Some(doorbell) => doorbell.replace(new),
            None => Doorbell::from_fd(new).map(|new| _ = known.set(new)),
        }
    }

    /// Not within the initialization of `known`: a signal handler that syncs another ring would wait for it for ever.
    #[cold]
    fn receive(&self) {
        let doorbells = (self.ask)().unwrap_or_default().into_iter().map(Doorbell::from_fd);
        for (known, doorbell) in self.known.iter().zip(doorbells) {
            // Another thread may have got the same ones.
            let _ = doorbell.map(|doorbell| known.set(doorbell));
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd;
    use std::sync::atomic::{AtomicU32, Ordering};
    use std::time::Duration;

    use unetmap_sys::event::{PollFd, PollFlags, wait_readable};

    use super::*;

    fn is_notified(fd: impl AsFd) -> bool {
        wait_readable(&mut [PollFd::new(&fd, PollFlags::IN)], Some(Duration::from_millis(1))).unwrap() == 1
    }

    #[test]
    fn doorbells_that_come_later_are_asked_for_once() {
        let (first, second, asked) = (Doorbell::new().unwrap(), Doorbell::new().unwrap(), Arc::new(AtomicU32::new(0)));
        let (fds, counter) = ([&first, &second].map(|d| d.try_clone().unwrap()), Arc::clone(&asked));
        let later = Arc::new(LaterDoorbells::new(2, move || {
            // The first request gets no answer.
            let is_answered = counter.fetch_add(1, Ordering::Relaxed) > 0;
            is_answered.then(|| fds.each_ref().map(|d| d.try_clone().unwrap().into()).into())
        }));
        let peers = [0, 1, 2].map(|ring| PeerDoorbell::Later(Arc::clone(&later), ring));
        peers[1].notify();
        assert!(!is_notified(&first) && !is_notified(&second));
        peers[1].notify();
        assert!(!is_notified(&first) && is_notified(&second));
        // A ring that the answer lacks notifies nobody.
        peers[2].notify();
        peers[0].notify();
        assert!(is_notified(&first));
        assert_eq!(asked.load(Ordering::Relaxed), 2);
    }
}
