// SPDX-License-Identifier: BSD-2-Clause
//! Rights that the daemon and its processes give up before they serve anybody (see docs/security.md).

use std::io;
use std::path::Path;

use unetmap_sys::process;
use unetmap_sys::sandbox::{self, Access, Capability};
use unetmap_sys::thread::{Precedence, set_nice, set_precedence};

use crate::fault;
use crate::memory_files;
use crate::owner::owner;
use crate::tuning::confinement::{CONTROL_NICE, OOM_SCORE, USERS};

/// The broker's capabilities: to read the policy and the accounts (1, 2), memory whose pages stay, of another user (3,
/// 9), interfaces and their sockets (11 to 13), memory that the kernel pins for them (14), the namespaces and the
/// memory of the node's programs (19), mounts, namespaces and BPF on old kernels (21), its niceness and limits (23,
/// 24), BPF (38, 39).
const BROKER: [Capability; 14] = [
    Capability::DacOverride,
    Capability::DacReadSearch,
    Capability::Fowner,
    Capability::LinuxImmutable,
    Capability::NetBroadcast,
    Capability::NetAdmin,
    Capability::NetRaw,
    Capability::IpcLock,
    Capability::SysPtrace,
    Capability::SysAdmin,
    Capability::SysNice,
    Capability::SysResource,
    Capability::Perfmon,
    Capability::Bpf,
];

/// Confines the daemon that listens at `socket`, and reads `config` again on request. Call it before the first thread
/// is started. The calling thread of root's daemon, and those that it starts, have precedence, which cannot be had
/// later, until it gives it up ([`set_precedence_to`]).
pub(crate) fn confine_daemon(socket: &Path, config: Option<&Path>) {
    report("no_new_privs", sandbox::no_new_privileges());
    if owner() == 0 {
        report("oom_score_adj", sandbox::set_oom_score(OOM_SCORE));
        prefer();
        set_precedence_to(Precedence::Inherited);
        report("RLIMIT_RTPRIO", process::renounce_real_time());
        report("capabilities", sandbox::keep_capabilities(&[Capability::SetGid, Capability::SetUid]));
        report("another user", unused_user().and_then(sandbox::become_user));
    }
    report("capabilities", sandbox::keep_capabilities(&[]));
    let folder_of = |file: &'_ Path| file.parent().unwrap_or(Path::new("/")).to_owned();
    let (folder, config) = (folder_of(socket), config.map(folder_of));
    let mut files = vec![
        (Path::new("/proc"), Access::Read),
        (Path::new("/sys"), Access::Read),
        (Path::new("/dev/null"), Access::Write),
        (Path::new("/dev/urandom"), Access::Read),
    ];
    // The broker reads root's files.
    if owner() != 0 {
        files.push((&*folder, Access::Write));
        // The folder, as editors replace the file.
        files.extend(config.iter().map(|folder| (&**folder, Access::Read)));
    }
    report("landlock", sandbox::allow_files(&files));
    report("seccomp", sandbox::allow_calls(sandbox::MAIN));
}

/// Prefers the calling thread to the programs that it serves, and its session to theirs.
fn prefer() {
    tell("a niceness", set_nice(CONTROL_NICE));
    tell("a niceness of the session", process::set_session_nice(CONTROL_NICE));
}

/// Sets the precedence of the calling thread. The two that renew the deadlines of interfaces have it: they need little
/// of a processor, but in time.
pub(crate) fn set_precedence_to(precedence: Precedence) {
    tell("real-time threads", set_precedence(precedence));
}

/// A user that no other process is, wherever on the machine: the kernel counts descriptors in flight, locked memory and
/// more by user, and daemons in other containers cannot be seen. By chance, of very many.
fn unused_user() -> io::Result<u32> {
    let users = u64::from(USERS.end - USERS.start);
    Ok(USERS.start + (process::random()? % users) as u32)
}

/// Confines the process that keeps the ports of a daemon for the case of a crash: it starts a daemon.
pub(crate) fn confine_store() {
    report("no_new_privs", sandbox::no_new_privileges());
}

/// Confines the broker of root's daemon. Call it before it starts a thread.
pub(crate) fn confine_broker() {
    report("no_new_privs", sandbox::no_new_privileges());
    // The control thread waits for it.
    prefer();
    report("capabilities", sandbox::keep_capabilities(&BROKER));
    report("seccomp", sandbox::allow_calls(sandbox::ROOT_MAIN));
}

/// Has programs keep all pages of the memory that they share with the daemon, which would wait for those that are being
/// removed.
pub(crate) fn keep_pages() {
    // As on Linux before 6.0.
    if fault::is("removable") {
        return;
    }
    if let Err(e) = memory_files::start() {
        tracing::info!("programs can delay the daemon by removing pages of their regions: {e}");
    }
}

/// Confines a process that accesses other processes' memory.
pub(crate) fn confine_memory_helper() {
    report("priority", set_nice(0));
    report("no_new_privs", sandbox::no_new_privileges());
    report("capabilities", sandbox::keep_capabilities(&[Capability::SysPtrace]));
    report("seccomp", sandbox::allow_calls(sandbox::MEMORY_HELPER));
}

/// Confines a thread that moves packets, before it touches a client's memory.
pub(crate) fn confine_packet_thread() {
    report("a packet thread", sandbox::confine_packet_thread());
}

/// Tells of what makes the daemon sooner, and confines it by nothing.
fn tell(what: &str, result: io::Result<()>) {
    if let Err(e) = result {
        tracing::info!("no {what} here, so that a busy machine delays the daemon more: {e}");
    }
}

fn report(what: &str, result: io::Result<()>) {
    match result {
        Ok(()) => {}
        Err(e) if sandbox::is_missing(&e) => tracing::debug!("this kernel has no {what}: {e}"),
        // In a container, whose own restrictions remain.
        Err(e) if e.kind() == io::ErrorKind::PermissionDenied => tracing::info!("{what} may not be set here: {e}"),
        Err(e) => tracing::warn!("the daemon is not confined by {what}: {e}"),
    }
}
