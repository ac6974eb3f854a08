// SPDX-License-Identifier: BSD-2-Clause
//! Doorbells: a timerfd that one process makes readable to wake another.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use rustix::time::{
    Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec, timerfd_create, timerfd_gettime,
    timerfd_settime,
};

use crate::in_place;

/// `TFD_IOC_SET_TICKS`: sets the number of expirations that a reader sees.
const SET_TICKS: libc::Ioctl = rustix::ioctl::opcode::write::<u64>(b'T', 0) as libc::Ioctl;

/// A notification that stays readable until it is cleared: a timer that is marked as expired, or set to expire at once.
///
/// It is not an eventfd or a socket, because no holder of the descriptor may be able to block another. A write to an
/// eventfd blocks once a holder has cleared its `O_NONBLOCK` and filled the counter; a receive on a socket closes
/// descriptors that a holder sent along, and waits for a holder's receive that is stuck in a page fault. Setting a
/// timer reads no data of another process. A holder can still set it wrongly, so a process that sleeps on a doorbell
/// polls its rings from time to time.
#[derive(Debug)]
pub struct Doorbell {
    fd: OwnedFd,
    /// How often this process notified by this value.
    notified: AtomicU64,
}

impl Doorbell {
    /// Creates a doorbell that is not notified.
    ///
    /// # Errors
    /// `EMFILE`, `ENFILE`, `ENOMEM`.
    pub fn new() -> io::Result<Doorbell> {
        let flags = TimerfdFlags::CLOEXEC | TimerfdFlags::NONBLOCK;
        Ok(Doorbell::of(timerfd_create(TimerfdClockId::Monotonic, flags)?))
    }

    /// Accepts a doorbell that another process created.
    ///
    /// # Errors
    /// [`io::ErrorKind::InvalidData`] if `fd` is not a timerfd.
    pub fn from_fd(fd: OwnedFd) -> io::Result<Doorbell> {
        match timerfd_gettime(&fd) {
            Ok(_) => Ok(Doorbell::of(fd)),
            Err(_) => Err(io::Error::new(
                io::ErrorKind::InvalidData,
                "the descriptor received as a doorbell is not a timerfd",
            )),
        }
    }

    fn of(fd: OwnedFd) -> Doorbell {
        Doorbell { fd, notified: AtomicU64::new(0) }
    }

    /// Returns how often [`Doorbell::notify`] was called on this value, by this process.
    pub fn notified(&self) -> u64 {
        self.notified.load(Relaxed)
    }

    /// Makes it readable: wakes current waiters, and later waits return at once. Never blocks. One system call, which
    /// programs no timer; a second one where the kernel lacks the first, and there a timer interrupt wakes the waiters.
    #[inline]
    pub fn notify(&self) {
        self.notified.fetch_add(1, Relaxed);
        if !self.set_ticks() {
            self.set(1);
        }
    }

    /// Sets one expiration and wakes waiters, as the timer's interrupt would. Returns `false` if the kernel was built
    /// without `CHECKPOINT_RESTORE`, or a filter refuses.
    #[inline]
    pub fn set_ticks(&self) -> bool {
        let once = 1_u64;
        // SAFETY: K1, K5: the descriptor is a timerfd (`new`, `from_fd`), for which the kernel reads eight bytes.
        unsafe { libc::ioctl(self.fd.as_raw_fd(), SET_TICKS, &raw const once) == 0 }
    }

    /// Notifies after `time`, which is less than a second.
    #[inline]
    pub fn notify_after(&self, time: Duration) {
        self.set(i64::from(time.subsec_nanos()).max(1));
    }

    /// Makes it not readable, and cancels [`Doorbell::notify_after`].
    #[inline]
    pub fn clear(&self) {
        self.set(0);
    }

    /// Sets the timer to expire in `ns` nanoseconds; 0 disarms it and discards its expirations.
    #[inline]
    fn set(&self, ns: i64) {
        let value = Timespec { tv_sec: 0, tv_nsec: ns };
        let once = Itimerspec { it_interval: Timespec { tv_sec: 0, tv_nsec: 0 }, it_value: value };
        // Cannot fail: the descriptor is a timerfd, and the time is valid.
        let _ = timerfd_settime(&self.fd, TimerfdTimerFlags::empty(), &once);
    }

    /// Has this value be another doorbell from now on, under the same descriptor number.
    ///
    /// # Errors
    /// As [`Doorbell::from_fd`], and those of `dup3`.
    pub fn replace(&self, new: OwnedFd) -> io::Result<()> {
        in_place::replace_fd(self.fd.as_fd(), Doorbell::from_fd(new)?.into())
    }

    /// Duplicates the descriptor; the duplicate is close-on-exec.
    ///
    /// # Errors
    /// `EMFILE`.
    pub fn try_clone(&self) -> io::Result<Doorbell> {
        Ok(Doorbell::of(self.fd.try_clone()?))
    }
}

impl AsFd for Doorbell {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

impl From<Doorbell> for OwnedFd {
    fn from(doorbell: Doorbell) -> OwnedFd {
        doorbell.fd
    }
}

#[cfg(test)]
mod tests {
    use rustix::pipe::pipe;

    use super::*;
    use crate::event::{PollFd, PollFlags, wait_readable};

    fn readable(fd: impl AsFd) -> bool {
        let mut fds = [PollFd::new(&fd, PollFlags::IN)];
        wait_readable(&mut fds, Some(Duration::ZERO)).unwrap() == 1 && fds[0].revents().contains(PollFlags::IN)
    }

    /// A notified timer expires at once, but not necessarily within the call.
    fn becomes_readable(doorbell: &Doorbell) -> bool {
        wait_readable(&mut [PollFd::new(doorbell, PollFlags::IN)], Some(Duration::from_secs(10))).unwrap() == 1
    }

    #[test]
    fn a_doorbell_stays_readable_until_it_is_cleared() {
        let doorbell = Doorbell::new().unwrap();
        let other = Doorbell::from_fd(doorbell.try_clone().unwrap().into()).unwrap();
        assert!(!readable(&doorbell));
        other.notify();
        other.notify();
        assert!(becomes_readable(&doorbell) && readable(&other));
        doorbell.clear();
        assert!(!readable(&doorbell) && !readable(&other));
    }

    #[test]
    fn a_timer_has_the_same_effect_where_the_kernel_cannot_set_ticks() {
        let doorbell = Doorbell::new().unwrap();
        for _ in 0..2 {
            doorbell.set(1);
            assert!(becomes_readable(&doorbell));
            // One clear discards both kinds of notification.
            doorbell.notify();
            doorbell.clear();
            assert!(!readable(&doorbell));
        }
        // A timer that was set before still expires.
        doorbell.notify_after(Duration::from_millis(1));
        doorbell.notify();
        assert!(becomes_readable(&doorbell));
    }

    #[test]
    fn notify_programs_no_timer() {
        let doorbell = Doorbell::new().unwrap();
        if !doorbell.set_ticks() {
            eprintln!("skipped: this kernel has no TFD_IOC_SET_TICKS");
            return;
        }
        doorbell.clear();
        doorbell.notify();
        assert!(readable(&doorbell), "not readable within the call");
        doorbell.clear();
        assert!(!readable(&doorbell));
    }

    #[test]
    fn a_holder_cannot_block_the_other_holders() {
        let doorbell = Doorbell::new().unwrap();
        let flags = rustix::fs::fcntl_getfl(&doorbell).unwrap();
        rustix::fs::fcntl_setfl(&doorbell, flags - rustix::fs::OFlags::NONBLOCK).unwrap();
        for _ in 0..1000 {
            doorbell.notify();
            doorbell.set(1);
        }
        assert!(becomes_readable(&doorbell));
        doorbell.clear();
        assert!(!readable(&doorbell));
        doorbell.notify();
        assert!(becomes_readable(&doorbell));
    }

    #[test]
    fn other_kinds_of_descriptors_are_refused() {
        let (read, write) = pipe().unwrap();
        let file = tempfile::tempfile().unwrap();
        let null = std::fs::File::open("/dev/null").unwrap();
        let (socket, _other) = std::os::unix::net::UnixStream::pair().unwrap();
        let eventfd = rustix::event::eventfd(0, rustix::event::EventfdFlags::empty()).unwrap();
        for fd in [read, write, file.into(), null.into(), socket.into(), eventfd] {
            assert_eq!(Doorbell::from_fd(fd).unwrap_err().kind(), io::ErrorKind::InvalidData);
        }
    }

    #[test]
    fn notify_wakes_a_waiter() {
        let doorbell = Doorbell::new().unwrap();
        std::thread::scope(|s| {
            let waiter = s.spawn(|| wait_readable(&mut [PollFd::new(&doorbell, PollFlags::IN)], None).unwrap());
            doorbell.notify();
            assert_eq!(waiter.join().unwrap(), 1);
        });
    }
}
