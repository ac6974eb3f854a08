// SPDX-License-Identifier: BSD-2-Clause
//! Interfaces as the daemon hands them to its successor ([`crate::handover`]).
//!
//! Sockets, namespaces and pages are descriptors. The positions of a socket are in its rings, which the kernel and the
//! program share: packets move while the daemon is replaced. Programs, disabled offloads and veth pairs are the
//! broker's, which stays while an interface is open: only their handles are handed over.

use std::sync::Arc;

use serde::{Deserialize, Serialize};
use unetmap_mem::TxFramesPage;
use unetmap_sys::link::LinkWatch;
use unetmap_sys::xdp::Mark;
use unetmap_sys::xsk::Way;

use super::abandoned::AbandonedNamespaces;
use super::heartbeat::Heartbeat;
use super::host_rings::SavedHostRings;
use super::open::NamespaceWatch;
use super::queue::OpenQueue;
use super::queue_count::{QueueCounts, SavedCounts};
use super::relay::{Relay, SavedRelay};
use super::saved_settings::SavedSettings;
use super::settings::InterfaceSettings;
use super::{NearGone, Nic, NicKey, NicPort, NicState, XdpConfig};
use crate::broker::Handle;
use crate::descriptors::{FdIndex, Incoming, Outgoing, invalid};
use crate::knobs::Admode;
use crate::ports::Registry;
use crate::privileged::{Deadline, KeptXdp, Undo, Xdp};
use crate::refusal::{Refusal, refuse_lack};
use crate::registry::{Port, Record};

/// An interface.
#[derive(Serialize, Deserialize)]
pub(crate) struct SavedNic {
    name: String,
    netns: FdIndex,
    forwards: bool,
    way: Way,
    queues: Vec<Option<SavedQueue>>,
    xdp: Option<KeptXdp>,
    offloads: Option<Handle>,
    merging: Option<Handle>,
    offloads_stay_on: bool,
    relay: Option<SavedRelay>,
    host: SavedHostRings,
    mark: Mark,
    xdp_config: Option<XdpConfig>,
    copy_reason: Option<String>,
    added_queues: u32,
    other_queues: Option<String>,
    admode: Admode,
    numa_node: Option<u32>,
    up: bool,
    tx_dropped_before: u64,
    gone: bool,
}

#[derive(Serialize, Deserialize)]
struct SavedQueue {
    socket: FdIndex,
    headroom: u32,
    in_xdp_map: bool,
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

impl Nic {
    pub(super) fn save<'a>(&'a self, fds: &mut Outgoing<'a>) -> SavedNic {
        let mut save_queue = |queue: &'a OpenQueue| SavedQueue {
            socket: fds.add(&queue.socket),
            headroom: queue.headroom,
            in_xdp_map: queue.in_xdp_map,
        };
        let queues = self.queues.iter().map(|queue| queue.as_ref().map(&mut save_queue)).collect();
        SavedNic {
            name: self.name.clone(),
            netns: fds.add(&*self.netns),
            forwards: self.forwards,
            way: self.way,
            queues,
            // A program that stays is a setting.
            xdp: self.xdp.as_ref().filter(|_| self.stays.is_none()).map(|xdp| xdp.kept()),
            offloads: self.offloads.as_ref().map(Undo::handle),
            merging: self.merging.as_ref().map(Undo::handle),
            offloads_stay_on: self.offloads_stay_on,
            relay: self.relay.as_ref().map(|relay| relay.save(fds)),
            host: self.host.save(fds),
            mark: self.mark,
            xdp_config: self.xdp_config,
            copy_reason: self.copy_reason.clone(),
            added_queues: self.added_queues,
            other_queues: self.other_queues.clone(),
            admode: self.admode,
            numa_node: self.numa_node,
            up: self.up,
            tx_dropped_before: self.tx_dropped_before,
            gone: self.gone,
        }
    }

    /// Takes over the socket of a ring pair.
    fn take_queue(&mut self, pair: usize, saved: &SavedQueue, fds: &mut Incoming) -> Result<(), Refusal> {
        let shape = self.endpoint.shape;
        let entries = (shape.tx_slots.get(), shape.rx_slots.get());
        if saved.headroom >= self.umem.buffer {
            return invalid("the headroom of a socket");
        }
        let (tx, rx) = self.rings_of(pair);
        let fd = fds.take(saved.socket)?;
        let memory = (&self.umem, saved.headroom);
        let queue = OpenQueue::of_bound(fd, memory, tx, rx, (&self.sent, entries), saved.in_xdp_map);
        self.queues[pair] = Some(queue.or_else(|e| refuse_lack("a socket of an interface cannot be taken over", &e))?);
        Ok(())
    }

    /// The deadlines of all programs that are attached for it.
    fn deadlines(&self) -> impl Iterator<Item = &Arc<Deadline>> {
        let relay = self.relay.iter().filter_map(Relay::deadline);
        self.xdp.iter().map(|xdp| xdp.deadline()).chain(relay).chain(self.host.deadlines())
    }
}

impl SavedNic {
    /// Rebuilds the interface; its broker is asked for nothing yet.
    pub(in crate::ports) fn restore(
        self,
        mut record: Record,
        key: NicKey,
        registry: &Registry,
        fds: &mut Incoming,
    ) -> Result<Port<NicPort>, Refusal> {
        let region = registry.regions.existing(record.region)?;
        let (endpoint, scope) = (record.endpoints.remove(0), record.scope);
        let shape = endpoint.shape;
        let pairs = shape.pairs();
        if self.queues.len() != pairs || endpoint.tx.is_empty() || endpoint.rx.is_empty() {
            return invalid("an interface lacks rings");
        }
        let netns = Arc::new(fds.take_netns(self.netns)?);
        if netns.id() != key.netns {
            return invalid("the namespace of an interface");
        }
        let sent_bytes = TxFramesPage::bytes(usize::from(shape.all_tx()) * shape.tx_slots.get() as usize);
        let sent = record.page.filter(|page| page.range.len() == sent_bytes);
        let Some(sent) = sent else { return invalid("the transmitted frames of an interface") };
        let file = region.fd.try_clone().or_else(|e| refuse_lack("no descriptor for a region's file", &e))?;
        let host_queues = (pairs - shape.nic_pairs()) as u32;
        let host = self.host.restore(&netns, (key.index, host_queues), fds)?;
        let relay = self.relay.map(|relay| relay.restore(&netns, fds)).transpose()?;
        let mut nic = Nic {
            key,
            name: self.name,
            scope,
            region: record.region,
            endpoint,
            sent: TxFramesPage::new(sent.range.clone()),
            netns,
            umem: region.region.umem(),
            region_file: (file, region.region.geometry().ifs.offset),
            filter: None,
            busy_poll: None,
            way: self.way,
            forwards: self.forwards,
            queues: (0..pairs).map(|_| None).collect(),
            xdp: self.xdp.map(|kept| Arc::new(Xdp::of(kept))),
            stays: None,
            offloads: self.offloads.map(Undo::of),
            merging: self.merging.map(Undo::of),
            offloads_stay_on: self.offloads_stay_on,
            relay,
            heartbeat: Heartbeat::default(),
            host,
            mark: self.mark,
            xdp_config: self.xdp_config,
            copy_reason: self.copy_reason,
            queue_counts: QueueCounts::default(),
            added_queues: self.added_queues,
            other_queues: self.other_queues,
            admode: self.admode,
            numa_node: self.numa_node,
            up: self.up,
            tx_dropped_before: self.tx_dropped_before,
            gone: self.gone,
            behind: false,
            near_gone: NearGone::default(),
        };
        for (pair, saved) in self.queues.iter().enumerate() {
            if let Some(saved) = saved {
                nic.take_queue(pair, saved, fds)?;
            }
        }
        Ok(NicPort::new(nic, sent))
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
            nic.stays = settings.failure.clone();
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
        for nic in registry.all_mut::<NicPort>().filter_map(|port| port.here_mut()) {
            let in_use = |nic: &Nic, pair: usize| nic.queues[pair].as_ref().is_some_and(|open| open.in_xdp_map);
            let mut pairs = (0..nic.queues.len()).filter(|pair| in_use(nic, *pair)).collect::<Vec<_>>().into_iter();
            if let Err(e) = pairs.try_for_each(|pair| nic.watch_progress(pair)) {
                tracing::error!(name = nic.name, "its queues do not count as served: {e}");
            }
            for deadline in nic.deadlines() {
                if let Err(e) = self.heartbeat.add(deadline) {
                    tracing::error!(name = nic.name, "its programs will pass all frames: {e}");
                }
            }
        }
    }
}
