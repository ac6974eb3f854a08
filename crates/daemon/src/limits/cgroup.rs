// SPDX-License-Identifier: BSD-2-Clause
//! The limits of the control group that this process is in, and of those around it as far as they can be seen.

use std::fs;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

/// A resource that a control group limits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Controller {
    /// Bytes.
    Memory,
    /// Processes and threads.
    Tasks,
}

/// A limit that is in force.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Limit {
    pub(super) amount: u64,
    pub(super) file: PathBuf,
}

/// From here on version 1 means that there is no limit.
const NONE: u64 = 1 << 62;

impl Controller {
    /// Its name in version 1, and its files in versions 1 and 2.
    const fn names(self) -> (&'static str, &'static str, &'static str) {
        match self {
            Controller::Memory => ("memory", "memory.limit_in_bytes", "memory.max"),
            Controller::Tasks => ("pids", "pids.max", "pids.max"),
        }
    }

    /// Returns the lowest limit that applies to this process; `None`: none is known.
    pub(super) fn limit(self) -> Option<Limit> {
        let [groups, mounts] = texts();
        self.lowest(&groups, &mounts)
    }

    /// The same, from the texts of `/proc/self/cgroup` and `/proc/self/mountinfo`.
    fn lowest(self, groups: &str, mounts: &str) -> Option<Limit> {
        let (controller, old, new) = self.names();
        let mut lowest: Option<Limit> = None;
        for (folder, mount, is_new) in folders(groups, mounts, controller) {
            for folder in folder.ancestors().take_while(|folder| folder.starts_with(&mount)) {
                let file = folder.join(if is_new { new } else { old });
                // "max" in version 2.
                let amount = fs::read_to_string(&file).ok().and_then(|text| text.trim().parse().ok());
                if let Some(amount) = amount.filter(|amount| *amount < NONE)
                    && lowest.as_ref().is_none_or(|lowest| amount < lowest.amount)
                {
                    lowest = Some(Limit { amount, file });
                }
            }
        }
        lowest
    }
}

/// The control group of this process, whose memory is read.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct MemoryGroup {
    folder: PathBuf,
    /// Of version 2.
    is_new: bool,
}

impl MemoryGroup {
    /// `None`: it is not known.
    pub(crate) fn own() -> Option<MemoryGroup> {
        let [groups, mounts] = texts();
        let mut folders = folders(&groups, &mounts, Controller::Memory.names().0);
        folders.find_map(|(folder, _, is_new)| {
            let group = MemoryGroup { folder, is_new };
            group.uncounted_bytes().map(|_| group)
        })
    }

    /// Bytes of memory that are of no kind that the kernel counts: neither a file's, a process's own, nor the kernel's.
    pub(crate) fn uncounted_bytes(&self) -> Option<u64> {
        let number = |name: &str| fs::read_to_string(self.folder.join(name)).ok()?.trim().parse::<u64>().ok();
        let kinds = |text: &str, kinds: &[&str]| {
            let is_one = |line: &&str| line.split_once(' ').is_some_and(|(kind, _)| kinds.contains(&kind));
            text.lines().filter(is_one).filter_map(|line| line.split_once(' ')?.1.parse::<u64>().ok()).sum::<u64>()
        };
        let stat = fs::read_to_string(self.folder.join("memory.stat")).ok()?;
        let (all, counted) = match self.is_new {
            true => (number("memory.current")?, kinds(&stat, &["anon", "file", "kernel", "sock"])),
            false => {
                let kernel = number("memory.kmem.usage_in_bytes")?;
                (number("memory.usage_in_bytes")?, kernel + kinds(&stat, &["total_rss", "total_cache"]))
            }
        };
        Some(all.saturating_sub(counted))
    }
}

/// `/proc/self/cgroup` and `/proc/self/mountinfo`.
fn texts() -> [String; 2] {
    ["cgroup", "mountinfo"].map(|name| fs::read_to_string(format!("/proc/self/{name}")).unwrap_or_default())
}

/// The folders of the process's group in each hierarchy that may have a controller, where it is mounted, and whether it
/// is of version 2.
fn folders<'a>(
    groups: &'a str,
    mounts: &'a str,
    controller: &'a str,
) -> impl Iterator<Item = (PathBuf, PathBuf, bool)> + 'a {
    mounts.lines().filter_map(move |line| {
        let (root, mount, is_new) = mount_of(line, controller)?;
        let group = group_of(groups, if is_new { "" } else { controller })?;
        // A group outside of what is mounted here, or of this process's namespace: the mount's own is around it.
        let inside = group.strip_prefix(&*root).unwrap_or(Path::new(""));
        Some((mount.join(inside), mount, is_new))
    })
}

/// The process's group in the hierarchy of a controller; "": in that of version 2.
fn group_of<'a>(groups: &'a str, controller: &str) -> Option<&'a Path> {
    let mut lines = groups.lines().filter_map(|line| {
        let mut parts = line.splitn(3, ':').skip(1);
        Some((parts.next()?, parts.next()?))
    });
    lines.find(|(controllers, _)| controllers.split(',').any(|one| one == controller)).map(|(_, path)| Path::new(path))
}

/// If a line of mountinfo is about a hierarchy of control groups with this controller: which group is mounted, where,
/// and whether it is one of version 2.
fn mount_of(line: &str, controller: &str) -> Option<(PathBuf, PathBuf, bool)> {
    let (of_mount, of_system) = line.split_once(" - ")?;
    let mut of_mount = of_mount.split(' ').skip(3);
    let (root, mount) = (unescaped(of_mount.next()?), unescaped(of_mount.next()?));
    let mut of_system = of_system.split(' ');
    match (of_system.next()?, of_system.nth(1)?) {
        ("cgroup2", _) => Some((root, mount, true)),
        ("cgroup", options) if options.split(',').any(|option| option == controller) => Some((root, mount, false)),
        _ => None,
    }
}

/// A path in which mountinfo has written spaces as `\040`.
fn unescaped(path: &str) -> PathBuf {
    path.replace("\\040", " ").into()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn write(folder: &Path, files: &[(&str, &str)]) {
        for (name, text) in files {
            let file = folder.join(name);
            fs::create_dir_all(file.parent().unwrap()).unwrap();
            fs::write(file, text).unwrap();
        }
    }

    #[test]
    fn the_lowest_limit_of_all_groups_around_applies() {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name).display().to_string().replace(' ', "\\040");
        write(
            folder.path(),
            &[
                ("two/a/memory.max", "67108864\n"),
                ("two/a/b/memory.max", "max\n"),
                ("two/a/b/pids.max", "20\n"),
                ("two/a/pids.max", "30\n"),
                ("one memory/x/memory.limit_in_bytes", "1000\n"),
                ("one memory/memory.limit_in_bytes", "9223372036854771712\n"),
                ("one pids/pids.max", "max\n"),
            ],
        );
        let limit = |amount, file: &str| Some(Limit { amount, file: folder.path().join(file) });
        let new = |root: &str| format!("30 23 0:26 {root} {} rw shared:4 - cgroup2 cgroup2 rw,nsdelegate\n", at("two"));
        let other = "23 1 0:20 / /sys rw,nosuid - sysfs sysfs rw\nnonsense\n";
        let mounts = format!("{other}{}", new("/"));
        assert_eq!(Controller::Memory.lowest("0::/a/b\n", &mounts), limit(64 << 20, "two/a/memory.max"));
        assert_eq!(Controller::Tasks.lowest("0::/a/b\n", &mounts), limit(20, "two/a/b/pids.max"));
        assert_eq!(Controller::Tasks.lowest("0::/a\n", &mounts), limit(30, "two/a/pids.max"));
        assert_eq!(Controller::Tasks.lowest("0::/\n", &mounts), None);
        // A container: part of the hierarchy is mounted, with and without a namespace of groups.
        for groups in ["0::/docker/7/a/b\n", "0::/a/b\n"] {
            let root = if groups.contains("docker") { "/docker/7" } else { "/" };
            assert_eq!(Controller::Tasks.lowest(groups, &new(root)), limit(20, "two/a/b/pids.max"), "{groups}");
        }
        assert_eq!(Controller::Tasks.lowest("0::/../elsewhere\n", &new("/a")), None);
        // Version 1, beside an empty hierarchy of version 2.
        let old = |options: &str, at: String| format!("32 31 0:29 / {at} rw,relatime - cgroup cgroup rw,{options}\n");
        let mounts = old("cpu,memory", at("one memory")) + &old("pids", at("one pids")) + &new("/");
        let groups = "9:cpu,memory:/x\n8:pids:/\n0::/\n";
        assert_eq!(Controller::Memory.lowest(groups, &mounts), limit(1000, "one memory/x/memory.limit_in_bytes"));
        assert_eq!(Controller::Tasks.lowest(groups, &mounts), None);
        assert_eq!((Controller::Memory.lowest("", &mounts), Controller::Memory.lowest(groups, "")), (None, None));
    }
}
