// SPDX-License-Identifier: BSD-2-Clause
//! Eventfds created by the program: other processes write them to wake this one, and this process writes them to wake
//! others.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};

use rustix::io::{Errno, fcntl_dupfd_cloexec};

/// Duplicates the program's eventfd `fd`; the duplicate is close-on-exec.
///
/// # Errors
/// `EBADF` if it is not open; `EINVAL` if it is not an eventfd; `EMFILE`.
pub fn duplicate(fd: RawFd) -> io::Result<OwnedFd> {
    if fd < 0 {
        return Err(Errno::BADF.into());
    }
    // SAFETY: K2: borrowed for this call only; the program keeps the descriptor open, else the kernel answers EBADF.
    let fd = fcntl_dupfd_cloexec(unsafe { BorrowedFd::borrow_raw(fd) }, 0)?;
    if is_eventfd(&fd) { Ok(fd) } else { Err(Errno::INVAL.into()) }
}

/// Returns whether `fd` is an eventfd. Without /proc its kind cannot be found, and any descriptor counts as one: a
/// notification then writes 8 bytes to another kind of file.
pub fn is_eventfd(fd: impl AsFd) -> bool {
    let target = std::fs::read_link(format!("/proc/self/fd/{}", fd.as_fd().as_raw_fd()));
    target.map_or(true, |target| target.as_os_str() == "anon_inode:[eventfd]")
}

/// Adds 1 to the counter, which wakes all waiters. Blocks only on a blocking eventfd whose counter has reached
/// 2^64 - 2; its creator has chosen that.
pub fn signal(fd: impl AsFd) {
    let _ = rustix::io::write(fd, &1u64.to_ne_bytes());
}

/// Sets the counter to 0. Blocks only on a blocking eventfd whose counter is 0 already.
pub fn clear(fd: impl AsFd) {
    let _ = rustix::io::read(fd, &mut [0; 8]);
}

#[cfg(test)]
mod tests {
    use rustix::event::{EventfdFlags, eventfd};

    use super::*;

    #[test]
    fn only_eventfds_are_accepted() {
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
