// SPDX-License-Identifier: BSD-2-Clause
//! An answer while it is sent.

use std::io;
use std::os::fd::{AsFd, BorrowedFd};

use unetmap_core::control::{ControlRequest as _, Kind, NetmapRequest, wire};
use unetmap_core::errno::EIO;
use unetmap_sys::socket::{self, MAX_FDS};

use crate::requests::Answer;

/// An answer, and how much of it was sent.
pub(crate) struct Unsent {
    pub(super) answer: Answer,
    /// Descriptors.
    pub(super) sent: usize,
    /// Whether any message was.
    pub(super) is_begun: bool,
    /// Whether the request has opened the connection's session.
    pub(super) opened: bool,
}

impl From<Answer> for Unsent {
    fn from(answer: Answer) -> Unsent {
        Unsent { answer, sent: 0, is_begun: false, opened: false }
    }
}

impl Unsent {
    /// Sends an answer, with further messages for descriptors that do not fit one. It is an error if the client cannot
    /// receive it now, as that client does not read its answers.
    pub(super) fn send(&mut self, connection: impl AsFd, tag: u32, kind: Kind) -> io::Result<()> {
        let Answer { errno, holder, payload, fds, .. } = &self.answer;
        if wire::HEAD_BYTES + payload.len() > wire::MAX_REPLY {
            return Err(io::Error::from_raw_os_error(EIO));
        }
        let fds: Vec<BorrowedFd<'_>> = fds.iter().map(AsFd::as_fd).collect();
        while !self.is_begun || self.sent < fds.len() {
            let rest = &fds[self.sent..];
            let now = &rest[..rest.len().min(MAX_FDS)];
            let message = match self.is_begun {
                false => wire::encode_tagged(tag, kind, *errno, fds.len(), *holder, payload),
                true => wire::encode_tagged(tag, Kind::MORE_FDS, 0, 0, 0, &[]),
            };
            socket::send(&connection, &message, now)?;
            (self.is_begun, self.sent) = (true, self.sent + now.len());
        }
        Ok(())
    }
}

/// Sends an answer without descriptors to a client that may be none.
pub(super) fn send_refusal(connection: impl AsFd, tag: u32, answer: Answer) {
    let _ = Unsent::from(answer).send(connection, tag, NetmapRequest::KIND);
}
