// SPDX-License-Identifier: BSD-2-Clause
//! The state of all interfaces, and as the daemon hands it to its successor ([`crate::handover`]).

use std::collections::BTreeMap;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use unetmap_core::errno::ENXIO;
use unetmap_sys::link::{LinkEvent, LinkWatch};
use unetmap_sys::netns::Netns;

use super::abandoned::AbandonedNamespaces;
use super::faults::Report;
use super::heartbeat::{Heartbeat, report_delay};
use super::kernel_work::{Done, DoneSender, KernelWork};
use super::queue_count::{QueueCounts, SavedCounts};
use super::saved_settings::SavedSettings;
use super::settings::InterfaceSettings;
use super::survey::Surveys;
use super::{Nic, NicPort};
use crate::descriptors::{FdIndex, Incoming, Outgoing, invalid};
use crate::ports::Registry;
use crate::ports::vale::PersistentState;
use crate::privileged;
use crate::refusal::{Refusal, refuse};

/// In place of a namespace's number: all namespaces that have interfaces with settings. No namespace has this number.
pub(crate) const ALL_NAMESPACES: u64 = 0;

/// The state of all interfaces.
#[derive(Default)]
pub(crate) struct NicState {
    pub(super) last_serial: u64,
    /// By namespace: the changes of its interfaces.
    pub(crate) watches: BTreeMap<u64, NamespaceWatch>,
    pub(super) queue_counts: QueueCounts,
    /// Filters, busy polling, headers, ways.
    pub(crate) settings: InterfaceSettings,
    /// Threads that open and close interfaces.
    pub(crate) work: KernelWork,
    /// Threads that read about interfaces.
    pub(crate) surveys: Surveys,
    /// Namespaces that only attached interfaces keep.
    pub(crate) abandoned: AbandonedNamespaces,
    /// Renews the deadlines of the attached programs.
    pub(crate) heartbeat: Heartbeat,
}

/// The changes of all interfaces of one namespace.
pub(crate) struct NamespaceWatch {
    pub(crate) watch: LinkWatch,
    pub(super) netns: Arc<Netns>,
    /// Whether the event loop waits for it.
    pub(crate) in_event_loop: bool,
    /// Changes that are handled when all of its open interfaces are here.
    pub(super) deferred: Vec<LinkEvent>,
}

/// State of all interfaces.
#[derive(Serialize, Deserialize)]
pub(crate) struct SavedNics {
    last_serial: u64,
    /// By namespace: the socket of its changes, and the namespace.
    watches: Vec<(u64, FdIndex, FdIndex)>,
    queue_counts: SavedCounts,
    settings: SavedSettings,
    /// Namespaces with attached interfaces that were in use.
    used: Vec<u64>,
}

impl NicState {
    /// Whether anything is set for an interface.
    pub(crate) fn has_settings(&self) -> bool {
        !self.settings.is_empty()
    }

    /// Has threads do work from now on, and tell of faults.
    pub(crate) fn use_threads(&mut self) -> io::Result<()> {
        self.work.use_threads()?;
        let report =
            |sender: DoneSender| -> Report { Arc::new(move |nic, fault| sender.send(Done::Faulty(nic, fault))) };
        self.heartbeat.report_to(self.work.sender().map(report));
        Ok(())
    }

    /// Watches the interfaces of a namespace.
    pub(crate) fn watch(&mut self, netns: &Arc<Netns>) -> Result<(), Refusal> {
        if self.watches.contains_key(&netns.id()) {
            return Ok(());
        }
        let watch = privileged::watch_links(netns);
        let watch = watch.or_else(|e| refuse(ENXIO, format!("its changes cannot be watched: {e}")))?;
        let watch = NamespaceWatch { watch, netns: netns.clone(), in_event_loop: false, deferred: Vec::new() };
        self.watches.insert(netns.id(), watch);
        Ok(())
    }

    /// Closes the watch of a namespace in which no interface is open. A watch keeps the namespace alive, with all that
    /// is in it.
    pub(crate) fn unwatch_if_unused(&mut self, registry: &Registry, persistent: &PersistentState, netns: u64) {
        let is_used = registry.all::<NicPort>().any(|port| port.key.netns == netns);
        if !is_used && !persistent.is_hidden_namespace(netns) {
            self.watches.remove(&netns);
        }
    }
}

impl NicState {
    pub(crate) fn save<'a>(&'a self, fds: &mut Outgoing<'a>) -> SavedNics {
        let watches = self.watches.iter().map(|(id, watch)| (*id, fds.add(&watch.watch), fds.add(&*watch.netns)));
        let (watches, queue_counts) = (watches.collect(), self.queue_counts.save());
        let (settings, used) = (self.settings.save(fds), self.abandoned.save());
        SavedNics { last_serial: self.last_serial, watches, queue_counts, settings, used }
    }

    /// Takes over what is known of all interfaces, which are in `registry` already.
    pub(crate) fn restore(
        &mut self,
        saved: SavedNics,
        registry: &mut Registry,
        fds: &mut Incoming,
    ) -> Result<(), Refusal> {
        self.last_serial = saved.last_serial;
        self.queue_counts.restore(saved.queue_counts);
        self.settings = InterfaceSettings::restore(saved.settings, fds)?;
        self.abandoned = AbandonedNamespaces::restore(saved.used);
        for (id, watch, netns) in saved.watches {
            let (watch, netns) = (LinkWatch::from_fd(fds.take(watch)?), Arc::new(fds.take_netns(netns)?));
            if netns.id() != id {
                return invalid("the namespace of a watch");
            }
            self.watches.insert(id, NamespaceWatch { watch, netns, in_event_loop: false, deferred: Vec::new() });
        }
        for nic in registry.all_mut::<NicPort>().filter_map(|port| port.here_mut()) {
            if !self.watches.contains_key(&nic.key.netns) {
                return invalid("nobody watches an interface");
            }
            (nic.heartbeat, nic.queue_counts) = (self.heartbeat.clone(), self.queue_counts.clone());
            // The filter is in the program that is attached, and the kernel's sockets busy poll already.
            let Some(settings) = self.settings.kept_of(nic.key.netns, nic.key.index) else { continue };
            (nic.filter, nic.busy_poll) = (settings.filter.clone(), settings.busy_poll);
            nic.found = settings.found.clone();
            nic.set_stays(settings.failure.clone());
            if nic.xdp_config.is_some() && nic.xdp.is_none() {
                nic.xdp = nic.staying_program();
            }
        }
        Ok(())
    }

    /// Renews the deadlines of the interfaces' programs from now on: the broker is this process's now. The former
    /// process may have been about to close what no session has bound.
    pub(crate) fn go_on(&mut self, registry: &mut Registry) {
        self.work.unneeded.extend(registry.all::<NicPort>().map(|port| port.key));
        let mut over = Duration::ZERO;
        for nic in registry.all_mut::<NicPort>().filter_map(|port| port.here_mut()) {
            let in_use = |nic: &Nic, pair: usize| nic.queues[pair].as_ref().is_some_and(|open| open.in_xdp_map);
            let mut pairs = (0..nic.queues.len()).filter(|pair| in_use(nic, *pair)).collect::<Vec<_>>().into_iter();
            if let Err(e) = pairs.try_for_each(|pair| nic.watch_progress(pair)) {
                tracing::error!(name = nic.name, "its queues do not count as served: {e}");
            }
            nic.watch_frames();
            for deadline in nic.deadlines() {
                match self.heartbeat.go_on(deadline) {
                    Ok(passed) => over = over.max(passed),
                    Err(e) => tracing::error!(name = nic.name, "its programs will pass all frames: {e}"),
                }
            }
        }
        report_delay(over);
        let records = self.settings.staying_programs().filter_map(|(_, stays)| stays.bypass.as_ref());
        records.for_each(|record| record.look());
    }
}
