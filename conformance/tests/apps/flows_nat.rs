// SPDX-License-Identifier: BSD-2-Clause
//! `unetmap-fw --flows-nat`: records of the connections that NAT makes and ends (RFC 8158).

use std::collections::HashMap;
use std::net::{TcpListener, UdpSocket};
use std::process::Command;
use std::time::{SystemTime, UNIX_EPOCH};

use conformance::collector::{Collector, Decoder, Record, Stream, accept};
use conformance::forwarder::receive;
use conformance::home::summary;
use conformance::net::{take, transmit};
use conformance::traffic::open;
use conformance::{isolated, program, until};
use serde_json::Value;
use unetmap::Port;

use crate::flows::{PACKETS, nfdump_lists, tshark_fields};
use crate::fw::{packet, seq, start};

/// Fields, and values of `natEvent`.
const EVENT: u16 = 230;
const CREATED: u64 = 4;
const DELETED: u64 = 5;
const PORTS_EXHAUSTED: u64 = 12;
const TIME: u16 = 323;

/// The records of an event.
fn of(decoder: &Decoder, event: u64) -> Vec<&Record> {
    decoder.flows().filter(|record| !record.bytes(EVENT).is_empty() && record.number(EVENT) == event).collect()
}

/// Receives at all rings until `n` packets of the test have come.
#[track_caller]
fn receive_all(port: &Port, n: usize) -> Vec<Vec<u8>> {
    let mut all = Vec::new();
    until("the packets pass", || {
        port.rxsync().expect("the daemon runs");
        let rings = 0..port.rx_rings().len();
        all.extend(rings.flat_map(|ring| take(port, ring)).filter(|bytes| seq(bytes).is_some()));
        port.rxsync().expect("the daemon runs");
        all.len() >= n
    });
    all
}

/// A record has the connection of a packet that host `i` has sent, and that came with this port.
#[track_caller]
fn check(record: &Record, host: u8, alias: u16) {
    let (inside, public, remote) = ([10, 0, 0, host], [10, 0, 0, 77], [10, 0, 0, 2]);
    assert_eq!([record.bytes(8), record.bytes(225)], [inside, public], "{record:?}");
    assert_eq!([record.bytes(12), record.bytes(226)], [remote, remote], "{record:?}");
    let ports = [7, 227, 11, 228].map(|id| record.number(id));
    assert_eq!(ports, [1000, alias.into(), 40, 40], "{record:?}");
    assert_eq!((record.number(4), record.number(463)), (17, 7), "protocol and instance: {record:?}");
}

/// Each connection has a record when it begins and one when it ends, whatever is sampled and whichever thread makes it.
#[test]
fn connections_of_nat_have_two_records() {
    const HOSTS: u8 = 40;
    isolated(|home| {
        for (rings, args) in [(1, ""), (1, "--flows-sample 1000"), (3, "--threads 3")] {
            let port = |name: &str| format!("netmap:{name}@conf:rings={rings}");
            let (near, far) = (open(&port("p{1")), open(&port("q}1")));
            let collector = Collector::start();
            let mut fw = Command::new(program("unetmap-fw"));
            fw.args(["--flows", collector.address(), "--flows-nat"]).args(args.split_whitespace());
            let rules = "nat 7 config ip 10.0.0.77\nadd nat 7 ip from any to any\n";
            let fw = start(home, fw, &format!("{} {}", port("p}1"), port("q{1")), rules);
            let hosts = 101..101 + HOSTS;
            for host in hosts.clone() {
                let frames = vec![packet((host, 2), 40, 0, host.into()); 3];
                transmit(&near, usize::from(host) % rings, &frames, 2048);
            }
            let came = receive_all(&far, 3 * usize::from(HOSTS));
            let alias = |bytes: &Vec<u8>| Some((seq(bytes)? as u8, u16::from_be_bytes([bytes[34], bytes[35]])));
            let aliases: HashMap<u8, u16> = came.iter().filter_map(alias).collect();
            let ended = fw.summary();
            let messages = collector.messages();
            let mut decoder = Decoder::default();
            messages.iter().for_each(|message| decoder.message(message));
            let (created, deleted) = (of(&decoder, CREATED), of(&decoder, DELETED));
            assert_eq!((created.len(), deleted.len()), (HOSTS.into(), HOSTS.into()), "{args}: {ended}");
            let now = SystemTime::now().duration_since(UNIX_EPOCH).expect("after 1970").as_millis() as u64;
            for host in hosts {
                let is = |record: &&&Record| record.bytes(8).last() == Some(&host);
                let both = [&created, &deleted].map(|records| *records.iter().find(is).expect("a record"));
                both.iter().for_each(|record| check(record, host, aliases[&host]));
                let [first, last] = both.map(|record| record.number(TIME));
                assert!(first <= last && now.abs_diff(last) < 600_000, "{first} {last} {now}");
            }
            let sum = |of: fn(&Value) -> &Value| -> u64 {
                let threads = ended["flows"].as_array().expect("by thread");
                assert_eq!(threads.len(), rings, "{ended}");
                threads.iter().filter_map(|thread| of(thread).as_u64()).sum()
            };
            let nat = [sum(|thread| &thread["nat"]["begun"]), sum(|thread| &thread["nat"]["ended"])];
            assert_eq!(nat, [u64::from(HOSTS); 2], "{args}: {ended}");
            assert_eq!(sum(|thread| &thread["collector"]["records"]), decoder.flows().count() as u64, "{ended}");
            let packets = decoder.flows().filter(|record| !record.bytes(PACKETS).is_empty());
            let packets: u64 = packets.map(|record| record.number(PACKETS)).sum();
            assert!(packets == 120 || args.contains("sample"), "flows have records as well: {packets}");
            if args.is_empty() {
                decode_by_others(home.folder(), &messages, &aliases);
            }
        }
    });
}

/// tshark and nfdump find the same.
fn decode_by_others(folder: &std::path::Path, messages: &[Vec<u8>], aliases: &HashMap<u8, u16>) {
    let both = 2 * aliases.len();
    let fields = ["cflow.nat_event", "cflow.post_natsource_ipv4_address", "cflow.nat_instanceid"];
    let tshark = tshark_fields(folder, messages, &fields).map_or("no tshark (apt-get install tshark)".into(), |text| {
        let of = |value: &str| text.split(['\t', ',', '\n']).filter(|found| *found == value).count();
        let found = (of("4"), of("5"), of("10.0.0.77"), of("7"));
        assert_eq!(found, (aliases.len(), aliases.len(), both, both), "{text}");
        format!("tshark: {both} events")
    });
    let send = |address: &str| {
        let socket = UdpSocket::bind("127.0.0.1:0").expect("a port");
        messages.iter().for_each(|message| assert_eq!(socket.send_to(message, address).expect("sent"), message.len()));
    };
    let listed = nfdump_lists(&folder.join("nfdump"), "raw", send);
    let nfdump = listed.map_or("no nfdump (apt-get install nfdump)".into(), |text| {
        let records: Vec<_> = text.split("Flow Record:").map(str::to_owned).collect();
        let has = |record: &str, name: &str, value: &str| {
            let mut fields = record.lines().filter_map(|line| line.split_once('='));
            fields.any(|(key, found)| key.trim() == name && found.trim() == value)
        };
        for (host, alias) in aliases {
            // It has names for older numbers of events alone.
            for event in ["4: UNKNOW", "5: UNKNOW"] {
                let (inside, alias) = (format!("10.0.0.{host}"), alias.to_string());
                let wanted = [
                    ("src addr", &*inside),
                    ("src port", "1000"),
                    ("src xlt ip", "10.0.0.77"),
                    ("src xlt port", &*alias),
                    ("nat event", event),
                ];
                let is = |record: &&String| wanted.iter().all(|(name, value)| has(record, name, value));
                assert_eq!(records.iter().filter(is).count(), 1, "{wanted:?}\n{text}");
            }
        }
        format!("nfdump: {both} events")
    });
    summary(&format!("{tshark}; {nfdump}"));
}

/// An address with two ports: the third connection to a server gets none, which has a record.
#[test]
fn a_connection_without_a_port_has_a_record() {
    isolated(|home| {
        let (near, far) = (open("netmap:p{1"), open("netmap:q}1"));
        let collector = Collector::start();
        let mut fw = Command::new(program("unetmap-fw"));
        fw.args(["--flows", collector.address(), "--flows-nat"]);
        let rules = "nat 7 config ip 10.0.0.77 port_range 50000-50001\nadd nat 7 ip from any to any\n";
        let fw = start(home, fw, "netmap:p}1 netmap:q{1", rules);
        // The last one is to another server, and passes.
        let ends = [(1, 2), (3, 2), (5, 2), (5, 2), (5, 4)];
        let sent: Vec<_> = (1..).zip(ends).map(|(seq, ends)| packet(ends, 40, 0, seq)).collect();
        transmit(&near, 0, &sent, 2048);
        assert_eq!(receive_all(&far, 3).iter().filter_map(|bytes| seq(bytes)).collect::<Vec<_>>(), [1, 2, 5]);
        let ended = fw.summary();
        let messages = collector.messages();
        let mut decoder = Decoder::default();
        messages.iter().for_each(|message| decoder.message(message));
        let refused = of(&decoder, PORTS_EXHAUSTED);
        assert_eq!((refused.len(), &ended["flows"][0]["nat"]["refused"]), (1, &1.into()), "{ended}");
        assert_eq!((refused[0].bytes(225), refused[0].number(4), refused[0].number(463)), (&[10, 0, 0, 77][..], 17, 7));
        assert_eq!((of(&decoder, CREATED).len(), of(&decoder, DELETED).len()), (3, 3));
        let fields = ["cflow.nat_event", "cflow.post_natsource_ipv4_address"];
        let said = tshark_fields(home.folder(), &messages, &fields).map_or("no tshark".to_owned(), |text| {
            let found = text.split(['\t', ',', '\n']).filter(|found| *found == "12").count();
            assert_eq!(found, 1, "{text}");
            "tshark: event 12".into()
        });
        summary(&said);
    });
}

/// A connection that is closed ends 10 seconds later, also if no packet comes any more.
#[test]
fn an_idle_firewall_tells_of_connections_that_end() {
    isolated(|home| {
        let (near, far) = (open("netmap:p{1"), open("netmap:q}1"));
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let to = format!("tcp:{}", listener.local_addr().expect("bound"));
        let mut fw = Command::new(program("unetmap-fw"));
        fw.args(["--flows", &to, "--flows-nat"]);
        let rules = "nat 7 config ip 10.0.0.77\nadd nat 7 ip from any to any\n";
        let fw = start(home, fw, "netmap:p}1 netmap:q{1", rules);
        let connection = accept(&listener);
        const FIN_ACK: u8 = 0x11;
        transmit(&near, 0, &[packet((1, 2), 40, FIN_ACK, 1)], 2048);
        let came = receive(&far, 1, |bytes| seq(bytes).is_some());
        let mut back = packet((2, 77), u16::from_be_bytes([came[0][34], came[0][35]]), FIN_ACK, 2);
        back[34..36].copy_from_slice(&40u16.to_be_bytes());
        transmit(&far, 0, &[back], 2048);
        let answer = receive(&near, 1, |bytes| seq(bytes).is_some());
        assert_eq!(answer[0][30..34], [10, 0, 0, 1], "it is translated back");
        let mut stream = Stream::default();
        assert!(!stream.receive(&connection, |decoder| !of(decoder, DELETED).is_empty()), "the firewall goes on");
        let times = [CREATED, DELETED].map(|event| of(&stream.decoder, event)[0].number(TIME));
        assert!(times[1] - times[0] >= 10_000, "{times:?}");
        std::thread::scope(|scope| {
            // The firewall's end, also that of a panic, is that of the connection.
            scope.spawn(move || stream.receive(&connection, |_| false));
            assert_eq!(fw.summary()["flows"][0]["nat"], serde_json::json!({"begun": 1, "ended": 1, "refused": 0}));
        });
    });
}
