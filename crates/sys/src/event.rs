//! Waiting and waking: bells, ppoll, epoll.

use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::time::Duration;

use rustix::event::{Timespec, epoll, poll};
use rustix::io::Errno;
use rustix::time::{
    Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, timerfd_create, timerfd_gettime, timerfd_settime,
};

pub use rustix::event::epoll::EventFlags;
pub use rustix::event::{PollFd, PollFlags};

/// `TFD_IOC_SET_TICKS`: how often a timer went off, for those who wait for it.
const SET_TICKS: libc::Ioctl = rustix::ioctl::opcode::write::<u64>(b'T', 0) as libc::Ioctl;

/// Rung by one side, readable for the other until it is silenced: a timer that is set to go off at once, or to never.
///
/// Not an eventfd or a socket, because nobody who holds one may make another wait. An eventfd's write blocks once a holder
/// has cleared its `O_NONBLOCK` and filled the count; a socket's receive closes descriptors that a holder sent along, and
/// waits for a holder's receive that is stuck in a page fault. Setting a timer takes no data from anybody. A holder can
/// still set it wrongly, so who sleeps on a bell looks up now and then.
#[derive(Debug)]
pub struct Bell(OwnedFd);

impl Bell {
    /// A silent bell.
    ///
    /// # Errors
    /// `EMFILE`, `ENFILE`, `ENOMEM`.
    pub fn new() -> io::Result<Bell> {
        Ok(Bell(timerfd_create(TimerfdClockId::Monotonic, TimerfdFlags::CLOEXEC | TimerfdFlags::NONBLOCK)?))
    }

    /// Takes a bell that somebody else made.
    ///
    /// # Errors
    /// [`io::ErrorKind::InvalidData`] when it is none.
    pub fn from_fd(fd: OwnedFd) -> io::Result<Bell> {
        match timerfd_gettime(&fd) {
            Ok(_) => Ok(Bell(fd)),
            Err(_) => Err(io::Error::new(io::ErrorKind::InvalidData, "the descriptor received as a bell is none")),
        }
    }

    /// Rings: whoever waits wakes, and whoever waits later returns at once. One system call, never blocks.
    #[inline]
    pub fn ring(&self) {
        self.set(1);
    }

    /// The same, where the kernel can without an interrupt of the timer: for who has others to serve meanwhile.
    #[inline]
    pub fn ring_now(&self) {
        if !self.tick() {
            self.ring();
        }
    }

    /// Has the timer say that it went off, and wakes who waits for that, as its interrupt would. `false`: the kernel was
    /// built without `CHECKPOINT_RESTORE`, or a filter refuses.
    #[inline]
    fn tick(&self) -> bool {
        let once = 1_u64;
        // SAFETY: the descriptor is a timer (`new`, `from_fd`), and the kernel reads eight bytes, which live.
        unsafe { libc::ioctl(self.0.as_raw_fd(), SET_TICKS, &raw const once) == 0 }
    }

    /// Rings by itself after `time`, less than a second.
    #[inline]
    pub fn ring_after(&self, time: Duration) {
        self.set(i64::from(time.subsec_nanos()).max(1));
    }

    /// Silences it.
    #[inline]
    pub fn silence(&self) {
        self.set(0);
    }

    /// To go off in `ns` nanoseconds; 0 is never, and takes back that it went off.
    #[inline]
    fn set(&self, ns: i64) {
        let value = Timespec { tv_sec: 0, tv_nsec: ns };
        let once = Itimerspec { it_interval: Timespec { tv_sec: 0, tv_nsec: 0 }, it_value: value };
        // Cannot fail: it is a timer, and the time is one.
        let _ = timerfd_settime(&self.0, TimerfdTimerFlags::empty(), &once);
    }

    /// Another descriptor for the same bell, close-on-exec.
    ///
    /// # Errors
    /// `EMFILE`.
    pub fn try_clone(&self) -> io::Result<Bell> {
        Ok(Bell(self.0.try_clone()?))
    }
}

impl AsFd for Bell {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

impl From<Bell> for OwnedFd {
    fn from(bell: Bell) -> OwnedFd {
        bell.0
    }
}

/// Waits until one of `fds` has an event, or `timeout` (None: no limit; zero: just looks). Allocates nothing. The
/// events are in each [`PollFd::revents`]; the result is how many have any, 0 when the time ran out.
///
/// # Errors
/// [`io::ErrorKind::Interrupted`] when a signal handler ran: the caller decides whether that ends its wait.
#[inline]
pub fn wait_readable(fds: &mut [PollFd<'_>], timeout: Option<Duration>) -> io::Result<usize> {
    Ok(poll(fds, timeout.map(timespec).as_ref())?)
}

/// True when the other side of a socket or pipe is gone (all its duplicates are closed), or `fd` is in error.
pub fn hung_up(fd: BorrowedFd<'_>) -> bool {
    let gone = PollFlags::HUP | PollFlags::ERR | PollFlags::RDHUP;
    let mut fds = [PollFd::from_borrowed_fd(fd, PollFlags::RDHUP)];
    // A pending signal interrupts even a poll that does not wait.
    while let Err(error) = poll(&mut fds, Some(&Timespec { tv_sec: 0, tv_nsec: 0 })) {
        if error != Errno::INTR {
            return true;
        }
    }
    fds[0].revents().intersects(gone)
}

/// A set of descriptors to wait for, each with a token of the caller's. Level-triggered.
#[derive(Debug)]
pub struct Epoll(OwnedFd);

/// Events that one [`Epoll::wait`] takes from the kernel at most; the rest comes with the next.
const EVENTS: usize = 64;

impl Epoll {
    /// An empty set.
    ///
    /// # Errors
    /// `EMFILE`, `ENFILE`, `ENOMEM`.
    pub fn new() -> io::Result<Epoll> {
        Ok(Epoll(epoll::create(epoll::CreateFlags::CLOEXEC)?))
    }

    /// Adds `fd`. Hang-up and errors are reported always, even with neither `readable` nor `writable`.
    /// Delete a descriptor before you close it: the set holds on to what its duplicates keep open.
    ///
    /// # Errors
    /// `EEXIST`, `EPERM` (a kind of file that cannot be waited for), `ENOMEM`, `ENOSPC`.
    pub fn add(&self, fd: impl AsFd, token: u64, readable: bool, writable: bool) -> io::Result<()> {
        Ok(epoll::add(&self.0, fd, epoll::EventData::new_u64(token), interest(readable, writable))?)
    }

    /// Adds `fd` for reading, edge-triggered: it is told once for each time that something comes.
    ///
    /// # Errors
    /// As [`Epoll::add`].
    pub fn add_edge(&self, fd: impl AsFd, token: u64) -> io::Result<()> {
        Ok(epoll::add(&self.0, fd, epoll::EventData::new_u64(token), EventFlags::IN | EventFlags::ET)?)
    }

    /// Changes what `fd` is waited for, and its token.
    ///
    /// # Errors
    /// `ENOENT` when it was not added.
    pub fn modify(&self, fd: impl AsFd, token: u64, readable: bool, writable: bool) -> io::Result<()> {
        Ok(epoll::modify(&self.0, fd, epoll::EventData::new_u64(token), interest(readable, writable))?)
    }

    /// Waits until `fd` can be read, once: after that not any more, until this is said again. Adds it, if need be.
    ///
    /// # Errors
    /// As [`Epoll::add`].
    pub fn once(&self, fd: impl AsFd, token: u64) -> io::Result<()> {
        let (data, flags) = (epoll::EventData::new_u64(token), EventFlags::IN | EventFlags::ONESHOT);
        match epoll::modify(&self.0, fd.as_fd(), data, flags) {
            Err(Errno::NOENT) => Ok(epoll::add(&self.0, fd, data, flags)?),
            outcome => Ok(outcome?),
        }
    }

    /// Takes `fd` out.
    ///
    /// # Errors
    /// `ENOENT` when it was not added.
    pub fn delete(&self, fd: impl AsFd) -> io::Result<()> {
        Ok(epoll::delete(&self.0, fd)?)
    }

    /// Waits for events or `timeout` (None: no limit; rounded up to milliseconds, at most 24 days) and replaces the
    /// content of `events` by `(token, what happened)`, at most 64 of them; empty when the time ran out.
    ///
    /// # Errors
    /// [`io::ErrorKind::Interrupted`] when a signal handler ran; `events` is empty then.
    pub fn wait(&self, events: &mut Vec<(u64, EventFlags)>, timeout: Option<Duration>) -> io::Result<()> {
        events.clear();
        // More milliseconds than an i32 holds would need epoll_pwait2, which 5.10 does not have.
        let timeout = timeout.map(|t| timespec(t.min(Duration::from_millis(i32::MAX as u64))));
        let mut space = [MaybeUninit::<epoll::Event>::uninit(); EVENTS];
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

/// Durations beyond the kernel's range become its longest, which nobody lives to see.
fn timespec(duration: Duration) -> Timespec {
    Timespec { tv_sec: i64::try_from(duration.as_secs()).unwrap_or(i64::MAX), tv_nsec: duration.subsec_nanos().into() }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, Ordering};

    use rustix::pipe::pipe;

    use super::*;

    const LOOK: Option<Duration> = Some(Duration::ZERO);

    fn readable(fd: impl AsFd) -> bool {
        let mut fds = [PollFd::new(&fd, PollFlags::IN)];
        wait_readable(&mut fds, LOOK).unwrap() == 1 && fds[0].revents().contains(PollFlags::IN)
    }

    /// A bell that was rung goes off at once, but not within the call.
    fn rings(bell: &Bell) -> bool {
        wait_readable(&mut [PollFd::new(bell, PollFlags::IN)], Some(Duration::from_secs(10))).unwrap() == 1
    }

    #[test]
    fn bell_rings_until_silenced() {
        let bell = Bell::new().unwrap();
        let other = Bell::from_fd(bell.try_clone().unwrap().into()).unwrap();
        assert!(!readable(&bell));
        other.ring();
        other.ring();
        assert!(rings(&bell) && readable(&other));
        bell.silence();
        assert!(!readable(&bell) && !readable(&other));
    }

    #[test]
    fn a_bell_that_rings_now_is_like_any_other() {
        let bell = Bell::new().unwrap();
        for _ in 0..2 {
            bell.ring_now();
            bell.ring_now();
            assert!(rings(&bell));
            // Both ways of ringing are taken back by one silence, in either order.
            bell.ring();
            bell.ring_now();
            bell.silence();
            assert!(!readable(&bell));
        }
        if bell.tick() {
            assert!(readable(&bell), "within the call");
        } else {
            eprintln!("skipped: this kernel has no TFD_IOC_SET_TICKS");
        }
        // What was set before goes off as it would have.
        bell.silence();
        bell.ring_after(Duration::from_millis(1));
        bell.ring_now();
        assert!(rings(&bell));
    }

    #[test]
    fn ringing_now_wakes_a_sleeper() {
        let bell = Bell::new().unwrap();
        std::thread::scope(|s| {
            let sleeper = s.spawn(|| wait_readable(&mut [PollFd::new(&bell, PollFlags::IN)], None).unwrap());
            bell.ring_now();
            assert_eq!(sleeper.join().unwrap(), 1);
        });
    }

    #[test]
    fn a_holder_cannot_make_others_wait() {
        let bell = Bell::new().unwrap();
        let flags = rustix::fs::fcntl_getfl(&bell).unwrap();
        rustix::fs::fcntl_setfl(&bell, flags - rustix::fs::OFlags::NONBLOCK).unwrap();
        for _ in 0..1000 {
            bell.ring();
            bell.ring_now();
        }
        assert!(rings(&bell));
        bell.silence();
        assert!(!readable(&bell));
        bell.ring();
        assert!(rings(&bell));
    }

    #[test]
    fn what_is_no_bell_is_refused() {
        let (read, write) = pipe().unwrap();
        let file = tempfile::tempfile().unwrap();
        let null = std::fs::File::open("/dev/null").unwrap();
        let (socket, _other) = std::os::unix::net::UnixStream::pair().unwrap();
        let eventfd = rustix::event::eventfd(0, rustix::event::EventfdFlags::empty()).unwrap();
        for fd in [read, write, file.into(), null.into(), socket.into(), eventfd] {
            assert_eq!(Bell::from_fd(fd).unwrap_err().kind(), io::ErrorKind::InvalidData);
        }
    }

    #[test]
    fn ringing_wakes_a_sleeper() {
        let bell = Bell::new().unwrap();
        std::thread::scope(|s| {
            let sleeper = s.spawn(|| wait_readable(&mut [PollFd::new(&bell, PollFlags::IN)], None).unwrap());
            bell.ring();
            assert_eq!(sleeper.join().unwrap(), 1);
        });
    }

    #[test]
    fn a_signal_interrupts_the_wait() {
        extern "C" fn nothing(_: libc::c_int) {}
        let handler: extern "C" fn(libc::c_int) = nothing;
        // SAFETY: the handler does nothing, and no other test uses this signal.
        unsafe { libc::signal(libc::SIGUSR2, handler as *const () as libc::sighandler_t) };
        let (bell, done) = (Bell::new().unwrap(), AtomicBool::new(false));
        let (me, thread) = std::sync::mpsc::channel();
        std::thread::scope(|s| {
            let (bell, done) = (&bell, &done);
            let sleeper = s.spawn(move || {
                // SAFETY: no arguments.
                me.send(unsafe { libc::pthread_self() }).unwrap();
                let outcome = wait_readable(&mut [PollFd::new(bell, PollFlags::IN)], None);
                done.store(true, Ordering::Release);
                outcome.unwrap_err().kind()
            });
            let thread = thread.recv().unwrap();
            while !done.load(Ordering::Acquire) {
                // SAFETY: the thread is not joined yet, so its name is valid.
                unsafe { libc::pthread_kill(thread, libc::SIGUSR2) };
                std::thread::yield_now();
            }
            assert_eq!(sleeper.join().unwrap(), io::ErrorKind::Interrupted);
        });
    }

    #[test]
    fn hang_up_is_seen() {
        let (read, write) = pipe().unwrap();
        assert!(!hung_up(read.as_fd()) && !hung_up(write.as_fd()));
        drop(read);
        assert!(hung_up(write.as_fd()));
        assert!(!hung_up(Bell::new().unwrap().as_fd()));
    }

    #[test]
    fn epoll_tells_who_and_what() {
        let (set, mut events) = (Epoll::new().unwrap(), vec![(9, EventFlags::IN)]);
        let (a, b) = (Bell::new().unwrap(), Bell::new().unwrap());
        set.add(&a, 1, true, false).unwrap();
        set.add(&b, u64::MAX, true, false).unwrap();
        assert_eq!(set.add(&b, 3, true, false).unwrap_err().raw_os_error(), Some(libc::EEXIST));
        set.wait(&mut events, LOOK).unwrap();
        assert_eq!(events, []);
        b.ring();
        // Level-triggered: it is told again until it is silenced.
        for _ in 0..2 {
            set.wait(&mut events, None).unwrap();
            assert_eq!(events, [(u64::MAX, EventFlags::IN)]);
        }
        set.modify(&b, 5, true, true).unwrap();
        set.wait(&mut events, None).unwrap();
        assert_eq!(events, [(5, EventFlags::IN)]);
        set.delete(&b).unwrap();
        assert!(set.delete(&b).is_err());
        set.wait(&mut events, LOOK).unwrap();
        assert_eq!(events, []);
        set.wait(&mut events, Some(Duration::from_nanos(1))).unwrap();
    }

    #[test]
    fn what_is_waited_for_once_is_told_once() {
        let (set, mut events) = (Epoll::new().unwrap(), Vec::new());
        let bell = Bell::new().unwrap();
        for token in 1..3 {
            set.once(&bell, token).unwrap();
            bell.ring();
            set.wait(&mut events, None).unwrap();
            assert_eq!(events, [(token, EventFlags::IN)]);
            set.wait(&mut events, LOOK).unwrap();
            assert_eq!(events, []);
            bell.silence();
        }
        set.delete(&bell).unwrap();
    }

    #[test]
    fn epoll_tells_hang_up_unasked_and_takes_any_timeout() {
        let (set, mut events) = (Epoll::new().unwrap(), Vec::new());
        let (near, far) = std::os::unix::net::UnixStream::pair().unwrap();
        set.add(&near, 1, false, false).unwrap();
        drop(far);
        set.wait(&mut events, Some(Duration::MAX)).unwrap();
        let [(1, what)] = events[..] else { panic!("{events:?}") };
        assert!(what.contains(EventFlags::HUP | EventFlags::RDHUP));
    }

    #[test]
    fn more_events_than_one_wait_takes_come_with_the_next() {
        let (set, mut events, mut seen) = (Epoll::new().unwrap(), Vec::new(), std::collections::BTreeSet::new());
        let bells: Vec<Bell> = (0..EVENTS + 8).map(|_| Bell::new().unwrap()).collect();
        for (token, bell) in bells.iter().enumerate() {
            set.add(bell, token as u64, true, false).unwrap();
            bell.ring();
        }
        while seen.len() < bells.len() {
            set.wait(&mut events, None).unwrap();
            assert!(events.len() <= EVENTS);
            for &(token, _) in &events {
                bells[token as usize].silence();
                assert!(seen.insert(token));
            }
        }
    }
}
