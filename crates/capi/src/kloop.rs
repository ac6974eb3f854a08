//! Control blocks and the sync loop: what works on the program's own memory, and in its own thread.

use std::ffi::c_int;
use std::time::Duration;

use unetmap::abi::*;
use unetmap::blocks::{Blocks, LoopOptions};
use unetmap::errno::{EINVAL, ENXIO};
use unetmap::program::Memory;
use unetmap::request::{Request, kind_of};
use unetmap::{Interest, Port};
use zerocopy::FromBytes;

use crate::files::{Ref, borrowed};
use crate::said::{say, told};

/// The longest that a loop may sleep between two rounds: a second.
const MOST_SLEEP_US: u32 = 1_000_000;

/// Gives the port the control blocks that the program named.
pub(crate) fn give(port: &Port, option: &NmreqOptCsb) -> Result<(), i32> {
    let bytes = port.bound_rings() * size_of::<NmCsbAtok>();
    // SAFETY: by the option the program gives us these arrays to read and write, as long as its port is open.
    let array = |at| unsafe { Memory::new(at, bytes) };
    let blocks = Blocks { atok: array(option.csb_atok), ktoa: array(option.csb_ktoa) };
    port.give_blocks(blocks).map_err(|e| told(&e))
}

/// `CSB_ENABLE`. A file without a port has no rings, so that there is nothing to do.
pub(crate) fn enable(open: &Ref, fd: c_int, request: &mut Request) -> Result<(), i32> {
    let Some(option) = request.option::<NmreqOptCsb>(NETMAP_REQ_OPT_CSB) else {
        say("CSB_ENABLE: the option CSB says where the control blocks are");
        return Err(EINVAL);
    };
    let port = open.port(fd).map_err(|e| told(&e))?;
    let given = port.map_or(Ok(()), |attached| give(&attached.port, &option));
    request.set_status(NETMAP_REQ_OPT_CSB, given.err().unwrap_or(0));
    given
}

/// `SYNC_KLOOP_START`: returns when another thread asked the loop to end.
pub(crate) fn start(open: &Ref, fd: c_int, request: &mut Request) -> Result<(), i32> {
    let asked: NmreqSyncKloopStart = request.body_as().ok_or(EINVAL)?;
    if asked.sleep_us > MOST_SLEEP_US {
        say(&format!("SYNC_KLOOP_START: a loop sleeps for at most a second, not for {} us", asked.sleep_us));
        return Err(EINVAL);
    }
    let port = &open.port(fd).map_err(|e| told(&e))?.ok_or(ENXIO)?.port;
    port.may_loop().map_err(|e| told(&e))?;
    // A close by another thread ends the port after the loop, and not under it.
    let _open = borrowed(fd).try_clone_to_owned().map_err(|e| e.raw_os_error().unwrap_or(libc::EBADF))?;
    let direct = mode(request)?;
    let eventfds = eventfds(request, port.bound_rings(), direct)?;
    if eventfds.is_none() && !direct.is_none() {
        say("SYNC_KLOOP_START: a direct mode needs an eventfd for each ring (the option SYNC_KLOOP_EVENTFDS)");
        request.set_status(NETMAP_REQ_OPT_SYNC_KLOOP_MODE, EINVAL);
        return Err(EINVAL);
    }
    let options = LoopOptions { sleep: Duration::from_micros(asked.sleep_us.into()), eventfds, direct };
    port.run_loop(&options).map_err(|e| told(&e))
}

/// The option SYNC_KLOOP_MODE.
fn mode(request: &mut Request) -> Result<Interest, i32> {
    let Some(option) = request.option::<NmreqOptSyncKloopMode>(NETMAP_REQ_OPT_SYNC_KLOOP_MODE) else {
        return Ok(Interest::NONE);
    };
    let known = option.mode & !(NM_OPT_SYNC_KLOOP_DIRECT_TX | NM_OPT_SYNC_KLOOP_DIRECT_RX) == 0;
    request.set_status(NETMAP_REQ_OPT_SYNC_KLOOP_MODE, if known { 0 } else { EINVAL });
    let of = |bit, interest| if option.mode & bit != 0 { interest } else { Interest::NONE };
    let direct = of(NM_OPT_SYNC_KLOOP_DIRECT_TX, Interest::TX) | of(NM_OPT_SYNC_KLOOP_DIRECT_RX, Interest::RX);
    if known { Ok(direct) } else { Err(EINVAL) }
}

/// The option SYNC_KLOOP_EVENTFDS: two for each ring. In a direct mode none may lack that wakes the loop.
fn eventfds(request: &mut Request, rings: usize, direct: Interest) -> Result<Option<Vec<KloopEventfds>>, i32> {
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

/// `SYNC_KLOOP_STOP`.
pub(crate) fn stop(open: &Ref, fd: c_int) -> Result<(), i32> {
    open.port(fd).map_err(|e| told(&e))?.ok_or(ENXIO)?.port.end_loop();
    Ok(())
}
