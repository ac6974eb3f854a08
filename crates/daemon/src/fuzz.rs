// SPDX-License-Identifier: BSD-2-Clause
//! Functions that the fuzz targets call.

use std::path::Path;

use unetmap_core::control::ControlRequest as _;
use unetmap_core::control::request::{NetmapReply, NetmapRequest};
use unetmap_sys::socket::Peer;

use crate::caller::{Caller, Namespace};
use crate::knobs::Knobs;
use crate::netmap_requests::{self, Got, Step};
use crate::policy::{Identity, Policy};
use crate::ports::{Admission, Daemon};
use crate::region::Sizes;

const PEER: Peer = Peer { pid: 1, uid: 1, gid: 1 };
/// Requests of one run.
const MAX_REQUESTS: usize = 16;

/// Reads a policy. A client that it gives anything is admitted.
///
/// # Panics
/// It is not.
pub fn policy(bytes: &[u8]) {
    let Some(policy) = std::str::from_utf8(bytes).ok().and_then(Policy::of_text) else { return };
    for uid in [0, 1, 1000, u32::MAX] {
        let who = Identity { uid, groups: &[uid, 7], netns: 4_026_531_840 };
        let given = policy.pipes(&who) || ["eth0", "lo", "a"].iter().any(|name| policy.nic(&who, name).is_some());
        assert!(!given || policy.admits_anything(&who), "user {uid} is given something and not admitted");
    }
    policy.budgets();
}

/// Reads a configuration. The sizes that it sets are those of regions that can be made.
///
/// # Panics
/// They are not.
pub fn configuration(bytes: &[u8]) {
    let Ok(knobs) = Knobs::of_bytes(Path::new("/fuzz"), bytes) else { return };
    for sizes in [knobs.interface_sizes(0, false), knobs.private_sizes()] {
        sizes.bytes().expect("checked when they were set");
    }
    knobs.thread_plan();
}

/// Answers netmap requests, each preceded by two bytes with its length and one that says whether it comes from a
/// connection that has a session. Whatever they were, nothing is left when all sessions are closed.
///
/// # Panics
/// Something is left, or an answer does not survive encoding.
pub fn requests(bytes: &[u8]) {
    let admission = Admission { only_user: Some(PEER.uid), policy: None };
    let sizes = Sizes { ifs: (12, 512), rings: (40, 1024), bufs: (400, 64) };
    let mut daemon = Daemon::new(Knobs::of_sizes(sizes), admission, 0x4000);
    let mut caller = Caller { peer: PEER, groups: Vec::new(), namespace: Namespace::default(), survey: None };
    let mut sessions = Vec::new();
    let mut rest = bytes;
    for _ in 0..MAX_REQUESTS {
        let Some((&[low, high, on], after)) = rest.split_first_chunk::<3>() else { break };
        let length = usize::from(u16::from_le_bytes([low, high])).min(after.len());
        let (message, after) = after.split_at(length);
        rest = after;
        let Ok(request) = NetmapRequest::decode(message) else { continue };
        let session = sessions.last().copied().filter(|_| on & 1 == 1);
        let step = netmap_requests::answer(&mut daemon, request, &mut caller, session, Got::Nothing);
        let Step::Done(outcome) = step else { panic!("there are no threads to wait for") };
        assert!(NetmapReply::decode(&outcome.answer.encode()).is_some(), "an answer that cannot be decoded");
        // That of the connection is repeated.
        sessions.extend(outcome.session.filter(|opened| !sessions.contains(opened)));
        if on & 2 == 2 {
            sessions.pop().into_iter().for_each(|session| daemon.close(session));
        }
    }
    sessions.into_iter().for_each(|session| daemon.close(session));
    assert!(daemon.registry.sessions.is_empty(), "a session is left");
}
