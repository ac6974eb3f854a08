// SPDX-License-Identifier: BSD-2-Clause
//! UNIX sockets of type SOCK_SEQPACKET: connections that preserve message boundaries, pass descriptors, and hang up
//! when the last duplicate of the other end is closed, also by a crash.

mod fd_sender;

use std::ffi::OsStr;
use std::io::{self, IoSlice, IoSliceMut};
use std::mem::{MaybeUninit, size_of};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rustix::fs::{FileType, FlockOperation, Mode, chmod, fchmod, fcntl_lock, fstat};
use rustix::io::{Errno, retry_on_intr};
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, SocketAddrUnix, SocketFlags, SocketType, accept_with, bind, recvmsg, sendmsg,
    socket_with, socketpair,
    sockopt::{Timeout, set_socket_timeout},
};
use rustix::process::{Pid, PidfdFlags, pidfd_open};

pub use fd_sender::FdSender;

use crate::place::{Identity, Place};
use crate::tuning::{CONNECT_LIMIT, LISTEN_BACKLOG, PEER_GROUPS};

/// Most descriptors that one message can carry: the kernel's SCM_MAX_FD.
pub const MAX_FDS: usize = 253;

/// `SO_PEERPIDFD`, since Linux 6.5.
const SO_PEERPIDFD: libc::c_int = 77;
/// `SO_PASSRIGHTS`, since Linux 6.16; not in libc's headers yet.
const SO_PASSRIGHTS: libc::c_int = 83;

/// `SIOCUNIXFILE` of linux/un.h.
const SIOCUNIXFILE: libc::Ioctl = 0x89E0;

/// Result of [`recv`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Received {
    /// Bytes written to the buffer; 0 means that the peer has closed the connection.
    pub bytes: usize,
    /// The message was longer than the buffer; the rest is discarded.
    pub truncated: bool,
    /// Some descriptors of the message were discarded: the limit of open files was reached.
    pub fds_truncated: bool,
}

/// Credentials of the peer at the time when it connected (or called listen).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Peer {
    /// Process id; 0 if its pid namespace is not visible from this process.
    pub pid: u32,
    /// Effective user id.
    pub uid: u32,
    /// Effective group id.
    pub gid: u32,
}

/// The file of a listening socket.
#[derive(Debug)]
pub struct SocketFile {
    place: Place,
    identity: Identity,
}

impl SocketFile {
    /// Removes the file, unless another one has its name by now.
    pub fn remove(&self) {
        let _ = self.place.remove(self.identity);
    }
}

/// Creates a non-blocking socket that listens at `path` (at most 107 bytes) with file permissions `mode` (such as
/// 0o600). The file first has the permissions of `mode` reduced by the umask, then those of `mode`; never more.
///
/// # Errors
/// `EADDRINUSE` if a file of that name exists, even without a listener; `ENAMETOOLONG`; `ENOENT`; `EACCES`; `EEXIST` if
/// another user replaced the file meanwhile; a link of another user, as of [`Place::of`].
pub fn listen(path: &Path, mode: u32) -> io::Result<OwnedFd> {
    listen_with(SocketType::SEQPACKET, path, mode).map(|(fd, _)| fd)
}

/// The same, in place of a socket at which nobody listens any more. Returns its file, too.
///
/// # Errors
/// As of [`listen`].
pub fn listen_again(path: &Path, mode: u32) -> io::Result<(OwnedFd, SocketFile)> {
    remove_dead(path)?;
    listen_with(SocketType::SEQPACKET, path, mode)
}

/// As [`listen_again`], for connections that are streams of bytes. Calls on the socket wait.
///
/// # Errors
/// As of [`listen`].
pub fn listen_for_streams(path: &Path, mode: u32) -> io::Result<(UnixListener, SocketFile)> {
    remove_dead(path)?;
    let (fd, file) = listen_with(SocketType::STREAM, path, mode)?;
    let listener = UnixListener::from(fd);
    listener.set_nonblocking(false)?;
    Ok((listener, file))
}

/// All sockets with names in folders are made here (`.ci/check-source`).
fn listen_with(of: SocketType, path: &Path, mode: u32) -> io::Result<(OwnedFd, SocketFile)> {
    let address = SocketAddrUnix::new(path)?;
    let place = Place::of(path)?;
    let mode = Mode::from_bits_truncate(mode);
    let fd = socket_with(AddressFamily::UNIX, of, SocketFlags::NONBLOCK | SocketFlags::CLOEXEC, None)?;
    // bind gives the file the permissions of the socket's own inode less the umask.
    fchmod(&fd, mode)?;
    bind(&fd, &address)?;
    let identity = restore_mode(&fd, &place, mode)?;
    // A name in another folder, or of another file, by now: nobody would connect.
    if place.identity() != Some(identity) {
        return Err(Errno::EXIST.into());
    }
    rustix::net::listen(&fd, LISTEN_BACKLOG)?;
    Ok((fd, SocketFile { place, identity }))
}

/// Removes the file at `path` if it is a socket at which nobody listens. Any other file stays.
///
/// # Errors
/// A link of another user, as of [`Place::of`]; `EACCES`.
pub fn remove_dead(path: &Path) -> io::Result<()> {
    let place = Place::of(path)?;
    let Ok(found) = place.stat() else { return Ok(()) };
    if !FileType::from_raw_mode(found.st_mode).is_socket() {
        return Ok(());
    }
    // A socket that listens may be of another type, or have a full queue: that is no refusal.
    let fd =
        socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::NONBLOCK | SocketFlags::CLOEXEC, None)?;
    match rustix::net::connect(&fd, &SocketAddrUnix::new(place.anchored())?) {
        Err(Errno::CONNREFUSED) => place.remove(Identity::from(&found)),
        _ => Ok(()),
    }
}

/// The same by an abstract name, which each process of the network namespace can connect to.
///
/// # Errors
/// `EADDRINUSE`: the name is in use; `EINVAL`: longer than 107 bytes.
pub fn listen_abstract(name: &str) -> io::Result<OwnedFd> {
    let fd = seqpacket(SocketFlags::NONBLOCK | SocketFlags::CLOEXEC)?;
    bind(&fd, &SocketAddrUnix::new_abstract_name(name.as_bytes())?)?;
    rustix::net::listen(&fd, LISTEN_BACKLOG)?;
    Ok(fd)
}

/// Sets the permissions of the file that the socket was just bound to, and of no other: in a folder that others can
/// write, the name may be of another file by now. Returns which file it is. The only function that changes permissions
/// by a path (`.ci/check-source`).
///
/// # Errors
/// `EEXIST` if it is another file; or the kernel's.
fn restore_mode(fd: &OwnedFd, place: &Place, mode: Mode) -> io::Result<Identity> {
    // Without CAP_NET_ADMIN, the name tells.
    let file = bound_file(fd).or_else(|_| place.find())?;
    let found = fstat(&file)?;
    if !FileType::from_raw_mode(found.st_mode).is_socket() || found.st_uid != rustix::process::geteuid().as_raw() {
        return Err(Errno::EXIST.into());
    }
    if Mode::from_raw_mode(found.st_mode) != mode {
        // The kernel follows this link to the very file that is open.
        chmod(format!("/proc/self/fd/{}", file.as_raw_fd()), mode)?;
    }
    Ok(Identity::from(&found))
}

/// Opens the file that a socket is bound to, without rights to its contents (`SIOCUNIXFILE`).
///
/// # Errors
/// `EPERM` without `CAP_NET_ADMIN`.
fn bound_file(fd: &OwnedFd) -> io::Result<OwnedFd> {
    // SAFETY: K1, K5: this command has no argument.
    let raw = unsafe { libc::ioctl(fd.as_raw_fd(), SIOCUNIXFILE, 0) };
    if raw < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: K2: the kernel has just created this descriptor.
    Ok(unsafe { OwnedFd::from_raw_fd(raw) })
}

/// Returns whether `fd` is a listening socket of the type that this module creates.
pub fn is_seqpacket_listener(fd: impl AsFd) -> bool {
    let is_seqpacket = rustix::net::sockopt::socket_type(&fd).is_ok_and(|of| of == SocketType::SEQPACKET);
    is_seqpacket && rustix::net::sockopt::socket_acceptconn(fd).unwrap_or(false)
}

/// Makes calls on a socket that another process created return [`io::ErrorKind::WouldBlock`] instead of waiting.
///
/// # Errors
/// The kernel's, if it is no socket.
pub fn set_nonblocking(fd: impl AsFd) -> io::Result<()> {
    Ok(rustix::io::ioctl_fionbio(fd, true)?)
}

/// Connects to the socket that listens at `path`; the connection is blocking. Waits if the listener's queue is full.
///
/// # Errors
/// `ENOENT` or `ECONNREFUSED` without a listener, [`io::ErrorKind::WouldBlock`] after [`CONNECT_LIMIT`], `EACCES`,
/// `ENAMETOOLONG`, `EPROTOTYPE`; `EINTR` if signals interrupt it for that long.
pub fn connect(path: &Path) -> io::Result<OwnedFd> {
    connect_to(&SocketAddrUnix::new(path)?)
}

/// The same to an abstract name of the network namespace.
///
/// # Errors
/// As [`connect`].
pub fn connect_abstract(name: &str) -> io::Result<OwnedFd> {
    connect_to(&SocketAddrUnix::new_abstract_name(name.as_bytes())?)
}

fn connect_to(address: &SocketAddrUnix) -> io::Result<OwnedFd> {
    let fd = seqpacket(SocketFlags::CLOEXEC)?;
    // Without a limit, a listener that never accepts would block the caller for ever.
    set_timeout(&fd, CONNECT_LIMIT)?;
    let start = Instant::now();
    loop {
        match rustix::net::connect(&fd, address) {
            // With a limit the kernel never restarts the call, not even after SIGSTOP and SIGCONT.
            Err(Errno::INTR) if start.elapsed() < CONNECT_LIMIT => {}
            other => return Ok(other.map(|()| fd)?),
        }
    }
}

/// Refuses descriptors sent to this socket, where the kernel supports that (Linux 6.16). Elsewhere they are closed with
/// the connection in whose queue they are, which may take as long as their sender wants. Accepted connections inherit
/// the setting. Returns whether the kernel supports it.
pub fn refuse_fds(fd: impl AsFd) -> bool {
    let (off, bytes) = (0 as libc::c_int, size_of::<libc::c_int>() as libc::socklen_t);
    // SAFETY: K1, K5: the value is an int that outlives the call. Older kernels answer ENOPROTOOPT.
    unsafe {
        libc::setsockopt(fd.as_fd().as_raw_fd(), libc::SOL_SOCKET, SO_PASSRIGHTS, (&raw const off).cast(), bytes) == 0
    }
}

/// Accepts the next connection, which is non-blocking.
///
/// # Errors
/// [`io::ErrorKind::WouldBlock`] if there is none; `EMFILE`, `ENFILE`: it stays in the queue, so that a level-triggered
/// wait would spin.
pub fn accept(fd: impl AsFd) -> io::Result<OwnedFd> {
    Ok(accept_with(fd, SocketFlags::NONBLOCK | SocketFlags::CLOEXEC)?)
}

/// Sends one message, whole, with up to [`MAX_FDS`] descriptors. Never raises SIGPIPE.
///
/// # Errors
/// [`io::ErrorKind::InvalidInput`] for an empty message (the receiver would read it as the end) or too many
/// descriptors; `EPIPE`, `ECONNRESET` if the peer has closed; [`io::ErrorKind::WouldBlock`] if its queue is full or on
/// timeout; `EMSGSIZE`; `ETOOMANYREFS` if too many descriptors of this user are in flight.
pub fn send(fd: impl AsFd, bytes: &[u8], fds: &[BorrowedFd<'_>]) -> io::Result<usize> {
    if bytes.is_empty() || fds.len() > MAX_FDS {
        return Err(Errno::INVAL.into());
    }
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_FDS))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    if !fds.is_empty() && !control.push(SendAncillaryMessage::ScmRights(fds)) {
        return Err(Errno::INVAL.into());
    }
    Ok(retry_on_intr(|| sendmsg(&fd, &[IoSlice::new(bytes)], &mut control, SendFlags::NOSIGNAL))?)
}

/// Receives one message into `buf` and appends its descriptors, close-on-exec, to `fds`. All received descriptors are
/// owned, so that a sender cannot make this process leak them.
///
/// # Errors
/// [`io::ErrorKind::WouldBlock`] if there is none or on timeout; `ECONNRESET` if the peer closed with messages of this
/// process unread.
pub fn recv(fd: impl AsFd, buf: &mut [u8], fds: &mut Vec<OwnedFd>) -> io::Result<Received> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_FDS))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let mut into = [IoSliceMut::new(buf)];
    let got = retry_on_intr(|| recvmsg(&fd, &mut into, &mut control, RecvFlags::CMSG_CLOEXEC))?;
    for message in control.drain() {
        if let RecvAncillaryMessage::ScmRights(rights) = message {
            fds.extend(rights);
        }
    }
    Ok(Received {
        bytes: got.bytes,
        truncated: got.flags.contains(ReturnFlags::TRUNC),
        fds_truncated: got.flags.contains(ReturnFlags::CTRUNC),
    })
}

/// Receives one message into `buf` if `is_wanted`; else it stays in the queue, and `None` is returned. One with
/// descriptors stays there, too: `fds_truncated` is set, and the connection should be closed. No descriptor is ever one
/// of this process, not even for a moment: closing a file may take as long as its file system wants.
///
/// # Errors
/// As [`recv`].
pub fn recv_without_fds(
    fd: impl AsFd,
    buf: &mut [u8],
    is_wanted: impl FnOnce(&[u8]) -> bool,
) -> io::Result<Option<Received>> {
    let receive = |buf: &mut [u8], flags| -> io::Result<Received> {
        // Without room for descriptors the kernel only reports that there are some. The first call takes no message
        // from the queue, so that it drops none.
        let mut none = RecvAncillaryBuffer::new(&mut []);
        let got = retry_on_intr(|| recvmsg(&fd, &mut [IoSliceMut::new(buf)], &mut none, flags))?;
        Ok(Received {
            bytes: got.bytes,
            truncated: got.flags.contains(ReturnFlags::TRUNC),
            fds_truncated: got.flags.contains(ReturnFlags::CTRUNC),
        })
    };
    let peeked = receive(buf, RecvFlags::PEEK)?;
    if peeked.fds_truncated {
        return Ok(Some(peeked));
    }
    if is_wanted(&buf[..peeked.bytes]) { receive(buf, RecvFlags::empty()).map(Some) } else { Ok(None) }
}

/// Returns whether the peer has received all messages that were sent on this connection.
///
/// # Errors
/// `ENOTSOCK`.
pub fn all_received(fd: impl AsFd) -> io::Result<bool> {
    let mut waiting: libc::c_int = 0;
    // SAFETY: K1, K5: TIOCOUTQ (SIOCOUTQ) writes one int, which outlives the call.
    if unsafe { libc::ioctl(fd.as_fd().as_raw_fd(), libc::TIOCOUTQ, &raw mut waiting) } != 0 {
        return Err(io::Error::last_os_error());
    }
    // Memory of the messages with the kernel's own structures: hundreds of bytes for each. While the peer receives the
    // last one, a byte remains that no event follows.
    Ok(waiting < 64)
}

/// Returns whether a message that is not empty can be received.
pub fn has_input(fd: impl AsFd) -> bool {
    rustix::io::ioctl_fionread(fd).is_ok_and(|bytes| bytes > 0)
}

/// Ends a connection: its peer notices, though another process has a duplicate of this end.
pub fn shut_down(fd: impl AsFd) {
    let _ = rustix::net::shutdown(fd, rustix::net::Shutdown::Both);
}

/// Sets the timeout of each later [`send`], [`recv`] and [`accept`] on a blocking `fd`; zero means no limit.
///
/// # Errors
/// `EDOM` for durations that the kernel cannot represent.
pub fn set_timeout(fd: impl AsFd, limit: Duration) -> io::Result<()> {
    let limit = (!limit.is_zero()).then_some(limit);
    set_socket_timeout(&fd, Timeout::Recv, limit)?;
    Ok(set_socket_timeout(&fd, Timeout::Send, limit)?)
}

/// Returns the peer's credentials as the kernel recorded them at connect: unforgeable, but the process may have exited.
///
/// # Errors
/// `ENOTSOCK`.
pub fn peer(fd: impl AsFd) -> io::Result<Peer> {
    let unknown = libc::ucred { pid: 0, uid: u32::MAX, gid: u32::MAX };
    // SAFETY: K5, K9: SO_PEERCRED writes a ucred, which consists of three integers.
    let cred = unsafe { option(fd.as_fd(), libc::SO_PEERCRED, unknown)? };
    Ok(Peer { pid: u32::try_from(cred.pid).unwrap_or(0), uid: cred.uid, gid: cred.gid })
}

/// Returns the path at which the peer of a connection listens; `None` if `fd` is not such a connection.
pub fn peer_path(fd: impl AsFd) -> Option<PathBuf> {
    let address = SocketAddrUnix::try_from(rustix::net::getpeername(fd).ok()??).ok()?;
    Some(PathBuf::from(OsStr::from_bytes(address.path()?.to_bytes())))
}

/// Takes an advisory lock on a connection that several processes share; `false`: another process holds it. Released by
/// [`unlock`] and at process exit. The lock does not exclude threads of one process, and closing any duplicate of `fd`
/// in this process releases it.
///
/// # Errors
/// If the kernel or a filter refuses locks on sockets.
pub fn try_lock(fd: impl AsFd) -> io::Result<bool> {
    match fcntl_lock(fd, FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => Ok(true),
        Err(Errno::AGAIN | Errno::ACCESS) => Ok(false),
        Err(e) => Err(e.into()),
    }
}

/// Releases [`try_lock`].
pub fn unlock(fd: impl AsFd) {
    // Fails only if `fd` is closed or was never locked.
    let _ = fcntl_lock(fd, FlockOperation::NonBlockingUnlock);
}

/// Creates a connection with both ends in this process.
///
/// # Errors
/// `EMFILE`, `ENFILE`, `ENOMEM`.
pub fn pair() -> io::Result<(OwnedFd, OwnedFd)> {
    Ok(socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)?)
}

/// Returns two connected stream sockets. The second has the abstract name `name` in the calling thread's network
/// namespace, which is in use until its last descriptor is closed, by whichever process.
///
/// # Errors
/// `EADDRINUSE`: the name is in use; `EINVAL`: longer than 107 bytes.
pub fn named_pair(name: &str) -> io::Result<(UnixStream, UnixStream)> {
    let (own, named) = UnixStream::pair()?;
    bind(&named, &SocketAddrUnix::new_abstract_name(name.as_bytes())?)?;
    Ok((own, named))
}

/// Returns the peer's groups as the kernel recorded them at connect: the effective one first, then the supplementary
/// ones.
///
/// # Errors
/// `ENOTSOCK`; `ENODATA` without a peer.
pub fn peer_groups(fd: impl AsFd) -> io::Result<Vec<u32>> {
    let mut groups = vec![0; PEER_GROUPS];
    let supplementary = loop {
        let mut bytes = libc::socklen_t::try_from(size_of_val(&*groups)).map_err(|_| Errno::INVAL)?;
        // SAFETY: K1, K5: `groups` and `bytes` outlive the call, and `bytes` is the room in `groups`.
        let failed = unsafe {
            let (at, room) = (groups.as_mut_ptr().cast(), &mut bytes);
            libc::getsockopt(fd.as_fd().as_raw_fd(), libc::SOL_SOCKET, libc::SO_PEERGROUPS, at, room) != 0
        };
        let (error, count) = (io::Error::last_os_error(), bytes as usize / size_of::<u32>());
        match failed {
            false => break count,
            // The kernel has returned how many there are.
            true if error.raw_os_error() == Some(libc::ERANGE) && count > groups.len() => groups.resize(count, 0),
            true => return Err(error),
        }
    };
    groups.truncate(supplementary);
    groups.insert(0, peer(fd)?.gid);
    Ok(groups)
}

/// Opens a pidfd of the peer's process, which becomes readable when it exits. Linux before 6.5 finds the process by its
/// number, which may have been reused: check [`crate::event::hung_up`] afterwards where that matters.
///
/// # Errors
/// `ESRCH` or `EINVAL` if it has exited.
pub fn peer_pidfd(fd: impl AsFd) -> io::Result<OwnedFd> {
    peer_process(&fd)?.map_or_else(|| pidfd_of(peer(&fd)?.pid), Ok)
}

/// The same, surely of the peer's process: `None` before Linux 6.5.
///
/// # Errors
/// As [`peer_pidfd`].
pub fn peer_process(fd: impl AsFd) -> io::Result<Option<OwnedFd>> {
    // SAFETY: K5, K9: SO_PEERPIDFD writes one int.
    match unsafe { option::<RawFd>(fd.as_fd(), SO_PEERPIDFD, -1) } {
        Ok(-1) => Err(Errno::SRCH.into()),
        // SAFETY: K2: the kernel has just created this descriptor.
        Ok(raw) => Ok(Some(unsafe { OwnedFd::from_raw_fd(raw) })),
        Err(Errno::NOPROTOOPT) => Ok(None),
        Err(error) => Err(error.into()),
    }
}

/// Whether the peer's process is in a PID namespace other than that of this process's `/proc`, as processes of
/// containers are. Before Linux 6.5 it is found by its number, which may be another one's by now.
///
/// # Errors
/// As [`peer_pidfd`], also if the process has exited; `EINVAL`: the kernel does not tell.
pub fn peer_is_contained(fd: impl AsFd) -> io::Result<bool> {
    let process = peer_pidfd(fd)?;
    // Path: the kernel's, of this process.
    let told = std::fs::read_to_string(format!("/proc/self/fdinfo/{}", process.as_raw_fd()))?;
    let numbers = told.lines().find_map(|line| line.strip_prefix("NSpid:")).ok_or(Errno::INVAL)?;
    // The process's number in each namespace, from this one to its own. 0: it is not seen from here; -1: it has exited.
    let mut numbers = numbers.split_whitespace().map(str::parse::<i32>);
    match (numbers.next(), numbers.next()) {
        (Some(Ok(1..)), within) => Ok(within.is_some()),
        (Some(Ok(0)), _) => Ok(true),
        (Some(Ok(_)), _) => Err(Errno::SRCH.into()),
        _ => Err(Errno::INVAL.into()),
    }
}

fn pidfd_of(pid: u32) -> io::Result<OwnedFd> {
    let pid = i32::try_from(pid).ok().and_then(Pid::from_raw).ok_or(Errno::SRCH)?;
    Ok(pidfd_open(pid, PidfdFlags::empty())?)
}

fn seqpacket(flags: SocketFlags) -> io::Result<OwnedFd> {
    Ok(socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)?)
}

/// Returns the cookie of the calling thread's network namespace, a number that the kernel gives to no other one; `None`
/// before Linux 5.14.
pub(crate) fn netns_cookie() -> io::Result<Option<u64>> {
    let socket = seqpacket(SocketFlags::CLOEXEC)?;
    // SAFETY: K5, K9: the kernel writes a number of 64 bits.
    match unsafe { option(socket.as_fd(), libc::SO_NETNS_COOKIE, 0_u64) } {
        Err(Errno::NOPROTOOPT) => Ok(None),
        cookie => Ok(cookie.map(Some)?),
    }
}

/// Reads one socket-level option; returns `value` if the kernel writes nothing.
///
/// # Safety
/// `T` is the C type that the kernel writes for `name`, and any bytes are a valid value of it (K5, K9).
unsafe fn option<T>(fd: BorrowedFd<'_>, name: libc::c_int, mut value: T) -> Result<T, Errno> {
    let mut len = size_of::<T>() as libc::socklen_t;
    // SAFETY: K1, K5: `value` and `len` outlive the call, and `len` is the size of `value`.
    let failed =
        unsafe { libc::getsockopt(fd.as_raw_fd(), libc::SOL_SOCKET, name, (&raw mut value).cast(), &mut len) != 0 };
    if failed {
        return Err(Errno::from_io_error(&io::Error::last_os_error()).unwrap_or(Errno::IO));
    }
    Ok(value)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use rustix::io::{FdFlags, fcntl_getfd};
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

    use super::*;
    use crate::event::{PollFd, PollFlags, hung_up, wait_readable};
    use crate::process::tests::{fork, in_child};

    fn pair() -> (OwnedFd, OwnedFd) {
        super::pair().unwrap()
    }

    fn mode_of(path: &Path) -> u32 {
        std::fs::metadata(path).unwrap().permissions().mode() & 0o777
    }

    #[test]
    fn only_the_bound_file_gets_the_permissions() {
        let dir = tempfile::tempdir().unwrap();
        let (path, other) = (dir.path().join("socket"), dir.path().join("other"));
        std::fs::write(&other, "").unwrap();
        std::fs::set_permissions(&other, std::fs::Permissions::from_mode(0o600)).unwrap();
        let bound = |path: &Path| {
            let fd = seqpacket(SocketFlags::CLOEXEC).unwrap();
            fchmod(&fd, Mode::from_raw_mode(0o600)).unwrap();
            bind(&fd, &SocketAddrUnix::new(path).unwrap()).unwrap();
            fd
        };
        let public = Mode::from_raw_mode(0o666);
        let fd = bound(&path);
        restore_mode(&fd, &Place::of(&path).unwrap(), public).unwrap();
        assert_eq!(mode_of(&path), 0o666);
        // Between bind and chmod another user replaces the file by a link to a file that is ours.
        let swapped = dir.path().join("swapped");
        let fd = bound(&swapped);
        let place = Place::of(&swapped).unwrap();
        std::fs::remove_file(&swapped).unwrap();
        std::os::unix::fs::symlink(&other, &swapped).unwrap();
        let result = restore_mode(&fd, &place, public);
        assert_eq!(mode_of(&other), 0o600);
        // Root finds the very file, which has no name any more; others find that this is no socket.
        assert!(result.is_ok() || result.is_err_and(|e| e.kind() == io::ErrorKind::AlreadyExists));
    }

    #[test]
    fn only_dead_sockets_are_replaced_and_only_the_own_file_is_removed() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("socket");
        let in_use =
            |result: io::Result<(UnixListener, SocketFile)>| result.unwrap_err().kind() == io::ErrorKind::AddrInUse;
        for stream in [false, true] {
            let listen_of = |stream: bool| match stream {
                true => listen_for_streams(&path, 0o600).map(|(socket, file)| (OwnedFd::from(socket), file)),
                false => listen_again(&path, 0o600),
            };
            let (socket, _) = listen_of(stream).unwrap();
            // Whatever its type, and however full its queue is.
            assert!(in_use(listen_for_streams(&path, 0o600)), "{stream}");
            rustix::net::listen(&socket, 0).unwrap();
            let _waiting: Vec<_> = std::iter::repeat_with(|| {
                let kind = if stream { SocketType::STREAM } else { SocketType::SEQPACKET };
                let fd = socket_with(AddressFamily::UNIX, kind, SocketFlags::NONBLOCK, None).unwrap();
                rustix::net::connect(&fd, &SocketAddrUnix::new(&path).unwrap()).map(|()| fd)
            })
            .map_while(Result::ok)
            .collect();
            assert!(in_use(listen_for_streams(&path, 0o600)), "{stream}");
            drop(socket);
            // Dead: replaced.
            let (_socket, file) = listen_of(!stream).unwrap();
            assert_eq!(mode_of(&path), 0o600);
            // What another program has put there meanwhile stays.
            std::fs::rename(&path, dir.path().join("moved")).unwrap();
            std::fs::write(&path, "of somebody else").unwrap();
            file.remove();
            assert_eq!(std::fs::read(&path).unwrap(), b"of somebody else");
            assert!(in_use(listen_for_streams(&path, 0o600)), "a file that is no socket");
            std::fs::rename(dir.path().join("moved"), &path).unwrap();
            file.remove();
            assert!(!path.exists());
        }
    }

    #[test]
    fn messages_with_descriptors_stay_in_the_queue() {
        let (a, b) = pair();
        send(&a, b"one", &[]).unwrap();
        send(&a, b"two", &[a.as_fd()]).unwrap();
        let mut buf = [0; 8];
        let whole = Received { bytes: 3, truncated: false, fds_truncated: false };
        assert_eq!(recv_without_fds(&b, &mut buf, |message| message != b"one").unwrap(), None);
        assert_eq!(recv_without_fds(&b, &mut buf, |message| message == b"one").unwrap(), Some(whole));
        for _ in 0..2 {
            let left = Received { fds_truncated: true, ..whole };
            assert_eq!(recv_without_fds(&b, &mut buf, |_| true).unwrap(), Some(left));
        }
        let mut fds = Vec::new();
        assert_eq!((recv(&b, &mut buf, &mut fds).unwrap(), fds.len()), (whole, 1));
    }

    #[test]
    fn a_name_is_in_use_until_its_socket_is_closed() {
        use std::io::{Read as _, Write as _};
        let name = format!("unetmap-test {}", std::process::id());
        let (mut own, mut named) = named_pair(&name).unwrap();
        own.write_all(b"x").unwrap();
        named.read_exact(&mut [0]).unwrap();
        assert_eq!(named_pair(&name).unwrap_err().kind(), io::ErrorKind::AddrInUse);
        drop(own);
        assert_eq!(named_pair(&name).unwrap_err().kind(), io::ErrorKind::AddrInUse);
        drop(named);
        named_pair(&name).unwrap();
        assert!(named_pair(&"x".repeat(108)).is_err());
    }

    #[test]
    fn a_connection_preserves_message_boundaries_and_hangs_up() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("s");
        let listener = listen(&path, 0o600).unwrap();
        assert_eq!(accept(&listener).unwrap_err().kind(), io::ErrorKind::WouldBlock);
        let client = connect(&path).unwrap();
        let server = accept(&listener).unwrap();

        let (mut buf, mut fds) = ([0u8; 16], Vec::new());
        assert_eq!(recv(&server, &mut buf, &mut fds).unwrap_err().kind(), io::ErrorKind::WouldBlock);
        assert_eq!(send(&client, b"one", &[]).unwrap(), 3);
        assert_eq!(send(&client, b"twofold", &[]).unwrap(), 7);
        let whole = |bytes| Received { bytes, truncated: false, fds_truncated: false };
        assert_eq!(recv(&server, &mut buf, &mut fds).unwrap(), whole(3));
        assert_eq!(recv(&server, &mut buf[..4], &mut fds).unwrap(), Received { truncated: true, ..whole(4) });
        assert_eq!(&buf[..4], b"twof");
        assert_eq!(send(&client, b"", &[]).unwrap_err().kind(), io::ErrorKind::InvalidInput);

        assert!(!hung_up(server.as_fd()));
        drop(client);
        assert!(hung_up(server.as_fd()));
        assert_eq!(recv(&server, &mut buf, &mut fds).unwrap(), whole(0));
        assert_eq!(send(&server, b"x", &[]).unwrap_err().kind(), io::ErrorKind::BrokenPipe);
        assert!(fds.is_empty());
    }

    /// A call with a timeout is interrupted by any signal, even if the handler was installed with SA_RESTART.
    #[test]
    fn connect_send_and_recv_resume_after_signals() {
        extern "C" fn nothing(_: libc::c_int) {}
        let handler: extern "C" fn(libc::c_int) = nothing;
        // SAFETY: K6: the handler does nothing, and no other test uses this signal.
        unsafe { libc::signal(libc::SIGWINCH, handler as *const () as libc::sighandler_t) };
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("s");
        let listener = listen(&path, 0o600).unwrap();
        // The queue now holds one connection.
        rustix::net::listen(&listener, 0).unwrap();
        let (me, thread) = std::sync::mpsc::channel();
        std::thread::scope(|s| {
            let client = s.spawn(|| {
                // SAFETY: K7.
                me.send(unsafe { libc::pthread_self() }).unwrap();
                let connected = [(); 2].map(|()| connect(&path).unwrap());
                // More than the socket's queue holds.
                let sent = (0..1000).map(|_| send(&connected[0], &[7; 4096], &[]).unwrap()).sum::<usize>();
                let answer = recv(&connected[0], &mut [0], &mut Vec::new()).unwrap().bytes;
                (connected, sent, answer)
            });
            let thread = thread.recv().unwrap();
            let interrupt = || {
                for _ in 0..40 {
                    std::thread::sleep(Duration::from_millis(2));
                    // SAFETY: K7: the thread is not joined yet, so its number is valid.
                    unsafe { libc::pthread_kill(thread, libc::SIGWINCH) };
                }
            };
            interrupt();
            let server = accept(&listener).unwrap();
            interrupt();
            let (mut buf, mut fds, mut got) = ([0; 4096], Vec::new(), 0);
            while got < 1000 * buf.len() {
                match recv(&server, &mut buf, &mut fds) {
                    Ok(message) if message.bytes == 0 => break,
                    Ok(message) => got += message.bytes,
                    Err(e) => assert_eq!(e.kind(), io::ErrorKind::WouldBlock),
                }
            }
            interrupt();
            send(&server, &[1], &[]).unwrap();
            let (_connected, sent, answer) = client.join().unwrap();
            assert_eq!((sent, answer), (got, 1));
        });
    }

    #[test]
    fn an_unread_message_is_noticed_until_it_is_received() {
        let (near, far) = pair();
        assert!(all_received(&near).unwrap());
        send(&near, b"x", &[]).unwrap();
        send(&near, b"y", &[]).unwrap();
        for _ in 0..2 {
            assert!(!all_received(&near).unwrap());
            recv(&far, &mut [0; 4], &mut Vec::new()).unwrap();
        }
        assert!(all_received(&near).unwrap() && all_received(&far).unwrap());
        assert!(!has_input(&far));
        send(&near, b"x", &[]).unwrap();
        assert!(has_input(&far));
    }

    #[test]
    fn hang_up_follows_the_last_close_and_unread_messages_stay() {
        let (near, far) = pair();
        let duplicate = far.try_clone().unwrap();
        send(&far, b"last bytes", &[]).unwrap();
        drop(far);
        assert!(!hung_up(near.as_fd()));
        drop(duplicate);
        assert!(hung_up(near.as_fd()));
        let mut buf = [0u8; 16];
        assert_eq!(recv(&near, &mut buf, &mut Vec::new()).unwrap().bytes, 10);
    }

    #[test]
    fn one_process_at_a_time_locks_a_connection() {
        let (near, far) = pair();
        assert!(try_lock(&near).unwrap());
        let try_both = || match (try_lock(&near), try_lock(&far)) {
            (Ok(mine), Ok(others)) => 2 * i32::from(mine) + i32::from(others),
            _ => 4,
        };
        // The other end is a different file.
        assert_eq!(in_child(try_both), 1);
        unlock(&near);
        assert_eq!(in_child(try_both), 3);
        // The child has exited.
        assert!(try_lock(&near).unwrap());
    }

    #[test]
    fn the_socket_file_gets_its_mode_for_every_umask() {
        let dir = tempfile::tempdir().unwrap();
        for mode in [0o600, 0o660, 0o666] {
            let path = dir.path().join(format!("{mode:o}"));
            let _listener = listen(&path, mode).unwrap();
            assert_eq!(mode_of(&path), mode);
        }
        // bind alone gives the file no more than the socket's own mode.
        let path = dir.path().join("bound");
        let fd = seqpacket(SocketFlags::CLOEXEC).unwrap();
        fchmod(&fd, Mode::RUSR | Mode::WUSR).unwrap();
        bind(&fd, &SocketAddrUnix::new(&path).unwrap()).unwrap();
        assert_eq!(mode_of(&path) & !0o600, 0);
    }

    #[test]
    fn unusable_addresses_are_errors() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("s");
        assert_eq!(connect(&path).unwrap_err().kind(), io::ErrorKind::NotFound);
        drop(listen(&path, 0o600).unwrap());
        assert_eq!(connect(&path).unwrap_err().kind(), io::ErrorKind::ConnectionRefused);
        assert_eq!(listen(&path, 0o600).unwrap_err().kind(), io::ErrorKind::AddrInUse);
        let long = dir.path().join("x".repeat(108));
        assert_eq!(listen(&long, 0o600).unwrap_err().raw_os_error(), Some(libc::ENAMETOOLONG));
        assert_eq!(connect(&long).unwrap_err().raw_os_error(), Some(libc::ENAMETOOLONG));
    }

    #[test]
    fn descriptors_are_passed_up_to_the_kernels_limit() {
        let (a, b) = pair();
        let doorbell = crate::Doorbell::new().unwrap();
        let many = [doorbell.as_fd(); MAX_FDS + 1];
        assert_eq!(send(&a, b"x", &many).unwrap_err().kind(), io::ErrorKind::InvalidInput);
        send(&a, b"x", &many[..MAX_FDS]).unwrap();

        let (mut buf, mut fds) = ([0u8; 4], Vec::new());
        let got = recv(&b, &mut buf, &mut fds).unwrap();
        assert_eq!(got, Received { bytes: 1, truncated: false, fds_truncated: false });
        assert_eq!(fds.len(), MAX_FDS);
        assert!(fds.iter().all(|fd| fcntl_getfd(fd).unwrap().contains(FdFlags::CLOEXEC)));
        let last = crate::Doorbell::from_fd(fds.pop().unwrap()).unwrap();
        last.notify();
        assert!(
            wait_readable(&mut [PollFd::new(&doorbell, PollFlags::IN)], Some(Duration::from_secs(10))).unwrap() == 1
        );
    }

    #[test]
    fn lost_descriptors_are_reported() {
        let (a, b) = pair();
        let null = std::fs::File::open("/dev/null").unwrap();
        send(&a, b"x", &[null.as_fd(), null.as_fd()]).unwrap();
        // In a child, since the limit holds for a whole process.
        let outcome = in_child(|| {
            let maximum = getrlimit(Resource::Nofile).maximum;
            setrlimit(Resource::Nofile, Rlimit { current: Some(0), maximum }).unwrap();
            let (mut buf, mut fds) = ([0u8; 4], Vec::new());
            match recv(&b, &mut buf, &mut fds) {
                Ok(Received { bytes: 1, truncated: false, fds_truncated: true }) if fds.is_empty() => 0,
                _ => 1,
            }
        });
        assert_eq!(outcome, 0);
    }

    #[test]
    fn blocking_calls_end_at_the_timeout() {
        let (_a, b) = pair();
        set_timeout(&b, Duration::from_millis(1)).unwrap();
        let error = recv(&b, &mut [0u8; 4], &mut Vec::new()).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::WouldBlock);
        set_timeout(&b, Duration::ZERO).unwrap();
    }

    /// The supplementary groups of this process, from /proc.
    fn own_groups() -> Vec<u32> {
        let status = std::fs::read_to_string("/proc/self/status").unwrap();
        let line = status.lines().find_map(|line| line.strip_prefix("Groups:")).unwrap();
        line.split_whitespace().map(|number| number.parse().unwrap()).collect()
    }

    #[test]
    fn all_groups_of_a_peer_are_returned() {
        for count in [0, 3, PEER_GROUPS, PEER_GROUPS + 1, 5000] {
            let outcome = in_child(|| {
                let groups: Vec<libc::gid_t> = (0..count as libc::gid_t).map(|n| 100_000 + n).collect();
                // SAFETY: K1: the list has `groups.len()` entries.
                if unsafe { libc::syscall(libc::SYS_setgroups, groups.len(), groups.as_ptr()) } != 0 {
                    return 2;
                }
                // SAFETY: K7: the system call itself, without glibc's signal to all threads: this process has one.
                unsafe { libc::syscall(libc::SYS_setresgid, -1, 4711, -1) };
                let (near, _far) = pair();
                let seen = peer_groups(&near).unwrap();
                i32::from(seen[0] != 4711 || seen[1..] != groups)
            });
            if outcome == 2 {
                return eprintln!("skipped: setting groups needs CAP_SETGID");
            }
            assert_eq!(outcome, 0, "{count} groups");
        }
    }

    #[test]
    fn peer_is_the_connecting_process() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("s");
        let listener = listen(&path, 0o600).unwrap();
        // The child connects, sends a message, and stays until it is killed.
        let child = fork(|| {
            let fd = connect(&path).unwrap();
            send(&fd, b"x", &[]).unwrap();
            loop {
                std::thread::park();
            }
        });
        let wait = |fd: BorrowedFd<'_>| {
            let mut fds = [PollFd::from_borrowed_fd(fd, PollFlags::IN)];
            wait_readable(&mut fds, None).unwrap();
        };
        wait(listener.as_fd());
        let server = accept(&listener).unwrap();
        let who = peer(&server).unwrap();
        let us = crate::process::uid();
        assert_eq!((who.pid, who.uid), (child.pid(), us));

        for pidfd in [peer_pidfd(&server).unwrap(), pidfd_of(who.pid).unwrap()] {
            let mut fds = [PollFd::from_borrowed_fd(pidfd.as_fd(), PollFlags::IN)];
            assert_eq!(wait_readable(&mut fds, Some(Duration::ZERO)).unwrap(), 0);
        }
        let pidfds = [peer_pidfd(&server).unwrap(), pidfd_of(who.pid).unwrap()];
        // The child has the groups of this process; the kernel keeps the supplementary ones sorted.
        let groups = peer_groups(&server).unwrap();
        assert_eq!(groups[0], who.gid);
        assert_eq!(groups[1..], own_groups());
        child.kill();
        for pidfd in &pidfds {
            wait(pidfd.as_fd());
        }
        assert!(hung_up(server.as_fd()));
        child.wait();
        assert!(pidfd_of(0).is_err());
        assert!(pidfd_of(u32::MAX).is_err());
    }
}
