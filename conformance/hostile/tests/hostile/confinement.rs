// SPDX-License-Identifier: BSD-2-Clause
//! Rights that the daemon's processes and threads have given up, as the kernel shows them.

use std::fs;
use std::os::unix::fs::{PermissionsExt as _, chown};
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::thread;
use std::time::Duration;

use conformance::home::{Guard, Home, daemon_listens, processes_of, summary};
use conformance::net::{set_policy, start_daemon};
use conformance::replace::replace;
use conformance::traffic::open;
use conformance_hostile::raw::{ControlConnection, RawPort};
use rustix::process::{Pid, Signal, kill_process};

use conformance::{Node, isolated, program, until};
use unetmap::abi::*;
use unetmap_core::control::request::NetmapRequest;
use zerocopy::IntoBytes as _;

/// Capabilities that the broker of root's daemon may have: DAC_OVERRIDE, DAC_READ_SEARCH, FOWNER, LINUX_IMMUTABLE,
/// NET_BROADCAST, NET_ADMIN, NET_RAW, IPC_LOCK, SYS_PTRACE, SYS_ADMIN, SYS_NICE, SYS_RESOURCE, PERFMON, BPF.
const OF_BROKER: u64 = 1 << 1 | 1 << 3 | 1 << 2 | 1 << 9 | 15 << 11 | 1 << 19 | 1 << 21 | 1 << 23 | 1 << 24 | 3 << 38;
const SYS_PTRACE: u64 = 1 << 19;

/// The state of a process or thread in `/proc`.
struct Status(String);

impl Status {
    fn of(process: &Path) -> Status {
        Status(fs::read_to_string(process.join("status")).expect("it runs"))
    }

    fn field(&self, name: &str) -> &str {
        self.0.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':')).expect("a field of status").trim()
    }

    /// Checks that it gains no privileges, has a filter of system calls, and no other capabilities than these.
    #[track_caller]
    fn assert_confined(&self, capabilities: u64) {
        assert_eq!((self.field("NoNewPrivs"), self.field("Seccomp")), ("1", "2"), "{}", self.0);
        for set in ["CapEff", "CapPrm", "CapInh", "CapAmb"] {
            let has = u64::from_str_radix(self.field(set), 16).expect("a hexadecimal number");
            assert_eq!(has & !capabilities, 0, "{set} of {}", self.0);
        }
    }
}

#[test]
fn neither_of_broker_and_daemon_outlives_the_other() {
    isolated(|home| {
        if !rustix::process::geteuid().is_root() {
            return summary("skipped: a user's daemon is one process");
        }
        for kill_broker in [false, true] {
            let _port = open("netmap:x{1");
            let daemon = home.daemon();
            let broker = processes_of(home, b"--privileged").pop().expect("root's daemon has one");
            let number = broker.file_name().and_then(|name| name.to_str()?.parse().ok());
            let broker_pid = number.and_then(Pid::from_raw).expect("a process");
            kill_process(if kill_broker { broker_pid } else { daemon }, Signal::KILL).expect("it runs");
            until("both have ended", || {
                let ended = |pid: Pid| {
                    let state = fs::read_to_string(format!("/proc/{}/stat", pid.as_raw_nonzero()));
                    state.map_or(true, |stat| stat.contains(") Z "))
                };
                ended(daemon) && ended(broker_pid)
            });
        }
    });
}

/// A process that does not run until the value is dropped.
struct Stopped(Pid);

impl Stopped {
    fn new(pid: Pid) -> Stopped {
        kill_process(pid, Signal::STOP).expect("it runs");
        Stopped(pid)
    }
}

impl Drop for Stopped {
    fn drop(&mut self) {
        let _ = kill_process(self.0, Signal::CONT);
    }
}

/// Anybody can keep the kernel's locks of interfaces busy, for which the broker waits.
#[test]
fn ports_that_are_no_interfaces_open_without_the_broker() {
    isolated(|home| {
        if !rustix::process::geteuid().is_root() {
            return summary("skipped: a user's daemon is one process");
        }
        set_policy(home, "[[rule]]\nusers = [4001]\npipes = true\n");
        fs::set_permissions(home.folder(), fs::Permissions::from_mode(0o755)).expect("our own folder");
        let _daemon = start_daemon(home, &[]);
        home.assert_serves();
        // The policy is read again until its file is older than two seconds.
        thread::sleep(Duration::from_secs(4));
        drop(RawPort::open(&home.socket(), "first{1"));
        let broker = processes_of(home, b"--privileged").pop().expect("root's daemon has one");
        let number = broker.file_name().and_then(|name| name.to_str()?.parse().ok());
        let stopped = Stopped::new(number.and_then(Pid::from_raw).expect("a process"));
        for uid in [0, 4001] {
            // Few enough for the memory files that are made ahead.
            for name in ["p{1", "vale7:a"] {
                let connection = ControlConnection::connect_as(&home.socket(), uid).expect("the daemon listens");
                connection.set_limit(Duration::from_secs(20));
                let body = NmreqRegister { nr_mode: NR_REG_ALL_NIC, ..Default::default() };
                let request = NetmapRequest::new(NETMAP_REQ_REGISTER, name, body.as_bytes()).expect("a short name");
                let (errno, reply, _) = connection.request(&request);
                assert!(errno == 0 && reply.is_some(), "user {uid}, {name}: errno {errno}");
            }
        }
        drop(stopped);
        home.assert_serves();
    });
}

#[test]
fn the_daemon_and_its_threads_have_what_they_need_and_no_more() {
    isolated(|home| {
        let (_port, _other) = (open("vale0:a"), open("vale0:b"));
        let process = PathBuf::from(format!("/proc/{}", home.daemon().as_raw_nonzero()));
        let status = Status::of(&process);
        status.assert_confined(0);
        let is_root = rustix::process::geteuid().is_root();
        if is_root {
            assert!(!status.field("Uid").split_whitespace().any(|id| id == "0"), "{}", status.0);
            assert!(!status.field("Gid").split_whitespace().any(|id| id == "0"), "{}", status.0);
            assert_eq!(status.field("Groups"), "");
            let broker = processes_of(home, b"--privileged");
            assert_eq!(broker.len(), 1, "{broker:?}");
            let broker = Status::of(&broker[0]);
            broker.assert_confined(OF_BROKER);
            summary(&format!("broker: CapEff {}, Seccomp {}", broker.field("CapEff"), broker.field("Seccomp")));
        }
        let names = ["switch", "closer"];
        let threads = || -> Vec<Status> {
            let tasks = fs::read_dir(process.join("task")).expect("it runs").flatten();
            let threads = tasks.map(|task| Status::of(&task.path()));
            threads.filter(|thread| names.iter().any(|name| thread.field("Name").starts_with(name))).collect()
        };
        // A thread that was just started has its name, and then its second filter, once it runs.
        until("threads of both names are confined", || {
            let threads = threads();
            let has = |name: &&str| threads.iter().any(|thread| thread.field("Name").starts_with(name));
            names.iter().all(has) && threads.iter().all(|thread| thread.field("Seccomp_filters") == "2")
        });
        threads().iter().for_each(|thread| thread.assert_confined(0));
        let log = fs::read_to_string(home.log()).expect("the daemon's log");
        assert!(!log.contains("not confined"), "{log}");
        summary(&format!("CapEff {}, Seccomp {}", status.field("CapEff"), status.field("Seccomp")));
    });
}

/// The kernel counts descriptors in flight and more by user: daemons share none of it, nor does a successor.
#[test]
fn each_daemon_of_root_is_another_user() {
    isolated(|home| {
        if !rustix::process::geteuid().is_root() {
            return summary("skipped: a user's daemon is that user");
        }
        let user_of = |home: &Home| {
            let process = PathBuf::from(format!("/proc/{}", home.daemon().as_raw_nonzero()));
            let ids = Status::of(&process).field("Uid").to_owned();
            let ids: Vec<u32> = ids.split_whitespace().map(|id| id.parse().expect("a number")).collect();
            assert!(ids.iter().all(|id| *id == ids[0] && (0x7800_0000..0x8000_0000).contains(id)), "{ids:?}");
            ids[0]
        };
        let other = Home::at(&home.folder().join("other")).expect("a folder");
        let _daemons = [home, &other].map(|home| {
            set_policy(home, "");
            start_daemon(home, &[])
        });
        let users = [user_of(home), user_of(&other)];
        replace(home);
        let successor = user_of(home);
        assert!(users[0] != users[1] && !users.contains(&successor), "{users:?}, {successor}");
    });
}

/// The niceness in the contents of a `stat` file.
fn nice_of(stat: &str) -> i32 {
    let (_, fields) = stat.rsplit_once(") ").expect("a name in parentheses");
    fields.split(' ').nth(16).and_then(|nice| nice.parse().ok()).expect("a number")
}

/// Threads for which everybody waits run before programs that keep the CPUs busy; threads that move packets do not.
#[test]
fn only_the_control_thread_and_its_broker_run_before_others() {
    isolated(|home| {
        let own =
            Command::new("nice").args(["-n", "-10", "cat", "/proc/self/stat"]).output().expect("nice (coreutils)");
        if nice_of(&String::from_utf8_lossy(&own.stdout)) != -10 {
            return summary("skipped: this process may not be less nice (CAP_SYS_NICE)");
        }
        let (_port, _other) = (open("vale0:a"), open("vale0:b"));
        let _node = Node::mounted(home);
        let daemon = PathBuf::from(format!("/proc/{}", home.daemon().as_raw_nonzero()));
        let is_root = rustix::process::geteuid().is_root();
        let first = [vec![daemon], processes_of(home, b"--privileged")].concat();
        // A thread that has just been started has not set its own yet.
        until("the niceness of all threads is as it should be", || {
            first.iter().all(|process| {
                fs::read_dir(process.join("task")).expect("it runs").flatten().all(|task| {
                    // It may have ended.
                    let Ok(stat) = fs::read_to_string(task.path().join("stat")) else { return true };
                    let is_main = task.file_name() == process.file_name().expect("a number");
                    let before = is_root && (is_main || stat.contains("(heartbeat)"));
                    nice_of(&stat) == if before { -10 } else { 0 }
                })
            })
        });
        for helper in processes_of(home, b"--access-memory") {
            until("it is as nice as others", || {
                nice_of(&fs::read_to_string(helper.join("stat")).expect("it runs")) == 0
            });
        }
    });
}

#[test]
fn the_process_that_reads_programs_memory_has_one_capability() {
    isolated(|home| {
        let _node = match Node::mounted(home) {
            Ok(node) => node,
            Err(why) => return summary(&format!("skipped: {why}")),
        };
        let helpers = processes_of(home, b"--access-memory");
        assert!(!helpers.is_empty(), "the node starts some");
        for helper in helpers {
            until("it has confined itself", || Status::of(&helper).field("Seccomp_filters") == "2");
            Status::of(&helper).assert_confined(SYS_PTRACE);
            // Its connections, one of them by two numbers, beside standard input, output and error.
            until("it has its connections", || fs::read_dir(helper.join("fd")).expect("it runs").count() == 6);
        }
    });
}

#[test]
fn a_users_daemon_has_no_capability_and_no_files() {
    isolated(|home| {
        const USER: u32 = 65_534;
        if !rustix::process::geteuid().is_root() {
            return summary("skipped: only root can be another user");
        }
        let folder = home.folder().join("user");
        fs::create_dir(&folder).expect("a folder in the test's own");
        chown(&folder, Some(USER), Some(USER)).expect("root may");
        fs::set_permissions(home.folder(), fs::Permissions::from_mode(0o755)).expect("our own folder");
        let (socket, log) = (folder.join("socket"), folder.join("log"));
        let as_user = |name: &str| {
            // The folder of this build may be closed to others.
            let path = home.folder().join(name);
            fs::copy(program(name), &path).expect("a copy in the test's own folder");
            let mut command = Command::new(path);
            command.uid(USER).gid(USER).env("UNETMAP_SOCKET", &socket).stdin(Stdio::null());
            command
        };
        let file = fs::File::create(&log).expect("our own folder");
        let daemon = Guard::spawn(as_user("unetmapd").arg("--foreground").stderr(file));
        until("it listens", || daemon_listens(&socket));
        // A switch has threads, and a region memory.
        let output = as_user("try_open").arg("vale0:x").output().expect("it starts");
        let printed = String::from_utf8_lossy(&output.stdout);
        assert!(printed.starts_with("opened"), "{printed}");
        Status::of(Path::new(&format!("/proc/{}", daemon.pid().as_raw_nonzero()))).assert_confined(0);
        let log = fs::read_to_string(log).expect("our own file");
        assert!(!log.contains("not confined"), "{log}");
        if log.contains("no landlock") {
            summary("this kernel has no landlock");
        }
    });
}
