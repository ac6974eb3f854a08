// SPDX-License-Identifier: BSD-2-Clause
//! Requests about switches (`unetmap vale`), and switches in JSON.

use std::collections::BTreeMap;

use serde::Serialize;
use unetmap_abi::NM_BDG_NAME;
use unetmap_core::control::ServesRequest;
use unetmap_core::control::vale::{PortPolicy, RateLimit, VlanMode};
use unetmap_core::control::vale::{ValeAction, ValeRequest};
use unetmap_core::errno::{EINVAL, ENOENT, EPERM};
use unetmap_switch::fdb::{LIFETIME_EPOCHS, MacEntry};
use unetmap_switch::policy::DropReason;
use unetmap_switch::worker::latency::{LatencyCounts, bound_ns};

use super::ValeKey;
use super::attach_requests::port_key;
use super::open::key_of;
use super::port::{SwitchKey, ValePort, by_reason};
use super::switches::{Switch, ValeState};
use crate::caller::Caller;
use crate::owner::owner;
use crate::ports::snapshot::PacketsSnapshot;
use crate::ports::{Admission, Daemon, Registry, Session};
use crate::refusal::{Refusal, json, refuse};
use crate::region::Scope;
use crate::registry::Port;

#[derive(Serialize)]
pub(crate) struct SwitchSnapshot {
    switch: String,
    uid: u32,
    /// Open ports.
    ports: usize,
    addresses: usize,
    /// Seconds after which an address is removed; 0: never.
    age: u32,
    /// Packets of all ports that it has or had; `copies` = `received` + the sum of `not_received`.
    packets: PacketsSnapshot,
    /// Packets that were sent and reached no port, by reason.
    lost: BTreeMap<&'static str, u64>,
    /// Packets that a port did not receive, by reason.
    not_received: BTreeMap<&'static str, u64>,
    latency: LatencySnapshot,
}

/// How long packets were in the switch, by samples since the daemon began.
#[derive(Serialize)]
struct LatencySnapshot {
    sum_ns: u64,
    /// The samples that took at most so many nanoseconds, and longer than the bucket before; the last has no bound.
    buckets: Vec<(Option<u64>, u64)>,
}

impl LatencySnapshot {
    fn of(LatencyCounts { counts, sum_ns }: LatencyCounts) -> LatencySnapshot {
        let buckets = counts.iter().enumerate().map(|(bucket, count)| (bound_ns(bucket), *count));
        LatencySnapshot { sum_ns, buckets: buckets.collect() }
    }
}

#[derive(Serialize)]
struct SwitchDetails {
    #[serde(flatten)]
    switch: SwitchSnapshot,
    most_addresses: usize,
    port: Vec<PortDetails>,
    table: Vec<AddressSnapshot>,
}

#[derive(Serialize)]
struct AddressSnapshot {
    address: String,
    vlan: u16,
    port: String,
    /// Whether the kernel forwards packets from persistent ports to it.
    kernel: bool,
    /// Seconds since a packet last came from it, rounded down to a step of the table; null: addresses do not age.
    age: Option<u64>,
}

#[derive(Serialize)]
struct PortDetails {
    name: String,
    open: bool,
    index: Option<u8>,
    /// "program", "interface", or "-" if it does not exist.
    kind: &'static str,
    /// Programs that have it open.
    pids: Vec<u32>,
    /// Services that they offer with it, each as its user says.
    served: Vec<ServedSnapshot>,
    mem_id: u16,
    /// The thread that forwards what it sends, and the processor on which that thread runs or ran last.
    thread: Option<usize>,
    cpu: Option<usize>,
    /// Attached interface: the processors that poll its queues and serve nothing else (`vale-ctl -p`).
    polled: BTreeMap<u16, u32>,
    header: u8,
    /// Persistent port: what the kernel forwards in place of the thread.
    #[serde(skip_serializing_if = "Option::is_none")]
    kernel: Option<KernelSnapshot>,
    /// Slots sent and received, as the port's program counts them, and packets that the kernel forwarded.
    sent: u64,
    received: u64,
    /// Packets that it sent and that reached no port, by reason.
    lost: BTreeMap<&'static str, u64>,
    /// Packets for it that it did not receive, by reason.
    dropped: BTreeMap<&'static str, u64>,
    rules: RulesSnapshot,
}

#[derive(Serialize)]
struct KernelSnapshot {
    /// Whether it forwards what needs no thread.
    forwards: bool,
    /// Packets of the port that it has forwarded.
    sent: u64,
    received: u64,
}

#[derive(Serialize)]
struct ServedSnapshot {
    pid: u32,
    uid: u32,
    program: Option<String>,
    service: &'static str,
    socket: String,
}

#[derive(Serialize, Default)]
struct RulesSnapshot {
    #[serde(skip_serializing_if = "Option::is_none")]
    access: Option<u16>,
    #[serde(skip_serializing_if = "Option::is_none")]
    trunk: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    limit_in: Option<LimitSnapshot>,
    #[serde(skip_serializing_if = "Option::is_none")]
    limit_out: Option<LimitSnapshot>,
    #[serde(skip_serializing_if = "Option::is_none")]
    storm: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    filter_in: Option<FilterSnapshot>,
    #[serde(skip_serializing_if = "Option::is_none")]
    filter_out: Option<FilterSnapshot>,
    #[serde(skip_serializing_if = "Option::is_none")]
    label: Option<String>,
}

/// Per second; 0: unlimited.
#[derive(Serialize)]
struct LimitSnapshot {
    packets: u64,
    bits: u64,
}

#[derive(Serialize)]
struct FilterSnapshot {
    expression: String,
    instructions: usize,
}

impl RulesSnapshot {
    fn of(rules: &PortPolicy) -> RulesSnapshot {
        let limit = |limit: RateLimit| {
            let snapshot = LimitSnapshot { packets: limit.packets, bits: limit.bits };
            (limit != RateLimit::default()).then_some(snapshot)
        };
        let filter = |direction: usize| {
            let filter = rules.filters[direction].as_ref()?;
            Some(FilterSnapshot { expression: filter.expression.clone(), instructions: filter.program.len() })
        };
        let (access, trunk) = match &rules.vlan {
            None => (None, None),
            Some(VlanMode::Access(vlan)) => (Some(*vlan), None),
            Some(VlanMode::Trunk(all)) => (None, Some(all.to_string())),
        };
        RulesSnapshot {
            access,
            trunk,
            limit_in: limit(rules.limits[0]),
            limit_out: limit(rules.limits[1]),
            storm: (rules.storm > 0).then_some(rules.storm),
            filter_in: filter(0),
            filter_out: filter(1),
            label: rules.label.clone(),
        }
    }
}

/// Answers a request about a switch with its state, as JSON.
pub(crate) fn answer_request(daemon: &mut Daemon, request: ValeRequest, caller: &Caller) -> Result<String, Refusal> {
    let ValeRequest { name, action } = request;
    daemon.settings_changed |= !action.shows();
    daemon.count_kernel_path();
    let Daemon { admission, registry, vale, .. } = daemon;
    match action {
        ValeAction::List => {
            check_may_use_switches(admission, caller)?;
            json(&known_switches(vale, admission.scope(caller)))
        }
        ValeAction::Threads => {
            check_may_use_switches(admission, caller)?;
            vale.workers.as_json(&vale.loads())
        }
        ValeAction::SetThreads(config) => {
            check_may_use_switches(admission, caller)?;
            check_may_set_threads(caller)?;
            vale.apply_plan(config)?;
            vale.workers.as_json(&vale.loads())
        }
        ValeAction::Show => {
            let switch = switch_named(admission, &name, caller)?;
            json(&switch_details(registry, vale, &switch)?)
        }
        ValeAction::Age(seconds) => {
            let switch = switch_named(admission, &name, caller)?;
            vale.set_age(&switch, seconds)?;
            json(&switch_details(registry, vale, &switch)?)
        }
        ValeAction::ShowPort => {
            let key = port_key(admission, &name, caller)?;
            if registry.switch_port(&key).is_none() && vale.settings.of(&key).is_none() {
                return refuse(ENOENT, "there is no such port, and it has no settings");
            }
            json(&PortDetails::of(registry, vale, &key))
        }
        _ => {
            let key = port_key(admission, &name, caller)?;
            vale.set_rules(registry, &key, |rules| action.apply_to(rules))?;
            json(&PortDetails::of(registry, vale, &key))
        }
    }
}

fn check_may_use_switches(admission: &mut Admission, caller: &Caller) -> Result<(), Refusal> {
    key_of(admission, "vale0:x", caller).map(drop)
}

fn check_may_set_threads(caller: &Caller) -> Result<(), Refusal> {
    let (uid, owner) = (caller.peer.uid, owner());
    if uid != 0 && uid != owner {
        return refuse(EPERM, format!("only root and user {owner}, the daemon's owner, may set its threads"));
    }
    tracing::info!(uid, "threads of switches set");
    Ok(())
}

fn switch_named(admission: &mut Admission, name: &str, caller: &Caller) -> Result<SwitchKey, Refusal> {
    if name.contains(':') || !name.starts_with(NM_BDG_NAME) {
        return refuse(EINVAL, "a switch is named valeS, without a port");
    }
    port_key(admission, &format!("{name}:x"), caller).map(|key| key.switch_key())
}

/// Returns all switches of a user, or of all users.
pub(crate) fn switch_snapshots(vale: &ValeState, only: Option<Scope>) -> Vec<SwitchSnapshot> {
    let switches = vale.switches.iter().filter(|((_, name), _)| name.starts_with(NM_BDG_NAME));
    let switches = switches.filter(|((scope, _), _)| only.is_none_or(|only| only == *scope));
    switches.map(|(key, switch)| switch_snapshot(vale, key, Some(switch))).collect()
}

/// Returns the switches of a user that have ports or settings.
fn known_switches(vale: &ValeState, scope: Scope) -> Vec<SwitchSnapshot> {
    let with_settings = vale.settings.switches().filter(|key| key.0 == scope);
    let settings_only = with_settings.filter(|key| !vale.switches.contains_key(key));
    let mut all = switch_snapshots(vale, Some(scope));
    all.extend(settings_only.map(|key| switch_snapshot(vale, key, None)));
    all.sort_by(|a, b| a.switch.cmp(&b.switch));
    all
}

fn switch_snapshot(vale: &ValeState, key: &SwitchKey, switch: Option<&Switch>) -> SwitchSnapshot {
    let packets = switch.map(Switch::packets).unwrap_or_default();
    SwitchSnapshot {
        switch: key.1.clone(),
        uid: key.0.uid,
        ports: switch.map_or(0, |switch| switch.members.iter().flatten().count()),
        addresses: switch.map_or(0, |switch| switch.table.len()),
        age: vale.settings.age(key),
        packets: PacketsSnapshot::of(&packets),
        lost: by_reason(&DropReason::SENT, &packets.lost),
        not_received: by_reason(&DropReason::RECEIVED, &packets.not_received),
        latency: LatencySnapshot::of(switch.map(|switch| switch.latency.counts()).unwrap_or_default()),
    }
}

fn switch_details(registry: &Registry, vale: &ValeState, of: &SwitchKey) -> Result<SwitchDetails, Refusal> {
    let (switch, set) = (vale.switches.get(of), vale.settings.of_switch(of));
    if switch.is_none() && set.is_none() {
        return refuse(ENOENT, format!("there is no switch {}, and it has no settings", of.1));
    }
    let key = |port: &str| ValeKey { scope: of.0, switch: of.1.clone(), port: port.into() };
    let members = registry.all::<ValePort>().filter(|port| port.is_member);
    let open = members.filter(|port| (port.key.scope, &port.key.switch) == (of.0, &of.1));
    let names: BTreeMap<u8, &str> = open.map(|port| (port.index(), &*port.key.port)).collect();
    let mut ports: Vec<&str> = names.values().copied().collect();
    ports.extend(set.iter().flat_map(|set| set.ports.keys().map(String::as_str)));
    ports.sort_unstable();
    ports.dedup();
    let by_kernel = switch.map(|switch| vale.kernel_path.known(switch.id)).unwrap_or_default();
    let hidden = |name: &&str| vale.persistent.attached_as(&key(name));
    let hidden: BTreeMap<u8, u32> = names.iter().filter_map(|(port, name)| Some((*port, hidden(name)?))).collect();
    let forwards = |entry: &MacEntry| {
        let hidden = hidden.get(&entry.port).filter(|_| entry.vlan == 0);
        hidden.is_some_and(|hidden| by_kernel.contains(&(entry.mac, *hidden)))
    };
    let age = vale.settings.age(of);
    let mut table: Vec<AddressSnapshot> = switch.map_or_else(Vec::new, |switch| {
        let address = |mac: [u8; 6]| mac.map(|byte| format!("{byte:02x}")).join(":");
        let entries = switch.table.entries();
        let snapshots = entries.iter().map(|entry| AddressSnapshot {
            address: address(entry.mac),
            vlan: entry.vlan,
            port: names.get(&entry.port).copied().unwrap_or("-").into(),
            kernel: forwards(entry),
            age: (age > 0).then(|| u64::from(entry.age) * u64::from(age) / u64::from(LIFETIME_EPOCHS)),
        });
        snapshots.collect()
    });
    table.sort_unstable_by(|a, b| (&a.address, a.vlan).cmp(&(&b.address, b.vlan)));
    Ok(SwitchDetails {
        switch: switch_snapshot(vale, of, switch),
        most_addresses: switch.map_or(vale.addresses, |switch| switch.table.capacity()),
        port: ports.into_iter().map(|port| PortDetails::of(registry, vale, &key(port))).collect(),
        table,
    })
}

impl ServedSnapshot {
    fn of(session: &Session) -> Option<ServedSnapshot> {
        let ServesRequest { service, socket } = session.serves.as_ref()?;
        let (pid, uid, program) = (session.pid, session.uid, session.program.clone());
        Some(ServedSnapshot { pid, uid, program, service: service.name(), socket: socket.clone() })
    }
}

impl PortDetails {
    fn of(registry: &Registry, vale: &ValeState, key: &ValeKey) -> PortDetails {
        let port = registry.switch_port(key);
        let is_attached = port.is_some_and(|port| port.attachment.is_some());
        let sessions = registry.sessions.values();
        let sessions: Vec<&Session> =
            sessions.filter(|session| !is_attached && port.is_some_and(|p| p.id == session.port)).collect();
        let (thread, cpu) = port.map(|port| vale.thread_and_cpu(port)).unwrap_or_default();
        PortDetails {
            name: key.name(),
            open: port.is_some(),
            index: port.map(|port| port.index()),
            kind: match port {
                None => "-",
                Some(_) if is_attached => "interface",
                Some(_) => "program",
            },
            pids: sessions.iter().map(|session| session.pid).collect(),
            served: sessions.iter().filter_map(|session| ServedSnapshot::of(session)).collect(),
            mem_id: port.map_or(0, |port| registry.regions.mem_id(port.record.region)),
            thread,
            cpu,
            polled: port.map(Port::<ValePort>::polling_cpus).unwrap_or_default(),
            header: port.map_or(0, |port| port.header()),
            sent: port.map_or(0, |port| port.crossed(true).wrapping_add(port.switch_side.by_kernel().sent)),
            received: port.map_or(0, |port| port.crossed(false).wrapping_add(port.switch_side.by_kernel().received)),
            kernel: vale.persistent.attached_as(key).map(|hidden| {
                let by_kernel = port.map(|port| port.switch_side.by_kernel()).unwrap_or_default();
                let (sent, received) = (by_kernel.sent, by_kernel.received);
                KernelSnapshot { forwards: vale.kernel_path.has(hidden), sent, received }
            }),
            lost: port.map(Port::<ValePort>::lost).unwrap_or_default(),
            dropped: port.map(Port::<ValePort>::not_received).unwrap_or_default(),
            rules: vale.settings.of(key).map(RulesSnapshot::of).unwrap_or_default(),
        }
    }
}
