// SPDX-License-Identifier: BSD-2-Clause
//! Giving a state: the daemon that is replaced does so, or the store after a crash.

use std::io;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::time::Instant;

use unetmap_sys::event::{PollFd, PollFlags, wait_readable};

use super::{Reply, Request, State};
use crate::channel::{receive, send_until};

/// The process that takes over. Errors are those of the connection, or that it has ended.
pub(super) struct Successor<'a> {
    connection: &'a OwnedFd,
    /// When it must have everything.
    end: Instant,
}

impl Successor<'_> {
    pub(super) fn new(connection: &OwnedFd, end: Instant) -> Successor<'_> {
        Successor { connection, end }
    }

    /// Gives it a state, and waits until it has rebuilt that.
    pub(super) fn give(&self, state: &State, fds: &[BorrowedFd<'_>]) -> io::Result<()> {
        state.send(self.connection, fds, || Instant::now() < self.end)?;
        self.expect(|request| matches!(request, Request::Ready))
    }

    /// Tells it the positions, or that there are none, and waits until it has taken over.
    pub(super) fn finish(&self, positions: &Reply) -> io::Result<()> {
        self.send(positions)?;
        self.expect(|request| matches!(request, Request::Commit))
    }

    pub(super) fn send(&self, reply: &Reply) -> io::Result<()> {
        send_until(self.end, self.connection, reply, &[])
    }

    /// Waits for a request.
    pub(super) fn expect(&self, which: impl Fn(&Request) -> bool) -> io::Result<()> {
        let left = self.end.saturating_duration_since(Instant::now());
        wait_readable(&mut [PollFd::new(self.connection, PollFlags::IN)], Some(left))?;
        if Instant::now() >= self.end {
            return Err(io::Error::new(io::ErrorKind::TimedOut, "it took too long to take over: try again"));
        }
        match receive::<Request>(self.connection, 0)? {
            Some((request, _)) if which(&request) => Ok(()),
            _ => Err(io::Error::other("it has ended")),
        }
    }
}
