// SPDX-License-Identifier: BSD-2-Clause
//! Sinks, `netmap:nmsink0` and so on: ports that take what is sent, at a set rate, and receive nothing. They look like
//! an interface, with host rings and in the region of interfaces, but the kernel has none of them.

use serde::{Deserialize, Serialize};
use unetmap_abi::NmreqRegister;
use unetmap_core::control::binding::{BackendKind, BoundRing};
use unetmap_core::errno::{EACCES, EBUSY, ENXIO};

use super::snapshot::PortSnapshot;
use super::{AnyPort, Asked, Daemon, EndpointKey, PortKey, nic};
use crate::admission::Admission;
use crate::budget::Amounts;
use crate::caller::Caller;
use crate::endpoint::{DataPath, Endpoint, PortRing};
use crate::refusal::{Refusal, refuse};
use crate::region::RegionMemory;
use crate::registry::{BufferRepair, Port, Record};
use crate::shape::EndpointShape;

/// The names of sinks, before the number.
const PREFIX: &str = "nmsink";
/// Ring pairs.
const MAX_RINGS: u16 = 64;

/// A sink that a program has open, or a switch.
#[derive(Serialize, Deserialize)]
pub(crate) struct Sink {
    /// Nanoseconds that a sent slot takes.
    slot_ns: u64,
    /// Whether a switch has it, and no program can open it.
    is_attached: bool,
}

/// Returns the number of the sink of that name; `None` if the name is no sink's, or an interface has it.
pub(super) fn number(admission: &Admission, name: &str, caller: &Caller) -> Result<Option<u32>, Refusal> {
    let digits = name.strip_prefix(PREFIX).filter(|digits| *digits == "0" || !digits.starts_with(['0', '+']));
    let Some(number) = digits.and_then(|digits| digits.parse().ok()) else { return Ok(None) };
    let is_interface = admission.policy.is_some() && nic::find_link(name, caller)?.is_some();
    Ok((!is_interface).then_some(number))
}

/// Finds the sink, or creates it.
pub(super) fn find_or_create(
    daemon: &mut Daemon,
    number: u32,
    request: &mut Asked<'_>,
    caller: &Caller,
) -> Result<EndpointKey, Refusal> {
    let scope = daemon.admission.scope(caller);
    let key = PortKey::Sink(scope, number);
    if let Ok(port) = daemon.registry.record(&key) {
        daemon.registry.regions.check_number("sink", port.region, request.nr_mem_id)?;
        return Ok(key.into());
    }
    if !daemon.admission.may_use_pipes(caller)? {
        return refuse(EACCES, "this daemon serves sinks to other users only where its policy serves them pipes");
    }
    let sinks = daemon.knobs.sink_num();
    if number >= sinks {
        return refuse(ENXIO, format!("there is no such interface, and {sinks} sinks (unetmap set sink_num N)"));
    }
    let host_rings = |requested: u16| requested.clamp(1, MAX_RINGS);
    let shape = EndpointShape {
        host_tx_rings: host_rings(request.nr_host_tx_rings),
        host_rx_rings: host_rings(request.nr_host_rx_rings),
        ..EndpointShape::requested(request, MAX_RINGS)?
    };
    daemon.check_budget(scope, Amounts::endpoints(1, shape))?;
    let region = daemon.requested_region(request.nr_mem_id.max(1), caller, request.memory)?;
    let record = daemon.registry.regions.existing_mut(region)?;
    // As on an interface, each slot has a buffer of its own.
    let created = Endpoint::create(record, shape, DataPath::Kernel);
    let endpoint = created.inspect_err(|_| daemon.registry.free_region_if_unused(region))?;
    let name = Some(format!("{PREFIX}{number}"));
    let record = Record { name, ..Record::new(region, scope, [endpoint], BufferRepair::Slots) };
    let kind = Sink { slot_ns: daemon.knobs.sink_delay_ns(), is_attached: false };
    daemon.registry.insert(key.clone(), AnyPort::Sink(Port { record, kind }));
    Ok(key.into())
}

/// Opens a sink, of one ring pair, that is to be attached to a switch. It is released when it is detached.
pub(super) fn open_for_switch(daemon: &mut Daemon, number: u32, caller: &Caller) -> Result<PortKey, Refusal> {
    let key = PortKey::Sink(daemon.admission.scope(caller), number);
    match daemon.registry.get::<Sink>(&key) {
        Some(sink) if sink.is_attached => return refuse(EBUSY, ATTACHED),
        Some(_) => return refuse(EBUSY, "a program has it open"),
        None => {}
    }
    let asked = &mut Asked { register: NmreqRegister::default(), memory: &mut RegionMemory::AsUsed };
    find_or_create(daemon, number, asked, caller)?;
    if let Some(sink) = daemon.registry.get_mut::<Sink>(&key) {
        sink.is_attached = true;
    }
    Ok(key)
}

const ATTACHED: &str = "it is attached to a switch (vale-ctl lists the ports; vale-ctl -d detaches one)";

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
