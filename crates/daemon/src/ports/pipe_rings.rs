// SPDX-License-Identifier: BSD-2-Clause
//! What a pipe and a mediated port have in common: two endpoints, and the channels between them.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use serde::{Deserialize, Serialize};
use unetmap_abi::PipeRole;
use unetmap_core::control::binding::{BackendKind, BoundRing, DOORBELL_LATER};
use unetmap_core::errno::EINVAL;
use unetmap_mem::ChannelPage;

use super::{Description, Registry};
use crate::descriptors::{FdIndex, Incoming, Outgoing};
use crate::endpoint::{DataPath, Endpoint, PortRing, RingSelection, SavedEndpoint};
use crate::refusal::{Refusal, refuse};
use crate::region::{RegionKey, RegionRecord, SharedPage, shared_page};
use crate::shape::EndpointShape;

/// Two endpoints and the channels between them.
pub(super) struct PipeRings {
    pub(super) region: RegionKey,
    pub(super) channels: ChannelPage,
    channels_fd: OwnedFd,
    /// Where in their file they begin.
    channels_offset: u64,
    channels_bytes: usize,
    /// Master, slave.
    pub(super) endpoints: [Endpoint; 2],
}

/// What a successor of the daemon needs of them.
#[derive(Serialize, Deserialize)]
pub(crate) struct SavedPipeRings {
    region: RegionKey,
    channels: FdIndex,
    offset: u64,
    bytes: usize,
    endpoints: [SavedEndpoint; 2],
}

impl SavedPipeRings {
    pub(super) fn restore(self, registry: &Registry, fds: &mut Incoming) -> Result<PipeRings, Refusal> {
        let record = registry.regions.existing(self.region)?;
        let (range, channels_fd) = fds.take_page(self.channels, self.offset, self.bytes)?;
        let [master, slave] = self.endpoints;
        let endpoints = [master.restore(record, fds)?, slave.restore(record, fds)?];
        Ok(PipeRings {
            region: self.region,
            channels: ChannelPage::new(range),
            channels_fd,
            channels_offset: self.offset,
            channels_bytes: self.bytes,
            endpoints,
        })
    }
}

impl PipeRings {
    /// Creates both endpoints. `shape` is that of the endpoint `role`. Unless `both_open`, what only an open endpoint
    /// needs is made when it is opened.
    pub(super) fn create(
        region: &mut RegionRecord,
        shape: EndpointShape,
        role: PipeRole,
        both_open: bool,
    ) -> Result<PipeRings, Refusal> {
        // All memory that a virtual machine's device contains is allocated at once.
        let create = if both_open || region.is_device() { Endpoint::create } else { Endpoint::create_closed };
        let master = if role == PipeRole::Master { shape } else { shape.mirrored() };
        let channels_bytes = ChannelPage::bytes(master.all_rings() as usize);
        let SharedPage { range, fd: channels_fd, offset: channels_offset } =
            region.shared_page("unetmap-channels", channels_bytes)?;
        let to_master = usize::from(master.all_tx());
        let first = create(region, master, DataPath::Channels { tx: 0, rx: to_master })?;
        match create(region, master.mirrored(), DataPath::Channels { tx: to_master, rx: 0 }) {
            Ok(second) => {
                let (channels, endpoints) = (ChannelPage::new(range), [first, second]);
                let region = region.key;
                Ok(PipeRings { region, channels, channels_fd, channels_offset, channels_bytes, endpoints })
            }
            Err(e) => {
                first.free(region);
                Err(e)
            }
        }
    }

    /// Returns a pipe of which only the shape is known: no session can be opened on it.
    pub(super) fn without_rings(
        region: &RegionRecord,
        shape: EndpointShape,
        role: PipeRole,
    ) -> Result<PipeRings, Refusal> {
        let master = if role == PipeRole::Master { shape } else { shape.mirrored() };
        let channels_bytes = ChannelPage::bytes(1);
        let (range, channels_fd) = shared_page("unetmap-channels", channels_bytes)?;
        let endpoints = [master, master.mirrored()].map(Endpoint::without_rings);
        let (region, channels, channels_offset) = (region.key, ChannelPage::new(range), 0);
        Ok(PipeRings { region, channels, channels_fd, channels_offset, channels_bytes, endpoints })
    }

    pub(super) fn save<'a>(&'a self, fds: &mut Outgoing<'a>) -> SavedPipeRings {
        let endpoints = self.endpoints.each_ref().map(|endpoint| endpoint.save(fds));
        let (region, offset, bytes) = (self.region, self.channels_offset, self.channels_bytes);
        SavedPipeRings { region, channels: fds.add(&self.channels_fd), offset, bytes, endpoints }
    }

    pub(super) fn describe(&self) -> Description<'_> {
        let (page, page_bytes) = (Some(self.channels_fd.as_fd()), self.channels_bytes);
        Description { page, page_offset: self.channels_offset, page_bytes, mirror_pools: Default::default() }
    }

    /// Completes the description of a ring for a client, and returns the doorbell of the other side. If that does not
    /// exist, as that end was never open, returns the ring's own in its place.
    pub(super) fn describe_ring<'a>(
        &'a self,
        index: usize,
        ring: &'a PortRing,
        bound_ring: &mut BoundRing,
    ) -> Result<BorrowedFd<'a>, Refusal> {
        let peer_ring = self.peer_ring(index, ring)?;
        (bound_ring.backend, bound_ring.peer_offset) = (BackendKind::Pipe as u32, peer_ring.view.shape().offset);
        if let Some(doorbell) = peer_ring.doorbell.made() {
            return Ok(doorbell.as_fd());
        }
        bound_ring.features |= DOORBELL_LATER;
        Ok(ring.doorbell.get()?.as_fd())
    }

    /// The ring at the other end of the channel of a ring of this endpoint.
    pub(super) fn peer_ring(&self, index: usize, ring: &PortRing) -> Result<&PortRing, Refusal> {
        let (peer, shape) = (&self.endpoints[1 - index], ring.view.shape());
        let ring = if shape.dir == 0 { &peer.rx } else { &peer.tx }.get(usize::from(shape.id));
        ring.map_or_else(|| refuse(EINVAL, "the pipe has no such ring"), Ok)
    }

    pub(super) fn unbind(&mut self, index: usize, selection: &RingSelection) {
        let (first, second) = self.endpoints.split_at_mut(1);
        let (own, peer) = if index == 0 { (&mut first[0], &second[0]) } else { (&mut second[0], &first[0]) };
        own.unbind(selection, Some(&self.channels), Some(peer));
    }
}
