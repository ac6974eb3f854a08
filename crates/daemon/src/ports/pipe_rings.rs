// SPDX-License-Identifier: BSD-2-Clause
//! What a pipe and a mediated port have in common: two endpoints, and the channels between them.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use unetmap_abi::PipeRole;
use unetmap_core::control::binding::{BackendKind, BoundRing};
use unetmap_mem::ChannelPage;

use super::Description;
use crate::endpoint::{DataPath, Endpoint, RingSelection, shared_page};
use crate::refusal::Refusal;
use crate::region::{RegionKey, RegionRecord};
use crate::shape::EndpointShape;

/// Two endpoints and the channels between them.
pub(super) struct PipeRings {
    pub(super) region: RegionKey,
    pub(super) channels: ChannelPage,
    channels_fd: OwnedFd,
    channels_bytes: usize,
    /// Master, slave.
    pub(super) endpoints: [Endpoint; 2],
}

impl PipeRings {
    /// Creates both endpoints. `shape` is that of the endpoint `role`.
    pub(super) fn create(
        region: &mut RegionRecord,
        shape: EndpointShape,
        role: PipeRole,
    ) -> Result<PipeRings, Refusal> {
        let master = if role == PipeRole::Master { shape } else { shape.mirrored() };
        let channels_bytes = ChannelPage::bytes(master.all_rings() as usize);
        let (range, channels_fd) = shared_page("unetmap-channels", channels_bytes)?;
        let to_master = usize::from(master.all_tx());
        let first = Endpoint::create(region, master, DataPath::Channels { tx: 0, rx: to_master })?;
        match Endpoint::create(region, master.mirrored(), DataPath::Channels { tx: to_master, rx: 0 }) {
            Ok(second) => {
                let (channels, endpoints) = (ChannelPage::new(range), [first, second]);
                Ok(PipeRings { region: region.key, channels, channels_fd, channels_bytes, endpoints })
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
        let endpoints = [Endpoint::without_rings(master)?, Endpoint::without_rings(master.mirrored())?];
        Ok(PipeRings { region: region.key, channels: ChannelPage::new(range), channels_fd, channels_bytes, endpoints })
    }

    pub(super) fn describe(&self) -> Description<'_> {
        let (page, page_bytes) = (self.channels_fd.as_fd(), self.channels_bytes);
        Description { page, page_bytes, mirror_pools: Default::default() }
    }

    /// Completes the description of a ring for a client, and returns the doorbell of the other side.
    pub(super) fn describe_ring(&self, index: usize, bound_ring: &mut BoundRing) -> BorrowedFd<'_> {
        let peer = &self.endpoints[1 - index];
        let peer_ring = &(if bound_ring.dir == 0 { &peer.rx } else { &peer.tx })[usize::from(bound_ring.id)];
        (bound_ring.backend, bound_ring.peer_offset) = (BackendKind::Pipe as u32, peer_ring.view.shape().offset);
        peer_ring.doorbell.as_fd()
    }

    pub(super) fn unbind(&mut self, index: usize, selection: &RingSelection) {
        let (first, second) = self.endpoints.split_at_mut(1);
        let (own, peer) = if index == 0 { (&mut first[0], &second[0]) } else { (&mut second[0], &first[0]) };
        own.unbind(selection, Some(&self.channels), Some(peer));
    }
}
