// SPDX-License-Identifier: BSD-2-Clause
//! The two threads that keep interfaces from the kernel, the daemon's and its broker's, run before all others of the
//! machine; no other thread of the daemon does. The broker's session counts more than those of programs.

use std::fs::{self, DirEntry};
use std::process::Command;

use conformance::home::{daemon_processes, summary};
use conformance::net::{CABLE, DIRECT, Net, open_in};
use conformance::{isolated_with_interfaces, program, until};
use rustix::process::Pid;
use rustix::thread::gettid;

/// The scheduling policy of a thread that runs before all others, `SCHED_FIFO`.
const FIRST: &str = "1";

/// The threads of a process that run before all others, by name, each with what chrt(1) says of it.
fn first_threads_of(process: &Pid) -> Vec<(String, String)> {
    let tasks = fs::read_dir(format!("/proc/{}/task", process.as_raw_nonzero())).into_iter().flatten().flatten();
    let thread = |task: DirEntry| {
        let part = |name: &str| fs::read_to_string(task.path().join(name)).ok();
        // The 41st field; the name, which may have spaces, is the second.
        let policy = part("stat")?.rsplit_once(") ")?.1.split(' ').nth(38)?.to_owned();
        let chrt = |_| Command::new("chrt").arg("-p").arg(task.file_name()).output().expect("a program of each system");
        let said = (policy == FIRST).then_some(()).map(chrt)?;
        Some((part("comm")?.trim_end().to_owned(), String::from_utf8_lossy(&said.stdout).into_owned()))
    };
    tasks.filter_map(thread).collect()
}

/// Sets the scheduling of the calling thread, and of programs that it starts, by chrt(1); the reason if it may not.
fn schedule(class: &str, priority: &str) -> Result<(), String> {
    let tid = gettid().as_raw_nonzero().to_string();
    let done = Command::new("chrt").args([class, "-p", priority, &tid]).output().expect("a program of each system");
    if done.status.success() { Ok(()) } else { Err(String::from_utf8_lossy(&done.stderr).trim_end().into()) }
}

#[test]
fn two_threads_of_the_daemon_run_before_all_others() {
    isolated_with_interfaces(|home| {
        // Also of a daemon that a real-time program starts.
        if let Err(why) = schedule("-f", "10") {
            return summary(&format!("skipped: {why}"));
        }
        let net = Net::new(home, DIRECT, CABLE);
        schedule("-o", "0").expect("less is always permitted");
        let Some(net) = net else { return };
        let _port = open_in(&net.near, "netmap:va");
        let processes = daemon_processes(home);
        until("two threads, and no others, run before all others", || {
            let mut first: Vec<_> = processes.iter().flat_map(first_threads_of).collect();
            first.sort();
            // Others that they start do not.
            let alone = first.iter().all(|(_, said)| said.contains("SCHED_FIFO|SCHED_RESET_ON_FORK"));
            alone && first.iter().map(|(name, _)| name).eq(["deadlines", "heartbeat"])
        });
        let said = net.near.tool(&program("unetmap").display().to_string(), &["doctor"]).expect("it runs");
        let line = said.lines().find(|line| line.contains("real-time threads")).unwrap_or_else(|| panic!("{said}"));
        assert!(line.contains("are kept by two threads"), "{line}");

        let broker = home.snapshot().daemon.privileged_pid;
        match fs::read_to_string(format!("/proc/{broker}/autogroup")) {
            Ok(group) => assert!(group.trim_end().ends_with(" nice -10"), "{group}"),
            Err(why) => summary(&format!("skipped in part: this kernel groups no sessions: {why}")),
        }
    });
}
