// SPDX-License-Identifier: BSD-2-Clause
//! Shortages of the machine: time of its processors for the processes of ports, memory, and room for the daemon's
//! files.

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::io::{ErrorKind, Read as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rustix::fs::statvfs;
use rustix::time::{ClockId, clock_gettime};
use unetmap_sys::process::{self, O_NONBLOCK};

use super::DAEMON;

/// A process that waits for a processor for more than this part of the time is starved.
const STARVED: f64 = 0.5;
/// With less room than this the daemon's files cannot be written.
const LEAST_ROOM: u64 = 64 << 10;
/// A process that was killed longer ago explains nothing that is seen now.
const RECENT: Duration = Duration::from_secs(15 * 60);
/// Most records of the kernel's log that are read: it keeps fewer.
const MAX_RECORDS: usize = 1 << 17;
/// Where control groups are mounted, of version 2 and of the first one.
const GROUPS: [&str; 2] = ["/sys/fs/cgroup", "/sys/fs/cgroup/cpu"];

/// The processes of daemons and of programs with ports, for how long each has waited so far.
#[derive(Default)]
pub(super) struct Strain {
    begun: Option<Instant>,
    processes: Vec<(u32, Waits)>,
}

/// For how long a process has waited in its life, nanoseconds; `None`: the kernel does not say it.
#[derive(Clone, Copy, Default)]
struct Waits {
    /// Its threads, for a processor.
    runnable: Option<u64>,
    /// Its control groups, as their share of the processors was used up.
    throttled: Option<u64>,
}

impl Strain {
    pub(super) fn begin(pids: impl Iterator<Item = u32>) -> Strain {
        let pids: BTreeSet<u32> = pids.collect();
        Strain { begun: Some(Instant::now()), processes: pids.into_iter().map(|pid| (pid, Waits::of(pid))).collect() }
    }

    /// Returns a sentence for each thing that is lacking; `programs` had ports lately.
    pub(super) fn end(self, programs: &BTreeSet<String>) -> Vec<String> {
        let passed = self.begun.map_or(Duration::ZERO, |begun| begun.elapsed());
        let waited = self.processes.iter().filter_map(|(pid, before)| {
            let name = process::program_name(*pid)?;
            before.sentence(Waits::of(*pid), passed, &format!("{name} ({pid})"))
        });
        let now = clock_gettime(ClockId::Monotonic);
        let now = Duration::new(now.tv_sec.unsigned_abs(), 0);
        waited.chain(killed(&kernel_log(), now, programs)).chain(full(&room)).collect()
    }
}

impl Waits {
    fn of(pid: u32) -> Waits {
        let tasks = fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten();
        // Path: files of the kernel's.
        let texts = tasks.filter_map(|task| fs::read_to_string(task.path().join("schedstat")).ok());
        let runnable = texts.filter_map(|text| waited(&text)).reduce(|sum, ns| sum + ns);
        let groups = process::cgroup(&pid.to_string()).unwrap_or_default();
        // Path: as above.
        let stats =
            group_folders(&groups).into_iter().filter_map(|folder| fs::read_to_string(folder.join("cpu.stat")).ok());
        Waits { runnable, throttled: stats.filter_map(|text| throttled(&text)).reduce(|sum, ns| sum + ns) }
    }

    fn sentence(self, after: Waits, passed: Duration, who: &str) -> Option<String> {
        let since = |before: Option<u64>, after: Option<u64>| {
            before
                .zip(after)
                .map_or(Duration::ZERO, |(before, after)| Duration::from_nanos(after.saturating_sub(before)))
        };
        if !since(self.throttled, after.throttled).is_zero() {
            return Some(format!("{who} waits, as its control group's share of the processors is used up (cpu.max)"));
        }
        let is_starved = since(self.runnable, after.runnable) > passed.mul_f64(STARVED);
        is_starved.then(|| {
            format!(
                "{who} waits for a processor most of the time: too much else runs, or its control group may have little"
            )
        })
    }
}

/// The time for which a thread has waited for a processor, of `/proc/PID/task/TID/schedstat`.
fn waited(schedstat: &str) -> Option<u64> {
    schedstat.split_whitespace().nth(1)?.parse().ok()
}

/// The time for which a group was throttled, of its `cpu.stat`.
fn throttled(stat: &str) -> Option<u64> {
    let value = |key: &str| stat.lines().find_map(|line| line.strip_prefix(key)?.trim().parse::<u64>().ok());
    value("throttled_usec ").map(|us| 1000 * us).or_else(|| value("throttled_time "))
}

/// The folders of a process's control groups, of `/proc/PID/cgroup`, that may limit processors: its group, and those
/// that it is in.
fn group_folders(groups: &str) -> Vec<PathBuf> {
    let mut folders = Vec::new();
    for line in groups.lines() {
        let mut parts = line.splitn(3, ':').skip(1);
        let (Some(controllers), Some(group)) = (parts.next(), parts.next()) else { continue };
        let root = match controllers {
            "" => GROUPS[0],
            of if of.split(',').any(|one| one == "cpu") => GROUPS[1],
            _ => continue,
        };
        let below = Path::new(group.trim_start_matches('/'));
        folders.extend(below.ancestors().filter(|part| *part != Path::new("")).map(|part| Path::new(root).join(part)));
    }
    folders
}

/// The kernel's log, a record for each line; empty if this user may not read it.
fn kernel_log() -> Vec<String> {
    let mut records = Vec::new();
    let Ok(mut log) = File::options().read(true).custom_flags(O_NONBLOCK).open("/dev/kmsg") else { return records };
    let mut record = [0; 8192];
    while records.len() < MAX_RECORDS {
        match log.read(&mut record) {
            Ok(0) => break,
            Ok(bytes) => records.push(String::from_utf8_lossy(&record[..bytes]).into_owned()),
            // Records were overwritten meanwhile.
            Err(e) if e.kind() == ErrorKind::BrokenPipe => {}
            Err(_) => break,
        }
    }
    records
}

/// Processes of the daemon, and of these programs, that the kernel has killed for lack of memory; `now` is the time
/// since the machine's start.
fn killed(records: &[String], now: Duration, programs: &BTreeSet<String>) -> Vec<String> {
    let of_record = |record: &String| {
        let (head, message) = record.split_once(';')?;
        let at = Duration::from_micros(head.split(',').nth(2)?.parse().ok()?);
        let (why, rest) = message.lines().next()?.split_once("Killed process ")?;
        let (pid, rest) = rest.split_once(" (")?;
        let name = rest.split_once(')')?.0;
        let ago = now.saturating_sub(at);
        let is_ours = name.starts_with(DAEMON) || programs.contains(name);
        (is_ours && ago <= RECENT && why.contains("ut of memory")).then(|| {
            let of = if why.contains("cgroup") { "its control group (memory.max)" } else { "the machine" };
            format!("the kernel killed {name} ({pid}), as {of} had no memory left, {} s ago", ago.as_secs())
        })
    };
    records.iter().filter_map(of_record).collect()
}

/// Bytes that can still be written into a folder.
fn room(folder: &Path) -> Option<u64> {
    statvfs(folder).ok().map(|of| of.f_bavail.saturating_mul(of.f_frsize))
}

/// Folders of the daemons that are on a full disk.
fn full(room: &dyn Fn(&Path) -> Option<u64>) -> Vec<String> {
    let sockets = [unetmap::daemon::own_socket().ok(), Some(unetmap::daemon::SYSTEM_SOCKET.into())];
    let folders: BTreeSet<PathBuf> =
        sockets.into_iter().flatten().filter_map(|socket| Some(socket.parent()?.to_owned())).collect();
    let full = folders.iter().filter(|folder| room(folder).is_some_and(|bytes| bytes < LEAST_ROOM));
    full.map(|folder| {
        format!("the disk of {} is full: what lasts over a restart, and the log, cannot be written", folder.display())
    })
    .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_of_the_kernel_are_parsed() {
        assert_eq!((waited("5 70 9\n"), waited("5"), waited("")), (Some(70), None, None));
        let stat = "usage_usec 9\nnr_periods 1\nnr_throttled 1\nthrottled_usec 12\n";
        assert_eq!(
            (throttled(stat), throttled("nr_throttled 1\nthrottled_time 7\n"), throttled("")),
            (Some(12_000), Some(7), None)
        );
        let folders =
            |text: &str| group_folders(text).iter().map(|path| path.display().to_string()).collect::<Vec<_>>();
        assert_eq!(folders("0::/a/b\n"), ["/sys/fs/cgroup/a/b", "/sys/fs/cgroup/a"]);
        assert_eq!(folders("4:cpu,cpuacct:/x\n3:memory:/y\n0::/\n"), ["/sys/fs/cgroup/cpu/x"]);
        assert_eq!(folders("nonsense\n1:\n"), [] as [&str; 0]);
        assert!(Waits::of(process::pid()).runnable.is_some(), "of this process");
    }

    #[test]
    fn processes_that_wait_are_told() {
        let waits = |runnable, throttled| Waits { runnable, throttled };
        let passed = Duration::from_millis(300);
        let of = |before: Waits, after| before.sentence(after, passed, "fw (7)").unwrap_or_default();
        assert_eq!(of(waits(Some(0), Some(0)), waits(Some(140_000_000), Some(0))), "");
        assert!(of(waits(Some(0), None), waits(Some(160_000_000), None)).starts_with("fw (7) waits for a processor"));
        assert!(of(waits(Some(0), Some(5)), waits(Some(0), Some(6))).contains("cpu.max"));
        assert_eq!(of(waits(None, None), waits(Some(1 << 40), Some(1))), "", "it has just begun");
    }

    #[test]
    fn processes_that_the_kernel_killed_are_told() {
        let record = |seconds: u64, text: &str| format!("3,4,{},-;{text}\n SUBSYSTEM=x\n", 1_000_000 * seconds);
        let records = [
            record(990, "Memory cgroup out of memory: Killed process 70 (bridge) total-vm:1kB"),
            record(995, "Out of memory: Killed process 71 (unetmapd-broker) total-vm:1kB"),
            record(995, "Out of memory: Killed process 72 (chromium) total-vm:1kB"),
            record(1, "Out of memory: Killed process 73 (unetmapd) total-vm:1kB"),
            record(995, "Killed process 74 (unetmapd) by somebody"),
            "nonsense".into(),
        ];
        let programs = BTreeSet::from(["bridge".to_owned()]);
        let found = killed(&records, Duration::from_secs(1000), &programs);
        assert_eq!(found.len(), 2, "{found:?}");
        assert!(
            found[0].contains("killed bridge (70), as its control group (memory.max)")
                && found[0].ends_with("10 s ago")
        );
        assert!(found[1].contains("killed unetmapd-broker (71), as the machine"));
    }

    #[test]
    fn a_full_disk_is_told_by_its_folder() {
        assert!(room(Path::new("/proc/self")).is_some() && room(Path::new("/no such folder")).is_none());
        let of = |bytes: u64| full(&move |folder| folder.ends_with("run/unetmap").then_some(bytes));
        assert_eq!(of(LEAST_ROOM), [] as [&str; 0]);
        let found = of(LEAST_ROOM - 1);
        assert!(found.len() == 1 && found[0].starts_with("the disk of /run/unetmap is full"), "{found:?}");
    }
}
