// SPDX-License-Identifier: BSD-2-Clause
//! The mediator threads that do not run: stopped, or paused.

use serde::{Deserialize, Serialize};

use super::key::PortKey;
use super::mediator::{Directions, MediatorThread, RingPair, Stopping};

/// The daemon's own holder ID, which no client gets.
pub(crate) const DAEMON_HOLDER: u32 = u32::MAX;

/// Threads that the daemon has stopped, or pauses while it is replaced.
#[derive(Default)]
pub(crate) struct MediatorState {
    /// Threads that were stopped and have not ended yet.
    pub(in crate::ports) stopping: Vec<Stopping>,
    /// Threads that are stopped while the daemon is replaced.
    pub(crate) paused: Vec<PausedThread>,
    /// Whether threads that were to be paused were held up: each is started again when it has ended.
    pub(in crate::ports) held: bool,
}

/// The state with which a thread goes on.
#[derive(Clone, Serialize, Deserialize)]
pub(crate) struct PausedThread {
    /// The port whose thread it is.
    pub(in crate::ports) port: PortKey,
    pub(in crate::ports) pair: RingPair,
    pub(in crate::ports) directions: Directions,
    /// Of the interface, and of the side that faces the program or the switch.
    pub(in crate::ports) sessions: [u64; 2],
    /// The processor that it polls on.
    pub(in crate::ports) cpu: Option<u32>,
}

impl PausedThread {
    pub(in crate::ports) fn of_running(port: &PortKey, thread: &MediatorThread) -> PausedThread {
        let MediatorThread { pair, directions, sessions, .. } = *thread;
        PausedThread { port: port.clone(), pair, directions, sessions, cpu: thread.polling_cpu() }
    }

    pub(crate) fn sessions(&self) -> [u64; 2] {
        self.sessions
    }

    /// Of a thread that has ended.
    pub(in crate::ports) fn of_ended(port: &PortKey, thread: MediatorThread) -> PausedThread {
        let paused = PausedThread::of_running(port, &thread);
        thread.join();
        paused
    }
}

impl MediatorState {
    /// Stops threads, all at the same time. Returns the sessions of those that have ended, which are to be closed;
    /// those of a thread that is held up follow when it has ended.
    pub(in crate::ports) fn stop(&mut self, threads: impl IntoIterator<Item = MediatorThread>) -> Vec<u64> {
        let stopping: Vec<Stopping> = threads.into_iter().map(MediatorThread::stop).collect();
        let (ended, waiting): (Vec<_>, Vec<_>) = stopping.into_iter().partition(Stopping::wait);
        self.stopping.extend(waiting);
        ended.into_iter().flat_map(Stopping::join).collect()
    }
}
