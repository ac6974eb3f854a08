// SPDX-License-Identifier: BSD-2-Clause
//! The documented behaviour of switches.

use std::io::Read as _;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::thread::sleep;
use std::time::Duration;

use conformance::ether::{self, BROADCAST, drained, mac};
use conformance::home::{Guard, raise_fd_limit, summary};
use conformance::request::control;
use conformance::traffic::{bytes_of, open};
use conformance::{Home, LIMIT, isolated, isolated_alone, program, until};
use unetmap::abi::*;
use unetmap::errno::*;
use unetmap::{BufIdx, Interest, Port, SlotRef};

/// Opens port `name` of switch vale0.
#[track_caller]
fn port(name: &str) -> Port {
    open(&format!("vale0:{name}"))
}

/// Opens a port, which must be refused; returns the errno.
#[track_caller]
fn refused(spec: &str) -> i32 {
    match Port::open(spec) {
        Ok(_) => panic!("{spec} was opened"),
        Err(e) => e.errno(),
    }
}

/// Sends one broadcast from each port, so that the switch learns the address of host `n` on port `n`; discards the
/// copies.
fn introduce(ports: &[&Port]) {
    for (n, port) in ports.iter().enumerate() {
        ether::send(port, BROADCAST, mac(n as u32), 1000 + n as u64, (0, 1));
    }
    for port in ports {
        until("every port has received from every other", || {
            port.rxsync().expect("the daemon runs");
            port.rx_rings()[0].space() == ports.len() as u32 - 1
        });
        port.rx_rings()[0].advance(u32::MAX);
        port.rxsync().expect("the daemon runs");
    }
}

fn seqs(sender: u64, from: u64, to: u64) -> Vec<(u64, u64)> {
    (from..to).map(|seq| (sender, seq)).collect()
}

#[test]
fn a_packet_crosses_a_switch() {
    isolated(|home| {
        let (a, b) = (port("a"), port("b"));
        ether::send(&a, mac(9), mac(0), 1, (0, 1));
        ether::expect(&b, 1, (0, 1));
        ether::send(&b, mac(0), mac(1), 2, (0, 500));
        ether::expect(&a, 2, (0, 500));
        drop((a, b));
        until("the switch is gone", || home.snapshot().ports.is_empty() && home.snapshot().regions.is_empty());
    });
}

#[test]
fn known_addresses_are_unicast_and_unknown_ones_flooded() {
    isolated(|_| {
        let all = ["a", "b", "c", "d"].map(port);
        let [a, b, c, d] = &all;
        // No address is known: the packet is flooded.
        ether::send(a, mac(1), mac(0), 1, (0, 10));
        for other in [b, c, d] {
            ether::expect(other, 1, (0, 10));
        }
        // The switch has learned the address of host 0.
        ether::send(b, mac(0), mac(1), 2, (0, 10));
        ether::expect(a, 2, (0, 10));
        ether::send(a, mac(1), mac(0), 1, (10, 20));
        ether::expect(b, 1, (10, 20));
        // Multicast and broadcast among unicast packets: they keep the sender's order.
        for seq in 20..300 {
            let to = match seq % 3 {
                0 => mac(1),
                1 => BROADCAST,
                _ => [1, 0, 0x5e, 0, 0, 1],
            };
            ether::send(a, to, mac(0), 1, (seq, seq + 1));
        }
        ether::expect(b, 1, (20, 300));
        let to_all: Vec<(u64, u64)> = seqs(1, 20, 300).into_iter().filter(|(_, seq)| seq % 3 != 0).collect();
        assert_eq!((drained(c), drained(d)), (to_all.clone(), to_all));
        // A packet to a host behind the sender's own port is not forwarded.
        ether::send(a, mac(0), mac(0), 3, (0, 10));
        assert_eq!(all.each_ref().map(drained), [vec![], vec![], vec![], vec![]]);
    });
}

/// Sends a frame to each of these hosts, with one sync; `odd` changes the slots of some.
fn send_in_turn(port: &Port, to: &[u32], sender: u64, odd: impl Fn(u64, &SlotRef<'_>)) {
    let ring = &port.tx_rings()[0];
    until("there is room", || {
        port.txsync().expect("the daemon runs");
        ring.space() as usize >= to.len()
    });
    for (seq, (slot, to)) in (0..).zip(ring.available().zip(to)) {
        let n = slot.frame().write(0, &ether::make(mac(*to), mac(0), sender, seq));
        slot.set_len_flags(n as u16, 0);
        odd(seq, &slot);
    }
    ring.advance(to.len() as u32);
    port.txsync().expect("the daemon runs");
}

/// Packets of one batch to several hosts in turn: each port receives its own packets in order.
#[test]
fn interleaved_destinations_keep_their_order() {
    isolated(|home| {
        let all = ["a", "b", "c", "d"].map(port);
        let [a, b, c, d] = &all;
        introduce(&[a, b, c, d]);
        // Slots of d with invalid buffer indexes: d gets as many packets with other contents, and no other port is
        // affected.
        let ring = &d.rx_rings()[0];
        for (slot, idx) in ring.run(ring.head(), ring.num_slots()).zip([0, 1, u32::MAX, 1 << 30].into_iter().cycle()) {
            slot.replace_buf(BufIdx(idx));
        }
        let to: Vec<u32> = (0..900).map(|seq| [1, 2, 3, 1, 1, 2][seq % 6]).collect();
        let due = |sender: u64, destination: u32| -> Vec<(u64, u64)> {
            (0..900).filter(|seq| to[*seq as usize] == destination).map(|seq| (sender, seq)).collect()
        };
        for sender in 1..10 {
            send_in_turn(a, &to, sender, |_, _| {});
            assert_eq!((drained(b), drained(c)), (due(sender, 1), due(sender, 2)));
            until("as many came to d", || {
                d.rxsync().expect("the daemon runs");
                ring.space() as usize == due(sender, 3).len()
            });
            assert!(ring.available().all(|slot| usize::from(slot.len()) == ether::BYTES));
            ring.advance(u32::MAX);
            d.rxsync().expect("the daemon runs");
        }
        // Every 50th is invalid, a broadcast, addressed to a port by number, to an unused number, or to the sender's
        // own port.
        let odd = |seq: u64, slot: &SlotRef<'_>| match (seq % 50, seq / 50 % 5) {
            (0, 0) => slot.set_len_flags(13, 0),
            (0, 1) => drop(slot.frame().write(0, &BROADCAST)),
            (0, 2) => slot.set_len_flags(slot.len(), 2 << 8),
            (0, 3) => slot.set_len_flags(slot.len(), 99 << 8),
            (0, 4) => drop(slot.frame().write(0, &mac(0))),
            _ => {}
        };
        send_in_turn(a, &to, 20, odd);
        let due = |me: u32| -> Vec<(u64, u64)> {
            let to_me = |seq: &u64| match (seq % 50, seq / 50 % 5) {
                (0, 0 | 3 | 4) => false,
                (0, 1) => true,
                (0, 2) => me == 2,
                _ => to[*seq as usize] == me,
            };
            (0..900).filter(to_me).map(|seq| (20, seq)).collect()
        };
        assert_eq!((drained(b), drained(c)), (due(1), due(2)));
        let books = home.snapshot();
        let lost = &books.ports.iter().find(|port| port.name == "vale0:a").expect("an open port").lost;
        assert_eq!((lost["short"], lost["nobody"], lost["home"]), (4, 3, 3));
        // A port that does not read loses what it has no room for, all counted; other ports lose nothing.
        let before = dropped(home, "vale0:c");
        for sender in 21..30 {
            send_in_turn(a, &to, sender, |_, _| {});
            let mine: Vec<(u64, u64)> =
                (0..900).filter(|seq| to[*seq as usize] == 1).map(|seq| (sender, seq)).collect();
            assert_eq!(drained(b), mine);
        }
        let held = u64::from(c.rx_rings()[0].num_slots()) - 1;
        until("all the others are counted", || dropped(home, "vale0:c") - before == 9 * 300 - held);
        assert_eq!(drained(c).len() as u64, held);
    });
}

/// Number of packets that the receive ring of a port had no room for.
fn dropped(home: &Home, name: &str) -> u64 {
    let books = home.snapshot();
    let port = books.ports.iter().find(|port| port.name == name).expect("an open port");
    port.rings.iter().filter(|ring| ring.dir == "rx").map(|ring| ring.dropped).sum()
}

#[test]
fn moved_addresses_are_relearned() {
    isolated(|_| {
        let all = ["a", "b", "c"].map(port);
        let [a, b, c] = &all;
        introduce(&[a, b, c]);
        for round in 0..20 {
            // Host 0 alternates between b and a, and the switch learns the move from this very packet.
            let (here, there) = if round % 2 == 0 { (b, a) } else { (a, b) };
            ether::send(here, mac(2), mac(0), 7, (round, round + 1));
            ether::expect(c, 7, (round, round + 1));
            ether::send(c, mac(0), mac(2), 8, (round, round + 1));
            ether::expect(here, 8, (round, round + 1));
            assert_eq!(there.poll(Interest::RX, Some(Duration::ZERO)).expect("the daemon runs"), Interest::NONE);
        }
    });
}

#[test]
fn a_closed_port_is_removed_from_the_mac_table() {
    isolated(|home| {
        let (a, b, c) = (port("a"), port("b"), port("c"));
        introduce(&[&a, &b, &c]);
        drop(b);
        until("it is gone", || home.snapshot().ports.len() == 2);
        // Its port number is reused by another port, which must not receive its unicast packets.
        let d = port("d");
        ether::send(&a, mac(1), mac(0), 1, (0, 5));
        assert_eq!((drained(&c), drained(&d)), (seqs(1, 0, 5), seqs(1, 0, 5)));
    });
}

#[test]
fn ns_no_learn_indirect_and_port_flags_are_obeyed() {
    isolated(|home| {
        let all = ["a", "b", "c"].map(port);
        let [a, b, c] = &all;
        let number = |name: &str| {
            let list = control(NETMAP_REQ_VALE_LIST, name, NmreqValeList::default()).expect("a port");
            list.1.nr_port_idx as u16
        };
        assert_eq!(["vale0:a", "vale0:b", "vale0:c"].map(number), [0, 1, 2]);
        // An address that must not be learned stays unknown.
        ether::send_flagged(a, (mac(1), mac(0)), NS_NO_LEARN, 1, (0, 3));
        ether::expect(b, 1, (0, 3));
        ether::expect(c, 1, (0, 3));
        ether::send(b, mac(0), mac(1), 2, (0, 3));
        ether::expect(a, 2, (0, 3));
        ether::expect(c, 2, (0, 3));
        // To a port by number, whatever the destination address.
        introduce(&[a, b, c]);
        ether::send_flagged(a, (mac(1), mac(0)), 2 << 8, 3, (0, 5));
        assert_eq!((drained(b), drained(c)), (vec![], seqs(3, 0, 5)));
        ether::send_flagged(a, (mac(1), mac(0)), 77 << 8, 3, (5, 10));
        ether::send_flagged(c, (mac(1), mac(2)), 2 << 8, 3, (0, 4));
        ether::send(a, mac(1), mac(0), 3, (10, 12));
        ether::expect(b, 3, (10, 12));
        assert_eq!((drained(b), drained(c)), (vec![], vec![]));
        let books = home.snapshot();
        let lost = |name: &str| {
            let port = books.ports.iter().find(|port| port.name == name).expect("an open port");
            (port.lost["nobody"], port.lost["home"])
        };
        assert_eq!((lost("vale0:a"), lost("vale0:c")), ((5, 0), (0, 4)));
    });
}

/// Sends one packet in pieces of the given lengths; the first has an Ethernet header.
fn send_pieces(port: &Port, to: ether::Mac, lens: &[usize]) -> Vec<u8> {
    let whole: Vec<u8> = to
        .iter()
        .chain(&mac(0))
        .copied()
        .chain((0..).map(|i: u32| ((i * 7) >> 3) as u8))
        .take(lens.iter().sum())
        .collect();
    port.poll(Interest::TX, Some(LIMIT)).expect("room");
    let (ring, mut at) = (&port.tx_rings()[0], 0);
    assert!(ring.space() as usize >= lens.len());
    for (i, (slot, len)) in ring.available().zip(lens).enumerate() {
        slot.frame().write(0, &whole[at..at + len]);
        slot.set_len_flags(*len as u16, if i + 1 < lens.len() { NS_MOREFRAG } else { 0 });
        at += len;
    }
    ring.advance(lens.len() as u32);
    port.txsync().expect("the daemon runs");
    whole
}

#[test]
fn packets_of_several_slots_arrive_whole() {
    isolated(|home| {
        let (a, b) = (port("a"), port("b"));
        let ring = &b.rx_rings()[0];
        for lens in [vec![60], vec![14, 1], vec![100; 2], vec![2048; 3], vec![64; 64], vec![0x7ff, 1, 0, 2000]] {
            let whole = send_pieces(&a, BROADCAST, &lens);
            until("it comes", || {
                b.rxsync().expect("the daemon runs");
                !ring.is_empty()
            });
            assert_eq!(ring.space() as usize, lens.len());
            let got: Vec<u8> = ring.available().flat_map(|slot| bytes_of(&slot)).collect();
            assert_eq!(got, whole);
            for (i, slot) in ring.available().enumerate() {
                let more = if i + 1 < lens.len() { NS_MOREFRAG } else { 0 };
                assert_eq!((usize::from(slot.len()), slot.flags()), (lens[i], (lens.len() as u16) << 8 | more));
            }
            ring.advance(u32::MAX);
        }
        b.rxsync().expect("the daemon runs");
        // A packet of too many slots, then a valid one.
        send_pieces(&a, BROADCAST, &[100; 65]);
        send_pieces(&a, BROADCAST, &[100; 300]);
        let last = send_pieces(&a, BROADCAST, &[70, 70]);
        assert_eq!(ether::drain(&b).concat(), last);
        let lost = &home.snapshot().ports[0].lost;
        assert_eq!((lost["long"], lost["bad"], lost["short"]), (2, 0, 0));
        // A packet whose last slot has NS_MOREFRAG at the end of a sync ends there.
        let slot = a.tx_rings()[0].available().next().expect("room");
        let n = slot.frame().write(0, &ether::make(BROADCAST, mac(0), 1, 1));
        slot.set_len_flags(n as u16, NS_MOREFRAG);
        a.tx_rings()[0].advance(1);
        a.txsync().expect("the daemon runs");
        ether::expect(&b, 1, (1, 2));
    });
}

#[test]
fn invalid_frames_are_dropped_and_counted() {
    isolated(|home| {
        let (a, b) = (port("a"), port("b"));
        let ring = &a.tx_rings()[0];
        for (i, slot) in ring.available().take(15).enumerate() {
            slot.frame().write(0, &ether::make(BROADCAST, mac(0), 1, 0));
            slot.set_len_flags(i as u16, 0);
        }
        ring.advance(15);
        a.txsync().expect("the daemon runs");
        let got = ether::drain(&b);
        assert_eq!(got.iter().map(Vec::len).collect::<Vec<_>>(), [14]);
        assert_eq!(home.snapshot().ports[0].lost["short"], 14);
        // A packet without a destination is no error for the sender.
        drop(b);
        until("b is gone", || home.snapshot().ports.len() == 1);
        ether::send(&a, BROADCAST, mac(0), 1, (0, 5000));
        until("all are taken", || home.snapshot().ports[0].lost["nobody"] == 5000);
    });
}

#[test]
fn a_slow_receiver_loses_only_its_own_packets() {
    isolated(|home| {
        let (a, b, lazy) = (port("a"), port("b"), port("lazy"));
        introduce(&[&a, &b, &lazy]);
        let mut seq = 0;
        // In the same batches, and in batches of their own.
        for to in [BROADCAST, mac(1), BROADCAST] {
            for _ in 0..20 {
                ether::send(&a, to, mac(0), 1, (seq, seq + 500));
                ether::expect(&b, 1, (seq, seq + 500));
                seq += 500;
            }
        }
        ether::send(&a, mac(2), mac(0), 1, (seq, seq + 20_000));
        until("all are taken", || home.snapshot().ring("vale0:a", "tx", 0).queued == 0);
        let books = home.snapshot();
        assert_eq!(books.ring("vale0:lazy", "rx", 0).dropped, 40_000 - 1023);
        assert_eq!(books.ring("vale0:b", "rx", 0).dropped, 0);
        // It has received the first packets.
        assert_eq!(drained(&lazy), (0..10_000).chain(20_000..).take(1023).map(|seq| (1, seq)).collect::<Vec<_>>());
        ether::send(&a, mac(2), mac(0), 1, (0, 100));
        ether::expect(&lazy, 1, (0, 100));
    });
}

#[test]
fn packets_sent_before_a_port_closed_arrive() {
    isolated(|_| {
        let b = port("b");
        for round in 0..50 {
            let a = port("a");
            ether::send(&a, BROADCAST, mac(0), round, (0, 1000));
            drop(a);
            ether::expect(&b, round, (0, 1000));
        }
    });
}

#[test]
fn ports_have_the_requested_rings_and_slots() {
    isolated(|home| {
        for (slots, actual) in [(2, 2), (3, 3), (64, 64), (1000, 1000), (4096, 4096), (9999, 4096)] {
            let a = Port::options().tx_slots(slots).rx_slots(slots).open("vale0:a").expect("a port");
            let b = Port::options().tx_slots(slots).rx_slots(slots).open("vale0:b").expect("a port");
            assert_eq!((a.tx_rings()[0].num_slots(), b.rx_rings()[0].num_slots()), (actual, actual));
            let step = u64::from(actual) - 1;
            for i in 0..5 {
                ether::send(&a, BROADCAST, mac(0), 1, (i * step, (i + 1) * step));
                ether::expect(&b, 1, (i * step, (i + 1) * step));
            }
        }
        until("both are closed", || home.snapshot().ports.is_empty());
        let many = Port::options().tx_rings(99).rx_rings(99).open("vale0:many").expect("a port");
        assert_eq!((many.tx_rings().len(), many.rx_rings().len()), (16, 16));
        let few = Port::options().tx_rings(2).rx_rings(3).open("vale0:few").expect("a port");
        // Transmit ring i sends to receive ring i, modulo the number of receive rings.
        for (i, ring) in many.tx_rings().iter().enumerate() {
            let slot = ring.available().next().expect("room");
            let n = slot.frame().write(0, &ether::make(BROADCAST, mac(0), 5, i as u64));
            slot.set_len_flags(n as u16, 0);
            ring.advance(1);
        }
        many.txsync().expect("the daemon runs");
        for (i, ring) in few.rx_rings().iter().enumerate() {
            let expected: Vec<u64> = (0..16).filter(|n| n % 3 == i as u64).collect();
            until("they come", || {
                few.rxsync().expect("the daemon runs");
                ring.space() as usize == expected.len()
            });
            let got: Vec<u64> =
                ring.available().map(|slot| ether::check(&bytes_of(&slot)).expect("a frame").1).collect();
            assert_eq!(got, expected);
        }
        // One ring, and one direction.
        let one = open("vale0:many-3");
        assert_eq!((one.tx_rings().len(), one.rx_rings().len(), one.rx_rings()[0].id()), (1, 1, 3));
        let only = open("vale0:few/R");
        assert_eq!((only.tx_rings().len(), only.rx_rings().len()), (0, 3));
        assert_eq!(refused("vale0:few-7"), EINVAL);
        assert_eq!(refused("vale0:few^"), EINVAL);
        assert_eq!(refused("vale0:few/x"), EBUSY);
    });
}

#[test]
fn switch_and_port_names_are_validated() {
    isolated(|_| {
        // The loopback interface is in each network namespace.
        assert_eq!(refused("vale0:lo"), EINVAL);
        let pairs = [("vale0:x", "vale0:y"), ("vale:x", "vale:y"), ("vale1:x", "vale1:y"), ("valeA_9:0", "valeA_9:1")];
        let pairs = pairs.map(|(x, y)| (open(x), open(y)));
        for (i, (x, _)) in pairs.iter().enumerate() {
            ether::send(x, BROADCAST, mac(0), i as u64, (0, 10));
        }
        for (i, (x, y)) in pairs.iter().enumerate() {
            ether::expect(y, i as u64, (0, 10));
            assert_eq!(drained(x), []);
        }
    });
}

#[test]
fn a_switch_has_up_to_254_ports() {
    isolated(|home| {
        raise_fd_limit();
        let small = |i: u32| Port::options().tx_slots(4).rx_slots(4).open(&format!("vale0:p{i}")).expect("a port");
        let mut all: Vec<Port> = (0..254).map(small).collect();
        assert_eq!(refused("vale0:p254"), ENOMEM);
        ether::send(&all[7], BROADCAST, mac(0), 1, (0, 1));
        for (i, port) in all.iter().enumerate() {
            if i != 7 {
                ether::expect(port, 1, (0, 1));
            }
        }
        ether::send(&all[253], mac(0), mac(253), 2, (0, 1));
        ether::expect(&all[7], 2, (0, 1));
        all.remove(100);
        until("there is room for another", || Port::open("vale0:p254").is_ok());
        drop(all);
        until("all are gone", || home.snapshot().ports.is_empty());
    });
}

#[test]
fn several_programs_can_share_a_port() {
    isolated(|home| {
        let (a, again, b) = (port("a"), port("a"), port("b"));
        assert_eq!(a.mem_id(), again.mem_id());
        ether::send(&a, BROADCAST, mac(0), 1, (0, 10));
        ether::expect(&b, 1, (0, 10));
        drop(a);
        until("one is closed", || home.snapshot().sessions.len() == 2);
        ether::send(&again, BROADCAST, mac(0), 2, (0, 10));
        ether::expect(&b, 2, (0, 10));
        assert_eq!(home.snapshot().ports.len(), 2);
        // A port in a region chosen by number requires that the region exists.
        let there = format!("vale0:c@{}", b.mem_id());
        let c = open(&there);
        assert!(c.same_region(&b));
        assert_eq!(refused(&format!("vale0:a@{}", b.mem_id())), EINVAL);
        ether::send(&c, BROADCAST, mac(0), 3, (0, 1000));
        ether::expect(&b, 3, (0, 1000));
        ether::expect(&again, 3, (0, 1000));
    });
}

#[test]
fn list_info_and_header_requests_describe_ports() {
    isolated(|home| {
        let info = |name: &str| control(NETMAP_REQ_PORT_INFO_GET, name, NmreqPortInfoGet::default()).map(|(_, i)| i);
        let list = |name: &str, at: (u16, u32)| {
            let body = NmreqValeList { nr_bridge_idx: at.0, nr_port_idx: at.1, ..Default::default() };
            control(NETMAP_REQ_VALE_LIST, name, body).map(|(name, l)| (name, l.nr_bridge_idx, l.nr_port_idx))
        };
        let header = |reqtype, name: &str, len| {
            let body = NmreqPortHdr { nr_hdr_len: len, ..Default::default() };
            control(reqtype, name, body).map(|(_, h)| h.nr_hdr_len)
        };
        let a = Port::options().tx_slots(128).rx_rings(3).open("vale3:a").expect("a port");
        assert_eq!(list("vale3:a", (0, 0)), Ok(("vale3:a".into(), 0, 0)));
        assert_eq!(list("vale3:", (0, 0)), Ok(("vale3:".into(), 0, 255)));
        assert_eq!(list("vale3:b", (0, 0)), Ok(("vale3:b".into(), 0, 255)));
        assert_eq!(list("vale4:", (0, 0)), Err(ENOENT));
        assert_eq!(list("lo", (0, 0)), Err(ENOENT));
        let reported = info("vale3:a").expect("an open port");
        assert_eq!(
            (reported.nr_tx_slots, reported.nr_rx_slots, reported.nr_tx_rings, reported.nr_rx_rings),
            (128, 1024, 1, 3)
        );
        assert_eq!((reported.nr_mem_id, reported.nr_memsize), (a.mem_id(), a.register().nr_memsize));
        // Created for the request, and removed after it.
        let reported = info("vale3:fresh").expect("a port for the moment");
        assert_eq!(
            (reported.nr_tx_slots, reported.nr_rx_slots, reported.nr_tx_rings, reported.nr_rx_rings),
            (1024, 1024, 1, 1)
        );
        assert_eq!(home.snapshot().ports.len(), 1);
        assert_eq!(info("vale3:lo").map(|_| ()), Err(EINVAL));
        // All ports, listed one after the other.
        let more = ["vale1:x", "vale3:b", "vale1:y"].map(open);
        let (mut at, mut all) = ((0, 0), Vec::new());
        while let Ok((name, switch, port)) = list("", at) {
            all.push((name, switch, port));
            at = (switch, port + 1);
        }
        let names = [("vale3:a", 0, 0), ("vale3:b", 0, 1), ("vale1:x", 1, 0), ("vale1:y", 1, 1)];
        assert_eq!(all, names.map(|(name, switch, port)| (name.to_string(), switch, port)));
        assert_eq!(list("", at), Err(ENOENT));
        assert_eq!(header(NETMAP_REQ_PORT_HDR_GET, "vale3:a", 99), Ok(0));
        assert_eq!(header(NETMAP_REQ_PORT_HDR_SET, "vale3:a", 0), Ok(0));
        assert_eq!(header(NETMAP_REQ_PORT_HDR_SET, "vale3:a", 11), Err(EINVAL));
        assert_eq!(header(NETMAP_REQ_PORT_HDR_SET, "vale3:none", 0), Err(ENXIO));
        drop((a, more));
    });
}

/// A sleeping receiver is woken, however long it has slept.
#[test]
fn sleeping_receivers_are_woken() {
    isolated(|_| {
        let (a, b) = (port("a"), port("b"));
        std::thread::scope(|scope| {
            let reader = scope.spawn(|| {
                for seq in 0..200 {
                    let ready = b.poll(Interest::RX, None).expect("the daemon runs");
                    assert!(ready.rx());
                    ether::expect(&b, 1, (seq, seq + 1));
                }
            });
            for seq in 0..200 {
                sleep(Duration::from_micros(seq * 7 % 400));
                ether::send(&a, BROADCAST, mac(0), 1, (seq, seq + 1));
            }
            reader.join().expect("all came");
        });
    });
}

/// The same with batches so large that the wake-up may be deferred: less and more than a quarter of the ring.
#[test]
fn sleeping_receivers_are_woken_in_streams() {
    const BURSTS: u64 = 100;
    isolated(|_| {
        let (a, b) = (port("a"), port("b"));
        let read = AtomicU64::new(0);
        let burst = |n: u64| if n.is_multiple_of(3) { 200 } else { 300 + n % 2 * 300 };
        std::thread::scope(|scope| {
            let reader = scope.spawn(|| {
                let mut seq = 0;
                for n in 0..BURSTS {
                    let ready = b.poll(Interest::RX, None).expect("the daemon runs");
                    assert!(ready.rx());
                    ether::expect(&b, 1, (seq, seq + burst(n)));
                    seq += burst(n);
                    read.store(n + 1, Relaxed);
                }
            });
            let mut seq = 0;
            for n in 0..BURSTS {
                until("the last burst is read", || read.load(Relaxed) == n);
                // The receiver sleeps now, or soon.
                sleep(Duration::from_micros(n * 7 % 400));
                ether::send(&a, BROADCAST, mac(0), 1, (seq, seq + burst(n)));
                seq += burst(n);
            }
            reader.join().expect("all came");
        });
    });
}

#[test]
fn pkt_gen_works_over_a_switch() {
    isolated(|home| {
        let pkt_gen = |args: &str| {
            let mut command = Command::new(program("pkt-gen"));
            command.args(args.split(' ')).stdout(Stdio::piped()).stderr(Stdio::piped());
            command
        };
        let _keeper = open("vale9:keeper");
        let mut rx = Guard::spawn(&mut pkt_gen("-i vale0:b -f rx -w 0 -n 200"));
        until("the receiver is there", || home.snapshot().ports.iter().any(|port| port.name == "vale0:b"));
        let tx = pkt_gen("-i vale0:a -f tx -w 0 -n 200").output().expect("pkt-gen runs");
        assert!(tx.status.success(), "{tx:?}");
        assert!(rx.wait().success());
        // The same packet, whether it is in buffers of the ring or referenced by NS_INDIRECT.
        let shown = |args: &str| {
            let mut rx = Guard::spawn(&mut pkt_gen("-i vale0:b -f rx -w 0 -n 200 -X"));
            until("the receiver is there", || home.snapshot().ports.iter().any(|port| port.name == "vale0:b"));
            let tx = pkt_gen(&format!("-i vale0:a -f tx -w 0 -n 200 {args}")).output().expect("pkt-gen runs");
            assert!(tx.status.success(), "{tx:?}");
            let mut text = String::new();
            rx.0.stdout.take().expect("a pipe").read_to_string(&mut text).expect("text");
            assert!(rx.wait().success());
            let bytes = text.lines().filter(|line| line.starts_with(' ')).collect::<Vec<_>>().join("\n");
            assert_eq!(text.lines().filter(|line| line.starts_with("ring ")).count(), 200, "{text}");
            bytes
        };
        assert_eq!(shown("-l 300"), shown("-l 300 -I"));
        let mut pong = Guard::spawn(&mut pkt_gen("-i vale0:b -f pong -w 0"));
        until("the other side is there", || home.snapshot().ports.iter().any(|port| port.name == "vale0:b"));
        let ping = pkt_gen("-i vale0:a -f ping -w 0 -n 500").output().expect("pkt-gen runs");
        assert!(ping.status.success(), "{ping:?}");
        pong.kill();
    });
}

/// Tests of [`isolated_alone`].
mod alone {
    use super::*;

    #[test]
    fn an_idle_switch_uses_no_processor_time() {
        isolated_alone(|home| {
            let (a, b) = (port("a"), port("b"));
            ether::send(&a, BROADCAST, mac(0), 1, (0, 1000));
            ether::expect(&b, 1, (0, 1000));
            let (ran, waits) = home.daemon_effort(Duration::from_secs(2));
            assert!(ran < Duration::from_millis(2) && waits <= 5, "idle, it ran for {ran:?} and waited {waits} times");
            // It still forwards immediately.
            ether::send(&a, BROADCAST, mac(0), 1, (1000, 1001));
            ether::expect(&b, 1, (1000, 1001));
            summary(&format!("idle for 2 s: ran for {ran:?}, {waits} wake-ups"));
        });
    }
}
