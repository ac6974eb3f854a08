// SPDX-License-Identifier: BSD-2-Clause
//! Control blocks (CSB) and the sync loop, which use the program's memory and thread.

use std::ffi::c_int;
use std::time::Duration;

use unetmap_core::abi::*;
use unetmap_core::control::request::{NetmapRequest, kind_of};
use unetmap_core::errno::{EINVAL, ENXIO};
use unetmap_core::port::csb::{ControlBlocks, LoopOptions};
use unetmap_core::user_memory::UserArray;
use unetmap_core::{Interest, Port};
use zerocopy::FromBytes;

use crate::files::{FileRef, borrowed};
use crate::last_error::{report, report_message};

/// Longest sleep of a loop between two rounds: one second.
const MAX_SLEEP_US: u32 = 1_000_000;

/// Sets the port's control blocks to the program's arrays.
pub(crate) fn set_csb(port: &Port, option: &NmreqOptCsb) -> Result<(), i32> {
    let bytes = port.bound_rings() * size_of::<NmCsbAtok>();
    // SAFETY: C4: with the option the program passes these arrays to be read and written as long as its port is open.
    let array = |at| unsafe { UserArray::new(at, bytes) };
    let blocks = ControlBlocks { atok: array(option.csb_atok), ktoa: array(option.csb_ktoa) };
    port.set_control_blocks(blocks).map_err(|e| report(&e))
}

/// Implements `CSB_ENABLE`. A file without a port has no rings, and nothing is done.
pub(crate) fn enable(open: &FileRef, fd: c_int, request: &mut NetmapRequest) -> Result<(), i32> {
    let Some(option) = request.option::<NmreqOptCsb>(NETMAP_REQ_OPT_CSB) else {
        report_message("CSB_ENABLE: the option CSB, with the addresses of the control blocks, is missing");
        return Err(EINVAL);
    };
    let port = open.port(fd).map_err(|e| report(&e))?;
    let result = port.map_or(Ok(()), |attached| set_csb(&attached.port, &option));
    request.set_status(NETMAP_REQ_OPT_CSB, result.err().unwrap_or(0));
    result
}

/// Implements `SYNC_KLOOP_START`: returns after another thread has stopped the loop.
pub(crate) fn start(open: &FileRef, fd: c_int, request: &mut NetmapRequest) -> Result<(), i32> {
    let start: NmreqSyncKloopStart = request.body_as().ok_or(EINVAL)?;
    if start.sleep_us > MAX_SLEEP_US {
        report_message(&format!("SYNC_KLOOP_START: sleep_us is at most 1000000, not {}", start.sleep_us));
        return Err(EINVAL);
    }
    let port = &open.port(fd).map_err(|e| report(&e))?.ok_or(ENXIO)?.port;
    port.may_loop().map_err(|e| report(&e))?;
    // Keeps the port open until the loop ends, if another thread closes the file.
    let _open = borrowed(fd).try_clone_to_owned().map_err(|e| e.raw_os_error().unwrap_or(libc::EBADF))?;
    let direct = mode(request)?;
    let eventfds = eventfds(request, port.bound_rings(), direct)?;
    if eventfds.is_none() && !direct.is_none() {
        report_message("SYNC_KLOOP_START: a direct mode needs an eventfd for each ring (option SYNC_KLOOP_EVENTFDS)");
        request.set_status(NETMAP_REQ_OPT_SYNC_KLOOP_MODE, EINVAL);
        return Err(EINVAL);
    }
    let options = LoopOptions { sleep: Duration::from_micros(start.sleep_us.into()), eventfds, direct };
    port.run_loop(&options).map_err(|e| report(&e))
}

/// Reads the option SYNC_KLOOP_MODE.
fn mode(request: &mut NetmapRequest) -> Result<Interest, i32> {
    let Some(option) = request.option::<NmreqOptSyncKloopMode>(NETMAP_REQ_OPT_SYNC_KLOOP_MODE) else {
        return Ok(Interest::NONE);
    };
    let known = option.mode & !(NM_OPT_SYNC_KLOOP_DIRECT_TX | NM_OPT_SYNC_KLOOP_DIRECT_RX) == 0;
    request.set_status(NETMAP_REQ_OPT_SYNC_KLOOP_MODE, if known { 0 } else { EINVAL });
    let of = |bit, interest| if option.mode & bit != 0 { interest } else { Interest::NONE };
    let direct = of(NM_OPT_SYNC_KLOOP_DIRECT_TX, Interest::TX) | of(NM_OPT_SYNC_KLOOP_DIRECT_RX, Interest::RX);
    if known { Ok(direct) } else { Err(EINVAL) }
}

/// Reads the option SYNC_KLOOP_EVENTFDS: two for each ring. A direct mode requires each eventfd that wakes the loop.
fn eventfds(request: &mut NetmapRequest, rings: usize, direct: Interest) -> Result<Option<Vec<KloopEventfds>>, i32> {
    let kind = NETMAP_REQ_OPT_SYNC_KLOOP_EVENTFDS;
    let Some(option) = request.options.iter().find(|option| kind_of(option) == Some(kind)) else { return Ok(None) };
    let size = NmreqOption::read_from_prefix(option).map_or(0, |(head, _)| head.nro_size);
    let pairs = option.get(size_of::<NmreqOption>()..).unwrap_or_default();
    let pairs = pairs.chunks(size_of::<KloopEventfds>()).map(KloopEventfds::read_from_bytes);
    let pairs: Option<Vec<_>> = pairs.map(Result::ok).collect();
    let complete = |pairs: &Vec<KloopEventfds>| direct.is_none() || pairs.iter().all(|pair| pair.ioeventfd >= 0);
    let pairs = pairs.filter(|pairs| size == option.len() as u64 && pairs.len() == rings && complete(pairs));
    request.set_status(kind, if pairs.is_some() { 0 } else { EINVAL });
    pairs.map(Some).ok_or(EINVAL)
}

/// Implements `SYNC_KLOOP_STOP`.
pub(crate) fn stop(open: &FileRef, fd: c_int) -> Result<(), i32> {
    open.port(fd).map_err(|e| report(&e))?.ok_or(ENXIO)?.port.end_loop();
    Ok(())
}
