// SPDX-License-Identifier: BSD-2-Clause
//! Looking for interfaces by name, in the caller's network namespace.

use unetmap_core::errno::{EACCES, ENXIO, EPERM};
use unetmap_sys::link::Link;

use crate::caller::Caller;
use crate::ports::Daemon;
use crate::privileged;
use crate::refusal::{Refusal, refuse};

/// Whether there may be an interface that the policy gives to the caller.
pub(crate) fn may_have_interfaces(daemon: &mut Daemon, caller: &Caller) -> Result<bool, Refusal> {
    let gives = daemon.admission.policy()?.is_some_and(|policy| policy.may_give_interfaces(&caller.identity(policy)));
    Ok(gives || caller.peer.uid == 0)
}

/// As [`find_link`], for a request that needs the policy's leave. A caller to whom it gives no interface is refused
/// without a look at any: that would wait for the kernel's lock of the network configuration.
pub(super) fn find_link_for(daemon: &mut Daemon, name: &str, caller: &Caller) -> Result<Option<Link>, Refusal> {
    if matches!(may_have_interfaces(daemon, caller), Ok(true)) {
        return find_link(name, caller);
    }
    if caller.lacks_interface(name) { Ok(None) } else { denied(caller) }
}

/// Finds an interface by name in the caller's network namespace.
pub(crate) fn find_link(name: &str, caller: &Caller) -> Result<Option<Link>, Refusal> {
    if let Some(surveyed) = caller.surveyed_link(name) {
        return Ok(surveyed);
    }
    if caller.lacks_interface(name) {
        return Ok(None);
    }
    let Some(netns) = caller.netns() else {
        return refuse(EPERM, "the daemon cannot see your network namespace: give it CAP_NET_ADMIN");
    };
    privileged::link_named(netns, name).or_else(|e| match e.raw_os_error() {
        Some(EPERM) => refuse(EPERM, "the daemon may not enter your network namespace: give it CAP_SYS_ADMIN"),
        _ => refuse(ENXIO, format!("looking for the interface in your network namespace: {e}")),
    })
}

/// Refuses an interface that the policy does not give to the caller.
pub(super) fn denied<T>(caller: &Caller) -> Result<T, Refusal> {
    let uid = caller.peer.uid;
    refuse(EACCES, format!("user {uid} may not open it (the policy says who may: unetmap-policy(5))"))
}
