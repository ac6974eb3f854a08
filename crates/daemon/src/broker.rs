// SPDX-License-Identifier: BSD-2-Clause
//! The broker: a process that keeps root's privileges, and does for the daemon, the *worker*, what needs them.
//!
//! ```text
//! worker: no capability, a user of its own           broker: root
//! privileged::f --Request, descriptors------------->  Broker::serve   one operation
//!               <--its result, or an error, desc.---
//! ```
//! A request names an operation and plain arguments; interfaces belong to namespaces whose descriptors come with it.
//! What must be undone (an XDP program, disabled offloads) stays in the broker, under a handle. The broker trusts no
//! request: it decodes with bounds, and does only operations that [`Request`] lists, with its own programs.
//!
//! Each end notices the end of the other one by their connections: then the broker undoes everything and exits, as the
//! kernel would, and so does the worker. If another process has the worker's state ([`crate::handover::store`]), it has
//! these connections, too, and the broker goes on with the next worker.
//!
//! A user's daemon has no privileges to separate: there, and in unit tests, the same operations are functions of the
//! process itself.

mod handed_over;
mod mounts;
mod offloads;
mod operations;
mod serve;
mod undo;
mod veth;

use std::cell::Cell;
use std::ffi::OsString;
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::{LazyLock, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Instant;

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use unetmap_sys::link::Nsid;
use unetmap_sys::netns::Netns;
use unetmap_sys::tcx::HostTxAction;
use unetmap_sys::xdp::{ClassicInsn, Mark, Mode};
use unetmap_sys::xsk::Queue;
use unetmap_sys::{process, socket};

use crate::handover::channel::{receive, send, send_until};
use crate::threads;
use crate::tuning::broker::{INTERFACE_LANES, REPLY_BYTES, SEND_LIMIT};
use serve::Broker;

pub(crate) use handed_over::{Adopted, Duplicates, SavedBroker, go_on_after_crash, is_used, last_handle, pause};
pub(crate) use mounts::{NAME as NODE_NAME, folder as node_folder};
pub(crate) use serve::run_broker;
pub(crate) use undo::run_undo;
pub(crate) use veth::{near_name, relay_name};

/// The option of `unetmapd` that starts the broker, and the descriptor of its first connection.
const OPTION: &str = "--privileged";
const CONNECTION: &str = "3";

/// Something that the broker keeps for the worker.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize, Deserialize)]
pub(crate) struct Handle(u64);

/// An operation. The comments name the descriptors that come with it, and what is returned.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) enum Request {
    // Reading in a namespace (its descriptor).
    Link(u32),
    LinkNamed(String),
    IsAbsent(String),
    Links,
    DefaultRoutes,
    Driver(String),
    XdpFeatures(u32),
    Channels(String),
    NumaNode(String),
    TxDropped(u32),
    ProbeXdpSockets,
    MapsBoundRings(u32),
    AttachedXdp(u32),
    /// And the namespace of the other end.
    VethEndIn(u32),
    /// A socket.
    WatchLinks,
    /// Of all namespaces; without descriptor. A socket.
    WatchNamespaces,
    WatchedNamespace,
    /// Without descriptor.
    ExistsIn(Nsid, u32),
    /// Without descriptor.
    ProgramName(u32),
    /// Whether programs of this machine use dispatchers; without descriptor.
    DispatchersAreUsed,
    /// Of namespaces, by their inode numbers, those that have a name or a thread; without descriptor.
    UsedNamespaces(Vec<u64>),
    /// The inode number of the namespace that a file names, or none; without descriptor.
    NamespaceAt(PathBuf),

    // Sockets and programs.
    TryBusyPoll {
        usec: u32,
        budget: u32,
    },
    /// Of an AF_XDP socket, which comes with it.
    SetBusyPoll {
        usec: u32,
        budget: u32,
    },
    /// The namespace, and the region's file, in which the buffers begin at byte `at`. A socket.
    OpenXsk {
        queue: Queue,
        at: u64,
        bytes: u64,
        buffer: u32,
        registers: bool,
    },
    /// Without descriptor.
    TryFilter(Vec<ClassicInsn>),
    AttachXdp {
        index: u32,
        queues: u32,
        mode: Mode,
    },
    JoinXdp {
        index: u32,
        queues: u32,
        mode: Mode,
        extras: bool,
    },
    /// An AF_XDP socket.
    XdpInsert(Handle, u32),
    XdpRemove(Handle, u32),
    XdpMark(Handle, Mark),
    XdpFilter(Handle, Option<Vec<ClassicInsn>>),
    AttachTcx(u32),
    /// The namespace.
    TcxCompanion(Handle, Option<u32>),
    TcxRelayed(Handle, bool),
    /// The namespaces of the interface and of the far end.
    AttachRelay {
        nic: u32,
        near: u32,
        far: u32,
    },
    TcxMark(Handle, Mark),
    TcxHostTx(Handle, HostTxAction),
    TcxDropped(Handle),
    /// Of a program, in milliseconds from now.
    Extend(Handle, u32),
    DisableOffloads(u32),
    DisableMerging {
        index: u32,
        name: String,
    },
    /// Undoes and forgets it.
    Drop(Handle),

    // Interfaces that the daemon makes.
    /// The interface's namespace. A namespace.
    CreateVeth {
        nic: u32,
        queues: u32,
        relay: bool,
    },
    /// Sets the far end of such a pair up or down; its namespace.
    SetLink(u32, bool),
    /// A namespace.
    HiddenNamespace,
    /// The namespaces of both ends.
    CreatePersistentVeth {
        name: String,
        queues: u32,
    },
    DeleteVeth(u32),

    // Callers.
    /// The accepted end of a connection. A namespace.
    NamespaceOfPeer,
    /// A thread's pidfd. A namespace.
    NamespaceOfThread(u32),

    // The node.
    /// A FUSE device.
    MountNode(usize),
    UnmountNode,
    /// Whether the link can be made.
    CheckNodeLink(PathBuf),
    LinkNode(PathBuf),
    UnlinkNode(PathBuf),
    /// A FUSE device, and the file.
    OpenBacking,
    /// A FUSE device.
    CloseBacking(i32),
    /// A connection, and a pidfd.
    StartMemoryHelper,
    /// Lets it access the memory of a thread with a file of the node; the thread's pidfd.
    UseMemoryHelper(Handle, u32),
    KillMemoryHelper(Handle),

    /// The number of the process that keeps the privileges; without descriptor.
    ProcessId,

    // After a crash of the worker.
    /// The handle that was given out last; without descriptor.
    LastHandle,
    /// Returns the text, which no other answer is: those before it were for a worker that has crashed.
    Echo(String),
    /// Undoes and forgets all that was made after this handle, of which no worker knows.
    ForgetSince(Handle),

    // Files.
    /// Memory files.
    ForbidRemoval,
    Policy,
    Configuration,
    RemoveSocket,
    /// Opens the log again if it was moved away, and begins it anew if it is too long. The log.
    OpenLog,
}

impl Request {
    /// Whether it is served while another one takes long: see [`Lane`].
    fn lane(&self) -> Lane {
        match self {
            Request::Extend(..) => Lane::Deadlines,
            Request::NamespaceOfThread(_)
            | Request::OpenBacking
            | Request::CloseBacking(_)
            | Request::StartMemoryHelper
            | Request::UseMemoryHelper(..)
            | Request::KillMemoryHelper(_) => Lane::Node,
            _ => Lane::Control,
        }
    }
}

/// A connection between worker and broker. Requests of one wait for each other; those of the others do not.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Lane {
    /// The control thread's.
    Control,
    /// Renewals of deadlines.
    Deadlines,
    /// Of the node's threads.
    Node,
    /// The first of those of the threads that open and close interfaces: a driver may take seconds to attach a program.
    Interfaces,
}

const LANES: usize = Lane::Interfaces as usize + INTERFACE_LANES;

thread_local! {
    /// Whether the control lane's requests of this thread take one of the interfaces' lanes.
    static BESIDE_CONTROL: Cell<bool> = const { Cell::new(false) };
}

/// Runs `work`, whose requests to the broker do not delay the control thread's.
pub(crate) fn beside_control<T>(work: impl FnOnce() -> T) -> T {
    BESIDE_CONTROL.set(true);
    let done = work();
    BESIDE_CONTROL.set(false);
    done
}

/// Waits for a connection on which the request can be sent: of the interfaces' any that is free.
fn connection_for<'a>(connections: &'a [Mutex<OwnedFd>; LANES], request: &Request) -> MutexGuard<'a, OwnedFd> {
    let mut lane = request.lane() as usize;
    if request.lane() == Lane::Control && BESIDE_CONTROL.get() {
        lane = Lane::Interfaces as usize;
        if let Some(free) = connections[lane..].iter().find_map(|connection| connection.try_lock().ok()) {
            return free;
        }
    }
    connections[lane].lock().unwrap_or_else(PoisonError::into_inner)
}

/// What the broker is told when it is started, before the worker serves anybody.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub(crate) struct Setup {
    /// The policy's file; `None`: a daemon without policy.
    pub(crate) policy: Option<PathBuf>,
    /// The configuration's file.
    pub(crate) config: Option<PathBuf>,
    /// Where the daemon listens.
    pub(crate) socket: PathBuf,
    /// The file that the broker keeps locked while it runs.
    pub(crate) lock: PathBuf,
    /// Whether the broker of an earlier daemon goes on until this one's daemon has replaced it.
    pub(crate) replaces: bool,
}

/// An error of an operation: what [`io::Error`] contains.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct Failure {
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

impl From<&io::Error> for Failure {
    fn from(e: &io::Error) -> Failure {
        let kind = match e.kind() {
            io::ErrorKind::NotFound => FailureKind::NotFound,
            io::ErrorKind::InvalidInput => FailureKind::InvalidInput,
            io::ErrorKind::InvalidData => FailureKind::InvalidData,
            io::ErrorKind::Unsupported => FailureKind::Unsupported,
            _ => FailureKind::Other,
        };
        Failure { errno: e.raw_os_error(), kind, text: e.to_string() }
    }
}

impl From<Failure> for io::Error {
    fn from(failure: Failure) -> io::Error {
        if let Some(errno) = failure.errno {
            return io::Error::from_raw_os_error(errno);
        }
        let kind = match failure.kind {
            FailureKind::NotFound => io::ErrorKind::NotFound,
            FailureKind::InvalidInput => io::ErrorKind::InvalidInput,
            FailureKind::InvalidData => io::ErrorKind::InvalidData,
            FailureKind::Unsupported => io::ErrorKind::Unsupported,
            FailureKind::Other => io::ErrorKind::Other,
        };
        io::Error::new(kind, failure.text)
    }
}

/// The result of an operation: its value, and descriptors.
type Answer = (serde_json::Value, Vec<OwnedFd>);

/// The worker's ends of the connections.
static CONNECTIONS: OnceLock<[Mutex<OwnedFd>; LANES]> = OnceLock::new();

/// The operations of a process without broker.
static OWN: LazyLock<Broker> = LazyLock::new(|| Broker::new(Setup::default()));

/// The name of a process of the daemon that listens at `socket`, as ps(1) shows it.
pub(crate) fn process_name(part: &str, socket: &Path) -> OsString {
    let mut name = OsString::from(format!("unetmapd: {part} "));
    name.push(socket);
    name
}

/// Starts the broker. Call it before the first thread is started, and before the process gives up anything.
///
/// # Errors
/// Those of starting a process.
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
    let (alive, worker_alive) = socket::pair()?;
    others.push(worker_alive);
    send(&own[0], setup, &others.iter().map(AsFd::as_fd).collect::<Vec<_>>())?;
    let own = <[OwnedFd; LANES]>::try_from(own).map_err(|_| io::ErrorKind::InvalidData)?;
    let _ = CONNECTIONS.set(own.map(Mutex::new));
    // Before the worker is confined: it cannot start later.
    let (_, _) = (ALIVE.set(alive), SETUP.set(setup.clone()));
    Ok(())
}

/// A connection of which the broker closes its end when it exits, and that of a broker that has taken its place.
static ALIVE: OnceLock<OwnedFd> = OnceLock::new();
static ADOPTED: OnceLock<OwnedFd> = OnceLock::new();

/// What this process's broker was told.
static SETUP: OnceLock<Setup> = OnceLock::new();

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

/// Runs `work` inside a namespace; an error may be that of entering (`EPERM`: it needs CAP_SYS_ADMIN) or that of the
/// work.
fn inside<T: Send>(netns: &Netns, work: impl FnOnce() -> io::Result<T> + Send) -> io::Result<T> {
    netns.run(work).and_then(|done| done)
}

/// Has an operation done; returns its value, and the descriptors that belong to it.
///
/// # Errors
/// Those of the operation; that of the connection.
pub(crate) fn ask<T: DeserializeOwned>(request: Request, fds: &[BorrowedFd<'_>]) -> io::Result<(T, Vec<OwnedFd>)> {
    let (value, fds) = match CONNECTIONS.get() {
        None => {
            let fds = fds.iter().map(|fd| fd.try_clone_to_owned()).collect::<io::Result<_>>()?;
            OWN.serve(request, fds)?
        }
        Some(connections) => {
            let connection = connection_for(connections, &request);
            send_until(Instant::now() + SEND_LIMIT, &*connection, &request, fds)?;
            let (reply, fds) = receive::<Result<serde_json::Value, Failure>>(&*connection, REPLY_BYTES)?
                .ok_or(io::ErrorKind::ConnectionReset)?;
            (reply?, fds)
        }
    };
    let value = serde_json::from_value(value).map_err(|e| io::Error::new(io::ErrorKind::InvalidData, e))?;
    Ok((value, fds))
}

#[cfg(test)]
mod tests;
