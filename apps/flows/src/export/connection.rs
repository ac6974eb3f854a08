// SPDX-License-Identifier: BSD-2-Clause
//! A TCP connection to a collector, with TLS or without. No call waits for long; the sender says for how long.

use std::io::{self, ErrorKind, Read as _, Write as _};
use std::net::{Shutdown, TcpStream};
use std::thread;
use std::time::{Duration, Instant};

use super::collector::{Destination, Security, Transport};
use super::tls::{Client, Tls, is_passing};

/// Longest time to connect to an address.
const CONNECT: Duration = Duration::from_secs(3);
/// Longest time for the handshake of TLS then.
const HANDSHAKE: Duration = Duration::from_secs(5);
/// Longest wait for the collector to close a connection that has ended.
const CLOSE: Duration = Duration::from_secs(1);
/// Pause while a socket takes or has nothing.
const PAUSE: Duration = Duration::from_millis(1);
/// Reads at a look at what a collector says, which is nothing: one that does not end is not waited for.
const READS: usize = 16;

/// Makes connections to a collector.
pub(super) struct Connector {
    pub(super) to: Destination,
    tls: Option<Client>,
}

impl Connector {
    /// # Errors
    /// A sentence: a file of TLS cannot be read.
    pub(super) fn new(to: Destination, security: &Security) -> Result<Connector, String> {
        let tls = (to.transport == Transport::Tls).then(|| Client::new(&to.host, security)).transpose();
        let tls = tls.map_err(|why| format!("{to}: {why}"))?;
        Ok(Connector { to, tls })
    }

    /// Connects to one of the collector's addresses.
    ///
    /// # Errors
    /// A sentence.
    pub(super) fn connect(&self) -> Result<Connection, String> {
        let mut last = io::Error::from(ErrorKind::AddrNotAvailable);
        for address in self.to.addresses()? {
            match TcpStream::connect_timeout(&address, CONNECT).and_then(|socket| self.begin(socket)) {
                Ok(connection) => return Ok(connection),
                Err(e) => last = e,
            }
        }
        Err(self.to.failed(&last))
    }

    fn begin(&self, socket: TcpStream) -> io::Result<Connection> {
        socket.set_nonblocking(true)?;
        let tls = match &self.tls {
            Some(client) => Some(client.handshake(&socket, Instant::now() + HANDSHAKE)?),
            None => None,
        };
        Ok(Connection { socket, tls })
    }
}

/// A connection to a collector.
pub(super) struct Connection {
    socket: TcpStream,
    tls: Option<Tls>,
}

impl Connection {
    /// Sends all of `bytes`. `goes_on` is asked while the socket takes nothing, and told when it did.
    ///
    /// # Errors
    /// The connection has ended, or `goes_on` said no: of `bytes` an unknown part was sent.
    pub(super) fn send(&mut self, bytes: &[u8], mut goes_on: impl FnMut(bool) -> bool) -> io::Result<()> {
        let mut rest = bytes;
        if let Some(tls) = &mut self.tls {
            tls.take(bytes)?;
            rest = &[];
        }
        loop {
            let result = self.write(rest)?;
            match result {
                Written::All => return Ok(()),
                Written::Bytes(n) => rest = rest.get(n..).unwrap_or_default(),
                Written::Full => {}
            }
            let is_full = matches!(result, Written::Full);
            if !goes_on(!is_full) {
                return Err(ErrorKind::TimedOut.into());
            }
            if is_full {
                thread::sleep(PAUSE);
            }
        }
    }

    /// Writes the rest, or with TLS what it has taken, in part.
    fn write(&mut self, rest: &[u8]) -> io::Result<Written> {
        if let Some(tls) = &mut self.tls {
            return match tls.has_more() {
                false => Ok(Written::All),
                true => written(tls.write(&mut self.socket)),
            };
        }
        if rest.is_empty() { Ok(Written::All) } else { written(self.socket.write(rest)) }
    }

    /// Whether the collector has not closed the connection. Reads what it says, which counts for nothing.
    pub(super) fn is_open(&mut self) -> bool {
        for _ in 0..READS {
            match self.read() {
                Ok(0) => return false,
                Ok(_) => {}
                Err(e) => return is_passing(&e),
            }
        }
        true
    }

    fn read(&mut self) -> io::Result<usize> {
        if let Some(tls) = &mut self.tls {
            return tls.read(&mut self.socket);
        }
        self.socket.read(&mut [0; 4096])
    }

    /// Says that nothing follows, and waits until the collector has read all, as it says by closing the connection.
    pub(super) fn close(mut self) {
        let until = Instant::now() + CLOSE;
        if let Some(tls) = &mut self.tls {
            tls.end();
            // An error is one of a connection that has ended.
            let _ = self.send(&[], |_| Instant::now() < until);
        }
        if self.socket.shutdown(Shutdown::Write).is_err() {
            return;
        }
        while self.is_open() && Instant::now() < until {
            thread::sleep(PAUSE);
        }
    }
}

/// How much a socket has taken.
enum Written {
    All,
    Bytes(usize),
    /// Nothing now.
    Full,
}

fn written(result: io::Result<usize>) -> io::Result<Written> {
    match result {
        Ok(0) => Err(ErrorKind::WriteZero.into()),
        Ok(n) => Ok(Written::Bytes(n)),
        Err(e) if is_passing(&e) => Ok(Written::Full),
        Err(e) => Err(e),
    }
}
