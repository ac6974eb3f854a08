//! Finding the daemon, starting it, and talking to it.
//!
//! Which one: `UNETMAP_SOCKET`, else the system's daemon where it admits this user to the port, else the user's own in
//! `$XDG_RUNTIME_DIR` or a private folder of the temporary directory. Where none listens, this process binds the socket
//! and hands it to a new daemon, so that nobody has to wait for it or to guess when it is ready.

use std::ffi::OsString;
use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::{DirBuilderExt, FileTypeExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use unetmap_sys::event::{PollFd, PollFlags, wait_readable};
use unetmap_sys::{clock, process, socket};

use crate::error::{Error, errno};
use crate::control::request::{Answer, Request};
use crate::control::wire::{self, Kind};

/// The system daemon's socket.
pub const SYSTEM_SOCKET: &str = "/run/unetmap/unetmapd.sock";
/// How long a daemon may take to answer.
pub(crate) const ANSWER_LIMIT: Duration = Duration::from_secs(10);
/// How long the kernel may take to let go of a queue whose program has just died, and how often to ask.
const LET_GO_LIMIT: Duration = Duration::from_secs(2);
const LET_GO_PAUSE: Duration = Duration::from_millis(20);
/// How often to start a daemon and connect: one that is just ending may refuse the connection.
const START_TRIES: u32 = 3;

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

/// Connects to the system's daemon, where it runs and is not this user's own. It is never started for another user.
pub(crate) fn connect_system() -> Option<Connection> {
    let system = Path::new(SYSTEM_SOCKET);
    if chosen_socket().is_some() || process::uid() == 0 {
        return None;
    }
    connect_to(system).ok().map(|fd| Connection { fd, socket: system.to_owned() })
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

/// Connects, if it is this user or root who serves there: a daemon is believed. In a container, whose users are its own, the
/// machine's root is nobody: there whoever serves outside is believed, on a socket that was put where it is on purpose.
fn connect_to(path: &Path) -> io::Result<OwnedFd> {
    let fd = socket::connect(path)?;
    let peer = socket::peer(&fd)?;
    let on_purpose = || path == Path::new(SYSTEM_SOCKET) || chosen_socket().is_some_and(|chosen| chosen == path);
    if peer.uid == process::uid() || peer.uid == 0 || on_purpose() && process::is_unmapped_user(&peer) {
        return Ok(fd);
    }
    Err(io::Error::new(io::ErrorKind::PermissionDenied, format!("it is user {} who listens there", peer.uid)))
}

/// The socket that the environment names.
fn chosen_socket() -> Option<PathBuf> {
    std::env::var_os("UNETMAP_SOCKET").filter(|path| !path.is_empty()).map(PathBuf::from)
}

/// Where this user's own daemon listens: as `UNETMAP_SOCKET` says, else in the usual folder, which is made.
///
/// # Errors
/// The folder cannot be made, or belongs to somebody else.
pub fn own_socket() -> Result<PathBuf, Error> {
    if let Some(path) = chosen_socket() {
        // The daemon works in another folder.
        return std::path::absolute(&path).map_err(|e| Error::host(format!("the socket {}", path.display()), e));
    }
    let uid = process::uid();
    if uid == 0 {
        let path = PathBuf::from(SYSTEM_SOCKET);
        private_folder(path.parent().unwrap_or(Path::new("/run")), 0o755)?;
        return Ok(path);
    }
    if let Some(run) = std::env::var_os("XDG_RUNTIME_DIR").map(PathBuf::from)
        && fs::metadata(&run).is_ok_and(|m| m.is_dir() && m.uid() == uid)
    {
        return Ok(run.join("unetmapd.sock"));
    }
    let folder = std::env::temp_dir().join(format!("unetmap-{uid}"));
    private_folder(&folder, 0o700)?;
    Ok(folder.join("unetmapd.sock"))
}

/// Makes `folder` if it is missing, and refuses one that another user made: whoever owns it could replace the socket.
fn private_folder(folder: &Path, mode: u32) -> Result<(), Error> {
    let asked = || format!("the daemon's folder {}", folder.display());
    match DirBuilder::new().mode(mode).create(folder) {
        Ok(()) => return Ok(()),
        Err(e) if e.kind() == io::ErrorKind::AlreadyExists => {}
        Err(e) => return Err(Error::host(asked(), e)),
    }
    let meta = fs::symlink_metadata(folder).map_err(|e| Error::host(asked(), e))?;
    if meta.is_dir() && meta.uid() == process::uid() && meta.mode() & 0o022 == 0 {
        return Ok(());
    }
    Err(Error::host(asked(), io::Error::other("belongs to another user or others can write it (remove it)")))
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
    Err(Error::NoDaemon { why: format!("started one at {}, but it does not answer", path.display()), source: last })
}

/// Starts `program`, a daemon, in the background, with `more` arguments, to listen at `path`; its log goes beside the
/// socket. `false`: one listens there already.
///
/// # Errors
/// The socket, its lock or its log cannot be made, or the program does not start.
pub fn start(path: &Path, program: &Path, more: &[OsString]) -> Result<bool, Error> {
    let lock = open_lock(path)?;
    let Some(listener) = listen_alone(path, &lock)? else { return Ok(false) };
    let log = own_file(&beside(path, ".log")).map_err(|e| failed("opening the log beside", path, e))?;
    let mut args = more.to_vec();
    args.extend(["--listen-fd".into(), "3".into(), "--socket".into(), path.as_os_str().to_owned()]);
    process::spawn_detached(program, &args, listener, log)
        .map_err(|e| Error::NoDaemon { why: format!("starting {}", program.display()), source: e })?;
    Ok(true)
}

/// Opens the file whose lock decides who starts or ends the daemon that listens at `path`.
///
/// # Errors
/// It is no ordinary file of this user's; or the kernel's.
pub fn open_lock(path: &Path) -> Result<File, Error> {
    own_file(&beside(path, ".lock")).map_err(|e| failed("opening the lock beside", path, e))
}

/// Takes `lock` and listens at `path`; `None`: somebody does already. The lock is released with its file.
///
/// # Errors
/// Somebody else holds the lock all the time, a file that is no socket is in the way, or the kernel's.
pub fn listen_alone(path: &Path, lock: &File) -> Result<Option<OwnedFd>, Error> {
    wait_for_lock(lock).map_err(|e| failed("locking beside", path, e))?;
    if socket::connect(path).is_ok() {
        return Ok(None);
    }
    // Under the lock nobody else starts one, so a socket that refuses connections is a dead daemon's.
    remove_dead_socket(path).map_err(|e| failed("removing the dead daemon's socket", path, e))?;
    // Root's serves everybody whom its policy admits.
    let mode = if process::uid() == 0 { 0o666 } else { 0o600 };
    socket::listen(path, mode).map(Some).map_err(|e| failed("listening at", path, e))
}

fn failed(what: &str, path: &Path, source: io::Error) -> Error {
    Error::NoDaemon { why: format!("{what} {} (UNETMAP_SOCKET names another place)", path.display()), source }
}

fn beside(path: &Path, suffix: &str) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(suffix);
    name.into()
}

/// Opens a file beside the socket for appending, or makes it. What another user put there, to be waited for or to be
/// written to in our name, is refused.
///
/// # Errors
/// It is no ordinary file of this user's; or the kernel's.
fn own_file(path: &Path) -> io::Result<File> {
    let no_follow_no_wait = process::O_NOFOLLOW | process::O_NONBLOCK;
    let file = OpenOptions::new().append(true).create(true).mode(0o600).custom_flags(no_follow_no_wait).open(path)?;
    let meta = file.metadata()?;
    if meta.is_file() && meta.uid() == process::uid() {
        return Ok(file);
    }
    Err(io::Error::other("something of another user is in the way (remove it)"))
}

/// Locks, within the time that a starting daemon may take.
///
/// # Errors
/// `TimedOut` when somebody else holds it all the time; or the kernel's.
fn wait_for_lock(lock: &File) -> io::Result<()> {
    let start = std::time::Instant::now();
    loop {
        match lock.try_lock() {
            Ok(()) => return Ok(()),
            Err(std::fs::TryLockError::Error(e)) => return Err(e),
            Err(std::fs::TryLockError::WouldBlock) if start.elapsed() > ANSWER_LIMIT => {
                return Err(io::ErrorKind::TimedOut.into());
            }
            Err(std::fs::TryLockError::WouldBlock) => std::thread::sleep(Duration::from_millis(2)),
        }
    }
}

/// Removes the socket at `path`, if there is one. The caller knows that nobody listens.
///
/// # Errors
/// The kernel's; `AlreadyExists` for a file that is no socket: it is somebody's, and stays.
fn remove_dead_socket(path: &Path) -> io::Result<()> {
    match fs::symlink_metadata(path) {
        Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(()),
        Err(e) => Err(e),
        Ok(meta) if meta.file_type().is_socket() => fs::remove_file(path),
        Ok(_) => Err(io::Error::new(io::ErrorKind::AlreadyExists, "a file that is no socket (name another)")),
    }
}

/// The daemon's program: `UNETMAPD`, else beside this program, else in the `PATH`.
fn daemon_program() -> Result<PathBuf, Error> {
    if let Some(path) = std::env::var_os("UNETMAPD") {
        return Ok(path.into());
    }
    let beside = std::env::current_exe().ok().and_then(|exe| Some(exe.parent()?.to_owned()));
    // Examples and tests of a build live one folder below the programs.
    let above = beside.as_deref().and_then(Path::parent).map(Path::to_owned);
    let path = std::env::var_os("PATH").unwrap_or_default();
    beside
        .into_iter()
        .chain(above)
        .chain(std::env::split_paths(&path))
        .chain(["/usr/local/sbin".into(), "/usr/sbin".into()])
        .map(|folder| folder.join("unetmapd"))
        .find(|program| fs::metadata(program).is_ok_and(|m| m.is_file() && m.mode() & 0o111 != 0))
        .ok_or_else(|| Error::NoDaemon {
            why: "unetmapd is neither beside this program nor in the PATH (UNETMAPD=/path/to/unetmapd names it)".into(),
            source: io::ErrorKind::NotFound.into(),
        })
}

/// One answer of the daemon: its head's errno and lease, payload, file descriptors.
pub(crate) struct Reply {
    pub(crate) errno: i32,
    pub(crate) lease: u32,
    pub(crate) payload: Vec<u8>,
    pub(crate) fds: Vec<OwnedFd>,
}

/// Sends one message and waits for the answer. What the kernel has not let go of yet is asked for again for a while, here
/// and not in the daemon, which others wait for.
pub(crate) fn call(fd: BorrowedFd<'_>, asked: &str, kind: Kind, payload: &[u8]) -> Result<Reply, Error> {
    let start = std::time::Instant::now();
    loop {
        let reply = call_once(fd, asked, kind, payload)?;
        if reply.errno != errno::EAGAIN {
            return Ok(reply);
        }
        if start.elapsed() > LET_GO_LIMIT {
            return Ok(Reply { errno: errno::EBUSY, ..reply });
        }
        std::thread::sleep(LET_GO_PAUSE);
    }
}

fn call_once(fd: BorrowedFd<'_>, asked: &str, kind: Kind, payload: &[u8]) -> Result<Reply, Error> {
    let gone = |e| gone_or_host(asked, e);
    socket::set_timeout(fd, ANSWER_LIMIT).map_err(gone)?;
    let tag = next_tag();
    socket::send(fd, &wire::tagged(tag, kind, 0, 0, 0, payload), &[]).map_err(gone)?;
    let mut fds = Vec::new();
    let (head, payload) = receive_tagged(fd, asked, tag, &mut fds)?;
    while fds.len() < head.fds as usize {
        let before = fds.len();
        receive_tagged(fd, asked, tag, &mut fds)?;
        if fds.len() == before {
            return Err(Error::host(asked, io::Error::other("the daemon's answer lacks file descriptors")));
        }
    }
    Ok(Reply { errno: head.errno, lease: head.lease, payload, fds })
}

/// Differs between the questions that processes which share a connection ask one after the other.
fn next_tag() -> u32 {
    static ASKED: AtomicU32 = AtomicU32::new(0);
    let mine = ASKED.fetch_add(1, Ordering::Relaxed);
    process::pid().rotate_left(16) ^ mine ^ clock::now_ns() as u32
}

/// The next message that answers this very question, and its descriptors. One for who asked before, and died, is
/// dropped; it may be of any number of messages.
fn receive_tagged(
    fd: BorrowedFd<'_>,
    asked: &str,
    tag: u32,
    fds: &mut Vec<OwnedFd>,
) -> Result<(wire::Head, Vec<u8>), Error> {
    let start = std::time::Instant::now();
    loop {
        let had = fds.len();
        let bytes = receive(fd, fds).map_err(|e| gone_or_host(asked, e))?;
        let (_, head, payload) = wire::open(&bytes).map_err(|e| Error::host(asked, io::Error::other(e.to_string())))?;
        // What is no message at all is answered without a tag, and the connection ends.
        if head.tag == tag || head.tag == 0 && head.errno != 0 {
            return Ok((head, payload.to_vec()));
        }
        fds.truncate(had);
        if start.elapsed() > ANSWER_LIMIT {
            return Err(Error::host(asked, io::Error::new(io::ErrorKind::TimedOut, "the daemon answers others only")));
        }
    }
}

/// A connection that ended, or any other trouble with it.
fn gone_or_host(asked: &str, e: io::Error) -> Error {
    match e.kind() {
        io::ErrorKind::BrokenPipe | io::ErrorKind::ConnectionReset => Error::DaemonGone { asked: asked.into() },
        _ => Error::host(asked, e),
    }
}

fn receive(fd: BorrowedFd<'_>, fds: &mut Vec<OwnedFd>) -> io::Result<Vec<u8>> {
    let mut buf = vec![0; wire::MAX_ANSWER];
    let got = loop {
        match socket::recv(fd, &mut buf, fds) {
            // The descriptor may be a program's own, which it can have made non-blocking.
            Err(e) if e.kind() == io::ErrorKind::WouldBlock && waits_for(fd, ANSWER_LIMIT)? => {}
            Err(e) if e.kind() == io::ErrorKind::WouldBlock => {
                return Err(io::Error::new(io::ErrorKind::TimedOut, "the daemon does not answer"));
            }
            other => break other?,
        }
    };
    if got.fds_truncated {
        return Err(io::Error::other("too many open files in this process (raise ulimit -n)"));
    }
    if got.truncated {
        return Err(io::Error::other("the daemon's answer is too long"));
    }
    if got.bytes == 0 {
        return Err(io::ErrorKind::ConnectionReset.into());
    }
    buf.truncate(got.bytes);
    Ok(buf)
}

/// Waits until there is something to receive; `false` when nothing comes within `limit`.
fn waits_for(fd: BorrowedFd<'_>, limit: Duration) -> io::Result<bool> {
    let mut fds = [PollFd::from_borrowed_fd(fd, PollFlags::IN)];
    match wait_readable(&mut fds, Some(limit)) {
        Err(e) if e.kind() == io::ErrorKind::Interrupted => Ok(true),
        other => Ok(other? > 0),
    }
}

/// Sends a netmap request; an answer with an errno is an error.
pub(crate) fn ctrl(fd: BorrowedFd<'_>, asked: &str, request: &Request) -> Result<(Answer, Vec<OwnedFd>), Error> {
    let reply = call(fd, asked, Kind::Ctrl, &request.encode_wanted())?;
    let answer = Answer::decode(&reply.payload);
    if reply.errno != 0 {
        let why = answer.map(|a| a.why).filter(|w| !w.is_empty());
        let why = why.unwrap_or_else(|| io::Error::from_raw_os_error(reply.errno).to_string());
        return Err(Error::Refused { asked: asked.into(), errno: reply.errno, why });
    }
    let answer = answer.ok_or_else(|| Error::host(asked, io::Error::other("the daemon's answer makes no sense")))?;
    Ok((answer, reply.fds))
}

/// A new lease for this process.
pub(crate) fn take_lease(path: &Path) -> Result<(OwnedFd, u32), Error> {
    let asked = "a lease";
    let fd = socket::connect(path).map_err(|e| Error::host(asked, e))?;
    let reply = call(fd.as_fd(), asked, Kind::Lease, &[])?;
    if reply.errno != 0 || reply.lease == 0 {
        let errno = reply.errno;
        return Err(Error::Refused { asked: asked.into(), errno, why: "the daemon gives no more leases".into() });
    }
    Ok((fd, reply.lease))
}

/// Everything that this user's daemon knows about its ports, regions and clients, as JSON, and what the system's knows
/// about this user's. Starts no daemon: nothing when none runs.
///
/// # Errors
/// A daemon's refusal, or the kernel's.
pub fn snapshots() -> Result<Vec<String>, Error> {
    connect_system().into_iter().chain(running()?).map(|connection| snapshot_of(&connection.fd)).collect()
}

fn snapshot_of(fd: &OwnedFd) -> Result<String, Error> {
    let asked = "the daemon's ports";
    let reply = call(fd.as_fd(), asked, Kind::Snapshot, &[])?;
    let Some(memfd) = reply.fds.into_iter().next().filter(|_| reply.errno == 0) else {
        return Err(Error::Refused { asked: asked.into(), errno: reply.errno, why: "the daemon refused".into() });
    };
    use std::io::{Read, Seek};
    let mut file = File::from(memfd);
    let mut text = String::new();
    file.rewind().and_then(|()| file.read_to_string(&mut text)).map_err(|e| Error::host(asked, e))?;
    Ok(text.trim_end_matches('\0').to_owned())
}
