// SPDX-License-Identifier: BSD-2-Clause
//! Monitors: ports that see the packets which cross the rings of another port.
//!
//! A monitor is a port with one session. The watched port's sync copies packets to mirror rings, one for each watched
//! ring, with a channel and a ring state of the same number (see `unetmap_mem::MirrorSet`); the monitor's sync
//! moves them on to its receive rings. A monitor that copies has a region of its own, and its mirror rings are in
//! memory that it shares with the watched programs only. A zero-copy monitor and its mirror rings lie in the watched
//! port's region.

use std::collections::BTreeMap;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use unetmap_core::control::binding::{BackendKind, BoundPool, BoundRing, ZERO_COPY};
use unetmap_core::control::monitor::{MirroredRing, MonitorHead, MonitorList, MonitorReply};
use unetmap_core::errno::ENOMEM;
use unetmap_mem::{ChannelPage, SyncState};

use super::shape::{WatchedRing, mirror_shape, mirror_usage, pools_of};
use crate::descriptors::invalid;
use crate::endpoint::{DataPath, Endpoint, PortRing, RingSelection};
use crate::ports::EndpointKey;
use crate::ports::key::Mover;
use crate::ports::snapshot::PortSnapshot;
use crate::refusal::{Refusal, refuse};
use crate::region::{NewMemory, RegionRecord, Scope, SharedPage, Sizes};
use crate::registry::{BufferRepair, Port, Record};
use crate::shape::EndpointShape;

/// The state of all monitors.
#[derive(Default)]
pub(crate) struct MonitorState {
    /// The number of the monitor that was created last.
    pub(crate) last: u64,
    /// By session: the lists of monitors that ports run by the daemon itself read.
    pub(in crate::ports) lists: BTreeMap<u64, Arc<MonitorList>>,
}

/// A monitor. It exists as long as it is open, and until no sync uses its mirror rings. Its endpoint has a transmit
/// ring that sends nothing, and the receive rings.
pub(crate) struct Monitor {
    pub(super) id: u64,
    /// Of the mirror rings: clients map them beside the monitor's states.
    pub(super) channels: ChannelPage,
    /// Its transmit rings are the mirror rings.
    pub(super) mirror: Arc<Endpoint>,
    pub(super) mirror_memory: MirrorMemory,
    /// The watched ring of each mirror ring.
    pub(super) watched_rings: Vec<WatchedRing>,
    pub(super) watched: EndpointKey,
    /// Whether the watched port has been closed.
    pub(super) watched_ended: bool,
    /// Whether the monitor has been closed.
    pub(super) closed: bool,
}

/// The memory of the mirror rings.
pub(super) enum MirrorMemory {
    /// A region that is in no registry.
    Own(Box<RegionRecord>),
    /// The watched port's region, which is also the monitor's: its file and its pools.
    Shared(OwnedFd, [BoundPool; 3]),
}

/// The source that fills the mirror ring of a watched ring: it moves the packets of this ring.
#[derive(Clone, Copy)]
pub(super) enum Source {
    /// The programs or threads that sync it. The number is that of the watched port's endpoint.
    Endpoint(usize, WatchedRing),
    /// The switch.
    Switch(WatchedRing),
}

/// A recipient of mirror rings: a session of an endpoint, with the rings that it has bound, or the switch.
#[derive(Clone, Copy)]
pub(super) enum Target<'a> {
    Session(usize, &'a RingSelection),
    Switch,
}

impl Monitor {
    pub(in crate::ports) fn mirror_pools(&self) -> [BoundPool; 3] {
        match &self.mirror_memory {
            MirrorMemory::Own(record) => pools_of(record),
            MirrorMemory::Shared(_, pools) => *pools,
        }
    }

    pub(super) fn mirror_fd(&self) -> BorrowedFd<'_> {
        match &self.mirror_memory {
            MirrorMemory::Own(record) => record.fd.as_fd(),
            MirrorMemory::Shared(fd, _) => fd.as_fd(),
        }
    }

    /// Whether it gets the watched port's buffers instead of copies.
    pub(in crate::ports) fn is_zero_copy(&self) -> bool {
        matches!(self.mirror_memory, MirrorMemory::Shared(..))
    }

    /// The endpoint that it watches.
    pub(in crate::ports) fn watched(&self) -> &EndpointKey {
        &self.watched
    }

    /// Whether it is open and its watched endpoint, `watched`, is, too.
    pub(super) fn watches(&self, watched: &EndpointKey) -> bool {
        self.watched == *watched && !self.watched_ended && !self.closed
    }

    /// Returns what fills the mirror ring of a watched ring.
    pub(super) fn source_of(&self, ring: WatchedRing) -> Source {
        let index = self.watched.index;
        match self.watched.port.mover() {
            // The program that receives does not see the packets before it syncs; their sender does.
            Mover::Peer if !ring.transmit && !self.is_zero_copy() => {
                Source::Endpoint(1 - index, WatchedRing { transmit: true, ..ring })
            }
            Mover::Switch if ring.transmit || !self.is_zero_copy() => Source::Switch(ring),
            Mover::Peer | Mover::Switch | Mover::Program => Source::Endpoint(index, ring),
        }
    }

    /// Returns the ring whose packets `target` moves to the mirror ring of a watched ring.
    pub(super) fn source_at(&self, ring: WatchedRing, target: Target<'_>) -> Option<WatchedRing> {
        match (self.source_of(ring), target) {
            (Source::Switch(source), Target::Switch) => Some(source),
            (Source::Endpoint(at, source), Target::Session(index, bound)) => {
                (at == index && source.of(&bound.tx, &bound.rx).contains(&source.id)).then_some(source)
            }
            _ => None,
        }
    }

    pub(super) fn has_mirror_for(&self, target: Target<'_>) -> bool {
        self.watched_rings.iter().any(|ring| self.source_at(*ring, target).is_some())
    }

    /// Returns the mirror rings that `target` fills. `record` is the monitor's.
    pub(super) fn describe_mirror(
        &self,
        record: &Record,
        target: Target<'_>,
    ) -> Result<(MonitorReply, Vec<OwnedFd>), Refusal> {
        let mut rings = Vec::new();
        let (Some(page), endpoint) = (&record.page, &record.endpoints[0]) else { return invalid("a monitor") };
        let mut fds = vec![self.mirror_fd(), self.mirror.state_page_file()?.0, page.fd.as_fd()];
        for (channel, watched) in self.watched_rings.iter().enumerate() {
            let Some(source) = self.source_at(*watched, target) else { continue };
            let shape = self.mirror.tx[channel].view.shape();
            rings.push(MirroredRing {
                offset: shape.offset,
                slots: shape.slots.get(),
                channel: channel as u32,
                id: source.id as u16,
                dir: u16::from(!source.transmit),
                zero_copy: self.is_zero_copy().into(),
            });
            fds.push(endpoint.rx[watched.id].doorbell.get()?.as_fd());
        }
        let head = MonitorHead {
            monitor: self.id,
            pools: self.mirror_pools(),
            states: self.watched_rings.len() as u32,
            channels_bytes: page.range.len() as u32,
        };
        let fds = fds.into_iter().map(|fd| fd.try_clone_to_owned()).collect::<std::io::Result<Vec<_>>>();
        let fds = fds.or_else(|e| refuse(ENOMEM, format!("the daemon has no file descriptors left: {e}")))?;
        Ok((MonitorReply { head, rings }, fds))
    }

    pub(super) fn channel_of(&self, ring: WatchedRing) -> Option<usize> {
        self.watched_rings.iter().position(|other| *other == ring)
    }

    /// Returns, for a receive ring, the slots in its mirror rings and the slots that had no room there.
    pub(super) fn ring_counters(&self, id: u16) -> (u32, u64) {
        let mut counters = (0, 0);
        let rings = [true, false].map(|transmit| WatchedRing { transmit, id: id.into() });
        for channel in rings.into_iter().filter_map(|ring| self.channel_of(ring)) {
            let slots = self.mirror.shape.tx_slots;
            let waiting = self.channels.words(channel).and_then(|words| words.positions(slots));
            counters.0 += waiting.map_or(0, |span| slots.distance(span.from, span.to));
            let state = self.mirror.state(channel);
            counters.1 += state.map_or(0, |state| state.dropped.load(Ordering::Relaxed));
        }
        counters
    }
}

/// Returns the state of a ring, also of an endpoint that is opened only later.
pub(super) fn ring_state(endpoint: &Endpoint, ring: WatchedRing) -> Option<&SyncState> {
    let state = ring.of(&endpoint.tx, &endpoint.rx).get(ring.id)?.state;
    let made = endpoint.make_states();
    made.inspect_err(|e| tracing::warn!("the monitor may miss packets: {}", e.why)).ok()?;
    endpoint.state(state)
}

impl Monitor {
    pub(super) fn create(
        (region, sizes): (&mut RegionRecord, Sizes),
        (id, scope, name, zero_copy): (u64, Scope, String, bool),
        shape: EndpointShape,
        watched_rings: Vec<WatchedRing>,
        watched: EndpointKey,
    ) -> Result<Port<Monitor>, Refusal> {
        let page = SharedPage::create("unetmap-channels", ChannelPage::bytes(watched_rings.len()))?;
        let count = watched_rings.len() as u32;
        let mirror_shape = mirror_shape(shape, watched_rings.len());
        let (mirror, mirror_memory) = if zero_copy {
            let file = region.fd.try_clone();
            let file = file.or_else(|e| refuse(ENOMEM, format!("the daemon has no file descriptors left: {e}")))?;
            let pools = pools_of(region);
            (Endpoint::create(region, mirror_shape, DataPath::None)?, MirrorMemory::Shared(file, pools))
        } else {
            let sizes = sizes.for_one_interface(count, count * shape.rx_slots.get());
            let memory = NewMemory::create("unetmap-monitor", sizes, None)?;
            let mut own = Box::new(RegionRecord::create((0, 0), scope, &name, memory));
            (Endpoint::create(&mut own, mirror_shape, DataPath::None)?, MirrorMemory::Own(own))
        };
        // As on an interface, each slot has a buffer of its own.
        let endpoint = match Endpoint::create(region, shape, DataPath::Kernel) {
            Ok(endpoint) => endpoint,
            Err(refusal) => {
                if zero_copy {
                    mirror.free(region);
                }
                return Err(refusal);
            }
        };
        let record = Record { name: Some(name), ..Record::new(region.key, scope, [endpoint], BufferRepair::Keep) };
        let (mirror, channels) = (Arc::new(mirror), ChannelPage::new(page.range.clone()));
        let (watched_ended, closed) = (false, false);
        let monitor = Monitor { id, channels, mirror, mirror_memory, watched_rings, watched, watched_ended, closed };
        Ok(monitor.with(record, page))
    }

    /// Adds it to a record.
    pub(super) fn with(self, record: Record, page: SharedPage) -> Port<Monitor> {
        let mirror = self.is_zero_copy().then(|| self.mirror.clone());
        let buf_size = match &self.mirror_memory {
            MirrorMemory::Own(record) => record.region.limits().buf_size,
            MirrorMemory::Shared(..) => 0,
        };
        let (page, other_usage) = (Some(page), mirror_usage(self.mirror.shape, buf_size));
        Port { record: Record { page, mirror, other_usage, ..record }, kind: self }
    }
}

impl Port<Monitor> {
    /// Completes the description of a ring for a client, and returns the file of its mirror rings, or of a transmit
    /// ring its own doorbell.
    pub(in crate::ports) fn describe_ring<'a>(
        &'a self,
        ring: &'a PortRing,
        bound_ring: &mut BoundRing,
    ) -> Result<BorrowedFd<'a>, Refusal> {
        bound_ring.backend = BackendKind::Monitor as u32;
        bound_ring.features = if self.is_zero_copy() { ZERO_COPY } else { 0 };
        if bound_ring.dir == 0 {
            return Ok(ring.doorbell.get()?.as_fd());
        }
        let mirror_ring = |transmit| {
            let channel = self.channel_of(WatchedRing { transmit, id: usize::from(bound_ring.id) })?;
            Some((self.mirror.tx[channel].view.shape().offset, channel as u32))
        };
        let (sent, received) = (mirror_ring(true).unwrap_or_default(), mirror_ring(false).unwrap_or_default());
        (bound_ring.peer_offset, bound_ring.channel) = sent;
        (bound_ring.second_offset, bound_ring.second_channel) = received;
        Ok(self.mirror_fd())
    }

    /// The memory files of the mirror rings, if they are beside the region.
    pub(in crate::ports) fn mirror_files(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        let own = (!self.is_zero_copy()).then(|| self.mirror_fd());
        self.mirror.state_page_file().map(|(file, _)| file).into_iter().chain(own)
    }

    /// Whether it can be released; `watched`: the endpoint that it watches, if it exists. A sync that runs may still
    /// use mirror rings in the watched port's region: it holds the lock of a watched ring, and has not observed the new
    /// list.
    pub(in crate::ports) fn is_releasable(&self, watched: Option<&Endpoint>) -> bool {
        let Some(endpoint) = watched else { return true };
        let not_observed = |ring: &WatchedRing| match self.source_of(*ring) {
            Source::Endpoint(_, source) => {
                ring_state(endpoint, source).is_some_and(|state| !state.status_was_observed())
            }
            // The switch was waited for.
            Source::Switch(_) => false,
        };
        !(self.is_zero_copy() && endpoint.in_use() && self.watched_rings.iter().any(not_observed))
    }

    /// Nothing of a monitor that is closed.
    pub(in crate::ports) fn snapshot(&self, mem_id: u16) -> Option<PortSnapshot> {
        let name = self.record.name.clone().unwrap_or_default();
        let mut port = PortSnapshot::new(name, "monitor", mem_id, (&self.record, 0));
        for ring in port.rings.iter_mut().filter(|ring| ring.dir == "rx") {
            (ring.queued, ring.dropped) = self.ring_counters(ring.id);
        }
        (!self.closed).then_some(port)
    }
}
