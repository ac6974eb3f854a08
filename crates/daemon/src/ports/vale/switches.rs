// SPDX-License-Identifier: BSD-2-Clause
//! The switches: their members, and the threads that serve them.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

use unetmap_core::control::vale::{PortPolicy, ThreadConfig};
use unetmap_core::errno::{EINVAL, ENOMEM};
use unetmap_switch::fdb::{LIFETIME_EPOCHS, MAX_PORTS, MacTable};
use unetmap_switch::policy::ActivePolicy;
use unetmap_switch::port::SwitchPort;
use unetmap_switch::port::counters::PacketCounts;
use unetmap_switch::worker::SwitchConfig;
use unetmap_switch::worker::latency::Latency;

use super::ValeKey;
use super::kernel_path::KernelPath;
use super::persistent::{self, PersistentSnapshot, PersistentState};
use super::port::{SwitchKey, ValePort};
use super::returning::Returning;
use super::settings::SwitchSettings;
use super::workers::{Behind, PortLoad, WorkerSnapshot, Workers, balance};
use crate::budget::{Amounts, Resource};
use crate::endpoint::Endpoint;
use crate::ledger::{Charge, Ledger};
use crate::ports::Registry;
use crate::refusal::{Refusal, refuse};
use crate::region::{DAEMON_UID, RegionKey, RegionRecord, Scope};
use crate::registry::Port;
use crate::subordinates::Subordinates;
use crate::tuning::thread_waits::RETIRED_POLL;

/// The state of all switches.
pub(crate) struct ValeState {
    pub(super) switches: BTreeMap<SwitchKey, Switch>,
    pub(super) workers: Workers,
    pub(super) settings: SwitchSettings,
    /// Addresses that a new switch learns at most.
    pub(super) addresses: usize,
    ledger: Ledger,
    pub(crate) persistent: PersistentState,
    /// Ports of an earlier daemon that are not served yet.
    pub(crate) returning: Returning,
    pub(super) kernel_path: KernelPath,
    /// Switches that were made.
    made: u32,
    /// Whether something that lasts has changed ([`super::lasting`]).
    pub(crate) has_unsaved: bool,
    /// Users other than root whose settings have changed.
    pub(super) unsaved_users: BTreeSet<u32>,
    /// The numbers that ports of an earlier daemon had, while this one makes them again.
    pub(super) former_numbers: BTreeMap<ValeKey, u8>,
    /// Threads that may still use what was published before.
    behind: Vec<Behind>,
    /// Ports that were removed, but not freed yet.
    retired: Vec<Retired>,
}

/// The rings of a port that was removed, which threads may still use.
struct Retired {
    users: Vec<Behind>,
    region: RegionKey,
    endpoints: Vec<Arc<Endpoint>>,
}

/// A switch.
pub(super) struct Switch {
    /// Its number in requests: the lowest that no other switch of the same scope had when it was created.
    pub(super) number: u16,
    /// Another one than any switch of this daemon has or had.
    pub(super) id: u32,
    pub(super) table: Arc<MacTable>,
    /// How long packets were in it, by samples since this daemon began.
    pub(super) latency: Arc<Latency>,
    /// Its ports, by number.
    pub(super) members: Vec<Option<Arc<SwitchPort>>>,
    /// The thread that serves each port; `None`: none yet.
    pub(super) threads: Vec<Option<usize>>,
    /// The NUMA node of each port's interface; `None`: it is no interface, or the node is unknown.
    nodes: Vec<Option<u32>>,
    /// When the addresses in its table age by a step; `None`: not scheduled yet, or they do not age.
    pub(super) next_tick: Option<Instant>,
    /// Its user's charge for its tables.
    charge: Charge,
    /// The packets of ports that it had, less those of its ports before they were its own.
    pub(super) former: PacketCounts,
}

impl ValeState {
    pub(crate) fn new(plan: ThreadConfig, addresses: usize, ledger: Ledger) -> ValeState {
        ValeState {
            switches: BTreeMap::new(),
            workers: Workers::new(plan),
            settings: SwitchSettings::default(),
            addresses,
            ledger,
            persistent: PersistentState::default(),
            returning: Returning::default(),
            kernel_path: KernelPath::default(),
            made: 0,
            has_unsaved: false,
            unsaved_users: BTreeSet::new(),
            former_numbers: BTreeMap::new(),
            behind: Vec::new(),
            retired: Vec::new(),
        }
    }

    /// The amounts of the switch of a port that does not exist; nothing if it does.
    pub(super) fn usage_of_new(&self, key: &ValeKey) -> Amounts {
        let exists = self.switches.contains_key(&key.switch_key());
        if exists { Amounts::default() } else { tables(key.scope, self.addresses) }
    }

    /// Returns the amounts that users are charged for their switches.
    pub(crate) fn amounts(&self) -> impl Iterator<Item = (u32, Amounts)> {
        self.switches.iter().map(|((scope, _), switch)| (scope.uid, switch.charge.amounts()))
    }

    /// Whether there are settings or ports that would be lost if the daemon ended.
    pub(crate) fn has_state(&self, registry: &Registry) -> bool {
        let is_attached = registry.all::<ValePort>().any(|port| port.attachment.is_some());
        let lasts = !self.persistent.is_empty() || !self.returning.is_empty();
        !self.settings.is_empty() || self.workers.changed_plan().is_some() || is_attached || lasts
    }

    /// Returns the persistent ports that users who see all ports see.
    pub(crate) fn persistent_snapshots(&self) -> Vec<PersistentSnapshot> {
        self.persistent.snapshots().chain(self.returning.snapshots()).collect()
    }

    /// Returns the index for a new port of a switch.
    pub(super) fn free_index(&self, key: &ValeKey) -> Result<u8, Refusal> {
        let switch = self.switches.get(&key.switch_key());
        let is_free = |index: &usize| switch.is_none_or(|switch| switch.members[*index].is_none());
        let former = self.former_numbers.get(key).map(|index| usize::from(*index)).filter(|index| *index < MAX_PORTS);
        let of_left = || {
            let of_switch = self.former_numbers.iter().filter(|(left, _)| left.switch_key() == key.switch_key());
            of_switch.map(|(_, index)| usize::from(*index)).collect::<BTreeSet<usize>>()
        };
        let free = former.filter(is_free).or_else(|| {
            let of_left = of_left();
            // A number that a port will have again is taken only if there is no other.
            let others = (0..MAX_PORTS).filter(|index| !of_left.contains(index));
            others.chain(0..MAX_PORTS).find(is_free)
        });
        match free.and_then(|index| u8::try_from(index).ok()) {
            Some(index) => Ok(index),
            None => refuse(ENOMEM, format!("{} has {MAX_PORTS} ports already", key.switch)),
        }
    }

    pub(super) fn add(&mut self, key: &ValeKey, port: &Arc<SwitchPort>) {
        let of_scope = self.switches.iter().filter(|((scope, _), _)| *scope == key.scope);
        let used: Vec<u16> = of_scope.map(|(_, switch)| switch.number).collect();
        let made = &mut self.made;
        let switch = self.switches.entry(key.switch_key()).or_insert_with(|| Switch {
            id: next(made),
            number: (0..=u16::MAX).find(|number| !used.contains(number)).unwrap_or(u16::MAX),
            table: Arc::new(persistent::table_of(key, self.addresses)),
            latency: Arc::default(),
            members: vec![None; MAX_PORTS],
            threads: vec![None; MAX_PORTS],
            nodes: vec![None; MAX_PORTS],
            next_tick: None,
            charge: self.ledger.charge(key.scope.uid, tables(key.scope, self.addresses)),
            former: PacketCounts::default(),
        });
        switch.former.subtract(&port.packets());
        switch.members[usize::from(port.index())] = Some(port.clone());
        switch.threads[usize::from(port.index())] = None;
        switch.nodes[usize::from(port.index())] = None;
    }

    /// Sets the NUMA node of the interface that is attached as a port of a switch: threads that are not pinned run on
    /// its processors.
    pub(super) fn set_node(&mut self, key: &ValeKey, index: u8, node: Option<u32>) {
        if let Some(switch) = self.switches.get_mut(&key.switch_key()) {
            switch.nodes[usize::from(index)] = node;
            self.place_threads();
        }
    }

    /// Moves the threads to the processors of the plan or of their interfaces' node.
    fn place_threads(&mut self) {
        let ports = self.switches.values().flat_map(|switch| switch.threads.iter().zip(&switch.nodes));
        let nodes: Vec<(usize, u32)> = ports.filter_map(|(thread, node)| Some(((*thread)?, (*node)?))).collect();
        self.workers.place(&nodes);
    }

    fn remove(&mut self, key: &ValeKey, port: &SwitchPort) {
        let Some(switch) = self.switches.get_mut(&key.switch_key()) else { return };
        let member = switch.members[usize::from(port.index())].take();
        switch.nodes[usize::from(port.index())] = None;
        let (table, empty) = (switch.table.clone(), switch.members.iter().all(Option::is_none));
        if empty {
            self.switches.remove(&key.switch_key());
        }
        if let Err(refusal) = self.publish() {
            tracing::error!("the switch threads keep a switch port that was removed: {}", refusal.why);
        }
        table.remove_port(port.index());
        // No thread counts any more, unless it waits for memory of a program.
        if let Some((switch, member)) = self.switches.get_mut(&key.switch_key()).zip(member) {
            switch.former.add(&member.packets());
        }
    }

    /// Returns the rings of a port that was removed if they can be freed now. Else they are kept until no thread uses
    /// them: [`ValeState::free_retired`].
    fn retire(&mut self, region: &mut RegionRecord, endpoints: Vec<Arc<Endpoint>>) -> Vec<Arc<Endpoint>> {
        self.behind.retain(|behind| !behind.has_caught_up());
        if self.behind.is_empty() {
            return endpoints;
        }
        tracing::debug!(region.mem_id, "a switch thread waits for memory: the port is freed later");
        region.retired_ports += 1;
        self.retired.push(Retired { users: self.behind.clone(), region: region.key, endpoints });
        Vec::new()
    }

    /// Whether a port that was removed is still kept for a thread.
    pub(super) fn has_retired(&self) -> bool {
        !self.retired.is_empty()
    }

    /// The port of a switch that has this index.
    pub(super) fn member(&self, switch: &SwitchKey, index: u8) -> Option<&Arc<SwitchPort>> {
        self.switches.get(switch)?.members.get(usize::from(index))?.as_ref()
    }

    /// Stops the threads; `false`: one waits for memory of a program and may still use a port.
    pub(super) fn stop_threads(&mut self) -> bool {
        self.behind.extend(self.workers.stop());
        self.behind.retain(|behind| !behind.has_caught_up());
        self.behind.is_empty()
    }

    /// The loads of all ports, in order of their switches and numbers.
    pub(super) fn loads(&self) -> Vec<PortLoad> {
        self.switches.values().flat_map(Switch::ports).map(|(load, _)| load).collect()
    }

    /// The thread that serves a port.
    pub(super) fn thread_of(&self, port: &ValePort) -> Option<usize> {
        self.switches
            .get(&port.key.switch_key())
            .filter(|_| port.is_member)?
            .threads
            .get(usize::from(port.index()))
            .copied()?
    }

    /// The name for people that a port has besides its own.
    pub(in crate::ports) fn label(&self, port: &ValePort) -> Option<String> {
        self.settings.label(&port.key)
    }

    /// The thread that serves a port, and its processor.
    pub(in crate::ports) fn thread_and_cpu(&self, port: &ValePort) -> (Option<usize>, Option<usize>) {
        let thread = self.thread_of(port);
        (thread, thread.and_then(|thread| self.workers.cpu_of(thread)))
    }

    /// Ends a port, which is no longer in the registry. Returns its endpoints, unless a thread may still use them.
    pub(in crate::ports) fn release(
        &mut self,
        port: Port<ValePort>,
        region: Option<&mut RegionRecord>,
    ) -> Vec<Arc<Endpoint>> {
        let Port { record, kind } = port;
        if kind.is_member {
            self.remove(&kind.key, &kind.switch_side);
        }
        match region {
            Some(region) => self.retire(region, record.into_endpoints()),
            None => record.into_endpoints(),
        }
    }

    /// Publishes the switches to the threads, and waits until no thread uses an older state, except those that wait for
    /// memory of a program. Starts the threads for the first switch, and stops them after the last.
    pub(crate) fn publish(&mut self) -> Result<(), Refusal> {
        self.behind.retain(|behind| !behind.has_caught_up());
        if self.switches.is_empty() {
            self.behind.extend(self.workers.stop());
            return Ok(());
        }
        let threads = self.workers.start()?;
        let moved = self.assign_threads(threads);
        let switches = &self.switches;
        let configs = |n| switches.values().filter_map(|switch| switch.config_for(n)).collect();
        let behind = self.workers.publish(configs);
        self.behind.extend(behind);
        self.place_threads();
        moved.iter().for_each(|port| port.wake_worker());
        Ok(())
    }

    /// Distributes the ports over `threads` threads; returns those that moved from one to another.
    pub(super) fn assign_threads(&mut self, threads: usize) -> Vec<Arc<SwitchPort>> {
        let mut loads = self.loads();
        balance(&mut loads, threads);
        let mut moved = Vec::new();
        let ports = self.switches.values_mut().flat_map(|switch| switch.threads.iter_mut().zip(&switch.members));
        let ports = ports.filter_map(|(thread, port)| Some((thread, port.as_ref()?)));
        for ((thread, port), load) in ports.zip(loads) {
            if thread.is_some() && *thread != load.thread {
                moved.push(port.clone());
            }
            *thread = load.thread;
        }
        moved
    }
}

/// The next number.
fn next(last: &mut u32) -> u32 {
    *last = last.wrapping_add(1);
    *last
}

impl ValeState {
    /// All that lasts is to be written: this process goes on after another.
    pub(crate) fn all_unsaved(&mut self) {
        self.has_unsaved = true;
        self.unsaved_users.extend(self.settings.users());
    }

    /// Settings of a user have changed, which last.
    fn settings_changed(&mut self, scope: Scope) {
        match scope.uid {
            0 => self.has_unsaved = true,
            uid => _ = self.unsaved_users.insert(uid),
        }
    }

    /// Sets the seconds after which an address is removed from a switch's table.
    pub(super) fn set_age(&mut self, switch: &SwitchKey, seconds: u32) -> Result<(), Refusal> {
        if seconds > 0 {
            self.settings.check_age(switch, seconds, &Subordinates::of_system())?;
        }
        let before = self.settings.age(switch);
        self.settings_changed(switch.0);
        self.settings.set_age(switch, seconds);
        if let Some(switch) = self.switches.get_mut(switch) {
            switch.next_tick = None;
            if before == 0 {
                switch.table.reset_ages();
            }
        }
        tracing::info!(switch = switch.1, seconds, "ageing set");
        Ok(())
    }

    /// Changes the rules of a port.
    pub(super) fn set_rules(
        &mut self,
        registry: &Registry,
        key: &ValeKey,
        change: impl FnOnce(&mut PortPolicy),
    ) -> Result<(), Refusal> {
        let before = self.settings.of(key).cloned().unwrap_or_default();
        let mut rules = before.clone();
        change(&mut rules);
        let (for_packets, former) = (rules.rules_for_packets(), before.rules_for_packets());
        let policy = for_packets.clone().map(ActivePolicy::new).transpose().or_else(|why| refuse(EINVAL, why))?;
        if rules != PortPolicy::default() {
            self.settings.check_rules(key, &rules, &Subordinates::of_system())?;
        }
        let vlan_changed = rules.vlan != before.vlan;
        self.settings.set_rules(key, rules);
        self.settings_changed(key.scope);
        tracing::info!(port = key.name(), "rules set");
        let Some(port) = registry.switch_port(key).filter(|_| for_packets != former) else { return Ok(()) };
        port.set_policy(policy.map(Arc::new));
        let index = port.index();
        self.publish()?;
        if let Some(switch) = self.switches.get(&key.switch_key()) {
            match vlan_changed {
                // Its addresses were learned in another VLAN.
                true => switch.table.remove_port(index),
                false => switch.table.invalidate_caches(),
            }
        }
        Ok(())
    }

    /// Lets the addresses of switches age, if it is time. Returns the time until the next call is due; `None`: none
    /// age.
    pub(crate) fn age_tables(&mut self) -> Option<Duration> {
        if self.settings.is_empty() {
            return None;
        }
        let now = Instant::now();
        let mut next: Option<Instant> = None;
        for (key, switch) in &mut self.switches {
            let step = Duration::from_secs(self.settings.age(key).into()) / LIFETIME_EPOCHS;
            if step.is_zero() {
                continue;
            }
            let mut due = switch.next_tick.unwrap_or(now + step);
            if due <= now {
                switch.table.advance_epoch();
                // A daemon that was delayed does not catch up: no packets were learned from meanwhile either.
                due = now + step;
            }
            switch.next_tick = Some(due);
            next = Some(next.map_or(due, |next| next.min(due)));
        }
        next.map(|next| next - now)
    }

    /// Frees ports that were removed and that no thread uses any more; returns the time until the next look, if any
    /// remain.
    pub(crate) fn free_retired(&mut self, registry: &mut Registry) -> Option<Duration> {
        let is_used = |retired: &Retired| retired.users.iter().any(|user| !user.has_caught_up());
        let (kept, free): (Vec<_>, Vec<_>) = std::mem::take(&mut self.retired).into_iter().partition(is_used);
        self.retired = kept;
        for Retired { region, endpoints, .. } in free {
            if let Some(record) = registry.regions.get_mut(region) {
                record.retired_ports = record.retired_ports.saturating_sub(1);
            }
            registry.free_endpoints(region, endpoints);
        }
        (!self.retired.is_empty()).then_some(RETIRED_POLL)
    }

    /// Sets the plan, and applies it to the threads that run.
    pub(super) fn apply_plan(&mut self, plan: ThreadConfig) -> Result<(), Refusal> {
        self.workers.set_plan(plan)?;
        self.has_unsaved = true;
        self.publish()
    }

    /// Sets the plan of the configuration file, which is applied to the threads that run.
    pub(crate) fn apply_configured_plan(&mut self, plan: ThreadConfig) -> Result<(), Refusal> {
        self.apply_plan(plan.clone())?;
        self.workers.initial_plan = plan;
        Ok(())
    }

    /// The threads, as snapshots show them.
    pub(crate) fn worker_snapshots(&self) -> Vec<WorkerSnapshot> {
        self.workers.snapshots(&self.loads())
    }
}

/// The tables of a switch that learns so many addresses: these, and its ports. Nothing for those of the daemon.
fn tables(scope: Scope, addresses: usize) -> Amounts {
    let of_ports = MAX_PORTS * size_of::<(Option<Arc<SwitchPort>>, Option<usize>, Option<u32>)>();
    let bytes = if scope.uid == DAEMON_UID { 0 } else { MacTable::bytes(addresses) + of_ports };
    Amounts::of(Resource::Memory, bytes as u64)
}

impl Switch {
    /// The packets of all ports that it has or had.
    pub(super) fn packets(&self) -> PacketCounts {
        let mut sum = self.former;
        self.members.iter().flatten().for_each(|port| sum.add(&port.packets()));
        sum
    }

    /// Makes the sums equal after a crash.
    pub(super) fn settle_after_crash(&mut self) {
        self.former.add(&self.packets().missing_after_crash());
    }

    /// Its ports, each with its load.
    pub(super) fn ports(&self) -> impl Iterator<Item = (PortLoad, &Arc<SwitchPort>)> {
        let ports = self.members.iter().zip(&self.threads);
        ports.filter_map(|(port, thread)| {
            let port = port.as_ref()?;
            Some((PortLoad { rings: port.tx_rings(), thread: *thread }, port))
        })
    }

    /// The switch as a thread sees it; `None` if the thread serves none of its ports.
    pub(super) fn config_for(&self, thread: usize) -> Option<SwitchConfig> {
        let own = self.ports().filter(|(load, _)| load.thread == Some(thread));
        let own: Vec<u8> = own.map(|(_, port)| port.index()).collect();
        (!own.is_empty())
            .then(|| SwitchConfig::new((self.table.clone(), self.latency.clone()), self.members.clone(), own))
    }
}
