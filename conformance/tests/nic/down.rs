// SPDX-License-Identifier: BSD-2-Clause
//! Interfaces that are down: they open, and packets move when they are up, without the program's help.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::thread;
use std::time::Duration;

use conformance::home::summary;
use conformance::net::{
    BUFFER, CABLE, DIRECT, MEDIATED, Net, assert_same, assert_works, collect, drain, frames, open_in, take, transmit,
};
use conformance::traffic::fill_some;
use conformance::{Home, isolated_with_interfaces, until};
use unetmap::{Interest, Port};

/// Flaps of the link under traffic.
const FLAPS: u64 = 100;

fn set(net: &Net, state: &str) {
    net.near.ip(&["link", "set", "va", state]).unwrap_or_else(|e| panic!("{e}"));
}

/// The interface is down while it is opened in each mode; then it goes up, down and up.
fn opened_while_down(home: &Home, policy: &str) {
    let Some(net) = Net::new(home, policy, CABLE) else { return };
    for spec in ["netmap:va", "netmap:va-0", "netmap:va-0/x", "netmap:va*", "netmap:va@conf:host-rings=2"] {
        set(&net, "down");
        let port = net.open(spec);
        let monitor = net.open("netmap:va/rt");
        assert!(!port.poll(Interest::RX, Some(Duration::from_millis(30))).expect("it waits").rx());
        let manner = home.snapshot().ports.iter().find_map(|port| port.manner.clone()).unwrap_or_default();
        assert!(policy == MEDIATED || manner.starts_with("down ("), "{manner}");
        let (kept, tap) = (frames(&[60; 30], 0), net.tap());
        for _ in 0..2 {
            transmit(&port, 0, &kept, BUFFER);
            set(&net, "up");
            net.near.wait_up("va").expect("a cable");
            net.far.wait_up("vb").expect("a cable");
            drain(&port);
            assert_same(&tap.collect(kept.len()), &kept);
            assert_works(&port, &tap, 1000);
            drain(&port);
            set(&net, "down");
        }
        drop((port, monitor));
        until("it is closed", || home.snapshot().ports.is_empty());
    }
    set(&net, "up");
}

#[test]
fn an_interface_that_is_down_opens_and_works_when_it_is_up_direct() {
    isolated_with_interfaces(|home| opened_while_down(home, DIRECT));
}

#[test]
fn an_interface_that_is_down_opens_and_works_when_it_is_up_mediated() {
    isolated_with_interfaces(|home| opened_while_down(home, MEDIATED));
}

/// Two ends send to each other while one and then the other flaps, and monitors are open. Every frame arrives, is
/// counted as dropped, or was in the queue of the driver (at most 256 frames), which the kernel frees without counting.
fn flaps(home: &Home, policy: &str) {
    let Some(net) = Net::new(home, policy, CABLE) else { return };
    let (near, far) = (net.open("netmap:va"), open_in(&net.far, "netmap:vb"));
    let monitors = [net.open("netmap:va/rt"), open_in(&net.far, "netmap:vb/rt")];
    let stop = Arc::new(AtomicBool::new(false));
    let pump = |port: Port, stop: Arc<AtomicBool>| {
        thread::spawn(move || {
            let (mut sent, mut got) = (0, 0);
            while !stop.load(Relaxed) {
                sent += fill_some(&port.tx_rings()[0], 1, sent, 16);
                port.poll(Interest::BOTH, Some(Duration::from_millis(10))).unwrap_or_else(|e| panic!("{e}"));
                got += take(&port, 0).len() as u64;
            }
            (port, sent, got)
        })
    };
    let ends = [pump(near, stop.clone()), pump(far, stop.clone())];
    let seen = thread::spawn({
        let stop = stop.clone();
        move || {
            let mut seen = 0;
            while !stop.load(Relaxed) {
                for monitor in &monitors {
                    monitor.poll(Interest::RX, Some(Duration::from_millis(1))).unwrap_or_else(|e| panic!("{e}"));
                    seen += take(monitor, 0).len() as u64;
                }
            }
            (monitors, seen)
        }
    });
    for flap in 0..FLAPS {
        let ns = if flap % 2 == 0 { (&net.near, "va") } else { (&net.far, "vb") };
        for state in ["down", "up"] {
            ns.0.ip(&["link", "set", ns.1, state]).unwrap_or_else(|e| panic!("{e}"));
            thread::sleep(Duration::from_millis(3 * (flap % 3)));
        }
    }
    stop.store(true, Relaxed);
    let (monitors, seen) = seen.join().expect("no monitor failed");
    let [(near, near_sent, near_got), (far, far_sent, far_got)] = ends.map(|end| end.join().expect("no end failed"));
    net.near.wait_up("va").expect("a cable");
    net.far.wait_up("vb").expect("a cable");
    let (sent, mut got) = (near_sent + far_sent, near_got + far_got);
    for port in [&near, &far] {
        drain(port);
    }
    for port in [&near, &far] {
        while port.poll(Interest::RX, Some(Duration::from_millis(100))).expect("the link is up").rx() {
            got += take(port, 0).len() as u64;
        }
    }
    let snapshot = home.snapshot();
    let kind = if policy == MEDIATED { "mediated" } else { "nic" };
    let ends = snapshot.ports.iter().filter(|port| port.kind == kind && ["va", "vb"].contains(&&*port.name));
    let rings = ends.flat_map(|port| &port.rings);
    let counted: u64 = rings.map(|ring| ring.dropped).sum();
    assert!(seen > 0 && near_got > 0 && far_got > 0);
    assert!(got <= sent, "{got} of {sent}");
    let lost = sent - got;
    assert!(counted > 0 && lost.saturating_sub(counted) <= 256 * FLAPS, "{counted} counted of {lost} lost");
    // Nothing is lost afterwards: both ends and the monitors still work.
    drop(monitors);
    let last = frames(&[60; 200], 0);
    for (from, to) in [(&near, &far), (&far, &near)] {
        transmit(from, 0, &last, BUFFER);
        assert_same(&collect(to, last.len()), &last);
    }
    summary(&format!("{FLAPS} flaps: frames sent {sent}, received {got}, lost {lost}, counted as dropped {counted}"));
}

#[test]
fn link_flaps_under_traffic_end_no_port_direct() {
    isolated_with_interfaces(|home| flaps(home, DIRECT));
}

#[test]
fn link_flaps_under_traffic_end_no_port_mediated() {
    isolated_with_interfaces(|home| flaps(home, MEDIATED));
}
