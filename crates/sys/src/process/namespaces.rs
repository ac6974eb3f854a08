// SPDX-License-Identifier: BSD-2-Clause
//! The network and mount namespaces of a background process. It inherits those of the program that starts it, and would
//! keep them in use after that program.

use std::fs::{self, File};
use std::io;
use std::os::fd::AsFd;
use std::os::unix::fs::MetadataExt as _;

use rustix::fs::fstat;
use rustix::process::{chdir, chroot, fchdir};
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};

use crate::netns::Netns;

/// Where `ip netns exec` puts files of its own: it mounts `/sys` anew, and files of `/etc/netns/NAME` over those of
/// `/etc`.
const OF_IP_NETNS: [&str; 2] = ["/sys", "/etc"];
/// `PF_KTHREAD` of linux/sched.h, in the field `flags` of `/proc/PID/stat`.
const KERNEL_THREAD: u64 = 0x0020_0000;

/// Processes between a program and the first process at most.
const MAX_ANCESTORS: usize = 64;

/// Leaves the network and mount namespaces that this process has inherited from process `starter`, for those of the
/// first process of the machine, or of the container; where that may not be inspected, for those of the machine's
/// kernel threads. If neither is possible, the network namespace is left for a new one, without interfaces.
///
/// If the other mount namespace lacks mounts of this one, other than those of `ip netns exec`, files would be missing:
/// then it is left for that of the outermost ancestor of `starter` which has them all, or stays. Call it before the
/// first thread is started.
///
/// # Errors
/// `EPERM` without `CAP_SYS_ADMIN`: the process stays where it is.
pub fn leave_namespaces(starter: u32) -> io::Result<()> {
    enter("net", netns()?, LinkNameSpaceType::Network)?;
    let mounts = |process: &str| fs::read_to_string(format!("/proc/{process}/mountinfo"));
    let ours = mounts("self")?;
    let mut candidates = of_the_machine().map(str::to_owned).chain(ancestors(starter).into_iter().rev());
    match candidates.find(|process| mounts(process).is_ok_and(|theirs| shows_all_of(&theirs, &ours))) {
        Some(process) => enter_mounts(&process),
        None => Ok(()),
    }
}

/// Enters the mount namespace of a process, below its root directory: in a chroot that is another one than the
/// namespace's, and the mounts that were compared are those below it.
fn enter_mounts(process: &str) -> io::Result<()> {
    let root = File::open(format!("/proc/{process}/root"))?;
    if enter("mnt", File::open(format!("/proc/{process}/ns/mnt"))?, LinkNameSpaceType::Mount)? {
        fchdir(&root)?;
        chroot(".")?;
        chdir("/")?;
    }
    Ok(())
}

/// Calls `work` in the network namespace into which [`leave_namespaces`] goes: sockets that it creates do not keep this
/// program's in use. In this program's if it may not enter another one.
pub fn outside_netns<T: Send>(work: impl Fn() -> T + Send + Sync) -> T {
    netns().and_then(|netns| netns.run(&work)).unwrap_or_else(|_| work())
}

/// The network namespace that belongs to no program, or a new one.
fn netns() -> io::Result<Netns> {
    let known = of_the_machine().find_map(|process| Netns::of_path(format!("/proc/{process}/ns/net").as_ref()).ok());
    known.map_or_else(Netns::new, Ok)
}

/// The processes of the machine or container whose namespaces can be opened.
fn of_the_machine() -> impl Iterator<Item = &'static str> {
    let processes = ["1"].into_iter().chain(is_kernel_thread("2").then_some("2"));
    processes.filter(|process| fs::metadata(format!("/proc/{process}/ns/net")).is_ok())
}

/// Enters a namespace. Returns false if this process is in it already.
fn enter(name: &str, namespace: impl AsFd, kind: LinkNameSpaceType) -> io::Result<bool> {
    if fs::metadata(format!("/proc/self/ns/{name}"))?.ino() == fstat(&namespace)?.st_ino {
        return Ok(false);
    }
    move_into_link_name_space(namespace.as_fd(), Some(kind))?;
    Ok(true)
}

/// The parent of a process, that one's parent, and so on.
fn ancestors(process: u32) -> Vec<String> {
    let parent = |process: &String| field(process, 1).filter(|parent| *parent > 0).map(|parent| parent.to_string());
    std::iter::successors(parent(&process.to_string()), parent).take(MAX_ANCESTORS).collect()
}

fn is_kernel_thread(process: &str) -> bool {
    field(process, 6).is_some_and(|flags| flags & KERNEL_THREAD != 0)
}

/// A number of `/proc/PID/stat`, by its place after the process's name.
fn field(process: &str, place: usize) -> Option<u64> {
    super::stat_field(process, place)?.parse().ok()
}

/// Whether the mounts `theirs` include `ours`, other than those of `ip netns exec`. Both as `/proc/PID/mountinfo` has
/// them. A process whose root is a folder of a mount does not see that mount.
fn shows_all_of(theirs: &str, ours: &str) -> bool {
    // What is mounted (a device, and the folder there), and where.
    let mount = |line: &str| {
        let mut fields = line.split(' ').skip(2);
        Some((fields.next()?.to_owned(), fields.next()?.to_owned(), fields.next()?.to_owned()))
    };
    let theirs: Vec<_> = theirs.lines().filter_map(mount).collect();
    let is_of_ip = |at: &str| {
        OF_IP_NETNS
            .iter()
            .any(|folder| at.strip_prefix(folder).is_some_and(|rest| rest.is_empty() || rest.starts_with('/')))
    };
    let ours: Vec<_> = ours.lines().filter_map(mount).collect();
    ours.iter().any(|mount| mount.2 == "/") && ours.iter().all(|mount| is_of_ip(&mount.2) || theirs.contains(mount))
}

#[cfg(test)]
mod tests {
    use super::*;

    const HOST: &str = "27 1 254:0 / / rw - ext4 /dev/vda rw\n23 27 0:22 / /sys rw - sysfs sysfs rw\n\
                        42 27 254:0 /run/netns /run/netns rw shared:1 - ext4 /dev/vda rw\n";

    #[test]
    fn only_mounts_of_ip_netns_are_left_behind() {
        let in_netns =
            HOST.replace("0:22 / /sys", "0:39 / /sys") + "90 27 254:0 /etc/netns/a/hosts /etc/hosts rw - ext4 - rw\n";
        assert!(shows_all_of(HOST, HOST) && shows_all_of(HOST, &in_netns));
        for more in ["91 27 0:40 / /run rw - tmpfs none rw\n", "91 27 254:0 / /system rw - ext4 /dev/vda rw\n"] {
            assert!(!shows_all_of(HOST, &(in_netns.clone() + more)), "{more}");
        }
        let below_a_root = "23 27 0:22 / /sys rw - sysfs sysfs rw\n";
        assert!(!shows_all_of(HOST, below_a_root));
    }

    #[test]
    fn kernel_threads_are_told_from_processes() {
        assert!(!is_kernel_thread("self") && !is_kernel_thread("none"));
    }

    #[test]
    fn ancestors_begin_with_the_parent() {
        let (own, parent) = (std::process::id(), std::os::unix::process::parent_id().to_string());
        assert!(ancestors(own).first().is_none_or(|first| *first == parent));
        assert!(ancestors(u32::MAX).is_empty());
    }
}
