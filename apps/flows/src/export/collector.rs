// SPDX-License-Identifier: BSD-2-Clause
//! Where records are sent, and by which transport.

use std::fmt;
use std::io;
use std::net::{SocketAddr, ToSocketAddrs as _};
use std::path::PathBuf;

use super::message::Ended;
use super::session::Session;
use super::udp::Udp;

/// How messages travel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Transport {
    Udp,
    Tcp,
    Tls,
}

impl Transport {
    const ALL: [(&str, Transport); 3] = [("udp:", Transport::Udp), ("tcp:", Transport::Tcp), ("tls:", Transport::Tls)];
}

/// A collector's address, and how it receives.
#[derive(Clone, Debug)]
pub(crate) struct Destination {
    pub(crate) transport: Transport,
    /// Name or address, without brackets.
    pub(super) host: String,
    port: u16,
}

impl Destination {
    /// Parses `HOST:PORT`, for UDP, or `udp:`, `tcp:` or `tls:` and that.
    ///
    /// # Errors
    /// A sentence that says which form it has.
    pub(crate) fn parse(text: &str) -> Result<Destination, String> {
        let prefix = Transport::ALL.iter().find_map(|(prefix, of)| Some((text.strip_prefix(prefix)?, *of)));
        let (address, transport) = prefix.unwrap_or((text, Transport::Udp));
        let parts = address.rsplit_once(':').and_then(|(host, port)| Some((host, port.parse::<u16>().ok()?)));
        let bare = |host: &str| host.strip_prefix('[').and_then(|host| host.strip_suffix(']')).map(str::to_owned);
        match parts {
            Some((host, port @ 1..)) if !host.is_empty() => {
                Ok(Destination { transport, host: bare(host).unwrap_or_else(|| host.into()), port })
            }
            _ => Err("give the collector's name or address, and its port, as 192.0.2.1:4739, [::1]:4739, \
                      tcp:192.0.2.1:4739 or tls:collector.example:4740"
                .into()),
        }
    }

    /// The collector's addresses now.
    ///
    /// # Errors
    /// A sentence.
    pub(super) fn addresses(&self) -> Result<Vec<SocketAddr>, String> {
        let found: Vec<_> = (&*self.host, self.port).to_socket_addrs().map_err(|e| self.failed(&e))?.collect();
        if found.is_empty() { Err(format!("{self}: this name has no address")) } else { Ok(found) }
    }

    /// Says what failed.
    pub(super) fn failed(&self, e: &io::Error) -> String {
        format!("{self}: {}", tool_common::without_codes(&e.to_string()))
    }
}

impl fmt::Display for Destination {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let prefix = Transport::ALL.iter().find(|(_, of)| *of == self.transport && *of != Transport::Udp);
        let (prefix, port) = (prefix.map_or("", |(prefix, _)| prefix), self.port);
        match self.host.contains(':') {
            true => write!(f, "{prefix}[{}]:{port}", self.host),
            false => write!(f, "{prefix}{}:{port}", self.host),
        }
    }
}

/// Files of TLS, all in PEM.
#[derive(Clone, Debug, Default)]
pub(crate) struct Security {
    /// Certificates that the collector's must descend from; `None`: the system's.
    pub(crate) authorities: Option<PathBuf>,
    /// The program's own certificates, and their key.
    pub(crate) identity: Option<(PathBuf, PathBuf)>,
}

/// Numbers of what was sent.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Sent {
    pub(crate) messages: u64,
    pub(crate) records: u64,
    /// Messages, and the records in them, that the kernel did not take, or no connection.
    pub(crate) unsent_messages: u64,
    pub(crate) unsent: u64,
    /// Errors that say that the collector is not there.
    pub(crate) refused: u64,
    /// Connections that were made; none by UDP.
    pub(crate) connections: u64,
}

impl Sent {
    /// Counts a message that was not sent.
    pub(super) fn lose(&mut self, records: u64) {
        self.unsent_messages += 1;
        self.unsent += records;
    }
}

/// A collector.
pub(super) enum Collector {
    Udp(Udp),
    Session(Session),
}

impl Collector {
    /// Sends the message of an observation domain, which is counted if it cannot be sent now.
    pub(super) fn send(&mut self, domain: usize, message: Ended<'_>) {
        match self {
            Collector::Udp(udp) => udp.send(message.bytes, message.flows),
            Collector::Session(session) => session.send(domain, message),
        }
    }

    /// Gives the collector time from now on: no port waits for the program.
    pub(super) fn pace(&mut self) {
        match self {
            Collector::Udp(udp) => udp.pace(),
            Collector::Session(session) => session.waits = true,
        }
    }

    /// As of [`Udp::rest`].
    pub(super) fn rest(&self) {
        if let Collector::Udp(udp) = self {
            udp.rest();
        }
    }

    /// Waits until all is sent, or counted.
    pub(super) fn finish(&mut self) {
        if let Collector::Session(session) = self {
            session.finish();
        }
    }

    /// The numbers so far.
    pub(super) fn sent(&self) -> Sent {
        match self {
            Collector::Udp(udp) => udp.sent,
            Collector::Session(session) => session.sent(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn destinations_are_parsed_or_refused() {
        for (text, transport, host, shown) in [
            ("192.0.2.1:4739", Transport::Udp, "192.0.2.1", "192.0.2.1:4739"),
            ("udp:a:1", Transport::Udp, "a", "a:1"),
            ("[::1]:4739", Transport::Udp, "::1", "[::1]:4739"),
            ("tcp:collector.example:4739", Transport::Tcp, "collector.example", "tcp:collector.example:4739"),
            ("tls:[2001:db8::1]:4740", Transport::Tls, "2001:db8::1", "tls:[2001:db8::1]:4740"),
        ] {
            let to = Destination::parse(text).unwrap();
            assert_eq!((to.transport, &*to.host, &*to.to_string()), (transport, host, shown), "{text}");
        }
        for text in ["", "a", "a:", ":1", "a:0", "a:65536", "tcp:4739", "tls::4739", "sctp:a"] {
            assert!(Destination::parse(text).is_err(), "{text}");
        }
    }
}
