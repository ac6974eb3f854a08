//! Eventfds of the program's: others write them to wake us, and we to wake others.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd, RawFd};

use rustix::io::{Errno, fcntl_dupfd_cloexec};

/// Another descriptor for the program's eventfd `fd`, close-on-exec.
///
/// # Errors
/// `EBADF` when it is not open; `EINVAL` when it is no eventfd; `EMFILE`.
pub fn duplicate(fd: RawFd) -> io::Result<OwnedFd> {
    if fd < 0 {
        return Err(Errno::BADF.into());
    }
    // SAFETY: the program keeps the descriptor open during its call; if it does not, the kernel says so.
    let fd = fcntl_dupfd_cloexec(unsafe { BorrowedFd::borrow_raw(fd) }, 0)?;
    use std::os::fd::AsRawFd;
    match std::fs::read_link(format!("/proc/self/fd/{}", fd.as_raw_fd())) {
        Ok(what) if what.as_os_str() != "anon_inode:[eventfd]" => Err(Errno::INVAL.into()),
        // Without /proc it cannot be told; a write of 8 bytes to something else is the program's wish.
        _ => Ok(fd),
    }
}

/// Wakes who waits for it. One that nobody has read for 2^64 - 2 times, and is blocking, would make us wait: its owner wishes
/// so.
pub fn signal(fd: impl AsFd) {
    let _ = rustix::io::write(fd, &1u64.to_ne_bytes());
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsRawFd;

    use rustix::event::{EventfdFlags, eventfd};

    use super::*;

    #[test]
    fn only_eventfds_are_taken() {
        let good = eventfd(0, EventfdFlags::NONBLOCK).unwrap();
        let copy = duplicate(good.as_raw_fd()).unwrap();
        signal(&copy);
        signal(&copy);
        let mut count = [0; 8];
        rustix::io::read(&good, &mut count).unwrap();
        assert_eq!(u64::from_ne_bytes(count), 2);
        let errno = |fd| duplicate(fd).unwrap_err().raw_os_error();
        assert_eq!(errno(-1), Some(libc::EBADF));
        assert_eq!(errno(i32::MAX), Some(libc::EBADF));
        let null = std::fs::File::open("/dev/null").unwrap();
        assert_eq!(errno(null.as_raw_fd()), Some(libc::EINVAL));
    }
}
