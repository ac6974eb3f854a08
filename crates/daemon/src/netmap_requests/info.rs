// SPDX-License-Identifier: BSD-2-Clause
//! Requests that read the properties of a port or of a region, or set its header.

use unetmap_abi::*;
use unetmap_core::errno::{EINVAL, ENXIO};

use super::call::Call;
use super::extmem;
use crate::daemon::Daemon;
use crate::ports::{nic, vale};
use crate::refusal::{Refusal, refuse};

/// PORT_INFO_GET: the sizes of a port, or, without a name, of a region.
pub(super) fn port_info(call: &mut Call<'_>) -> Result<(), Refusal> {
    let name = call.name()?;
    let request = call.body::<NmreqPortInfoGet>()?;
    if name.is_empty() {
        let mem_id = request.nr_mem_id.max(1);
        let regions = &call.daemon.registry.regions;
        let bytes = match call.daemon.region_by_number(mem_id, call.caller) {
            Ok(region) => regions.get(region).map_or(0, |record| record.region.geometry().bytes()),
            // In netmap region 1 always exists, so this is the size that it will have.
            Err(_) if mem_id == 1 => call.daemon.sizes_without_interface(call.caller).bytes()?,
            Err(refusal) => return Err(refusal),
        };
        call.set_body(&NmreqPortInfoGet { nr_memsize: bytes, nr_mem_id: mem_id, ..request });
        return Ok(());
    }
    let register = NmreqRegister {
        nr_tx_slots: request.nr_tx_slots,
        nr_rx_slots: request.nr_rx_slots,
        nr_tx_rings: request.nr_tx_rings,
        nr_rx_rings: request.nr_rx_rings,
        nr_host_tx_rings: request.nr_host_tx_rings,
        nr_host_rx_rings: request.nr_host_rx_rings,
        ..Default::default()
    };
    let info = call.inspect(&name, register, |_, r| {
        Ok(NmreqPortInfoGet {
            nr_memsize: r.nr_memsize,
            nr_tx_slots: r.nr_tx_slots,
            nr_rx_slots: r.nr_rx_slots,
            nr_tx_rings: r.nr_tx_rings,
            nr_rx_rings: r.nr_rx_rings,
            nr_host_tx_rings: r.nr_host_tx_rings,
            nr_host_rx_rings: r.nr_host_rx_rings,
            nr_mem_id: r.nr_mem_id,
            ..request
        })
    })?;
    call.set_body(&info);
    Ok(())
}

/// POOLS_INFO_GET: the offsets and sizes of the pools of a port's region.
pub(super) fn pools_info(call: &mut Call<'_>) -> Result<(), Refusal> {
    let (name, caller) = (call.name()?, call.caller);
    let info = call.inspect(&name, Default::default(), |daemon, r| {
        let pools = extmem::pools(daemon, daemon.region_by_number(r.nr_mem_id, caller)?);
        pools.map_or_else(|| refuse(ENXIO, "the region no longer exists"), Ok)
    })?;
    call.set_body(&info);
    Ok(())
}

/// PORT_HDR_GET: the bytes of the virtio-net header that a port's packets begin with. Switch ports and interfaces may
/// have one.
pub(super) fn port_header(call: &mut Call<'_>) -> Result<(), Refusal> {
    let (name, request, caller) = (call.name()?, call.body::<NmreqPortHdr>()?, call.caller);
    let of_switch_port = call.inspect(&name, Default::default(), |daemon, _| {
        let place = (daemon.admission.scope(caller), &*name);
        Ok(vale::header(&daemon.registry, &daemon.vale, place, caller.peer.uid))
    })?;
    let bytes = if of_switch_port > 0 { of_switch_port } else { nic::header(call.daemon, &name, caller)? };
    call.set_body(&NmreqPortHdr { nr_hdr_len: bytes.into(), ..request });
    Ok(())
}

/// PORT_HDR_SET.
pub(super) fn set_port_header(call: &mut Call<'_>) -> Result<(), Refusal> {
    let (name, request) = (call.name()?, call.body::<NmreqPortHdr>()?);
    let scope = call.daemon.admission.scope(call.caller);
    let of_switch_port = vale::exists(&call.daemon.registry, scope, &name);
    if !of_switch_port && name.starts_with(NM_BDG_NAME) && name.contains(':') {
        return refuse(ENXIO, "there is no switch that has this port");
    }
    call.daemon.settings_changed = true;
    match request.nr_hdr_len {
        bytes @ (0 | 10 | 12) if of_switch_port => {
            let Daemon { registry, vale, .. } = &mut *call.daemon;
            vale::set_header(registry, vale, (scope, &name), bytes as u8, call.caller)
        }
        bytes @ (0 | 10 | 12) => nic::set_header(call.daemon, &name, bytes as u8, call.caller),
        other => refuse(EINVAL, format!("a virtio-net header has 0, 10 or 12 bytes, not {other}")),
    }
}
