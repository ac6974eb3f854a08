// SPDX-License-Identifier: BSD-2-Clause
//! Sinks, `netmap:nmsink0` and so on: ports that take what is sent, at a set rate, and receive nothing. They look like
//! an interface, with host rings and in the region of interfaces, but the kernel has none of them.

use std::os::fd::{AsFd, BorrowedFd};
use std::slice;

use serde::{Deserialize, Serialize};
use unetmap_abi::NmreqRegister;
use unetmap_core::control::binding::{BackendKind, BoundRing};
use unetmap_core::errno::{EACCES, EBUSY, ENXIO};

use super::snapshot::PortSnapshot;
use super::{Daemon, Description, EndpointKey, Port, PortKey, Registry, SavedPort, nic};
use crate::budget::Amounts;
use crate::caller::Caller;
use crate::descriptors::{Incoming, Outgoing};
use crate::endpoint::{DataPath, Endpoint, PortRing, RingSelection, SavedEndpoint};
use crate::refusal::{Refusal, refuse};
use crate::region::{RegionKey, Scope};
use crate::registry::{BufferRepair, PortRecord};
use crate::shape::EndpointShape;

/// The names of sinks, before the number.
const PREFIX: &str = "nmsink";
/// Ring pairs.
const MAX_RINGS: u16 = 64;

/// A sink that a program has open, or a switch.
pub(crate) struct Sink {
    scope: Scope,
    number: u32,
    region: RegionKey,
    endpoint: Endpoint,
    /// Nanoseconds that a sent slot takes.
    slot_ns: u64,
    /// Whether a switch has it, and no program can open it.
    is_attached: bool,
}

/// Returns the number of the sink of that name; `None` if the name is no sink's, or an interface has it.
pub(super) fn number(daemon: &Daemon, name: &str, caller: &Caller) -> Result<Option<u32>, Refusal> {
    let digits = name.strip_prefix(PREFIX).filter(|digits| *digits == "0" || !digits.starts_with(['0', '+']));
    let Some(number) = digits.and_then(|digits| digits.parse().ok()) else { return Ok(None) };
    let is_interface = daemon.admission.policy.is_some() && nic::find_link(name, caller)?.is_some();
    Ok((!is_interface).then_some(number))
}

/// Finds the sink, or creates it.
pub(super) fn find_or_create(
    daemon: &mut Daemon,
    number: u32,
    request: &NmreqRegister,
    caller: &Caller,
) -> Result<EndpointKey, Refusal> {
    let scope = daemon.scope(caller);
    let key = PortKey::Sink(scope, number);
    if let Ok(port) = daemon.registry.port(&key) {
        daemon.registry.regions.check_number("sink", port.region(), request.nr_mem_id)?;
        return Ok(key.into());
    }
    if !daemon.may_use_pipes(caller)? {
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
    let region = daemon.requested_region(request.nr_mem_id.max(1), caller)?;
    let record = daemon.registry.regions.existing_mut(region)?;
    // As on an interface, each slot has a buffer of its own.
    let created = Endpoint::create(record, shape, DataPath::Kernel);
    let endpoint = created.inspect_err(|_| daemon.registry.free_region_if_unused(region))?;
    let slot_ns = daemon.knobs.sink_delay_ns();
    daemon
        .registry
        .insert(key.clone(), Box::new(Sink { scope, number, region, endpoint, slot_ns, is_attached: false }));
    Ok(key.into())
}

/// Opens a sink, of one ring pair, that is to be attached to a switch. It is released when it is detached.
pub(super) fn open_for_switch(daemon: &mut Daemon, number: u32, caller: &Caller) -> Result<PortKey, Refusal> {
    let key = PortKey::Sink(daemon.scope(caller), number);
    match daemon.registry.get::<Sink>(&key) {
        Some(sink) if sink.is_attached => return refuse(EBUSY, ATTACHED),
        Some(_) => return refuse(EBUSY, "a program has it open"),
        None => {}
    }
    find_or_create(daemon, number, &NmreqRegister::default(), caller)?;
    if let Some(sink) = daemon.registry.get_mut::<Sink>(&key) {
        sink.is_attached = true;
    }
    Ok(key)
}

const ATTACHED: &str = "it is attached to a switch (vale-ctl lists the ports; vale-ctl -d detaches one)";

/// A sink as the daemon hands it to its successor.
#[derive(Serialize, Deserialize)]
pub(crate) struct SavedSink {
    region: RegionKey,
    endpoint: SavedEndpoint,
    slot_ns: u64,
    is_attached: bool,
}

impl SavedSink {
    pub(super) fn restore(
        self,
        (scope, number): (Scope, u32),
        registry: &Registry,
        fds: &mut Incoming,
    ) -> Result<Box<dyn Port>, Refusal> {
        let endpoint = self.endpoint.restore(registry.regions.existing(self.region)?, fds)?;
        let SavedSink { region, slot_ns, is_attached, .. } = self;
        Ok(Box::new(Sink { scope, number, region, endpoint, slot_ns, is_attached }))
    }
}

impl PortRecord for Sink {
    fn region(&self) -> RegionKey {
        self.region
    }

    fn endpoints(&self) -> &[Endpoint] {
        slice::from_ref(&self.endpoint)
    }

    fn buffer_repair(&self) -> BufferRepair<'_> {
        BufferRepair::Slots(None)
    }
}

impl Port for Sink {
    fn endpoint_mut(&mut self, _index: usize) -> Option<&mut Endpoint> {
        Some(&mut self.endpoint)
    }

    fn check_request(&self, _request: &NmreqRegister) -> Result<(), Refusal> {
        if self.is_attached { refuse(EBUSY, ATTACHED) } else { Ok(()) }
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
        if bound_ring.dir == 0 {
            bound_ring.backend = BackendKind::Sink as u32;
            let is_host_ring = ring.pair >= self.endpoint.shape.nic_pairs();
            bound_ring.slot_ns = if is_host_ring { 0 } else { self.slot_ns };
        } else {
            bound_ring.backend = BackendKind::Null as u32;
        }
        Ok(ring.doorbell.get()?.as_fd())
    }

    fn unbind(&mut self, _index: usize, selection: &RingSelection) {
        self.endpoint.unbind(selection, None, None);
    }

    fn release(self: Box<Self>, _daemon: &mut Daemon) -> Vec<Endpoint> {
        vec![self.endpoint]
    }

    fn save<'a>(&'a self, fds: &mut Outgoing<'a>) -> Result<SavedPort, Refusal> {
        let (region, endpoint) = (self.region, self.endpoint.save(fds));
        Ok(SavedPort::Sink(SavedSink { region, endpoint, slot_ns: self.slot_ns, is_attached: self.is_attached }))
    }

    fn owner(&self) -> u32 {
        self.scope.uid
    }

    fn snapshot(&self, daemon: &Daemon) -> Vec<PortSnapshot> {
        let mem_id = daemon.registry.regions.mem_id(self.region);
        vec![PortSnapshot::new(format!("{PREFIX}{}", self.number), "sink", mem_id, &self.endpoint, None)]
    }
}
