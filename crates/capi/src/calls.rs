// SPDX-License-Identifier: BSD-2-Clause
//! System calls on a netmap file. `preload/` calls these functions for descriptors that are in the table.

use std::ffi::{c_int, c_long, c_ulong, c_void};
use std::os::fd::{AsRawFd, IntoRawFd};
use std::panic::{AssertUnwindSafe, catch_unwind};

use unetmap_core::abi::*;
use unetmap_core::control::legacy::LegacyIoctl;
use unetmap_core::errno::{EINVAL, EIO, ENXIO};
use unetmap_core::port::file::File;
use unetmap_core::{Error, Port};

use crate::ctrl;
use crate::files::{FileRef, MAX_FILES, borrowed, remove, socket_inode, with_known_port};
use crate::last_error::report;

/// Runs `body` and returns its result; an error becomes a negative errno, a panic `-EIO`.
pub(crate) fn call(body: impl FnOnce() -> Result<c_int, i32>) -> c_int {
    catch_unwind(AssertUnwindSafe(body)).unwrap_or(Err(EIO)).unwrap_or_else(|errno| -errno)
}

/// Implements `open("/dev/netmap", flags)`: returns a new descriptor.
#[unsafe(no_mangle)]
pub extern "C" fn unetmap_open(flags: c_int) -> c_int {
    call(|| {
        let (fd, file) = File::open().map_err(|e| report(&e))?;
        let raw = fd.as_raw_fd();
        let inode = socket_inode(raw).ok_or(EIO)?;
        if usize::try_from(raw).is_ok_and(|raw| raw >= MAX_FILES) {
            return Err(libc::EMFILE);
        }
        if flags & libc::O_CLOEXEC == 0 {
            // SAFETY: C6: `fd` owns the descriptor.
            unsafe { libc::fcntl(raw, libc::F_SETFD, 0) };
        }
        let raw = fd.into_raw_fd();
        FileRef::new(file, inode).insert(raw);
        Ok(raw)
    })
}

/// Removes descriptor `fd`, which is closed or about to be closed, from the table.
#[unsafe(no_mangle)]
pub extern "C" fn unetmap_fd_closed(fd: c_int) {
    call(|| {
        remove(fd);
        Ok(0)
    });
}

/// Records that descriptor `new` is a duplicate of `old`.
#[unsafe(no_mangle)]
pub extern "C" fn unetmap_fd_duplicated(old: c_int, new: c_int) {
    call(|| {
        remove(new);
        if let Some(open) = FileRef::of(old) {
            open.insert(new);
        }
        Ok(0)
    });
}

/// Returns 1 and enters `fd`, received from another process, into the table if it is a netmap file; else 0.
#[unsafe(no_mangle)]
pub extern "C" fn unetmap_fd_adopt(fd: c_int) -> c_int {
    call(|| {
        let Some(inode) = socket_inode(fd) else { return Ok(0) };
        let open = match FileRef::with_inode(inode) {
            Some(open) => open,
            None => match File::from_descriptor(borrowed(fd)) {
                Some(file) => FileRef::new(file, inode),
                None => return Ok(0),
            },
        };
        Ok(c_int::from(open.insert(fd)))
    })
}

/// Implements `ioctl`.
///
/// # Safety
/// As ioctl: `arg` is the argument that the request defines (C1).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn unetmap_ioctl(fd: c_int, request: c_ulong, arg: *mut c_void) -> c_int {
    call(|| {
        // The number is sign-extended if the program stores it in an int.
        let request = request & c_ulong::from(u32::MAX);
        match request {
            NIOCTXSYNC => return sync(fd, Port::txsync),
            NIOCRXSYNC => return sync(fd, Port::rxsync),
            _ => {}
        }
        let open = current_file(fd)?;
        let arg = arg.expose_provenance() as u64;
        match request {
            NIOCCTRL => ctrl::ctrl(&open, fd, arg),
            NIOCREGIF => ctrl::legacy_ioctl(&open, fd, arg, LegacyIoctl::Register),
            NIOCGINFO => ctrl::legacy_ioctl(&open, fd, arg, LegacyIoctl::Info),
            NIOCCONFIG => ctrl::config(arg),
            libc::FIONBIO | libc::FIOASYNC => Ok(0),
            _ => Err(libc::ENOTTY),
        }
    })
}

fn sync(fd: c_int, sync: impl Fn(&Port) -> Result<(), Error>) -> Result<c_int, i32> {
    let sync = |port: &Port| match sync(port) {
        // As in netmap: the ring was reset, and only poll reports it.
        Ok(()) | Err(Error::BadPointers { .. }) => Ok(0),
        Err(e) => Err(report(&e)),
    };
    match with_known_port(fd, |attached| sync(&attached.port)) {
        Some(result) => result,
        None => {
            let open = current_file(fd)?;
            let attached = open.port(fd).map_err(|e| report(&e))?.ok_or(ENXIO)?;
            sync(&attached.port)
        }
    }
}

/// Returns the netmap file of `fd`. A number that was reused for another file, by a call without a hook, is removed.
///
/// # Errors
/// `EBADF`.
pub(crate) fn current_file(fd: c_int) -> Result<FileRef, i32> {
    let open = FileRef::of(fd).ok_or(libc::EBADF)?;
    if open.refers_to(fd) {
        return Ok(open);
    }
    remove(fd);
    Err(libc::EBADF)
}

/// Implements `mmap` of a netmap file, which maps its region. Returns the address, or a negative errno.
///
/// # Safety
/// As mmap: with MAP_FIXED the caller owns the address range (C1).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn unetmap_mmap(
    address: *mut c_void,
    bytes: usize,
    prot: c_int,
    flags: c_int,
    fd: c_int,
    offset: i64,
) -> c_long {
    let map = || {
        let open = current_file(fd)?;
        let attached = open.port(fd).map_err(|e| report(&e))?.ok_or(EINVAL)?;
        let size = attached.port.register().nr_memsize;
        let end = u64::try_from(offset).ok().and_then(|offset| offset.checked_add(bytes as u64));
        if end.is_none_or(|end| end > size.next_multiple_of(4096)) {
            return Err(EINVAL);
        }
        // SAFETY: C1: the caller's contract; the descriptor is that of the region.
        let at =
            unsafe { libc::syscall(libc::SYS_mmap, address, bytes, prot, flags, attached.region.as_raw_fd(), offset) };
        if at == -1 { Err(std::io::Error::last_os_error().raw_os_error().unwrap_or(EIO)) } else { Ok(at) }
    };
    catch_unwind(AssertUnwindSafe(map)).unwrap_or(Err(EIO)).unwrap_or_else(|errno| -c_long::from(errno))
}
