// SPDX-License-Identifier: BSD-2-Clause
//! Monitors and the ports that they watch: creating monitors, and telling what fills their mirror rings.

use std::collections::BTreeSet;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use unetmap_abi::*;
use unetmap_core::control::monitor::{MonitorList, MonitorReply, NextMonitorRequest};
use unetmap_core::errno::{EBUSY, EINVAL, ENOMEM, EOPNOTSUPP};

use super::port::{Monitor, MonitorState, Source, Target, ring_state};
use super::shape::{mirror_shape, mirror_usage, monitor_shape, watched_rings};
use crate::budget::Amounts;
use crate::caller::Caller;
use crate::descriptors::invalid;
use crate::ports::vale::ValePort;
use crate::ports::{AnyPort, Asked, Daemon, EndpointKey, PortKey, Registry};
use crate::refusal::{Refusal, refuse};
use crate::region::{RegionKey, Sizes};
use crate::registry::Port;
use crate::tuning::region::MAX_EXTRA;

/// Monitors of one port. Each makes the port's syncs longer.
const MAX_MONITORS: usize = 16;

/// Refuses a request for a monitor that no port can have.
pub(in crate::ports) fn check_request(request: &NmreqRegister) -> Result<(), Refusal> {
    if !matches!(request.nr_mode, NR_REG_ALL_NIC | NR_REG_ONE_NIC) {
        return refuse(EINVAL, "a monitor is opened on all rings or on one; it has no host rings");
    }
    if request.nr_mem_id != 0 && request.nr_flags & NR_ZCOPY_MON == 0 {
        return refuse(EINVAL, "a monitor that copies has a region of its own, whose number cannot be chosen");
    }
    Ok(())
}

/// Creates a monitor of an endpoint that a program has open; `of`: the name of its port.
pub(in crate::ports) fn create(
    daemon: &mut Daemon,
    (watched, of): (EndpointKey, &str),
    request: &mut Asked<'_>,
    caller: &Caller,
) -> Result<EndpointKey, Refusal> {
    let zero_copy = request.nr_flags & NR_ZCOPY_MON != 0;
    if daemon.registry.monitors().filter(|monitor| monitor.watches(&watched)).count() >= MAX_MONITORS {
        return refuse(ENOMEM, format!("the port has {MAX_MONITORS} monitors already"));
    }
    let shared = zero_copy.then(|| shared_region(&daemon.registry, &watched, request)).transpose()?;
    let (endpoint, watched_region) = daemon.registry.endpoint(&watched)?;
    let (shape, rings) = (monitor_shape(endpoint, request), watched_rings(endpoint, request));
    if rings.is_empty() {
        return refuse(EINVAL, format!("there is no ring {} in that direction", request.nr_ringid));
    }
    let id = daemon.monitors.last + 1;
    let flags = [(NR_ZCOPY_MON, "z"), (NR_MONITOR_RX, "r"), (NR_MONITOR_TX, "t")];
    let has = |flag| request.nr_flags & flag != 0 || zero_copy;
    let flags: String = flags.iter().filter(|(flag, _)| has(*flag)).map(|(_, name)| *name).collect();
    let name = format!("{of}/{flags}#{id}");
    let scope = daemon.admission.scope(caller);
    let rx_slots = u32::from(shape.rx_rings) * shape.rx_slots.get();
    let slots = shape.tx_slots.get() + rx_slots + request.nr_extra_bufs.min(MAX_EXTRA);
    let mirror = mirror_shape(shape, rings.len());
    let mirror_slots = mirror.all_slots();
    let own_regions = if zero_copy { 0 } else { slots + mirror_slots };
    // A packet that fits the watched port's buffers must fit the monitor's.
    let private = daemon.knobs.private_sizes();
    let watched_record = daemon.registry.regions.get(watched_region);
    let buf_size = watched_record.map_or(private.bufs.1, |record| record.region.limits().buf_size);
    let mirror = mirror_usage(mirror, if zero_copy { 0 } else { buf_size });
    daemon.check_budget(scope, Amounts::endpoints(1, shape).and(mirror).and(Amounts::region(own_regions)))?;
    let sizes = Sizes { bufs: (private.bufs.0, buf_size), ..private };
    let sizes = sizes.for_one_interface(1 + u32::from(shape.rx_rings), slots);
    let region = match shared {
        Some(region) => region,
        None => daemon.registry.regions.create_private(scope, &name, sizes, request.memory)?,
    };
    // The monitor's own region is filled by its program, or by the node, in a region that this can map.
    let is_filled = !zero_copy && daemon.registry.regions.existing(region)?.is_in_arena();
    let buffers = shape.most_buffers() + if zero_copy { mirror_slots } else { 0 };
    let checked = daemon.check_buffers(region, buffers, is_filled);
    daemon.registry.add(PortKey::Monitor(id), region, |record| {
        checked?;
        Monitor::create((record, sizes), (id, scope, name, zero_copy), shape, rings, watched).map(AnyPort::Monitor)
    })?;
    daemon.monitors.last = id;
    Ok(PortKey::Monitor(id).into())
}

/// Returns the region of a port whose buffers a monitor can have: one that its program syncs itself.
fn shared_region(registry: &Registry, watched: &EndpointKey, request: &NmreqRegister) -> Result<RegionKey, Refusal> {
    let port = registry.port(&watched.port)?;
    if let Some(reason) = port.zero_copy_obstacle() {
        return only_copies(reason);
    }
    let record = port.record();
    if record.endpoints[watched.index].rings().any(|ring| ring.offsets().mask != 0) {
        return only_copies("its packets begin behind the start of their buffers (OFFSETS)");
    }
    let mut monitors = registry.monitors().filter(|monitor| monitor.watches(watched));
    if monitors.any(|monitor| monitor.is_zero_copy()) {
        return refuse(EBUSY, "it has a zero-copy monitor already (one that copies can join: flags t and r)");
    }
    registry.regions.check_number("port", record.region, request.nr_mem_id)?;
    Ok(record.region)
}

/// Notifies the programs and threads that fill the mirror rings that the list of monitors has changed. Afterwards the
/// switch uses no mirror ring of a monitor that is not on the list.
pub(in crate::ports) fn notify_watched(registry: &Registry, monitors: &MonitorState, id: u64) {
    let Some(monitor) = registry.get::<Monitor>(&PortKey::Monitor(id)) else { return };
    let port_key = &monitor.watched.port;
    if let Some(port) = registry.get::<ValePort>(port_key) {
        port.set_monitors(monitors_of(registry, port_key, Target::Switch));
    }
    for (session, list) in &monitors.lists {
        if let Some(session) = registry.sessions.get(session).filter(|session| session.port == *port_key) {
            list.set(monitors_of(registry, port_key, Target::Session(session.endpoint, &session.selection)));
        }
    }
    let Ok(watched) = registry.record(port_key) else { return };
    for ring in monitor.watched_rings.iter().filter(|_| !monitor.watched_ended) {
        if let Source::Endpoint(at, source) = monitor.source_of(*ring)
            && let Some(state) = ring_state(&watched.endpoints[at], source)
        {
            state.monitors_changed();
        }
    }
}

/// Ends the monitors of an endpoint that has ended or been closed: they deliver what their mirror rings hold, and then
/// fail.
pub(in crate::ports) fn end_monitors(registry: &mut Registry, watched: &EndpointKey) {
    for monitor in registry.monitors_mut().filter(|monitor| monitor.watches(watched)) {
        monitor.watched_ended = true;
        // Not the transmit ring: programs that sync all rings would fail there before they have read what is left.
        monitor.record.endpoints[0].end_receiving();
    }
}

/// Takes a monitor that no program has open off its watched port's list.
pub(in crate::ports) fn close_if_unused(registry: &mut Registry, monitors: &MonitorState, id: u64) {
    let monitor = registry.get_mut::<Monitor>(&PortKey::Monitor(id));
    let Some(monitor) = monitor.filter(|monitor| !monitor.closed && !monitor.record.is_open()) else { return };
    monitor.closed = true;
    notify_watched(registry, monitors, id);
}

/// The port that a monitor watches.
pub(in crate::ports) fn watched_port(registry: &Registry, id: u64) -> Option<PortKey> {
    registry.get::<Monitor>(&PortKey::Monitor(id)).map(|monitor| monitor.watched.port.clone())
}

/// The receive rings of an interface whose packets are copied to monitors.
pub(in crate::ports) fn copied_receive_rings(registry: &Registry, port: &PortKey) -> BTreeSet<usize> {
    let monitors = monitors_on(registry, port).filter(|monitor| !monitor.is_zero_copy());
    let rings = monitors.flat_map(|monitor| &monitor.watched_rings).filter(|ring| !ring.transmit);
    rings.map(|ring| ring.id).collect()
}

/// The closed monitors whose mirror rings no sync uses any more.
pub(in crate::ports) fn closed_and_unused(registry: &Registry) -> Vec<PortKey> {
    let closed = registry.monitors().filter(|monitor| monitor.closed);
    let watched = |monitor: &Monitor| registry.endpoint(&monitor.watched).ok().map(|(endpoint, _)| endpoint);
    let releasable = closed.filter(|monitor| monitor.is_releasable(watched(monitor)));
    releasable.map(|monitor| PortKey::Monitor(monitor.id)).collect()
}

/// Returns the next monitor of a program's port; `None` after the last.
pub(crate) fn next_monitor(
    registry: &Registry,
    request: &NextMonitorRequest,
) -> Result<Option<(MonitorReply, Vec<OwnedFd>)>, Refusal> {
    let session = registry.session_of(request.session, request.key)?;
    let target = Target::Session(session.endpoint, &session.selection);
    let mut monitors = monitors_on(registry, &session.port);
    let next = monitors.find(|monitor| monitor.id > request.after && monitor.has_mirror_for(target));
    next.map(|monitor| monitor.describe_mirror(&monitor.record, target)).transpose()
}

/// Returns the open monitors of a port.
fn monitors_on<'a>(registry: &'a Registry, port: &'a PortKey) -> impl Iterator<Item = &'a Port<Monitor>> {
    registry.monitors().filter(move |monitor| monitor.watches(&monitor.watched) && monitor.watched.port == *port)
}

/// Returns the monitors of a port whose mirror rings `target` fills.
fn monitors_of(registry: &Registry, port: &PortKey, target: Target<'_>) -> Vec<(MonitorReply, Vec<OwnedFd>)> {
    let monitors = monitors_on(registry, port).filter(|monitor| monitor.has_mirror_for(target));
    let described = monitors.filter_map(|monitor| {
        let described = monitor.describe_mirror(&monitor.record, target);
        described.inspect_err(|e| tracing::warn!(monitor = monitor.id, "the monitor sees no packets: {}", e.why)).ok()
    });
    described.collect()
}

/// Returns the list of monitors for a session of the daemon's own. It is updated as long as the session is open.
pub(crate) fn list_for_session(registry: &Registry, monitors: &mut MonitorState, session: u64) -> Arc<MonitorList> {
    let list = Arc::new(MonitorList::default());
    if let Some(opened) = registry.sessions.get(&session) {
        let target = Target::Session(opened.endpoint, &opened.selection);
        list.set(monitors_of(registry, &opened.port, target));
    }
    monitors.lists.insert(session, list.clone());
    list
}

fn only_copies<T>(reason: &str) -> Result<T, Refusal> {
    refuse(EOPNOTSUPP, format!("{reason}: only a monitor that copies is possible (flags t and r, without z)"))
}

/// Checks the monitors of another daemon when all its ports are restored, and gives switches their lists. `last` is the
/// number of the one that was created last.
pub(crate) fn check_restored(registry: &Registry, state: &mut MonitorState, last: u64) -> Result<(), Refusal> {
    state.last = last;
    if !registry.monitors().all(|monitor| monitor.id <= last && monitor.watches_existing_rings(registry)) {
        return invalid("the rings that a monitor watches");
    }
    for (key, _) in registry.ports() {
        let monitors = monitors_of(registry, key, Target::Switch);
        if let Some(port) = registry.get::<ValePort>(key).filter(|_| !monitors.is_empty()) {
            port.set_monitors(monitors);
        }
    }
    Ok(())
}
