// SPDX-License-Identifier: BSD-2-Clause
//! The threads that copy for mediated ports and copied ends: when they start and end.

use unetmap_abi::{NR_REG_ONE_NIC, NR_REG_ONE_SW};

use super::copied_end::CopiedEnd;
use super::key::{CopiedEndKey, EndpointKey, MediatedKey, PortKey};
use super::mediated::Mediated;
use super::mediator::{Directions, RingPair};
use super::mediators;
use crate::daemon::Daemon;
use crate::endpoint::Endpoint;
use crate::refusal::Refusal;
use crate::registry::Port;

/// Starts and stops threads, so that exactly the ring pairs are served that the program has bound.
pub(super) fn update_threads(daemon: &mut Daemon, key: &MediatedKey) -> Result<(), Refusal> {
    let port_key = PortKey::Mediated(key.clone());
    let Some(port) = daemon.registry.get::<Mediated>(&port_key) else { return Ok(()) };
    let (endpoint, nic) = (&port.record.endpoints[0], port.nic());
    let nic_pairs = endpoint.shape.nic_pairs();
    let ring_pair = |pair: usize| match pair.checked_sub(nic_pairs) {
        None => (NR_REG_ONE_NIC, pair as u16),
        Some(host) => (NR_REG_ONE_SW, host as u16),
    };
    let bound: Vec<(RingPair, Directions)> =
        (0..endpoint.shape.pairs()).map(|pair| (ring_pair(pair), bound_directions(endpoint, pair))).collect();
    for (pair, bound) in bound {
        let needed = (bound.tx || bound.rx).then_some(bound);
        let running = daemon.registry.get::<Mediated>(&port_key).and_then(|port| port.thread(pair));
        if running.map(|thread| thread.directions) == needed {
            continue;
        }
        // The new sockets are opened before the old ones are closed, so that the queue stays open and no packet is
        // lost.
        let program = EndpointKey { port: port_key.clone(), index: 1 };
        let interface = PortKey::Nic(nic).into();
        let prepared = needed
            .map(|needed| mediators::prepare(daemon, &program, &key.interface, &interface, (pair, pair.0), needed))
            .transpose()?;
        let port = daemon.registry.get_mut::<Mediated>(&port_key);
        let old: Vec<_> =
            port.into_iter().flat_map(|port| port.record.mediators.extract_if(.., |old| old.pair == pair)).collect();
        daemon.stop_mediators(old);
        if let Some(prepared) = prepared {
            let prepared = mediators::equip(&daemon.registry, &port_key, prepared);
            let thread = mediators::start(daemon, &key.interface, prepared)?;
            if let Some(port) = daemon.registry.get_mut::<Mediated>(&port_key) {
                port.record.mediators.push(thread);
            }
        }
    }
    Ok(())
}

/// The program has closed a session.
pub(super) fn program_closed(daemon: &mut Daemon, key: &MediatedKey, name: &str) {
    stop_mediated_if_unused(daemon, key);
    let is_open =
        daemon.registry.get::<Mediated>(&PortKey::Mediated(key.clone())).is_some_and(Port::<Mediated>::is_open);
    if is_open && let Err(e) = update_threads(daemon, key) {
        tracing::warn!(name, "the rings that other sessions have bound cannot be served: {}", e.why);
    }
}

/// Stops the threads of a port that no program has open, and closes the interface.
pub(super) fn stop_mediated_if_unused(daemon: &mut Daemon, key: &MediatedKey) {
    let port = daemon.registry.get_mut::<Mediated>(&PortKey::Mediated(key.clone()));
    let Some(port) = port.filter(|port| !port.is_open()) else { return };
    let (nic, threads) = (port.nic(), std::mem::take(&mut port.record.mediators));
    daemon.stop_mediators(threads);
    daemon.release_if_unused(&PortKey::Nic(nic));
}

/// Returns which rings of a pair the program has bound.
fn bound_directions(endpoint: &Endpoint, pair: usize) -> Directions {
    let (tx, rx) = endpoint.binds_pair(pair);
    Directions { tx, rx }
}

/// A program has opened a session: starts the threads if none run.
pub(super) fn copied_end_opened(daemon: &mut Daemon, key: &CopiedEndKey) -> Result<(), Refusal> {
    let port = PortKey::CopiedEnd(key.clone());
    let Some(found) = daemon.registry.get::<CopiedEnd>(&port).filter(|found| found.record.mediators.is_empty()) else {
        return Ok(());
    };
    let shape = found.endpoint().shape;
    let facing = EndpointKey { port: port.clone(), index: 1 - key.index };
    let (name, original, rings) = (key.name(), key.original(), (shape.tx_rings, shape.rx_rings));
    let threads = mediators::start_all(daemon, &facing, &name, (&original, NR_REG_ONE_NIC), rings)?;
    if let Some(found) = daemon.registry.get_mut::<CopiedEnd>(&port) {
        found.record.mediators = threads;
    }
    Ok(())
}

/// Stops the threads if no program has the end open, and closes the pipe's own end.
pub(super) fn stop_copied_end_if_unused(daemon: &mut Daemon, key: &CopiedEndKey) {
    let found = daemon.registry.get_mut::<CopiedEnd>(&PortKey::CopiedEnd(key.clone()));
    let Some(found) = found.filter(|found| !found.endpoint().in_use()) else { return };
    let threads = std::mem::take(&mut found.record.mediators);
    daemon.stop_mediators(threads);
}
