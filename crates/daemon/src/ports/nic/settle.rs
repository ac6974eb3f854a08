// SPDX-License-Identifier: BSD-2-Clause
//! Consequences of the work of threads on interfaces (`kernel_work`), and the begin of their closing.

use std::mem;
use std::sync::Arc;

use unetmap_sys::kernel;
use unetmap_sys::xdp::Noted;
use unetmap_sys::xsk::Way;

use super::bypass::Change;
use super::changes::{compare_links, handle_deferred_events, link_gone, log_change};
use super::faults::{Fault, Found};
use super::kernel_work::{Done, Work, next_done, start};
use super::lookup::{owner_of, port_mut};
use super::surveyed::Survey;
use super::{Nic, NicKey};
use crate::events::What;
use crate::ports::{Daemon, EndpointKey, PortKey, arrival, copying, monitor};
use crate::refusal::Refusal;

/// The results of threads.
#[derive(Default)]
pub(crate) struct Back {
    /// Interfaces, with the results of the work.
    pub(crate) nics: Vec<(NicKey, Result<(), Refusal>)>,
    /// Surveys for requests of these numbers.
    pub(crate) surveys: Vec<(u64, Arc<Survey>)>,
}

/// Takes back what threads have done.
pub(crate) fn take_back(daemon: &mut Daemon) -> Back {
    let mut back = Back::default();
    while let Some(done) = next_done(&daemon.nics.work) {
        match done {
            Done::Interface(nic, result) => {
                daemon.nics.work.turns.is_back(nic.key.place());
                back.nics.extend(take_back_nic(daemon, nic).map(|key| (key, result)));
            }
            Done::Links { netns, links: Ok(links) } => compare_links(daemon, netns, &links),
            Done::Links { links: Err(e), .. } => tracing::warn!("changes of interfaces were missed: {e}"),
            Done::Namespaces { asked, used } => {
                let gone = daemon.nics.abandoned.answered(&daemon.registry, asked, used);
                gone.into_iter().for_each(|(netns, index)| link_gone(daemon, netns, index));
            }
            Done::Faulty(nic, fault) => faulty(daemon, nic, fault),
            Done::Survey { uid, number, survey } => {
                daemon.nics.surveys.ended(&daemon.nics.work, uid);
                back.surveys.push((number, Arc::from(survey)));
            }
        }
    }
    back.nics.iter().for_each(|(key, _)| handle_deferred_events(daemon, key.netns));
    back
}

/// The XDP program of an interface has found frames that are not those on the wire.
fn faulty(daemon: &mut Daemon, key: NicKey, fault: Fault) {
    let Daemon { registry, nics, events, .. } = daemon;
    // One that is away is asked again.
    let Some(nic) = registry.nic_mut(&PortKey::Nic(key)).filter(|nic| nic.frames_watch.is_some()) else { return };
    nic.frames_watch = None;
    let (name, way, netns) = (nic.name.clone(), nic.way, nic.netns.clone());
    let by_packets = kernel::HOST_RINGS.is_newer_than_kernel();
    let found = Found { why: fault.to_string(), by_packets };
    nic.found = Some(found.clone());
    // Behind a veth the kernel has finished all that was not: what seems so still is from the wire.
    let chosen = if by_packets { way != Way::Auto } else { matches!(way, Way::ZeroCopy | Way::Packet) };
    let stays = chosen || nic.relay.is_some();
    let then = match (stays, by_packets) {
        (true, _) => "it stays so, by root's choice or as the kernel has finished its frames",
        (_, false) => {
            "after all programs have closed it, it is opened by way of a veth, where the kernel completes frames"
        }
        (_, true) => "after all programs have closed it, it is opened by packet sockets, which complete frames",
    };
    let reason = format!("{fault}: {then} (unetmap nic {name} way auto: as before)");
    let uid = owner_of(registry, key);
    tracing::warn!(name, uid, "{reason}");
    if !stays && let Err(refusal) = nics.settings.store_found(&netns, key.index, (found, uid)) {
        tracing::warn!(name, uid, "it is opened as before: {}", refusal.why);
    }
    log_change(registry, events, key, What::FramesFaulty { port: name, reason });
}

/// Takes back an interface.
fn take_back_nic(daemon: &mut Daemon, nic: Box<Nic>) -> Option<NicKey> {
    let key = nic.key;
    let port = port_mut(&mut daemon.registry, key)?;
    let some_closed = port.take_back(nic);
    let is_closed = !port.record.is_open();
    let at = EndpointKey::from(PortKey::Nic(key));
    if some_closed && is_closed {
        monitor::end_monitors(&mut daemon.registry, &at);
    }
    arrival::update_threads(daemon, &at.port);
    let mediated = daemon.registry.mediated(key).map(|port| port.key());
    if let Some(mediated) = mediated.filter(|_| some_closed)
        && let Err(refusal) = copying::update_threads(daemon, &mediated)
    {
        tracing::warn!(name = mediated.interface, "not all of its rings can be served: {}", refusal.why);
    }
    // Requests that waited until it was closed find no port of its former user.
    release_closed(daemon, key);
    daemon.nics.work.check_later(key);
    Some(key)
}

/// Closes what is not needed any more, and releases ports of which nothing is open. Call it when a request or event was
/// handled.
pub(crate) fn close_unneeded(daemon: &mut Daemon) {
    report_bypasses(daemon);
    for key in mem::take(&mut daemon.nics.work.unneeded) {
        // One that is away is looked at again afterwards.
        let Some(nic) = daemon.registry.nic(&PortKey::Nic(key)) else { continue };
        if nic.has_unneeded() && start(&mut daemon.registry, &daemon.nics.work, key, Work::Close).is_none() {
            daemon.registry.nic_mut(&PortKey::Nic(key)).into_iter().for_each(Nic::close_unused_sockets);
        }
        release_closed(daemon, key);
    }
}

/// Adds to the log of events and to the counts when the kernel has forwarded in place of programs, and has the knob for
/// that apply.
pub(crate) fn report_bypasses(daemon: &mut Daemon) {
    daemon.nics.heartbeat.set_stall(daemon.knobs.bypass_stall());
    for (_, stays) in daemon.nics.settings.staying_programs() {
        let Some((noted, changes)) = stays.bypass.as_ref().map(|record| record.take()) else { continue };
        let port = stays.name();
        if noted != Noted::default()
            && let Err(e) = stays.xdp.note(noted)
        {
            tracing::warn!(name = port, "{noted:?} are in no counter: {e}");
        }
        for Change { at, cause, lasted } in changes {
            let port = port.clone();
            let what = match lasted {
                None => What::BypassBegan { port, cause },
                Some(lasted) => What::BypassEnded { port, cause, seconds: lasted.as_secs_f64() },
            };
            // The setting is root's.
            daemon.events.add_at(at, 0, what);
        }
    }
}

/// Releases an interface that nobody uses and of which nothing is open.
fn release_closed(daemon: &mut Daemon, key: NicKey) {
    let key = PortKey::Nic(key);
    if let Some(nic) = daemon.registry.nic_mut(&key)
        && nic.left_in_rings > 0
    {
        let (port, frames) = (nic.name.clone(), mem::take(&mut nic.left_in_rings));
        daemon.events.add(nic.scope.uid, What::FramesLost { port, frames });
    }
    if daemon.registry.port(&key).is_ok_and(|port| port.is_releasable(&daemon.registry))
        && !daemon.registry.is_open(&key)
    {
        daemon.release(&key);
    }
}
