// SPDX-License-Identifier: BSD-2-Clause
//! Virtio-net headers of interfaces (PORT_HDR_SET): each packet of the port begins with one, so that a forwarder can
//! pass unsegmented packets, and packets with unfinished checksums, from a switch port to an interface. Programs that
//! do not accept the header are refused, so that one user's setting is in force for this user alone.
//!
//! AF_XDP has no place for the header. The daemon therefore moves the packets of such an interface, as for a program
//! that may not use its sockets (`mediator::headers`).

use unetmap_core::errno::{EBUSY, ENXIO, EPERM};

use super::NicKey;
use super::lookup::find_link;
use super::open::{admitted, check_may_set, header_of_link};
use super::state::NicState;
use crate::caller::Caller;
use crate::ports::vale::persistent_header;
use crate::ports::{Daemon, PortKey, Registry};
use crate::refusal::{Refusal, refuse};

/// Returns the header of an interface's packets: 0, 10 or 12 bytes; 0 if there is no such interface.
pub(crate) fn header(daemon: &mut Daemon, name: &str, caller: &Caller) -> Result<u8, Refusal> {
    if daemon.admission.policy.is_none() {
        return Ok(0);
    }
    let Ok(Some(link)) = find_link(name, caller) else { return Ok(0) };
    match daemon.vale.persistent.of_link(&link, caller)? {
        Some(hidden) => Ok(persistent_header::header_for(&daemon.vale, hidden, caller.peer.uid)),
        None => Ok(header_of_link(&mut daemon.nics, &link, caller)),
    }
}

/// Sets it, for ports that are opened afterwards: by root for all users, until root changes it; by another user for
/// this user's programs, until the last of them closes the interface.
pub(crate) fn set_header(daemon: &mut Daemon, name: &str, bytes: u8, caller: &Caller) -> Result<(), Refusal> {
    if daemon.admission.policy.is_none() {
        return refuse(ENXIO, "there is no such port in a switch, and a user's own daemon opens no interface");
    }
    let (link, access) = admitted(&mut daemon.admission, name, caller)?;
    if let Some(hidden) = daemon.vale.persistent.of_link(&link, caller)? {
        if !persistent_header::has_open(&daemon.registry, hidden, caller) {
            check_may_set(&daemon.registry, "header", &link, Some(access), caller)?;
        }
        return persistent_header::set_header(&daemon.registry, &mut daemon.vale, hidden, bytes, caller);
    }
    let open = check_may_set(&daemon.registry, "header", &link, Some(access), caller)?;
    if header_of_link(&mut daemon.nics, &link, caller) == bytes {
        return Ok(());
    }
    if open.is_some() {
        return refuse(EBUSY, "it is open: the header of an interface is set before it is opened");
    }
    let Some(netns) = caller.netns() else { return refuse(EPERM, "the daemon cannot see your network namespace") };
    daemon.nics.settings.store_header(netns, link.index, bytes, caller.peer.uid)?;
    tracing::info!(name = link.name, uid = caller.peer.uid, bytes, "virtio-net header set");
    Ok(())
}

/// A session of a user at `port`, by which it has this interface, is closed: a header that the user has set ends with
/// the last one.
pub(in crate::ports) fn end_own_header(
    registry: &Registry,
    nics: &mut NicState,
    key: NicKey,
    port: &PortKey,
    uid: u32,
) {
    // Those of the daemon's threads, at the other end of a mediated port, do not count.
    let mut sessions = registry.sessions.values().filter(|session| session.port == *port && session.endpoint == 0);
    if !sessions.any(|session| session.uid == uid) {
        nics.settings.remove_own_header(key.netns, key.index, uid);
    }
}
