// SPDX-License-Identifier: BSD-2-Clause
//! Going on after a crash (`--keep-ports`): another process, the *store*, has the daemon's state and duplicates of its
//! descriptors, as they are handed to a successor ([`crate::handover`]), and starts the daemon again with them.
//!
//! ```text
//! daemon                              store
//!                            <--      its process
//!   Descriptors, State       -->      what is kept from now on, after each change (at most every KEEP_PAUSE)
//!   Nothing                  -->      nothing can be kept for a while: a crash ends all ports
//!   Sync                     -->
//!                            <--      what is not kept any more is closed
//!   Ended                    -->      exits
//!   (its end is closed)               starts a daemon, to which it is a predecessor that has crashed
//! ```
//! The connections of programs stay open, as the store has them: programs notice nothing. What was opened since the
//! state was kept has the old end: its connection is closed. So is that of the program whose message the daemon was
//! answering: it would wait for the answer without end, and may be the cause. The node ends, as its requests would have
//! no answer; the ports of its programs are closed, and it is on again.
//!
//! The broker goes on, as the store has its connections, too. Under a service manager the store is the main process of
//! the unit, which thus does not end with the daemon.
//!
//! The store reads nothing that a program can write. The daemon takes from shared memory only the positions of switch
//! ports, which the program that has the port can have written: they are checked as always.

use std::collections::VecDeque;
use std::ffi::OsString;
use std::fs::File;
use std::io;
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread::sleep;
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};
use unetmap_sys::event::{PollFd, PollFlags, wait_readable};
use unetmap_sys::socket::{self, MAX_FDS};
use unetmap_sys::{memfd, process};

use crate::broker;
use crate::handover::{Reply, Request, State};
use crate::ports::mediator::PausedThread;
use crate::tuning::handover::{MAX_STATE_BYTES, REPLY_LIMIT, SEND_POLL};
use crate::tuning::nic::{KEEPALIVE_INTERVAL, KEEPALIVE_TIMEOUT};
use crate::tuning::store::{
    CLOSED_LIMIT, CRASH_PERIOD, KEEP_PAUSE, KEEP_SHARE, MAX_CRASHES, MAX_KEEP_PAUSE, SEND_LIMIT,
};

/// This program, also if its file was replaced since: the next one may have another state.
const OWN_PROGRAM: &str = "/proc/self/exe";

/// `ETOOMANYREFS`: the receiver has to take some descriptors first.
const TOO_MANY_IN_FLIGHT: i32 = 109;

/// A message to the store.
#[derive(Serialize, Deserialize)]
enum Message {
    /// The next descriptors of a state, which come with the message.
    Descriptors,
    /// What is kept from now on.
    State(Box<State>),
    /// Nothing is kept.
    Nothing,
    /// To be answered: all that is not kept any more is closed.
    Sync,
    /// The daemon exits as it should.
    Ended,
}

/// The daemon's side.
pub(crate) struct Store {
    connection: OwnedFd,
    /// The token of the connection whose message is being answered.
    mark: File,
    /// Whether something may have changed since it was told.
    changed: bool,
    /// When it is told next at the earliest.
    due: Instant,
    /// Sessions that are kept; `None`: nothing is.
    kept: Option<usize>,
    /// Since when it may have duplicates of sockets of queues that were closed.
    closed: Option<Instant>,
    /// Its process.
    pid: u32,
    /// This process's connections to the broker, of which any may be in use for a while.
    broker: Option<Arc<broker::Duplicates>>,
}

impl Store {
    /// Starts the process, which is to start a daemon with these arguments.
    pub(crate) fn start(mut args: Vec<OsString>) -> io::Result<Store> {
        let (own, its) = socket::pair()?;
        args.extend(["--store".into(), "3".into()]);
        let log = File::from(io::stderr().as_fd().try_clone_to_owned()?);
        process::spawn_detached(Path::new(OWN_PROGRAM), &args, its, log)?;
        Store::of(own)
    }

    /// The process at the other end of a connection.
    pub(crate) fn of(connection: OwnedFd) -> io::Result<Store> {
        socket::set_timeout(&connection, SEND_LIMIT)?;
        let Some((pid, _)) = broker::receive(&connection, 0)? else {
            return Err(io::ErrorKind::ConnectionReset.into());
        };
        let mark = File::from(memfd::create_unsealed("unetmap-mark")?);
        mark.write_all_at(&[0; 8], 0)?;
        Ok(Store { connection, mark, changed: true, due: Instant::now(), kept: None, closed: None, pid, broker: None })
    }

    /// Something may have changed.
    pub(crate) fn changed(&mut self) {
        self.changed = true;
    }

    /// The same, and what is kept now must not be used.
    pub(crate) fn changed_now(&mut self) {
        (self.changed, self.due) = (true, Instant::now());
    }

    /// Whether it is to be told now; else the time until then, if there is anything.
    pub(crate) fn is_due(&self, now: Instant) -> Result<(), Option<Duration>> {
        match self.changed {
            false => Err(None),
            true if now < self.due => Err(Some(self.due - now)),
            true => Ok(()),
        }
    }

    /// The messages of a connection are being answered from now on; 0: of none.
    pub(crate) fn set_mark(&self, token: u64) {
        let _ = self.mark.write_all_at(&token.to_ne_bytes(), 0);
    }

    pub(crate) fn mark(&self) -> &File {
        &self.mark
    }

    /// Tells the store what to keep; `None`: nothing. `closed`: a socket of a queue was closed, of which the store may
    /// have a duplicate: the queue cannot be opened until that is closed.
    pub(crate) fn keep(&mut self, state: Option<(State, &[BorrowedFd<'_>])>, closed: bool) -> io::Result<()> {
        let start = Instant::now();
        match state {
            Some((state, fds)) => {
                for some in fds.chunks(MAX_FDS) {
                    self.send(&Message::Descriptors, some)?;
                }
                let of_clients = state.clients.iter().filter(|client| client.session.is_some()).count();
                let sessions = of_clients + state.mediators.iter().flat_map(PausedThread::sessions).count();
                self.send(&Message::State(Box::new(state)), &[])?;
                self.kept = Some(sessions);
            }
            None if self.kept.is_some() => {
                self.send(&Message::Nothing, &[])?;
                self.kept = None;
            }
            None => {}
        }
        if self.closed.take().is_some() || closed {
            self.sync()?;
        }
        self.changed = false;
        // A small share of the time, even of many ports.
        self.due = Instant::now() + (start.elapsed() * KEEP_SHARE).clamp(KEEP_PAUSE, MAX_KEEP_PAUSE);
        Ok(())
    }

    /// Sets the broker that the next daemon goes on with. Call it before requests are served.
    pub(crate) fn set_broker(&mut self, broker: Option<broker::Duplicates>) {
        self.broker = broker.map(Arc::new);
    }

    pub(crate) fn broker(&self) -> Option<&Arc<broker::Duplicates>> {
        self.broker.as_ref()
    }

    /// Its process.
    pub(crate) fn pid(&self) -> u32 {
        self.pid
    }

    /// Sessions that are kept.
    pub(crate) fn kept_sessions(&self) -> usize {
        self.kept.unwrap_or(0)
    }

    /// The state cannot be kept now, as an interface is being opened or closed: tries again in a moment. `closed`: a
    /// socket of a queue was closed, of which the store may have a duplicate. It may be that very queue which is being
    /// opened, if one `is_opening`, so what is kept is let go after a while.
    pub(crate) fn later(&mut self, closed: bool, is_opening: bool) -> io::Result<()> {
        self.due = Instant::now() + KEEP_PAUSE;
        if closed && self.closed.is_none() {
            self.closed = Some(Instant::now());
        }
        let is_over = self.closed.is_some_and(|since| is_opening && since.elapsed() >= CLOSED_LIMIT);
        if is_over && self.kept.take().is_some() {
            self.closed = None;
            self.send(&Message::Nothing, &[])?;
            self.sync()?;
        }
        Ok(())
    }

    /// Waits until the store has closed what it does not keep any more.
    fn sync(&self) -> io::Result<()> {
        self.send(&Message::Sync, &[])?;
        broker::receive::<()>(&self.connection, 0)?.map(drop).ok_or_else(|| io::ErrorKind::ConnectionReset.into())
    }

    /// The daemon exits, or another process has what it had.
    pub(crate) fn end(&self) {
        let _ = self.send(&Message::Ended, &[]);
    }

    fn send(&self, message: &Message, fds: &[BorrowedFd<'_>]) -> io::Result<()> {
        send(&self.connection, message, fds)
    }
}

/// Sends a message; the receiver takes the descriptors one message after the other.
fn send(connection: &OwnedFd, message: &impl Serialize, fds: &[BorrowedFd<'_>]) -> io::Result<()> {
    let end = Instant::now() + SEND_LIMIT;
    loop {
        match broker::send(connection, message, fds) {
            Err(e) if e.raw_os_error() == Some(TOO_MANY_IN_FLIGHT) && Instant::now() < end => sleep(SEND_POLL),
            sent => return sent,
        }
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

/// Runs the store, until the daemon exits as it should.
///
/// # Errors
/// The daemon has crashed, and is not started again: nothing was kept, or it has crashed often.
pub(crate) fn run(mut connection: OwnedFd) -> io::Result<()> {
    process::raise_fd_limit();
    broker::send(&connection, &process::pid(), &[])?;
    let (mut kept, mut fds, mut crashes) = (None, Vec::new(), VecDeque::new());
    loop {
        match broker::receive::<Message>(&connection, MAX_STATE_BYTES) {
            Ok(Some((Message::Descriptors, some))) => fds.extend(some),
            Ok(Some((Message::State(state), _))) => kept = Some((state, std::mem::take(&mut fds))),
            Ok(Some((Message::Nothing, _))) => kept = None,
            Ok(Some((Message::Sync, _))) => broker::send(&connection, &(), &[])?,
            Ok(Some((Message::Ended, _))) => return Ok(()),
            Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
            Ok(None) | Err(_) => {
                fds.clear();
                let Some((state, fds)) = kept.take() else {
                    return Err(io::Error::other("the daemon has crashed, and nothing was kept: its ports end"));
                };
                let now = Instant::now();
                crashes.retain(|crash| now.duration_since(*crash) < CRASH_PERIOD);
                crashes.push_back(now);
                if crashes.len() > MAX_CRASHES {
                    let crashes = crashes.len();
                    return Err(io::Error::other(format!("the daemon has crashed {crashes} times: its ports end")));
                }
                tracing::error!(pid = state.pid, "the daemon has crashed, and is started again with its ports");
                connection = restart(state, &fds)?;
                let took = now.elapsed();
                tracing::info!(?took, "the daemon goes on with its ports");
                if took + KEEPALIVE_INTERVAL >= KEEPALIVE_TIMEOUT {
                    tracing::warn!("the daemon was delayed: open interfaces were the kernel's until it went on");
                }
                broker::send(&connection, &process::pid(), &[])?;
            }
        }
    }
}

/// Starts the daemon; returns the connection to it.
fn restart(state: Box<State>, fds: &[OwnedFd]) -> io::Result<OwnedFd> {
    let (own, its) = socket::pair()?;
    let mut args: Vec<OsString> = std::env::args_os().skip(1).collect();
    // The last two made this process the store.
    args.truncate(args.len().saturating_sub(2));
    args.extend(["--restore".into(), "3".into()]);
    let log = File::from(io::stderr().as_fd().try_clone_to_owned()?);
    process::spawn_detached(Path::new(OWN_PROGRAM), &args, its, log)?;
    let expect = |is_it: &dyn Fn(&Request) -> bool| {
        wait_readable(&mut [PollFd::new(&own, PollFlags::IN)], Some(REPLY_LIMIT))?;
        match broker::receive::<Request>(&own, 0)? {
            Some((request, _)) if is_it(&request) => Ok(()),
            _ => Err(io::Error::other("the daemon that was started again has ended")),
        }
    };
    expect(&|request| matches!(request, Request::Begin { .. }))?;
    let fds: Vec<BorrowedFd<'_>> = fds.iter().map(|fd| fd.as_fd()).collect();
    for some in fds.chunks(MAX_FDS) {
        send(&own, &Reply::Descriptors, some)?;
    }
    send(&own, &Reply::State(state), &[])?;
    expect(&|request| matches!(request, Request::Ready))?;
    send(&own, &Reply::Recover, &[])?;
    expect(&|request| matches!(request, Request::Commit))?;
    send(&own, &Reply::Released, &[])?;
    Ok(own)
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
