// SPDX-License-Identifier: BSD-2-Clause
//! The lifecycle of ports: the one place where kinds are told apart. Each step matches all of them, so that the
//! compiler names what a new kind lacks.
//!
//! ```text
//! find_or_create         REGISTER names a port: it is found, or created in a region
//! prepare, bind          a session opens it and binds rings
//! session_opened         what the kind runs for it begins
//! describe_ring          the client gets the positions of the rings, and how their slots move
//! unbind, session_closed the session is closed
//! before_release         no session has it open: what the kind runs ends
//! release                it leaves the registry, and its rings and buffers are freed
//! save, restore          it goes on in another process
//! ```

use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use unetmap_abi::*;
use unetmap_core::control::binding::{BoundPool, BoundRing};
use unetmap_core::errno::EINVAL;
use unetmap_sys::Doorbell;

use super::copied_end::CopiedEnd;
use super::key::{EndpointKey, Mover, PipeKey, PortKey};
use super::mediated::{Mediated, SavedMediated};
use super::monitor::{self, SavedMonitor};
use super::nic::{self, NicKey, NicPort, SavedNic};
use super::null::NullPort;
use super::pipe::{Pipe, endpoint_index};
use super::pipes::{self, Purpose};
use super::port::AnyPort::{self, *};
use super::port::{Kind as _, Registry};
use super::register::Asked;
use super::sink::Sink;
use super::snapshot::PortSnapshot;
use super::vale::{self, SavedValePort};
use super::{arrival, copying, interfaces, pipe_rings, sinks};
use crate::caller::Caller;
use crate::daemon::Daemon;
use crate::descriptors::{Incoming, Outgoing, invalid};
use crate::endpoint::{Endpoint, PortRing, RingSelection};
use crate::offsets::OffsetLayout;
use crate::refusal::{Refusal, refuse};
use crate::region::DAEMON_UID;
use crate::registry::{Port, SavedRecord};

impl AnyPort {
    /// Refuses a REGISTER that this port does not allow.
    pub(super) fn check_request(&self, request: &NmreqRegister) -> Result<(), Refusal> {
        match self {
            Vale(port) => port.check_request(request),
            Mediated(port) => port.check_request(request),
            Sink(port) => port.check_request(),
            Nic(port) => port.check_request(request),
            Pipe(_) | CopiedEnd(_) | Null(_) | Monitor(_) => Ok(()),
        }
    }

    /// Whether packets can begin behind the start of their buffers (the option OFFSETS).
    pub(super) fn supports_offsets(&self) -> bool {
        match self {
            Mediated(_) | CopiedEnd(_) => false,
            Monitor(port) => !port.is_zero_copy(),
            Nic(port) => port.supports_offsets(),
            Vale(_) | Pipe(_) | Null(_) | Sink(_) => true,
        }
    }

    /// Refuses a headroom that open queues cannot have any more.
    pub(super) fn check_headroom(&self, selection: &RingSelection, headroom: u32) -> Result<(), Refusal> {
        match self {
            Nic(port) => port.check_headroom(selection, headroom),
            Vale(_) | Mediated(_) | Pipe(_) | CopiedEnd(_) | Null(_) | Sink(_) | Monitor(_) => Ok(()),
        }
    }

    /// Sets the offsets of the rings that a session is to bind.
    pub(super) fn set_offsets(&self, index: usize, selection: &RingSelection, layout: Option<OffsetLayout>) {
        match self {
            // Those of an interface are not changed while a thread has it.
            Nic(port) if port.here().is_none() => {}
            Vale(port) => {
                port.record.set_offsets(index, selection, layout);
                port.apply_offsets();
            }
            Nic(_) | Mediated(_) | Pipe(_) | CopiedEnd(_) | Null(_) | Sink(_) | Monitor(_) => {
                self.record().set_offsets(index, selection, layout)
            }
        }
    }

    /// Why a monitor cannot have this port's buffers instead of copies; `None` if it can.
    pub(super) fn zero_copy_obstacle(&self) -> Option<&'static str> {
        let is_of_daemon = match self {
            Nic(port) => port.record.scope.uid == DAEMON_UID,
            Vale(port) => port.is_attached(),
            Pipe(_) => false,
            Mediated(_) | CopiedEnd(_) | Null(_) | Sink(_) | Monitor(_) => {
                return Some("the buffers of this kind of port cannot be handed over");
            }
        };
        is_of_daemon.then_some("the daemon runs this interface, in memory that no program shares")
    }

    /// Opens what the data path of the rings needs. On failure nothing has changed.
    pub(super) fn prepare(&mut self, selection: &RingSelection) -> Result<(), Refusal> {
        match self {
            Nic(port) => port.prepare(selection),
            Vale(_) | Mediated(_) | Pipe(_) | CopiedEnd(_) | Null(_) | Sink(_) | Monitor(_) => Ok(()),
        }
    }

    /// Binds the rings for one more session.
    pub(super) fn bind(&mut self, index: usize, selection: &RingSelection) {
        match self {
            Nic(port) => port.bind(selection),
            Vale(_) | Mediated(_) | Pipe(_) | CopiedEnd(_) | Null(_) | Sink(_) | Monitor(_) => {
                self.record().bind(index, selection)
            }
        }
    }

    /// Completes the description of a ring for a client. Returns the descriptor through which the client reaches the
    /// other side: the peer's doorbell, or the interface's socket.
    pub(super) fn describe_ring<'a>(
        &'a self,
        daemon: &Daemon,
        (index, ring): (usize, &'a PortRing),
        bound_ring: &mut BoundRing,
    ) -> Result<BorrowedFd<'a>, Refusal> {
        match self {
            Nic(port) => port.describe_ring(ring, bound_ring),
            Vale(port) => Ok(port.describe_ring(daemon.knobs.fwd(), ring, bound_ring)),
            Mediated(port) => {
                let nic = daemon.registry.nic(&PortKey::Nic(port.nic())).filter(|_| index == 0);
                nic.into_iter().for_each(|nic| nic.describe_mediated_ring(ring.pair, bound_ring));
                pipe_rings::describe_ring(&port.record, (index, ring), bound_ring)
            }
            Pipe(_) | CopiedEnd(_) => pipe_rings::describe_ring(self.record(), (index, ring), bound_ring),
            Null(_) => Ok(ring.doorbell.get()?.as_fd()),
            Sink(port) => {
                port.describe_ring(ring, bound_ring);
                Ok(ring.doorbell.get()?.as_fd())
            }
            Monitor(port) => port.describe_ring(ring, bound_ring),
        }
    }

    /// The doorbell of the ring at the other end of a channel, which is made if it does not exist. Called where
    /// [`AnyPort::describe_ring`] said that it comes later (`DOORBELL_LATER`), and then by the client's request.
    pub(super) fn peer_doorbell(&self, at: (usize, &PortRing)) -> Result<&Doorbell, Refusal> {
        match self {
            Pipe(port) => pipe_rings::peer_doorbell(&port.record, at),
            Nic(_) | Vale(_) | Mediated(_) | CopiedEnd(_) | Null(_) | Sink(_) | Monitor(_) => {
                refuse(EINVAL, "the port is no pipe")
            }
        }
    }

    /// The pools of a monitor's mirror rings; else 0.
    pub(super) fn mirror_pools(&self) -> [BoundPool; 3] {
        monitor::Monitor::of(self).map(|port| port.mirror_pools()).unwrap_or_default()
    }

    /// Unbinds the rings of a session.
    pub(super) fn unbind(&mut self, index: usize, selection: &RingSelection) {
        match self {
            Nic(port) => port.unbind(selection),
            Vale(port) => {
                port.record.unbind(index, selection);
                port.notify_switch();
            }
            Mediated(_) | Pipe(_) | CopiedEnd(_) | Null(_) | Sink(_) | Monitor(_) => {
                self.record().unbind(index, selection)
            }
        }
    }

    /// Frees every lock that the exited process with this holder ID held, and returns how many there were.
    fn break_locks(&self, holder: u32) -> usize {
        match self {
            Nic(port) => port.break_locks(holder),
            Vale(_) | Mediated(_) | Pipe(_) | CopiedEnd(_) | Null(_) | Sink(_) | Monitor(_) => {
                self.record().break_locks(holder)
            }
        }
    }

    /// Whether the port can be released now. A port that cannot is checked again whenever a session is closed.
    pub(super) fn is_releasable(&self, registry: &Registry) -> bool {
        match self {
            Nic(port) => port.is_releasable(),
            Monitor(port) => port.is_releasable(registry.endpoint(port.watched()).ok().map(|(of, _)| of)),
            Vale(_) | Mediated(_) | Pipe(_) | CopiedEnd(_) | Null(_) | Sink(_) => true,
        }
    }

    /// Ends the port, which is no longer in the registry, and returns its endpoints, whose rings and buffers are still
    /// allocated.
    fn release(self, daemon: &mut Daemon) -> Vec<Arc<Endpoint>> {
        match self {
            Nic(port) => {
                daemon.nics.unwatch_if_unused(&daemon.registry, &daemon.vale.persistent, port.key.netns);
                Nic(port).into_record().into_endpoints()
            }
            Vale(port) => {
                let region = daemon.registry.regions.get_mut(port.record.region);
                daemon.vale.release(port, region)
            }
            Mediated(_) | Pipe(_) | CopiedEnd(_) | Null(_) | Sink(_) | Monitor(_) => {
                self.into_record().into_endpoints()
            }
        }
    }

    /// The memory files that programs may have besides those of the region and the record.
    fn other_files(&self) -> Vec<BorrowedFd<'_>> {
        match self {
            Monitor(port) => port.mirror_files().collect(),
            Nic(_) | Vale(_) | Mediated(_) | Pipe(_) | CopiedEnd(_) | Null(_) | Sink(_) => Vec::new(),
        }
    }

    /// The user that the port belongs to.
    pub(crate) fn owner(&self) -> u32 {
        match self {
            Vale(port) => port.owner(),
            Nic(_) | Mediated(_) | Pipe(_) | CopiedEnd(_) | Null(_) | Sink(_) | Monitor(_) => self.record().scope.uid,
        }
    }

    /// The port as `unetmap ls` shows it. A pipe is two ports there.
    pub(crate) fn snapshot(&self, daemon: &Daemon) -> Vec<PortSnapshot> {
        let mem_id = daemon.registry.regions.mem_id(self.record().region);
        vec![match self {
            Nic(port) => port.snapshot(mem_id),
            Vale(port) => port.snapshot(mem_id, daemon.vale.thread_and_cpu(port), daemon.vale.label(port)),
            Mediated(port) => {
                let nic = daemon.registry.get::<NicPort>(&PortKey::Nic(port.nic()));
                port.snapshot(mem_id, nic.and_then(|nic| nic.snapshot_if_here(mem_id)))
            }
            Pipe(port) => return port.snapshots(mem_id),
            CopiedEnd(port) => port.snapshot(mem_id),
            Null(port) => port.snapshot(mem_id),
            Sink(port) => port.snapshot(mem_id),
            Monitor(port) => return port.snapshot(mem_id).into_iter().collect(),
        }]
    }

    /// Returns the state for a successor of the daemon; a refusal if the port cannot be handed over now.
    pub(super) fn save<'a>(&'a self, fds: &mut Outgoing<'a>) -> Result<SavedPort, Refusal> {
        let record = self.record().save(fds);
        let kind = match self {
            Nic(port) => to_value(&port.save(fds)?),
            Vale(port) => to_value(&port.save(fds)),
            Mediated(port) => to_value(&port.save()),
            Sink(port) => to_value(&port.kind),
            Monitor(port) => to_value(&port.save(fds)),
            Pipe(_) | CopiedEnd(_) | Null(_) => Ok(Value::Null),
        }?;
        Ok(SavedPort { record, kind })
    }
}

/// A port as the daemon hands it to its successor.
#[derive(Serialize, Deserialize)]
pub(super) struct SavedPort {
    record: SavedRecord,
    /// The part that only its kind has.
    kind: Value,
}

impl SavedPort {
    /// Rebuilds the port.
    pub(super) fn restore(self, key: &PortKey, registry: &Registry, fds: &mut Incoming) -> Result<AnyPort, Refusal> {
        let record = self.record.restore(key.endpoints(), &registry.regions, fds)?;
        Ok(match key {
            PortKey::Nic(nic) => {
                let (nic, sent) = of_value::<SavedNic>(self.kind)?.restore(record, *nic, &registry.regions, fds)?;
                AnyPort::Nic(NicPort::new(nic, sent))
            }
            PortKey::Vale(_) | PortKey::Persistent(_) => {
                AnyPort::Vale(of_value::<SavedValePort>(self.kind)?.restore(record, key, &registry.regions, fds)?)
            }
            PortKey::Mediated(of) => {
                let saved = of_value::<SavedMediated>(self.kind)?;
                let of_interface = registry.usage_of_interface(saved.nic());
                AnyPort::Mediated(saved.restore(record, of, of_interface)?)
            }
            PortKey::Pipe(pipe) => AnyPort::Pipe(Port { record, kind: Pipe { key: pipe.clone() } }),
            PortKey::CopiedEnd(end) => AnyPort::CopiedEnd(CopiedEnd::restore(record, end)?),
            PortKey::Null(..) => AnyPort::Null(Port { record, kind: NullPort }),
            PortKey::Sink(..) => AnyPort::Sink(Port { record, kind: of_value::<Sink>(self.kind)? }),
            PortKey::Monitor(id) => {
                AnyPort::Monitor(of_value::<SavedMonitor>(self.kind)?.restore(record, *id, &registry.regions, fds)?)
            }
        })
    }
}

fn to_value(kind: &impl Serialize) -> Result<Value, Refusal> {
    serde_json::to_value(kind).or_else(|e| invalid(&e.to_string()))
}

fn of_value<T: DeserializeOwned>(kind: Value) -> Result<T, Refusal> {
    serde_json::from_value(kind).or_else(|e| invalid(&format!("a port of its kind: {e}")))
}

impl PortKey {
    /// How many sides with rings the port has.
    fn endpoints(&self) -> usize {
        use PortKey::*;
        match self {
            Pipe(_) | Mediated(_) | CopiedEnd(_) => 2,
            Nic(_) | Vale(_) | Persistent(_) | Null(..) | Sink(..) | Monitor(_) => 1,
        }
    }

    /// By which packets reach the receive rings of the port.
    pub(super) fn mover(&self) -> Mover {
        use PortKey::*;
        match self {
            Pipe(_) => Mover::Peer,
            Vale(_) | Persistent(_) => Mover::Switch,
            Nic(_) | Mediated(_) | CopiedEnd(_) | Null(..) | Sink(..) | Monitor(_) => Mover::Program,
        }
    }
}

impl Registry {
    /// The interface whose sockets move the packets of a port, if any do.
    pub(super) fn interface_of(&self, key: &PortKey) -> Option<NicKey> {
        match key {
            PortKey::Nic(nic) => Some(*nic),
            PortKey::Mediated(_) => self.get::<Mediated>(key).map(|port| port.nic()),
            PortKey::Vale(_)
            | PortKey::Persistent(_)
            | PortKey::Pipe(_)
            | PortKey::CopiedEnd(_)
            | PortKey::Null(..)
            | PortKey::Sink(..)
            | PortKey::Monitor(_) => None,
        }
    }

    /// Frees every lock that the exited process with this holder ID held, and returns how many there were.
    pub(crate) fn break_locks(&self, holder: u32) -> usize {
        self.ports().map(|(_, port)| port.break_locks(holder)).sum()
    }
}

impl Daemon {
    /// Finds the pipe, the interface or the switch port, or creates it.
    pub(super) fn find_or_create(
        &mut self,
        spec: &PortSpec,
        request: &mut Asked<'_>,
        caller: &Caller,
        purpose: Purpose,
    ) -> Result<EndpointKey, Refusal> {
        match (&spec.pipe, spec.kind) {
            (Some(pipe), _) => pipes::find_or_create(self, (&spec.parent, pipe), request, caller, purpose),
            (None, PortKind::Vale) => vale::find_or_create(self, spec, request, caller),
            (None, PortKind::Netmap) => match sinks::number(&self.admission, &spec.parent, caller)? {
                Some(number) => sinks::find_or_create(self, number, request, caller),
                None => interfaces::find_or_create(self, spec, request, caller),
            },
        }
    }

    /// Returns the port that a program has open under the name in `spec`. For a mediated interface it is the daemon's
    /// port.
    pub(super) fn find_open_port(&mut self, spec: &PortSpec, caller: &Caller) -> Result<EndpointKey, Refusal> {
        let at = match (&spec.pipe, spec.kind) {
            (Some(pipe), _) => {
                let interface = nic::admitted_interface(self, &spec.parent, caller)?;
                let (scope, _) = pipes::owner(&mut self.admission, &spec.parent, interface, caller)?;
                let key = PipeKey { scope, parent: spec.parent.clone(), id: pipe.id.clone() };
                let key = pipes::find(&self.registry, &self.admission, &key, caller).unwrap_or(key);
                let index = endpoint_index(pipe.role);
                let copied = pipes::copied_end(&self.registry, &key, index);
                copied.unwrap_or(EndpointKey { port: PortKey::Pipe(key), index })
            }
            (None, PortKind::Vale) => {
                let key = vale::key_of(&mut self.admission, &spec.parent, caller)?;
                vale::program_port(&self.vale, key).into()
            }
            (None, PortKind::Netmap) => match sinks::number(&self.admission, &spec.parent, caller)? {
                Some(number) => PortKey::Sink(self.admission.scope(caller), number).into(),
                None => match interfaces::find_open_interface(self, &spec.parent, caller)? {
                    Some(port) => port.into(),
                    None => return not_open(),
                },
            },
        };
        match self.registry.endpoint(&at) {
            Ok((endpoint, _)) if endpoint.in_use() => Ok(at),
            _ => not_open(),
        }
    }

    /// Does what a kind does after a session was opened, besides binding.
    pub(super) fn session_opened(&mut self, at: &EndpointKey) -> Result<(), Refusal> {
        use PortKey::*;
        match &at.port {
            Mediated(key) if at.index == 0 => copying::update_threads(self, key),
            CopiedEnd(key) if at.index == key.index => copying::copied_end_opened(self, key),
            Persistent(hidden) => vale::persistent_ends::connect_ends(&mut self.registry, &mut self.vale, *hidden),
            Monitor(id) => {
                monitor::notify_watched(&self.registry, &self.monitors, *id);
                if let Some(watched) = monitor::watched_port(&self.registry, *id) {
                    arrival::update_threads(self, &watched);
                }
                Ok(())
            }
            Nic(_) => {
                arrival::update_threads(self, &at.port);
                Ok(())
            }
            Vale(_) | Mediated(_) | Pipe(_) | CopiedEnd(_) | Null(..) | Sink(..) => Ok(()),
        }
    }

    /// A session of a user is closed: a header that it has set for its programs ends with the last one.
    pub(super) fn end_own_header(&mut self, port: &PortKey, uid: u32) {
        use PortKey::*;
        match port {
            Persistent(hidden) => {
                vale::persistent_header::end_own_header(&self.registry, &mut self.vale, *hidden);
            }
            Nic(_) | Mediated(_) => {
                let nic = self.registry.interface_of(port);
                nic.into_iter().for_each(|nic| nic::end_own_header(&self.registry, &mut self.nics, nic, port, uid));
            }
            Vale(_) | Pipe(_) | CopiedEnd(_) | Null(..) | Sink(..) | Monitor(_) => {}
        }
    }

    /// Does what a kind does after a session was closed, besides unbinding.
    pub(super) fn session_closed(&mut self, at: &EndpointKey, name: &str) {
        use PortKey::*;
        match &at.port {
            Mediated(key) if at.index == 0 => copying::program_closed(self, key, name),
            Persistent(hidden) => {
                let connected = vale::persistent_ends::connect_ends(&mut self.registry, &mut self.vale, *hidden);
                if let Err(e) = connected {
                    tracing::error!(name, "the host is not connected with its switch again: {}", e.why);
                }
            }
            Nic(key) => {
                self.nics.work.check_later(*key);
                arrival::update_threads(self, &at.port);
            }
            Vale(_) | Mediated(_) | Pipe(_) | CopiedEnd(_) | Null(..) | Sink(..) | Monitor(_) => {}
        }
    }

    /// Ends what a kind runs on a port that no client has open.
    fn before_release(&mut self, key: &PortKey) {
        use PortKey::*;
        match key {
            Nic(key) => self.nics.work.check_later(*key),
            Mediated(key) => copying::stop_mediated_if_unused(self, key),
            CopiedEnd(key) => copying::stop_copied_end_if_unused(self, key),
            Monitor(id) => {
                monitor::close_if_unused(&mut self.registry, &self.monitors, *id);
                if let Some(watched) = monitor::watched_port(&self.registry, *id) {
                    arrival::update_threads(self, &watched);
                }
            }
            Vale(_) | Persistent(_) | Pipe(_) | Null(..) | Sink(..) => {}
        }
    }

    /// Releases a port that no session has open, and its region, if that was its last port.
    pub(crate) fn release_if_unused(&mut self, key: &PortKey) {
        self.before_release(key);
        let is_in_use = self.registry.is_open(key) || self.nics.work.opening.contains(key);
        if !is_in_use && self.registry.port(key).is_ok_and(|port| port.is_releasable(&self.registry)) {
            self.release(key);
        }
    }

    /// Releases a port, and its region, if that was its last port. The user is charged for its memory, besides that of
    /// the region, as long as programs have it.
    pub(super) fn release(&mut self, key: &PortKey) {
        let Some(port) = self.registry.remove(key) else { return };
        let (region, user) = (port.record().region, port.record().payer);
        if user != DAEMON_UID {
            let files = port.record().files().chain(port.other_files());
            files.for_each(|file| self.registry.regions.files.leave(user, file));
        }
        let endpoints = port.release(self);
        self.registry.free_endpoints(region, endpoints);
    }
}

fn not_open<T>() -> Result<T, Refusal> {
    refuse(EINVAL, "no program has the port open, so there is nothing to monitor (open the port itself first)")
}
