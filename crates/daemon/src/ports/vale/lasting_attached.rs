// SPDX-License-Identifier: BSD-2-Clause
//! Attached interfaces outlast the daemon ([`super::lasting`]): the next one attaches them again to the same switch.
//!
//! An interface is that of before if it has its former index and MAC address in its former network namespace, which
//! the broker knows by a number that no other one gets. While no daemon runs, its frames are the host's.

use std::collections::BTreeMap;
use std::sync::Arc;

use unetmap_abi::NmreqRegister;
use unetmap_core::errno::ENXIO;
use unetmap_sys::netns::Netns;

use super::attach_requests::{open_interface, open_persistent};
use super::attached::{connect, disconnect};
use super::port::{Side, ValePort, host_key};
use super::returning::{Attached, LastingAttachment, Polling};
use crate::caller::Caller;
use crate::ports::{Daemon, PortKey, sinks};
use crate::privileged;
use crate::refusal::{Refusal, refuse};
use crate::registry::Port;

impl Port<ValePort> {
    /// Its processors that poll.
    pub(super) fn polling(&self) -> Polling {
        let is_polled = self.attachment.as_ref().is_some_and(|attachment| attachment.polling);
        is_polled.then(|| self.polling_cpus())
    }
}

impl LastingAttachment {
    /// Returns all, and the namespaces of their interfaces.
    pub(super) fn all(daemon: &Daemon) -> (Vec<LastingAttachment>, Vec<Arc<Netns>>) {
        let mut namespaces: BTreeMap<u64, Arc<Netns>> = BTreeMap::new();
        let mut all = Vec::new();
        for port in daemon.registry.all::<ValePort>().filter(|port| !port.key.is_in_own_switch()) {
            let Some(attachment) = port.attachment.as_ref().filter(|attachment| attachment.side == Side::Wire) else {
                continue;
            };
            let interface = match &attachment.interface {
                PortKey::Nic(nic) if daemon.vale.persistent.is_hidden_namespace(nic.netns) => continue,
                PortKey::Nic(nic) => {
                    let Some(netns) = daemon.registry.nic(&attachment.interface).map(|nic| nic.netns.clone()) else {
                        continue;
                    };
                    let mac = privileged::link(&netns, nic.index).ok().flatten().and_then(|link| link.mac);
                    namespaces.insert(nic.netns, netns);
                    Attached::Interface { netns: nic.netns, index: nic.index, mac }
                }
                PortKey::Persistent(hidden) => Attached::Persistent(*hidden),
                PortKey::Sink(_, number) => Attached::Sink(*number),
                _ => continue,
            };
            let shape = port.endpoint().shape;
            all.push(LastingAttachment {
                key: port.key.clone(),
                index: port.index(),
                host_index: daemon.registry.switch_port(&host_key(&port.key)).map(|host| host.index()),
                interface,
                slots: (shape.rx_slots.get(), shape.tx_slots.get()),
                polling: port.polling(),
            });
        }
        (all, namespaces.into_values().collect())
    }

    /// Attaches the interface again, if it is in one of these namespaces.
    pub(super) fn attach_again(&self, daemon: &mut Daemon, namespaces: &[Arc<Netns>]) -> Result<(), Refusal> {
        let mut caller = Caller::daemon();
        let (nr_tx_slots, nr_rx_slots) = self.slots;
        let request = NmreqRegister { nr_tx_slots, nr_rx_slots, ..Default::default() };
        let interface = match &self.interface {
            Attached::Interface { netns, index, mac } => {
                let Some(found) = namespaces.iter().find(|found| found.id() == *netns) else {
                    return refuse(ENXIO, "its network namespace has ended");
                };
                caller.namespace = found.clone().into();
                let link = privileged::link(found, *index).ok().flatten().filter(|link| link.mac == *mac);
                let Some(link) = link else { return refuse(ENXIO, "the interface is gone") };
                open_interface(daemon, &link, &request, &caller)?
            }
            Attached::Persistent(hidden) => open_persistent(&mut daemon.registry, &daemon.vale, *hidden, &caller)?,
            Attached::Sink(number) => sinks::open_for_switch(daemon, *number, &caller)?,
        };
        let wire = connect(daemon, &self.key, (&interface, Side::Wire), 0, &caller);
        let (wire, _) = wire.inspect_err(|_| daemon.release_if_unused(&interface))?;
        if self.host_index.is_some() {
            let host = connect(daemon, &host_key(&self.key), (&interface, Side::Host), 0, &caller);
            host.inspect_err(|_| disconnect(daemon, &wire))?;
        }
        poll_again(daemon, &wire, self.polling.as_ref());
        Ok(())
    }
}

/// Lets these processors poll an attached interface again.
pub(super) fn poll_again(daemon: &mut Daemon, id: &PortKey, polling: Option<&BTreeMap<u16, u32>>) {
    let (Some(cpus), Some(port)) = (polling, daemon.registry.get_mut::<ValePort>(id)) else { return };
    for thread in &port.record.mediators {
        thread.set_polling_cpu(cpus.get(&thread.pair.1).copied());
    }
    port.attachment.iter_mut().for_each(|attachment| attachment.polling = true);
}
