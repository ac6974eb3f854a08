// SPDX-License-Identifier: BSD-2-Clause
//! Rings shared by several file descriptors, threads or processes.

use std::fs::File;
use std::io::{Read as _, Write as _};
use std::process::{Command, Stdio};
use std::sync::Mutex;
use std::time::Duration;

use conformance::home::{Guard, summary};
use conformance::packet;
use conformance::traffic::{bytes_of, fill_some, open, send};
use conformance::{LIMIT, isolated, until};
use unetmap::{Interest, Port};

const PACKETS: u64 = 20_000;

fn start_client(args: &[&str]) -> Guard {
    Guard::spawn(Command::new(env!("CARGO_BIN_EXE_traffic_client")).args(args).stdout(Stdio::piped()))
}

fn output(guard: &mut Guard) -> String {
    let mut text = String::new();
    guard.0.stdout.take().expect("piped").read_to_string(&mut text).expect("text");
    assert!(guard.wait().success(), "{text}");
    text
}

/// Receives in turns with others until all packets have arrived; returns how many were received here.
fn take_turns(port: &Port, next: &Mutex<u64>) -> u64 {
    let mut mine = 0;
    loop {
        {
            let mut next = next.lock().expect("nobody panicked");
            port.rxsync().expect("the daemon runs");
            let ring = &port.rx_rings()[0];
            let mut n = 0;
            for slot in ring.available().take(64) {
                assert_eq!(packet::check(&bytes_of(&slot)), Ok((1, *next)));
                *next += 1;
                n += 1;
            }
            ring.advance(n);
            port.rxsync().expect("the daemon runs");
            mine += u64::from(n);
            if *next == PACKETS {
                return mine;
            }
        }
        port.poll(Interest::RX, Some(Duration::from_millis(20))).expect("the daemon runs");
    }
}

#[test]
fn two_descriptors_of_one_process_share_a_receive_ring() {
    isolated(|home| {
        let far = open("netmap:s{1");
        let ports = [open("netmap:s}1"), open("netmap:s}1")];
        assert_eq!(home.snapshot().ring("s}1", "rx", 0).sessions, 2);
        let next = Mutex::new(0);
        let took: Vec<u64> = std::thread::scope(|scope| {
            let takers: Vec<_> = ports.iter().map(|port| scope.spawn(|| take_turns(port, &next))).collect();
            send(&far, 1, 0, PACKETS).expect("the daemon runs");
            takers.into_iter().map(|t| t.join().expect("no panic")).collect()
        });
        assert_eq!(took.iter().sum::<u64>(), PACKETS);
        summary(&format!("packets {PACKETS}, each once: {took:?}"));
    });
}

#[test]
fn two_descriptors_of_one_process_share_a_transmit_ring() {
    isolated(|_| {
        let near = open("netmap:s}1");
        let ports = [open("netmap:s{1"), open("netmap:s{1")];
        let next = Mutex::new(0u64);
        std::thread::scope(|scope| {
            for port in &ports {
                scope.spawn(|| {
                    loop {
                        let mut next = next.lock().expect("nobody panicked");
                        if *next == PACKETS {
                            break;
                        }
                        port.txsync().expect("the daemon runs");
                        *next += fill_some(&port.tx_rings()[0], 1, *next, (PACKETS - *next).min(50));
                        port.txsync().expect("the daemon runs");
                    }
                    // A sync is skipped while the other thread syncs the ring.
                    for _ in 0..100 {
                        port.txsync().expect("the daemon runs");
                        std::thread::sleep(Duration::from_millis(1));
                    }
                });
            }
            take_turns(&near, &Mutex::new(0));
        });
    });
}

#[test]
fn three_processes_share_a_ring() {
    isolated(|home| {
        let far = open("netmap:s{1");
        let file = home.folder().join("next");
        File::create(&file).expect("a file");
        let file = file.display().to_string();
        let count = PACKETS.to_string();
        let mut clients: Vec<Guard> = (0..3).map(|_| start_client(&["share", "netmap:s}1", &file, &count])).collect();
        until("all three have the port", || home.snapshot().ring("s}1", "rx", 0).sessions == 3);
        send(&far, 1, 0, PACKETS).expect("the daemon runs");
        let took: Vec<u64> = clients
            .iter_mut()
            .map(|p| output(p).trim().strip_prefix("took ").and_then(|n| n.parse().ok()).expect("a number"))
            .collect();
        assert_eq!(took.iter().sum::<u64>(), PACKETS);
        summary(&format!("packets {PACKETS}, each once: {took:?}"));
    });
}

#[test]
fn a_parent_and_its_forked_child_share_a_ring() {
    isolated(|home| {
        let far = open("netmap:s{1");
        let file = home.folder().join("next");
        File::create(&file).expect("a file").write_all(&0u64.to_ne_bytes()).expect("a file to write");
        let mut forker = Guard::spawn(
            Command::new(env!("CARGO_BIN_EXE_forker"))
                .arg("netmap:s}1")
                .arg(&file)
                .arg(PACKETS.to_string())
                .stdout(Stdio::piped()),
        );
        until("the port is open", || home.snapshot().sessions.len() == 2);
        send(&far, 1, 0, PACKETS).expect("the daemon runs");
        let text = output(&mut forker);
        let took = |who: &str| {
            let number = text.lines().find_map(|line| line.strip_prefix(who));
            number.and_then(|n| n.parse::<u64>().ok()).unwrap_or_else(|| panic!("{text}"))
        };
        let (parent, child) = (took("parent took "), took("child took "));
        assert_eq!(parent + child, PACKETS);
        until("both are gone", || home.snapshot().sessions.len() == 1);
        summary(&format!("packets {PACKETS}, each once: parent {parent}, child {child}"));
    });
}

#[test]
fn all_waiters_on_a_shared_ring_wake_up() {
    isolated(|home| {
        let far = open("netmap:s{1");
        for round in 0..5 {
            let mut sleepers: Vec<Guard> = (0..4).map(|_| start_client(&["wait", "netmap:s}1"])).collect();
            let near = open("netmap:s}1");
            until("all have the port", || home.snapshot().ring("s}1", "rx", 0).sessions == 5);
            std::thread::scope(|scope| {
                let here = scope.spawn(|| near.poll(Interest::RX, Some(LIMIT)).expect("the daemon runs").rx());
                // Most probably all are asleep now; the assertions hold either way.
                std::thread::sleep(Duration::from_millis(50));
                send(&far, 1, round, round + 1).expect("room");
                assert!(here.join().expect("no panic"), "this process slept on");
            });
            for sleeper in &mut sleepers {
                assert!(output(sleeper).contains("awake"));
            }
            near.rx_rings()[0].advance(1);
            near.rxsync().expect("the daemon runs");
        }
    });
}
