// SPDX-License-Identifier: BSD-2-Clause
//! The virtio-net header of a persistent port's packets: root's, and that of the programs that have it open.

use unetmap_core::errno::EBUSY;

use super::persistent::PersistentPort;
use super::port::ValePort;
use super::switches::ValeState;
use crate::caller::Caller;
use crate::ports::{PortKey, Registry};
use crate::refusal::{Refusal, refuse};

impl PersistentPort {
    /// The header for programs of this user.
    pub(super) fn header_for(&self, uid: u32) -> u8 {
        self.own_header.filter(|(of, _)| *of == uid).map_or(self.header, |(_, bytes)| bytes)
    }
}

/// Returns the header of the packets that programs of this user send and receive on the port with this hidden end.
pub(crate) fn header_for(vale: &ValeState, hidden: u32, uid: u32) -> u8 {
    vale.persistent.get(hidden).map_or(0, |port| port.header_for(uid))
}

/// Whether the caller's process has the port open.
pub(crate) fn has_open(registry: &Registry, hidden: u32, caller: &Caller) -> bool {
    let (port, peer) = (PortKey::Persistent(hidden), caller.peer);
    registry.sessions.values().any(|session| session.port == port && (session.uid, session.pid) == (peer.uid, peer.pid))
}

/// Sets the header. One that root sets stays, unless the process that sets it has the port open: then, and if it is
/// another user's, it is in force for programs of this user until the last of them closes the port.
pub(crate) fn set_header(
    registry: &Registry,
    vale: &mut ValeState,
    hidden: u32,
    bytes: u8,
    caller: &Caller,
) -> Result<(), Refusal> {
    let (uid, port) = (caller.peer.uid, PortKey::Persistent(hidden));
    let is_own = uid != 0 || has_open(registry, hidden, caller);
    let opened_by = registry.sessions.values().find(|session| session.port == port).map(|session| session.uid);
    if let Some(other) = opened_by.filter(|other| is_own && *other != uid) {
        return refuse(EBUSY, format!("user {other} has it open"));
    }
    // What a program sets for itself does not last.
    vale.has_unsaved |= !is_own;
    if let Some(port) = vale.persistent.get_mut(hidden) {
        match is_own {
            true => port.own_header = Some((uid, bytes)),
            false => (port.header, port.own_header) = (bytes, None),
        }
    }
    let of_program = registry.get::<ValePort>(&port);
    of_program.into_iter().for_each(|port| port.switch_side.set_vnet_hdr_len(bytes));
    Ok(())
}

/// A session is closed: after the last one, the header is again that of before.
pub(crate) fn end_own_header(registry: &Registry, vale: &mut ValeState, hidden: u32) {
    let port = PortKey::Persistent(hidden);
    let is_open = registry.sessions.values().any(|session| session.port == port);
    if let Some(persistent) = vale.persistent.get_mut(hidden).filter(|_| !is_open) {
        persistent.own_header = None;
        let of_program = registry.get::<ValePort>(&port);
        let header = persistent.header;
        of_program.into_iter().for_each(|port| port.switch_side.set_vnet_hdr_len(header));
    }
}
