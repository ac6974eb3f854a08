// SPDX-License-Identifier: BSD-2-Clause
//! Busy polling: a call on a socket polls the device queue itself instead of waiting for the interrupt (Linux 5.11).
//!
//! `SO_BUSY_POLL` is set last, as it enables the others: a socket has all options or none.

use std::io;
use std::ops::RangeInclusive;
use std::os::fd::{AsFd, AsRawFd};

/// Busy polling parameters of a socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize), serde(try_from = "Unchecked"))]
pub struct BusyPoll {
    usec: u16,
    budget: u16,
}

/// As another process sent them.
#[cfg(feature = "serde")]
#[derive(serde::Deserialize)]
struct Unchecked {
    usec: u32,
    budget: u32,
}

#[cfg(feature = "serde")]
impl TryFrom<Unchecked> for BusyPoll {
    type Error = String;

    fn try_from(sent: Unchecked) -> Result<BusyPoll, String> {
        BusyPoll::new(sent.usec, sent.budget)
    }
}

impl BusyPoll {
    /// Microseconds (`SO_BUSY_POLL`). A call on an AF_XDP socket polls once, whatever the value; 0 disables polling.
    pub const USEC: RangeInclusive<u32> = 1..=1000;
    /// Most packets of one poll (`SO_BUSY_POLL_BUDGET`). Drivers are designed for 64 (`NAPI_POLL_WEIGHT`).
    pub const BUDGET: RangeInclusive<u32> = 1..=64;

    /// # Errors
    /// A sentence, if a value is out of bounds.
    pub fn new(usec: u32, budget: u32) -> Result<BusyPoll, String> {
        let (usecs, budgets) = (Self::USEC, Self::BUDGET);
        if usecs.contains(&usec) && budgets.contains(&budget) {
            return Ok(BusyPoll { usec: usec as u16, budget: budget as u16 });
        }
        Err(format!(
            "busy polling of {usec} us with a budget of {budget}: give {} to {} us, and a budget of {} to {} packets",
            usecs.start(),
            usecs.end(),
            budgets.start(),
            budgets.end()
        ))
    }

    /// Returns the microseconds, in [`BusyPoll::USEC`].
    pub fn usec(self) -> u16 {
        self.usec
    }

    /// Returns the packets, in [`BusyPoll::BUDGET`].
    pub fn budget(self) -> u16 {
        self.budget
    }
}

/// Enables busy polling on `socket`, with its queue's interrupts deferred meanwhile (`SO_PREFER_BUSY_POLL`).
///
/// # Errors
/// `EPERM`: no `CAP_NET_ADMIN`. `ENOPROTOOPT`: the kernel is older than 5.11, or built without.
pub fn set_busy_poll(socket: impl AsFd, busy: BusyPoll) -> io::Result<()> {
    let options = [
        (libc::SO_BUSY_POLL_BUDGET, busy.budget.into()),
        (libc::SO_PREFER_BUSY_POLL, 1),
        (libc::SO_BUSY_POLL, busy.usec.into()),
    ];
    for (option, value) in options {
        let (fd, value): (_, libc::c_int) = (socket.as_fd().as_raw_fd(), value);
        let (at, bytes) = ((&raw const value).cast(), size_of_val(&value) as libc::socklen_t);
        // SAFETY: K1, K5: the values of these options are ints, and this one outlives the call.
        if unsafe { libc::setsockopt(fd, libc::SOL_SOCKET, option, at, bytes) } != 0 {
            return Err(io::Error::last_os_error());
        }
    }
    Ok(())
}

/// Returns the microseconds for which `socket` busy-polls; `None` if busy polling is off or unsupported. The kernel
/// does not report the budget.
pub fn busy_poll(socket: impl AsFd) -> Option<u32> {
    let get = |option| {
        let (mut value, mut bytes) = (0 as libc::c_int, size_of::<libc::c_int>() as libc::socklen_t);
        let (fd, at) = (socket.as_fd().as_raw_fd(), (&raw mut value).cast());
        // SAFETY: K1, K5: the kernel writes at most `bytes` bytes to `value`.
        let succeeded = unsafe { libc::getsockopt(fd, libc::SOL_SOCKET, option, at, &raw mut bytes) } == 0;
        succeeded.then_some(value)
    };
    let (usec, preferred) = (get(libc::SO_BUSY_POLL)?, get(libc::SO_PREFER_BUSY_POLL)?);
    u32::try_from(usec).ok().filter(|&usec| usec > 0 && preferred != 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_out_of_bounds_are_refused() {
        for (usec, budget) in [(0, 1), (1, 0), (1001, 1), (1, 65), (u32::MAX, 1), (65_537, 65_537)] {
            assert!(BusyPoll::new(usec, budget).is_err(), "{usec} {budget}");
        }
        let most = BusyPoll::new(1000, 64).unwrap();
        assert_eq!((most.usec(), most.budget()), (1000, 64));
    }

    #[test]
    fn a_socket_reports_the_time_that_was_set() {
        let socket = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
        assert_eq!(busy_poll(&socket), None);
        let busy = BusyPoll::new(50, 16).unwrap();
        match set_busy_poll(&socket, busy) {
            Ok(()) => assert_eq!(busy_poll(&socket), Some(50)),
            Err(e) if matches!(e.raw_os_error(), Some(libc::EPERM | libc::ENOPROTOOPT)) => eprintln!("skipped: {e}"),
            Err(e) => panic!("{e}"),
        }
    }
}
