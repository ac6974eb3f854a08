// SPDX-License-Identifier: BSD-2-Clause
//! Memory that a peer shares by a descriptor, such as a virtual machine's: it writes there at any time, so there are no
//! references to its bytes; and the memory of a port for a guest, which opens it without a daemon.

use std::io;
use std::os::fd::BorrowedFd;
use std::sync::Arc;

pub use unetmap_core::port::device::{DevicePort, IVSHMEM_MEMORY, IVSHMEM_VERSION, LOOK_EVERY};
pub use unetmap_mem::{GuestMemory, GuestPlace, GuestWords, MappedRange};
use unetmap_sys::Mapping;

/// Maps `bytes` bytes of a peer's file, from `offset` on. The peer can shorten the file, which ends this process by
/// SIGBUS at the next access.
///
/// # Errors
/// The kernel's; `InvalidInput` for a file that is too short now.
pub fn map(file: BorrowedFd<'_>, offset: u64, bytes: usize) -> io::Result<MappedRange> {
    Ok(MappedRange::whole(Arc::new(Mapping::of_guest(file, offset, bytes)?)))
}

/// Maps the first `bytes` bytes of a sealed file, which nobody can shorten.
///
/// # Errors
/// The kernel's; a file that is not sealed, or is too short.
pub fn map_sealed(file: BorrowedFd<'_>, bytes: usize) -> io::Result<MappedRange> {
    Ok(MappedRange::whole(Arc::new(Mapping::new(file, bytes)?)))
}
