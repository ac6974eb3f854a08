// SPDX-License-Identifier: BSD-2-Clause
//! A request that was sent, and whose reply is not waited for.

use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::time::Duration;

use unetmap_sys::{event, socket};

use crate::control::client;
use crate::control::request::{NetmapReply, NetmapRequest};
use crate::control::wire::{self, ControlRequest};
use crate::error::Error;

/// A netmap request on a connection of its own.
pub(crate) struct Asked {
    fd: OwnedFd,
    tag: u32,
}

impl Asked {
    /// Sends a request to the daemon that listens at `path`; `None` if none does, and none is started.
    pub(crate) fn send(path: &Path, subject: &str, request: &NetmapRequest) -> Result<Option<Asked>, Error> {
        let Ok(fd) = client::connect_to(path) else { return Ok(None) };
        let payload = request.with_environment().encode();
        let tag = client::send_only(fd.as_fd(), subject, NetmapRequest::KIND, &payload)?;
        Ok(Some(Asked { fd, tag }))
    }

    /// Whether there is something to receive, or the daemon has ended.
    pub(crate) fn is_answered(&self) -> bool {
        socket::has_input(&self.fd) || event::hung_up(self.fd.as_fd())
    }

    /// Returns the reply, and the connection. `limit`: how long each further message of it may take.
    ///
    /// # Errors
    /// The refusal; the daemon has ended; a malformed reply.
    pub(crate) fn receive(self, subject: &str, limit: Duration) -> Result<(OwnedFd, NetmapReply, Vec<OwnedFd>), Error> {
        socket::set_timeout(&self.fd, limit).map_err(|e| Error::host(subject, e))?;
        let reply = client::receive_reply(self.fd.as_fd(), subject, self.tag, wire::MAX_REPLY)?;
        reply.refused(subject)?;
        let answer = NetmapReply::decode(&reply.payload).ok_or_else(|| Error::malformed_reply(subject))?;
        Ok((self.fd, answer, reply.fds))
    }
}
