// SPDX-License-Identifier: BSD-2-Clause
//! Sealed memory files (memfd): memory that several processes map and that no process can shrink under another.

use std::io;
use std::os::fd::{AsFd, AsRawFd as _, BorrowedFd, OwnedFd};
use std::sync::OnceLock;

use rustix::fs::{
    FallocateFlags, IFlags, MemfdFlags, Mode, OFlags, SealFlags, fallocate, fchmod, fcntl_add_seals, fcntl_get_seals,
    fstat, fstatfs, ftruncate, ioctl_setflags, memfd_create, open,
};
use rustix::io::Errno;

/// Seals that make a mapping of the file safe: its size cannot change any more.
const SIZE_SEALS: SealFlags = SealFlags::SHRINK.union(SealFlags::GROW);

/// `f_type` of the file system behind memory files of base pages.
const TMPFS_MAGIC: rustix::fs::FsWord = 0x0102_1994;

/// Returns an empty file that [`forbid_removal`] has made immutable, since [`keep_pages`].
static SOURCE: OnceLock<fn() -> io::Result<OwnedFd>> = OnceLock::new();

/// From now on, nobody can remove pages of the files that this process creates, nor itself: `fallocate` and
/// `MADV_REMOVE` fail with `EPERM`. An access to such a page would wait for as long as its removal takes. `source`
/// returns a new file of [`create_unsealed`] that [`forbid_removal`] has made immutable.
pub fn keep_pages(source: fn() -> io::Result<OwnedFd>) {
    let _ = SOURCE.set(source);
}

/// Makes a file immutable: nobody can open it for writing, or change where it has pages. What is open or mapped stays
/// writable, and the descriptor can be mapped, given a size and sealed.
///
/// # Errors
/// `EPERM` without CAP_LINUX_IMMUTABLE, or CAP_FOWNER if the file is another user's; `ENOTTY` or `EOPNOTSUPP` before
/// Linux 6.0, or without CONFIG_TMPFS_XATTR; `InvalidData` if it is no memory file that can be sealed.
pub fn forbid_removal(fd: BorrowedFd<'_>) -> io::Result<()> {
    // Files that have a name in a file system can never be sealed.
    if !fcntl_get_seals(fd).is_ok_and(|seals| !seals.contains(SealFlags::SEAL)) {
        return Err(io::Error::new(io::ErrorKind::InvalidData, "this is no memory file that can be sealed"));
    }
    Ok(ioctl_setflags(fd, IFlags::IMMUTABLE)?)
}

/// Creates a memory file of `bytes` bytes (a multiple of the page size; it is not rounded up), all zero, with no page
/// resident, and seals its size. `name` is shown in `/proc/PID/maps`, unless the file comes from the source of
/// [`keep_pages`]: at most 249 bytes, no NUL.
///
/// # Errors
/// `EINVAL` for a bad name or a size of zero, `EFBIG`, `EMFILE`, `ENFILE`, `ENOMEM`; those of the source.
pub fn create_sealed(name: &str, bytes: u64) -> io::Result<OwnedFd> {
    if bytes == 0 {
        return Err(Errno::INVAL.into());
    }
    // Miri has no memory files; `Mapping` allocates the memory.
    if cfg!(miri) {
        return Ok(std::fs::File::open("/dev/null")?.into());
    }
    let fd = SOURCE.get().map_or_else(|| create_unsealed(name), |source| source())?;
    ftruncate(&fd, bytes)?;
    fcntl_add_seals(&fd, SIZE_SEALS | SealFlags::SEAL)?;
    Ok(fd)
}

/// Creates a memory file that is empty, and can grow.
///
/// # Errors
/// `EINVAL` for a bad name, `EMFILE`, `ENFILE`, `ENOMEM`.
pub fn create_unsealed(name: &str) -> io::Result<OwnedFd> {
    let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
    // Linux before 6.3 answers NOEXEC_SEAL with EINVAL; a bad name fails in both calls.
    Ok(match memfd_create(name, flags | MemfdFlags::NOEXEC_SEAL) {
        Err(Errno::INVAL) => memfd_create(name, flags)?,
        other => other?,
    })
}

/// Whether it is a memory file: reading it waits for no other process.
pub fn is_memory_file(fd: impl AsFd) -> bool {
    fcntl_get_seals(fd).is_ok()
}

/// Checks a file that another process created, before it is mapped: it must be a memory file of base pages, of at least
/// `bytes` bytes, sealed against shrinking and growing. Without the seal its owner could truncate it, and the next
/// access through a mapping would be a SIGBUS; so could a file of huge pages when their pool is exhausted.
///
/// # Errors
/// [`io::ErrorKind::InvalidData`] with a sentence that names the failed condition.
pub fn check_sealed(fd: BorrowedFd<'_>, bytes: u64) -> io::Result<()> {
    let refuse = |why: String| Err(io::Error::new(io::ErrorKind::InvalidData, why));
    // Only memory files can be sealed; every other kind of file answers EINVAL (EBADF for O_PATH).
    let Ok(seals) = fcntl_get_seals(fd) else {
        return refuse("the shared memory is not a memory file (memfd): it could be truncated while mapped".into());
    };
    if !seals.contains(SIZE_SEALS) {
        return refuse(
            "the shared memory is not sealed against shrinking and growing: it could be truncated while mapped".into(),
        );
    }
    if fstatfs(fd)?.f_type != TMPFS_MAGIC {
        return refuse(
            "the shared memory consists of huge pages: their pool could be exhausted while it is mapped".into(),
        );
    }
    let has = size(fd)?;
    if has < bytes {
        return refuse(format!("the shared memory has {has} bytes, fewer than the {bytes} that were announced"));
    }
    Ok(())
}

/// Returns the bytes of memory that the file occupies: whole pages that were touched and not punched out, swap
/// included.
///
/// # Errors
/// The errors of `fstat`.
pub fn resident_bytes(fd: impl AsFd) -> io::Result<u64> {
    Ok(fstat(fd)?.st_blocks.cast_unsigned() * 512)
}

/// Returns the memory of `[offset, offset + bytes)` to the kernel; it reads as zero afterwards.
///
/// # Errors
/// `EINVAL` if `bytes` is 0; `EFBIG`; `EPERM` if [`keep_pages`] forbids it.
pub fn punch(fd: BorrowedFd<'_>, offset: u64, bytes: u64) -> io::Result<()> {
    Ok(fallocate(fd, FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE, offset, bytes)?)
}

/// Returns a descriptor by which a file of [`create_unsealed`] can only be read, also by other users: they cannot write
/// to it, seal it, or keep it locked while they do so.
///
/// # Errors
/// The errors of opening it again, by `/proc`.
pub fn read_only(fd: impl AsFd) -> io::Result<OwnedFd> {
    let fd = fd.as_fd();
    fchmod(fd, Mode::RUSR)?;
    let path = format!("/proc/self/fd/{}", fd.as_raw_fd());
    Ok(open(path, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())?)
}

fn size(fd: BorrowedFd<'_>) -> io::Result<u64> {
    Ok(fstat(fd)?.st_size.cast_unsigned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_size_of_a_sealed_file_is_final() {
        let fd = create_sealed("test", 8192).unwrap();
        assert_eq!(size(fd.as_fd()).unwrap(), 8192);
        assert_eq!(ftruncate(&fd, 4096), Err(Errno::PERM));
        assert_eq!(ftruncate(&fd, 16384), Err(Errno::PERM));
        assert_eq!(fcntl_add_seals(&fd, SealFlags::WRITE), Err(Errno::PERM));
        check_sealed(fd.as_fd(), 8192).unwrap();
    }

    #[test]
    fn pages_of_an_immutable_file_stay_and_can_be_written() {
        let fd = create_unsealed("test").unwrap();
        if let Err(e) = forbid_removal(fd.as_fd()) {
            return eprintln!("skipped: only root, on Linux 6.0 and later, can make files immutable: {e}");
        }
        ftruncate(&fd, 8192).unwrap();
        fcntl_add_seals(&fd, SIZE_SEALS | SealFlags::SEAL).unwrap();
        let map = crate::Mapping::new(fd.as_fd(), 8192).unwrap();
        rustix::io::pwrite(&fd, b"x", 0).unwrap();
        assert_eq!(punch(fd.as_fd(), 0, 4096).unwrap_err().kind(), io::ErrorKind::PermissionDenied);
        assert_eq!(fallocate(&fd, FallocateFlags::KEEP_SIZE, 0, 4096), Err(Errno::PERM));
        drop(map);
        assert_eq!(resident_bytes(&fd).unwrap(), 4096);
    }

    #[test]
    fn a_file_that_others_read_is_read_only() {
        let fd = create_unsealed("test").unwrap();
        rustix::io::pwrite(&fd, b"text", 0).unwrap();
        let theirs = read_only(&fd).unwrap();
        let mut text = [0; 4];
        assert_eq!((rustix::io::pread(&theirs, &mut text, 0).unwrap(), &text), (4, b"text"));
        assert!(rustix::io::pwrite(&theirs, b"x", 0).is_err() && ftruncate(&theirs, 0).is_err());
        assert_eq!(fcntl_add_seals(&theirs, SIZE_SEALS), Err(Errno::PERM));
        assert_eq!(fstat(&theirs).unwrap().st_mode & 0o777, 0o400);
    }

    #[test]
    fn only_memory_files_that_can_be_sealed_become_immutable() {
        let named = tempfile::tempfile_in("/dev/shm").unwrap();
        for fd in [named.as_fd(), std::fs::File::open("/dev/null").unwrap().as_fd()] {
            assert_eq!(forbid_removal(fd).unwrap_err().kind(), io::ErrorKind::InvalidData);
        }
    }

    #[test]
    fn unsealed_short_and_other_files_are_refused() {
        let kind = |fd: BorrowedFd<'_>, bytes| check_sealed(fd, bytes).unwrap_err().kind();
        let sealed = create_sealed("test", 4096).unwrap();
        assert_eq!(kind(sealed.as_fd(), 4097), io::ErrorKind::InvalidData);

        let open = memfd_create("test", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING).unwrap();
        ftruncate(&open, 4096).unwrap();
        assert_eq!(kind(open.as_fd(), 4096), io::ErrorKind::InvalidData);
        fcntl_add_seals(&open, SealFlags::GROW).unwrap();
        assert_eq!(kind(open.as_fd(), 4096), io::ErrorKind::InvalidData);
        fcntl_add_seals(&open, SealFlags::SHRINK).unwrap();
        check_sealed(open.as_fd(), 4096).unwrap();

        let null = std::fs::File::open("/dev/null").unwrap();
        assert_eq!(kind(null.as_fd(), 0), io::ErrorKind::InvalidData);
    }

    #[test]
    fn invalid_names_and_sizes_are_errors() {
        assert!(create_sealed("nul\0inside", 4096).is_err());
        assert!(create_sealed(&"x".repeat(300), 4096).is_err());
        assert!(create_sealed("empty", 0).is_err());
    }

    #[test]
    fn untouched_pages_occupy_no_memory() {
        let fd = create_sealed("test", 1 << 30).unwrap();
        assert_eq!(resident_bytes(&fd).unwrap(), 0);
        rustix::io::pwrite(&fd, b"x", 1 << 20).unwrap();
        let one = resident_bytes(&fd).unwrap();
        assert!(one > 0 && one < 1 << 30, "{one}");
    }
}
