// SPDX-License-Identifier: BSD-2-Clause
//! Persistent ports: switch ports that outlive the programs that open them, and that are interfaces of the host.
//!
//! ```text
//! no program has it open     switch == host end == [thread for each queue] == hidden end ------ v0
//! a program has it open      switch == program end
//!                            host rings == wire == host end == [threads] == hidden end ------ v0
//! ```
//! The interface is a veth pair. Its hidden end is in the *hidden network namespace*, which only the daemon has open:
//! the namespace ends with the daemon, and both ends of the pair with it. The *host end* is the switch port to which
//! the hidden end is attached.
//!
//! The *program end* is a switch port like any other, with host rings. It exists while it is open, in a region that
//! lasts as long as the persistent port. [`connect_ends`] gives the place in the switch (index, addresses, settings) to
//! one of the two ends. While the program end has it, a switch of two ports that learns no addresses, the *wire*,
//! connects the host rings with the host end. While the port is attached to no switch, its place is in a switch of its
//! own.

use std::sync::Arc;

use serde::{Deserialize, Serialize};
use unetmap_abi::*;
use unetmap_core::errno::{EBUSY, EEXIST, EINVAL, ENOMEM, ENXIO, EOPNOTSUPP, EPERM};
use unetmap_switch::fdb::MacTable;
use unetmap_switch::port::SwitchPort;
use unetmap_sys::link::Link;
use unetmap_sys::netns::Netns;

use super::attached::{self, Side, check_root, check_system_daemon, disconnect};
use super::{MAX_RINGS, OWN_SWITCH, ValeKey, ValePort, ValeState};
use crate::caller::Caller;
use crate::descriptors::{FdIndex, Incoming, Outgoing};
use crate::events::What;
use crate::ports::nic::{self, find_link, no_such_interface};
use crate::ports::{AnyPort, Daemon, EndpointKey, PortKey, monitor};
use crate::privileged;
use crate::refusal::{Refusal, refuse};
use crate::region::{DAEMON_UID, RegionKey, RegionMemory, Scope};
use crate::shape::EndpointShape;
use crate::tuning::region::MAX_EXTRA;

/// Bytes of the longest interface name.
pub(super) const MAX_NAME: usize = 15;
/// The index of the program end's host rings on the wire, and that of the host end.
pub(super) const WIRE_PROGRAM: u8 = 0;
const WIRE_HOST: u8 = 1;
/// Of the ends of a persistent port, whichever switch and owner they have at a time.
const DAEMON_SCOPE: Scope = Scope { uid: DAEMON_UID, netns: 0 };
/// The end of the name of the wire.
const WIRE: char = '^';

/// The persistent ports, attached or not.
#[derive(Default)]
pub(crate) struct PersistentState {
    ports: Vec<PersistentPort>,
    /// The namespace of the hidden ends, while there are any.
    hidden_namespace: Option<Arc<Netns>>,
}

/// The persistent ports as the daemon hands them to its successor.
#[derive(Serialize, Deserialize)]
pub(super) struct SavedPersistent {
    ports: Vec<PersistentPort>,
    hidden_namespace: Option<FdIndex>,
}

/// A persistent port. Its visible end is the host's, which may rename it, and move it to any namespace.
#[derive(Clone, Serialize, Deserialize)]
pub(super) struct PersistentPort {
    /// Interface index of the hidden end.
    pub(super) hidden: u32,
    /// The name of the visible end when the port was created or last attached.
    pub(super) name: String,
    pub(super) shape: EndpointShape,
    /// Kept while the port exists.
    pub(super) region: RegionKey,
    /// Bytes of the virtio-net header of packets that programs send and receive.
    pub(super) header: u8,
    /// In its place for programs of this user, until the last of them closes the port.
    pub(super) own_header: Option<(u32, u8)>,
    /// The port of a switch that it is.
    pub(super) attached: Option<ValeKey>,
    /// Where one of its ends is a member, and the index there.
    pub(super) place: (ValeKey, u8),
    /// The host end.
    pub(super) host_end: PortKey,
}

impl PersistentPort {
    /// Its place while it is attached to no switch.
    fn idle_key(hidden: u32, name: &str) -> ValeKey {
        ValeKey { scope: DAEMON_SCOPE, switch: format!("{OWN_SWITCH}{hidden}"), port: name.into() }
    }

    /// The place where one of its ends is to be a member.
    fn key(&self) -> ValeKey {
        self.attached.clone().unwrap_or_else(|| Self::idle_key(self.hidden, &self.name))
    }

    fn wire_key(&self) -> ValeKey {
        let key = Self::idle_key(self.hidden, &self.name);
        ValeKey { switch: format!("{}{WIRE}", key.switch), ..key }
    }
}

/// Returns the table of a switch that is created, for `addresses` addresses.
pub(super) fn table_of(key: &ValeKey, addresses: usize) -> MacTable {
    if key.switch.ends_with(WIRE) { MacTable::without_learning() } else { MacTable::with_capacity(addresses) }
}

/// A persistent port in JSON.
#[derive(Serialize)]
pub(crate) struct PersistentSnapshot {
    pub(crate) name: String,
    tx_rings: u16,
    rx_rings: u16,
    tx_slots: u32,
    rx_slots: u32,
    /// The port of a switch that it is.
    attached: Option<String>,
}

/// Returns the persistent ports that users who see all ports see.
pub(crate) fn persistent_snapshots(vale: &ValeState) -> Vec<PersistentSnapshot> {
    let snapshot = |port: &PersistentPort| PersistentSnapshot {
        name: port.name.clone(),
        tx_rings: port.shape.tx_rings,
        rx_rings: port.shape.rx_rings,
        tx_slots: port.shape.tx_slots.get(),
        rx_slots: port.shape.rx_slots.get(),
        attached: port.attached.as_ref().map(ValeKey::name),
    };
    vale.persistent.ports.iter().map(snapshot).collect()
}

/// Returns the name by which people know the port with this place.
pub(super) fn display_name(key: &ValeKey) -> String {
    match (key.is_in_own_switch(), key.switch.ends_with(WIRE)) {
        (true, true) => format!("{}^", key.port),
        (true, false) => key.port.clone(),
        (false, _) => key.name(),
    }
}

impl PersistentState {
    pub(super) fn save<'a>(&'a self, fds: &mut Outgoing<'a>) -> SavedPersistent {
        let hidden_namespace = self.hidden_namespace.as_deref().map(|netns| fds.add(netns));
        SavedPersistent { ports: self.ports.clone(), hidden_namespace }
    }

    pub(super) fn restore(saved: SavedPersistent, fds: &mut Incoming) -> Result<PersistentState, Refusal> {
        let hidden_namespace = saved.hidden_namespace.map(|netns| fds.take_netns(netns)).transpose()?;
        Ok(PersistentState { ports: saved.ports, hidden_namespace: hidden_namespace.map(Arc::new) })
    }

    pub(super) fn is_empty(&self) -> bool {
        self.ports.is_empty()
    }

    pub(super) fn get(&self, hidden: u32) -> Option<&PersistentPort> {
        self.ports.iter().find(|port| port.hidden == hidden)
    }

    pub(super) fn get_mut(&mut self, hidden: u32) -> Option<&mut PersistentPort> {
        self.ports.iter_mut().find(|port| port.hidden == hidden)
    }

    fn at(&self, key: &ValeKey) -> Option<&PersistentPort> {
        self.ports.iter().find(|port| port.attached.as_ref() == Some(key))
    }

    /// Returns the persistent port that is this port of a switch, by its hidden end.
    pub(super) fn attached_as(&self, key: &ValeKey) -> Option<u32> {
        self.at(key).map(|port| port.hidden)
    }

    /// Returns the port that connects the host with this port of a switch.
    pub(super) fn host_end(&self, key: &ValeKey) -> Option<&PortKey> {
        self.at(key).map(|port| &port.host_end)
    }

    /// Returns the region of the port with this hidden end.
    pub(super) fn region(&self, hidden: u32) -> Option<RegionKey> {
        self.get(hidden).map(|port| port.region)
    }

    /// Returns the place of the program's host rings.
    pub(super) fn wire(&self, hidden: u32) -> Option<ValeKey> {
        self.get(hidden).map(PersistentPort::wire_key)
    }

    pub(crate) fn is_hidden_namespace(&self, netns: u64) -> bool {
        self.hidden_namespace.as_ref().is_some_and(|hidden| hidden.id() == netns)
    }

    /// Returns the indexes of all hidden ends, if `netns` is their namespace.
    pub(crate) fn hidden_links(&self, netns: u64) -> Vec<u32> {
        let ports = self.ports.iter().filter(|_| self.is_hidden_namespace(netns));
        ports.map(|port| port.hidden).collect()
    }
}

impl ValeState {
    /// Takes a port out of the switch of which it is a member, which remains even if it has no other. The caller
    /// publishes the change.
    fn vacate(&mut self, side: &Arc<SwitchPort>) {
        for switch in self.switches.values_mut() {
            for (member, thread) in switch.members.iter_mut().zip(&mut switch.threads) {
                if member.as_ref().is_some_and(|member| Arc::ptr_eq(member, side)) {
                    (*member, *thread) = (None, None);
                }
            }
        }
    }

    /// Forgets the addresses of a port that has left the switch. The caller publishes the change.
    fn leave(&mut self, (key, index): &(ValeKey, u8)) {
        if let Some(switch) = self.switches.get(&key.switch_key()) {
            switch.table.remove_port(*index);
        }
        self.switches.retain(|_, switch| switch.members.iter().any(Option::is_some));
    }
}

/// Gives the place of a persistent port in its switch to the program end if a program has it open, else to the host
/// end. Until then neither has it: packets of that moment are lost.
pub(crate) fn connect_ends(daemon: &mut Daemon, hidden: u32) -> Result<(), Refusal> {
    let Some(port) = daemon.vale.persistent.get(hidden) else { return Ok(()) };
    let (key, wire, before, host_id) = (port.key(), port.wire_key(), port.place.clone(), port.host_end.clone());
    let program_id = PortKey::Persistent(hidden);
    let is_open = daemon.registry.is_open(&program_id);
    let has_place = daemon.registry.get::<ValePort>(&program_id).is_some_and(|program| program.is_member);
    let moves = before.0 != key;
    if has_place == is_open && !moves {
        return Ok(());
    }
    let index = if moves { daemon.vale.free_index(&key)? } else { before.1 };
    take_out(daemon, [&program_id, &host_id])?;
    if let Some(port) = daemon.vale.persistent.get_mut(hidden) {
        port.place = (key.clone(), index);
    }
    let mut host_key = key.clone();
    if is_open && let Some(program) = daemon.registry.get_mut::<ValePort>(&program_id) {
        program.join(&mut daemon.vale, key, index);
        if let Some(host) = &program.host_rings {
            host.switch_side.move_to(WIRE_PROGRAM);
            daemon.vale.add(&wire, &host.switch_side);
        }
        host_key = wire;
    }
    let host_index = if is_open { WIRE_HOST } else { index };
    if let Some(host) = daemon.registry.get_mut::<ValePort>(&host_id) {
        host.join(&mut daemon.vale, host_key, host_index);
    }
    if moves {
        daemon.vale.leave(&before);
    }
    daemon.vale.switches.retain(|_, switch| switch.members.iter().any(Option::is_some));
    daemon.vale.publish()
}

/// Takes both ends out of their switches. Afterwards no thread uses them.
fn take_out(daemon: &mut Daemon, ends: [&PortKey; 2]) -> Result<(), Refusal> {
    for id in ends {
        let Some(end) = daemon.registry.get_mut::<ValePort>(id) else { continue };
        end.is_member = false;
        daemon.vale.vacate(&end.switch_side);
        end.host_rings.iter().for_each(|host| daemon.vale.vacate(&host.switch_side));
    }
    daemon.vale.publish()
}

impl ValePort {
    /// Makes the port, which no thread uses, a member of a switch.
    fn join(&mut self, vale: &mut ValeState, key: ValeKey, index: u8) {
        self.switch_side.move_to(index);
        self.set_policy(vale.settings.active_policy(&key));
        vale.add(&key, &self.switch_side);
        (self.key, self.is_member) = (key, true);
    }
}

/// Finds the end of a persistent port that programs open, or creates it.
pub(crate) fn find_or_create(
    daemon: &mut Daemon,
    hidden: u32,
    request: &NmreqRegister,
    caller: &Caller,
) -> Result<EndpointKey, Refusal> {
    let id = PortKey::Persistent(hidden);
    let Some(port) = daemon.vale.persistent.get(hidden) else { return no_such_interface() };
    daemon.registry.regions.check_number("persistent port", port.region, request.nr_mem_id)?;
    let mut sessions = daemon.registry.sessions.values().filter(|session| session.port == id);
    if let Some(other) = sessions.find(|session| session.uid != caller.peer.uid) {
        return refuse(EBUSY, format!("user {} has it open", other.uid));
    }
    if daemon.registry.port(&id).is_err() {
        let record = daemon.registry.regions.existing_mut(port.region)?;
        let program = ValePort::create(record, (DAEMON_SCOPE, id.clone(), port.key()), port.shape, 0)?;
        program.switch_side.set_vnet_hdr_len(port.header_for(caller.peer.uid));
        daemon.registry.insert(id.clone(), AnyPort::Persistent(program));
    }
    Ok(id.into())
}

/// Returns the persistent port whose visible end is an interface of the caller's namespace, wherever it was created.
pub(crate) fn of_link(vale: &ValeState, link: &Link, caller: &Caller) -> Result<Option<u32>, Refusal> {
    let state = &vale.persistent;
    let (Some(hidden_namespace), Some(netns)) = (&state.hidden_namespace, caller.netns()) else { return Ok(None) };
    let hidden = privileged::veth_end_in(netns, hidden_namespace, link.index);
    let hidden = hidden.or_else(|e| refuse(ENXIO, format!("looking for the other end of the interface: {e}")))?;
    Ok(hidden.filter(|hidden| state.get(*hidden).is_some()))
}

/// Returns the region of a persistent port, by the name of its interface.
pub(crate) fn region_of(daemon: &Daemon, name: &str, caller: &Caller) -> Result<Option<RegionKey>, Refusal> {
    if daemon.vale.persistent.is_empty() {
        return Ok(None);
    }
    let Some(link) = find_link(name, caller)? else { return Ok(None) };
    let hidden = of_link(&daemon.vale, &link, caller)?;
    Ok(hidden.and_then(|hidden| daemon.vale.persistent.region(hidden)))
}

/// Attaches a persistent port to a switch. Returns its index there; `None`: it is attached to another switch.
pub(super) fn attach(
    daemon: &mut Daemon,
    hidden: u32,
    (key, request): (&ValeKey, &NmreqRegister),
    link: &Link,
) -> Result<Option<u32>, Refusal> {
    let Some(port) = daemon.vale.persistent.get_mut(hidden) else { return no_such_interface() };
    match &port.attached {
        Some(other) if other.switch_key() == key.switch_key() => {
            return refuse(EBUSY, format!("it is attached to this switch already, as {}", other.name()));
        }
        Some(_) => return Ok(None),
        None => {}
    }
    if request.nr_mode == NR_REG_NIC_SW {
        return refuse(EINVAL, "a persistent port is the host's own end already (vale-ctl -a)");
    }
    daemon.registry.regions.check_number("persistent port", port.region, request.nr_mem_id)?;
    port.attached = Some(key.clone());
    port.name.clone_from(&link.name);
    connect_ends(daemon, hidden).inspect_err(|_| {
        let _ = detach(daemon, key);
    })?;
    attached::log(&mut daemon.events, key, "attached", |port| What::Attached { port });
    Ok(daemon.vale.persistent.get(hidden).map(|port| port.place.1.into()))
}

/// Detaches the persistent port that is this port of a switch; returns the index that it had.
pub(super) fn detach(daemon: &mut Daemon, key: &ValeKey) -> Result<u32, Refusal> {
    let Some(hidden) = daemon.vale.persistent.attached_as(key) else { return no_such_interface() };
    let Some(port) = daemon.vale.persistent.get_mut(hidden) else { return no_such_interface() };
    let index = port.place.1;
    port.attached = None;
    connect_ends(daemon, hidden)?;
    attached::log(&mut daemon.events, key, "detached", |port| What::Detached { port });
    Ok(index.into())
}

/// Handles the end of an interface, if it was the hidden end of a persistent port.
pub(super) fn interface_gone(daemon: &mut Daemon, netns: u64, index: u32) {
    if !daemon.vale.persistent.is_hidden_namespace(netns) {
        return;
    }
    let ports = &mut daemon.vale.persistent.ports;
    if let Some(at) = ports.iter().position(|port| port.hidden == index) {
        let port = ports.remove(at);
        end(daemon, &port);
    }
    close_hidden_namespace_if_unused(daemon);
}

/// Ends a persistent port: programs' next calls fail, and the switches lose their ports.
fn end(daemon: &mut Daemon, port: &PersistentPort) {
    let program_id = PortKey::Persistent(port.hidden);
    attached::disconnect_from(daemon, &program_id);
    if let Err(refusal) = take_out(daemon, [&program_id, &port.host_end]) {
        tracing::error!("threads may still use a persistent port that was removed: {}", refusal.why);
    }
    daemon.vale.leave(&port.place);
    disconnect(daemon, &port.host_end);
    if let Some(key) = &port.attached {
        attached::log(&mut daemon.events, key, "detached", |port| What::Detached { port });
    }
    if let Some(program) = daemon.registry.get_mut::<ValePort>(&program_id) {
        program.record.endpoints.iter().for_each(|endpoint| endpoint.end_all());
        monitor::end_monitors(&mut daemon.registry, &program_id.clone().into());
        daemon.release_if_unused(&program_id);
    }
    if let Some(record) = daemon.registry.regions.get_mut(port.region) {
        record.persistent_ports = record.persistent_ports.saturating_sub(1);
    }
    daemon.registry.free_region_if_unused(port.region);
    if let Err(refusal) = daemon.vale.publish() {
        tracing::error!("threads may still use a switch that has ended: {}", refusal.why);
    }
}

/// Creates a persistent port.
pub(crate) fn create(daemon: &mut Daemon, name: &str, request: NmreqValeNewif, caller: &Caller) -> Result<(), Refusal> {
    check_root(daemon, caller)?;
    if name.is_empty() || name.len() > MAX_NAME || name.starts_with(NM_BDG_NAME) {
        return refuse(
            EINVAL,
            format!("a persistent port has the name of an interface: 1 to {MAX_NAME} bytes, not vale..."),
        );
    }
    if find_link(name, caller)?.is_some() {
        return refuse(EEXIST, "there is an interface of this name already");
    }
    let shape = NmreqRegister {
        nr_tx_slots: request.nr_tx_slots,
        nr_rx_slots: request.nr_rx_slots,
        nr_tx_rings: request.nr_tx_rings,
        nr_rx_rings: request.nr_rx_rings,
        ..Default::default()
    };
    let shape = EndpointShape { host_tx_rings: 1, host_rx_rings: 1, ..EndpointShape::requested(&shape, MAX_RINGS)? };
    let scope = daemon.admission.scope(caller);
    let memory = &mut RegionMemory::AsUsed;
    let region = match (request.nr_mem_id, daemon.region_of_pipes(scope, name)) {
        (0, Some(region)) => region,
        (0, None) => {
            let sizes = daemon.knobs.private_sizes().for_switch_port(&shape, MAX_EXTRA);
            daemon.registry.regions.create_private(scope, name, sizes, memory)?
        }
        (mem_id, _) => daemon.requested_region(mem_id, caller, memory)?,
    };
    let created = create_in(daemon, (name, request, shape), region, caller);
    created.inspect_err(|_| {
        daemon.registry.free_region_if_unused(region);
        close_hidden_namespace_if_unused(daemon);
    })
}

/// Creates it in a region that exists.
fn create_in(
    daemon: &mut Daemon,
    (name, request, shape): (&str, NmreqValeNewif, EndpointShape),
    region: RegionKey,
    caller: &Caller,
) -> Result<(), Refusal> {
    let Some(netns) = caller.netns().cloned() else { return no_such_interface() };
    let hidden_namespace = open_hidden_namespace(daemon)?;
    let hidden = create_veth_pair(name, &request, &netns, &hidden_namespace)?;
    let key = PersistentPort::idle_key(hidden, name);
    let host_end = create_host_end(daemon, hidden, (&key, &request), caller);
    let host_end = host_end.inspect_err(|_| {
        let _ = privileged::delete_veth(&hidden_namespace, hidden);
    })?;
    daemon.registry.regions.existing_mut(region)?.persistent_ports += 1;
    daemon.vale.persistent.ports.push(PersistentPort {
        hidden,
        name: name.into(),
        shape,
        region,
        header: 0,
        own_header: None,
        attached: None,
        place: (key, 0),
        host_end,
    });
    Ok(())
}

/// Creates the host end, with the place `key`, and opens the hidden end for it.
fn create_host_end(
    daemon: &mut Daemon,
    hidden: u32,
    (key, request): (&ValeKey, &NmreqValeNewif),
    caller: &Caller,
) -> Result<PortKey, Refusal> {
    let Some(hidden_namespace) = daemon.vale.persistent.hidden_namespace.clone() else { return no_such_interface() };
    let link = privileged::link(&hidden_namespace, hidden).ok().flatten();
    let Some(link) = link else { return no_such_interface() };
    let in_namespace = Caller { namespace: hidden_namespace.into(), ..Caller::daemon() };
    // What the host sends is received here.
    let mirrored =
        NmreqRegister { nr_tx_slots: request.nr_rx_slots, nr_rx_slots: request.nr_tx_slots, ..Default::default() };
    let shape = nic::new_shape(&daemon.nics, &link, &mirrored, &in_namespace)?;
    let nic = PortKey::Nic(nic::create_for_daemon(daemon, &link, shape, &in_namespace)?);
    let connected = attached::connect(daemon, key, (&nic, Side::Wire), request.nr_mem_id, caller);
    connected.inspect_err(|_| daemon.release_if_unused(&nic)).map(|(id, _)| id)
}

/// Removes a persistent port.
pub(crate) fn delete(daemon: &mut Daemon, name: &str, caller: &Caller) -> Result<(), Refusal> {
    check_system_daemon(daemon)?;
    check_root(daemon, caller)?;
    let Some(link) = find_link(name, caller)? else { return no_such_interface() };
    let Some(hidden) = of_link(&daemon.vale, &link, caller)? else {
        return refuse(EINVAL, "it is no persistent port (vale-ctl -n creates them)");
    };
    let state = &daemon.vale.persistent;
    let Some(hidden_namespace) = state.hidden_namespace.clone() else { return no_such_interface() };
    if let Some(key) = state.get(hidden).and_then(|port| port.attached.as_ref()) {
        return refuse(EBUSY, format!("it is attached to a switch (vale-ctl -d {})", key.name()));
    }
    let id = PortKey::Persistent(hidden);
    let mut ports = daemon.registry.all::<ValePort>();
    if let Some(port) = ports.find(|port| port.attachment.as_ref().is_some_and(|a| a.interface == id)) {
        return refuse(EBUSY, format!("it is attached to a switch (vale-ctl -d {})", port.key.name()));
    }
    drop(ports);
    if daemon.registry.is_open(&id) {
        return refuse(EBUSY, "a program has it open");
    }
    let removed = privileged::delete_veth(&hidden_namespace, hidden);
    removed.or_else(|e| refuse(ENXIO, format!("removing it: {e}")))?;
    interface_gone(daemon, hidden_namespace.id(), hidden);
    Ok(())
}

/// Returns the hidden network namespace, and creates it if there is none.
fn open_hidden_namespace(daemon: &mut Daemon) -> Result<Arc<Netns>, Refusal> {
    if let Some(hidden) = &daemon.vale.persistent.hidden_namespace {
        return Ok(hidden.clone());
    }
    let created = privileged::create_hidden_namespace();
    let created = created.or_else(|e| refuse(EPERM, format!("the daemon cannot create a network namespace: {e}")))?;
    let created = Arc::new(created);
    nic::watch(daemon, &created)?;
    daemon.vale.persistent.hidden_namespace = Some(created.clone());
    Ok(created)
}

fn close_hidden_namespace_if_unused(daemon: &mut Daemon) {
    if daemon.vale.persistent.is_empty()
        && let Some(hidden) = daemon.vale.persistent.hidden_namespace.take()
    {
        nic::unwatch_if_unused(daemon, hidden.id());
    }
}

/// Creates the veth pair of a persistent port; returns the index of its hidden end.
fn create_veth_pair(
    name: &str,
    request: &NmreqValeNewif,
    netns: &Netns,
    hidden_namespace: &Netns,
) -> Result<u32, Refusal> {
    let queues = u32::from(request.nr_tx_rings.max(request.nr_rx_rings)).clamp(1, 16);
    let hidden = privileged::create_persistent_veth(netns, hidden_namespace, name, queues);
    hidden.or_else(|e| refuse_veth(&e))
}

fn refuse_veth<T>(e: &std::io::Error) -> Result<T, Refusal> {
    match e.raw_os_error() {
        Some(EEXIST) => refuse(EEXIST, "there is an interface of this name already"),
        Some(EPERM) => refuse(EPERM, "the daemon may not create interfaces: it needs CAP_NET_ADMIN"),
        Some(EOPNOTSUPP) => refuse(EOPNOTSUPP, "the kernel has no veth interfaces (modprobe veth)"),
        _ => refuse(ENOMEM, format!("creating the interface: {e}")),
    }
}
