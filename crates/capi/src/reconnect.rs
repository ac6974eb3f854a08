// SPDX-License-Identifier: BSD-2-Clause
//! Ports that go on with the next daemon (`include/unetmap.h`).

use std::ffi::c_int;

use unetmap_core::{Interest, reconnect_by_default};
use unetmap_sys::event;

use crate::calls::call;
use crate::files::{borrowed, with_known_port};

/// Has all ports that are opened from now on wait for the next daemon when theirs has ended.
#[unsafe(no_mangle)]
pub extern "C" fn unetmap_reconnect() {
    reconnect_by_default();
}

/// Returns how often the port of `fd` went on with another daemon, and stores in `lost`, unless it is null, how many
/// slots were lost with former ones. 0 if it does not wait for daemons, or is not open in this process.
///
/// # Safety
/// `lost` is null, or points to a `uint64_t` (C1).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn unetmap_reconnects(fd: c_int, lost: *mut u64) -> c_int {
    let mut lost_slots = 0;
    let count = call(|| {
        let known = with_known_port(fd, |attached| (attached.port.reconnects(), attached.port.lost_slots()));
        let (count, slots) = known.unwrap_or_default();
        lost_slots = slots;
        Ok(count as c_int)
    });
    // SAFETY: C1: the caller's contract.
    if let Some(lost) = unsafe { lost.as_mut() } {
        *lost = lost_slots;
    }
    count
}

/// Returns 1 if `fd`, which has hung up, goes on with the next daemon, or does so already; else 0.
#[unsafe(no_mangle)]
pub extern "C" fn unetmap_hang_up_passes(fd: c_int) -> c_int {
    call(|| {
        let passes = with_known_port(fd, |attached| {
            let port = &attached.port;
            if !port.waits_for_daemons() {
                return false;
            }
            if event::hung_up(borrowed(fd)) {
                port.shut_down();
            }
            port.poll_now(Interest::NONE).is_ok()
        });
        Ok(c_int::from(passes.unwrap_or(false)))
    })
}
