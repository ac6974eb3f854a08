// SPDX-License-Identifier: BSD-2-Clause
//! The record that ports of all kinds have. Rings are bound, unbound, repaired, saved and restored here, once; no kind
//! is known here.

use std::ops::{Deref, DerefMut};
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use unetmap_mem::ChannelPage;
use unetmap_switch::port::SwitchPort;

use crate::budget::Amounts;
use crate::descriptors::{FdIndex, Incoming, Outgoing, invalid};
use crate::endpoint::{Endpoint, RingSelection, SavedEndpoint};
use crate::ledger::Charge;
use crate::offsets::OffsetLayout;
use crate::ports::mediator::MediatorThread;
use crate::refusal::Refusal;
use crate::region::{RegionKey, RegionRecord, Scope, SharedPage};
use crate::registry::Regions;
use crate::shape::EndpointShape;

/// A port of one kind, with what this kind has besides.
pub(crate) struct Port<T> {
    pub(crate) record: Record,
    pub(crate) kind: T,
}

impl<T> Deref for Port<T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.kind
    }
}

impl<T> DerefMut for Port<T> {
    fn deref_mut(&mut self) -> &mut T {
        &mut self.kind
    }
}

/// The part that a port of any kind has.
pub(crate) struct Record {
    /// The region that contains its rings.
    pub(crate) region: RegionKey,
    /// The user and the namespace of its name.
    pub(crate) scope: Scope,
    /// The user that is charged for it: another one of a shared pipe that not its owner opened.
    pub(crate) payer: u32,
    /// The name that clients and snapshots see; `None`: the name in the request.
    pub(crate) name: Option<String>,
    /// The endpoints that sessions can bind. The thread that has an interface shares its endpoint.
    pub(crate) endpoints: Vec<Arc<Endpoint>>,
    /// An endpoint that no session can bind and that holds buffers of the region: the mirror rings of a zero-copy
    /// monitor.
    pub(crate) mirror: Option<Arc<Endpoint>>,
    /// The channels of its rings.
    pub(crate) channels: Option<ChannelPage>,
    /// The page that clients map beside the state page: the channels, or the frames that an interface has transmitted.
    pub(crate) page: Option<SharedPage>,
    /// The page of its counters, which no program maps.
    pub(crate) counters: Option<SharedPage>,
    pub(crate) repair: BufferRepair,
    /// The sides that face a switch, whose threads exchange the buffers of the port.
    pub(crate) switch_sides: Vec<Arc<SwitchPort>>,
    /// The threads that move its packets, if the daemon does.
    pub(crate) mediators: Vec<MediatorThread>,
    /// Whether the buffers of the region are locked in memory for it.
    pub(crate) locks_buffers: bool,
    /// Returns its share of its user's budget, besides its endpoints, for as long as it exists.
    pub(crate) other_usage: Amounts,
    /// Its user's charge for it.
    pub(crate) charges: Vec<Arc<Charge>>,
}

/// How [`super::Registry::tidy`] treats the rings of a port.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(crate) enum BufferRepair {
    /// No program can exchange buffers of the port with another.
    Skip,
    /// Slots of unbound rings may be given other buffers, but for those that are sent and not released.
    Slots,
    /// All buffers of the port stay where they are.
    Keep,
}

impl Record {
    /// The record of a port that has neither channels nor a page.
    pub(crate) fn new<E: Into<Arc<Endpoint>>>(
        region: RegionKey,
        scope: Scope,
        endpoints: impl IntoIterator<Item = E>,
        repair: BufferRepair,
    ) -> Record {
        Record {
            region,
            scope,
            payer: scope.uid,
            name: None,
            endpoints: endpoints.into_iter().map(E::into).collect(),
            mirror: None,
            channels: None,
            page: None,
            counters: None,
            repair,
            switch_sides: Vec::new(),
            mediators: Vec::new(),
            locks_buffers: false,
            other_usage: Amounts::default(),
            charges: Vec::new(),
        }
    }

    /// All endpoints that hold buffers of the region.
    pub(super) fn buffer_holders(&self) -> impl Iterator<Item = &Arc<Endpoint>> {
        self.endpoints.iter().chain(&self.mirror)
    }

    /// The channels, if programs have both of their ends.
    pub(super) fn channels_between(&self) -> Option<&ChannelPage> {
        self.channels.as_ref().filter(|_| self.endpoints.len() == 2)
    }

    /// Whether a thread of the daemon exchanges buffers of this port: between its own receive slots, or with other such
    /// ports of its region.
    pub(super) fn exchanges_buffers(&self) -> bool {
        !self.switch_sides.is_empty() || self.mirror.is_some()
    }

    /// Whether a session has a ring bound.
    pub(crate) fn is_open(&self) -> bool {
        self.endpoints.iter().any(|endpoint| endpoint.in_use())
    }

    /// Sets the offsets of the rings that a session is to bind.
    pub(crate) fn set_offsets(&self, index: usize, selection: &RingSelection, layout: Option<OffsetLayout>) {
        self.endpoints[index].set_offsets(selection, layout, self.channels.as_ref());
    }

    /// Binds the rings for one more session.
    pub(crate) fn bind(&self, index: usize, selection: &RingSelection) {
        self.endpoints[index].bind(selection, |ring| ring.start_position(self.channels.as_ref()));
    }

    /// Unbinds the rings of a session.
    pub(crate) fn unbind(&self, index: usize, selection: &RingSelection) {
        let peer = self.endpoints.get(1 - index).map(|peer| &**peer);
        self.endpoints[index].unbind(selection, self.channels.as_ref(), peer);
    }

    /// Frees every lock that the exited process with this holder ID held, and returns how many there were.
    pub(crate) fn break_locks(&self, holder: u32) -> usize {
        self.endpoints.iter().map(|endpoint| endpoint.break_locks(holder)).sum()
    }

    /// Returns the port's share of its user's budget, besides memory of its region.
    pub(crate) fn usage(&self) -> Amounts {
        self.with_endpoints(Amounts::endpoints_in_region)
    }

    /// The same, with memory of its region.
    pub(crate) fn usage_with_memory(&self) -> Amounts {
        self.with_endpoints(Amounts::endpoints)
    }

    fn with_endpoints(&self, amounts: fn(u64, EndpointShape) -> Amounts) -> Amounts {
        let mut sum = self.other_usage;
        self.endpoints.iter().for_each(|endpoint| sum += amounts(1, endpoint.shape));
        sum
    }

    /// The memory files that programs may have, besides that of the region.
    pub(crate) fn files(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        let states = self.endpoints.iter().filter_map(|endpoint| endpoint.state_page_file().ok());
        states.map(|(file, _)| file).chain(self.page.as_ref().map(|page| page.fd.as_fd()))
    }

    /// Ends the record of a port that is no longer in the registry, and returns its endpoints, whose rings and buffers
    /// are still allocated.
    pub(crate) fn into_endpoints(self) -> Vec<Arc<Endpoint>> {
        self.endpoints.into_iter().chain(self.mirror).collect()
    }
}

/// Of a page: its file, its offset there, and its bytes.
type SavedPage = (FdIndex, u64, usize);

/// A record as the daemon hands it to its successor.
#[derive(Serialize, Deserialize)]
pub(crate) struct SavedRecord {
    region: RegionKey,
    scope: Scope,
    #[serde(default)]
    payer: Option<u32>,
    name: Option<String>,
    endpoints: Vec<SavedEndpoint>,
    page: Option<SavedPage>,
    /// Since version 18.
    #[serde(default)]
    counters: Option<SavedPage>,
    has_channels: bool,
    repair: BufferRepair,
}

impl Record {
    pub(crate) fn save<'a>(&'a self, fds: &mut Outgoing<'a>) -> SavedRecord {
        let endpoints = self.endpoints.iter().map(|endpoint| endpoint.save(fds)).collect();
        let mut save = |page: &'a SharedPage| (fds.add(&page.fd), page.offset, page.range.len());
        SavedRecord {
            region: self.region,
            scope: self.scope,
            payer: Some(self.payer),
            name: self.name.clone(),
            endpoints,
            page: self.page.as_ref().map(&mut save),
            counters: self.counters.as_ref().map(&mut save),
            has_channels: self.channels.is_some(),
            repair: self.repair,
        }
    }
}

impl SavedRecord {
    /// Rebuilds the record of a port with so many endpoints. Its kind adds what follows from its own state.
    pub(crate) fn restore(self, count: usize, regions: &Regions, fds: &mut Incoming) -> Result<Record, Refusal> {
        let SavedRecord { region, scope, payer, name, endpoints, page, counters, has_channels, repair } = self;
        let of: &RegionRecord = regions.existing(region)?;
        if endpoints.len() != count || has_channels && page.is_none() || count > 1 && !has_channels {
            return invalid("a port lacks an endpoint, or its channels");
        }
        let endpoints: Result<Vec<_>, _> = endpoints.into_iter().map(|saved| saved.restore(of, fds)).collect();
        let mut take = |(file, offset, bytes): SavedPage| {
            let (range, fd) = fds.take_page(file, offset, bytes)?;
            Ok::<_, Refusal>(SharedPage { range, fd, offset })
        };
        let (page, counters) = (page.map(&mut take).transpose()?, counters.map(&mut take).transpose()?);
        let channels = page.as_ref().filter(|_| has_channels).map(|page| ChannelPage::new(page.range.clone()));
        let payer = payer.unwrap_or(scope.uid);
        Ok(Record { payer, name, page, counters, channels, ..Record::new(region, scope, endpoints?, repair) })
    }
}
