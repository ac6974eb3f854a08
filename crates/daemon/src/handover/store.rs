// SPDX-License-Identifier: BSD-2-Clause
//! Going on after a crash (`--keep-ports`): another process, the *store*, has the daemon's state and duplicates of its
//! descriptors, as they are handed to a successor ([`crate::handover`]), and starts the daemon again with them.
//!
//! ```text
//! daemon                              store
//!                            <--      Serves
//!   Descriptors, State       -->      what is kept from now on, after each change (at most every KEEP_PAUSE)
//!                            <--      Kept: only then the next state follows; or Failed: what was kept before still is
//!   Discard                  -->      the rest of a state does not follow: what was kept before still is
//!   Nothing                  -->      nothing can be kept for a while: a crash ends all ports
//!   Sync                     -->
//!                            <--      Synced: what is not kept any more is closed
//!   Spare                    -->      starts another store, which is told nothing while this one runs
//!   Ended                    -->      exits
//!   (its end is closed)               starts a daemon, to which it is a predecessor that has crashed
//! ```
//! A port that was opened since the state was kept has the old end: its connection is closed. So is the connection
//! whose message the daemon was answering: its program would wait for the answer without end, and may be the cause. The
//! node ends, as its requests would have no answer. The broker goes on, as the store has its connections, too. To a
//! service manager the store is the main process of the unit, which thus does not end with the daemon.
//!
//! A state that cannot be sent is sent again, after a pause that grows. Meanwhile a crash has what was kept before, if
//! that can be used: a connection that was closed since is found closed, but a queue's socket may have to be closed in
//! the store, too, and a state with an interface that has changed is of no use. Such a state is dropped. If the store
//! ends, its spare takes its place: the daemon, which has given up its rights, could not start one.
//!
//! The store reads nothing that a program can write. The daemon takes from shared memory only the positions of switch
//! ports, which the program that has the port can have written: they are checked as always.

mod connection;
mod messages;
mod process;
mod protection;

use std::collections::VecDeque;
use std::ffi::OsString;
use std::fs::File;
use std::io;
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use unetmap_sys::{memfd, process as own_process, socket};

use crate::broker;
use crate::handover::State;
use crate::tuning::store::{
    ANSWER_LIMIT, CLOSED_LIMIT, KEEP_PAUSE, KEEP_SHARE, MAX_KEEP_PAUSE, MAX_RETRY_PAUSE, MAX_SPARES, RETRY_PAUSE,
    SPARE_PERIOD,
};
use connection::{Connection, Failure};
use messages::Message;

pub(crate) use connection::UNREAD;
pub(crate) use process::run;
pub(crate) use protection::{Protection, ProtectionSnapshot};

/// This program, also if its file was replaced since: the next one may have another state.
const OWN_PROGRAM: &str = "/proc/self/exe";

/// Whether a daemon can go on with what is kept: each state less than the one before.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Freshness {
    Current,
    /// It can, but something may have changed since, of which it would not know.
    Changed,
    /// It can, unless what has changed since cannot be kept.
    Obsolete,
    /// It cannot: this is replaced at once.
    Stale,
}

/// The daemon's side.
pub(crate) struct Store {
    /// The process that keeps the state; `None`: it has ended, and there was no other.
    connection: Option<Connection>,
    /// The process that takes its place if it ends.
    spare: Option<Connection>,
    /// When the last spares were started.
    spares: VecDeque<Instant>,
    /// The token of the connection whose message is being answered.
    mark: Arc<File>,
    /// Of what is kept.
    freshness: Freshness,
    /// When it is told next at the earliest.
    due: Instant,
    /// When the last failure was, and the pause after it.
    failed: Option<(Instant, Duration)>,
    /// Since when it may have duplicates of sockets of queues that were closed.
    closed: Option<Instant>,
    /// Since when nothing is kept, as an interface is being opened or closed.
    waits: Option<Instant>,
    /// This process's connections to the broker, of which any may be in use for a while.
    broker: Option<Arc<broker::Duplicates>>,
}

impl Store {
    /// Starts the process, which is to start a daemon with these arguments.
    ///
    /// # Errors
    /// Errors of starting a process; it does not answer.
    pub(crate) fn start(mut args: Vec<OsString>, socket: &Path) -> io::Result<Store> {
        let (own, its) = socket::pair()?;
        args.extend(["--store".into(), "3".into()]);
        let log = File::from(io::stderr().as_fd().try_clone_to_owned()?);
        own_process::spawn_detached(Path::new(OWN_PROGRAM), &broker::process_name("store", socket), &args, its, log)?;
        Store::of(own)
    }

    /// The process at the other end of a connection.
    ///
    /// # Errors
    /// It does not answer; a lack of descriptors.
    pub(crate) fn of(connection: OwnedFd) -> io::Result<Store> {
        let connection = Connection::started(connection)?;
        let mark = File::from(memfd::create_unsealed("unetmap-mark")?);
        mark.write_all_at(&[0; 8], 0)?;
        Ok(Store {
            connection: Some(connection),
            spare: None,
            spares: VecDeque::new(),
            mark: Arc::new(mark),
            freshness: Freshness::Changed,
            due: Instant::now(),
            failed: None,
            closed: None,
            waits: None,
            broker: None,
        })
    }

    /// Something may have changed.
    pub(crate) fn changed(&mut self) {
        self.freshness = self.freshness.max(Freshness::Changed);
    }

    /// The same, and what is kept now must not be used.
    pub(crate) fn changed_now(&mut self) {
        (self.freshness, self.due) = (Freshness::Stale, Instant::now());
    }

    /// The same, and what is kept now must not be used, unless it is replaced at the next turn.
    pub(crate) fn set_obsolete(&mut self) {
        self.freshness = self.freshness.max(Freshness::Obsolete);
    }

    /// Whether it is to be told now; else the time until then, or until its answer is overdue.
    pub(crate) fn is_due(&self, now: Instant) -> Result<(), Option<Duration>> {
        let Some(connection) = &self.connection else { return Err(None) };
        let until = |at: Instant| at.saturating_duration_since(now);
        match connection.sent_at() {
            Some(sent) if self.freshness < Freshness::Stale => {
                Err(Some(until(sent + ANSWER_LIMIT)).filter(|left| !left.is_zero()))
            }
            _ if self.freshness == Freshness::Current => Err(None),
            _ if now < self.due => Err(Some(until(self.due))),
            _ => Ok(()),
        }
    }

    /// Whether it was to say that it keeps a state long ago. If that is obsolete, it is to keep nothing.
    pub(crate) fn is_overdue(&mut self, now: Instant) -> bool {
        let Some(connection) = &mut self.connection else { return false };
        let is_overdue = connection.sent_at().is_some_and(|sent| now >= sent + ANSWER_LIMIT);
        if is_overdue && self.freshness >= Freshness::Obsolete && connection.forget().is_ok() {
            self.freshness = Freshness::Changed;
        }
        is_overdue
    }

    /// Has a spare started, if there is none; returns the time until that is tried again.
    pub(crate) fn start_spare(&mut self, now: Instant) -> Option<Duration> {
        let connection = self.connection.as_mut().filter(|_| self.spare.is_none())?;
        self.spares.retain(|start| now.duration_since(*start) < SPARE_PERIOD);
        if self.spares.len() >= MAX_SPARES {
            return self.spares.front().map(|first| (*first + SPARE_PERIOD).saturating_duration_since(now));
        }
        self.spares.push_back(now);
        let spare = socket::pair().and_then(|(own, its)| {
            connection.send(&Message::Spare, &[its.as_fd()])?;
            Connection::new(own)
        });
        // Without one this process ends the protection with it; it is tried again.
        self.spare = spare.inspect_err(|e| tracing::debug!("no other process to keep the ports: {e}")).ok();
        self.spare.is_none().then_some(RETRY_PAUSE)
    }

    /// Connections that the event loop does not watch yet.
    pub(crate) fn take_unwatched(&mut self) -> impl Iterator<Item = &OwnedFd> {
        self.connection.iter_mut().chain(&mut self.spare).filter_map(Connection::take_unwatched)
    }

    /// Takes the answers that are there. Returns what has become of the state that was sent last, if that is known, or
    /// that its process has ended.
    pub(crate) fn take_answers(&mut self) -> Option<Result<(), String>> {
        if self.spare.as_mut().is_some_and(|spare| spare.take_answers().is_err()) {
            self.spare = None;
        }
        let answer = self.connection.as_mut()?.take_answers();
        match answer {
            Ok(None) => None,
            Ok(Some(Ok(()))) => Some(Ok(())),
            Ok(Some(Err(why))) => Some(Err(self.fail(Failure::Why(why)))),
            Err(e) => Some(Err(self.fail(e.into()))),
        }
    }

    /// The messages of a connection are being answered from now on; 0: of none.
    pub(crate) fn set_mark(&self, token: u64) {
        let _ = self.mark.write_all_at(&token.to_ne_bytes(), 0);
    }

    pub(crate) fn mark(&self) -> Arc<File> {
        self.mark.clone()
    }

    /// Tells the store what to keep; an error says why there is nothing to keep. `closed`: a socket of a queue was
    /// closed, of which the store may have a duplicate: the queue cannot be opened until that is closed.
    ///
    /// # Errors
    /// Why it is not kept, a sentence; it is to be told again.
    pub(crate) fn keep(
        &mut self,
        state: Result<(State, &[BorrowedFd<'_>]), String>,
        closed: bool,
    ) -> Result<(), String> {
        let start = Instant::now();
        if closed {
            self.closed.get_or_insert(start);
        }
        self.tell(state).map_err(|failure| self.fail(failure))?;
        (self.freshness, self.waits) = (Freshness::Current, None);
        // A small share of the time, even of many ports.
        self.due = Instant::now() + (start.elapsed() * KEEP_SHARE).clamp(KEEP_PAUSE, MAX_KEEP_PAUSE);
        Ok(())
    }

    fn tell(&mut self, state: Result<(State, &[BorrowedFd<'_>]), String>) -> Result<(), Failure> {
        let Some(connection) = &mut self.connection else {
            return Err(io::Error::from(io::ErrorKind::BrokenPipe).into());
        };
        let is_unusable = self.freshness >= Freshness::Obsolete || self.closed.is_some() || state.is_err();
        let sent = state.map_err(Failure::Why).and_then(|(state, fds)| connection.push(&state, fds));
        if sent.is_err() && is_unusable {
            connection.forget()?;
            self.freshness = Freshness::Changed;
        }
        if self.closed.is_some() {
            connection.sync()?;
            self.closed = None;
        }
        sent
    }

    /// Something was not kept: it is tried again after a pause, by another process if this one has ended. Returns why.
    fn fail(&mut self, failure: Failure) -> String {
        let now = Instant::now();
        let pause = match self.failed {
            Some((last, pause)) if now < last + 2 * MAX_RETRY_PAUSE => (2 * pause).min(MAX_RETRY_PAUSE),
            _ => RETRY_PAUSE,
        };
        (self.failed, self.due) = (Some((now, pause)), now + pause);
        self.changed();
        match failure {
            Failure::Why(why) => why,
            Failure::Ended(e) => {
                tracing::debug!("the connection to the process that keeps the ports: {e}");
                (self.connection, self.closed, self.due) = (self.spare.take(), None, now);
                self.freshness = Freshness::Changed;
                match self.connection {
                    Some(_) => "the process that keeps the ports has ended, and another one takes its place".into(),
                    None => {
                        "the processes that keep the ports have ended: unetmapd --replace --keep-ports has new ones"
                            .into()
                    }
                }
            }
        }
    }

    /// Sets the broker that the next daemon goes on with. Call it before requests are served.
    pub(crate) fn set_broker(&mut self, broker: Option<broker::Duplicates>) {
        self.broker = broker.map(Arc::new);
    }

    pub(crate) fn broker(&self) -> Option<&Arc<broker::Duplicates>> {
        self.broker.as_ref()
    }

    /// Its process, if there is one.
    pub(crate) fn pid(&self) -> Option<u32> {
        self.connection.as_ref()?.serves.map(|(pid, _)| pid)
    }

    /// Sessions that are kept.
    pub(crate) fn kept_sessions(&self) -> usize {
        self.connection.as_ref().and_then(|connection| connection.kept).unwrap_or(0)
    }

    /// The state cannot be kept now, as an interface is being opened or closed: tries again in a moment. `closed`: a
    /// socket of a queue was closed, of which the store may have a duplicate. It may be that very queue which is being
    /// opened, if one `is_opening`, so what is kept is let go after a while.
    ///
    /// # Errors
    /// As those of [`Store::keep`]; nothing is kept for long.
    pub(crate) fn later(&mut self, closed: bool, is_opening: bool) -> Result<(), String> {
        let now = Instant::now();
        self.due = now + KEEP_PAUSE;
        if closed {
            self.closed.get_or_insert(now);
        }
        let is_over = self.closed.is_some_and(|since| is_opening && now >= since + CLOSED_LIMIT);
        if let Some(connection) = self.connection.as_mut().filter(|connection| is_over && connection.has_any()) {
            self.waits = Some(now);
            let told = connection.forget().and_then(|()| Ok(connection.sync()?));
            return told.map(|()| self.closed = None).map_err(|failure| self.fail(failure));
        }
        match self.waits {
            Some(since) if now > since + ANSWER_LIMIT => {
                Err("nothing can be kept while an interface is being opened, as another one was closed before".into())
            }
            _ => Ok(()),
        }
    }

    /// The daemon exits, or another process has what it had.
    pub(crate) fn end(&self) {
        let _ = self.connection.as_ref().map(|connection| connection.send(&Message::Ended, &[]));
    }
}

/// Returns the token in the mark of a daemon that has crashed; 0: none.
pub(crate) fn marked(mark: &File) -> u64 {
    let mut bytes = [0; 8];
    // Unreadable: a token that no connection has.
    mark.read_exact_at(&mut bytes, 0).map_or(u64::MAX, |()| u64::from_ne_bytes(bytes))
}

/// The arguments of a daemon that is started after a crash, from those of the daemon.
pub(crate) fn arguments(
    own: impl Iterator<Item = OsString>,
    socket: &Path,
    files: [(&str, Option<&PathBuf>); 2],
) -> Vec<OsString> {
    const WITH_VALUE: [&str; 4] = ["--listen-fd", "--report-fd", "--store", "--restore"];
    const WITHOUT: [&str; 3] = ["--replace", "--if-changed", "--foreground"];
    let (mut args, mut skips) = (Vec::new(), false);
    for arg in own {
        let text = arg.to_string_lossy();
        let name = text.split_once('=').map_or(&*text, |(name, _)| name);
        if std::mem::take(&mut skips) || WITHOUT.contains(&name) {
            continue;
        }
        if WITH_VALUE.contains(&name) {
            skips = !text.contains('=');
            continue;
        }
        args.push(arg);
    }
    args.extend(["--foreground".into(), "--socket".into(), socket.into()]);
    for (name, path) in files {
        // The working directory of the process is another one.
        args.extend(
            path.and_then(|path| std::path::absolute(path).ok())
                .into_iter()
                .flat_map(|path| [name.into(), path.into()]),
        );
    }
    args
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_daemon_is_started_again_without_what_was_for_its_start() {
        let own = ["--listen-fd", "3", "--idle-exit=0", "--replace", "--report-fd=4", "--keep-ports", "--foreground"];
        let args =
            arguments(own.into_iter().map(OsString::from), Path::new("/s"), [("--policy", None), ("--config", None)]);
        assert_eq!(args, ["--idle-exit=0", "--keep-ports", "--foreground", "--socket", "/s"]);
    }
}
