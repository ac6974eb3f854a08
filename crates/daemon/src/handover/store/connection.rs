// SPDX-License-Identifier: BSD-2-Clause
//! The daemon's connection to one store.
//!
//! At most one state is on its way: its descriptors count against the limit of the daemon's user until they are
//! received, and so do those that programs have not received.

use std::io;
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
use std::time::Instant;

use unetmap_core::errno::ETOOMANYREFS;
use unetmap_sys::event::hung_up;
use unetmap_sys::socket;

use super::messages::{Answer, Message};
use crate::channel;
use crate::handover::State;
use crate::ports::mediators::PausedThread;
use crate::tuning::handover::REPLY_LIMIT;
use crate::tuning::store::{OWN_FILES, PUSH_LIMIT, SEND_LIMIT};

/// Why a store was not told something.
pub(super) enum Failure {
    /// It may be told again. A sentence.
    Why(String),
    /// Its process has ended.
    Ended(io::Error),
}

impl From<io::Error> for Failure {
    fn from(e: io::Error) -> Failure {
        match (e.kind(), e.raw_os_error()) {
            (_, Some(ETOOMANYREFS)) => Failure::Why(
                "programs have not received what the daemon has sent them, and the kernel lets it send no more \
                 descriptors meanwhile (ETOOMANYREFS)"
                    .into(),
            ),
            (io::ErrorKind::WouldBlock, _) => Failure::Why(UNREAD.into()),
            (io::ErrorKind::BrokenPipe | io::ErrorKind::ConnectionReset, _) => Failure::Ended(e),
            _ => Failure::Why(format!("the process that keeps the ports cannot be told: {e}")),
        }
    }
}

/// Why nothing more is sent.
pub(crate) const UNREAD: &str = "the process that keeps the ports does not receive what it is sent";

/// A state that was sent, and of which the store has not said that it keeps it.
struct Sent {
    sessions: usize,
    fds: usize,
    at: Instant,
}

pub(super) struct Connection {
    fd: OwnedFd,
    is_watched: bool,
    /// The process, and how many descriptors it may have; `None`: it has not started yet.
    pub(super) serves: Option<(u32, usize)>,
    /// Descriptors of what it keeps.
    held: usize,
    /// Sessions of what it keeps; `None`: nothing, or what an earlier daemon had.
    pub(super) kept: Option<usize>,
    sent: Option<Sent>,
    /// Whether descriptors that are not kept may still be on their way.
    has_strays: bool,
}

impl Connection {
    /// The process at the other end.
    pub(super) fn new(fd: OwnedFd) -> io::Result<Connection> {
        socket::set_timeout(&fd, SEND_LIMIT)?;
        Ok(Connection { fd, is_watched: false, serves: None, held: 0, kept: None, sent: None, has_strays: false })
    }

    /// The same, when it has started.
    pub(super) fn started(fd: OwnedFd) -> io::Result<Connection> {
        let mut connection = Connection::new(fd)?;
        socket::set_timeout(&connection.fd, REPLY_LIMIT)?;
        while connection.serves.is_none() {
            connection.take_answer()?;
        }
        socket::set_timeout(&connection.fd, SEND_LIMIT)?;
        Ok(connection)
    }

    /// Whether it keeps anything, or is to.
    pub(super) fn has_any(&self) -> bool {
        self.held > 0 || self.sent.is_some()
    }

    /// Since when its answer is expected.
    pub(super) fn sent_at(&self) -> Option<Instant> {
        self.sent.as_ref().map(|sent| sent.at)
    }

    /// Returns the descriptor, the first time.
    pub(super) fn take_unwatched(&mut self) -> Option<&OwnedFd> {
        (!std::mem::replace(&mut self.is_watched, true)).then_some(&self.fd)
    }

    /// Takes the answers that are there; returns whether it keeps the state that was sent, or why not, if it has said.
    ///
    /// # Errors
    /// Its process has ended.
    pub(super) fn take_answers(&mut self) -> io::Result<Option<Result<(), String>>> {
        let mut known = None;
        while socket::has_input(&self.fd) {
            known = self.take_answer()?.1.or(known);
        }
        if hung_up(self.fd.as_fd()) { Err(io::ErrorKind::ConnectionReset.into()) } else { Ok(known) }
    }

    /// Waits for an answer; returns whether it is that to `Sync`, and that of [`Connection::take_answers`].
    fn take_answer(&mut self) -> io::Result<(bool, Option<Result<(), String>>)> {
        let answer = channel::receive::<Answer>(&self.fd, 0)?.ok_or(io::ErrorKind::ConnectionReset)?.0;
        Ok(match (answer, self.sent.is_some()) {
            (Answer::Serves { pid, files, held }, _) => {
                self.serves = Some((pid, usize::try_from(files).unwrap_or(usize::MAX)));
                self.held = held;
                (false, None)
            }
            (Answer::Kept, true) => {
                let sent = self.sent.take();
                self.held = sent.as_ref().map_or(0, |sent| sent.fds);
                self.kept = sent.map(|sent| sent.sessions);
                (false, Some(Ok(())))
            }
            (Answer::Failed(why), true) => {
                self.sent = None;
                (false, Some(Err(why)))
            }
            // Of a state of which the rest was not sent.
            (Answer::Kept | Answer::Failed(_), false) => (false, None),
            (Answer::Synced, _) => (true, None),
        })
    }

    /// Sends a state, unless the last one is still on its way. What is kept stays so until this one is, if the store
    /// may have both.
    pub(super) fn push(&mut self, state: &State, fds: &[BorrowedFd<'_>]) -> Result<(), Failure> {
        if self.sent.is_some() {
            self.take_answer()?;
        }
        if self.sent.is_some() || self.has_strays && !socket::all_received(&self.fd)? {
            return Err(Failure::Why(UNREAD.into()));
        }
        if std::mem::take(&mut self.has_strays) {
            self.send(&Message::Discard, &[])?;
        }
        // Answers that were not waited for were sent before it received the last message.
        self.take_answers()?;
        let Some((_, files)) = self.serves else {
            return Err(Failure::Why("the process that is to keep the ports has not started yet".into()));
        };
        let needs = fds.len() + OWN_FILES;
        if needs > files {
            return Err(Failure::Why(format!(
                "the open ports have {} descriptors, and the process that keeps them may have {}: raise the limit of \
                 open files of the daemon (ulimit -n, LimitNOFILE= of its unit), or close ports",
                fds.len(),
                files.saturating_sub(OWN_FILES)
            )));
        }
        if needs + self.held > files {
            self.forget()?;
        }
        let of_clients = state.clients.iter().filter(|client| client.session.is_some()).count();
        let sessions = of_clients + state.mediators.iter().flat_map(PausedThread::sessions).count();
        // Its own descriptors are about to be received; for those of others the next attempt waits.
        let end = Instant::now() + PUSH_LIMIT;
        let again = || Instant::now() < end && socket::all_received(&self.fd).is_ok_and(|all| !all);
        if let Err(e) = state.send(&self.fd, fds, again) {
            self.has_strays = true;
            // What has come of it would be kept open.
            let _ = self.send(&Message::Discard, &[]);
            return Err(e.into());
        }
        self.sent = Some(Sent { sessions, fds: fds.len(), at: Instant::now() });
        Ok(())
    }

    /// Has nothing kept.
    pub(super) fn forget(&mut self) -> Result<(), Failure> {
        if self.has_any() {
            self.send(&Message::Nothing, &[])?;
            self.has_strays |= self.sent.is_some();
            // Its answer to a state before this message is discarded.
            (self.held, self.kept, self.sent) = (0, None, None);
        }
        Ok(())
    }

    /// Waits until the store has closed what it does not keep any more.
    pub(super) fn sync(&mut self) -> io::Result<()> {
        self.send(&Message::Sync, &[])?;
        while !self.take_answer()?.0 {}
        Ok(())
    }

    pub(super) fn send(&self, message: &Message, fds: &[BorrowedFd<'_>]) -> io::Result<()> {
        channel::send(&self.fd, message, fds)
    }
}
