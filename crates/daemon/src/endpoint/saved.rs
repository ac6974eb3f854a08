// SPDX-License-Identifier: BSD-2-Clause
//! An endpoint as the daemon hands it to its successor.

use std::sync::OnceLock;
use std::sync::atomic::Ordering::Relaxed;

use serde::{Deserialize, Serialize};
use unetmap_mem::{BufIdx, EndpointPage, RingShape, RingView};

use super::{Endpoint, PortRing, RingBinding, RingDoorbell, StatePage};
use crate::descriptors::{FdIndex, Incoming, Outgoing, invalid};
use crate::refusal::Refusal;
use crate::region::RegionRecord;
use crate::shape::EndpointShape;

/// An endpoint. The number, length and order of its rings follow from its shape.
#[derive(Serialize, Deserialize)]
pub(crate) struct SavedEndpoint {
    shape: EndpointShape,
    /// The file of the state page, and where in it the page begins, if the endpoint was ever open.
    state_page: Option<(FdIndex, u64)>,
    tx: Vec<SavedRing>,
    rx: Vec<SavedRing>,
}

#[derive(Serialize, Deserialize)]
struct SavedRing {
    /// Bytes from the start of the region.
    offset: u64,
    channel: Option<usize>,
    placeholder: Option<u32>,
    owns_buffers: bool,
    doorbell: Option<FdIndex>,
    /// The mask and the largest offset.
    offsets: (u64, u32),
    headroom: u32,
    binders: u32,
    exclusive: bool,
}

impl Endpoint {
    pub(crate) fn save<'a>(&'a self, fds: &mut Outgoing<'a>) -> SavedEndpoint {
        let mut save = |rings: &'a [PortRing]| rings.iter().map(|ring| ring.save(fds)).collect();
        let (tx, rx) = (save(&self.tx), save(&self.rx));
        let state_page = self.state_page.get().map(|states| (fds.add(&states.fd), states.offset));
        SavedEndpoint { shape: self.shape, state_page, tx, rx }
    }
}

impl SavedEndpoint {
    /// Rebuilds the endpoint of a port in `region`.
    pub(crate) fn restore(self, region: &RegionRecord, fds: &mut Incoming) -> Result<Endpoint, Refusal> {
        let SavedEndpoint { shape, state_page, tx, rx } = self;
        let rings = (tx.len(), rx.len());
        // An endpoint without rings is one of which only the shape is known.
        if rings != (0, 0) && rings != (shape.all_tx().into(), shape.all_rx().into()) {
            return invalid("an endpoint lacks rings");
        }
        let state_page = state_page.map(|(fd, offset)| {
            let (range, fd) = fds.take_page(fd, offset, Endpoint::state_bytes(shape))?;
            Ok(StatePage { page: EndpointPage::new(range), fd, offset })
        });
        let state_page = state_page.transpose()?.map_or_else(OnceLock::new, OnceLock::from);
        let mut restore = |saved: Vec<SavedRing>, dir: u16| {
            (0..).zip(saved).map(|(id, saved)| saved.restore(&shape, (id, dir), region, fds)).collect()
        };
        let (tx, rx): (Result<_, Refusal>, Result<_, Refusal>) = (restore(tx, 0), restore(rx, 1));
        let endpoint = Endpoint { shape, state_page, tx: tx?, rx: rx? };
        // A ring that a session has bound has both.
        let lacks = |ring: &PortRing| ring.binders() > 0 && ring.doorbell.made().is_none();
        if endpoint.in_use() && endpoint.state_page().is_none() || endpoint.rings().any(lacks) {
            return invalid("an open endpoint lacks its states or a doorbell");
        }
        Ok(endpoint)
    }
}

impl PortRing {
    fn save<'a>(&'a self, fds: &mut Outgoing<'a>) -> SavedRing {
        SavedRing {
            offset: self.view.shape().offset,
            channel: self.channel,
            placeholder: self.placeholder.map(|BufIdx(idx)| idx),
            owns_buffers: self.owns_buffers,
            doorbell: self.doorbell.made().map(|doorbell| fds.add(doorbell)),
            offsets: (self.offsets().mask, self.offsets().max),
            headroom: self.headroom(),
            binders: self.binders(),
            exclusive: self.binding.exclusive.load(Relaxed),
        }
    }
}

impl SavedRing {
    fn restore(
        self,
        endpoint: &EndpointShape,
        (id, dir): (u16, u16),
        region: &RegionRecord,
        fds: &mut Incoming,
    ) -> Result<PortRing, Refusal> {
        let (slots, first_state, nic_rings) = match dir {
            0 => (endpoint.tx_slots, 0, endpoint.tx_rings),
            _ => (endpoint.rx_slots, endpoint.all_tx(), endpoint.rx_rings),
        };
        let Some(view) = RingView::new(&region.region, RingShape { offset: self.offset, slots, id, dir }) else {
            return invalid("a ring lies outside its region");
        };
        let (mask, max) = self.offsets;
        let doorbell = self.doorbell.map(|doorbell| fds.take_doorbell(doorbell)).transpose()?;
        let doorbell = doorbell.map(RingDoorbell::from).unwrap_or_default();
        Ok(PortRing {
            view,
            pair: endpoint.pair(id, nic_rings),
            state: usize::from(first_state) + usize::from(id),
            channel: self.channel,
            placeholder: self.placeholder.map(BufIdx),
            owns_buffers: self.owns_buffers,
            doorbell,
            binding: RingBinding {
                binders: self.binders.into(),
                exclusive: self.exclusive.into(),
                offset_mask: mask.into(),
                max_offset: max.into(),
                headroom: self.headroom.into(),
            },
        })
    }
}
