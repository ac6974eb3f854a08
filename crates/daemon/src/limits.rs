// SPDX-License-Identifier: BSD-2-Clause
//! The machine's limits for the daemon: descriptors, memory, processes and threads. Budgets are bounded by them
//! ([`crate::budget::Bounds`]), so that no use within them has the kernel end the daemon, or leave root without.

mod cgroup;

use std::fmt::Display;
use std::fs;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use unetmap_sys::file_watch::FileWatch;
use unetmap_sys::process;

use crate::budget::{Amounts, Bounds, MIB, Resource};
use crate::tuning::limits::*;
use crate::tuning::node::{MAX_FILES_OF_USER, MAX_HELPERS, MAX_HELPERS_OF_USER};
use cgroup::Controller;
pub(crate) use cgroup::MemoryGroup;

/// Something of which there is so much.
#[derive(Debug)]
struct Limit {
    amount: u64,
    /// The limit's name.
    by: String,
}

/// The limits of the process that reads them, which are those of the daemon's other processes, too.
#[derive(Debug)]
pub(crate) struct Limits {
    /// Descriptors of a process.
    files: Limit,
    /// Bytes.
    memory: Limit,
    /// Processes and threads.
    tasks: Limit,
    /// Files that can be watched until they end.
    watches: u64,
    /// Another process has duplicates of the daemon's descriptors, those of two states at a time (`--keep-ports`).
    keeps_ports: bool,
}

impl Limits {
    /// Reads them.
    pub(crate) fn read(keeps_ports: bool) -> Limits {
        let files = process::fd_limit();
        let half = if keeps_ports { ", of which keeping ports over a crash needs half" } else { "" };
        let limits = Limits {
            files: Limit {
                amount: files,
                by: format!("the limit of {files} open files (ulimit -n, LimitNOFILE= of its unit){half}"),
            },
            memory: memory(),
            tasks: tasks(),
            watches: FileWatch::limit(),
            keeps_ports,
        };
        tracing::debug!(?limits, "limits");
        limits
    }

    /// Descriptors that a process can have.
    pub(crate) fn files(&self) -> u64 {
        self.files.amount
    }

    /// Descriptors that the daemon uses at most.
    fn usable_files(&self) -> u64 {
        if self.keeps_ports { self.files.amount / 2 } else { self.files.amount }
    }

    /// Whether the daemon can serve with these limits.
    ///
    /// # Errors
    /// One sentence: what it needs, what there is, and how that is changed.
    pub(crate) fn check(&self) -> Result<(), String> {
        let files = if self.keeps_ports { 2 * LEAST_FILES } else { LEAST_FILES };
        let with = if self.keeps_ports { " with --keep-ports" } else { "" };
        let short = |what: &str, needed: &dyn Display, limit: &Limit, raise: &str| {
            let by = &limit.by;
            Err(format!("the daemon needs {needed} {what}{with} at least, and cannot have that: {by}; raise it{raise}"))
        };
        if self.files.amount < files {
            return short("file descriptors", &files, &self.files, "");
        }
        if self.memory.amount < LEAST_MEMORY {
            let needed = format!("{} MiB", LEAST_MEMORY / MIB);
            return short("of memory", &needed, &self.memory, " (MemoryMax= of its unit)");
        }
        if self.tasks.amount < LEAST_TASKS {
            return short("processes and threads", &LEAST_TASKS, &self.tasks, " (TasksMax= of its unit)");
        }
        Ok(())
    }

    /// Returns the users' bounds. `threads`: of the switches, which are everybody's.
    pub(crate) fn bounds(&self, threads: u16) -> Bounds {
        let files = self.usable_files().saturating_sub(OWN_FILES);
        let memory = self.memory.amount.saturating_sub(OWN_MEMORY);
        let tasks = self.tasks.amount.saturating_sub(OWN_TASKS + u64::from(threads));
        let mut all = Amounts([u64::MAX; Resource::ALL.len()]);
        let mut by = Resource::ALL.map(|_| Arc::from(""));
        for (resource, amount, limit) in [
            (Resource::Connections, memory / 4 / CONNECTION_BYTES, &self.memory),
            (Resource::Descriptors, files, &self.files),
            (Resource::Memory, memory / 2, &self.memory),
            (Resource::Threads, tasks / 2, &self.tasks),
        ] {
            all[resource] = amount;
            by[resource as usize] = Arc::from(&*limit.by);
        }
        let Amounts(mut others) = all;
        others.iter_mut().filter(|amount| **amount != u64::MAX).for_each(|amount| *amount -= *amount / RESERVE_SHARE);
        let mut others = Amounts(others);
        let in_flight = |share| self.files.amount / share;
        others[Resource::InFlight] = in_flight(IN_FLIGHT_OF_USERS);
        all[Resource::InFlight] = others[Resource::InFlight] + in_flight(IN_FLIGHT_OF_ROOT);
        by[Resource::InFlight as usize] = Arc::from(&*self.files.by);
        others[Resource::Descriptors] = others[Resource::Descriptors].min(files.saturating_sub(LEAST_RESERVE));
        // Of the rest, the node has its part.
        bound_node(tasks / 4, memory / 8);
        Bounds { all, others, by, watches: self.watches - self.watches / RESERVE_SHARE }
    }
}

/// Files of a user, and helpers, that are left for requests at the node.
static NODE_FILES: AtomicUsize = AtomicUsize::new(MAX_FILES_OF_USER as usize);
static NODE_HELPERS: AtomicUsize = AtomicUsize::new(MAX_HELPERS);

/// Half of the tasks are threads, as each open file can occupy one; and a quarter helpers, which are processes.
fn bound_node(tasks: u64, memory: u64) {
    let set = |bound: &AtomicUsize, most: usize, amount: u64| {
        bound.store(most.min(usize::try_from(amount).unwrap_or(most)), Ordering::Relaxed);
    };
    set(&NODE_FILES, MAX_FILES_OF_USER as usize, tasks / 2);
    set(&NODE_HELPERS, MAX_HELPERS, tasks.min(memory / HELPER_BYTES));
}

/// Most files of a user at the node.
pub(crate) fn node_files_of_user() -> u32 {
    NODE_FILES.load(Ordering::Relaxed) as u32
}

/// Most helpers that access memory at a time, for one user and for all who are not root.
pub(crate) fn node_helpers() -> (usize, usize) {
    let all = NODE_HELPERS.load(Ordering::Relaxed);
    (MAX_HELPERS_OF_USER.min(all.div_ceil(2)), all)
}

fn memory() -> Limit {
    let of_machine = fs::read_to_string("/proc/meminfo").ok().and_then(|text| {
        let kib = text.lines().find_map(|line| line.strip_prefix("MemTotal:"))?;
        kib.trim().strip_suffix(" kB")?.parse::<u64>().ok()
    });
    let bytes = of_machine.map_or(u64::MAX, |kib| kib << 10);
    match Controller::Memory.limit() {
        Some(limit) if limit.amount < bytes => of_group(&limit, &format!("{} MiB", limit.amount / MIB)),
        _ => Limit { amount: bytes, by: format!("the machine's memory of {} MiB", bytes / MIB) },
    }
}

fn tasks() -> Limit {
    let of_user = process::task_limit();
    match Controller::Tasks.limit() {
        Some(limit) if limit.amount < of_user => of_group(&limit, &limit.amount.to_string()),
        _ => Limit { amount: of_user, by: format!("the limit of {of_user} processes (ulimit -u)") },
    }
}

fn of_group(limit: &cgroup::Limit, amount: &str) -> Limit {
    let (name, folder) = (limit.file.file_name().unwrap_or_default(), limit.file.parent().unwrap_or(Path::new("/")));
    let by = format!("the cgroup's {} of {amount} ({})", name.display(), folder.display());
    Limit { amount: limit.amount, by }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::budget::Budgets;
    use crate::tuning::budget::MAX_LEFT_FILES;

    fn limits(files: u64, memory_mib: u64, tasks: u64, keeps_ports: bool) -> Limits {
        let limit = |amount, by: &str| Limit { amount, by: by.into() };
        let memory = memory_mib.saturating_mul(MIB);
        Limits {
            files: limit(files, "F"),
            memory: limit(memory, "M"),
            tasks: limit(tasks, "T"),
            watches: 8192,
            keeps_ports,
        }
    }

    #[test]
    fn a_daemon_that_could_serve_nobody_refuses_to_start() {
        let why = |limits: Limits| limits.check().expect_err("too little");
        assert!(why(limits(64, 1000, 1000, false)).contains("needs 128 file descriptors at least"));
        assert!(why(limits(200, 1000, 1000, true)).contains("needs 256 file descriptors with --keep-ports"));
        assert!(
            why(limits(1000, 16, 1000, false)).contains("needs 32 MiB of memory at least, and cannot have that: M;")
        );
        assert!(
            why(limits(1000, 64, 10, false)).contains("16 processes and threads at least, and cannot have that: T;")
        );
        for good in [limits(128, 32, 16, false), limits(256, 64, 20, true)] {
            assert_eq!(good.check(), Ok(()));
        }
    }

    #[test]
    fn the_parts_of_users_and_the_daemon_are_at_most_all() {
        for files in [0, 64, 128, 256, 1024, 20_000, u64::MAX] {
            for mib in [0, 32, 64, 512, 24 << 10, u64::MAX] {
                for keeps_ports in [false, true] {
                    let limits = limits(files, mib, files, keeps_ports);
                    let Bounds { all, others, .. } = limits.bounds(1);
                    let used = (all[Resource::Descriptors] + OWN_FILES) * if keeps_ports { 2 } else { 1 };
                    assert!(used <= files.max(2 * OWN_FILES), "{limits:?}: {used}");
                    let (of_user, helpers) = node_helpers();
                    let memory = all[Resource::Memory]
                        + all[Resource::Connections] * CONNECTION_BYTES
                        + helpers as u64 * HELPER_BYTES;
                    assert!(memory <= limits.memory.amount && of_user <= helpers, "{limits:?}: {memory}");
                    let threads = all[Resource::Threads] + u64::from(node_files_of_user()) + helpers as u64;
                    assert!(threads <= files, "{limits:?}: {threads}");
                    assert!(Resource::ALL.iter().all(|r| others[*r] <= all[*r]), "{limits:?}");
                }
            }
        }
        // Of descriptors in flight all users have half, each of them at most a sixteenth of that, and root a quarter.
        let in_flight = |files| {
            let bounds = limits(files, 1000, 1000, false).bounds(1);
            let of_user = Budgets::default().of(1000, &bounds).amounts[Resource::InFlight];
            [of_user, bounds.others[Resource::InFlight], bounds.in_flight_of_root()]
        };
        assert_eq!([1024, 20_000].map(in_flight), [[32, 512, 256], [512, 10_000, 5000]]);
        // Whatever there is to pay with, it pays for no more files than can be watched, and handed over.
        for (mib, watches) in [(32, 8192), (1 << 20, 8192), (1 << 20, u64::MAX), (1000, 0)] {
            let bounds = Limits { watches, ..limits(20_000, mib, 1000, false) }.bounds(1);
            let (budgets, files) = (Budgets::default(), bounds.watches.clamp(1, MAX_LEFT_FILES));
            let (least, all) = (budgets.least_of_file(&bounds), budgets.total(&bounds)[Resource::Memory]);
            assert!(least >= 4096 && all / least <= files && files <= watches.max(1), "{mib}, {watches}: {least}");
        }
        // A user opens a pipe even with the least that there may be.
        let Bounds { others, .. } = limits(LEAST_FILES, 32, 16, false).bounds(1);
        assert!(others[Resource::Descriptors] / 2 >= 13 && others[Resource::Memory] >= MIB, "{others:?}");
    }
}
