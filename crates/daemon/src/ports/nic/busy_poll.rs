// SPDX-License-Identifier: BSD-2-Clause
//! Busy polling: whether system calls on an interface's sockets poll its queues themselves.
//!
//! It is set for an interface, by the same users and for as long as a filter (`filter`). Sockets get it when they are
//! opened, so that it is the same for all programs that share one.

use std::io;

use serde::Serialize;
use unetmap_core::errno::{EINVAL, ENXIO, EOPNOTSUPP, EPERM};
use unetmap_sys::kernel;
use unetmap_sys::link::Link;
use unetmap_sys::xsk::BusyPoll;

use super::open::{check_may_set, refuse_persistent};
use crate::caller::Caller;
use crate::policy::Access;
use crate::ports::{Daemon, PortKey};
use crate::privileged;
use crate::refusal::{Refusal, refuse};

/// The kernel does not have the option.
const ENOPROTOOPT: i32 = 92;

/// The setting in JSON: microseconds, and packets of one poll.
#[derive(Serialize)]
pub(super) struct BusyPollSnapshot {
    usec: u16,
    budget: u16,
}

impl BusyPollSnapshot {
    pub(super) fn of(busy_poll: BusyPoll) -> BusyPollSnapshot {
        BusyPollSnapshot { usec: busy_poll.usec(), budget: busy_poll.budget() }
    }
}

/// Sets the microseconds and packets of sockets that are opened from now on; `None`: they do not busy poll.
pub(super) fn set_busy_poll(
    daemon: &mut Daemon,
    link: &Link,
    requested: Option<(u32, u32)>,
    access: Option<Access>,
    caller: &Caller,
) -> Result<(), Refusal> {
    let (uid, netns_id, name) = (caller.peer.uid, caller.netns_id(), &link.name);
    let open = check_may_set(&daemon.registry, "busy polling", link, access, caller)?;
    let busy_poll = match requested {
        None => {
            daemon.nics.settings.remove_busy_poll(netns_id, link.index);
            tracing::info!(name, uid, "busy polling removed");
            None
        }
        Some((usec, budget)) => {
            let busy_poll = BusyPoll::new(usec, budget).or_else(|why| refuse(EINVAL, why))?;
            refuse_persistent(&daemon.vale.persistent, "busy polling", link, caller)?;
            let Some(netns) = caller.netns() else { return refuse(ENXIO, "no such interface (ip link shows them)") };
            // Also tried where no socket is open yet: a setting that cannot be used is not stored.
            let tried = privileged::try_busy_poll(netns, busy_poll);
            tried.or_else(|e| refuse_busy_poll(&e))?;
            daemon.nics.settings.store_busy_poll(netns, link.index, (busy_poll, uid))?;
            tracing::info!(name, uid, usec, budget, "busy polling set");
            Some(busy_poll)
        }
    };
    if let Some(nic) = open.and_then(|key| daemon.registry.nic_mut(&PortKey::Nic(key))) {
        nic.busy_poll = busy_poll;
    }
    Ok(())
}

/// Refuses busy polling that the kernel does not accept.
pub(super) fn refuse_busy_poll<T>(e: &io::Error) -> Result<T, Refusal> {
    match e.raw_os_error() {
        Some(EPERM) => refuse(EPERM, "the daemon may not let sockets busy poll: give it CAP_NET_ADMIN and CAP_NET_RAW"),
        Some(ENOPROTOOPT) => refuse(EOPNOTSUPP, kernel::BUSY_POLL.refusal()),
        _ => refuse(EOPNOTSUPP, format!("sockets cannot busy poll: {e}")),
    }
}
