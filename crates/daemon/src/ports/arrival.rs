// SPDX-License-Identifier: BSD-2-Clause
//! Threads that deliver what a monitored interface receives when it arrives, so that its monitors see it before the
//! program syncs.
//!
//! ```text
//! socket == program's ring == program         the thread shares the program's session: under the ring's lock it
//!   '-- [thread] --'    '---> mirror rings     delivers what has arrived, which copies it to the monitors, releases
//!                                              nothing, and wakes the program
//! ```
//! Only interfaces that programs open directly need them: what moves the packets of other ports does not wait for the
//! program that receives them.

use std::collections::{BTreeMap, BTreeSet};
use std::error::Error;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::thread::JoinHandle;

use unetmap_core::Port;
use unetmap_core::errno::{EBUSY, ENOMEM};
use unetmap_sys::event::Epoll;
use unetmap_sys::process;

use super::nic::{Nic, NicPort};
use super::{Daemon, PortKey, mediators, monitor};
use crate::confinement::confine_packet_thread;
use crate::refusal::{Refusal, refuse};
use crate::region::DAEMON_UID;
use crate::threads;
use crate::threads::wait_for_end;
use crate::tuning::arrival::RETRY;

/// The threads, by session of a program that has a monitored interface open.
#[derive(Default)]
pub(crate) struct ArrivalState(BTreeMap<u64, ArrivalThread>);

/// A running thread.
struct ArrivalThread {
    control: Arc<Control>,
    /// Closing it wakes the thread.
    connection: OwnedFd,
    thread: JoinHandle<()>,
}

/// Words between the main thread and the thread.
#[derive(Default)]
struct Control {
    stop: AtomicBool,
    /// The kernel's id of the thread; 0: not started yet.
    tid: AtomicU32,
}

/// Starts and stops threads, so that each receive ring of `port` that has monitors is served by one, with a session of
/// a program that has the ring bound. If one cannot be started, the program's own syncs copy to the monitors.
pub(super) fn update_threads(daemon: &mut Daemon, port: &PortKey) {
    let nic = daemon.registry.get::<NicPort>(port);
    if nic.is_some_and(|nic| nic.here().is_none()) {
        // The same is done when it is back.
        return;
    }
    let is_direct = nic.is_some_and(|nic| nic.record.scope.uid != DAEMON_UID);
    let mut unserved = if is_direct { monitor::copied_receive_rings(daemon, port) } else { BTreeSet::new() };
    let (mut needed, mut unneeded) = (Vec::new(), Vec::new());
    for (id, session) in daemon.registry.sessions.iter().filter(|(_, session)| session.port == *port) {
        let is_running = daemon.arrivals.0.contains_key(id);
        let serves = session.selection.rx.iter().filter(|ring| unserved.remove(ring)).count() > 0;
        match (serves, is_running) {
            (true, false) => needed.push(*id),
            (false, true) => unneeded.push(*id),
            _ => {}
        }
    }
    unneeded.into_iter().for_each(|id| _ = stop(daemon, id));
    for id in needed {
        if let Err(refusal) = start(daemon, id, port) {
            tracing::warn!(session = id, "monitors see what it receives when its program syncs: {}", refusal.why);
        }
    }
}

/// Starts a thread for a session.
fn start(daemon: &mut Daemon, session: u64, port: &PortKey) -> Result<(), Refusal> {
    let (name, registered) = daemon.repeat_answer(session)?;
    let rings = daemon.registry.nic(port).map(Nic::socket_rings).unwrap_or_default();
    let (port, connection) = mediators::adopt(daemon, registered, rings)?;
    let control = Arc::new(Control::default());
    let of_thread = control.clone();
    let thread = threads::start(format!("{name} arrivals"), move || {
        confine_packet_thread();
        of_thread.tid.store(process::tid(), Ordering::Relaxed);
        if let Err(e) = deliver(&port, &of_thread.stop) {
            tracing::debug!("packets are shown to monitors when their program syncs: {e}");
        }
    });
    match thread {
        Ok(thread) => {
            daemon.arrivals.0.insert(session, ArrivalThread { control, connection, thread });
            Ok(())
        }
        Err(e) => refuse(ENOMEM, format!("no thread for the monitors of {name}: {e}")),
    }
}

/// Stops all threads while the daemon is replaced. [`resume`] is to follow in any case.
pub(crate) fn pause(daemon: &mut Daemon) -> Result<(), Refusal> {
    let sessions: Vec<u64> = daemon.arrivals.0.keys().copied().collect();
    match sessions.into_iter().all(|session| stop(daemon, session)) {
        true => Ok(()),
        false => refuse(EBUSY, "a thread that shows packets to monitors waits for memory of a program: try again"),
    }
}

/// Starts those that are needed.
pub(crate) fn resume(daemon: &mut Daemon) {
    let nics: Vec<PortKey> = daemon.registry.all::<NicPort>().map(|port| PortKey::Nic(port.key)).collect();
    nics.iter().for_each(|port| update_threads(daemon, port));
}

/// Stops the thread of a session, if it has one. Returns `false` if it is held up; then it ends by itself.
pub(super) fn stop(daemon: &mut Daemon, session: u64) -> bool {
    let Some(thread) = daemon.arrivals.0.remove(&session) else { return true };
    thread.control.stop.store(true, Ordering::Release);
    drop(thread.connection);
    let has_ended = wait_for_end(&thread.thread, || thread.control.tid.load(Ordering::Relaxed));
    if has_ended && thread.thread.join().is_err() {
        tracing::error!(session, "a thread that delivers packets to monitors panicked");
    }
    daemon.monitors.lists.remove(&session);
    has_ended
}

/// Delivers packets until the thread is stopped, or the port ends.
fn deliver(port: &Port, stop: &AtomicBool) -> Result<(), Box<dyn Error>> {
    let (epoll, mut events) = (Epoll::new()?, Vec::new());
    for fd in port.arrival_fds() {
        epoll.add_edge(fd, 0)?;
    }
    while !stop.load(Ordering::Acquire) {
        let are_left = port.deliver_to_monitors()?;
        // A signal ends the wait early.
        let _ = epoll.wait(&mut events, are_left.then_some(RETRY));
    }
    Ok(())
}
