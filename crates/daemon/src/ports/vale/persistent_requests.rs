// SPDX-License-Identifier: BSD-2-Clause
//! Creating, attaching and removing persistent ports ([`super::persistent`]).

use std::sync::Arc;

use unetmap_abi::*;
use unetmap_core::errno::{EBUSY, EEXIST, EINVAL, ENOMEM, ENXIO, EOPNOTSUPP, EPERM};
use unetmap_sys::kernel_path::Forwarded;
use unetmap_sys::link::Link;
use unetmap_sys::netns::Netns;

use super::attached::{self, check_root, check_system_daemon, disconnect};
use super::persistent::{MAX_NAME, PersistentPort};
use super::persistent_ends::{connect_ends, take_out};
use super::port::{MAX_RINGS, Side, ValePort};
use super::{ValeKey, ValeState};
use crate::caller::Caller;
use crate::ports::nic::surveyed::Survey;
use crate::ports::nic::{self, NicKey, NicState, find_link, no_such_interface};
use crate::ports::{Daemon, PortKey, Registry, monitor};
use crate::privileged;
use crate::refusal::{Refusal, refuse};
use crate::region::{RegionKey, RegionMemory};
use crate::shape::{DEFAULT_SLOTS, EndpointShape};
use crate::tuning::region::MAX_EXTRA;

/// Creates a persistent port.
pub(crate) fn create(daemon: &mut Daemon, name: &str, request: NmreqValeNewif, caller: &Caller) -> Result<(), Refusal> {
    check_root(&daemon.admission, caller)?;
    if name.is_empty() || name.len() > MAX_NAME || name.starts_with(NM_BDG_NAME) {
        return refuse(
            EINVAL,
            format!("a persistent port has the name of an interface: 1 to {MAX_NAME} bytes, not vale..."),
        );
    }
    if find_link(name, caller)?.is_some() {
        return refuse(EEXIST, "there is an interface of this name already");
    }
    let shape = shape_of(&request)?;
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
        close_hidden_namespace_if_unused(&daemon.registry, &mut daemon.nics, &mut daemon.vale);
    })
}

pub(super) fn shape_of(request: &NmreqValeNewif) -> Result<EndpointShape, Refusal> {
    let shape = NmreqRegister {
        nr_tx_slots: request.nr_tx_slots,
        nr_rx_slots: request.nr_rx_slots,
        nr_tx_rings: request.nr_tx_rings,
        nr_rx_rings: request.nr_rx_rings,
        ..Default::default()
    };
    Ok(EndpointShape { host_tx_rings: 1, host_rx_rings: 1, ..EndpointShape::requested(&shape, MAX_RINGS)? })
}

/// Creates it in a region that exists.
fn create_in(
    daemon: &mut Daemon,
    (name, request, shape): (&str, NmreqValeNewif, EndpointShape),
    region: RegionKey,
    caller: &Caller,
) -> Result<(), Refusal> {
    let Some(netns) = caller.netns().cloned() else { return no_such_interface() };
    let hidden_namespace = open_hidden_namespace(&mut daemon.nics, &mut daemon.vale)?;
    let whole = daemon.wants_kernel_path();
    let hidden = create_veth_pair(name, &request, (&netns, &hidden_namespace), whole)?;
    let link = privileged::link(&hidden_namespace, hidden).ok().flatten();
    let opened = link.map_or_else(no_such_interface, |link| open_hidden_end(daemon, &link, &request, whole));
    let served = opened.and_then(|nic| serve(daemon, nic, (name, request, shape, None), region, caller));
    served.inspect_err(|_| {
        let _ = privileged::delete_veth(&hidden_namespace, hidden);
    })?;
    let mark = daemon.vale.persistent.get(hidden).map(PersistentPort::mark).unwrap_or_default();
    if let Err(e) = privileged::make_last(&hidden_namespace, hidden, mark) {
        tracing::warn!(name, "the persistent port will end with the daemon: {e}");
    }
    daemon.vale.has_unsaved = true;
    Ok(())
}

/// Serves a pair of veth as a persistent port, of which `nic` is the hidden end, and attaches it to a switch. On
/// failure the hidden end is released.
pub(super) fn serve(
    daemon: &mut Daemon,
    nic: NicKey,
    (name, request, shape, attached): (&str, NmreqValeNewif, EndpointShape, Option<&ValeKey>),
    region: RegionKey,
    caller: &Caller,
) -> Result<(), Refusal> {
    let (hidden, nic) = (nic.index, PortKey::Nic(nic));
    let idle = PersistentPort::idle_key(hidden, name);
    let key = attached.unwrap_or(&idle);
    let connected = attached::connect_as(daemon, (&idle, key), (&nic, Side::Wire), request.nr_mem_id, caller);
    let (host_end, _) = connected.inspect_err(|_| daemon.release_if_unused(&nic))?;
    let index = daemon.registry.get::<ValePort>(&host_end).map_or(0, |host| host.index());
    let whole = daemon.registry.nic(&nic).is_some_and(nic::Nic::keeps_offloads);
    daemon.registry.regions.existing_mut(region)?.persistent_ports += 1;
    daemon.vale.persistent.ports.push(PersistentPort {
        hidden,
        name: name.into(),
        shape,
        region,
        header: 0,
        own_header: None,
        attached: attached.cloned(),
        place: (key.clone(), index),
        host_end,
        whole,
        by_kernel: Forwarded::default(),
        seen_by_kernel: None,
    });
    Ok(())
}

/// Opens the hidden end of a persistent port. None of its sockets is open yet.
pub(super) fn open_hidden_end(
    daemon: &mut Daemon,
    link: &Link,
    request: &NmreqValeNewif,
    whole: bool,
) -> Result<NicKey, Refusal> {
    let Some(hidden_namespace) = daemon.vale.persistent.hidden_namespace.clone() else { return no_such_interface() };
    // Packet sockets are one pair of rings.
    let queues = if whole { 1 } else { queues_of(request) };
    let survey = Some(Arc::new(Survey::of_hidden_end(link.clone(), queues)));
    let in_namespace = Caller { namespace: hidden_namespace.into(), survey, ..Caller::daemon() };
    // Rings of the usual length are as those of other interfaces. The next daemon has the length from the mark.
    let slots = |of: u32| if of == DEFAULT_SLOTS { 0 } else { of };
    // What the host sends is received here.
    let (nr_tx_slots, nr_rx_slots) = (slots(request.nr_rx_slots), slots(request.nr_tx_slots));
    let mirrored = NmreqRegister { nr_tx_slots, nr_rx_slots, ..Default::default() };
    let shape = nic::new_shape((&daemon.registry, &daemon.nics), link, &mirrored, &in_namespace)?;
    // Its host rings would be those of its own namespace.
    let shape = EndpointShape { host_tx_rings: 0, host_rx_rings: 0, ..shape };
    let nic = nic::create_for_daemon(daemon, link, shape, &in_namespace)?;
    let made = daemon.registry.nic_mut(&PortKey::Nic(nic)).map_or(Ok(()), |nic| nic.set_hidden(whole));
    made.inspect_err(|_| daemon.release_if_unused(&PortKey::Nic(nic)))?;
    Ok(nic)
}

/// Removes a persistent port.
pub(crate) fn delete(daemon: &mut Daemon, name: &str, caller: &Caller) -> Result<(), Refusal> {
    check_system_daemon(&daemon.admission)?;
    check_root(&daemon.admission, caller)?;
    let Some(link) = find_link(name, caller)? else { return no_such_interface() };
    let Some(hidden) = daemon.vale.persistent.of_link(&link, caller)? else {
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
    daemon.vale.has_unsaved = true;
    connect_ends(&mut daemon.registry, &mut daemon.vale, hidden).inspect_err(|_| {
        let _ = detach(daemon, key);
    })?;
    attached::log(daemon, key, true);
    Ok(daemon.vale.persistent.get(hidden).map(|port| port.place.1.into()))
}

/// Detaches the persistent port that is this port of a switch; returns the index that it had.
pub(super) fn detach(daemon: &mut Daemon, key: &ValeKey) -> Result<u32, Refusal> {
    let Some(hidden) = daemon.vale.persistent.attached_as(key) else { return no_such_interface() };
    let Some(port) = daemon.vale.persistent.get_mut(hidden) else { return no_such_interface() };
    let index = port.place.1;
    port.attached = None;
    daemon.vale.has_unsaved = true;
    connect_ends(&mut daemon.registry, &mut daemon.vale, hidden)?;
    attached::log(daemon, key, false);
    Ok(index.into())
}

/// Handles the end of an interface, if it was the hidden end of a persistent port.
pub(super) fn interface_gone(daemon: &mut Daemon, netns: u64, index: u32) {
    if !daemon.vale.persistent.is_hidden_namespace(netns) {
        return;
    }
    daemon.vale.persistent.unserved.retain(|port| port.hidden != index);
    let ports = &mut daemon.vale.persistent.ports;
    if let Some(at) = ports.iter().position(|port| port.hidden == index) {
        let port = ports.remove(at);
        daemon.vale.has_unsaved = true;
        end(daemon, &port);
    }
    close_hidden_namespace_if_unused(&daemon.registry, &mut daemon.nics, &mut daemon.vale);
}

/// Ends a persistent port: programs' next calls fail, and the switches lose their ports.
fn end(daemon: &mut Daemon, port: &PersistentPort) {
    let program_id = PortKey::Persistent(port.hidden);
    attached::disconnect_from(daemon, &program_id);
    if let Err(refusal) = take_out(&mut daemon.registry, &mut daemon.vale, [&program_id, &port.host_end]) {
        tracing::error!("threads may still use a persistent port that was removed: {}", refusal.why);
    }
    daemon.vale.leave(&port.place);
    disconnect(daemon, &port.host_end);
    let hidden = daemon.vale.persistent.hidden_namespace.clone().filter(|_| port.whole);
    if let Some(Err(e)) = hidden.map(|hidden| privileged::delete_companion(&hidden, port.hidden)) {
        tracing::warn!(name = port.name, "its companion is left until the daemon is started again: {e}");
    }
    if let Some(key) = &port.attached {
        attached::log(daemon, key, false);
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

/// Returns the hidden network namespace, and creates it if there is none.
fn open_hidden_namespace(nics: &mut NicState, vale: &mut ValeState) -> Result<Arc<Netns>, Refusal> {
    if let Some(hidden) = &vale.persistent.hidden_namespace {
        return Ok(hidden.clone());
    }
    let created = privileged::create_hidden_namespace();
    let created = created.or_else(|e| refuse(EPERM, format!("the daemon cannot create a network namespace: {e}")))?;
    let created = Arc::new(created);
    nics.watch(&created)?;
    vale.persistent.hidden_namespace = Some(created.clone());
    Ok(created)
}

pub(super) fn close_hidden_namespace_if_unused(registry: &Registry, nics: &mut NicState, vale: &mut ValeState) {
    if vale.persistent.is_empty()
        && vale.returning.is_empty()
        && let Some(hidden) = vale.persistent.hidden_namespace.take()
    {
        nics.unwatch_if_unused(registry, &vale.persistent, hidden.id());
        end_namespace();
    }
}

/// Lets the hidden namespace end, once nobody has it open.
pub(super) fn end_namespace() {
    if let Err(e) = privileged::end_lasting() {
        tracing::warn!("the namespace of persistent ports is left, without any: {e}");
    }
}

/// The queues of a pair.
fn queues_of(request: &NmreqValeNewif) -> u32 {
    u32::from(request.nr_tx_rings.max(request.nr_rx_rings)).clamp(1, 16)
}

/// Creates the veth pair of a persistent port, for the kernel's path (`whole`) or not; returns the index of its hidden
/// end.
fn create_veth_pair(
    name: &str,
    request: &NmreqValeNewif,
    (netns, hidden_namespace): (&Netns, &Netns),
    whole: bool,
) -> Result<u32, Refusal> {
    let hidden = privileged::create_persistent_veth(netns, hidden_namespace, name, queues_of(request), whole);
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
