// SPDX-License-Identifier: BSD-2-Clause
//! Times of packets, slot by slot (`include/unetmap.h`).

use std::ffi::{c_int, c_uint};
use std::panic::{AssertUnwindSafe, catch_unwind};

use unetmap_core::{Ring, TimeSource};

use crate::files::with_known_port;

/// Returns when the packet in a slot was received (`tx` 0) or last sent, in nanoseconds since 1970, and in `source`,
/// unless it is null, what took the time; 0 if it is not known: the port was opened without `NR_SLOT_TIMES`, has no
/// such ring or slot, or another process moved the packet.
///
/// # Safety
/// `source` is null, or points to an int (C1).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn unetmap_slot_time(
    fd: c_int,
    tx: c_int,
    ring: c_uint,
    slot: c_uint,
    source: *mut c_int,
) -> u64 {
    let find = || {
        let time = with_known_port(fd, |attached| {
            let rings = if tx != 0 { attached.port.tx_rings() } else { attached.port.rx_rings() };
            let found = rings.iter().find(|found| c_uint::from(Ring::id(found)) == ring)?;
            found.slot_time(found.pos(slot)?)
        });
        time.flatten()
    };
    let Some(time) = catch_unwind(AssertUnwindSafe(find)).ok().flatten() else { return 0 };
    // SAFETY: C1: the caller's contract.
    if let Some(source) = unsafe { source.as_mut() } {
        *source = match time.source {
            TimeSource::MonitoredSync => 2,
            _ => 1,
        };
    }
    time.ns
}
