// SPDX-License-Identifier: BSD-2-Clause
//! Which sessions at monitored interfaces need a thread that delivers arrivals ([`super::arrival_thread`]).

use std::collections::BTreeSet;

use super::nic::{Nic, NicPort};
use super::{Daemon, PortKey, mediators, monitor};
use crate::refusal::Refusal;
use crate::region::DAEMON_UID;

/// Starts and stops threads, so that each receive ring of `port` that has monitors is served by one, with a session of
/// a program that has the ring bound. If one cannot be started, the program's own syncs copy to the monitors.
pub(super) fn update_threads(daemon: &mut Daemon, port: &PortKey) {
    let nic = daemon.registry.get::<NicPort>(port);
    if nic.is_some_and(|nic| nic.here().is_none()) {
        // The same is done when it is back.
        return;
    }
    let is_direct = nic.is_some_and(|nic| nic.record.scope.uid != DAEMON_UID);
    let mut unserved = if is_direct { monitor::copied_receive_rings(&daemon.registry, port) } else { BTreeSet::new() };
    let (mut needed, mut unneeded) = (Vec::new(), Vec::new());
    for (id, session) in daemon.registry.sessions.iter().filter(|(_, session)| session.port == *port) {
        let is_running = daemon.arrivals.serves(*id);
        let serves = session.selection.rx.iter().filter(|ring| unserved.remove(ring)).count() > 0;
        match (serves, is_running) {
            (true, false) => needed.push(*id),
            (false, true) => unneeded.push(*id),
            _ => {}
        }
    }
    for id in unneeded {
        daemon.arrivals.stop(id);
        daemon.monitors.lists.remove(&id);
    }
    for id in needed {
        if let Err(refusal) = start(daemon, id, port) {
            tracing::warn!(session = id, "monitors see what it receives when its program syncs: {}", refusal.why);
        }
    }
}

/// Starts those that are needed.
pub(crate) fn resume(daemon: &mut Daemon) {
    let nics: Vec<PortKey> = daemon.registry.all::<NicPort>().map(|port| PortKey::Nic(port.key)).collect();
    nics.iter().for_each(|port| update_threads(daemon, port));
}

/// Starts a thread for a session.
fn start(daemon: &mut Daemon, session: u64, port: &PortKey) -> Result<(), Refusal> {
    let (name, registered) = daemon.repeat_answer(session)?;
    let Daemon { registry, monitors, arrivals, .. } = daemon;
    let rings = registry.nic(port).map(Nic::socket_rings).unwrap_or_default();
    let (port, connection) = mediators::adopt(registry, monitors, registered, rings)?;
    arrivals.start(session, &name, port, connection)
}
