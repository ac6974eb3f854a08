// SPDX-License-Identifier: BSD-2-Clause
//! Files and folders that a process may use (landlock, Linux 5.13).

use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::path::Path;

use rustix::fs::{Mode, OFlags};

use super::done;

/// Accesses that are allowed below a path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// Files are read, and folders are listed.
    Read,
    /// Files and sockets are removed, and nothing else: a folder that others use, too.
    Remove,
    /// Files and folders are read, written, created and removed. Sockets are not created: they could take a daemon's
    /// place.
    Write,
}

/// Rights of linux/landlock.h, those of its first version: EXECUTE to MAKE_SYM.
const ALL: u64 = (1 << 13) - 1;
const WRITE_FILE: u64 = 1 << 1;
const READ_FILE: u64 = 1 << 2;
const READ_DIR: u64 = 1 << 3;
const REMOVE_DIR: u64 = 1 << 4;
const REMOVE_FILE: u64 = 1 << 5;
const MAKE_DIR: u64 = 1 << 7;
const MAKE_REG: u64 = 1 << 8;
/// Rights that a file has; the others are a folder's.
const OF_FILES: u64 = 1 | WRITE_FILE | READ_FILE;
/// Later versions: REFER (2), TRUNCATE (3), IOCTL_DEV (5).
const REFER: u64 = 1 << 13;
const TRUNCATE: u64 = 1 << 14;

/// `LANDLOCK_CREATE_RULESET_VERSION`, `LANDLOCK_RULE_PATH_BENEATH`.
const VERSION: libc::c_uint = 1;
const PATH_BENEATH: libc::c_int = 1;

#[repr(C, packed)]
struct PathRule {
    allowed: u64,
    folder: i32,
}

/// Allows the calling thread, and those it starts, the use of these paths, and of no others. Paths that do not exist
/// are left out. Open files are not affected. Needs [`super::no_new_privileges`].
///
/// # Errors
/// `ENOSYS` or `EOPNOTSUPP` without landlock.
pub fn allow_files(paths: &[(&Path, Access)]) -> io::Result<()> {
    // SAFETY: K7: asks for the version, by a null pointer of no bytes.
    let version = unsafe { libc::syscall(libc::SYS_landlock_create_ruleset, std::ptr::null::<u64>(), 0, VERSION) };
    done(version)?;
    let handled = ALL | if version >= 2 { REFER } else { 0 } | if version >= 3 { TRUNCATE } else { 0 };
    // SAFETY: K1, K5: a structure of one word, which is the first version's.
    let raw = unsafe { libc::syscall(libc::SYS_landlock_create_ruleset, &raw const handled, size_of::<u64>(), 0) };
    done(raw)?;
    // SAFETY: K2: the kernel has just created this descriptor.
    let rules = unsafe { OwnedFd::from_raw_fd(raw as i32) };
    for (path, access) in paths {
        let Ok(file) = rustix::fs::open(*path, OFlags::PATH | OFlags::CLOEXEC, Mode::empty()) else { continue };
        let is_folder = rustix::fs::FileType::from_raw_mode(rustix::fs::fstat(&file)?.st_mode).is_dir();
        let read = READ_FILE | READ_DIR;
        let wanted = match access {
            Access::Read => read,
            Access::Remove => REMOVE_FILE,
            Access::Write => read | WRITE_FILE | REMOVE_DIR | REMOVE_FILE | MAKE_DIR | MAKE_REG | TRUNCATE,
        };
        let of_kind = if is_folder { u64::MAX } else { OF_FILES | TRUNCATE };
        let rule = PathRule { allowed: wanted & of_kind & handled, folder: file.as_raw_fd() };
        let rules = rules.as_raw_fd();
        // SAFETY: K1, K5: `rule` outlives the call.
        done(unsafe { libc::syscall(libc::SYS_landlock_add_rule, rules, PATH_BENEATH, &raw const rule, 0) })?;
    }
    // SAFETY: K7.
    done(unsafe { libc::syscall(libc::SYS_landlock_restrict_self, rules.as_raw_fd(), 0) })
}
