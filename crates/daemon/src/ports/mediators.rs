// SPDX-License-Identifier: BSD-2-Clause
//! The mediator threads of all ports ([`super::mediator`]): opening both sides, starting, stopping; and pausing while
//! the daemon is replaced. Then their sessions stay open, and packets wait in the rings; the successor's threads, or
//! this process's if the successor fails, go on with them. So do those of a daemon that is started again after a crash:
//! what the threads had copied and not yet passed on is copied again.

use std::collections::BTreeSet;
use std::mem;
use std::os::fd::OwnedFd;
use std::time::Duration;

use unetmap_abi::{NR_REG_ONE_NIC, NR_RX_RINGS_ONLY, NR_TX_RINGS_ONLY, NmreqRegister};
use unetmap_core::errno::{EBUSY, ENOMEM};
use unetmap_core::{InDaemon, Port};
use unetmap_sys::xsk::SocketRings;
use unetmap_sys::{process, socket};

use super::copied_end::CopiedEnd;
use super::mediated::Mediated;
use super::mediator::{Directions, MediatorThread, Prepared, RingPair, Stopping};
pub(crate) use super::mediator_state::{DAEMON_HOLDER, MediatorState, PausedThread};
use super::monitor::MonitorState;
use super::nic::Nic;
use super::register::{Options, OwnPort, Registered};
use super::vale::ValePort;
use super::{Daemon, EndpointKey, PortKey, Registry, monitor};
use crate::caller::Caller;
use crate::descriptors::invalid;
use crate::refusal::{Refusal, refuse};
use crate::registry::Record;
use crate::tuning::thread_waits::RETIRED_POLL;

impl Daemon {
    /// Stops threads, and closes their sessions.
    pub(super) fn stop_mediators(&mut self, threads: impl IntoIterator<Item = MediatorThread>) {
        let sessions = self.mediators.stop(threads);
        self.close_all(sessions);
    }

    fn close_all(&mut self, sessions: impl IntoIterator<Item = u64>) {
        sessions.into_iter().collect::<Vec<_>>().into_iter().for_each(|session| self.close(session));
    }

    /// Closes the sessions of threads that have ended since they were stopped, and starts those again that were to be
    /// paused; returns the time until the next look, if others have not ended.
    pub(crate) fn end_stopped_mediators(&mut self) -> Option<Duration> {
        let (ended, waiting): (Vec<_>, Vec<_>) =
            mem::take(&mut self.mediators.stopping).into_iter().partition(Stopping::has_ended);
        self.mediators.stopping = waiting;
        self.close_all(ended.into_iter().flat_map(Stopping::join));
        restart_held(self);
        (!self.mediators.stopping.is_empty() || self.mediators.held).then_some(RETIRED_POLL)
    }
}

/// Opens both sides of a ring pair: that of `interface_at`, and that of the endpoint `program` that faces it.
/// `program_mode` selects the pair there.
pub(crate) fn prepare(
    daemon: &mut Daemon,
    program: &EndpointKey,
    name: &str,
    interface_at: &EndpointKey,
    (pair, program_mode): (RingPair, u32),
    directions: Directions,
) -> Result<Prepared, Refusal> {
    let only = match directions {
        Directions { tx: true, rx: true } => 0,
        Directions { rx: true, .. } => NR_RX_RINGS_ONLY,
        Directions { .. } => NR_TX_RINGS_ONLY,
    };
    // What the program sends, the endpoint that faces it receives.
    let mirrored = match only {
        NR_RX_RINGS_ONLY => NR_TX_RINGS_ONLY,
        NR_TX_RINGS_ONLY => NR_RX_RINGS_ONLY,
        _ => 0,
    };
    let ring = |nr_mode, nr_flags| NmreqRegister { nr_mode, nr_ringid: pair.1, nr_flags, ..Default::default() };
    let (caller, options) = (Caller::daemon(), Options::default());
    let interface = daemon.open_session(interface_at.clone(), name, &ring(pair.0, only), &options, &caller)?;
    let mut sessions = [interface.session, 0];
    let program = daemon.open_session(program.clone(), name, &ring(program_mode, mirrored), &options, &caller);
    let prepared = program.and_then(|program| {
        sessions[1] = program.session;
        adopt_both(&daemon.registry, &mut daemon.monitors, &interface_at.port, (pair, directions), [interface, program])
    });
    if prepared.is_err() {
        daemon.close_all(sessions);
    }
    prepared
}

/// Starts a thread for each of so many transmit and receive rings, by number; `mode` selects them at the interface.
/// On failure none runs.
pub(super) fn start_all(
    daemon: &mut Daemon,
    program: &EndpointKey,
    name: &str,
    (interface_at, mode): (&EndpointKey, u32),
    (tx_rings, rx_rings): (u16, u16),
) -> Result<Vec<MediatorThread>, Refusal> {
    let mut threads = Vec::new();
    for queue in 0..tx_rings.max(rx_rings) {
        let directions = Directions { tx: queue < tx_rings, rx: queue < rx_rings };
        let pair = ((mode, queue), NR_REG_ONE_NIC);
        let prepared = prepare(daemon, program, name, interface_at, pair, directions);
        let prepared = prepared.map(|prepared| equip(&daemon.registry, &program.port, prepared));
        match prepared.and_then(|prepared| start(daemon, name, prepared)) {
            Ok(thread) => threads.push(thread),
            Err(refusal) => {
                daemon.stop_mediators(threads);
                return Err(refusal);
            }
        }
    }
    Ok(threads)
}

/// Adds what a thread of this port converts and counts with.
pub(super) fn equip(registry: &Registry, port: &PortKey, prepared: Prepared) -> Prepared {
    if let Some(mediated) = registry.get::<Mediated>(port) {
        return mediated.equip(prepared);
    }
    match registry.get::<CopiedEnd>(port) {
        Some(end) => end.equip(prepared),
        None => prepared,
    }
}

/// Starts the thread. On failure both sides are closed again.
pub(crate) fn start(daemon: &mut Daemon, name: &str, prepared: Prepared) -> Result<MediatorThread, Refusal> {
    let (sessions, queue) = (prepared.sessions, prepared.pair.1);
    prepared.start(name).or_else(|e| {
        daemon.close_all(sessions);
        refuse(ENOMEM, format!("no thread for queue {queue}: {e}"))
    })
}

/// Returns both sides of a ring pair for a thread: the session of an interface or pipe, `at`, and that of the program's
/// side.
fn adopt_both(
    registry: &Registry,
    monitors: &mut MonitorState,
    at: &PortKey,
    of: (RingPair, Directions),
    [interface, program]: [Registered; 2],
) -> Result<Prepared, Refusal> {
    let sessions = [interface.session, program.session];
    let rings = registry.nic(at).map(Nic::socket_rings).unwrap_or_default();
    let of_switch = registry.sessions.get(&program.session).and_then(|session| registry.get::<ValePort>(&session.port));
    let header = of_switch.map_or(0, |port| port.header());
    let nic = registry.nic(at);
    let cuts = nic.is_some_and(Nic::cuts_packets);
    let packets = nic.and_then(Nic::packet_device).map(|packets| packets.with_header(header, cuts));
    let interface = adopt(registry, monitors, interface, rings)?;
    let program = adopt(registry, monitors, program, Vec::new())?;
    Ok(Prepared::new(of, sessions, [interface, program], packets))
}

/// Returns what the port of a session of the daemon's own, or of the node, has besides the answer.
pub(crate) fn own_port(registry: &Registry, lists: &mut MonitorState, session: u64) -> OwnPort {
    let region = registry.sessions.get(&session).and_then(|session| registry.regions.get(session.region));
    let region = region.map(|record| record.region.clone());
    OwnPort { monitors: monitor::list_for_session(registry, lists, session), region }
}

/// Returns the library's port for a session of the daemon's own, and the connection whose closing ends the port.
pub(super) fn adopt(
    registry: &Registry,
    lists: &mut MonitorState,
    registered: Registered,
    socket_rings: Vec<SocketRings>,
) -> Result<(Port, OwnedFd), Refusal> {
    let Registered { session, register, bound, fds, .. } = registered;
    let (own, ports) =
        socket::pair().or_else(|e| refuse(ENOMEM, format!("the daemon has no file descriptors left: {e}")))?;
    let OwnPort { monitors, region } = own_port(registry, lists, session);
    let in_daemon = InDaemon { holder: DAEMON_HOLDER, region, monitors, socket_rings };
    let port = unetmap_core::adopt("the daemon's", register, &bound, fds, ports, in_daemon);
    let port = port.or_else(|e| refuse(e.errno(), e.to_string()))?;
    Ok((port, own))
}

/// The running threads, for a daemon that goes on with them after a crash of this one.
pub(crate) fn running(registry: &Registry) -> Vec<PausedThread> {
    let ports =
        registry.ports().flat_map(|(key, port)| port.record().mediators.iter().map(move |thread| (key, thread)));
    ports.map(|(key, thread)| PausedThread::of_running(key, thread)).collect()
}

impl Registry {
    /// Takes the threads of all ports.
    fn take_mediators(&mut self) -> Vec<(PortKey, MediatorThread)> {
        let of_port = |(key, port): (&PortKey, &mut Record)| {
            let threads = mem::take(&mut port.mediators);
            threads.into_iter().map(|thread| (key.clone(), thread)).collect::<Vec<_>>()
        };
        self.records_mut().flat_map(of_port).collect()
    }

    /// Gives a port a thread. One that no port has any more ends.
    fn give_mediator(&mut self, key: &PortKey, thread: MediatorThread) {
        if let Ok(port) = self.port_mut(key) {
            port.record_mut().mediators.push(thread);
        }
    }

    /// Wakes the daemon's thread that waits for a session's rings.
    fn wake(&self, session: u64) {
        let Some(session) = self.sessions.get(&session) else { return };
        let endpoint = self.port(&session.port).ok().and_then(|port| port.record().endpoints.get(session.endpoint));
        let rings = endpoint.into_iter().flat_map(|endpoint| endpoint.bound(&session.selection));
        rings.for_each(|ring| ring.doorbell.notify());
    }
}

/// Stops all threads; their sessions stay open. Refuses if one is held up. [`resume`] is to follow in any case.
pub(crate) fn pause(registry: &mut Registry, mediators: &mut MediatorState) -> Result<(), Refusal> {
    let threads = registry.take_mediators();
    for (_, thread) in &threads {
        thread.pause();
        thread.sessions.iter().for_each(|session| registry.wake(*session));
    }
    for (port, thread) in threads {
        if thread.has_paused() {
            mediators.paused.push(PausedThread::of_ended(&port, thread));
        } else {
            // It may have noticed already that it is to end.
            mediators.held = true;
            registry.give_mediator(&port, thread);
        }
    }
    if mediators.held {
        return refuse(EBUSY, "a thread that copies packets waits for memory of a program: try again, or end it");
    }
    Ok(())
}

/// Checks what another daemon has handed over.
pub(crate) fn check_paused(registry: &Registry, mediators: &MediatorState) -> Result<(), Refusal> {
    let mut used = BTreeSet::new();
    for PausedThread { port, sessions, .. } in &mediators.paused {
        registry.port(port)?;
        for session in sessions {
            let own = registry.sessions.get(session).is_some_and(|session| session.pid == process::pid());
            if !own || !used.insert(session) {
                return invalid("the session of a thread");
            }
        }
    }
    Ok(())
}

/// Starts the threads that are paused.
pub(crate) fn resume(daemon: &mut Daemon) {
    for paused in mem::take(&mut daemon.mediators.paused) {
        let sessions = paused.sessions;
        if let Err(refusal) = resume_one(daemon, paused) {
            tracing::error!("a queue of an interface is not served any more: {}", refusal.why);
            daemon.close_all(sessions);
        }
    }
}

/// Starts the threads again that were held up when they were to be paused, and have ended since.
fn restart_held(daemon: &mut Daemon) {
    if !mem::take(&mut daemon.mediators.held) {
        return;
    }
    for (port, thread) in daemon.registry.take_mediators() {
        let (stopped, has_ended) = thread.is_paused();
        if stopped && has_ended {
            daemon.mediators.paused.push(PausedThread::of_ended(&port, thread));
        } else {
            daemon.mediators.held |= stopped;
            daemon.registry.give_mediator(&port, thread);
        }
    }
    resume(daemon);
}

fn resume_one(daemon: &mut Daemon, paused: PausedThread) -> Result<(), Refusal> {
    let PausedThread { port, pair, directions, sessions, cpu } = paused;
    let Some(at) = daemon.registry.sessions.get(&sessions[0]).map(|session| session.port.clone()) else {
        return invalid("a thread's session");
    };
    let (name, interface) = daemon.repeat_answer(sessions[0])?;
    let (_, program) = daemon.repeat_answer(sessions[1])?;
    let prepared = adopt_both(&daemon.registry, &mut daemon.monitors, &at, (pair, directions), [interface, program])?;
    let prepared = equip(&daemon.registry, &port, prepared);
    let thread = start(daemon, &name, prepared)?;
    thread.set_polling_cpu(cpu);
    daemon.registry.give_mediator(&port, thread);
    Ok(())
}
