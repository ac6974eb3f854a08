// SPDX-License-Identifier: BSD-2-Clause
//! Numbered datagrams that are sent all the time through a wire under test, and how long the wire was closed by what
//! arrives of them.

use std::collections::HashSet;
use std::io::IoSliceMut;
use std::net::{SocketAddr, UdpSocket};
use std::os::fd::AsRawFd as _;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use lab::Ns;
use nix::sys::socket::{ControlMessageOwned, MsgFlags, recvmsg, setsockopt, sockopt};
use nix::sys::time::TimeSpec;

/// Bytes of a datagram: its number, the time at which it was sent, and zeros.
const BYTES: usize = 64;
/// Receive buffer of a socket, in bytes: for seconds in which this program does not run.
const BUFFER: usize = 8 << 20;
/// Longest wait for a datagram, after which the receiver looks whether it is to end.
const WAIT: Duration = Duration::from_millis(50);

/// Datagrams of a stream that have arrived since it was last reset.
#[derive(Clone, Debug, Default)]
pub struct Arrivals {
    /// Datagrams, each counted once.
    pub received: u64,
    /// Datagrams that arrived again.
    pub repeated: u64,
    /// Datagrams that arrived after others that had been sent later.
    pub late: u64,
    /// The longest time that the wire was closed: between the sending of a datagram and its arrival, unless it was
    /// overtaken, or between the sending of two datagrams when none between them arrived.
    pub gap: Duration,
    /// The number of the next datagram, if none is missing.
    next: u64,
    /// When the one before was sent, in nanoseconds since 1970.
    sent: Option<u64>,
    /// Numbers below `next` that have not arrived.
    missing: HashSet<u64>,
}

impl Arrivals {
    /// Notes the datagram `number`, sent and arrived at these nanoseconds since 1970.
    pub fn note(&mut self, number: u64, sent: u64, arrived: u64) {
        if number < self.next {
            match self.missing.remove(&number) {
                true => (self.received, self.late) = (self.received + 1, self.late + 1),
                false => self.repeated += 1,
            }
            return;
        }
        self.gap = self.gap.max(Duration::from_nanos(arrived.saturating_sub(sent)));
        if number > self.next {
            let before = self.sent.unwrap_or(sent);
            self.gap = self.gap.max(Duration::from_nanos(sent.saturating_sub(before)));
            self.missing.extend(self.next..number);
        }
        (self.next, self.sent, self.received) = (number + 1, Some(sent), self.received + 1);
    }

    /// Forgets the counts, and goes on with the next number.
    fn reset(&mut self) -> Arrivals {
        let (next, sent) = (self.next, self.sent);
        std::mem::replace(self, Arrivals { next, sent, ..Arrivals::default() })
    }
}

/// One direction: a connected socket at each end.
pub struct Datagrams {
    from: UdpSocket,
    to: UdpSocket,
    number: AtomicU64,
    sent: AtomicU64,
    arrivals: Mutex<Arrivals>,
}

/// Counts of a stream since they were last taken.
pub struct Counts {
    /// Datagrams that the sender's stack took.
    pub sent: u64,
    /// Their arrivals.
    pub arrivals: Arrivals,
}

impl Counts {
    /// Datagrams that did not arrive.
    pub fn lost(&self) -> u64 {
        self.sent.saturating_sub(self.arrivals.received)
    }
}

impl Datagrams {
    /// Makes the sockets: datagrams go to this port.
    ///
    /// # Errors
    /// An address is not one of its namespace, or the port is in use.
    pub fn new(from: (&Ns, &str), to: (&Ns, &str), port: u16) -> Result<Datagrams, String> {
        let socket = |(ns, address): (&Ns, &str), port| {
            let bound = ns.run(|| UdpSocket::bind((address, port)))?;
            bound.map_err(|e| format!("a socket at {address}, port {port}: {e}"))
        };
        let (from, to, peer) = (socket(from, 0)?, socket(to, port)?, to.1);
        let address: SocketAddr = format!("{peer}:{port}").parse().map_err(|e| format!("{peer}: {e}"))?;
        from.connect(address).map_err(|e| format!("{peer}: {e}"))?;
        to.set_read_timeout(Some(WAIT)).map_err(|e| e.to_string())?;
        setsockopt(&to, sockopt::ReceiveTimestampns, &true).map_err(|e| e.to_string())?;
        setsockopt(&to, sockopt::RcvBufForce, &BUFFER).map_err(|e| e.to_string())?;
        let (number, sent) = (AtomicU64::new(0), AtomicU64::new(0));
        Ok(Datagrams { from, to, number, sent, arrivals: Mutex::default() })
    }

    /// Sends the next datagram. One that the stack refuses has a number, too.
    pub fn send(&self) {
        let mut bytes = [0; BYTES];
        bytes[..8].copy_from_slice(&self.number.fetch_add(1, Relaxed).to_be_bytes());
        bytes[8..16].copy_from_slice(&now().to_be_bytes());
        if self.from.send(&bytes).is_ok() {
            self.sent.fetch_add(1, Relaxed);
        }
    }

    /// Receives a datagram, or waits for a short time. The kernel says when it arrived, so that it does not count
    /// how late this program runs.
    pub fn receive(&self) {
        let mut bytes = [0; BYTES];
        let mut control = nix::cmsg_space!(TimeSpec);
        let mut parts = [IoSliceMut::new(&mut bytes)];
        let Ok(message) = recvmsg::<()>(self.to.as_raw_fd(), &mut parts, Some(&mut control), MsgFlags::empty()) else {
            return;
        };
        let arrived = message.cmsgs().ok().into_iter().flatten().find_map(|control| match control {
            ControlMessageOwned::ScmTimestampns(time) => Some(Duration::from(time).as_nanos() as u64),
            _ => None,
        });
        let word = |at: usize| u64::from_be_bytes(bytes[at..at + 8].try_into().expect("8 bytes"));
        self.arrivals().note(word(0), word(8), arrived.unwrap_or_else(now));
    }

    /// Number of datagrams that have arrived since the counts were last taken.
    pub fn received(&self) -> u64 {
        self.arrivals().received
    }

    /// The longest time for which the wire was closed since this, or the counts, were last taken.
    pub fn take_gap(&self) -> Duration {
        std::mem::take(&mut self.arrivals().gap)
    }

    /// Takes the counts; they begin again.
    pub fn take(&self) -> Counts {
        Counts { arrivals: self.arrivals().reset(), sent: self.sent.swap(0, Relaxed) }
    }

    fn arrivals(&self) -> MutexGuard<'_, Arrivals> {
        self.arrivals.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Nanoseconds since 1970.
fn now() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |time| time.as_nanos() as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = 1_000_000;

    #[test]
    fn a_gap_is_a_delay_or_a_time_of_which_nothing_arrived() {
        let mut seen = Arrivals::default();
        (0..10).for_each(|i| seen.note(i, i * MS, i * MS + 1));
        assert_eq!((seen.received, seen.gap), (10, Duration::from_nanos(1)));
        // The sender stood still, but nothing is missing.
        seen.note(10, 500 * MS, 500 * MS + 2);
        assert_eq!(seen.gap, Duration::from_nanos(2));
        // Those of 70 ms were dropped; one waited for 90 ms.
        seen.note(80, 570 * MS, 570 * MS);
        assert_eq!(seen.gap, Duration::from_millis(70));
        seen.note(81, 571 * MS, 661 * MS);
        assert_eq!(seen.gap, Duration::from_millis(90));
    }

    #[test]
    fn repeated_and_late_datagrams_are_told_apart() {
        let mut seen = Arrivals::default();
        for number in [0, 3, 1, 1, 3] {
            seen.note(number, 0, 0);
        }
        assert_eq!((seen.received, seen.late, seen.repeated), (3, 1, 2));
        // The wire was open for others while it waited.
        seen.note(2, 0, 9 * MS);
        assert_eq!((seen.late, seen.gap), (2, Duration::ZERO));
        // The missing one is not counted in the time that follows.
        assert_eq!(seen.reset().received, 4);
        seen.note(4, 0, 0);
        assert_eq!((seen.received, seen.late, seen.repeated), (1, 0, 0));
    }
}
