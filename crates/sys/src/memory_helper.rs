// SPDX-License-Identifier: BSD-2-Clause
//! A helper process that reads and writes the memory of other processes.
//!
//! ```text
//! daemon                          helper                        program (not trusted)
//! MemoryHelper::read  --request-->  process_vm_readv  --------->  memory, or a page fault that never ends
//!                     <--reply----
//!                     --SIGKILL-->  at the deadline
//! ```
//! The owner of a page decides how long a fault on it takes (userfaultfd, FUSE), and a thread may wait for it even
//! after SIGKILL: its process then does not exit, and keeps its descriptors. So no thread of the daemon accesses such
//! memory, but a process that has one descriptor, the connection, and no memory in common with the daemon.
//!
//! A message begins with a [`Head`]. That of a read is followed by [`Piece`]s, that of a write by one piece and its
//! bytes. The reply has an errno (or 0) for each piece, then the bytes of those that were read, each as long as its
//! piece.
//!
//! Whose memory is accessed is decided at another connection, [`Approvals`]: that of a process which verified that the
//! thread uses the node. A daemon that was taken over cannot have it access others.

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::time::{Duration, Instant};

use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use crate::event::{PollFd, PollFlags, wait_readable};
use crate::process::spawn_detached;
use crate::socket;
use crate::thread::RemoteThread;
use crate::tuning::{HELPER_BYTES, HELPER_PIECES};

/// How often the end of a wait is asked for again.
const END_CHECK: Duration = Duration::from_millis(50);

/// Bytes of the longest message.
const MESSAGE: usize = size_of::<Head>() + HELPER_PIECES * size_of::<Piece>() + HELPER_BYTES;

#[derive(FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
struct Head {
    tid: u32,
    /// 1: a write.
    write: u32,
}

/// A piece of the memory of another process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct Piece {
    /// Its address, which may be invalid.
    pub at: u64,
    /// Bytes: at most [`HELPER_BYTES`].
    pub len: u64,
}

/// A helper process, which is killed when this is dropped.
#[derive(Debug)]
pub struct MemoryHelper {
    connection: OwnedFd,
    pidfd: OwnedFd,
}

/// The approvals, which decide whose memory a helper accesses. They may be in another process than the
/// [`MemoryHelper`].
#[derive(Debug)]
pub struct Approvals {
    connection: OwnedFd,
    pidfd: OwnedFd,
}

impl Approvals {
    /// Has the helper access the memory of this thread, and of no other, until the next call.
    ///
    /// # Errors
    /// `EPIPE`: the helper has exited.
    pub fn approve(&self, thread: &RemoteThread) -> io::Result<()> {
        socket::send(&self.connection, thread.tid().as_bytes(), &[thread.as_fd()]).map(drop)
    }

    /// Returns a pidfd of the process.
    pub fn pidfd(&self) -> &OwnedFd {
        &self.pidfd
    }

    /// Kills the process.
    ///
    /// # Errors
    /// `ESRCH`: it has exited.
    pub fn kill(&self) -> io::Result<()> {
        Ok(pidfd_send_signal(&self.pidfd, Signal::KILL)?)
    }
}

impl MemoryHelper {
    /// Starts `program`, which must call [`serve`] with its descriptor 3. Its error messages go to `log`.
    ///
    /// # Errors
    /// The errors of [`spawn_detached`]; `EMFILE`.
    pub fn start(program: &Path, name: &OsStr, args: &[OsString], log: File) -> io::Result<(MemoryHelper, Approvals)> {
        let (approvals, other) = socket::pair()?;
        let (connection, served) = socket::pair()?;
        socket::send(&approvals, &[0], &[served.as_fd()])?;
        // For the helper, which may not change it.
        socket::set_nonblocking(&other)?;
        let pid = spawn_detached(program, name, args, other, log)?;
        let pid = i32::try_from(pid).ok().and_then(Pid::from_raw).ok_or(Errno::SRCH)?;
        let pidfd = pidfd_open(pid, PidfdFlags::empty())?;
        let approvals = Approvals { connection: approvals, pidfd: pidfd.try_clone()? };
        Ok((MemoryHelper { connection, pidfd }, approvals))
    }

    /// The helper that another process has started, by its connection and its pidfd. This process may be unable to kill
    /// it.
    pub fn of_parts(connection: OwnedFd, pidfd: OwnedFd) -> MemoryHelper {
        MemoryHelper { connection, pidfd }
    }

    /// Returns its connection and its pidfd, for another process.
    pub fn into_parts(self) -> io::Result<(OwnedFd, OwnedFd)> {
        let parts = (self.connection.try_clone()?, self.pidfd.try_clone()?);
        // Dropping kills it.
        std::mem::forget(self);
        Ok(parts)
    }

    /// Returns a pidfd of the process.
    pub fn pidfd(&self) -> &OwnedFd {
        &self.pidfd
    }

    /// Reads pieces of the thread's memory; returns for each piece its bytes or an errno: `EFAULT` if it is not all
    /// mapped, `EPERM` without the right to trace the process, `ESRCH`.
    ///
    /// # Errors
    /// `EINVAL` for a piece that is too long; [`io::ErrorKind::TimedOut`] at `end`, which may change meanwhile; others
    /// if the process has exited. After an error the helper must be dropped.
    pub fn read(
        &self,
        thread: &RemoteThread,
        pieces: &[Piece],
        end: impl Fn() -> Instant,
    ) -> io::Result<Vec<Result<Vec<u8>, i32>>> {
        let mut all = Vec::with_capacity(pieces.len());
        let mut rest = pieces;
        while !rest.is_empty() {
            let (now, later) = rest.split_at(fitting(rest)?);
            let reply = self.call(thread, 0, now.as_bytes(), &end)?;
            all.extend(split(now, &reply).ok_or(Errno::PROTO)?);
            rest = later;
        }
        Ok(all)
    }

    /// Writes `bytes` to address `at` of the thread's memory; returns 0 or an errno, as [`MemoryHelper::read`].
    ///
    /// # Errors
    /// As [`MemoryHelper::read`].
    pub fn write(&self, thread: &RemoteThread, at: u64, bytes: &[u8], end: impl Fn() -> Instant) -> io::Result<i32> {
        let piece = Piece { at, len: bytes.len() as u64 };
        fitting(&[piece])?;
        let reply = self.call(thread, 1, &[piece.as_bytes(), bytes].concat(), &end)?;
        i32::read_from_bytes(&reply).map_err(|_| Errno::PROTO.into())
    }

    fn call(&self, thread: &RemoteThread, write: u32, body: &[u8], end: &dyn Fn() -> Instant) -> io::Result<Vec<u8>> {
        let head = Head { tid: thread.tid(), write };
        socket::send(&self.connection, &[head.as_bytes(), body].concat(), &[])?;
        let mut fds = [PollFd::from_borrowed_fd(self.connection.as_fd(), PollFlags::IN)];
        loop {
            let left = end().saturating_duration_since(Instant::now());
            match wait_readable(&mut fds, Some(left.min(END_CHECK))) {
                Ok(0) if left > END_CHECK => {}
                Ok(0) => return Err(io::ErrorKind::TimedOut.into()),
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                other => break other.map(drop)?,
            }
        }
        let mut reply = vec![0; MESSAGE];
        let got = socket::recv(&self.connection, &mut reply, &mut Vec::new())?;
        if got.bytes == 0 {
            return Err(io::ErrorKind::ConnectionReset.into());
        }
        reply.truncate(got.bytes);
        Ok(reply)
    }
}

impl Drop for MemoryHelper {
    fn drop(&mut self) {
        // Idle, it exits when the connection is closed. It may have been killed already.
        let _ = pidfd_send_signal(&self.pidfd, Signal::KILL);
    }
}

/// Returns how many of the pieces fit one message: at least one.
fn fitting(pieces: &[Piece]) -> io::Result<usize> {
    let mut room = HELPER_BYTES as u64;
    let fits = |piece: &&Piece| match room.checked_sub(piece.len) {
        Some(left) => {
            room = left;
            true
        }
        None => false,
    };
    match pieces.iter().take(HELPER_PIECES).take_while(fits).count() {
        0 => Err(Errno::INVAL.into()),
        count => Ok(count),
    }
}

/// Returns the result of each piece; `None` if the reply does not match the pieces.
fn split(pieces: &[Piece], reply: &[u8]) -> Option<Vec<Result<Vec<u8>, i32>>> {
    let (errnos, mut bytes) = reply.split_at_checked(pieces.len() * size_of::<i32>())?;
    let mut results = Vec::with_capacity(pieces.len());
    for (piece, errno) in pieces.iter().zip(errnos.chunks_exact(size_of::<i32>())) {
        results.push(match i32::read_from_bytes(errno).ok()? {
            0 => {
                let (own, rest) = bytes.split_at_checked(usize::try_from(piece.len).ok()?)?;
                bytes = rest;
                Ok(own.to_vec())
            }
            errno => Err(errno),
        });
    }
    bytes.is_empty().then_some(results)
}

/// Runs the helper: serves requests until the other end of its connection is closed, of which the first message on
/// `approvals` is the descriptor; receiving from it does not block.
///
/// # Errors
/// A connection fails, a request is malformed, or its thread was not approved last.
pub fn serve(approvals: &OwnedFd) -> io::Result<()> {
    let mut fds = Vec::with_capacity(1);
    socket::recv(approvals, &mut [0], &mut fds)?;
    let connection = fds.pop().ok_or(Errno::PROTO)?;
    let (mut message, mut thread) = (vec![0; MESSAGE], None);
    loop {
        let got = socket::recv(&connection, &mut message, &mut Vec::new())?;
        if got.bytes == 0 {
            return Ok(());
        }
        // An approval was sent before the request that needs it.
        while let Some(approved) = next_approved(approvals)? {
            thread = Some(approved);
        }
        let reply = thread.as_ref().and_then(|thread| answer(&message[..got.bytes], thread)).ok_or(Errno::PROTO)?;
        socket::send(&connection, &reply, &[])?;
    }
}

/// Receives an approved thread; `None` if there is none.
fn next_approved(approvals: &OwnedFd) -> io::Result<Option<RemoteThread>> {
    let (mut tid, mut fds) = (0u32, Vec::with_capacity(1));
    match socket::recv(approvals, tid.as_mut_bytes(), &mut fds) {
        Err(e) if e.kind() == io::ErrorKind::WouldBlock => Ok(None),
        // The approving process has exited.
        Ok(got) if got.bytes == 0 => Ok(None),
        other => {
            other?;
            let thread = fds.pop().and_then(|pidfd| RemoteThread::from_parts(tid, pidfd));
            thread.map(Some).ok_or_else(|| Errno::PROTO.into())
        }
    }
}

/// Answers a request; `None` if it is malformed, or about another thread.
fn answer(message: &[u8], thread: &RemoteThread) -> Option<Vec<u8>> {
    let (head, body) = Head::read_from_prefix(message).ok()?;
    if head.tid != thread.tid() {
        return None;
    }
    let errno = |result: io::Result<()>| result.map_or_else(|e| e.raw_os_error().unwrap_or(libc::EIO), |()| 0);
    if head.write == 1 {
        let (piece, bytes) = Piece::read_from_prefix(body).ok()?;
        return Some(errno(thread.write(piece.at, bytes)).as_bytes().to_vec());
    }
    let (whole, rest) = body.as_chunks::<{ size_of::<Piece>() }>();
    let pieces = whole.iter().map(|bytes| Piece::read_from_bytes(bytes).ok()).collect::<Option<Vec<_>>>()?;
    fitting(&pieces).ok().filter(|count| *count == pieces.len() && rest.is_empty())?;
    let (mut errnos, mut bytes) = (Vec::with_capacity(pieces.len()), Vec::new());
    for piece in &pieces {
        let start = bytes.len();
        bytes.resize(start + piece.len as usize, 0);
        let result = errno(thread.read(piece.at, &mut bytes[start..]));
        if result != 0 {
            bytes.truncate(start);
        }
        errnos.push(result);
    }
    Some([errnos.as_bytes(), &bytes].concat())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::process::tests::in_child;
    use std::time::Duration;

    fn piece(at: u64, len: usize) -> Piece {
        Piece { at, len: len as u64 }
    }

    #[test]
    fn pieces_are_divided_into_messages() {
        let full = piece(0, HELPER_BYTES);
        assert_eq!(fitting(&[full, piece(0, 1)]).unwrap(), 1);
        assert_eq!(fitting(&[piece(0, HELPER_BYTES - 1), piece(0, 1), piece(0, 1)]).unwrap(), 2);
        assert_eq!(fitting(&vec![piece(0, 1); HELPER_PIECES + 1]).unwrap(), HELPER_PIECES);
        assert!(fitting(&[piece(0, HELPER_BYTES + 1)]).is_err() && fitting(&[piece(0, usize::MAX)]).is_err());
    }

    #[test]
    fn replies_of_another_length_are_refused() {
        let pieces = [piece(0, 2), piece(0, 3), piece(0, 0)];
        let errnos = [0, libc::EFAULT, 0];
        let reply = [errnos.as_bytes(), b"ab"].concat();
        assert_eq!(split(&pieces, &reply).unwrap(), [Ok(b"ab".to_vec()), Err(libc::EFAULT), Ok(vec![])]);
        for wrong in [&reply[..11], &reply[..13], &[&reply[..], b"c"].concat(), b""] {
            assert_eq!(split(&pieces, wrong), None);
        }
    }

    /// The server runs in a thread here, and accesses this process's own memory.
    #[test]
    fn memory_is_read_and_written_and_faults_are_errnos() {
        let Ok(me) = RemoteThread::of(crate::process::tid()) else {
            eprintln!("skipped: pidfds of threads need Linux 6.9");
            return;
        };
        let (connection, served) = socket::pair().unwrap();
        let (approving, approvals) = socket::pair().unwrap();
        socket::send(&approving, &[0], &[served.as_fd()]).unwrap();
        drop(served);
        socket::set_nonblocking(&approvals).unwrap();
        let server = std::thread::spawn(move || serve(&approvals));
        let own = Pid::from_raw(std::process::id() as i32).unwrap();
        // Not dropped, which would kill this process.
        let pidfd = pidfd_open(own, PidfdFlags::empty()).unwrap();
        let approvals = Approvals { connection: approving, pidfd: pidfd.try_clone().unwrap() };
        approvals.approve(&me).unwrap();
        let helper = std::mem::ManuallyDrop::new(MemoryHelper { connection, pidfd });
        let limit = Instant::now() + Duration::from_secs(30);
        let end = || limit;
        let mut word = [1u8, 2, 3, 4];
        let at = word.as_mut_ptr().expose_provenance() as u64;
        let read = helper.read(&me, &[piece(at, 4), piece(8, 4), piece(at + 1, 2)], end).unwrap();
        assert_eq!(read, [Ok(vec![1, 2, 3, 4]), Err(libc::EFAULT), Ok(vec![2, 3])]);
        assert_eq!(helper.write(&me, at, &[5; 4], end).unwrap(), 0);
        assert_eq!(std::hint::black_box(&word), &[5; 4]);
        assert_eq!(helper.write(&me, 8, &[5; 4], end).unwrap(), libc::EFAULT);
        // More than one message.
        let source: Vec<u8> = (0..100_000u32).map(|i| i as u8).collect();
        let at = source.as_ptr().expose_provenance() as u64;
        let pieces: Vec<Piece> = (0..1000).map(|i| piece(at + 100 * i, 100)).collect();
        let all = helper.read(&me, &pieces, end).unwrap();
        assert_eq!(all.into_iter().flat_map(|part| part.unwrap()).collect::<Vec<u8>>(), source);
        assert!(helper.read(&me, &[piece(at, HELPER_BYTES + 1)], end).is_err());
        rustix::net::shutdown(&helper.connection, rustix::net::Shutdown::Both).unwrap();
        server.join().unwrap().unwrap();
    }

    #[test]
    fn malformed_requests_and_those_about_other_threads_end_the_helper() {
        let head = |tid| [Head { tid, write: 0 }.as_bytes(), piece(8, 1).as_bytes()].concat();
        let Ok(me) = RemoteThread::of(crate::process::tid()) else {
            eprintln!("skipped: pidfds of threads need Linux 6.9");
            return;
        };
        for (request, approved, ends) in [
            (vec![0; 3], true, true),
            (head(me.tid()), true, false),
            (head(me.tid()), false, true),
            (head(1), true, true),
        ] {
            let outcome = in_child(|| {
                let (connection, served) = socket::pair().unwrap();
                let (approving, approvals) = socket::pair().unwrap();
                socket::send(&approving, &[0], &[served.as_fd()]).unwrap();
                drop(served);
                socket::set_nonblocking(&approvals).unwrap();
                if approved {
                    socket::send(&approving, me.tid().as_bytes(), &[me.as_fd()]).unwrap();
                }
                socket::send(&connection, &request, &[]).unwrap();
                rustix::net::shutdown(&connection, rustix::net::Shutdown::Write).unwrap();
                i32::from(serve(&approvals).is_ok())
            });
            assert_eq!(outcome, i32::from(!ends), "{request:?} {approved}");
        }
    }
}
