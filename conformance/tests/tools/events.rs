// SPDX-License-Identifier: BSD-2-Clause
//! `unetmap events`: what happened, for whom, and what a slow reader has missed.

use std::fs::{File, Permissions, set_permissions};
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::process::CommandExt as _;
use std::process::{Command, Stdio};

use conformance::home::{Guard, summary};
use conformance::net::{CABLE, DIRECT, MEDIATED, Net, public_copy, set_policy, start_daemon};
use conformance::replace::replace;
use conformance::traffic::{fill_some, open};
use conformance::{Home, isolated, program, until};
use rustix::process::geteuid;
use serde_json::Value;
use unetmap::{Interest, Port};

#[test]
fn each_open_is_one_line_of_the_log() {
    isolated(|home| {
        let mut daemon = Command::new(program("unetmapd"));
        daemon.args(["--foreground", "--log", "debug", "--idle-exit", "0", "--socket"]).arg(home.socket());
        let log = home.folder().join("debug.log");
        let mut daemon = Guard::spawn(daemon.stdin(Stdio::null()).stderr(File::create(&log).expect("a file")));
        until("the daemon serves", || home.serves());
        let port = open("netmap:p{1");
        let text = std::fs::read_to_string(&log).expect("text");
        let of_open: Vec<&str> = text.lines().filter(|line| line.contains("p{1")).collect();
        assert_eq!(of_open.len(), 1, "{text}");
        for part in ["DEBUG", "opened", "port=\"p{1\"", &format!("pid={}", std::process::id()), "tx_rings=1 rx_rings=1"]
        {
            assert!(of_open[0].contains(part), "{part}: {}", of_open[0]);
        }
        drop(port);
        daemon.kill();
    });
}

fn objects(text: &str) -> Vec<Value> {
    text.lines().filter_map(|line| serde_json::from_str(line).ok()).collect()
}

/// Returns the output of a command that runs `unetmap events --json`.
#[track_caller]
fn printed(command: &mut Command) -> Vec<Value> {
    let output = command.args(["events", "--json"]).output().expect("it runs");
    assert!(output.status.success() && output.stderr.is_empty(), "{output:?}");
    objects(&String::from_utf8(output.stdout).expect("text"))
}

/// The kinds of the events of a port, in order.
fn kinds(events: &[Value], port: &str) -> Vec<String> {
    let of_port = events.iter().filter(|event| event["port"] == port);
    of_port.filter_map(|event| event["event"].as_str()).map(str::to_owned).collect()
}

/// A program that follows the events.
struct Follower {
    file: std::path::PathBuf,
    _program: Guard,
}

impl Follower {
    fn start(home: &Home) -> Follower {
        let file = home.folder().join("events");
        let mut command = Command::new(program("unetmap"));
        command.args(["events", "--follow", "--json"]).stdout(File::create(&file).expect("a file"));
        Follower { _program: Guard::spawn(&mut command), file }
    }

    /// Waits for an event of a port.
    #[track_caller]
    fn shows(&self, what: &str, port: &str) -> Value {
        let mut found = None;
        until(&format!("{what} of {port} is shown"), || {
            let events = objects(&std::fs::read_to_string(&self.file).expect("text"));
            found = events.into_iter().find(|event| event["event"] == what && event["port"] == port);
            found.is_some()
        });
        found.expect("it was found")
    }
}

#[test]
fn a_follower_is_told_that_the_daemon_is_another_one() {
    isolated(|home| {
        let port = open("netmap:p{1");
        let follower = Follower::start(home);
        follower.shows("port-opened", "p{1");
        let before = i64::from(home.daemon().as_raw_pid());
        let now = i64::from(replace(home).as_raw_pid());
        let replaced = follower.shows("daemon-replaced", "unetmapd");
        assert_eq!((&replaced["was"], &replaced["pid"]), (&before.into(), &now.into()));
        drop(port);
        home.end_daemon();
        assert_eq!(follower.shows("daemon-ended", "unetmapd")["was"], now);
        let _port = open("netmap:q{1");
        follower.shows("port-opened", "q{1");
    });
}

#[test]
fn ports_and_sessions_are_shown_as_they_come_and_go() {
    isolated(|home| {
        // It waits for a daemon.
        let follower = Follower::start(home);
        let port = open("netmap:p{1");
        let opened = follower.shows("session-opened", "p{1");
        assert_eq!((opened["pid"].as_u64(), opened["tx_rings"].as_u64()), (Some(std::process::id().into()), Some(1)));
        let second = open("netmap:p{1");
        drop((port, second));
        follower.shows("port-closed", "p{1");
        let wanted =
            ["port-opened", "session-opened", "session-opened", "session-closed", "session-closed", "port-closed"];
        assert_eq!(kinds(&printed(&mut Command::new(program("unetmap"))), "p{1"), wanted);
        // A process that was killed: its name stays.
        let mut killed = Guard::spawn(Command::new(program("pkt-gen")).args(["-i", "k}1", "-f", "rx", "-w", "0"]));
        let pid = killed.0.id();
        follower.shows("session-opened", "k}1");
        killed.kill();
        follower.shows("port-closed", "k}1");
        for what in ["port-opened", "session-opened", "session-closed", "port-closed"] {
            let event = follower.shows(what, "k}1");
            assert_eq!((&event["program"], &event["pid"]), (&"pkt-gen".into(), &pid.into()), "{event}");
        }
        let text = Command::new(program("unetmap")).arg("events").output().expect("it runs");
        let text = String::from_utf8(text.stdout).expect("text");
        for what in ["port opened by", "session opened by", "session of", "port closed by"] {
            assert!(text.contains(&format!("k}}1              {what} pkt-gen ({pid})")), "{what}: {text}");
        }
        // The events of another daemon follow those of this one.
        rustix::process::kill_process(home.daemon(), rustix::process::Signal::KILL).expect("it runs");
        until("it has ended", || !home.serves());
        let _port = open("netmap:again{1");
        follower.shows("session-opened", "again{1");
        let text = Command::new(program("unetmap")).arg("events").output().expect("it runs");
        let text = String::from_utf8(text.stdout).expect("text");
        assert!(text.contains("again{1          port opened by "), "{text}");
    });
}

#[test]
fn drops_are_shown_when_they_begin() {
    isolated(|home| {
        let (from, _to) = (open("vale0:from"), open("vale0:to"));
        let follower = Follower::start(home);
        follower.shows("session-opened", "vale0:to");
        let mut seq = 0;
        let begun = {
            let mut sent_until = || {
                seq += fill_some(&from.tx_rings()[0], 1, seq, 512);
                from.poll(Interest::TX, Some(std::time::Duration::from_millis(5))).expect("an open port");
                objects(&std::fs::read_to_string(&follower.file).expect("text"))
                    .iter()
                    .any(|event| event["event"] == "drops-began")
            };
            until("drops begin", &mut sent_until);
            follower.shows("drops-began", "vale0:to")
        };
        assert_eq!((&begun["dir"], &begun["ring"]), (&"rx".into(), &0.into()), "{begun}");
    });
}

#[test]
fn a_slow_reader_is_told_what_it_missed() {
    isolated(|_home| {
        let _keeper = open("netmap:first{1");
        for _ in 0..300 {
            drop(open("netmap:n{1"));
        }
        let mut all = Vec::new();
        until("the last one is closed", || {
            all = printed(&mut Command::new(program("unetmap")));
            all.last().is_some_and(|event| event["event"] == "port-closed")
                && all[0]["events"].as_u64() == Some(2 + 4 * 300 - 512)
        });
        assert_eq!((&all[0]["event"], all.len()), (&"missed".into(), 1 + 512));
    });
}

/// Changes of a link: the events belong to the user of its port.
fn links(home: &Home, policy: &str) {
    let Some(net) = Net::new(home, policy, CABLE) else { return };
    let follower = Follower::start(home);
    let _port: Port = net.open("netmap:va");
    follower.shows("session-opened", "va");
    for (words, what, port) in [
        ("link set dev va down", "link-down", "va"),
        ("link set dev va name renamed", "link-renamed", "renamed"),
        ("link set dev renamed up", "link-up", "renamed"),
        ("link del renamed", "link-gone", "renamed"),
    ] {
        net.near.ip(&words.split(' ').collect::<Vec<_>>()).unwrap_or_else(|e| panic!("{e}"));
        follower.shows(what, port);
    }
}

#[test]
fn changes_of_a_link_are_shown_direct() {
    isolated(|home| links(home, DIRECT));
}

#[test]
fn changes_of_a_link_are_shown_mediated() {
    isolated(|home| links(home, MEDIATED));
}

/// A user sees its own events, root all; a user who reaches its budget sees that.
#[test]
fn a_user_sees_its_own_events_only() {
    isolated(|home| {
        if !geteuid().is_root() {
            return summary("skipped: only root can be several users");
        }
        set_permissions(home.folder(), Permissions::from_mode(0o755)).expect("our own folder");
        let budget = "[[budget]]\nusers = [4001]\nrings = 4\n";
        set_policy(home, &format!("[[rule]]\npipes = true\nusers = [4001, 4002]\n\n{budget}"));
        let _daemon = start_daemon(home, &[]);
        let unetmap = public_copy(home.folder(), &program("unetmap").display().to_string());
        let run_as = |uid: u32, pipe: &str| {
            let mut command = Command::new(&unetmap);
            command.uid(uid).gid(uid).args(["capture", pipe, "-w", "/dev/null", "--duration", "0.05"]);
            command.stdout(Stdio::null()).stderr(Stdio::null()).status().expect("it runs")
        };
        run_as(4001, "alice{1");
        run_as(4002, "bob{1");
        assert!(!run_as(4001, "large{1@conf:rings=4").success(), "16 rings of 4");
        let seen_by = |uid: u32| printed(Command::new(&unetmap).uid(uid).gid(uid));
        let (alice, bob, root) = (seen_by(4001), seen_by(4002), seen_by(0));
        assert!(!kinds(&alice, "alice{1").is_empty() && kinds(&alice, "bob{1").is_empty(), "{alice:?}");
        assert!(!kinds(&bob, "bob{1").is_empty() && bob.iter().all(|event| event["uid"] == 4002), "{bob:?}");
        assert!(!kinds(&root, "alice{1").is_empty() && !kinds(&root, "bob{1").is_empty(), "{root:?}");
        let reached = |events: &[Value]| {
            let found = events.iter().find(|event| event["event"] == "budget-reached");
            found.map(|event| (event["uid"].clone(), event["reason"].as_str().unwrap_or_default().contains("rings")))
        };
        assert_eq!((reached(&alice), reached(&bob)), (Some((4001.into(), true)), None));
        assert_eq!(reached(&root), Some((4001.into(), true)));
    });
}
