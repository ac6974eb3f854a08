// SPDX-License-Identifier: BSD-2-Clause
//! C programs of `conformance/c` and `examples/c`: run by `unetmap run`, or linked with the library.

use std::process::Command;

use conformance::c::{Running, compile, linked, start, start_by};
use conformance::net::{CABLE, DIRECT, MEDIATED, Net, frames};
use conformance::{Home, isolated, program, until};
use rustix::process::{Pid, Signal, kill_process};

#[test]
fn c_programs_send_and_receive_through_a_pipe() {
    isolated(|home| {
        let pipe = compile(home, "pipe", &[]);
        let receiver = start(&pipe, &["receive", "c}1", "20000"]);
        let sender = start(&pipe, &["send", "c{1", "20000"]);
        assert_eq!(sender.output(), "20000\n");
        assert_eq!(receiver.output(), "20000\n");
        until("both sessions are over", || home.snapshot().sessions.is_empty());
    });
}

#[test]
fn libnetmap_works_when_linked_without_preload() {
    isolated(|home| {
        let link = linked(home.folder());
        let shared = compile(home, "libnetmap", &link.each_ref().map(String::as_str));
        assert_eq!(Running::spawn("shared", &mut Command::new(shared)).output(), "ok\n");
    });
}

#[test]
fn libnetmap_works_in_a_static_program() {
    isolated(|home| {
        let archive = program("libunetmap.so").with_extension("a").display().to_string();
        let path = compile(home, "libnetmap", &[&archive, "-lm"]);
        assert_eq!(Running::spawn("static", &mut Command::new(path)).output(), "ok\n");
    });
}

#[test]
fn c_programs_get_the_times_of_packets() {
    isolated(|home| {
        let link = linked(home.folder());
        let shared = compile(home, "times", &link.each_ref().map(String::as_str));
        assert_eq!(Running::spawn("times", &mut Command::new(shared)).output(), "ok\n");
    });
}

#[test]
fn netmap_files_support_all_file_operations() {
    isolated(|home| {
        let fds = compile(home, "fds", &[]);
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
            "many-opens",
        ] {
            assert_eq!(start(&fds, &[what]).output(), "ok\n", "{what}");
            until("all is given back", || home.snapshot().sessions.is_empty());
        }
    });
}

#[test]
fn a_killed_daemon_leaves_errors() {
    isolated(|home| {
        let waiting = start(&compile(home, "fds", &[]), &["daemon-killed"]);
        until("both ports are open", || home.try_snapshot().is_some_and(|snapshot| snapshot.sessions.len() == 2));
        let daemon = Pid::from_raw(home.snapshot().daemon.pid as i32).expect("a process");
        kill_process(daemon, Signal::KILL).expect("our daemon");
        assert_eq!(waiting.output(), "ok\n");
    });
}

/// The examples on an interface, observed at the other end of the veth pair.
fn on_an_interface(home: &Home, policy: &str) {
    let Some(net) = Net::new(home, policy, CABLE) else { return };
    let run =
        |example: &str, args: &[&str]| start_by(net.command(program("unetmap")), &compile(home, example, &[]), args);
    let tap = net.tap();
    let generator = run("generator", &["va", "1000"]);
    let got = tap.collect(1000);
    assert!(got.iter().all(|frame| frame.len() == 60 && frame[14..21] == *b" netmap"), "other frames than were sent");
    assert_eq!(generator.output(), "sent 1000\n");

    let receiver = run("receiver", &["netmap:va", "500"]);
    until("the port is open", || home.snapshot().sessions.iter().any(|session| session.port == "va"));
    tap.send_all(&frames(&[60; 500], 0));
    assert_eq!(receiver.output(), "received 500 packets, 30000 bytes\n");
    net.assert_given_back();
}

#[test]
fn the_examples_on_an_interface_direct() {
    isolated(|home| on_an_interface(home, DIRECT));
}

#[test]
fn the_examples_on_an_interface_mediated() {
    isolated(|home| on_an_interface(home, MEDIATED));
}
