// SPDX-License-Identifier: BSD-2-Clause
//! An endpoint as the daemon hands it to its successor.

use serde::{Deserialize, Serialize};
use unetmap_mem::{BufIdx, EndpointPage, Offsets, RingShape, RingView};

use super::{Endpoint, PortRing};
use crate::descriptors::{FdIndex, Incoming, Outgoing, invalid};
use crate::refusal::Refusal;
use crate::region::RegionRecord;
use crate::shape::EndpointShape;

/// An endpoint. The number, length and order of its rings follow from its shape.
#[derive(Serialize, Deserialize)]
pub(crate) struct SavedEndpoint {
    shape: EndpointShape,
    state_page: FdIndex,
    state_page_offset: u64,
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
    doorbell: FdIndex,
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
        let (state_page, state_page_offset) = (fds.add(&self.state_page_fd), self.state_page_offset);
        SavedEndpoint { shape: self.shape, state_page, state_page_offset, tx, rx }
    }
}

impl SavedEndpoint {
    /// Rebuilds the endpoint of a port in `region`.
    pub(crate) fn restore(self, region: &RegionRecord, fds: &mut Incoming) -> Result<Endpoint, Refusal> {
        let SavedEndpoint { shape, state_page, state_page_offset, tx, rx } = self;
        let rings = (tx.len(), rx.len());
        // An endpoint without rings is one of which only the shape is known.
        if rings != (0, 0) && rings != (shape.all_tx().into(), shape.all_rx().into()) {
            return invalid("an endpoint lacks rings");
        }
        let states = if rings == (0, 0) { 1 } else { shape.all_rings() as usize };
        let (range, state_page_fd) = fds.take_page(state_page, state_page_offset, EndpointPage::bytes(states))?;
        let mut restore = |saved: Vec<SavedRing>, dir: u16| {
            (0..).zip(saved).map(|(id, saved)| saved.restore(&shape, (id, dir), region, fds)).collect()
        };
        let (tx, rx): (Result<_, Refusal>, Result<_, Refusal>) = (restore(tx, 0), restore(rx, 1));
        let state_page = EndpointPage::new(range);
        Ok(Endpoint { shape, state_page, state_page_fd, state_page_offset, tx: tx?, rx: rx? })
    }
}

impl PortRing {
    fn save<'a>(&'a self, fds: &mut Outgoing<'a>) -> SavedRing {
        SavedRing {
            offset: self.view.shape().offset,
            channel: self.channel,
            placeholder: self.placeholder.map(|BufIdx(idx)| idx),
            owns_buffers: self.owns_buffers,
            doorbell: fds.add(&self.doorbell),
            offsets: (self.offsets.mask, self.offsets.max),
            headroom: self.headroom,
            binders: self.binders,
            exclusive: self.exclusive,
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
        Ok(PortRing {
            view,
            pair: endpoint.pair(id, nic_rings),
            state: usize::from(first_state) + usize::from(id),
            channel: self.channel,
            placeholder: self.placeholder.map(BufIdx),
            owns_buffers: self.owns_buffers,
            doorbell: fds.take_doorbell(self.doorbell)?,
            offsets: Offsets { mask, max },
            headroom: self.headroom,
            binders: self.binders,
            exclusive: self.exclusive,
        })
    }
}
