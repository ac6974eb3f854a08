// SPDX-License-Identifier: BSD-2-Clause
//! User namespaces: users that have no number in this process's namespace.

use std::os::unix::fs::MetadataExt as _;

use crate::socket::Peer;

/// The inode number of the initial namespace (`PROC_USER_INIT_INO` of linux/proc_ns.h).
const INITIAL: u64 = 0xefff_fffd;

/// Returns true if the user of `peer` certainly has no number in this process's user namespace. In the initial
/// namespace every user has one.
pub fn is_unmapped_user(peer: &Peer) -> bool {
    is_unmapped(peer.uid, peer.pid != 0)
}

/// Returns true if a file that `uid` owns may belong to a user without a number in this process's user namespace. The
/// namespace's own `nobody` looks the same.
pub fn may_be_unmapped_owner(uid: u32) -> bool {
    is_unmapped(uid, false)
}

/// Whether this process is in the initial user namespace. Privileges of another one count for what belongs to it, as
/// its network namespaces do, and not for the machine. Without `/proc` it counts as initial.
pub fn is_in_initial_user_namespace() -> bool {
    std::fs::metadata("/proc/self/ns/user").map_or(true, |file| file.ino() == INITIAL)
}

fn is_unmapped(uid: u32, visible: bool) -> bool {
    let text = |path: &str| std::fs::read_to_string(path).unwrap_or_default();
    let nobody = text("/proc/sys/kernel/overflowuid").trim().parse().unwrap_or(65534);
    uid == nobody && has_no_number(&text("/proc/self/uid_map"), nobody, visible)
}

/// Returns whether a user shown as `nobody` has no number in the namespace with uid map `map`: the map is incomplete,
/// and either `nobody` is not one of its numbers, or the process is not `visible` in this pid namespace.
fn has_no_number(map: &str, nobody: u32, visible: bool) -> bool {
    let lines = map.lines().filter_map(|line| {
        let mut words = line.split_whitespace().map_while(|word| word.parse::<u32>().ok());
        Some((words.next()?, words.next()?, words.next()?))
    });
    let lines: Vec<_> = lines.collect();
    let all = lines.contains(&(0, 0, u32::MAX));
    let has_nobody = lines.iter().any(|(first, _, count)| nobody.checked_sub(*first).is_some_and(|n| n < *count));
    !lines.is_empty() && !all && (!has_nobody || !visible)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_user_shown_as_nobody_is_unmapped_if_the_map_is_incomplete() {
        let pod = "         0      65534          1\n";
        let many = "         0     100000      65536\n";
        for (map, visible, unmapped) in [
            ("         0          0 4294967295\n", false, false),
            (pod, true, true),
            (pod, false, true),
            (many, true, false),
            (many, false, true),
            ("0 1000 1\n1 100000 65534\n", true, false),
            ("", false, false),
            ("x y z\n", false, false),
        ] {
            assert_eq!(has_no_number(map, 65534, visible), unmapped, "{map:?}, {visible}");
        }
        assert!(!is_unmapped_user(&Peer { pid: 1, uid: 0, gid: 0 }));
    }
}
