//! Probes: which privileged operations this process may perform, and the names of loaded BPF programs. A probe leaves
//! nothing behind; all but [`try_queue`] change no interface.

use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
#[cfg(feature = "bpf")]
use std::thread;

use rustix::net::{AddressFamily, SocketFlags, SocketType, socket_with};

#[cfg(feature = "bpf")]
use crate::tcx::Tcx;
#[cfg(feature = "bpf")]
use crate::xdp::{Mode, Xdp};
use crate::xsk::{self, BusyPoll};

#[cfg(feature = "bpf")]
mod queue;
#[cfg(feature = "bpf")]
pub use queue::{QueueTrial, try_queue};

/// Values of `enum bpf_cmd`.
const PROG_LOAD: libc::c_int = 5;
const PROG_GET_FD_BY_ID: libc::c_int = 13;
const OBJ_GET_INFO_BY_FD: libc::c_int = 15;
/// `BPF_PROG_TYPE_XDP` of `enum bpf_prog_type`.
const PROG_TYPE_XDP: u32 = 6;
/// Index of `lo`, in each network namespace.
#[cfg(feature = "bpf")]
const LO: u32 = 1;

/// `struct bpf_insn`, for register 0.
#[repr(C)]
struct Insn {
    code: u8,
    registers: u8,
    offset: i16,
    value: i32,
}

/// `r0 = 2; exit`, which is `XDP_PASS`.
static PASS: [Insn; 2] =
    [Insn { code: 0xb7, registers: 0, offset: 0, value: 2 }, Insn { code: 0x95, registers: 0, offset: 0, value: 0 }];

/// The beginning of `union bpf_attr` for each call, with no padding.
#[repr(C)]
struct ProgLoad {
    prog_type: u32,
    insn_cnt: u32,
    insns: u64,
    license: u64,
}

#[repr(C)]
struct GetById {
    id: u32,
    next_id: u32,
    open_flags: u32,
}

#[repr(C)]
struct GetInfo {
    bpf_fd: RawFd,
    info_len: u32,
    info: u64,
}

/// The beginning of `struct bpf_prog_info`, up to the name.
#[derive(Default)]
#[repr(C)]
struct ProgInfo {
    before: [u64; 8],
    name: [u8; 16],
}

/// # Safety
/// `attr` is the beginning of a `union bpf_attr` that fits `command`, without padding, and what its pointers point to
/// is what the command reads and writes.
unsafe fn bpf<T>(command: libc::c_int, attr: &mut T) -> io::Result<RawFd> {
    // SAFETY: K1, K5: the kernel reads and writes `size_of::<T>()` bytes of `attr`; its pointers are the caller's
    // contract.
    let result = unsafe { libc::syscall(libc::SYS_bpf, command, &raw mut *attr, size_of::<T>()) };
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(result as RawFd) }
}

/// Creates and closes an AF_XDP socket.
///
/// # Errors
/// `EAFNOSUPPORT`: the kernel has none. `EPERM`: no `CAP_NET_RAW`.
pub fn xdp_socket() -> io::Result<()> {
    socket_with(AddressFamily::XDP, SocketType::RAW, SocketFlags::CLOEXEC, None)?;
    Ok(())
}

/// Loads and unloads an XDP program that passes every frame.
///
/// # Errors
/// `ENOSYS`: the kernel has no BPF. `EPERM`: no `CAP_BPF` or no `CAP_NET_ADMIN`.
pub fn xdp_program() -> io::Result<()> {
    let (insns, license) = (PASS.as_ptr() as u64, c"Dual BSD/GPL".as_ptr() as u64);
    let mut attr = ProgLoad { prog_type: PROG_TYPE_XDP, insn_cnt: PASS.len() as u32, insns, license };
    // SAFETY: K1, K5: `insn_cnt` is the number of instructions, the licence is NUL-terminated; both are static.
    let fd = unsafe { bpf(PROG_LOAD, &mut attr) }?;
    // SAFETY: K2: the kernel has just created this descriptor.
    drop(unsafe { OwnedFd::from_raw_fd(fd) });
    Ok(())
}

/// Attaches the XDP program of this crate as a BPF link to `lo` of a new network namespace, in a thread of its own.
///
/// # Errors
/// `EPERM`: no `CAP_SYS_ADMIN` for the namespace, or a privilege that [`xdp_program`] needs; else as [`Xdp::attach`].
#[cfg(feature = "bpf")]
pub fn xdp_link() -> io::Result<()> {
    in_new_namespace(|| Xdp::attach(LO, 1, Mode::Generic).map(drop))
}

/// Attaches the tcx program of host rings to `lo` of a new network namespace.
///
/// # Errors
/// As [`xdp_link`] and [`Tcx::attach`].
#[cfg(feature = "bpf")]
pub fn tcx_link() -> io::Result<()> {
    in_new_namespace(|| Tcx::attach(LO).map(drop))
}

/// Calls `inside` in a new network namespace, in a thread of its own.
#[cfg(feature = "bpf")]
fn in_new_namespace(inside: fn() -> io::Result<()>) -> io::Result<()> {
    // SAFETY: K7: only this thread, which exits after the call, changes its namespace.
    let enter_and_call = move || match unsafe { libc::unshare(libc::CLONE_NEWNET) } {
        0 => inside(),
        _ => Err(io::Error::last_os_error()),
    };
    let thread = thread::Builder::new().name("probe".into()).spawn(enter_and_call)?;
    thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
}

/// Sets busy polling on a socket that is not bound.
///
/// # Errors
/// As [`xsk::try_busy_poll`].
pub fn busy_poll() -> io::Result<()> {
    xsk::try_busy_poll(BusyPoll::new(1, 1).ok_or(io::ErrorKind::InvalidInput)?)
}

/// Returns the name of a loaded BPF program, at most 15 bytes; empty if it has none.
///
/// # Errors
/// `ENOENT`: no such program. `EPERM`: no `CAP_SYS_ADMIN`.
pub fn program_name(id: u32) -> io::Result<String> {
    let mut attr = GetById { id, next_id: 0, open_flags: 0 };
    // SAFETY: K5: the structure contains no pointer.
    let fd = unsafe { bpf(PROG_GET_FD_BY_ID, &mut attr) }?;
    // SAFETY: K2: the kernel has just created this descriptor.
    let fd = unsafe { OwnedFd::from_raw_fd(fd) };
    let mut info = ProgInfo::default();
    let (info_len, at) = (size_of::<ProgInfo>() as u32, &raw mut info as u64);
    let mut attr = GetInfo { bpf_fd: fd.as_raw_fd(), info_len, info: at };
    // SAFETY: K1, K5: the kernel writes at most `info_len` bytes to `info`; it is zero, so the kernel follows no
    // pointer in it.
    unsafe { bpf(OBJ_GET_INFO_BY_FD, &mut attr) }?;
    let name = info.name.split(|&byte| byte == 0).next().unwrap_or_default();
    Ok(String::from_utf8_lossy(name).into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernel;

    #[test]
    fn probes_succeed_or_lack_a_privilege() {
        for (what, result) in [
            ("socket", xdp_socket()),
            ("program", xdp_program()),
            #[cfg(feature = "bpf")]
            ("link", xdp_link()),
            ("busy poll", busy_poll()),
            #[cfg(feature = "bpf")]
            ("host rings", tcx_link()),
        ] {
            match result {
                Ok(()) => {}
                Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {
                    eprintln!("skipped, {what}: {error}");
                }
                Err(error) if what == "busy poll" && kernel::BUSY_POLL.is_newer_than_kernel() => {
                    eprintln!("{what}: {error}")
                }
                Err(error) if what == "host rings" && kernel::HOST_RINGS.is_newer_than_kernel() => {
                    eprintln!("{what}: {error}")
                }
                Err(error) => panic!("{what}: {error}"),
            }
        }
    }

    #[test]
    fn the_name_of_a_missing_program_is_an_error() {
        let errno = program_name(u32::MAX).unwrap_err().raw_os_error();
        assert!(matches!(errno, Some(libc::ENOENT | libc::EPERM)), "{errno:?}");
    }
}
