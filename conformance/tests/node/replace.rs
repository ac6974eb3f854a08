// SPDX-License-Identifier: BSD-2-Clause
//! Replacing the daemon by another process while programs have files of the node open: they notice nothing.

use std::path::Path;
use std::process::Command;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::thread;
use std::time::{Duration, Instant};

use conformance::c::{Running, compile};
use conformance::home::summary;
use conformance::node::{STATIC, node, unetmap_node};
use conformance::replace::{refused, replace, try_replace};
use conformance::traffic::open;
use conformance::{Home, LIMIT, Node, isolated, until};
use rustix::process::{Signal, kill_process};
use unetmap::{Interest, Port, SlotRef};

/// A program at the node, which runs until it is stopped.
fn start(node: &Node, pipe: &Path, what: &str, name: &str) -> Running {
    Running::spawn(&format!("{what} {name}"), node.command(pipe).args([what, name, "0"]))
}

/// Stops a program; returns how many packets it sent or received.
#[track_caller]
fn stop(program: Running) -> u64 {
    kill_process(program.pid(), Signal::TERM).expect("our process");
    program.output().trim().parse().expect("a number")
}

/// Writes a numbered packet, as the programs expect it.
fn write(slot: &SlotRef<'_>, number: u64) {
    let mut packet = [0; 60];
    packet[..8].copy_from_slice(&number.to_ne_bytes());
    slot.frame().write(0, &packet);
    slot.set_len_flags(60, 0);
}

/// Receives numbered packets until none comes within a second after `stops`; each has to be the next.
fn receive(port: &Port, received: &AtomicU64, stops: &AtomicBool) {
    let ring = &port.rx_rings()[0];
    loop {
        let stopped = stops.load(Relaxed);
        let ready = port.poll(Interest::RX, Some(Duration::from_secs(1))).expect("the daemon runs");
        if !ready.rx() && stopped {
            return;
        }
        let (first, mut n) = (received.load(Relaxed), 0);
        for slot in ring.available() {
            let mut word = [0; 8];
            slot.frame().read(0, &mut word);
            assert_eq!(u64::from_ne_bytes(word), first + u64::from(n), "the next packet");
            n += 1;
        }
        ring.advance(n);
        received.fetch_add(n.into(), Relaxed);
    }
}

/// Sends numbered packets until `stops`.
fn send(port: &Port, sent: &AtomicU64, stops: &AtomicBool) {
    let ring = &port.tx_rings()[0];
    while !stops.load(Relaxed) {
        assert!(port.poll(Interest::TX, Some(LIMIT)).expect("the daemon runs").tx(), "no room within {LIMIT:?}");
        let (first, mut n) = (sent.load(Relaxed), 0);
        for slot in ring.available() {
            write(&slot, first + u64::from(n));
            n += 1;
        }
        ring.advance(n);
        sent.fetch_add(n.into(), Relaxed);
        port.txsync().expect("the daemon runs");
    }
    let end = Instant::now() + LIMIT;
    while ring.pending() {
        assert!(Instant::now() < end, "packets are not received");
        port.txsync().expect("the daemon runs");
        thread::sleep(Duration::from_millis(1));
    }
}

/// Runs `work` while programs at the node exchange packets with the library, by poll and by ioctl, and with each other.
/// Each packet has to arrive, in order. `work` is given a function that waits for more packets.
#[track_caller]
fn during_streams(home: &Home, node: &Node, work: impl FnOnce(&dyn Fn())) {
    let pipe = compile(home, "pipe", &STATIC);
    let pairs = [("receive", "send", "pair{1"), ("sync-receive", "sync-send", "pair{2")].map(|(to, from, name)| {
        let receiver = start(node, &pipe, to, &name.replace('{', "}"));
        (receiver, start(node, &pipe, from, name))
    });
    let senders = [start(node, &pipe, "send", "a{1"), start(node, &pipe, "sync-send", "a{2")];
    let receivers = [start(node, &pipe, "receive", "b{1"), start(node, &pipe, "sync-receive", "b{2")];
    until("all programs have their ports", || home.snapshot().sessions.len() == 8);
    let counters: [AtomicU64; 4] = Default::default();
    let (no_more_sent, no_more_expected) = (AtomicBool::new(false), AtomicBool::new(false));
    let ports = ["netmap:a}1", "netmap:a}2", "netmap:b}1", "netmap:b}2"].map(open);
    let go_on = || {
        let before = counters.each_ref().map(|counter| counter.load(Relaxed));
        for (counter, before) in counters.iter().zip(before) {
            until("more packets", || counter.load(Relaxed) > before + 2000);
        }
    };
    thread::scope(|scope| {
        let (of_senders, of_receivers) = (counters.iter().zip(&ports).take(2), counters.iter().zip(&ports).skip(2));
        of_senders.for_each(|(counter, port)| _ = scope.spawn(|| receive(port, counter, &no_more_expected)));
        let own = of_receivers.map(|(counter, port)| scope.spawn(|| send(port, counter, &no_more_sent)));
        let own: Vec<_> = own.collect();
        go_on();
        work(&go_on);
        go_on();
        let sent = senders.map(stop);
        no_more_expected.store(true, Relaxed);
        no_more_sent.store(true, Relaxed);
        own.into_iter().for_each(|sender| sender.join().expect("a sender that ends"));
        let received = receivers.map(stop);
        let between = pairs.map(|(receiver, sender)| [stop(sender), stop(receiver)]);
        until("all packets arrive", || sent == [0, 1].map(|i| counters[i].load(Relaxed)));
        assert_eq!(received, [2, 3].map(|i| counters[i].load(Relaxed)));
        assert!(between.iter().all(|[sent, received]| sent == received && *sent > 0), "{between:?}");
        summary(&format!(
            "packets without loss: from programs at the node by poll {} and by ioctl {}, to such programs {} and {}, \
             between them {} and {}",
            sent[0], sent[1], received[0], received[1], between[0][0], between[1][0]
        ));
    });
    until("all ports are closed", || unetmap_node(home, &["status", "--json"]).1.contains("\"ports\":0,"));
}

#[test]
fn the_node_goes_on_while_the_daemon_is_replaced() {
    isolated(|home| {
        let Some(node) = node(home) else { return };
        let idle = std::fs::File::options().read(true).write(true).open(node.path()).expect("the node");
        during_streams(home, &node, |go_on| {
            for _ in 0..5 {
                replace(home);
                go_on();
                assert!(unetmap_node(home, &["status", "--json"]).1.contains("\"files\":9,\"ports\":8,"));
            }
        });
        drop(idle);
        until("all files are closed", || unetmap_node(home, &["status", "--json"]).1.contains("\"files\":0,"));
        assert!(unetmap_node(home, &["off"]).0);
        until("all regions are freed", || home.snapshot().regions.is_empty());
    });
}

#[test]
fn the_node_goes_on_when_a_successor_fails() {
    isolated(|home| {
        let Some(node) = node(home) else { return };
        let before = home.daemon();
        during_streams(home, &node, |go_on| {
            for fault in ["successor", "abort", "version"] {
                refused(home, Some(fault));
                go_on();
            }
            for n in 0..40 {
                let output = try_replace(home, Some(&format!("mutate:{}", n * 11)));
                let reason = String::from_utf8_lossy(&output.stderr);
                assert!(!output.status.success() && !reason.contains("panicked"), "mutation {n}: {reason}");
            }
        });
        assert_eq!(home.daemon(), before, "the same process");
    });
}

/// A program that sleeps in poll is woken by the successor.
#[test]
fn programs_asleep_at_the_node_are_woken_by_a_successor() {
    isolated(|home| {
        let Some(node) = node(home) else { return };
        let pipe = compile(home, "pipe", &STATIC);
        let asleep = Running::spawn("receive s{1", node.command(&pipe).args(["receive", "s{1", "10"]));
        until("the program has its port", || home.snapshot().sessions.len() == 1);
        let port = open("netmap:s}1");
        replace(home);
        replace(home);
        for n in 0..10u64 {
            let ring = &port.tx_rings()[0];
            write(&ring.available().next().expect("room"), n);
            ring.advance(1);
            port.txsync().expect("the daemon runs");
            thread::sleep(Duration::from_millis(20));
        }
        assert_eq!(asleep.output(), "10\n");
    });
}

/// Programs that open, bind and close files all the time: no request fails, whichever daemon has read it.
#[test]
fn requests_at_the_node_during_replacements_are_answered() {
    isolated(|home| {
        let Some(node) = node(home) else { return };
        let (pipe, done, rounds) = (compile(home, "pipe", &STATIC), AtomicBool::new(false), AtomicU64::new(0));
        let exchange = |id: &str| {
            let run = |what: &str, sign: &str| {
                let mut command: Command = node.command(&pipe);
                Running::spawn("an exchange", command.args([what, &format!("x{sign}{id}"), "200"]))
            };
            while !done.load(Relaxed) {
                let (receiver, sender) = (run("receive", "}"), run("send", "{"));
                assert_eq!([sender.output(), receiver.output()], ["200\n", "200\n"]);
                rounds.fetch_add(1, Relaxed);
            }
        };
        thread::scope(|scope| {
            let threads = ["1", "2"].map(|id| scope.spawn(move || exchange(id)));
            for _ in 0..15 {
                replace(home);
                thread::sleep(Duration::from_millis(20));
            }
            done.store(true, Relaxed);
            threads.into_iter().for_each(|thread| thread.join().expect("exchanges"));
        });
        summary(&format!("15 replacements during {} exchanges of two programs each", rounds.into_inner()));
        until("all regions are freed", || home.snapshot().regions.is_empty());
    });
}
