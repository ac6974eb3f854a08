// SPDX-License-Identifier: BSD-2-Clause
//! Zero-copy monitors: they get the buffers of packets that are no longer needed, in exchange for others.

use std::fs;
use std::thread::sleep;
use std::time::Duration;

use conformance::client::{Flow, record, start_client, start_ready_client};
use conformance::home::summary;
use conformance::monitor::{assert_nothing, dropped_of};
use conformance::net::{BUFFER, CABLE, DIRECT, MEDIATED, Net, assert_same, collect, drain, frames, take, transmit};
use conformance::packet::{self, Rng};
use conformance::snapshot::PIPE_BUFFERS;
use conformance::traffic::{bytes_of, exchange, expect, open, receive, send};
use conformance::{Home, isolated, until};
use unetmap::abi::{NS_BUF_CHANGED, NS_TXMON};
use unetmap::errno::{EBUSY, EINVAL, EOPNOTSUPP};
use unetmap::{BufIdx, Interest, Port};

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

/// Receives the packets `[from, to)` of a sender from a monitor and checks that all have these flags.
#[track_caller]
fn expect_buffers(monitor: &Port, flags: u16, sender: u64, from: u64, to: u64) {
    let ring = &monitor.rx_rings()[0];
    until("all are there", || monitor.rxsync().is_ok() && u64::from(ring.space()) >= to - from);
    assert_eq!(u64::from(ring.space()), to - from);
    for (slot, seq) in ring.available().zip(from..) {
        assert_eq!(packet::check(&bytes_of(&slot)), Ok((sender, seq)));
        assert_eq!(slot.flags(), flags | NS_BUF_CHANGED);
    }
    ring.advance(ring.space());
    monitor.rxsync().expect("an open port");
}

/// Checks that each buffer of the pipe's region is accounted for.
#[track_caller]
fn assert_complete(home: &Home, more: u32) {
    let buffers = home.snapshot().buffers("p");
    assert_eq!((buffers.in_rings, buffers.missing), (PIPE_BUFFERS + more, 0), "{buffers:?}");
}

#[test]
fn zero_copy_monitors_see_sent_and_released_packets() {
    isolated(|home| {
        let (a, b) = (open("netmap:p{1"), open("netmap:p}1"));
        let monitor = open("netmap:p}1/z");
        assert_eq!(monitor.mem_id(), a.mem_id(), "it shares the region");
        assert!(home.snapshot().ports.iter().any(|port| port.name == "p}1/zrt#1"));
        // Its own ring, a mirror ring for each direction, and two slots that are never sent.
        let more = 3 * 1024 + 2;
        for round in 0..30 {
            let seq = round * 200;
            send(&a, 1, seq, seq + 200).expect("room");
            b.rxsync().expect("an open port");
            assert_nothing(&monitor, "no buffer was returned yet");
            expect(&b, 1, seq, seq + 200);
            expect_buffers(&monitor, 0, 1, seq, seq + 200);
            // The flag NS_BUF_CHANGED reports the exchange to the sender.
            a.txsync().expect("an open port");
            let ring = &a.tx_rings()[0];
            let last = ring.slot(ring.tail());
            assert_eq!(last.flags() & NS_BUF_CHANGED, NS_BUF_CHANGED);
            send(&b, 2, seq, seq + 200).expect("room");
            expect(&a, 2, seq, seq + 200);
            assert_nothing(&monitor, "the sender has not synced since it was sent");
            b.txsync().expect("an open port");
            expect_buffers(&monitor, NS_TXMON, 2, seq, seq + 200);
        }
        assert_complete(home, more);
        assert_eq!(dropped_of(home, "p}1/zrt#1"), 0);
        // A copying monitor on the same port.
        let copies = open("netmap:p}1/r");
        exchange(&a, &b, 3, 0, 100);
        expect(&copies, 3, 0, 100);
        expect_buffers(&monitor, 0, 3, 0, 100);
        drop((monitor, copies));
        until("nothing is left of them", || home.snapshot().ports.len() == 2);
        assert_complete(home, 0);
        exchange(&a, &b, 4, 0, 3000);
        assert_complete(home, 0);
    });
}

#[test]
fn a_monitor_that_does_not_read_loses_only_its_own_packets() {
    isolated(|home| {
        let (a, b) = (open("netmap:p{1"), open("netmap:p}1"));
        let monitor = open("netmap:p}1/z");
        exchange(&a, &b, 1, 0, 10_000);
        assert_eq!(dropped_of(home, "p}1/zrt#1"), 10_000 - 1023);
        expect_buffers(&monitor, 0, 1, 0, 1023);
    });
}

/// A receiver that keeps packets by putting other buffers into their slots shares them with no monitor.
#[test]
fn buffers_that_were_swapped_away_are_not_shown() {
    isolated(|home| {
        let (a, b) = (open("netmap:p{1"), Port::options().extra_bufs(8).open("netmap:p}1").expect("a pipe"));
        let (receiver, sender) = (open("netmap:p}1/z"), open("netmap:p{1/z"));
        send(&a, 1, 0, 8).expect("room");
        b.rxsync().expect("an open port");
        let ring = &b.rx_rings()[0];
        for (slot, seq) in ring.available().zip(0..) {
            if seq % 2 == 0 {
                let kept: BufIdx = slot.replace_buf(b.take_extra_buf().expect("one of eight"));
                b.give_extra_buf(kept);
            }
        }
        ring.advance(8);
        b.rxsync().expect("an open port");
        let seen = receive(&receiver, 4).expect("an open port");
        let seen: Vec<_> = seen.iter().map(|bytes| packet::check(bytes).map(|(_, seq)| seq)).collect();
        assert_eq!(seen, [Ok(1), Ok(3), Ok(5), Ok(7)]);
        assert_eq!(dropped_of(home, "p}1/zrt#1"), 4);
        // All of the sender's slots have buffers of others.
        a.txsync().expect("an open port");
        assert_nothing(&sender, "the returned buffers hold other packets");
        assert_eq!(dropped_of(home, "p{1/zrt#2"), 8);
        assert_eq!(home.snapshot().buffers("p").missing, 0);
    });
}

#[test]
fn without_a_shared_region_a_copying_monitor_is_suggested() {
    isolated(|_| {
        let why = refused("netmap:p{1/z", EINVAL);
        assert!(why.contains("no program has the port open"), "{why}");
        let a = open("netmap:p{1");
        refused("netmap:p{1/z@7", EINVAL);
        let _first = open(&format!("netmap:p{{1/z@{}", a.mem_id()));
        let why = refused("netmap:p{1/z", EBUSY);
        assert!(why.contains("copies"), "{why}");
        let _behind = open("netmap:q{1@offset:initial=64");
        let why = refused("netmap:q{1/z", EOPNOTSUPP);
        assert!(why.contains("without z"), "{why}");
    });
}

/// Checks that a monitor shows these frames, with these flags, and takes them.
#[track_caller]
fn expect_frames(monitor: &Port, flags: u16, wanted: &[Vec<u8>]) {
    let ring = &monitor.rx_rings()[0];
    until("all are there", || monitor.rxsync().is_ok() && ring.space() as usize >= wanted.len());
    assert!(ring.available().all(|slot| slot.flags() == flags | NS_BUF_CHANGED));
    assert_same(&take(monitor, 0), wanted);
}

/// A port of a switch: packets are shown when the switch has taken them, and when the program has released them.
/// `other` may be in the region of the port, where packets are otherwise exchanged.
fn a_switch_port_is_watched(home: &Home, other: &str) {
    let a = open("vale0:a");
    let b = open(&other.replace("MEM", &a.mem_id().to_string()));
    let monitor = open("vale0:a/z");
    assert_eq!(monitor.mem_id(), a.mem_id(), "it shares the region");
    let before = home.snapshot().buffers("vale0:a");
    let sizes: Vec<usize> = (60..1514).step_by(11).collect();
    for round in 0..30 {
        let out = frames(&sizes, round << 20);
        transmit(&a, 0, &out, BUFFER);
        expect_frames(&monitor, NS_TXMON, &out);
        assert_same(&collect(&b, out.len()), &out);
        let back = frames(&sizes, (round << 20) + 1000);
        transmit(&b, 0, &back, BUFFER);
        let ring = &a.rx_rings()[0];
        until("they have come", || a.rxsync().is_ok() && ring.space() as usize == back.len());
        assert_nothing(&monitor, "the program has not released them");
        assert_same(&take(&a, 0), &back);
        a.rxsync().expect("an open port");
        expect_frames(&monitor, 0, &back);
    }
    // The sender finds other buffers in its slots.
    a.txsync().expect("an open port");
    let last = a.tx_rings()[0].slot(a.tx_rings()[0].tail());
    assert_eq!(last.flags() & NS_BUF_CHANGED, NS_BUF_CHANGED);
    let after = home.snapshot().buffers("vale0:a");
    assert_eq!((after.in_rings, after.missing), (before.in_rings, 0));
    assert_eq!(dropped_of(home, "vale0:a/zrt#1"), 0);
    drop(monitor);
    until("it is closed", || home.snapshot().buffers("vale0:a").in_rings < before.in_rings);
    assert_eq!(home.snapshot().buffers("vale0:a").missing, 0);
    let out = frames(&sizes, 1 << 40);
    transmit(&a, 0, &out, BUFFER);
    assert_same(&collect(&b, out.len()), &out);
}

#[test]
fn a_switch_port_can_be_monitored_without_copies() {
    isolated(|home| a_switch_port_is_watched(home, "vale0:b"));
}

#[test]
fn a_switch_port_that_shares_its_region_can_be_monitored_without_copies() {
    isolated(|home| a_switch_port_is_watched(home, "vale0:b@MEM"));
}

/// Zero-copy monitors of a switch port are opened and closed under traffic; no buffer gets lost or is in two places.
#[test]
fn zero_copy_monitors_of_a_switch_port_come_and_go() {
    isolated(|home| {
        let (a, b) = (open("vale0:a"), open("vale0:b"));
        for round in 0..40 {
            let monitor = open("vale0:a/z");
            let out = frames(&[60; 200], round << 20);
            transmit(&a, 0, &out, BUFFER);
            if round % 2 == 0 {
                expect_frames(&monitor, NS_TXMON, &out);
            }
            drop(monitor);
            assert_same(&collect(&b, out.len()), &out);
            // The switch shows a batch after it has delivered it, also to a monitor that has just been opened.
            drain(&a);
        }
        until("all are closed", || home.snapshot().ports.iter().all(|port| port.kind != "monitor"));
        assert_eq!(home.snapshot().buffers("vale0:a").missing, 0);
    });
}

#[test]
fn on_a_mediated_interface_a_copying_monitor_is_suggested() {
    isolated(|home| {
        let Some(net) = Net::new(home, MEDIATED, CABLE) else { return };
        let _port = net.open("netmap:va");
        let (errno, why) = net.refused("netmap:va/z");
        assert_eq!(errno, EOPNOTSUPP, "{why}");
    });
}

#[test]
fn a_direct_interface_can_be_monitored_without_copies() {
    isolated(|home| {
        let Some(net) = Net::new(home, DIRECT, CABLE) else { return };
        let (port, tap) = (net.open("netmap:va"), net.tap());
        let monitor = net.open("netmap:va/z");
        assert_eq!(monitor.mem_id(), port.mem_id());
        let sizes: Vec<usize> = (14..1514).step_by(7).collect();
        for round in 0..20 {
            let all = frames(&sizes, round << 20);
            tap.send_all(&all);
            assert_same(&collect(&port, all.len()), &all);
            assert_same(&collect(&monitor, all.len()), &all);
            transmit(&port, 0, &all, BUFFER);
            assert_same(&tap.collect(all.len()), &all);
            until("the kernel has given back all buffers, and all are shown", || {
                port.txsync().expect("an open port");
                monitor.rxsync().is_ok() && monitor.rx_rings()[0].space() as usize == all.len()
            });
            assert_same(&take(&monitor, 0), &all);
        }
        assert_eq!(dropped_of(home, "va/zrt#1"), 0);
        let before = home.snapshot().buffers("interfaces");
        assert_eq!(before.missing, 0);
        drop(monitor);
        until("it is closed", || home.snapshot().buffers("interfaces").in_rings < before.in_rings);
        let after = home.snapshot().buffers("interfaces");
        assert_eq!((after.missing, after.free - before.free), (0, before.in_rings - after.in_rings));
        conformance::net::assert_works(&port, &tap, 1 << 40);
    });
}

/// Monitors that hold buffers of a pipe are killed at any moment; no packet is lost, changed or duplicated.
#[test]
fn killed_zero_copy_monitors_corrupt_no_packet() {
    isolated(|home| {
        let (flow, seen) = (Flow::start(home), home.folder().join("seen"));
        let mut rng = Rng(0x5eed_0041);
        const KILLS: u64 = 50;
        let mut shown = 0;
        for round in 0..KILLS {
            let spec = ["netmap:p}1/z", "netmap:p{1/z"][round as usize % 2];
            let mut monitor = start_ready_client(&["see", spec, &seen.display().to_string()]);
            sleep(Duration::from_micros(rng.below(20_000)));
            monitor.kill();
            shown += record(&seen)[0];
            until("the next can come", || home.snapshot().sessions.len() == 2);
        }
        let sent = flow.finish(home);
        summary(&format!("monitors killed {KILLS}, packets {sent}, shown before the kills {shown}"));
        home.assert_serves();
    });
}

/// Monitored programs are killed while their buffers are exchanged.
#[test]
fn buffers_of_a_killed_monitored_program_are_accounted_for() {
    isolated(|home| {
        let (sent, got) = (home.folder().join("sent"), home.folder().join("got"));
        fs::create_dir(&got).expect("a folder");
        let keeper = open("netmap:p{9");
        let far = open("netmap:p}1");
        let mut rng = Rng(0x5eed_0042);
        const KILLS: u64 = 40;
        let (mut shown, mut came) = (0, 0);
        for round in 0..KILLS {
            let mut sender =
                start_client(&["send", "netmap:p{1", &(round + 1).to_string(), &sent.display().to_string()]);
            until("it has its port open", || home.snapshot().sessions.iter().any(|s| s.port == "p{1"));
            let monitor = open("netmap:p{1/z");
            let (rx, seen) = (&far.rx_rings()[0], &monitor.rx_rings()[0]);
            let end = std::time::Instant::now() + Duration::from_micros(rng.below(20_000));
            let step = |shown: &mut u64, came: &mut u64| {
                far.poll(Interest::RX, Some(Duration::from_millis(1))).expect("an open port");
                for slot in rx.available() {
                    assert!(packet::check(&bytes_of(&slot)).is_ok(), "a packet was changed");
                }
                *came += u64::from(rx.space());
                rx.advance(rx.space());
                let _ = monitor.rxsync();
                for slot in seen.available() {
                    assert!(packet::check(&bytes_of(&slot)).is_ok(), "something else was shown");
                }
                *shown += u64::from(seen.space());
                seen.advance(seen.space());
            };
            while std::time::Instant::now() < end {
                step(&mut shown, &mut came);
            }
            sender.kill();
            until("its port is closed", || home.snapshot().sessions.iter().all(|s| s.port != "p{1"));
            // The packets that it had sent still arrive unchanged.
            for _ in 0..3 {
                step(&mut shown, &mut came);
            }
        }
        until("the monitors are closed", || home.snapshot().sessions.len() == 2);
        let buffers = home.snapshot().buffers("p");
        assert!(buffers.missing <= KILLS as u32, "{buffers:?}");
        summary(&format!("kills {KILLS}, packets {came}, shown {shown}, missing buffers {}", buffers.missing));
        drop((keeper, far));
        until("the region is closed", || home.snapshot().regions.is_empty());
        home.assert_serves();
    });
}
