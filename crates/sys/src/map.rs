// SPDX-License-Identifier: BSD-2-Clause
//! Shared mappings.

use std::io;
use std::os::fd::BorrowedFd;
use std::ptr::{self, NonNull};

use rustix::fs::{FileType, fstat};
use rustix::io::Errno;
#[cfg(not(miri))]
use rustix::mm::munmap;
use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap};

#[cfg(not(miri))]
use crate::memfd;

/// Bytes of a page. Where pages are larger, [`Mapping::populate`] fails if its range begins inside one.
pub(crate) const PAGE: usize = 4096;

/// Most NUMA nodes: 1024, the most that Linux can be built for; a multiple of 64.
const MAX_NODES: usize = 1024;

/// A sealed memory file, or a part of it, mapped shared, readable and writable.
///
/// Rule K3: `[start, start + len)` stays mapped, readable and writable, for as long as the value exists, whatever other
/// processes that share the file do: its size is sealed, and only [`Drop`] unmaps it. Of [`Mapping::of_guest`] the size
/// is not sealed; an access to what the file has lost ends this process. `start` is aligned to a page, `len > 0`,
/// `start + len` does not overflow and `len <= isize::MAX`.
#[derive(Debug)]
pub struct Mapping {
    start: NonNull<u8>,
    len: usize,
}

impl Mapping {
    /// Maps the first `bytes` bytes of `fd`. The descriptor may be closed afterwards.
    ///
    /// # Errors
    /// [`io::ErrorKind::InvalidData`] if `fd` fails [`memfd::check_sealed`]; `EINVAL` for zero bytes; `ENOMEM`;
    /// `EACCES` or `EPERM` if this process may not write the file.
    pub fn new(fd: BorrowedFd<'_>, bytes: usize) -> io::Result<Mapping> {
        Mapping::part(fd, 0, bytes)
    }

    /// Maps `bytes` bytes of `fd` from `offset`, a multiple of the page size.
    ///
    /// # Errors
    /// As [`Mapping::new`]; `EINVAL` for an offset inside a page.
    #[cfg(not(miri))]
    pub fn part(fd: BorrowedFd<'_>, offset: u64, bytes: usize) -> io::Result<Mapping> {
        let end = offset.checked_add(bytes as u64).ok_or(Errno::INVAL)?;
        memfd::check_sealed(fd, end)?;
        if bytes == 0 || isize::try_from(bytes).is_err() {
            return Err(Errno::INVAL.into());
        }
        let both = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: K3: the kernel chooses a free address range, so no existing mapping is replaced.
        let start = unsafe { mmap(ptr::null_mut(), bytes, both, MapFlags::SHARED, fd, offset)? };
        let start = NonNull::new(start.cast()).ok_or(Errno::NOMEM)?;
        Ok(Mapping { start, len: bytes })
    }

    /// As above, under Miri, which has no memory files: memory of this process alone.
    ///
    /// # Errors
    /// `EINVAL` for zero bytes; `ENOMEM`.
    #[cfg(miri)]
    pub fn part(_fd: BorrowedFd<'_>, _offset: u64, bytes: usize) -> io::Result<Mapping> {
        let layout = std::alloc::Layout::from_size_align(bytes, PAGE).map_err(|_| Errno::INVAL)?;
        if bytes == 0 {
            return Err(Errno::INVAL.into());
        }
        // SAFETY: K3: the layout is not empty; `drop` frees it.
        let start = NonNull::new(unsafe { std::alloc::alloc_zeroed(layout) }).ok_or(Errno::NOMEM)?;
        Ok(Mapping { start, len: bytes })
    }

    /// Maps `bytes` bytes, from `offset`, of a file that a hypervisor sent as its guest's memory. The file need not be
    /// sealed: an access to pages that it has lost since ends this process by SIGBUS, as no handler is installed. So
    /// only a process that serves this guest alone may map it.
    ///
    /// # Errors
    /// [`io::ErrorKind::InvalidData`] if the file is shorter; `EINVAL` for zero bytes or an offset inside a page;
    /// `ENODEV` if it cannot be mapped; `ENOMEM`; `EACCES` if it may not be written.
    pub fn of_guest(fd: BorrowedFd<'_>, offset: u64, bytes: usize) -> io::Result<Mapping> {
        let end = offset.checked_add(bytes as u64).ok_or(Errno::INVAL)?;
        if bytes == 0 || isize::try_from(bytes).is_err() {
            return Err(Errno::INVAL.into());
        }
        if u64::try_from(fstat(fd)?.st_size).is_ok_and(|size| size < end) {
            return Err(io::Error::new(io::ErrorKind::InvalidData, "the file is shorter than the region"));
        }
        let flags = MapFlags::SHARED | MapFlags::NORESERVE;
        // SAFETY: K3: the kernel chooses a free address range, so no existing mapping is replaced. Bytes that the file
        // has lost are not readable: an access ends the process.
        let start = unsafe { mmap(ptr::null_mut(), bytes, ProtFlags::READ | ProtFlags::WRITE, flags, fd, offset)? };
        let start = NonNull::new(start.cast()).ok_or(Errno::NOMEM)?;
        Ok(Mapping { start, len: bytes })
    }

    /// Maps `bytes` bytes of a socket's ring memory, which the kernel keeps as long as it is mapped; `at` selects the
    /// ring.
    ///
    /// # Errors
    /// `EINVAL` if the socket has no such ring or a smaller one; `ENODEV` if it has no rings.
    pub(crate) fn of_socket(fd: BorrowedFd<'_>, bytes: usize, at: u64) -> io::Result<Mapping> {
        if bytes == 0 || isize::try_from(bytes).is_err() || !is_socket(fd)? {
            return Err(Errno::INVAL.into());
        }
        let flags = MapFlags::SHARED | MapFlags::POPULATE;
        // SAFETY: K3: the kernel chooses a free address range, so no existing mapping is replaced; the memory behind a
        // socket is the kernel's, and no process can remove it while it is mapped.
        let start = unsafe { mmap(ptr::null_mut(), bytes, ProtFlags::READ | ProtFlags::WRITE, flags, fd, at)? };
        let start = NonNull::new(start.cast()).ok_or(Errno::NOMEM)?;
        Ok(Mapping { start, len: bytes })
    }

    /// Maps the pages of `[offset, offset + bytes)` writable and allocates missing ones, in one call instead of one
    /// fault per page. The contents are preserved; other processes may use the memory meanwhile.
    ///
    /// # Errors
    /// `EINVAL` outside the mapping, and before Linux 5.14; `ENOMEM`, `EFAULT` if the kernel has no memory.
    pub fn populate(&self, offset: usize, bytes: usize) -> io::Result<()> {
        let Some(end) = offset.checked_add(bytes).filter(|end| *end <= self.len) else {
            return Err(Errno::INVAL.into());
        };
        let from = offset - offset % PAGE;
        // SAFETY: K3: the range lies in the mapping (whose last page is whole), begins at a page, and no byte of it
        // changes.
        unsafe { madvise(self.start.as_ptr().add(from).cast(), end - from, Advice::LinuxPopulateWrite)? };
        Ok(())
    }

    /// Lets pages that are allocated from now on, by any process that maps the file, come from a NUMA node if it has
    /// free memory.
    ///
    /// # Errors
    /// `EINVAL`: no such node; `ENOSYS`: the kernel has no NUMA.
    pub fn prefer_node(&self, node: u32) -> io::Result<()> {
        const BITS: usize = u64::BITS as usize;
        let mut nodes = [0u64; MAX_NODES / BITS];
        let node = node as usize;
        *nodes.get_mut(node / BITS).ok_or(Errno::INVAL)? = 1 << (node % BITS);
        let (start, mode, flags) = (self.start.as_ptr(), libc::MPOL_PREFERRED, 0);
        // The kernel reads one bit less than the number.
        let bits = MAX_NODES + 1;
        // SAFETY: K1, K3: the range lies in the mapping, no byte of it changes, and the kernel reads `MAX_NODES` bits.
        match unsafe { libc::syscall(libc::SYS_mbind, start, self.len, mode, nodes.as_ptr(), bits, flags) } {
            0 => Ok(()),
            _ => Err(io::Error::last_os_error()),
        }
    }

    /// Returns the bytes mapped; never zero.
    #[allow(clippy::len_without_is_empty)] // It never is.
    #[inline]
    pub const fn len(&self) -> usize {
        self.len
    }

    /// Returns the address of the first byte. Other processes write these bytes at any time: use atomics and raw
    /// copies, never references.
    #[inline]
    pub const fn as_ptr(&self) -> *mut u8 {
        self.start.as_ptr()
    }
}

fn is_socket(fd: BorrowedFd<'_>) -> io::Result<bool> {
    Ok(FileType::from_raw_mode(fstat(fd)?.st_mode) == FileType::Socket)
}

impl Drop for Mapping {
    #[cfg(miri)]
    fn drop(&mut self) {
        // SAFETY: K3: `part` allocated it with this layout.
        unsafe {
            std::alloc::dealloc(self.start.as_ptr(), std::alloc::Layout::from_size_align_unchecked(self.len, PAGE))
        };
    }

    #[cfg(not(miri))]
    fn drop(&mut self) {
        // SAFETY: K3: this value owns the range, which was mapped as one piece; users of the pointer borrow `self`.
        // It fails only if the kernel has no memory to split a merged range: then the range stays mapped.
        let _ = unsafe { munmap(self.start.as_ptr().cast(), self.len) };
    }
}

// SAFETY: K3: the address range belongs to the process, not to a thread; any thread may unmap it.
unsafe impl Send for Mapping {}
// SAFETY: K3: `&Mapping` gives access to two plain numbers. The bytes behind the pointer are accessed only by the
// atomics and raw copies of `unetmap-mem`, which expects concurrent writers on every byte.
unsafe impl Sync for Mapping {}

/// Asks for huge pages below memory of this process, which makes reads at random places faster. Pages that are touched
/// already stay as they are, and a kernel without huge pages ignores it.
pub fn prefer_huge_pages(start: *const u8, bytes: usize) {
    let from = start.addr().next_multiple_of(PAGE);
    let to = (start.addr() + bytes) / PAGE * PAGE;
    if from < to {
        // SAFETY: K3: no byte changes, whatever memory it is; the kernel refuses a range that is not mapped.
        let _ = unsafe { madvise(start.with_addr(from).cast_mut().cast(), to - from, Advice::LinuxHugepage) };
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd;
    use std::sync::atomic::{AtomicU32, Ordering};

    use super::*;

    fn word(map: &Mapping, at: usize) -> &AtomicU32 {
        assert!(at.is_multiple_of(4) && at + 4 <= map.len());
        // SAFETY: K3: in range (just checked), aligned, mapped while `map` is borrowed, and atomic.
        unsafe { AtomicU32::from_ptr(map.as_ptr().add(at).cast()) }
    }

    #[test]
    fn the_preferred_node_is_shown_in_numa_maps() {
        let fd = memfd::create_sealed("test-node", 1 << 16).unwrap();
        let map = Mapping::new(fd.as_fd(), 1 << 16).unwrap();
        assert_eq!(map.prefer_node(1 << 20).unwrap_err().kind(), io::ErrorKind::InvalidInput);
        let (Ok(()), Ok(maps)) = (map.prefer_node(0), std::fs::read_to_string("/proc/self/numa_maps")) else {
            eprintln!("skipped: this kernel has no NUMA");
            return;
        };
        let line = maps.lines().find(|line| line.contains("memfd:test-node")).unwrap_or_else(|| panic!("{maps}"));
        assert!(line.contains("prefer:0") || line.contains("prefer=static:0"), "{line}");
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
    fn unsealed_short_and_empty_files_are_refused() {
        let fd = memfd::create_sealed("test", 4096).unwrap();
        assert_eq!(Mapping::new(fd.as_fd(), 8192).unwrap_err().kind(), io::ErrorKind::InvalidData);
        assert_eq!(Mapping::new(fd.as_fd(), 0).unwrap_err().kind(), io::ErrorKind::InvalidInput);
        let file = std::fs::File::open("/dev/zero").unwrap();
        assert_eq!(Mapping::new(file.as_fd(), 4096).unwrap_err().kind(), io::ErrorKind::InvalidData);
    }

    #[test]
    fn populate_allocates_pages_and_preserves_contents() {
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
    fn a_mapping_is_shared_between_threads() {
        let fd = memfd::create_sealed("test", 4096).unwrap();
        let map = Mapping::new(fd.as_fd(), 4096).unwrap();
        std::thread::scope(|s| {
            s.spawn(|| word(&map, 0).store(1, Ordering::Release));
        });
        assert_eq!(word(&map, 0).load(Ordering::Acquire), 1);
    }
}
