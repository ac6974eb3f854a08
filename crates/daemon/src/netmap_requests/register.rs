// SPDX-License-Identifier: BSD-2-Clause
//! REGISTER: opening a port.

use unetmap_abi::*;
use unetmap_core::control::request::completed_info;
use unetmap_core::errno::{EBUSY, EOPNOTSUPP};

use super::{Call, extmem};
use crate::ports::Options;
use crate::refusal::{Refusal, refuse};
use crate::region::RegionKey;

pub(super) fn register(call: &mut Call<'_>) -> Result<(), Refusal> {
    if call.session.is_some() {
        return refuse(EBUSY, "this file has a port bound already");
    }
    let name = call.name()?;
    let options = Options { offsets: call.request.option(NETMAP_REQ_OPT_OFFSETS) };
    let mut register = call.body::<NmreqRegister>()?;
    call.daemon.expect_memory(&register, name.contains(['{', '}']), call.caller);
    let extmem = extmem_region(call)?;
    if let Some(region) = extmem {
        register.nr_mem_id = call.daemon.registry.regions.mem_id(region);
    }
    let registered = call.daemon.register(&name, &register, &options, call.caller);
    let registered = registered.inspect_err(|refusal| {
        if let Some(kind) = refusal.option {
            call.request.set_status(kind, refusal.errno);
        }
        extmem.into_iter().for_each(|region| call.daemon.registry.free_region_if_unused(region));
    })?;
    // The program's library serves control blocks: it has the memory that contains them.
    call.request.set_status(NETMAP_REQ_OPT_CSB, 0);
    if let (Some(layout), Some(option)) = (registered.offsets, options.offsets) {
        let granted = NmreqOptOffsets { nro_max_offset: layout.offsets.max.into(), ..option };
        call.request.set_option(NETMAP_REQ_OPT_OFFSETS, &granted);
        call.request.set_status(NETMAP_REQ_OPT_OFFSETS, 0);
    }
    // The last of all refusals, as in netmap.
    if let Some(kind) = call.request.unserved() {
        call.daemon.close(registered.session);
        return refuse(EOPNOTSUPP, format!("option {kind} is not served"));
    }
    call.set_body(&registered.register);
    call.registered = Some(registered);
    Ok(())
}

/// Creates the region that the option EXTMEM requests, if the request has it.
fn extmem_region(call: &mut Call<'_>) -> Result<Option<RegionKey>, Refusal> {
    let Some(option) = call.request.option::<NmreqOptExtmem>(NETMAP_REQ_OPT_EXTMEM) else { return Ok(None) };
    let created = match extmem::region_of_waiting(call.daemon, call.caller) {
        Some(region) => Ok(region),
        None => extmem::create_region(call.daemon, &option, call.caller),
    };
    let created = created.map_err(|refusal| refusal.of_option(NETMAP_REQ_OPT_EXTMEM)).inspect_err(|refusal| {
        call.request.set_status(NETMAP_REQ_OPT_EXTMEM, refusal.errno);
    })?;
    let actual = extmem::pools(call.daemon, created).unwrap_or_default();
    let nro_info = completed_info(option.nro_info, &actual);
    call.request.set_option(NETMAP_REQ_OPT_EXTMEM, &NmreqOptExtmem { nro_info, ..option });
    call.request.set_status(NETMAP_REQ_OPT_EXTMEM, 0);
    Ok(Some(created))
}
