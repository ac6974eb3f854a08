// SPDX-License-Identifier: BSD-2-Clause
//! Persistent ports: switch ports that outlive the programs that open them, and that are interfaces of the host.
//!
//! ```text
//! no program has it open     switch == host end == [thread for each queue] == hidden end ------ v0
//! a program has it open      switch == program end
//!                            host rings == wire == host end == [threads] == hidden end ------ v0
//! ```
//! The interface is a veth pair. Its hidden end is in the *hidden network namespace*, which only the daemon has open.
//! The pair lasts when the daemon ends, and the next one goes on with it ([`super::lasting`]). The *host end* is the
//! switch port to which the hidden end is attached.
//!
//! The *program end* is a switch port like any other, with host rings. It exists while it is open, in a region that
//! lasts as long as the persistent port. [`super::persistent_ends::connect_ends`] gives the place in the switch (index,
//! addresses, settings) to one of the two ends. While the program end has it, a switch of two ports that learns no
//! addresses, the *wire*, connects the host rings with the host end. While the port is attached to no switch, its place
//! is in a switch of its own.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use unetmap_core::errno::ENXIO;
use unetmap_switch::fdb::MacTable;
use unetmap_sys::kernel_path::Forwarded;
use unetmap_sys::link::Link;
use unetmap_sys::netns::Netns;

use super::ValeKey;
use super::port::{OWN_SWITCH, WIRE};
use crate::caller::Caller;
use crate::descriptors::{FdIndex, Incoming, Outgoing};
use crate::ports::PortKey;
use crate::ports::nic::find_link;
use crate::privileged;
use crate::refusal::{Refusal, refuse};
use crate::region::{DAEMON_UID, RegionKey, Scope};
use crate::shape::EndpointShape;

/// Bytes of the longest interface name.
pub(super) const MAX_NAME: usize = 15;

/// Of the ends of a persistent port, whichever switch and owner they have at a time.
pub(super) const DAEMON_SCOPE: Scope = Scope { uid: DAEMON_UID, netns: 0 };

/// The persistent ports, attached or not.
#[derive(Default)]
pub(crate) struct PersistentState {
    pub(super) ports: Vec<PersistentPort>,
    /// Ports of an earlier daemon that could not be served again.
    pub(super) unserved: Vec<LastingPort>,
    /// The namespace of the hidden ends, while there are any.
    pub(super) hidden_namespace: Option<Arc<Netns>>,
}

/// The persistent ports as the daemon hands them to its successor.
#[derive(Serialize, Deserialize)]
pub(super) struct SavedPersistent {
    ports: Vec<PersistentPort>,
    hidden_namespace: Option<FdIndex>,
}

/// A persistent port as the next daemon finds it described. Name and shape are also in its mark ([`super::lasting`]).
#[derive(Clone, Serialize, Deserialize)]
pub(super) struct LastingPort {
    /// Interface index of the hidden end.
    pub(super) hidden: u32,
    pub(super) name: String,
    /// Who pays for its memory.
    pub(super) scope: Scope,
    pub(super) header: u8,
    pub(super) attached: Option<ValeKey>,
    /// Its number in the switch.
    pub(super) index: u8,
    /// Whether its visible end was made with its offloads; missing in files of earlier daemons.
    #[serde(default)]
    pub(super) whole: bool,
    /// The processors that poll its queues, if some do.
    pub(super) polling: Option<BTreeMap<u16, u32>>,
}

/// A persistent port. Its visible end is the host's, which may rename it, and move it to any namespace.
#[derive(Clone, Serialize, Deserialize)]
pub(super) struct PersistentPort {
    /// Interface index of the hidden end.
    pub(super) hidden: u32,
    /// The name of the visible end when the port was created or last attached.
    pub(super) name: String,
    pub(super) shape: EndpointShape,
    /// Kept while the port exists.
    pub(super) region: RegionKey,
    /// Bytes of the virtio-net header of packets that programs send and receive.
    pub(super) header: u8,
    /// In its place for programs of this user, until the last of them closes the port.
    pub(super) own_header: Option<(u32, u8)>,
    /// The port of a switch that it is.
    pub(super) attached: Option<ValeKey>,
    /// Where one of its ends is a member, and the index there.
    pub(super) place: (ValeKey, u8),
    /// The host end.
    pub(super) host_end: PortKey,
    /// Whether its visible end was made with its offloads: then its frames are completed on their way to the rings.
    #[serde(default)]
    pub(super) whole: bool,
    /// Its packets that the kernel has forwarded, and the counts of the kernel's program when they were read last;
    /// `None`: it may have counted for an earlier daemon. Missing in states of earlier daemons.
    #[serde(default)]
    pub(super) by_kernel: Forwarded,
    #[serde(default)]
    pub(super) seen_by_kernel: Option<Forwarded>,
}

impl PersistentPort {
    /// Its place while it is attached to no switch.
    pub(super) fn idle_key(hidden: u32, name: &str) -> ValeKey {
        ValeKey { scope: DAEMON_SCOPE, switch: format!("{OWN_SWITCH}{hidden}"), port: name.into() }
    }

    /// The place where one of its ends is to be a member.
    pub(super) fn key(&self) -> ValeKey {
        self.attached.clone().unwrap_or_else(|| Self::idle_key(self.hidden, &self.name))
    }

    pub(super) fn wire_key(&self) -> ValeKey {
        let key = Self::idle_key(self.hidden, &self.name);
        ValeKey { switch: format!("{}{WIRE}", key.switch), ..key }
    }
}

/// Returns the table of a switch that is created, for `addresses` addresses.
pub(super) fn table_of(key: &ValeKey, addresses: usize) -> MacTable {
    if key.switch.ends_with(WIRE) { MacTable::without_learning() } else { MacTable::with_capacity(addresses) }
}

/// A persistent port in JSON.
#[derive(Serialize)]
pub(crate) struct PersistentSnapshot {
    pub(crate) name: String,
    tx_rings: u16,
    rx_rings: u16,
    tx_slots: u32,
    rx_slots: u32,
    /// The port of a switch that it is.
    attached: Option<String>,
    /// Why it cannot be used, while a daemon that was started serves the ports of the one before again.
    #[serde(skip_serializing_if = "Option::is_none")]
    state: Option<&'static str>,
}

impl PersistentSnapshot {
    fn of(name: &str, shape: EndpointShape, attached: Option<&ValeKey>) -> PersistentSnapshot {
        PersistentSnapshot {
            name: name.into(),
            tx_rings: shape.tx_rings,
            rx_rings: shape.rx_rings,
            tx_slots: shape.tx_slots.get(),
            rx_slots: shape.rx_slots.get(),
            attached: attached.map(ValeKey::name),
            state: None,
        }
    }

    /// Of a port that is not served yet.
    pub(super) fn of_left(port: &LastingPort, shape: EndpointShape) -> PersistentSnapshot {
        let state = Some("being served again");
        PersistentSnapshot { state, ..PersistentSnapshot::of(&port.name, shape, port.attached.as_ref()) }
    }
}

impl PersistentState {
    pub(super) fn save<'a>(&'a self, fds: &mut Outgoing<'a>) -> SavedPersistent {
        let hidden_namespace = self.hidden_namespace.as_deref().map(|netns| fds.add(netns));
        SavedPersistent { ports: self.ports.clone(), hidden_namespace }
    }

    pub(super) fn restore(saved: SavedPersistent, fds: &mut Incoming) -> Result<PersistentState, Refusal> {
        let hidden_namespace = saved.hidden_namespace.map(|netns| fds.take_netns(netns)).transpose()?;
        let unserved = Vec::new();
        Ok(PersistentState { ports: saved.ports, unserved, hidden_namespace: hidden_namespace.map(Arc::new) })
    }

    pub(super) fn is_empty(&self) -> bool {
        self.ports.is_empty() && self.unserved.is_empty()
    }

    pub(super) fn get(&self, hidden: u32) -> Option<&PersistentPort> {
        self.ports.iter().find(|port| port.hidden == hidden)
    }

    pub(super) fn get_mut(&mut self, hidden: u32) -> Option<&mut PersistentPort> {
        self.ports.iter_mut().find(|port| port.hidden == hidden)
    }

    fn at(&self, key: &ValeKey) -> Option<&PersistentPort> {
        self.ports.iter().find(|port| port.attached.as_ref() == Some(key))
    }

    /// Returns the persistent port that is this port of a switch, by its hidden end.
    pub(super) fn attached_as(&self, key: &ValeKey) -> Option<u32> {
        self.at(key).map(|port| port.hidden)
    }

    /// Returns the port that connects the host with this port of a switch.
    pub(super) fn host_end(&self, key: &ValeKey) -> Option<&PortKey> {
        self.at(key).map(|port| &port.host_end)
    }

    /// Returns the region of the port with this hidden end.
    pub(super) fn region(&self, hidden: u32) -> Option<RegionKey> {
        self.get(hidden).map(|port| port.region)
    }

    /// Returns the place of the program's host rings.
    pub(super) fn wire(&self, hidden: u32) -> Option<ValeKey> {
        self.get(hidden).map(PersistentPort::wire_key)
    }

    pub(crate) fn is_hidden_namespace(&self, netns: u64) -> bool {
        self.hidden_namespace.as_ref().is_some_and(|hidden| hidden.id() == netns)
    }

    /// Returns the indexes of all hidden ends, if `netns` is their namespace.
    pub(crate) fn hidden_links(&self, netns: u64) -> Vec<u32> {
        let ports = self.ports.iter().filter(|_| self.is_hidden_namespace(netns));
        ports.map(|port| port.hidden).collect()
    }

    /// Returns the persistent port whose visible end is an interface of the caller's namespace, wherever it was
    /// created.
    pub(crate) fn of_link(&self, link: &Link, caller: &Caller) -> Result<Option<u32>, Refusal> {
        let (Some(hidden_namespace), Some(netns)) = (&self.hidden_namespace, caller.netns()) else { return Ok(None) };
        let hidden = privileged::veth_end_in(netns, hidden_namespace, link.index);
        let hidden = hidden.or_else(|e| refuse(ENXIO, format!("looking for the other end of the interface: {e}")))?;
        Ok(hidden.filter(|hidden| self.get(*hidden).is_some()))
    }

    /// Returns the region of a persistent port, by the name of its interface.
    pub(crate) fn region_named(&self, name: &str, caller: &Caller) -> Result<Option<RegionKey>, Refusal> {
        if self.is_empty() {
            return Ok(None);
        }
        let Some(link) = find_link(name, caller)? else { return Ok(None) };
        let hidden = self.of_link(&link, caller)?;
        Ok(hidden.and_then(|hidden| self.region(hidden)))
    }

    pub(super) fn snapshots(&self) -> impl Iterator<Item = PersistentSnapshot> {
        self.ports.iter().map(|port| PersistentSnapshot::of(&port.name, port.shape, port.attached.as_ref()))
    }
}
