// SPDX-License-Identifier: BSD-2-Clause
//! The documented behaviour of pipes.

use std::os::unix::process::ExitStatusExt as _;
use std::process::Command;
use std::time::{Duration, Instant};

use conformance::home::{files_of, raise_fd_limit, summary};
use conformance::request::control;
use conformance::traffic::{assert_pipe_works, bytes_of, exchange, expect, fill, fill_some, open, receive, send};
use conformance::{LIMIT, isolated, packet, until};
use rustix::process::Signal;
use unetmap::abi::*;
use unetmap::errno::*;
use unetmap::{Interest, Port};

/// How long to wait for a packet that must not arrive.
const A_MOMENT: Option<Duration> = Some(Duration::from_millis(60));

#[track_caller]
fn refused(spec: &str, errno: i32) -> String {
    refused_with(Port::options(), spec, errno)
}

#[track_caller]
fn refused_with(options: unetmap::OpenOptions, spec: &str, errno: i32) -> String {
    match options.open(spec) {
        Ok(_) => panic!("{spec} was opened"),
        Err(e) => {
            assert_eq!(e.errno(), errno, "{spec}: {e}");
            e.to_string()
        }
    }
}

#[test]
fn any_id_and_parent_name_works() {
    isolated(|_| {
        let long = "a".repeat(40);
        for id in ["0", "1", "63", "64", "99999", "left", "a_b", "Z", long.as_str()] {
            // Parents that do not exist, and switch ports.
            for parent in ["netmap:nosuch", "netmap:p", "vale0:x", "vale:y"] {
                assert_pipe_works(&format!("{parent}{{{id}"), &format!("{parent}}}{id}"));
            }
        }
    });
}

#[test]
fn pipes_of_one_parent_are_separate() {
    isolated(|_| {
        let ids = ["1", "2", "01", "left"];
        let ends: Vec<(Port, Port)> =
            ids.iter().map(|id| (open(&format!("netmap:p{{{id}")), open(&format!("netmap:p}}{id}")))).collect();
        for (i, (a, _)) in ends.iter().enumerate() {
            send(a, i as u64, 0, 100).expect("room");
        }
        for (i, (_, b)) in ends.iter().enumerate() {
            expect(b, i as u64, 0, 100);
            assert!(b.poll(Interest::RX, Some(Duration::ZERO)).expect("the daemon runs").is_none());
        }
    });
}

#[test]
fn each_parent_has_up_to_64_pipes() {
    isolated(|_| {
        // By default the region has buffers for as many with shorter rings.
        let mut all: Vec<Port> = (0..64).map(|id| open(&format!("netmap:p{{{id}@conf:slots=200"))).collect();
        let why = refused("netmap:p{64", EINVAL);
        assert!(why.contains("netmap:p{64") && why.contains("64 pipes"), "{why}");
        refused("netmap:p}64", EINVAL);
        // No other pipe of this parent receives it.
        exchange(&all[63], &open("netmap:p}63"), 1, 0, 2000);
        assert_pipe_works("netmap:q{64", "netmap:q}64");
        all.pop();
        until("one is closed", || Port::open("netmap:p{64@conf:slots=200").is_ok());
    });
}

/// A parent's pipes share a region, which cannot grow.
#[test]
fn pipes_beyond_the_buffers_of_the_region_are_refused_with_the_knob() {
    isolated(|_| {
        let all: Vec<Port> = (0..12).map(|id| open(&format!("netmap:p{{{id}"))).collect();
        assert!(all.iter().all(|port| port.mem_id() == all[0].mem_id()));
        let why = refused("netmap:p{12", ENOMEM);
        assert!(why.contains("@conf:slots=") && why.contains("priv_buf_num"), "{why}");
        // Buffers are exchanged between the pipes that there are.
        exchange(&all[11], &open("netmap:p}11"), 1, 0, 2000);
        assert_pipe_works("netmap:p{short@conf:slots=64", "netmap:p}short");
        assert_pipe_works("netmap:q{10", "netmap:q}10");
    });
}

/// A pipe takes a bounded number of descriptors and bytes of a process that opens one end, and of the daemon.
#[test]
fn a_pipe_takes_64_mb_of_address_space_and_six_descriptors() {
    isolated(|home| {
        let _first = open("netmap:other{1");
        let of_process = |pid: i32| {
            let status = std::fs::read_to_string(format!("/proc/{pid}/status")).expect("it runs");
            let line = status.lines().find(|line| line.starts_with("VmSize:")).expect("a line");
            let kib: u64 = line.split_whitespace().nth(1).and_then(|kib| kib.parse().ok()).expect("a number");
            kib * 1024
        };
        // The daemon makes memory files ahead and closes others when it has time: its number is a settled one.
        let descriptors = || [files_of(std::process::id().cast_signed()).len(), home.daemon_fds()];
        let (own, daemon) = (std::process::id().cast_signed(), home.daemon().as_raw_pid());
        let settled = home.daemon_fds();
        // The heap and the stacks have their size. A thread frees the region.
        drop(open("netmap:p{1"));
        until("it is closed", || home.snapshot().sessions.len() == 1 && home.daemon_fds() <= settled);
        let (before, files_before) = ([own, daemon].map(of_process), descriptors());
        let port = open("netmap:p{1");
        let (after, files_after) = ([own, daemon].map(of_process), descriptors());
        let bytes = [0, 1].map(|i| after[i].saturating_sub(before[i]));
        assert!(bytes.iter().all(|bytes| *bytes < 64_000_000), "{bytes:?} bytes");
        let [client, daemon] = [0, 1].map(|i| files_after[i].saturating_sub(files_before[i]));
        assert!(client <= 3 && daemon <= 6, "descriptors: {client} of the program, {daemon} of the daemon");
        summary(&format!("bytes {}, descriptors of the program {client}, of the daemon {daemon}", bytes[0]));
        drop(port);
    });
}

/// 10,000, or as many as the daemon or this process may have descriptors for.
#[test]
fn ten_thousand_pipes_open_and_close() {
    isolated(|home| {
        raise_fd_limit();
        assert_pipe_works("netmap:p{1", "netmap:p}1");
        until("it is closed", || home.snapshot().sessions.is_empty());
        let fds = home.daemon_fds();
        // Both ends before the rest, so that they have their descriptors when no more are left.
        let (mut all, mut why) = (vec![open("netmap:many0{1")], String::from("none was refused"));
        let far = open("netmap:many0}1");
        for n in 1..10_000 {
            match Port::open(&format!("netmap:many{n}{{1")) {
                Ok(port) => all.push(port),
                Err(e) => {
                    assert!(matches!(e.errno(), EMFILE | ENOMEM), "{e}");
                    why = e.to_string();
                    break;
                }
            }
        }
        let opened = all.len();
        assert!(opened == 10_000 || why.contains("LimitNOFILE="), "after {opened} pipes: {why}");
        exchange(&all[0], &far, 1, 0, 100);
        drop((all, far));
        // A thread may not have freed the first region before.
        until("all are closed", || home.snapshot().sessions.is_empty() && home.daemon_fds() <= fds);
        assert_pipe_works("netmap:p{1", "netmap:p}1");
        summary(&format!("pipes {opened}, then: {why}"));
    });
}

#[test]
fn rings_of_every_size_work() {
    isolated(|_| {
        for (slots, actual) in [(2, 2), (3, 3), (7, 7), (64, 64), (1000, 1000), (4096, 4096), (9999, 4096)] {
            let tx = Port::options().tx_slots(slots).rx_slots(slots).open("netmap:p{1").expect("a pipe");
            let rx = open("netmap:p}1");
            assert_eq!(tx.tx_rings()[0].num_slots(), actual);
            assert_eq!(rx.rx_rings()[0].num_slots(), actual);
            assert_eq!(tx.tx_rings()[0].space(), actual - 1);
            exchange(&tx, &rx, 1, 0, 3 * u64::from(actual) + 5);
            exchange(&rx, &tx, 2, 0, 3 * u64::from(actual) + 5);
        }
        let named = open("netmap:p{1@conf:slots=256");
        assert_eq!(named.tx_rings()[0].num_slots(), 256);
        // The sizes requested by the first end apply to the second.
        let second = Port::options().tx_slots(512).open("netmap:p}1").expect("the same pipe");
        assert_eq!(second.tx_rings()[0].num_slots(), 256);
        drop((named, second));
        let both = Port::options().tx_slots(128).rx_slots(512).open("netmap:p{1").expect("a pipe");
        let other = open("netmap:p}1");
        assert_eq!((other.tx_rings()[0].num_slots(), other.rx_rings()[0].num_slots()), (512, 128));
        exchange(&both, &other, 1, 0, 2000);
        exchange(&other, &both, 1, 0, 2000);
        drop((both, other));
        refused_with(Port::options().tx_slots(1), "netmap:p{1", EINVAL);
    });
}

#[test]
fn all_ring_pairs_or_a_single_one_can_be_bound() {
    isolated(|_| {
        let all = Port::options().tx_rings(4).rx_rings(4).open("netmap:p{1").expect("a pipe");
        assert_eq!((all.tx_rings().len(), all.rx_rings().len()), (4, 4));
        let ones: Vec<Port> = (0..4).map(|n| open(&format!("netmap:p}}1-{n}"))).collect();
        for (n, one) in ones.iter().enumerate() {
            assert_eq!((one.tx_rings().len(), one.rx_rings().len()), (1, 1));
            assert_eq!((usize::from(one.tx_rings()[0].id()), usize::from(one.rx_rings()[0].id())), (n, n));
            fill_some(&all.tx_rings()[n], n as u64, 0, 20);
        }
        all.txsync().expect("the daemon runs");
        for (n, one) in ones.iter().enumerate() {
            expect(one, n as u64, 0, 20);
            assert!(one.poll(Interest::RX, Some(Duration::ZERO)).expect("the daemon runs").is_none());
            send(one, 10 + n as u64, 0, 5).expect("room");
        }
        // A poll of all rings reports each.
        assert!(all.poll(Interest::RX, Some(LIMIT)).expect("the daemon runs").rx());
        all.rxsync().expect("the daemon runs");
        for (n, ring) in all.rx_rings().iter().enumerate() {
            let got: Vec<_> = ring.available().map(|slot| packet::check(&bytes_of(&slot))).collect();
            let due: Vec<_> = (0..5).map(|seq| Ok((10 + n as u64, seq))).collect();
            assert_eq!(got, due);
        }
        let why = refused("netmap:p{1-4", EINVAL);
        assert!(why.contains("no ring 4"), "{why}");
        refused("netmap:p}1-4000", EINVAL);
    });
}

#[test]
fn a_poll_waits_until_tail_passes_cur() {
    isolated(|_| {
        let (tx, rx) = (open("netmap:p{1"), open("netmap:p}1"));
        send(&tx, 1, 0, 5).expect("room");
        let ring = &rx.rx_rings()[0];
        assert!(rx.poll(Interest::RX, Some(LIMIT)).expect("the daemon runs").rx());
        assert_eq!(ring.space(), 5);
        // The program keeps the five packets and waits for more.
        ring.set_cur(ring.tail());
        assert!(rx.poll(Interest::RX, A_MOMENT).expect("the daemon runs").is_none());
        std::thread::scope(|scope| {
            let waiting = scope.spawn(|| rx.poll(Interest::RX, Some(LIMIT)).expect("the daemon runs"));
            std::thread::sleep(Duration::from_millis(20));
            send(&tx, 1, 5, 6).expect("room");
            assert!(waiting.join().expect("no panic").rx());
        });
        assert_eq!(ring.space(), 6);
        expect(&rx, 1, 0, 6);
        // The same for transmit: half of the ring is free, and the program waits for more room.
        let tx_ring = &tx.tx_rings()[0];
        send(&tx, 1, 6, 600).expect("room");
        tx.txsync().expect("the daemon runs");
        let space = tx_ring.space();
        tx_ring.set_cur(tx_ring.tail());
        assert!(tx.poll(Interest::TX, A_MOMENT).expect("the daemon runs").is_none());
        std::thread::scope(|scope| {
            let waiting = scope.spawn(|| tx.poll(Interest::TX, Some(LIMIT)).expect("the daemon runs"));
            std::thread::sleep(Duration::from_millis(20));
            expect(&rx, 1, 6, 100);
            assert!(waiting.join().expect("no panic").tx());
        });
        assert!(tx_ring.space() > space);
    });
}

#[test]
fn a_sender_drains_until_nothing_is_pending() {
    isolated(|_| {
        let (tx, rx) = (open("netmap:p{1"), open("netmap:p}1"));
        let ring = &tx.tx_rings()[0];
        assert!(!ring.pending());
        send(&tx, 1, 0, 300).expect("room");
        tx.txsync().expect("the daemon runs");
        assert!(ring.pending(), "nobody has taken anything");
        rx.rxsync().expect("the daemon runs");
        tx.txsync().expect("the daemon runs");
        assert!(ring.pending(), "they are in the receiver's hands");
        expect(&rx, 1, 0, 299);
        tx.txsync().expect("the daemon runs");
        assert!(ring.pending(), "one is left");
        expect(&rx, 1, 299, 300);
        tx.txsync().expect("the daemon runs");
        assert!(!ring.pending());
        assert_eq!(ring.space(), ring.num_slots() - 1);
    });
}

#[test]
fn packets_of_several_slots_cross_a_pipe_whole() {
    isolated(|_| {
        let (tx, rx) = (open("netmap:p{1"), open("netmap:p}1"));
        let (out, into) = (&tx.tx_rings()[0], &rx.rx_rings()[0]);
        // Packets of all numbers of slots, sent in two syncs, often enough to wrap around the ring.
        let mut seq = 0;
        for round in 0..400u32 {
            let length = 2 + round % 30;
            let first = 1 + round % (length - 1);
            tx.poll(Interest::TX, Some(LIMIT)).expect("the daemon runs");
            for (i, slot) in out.available().take(length as usize).enumerate() {
                fill(&slot, 1, seq + i as u64);
                slot.set_flags(if i as u32 + 1 < length { NS_MOREFRAG } else { 0 });
            }
            out.advance(first);
            tx.txsync().expect("the daemon runs");
            rx.rxsync().expect("the daemon runs");
            assert!(into.is_empty(), "{} slots of an unfinished packet came", into.space());
            out.advance(length - first);
            tx.txsync().expect("the daemon runs");
            rx.rxsync().expect("the daemon runs");
            let flags: Vec<u16> = into.available().map(|slot| slot.flags() & NS_MOREFRAG).collect();
            let mut due = vec![NS_MOREFRAG; length as usize];
            due[length as usize - 1] = 0;
            assert_eq!(flags, due);
            expect(&rx, 1, seq, seq + u64::from(length));
            seq += u64::from(length);
        }
    });
}

#[test]
fn the_ptr_field_of_a_slot_is_delivered() {
    isolated(|_| {
        let (tx, rx) = (open("netmap:p{1"), open("netmap:p}1"));
        for round in 0..40u64 {
            tx.poll(Interest::TX, Some(LIMIT)).expect("the daemon runs");
            for (i, slot) in tx.tx_rings()[0].available().take(100).enumerate() {
                fill(&slot, 1, i as u64);
                slot.set_ptr(!(round << 32 | i as u64));
            }
            tx.tx_rings()[0].advance(100);
            tx.txsync().expect("the daemon runs");
            rx.rxsync().expect("the daemon runs");
            let words: Vec<u64> = rx.rx_rings()[0].available().map(|slot| slot.get().ptr).collect();
            assert_eq!(words, (0..100).map(|i| !(round << 32 | i)).collect::<Vec<u64>>());
            rx.rx_rings()[0].advance(100);
            rx.rxsync().expect("the daemon runs");
        }
    });
}

#[test]
fn an_exclusive_open_excludes_others() {
    isolated(|home| {
        let mine = open("netmap:p{1/x");
        let why = refused("netmap:p{1", EBUSY);
        assert!(why.contains("in use"), "{why}");
        refused("netmap:p{1/x", EBUSY);
        // The other end is another port.
        let other = open("netmap:p}1");
        exchange(&mine, &other, 1, 0, 2000);
        refused("netmap:p}1/x", EBUSY);
        drop(mine);
        until("it is closed", || home.snapshot().sessions.len() == 1);
        let (a, b) = (open("netmap:p{1"), open("netmap:p{1"));
        exchange(&a, &other, 1, 0, 100);
        exchange(&b, &other, 1, 0, 100);
        // Ring by ring.
        let _all = Port::options().tx_rings(2).rx_rings(2).open("netmap:q{1").expect("a pipe");
        let _one = open("netmap:q}1-0/x");
        let _two = open("netmap:q}1-1/x");
        refused("netmap:q}1-0", EBUSY);
        refused("netmap:q}1", EBUSY);
    });
}

#[test]
fn a_port_can_be_opened_for_one_direction() {
    isolated(|_| {
        let (tx, rx) = (open("netmap:p{1/T"), open("netmap:p}1/R"));
        assert_eq!((tx.tx_rings().len(), tx.rx_rings().len()), (1, 0));
        assert_eq!((rx.tx_rings().len(), rx.rx_rings().len()), (0, 1));
        exchange(&tx, &rx, 1, 0, 5000);
        // The other direction can be opened by others.
        let (rx2, tx2) = (open("netmap:p{1/Rx"), open("netmap:p}1/Tx"));
        exchange(&tx2, &rx2, 2, 0, 5000);
        refused("netmap:p{1/TR", EINVAL);
    });
}

#[test]
fn a_region_can_be_chosen_by_number() {
    isolated(|home| {
        let a = open("netmap:p{1");
        let id = a.mem_id();
        assert_ne!(id, 0);
        let b = open(&format!("netmap:p}}1@{id}"));
        assert!(a.same_region(&b));
        exchange(&a, &b, 1, 0, 100);
        let why = refused(&format!("netmap:p}}1@{}", id + 1), EINVAL);
        assert!(why.contains("region"), "{why}");
        refused(&format!("netmap:new{{1@{}", id + 1), EINVAL);
        // A pipe of another parent in the same region: buffers can be exchanged between the two.
        let c = open(&format!("netmap:other{{1@{id}"));
        let d = open("netmap:other}1");
        assert!(a.same_region(&c) && a.same_region(&d));
        assert_eq!(c.mem_id(), id);
        send(&a, 1, 0, 50).expect("room");
        b.rxsync().expect("the daemon runs");
        for (from, to) in b.rx_rings()[0].available().zip(c.tx_rings()[0].available()) {
            to.swap_from(&from);
        }
        b.rx_rings()[0].advance(50);
        c.tx_rings()[0].advance(50);
        c.txsync().expect("the daemon runs");
        b.rxsync().expect("the daemon runs");
        expect(&d, 1, 0, 50);
        let apart = open("netmap:third{1");
        assert!(!apart.same_region(&a));
        assert_ne!(apart.mem_id(), id);
        drop((a, b, c, d, apart));
        until("all regions are closed", || home.snapshot().regions.is_empty());
    });
}

/// The library checks on the daemon about every 100 ms; a run that took longer is repeated.
#[test]
fn packets_flow_without_system_calls() {
    isolated(|_| {
        let killed = Some(Signal::SYS.as_raw());
        let (end, mut printed, mut run) = (Instant::now() + LIMIT, String::new(), 0);
        while Instant::now() < end {
            run += 1;
            let mut quiet = Command::new(env!("CARGO_BIN_EXE_no_syscalls"));
            let output = quiet.args(["netmap:q{1", "netmap:q}1"]).output().expect("the helper starts");
            printed = String::from_utf8_lossy(&output.stdout).into_owned();
            let words: Vec<&str> = printed.lines().collect();
            match words[..] {
                ["opened", why] if why.starts_with("unable") => return summary(&format!("skipped: {why}")),
                ["opened", moved] => {
                    // Its exit is a forbidden system call, too.
                    assert_eq!((moved, output.status.signal()), ("moved 16000", killed), "{output:?}");
                    return summary(&format!("16000 packets in 2000 batches without a system call, run {run}"));
                }
                // The check on the daemon made a system call.
                ["opened"] => assert_eq!(output.status.signal(), killed, "{output:?}"),
                _ => panic!("{output:?}"),
            }
        }
        panic!("a system call in each of {run} runs; the last one printed {printed:?}");
    });
}

#[test]
fn packets_in_a_pipe_stay_for_the_next_receiver() {
    isolated(|home| {
        let tx = open("netmap:p{1");
        send(&tx, 1, 0, 100).expect("room");
        let rx = open("netmap:p}1");
        expect(&rx, 1, 0, 40);
        rx.rxsync().expect("the daemon runs");
        drop(rx);
        until("it is closed", || home.snapshot().sessions.len() == 1);
        let rx = open("netmap:p}1");
        expect(&rx, 1, 40, 100);
        // The sender closes; its packets stay in the pipe.
        send(&tx, 1, 100, 200).expect("room");
        drop(tx);
        until("it is closed", || home.snapshot().sessions.len() == 1);
        expect(&rx, 1, 100, 200);
        assert_eq!(receive(&rx, 0).expect("the daemon runs").len(), 0);
    });
}

#[test]
fn a_null_port_has_no_rings() {
    isolated(|_| {
        let a = open("netmap:p{1");
        let spec = format!("netmap:nothing@{}", a.mem_id());
        let null = Port::options().mode(NR_REG_NULL).tx_rings(2).open(&spec).expect("a null port");
        assert!(null.same_region(&a));
        assert_eq!((null.tx_rings().len(), null.rx_rings().len()), (2, 1));
        assert_eq!(fill_some(&null.tx_rings()[0], 1, 0, 10), 10);
        null.txsync().expect("the daemon runs");
        null.rxsync().expect("the daemon runs");
        assert!(null.poll(Interest::RX, A_MOMENT).expect("the daemon runs").is_none());
        refused_with(Port::options().mode(NR_REG_NULL), &spec, EBUSY);
        refused_with(Port::options().mode(NR_REG_NULL), "netmap:nowhere", EINVAL);
        refused_with(Port::options().mode(NR_REG_NULL), "netmap:nowhere@77", EINVAL);
    });
}

#[test]
fn port_info_and_pools_info_describe_a_port() {
    isolated(|home| {
        let a = Port::options().tx_slots(128).tx_rings(3).open("netmap:p{1").expect("a pipe");
        let info = |name: &str, mem_id| {
            let body = NmreqPortInfoGet { nr_mem_id: mem_id, ..Default::default() };
            control(NETMAP_REQ_PORT_INFO_GET, name, body).map(|(_, info)| info)
        };
        let reported = info("p{1", 0).expect("an open port");
        assert_eq!((reported.nr_tx_slots, reported.nr_rx_slots), (128, 1024));
        assert_eq!((reported.nr_tx_rings, reported.nr_rx_rings), (3, 1));
        assert_eq!((reported.nr_mem_id, reported.nr_memsize), (a.mem_id(), a.register().nr_memsize));
        let reported = info("p}1", a.mem_id()).expect("its other end");
        assert_eq!(
            (reported.nr_tx_slots, reported.nr_rx_slots, reported.nr_tx_rings, reported.nr_rx_rings),
            (1024, 128, 1, 3)
        );
        // A port that is not open is created for the request and removed after it.
        assert_eq!(info("q{1", 0).expect("a pipe that can be").nr_tx_slots, 1024);
        assert_eq!(home.snapshot().regions.len(), 1);
        // The region id of the request is ignored, and the reply contains the actual one.
        assert_eq!(info("p{1", 77).expect("an open port").nr_mem_id, a.mem_id());
        assert_eq!(info("", 77).map(|_| ()), Err(EINVAL));
        assert!(info("nosuch0", 0).is_err());
        assert!(info("p{1-0", 0).is_err(), "a request names a port, nothing else");

        let (_, pools) = control(NETMAP_REQ_POOLS_INFO_GET, "p{1", NmreqPoolsInfo::default()).expect("an open port");
        let g = a.region().geometry();
        assert_eq!((pools.nr_mem_id, pools.nr_memsize), (a.mem_id(), g.bytes()));
        assert_eq!(
            (pools.nr_if_pool_offset, pools.nr_if_pool_objtotal, pools.nr_if_pool_objsize),
            (g.ifs.offset, g.ifs.count, g.ifs.size)
        );
        assert_eq!(
            (pools.nr_ring_pool_offset, pools.nr_ring_pool_objtotal, pools.nr_ring_pool_objsize),
            (g.rings.offset, g.rings.count, g.rings.size)
        );
        assert_eq!(
            (pools.nr_buf_pool_offset, pools.nr_buf_pool_objtotal, pools.nr_buf_pool_objsize),
            (g.bufs.offset, g.bufs.count, g.bufs.size)
        );
        assert_eq!(home.snapshot().sessions.len(), 1);
    });
}

#[test]
fn invalid_names_are_refused_with_a_reason() {
    isolated(|home| {
        let _port = open("netmap:p{1");
        let long = format!("netmap:{}", "x".repeat(64));
        let wrong = [
            "",
            "p",
            "netmap",
            "netmap:",
            "netmapX:p",
            "vale",
            "vale1:",
            "vale1",
            ":p",
            "netmap:p{",
            "netmap:p}",
            "netmap:p{}",
            "netmap:p{1}2",
            "netmap:p{1{2",
            "netmap:{1",
            "netmap:p{1 ",
            "netmap: p{1 2",
            "netmap:p--1",
            "netmap:p-4095",
            "netmap:p@0",
            "netmap:p@65536",
            "netmap:p@9@8",
            "netmap:p/q",
            "netmap:p/",
            "netmap:p{1/xq",
            "netmap:p{1-1-2",
            "netmap:p{1^",
            "netmap:p{1*",
            "netmap:p{1@",
            "netmap:p{1@conf",
            "netmap:p{1@conf:slots=x",
            "netmap:p{1@nonsense:a=b",
            "netmap:vale0:x{1",
            "vale0:a-b:c",
            "vale0:x{1{",
            "netmap:p{a.b",
            "netmap:p{\u{e9}",
            "netmap:p\0{1",
            long.as_str(),
        ];
        for spec in wrong {
            let why = refused(spec, EINVAL);
            assert!(why.len() > spec.len() && why.len() > 10, "{spec:?}: {why:?}");
        }
        assert_eq!(home.snapshot().sessions.len(), 1, "a wrong name opened something");
        // A valid name of an interface that does not exist.
        let why = refused("netmap:nosuch0", ENXIO);
        assert!(why.contains("netmap:nosuch0: no such interface"), "{why}");
        refused("netmap:p{2/t", EINVAL);
        assert_eq!(home.snapshot().sessions.len(), 1);
    });
}

/// An option that this kind of port does not support is refused with a reason, and not ignored.
#[test]
fn host_rings_of_a_pipe_are_refused() {
    isolated(|_| {
        let why = refused("netmap:p{1@conf:host-rings=4", unetmap::errno::EOPNOTSUPP);
        assert!(why.contains("host-rings"), "{why}");
    });
}
