// SPDX-License-Identifier: BSD-2-Clause
//! Sinks, `netmap:nmsink0` and so on: ports that take what is sent, at a set rate, and receive nothing. They look like
//! an interface, with host rings and in the region of interfaces, but the kernel has none of them.

use serde::{Deserialize, Serialize};
use unetmap_core::control::binding::{BackendKind, BoundRing};
use unetmap_core::errno::EBUSY;

use super::snapshot::PortSnapshot;
use crate::endpoint::{DataPath, Endpoint, PortRing};
use crate::refusal::{Refusal, refuse};
use crate::region::{RegionRecord, Scope};
use crate::registry::{BufferRepair, Port, Record};
use crate::shape::EndpointShape;

/// A sink that a program has open, or a switch.
#[derive(Serialize, Deserialize)]
pub(crate) struct Sink {
    /// Nanoseconds that a sent slot takes.
    slot_ns: u64,
    /// Whether a switch has it, and no program can open it.
    pub(super) is_attached: bool,
}

pub(super) const ATTACHED: &str = "it is attached to a switch (vale-ctl lists the ports; vale-ctl -d detaches one)";

impl Sink {
    /// Creates the port; `slot_ns`: nanoseconds that a sent slot takes.
    pub(super) fn create(
        region: &mut RegionRecord,
        scope: Scope,
        name: String,
        (shape, slot_ns): (EndpointShape, u64),
    ) -> Result<Port<Sink>, Refusal> {
        // As on an interface, each slot has a buffer of its own.
        let endpoint = Endpoint::create(region, shape, DataPath::Kernel)?;
        let record = Record { name: Some(name), ..Record::new(region.key, scope, [endpoint], BufferRepair::Slots) };
        Ok(Port { record, kind: Sink { slot_ns, is_attached: false } })
    }
}

impl Port<Sink> {
    /// Refuses a program, if a switch has the sink.
    pub(super) fn check_request(&self) -> Result<(), Refusal> {
        if self.is_attached { refuse(EBUSY, ATTACHED) } else { Ok(()) }
    }

    /// Writes the back end that takes the slots of a ring, and its time for each.
    pub(super) fn describe_ring(&self, ring: &PortRing, bound_ring: &mut BoundRing) {
        if bound_ring.dir == 0 {
            bound_ring.backend = BackendKind::Sink as u32;
            let is_host_ring = ring.pair >= self.record.endpoints[0].shape.nic_pairs();
            bound_ring.slot_ns = if is_host_ring { 0 } else { self.slot_ns };
        }
    }

    pub(super) fn snapshot(&self, mem_id: u16) -> PortSnapshot {
        PortSnapshot::new(self.record.name.clone().unwrap_or_default(), "sink", mem_id, (&self.record, 0))
    }
}
