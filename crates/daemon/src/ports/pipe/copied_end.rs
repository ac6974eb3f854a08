// SPDX-License-Identifier: BSD-2-Clause
//! Copied ends of pipes: an end that is opened in another region than the pipe lies in, as a program does that opens a
//! pipe in the region of its interface after the pipe's reader has opened the other end without one.
//!
//! ```text
//! program == endpoint, in the region that it names == [thread for each ring pair] == that end of the pipe == reader
//! ```
//! A region is mapped once and its rings refer to it, so an open end cannot move; packets are copied between the two
//! regions. The port is a pipe of its own whose other endpoint the daemon has open, as a mediated port is, and the
//! threads are the same.

use std::os::fd::BorrowedFd;

use serde::{Deserialize, Serialize};
use unetmap_abi::{NR_REG_ONE_NIC, NmreqRegister, PipeRole};
use unetmap_core::control::binding::BoundRing;
use unetmap_mem::ChannelPage;

use super::PipeKey;
use crate::budget::Amounts;
use crate::caller::Caller;
use crate::descriptors::{Incoming, Outgoing, invalid};
use crate::endpoint::{Endpoint, PortRing, RingSelection};
use crate::ports::mediated::thread_usage;
use crate::ports::mediator::{self, Directions, MediatorThread};
use crate::ports::pipe_rings::{PipeRings, SavedPipeRings};
use crate::ports::snapshot::PortSnapshot;
use crate::ports::{Daemon, Description, EndpointKey, Mediators, Port, PortKey, Registry, SavedPort};
use crate::refusal::Refusal;
use crate::region::RegionKey;
use crate::registry::{BufferRepair, PortRecord};

/// An end of a pipe in another region than the pipe.
pub(crate) struct CopiedEnd {
    key: CopiedEndKey,
    inner: PipeRings,
    /// While a program has it open: one for each ring pair.
    threads: Vec<MediatorThread>,
}

/// Identifies a copied end.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize, Deserialize)]
pub(crate) struct CopiedEndKey {
    pub(crate) pipe: PipeKey,
    /// The index of the end, and of the program's endpoint.
    pub(crate) index: usize,
}

impl CopiedEndKey {
    /// The pipe's own end, which the daemon has open.
    fn original(&self) -> EndpointKey {
        EndpointKey { port: PortKey::Pipe(self.pipe.clone()), index: self.index }
    }

    /// The endpoint that programs open.
    fn copied(&self) -> EndpointKey {
        EndpointKey { port: PortKey::CopiedEnd(self.clone()), index: self.index }
    }

    fn role(&self) -> PipeRole {
        if self.index == 0 { PipeRole::Master } else { PipeRole::Slave }
    }

    fn name(&self) -> String {
        let sign = if self.index == 0 { '{' } else { '}' };
        format!("{}{sign}{}", self.pipe.parent, self.pipe.id)
    }
}

/// Rebuilds an end that another daemon has handed over. Its threads follow.
pub(in crate::ports) fn restore(
    saved: SavedPipeRings,
    key: &CopiedEndKey,
    registry: &Registry,
    fds: &mut Incoming,
) -> Result<Box<dyn Port>, Refusal> {
    let inner = saved.restore(registry, fds)?;
    if key.index >= inner.endpoints.len() {
        return invalid("an end of a pipe");
    }
    Ok(Box::new(CopiedEnd { key: key.clone(), inner, threads: Vec::new() }))
}

/// Returns the copied end in place of an end of an existing pipe, if there is one.
pub(in crate::ports) fn find(daemon: &Daemon, pipe: &PipeKey, index: usize) -> Option<EndpointKey> {
    let at = CopiedEndKey { pipe: pipe.clone(), index }.copied();
    daemon.registry.port(&at.port).is_ok().then_some(at)
}

/// Returns the end of an existing pipe that a request gets: the pipe's own, or, if it is closed and the request names
/// another region, a copied one, which is created.
pub(in crate::ports) fn find_or_create(
    daemon: &mut Daemon,
    pipe: PipeKey,
    index: usize,
    request: &NmreqRegister,
    caller: &Caller,
) -> Result<EndpointKey, Refusal> {
    let mem_id = request.nr_mem_id;
    if let Some(copied) = find(daemon, &pipe, index) {
        let region = daemon.registry.port(&copied.port)?.region();
        daemon.registry.regions.check_number("pipe's end", region, mem_id)?;
        return Ok(copied);
    }
    let key = CopiedEndKey { pipe, index };
    let at = key.original();
    let (endpoint, pipe_region) = daemon.registry.endpoint(&at)?;
    let (shape, in_use) = (endpoint.shape, endpoint.in_use());
    if in_use || mem_id == 0 {
        daemon.registry.regions.check_number("pipe", pipe_region, mem_id)?;
        return Ok(at);
    }
    let region = daemon.requested_region(mem_id, caller)?;
    if region == pipe_region {
        return Ok(at);
    }
    let usage = Amounts::endpoints(2, shape).and(thread_usage(shape.pairs()));
    let created = daemon.check_budget(key.pipe.scope, usage).and_then(|()| {
        let record = daemon.registry.regions.existing_mut(region)?;
        PipeRings::create(record, shape, key.role(), true)
    });
    let inner = created.inspect_err(|_| daemon.registry.free_region_if_unused(region))?;
    let copied = key.copied();
    daemon.registry.insert(copied.port.clone(), Box::new(CopiedEnd { key, inner, threads: Vec::new() }));
    Ok(copied)
}

/// A program has opened a session: starts the threads if none run.
pub(in crate::ports) fn session_opened(daemon: &mut Daemon, key: &CopiedEndKey) -> Result<(), Refusal> {
    let port = PortKey::CopiedEnd(key.clone());
    let Some(found) = daemon.registry.get::<CopiedEnd>(&port).filter(|found| found.threads.is_empty()) else {
        return Ok(());
    };
    let shape = found.inner.endpoints[key.index].shape;
    let facing = EndpointKey { port: port.clone(), index: 1 - key.index };
    let mut threads = Vec::new();
    for ring in 0..shape.tx_rings.max(shape.rx_rings) {
        let directions = Directions { tx: ring < shape.tx_rings, rx: ring < shape.rx_rings };
        let pair = ((NR_REG_ONE_NIC, ring), NR_REG_ONE_NIC);
        let prepared = mediator::prepare(daemon, &facing, &key.name(), &key.original(), pair, directions);
        match prepared.and_then(|prepared| mediator::start(daemon, &key.name(), prepared)) {
            Ok(thread) => threads.push(thread),
            Err(refusal) => {
                mediator::stop(daemon, threads);
                return Err(refusal);
            }
        }
    }
    if let Some(found) = daemon.registry.get_mut::<CopiedEnd>(&port) {
        found.threads = threads;
    }
    Ok(())
}

/// Stops the threads if no program has the end open, and closes the pipe's own end.
pub(in crate::ports) fn stop_if_unused(daemon: &mut Daemon, key: &CopiedEndKey) {
    let found = daemon.registry.get_mut::<CopiedEnd>(&PortKey::CopiedEnd(key.clone()));
    let Some(found) = found.filter(|found| !found.inner.endpoints[key.index].in_use()) else { return };
    let threads = std::mem::take(&mut found.threads);
    mediator::stop(daemon, threads);
}

impl PortRecord for CopiedEnd {
    fn region(&self) -> RegionKey {
        self.inner.region
    }

    fn endpoints(&self) -> &[Endpoint] {
        &self.inner.endpoints
    }

    fn buffer_repair(&self) -> BufferRepair<'_> {
        BufferRepair::Slots(Some(&self.inner.channels))
    }
}

impl Port for CopiedEnd {
    fn endpoint_mut(&mut self, index: usize) -> Option<&mut Endpoint> {
        self.inner.endpoints.get_mut(index)
    }

    fn channels(&self) -> Option<&ChannelPage> {
        Some(&self.inner.channels)
    }

    fn supports_offsets(&self) -> bool {
        false
    }

    fn describe(&self, _index: usize) -> Description<'_> {
        self.inner.describe()
    }

    fn describe_ring<'a>(
        &'a self,
        _daemon: &Daemon,
        index: usize,
        ring: &'a PortRing,
        bound_ring: &mut BoundRing,
    ) -> Result<BorrowedFd<'a>, Refusal> {
        self.inner.describe_ring(index, ring, bound_ring)
    }

    fn unbind(&mut self, index: usize, selection: &RingSelection) {
        self.inner.unbind(index, selection);
    }

    fn release(self: Box<Self>, _daemon: &mut Daemon) -> Vec<Endpoint> {
        self.inner.endpoints.into()
    }

    fn save<'a>(&'a self, fds: &mut Outgoing<'a>) -> Result<SavedPort, Refusal> {
        Ok(SavedPort::CopiedEnd(self.inner.save(fds)))
    }

    fn mediators(&mut self) -> Option<&mut Mediators> {
        Some(&mut self.threads)
    }

    fn owner(&self) -> u32 {
        self.key.pipe.scope.uid
    }

    fn other_usage(&self) -> Amounts {
        thread_usage(self.inner.endpoints[self.key.index].shape.pairs())
    }

    fn snapshot(&self, daemon: &Daemon) -> Vec<PortSnapshot> {
        let mem_id = daemon.registry.regions.mem_id(self.inner.region);
        let (endpoint, channels) = (&self.inner.endpoints[self.key.index], Some(&self.inner.channels));
        vec![PortSnapshot::new(self.key.name(), "copied", mem_id, endpoint, channels)]
    }
}
