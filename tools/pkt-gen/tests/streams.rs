// SPDX-License-Identifier: BSD-2-Clause
//! Tests of streams from end to end: what is reported is what a forwarder between two ports did.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;
use tool_common::testing::{TestDaemon, TestProcess};
use unetmap::{Interest, Port};
use unetmap_capture::testing::{Pcap, read_file};
use unetmap_tester::signature;

const PKT_GEN: &str = env!("CARGO_BIN_EXE_pkt-gen");
/// The ports of the forwarder, which is this program again.
const FORWARD: &str = "UNETMAP_TEST_FORWARD";
/// How long the forwarder keeps the packets of stream 5.
const DELAY: Duration = Duration::from_millis(3);

/// Five streams; a forwarder drops, repeats, reorders and delays those of four.
const FIVE: &str = r#"
    [[stream]]
    name = "untouched"
    rate = "20kpps"
    count = 5000
    layers = [{ ether = {} }, { vlan = { vlan = 3 } }, { ip = { src = { from = "10.0.0.1" } } }, { udp = {} }]
    [[stream]]
    name = "dropped"
    rate = "20kpps"
    count = 5000
    size = "60-1514"
    shape = { burst = 8 }
    [[stream]]
    name = "reordered"
    rate = "20kpps"
    count = 5000
    shape = "poisson"
    [[stream]]
    name = "repeated"
    rate = "20kpps"
    count = 5000
    layers = [{ ether = {} }, { ipv6 = {} }, { tcp = { seq = { from = 0 } } }]
    [[stream]]
    name = "delayed"
    rate = "20kpps"
    count = 5000
    size = "imix"
"#;

fn daemon() -> Option<TestDaemon> {
    TestDaemon::start_beside(PKT_GEN)
}

fn run(daemon: &TestDaemon, args: &str) -> (i32, String, String) {
    TestProcess::start(&mut daemon.command("pkt-gen", args)).wait()
}

/// The objects of an event, by name of the stream.
fn events(text: &str, event: &str) -> BTreeMap<String, Value> {
    let objects =
        text.lines().map(|line| serde_json::from_str::<Value>(line).unwrap_or_else(|e| panic!("{line}: {e}")));
    let wanted = objects.filter(|object| object["event"] == event);
    wanted.map(|object| (object["name"].as_str().unwrap_or_default().to_owned(), object)).collect()
}

fn write_streams(daemon: &TestDaemon, text: &str) -> String {
    let path = daemon.folder().join("streams.toml");
    fs::write(&path, text).expect("a file");
    path.display().to_string()
}

fn check_forwarded(streams: &BTreeMap<String, Value>) {
    for (name, received, lost, duplicates, reordered) in [
        ("untouched", 5000, 0, 0, 0),
        ("dropped", 4500, 500, 0, 0),
        ("reordered", 5000, 0, 0, 50),
        ("repeated", 5200, 0, 200, 0),
        ("delayed", 5000, 0, 0, 0),
    ] {
        let stream = &streams[name];
        let number = |key: &str| stream[key].as_u64().unwrap_or_else(|| panic!("{key}: {stream}"));
        assert_eq!(number("packets"), 5000, "{stream}");
        let found = (number("received"), number("lost"), number("duplicates"), number("reordered"));
        assert_eq!(found, (received, lost, duplicates, reordered), "{stream}");
        assert!(stream["jitter_ns"].is_f64() && stream["latency_ns"]["p99"].is_u64(), "{stream}");
    }
    let delayed = streams["delayed"]["latency_ns"]["min"].as_u64().expect("a time");
    assert!(delayed >= DELAY.as_nanos() as u64 * 999 / 1000, "{delayed}");
}

#[test]
fn a_forwarder_is_reported_as_it_was() {
    let Some(daemon) = daemon() else { return };
    // Pipes of two parents; and two switches, which drop what a program that does not run for a while leaves unread, so
    // with rings for 400 ms of packets.
    for (there, forward, back, rate, more) in [
        ("p{1", "netmap:p}1 netmap:q{1", "q}1", "20kpps", ""),
        ("p{1", "netmap:p}1 netmap:q{1", "q}1", "20kpps", " --one-thread"),
        ("vale1:a", "vale1:f@conf:slots=4096 vale2:f@conf:slots=4096", "vale2:a@conf:slots=4096", "2kpps", ""),
    ] {
        let path = write_streams(&daemon, &FIVE.replace("20kpps", rate));
        let mut forwarder = Command::new(std::env::current_exe().expect("this program"));
        forwarder.args(["--exact", "forwarder", "--ignored", "--nocapture"]).stdin(Stdio::null());
        daemon.set_environment(forwarder.env(FORWARD, format!("{forward} {}", daemon.folder().join("on").display())));
        let forwarder = TestProcess::start(&mut forwarder);
        let begin = Instant::now();
        while !daemon.folder().join("on").exists() {
            assert!(begin.elapsed() < Duration::from_secs(20), "the forwarder does not run: {:?}", forwarder.wait());
            std::thread::sleep(Duration::from_millis(5));
        }
        fs::remove_file(daemon.folder().join("on")).expect("its file");
        let (code, out, err) =
            run(&daemon, &format!("-i {there} --streams {path} --receive={back} -w 0 -T 50 --json -C 1024{more}"));
        assert_eq!(code, 0, "{out}{err}");
        check_forwarded(&events(&out, "stream"));
        let summary = &events(&out, "summary")[""];
        assert_eq!((&summary["packets"], &summary["unsigned"]), (&25_000.into(), &0.into()), "{summary}");
        assert!(!events(&out, "interval").is_empty(), "{out}");
    }
}

#[test]
#[ignore = "a helper of the other tests"]
fn forwarder() {
    let Ok(ports) = std::env::var(FORWARD) else { return };
    let words: Vec<&str> = ports.split(' ').collect();
    let [from, to, ready] = words[..] else { panic!("{ports}") };
    let (from, to) = (Port::open(from).expect("a port"), Port::open(to).expect("a port"));
    File::create(ready).expect("a file");
    let begin = Instant::now();
    let mut frame = [0; 2048];
    // What is sent at which time; a packet to reorder, and the packets that still overtake it.
    let mut queue: BTreeMap<(Duration, u64), Vec<u8>> = BTreeMap::new();
    let mut kept: Option<(Vec<u8>, u32)> = None;
    let mut order = 0;
    loop {
        let timeout = if queue.is_empty() { Duration::from_millis(100) } else { Duration::ZERO };
        from.poll(Interest::RX, Some(timeout)).expect("packets");
        let now = begin.elapsed();
        let mut put = |at, frame: &[u8]| {
            order += 1;
            queue.insert((at, order), frame.to_vec());
        };
        let ring = &from.rx_rings()[0];
        let space = ring.space();
        for slot in ring.first(space) {
            let frame = &mut frame[..usize::from(slot.len())];
            slot.frame().read(0, frame);
            let Some(signature) = signature::find(frame) else { continue };
            match (signature.stream, signature.number) {
                (2, number) if number % 10 == 3 => {}
                (3, number) if number % 100 == 50 => kept = Some((frame.to_vec(), 5)),
                (3, _) => {
                    put(now, frame);
                    if let Some((late, left)) = &mut kept {
                        *left -= 1;
                        if *left == 0 {
                            put(now, late);
                            kept = None;
                        }
                    }
                }
                (4, number) => (0..1 + u32::from(number % 25 == 7)).for_each(|_| put(now, frame)),
                (5, _) => put(now + DELAY, frame),
                _ => put(now, frame),
            }
        }
        ring.advance(space);
        while let Some(entry) = queue.first_entry().filter(|entry| entry.key().0 <= begin.elapsed()) {
            assert!(to.send(entry.get(), Some(Duration::from_secs(5))).expect("a port"), "no room for 5 seconds");
            entry.remove();
        }
        to.txsync().expect("a port");
    }
}

#[test]
fn sender_and_receiver_may_be_two_processes() {
    let Some(daemon) = daemon() else { return };
    for (clock, here, there) in [("", "p{1", "p}1"), ("--wall-clock", "vale1:a", "vale1:b")] {
        let mut receiver =
            TestProcess::start(&mut daemon.command("pkt-gen", &format!("-i {there} --receive -W -w 0 --json {clock}")));
        receiver.await_note("Ready");
        let spec = "--stream rate=20kpps,size=60-1514,count=2000,name=one --stream rate=5Mbps,dst=fd00::2,count=500";
        let (code, out, err) = run(&daemon, &format!("-i {here} {spec} -w 0 {clock}"));
        assert_eq!(code, 0, "{err}");
        let row = |name: &str| out.lines().find(|line| line.starts_with(name)).map(str::to_owned).expect(name);
        assert!(row("one").contains(" 2000 ") && row("stream2").contains(" 500 "), "{out}");
        let (code, out, err) = receiver.wait();
        assert_eq!(code, 0, "{err}");
        let streams = events(&out, "stream");
        // The receiver does not know the names.
        assert_eq!((&streams["stream1"]["received"], &streams["stream1"]["lost"]), (&2000.into(), &0.into()), "{out}");
        assert_eq!(streams["stream2"]["received"], 500, "{out}");
        assert!(streams["stream1"]["latency_ns"]["max"].as_u64().expect("a time") < 60_000_000_000, "{out}");
    }
}

#[test]
fn a_sender_says_that_it_waits_and_ends_after_its_receiver() {
    let Some(daemon) = daemon() else { return };
    let sender = || {
        let spec = "-i p{1 --stream rate=1Mpps,count=20000 -w 0 --json";
        let mut tx = TestProcess::start(&mut daemon.command("pkt-gen", spec));
        tx.await_note("pkt-gen: netmap:p{1: its ring is full: waiting for a receiver");
        tx
    };
    for (count, status, note) in [(20_000, 0, ""), (5000, 1, "the peer has not released")] {
        let tx = sender();
        let (code, out, err) = run(&daemon, &format!("-i p}}1 --receive -n {count} -w 0 --json"));
        assert_eq!(code, 0, "{err}");
        assert!(events(&out, "stream")["stream1"]["received"].as_u64() >= Some(count), "{out}");
        let (code, out, err) = tx.wait();
        assert!(code == status && err.contains(note) && !events(&out, "stream").is_empty(), "{out}{err}");
    }
}

#[test]
fn threads_of_streams_run_on_their_processors() {
    let Some(daemon) = daemon() else { return };
    let allowed = |task: &str| {
        let status = fs::read_to_string(task).unwrap_or_default();
        let line = status.lines().find_map(|line| line.strip_prefix("Cpus_allowed_list:"));
        line.map(|list| list.trim().to_owned())
    };
    let own = allowed("/proc/self/status").expect("processors");
    let split = |text: &str| text.split([',', '-']).filter_map(|n| n.parse::<usize>().ok()).collect::<Vec<_>>();
    let (first, last) = (split(&own)[0], *split(&own).last().expect("a processor"));
    if first == last {
        return eprintln!("skipped: this machine has one processor");
    }
    for (args, wanted) in [("-c 0", vec![first, last]), ("--one-thread", vec![last])] {
        let spec = format!("-i p{{1 --receive=p}}1 --stream rate=1000 -w 0 -a {last} {args}");
        let mut running = TestProcess::start(&mut daemon.command("pkt-gen", &spec));
        running.await_note("Ready");
        let begin = Instant::now();
        loop {
            let tasks = fs::read_dir(format!("/proc/{}/task", running.0.id())).expect("threads");
            let status = |task: fs::DirEntry| task.path().join("status").display().to_string();
            let of_tasks = tasks.filter_map(|task| allowed(&status(task.ok()?)));
            let mut cpus: Vec<usize> = of_tasks.filter_map(|list| list.parse().ok()).collect();
            cpus.sort_unstable();
            if cpus == wanted {
                break;
            }
            assert!(begin.elapsed() < Duration::from_secs(20), "{args}: {cpus:?}");
            std::thread::sleep(Duration::from_millis(5));
        }
        running.0.kill().expect("our child");
        running.wait();
    }
    let (code, _, err) = run(&daemon, "-i p{1 --stream rate=1000 -w 0 -a 4000");
    assert!(code == 2 && err.contains("-a 4000"), "{err}");
}

#[test]
fn a_captured_packet_is_sent_as_a_stream() {
    let Some(daemon) = daemon() else { return };
    let (from, to) = (daemon.folder().join("from.pcap"), daemon.folder().join("to.pcap"));
    let udp = [
        &[0xff; 12][..],
        &[8, 0, 0x45, 0, 0, 82, 0, 0, 0, 0, 9, 17, 0, 0, 192, 0, 2, 1, 192, 0, 2, 2, 0, 7, 0, 9, 0, 62, 0, 0],
        &[0xcd; 54],
    ]
    .concat();
    fs::write(&from, Pcap::usual().records(&[vec![0xff; 60], udp]).bytes).expect("a file");
    let file = |number| {
        let stream = format!("[[stream]]\nrate = 1000\ncount = 3\npcap = \"{}\"\npacket = {number}\n", from.display());
        write_streams(&daemon, &(stream + "layers = [{ ip = { ttl = [7, 8] } }]"))
    };
    let path = file(2);
    let mut receiver = TestProcess::start(
        &mut daemon.command("pkt-gen", &format!("-i p}}1 -f rx -n 3 -w 0 --write {}", to.display())),
    );
    receiver.await_note("Ready");
    let (code, _, err) = run(&daemon, &format!("-i p{{1 --streams {path} -w 0"));
    assert_eq!(code, 0, "{err}");
    assert_eq!(receiver.wait().0, 0);
    let received = read_file(&to);
    assert_eq!(received.len(), 3);
    for (packet, ttl) in received.iter().zip([7, 8, 7]) {
        assert_eq!((packet.len(), packet[22], &packet[26..30]), (96, ttl, &[192, 0, 2, 1][..]));
        assert!(packet[42..78].iter().all(|byte| *byte == 0xcd), "the captured payload");
        assert!(signature::find(packet).is_some());
    }
    let (code, _, err) = run(&daemon, &format!("-i p{{1 --streams {} -w 0", file(3)));
    assert!(code == 1 && err.contains("it has 2"), "{err}");
}

/// Layers in many combinations, each with a transport inside, and whether they are in the first or the second file.
fn combinations() -> Vec<String> {
    let mut all = Vec::new();
    for below in [
        "",
        "{ vlan = { vlan = 7 } }, ",
        "{ qinq = {} }, { vlan = { prio = 5 } }, ",
        "{ mpls = {} }, ",
        "{ mpls = {} }, { mpls = { label = 9 } }, ",
    ] {
        for outer in [
            "{ ip = { src = { from = \"10.0.0.1\", random = true }, ttl = [3, 4] } }",
            "{ ipv6 = { fl = { from = 0 } } }",
        ] {
            for tunnel in [
                "",
                "{ gre = {} }, ",
                "{ gre = {} }, { ether = {} }, ",
                "{ udp = {} }, { vxlan = { vni = [5, 6] } }, { ether = {} }, ",
                "-",
            ] {
                for inner in [
                    "{ ip = { id = { from = 60000 }, tos = 9 } }, ",
                    "{ ipv6 = { dst = { from = \"::\", random = true } } }, ",
                ] {
                    for last in [
                        "{ udp = { sport = { from = 49200, to = 49300, random = true }, dport = 49301 } }",
                        "{ tcp = { seq = { random = true }, flags = 18 } }",
                        "{ icmp = { seq = { from = 65530 } } }",
                    ] {
                        let inside = match tunnel {
                            "" if inner.contains("v6") => continue, // one IP header only
                            "" => last.to_owned(),
                            "-" => format!("{inner}{last}"), // IP in IP
                            tunnel => format!("{tunnel}{inner}{last}"),
                        };
                        all.push(format!("{{ ether = {{}} }}, {below}{outer}, {inside}"));
                    }
                }
            }
        }
    }
    all
}

/// A packet of SCTP, with a wrong checksum.
fn sctp() -> Vec<u8> {
    let header = [&[2; 12][..], &[8, 0, 0x45, 0, 0, 116, 0, 0, 0, 0, 9, 132, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2]].concat();
    let data = [0x30, 0x39, 0, 80, 0, 0, 0, 7, 1, 2, 3, 4, 0, 3, 0, 84, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0];
    [&header[..], &data, &[0xab; 68]].concat()
}

#[test]
fn tshark_finds_no_wrong_checksum() {
    let Some(daemon) = daemon() else { return };
    if Command::new("tshark").arg("--version").output().is_err() {
        return eprintln!("skipped: there is no tshark");
    }
    fs::write(daemon.folder().join("sctp.pcap"), Pcap::usual().records(&[sctp()]).bytes).expect("a file");
    let all = combinations();
    assert!(all.len() >= 250, "{}", all.len());
    let sizes = ["\"imix\"", "\"161-1514\"", "201", "1500"];
    for (number, part) in all.chunks(200).enumerate() {
        let mut text = "[[stream]]\nname = \"sctp\"\npcap = \"sctp.pcap\"\nrate = \"1Mpps\"\ncount = 12\n".to_owned();
        for (i, layers) in part.iter().enumerate() {
            let size = sizes[i % sizes.len()];
            text += &format!("[[stream]]\nrate = \"1Mpps\"\ncount = 12\nsize = {size}\nlayers = [{layers}]\n");
        }
        let sent = 12 * (part.len() + 1);
        let (path, to) = (write_streams(&daemon, &text), daemon.folder().join(format!("{number}.pcap")));
        let write = format!("-i p}}1 -f rx -n {sent} -w 0 --write {}", to.display());
        let mut receiver = TestProcess::start(&mut daemon.command("pkt-gen", &write));
        receiver.await_note("Ready");
        let (code, _, err) = run(&daemon, &format!("-i p{{1 --streams {path} -w 0"));
        assert_eq!(code, 0, "{err}");
        assert_eq!(receiver.wait().0, 0);
        let found = |filter: &str| {
            let mut tshark = Command::new("tshark");
            tshark.arg("-r").arg(&to).args([
                "-Y",
                filter,
                "-T",
                "fields",
                "-e",
                "frame.number",
                "-e",
                "frame.protocols",
            ]);
            let check = ["ip", "tcp", "udp"].map(|layer| format!("-o{layer}.check_checksum:TRUE"));
            let output = tshark.args(check).arg("-osctp.checksum:CRC 32c").output().expect("tshark");
            assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
            String::from_utf8_lossy(&output.stdout).into_owned()
        };
        let of_status = |status: &str| {
            ["ip", "tcp", "udp", "icmp", "icmpv6", "sctp"]
                .map(|layer| format!("{layer}.checksum.status == {status}"))
                .join(" || ")
        };
        assert_eq!(found(&format!("{} || _ws.malformed", of_status("\"Bad\""))), "");
        // The filter sees each packet: its transport has a checksum that is right.
        assert_eq!(found(&of_status("\"Good\"")).lines().count(), sent);
    }
}

#[test]
fn wrong_streams_are_refused() {
    let Some(daemon) = daemon() else { return };
    let path = write_streams(&daemon, "[[stream]]\nrate = 1\nsize = 5000");
    for (args, status, part) in [
        (format!("--streams {path}"), 1, "does not fit a buffer"),
        ("--streams /nowhere/x.toml".into(), 1, "/nowhere/x.toml"),
        ("--stream rate=1,size=7".into(), 2, "too short"),
        ("--stream rate=1 -f tx".into(), 2, "--function"),
    ] {
        let (code, _, err) = run(&daemon, &format!("-i p{{1 -w 0 {args}"));
        assert!(code == status && err.contains(part), "{args}: {err}");
    }
}
