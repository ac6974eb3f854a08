// SPDX-License-Identifier: BSD-2-Clause
//! Waiting for descriptors: `ppoll` and `epoll`.

use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Duration;

use rustix::event::{Timespec, epoll, poll};
use rustix::io::Errno;

pub use rustix::event::epoll::EventFlags;
pub use rustix::event::{PollFd, PollFlags};

use crate::tuning::EPOLL_EVENTS;

/// Waits until one of `fds` has an event, or for `timeout` (`None`: no limit; zero: returns at once). Allocates
/// nothing. Stores the events in each [`PollFd::revents`] and returns how many descriptors have any; 0 on timeout.
///
/// # Errors
/// [`io::ErrorKind::Interrupted`] if a signal handler ran: the caller decides whether that ends its wait.
#[inline]
pub fn wait_readable(fds: &mut [PollFd<'_>], timeout: Option<Duration>) -> io::Result<usize> {
    Ok(poll(fds, timeout.map(timespec).as_ref())?)
}

/// Returns true if the other end of a socket or pipe is closed (all its duplicates are closed), or `fd` is in error.
pub fn hung_up(fd: BorrowedFd<'_>) -> bool {
    let hang_up = PollFlags::HUP | PollFlags::ERR | PollFlags::RDHUP;
    let mut fds = [PollFd::from_borrowed_fd(fd, PollFlags::RDHUP)];
    // A pending signal interrupts even a poll that does not wait.
    while let Err(error) = poll(&mut fds, Some(&Timespec { tv_sec: 0, tv_nsec: 0 })) {
        if error != Errno::INTR {
            return true;
        }
    }
    fds[0].revents().intersects(hang_up)
}

/// An epoll set: descriptors, each with a token chosen by the caller. Level-triggered unless stated otherwise.
#[derive(Debug)]
pub struct Epoll(OwnedFd);

impl Epoll {
    /// Creates an empty set.
    ///
    /// # Errors
    /// `EMFILE`, `ENFILE`, `ENOMEM`.
    pub fn new() -> io::Result<Epoll> {
        Ok(Epoll(epoll::create(epoll::CreateFlags::CLOEXEC)?))
    }

    /// Adds `fd`. Hang-up and errors are always reported, even with neither `readable` nor `writable`.
    /// Delete a descriptor before you close it: the set refers to the open file, which duplicates keep open.
    ///
    /// # Errors
    /// `EEXIST`, `EPERM` (a kind of file that epoll does not support), `ENOMEM`, `ENOSPC`.
    pub fn add(&self, fd: impl AsFd, token: u64, readable: bool, writable: bool) -> io::Result<()> {
        Ok(epoll::add(&self.0, fd, epoll::EventData::new_u64(token), interest(readable, writable))?)
    }

    /// Adds `fd` for reading, edge-triggered: one event for each arrival.
    ///
    /// # Errors
    /// As [`Epoll::add`].
    pub fn add_edge(&self, fd: impl AsFd, token: u64) -> io::Result<()> {
        Ok(epoll::add(&self.0, fd, epoll::EventData::new_u64(token), interest(true, false) | EventFlags::ET)?)
    }

    /// Changes whether a descriptor that was added by [`Epoll::add_edge`] is also waited for to become writable. If it
    /// is ready now, an event follows at once.
    ///
    /// # Errors
    /// As [`Epoll::modify`].
    pub fn modify_edge(&self, fd: impl AsFd, token: u64, writable: bool) -> io::Result<()> {
        Ok(epoll::modify(&self.0, fd, epoll::EventData::new_u64(token), interest(true, writable) | EventFlags::ET)?)
    }

    /// Changes the events that `fd` is waited for, and its token.
    ///
    /// # Errors
    /// `ENOENT` if it was not added.
    pub fn modify(&self, fd: impl AsFd, token: u64, readable: bool, writable: bool) -> io::Result<()> {
        Ok(epoll::modify(&self.0, fd, epoll::EventData::new_u64(token), interest(readable, writable))?)
    }

    /// Arms `fd` for one read event (`EPOLLONESHOT`): after that event it is silent until armed again. Adds `fd` if
    /// needed.
    ///
    /// # Errors
    /// As [`Epoll::add`].
    pub fn arm_oneshot(&self, fd: impl AsFd, token: u64) -> io::Result<()> {
        let (data, flags) = (epoll::EventData::new_u64(token), EventFlags::IN | EventFlags::ONESHOT);
        match epoll::modify(&self.0, fd.as_fd(), data, flags) {
            Err(Errno::NOENT) => Ok(epoll::add(&self.0, fd, data, flags)?),
            outcome => Ok(outcome?),
        }
    }

    /// Removes `fd`.
    ///
    /// # Errors
    /// `ENOENT` if it was not added.
    pub fn delete(&self, fd: impl AsFd) -> io::Result<()> {
        Ok(epoll::delete(&self.0, fd)?)
    }

    /// Waits for events or for `timeout` (`None`: no limit; rounded up to milliseconds, at most 24 days) and replaces
    /// the content of `events` by `(token, events)`, at most [`EPOLL_EVENTS`] of them; empty on timeout.
    ///
    /// # Errors
    /// [`io::ErrorKind::Interrupted`] if a signal handler ran; `events` is empty then.
    pub fn wait(&self, events: &mut Vec<(u64, EventFlags)>, timeout: Option<Duration>) -> io::Result<()> {
        events.clear();
        // More milliseconds than an i32 holds would need epoll_pwait2, which 5.10 does not have.
        let timeout = timeout.map(|t| timespec(t.min(Duration::from_millis(i32::MAX as u64))));
        let mut space = [MaybeUninit::<epoll::Event>::uninit(); EPOLL_EVENTS];
        let (ready, _) = epoll::wait(&self.0, &mut space, timeout.as_ref())?;
        events.extend(ready.iter().map(|event| (event.data.u64(), event.flags)));
        Ok(())
    }
}

impl AsFd for Epoll {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

fn interest(readable: bool, writable: bool) -> EventFlags {
    let mut flags = EventFlags::RDHUP;
    flags.set(EventFlags::IN, readable);
    flags.set(EventFlags::OUT, writable);
    flags
}

/// Durations beyond the kernel's range become its longest.
fn timespec(duration: Duration) -> Timespec {
    Timespec { tv_sec: i64::try_from(duration.as_secs()).unwrap_or(i64::MAX), tv_nsec: duration.subsec_nanos().into() }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, Ordering};

    use rustix::pipe::pipe;

    use super::*;
    use crate::Doorbell;

    const NO_WAIT: Option<Duration> = Some(Duration::ZERO);

    #[test]
    fn a_signal_interrupts_the_wait() {
        extern "C" fn nothing(_: libc::c_int) {}
        let handler: extern "C" fn(libc::c_int) = nothing;
        // SAFETY: K6: the handler does nothing, and no other test uses this signal.
        unsafe { libc::signal(libc::SIGUSR2, handler as *const () as libc::sighandler_t) };
        let (doorbell, done) = (Doorbell::new().unwrap(), AtomicBool::new(false));
        let (me, thread) = std::sync::mpsc::channel();
        std::thread::scope(|s| {
            let (doorbell, done) = (&doorbell, &done);
            let waiter = s.spawn(move || {
                // SAFETY: K7.
                me.send(unsafe { libc::pthread_self() }).unwrap();
                let outcome = wait_readable(&mut [PollFd::new(doorbell, PollFlags::IN)], None);
                done.store(true, Ordering::Release);
                outcome.unwrap_err().kind()
            });
            let thread = thread.recv().unwrap();
            while !done.load(Ordering::Acquire) {
                // SAFETY: K7: the thread is not joined yet, so its number is valid.
                unsafe { libc::pthread_kill(thread, libc::SIGUSR2) };
                std::thread::yield_now();
            }
            assert_eq!(waiter.join().unwrap(), io::ErrorKind::Interrupted);
        });
    }

    #[test]
    fn a_closed_peer_is_reported() {
        let (read, write) = pipe().unwrap();
        assert!(!hung_up(read.as_fd()) && !hung_up(write.as_fd()));
        drop(read);
        assert!(hung_up(write.as_fd()));
        assert!(!hung_up(Doorbell::new().unwrap().as_fd()));
    }

    #[test]
    fn epoll_reports_token_and_events() {
        let (set, mut events) = (Epoll::new().unwrap(), vec![(9, EventFlags::IN)]);
        let (a, b) = (Doorbell::new().unwrap(), Doorbell::new().unwrap());
        set.add(&a, 1, true, false).unwrap();
        set.add(&b, u64::MAX, true, false).unwrap();
        assert_eq!(set.add(&b, 3, true, false).unwrap_err().raw_os_error(), Some(libc::EEXIST));
        set.wait(&mut events, NO_WAIT).unwrap();
        assert_eq!(events, []);
        b.notify();
        // Level-triggered: the event is reported again until the doorbell is cleared.
        for _ in 0..2 {
            set.wait(&mut events, None).unwrap();
            assert_eq!(events, [(u64::MAX, EventFlags::IN)]);
        }
        set.modify(&b, 5, true, true).unwrap();
        set.wait(&mut events, None).unwrap();
        assert_eq!(events, [(5, EventFlags::IN)]);
        set.delete(&b).unwrap();
        assert!(set.delete(&b).is_err());
        set.wait(&mut events, NO_WAIT).unwrap();
        assert_eq!(events, []);
        set.wait(&mut events, Some(Duration::from_nanos(1))).unwrap();
    }

    #[test]
    fn a_oneshot_event_is_reported_once() {
        let (set, mut events) = (Epoll::new().unwrap(), Vec::new());
        let doorbell = Doorbell::new().unwrap();
        for token in 1..3 {
            set.arm_oneshot(&doorbell, token).unwrap();
            doorbell.notify();
            set.wait(&mut events, None).unwrap();
            assert_eq!(events, [(token, EventFlags::IN)]);
            set.wait(&mut events, NO_WAIT).unwrap();
            assert_eq!(events, []);
            doorbell.clear();
        }
        set.delete(&doorbell).unwrap();
    }

    #[test]
    fn hang_up_is_always_reported_and_any_timeout_is_accepted() {
        let (set, mut events) = (Epoll::new().unwrap(), Vec::new());
        let (near, far) = std::os::unix::net::UnixStream::pair().unwrap();
        set.add(&near, 1, false, false).unwrap();
        drop(far);
        set.wait(&mut events, Some(Duration::MAX)).unwrap();
        let [(1, what)] = events[..] else { panic!("{events:?}") };
        assert!(what.contains(EventFlags::HUP | EventFlags::RDHUP));
    }

    #[test]
    fn events_beyond_one_wait_are_reported_by_the_next() {
        let (set, mut events, mut seen) = (Epoll::new().unwrap(), Vec::new(), std::collections::BTreeSet::new());
        let doorbells: Vec<Doorbell> = (0..EPOLL_EVENTS + 8).map(|_| Doorbell::new().unwrap()).collect();
        for (token, doorbell) in doorbells.iter().enumerate() {
            set.add(doorbell, token as u64, true, false).unwrap();
            doorbell.notify();
        }
        while seen.len() < doorbells.len() {
            set.wait(&mut events, None).unwrap();
            assert!(events.len() <= EPOLL_EVENTS);
            for &(token, _) in &events {
                doorbells[token as usize].clear();
                assert!(seen.insert(token));
            }
        }
    }
}
