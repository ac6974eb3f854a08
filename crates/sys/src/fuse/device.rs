// SPDX-License-Identifier: BSD-2-Clause
//! `/dev/fuse`, and the devices of mounts.

use std::fs::File;
use std::io;
use std::os::fd::AsFd;
use std::path::Path;

use super::Backing;

/// Returns the device of the file system that a file is on, by what the kernel knows: no server is asked, as it may not
/// answer.
///
/// # Errors
/// `ENOENT`, `EACCES`.
pub fn device_of(path: &Path) -> io::Result<(u32, u32)> {
    let flags = rustix::fs::AtFlags::STATX_DONT_SYNC | rustix::fs::AtFlags::NO_AUTOMOUNT;
    let found = rustix::fs::statx(rustix::fs::CWD, path, flags, rustix::fs::StatxFlags::TYPE)?;
    Ok((found.stx_dev_major, found.stx_dev_minor))
}

/// Whether a descriptor is one of `/dev/fuse`.
pub fn is_device(fd: impl AsFd) -> bool {
    let number = rustix::fs::makedev(10, 229);
    rustix::fs::fstat(fd).is_ok_and(|found| {
        rustix::fs::FileType::from_raw_mode(found.st_mode).is_char_device() && found.st_rdev == number
    })
}

/// Checks that `/dev/fuse` can be opened.
///
/// # Errors
/// The errors of open(2).
pub fn check_available() -> io::Result<()> {
    File::options().read(true).write(true).open("/dev/fuse").map(drop)
}

impl Backing {
    /// The backing file that another process has registered.
    pub fn of_number(number: i32) -> Backing {
        Backing(number)
    }

    /// Returns its number at the mount.
    pub fn number(&self) -> i32 {
        self.0
    }
}
