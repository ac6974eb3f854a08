// SPDX-License-Identifier: BSD-2-Clause
//! The documented behaviour of monitors: on pipes, where the client's library copies the packets to them, and on
//! switches, where the switch does.

use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::{Duration, Instant};

use conformance::home::{Guard, program, summary};
use conformance::monitor::{assert_nothing, dropped, see_all};
use conformance::traffic::{bytes_of, exchange, expect, fill_some, open, receive, send};
use conformance::{Home, LIMIT, isolated, packet, until};
use unetmap::abi::{NS_MOREFRAG, NS_TXMON};
use unetmap::errno::{EINVAL, EIO, ENOMEM, ENXIO};
use unetmap::{Error, Interest, Port};

#[track_caller]
fn refused(spec: &str, errno: i32) -> String {
    match Port::open(spec) {
        Ok(_) => panic!("{spec} was opened"),
        Err(e) => {
            assert_eq!(e.errno(), errno, "{spec}: {e}");
            e.to_string()
        }
    }
}

/// Checks that nothing is left of monitors, and that the pipe works as before.
#[track_caller]
fn assert_unwatched(home: &Home, a: &Port, b: &Port) {
    until("nothing is left of monitors", || {
        let now = home.snapshot();
        now.ports.iter().all(|port| port.kind != "monitor") && now.regions.len() == 1
    });
    exchange(a, b, 77, 0, 3000);
}

#[test]
fn monitors_see_what_a_pipe_receives_and_sends() {
    isolated(|home| {
        let (a, b) = (open("netmap:p{1"), open("netmap:p}1"));
        let (rx, tx, both) = (open("netmap:p}1/r"), open("netmap:p}1/t"), open("netmap:p}1/rt"));
        send(&a, 1, 0, 300).expect("room");
        // Before the watched program receives them.
        expect(&rx, 1, 0, 300);
        expect(&b, 1, 0, 300);
        assert_nothing(&tx, "that was received");
        send(&b, 2, 0, 10).expect("room");
        // Before the packets are received.
        expect(&tx, 2, 0, 10);
        assert_nothing(&rx, "that was sent");
        expect(&a, 2, 0, 10);
        // Both directions, in the order of the events.
        let ring = &both.rx_rings()[0];
        until("both have come", || both.rxsync().is_ok() && ring.space() == 310);
        for (slot, i) in ring.available().zip(0..) {
            let (sender, seq, flags) = if i < 300 { (1, i, 0) } else { (2, i - 300, NS_TXMON) };
            assert_eq!((packet::check(&bytes_of(&slot)), slot.flags()), (Ok((sender, seq)), flags), "copy {i}");
        }
        for (monitor, name) in [(&rx, "p}1/r#"), (&tx, "p}1/t#"), (&both, "p}1/rt#")] {
            assert_eq!(dropped(home, monitor), 0);
            let books = home.snapshot();
            let port = books.ports.iter().find(|port| port.name.starts_with(name)).expect("it is in the books");
            assert_eq!((port.kind.as_str(), port.mem_id), ("monitor", monitor.mem_id()));
            assert_ne!(monitor.mem_id(), a.mem_id(), "a monitor has a region of its own");
            books.buffers(&port.name);
        }
        drop((rx, tx, both));
        assert_unwatched(home, &a, &b);
    });
}

/// A monitor of what a pipe receives sees it also from a sender that opens its end later, and from its successor.
#[test]
fn senders_that_come_later_are_seen() {
    isolated(|home| {
        let b = open("netmap:p}1");
        let (copies, other) = (open("netmap:p}1/r"), open("netmap:p{1"));
        drop(other);
        for sender in 1..4 {
            let a = open("netmap:p{1");
            send(&a, sender, 0, 100).expect("room");
            expect(&copies, sender, 0, 100);
            assert_eq!(dropped(home, &copies), 0);
            assert!(b.rx_rings()[0].is_empty(), "the watched program has not synced");
            expect(&b, sender, 0, 100);
        }
    });
}

/// Requests and replies: one monitor sees them in order, whichever of the two ends it monitors.
#[test]
fn both_directions_are_seen_in_order() {
    isolated(|_| {
        let (a, b) = (open("netmap:p{1"), open("netmap:p}1"));
        let (requests, replies) = (open("netmap:p{1/rt"), open("netmap:p}1/rt"));
        for seq in 0..400 {
            send(&a, 1, seq, seq + 1).expect("room");
            expect(&b, 1, seq, seq + 1);
            send(&b, 2, seq, seq + 1).expect("room");
            expect(&a, 2, seq, seq + 1);
        }
        for monitor in [requests, replies] {
            let got = receive(&monitor, 800).expect("an open port");
            let got: Vec<_> = got.iter().map(|bytes| packet::check(bytes)).collect();
            let due: Vec<_> = (0..400).flat_map(|seq| [Ok((1, seq)), Ok((2, seq))]).collect();
            assert_eq!(got, due, "{}", monitor.spec());
        }
    });
}

/// Three monitors, one of which is slow and one of which never reads: each receives what it has room for, and its
/// losses are counted; the monitored port waits for none of them.
#[test]
fn slow_monitors_lose_only_their_own_copies() {
    isolated(|home| {
        const PACKETS: u64 = 100_000;
        let (a, b) = (open("netmap:p{1"), open("netmap:p}1"));
        let quick = Port::options().rx_slots(4096).open("netmap:p}1/r").expect("a monitor");
        let slow = Port::options().rx_slots(64).open("netmap:p}1/r").expect("a monitor");
        let asleep = open("netmap:p}1/r");
        let over = AtomicBool::new(false);
        let (seen, seen_slowly) = std::thread::scope(|scope| {
            let quick = scope.spawn(|| see_all(home, &quick, &over, Duration::ZERO));
            let slow = scope.spawn(|| see_all(home, &slow, &over, Duration::from_millis(3)));
            exchange(&a, &b, 1, 0, PACKETS);
            over.store(true, Relaxed);
            (quick.join().expect("no panic"), slow.join().expect("no panic"))
        });
        for seen in [&seen, &seen_slowly] {
            assert!(seen.in_order);
            assert_eq!(seen.copies + seen.dropped, PACKETS, "{seen:?}");
        }
        assert!(seen_slowly.dropped > 0, "the slow monitor lost nothing");
        assert_eq!(dropped(home, &asleep), PACKETS - 1023, "the mirror ring holds 1023");
        expect(&asleep, 1, 0, 1023);
        summary(&format!(
            "packets {PACKETS}; quick saw {} + {} dropped, slow {} + {}, asleep 1023 + {}",
            seen.copies,
            seen.dropped,
            seen_slowly.copies,
            seen_slowly.dropped,
            PACKETS - 1023
        ));
    });
}

/// A monitor that is opened and closed under traffic sees every packet from its opening on.
#[test]
fn monitors_open_and_close_under_traffic() {
    isolated(|home| {
        let (a, b) = (open("netmap:p{1"), open("netmap:p}1"));
        let mut seq = 0;
        for round in 0..100 {
            exchange(&a, &b, 1, seq, seq + 500);
            seq += 500;
            let side = if round % 2 == 0 { "netmap:p{1/t" } else { "netmap:p}1/r" };
            let monitor = open(side);
            exchange(&a, &b, 1, seq, seq + 500);
            expect(&monitor, 1, seq, seq + 500);
            seq += 500;
        }
        assert_unwatched(home, &a, &b);
    });
}

/// A monitor has as many rings as the monitored port; one of them can be monitored alone.
#[test]
fn all_rings_or_a_single_ring_can_be_monitored() {
    isolated(|_| {
        let a = Port::options().tx_rings(2).rx_rings(4).tx_slots(256).rx_slots(128).open("netmap:p{1").expect("a pipe");
        let b = open("netmap:p}1");
        let all = open("netmap:p{1/rt");
        assert_eq!((all.rx_rings().len(), all.register().nr_rx_rings, all.register().nr_tx_rings), (4, 4, 1));
        assert_eq!((all.register().nr_rx_slots, all.rx_rings()[0].num_slots()), (256, 256));
        let sized = Port::options().rx_slots(9999).open("netmap:p{1-3/r").expect("a monitor");
        assert_eq!((sized.rx_rings().len(), sized.rx_rings()[0].id(), sized.rx_rings()[0].num_slots()), (1, 3, 4096));
        for (n, ring) in b.tx_rings().iter().enumerate() {
            fill_some(ring, 10 + n as u64, 0, 50);
        }
        b.txsync().expect("an open port");
        a.rxsync().expect("an open port");
        for (n, ring) in a.tx_rings().iter().enumerate() {
            fill_some(ring, n as u64, 0, 20);
        }
        a.txsync().expect("an open port");
        all.rxsync().expect("an open port");
        for (n, ring) in all.rx_rings().iter().enumerate() {
            let got: Vec<_> = ring.available().map(|slot| packet::check(&bytes_of(&slot))).collect();
            let received = (0..50).map(|seq| Ok((10 + n as u64, seq)));
            let sent = (0..20).filter(|_| n < 2).map(|seq| Ok((n as u64, seq)));
            assert_eq!(got, received.chain(sent).collect::<Vec<_>>(), "ring {n}");
        }
        expect(&sized, 13, 0, 50);
        assert_nothing(&sized, "other rings are not its own");
        refused("netmap:p{1-4/r", EINVAL);
        // Ring 3 receives and does not send.
        let why = refused("netmap:p{1-3/t", EINVAL);
        assert!(why.contains("ring 3"), "{why}");
    });
}

/// A packet of several slots is delivered whole, or not at all.
#[test]
fn monitors_see_packets_of_several_slots_whole() {
    isolated(|home| {
        let (a, b) = (open("netmap:p{1"), open("netmap:p}1"));
        let monitor = Port::options().rx_slots(16).open("netmap:p{1/t").expect("a monitor");
        let ring = &a.tx_rings()[0];
        let chain = |seq: u64, slots: u64| {
            for (slot, i) in ring.available().zip(0..slots) {
                conformance::traffic::fill(&slot, seq, i);
                slot.set_len_flags(slot.len(), if i + 1 < slots { NS_MOREFRAG } else { 0 });
            }
            ring.advance(slots as u32);
        };
        // 4 + 4 + 4 fit into 15, another 4 do not, 3 do.
        for (seq, slots) in [(1, 4), (2, 4), (3, 4), (4, 4), (5, 3)] {
            chain(seq, slots);
        }
        a.txsync().expect("an open port");
        let shown = |want: &[(u64, u64)]| {
            monitor.rxsync().expect("an open port");
            let ring = &monitor.rx_rings()[0];
            let mut due = want.iter().flat_map(|&(seq, slots)| (0..slots).map(move |i| (seq, i, i + 1 < slots)));
            for slot in ring.available() {
                let (seq, i, more) = due.next().expect("no more than that");
                let flags = NS_TXMON | if more { NS_MOREFRAG } else { 0 };
                assert_eq!((packet::check(&bytes_of(&slot)), slot.flags()), (Ok((seq, i)), flags));
            }
            assert_eq!(due.next(), None);
            ring.advance(ring.space());
            monitor.rxsync().expect("an open port");
        };
        shown(&[(1, 4), (2, 4), (3, 4), (5, 3)]);
        assert_eq!(dropped(home, &monitor), 4);
        // A packet that is sent in several syncs.
        let piece = |slots: u32, end: bool| {
            for (slot, i) in ring.available().zip(0..slots) {
                conformance::traffic::fill(&slot, 6, 0);
                slot.set_len_flags(slot.len(), if end && i + 1 == slots { 0 } else { NS_MOREFRAG });
            }
            ring.advance(slots);
            a.txsync().expect("an open port");
        };
        piece(3, false);
        assert_nothing(&monitor, "the last slot is not sent yet");
        piece(2, true);
        monitor.rxsync().expect("an open port");
        assert_eq!(monitor.rx_rings()[0].space(), 5);
        // A packet of more slots than the mirror ring has.
        piece(30, false);
        piece(1, true);
        assert_eq!(dropped(home, &monitor), 4 + 31);
        drop(b);
    });
}

#[test]
fn ports_that_cannot_be_monitored_are_refused() {
    isolated(|home| {
        let why = refused("netmap:p{1/r", EINVAL);
        assert!(why.contains("no program has the port open"), "{why}");
        refused("vale0:nosuch/t", EINVAL);
        let a = open("netmap:p{1");
        // The other end exists and is not open.
        refused("netmap:p}1/r", EINVAL);
        refused("netmap:p{2/r", EINVAL);
        refused("netmap:p{1^/r", EINVAL);
        refused(&format!("netmap:p{{1/r@{}", a.mem_id()), EINVAL);
        let monitor = open("netmap:p{1/r");
        // A monitor cannot be shared, or be monitored itself.
        assert_eq!(home.snapshot().ports.len(), 3);
        let all: Vec<Port> = (1..16).map(|_| open("netmap:p{1/t")).collect();
        let why = refused("netmap:p{1/t", ENOMEM);
        assert!(why.contains("16 monitors"), "{why}");
        drop(all);
        until("there is room again", || Port::open("netmap:p{1/t").is_ok());
        let why = refused("netmap:nosuch0/r", if rustix::process::geteuid().is_root() { ENXIO } else { EINVAL });
        assert!(why.contains("nosuch0"), "{why}");
        drop((a, monitor));
        until("nothing is left", || home.snapshot().ports.is_empty() && home.snapshot().regions.is_empty());
    });
}

#[test]
fn a_monitor_cannot_send() {
    isolated(|_| {
        let (a, _b) = (open("netmap:p{1"), open("netmap:p}1"));
        let monitor = open("netmap:p{1/rt");
        assert_eq!(monitor.tx_rings().len(), 1, "netmap programs expect one transmit ring");
        let error = monitor.txsync().expect_err("it cannot send");
        assert!(error.errno() == EIO && matches!(error, Error::ReadOnly { .. }), "{error}");
        assert!(error.to_string().contains("a monitor cannot send"), "{error}");
        assert_nothing(&monitor, "a poll without packets to send is no error");
        fill_some(&monitor.tx_rings()[0], 1, 0, 1);
        let error = monitor.poll(Interest::RX, Some(Duration::ZERO)).expect_err("it cannot send");
        assert_eq!(error.errno(), EIO);
        drop(a);
    });
}

/// When the monitored port is closed, the monitor first gets the remaining packets, then an error.
#[test]
fn a_monitor_ends_with_the_monitored_port() {
    isolated(|_| {
        let (a, b) = (open("netmap:p{1"), open("netmap:p}1"));
        let (monitor, other) = (open("netmap:p{1/t"), open("netmap:p}1/r"));
        send(&a, 1, 0, 100).expect("room");
        let second = open("netmap:p{1");
        drop(a);
        expect(&monitor, 1, 0, 50);
        drop(second);
        // The rest, in two polls, and no error before it is read.
        let ring = &monitor.rx_rings()[0];
        until("the rest is there", || monitor.poll(Interest::RX, None).expect("there is something").rx());
        ring.advance(20);
        until("it has ended", || monitor.poll(Interest::RX, None).is_ok() && ring.space() == 30);
        ring.advance(30);
        let ended = |e: Error| matches!(e, Error::MonitoredPortClosed { .. }) && e.errno() == EIO;
        assert!(monitor.poll(Interest::RX, None).is_err_and(ended));
        assert!(monitor.rxsync().is_err_and(ended));
        // The other end and its monitor are still open.
        expect(&b, 1, 0, 100);
        expect(&other, 1, 0, 100);
        // A sleeping monitor is woken.
        let sleeper = std::thread::spawn(move || other.poll(Interest::RX, None).is_err_and(ended));
        std::thread::sleep(Duration::from_millis(100));
        drop(b);
        assert!(sleeper.join().expect("no panic"));
        // A new port of the same name is a different port.
        let again = open("netmap:p{1");
        assert!(monitor.poll(Interest::RX, Some(Duration::ZERO)).is_err_and(ended));
        drop((again, monitor));
    });
}

/// A sleeping monitor is woken by the monitored program.
#[test]
fn a_sleeping_monitor_is_woken() {
    isolated(|_| {
        let (a, b) = (open("netmap:p{1"), open("netmap:p}1"));
        let mut sleeper = Guard::spawn(
            Command::new(env!("CARGO_BIN_EXE_traffic_client")).args(["wait", "netmap:p}1/r"]).stdout(Stdio::null()),
        );
        let end = Instant::now() + LIMIT;
        let mut seq = 0;
        // One packet at a time, so that each of them must wake it.
        while sleeper.0.try_wait().expect("our child").is_none() {
            exchange(&a, &b, 1, seq, seq + 1);
            seq += 1;
            std::thread::sleep(Duration::from_millis(20));
            assert!(Instant::now() < end, "the monitor slept while {seq} packets came");
        }
        assert!(sleeper.wait().success());
    });
}

/// Syncs of a child that was forked after or before the monitor was opened are monitored, too.
#[test]
fn traffic_of_a_forked_child_is_monitored() {
    isolated(|home| {
        const PACKETS: u64 = 3000;
        let file = home.folder().join("next");
        std::fs::write(&file, [0; 24]).expect("a file");
        // The second process keeps the monitored end open and is idle.
        let (far, _keeper) = (open("netmap:p{1"), open("netmap:p}1"));
        let mut forker = Guard::spawn(
            Command::new(env!("CARGO_BIN_EXE_forker"))
                .args(["netmap:p}1", &file.display().to_string(), &PACKETS.to_string()])
                .stdout(Stdio::null()),
        );
        until("it has the port open", || home.snapshot().sessions.len() == 3);
        let monitor = Port::options().rx_slots(4096).open("netmap:p}1/r").expect("a monitor");
        send(&far, 1, 0, PACKETS).expect("room");
        assert!(forker.wait().success());
        expect(&monitor, 1, 0, PACKETS);
        assert_eq!(dropped(home, &monitor), 0);
    });
}

/// netmap's own program pkt-gen, and the output of `unetmap ls`.
#[test]
fn pkt_gen_receives_on_a_monitor() {
    isolated(|home| {
        let (a, b) = (open("netmap:foo{1"), open("netmap:foo}1"));
        let output = home.folder().join("seen");
        let to = std::fs::File::create(&output).expect("a file");
        let mut pkt_gen = Guard::spawn(
            Command::new(program("pkt-gen"))
                .args(["-i", "netmap:foo{1/r", "-f", "rx", "-X", "-n", "3", "-w", "0"])
                .stdout(to.try_clone().expect("a file"))
                .stderr(to),
        );
        until("it watches", || home.snapshot().ports.iter().any(|port| port.kind == "monitor"));
        let ls = Command::new(program("unetmap")).arg("ls").output().expect("unetmap ls");
        let text = String::from_utf8_lossy(&ls.stdout).into_owned();
        assert!(text.contains("foo{1/r#1"), "{text}");
        let mut seq = 0;
        until("it has seen three", || {
            exchange(&b, &a, 1, seq, seq + 1);
            seq += 1;
            pkt_gen.0.try_wait().expect("our child").is_some()
        });
        let text = std::fs::read_to_string(&output).expect("its output");
        assert!(pkt_gen.wait().success(), "{text}");
        // Each packet contains this text.
        assert!(text.contains("len 60") || text.contains("60 bytes"), "{text}");
    });
}

/// Packets at offsets in their buffers, at the monitored port and at the monitor.
#[test]
fn monitor_and_monitored_port_can_have_different_offsets() {
    isolated(|home| {
        let (a, b) = (open("netmap:p{1@offset:initial=64"), open("netmap:p}1@offset:initial=64"));
        let (plain, behind) = (open("netmap:p{1/t"), open("netmap:p}1/r@offset:initial=200"));
        exchange(&a, &b, 1, 0, 700);
        expect(&plain, 1, 0, 700);
        expect(&behind, 1, 0, 700);
        let slot = behind.rx_rings()[0].slot(unetmap::Pos::ZERO);
        assert_eq!(slot.frame().capacity(), 2048 - 200);
        assert_eq!((dropped(home, &plain), dropped(home, &behind)), (0, 0));
    });
}
