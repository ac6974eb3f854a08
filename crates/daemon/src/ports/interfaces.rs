// SPDX-License-Identifier: BSD-2-Clause
//! Interfaces that programs open: the one that is open already, or a new port, direct or mediated.

use unetmap_abi::{NmreqRegister, PipeRole, PortSpec};
use unetmap_core::control::request::NR_MEDIATED;
use unetmap_sys::link::Link;

use super::key::{EndpointKey, MediatedKey, PortKey};
use super::mediated::{self, Mediated};
use super::nic::NicKey;
use super::{AnyPort, Asked, Daemon, Registry, nic, pipe_rings, vale};
use crate::budget::Amounts;
use crate::caller::Caller;
use crate::policy::Access;
use crate::refusal::Refusal;
use crate::region::{RegionMemory, Scope};
use crate::registry::{Port, Record};

/// Finds the interface, or opens it.
pub(super) fn find_or_create(
    daemon: &mut Daemon,
    spec: &PortSpec,
    request: &mut Asked<'_>,
    caller: &Caller,
) -> Result<EndpointKey, Refusal> {
    let (link, access) = nic::admitted(&mut daemon.admission, &spec.parent, caller)?;
    if let Some(hidden) = daemon.vale.persistent.of_link(&link, caller)? {
        return vale::persistent_ends::find_or_create(&mut daemon.registry, &daemon.vale, hidden, request, caller);
    }
    let access = if request.nr_flags & NR_MEDIATED != 0 { Access::Mediated } else { access };
    match nic::usable_access((&daemon.registry, &mut daemon.nics), access, &link, caller) {
        Access::Direct => find_or_create_direct(daemon, &link, request, caller),
        Access::Mediated => find_or_create_mediated(daemon, &link, request, caller),
    }
}

/// The interface for a program that uses its sockets itself.
fn find_or_create_direct(
    daemon: &mut Daemon,
    link: &Link,
    request: &mut Asked<'_>,
    caller: &Caller,
) -> Result<EndpointKey, Refusal> {
    let scope = daemon.admission.interface_scope(caller);
    if let Some(nic) = nic::find(&daemon.registry, caller.netns_id(), link.index)? {
        if nic.scope != scope {
            return nic::in_use(&daemon.registry, nic);
        }
        daemon.registry.regions.check_number("interface", nic.region, request.nr_mem_id)?;
        return Ok(PortKey::Nic(nic.key).into());
    }
    let region = match request.nr_mem_id {
        0 | 1 => None,
        other => Some(daemon.region_by_number(other, caller)?),
    };
    let shape = nic::new_shape((&daemon.registry, &daemon.nics), link, request, caller)?;
    let zero_copy = nic::expects_zero_copy(&mut daemon.nics.settings, link, caller);
    let mut usage = nic::usage(shape).and(nic::usage_by_packets(&daemon.registry, &daemon.nics.settings, link, caller));
    if daemon.region_by_number(1, caller).is_err() {
        let sizes = daemon.knobs.interface_sizes(shape.all_slots(), zero_copy);
        usage += Amounts::region(sizes.bufs.0).and(Amounts::buffers(sizes.bufs));
    }
    daemon.check_budget(scope, usage)?;
    let region = match region {
        Some(region) => region,
        None => daemon.interface_region(caller, shape.all_slots(), zero_copy, request.memory)?,
    };
    nic::create(daemon, (region, scope), link, shape, caller).map(|key| PortKey::Nic(key).into())
}

/// The interface for a program that may not use its sockets.
fn find_or_create_mediated(
    daemon: &mut Daemon,
    link: &Link,
    request: &NmreqRegister,
    caller: &Caller,
) -> Result<EndpointKey, Refusal> {
    // The port has a region of its own, but a number that names none is an error as anywhere else.
    if !matches!(request.nr_mem_id, 0 | 1) {
        daemon.region_by_number(request.nr_mem_id, caller)?;
    }
    let Some(nic) = nic::find(&daemon.registry, caller.netns_id(), link.index)? else {
        return create_mediated(daemon, link, request, caller);
    };
    match mediated_of(&daemon.registry, nic.key, daemon.admission.interface_scope(caller)) {
        Some(port) => Ok(PortKey::Mediated(port.key()).into()),
        None => nic::in_use(&daemon.registry, nic),
    }
}

/// Creates the port, and the interface's, which the daemon opens itself.
fn create_mediated(
    daemon: &mut Daemon,
    link: &Link,
    request: &NmreqRegister,
    caller: &Caller,
) -> Result<EndpointKey, Refusal> {
    let shape = nic::new_shape((&daemon.registry, &daemon.nics), link, request, caller)?;
    let zero_copy = nic::expects_zero_copy(&mut daemon.nics.settings, link, caller);
    let (scope, sizes) =
        (daemon.admission.interface_scope(caller), daemon.knobs.mediated_sizes(zero_copy).with_pipe(&shape));
    let pipe = Amounts::endpoints(2, shape).and(Amounts::region(sizes.bufs.0));
    let sockets = nic::usage_by_packets(&daemon.registry, &daemon.nics.settings, link, caller);
    let interface = nic::usage_for_daemon(&daemon.knobs, shape, zero_copy).and(sockets);
    daemon.check_budget(scope, pipe.and(interface).and(mediated::usage(shape.pairs())))?;
    let header = nic::header_of_link(&mut daemon.nics, link, caller);
    let nic = nic::create_for_daemon(daemon, link, shape, caller)?;
    let regions = &mut daemon.registry.regions;
    let created = regions.create_private(scope, &link.name, sizes, &mut RegionMemory::AsUsed).and_then(|region| {
        let created = daemon.check_buffers(region, shape.most_buffers(), true).and_then(|()| {
            let counters = mediated::counter_page(shape.pairs())?;
            let record = daemon.registry.regions.existing_mut(region)?;
            let record = pipe_rings::create(record, scope, (shape, PipeRole::Master), true)?;
            Ok(Record { counters: Some(counters), ..record })
        });
        created.inspect_err(|_| daemon.registry.free_region_if_unused(region))
    });
    let record = created.inspect_err(|_| daemon.release_if_unused(&PortKey::Nic(nic)))?;
    let key = MediatedKey { scope, interface: link.name.clone(), serial: nic.serial };
    let port = Mediated::with(key.clone(), (nic, header), record, daemon.registry.usage_of_interface(nic))?;
    daemon.registry.insert(PortKey::Mediated(key.clone()), AnyPort::Mediated(port));
    Ok(PortKey::Mediated(key).into())
}

/// Returns the port of an interface that a program of the caller's user has open.
pub(super) fn find_open_interface(
    daemon: &mut Daemon,
    name: &str,
    caller: &Caller,
) -> Result<Option<PortKey>, Refusal> {
    let (link, access) = nic::admitted(&mut daemon.admission, name, caller)?;
    if let Some(hidden) = daemon.vale.persistent.of_link(&link, caller)? {
        return Ok(Some(PortKey::Persistent(hidden)));
    }
    let scope = daemon.admission.interface_scope(caller);
    let Some(nic) = nic::find(&daemon.registry, caller.netns_id(), link.index)? else { return Ok(None) };
    // One that the caller may open directly can be mediated, too: because of its header, or by an old kernel.
    let is_direct = access == Access::Direct && nic.scope == scope;
    let mediated = mediated_of(&daemon.registry, nic.key, scope);
    match mediated {
        // Frames do not pass the interface's own rings then.
        Some(mediated) if nic.has_packet_sockets() => Ok(Some(PortKey::Mediated(mediated.key()))),
        Some(_) => Ok(Some(PortKey::Nic(nic.key))),
        None if is_direct => Ok(Some(PortKey::Nic(nic.key))),
        None => nic::in_use(&daemon.registry, nic),
    }
}

/// Finds the port of an interface that programs of `scope` have open.
fn mediated_of(registry: &Registry, nic: NicKey, scope: Scope) -> Option<&Port<Mediated>> {
    registry.all::<Mediated>().find(|port| port.nic() == nic && port.key.scope == scope)
}
