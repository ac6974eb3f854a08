// SPDX-License-Identifier: BSD-2-Clause
//! A thread for each ring pair of `unetmap-fw`.

use std::io::{Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::process::Command;
use std::time::Duration;

use conformance::net::{take, transmit};
use conformance::traffic::open;
use conformance::{isolated_with_interfaces, program, until};
use serde_json::Value;

use super::{fw, packet, seq, start};
use conformance::forwarder::{Forwarder, Line};

fn start_threads(home: &conformance::Home, mut command: Command, ports: &str, rules: &str) -> Forwarder {
    command.args(["--threads", "3"]);
    start(home, command, ports, rules)
}

/// Receives at a ring until `n` packets of the test have come; returns their numbers.
#[track_caller]
fn receive_at(port: &unetmap::Port, ring: usize, n: usize) -> Vec<u32> {
    let mut all = Vec::new();
    until("the packets pass", || {
        port.rxsync().expect("the daemon runs");
        all.extend(take(port, ring).iter().filter_map(|bytes| seq(bytes)));
        port.rxsync().expect("the daemon runs");
        all.len() >= n
    });
    all
}

#[test]
fn both_directions_of_a_flow_meet_at_any_rings() {
    const N: u32 = 200;
    isolated_with_interfaces(|home| {
        for (near, far, ports) in [
            ("netmap:a{1@conf:rings=3", "netmap:a}2@conf:rings=3", "a}1@conf:rings=3 a{2@conf:rings=3"),
            ("netmap:b{1@conf:rings=3", "netmap:c}1@conf:rings=3", "b}1@conf:rings=3 c{1@conf:rings=3"),
        ] {
            let rules = "pipe 1 config bw 0 delay 1\nadd check-state\nadd pipe 1 udp from any to any 99\n\
                         add allow udp from any to any 53 out limit dst-addr 30\nadd allow udp from any to any 54 out";
            let running = start_threads(home, Command::new(program("unetmap-fw")), ports, rules);
            let (near, far) = (open(near), open(far));
            // Questions by one ring, answers by another: 30 of 200 get a state.
            for ring in 0..3 {
                let question = |i: u32| packet((i as u8, 200 + ring as u8), 53, 0, i);
                transmit(&near, ring, &(1..=N).map(question).collect::<Vec<_>>(), 2048);
                assert_eq!(receive_at(&far, ring, 30), (1..=30).collect::<Vec<_>>(), "{ports}");
                let answer = |i: u32| {
                    let mut bytes = packet((200 + ring as u8, i as u8), 1000, 0, i);
                    bytes[34..36].copy_from_slice(&53u16.to_be_bytes());
                    bytes
                };
                let other = (ring + 1) % 3;
                transmit(&far, other, &(1..=N).map(answer).collect::<Vec<_>>(), 2048);
                assert_eq!(receive_at(&near, other, 30), (1..=30).collect::<Vec<_>>(), "{ports}");
            }
            // All rings at once, by one pipe: each has its packets, in order.
            for port in [99, 54] {
                let numbered = |ring: u32| (ring * N..(ring + 1) * N).map(|i| packet((1, 2), port, 0, i));
                for ring in 0..3 {
                    transmit(&near, ring, &numbered(ring as u32).collect::<Vec<_>>(), 2048);
                }
                for ring in 0..3 {
                    let expected: Vec<_> = (ring * N..(ring + 1) * N).collect();
                    assert_eq!(receive_at(&far, ring as usize, N as usize), expected, "{ports} {port}");
                }
            }
            let shown: Value = serde_json::from_str(&fw("--json show").unwrap()).expect("an object");
            let states = &shown["states"];
            let counts = ["now", "created", "limited"].map(|key| states[key].as_u64().expect("a number"));
            assert_eq!(counts, [90, 90, 3 * u64::from(N - 30)], "{ports}: {states}");
            assert_eq!(shown["out"]["passed"], 90 + 6 * N, "{ports}: {shown}");
            let summary = running.summary();
            let refused = 2 * 3 * (N - 30);
            assert_eq!(
                [&summary["passed"], &summary["dropped"], &summary["threads"]],
                [&Value::from(180 + 6 * N), &Value::from(refused), &Value::from(3)],
                "{ports}: {summary}"
            );
        }
    });
}

#[test]
fn as_many_threads_as_rings_are_needed() {
    isolated_with_interfaces(|_home| {
        let refused = |args: &str| {
            let output = Command::new(program("unetmap-fw")).args(args.split_whitespace()).output().expect("it runs");
            assert_eq!(output.status.code(), Some(1), "{args}");
            String::from_utf8_lossy(&output.stderr).into_owned()
        };
        let error = refused("-p 2 d}1@conf:rings=2 d{2");
        assert!(error.contains("-p 2: netmap:d{2 has 1 tx and 1 rx rings") && error.contains("rings=2"), "{error}");
        assert!(refused("-p 2 e}1@conf:rings=4 e{2@conf:rings=4").contains("has 4 tx and 4 rx rings"));
    });
}

#[test]
fn tcp_passes_between_interfaces_of_several_queues() {
    const LIMIT: Duration = Duration::from_secs(20);
    const BYTES: usize = 200_000;
    const CONNECTIONS: usize = 12;
    isolated_with_interfaces(|home| {
        let Some(Line { left, middle, right, .. }) = &Line::with_queues(3) else { return };
        let rules = "add allow mac-type arp\nadd check-state\n\
                     add allow tcp from any to 10.9.0.2 7000 setup out keep-state";
        let running = start_threads(home, middle.command(program("unetmap-fw")), "left1 right1", rules);
        let listener = right.run(|| TcpListener::bind("10.9.0.2:7000")).expect("the namespace").expect("a listener");
        let file: Vec<u8> = (0..BYTES).map(|i| (i % 251) as u8).collect();
        std::thread::scope(|scope| {
            scope.spawn(|| {
                for _ in 0..CONNECTIONS {
                    let (mut stream, _) = listener.accept().expect("a connection");
                    stream.set_read_timeout(Some(LIMIT)).expect("a limit");
                    scope.spawn(move || {
                        let mut got = Vec::new();
                        stream.read_to_end(&mut got).expect("a file");
                        stream.write_all(&got).expect("sent");
                    });
                }
            });
            for _ in 0..CONNECTIONS {
                scope.spawn(|| {
                    let address = "10.9.0.2:7000".parse().expect("an address");
                    let connected = left.run(move || TcpStream::connect_timeout(&address, LIMIT));
                    let mut stream = connected.expect("the namespace").expect("a connection");
                    stream.set_read_timeout(Some(LIMIT)).expect("a limit");
                    stream.write_all(&file).expect("sent");
                    stream.shutdown(std::net::Shutdown::Write).expect("connected");
                    let mut got = Vec::new();
                    stream.read_to_end(&mut got).expect("a file");
                    assert!(got == file, "{} bytes come back", got.len());
                });
            }
        });
        let shown: Value = serde_json::from_str(&fw("--json show").unwrap()).expect("an object");
        assert_eq!(shown["states"]["created"], CONNECTIONS, "{shown}");
        running.summary();
    });
}
