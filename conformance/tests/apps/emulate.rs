// SPDX-License-Identifier: BSD-2-Clause
//! `unetmap emulate`: a link between ports, and TCP through it.

use std::io::{Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::process::Command;
use std::time::{Duration, Instant};

use conformance::net::transmit;
use conformance::traffic::{expect, fill_some, open, send};
use conformance::{isolated_with_interfaces, program, until};
use rustix::process::Signal;
use serde_json::Value;
use unetmap::Interest;

use conformance::forwarder::{Forwarder, Line};

fn emulate(mut command: Command, args: &str) -> Forwarder {
    Forwarder::start(command.arg("emulate").args(args.split_whitespace()).args(["-w", "0"]))
}

/// Packets of 60 bytes with a number.
fn packets(n: u32) -> Vec<Vec<u8>> {
    (0..n).map(|i| [vec![2; 6], vec![4; 6], vec![0x88, 0xb5], i.to_be_bytes().to_vec(), vec![0; 42]].concat()).collect()
}

#[track_caller]
fn receive(port: &unetmap::Port, n: usize) -> Vec<Vec<u8>> {
    conformance::forwarder::receive(port, n, |_| true)
}

#[test]
fn an_emulator_that_stops_sends_what_it_holds() {
    isolated_with_interfaces(|_home| {
        // A switch drops what exceeds a ring.
        for (near, far, ports, n) in
            [("netmap:a{1", "netmap:a}2", "a}1 a{2", 3000), ("vale0:t", "vale1:t", "vale0:f vale1:f", 500)]
        {
            let sent = packets(n);
            let running = emulate(Command::new(program("unetmap")), &format!("{ports} --delay 60s --queue 10000"));
            let (near, far) = (open(near), open(far));
            transmit(&near, 0, &sent, 2048);
            until("the emulator has all packets", || {
                near.txsync().expect("the daemon runs");
                !near.tx_rings()[0].pending()
            });
            std::thread::sleep(Duration::from_millis(100));
            let got = std::thread::scope(|scope| {
                let receiver = scope.spawn(|| receive(&far, sent.len()));
                let summary = running.summary();
                assert_eq!((&summary["left"], &summary["ways"]["out"]["arrived"]), (&0.into(), &n.into()), "{summary}");
                receiver.join().expect("no panic")
            });
            assert!(got == sent, "{ports}: packets arrive as they were sent");
        }
    });
}

/// A sender is not faster than the receiver, and the emulator keeps no more than rings have room for.
#[test]
fn a_sender_waits_while_the_receivers_ring_is_full() {
    isolated_with_interfaces(|_home| {
        let _running = emulate(Command::new(program("unetmap")), "a}1 a{2");
        let (near, far) = (open("netmap:a{1"), open("netmap:a}2"));
        let (ring, mut sent, mut idle) = (&near.tx_rings()[0], 0, 0);
        while idle < 50 {
            let ready = near.poll(Interest::TX, Some(Duration::from_millis(20))).expect("the daemon runs");
            match ready.tx() {
                true => sent += fill_some(ring, 1, sent, u64::MAX),
                false => idle += 1,
            }
            near.txsync().expect("the daemon runs");
            assert!(sent < 20_000, "the emulator takes all");
        }
        std::thread::scope(|scope| {
            scope.spawn(|| send(&near, 1, sent, sent + 3000).expect("room"));
            expect(&far, 1, 0, sent + 3000);
        });
    });
}

#[test]
fn an_emulator_that_is_killed_leaves_its_ports_usable() {
    isolated_with_interfaces(|home| {
        for _ in 0..2 {
            let mut running = emulate(Command::new(program("unetmap")), "a}1 a{2 --delay 60s");
            let near = open("netmap:a{1");
            transmit(&near, 0, &packets(1000), 2048);
            running.guard().signal(Signal::KILL);
            running.guard().wait();
            drop(near);
            home.until_left(0);
        }
        let running = emulate(Command::new(program("unetmap")), "a}1 a{2");
        let (near, far) = (open("netmap:a{1"), open("netmap:a}2"));
        transmit(&near, 0, &packets(500), 2048);
        assert!(receive(&far, 500) == packets(500));
        running.summary();
    });
}

#[test]
fn a_link_loses_and_doubles_as_often_as_asked() {
    isolated_with_interfaces(|_home| {
        let running = emulate(Command::new(program("unetmap")), "a}1 b{1 --loss 20% --duplicate 10% --direction out");
        let (near, far) = (open("netmap:a{1"), open("netmap:b}1"));
        std::thread::scope(|scope| {
            scope.spawn(|| (0..10).for_each(|_| transmit(&near, 0, &packets(1000), 2048)));
            receive(&far, 8300);
        });
        transmit(&far, 0, &packets(300), 2048);
        assert!(receive(&near, 300) == packets(300), "the other direction only forwards");
        let out = running.summary()["ways"]["out"].clone();
        let of = |key: &str| out[key].as_u64().expect("a number");
        let lost = out["dropped"]["loss"].as_u64().expect("a number");
        assert!((1700..2300).contains(&lost) && (600..1000).contains(&of("duplicated")), "{out}");
        assert_eq!(of("arrived"), 10_000 - lost + of("duplicated"), "{out}");
    });
}

/// Five streams of different kinds, which `examples/streams` has for longer runs.
const FIVE: &str = include_str!("../../../examples/streams/five.toml");

/// Loss, copies and order, to the packet: the pipes lose nothing, so all of it is the link's.
#[test]
fn pkt_gen_reports_what_the_link_did_to_five_streams() {
    isolated_with_interfaces(|home| {
        let faults = "--loss 2% --delay 2ms --reorder 0.5% --duplicate 1% --queue 20000";
        let running = emulate(Command::new(program("unetmap")), &format!("a}}1 b{{1 --direction out {faults}"));
        let path = home.folder().join("five.toml");
        std::fs::write(&path, FIVE.replace("200_000", "1500")).expect("a file");
        let mut pkt_gen = Command::new(program("pkt-gen"));
        pkt_gen.args(["-i", "netmap:a{1", "--receive=netmap:b}1", "-w", "0", "--json", "--streams"]);
        let output = pkt_gen.arg(path).output().expect("pkt-gen");
        let (text, said) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
        assert!(output.status.success(), "{said}");
        let out = running.summary()["ways"]["out"].clone();

        let events = text.lines().map(|line| serde_json::from_str::<Value>(line).expect("an object"));
        let streams: Vec<Value> = events.filter(|event| event["event"] == "stream").collect();
        assert_eq!(streams.len(), 5, "{text}");
        let sum = |key: &str| streams.iter().map(|stream| stream[key].as_u64().expect("a number")).sum::<u64>();
        let reported = ["packets", "lost", "duplicates", "reordered", "received"].map(sum);
        let dropped = &out["dropped"];
        let done = [&out["offered"], &dropped["loss"], &out["duplicated"], &out["overtaken"], &out["arrived"]];
        assert_eq!(reported.map(Value::from).each_ref(), done, "{out} {streams:?}");
        assert!(["full", "managed", "memory", "long"].iter().all(|why| dropped[*why] == 0), "{out}");
        // Each stream has its share of all of it.
        for stream in &streams {
            let has = |key: &str, least, most| (least..=most).contains(&stream[key].as_u64().expect("a number"));
            assert!(stream["packets"] == 1500 && has("lost", 5, 80) && has("duplicates", 1, 50), "{stream}");
            assert!(has("reordered", 1, 1500), "{stream}");
        }
    });
}

#[test]
fn tcp_and_ping_agree_with_the_link() {
    const LIMIT: Duration = Duration::from_secs(20);
    const BYTES: usize = 8_000_000;
    isolated_with_interfaces(|_home| {
        let Some(Line { left, middle, right, .. }) = &Line::new() else { return };
        let running = emulate(middle.command(program("unetmap")), "left1 right1 --rate 80M --delay 20ms");
        let text = left.tool("ping", &["-n", "-c", "6", "-i", "0.2", "10.9.0.2"]).expect("answers");
        // rtt min/avg/max/mdev = 40.1/...
        let times = text.rsplit_once("= ").expect("times").1;
        let ping: f64 = times.split('/').next().expect("a minimum").parse().expect("a number");
        assert!(ping >= 40.0, "no answer is faster than the link: {text}");

        let listener = right.run(|| TcpListener::bind("10.9.0.2:7000")).expect("the namespace").expect("a listener");
        let seconds = std::thread::scope(|scope| {
            let reader = scope.spawn(|| {
                let (mut stream, _) = listener.accept().expect("a connection");
                stream.set_read_timeout(Some(LIMIT)).expect("a limit");
                let (mut got, mut buffer) = (0, vec![0; 1 << 16]);
                while let Ok(n @ 1..) = stream.read(&mut buffer) {
                    got += n;
                }
                assert_eq!(got, BYTES);
                Instant::now()
            });
            let address = "10.9.0.2:7000".parse().expect("an address");
            // Before the first packet, so that a delay of the reader makes the link no faster.
            let begin = Instant::now();
            let connected = left.run(move || TcpStream::connect_timeout(&address, LIMIT)).expect("the namespace");
            connected.expect("a connection").write_all(&vec![7; BYTES]).expect("sent");
            (reader.join().expect("no panic") - begin).as_secs_f64()
        });
        let rate = BYTES as f64 * 8.0 / seconds / 1e6;
        assert!(rate < 80.0, "no faster than the link: {rate} Mbit/s");
        let summary = running.summary();
        let median = summary["ways"]["in"]["delay_ms"]["p50"].as_f64().expect("a number");
        assert!(median >= 20.0, "{summary}");
        conformance::home::summary(&format!(
            "an emulated link of 80 Mbit/s and 20 ms each way: ping {ping:.2} ms, TCP {rate:.1} Mbit/s over {seconds:.1} s"
        ));
    });
}
