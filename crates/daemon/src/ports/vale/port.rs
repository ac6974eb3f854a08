// SPDX-License-Identifier: BSD-2-Clause
//! A switch port.

use std::collections::BTreeMap;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use serde::{Deserialize, Serialize};
use unetmap_abi::*;
use unetmap_core::control::binding::{BackendKind, BoundRing, FORWARD_ALL, FORWARD_MARKED};
use unetmap_core::errno::{EBUSY, ENOMEM};
use unetmap_mem::{BufIdx, ChannelPage, CounterPage, RingShape};
use unetmap_switch::policy::ActivePolicy;
use unetmap_switch::policy::DropReason;
use unetmap_switch::port::{RingConfig, SwitchPort, counters};
use unetmap_sys::Doorbell;

use crate::budget::{Amounts, PAGE, Resource};
use crate::endpoint::{DataPath, Endpoint, PortRing};
use crate::ports::PortKey;
use crate::ports::nic::check_header;
use crate::ports::snapshot::{PacketsSnapshot, PortSnapshot};
use crate::refusal::{Refusal, refuse};
use crate::region::{RegionRecord, Scope, SharedPage};
use crate::registry::{BufferRepair, Port, Record};
use crate::shape::EndpointShape;

use super::ValeKey;

/// Identifies a switch.
pub(super) type SwitchKey = (Scope, String);

/// Ring pairs of a port.
pub(super) const MAX_RINGS: u16 = 16;

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

/// The index of the program end's host rings on the wire, on the wire.
pub(super) const WIRE_PROGRAM: u8 = 0;

/// The end of the name of the wire.
pub(super) const WIRE: char = '^';

/// The port of an interface's host rings has the interface's name and this suffix.
pub(super) const HOST_SUFFIX: char = '^';

/// The key of the port of an interface's host rings.
pub(super) fn host_key(key: &ValeKey) -> ValeKey {
    ValeKey { port: format!("{}{HOST_SUFFIX}", key.port), ..key.clone() }
}

/// Returns the name by which people know the port with this place.
pub(super) fn display_name(key: &ValeKey) -> String {
    match (key.is_in_own_switch(), key.switch.ends_with(WIRE)) {
        (true, true) => format!("{}^", key.port),
        (true, false) => key.port.clone(),
        (false, _) => key.name(),
    }
}

/// A switch port. It exists as long as it is open.
pub(crate) struct ValePort {
    /// Identifies it in the registry.
    pub(super) id: PortKey,
    /// Its place in a switch. A persistent port can move to another.
    pub(in crate::ports) key: ValeKey,
    /// Whether it is a member of that switch, and not only has its name.
    pub(super) is_member: bool,
    /// Wakes the thread that serves the port.
    pub(super) doorbell: Doorbell,
    pub(super) switch_side: Arc<SwitchPort>,
    /// Of a persistent port: its host rings.
    pub(super) host_rings: Option<HostRings>,
    /// The interface that is attached as this port.
    pub(in crate::ports) attachment: Option<AttachedInterface>,
    /// Whether the daemon has it open, as it is attached to a second switch.
    pub(super) is_wrapped: bool,
}

/// Which rings of an interface are attached.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(super) enum Side {
    /// The rings of its queues.
    Wire,
    /// Its host rings.
    Host,
}

impl Side {
    /// The REGISTER mode that selects a pair of these rings.
    pub(super) fn mode(self) -> u32 {
        match self {
            Side::Wire => NR_REG_ONE_NIC,
            Side::Host => NR_REG_ONE_SW,
        }
    }
}

/// An interface, or its host rings, attached to a switch.
pub(in crate::ports) struct AttachedInterface {
    pub(in crate::ports) interface: PortKey,
    pub(super) side: Side,
    /// Whether threads poll on processors of their own.
    pub(super) polling: bool,
}

impl AttachedInterface {
    /// Whether this is the interface with an index in a namespace.
    pub(super) fn is_link(&self, netns: u64, index: u32) -> bool {
        self.interface.as_nic().is_some_and(|nic| (nic.netns, nic.index) == (netns, index))
    }
}

/// The host rings of a persistent port: a switch port of their own.
pub(super) struct HostRings {
    /// Wakes the thread that serves them.
    pub(super) doorbell: Doorbell,
    pub(super) switch_side: Arc<SwitchPort>,
}

/// Counts by the keys of their reasons.
pub(super) fn by_reason(reasons: &[DropReason], counts: &[u64]) -> BTreeMap<&'static str, u64> {
    reasons.iter().map(|reason| reason.name()).zip(counts.iter().copied()).collect()
}

/// The counters of a port of this shape, those of its host rings behind its own.
pub(super) fn counters(shape: EndpointShape) -> usize {
    let [own, host] = counters_of_sides(shape);
    own + host
}

/// Makes the page of these counters.
pub(super) fn counter_page(shape: EndpointShape) -> Result<SharedPage, Refusal> {
    SharedPage::create("unetmap-counters", CounterPage::bytes(counters(shape)))
}

/// The number of counters of a port's own rings, and of its host rings.
pub(super) fn counters_of_sides(shape: EndpointShape) -> [usize; 2] {
    let (tx, rx) = (usize::from(shape.tx_rings), usize::from(shape.rx_rings));
    let (all_tx, all_rx) = (usize::from(shape.all_tx()), usize::from(shape.all_rx()));
    [counters::count(tx, rx), counters::count(all_tx - tx, all_rx - rx)]
}

impl Port<ValePort> {
    /// Of an attached interface: the queues that a processor of their own polls, and which processor.
    pub(super) fn polling_cpus(&self) -> BTreeMap<u16, u32> {
        self.record.mediators.iter().filter_map(|thread| Some((thread.pair.1, thread.polling_cpu()?))).collect()
    }

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
            true => side.tx_counts(ring).drops.iter().sum(),
            false => side.rx_counts(ring).dropped,
        }
    }

    /// Packets that the port sent and that reached no port, by reason.
    pub(super) fn lost(&self) -> BTreeMap<&'static str, u64> {
        by_reason(&DropReason::SENT, &self.switch_side.packets().lost)
    }

    /// Packets for the port that it did not receive, by reason.
    pub(super) fn not_received(&self) -> BTreeMap<&'static str, u64> {
        by_reason(&DropReason::RECEIVED, &self.switch_side.packets().not_received)
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
    /// Whether it is the member of a switch that has this place. Of a persistent port it is the program's end or the
    /// host's.
    pub(in crate::ports) fn is_at(&self, key: &ValeKey) -> bool {
        self.is_member && self.key == *key
    }

    /// Whether the rings of this interface's queues are attached as this port.
    pub(in crate::ports) fn is_wire_of(&self, interface: &PortKey) -> bool {
        self.attachment.as_ref().is_some_and(|it| it.interface == *interface && it.side == Side::Wire)
    }

    /// Sets the policy that applies from the next configuration of the switch on.
    pub(super) fn set_policy(&self, policy: Option<Arc<ActivePolicy>>) {
        self.switch_side.set_policy(policy);
    }

    /// Bytes of the virtio-net header that its packets begin with.
    pub(in crate::ports) fn header(&self) -> u8 {
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
        let counters = counter_page(shape)?;
        let count_in = CounterPage::new(counters.range.clone());
        let endpoint = Endpoint::create(region, shape, DataPath::Switch { tx: 0, rx: shape.all_tx().into() })?;
        let (tx, host_tx) = endpoint.tx.split_at(shape.tx_rings.into());
        let (rx, host_rx) = endpoint.rx.split_at(shape.rx_rings.into());
        let side = |index, tx, rx, first| {
            let doorbell = Doorbell::new()?;
            let pages = (&channels, (&count_in, first));
            let switch_side = switch_side(index, region, pages, (tx, rx), &doorbell)?;
            Ok((doorbell, switch_side))
        };
        let created = side(index, tx, rx, 0).and_then(|own| {
            let has_host = !host_tx.is_empty() || !host_rx.is_empty();
            let first = counters_of_sides(shape)[0];
            let host = has_host.then(|| side(WIRE_PROGRAM, host_tx, host_rx, first)).transpose()?;
            Ok((own, host.map(|(doorbell, switch_side)| HostRings { doorbell, switch_side })))
        });
        match created {
            Ok(((doorbell, switch_side), host_rings)) => {
                let (channels, page, counters) = (Some(channels), Some(page), Some(counters));
                let record = Record::new(region.key, scope, [endpoint], BufferRepair::Slots);
                let (is_member, attachment, is_wrapped) = (false, None, false);
                let port = ValePort { id, key, is_member, doorbell, switch_side, host_rings, attachment, is_wrapped };
                Ok(port.with(Record { channels, page, counters, ..record }))
            }
            Err(e) => no_descriptors(region, endpoint, &e),
        }
    }
}

impl ValePort {
    /// Adds it to a record.
    pub(super) fn with(self, record: Record) -> Port<ValePort> {
        let other_usage = switch_usage(record.endpoints[0].shape);
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
    (channels, counters): (&ChannelPage, (&CounterPage, usize)),
    (tx, rx): (&[PortRing], &[PortRing]),
    doorbell: &Doorbell,
) -> std::io::Result<Arc<SwitchPort>> {
    let rings = (switch_rings(tx)?, switch_rings(rx)?);
    SwitchPort::new(index, &region.region, channels, rings, doorbell.try_clone()?, counters).map(Arc::new)
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

/// The amounts of a port of this shape besides those of its endpoint: the switch's own descriptors of each ring's
/// doorbell, of those that wake the switch, and of the page of its counters; and this page, and the switch's private
/// copies of what transmit rings have.
pub(super) fn switch_usage(shape: EndpointShape) -> Amounts {
    let copies = u64::from(shape.all_tx()) * (RingShape::bytes(shape.tx_slots) as u64).next_multiple_of(PAGE);
    let counters = CounterPage::bytes(counters(shape)) as u64;
    Amounts::of(Resource::Descriptors, u64::from(shape.all_rings()) + 5)
        .and(Amounts::of(Resource::Memory, copies + counters))
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
        check_header(self.header(), request)
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

    /// `thread`, `cpu`: that serve it.
    pub(in crate::ports) fn snapshot(
        &self,
        mem_id: u16,
        (thread, cpu): (Option<usize>, Option<usize>),
        label: Option<String>,
    ) -> PortSnapshot {
        let name = display_name(&self.key);
        let mut port = PortSnapshot::new(name, "vale", mem_id, (&self.record, 0));
        for ring in &mut port.rings {
            ring.dropped = self.dropped(ring.dir == "tx", ring.id);
            let (side, id) = self.side_of(ring.dir == "tx", ring.id);
            let (sent, received) = (side.tx_counts(id), side.rx_counts(id));
            ring.swapped = (ring.dir == "rx").then_some(received.swapped);
            ring.bytes = Some(if ring.dir == "tx" { sent.bytes } else { received.bytes });
            ring.wakeups = Some(side.wakeups(ring.dir == "tx", id));
        }
        // Its own policy applies to all its receive rings, so the first one stands for all.
        let packets = self.switch_side.packets();
        if let Some(first) = port.rings.iter_mut().find(|ring| ring.dir == "rx") {
            first.dropped += packets.not_received[1..].iter().sum::<u64>();
        }
        PortSnapshot {
            uid: Some(self.owner()),
            label,
            thread,
            cpu,
            polled: self.polling_cpus(),
            lost: self.lost(),
            not_received: self.not_received(),
            packets: Some(PacketsSnapshot::of(&packets)),
            ..port
        }
    }
}
