// SPDX-License-Identifier: BSD-2-Clause
//! Clients that write random values to shared memory: the peer and the daemon continue, and the snapshot shows the
//! faults.

use std::collections::HashSet;
use std::process::{Command, Stdio};

use conformance::home::{Guard, summary};
use conformance::net::start_faulty_daemon;
use conformance::packet::{self, Rng};
use conformance::snapshot::PIPE_BUFFERS;
use conformance::traffic::{bytes_of, exchange, expect, fill, fill_some, open, receive, send};
use conformance::{Home, isolated, isolated_alone, program, until};
use conformance_hostile::raw::{ControlConnection, RawPort, field};
use unetmap::abi::{NS_MOREFRAG, NetmapRing};
use unetmap::errno::EINVAL;
use unetmap::{BufIdx, Error, Interest, Port};
use unetmap_core::control::PeerDoorbellsRequest;
use unetmap_core::control::binding::{Binding, DOORBELL_LATER};

const SLOTS: u32 = 1024;

fn buffers_in_region(port: &Port) -> u32 {
    port.region().geometry().bufs.count
}

#[test]
fn slots_out_of_range_arrive_empty() {
    isolated(|home| {
        let (tx, rx) = (open("netmap:h{1"), open("netmap:h}1"));
        let count = buffers_in_region(&tx);
        let indexes = [0, 1, count, count + 1, u32::MAX / 2, u32::MAX];
        let lens = [tx.buf_size() as u16 + 1, 0x8000, u16::MAX];
        let ring = &tx.tx_rings()[0];
        let (mut sent, mut bad) = (0, 0);
        // Enough for two rounds of the ring, one batch for each kind of fault, so that a fault is at each offset in a
        // cache line.
        for round in 0..64 {
            tx.poll(Interest::TX, Some(conformance::LIMIT)).expect("room");
            let mut good = Vec::new();
            let mut undo = Vec::new();
            for (i, slot) in ring.available().take(37).enumerate() {
                fill(&slot, 1, sent + i as u64);
                let kind = (round + i) % 13;
                if let Some(&idx) = indexes.get(kind) {
                    undo.push((slot, slot.replace_buf(BufIdx(idx))));
                } else if let Some(&len) = lens.get(kind - indexes.len()) {
                    slot.set_len(len);
                } else {
                    good.push(i);
                }
            }
            ring.advance(37);
            tx.txsync().expect("the receiver validates slots");
            let got = receive(&rx, 37).expect("bad slots are no error");
            for (i, bytes) in got.iter().enumerate() {
                if good.contains(&i) {
                    assert_eq!(packet::check(bytes), Ok((1, sent + i as u64)));
                } else {
                    assert_eq!(bytes, &[] as &[u8], "slot {i} of round {round}");
                    bad += 1;
                }
            }
            sent += 37;
            tx.txsync().expect("the daemon runs");
            for (slot, idx) in undo {
                slot.replace_buf(idx);
            }
        }
        assert_eq!(home.snapshot().faults("h}1"), (bad, 0));
        assert_eq!(home.snapshot().faults("h{1"), (0, 0));
        exchange(&tx, &rx, 2, 0, 5000);
        drop(tx);
        until("the session is over", || home.snapshot().sessions.len() == 1);
        let buffers = home.snapshot().buffers("h");
        assert_eq!((buffers.in_rings, buffers.missing), (PIPE_BUFFERS, 0));
        drop(rx);
        home.assert_serves();
        summary(&format!("slots {sent}, of them bad {bad}, all distinguished"));
    });
}

#[test]
fn an_empty_slot_has_a_buffer_of_the_receiver() {
    isolated(|_| {
        let (tx, rx) = (open("netmap:h{1"), open("netmap:h}1"));
        for slot in tx.tx_rings()[0].available().take(8) {
            slot.replace_buf(BufIdx(u32::MAX));
        }
        tx.tx_rings()[0].advance(8);
        tx.txsync().expect("the daemon runs");
        rx.poll(Interest::RX, Some(conformance::LIMIT)).expect("the daemon runs");
        assert_eq!(rx.rx_rings()[0].space(), 8);
        for slot in rx.rx_rings()[0].available() {
            assert_eq!((slot.len(), slot.frame().capacity()), (0, rx.buf_size() as usize));
        }
    });
}

#[test]
fn every_flag_is_delivered_and_harmless() {
    isolated(|_| {
        let (tx, rx) = (open("netmap:h{1"), open("netmap:h}1"));
        let mut seq = 0;
        for bit in 0..16 {
            let flags = 1u16 << bit;
            let ring = &tx.tx_rings()[0];
            tx.poll(Interest::TX, Some(conformance::LIMIT)).expect("room");
            for (i, slot) in ring.available().take(2).enumerate() {
                fill(&slot, 1, seq + i as u64);
                // A chain of fragments crosses when it ends: the second slot ends it.
                slot.set_flags(if i == 0 { flags } else { flags & !NS_MOREFRAG });
            }
            ring.advance(2);
            tx.txsync().expect("the daemon runs");
            expect(&rx, 1, seq, seq + 2);
            seq += 2;
        }
        exchange(&tx, &rx, 1, seq, seq + 3000);
    });
}

/// Invalid values of `head`, `cur` and `tail` of a ring of `n` slots whose current values are `head..tail`.
fn pointers(n: u32, head: u32, tail: u32) -> Vec<(usize, u32)> {
    let before = |p: u32| (p + n - 1) % n;
    let after = |p: u32| (p + 1) % n;
    vec![
        (field::HEAD, n),
        (field::HEAD, n + 1),
        (field::HEAD, u32::MAX),
        (field::HEAD, before(head)),
        (field::HEAD, after(tail)),
        (field::CUR, n),
        (field::CUR, u32::MAX),
        (field::CUR, before(head)),
        (field::CUR, after(tail)),
    ]
}

#[test]
fn own_pointers_out_of_range_are_an_error_and_are_reset() {
    isolated(|home| {
        let (tx, rx) = (open("netmap:h{1"), open("netmap:h}1"));
        let (mut seq, mut faults) = (0, 0);
        // Held packets on the one side, free slots on the other: neither ring is empty or full.
        let scribbler = [RawPort::open(&home.socket(), "h{1"), RawPort::open(&home.socket(), "h}1")];
        for kind in 0..9 {
            exchange(&tx, &rx, 1, seq, seq + 100);
            send(&tx, 1, seq + 100, seq + 120).expect("room");
            rx.rxsync().expect("the daemon runs");
            for dir in [0u16, 1] {
                let (port, raw_port) = if dir == 0 { (&tx, &scribbler[0]) } else { (&rx, &scribbler[1]) };
                let ring = if dir == 0 { &port.tx_rings()[0] } else { &port.rx_rings()[0] };
                let sync = || if dir == 0 { port.txsync() } else { port.rxsync() };
                sync().expect("a good ring");
                let (head, cur, tail) = (ring.head(), ring.cur(), ring.tail());
                let (at, value) = pointers(SLOTS, head.raw(), tail.raw())[kind];
                let index = raw_port.bound.rings.iter().position(|r| r.dir == dir).expect("a ring");
                raw_port.write_field(index, at, value);
                match sync() {
                    Err(e @ Error::BadPointers { .. }) => assert_eq!(e.errno(), 22, "{e}"),
                    other => panic!("field {at} = {value}, head {head:?}, tail {tail:?}: {other:?}"),
                }
                assert_eq!((ring.head(), ring.cur(), ring.tail()), (head, cur, tail), "field {at} = {value}");
                sync().expect("a ring that was reset");
                // A poll validates as well.
                raw_port.write_field(index, at, value);
                let want = if dir == 0 { Interest::TX } else { Interest::RX };
                let polled = port.poll(want, Some(std::time::Duration::ZERO));
                assert!(matches!(polled, Err(Error::BadPointers { .. })), "field {at} = {value}: {polled:?}");
                faults += 2;
            }
            expect(&rx, 1, seq + 100, seq + 120);
            seq += 120;
        }
        let (a, b) = (home.snapshot().faults("h{1"), home.snapshot().faults("h}1"));
        assert_eq!((a.0 + b.0, a.1 + b.1), (0, faults));
        exchange(&tx, &rx, 1, seq, seq + 3000);
        summary(&format!("pointers out of range {faults}, each reported, ring reset"));
    });
}

#[test]
fn an_overwritten_tail_is_restored() {
    isolated(|home| {
        let (tx, rx) = (open("netmap:h{1"), open("netmap:h}1"));
        let raw_port = [RawPort::open(&home.socket(), "h{1"), RawPort::open(&home.socket(), "h}1")];
        let mut seq = 0;
        for value in [0, 5, SLOTS - 1, SLOTS, u32::MAX] {
            for (port, dir) in [(&tx, 0u16), (&rx, 1)] {
                let ring = if dir == 0 { &port.tx_rings()[0] } else { &port.rx_rings()[0] };
                let sync = || if dir == 0 { port.txsync() } else { port.rxsync() };
                sync().expect("a good ring");
                let tail = ring.tail();
                let raw_port = &raw_port[usize::from(dir)];
                let index = raw_port.bound.rings.iter().position(|r| r.dir == dir).expect("a ring");
                raw_port.write_field(index, field::TAIL, value);
                sync().expect("the library does not read tail from the ring");
                assert_eq!(ring.tail(), tail);
            }
            exchange(&tx, &rx, 1, seq, seq + 100);
            seq += 100;
        }
    });
}

/// Header words that programs read, and that the library must not trust.
#[test]
fn overwritten_ring_header_fields_are_ignored() {
    isolated(|home| {
        let (tx, rx) = (open("netmap:h{1"), open("netmap:h}1"));
        let raw_port = [RawPort::open(&home.socket(), "h{1"), RawPort::open(&home.socket(), "h}1")];
        let mut seq = 0;
        let mut rng = Rng(0x5eed_0010);
        for at in (0..size_of::<NetmapRing>()).step_by(4) {
            if [field::HEAD, field::CUR, field::TAIL].contains(&at) {
                continue;
            }
            for raw_port in &raw_port {
                for ring in 0..2 {
                    raw_port.write_field(ring, at, rng.next_u64() as u32);
                }
            }
            exchange(&tx, &rx, 1, seq, seq + 20);
            exchange(&rx, &tx, 2, seq, seq + 20);
            seq += 20;
        }
        assert_eq!(home.snapshot().faults("h{1"), (0, 0));
        assert_eq!(home.snapshot().faults("h}1"), (0, 0));
    });
}

#[test]
fn positions_out_of_range_are_ignored() {
    isolated(|home| {
        let (tx, rx) = (open("netmap:h{1"), open("netmap:h}1"));
        let raw_port = RawPort::open(&home.socket(), "h{1");
        let mut seq = 0;
        for _ in 0..3 {
            exchange(&tx, &rx, 1, seq, seq + 100);
            seq += 100;
            tx.txsync().expect("the daemon runs");
            let at = raw_port.read_channel(0, 0);
            assert_eq!(at, seq as u32);
            // Out of range; and `cons` ahead of `prod`.
            for (word, value) in [(0, SLOTS), (0, u32::MAX), (1, SLOTS), (1, u32::MAX), (1, at + 1)] {
                let before = raw_port.read_channel(0, word);
                raw_port.write_channel(0, word, value);
                let (a, b) = (home.snapshot().faults("h{1").1, home.snapshot().faults("h}1").1);
                tx.txsync().expect("a fault of the peer is no error");
                rx.rxsync().expect("a fault of the peer is no error");
                let now = (home.snapshot().faults("h{1").1, home.snapshot().faults("h}1").1);
                assert!(now.0 > a || now.1 > b, "word {word} = {value} was not counted");
                raw_port.write_channel(0, word, before);
            }
        }
        exchange(&tx, &rx, 1, seq, seq + 100);
        // One slot back is a whole ring less one slot forward: that many packets are delivered, without harm.
        raw_port.write_channel(0, 0, (seq as u32 + 99) % SLOTS);
        rx.rxsync().expect("the daemon runs");
        assert_eq!(rx.rx_rings()[0].space(), SLOTS - 1);
        // With held packets, the same is invalid.
        rx.rx_rings()[0].advance(SLOTS - 11);
        rx.rxsync().expect("the daemon runs");
        let before = home.snapshot().faults("h}1").1;
        raw_port.write_channel(0, 0, (seq as u32 + 98) % SLOTS);
        rx.rxsync().expect("a fault of the peer is no error");
        assert_eq!(home.snapshot().faults("h}1").1, before + 1);
        assert_eq!(rx.rx_rings()[0].space(), 10);
        drop((tx, rx, raw_port));
        conformance::traffic::assert_pipe_works("netmap:h{1", "netmap:h}1");
    });
}

#[test]
fn an_index_used_twice_is_delivered_twice_and_not_lost() {
    isolated(|home| {
        let keeper = open("netmap:h{9");
        let before = home.snapshot().buffers("h");
        let (tx, rx) = (open("netmap:h{1"), open("netmap:h}1"));
        let ring = &tx.tx_rings()[0];
        let first = ring.slot(ring.head());
        for (i, slot) in ring.available().take(50).enumerate() {
            if i > 0 {
                slot.replace_buf(BufIdx(first.buf_idx()));
            }
            fill(&slot, 1, 7);
        }
        ring.advance(50);
        tx.txsync().expect("the daemon runs");
        for bytes in receive(&rx, 50).expect("the daemon runs") {
            assert_eq!(packet::check(&bytes), Ok((1, 7)));
        }
        let now = home.snapshot().buffers("h");
        assert_eq!((now.in_rings, now.missing), (2 * PIPE_BUFFERS - 49, 49));
        drop((tx, rx));
        until("the pipe is closed", || home.snapshot().sessions.len() == 1);
        let now = home.snapshot().buffers("h");
        assert_eq!(now.in_rings, before.in_rings);
        // Buffers that are found nowhere after their last possible holder closed its port are missing and are
        // not reused.
        assert_eq!(now.free + now.missing, before.free);
        drop(keeper);
        until("the region is closed", || home.snapshot().regions.is_empty());
        home.assert_serves();
    });
}

#[test]
fn using_buffers_of_another_port_does_not_free_them() {
    isolated(|home| {
        let (victim, reader) = (open("netmap:h{2"), open("netmap:h}2"));
        let before = home.snapshot().buffers("h");
        let (tx, rx) = (open("netmap:h{1"), open("netmap:h}1"));
        let stolen: Vec<u32> = victim.tx_rings()[0].available().map(|slot| slot.buf_idx()).collect();
        let ring = &tx.tx_rings()[0];
        for (slot, &idx) in ring.available().zip(&stolen) {
            slot.replace_buf(BufIdx(idx));
            slot.set_len_flags(60, 0);
        }
        ring.advance(500);
        tx.txsync().expect("the daemon runs");
        assert_eq!(receive(&rx, 500).expect("the daemon runs").len(), 500);
        drop((tx, rx));
        until("the thief is gone", || home.snapshot().sessions.len() == 2);
        // No buffer of the other port was freed: no new port may get one.
        let now = home.snapshot().buffers("h");
        assert_eq!(now.in_rings, before.in_rings);
        assert_eq!(now.free + now.missing, before.free);
        let newcomer = open("netmap:h{3");
        let theirs: HashSet<u32> = newcomer.tx_rings()[0].available().map(|slot| slot.buf_idx()).collect();
        assert!(stolen.iter().all(|idx| !theirs.contains(idx)), "a buffer of an open port was allocated again");
        exchange(&victim, &reader, 1, 0, 5000);
    });
}

#[test]
fn invalid_values_in_the_endpoint_state_page_affect_only_their_writer() {
    isolated(|home| {
        let (tx, rx) = (open("netmap:h{1"), open("netmap:h}1"));
        exchange(&tx, &rx, 1, 0, 100);
        let raw_port = RawPort::open(&home.socket(), "h{1");
        for (word, value) in [(1, SLOTS), (2, u32::MAX), (1, 500), (2, 3), (0, 0xdead_beef)] {
            raw_port.write_state(0, word, value);
            let _ = tx.txsync();
            fill_some(&tx.tx_rings()[0], 1, 0, 5);
            let _ = tx.txsync();
            rx.rxsync().expect("the peer is not affected");
        }
        drop((tx, raw_port));
        until("the session is over", || home.snapshot().sessions.len() == 1);
        // The next client starts at the channel's current position.
        let waiting = home.snapshot().ring("h{1", "tx", 0).queued;
        receive(&rx, waiting as usize).expect("the daemon runs");
        let tx = open("netmap:h{1");
        exchange(&tx, &rx, 2, 0, 3000);
    });
}

/// Writes random words over everything that a client can write, while others work in the same region and in another.
#[test]
fn random_writes_to_all_shared_memory_crash_nobody() {
    isolated(|home| {
        let start_client = |args: &[&str]| {
            Guard::spawn(Command::new(program("traffic_client")).args(args).stdout(Stdio::null()).stderr(Stdio::null()))
        };
        let folder = home.folder().join("got");
        std::fs::create_dir(&folder).expect("a folder");
        let (folder, record) = (folder.display().to_string(), home.folder().join("sent").display().to_string());
        let (far, near) = (open("netmap:other{1"), open("netmap:other}1"));
        let mut rng = Rng(0x5eed_0011);
        let mut words = 0;
        for round in 0..12 {
            let mut clients =
                [start_client(&["recv", "netmap:h}1", &folder]), start_client(&["send", "netmap:h{1", "1", &record])];
            let raw_port = [RawPort::open(&home.socket(), "h{1"), RawPort::open(&home.socket(), "h}1")];
            for _ in 0..4000 {
                let raw_port = &raw_port[rng.below(2) as usize];
                let ring = rng.below(2) as usize;
                // Values near the bounds find more faults than arbitrary ones.
                let value = [0, 1, SLOTS - 1, SLOTS, rng.below(2048) as u32, rng.next_u64() as u32, u32::MAX];
                let value = value[rng.below(7) as usize];
                match rng.below(8) {
                    0 => {
                        raw_port.write_field(ring, [field::HEAD, field::CUR, field::TAIL][rng.below(3) as usize], value)
                    }
                    1 => raw_port.write_field(ring, 4 * rng.below(64) as usize, value),
                    2..=4 => {
                        let (slot, len, flags) = (rng.below(1024) as u32, rng.next_u64() as u16, rng.next_u64() as u16);
                        raw_port.write_slot(ring, slot, value, len, flags);
                    }
                    5 => raw_port.write_channel(ring, rng.below(4), value),
                    6 => raw_port.write_state(ring, rng.below(32), value),
                    // Interfaces, with the lists of extra buffers.
                    _ => raw_port.write(4 * rng.below(100 * 4608 / 4), &value.to_ne_bytes()),
                }
                words += 1;
            }
            exchange(&far, &near, 1, round * 500, round * 500 + 500);
            for guard in &mut clients {
                // They may have exited with an error message; they must not have crashed.
                if let Ok(Some(status)) = guard.0.try_wait() {
                    assert!(status.code().is_some_and(|code| code <= 1), "a client crashed: {status}");
                }
                guard.kill();
            }
            drop(raw_port);
            until("the region is given up", || home.snapshot().regions.len() == 1);
        }
        let _ = home.snapshot().buffers("other");
        home.assert_serves();
        summary(&format!("words scribbled {words}, crashes 0"));
    });
}

fn free_of(home: &Home, parent: &str) -> u32 {
    home.snapshot().buffers(parent).free
}

/// Ten extra buffers and various lists that a program leaves: how many are free again afterwards.
#[test]
fn extra_buffer_lists_with_loops_and_foreign_indexes_are_recovered() {
    isolated(|home| {
        let (keeper, other) = (open("netmap:x{9"), open("netmap:x}9"));
        let foreign = keeper.tx_rings()[0].slot(keeper.tx_rings()[0].head()).buf_idx();
        type Spoil = Box<dyn Fn(&Port, &[BufIdx])>;
        let put = |port: &Port, at: BufIdx, next: u32| {
            port.region().frame(at).write(0, &next.to_ne_bytes());
        };
        let cases: Vec<(&str, u32, Spoil)> = vec![
            ("as it was", 10, Box::new(|p, all| all.iter().for_each(|&b| p.give_extra_buf(b)))),
            ("nothing", 0, Box::new(|_, _| ())),
            (
                "a loop of two",
                2,
                Box::new(move |p, all| {
                    p.give_extra_buf(all[0]);
                    p.give_extra_buf(all[1]);
                    put(p, all[0], all[1].0);
                }),
            ),
            (
                "a loop of one",
                1,
                Box::new(move |p, all| {
                    p.give_extra_buf(all[0]);
                    put(p, all[0], all[0].0);
                }),
            ),
            (
                "an end in nowhere",
                3,
                Box::new(move |p, all| {
                    all[..3].iter().for_each(|&b| p.give_extra_buf(b));
                    put(p, all[0], u32::MAX);
                }),
            ),
            ("a head in nowhere", 0, Box::new(|p, _| p.give_extra_buf(BufIdx(u32::MAX)))),
            (
                "another port's buffer",
                10,
                Box::new(move |p, all| {
                    all.iter().for_each(|&b| p.give_extra_buf(b));
                    p.give_extra_buf(BufIdx(foreign));
                }),
            ),
            (
                "the same one five times",
                1,
                Box::new(|p, all| {
                    for _ in 0..5 {
                        p.give_extra_buf(all[3]);
                    }
                }),
            ),
            ("a reserved buffer", 0, Box::new(|p, _| p.give_extra_buf(BufIdx(1)))),
            (
                "one that was never handed out",
                0,
                Box::new(|p, _| p.give_extra_buf(BufIdx(p.region().geometry().bufs.count - 1))),
            ),
        ];
        let mut lost = 0;
        for (what, back, spoil) in &cases {
            let free = free_of(home, "x");
            let port = Port::options().extra_bufs(10).open("netmap:x{1").unwrap_or_else(|e| panic!("{what}: {e}"));
            assert_eq!(port.extra_bufs(), 10);
            assert_eq!(home.snapshot().buffers("x").extra, 10, "{what}");
            let all: Vec<BufIdx> = std::iter::from_fn(|| port.take_extra_buf()).collect();
            assert_eq!(all.len(), 10);
            assert_eq!(all.iter().collect::<HashSet<_>>().len(), 10);
            spoil(&port, &all);
            drop(port);
            until("the session is over", || home.snapshot().sessions.len() == 2);
            let now = home.snapshot().buffers("x");
            lost += 10 - back;
            assert_eq!((now.free, now.extra, now.missing), (free - (10 - back), 0, lost), "{what}");
        }
        // A well-behaved session still gets buffers, which differ from the keeper's.
        let honest = Port::options().extra_bufs(1000).open("netmap:x{1").expect("buffers are left");
        assert_eq!(honest.extra_bufs(), 1000);
        let theirs: HashSet<BufIdx> = std::iter::from_fn(|| honest.take_extra_buf()).collect();
        assert_eq!(theirs.len(), 1000);
        assert!(!theirs.contains(&BufIdx(foreign)));
        theirs.into_iter().for_each(|b| honest.give_extra_buf(b));
        exchange(&keeper, &other, 1, 0, 5000);
        drop((honest, keeper, other));
        until("the region is closed", || home.snapshot().regions.is_empty());
        home.assert_serves();
        summary(&format!("lists {}, missing buffers until the region's end {lost}", cases.len()));
    });
}

#[test]
fn an_extra_buffer_swapped_into_a_ring_is_not_lost() {
    isolated(|home| {
        let keeper = open("netmap:x{9");
        let before = home.snapshot().buffers("x");
        let (tx, rx) = (Port::options().extra_bufs(8).open("netmap:x{1").expect("a port"), open("netmap:x}1"));
        for _ in 0..40 {
            let Some(fresh) = tx.take_extra_buf() else { panic!("the list is empty") };
            let slot = tx.tx_rings()[0].slot(tx.tx_rings()[0].head());
            tx.give_extra_buf(slot.replace_buf(fresh));
            exchange(&tx, &rx, 1, 0, 3);
        }
        drop((tx, rx));
        until("the pipe is closed", || home.snapshot().sessions.len() == 1);
        assert_eq!(home.snapshot().buffers("x"), before);
        drop(keeper);
    });
}

/// A request for too many extra buffers gets fewer: at most 16384 per session, and at most what the region has left.
#[test]
fn too_many_requested_extra_buffers_are_granted_in_part() {
    isolated(|home| {
        let greedy = |pipe: u32| Port::options().extra_bufs(u32::MAX).open(&format!("netmap:x{{{pipe}"));
        let mut held = Vec::new();
        let refused = loop {
            match greedy(held.len() as u32) {
                Ok(port) => held.push(port),
                Err(refused) => break refused,
            }
        };
        assert!(held.iter().all(|port| port.extra_bufs() <= 16384));
        let now = home.snapshot().buffers("x");
        assert_eq!(now.extra, held.iter().map(Port::extra_bufs).sum::<u32>());
        assert_eq!(refused.errno(), 12, "{refused}");
        assert!(refused.to_string().contains("netmap:x{"), "{refused}");
        drop(held);
        until("the region is closed", || home.snapshot().regions.is_empty());
        conformance::traffic::assert_pipe_works("netmap:x{2", "netmap:x}2");
    });
}

/// Removes the pages of shared memory under open ports by `hole`, which returns whether it could: everything reads as
/// zeros.
fn survives(home: &Home, hole: impl Fn() -> bool) {
    let _daemon = start_faulty_daemon(home, "", "removable");
    let (far, near) = (open("netmap:other{1"), open("netmap:other}1"));
    for _ in 0..5 {
        let keeper = open("netmap:m{9");
        let (tx, rx) = (open("netmap:m{1"), open("netmap:m}1"));
        exchange(&tx, &rx, 1, 0, 300);
        send(&tx, 1, 300, 400).expect("room");
        rx.rxsync().expect("the daemon runs");
        if !hole() {
            return summary("skipped: this is a release build, and its daemon keeps the pages");
        }
        let mut errors = 0;
        for _ in 0..20 {
            // All indexes are 0 now: errors and empty packets, but no crash, and all calls return.
            for result in [tx.txsync(), rx.rxsync(), rx.txsync(), tx.rxsync(), keeper.txsync(), keeper.rxsync()] {
                errors += u32::from(matches!(result, Err(Error::BadPointers { .. })));
            }
            fill_some(&tx.tx_rings()[0], 1, 0, 10);
            for slot in rx.rx_rings()[0].available() {
                let _ = bytes_of(&slot);
            }
            rx.rx_rings()[0].advance(u32::MAX);
        }
        assert!(errors > 0, "no ring was reset");
        let now = home.snapshot().buffers("m");
        assert!(now.missing > 0, "{now:?}");
        exchange(&far, &near, 1, 0, 500);
        drop((tx, rx));
        until("the pipe is closed", || home.snapshot().sessions.len() == 3);
        // New ports in the same region get rings and buffers that work.
        conformance::traffic::assert_pipe_works("netmap:m{2", "netmap:m}2");
        let _ = home.snapshot().buffers("m");
        drop(keeper);
        until("the region is closed", || home.snapshot().regions.len() == 1);
    }
    conformance::traffic::assert_pipe_works("netmap:m{1", "netmap:m}1");
}

#[test]
fn holes_punched_into_the_region_crash_nobody() {
    isolated(|home| {
        survives(home, || RawPort::open(&home.socket(), "m{3").punch_hole());
    });
}

#[test]
fn removed_pages_of_the_region_crash_nobody() {
    isolated(|home| {
        survives(home, || {
            let status = Command::new(program("page_remover"))
                .arg("netmap:m{3")
                .stdout(Stdio::null())
                .status()
                .expect("the remover runs");
            status.success()
        });
    });
}

#[test]
fn a_region_cannot_be_truncated() {
    isolated(|home| {
        let port = open("netmap:m{1");
        let raw_port = RawPort::open(&home.socket(), "m{2");
        let bytes = raw_port.region.metadata().expect("a file").len();
        for file in [&raw_port.region, &raw_port.endpoint_states, &raw_port.channels] {
            assert!(file.set_len(0).is_err(), "a shared file was truncated");
            assert!(file.set_len(bytes * 2).is_err(), "a shared file was extended");
        }
        port.txsync().expect("nothing happened");
    });
}

/// A doorbell is a descriptor that both peers hold. Whatever one peer does to it, notifying and sleeping do not block
/// forever.
#[test]
fn doorbells_set_at_random_stop_nobody() {
    use rustix::fs::{OFlags, fcntl_getfl, fcntl_setfl};
    use rustix::time::{Itimerspec, TimerfdTimerFlags, Timespec, timerfd_settime};
    isolated(|home| {
        let peer = open("netmap:b{1");
        let raw_port = RawPort::open(&home.socket(), "b}1");
        let set = |interval: i64, value: i64| {
            let time = |tv_nsec| Timespec { tv_sec: 0, tv_nsec };
            let timer = Itimerspec { it_interval: time(interval), it_value: time(value) };
            for doorbell in &raw_port.doorbells {
                fcntl_setfl(doorbell, fcntl_getfl(doorbell).expect("flags") - OFlags::NONBLOCK)
                    .expect("either peer may clear it");
                timerfd_settime(doorbell, TimerfdTimerFlags::empty(), &timer).expect("either peer may set it");
            }
        };
        let mut seq = 0;
        // Spurious notifications all the time, none at all, and one after almost a second.
        for (interval, value) in [(100_000, 1), (0, 0), (0, 999_999_999)] {
            set(interval, value);
            // The channel says that this side sleeps: the peer notifies it for each of these packets.
            for _ in 0..50 {
                raw_port.write_channel(1, 3, 1);
                send_one(&peer, seq);
                seq += 1;
            }
            let limit = Some(std::time::Duration::from_millis(50));
            assert!(peer.poll(Interest::RX, limit).expect("the daemon runs").is_none());
        }
        // The daemon notifies the peer when a session ends.
        drop(raw_port);
        until("the session is over", || home.snapshot().sessions.len() == 1);
        home.assert_serves();
        summary(&format!("packets {seq} while doorbells were set at random, no client blocked"));
    });
}

/// The doorbells of an end that was never open are given to the programs that have the other end, and are the ones that
/// it gets when it is opened.
#[test]
fn doorbells_of_the_other_end_are_given_only_for_the_key() {
    isolated(|home| {
        let other_port = open("netmap:other{1");
        let first = RawPort::open(&home.socket(), "b{1");
        let Binding { head, rings } = &first.bound;
        assert!(rings.iter().all(|ring| ring.features & DOORBELL_LATER != 0));
        let stranger = ControlConnection::connect(&home.socket()).expect("a daemon that listens");
        let of = |session, key| stranger.peer_doorbells(&PeerDoorbellsRequest { session, key });
        for (session, key) in [(head.session, head.key ^ 1), (head.session + 1, head.key), (head.session, 0)] {
            let (errno, fds) = of(session, key);
            assert_eq!((errno, fds.len()), (EINVAL, 0));
        }
        // A port without another end has none.
        let switch_port = RawPort::open(&home.socket(), "vale0:x");
        let (errno, fds) = of(switch_port.bound.head.session, switch_port.bound.head.key);
        assert_eq!((errno, fds.len()), (EINVAL, 0));
        // However often they are asked for, the daemon has one for each ring.
        let before = home.daemon_fds();
        for _ in 0..20 {
            let (errno, fds) = of(head.session, head.key);
            assert_eq!((errno, fds.len()), (0, rings.len()));
        }
        home.until_fds(before + rings.len());
        let later = RawPort::open(&home.socket(), "b}1");
        assert!(later.bound.rings.iter().all(|ring| ring.features & DOORBELL_LATER == 0));
        let (session, key) = (head.session, head.key);
        drop((first, later, other_port, switch_port));
        until("the sessions are over", || home.snapshot().sessions.is_empty());
        assert_eq!(of(session, key).0, EINVAL);
        home.assert_serves();
    });
}

/// The raw port's transmit ring, whose channel leads to the peer.
fn peer_channel(raw_port: &RawPort) -> usize {
    raw_port.bound.rings.iter().position(|ring| ring.dir == 0).expect("a transmit ring")
}

/// Sends one packet, or syncs if there is no room.
fn send_one(port: &Port, seq: u64) {
    let ring = &port.tx_rings()[0];
    if let Some(slot) = ring.available().next() {
        fill(&slot, 1, seq);
        ring.advance(1);
    }
    port.txsync().expect("the daemon runs");
}

/// Tests of [`isolated_alone`].
mod alone {
    use super::*;

    /// A peer with an invalid position is ignored until the position changes, and causes no busy loop.
    #[test]
    fn a_persistent_invalid_position_costs_no_processor_time() {
        isolated_alone(|home| {
            let peer = open("netmap:b{1");
            let raw_port = RawPort::open(&home.socket(), "b}1");
            let channel_of_peer = peer_channel(&raw_port);
            for nonsense in [u32::MAX, 5000] {
                raw_port.write_channel(channel_of_peer, 0, nonsense);
                for _ in 0..100 {
                    assert!(peer.arm(Interest::RX).expect("the daemon runs").is_none());
                }
            }
            let (_, pointers) = home.snapshot().faults("b{1");
            assert!((1..=4).contains(&pointers), "each invalid position is counted once, not {pointers} times");
            home.assert_serves();
        });
    }
}
