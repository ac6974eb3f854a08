//! An open file of the node.

use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Instant;

use unetmap_core::{Error, Interest, Port};

use super::hold::Worth;
use super::serve::Long;
use super::way::Way;
use super::{Desk, Job};
use crate::user_arena::UserArena;

/// `POLLIN`, `POLLOUT` and their twins; `POLLERR`.
const READ: u32 = 0x0001 | 0x0040;
const WRITE: u32 = 0x0004 | 0x0100;
const ERROR: u32 = 0x0008;

/// What is open.
pub(super) struct File {
    pub(super) fh: u64,
    pub(super) uid: u32,
    /// By which it was opened, and all its requests come.
    pub(super) way: Arc<Way>,
    pub(super) arena: Arc<UserArena>,
    /// Bound once, if at all.
    port: OnceLock<Port>,
    state: Mutex<State>,
    lingering: Mutex<Option<Lingering>>,
    /// Whether it is worth while to wait awake for what its polls ask for, and to hold them.
    pub(super) awaiting: Worth,
    pub(super) holding: Worth,
}

/// The last poll that found something ready.
#[derive(Clone, Copy)]
pub(super) struct Lingering {
    pub(super) kh: u64,
    pub(super) want: Interest,
    pub(super) since: Instant,
    /// Where the rings stood.
    pub(super) at: u32,
}

/// What changes of it.
#[derive(Default)]
pub(super) struct State {
    /// The last duplicate of it is closed.
    closed: bool,
    session: Option<u64>,
    /// Whether a request is being answered, and those that wait for their turn.
    busy: bool,
    waiting: std::collections::VecDeque<Long>,
}

impl File {
    pub(super) fn new(fh: u64, uid: u32, way: Arc<Way>, arena: Arc<UserArena>) -> File {
        File {
            fh,
            uid,
            way,
            arena,
            port: OnceLock::new(),
            state: Mutex::default(),
            lingering: Mutex::default(),
            awaiting: Worth::default(),
            holding: Worth::default(),
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn port(&self) -> Option<&Port> {
        self.port.get()
    }

    pub(super) fn session(&self) -> Option<u64> {
        self.state().session
    }

    /// A port was bound to it. If it is closed by now, the session is over at once.
    pub(super) fn bind(&self, session: u64, port: Port, desk: &Desk) {
        let mut state = self.state();
        if state.closed || self.port.set(port).is_err() {
            desk.put(Job::Close(session));
        } else {
            state.session = Some(session);
        }
    }

    /// The last duplicate of it is closed.
    pub(super) fn close(&self, desk: &Desk) {
        let mut state = self.state();
        state.closed = true;
        if let Some(session) = state.session.take() {
            desk.put(Job::Close(session));
        }
    }

    /// The turn of `long` has come; else it is kept until then.
    pub(super) fn begin(&self, long: Long) -> Option<Long> {
        let mut state = self.state();
        if state.busy {
            state.waiting.push_back(long);
            return None;
        }
        state.busy = true;
        Some(long)
    }

    /// Whose turn it is next.
    pub(super) fn next(&self) -> Option<Long> {
        let mut state = self.state();
        let next = state.waiting.pop_front();
        state.busy = next.is_some();
        next
    }

    /// Notes a poll that found something ready; whether the file lingered before.
    pub(super) fn linger(&self, poll: Lingering) -> bool {
        self.lingering.lock().unwrap_or_else(PoisonError::into_inner).replace(poll).is_some()
    }

    pub(super) fn lingers_since(&self) -> Option<Instant> {
        self.lingering.lock().unwrap_or_else(PoisonError::into_inner).map(|poll| poll.since)
    }

    pub(super) fn linger_no_more(&self) -> Option<Lingering> {
        self.lingering.lock().unwrap_or_else(PoisonError::into_inner).take()
    }

    /// Whether the two are the ends of one pipe, by their names.
    pub(super) fn is_peer_of(&self, other: &File) -> bool {
        let (Some(one), Some(other)) = (self.port(), other.port()) else { return false };
        are_ends(one.spec(), other.spec())
    }

    /// Does `look` with the port, unless it is closed: its session is not over before this returns.
    pub(super) fn while_open<T>(&self, look: impl FnOnce(&Port) -> T) -> Option<T> {
        let state = self.state();
        let port = self.port().filter(|_| !state.closed)?;
        Some(look(port))
    }
}

/// Whether two names are alike but for the sign that says which end of a pipe it is.
fn are_ends(one: &str, other: &str) -> bool {
    let sign = |byte| matches!(byte, b'{' | b'}');
    let alike = |(a, b): (u8, u8)| a == b || sign(a) && sign(b);
    one != other && one.len() == other.len() && one.bytes().zip(other.bytes()).all(alike)
}

/// What poll waits for.
pub(super) fn interest(events: u32) -> Interest {
    let rx = if events & READ != 0 { Interest::RX } else { Interest::NONE };
    let tx = if events & WRITE != 0 { Interest::TX } else { Interest::NONE };
    rx | tx
}

/// What poll tells.
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

/// Without a port.
pub(super) const UNBOUND: u32 = ERROR;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ends_of_a_pipe_know_each_other_by_name() {
        assert!(are_ends("a{1", "a}1") && are_ends("vale0:x}12", "vale0:x{12"));
        for (one, other) in [("a{1", "a{1"), ("a{1", "a}2"), ("a{1", "b}1"), ("a{1", "a}12"), ("a", "a"), ("a", "b")] {
            assert!(!are_ends(one, other), "{one} {other}");
        }
    }
}
