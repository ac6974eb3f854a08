// SPDX-License-Identifier: BSD-2-Clause
//! Restrictions that a process or thread puts on itself, so that a mistake in it does less harm. None can be undone.
//!
//! | function | what it takes away | of |
//! |---|---|---|
//! | [`no_new_privileges`] | privileges of setuid programs | the thread, and those it starts |
//! | [`keep_capabilities`] | all other capabilities | the same |
//! | [`allow_calls`] | all other system calls, which answer `ENOSYS` | the same |
//! | [`allow_files`] | all other files and folders (landlock) | the same |
//!
//! A kernel without one of them returns an error; the program runs on without it.

use std::io;

use rustix::io::Errno;

mod calls;
mod files;

pub use calls::{Calls, MAIN, MEMORY_HELPER, PACKETS, ROOT_MAIN, allow_calls};
pub use files::{Access, allow_files};

/// A capability of linux/capability.h.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
#[allow(missing_docs)] // The kernel's names.
pub enum Capability {
    DacOverride = 1,
    DacReadSearch = 2,
    Fowner = 3,
    SetGid = 6,
    SetUid = 7,
    LinuxImmutable = 9,
    NetBroadcast = 11,
    NetAdmin = 12,
    NetRaw = 13,
    IpcLock = 14,
    SysPtrace = 19,
    SysAdmin = 21,
    SysNice = 23,
    SysResource = 24,
    Perfmon = 38,
    Bpf = 39,
}

/// `CAP_SETPCAP`.
const SETPCAP: u32 = 8;
/// `_LINUX_CAPABILITY_VERSION_3`: two words of each set.
const VERSION: u32 = 0x2008_0522;

#[repr(C)]
struct CapabilityHeader {
    version: u32,
    pid: i32,
}

#[derive(Clone, Copy)]
#[repr(C)]
struct CapabilityWords {
    effective: u32,
    permitted: u32,
    inheritable: u32,
}

/// Forbids the calling thread, and those it starts, to gain privileges by executing a program.
///
/// # Errors
/// None known.
pub fn no_new_privileges() -> io::Result<()> {
    // SAFETY: K7.
    done(unsafe { libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) }.into())
}

/// Drops all capabilities of the calling thread but `kept`; those that it does not have are not gained. Programs that
/// it executes cannot have others either.
///
/// # Errors
/// A sandbox forbids it.
pub fn keep_capabilities(kept: &[Capability]) -> io::Result<()> {
    let bits = kept.iter().fold(0u64, |bits, kept| bits | 1 << *kept as u32);
    let (header, mut words) = (CapabilityHeader { version: VERSION, pid: 0 }, own_capabilities()?);
    let may_bound = words[0].effective & 1 << SETPCAP != 0;
    for capability in (0..64).filter(|at| bits & 1 << at == 0 && may_bound) {
        // SAFETY: K7. Capabilities that the kernel does not know are refused.
        unsafe { libc::prctl(libc::PR_CAPBSET_DROP, capability, 0, 0, 0) };
    }
    for (word, kept) in words.iter_mut().zip([bits as u32, (bits >> 32) as u32]) {
        let has = word.permitted & kept;
        *word = CapabilityWords { effective: has, permitted: has, inheritable: 0 };
    }
    // SAFETY: K1, K5: the header and two words, as this version of the call reads.
    done(unsafe { libc::syscall(libc::SYS_capset, &raw const header, words.as_ptr()) })
}

/// Whether the calling thread has a capability, in its own user namespace.
///
/// # Errors
/// A sandbox forbids the question.
pub fn has_capability(capability: Capability) -> io::Result<bool> {
    let at = capability as u32;
    Ok(own_capabilities()?[(at / 32) as usize].effective & 1 << (at % 32) != 0)
}

fn own_capabilities() -> io::Result<[CapabilityWords; 2]> {
    let header = CapabilityHeader { version: VERSION, pid: 0 };
    let mut words = [CapabilityWords { effective: 0, permitted: 0, inheritable: 0 }; 2];
    // SAFETY: K1, K5: the header and two words, as this version of the call writes.
    done(unsafe { libc::syscall(libc::SYS_capget, &raw const header, words.as_mut_ptr()) })?;
    Ok(words)
}

/// Becomes user and group `id`, with no other group, and loses all capabilities. The process must have one thread.
///
/// # Errors
/// `EPERM` if it is not root; `EINVAL` in a user namespace without such a user.
pub fn become_user(id: u32) -> io::Result<()> {
    // SAFETY: K1, K7: no list is passed. By system call, as the C library would signal other threads, of which there
    // are none.
    unsafe {
        done(libc::syscall(libc::SYS_setgroups, 0, std::ptr::null::<libc::gid_t>()))?;
        done(libc::syscall(libc::SYS_setresgid, id, id, id))?;
        done(libc::syscall(libc::SYS_setresuid, id, id, id))
    }
}

/// Makes the kernel choose this process late when memory runs out: -1000 (never) to 1000 (first).
///
/// # Errors
/// `EACCES` without the privilege to lower it.
pub fn set_oom_score(score: i32) -> io::Result<()> {
    std::fs::write("/proc/self/oom_score_adj", score.to_string())
}

fn done(result: libc::c_long) -> io::Result<()> {
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// Takes everything from the calling thread that a thread which moves packets does not need: all capabilities, and all
/// system calls but [`PACKETS`].
///
/// # Errors
/// As [`keep_capabilities`] and [`allow_calls`]; the former are dropped in any case.
pub fn confine_packet_thread() -> io::Result<()> {
    keep_capabilities(&[]).and(no_new_privileges()).and(allow_calls(PACKETS))
}

/// Whether the error is that of a kernel without the feature.
pub fn is_missing(e: &io::Error) -> bool {
    e.kind() == io::ErrorKind::Unsupported || Errno::from_io_error(e) == Some(Errno::INVAL)
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixListener;

    use super::*;
    use crate::process::tests::in_child;

    fn status(field: &str) -> String {
        let text = std::fs::read_to_string("/proc/self/status").unwrap();
        let line = text.lines().find_map(|line| line.strip_prefix(field)).unwrap_or_default();
        line.trim_start_matches(':').trim().to_owned()
    }

    #[test]
    fn capabilities_are_dropped_and_not_gained() {
        let had = u64::from_str_radix(&status("CapPrm"), 16).unwrap();
        let outcome = in_child(|| {
            keep_capabilities(&[Capability::NetRaw, Capability::Bpf]).unwrap();
            let kept = (1 << 13 | 1 << 39) & had;
            let now = ["CapPrm", "CapEff"].map(|field| u64::from_str_radix(&status(field), 16).unwrap());
            keep_capabilities(&[Capability::SysAdmin]).unwrap();
            i32::from(now != [kept; 2]) + 2 * i32::from(u64::from_str_radix(&status("CapPrm"), 16).unwrap() != 0)
        });
        assert_eq!(outcome, 0);
    }

    #[test]
    fn calls_that_are_not_allowed_are_unknown() {
        let outcome = in_child(|| {
            no_new_privileges().unwrap();
            allow_calls(MAIN).unwrap();
            // SAFETY: K7: of no group.
            let refused = unsafe { libc::getpgid(0) };
            let errno = io::Error::last_os_error().raw_os_error();
            let serves = std::thread::spawn(|| std::fs::read("/proc/self/stat").is_ok()).join().unwrap();
            i32::from(refused != -1 || errno != Some(libc::ENOSYS)) + 2 * i32::from(!serves)
        });
        assert_eq!(outcome, 0);
    }

    #[test]
    fn files_that_are_not_allowed_cannot_be_opened() {
        let own = tempfile::tempdir().unwrap();
        let other = tempfile::tempdir().unwrap();
        let shared = tempfile::tempdir().unwrap();
        let (mine, foreign) = (own.path().join("file"), other.path().join("file"));
        let (ours, daemons) = (shared.path().join("socket"), shared.path().join("daemon"));
        std::fs::write(&foreign, "x").unwrap();
        let _listeners = [&ours, &daemons].map(|path| UnixListener::bind(path).unwrap());
        let outcome = in_child(|| {
            no_new_privileges().unwrap();
            let proc = std::path::Path::new("/proc");
            let allowed = [(own.path(), Access::Write), (shared.path(), Access::Remove), (proc, Access::Read)];
            if let Err(e) = allow_files(&allowed) {
                // Another exit code, as the child's output is not captured.
                return if is_missing(&e) { 100 } else { 101 };
            }
            let written = std::fs::write(&mine, "x").is_ok() && std::fs::remove_file(&mine).is_ok();
            let folder = std::fs::create_dir(&mine).is_ok() && std::fs::remove_dir(&mine).is_ok();
            let read = std::fs::read("/proc/self/stat").is_ok();
            let refused = std::fs::read(&foreign).is_err() && std::fs::write(&foreign, "y").is_err();
            let removed = std::fs::remove_file(&ours).is_ok();
            let no_socket = [&mine, &ours].iter().all(|path| UnixListener::bind(path).is_err());
            let no_file = std::fs::write(&ours, "x").is_err() && std::fs::rename(&daemons, &ours).is_err();
            let outcomes = [written, folder, read, refused, removed, no_socket, no_file];
            outcomes.iter().enumerate().map(|(i, held)| i32::from(!*held) << i).sum()
        });
        match outcome {
            100 => eprintln!("skipped: this kernel has no landlock"),
            outcome => assert_eq!(outcome, 0),
        }
    }
}
