// SPDX-License-Identifier: BSD-2-Clause
//! The request that sets and shows the filter, the busy polling and the way of an interface (`unetmap nic`).

use std::io;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use serde::Serialize;
use unetmap_core::control::nic::{Filter, NicAction, NicRequest, OnFailure, Way};
use unetmap_core::errno::{EINVAL, ENXIO, EOPNOTSUPP, EPERM};
use unetmap_sys::link::Link;
use unetmap_sys::xsk::{self, obstacle_known};

use super::Nic;
use super::account::FramesSnapshot;
use super::busy_poll::{BusyPollSnapshot, set_busy_poll};
use super::failure::{FailureSnapshot, set_failure};
use super::faults::Found;
use super::frames::of_unopened;
use super::lookup::{find, find_link_for};
use super::open::{check_may_set, queues, refuse_persistent};
use super::packets::Packets;
use super::refusals::{denied, not_system_daemon};
use super::settings::StoredFilter;
use super::zero_copy::is_proved;
use crate::caller::Caller;
use crate::endpoint::{Endpoint, PortRing};
use crate::policy::Access;
use crate::ports::mediated::Mediated;
use crate::ports::{Daemon, PortKey, Registry, Session};
use crate::privileged;
use crate::refusal::{Refusal, json, refuse};
use crate::region::DAEMON_UID;

/// State of an interface for `unetmap nic`.
#[derive(Serialize)]
struct NicSnapshot<'a> {
    interface: &'a str,
    index: u32,
    up: bool,
    tx_queues: u32,
    rx_queues: u32,
    /// How this caller may open it.
    access: &'static str,
    port: Option<OpenPort>,
    filter: Option<FilterSnapshot<'a>>,
    /// The busy polling of sockets that are opened from now on.
    busy_poll: Option<BusyPollSnapshot>,
    /// The way that was chosen for ports that are opened from now on.
    way: &'static str,
    /// A fault of its frames, for which it is opened in another way.
    #[serde(skip_serializing_if = "Option::is_none")]
    found: Option<Found>,
    /// The fate of frames that a program should get and none takes; null while no program is attached.
    failure: Option<FailureSnapshot>,
    /// The frames that it received since a program was attached; null while none is.
    frames: Option<FramesSnapshot>,
    /// Bytes of the virtio-net header of packets; 0: none.
    header: u8,
}

/// The port of an interface that is open.
#[derive(Serialize)]
struct OpenPort {
    kind: &'static str,
    manner: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    copied: Option<String>,
    mem_id: u16,
    queues: Vec<QueueSnapshot>,
    host_rings: Vec<QueueSnapshot>,
    /// Frames that the host sent and that were dropped: no host ring was bound, and all other rings were.
    host_dropped: u64,
    /// The caller's own sessions; for root all.
    sessions: Vec<SessionSnapshot>,
}

#[derive(Serialize)]
struct QueueSnapshot {
    id: u16,
    /// Microseconds for which its socket busy polls, according to the kernel; null: not at all, or it is not open.
    busy_usec: Option<u32>,
    tx: Option<QueueRing>,
    rx: Option<QueueRing>,
}

#[derive(Serialize)]
struct QueueRing {
    slots: u32,
    sessions: u32,
    crossed: u64,
    bad_slots: u64,
    dropped: u64,
}

#[derive(Serialize)]
struct SessionSnapshot {
    id: u64,
    pid: u32,
    uid: u32,
    tx_rings: usize,
    rx_rings: usize,
    exclusive: bool,
}

#[derive(Serialize)]
struct FilterSnapshot<'a> {
    expression: &'a str,
    instructions: usize,
    uid: u32,
    /// Whether an XDP program with this filter is attached.
    in_force: bool,
}

/// Answers a request about an interface with its state, as JSON.
pub(crate) fn answer_request(daemon: &mut Daemon, request: NicRequest, caller: &Caller) -> Result<String, Refusal> {
    if daemon.admission.policy.is_none() {
        return not_system_daemon();
    }
    let Some(link) = find_link_for(&mut daemon.admission, &request.interface, caller)? else {
        return refuse(ENXIO, "no such interface (ip link shows them)");
    };
    let access = daemon.admission.policy()?.and_then(|policy| policy.nic(&caller.identity(policy), &link.name));
    if access.is_none() && caller.peer.uid != 0 {
        return denied(caller);
    }
    daemon.settings_changed |= !matches!(request.action, NicAction::Show);
    match request.action {
        NicAction::Show => {}
        NicAction::Filter(filter) => set_filter(daemon, &link, Some(filter), access, caller)?,
        NicAction::NoFilter => set_filter(daemon, &link, None, access, caller)?,
        NicAction::BusyPoll { usec, budget } => set_busy_poll(daemon, &link, Some((usec, budget)), access, caller)?,
        NicAction::NoBusyPoll => set_busy_poll(daemon, &link, None, access, caller)?,
        NicAction::Way(way) => set_way(daemon, &link, way, caller)?,
        NicAction::OnFailure(failure) => {
            refuse_persistent(&daemon.vale.persistent, "the setting failure", &link, caller)?;
            let partner = match &failure {
                OnFailure::Bypass(name) => find_link_for(&mut daemon.admission, name, caller)?,
                OnFailure::Open | OnFailure::Closed => None,
            };
            let open = find(&daemon.registry, caller.netns_id(), link.index)?.map(|nic| PortKey::Nic(nic.key));
            let Daemon { registry, nics, .. } = daemon;
            let nic = open.and_then(|key| registry.nic_mut(&key));
            let has_program = nic.as_ref().is_some_and(|nic| nic.xdp.is_some());
            let stays = set_failure(&mut nics.settings, has_program, (&link, partner), &failure, caller)?;
            nic.into_iter().for_each(|nic| nic.set_stays(stays.clone()));
        }
    }
    interface_as_json(daemon, &link, access, caller)
}

/// Sets the filter of an interface, or removes it.
fn set_filter(
    daemon: &mut Daemon,
    link: &Link,
    filter: Option<Filter>,
    access: Option<Access>,
    caller: &Caller,
) -> Result<(), Refusal> {
    let (uid, netns_id) = (caller.peer.uid, caller.netns_id());
    let open = check_may_set(&daemon.registry, "filter", link, access, caller)?.map(PortKey::Nic);
    let Some(netns) = caller.netns() else { return refuse(ENXIO, "no such interface (ip link shows them)") };
    let Some(filter) = filter else {
        let nic = open.and_then(|key| daemon.registry.nic_mut(&key));
        let is_open = nic.map(|nic| nic.set_filter(None)).transpose()?.is_some();
        daemon.nics.settings.remove_filter(netns_id, link.index);
        if !is_open {
            daemon.nics.settings.use_filter(netns_id, link.index).or_else(|e| refuse_filter(&e))?;
        }
        tracing::info!(name = link.name, uid, "filter removed");
        return Ok(());
    };
    refuse_persistent(&daemon.vale.persistent, "a filter", link, caller)?;
    let Daemon { registry, nics, .. } = daemon;
    let nic = open.and_then(|key| registry.nic_mut(&key));
    let settings = &mut nics.settings;
    // Also tried where no XDP program is attached yet: a filter that cannot be used is not stored.
    privileged::try_filter(&filter.program[..]).or_else(|e| refuse_filter(&e))?;
    let before = settings.of(netns_id, link.index).and_then(|set| set.filter.clone());
    let stored = Arc::new(StoredFilter { filter, uid });
    settings.store_filter(netns, link.index, stored.clone())?;
    let set = match nic {
        Some(nic) => nic.set_filter(Some(stored.clone())),
        None => settings.use_filter(netns_id, link.index).or_else(|e| refuse_filter(&e)),
    };
    if let Err(refusal) = set {
        match before {
            Some(before) => settings.store_filter(netns, link.index, before)?,
            None => settings.remove_filter(netns_id, link.index),
        }
        return Err(refusal);
    }
    tracing::info!(name = link.name, uid, expression = stored.filter.expression, "filter set");
    Ok(())
}

/// Sets the way of ports that are opened after all programs have closed the interface. A driver whose zero copy is
/// wrong spoils the memory of everybody: no other user than root chooses it.
fn set_way(daemon: &mut Daemon, link: &Link, way: Way, caller: &Caller) -> Result<(), Refusal> {
    let (uid, name) = (caller.peer.uid, &link.name);
    if uid != 0 {
        return refuse(EPERM, format!("user {uid} may not choose the way of its packets: root does"));
    }
    let Some(netns) = caller.netns() else { return refuse(ENXIO, "no such interface (ip link shows them)") };
    if way != Way::Auto {
        refuse_persistent(&daemon.vale.persistent, "a way", link, caller)?;
    }
    if way == Way::ZeroCopy {
        let features = privileged::xdp_features(netns, link.index).ok().flatten();
        let driver = privileged::driver(netns, name).ok().flatten();
        if let Some(obstacle) = obstacle_known(name, way, driver.as_ref(), features, is_proved) {
            return refuse(EOPNOTSUPP, format!("its way cannot be `zero-copy`: {obstacle}"));
        }
    }
    daemon.nics.settings.store_way(netns, link.index, way)?;
    tracing::info!(name, way = way.as_str(), "way set");
    Ok(())
}

fn interface_as_json(
    daemon: &mut Daemon,
    link: &Link,
    access: Option<Access>,
    caller: &Caller,
) -> Result<String, Refusal> {
    let queues = queues(link, caller)?;
    let set = daemon.nics.settings.of(caller.netns_id(), link.index);
    let stored = set.and_then(|set| set.filter.clone());
    let (busy_poll, found) = (set.and_then(|set| set.busy_poll), set.and_then(|set| set.found.clone()));
    let way = set.map_or(Way::Auto, |set| set.way);
    let header = super::header(daemon, &link.name, caller)?;
    let stays = daemon.nics.settings.failure_at(link, caller).ok().flatten();
    let open = find(&daemon.registry, caller.netns_id(), link.index)?;
    let attached = open.is_some_and(|nic| nic.xdp_config.is_some());
    let failure = caller.netns().and_then(|netns| FailureSnapshot::of(netns, stays.as_deref(), open));
    let unopened = || of_unopened(caller.netns()?, link.index, &stays.as_ref()?.xdp);
    let snapshot = NicSnapshot {
        interface: &link.name,
        index: link.index,
        up: link.up,
        tx_queues: queues.tx,
        rx_queues: queues.rx,
        access: match access {
            Some(Access::Direct) => "direct",
            Some(Access::Mediated) => "mediated",
            None => "none",
        },
        port: open.map(|nic| open_port(&daemon.registry, nic, caller)),
        filter: stored.as_ref().map(|stored| FilterSnapshot {
            expression: &stored.filter.expression,
            instructions: stored.filter.program.len(),
            uid: stored.uid,
            in_force: attached,
        }),
        busy_poll: busy_poll.map(BusyPollSnapshot::of),
        way: way.as_str(),
        found,
        failure,
        frames: open.map_or_else(unopened, |nic| nic.frames(&nic.account()?)),
        header,
    };
    json(&snapshot)
}

fn open_port(registry: &Registry, nic: &Nic, caller: &Caller) -> OpenPort {
    let uid = caller.peer.uid;
    let by_packets = nic.packets.as_ref();
    // Threads that serve packet sockets move packets past the interface's own rings.
    let endpoint: &Endpoint = match by_packets.and_then(|_| registry.mediated(nic.key)) {
        Some(port) => &port.record.endpoints[0],
        None => &nic.endpoint,
    };
    let nic_pairs = endpoint.shape.nic_pairs();
    // The daemon's own sessions are those of its threads. The program's is on the mediated port.
    let is_program = |session: &Session| match registry.get::<Mediated>(&session.port) {
        Some(port) => port.nic() == nic.key && session.endpoint == 0,
        None => session.port == PortKey::Nic(nic.key) && nic.scope.uid != DAEMON_UID,
    };
    let sessions = registry.sessions.iter().filter(|(_, session)| is_program(session));
    let sessions = sessions.filter(|(_, session)| uid == 0 || session.uid == uid);
    OpenPort {
        kind: if nic.scope.uid == DAEMON_UID { "mediated" } else { "direct" },
        manner: nic.describe_config(),
        copied: by_packets.map(Packets::copy_reason).or_else(|| nic.copy_reason().map(str::to_owned)),
        mem_id: registry.regions.mem_id(nic.region),
        queues: queue_snapshots(nic, endpoint, 0..nic_pairs),
        host_rings: queue_snapshots(nic, endpoint, nic_pairs..endpoint.shape.pairs()),
        host_dropped: nic.host_dropped(),
        sessions: sessions
            .map(|(id, session)| SessionSnapshot {
                id: *id,
                pid: session.pid,
                uid: session.uid,
                tx_rings: session.selection.tx.len(),
                rx_rings: session.selection.rx.len(),
                exclusive: session.selection.exclusive,
            })
            .collect(),
    }
}

fn queue_snapshots(nic: &Nic, endpoint: &Endpoint, pairs: Range<usize>) -> Vec<QueueSnapshot> {
    let ring = |rings: &[PortRing], pair: usize| {
        let ring = rings.iter().find(|ring| ring.pair == pair)?;
        let state = endpoint.state(ring.state)?;
        let dropped = if ring.view.shape().dir == 0 { 0 } else { nic.statistics(pair).rx_dropped };
        Some(QueueRing {
            slots: ring.view.shape().slots.get(),
            sessions: ring.binders(),
            crossed: state.slots.load(Relaxed),
            bad_slots: state.bad_slots.load(Relaxed),
            dropped,
        })
    };
    let queues = pairs.zip(0u16..).map(|(pair, id)| QueueSnapshot {
        id,
        busy_usec: nic.socket(pair).and_then(xsk::busy_poll),
        tx: ring(&endpoint.tx, pair),
        rx: ring(&endpoint.rx, pair),
    });
    queues.collect()
}

/// Refuses a filter that the kernel, or the translation, does not accept.
pub(super) fn refuse_filter<T>(e: &io::Error) -> Result<T, Refusal> {
    match e.raw_os_error() {
        // The error is a sentence for people.
        None => refuse(EINVAL, e.to_string()),
        Some(EPERM) => {
            refuse(EPERM, "the daemon may not load BPF programs, which a filter is: give it CAP_NET_ADMIN and CAP_BPF")
        }
        Some(_) => refuse(EINVAL, format!("the kernel does not accept the filter: {e} (give a simpler one)")),
    }
}
