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
