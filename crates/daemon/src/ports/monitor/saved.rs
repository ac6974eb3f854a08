// SPDX-License-Identifier: BSD-2-Clause
//! Monitors as the daemon hands them to its successor. What fills their mirror rings goes on: programs have mapped
//! them, and the threads of the daemon and of switches get the list again.

use std::sync::Arc;

use serde::{Deserialize, Serialize};
use unetmap_core::errno::ENOMEM;
use unetmap_mem::ChannelPage;

use super::port::{MirrorMemory, Monitor, Source, ring_state};
use super::shape::{WatchedRing, pools_of};
use crate::descriptors::{Incoming, Outgoing, invalid};
use crate::endpoint::SavedEndpoint;
use crate::ports::{EndpointKey, Registry};
use crate::refusal::{Refusal, refuse};
use crate::region::SavedRegion;
use crate::registry::{Port, Record, Regions};

/// A monitor.
#[derive(Serialize, Deserialize)]
pub(crate) struct SavedMonitor {
    mirror: SavedEndpoint,
    /// The memory of the mirror rings; `None`: the monitor's region.
    own_memory: Option<SavedRegion>,
    /// Direction and number.
    watched_rings: Vec<(bool, usize)>,
    watched: EndpointKey,
    watched_ended: bool,
    closed: bool,
}

impl Monitor {
    pub(in crate::ports) fn save<'a>(&'a self, fds: &mut Outgoing<'a>) -> SavedMonitor {
        SavedMonitor {
            mirror: self.mirror.save(fds),
            own_memory: match &self.mirror_memory {
                MirrorMemory::Own(record) => Some(record.save(fds)),
                MirrorMemory::Shared(..) => None,
            },
            watched_rings: self.watched_rings.iter().map(|ring| (ring.transmit, ring.id)).collect(),
            watched: self.watched.clone(),
            watched_ended: self.watched_ended,
            closed: self.closed,
        }
    }

    /// Whether the rings that it watches are there, and what fills its mirror rings.
    pub(super) fn watches_existing_rings(&self, registry: &Registry) -> bool {
        let Ok(port) = registry.record(&self.watched.port) else { return self.watched_ended };
        let endpoints = &port.endpoints;
        let is_there = |ring: &WatchedRing| match self.source_of(*ring) {
            Source::Endpoint(at, source) => {
                endpoints.get(at).is_some_and(|endpoint| ring_state(endpoint, source).is_some())
            }
            Source::Switch(_) => true,
        };
        let has_endpoint = self.watched.index < endpoints.len().min(2);
        has_endpoint && (self.watched_ended || self.watched_rings.iter().all(is_there))
    }
}

impl SavedMonitor {
    /// Rebuilds the monitor; [`super::check_restored`] is to follow.
    pub(in crate::ports) fn restore(
        self,
        mut record: Record,
        id: u64,
        regions: &Regions,
        fds: &mut Incoming,
    ) -> Result<Port<Monitor>, Refusal> {
        let region = regions.existing(record.region)?;
        let page = record.page.take().filter(|page| page.range.len() == ChannelPage::bytes(self.watched_rings.len()));
        let Some(page) = page else { return invalid("the channels of a monitor") };
        let (mirror, mirror_memory) = match self.own_memory {
            Some(own) => {
                let own = Box::new(own.restore(None, &regions.files, fds)?);
                (self.mirror.restore(&own, fds)?, MirrorMemory::Own(own))
            }
            None => {
                let file = region.fd.try_clone();
                let file = file.or_else(|e| refuse(ENOMEM, format!("the daemon has no file descriptors left: {e}")))?;
                (self.mirror.restore(region, fds)?, MirrorMemory::Shared(file, pools_of(region)))
            }
        };
        let watched_rings = self.watched_rings.into_iter().map(|(transmit, id)| WatchedRing { transmit, id });
        let watched_rings: Vec<WatchedRing> = watched_rings.collect();
        let has_ring = |ring: &WatchedRing| ring.id < record.endpoints[0].rx.len();
        if mirror.tx.len() != watched_rings.len() || watched_rings.is_empty() || !watched_rings.iter().all(has_ring) {
            return invalid("the rings of a monitor");
        }
        let monitor = Monitor {
            id,
            channels: ChannelPage::new(page.range.clone()),
            mirror: Arc::new(mirror),
            mirror_memory,
            watched_rings,
            watched: self.watched,
            watched_ended: self.watched_ended,
            closed: self.closed,
        };
        Ok(monitor.with(record, page))
    }
}
