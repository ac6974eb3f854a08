//! Memory of this process that a program's pointers point to, which may be no memory at all. The kernel looks, so a bad
//! pointer, or a page that another thread unmaps at this moment, is `EFAULT` and never a crash.

use std::io;

use rustix::io::Errno;

/// Bytes that cross a pipe at once: a write of so many into an empty one takes all.
const PIPE_BYTES: usize = 4096;

/// Reads `into.len()` bytes at address `from`. On failure `into` may have been written in part.
///
/// # Errors
/// `EFAULT`: not all of it can be read.
pub fn read(from: u64, into: &mut [u8]) -> io::Result<()> {
    if into.is_empty() {
        return Ok(());
    }
    let here = libc::iovec { iov_base: into.as_mut_ptr().cast(), iov_len: into.len() };
    let there = libc::iovec { iov_base: address(from), iov_len: into.len() };
    // SAFETY: `here` is a slice of ours; what lies at `from` is read by the kernel, which refuses what is not there.
    let moved = unsafe { libc::process_vm_readv(libc::getpid(), &here, 1, &there, 1, 0) };
    done(moved, into.len()).unwrap_or_else(|| read_by_pipe(from, into))
}

/// Writes `bytes` to address `to`. On failure a part may have been written.
///
/// # Errors
/// `EFAULT`: not all of it can be written.
///
/// # Safety
/// If `[to, to + bytes.len())` is memory, its owner told us to write there.
pub unsafe fn write(to: u64, bytes: &[u8]) -> io::Result<()> {
    if bytes.is_empty() {
        return Ok(());
    }
    let here = libc::iovec { iov_base: bytes.as_ptr().cast_mut().cast(), iov_len: bytes.len() };
    let there = libc::iovec { iov_base: address(to), iov_len: bytes.len() };
    // SAFETY: `here` is a slice of ours, only read; what lies at `to` is the caller's promise, or refused by the kernel.
    let moved = unsafe { libc::process_vm_writev(libc::getpid(), &here, 1, &there, 1, 0) };
    // SAFETY: the caller's promise.
    done(moved, bytes.len()).unwrap_or_else(|| unsafe { write_by_pipe(to, bytes) })
}

/// Pieces that one call of the kernel's moves at most.
pub const PIECES: usize = 64;

/// A piece of memory that is to be brought to a place of ours.
#[derive(Clone, Copy, Debug)]
pub struct Piece {
    /// Its address, at which there may be no memory.
    pub from: u64,
    /// Where it goes.
    pub to: *mut u8,
    /// Bytes.
    pub len: usize,
}

/// Brings up to [`PIECES`] pieces, with one call of the kernel's where all of them can be read. Returns which could not:
/// bit i is piece i, whose place may have been written in part.
///
/// # Safety
/// The place of each piece is valid for writes of its length, and no reference to it is used meanwhile. Others may read and
/// write it.
pub unsafe fn bring(pieces: &[Piece]) -> u64 {
    let pieces = &pieces[..pieces.len().min(PIECES)];
    let none = libc::iovec { iov_base: std::ptr::null_mut(), iov_len: 0 };
    let (mut here, mut there) = ([none; PIECES], [none; PIECES]);
    for (i, piece) in pieces.iter().enumerate() {
        here[i] = libc::iovec { iov_base: piece.to.cast(), iov_len: piece.len };
        there[i] = libc::iovec { iov_base: address(piece.from), iov_len: piece.len };
    }
    let (mut bad, mut at) = (0, 0);
    while at < pieces.len() {
        let n = pieces.len() - at;
        let (to, from) = (here[at..].as_ptr(), there[at..].as_ptr());
        // SAFETY: n entries follow in both arrays; the places are the caller's promise, and what lies at the addresses is read
        // by the kernel, which refuses what is not there.
        let moved = unsafe { libc::process_vm_readv(libc::getpid(), to, n as u64, from, n as u64, 0) };
        if moved < 0 && matches!(io::Error::last_os_error().raw_os_error(), Some(libc::EPERM | libc::ENOSYS)) {
            // SAFETY: the caller's promise.
            let brought = |piece: &Piece| unsafe { bring_by_pipe(piece) }.is_ok();
            let missed = pieces[at..].iter().enumerate().filter(|(_, piece)| !brought(piece));
            return missed.fold(bad, |bad, (i, _)| bad | 1 << (at + i));
        }
        // Whole pieces, then one that ended at memory that is not there.
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

/// Through a copy, where a filter of system calls forbids the usual way.
///
/// # Safety
/// As [`bring`].
unsafe fn bring_by_pipe(piece: &Piece) -> io::Result<()> {
    let mut part = [0; PIPE_BYTES];
    for at in (0..piece.len).step_by(PIPE_BYTES) {
        let n = (piece.len - at).min(PIPE_BYTES);
        read_by_pipe(piece.from.saturating_add(at as u64), &mut part[..n])?;
        // SAFETY: `at + n` is at most the piece's length (caller).
        unsafe { std::ptr::copy_nonoverlapping(part.as_ptr(), piece.to.add(at), n) };
    }
    Ok(())
}

fn address(at: u64) -> *mut libc::c_void {
    std::ptr::with_exposed_provenance_mut(usize::try_from(at).unwrap_or(usize::MAX))
}

/// The result of a call that moved so many bytes; `None`: this process may not make such calls.
fn done(moved: isize, wanted: usize) -> Option<io::Result<()>> {
    if usize::try_from(moved) == Ok(wanted) {
        return Some(Ok(()));
    }
    let error = io::Error::last_os_error();
    if moved < 0 && matches!(error.raw_os_error(), Some(libc::EPERM | libc::ENOSYS)) {
        return None;
    }
    // What was moved in part ended at memory that is not there.
    Some(Err(Errno::FAULT.into()))
}

/// Where a filter of system calls forbids the usual way: plain reads and writes look at pointers, too.
fn read_by_pipe(from: u64, into: &mut [u8]) -> io::Result<()> {
    let (reader, writer) = rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC)?;
    let mut at = from;
    for part in into.chunks_mut(PIPE_BYTES) {
        use std::os::fd::AsRawFd;
        // SAFETY: the kernel reads at `at`, and refuses what is not there.
        let moved = unsafe { libc::write(writer.as_raw_fd(), address(at).cast_const(), part.len()) };
        if usize::try_from(moved) != Ok(part.len()) || rustix::io::read(&reader, &mut *part)? != part.len() {
            return Err(Errno::FAULT.into());
        }
        at = at.saturating_add(part.len() as u64);
    }
    Ok(())
}

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
        // SAFETY: the caller's promise about what lies at `at`; the kernel refuses what is not there.
        let moved = unsafe { libc::read(reader.as_raw_fd(), address(at), part.len()) };
        if usize::try_from(moved) != Ok(part.len()) {
            return Err(Errno::FAULT.into());
        }
        at = at.saturating_add(part.len() as u64);
    }
    Ok(())
}

/// An array of the program's that it has given us to read and write.
#[derive(Clone, Copy, Debug)]
pub struct Memory {
    at: u64,
    bytes: usize,
}

impl Memory {
    /// The `bytes` bytes at address `at`, which may be no memory.
    ///
    /// # Safety
    /// If they are memory, its owner told us to write there, as long as this value or a copy of it is used.
    pub unsafe fn new(at: u64, bytes: usize) -> Memory {
        Memory { at, bytes }
    }

    /// How many bytes.
    #[allow(clippy::len_without_is_empty)] // It is an array of somebody's, not a container.
    pub fn len(&self) -> usize {
        self.bytes
    }

    /// Its address.
    pub fn address(&self) -> u64 {
        self.at
    }

    /// Reads from byte `offset` on.
    ///
    /// # Errors
    /// `EFAULT`: not all of it can be read, or it is beyond the end.
    pub fn read(&self, offset: usize, into: &mut [u8]) -> io::Result<()> {
        read(self.part(offset, into.len())?, into)
    }

    /// Writes from byte `offset` on.
    ///
    /// # Errors
    /// `EFAULT`: not all of it can be written, or it is beyond the end.
    pub fn write(&self, offset: usize, bytes: &[u8]) -> io::Result<()> {
        let at = self.part(offset, bytes.len())?;
        // SAFETY: it lies inside what `new` was told of.
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

    /// Two pages, the second of which is not there.
    struct Edge(*mut u8);

    impl Edge {
        fn new() -> Edge {
            // SAFETY: fresh memory, of which the second page is given back.
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
            // SAFETY: ours.
            unsafe { libc::munmap(self.0.cast(), 4096) };
        }
    }

    fn fault(result: io::Result<()>) -> bool {
        result.is_err_and(|e| e.raw_os_error() == Some(libc::EFAULT))
    }

    #[test]
    fn what_is_there_is_moved_and_what_is_not_is_a_fault() {
        let edge = Edge::new();
        // SAFETY: the page is ours.
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
    fn long_ones_cross_a_pipe_in_parts() {
        let from: Vec<u8> = (0..70_001u32).map(|i| i as u8).collect();
        let mut to = vec![0; from.len()];
        read_by_pipe(from.as_ptr().expose_provenance() as u64, &mut to).unwrap();
        assert_eq!(from, to);
        let mut back = vec![0u8; from.len()];
        // SAFETY: `back` is ours.
        unsafe { write_by_pipe(back.as_mut_ptr().expose_provenance() as u64, &to) }.unwrap();
        assert_eq!(from, back);
    }

    #[test]
    fn pieces_that_are_not_there_leave_the_others() {
        let edge = Edge::new();
        let source: Vec<u8> = (0..200).collect();
        let at = source.as_ptr().expose_provenance() as u64;
        let mut places = vec![[0u8; 100]; PIECES];
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
        // SAFETY: each place is ours, and larger than its piece.
        let bad = unsafe { bring(&pieces) };
        assert_eq!(bad, 0xaaaa_aaaa_aaaa_aaaa);
        // SAFETY: as above.
        let by_pipe: Vec<bool> = pieces.iter().map(|piece| unsafe { bring_by_pipe(piece) }.is_ok()).collect();
        assert!(by_pipe.iter().enumerate().all(|(i, good)| *good == (i % 2 == 0)));
        for (i, place) in places.iter().enumerate().filter(|(i, _)| i % 2 == 0) {
            let len = from(i).1;
            assert_eq!(place[..len], source[i..i + len], "{i}");
            assert!(place[len..].iter().all(|b| *b == 0));
        }
        // SAFETY: no pieces, no places.
        assert_eq!(unsafe { bring(&[]) }, 0);
    }

    #[test]
    fn an_array_ends_where_it_ends() {
        let mut place = [0u8; 8];
        // SAFETY: `place` is ours.
        let array = unsafe { Memory::new(place.as_mut_ptr().expose_provenance() as u64, 8) };
        array.write(4, b"wxyz").unwrap();
        let mut back = [0; 4];
        array.read(4, &mut back).unwrap();
        assert_eq!(&back, b"wxyz");
        assert!(fault(array.write(5, b"wxyz")) && fault(array.read(usize::MAX, &mut back)));
        assert_eq!(array.len(), 8);
    }
}
