// SPDX-License-Identifier: BSD-2-Clause
//! `unetmap flows`: records of ports and of capture files, as collectors and readers of lines get them.

use std::fs;
use std::net::UdpSocket;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use conformance::collector::{Collector, Decoder, Record};
use conformance::home::{Guard, summary, wait_within};
use conformance::pcap::{pcap_file, udp};
use conformance::traffic::open;
use conformance::{isolated, program, until};
use rustix::process::Signal;
use serde_json::Value;

use conformance::forwarder::Forwarder;
use conformance::net::transmit;

/// Numbers of fields.
const OCTETS: u16 = 1;
pub(crate) const PACKETS: u16 = 2;
pub(crate) const FRAME_OCTETS: u16 = 352;

pub(crate) fn flows(args: &str) -> Command {
    let mut command = Command::new(program("unetmap"));
    command.arg("flows").args(args.split_whitespace());
    command
}

/// Writes a capture of these frames.
pub(crate) fn capture(folder: &Path, frames: &[Vec<u8>]) -> PathBuf {
    let path = folder.join("in.pcap");
    fs::write(&path, pcap_file(frames)).expect("a file");
    path
}

#[track_caller]
pub(crate) fn done(command: &mut Command) -> Output {
    let output = command.output().expect("it runs");
    assert!(output.status.success(), "{command:?}: {}", String::from_utf8_lossy(&output.stderr));
    output
}

/// The objects that a run with `--json` prints: records, and the summary.
#[track_caller]
pub(crate) fn objects(command: &mut Command) -> (Vec<Value>, Value) {
    let output = done(command.arg("--json"));
    let text = String::from_utf8(output.stdout).expect("text");
    let mut all: Vec<Value> = text.lines().map(|line| serde_json::from_str(line).expect("an object")).collect();
    let summary = all.pop().expect("a summary");
    assert_eq!(summary["event"], "summary");
    (all, summary)
}

#[track_caller]
fn sum(records: &[Value], field: &str) -> u64 {
    records.iter().map(|record| record[field].as_u64().unwrap_or_else(|| panic!("{field}: {record}"))).sum()
}

/// Ethernet, IPv6 with the fragment header that is given, and UDP or the rest of it.
fn ipv6(fragment: Option<[u8; 8]>, payload: &[u8]) -> Vec<u8> {
    let next = if fragment.is_some() { 44 } else { 17 };
    let body = [fragment.map(Vec::from).unwrap_or_default(), payload.to_vec()].concat();
    let head = [vec![2; 6], vec![4; 6], vec![0x86, 0xdd, 0x60, 0, 0, 0]].concat();
    let length = (body.len() as u16).to_be_bytes();
    let addresses = [[vec![0x20, 1], vec![0; 13], vec![1]].concat(), [vec![0x20, 1], vec![0; 13], vec![2]].concat()];
    [head, length.to_vec(), vec![next, 64], addresses.concat(), body].concat()
}

/// The frame with tags, or other bytes, behind its addresses.
fn with_tags(frame: &[u8], tags: &[u8]) -> Vec<u8> {
    [&frame[..12], tags, &frame[12..]].concat()
}

/// An IPv4 frame of another protocol, with other first bytes of its payload.
fn of_protocol(protocol: u8, payload: &[u8]) -> Vec<u8> {
    let mut frame = udp(0, 0, &[0; 40]);
    frame[23] = protocol;
    frame[34..34 + payload.len()].copy_from_slice(payload);
    frame
}

/// A frame, the version of its network layer (0: neither), and what tells its flow from others.
pub(crate) type Kind = (Vec<u8>, u8, Box<dyn Fn(&Record) -> bool>);

/// Frames of many kinds.
pub(crate) fn kinds() -> Vec<Kind> {
    let port = |from: u64, to: u64| move |flow: &Record| (flow.number(7), flow.number(11)) == (from, to);
    let mpls = |frame: &[u8]| [&frame[..12], &[0x88, 0x47, 0, 1, 0, 64, 0, 2, 1, 64], &frame[14..]].concat();
    let six = [&[0, 53, 0x10, 0, 0, 12, 0, 0][..], b"text"].concat();
    let mut arp = [vec![0xff; 6], vec![2, 0, 0, 0, 0, 7], vec![8, 6]].concat();
    arp.resize(60, 0);
    let is_v6 = |flow: &Record| flow.bytes(27).first() == Some(&0x20) && flow.bytes(28).last() == Some(&2);
    let tcp = [&[0, 80, 0x30, 0, 0, 0, 0, 1, 0, 0, 0, 0, 0x50, 0x12][..], &[0; 6]].concat();
    vec![
        (udp(1000, 2000, &[0; 30]), 4, Box::new(port(1000, 2000))),
        (of_protocol(6, &tcp), 4, Box::new(move |f| f.number(4) == 6 && f.number(6) == 0x12 && port(80, 0x3000)(f))),
        (of_protocol(1, &[8, 3, 0, 0]), 4, Box::new(move |f| f.number(4) == 1 && port(0, 0x803)(f))),
        (ipv6(None, &six), 6, Box::new(move |f| is_v6(f) && port(53, 0x1000)(f))),
        (
            with_tags(&udp(1001, 2000, &[0; 30]), &[0x81, 0, 0x20, 5]),
            4,
            Box::new(move |f| f.number(58) == 5 && port(1001, 2000)(f)),
        ),
        (
            with_tags(&udp(1002, 2000, &[0; 30]), &[0x88, 0xa8, 0, 7, 0x81, 0, 0, 9]),
            4,
            Box::new(move |f| f.number(58) == 7 && port(1002, 2000)(f)),
        ),
        (mpls(&udp(1003, 2000, &[0; 30])), 4, Box::new(port(1003, 2000))),
        (arp, 0, Box::new(|f| f.bytes(56) == [2, 0, 0, 0, 0, 7] && f.number(256) == 0x806)),
    ]
}

#[test]
fn records_of_all_kinds_of_frames_are_decoded() {
    isolated(|home| {
        let kinds = kinds();
        let frames: Vec<Vec<u8>> = kinds.iter().map(|(frame, ..)| frame.clone()).collect();
        let path = capture(home.folder(), &[frames.clone(), frames.clone()].concat());
        let bytes: u64 = frames.iter().map(|frame| 2 * frame.len() as u64).sum();
        for protocol in ["ipfix", "netflow9"] {
            let collector = Collector::start();
            let args = format!("--read {} --to {} --protocol {protocol}", path.display(), collector.address());
            let (records, summary) = objects(&mut flows(&args));
            assert_eq!(
                (records.len(), sum(&records, "packets")),
                (kinds.len(), 2 * kinds.len() as u64),
                "{records:#?}"
            );
            assert_eq!(
                (&summary["packets"], &summary["malformed"]),
                (&(2 * kinds.len()).into(), &0.into()),
                "{summary}"
            );
            let decoded = collector.decoded();
            assert_eq!(decoded.flows().count(), kinds.len());
            assert_eq!(
                (decoded.sum(PACKETS), decoded.sum(FRAME_OCTETS)),
                (2 * kinds.len() as u64, bytes),
                "{protocol}"
            );
            for (i, (frame, version, is)) in kinds.iter().enumerate() {
                let found: Vec<_> = decoded.flows().filter(|flow| version_of(flow) == *version && is(flow)).collect();
                let [flow] = found[..] else { panic!("{protocol}: kind {i}: {found:#?}") };
                assert_eq!((flow.number(PACKETS), flow.number(FRAME_OCTETS)), (2, 2 * frame.len() as u64));
                assert_eq!((flow.domain, flow.number(10)), (1, 1), "domain and interface");
                if protocol == "ipfix" {
                    let (first, last) = (flow.number(152), flow.number(153));
                    assert_eq!((first, last - first), (1_700_000_000_000 + i as u64, kinds.len() as u64), "times");
                    assert_eq!(
                        (flow.number(136), flow.number(245)),
                        (4, if i == 5 { 9 } else { 0 }),
                        "reason, inner VLAN"
                    );
                } else {
                    assert_eq!((flow.number(22), flow.number(21)), (i as u64, (i + kinds.len()) as u64), "times");
                }
            }
            let options: Vec<_> = decoded.records.iter().filter(|record| record.is_option).collect();
            assert!(
                options.iter().any(|option| !option.bytes(34).is_empty() && option.number(34) == 1),
                "{options:#?}"
            );
            let name = path.display().to_string();
            assert!(options.iter().any(|option| option.bytes(82).starts_with(&name.as_bytes()[..name.len().min(64)])));
        }
    });
}

/// The version of the network layer of a record; 0: neither.
fn version_of(flow: &Record) -> u8 {
    match (flow.bytes(8).len(), flow.bytes(27).len()) {
        (4, _) => 4,
        (_, 16) => 6,
        _ => 0,
    }
}

/// Fragments have the ports of the first one, both directions are one record, and what no flow has is counted.
#[test]
fn fragments_and_both_directions_are_one_record() {
    isolated(|home| {
        let mut first = udp(7, 8, &[0; 24]);
        (first[20], first[4 + 14], first[5 + 14]) = (0x20, 0, 9);
        let mut later = udp(0, 0, &[0; 24]);
        (later[20], later[21], later[4 + 14], later[5 + 14]) = (0, 4, 0, 9);
        let six = [&[0, 53, 0x10, 0, 0, 12, 0, 0][..], b"text"].concat();
        let fragments = [ipv6(Some([17, 0, 0, 1, 1, 2, 3, 4]), &six), ipv6(Some([17, 0, 0, 16, 1, 2, 3, 4]), &[9; 12])];
        let mut back = udp(8, 7, &[0; 40]);
        back[26..34].rotate_left(4);
        let mut cut = udp(7, 8, &[0; 24]);
        cut[14] = 0x41;
        let frames = [vec![first, later], fragments.to_vec(), vec![back, cut]].concat();
        let path = capture(home.folder(), &frames);
        let (records, counted) = objects(&mut flows(&format!("--read {}", path.display())));
        let of = |records: &[Value], ports: [u64; 2]| -> Vec<u64> {
            let wanted = records
                .iter()
                .filter(|record| record["source_port"] == ports[0] && record["destination_port"] == ports[1]);
            wanted.map(|record| record["packets"].as_u64().expect("a number")).collect()
        };
        assert_eq!((of(&records, [7, 8]), of(&records, [8, 7]), of(&records, [53, 4096])), (vec![2], vec![1], vec![2]));
        assert_eq!((&counted["packets"], &counted["malformed"], sum(&records, "packets")), (&6.into(), &1.into(), 6));

        let collector = Collector::start();
        done(&mut flows(&format!("--read {} --both-directions --to {}", path.display(), collector.address())));
        let decoded = collector.decoded();
        let both: Vec<_> = decoded.flows().filter(|flow| version_of(flow) == 4).collect();
        let [flow] = both[..] else { panic!("{both:#?}") };
        assert_eq!((flow.number(7), flow.number(PACKETS), flow.reverse(PACKETS)), (7, 2, 1), "from the first packet's");
        assert_eq!((flow.number(OCTETS), flow.reverse(OCTETS)), (2 * 52, 68));
        assert_eq!(decoded.flows().map(|flow| flow.number(PACKETS) + flow.reverse(PACKETS)).sum::<u64>(), 6);
    });
}

/// A cache with few places ends records early, and times that jump end them by time-out: nothing is counted twice or
/// lost.
#[test]
fn sums_are_exact_over_evictions_and_time_outs() {
    isolated(|home| {
        // A flow comes again after 500 packets, which are half a second.
        let frames: Vec<_> = (0..20_000).map(|i| udp(1000 + i % 500, 9, &[0; 18])).collect();
        let path = capture(home.folder(), &frames);
        for (args, reason, least) in [
            ("--flows 16", "evicted", 15_000),
            ("--idle 0.3", "idle", 15_000),
            ("--active 2 --flows 600", "active", 2000),
            ("--active 2 --idle 5 --both-directions", "active", 2000),
        ] {
            let collector = Collector::start();
            let (records, summary) =
                objects(&mut flows(&format!("--read {} --to {} {args}", path.display(), collector.address())));
            assert_eq!((sum(&records, "packets"), sum(&records, "frame_octets")), (20_000, 20_000 * 60), "{args}");
            assert_eq!(sum(&records, "octets"), 20_000 * 46, "{args}");
            let ended = summary["records"].as_object().expect("by reason");
            let all: u64 = ended.values().filter_map(Value::as_u64).sum();
            assert_eq!(all, records.len() as u64, "{args}: {summary}");
            assert!(ended[reason].as_u64() >= Some(least), "{args}: {summary}");
            assert_eq!((&summary["recorded_packets"], &summary["collector"]["records"]), (&20_000.into(), &all.into()));
            let decoded = collector.decoded();
            assert_eq!((decoded.flows().count() as u64, decoded.sum(PACKETS)), (all, 20_000), "{args}");
        }
    });
}

#[test]
fn one_packet_of_n_is_chosen_and_the_records_say_so() {
    isolated(|home| {
        let frames: Vec<_> = (0..10_050).map(|i| udp(1000 + i % 10, 9, &[0; 18])).collect();
        let path = capture(home.folder(), &frames);
        let collector = Collector::start();
        let (records, summary) =
            objects(&mut flows(&format!("--read {} --to {} --sample 100", path.display(), collector.address())));
        let chosen = summary["sampled_packets"].as_u64().expect("a number");
        assert!((100..=101).contains(&chosen), "one of each hundred: {summary}");
        assert_eq!((&summary["packets"], sum(&records, "packets")), (&10_050.into(), chosen));
        // Not always the same one of each hundred: its place among ten flows would be, too.
        assert!(records.len() > 1, "{records:#?}");
        let decoded = collector.decoded();
        assert!(decoded.records.iter().any(|record| record.is_option && record.bytes(310) == [0, 0, 0, 100]));
    });
}

/// By flow, all packets of the chosen ones are counted, in both directions.
#[test]
fn one_flow_of_n_is_chosen_with_all_its_packets() {
    isolated(|home| {
        let mut frames = Vec::new();
        for port in 1..=2000 {
            let mut back = udp(9, 1000 + port, &[0; 18]);
            back[26..34].rotate_left(4);
            frames.extend([udp(1000 + port, 9, &[0; 18]), back.clone(), back]);
        }
        let path = capture(home.folder(), &frames);
        let collector = Collector::start();
        let args = format!("--read {} --to {} --sample 10 --sample-by flow", path.display(), collector.address());
        let (records, summary) = objects(&mut flows(&args));
        let of = |field: &str, packets: u64| -> Vec<u64> {
            let chosen = records.iter().filter(|record| record["packets"] == packets);
            let mut ports: Vec<u64> = chosen.filter_map(|record| record[field].as_u64()).collect();
            ports.sort_unstable();
            ports
        };
        let there = of("source_port", 1);
        // 200 of 2000 are expected; the bounds are 6 standard deviations away.
        assert!((120..280).contains(&there.len()), "{}", there.len());
        assert_eq!((&there, 2 * there.len()), (&of("destination_port", 2), records.len()), "{summary}");
        assert_eq!(summary["sampled_packets"], 3 * there.len());
        let decoder = collector.decoded();
        let said =
            |option: &Record| (option.bytes(390).to_vec(), option.bytes(34).to_vec(), option.bytes(311).to_vec());
        let wanted = (vec![0, 4], vec![0, 0, 0, 10], 0.1f64.to_be_bytes().to_vec());
        assert!(decoder.records.iter().any(|record| record.is_option && said(record) == wanted));
    });
}

/// The datagrams of sFlow have the first bytes of the chosen packets, with the numbers that rates are computed from.
#[test]
fn sflow_has_the_chosen_packets() {
    isolated(|home| {
        let frames: Vec<_> = (0..1000).map(|i| udp(i, 9, &vec![i as u8; 10 + usize::from(i) % 300])).collect();
        let path = capture(home.folder(), &frames);
        let collector = Collector::start();
        let args = format!("--read {} --to {} --protocol sflow5 --sample 10", path.display(), collector.address());
        let (_, summary) = objects(&mut flows(&args));
        let (mut samples, mut last) = (0, 0);
        for (number, datagram) in (0..).zip(collector.messages()) {
            let words: Vec<u32> =
                datagram.chunks(4).map(|word| u32::from_be_bytes(word.try_into().expect("whole words"))).collect();
            assert_eq!(words[..5], [5, 1, 0x7f00_0001, 0, number], "version, agent, number of the datagram");
            let (count, mut at) = (words[6], 7);
            for _ in 0..count {
                let sample = &words[at..];
                samples += 1;
                let pool = sample[5] as usize;
                assert_eq!(sample[..5], [1, sample[1], samples, 1, 10], "a sample, its number, its source, the rate");
                assert!(
                    pool > last && pool <= 1000 && pool.div_ceil(10) == samples as usize,
                    "one of each ten: {pool}"
                );
                last = pool;
                let frame = &frames[pool - 1];
                let kept = frame.len().min(128);
                assert_eq!(sample[6..10], [0, 1, 0, 1], "drops, interfaces, records");
                let raw = [1, sample[11], 1, frame.len() as u32 + 4, 4, kept as u32];
                assert_eq!(sample[10..16], raw, "a packet of Ethernet and its lengths");
                assert_eq!(datagram[4 * (at + 16)..][..kept], frame[..kept]);
                assert_eq!(sample[1] / 4, 14 + kept.div_ceil(4) as u32, "words of the sample");
                assert_eq!(sample[11] / 4, 4 + kept.div_ceil(4) as u32, "words of the record");
                at += 2 + sample[1] as usize / 4;
            }
            assert_eq!(at, words.len(), "nothing follows");
        }
        assert_eq!((samples, &summary["collector"]["records"]), (100, &100.into()), "{summary}");
    });
}

/// The packets of two ports, while they flow: an end of a pipe, and a monitor of the other end.
#[test]
fn records_add_up_to_what_pkt_gen_sent() {
    isolated(|_home| {
        let collector = Collector::start();
        let _sender = open("netmap:p{1");
        let args = format!("netmap:p}}1 netmap:p{{1/t --to {} --active 0.2 --idle 0.3", collector.address());
        let running = Forwarder::start(&mut flows(&args));
        let n = 30_000;
        let mut pkt_gen = Command::new(program("pkt-gen"));
        pkt_gen.args(["-i", "netmap:p{1", "-f", "tx", "-w", "0", "-s", "10.0.0.1-10.0.0.9", "-R", "30000"]);
        done(pkt_gen.args(["-n", &n.to_string()]));
        let summary = running.summary();
        let decoded = collector.decoded();
        let of = |domain: u32, id: u16| -> u64 {
            decoded.flows().filter(|flow| flow.domain == domain).map(|flow| flow.number(id)).sum()
        };
        for domain in [1, 2] {
            assert_eq!((of(domain, PACKETS), of(domain, FRAME_OCTETS)), (n, n * 60), "domain {domain}: {summary}");
            assert_eq!(of(domain, OCTETS), n * 46);
        }
        assert_eq!((&summary["packets"], &summary["recorded_packets"]), (&(2 * n).into(), &(2 * n).into()));
        assert!(summary["records"]["active"].as_u64() > Some(0), "records ended while packets came: {summary}");
        assert_eq!((&summary["collector"]["unsent_records"], &summary["collector"]["refused"]), (&0.into(), &0.into()));
    });
}

#[test]
fn a_collector_that_is_gone_is_counted_and_blocks_nothing() {
    isolated(|home| {
        // The port is in use, by a socket that receives from another address alone.
        let other = UdpSocket::bind("127.0.0.1:0").expect("a port");
        other.connect("127.0.0.1:9").expect("an address");
        let address = other.local_addr().expect("bound").to_string();
        let frames: Vec<_> = (0..2000).map(|i| udp(1000 + i, 9, &[0; 18])).collect();
        let path = capture(home.folder(), &frames);
        let (records, summary) = objects(&mut flows(&format!("--read {} --to {address}", path.display())));
        assert_eq!(records.len(), 2000);
        assert!(summary["collector"]["refused"].as_u64() > Some(10), "{summary}");

        // The packets of a port are taken from it all the same.
        let near = open("netmap:p{1");
        let running = Forwarder::start(&mut flows(&format!("p}}1 --to {address} --idle 0.1 --active 0.1")));
        for chunk in frames.chunks(200) {
            transmit(&near, 0, chunk, 2048);
        }
        until("the packets are taken", || {
            near.txsync().expect("the daemon runs");
            !near.tx_rings()[0].pending()
        });
        assert_eq!(running.summary()["recorded_packets"], 2000);
    });
}

/// A reader of lines that stops reading costs records and no packets.
#[test]
fn a_reader_that_stops_blocks_no_packets() {
    isolated(|_home| {
        let near = open("netmap:p{1");
        let mut running = Guard::spawn(flows("p}1 --csv --flows 16").stdout(Stdio::piped()).stderr(Stdio::null()));
        let frames: Vec<_> = (0..1000).map(|i| udp(1000 + i, 9, &[0; 18])).collect();
        for _ in 0..60 {
            transmit(&near, 0, &frames, 2048);
        }
        until("the packets are taken", || {
            near.txsync().expect("the daemon runs");
            !near.tx_rings()[0].pending()
        });
        running.signal(Signal::INT);
        let output = std::io::read_to_string(running.0.stdout.take().expect("piped")).expect("text");
        assert!(running.wait().success());
        let titles: Vec<_> = output.lines().next().expect("titles").split(',').collect();
        assert!(titles.contains(&"frame_octets") && output.lines().all(|line| line.split(',').count() == titles.len()));
    });
}

#[test]
fn tables_show_the_most_bytes_first() {
    isolated(|home| {
        let frames = [vec![udp(5000, 53, &[0; 1000]); 3], vec![udp(53, 6000, &[0; 10]); 4]].concat();
        let path = capture(home.folder(), &frames);
        let output = done(&mut flows(&format!("--read {} --top --rows 1", path.display())));
        let text = String::from_utf8(output.stdout).expect("text");
        assert!(text.starts_with("7 packets, 3334 bytes in 0.0 s; 0 flows now\n"), "{text}");
        let row = |name: &str| {
            let row = text.lines().find(|line| line.starts_with(name)).unwrap_or_else(|| panic!("{name}: {text}"));
            row.split_whitespace().rev().skip(1).take(2).map(str::to_owned).collect::<Vec<_>>()
        };
        assert_eq!(row("udp/53"), ["3334", "7"]);
        assert_eq!(row("udp 10.9.0.2:5000 > 10.9.0.1:53"), ["3126", "3"]);
        assert_eq!(row("(others)"), ["3334", "7"], "of addresses");
        // Of a port: so many refreshes.
        let near = open("netmap:p{1");
        let mut running = flows("p}1 --top -n 2 -i 0.2");
        let mut running = Guard::spawn(running.stdout(Stdio::piped()).stderr(Stdio::null()));
        transmit(&near, 0, &frames, 2048);
        let text = std::io::read_to_string(running.0.stdout.take().expect("piped")).expect("text");
        assert!(running.wait().success() && text.matches(" flows now\n").count() == 2, "{text}");
    });
}

/// A capture of 200 packets at intervals of 1 ms, whose name is that of an attack.
#[test]
fn a_page_has_the_rates_and_the_most_bytes_of_the_whole_time() {
    isolated(|home| {
        let frames = [vec![udp(5000, 53, &[0; 1000]); 150], vec![udp(53, 6000, &[0; 10]); 50]].concat();
        let path = home.folder().join("<script>in&.pcap");
        fs::write(&path, pcap_file(&frames)).expect("a file");
        let page = home.folder().join("page.html");
        let run = |command: &mut Command| {
            done(command.arg("--html").arg(&page));
            fs::read_to_string(&page).expect("a page")
        };
        let html = run(flows("-i 0.05 --rows 1 --read").arg(&path));
        let (bytes, most) = (150 * 1042 + 50 * 52, 150 * 1042);
        assert!(html.contains("200 packets, 159k bytes in 0.199 s"), "{html}");
        assert!(html.contains("&lt;script&gt;in&amp;.pcap") && !html.contains("<script") && !html.contains("http"));
        // Four intervals of 50 packets, in a chart for wide screens and one for narrow ones.
        assert_eq!(html.matches("<title>all: 1000 at ").count(), 8, "{html}");
        // Two charts of rates, and those of addresses, ports and protocols.
        assert_eq!(html.matches("<svg ").count(), 10);
        let row = |name: &str, packets: usize, bytes: usize, share: &str| {
            let cell = |text: &str| format!("<td class=\"n\">{text}</td>");
            let row =
                format!("<td>{name}</td>{}{}{}", cell(&packets.to_string()), cell(&bytes.to_string()), cell(share));
            assert!(html.contains(&row), "{row}: {html}");
        };
        row("udp/53", 200, bytes, "100.00");
        row("udp", 200, bytes, "100.00");
        row("udp 10.9.0.2:5000 &gt; 10.9.0.1:53", 150, most, "98.36");
        row("(others)", 50, bytes - most, "1.64");
        // Of a port, beside records; and the page says what was chosen.
        let near = open("netmap:p{1");
        let mut command = flows("p}1 --sample 2 --sample-by count --html");
        let running = Forwarder::start(command.arg(&page));
        transmit(&near, 0, &frames, 2048);
        let seen = running.summary();
        assert_eq!(seen["packets"], 200, "{seen}");
        let html = fs::read_to_string(&page).expect("a page");
        assert!(html.contains("netmap:p}1") && html.contains("the tables are of 100 packets"), "{html}");
        assert!(html.contains("<td>udp/53</td><td class=\"n\">100</td>"), "{html}");
        // A file that has other names is not written: they may be in a folder of another user.
        fs::hard_link(&page, home.folder().join("other")).expect("a name");
        let output = flows("--read").arg(&path).arg("--html").arg(&page).output().expect("it runs");
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(!output.status.success() && said.contains("has other names"), "{said}");
    });
}

/// Decoders of others understand the messages.
#[test]
fn tshark_and_nfdump_decode_the_records() {
    isolated(|home| {
        let kinds = kinds();
        let frames: Vec<_> = kinds.iter().map(|(frame, ..)| frame.clone()).cycle().take(4000).collect();
        let path = capture(home.folder(), &frames);
        let bytes: usize = frames.iter().map(Vec::len).sum();
        let mut said = Vec::new();
        for protocol in ["ipfix", "netflow9"] {
            said.push(tshark(home.folder(), &path, protocol));
            said.push(nfdump(home.folder(), &path, protocol, frames.len(), bytes));
        }
        summary(&said.join("; "));
    });
}

pub(crate) fn has(program: &str) -> bool {
    let found = Command::new("sh").args(["-c", &format!("command -v {program}")]).stdout(Stdio::null()).status();
    found.is_ok_and(|status| status.success())
}

/// Has tshark look for what is malformed in messages.
fn tshark(folder: &Path, capture: &Path, protocol: &str) -> String {
    let collector = Collector::start();
    let args = format!("--read {} --to {} --protocol {protocol} --idle 0.005", capture.display(), collector.address());
    done(&mut flows(&args));
    let messages = collector.messages();
    let Some(text) = tshark_fields(folder, &messages, &["cflow.packets"]) else {
        return "no tshark (apt-get install tshark)".into();
    };
    let packets = text.split(['\t', ',', '\n']).filter_map(|number| number.parse::<u64>().ok()).sum::<u64>();
    assert_eq!(packets, 4000, "{protocol}: {text}");
    format!("tshark: {} messages of {protocol}", messages.len())
}

/// The values that tshark finds in these fields of messages, none of which is malformed. `None`: it is not installed.
#[track_caller]
pub(crate) fn tshark_fields(folder: &Path, messages: &[Vec<u8>], fields: &[&str]) -> Option<String> {
    if !has("tshark") {
        return None;
    }
    let messages: Vec<_> = messages.iter().map(|message| udp(9, 2055, message)).collect();
    let path = folder.join("messages.pcap");
    fs::write(&path, pcap_file(&messages)).expect("a file");
    let mut tshark = Command::new("tshark");
    tshark.args(["-d", "udp.port==2055,cflow", "-T", "fields", "-e", "_ws.malformed", "-e", "_ws.expert.message"]);
    for field in fields {
        tshark.args(["-e", field]);
    }
    let found = done(tshark.arg("-r").arg(&path));
    let text = String::from_utf8_lossy(&found.stdout).into_owned();
    assert!(text.lines().all(|line| line.starts_with("\t\t")), "{text}");
    Some(text)
}

/// The bytes that wait in the UDP socket with this port; `None`: there is none.
fn bytes_waiting(port: u16) -> Option<u64> {
    let list = fs::read_to_string("/proc/net/udp").expect("the kernel's list");
    let wanted = format!(":{port:04X}");
    let socket = list.lines().find(|line| line.split_whitespace().nth(1).is_some_and(|own| own.ends_with(&wanted)))?;
    u64::from_str_radix(socket.split_whitespace().nth(4)?.split_once(':')?.1, 16).ok()
}

/// Has nfcapd receive the records, and nfdump sum them.
fn nfdump(folder: &Path, capture: &Path, protocol: &str, packets: usize, bytes: usize) -> String {
    let mut counted = Value::Null;
    let listed = nfdump_lists(&folder.join(protocol), "fmt:%pkt %byt", |address| {
        let args = format!("--read {} --to {address} --protocol {protocol}", capture.display());
        counted = objects(&mut flows(&args)).1;
    });
    let Some(text) = listed else { return "no nfdump (apt-get install nfdump)".into() };
    let column = |i: usize| -> usize {
        text.lines().filter_map(|line| line.split_whitespace().nth(i)?.parse::<usize>().ok()).sum()
    };
    assert_eq!(column(0), packets, "{counted}: {text}");
    assert!(column(1) > packets * 28 && column(1) < bytes, "octets of the network layer: {text}");
    format!("nfdump: {packets} packets by {protocol}")
}

/// Has nfcapd receive what `send` sends to its address, and nfdump list it in this form. `None`: it is not installed.
#[track_caller]
pub(crate) fn nfdump_lists(folder: &Path, form: &str, send: impl FnOnce(&str)) -> Option<String> {
    if !has("nfcapd") || !has("nfdump") {
        return None;
    }
    fs::create_dir(folder).expect("a folder");
    let free = Collector::start();
    let port = free.address().rsplit(':').next().expect("a port").to_owned();
    free.messages();
    let mut nfcapd = Command::new("nfcapd");
    nfcapd.args(["-b", "127.0.0.1", "-p", &port, "-B", "4000000", "-w"]).arg(folder);
    let mut nfcapd = Guard::spawn(nfcapd.stdout(Stdio::null()).stderr(Stdio::null()));
    let address = format!("127.0.0.1:{port}");
    let waiting = || bytes_waiting(port.parse().expect("a number"));
    until("nfcapd listens", || waiting().is_some());
    send(&address);
    // It ends without what it has read and not stored. Once it has read this message, it has stored those before.
    let last = UdpSocket::bind("127.0.0.1:0").expect("a port");
    last.send_to(&[0; 4], &address).expect("sent");
    until("nfcapd has read all", || waiting() == Some(0));
    nfcapd.signal(Signal::TERM);
    assert!(wait_within(&mut nfcapd.0, std::time::Duration::from_secs(30)).is_some(), "nfcapd ends");
    let listed = done(Command::new("nfdump").args(["-q", "-N", "-o", form, "-R"]).arg(folder));
    Some(String::from_utf8_lossy(&listed.stdout).into_owned())
}

/// The commands of docs/flows.md, each block in a network of its own: ports of UDP are in them.
#[test]
fn the_commands_of_the_document_run() {
    isolated(|home| {
        let network = ["--net", "bash", "-euo", "pipefail", "-c"];
        let can_run = Command::new("unshare").args(network).arg("ip link set lo up").status();
        if !can_run.is_ok_and(|status| status.success()) {
            return summary("skipped: no network namespace can be made here");
        }
        let document =
            fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/flows.md")).expect("a document");
        let blocks: Vec<_> = document.split("```sh\n").skip(1).filter_map(|block| block.split("```").next()).collect();
        assert!(blocks.len() > 2, "{}", blocks.len());
        capture(home.folder(), &kinds().into_iter().map(|(frame, ..)| frame).collect::<Vec<_>>());
        let bin = program("unetmap").parent().expect("a file in a folder").to_owned();
        let path = std::env::var("PATH").unwrap_or_default();
        for block in blocks {
            let mut shell = Command::new("unshare");
            shell.args(network).arg(format!("ip link set lo up\n{block}")).current_dir(home.folder());
            done(shell.env("PATH", format!("{}:{path}", bin.display())).stdin(Stdio::null()));
        }
    });
}

/// Messages that the decoder of these tests must refuse.
#[test]
fn the_decoder_of_these_tests_refuses_wrong_messages() {
    let template = [0, 2, 0, 12, 1, 0, 0, 1, 0, 2, 0, 4];
    let message = |sequence: u8, sets: &[u8]| {
        let length = 16 + sets.len() as u8;
        [&[0, 10, 0, length, 0, 0, 0, 1, 0, 0, 0, sequence, 0, 0, 0, 1][..], sets].concat()
    };
    let data = [1, 0, 0, 8, 0, 0, 0, 7];
    let decode = |messages: &[Vec<u8>]| {
        let mut decoder = Decoder::default();
        messages.iter().for_each(|message| decoder.message(message));
        decoder.sum(PACKETS)
    };
    let good = message(0, &[&template[..], &data].concat());
    assert_eq!(decode(&[good.clone(), message(1, &data)]), 14);
    for wrong in [
        vec![good.clone(), message(2, &data)],
        vec![message(0, &data)],
        vec![[&good[..], &[0]].concat()],
        vec![good.clone(), message(1, &[1, 0, 0, 9, 0, 0, 0, 7, 1])],
    ] {
        assert!(std::panic::catch_unwind(|| decode(&wrong)).is_err(), "{wrong:?}");
    }
}
