// SPDX-License-Identifier: BSD-2-Clause
//! Opening interfaces: which users may open which, and how.

use unetmap_abi::*;
use unetmap_core::errno::{EACCES, EBUSY, EINVAL, ENXIO, EOPNOTSUPP, EPERM};
use unetmap_mem::Slots;
use unetmap_sys::link::{self, Link};

use super::lookup::{behind, find, find_link, find_link_for, may_have_interfaces};
use super::open_packets;
use super::packets::Packets;
use super::queue_count::rings;
use super::refusals::{denied, no_such_interface, not_system_daemon, without_ethernet};
use super::state::NicState;
use super::zero_copy::is_expected;
use super::{Nic, NicKey, NicPort};
use crate::budget::Amounts;
use crate::caller::Caller;
use crate::knobs::Knobs;
use crate::policy::Access;
use crate::ports::vale::PersistentState;
use crate::ports::{Admission, AnyPort, Daemon, EndpointKey, PortKey, Registry};
use crate::privileged;
use crate::refusal::{Refusal, refuse};
use crate::region::{DAEMON_UID, RegionKey, RegionMemory, Scope};
use crate::shape::{EndpointShape, wanted_place};
use crate::tuning::nic::{DEFAULT_RX_SLOTS, DEFAULT_TX_SLOTS};

/// Slots of a ring.
const MAX_SLOTS: u32 = 4096;
/// Pairs of host rings.
const MAX_HOST_RINGS: u16 = 64;

/// If `name` is an interface that the caller may open: the scope of its pipes, and the access.
pub(crate) fn admitted_interface(
    daemon: &mut Daemon,
    name: &str,
    caller: &Caller,
) -> Result<Option<(Scope, Access)>, Refusal> {
    let Daemon { admission, registry, nics, .. } = daemon;
    // A user's own daemon has no policy, and opens no interface.
    if admission.policy.is_none() || !may_have_interfaces(admission, caller)? {
        return Ok(None);
    }
    let found = match find_link(name, caller) {
        // A daemon that may not enter the namespace opens no interface there, and pipes need none.
        Err(refusal) if refusal.errno == EPERM => return Ok(None),
        found => found?,
    };
    let Some(link) = found else { return Ok(None) };
    let access = admission.policy()?.and_then(|policy| policy.nic(&caller.identity(policy), &link.name));
    let access = access.map(|access| usable_access((registry, nics), access, &link, caller));
    Ok(access.map(|access| (admission.interface_scope(caller), access)))
}

/// Refuses to disconnect the host: to take all received packets from an interface that carries a default route. Allowed
/// are ports that leave the host its packets (host rings, a filter, the knob `fwd`), and requests with `FORCE`.
pub(crate) fn check_default_route(
    daemon: &mut Daemon,
    spec: &PortSpec,
    request: &NmreqRegister,
    caller: &Caller,
) -> Result<(), Refusal> {
    let receives = request.nr_flags & NR_TX_RINGS_ONLY == 0
        && matches!(request.nr_mode, NR_REG_DEFAULT | NR_REG_ALL_NIC | NR_REG_ONE_NIC);
    let is_interface = spec.kind == PortKind::Netmap && spec.pipe.is_none();
    if !receives
        || !is_interface
        || daemon.admission.policy.is_none()
        || !may_have_interfaces(&mut daemon.admission, caller)?
    {
        return Ok(());
    }
    let (Some(link), Some(netns)) = (find_link(&spec.parent, caller)?, caller.netns()) else { return Ok(()) };
    let host_is_served = daemon.nics.settings.of(caller.netns_id(), link.index).is_some_and(|set| set.filter.is_some())
        || match find(&daemon.registry, caller.netns_id(), link.index)? {
            Some(nic) => nic.host_is_bound() || nic.forwards,
            None => daemon.knobs.fwd(),
        };
    let surveyed = caller.surveyed(link.index).and_then(|survey| survey.default_routes.clone());
    let routes = surveyed.map_or_else(|| privileged::default_routes(netns), Ok);
    if host_is_served || !routes.is_ok_and(|routes| routes.contains(&link.index)) {
        return Ok(());
    }
    let name = &link.name;
    refuse(
        EPERM,
        format!(
            "it carries the default route, and this would cut the host off: open its host rings as well (netmap:{name}*), \
             filter what you need (unetmap nic {name} filter), have released packets forwarded to the host (unetmap set fwd \
             1), or insist (UNETMAP_FORCE=1, unetmap run --force)"
        ),
    )
}

/// Returns the interface of that name, if the caller may open it, and the access.
pub(crate) fn admitted(admission: &mut Admission, name: &str, caller: &Caller) -> Result<(Link, Access), Refusal> {
    if admission.policy.is_none() {
        let exists = link::by_name(name).is_ok_and(|link| link.is_some());
        return if exists { not_system_daemon() } else { no_such_interface() };
    }
    // The caller may use an alternative name; the policy has the interface's own name.
    let Some(link) = find_link_for(admission, name, caller)? else { return no_such_interface() };
    let access = admission.policy()?.and_then(|policy| policy.nic(&caller.identity(policy), &link.name));
    access.map_or_else(|| denied(caller), |access| Ok((link, access)))
}

/// Refuses a port of an interface that the policy does not give to the caller any more, after an open has waited.
pub(crate) fn check_still_given(
    admission: &mut Admission,
    registry: &Registry,
    at: &EndpointKey,
    caller: &Caller,
) -> Result<(), Refusal> {
    let nic = behind(registry, at).and_then(|nic| registry.nic(&PortKey::Nic(nic)));
    let Some(name) = nic.map(|nic| nic.name.clone()) else { return no_such_interface() };
    let is_direct = at.port.as_nic().is_some();
    let access = admission.policy()?.and_then(|policy| policy.nic(&caller.identity(policy), &name));
    if access.is_some_and(|access| !is_direct || access == Access::Direct) { Ok(()) } else { denied(caller) }
}

/// Returns the header of the packets of an interface: 0, 10 or 12 bytes.
pub(in crate::ports) fn header_of_link(nics: &mut NicState, link: &Link, caller: &Caller) -> u8 {
    let settings = nics.settings.of(caller.netns_id(), link.index);
    settings.map_or(0, |set| set.own_headers.get(&caller.peer.uid).copied().unwrap_or(set.header))
}

/// Returns the access that this kernel and the interface's settings allow. Before Linux 6.4 only the process that
/// creates an AF_XDP socket, the daemon, can map its rings; and only the daemon puts virtio-net headers before packets
/// of such. A program has packet sockets if it could make them itself, and needs no frames finished (decision 182).
pub(in crate::ports) fn usable_access(
    (registry, nics): (&Registry, &mut NicState),
    access: Access,
    link: &Link,
    caller: &Caller,
) -> Access {
    let header = header_of_link(nics, link, caller);
    match open_packets::reason(registry, &nics.settings, link, caller) {
        None if header == 0 => {}
        Some(_) if header > 0 && access == Access::Direct => {
            // One that a thread serves already is shared.
            let by_thread = find(registry, caller.netns_id(), link.index);
            let by_thread = by_thread.ok().flatten().is_some_and(|nic| nic.scope.uid == DAEMON_UID);
            let is_direct = !by_thread && caller.may_have_packet_sockets();
            return if is_direct { Access::Direct } else { Access::Mediated };
        }
        _ => return Access::Mediated,
    }
    let Some(netns) = caller.netns().filter(|_| access == Access::Direct) else { return access };
    let shares_rings = privileged::maps_bound_rings(netns, link.index);
    // If it cannot be tried, opening the socket fails for the same reason, and says so.
    if shares_rings.unwrap_or(true) { Access::Direct } else { Access::Mediated }
}

/// Returns the amounts of an interface that the daemon uses itself, with its region.
pub(crate) fn usage_for_daemon(knobs: &Knobs, shape: EndpointShape, zero_copy: bool) -> Amounts {
    let sizes = knobs.mediated_sizes(zero_copy).for_one_interface(shape.all_rings(), shape.all_slots());
    super::usage(shape).and(Amounts::region(sizes.bufs.0)).and(Amounts::buffers(sizes.bufs))
}

/// Opens an interface that the daemon uses itself, in a region of its own.
pub(crate) fn create_for_daemon(
    daemon: &mut Daemon,
    link: &Link,
    shape: EndpointShape,
    caller: &Caller,
) -> Result<NicKey, Refusal> {
    let scope = Scope { uid: DAEMON_UID, netns: caller.netns_id() };
    let zero_copy = is_expected(&mut daemon.nics.settings, link, caller);
    let sizes = daemon.knobs.mediated_sizes(zero_copy).for_one_interface(shape.all_rings(), shape.all_slots());
    let region = daemon.registry.regions.create_private(scope, &link.name, sizes, &mut RegionMemory::AsUsed)?;
    create(daemon, (region, scope), link, shape, caller)
}

/// Opens an interface in a region.
pub(in crate::ports) fn create(
    daemon: &mut Daemon,
    (region, scope): (RegionKey, Scope),
    link: &Link,
    shape: EndpointShape,
    caller: &Caller,
) -> Result<NicKey, Refusal> {
    // Nobody has settings for a hidden end, at which a program always stays.
    let is_hidden = daemon.vale.persistent.is_hidden_namespace(caller.netns_id());
    let stays = if is_hidden { None } else { daemon.nics.settings.failure_at(link, caller)? };
    let header = if scope.uid == DAEMON_UID { 0 } else { header_of_link(&mut daemon.nics, link, caller) };
    let packets = open_packets::reason(&daemon.registry, &daemon.nics.settings, link, caller);
    let packets = packets.map(|why| Packets::new(why).map(|packets| packets.for_program(header))).transpose()?;
    let admode = daemon.knobs.admode();
    let netns_id = caller.netns_id();
    let key = NicKey { netns: netns_id, index: link.index, serial: daemon.nics.last_serial + 1 };
    let created = caller.netns().cloned().map_or_else(no_such_interface, |netns| {
        daemon.nics.watch(&netns)?;
        let surveyed = caller.surveyed(link.index).and_then(|survey| survey.tx_dropped);
        let dropped = surveyed.unwrap_or_else(|| privileged::tx_dropped(&netns, link.index));
        let record = daemon.registry.regions.existing_mut(region)?;
        let node = if is_hidden { None } else { privileged::numa_node(&netns, &link.name).ok().flatten() };
        node.into_iter().for_each(|node| record.prefer_node(node));
        let (nic, sent) = Nic::create(record, (key, scope), netns, link, (shape, admode), dropped)?;
        Ok((Nic { numa_node: node, ..nic }, sent))
    });
    let (mut nic, sent) = created.inspect_err(|_| {
        daemon.registry.free_region_if_unused(region);
        daemon.nics.unwatch_if_unused(&daemon.registry, &daemon.vale.persistent, netns_id);
    })?;
    if let Some(set) = daemon.nics.settings.of(netns_id, link.index) {
        (nic.filter, nic.busy_poll) = (set.filter.clone(), set.busy_poll);
        (nic.way, nic.found) = (set.way, set.found.clone());
    }
    nic.packets = packets;
    nic.set_stays(stays);
    nic.forwards = daemon.knobs.fwd();
    nic.queue_counts = daemon.nics.queue_counts.clone();
    nic.heartbeat = daemon.nics.heartbeat.clone();
    daemon.nics.last_serial = key.serial;
    daemon.registry.insert(PortKey::Nic(key), AnyPort::Nic(NicPort::new(nic, sent)));
    Ok(key)
}

/// Refuses an interface that someone else has, and says who: a switch, or a user.
pub(crate) fn in_use<T>(registry: &Registry, nic: &Nic) -> Result<T, Refusal> {
    if let Some(port) = registry.switch_port_of(nic.key) {
        return refuse(EBUSY, format!("it is attached to a switch as {port} (vale-ctl -d {port} detaches it)"));
    }
    let mediated = registry.mediated(nic.key).map(|port| port.record.scope.uid);
    match mediated {
        Some(uid) => refuse(EBUSY, format!("user {uid} has it open, through the daemon")),
        None => refuse(EBUSY, format!("user {} has it open", nic.scope.uid)),
    }
}

/// Returns the shape of a port on an interface that is not open yet.
pub(crate) fn new_shape(
    (registry, nics): (&Registry, &NicState),
    link: &Link,
    request: &NmreqRegister,
    caller: &Caller,
) -> Result<EndpointShape, Refusal> {
    if link.mac.is_none() {
        return without_ethernet();
    }
    let channels = match open_packets::reason(registry, &nics.settings, link, caller) {
        Some(_) => link::Channels { rx: 1, tx: 1 },
        None => nics.queue_counts.once_attached(caller.netns_id(), link.index, queues(link, caller)?),
    };
    let slots = |requested: u32, default: u32| {
        let n = if requested == 0 { default } else { requested.clamp(2, MAX_SLOTS).next_power_of_two() };
        Slots::new(n).map_or_else(|| refuse(EINVAL, format!("a ring has 2 to {MAX_SLOTS} slots, not {n}")), Ok)
    };
    let host_rings = |requested: u16| requested.clamp(1, MAX_HOST_RINGS);
    Ok(EndpointShape {
        tx_rings: rings(channels.tx),
        rx_rings: rings(channels.rx),
        host_tx_rings: host_rings(request.nr_host_tx_rings),
        host_rx_rings: host_rings(request.nr_host_rx_rings),
        tx_slots: slots(request.nr_tx_slots, DEFAULT_TX_SLOTS)?,
        rx_slots: slots(request.nr_rx_slots, DEFAULT_RX_SLOTS)?,
        first_ring: wanted_place(request).map(|(_, ring)| ring),
    })
}

/// Returns the number of queues of an interface in the caller's namespace.
pub(super) fn queues(link: &Link, caller: &Caller) -> Result<link::Channels, Refusal> {
    let Some(netns) = caller.netns() else { return no_such_interface() };
    let found = caller
        .surveyed(link.index)
        .and_then(|survey| survey.channels)
        .map_or_else(|| privileged::channels(netns, &link.name), Ok);
    found.or_else(|e| refuse(ENXIO, format!("reading the number of its queues: {e}")))
}

/// Refuses to set `what` of a persistent port: a switch moves its packets, and neither an XDP program nor a socket.
pub(super) fn refuse_persistent(
    persistent: &PersistentState,
    what: &str,
    link: &Link,
    caller: &Caller,
) -> Result<(), Refusal> {
    if persistent.of_link(link, caller)?.is_none() {
        return Ok(());
    }
    refuse(
        EOPNOTSUPP,
        format!(
            "it is a persistent port, for which {what} has no effect: the packets of such a port are moved by its switch \
             (once it is attached: unetmap vale port)"
        ),
    )
}

/// Refuses a caller who may not set `what` of an interface. Returns the interface if it is open.
pub(super) fn check_may_set(
    registry: &Registry,
    what: &str,
    link: &Link,
    access: Option<Access>,
    caller: &Caller,
) -> Result<Option<NicKey>, Refusal> {
    let uid = caller.peer.uid;
    if uid != 0 && access != Some(Access::Direct) {
        return refuse(
            EACCES,
            format!(
                "user {uid} gets it through the daemon; its {what} is set by root and by users who may open it directly \
                 (unetmap-policy(5))"
            ),
        );
    }
    match find(registry, caller.netns_id(), link.index)? {
        Some(nic) if uid != 0 && nic.scope.uid != uid => in_use(registry, nic),
        open => Ok(open.map(|nic| nic.key)),
    }
}
