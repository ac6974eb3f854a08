// SPDX-License-Identifier: BSD-2-Clause
//! Events: what happened to ports, sessions, interfaces and budgets (`unetmap events`).

use unetmap_core::control::EventsRequest;

use crate::caller::Caller;
use crate::owner::owner;
use crate::ports::Daemon;
use crate::refusal::Refusal;

/// Answers with the events after a number, as JSON. Users other than root and the daemon's owner see their own only.
pub(super) fn answer_request(daemon: &mut Daemon, request: EventsRequest, caller: &Caller) -> Result<String, Refusal> {
    let uid = caller.peer.uid;
    let only = (uid != 0 && uid != owner()).then_some(uid);
    daemon.events.json(only, request.after)
}
