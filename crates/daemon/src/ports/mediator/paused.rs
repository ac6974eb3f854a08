// SPDX-License-Identifier: BSD-2-Clause
//! Mediator threads that are stopped while the daemon is replaced. Their sessions stay open, and packets wait in the
//! rings; the successor's threads, or this process's if the successor fails, go on with them. So do those of a daemon
//! that is started again after a crash: what the threads had copied and not yet passed on is copied again.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use serde::{Deserialize, Serialize};
use unetmap_core::errno::EBUSY;
use unetmap_sys::process;

use super::{Directions, MediatorThread, Nic, Prepared, RingPair, adopt, start};
use crate::descriptors::invalid;
use crate::ports::mediated::Mediated;
use crate::ports::{Daemon, PortKey, Registry};
use crate::refusal::{Refusal, refuse};
use crate::thread_waits::wait_for_end;

/// What a thread needs to go on.
#[derive(Clone, Serialize, Deserialize)]
pub(crate) struct PausedThread {
    /// The port whose thread it is.
    port: PortKey,
    pair: RingPair,
    directions: Directions,
    /// Of the interface, and of the side that faces the program or the switch.
    sessions: [u64; 2],
    /// The processor that it polls on.
    cpu: Option<u32>,
}

impl PausedThread {
    fn of_running(port: &PortKey, thread: &MediatorThread) -> PausedThread {
        let MediatorThread { pair, directions, sessions, .. } = *thread;
        PausedThread { port: port.clone(), pair, directions, sessions, cpu: thread.polling_cpu() }
    }

    pub(crate) fn sessions(&self) -> [u64; 2] {
        self.sessions
    }

    /// Of a thread that has ended.
    fn of_ended(port: &PortKey, thread: MediatorThread) -> PausedThread {
        let paused = PausedThread::of_running(port, &thread);
        if thread.thread.join().is_err() {
            tracing::error!("a mediator thread panicked");
        }
        paused
    }
}

/// The running threads, for a daemon that goes on with them after a crash of this one.
pub(crate) fn running(daemon: &mut Daemon) -> Vec<PausedThread> {
    let of_port = |(key, port): (&PortKey, &mut _)| {
        let threads = crate::ports::Port::mediators(port).map(|threads| threads.iter()).into_iter().flatten();
        threads.map(|thread| PausedThread::of_running(key, thread)).collect::<Vec<_>>()
    };
    daemon.registry.ports_mut().flat_map(of_port).collect()
}

impl Registry {
    /// Takes the threads of all ports.
    fn take_mediators(&mut self) -> Vec<(PortKey, MediatorThread)> {
        let of_port = |(key, port): (&PortKey, &mut _)| {
            let threads = crate::ports::Port::mediators(port).map(std::mem::take).unwrap_or_default();
            threads.into_iter().map(|thread| (key.clone(), thread)).collect::<Vec<_>>()
        };
        self.ports_mut().flat_map(of_port).collect()
    }

    /// Gives a port a thread. One that no port has any more ends.
    fn give_mediator(&mut self, key: &PortKey, thread: MediatorThread) {
        if let Some(threads) = self.port_mut(key).ok().and_then(|port| port.mediators()) {
            threads.push(thread);
        }
    }

    /// Wakes the daemon's thread that waits for a session's rings.
    fn wake(&self, session: u64) {
        let Some(session) = self.sessions.get(&session) else { return };
        let endpoint = self.port(&session.port).ok().and_then(|port| port.endpoints().get(session.endpoint));
        let rings = endpoint.into_iter().flat_map(|endpoint| endpoint.bound(&session.selection));
        rings.for_each(|ring| ring.doorbell.notify());
    }
}

/// Stops all threads; their sessions stay open. Refuses if one is held up. [`resume`] is to follow in any case.
pub(crate) fn pause(daemon: &mut Daemon) -> Result<(), Refusal> {
    let threads = daemon.registry.take_mediators();
    for (_, MediatorThread { control, sessions, .. }) in &threads {
        control.stop.store(true, Ordering::Release);
        sessions.iter().for_each(|session| daemon.registry.wake(*session));
    }
    for (port, thread) in threads {
        if wait_for_end(&thread.thread, || thread.control.tid.load(Ordering::Relaxed)) {
            daemon.paused_mediators.push(PausedThread::of_ended(&port, thread));
        } else {
            // It may have noticed already that it is to end.
            daemon.held_mediators = true;
            daemon.registry.give_mediator(&port, thread);
        }
    }
    if daemon.held_mediators {
        return refuse(EBUSY, "a thread that copies packets waits for memory of a program: try again, or end it");
    }
    Ok(())
}

/// Checks what another daemon has handed over.
pub(crate) fn check_paused(daemon: &Daemon) -> Result<(), Refusal> {
    let (mut used, registry) = (BTreeSet::new(), &daemon.registry);
    for PausedThread { port, sessions, .. } in &daemon.paused_mediators {
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
    for paused in std::mem::take(&mut daemon.paused_mediators) {
        let sessions = paused.sessions;
        if let Err(refusal) = resume_one(daemon, paused) {
            tracing::error!("a queue of an interface is not served any more: {}", refusal.why);
            sessions.into_iter().for_each(|session| daemon.close(session));
        }
    }
}

/// Starts the threads again that were held up when they were to be paused, and have ended since.
pub(super) fn restart_held(daemon: &mut Daemon) {
    if !std::mem::take(&mut daemon.held_mediators) {
        return;
    }
    for (port, thread) in daemon.registry.take_mediators() {
        let stopped = thread.control.stop.load(Ordering::Relaxed);
        if stopped && thread.thread.is_finished() {
            daemon.paused_mediators.push(PausedThread::of_ended(&port, thread));
        } else {
            daemon.held_mediators |= stopped;
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
    let rings = daemon.registry.nic(&at).map(Nic::socket_rings).unwrap_or_default();
    let (interface, interface_connection) = adopt(daemon, interface, rings)?;
    let (program, program_connection) = adopt(daemon, program, Vec::new())?;
    let connections = [interface_connection, program_connection];
    let (headers, bytes) = (None, Arc::default());
    let prepared = Prepared { pair, directions, sessions, program, interface, connections, headers, bytes };
    let prepared = match daemon.registry.get::<Mediated>(&port) {
        Some(mediated) => mediated.equip(prepared),
        None => prepared,
    };
    let thread = start(daemon, &name, prepared)?;
    thread.set_polling_cpu(cpu);
    daemon.registry.give_mediator(&port, thread);
    Ok(())
}
