// SPDX-License-Identifier: BSD-2-Clause
//! Faults at the node: programs killed in a call, a stopped daemon, and users that must be isolated.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};
use std::time::Duration;

use conformance::c::{Running, compile};
use conformance::home::{is_alive, summary, wait_within};
use conformance::node::{STATIC, StartedProgram, Stopped, node, unetmap_node};
use conformance::{Home, LIMIT, Node, isolated, until};
use rustix::process::Signal;

/// Calls that the daemon answers, and calls that the kernel completes alone or defers.
const ANSWERED: [&str; 5] = ["open", "regif", "ctrl", "poll", "txsync"];
const UNANSWERED: [&str; 2] = ["mmap", "close"];

/// Checks that no session or buffer of the node's programs is left, and that the daemon serves.
#[track_caller]
fn assert_nothing_left(home: &Home) {
    until("all ports are given back", || home.snapshot().sessions.is_empty());
    until("all files are closed", || unetmap_node(home, &["status", "--json"]).1.contains("\"files\":0,\"ports\":0"));
    home.assert_serves();
}

#[test]
fn a_program_can_be_killed_in_each_call_while_the_daemon_is_stopped() {
    isolated(|home| {
        let Some(node) = node(home) else { return };
        let own = compile(home, "node", &STATIC);
        let start = |what: &&str| StartedProgram::start(&node, &own, &["call", what]);
        let mut answered: Vec<StartedProgram> = ANSWERED.iter().map(start).collect();
        let mut unanswered: Vec<StartedProgram> = UNANSWERED.iter().map(start).collect();
        let stopped = Stopped::new(home.daemon());
        answered.iter_mut().chain(&mut unanswered).for_each(StartedProgram::write_line);
        unanswered.into_iter().for_each(StartedProgram::exits_successfully);
        std::thread::sleep(Duration::from_millis(100));
        for (program, what) in answered.iter_mut().zip(ANSWERED) {
            assert!(is_alive(program.guard.pid()), "{what} was not to be answered");
            program.guard.signal(Signal::KILL);
            assert!(wait_within(&mut program.guard.0, LIMIT).is_some(), "killed in {what}, it lives on");
        }
        drop(stopped);
        assert_nothing_left(home);
    });
}

#[test]
fn a_stopped_daemon_answers_after_it_continues() {
    isolated(|home| {
        let Some(node) = node(home) else { return };
        let own = compile(home, "node", &STATIC);
        let calls = ["open", "regif", "ctrl", "txsync"];
        let mut programs = calls.map(|what| StartedProgram::start(&node, &own, &["call", what]));
        let stopped = Stopped::new(home.daemon());
        programs.iter_mut().for_each(StartedProgram::write_line);
        std::thread::sleep(Duration::from_millis(100));
        assert!(programs.iter().all(|program| is_alive(program.guard.pid())));
        drop(stopped);
        programs.into_iter().for_each(StartedProgram::exits_successfully);
        assert_nothing_left(home);
    });
}

#[test]
fn programs_killed_at_any_moment_leave_nothing() {
    isolated(|home| {
        let Some(node) = node(home) else { return };
        let own = compile(home, "node", &STATIC);
        let before = home.daemon_fds();
        for round in 0..60u64 {
            // Both ends of a pipe, so that packets and wake-ups occur.
            let mut two = ["k{1", "k}1"].map(|name| StartedProgram::start(&node, &own, &["busy", name]));
            std::thread::sleep(Duration::from_micros(round * 337 % 5000));
            for program in &two {
                program.guard.signal(Signal::KILL);
            }
            for program in &mut two {
                assert!(wait_within(&mut program.guard.0, LIMIT).is_some(), "killed, it lives on");
            }
        }
        assert_nothing_left(home);
        until("all regions are closed", || home.snapshot().regions.is_empty());
        home.until_fds(before);
    });
}

#[test]
fn a_pending_poll_ends_by_timeout_by_signal_and_by_a_kill() {
    isolated(|home| {
        let Some(node) = node(home) else { return };
        let own = compile(home, "node", &STATIC);
        for round in 0..20u64 {
            let mut program = StartedProgram::start(&node, &own, &["held", "h{1"]);
            assert_eq!(program.line, "held");
            std::thread::sleep(Duration::from_micros(round * 491 % 7000));
            program.guard.signal(Signal::KILL);
            assert!(wait_within(&mut program.guard.0, LIMIT).is_some(), "killed in a poll, it lives on");
        }
        assert_nothing_left(home);
    });
}

#[test]
fn regions_are_ranges_of_one_file() {
    isolated(|home| {
        let Some(node) = node(home) else { return };
        let mut command = node.command(&compile(home, "node", &STATIC));
        assert_eq!(Running::spawn("node region-offsets", command.arg("region-offsets")).output(), "ok\n");
    });
}

/// Users that are not root.
const USERS: [u32; 2] = [65_534, 65_533];

#[test]
fn users_share_no_memory() {
    isolated(|home| {
        let policy = format!("[[rule]]\npipes = true\nusers = [{}, {}]\n", USERS[0], USERS[1]);
        let node = match Node::by(home, &policy) {
            Ok(node) => node,
            Err(why) => return summary(&format!("skipped: {why}")),
        };
        for path in [home.folder(), &home.folder().join("unetmapd.sock.node")] {
            let _ = fs::set_permissions(path, fs::Permissions::from_mode(0o755));
        }
        let device = format!("-DDEVICE=\"{}\"", node.path().display());
        let own = compile(home, "node", &[&STATIC[..], &[&device]].concat());
        // The same port at the same offset of the same file is a different one for each user and for root.
        let mut programs = [USERS[0], USERS[1], 0].map(|uid| {
            let mut command = Command::new(&own);
            StartedProgram::spawn(command.args(["secret", "s{1"]).uid(uid).gid(uid).stderr(Stdio::piped()))
        });
        let places: Vec<String> = programs.iter().map(|program| program.line.clone()).collect();
        assert!(places[0].parse::<u64>().is_ok() && places.iter().all(|place| *place == places[0]), "{places:?}");
        programs.iter_mut().for_each(StartedProgram::write_line);
        programs.into_iter().for_each(StartedProgram::exits_successfully);
        let output = Command::new(&own).arg("changed-user").output().expect("it starts");
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        assert_nothing_left(home);
    });
}
