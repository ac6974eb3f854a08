// SPDX-License-Identifier: BSD-2-Clause
//! Ports without a data path: memory and rings only (`NR_REG_NULL`).

use std::os::fd::{AsFd, BorrowedFd};
use std::slice;

use serde::{Deserialize, Serialize};
use unetmap_abi::{NmreqRegister, PortSpec};
use unetmap_core::control::binding::{BackendKind, BoundRing};
use unetmap_core::errno::EBUSY;

use super::snapshot::PortSnapshot;
use super::{Daemon, Description, EndpointKey, Port, PortKey, Registry, SavedPort};
use crate::budget::Amounts;
use crate::caller::Caller;
use crate::descriptors::{Incoming, Outgoing};
use crate::endpoint::{DataPath, Endpoint, PortRing, RingSelection, SavedEndpoint};
use crate::refusal::{Refusal, refuse};
use crate::region::{RegionKey, Scope};
use crate::registry::{BufferRepair, PortRecord};
use crate::shape::{EndpointShape, MAX_PIPE_RINGS};

/// A port without a data path. It can be opened once.
pub(crate) struct NullPort {
    scope: Scope,
    name: String,
    region: RegionKey,
    endpoint: Endpoint,
}

/// Creates the port.
pub(super) fn create(
    daemon: &mut Daemon,
    spec: &PortSpec,
    request: &NmreqRegister,
    caller: &Caller,
) -> Result<EndpointKey, Refusal> {
    let (scope, name) = (daemon.scope(caller), spec.name.clone());
    let key = PortKey::Null(scope, name.clone());
    if daemon.registry.port(&key).is_ok() {
        return refuse(EBUSY, "a port without a data path cannot be opened twice");
    }
    let shape = EndpointShape::requested(request, MAX_PIPE_RINGS)?;
    daemon.check_budget(scope, Amounts::endpoints(1, shape))?;
    let region = daemon.requested_region(request.nr_mem_id, caller)?;
    let record = daemon.registry.regions.existing_mut(region)?;
    let created = Endpoint::create(record, shape, DataPath::None);
    let endpoint = created.inspect_err(|_| daemon.registry.free_region_if_unused(region))?;
    daemon.registry.insert(key.clone(), Box::new(NullPort { scope, name, region, endpoint }));
    Ok(key.into())
}

/// The port as the daemon hands it to its successor.
#[derive(Serialize, Deserialize)]
pub(crate) struct SavedNull {
    region: RegionKey,
    endpoint: SavedEndpoint,
}

impl SavedNull {
    pub(super) fn restore(
        self,
        (scope, name): (Scope, &str),
        registry: &Registry,
        fds: &mut Incoming,
    ) -> Result<Box<dyn Port>, Refusal> {
        let endpoint = self.endpoint.restore(registry.regions.existing(self.region)?, fds)?;
        Ok(Box::new(NullPort { scope, name: name.into(), region: self.region, endpoint }))
    }
}

impl PortRecord for NullPort {
    fn region(&self) -> RegionKey {
        self.region
    }

    fn endpoints(&self) -> &[Endpoint] {
        slice::from_ref(&self.endpoint)
    }

    fn buffer_repair(&self) -> BufferRepair<'_> {
        BufferRepair::Skip
    }
}

impl Port for NullPort {
    fn endpoint_mut(&mut self, _index: usize) -> Option<&mut Endpoint> {
        Some(&mut self.endpoint)
    }

    fn describe(&self, _index: usize) -> Description<'_> {
        Description::without_page()
    }

    fn describe_ring<'a>(
        &'a self,
        _daemon: &Daemon,
        _index: usize,
        ring: &'a PortRing,
        bound_ring: &mut BoundRing,
    ) -> Result<BorrowedFd<'a>, Refusal> {
        bound_ring.backend = BackendKind::Null as u32;
        Ok(ring.doorbell.get()?.as_fd())
    }

    fn unbind(&mut self, _index: usize, selection: &RingSelection) {
        self.endpoint.unbind(selection, None, None);
    }

    fn release(self: Box<Self>, _daemon: &mut Daemon) -> Vec<Endpoint> {
        vec![self.endpoint]
    }

    fn save<'a>(&'a self, fds: &mut Outgoing<'a>) -> Result<SavedPort, Refusal> {
        Ok(SavedPort::Null(SavedNull { region: self.region, endpoint: self.endpoint.save(fds) }))
    }

    fn owner(&self) -> u32 {
        self.scope.uid
    }

    fn snapshot(&self, daemon: &Daemon) -> Vec<PortSnapshot> {
        let mem_id = daemon.registry.regions.mem_id(self.region);
        let port = PortSnapshot::new(self.name.clone(), "null", mem_id, &self.endpoint, None);
        vec![PortSnapshot { open: true, ..port }]
    }
}
