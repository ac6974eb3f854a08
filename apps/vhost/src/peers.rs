// SPDX-License-Identifier: BSD-2-Clause
//! How peers come: they connect to the socket one after the other, or are connected to.

use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::time::Instant;

use tool_common::host::socket::FdSender;

use crate::device::{Config, Connection, Protocol, Socket};
use crate::memif::{self, Candidates};
use crate::tuning::RETRY;
use crate::vhost;

/// The peers to come.
pub(crate) struct Peers<'a> {
    config: &'a Config,
    /// Of a server of memif.
    candidates: Candidates,
    /// When peers are accepted again, after that failed: they stay in the socket's queue.
    accept_at: Instant,
}

impl Peers<'_> {
    pub(crate) fn new(config: &Config) -> Peers<'_> {
        Peers { config, candidates: Candidates::default(), accept_at: Instant::now() }
    }

    /// Accepts a connection, or makes one if it is time to. `None`: not yet.
    pub(crate) fn next(
        &mut self,
        is_time: bool,
        sender: &mut FdSender,
        note: &dyn Fn(&str),
    ) -> Option<io::Result<Box<dyn Connection>>> {
        let pairs = self.config.queue_pairs;
        let guest = |socket| Ok(Box::new(vhost::Session::new(socket, pairs)?) as Box<dyn Connection>);
        let next = match (&self.config.socket, &self.config.protocol) {
            (Socket::Listen(_), _) if Instant::now() < self.accept_at => return None,
            (Socket::Listen(listener), Protocol::VhostUser) => listener.accept().and_then(|(socket, _)| guest(socket)),
            (Socket::Listen(listener), Protocol::Memif(config)) => {
                match self.candidates.accept(listener, (config, pairs), note).transpose()? {
                    Ok(session) => Ok(Box::new(session) as Box<dyn Connection>),
                    Err(e) => Err(e),
                }
            }
            (Socket::Connect(_), _) if !is_time => return None,
            (Socket::Connect(path), Protocol::VhostUser) => UnixStream::connect(path).and_then(guest),
            // A server that has not received the descriptor before is not given others.
            (Socket::Connect(_), Protocol::Memif(_)) if !sender.is_free() => return None,
            (Socket::Connect(path), Protocol::Memif(config)) => {
                let server = memif::connect_checked(path, config).map(UnixStream::from);
                server
                    .and_then(|socket| Ok(Box::new(memif::Session::new(socket, config, pairs)?) as Box<dyn Connection>))
            }
        };
        match &next {
            Err(e) if e.kind() == io::ErrorKind::WouldBlock => return None,
            Err(_) => self.accept_at = Instant::now() + RETRY[0],
            Ok(_) => {}
        }
        Some(next)
    }

    /// Descriptors that become readable when a peer comes.
    pub(crate) fn wait_fds(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        let listener = match &self.config.socket {
            Socket::Listen(listener) if Instant::now() >= self.accept_at && self.candidates.has_room() => {
                Some(listener)
            }
            _ => None,
        };
        listener.map(AsFd::as_fd).into_iter().chain(self.candidates.sockets())
    }

    /// Returns how many peers were refused since one had the place.
    pub(crate) fn take_refused(&mut self) -> u64 {
        self.candidates.take_refused()
    }
}
