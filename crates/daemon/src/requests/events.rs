// SPDX-License-Identifier: BSD-2-Clause
//! Events: what happened to ports, sessions, interfaces and budgets (`unetmap events`).

use unetmap_core::control::{ControlRequest, EventsRequest};
use unetmap_core::errno::{EINVAL, EIO};

use crate::caller::Caller;
use crate::owner::owner;
use crate::ports::Daemon;
use crate::refusal::{Refusal, refuse};

/// Answers with the events after a number, as JSON. Users other than root and the daemon's owner see their own only.
pub(super) fn answer_request(daemon: &mut Daemon, payload: &[u8], caller: &Caller) -> Result<String, Refusal> {
    let Ok(EventsRequest { after }) = EventsRequest::decode(payload) else {
        return refuse(EINVAL, "the request for events cannot be decoded");
    };
    let uid = caller.peer.uid;
    let only = (uid != 0 && uid != owner()).then_some(uid);
    daemon.events.json(only, after).or_else(|e| refuse(EIO, format!("the answer cannot be written: {e}")))
}
