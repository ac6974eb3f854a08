// SPDX-License-Identifier: BSD-2-Clause
//! A collector that receives by UDP. One that is gone or slow costs records, which are counted, and no time.

use std::io::ErrorKind;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};
use std::time::{Duration, Instant};

use super::collector::{Destination, Sent};

/// Messages of a second while no port waits for the program: a tenth of what collectors receive on one core.
const PACE: u32 = 10_000;

/// Time that collectors have for templates.
const REST: Duration = Duration::from_millis(100);

/// A socket that is connected to a collector.
pub(super) struct Udp {
    socket: UdpSocket,
    /// When the next message may be sent, if there is a [`PACE`].
    paced: Option<Instant>,
    pub(super) sent: Sent,
}

impl Udp {
    /// Finds the collector's address, and makes a socket that never waits.
    ///
    /// # Errors
    /// A sentence.
    pub(super) fn connect(to: &Destination) -> Result<Udp, String> {
        let mut last = None;
        for address in to.addresses()? {
            let any: SocketAddr = match address {
                SocketAddr::V4(_) => (Ipv4Addr::UNSPECIFIED, 0).into(),
                SocketAddr::V6(_) => (Ipv6Addr::UNSPECIFIED, 0).into(),
            };
            let socket = UdpSocket::bind(any).and_then(|socket| {
                socket.connect(address)?;
                socket.set_nonblocking(true)?;
                Ok(socket)
            });
            match socket {
                Ok(socket) => return Ok(Udp { socket, paced: None, sent: Sent::default() }),
                Err(e) => last = Some(e),
            }
        }
        Err(to.failed(&last.unwrap_or_else(|| ErrorKind::AddrNotAvailable.into())))
    }

    /// The address of this host from which messages are sent.
    pub(super) fn own_address(&self) -> IpAddr {
        self.socket.local_addr().map_or(Ipv4Addr::UNSPECIFIED.into(), |address| address.ip())
    }

    /// Sends no more than a collector receives from now on, and waits for the time: no port waits for the program.
    pub(super) fn pace(&mut self) {
        self.paced.get_or_insert_with(Instant::now);
    }

    /// Waits while a collector with several threads learns what was sent, if no port waits for the program: they would
    /// drop records whose templates another one of them still reads.
    pub(super) fn rest(&self) {
        if self.paced.is_some() {
            std::thread::sleep(REST);
        }
    }

    /// Sends a message of so many records.
    pub(super) fn send(&mut self, message: &[u8], records: u64) {
        self.keep_pace();
        let mut result = self.socket.send(message);
        // The error is of an earlier message: this one was not sent.
        if matches!(&result, Err(e) if e.kind() == ErrorKind::ConnectionRefused) {
            self.sent.refused += 1;
            result = self.socket.send(message);
        }
        let (messages, of) = match result {
            Ok(_) => (&mut self.sent.messages, &mut self.sent.records),
            Err(_) => (&mut self.sent.unsent_messages, &mut self.sent.unsent),
        };
        *messages += 1;
        *of += records;
    }

    fn keep_pace(&mut self) {
        let Some(next) = &mut self.paced else { return };
        let now = Instant::now();
        *next = (*next).max(now) + Duration::from_secs(1) / PACE;
        let early = next.saturating_duration_since(now);
        // Shorter sleeps last longer than asked.
        if early > Duration::from_millis(1) {
            std::thread::sleep(early);
        }
    }
}
