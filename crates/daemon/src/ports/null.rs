// SPDX-License-Identifier: BSD-2-Clause
//! Ports without a data path: memory and rings only (`NR_REG_NULL`).

use super::snapshot::PortSnapshot;
use crate::endpoint::{DataPath, Endpoint};
use crate::refusal::Refusal;
use crate::region::{RegionRecord, Scope};
use crate::registry::{BufferRepair, Port, Record};
use crate::shape::EndpointShape;

/// A port without a data path. It can be opened once.
pub(crate) struct NullPort;

impl NullPort {
    pub(super) fn create(
        region: &mut RegionRecord,
        scope: Scope,
        name: String,
        shape: EndpointShape,
    ) -> Result<Port<NullPort>, Refusal> {
        let endpoint = Endpoint::create(region, shape, DataPath::None)?;
        let record = Record { name: Some(name), ..Record::new(region.key, scope, [endpoint], BufferRepair::Skip) };
        Ok(Port { record, kind: NullPort })
    }
}

impl Port<NullPort> {
    pub(super) fn snapshot(&self, mem_id: u16) -> PortSnapshot {
        let name = self.record.name.clone().unwrap_or_default();
        PortSnapshot { open: true, ..PortSnapshot::new(name, "null", mem_id, (&self.record, 0)) }
    }
}
