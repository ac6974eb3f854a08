// SPDX-License-Identifier: BSD-2-Clause
//! REGISTER: opening a port.

use std::mem;

use unetmap_abi::*;
use unetmap_core::control::request::completed_info;
use unetmap_core::errno::{EBUSY, EOPNOTSUPP};

use super::call::{Call, Got, Needs, Open, Opened};
use super::extmem;
use crate::daemon::Daemon;
use crate::ports::{Options, nic};
use crate::refusal::{Refusal, refuse};
use crate::region::{RegionKey, RegionMemory};

pub(super) fn register(call: &mut Call<'_>) -> Result<Opened, Refusal> {
    if call.session.is_some() {
        return refuse(EBUSY, "this file has a port bound already");
    }
    let name = call.name()?;
    let options = Options { offsets: call.request.option(NETMAP_REQ_OPT_OFFSETS) };
    let mut register = call.body::<NmreqRegister>()?;
    let is_pipe = name.contains(['{', '}']);
    let rounds = call.got.rounds();
    let mut _uncharged = None;
    let memory = &mut match mem::take(&mut call.got) {
        Got::Memory(None, _) => RegionMemory::AsUsed,
        Got::Memory(Some(prepared), _) => {
            _uncharged = prepared.without_charge();
            RegionMemory::for_its_request(prepared)
        }
        _ => call.daemon.region_memory(&register, is_pipe, call.caller),
    };
    let begun = extmem_region(call, memory).and_then(|extmem| {
        if let Some(region) = extmem {
            register.nr_mem_id = call.daemon.registry.regions.mem_id(region);
        }
        let opening = call.daemon.begin_open(&name, &register, &options, memory, call.caller);
        Ok((extmem, opening.inspect_err(|refusal| refused(call, extmem, refusal))?))
    });
    if let RegionMemory::Wanted(wanted) = mem::take(memory) {
        return Ok(Opened::Needs(Needs::Memory(Some(wanted), rounds)));
    }
    let (extmem, opening) = begun?;
    let needed = {
        let Daemon { registry, nics, .. } = &mut *call.daemon;
        nic::begin_to_open(registry, &mut nics.work, &opening.at, &opening.selection)
    };
    let open = Open { request: call.request.clone(), opening, extmem, offsets: options.offsets };
    match needed {
        Some(nic) => Ok(Opened::Needs(Needs::Sockets(nic, Box::new(open)))),
        None => complete(call, open, Ok(())),
    }
}

/// Goes on with an open whose sockets a thread has opened, or why not.
pub(super) fn go_on(call: &mut Call<'_>, open: Open, opened: Result<(), Refusal>) -> Result<Opened, Refusal> {
    if opened.is_ok()
        && let Some(nic) = nic::away_behind(&call.daemon.registry, &open.opening.at)
    {
        // A thread brings it into a new state.
        return Ok(Opened::Needs(Needs::Sockets(nic, Box::new(open))));
    }
    let Daemon { admission, registry, .. } = &mut *call.daemon;
    let opened = opened.and_then(|()| nic::check_still_given(admission, registry, &open.opening.at, call.caller));
    complete(call, open, opened)
}

fn complete(call: &mut Call<'_>, open: Open, opened: Result<(), Refusal>) -> Result<Opened, Refusal> {
    let Open { request, opening, extmem, offsets } = open;
    call.request = request;
    let registered = call.daemon.finish_open(opening, opened, call.caller);
    let registered = registered.inspect_err(|refusal| refused(call, extmem, refusal))?;
    // The program's library serves control blocks: it has the memory that contains them.
    call.request.set_status(NETMAP_REQ_OPT_CSB, 0);
    if let (Some(layout), Some(option)) = (registered.offsets, offsets) {
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
    Ok(Opened::Done(Some(registered)))
}

fn refused(call: &mut Call<'_>, extmem: Option<RegionKey>, refusal: &Refusal) {
    if let Some(kind) = refusal.option {
        call.request.set_status(kind, refusal.errno);
    }
    extmem.into_iter().for_each(|region| call.daemon.registry.free_region_if_unused(region));
}

/// Creates the region that the option EXTMEM requests, if the request has it.
fn extmem_region(call: &mut Call<'_>, memory: &mut RegionMemory) -> Result<Option<RegionKey>, Refusal> {
    let Some(option) = call.request.option::<NmreqOptExtmem>(NETMAP_REQ_OPT_EXTMEM) else { return Ok(None) };
    let created = extmem::create_region(call.daemon, &option, call.caller, memory);
    let created = created.map_err(|refusal| refusal.of_option(NETMAP_REQ_OPT_EXTMEM)).inspect_err(|refusal| {
        call.request.set_status(NETMAP_REQ_OPT_EXTMEM, refusal.errno);
    })?;
    let actual = extmem::pools(call.daemon, created).unwrap_or_default();
    let nro_info = completed_info(option.nro_info, &actual);
    call.request.set_option(NETMAP_REQ_OPT_EXTMEM, &NmreqOptExtmem { nro_info, ..option });
    call.request.set_status(NETMAP_REQ_OPT_EXTMEM, 0);
    Ok(Some(created))
}
