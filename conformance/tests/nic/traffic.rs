// SPDX-License-Identifier: BSD-2-Clause
//! Packets that a port on an interface sends and receives, checked at the other end of the veth pair by the kernel's
//! sockets and counters: direct, where the program uses the AF_XDP sockets, and mediated, where the daemon does.

use std::net::UdpSocket;
use std::process::{Command, Stdio};
use std::time::Duration;

use conformance::home::{Guard, summary};
use conformance::net::{
    BUFFER, CABLE, DIRECT, MEDIATED, Net, arrived, assert_same, assert_works, collect, drain, frame, frames, open_in,
    pings, set_policy, take, transmit,
};
use conformance::traffic::{expect, fill, send};
use conformance::{Home, LIMIT, isolated_with_interfaces, program, until};
use lab::VethOptions;
use rustix::process::Signal;
use unetmap::Interest;
use unetmap::abi::NS_MOREFRAG;

/// Lengths around every bound, and then all others.
fn many_lengths(most: usize) -> Vec<usize> {
    let bounds = [14, 15, 59, 60, 61, 63, 64, 65, 1023, 1024, most - 1, most];
    bounds.into_iter().chain((14..most).step_by(7)).collect()
}

fn whole_and_counted(home: &Home, policy: &str) {
    let Some(net) = Net::new(home, policy, CABLE) else { return };
    let port = net.open("netmap:va");
    let (tap, before) = (net.tap(), net.far.counters("vb").expect("an interface"));
    // Several times round the ring.
    let mut sent = (0, 0);
    for round in 0..20 {
        let all = frames(&many_lengths(1514), round << 20);
        transmit(&port, 0, &all, BUFFER);
        assert_same(&tap.collect(all.len()), &all);
        sent = (sent.0 + all.len() as u64, sent.1 + all.iter().map(Vec::len).sum::<usize>() as u64);
    }
    drain(&port);
    tap.assert_quiet();
    assert_eq!(arrived(&net.far, "vb", before), sent, "the far interface counted otherwise");
    let mut got = 0;
    for round in 0..20 {
        let all = frames(&many_lengths(1514), round << 20 | 1 << 40);
        for some in all.chunks(200) {
            tap.send_all(some);
            assert_same(&collect(&port, some.len()), some);
            got += some.len();
        }
    }
    assert_eq!(home.snapshot().faults("va"), (0, 0));
    assert!(home.snapshot().ports.iter().flat_map(|p| &p.rings).all(|ring| ring.dropped == 0));
    summary(&format!("frames sent {}, received {got}, each compared; the far interface counted as many", sent.0));
}

#[test]
fn frames_are_whole_in_order_and_counted_direct() {
    isolated_with_interfaces(|home| whole_and_counted(home, DIRECT));
}

#[test]
fn frames_are_whole_in_order_and_counted_mediated() {
    isolated_with_interfaces(|home| whole_and_counted(home, MEDIATED));
}

/// Packets of the far stack are received, and sent packets reach a socket of that stack.
#[test]
fn the_far_stack_is_reached_both_ways() {
    isolated_with_interfaces(|home| {
        let Some(net) = Net::new(home, DIRECT, CABLE) else { return };
        let (mac_a, mac_b) = (net.near.mac("va").expect("a MAC"), net.far.mac("vb").expect("a MAC"));
        let text = mac_a.map(|b| format!("{b:02x}")).join(":");
        net.far.ip(&["neigh", "add", "10.9.0.1", "lladdr", &text, "dev", "vb"]).expect("a neighbour");
        let port = net.open("netmap:va");
        let far = net.far.run(|| UdpSocket::bind("10.9.0.2:7")).expect("a namespace").expect("a socket");
        far.set_read_timeout(Some(LIMIT)).expect("a time-out");
        for n in 0..50u8 {
            let text = [n; 40];
            far.send_to(&text, "10.9.0.1:8").expect("a route");
            let got = collect(&port, 1).remove(0);
            // Ethernet, IPv4, UDP: 42 bytes.
            assert_eq!((got.len(), &got[..6], &got[6..12], &got[12..14]), (82, &mac_a[..], &mac_b[..], &[8, 0][..]));
            assert_eq!(got[42..], text);
            // The reply is the same packet with addresses and ports swapped, which leaves the checksums valid.
            let parts = [&got[6..12], &got[..6], &got[12..26], &got[30..34], &got[26..30], &got[36..38], &got[34..36]];
            let answer = [&parts.concat(), &got[38..]].concat();
            transmit(&port, 0, &[answer], BUFFER);
            let mut back = [0; 100];
            assert_eq!(far.recv_from(&mut back).expect("an answer"), (40, "10.9.0.1:8".parse().expect("an address")));
            assert_eq!(back[..40], text);
        }
        summary("datagrams 50 from the far stack, answers 50 to it");
    });
}

fn too_short_or_too_long(home: &Home, policy: &str) {
    let Some(net) = Net::new(home, policy, CABLE) else { return };
    let (port, tap) = (net.open("netmap:va"), net.tap());
    let before = net.far.counters("vb").expect("an interface");
    let ring = &port.tx_rings()[0];
    // Each invalid frame is between two valid ones, which are sent in order.
    let bad = [0, 1, 13, BUFFER as u16 + 1, 0x8000, u16::MAX];
    let mut good = Vec::new();
    for round in 0..20 {
        until("room", || {
            port.txsync().expect("the daemon runs");
            ring.space() > 2 * bad.len() as u32
        });
        for (i, slot) in ring.available().take(2 * bad.len()).enumerate() {
            let next = frame(60 + i, round * 100 + i as u64);
            slot.frame().write(0, &next);
            slot.set_len_flags(if i % 2 == 0 { next.len() as u16 } else { bad[i / 2] }, 0);
            if i % 2 == 0 {
                good.push(next);
            }
        }
        ring.advance(2 * bad.len() as u32);
        port.txsync().expect("bad slots are no error");
    }
    assert_same(&tap.collect(good.len()), &good);
    drain(&port);
    tap.assert_quiet();
    assert_eq!(arrived(&net.far, "vb", before).0, good.len() as u64);
    // As scripts see it.
    let bad = 20 * bad.len() as u64;
    until("all of them are counted", || listed(home, "va", "tx", "bad_slots") == bad);
    assert_eq!(home.snapshot().faults("va").1, 0, "no ring pointer was invalid");
    assert_works(&port, &tap, 1 << 30);
    summary(&format!("slots of wrong length {bad}, none sent, each counted; frames between them {}", good.len()));
}

/// Ring 0 of an interface in the snapshot, mediated or direct.
fn listed(home: &Home, port: &str, dir: &str, what: &str) -> u64 {
    let output = Command::new(program("unetmap")).args(["ls", "--json"]).env("UNETMAP_SOCKET", home.socket()).output();
    let output = output.expect("unetmap runs");
    let all: serde_json::Value = serde_json::from_slice(&output.stdout).expect("JSON");
    let ports = all["ports"].as_array().expect("ports").iter().filter(|p| p["name"] == port && p["kind"] == "nic");
    let rings = ports.flat_map(|p| p["rings"].as_array().expect("rings"));
    let found = { rings }.find(|ring| ring["dir"] == dir && ring["id"] == 0).expect("the ring");
    found[what].as_u64().expect("a number")
}

#[test]
fn wrong_lengths_are_not_sent_and_counted_direct() {
    isolated_with_interfaces(|home| too_short_or_too_long(home, DIRECT));
}

#[test]
fn wrong_lengths_are_not_sent_and_counted_mediated() {
    isolated_with_interfaces(|home| too_short_or_too_long(home, MEDIATED));
}

/// A frame that fills its buffer, and the next longer one.
fn buffers_to_the_last_byte(home: &Home, policy: &str) {
    let cable = VethOptions { mtu: 3000, ..CABLE };
    let Some(net) = Net::new(home, policy, cable) else { return };
    let (port, tap) = (net.open("netmap:va"), net.tap());
    let lens = [BUFFER - 1, BUFFER, BUFFER + 1, 2 * BUFFER / 2, 3000, 3014, 60, 2100];
    let all = frames(&lens, 0);
    for some in [&all[..], &all[..2], &all[2..]] {
        transmit(&port, 0, some, BUFFER);
        assert_same(&tap.collect(some.len()), some);
    }
    // Uneven parts, each shorter than an Ethernet header.
    transmit(&port, 0, &all[4..5], 200);
    assert_same(&tap.collect(1), &all[4..5]);
    let small = frames(&[60], 9);
    transmit(&port, 0, &small, 10);
    assert_same(&tap.collect(1), &small);
    // Receive: the number of slots of each frame, and its contents.
    for (seq, len) in (100..).zip(lens) {
        let sent = frame(len, seq);
        tap.send(&sent);
        port.poll(Interest::RX, Some(LIMIT)).expect("the daemon runs");
        let flags: Vec<u16> = port.rx_rings()[0].available().map(|slot| slot.flags() & NS_MOREFRAG).collect();
        let mut wanted = vec![NS_MOREFRAG; len.div_ceil(BUFFER)];
        *wanted.last_mut().expect("at least one") = 0;
        assert_eq!(flags, wanted, "slots of {len} bytes");
        assert_same(&take(&port, 0), &[sent]);
    }
    // Round the ring several times, so that chains wrap.
    let lens: Vec<usize> = (0..200).map(|i| if i % 3 == 0 { 3000 } else { 60 + i * 5 }).collect();
    for round in 0..12 {
        let all = frames(&lens, 1000 * round);
        transmit(&port, 0, &all, BUFFER / 2);
        assert_same(&tap.collect(all.len()), &all);
        tap.send_all(&all);
        assert_same(&collect(&port, all.len()), &all);
    }
    assert_eq!(home.snapshot().faults("va"), (0, 0));
    // A packet with one invalid slot is not sent at all; later packets are.
    let ring = &port.tx_rings()[0];
    for (i, slot) in ring.available().take(3).enumerate() {
        slot.set_len_flags(if i == 1 { BUFFER as u16 + 1 } else { 100 }, if i < 2 { NS_MOREFRAG } else { 0 });
    }
    ring.advance(3);
    port.txsync().expect("bad slots are no error");
    assert_works(&port, &tap, 1 << 30);
    until("it is counted", || listed(home, "va", "tx", "bad_slots") == 3);
    // An unterminated chain is sent only when its last slot follows.
    for slot in ring.available().take(2) {
        slot.frame().write(0, &frame(100, 5));
        slot.set_len_flags(100, NS_MOREFRAG);
    }
    ring.advance(2);
    port.txsync().expect("the daemon runs");
    tap.assert_quiet();
    let last = ring.available().next().expect("room");
    last.frame().write(0, &frame(100, 5));
    last.set_len_flags(100, 0);
    ring.advance(1);
    port.txsync().expect("the daemon runs");
    assert_eq!(tap.next(LIMIT).expect("the chain").len(), 300);
    summary("frames of 2048, 2049, 3000 and 3014 bytes in buffers of 2048, whole both ways");
}

#[test]
fn frames_of_several_buffers_direct() {
    isolated_with_interfaces(|home| buffers_to_the_last_byte(home, DIRECT));
}

#[test]
fn frames_of_several_buffers_mediated() {
    isolated_with_interfaces(|home| buffers_to_the_last_byte(home, MEDIATED));
}

/// Four queues: a program for each, and one for all of the far end.
fn queues(home: &Home, policy: &str) {
    let cable = VethOptions { queues: 4, ..CABLE };
    let Some(net) = Net::new(home, policy, cable) else { return };
    let all = open_in(&net.far, "netmap:vb");
    assert_eq!((all.tx_rings().len(), all.rx_rings().len()), (4, 4));
    let each: Vec<_> = (0..4).map(|q| net.open(&format!("netmap:va-{q}"))).collect();
    for round in 0..10 {
        for (q, port) in each.iter().enumerate() {
            assert_eq!((port.tx_rings().len(), port.rx_rings().len()), (1, 1));
            assert_eq!((port.tx_rings()[0].id(), port.rx_rings()[0].id()), (q as u16, q as u16));
            let sent = frames(&[60, 200, 1000, 1514].repeat(20), (round * 4 + q as u64) << 20);
            transmit(&all, q, &sent, BUFFER);
            assert_same(&collect(port, sent.len()), &sent);
            transmit(port, 0, &sent, BUFFER);
            until("all arrive at the queue of the same number", || {
                all.rxsync().expect("the daemon runs");
                let there: Vec<u32> = all.rx_rings().iter().map(|ring| ring.space()).collect();
                there.iter().sum::<u32>() == sent.len() as u32 && there[q] == sent.len() as u32
            });
            assert_same(&take(&all, q), &sent);
        }
    }
    // One program for all at this end as well, besides the four: they share the rings.
    let again = net.open("netmap:va");
    assert_eq!(again.tx_rings().len(), 4);
    drop(each);
    for q in 0..4 {
        let sent = frames(&[60; 50], 1 << 40 | (q as u64) << 20);
        transmit(&again, q, &sent, BUFFER);
        until("all arrive", || {
            all.rxsync().expect("the daemon runs");
            all.rx_rings()[q].space() == 50
        });
        assert_same(&take(&all, q), &sent);
    }
    let (errno, why) = net.refused("netmap:va-4");
    assert!(errno == 22 && why.contains("there is no ring 4"), "{errno} {why}");
    summary("queues 4, each with a program of its own, then one with all");
}

#[test]
fn each_queue_has_its_own_program_direct() {
    isolated_with_interfaces(|home| queues(home, DIRECT));
}

#[test]
fn each_queue_has_its_own_program_mediated() {
    isolated_with_interfaces(|home| queues(home, MEDIATED));
}

/// Queues that are not bound, and packets received on queues bound only for sending, stay with the kernel.
fn what_is_not_bound_is_the_kernels(home: &Home, policy: &str) {
    let cable = VethOptions { queues: 2, ..CABLE };
    let Some(net) = Net::new(home, policy, cable) else { return };
    // The far stack sends from its first queue alone, so that all its frames arrive at our first queue.
    net.far.tool("ethtool", &["-L", "vb", "tx", "1"]).expect("ethtool");
    assert!(net.pings());
    let tap = net.tap();

    let second = net.open("netmap:va-1");
    assert!(net.has_xdp());
    assert!(net.pings(), "the kernel receives on the first queue while the second is bound");
    transmit(&second, 0, &frames(&[60], 1), BUFFER);
    assert_same(&tap.collect(1), &frames(&[60], 1));

    let first = net.open("netmap:va-0");
    assert!(!net.pings(), "the first queue is bound");
    assert!(!collect(&first, 1).is_empty(), "the port receives the ping's frames");
    drop(first);
    until("the stack has the first queue again", || net.pings());
    drop(second);
    net.assert_given_back();

    let only_tx = net.open("netmap:va/T");
    assert_eq!((only_tx.tx_rings().len(), only_tx.rx_rings().len()), (2, 0));
    assert!(net.pings(), "the kernel receives where only the transmit ring is bound");
    transmit(&only_tx, 1, &frames(&[99], 2), BUFFER);
    assert_same(&tap.collect(1), &frames(&[99], 2));
    let only_rx = net.open("netmap:va-0/R");
    assert_eq!((only_rx.tx_rings().len(), only_rx.rx_rings().len()), (0, 1));
    tap.send_all(&frames(&[200], 3));
    until("the frame comes", || {
        only_rx.rxsync().expect("the daemon runs");
        take(&only_rx, 0).contains(&frame(200, 3))
    });
    // Both directions of one queue, opened by different clients.
    transmit(&only_tx, 0, &frames(&[98], 4), BUFFER);
    assert_same(&tap.collect(1), &frames(&[98], 4));
    drop(only_rx);
    until("what is received is the kernel's again", || net.pings());
    transmit(&only_tx, 0, &frames(&[97], 5), BUFFER);
    assert_same(&tap.collect(1), &frames(&[97], 5));
    drop(only_tx);
    net.assert_given_back();
    let (errno, why) = net.refused("netmap:va/RT");
    assert!(errno == 22, "{why}");
}

#[test]
fn queues_that_are_not_bound_stay_with_the_kernel_direct() {
    isolated_with_interfaces(|home| what_is_not_bound_is_the_kernels(home, DIRECT));
}

#[test]
fn queues_that_are_not_bound_stay_with_the_kernel_mediated() {
    isolated_with_interfaces(|home| what_is_not_bound_is_the_kernels(home, MEDIATED));
}

#[test]
fn requested_slot_counts_are_rounded() {
    isolated_with_interfaces(|home| {
        let Some(net) = Net::new(home, DIRECT, CABLE) else { return };
        for policy in [DIRECT, MEDIATED] {
            set_policy(home, policy);
            let asked_nothing = net.open("netmap:va");
            let usual = |ring: &unetmap::Ring| ring.num_slots();
            let (tx, rx) = (usual(&asked_nothing.tx_rings()[0]), usual(&asked_nothing.rx_rings()[0]));
            drop(asked_nothing);
            until("the port is closed", || home.snapshot().ports.is_empty());
            for (spec, tx, rx) in [
                ("netmap:va", tx, rx),
                ("netmap:va@conf:slots=100", 128, 128),
                ("netmap:va@conf:tx-slots=3,rx-slots=64", 4, 64),
                ("netmap:va@conf:rx-slots=65", tx, 128),
                ("netmap:va@conf:slots=1", 2, 2),
                ("netmap:va@conf:slots=4096", 4096, 4096),
                ("netmap:va@conf:slots=100000", 4096, 4096),
            ] {
                let port = net.open(spec);
                let (t, r) = (&port.tx_rings()[0], &port.rx_rings()[0]);
                assert_eq!((t.num_slots(), r.num_slots()), (tx, rx), "{spec}");
                assert_eq!((port.register().nr_tx_slots, port.register().nr_rx_slots), (tx, rx), "{spec}");
                assert_eq!((t.space(), r.space()), (tx - 1, 0), "{spec}");
                // Some times round, one frame after the other.
                let tap = net.tap();
                let times = u64::from(tx.max(rx)).min(300) * 3;
                for seq in 0..times {
                    let one = frames(&[60], seq);
                    transmit(&port, 0, &one, BUFFER);
                    tap.send(&one[0]);
                    assert_same(&tap.collect(1), &one);
                    assert_same(&collect(&port, 1), &one);
                }
                // A later open gets the existing rings.
                let other = net.open("netmap:va@conf:slots=32");
                assert_eq!(other.tx_rings()[0].num_slots(), tx, "{spec}");
                drop((port, other));
                until("the port is closed", || home.snapshot().ports.is_empty());
            }
        }
    });
}

#[test]
fn an_interface_that_goes_down_comes_back() {
    isolated_with_interfaces(|home| {
        let Some(net) = Net::new(home, DIRECT, CABLE) else { return };
        for policy in [DIRECT, MEDIATED] {
            set_policy(home, policy);
            let up = |ns: &lab::Ns, name: &str| {
                ns.ip(&["link", "set", name, "up"]).expect("a link");
                ns.wait_up(name).expect("a link that comes up");
            };
            let (port, tap) = (net.open("netmap:va"), net.tap());
            assert_works(&port, &tap, 0);
            for (seq, ns, name) in [(1000, &net.near, "va"), (2000, &net.far, "vb"), (3000, &net.near, "va")] {
                ns.ip(&["link", "set", name, "down"]).expect("a link");
                // The frames of that time may be lost, but each call returns without an error.
                for i in 0..20 {
                    if port.tx_rings()[0].space() > 10 {
                        transmit(&port, 0, &frames(&[60; 10], 1 << 50 | i << 10), BUFFER);
                    }
                    port.poll(Interest::RX, Some(Duration::from_millis(1))).expect("a port on a link that is down");
                }
                up(ns, name);
                // Packets left in the ring are sent now, or were dropped: all before one that arrives.
                drain(&port);
                let mut last = (1_u64 << 51) + seq;
                until("the link works", || {
                    last += 1;
                    let one = frames(&[60], last);
                    transmit(&port, 0, &one, BUFFER);
                    std::iter::from_fn(|| tap.next(Duration::from_millis(100))).any(|frame| frame == one[0])
                });
                assert_works(&port, &net.tap(), seq);
            }
            drop(port);
            until("the port is closed", || home.snapshot().ports.is_empty());
            net.assert_given_back();
        }
    });
}

#[test]
fn an_interface_that_is_deleted_ends_its_port() {
    isolated_with_interfaces(|home| {
        let Some(net) = Net::new(home, DIRECT, CABLE) else { return };
        for policy in [DIRECT, MEDIATED] {
            set_policy(home, policy);
            let port = net.open("netmap:va");
            std::thread::scope(|scope| {
                let sleeper = scope.spawn(|| port.poll(Interest::RX, None));
                std::thread::sleep(Duration::from_millis(100));
                net.near.ip(&["link", "del", "va"]).expect("a link");
                let reported = sleeper.join().expect("no panic").expect_err("a port without an interface");
                assert!(reported.errno() == 6 && reported.to_string().contains("interface is gone"), "{reported}");
            });
            assert!(port.txsync().is_err() && port.rxsync().is_err());
            let (errno, why) = net.refused("netmap:va");
            assert!(errno == 6 && why.contains("no such interface"), "{why}");
            // A new interface of the same name is a different one.
            net.lab.veth(&net.near, "va", &net.far, "vb", CABLE).expect("a cable");
            let (again, tap) = (net.open("netmap:va"), net.tap());
            assert_works(&again, &tap, 0);
            drop((port, again));
            until("all is closed", || home.snapshot().ports.is_empty() && home.snapshot().regions.is_empty());
            net.assert_given_back();
        }
    });
}

#[test]
fn a_closed_port_leaves_the_interface_as_it_was() {
    isolated_with_interfaces(|home| {
        let Some(net) = Net::new(home, DIRECT, CABLE) else { return };
        for policy in [DIRECT, MEDIATED] {
            set_policy(home, policy);
            assert!(net.pings() && !net.has_xdp());
            for round in 0..3 {
                let port = net.open("netmap:va");
                assert!(net.has_xdp());
                assert!(!net.pings(), "the program has the interface");
                drop(port);
                net.assert_given_back();
                until(&format!("round {round}: the region ends"), || home.snapshot().regions.is_empty());
            }
            // A killed program releases it as well.
            let mut client = Guard::spawn(
                net.command(env!("CARGO_BIN_EXE_traffic_client")).args(["hold", "netmap:va"]).stdout(Stdio::null()),
            );
            until("it has the interface", || !home.snapshot().sessions.is_empty());
            client.kill();
            net.assert_given_back();
        }
        // The daemon releases it as well, even if it is killed.
        let port = net.open("netmap:va");
        rustix::process::kill_process(home.daemon(), Signal::KILL).expect("our own daemon");
        net.assert_given_back();
        until("the program has an error", || matches!(port.rxsync(), Err(unetmap::Error::DaemonGone { .. })));
    });
}

/// A program that does not receive: the kernel drops packets and counts them.
fn overflow(home: &Home, policy: &str) {
    const FRAMES: u64 = 20_000;
    let Some(net) = Net::new(home, policy, CABLE) else { return };
    let folder = home.folder().join("got");
    std::fs::create_dir(&folder).expect("a folder");
    let mut client = Guard::spawn(
        net.command(env!("CARGO_BIN_EXE_traffic_client"))
            .args(["recv", "netmap:va"])
            .arg(&folder)
            .stdout(Stdio::null()),
    );
    until("it has the interface", || {
        home.snapshot().sessions.iter().any(|s| s.pid as i32 == client.pid().as_raw_nonzero().get())
    });
    client.signal(Signal::STOP);
    let (tap, before) = (net.tap(), net.near.counters("va").expect("an interface"));
    for seq in 0..FRAMES {
        tap.send(&conformance::packet::make(1, seq));
    }
    let dropped = || {
        let ports = home.snapshot().ports;
        let nics = ports.iter().filter(|port| port.kind == "nic").flat_map(|port| &port.rings);
        nics.map(|ring| ring.dropped).sum::<u64>()
    };
    let record = || {
        let bytes = std::fs::read(folder.join("1")).unwrap_or_default();
        let word = |i: usize| bytes.get(8 * i..8 * i + 8).map_or(0, |b| u64::from_ne_bytes(b.try_into().expect("8")));
        // The highest number plus one, less the missing ones: the number of packets received.
        word(0) - word(1)
    };
    assert!(dropped() > 0 && record() == 0);
    client.signal(Signal::CONT);
    until("what was kept is received", || record() + dropped() == FRAMES);
    let lost = dropped();
    // From now on every packet is received.
    for some in (FRAMES..FRAMES + 5000).collect::<Vec<u64>>().chunks(200) {
        let had = record();
        some.iter().for_each(|seq| tap.send(&conformance::packet::make(1, *seq)));
        until("they come", || record() == had + some.len() as u64);
    }
    client.signal(Signal::TERM);
    assert!(client.wait().success(), "the receiver failed");
    let at_interface = arrived(&net.near, "va", before).0;
    summary(&format!(
        "sent {FRAMES}, received {}, dropped and counted {lost}; the interface saw {at_interface}",
        FRAMES - lost
    ));
}

#[test]
fn packets_lost_by_a_stopped_program_are_counted_direct() {
    isolated_with_interfaces(|home| overflow(home, DIRECT));
}

#[test]
fn packets_lost_by_a_stopped_program_are_counted_mediated() {
    isolated_with_interfaces(|home| overflow(home, MEDIATED));
}

/// The packets that pkt-gen sends are counted at the far end, and a pkt-gen there receives as many.
fn pkt_gen(home: &Home, policy: &str) {
    let Some(net) = Net::new(home, policy, CABLE) else { return };
    let run = |ns: &lab::Ns, args: &[&str]| {
        let mut command = ns.command(program("pkt-gen"));
        Guard::spawn(command.args(args).args(["-w", "0", "-T", "0", "--json"]).stdout(Stdio::piped()))
    };
    let sum = |guard: &mut Guard| {
        let mut text = String::new();
        use std::io::Read as _;
        guard.0.stdout.take().expect("piped").read_to_string(&mut text).expect("text");
        assert!(guard.wait().success(), "{text}");
        let summary: serde_json::Value = serde_json::from_str(text.lines().last().expect("a line")).expect("JSON");
        summary["packets"].as_u64().unwrap_or_else(|| panic!("{text}"))
    };
    let before = net.far.counters("vb").expect("an interface");
    let mut tx = run(&net.near, &["-i", "netmap:va", "-f", "tx", "-n", "50000", "-l", "60"]);
    assert_eq!(sum(&mut tx), 50_000);
    until("the port is closed", || home.snapshot().ports.is_empty());
    assert_eq!(arrived(&net.far, "vb", before), (50_000, 50_000 * 60));
    // So slowly that no receiver loses a frame, even if it waits half a second for a processor.
    let mut rx = run(&net.near, &["-i", "netmap:va", "-f", "rx", "-n", "5000"]);
    until("the receiver is there", || !home.snapshot().sessions.is_empty());
    let mut tx = run(&net.far, &["-i", "netmap:vb", "-f", "tx", "-n", "5000", "-R", "2000"]);
    assert_eq!((sum(&mut tx), sum(&mut rx)), (5000, 5000));
    summary("pkt-gen sent 50000, the far interface counted 50000; sent 5000 to another, which received 5000");
}

#[test]
fn pkt_gen_counts_what_it_sends_and_receives_direct() {
    isolated_with_interfaces(|home| pkt_gen(home, DIRECT));
}

#[test]
fn pkt_gen_counts_what_it_sends_and_receives_mediated() {
    isolated_with_interfaces(|home| pkt_gen(home, MEDIATED));
}

/// An MTU that the buffers are too small for is accepted where packets may have several slots; buffers that no socket
/// can use are refused.
#[test]
fn buffer_sizes_that_af_xdp_cannot_use_are_refused() {
    isolated_with_interfaces(|home| {
        let Some(net) = Net::with(home, DIRECT, CABLE, &["--buf-size", "8192"]) else { return };
        let (errno, why) = net.refused("netmap:va");
        assert_eq!(errno, 22, "{why}");
        assert!(why.contains("8192") && why.contains("1792 to 4096") && why.contains("unetmap set buf_size"), "{why}");
        assert!(pings(&net.near, "10.9.0.2"));
    });
}

#[test]
fn smaller_and_larger_buffers_carry_the_same_frames() {
    isolated_with_interfaces(|home| {
        for (size, mtu) in [("1792", 1500), ("1792", 4000), ("3840", 3500), ("3840", 9000), ("4096", 9000)] {
            let Some(net) = Net::with(home, DIRECT, VethOptions { mtu, ..CABLE }, &["--buf-size", size]) else {
                return;
            };
            let (port, tap) = (net.open("netmap:va"), net.tap());
            let (size, most) = (size.parse::<usize>().expect("a number"), mtu as usize + 14);
            assert_eq!(port.buf_size() as usize, size);
            // A page less the kernel's headroom.
            let size = size.min(3840);
            let lens: Vec<usize> =
                [60, size - 1, size, size + 1, most].into_iter().filter(|len| *len <= most).collect();
            let all = frames(&lens, 0);
            transmit(&port, 0, &all, size);
            assert_same(&tap.collect(all.len()), &all);
            tap.send_all(&all);
            assert_same(&collect(&port, all.len()), &all);
            drop(port);
            home.end_daemon();
        }
    });
}

/// The library's own packets, as the tests of pipes use them, over a cable both of whose ends are ports.
#[test]
fn a_veth_with_ports_at_both_ends_works_like_a_pipe() {
    isolated_with_interfaces(|home| {
        let Some(net) = Net::new(home, DIRECT, CABLE) else { return };
        let (a, b) = (net.open("netmap:va"), open_in(&net.far, "netmap:vb"));
        for round in 0..40 {
            send(&a, 1, round * 500, round * 500 + 500).expect("room");
            send(&b, 2, round * 500, round * 500 + 500).expect("room");
            expect(&b, 1, round * 500, round * 500 + 500);
            expect(&a, 2, round * 500, round * 500 + 500);
        }
        // A sleeper wakes for one frame.
        std::thread::scope(|scope| {
            for seq in 0..20 {
                let sleeper = scope.spawn(|| b.poll(Interest::RX, Some(LIMIT)).expect("the daemon runs").rx());
                std::thread::sleep(Duration::from_millis(5));
                let ring = &a.tx_rings()[0];
                fill(&ring.available().next().expect("room"), 3, seq);
                ring.advance(1);
                a.txsync().expect("the daemon runs");
                assert!(sleeper.join().expect("no panic"), "the receiver was not woken");
                expect(&b, 3, seq, seq + 1);
            }
        });
        let snapshot = home.snapshot();
        assert_eq!((snapshot.faults("va"), snapshot.faults("vb")), ((0, 0), (0, 0)));
        let manners: Vec<_> = snapshot.ports.iter().filter_map(|port| port.manner.clone()).collect();
        summary(&format!("packets 40000 both ways, 20 sleeps ended by one frame; {manners:?}"));
    });
}
