// SPDX-License-Identifier: BSD-2-Clause
//! An answer while it is sent, and those that wait to be.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::time::Instant;

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

/// Messages and answers that wait until clients have received others.
#[derive(Default)]
pub(super) struct WaitingAnswers {
    /// By user: connections of which a message waits until something in flight was received.
    pub(super) held: BTreeMap<u32, BTreeSet<u64>>,
    /// Whether one of them may go on.
    pub(super) may_release: bool,
    /// Connections with an answer that the kernel does not send now.
    pub(super) unsent: BTreeSet<u64>,
    /// When those are sent again.
    pub(super) resend: Option<Instant>,
    /// When the kernel refused an answer first, and last, of those that it has refused without a long pause.
    pub(super) refused: Option<(Instant, Instant)>,
    /// Whether the log says that requests fail.
    pub(super) is_logged: bool,
}

/// Sends an answer without descriptors to a client that may be none.
pub(super) fn send_refusal(connection: impl AsFd, tag: u32, answer: Answer) {
    let _ = Unsent::from(answer).send(connection, tag, NetmapRequest::KIND);
}
