// SPDX-License-Identifier: BSD-2-Clause
//! Control groups of one controller, of version 2, or of version 1 where the machine has that.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

const ROOT: &str = "/sys/fs/cgroup";

/// A control group. When it is dropped, its processes are in the group of this process, of version 2 in the root.
pub struct Group {
    path: PathBuf,
    is_first_version: bool,
}

impl Group {
    /// Makes a group that limits the CPU to a share of one processor, in percent.
    ///
    /// # Errors
    /// Why this machine has none.
    pub fn of_cpu(percent: u32) -> Result<Group, String> {
        let group = Group::new("cpu")?;
        if group.is_first_version {
            group.write("cpu.cfs_period_us", "100000")?;
            group.write("cpu.cfs_quota_us", &(percent * 1000).to_string())?;
            // Where the kernel groups real-time threads, too, it lets none in without a share. Elsewhere it has no such
            // file; and where this process's group has no share, the daemon has no such threads.
            let _ = group.write("cpu.rt_runtime_us", &(percent * 10_000).to_string());
        } else {
            group.write("cpu.max", &format!("{} 100000", percent * 1000))?;
        }
        Ok(group)
    }

    /// Makes a group that limits the memory of its processes, in bytes.
    ///
    /// # Errors
    /// Why this machine has none.
    pub fn of_memory(bytes: u64) -> Result<Group, String> {
        let group = Group::new("memory")?;
        group.write(if group.is_first_version { "memory.limit_in_bytes" } else { "memory.max" }, &bytes.to_string())?;
        Ok(group)
    }

    fn new(controller: &str) -> Result<Group, String> {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let first = Path::new(ROOT).join(controller);
        let is_first_version = first.join("cgroup.procs").exists();
        let root = if is_first_version { first.join(own(controller)) } else { PathBuf::from(ROOT) };
        if !is_first_version {
            // It may be on for the root's groups already; if it is not then, the limit's file is missing.
            let _ = fs::write(root.join("cgroup.subtree_control"), format!("+{controller}"));
        }
        let path = root.join(format!("unetmap-{}-{}", std::process::id(), NEXT.fetch_add(1, Relaxed)));
        fs::create_dir(&path).map_err(|e| format!("no control group {}: {e}", path.display()))?;
        Ok(Group { path, is_first_version })
    }

    /// Moves a process there.
    ///
    /// # Errors
    /// It has ended.
    pub fn add(&self, pid: u32) -> Result<(), String> {
        self.write("cgroup.procs", &pid.to_string())
    }

    fn write(&self, file: &str, value: &str) -> Result<(), String> {
        let path = self.path.join(file);
        fs::write(&path, value).map_err(|e| format!("{value} to {}: {e}", path.display()))
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        let root = self.path.parent().expect("a folder below another group").join("cgroup.procs");
        let processes = fs::read_to_string(self.path.join("cgroup.procs")).unwrap_or_default();
        // Some of them may have ended meanwhile.
        processes.lines().for_each(|pid| _ = fs::write(&root, pid));
        let _ = fs::remove_dir(&self.path);
    }
}

/// The group of this process, of version 1, below the controller's root.
fn own(controller: &str) -> String {
    let all = fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
    let of_line = |line: &str| {
        let (_, rest) = line.split_once(':')?;
        let (controllers, path) = rest.split_once(":/")?;
        controllers.split(',').any(|found| found == controller).then(|| path.to_owned())
    };
    all.lines().find_map(of_line).unwrap_or_default()
}
