// SPDX-License-Identifier: BSD-2-Clause
//! The process that keeps the ports over a crash cannot be told what to keep, or ends: that is said, it is tried again,
//! and a crash afterwards ends nothing.

use std::fs::File;
use std::os::fd::AsFd as _;
use std::process::{Command, Stdio};
use std::time::Duration;

use conformance::home::{Guard, is_alive, limit_daemon, summary};
use conformance::kept::{kill, start, wait_until_kept};
use conformance::replace::Stream;
use conformance::snapshot::CrashProtection;
use conformance::traffic::{exchange, open};
use conformance::{Home, isolated, program, until};
use conformance_hostile::raw::ControlConnection;
use rustix::process::{Pid, Resource, Signal, kill_process};
use unetmap::Port;
use unetmap::abi::{NETMAP_REQ_REGISTER, NR_REG_ALL_NIC, NmreqRegister};
use unetmap_core::control::ControlRequest as _;
use unetmap_core::control::request::NetmapRequest;
use unetmap_core::control::wire;
use unetmap_core::port::file::File as NetmapFile;
use zerocopy::IntoBytes as _;

fn protection(home: &Home) -> CrashProtection {
    home.snapshot().daemon.crash_protection
}

/// Returns the output of `unetmap` with these arguments.
#[track_caller]
fn said(home: &Home, args: &[&str]) -> String {
    let mut command = Command::new(program("unetmap"));
    let output = command.args(args).env("UNETMAP_SOCKET", home.socket()).stdin(Stdio::null()).output();
    String::from_utf8(output.expect("it runs").stdout).expect("text")
}

/// The process that keeps the ports.
#[track_caller]
fn keeper(home: &Home) -> Pid {
    protection(home).pid.and_then(Pid::from_raw).expect("a process keeps the ports")
}

/// Waits until no port is kept over a crash any more; returns why.
#[track_caller]
fn wait_until_off(home: &Home) -> String {
    until("crash protection is off", || !protection(home).on);
    protection(home).why.expect("a reason")
}

/// Waits until all ports are kept again, and has the daemon crash: they go on.
#[track_caller]
fn goes_on_after_a_crash(home: &Home, stream: &Stream, session: u64) {
    wait_until_kept(home);
    until("crash protection is on", || protection(home).on);
    kill(home);
    stream.go_on();
    let ports = ["netmap:later{1", "netmap:later}1"].map(open);
    exchange(&ports[0], &ports[1], session, 0, 2000);
}

/// The kernel lets the daemon send no descriptors, as clients do not receive theirs.
#[test]
fn descriptors_in_flight_only_delay_what_is_kept() {
    isolated(|home| {
        let _daemon = start(home, None);
        let stream = Stream::start("netmap:p{1", "netmap:p}1", 1, Duration::from_micros(200));
        let before = home.daemon();
        wait_until_kept(home);
        assert!(said(home, &["ls"]).contains("\ncrash protection: on, 2 sessions kept\n"));
        // Each answer has 67.
        let fields = NmreqRegister { nr_mode: NR_REG_ALL_NIC, nr_tx_rings: 16, nr_rx_rings: 16, ..Default::default() };
        let stalled: Vec<ControlConnection> = (0..5)
            .map(|n| {
                let request = NetmapRequest::new(NETMAP_REQ_REGISTER, &format!("s{n}{{1"), fields.as_bytes());
                let connection = ControlConnection::connect(&home.socket()).expect("a daemon");
                let request = request.expect("a short name").encode();
                connection.send(&wire::encode(NetmapRequest::KIND, 0, 0, 0, &request)).expect("a daemon that listens");
                until("it is answered", || connection.has_reply());
                connection
            })
            .collect();
        limit_daemon(before, Resource::Nofile, Some(300));
        let why = wait_until_off(home);
        assert!(why.contains("have not received"), "{why}");
        drop(stalled);
        until("it is on again, by itself", || protection(home).on);
        wait_until_kept(home);
        assert_eq!(home.daemon(), before, "it did not crash");
        let off = protection(home).off_seconds;
        goes_on_after_a_crash(home, &stream, 2);
        let (sent, counts) = stream.stop_after_crashes();
        assert_eq!((counts.received, counts.missing, counts.repeated), (sent, 0, 0));
        summary(&format!("off for {off:.2} s, then a crash: {sent} packets sent and received"));
    });
}

/// The process that keeps the ports stands still.
#[test]
fn what_is_not_kept_is_said_and_kept_later() {
    isolated(|home| {
        let _daemon = start(home, None);
        let stream = Stream::start("netmap:p{1", "netmap:p}1", 1, Duration::from_micros(200));
        wait_until_kept(home);
        let keeper = keeper(home);
        kill_process(keeper, Signal::STOP).expect("our own process");
        let ports = ["vale0:a", "vale0:b"].map(open);
        let why = wait_until_off(home);
        assert!(why.contains("does not receive"), "{why}");
        let line = |text: &str, start: &str| {
            let line = text.lines().find(|line| line.contains(start));
            line.unwrap_or_else(|| panic!("{start}: {text}")).to_owned()
        };
        let ls = line(&said(home, &["ls"]), "crash protection: ");
        assert!(ls.starts_with("crash protection: off since 2") && ls.ends_with(&why), "{ls}");
        let doctor = line(&said(home, &["doctor"]), "crash protection");
        assert!(doctor.starts_with("missing") && doctor.contains("off since 2"), "{doctor}");
        let event = line(&said(home, &["events"]), "a crash will end ports");
        assert!(event.ends_with(&why), "{event}");
        assert!(line(&said(home, &["metrics"]), "unetmap_crash_protection{").ends_with(" 0"));
        kill_process(keeper, Signal::CONT).expect("our own process");
        until("it is on again, by itself", || protection(home).on);
        wait_until_kept(home);
        let event = line(&said(home, &["events"]), "a crash ends no port any more");
        assert!(event.contains("it would have for "), "{event}");
        let metrics = said(home, &["metrics"]);
        assert!(line(&metrics, "unetmap_crash_protection{").ends_with(" 1"));
        assert!(!line(&metrics, "unetmap_crash_protection_off_seconds_total{").ends_with(" 0"));
        goes_on_after_a_crash(home, &stream, 2);
        exchange(&ports[0], &ports[1], 3, 0, 2000);
        let (sent, counts) = stream.stop_after_crashes();
        assert_eq!((counts.received, counts.missing, counts.repeated), (sent, 0, 0));
    });
}

/// The process that keeps the ports is killed, and then the one that has taken its place.
#[test]
fn another_process_keeps_the_ports_of_one_that_has_ended() {
    isolated(|home| {
        let _daemon = start(home, None);
        let stream = Stream::start("netmap:p{1", "netmap:p}1", 1, Duration::from_micros(200));
        wait_until_kept(home);
        let before = home.daemon();
        for n in 0..3 {
            let ended = keeper(home);
            kill_process(ended, Signal::KILL).expect("our own process");
            until("another one keeps the ports", || {
                let now = protection(home);
                now.on && now.pid.is_some_and(|pid| pid != ended.as_raw_nonzero().get())
            });
            assert_eq!(home.daemon(), before, "{n}: the same daemon");
        }
        goes_on_after_a_crash(home, &stream, 2);
        let (sent, counts) = stream.stop_after_crashes();
        assert_eq!((counts.received, counts.missing, counts.repeated), (sent, 0, 0));
        let last = keeper(home);
        kill_process(home.daemon(), Signal::TERM).expect("our own daemon");
        until("no process is left", || !is_alive(last));
    });
}

/// A file of netmap's API that was opened before the crash, and has no port yet.
#[test]
fn a_file_without_a_port_gets_one_after_a_crash() {
    isolated(|home| {
        let _daemon = start(home, None);
        let first = open("netmap:p{1");
        let (fd, file) = NetmapFile::open().expect("a daemon");
        wait_until_kept(home);
        kill(home);
        let fields = NmreqRegister { nr_mode: NR_REG_ALL_NIC, ..Default::default() };
        let request = NetmapRequest::new(NETMAP_REQ_REGISTER, "p}1", fields.as_bytes()).expect("a short name");
        let reply = file.request_unbound(fd.as_fd(), &request).expect("an answer");
        assert!(reply.errno == 0 && reply.moved.is_some(), "{}", reply.reason);
        exchange(&first, &reply.bound.expect("a port").port, 1, 0, 3000);
    });
}

/// A daemon that was not told to keep ports.
#[test]
fn protection_that_was_not_asked_for_is_said_to_be_off() {
    isolated(|home| {
        let _port = open("netmap:p{1");
        let now = protection(home);
        assert!(!now.asked && !now.on && now.since_ms.is_none() && now.pid.is_none());
        let line = "crash protection: off: not asked for (unetmapd --keep-ports)";
        assert!(said(home, &["ls"]).lines().any(|said| said == line));
        assert!(!said(home, &["metrics"]).contains("unetmap_crash_protection{"));
    });
}

/// So many descriptors that what is kept fits the process that keeps it only once, or not at all.
#[test]
fn a_low_limit_of_descriptors_crashes_nothing() {
    isolated(|home| has_low_limit(home, 256));
}

#[test]
fn a_limit_of_400_descriptors_crashes_nothing() {
    isolated(|home| has_low_limit(home, 400));
}

fn has_low_limit(home: &Home, limit: u64) {
    let mut daemon = Command::new("prlimit");
    daemon.arg(format!("--nofile={limit}:{limit}")).arg(program("unetmapd"));
    daemon.args(["--foreground", "--idle-exit", "0", "--keep-ports", "--socket"]).arg(home.socket());
    let log = File::options().append(true).create(true).open(home.log()).expect("a file");
    let _daemon = Guard::spawn(daemon.stdin(Stdio::null()).stderr(log));
    until("the daemon serves", || home.serves());
    let before = home.daemon();
    let mut ports = Vec::new();
    // Until one is refused.
    while let Ok(port) = Port::open(&format!("netmap:l{}{{1", ports.len())) {
        ports.push(port);
    }
    assert!(!ports.is_empty());
    for _ in 0..20 {
        drop(ports.pop());
        ports.extend(Port::open("netmap:again{1").ok());
    }
    assert_eq!(home.daemon(), before, "it did not crash");
    // What is open may be more than can be kept. If so, that is said, and ends when it is less.
    let open = ports.len();
    until("it is on, or has a reason", || {
        let now = home.snapshot().daemon;
        now.kept_sessions == ports.len() || !now.crash_protection.on && now.crash_protection.why.is_some()
    });
    let text = said(home, &["ls"]);
    ports.truncate(1);
    wait_until_kept(home);
    until("crash protection is on", || protection(home).on);
    kill(home);
    assert!(ports[0].rxsync().is_ok(), "it goes on");
    let said = text.lines().nth(1).unwrap_or_default();
    summary(&format!("limit {limit}: {open} ports, {said}"));
}
