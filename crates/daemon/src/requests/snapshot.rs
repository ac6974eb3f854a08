//! Snapshot: everything that `unetmap ls` shows, as JSON.

use std::time::Duration;

use serde::Serialize;
use unetmap_sys::{memfd, process};

use super::{Call, Reply, text_answer};
use crate::ports::snapshot::PortSnapshot;
use crate::ports::vale::{SwitchSnapshot, WorkerSnapshot, switch_snapshots, worker_snapshots};
use crate::ports::{Daemon, UserSnapshot};
use crate::region::{RegionRecord, Scope};
use crate::work_times::WorkTimes;

#[derive(Serialize)]
struct Snapshot {
    daemon: DaemonSnapshot,
    regions: Vec<RegionSnapshot>,
    switches: Vec<SwitchSnapshot>,
    /// The threads of the switches.
    threads: Vec<WorkerSnapshot>,
    ports: Vec<PortSnapshot>,
    sessions: Vec<SessionSnapshot>,
    /// What users have and may have; the last one is all users but root together.
    users: Vec<UserSnapshot>,
}

#[derive(Serialize)]
struct DaemonSnapshot {
    pid: u32,
    uid: u32,
    version: &'static str,
    uptime_seconds: u64,
    connections: usize,
    work: WorkTimes,
}

#[derive(Serialize)]
struct RegionSnapshot {
    mem_id: u16,
    name: String,
    bytes: u64,
    resident_bytes: u64,
    sessions: u32,
    rings_in_use: u32,
    buffers: Buffers,
}

/// The four counts add up to the buffers of the region less the two reserved ones.
#[derive(Serialize)]
struct Buffers {
    total: u32,
    free: u32,
    in_rings: u32,
    extra: u32,
    missing: u32,
}

#[derive(Serialize)]
struct SessionSnapshot {
    id: u64,
    port: String,
    pid: u32,
    uid: u32,
    tx_rings: usize,
    rx_rings: usize,
    exclusive: bool,
}

/// Snapshot. Users other than root and the daemon's owner see their own ports only.
pub(super) fn snapshot(call: &mut Call<'_>) -> Reply {
    let uid = call.peer.uid;
    let only = (uid != 0 && uid != call.owner).then_some(uid);
    let users = call.daemon.user_snapshots(only);
    Reply::Answer(text_answer(&as_json(call.daemon, users, only, (call.connections, call.uptime, call.work_times))))
}

/// Returns everything, or what belongs to user `only`.
pub(crate) fn as_json(
    daemon: &Daemon,
    users: Vec<UserSnapshot>,
    only: Option<u32>,
    (connections, uptime, work): (usize, Duration, WorkTimes),
) -> String {
    let shown = |uid: u32| only.is_none_or(|only| only == uid);
    let registry = &daemon.registry;
    let regions = registry.regions.iter().filter(|record| shown(record.scope.uid));
    let ports = registry.ports().filter(|(_, port)| shown(port.owner()));
    let sessions = registry.sessions.iter().filter(|(_, session)| shown(session.uid));
    let sessions = sessions.map(|(id, session)| SessionSnapshot {
        id: *id,
        port: registry.port(&session.port).ok().and_then(|port| port.own_name()).unwrap_or(&session.name).into(),
        pid: session.pid,
        uid: session.uid,
        tx_rings: session.selection.tx.len(),
        rx_rings: session.selection.rx.len(),
        exclusive: session.selection.exclusive,
    });
    let snapshot = Snapshot {
        daemon: DaemonSnapshot {
            pid: process::pid(),
            uid: process::uid(),
            version: env!("CARGO_PKG_VERSION"),
            uptime_seconds: uptime.as_secs(),
            connections,
            work,
        },
        regions: regions.map(|record| region(daemon, record)).collect(),
        switches: switch_snapshots(daemon, only.map(|uid| Scope { uid, netns: 0 })),
        threads: worker_snapshots(daemon),
        ports: ports.flat_map(|(_, port)| port.snapshot(daemon)).collect(),
        sessions: sessions.collect(),
        users,
    };
    serde_json::to_string(&snapshot).unwrap_or_else(|e| format!("{{\"error\":\"{e}\"}}"))
}

fn region(daemon: &Daemon, record: &RegionRecord) -> RegionSnapshot {
    let in_use = daemon.registry.buffers_in_use(record.key).unwrap_or_default();
    let (census, g) = (record.census(&in_use), record.region.geometry());
    RegionSnapshot {
        mem_id: record.mem_id,
        name: record.name.clone(),
        bytes: g.bytes(),
        resident_bytes: memfd::resident_bytes(&record.fd).unwrap_or(0),
        sessions: record.sessions,
        rings_in_use: record.allocated().1,
        buffers: Buffers {
            total: g.bufs.count - 2,
            free: census.free,
            in_rings: census.in_rings,
            extra: census.extra,
            missing: census.missing,
        },
    }
}
