// SPDX-License-Identifier: BSD-2-Clause
//! Opening interfaces: which users may open which, and how; and the changes of open interfaces.

use std::collections::BTreeMap;
use std::mem;
use std::sync::Arc;

use unetmap_abi::*;
use unetmap_core::errno::{EACCES, EBUSY, EINVAL, ENETDOWN, ENXIO, EOPNOTSUPP, EPERM};
use unetmap_mem::Slots;
use unetmap_sys::link::{self, Link, LinkEvent, LinkWatch};
use unetmap_sys::netns::Netns;

use super::abandoned::AbandonedNamespaces;
use super::heartbeat::Heartbeat;
use super::kernel_work::{self, KernelWork, any_is_away};
use super::lookup::{denied, find_link, find_link_for, may_have_interfaces};
use super::port::refuse_away;
use super::queue_count::{QueueCounts, rings};
use super::settings::InterfaceSettings;
use super::survey::Surveys;
use super::zero_copy::is_expected;
use super::{Nic, NicKey, NicPort, interface_tx_dropped};
use crate::budget::Amounts;
use crate::caller::Caller;
use crate::events::What;
use crate::knobs::Knobs;
use crate::policy::Access;
use crate::ports::Registry;
use crate::ports::mediated::{self, Mediated};
use crate::ports::vale::{attach_requests, persistent};
use crate::ports::{AnyPort, Asked, Daemon, EndpointKey, PortKey, monitor};
use crate::privileged;
use crate::refusal::{Refusal, refuse};
use crate::region::{DAEMON_UID, RegionKey, RegionMemory, Scope};
use crate::registry::Port;
use crate::shape::EndpointShape;
use crate::tuning::nic::{DEFAULT_RX_SLOTS, DEFAULT_TX_SLOTS, MAX_DEFERRED};

/// Slots of a ring.
const MAX_SLOTS: u32 = 4096;
/// Pairs of host rings.
const MAX_HOST_RINGS: u16 = 64;

/// In place of a namespace's number: all namespaces that have interfaces with settings. No namespace has this number.
pub(crate) const ALL_NAMESPACES: u64 = 0;

/// The state of all interfaces.
#[derive(Default)]
pub(crate) struct NicState {
    pub(super) last_serial: u64,
    /// By namespace: the changes of its interfaces.
    pub(crate) watches: BTreeMap<u64, NamespaceWatch>,
    pub(super) queue_counts: QueueCounts,
    /// Filters, busy polling, headers, ways.
    pub(crate) settings: InterfaceSettings,
    /// Threads that open and close interfaces.
    pub(crate) work: KernelWork,
    /// Threads that read about interfaces.
    pub(super) surveys: Surveys,
    /// Namespaces that only attached interfaces keep.
    pub(crate) abandoned: AbandonedNamespaces,
    /// Renews the deadlines of the attached programs.
    pub(crate) heartbeat: Heartbeat,
}

/// The changes of all interfaces of one namespace.
pub(crate) struct NamespaceWatch {
    pub(crate) watch: LinkWatch,
    pub(super) netns: Arc<Netns>,
    /// Whether the event loop waits for it.
    pub(crate) in_event_loop: bool,
    /// Changes that are handled when all of its open interfaces are here.
    pub(super) deferred: Vec<LinkEvent>,
}

impl NicState {
    /// Whether anything is set for an interface.
    pub(crate) fn has_settings(&self) -> bool {
        !self.settings.is_empty()
    }
}

/// If `name` is an interface that the caller may open: the scope of its pipes, and the access.
pub(crate) fn admitted_interface(
    daemon: &mut Daemon,
    name: &str,
    caller: &Caller,
) -> Result<Option<(Scope, Access)>, Refusal> {
    // A user's own daemon has no policy, and opens no interface.
    if daemon.admission.policy.is_none() {
        return Ok(None);
    }
    if !may_have_interfaces(daemon, caller)? {
        return Ok(None);
    }
    let found = match find_link(name, caller) {
        // A daemon that may not enter the namespace opens no interface there, and pipes need none.
        Err(refusal) if refusal.errno == EPERM => return Ok(None),
        found => found?,
    };
    let Some(link) = found else { return Ok(None) };
    let Some(access) = daemon.admission.policy()?.and_then(|policy| policy.nic(&caller.identity(policy), &link.name))
    else {
        return Ok(None);
    };
    let access = usable_access(daemon, access, &link, caller);
    Ok(Some((daemon.admission.interface_scope(caller), access)))
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
    if !receives || !is_interface || daemon.admission.policy.is_none() || !may_have_interfaces(daemon, caller)? {
        return Ok(());
    }
    let (Some(link), Some(netns)) = (find_link(&spec.parent, caller)?, caller.netns()) else { return Ok(()) };
    let host_is_served = daemon.nics.settings.filter_of(caller.netns_id(), link.index).is_some()
        || match find(daemon, caller.netns_id(), link.index)? {
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

/// Finds the interface, or opens it.
pub(crate) fn find_or_create(
    daemon: &mut Daemon,
    spec: &PortSpec,
    request: &mut Asked<'_>,
    caller: &Caller,
) -> Result<EndpointKey, Refusal> {
    let (link, access) = admitted(daemon, &spec.parent, caller)?;
    if let Some(hidden) = persistent::of_link(&daemon.vale, &link, caller)? {
        return persistent::find_or_create(daemon, hidden, request, caller);
    }
    match usable_access(daemon, access, &link, caller) {
        Access::Direct => find_or_create_direct(daemon, &link, request, caller),
        Access::Mediated => find_or_create_mediated(daemon, &link, request, caller),
    }
}

/// Returns the interface of that name, if the caller may open it, and the access.
pub(crate) fn admitted(daemon: &mut Daemon, name: &str, caller: &Caller) -> Result<(Link, Access), Refusal> {
    if daemon.admission.policy.is_none() {
        let exists = link::by_name(name).is_ok_and(|link| link.is_some());
        return if exists { not_system_daemon() } else { no_such_interface() };
    }
    // The caller may use an alternative name; the policy has the interface's own name.
    let Some(link) = find_link_for(daemon, name, caller)? else { return no_such_interface() };
    let Some(access) = daemon.admission.policy()?.and_then(|policy| policy.nic(&caller.identity(policy), &link.name))
    else {
        return denied(caller);
    };
    Ok((link, access))
}

/// Refuses a port of an interface that the policy does not give to the caller any more, after an open has waited.
pub(crate) fn check_still_given(daemon: &mut Daemon, at: &EndpointKey, caller: &Caller) -> Result<(), Refusal> {
    let nic = kernel_work::behind(&daemon.registry, at).and_then(|nic| daemon.registry.nic(&PortKey::Nic(nic)));
    let Some(name) = nic.map(|nic| nic.name.clone()) else { return no_such_interface() };
    let is_direct = at.port.as_nic().is_some();
    let access = daemon.admission.policy()?.and_then(|policy| policy.nic(&caller.identity(policy), &name));
    if access.is_some_and(|access| !is_direct || access == Access::Direct) { Ok(()) } else { denied(caller) }
}

/// Returns the header of the packets of an interface: 0, 10 or 12 bytes.
pub(in crate::ports) fn header_of_link(nics: &mut NicState, link: &Link, caller: &Caller) -> u8 {
    nics.settings.header_of(caller.netns_id(), link.index, caller.peer.uid)
}

/// Returns the access that this kernel and the interface's settings allow. Before Linux 6.4 only the process that
/// creates a socket, the daemon, can map its rings; and only the daemon puts virtio-net headers before packets.
fn usable_access(daemon: &mut Daemon, access: Access, link: &Link, caller: &Caller) -> Access {
    if header_of_link(&mut daemon.nics, link, caller) > 0 {
        return Access::Mediated;
    }
    let Some(netns) = caller.netns().filter(|_| access == Access::Direct) else { return access };
    let shares_rings = privileged::maps_bound_rings(netns, link.index);
    // If it cannot be tried, opening the socket fails for the same reason, and says so.
    if shares_rings.unwrap_or(true) { Access::Direct } else { Access::Mediated }
}

/// The interface for a program that uses its sockets itself.
fn find_or_create_direct(
    daemon: &mut Daemon,
    link: &Link,
    request: &mut Asked<'_>,
    caller: &Caller,
) -> Result<EndpointKey, Refusal> {
    let scope = daemon.admission.interface_scope(caller);
    if let Some(nic) = find(daemon, caller.netns_id(), link.index)? {
        if nic.scope != scope {
            return in_use(daemon, nic);
        }
        daemon.registry.regions.check_number("interface", nic.region, request.nr_mem_id)?;
        return Ok(PortKey::Nic(nic.key).into());
    }
    let region = match request.nr_mem_id {
        0 | 1 => None,
        other => Some(daemon.region_by_number(other, caller)?),
    };
    let shape = new_shape(&daemon.nics, link, request, caller)?;
    let (mut usage, zero_copy) = (super::usage(shape), is_expected(&mut daemon.nics.settings, link, caller));
    if daemon.region_by_number(1, caller).is_err() {
        let sizes = daemon.knobs.interface_sizes(shape.all_slots(), zero_copy);
        usage += Amounts::region(sizes.bufs.0).and(Amounts::locked_buffers(sizes.bufs));
    }
    daemon.check_budget(scope, usage)?;
    let region = match region {
        Some(region) => region,
        None => daemon.interface_region(caller, shape.all_slots(), zero_copy, request.memory)?,
    };
    create(daemon, (region, scope), link, shape, caller).map(|key| PortKey::Nic(key).into())
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
    let Some(nic) = find(daemon, caller.netns_id(), link.index)? else {
        return mediated::create(daemon, link, request, caller);
    };
    match mediated::find(&daemon.registry, nic.key, daemon.admission.interface_scope(caller)) {
        Some(port) => Ok(PortKey::Mediated(port.key()).into()),
        None => in_use(daemon, nic),
    }
}

/// Returns the amounts of an interface that the daemon uses itself, with its region.
pub(crate) fn usage_for_daemon(knobs: &Knobs, shape: EndpointShape, zero_copy: bool) -> Amounts {
    let sizes = knobs.mediated_sizes(zero_copy).for_one_interface(shape.all_rings(), shape.all_slots());
    super::usage(shape).and(Amounts::region(sizes.bufs.0)).and(Amounts::locked_buffers(sizes.bufs))
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

fn create(
    daemon: &mut Daemon,
    (region, scope): (RegionKey, Scope),
    link: &Link,
    shape: EndpointShape,
    caller: &Caller,
) -> Result<NicKey, Refusal> {
    let stays = caller.netns().map_or(Ok(None), |netns| daemon.nics.settings.failure_at(netns, link))?;
    let admode = daemon.knobs.admode();
    let netns_id = caller.netns_id();
    let key = NicKey { netns: netns_id, index: link.index, serial: daemon.nics.last_serial + 1 };
    let created = caller.netns().cloned().map_or_else(no_such_interface, |netns| {
        watch(daemon, &netns)?;
        let surveyed = caller.surveyed(link.index).and_then(|survey| survey.tx_dropped);
        let dropped = surveyed.unwrap_or_else(|| interface_tx_dropped(&netns, link.index));
        let record = daemon.registry.regions.existing_mut(region)?;
        let node = privileged::numa_node(&netns, &link.name).ok().flatten();
        node.into_iter().for_each(|node| record.prefer_node(node));
        let (nic, sent) = Nic::create(record, (key, scope), netns, link, (shape, admode), dropped)?;
        Ok((Nic { numa_node: node, ..nic }, sent))
    });
    let (mut nic, sent) = created.inspect_err(|_| {
        daemon.registry.free_region_if_unused(region);
        unwatch_if_unused(daemon, netns_id);
    })?;
    nic.filter = daemon.nics.settings.filter_of(netns_id, link.index);
    nic.busy_poll = daemon.nics.settings.busy_poll_of(netns_id, link.index);
    nic.way = daemon.nics.settings.way_of(netns_id, link.index);
    nic.stays = stays;
    nic.forwards = daemon.knobs.fwd();
    nic.queue_counts = daemon.nics.queue_counts.clone();
    nic.heartbeat = daemon.nics.heartbeat.clone();
    daemon.nics.last_serial = key.serial;
    daemon.registry.insert(PortKey::Nic(key), AnyPort::Nic(NicPort::new(nic, sent)));
    Ok(key)
}

fn find_port(registry: &Registry, netns: u64, index: u32) -> Option<&Port<NicPort>> {
    let is_it = |port: &&Port<NicPort>| {
        (port.key.netns, port.key.index) == (netns, index) && port.here().is_none_or(|nic| !nic.gone)
    };
    registry.all::<NicPort>().find(is_it)
}

/// Returns the interface, if it is open. Requests wait before they look for one that is away.
pub(crate) fn find(daemon: &Daemon, netns: u64, index: u32) -> Result<Option<&Nic>, Refusal> {
    find_port(&daemon.registry, netns, index).map(|port| port.here().map_or_else(refuse_away, Ok)).transpose()
}

/// Returns the interface, if a thread has it.
pub(super) fn find_away(daemon: &Daemon, netns: u64, index: u32) -> Option<NicKey> {
    find_port(&daemon.registry, netns, index).filter(|port| port.here().is_none()).map(|port| port.key)
}

/// Releases an interface that nobody uses and of which nothing is open.
pub(super) fn release_closed(daemon: &mut Daemon, key: NicKey) {
    let key = PortKey::Nic(key);
    if daemon.registry.port(&key).is_ok_and(|port| port.is_releasable(&daemon.registry))
        && !daemon.registry.is_open(&key)
    {
        daemon.release(&key);
    }
}

/// Closes the watch of a namespace in which no interface is open. A watch keeps the namespace alive, with all that is
/// in it.
pub(crate) fn unwatch_if_unused(daemon: &mut Daemon, netns: u64) {
    let is_used = daemon.registry.all::<NicPort>().any(|port| port.key.netns == netns);
    if !is_used && !daemon.vale.persistent.is_hidden_namespace(netns) {
        daemon.nics.watches.remove(&netns);
    }
}

/// Watches the interfaces of a namespace.
pub(crate) fn watch(daemon: &mut Daemon, netns: &Arc<Netns>) -> Result<(), Refusal> {
    if daemon.nics.watches.contains_key(&netns.id()) {
        return Ok(());
    }
    let watch = privileged::watch_links(netns);
    let watch = watch.or_else(|e| refuse(ENXIO, format!("its changes cannot be watched: {e}")))?;
    let watch = NamespaceWatch { watch, netns: netns.clone(), in_event_loop: false, deferred: Vec::new() };
    daemon.nics.watches.insert(netns.id(), watch);
    Ok(())
}

/// Handles the changes of interfaces of a namespace.
pub(crate) fn links_changed(daemon: &mut Daemon, netns: u64) {
    if netns == ALL_NAMESPACES {
        return daemon.nics.settings.remove_gone();
    }
    let mut events = Vec::new();
    if let Some(watched) = daemon.nics.watches.get_mut(&netns)
        && let Err(e) = watched.watch.read(&mut events)
    {
        tracing::debug!("reading the changes of interfaces: {e}");
    }
    let is_deferred = any_is_away(&daemon.registry, netns);
    if let Some(watched) = daemon.nics.watches.get_mut(&netns).filter(|_| is_deferred) {
        watched.deferred.extend(events);
        if watched.deferred.len() > MAX_DEFERRED {
            watched.deferred = vec![LinkEvent::Lost];
        }
        return;
    }
    handle_events(daemon, netns, events);
}

/// Handles the changes that came while an interface of the namespace was away.
pub(super) fn handle_deferred_events(daemon: &mut Daemon, netns: u64) {
    if any_is_away(&daemon.registry, netns) {
        return;
    }
    let deferred = daemon.nics.watches.get_mut(&netns).map(|watched| mem::take(&mut watched.deferred));
    handle_events(daemon, netns, deferred.unwrap_or_default());
}

fn handle_events(daemon: &mut Daemon, netns: u64, events: Vec<LinkEvent>) {
    for event in events {
        match event {
            LinkEvent::Gone { index } => link_gone(daemon, netns, index),
            LinkEvent::Changed(link) => link_changed(daemon, netns, &link),
            LinkEvent::Lost => compare_all_links(daemon, netns),
        }
    }
    kernel_work::follow(daemon, netns);
}

fn link_changed(daemon: &mut Daemon, netns: u64, link: &Link) {
    let mut changes = Vec::new();
    let nics = daemon.registry.all_mut::<NicPort>().filter_map(|port| port.here_mut());
    for nic in nics.filter(|nic| nic.key.netns == netns && nic.key.index == link.index) {
        let port = || link.name.clone();
        if nic.name != link.name {
            tracing::info!(from = nic.name, to = link.name, "interface renamed");
            let was = std::mem::replace(&mut nic.name, port());
            changes.push((nic.key, What::LinkRenamed { port: port(), was }));
        }
        if nic.changed(link) {
            let what = if link.up { What::LinkUp { port: port() } } else { What::LinkDown { port: port() } };
            changes.push((nic.key, what));
        }
    }
    for (key, what) in changes {
        log_change(daemon, key, what);
    }
}

/// Adds an event of an interface, which belongs to its port's user; root attaches interfaces to switches.
fn log_change(daemon: &mut Daemon, key: NicKey, what: What) {
    let through_daemon =
        daemon.registry.all::<Mediated>().find(|port| port.nic() == key).map(|port| port.record.scope.uid);
    let direct = || {
        daemon
            .registry
            .get::<NicPort>(&PortKey::Nic(key))
            .map(|port| port.record.scope.uid)
            .filter(|uid| *uid != DAEMON_UID)
    };
    let uid = through_daemon.or_else(direct).unwrap_or(0);
    daemon.events.add(uid, what);
}

pub(super) fn link_gone(daemon: &mut Daemon, netns: u64, index: u32) {
    daemon.nics.queue_counts.remove(netns, index);
    let nics = daemon.registry.all_mut::<NicPort>().filter_map(|port| port.here_mut());
    nics.filter(|nic| nic.key.netns == netns).for_each(|nic| {
        nic.host_gone(index);
        nic.relay_gone(index);
    });
    if let Ok(Some(nic)) = find(daemon, netns, index) {
        tracing::info!(name = nic.name, "interface gone");
        let (key, port) = (nic.key, nic.name.clone());
        log_change(daemon, key, What::LinkGone { port });
        daemon.registry.nic_mut(&PortKey::Nic(key)).into_iter().for_each(Nic::end);
        daemon.nics.work.check_later(key);
        monitor::end_monitors(&mut daemon.registry, &PortKey::Nic(key).into());
        daemon.registry.all::<Mediated>().filter(|port| port.nic() == key).for_each(|port| port.end());
    }
    attach_requests::interface_gone(daemon, netns, index);
}

/// Compares all open interfaces of a namespace with those that exist, after events were lost.
fn compare_all_links(daemon: &mut Daemon, netns: u64) {
    let Some(watched) = daemon.nics.watches.get(&netns).map(|watched| watched.netns.clone()) else { return };
    if !kernel_work::read_links(&daemon.nics, &watched)
        && let Ok(links) = privileged::links(&watched)
    {
        compare_links(daemon, netns, &links);
    }
}

/// Compares all open interfaces of a namespace with these.
pub(super) fn compare_links(daemon: &mut Daemon, netns: u64, links: &[Link]) {
    if any_is_away(&daemon.registry, netns) {
        let watched = daemon.nics.watches.get_mut(&netns);
        return watched.into_iter().for_each(|watched| watched.deferred = vec![LinkEvent::Lost]);
    }
    let nics = daemon.registry.all::<NicPort>().filter(|port| port.key.netns == netns);
    let mut open: Vec<u32> = nics.map(|port| port.key.index).collect();
    open.extend(daemon.vale.persistent.hidden_links(netns));
    for index in open {
        match links.iter().find(|link| link.index == index) {
            Some(link) => link_changed(daemon, netns, link),
            None => link_gone(daemon, netns, index),
        }
    }
    kernel_work::follow(daemon, netns);
}

pub(crate) fn no_such_interface<T>() -> Result<T, Refusal> {
    refuse(ENXIO, "no such interface (ip link shows them; pipes are NAME{ID and NAME}ID, ports of switches valeS:PORT)")
}

/// Refuses a request about interfaces to a user's own daemon.
pub(super) fn not_system_daemon<T>() -> Result<T, Refusal> {
    refuse(
        EPERM,
        "interfaces are opened by the system's daemon, and this is a user's own (start one as root: unetmapd)",
    )
}

/// Refuses an interface that someone else has, and says who: a switch, or a user.
pub(crate) fn in_use<T>(daemon: &Daemon, nic: &Nic) -> Result<T, Refusal> {
    if let Some(port) = attach_requests::port_of(&daemon.registry, nic.key) {
        return refuse(EBUSY, format!("it is attached to a switch as {port} (vale-ctl -d {port} detaches it)"));
    }
    let mediated =
        daemon.registry.all::<Mediated>().find(|port| port.nic() == nic.key).map(|port| port.record.scope.uid);
    match mediated {
        Some(uid) => refuse(EBUSY, format!("user {uid} has it open, through the daemon")),
        None => refuse(EBUSY, format!("user {} has it open", nic.scope.uid)),
    }
}

/// Returns the shape of a port on an interface that is not open yet.
pub(crate) fn new_shape(
    nics: &NicState,
    link: &Link,
    request: &NmreqRegister,
    caller: &Caller,
) -> Result<EndpointShape, Refusal> {
    if link.mac.is_none() {
        return without_ethernet();
    }
    let channels = nics.queue_counts.once_attached(caller.netns_id(), link.index, queues(link, caller)?);
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

/// Refuses an interface whose driver opens no queue while it is down.
pub(super) fn interface_down<T>(name: &str) -> Result<T, Refusal> {
    refuse(ENETDOWN, format!("its driver opens no queue while it is down (ip link set dev {name} up)"))
}

/// Refuses an interface whose packets begin with an IP header, such as tun and wireguard.
fn without_ethernet<T>() -> Result<T, Refusal> {
    refuse(
        EOPNOTSUPP,
        "its packets have no Ethernet header, and a port carries Ethernet frames: open the interface that carries its \
         packets, or a tap in place of a tun",
    )
}

/// Refuses to set `what` of a persistent port: a switch moves its packets, and neither an XDP program nor a socket.
pub(super) fn refuse_persistent(daemon: &Daemon, what: &str, link: &Link, caller: &Caller) -> Result<(), Refusal> {
    if persistent::of_link(&daemon.vale, link, caller)?.is_none() {
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
    daemon: &Daemon,
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
    match find(daemon, caller.netns_id(), link.index)? {
        Some(nic) if uid != 0 && nic.scope.uid != uid => in_use(daemon, nic),
        open => Ok(open.map(|nic| nic.key)),
    }
}
