// SPDX-License-Identifier: BSD-2-Clause
//! Links that are down, for libraries that use this one.

use std::ffi::{CStr, c_char, c_int};
use std::panic::{AssertUnwindSafe, catch_unwind};

use unetmap_core::{DownCause, link_down};

use crate::files::with_known_port;

/// Returns 0 if the link of the port with this name is not known to be down; 1 if its interface is administratively
/// down; 2 if it has no carrier. Then `into` is the sentence about it, at most `room` bytes including a NUL. `fd` is
/// the netmap file on which the port is open, or -1.
///
/// # Safety
/// `port` is a string, and `into` is valid for writes of `room` bytes (C1).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn unetmap_link_down(fd: c_int, port: *const c_char, into: *mut c_char, room: usize) -> c_int {
    // SAFETY: C1: the caller's contract.
    let name = unsafe { CStr::from_ptr(port) };
    let look = || {
        let is_switched = with_known_port(fd, |attached| attached.port.is_switched());
        name.to_str().ok().and_then(link_down).filter(|_| is_switched != Some(true))
    };
    let (Ok(Some(down)), Some(most)) = (catch_unwind(AssertUnwindSafe(look)), room.checked_sub(1)) else { return 0 };
    let text = down.to_string();
    let len = text.len().min(most);
    // SAFETY: C1: `len` is less than `room`.
    unsafe {
        into.cast::<u8>().copy_from(text.as_ptr(), len);
        into.add(len).write(0);
    }
    if down.cause == DownCause::Administrative { 1 } else { 2 }
}
