// SPDX-License-Identifier: BSD-2-Clause
//! Requests about switches: listing ports, attached interfaces, and persistent ports.

use unetmap_abi::*;
use unetmap_core::control::NetmapRequest;

use super::call::Call;
use crate::ports::vale::{self, attach_requests, persistent_requests};
use crate::refusal::Refusal;

/// VALE_LIST.
pub(super) fn list(call: &mut Call<'_>) -> Result<(), Refusal> {
    let (name, request) = (call.name()?, call.body::<NmreqValeList>()?);
    let daemon = &*call.daemon;
    let (name, found) =
        vale::list_next(&daemon.registry, &daemon.vale, daemon.admission.scope(call.caller), &name, &request)?;
    call.set_body(&found);
    if let Ok(named) = NetmapRequest::new(NETMAP_REQ_VALE_LIST, &name, &call.request.body) {
        call.request.header.nr_name = named.header.nr_name;
    }
    Ok(())
}

/// VALE_ATTACH.
pub(super) fn attach(call: &mut Call<'_>) -> Result<(), Refusal> {
    let (name, request) = (call.name()?, call.body::<NmreqValeAttach>()?);
    let port_index = attach_requests::attach(call.daemon, &name, &request.reg, call.caller)?;
    call.set_body(&NmreqValeAttach { port_index, ..request });
    Ok(())
}

/// VALE_DETACH.
pub(super) fn detach(call: &mut Call<'_>) -> Result<(), Refusal> {
    let (name, request) = (call.name()?, call.body::<NmreqValeDetach>()?);
    let port_index = attach_requests::detach(call.daemon, &name, call.caller)?;
    call.set_body(&NmreqValeDetach { port_index, ..request });
    Ok(())
}

/// VALE_NEWIF.
pub(super) fn create_persistent(call: &mut Call<'_>) -> Result<(), Refusal> {
    let (name, request) = (call.name()?, call.body()?);
    persistent_requests::create(call.daemon, &name, request, call.caller)
}

/// VALE_DELIF.
pub(super) fn delete_persistent(call: &mut Call<'_>) -> Result<(), Refusal> {
    let name = call.name()?;
    persistent_requests::delete(call.daemon, &name, call.caller)
}

/// VALE_POLLING_ENABLE.
pub(super) fn start_polling(call: &mut Call<'_>) -> Result<(), Refusal> {
    let (name, request) = (call.name()?, call.body()?);
    attach_requests::start_polling(call.daemon, &name, &request, call.caller)
}

/// VALE_POLLING_DISABLE.
pub(super) fn stop_polling(call: &mut Call<'_>) -> Result<(), Refusal> {
    let name = call.name()?;
    attach_requests::stop_polling(call.daemon, &name, call.caller)
}
