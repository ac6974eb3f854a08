// SPDX-License-Identifier: BSD-2-Clause
//! Keeps the kernel's path between persistent ports ([`super::kernel_path`]) in the state of ports and tables.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use unetmap_switch::fdb::Mac;
use unetmap_switch::port::counters::ByKernel;
use unetmap_sys::kernel;
use unetmap_sys::kernel_path::{Forwarded, Found, KnownAddress, MAX_PORTS};

use super::ValeKey;
use super::kernel_path::{Candidate, KernelPath, places_of, ports_of, state_of};
use super::persistent::PersistentPort;
use super::port::ValePort;
use crate::knobs::Admode;
use crate::ports::Daemon;
use crate::privileged;
use crate::tuning::kernel_path::{INTERVAL, LOOKS_PER_AGE};

impl Daemon {
    /// Whether persistent ports are to be made for the kernel's path.
    pub(super) fn wants_kernel_path(&self) -> bool {
        self.knobs.vale_kernel() && self.knobs.admode() == Admode::Best && self.has_kernel_path()
    }

    fn has_kernel_path(&self) -> bool {
        self.vale.kernel_path.obstacle.is_none()
            && !kernel::KERNEL_PATH.is_newer_than_kernel()
            && privileged::xdp_obstacle().is_none()
    }

    /// The ports that can take part now; those that are alone in their switch have nothing to forward.
    fn candidates(&self) -> Vec<Candidate> {
        if !self.wants_kernel_path() {
            return Vec::new();
        }
        let all = self.vale.persistent.ports.iter().filter_map(|port| self.candidate(port));
        let all: Vec<Candidate> = all.take(MAX_PORTS).collect();
        let mut of_switch: BTreeMap<u32, usize> = BTreeMap::new();
        all.iter().for_each(|one| *of_switch.entry(one.switch).or_default() += 1);
        all.into_iter().filter(|one| of_switch[&one.switch] > 1).collect()
    }

    fn candidate(&self, port: &PersistentPort) -> Option<Candidate> {
        let (key, vale) = (port.attached.as_ref()?, &self.vale);
        let host = self.registry.get::<ValePort>(&port.host_end).filter(|host| host.is_at(key))?;
        // A thread may have the interface for a moment.
        let nic = self.registry.nic(&host.attachment.as_ref()?.interface);
        let is_relayed = nic.map_or_else(|| vale.kernel_path.has(port.hidden), |nic| nic.is_relayed());
        let has_rules = vale.settings.of(key).is_some_and(|rules| rules.rules_for_packets().is_some());
        let switch = vale.switches.get(&key.switch_key()).filter(|_| is_relayed && !has_rules)?;
        Some(Candidate { hidden: port.hidden, switch: switch.id, index: host.index(), table: switch.table.clone() })
    }

    /// Writes what lasts and has changed, and has it in force in the kernel: before the answer.
    pub(crate) fn after_work(&mut self) {
        self.keep_lasting();
        self.keep_kernel_path();
    }

    /// Brings the kernel's path into the state of the ports.
    fn keep_kernel_path(&mut self) {
        let nothing = self.vale.persistent.ports.is_empty() && self.vale.kernel_path.ports().is_empty();
        // Until all are served again, it goes on with what an earlier daemon has set.
        if nothing || !self.vale.returning.is_empty() || !self.has_kernel_path() {
            return;
        }
        let candidates = self.candidates();
        if self.vale.kernel_path.ports.as_ref() != Some(&ports_of(&candidates)) {
            self.set_kernel_path(&candidates);
        }
    }

    /// Brings the kernel's path into the state of the switches' tables, if it is time. Returns the time until the next
    /// call is due; `None`: nothing takes part.
    pub(crate) fn follow_tables(&mut self) -> Option<Duration> {
        let path = &mut self.vale.kernel_path;
        if path.ports().is_empty() {
            return None;
        }
        let now = Instant::now();
        if let Some(left) = path.looked.and_then(|looked| (looked + INTERVAL).checked_duration_since(now))
            && !left.is_zero()
        {
            return Some(left);
        }
        path.looked = Some(now);
        let candidates = self.candidates();
        let path = &self.vale.kernel_path;
        // Addresses that are in use do not age.
        let age = self.vale.settings.least_age();
        let refreshes = age.zip(path.set).is_some_and(|(age, set)| now - set >= age / LOOKS_PER_AGE);
        if refreshes || path.is_behind(&candidates) {
            self.set_kernel_path(&candidates);
        }
        Some(INTERVAL)
    }

    /// Reads the counts of the kernel's path.
    pub(crate) fn count_kernel_path(&mut self) {
        if !self.vale.kernel_path.ports().is_empty() {
            let candidates = self.candidates();
            self.set_kernel_path(&candidates);
        }
    }

    fn set_kernel_path(&mut self, candidates: &[Candidate]) {
        let ports = ports_of(candidates);
        let Some(hidden) = self.vale.persistent.hidden_namespace.clone() else {
            self.vale.kernel_path = KernelPath::default();
            return;
        };
        let read = candidates.iter().map(|one| (one.switch, state_of(&one.table))).collect();
        let places = places_of(candidates);
        match privileged::forward_in_kernel(&*hidden, ports.clone(), places.clone()) {
            Ok(found) => self.note_forwarded(found, &ports),
            Err(e) => {
                tracing::warn!("packets between persistent ports go through the switches' threads: {e}");
                let _ = privileged::forward_in_kernel(&*hidden, Vec::new(), Vec::new());
                let (ports, obstacle) = (Some(Vec::new()), Some(e.to_string()));
                self.vale.kernel_path = KernelPath { ports, obstacle, ..KernelPath::default() };
                return;
            }
        }
        if ports != self.vale.kernel_path.ports() {
            tracing::info!(
                ports = ports.len(),
                addresses = places.len(),
                "the kernel forwards between persistent ports"
            );
        }
        let (looked, set) = (self.vale.kernel_path.looked, Some(Instant::now()));
        self.vale.kernel_path = KernelPath { ports: Some(ports), places, read, looked, set, obstacle: None };
    }

    /// Adds what the kernel has counted since the last time to the ports' counters, and has addresses that sent packets
    /// not age.
    fn note_forwarded(&mut self, found: Found, now: &[(u32, u32)]) {
        let Daemon { vale, registry, .. } = self;
        let before: BTreeMap<u32, u32> = vale.kernel_path.ports().iter().copied().collect();
        let seen: BTreeMap<u32, Forwarded> = found.forwarded.into_iter().collect();
        let now: BTreeMap<u32, u32> = now.iter().copied().collect();
        for port in &mut vale.persistent.ports {
            if let (Some(total), Some(last)) = (seen.get(&port.hidden), port.seen_by_kernel) {
                let more = total.combine(last, u64::saturating_sub);
                port.by_kernel = port.by_kernel.combine(more, u64::saturating_add);
                port.apply_by_kernel(registry.get::<ValePort>(&port.host_end).map(|host| &**host));
            }
            // One that begins to take part, or comes to another switch, is counted anew.
            let stays = now.contains_key(&port.hidden) && now.get(&port.hidden) == before.get(&port.hidden);
            let total = seen.get(&port.hidden).filter(|_| stays);
            port.seen_by_kernel = Some(total.copied().unwrap_or_default());
        }
        let ports: BTreeMap<u32, (&ValeKey, u8)> = vale
            .persistent
            .ports
            .iter()
            .filter_map(|port| Some((port.hidden, (port.attached.as_ref()?, port.place.1))))
            .collect();
        let places = vale.kernel_path.places.iter().map(|place| ((place.switch, place.mac), place.port));
        let places: BTreeMap<(u32, [u8; 6]), u32> = places.collect();
        for address in found.used {
            let at = places.get(&address).and_then(|hidden| ports.get(hidden));
            let Some((table, index)) =
                at.and_then(|(key, index)| Some((&vale.switches.get(&key.switch_key())?.table, *index)))
            else {
                continue;
            };
            let mac = Mac::new(address.1);
            if table.port_of(mac) == Some(index) {
                table.learn(mac, index);
            }
        }
    }

    /// Has the switches know the addresses by which the kernel has forwarded packets while no daemon ran.
    pub(super) fn learn_from_kernel(&mut self) {
        let persistent = &self.vale.persistent;
        let Some(hidden) = persistent.hidden_namespace.clone().filter(|_| self.has_kernel_path()) else { return };
        let ends: Vec<u32> = persistent.ports.iter().map(|port| port.hidden).collect();
        let places = privileged::places_in_kernel(&*hidden, ends).unwrap_or_else(|e| {
            tracing::info!("the kernel has left no addresses of persistent ports: {e}");
            Vec::new()
        });
        for KnownAddress { mac, port, .. } in places {
            let Some(port) = persistent.get(port) else { continue };
            let switch = port.attached.as_ref().and_then(|key| self.vale.switches.get(&key.switch_key()));
            switch.into_iter().for_each(|switch| switch.table.learn(Mac::new(mac), port.place.1));
        }
        self.keep_kernel_path();
    }
}

impl PersistentPort {
    /// Has the host end count what the kernel has forwarded.
    pub(super) fn apply_by_kernel(&self, host: Option<&ValePort>) {
        let Forwarded { sent, sent_bytes, received, received_bytes } = self.by_kernel;
        let counts = ByKernel { sent, sent_bytes, received, received_bytes };
        host.into_iter().for_each(|host| host.switch_side.set_by_kernel(counts));
    }
}
