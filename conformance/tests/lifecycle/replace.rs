// SPDX-License-Identifier: BSD-2-Clause
//! Replacing the daemon by another process: no port is closed, no packet is lost, and a successor that fails leaves the
//! daemon at work.

use std::collections::BTreeSet;
use std::fs::{self, Permissions};
use std::os::unix::fs::{PermissionsExt as _, chown};
use std::os::unix::process::CommandExt as _;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::Duration;

use conformance::home::{Guard, summary};
use conformance::replace::{Gaps, Stream, drops_of, refused, replace, replace_with, try_replace};
use conformance::traffic::{assert_pipe_works, exchange, expect, open, send};
use conformance::{Home, isolated, program, until};
use rustix::process::{Signal, kill_process};
use serde_json::Value;
use unetmap::OpenOptions;

/// Debian's user `nobody`.
const NOBODY: u32 = 65534;

/// The buffers of a region add up, and none is missing.
#[track_caller]
fn assert_no_buffer_is_missing(home: &Home) {
    for region in home.snapshot().regions {
        let buffers = region.buffers;
        assert_eq!(buffers.free + buffers.in_rings + buffers.extra, buffers.total, "{}: {buffers:?}", region.name);
    }
}

/// Requests of all kinds before and after, and exact counts.
#[test]
fn pipes_go_on_while_the_daemon_is_replaced() {
    isolated(|home| {
        let (first, sink) = (open("netmap:before{1"), open("netmap:nmsink0"));
        let stream = Stream::start("netmap:p{1", "netmap:p}1", 1, Duration::ZERO);
        for _ in 0..5 {
            replace(home);
            stream.go_on();
        }
        // What was open before, and what is opened now.
        let other = open("netmap:before}1");
        exchange(&first, &other, 3, 0, 5000);
        send(&sink, 4, 0, 5000).expect("a sink takes all");
        assert_pipe_works("netmap:after{1", "netmap:after}1");
        assert_no_buffer_is_missing(home);
        let (sent, counts) = stream.stop();
        assert_eq!((counts.received, counts.missing), (sent, 0));
        summary(&format!("5 replacements: {sent} packets through a pipe, {counts:?}"));
        drop((first, other, sink));
        until("all regions are freed", || home.snapshot().regions.is_empty());
    });
}

/// The successor makes what belongs to an end when that end is first opened.
#[test]
fn ends_are_first_opened_after_a_replacement() {
    isolated(|home| {
        let firsts = ["netmap:p{1", "netmap:q}1", "netmap:r{1"].map(open);
        replace(home);
        let others = ["netmap:p}1", "netmap:q{1", "netmap:r}1"].map(open);
        for (first, other) in firsts.iter().zip(&others) {
            exchange(first, other, 1, 0, 3000);
            exchange(other, first, 2, 0, 3000);
        }
        replace(home);
        exchange(&firsts[0], &others[0], 3, 0, 3000);
        assert_no_buffer_is_missing(home);
    });
}

/// An end that another region has is copied by a thread of the daemon.
#[test]
fn a_copied_end_goes_on_while_the_daemon_is_replaced() {
    isolated(|home| {
        let other = open("netmap:other{1");
        let copied = format!("netmap:p}}1@{}", other.mem_id());
        let stream = Stream::start("netmap:p{1", &copied, 1, Duration::ZERO);
        stream.goes_on_while_replaced(home);
        let (sent, counts) = stream.stop();
        assert_eq!((counts.received, counts.missing), (sent, 0));
        summary(&format!("5 replacements: {sent} packets to a copied end, {counts:?}"));
        drop(other);
        until("all regions are freed", || home.snapshot().regions.is_empty());
    });
}

/// Runs `unetmap vale`; returns what it prints.
#[track_caller]
pub(crate) fn vale(words: &str) -> String {
    let output = Command::new(program("unetmap")).arg("vale").args(words.split(' ')).output().expect("unetmap");
    assert!(output.status.success(), "{words}: {output:?}");
    String::from_utf8(output.stdout).expect("text")
}

/// Returns the output of `unetmap vale --json`, without the fields that change while packets pass: counters, ages of
/// addresses, and the processors on which threads are.
#[track_caller]
fn settings_of(words: &str) -> Value {
    const COUNTS: [&str; 3] = ["not_received", "packets", "latency"];
    const CHANGES: [&str; 6] = ["sent", "received", "lost", "dropped", "age", "cpu"];
    let is = |list: &[&str], key: &str| list.contains(&key);
    let keep = |entry: &mut serde_json::Map<String, Value>| {
        entry.retain(|key, _| !is(&CHANGES, key) && !is(&COUNTS, key));
    };
    let mut shown: Value = serde_json::from_str(&vale(&format!("{words} --json"))).expect("JSON");
    shown.as_object_mut().expect("an object").retain(|key, _| !is(&COUNTS, key));
    for list in ["port", "table"] {
        let entries = shown.get_mut(list).and_then(Value::as_array_mut).into_iter().flatten();
        entries.filter_map(Value::as_object_mut).for_each(keep);
    }
    // A port alone has no list. The age of a switch is a setting.
    if shown.get("port").is_none() {
        shown.as_object_mut().into_iter().for_each(keep);
    }
    shown
}

/// Each packet arrived or is in a counter, one that was there before included; rules, addresses and threads remain.
#[test]
fn switches_go_on_while_the_daemon_is_replaced() {
    isolated(|home| {
        for words in ["set vale0 age 300", "port vale1:a storm 1000000000", "port vale2:x access 5", "threads 2"] {
            vale(words);
        }
        // The ports stay open for their counters. Packets of vale1 pass its rules, those of vale0 have none.
        let kept = ["vale0:a", "vale0:b", "vale1:a", "vale1:b"].map(open);
        // Nobody reads these, so that more than a ring of them is dropped.
        let unread = ["vale3:a", "vale3:b"].map(open);
        send(&unread[0], 9, 0, 3000).expect("room");
        let of_unread = || drops_of(home, &["vale3:a", "vale3:b"]);
        until("packets are dropped", || of_unread() > 0);
        let streams = [
            Stream::start("vale0:a", "vale0:b", 1, Duration::ZERO),
            Stream::start("vale1:a", "vale1:b", 2, Duration::from_micros(100)),
        ];
        let settings = || ["show vale0", "show vale3", "port vale1:a", "port vale2:x"].map(settings_of);
        let (before, dropped) = (settings(), of_unread());
        assert!(before.iter().any(|switch| switch["table"][0].is_object()), "the addresses are known: {before:?}");
        for _ in 0..5 {
            replace(home);
            streams.iter().for_each(Stream::go_on);
        }
        assert_eq!(settings(), before);
        assert_eq!((of_unread(), home.snapshot().threads.len()), (dropped, 2));
        assert_no_buffer_is_missing(home);
        for (stream, ports) in streams.into_iter().zip([["vale0:a", "vale0:b"], ["vale1:a", "vale1:b"]]) {
            let (sent, counts) = stream.stop();
            let dropped = drops_of(home, &ports);
            summary(&format!("5 replacements: {sent} packets of {}, {counts:?}, {dropped} dropped", ports[0]));
            assert_eq!(counts.received + dropped, sent, "{counts:?}");
        }
        expect(&unread[1], 9, 0, 500);
        drop((kept, unread));
        vale("port vale1:a off");
    });
}

/// In the middle of handing over, too: nothing is lost.
#[test]
fn a_switch_goes_on_when_its_successor_fails() {
    isolated(|home| {
        let kept = ["vale0:a", "vale0:b"].map(open);
        let stream = Stream::start("vale0:a", "vale0:b", 1, Duration::ZERO);
        for fault in ["successor", "abort", "version"] {
            refused(home, Some(fault));
            stream.go_on();
        }
        let (sent, counts) = stream.stop();
        assert_eq!(counts.received + drops_of(home, &["vale0:a", "vale0:b"]), sent, "{counts:?}");
        drop(kept);
    });
}

/// A successor that finds anything in the state changed refuses it, or has it; it does not panic.
#[test]
fn a_successor_refuses_a_state_that_was_changed() {
    isolated(|home| {
        vale("port vale0:x access 5");
        let kept = ["vale0:a", "vale0:b", "netmap:nmsink0", "netmap:p{1", "netmap:p}1"].map(open);
        let stream = Stream::start("vale0:a", "vale0:b", 1, Duration::from_millis(1));
        let before = home.daemon();
        let mut refusals = BTreeSet::new();
        for n in 0..60 {
            let output = try_replace(home, Some(&format!("mutate:{}", n * 7)));
            let reason = String::from_utf8_lossy(&output.stderr).into_owned();
            assert!(!output.status.success() && !reason.contains("panicked"), "mutation {n}: {reason}");
            refusals.insert(reason);
        }
        assert_eq!(home.daemon(), before, "the same process");
        summary(&format!("60 changes of the state were refused with {} reasons", refusals.len()));
        stream.go_on();
        exchange(&kept[3], &kept[4], 1, 0, 1000);
        let (sent, counts) = stream.stop();
        assert_eq!(counts.received + drops_of(home, &["vale0:a", "vale0:b"]), sent, "{counts:?}");
        vale("port vale0:x off");
    });
}

/// `PREVIOUS`: the daemon's program of an earlier build (`make test-long STEPS=previous`). This build replaces its
/// daemon; the earlier one replaces this build's or, if their states differ, is refused with a sentence. A pipe loses
/// nothing.
#[test]
fn the_daemon_of_an_earlier_build_is_replaced() {
    isolated(|home| {
        let Some(previous) = std::env::var_os("PREVIOUS") else { return summary("skipped: PREVIOUS names no program") };
        let (previous, current) = (PathBuf::from(previous), program("unetmapd"));
        for (first, second) in [(&previous, &current), (&current, &previous)] {
            let mut daemon = Command::new(first);
            daemon.args(["--foreground", "--idle-exit", "0", "--socket"]).arg(home.socket());
            let mut daemon = Guard::spawn(daemon.stdin(Stdio::null()).stderr(Stdio::null()));
            until("the daemon serves", || home.serves());
            let before = home.daemon();
            let stream = Stream::start("netmap:p{1", "netmap:p}1", 1, Duration::ZERO);
            let mut replacement = Command::new(second);
            replacement.arg("--replace").arg("--socket").arg(home.socket()).stdin(Stdio::null());
            let output = replacement.output().expect("the daemon's program");
            let (replaced, reason) = (output.status.success(), String::from_utf8_lossy(&output.stderr).into_owned());
            let is_refused = *first == current && reason.contains("hands over state of version");
            assert!(replaced || is_refused, "{reason}");
            stream.go_on();
            assert_eq!(home.daemon() == before, !replaced, "{reason}");
            let (sent, counts) = stream.stop();
            assert_eq!((counts.received, counts.missing), (sent, 0));
            summary(&format!("replaced: {replaced}; {sent} packets, {counts:?}; {}", reason.trim()));
            kill_process(home.daemon(), Signal::TERM).expect("the daemon");
            until("the daemon ends", || !home.serves());
            daemon.kill();
        }
    });
}

/// `UPGRADES` of them (20): `make test-long STEPS=upgrades` has 1000 in all.
#[test]
fn many_replacements_under_load_lose_nothing() {
    isolated(|home| {
        let upgrades: u32 = std::env::var("UPGRADES").map_or(20, |n| n.parse().expect("a number"));
        let kept = ["vale0:a", "vale0:b"].map(open);
        // Alike, so that their gaps can be compared.
        let streams = [("netmap:p{1", "netmap:p}1", 1), ("vale0:a", "vale0:b", 2)];
        let streams = streams.map(|(from, to, id)| Stream::start(from, to, id, Duration::from_micros(50)));
        assert_pipe_works("netmap:q{1", "netmap:q}1");
        replace(home);
        let (before, mut gaps) = (home.daemon_fds(), Gaps::default());
        for n in 1..upgrades {
            gaps.during(&streams[1], &streams[0], || _ = replace(home));
            if n % 10 == 0 {
                assert_pipe_works("netmap:q{1", "netmap:q}1");
            }
        }
        // One that each replacement left open would be among them as many times.
        let after = home.daemon_fds();
        assert!(after <= before + upgrades as usize / 2, "{before} descriptors before, {after} after");
        assert_no_buffer_is_missing(home);
        let counts = streams.map(Stream::stop);
        let dropped = drops_of(home, &["vale0:a", "vale0:b"]);
        summary(&format!(
            "{upgrades} replacements: a pipe {:?}, a switch {:?}, {dropped} dropped; {}",
            counts[0],
            counts[1],
            gaps.line(Duration::from_millis(50))
        ));
        assert_eq!((counts[0].1.received, counts[0].1.missing), (counts[0].0, 0));
        assert_eq!(counts[1].1.received + dropped, counts[1].0);
        drop(kept);
    });
}

#[test]
fn a_successor_has_all_that_sessions_hold() {
    isolated(|home| {
        let descriptors = |names: [&str; 2]| {
            let ports = names.map(open);
            let count = home.daemon_fds();
            drop(ports);
            until("the ports are closed", || home.snapshot().ports.is_empty());
            count
        };
        let before = descriptors(["netmap:d{1", "netmap:d}1"]);
        // Packets that were sent and not received, and extra buffers.
        let (tx, rx) = (OpenOptions::default().extra_bufs(100).open("netmap:p{1").expect("a pipe"), open("netmap:p}1"));
        send(&tx, 1, 0, 500).expect("room");
        let mut client = Command::new(env!("CARGO_BIN_EXE_traffic_client"));
        let mut client = Guard::spawn(client.args(["send", "netmap:k{1", "1"]).arg(home.folder().join("sent")));
        until("the client has its port", || home.snapshot().sessions.len() == 3);
        let knob = Command::new(program("unetmap")).args(["set", "priv_buf_num", "30000"]).output().expect("unetmap");
        assert!(knob.status.success(), "{knob:?}");
        let (sessions, regions) = (home.snapshot().sessions.len(), home.snapshot().regions);
        replace(home);
        let snapshot = home.snapshot();
        assert_eq!(snapshot.sessions.len(), sessions);
        for (old, new) in regions.iter().zip(&snapshot.regions) {
            assert_eq!((&old.name, old.mem_id, old.buffers), (&new.name, new.mem_id, new.buffers));
        }
        expect(&rx, 1, 0, 500);
        exchange(&tx, &rx, 1, 500, 3000);
        assert_no_buffer_is_missing(home);
        // The end of a process that was there before is noticed.
        client.kill();
        until("its session is closed", || home.snapshot().sessions.len() == sessions - 1);
        drop((tx, rx));
        until("all regions are freed", || home.snapshot().regions.is_empty());
        let region = open("netmap:new{1");
        assert_eq!(home.snapshot().regions[0].buffers.total, 30000 - 2, "the knob that was set");
        drop(region);
        until("the port is closed", || home.snapshot().ports.is_empty());
        assert_eq!(descriptors(["netmap:d{1", "netmap:d}1"]), before, "no descriptor is left over");
    });
}

/// Neither a program of this release nor one that does not check that itself: the daemon reads nothing of it.
#[test]
fn a_user_cannot_replace_the_daemon_of_another() {
    isolated(|home| {
        if !rustix::process::geteuid().is_root() {
            return summary("skipped: only root can run programs of another user");
        }
        let port = open("netmap:p{1");
        // The lock beside the socket, too, which would keep that user's program from asking at all.
        for file in fs::read_dir(home.folder()).expect("our own folder") {
            chown(file.expect("a file").path(), Some(NOBODY), None).expect("our own file");
        }
        fs::set_permissions(home.folder(), Permissions::from_mode(0o755)).expect("our own folder");
        for (fault, says) in [("none", "is of user 0, who can replace it"), ("owner", "the running daemon")] {
            let before = home.daemon();
            let mut command = Command::new(program("unetmapd"));
            command.args(["--foreground", "--replace", "--socket"]).arg(home.socket()).env("UNETMAP_FAULT", fault);
            let output = command.uid(NOBODY).gid(NOBODY).output().expect("the daemon's program");
            let reason = String::from_utf8_lossy(&output.stderr).into_owned();
            assert!(!output.status.success() && reason.contains(says), "{reason}");
            assert_eq!(home.daemon(), before);
        }
        exchange(&port, &open("netmap:p}1"), 1, 0, 100);
    });
}

#[test]
fn a_successor_that_fails_leaves_the_daemon_at_work() {
    isolated(|home| {
        let reason = String::from_utf8_lossy(&try_replace(home, None).stderr).into_owned();
        assert!(reason.contains("there is no daemon to replace at"), "{reason}");
        let stream = Stream::start("netmap:p{1", "netmap:p}1", 1, Duration::ZERO);
        for (fault, says) in
            [("successor", "the fault of a test"), ("version", "reads version"), ("abort", "has ended")]
        {
            let reason = refused(home, Some(fault));
            assert!(reason.contains(says), "{fault}: {reason}");
            stream.go_on();
            assert_pipe_works("netmap:other{1", "netmap:other}1");
        }
        let slow = replace_with(home, None, Some("slow"));
        let reason = String::from_utf8_lossy(&slow.stderr);
        assert!(!slow.status.success() && reason.contains("took too long to take over: try again"), "{reason}");
        stream.go_on();
        replace(home);
        stream.go_on();
        let (sent, counts) = stream.stop();
        assert_eq!((counts.received, counts.missing), (sent, 0));
    });
}
