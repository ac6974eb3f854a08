// SPDX-License-Identifier: BSD-2-Clause
//! Looking for interfaces: by name, in the caller's network namespace, and for those that are open.

use unetmap_core::errno::{ENXIO, EPERM};
use unetmap_sys::link::Link;

use super::refusals::{denied, refuse_away};
use super::surveyed::Place;
use super::{Nic, NicKey, NicPort};
use crate::caller::Caller;
use crate::ports::{Admission, EndpointKey, PortKey, Registry};
use crate::privileged;
use crate::refusal::{Refusal, refuse};
use crate::region::DAEMON_UID;
use crate::registry::Port;

/// Whether there may be an interface that the policy gives to the caller.
pub(crate) fn may_have_interfaces(admission: &mut Admission, caller: &Caller) -> Result<bool, Refusal> {
    let gives = admission.policy()?.is_some_and(|policy| policy.may_give_interfaces(&caller.identity(policy)));
    Ok(gives || caller.peer.uid == 0)
}

/// As [`find_link`], for a request that needs the policy's leave. A caller to whom it gives no interface is refused
/// without a look at any: that would wait for the kernel's lock of the network configuration.
pub(super) fn find_link_for(admission: &mut Admission, name: &str, caller: &Caller) -> Result<Option<Link>, Refusal> {
    if matches!(may_have_interfaces(admission, caller), Ok(true)) {
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

fn find_port(registry: &Registry, netns: u64, index: u32) -> Option<&Port<NicPort>> {
    let is_it = |port: &&Port<NicPort>| {
        (port.key.netns, port.key.index) == (netns, index) && port.here().is_none_or(|nic| !nic.gone)
    };
    registry.all::<NicPort>().find(is_it)
}

/// Returns the interface, if it is open. Requests wait before they look for one that is away.
pub(crate) fn find(registry: &Registry, netns: u64, index: u32) -> Result<Option<&Nic>, Refusal> {
    find_port(registry, netns, index).map(|port| port.here().map_or_else(refuse_away, Ok)).transpose()
}

/// Whether a thread has the interface.
pub(crate) fn is_away(registry: &Registry, (netns, index): Place) -> bool {
    find_port(registry, netns, index).is_some_and(|port| port.here().is_none())
}

pub(super) fn port_mut(registry: &mut Registry, nic: NicKey) -> Option<&mut Port<NicPort>> {
    registry.get_mut(&PortKey::Nic(nic))
}

/// Whether any interface of a namespace is away.
pub(super) fn any_is_away(registry: &Registry, netns: u64) -> bool {
    registry.all::<NicPort>().any(|port| port.key.netns == netns && port.here().is_none())
}

/// The user to whom an interface belongs, as its events do; root attaches interfaces to switches.
pub(super) fn owner_of(registry: &Registry, key: NicKey) -> u32 {
    let through_daemon = registry.mediated(key).map(|port| port.record.scope.uid);
    let direct =
        || registry.record(&PortKey::Nic(key)).ok().map(|port| port.scope.uid).filter(|uid| *uid != DAEMON_UID);
    through_daemon.or_else(direct).unwrap_or(0)
}

/// The interface whose sockets serve a port; `None`: there is none.
pub(super) fn behind(registry: &Registry, at: &EndpointKey) -> Option<NicKey> {
    // The rings of a mediated port have the numbers of the interface's.
    registry.interface_of(&at.port).filter(|_| at.index == 0)
}

/// The interface whose sockets serve a port, while a thread has it.
pub(crate) fn away_behind(registry: &Registry, at: &EndpointKey) -> Option<NicKey> {
    let is_away = |nic: &NicKey| registry.get::<NicPort>(&PortKey::Nic(*nic)).is_some_and(|port| port.here().is_none());
    behind(registry, at).filter(is_away)
}
