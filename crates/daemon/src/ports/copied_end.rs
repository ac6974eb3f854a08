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

use serde::{Deserialize, Serialize};
use unetmap_abi::{NR_REG_ONE_NIC, PipeRole};

use super::mediated::thread_usage;
use super::pipe::PipeKey;
use super::snapshot::PortSnapshot;
use super::{AnyPort, Asked, Daemon, EndpointKey, PortKey, mediators, pipe_rings};
use crate::budget::Amounts;
use crate::caller::Caller;
use crate::descriptors::invalid;
use crate::endpoint::Endpoint;
use crate::ports::Registry;
use crate::refusal::Refusal;
use crate::registry::{Port, Record};

/// An end of a pipe in another region than the pipe.
pub(crate) struct CopiedEnd {
    key: CopiedEndKey,
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

impl CopiedEnd {
    /// Its kind's part of the record.
    fn new(record: Record, key: CopiedEndKey) -> Port<CopiedEnd> {
        let other_usage = thread_usage(record.endpoints[key.index].shape.pairs());
        Port { record: Record { other_usage, ..record }, kind: CopiedEnd { key } }
    }

    /// Rebuilds an end that another daemon has handed over. Its threads follow.
    pub(super) fn restore(record: Record, key: &CopiedEndKey) -> Result<Port<CopiedEnd>, Refusal> {
        if key.index >= record.endpoints.len() {
            return invalid("an end of a pipe");
        }
        Ok(CopiedEnd::new(record, key.clone()))
    }
}

/// Returns the copied end in place of an end of an existing pipe, if there is one.
pub(super) fn find(registry: &Registry, pipe: &PipeKey, index: usize) -> Option<EndpointKey> {
    let at = CopiedEndKey { pipe: pipe.clone(), index }.copied();
    registry.port(&at.port).is_ok().then_some(at)
}

/// Returns the end of an existing pipe that a request gets: the pipe's own, or, if it is closed and the request names
/// another region, a copied one, which is created.
pub(super) fn find_or_create(
    daemon: &mut Daemon,
    pipe: PipeKey,
    index: usize,
    request: &mut Asked<'_>,
    caller: &Caller,
) -> Result<EndpointKey, Refusal> {
    let mem_id = request.nr_mem_id;
    if let Some(copied) = find(&daemon.registry, &pipe, index) {
        let region = daemon.registry.record(&copied.port)?.region;
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
    let region = daemon.requested_region(mem_id, caller, request.memory)?;
    if region == pipe_region {
        return Ok(at);
    }
    let usage = Amounts::endpoints(2, shape).and(thread_usage(shape.pairs()));
    let created = daemon.check_budget(key.pipe.scope, usage).and_then(|()| {
        let record = daemon.registry.regions.existing_mut(region)?;
        pipe_rings::create(record, key.pipe.scope, (shape, key.role()), true)
    });
    let record = created.inspect_err(|_| daemon.registry.free_region_if_unused(region))?;
    let copied = key.copied();
    daemon.registry.insert(copied.port.clone(), AnyPort::CopiedEnd(CopiedEnd::new(record, key)));
    Ok(copied)
}

/// A program has opened a session: starts the threads if none run.
pub(super) fn session_opened(daemon: &mut Daemon, key: &CopiedEndKey) -> Result<(), Refusal> {
    let port = PortKey::CopiedEnd(key.clone());
    let Some(found) = daemon.registry.get::<CopiedEnd>(&port).filter(|found| found.record.mediators.is_empty()) else {
        return Ok(());
    };
    let shape = found.endpoint().shape;
    let facing = EndpointKey { port: port.clone(), index: 1 - key.index };
    let (name, original, rings) = (key.name(), key.original(), (shape.tx_rings, shape.rx_rings));
    let threads = mediators::start_all(daemon, &facing, &name, (&original, NR_REG_ONE_NIC), rings)?;
    if let Some(found) = daemon.registry.get_mut::<CopiedEnd>(&port) {
        found.record.mediators = threads;
    }
    Ok(())
}

/// Stops the threads if no program has the end open, and closes the pipe's own end.
pub(super) fn stop_if_unused(daemon: &mut Daemon, key: &CopiedEndKey) {
    let found = daemon.registry.get_mut::<CopiedEnd>(&PortKey::CopiedEnd(key.clone()));
    let Some(found) = found.filter(|found| !found.endpoint().in_use()) else { return };
    let threads = std::mem::take(&mut found.record.mediators);
    mediators::stop(daemon, threads);
}

impl Port<CopiedEnd> {
    /// The endpoint that programs open.
    fn endpoint(&self) -> &Endpoint {
        &self.record.endpoints[self.key.index]
    }

    pub(super) fn snapshot(&self, mem_id: u16) -> PortSnapshot {
        PortSnapshot::new(self.key.name(), "copied", mem_id, (&self.record, self.key.index))
    }
}
