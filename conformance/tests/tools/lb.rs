// SPDX-License-Identifier: BSD-2-Clause
//! Flows of a port, spread over pipes by `lb`: none is torn apart, and each loss is counted.

use std::collections::{BTreeMap, BTreeSet};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use conformance::home::Guard;
use conformance::net::{CABLE, DIRECT, MEDIATED, Net, frame, open_in, take, transmit};
use conformance::traffic::open;
use conformance::{Home, LIMIT, isolated_with_interfaces, program, until};
use lab::VethOptions;
use serde_json::Value;
use unetmap::Port;

use conformance::forwarder::Forwarder;

const PIPES: usize = 4;
/// Connections, each with packets in both directions.
const FLOWS: u16 = 64;

/// Starts `lb`; returns when it works.
#[track_caller]
fn start(mut command: Command, args: &str) -> Forwarder {
    Forwarder::start(command.args(args.split_whitespace()))
}

#[track_caller]
fn plain(args: &str) -> Forwarder {
    start(Command::new(program("lb")), args)
}

#[track_caller]
fn number(value: &Value) -> u64 {
    value.as_u64().unwrap_or_else(|| panic!("{value} is no number"))
}

/// A UDP packet of connection `flow`, the `seq`th of it, there or back.
fn packet(flow: u16, seq: u32, back: bool) -> Vec<u8> {
    let mut bytes = vec![2, 0, 0, 0, 0, 0x99, 2, 0, 0, 0, 0, 1, 8, 0];
    bytes.extend([0x45, 0, 0, 46, 0, 0, 0, 0, 64, 17, 0, 0]);
    let (mut addresses, mut ports) = ([[10, 9, 0, 2], [10, 9, 0, 1]], [4000 + flow, 53]);
    if back {
        addresses.reverse();
        ports.reverse();
    }
    bytes.extend(addresses.concat());
    ports.iter().for_each(|port: &u16| bytes.extend(port.to_be_bytes()));
    bytes.extend([0, 26, 0, 0]);
    bytes.extend(seq.to_be_bytes());
    bytes.resize(60, 0);
    bytes
}

/// The flow and the number of a packet; `None` for packets of others.
fn read(bytes: &[u8]) -> Option<(u16, u32)> {
    let port = |at: usize| Some(u16::from_be_bytes(bytes.get(at..at + 2)?.try_into().ok()?));
    (port(12)? == 0x0800 && bytes.get(23) == Some(&17)).then_some(())?;
    let flow = [port(34)?, port(36)?].into_iter().find(|port| *port >= 4000)? - 4000;
    Some((flow, u32::from_be_bytes(bytes.get(42..46)?.try_into().ok()?)))
}

/// Sends frames on the first ring, waiting for room.
#[track_caller]
fn send(port: &Port, frames: &[Vec<u8>]) {
    transmit(port, 0, frames, 2048);
}

/// Discards received packets.
#[track_caller]
fn receive(port: &Port) -> Vec<Vec<u8>> {
    port.rxsync().expect("the daemon runs");
    let got = take(port, 0);
    port.rxsync().expect("the daemon runs");
    got
}

/// The packets received from each pipe, by flow.
#[derive(Default)]
struct Seen {
    /// For each connection its pipe, and the number last seen.
    flows: BTreeMap<u16, (usize, u32)>,
    packets: Vec<u64>,
}

impl Seen {
    fn add(&mut self, pipe: usize, frames: &[Vec<u8>]) {
        self.packets.resize(self.packets.len().max(pipe + 1), 0);
        for (flow, seq) in frames.iter().filter_map(|frame| read(frame)) {
            self.packets[pipe] += 1;
            let (in_pipe, last) = self.flows.entry(flow).or_insert((pipe, seq));
            assert_eq!(*in_pipe, pipe, "connection {flow} is in two pipes");
            assert!(seq >= *last, "connection {flow}: {seq} came after {last}");
            *last = seq;
        }
    }

    fn total(&self) -> u64 {
        self.packets.iter().sum()
    }
}

/// Sends `each` packets of each connection there and back, in turns.
fn traffic(from: u32, each: u32) -> Vec<Vec<u8>> {
    (from..from + each)
        .flat_map(|seq| (0..FLOWS).map(move |flow| packet(flow, seq, (seq ^ u32::from(flow)) & 1 == 1)))
        .collect()
}

#[test]
fn each_flow_stays_in_one_pipe_and_in_order() {
    isolated_with_interfaces(|_| {
        let lb = plain(&format!("-w 0 -i p}}feed -p lb:{PIPES}"));
        let feed = open("netmap:p{feed");
        let readers: Vec<Port> = (0..PIPES).map(|i| open(&format!("netmap:lb}}{i}"))).collect();
        let (mut seen, end) = (Seen::default(), Instant::now() + LIMIT);
        for round in 0..20 {
            send(&feed, &traffic(round * 10, 10));
            let due = u64::from(round + 1) * 10 * u64::from(FLOWS);
            // All of it before the next: no ring overflows.
            while seen.total() < due {
                assert!(Instant::now() < end, "{} of {due} packets came", seen.total());
                readers.iter().enumerate().for_each(|(i, reader)| seen.add(i, &receive(reader)));
            }
        }
        assert_eq!(seen.flows.len(), usize::from(FLOWS));
        assert!(seen.packets.iter().all(|&n| n > 0), "{:?}", seen.packets);
        let reported = lb.summary();
        assert_eq!((number(&reported["received"]), number(&reported["drops"])), (seen.total(), 0));
        let pipes: Vec<u64> = (0..PIPES).map(|i| number(&reported["pipes"][i]["packets"])).collect();
        assert_eq!(pipes, seen.packets);
    });
}

/// A worker is killed: the others get all of their packets meanwhile, and the next one gets what waited.
#[test]
fn a_killed_worker_costs_its_own_flows_alone_some_packets() {
    isolated_with_interfaces(|home| {
        let lb = plain(&format!("-w 0 -i p}}feed -p lb:{PIPES}"));
        let feed = open("netmap:p{feed");
        let mut readers: Vec<Port> = (0..PIPES).map(|i| open(&format!("netmap:lb}}{i}"))).collect();
        let (mut seen, end) = (Seen::default(), Instant::now() + LIMIT);
        // Sends ten packets of each flow, and reads those for the first pipes.
        let round = |round: u32, readers: &[Port], seen: &mut Seen, due: u64| {
            send(&feed, &traffic(round * 10, 10));
            while seen.total() < due {
                assert!(Instant::now() < end, "{} of {due} packets came", seen.total());
                readers.iter().enumerate().for_each(|(i, reader)| seen.add(i, &receive(reader)));
            }
        };
        round(0, &readers, &mut seen, 10 * u64::from(FLOWS));
        let own: Vec<u16> =
            seen.flows.iter().filter(|(_, (pipe, _))| *pipe == PIPES - 1).map(|(flow, _)| *flow).collect();
        let of_others = 10 * (u64::from(FLOWS) - own.len() as u64);
        drop(readers.pop());
        let mut command = Command::new(program("pkt-gen"));
        let name = format!("netmap:lb}}{}", PIPES - 1);
        let mut worker = Guard::spawn(command.args(["-f", "rx", "-w", "0", "-i", &name]).stdout(Stdio::null()));
        until("the worker reads", || home.snapshot().sessions.iter().any(|session| session.pid == worker.0.id()));
        for n in 1..4 {
            round(n, &readers, &mut seen, 10 * u64::from(FLOWS) + u64::from(n) * of_others);
        }
        worker.kill();
        for n in 4..7 {
            round(n, &readers, &mut seen, 10 * u64::from(FLOWS) + u64::from(n) * of_others);
        }
        let (next, mut waited) = (open(&name), BTreeSet::new());
        let all = |flow: &u16| (40..70).map(|seq| (*flow, seq)).collect::<Vec<_>>();
        let due: BTreeSet<(u16, u32)> = own.iter().flat_map(all).collect();
        until("the next worker gets what waited", || {
            waited.extend(receive(&next).iter().filter_map(|frame| read(frame)));
            waited.is_superset(&due)
        });
        let reported = lb.summary();
        assert_eq!((number(&reported["received"]), number(&reported["drops"])), (70 * u64::from(FLOWS), 0));
    });
}

/// One reader reads continuously, one sleeps and wakes later; `extra` buffers hold its packets meanwhile.
fn sleeper(extra: u64) {
    let lb = plain(&format!("-w 0 -i p}}feed -p lb:2 -B {extra}"));
    let feed = open("netmap:p{feed");
    let [lively, sleepy] = ["netmap:lb}0", "netmap:lb}1"].map(open);
    let capacity = u64::from(sleepy.rx_rings()[0].num_slots()) - 1 + extra;
    let (mut seen, mut other, end) = (Seen::default(), Seen::default(), Instant::now() + LIMIT);
    // The pipe at which a flow arrives shows whose it is.
    send(&feed, &traffic(0, 1));
    while seen.total() + other.total() < u64::from(FLOWS) {
        assert!(Instant::now() < end, "{} packets came", seen.total() + other.total());
        seen.add(0, &receive(&lively));
        other.add(1, &receive(&sleepy));
    }
    let (mine, his) = (seen.total(), other.total());
    let rounds = (capacity * 3 / his) as u32;
    for round in 1..=rounds {
        send(&feed, &traffic(round, 1));
        while seen.total() < mine * u64::from(round + 1) {
            assert!(Instant::now() < end, "round {round}: the sleeper delays the other");
            seen.add(0, &receive(&lively));
        }
    }
    let lost = u64::from(rounds) * his - capacity;
    // The sleeping reader wakes up and gets the kept packets in order; some were dropped slightly earlier than
    // necessary.
    let kept = || capacity - if extra > 0 { 128 } else { 0 };
    while other.total() < his + kept() {
        assert!(Instant::now() < end, "{} of {} packets came", other.total(), his + kept());
        other.add(1, &receive(&sleepy));
    }
    let reported = lb.summary();
    other.add(1, &receive(&sleepy));
    let drops: Vec<u64> = (0..2).map(|i| number(&reported["pipes"][i]["drops"])).collect();
    assert_eq!(drops[0], 0);
    assert!(drops[1] >= lost && drops[1] <= lost + 128, "{extra}: {} dropped, {lost} due", drops[1]);
    assert_eq!(number(&reported["received"]), number(&reported["forwarded"]) + drops[1]);
    assert_eq!(number(&reported["forwarded"]), seen.total() + other.total());
}

#[test]
fn a_sleeping_reader_delays_no_other_and_loses_only_its_own_packets() {
    isolated_with_interfaces(|_| sleeper(0));
}

#[test]
fn packets_for_a_slow_reader_wait_in_extra_buffers() {
    isolated_with_interfaces(|_| sleeper(512));
}

#[test]
fn packets_are_copied_to_every_group() {
    isolated_with_interfaces(|_| {
        let lb = plain("-w 0 -i p}feed -p first:2 -p second:1 -p first:1");
        let feed = open("netmap:p{feed");
        let readers = ["netmap:first}0", "netmap:first}1", "netmap:second}0", "netmap:first}2"].map(open);
        let mut seen: [Seen; 4] = Default::default();
        let end = Instant::now() + LIMIT;
        for round in 0..40u32 {
            send(&feed, &traffic(round * 10, 10));
            let due = u64::from(round + 1) * 10 * u64::from(FLOWS);
            while seen[2].total() < due || seen[3].total() < due {
                assert!(Instant::now() < end, "{due} due, {:?} came", seen.each_ref().map(Seen::total));
                readers.iter().enumerate().for_each(|(i, reader)| seen[i].add(i, &receive(reader)));
            }
            assert_eq!(seen[0].total() + seen[1].total(), due);
        }
        assert_eq!(number(&lb.summary()["drops"]), 0);
    });
}

#[test]
fn rules_direct_packets_to_their_pipe() {
    isolated_with_interfaces(|_| {
        let mut command = Command::new(program("lb"));
        command.args(["--steer", "udp dst port 53", "2", "--steer", "udp src port 53", "1"]);
        let lb = start(command, "-w 0 -i p}feed -p lb:3");
        let feed = open("netmap:p{feed");
        let readers = [0, 1, 2].map(|i| open(&format!("netmap:lb}}{i}")));
        let (mut counts, end) = ([0; 3], Instant::now() + LIMIT);
        let all: Vec<Vec<u8>> = (0..300).map(|i| packet(i as u16 % FLOWS, i, i % 3 == 0)).collect();
        send(&feed, &all);
        while counts.iter().sum::<usize>() < all.len() {
            assert!(Instant::now() < end, "{counts:?} came");
            readers.iter().zip(&mut counts).for_each(|(reader, n)| *n += receive(reader).len());
        }
        assert_eq!(counts, [0, 100, 200]);
        assert_eq!(number(&lb.summary()["drops"]), 0);
    });
}

#[test]
fn packets_of_several_slots_stay_whole() {
    isolated_with_interfaces(|_| {
        let lb = plain("-w 0 -i p}feed -p first:2 -p second:2 -B 300");
        let feed = open("netmap:p{feed");
        let readers = ["netmap:first}0", "netmap:first}1", "netmap:second}0", "netmap:second}1"].map(open);
        let long = |seq: u32| {
            let mut bytes = packet(seq as u16 % FLOWS, seq, false);
            bytes.extend(frame(2000 + 700 * (seq as usize % 10), u64::from(seq)));
            bytes
        };
        let (mut last, end) = (Vec::new(), Instant::now() + LIMIT);
        for round in 0..20 {
            let sent: Vec<Vec<u8>> = (round * 50..(round + 1) * 50).map(long).collect();
            transmit(&feed, 0, &sent, 700);
            while last.len() < (round as usize + 1) * 50 {
                assert!(Instant::now() < end, "{} packets came", last.len());
                readers[..2].iter().for_each(|reader| drop(receive(reader)));
                readers[2..].iter().for_each(|reader| last.extend(receive(reader)));
            }
        }
        for got in &last {
            let (_, seq) = read(got).expect("one of ours");
            assert!(*got == long(seq), "packet {seq} is not what was sent");
        }
        assert_eq!(number(&lb.summary()["drops"]), 0);
    });
}

#[test]
fn a_pipe_that_its_reader_opened_first_in_another_region_gets_copies() {
    isolated_with_interfaces(|_| {
        let first = open("netmap:q}0");
        // More than the first ring holds: the rest waits in extra buffers. What is read enters the second group.
        let lb = plain("-w 0 -i p}feed -p q:1 -p r:1 -B 2000");
        let feed = open("netmap:p{feed");
        let second = open("netmap:r}0");
        assert_ne!(first.mem_id(), feed.mem_id());
        assert_eq!(second.mem_id(), feed.mem_id());
        let sent = traffic(0, 25);
        for part in sent.chunks(400) {
            send(&feed, part);
            until("lb has taken them", || {
                feed.txsync().expect("the daemon runs");
                !feed.tx_rings()[0].pending()
            });
        }
        for reader in [&first, &second] {
            let mut got = Vec::new();
            until("all packets have come", || {
                got.extend(receive(reader));
                got.len() >= sent.len()
            });
            assert!(got == sent, "the packets, or their order, are not those that were sent");
        }
        let summary = lb.summary();
        assert_eq!((number(&summary["received"]), number(&summary["drops"])), (sent.len() as u64, 0), "{summary}");
    });
}

#[test]
fn extra_buffers_are_given_back() {
    isolated_with_interfaces(|home| {
        // Another port keeps the region.
        let feed = open("netmap:p{feed");
        let before = home.snapshot().buffers("p");
        for _ in 0..3 {
            let lb = plain("-w 0 -i p}feed -p 2 -B 1000");
            send(&feed, &traffic(0, 50));
            until("packets wait", || {
                feed.txsync().expect("the daemon runs");
                !feed.tx_rings()[0].pending()
            });
            assert!(number(&lb.summary()["received"]) > 0);
            until("all buffers are back", || home.snapshot().buffers("p") == before);
        }
    });
}

fn interface(home: &Home, policy: &str) {
    let Some(net) = Net::new(home, policy, VethOptions { queues: 2, ..CABLE }) else { return };
    let lb = start(net.near.command(program("lb")), "-w 0 -i va/R -p 4 -B 2000");
    let readers: Vec<Port> = (0..PIPES).map(|i| net.open(&format!("netmap:va}}{i}"))).collect();
    let sender = open_in(&net.far, "netmap:vb-0/T");
    let (mut seen, mut sent) = (Seen::default(), 0);
    // Two rounds fit into the ring: lb may not have synced again when the readers have the packets of one.
    for round in 0..100 {
        let frames = traffic(round * 5, 5);
        send(&sender, &frames);
        sent += frames.len() as u64;
        let end = Instant::now() + LIMIT;
        while seen.total() < sent {
            assert!(Instant::now() < end, "{} of {sent} packets came; {:?}", seen.total(), home.snapshot().ports);
            sender.txsync().expect("the daemon runs");
            readers.iter().enumerate().for_each(|(i, reader)| seen.add(i, &receive(reader)));
        }
    }
    assert_eq!(seen.flows.len(), usize::from(FLOWS));
    // Without readers each packet is forwarded or counted as dropped. The interface might lose a flood at once, so it
    // comes in parts. The interface has room for some hundred packets of each, and in all for more than the pipes and
    // the extra buffers.
    for round in 0..40 {
        let flood = traffic(1000 + round * 20, 20);
        send(&sender, &flood);
        sent += flood.len() as u64;
        until("a part of the flood is sent", || {
            sender.txsync().expect("the daemon runs");
            !sender.tx_rings()[0].pending()
        });
        std::thread::sleep(Duration::from_millis(5));
    }
    std::thread::sleep(Duration::from_millis(100));
    let reported = lb.summary();
    readers.iter().enumerate().for_each(|(i, reader)| seen.add(i, &receive(reader)));
    let [received, forwarded, drops] = ["received", "forwarded", "drops"].map(|name| number(&reported[name]));
    assert_eq!(received, forwarded + drops);
    assert!(drops > 0, "{reported}");
    // The kernel counts what the interface had no room for.
    assert!(received <= sent && seen.total() == forwarded, "{sent} sent, {} seen, {reported}", seen.total());
}

#[test]
fn packets_of_an_interface_are_all_delivered_or_counted() {
    isolated_with_interfaces(|home| interface(home, DIRECT));
}

#[test]
fn packets_of_a_mediated_interface_are_all_delivered_or_counted() {
    isolated_with_interfaces(|home| interface(home, MEDIATED));
}
