// SPDX-License-Identifier: BSD-2-Clause
//! The client's side of the control socket: finds a daemon, starts one if none runs, sends requests, receives replies.
//!
//! The daemon is, in this order: the one at `UNETMAP_SOCKET`; the system's daemon, if it admits this user to the port;
//! the user's own, in `$XDG_RUNTIME_DIR` or a private folder of the temporary directory. If none listens, this process
//! binds the socket and passes it to a new daemon: a connection succeeds at once, and no client has to poll until the
//! daemon is ready.
//!
//! A program with more privileges than its caller (setuid, or a file with capabilities) takes none of this from the
//! environment, nor the daemon from the folder that its own file is in: its caller has chosen both.

use std::ffi::OsString;
use std::fs::{self, DirBuilder, File};
use std::io::{self, Read, Seek};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::{DirBuilderExt, FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use unetmap_sys::event::{PollFd, PollFlags, wait_readable};
use unetmap_sys::tuning::log::MAX_DAEMON_LOG;
use unetmap_sys::{clock, link, log, place, process, socket};

use crate::control::again::again_if_gone;
use crate::control::request::{NetmapReply, NetmapRequest};
use crate::control::session::{HelloRequest, LockHolderRequest, SnapshotRequest};
use crate::control::wire::{self, ControlRequest, Kind};
use crate::error::{Error, errno, run_remedy};
use crate::tuning::{LOCK_POLL, QUEUE_BUSY_LIMIT, QUEUE_BUSY_RETRY, REPLY_TIMEOUT, SHORT_REPLY, START_TRIES};

/// The system daemon's socket.
pub const SYSTEM_SOCKET: &str = "/run/unetmap/unetmapd.sock";
/// Where the daemon's program is installed.
const SYSTEM_FOLDERS: [&str; 4] = ["/usr/local/sbin", "/usr/local/bin", "/usr/sbin", "/usr/bin"];
/// A connection to the daemon.
pub(crate) struct Connection {
    pub(crate) fd: OwnedFd,
    pub(crate) socket: PathBuf,
}

/// Connects to this user's own daemon, starting one if none runs.
pub(crate) fn connect() -> Result<Connection, Error> {
    match running()? {
        Some(connection) => Ok(connection),
        None => connect_or_start(&own_socket()?),
    }
}

/// Connects to the system's daemon, if it runs and is not this user's own. A user's program never starts it.
pub(crate) fn connect_system() -> Option<Connection> {
    let system = Path::new(SYSTEM_SOCKET);
    if chosen_socket().is_some() || process::uid() == 0 {
        return None;
    }
    connect_to(system).ok().map(|fd| Connection { fd, socket: system.to_owned() })
}

/// Connects to the system's daemon as [`connect_system`] does, if it serves this user at all.
///
/// # Errors
/// This user has too much of the daemon already.
pub(crate) fn connect_system_if_served(subject: &str) -> Result<Option<Connection>, Error> {
    let Some(connection) = connect_system() else { return Ok(None) };
    match send(connection.fd.as_fd(), subject, &HelloRequest).and_then(|reply| reply.refused(subject)) {
        Ok(()) => Ok(Some(connection)),
        Err(e @ Error::Refused { .. }) if e.errno() != errno::EACCES => Err(e),
        // A daemon that does not answer must not keep users from their own.
        Err(_) => Ok(None),
    }
}

/// Connects to this user's own daemon, if one runs.
pub(crate) fn running() -> Result<Option<Connection>, Error> {
    let own = own_socket()?;
    match connect_to(&own) {
        Ok(fd) => Ok(Some(Connection { fd, socket: own })),
        Err(e) if matches!(e.kind(), io::ErrorKind::NotFound | io::ErrorKind::ConnectionRefused) => Ok(None),
        Err(e) => Err(failed("connecting to", &own, e)),
    }
}

/// Connects, if the daemon runs as this user or as root, because clients trust the daemon. In a container with a user
/// namespace of its own the machine's root is an unmapped user: a daemon outside is trusted there if its socket is at
/// the system's path or named by `UNETMAP_SOCKET`, where only a deliberate mount can have put it.
pub(super) fn connect_to(path: &Path) -> io::Result<OwnedFd> {
    let fd = socket::connect(path)?;
    let peer = socket::peer(&fd)?;
    let deliberate = || path == Path::new(SYSTEM_SOCKET) || chosen_socket().is_some_and(|chosen| chosen == path);
    if peer.uid == process::uid() || peer.uid == 0 || deliberate() && process::is_unmapped_user(&peer) {
        return Ok(fd);
    }
    Err(io::Error::new(
        io::ErrorKind::PermissionDenied,
        format!("the daemon there runs as user {}, not as this user or root", peer.uid),
    ))
}

/// Returns the socket named by the environment.
fn chosen_socket() -> Option<PathBuf> {
    process::variable("UNETMAP_SOCKET").map(PathBuf::from)
}

/// Returns the path where this user's own daemon listens: `UNETMAP_SOCKET`, else in the default folder, which is
/// created.
///
/// # Errors
/// The folder cannot be created, or belongs to another user.
pub fn own_socket() -> Result<PathBuf, Error> {
    if let Some(path) = chosen_socket() {
        // Absolute, because the daemon's working directory differs.
        return std::path::absolute(&path).map_err(|e| Error::host(format!("the socket {}", path.display()), e));
    }
    let uid = process::uid();
    if uid == 0 {
        let path = PathBuf::from(SYSTEM_SOCKET);
        let folder = path.parent().unwrap_or(Path::new("/run"));
        if !is_mounted_from_outside(folder) {
            private_folder(folder, 0o755)?;
        }
        return Ok(path);
    }
    if let Some(run) = runtime_folder(uid)
        && fs::metadata(&run).is_ok_and(|m| m.is_dir() && m.uid() == uid)
    {
        return Ok(run.join("unetmapd.sock"));
    }
    let temporary = if process::is_secure_execution() { PathBuf::from("/tmp") } else { std::env::temp_dir() };
    let folder = temporary.join(format!("unetmap-{uid}"));
    private_folder(&folder, 0o700)?;
    Ok(folder.join("unetmapd.sock"))
}

/// Returns `XDG_RUNTIME_DIR`, or its usual value in a program that must not trust its environment.
fn runtime_folder(uid: u32) -> Option<PathBuf> {
    match process::is_secure_execution() {
        true => Some(format!("/run/user/{uid}").into()),
        false => process::variable("XDG_RUNTIME_DIR").map(PathBuf::from),
    }
}

/// Whether the folder is the machine's, mounted into a container in whose user namespace the machine's root has no
/// number. Whether the daemon there is trusted is decided by [`connect_to`].
fn is_mounted_from_outside(folder: &Path) -> bool {
    fs::symlink_metadata(folder).is_ok_and(|meta| meta.is_dir() && process::may_be_unmapped_owner(meta.uid()))
}

/// Creates `folder` if it is missing, and rejects one of another user: its owner could replace the socket.
fn private_folder(folder: &Path, mode: u32) -> Result<(), Error> {
    let subject = || format!("the daemon's folder {}", folder.display());
    match DirBuilder::new().mode(mode).create(folder) {
        Ok(()) => return Ok(()),
        Err(e) if e.kind() == io::ErrorKind::AlreadyExists => {}
        Err(e) => return Err(Error::host(subject() + run_remedy(e.kind(), process::uid()), e)),
    }
    let meta = fs::symlink_metadata(folder).map_err(|e| Error::host(subject(), e))?;
    if meta.is_dir() && meta.uid() == process::uid() && meta.mode() & 0o022 == 0 {
        return Ok(());
    }
    Err(Error::host(subject(), io::Error::other("it belongs to another user, or others can write to it (remove it)")))
}

fn connect_or_start(path: &Path) -> Result<Connection, Error> {
    let mut last = io::Error::from(io::ErrorKind::NotFound);
    for _ in 0..START_TRIES {
        match connect_to(path) {
            Ok(fd) => return Ok(Connection { fd, socket: path.to_owned() }),
            Err(e) if matches!(e.kind(), io::ErrorKind::NotFound | io::ErrorKind::ConnectionRefused) => last = e,
            Err(e) => return Err(failed("connecting to", path, e)),
        }
        start(path, &daemon_program()?, &[])?;
    }
    Err(Error::NoDaemon { reason: format!("started one at {}, but it does not answer", path.display()), source: last })
}

/// Starts the daemon `program` in the background, with `more` arguments, to listen at `path`; its log is written beside
/// the socket. Returns `false` if a daemon listens there already.
///
/// # Errors
/// The socket, its lock or its log cannot be created, or the program does not start.
pub fn start(path: &Path, program: &Path, more: &[OsString]) -> Result<bool, Error> {
    let lock = open_lock(path)?;
    let started = start_locked(path, &lock, program, more);
    // Closing the file is not enough: a child that another thread forks meanwhile has it, too, and would wait for
    // itself.
    let _ = lock.unlock();
    started
}

fn start_locked(path: &Path, lock: &File, program: &Path, more: &[OsString]) -> Result<bool, Error> {
    let Some(listener) = process::outside_netns(|| listen_alone(path, lock))? else { return Ok(false) };
    let log = open_log(path)?;
    let mut args = more.to_vec();
    args.extend(["--listen-fd".into(), "3".into(), "--socket".into(), path.as_os_str().to_owned()]);
    process::spawn_detached(program, program.as_os_str(), &args, listener, log)
        .map_err(|e| Error::NoDaemon { reason: format!("starting {}", program.display()), source: e })?;
    Ok(true)
}

/// Opens the lock file that serializes starting and stopping the daemon that listens at `path`.
///
/// # Errors
/// It is not a regular file of this user; or the kernel's.
pub fn open_lock(path: &Path) -> Result<File, Error> {
    place::append(&lock_path(path)).map_err(|e| failed("opening the lock beside", path, e))
}

/// Opens the log of the daemon that listens at `path`, which begins anew if it is long.
///
/// # Errors
/// It is not a regular file of this user; or the kernel's.
pub fn open_log(path: &Path) -> Result<File, Error> {
    log::begin(&log_path(path), MAX_DAEMON_LOG, 0o600).map_err(|e| failed("opening the log beside", path, e))
}

/// The file of [`open_log`].
pub fn log_path(path: &Path) -> PathBuf {
    beside(path, ".log")
}

/// The file of [`open_lock`].
pub fn lock_path(path: &Path) -> PathBuf {
    beside(path, ".lock")
}

/// Takes `lock` and listens at `path`; `None` if a daemon listens there already. Closing the file releases the lock.
///
/// # Errors
/// Another process holds the lock for longer than the reply timeout, a file at `path` is not a socket, or the kernel's.
pub fn listen_alone(path: &Path, lock: &File) -> Result<Option<OwnedFd>, Error> {
    wait_for_lock(lock).map_err(|e| failed("locking beside", path, e))?;
    if socket::connect(path).is_ok() {
        return Ok(None);
    }
    // The lock excludes other starters, so a socket that refuses connections was left by a daemon that has exited.
    remove_dead_socket(path).map_err(|e| failed("removing the stale socket", path, e))?;
    // Root's daemon serves all users that its policy admits.
    let mode = if process::uid() == 0 { 0o666 } else { 0o600 };
    socket::listen(path, mode).map(Some).map_err(|e| failed("listening at", path, e))
}

fn failed(what: &str, path: &Path, source: io::Error) -> Error {
    Error::NoDaemon { reason: format!("{what} {} (UNETMAP_SOCKET selects another socket)", path.display()), source }
}

fn beside(path: &Path, suffix: &str) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(suffix);
    name.into()
}

/// Takes the lock, within the time that a starting daemon may need.
///
/// # Errors
/// `TimedOut` if another process holds it for so long; or the kernel's.
fn wait_for_lock(lock: &File) -> io::Result<()> {
    let start = std::time::Instant::now();
    loop {
        match lock.try_lock() {
            Ok(()) => return Ok(()),
            Err(std::fs::TryLockError::Error(e)) => return Err(e),
            Err(std::fs::TryLockError::WouldBlock) if start.elapsed() > REPLY_TIMEOUT => {
                return Err(io::ErrorKind::TimedOut.into());
            }
            Err(std::fs::TryLockError::WouldBlock) => std::thread::sleep(LOCK_POLL),
        }
    }
}

/// Removes the socket at `path`, if there is one at which nobody listens.
///
/// # Errors
/// The kernel's; `AlreadyExists` for a file that is not a socket, which is left in place.
fn remove_dead_socket(path: &Path) -> io::Result<()> {
    socket::remove_dead(path)?;
    match fs::symlink_metadata(path) {
        Ok(meta) if !meta.file_type().is_socket() => {
            Err(io::Error::new(io::ErrorKind::AlreadyExists, "a file that is not a socket (choose another path)"))
        }
        _ => Ok(()),
    }
}

/// Returns the daemon's program: `UNETMAPD`, else beside this program, in the `PATH`, or in the system's folders. A
/// program with more privileges than its caller searches only these: its file may be linked into any folder.
fn daemon_program() -> Result<PathBuf, Error> {
    if let Some(path) = process::variable("UNETMAPD") {
        return Ok(path.into());
    }
    let secure = process::is_secure_execution();
    let beside = std::env::current_exe().ok().filter(|_| !secure).and_then(|exe| Some(exe.parent()?.to_owned()));
    // Cargo puts examples and tests one folder below the programs.
    let above = beside.as_deref().and_then(Path::parent).map(Path::to_owned);
    let path: Vec<PathBuf> = process::variable("PATH").iter().flat_map(std::env::split_paths).collect();
    beside
        .into_iter()
        .chain(above)
        .chain(path)
        .chain(SYSTEM_FOLDERS.map(PathBuf::from))
        .map(|folder| folder.join("unetmapd"))
        .find(|program| fs::metadata(program).is_ok_and(|m| m.is_file() && m.mode() & 0o111 != 0))
        .ok_or_else(|| Error::NoDaemon {
            reason: match secure {
                true => format!(
                    "unetmapd is in none of {} (this program has more privileges than its caller, so UNETMAPD and PATH \
                     do not count: start the daemon first)",
                    SYSTEM_FOLDERS.join(", ")
                ),
                false => {
                    "unetmapd is neither beside this program nor in the PATH (set UNETMAPD=/path/to/unetmapd)".into()
                }
            },
            source: io::ErrorKind::NotFound.into(),
        })
}

/// A reply of the daemon: its head's errno and holder ID, payload, file descriptors.
pub(crate) struct Reply {
    pub(crate) errno: i32,
    pub(crate) holder: u32,
    pub(crate) payload: Vec<u8>,
    pub(crate) fds: Vec<OwnedFd>,
}

impl Reply {
    /// Returns the text of a reply: its payload or, if that is empty, the contents of its memfd.
    ///
    /// # Errors
    /// The daemon's refusal, or a reply without a text.
    pub(crate) fn into_text(self, subject: &str) -> Result<String, Error> {
        self.refused(subject)?;
        if let Some(text) = self.text() {
            return Ok(text);
        }
        let Some(memfd) = self.fds.into_iter().next() else {
            let reason = "the daemon's reply lacks its text".into();
            return Err(Error::Refused { subject: subject.into(), errno: errno::EIO, reason });
        };
        let (mut file, mut text) = (File::from(memfd), String::new());
        let read = file.rewind().and_then(|()| Ok((file.metadata()?.len(), file.read_to_string(&mut text)?)));
        let (bytes, read) = read.map_err(|e| Error::host(subject, e))?;
        if read == 0 || read as u64 != bytes {
            let reason = "the daemon has taken its reply back, which was not read for long: try again".into();
            return Err(Error::Refused { subject: subject.into(), errno: errno::EIO, reason });
        }
        Ok(text.trim_end_matches('\0').to_owned())
    }

    /// Returns the error of a refused request.
    pub(crate) fn refused(&self, subject: &str) -> Result<(), Error> {
        if self.errno == 0 {
            return Ok(());
        }
        let of_request = NetmapReply::decode(&self.payload).map(|reply| reply.reason);
        let reason = of_request.or_else(|| self.text()).filter(|reason| !reason.is_empty());
        let reason = reason.unwrap_or_else(|| io::Error::from_raw_os_error(self.errno).to_string());
        Err(Error::Refused { subject: subject.into(), errno: self.errno, reason })
    }

    /// Returns the payload if it is text.
    pub(crate) fn text(&self) -> Option<String> {
        String::from_utf8(self.payload.clone()).ok().filter(|text| !text.is_empty())
    }
}

/// Sends one request and waits for the reply. `EAGAIN` means that the kernel has not released a queue yet, or that the
/// number of queues has just changed: the request is repeated for a while, here and not in the daemon, which would make
/// other clients wait.
pub(crate) fn send<R: ControlRequest>(fd: BorrowedFd<'_>, subject: &str, request: &R) -> Result<Reply, Error> {
    send_encoded(fd, subject, R::KIND, &request.encode(), || ())
}

/// Sends a request whose reply is short, within a sync: the preloaded library maps no memory for it.
pub(crate) fn send_in_sync<R: ControlRequest>(fd: BorrowedFd<'_>, subject: &str, request: &R) -> Result<Reply, Error> {
    let tag = send_only(fd, subject, R::KIND, &request.encode())?;
    receive_reply(fd, subject, tag, SHORT_REPLY)
}

/// Sends a request as [`send`] does, to the system's daemon if it runs, else to this user's own, which is started if
/// `start`. Returns the text of the reply; `None` if no daemon runs.
pub(crate) fn send_for_text<R: ControlRequest>(
    request: &R,
    subject: &str,
    start: bool,
) -> Result<Option<String>, Error> {
    let once = || {
        let own = || running_or_started(start);
        let Some(connection) = connect_system().map_or_else(own, |system| Ok(Some(system)))? else { return Ok(None) };
        send(connection.fd.as_fd(), subject, request)?.into_text(subject).map(Some)
    };
    // Another one may have been carried out by a daemon that crashed and goes on with its ports.
    if start { again_if_gone(|_| once()) } else { once() }
}

/// Connects to this user's own daemon, which is started if none runs and `start`.
pub(crate) fn running_or_started(start: bool) -> Result<Option<Connection>, Error> {
    if start { connect().map(Some) } else { running() }
}

/// Calls `meanwhile` once, before it waits for the first reply.
fn send_encoded(
    fd: BorrowedFd<'_>,
    subject: &str,
    kind: Kind,
    payload: &[u8],
    meanwhile: impl FnOnce(),
) -> Result<Reply, Error> {
    let (mut refused_since, mut meanwhile) = (None, Some(meanwhile));
    loop {
        let tag = send_only(fd, subject, kind, payload)?;
        meanwhile.take().into_iter().for_each(|meanwhile| meanwhile());
        let reply = receive_reply(fd, subject, tag, wire::MAX_REPLY)?;
        if reply.errno != errno::EAGAIN {
            return Ok(reply);
        }
        // From the first reply on: some drivers take seconds to attach an XDP program.
        if refused_since.get_or_insert_with(std::time::Instant::now).elapsed() > QUEUE_BUSY_LIMIT {
            return Ok(Reply { errno: errno::EBUSY, ..reply });
        }
        std::thread::sleep(QUEUE_BUSY_RETRY);
    }
}

/// Sends a request; returns its tag.
pub(super) fn send_only(fd: BorrowedFd<'_>, subject: &str, kind: Kind, payload: &[u8]) -> Result<u32, Error> {
    let gone = |e| gone_or_host(subject, e);
    socket::set_timeout(fd, REPLY_TIMEOUT).map_err(gone)?;
    let tag = next_tag();
    match socket::send(fd, &wire::encode_tagged(tag, kind, 0, 0, 0, payload), &[]) {
        // The daemon has closed the connection. If it does not serve this user, it has sent why before.
        Err(e) if matches!(e.kind(), io::ErrorKind::BrokenPipe | io::ErrorKind::ConnectionReset) => {}
        sent => drop(sent.map_err(gone)?),
    }
    Ok(tag)
}

/// Receives the reply to the request with this tag, of which a message has at most `most` bytes.
pub(super) fn receive_reply(fd: BorrowedFd<'_>, subject: &str, tag: u32, most: usize) -> Result<Reply, Error> {
    let mut fds = Vec::new();
    let (head, payload) = receive_tagged(fd, subject, (tag, most), &mut fds)?;
    while fds.len() < head.fds as usize {
        let (before, (more, why)) = (fds.len(), receive_tagged(fd, subject, (tag, most), &mut fds)?);
        if more.errno != 0 {
            return Ok(Reply { errno: more.errno, holder: 0, payload: why, fds: Vec::new() });
        } else if fds.len() == before {
            return Err(Error::host(subject, io::Error::other("the daemon's reply lacks file descriptors")));
        }
    }
    Ok(Reply { errno: head.errno, holder: head.holder, payload, fds })
}

/// Returns a tag that differs between the requests of processes that share a connection and send one after the other.
fn next_tag() -> u32 {
    static SENT: AtomicU32 = AtomicU32::new(0);
    let sent = SENT.fetch_add(1, Ordering::Relaxed);
    process::pid().rotate_left(16) ^ sent ^ clock::now_ns() as u32
}

/// Receives the next message with `tag`, and its descriptors. Discards replies with other tags: they were for a process
/// that sent a request on this connection and was killed. Such a reply may have any number of messages.
fn receive_tagged(
    fd: BorrowedFd<'_>,
    subject: &str,
    (tag, most): (u32, usize),
    fds: &mut Vec<OwnedFd>,
) -> Result<(wire::Head, Vec<u8>), Error> {
    let start = std::time::Instant::now();
    loop {
        let had = fds.len();
        let bytes = receive(fd, fds, most).map_err(|e| gone_or_host(subject, e))?;
        let (_, head, payload) =
            wire::decode(&bytes).map_err(|e| Error::host(subject, io::Error::other(e.to_string())))?;
        // The reply to a message that could not be decoded has no tag; the daemon closes the connection after it.
        if head.tag == tag || head.tag == 0 && head.errno != 0 {
            return Ok((head, payload.to_vec()));
        }
        fds.truncate(had);
        if start.elapsed() > REPLY_TIMEOUT {
            let e = io::Error::new(io::ErrorKind::TimedOut, "the daemon answers other requests only");
            return Err(Error::host(subject, e));
        }
    }
}

/// Returns the error for a closed connection, for a daemon that was there before, or for any other failure.
fn gone_or_host(subject: &str, e: io::Error) -> Error {
    use io::ErrorKind::{BrokenPipe, ConnectionRefused, ConnectionReset, NotFound};
    match e.kind() {
        BrokenPipe | ConnectionRefused | ConnectionReset | NotFound => Error::DaemonGone { subject: subject.into() },
        _ => Error::host(subject, e),
    }
}

fn receive(fd: BorrowedFd<'_>, fds: &mut Vec<OwnedFd>, most: usize) -> io::Result<Vec<u8>> {
    let mut buf = vec![0; most];
    let mut was_reset = false;
    let got = loop {
        match socket::recv(fd, &mut buf, fds) {
            // Reported once, if the daemon did not read this program's last request; messages that it sent follow.
            Err(e) if e.kind() == io::ErrorKind::ConnectionReset && !was_reset => was_reset = true,
            // A program may have made its netmap descriptor non-blocking.
            Err(e) if e.kind() == io::ErrorKind::WouldBlock && wait_for_input(fd, REPLY_TIMEOUT)? => {}
            Err(e) if e.kind() == io::ErrorKind::WouldBlock => {
                return Err(io::Error::new(io::ErrorKind::TimedOut, "the daemon does not answer (see unetmap events)"));
            }
            other => break other?,
        }
    };
    if got.fds_truncated {
        return Err(io::Error::other("too many open files in this process (raise ulimit -n)"));
    }
    if got.truncated {
        return Err(io::Error::other("the daemon's reply is too long"));
    }
    if got.bytes == 0 {
        return Err(io::ErrorKind::ConnectionReset.into());
    }
    buf.truncate(got.bytes);
    Ok(buf)
}

/// Waits until there is something to receive; returns `false` if nothing arrives within `limit`.
fn wait_for_input(fd: BorrowedFd<'_>, limit: Duration) -> io::Result<bool> {
    let mut fds = [PollFd::from_borrowed_fd(fd, PollFlags::IN)];
    match wait_readable(&mut fds, Some(limit)) {
        Err(e) if e.kind() == io::ErrorKind::Interrupted => Ok(true),
        other => Ok(other? > 0),
    }
}

/// Sends a netmap request; a reply with an errno is an error. Calls `meanwhile` once, before it waits for the reply.
pub(crate) fn send_netmap(
    fd: BorrowedFd<'_>,
    subject: &str,
    request: &NetmapRequest,
    meanwhile: impl FnOnce(),
) -> Result<(NetmapReply, Vec<OwnedFd>), Error> {
    let payload = request.with_environment().encode();
    let reply = send_encoded(fd, subject, NetmapRequest::KIND, &payload, meanwhile)?;
    reply.refused(subject)?;
    let answer = NetmapReply::decode(&reply.payload).ok_or_else(|| Error::malformed_reply(subject))?;
    Ok((answer, reply.fds))
}

/// The name of a lock holder in errors.
const LOCK_HOLDER: &str = "a holder ID";

/// A request for a holder ID whose reply was not received.
pub(crate) struct RequestedHolder {
    fd: OwnedFd,
    tag: u32,
}

/// Requests that this process becomes a lock holder.
pub(crate) fn request_lock_holder(path: &Path) -> Result<RequestedHolder, Error> {
    let fd = connect_to(path).map_err(|e| gone_or_host(LOCK_HOLDER, e))?;
    let tag = send_only(fd.as_fd(), LOCK_HOLDER, LockHolderRequest::KIND, &LockHolderRequest.encode())?;
    Ok(RequestedHolder { fd, tag })
}

impl RequestedHolder {
    /// Waits for the reply; returns the connection of the process as a lock holder, and its holder ID.
    pub(crate) fn receive(self) -> Result<(OwnedFd, u32), Error> {
        let reply = receive_reply(self.fd.as_fd(), LOCK_HOLDER, self.tag, wire::MAX_REPLY)?;
        reply.refused(LOCK_HOLDER)?;
        if reply.holder == 0 {
            return Err(Error::malformed_reply(LOCK_HOLDER));
        }
        Ok((self.fd, reply.holder))
    }
}

/// Returns the state of this user's daemon (ports, regions, clients) and of the system's daemon as far as it concerns
/// this user, each as JSON. Starts no daemon: the list is empty if none runs.
///
/// # Errors
/// A daemon's refusal, or the kernel's.
pub fn snapshots() -> Result<Vec<String>, Error> {
    let system = match connect_system().map(|connection| snapshot_of(&connection.fd)) {
        // It does not serve this user.
        Some(Err(Error::Refused { errno: errno::EACCES, .. })) | None => None,
        Some(snapshot) => Some(snapshot?),
    };
    let own = running()?.map(|connection| snapshot_of(&connection.fd)).transpose()?;
    Ok(system.into_iter().chain(own).collect())
}

fn snapshot_of(fd: &OwnedFd) -> Result<String, Error> {
    let subject = "the daemon's ports";
    send(fd.as_fd(), subject, &SnapshotRequest)?.into_text(subject)
}

/// Whether the whole of `name` is an interface of this network namespace, for names with a `-`.
pub(crate) fn interface_exists(name: &str) -> bool {
    // Not in /sys, which may show another network namespace than this process's.
    link::by_name(name).is_ok_and(|link| link.is_some())
}
