// SPDX-License-Identifier: BSD-2-Clause
//! The daemon's connections to its broker.

use std::cell::Cell;
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::sync::{Mutex, MutexGuard, OnceLock};
use std::time::Instant;

use serde::{Deserialize, Serialize};
use unetmap_sys::{process, socket};

use super::setup::{Setup, process_name};
use super::table::Answer;
use crate::channel::{receive, send, send_until};
use crate::threads;
use crate::threads::lock;
use crate::tuning::broker::{INTERFACE_LANES, REPLY_BYTES, SEND_LIMIT};

/// The option of `unetmapd` that starts the broker, and the descriptor of its first connection.
const OPTION: &str = "--privileged";
const CONNECTION: &str = "3";

/// A connection between daemon and broker. Requests of one wait for each other; those of the others do not.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Lane {
    /// The control thread's.
    Control,
    /// Renewals of deadlines by the thread that does nothing else. It has precedence, and a thread without it that
    /// waited for an answer there, and for a processor, would hold it up.
    Deadlines,
    /// Of the node's threads.
    Node,
    /// The first of those of the threads that open and close interfaces: a driver may take seconds to attach a program.
    Interfaces,
}

pub(super) const LANES: usize = Lane::Interfaces as usize + INTERFACE_LANES;

thread_local! {
    /// Whether the control lane's requests of this thread take one of the interfaces' lanes.
    static BESIDE_CONTROL: Cell<bool> = const { Cell::new(false) };
    /// Whether the deadlines' lane is this thread's.
    static RENEWS_DEADLINES: Cell<bool> = const { Cell::new(false) };
}

/// Gives the calling thread the deadlines' lane. That of others about deadlines is the control thread's.
pub(crate) fn renew_deadlines() {
    RENEWS_DEADLINES.set(true);
}

/// Runs `work`, whose requests to the broker do not delay the control thread's.
pub(crate) fn beside_control<T>(work: impl FnOnce() -> T) -> T {
    BESIDE_CONTROL.set(true);
    let done = work();
    BESIDE_CONTROL.set(false);
    done
}

/// The lane that the calling thread takes for a request of this one.
pub(super) fn lane_here(lane: Lane) -> Lane {
    match lane {
        Lane::Deadlines if RENEWS_DEADLINES.get() => Lane::Deadlines,
        Lane::Deadlines | Lane::Control if BESIDE_CONTROL.get() => Lane::Interfaces,
        Lane::Deadlines => Lane::Control,
        lane => lane,
    }
}

/// Waits for a connection on which the request can be sent: of the interfaces' any that is free.
fn connection_for(connections: &[Mutex<OwnedFd>; LANES], lane: Lane) -> MutexGuard<'_, OwnedFd> {
    let lane = lane_here(lane);
    if lane == Lane::Interfaces
        && let Some(free) = connections[lane as usize..].iter().find_map(|connection| connection.try_lock().ok())
    {
        return free;
    }
    lock(&connections[lane as usize])
}

/// An error of an operation: the parts of an [`io::Error`].
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Failure {
    errno: Option<i32>,
    kind: FailureKind,
    text: String,
}

/// Kinds of errors that callers tell apart.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
enum FailureKind {
    NotFound,
    InvalidInput,
    InvalidData,
    Unsupported,
    Other,
}

const KINDS: [(FailureKind, io::ErrorKind); 5] = [
    (FailureKind::NotFound, io::ErrorKind::NotFound),
    (FailureKind::InvalidInput, io::ErrorKind::InvalidInput),
    (FailureKind::InvalidData, io::ErrorKind::InvalidData),
    (FailureKind::Unsupported, io::ErrorKind::Unsupported),
    (FailureKind::Other, io::ErrorKind::Other),
];

impl From<&io::Error> for Failure {
    fn from(e: &io::Error) -> Failure {
        let kind = KINDS.iter().find(|(_, kind)| *kind == e.kind()).map_or(FailureKind::Other, |(kind, _)| *kind);
        Failure { errno: e.raw_os_error(), kind, text: e.to_string() }
    }
}

impl From<Failure> for io::Error {
    fn from(Failure { errno, kind, text }: Failure) -> io::Error {
        let kind = KINDS.iter().find(|(sent, _)| *sent == kind).map_or(io::ErrorKind::Other, |(_, kind)| *kind);
        errno.map_or_else(|| io::Error::new(kind, text), io::Error::from_raw_os_error)
    }
}

/// The daemon's ends of the connections.
pub(super) static CONNECTIONS: OnceLock<[Mutex<OwnedFd>; LANES]> = OnceLock::new();

/// Starts the broker. Call it before the first thread is started, and before the process gives up anything.
///
/// # Errors
/// Errors of starting a process.
pub(crate) fn start(setup: &Setup) -> io::Result<()> {
    let (first, other) = socket::pair()?;
    let log = File::from(io::stderr().as_fd().try_clone_to_owned()?);
    let name = process_name("broker", &setup.socket);
    process::spawn_detached(Path::new("/proc/self/exe"), &name, &[OPTION.into(), CONNECTION.into()], other, log)?;
    let (mut own, mut others) = (vec![first], Vec::new());
    for _ in 1..LANES {
        let (one, other) = socket::pair()?;
        own.push(one);
        others.push(other);
    }
    let (alive, of_broker) = socket::pair()?;
    others.push(of_broker);
    send(&own[0], setup, &others.iter().map(AsFd::as_fd).collect::<Vec<_>>())?;
    let own = <[OwnedFd; LANES]>::try_from(own).map_err(|_| io::ErrorKind::InvalidData)?;
    let _ = CONNECTIONS.set(own.map(Mutex::new));
    // Before the daemon is confined: it cannot start later.
    let (_, _) = (ALIVE.set(alive), SETUP.set(setup.clone()));
    Ok(())
}

/// A connection of which the broker closes its end when it exits, and that of a broker that has taken its place.
pub(super) static ALIVE: OnceLock<OwnedFd> = OnceLock::new();
pub(super) static ADOPTED: OnceLock<OwnedFd> = OnceLock::new();

/// The setup of this process's broker.
pub(super) static SETUP: OnceLock<Setup> = OnceLock::new();

/// Ends this process when the broker ends: without it no interface can be opened or closed.
///
/// # Errors
/// No thread can be started.
pub(crate) fn end_with_broker() -> io::Result<()> {
    let Some(alive) = ALIVE.get() else { return Ok(()) };
    let watch = move || {
        let _ = socket::recv(alive, &mut [0], &mut Vec::new());
        if let Some(adopted) = ADOPTED.get() {
            let _ = socket::recv(adopted, &mut [0], &mut Vec::new());
        }
        tracing::error!("the process with root's privileges has ended, and so does the daemon");
        std::process::exit(1);
    };
    threads::start("broker-watch", watch).map(drop)
}

/// Has an operation done; `None` if this process has no broker.
///
/// # Errors
/// An error of the operation, or of the connection.
pub(super) fn ask(request: &impl Serialize, lane: Lane, fds: &[BorrowedFd<'_>]) -> io::Result<Option<Answer>> {
    let Some(connections) = CONNECTIONS.get() else { return Ok(None) };
    let connection = connection_for(connections, lane);
    send_until(Instant::now() + SEND_LIMIT, &*connection, request, fds)?;
    let (reply, fds) = receive::<Result<serde_json::Value, Failure>>(&*connection, REPLY_BYTES)?
        .ok_or(io::ErrorKind::ConnectionReset)?;
    Ok(Some((reply?, fds)))
}
