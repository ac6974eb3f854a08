// SPDX-License-Identifier: BSD-2-Clause
//! Many ports that receive broadcasts: each flow keeps its order, mixed with unicast, multicast, broadcast and unknown
//! destinations; a port that does not read loses only its own packets, which are counted; other ports lose none.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Instant;

use conformance::ether::{self, BROADCAST, Mac, mac, make};
use conformance::home::summary;
use conformance::net::{BUFFER, take, transmit};
use conformance::request::control;
use conformance::switch::set;
use conformance::traffic::open;
use conformance::{Home, LIMIT, isolated, until};
use unetmap::Port;
use unetmap::abi::{NETMAP_REQ_PORT_HDR_SET, NmreqPortHdr};

const PORTS: usize = 20;
/// Number of ports that send: the first ones.
const SENDERS: usize = 4;
/// The port that reads a few packets from time to time.
const SLOW: usize = PORTS - 2;
/// The port that never reads.
const LAZY: usize = PORTS - 1;
const ROUNDS: u64 = 40;
/// Packets of each sender in a round.
const TURN: u64 = 60;

/// Variants in which the switch uses other code paths.
#[derive(Clone, Copy, PartialEq)]
enum Way {
    Plain,
    /// One port has a rule: all packets are copied and validated first.
    Ruled,
    /// Every other port has virtio-net headers.
    Headers,
    /// Packets of two slots.
    Chains,
}

fn name(port: usize) -> String {
    format!("vale0:p{port}")
}

/// The destination of packet `seq` of sender `from`.
fn destination(from: usize, seq: u64) -> Mac {
    let to = |port: usize| mac((port % PORTS) as u32);
    match seq % 6 {
        0 => BROADCAST,
        1 => [1, 0, 0x5e, 0, 0, 1],
        2 => mac(5000 + from as u32),
        3 => to(from + 1 + (seq / 6) as usize % (PORTS - 1)),
        4 => to(LAZY),
        _ => to(from + 2),
    }
}

fn goes_to(from: usize, seq: u64, to: usize) -> bool {
    from != to && (seq % 6 < 3 || destination(from, seq) == mac(to as u32))
}

/// Number of packets with these sequence numbers, of all senders, for a port.
fn due_to(to: usize, seqs: std::ops::Range<u64>) -> u64 {
    (0..SENDERS).map(|from| seqs.clone().filter(|seq| goes_to(from, *seq, to)).count() as u64).sum()
}

/// The packets that one port has received.
#[derive(Clone, Default)]
struct Arrivals {
    packets: u64,
    /// For each sender the least number that the next packet can have.
    next: [u64; SENDERS],
}

impl Arrivals {
    #[track_caller]
    fn record(&mut self, me: usize, packet: &[u8]) {
        let (from, seq) = ether::check(packet).unwrap_or_else(|e| panic!("at port {me}: {e}"));
        let next = &mut self.next[from as usize];
        assert!(seq >= *next, "port {me} receives packet {seq} of sender {from} behind {}", *next - 1);
        assert!(goes_to(from as usize, seq, me), "port {me} receives packet {seq} of sender {from}");
        (*next, self.packets) = (seq + 1, self.packets + 1);
    }
}

/// Sends one broadcast from each port, so that the switch learns the addresses, and discards the copies.
fn introduce(ports: &[Port], headers: &[usize]) {
    for (n, (port, header)) in ports.iter().zip(headers).enumerate() {
        let hello = make(BROADCAST, mac(n as u32), 999, n as u64);
        transmit(port, 0, &[[&vec![0; *header], &hello[..]].concat()], BUFFER);
    }
    for port in ports {
        let mut arrivals = 0;
        until("every port has received from every other", || {
            port.rxsync().expect("a switch");
            arrivals += take(port, 0).len();
            arrivals == PORTS - 1
        });
        port.rxsync().expect("a switch");
    }
}

fn exchange(home: &Home, way: Way) {
    let ports: Vec<Port> = (0..PORTS).map(|n| open(&name(n))).collect();
    let headers: Vec<usize> = (0..PORTS).map(|n| [0, 12][usize::from(way == Way::Headers) * (n % 2)]).collect();
    for (n, header) in headers.iter().enumerate().filter(|(_, header)| **header > 0) {
        let port_header = NmreqPortHdr { nr_hdr_len: *header as u32, ..Default::default() };
        control(NETMAP_REQ_PORT_HDR_SET, &name(n), port_header).expect("a port");
    }
    if way == Way::Ruled {
        set("port vale0:p5 filter out ether proto 0x88b5");
    }
    introduce(&ports, &headers);
    let mut arrivals = vec![Arrivals::default(); PORTS];
    // Received by the ports that read.
    let arrived = AtomicU64::new(0);
    let piece = if way == Way::Chains { 50 } else { BUFFER };
    let send = || {
        let mut due = 0;
        for round in (0..ROUNDS).map(|round| round * TURN..(round + 1) * TURN) {
            for (from, port) in ports[..SENDERS].iter().enumerate() {
                let packet = |seq| make(destination(from, seq), mac(from as u32), from as u64, seq);
                let packets = round.clone().map(|seq| [&vec![0; headers[from]], &packet(seq)[..]].concat());
                transmit(port, 0, &packets.collect::<Vec<_>>(), piece);
            }
            due += (0..SLOW).map(|to| due_to(to, round.clone())).sum::<u64>();
            // So no port that reads runs out of room.
            until("those who read have read", || arrived.load(Relaxed) == due);
        }
    };
    let mut listen = |n: usize| {
        let port = &ports[n];
        port.rxsync().expect("a switch");
        for packet in take(port, 0) {
            arrivals[n].record(n, &packet[headers[n]..]);
            arrived.fetch_add(u64::from(n < SLOW), Relaxed);
        }
    };
    std::thread::scope(|scope| {
        let sender = scope.spawn(send);
        let (mut turns, end) = (0u64, Instant::now() + LIMIT);
        while !sender.is_finished() {
            (0..SLOW).for_each(&mut listen);
            turns += 1;
            if turns.is_multiple_of(200) {
                listen(SLOW);
            }
            assert!(Instant::now() < end, "the senders do not get on");
        }
        sender.join().expect("all is sent");
    });
    until("all is delivered", || (0..SENDERS).all(|n| home.snapshot().ring(&name(n), "tx", 0).queued == 0));
    (0..PORTS).for_each(listen);
    let books = home.snapshot();
    let mut totals = [0; 3];
    for (n, arrivals) in arrivals.iter().enumerate() {
        let due = due_to(n, 0..ROUNDS * TURN);
        let dropped = books.ring(&name(n), "rx", 0).dropped;
        assert_eq!(arrivals.packets + dropped, due, "port {n}: {} arrived, {dropped} dropped", arrivals.packets);
        assert!(n >= SLOW || dropped == 0, "port {n} reads, and lost {dropped}");
        [due, arrivals.packets, dropped].iter().zip(&mut totals).for_each(|(n, total)| *total += n);
    }
    let lost: u64 = books.ports.iter().flat_map(|port| port.lost.values()).sum();
    assert_eq!(lost, 0);
    assert!(books.ring(&name(LAZY), "rx", 0).dropped > 0 && arrivals[LAZY].packets <= 1023);
    let [due, arrived, dropped] = totals;
    summary(&format!("{PORTS} ports: {due} due, {arrived} arrived in order, {dropped} dropped and counted"));
}

#[test]
fn flows_keep_their_order_and_losses_are_counted() {
    isolated(|home| exchange(home, Way::Plain));
}

#[test]
fn flows_keep_their_order_with_rules() {
    isolated(|home| exchange(home, Way::Ruled));
}

#[test]
fn flows_keep_their_order_with_different_headers() {
    isolated(|home| exchange(home, Way::Headers));
}

#[test]
fn flows_of_two_slot_packets_keep_their_order() {
    isolated(|home| exchange(home, Way::Chains));
}
