//! Memory and files of a client that never answer: a page of a file system whose server does not reply, and descriptors
//! that take long to close. The daemon accesses the memory of programs that use the node.

use std::fs;
use std::os::fd::AsFd as _;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use conformance::c::compile;
use conformance::home::{Guard, summary};
use conformance::node::{STATIC, StartedProgram, Stopped, unetmap_node};
use conformance::traffic::open;
use conformance::{Home, Node, isolated, program, until};
use conformance_hostile::raw::ControlConnection;
use rustix::process::{Pid, Signal, kill_process};
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

#[test]
fn a_user_whom_the_policy_gives_nothing_is_refused_before_its_memory_is_read() {
    isolated(|home| {
        let Some(node) = open_node(home, "[[rule]]\npipes = true\nusers = [65533]\n") else { return };
        let mut refused = attacker(&node, &compile_stalled(home), USER, EACCES);
        refused.write_line();
        refused.exits_successfully();
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

/// Starts a daemon to which clients can send descriptors, as on Linux before 6.16.
fn daemon_that_takes_descriptors(home: &Home) -> Guard {
    let policy = home.folder().join("policy.toml");
    fs::write(&policy, admits()).expect("a file in the test's own folder");
    let mut command = Command::new(program("unetmapd"));
    command.args(["--foreground", "--socket"]).arg(home.socket()).arg("--policy").arg(policy);
    command.env("UNETMAP_FAULT", "descriptors").stdin(Stdio::null());
    let daemon = Guard::spawn(command.stderr(fs::File::create(home.log()).expect("our own folder")));
    until("it listens", || home.serves());
    daemon
}

/// Runs an attacker of another user, and checks that connections of other users are closed all the same, and that
/// nothing keeps a killed daemon from ending.
fn other_connections_are_closed(home: &Home, what: &str) {
    let mut daemon = daemon_that_takes_descriptors(home);
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
    until("all their descriptors are closed", || home.daemon_fds() <= before);
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
