// SPDX-License-Identifier: BSD-2-Clause
//! netmap's parameters as files (`preload/parameters.c`): where the daemon shows their values, and setting one.

use std::ffi::{CStr, c_char, c_int, c_void};
use std::os::unix::ffi::OsStrExt as _;

use unetmap_core::control::sysctl::{self, KnobRequest};
use unetmap_core::errno::EINVAL;

use crate::calls::call;
use crate::last_error::report;
use crate::user;

/// Bytes of text that are looked at: more than a number has.
const MAX_TEXT: usize = 64;

/// Has this user's daemon, which is started if none runs, show its parameters in files. Writes the path of the folder
/// that stands for `/sys/module/netmap` into `into`, with a NUL, and returns its bytes; or a negative errno.
///
/// # Safety
/// `into` is valid for writes of `room` bytes (C1).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn unetmap_parameter_folder(into: *mut c_char, room: usize) -> c_int {
    call(|| {
        let folder = sysctl::show_files().map_err(|e| report(&e))?;
        let path = folder.as_os_str().as_bytes();
        let bytes = c_int::try_from(path.len()).ok().filter(|_| path.len() < room).ok_or(libc::ENAMETOOLONG)?;
        // SAFETY: C1: the path and the NUL are at most `room` bytes.
        unsafe {
            into.cast::<u8>().copy_from(path.as_ptr(), path.len());
            into.add(path.len()).write(0);
        }
        Ok(bytes)
    })
}

/// Sets the parameter `name` to the number that is written in `bytes` bytes of `text`, as the kernel reads what is
/// written to a module's parameter. Returns 0 or a negative errno.
///
/// # Safety
/// `name` is a string (C1). `text` may be any address.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn unetmap_parameter_set(name: *const c_char, text: *const c_void, bytes: usize) -> c_int {
    // SAFETY: C1: the caller's contract.
    let name = unsafe { CStr::from_ptr(name) };
    call(|| {
        let mut copy = [0; MAX_TEXT];
        let copied = &mut copy[..bytes.min(MAX_TEXT)];
        user::read(text.expose_provenance() as u64, copied)?;
        let value = sysctl::parse_parameter(copied)?;
        if bytes > MAX_TEXT {
            return Err(EINVAL);
        }
        let name = name.to_str().map_err(|_| EINVAL)?.to_owned();
        sysctl::send_request(&KnobRequest::Set(name, value)).map_err(|e| report(&e))?;
        Ok(0)
    })
}
