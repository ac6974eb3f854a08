// SPDX-License-Identifier: BSD-2-Clause
//! Memory of this process at addresses that the program passed, which may be invalid. The kernel copies it, so an
//! invalid pointer, or a page that another thread unmaps at this moment, is `EFAULT` and never a crash.

use std::io;

use rustix::io::Errno;

pub use crate::tuning::MAX_PIECES;
use crate::tuning::PIPE_BYTES;

/// Reads `into.len()` bytes at address `from`. On failure `into` may have been written in part.
///
/// # Errors
/// `EFAULT`: not all of it is readable.
pub fn read(from: u64, into: &mut [u8]) -> io::Result<()> {
    if into.is_empty() {
        return Ok(());
    }
    let local = libc::iovec { iov_base: into.as_mut_ptr().cast(), iov_len: into.len() };
    let remote = libc::iovec { iov_base: address(from), iov_len: into.len() };
    // SAFETY: K1, K4: `local` is a slice to write; the kernel reads `from` and checks it.
    let moved = unsafe { libc::process_vm_readv(libc::getpid(), &local, 1, &remote, 1, 0) };
    outcome(moved, into.len()).unwrap_or_else(|| read_by_pipe(from, into))
}

/// Writes `bytes` to address `to`. On failure a part may have been written.
///
/// # Errors
/// `EFAULT`: not all of it is writable.
///
/// # Safety
/// If `[to, to + bytes.len())` is mapped, its owner has passed it to be written.
pub unsafe fn write(to: u64, bytes: &[u8]) -> io::Result<()> {
    if bytes.is_empty() {
        return Ok(());
    }
    let local = libc::iovec { iov_base: bytes.as_ptr().cast_mut().cast(), iov_len: bytes.len() };
    let remote = libc::iovec { iov_base: address(to), iov_len: bytes.len() };
    // SAFETY: K1, K4: `local` is a slice that is only read; the caller guarantees that `to` may be written.
    let moved = unsafe { libc::process_vm_writev(libc::getpid(), &local, 1, &remote, 1, 0) };
    // SAFETY: K4: the caller's guarantee.
    outcome(moved, bytes.len()).unwrap_or_else(|| unsafe { write_by_pipe(to, bytes) })
}

/// A piece of user memory to copy.
#[derive(Clone, Copy, Debug)]
pub struct Piece {
    /// Source address, which may be invalid.
    pub from: u64,
    /// Destination.
    pub to: *mut u8,
    /// Bytes.
    pub len: usize,
}

/// Copies up to [`MAX_PIECES`] pieces, with one system call if all of them are readable. Returns the pieces that are
/// not: bit i is piece i, whose destination may have been written in part.
///
/// # Safety
/// Each destination is valid for writes of its length, and no reference to it is used meanwhile. Other processes may
/// read and write it.
pub unsafe fn read_pieces(pieces: &[Piece]) -> u64 {
    let pieces = &pieces[..pieces.len().min(MAX_PIECES)];
    let none = libc::iovec { iov_base: std::ptr::null_mut(), iov_len: 0 };
    let (mut local, mut remote) = ([none; MAX_PIECES], [none; MAX_PIECES]);
    for (i, piece) in pieces.iter().enumerate() {
        local[i] = libc::iovec { iov_base: piece.to.cast(), iov_len: piece.len };
        remote[i] = libc::iovec { iov_base: address(piece.from), iov_len: piece.len };
    }
    let (mut bad, mut at) = (0, 0);
    while at < pieces.len() {
        let n = pieces.len() - at;
        let (to, from) = (local[at..].as_ptr(), remote[at..].as_ptr());
        // SAFETY: K1, K4: n entries follow in both arrays; the caller guarantees the destinations, and the kernel
        // checks the source addresses.
        let moved = unsafe { libc::process_vm_readv(libc::getpid(), to, n as u64, from, n as u64, 0) };
        if moved < 0 && matches!(io::Error::last_os_error().raw_os_error(), Some(libc::EPERM | libc::ENOSYS)) {
            // SAFETY: K4: the caller's guarantee.
            let copied = |piece: &Piece| unsafe { read_piece_by_pipe(piece) }.is_ok();
            let failed = pieces[at..].iter().enumerate().filter(|(_, piece)| !copied(piece));
            return failed.fold(bad, |bad, (i, _)| bad | 1 << (at + i));
        }
        // Complete pieces, then one that ended at an invalid address.
        let mut left = usize::try_from(moved).unwrap_or(0);
        while at < pieces.len() && left >= pieces[at].len {
            left -= pieces[at].len;
            at += 1;
        }
        if at < pieces.len() {
            bad |= 1 << at;
            at += 1;
        }
    }
    bad
}

/// Copies a piece through a pipe, where a seccomp filter forbids `process_vm_readv`.
///
/// # Safety
/// As [`read_pieces`].
unsafe fn read_piece_by_pipe(piece: &Piece) -> io::Result<()> {
    let mut part = [0; PIPE_BYTES];
    for at in (0..piece.len).step_by(PIPE_BYTES) {
        let n = (piece.len - at).min(PIPE_BYTES);
        read_by_pipe(piece.from.saturating_add(at as u64), &mut part[..n])?;
        // SAFETY: K4: `at + n` is at most the piece's length, for which the caller guarantees the destination.
        unsafe { std::ptr::copy_nonoverlapping(part.as_ptr(), piece.to.add(at), n) };
    }
    Ok(())
}

fn address(at: u64) -> *mut libc::c_void {
    std::ptr::with_exposed_provenance_mut(usize::try_from(at).unwrap_or(usize::MAX))
}

/// Returns the result of a call that copied `moved` of `wanted` bytes; `None`: a filter forbids the call.
fn outcome(moved: isize, wanted: usize) -> Option<io::Result<()>> {
    if usize::try_from(moved) == Ok(wanted) {
        return Some(Ok(()));
    }
    let error = io::Error::last_os_error();
    if moved < 0 && matches!(error.raw_os_error(), Some(libc::EPERM | libc::ENOSYS)) {
        return None;
    }
    // A partial copy ended at an invalid address.
    Some(Err(Errno::FAULT.into()))
}

/// As [`read`], where a seccomp filter forbids `process_vm_readv`: `write` checks its pointer too.
fn read_by_pipe(from: u64, into: &mut [u8]) -> io::Result<()> {
    let (reader, writer) = rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC)?;
    let mut at = from;
    for part in into.chunks_mut(PIPE_BYTES) {
        use std::os::fd::AsRawFd;
        // SAFETY: K4: the kernel reads `at` and checks it.
        let moved = unsafe { libc::write(writer.as_raw_fd(), address(at).cast_const(), part.len()) };
        if usize::try_from(moved) != Ok(part.len()) || rustix::io::read(&reader, &mut *part)? != part.len() {
            return Err(Errno::FAULT.into());
        }
        at = at.saturating_add(part.len() as u64);
    }
    Ok(())
}

/// As [`write`], where a seccomp filter forbids `process_vm_writev`.
///
/// # Safety
/// As [`write`].
unsafe fn write_by_pipe(to: u64, bytes: &[u8]) -> io::Result<()> {
    let (reader, writer) = rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC)?;
    let mut at = to;
    for part in bytes.chunks(PIPE_BYTES) {
        use std::os::fd::AsRawFd;
        if rustix::io::write(&writer, part)? != part.len() {
            return Err(Errno::FAULT.into());
        }
        // SAFETY: K4: the caller guarantees that `at` may be written; the kernel checks it.
        let moved = unsafe { libc::read(reader.as_raw_fd(), address(at), part.len()) };
        if usize::try_from(moved) != Ok(part.len()) {
            return Err(Errno::FAULT.into());
        }
        at = at.saturating_add(part.len() as u64);
    }
    Ok(())
}

/// An array in the program's memory that it has passed to be read and written.
#[derive(Clone, Copy, Debug)]
pub struct UserArray {
    at: u64,
    bytes: usize,
}

impl UserArray {
    /// Describes the `bytes` bytes at address `at`, which may be invalid.
    ///
    /// # Safety
    /// If they are mapped, their owner has passed them to be written as long as this value or a copy of it is used.
    pub unsafe fn new(at: u64, bytes: usize) -> UserArray {
        UserArray { at, bytes }
    }

    /// Returns its bytes.
    #[allow(clippy::len_without_is_empty)] // It is not a container.
    pub fn len(&self) -> usize {
        self.bytes
    }

    /// Returns its address.
    pub fn address(&self) -> u64 {
        self.at
    }

    /// Reads from byte `offset`.
    ///
    /// # Errors
    /// `EFAULT`: not all of it is readable, or it is beyond the end.
    pub fn read(&self, offset: usize, into: &mut [u8]) -> io::Result<()> {
        read(self.part(offset, into.len())?, into)
    }

    /// Writes from byte `offset`.
    ///
    /// # Errors
    /// `EFAULT`: not all of it is writable, or it is beyond the end.
    pub fn write(&self, offset: usize, bytes: &[u8]) -> io::Result<()> {
        let at = self.part(offset, bytes.len())?;
        // SAFETY: K4: inside the array, for which the caller of `new` gave the guarantee.
        unsafe { write(at, bytes) }
    }

    fn part(&self, offset: usize, len: usize) -> io::Result<u64> {
        let inside = offset.checked_add(len).is_some_and(|end| end <= self.bytes);
        self.at.checked_add(offset as u64).filter(|_| inside).ok_or_else(|| Errno::FAULT.into())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Two pages, the second of which is unmapped.
    struct Edge(*mut u8);

    impl Edge {
        fn new() -> Edge {
            // SAFETY: K3: a new mapping, whose second page is unmapped again.
            let at = unsafe {
                let (prot, flags) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
                let at = libc::mmap(std::ptr::null_mut(), 8192, prot, flags, -1, 0);
                assert_ne!(at, libc::MAP_FAILED);
                assert_eq!(libc::munmap(at.byte_add(4096), 4096), 0);
                at
            };
            Edge(at.cast())
        }

        fn before_end(&self, bytes: u64) -> u64 {
            self.0.expose_provenance() as u64 + 4096 - bytes
        }
    }

    impl Drop for Edge {
        fn drop(&mut self) {
            // SAFETY: K3: mapped by `new`.
            unsafe { libc::munmap(self.0.cast(), 4096) };
        }
    }

    fn fault(result: io::Result<()>) -> bool {
        result.is_err_and(|e| e.raw_os_error() == Some(libc::EFAULT))
    }

    #[test]
    fn mapped_memory_is_copied_and_unmapped_memory_is_a_fault() {
        let edge = Edge::new();
        // SAFETY: K4: the page belongs to this test.
        let (write_to, write_through) =
            (|to, b: &[u8]| unsafe { write(to, b) }, |to, b: &[u8]| unsafe { write_by_pipe(to, b) });
        for (read, write) in [
            (read as fn(u64, &mut [u8]) -> _, &write_to as &dyn Fn(u64, &[u8]) -> io::Result<()>),
            (read_by_pipe, &write_through),
        ] {
            let mut back = [0; 4];
            write(edge.before_end(4), b"abcd").unwrap();
            read(edge.before_end(4), &mut back).unwrap();
            assert_eq!(&back, b"abcd");
            for bad in [edge.before_end(3), edge.before_end(0), 0, 8, u64::MAX - 3, u64::MAX] {
                assert!(fault(read(bad, &mut back)), "{bad:#x}");
                assert!(fault(write(bad, b"abcd")), "{bad:#x}");
            }
            read(0, &mut []).unwrap();
        }
    }

    #[test]
    fn long_copies_cross_a_pipe_in_parts() {
        let from: Vec<u8> = (0..70_001u32).map(|i| i as u8).collect();
        let mut to = vec![0; from.len()];
        read_by_pipe(from.as_ptr().expose_provenance() as u64, &mut to).unwrap();
        assert_eq!(from, to);
        let mut back = vec![0u8; from.len()];
        // SAFETY: K4: `back` belongs to this test.
        unsafe { write_by_pipe(back.as_mut_ptr().expose_provenance() as u64, &to) }.unwrap();
        assert_eq!(from, back);
    }

    #[test]
    fn unmapped_pieces_do_not_affect_the_others() {
        let edge = Edge::new();
        let source: Vec<u8> = (0..200).collect();
        let at = source.as_ptr().expose_provenance() as u64;
        let mut places = vec![[0u8; 100]; MAX_PIECES];
        let from = |i: usize| match i % 4 {
            1 => (edge.before_end(3), 4),
            3 => (0, 4),
            _ => (at + i as u64, if i == 2 { 0 } else { i + 1 }),
        };
        let pieces: Vec<Piece> = places
            .iter_mut()
            .enumerate()
            .map(|(i, place)| Piece { from: from(i).0, to: place.as_mut_ptr(), len: from(i).1 })
            .collect();
        // SAFETY: K4: each destination belongs to this test, and is larger than its piece.
        let bad = unsafe { read_pieces(&pieces) };
        assert_eq!(bad, 0xaaaa_aaaa_aaaa_aaaa);
        // SAFETY: K4: as above.
        let by_pipe: Vec<bool> = pieces.iter().map(|piece| unsafe { read_piece_by_pipe(piece) }.is_ok()).collect();
        assert!(by_pipe.iter().enumerate().all(|(i, good)| *good == (i % 2 == 0)));
        for (i, place) in places.iter().enumerate().filter(|(i, _)| i % 2 == 0) {
            let len = from(i).1;
            assert_eq!(place[..len], source[i..i + len], "{i}");
            assert!(place[len..].iter().all(|b| *b == 0));
        }
        // SAFETY: K4: there is no piece.
        assert_eq!(unsafe { read_pieces(&[]) }, 0);
    }

    #[test]
    fn accesses_beyond_an_array_are_faults() {
        let mut place = [0u8; 8];
        // SAFETY: K4: `place` belongs to this test.
        let array = unsafe { UserArray::new(place.as_mut_ptr().expose_provenance() as u64, 8) };
        array.write(4, b"wxyz").unwrap();
        let mut back = [0; 4];
        array.read(4, &mut back).unwrap();
        assert_eq!(&back, b"wxyz");
        assert!(fault(array.write(5, b"wxyz")) && fault(array.read(usize::MAX, &mut back)));
        assert_eq!(array.len(), 8);
    }
}
