// SPDX-License-Identifier: BSD-2-Clause
//! Who may have packet sockets: the processes that could make them.

use std::fs;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::fs::fstat;

use crate::event::{PollFd, PollFlags, wait_readable};
use crate::netns::Netns;
use crate::socket;

/// `NS_GET_USERNS` of linux/nsfs.h: returns a descriptor of the user namespace that a namespace belongs to.
const NS_GET_USERNS: libc::c_ulong = 0xb701;
/// `CAP_NET_RAW`, as a bit of the sets in `/proc/PID/status`.
const NET_RAW: u64 = 1 << 13;

/// Whether the process that made a connection is root, with `CAP_NET_RAW`, of the user namespace to which the network
/// namespace belongs in which it connected. The user is that of the connection: what the process has become since, by a
/// setuid program for instance, gives nothing to those who share the connection. None is found before Linux 6.5, where
/// a number may be another process's by now.
///
/// # Errors
/// The process has exited; `EPERM` without `CAP_NET_ADMIN` over the namespace, or without `CAP_SYS_PTRACE`.
pub fn peer_may_make(connection: impl AsFd) -> io::Result<bool> {
    let Some(process) = socket::peer_process(&connection)? else { return Ok(false) };
    let netns = Netns::of_socket(&connection)?;
    let peer = socket::peer(&connection)?;
    let path = PathBuf::from(format!("/proc/{}", peer.pid));
    let is_there = fs::metadata(path.join("ns/user"))?.ino() == user_namespace_of(netns.as_fd())?;
    let is_root = root_of(&fs::read_to_string(path.join("uid_map"))?) == Some(peer.uid);
    let may = is_there && is_root && has_net_raw(&path)?;
    // Otherwise what was read is another process's.
    Ok(may && !has_exited(process.as_fd()))
}

/// The inode of the user namespace that a namespace belongs to.
fn user_namespace_of(namespace: BorrowedFd<'_>) -> io::Result<u64> {
    // SAFETY: K7: the request has no argument; it returns a new descriptor, or -1.
    let fd = unsafe { libc::ioctl(namespace.as_raw_fd(), NS_GET_USERNS) };
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: K2: the kernel has just created this descriptor.
    let fd = unsafe { OwnedFd::from_raw_fd(fd) };
    Ok(fstat(fd)?.st_ino)
}

/// Root of a user namespace with this `uid_map`, by the number that it has in this process's namespace.
fn root_of(map: &str) -> Option<u32> {
    let mut ranges = map.lines().filter_map(|line| {
        let mut numbers = line.split_whitespace().map(str::parse::<u32>);
        Some((numbers.next()?.ok()?, numbers.next()?.ok()?, numbers.next()?.ok()?))
    });
    ranges.find(|(inside, _, count)| *inside == 0 && *count > 0).map(|(_, outside, _)| outside)
}

/// Whether a process, whose folder in `/proc` this is, has `CAP_NET_RAW` in its user namespace.
fn has_net_raw(process: &Path) -> io::Result<bool> {
    let status = fs::read_to_string(process.join("status"))?;
    let effective = status.lines().find_map(|line| line.strip_prefix("CapEff:"));
    let effective = effective.and_then(|bits| u64::from_str_radix(bits.trim(), 16).ok());
    effective.map(|bits| bits & NET_RAW != 0).ok_or(io::ErrorKind::InvalidData.into())
}

fn has_exited(pidfd: BorrowedFd<'_>) -> bool {
    let mut fds = [PollFd::from_borrowed_fd(pidfd, PollFlags::IN)];
    // An interrupted wait does not tell.
    !matches!(wait_readable(&mut fds, Some(Duration::ZERO)), Ok(0))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn root_is_the_user_to_which_0_is_mapped() {
        assert_eq!(root_of("         0          0 4294967295\n"), Some(0));
        assert_eq!(root_of("         1     100000      65535\n         0       1000          1\n"), Some(1000));
        assert_eq!(root_of("      1000       1000          1\n"), None);
        assert_eq!(root_of(""), None);
    }

    #[test]
    fn a_namespace_belongs_to_the_user_namespace_that_made_it() {
        let own = fs::metadata("/proc/self/ns/user").unwrap().ino();
        let netns = match Netns::new() {
            Err(e) if e.kind() == io::ErrorKind::PermissionDenied => return eprintln!("skipped: needs CAP_SYS_ADMIN"),
            new => new.unwrap(),
        };
        assert_eq!(user_namespace_of(netns.as_fd()).unwrap(), own);
        assert!(has_net_raw(Path::new("/proc/self")).unwrap());
        assert!(user_namespace_of(fs::File::open("/dev/null").unwrap().as_fd()).is_err());
    }
}
