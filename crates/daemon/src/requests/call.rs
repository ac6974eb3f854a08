// SPDX-License-Identifier: BSD-2-Clause
//! A message of the control socket that is being answered, and its answer.

use std::fs::File;
use std::io::Write;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use unetmap_core::control::{ControlRequest, wire};
use unetmap_core::errno::ENOMEM;
use unetmap_sys::memfd;
use unetmap_sys::socket::Peer;

use super::lock_holder::{LockHolder, LockHolders};
use super::snapshot::SnapshotTask;
use crate::caller::Caller;
use crate::daemon::Daemon;
use crate::netmap_requests::{Got, Needs};
use crate::node::Nodes;
use crate::refusal::{Refusal, decode};

/// A message that is being answered.
pub(crate) struct Call<'a> {
    pub(crate) daemon: &'a mut Daemon,
    pub(crate) nodes: &'a mut Nodes,
    pub(crate) lock_holders: &'a mut LockHolders,
    pub(crate) connection: &'a Arc<OwnedFd>,
    pub(crate) peer: Peer,
    /// The process at the other end, as the kernel describes it; `None`: it does not.
    pub(crate) caller: Option<Caller>,
    /// The result for which the request has waited.
    pub(crate) got: Got,
    /// The session that the connection has.
    pub(crate) session: &'a mut Option<u64>,
    /// The lock holder that the connection stands for.
    pub(crate) holder: &'a mut Option<LockHolder>,
    pub(crate) payload: &'a [u8],
    /// The user that the daemon runs as.
    pub(crate) owner: u32,
    /// Whether a service manager runs the daemon.
    pub(crate) is_service: bool,
}

/// The fate of a message.
pub(crate) enum Reply {
    Answer(Answer),
    /// The request waits.
    Needs(Needs),
    /// The answer follows when the snapshot is complete.
    Later(Box<SnapshotTask>),
    /// The message is invalid.
    Invalid(i32, &'static str),
    /// The connection is closed without an answer.
    Close,
}

/// An answer.
#[derive(Default)]
pub(crate) struct Answer {
    /// 0, or netmap's error number.
    pub(crate) errno: i32,
    /// In the answer to `LockHolder`: the holder ID.
    pub(crate) holder: u32,
    pub(crate) payload: Vec<u8>,
    pub(crate) fds: Vec<OwnedFd>,
    /// A file among these, as the daemon can empty it: the text.
    pub(crate) text: Option<OwnedFd>,
}

impl Call<'_> {
    /// Answers with the text that `handler` returns.
    pub(super) fn text<R: ControlRequest>(
        &mut self,
        handler: fn(&mut Daemon, R, &Caller) -> Result<String, Refusal>,
    ) -> Reply {
        let Some(caller) = &self.caller else { return Reply::Close };
        let answered = decode(self.payload).and_then(|request| handler(self.daemon, request, caller));
        self.text_reply(answered)
    }

    /// The user of whom alone the caller may see something; `None`: of all, as root or the daemon's owner.
    pub(super) fn only_user(&self) -> Option<u32> {
        let uid = self.peer.uid;
        (uid != 0 && uid != self.owner).then_some(uid)
    }

    pub(super) fn text_reply(&mut self, answered: Result<String, Refusal>) -> Reply {
        Reply::Answer(answered.map_or_else(|refusal| self.refused(refusal), |text| text_answer(&[&text])))
    }

    /// Returns the answer to a request that was refused.
    pub(super) fn refused(&mut self, refusal: Refusal) -> Answer {
        let Refusal { errno, why, .. } = refusal;
        self.daemon.count_policy_refusal(self.peer.uid, errno, &why);
        tracing::debug!(pid = self.peer.pid, errno, why, "refused");
        Answer { errno, payload: why.into_bytes(), ..Default::default() }
    }
}

/// Returns an answer with a text of any length, in parts. A text that does not fit the answer is sent as a file, for
/// which its user pays as long as programs have it ([`crate::shared_files`]).
pub(crate) fn text_answer(parts: &[&str]) -> Answer {
    let bytes: usize = parts.iter().map(|part| part.len()).sum();
    if bytes <= wire::MAX_REPLY - wire::HEAD_BYTES {
        return Answer { payload: parts.concat().into(), ..Default::default() };
    }
    let file = memfd::create_unsealed("unetmap-text").and_then(|fd| {
        let mut file = File::from(fd);
        parts.iter().try_for_each(|part| file.write_all(part.as_bytes()))?;
        Ok((memfd::read_only(&file)?, file.into()))
    });
    match file {
        Ok((theirs, file)) => Answer { fds: vec![theirs], text: Some(file), ..Default::default() },
        Err(e) => Answer { errno: e.raw_os_error().unwrap_or(ENOMEM), ..Default::default() },
    }
}
