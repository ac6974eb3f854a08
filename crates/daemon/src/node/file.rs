// SPDX-License-Identifier: BSD-2-Clause
//! An open file of the node.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::Instant;

use serde::{Deserialize, Serialize};
use unetmap_core::{Error, Interest, Port};
use unetmap_sys::fuse::Requester;

use super::backoff::Backoff;
use super::jobs::{Job, JobQueue};
use super::mount::{Mount, RequestId};
use crate::threads::lock;
use crate::user_arena::UserArena;

/// A request whose answer may take long.
pub(super) struct SlowRequest {
    pub(super) id: RequestId,
    pub(super) from: Requester,
    pub(super) op: SlowOp<Arc<File>>,
}

/// The operation of a slow request; `F` is a file, or its number.
#[derive(Serialize, Deserialize)]
pub(super) enum SlowOp<F> {
    /// Opens a file for a user with no open file, or with too many.
    Open,
    /// `NIOCCTRL`, `NIOCREGIF`, `NIOCGINFO`: the file, the request's number and what its argument points to.
    Control(F, u32, Vec<u8>),
    /// A sync, or a poll, of a port with packets to send whose data is in the program's memory.
    Indirect(F, Option<Poll>),
}

/// A poll.
#[derive(Clone, Copy, Serialize, Deserialize)]
pub(super) struct Poll {
    pub(super) kh: u64,
    pub(super) events: u32,
    pub(super) sleeps: bool,
}

/// `POLLIN`, `POLLOUT` and their twins; `POLLERR`.
const READ: u32 = 0x0001 | 0x0040;
const WRITE: u32 = 0x0004 | 0x0100;
const ERROR: u32 = 0x0008;

/// An open file.
pub(super) struct File {
    pub(super) fh: u64,
    pub(super) uid: u32,
    /// The mount through which it was opened. All its requests come from there.
    pub(super) mount: Arc<Mount>,
    pub(super) arena: Arc<UserArena>,
    /// Bound at most once.
    port: OnceLock<Port>,
    /// Held during a sync. A sync skips a ring that another thread is syncing: without this one the waker, which the
    /// program does not know, would make the program's own calls do nothing.
    syncing: Mutex<()>,
    state: Mutex<State>,
    /// The kernel's handle of its polls, which is the same for all of them; 0 before the first.
    kh: AtomicU64,
    lingering: Mutex<Option<Lingering>>,
    /// Whether to spin for the events of its polls, and whether to hold the polls.
    pub(super) spinning: Backoff,
    pub(super) holding: Backoff,
}

/// The last poll that found something ready.
#[derive(Clone, Copy)]
pub(super) struct Lingering {
    pub(super) kh: u64,
    pub(super) want: Interest,
    pub(super) since: Instant,
    /// The rings' positions then, as [`super::waker`] combines them.
    pub(super) at: u32,
}

/// The state of a file.
#[derive(Default)]
pub(super) struct State {
    /// Whether the last duplicate is closed.
    closed: bool,
    session: Option<u64>,
    /// Whether a slow request is being answered, and the requests that wait for it.
    busy: bool,
    waiting: std::collections::VecDeque<SlowRequest>,
}

impl File {
    pub(super) fn new(fh: u64, uid: u32, mount: Arc<Mount>, arena: Arc<UserArena>) -> File {
        File {
            fh,
            uid,
            mount,
            arena,
            port: OnceLock::new(),
            syncing: Mutex::default(),
            state: Mutex::default(),
            kh: AtomicU64::new(0),
            lingering: Mutex::default(),
            spinning: Backoff::default(),
            holding: Backoff::default(),
        }
    }

    /// A file of an earlier daemon, which has no port until [`File::set_port`].
    pub(super) fn restored(self, session: Option<u64>, kh: u64) -> File {
        lock(&self.state).session = session;
        self.polled_with(kh);
        self
    }

    /// Gives a file of an earlier daemon its port.
    pub(super) fn set_port(&self, port: Port) {
        let _ = self.port.set(port);
    }

    /// Takes away the session of a file without a port, which cannot have one.
    pub(super) fn take_session(&self) -> Option<u64> {
        lock(&self.state).session.take()
    }

    /// Records the handle of a poll.
    pub(super) fn polled_with(&self, kh: u64) {
        self.kh.store(kh, Ordering::Relaxed);
    }

    /// The handle of its polls, if there was one.
    pub(super) fn kh(&self) -> Option<u64> {
        Some(self.kh.load(Ordering::Relaxed)).filter(|kh| *kh != 0)
    }

    pub(super) fn port(&self) -> Option<&Port> {
        self.port.get()
    }

    /// Calls `sync` with the port while no other thread of the node syncs its rings. `sync` must not call this.
    pub(super) fn sync<T>(&self, sync: impl FnOnce(&Port) -> T) -> Option<T> {
        let port = self.port()?;
        let _guard = lock(&self.syncing);
        Some(sync(port))
    }

    /// As [`Port::poll_now`]; nothing is ready where no port is bound.
    pub(super) fn poll_now(&self, want: Interest) -> Result<Interest, Error> {
        self.sync(|port| port.poll_now(want)).unwrap_or(Ok(Interest::NONE))
    }

    pub(super) fn session(&self) -> Option<u64> {
        lock(&self.state).session
    }

    /// Binds a port to the file. If the file is closed by now, the session is closed at once.
    pub(super) fn bind(&self, session: u64, port: Port, jobs: &JobQueue) {
        let mut state = lock(&self.state);
        if state.closed || self.port.set(port).is_err() {
            jobs.push(Job::Close(session));
        } else {
            state.session = Some(session);
        }
    }

    /// Handles that the last duplicate was closed.
    pub(super) fn close(&self, jobs: &JobQueue) {
        let mut state = lock(&self.state);
        state.closed = true;
        if let Some(session) = state.session.take() {
            jobs.push(Job::Close(session));
        }
    }

    /// Returns the request if no other is being answered; otherwise stores it.
    pub(super) fn begin(&self, request: SlowRequest) -> Option<SlowRequest> {
        let mut state = lock(&self.state);
        if state.busy {
            state.waiting.push_back(request);
            return None;
        }
        state.busy = true;
        Some(request)
    }

    /// Returns the next stored request.
    pub(super) fn next(&self) -> Option<SlowRequest> {
        let mut state = lock(&self.state);
        let next = state.waiting.pop_front();
        state.busy = next.is_some();
        next
    }

    /// Records a poll that found something ready; returns whether the file lingered before.
    pub(super) fn linger(&self, poll: Lingering) -> bool {
        lock(&self.lingering).replace(poll).is_some()
    }

    pub(super) fn lingers_since(&self) -> Option<Instant> {
        lock(&self.lingering).map(|poll| poll.since)
    }

    pub(super) fn stop_lingering(&self) -> Option<Lingering> {
        lock(&self.lingering).take()
    }

    /// Whether the two are the endpoints of one pipe, according to their names.
    pub(super) fn is_peer_of(&self, other: &File) -> bool {
        let (Some(one), Some(other)) = (self.port(), other.port()) else { return false };
        are_endpoints(one.spec(), other.spec())
    }

    /// As [`File::sync`], unless the file is closed. The session is not closed before this returns.
    pub(super) fn while_open<T>(&self, check: impl FnOnce(&Port) -> T) -> Option<T> {
        let state = lock(&self.state);
        if state.closed {
            return None;
        }
        self.sync(check)
    }
}

/// Whether two names differ only in the sign of the pipe's endpoint.
fn are_endpoints(one: &str, other: &str) -> bool {
    let sign = |byte| matches!(byte, b'{' | b'}');
    let alike = |(a, b): (u8, u8)| a == b || sign(a) && sign(b);
    one != other && one.len() == other.len() && one.bytes().zip(other.bytes()).all(alike)
}

/// The events that poll waits for.
pub(super) fn interest(events: u32) -> Interest {
    let rx = if events & READ != 0 { Interest::RX } else { Interest::NONE };
    let tx = if events & WRITE != 0 { Interest::TX } else { Interest::NONE };
    rx | tx
}

/// The events that poll returns.
pub(super) fn revents(events: u32, ready: Result<Interest, Error>) -> u32 {
    match ready {
        Err(_) => ERROR,
        Ok(ready) => {
            let read = if ready.rx() { events & READ } else { 0 };
            let write = if ready.tx() { events & WRITE } else { 0 };
            read | write
        }
    }
}

/// The events of a file without a port.
pub(super) const UNBOUND: u32 = ERROR;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn endpoints_of_a_pipe_are_recognized_by_name() {
        assert!(are_endpoints("a{1", "a}1") && are_endpoints("vale0:x}12", "vale0:x{12"));
        for (one, other) in [("a{1", "a{1"), ("a{1", "a}2"), ("a{1", "b}1"), ("a{1", "a}12"), ("a", "a"), ("a", "b")] {
            assert!(!are_endpoints(one, other), "{one} {other}");
        }
    }
}
