//! Switch ports, and the switches that they form.
//!
//! A switch exists as long as it has ports, its threads as long as there are switches. A thread has a configuration of each
//! switch of which it serves a port. Each change publishes new configurations to all threads, and waits until they no longer
//! use the old ones (`workers`).

pub(crate) mod attached;
mod requests;
mod settings;
mod workers;

use std::collections::BTreeMap;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::slice;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Instant;

use unetmap_abi::*;
use unetmap_core::control::binding::{BackendKind, BoundRing};
use unetmap_core::control::vale::ThreadConfig;
use unetmap_core::errno::{EACCES, EBUSY, EINVAL, EIO, ENOENT, ENOMEM};
use unetmap_mem::{BufIdx, ChannelPage};
use unetmap_switch::fdb::{MAX_PORTS, MacTable};
use unetmap_switch::policy::ActivePolicy;
use unetmap_switch::policy::DropReason;
use unetmap_switch::port::{RingConfig, SwitchPort};
use unetmap_switch::worker::SwitchConfig;
use unetmap_sys::{Doorbell, link};

use super::snapshot::PortSnapshot;
use super::{Daemon, Description, EndpointKey, Port, PortKey, Registry, nic};
use crate::caller::Caller;
use crate::endpoint::{DataPath, Endpoint, PortRing, RingSelection, shared_page};
use crate::refusal::{Refusal, refuse};
use crate::region::{RegionKey, RegionRecord, Scope};
use crate::registry::{BufferRepair, PauseGuard, PortRecord};
use crate::shape::EndpointShape;

use attached::{AttachedInterface, AttachedState};
use settings::SwitchSettings;
use workers::{PortLoad, Workers, balance};

use crate::tuning::region::MAX_EXTRA;
pub(crate) use requests::{SwitchSnapshot, answer_request, switch_snapshots};
pub(crate) use settings::age_tables;
pub(crate) use workers::{WorkerSnapshot, worker_snapshots};

/// Ring pairs of a port.
const MAX_RINGS: u16 = 16;
/// In place of the number of a port that does not exist.
const NO_PORT: u8 = 255;

/// Identifies a switch port.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
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

    fn switch_key(&self) -> SwitchKey {
        (self.scope, self.switch.clone())
    }
}

/// Identifies a switch.
type SwitchKey = (Scope, String);

/// The state of all switches.
pub(crate) struct ValeState {
    switches: BTreeMap<SwitchKey, Switch>,
    workers: Workers,
    settings: SwitchSettings,
    pub(crate) attached: AttachedState,
}

/// A switch port. It exists as long as it is open.
pub(crate) struct ValePort {
    key: ValeKey,
    region: RegionKey,
    endpoint: Endpoint,
    channels: ChannelPage,
    channels_fd: OwnedFd,
    channels_bytes: usize,
    /// Wakes the thread that serves the port.
    doorbell: Doorbell,
    switch_side: Arc<SwitchPort>,
    /// The interface that is attached as this port.
    attachment: Option<AttachedInterface>,
}

struct Switch {
    /// Its number in requests: the lowest that no other switch of the same scope had when it was created.
    number: u16,
    table: Arc<MacTable>,
    /// Its ports, by number.
    members: Vec<Option<Arc<SwitchPort>>>,
    /// The thread that serves each port; `None`: none yet.
    threads: Vec<Option<usize>>,
    /// When the addresses in its table age by a step; `None`: not scheduled yet, or they do not age.
    next_tick: Option<Instant>,
}

impl ValePort {
    /// Packets that the ring dropped: of a transmit ring packets that reached no port, of a receive ring packets that
    /// it had no room for.
    fn dropped(&self, transmit: bool, ring: u16) -> u64 {
        match transmit {
            true => self.switch_side.tx_drops(ring.into()).iter().sum(),
            false => self.switch_side.rx_drops(ring.into()),
        }
    }

    /// Packets that the port sent and that reached no port, by reason.
    fn lost(&self) -> BTreeMap<&'static str, u64> {
        let rings = || (0..self.endpoint.tx.len()).map(|ring| self.switch_side.tx_drops(ring));
        let one = |why: DropReason| (why.name(), rings().map(|lost| lost[why as usize]).sum());
        DropReason::ALL.into_iter().map(one).collect()
    }

    /// Packets for the port that it did not receive, by reason.
    fn not_received(&self) -> BTreeMap<&'static str, u64> {
        let room = (0..self.endpoint.rx.len()).map(|ring| self.switch_side.rx_drops(ring)).sum();
        let [filter, rate] = self.switch_side.policy_drops();
        [("room", room), (DropReason::Filter.name(), filter), (DropReason::RateLimit.name(), rate)].into()
    }

    /// Slots that crossed its rings of one direction, as the program that syncs them counts.
    fn crossed(&self, transmit: bool) -> u64 {
        let rings = if transmit { &self.endpoint.tx } else { &self.endpoint.rx };
        let of =
            |ring: &PortRing| self.endpoint.state_page.state(ring.state).map_or(0, |state| state.slots.load(Relaxed));
        rings.iter().map(of).fold(0, u64::wrapping_add)
    }

    /// Sets the policy that applies from the next configuration of the switch on.
    fn set_policy(&self, policy: Option<Arc<ActivePolicy>>) {
        self.switch_side.set_policy(policy);
    }

    /// Bytes of the virtio-net header that its packets begin with.
    fn header(&self) -> u8 {
        self.switch_side.vnet_hdr_len()
    }

    /// Its number in its switch.
    fn index(&self) -> u8 {
        self.switch_side.index()
    }

    /// Sets the monitors that see its packets.
    pub(super) fn set_monitors(&self, monitors: Vec<unetmap_core::sync::mirror::Monitor>) {
        self.switch_side.set_monitors(monitors);
    }

    fn create(
        region: &mut RegionRecord,
        key: &ValeKey,
        request: &NmreqRegister,
        index: u8,
    ) -> Result<ValePort, Refusal> {
        let shape = EndpointShape::requested(request, MAX_RINGS)?;
        let (tx, rx) = (usize::from(shape.tx_rings), usize::from(shape.rx_rings));
        let channels_bytes = ChannelPage::bytes(tx + rx);
        let (range, channels_fd) = shared_page("unetmap-channels", channels_bytes)?;
        let channels = ChannelPage::new(range);
        let endpoint = Endpoint::create(region, shape, DataPath::Switch { tx: 0, rx: tx })?;
        let created = Doorbell::new().and_then(|doorbell| {
            let rings = (switch_rings(&endpoint.tx)?, switch_rings(&endpoint.rx)?);
            let switch_side = SwitchPort::new(index, &region.region, &channels, rings, doorbell.try_clone()?)?;
            Ok((Arc::new(switch_side), doorbell))
        });
        match created {
            Ok((switch_side, doorbell)) => Ok(ValePort {
                key: key.clone(),
                region: region.key,
                endpoint,
                channels,
                channels_fd,
                channels_bytes,
                doorbell,
                switch_side,
                attachment: None,
            }),
            Err(e) => {
                endpoint.free(region);
                refuse(ENOMEM, format!("the daemon has no file descriptors or no memory left: {e}"))
            }
        }
    }
}

/// Returns the rings as the switch needs them.
fn switch_rings(rings: &[PortRing]) -> std::io::Result<Vec<RingConfig<'_>>> {
    let rings = rings.iter().map(|ring| {
        Ok(RingConfig {
            view: &ring.view,
            channel: ring.channel.unwrap_or(0),
            doorbell: ring.doorbell.try_clone()?,
            placeholder: ring.placeholder.unwrap_or(BufIdx(0)),
        })
    });
    rings.collect()
}

/// Finds the port, or creates it, and its switch if it has no other port.
pub(super) fn find_or_create(
    daemon: &mut Daemon,
    spec: &PortSpec,
    request: &NmreqRegister,
    caller: &Caller,
) -> Result<EndpointKey, Refusal> {
    let key = key_of(daemon, &spec.parent, caller)?;
    let port_key = PortKey::Vale(key.clone());
    if let Ok(port) = daemon.registry.port(&port_key) {
        daemon.registry.regions.check_number("port", port.region(), request.nr_mem_id)?;
        return Ok(port_key.into());
    }
    if is_interface(daemon, &key.port, caller) {
        return refuse(EINVAL, format!("{} is an interface, which is attached to a switch (vale-ctl -a)", key.port));
    }
    create(daemon, &key, request, key.scope, caller)?;
    Ok(port_key.into())
}

/// Creates the port, in a region of `owner` if the request names none, and its switch if it has no other port.
fn create(
    daemon: &mut Daemon,
    key: &ValeKey,
    request: &NmreqRegister,
    owner: Scope,
    caller: &Caller,
) -> Result<(), Refusal> {
    let switch = daemon.vale.switches.get(&key.switch_key());
    let free = switch.map_or(Some(0), |switch| switch.members.iter().position(Option::is_none));
    let Some(index) = free.and_then(|index| u8::try_from(index).ok()) else {
        return refuse(ENOMEM, format!("{} has {MAX_PORTS} ports already", key.switch));
    };
    let shape = EndpointShape::requested(request, MAX_RINGS)?;
    let region = match request.nr_mem_id {
        0 => {
            let extra = request.nr_extra_bufs.min(MAX_EXTRA);
            let sizes = daemon.knobs.private_sizes().for_switch_port(&shape, extra);
            daemon.registry.regions.create_private(owner, &key.name(), sizes)?
        }
        mem_id => daemon.region_by_number(mem_id, caller)?,
    };
    let record = daemon.registry.regions.existing_mut(region)?;
    let created = ValePort::create(record, key, request, index);
    let port = created.inspect_err(|_| daemon.registry.free_region_if_unused(region))?;
    port.set_policy(daemon.vale.settings.active_policy(key));
    daemon.vale.add(key, &port.switch_side);
    daemon.registry.insert(PortKey::Vale(key.clone()), Box::new(port));
    if let Err(refusal) = daemon.vale.publish() {
        daemon.release_if_unused(&PortKey::Vale(key.clone()));
        return Err(refusal);
    }
    Ok(())
}

fn is_interface(daemon: &Daemon, name: &str, caller: &Caller) -> bool {
    match daemon.admission.policy {
        // A user's own daemon looks in its own network namespace, which usually is the caller's.
        None => link::by_name(name).is_ok_and(|link| link.is_some()),
        Some(_) => matches!(nic::find_link(name, caller), Ok(Some(_))),
    }
}

/// Returns the key of a port name that was parsed: valeS:P.
pub(super) fn key_of(daemon: &mut Daemon, name: &str, caller: &Caller) -> Result<ValeKey, Refusal> {
    if !daemon.may_use_pipes(caller)? {
        return refuse(EACCES, "this daemon serves switches to other users only where its policy says so");
    }
    let Some((switch, port)) = name.split_once(':') else {
        return refuse(EINVAL, "the name of a switch port is valeS:P");
    };
    Ok(ValeKey { scope: daemon.scope(caller), switch: switch.into(), port: port.into() })
}

/// Finds a port of a switch: by name, or, without a name, the next one from the numbers in `request` on. The number of
/// a port that does not exist is [`NO_PORT`].
pub(crate) fn list_next(
    daemon: &Daemon,
    name: &str,
    request: &NmreqValeList,
    caller: &Caller,
) -> Result<(String, NmreqValeList), Refusal> {
    let scope = daemon.scope(caller);
    let found =
        |switch: u16, port: u8| NmreqValeList { nr_bridge_idx: switch, nr_port_idx: port.into(), ..Default::default() };
    if name.is_empty() {
        let from = (request.nr_bridge_idx, request.nr_port_idx);
        let own = daemon.registry.all::<ValePort>().filter(|port| port.key.scope == scope);
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
    let port = find(&daemon.registry, &key).map_or(NO_PORT, ValePort::index);
    Ok((name.into(), found(switch.number, port)))
}

fn find<'a>(registry: &'a Registry, key: &ValeKey) -> Option<&'a ValePort> {
    registry.get(&PortKey::Vale(key.clone()))
}

fn find_by_name<'a>(daemon: &'a Daemon, name: &str, caller: &Caller) -> Option<&'a ValePort> {
    let scope = daemon.scope(caller);
    daemon.registry.all::<ValePort>().find(|port| port.key.scope == scope && port.key.name() == name)
}

/// Returns the bytes of the virtio-net header that the port's packets begin with; 0 if there is no such port.
pub(crate) fn header(daemon: &Daemon, name: &str, caller: &Caller) -> u8 {
    find_by_name(daemon, name, caller).map_or(0, ValePort::header)
}

/// Sets it. Returns `false` if there is no such port.
pub(crate) fn set_header(daemon: &Daemon, name: &str, bytes: u8, caller: &Caller) -> bool {
    let port = find_by_name(daemon, name, caller);
    port.inspect(|port| port.switch_side.set_vnet_hdr_len(bytes)).is_some()
}

/// Whether there is such a port.
pub(crate) fn exists(daemon: &Daemon, name: &str, caller: &Caller) -> bool {
    find_by_name(daemon, name, caller).is_some()
}

impl PortRecord for ValePort {
    fn region(&self) -> RegionKey {
        self.region
    }

    fn endpoints(&self) -> &[Endpoint] {
        slice::from_ref(&self.endpoint)
    }

    fn buffer_repair(&self) -> BufferRepair<'_> {
        BufferRepair::Slots(None)
    }

    fn exchanges_buffers(&self) -> bool {
        true
    }

    fn pause_exchange(&self) -> Option<Box<dyn PauseGuard + '_>> {
        Some(Box::new(self.switch_side.pause_tx()))
    }
}

impl Port for ValePort {
    fn endpoint_mut(&mut self, _index: usize) -> &mut Endpoint {
        &mut self.endpoint
    }

    fn channels(&self) -> Option<&ChannelPage> {
        Some(&self.channels)
    }

    fn check_request(&self, request: &NmreqRegister) -> Result<(), Refusal> {
        if self.attachment.is_some() {
            return refuse(EBUSY, "an interface is attached to the switch as this port (vale-ctl -d detaches it)");
        }
        let header = self.header();
        if header > 0 && request.nr_flags & NR_ACCEPT_VNET_HDR == 0 {
            return refuse(
                EIO,
                format!(
                    "its packets begin with a virtio-net header of {header} bytes, which the program must accept \
                     (NR_ACCEPT_VNET_HDR)"
                ),
            );
        }
        Ok(())
    }

    fn zero_copy_obstacle(&self) -> Option<&'static str> {
        Some("a switch copies its packets anyway")
    }

    fn set_offsets(&mut self, _index: usize, selection: &RingSelection, layout: Option<crate::offsets::OffsetLayout>) {
        self.endpoint.set_offsets(selection, layout, Some(&self.channels));
        for (transmit, rings) in [(true, &self.endpoint.tx), (false, &self.endpoint.rx)] {
            let all = rings.iter().enumerate();
            all.for_each(|(i, ring)| self.switch_side.set_offsets(transmit, i, ring.offsets));
        }
    }

    fn describe(&self, _index: usize) -> Description<'_> {
        let (page, page_bytes) = (self.channels_fd.as_fd(), self.channels_bytes);
        Description { page, page_bytes, mirror_pools: Default::default() }
    }

    fn describe_ring<'a>(
        &'a self,
        _daemon: &Daemon,
        _index: usize,
        _ring: &'a PortRing,
        bound_ring: &mut BoundRing,
    ) -> Result<BorrowedFd<'a>, Refusal> {
        bound_ring.backend = BackendKind::Vale as u32;
        Ok(self.doorbell.as_fd())
    }

    fn unbind(&mut self, _index: usize, selection: &RingSelection) {
        self.endpoint.unbind(selection, None, None);
        // A process that was killed may have sent packets without notifying the switch.
        self.doorbell.notify();
    }

    /// Afterwards no thread uses the port any more.
    fn release(self: Box<Self>, daemon: &mut Daemon) -> Vec<Endpoint> {
        daemon.vale.remove(&self.key, &self.switch_side);
        vec![self.endpoint]
    }

    fn owner(&self) -> u32 {
        self.key.scope.uid
    }

    fn snapshot(&self, daemon: &Daemon) -> Vec<PortSnapshot> {
        let mem_id = daemon.registry.regions.mem_id(self.region);
        let thread = daemon.vale.thread_of(self);
        let mut port = PortSnapshot::new(self.key.name(), "vale", mem_id, &self.endpoint, Some(&self.channels));
        for ring in &mut port.rings {
            ring.dropped = self.dropped(ring.dir == "tx", ring.id);
            ring.swapped = (ring.dir == "rx").then(|| self.switch_side.swaps(ring.id.into()));
        }
        vec![PortSnapshot {
            uid: Some(self.key.scope.uid),
            thread,
            cpu: thread.and_then(|thread| daemon.vale.workers.cpu_of(thread)),
            polled: self.polling_cpus(),
            lost: self.lost(),
            ..port
        }]
    }
}

impl ValeState {
    pub(crate) fn new(plan: ThreadConfig) -> ValeState {
        ValeState {
            switches: BTreeMap::new(),
            workers: Workers::new(plan),
            settings: SwitchSettings::default(),
            attached: AttachedState::default(),
        }
    }

    /// Whether there are settings or ports that would be lost if the daemon ended.
    pub(crate) fn has_state(&self, registry: &Registry) -> bool {
        let is_attached = registry.all::<ValePort>().any(|port| port.attachment.is_some());
        !self.settings.is_empty() || self.workers.changed() || is_attached || self.attached.has_persistent_ports()
    }

    fn add(&mut self, key: &ValeKey, port: &Arc<SwitchPort>) {
        let of_scope = self.switches.iter().filter(|((scope, _), _)| *scope == key.scope);
        let used: Vec<u16> = of_scope.map(|(_, switch)| switch.number).collect();
        let switch = self.switches.entry(key.switch_key()).or_insert_with(|| Switch {
            number: (0..=u16::MAX).find(|number| !used.contains(number)).unwrap_or(u16::MAX),
            table: Arc::new(MacTable::new()),
            members: vec![None; MAX_PORTS],
            threads: vec![None; MAX_PORTS],
            next_tick: None,
        });
        switch.members[usize::from(port.index())] = Some(port.clone());
        switch.threads[usize::from(port.index())] = None;
    }

    fn remove(&mut self, key: &ValeKey, port: &SwitchPort) {
        let Some(switch) = self.switches.get_mut(&key.switch_key()) else { return };
        switch.members[usize::from(port.index())] = None;
        let (table, empty) = (switch.table.clone(), switch.members.iter().all(Option::is_none));
        if empty {
            self.switches.remove(&key.switch_key());
        }
        if let Err(refusal) = self.publish() {
            tracing::error!("threads may still use a switch port that was removed: {}", refusal.why);
        }
        table.remove_port(port.index());
    }

    /// The loads of all ports, in order of their switches and numbers.
    fn loads(&self) -> Vec<PortLoad> {
        self.switches.values().flat_map(Switch::ports).map(|(load, _)| load).collect()
    }

    /// The thread that serves a port.
    fn thread_of(&self, port: &ValePort) -> Option<usize> {
        self.switches.get(&port.key.switch_key())?.threads.get(usize::from(port.index())).copied()?
    }

    /// Publishes the switches to the threads, and waits until no thread uses an older state. Starts the threads for the
    /// first switch, and stops them after the last.
    fn publish(&mut self) -> Result<(), Refusal> {
        if self.switches.is_empty() {
            self.workers.stop();
            return Ok(());
        }
        let threads = self.workers.start()?;
        let moved = self.assign_threads(threads);
        let switches = &self.switches;
        let configs = |n| switches.values().filter_map(|switch| switch.config_for(n)).collect();
        let confirmed = self.workers.publish(configs);
        moved.iter().for_each(|port| port.wake_worker());
        if confirmed { Ok(()) } else { refuse(ENOMEM, "a thread of the switches does not respond") }
    }

    /// Distributes the ports over `threads` threads; returns those that moved from one to another.
    fn assign_threads(&mut self, threads: usize) -> Vec<Arc<SwitchPort>> {
        let mut loads = self.loads();
        balance(&mut loads, threads);
        let mut moved = Vec::new();
        let ports = self.switches.values_mut().flat_map(|switch| switch.threads.iter_mut().zip(&switch.members));
        let ports = ports.filter_map(|(thread, port)| Some((thread, port.as_ref()?)));
        for ((thread, port), load) in ports.zip(loads) {
            if thread.is_some() && *thread != load.thread {
                moved.push(port.clone());
            }
            *thread = load.thread;
        }
        moved
    }
}

impl Switch {
    /// Its ports, each with its load.
    fn ports(&self) -> impl Iterator<Item = (PortLoad, &Arc<SwitchPort>)> {
        let ports = self.members.iter().zip(&self.threads);
        ports.filter_map(|(port, thread)| {
            let port = port.as_ref()?;
            Some((PortLoad { rings: port.tx_rings(), thread: *thread }, port))
        })
    }

    /// The switch as a thread sees it; `None` if the thread serves none of its ports.
    fn config_for(&self, thread: usize) -> Option<SwitchConfig> {
        let own = self.ports().filter(|(load, _)| load.thread == Some(thread));
        let own: Vec<u8> = own.map(|(_, port)| port.index()).collect();
        (!own.is_empty()).then(|| SwitchConfig::new(self.table.clone(), self.members.clone(), own))
    }
}
