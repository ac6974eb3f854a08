// SPDX-License-Identifier: BSD-2-Clause
//! Snapshot: everything that `unetmap ls` shows, as JSON.

use std::collections::BTreeSet;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use serde::Serialize;
use unetmap_sys::{memfd, process};

use crate::handover::store::ProtectionSnapshot;
use crate::history::History;
use crate::owner::owner;
use crate::ports::nic::setting_snapshots;
use crate::ports::vale::switch_snapshots;
use crate::ports::{Daemon, PortKey, TotalSnapshot, UserSnapshot};
use crate::privileged;
use crate::region::{RegionKey, RegionRecord, Scope};
use crate::tuning::server::SNAPSHOT_SLICE;
use crate::work_times::WorkTimes;

#[derive(Serialize)]
struct DaemonSnapshot {
    pid: u32,
    /// The process that has the privileges: this one, or its broker.
    privileged_pid: u32,
    /// Sessions that would go on after a crash (`--keep-ports`).
    kept_sessions: usize,
    crash_protection: ProtectionSnapshot,
    uid: u32,
    version: &'static str,
    uptime_seconds: u64,
    /// The time by the machine's clock when it was started, and now: milliseconds since 1970.
    started_ms: u64,
    clock_ms: u64,
    connections: usize,
    work: WorkTimes,
    history: History,
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
    /// Its program's name when it was opened, as that program chose it.
    program: Option<String>,
    uid: u32,
    tx_rings: usize,
    rx_rings: usize,
    exclusive: bool,
}

/// Connections, sessions that are kept over a crash, when the daemon was started, and its work.
type General = (usize, (usize, ProtectionSnapshot), (Instant, SystemTime), WorkTimes);

/// A snapshot that is being made, in slices: of many ports it takes long, and other requests are served between them.
/// What changes meanwhile is in it as it was before or after.
pub(crate) struct SnapshotTask {
    /// The user whose belongings are shown; `None`: everybody's.
    only: Option<u32>,
    users: Vec<UserSnapshot>,
    totals: Vec<TotalSnapshot>,
    /// Parts that are left, the last first.
    left: (Vec<RegionKey>, Vec<PortKey>, Vec<u64>),
    /// Regions, ports and sessions so far: JSON, separated by commas.
    regions: String,
    ports: String,
    sessions: String,
}

impl SnapshotTask {
    /// Returns the snapshot of everything, or of what belongs to user `only`.
    pub(crate) fn new(
        daemon: &Daemon,
        (users, totals): (Vec<UserSnapshot>, Vec<TotalSnapshot>),
        only: Option<u32>,
    ) -> SnapshotTask {
        let shown = |uid: u32| only.is_none_or(|only| only == uid);
        let registry = &daemon.registry;
        // Also what others share with the user, while it is open.
        let own = || registry.sessions.values().filter(|session| only.is_some() && shown(session.uid));
        let (open_ports, open_regions): (BTreeSet<&PortKey>, BTreeSet<RegionKey>) =
            own().map(|session| (&session.port, session.region)).unzip();
        let is_shown = |of: &RegionRecord| shown(of.scope.uid) || open_regions.contains(&of.key);
        let regions = registry.regions.iter().filter(|record| is_shown(record)).map(|record| record.key);
        let ports = registry.ports().filter(|(key, port)| shown(port.owner()) || open_ports.contains(key));
        let ports = ports.map(|(key, _)| key.clone());
        let sessions = registry.sessions.iter().filter(|(_, session)| shown(session.uid)).map(|(id, _)| *id);
        let mut left = (regions.collect::<Vec<_>>(), ports.collect::<Vec<_>>(), sessions.collect::<Vec<_>>());
        left.0.reverse();
        left.1.reverse();
        left.2.reverse();
        let [regions, ports, sessions] = [String::new(), String::new(), String::new()];
        SnapshotTask { only, users, totals, left, regions, ports, sessions }
    }

    /// Goes on for [`SNAPSHOT_SLICE`]; returns whether all is done.
    pub(crate) fn step(&mut self, daemon: &Daemon) -> bool {
        let start = Instant::now();
        while start.elapsed() < SNAPSHOT_SLICE {
            if let Some(key) = self.left.0.pop() {
                daemon
                    .registry
                    .regions
                    .get(key)
                    .into_iter()
                    .for_each(|r| append(&mut self.regions, &region(daemon, r)));
            } else if let Some(key) = self.left.1.pop() {
                let port = daemon.registry.port(&key);
                port.iter().flat_map(|port| port.snapshot(daemon)).for_each(|port| append(&mut self.ports, &port));
            } else if let Some(id) = self.left.2.pop() {
                session(daemon, id).iter().for_each(|session| append(&mut self.sessions, session));
            } else {
                return true;
            }
        }
        false
    }

    /// Returns the JSON, after the last step, in parts: of many ports it is long, and is copied once.
    pub(crate) fn json(self, daemon: &Daemon, (connections, kept, started, work): General) -> [String; 7] {
        let SnapshotTask { only, users, totals, regions, ports, sessions, .. } = self;
        let general = DaemonSnapshot {
            pid: process::pid(),
            privileged_pid: privileged::pid(),
            kept_sessions: kept.0,
            crash_protection: kept.1,
            uid: owner(),
            version: unetmap_core::version(),
            uptime_seconds: started.0.elapsed().as_secs(),
            started_ms: milliseconds(started.1),
            clock_ms: milliseconds(SystemTime::now()),
            connections,
            work,
            history: daemon.history.clone(),
        };
        let switches = to_json(&switch_snapshots(&daemon.vale, only.map(|uid| Scope { uid, netns: 0 })));
        // Persistent ports, of which `ports` has those that are open or attached.
        let persistent = if only.is_none() { daemon.vale.persistent_snapshots() } else { Vec::new() };
        let persistent = to_json(&persistent);
        let (threads, users, general) = (to_json(&daemon.vale.worker_snapshots()), to_json(&users), to_json(&general));
        let totals = to_json(&totals);
        let start = format!("{{\"daemon\":{general},\"regions\":[");
        let middle = format!("],\"switches\":{switches},\"threads\":{threads},\"ports\":[");
        let after = format!("],\"persistent\":{persistent},\"sessions\":[");
        let interfaces = if only.is_none() { setting_snapshots(daemon) } else { Vec::new() };
        let interfaces = to_json(&interfaces);
        let end = format!("],\"interfaces\":{interfaces},\"users\":{users},\"totals\":{totals}}}");
        [start, regions, middle, ports, after, sessions, end]
    }
}

fn milliseconds(time: SystemTime) -> u64 {
    time.duration_since(UNIX_EPOCH).unwrap_or(Duration::ZERO).as_millis() as u64
}

fn to_json(value: &impl Serialize) -> String {
    serde_json::to_string(value).unwrap_or_else(|e| format!("{{\"error\":\"{e}\"}}"))
}

/// Appends an element of a list.
fn append(list: &mut String, value: &impl Serialize) {
    if !list.is_empty() {
        list.push(',');
    }
    list.push_str(&to_json(value));
}

fn session(daemon: &Daemon, id: u64) -> Option<SessionSnapshot> {
    let session = daemon.registry.sessions.get(&id)?;
    Some(SessionSnapshot {
        id,
        port: daemon.port_name(session).into(),
        pid: session.pid,
        program: session.program.clone(),
        uid: session.uid,
        tx_rings: session.selection.tx.len(),
        rx_rings: session.selection.rx.len(),
        exclusive: session.selection.exclusive,
    })
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
