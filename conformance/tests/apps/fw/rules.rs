// SPDX-License-Identifier: BSD-2-Clause
//! Rules between ports of each kind, and their changes under traffic.

use std::fmt::Write as _;
use std::fs;
use std::io::{Read as _, Write as _};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Duration;

use conformance::net::transmit;
use conformance::traffic::open;
use conformance::{isolated_with_interfaces, program};
use serde_json::Value;
use unetmap::Port;
use unetmap_capture::testing::read_file;

use super::{fw, packet, plain, receive, seq, start};
use conformance::forwarder::Line;

#[test]
fn rules_decide_between_pipes_and_switch_ports() {
    isolated_with_interfaces(|home| {
        // One region: buffers are exchanged. Two regions, and ports of switches: packets are copied.
        for (near, far, ports, zero_copy) in [
            ("netmap:a{1", "netmap:a}2", "a}1 a{2", true),
            ("netmap:b{1", "netmap:c}1", "b}1 c{1", false),
            ("vale0:t", "vale1:t", "vale0:f vale1:f", false),
        ] {
            let rules = "add 10 count udp from any to any\nadd 20 deny udp from any to any 22\n\
                         add 30 allow udp from 10.0.0.0/24 to any in\nadd 40 allow udp from any to any 53 out";
            let running = plain(home, ports, rules);
            let (near, far) = (open(near), open(far));
            let sent: Vec<_> = (0..300).map(|i| packet((1, 2), [22, 53, 80][i as usize % 3], 0, i)).collect();
            transmit(&near, 0, &sent, 2048);
            let got: Vec<_> = receive(&far, 100).iter().filter_map(|bytes| seq(bytes)).collect();
            assert_eq!(got, (0..300).filter(|i| i % 3 == 1).collect::<Vec<_>>(), "{ports}");
            let back: Vec<_> = (0..50).map(|i| packet((2, 1), 80, 0, i)).collect();
            transmit(&far, 0, &back, 2048);
            assert_eq!(receive(&near, 50), back, "{ports}");
            let shown: Value = serde_json::from_str(&fw("--json show").unwrap()).expect("an object");
            let packets: Vec<_> = (0..5).map(|i| shown["rules"][i]["packets"].as_u64().unwrap()).collect();
            assert_eq!(packets, [350, 100, 50, 100, 100], "{ports}: {shown}");
            let summary = running.summary();
            assert_eq!(
                [&summary["passed"], &summary["dropped"], &summary["zero_copy"]],
                [&Value::from(150), &Value::from(200), &Value::from(zero_copy)],
                "{ports}: {summary}"
            );
        }
    });
}

#[test]
fn rules_and_tables_change_under_traffic_without_loss() {
    const PACKETS: u32 = 60_000;
    isolated_with_interfaces(|home| {
        let rules = "add 5 count ip from any to any\nadd 100 allow udp from any to any 53\n\
                     table one create\ntable two create";
        let running = plain(home, "a}1 a{2", rules);
        let (near, far) = (open("netmap:a{1"), open("netmap:a}2"));
        let list = home.folder().join("list");
        let addresses: String =
            (0..20_000).map(|i| format!("table two add 172.16.{}.{}\n", i / 256, i % 256)).collect();
        fs::write(&list, format!("{rules}\n{addresses}add 20 deny ip from table(two) to any")).expect("a file");
        let done = AtomicBool::new(false);
        let changes = std::thread::scope(|scope| {
            let changer = scope.spawn(|| {
                let mut changes = 0;
                while !done.load(Relaxed) {
                    fw("add 50 deny udp from 10.9.0.0/16 to any").expect("a rule");
                    fw("table one add 10.0.0.7 192.0.2.0/24").expect("entries");
                    fw("table one swap two").expect("tables");
                    fw("delete 50").expect("a rule");
                    changes += 4;
                }
                fw(&format!("load {}", list.display())).expect("a file");
                changes + 1
            });
            scope.spawn(|| {
                for begin in (0..PACKETS).step_by(500) {
                    let batch: Vec<_> = (begin..begin + 500).map(|i| packet((1, 2), 53, 0, i)).collect();
                    transmit(&near, 0, &batch, 2048);
                }
            });
            let got: Vec<_> = receive(&far, PACKETS as usize).iter().filter_map(|bytes| seq(bytes)).collect();
            assert_eq!(got, (0..PACKETS).collect::<Vec<_>>());
            // The rule that stayed has counted each packet.
            let show = fw("show 5").unwrap();
            done.store(true, Relaxed);
            assert!(show.starts_with(&format!("00005 {PACKETS} ")), "{show}");
            changer.join().expect("no panic")
        });
        assert!(fw("table two info").unwrap().contains("items: 20000"));
        // From the list.
        let mut listed = packet((1, 2), 53, 0, 1);
        listed[26..30].copy_from_slice(&[172, 16, 1, 1]);
        transmit(&near, 0, &[listed, packet((1, 2), 53, 0, 2)], 2048);
        assert_eq!(receive(&far, 1).iter().filter_map(|bytes| seq(bytes)).collect::<Vec<_>>(), [2]);
        conformance::home::summary(&format!(
            "{changes} changes of rules and tables under {PACKETS} packets, none lost"
        ));
        drop(running);
    });
}

#[test]
fn a_list_of_a_million_addresses_is_loaded_and_swapped_under_traffic() {
    const ADDRESSES: u32 = 1_000_000;
    isolated_with_interfaces(|home| {
        let running = plain(
            home,
            "a}1 a{2",
            "table bad create\nadd 10 deny ip from table(bad) to any\nadd 20 allow ip from any to any",
        );
        let (near, far) = (open("netmap:a{1"), open("netmap:a}2"));
        let path = home.folder().join("list");
        let mut text = String::from("table new create\n");
        for base in (0..ADDRESSES).step_by(20) {
            text += "table new add";
            for i in base..base + 20 {
                let _ = write!(text, " {}", Ipv4Addr::from(0x0b00_0000 + i));
            }
            text.push('\n');
        }
        fs::write(&path, text + "table bad swap new\ntable new destroy\n").expect("a file");
        let done = AtomicBool::new(false);
        let passed = std::thread::scope(|scope| {
            scope.spawn(|| {
                fw(&format!("--file {}", path.display())).expect("a list");
                done.store(true, Relaxed);
            });
            let mut sent = 0;
            while !done.load(Relaxed) {
                let batch: Vec<_> = (sent..sent + 100).map(|i| packet((1, 2), 53, 0, i)).collect();
                transmit(&near, 0, &batch, 2048);
                // All of them, in order.
                assert_eq!(receive(&far, 100), batch);
                sent += 100;
            }
            sent
        });
        assert!(fw("table bad info").unwrap().contains(&format!("items: {ADDRESSES}\n")));
        let mut listed = packet((1, 2), 53, 0, 1);
        for (address, is_listed) in
            [(0x0b00_0000, true), (0x0b00_0000 + ADDRESSES - 1, true), (0x0b00_0000 + ADDRESSES, false)]
        {
            listed[26..30].copy_from_slice(&u32::to_be_bytes(address));
            transmit(&near, 0, &[listed.clone(), packet((1, 2), 53, 0, 2)], 2048);
            let got = conformance::forwarder::receive(&far, 1 + usize::from(!is_listed), |bytes| bytes.len() == 60);
            assert_eq!(got[0] == listed, !is_listed, "{address:08x}");
        }
        conformance::home::summary(&format!(
            "{ADDRESSES} addresses were loaded and swapped under {passed} packets, none lost"
        ));
        running.summary();
    });
}

#[test]
fn packets_that_rules_change_leave_changed() {
    isolated_with_interfaces(|home| {
        // Buffers are exchanged, copied, and kept by a pipe.
        for (near, far, ports, last) in [
            ("netmap:a{1", "netmap:a}2", "a}1 a{2", "allow ip from any to any"),
            ("netmap:b{1", "netmap:c}1", "b}1 c{1", "allow ip from any to any"),
            ("netmap:d{1", "netmap:d}2", "d}1 d{2", "pipe 1 ip from any to any"),
        ] {
            let rules = format!(
                "ipfw -q -f flush\n/sbin/ipfw add 10 setdscp ef tcp from any to any 80\n\
                 ipfw add 20 tcp-setmss 1000 tcp from any to any 80\nipfw pipe 1 conf bandwidth 10Mbit/s noerror\n\
                 ipfw add 30 {last}"
            );
            let running = plain(home, ports, &rules);
            let (near, far) = (open(near), open(far));
            // SYNs with the option MSS 1460, in place of their first payload.
            let syn = |port: u16, seq: u32| {
                let mut bytes = packet((1, 2), port, 2, seq);
                bytes[46] = 0x60;
                bytes[50..58].copy_from_slice(&[0, 0, 0, 0, 2, 4, 5, 180]);
                bytes
            };
            transmit(&near, 0, &[syn(80, 1), syn(81, 2)], 2048);
            let got = conformance::forwarder::receive(&far, 2, |bytes| bytes[26..29] == [10, 0, 0]);
            let mut expected = [syn(80, 1), syn(81, 2)];
            expected[0][15] = 46 << 2;
            expected[0][56..58].copy_from_slice(&1000_u16.to_be_bytes());
            // The checksums of these packets are not right; they are wrong by as much afterwards.
            let sum = |bytes: &[u8], at: usize, words: std::ops::Range<usize>| {
                let sum: u32 = bytes[words].chunks(2).map(|pair| u32::from(pair[0]) << 8 | u32::from(pair[1])).sum();
                let check = u32::from(bytes[at]) << 8 | u32::from(bytes[at + 1]);
                (sum + check) % 0xffff
            };
            for (before, after) in [syn(80, 1), syn(81, 2)].iter().zip(&got) {
                assert_eq!(sum(after, 24, 14..24), sum(before, 24, 14..24), "{ports}: the IPv4 header");
                assert_eq!(sum(after, 50, 52..58), sum(before, 50, 52..58), "{ports}: the TCP header");
            }
            let without_sums = |bytes: &Vec<u8>| {
                let mut bytes = bytes.clone();
                bytes[24..26].fill(0);
                bytes[50..52].fill(0);
                bytes
            };
            assert_eq!(got.iter().map(without_sums).collect::<Vec<_>>(), expected, "{ports}");
            running.summary();
        }
    });
}

#[test]
fn an_error_leaves_the_rules_as_they_were() {
    isolated_with_interfaces(|home| {
        let running = plain(home, "a}1 a{2", "add 10 allow udp from any to any 53");
        let (near, far) = (open("netmap:a{1"), open("netmap:a}2"));
        let wrong = home.folder().join("wrong");
        fs::write(&wrong, "add deny ip from any to any\nadd alow ip from any to any").expect("a file");
        let binary = home.folder().join("binary");
        fs::write(&binary, b"add deny ip from any to any\nadd \xff\0").expect("a file");
        for (command, part) in [
            (&format!("load {}", binary.display())[..], "fw: line 2, column 5: the byte 0xff is not UTF-8"),
            ("add 5 deny udp from any to any 99999", "fw: line 1, column 32: `99999`"),
            ("add 5 fwd 10.0.0.1 ip from any to any", "column 7: the action `fwd` is not supported: frames keep"),
            ("delete 11", "there is no rule 11"),
            (&format!("load {}", wrong.display()), "line 2, column 5: `alow` is no action"),
            ("load /nonexistent", "/nonexistent"),
        ] {
            let error = fw(command).unwrap_err();
            assert!(error.contains(part), "{command}: {error}");
        }
        transmit(&near, 0, &[packet((1, 2), 53, 0, 7)], 2048);
        assert_eq!(seq(&receive(&far, 1)[0]), Some(7));
        assert_eq!(fw("list").unwrap(), "00010 allow udp from any to any 53\n65535 deny ip from any to any\n");

        let second = Command::new(program("unetmap-fw")).args(["d}1", "d{2", "-w", "0"]).output().expect("it runs");
        let error = String::from_utf8_lossy(&second.stderr).into_owned();
        assert!(!second.status.success() && error.contains("--control PATH"), "{error}");
        drop(running.summary());
        let error = fw("list").unwrap_err();
        assert!(error.contains("no firewall listens"), "{error}");
        let refused = Command::new(program("unetmap-fw")).args(["d}1", "d{2", "--rules"]).arg(&wrong).output().unwrap();
        let error = String::from_utf8_lossy(&refused.stderr).into_owned();
        assert!(refused.status.code() == Some(1) && error.contains("line 2, column 5"), "{error}");
        let refused =
            Command::new(program("unetmap-fw")).args(["d}1", "d{2", "--rules"]).arg(&binary).output().unwrap();
        let error = String::from_utf8_lossy(&refused.stderr).into_owned();
        assert!(refused.status.code() == Some(1) && error.contains("line 2, column 5: the byte 0xff"), "{error}");
    });
}

#[test]
fn states_admit_answers_and_resets_refuse_the_rest() {
    const SYN: u8 = 2;
    isolated_with_interfaces(|home| {
        let rules = "add check-state\nadd allow udp from any to any 53 out keep-state\n\
                     add reset log logamount 1 tcp from any to any\nadd unreach port udp from any to any";
        let running = plain(home, "a}1 b{1", rules);
        let (near, far) = (open("netmap:a{1"), open("netmap:b}1"));
        // The answer of nobody's question, then a question and its answer.
        let mut answer = packet((2, 1), 1000, 0, 2);
        answer[34..36].copy_from_slice(&53u16.to_be_bytes());
        transmit(&far, 0, &[answer.clone()], 2048);
        let refused = receive_any(&far);
        assert_eq!((refused[23], refused[34], refused[35]), (1, 3, 3), "an ICMP error");
        assert_eq!(refused[42..70], answer[14..42], "it quotes the packet");
        transmit(&near, 0, &[packet((1, 2), 53, 0, 1)], 2048);
        assert_eq!(seq(&receive(&far, 1)[0]), Some(1));
        transmit(&far, 0, &[answer], 2048);
        assert_eq!(seq(&receive(&near, 1)[0]), Some(2));

        transmit(&near, 0, &[packet((1, 2), 80, SYN, 3)], 2048);
        let reset = receive_any(&near);
        assert_eq!((reset[23], &reset[26..34], reset[47]), (6, &[10, 0, 0, 2, 10, 0, 0, 1][..], 0x14), "RST, ACK");
        let shown: Value = serde_json::from_str(&fw("--json show").unwrap()).expect("an object");
        assert_eq!((&shown["states"]["now"], &shown["replies"]), (&Value::from(1), &Value::from(2)), "{shown}");
        running.summary();
    });
}

#[test]
fn logged_packets_are_events() {
    isolated_with_interfaces(|home| {
        let events = || {
            let output = Command::new(program("unetmap")).args(["events", "--json"]).output().expect("it runs");
            let notes = String::from_utf8_lossy(&output.stderr);
            assert!(
                output.status.success() && (notes.is_empty() || notes.contains("No daemon is running")),
                "{output:?}"
            );
            let text = String::from_utf8(output.stdout).expect("text");
            let all = text.lines().map(|line| serde_json::from_str::<Value>(line).expect("an object"));
            all.filter(|event| event["event"] == "packet-logged").collect::<Vec<_>>()
        };
        assert!(events().is_empty(), "there is no firewall");
        let rules = "add 10 deny log udp from any to any 22\nadd 20 allow log logamount 2 udp from any to any 53\n\
                     add 30 allow ip from any to any";
        let running = plain(home, "a}1 b{1", rules);
        let (near, far) = (open("netmap:a{1"), open("netmap:b}1"));
        let sent: Vec<_> = [22, 53, 80, 53, 53, 22].map(|port| packet((1, 2), port, 0, port.into())).into();
        transmit(&near, 0, &sent, 2048);
        assert_eq!(receive(&far, 4).len(), 4);
        conformance::until("the packets are logged", || events().len() == 4);
        let all = events();
        let rules: Vec<_> = all.iter().map(|event| event["rule"].as_u64().expect("a number")).collect();
        assert_eq!(rules, [10, 20, 20, 10]);
        assert_eq!((&all[0]["action"], &all[0]["port"], &all[0]["bytes"]), (&"Deny".into(), &"b{1".into(), &60.into()));
        assert_eq!(all[1]["line"], "ipfw: 20 Accept UDP 10.0.0.1:1000 10.0.0.2:53 out via b{1");
        let shown = Command::new(program("unetmap")).arg("events").output().expect("it runs");
        let shown = String::from_utf8_lossy(&shown.stdout).into_owned();
        assert!(shown.contains("ipfw: 10 Deny UDP 10.0.0.1:1000 10.0.0.2:22 out via b{1"), "{shown}");
        running.summary();
        assert!(events().is_empty(), "it has ended");
    });
}

/// The senders of packets cannot fill the log of the process, of which all are events.
#[test]
fn of_a_rule_a_hundred_lines_are_written_in_a_minute() {
    isolated_with_interfaces(|home| {
        let rules = "add 10 deny log udp from any to any 22\nadd 20 allow log ip from any to any";
        let mut running = plain(home, "a}1 b{1", rules);
        let (near, far) = (open("netmap:a{1"), open("netmap:b}1"));
        let mut sent: Vec<_> = (0..300).map(|i| packet((1, 2), 22, 0, i)).collect();
        sent.push(packet((1, 2), 80, 0, 300));
        transmit(&near, 0, &sent, 2048);
        assert_eq!(receive(&far, 1).len(), 1);
        let mut written = running.guard().0.stderr.take().expect("piped");
        running.summary();
        let mut text = String::new();
        written.read_to_string(&mut text).expect("text");
        let lines = |of: &str| text.lines().filter(|line| line.starts_with(of)).count();
        // And one with the count.
        assert_eq!((lines("ipfw: 10 Deny"), lines("ipfw: 20 Accept")), (101, 1), "{text}");
        assert!(text.contains("... and 200 more of this kind in "), "{text}");
    });
}

#[test]
fn logged_packets_are_in_a_bounded_file() {
    isolated_with_interfaces(|home| {
        let log = home.folder().join("log.pcapng");
        let older = home.folder().join("log.pcapng.1");
        let mut command = Command::new(program("unetmap-fw"));
        command.args(["--log-size", "1", "--log"]).arg(&log);
        let rules = "add 10 deny log udp from any to any 22\nadd 20 allow ip from any to any";
        let running = start(home, command, "a}1 b{1", rules);
        let (near, far) = (open("netmap:a{1"), open("netmap:b}1"));
        let mut sent = 0;
        while !older.exists() {
            // A packet that passes after each batch, so that no more are logged at a time than wait.
            let mut batch: Vec<_> = (0..400).map(|i| packet((1, 2), 22, 0, sent + i)).collect();
            batch.push(packet((1, 2), 80, 0, sent));
            transmit(&near, 0, &batch, 2048);
            receive(&far, 1);
            sent += 400;
            assert!(sent < 1_000_000, "the file gets full");
        }
        let shown: Value = serde_json::from_str(&fw("--json show").unwrap()).expect("an object");
        assert_eq!((&shown["rules"][0]["packets"], &shown["rules"][0]["then"]), (&sent.into(), &"dropped".into()));
        let graph = fw("graph").unwrap();
        assert!(graph.contains("00010 deny log udp from any to any 22 ---> dropped\n"), "{graph}");
        running.summary();
        let mut last = None;
        for path in [&older, &log] {
            let bytes = fs::read(path).expect("a file");
            assert!(bytes.len() <= 512 << 10, "{} bytes", bytes.len());
            let text = String::from_utf8_lossy(&bytes);
            assert!(text.contains("ipfw: 10 Deny UDP 10.0.0.1:1000 10.0.0.2:22 out via b{1"), "{}", path.display());
            for packet in read_file(path) {
                let number = seq(&packet).expect("a packet of the test");
                assert!(last < Some(number) && number < sent, "in order: {last:?} {number}");
                last = Some(number);
            }
        }
        assert!(last.is_some());
        let refused =
            Command::new(program("unetmap-fw")).args(["d}1", "d{2", "--log", "/nonexistent/x"]).output().unwrap();
        let error = String::from_utf8_lossy(&refused.stderr).into_owned();
        assert!(refused.status.code() == Some(1) && error.contains("--log /nonexistent/x: "), "{error}");
    });
}

/// Returns the next packet, which is not of the test's own form.
#[track_caller]
fn receive_any(port: &Port) -> Vec<u8> {
    conformance::forwarder::receive(port, 1, |_| true).swap_remove(0)
}

#[test]
fn a_firewall_between_interfaces_admits_connections_one_way() {
    const LIMIT: Duration = Duration::from_secs(20);
    isolated_with_interfaces(|home| {
        let Some(Line { left, middle, right, .. }) = &Line::new() else { return };
        let rules = "add allow mac-type arp\nadd check-state\n\
                     add allow tcp from any to 10.9.0.0/24{2} 7000 setup out keep-state\n\
                     add reset tcp from any to any setup";
        let running = start(home, middle.command(program("unetmap-fw")), "left1 right1", rules);
        let listen = |ns: &lab::Ns, address: &str| {
            let address = address.to_owned();
            ns.run(move || TcpListener::bind(address)).expect("the namespace").expect("a listener")
        };
        let (allowed, refused) = (listen(right, "10.9.0.2:7000"), listen(left, "10.9.0.1:7001"));
        let connect = |ns: &lab::Ns, address: &str| {
            let address = address.parse().expect("an address");
            ns.run(move || TcpStream::connect_timeout(&address, LIMIT)).expect("the namespace")
        };
        let text = "through the firewall ".repeat(5000);
        std::thread::scope(|scope| {
            let reader = scope.spawn(|| {
                let (mut stream, _) = allowed.accept().expect("a connection");
                stream.set_read_timeout(Some(LIMIT)).expect("a limit");
                let mut got = String::new();
                stream.read_to_string(&mut got).expect("text");
                got
            });
            let mut stream = connect(left, "10.9.0.2:7000").expect("allowed");
            stream.write_all(text.as_bytes()).expect("sent");
            drop(stream);
            assert!(reader.join().expect("no panic") == text);
        });
        let error = connect(right, "10.9.0.1:7001").expect_err("refused");
        assert_eq!(error.kind(), std::io::ErrorKind::ConnectionRefused, "by the reset: {error}");
        drop(refused);
        running.summary();
    });
}
