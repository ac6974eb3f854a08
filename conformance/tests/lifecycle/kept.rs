// SPDX-License-Identifier: BSD-2-Clause
//! `unetmapd --keep-ports`: the daemon is killed, and programs go on with their ports.

use std::fs;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::thread::{JoinHandle, sleep, spawn};
use std::time::Duration;

use conformance::home::{is_alive, summary};
use conformance::kept::{kill, start, successor, wait_until_kept};
use conformance::replace::{Gaps, Stream, replace};
use conformance::traffic::{assert_pipe_works, exchange, expect, open, receive, send};
use conformance::{Home, isolated, until};
use rustix::process::{Pid, Signal, kill_process};

/// `CRASHES` of them (5): a daemon that crashes more often in a short time is not started again.
#[test]
fn pipes_and_switch_ports_go_on_after_a_crash() {
    isolated(|home| {
        let mut daemon = start(home, None);
        let crashes: u32 = std::env::var("CRASHES").map_or(5, |n| n.parse().expect("a number"));
        let (waiting, unread) = (["netmap:w{1", "netmap:w}1"].map(open), ["vale1:a", "vale1:b"].map(open));
        send(&waiting[0], 7, 0, 500).expect("room");
        let streams = [("netmap:p{1", "netmap:p}1", 1), ("vale0:a", "vale0:b", 2)];
        let streams = streams.map(|(from, to, id)| Stream::start(from, to, id, Duration::from_micros(100)));
        let (before, mut gaps) = (home.snapshot(), Gaps::default());
        wait_until_kept(home);
        let opener = Opener::start();
        for n in 0..crashes {
            if n > 0 && crashes > 5 {
                sleep(Duration::from_millis(2100));
            }
            gaps.during(&streams[1], &streams[0], || _ = kill(home));
        }
        let opens = opener.stop();
        assert!(daemon.0.try_wait().is_ok_and(|status| status.is_some()), "the first was killed");
        until("what was opened meanwhile is closed", || home.snapshot().sessions.len() == before.sessions.len());
        let after = home.snapshot();
        assert_eq!((after.sessions.len(), after.regions.len()), (before.sessions.len(), before.regions.len()));
        // Packets that were sent before, and both directions of a port that was idle.
        expect(&waiting[1], 7, 0, 500);
        exchange(&waiting[1], &waiting[0], 8, 0, 3000);
        exchange(&unread[0], &unread[1], 9, 0, 3000);
        exchange(&unread[1], &unread[0], 9, 0, 3000);
        assert_pipe_works("netmap:new{1", "netmap:new}1");
        let [pipe, switch] = streams.map(Stream::stop_after_crashes);
        let gaps = gaps.line(Duration::from_millis(200));
        summary(&format!("{crashes} crashes: a pipe {pipe:?}, a switch {switch:?}; {gaps}; {opens} opens"));
        assert_eq!((pipe.1.received, pipe.1.missing, pipe.1.repeated), (pipe.0, 0, 0));
        assert!(switch.1.received + switch.1.missing <= switch.0, "{switch:?}");
        drop((waiting, unread));
        until("all regions are freed", || home.snapshot().regions.is_empty());
    });
}

/// Opens and closes ports all the time: none is refused.
struct Opener {
    stops: Arc<AtomicBool>,
    thread: JoinHandle<u32>,
}

impl Opener {
    fn start() -> Opener {
        let stops = Arc::new(AtomicBool::new(false));
        let until = stops.clone();
        let all = move || {
            let mut opens = 0;
            while !until.load(Relaxed) {
                drop(open(["netmap:beside{1", "vale2:beside"][opens as usize % 2]));
                opens += 1;
                sleep(Duration::from_millis(1));
            }
            opens
        };
        Opener { stops, thread: spawn(all) }
    }

    /// Returns how many were opened.
    #[track_caller]
    fn stop(self) -> u32 {
        self.stops.store(true, Relaxed);
        self.thread.join().expect("no open was refused")
    }
}

/// A daemon that was started after a crash is killed while it takes over: another one goes on with the same.
#[test]
fn a_daemon_that_is_killed_while_it_takes_over_is_started_once_more() {
    isolated(|home| {
        let _daemon = start(home, None);
        let stream = Stream::start("netmap:p{1", "netmap:p}1", 1, Duration::from_micros(200));
        let ports = ["vale0:a", "vale0:b"].map(open);
        for n in 0..2 {
            wait_until_kept(home);
            let before = home.daemon();
            kill_process(before, Signal::KILL).expect("our own daemon");
            let mut next = None;
            until("the next one is started", || {
                next = restored(home, before);
                next.is_some()
            });
            kill_process(next.expect("a process"), Signal::KILL).expect("our own daemon");
            let last = successor(home, before);
            assert_ne!(Some(last), next);
            stream.go_on();
            exchange(&ports[0], &ports[1], 2, 1000 * n, 1000 * (n + 1));
        }
        let (sent, counts) = stream.stop_after_crashes();
        assert_eq!((counts.received, counts.missing, counts.repeated), (sent, 0, 0));
    });
}

/// The daemon of this test that goes on after a crash of `before`, from its start on.
fn restored(home: &Home, before: Pid) -> Option<Pid> {
    let socket = home.socket().display().to_string();
    let all = fs::read_dir("/proc").expect("a folder").flatten();
    all.filter_map(|entry| Pid::from_raw(entry.file_name().to_str()?.parse().ok()?)).find(|pid| {
        let line = fs::read_to_string(format!("/proc/{}/cmdline", pid.as_raw_nonzero())).unwrap_or_default();
        *pid != before && line.contains(&socket) && line.contains("--restore") && is_alive(*pid)
    })
}

/// The daemon that is started after a crash makes what belongs to an end when that end is first opened.
#[test]
fn ends_are_first_opened_after_a_crash() {
    isolated(|home| {
        let _daemon = start(home, None);
        let first = open("netmap:p{1");
        wait_until_kept(home);
        kill(home);
        let other = open("netmap:p}1");
        exchange(&first, &other, 1, 0, 3000);
        exchange(&other, &first, 2, 0, 3000);
    });
}

/// A daemon is replaced, and its successor crashes; it exits as it should, and nothing is started again.
#[test]
fn a_successor_keeps_ports_only_if_it_is_told_to() {
    isolated(|home| {
        let _daemon = start(home, None);
        let ports = ["netmap:p{1", "netmap:p}1"].map(open);
        wait_until_kept(home);
        let after = replace(home);
        exchange(&ports[0], &ports[1], 1, 0, 3000);
        kill_process(after, Signal::KILL).expect("our own daemon");
        until("it exits", || !is_alive(after));
        until("the ports end", || ports.iter().all(|port| port.rxsync().is_err()));
        assert!(!home.serves(), "nothing is started again");
    });
}

/// Threads of the daemon copy packets to an end that another region has, and those of switches to monitors.
#[test]
fn monitors_and_copied_ends_go_on_after_a_crash() {
    isolated(|home| {
        let _daemon = start(home, None);
        let other = open("netmap:other{1");
        let copied = format!("netmap:c}}1@{}", other.mem_id());
        // A switch may deliver packets twice.
        let streams = [("netmap:c{1", &*copied, 1), ("vale0:a", "vale0:b", 2)];
        let streams = streams.map(|(from, to, id)| Stream::start(from, to, id, Duration::from_millis(1)));
        let ports = ["netmap:p{1", "netmap:p}1"].map(open);
        let monitors = ["netmap:p{1/t", "vale0:a/t"].map(open);
        for n in 0..5 {
            wait_until_kept(home);
            kill(home);
            streams.iter().for_each(Stream::go_on);
            exchange(&ports[0], &ports[1], 3, n * 100, (n + 1) * 100);
            expect(&monitors[0], 3, n * 100, (n + 1) * 100);
            receive(&monitors[1], 2000).expect("what the switch forwards");
        }
        let [(sent, counts), of_switch] = streams.map(Stream::stop_after_crashes);
        summary(&format!("5 crashes: {sent} packets to a copied end, {counts:?}; a switch {of_switch:?}"));
        assert_eq!((counts.received, counts.missing), (sent, 0));
        drop((other, ports, monitors));
        until("all regions are freed", || home.snapshot().regions.is_empty());
    });
}
