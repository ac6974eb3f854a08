// SPDX-License-Identifier: BSD-2-Clause
//! The memory of the node's programs. Helper processes read and write it (see [`unetmap_sys::memory_helper`]), as a
//! page fault there may never end.
//!
//! A helper serves one request at a time. One that misses the deadline is killed, and replaced when the next request
//! needs one; until the kernel lets it exit, it counts as one of those that its user occupies.

use std::cell::Cell;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::{Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};

use unetmap_core::control::ioctl::UserMemory;
use unetmap_core::errno::{EFAULT, EINVAL};
use unetmap_sys::event::{PollFd, PollFlags, wait_readable};
use unetmap_sys::memory_helper::{MemoryHelper, Piece};
use unetmap_sys::thread::RemoteThread;

use crate::limits;
use crate::privileged::Helper;
use crate::subordinates::Subordinates;
use crate::threads::lock;
use crate::tuning::node::{CUT_CHECK, HELPER_WAIT_LIMIT, MAX_IDLE_HELPERS, MEMORY_LIMIT};

pub(super) const ETIMEDOUT: i32 = 110;

/// The helpers of a node.
#[derive(Default)]
pub(super) struct MemoryHelpers {
    state: Mutex<State>,
    /// A helper is idle again.
    freed: Condvar,
    /// When accesses end at the latest, while the daemon is to be replaced.
    cut: Mutex<Option<Instant>>,
}

#[derive(Default)]
struct State {
    idle: Vec<Helper>,
    /// Users of the requests that are being served, one entry for each.
    served: Vec<u32>,
    /// Helpers that were killed, and their users.
    killed: Vec<(u32, OwnedFd)>,
}

impl State {
    /// Whether another helper may work for this user: so many may for one user, and for all.
    fn has_room(&self, uid: u32, subordinates: &Subordinates, (of_user, all): (usize, usize)) -> bool {
        let users = || self.served.iter().chain(self.killed.iter().map(|(uid, _)| uid));
        let own = subordinates.sum(uid, users().map(|user| (*user, 1)));
        // Root is not refused because of other users.
        (own as usize) < of_user && (uid == 0 || users().count() < all)
    }

    /// Forgets the killed helpers that have exited.
    fn forget_exited(&mut self) {
        let runs = |pidfd: &OwnedFd| {
            let mut fds = [PollFd::from_borrowed_fd(pidfd.as_fd(), PollFlags::IN)];
            wait_readable(&mut fds, Some(Duration::ZERO)).is_ok_and(|ready| ready == 0)
        };
        self.killed.retain(|(_, pidfd)| runs(pidfd));
    }
}

impl MemoryHelpers {
    /// Starts the helpers that are kept, so that the first requests do not wait for them.
    pub(super) fn prepare(&self) -> io::Result<()> {
        let missing = MAX_IDLE_HELPERS.saturating_sub(lock(&self.state).idle.len());
        let helpers = (0..missing).map(|_| Helper::start()).collect::<io::Result<Vec<_>>>()?;
        lock(&self.state).idle.extend(helpers);
        Ok(())
    }

    /// Sets when accesses end at the latest, those that have begun included.
    pub(super) fn set_cut(&self, cut: Option<Instant>) {
        *lock(&self.cut) = cut;
    }

    fn cut(&self) -> Option<Instant> {
        *lock(&self.cut)
    }

    /// Whether accesses were cut off.
    pub(super) fn is_cut_off(&self) -> bool {
        self.cut().is_some_and(|cut| cut <= Instant::now())
    }

    fn end_by(&self, end: Instant) -> Instant {
        self.cut().map_or(end, |cut| cut.min(end))
    }

    /// Calls `access` with a helper, for a request of user `uid`.
    fn with_helper<T>(&self, uid: u32, access: impl Fn(&Helper) -> io::Result<T>) -> Result<T, i32> {
        let (mut state, end) = (lock(&self.state), Instant::now() + HELPER_WAIT_LIMIT);
        loop {
            state.forget_exited();
            if state.has_room(uid, &Subordinates::of_system(), limits::node_helpers()) {
                break;
            }
            let left = self.end_by(end).saturating_duration_since(Instant::now());
            if left.is_zero() {
                tracing::debug!(uid, "all helpers that may access memory of this user are occupied");
                return Err(ETIMEDOUT);
            }
            state = self.freed.wait_timeout(state, left.min(CUT_CHECK)).unwrap_or_else(PoisonError::into_inner).0;
        }
        state.served.push(uid);
        let idle = state.idle.pop();
        drop(state);
        let (result, helper) = run(idle, access);
        let mut state = lock(&self.state);
        if let Some(at) = state.served.iter().position(|user| *user == uid) {
            state.served.swap_remove(at);
        }
        match (&result, helper) {
            (Ok(_), Some(helper)) if state.idle.len() < MAX_IDLE_HELPERS => state.idle.push(helper),
            (Err(e), Some(helper)) => {
                tracing::debug!(uid, "a helper that accesses a program's memory is killed: {e}");
                helper.kill();
                if let Ok(pidfd) = helper.process.pidfd().try_clone() {
                    state.killed.push((uid, pidfd));
                }
            }
            _ => {}
        }
        drop(state);
        self.freed.notify_all();
        result.map_err(|e| match e.kind() {
            io::ErrorKind::TimedOut => ETIMEDOUT,
            _ => e.raw_os_error().unwrap_or(EFAULT),
        })
    }
}

/// Calls `access` with the idle helper, if there is one, else, or if that has exited, with a new one.
fn run<T>(idle: Option<Helper>, access: impl Fn(&Helper) -> io::Result<T>) -> (io::Result<T>, Option<Helper>) {
    if let Some(helper) = idle {
        match access(&helper) {
            Err(e) if is_exit(&e) => {}
            result => return (result, Some(helper)),
        }
    }
    match Helper::start() {
        Ok(helper) => (access(&helper), Some(helper)),
        Err(e) => {
            tracing::warn!("no process that accesses programs' memory can be started: {e}");
            (Err(e), None)
        }
    }
}

/// Whether the error means that the helper had exited: a service manager may have stopped it.
fn is_exit(e: &io::Error) -> bool {
    matches!(e.kind(), io::ErrorKind::BrokenPipe | io::ErrorKind::ConnectionReset | io::ErrorKind::NotFound)
}

/// The memory of a program during one request.
pub(super) struct ProgramMemory<'a> {
    helpers: &'a MemoryHelpers,
    thread: &'a RemoteThread,
    uid: u32,
    /// How long the accesses that follow may take together.
    left: Cell<Duration>,
}

impl<'a> ProgramMemory<'a> {
    /// The memory of the program whose thread, of user `uid`, waits for the answer.
    pub(super) fn new(helpers: &'a MemoryHelpers, thread: &'a RemoteThread, uid: u32) -> ProgramMemory<'a> {
        ProgramMemory { helpers, thread, uid, left: Cell::new(MEMORY_LIMIT) }
    }

    fn access<T>(&self, access: impl Fn(&MemoryHelper, &dyn Fn() -> Instant) -> io::Result<T>) -> Result<T, i32> {
        self.helpers.with_helper(self.uid, |helper| {
            let start = Instant::now();
            let end = || self.helpers.end_by(start + self.left.get());
            let result = helper.use_for(self.thread).and_then(|()| access(&helper.process, &end));
            self.left.set(self.left.get().saturating_sub(start.elapsed()));
            result
        })
    }

    /// Reads pieces; returns the bytes of each, or an errno.
    ///
    /// # Errors
    /// `ETIMEDOUT`; the errno of a helper that cannot be started.
    pub(super) fn read_pieces(&self, pieces: &[Piece]) -> Result<Vec<Result<Vec<u8>, i32>>, i32> {
        self.access(|helper, end| helper.read(self.thread, pieces, end))
    }
}

impl UserMemory for ProgramMemory<'_> {
    fn read(&self, from: u64, into: &mut [u8]) -> Result<(), i32> {
        let piece = Piece { at: from, len: into.len() as u64 };
        let bytes = self.read_pieces(&[piece])?.pop().ok_or(EINVAL)??;
        into.copy_from_slice(&bytes);
        Ok(())
    }

    fn write(&self, to: u64, bytes: &[u8]) -> Result<(), i32> {
        match self.access(|helper, end| helper.write(self.thread, to, bytes, end))? {
            0 => Ok(()),
            errno => Err(errno),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn helpers_of_subordinate_users_are_their_owners() {
        const OWNER: u32 = 3_000_000_000;
        let all = Subordinates::parse("3000000000:3000000001:9", |_| None);
        let state = State { served: (0..4).map(|n| OWNER + n).collect(), ..State::default() };
        let has_room = |uid, most| state.has_room(uid, &all, most);
        assert!(!has_room(OWNER, (4, 8)) && !has_room(OWNER + 9, (4, 8)) && has_room(OWNER + 10, (4, 8)));
        assert!(has_room(OWNER, (5, 8)) && !has_room(OWNER + 10, (4, 4)) && has_room(0, (4, 4)));
    }
}
