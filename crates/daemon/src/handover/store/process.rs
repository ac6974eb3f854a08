// SPDX-License-Identifier: BSD-2-Clause
//! The store's process.

use std::collections::VecDeque;
use std::ffi::OsString;
use std::fs::File;
use std::io;
use std::os::fd::{AsFd as _, OwnedFd};
use std::path::Path;
use std::thread::sleep;
use std::time::Instant;

use unetmap_sys::process;
use unetmap_sys::socket;

use super::OWN_PROGRAM;
use super::messages::{Answer, Message};
use crate::broker;
use crate::channel;
use crate::handover::giving::Successor;
use crate::handover::{Reply, Request, State};
use crate::log;
use crate::tuning::handover::{MAX_STATE_BYTES, SEND_POLL};
use crate::tuning::store::{CRASH_PERIOD, MAX_CRASHES, RESTART_LIMIT, RETRY_PAUSE};

/// State of the process.
#[derive(Default)]
struct Kept {
    /// The state that is kept, with its descriptors.
    state: Option<(Box<State>, Vec<OwnedFd>)>,
    /// Descriptors of the next state.
    fds: Vec<OwnedFd>,
    /// Why the state that is coming is not whole.
    broken: Option<String>,
    /// Whether the daemon has sent it anything.
    is_used: bool,
}

/// Runs the store, until the daemon exits as it should.
///
/// # Errors
/// The daemon has crashed, and is not started again: nothing was kept, or it has crashed often.
pub(crate) fn run(mut connection: OwnedFd) -> io::Result<()> {
    let files = process::raise_fd_limit();
    let (mut kept, mut crashes, mut was_reset) = (Kept::default(), VecDeque::new(), false);
    kept.serve(&connection, files);
    loop {
        match channel::receive::<Message>(&connection, MAX_STATE_BYTES) {
            Ok(Some((Message::Ended, _))) => return Ok(()),
            Ok(Some((message, fds))) => kept.take(message, fds, &connection),
            // Said once, if the daemon has ended with an answer unread; what it has sent follows.
            Err(e) if e.kind() == io::ErrorKind::ConnectionReset && !was_reset => was_reset = true,
            Err(e) if e.kind() != io::ErrorKind::ConnectionReset => kept.lost(&e, &connection),
            Ok(None) | Err(_) if !kept.is_used => return Ok(()),
            Ok(None) | Err(_) => {
                connection = kept.start_again(&mut crashes)?;
                was_reset = false;
                kept.serve(&connection, files);
            }
        }
    }
}

impl Kept {
    /// Tells a daemon about this process. It may have ended by now: that is seen next.
    fn serve(&self, connection: &OwnedFd, files: u64) {
        let held = self.state.as_ref().map_or(0, |(_, fds)| fds.len());
        let _ = channel::send(connection, &Answer::Serves { pid: process::pid(), files, held }, &[]);
    }

    /// Does what a message says. The daemon may have ended before it is answered: that is seen next.
    fn take(&mut self, message: Message, fds: Vec<OwnedFd>, connection: &OwnedFd) {
        self.is_used = true;
        let answer = |answer| _ = channel::send(connection, &answer, &[]);
        match message {
            Message::Descriptors => self.fds.extend(fds),
            Message::State(state) => match self.broken.take() {
                // It was said.
                Some(_) => self.discard(),
                None => {
                    self.state = Some((state, std::mem::take(&mut self.fds)));
                    answer(Answer::Kept);
                }
            },
            Message::Discard => self.discard(),
            Message::Nothing => {
                self.discard();
                self.state = None;
            }
            Message::Sync => answer(Answer::Synced),
            Message::Spare => {
                let started = fds.into_iter().next().ok_or_else(|| io::ErrorKind::InvalidData.into()).and_then(|its| {
                    let args: Vec<OsString> = std::env::args_os().skip(1).collect();
                    start(&args, its)
                });
                // The daemon notices that the connection is closed, and asks again.
                started.unwrap_or_else(|e| tracing::warn!("no other process to keep the ports is started: {e}"));
            }
            Message::Ended => {}
        }
    }

    /// Drops the part of the next state that has come.
    fn discard(&mut self) {
        (self.fds, self.broken) = (Vec::new(), None);
    }

    /// A message could not be received, or its descriptors: the state that it belongs to is not kept.
    fn lost(&mut self, e: &io::Error, connection: &OwnedFd) {
        if e.kind() == io::ErrorKind::Interrupted {
            return;
        }
        if self.broken.is_none() {
            self.discard();
            let why = format!("the process that keeps the ports cannot receive what it is to keep: {e}");
            let _ = channel::send(connection, &Answer::Failed(why.clone()), &[]);
            self.broken = Some(why);
        }
        // If the reason persists.
        sleep(SEND_POLL);
    }

    /// Starts the daemon, which has crashed, with what was kept; what is kept stays so until the daemon has sent more.
    /// Returns the connection to it.
    fn start_again(&mut self, crashes: &mut VecDeque<Instant>) -> io::Result<OwnedFd> {
        self.discard();
        let Some((state, fds)) = &self.state else {
            return Err(io::Error::other("the daemon has crashed, and nothing was kept: its ports end"));
        };
        let (first, mut pause) = (Instant::now(), RETRY_PAUSE);
        tracing::error!(pid = state.pid, "the daemon has crashed, and is started again with its ports");
        loop {
            let now = Instant::now();
            crashes.retain(|crash| now.duration_since(*crash) < CRASH_PERIOD);
            crashes.push_back(now);
            if crashes.len() > MAX_CRASHES {
                let crashes = crashes.len();
                return Err(io::Error::other(format!("the daemon has crashed {crashes} times: its ports end")));
            }
            match restart(state, fds) {
                Ok(connection) => {
                    let took = first.elapsed();
                    tracing::info!(?took, "the daemon goes on with its ports");
                    return Ok(connection);
                }
                Err(e) => tracing::error!("the daemon is started once more, as it did not go on: {e}"),
            }
            sleep(pause);
            pause *= 2;
        }
    }
}

/// Starts this program; the connection becomes its descriptor 3.
fn start(args: &[OsString], its: OwnedFd) -> io::Result<()> {
    log::follow();
    let log = File::from(io::stderr().as_fd().try_clone_to_owned()?);
    let value_of = |option: &str| args.iter().position(|arg| arg == option).and_then(|at| args.get(at + 1));
    let name = match (value_of("--store"), value_of("--socket")) {
        (Some(_), Some(socket)) => broker::process_name("store", Path::new(socket)),
        _ => "unetmapd".into(),
    };
    process::spawn_detached(Path::new(OWN_PROGRAM), &name, args, its, log).map(drop)
}

/// Starts the daemon; returns the connection to it.
fn restart(state: &State, fds: &[OwnedFd]) -> io::Result<OwnedFd> {
    let (own, its) = socket::pair()?;
    let mut args: Vec<OsString> = std::env::args_os().skip(1).collect();
    // The last two made this process the store.
    args.truncate(args.len().saturating_sub(2));
    args.extend(["--restore".into(), "3".into()]);
    start(&args, its)?;
    let daemon = Successor::new(&own, Instant::now() + RESTART_LIMIT);
    daemon.expect(|request| matches!(request, Request::Begin { .. }))?;
    daemon.give(state, &fds.iter().map(|fd| fd.as_fd()).collect::<Vec<_>>())?;
    daemon.finish(&Reply::Recover)?;
    daemon.send(&Reply::Released)?;
    Ok(own)
}
