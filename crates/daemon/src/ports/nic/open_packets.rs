// SPDX-License-Identifier: BSD-2-Clause
//! Opening and closing the packet sockets of an interface (`packets`), and when it has these instead of AF_XDP sockets.

use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;

use unetmap_core::control::binding::{BackendKind, BoundRing};
use unetmap_core::errno::{EINVAL, ENXIO, EOPNOTSUPP};
use unetmap_sys::kernel;
use unetmap_sys::link::Link;
use unetmap_sys::packet_socket::{bypass_queue, slot_bytes};
use unetmap_sys::xsk::Way;

use super::Nic;
use super::lookup::find;
use super::packets::{OpenReceiver, Packets, Table, usage};
use super::settings::InterfaceSettings;
use crate::budget::Amounts;
use crate::caller::Caller;
use crate::endpoint::{PortRing, RingSelection};
use crate::fault;
use crate::ports::Registry;
use crate::ports::mediator::PacketDevice;
use crate::privileged::{self, Undo};
use crate::refusal::{Refusal, refuse};

/// Returns why an interface's packets are those of packet sockets, or are to be once it is opened, if so.
pub(in crate::ports) fn reason(
    registry: &Registry,
    settings: &InterfaceSettings,
    link: &Link,
    caller: &Caller,
) -> Option<String> {
    if let Ok(Some(nic)) = find(registry, caller.netns_id(), link.index) {
        return nic.packets.as_ref().map(|packets| packets.why.clone());
    }
    let settings = settings.kept_of(caller.netns_id(), link.index);
    // A filter and `failure` need XDP: such an interface goes on as it is, as a peer can send frames that seem wrong.
    let needs_xdp = settings.is_some_and(|settings| settings.filter.is_some() || settings.failure.is_some());
    let found = settings.and_then(|settings| settings.found.as_ref());
    if let Some(found) = found.filter(|found| found.by_packets && !needs_xdp) {
        return Some(found.why.clone());
    }
    match settings.map_or(Way::Auto, |settings| settings.way) {
        Way::Auto => privileged::xdp_obstacle().or_else(|| {
            // A newer kernel completes its frames on a veth.
            let surveyed = caller.surveyed(link.index).filter(|_| kernel::HOST_RINGS.is_newer_than_kernel())?;
            surveyed.unfinished.clone()
        }),
        Way::Packet => Some(format!("its way is `packet` (unetmap nic {} way auto)", link.name)),
        Way::Copy | Way::ZeroCopy | Way::Generic => None,
    }
}

/// Returns the amounts of the sockets of such an interface; none if it has AF_XDP sockets.
pub(crate) fn usage_by_packets(
    registry: &Registry,
    settings: &InterfaceSettings,
    link: &Link,
    caller: &Caller,
) -> Amounts {
    reason(registry, settings, link, caller).map_or_else(Amounts::default, |_| usage())
}

impl Nic {
    /// Opens the packet sockets that `selection` needs.
    pub(super) fn open_packets(&mut self, selection: &RingSelection) -> Result<(), Refusal> {
        let own = self.endpoint.shape.nic_pairs();
        let Some(packets) = &self.packets else { return Ok(()) };
        let needs_xdp = [
            (self.endpoint.bound(selection).any(|ring| ring.pair >= own), "host rings are"),
            (self.filter.is_some(), "its filter is"),
            (self.stays.is_some(), "its setting `failure` is"),
            (self.forwards, "forwarding of released packets (the knob fwd) is"),
        ];
        if let Some((_, what)) = needs_xdp.iter().find(|(is_needed, _)| *is_needed) {
            let why = &packets.why;
            return refuse(EOPNOTSUPP, format!("{what} not possible with packet sockets, which it has because {why}"));
        }
        let sends = !selection.tx.is_empty();
        let receives = !selection.rx.is_empty();
        let sender = match &packets.sender {
            None if sends => {
                let opened = privileged::packet_sender(&self.netns, self.key.index, packets.mark);
                // The kernel cuts a program's large packets. Those of threads: `PacketDevice::with_header`.
                let opened = opened.and_then(|fd| bypass_queue(fd.as_fd(), packets.header == 0).map(|()| fd));
                Some(Arc::new(opened.or_else(|e| self.explain_packets(&e))?))
            }
            open => open.clone(),
        };
        let receiver = match &packets.receiver {
            None if receives => Some(self.open_receiver(packets.mark)?),
            _ => None,
        };
        if let Some(packets) = &mut self.packets {
            packets.sender = sender;
            if receiver.is_some() {
                packets.receiver = receiver;
            }
        }
        Ok(())
    }

    fn open_receiver(&mut self, mark: u32) -> Result<OpenReceiver, Refusal> {
        if self.keeps_offloads {
            // Nobody has addresses in this namespace, so that its stack takes nothing.
            let far = self.open_companion().or_else(|e| self.explain_packets(&e))?;
            // Longer frames wait in the queue.
            let slot = slot_bytes(0);
            let fd = privileged::packet_receiver(&self.netns, far, slot).or_else(|e| self.explain_packets(&e))?;
            return OpenReceiver::of(fd, slot, None, None).or_else(|e| self.explain_packets(&e));
        }
        let (netns, index) = (&self.netns, self.key.index);
        let mtu = privileged::link(netns, index).ok().flatten().map_or(0, |link| link.mtu);
        let slot = slot_bytes(mtu);
        // Before the socket receives: no frame is seen by both.
        let (table, shared) = match self.disconnect(mark) {
            Ok((table, true)) => (Some(table), None),
            Ok((table, false)) => {
                (Some(table), Some("the host can send (Linux 5.16 with CONFIG_NETFILTER_EGRESS prevents it)".into()))
            }
            Err(e) => {
                let why = "no table of nftables, for which the kernel needs CONFIG_NF_TABLES_NETDEV";
                (None, Some(format!("shared with the stack ({why}: {e})")))
            }
        };
        if let Some(why) = &shared {
            tracing::warn!(name = self.name, "the interface is not disconnected from the host: {why}");
        }
        let fd = privileged::packet_receiver(netns, index, slot).or_else(|e| self.explain_packets(&e))?;
        OpenReceiver::of(fd, slot, table, shared).or_else(|e| self.explain_packets(&e))
    }

    /// Keeps its frames from the host's stack. Returns by what, and whether this also stops what the stack sends.
    fn disconnect(&self, mark: u32) -> io::Result<(Table, bool)> {
        let (netns, index) = (&self.netns, self.key.index);
        let disconnected = match fault::is("no-table-owners") {
            true => Err(io::Error::from_raw_os_error(EINVAL)),
            false => privileged::disconnect(netns, index, self.name.clone(), mark),
        };
        match disconnected {
            // A table cannot have an owner.
            Err(e) if e.raw_os_error() == Some(EINVAL) => {
                let (stops_host, undo) = privileged::disconnect_until_undone(netns, index, self.name.clone(), mark)?;
                Ok((Table::Undone(Undo::of(undo)), stops_host))
            }
            disconnected => disconnected.map(|(stops_host, socket)| (Table::Owned(socket), stops_host)),
        }
    }

    fn explain_packets<T>(&self, e: &io::Error) -> Result<T, Refusal> {
        let (name, why) = (&self.name, self.packets.as_ref().map_or("", |packets| &packets.why));
        if e.raw_os_error() == Some(ENXIO) {
            return refuse(ENXIO, "the interface has gone");
        }
        refuse(
            EOPNOTSUPP,
            format!("{why}, and a packet socket in its place cannot be opened: {e} (unetmap doctor {name} says more)"),
        )
    }

    /// Whether it has packet sockets in place of AF_XDP sockets.
    pub(in crate::ports) fn has_packet_sockets(&self) -> bool {
        self.packets.is_some()
    }

    /// Describes a ring for a program that has the packet sockets itself, or for the daemon, whose threads have them:
    /// then the ring is without a data path.
    pub(super) fn describe_packet_ring<'a>(
        &'a self,
        packets: &'a Packets,
        ring: &'a PortRing,
        bound_ring: &mut BoundRing,
    ) -> Result<BorrowedFd<'a>, Refusal> {
        if packets.header == 0 {
            bound_ring.backend = BackendKind::Null as u32;
            return Ok(ring.doorbell.get()?.as_fd());
        }
        bound_ring.backend = BackendKind::Packet as u32;
        bound_ring.second_channel = packets.header.into();
        let socket = if bound_ring.dir == 0 {
            bound_ring.placeholder_or_longest = self.longest_frame(ring.pair);
            packets.sender.as_ref()
        } else {
            bound_ring.channel = packets.receiver.as_ref().map_or(0, |open| open.slot) as u32;
            packets.receiver.as_ref().map(|open| &open.socket.0)
        };
        socket.map_or_else(|| refuse(ENXIO, "the interface has gone"), |socket| Ok(socket.as_fd()))
    }

    /// Its packet sockets, for a thread, if it has such.
    pub(in crate::ports) fn packet_device(&self) -> Option<PacketDevice> {
        let packets = self.packets.as_ref()?;
        let receiver = packets.receiver.as_ref().map(|open| open.socket.clone());
        Some(PacketDevice::new(receiver, packets.sender.clone(), packets.counters.clone()))
    }

    /// Closes the packet sockets that no session has bound any more.
    pub(super) fn close_unused_packets(&mut self) {
        let (sends, receives) = self.bound_ways();
        let Some(packets) = &mut self.packets else { return };
        if !receives {
            packets.close_receiver();
        }
        if !sends {
            packets.sender = None;
        }
    }

    /// Whether packet sockets are open that no session has bound.
    pub(super) fn has_unneeded_packets(&self) -> bool {
        let (sends, receives) = self.bound_ways();
        self.packets
            .as_ref()
            .is_some_and(|packets| packets.receiver.is_some() && !receives || packets.sender.is_some() && !sends)
    }

    /// Whether sessions have transmit rings bound, and receive rings.
    fn bound_ways(&self) -> (bool, bool) {
        let is_bound = |rings: &[PortRing]| !self.gone && rings.iter().any(|ring| ring.binders() > 0);
        (is_bound(&self.endpoint.tx), is_bound(&self.endpoint.rx))
    }
}
