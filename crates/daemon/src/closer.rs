// SPDX-License-Identifier: BSD-2-Clause
//! Closing of connections, in threads of their own: a client may have left descriptors in the queue of its connection
//! (before Linux 6.16), and closing those takes as long as it wants.
//!
//! Descriptors of one user are closed one after the other, so that a user occupies one thread, and delays itself alone.

use std::collections::{BTreeMap, VecDeque};
use std::io;
use std::os::fd::OwnedFd;
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::Instant;

use crate::confinement::confine_packet_thread;
use crate::threads::{self, lock};
use crate::tuning::closer::{MAX_PENDING_OF_USER, MAX_THREADS, SLOW};

/// Closes connections without waiting for it.
#[derive(Clone)]
pub(crate) struct Closer(Arc<Shared>);

#[derive(Default)]
struct Shared {
    state: Mutex<State>,
    /// There are users without a thread.
    ready: Condvar,
}

#[derive(Default)]
struct State {
    /// By user. A user has an entry, which may be empty, while a thread closes its connections.
    pending: BTreeMap<u32, Pending>,
    /// Users without a thread.
    ready: VecDeque<u32>,
    threads: usize,
    idle: usize,
}

/// Descriptors that wait to be closed for a user.
struct Pending {
    fds: Vec<OwnedFd>,
    /// When the thread began to close others of this user, or when the first of these came.
    since: Instant,
}

impl Pending {
    fn new(fds: Vec<OwnedFd>) -> Pending {
        Pending { fds, since: Instant::now() }
    }
}

impl Closer {
    /// Starts the first thread.
    ///
    /// # Errors
    /// `EAGAIN`, `ENOMEM`.
    pub(crate) fn new() -> io::Result<Closer> {
        let closer = Closer(Arc::default());
        closer.start(&mut lock(&closer.0.state))?;
        Ok(closer)
    }

    fn start(&self, state: &mut State) -> io::Result<()> {
        let shared = self.0.clone();
        threads::start("closer", move || shared.run())?;
        state.threads += 1;
        Ok(())
    }

    /// Whether many connections of the user are pending because closing one takes long: the user gets no more.
    pub(crate) fn is_blocked(&self, uid: u32) -> bool {
        let is_blocked = |pending: &Pending| pending.fds.len() >= MAX_PENDING_OF_USER && pending.since.elapsed() > SLOW;
        lock(&self.0.state).pending.get(&uid).is_some_and(is_blocked)
    }

    /// Closes a connection of the user.
    pub(crate) fn close(&self, uid: u32, fd: OwnedFd) {
        let mut state = lock(&self.0.state);
        if let Some(pending) = state.pending.get_mut(&uid) {
            return pending.fds.push(fd);
        }
        state.pending.insert(uid, Pending::new(vec![fd]));
        state.ready.push_back(uid);
        if state.ready.len() > state.idle
            && state.threads < MAX_THREADS
            && let Err(e) = self.start(&mut state)
        {
            tracing::warn!("no further thread that closes connections: {e}");
        }
        self.0.ready.notify_one();
    }
}

impl Shared {
    fn run(&self) {
        confine_packet_thread();
        loop {
            let mut state = lock(&self.state);
            state.idle += 1;
            state =
                self.ready.wait_while(state, |state| state.ready.is_empty()).unwrap_or_else(PoisonError::into_inner);
            state.idle -= 1;
            let Some(uid) = state.ready.pop_front() else { continue };
            while let Some(batch) = state.pending.insert(uid, Pending::new(Vec::new())).filter(|b| !b.fds.is_empty()) {
                drop(state);
                drop(batch);
                state = lock(&self.state);
            }
            state.pending.remove(&uid);
        }
    }
}
