// SPDX-License-Identifier: BSD-2-Clause
//! Replacing the daemon by another process while ports are monitored.

use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::thread;
use std::time::Duration;

use conformance::home::summary;
use conformance::monitor::see_all;
use conformance::net::{CABLE, DIRECT, MEDIATED, Net, assert_same, assert_works, collect, frames};
use conformance::replace::{Stream, refused, replace, try_replace};
use conformance::traffic::open;
use conformance::{Home, isolated_with_interfaces, until};

/// Packets for which the monitor of a port had no room. By its name: one without copies is in the port's region.
fn dropped_by(home: &Home, port: &str) -> u64 {
    let (snapshot, prefix) = (home.snapshot(), format!("{}/", port.trim_start_matches("netmap:")));
    let monitor = snapshot.ports.iter().find(|port| port.name.starts_with(&prefix)).expect("its monitor");
    monitor.rings.iter().filter(|ring| ring.dir == "rx").map(|ring| ring.dropped).sum()
}

/// Packets from a port to another, and a monitor of the first: each is seen, or counted as dropped. `work` is given a
/// function that waits for more packets.
fn during_monitored_streams(home: &Home, work: impl FnOnce(&dyn Fn())) {
    let pairs = [("netmap:p{1", "netmap:p}1", "t"), ("netmap:z{1", "netmap:z}1", "z"), ("vale0:a", "vale0:b", "t")];
    // Open for the monitors, which see each packet of the streams, and for the counters.
    let kept = pairs.map(|(from, to, _)| [open(from), open(to)]);
    let monitors = pairs.map(|(from, _, flags)| open(&format!("{from}/{flags}")));
    let over = AtomicBool::new(false);
    thread::scope(|scope| {
        let seen = monitors.each_ref().map(|monitor| scope.spawn(|| see_all(home, monitor, &over, Duration::ZERO)));
        let streams = pairs.map(|(from, to, _)| Stream::start(from, to, 1, Duration::from_millis(1)));
        work(&|| streams.iter().for_each(Stream::go_on));
        let sent = streams.map(|stream| stream.stop().0);
        // A monitor without copies gets the last packets when their buffers are back.
        kept.iter().for_each(|[from, _]| from.txsync().expect("an open port"));
        over.store(true, Relaxed);
        for ((seen, sent), (from, ..)) in seen.into_iter().zip(sent).zip(pairs) {
            let (seen, dropped) = (seen.join().expect("a monitor"), dropped_by(home, from));
            summary(&format!("{sent} packets sent by {from}, its monitor saw {}, {dropped} dropped", seen.copies));
            assert_eq!((seen.copies + dropped, seen.in_order), (sent, true), "{from}");
            assert!(seen.copies > 0, "{from}");
        }
    });
    drop((monitors, kept));
    until("all regions are freed", || home.snapshot().regions.is_empty());
}

#[test]
fn monitors_go_on_while_the_daemon_is_replaced() {
    isolated_with_interfaces(|home| {
        during_monitored_streams(home, |go_on| {
            for _ in 0..5 {
                replace(home);
                go_on();
            }
        });
    });
}

#[test]
fn monitors_go_on_when_a_successor_fails() {
    isolated_with_interfaces(|home| {
        during_monitored_streams(home, |go_on| {
            for fault in ["successor", "abort"] {
                refused(home, Some(fault));
                go_on();
            }
            for n in 0..40 {
                let output = try_replace(home, Some(&format!("mutate:{}", n * 13)));
                let reason = String::from_utf8_lossy(&output.stderr);
                assert!(!output.status.success() && !reason.contains("panicked"), "mutation {n}: {reason}");
            }
            go_on();
        });
    });
}

/// Opened before, between and after: the lists that programs and threads have are those of the daemon that runs.
#[test]
fn monitors_come_and_go_after_a_replacement() {
    isolated_with_interfaces(|home| {
        let stream = Stream::start("netmap:p{1", "netmap:p}1", 1, Duration::from_millis(1));
        let first = open("netmap:p{1/t");
        replace(home);
        let second = open("netmap:p{1/t");
        let sees = |monitor: &unetmap::Port| {
            until("packets are seen", || {
                let ring = &monitor.rx_rings()[0];
                let n = ring.space();
                ring.advance(n);
                monitor.rxsync().expect("the port is open");
                n > 0
            });
        };
        sees(&first);
        sees(&second);
        drop(first);
        replace(home);
        sees(&second);
        let names = || home.snapshot().ports.iter().filter(|port| port.kind == "monitor").count();
        assert_eq!(names(), 1);
        drop(second);
        until("no monitor is left", || names() == 0);
        let (sent, counts) = stream.stop();
        assert_eq!((counts.received, counts.missing), (sent, 0));
    });
}

/// The monitor sees arrivals while the daemon is replaced, too, whether the program syncs or not.
fn a_monitored_interface_goes_on(home: &Home, policy: &str) {
    let Some(net) = Net::new(home, policy, CABLE) else { return };
    let (port, tap) = (net.open("netmap:va"), net.tap());
    assert_works(&port, &tap, 0);
    let monitor = net.open("netmap:va/r");
    for round in 1..=3 {
        let batches: Vec<_> = (0..20).map(|n| frames(&[60; 10], (round * 100 + n) << 20)).collect();
        thread::scope(|scope| {
            scope.spawn(|| {
                for batch in &batches {
                    tap.send_all(batch);
                    thread::sleep(Duration::from_millis(5));
                }
            });
            replace(home);
        });
        let all = batches.concat();
        assert_same(&collect(&monitor, all.len()), &all);
        assert_same(&collect(&port, all.len()), &all);
    }
    drop(monitor);
    assert_works(&port, &tap, 1 << 40);
    drop(port);
    net.assert_given_back();
}

#[test]
fn a_monitored_direct_interface_goes_on_while_the_daemon_is_replaced() {
    isolated_with_interfaces(|home| a_monitored_interface_goes_on(home, DIRECT));
}

#[test]
fn a_monitored_mediated_interface_goes_on_while_the_daemon_is_replaced() {
    isolated_with_interfaces(|home| a_monitored_interface_goes_on(home, MEDIATED));
}
