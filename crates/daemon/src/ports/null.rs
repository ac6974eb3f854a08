// SPDX-License-Identifier: BSD-2-Clause
//! Ports without a data path: memory and rings only (`NR_REG_NULL`).

use unetmap_abi::PortSpec;
use unetmap_core::errno::EBUSY;

use super::snapshot::PortSnapshot;
use super::{AnyPort, Asked, Daemon, EndpointKey, PortKey};
use crate::budget::Amounts;
use crate::caller::Caller;
use crate::endpoint::{DataPath, Endpoint};
use crate::refusal::{Refusal, refuse};
use crate::registry::{BufferRepair, Port, Record};
use crate::shape::{EndpointShape, MAX_PIPE_RINGS};

/// A port without a data path. It can be opened once.
pub(crate) struct NullPort;

/// Creates the port.
pub(super) fn create(
    daemon: &mut Daemon,
    spec: &PortSpec,
    request: &mut Asked<'_>,
    caller: &Caller,
) -> Result<EndpointKey, Refusal> {
    let (scope, name) = (daemon.admission.scope(caller), spec.name.clone());
    let key = PortKey::Null(scope, name.clone());
    if daemon.registry.port(&key).is_ok() {
        return refuse(EBUSY, "a port without a data path cannot be opened twice");
    }
    let shape = EndpointShape::requested(request, MAX_PIPE_RINGS)?;
    daemon.check_budget(scope, Amounts::endpoints(1, shape))?;
    let region = daemon.requested_region(request.nr_mem_id, caller, request.memory)?;
    let record = daemon.registry.regions.existing_mut(region)?;
    let created = Endpoint::create(record, shape, DataPath::None);
    let endpoint = created.inspect_err(|_| daemon.registry.free_region_if_unused(region))?;
    let record = Record { name: Some(name), ..Record::new(region, scope, [endpoint], BufferRepair::Skip) };
    daemon.registry.insert(key.clone(), AnyPort::Null(Port { record, kind: NullPort }));
    Ok(key.into())
}

impl Port<NullPort> {
    pub(super) fn snapshot(&self, mem_id: u16) -> PortSnapshot {
        let name = self.record.name.clone().unwrap_or_default();
        PortSnapshot { open: true, ..PortSnapshot::new(name, "null", mem_id, (&self.record, 0)) }
    }
}
