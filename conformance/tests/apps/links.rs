// SPDX-License-Identifier: BSD-2-Clause
//! Each program that opens an interface says that its link is down: once when it opens the port, and in the message at
//! its end that would look for the reason elsewhere.

use std::io::{BufRead as _, BufReader, Read as _};
use std::process::{Command, Stdio};
use std::thread;

use conformance::home::Guard;
use conformance::net::{CABLE, DIRECT, HELD, MEDIATED, Net};
use conformance::pcap::{overlay, pcap_file};
use conformance::{Home, isolated_with_interfaces, program, until};
use rustix::process::Signal;

const SAID: &str = "the link is down: va ";
const ADMINISTRATIVELY: &str = "va is administratively down (ip link set va up)";
const NO_CARRIER: &str = "va has no carrier, as its peer, in another network namespace, is down";

/// Programs that end by themselves, and how often each says that the link is down. They run at once, as those that wait
/// for slots to be released take 5 seconds.
const ENDING: [(&str, usize); 7] = [
    ("pkt-gen -i va -f tx -n 5 -w 0 -T 0", 2),
    // Once, although it is still down after the wait.
    ("pkt-gen -i va-0/T -f tx -n 5 -w 1 -T 0", 2),
    ("pkt-gen -i va -f ping -n 1 -w 0 -T 0", 2),
    ("pkt-gen -i va --receive=netmap:x{1 --stream rate=1000,count=5 -w 0 -T 0", 2),
    ("pkt-gen -i va --stream rate=1000,count=5 -w 0 -T 0", 2),
    ("unetmap replay FOLDER/one.pcap va", 2),
    ("unetmap replay FOLDER/one.pcap va --json", 2),
];
/// Programs that end at a signal.
const RUNNING: [(&str, usize); 11] = [
    ("pkt-gen -i va -f rx -w 0 -T 0", 2),
    ("pkt-gen -i netmap:va* -f rxseq -w 0 -T 0", 2),
    ("pkt-gen -i va -f pong -w 0 -T 0", 2),
    ("pkt-gen -i va -w 0 -T 0 --receive", 2),
    ("bridge -w 0 va netmap:x{3", 1),
    ("lb -w 0 -i va -p x:2", 1),
    ("unetmap-fw -w 0 va netmap:x{4 --control FOLDER/fw.sock", 1),
    ("unetmap emulate -w 0 netmap:x{5 va", 1),
    ("unetmap flows va --csv", 2),
    ("unetmap capture va -w FOLDER/x.pcap", 2),
    ("unetmap run -- tcpdump -n -i netmap:va -w FOLDER/y.pcap", 1),
];
/// Programs that fill the ring, or have the interface for themselves.
const ALONE: [(&str, usize); 5] = [
    ("pkt-gen -i va --receive=netmap:x{2 --rfc2544=tests=throughput,sizes=64,trial=1ms,settle=1ms -w 0", 2),
    ("vale-ctl -a vale0:va", 1),
    ("vale-ctl -d vale0:va", 0),
    ("vale-ctl -h vale0:va", 1),
    ("vale-ctl -d vale0:va", 0),
];

fn command(net: &Net, home: &Home, line: &str) -> Command {
    let folder = home.folder().display().to_string();
    let mut words = line.split(' ').map(|word| word.replace("FOLDER", &folder));
    let mut command = net.command(program(&words.next().expect("a program")));
    command.args(words).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

/// Runs a program until it ends, or for one that does not until it has said that the link is down. Returns what it
/// printed to standard output and to standard error.
fn outcome(net: &Net, home: &Home, line: &str, ends: bool) -> (String, String) {
    let mut guard = Guard::spawn(&mut command(net, home, line));
    let mut errors = BufReader::new(guard.0.stderr.take().expect("a pipe"));
    let mut said = String::new();
    while !ends && !said.contains(SAID) && errors.read_line(&mut said).expect("text") > 0 {}
    if !ends {
        let pid = guard.0.id();
        // A program that has opened its ports ends with a summary.
        until("the port is open", || {
            let has_session =
                |all: conformance::snapshot::Snapshot| all.sessions.iter().any(|session| session.pid == pid);
            home.try_snapshot().is_some_and(has_session) || guard.0.try_wait().expect("our child").is_some()
        });
        guard.signal(Signal::INT);
    }
    errors.read_to_string(&mut said).expect("text");
    guard.wait();
    let mut printed = String::new();
    guard.0.stdout.take().expect("a pipe").read_to_string(&mut printed).expect("text");
    (printed, said)
}

fn check(net: &Net, home: &Home, (line, times): (&str, usize), ends: bool, why: &str) {
    loop {
        let (printed, said) = outcome(net, home, line, ends);
        // A queue that was just closed may still be held.
        if said.contains(HELD) {
            continue;
        }
        assert_eq!(said.matches(why).count(), times, "{line}\n{said}{printed}");
        assert!(!said.contains("is a receiver running") && !said.contains("the peer run"), "{line}: {said}");
        return;
    }
}

/// All programs, while the link is down for this reason.
fn all_say(net: &Net, home: &Home, why: &str) {
    thread::scope(|scope| {
        for case in ENDING {
            scope.spawn(move || check(net, home, case, true, why));
        }
    });
    RUNNING.iter().for_each(|case| check(net, home, *case, false, why));
    ALONE.iter().for_each(|case| check(net, home, *case, true, why));
    let (printed, _) = outcome(net, home, "pkt-gen -i va -f rx -w 0 -T 0 --json", false);
    let summary: serde_json::Value = serde_json::from_str(&printed).unwrap_or_else(|e| panic!("{e}: {printed}"));
    assert!(summary["links_down"]["netmap:va"].as_str().is_some_and(|text| text.contains(why)), "{summary}");
}

fn down_links_are_said(home: &Home, policy: &str) {
    overlay();
    let Some(net) = Net::new(home, policy, CABLE) else { return };
    std::fs::write(home.folder().join("one.pcap"), pcap_file(&[vec![0xff; 60]])).expect("a file");
    net.far.ip(&["link", "set", "vb", "down"]).unwrap_or_else(|e| panic!("{e}"));
    all_say(&net, home, NO_CARRIER);
    net.near.ip(&["link", "set", "va", "down"]).unwrap_or_else(|e| panic!("{e}"));
    all_say(&net, home, ADMINISTRATIVELY);
}

#[test]
fn each_program_says_that_a_link_is_down_direct() {
    isolated_with_interfaces(|home| down_links_are_said(home, DIRECT));
}

#[test]
fn pkt_gen_says_that_a_mediated_link_is_down() {
    isolated_with_interfaces(|home| {
        let Some(net) = Net::new(home, MEDIATED, CABLE) else { return };
        net.near.ip(&["link", "set", "va", "down"]).unwrap_or_else(|e| panic!("{e}"));
        check(&net, home, ENDING[0], true, ADMINISTRATIVELY);
        check(&net, home, RUNNING[0], false, ADMINISTRATIVELY);
    });
}

#[test]
fn ports_that_need_no_link_say_nothing() {
    isolated_with_interfaces(|home| {
        let Some(net) = Net::new(home, DIRECT, CABLE) else { return };
        let quiet = |line: &str| {
            let mut guard = Guard::spawn(&mut command(&net, home, line));
            let mut errors = BufReader::new(guard.0.stderr.take().expect("a pipe"));
            let mut said = String::new();
            while !said.ends_with("Ready...\n") && errors.read_line(&mut said).expect("text") > 0 {}
            guard.signal(Signal::INT);
            errors.read_to_string(&mut said).expect("text");
            guard.wait();
            assert!(said.contains("Ready...") && !said.contains("link is down"), "{line}: {said}");
        };
        quiet("pkt-gen -i va -f rx -w 0 -T 0");
        net.far.ip(&["link", "set", "vb", "down"]).unwrap_or_else(|e| panic!("{e}"));
        // The host sends without a carrier.
        quiet("pkt-gen -i va^ -f rx -w 0 -T 0");
        net.near.ip(&["link", "set", "va", "down"]).unwrap_or_else(|e| panic!("{e}"));
        // A pipe, and a port of a switch, of the interface's name; a persistent port, which is down at first.
        quiet("pkt-gen -i va{1 -f rx -w 0 -T 0");
        quiet("pkt-gen -i vale3:va0 -f rx -w 0 -T 0");
        for line in ["vale-ctl -n per", "vale-ctl -a vale4:per"] {
            let made = command(&net, home, line).output().expect("it runs");
            assert!(made.status.success() && made.stderr.is_empty(), "{line}: {made:?}");
        }
        quiet("pkt-gen -i netmap:per -f rx -w 0 -T 0");
    });
}
