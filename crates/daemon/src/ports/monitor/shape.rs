// SPDX-License-Identifier: BSD-2-Clause
//! Which rings a monitor has, and what they take.

use unetmap_abi::*;
use unetmap_core::control::binding::BoundPool;
use unetmap_mem::Slots;

use crate::budget::{Amounts, Resource};
use crate::endpoint::Endpoint;
use crate::region::RegionRecord;
use crate::shape::EndpointShape;

/// Slots of a ring.
const MAX_SLOTS: u32 = 4096;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct WatchedRing {
    pub(super) transmit: bool,
    pub(super) id: usize,
}

impl WatchedRing {
    pub(super) fn of<T>(self, tx: T, rx: T) -> T {
        if self.transmit { tx } else { rx }
    }
}

pub(super) fn pools_of(record: &RegionRecord) -> [BoundPool; 3] {
    let g = record.region.geometry();
    [g.ifs, g.rings, g.bufs].map(|p| BoundPool { offset: p.offset, count: p.count, size: p.size })
}

/// Returns the rings of `endpoint` that `request` selects.
pub(super) fn watched_rings(endpoint: &Endpoint, request: &NmreqRegister) -> Vec<WatchedRing> {
    let both = request.nr_flags & NR_ZCOPY_MON != 0;
    let of_direction = |rings: usize, transmit, flag| {
        let included = both || request.nr_flags & flag != 0;
        let selected = move |id: &usize| request.nr_mode != NR_REG_ONE_NIC || usize::from(request.nr_ringid) == *id;
        (0..rings).filter(move |id| included && selected(id)).map(move |id| WatchedRing { transmit, id })
    };
    let (tx, rx) = (endpoint.shape.tx_rings.into(), endpoint.shape.rx_rings.into());
    of_direction(tx, true, NR_MONITOR_TX).chain(of_direction(rx, false, NR_MONITOR_RX)).collect()
}

/// Returns the shape of a monitor: one transmit ring, which programs expect, and as many receive rings as the port has
/// in the direction that has more.
pub(super) fn monitor_shape(watched: &Endpoint, request: &NmreqRegister) -> EndpointShape {
    let slots = |requested: u32, of_port: Slots| match requested {
        0 => Slots::new(of_port.get().min(MAX_SLOTS)).unwrap_or(of_port),
        requested => Slots::new(requested.clamp(2, MAX_SLOTS)).unwrap_or(of_port),
    };
    EndpointShape {
        tx_rings: 1,
        rx_rings: watched.shape.tx_rings.max(watched.shape.rx_rings),
        host_tx_rings: 0,
        host_rx_rings: 0,
        // The transmit ring takes as few buffers as possible from the watched port's region.
        tx_slots: match request.nr_flags & NR_ZCOPY_MON {
            0 => slots(request.nr_tx_slots, watched.shape.tx_slots),
            _ => Slots::new(2).unwrap_or(watched.shape.tx_slots),
        },
        rx_slots: slots(request.nr_rx_slots, watched.shape.longest()),
        first_ring: None,
    }
}

/// Returns the shape of the mirror rings of a monitor.
pub(super) fn mirror_shape(monitor: EndpointShape, count: usize) -> EndpointShape {
    EndpointShape { tx_rings: count as u16, rx_rings: 0, tx_slots: monitor.rx_slots, ..monitor }
}

/// Returns the amounts of a monitor with mirror rings of this shape: the rings, the file that they are in with buffers
/// of so many bytes, which the watched port's side fills, and descriptors of that side. A zero-copy monitor's buffers
/// have 0 bytes here: they are in the watched port's region.
pub(super) fn mirror_usage(mirror: EndpointShape, buf_size: u32) -> Amounts {
    let buffers = Amounts::buffers((mirror.all_slots(), buf_size));
    Amounts::endpoints(1, mirror)
        .and(buffers)
        .and(Amounts::of(Resource::Descriptors, 1 + u64::from(mirror.all_rings())))
}
