//! UNIX sockets of kind SOCK_SEQPACKET: connections that keep message bounds, pass descriptors, and hang up when the
//! last duplicate of the other end is closed, however its holder died.

use std::ffi::OsStr;
use std::io::{self, IoSlice, IoSliceMut};
use std::mem::{MaybeUninit, size_of};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rustix::fs::{FlockOperation, Mode, chmod, fchmod, fcntl_lock};
use rustix::io::{Errno, retry_on_intr};
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, SocketAddrUnix, SocketFlags, SocketType, accept_with, bind, recvmsg, sendmsg,
    socket_with, socketpair,
    sockopt::{Timeout, set_socket_timeout},
};
use rustix::process::{Pid, PidfdFlags, pidfd_open};

/// Descriptors that one message can carry at most: the kernel's SCM_MAX_FD.
pub const MAX_FDS: usize = 253;

/// Connections that may wait to be accepted.
const BACKLOG: i32 = 1024;

/// `SO_PEERPIDFD`, since Linux 6.5.
const SO_PEERPIDFD: libc::c_int = 77;

/// Groups of a peer that are asked for at first: most users have fewer.
const FEW_GROUPS: usize = 32;

/// What one [`recv`] got.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Received {
    /// Bytes written to the buffer; 0 means that the other side has closed.
    pub bytes: usize,
    /// The message was longer than the buffer; its rest is lost.
    pub truncated: bool,
    /// Some descriptors of the message were lost: the limit of open files was reached.
    pub fds_truncated: bool,
}

/// Who was at the other end when it connected (or called listen).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Peer {
    /// Process id, 0 when it is in a pid namespace that we cannot see.
    pub pid: u32,
    /// Effective user id.
    pub uid: u32,
    /// Effective group id.
    pub gid: u32,
}

/// A non-blocking socket that listens at `path` (at most 107 bytes) with file permissions `mode` (such as 0o600).
/// At no time is it open to more than `mode` and the umask say together, then to what `mode` says.
///
/// # Errors
/// `EADDRINUSE` when there is a file of that name, even one nobody listens at; `ENAMETOOLONG`; `ENOENT`; `EACCES`.
pub fn listen(path: &Path, mode: u32) -> io::Result<OwnedFd> {
    let address = SocketAddrUnix::new(path)?;
    let mode = Mode::from_bits_truncate(mode);
    let fd = seqpacket(SocketFlags::NONBLOCK | SocketFlags::CLOEXEC)?;
    // bind gives the file the permissions of the socket's own inode less the umask; chmod puts back what that took.
    fchmod(&fd, mode)?;
    bind(&fd, &address)?;
    chmod(path, mode)?;
    rustix::net::listen(&fd, BACKLOG)?;
    Ok(fd)
}

/// Whether connections can be accepted from `fd`.
pub fn is_listening(fd: impl AsFd) -> bool {
    rustix::net::sockopt::socket_acceptconn(fd).unwrap_or(false)
}

/// A blocking connection to the socket that listens at `path`. Waits when too many others wait to be accepted.
///
/// # Errors
/// `ENOENT` or `ECONNREFUSED` when nobody listens there, [`io::ErrorKind::WouldBlock`] after 10 s, `EACCES`, `ENAMETOOLONG`,
/// `EPROTOTYPE`; `EINTR` for who is interrupted all the time.
pub fn connect(path: &Path) -> io::Result<OwnedFd> {
    let address = SocketAddrUnix::new(path)?;
    let fd = seqpacket(SocketFlags::CLOEXEC)?;
    // A listener that accepts nobody would make us wait without end.
    set_timeout(&fd, CONNECT_LIMIT)?;
    let start = Instant::now();
    loop {
        match rustix::net::connect(&fd, &address) {
            // With a limit the kernel never goes on by itself, not even when somebody was only stopped for a while.
            Err(Errno::INTR) if start.elapsed() < CONNECT_LIMIT => {}
            other => return Ok(other.map(|()| fd)?),
        }
    }
}

/// Lets nobody send descriptors to this socket, where the kernel can (Linux 6.16). Who receives one by accident closes it
/// in the kernel, and closing may take as long as the sender likes. Connections accepted from it are alike.
pub fn refuse_fds(fd: impl AsFd) {
    let (off, bytes) = (0 as libc::c_int, size_of::<libc::c_int>() as libc::socklen_t);
    // SAFETY: the value lives during the call and has the size that is told. Older kernels answer ENOPROTOOPT.
    unsafe {
        libc::setsockopt(fd.as_fd().as_raw_fd(), libc::SOL_SOCKET, SO_PASSRIGHTS, (&raw const off).cast(), bytes);
    }
}

/// Not in libc's headers yet.
const SO_PASSRIGHTS: libc::c_int = 83;
/// How long a connection may wait to be accepted.
const CONNECT_LIMIT: Duration = Duration::from_secs(10);

/// The next connection, non-blocking.
///
/// # Errors
/// [`io::ErrorKind::WouldBlock`] when there is none; `EMFILE`, `ENFILE`: it stays in the queue, and a level-triggered
/// wait would spin on it.
pub fn accept(fd: impl AsFd) -> io::Result<OwnedFd> {
    Ok(accept_with(fd, SocketFlags::NONBLOCK | SocketFlags::CLOEXEC)?)
}

/// Sends one message, whole, with up to [`MAX_FDS`] descriptors. Never raises SIGPIPE.
///
/// # Errors
/// [`io::ErrorKind::InvalidInput`] for an empty message (the receiver would take it for the end) or too many
/// descriptors; `EPIPE`, `ECONNRESET` when the other side is gone; [`io::ErrorKind::WouldBlock`] when its queue is full
/// or the time is up; `EMSGSIZE`; `ETOOMANYREFS` when too many descriptors of this user are under way.
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

/// Receives one message into `buf` and appends its descriptors, close-on-exec, to `fds`. All that arrive are owned,
/// wanted or not, so that a sender cannot make us leak them.
///
/// # Errors
/// [`io::ErrorKind::WouldBlock`] when there is none or the time is up; `ECONNRESET` when the other side closed with
/// messages of ours unread.
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

/// Limits how long each later [`send`], [`recv`] and [`accept`] on a blocking `fd` waits; zero means no limit.
///
/// # Errors
/// `EDOM` for durations the kernel cannot hold.
pub fn set_timeout(fd: impl AsFd, limit: Duration) -> io::Result<()> {
    let limit = (!limit.is_zero()).then_some(limit);
    set_socket_timeout(&fd, Timeout::Recv, limit)?;
    Ok(set_socket_timeout(&fd, Timeout::Send, limit)?)
}

/// Who connected, as the kernel noted it then: it cannot be forged, but the process may have died since.
///
/// # Errors
/// `ENOTSOCK`.
pub fn peer(fd: impl AsFd) -> io::Result<Peer> {
    let no_one = libc::ucred { pid: 0, uid: u32::MAX, gid: u32::MAX };
    // SAFETY: ucred is three integers, what SO_PEERCRED writes; any bytes are a value of it.
    let cred = unsafe { option(fd.as_fd(), libc::SO_PEERCRED, no_one)? };
    Ok(Peer { pid: u32::try_from(cred.pid).unwrap_or(0), uid: cred.uid, gid: cred.gid })
}

/// The path at which the other end of a connection listens; `None` when `fd` is no such connection.
pub fn peer_path(fd: impl AsFd) -> Option<PathBuf> {
    let address = SocketAddrUnix::try_from(rustix::net::getpeername(fd).ok()??).ok()?;
    Some(PathBuf::from(OsStr::from_bytes(address.path()?.to_bytes())))
}

/// Makes this process the only one that uses a connection which it shares with others, as far as they ask, too; `false`:
/// another one is. Ends with [`leave_alone`], and with the process. Threads of one process do not exclude each other, and
/// its closing any duplicate of `fd` ends it.
///
/// # Errors
/// Where the kernel or a filter has no locks for sockets.
pub fn claim(fd: impl AsFd) -> io::Result<bool> {
    match fcntl_lock(fd, FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => Ok(true),
        Err(Errno::AGAIN | Errno::ACCESS) => Ok(false),
        Err(e) => Err(e.into()),
    }
}

/// Ends [`claim`].
pub fn leave_alone(fd: impl AsFd) {
    // What cannot be unlocked is closed, or was never locked.
    let _ = fcntl_lock(fd, FlockOperation::NonBlockingUnlock);
}

/// Two ends of a connection, both in this process.
///
/// # Errors
/// `EMFILE`, `ENFILE`, `ENOMEM`.
pub fn pair() -> io::Result<(OwnedFd, OwnedFd)> {
    Ok(socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)?)
}

/// The groups of who connected, as the kernel noted them then: the effective one first, then the supplementary ones.
///
/// # Errors
/// `ENOTSOCK`; `ENODATA` when nobody is at the other end.
pub fn peer_groups(fd: impl AsFd) -> io::Result<Vec<u32>> {
    let mut groups = vec![0; FEW_GROUPS];
    let supplementary = loop {
        let mut bytes = libc::socklen_t::try_from(size_of_val(&*groups)).map_err(|_| Errno::INVAL)?;
        // SAFETY: `groups` and `bytes` live through the call, and `bytes` says how much room there is.
        let failed = unsafe {
            let (at, room) = (groups.as_mut_ptr().cast(), &mut bytes);
            libc::getsockopt(fd.as_fd().as_raw_fd(), libc::SOL_SOCKET, libc::SO_PEERGROUPS, at, room) != 0
        };
        let (error, told) = (io::Error::last_os_error(), bytes as usize / size_of::<u32>());
        match failed {
            false => break told,
            // The kernel says how many there are.
            true if error.raw_os_error() == Some(libc::ERANGE) && told > groups.len() => groups.resize(told, 0),
            true => return Err(error),
        }
    };
    groups.truncate(supplementary);
    groups.insert(0, peer(fd)?.gid);
    Ok(groups)
}

/// A pidfd of the process that connected: readable once it has died. Linux before 6.5 finds the process by its number,
/// which another may have got since: compare [`crate::event::hung_up`] afterwards where that matters.
///
/// # Errors
/// `ESRCH` or `EINVAL` when it is gone already.
pub fn peer_pidfd(fd: impl AsFd) -> io::Result<OwnedFd> {
    // SAFETY: SO_PEERPIDFD writes one int; any bytes are a value of it.
    match unsafe { option::<RawFd>(fd.as_fd(), SO_PEERPIDFD, -1) } {
        Ok(-1) => Err(Errno::SRCH.into()),
        // SAFETY: the kernel just made this descriptor for us, and nobody else knows it.
        Ok(raw) => Ok(unsafe { OwnedFd::from_raw_fd(raw) }),
        Err(Errno::NOPROTOOPT) => pidfd_of(peer(fd)?.pid),
        Err(error) => Err(error.into()),
    }
}

fn pidfd_of(pid: u32) -> io::Result<OwnedFd> {
    let pid = i32::try_from(pid).ok().and_then(Pid::from_raw).ok_or(Errno::SRCH)?;
    Ok(pidfd_open(pid, PidfdFlags::empty())?)
}

fn seqpacket(flags: SocketFlags) -> io::Result<OwnedFd> {
    Ok(socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)?)
}

/// One socket-level option; `value` is what it is when the kernel writes nothing.
///
/// # Safety
/// `T` is the plain C type that the kernel writes for `name`, and any bytes are a value of it.
unsafe fn option<T>(fd: BorrowedFd<'_>, name: libc::c_int, mut value: T) -> Result<T, Errno> {
    let mut len = size_of::<T>() as libc::socklen_t;
    // SAFETY: `value` and `len` live through the call, and `len` says how much room there is.
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
    fn connection_keeps_message_bounds_and_ends() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("s");
        let door = listen(&path, 0o600).unwrap();
        assert_eq!(accept(&door).unwrap_err().kind(), io::ErrorKind::WouldBlock);
        let client = connect(&path).unwrap();
        let server = accept(&door).unwrap();

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

    /// What waits with a limit is interrupted by any signal, whatever was asked for with its handler.
    #[test]
    fn signals_keep_nobody_from_connecting_sending_and_receiving() {
        extern "C" fn nothing(_: libc::c_int) {}
        let handler: extern "C" fn(libc::c_int) = nothing;
        // SAFETY: the handler does nothing, and no other test uses this signal.
        unsafe { libc::signal(libc::SIGWINCH, handler as *const () as libc::sighandler_t) };
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("s");
        let door = listen(&path, 0o600).unwrap();
        // From now on one connection may wait.
        rustix::net::listen(&door, 0).unwrap();
        let (me, thread) = std::sync::mpsc::channel();
        std::thread::scope(|s| {
            let client = s.spawn(|| {
                // SAFETY: no arguments.
                me.send(unsafe { libc::pthread_self() }).unwrap();
                let connected = [(); 2].map(|()| connect(&path).unwrap());
                // More than may wait to be read.
                let sent = (0..1000).map(|_| send(&connected[0], &[7; 4096], &[]).unwrap()).sum::<usize>();
                let answer = recv(&connected[0], &mut [0], &mut Vec::new()).unwrap().bytes;
                (connected, sent, answer)
            });
            let thread = thread.recv().unwrap();
            let interrupt = || {
                for _ in 0..40 {
                    std::thread::sleep(Duration::from_millis(2));
                    // SAFETY: the thread is not joined yet, so its name is valid.
                    unsafe { libc::pthread_kill(thread, libc::SIGWINCH) };
                }
            };
            interrupt();
            let server = accept(&door).unwrap();
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
    fn hang_up_waits_for_the_last_duplicate_and_passes_unread_messages() {
        let (near, far) = pair();
        let duplicate = far.try_clone().unwrap();
        send(&far, b"last words", &[]).unwrap();
        drop(far);
        assert!(!hung_up(near.as_fd()));
        drop(duplicate);
        assert!(hung_up(near.as_fd()));
        let mut buf = [0u8; 16];
        assert_eq!(recv(&near, &mut buf, &mut Vec::new()).unwrap().bytes, 10);
    }

    #[test]
    fn one_process_claims_a_connection() {
        let (near, far) = pair();
        assert!(claim(&near).unwrap());
        let try_it = || match (claim(&near), claim(&far)) {
            (Ok(mine), Ok(others)) => 2 * i32::from(mine) + i32::from(others),
            _ => 4,
        };
        // The other end is another file.
        assert_eq!(in_child(try_it), 1);
        leave_alone(&near);
        assert_eq!(in_child(try_it), 3);
        // The child is dead.
        assert!(claim(&near).unwrap());
    }

    #[test]
    fn file_gets_its_mode_whatever_the_umask() {
        let dir = tempfile::tempdir().unwrap();
        for mode in [0o600, 0o660, 0o666] {
            let path = dir.path().join(format!("{mode:o}"));
            let _door = listen(&path, mode).unwrap();
            assert_eq!(mode_of(&path), mode);
        }
        // The half that closes the window: bind alone opens the file to no more than the socket's own mode.
        let path = dir.path().join("bound");
        let fd = seqpacket(SocketFlags::CLOEXEC).unwrap();
        fchmod(&fd, Mode::RUSR | Mode::WUSR).unwrap();
        bind(&fd, &SocketAddrUnix::new(&path).unwrap()).unwrap();
        assert_eq!(mode_of(&path) & !0o600, 0);
    }

    #[test]
    fn addresses_in_error() {
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
    fn descriptors_pass_up_to_the_kernels_limit() {
        let (a, b) = pair();
        let bell = crate::event::Bell::new().unwrap();
        let many = [bell.as_fd(); MAX_FDS + 1];
        assert_eq!(send(&a, b"x", &many).unwrap_err().kind(), io::ErrorKind::InvalidInput);
        send(&a, b"x", &many[..MAX_FDS]).unwrap();

        let (mut buf, mut fds) = ([0u8; 4], Vec::new());
        let got = recv(&b, &mut buf, &mut fds).unwrap();
        assert_eq!(got, Received { bytes: 1, truncated: false, fds_truncated: false });
        assert_eq!(fds.len(), MAX_FDS);
        assert!(fds.iter().all(|fd| fcntl_getfd(fd).unwrap().contains(FdFlags::CLOEXEC)));
        let last = crate::event::Bell::from_fd(fds.pop().unwrap()).unwrap();
        last.ring();
        assert!(wait_readable(&mut [PollFd::new(&bell, PollFlags::IN)], Some(Duration::from_secs(10))).unwrap() == 1);
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
    fn blocking_calls_end_when_the_time_is_up() {
        let (_a, b) = pair();
        set_timeout(&b, Duration::from_millis(1)).unwrap();
        let error = recv(&b, &mut [0u8; 4], &mut Vec::new()).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::WouldBlock);
        set_timeout(&b, Duration::ZERO).unwrap();
    }

    /// The supplementary ones, as /proc tells them.
    fn own_groups() -> Vec<u32> {
        let status = std::fs::read_to_string("/proc/self/status").unwrap();
        let line = status.lines().find_map(|line| line.strip_prefix("Groups:")).unwrap();
        line.split_whitespace().map(|number| number.parse().unwrap()).collect()
    }

    #[test]
    fn groups_of_a_peer_with_none_and_with_many() {
        for count in [0, 3, FEW_GROUPS, FEW_GROUPS + 1, 5000] {
            let outcome = in_child(|| {
                let groups: Vec<libc::gid_t> = (0..count as libc::gid_t).map(|n| 100_000 + n).collect();
                // SAFETY: the list is as long as it is told to be.
                if unsafe { libc::syscall(libc::SYS_setgroups, groups.len(), groups.as_ptr()) } != 0 {
                    return 2;
                }
                // SAFETY: three numbers. `setresgid` is the bare call: this process has one thread.
                unsafe { libc::syscall(libc::SYS_setresgid, -1, 4711, -1) };
                let (near, _far) = pair();
                let told = peer_groups(&near).unwrap();
                i32::from(told[0] != 4711 || told[1..] != groups)
            });
            if outcome == 2 {
                return eprintln!("skipped: choosing one's groups needs CAP_SETGID");
            }
            assert_eq!(outcome, 0, "{count} groups");
        }
    }

    #[test]
    fn peer_is_who_connected() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("s");
        let door = listen(&path, 0o600).unwrap();
        // The child connects, says so, and stays until it is killed.
        let child = fork(|| {
            let fd = connect(&path).unwrap();
            send(&fd, b"x", &[]).unwrap();
            loop {
                std::thread::park();
            }
        });
        let see = |fd: BorrowedFd<'_>| {
            let mut fds = [PollFd::from_borrowed_fd(fd, PollFlags::IN)];
            wait_readable(&mut fds, None).unwrap();
        };
        see(door.as_fd());
        let server = accept(&door).unwrap();
        let who = peer(&server).unwrap();
        let us = crate::process::uid();
        assert_eq!((who.pid, who.uid), (child.pid(), us));

        for pidfd in [peer_pidfd(&server).unwrap(), pidfd_of(who.pid).unwrap()] {
            let mut fds = [PollFd::from_borrowed_fd(pidfd.as_fd(), PollFlags::IN)];
            assert_eq!(wait_readable(&mut fds, Some(Duration::ZERO)).unwrap(), 0);
        }
        let pidfds = [peer_pidfd(&server).unwrap(), pidfd_of(who.pid).unwrap()];
        // Our own are the child's; the kernel keeps the supplementary ones sorted.
        let groups = peer_groups(&server).unwrap();
        assert_eq!(groups[0], who.gid);
        assert_eq!(groups[1..], own_groups());
        child.kill();
        for pidfd in &pidfds {
            see(pidfd.as_fd());
        }
        assert!(hung_up(server.as_fd()));
        child.wait();
        assert!(pidfd_of(0).is_err());
        assert!(pidfd_of(u32::MAX).is_err());
    }
}
