//! The memory that a program's pointers point to, which may be no memory at all: as the kernel would, we say EFAULT.

use zerocopy::{FromBytes, Immutable, IntoBytes};

/// Reads `into.len()` bytes at address `from`.
///
/// # Errors
/// `EFAULT`.
pub(crate) fn read(from: u64, into: &mut [u8]) -> Result<(), i32> {
    let here = libc::iovec { iov_base: into.as_mut_ptr().cast(), iov_len: into.len() };
    // SAFETY: `here` is a slice of ours; what lies at `from` is read by the kernel, which refuses what is not there.
    let call = |there| unsafe { libc::process_vm_readv(libc::getpid(), &here, 1, there, 1, 0) };
    // SAFETY: a kernel that may not look for us: the address is trusted, as any C library trusts it.
    move_bytes(from, into.len(), call, |at| unsafe { into.as_mut_ptr().copy_from(at, into.len()) })
}

/// Writes `bytes` to address `to`.
///
/// # Errors
/// `EFAULT`.
pub(crate) fn write(to: u64, bytes: &[u8]) -> Result<(), i32> {
    let here = libc::iovec { iov_base: bytes.as_ptr().cast_mut().cast(), iov_len: bytes.len() };
    // SAFETY: `here` is a slice of ours, only read; the address is the program's, who told us to write there.
    let call = |there| unsafe { libc::process_vm_writev(libc::getpid(), &here, 1, there, 1, 0) };
    // SAFETY: as in `read`.
    move_bytes(to, bytes.len(), call, |at| unsafe { at.copy_from(bytes.as_ptr(), bytes.len()) })
}

/// By `call`; where the kernel does not let this process call it, by `blindly`.
fn move_bytes(
    at: u64,
    len: usize,
    call: impl Fn(*const libc::iovec) -> isize,
    blindly: impl FnOnce(*mut u8),
) -> Result<(), i32> {
    let at: *mut u8 = std::ptr::with_exposed_provenance_mut(at as usize);
    let there = libc::iovec { iov_base: at.cast(), iov_len: len };
    let moved = if len == 0 { 0 } else { call(&there) };
    if usize::try_from(moved) == Ok(len) {
        return Ok(());
    }
    match std::io::Error::last_os_error().raw_os_error() {
        Some(libc::EPERM | libc::ENOSYS) if moved < 0 && !at.is_null() => {
            blindly(at);
            Ok(())
        }
        _ => Err(libc::EFAULT),
    }
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
