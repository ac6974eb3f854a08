// SPDX-License-Identifier: BSD-2-Clause
//! Requests about ports: netmap's own, and those that a process sends about the port that its connection has open.

use std::mem;

use unetmap_core::control::{ControlRequest, NetmapRequest, NextMonitorRequest, PeerDoorbellsRequest, ServesRequest};
use unetmap_core::errno::{ENXIO, EPROTO};

use super::call::{Answer, Call, Reply};
use crate::netmap_requests::{self, Got, Outcome, Step};
use crate::ports::nic::{self, survey};
use crate::ports::{EndpointKey, monitor};

/// Ctrl: a netmap request.
pub(super) fn netmap_request(call: &mut Call<'_>) -> Reply {
    let request = match NetmapRequest::decode(call.payload) {
        Ok(request) => request,
        Err(errno) => return Reply::Answer(Answer { errno, ..Default::default() }),
    };
    let Some(caller) = &mut call.caller else { return Reply::Close };
    let name = request.name().unwrap_or_default().to_owned();
    let got = mem::take(&mut call.got);
    let outcome = match netmap_requests::answer(call.daemon, request, caller, *call.session, got) {
        Step::Done(outcome) => outcome,
        Step::Needs(needs) => return Reply::Needs(needs),
    };
    let pid = call.peer.pid;
    match outcome.errno {
        // Its line is that of the open.
        0 if outcome.session.is_some() => {}
        0 => tracing::debug!(pid, name, "served"),
        errno => {
            tracing::debug!(pid, name, errno, why = outcome.answer.reason, "refused");
            call.daemon.count_policy_refusal(call.peer.uid, errno, &outcome.answer.reason);
        }
    }
    *call.session = call.session.or(outcome.session);
    outcome_reply(outcome)
}

/// Attach: the answer to REGISTER again, for another process that has the connection.
pub(super) fn repeat_answer(call: &mut Call<'_>) -> Reply {
    let rounds = if let Got::Interface(rounds) = call.got { rounds } else { 0 };
    let session = call.session.and_then(|session| call.daemon.registry.sessions.get(&session));
    let nic = session.and_then(|session| {
        nic::away_behind(&call.daemon.registry, &EndpointKey { port: session.port.clone(), index: session.endpoint })
    });
    match nic.map(|nic| survey::wait_for(nic.place(), rounds)) {
        Some(Ok(needs)) => Reply::Needs(needs),
        Some(Err(refusal)) => Reply::Answer(call.refused(refusal)),
        None => outcome_reply(netmap_requests::repeat_answer(call.daemon, *call.session)),
    }
}

fn outcome_reply(outcome: Outcome) -> Reply {
    let (errno, payload) = (outcome.errno, outcome.answer.encode());
    Reply::Answer(Answer { errno, payload, fds: outcome.fds, ..Default::default() })
}

/// Unbind: the program cannot use the port as it needs, and closes its session.
pub(super) fn unbind(call: &mut Call<'_>) -> Reply {
    if let Some(session) = call.session.take() {
        tracing::debug!(pid = call.peer.pid, session, "session closed by its client");
        call.daemon.close(session);
    }
    Reply::Answer(Answer::default())
}

/// Watchers: the next monitor of a session; an empty answer after the last.
pub(super) fn next_monitor(call: &mut Call<'_>) -> Reply {
    let Ok(request) = NextMonitorRequest::decode(call.payload) else {
        return Reply::Invalid(EPROTO, "the request about monitors cannot be decoded");
    };
    Reply::Answer(match monitor::next_monitor(&call.daemon.registry, &request) {
        Ok(Some((monitor, fds))) => Answer { payload: monitor.encode(), fds, ..Default::default() },
        Ok(None) => Answer::default(),
        Err(refusal) => call.refused(refusal),
    })
}

/// The doorbells of the other end of a session's pipe.
pub(super) fn peer_doorbells(call: &mut Call<'_>) -> Reply {
    let Ok(request) = PeerDoorbellsRequest::decode(call.payload) else {
        return Reply::Invalid(EPROTO, "the request for doorbells cannot be decoded");
    };
    Reply::Answer(match call.daemon.peer_doorbells(&request) {
        Ok(fds) => Answer { fds, ..Default::default() },
        Err(refusal) => call.refused(refusal),
    })
}

/// Serves: what the process serves with its port.
pub(super) fn serves(call: &mut Call<'_>) -> Reply {
    let Ok(request) = ServesRequest::decode(call.payload) else {
        return Reply::Invalid(EPROTO, "the request about what is served cannot be decoded");
    };
    let session = call.session.and_then(|session| call.daemon.registry.sessions.get_mut(&session));
    Reply::Answer(match session {
        Some(session) => {
            session.serves = Some(request);
            Answer::default()
        }
        None => Answer { errno: ENXIO, payload: b"no port is bound to this connection".to_vec(), ..Default::default() },
    })
}
