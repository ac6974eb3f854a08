// SPDX-License-Identifier: BSD-2-Clause
//! Attached interfaces: switch ports that no program has open.
//!
//! ```text
//! switch == port valeS:IF == [thread for each queue] == interface IF              attached
//! switch == port valeS:IF^ == [thread for each pair] == host rings of IF         attached with it
//! ```
//! To the switch such a port is like any other. On its other side is a mediator thread, as for mediated interfaces.

use std::mem;

use unetmap_abi::*;
use unetmap_core::errno::{ENXIO, EPERM};

use super::open::create;
use super::port::{AttachedInterface, Side, ValePort};
use super::{ValeKey, ValeState};
use crate::caller::Caller;
use crate::events::What;
use crate::ports::Registry;
use crate::ports::nic::{Nic, no_such_interface};
use crate::ports::{Admission, Asked, Daemon, EndpointKey, PortKey, mediators};
use crate::refusal::{Refusal, refuse};
use crate::region::{DAEMON_UID, RegionMemory, Scope};

/// Bytes of the virtio-net header of packets of packet sockets: as guests have.
const HEADER_OF_SEGMENTS: u8 = 12;

/// Creates a switch port for the interface, or for its host rings, in region `mem_id` (0: one of its own), and starts
/// the threads. Returns the port and its index in the switch.
pub(super) fn connect(
    daemon: &mut Daemon,
    key: &ValeKey,
    attached: (&PortKey, Side),
    mem_id: u16,
    caller: &Caller,
) -> Result<(PortKey, u32), Refusal> {
    connect_as(daemon, (key, key), attached, mem_id, caller)
}

/// Connects it as [`connect`] does. The registry has the port under `name`.
pub(super) fn connect_as(
    daemon: &mut Daemon,
    (name, key): (&ValeKey, &ValeKey),
    (interface, side): (&PortKey, Side),
    mem_id: u16,
    caller: &Caller,
) -> Result<(PortKey, u32), Refusal> {
    let interface_at = EndpointKey::from(interface.clone());
    let shape = daemon.registry.endpoint(&interface_at)?.0.shape;
    let (tx_rings, rx_rings) = match side {
        Side::Wire => (shape.tx_rings, shape.rx_rings),
        Side::Host => (shape.host_tx_rings, shape.host_rx_rings),
    };
    // The port sends what the interface receives.
    let mirrored = NmreqRegister {
        nr_tx_slots: shape.rx_slots.get(),
        nr_rx_slots: shape.tx_slots.get(),
        nr_tx_rings: rx_rings,
        nr_rx_rings: tx_rings,
        nr_mem_id: mem_id,
        ..Default::default()
    };
    let owner = Caller { peer: caller.peer, ..Caller::daemon() };
    let asked = &mut Asked { register: mirrored, memory: &mut RegionMemory::AsUsed };
    let switch_port = create(daemon, (name, key), asked, Scope { uid: DAEMON_UID, netns: 0 }, &owner)?;
    // What packet sockets carry is whole.
    if daemon.registry.nic(interface).is_some_and(Nic::has_packet_sockets)
        && let Some(port) = daemon.registry.get::<ValePort>(&switch_port)
    {
        port.switch_side.set_vnet_hdr_len(HEADER_OF_SEGMENTS);
    }
    // The switch has a port of its own for the host rings, so they are its ordinary rings.
    let (program, rings) = (switch_port.clone().into(), (tx_rings, rx_rings));
    let threads = mediators::start_all(daemon, &program, &key.port, (&interface_at, side.mode()), rings);
    let threads = threads.inspect_err(|_| daemon.release_if_unused(&switch_port))?;
    log(daemon, name, true);
    daemon.nics.abandoned.attached();
    daemon.vale.has_unsaved = true;
    let node = daemon.registry.nic(interface).and_then(|nic| nic.numa_node);
    let Some(port) = daemon.registry.get_mut::<ValePort>(&switch_port) else { return no_such_interface() };
    port.attachment = Some(AttachedInterface { interface: interface.clone(), side, polling: false });
    port.record.mediators = threads;
    let (id, index) = (port.id.clone(), port.index());
    daemon.vale.set_node(key, index, node);
    Ok((id, index.into()))
}

/// Detaches an interface, or its host rings.
pub(super) fn disconnect(daemon: &mut Daemon, id: &PortKey) {
    let Some(port) = daemon.registry.get_mut::<ValePort>(id) else { return };
    let key = port.key.clone();
    let Some(AttachedInterface { interface, .. }) = port.attachment.take() else { return };
    let threads = mem::take(&mut port.record.mediators);
    daemon.vale.has_unsaved = true;
    daemon.stop_mediators(threads);
    daemon.release_if_unused(id);
    daemon.release_if_unused(&interface);
    // A persistent port is detached, and not its end.
    if !interface.as_nic().is_some_and(|nic| daemon.vale.persistent.is_hidden_namespace(nic.netns)) {
        log(daemon, &key, false);
    }
}

/// Logs that a port of a switch was attached or detached. The host end of a persistent port has places that no program
/// knows of.
pub(super) fn log(daemon: &mut Daemon, key: &ValeKey, is_attached: bool) {
    if !key.is_in_own_switch() {
        let (port, label) = (key.name(), daemon.vale.settings.label(key));
        tracing::info!(port, label, "{}", if is_attached { "attached" } else { "detached" });
        let event = if is_attached { What::Attached { port, label } } else { What::Detached { port, label } };
        daemon.events.add(key.scope.uid, event);
    }
}

/// The names of the ports of switches that interfaces are, persistent ports excepted.
pub(crate) fn attached_ports(registry: &Registry, vale: &ValeState) -> Vec<String> {
    let ports = registry.all::<ValePort>().filter(|port| port.attachment.is_some() && !port.key.is_in_own_switch());
    ports.filter(|port| vale.persistent.host_end(&port.key).is_none()).map(|port| port.key.name()).collect()
}

/// Detaches all ports to which `interface` is attached.
pub(super) fn disconnect_from(daemon: &mut Daemon, interface: &PortKey) {
    disconnect_all(daemon, |attachment| attachment.interface == *interface);
}

pub(super) fn disconnect_all(daemon: &mut Daemon, which: impl Fn(&AttachedInterface) -> bool) {
    let ports = daemon.registry.all::<ValePort>().filter(|port| port.attachment.as_ref().is_some_and(&which));
    let ids: Vec<PortKey> = ports.map(|port| port.id.clone()).collect();
    ids.iter().for_each(|id| disconnect(daemon, id));
}

pub(super) fn check_system_daemon(admission: &Admission) -> Result<(), Refusal> {
    match admission.policy {
        None => refuse(ENXIO, "there is no such port: only the system's daemon has them, and this is a user's own"),
        Some(_) => Ok(()),
    }
}

pub(super) fn check_root(admission: &Admission, caller: &Caller) -> Result<(), Refusal> {
    if admission.policy.is_none() {
        return refuse(
            EPERM,
            "only the system's daemon can do this, and this is a user's own (start one as root: unetmapd; or without \
             root: unshare -Urnm, and a tmpfs at /run)",
        );
    }
    match caller.peer.uid {
        0 => Ok(()),
        uid => refuse(EPERM, format!("only root may do this, not user {uid}")),
    }
}
