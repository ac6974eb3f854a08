// SPDX-License-Identifier: BSD-2-Clause
//! Probes: which privileged operations this process may perform, and the names of loaded BPF programs. A probe leaves
//! nothing behind; all but [`try_queue`] change no interface.

use std::io;
#[cfg(feature = "bpf")]
use std::thread;

use rustix::net::{AddressFamily, SocketFlags, SocketType, socket_with};

#[cfg(feature = "bpf")]
use crate::bpf::{self, Caller};
use crate::kernel;
use crate::process;
use crate::sandbox::{self, Capability};
#[cfg(feature = "bpf")]
use crate::tcx::Tcx;
#[cfg(feature = "bpf")]
use crate::xdp::translate;
#[cfg(feature = "bpf")]
use crate::xdp::{Mode, Xdp};
use crate::xsk::{self, BusyPoll};

#[cfg(feature = "bpf")]
mod queue;
#[cfg(feature = "bpf")]
pub use queue::{QueueTrial, try_queue};

/// Index of `lo`, in each network namespace.
#[cfg(feature = "bpf")]
const LO: u32 = 1;

/// Creates and closes an AF_XDP socket.
///
/// # Errors
/// `EAFNOSUPPORT`: the kernel has none. `EPERM`: no `CAP_NET_RAW`.
pub fn xdp_socket() -> io::Result<()> {
    socket_with(AddressFamily::XDP, SocketType::RAW, SocketFlags::CLOEXEC, None)?;
    Ok(())
}

/// Why root of a user namespace has no XDP programs.
pub const NOT_IN_USER_NAMESPACES: &str = "bpf(2), which AF_XDP needs, is not for user namespaces";

/// Why XDP programs and AF_XDP sockets cannot be had by this process, as far as is known without an attempt; `None`:
/// they may be.
pub fn xdp_obstacle() -> Option<String> {
    let lacks = |capability| sandbox::has_capability(capability).is_ok_and(|has| !has);
    if !process::is_in_initial_user_namespace() {
        return Some(NOT_IN_USER_NAMESPACES.into());
    }
    if lacks(Capability::SysAdmin) && lacks(Capability::Bpf) {
        return Some("the daemon lacks CAP_BPF, which AF_XDP needs".into());
    }
    // A port would be refused when its program is loaded, which is too late for another way.
    if kernel::INTERFACES.is_newer_than_kernel() {
        return Some(kernel::INTERFACES.refusal());
    }
    let unknown = |e: io::Error| e.raw_os_error() == Some(libc::EAFNOSUPPORT);
    xdp_socket().map_or_else(unknown, |()| false).then(|| "this kernel has no AF_XDP sockets".into())
}

/// Loads and unloads an XDP program that passes every frame.
///
/// # Errors
/// `ENOSYS`: the kernel has no BPF. `EPERM`: no `CAP_BPF` or no `CAP_NET_ADMIN`.
#[cfg(feature = "bpf")]
pub fn xdp_program() -> io::Result<()> {
    bpf::load_xdp(&translate::PASS, Caller::Attached { frags: false }).map(drop)
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
    xsk::try_busy_poll(BusyPoll::new(1, 1).map_err(io::Error::other)?)
}

/// Returns the name of a loaded BPF program, at most 15 bytes; empty if it has none.
///
/// # Errors
/// `ENOENT`: no such program. `EPERM`: no `CAP_SYS_ADMIN`.
#[cfg(feature = "bpf")]
pub fn program_name(id: u32) -> io::Result<String> {
    Ok(bpf::program_info(bpf::program_by_id(id)?)?.name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn probes_succeed_or_lack_a_privilege() {
        for (what, result) in [
            ("socket", xdp_socket()),
            #[cfg(feature = "bpf")]
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

    #[cfg(feature = "bpf")]
    #[test]
    fn the_name_of_a_missing_program_is_an_error() {
        let errno = program_name(u32::MAX).unwrap_err().raw_os_error();
        assert!(matches!(errno, Some(libc::ENOENT | libc::EPERM)), "{errno:?}");
    }
}
