// SPDX-License-Identifier: BSD-2-Clause
//! Ports with two endpoints, and the channels between them: pipes, mediated ports, and copied ends of pipes.

use std::os::fd::{AsFd, BorrowedFd};

use unetmap_abi::PipeRole;
use unetmap_core::control::binding::{BackendKind, BoundRing, DOORBELL_LATER};
use unetmap_core::errno::EINVAL;
use unetmap_mem::ChannelPage;
use unetmap_sys::Doorbell;

use crate::endpoint::{DataPath, Endpoint, PortRing};
use crate::refusal::{Refusal, refuse};
use crate::region::{RegionRecord, Scope, SharedPage};
use crate::registry::{BufferRepair, Record};
use crate::shape::EndpointShape;

/// Creates both endpoints, master and slave. `shape` is that of the endpoint `role`. Unless `both_open`, what only an
/// open endpoint needs is made when it is opened.
pub(super) fn create(
    region: &mut RegionRecord,
    scope: Scope,
    (shape, role): (EndpointShape, PipeRole),
    both_open: bool,
) -> Result<Record, Refusal> {
    // All memory that a virtual machine's device contains is allocated at once.
    let create = if both_open || region.is_device() { Endpoint::create } else { Endpoint::create_closed };
    let master = if role == PipeRole::Master { shape } else { shape.mirrored() };
    let page = region.shared_page("unetmap-channels", ChannelPage::bytes(master.all_rings() as usize))?;
    let to_master = usize::from(master.all_tx());
    let first = create(region, master, DataPath::Channels { tx: 0, rx: to_master })?;
    let first_ring = master.first_ring.map(|first| first.saturating_add(master.all_rings()));
    let slave = EndpointShape { first_ring, ..master.mirrored() };
    match create(region, slave, DataPath::Channels { tx: to_master, rx: 0 }) {
        Ok(second) => Ok(record(region, scope, [first, second], page)),
        Err(e) => {
            first.free(region);
            Err(e)
        }
    }
}

/// Returns a pipe of which only the shape is known: no session can be opened on it.
pub(super) fn without_rings(
    region: &RegionRecord,
    scope: Scope,
    (shape, role): (EndpointShape, PipeRole),
) -> Result<Record, Refusal> {
    let master = if role == PipeRole::Master { shape } else { shape.mirrored() };
    let page = SharedPage::create("unetmap-channels", ChannelPage::bytes(1))?;
    Ok(record(region, scope, [master, master.mirrored()].map(Endpoint::without_rings), page))
}

fn record(region: &RegionRecord, scope: Scope, endpoints: [Endpoint; 2], page: SharedPage) -> Record {
    let channels = Some(ChannelPage::new(page.range.clone()));
    let record = Record::new(region.key, scope, endpoints, BufferRepair::Slots);
    Record { channels, page: Some(page), ..record }
}

/// Completes the description of a ring for a client, and returns the doorbell of the other side. If that does not
/// exist, as that end was never open, returns the ring's own in its place.
pub(super) fn describe_ring<'a>(
    record: &'a Record,
    (index, ring): (usize, &'a PortRing),
    bound_ring: &mut BoundRing,
) -> Result<BorrowedFd<'a>, Refusal> {
    let peer_ring = peer_ring(record, (index, ring))?;
    (bound_ring.backend, bound_ring.peer_offset) = (BackendKind::Pipe as u32, peer_ring.view.shape().offset);
    if let Some(doorbell) = peer_ring.doorbell.made() {
        return Ok(doorbell.as_fd());
    }
    bound_ring.features |= DOORBELL_LATER;
    Ok(ring.doorbell.get()?.as_fd())
}

/// The doorbell of the ring at the other end of a channel, which is made if it does not exist.
pub(super) fn peer_doorbell<'a>(record: &'a Record, at: (usize, &PortRing)) -> Result<&'a Doorbell, Refusal> {
    peer_ring(record, at)?.doorbell.get()
}

/// The ring at the other end of the channel of a ring of this endpoint.
fn peer_ring<'a>(record: &'a Record, (index, ring): (usize, &PortRing)) -> Result<&'a PortRing, Refusal> {
    let shape = ring.view.shape();
    let peer = record.endpoints.get(1 - index).map(|peer| if shape.dir == 0 { &peer.rx } else { &peer.tx });
    let ring = peer.and_then(|rings| rings.get(usize::from(shape.id)));
    ring.map_or_else(|| refuse(EINVAL, "the pipe has no such ring"), Ok)
}
