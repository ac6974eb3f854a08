// SPDX-License-Identifier: BSD-2-Clause
//! The messages of the control socket: each kind and the function that answers it.
//!
//! To add a kind: write its handler in the file of its subject, and add a row to [`HANDLERS`]. The requests' types,
//! with their encoding, are in the library that clients use, too.

mod events;
mod knobs;
mod lock_holder;
mod port;
mod snapshot;
mod stop;

use std::fs::File;
use std::io::Write;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use unetmap_abi::NmreqHeader;
use unetmap_core::control::{
    AttachRequest, ControlRequest, EventsRequest, HelloRequest, Kind, KnobRequest, LockHolderRequest, NetmapRequest,
    NextMonitorRequest, NicRequest, NodeRequest, PeerDoorbellsRequest, ServesRequest, SnapshotRequest, StopRequest,
    UnbindRequest, ValeRequest, wire,
};
use unetmap_core::errno::{ENOMEM, EPROTO};
use unetmap_sys::memfd;
use unetmap_sys::socket::Peer;
use zerocopy::FromBytes as _;

use crate::caller::Caller;
use crate::netmap_requests::{self, Got, Needs};
use crate::node::Nodes;
use crate::ports::nic::survey::{Named, first_need};
use crate::ports::{Daemon, nic, vale};
use crate::refusal::{Refusal, decode};

pub(crate) use lock_holder::{LockHolder, LockHolders};
pub(crate) use snapshot::SnapshotTask;

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

type Handler = fn(&mut Call<'_>) -> Reply;

/// The name of each kind of message, and its handler.
const HANDLERS: [(Kind, &str, Handler); 15] = [
    (HelloRequest::KIND, "hello", |_| Reply::Answer(Answer::default())),
    (LockHolderRequest::KIND, "lock holder", lock_holder::lock_holder),
    (NetmapRequest::KIND, "netmap", port::netmap_request),
    (AttachRequest::KIND, "attach", port::repeat_answer),
    (UnbindRequest::KIND, "unbind", port::unbind),
    (NextMonitorRequest::KIND, "next monitor", port::next_monitor),
    (PeerDoorbellsRequest::KIND, "peer doorbells", port::peer_doorbells),
    (ServesRequest::KIND, "serves", port::serves),
    (NicRequest::KIND, "nic", nic),
    (ValeRequest::KIND, "vale", |call| call.text(vale::answer_request)),
    (NodeRequest::KIND, "node", node),
    (KnobRequest::KIND, "knobs", |call| call.text(knobs::answer_request)),
    (SnapshotRequest::KIND, "snapshot", snapshot::snapshot),
    (EventsRequest::KIND, "events", |call| call.text(events::answer_request)),
    (StopRequest::KIND, "stop", stop::stop),
];

/// Kinds whose answers bring descriptors: these wait until earlier ones were received. Others have one if their text is
/// long, and are refused instead.
const WITH_DESCRIPTORS: [Kind; 4] =
    [NetmapRequest::KIND, AttachRequest::KIND, NextMonitorRequest::KIND, PeerDoorbellsRequest::KIND];

/// Whether the answer to messages of this kind brings descriptors.
pub(crate) fn brings_descriptors(kind: Kind) -> bool {
    WITH_DESCRIPTORS.contains(&kind)
}

/// Whether a message is a request whose answer brings descriptors.
pub(crate) fn asks_for_descriptors(message: &[u8]) -> bool {
    wire::decode(message).is_ok_and(|(kind, ..)| brings_descriptors(kind))
}

/// Answers a message.
pub(crate) fn answer(kind: Kind, call: &mut Call<'_>) -> Reply {
    match HANDLERS.iter().find(|(of, ..)| *of == kind) {
        Some((.., handler)) => handler(call),
        None => Reply::Invalid(EPROTO, "there is no request of this kind"),
    }
}

/// The name of a message's kind; of a netmap request, its own.
pub(crate) fn name(kind: Kind, payload: &[u8]) -> &'static str {
    let of_request = || netmap_requests::name(NmreqHeader::read_from_prefix(payload).ok()?.0.nr_reqtype);
    let of_kind = HANDLERS.iter().find(|(of, ..)| *of == kind).map(|(_, name, _)| *name);
    of_request().filter(|_| kind == NetmapRequest::KIND).or(of_kind).unwrap_or("unknown")
}

/// Nic: state and settings of an interface.
fn nic(call: &mut Call<'_>) -> Reply {
    let named = NicRequest::decode(call.payload).ok().map(|request| Named::port(request.interface));
    let Some(caller) = &mut call.caller else { return Reply::Close };
    match first_need(call.daemon, named, caller, &call.got) {
        Ok(Some(needs)) => Reply::Needs(needs),
        Ok(None) => call.text(nic::answer_request),
        Err(refusal) => Reply::Answer(call.refused(refusal)),
    }
}

/// Node: state and settings of `/dev/netmap`.
fn node(call: &mut Call<'_>) -> Reply {
    let answered = decode(call.payload).and_then(|request| call.nodes.answer_request(call.daemon, call.peer, request));
    call.text_reply(answered)
}

impl Call<'_> {
    /// Answers with the text that `handler` returns.
    fn text<R: ControlRequest>(&mut self, handler: fn(&mut Daemon, R, &Caller) -> Result<String, Refusal>) -> Reply {
        let Some(caller) = &self.caller else { return Reply::Close };
        let answered = decode(self.payload).and_then(|request| handler(self.daemon, request, caller));
        self.text_reply(answered)
    }

    fn text_reply(&self, answered: Result<String, Refusal>) -> Reply {
        Reply::Answer(answered.map_or_else(|refusal| self.refused(refusal), |text| text_answer(&[&text])))
    }

    /// Returns the answer to a request that was refused.
    fn refused(&self, refusal: Refusal) -> Answer {
        let Refusal { errno, why, .. } = refusal;
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
