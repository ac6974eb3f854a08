//! Readiness: what poll, select and epoll ask about a netmap file. It is `preload/wait.c` that waits.

use std::ffi::{c_int, c_short, c_uint};
use std::os::fd::AsRawFd;
use std::time::{Duration, Instant};

use unetmap_core::{Error, Interest, Port};
use unetmap_sys::event;

use crate::calls::{call, still};
use crate::files::{borrowed, with_known_port};
use crate::said::told;

/// `POLLIN`, `POLLOUT` and their twins.
const READ: c_short = libc::POLLIN | libc::POLLRDNORM;
const WRITE: c_short = libc::POLLOUT | libc::POLLWRNORM;

fn interest(events: c_short) -> Interest {
    let rx = if events & READ != 0 { Interest::RX } else { Interest::NONE };
    let tx = if events & WRITE != 0 { Interest::TX } else { Interest::NONE };
    rx | tx
}

/// What poll tells the program.
#[inline(always)]
fn revents(events: c_short, ready: Result<Interest, Error>) -> c_short {
    match &ready {
        Err(e) => wrong(e),
        Ok(ready) => {
            let read = if ready.rx() { events & READ } else { 0 };
            let write = if ready.tx() { events & WRITE } else { 0 };
            read | write
        }
    }
}

#[cold]
fn wrong(e: &Error) -> c_short {
    told(e);
    libc::POLLERR
}

/// Runs `body` on the port; without one, and on errors, the answer is POLLERR; `-EBADF` if `fd` is no netmap file any more.
#[inline(always)]
fn on_port(fd: c_int, events: c_short, mut body: impl FnMut(&Port, Interest) -> Result<Interest, Error>) -> c_int {
    let want = interest(events);
    call(|| {
        // An error is large, and copying it where there is none costs as much as the look: it is judged where it is made.
        let known = with_known_port(fd, |attached| revents(events, body(&attached.port, want)));
        if let Some(got) = known {
            return Ok(c_int::from(got));
        }
        Ok(c_int::from(match still(fd)?.port(fd) {
            Ok(Some(attached)) => revents(events, body(&attached.port, want)),
            Ok(None) => libc::POLLERR,
            Err(e) => revents(events, Err(e)),
        }))
    })
}

/// `poll` of one netmap file, without waiting: the events.
#[unsafe(no_mangle)]
pub extern "C" fn unetmap_poll_now(fd: c_int, events: c_short) -> c_int {
    on_port(fd, events, |port, want| port.poll(want, Some(Duration::ZERO)))
}

/// The same, looking again and again for at most `ns` nanoseconds.
#[unsafe(no_mangle)]
pub extern "C" fn unetmap_poll_spin(fd: c_int, events: c_short, ns: u32) -> c_int {
    on_port(fd, events, |port, want| port.spin(want, Duration::from_nanos(ns.into())))
}

/// Whether `fd` is still a netmap file: it may have been closed by a way that has no hook. If not, it is forgotten.
#[unsafe(no_mangle)]
pub extern "C" fn unetmap_fd_is_netmap(fd: c_int) -> c_int {
    call(|| Ok(c_int::from(still(fd).is_ok())))
}

/// `poll` of one netmap file, for at most `limit` nanoseconds (negative: no limit). The events; `-EINTR` when a signal
/// came first.
#[unsafe(no_mangle)]
pub extern "C" fn unetmap_poll(fd: c_int, events: c_short, limit: i64) -> c_int {
    let got = unetmap_poll_now(fd, events);
    if got != 0 || limit == 0 {
        return got;
    }
    let limit = u64::try_from(limit).ok().map(Duration::from_nanos);
    call(|| {
        // Counted, as this waits.
        let open = still(fd)?;
        let Ok(Some(attached)) = open.port(fd) else { return Ok(c_int::from(libc::POLLERR)) };
        let start = Instant::now();
        let ready = attached.port.poll(interest(events), limit);
        let nothing = ready.as_ref().is_ok_and(|ready| ready.is_none());
        if nothing && limit.is_none_or(|limit| start.elapsed() < limit) {
            return Err(libc::EINTR);
        }
        Ok(c_int::from(revents(events, ready)))
    })
}

/// Prepares for a wait: if nothing is ready (the result is 0), descriptors to wait on for POLLIN are written to `wait`,
/// at most `room`, and their number to `used`.
///
/// # Safety
/// `wait` has room for so many, `used` for one.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn unetmap_arm(
    fd: c_int,
    events: c_short,
    wait: *mut libc::pollfd,
    room: c_uint,
    used: *mut c_uint,
) -> c_int {
    // SAFETY: the caller's promise.
    unsafe { arm(fd, events, Port::arm, wait, room, used) }
}

/// The same for what comes next, whatever is ready already: only what is wrong is an event here.
///
/// # Safety
/// As [`unetmap_arm`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn unetmap_arm_for_more(
    fd: c_int,
    events: c_short,
    wait: *mut libc::pollfd,
    room: c_uint,
    used: *mut c_uint,
) -> c_int {
    let arm_it = |port: &Port, want| port.arm_for_more(want).map(|()| Interest::NONE);
    // SAFETY: the caller's promise.
    unsafe { arm(fd, events, arm_it, wait, room, used) }
}

unsafe fn arm(
    fd: c_int,
    events: c_short,
    arm_it: impl Fn(&Port, Interest) -> Result<Interest, Error>,
    wait: *mut libc::pollfd,
    room: c_uint,
    used: *mut c_uint,
) -> c_int {
    let mut n = 0;
    let mut add = |fd, events| {
        if n < room {
            // SAFETY: below `room`, by the caller's promise.
            unsafe { wait.add(n as usize).write(libc::pollfd { fd, events, revents: 0 }) };
            n += 1;
        }
    };
    let got = on_port(fd, events, |port, want| {
        if event::hung_up(borrowed(fd)) {
            return Err(port.shut_down());
        }
        let ready = arm_it(port, want)?;
        if ready.is_none() {
            port.each_wait_fd(want, |bell| add(bell.as_raw_fd(), libc::POLLIN));
            // The file itself for its hang-up alone, so that who sleeps learns of it at once.
            add(fd, 0);
        }
        Ok(ready)
    });
    // SAFETY: the caller's promise.
    unsafe { used.write(if got == 0 { n } else { 0 }) };
    got
}

/// After a wait: the events.
#[unsafe(no_mangle)]
pub extern "C" fn unetmap_poll_woken(fd: c_int, events: c_short) -> c_int {
    on_port(fd, events, Port::woken)
}

/// A number that changes when something arrives (`which` 0) or is sent and given back (1): for edges.
#[unsafe(no_mangle)]
pub extern "C" fn unetmap_progress(fd: c_int, which: c_int) -> c_uint {
    let sum = with_known_port(fd, |attached| {
        let rings = if which == 0 { attached.port.rx_rings() } else { attached.port.tx_rings() };
        rings.iter().fold(0, |sum: c_uint, ring| sum.wrapping_mul(31).wrapping_add(ring.tail().raw()))
    });
    sum.unwrap_or(0)
}
