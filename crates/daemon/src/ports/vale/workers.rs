// SPDX-License-Identifier: BSD-2-Clause
//! The worker threads of the switches: how many, on which processors, and which ports each serves.
//!
//! ```text
//! thread 0 .. n   each port has one, which forwards what the port sends; any thread delivers to any port
//! plan            how many, and where: the configuration file's, until the daemon's owner sets another
//! balance         a new port goes to the thread with the fewest rings; a port moves if that makes them more even
//! ```
//! A thread that the plan does not pin runs on the processors of its interfaces' NUMA node, if they are on one.
//!
//! A change is published to all threads before the main thread waits for any of them. When it has waited for all, no
//! thread uses the state before. A thread that waits for memory of a program is not waited for: it is [`Behind`], and
//! what it may still use is freed later.
//!
//! Two threads may serve a port that moves for a moment, as each ring is served under its own lock. The old thread may
//! clear the doorbell that was to wake the new one, so the doorbell is notified again after all threads have the new
//! state.

use std::cell::Cell;
use std::io;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use serde::Serialize;
use unetmap_core::control::vale::ThreadConfig;
use unetmap_core::errno::{EINVAL, ENOMEM};
use unetmap_switch::worker::{self, Mailbox, SwitchConfig};
use unetmap_sys::numa::cpus_of_node;
use unetmap_sys::process;
use unetmap_sys::thread::cpu_of;

use crate::confinement::confine_packet_thread;
use crate::refusal::{Refusal, json, refuse};
use crate::threads::{self, wait_for_thread};
use crate::tuning::server::CPU_AGE;

/// The worker threads that run, and the plan for them.
pub(super) struct Workers {
    plan: ThreadConfig,
    /// The plan with which the daemon was started.
    pub(super) initial_plan: ThreadConfig,
    running: Vec<Worker>,
}

/// A thread that does not use the configuration of this number yet.
#[derive(Clone)]
pub(super) struct Behind {
    mailbox: Arc<Mailbox>,
    number: u64,
}

impl Behind {
    /// Whether it uses it now.
    pub(super) fn has_caught_up(&self) -> bool {
        self.mailbox.wait_quiescent(self.number, Duration::ZERO)
    }
}

struct Worker {
    mailbox: Arc<Mailbox>,
    thread: JoinHandle<()>,
    place: Place,
    /// The processor on which it ran, and when that was read.
    cpu: Cell<Option<(Instant, Option<usize>)>>,
}

/// The processors on which a thread may run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Place {
    /// All that the daemon may use.
    Anywhere,
    /// The processors of the NUMA node that the thread's interfaces are on.
    Node(u32),
    /// The one of the plan.
    Cpu(u16),
}

impl Place {
    /// Chooses the place of thread `thread`, for which the plan has processor `planned`. `nodes` are the threads of the
    /// ports that are interfaces, with the interfaces' nodes. If one thread has several nodes it may run anywhere.
    fn choose(planned: Option<u16>, thread: usize, nodes: &[(usize, u32)]) -> Place {
        let mut own = nodes.iter().filter(|(of, _)| *of == thread).map(|(_, node)| *node);
        match (planned, own.next()) {
            (Some(cpu), _) => Place::Cpu(cpu),
            (None, Some(node)) if own.all(|other| other == node) => Place::Node(node),
            (None, _) => Place::Anywhere,
        }
    }

    /// Returns its processors of those that the daemon may use; all of them if it has none of the node's, or the node
    /// is unknown.
    fn cpus(self, allowed: Vec<usize>, of_node: impl FnOnce(u32) -> io::Result<Vec<usize>>) -> Vec<usize> {
        match self {
            Place::Anywhere => allowed,
            Place::Cpu(cpu) => vec![cpu.into()],
            Place::Node(node) => {
                let of_node = of_node(node).unwrap_or_default();
                let near: Vec<usize> = allowed.iter().copied().filter(|cpu| of_node.contains(cpu)).collect();
                if near.is_empty() { allowed } else { near }
            }
        }
    }
}

/// A port's part in balancing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct PortLoad {
    /// Transmit rings.
    pub(super) rings: usize,
    /// Its thread; `None`: it is new.
    pub(super) thread: Option<usize>,
}

impl Workers {
    pub(super) fn new(plan: ThreadConfig) -> Workers {
        Workers { initial_plan: plan.clone(), plan, running: Vec::new() }
    }

    /// The plan that was set since the daemon was started, if any. It would be lost if the daemon ended.
    pub(super) fn changed_plan(&self) -> Option<&ThreadConfig> {
        (self.plan != self.initial_plan).then_some(&self.plan)
    }

    /// Forgets what was set. The threads that run are not changed.
    pub(super) fn forget_plan(&mut self) {
        self.plan = self.initial_plan.clone();
    }

    /// Sets the plan that an earlier daemon had. No thread runs yet.
    pub(super) fn take_over_plan(&mut self, plan: ThreadConfig) {
        self.plan = plan;
    }

    /// Starts the threads of the plan; returns how many of them run.
    pub(super) fn start(&mut self) -> Result<usize, Refusal> {
        let wanted = usize::from(self.plan.threads);
        while self.running.len() < wanted {
            match Worker::start(self.running.len()) {
                Ok(worker) => self.running.push(worker),
                Err(e) if self.running.is_empty() => {
                    return refuse(ENOMEM, format!("no thread for the switch: {e}"));
                }
                Err(e) => {
                    tracing::warn!(wanted, running = self.running.len(), "no more threads for the switches: {e}");
                    break;
                }
            }
        }
        Ok(self.running.len().min(wanted))
    }

    /// Publishes to each thread the configurations that `configs` returns for its number, and stops the threads that
    /// are no longer in the plan. Returns those that may still use what is in no configuration.
    pub(super) fn publish(&mut self, configs: impl Fn(usize) -> Vec<SwitchConfig>) -> Vec<Behind> {
        let numbered = (0..).zip(&self.running);
        let published = numbered.map(|(n, worker)| (worker.mailbox.clone(), worker.mailbox.publish_config(configs(n))));
        let mut behind = wait_for_all(published.collect());
        behind.extend(stop(self.running.drain(usize::from(self.plan.threads).min(self.running.len())..)));
        behind
    }

    /// Pins the threads to the processors of the plan, and lets others run on the NUMA node of their interfaces:
    /// `nodes`, as in [`Place::choose`].
    pub(super) fn place(&mut self, nodes: &[(usize, u32)]) {
        for (n, worker) in self.running.iter_mut().enumerate() {
            let wanted = Place::choose(self.plan.cpu_of(n), n, nodes);
            // One that has not started yet is moved later.
            if worker.place == wanted || worker.mailbox.tid() == 0 {
                continue;
            }
            let cpus = wanted.cpus(process::cpus_allowed(), cpus_of_node);
            match process::run_thread_on_cpus(worker.mailbox.tid(), &cpus) {
                Ok(()) => (worker.place, worker.cpu) = (wanted, Cell::new(None)),
                Err(e) => tracing::warn!(thread = n, ?wanted, "the switch's thread cannot be moved: {e}"),
            }
        }
    }

    /// Stops all threads. Returns those that still run.
    pub(super) fn stop(&mut self) -> Vec<Behind> {
        stop(self.running.drain(..))
    }

    /// The processor on which a thread runs, or ran last.
    pub(super) fn cpu_of(&self, thread: usize) -> Option<usize> {
        let worker = self.running.get(thread)?;
        if let Some((read, cpu)) = worker.cpu.get()
            && read.elapsed() < CPU_AGE
        {
            return cpu;
        }
        let cpu = cpu_of(worker.mailbox.tid()).ok();
        worker.cpu.set(Some((Instant::now(), cpu)));
        cpu
    }
}

impl Worker {
    fn start(number: usize) -> io::Result<Worker> {
        let mailbox = Arc::new(Mailbox::new()?);
        let of_thread = mailbox.clone();
        let thread = threads::start(format!("switch {number}"), move || {
            confine_packet_thread();
            worker::run(&of_thread);
        })?;
        Ok(Worker { mailbox, thread, place: Place::Anywhere, cpu: Cell::new(None) })
    }
}

/// Waits until the threads use these configurations; returns those that wait for memory instead.
fn wait_for_all(published: Vec<(Arc<Mailbox>, u64)>) -> Vec<Behind> {
    let all = published.into_iter().map(|(mailbox, number)| Behind { mailbox, number });
    all.filter(|Behind { mailbox, number }| {
        !wait_for_thread(|| mailbox.tid(), |limit| mailbox.wait_quiescent(*number, limit))
    })
    .collect()
}

/// Stops threads; returns those that still run, and end by themselves.
fn stop(workers: impl Iterator<Item = Worker>) -> Vec<Behind> {
    let (stopping, threads): (Vec<_>, Vec<_>) = workers
        .map(|worker| {
            let number = worker.mailbox.stop();
            ((worker.mailbox, number), worker.thread)
        })
        .unzip();
    let behind = wait_for_all(stopping);
    // The others exit now.
    if behind.is_empty() && threads.into_iter().any(|thread| thread.join().is_err()) {
        tracing::error!("a thread of the switches panicked");
    }
    behind
}

/// Assigns one of `threads` threads to each port without one, and moves other ports as long as that makes the threads'
/// rings more even. A port whose thread no longer exists counts as without one.
pub(super) fn balance(ports: &mut [PortLoad], threads: usize) {
    let mut rings = vec![0; threads.max(1)];
    let mut new = Vec::new();
    for port in ports.iter_mut() {
        match port.thread.filter(|thread| *thread < rings.len()) {
            Some(thread) => rings[thread] += port.rings,
            None => new.push(port),
        }
    }
    let least = |rings: &[usize]| (0..rings.len()).min_by_key(|thread| rings[*thread]).unwrap_or(0);
    for port in new {
        let thread = least(&rings);
        rings[thread] += port.rings;
        port.thread = Some(thread);
    }
    loop {
        let to = least(&rings);
        // Half of what a move subtracts from the sum of squares. It is 0 unless the port's thread has more rings than
        // the other by more than the port's rings.
        let gain = |port: &PortLoad| {
            let more = rings[port.thread.unwrap_or(to)] - rings[to];
            port.rings * more.saturating_sub(port.rings)
        };
        let Some(port) = ports.iter_mut().max_by_key(|port| gain(port)).filter(|port| gain(port) > 0) else { return };
        if let Some(from) = port.thread.replace(to) {
            rings[from] -= port.rings;
            rings[to] += port.rings;
        }
    }
}

/// The threads in JSON.
#[derive(Serialize)]
struct WorkersSnapshot<'a> {
    /// As planned.
    threads: u16,
    cpus: &'a [u16],
    running: Vec<WorkerSnapshot>,
}

#[derive(Serialize)]
pub(crate) struct WorkerSnapshot {
    thread: usize,
    tid: u32,
    /// The processor on which it runs, or ran last.
    cpu: Option<usize>,
    /// The processor to which it is pinned.
    pinned: Option<u16>,
    /// The NUMA node whose processors it runs on, as its interfaces are there.
    #[serde(skip_serializing_if = "Option::is_none")]
    node: Option<u32>,
    /// Ports that it serves, and their transmit rings.
    ports: usize,
    rings: usize,
}

impl Workers {
    /// Returns the threads that run.
    pub(crate) fn snapshots(&self, loads: &[PortLoad]) -> Vec<WorkerSnapshot> {
        let snapshots = self.running.iter().enumerate().map(|(n, worker)| {
            let own = || loads.iter().filter(|load| load.thread == Some(n));
            WorkerSnapshot {
                thread: n,
                tid: worker.mailbox.tid(),
                cpu: self.cpu_of(n),
                pinned: if let Place::Cpu(cpu) = worker.place { Some(cpu) } else { None },
                node: if let Place::Node(node) = worker.place { Some(node) } else { None },
                ports: own().count(),
                rings: own().map(|load| load.rings).sum(),
            }
        });
        snapshots.collect()
    }

    /// Returns the plan and the threads, as JSON.
    pub(super) fn as_json(&self, loads: &[PortLoad]) -> Result<String, Refusal> {
        let ThreadConfig { threads, cpus } = &self.plan;
        json(&WorkersSnapshot { threads: *threads, cpus, running: self.snapshots(loads) })
    }

    /// Sets the plan; the caller publishes the switches.
    pub(super) fn set_plan(&mut self, plan: ThreadConfig) -> Result<(), Refusal> {
        let available = process::cpus_allowed();
        if let Some(cpu) = plan.cpus.iter().find(|cpu| !available.contains(&usize::from(**cpu))) {
            return refuse(
                EINVAL,
                format!("there is no processor {cpu} that the daemon may use (it may use {available:?})"),
            );
        }
        tracing::info!(threads = plan.threads, cpus = ?plan.cpus, "threads of switches planned");
        self.plan = plan;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn rings_of(ports: &[PortLoad], threads: usize) -> Vec<usize> {
        (0..threads).map(|n| ports.iter().filter(|p| p.thread == Some(n)).map(|p| p.rings).sum()).collect()
    }

    #[test]
    fn new_ports_go_to_the_thread_with_the_fewest_rings() {
        let new = |rings| PortLoad { rings, thread: None };
        let mut ports = [new(4), new(1), new(1), new(1), new(1)];
        balance(&mut ports, 2);
        assert_eq!(ports.map(|port| port.thread), [Some(0), Some(1), Some(1), Some(1), Some(1)]);
        balance(&mut ports, 1);
        assert_eq!(ports.map(|port| port.thread), [Some(0); 5]);
        balance(&mut ports, 2);
        assert_eq!(rings_of(&ports, 2), [4, 4]);
    }

    #[test]
    fn balanced_ports_do_not_move() {
        let mut ports = [PortLoad { rings: 1, thread: Some(1) }, PortLoad { rings: 1, thread: Some(0) }];
        let before = ports;
        balance(&mut ports, 2);
        assert_eq!(ports, before);
    }

    #[test]
    fn threads_run_on_the_node_of_their_interfaces_unless_they_are_pinned() {
        let nodes = [(0, 1), (1, 0), (0, 1), (2, 0), (2, 1)];
        let place = |thread| Place::choose(None, thread, &nodes);
        assert_eq!([place(0), place(1)], [Place::Node(1), Place::Node(0)]);
        assert_eq!([place(2), place(3)], [Place::Anywhere; 2], "two nodes, and no interface");
        assert_eq!(Place::choose(Some(5), 0, &nodes), Place::Cpu(5));
        // Two nodes of four processors each, of which the daemon may not use the last.
        let of_node = |node| match node {
            0 => Ok(vec![0, 1, 2, 3]),
            1 => Ok(vec![4, 5, 6, 7]),
            2 => Ok(vec![7]),
            _ => Err(io::ErrorKind::NotFound.into()),
        };
        let cpus = |place: Place| place.cpus((0..7).collect(), of_node);
        assert_eq!((cpus(Place::Node(0)), cpus(Place::Node(1))), (vec![0, 1, 2, 3], vec![4, 5, 6]));
        let all: Vec<usize> = (0..7).collect();
        assert_eq!(
            [cpus(Place::Node(2)), cpus(Place::Node(3)), cpus(Place::Anywhere)],
            [all.clone(), all.clone(), all]
        );
        assert_eq!(cpus(Place::Cpu(5)), [5]);
    }

    proptest! {
        #[test]
        fn no_further_move_would_be_more_even(
            all in prop::collection::vec((1usize..=16, prop::option::of(0usize..6)), 0..40),
            threads in 1usize..6,
        ) {
            let mut ports: Vec<PortLoad> = all.iter().map(|&(rings, thread)| PortLoad { rings, thread }).collect();
            balance(&mut ports, threads);
            prop_assert!(ports.iter().all(|port| port.thread.is_some_and(|thread| thread < threads)));
            let rings = rings_of(&ports, threads);
            let least = *rings.iter().min().unwrap();
            for port in &ports {
                prop_assert!(rings[port.thread.unwrap()] <= least + port.rings);
            }
            // And then nothing moves any more.
            let settled = ports.clone();
            balance(&mut ports, threads);
            prop_assert_eq!(ports, settled);
        }
    }
}
