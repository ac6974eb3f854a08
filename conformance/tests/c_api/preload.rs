// SPDX-License-Identifier: BSD-2-Clause
//! The access method preload: programs of `conformance/c` that apply every operation on files to netmap files, and
//! faults around them.

use std::fs::Permissions;
use std::os::unix::fs::{PermissionsExt, chown};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use conformance::c::{compile, start, start_by};
use conformance::home::summary;
use conformance::traffic::open;
use conformance::{Home, isolated, program, until};
use rustix::process::{Signal, kill_process};

/// An unprivileged user.
const NOBODY: u32 = 65534;

/// The tests of the program `hooks`.
const HOOKS: [&str; 9] =
    ["open", "lookups", "mmap", "close", "close-without-hook", "children", "scm-rights", "wait", "many-descriptors"];

#[test]
fn every_libc_function_on_files_is_hooked() {
    isolated(|home| {
        let hooks = compile(home, "hooks", &[]);
        for what in HOOKS {
            assert_eq!(start(&hooks, &[what]).output(), "ok\n", "{what}");
            until("all is given back", || home.snapshot().sessions.is_empty());
        }
    });
}

/// An allocator that calls mmap and open itself, before the library is initialized, and in every thread.
fn jemalloc() -> Option<PathBuf> {
    let folders = ["/usr/lib/x86_64-linux-gnu", "/usr/lib/aarch64-linux-gnu", "/usr/lib64", "/usr/lib"];
    folders.iter().map(|folder| PathBuf::from(folder).join("libjemalloc.so.2")).find(|path| path.is_file())
}

#[test]
fn hooks_work_with_another_allocator() {
    isolated(|home| {
        let Some(jemalloc) = jemalloc() else {
            return summary("skipped: there is no libjemalloc.so.2 (apt-get install libjemalloc2)");
        };
        let (hooks, fds) = (compile(home, "hooks", &[]), compile(home, "fds", &[]));
        let run = |path: &PathBuf, what: &str| {
            let mut command = Command::new(program("unetmap"));
            command.env("LD_PRELOAD", &jemalloc);
            assert_eq!(start_by(command, path, &[what]).output(), "ok\n", "{what}");
            until("all is given back", || home.snapshot().sessions.is_empty());
        };
        HOOKS.iter().for_each(|what| run(&hooks, what));
        for what in [
            "dup",
            "fork",
            "exec",
            "scm-rights",
            "poll",
            "signals",
            "select",
            "epoll",
            "epoll-edges",
            "between-calls",
            "fork-while-polling",
        ] {
            run(&fds, what);
        }
        summary("18 programs under jemalloc");
    });
}

/// Forks while other threads are inside REGISTER, arguments that change during a request, and a netmap file in a
/// process without the library, which writes to it or shuts it down.
#[test]
fn hooks_survive_forks_and_changes_during_a_call() {
    isolated(|home| {
        let faults = compile(home, "faults", &[]);
        for what in ["fork-in-register", "changing-arguments", "foreign-process", "shutdown-by-child"] {
            let output = start(&faults, &[what]).output();
            assert_eq!(output, "ok\n", "{what}");
            until("all is given back", || home.snapshot().sessions.is_empty());
            home.assert_serves();
        }
    });
}

/// Traffic and waits under an allocator and a seccomp filter that end the program if memory is allocated; opening and
/// closing under the allocator.
#[test]
fn hooks_allocate_nothing_by_the_programs_allocator() {
    isolated(|home| {
        let nomalloc = compile(home, "nomalloc", &[]);
        for what in ["traffic", "open-close"] {
            assert_eq!(start(&nomalloc, &[what]).output(), "ok\n", "{what}");
            until("all is given back", || home.snapshot().sessions.is_empty());
        }
        let mut caught = Command::new(program("unetmap"));
        let caught = caught.arg("run").arg("--").arg(&nomalloc).arg("forbidden").output().expect("unetmap");
        let printed = String::from_utf8_lossy(&caught.stderr);
        assert!(!caught.status.success() && printed.contains("allocated inside a call"), "{printed}");
    });
}

/// Files closed by one thread during calls of another, signal handlers that call hooks, threads cancelled in a wait,
/// fifty children on one file, children by vfork and clone, a seccomp filter.
#[test]
fn hooks_survive_signals_cancellation_and_concurrent_closes() {
    isolated(|home| {
        let concurrency = compile(home, "concurrency", &[]);
        for what in [
            "close-during-calls",
            "signal-handlers",
            "thread-cancellation",
            "fifty-children",
            "clone-children",
            "seccomp",
        ] {
            assert_eq!(start(&concurrency, &[what]).output(), "ok\n", "{what}");
            until("all is given back", || home.snapshot().sessions.is_empty());
            home.assert_serves();
        }
    });
}

/// The standard error of `unetmap run`, with a program that prints nothing there.
fn said_of(program_: &Path) -> String {
    let output = Command::new(program("unetmap")).arg("run").arg("--").arg(program_).output().expect("unetmap");
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// `unetmap run` reports programs that cannot load the library, and runs them.
#[test]
fn programs_that_cannot_load_the_library_are_reported() {
    isolated(|home| {
        assert_eq!(said_of(&compile(home, "hooks", &[])), "");
        for how in ["-static", "-static-pie"] {
            let printed = said_of(&compile(home, "hooks", &[how]));
            assert!(printed.contains("statically linked") && printed.contains("`unetmap node on`"), "{how}: {printed}");
        }
        let setuid = compile(home, "hooks", &[]);
        if chown(&setuid, Some(NOBODY), None).is_err() {
            return summary("setuid skipped: only root can give a file away");
        }
        std::fs::set_permissions(&setuid, Permissions::from_mode(0o4755)).expect("our file");
        let printed = said_of(&setuid);
        assert!(printed.contains("setuid") && printed.contains("`unetmap node on`"), "{printed}");
    });
}

/// Durations up to 23 ms that differ from round to round.
fn moments() -> impl Iterator<Item = Duration> {
    (1u64..).map(|i| Duration::from_micros(i * 7919 % 23_000))
}

/// A program killed at any moment inside any call leaves no session, no descriptor and no buffer behind.
#[test]
fn programs_killed_inside_each_hook_leave_nothing() {
    isolated(|home| {
        let (faults, holder) = (compile(home, "faults", &[]), open("netmap:k{9"));
        let before = (home.snapshot().region("k").buffers, home.daemon_fds());
        let (mut kills, mut moments) = (0, moments());
        for hook in ["open", "register", "mmap", "dup", "sync", "poll", "select", "epoll", "fork"] {
            for _ in 0..8 {
                let mut victim = start(&faults, &["call-forever", hook]);
                assert_eq!(victim.read_line(), "ready", "{hook}");
                std::thread::sleep(moments.next().expect("it never ends"));
                victim.kill();
                kills += 1;
            }
            // A child that it had forked may run a moment longer.
            until("only the holder is left", || home.snapshot().sessions.len() == 1);
            until("all buffers are back", || home.snapshot().region("k").buffers == before.0);
        }
        home.until_fds(before.1);
        drop(holder);
        home.assert_serves();
        summary(&format!("{kills} kills inside 9 hooks, 0 buffers unaccounted"));
    });
}

/// Every hook returns soon after the daemon was killed.
#[test]
fn every_hook_returns_soon_after_the_daemon_is_killed() {
    isolated(|home: &Home| {
        let mut waiting = start(&compile(home, "faults", &[]), &["daemon-killed"]);
        assert_eq!(waiting.read_line(), "ready");
        kill_process(home.daemon(), Signal::KILL).expect("our daemon");
        waiting.write_line("go");
        let printed = waiting.output();
        assert!(printed.starts_with("the longest call took "), "{printed}");
        summary(printed.trim_end());
    });
}

/// 10,000 opens and closes by the hooks leak no descriptor, memory or buffer in the program or the daemon.
#[test]
fn ten_thousand_opens_and_closes_leak_nothing() {
    isolated(|home| {
        let (faults, holder) = (compile(home, "faults", &[]), open("netmap:g{9"));
        // The daemon keeps memory that it allocated for the first ones.
        start(&faults, &["cycles", "500"]).output();
        until("the first ones are closed", || home.snapshot().sessions.len() == 1);
        let before = (home.snapshot().region("g").buffers, home.daemon_fds(), home.daemon_kib("VmRSS"));
        let mut printed = String::new();
        for _ in 0..10 {
            printed = start(&faults, &["cycles", "1000"]).output();
            assert!(printed.starts_with("1000 cycles"), "{printed}");
        }
        until("all are closed", || home.snapshot().sessions.len() == 1);
        assert_eq!(home.snapshot().region("g").buffers, before.0);
        home.until_fds(before.1);
        let grown = home.daemon_kib("VmRSS").saturating_sub(before.2);
        assert!(grown < 2048, "the daemon grew by {grown} KiB");
        summary(&format!("{}; the daemon: +{grown} KiB", printed.trim_end()));
        drop(holder);
    });
}
