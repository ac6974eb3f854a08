// SPDX-License-Identifier: BSD-2-Clause
//! Finding and creating sinks, and ports without a data path.

use unetmap_abi::{NmreqRegister, PortSpec};
use unetmap_core::errno::{EACCES, EBUSY, ENXIO};

use super::key::{EndpointKey, PortKey};
use super::null::NullPort;
use super::sink::{ATTACHED, Sink};
use super::{AnyPort, Asked, Daemon, nic};
use crate::admission::Admission;
use crate::budget::Amounts;
use crate::caller::Caller;
use crate::knobs::Knobs;
use crate::refusal::{Refusal, refuse};
use crate::region::{RegionMemory, RegionRecord, Scope};
use crate::shape::{EndpointShape, MAX_PIPE_RINGS};

/// The names of sinks, before the number.
const PREFIX: &str = "nmsink";
/// Ring pairs.
const MAX_RINGS: u16 = 64;

/// Returns the number of the sink of that name; `None` if the name is no sink's, or an interface has it.
pub(super) fn number(admission: &Admission, name: &str, caller: &Caller) -> Result<Option<u32>, Refusal> {
    let digits = name.strip_prefix(PREFIX).filter(|digits| *digits == "0" || !digits.starts_with(['0', '+']));
    let Some(number) = digits.and_then(|digits| digits.parse().ok()) else { return Ok(None) };
    let is_interface = admission.policy.is_some() && nic::find_link(name, caller)?.is_some();
    Ok((!is_interface).then_some(number))
}

impl Daemon {
    /// Finds a port with one endpoint, a `what`, or creates it: in region 1, unless the request names another. `shape`
    /// checks the request, and `create` makes the port.
    pub(super) fn find_or_add(
        &mut self,
        (what, key): (&str, PortKey),
        request: &mut Asked<'_>,
        caller: &Caller,
        shape: impl FnOnce(&Knobs, &NmreqRegister) -> Result<EndpointShape, Refusal>,
        create: impl FnOnce(&mut RegionRecord, Scope, EndpointShape) -> Result<AnyPort, Refusal>,
    ) -> Result<EndpointKey, Refusal> {
        let scope = self.admission.scope(caller);
        if let Ok(port) = self.registry.record(&key) {
            self.registry.regions.check_number(what, port.region, request.nr_mem_id)?;
            return Ok(key.into());
        }
        if !self.admission.may_use_pipes(caller)? {
            return refuse(
                EACCES,
                format!("this daemon serves {what}s to other users only where its policy serves them pipes"),
            );
        }
        let shape = shape(&self.knobs, request)?;
        self.check_budget(scope, Amounts::endpoints(1, shape))?;
        let region = self.requested_region(request.nr_mem_id.max(1), caller, request.memory)?;
        let checked = self.check_buffers(region, shape.most_buffers(), false);
        self.registry.add(key.clone(), region, |region| checked.and_then(|()| create(region, scope, shape)))?;
        Ok(key.into())
    }
}

/// Finds the sink, or creates it.
pub(super) fn find_or_create(
    daemon: &mut Daemon,
    number: u32,
    request: &mut Asked<'_>,
    caller: &Caller,
) -> Result<EndpointKey, Refusal> {
    let key = PortKey::Sink(daemon.admission.scope(caller), number);
    let shape = |knobs: &Knobs, request: &NmreqRegister| {
        let sinks = knobs.sink_num();
        if number >= sinks {
            return refuse(ENXIO, format!("there is no such interface, and {sinks} sinks (unetmap set sink_num N)"));
        }
        let host_rings = |requested: u16| requested.clamp(1, MAX_RINGS);
        Ok(EndpointShape {
            host_tx_rings: host_rings(request.nr_host_tx_rings),
            host_rx_rings: host_rings(request.nr_host_rx_rings),
            ..EndpointShape::requested(request, MAX_RINGS)?
        })
    };
    let slot_ns = daemon.knobs.sink_delay_ns();
    daemon.find_or_add(("sink", key), request, caller, shape, |region, scope, shape| {
        Sink::create(region, scope, format!("{PREFIX}{number}"), (shape, slot_ns)).map(AnyPort::Sink)
    })
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

/// Creates a port without a data path.
pub(super) fn create_null(
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
    let checked = daemon.check_buffers(region, shape.most_buffers(), false);
    daemon.registry.add(key.clone(), region, |region| {
        checked.and_then(|()| NullPort::create(region, scope, name, shape)).map(AnyPort::Null)
    })?;
    Ok(key.into())
}
