// SPDX-License-Identifier: BSD-2-Clause
//! A switch port.

use std::collections::BTreeMap;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use serde::{Deserialize, Serialize};
use unetmap_abi::*;
use unetmap_core::control::binding::{BackendKind, BoundRing, FORWARD_ALL, FORWARD_MARKED};
use unetmap_core::errno::{EACCES, EBUSY, EINVAL, ENOENT, ENOMEM};
use unetmap_mem::{BufIdx, ChannelPage};
use unetmap_switch::policy::ActivePolicy;
use unetmap_switch::policy::DropReason;
use unetmap_switch::port::{RingConfig, SwitchPort};
use unetmap_sys::{Doorbell, link};

use crate::budget::{Amounts, Resource};
use crate::caller::Caller;
use crate::endpoint::{DataPath, Endpoint, PortRing};
use crate::ports::snapshot::PortSnapshot;
use crate::ports::{AnyPort, Asked, Daemon, EndpointKey, PortKey, Registry, nic};
use crate::refusal::{Refusal, refuse};
use crate::region::{RegionKey, RegionRecord, Scope, SharedPage};
use crate::registry::{BufferRepair, Port, Record};
use crate::shape::EndpointShape;
use crate::tuning::region::MAX_EXTRA;

use super::attached::AttachedInterface;
use super::switches::SwitchKey;
use super::switches::ValeState;
use super::{persistent, persistent_header};

/// Ring pairs of a port.
pub(super) const MAX_RINGS: u16 = 16;
/// In place of the number of a port that does not exist.
pub(super) const NO_PORT: u8 = 255;

/// Identifies a switch port.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize, Deserialize)]
pub(crate) struct ValeKey {
    pub(crate) scope: Scope,
    /// The part of the name before the colon: `vale0`.
    pub(crate) switch: String,
    /// The part of the name after the colon.
    pub(crate) port: String,
}

impl ValeKey {
    /// The whole name.
    pub(crate) fn name(&self) -> String {
        format!("{}:{}", self.switch, self.port)
    }

    pub(super) fn switch_key(&self) -> SwitchKey {
        (self.scope, self.switch.clone())
    }

    /// Whether it is a place in a switch of a persistent port itself.
    pub(super) fn is_in_own_switch(&self) -> bool {
        self.switch.starts_with(OWN_SWITCH)
    }
}

/// The switches of a persistent port itself have names that no program can write: this sign and the index of its
/// hidden end.
pub(super) const OWN_SWITCH: char = '#';

/// A switch port. It exists as long as it is open.
pub(crate) struct ValePort {
    /// Identifies it in the registry.
    pub(super) id: PortKey,
    /// Its place in a switch. A persistent port can move to another.
    pub(super) key: ValeKey,
    /// Whether it is a member of that switch, and not only has its name.
    pub(super) is_member: bool,
    /// Wakes the thread that serves the port.
    pub(super) doorbell: Doorbell,
    pub(super) switch_side: Arc<SwitchPort>,
    /// Of a persistent port: its host rings.
    pub(super) host_rings: Option<HostRings>,
    /// The interface that is attached as this port.
    pub(super) attachment: Option<AttachedInterface>,
    /// Whether the daemon has it open, as it is attached to a second switch.
    pub(super) is_wrapped: bool,
}

/// The host rings of a persistent port: a switch port of their own.
pub(super) struct HostRings {
    /// Wakes the thread that serves them.
    pub(super) doorbell: Doorbell,
    pub(super) switch_side: Arc<SwitchPort>,
}

impl Port<ValePort> {
    pub(super) fn endpoint(&self) -> &Endpoint {
        &self.record.endpoints[0]
    }

    /// The side of a ring that faces a switch, and the ring's number there.
    pub(super) fn side_of(&self, transmit: bool, ring: u16) -> (&SwitchPort, usize) {
        let shape = self.endpoint().shape;
        let own = if transmit { shape.tx_rings } else { shape.rx_rings };
        match (ring.checked_sub(own), &self.host_rings) {
            (Some(ring), Some(host)) => (&host.switch_side, ring.into()),
            _ => (&self.switch_side, ring.into()),
        }
    }

    /// Packets that the ring dropped: of a transmit ring packets that reached no port, of a receive ring packets that
    /// it had no room for.
    pub(super) fn dropped(&self, transmit: bool, ring: u16) -> u64 {
        let (side, ring) = self.side_of(transmit, ring);
        match transmit {
            true => side.tx_drops(ring).iter().sum(),
            false => side.rx_drops(ring),
        }
    }

    /// Packets that the port sent and that reached no port, by reason.
    pub(super) fn lost(&self) -> BTreeMap<&'static str, u64> {
        let rings = || (0..self.switch_side.tx_rings()).map(|ring| self.switch_side.tx_drops(ring));
        let one = |why: DropReason| (why.name(), rings().map(|lost| lost[why as usize]).sum());
        DropReason::ALL.into_iter().map(one).collect()
    }

    /// Packets for the port that it did not receive, by reason.
    pub(super) fn not_received(&self) -> BTreeMap<&'static str, u64> {
        let room = (0..self.endpoint().shape.rx_rings.into()).map(|ring| self.switch_side.rx_drops(ring)).sum();
        let [filter, rate] = self.switch_side.policy_drops();
        [("room", room), (DropReason::Filter.name(), filter), (DropReason::RateLimit.name(), rate)].into()
    }

    /// Slots that crossed its rings of one direction, as the program that syncs them counts.
    pub(super) fn crossed(&self, transmit: bool) -> u64 {
        let rings = if transmit { &self.endpoint().tx } else { &self.endpoint().rx };
        let of = |ring: &PortRing| self.endpoint().state(ring.state).map_or(0, |state| state.slots.load(Relaxed));
        rings.iter().map(of).fold(0, u64::wrapping_add)
    }

    /// Tells the switch where packets begin in the buffers of its rings.
    pub(in crate::ports) fn apply_offsets(&self) {
        for (transmit, rings) in [(true, &self.endpoint().tx), (false, &self.endpoint().rx)] {
            for ring in rings {
                let (side, i) = self.side_of(transmit, ring.view.shape().id);
                side.set_offsets(transmit, i, ring.offsets());
            }
        }
    }
}

impl ValePort {
    /// Sets the policy that applies from the next configuration of the switch on.
    pub(super) fn set_policy(&self, policy: Option<Arc<ActivePolicy>>) {
        self.switch_side.set_policy(policy);
    }

    /// Bytes of the virtio-net header that its packets begin with.
    pub(super) fn header(&self) -> u8 {
        self.switch_side.vnet_hdr_len()
    }

    /// Its number in its switch.
    pub(super) fn index(&self) -> u8 {
        self.switch_side.index()
    }

    /// Sets the monitors that see its packets.
    pub(in crate::ports) fn set_monitors(&self, monitors: Vec<unetmap_core::control::monitor::Monitor>) {
        self.switch_side.set_monitors(monitors);
        // Afterwards no thread uses the earlier ones, unless it waits for memory of a program.
        drop(self.switch_side.pause_tx());
    }

    /// Creates a port for which user `scope` is charged.
    pub(super) fn create(
        region: &mut RegionRecord,
        (scope, id, key): (Scope, PortKey, ValeKey),
        shape: EndpointShape,
        index: u8,
    ) -> Result<Port<ValePort>, Refusal> {
        let page = SharedPage::create("unetmap-channels", ChannelPage::bytes(shape.all_rings() as usize))?;
        let channels = ChannelPage::new(page.range.clone());
        let endpoint = Endpoint::create(region, shape, DataPath::Switch { tx: 0, rx: shape.all_tx().into() })?;
        let (tx, host_tx) = endpoint.tx.split_at(shape.tx_rings.into());
        let (rx, host_rx) = endpoint.rx.split_at(shape.rx_rings.into());
        let side = |index, tx, rx| {
            let doorbell = Doorbell::new()?;
            let switch_side = switch_side(index, region, &channels, (tx, rx), &doorbell)?;
            Ok((doorbell, switch_side))
        };
        let created = side(index, tx, rx).and_then(|own| {
            let has_host = !host_tx.is_empty() || !host_rx.is_empty();
            let host = has_host.then(|| side(persistent::WIRE_PROGRAM, host_tx, host_rx)).transpose()?;
            Ok((own, host.map(|(doorbell, switch_side)| HostRings { doorbell, switch_side })))
        });
        match created {
            Ok(((doorbell, switch_side), host_rings)) => {
                let (channels, page) = (Some(channels), Some(page));
                let record = Record::new(region.key, scope, [endpoint], BufferRepair::Slots);
                let (is_member, attachment, is_wrapped) = (false, None, false);
                let port = ValePort { id, key, is_member, doorbell, switch_side, host_rings, attachment, is_wrapped };
                Ok(port.with(Record { channels, page, ..record }))
            }
            Err(e) => no_descriptors(region, endpoint, &e),
        }
    }
}

impl ValePort {
    /// Adds it to a record.
    pub(super) fn with(self, record: Record) -> Port<ValePort> {
        let other_usage = switch_descriptors(record.endpoints[0].shape);
        let host = self.host_rings.as_ref().map(|host| host.switch_side.clone());
        let switch_sides = [Some(self.switch_side.clone()), host].into_iter().flatten().collect();
        Port { record: Record { switch_sides, other_usage, ..record }, kind: self }
    }
}

#[cold]
pub(super) fn no_descriptors<T>(
    region: &mut RegionRecord,
    endpoint: Endpoint,
    e: &std::io::Error,
) -> Result<T, Refusal> {
    endpoint.free(region);
    refuse(ENOMEM, format!("the daemon has no file descriptors or no memory left: {e}"))
}

/// Returns the side of these transmit and receive rings that faces a switch.
pub(super) fn switch_side(
    index: u8,
    region: &RegionRecord,
    channels: &ChannelPage,
    (tx, rx): (&[PortRing], &[PortRing]),
    doorbell: &Doorbell,
) -> std::io::Result<Arc<SwitchPort>> {
    let rings = (switch_rings(tx)?, switch_rings(rx)?);
    SwitchPort::new(index, &region.region, channels, rings, doorbell.try_clone()?).map(Arc::new)
}

/// Returns the rings as the switch needs them.
pub(super) fn switch_rings(rings: &[PortRing]) -> std::io::Result<Vec<RingConfig<'_>>> {
    let rings = rings.iter().map(|ring| {
        Ok(RingConfig {
            view: &ring.view,
            channel: ring.channel.unwrap_or(0),
            doorbell: ring.doorbell.made().ok_or(std::io::ErrorKind::NotFound)?.try_clone()?,
            placeholder: ring.placeholder.unwrap_or(BufIdx(0)),
        })
    });
    rings.collect()
}

/// Finds the port, or creates it, and its switch if it has no other port.
pub(in crate::ports) fn find_or_create(
    daemon: &mut Daemon,
    spec: &PortSpec,
    request: &mut Asked<'_>,
    caller: &Caller,
) -> Result<EndpointKey, Refusal> {
    let key = key_of(daemon, &spec.parent, caller)?;
    if let Some(hidden) = daemon.vale.persistent.attached_as(&key) {
        return persistent::find_or_create(daemon, hidden, request, caller);
    }
    if let Some(port) = find(&daemon.registry, &key) {
        daemon.registry.regions.check_number("port", port.record.region, request.nr_mem_id)?;
        return Ok(port.id.clone().into());
    }
    if is_interface(daemon, &key.port, caller) {
        return refuse(EINVAL, format!("{} is an interface, which is attached to a switch (vale-ctl -a)", key.port));
    }
    create(daemon, &key, request, key.scope, caller).map(EndpointKey::from)
}

/// Creates the port, in a region of `owner` if the request names none, and its switch if it has no other port.
pub(super) fn create(
    daemon: &mut Daemon,
    key: &ValeKey,
    request: &mut Asked<'_>,
    owner: Scope,
    caller: &Caller,
) -> Result<PortKey, Refusal> {
    let index = daemon.vale.free_index(key)?;
    let shape = EndpointShape::requested(request, MAX_RINGS)?;
    let sizes = daemon.knobs.private_sizes().for_switch_port(&shape, request.nr_extra_bufs.min(MAX_EXTRA));
    let port = Amounts::endpoints(1, shape).and(switch_descriptors(shape));
    daemon.check_budget(key.scope, port.and(Amounts::region(sizes.bufs.0)))?;
    let region = match (request.nr_mem_id, daemon.region_of_pipes(owner, &key.name())) {
        (0, Some(region)) => region,
        (0, None) => daemon.registry.regions.create_private(owner, &key.name(), sizes, request.memory)?,
        (mem_id, _) => daemon.requested_region(mem_id, caller, request.memory)?,
    };
    let record = daemon.registry.regions.existing_mut(region)?;
    let id = PortKey::Vale(key.clone());
    let created = ValePort::create(record, (key.scope, id.clone(), key.clone()), shape, index);
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

/// The descriptors of a port of this shape besides those of its endpoint: the switch's own of each ring's doorbell, and
/// of those that wake the switch.
pub(super) fn switch_descriptors(shape: EndpointShape) -> Amounts {
    Amounts::of(Resource::Descriptors, u64::from(shape.all_rings()) + 4)
}

/// Returns the region of a port of a switch, by its name valeS:P. Programs have no access to that of an attached
/// interface.
pub(in crate::ports) fn region_of(daemon: &Daemon, scope: Scope, name: &str) -> Option<RegionKey> {
    let (switch, port) = name.split_once(':')?;
    let key = ValeKey { scope, switch: switch.into(), port: port.into() };
    let region = match daemon.vale.persistent.attached_as(&key) {
        Some(hidden) => daemon.vale.persistent.region(hidden),
        None => find(&daemon.registry, &key).map(|port| port.record.region),
    };
    region.filter(|region| daemon.registry.regions.get(*region).is_some_and(|record| record.scope.uid == scope.uid))
}

/// Whether an interface has this name. An alternative name does not count if the caller cannot have interfaces.
pub(super) fn is_interface(daemon: &mut Daemon, name: &str, caller: &Caller) -> bool {
    // A user's own daemon looks in its own network namespace, which usually is the caller's.
    if daemon.admission.policy.is_none() {
        return link::by_name(name).is_ok_and(|link| link.is_some());
    }
    if nic::may_have_interfaces(daemon, caller).unwrap_or(true) {
        return matches!(nic::find_link(name, caller), Ok(Some(_)));
    }
    name.len() <= persistent::MAX_NAME && !caller.lacks_interface(name)
}

/// Returns the key of a port name that was parsed: valeS:P.
pub(in crate::ports) fn key_of(daemon: &mut Daemon, name: &str, caller: &Caller) -> Result<ValeKey, Refusal> {
    if !daemon.admission.may_use_pipes(caller)? {
        return refuse(EACCES, "this daemon serves switches to other users only where its policy says so");
    }
    let Some((switch, port)) = name.split_once(':') else {
        return refuse(EINVAL, "the name of a switch port is valeS:P");
    };
    Ok(ValeKey { scope: daemon.admission.scope(caller), switch: switch.into(), port: port.into() })
}

/// Finds a port of a switch: by name, or, without a name, the next one from the numbers in `request` on. The number of
/// a port that does not exist is [`NO_PORT`].
pub(crate) fn list_next(
    daemon: &Daemon,
    name: &str,
    request: &NmreqValeList,
    caller: &Caller,
) -> Result<(String, NmreqValeList), Refusal> {
    let scope = daemon.admission.scope(caller);
    let found =
        |switch: u16, port: u8| NmreqValeList { nr_bridge_idx: switch, nr_port_idx: port.into(), ..Default::default() };
    if name.is_empty() {
        let from = (request.nr_bridge_idx, request.nr_port_idx);
        let members = daemon.registry.all::<ValePort>().filter(|port| port.is_member);
        let own = members.filter(|port| port.key.scope == scope);
        let numbered = own.filter_map(|port| {
            let switch = daemon.vale.switches.get(&port.key.switch_key())?;
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
    let Some(switch) = daemon.vale.switches.get(&key.switch_key()) else {
        return refuse(ENOENT, format!("there is no switch {}", key.switch));
    };
    let port = find(&daemon.registry, &key).map_or(NO_PORT, |port| port.index());
    Ok((name.into(), found(switch.number, port)))
}

/// Returns the member of a switch that has this place. Of a persistent port it is the program's end or the host's.
pub(super) fn find<'a>(registry: &'a Registry, key: &ValeKey) -> Option<&'a Port<ValePort>> {
    registry.all::<ValePort>().find(|port| port.is_member && port.key == *key)
}

pub(super) fn find_by_name<'a>(daemon: &'a Daemon, name: &str, caller: &Caller) -> Option<&'a Port<ValePort>> {
    let (switch, port) = name.split_once(':')?;
    find(&daemon.registry, &ValeKey { scope: daemon.admission.scope(caller), switch: switch.into(), port: port.into() })
}

/// Returns the port that programs open as this port of a switch.
pub(in crate::ports) fn program_port(vale: &ValeState, key: ValeKey) -> PortKey {
    match vale.persistent.attached_as(&key) {
        Some(hidden) => PortKey::Persistent(hidden),
        None => PortKey::Vale(key),
    }
}

/// Returns the bytes of the virtio-net header that the port's packets begin with; 0 if there is no such port.
pub(crate) fn header(daemon: &Daemon, name: &str, caller: &Caller) -> u8 {
    let Some(port) = find_by_name(daemon, name, caller) else { return 0 };
    match daemon.vale.persistent.attached_as(&port.key) {
        Some(hidden) => persistent_header::header_for(&daemon.vale, hidden, caller.peer.uid),
        None => port.header(),
    }
}

/// Sets it. Afterwards no switch thread delivers a packet with the header of before to the port, except one that waits
/// for memory of a program.
pub(crate) fn set_header(daemon: &mut Daemon, name: &str, bytes: u8, caller: &Caller) -> Result<(), Refusal> {
    let Some(port) = find_by_name(daemon, name, caller) else { return Ok(()) };
    if header(daemon, name, caller) == bytes {
        return Ok(());
    }
    match daemon.vale.persistent.attached_as(&port.key) {
        Some(hidden) => persistent_header::set_header(daemon, hidden, bytes, caller)?,
        None => port.switch_side.set_vnet_hdr_len(bytes),
    }
    daemon.vale.publish()
}

/// Whether there is such a port.
pub(crate) fn exists(daemon: &Daemon, name: &str, caller: &Caller) -> bool {
    find_by_name(daemon, name, caller).is_some()
}

impl Port<ValePort> {
    /// Refuses a program that may not open the port, or does not accept its header.
    pub(in crate::ports) fn check_request(&self, request: &NmreqRegister) -> Result<(), Refusal> {
        if self.is_wrapped {
            return refuse(EBUSY, "the persistent port is attached to a second switch (vale-ctl -d detaches it)");
        }
        if self.attachment.is_some() {
            return refuse(EBUSY, "an interface is attached to the switch as this port (vale-ctl -d detaches it)");
        }
        let header = self.header();
        if header > 0 && request.nr_flags & NR_ACCEPT_VNET_HDR == 0 {
            return nic::refuse_header(header);
        }
        Ok(())
    }

    /// Whether the daemon runs it for an interface.
    pub(in crate::ports) fn is_attached(&self) -> bool {
        self.attachment.is_some()
    }

    /// The user that the switch belongs to, in which the port is now.
    pub(in crate::ports) fn owner(&self) -> u32 {
        self.key.scope.uid
    }

    /// Completes the description of a ring for a client, and returns the doorbell of the thread that serves it;
    /// `forwards`: released packets of persistent ports are forwarded.
    pub(in crate::ports) fn describe_ring(
        &self,
        forwards: bool,
        ring: &PortRing,
        bound_ring: &mut BoundRing,
    ) -> BorrowedFd<'_> {
        bound_ring.backend = BackendKind::Vale as u32;
        let Some(host) = &self.host_rings else { return self.doorbell.as_fd() };
        bound_ring.features = FORWARD_MARKED | if forwards { FORWARD_ALL } else { 0 };
        let is_host_ring = ring.pair >= self.endpoint().shape.nic_pairs();
        if is_host_ring { &host.doorbell } else { &self.doorbell }.as_fd()
    }

    /// After a session was closed: a process that was killed may have sent packets without notifying the switch.
    pub(in crate::ports) fn notify_switch(&self) {
        self.doorbell.notify();
        self.host_rings.iter().for_each(|host| host.doorbell.notify());
    }

    /// Ends the port, which is no longer in the registry. Returns its endpoints, unless a thread may still use them.
    pub(in crate::ports) fn release(self, daemon: &mut Daemon) -> Vec<Arc<Endpoint>> {
        let Port { record, kind } = self;
        if kind.is_member {
            daemon.vale.remove(&kind.key, &kind.switch_side);
        }
        match daemon.registry.regions.get_mut(record.region) {
            Some(region) => daemon.vale.retire(region, record.into_endpoints()),
            None => record.into_endpoints(),
        }
    }

    pub(in crate::ports) fn snapshot(&self, mem_id: u16, vale: &ValeState) -> PortSnapshot {
        let thread = vale.thread_of(self);
        let name = persistent::display_name(&self.key);
        let mut port = PortSnapshot::new(name, "vale", mem_id, (&self.record, 0));
        for ring in &mut port.rings {
            ring.dropped = self.dropped(ring.dir == "tx", ring.id);
            let (side, id) = self.side_of(ring.dir == "tx", ring.id);
            ring.swapped = (ring.dir == "rx").then(|| side.swaps(id));
            ring.bytes = Some(if ring.dir == "tx" { side.tx_bytes(id) } else { side.rx_bytes(id) });
            ring.wakeups = Some(side.wakeups(ring.dir == "tx", id));
        }
        PortSnapshot {
            uid: Some(self.owner()),
            thread,
            cpu: thread.and_then(|thread| vale.workers.cpu_of(thread)),
            polled: self.polling_cpus(),
            lost: self.lost(),
            ..port
        }
    }
}
