// SPDX-License-Identifier: BSD-2-Clause
//! Ports: the lifecycle that all kinds share, and one module for each kind.
//!
//! ```text
//! find_or_create   REGISTER names a port: it is found, or created in a region
//! prepare, bind    a session opens it and binds rings
//! describe         the client gets the positions of the rings, and how their slots move
//! unbind           the session is closed
//! release          no session has it open: it leaves the registry, and its rings and buffers are freed
//! ```
//! To add a kind: write a module with the port's type and its [`Port`] implementation, and add the kind to [`PortKey`]
//! and to the functions of this file that match it.

mod admission;
mod answer;
pub(crate) mod arrival;
pub(crate) mod mediated;
pub(crate) mod mediator;
pub(crate) mod monitor;
pub(crate) mod nic;
mod null;
pub(crate) mod pipe;
mod pipe_rings;
mod saved;
mod sessions;
mod sink;
pub(crate) mod snapshot;
mod usage;
pub(crate) mod vale;

use std::any::Any;
use std::collections::BTreeMap;
use std::os::fd::BorrowedFd;

use serde::{Deserialize, Serialize};
use unetmap_abi::*;
use unetmap_core::control::binding::{BoundPool, BoundRing};
use unetmap_core::control::request::FORCE;
use unetmap_core::errno::EINVAL;
use unetmap_mem::ChannelPage;
use unetmap_sys::Doorbell;

use crate::budget::Amounts;
use crate::caller::Caller;
use crate::descriptors::{Outgoing, cannot};
use crate::endpoint::{Endpoint, PortRing, RingSelection};
use crate::events::EventLog;
use crate::knobs::{KnobSources, Knobs};
use crate::ledger::Ledger;
use crate::offsets::OffsetLayout;
use crate::policy::Access;
use crate::refusal::{Refusal, refuse};
use crate::region::{RegionKey, Scope, Sizes};
use crate::registry::{self, PortRecord};
use crate::users::Users;

use arrival::ArrivalThread;
use mediated::MediatedKey;
use mediator::MediatorThread;
use monitor::{Monitor, MonitorState};
use nic::{NicKey, NicState};
use pipe::copied_end::{self, CopiedEndKey};
use pipe::{PipeKey, endpoint_index};
use snapshot::PortSnapshot;
use vale::{ValeKey, ValeState};

pub(crate) use admission::Admission;
pub(crate) use saved::{SavedPort, SavedRegistry};
pub(crate) use sessions::{Opening, Options, Registered};
pub(crate) use usage::{BudgetCheck, TotalSnapshot, UserSnapshot};

pub(crate) type Registry = registry::Registry<PortKey, dyn Port>;
pub(crate) type Session = registry::Session<PortKey>;

/// Identifies a port. Snapshots list ports in this order.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize, Deserialize)]
pub(crate) enum PortKey {
    /// A network interface.
    Nic(NicKey),
    /// A switch port.
    Vale(ValeKey),
    /// The end of a persistent port that programs open, by the index of its hidden end.
    Persistent(u32),
    /// A network interface of which the daemon runs the sockets for a program.
    Mediated(MediatedKey),
    Pipe(PipeKey),
    /// An end of a pipe in another region than the pipe.
    CopiedEnd(CopiedEndKey),
    /// A port without a data path.
    Null(Scope, String),
    /// A sink, by its number.
    Sink(Scope, u32),
    /// A monitor, by its number. No key comes after these.
    Monitor(u64),
}

/// Identifies an endpoint of a port.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(crate) struct EndpointKey {
    pub(crate) port: PortKey,
    /// For a pipe 0 is the master and 1 the slave; for a mediated port 0 is the program's and 1 the daemon's; else 0.
    pub(crate) index: usize,
}

impl From<PortKey> for EndpointKey {
    /// The endpoint of a port that has one.
    fn from(port: PortKey) -> EndpointKey {
        EndpointKey { port, index: 0 }
    }
}

/// Why a port is found or created.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Purpose {
    /// A session is opened on it.
    Open,
    /// A question is answered, after which a new port is released: a pipe needs no rings for it.
    Inspect,
}

/// The part of the answer to REGISTER that concerns the port as a whole.
pub(crate) struct Description<'a> {
    /// The channel page or, of an interface, the tx-frames page; `None`: the port has no such page.
    pub(crate) page: Option<BorrowedFd<'a>>,
    /// Where in its file it begins.
    pub(crate) page_offset: u64,
    /// Its bytes.
    pub(crate) page_bytes: usize,
    /// The pools of a monitor's mirror rings; else 0.
    pub(crate) mirror_pools: [BoundPool; 3],
}

impl Description<'_> {
    /// Describes a port that has neither such a page nor mirror rings.
    pub(crate) fn without_page() -> Self {
        Description { page: None, page_offset: 0, page_bytes: 0, mirror_pools: Default::default() }
    }
}

/// The mediator threads of a port.
pub(crate) type Mediators = Vec<MediatorThread>;

/// A port. The methods are called in the order of the module's table; an implementation needs only those whose default
/// does not fit its kind.
pub(crate) trait Port: PortRecord + Any {
    /// An endpoint; `None` while a thread uses it.
    fn endpoint_mut(&mut self, index: usize) -> Option<&mut Endpoint>;

    /// The channels of the rings, if they have any.
    fn channels(&self) -> Option<&ChannelPage> {
        None
    }

    /// The name that clients and snapshots see; `None`: the name in the request.
    fn own_name(&self) -> Option<&str> {
        None
    }

    /// Refuses a REGISTER that this port does not allow.
    fn check_request(&self, _request: &NmreqRegister) -> Result<(), Refusal> {
        Ok(())
    }

    /// Whether packets can begin behind the start of their buffers (the option OFFSETS).
    fn supports_offsets(&self) -> bool {
        true
    }

    /// Refuses a headroom that open queues cannot have any more.
    fn check_headroom(&self, _selection: &RingSelection, _headroom: u32) -> Result<(), Refusal> {
        Ok(())
    }

    /// Sets the offsets of the rings that a session is to bind.
    fn set_offsets(&mut self, index: usize, selection: &RingSelection, layout: Option<OffsetLayout>) {
        let channels = self.channels().cloned();
        if let Some(endpoint) = self.endpoint_mut(index) {
            endpoint.set_offsets(selection, layout, channels.as_ref());
        }
    }

    /// Why a monitor cannot have this port's buffers instead of copies; `None` if it can.
    fn zero_copy_obstacle(&self) -> Option<&'static str> {
        Some("the buffers of this kind of port cannot be handed over")
    }

    /// Opens what the data path of the rings needs. On failure nothing has changed.
    fn prepare(&mut self, _selection: &RingSelection) -> Result<(), Refusal> {
        Ok(())
    }

    /// Closes what [`Port::prepare`] opened and no session uses.
    fn close_unused(&mut self) {}

    /// Binds the rings for one more session.
    fn bind(&mut self, index: usize, selection: &RingSelection) {
        let channels = self.channels().cloned();
        let start = |ring: &PortRing, transmit| ring.start_position(channels.as_ref(), transmit);
        if let Some(endpoint) = self.endpoint_mut(index) {
            endpoint.bind(selection, start);
        }
    }

    fn describe(&self, index: usize) -> Description<'_>;

    /// Completes the description of a ring for a client. Returns the descriptor through which the client reaches the
    /// other side: the peer's doorbell, or the interface's socket.
    fn describe_ring<'a>(
        &'a self,
        daemon: &Daemon,
        index: usize,
        ring: &'a PortRing,
        bound_ring: &mut BoundRing,
    ) -> Result<BorrowedFd<'a>, Refusal>;

    /// The doorbell of the ring at the other end of a channel, which is made if it does not exist. Called where
    /// [`Port::describe_ring`] said that it comes later (`DOORBELL_LATER`), and then by the client's request.
    fn peer_doorbell(&self, _index: usize, _ring: &PortRing) -> Result<&Doorbell, Refusal> {
        refuse(EINVAL, "the port is no pipe")
    }

    /// Unbinds the rings of a session.
    fn unbind(&mut self, index: usize, selection: &RingSelection);

    /// Whether the port can be released now. A port that cannot is checked again whenever a session is closed.
    fn is_releasable(&self, _daemon: &Daemon) -> bool {
        true
    }

    /// Ends the port, which is no longer in the registry, and returns its endpoints, whose rings and buffers are still
    /// allocated.
    fn release(self: Box<Self>, daemon: &mut Daemon) -> Vec<Endpoint>;

    /// What a successor of the daemon needs of it; a refusal if it cannot be handed over.
    fn save<'a>(&'a self, _fds: &mut Outgoing<'a>) -> Result<SavedPort, Refusal> {
        cannot("a port of this kind")
    }

    /// Its mediator threads, if it can have any.
    fn mediators(&mut self) -> Option<&mut Mediators> {
        None
    }

    /// The user that the port belongs to.
    fn owner(&self) -> u32;

    /// What it takes of its user's budget, besides its endpoints, for as long as it exists.
    fn other_usage(&self) -> Amounts {
        Amounts::default()
    }

    /// The port as `unetmap ls` shows it. A pipe is two ports there.
    fn snapshot(&self, daemon: &Daemon) -> Vec<PortSnapshot>;
}

impl Registry {
    /// Returns a port of kind `T`.
    pub(crate) fn get<T: Port>(&self, key: &PortKey) -> Option<&T> {
        (self.port(key).ok()? as &dyn Any).downcast_ref()
    }

    /// The same, mutable.
    pub(crate) fn get_mut<T: Port>(&mut self, key: &PortKey) -> Option<&mut T> {
        (self.port_mut(key).ok()? as &mut dyn Any).downcast_mut()
    }

    /// All ports of kind `T`, in order of their keys.
    pub(crate) fn all<T: Port>(&self) -> impl Iterator<Item = &T> {
        self.ports().filter_map(|(_, port)| (port as &dyn Any).downcast_ref())
    }

    /// The same, mutable.
    pub(crate) fn all_mut<T: Port>(&mut self) -> impl Iterator<Item = &mut T> {
        self.ports_mut().filter_map(|(_, port)| (port as &mut dyn Any).downcast_mut())
    }

    /// All monitors, whose keys are the last ones.
    fn monitors(&self) -> impl Iterator<Item = &Monitor> {
        self.ports_from(&PortKey::Monitor(0)).filter_map(|(_, port)| (port as &dyn Any).downcast_ref())
    }

    /// The same, mutable.
    fn monitors_mut(&mut self) -> impl Iterator<Item = &mut Monitor> {
        self.ports_from_mut(&PortKey::Monitor(0)).filter_map(|(_, port)| (port as &mut dyn Any).downcast_mut())
    }

    /// Returns an endpoint, and the region of its port.
    pub(crate) fn endpoint(&self, key: &EndpointKey) -> Result<(&Endpoint, RegionKey), Refusal> {
        let port = self.port(&key.port)?;
        Ok((&port.endpoints()[key.index], port.region()))
    }
}

/// The state of the daemon, as control requests and events use and change it.
pub(crate) struct Daemon {
    pub(crate) registry: Registry,
    pub(crate) knobs: Knobs,
    pub(crate) knob_sources: KnobSources,
    pub(crate) admission: Admission,
    pub(crate) users: Users,
    pub(crate) events: EventLog,
    pub(crate) nics: NicState,
    pub(crate) vale: ValeState,
    pub(crate) monitors: MonitorState,
    /// By session of a program that has a monitored interface open.
    arrival_threads: BTreeMap<u64, ArrivalThread>,
    /// Threads that were stopped and have not ended yet.
    stopping_mediators: Vec<mediator::Stopping>,
    /// Threads that are stopped while the daemon is replaced.
    pub(crate) paused_mediators: Vec<mediator::PausedThread>,
    /// Whether threads that were to be paused were held up: each is started again when it has ended.
    held_mediators: bool,
    /// Whether a request was to change a setting that is kept: one from before may not come back after a crash.
    pub(crate) settings_changed: bool,
    /// Why the daemon is to end.
    pub(crate) ends: Option<&'static str>,
}

impl Daemon {
    /// Returns a daemon without ports. Private regions are numbered from `first_mem_id`.
    pub(crate) fn new(knobs: Knobs, admission: Admission, first_mem_id: u16) -> Daemon {
        let ledger = Ledger::default();
        Daemon {
            registry: Registry::new(first_mem_id, ledger.clone()),
            nics: NicState::default(),
            vale: ValeState::new(knobs.thread_plan().clone(), knobs.switch_addresses()),
            monitors: MonitorState::default(),
            arrival_threads: BTreeMap::new(),
            stopping_mediators: Vec::new(),
            paused_mediators: Vec::new(),
            held_mediators: false,
            settings_changed: false,
            ends: None,
            knobs,
            knob_sources: KnobSources::default(),
            admission,
            users: Users { ledger, ..Users::default() },
            events: EventLog::default(),
        }
    }

    /// Whether the daemon must keep running though no client is connected: it has state that would be lost.
    pub(crate) fn has_state(&self) -> bool {
        self.nics.has_settings() || self.vale.has_state(&self.registry) || self.knobs.changed()
    }

    /// The owner of the names and regions that `caller` refers to, where no interface is involved.
    pub(crate) fn scope(&self, caller: &Caller) -> Scope {
        Scope { uid: self.admission.only_user.unwrap_or(caller.peer.uid), netns: 0 }
    }

    /// The same, where an interface of the caller's network namespace is involved.
    pub(crate) fn interface_scope(&self, caller: &Caller) -> Scope {
        Scope { netns: caller.netns_id(), ..self.scope(caller) }
    }

    /// Returns the region of this caller that programs call `mem_id`.
    pub(crate) fn region_by_number(&self, mem_id: u16, caller: &Caller) -> Result<RegionKey, Refusal> {
        // Only region 1 is that of a namespace.
        let netns = if mem_id == 1 { caller.netns_id() } else { 0 };
        self.registry.regions.by_number(mem_id, self.scope(caller), netns)
    }

    /// Returns the region of all interfaces that this caller opens directly, and of their pipes. It is created if there
    /// is none, for a first interface with `slots` slots, whose driver supports `zero_copy`.
    pub(crate) fn interface_region(
        &mut self,
        caller: &Caller,
        slots: u32,
        zero_copy: bool,
    ) -> Result<RegionKey, Refusal> {
        if let Ok(region) = self.region_by_number(1, caller) {
            return Ok(region);
        }
        let (scope, sizes) = (self.interface_scope(caller), self.knobs.interface_sizes(slots, zero_copy));
        self.registry.regions.create_for_interfaces(scope, sizes)
    }

    /// Returns the region that a request for a port names. Region 1 always exists, so it is created if there is none:
    /// the caller frees it if it creates no port in it.
    pub(crate) fn requested_region(&mut self, mem_id: u16, caller: &Caller) -> Result<RegionKey, Refusal> {
        match (mem_id, self.region_by_number(mem_id, caller)) {
            (1, Err(_)) => {
                let sizes = self.sizes_without_interface(caller);
                let scope = self.interface_scope(caller);
                self.registry.regions.create_for_interfaces(scope, sizes)
            }
            (_, region) => region,
        }
    }

    /// Returns the sizes of region 1 if its first port is no interface. Its buffers suit the interfaces that may be
    /// opened in it later.
    pub(crate) fn sizes_without_interface(&mut self, caller: &Caller) -> Sizes {
        let has_policy = self.admission.policy.is_some();
        let may = has_policy && matches!(nic::may_have_interfaces(self, caller), Ok(true));
        let zero_copy = may && nic::any_driver_offers_zero_copy(caller);
        self.knobs.interface_sizes(0, zero_copy)
    }

    /// Returns the region of the pipes that a parent has, if it has any. A port that is created later as their parent
    /// joins it.
    pub(crate) fn region_of_pipes(&self, scope: Scope, parent: &str) -> Option<RegionKey> {
        pipe::region_of_pipes(&self.registry, scope, parent)
    }

    /// Begins to open a port for a client (REGISTER): the port exists.
    pub(crate) fn begin_open(
        &mut self,
        name: &str,
        request: &NmreqRegister,
        options: &Options,
        caller: &Caller,
    ) -> Result<Opening, Refusal> {
        let spec = parse_port_name(name)?;
        let forced = request.nr_flags & FORCE != 0;
        let request = &NmreqRegister { nr_flags: request.nr_flags & !FORCE, ..*request };
        if matches!(request.nr_mode, NR_REG_PIPE_MASTER | NR_REG_PIPE_SLAVE) {
            return refuse(
                EINVAL,
                "the modes NR_REG_PIPE_* are those of the legacy request: name the pipe, parent{id or parent}id",
            );
        }
        let at = if request.nr_flags & (NR_MONITOR_TX | NR_MONITOR_RX | NR_ZCOPY_MON) != 0 {
            monitor::create(self, &spec, request, caller)?
        } else if request.nr_mode == NR_REG_NULL {
            null::create(self, &spec, request, caller)?
        } else {
            if !forced {
                nic::check_default_route(self, &spec, request, caller)?;
            }
            let at = self.find_or_create(&spec, request, caller, Purpose::Open)?;
            let allowed = self.registry.port(&at.port)?.check_request(request);
            allowed.inspect_err(|_| self.release_if_unused(&at.port))?;
            at
        };
        let chosen = self.choose_rings(at.clone(), name, request, options);
        chosen.inspect_err(|_| self.release_if_unused(&at.port))
    }

    /// Finds the pipe, the interface or the switch port, or creates it.
    fn find_or_create(
        &mut self,
        spec: &PortSpec,
        request: &NmreqRegister,
        caller: &Caller,
        purpose: Purpose,
    ) -> Result<EndpointKey, Refusal> {
        match (&spec.pipe, spec.kind) {
            (Some(pipe), _) => pipe::find_or_create(self, (&spec.parent, pipe), request, caller, purpose),
            (None, PortKind::Vale) => vale::find_or_create(self, spec, request, caller),
            (None, PortKind::Netmap) => match sink::number(self, &spec.parent, caller)? {
                Some(number) => sink::find_or_create(self, number, request, caller),
                None => nic::find_or_create(self, spec, request, caller),
            },
        }
    }

    /// Answers a question about a port without opening it, even if another session has it exclusively. A port that does
    /// not exist is created for the moment; the packets of an interface stay with the kernel.
    pub(crate) fn inspect<T>(
        &mut self,
        spec: &PortSpec,
        request: &NmreqRegister,
        caller: &Caller,
        question: impl FnOnce(&Daemon, &NmreqRegister) -> Result<T, Refusal>,
    ) -> Result<T, Refusal> {
        let at = self.find_or_create(spec, request, caller, Purpose::Inspect)?;
        let answer = self.answered_register(&at, request).and_then(|register| question(self, &register));
        self.release_if_unused(&at.port);
        answer
    }

    /// Does what a kind does after a session was opened, besides binding.
    fn session_opened(&mut self, at: &EndpointKey) -> Result<(), Refusal> {
        match &at.port {
            PortKey::Mediated(key) if at.index == 0 => mediated::update_threads(self, key),
            PortKey::CopiedEnd(key) if at.index == key.index => copied_end::session_opened(self, key),
            PortKey::Persistent(hidden) => vale::persistent::connect_ends(self, *hidden),
            PortKey::Monitor(id) => {
                monitor::notify_watched(self, *id);
                if let Some(watched) = monitor::watched_port(self, *id) {
                    arrival::update_threads(self, &watched);
                }
                Ok(())
            }
            PortKey::Nic(_) => {
                arrival::update_threads(self, &at.port);
                Ok(())
            }
            _ => Ok(()),
        }
    }

    /// Does what a kind does after a session was closed, besides unbinding.
    fn session_closed(&mut self, at: &EndpointKey, name: &str) {
        match &at.port {
            PortKey::Mediated(key) if at.index == 0 => mediated::session_closed(self, key, name),
            PortKey::Persistent(hidden) => {
                if let Err(e) = vale::persistent::connect_ends(self, *hidden) {
                    tracing::error!(name, "the host is not connected with its switch again: {}", e.why);
                }
            }
            PortKey::Nic(key) => {
                self.nics.work.check_later(*key);
                arrival::update_threads(self, &at.port);
            }
            _ => {}
        }
    }

    /// Ends what a kind runs on a port that no client has open.
    fn before_release(&mut self, key: &PortKey) {
        match key {
            PortKey::Nic(key) => self.nics.work.check_later(*key),
            PortKey::Mediated(key) => mediated::stop_threads_if_unused(self, key),
            PortKey::CopiedEnd(key) => copied_end::stop_if_unused(self, key),
            PortKey::Monitor(id) => {
                monitor::close_if_unused(self, *id);
                if let Some(watched) = monitor::watched_port(self, *id) {
                    arrival::update_threads(self, &watched);
                }
            }
            _ => {}
        }
    }

    /// Releases a port that no session has open, and its region, if that was its last port.
    pub(crate) fn release_if_unused(&mut self, key: &PortKey) {
        self.before_release(key);
        let is_in_use = self.registry.is_open(key) || self.nics.work.is_kept(key);
        if !is_in_use && self.registry.port(key).is_ok_and(|port| port.is_releasable(self)) {
            self.release(key);
        }
    }

    /// Releases a port, and its region, if that was its last port.
    fn release(&mut self, key: &PortKey) {
        let Some(port) = self.registry.take_out(key) else { return };
        let region = port.region();
        let endpoints = port.release(self);
        self.registry.free_endpoints(region, endpoints);
    }
}

/// Parses a name as requests carry it: without ring numbers, flags, region or options.
pub(crate) fn parse_port_name(name: &str) -> Result<PortSpec, Refusal> {
    let with_prefix =
        if name.starts_with(NM_BDG_NAME) && name.contains(':') { name.into() } else { format!("netmap:{name}") };
    // The client has already interpreted a '-'.
    match PortSpec::parse_with(&with_prefix, |_| true) {
        Ok(spec) if spec.name == name => Ok(spec),
        Ok(_) => refuse(EINVAL, "a request names only the port, without rings, flags or options"),
        Err(e) => refuse(EINVAL, e.message()),
    }
}

/// Returns the port that a program has open under the name in `spec`. For a mediated interface it is the daemon's port.
fn find_open_port(daemon: &mut Daemon, spec: &PortSpec, caller: &Caller) -> Result<EndpointKey, Refusal> {
    let at = match (&spec.pipe, spec.kind) {
        (Some(pipe), _) => {
            let interface = nic::admitted_interface(daemon, &spec.parent, caller)?;
            let (scope, _) = pipe::owner(daemon, &spec.parent, interface, caller)?;
            let key = PipeKey { scope, parent: spec.parent.clone(), id: pipe.id.clone() };
            let key = pipe::find(daemon, &key, caller).unwrap_or(key);
            let index = endpoint_index(pipe.role);
            let copied = copied_end::find(daemon, &key, index);
            copied.unwrap_or(EndpointKey { port: PortKey::Pipe(key), index })
        }
        (None, PortKind::Vale) => {
            let key = vale::key_of(daemon, &spec.parent, caller)?;
            vale::program_port(daemon, key).into()
        }
        (None, PortKind::Netmap) => match sink::number(daemon, &spec.parent, caller)? {
            Some(number) => PortKey::Sink(daemon.scope(caller), number).into(),
            None => find_open_interface(daemon, &spec.parent, caller)?.into(),
        },
    };
    match daemon.registry.endpoint(&at) {
        Ok((endpoint, _)) if endpoint.in_use() => Ok(at),
        _ => not_open(),
    }
}

fn find_open_interface(daemon: &mut Daemon, name: &str, caller: &Caller) -> Result<PortKey, Refusal> {
    let (link, access) = nic::admitted(daemon, name, caller)?;
    if let Some(hidden) = vale::persistent::of_link(daemon, &link, caller)? {
        return Ok(PortKey::Persistent(hidden));
    }
    let scope = daemon.interface_scope(caller);
    let Some(nic) = nic::find(daemon, caller.netns_id(), link.index)? else { return not_open() };
    // One that the caller may open directly can be mediated, too: because of its header, or by an old kernel.
    let is_direct = access == Access::Direct && nic.scope == scope;
    let is_own = is_direct || mediated::find(daemon, nic.key, scope).is_some();
    if is_own { Ok(PortKey::Nic(nic.key)) } else { nic::in_use(daemon, nic) }
}

fn not_open<T>() -> Result<T, Refusal> {
    refuse(EINVAL, "no program has the port open, so there is nothing to monitor (open the port itself first)")
}
