// SPDX-License-Identifier: BSD-2-Clause
//! Virtio-net headers of interfaces (PORT_HDR_SET): each packet of the port begins with one, so that a forwarder can
//! pass unsegmented packets, and packets with unfinished checksums, from a switch port to an interface.
//!
//! AF_XDP has no place for the header. The daemon therefore moves the packets of such an interface, as for a program
//! that may not use its sockets (`mediator::headers`).

use unetmap_core::errno::{EBUSY, EIO, ENXIO, EPERM};

use super::lookup::find_link;
use super::open::{admitted, find};
use crate::caller::Caller;
use crate::ports::Daemon;
use crate::ports::vale::{self, persistent};
use crate::refusal::{Refusal, refuse};

/// Returns the header of an interface's packets: 0, 10 or 12 bytes; 0 if there is no such interface.
pub(crate) fn header(daemon: &mut Daemon, name: &str, caller: &Caller) -> Result<u8, Refusal> {
    if daemon.admission.policy.is_none() {
        return Ok(0);
    }
    let Ok(Some(link)) = find_link(name, caller) else { return Ok(0) };
    match persistent::of_link(daemon, &link, caller)? {
        Some(hidden) => Ok(vale::persistent_header(daemon, hidden)),
        None => Ok(daemon.nics.settings.header_of(caller.netns_id(), link.index)),
    }
}

/// Sets it, for ports that are opened afterwards.
pub(crate) fn set_header(daemon: &mut Daemon, name: &str, bytes: u8, caller: &Caller) -> Result<(), Refusal> {
    if daemon.admission.policy.is_none() {
        return refuse(ENXIO, "there is no such port in a switch, and a user's own daemon opens no interface");
    }
    let (link, _) = admitted(daemon, name, caller)?;
    if let Some(hidden) = persistent::of_link(daemon, &link, caller)? {
        vale::set_persistent_header(daemon, hidden, bytes);
        return Ok(());
    }
    if daemon.nics.settings.header_of(caller.netns_id(), link.index) == bytes {
        return Ok(());
    }
    if find(daemon, caller.netns_id(), link.index)?.is_some() {
        return refuse(EBUSY, "it is open: the header of an interface is set before it is opened");
    }
    let Some(netns) = caller.netns() else { return refuse(EPERM, "the daemon cannot see your network namespace") };
    match bytes {
        0 => daemon.nics.settings.remove_header(netns.id(), link.index),
        _ => daemon.nics.settings.store_header(netns, link.index, bytes)?,
    }
    tracing::info!(name = link.name, uid = caller.peer.uid, bytes, "virtio-net header set");
    Ok(())
}

/// Refuses a program that does not accept the header.
pub(in crate::ports) fn refuse_header<T>(header: u8) -> Result<T, Refusal> {
    refuse(
        EIO,
        format!(
            "its packets begin with a virtio-net header of {header} bytes, which the program must accept \
             (NR_ACCEPT_VNET_HDR)"
        ),
    )
}
