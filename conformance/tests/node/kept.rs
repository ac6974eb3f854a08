// SPDX-License-Identifier: BSD-2-Clause
//! `unetmapd --keep-ports`: the daemon is killed while programs have files of the node open. These end, as nobody would
//! answer their requests; all other ports go on, and the node is on again.

use std::fs::File;
use std::time::Duration;

use conformance::c::{Running, compile};
use conformance::kept::{kill, start};
use conformance::node::{STATIC, node, unetmap_node};
use conformance::replace::Stream;
use conformance::traffic::open;
use conformance::{isolated, until};
use rustix::process::{Signal, kill_process};

#[test]
fn the_node_is_on_again_after_a_crash() {
    isolated(|home| {
        let _daemon = start(home, None);
        let Some(node) = node(home) else { return };
        let pipe = compile(home, "pipe", &STATIC);
        let stream = Stream::start("netmap:p{1", "netmap:p}1", 1, Duration::ZERO);
        let peer = open("netmap:a{1");
        let kept = || home.snapshot().daemon.kept_sessions;
        for _ in 0..3 {
            let mut receiver = Running::spawn("a receiver", node.command(&pipe).args(["receive", "a}1", "0"]));
            let idle = File::options().read(true).write(true).open(node.path()).expect("the node");
            until("it has its port", || home.snapshot().sessions.len() == 4);
            until("all others are kept", || kept() == 3);
            kill(home);
            stream.go_on();
            until("it has ended", || !receiver.is_running());
            drop(idle);
            until("its port is closed", || home.snapshot().sessions.len() == 3);
            assert!(unetmap_node(home, &["status", "--json"]).1.contains("\"on\":true,"), "the node is on");
        }
        // Its programs work as before.
        let receiver = Running::spawn("a receiver", node.command(&pipe).args(["receive", "a}1", "0"]));
        until("it has its port", || home.snapshot().sessions.len() == 4);
        kill_process(receiver.pid(), Signal::TERM).expect("our process");
        assert_eq!(receiver.output().trim(), "0");
        let (sent, counts) = stream.stop_after_crashes();
        assert_eq!((counts.received, counts.missing, counts.repeated), (sent, 0, 0));
        drop(peer);
        assert!(unetmap_node(home, &["off"]).0);
        until("all regions are freed", || home.snapshot().regions.is_empty());
    });
}
