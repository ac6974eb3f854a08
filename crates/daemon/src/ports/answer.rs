// SPDX-License-Identifier: BSD-2-Clause
//! The answer to REGISTER: the completed request, the positions of the bound rings, and their descriptors.

use std::os::fd::{AsFd, OwnedFd};

use unetmap_abi::*;
use unetmap_core::control::PeerDoorbellsRequest;
use unetmap_core::control::binding::{
    self, BackendKind, BindingHead, BoundPool, BoundRing, DOORBELL_LATER, NO_TIMESTAMP,
};
use unetmap_core::errno::ENXIO;
use unetmap_mem::{IfaceShape, PoolShape};

use super::{Daemon, EndpointKey};
use crate::endpoint::{Endpoint, PortRing, RingSelection};
use crate::refusal::{Refusal, refuse, refuse_lack};
use crate::region::RegionRecord;

impl Daemon {
    /// Returns the request, completed as for a session of the port.
    pub(super) fn answered_register(
        &self,
        at: &EndpointKey,
        request: &NmreqRegister,
    ) -> Result<NmreqRegister, Refusal> {
        let (endpoint, region) = self.registry.endpoint(at)?;
        Ok(complete_register(endpoint, self.registry.regions.existing(region)?, request))
    }

    /// Returns the answer to the client that has a session open.
    pub(super) fn session_answer(&self, id: u64) -> Result<(NmreqRegister, binding::Binding, Vec<OwnedFd>), Refusal> {
        let Some(session) = self.registry.sessions.get(&id) else { return refuse(ENXIO, "the session is closed") };
        let port = self.registry.port(&session.port)?;
        let (endpoint, page) = (&port.record().endpoints[session.endpoint], &port.record().page);
        let record = self.registry.regions.existing(session.region)?;
        let geometry = record.region.geometry();
        let pool = |p: &PoolShape| BoundPool { offset: p.offset, count: p.count, size: p.size };
        let (states, states_offset) = endpoint.state_page_file()?;
        // Where there is no second page a client maps none, but there is a descriptor in its place.
        let mut fds = vec![record.fd.as_fd(), states, page.as_ref().map_or(states, |page| page.fd.as_fd())];
        let mut rings = Vec::new();
        for ring in endpoint.bound(&session.selection) {
            let mut bound_ring = describe_ring(ring);
            let mut other_side = port.describe_ring(self, (session.endpoint, ring), &mut bound_ring)?;
            if bound_ring.features & DOORBELL_LATER != 0 && !session.can_ask {
                bound_ring.features &= !DOORBELL_LATER;
                other_side = port.peer_doorbell((session.endpoint, ring))?.as_fd();
            }
            rings.push(bound_ring);
            fds.extend([ring.doorbell.get()?.as_fd(), other_side]);
        }
        let head = BindingHead {
            pools: [pool(&geometry.ifs), pool(&geometry.rings), pool(&geometry.bufs)],
            if_offset: session.iface_offset,
            session: id,
            key: session.key,
            mirror_pools: port.mirror_pools(),
            rings: rings.len() as u32,
            states: (endpoint.tx.len() + endpoint.rx.len()) as u32,
            page_bytes: page.as_ref().map_or(0, |page| page.range.len()) as u32,
            flags: if self.knobs.no_timestamp() { NO_TIMESTAMP } else { 0 },
            page_offsets: [states_offset, page.as_ref().map_or(0, |page| page.offset)],
        };
        let register = NmreqRegister {
            nr_offset: session.iface_offset,
            nr_extra_bufs: session.extra,
            ..complete_register(endpoint, record, &session.request)
        };
        let fds = fds.into_iter().map(|fd| fd.try_clone_to_owned()).collect::<std::io::Result<Vec<_>>>();
        let fds = fds.or_else(|e| refuse_lack("the daemon has no file descriptors left", &e))?;
        Ok((register, binding::Binding { head, rings }, fds))
    }

    /// Returns the doorbells of the rings at the other end of a pipe, in the order of the session's rings.
    pub(crate) fn peer_doorbells(&self, request: &PeerDoorbellsRequest) -> Result<Vec<OwnedFd>, Refusal> {
        let session = self.registry.session_of(request.session, request.key)?;
        let port = self.registry.port(&session.port)?;
        let rings = port.record().endpoints[session.endpoint].bound(&session.selection);
        let doorbells = rings.map(|ring| {
            let doorbell = port.peer_doorbell((session.endpoint, ring))?;
            doorbell.as_fd().try_clone_to_owned().or_else(|e| refuse_lack("no file descriptor for a doorbell", &e))
        });
        doorbells.collect()
    }
}

/// Returns the description of a ring, as far as it is the same for all kinds of ports. [`super::AnyPort`]
/// completes it.
fn describe_ring(ring: &PortRing) -> BoundRing {
    let shape = ring.view.shape();
    BoundRing {
        offset: shape.offset,
        slots: shape.slots.get(),
        backend: BackendKind::Null as u32,
        state: ring.state as u32,
        channel: ring.channel.unwrap_or(0) as u32,
        placeholder_or_longest: ring.placeholder.map_or(0, |b| b.0),
        id: shape.id,
        dir: shape.dir,
        offset_mask: ring.offsets().mask,
        max_offset: ring.offsets().max,
        ..Default::default()
    }
}

/// Returns `request` with the fields that depend on the port completed.
fn complete_register(endpoint: &Endpoint, record: &RegionRecord, request: &NmreqRegister) -> NmreqRegister {
    let shape = endpoint.shape;
    NmreqRegister {
        nr_memsize: record.region.geometry().bytes(),
        nr_tx_slots: shape.tx_slots.get(),
        nr_rx_slots: shape.rx_slots.get(),
        nr_tx_rings: shape.tx_rings,
        nr_rx_rings: shape.rx_rings,
        nr_host_tx_rings: shape.host_tx_rings.max(1),
        nr_host_rx_rings: shape.host_rx_rings.max(1),
        nr_mem_id: record.mem_id,
        ..*request
    }
}

/// Returns the contents of a session's `netmap_if`: the offsets of its rings, in netmap's order. Where there are no
/// host rings the counts are 1, as in netmap.
pub(super) fn iface_shape(name: &str, endpoint: &Endpoint, selection: &RingSelection) -> IfaceShape {
    let offsets = |rings: &[PortRing], bound: &[usize], host_rings: u16| {
        let all = rings.iter().enumerate();
        let mut all: Vec<_> = all.map(|(i, ring)| bound.contains(&i).then_some(ring.view.shape().offset)).collect();
        if host_rings == 0 {
            all.push(None);
        }
        all
    };
    let shape = endpoint.shape;
    let mut rings = offsets(&endpoint.tx, &selection.tx, shape.host_tx_rings);
    rings.extend(offsets(&endpoint.rx, &selection.rx, shape.host_rx_rings));
    IfaceShape {
        name: name.into(),
        tx_rings: shape.tx_rings.into(),
        rx_rings: shape.rx_rings.into(),
        host_tx_rings: shape.host_tx_rings.max(1).into(),
        host_rx_rings: shape.host_rx_rings.max(1).into(),
        rings,
    }
}
