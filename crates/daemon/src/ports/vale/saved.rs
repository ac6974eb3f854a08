// SPDX-License-Identifier: BSD-2-Clause
//! Switches as the daemon hands them to its successor ([`crate::handover`]).
//!
//! ```text
//! SavedPort, SavedSwitches   rebuilt by the successor while the daemon still forwards packets
//! SwitchPositions            saved after the daemon's threads have stopped; then the successor's threads begin
//! ```

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};
use unetmap_core::control::ControlRequest;
use unetmap_core::control::vale::{ThreadConfig, ValeRequest};
use unetmap_core::errno::EBUSY;
use unetmap_mem::{ChannelPage, CounterPage};
use unetmap_switch::fdb::{MAX_PORTS, MacEntry, TableMark};
use unetmap_switch::port::counters::PacketCounts;
use unetmap_switch::port::{PortPositions, SwitchPort};
use unetmap_sys::Doorbell;

use super::ValeKey;
use super::persistent::{PersistentState, SavedPersistent};
use super::port::{
    AttachedInterface, HostRings, Side, SwitchKey, ValePort, WIRE_PROGRAM, counter_page, counters, counters_of_sides,
    switch_side,
};
use super::switches::{Switch, ValeState};
use crate::descriptors::{FdIndex, Incoming, Outgoing, invalid};
use crate::ports::{PortKey, Registry};
use crate::refusal::{Refusal, refuse};
use crate::region::{Scope, SharedPage};
use crate::registry::{Port, Record, Regions};

/// A switch port.
#[derive(Serialize, Deserialize)]
pub(crate) struct SavedValePort {
    key: ValeKey,
    is_member: bool,
    doorbell: FdIndex,
    /// The doorbell of the host rings, if the port has any.
    host: Option<FdIndex>,
    index: u8,
    header: u8,
    /// The attached interface, its side, and whether processors of their own poll it.
    attachment: Option<(PortKey, Side, bool)>,
    is_wrapped: bool,
}

/// All switches, but for their ports.
#[derive(Serialize, Deserialize)]
pub(crate) struct SavedSwitches {
    switches: Vec<SavedSwitch>,
    /// Settings of switches and ports: by user, as the requests that set them.
    settings: Vec<(Scope, Vec<u8>)>,
    /// Number and processors of the threads, if they were set since the daemon was started.
    threads: Option<(u16, Vec<u16>)>,
    persistent: SavedPersistent,
}

#[derive(Serialize, Deserialize)]
struct SavedSwitch {
    key: SwitchKey,
    number: u16,
    /// Milliseconds until its addresses age by a step.
    next_tick: Option<u64>,
    addresses: Vec<SavedAddress>,
    /// The packets of ports that it had, since version 18.
    #[serde(default)]
    former: PacketCounts,
}

/// The part that changes with every packet.
#[derive(Serialize, Deserialize)]
pub(crate) struct SwitchPositions {
    /// Of each port, and of its host rings.
    ports: Vec<(PortKey, PortPositions, Option<PortPositions>)>,
    /// Addresses that changed since the switches were saved. Those that were removed since are not among them: they are
    /// hints.
    addresses: Vec<(SwitchKey, Vec<SavedAddress>)>,
}

/// The contents of the MAC tables when the switches were saved.
pub(crate) type TableMarks = BTreeMap<SwitchKey, TableMark>;

/// Address, VLAN, port and age.
type SavedAddress = ([u8; 6], u16, u8, u32);

impl ValePort {
    pub(in crate::ports) fn save<'a>(&'a self, fds: &mut Outgoing<'a>) -> SavedValePort {
        SavedValePort {
            key: self.key.clone(),
            is_member: self.is_member,
            doorbell: fds.add(&self.doorbell),
            host: self.host_rings.as_ref().map(|host| fds.add(&host.doorbell)),
            index: self.index(),
            header: self.header(),
            attachment: self.attachment.as_ref().map(|of| (of.interface.clone(), of.side, of.polling)),
            is_wrapped: self.is_wrapped,
        }
    }
}

impl SavedValePort {
    /// Rebuilds the port, whose positions follow.
    pub(in crate::ports) fn restore(
        self,
        mut record: Record,
        id: &PortKey,
        regions: &Regions,
        fds: &mut Incoming,
    ) -> Result<Port<ValePort>, Refusal> {
        let (region, endpoint) = (regions.existing(record.region)?, &record.endpoints[0]);
        let shape = endpoint.shape;
        if usize::from(self.index) >= MAX_PORTS || endpoint.tx.is_empty() || endpoint.rx.is_empty() {
            return invalid("a switch port");
        }
        let has_all = |page: &&SharedPage| page.range.len() == ChannelPage::bytes(shape.all_rings() as usize);
        let (Some(channels), Some(_)) = (&record.channels, record.page.as_ref().filter(has_all)) else {
            return invalid("the channels of a switch port");
        };
        if record.counters.as_ref().is_some_and(|page| page.range.len() != CounterPage::bytes(counters(shape))) {
            return invalid("the counters of a switch port");
        }
        // A daemon of a former version has none.
        let page = record.counters.take().map_or_else(|| counter_page(shape), Ok)?;
        let counters = CounterPage::new(page.range.clone());
        let doorbell = fds.take_doorbell(self.doorbell)?;
        let is_persistent = id.as_persistent().is_some();
        let own = (usize::from(shape.tx_rings), usize::from(shape.rx_rings));
        let has_host = endpoint.tx.len() > own.0 && endpoint.rx.len() > own.1;
        let has_own = endpoint.tx.len() >= own.0 && endpoint.rx.len() >= own.1;
        if !has_own || has_host != self.host.is_some() || has_host != is_persistent || (self.is_wrapped && !has_host) {
            return invalid("the host rings of a switch port");
        }
        let ((tx, host_tx), (rx, host_rx)) = (endpoint.tx.split_at(own.0), endpoint.rx.split_at(own.1));
        let side = |index, rings, doorbell: &Doorbell, first| {
            let side = switch_side(index, region, (channels, (&counters, first)), rings, doorbell);
            side.or_else(|e| invalid(&format!("a switch port: {e}")))
        };
        let switch_side = side(self.index, (tx, rx), &doorbell, 0)?;
        switch_side.set_vnet_hdr_len(self.header);
        let host = self.host.map(|host| {
            let doorbell = fds.take_doorbell(host)?;
            let first = counters_of_sides(shape)[0];
            let switch_side = side(WIRE_PROGRAM, (host_tx, host_rx), &doorbell, first)?;
            Ok(HostRings { doorbell, switch_side })
        });
        let host_rings = host.transpose()?;
        let port = ValePort {
            id: id.clone(),
            key: self.key,
            is_member: self.is_member,
            doorbell,
            switch_side,
            host_rings,
            attachment: self.attachment.map(|(interface, side, polling)| AttachedInterface {
                interface,
                side,
                polling,
            }),
            is_wrapped: self.is_wrapped,
        };
        let port = port.with(Record { counters: Some(page), ..record });
        port.apply_offsets();
        Ok(port)
    }
}

impl ValeState {
    /// Refuses to hand over what a successor cannot take over.
    pub(crate) fn check_hand_over(&self) -> Result<(), Refusal> {
        if !self.has_retired() {
            return Ok(());
        }
        refuse(EBUSY, "a thread of the switches waits for memory of a program: try again, or end that program")
    }

    /// Returns what the MAC tables contain, before [`ValeState::save`].
    pub(crate) fn table_marks(&self) -> TableMarks {
        self.switches.iter().map(|(key, switch)| (key.clone(), switch.table.mark())).collect()
    }

    pub(crate) fn save<'a>(&'a self, fds: &mut Outgoing<'a>) -> SavedSwitches {
        let now = Instant::now();
        let save = |(key, switch): (&SwitchKey, &Switch)| {
            let left = switch.next_tick.map(|tick| tick.saturating_duration_since(now).as_millis() as u64);
            let addresses = saved_addresses(switch, &TableMark::default());
            SavedSwitch { key: key.clone(), number: switch.number, next_tick: left, addresses, former: switch.former }
        };
        let settings = self.settings.as_requests(|_| true);
        SavedSwitches {
            switches: self.switches.iter().map(save).collect(),
            settings: settings.into_iter().map(|(scope, request)| (scope, request.encode())).collect(),
            persistent: self.persistent.save(fds),
            threads: self.workers.changed_plan().map(|plan| (plan.threads, plan.cpus.clone())),
        }
    }

    /// Rebuilds the switches of the ports in `registry`, and starts threads, which have nothing to do yet.
    pub(crate) fn restore(
        &mut self,
        saved: SavedSwitches,
        registry: &Registry,
        fds: &mut Incoming,
    ) -> Result<(), Refusal> {
        self.persistent = PersistentState::restore(saved.persistent, fds)?;
        for port in &self.persistent.ports {
            port.apply_by_kernel(registry.get::<ValePort>(&port.host_end).map(|host| &**host));
        }
        for (scope, bytes) in saved.settings {
            let Ok(request) = ValeRequest::decode(&bytes) else { return invalid("a setting of a switch") };
            self.settings.take_over(scope, request)?;
        }
        if let Some((threads, cpus)) = saved.threads {
            let plan = ThreadConfig { threads, cpus };
            plan.check().or_else(|why| invalid(&why))?;
            self.workers.take_over_plan(plan);
        }
        for port in registry.all::<ValePort>().filter(|port| port.is_member) {
            port.set_policy(self.settings.active_policy(&port.key));
            self.add_restored(&port.key, &port.switch_side)?;
            if let (Some(hidden), Some(host)) = (port.id.as_persistent(), &port.host_rings) {
                let Some(wire) = self.persistent.wire(hidden) else { return invalid("the host rings of a port") };
                self.add_restored(&wire, &host.switch_side)?;
            }
            let nic = port.attachment.as_ref().and_then(|attachment| registry.nic(&attachment.interface));
            self.set_node(&port.key, port.index(), nic.and_then(|nic| nic.numa_node));
        }
        for SavedSwitch { key, number, next_tick, addresses, former } in saved.switches {
            let Some(switch) = self.switches.get_mut(&key) else { return invalid("a switch has no ports") };
            (switch.number, switch.former) = (number, former);
            add_addresses(switch, addresses);
            switch.next_tick = next_tick.map(|left| Instant::now() + Duration::from_millis(left.min(MAX_TICK)));
        }
        if self.switches.is_empty() { Ok(()) } else { self.workers.start().map(drop) }
    }

    /// Makes a port a member of its switch.
    fn add_restored(&mut self, key: &ValeKey, port: &Arc<SwitchPort>) -> Result<(), Refusal> {
        if self.member(&key.switch_key(), port.index()).is_some() {
            return invalid("two ports of a switch have the same number");
        }
        self.add(key, port);
        Ok(())
    }

    /// Stops forwarding, and returns where it stopped; `marks`: what the successor knows. [`ValeState::publish`] goes
    /// on.
    pub(crate) fn stop_for_successor(
        &mut self,
        registry: &Registry,
        marks: &TableMarks,
    ) -> Result<SwitchPositions, Refusal> {
        if !self.stop_threads() {
            return refuse(EBUSY, "a thread of the switches waits for memory of a program: try again, or end it");
        }
        let of_port = |port: &Port<ValePort>| {
            let host = port.host_rings.as_ref().map(|host| host.switch_side.positions());
            (port.id.clone(), port.switch_side.positions(), host)
        };
        let ports = registry.all::<ValePort>().map(of_port);
        let changed = self
            .switches
            .iter()
            .filter_map(|(key, switch)| Some((key.clone(), saved_addresses(switch, marks.get(key)?))));
        let addresses = changed.collect();
        Ok(SwitchPositions { ports: ports.collect(), addresses })
    }

    /// Goes on where the rings say that another process stopped, before it could count its last batches.
    pub(crate) fn recover_positions(&mut self, registry: &Registry) {
        for port in registry.all::<ValePort>() {
            let host = port.host_rings.as_ref().map(|host| &host.switch_side);
            [Some(&port.switch_side), host].into_iter().flatten().for_each(|side| side.recover_positions());
        }
        self.switches.values_mut().for_each(Switch::settle_after_crash);
    }

    /// Takes over where another process stopped.
    pub(crate) fn take_positions(&mut self, from: SwitchPositions, registry: &Registry) -> Result<(), Refusal> {
        if from.ports.len() != registry.all::<ValePort>().count() {
            return invalid("positions of a switch port are missing");
        }
        for (id, own, host) in &from.ports {
            let sets = |port: &Port<ValePort>| {
                let of_host = match (&port.host_rings, host) {
                    (Some(rings), Some(positions)) => rings.switch_side.set_positions(positions),
                    (rings, positions) => rings.is_none() && positions.is_none(),
                };
                of_host && port.switch_side.set_positions(own)
            };
            if !registry.get::<ValePort>(id).is_some_and(sets) {
                return invalid("the positions of a switch port");
            }
        }
        for (key, addresses) in from.addresses {
            let Some(switch) = self.switches.get(&key) else { return invalid("the addresses of a switch") };
            add_addresses(switch, addresses);
        }
        Ok(())
    }
}

fn saved_addresses(switch: &Switch, since: &TableMark) -> Vec<SavedAddress> {
    let save = |MacEntry { mac, vlan, port, age }| (mac, vlan, port, age);
    switch.table.entries_since(since).into_iter().map(save).collect()
}

fn add_addresses(switch: &Switch, addresses: Vec<SavedAddress>) {
    switch.table.add(addresses.into_iter().map(|(mac, vlan, port, age)| MacEntry { mac, vlan, port, age }));
}

/// Milliseconds after which addresses age by a step at most.
const MAX_TICK: u64 = unetmap_core::control::vale::MAX_AGE as u64 * 1000;
