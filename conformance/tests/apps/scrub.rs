// SPDX-License-Identifier: BSD-2-Clause
//! `unetmap scrub`: attacks end there, each dropped packet has its reason, and connections notice nothing.

use std::fs;
use std::io::{Read as _, Write as _};
use std::net::{SocketAddrV4, TcpListener, TcpStream, UdpSocket};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use conformance::forwarder::{Forwarder, Line};
use conformance::home::{LIMIT, summary};
use conformance::host::{ATTACHMENTS, V4, net, ping, stream, until_clean};
use conformance::net::{Tap, take, transmit};
use conformance::pcap::pcap_file;
use conformance::traffic::open;
use conformance::{Home, isolated, isolated_with_interfaces, program, until};
use serde_json::Value;
use unetmap::Port;

/// A frame to 10.9.0.`host`: UDP, or TCP with these flags.
pub(crate) fn frame(macs: [[u8; 6]; 2], source: [u8; 4], host: u8, ports: [u16; 2], flags: Option<u8>) -> Vec<u8> {
    let mut bytes = macs.concat();
    bytes.extend([8, 0]);
    let mut ip = vec![0x45, 0, 0, 46, 0, 0, 0x40, 0, 64, if flags.is_some() { 6 } else { 17 }, 0, 0];
    ip.extend(source);
    ip.extend([10, 9, 0, host]);
    let sum: u32 = ip.chunks(2).map(|pair| u32::from(pair[0]) << 8 | u32::from(pair[1])).sum();
    let sum = !((sum & 0xffff) + (sum >> 16)) as u16;
    ip[10..12].copy_from_slice(&sum.to_be_bytes());
    bytes.extend(ip);
    bytes.extend(ports.into_iter().flat_map(u16::to_be_bytes));
    match flags {
        None => bytes.extend([0, 26, 0, 0]),
        Some(flags) => bytes.extend([0, 0, 0, 1, 0, 0, 0, 0, 0x50, flags, 1, 0, 0, 0, 0, 0]),
    }
    bytes.resize(60, 0);
    bytes
}

pub(crate) const MACS: [[u8; 6]; 2] = [[2, 0, 0, 0, 0, 1], [2, 0, 0, 0, 0, 2]];
const SYN: u8 = 2;

pub(crate) fn scrub(args: &[&str]) -> Command {
    let mut command = Command::new(program("unetmap"));
    command.arg("scrub").args(args);
    command
}

/// The objects that a run prints: events, and the summary.
#[track_caller]
fn objects(command: &mut Command) -> (Vec<Value>, Value) {
    let output = command.arg("--json").output().expect("it runs");
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{command:?}: {said}");
    split(&String::from_utf8_lossy(&output.stdout))
}

#[track_caller]
fn split(text: &str) -> (Vec<Value>, Value) {
    let mut all: Vec<Value> = text.lines().map(|line| serde_json::from_str(line).expect("an object")).collect();
    let last = all.pop().expect("a summary");
    assert_eq!(last["event"], "summary", "{last}");
    (all, last)
}

#[track_caller]
pub(crate) fn dropped(summary: &Value, reason: &str) -> u64 {
    summary["dropped"][reason]["packets"].as_u64().unwrap_or(0)
}

/// Frames of a capture, 1000 in a second: what passes, and of each reason 100.
fn mixed() -> Vec<Vec<u8>> {
    let mut all = Vec::new();
    for i in 0..100u8 {
        all.push(frame(MACS, [10, 1, 0, i], 1, [5000, 53], None));
        let mut broken = frame(MACS, [10, 1, 0, i], 1, [5000, 53], None);
        broken[24] ^= 1;
        all.push(broken);
        all.push(frame(MACS, [224, 0, 0, i], 1, [5000, 53], None));
        all.push(frame(MACS, [203, 9, 0, i], 1, [5000, 53], None));
        all.push(frame(MACS, [10, 2, 0, i], 1, [1900, 5000], None));
        all.push(frame(MACS, [10, 3, 0, i], 1, [5000, 7777], None));
        // Contradictory flags, and a connection request.
        all.push(frame(MACS, [10, 1, 0, i], 1, [5000, 80], Some(SYN | 1)));
        all.push(frame(MACS, [10, 1, 0, i], 1, [5000, 80], Some(SYN)));
    }
    all
}

#[test]
fn a_dry_run_tells_what_would_be_dropped_of_a_capture() {
    isolated(|home| {
        let [file, rules, list, kept] =
            ["in.pcap", "rules", "list", "dropped.pcapng"].map(|name| home.folder().join(name));
        fs::write(&file, pcap_file(&mixed())).expect("a file");
        fs::write(&rules, "add 200 deny udp from any to any 7777").expect("a file");
        fs::write(&list, "# a list\n203.9.0.0/25 # a network\n\n2001:db8:1::/48\n").expect("a file");
        let text = |path: &std::path::Path| path.to_str().expect("text").to_owned();
        let (file, rules, list, kept) = (text(&file), text(&rules), text(&list), text(&kept));
        let args = ["--read", &file, "--rules", &rules, "--deny-list", &list, "--attack", "100", "--dropped", &kept];
        let (events, last) = objects(scrub(&args).args(["--dropped-sample", "1"]));
        for (reason, packets) in
            [("malformed", 200), ("bogon", 100), ("listed", 100), ("amplification", 100), ("rule", 100)]
        {
            assert_eq!(dropped(&last, reason), packets, "{reason}: {last}");
        }
        assert_eq!((&last["received"]["packets"], &last["passed"]["packets"]), (&800.into(), &200.into()), "{last}");
        assert_eq!((&last["received"]["bytes"], &last["passed"]["bytes"]), (&48_000.into(), &12_000.into()), "{last}");
        // All is dropped within the first second.
        let kinds: Vec<_> = events.iter().map(|event| event["event"].as_str().expect("text")).collect();
        assert_eq!((kinds, &last["attacks"]), (vec!["attack_begin", "attack_end"], &1.into()), "{events:?}");
        assert_eq!(events[1]["dropped"], last["dropped"]);
        // Each dropped packet is in the file, with its reason.
        let written = fs::read(&kept).expect("a file");
        let count = |name: &str| written.windows(name.len()).filter(|part| *part == name.as_bytes()).count();
        assert_eq!((count("malformed"), count("bogon"), count("listed")), (200, 100, 100));
        assert_eq!(unetmap_capture::testing::read_file(kept.as_ref()).len(), 600);

        // Rates: of a source, of a prefix, of a destination.
        let flood: Vec<_> = (0..2000u32).map(|i| frame(MACS, [10, 1, 0, i as u8 % 4], 1, [5000, 53], None)).collect();
        fs::write(&file, pcap_file(&flood)).expect("a file");
        // 2000 packets in two seconds: a burst of one second, and two seconds' packets.
        for (option, rate, reason, passed) in [
            ("--source-rate", "50", "source", 4 * 50 * 3),
            ("--prefix-rate", "100", "prefix", 300),
            ("--destination-rate", "200", "destination", 600),
        ] {
            let (_, last) = objects(&mut scrub(&["--read", &file, option, rate]));
            let got = last["passed"]["packets"].as_u64().expect("a number");
            assert!(got.abs_diff(passed) <= 8 && dropped(&last, reason) == 2000 - got, "{option}: {last}");
            assert_eq!(last["sources"].as_array().map(Vec::len), Some(4), "{last}");
        }
        // A source that is allowed has no limit.
        fs::write(&list, "10.1.0.0/30").expect("a file");
        let (_, last) = objects(&mut scrub(&["--read", &file, "--source-rate", "50", "--allow-list", &list]));
        assert_eq!(last["passed"]["packets"], 2000, "{last}");
        // A packet of a later century: its file may have been made to keep the reader busy.
        let (mut bytes, at) = (pcap_file(&flood[..2]), 24 + 16 + flood[0].len());
        bytes[at..at + 4].copy_from_slice(&u32::MAX.to_ne_bytes());
        fs::write(&file, bytes).expect("a file");
        let (_, last) = objects(&mut scrub(&["--read", &file]));
        assert_eq!((&last["received"]["packets"], last["seconds"].as_f64() > Some(2e9)), (&2.into(), true), "{last}");
    });
}

#[test]
fn wrong_rules_and_lists_are_refused_with_their_place() {
    isolated(|home| {
        let file = home.folder().join("file");
        let path = file.to_str().expect("text");
        for (text, option, part) in [
            ("10.0.0.0/8\nexample.org\n", "--deny-list", "line 2: \"example.org\" is no address or prefix"),
            ("add 200 deny udp from\n", "--rules", "file: line 1"),
            ("add 10 deny ip from any to any\nadd 99 allow ip from any to any", "--rules", "give numbers from 100"),
            ("nat 1 config ip 10.0.0.1\nadd 200 nat 1 ip from any to any", "--rules", "belong to unetmap-fw"),
        ] {
            fs::write(&file, text).expect("a file");
            let output = scrub(&["netmap:a}1", "netmap:b{1", option, path]).output().expect("it runs");
            let said = String::from_utf8_lossy(&output.stderr);
            assert!(output.status.code() == Some(1) && said.contains(part), "{text}: {said}");
        }
        for (args, part) in [
            (&["netmap:a}1"][..], "is not an interface; give the second port"),
            (&[][..], "<IF|PORT>"),
            (&["--read", "none", "--source-rate", "0"][..], "give a number"),
            (&["--read", "none", "--return", "gre:10.0.0.1,fd00::1"][..], "two addresses of hosts, of one family"),
            (&["--read", "none", "--return", "vlan:4095"][..], "a number from 1 to 4094"),
            (&["--read", "none", "--return-to", "10.0.0.0/8"][..], "--return <gre:LOCAL,REMOTE|vlan:ID>"),
        ] {
            let output = scrub(args).output().expect("it runs");
            let said = String::from_utf8_lossy(&output.stderr);
            assert!(output.status.code() == Some(2) && said.contains(part), "{args:?}: {said}");
        }
    });
}

/// Frames that have arrived.
pub(crate) fn taken(port: &Port) -> Vec<Vec<u8>> {
    port.rxsync().expect("the daemon runs");
    let frames = take(port, 0);
    port.rxsync().expect("the daemon runs");
    frames
}

/// Between pipes: packets go both ways, a list that is changed is read again, and the metrics say what was dropped.
#[test]
fn a_list_that_changes_is_read_again_while_packets_flow() {
    isolated(|home| {
        let list = home.folder().join("list");
        fs::write(&list, "10.1.0.1\n").expect("a file");
        let mut command = scrub(&["netmap:a}1", "netmap:b{1", "-w", "0", "--metrics", "--deny-list"]);
        let running = Forwarder::start(command.arg(&list));
        let (wire, inside) = (open("netmap:a{1"), open("netmap:b}1"));
        let of = |host: u8| frame(MACS, [10, 1, 0, host], 1, [5000, 53], None);
        // Returns which of the two hosts come through. The last frame is always one that does.
        let passing = || {
            transmit(&wire, 0, &[of(1), of(2), of(9)], 20);
            let mut got = Vec::new();
            until("the last frame arrives", || {
                got.extend(taken(&inside));
                got.last() == Some(&of(9))
            });
            got.into_iter().map(|frame| frame[29]).filter(|host| *host != 9).collect::<Vec<_>>()
        };
        assert_eq!(passing(), [2]);
        fs::write(&list, "10.1.0.2\n").expect("a file");
        until("the list is read again", || passing() == [1]);
        fs::write(&list, "no address\n").expect("a file");
        std::thread::sleep(Duration::from_millis(200));
        assert_eq!(passing(), [1], "the old rules stay");
        transmit(&inside, 0, &[of(3)], 20);
        let mut back = Vec::new();
        until("a packet goes back", || {
            back.extend(taken(&wire));
            back == [of(3)]
        });
        let metrics = Command::new(program("unetmap")).arg("metrics").output().expect("it runs");
        let metrics = String::from_utf8_lossy(&metrics.stdout).into_owned();
        assert!(
            metrics.lines().any(|line| line.starts_with("unetmap_scrub_dropped_packets_total{")
                && line.contains("reason=\"listed\"")
                && !line.ends_with(" 0")),
            "{metrics}"
        );
        let last = running.summary();
        assert_eq!((&last["back"], dropped(&last, "rule")), (&1.into(), 0), "{last}");
        assert!(dropped(&last, "listed") >= 3, "{last}");
        let sum = last["passed"]["packets"].as_u64().expect("a number") + dropped(&last, "listed");
        assert_eq!(last["received"]["packets"], sum, "{last}");
    });
}

/// Five kinds of attack at once, beside connections that are opened, used and closed one after the other.
#[test]
fn attacks_of_five_kinds_end_and_no_connection_breaks() {
    const CONNECTIONS: u64 = 60;
    isolated_with_interfaces(|_| {
        let Some(line) = Line::new() else { return };
        let Line { left, middle, right, .. } = &line;
        let mut command = middle.command(program("unetmap"));
        command.args(["scrub", "left1", "right1", "-w", "0", "--syn-cookies", "10.9.0.2 7000"]);
        let running = Forwarder::start(command.args(["--source-rate", "1000", "--attack", "50", "--quiet", "1"]));
        let server = right.run(|| TcpListener::bind("10.9.0.2:7000")).expect("the namespace").expect("a listener");
        let service = right.run(|| UdpSocket::bind("10.9.0.2:7")).expect("the namespace").expect("a socket");
        service.set_nonblocking(true).expect("a socket");
        let macs = [right.mac("right0"), left.mac("left0")].map(|mac| mac.expect("an interface"));
        let tap = Tap::on(left, "left0");
        let (done, sent) = (AtomicBool::new(false), AtomicU64::new(0));
        let broken = std::thread::scope(|scope| {
            scope.spawn(|| attack(&tap, macs, &done, &sent));
            scope.spawn(|| {
                for _ in 0..CONNECTIONS {
                    let (mut stream, _) = server.accept().expect("a connection");
                    let mut got = Vec::new();
                    let echoed = stream.read_to_end(&mut got).and_then(|_| stream.write_all(&got));
                    echoed.expect("an open connection");
                }
            });
            let broken = (0..CONNECTIONS).filter(|i| connection(left, *i).is_err()).count();
            until("the attack has some thousand packets", || sent.load(Relaxed) > 20_000);
            done.store(true, Relaxed);
            broken
        });
        let mut bytes = [0; 64];
        let mut arrived = 0;
        while service.recv(&mut bytes).is_ok() {
            arrived += 1;
        }
        let last = running.summary();
        assert_eq!((broken, arrived), (0, 0), "{last}");
        let reasons = ["malformed", "bogon", "amplification", "source", "handshake"];
        for reason in reasons {
            assert!(dropped(&last, reason) > 100, "{reason}: {last}");
        }
        assert!(last["attacks"].as_u64() >= Some(1), "{last}");
        let (sum, sent) = (reasons.map(|reason| dropped(&last, reason)).iter().sum::<u64>(), sent.load(Relaxed));
        summary(&format!("{sent} packets of attacks, {sum} dropped; {CONNECTIONS} connections, {broken} broken"));
    });
}

/// Sends packets of five kinds: to a service of UDP, to the server of TCP.
fn attack(tap: &Tap, macs: [[u8; 6]; 2], done: &AtomicBool, sent: &AtomicU64) {
    let mut i = 0u32;
    while !done.load(Relaxed) {
        for _ in 0..8 {
            i += 1;
            let [_, _, b, c] = i.to_be_bytes();
            tap.send(&frame(macs, [224, 0, b, c], 2, [4096, 7], None));
            let mut broken = frame(macs, [10, 9, 0, 9], 2, [4096, 7], None);
            broken[24] ^= 1;
            tap.send(&broken);
            tap.send(&frame(macs, [20, 1, b, c], 2, [11211, 7], None));
            tap.send(&frame(macs, [20, 2, b, c], 2, [4096, 7000], Some(SYN)));
            // Of another destination, so that those within the rate reach nobody.
            for _ in 0..16 {
                tap.send(&frame(macs, [20, 3, 0, 1], 77, [4096, 7], None));
            }
        }
        sent.fetch_add(160, Relaxed);
        // A veth pair has no flow control: what is sent too fast is lost before the scrubber.
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// A connection that sends and gets back some bytes. Its source stays within its rate.
fn connection(from: &lab::Ns, number: u64) -> std::io::Result<()> {
    std::thread::sleep(Duration::from_millis(20));
    let to = SocketAddrV4::new([10, 9, 0, 2].into(), 7000);
    let mut stream = from.run(move || TcpStream::connect_timeout(&to.into(), LIMIT)).expect("the namespace")?;
    stream.set_read_timeout(Some(LIMIT))?;
    let text: Vec<u8> = (0..5000).map(|i| (i * 7 + number) as u8).collect();
    stream.write_all(&text)?;
    stream.shutdown(std::net::Shutdown::Write)?;
    let mut got = Vec::new();
    stream.read_to_end(&mut got)?;
    if got == text { Ok(()) } else { Err(std::io::ErrorKind::InvalidData.into()) }
}

/// Before the host of an interface: other traffic is unchanged, and a rate is kept.
fn guards_its_host(home: &Home, which: usize) {
    let attachment = ATTACHMENTS[which];
    let Some(net) = net(home, attachment, 1500) else { return };
    let start = |rate: &str| {
        let mut command = net.near.command(program("unetmap"));
        Forwarder::start(command.args(["scrub", "va", "-w", "0", "--on-failure", "open", "--source-rate", rate]))
    };
    let running = start("1M");
    for _ in 0..2 {
        ping(&net).expect("echoes");
        stream(&net.far, &net.near, V4[0]).expect("a stream inwards");
        stream(&net.near, &net.far, V4[1]).expect("a stream outwards");
    }
    let last = running.summary();
    assert_eq!(last["dropped"], Value::Object(serde_json::Map::new()), "{last}");
    let running = start("100");
    let service = net.near.run(|| UdpSocket::bind("10.9.0.1:7")).expect("a namespace").expect("a socket");
    service.set_read_timeout(Some(Duration::from_millis(300))).expect("a time");
    let macs = [net.near.mac("va"), net.far.mac("vb")].map(|mac| mac.expect("an interface"));
    let tap = net.tap();
    for i in 0..1500u32 {
        tap.send(&frame(macs, [10, 9, 0, 77], 1, [4096, 7], None));
        if i % 50 == 0 {
            std::thread::sleep(Duration::from_millis(5));
        }
    }
    let mut arrived = 0;
    while service.recv(&mut [0; 64]).is_ok() {
        arrived += 1;
    }
    ping(&net).expect("echoes");
    let last = running.summary();
    assert!(arrived >= 100 && dropped(&last, "source") > 100, "{arrived}: {last}");
    assert!(arrived + dropped(&last, "source") <= 1500, "{arrived}: {last}");
    until("the host has its interface again", || net.pings());
    until_clean(&net);
}

#[test]
fn a_host_behind_the_scrubber_has_its_traffic_and_no_flood() {
    isolated_with_interfaces(|home| guards_its_host(home, 0));
}

#[test]
fn a_host_behind_the_scrubber_on_four_queues() {
    isolated_with_interfaces(|home| guards_its_host(home, 3));
}

/// The commands of docs/scrubber.md, each block in a network of its own.
#[test]
fn the_commands_of_the_document_run() {
    isolated(|home| {
        let network = ["--net", "bash", "-euo", "pipefail", "-c"];
        let can_run = Command::new("unshare").args(network).arg("ip link set lo up").status();
        if !can_run.is_ok_and(|status| status.success()) {
            return summary("skipped: no network namespace can be made here");
        }
        let document =
            fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/scrubber.md")).expect("a document");
        let blocks: Vec<_> = document.split("```sh\n").skip(1).filter_map(|block| block.split("```").next()).collect();
        assert!(blocks.len() > 1, "{}", blocks.len());
        fs::write(home.folder().join("in.pcap"), pcap_file(&mixed())).expect("a file");
        let bin = program("unetmap").parent().expect("a file in a folder").to_owned();
        let path = std::env::var("PATH").unwrap_or_default();
        for block in blocks {
            let mut shell = Command::new("unshare");
            shell.args(network).arg(format!("ip link set lo up\n{block}")).current_dir(home.folder());
            let output = shell.env("PATH", format!("{}:{path}", bin.display())).stdin(Stdio::null()).output();
            let output = output.expect("it runs");
            assert!(output.status.success(), "{block}: {}", String::from_utf8_lossy(&output.stderr));
        }
    });
}
