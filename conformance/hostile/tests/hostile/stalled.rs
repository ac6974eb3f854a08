// SPDX-License-Identifier: BSD-2-Clause
//! Memory and files of a client that never answer: a page of a file system whose server does not reply, and descriptors
//! that take long to close. The daemon accesses the memory of programs that use the node.

use std::fs;
use std::os::fd::{AsFd as _, AsRawFd as _};
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::thread::{self, sleep};
use std::time::{Duration, Instant};

use conformance::c::compile;
use conformance::home::summary;
use conformance::net::start_faulty_daemon;
use conformance::node::{STATIC, StartedProgram, Stopped, unetmap_node};
use conformance::replace::replace;
use conformance::traffic::open;
use conformance::{Home, Node, isolated, until};
use conformance_hostile::raw::{ControlConnection, RawPort};
use rustix::process::{Pid, Signal, kill_process};
use unetmap::abi::NmreqRegister;
use unetmap::errno::EACCES;

/// The attacker.
const USER: u32 = 65_534;
const ETIMEDOUT: i32 = 110;

/// A node that any user may open; `None`, with the reason printed, if this machine cannot have it.
fn open_node(home: &Home, policy: &str) -> Option<Node> {
    let node = Node::by(home, policy).inspect_err(|why| summary(&format!("skipped: {why}"))).ok()?;
    for path in [home.folder(), &home.folder().join("unetmapd.sock.node")] {
        let _ = fs::set_permissions(path, fs::Permissions::from_mode(0o755));
    }
    Some(node)
}

/// The attacker's program, about to make its request, which fails with `errno`.
fn attacker(node: &Node, program: &Path, uid: u32, errno: i32) -> StartedProgram {
    let started = StartedProgram::start(node, program, &[&uid.to_string(), &errno.to_string()]);
    assert_eq!(started.line, "ready");
    started
}

fn admits() -> String {
    format!("[[rule]]\npipes = true\nusers = [{USER}]\n")
}

fn compile_stalled(home: &Home) -> PathBuf {
    compile(home, "stalled", &STATIC)
}

#[test]
fn memory_that_never_answers_delays_its_owner_alone() {
    isolated(|home| {
        let Some(node) = open_node(home, &admits()) else { return };
        let stalled = compile_stalled(home);
        // Root, too, with memory of the same kind.
        let users = [USER, USER, USER, USER, 0];
        let mut attackers = users.map(|uid| attacker(&node, &stalled, uid, ETIMEDOUT));
        attackers.iter_mut().for_each(StartedProgram::write_line);
        let start = Instant::now();
        let honest = compile(home, "node", &STATIC);
        let mut program = StartedProgram::start(&node, &honest, &["call", "ctrl"]);
        program.write_line();
        program.exits_successfully();
        home.assert_serves();
        summary(&format!("an honest program and a pipe were served in {:?}", start.elapsed()));
        attackers.into_iter().for_each(StartedProgram::exits_successfully);
        home.assert_serves();
    });
}

/// One request after the other is in progress, each for longer than the daemon tries to be replaced at a time.
#[test]
fn memory_that_never_answers_does_not_hold_a_replacement_off() {
    isolated(|home| {
        let Some(node) = open_node(home, &admits()) else { return };
        let (stalled, mut attackers) = (compile_stalled(home), Vec::new());
        thread::scope(|scope| {
            let replacing = scope.spawn(|| {
                sleep(Duration::from_secs(2));
                replace(home);
                replace(home);
            });
            while !replacing.is_finished() {
                let mut next = attacker(&node, &stalled, USER, ETIMEDOUT);
                next.write_line();
                attackers.push(next);
                sleep(Duration::from_secs(1));
            }
            replacing.join().expect("replaced");
        });
        summary(&format!("replaced twice during the requests of {} attackers", attackers.len()));
        attackers.into_iter().for_each(StartedProgram::exits_successfully);
        let mut honest = StartedProgram::start(&node, &compile(home, "node", &STATIC), &["call", "ctrl"]);
        honest.write_line();
        honest.exits_successfully();
        home.assert_serves();
    });
}

#[test]
fn a_user_whom_the_policy_gives_nothing_is_refused_before_its_memory_is_read() {
    isolated(|home| {
        let Some(node) = open_node(home, "[[rule]]\npipes = true\nusers = [65533]\n") else { return };
        let mut refused = attacker(&node, &compile_stalled(home), USER, EACCES);
        refused.write_line();
        refused.exits_successfully();
    });
}

/// A program that writes to the file of its region keeps it locked, here for ever: the bytes are in such memory.
#[test]
fn a_write_to_a_region_that_never_ends_delays_its_owner_alone() {
    isolated(|home| {
        let Some(node) = open_node(home, &admits()) else { return };
        let stalled = compile_stalled(home);
        let open_as_user = |name| {
            let raw = ControlConnection::connect_as(&home.socket(), USER).expect("a daemon that listens");
            RawPort::open_on(raw, name, NmreqRegister::default())
        };
        let (first, second) = (open_as_user("a{1"), open_as_user("b{1"));
        let region = rustix::io::dup(&first.region).expect("a descriptor that programs inherit");
        let fd = region.as_raw_fd();
        let writer = StartedProgram::start(&node, &stalled, &[&USER.to_string(), "write", &fd.to_string()]);
        let call = format!("/proc/{}/syscall", writer.line);
        let is_of_region = |call: String| call.split(' ').nth(1) == Some(&format!("{fd:#x}"));
        until("it writes", || fs::read_to_string(&call).is_ok_and(is_of_region));
        // Both regions end, and others begin.
        let memory = || {
            let users = home.snapshot().users;
            users.into_iter().find(|user| user.uid == Some(USER)).map_or(0, |user| user.memory.used)
        };
        let before = memory();
        drop((first, second));
        until("their sessions are closed", || home.snapshot().sessions.is_empty());
        let left = memory();
        assert!(left > before / 2 && left <= before, "the pages stay, and are charged: {before}, {left}");
        drop(open_as_user("c{1"));
        until("its session is closed", || home.snapshot().sessions.is_empty());
        assert_eq!(memory(), left, "it had the pages of the first one");
        home.assert_serves();
        drop((region, writer));
        until("nothing is charged", || memory() == 0);
    });
}

/// The threads of a process that have not exited.
fn threads(process: Pid) -> usize {
    let Ok(tasks) = fs::read_dir(format!("/proc/{}/task", process.as_raw_nonzero())) else { return 0 };
    let runs = |stat: String| stat.rsplit(") ").next().is_some_and(|rest| !rest.starts_with(['Z', 'X']));
    tasks.flatten().filter(|task| fs::read_to_string(task.path().join("stat")).is_ok_and(runs)).count()
}

#[test]
fn a_daemon_that_is_killed_while_it_reads_such_memory_leaves_nothing() {
    isolated(|home| {
        let Some(node) = open_node(home, &admits()) else { return };
        let daemon = home.daemon();
        // Its request fails when the daemon ends.
        let mut attacker = attacker(&node, &compile_stalled(home), USER, -1);
        attacker.write_line();
        let wchan = format!("/proc/{}/syscall", attacker.guard.pid().as_raw_nonzero());
        until("it waits for the answer", || fs::read_to_string(&wchan).is_ok_and(|call| call != "running\n"));
        sleep(Duration::from_millis(100));
        kill_process(daemon, Signal::KILL).expect("our own daemon");
        until("all threads of the daemon have exited", || threads(daemon) == 0);
        home.assert_serves();
        let (done, printed) = unetmap_node(home, &["on", &node.path().display().to_string()]);
        assert!(done, "{printed}");
    });
}

/// Runs an attacker of another user, and checks that connections of other users are closed all the same, and that
/// nothing keeps a killed daemon from ending.
fn other_connections_are_closed(home: &Home, what: &str) {
    // Clients can send it descriptors, as on Linux before 6.16.
    let mut daemon = start_faulty_daemon(home, &admits(), "descriptors");
    let raw = ControlConnection::connect(&home.socket()).expect("a daemon that listens");
    if raw.send_with(b"?", &[fs::File::open("/dev/null").expect("a device").as_fd()]).is_err() {
        return summary(
            "skipped: this is a release build, and clients can send no descriptors to this kernel's daemons",
        );
    }
    drop(raw);
    let Some(node) = open_node(home, "") else { return };
    let stalled = compile_stalled(home);
    let stopped = Stopped::new(daemon.pid());
    let mut command = node.command(&stalled);
    command.args([&USER.to_string(), what]).arg(home.socket());
    let attacker = StartedProgram::spawn(&mut command);
    assert_eq!(attacker.line, "sent");
    drop(stopped);
    let before = home.daemon_fds();
    for round in 0..20 {
        drop((open(&format!("netmap:c{{{round}")), open(&format!("netmap:c}}{round}"))));
    }
    home.until_fds(before);
    daemon.signal(Signal::KILL);
    until("all threads of the daemon have exited", || threads(daemon.pid()) == 0);
    daemon.kill();
}

#[test]
fn a_descriptor_whose_close_never_ends_stops_nobody() {
    isolated(|home| other_connections_are_closed(home, "flush"));
}

#[test]
fn a_descriptor_left_in_the_queue_stops_nobody() {
    isolated(|home| other_connections_are_closed(home, "linger"));
}
