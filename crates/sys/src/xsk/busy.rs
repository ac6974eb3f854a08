//! Busy polling: a call on a socket looks into its queue itself, instead of waiting for the interrupt to do so (Linux 5.11).
//!
//! `SO_BUSY_POLL` is set last, as it is what a socket's calls go by: a socket has all of it, or none.

use std::io;
use std::ops::RangeInclusive;
use std::os::fd::{AsFd, AsRawFd};

/// How a socket polls busily.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BusyPoll {
    usec: u16,
    budget: u16,
}

impl BusyPoll {
    /// Microseconds (`SO_BUSY_POLL`). A call on an AF_XDP socket looks once, whatever they are; 0 would be not at all.
    pub const USEC: RangeInclusive<u32> = 1..=1000;
    /// Packets that one look may take (`SO_BUSY_POLL_BUDGET`). Drivers are made for 64 (`NAPI_POLL_WEIGHT`).
    pub const BUDGET: RangeInclusive<u32> = 1..=64;

    /// `None`: one of the two is out of bounds.
    pub fn new(usec: u32, budget: u32) -> Option<BusyPoll> {
        let inside = Self::USEC.contains(&usec) && Self::BUDGET.contains(&budget);
        inside.then_some(BusyPoll { usec: usec as u16, budget: budget as u16 })
    }

    /// Microseconds, in [`BusyPoll::USEC`].
    pub fn usec(self) -> u16 {
        self.usec
    }

    /// Packets, in [`BusyPoll::BUDGET`].
    pub fn budget(self) -> u16 {
        self.budget
    }
}

/// Has `socket` poll busily, and its queue's interrupts stay away while it does (`SO_PREFER_BUSY_POLL`).
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
        // SAFETY: the values of these options are ints, and this one lives during the call.
        if unsafe { libc::setsockopt(fd, libc::SOL_SOCKET, option, at, bytes) } != 0 {
            return Err(io::Error::last_os_error());
        }
    }
    Ok(())
}

/// Microseconds for which `socket` polls busily; `None`: it does not, or cannot. Its budget the kernel does not tell.
pub fn busy_poll(socket: impl AsFd) -> Option<u32> {
    let ask = |option| {
        let (mut value, mut bytes) = (0 as libc::c_int, size_of::<libc::c_int>() as libc::socklen_t);
        let (fd, at) = (socket.as_fd().as_raw_fd(), (&raw mut value).cast());
        // SAFETY: the kernel writes at most `bytes` bytes to `value`, which is ours.
        let answered = unsafe { libc::getsockopt(fd, libc::SOL_SOCKET, option, at, &raw mut bytes) } == 0;
        answered.then_some(value)
    };
    let (usec, preferred) = (ask(libc::SO_BUSY_POLL)?, ask(libc::SO_PREFER_BUSY_POLL)?);
    u32::try_from(usec).ok().filter(|&usec| usec > 0 && preferred != 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_out_of_bounds_is_none() {
        for (usec, budget) in [(0, 1), (1, 0), (1001, 1), (1, 65), (u32::MAX, 1), (65_537, 65_537)] {
            assert_eq!(BusyPoll::new(usec, budget), None, "{usec} {budget}");
        }
        let most = BusyPoll::new(1000, 64).unwrap();
        assert_eq!((most.usec(), most.budget()), (1000, 64));
    }

    #[test]
    fn a_socket_says_what_was_set() {
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
