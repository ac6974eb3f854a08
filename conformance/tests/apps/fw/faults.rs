// SPDX-License-Identifier: BSD-2-Clause
//! `unetmap-fw` with files of rules that are wrong, killed under load, and with a table of states that is full.

use std::fmt::Write as _;
use std::fs;
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use conformance::net::{take, transmit};
use conformance::traffic::open;
use conformance::{isolated_with_interfaces, program, until};
use rustix::process::Signal;
use serde_json::Value;

use super::{fw, packet, plain, receive, seq, start};

#[test]
fn a_file_of_a_million_lines_that_is_wrong_anywhere_changes_nothing() {
    const LINES: usize = 1_000_000;
    isolated_with_interfaces(|home| {
        let rules = "add 10 count ip from any to any\nadd 20 allow udp from any to any 53";
        let running = plain(home, "a}1 a{2", rules);
        let (near, far) = (open("netmap:a{1"), open("netmap:a}2"));
        let (mut text, mut begins) = (String::new(), Vec::new());
        for i in 1..=LINES {
            begins.push(text.len());
            // The highest number comes first: the rules without a number follow it.
            let number = ["", "60000 ", "100 "].get(i).unwrap_or(&"");
            let _ = writeln!(text, "add {number}deny ip from 10.{}.{}.{} to any", i >> 16, i >> 8 & 255, i & 255);
        }
        let path = home.folder().join("million");
        let mut passed = 0;
        for wrong in [1, LINES / 2, LINES] {
            let (before, after) = text.split_at(begins[wrong - 1]);
            let after = after.split_once('\n').expect("a line").1;
            fs::write(&path, [before, "add deny ip from 10.0.0.256 to any\n", after].concat()).expect("a file");
            let error = fw(&format!("load {}", path.display())).unwrap_err();
            assert!(error.contains(&format!("line {wrong}, column 18: `10.0.0.256`")), "{error}");
            transmit(&near, 0, &[packet((1, 2), 53, 0, passed)], 2048);
            assert_eq!(seq(&receive(&far, 1)[0]), Some(passed));
            passed += 1;
            let show = fw("show").unwrap();
            let counts = format!("00010 {passed} {0} count ip from any to any\n00020 {passed} {0} ", passed * 60);
            assert!(show.starts_with(&counts) && show.lines().count() == 3, "{show}");
        }
        running.summary();
    });
}

#[test]
fn a_firewall_killed_under_load_leaves_its_ports_and_no_packet() {
    // Packets are in each part of it when it ends: rings, states, pipes, translated connections.
    let rules = "pipe 1 config delay 60000\nnat 1 config ip 10.0.0.99\n\
                 add count udp from any to any 53 record-state\nadd pipe 1 udp from any to any 54\n\
                 add nat 1 udp from any to any 55\nadd allow ip from any to any";
    isolated_with_interfaces(|home| {
        // Buffers are exchanged; packets are copied; ports of a switch.
        for (near, far, ports) in [
            ("netmap:a{1", "netmap:a}2", "a}1 a{2"),
            ("netmap:b{1", "netmap:c}1", "b}1 c{1"),
            ("vale0:t", "vale1:t", "vale0:f vale1:f"),
        ] {
            let (near_port, far_port) = (open(near), open(far));
            for _ in 0..3 {
                let mut running = plain(home, ports, rules);
                let done = AtomicBool::new(false);
                std::thread::scope(|scope| {
                    scope.spawn(|| {
                        let (ring, mut i) = (&near_port.tx_rings()[0], 0);
                        while !done.load(Relaxed) {
                            for slot in ring.available().take(64) {
                                slot.frame().write(0, &packet((1, 2), 53 + i as u16 % 4, 0, i));
                                slot.set_len_flags(60, 0);
                                i += 1;
                            }
                            ring.advance(ring.space().min(64));
                            near_port.txsync().expect("the daemon runs");
                        }
                    });
                    let mut passed = 0;
                    until("packets pass", || {
                        far_port.rxsync().expect("the daemon runs");
                        passed += take(&far_port, 0).len();
                        passed > 2000
                    });
                    running.guard().signal(Signal::KILL);
                    running.guard().wait();
                    done.store(true, Relaxed);
                });
                // Its two ports are closed, ours are open.
                home.until_left(2);
            }
            // The same ports, with all their slots: more than a ring of packets passes, in order, each once.
            let running = plain(home, ports, "add allow ip from any to any");
            let mark = |i: u32| packet((3, 4), 80, 0, i);
            until("what was sent before has left", || {
                near_port.txsync().expect("the daemon runs");
                far_port.rxsync().expect("the daemon runs");
                take(&far_port, 0);
                !near_port.tx_rings()[0].pending()
            });
            let mut got: Vec<Vec<u8>> = Vec::new();
            for batch in 0..30 {
                transmit(&near_port, 0, &(batch * 100..batch * 100 + 100).map(mark).collect::<Vec<_>>(), 2048);
                let want = (batch as usize + 1) * 100;
                until("the packets pass", || {
                    far_port.rxsync().expect("the daemon runs");
                    got.extend(take(&far_port, 0).into_iter().filter(|bytes| bytes[29] == 3));
                    got.len() >= want
                });
            }
            assert_eq!(got, (0..3000).map(mark).collect::<Vec<_>>(), "{ports}");
            running.summary();
            drop((near_port, far_port));
            home.until_left(0);
        }
    });
}

#[test]
fn a_full_table_of_states_keeps_connections_that_are_up() {
    const SYN: u8 = 2;
    const ACK: u8 = 16;
    isolated_with_interfaces(|home| {
        let mut command = Command::new(program("unetmap-fw"));
        command.args(["--states", "64"]);
        let rules = "add check-state\nadd allow tcp from any to any setup out keep-state";
        let running = start(home, command, "a}1 b{1", rules);
        let (near, far) = (open("netmap:a{1"), open("netmap:b}1"));
        let out = |src: u8, port: u16, flags: u8, n: u32| packet((src, 2), port, flags, n);
        let back = |dst: u8, port: u16, flags: u8, n: u32| {
            let mut bytes = packet((2, dst), 1000, flags, n);
            bytes[34..36].copy_from_slice(&port.to_be_bytes());
            bytes
        };
        let send = |bytes: Vec<u8>, from: &unetmap::Port, to: &unetmap::Port| {
            let n = seq(&bytes);
            transmit(from, 0, &[bytes], 2048);
            assert_eq!(seq(&receive(to, 1)[0]), n);
        };
        let counts = || {
            let shown: Value = serde_json::from_str(&fw("--json show").unwrap()).expect("an object");
            let states = &shown["states"];
            ["now", "created", "dropped_half_open", "full"].map(|key| states[key].as_u64().expect("a number"))
        };
        // 16 connections are up, in a table of 64.
        for src in 1..=16 {
            send(out(src, 80, SYN, 1), &near, &far);
            send(back(src, 80, SYN | ACK, 2), &far, &near);
            send(out(src, 80, ACK, 3), &near, &far);
        }
        // 300 others only begin: each is admitted, and the oldest of them makes room.
        for n in 0..300 {
            send(out(17, 2000 + n as u16, SYN, n), &near, &far);
        }
        assert_eq!(counts(), [64, 316, 316 - 64, 0]);
        for src in 1..=16 {
            send(back(src, 80, ACK, 4), &far, &near);
            send(out(src, 80, ACK, 5), &near, &far);
        }
        // The newest 48 are still known, the one before is not.
        transmit(&far, 0, &[back(17, 2000 + 251, SYN | ACK, 6), back(17, 2000 + 252, SYN | ACK, 7)], 2048);
        assert_eq!(seq(&receive(&near, 1)[0]), Some(7));
        // All are answered: the next is denied, and counted.
        for n in 253..300 {
            send(back(17, 2000 + n as u16, SYN | ACK, n), &far, &near);
        }
        transmit(&near, 0, &[out(18, 80, SYN, 8), out(1, 80, ACK, 9)], 2048);
        assert_eq!(seq(&receive(&far, 1)[0]), Some(9));
        assert_eq!(counts(), [64, 316, 316 - 64, 1]);
        conformance::home::summary(
            "a full table of 64 states: 16 connections that are up stay under 300 that only begin, then one is denied",
        );
        running.summary();
    });
}

#[test]
fn a_signal_reads_the_rules_again_or_ends_the_program_in_order() {
    isolated_with_interfaces(|home| {
        let mut running = plain(home, "a}1 a{2", "add 10 allow udp from any to any 53 out keep-state");
        let (near, far) = (open("netmap:a{1"), open("netmap:a}2"));
        let back = |n: u32| {
            let mut bytes = packet((2, 1), 1000, 0, n);
            bytes[34..36].copy_from_slice(&53u16.to_be_bytes());
            bytes
        };
        let pass = |bytes: Vec<u8>, from: &unetmap::Port, to: &unetmap::Port| {
            let n = seq(&bytes);
            transmit(from, 0, &[bytes], 2048);
            assert_eq!(seq(&receive(to, 1)[0]), n);
        };
        pass(packet((1, 2), 53, 0, 1), &near, &far);
        let path = home.folder().join("rules");
        // The state's rule is in both files.
        fs::write(&path, "add 10 allow udp from any to any 53 out keep-state\nadd 20 deny ip from any to any").unwrap();
        running.guard().signal(Signal::HUP);
        until("the file was read", || fw("list").unwrap().lines().count() == 3);
        pass(back(2), &far, &near);
        let before = fw("show").unwrap();
        assert!(before.starts_with("00010 2 120 allow"), "{before}");
        // An error, bytes that are no text, no file: the rules stay.
        for contents in [Some(&b"add 5 deny ip from any to any\nadd x"[..]), Some(b"\0"), None] {
            match contents {
                Some(contents) => fs::write(&path, contents).unwrap(),
                None => fs::remove_file(&path).unwrap(),
            }
            running.guard().signal(Signal::HUP);
            std::thread::sleep(std::time::Duration::from_millis(300));
            assert_eq!(fw("show").unwrap(), before);
        }
        pass(back(3), &far, &near);
        running.summary();
        home.until_left(2);

        // Without a file a hang-up ends it as the other signals do: with a summary, and its ports are closed.
        let status = fs::read_to_string("/proc/self/status").unwrap();
        let ignored = status.lines().find_map(|line| line.strip_prefix("SigIgn:")).expect("a mask");
        let ignores_hangup = u64::from_str_radix(ignored.trim(), 16).unwrap() & 1 != 0;
        for signal in [Signal::HUP, Signal::TERM, Signal::INT] {
            if signal == Signal::HUP && ignores_hangup {
                eprintln!("skipped: this test was started with hang-ups ignored (nohup), and so is the firewall");
                continue;
            }
            let mut command = Command::new(program("unetmap-fw"));
            let mut running =
                conformance::forwarder::Forwarder::start(command.args(["a}1", "a{2", "-w", "0", "--default-accept"]));
            pass(packet((1, 2), 53, 0, 9), &near, &far);
            running.guard().signal(signal);
            assert!(running.guard().wait().success(), "{signal:?}");
            home.until_left(2);
            assert!(fw("list").unwrap_err().contains("no firewall listens"));
        }
    });
}

#[test]
fn two_firewalls_on_the_same_ports_are_refused() {
    isolated_with_interfaces(|home| {
        for (ports, threads) in [("a}1 a{2", "1"), ("b}1@conf:rings=2 c{1@conf:rings=2", "2")] {
            let mut command = Command::new(program("unetmap-fw"));
            command.args(["-p", threads]);
            let running = start(home, command, ports, "add allow ip from any to any");
            let control = home.folder().join("other");
            let mut second = Command::new(program("unetmap-fw"));
            second.args(ports.split(' ')).args(["-w", "0", "-p", threads, "--control"]).arg(&control);
            let output = second.output().expect("it runs");
            let error = String::from_utf8_lossy(&output.stderr).into_owned();
            assert!(output.status.code() == Some(1) && error.contains("ring 0 is in use"), "{error}");
            assert!(error.contains("a firewall has its ports for itself"), "{error}");
            running.summary();
        }
    });
}
