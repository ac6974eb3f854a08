//! What the system's calls mean on a netmap file. `preload/` calls these for descriptors that are in the table.

use std::ffi::{c_int, c_long, c_ulong, c_void};
use std::os::fd::{AsRawFd, IntoRawFd};
use std::panic::{AssertUnwindSafe, catch_unwind};

use unetmap_core::abi::*;
use unetmap_core::errno::{EINVAL, EIO, ENXIO};
use unetmap_core::port::file::File;
use unetmap_core::control::legacy::Call;
use unetmap_core::{Error, Port};

use crate::ctrl;
use crate::files::{MOST, Ref, borrowed, forget, socket_inode, with_known_port};
use crate::said::told;

/// Runs `body`; an error leaves as a negative errno.
pub(crate) fn call(body: impl FnOnce() -> Result<c_int, i32>) -> c_int {
    catch_unwind(AssertUnwindSafe(body)).unwrap_or(Err(EIO)).unwrap_or_else(|errno| -errno)
}

/// `open("/dev/netmap", flags)`: a new descriptor.
#[unsafe(no_mangle)]
pub extern "C" fn unetmap_open(flags: c_int) -> c_int {
    call(|| {
        let (fd, file) = File::open().map_err(|e| told(&e))?;
        let raw = fd.as_raw_fd();
        let inode = socket_inode(raw).ok_or(EIO)?;
        if usize::try_from(raw).is_ok_and(|raw| raw >= MOST) {
            return Err(libc::EMFILE);
        }
        if flags & libc::O_CLOEXEC == 0 {
            // SAFETY: a call on our own descriptor.
            unsafe { libc::fcntl(raw, libc::F_SETFD, 0) };
        }
        let raw = fd.into_raw_fd();
        Ref::new(file, inode).enter(raw);
        Ok(raw)
    })
}

/// Descriptor `fd` is closed, or about to be.
#[unsafe(no_mangle)]
pub extern "C" fn unetmap_fd_closed(fd: c_int) {
    call(|| {
        forget(fd);
        Ok(0)
    });
}

/// Descriptor `new` is a duplicate of `old`.
#[unsafe(no_mangle)]
pub extern "C" fn unetmap_fd_duplicated(old: c_int, new: c_int) {
    call(|| {
        forget(new);
        if let Some(open) = Ref::of(old) {
            open.enter(new);
        }
        Ok(0)
    });
}

/// Whether `fd`, which came from another process, is a netmap file; if so, it is known from now on.
#[unsafe(no_mangle)]
pub extern "C" fn unetmap_fd_adopt(fd: c_int) -> c_int {
    call(|| {
        let Some(inode) = socket_inode(fd) else { return Ok(0) };
        let open = match Ref::with_inode(inode) {
            Some(open) => open,
            None => match File::behind(borrowed(fd)) {
                Some(file) => Ref::new(file, inode),
                None => return Ok(0),
            },
        };
        Ok(c_int::from(open.enter(fd)))
    })
}

/// `ioctl`.
///
/// # Safety
/// As ioctl: `arg` is what the request asks for.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn unetmap_ioctl(fd: c_int, request: c_ulong, arg: *mut c_void) -> c_int {
    call(|| {
        // Programs that keep the number in an int have its sign extended.
        let request = request & c_ulong::from(u32::MAX);
        match request {
            NIOCTXSYNC => return sync(fd, Port::txsync),
            NIOCRXSYNC => return sync(fd, Port::rxsync),
            _ => {}
        }
        let open = still(fd)?;
        let arg = arg.expose_provenance() as u64;
        match request {
            NIOCCTRL => ctrl::ctrl(&open, fd, arg),
            NIOCREGIF => ctrl::older(&open, fd, arg, Call::Register),
            NIOCGINFO => ctrl::older(&open, fd, arg, Call::Info),
            NIOCCONFIG => ctrl::config(arg),
            libc::FIONBIO | libc::FIOASYNC => Ok(0),
            _ => Err(libc::ENOTTY),
        }
    })
}

fn sync(fd: c_int, sync: impl Fn(&Port) -> Result<(), Error>) -> Result<c_int, i32> {
    let sync = |port: &Port| match sync(port) {
        // As the original: the ring was set back, and only poll tells.
        Ok(()) | Err(Error::BadPointers { .. }) => Ok(0),
        Err(e) => Err(told(&e)),
    };
    match with_known_port(fd, |attached| sync(&attached.port)) {
        Some(result) => result,
        None => {
            let open = still(fd)?;
            let attached = open.port(fd).map_err(|e| told(&e))?.ok_or(ENXIO)?;
            sync(&attached.port)
        }
    }
}

/// The file that `fd` is. A number that has become another file's, by a way that has no hook, is forgotten.
///
/// # Errors
/// `EBADF`.
pub(crate) fn still(fd: c_int) -> Result<Ref, i32> {
    let open = Ref::of(fd).ok_or(libc::EBADF)?;
    if open.is_behind(fd) {
        return Ok(open);
    }
    forget(fd);
    Err(libc::EBADF)
}

/// `mmap` of a netmap file: its region. The address, or a negative errno.
///
/// # Safety
/// As mmap: with MAP_FIXED the address range is the caller's to replace.
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
        let open = still(fd)?;
        let attached = open.port(fd).map_err(|e| told(&e))?.ok_or(EINVAL)?;
        let size = attached.port.register().nr_memsize;
        let end = u64::try_from(offset).ok().and_then(|offset| offset.checked_add(bytes as u64));
        if end.is_none_or(|end| end > size.next_multiple_of(4096)) {
            return Err(EINVAL);
        }
        // SAFETY: the caller's promise; the file is the region's.
        let at =
            unsafe { libc::syscall(libc::SYS_mmap, address, bytes, prot, flags, attached.region.as_raw_fd(), offset) };
        if at == -1 { Err(std::io::Error::last_os_error().raw_os_error().unwrap_or(EIO)) } else { Ok(at) }
    };
    catch_unwind(AssertUnwindSafe(map)).unwrap_or(Err(EIO)).unwrap_or_else(|errno| -c_long::from(errno))
}
