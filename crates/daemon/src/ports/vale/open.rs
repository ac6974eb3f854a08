// SPDX-License-Identifier: BSD-2-Clause
//! Finding and creating switch ports, and netmap's requests about them.

use unetmap_abi::*;
use unetmap_core::errno::{EACCES, EBUSY, EINVAL, ENOENT};
use unetmap_sys::link;

use super::persistent::MAX_NAME;
use super::port::{MAX_RINGS, ValePort, switch_usage};
use super::switches::ValeState;
use super::{ValeKey, persistent_ends, persistent_header};
use crate::budget::Amounts;
use crate::caller::Caller;
use crate::ports::{Admission, AnyPort, Asked, Daemon, EndpointKey, PortKey, Registry, nic};
use crate::refusal::{Refusal, refuse};
use crate::region::{RegionKey, Scope};
use crate::registry::Port;
use crate::shape::EndpointShape;
use crate::tuning::region::MAX_EXTRA;

/// In place of the number of a port that does not exist.
const NO_PORT: u8 = 255;

/// Finds the port, or creates it, and its switch if it has no other port.
pub(in crate::ports) fn find_or_create(
    daemon: &mut Daemon,
    spec: &PortSpec,
    request: &mut Asked<'_>,
    caller: &Caller,
) -> Result<EndpointKey, Refusal> {
    let key = key_of(&mut daemon.admission, &spec.parent, caller)?;
    if let Some(hidden) = daemon.vale.persistent.attached_as(&key) {
        return persistent_ends::find_or_create(&mut daemon.registry, &daemon.vale, hidden, request, caller);
    }
    if let Some(port) = daemon.registry.switch_port(&key) {
        daemon.registry.regions.check_number("port", port.record.region, request.nr_mem_id)?;
        return Ok(port.id.clone().into());
    }
    if is_interface(&mut daemon.admission, &key.port, caller) {
        return refuse(EINVAL, format!("{} is an interface, which is attached to a switch (vale-ctl -a)", key.port));
    }
    create(daemon, (&key, &key), request, key.scope, caller).map(EndpointKey::from)
}

/// Creates the port, in a region of `owner` if the request names none, and its switch if it has no other port. The
/// registry has it under `name`, a key that does not change, whose user is charged.
pub(super) fn create(
    daemon: &mut Daemon,
    (name, key): (&ValeKey, &ValeKey),
    request: &mut Asked<'_>,
    owner: Scope,
    caller: &Caller,
) -> Result<PortKey, Refusal> {
    let index = daemon.vale.free_index(key)?;
    let shape = EndpointShape::requested(request, MAX_RINGS)?;
    let sizes = daemon.knobs.private_sizes().for_switch_port(&shape, request.nr_extra_bufs.min(MAX_EXTRA));
    let port = Amounts::endpoints(1, shape).and(switch_usage(shape)).and(daemon.vale.usage_of_new(key));
    daemon.check_budget(name.scope, port.and(Amounts::region(sizes.bufs.0)))?;
    let region = match (request.nr_mem_id, daemon.region_of_pipes(owner, &name.name())) {
        (0, Some(region)) => region,
        (0, None) => daemon.registry.regions.create_private(owner, &name.name(), sizes, request.memory)?,
        (mem_id, _) => daemon.requested_region(mem_id, caller, request.memory)?,
    };
    let id = PortKey::Vale(name.clone());
    let created = daemon.check_buffers(region, shape.most_buffers(), true).and_then(|()| {
        let record = daemon.registry.regions.existing_mut(region)?;
        ValePort::create(record, (name.scope, id.clone(), key.clone()), shape, index)
    });
    let mut port = created.inspect_err(|_| daemon.registry.free_region_if_unused(region))?;
    port.set_policy(daemon.vale.settings.active_policy(key));
    daemon.vale.add(key, &port.switch_side);
    port.is_member = true;
    daemon.registry.insert(id.clone(), AnyPort::Vale(port));
    if let Err(refusal) = daemon.vale.publish() {
        daemon.release_if_unused(&id);
        return Err(refusal);
    }
    Ok(id)
}

/// Returns the region of a port of a switch, by its name valeS:P. Programs have no access to that of an attached
/// interface.
pub(in crate::ports) fn region_of(
    registry: &Registry,
    vale: &ValeState,
    scope: Scope,
    name: &str,
) -> Option<RegionKey> {
    let (switch, port) = name.split_once(':')?;
    let key = ValeKey { scope, switch: switch.into(), port: port.into() };
    let region = match vale.persistent.attached_as(&key) {
        Some(hidden) => vale.persistent.region(hidden),
        None => registry.switch_port(&key).map(|port| port.record.region),
    };
    region.filter(|region| registry.regions.get(*region).is_some_and(|record| record.scope.uid == scope.uid))
}

/// Whether an interface has this name. An alternative name does not count if the caller cannot have interfaces.
pub(super) fn is_interface(admission: &mut Admission, name: &str, caller: &Caller) -> bool {
    // A user's own daemon looks in its own network namespace, which usually is the caller's.
    if admission.policy.is_none() {
        return link::by_name(name).is_ok_and(|link| link.is_some());
    }
    if nic::may_have_interfaces(admission, caller).unwrap_or(true) {
        return matches!(nic::find_link(name, caller), Ok(Some(_)));
    }
    name.len() <= MAX_NAME && !caller.lacks_interface(name)
}

/// Returns the key of a port name that was parsed: valeS:P.
pub(in crate::ports) fn key_of(admission: &mut Admission, name: &str, caller: &Caller) -> Result<ValeKey, Refusal> {
    if !admission.may_use_pipes(caller)? {
        return refuse(EACCES, "this daemon serves switches to other users only where its policy says so");
    }
    let Some((switch, port)) = name.split_once(':') else {
        return refuse(EINVAL, "the name of a switch port is valeS:P");
    };
    Ok(ValeKey { scope: admission.scope(caller), switch: switch.into(), port: port.into() })
}

/// Returns the port that programs open as this port of a switch.
pub(in crate::ports) fn program_port(vale: &ValeState, key: ValeKey) -> PortKey {
    match vale.persistent.attached_as(&key) {
        Some(hidden) => PortKey::Persistent(hidden),
        None => PortKey::Vale(key),
    }
}

/// Finds a port of a switch: by name, or, without a name, the next one from the numbers in `request` on. The number of
/// a port that does not exist is [`NO_PORT`].
pub(crate) fn list_next(
    registry: &Registry,
    vale: &ValeState,
    scope: Scope,
    name: &str,
    request: &NmreqValeList,
) -> Result<(String, NmreqValeList), Refusal> {
    let found =
        |switch: u16, port: u8| NmreqValeList { nr_bridge_idx: switch, nr_port_idx: port.into(), ..Default::default() };
    if name.is_empty() {
        let from = (request.nr_bridge_idx, request.nr_port_idx);
        let members = registry.all::<ValePort>().filter(|port| port.is_member);
        let own = members.filter(|port| port.key.scope == scope);
        let numbered = own.filter_map(|port| {
            let switch = vale.switches.get(&port.key.switch_key())?;
            Some(((switch.number, port.index()), &port.key))
        });
        let next = numbered.filter(|((switch, port), _)| (*switch, u32::from(*port)) >= from).min_by_key(|n| n.0);
        let Some(((switch, port), key)) = next else {
            return refuse(ENOENT, "there are no more switch ports");
        };
        return Ok((key.name(), found(switch, port)));
    }
    let (switch, port) = name.split_once(':').unwrap_or((name, ""));
    let key = ValeKey { scope, switch: switch.into(), port: port.into() };
    let Some(switch) = vale.switches.get(&key.switch_key()) else {
        return refuse(ENOENT, format!("there is no switch {}", key.switch));
    };
    let port = registry.switch_port(&key).map_or(NO_PORT, |port| port.index());
    Ok((name.into(), found(switch.number, port)))
}

/// Whether there is such a port.
pub(crate) fn exists(registry: &Registry, scope: Scope, name: &str) -> bool {
    find_by_name(registry, scope, name).is_some()
}

/// Returns the bytes of the virtio-net header that the port's packets begin with; 0 if there is no such port.
pub(crate) fn header(registry: &Registry, vale: &ValeState, (scope, name): (Scope, &str), uid: u32) -> u8 {
    let Some(port) = find_by_name(registry, scope, name) else { return 0 };
    match vale.persistent.attached_as(&port.key) {
        Some(hidden) => persistent_header::header_for(vale, hidden, uid),
        None => port.header(),
    }
}

/// Sets it. Afterwards no switch thread delivers a packet with the header of before to the port, except one that waits
/// for memory of a program.
pub(crate) fn set_header(
    registry: &Registry,
    vale: &mut ValeState,
    (scope, name): (Scope, &str),
    bytes: u8,
    caller: &Caller,
) -> Result<(), Refusal> {
    let Some(port) = find_by_name(registry, scope, name) else { return Ok(()) };
    if header(registry, vale, (scope, name), caller.peer.uid) == bytes {
        return Ok(());
    }
    match vale.persistent.attached_as(&port.key) {
        Some(hidden) => persistent_header::set_header(registry, vale, hidden, bytes, caller)?,
        None if port.attachment.is_some() => {
            return refuse(EBUSY, "an interface is attached there, whose packets are as it has them");
        }
        None => port.switch_side.set_vnet_hdr_len(bytes),
    }
    vale.publish()
}

pub(super) fn find_by_name<'a>(registry: &'a Registry, scope: Scope, name: &str) -> Option<&'a Port<ValePort>> {
    let (switch, port) = name.split_once(':')?;
    registry.switch_port(&ValeKey { scope, switch: switch.into(), port: port.into() })
}
