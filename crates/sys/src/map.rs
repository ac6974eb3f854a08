//! Shared memory, mapped.

use std::io;
use std::os::fd::BorrowedFd;
use std::ptr::{self, NonNull};

use rustix::fs::{FileType, fstat};
use rustix::io::Errno;
use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap, munmap};

use crate::memfd;

/// Where pages are larger, [`Mapping::populate`] may find that its range begins inside one.
const PAGE: usize = 4096;

/// A sealed memory file, or a part of it, mapped shared, readable and writable.
///
/// Invariant I1: `[start, start + len)` stays mapped, readable and writable, for as long as this lives, whatever the
/// other processes that share the file do: its size is sealed, and only [`Drop`] unmaps it.
/// Invariant I2: `start` is aligned to a page, `len > 0`, `start + len` does not overflow and `len <= isize::MAX`.
#[derive(Debug)]
pub struct Mapping {
    start: NonNull<u8>,
    len: usize,
}

impl Mapping {
    /// Maps the first `bytes` bytes of `fd`, which may be closed afterwards.
    ///
    /// # Errors
    /// [`io::ErrorKind::InvalidData`] when `fd` fails [`memfd::check_sealed`]; `EINVAL` for zero bytes; `ENOMEM`;
    /// `EACCES` or `EPERM` when the file is not ours to write.
    pub fn new(fd: BorrowedFd<'_>, bytes: usize) -> io::Result<Mapping> {
        Mapping::part(fd, 0, bytes)
    }

    /// Maps `bytes` bytes of `fd` from `offset` on, a multiple of the page size.
    ///
    /// # Errors
    /// As [`Mapping::new`]; `EINVAL` for an offset inside a page.
    pub fn part(fd: BorrowedFd<'_>, offset: u64, bytes: usize) -> io::Result<Mapping> {
        let end = offset.checked_add(bytes as u64).ok_or(Errno::INVAL)?;
        memfd::check_sealed(fd, end)?;
        if bytes == 0 || isize::try_from(bytes).is_err() {
            return Err(Errno::INVAL.into());
        }
        let both = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: no address is asked for, so no memory that somebody owns is replaced.
        let start = unsafe { mmap(ptr::null_mut(), bytes, both, MapFlags::SHARED, fd, offset)? };
        let start = NonNull::new(start.cast()).ok_or(Errno::NOMEM)?;
        Ok(Mapping { start, len: bytes })
    }

    /// Maps `bytes` bytes of a socket's own memory, which the kernel keeps as long as it is mapped; `at` says which.
    ///
    /// # Errors
    /// The kernel's: `EINVAL` when the socket has no such memory or not so much, `ENODEV` when it has none at all.
    pub(crate) fn of_socket(fd: BorrowedFd<'_>, bytes: usize, at: u64) -> io::Result<Mapping> {
        if bytes == 0 || isize::try_from(bytes).is_err() || !is_socket(fd)? {
            return Err(Errno::INVAL.into());
        }
        let flags = MapFlags::SHARED | MapFlags::POPULATE;
        // SAFETY: no address is asked for, so no memory that somebody owns is replaced. I1: the memory behind a socket
        // is the kernel's, and no process can take it from under a mapping.
        let start = unsafe { mmap(ptr::null_mut(), bytes, ProtFlags::READ | ProtFlags::WRITE, flags, fd, at)? };
        let start = NonNull::new(start.cast()).ok_or(Errno::NOMEM)?;
        Ok(Mapping { start, len: bytes })
    }

    /// Has `[offset, offset + bytes)` of the memory put into huge pages, which are contiguous for devices too. What is in
    /// it stays; others may use it meanwhile.
    ///
    /// # Errors
    /// `EINVAL` outside the mapping, and before Linux 6.1; `ENOMEM`, `EAGAIN`, `EBUSY` when the kernel finds none.
    pub(crate) fn collapse(&self, offset: usize, bytes: usize) -> io::Result<()> {
        if offset.checked_add(bytes).is_none_or(|end| end > self.len) {
            return Err(Errno::INVAL.into());
        }
        // SAFETY: the range lies in the mapping (I1, I2), and collapsing changes no byte of it.
        match unsafe { libc::madvise(self.start.as_ptr().add(offset).cast(), bytes, libc::MADV_COLLAPSE) } {
            0 => Ok(()),
            _ => Err(io::Error::last_os_error()),
        }
    }

    /// Has the pages that `[offset, offset + bytes)` touches put into this mapping to be written, and memory made where
    /// there is none yet: one call in place of a fault for each. What is in them stays; others may use it meanwhile.
    ///
    /// # Errors
    /// `EINVAL` outside the mapping, and before Linux 5.14; `ENOMEM`, `EFAULT` when the kernel finds no memory.
    pub fn populate(&self, offset: usize, bytes: usize) -> io::Result<()> {
        let Some(end) = offset.checked_add(bytes).filter(|end| *end <= self.len) else {
            return Err(Errno::INVAL.into());
        };
        let from = offset - offset % PAGE;
        // SAFETY: the range lies in the mapping (I1; the last page of it is whole, too), begins at a page (I2), and no byte
        // of it changes.
        unsafe { madvise(self.start.as_ptr().add(from).cast(), end - from, Advice::LinuxPopulateWrite)? };
        Ok(())
    }

    /// Bytes mapped, never zero.
    #[allow(clippy::len_without_is_empty)] // It never is.
    #[inline]
    pub const fn len(&self) -> usize {
        self.len
    }

    /// The first byte. Others write these bytes at any time: use atomics and raw copies, never references.
    #[inline]
    pub const fn as_ptr(&self) -> *mut u8 {
        self.start.as_ptr()
    }
}

fn is_socket(fd: BorrowedFd<'_>) -> io::Result<bool> {
    Ok(FileType::from_raw_mode(fstat(fd)?.st_mode) == FileType::Socket)
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: by I1 and I2 the range is ours and was mapped as one piece; whoever uses the pointer keeps `self` alive.
        // It cannot fail for such a range, except for want of memory to split a merged one: then it just stays mapped.
        let _ = unsafe { munmap(self.start.as_ptr().cast(), self.len) };
    }
}

// SAFETY: a Mapping owns an address range, which belongs to the process and to no thread; any thread may unmap it.
unsafe impl Send for Mapping {}
// SAFETY: through `&Mapping` one gets two plain numbers. The bytes behind the pointer are reached only by the atomics
// and the raw copies of the crate that maps regions, which expects other writers on every byte.
unsafe impl Sync for Mapping {}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd;
    use std::sync::atomic::{AtomicU32, Ordering};

    use super::*;

    fn word(map: &Mapping, at: usize) -> &AtomicU32 {
        assert!(at.is_multiple_of(4) && at + 4 <= map.len());
        // SAFETY: in range (just checked), aligned (I2), mapped while `map` is borrowed (I1), and atomic.
        unsafe { AtomicU32::from_ptr(map.as_ptr().add(at).cast()) }
    }

    #[test]
    fn huge_pages_keep_what_is_in_memory() {
        let fd = memfd::create_sealed("test", 8 << 20).unwrap();
        let map = Mapping::new(fd.as_fd(), 8 << 20).unwrap();
        (0..2048).for_each(|page| word(&map, page * 4096).store(page as u32 + 1, Ordering::Relaxed));
        assert!(map.collapse(4096, 8 << 20).is_err(), "outside");
        if let Err(e) = map.collapse(0, 8 << 20) {
            eprintln!("skipped: this kernel has no huge pages for shared memory now: {e}");
            return;
        }
        assert!((0..2048).all(|page| word(&map, page * 4096).load(Ordering::Relaxed) == page as u32 + 1));
    }

    #[test]
    fn two_mappings_share_memory_and_outlive_the_fd() {
        let fd = memfd::create_sealed("test", 1 << 16).unwrap();
        let a = Mapping::new(fd.as_fd(), 1 << 16).unwrap();
        let b = Mapping::new(fd.as_fd(), 4096).unwrap();
        drop(fd);
        word(&a, 4092).store(7, Ordering::Relaxed);
        assert_eq!(word(&b, 4092).load(Ordering::Relaxed), 7);
        drop(a);
        assert_eq!(word(&b, 4092).load(Ordering::Relaxed), 7);
        assert_eq!(b.len(), 4096);
    }

    #[test]
    fn refuses_unsealed_short_and_empty() {
        let fd = memfd::create_sealed("test", 4096).unwrap();
        assert_eq!(Mapping::new(fd.as_fd(), 8192).unwrap_err().kind(), io::ErrorKind::InvalidData);
        assert_eq!(Mapping::new(fd.as_fd(), 0).unwrap_err().kind(), io::ErrorKind::InvalidInput);
        let file = std::fs::File::open("/dev/zero").unwrap();
        assert_eq!(Mapping::new(file.as_fd(), 4096).unwrap_err().kind(), io::ErrorKind::InvalidData);
    }

    #[test]
    fn populated_pages_are_there_and_keep_what_is_in_them() {
        let (page, pages) = (PAGE, 16);
        let fd = memfd::create_sealed("test", (pages * page) as u64).unwrap();
        let map = Mapping::new(fd.as_fd(), pages * page).unwrap();
        let bytes = || rustix::fs::fstat(&fd).unwrap().st_blocks * 512;
        word(&map, 2 * page).store(7, Ordering::Relaxed);
        if let Err(e) = map.populate(2 * page + 5, 3 * page) {
            eprintln!("skipped: an older kernel, or one with larger pages: {e}");
            return;
        }
        assert_eq!(bytes(), 4 * page as i64);
        assert_eq!(word(&map, 2 * page).load(Ordering::Relaxed), 7);
        assert!(map.populate(15 * page, page + 1).is_err() && map.populate(usize::MAX, 2).is_err());
        map.populate(15 * page, page).unwrap();
        assert_eq!(bytes(), 5 * page as i64);
    }

    #[test]
    fn crosses_threads() {
        let fd = memfd::create_sealed("test", 4096).unwrap();
        let map = Mapping::new(fd.as_fd(), 4096).unwrap();
        std::thread::scope(|s| {
            s.spawn(|| word(&map, 0).store(1, Ordering::Release));
        });
        assert_eq!(word(&map, 0).load(Ordering::Acquire), 1);
    }
}
