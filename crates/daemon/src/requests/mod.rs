// SPDX-License-Identifier: BSD-2-Clause
//! The messages of the control socket: each kind and the function that answers it.
//!
//! To add a kind: write its handler in the file of its subject, and add a row to [`HANDLERS`]. The requests' types,
//! with their encoding, are in the library that clients use, too.

mod call;
mod knobs;
mod lock_holder;
mod port;
mod snapshot;
mod stop;

use unetmap_abi::NmreqHeader;
use unetmap_core::control::{
    AttachRequest, ControlRequest, EventsRequest, HelloRequest, Kind, KnobRequest, LockHolderRequest, NetmapRequest,
    NextMonitorRequest, NicRequest, NodeRequest, PeerDoorbellsRequest, ServesRequest, SnapshotRequest, StopRequest,
    UnbindRequest, ValeRequest, wire,
};
use unetmap_core::errno::{EINVAL, EPERM, EPROTO};
use unetmap_sys::socket;
use zerocopy::FromBytes as _;

use crate::netmap_requests::{self, Needs};
use crate::ports::nic::survey::{Named, first_need};
use crate::ports::{nic, vale};
use crate::refusal::{decode, refuse};

pub(crate) use call::{Answer, Call, Reply, text_answer};
pub(crate) use lock_holder::{LockHolder, LockHolders};
pub(crate) use snapshot::SnapshotTask;

type Handler = fn(&mut Call<'_>) -> Reply;

/// The name of each kind of message, and its handler.
const HANDLERS: [(Kind, &str, Handler); 15] = [
    (HelloRequest::KIND, "hello", |_| Reply::Answer(Answer::default())),
    (LockHolderRequest::KIND, "lock holder", lock_holder),
    (NetmapRequest::KIND, "netmap", port::netmap_request),
    (AttachRequest::KIND, "attach", port::repeat_answer),
    (UnbindRequest::KIND, "unbind", port::unbind),
    (NextMonitorRequest::KIND, "next monitor", port::next_monitor),
    (PeerDoorbellsRequest::KIND, "peer doorbells", port::peer_doorbells),
    (ServesRequest::KIND, "serves", port::serves),
    (NicRequest::KIND, "nic", nic),
    (ValeRequest::KIND, "vale", vale),
    (NodeRequest::KIND, "node", node),
    (KnobRequest::KIND, "knobs", |call| call.text(knobs::answer_request)),
    (SnapshotRequest::KIND, "snapshot", snapshot),
    (EventsRequest::KIND, "events", events),
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

/// Kinds of requests about the daemon itself. None is answered on a connection by which a process has ports: programs
/// open these as root, go on as another user, and start others, which have the descriptor.
const ABOUT_THE_DAEMON: [Kind; 3] = [NodeRequest::KIND, KnobRequest::KIND, StopRequest::KIND];

/// Answers a message.
pub(crate) fn answer(kind: Kind, call: &mut Call<'_>) -> Reply {
    if ABOUT_THE_DAEMON.contains(&kind) && (call.session.is_some() || call.holder.is_some()) {
        let why = "this is asked on a connection of its own, and not on that of an open port";
        return call.text_reply(refuse(EPERM, why));
    }
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
    let daemon = &mut *call.daemon;
    let open = (&daemon.registry, &daemon.nics.work, &daemon.vale);
    match first_need(&mut daemon.admission, open, named, caller, &call.got) {
        Ok(Some(needs)) => Reply::Needs(needs),
        Ok(None) => call.text(nic::answer_request),
        Err(refusal) => Reply::Answer(call.refused(refusal)),
    }
}

/// Vale: state and settings of switches. Waits until these have all ports that an earlier daemon has left.
fn vale(call: &mut Call<'_>) -> Reply {
    if call.daemon.vale.returning.awaits(None) {
        return Reply::Needs(Needs::Returning(None, call.got.rounds()));
    }
    call.text(vale::answer_request)
}

/// Node: state and settings of `/dev/netmap`.
fn node(call: &mut Call<'_>) -> Reply {
    let answered = decode(call.payload).and_then(|request| call.nodes.answer_request(call.daemon, call.peer, request));
    call.text_reply(answered)
}

/// LockHolder: a holder ID for the process that is connected.
fn lock_holder(call: &mut Call<'_>) -> Reply {
    if call.holder.is_some() {
        return Reply::Invalid(EINVAL, "a second holder ID on one connection");
    }
    let id = call.lock_holders.allocate();
    let pidfd = socket::peer_pidfd(call.connection);
    let pidfd = pidfd.inspect_err(|e| {
        tracing::debug!(
            pid = call.peer.pid,
            "no pidfd; the end of the connection counts as the exit of the process: {e}"
        );
    });
    *call.holder = Some(LockHolder { id, pidfd: pidfd.ok() });
    Reply::Answer(Answer { holder: id, ..Default::default() })
}

/// Events after a number, as JSON. Users other than root and the daemon's owner see their own only.
fn events(call: &mut Call<'_>) -> Reply {
    let only = call.only_user();
    nic::settle::report_bypasses(call.daemon);
    let answered = decode(call.payload).and_then(|EventsRequest { after }| call.daemon.events.json(only, after));
    call.text_reply(answered)
}

/// Snapshot. Users other than root and the daemon's owner see their own ports only.
fn snapshot(call: &mut Call<'_>) -> Reply {
    let only = call.only_user();
    call.daemon.count_kernel_path();
    let users = call.daemon.user_snapshots(only);
    let totals = if only.is_none() { call.daemon.total_snapshots() } else { Vec::new() };
    Reply::Later(Box::new(SnapshotTask::new(call.daemon, (users, totals), only)))
}
