// SPDX-License-Identifier: BSD-2-Clause
//! Access to the program's memory by its pointers, which may be invalid: then the result is EFAULT, as from the kernel.

use unetmap_core::user_memory;
use zerocopy::{FromBytes, Immutable, IntoBytes};

/// Reads `into.len()` bytes at address `from`.
///
/// # Errors
/// `EFAULT`.
pub(crate) fn read(from: u64, into: &mut [u8]) -> Result<(), i32> {
    user_memory::read(from, into).map_err(|_| libc::EFAULT)
}

/// Writes `bytes` to address `to`.
///
/// # Errors
/// `EFAULT`.
pub(crate) fn write(to: u64, bytes: &[u8]) -> Result<(), i32> {
    // SAFETY: C4: the program has passed the address for the reply.
    unsafe { user_memory::write(to, bytes) }.map_err(|_| libc::EFAULT)
}

/// Reads a structure.
///
/// # Errors
/// `EFAULT`.
pub(crate) fn get<T: FromBytes + IntoBytes>(from: u64) -> Result<T, i32> {
    let mut value = T::new_zeroed();
    read(from, value.as_mut_bytes())?;
    Ok(value)
}

/// Writes a structure.
///
/// # Errors
/// `EFAULT`.
pub(crate) fn put<T: IntoBytes + Immutable>(to: u64, value: &T) -> Result<(), i32> {
    write(to, value.as_bytes())
}
