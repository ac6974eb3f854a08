// SPDX-License-Identifier: BSD-2-Clause
//! Readiness of a netmap file, for poll, select and epoll. `preload/wait.c` has the wait loop.

use std::ffi::{c_int, c_short, c_uint};
use std::os::fd::AsRawFd;
use std::time::{Duration, Instant};

use unetmap_core::{Error, Interest, Port};
use unetmap_sys::event;

use crate::calls::{call, current_file};
use crate::files::{borrowed, with_known_port};
use crate::last_error::report;

/// `POLLIN`, `POLLOUT` and their synonyms.
const READ: c_short = libc::POLLIN | libc::POLLRDNORM;
const WRITE: c_short = libc::POLLOUT | libc::POLLWRNORM;

fn interest(events: c_short) -> Interest {
    let rx = if events & READ != 0 { Interest::RX } else { Interest::NONE };
    let tx = if events & WRITE != 0 { Interest::TX } else { Interest::NONE };
    rx | tx
}

/// Returns the events for the program.
#[inline(always)]
fn revents(events: c_short, ready: Result<Interest, Error>) -> c_short {
    match &ready {
        Err(e) => error_events(e),
        Ok(ready) => {
            let read = if ready.rx() { events & READ } else { 0 };
            let write = if ready.tx() { events & WRITE } else { 0 };
            read | write
        }
    }
}

#[cold]
fn error_events(e: &Error) -> c_short {
    report(e);
    libc::POLLERR
}

/// Runs `body` on the port and returns its events; POLLERR without a port and on errors; `-EBADF` if `fd` is not a
/// netmap file any more.
#[inline(always)]
fn on_port(fd: c_int, events: c_short, mut body: impl FnMut(&Port, Interest) -> Result<Interest, Error>) -> c_int {
    let want = interest(events);
    call(|| {
        // An error is large, and copying a result that has none costs as much as the poll: it is converted where it is
        // returned.
        let known = with_known_port(fd, |attached| revents(events, body(&attached.port, want)));
        if let Some(got) = known {
            return Ok(c_int::from(got));
        }
        Ok(c_int::from(match current_file(fd)?.port(fd) {
            Ok(Some(attached)) => revents(events, body(&attached.port, want)),
            Ok(None) => libc::POLLERR,
            Err(e) => revents(events, Err(e)),
        }))
    })
}

/// Polls one netmap file without waiting; returns the events.
#[unsafe(no_mangle)]
pub extern "C" fn unetmap_poll_now(fd: c_int, events: c_short) -> c_int {
    on_port(fd, events, |port, want| port.poll(want, Some(Duration::ZERO)))
}

/// Polls one netmap file repeatedly for at most `ns` nanoseconds; returns the events.
#[unsafe(no_mangle)]
pub extern "C" fn unetmap_poll_spin(fd: c_int, events: c_short, ns: u32) -> c_int {
    on_port(fd, events, |port, want| port.spin(want, Duration::from_nanos(ns.into())))
}

/// Returns whether `fd` still is a netmap file: it may have been closed by a call without a hook. If not, it is
/// removed.
#[unsafe(no_mangle)]
pub extern "C" fn unetmap_fd_is_netmap(fd: c_int) -> c_int {
    call(|| Ok(c_int::from(current_file(fd).is_ok())))
}

/// Polls one netmap file for at most `limit` nanoseconds (negative: no limit). Returns the events; `-EINTR` after a
/// signal.
#[unsafe(no_mangle)]
pub extern "C" fn unetmap_poll(fd: c_int, events: c_short, limit: i64) -> c_int {
    let got = unetmap_poll_now(fd, events);
    if got != 0 || limit == 0 {
        return got;
    }
    let limit = u64::try_from(limit).ok().map(Duration::from_nanos);
    call(|| {
        // Holds a reference, as this call may wait.
        let open = current_file(fd)?;
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

/// Prepares for a wait: if nothing is ready (the result is 0), writes the descriptors to wait on for POLLIN to `wait`,
/// at most `room`, and their number to `used`.
///
/// # Safety
/// `wait` is valid for writes of `room` entries, `used` for one (C1).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn unetmap_arm(
    fd: c_int,
    events: c_short,
    wait: *mut libc::pollfd,
    room: c_uint,
    used: *mut c_uint,
) -> c_int {
    // SAFETY: C1: the caller's contract.
    unsafe { arm(fd, events, Port::arm, wait, room, used) }
}

/// As [`unetmap_arm`], for the next change, whatever is ready already: only errors are events here.
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
    // SAFETY: C1: the caller's contract.
    unsafe { arm(fd, events, arm_it, wait, room, used) }
}

/// # Safety
/// As [`unetmap_arm`].
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
            // SAFETY: C1: `n` is less than `room`.
            unsafe { wait.add(n as usize).write(libc::pollfd { fd, events, revents: 0 }) };
            n += 1;
        }
    };
    let got = on_port(fd, events, |port, want| {
        if event::hung_up(borrowed(fd)) {
            let error = port.shut_down();
            if !port.awaits_daemon() {
                return Err(error);
            }
        }
        let ready = arm_it(port, want)?;
        if ready.is_none() {
            port.each_wait_fd(want, |doorbell| add(doorbell.as_raw_fd(), libc::POLLIN));
            // The file itself, for its hang-up only, so that a sleeping thread is woken by it.
            add(fd, 0);
        }
        Ok(ready)
    });
    // SAFETY: C1: the caller's contract.
    unsafe { used.write(if got == 0 { n } else { 0 }) };
    got
}

/// Returns the events after a wait.
#[unsafe(no_mangle)]
pub extern "C" fn unetmap_poll_woken(fd: c_int, events: c_short) -> c_int {
    on_port(fd, events, Port::woken)
}

/// Returns a number that changes when packets arrive (`which` 0) or when sent slots are returned (1), for
/// edge-triggered epoll.
#[unsafe(no_mangle)]
pub extern "C" fn unetmap_progress(fd: c_int, which: c_int) -> c_uint {
    let sum = with_known_port(fd, |attached| {
        let rings = if which == 0 { attached.port.rx_rings() } else { attached.port.tx_rings() };
        rings.iter().fold(0, |sum: c_uint, ring| sum.wrapping_mul(31).wrapping_add(ring.tail().raw()))
    });
    sum.unwrap_or(0)
}
