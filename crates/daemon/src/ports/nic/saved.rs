// SPDX-License-Identifier: BSD-2-Clause
//! Interfaces as the daemon hands them to its successor ([`crate::handover`]).
//!
//! Sockets, namespaces and pages are descriptors. The positions of a socket are in its rings, which the kernel and the
//! program share: packets move while the daemon is replaced. Programs, disabled offloads and veth pairs are the
//! broker's, which stays while an interface is open: only their handles are handed over.

use std::sync::Arc;

use serde::{Deserialize, Serialize};
use unetmap_mem::TxFramesPage;
use unetmap_sys::xdp::{Mark, Noted};
use unetmap_sys::xsk::Way;

use super::host_rings::SavedHostRings;
use super::packets::SavedPackets;
use super::queue::OpenQueue;
use super::relay::{Relay, SavedRelay};
use super::{Nic, NicKey, XdpConfig};
use crate::broker::Handle;
use crate::descriptors::{FdIndex, Incoming, Outgoing, invalid};
use crate::knobs::Admode;
use crate::privileged::{Deadline, KeptXdp, Undo, Xdp};
use crate::refusal::{Refusal, refuse_lack};
use crate::region::SharedPage;
use crate::registry::{Record, Regions};

/// An interface.
#[derive(Serialize, Deserialize)]
pub(crate) struct SavedNic {
    name: String,
    netns: FdIndex,
    forwards: bool,
    /// From version 16 on.
    #[serde(default)]
    way: Way,
    queues: Vec<Option<SavedQueue>>,
    xdp: Option<KeptXdp>,
    offloads: Option<Handle>,
    merging: Option<Handle>,
    offloads_stay_on: bool,
    /// Missing in states of earlier daemons.
    #[serde(default)]
    unfinished: Option<String>,
    relay: Option<SavedRelay>,
    host: SavedHostRings,
    /// From version 19 on.
    #[serde(default)]
    packets: Option<SavedPackets>,
    mark: Mark,
    xdp_config: Option<XdpConfig>,
    copy_reason: Option<String>,
    added_queues: u32,
    other_queues: Option<String>,
    admode: Admode,
    numa_node: Option<u32>,
    up: bool,
    /// Missing in states of earlier daemons.
    #[serde(default)]
    mtu: u32,
    tx_dropped_before: u64,
    gone: bool,
    /// Missing in states of earlier daemons, as the next one.
    #[serde(default)]
    is_hidden: bool,
    #[serde(default)]
    lost: Noted,
}

#[derive(Serialize, Deserialize)]
struct SavedQueue {
    socket: FdIndex,
    headroom: u32,
    in_xdp_map: bool,
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
            unfinished: self.unfinished.clone(),
            relay: self.relay.as_ref().map(|relay| relay.save(fds)),
            host: self.host.save(fds),
            packets: self.packets.as_ref().map(|packets| packets.save(fds)),
            mark: self.mark,
            xdp_config: self.xdp_config,
            copy_reason: self.copy_reason.clone(),
            added_queues: self.added_queues,
            other_queues: self.other_queues.clone(),
            admode: self.admode,
            numa_node: self.numa_node,
            up: self.up,
            mtu: self.mtu,
            tx_dropped_before: self.tx_dropped_before,
            gone: self.gone,
            is_hidden: self.is_hidden,
            lost: self.lost,
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
    pub(super) fn deadlines(&self) -> impl Iterator<Item = &Arc<Deadline>> {
        let relay = self.relay.iter().filter_map(Relay::deadline);
        self.xdp.iter().map(|xdp| xdp.deadline()).chain(relay).chain(self.host.deadlines())
    }
}

impl SavedNic {
    /// Rebuilds the interface, and the page of its transmitted frames; its broker is asked for nothing yet.
    pub(in crate::ports) fn restore(
        self,
        mut record: Record,
        key: NicKey,
        regions: &Regions,
        fds: &mut Incoming,
    ) -> Result<(Nic, SharedPage), Refusal> {
        let region = regions.existing(record.region)?;
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
        let host_queues = (pairs - shape.nic_pairs()) as u32;
        let host = self.host.restore(&netns, (key.index, host_queues), fds)?;
        let relay = self.relay.map(|relay| relay.restore(&netns, fds)).transpose()?;
        let packets = self.packets.map(|packets| packets.restore(fds)).transpose()?;
        let closed = Nic::closed((key, self.name, scope), netns, region, endpoint, (&sent, self.mark))?;
        let mut nic = Nic {
            way: self.way,
            forwards: self.forwards,
            xdp: self.xdp.map(|kept| Arc::new(Xdp::of(kept))),
            offloads: self.offloads.map(Undo::of),
            merging: self.merging.map(Undo::of),
            offloads_stay_on: self.offloads_stay_on,
            unfinished: self.unfinished,
            relay,
            host,
            packets,
            xdp_config: self.xdp_config,
            copy_reason: self.copy_reason,
            added_queues: self.added_queues,
            other_queues: self.other_queues,
            admode: self.admode,
            numa_node: self.numa_node,
            up: self.up,
            mtu: self.mtu,
            tx_dropped_before: self.tx_dropped_before,
            gone: self.gone,
            is_hidden: self.is_hidden,
            lost: self.lost,
            ..closed
        };
        for (pair, saved) in self.queues.iter().enumerate() {
            if let Some(saved) = saved {
                nic.take_queue(pair, saved, fds)?;
            }
        }
        Ok((nic, sent))
    }
}
