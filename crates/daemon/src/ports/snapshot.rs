// SPDX-License-Identifier: BSD-2-Clause
//! A port as `unetmap ls` shows it, in JSON.

use std::collections::BTreeMap;
use std::sync::atomic::Ordering::Relaxed;

use serde::Serialize;
use unetmap_mem::ChannelPage;
use unetmap_switch::port::counters::PacketCounts;
use unetmap_sys::xdp::Failed;

use super::nic::account::FramesSnapshot;
use crate::endpoint::{Endpoint, PortRing};
use crate::registry::Record;

/// A port, or an endpoint of a pipe.
#[derive(Default, Serialize)]
pub(crate) struct PortSnapshot {
    pub(crate) name: String,
    pub(crate) kind: &'static str,
    pub(crate) mem_id: u16,
    /// Interface: its number, which it keeps when it is renamed. A later interface of its name has another.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) serial: Option<u64>,
    pub(crate) open: bool,
    /// Switch port or pipe: the user that the switch, or the pipe, belongs to.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) uid: Option<u32>,
    /// Switch port: what it is called for people.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) label: Option<String>,
    /// Switch port: the number of the thread that forwards what it sends, and the processor on which that thread is or
    /// was last.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) thread: Option<usize>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) cpu: Option<usize>,
    /// Attached interface: the processors that poll its queues and serve nothing else.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub(crate) polled: BTreeMap<u16, u32>,
    /// Interface: how packets are received and sent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) manner: Option<String>,
    /// Interface: why its packets are copied although the driver runs the XDP program.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) copied: Option<String>,
    /// Interface: it has other queues than the port has rings.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) other_queues: Option<String>,
    /// Switch port: packets that it sent and that reached no port, by reason. Interface with virtio-net headers:
    /// packets in both directions that were lost because of their header or length.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub(crate) lost: BTreeMap<&'static str, u64>,
    /// Switch port: packets for it that it did not receive, by reason.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub(crate) not_received: BTreeMap<&'static str, u64>,
    /// Switch port: its packets, as the switch counts them.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) packets: Option<PacketsSnapshot>,
    /// Interface: frames that a program should have got and none took, by what became of them, and those that were
    /// lost with sockets.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) not_taken: Option<Failed>,
    /// Interface: the frames that it received, by what became of them.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) frames: Option<FramesSnapshot>,
    pub(crate) rings: Vec<RingSnapshot>,
}

/// Packets that a switch took from a port and delivered to it.
#[derive(Serialize)]
pub(crate) struct PacketsSnapshot {
    sent: u64,
    /// Packets that other ports were to get of these: a flooded one counts once for each port.
    copies: u64,
    received: u64,
}

impl PacketsSnapshot {
    pub(crate) fn of(counts: &PacketCounts) -> PacketsSnapshot {
        PacketsSnapshot { sent: counts.sent, copies: counts.copies, received: counts.received }
    }
}

#[derive(Serialize)]
pub(crate) struct RingSnapshot {
    pub(crate) dir: &'static str,
    pub(crate) id: u16,
    /// Whether it is a host ring, which are numbered after the others.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    host: bool,
    slots: u32,
    sessions: u32,
    /// Slots sent and not yet released by the receiver.
    pub(crate) queued: u32,
    crossed: u64,
    batches: u64,
    /// Bytes of the packets, where they are counted: switch ports, mediated interfaces, what a pipe delivered.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) bytes: Option<u64>,
    /// Switch port: how often the switch woke the program by the ring's doorbell.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) wakeups: Option<u64>,
    bad_slots: u64,
    bad_pointers: u64,
    /// Receive ring of an interface or of a switch port: packets dropped for lack of room, here or, for packets to be
    /// forwarded, on the other side. Transmit ring of a switch port: packets that reached no port. First transmit
    /// ring of an interface: frames that the interface dropped since it was opened, and the sum of `lost`.
    /// Ring of a monitor: slots that were not mirrored because the monitor was too slow. Receive ring to which the
    /// daemon copies: also packets for which it has too few slots.
    pub(crate) dropped: u64,
    /// Receive ring of a switch port: packets that came without a copy, from ports of the same region.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) swapped: Option<u64>,
}

impl PortSnapshot {
    /// Returns a snapshot of an endpoint, without the fields of any kind.
    pub(crate) fn new(
        name: String,
        kind: &'static str,
        mem_id: u16,
        (record, index): (&Record, usize),
    ) -> PortSnapshot {
        let (endpoint, channels) = (&record.endpoints[index], record.channels.as_ref());
        PortSnapshot {
            name,
            kind,
            mem_id,
            open: endpoint.in_use(),
            rings: endpoint.rings().map(|ring| RingSnapshot::new(endpoint, ring, (kind, channels))).collect(),
            ..Default::default()
        }
    }
}

impl RingSnapshot {
    fn new(endpoint: &Endpoint, ring: &PortRing, (kind, channels): (&str, Option<&ChannelPage>)) -> RingSnapshot {
        let (shape, state) = (ring.view.shape(), endpoint.state(ring.state));
        let sent = ring.sent(channels);
        let hardware = if shape.dir == 0 { endpoint.shape.tx_rings } else { endpoint.shape.rx_rings };
        RingSnapshot {
            dir: if shape.dir == 0 { "tx" } else { "rx" },
            id: shape.id,
            host: shape.id >= hardware,
            slots: shape.slots.get(),
            sessions: ring.binders(),
            queued: sent.map_or(0, |sent| shape.slots.distance(sent.from, sent.to)),
            crossed: state.map_or(0, |s| s.slots.load(Relaxed)),
            batches: state.map_or(0, |s| s.batches.load(Relaxed)),
            // As the program that receives counts.
            bytes: state.filter(|_| kind == "pipe" && shape.dir != 0).map(|s| s.bytes.load(Relaxed)),
            wakeups: None,
            bad_slots: state.map_or(0, |s| s.bad_slots.load(Relaxed)),
            bad_pointers: state.map_or(0, |s| s.bad_pointers.load(Relaxed)),
            dropped: state.map_or(0, |s| s.dropped.load(Relaxed)),
            swapped: None,
        }
    }
}
