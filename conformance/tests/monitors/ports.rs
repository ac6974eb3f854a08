// SPDX-License-Identifier: BSD-2-Clause
//! Monitors of interfaces (direct: served by the client's library; mediated: served by the daemon), and of switch
//! ports, served by the switch.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

use conformance::ether::{self, BROADCAST, mac};
use conformance::home::summary;
use conformance::monitor::{assert_nothing, dropped};
use conformance::net::{
    BUFFER, CABLE, DIRECT, MEDIATED, Net, assert_same, assert_works, collect, frames, take, transmit,
};
use conformance::traffic::{bytes_of, expect, open, send};
use conformance::{Home, LIMIT, isolated_with_interfaces, until};
use lab::VethOptions;
use unetmap::abi::NS_TXMON;
use unetmap::errno::{EBUSY, EINVAL, EIO, ENXIO};
use unetmap::{Interest, Port};

fn an_interface_is_watched(home: &Home, policy: &str) {
    let Some(net) = Net::new(home, policy, CABLE) else { return };
    let (errno, why) = net.refused("netmap:va/r");
    assert_eq!(errno, EINVAL, "{why}");
    assert_eq!(net.refused("netmap:nosuch/r").0, ENXIO);
    let (port, tap) = (net.open("netmap:va"), net.tap());
    // The port is open for a while before it is monitored.
    assert_works(&port, &tap, 0);
    let (rx, tx) = (net.open("netmap:va/r"), net.open("netmap:va/t"));
    let sizes: Vec<usize> = (14..1514).step_by(7).collect();
    for round in 1..20 {
        let all = frames(&sizes, round << 20);
        transmit(&port, 0, &all, BUFFER);
        assert_same(&tap.collect(all.len()), &all);
        until("all copies are there", || tx.rxsync().is_ok() && tx.rx_rings()[0].space() as usize == all.len());
        assert!(tx.rx_rings()[0].available().all(|slot| slot.flags() == NS_TXMON));
        assert_same(&take(&tx, 0), &all);
        tap.send_all(&all);
        assert_same(&collect(&port, all.len()), &all);
        assert_same(&collect(&rx, all.len()), &all);
    }
    assert_nothing(&tx, "that was received");
    assert_eq!((dropped(home, &tx), dropped(home, &rx)), (0, 0));
    drop((rx, tx));
    assert_works(&port, &tap, 1 << 40);
    let last = net.open("netmap:va/rt");
    drop(port);
    let ended = |port: &Port| port.poll(Interest::RX, Some(Duration::ZERO)).is_err_and(|e| e.errno() == EIO);
    until("the monitor ends with the port", || ended(&last));
    net.assert_given_back();
    // An interface that is deleted.
    let (port, monitor) = (net.open("netmap:va"), net.open("netmap:va/r"));
    net.near.ip(&["link", "del", "dev", "va"]).expect("our own interface");
    until("the monitor ends with the interface", || ended(&monitor));
    drop(port);
}

#[test]
fn a_direct_interface_can_be_monitored() {
    isolated_with_interfaces(|home| an_interface_is_watched(home, DIRECT));
}

#[test]
fn a_mediated_interface_can_be_monitored() {
    isolated_with_interfaces(|home| an_interface_is_watched(home, MEDIATED));
}

/// The thread that shows a monitor what has arrived takes it from the socket that the program waits for.
#[test]
fn a_program_that_waits_on_a_monitored_interface_is_woken() {
    isolated_with_interfaces(|home| {
        const FRAMES: u64 = 200;
        let Some(net) = Net::new(home, DIRECT, CABLE) else { return };
        let (port, tap) = (net.open("netmap:va"), net.tap());
        let monitor = net.open("netmap:va/r");
        let received = AtomicU64::new(0);
        // A sleep that nothing ends takes half a second: a few of them exceed the limit of all.
        let limit = Instant::now() + LIMIT;
        std::thread::scope(|scope| {
            scope.spawn(|| {
                while received.load(Relaxed) < FRAMES && Instant::now() < limit {
                    port.poll(Interest::RX, Some(Duration::from_secs(1))).expect("an open port");
                    received.fetch_add(take(&port, 0).len() as u64, Relaxed);
                }
            });
            for n in 0..FRAMES {
                // Long enough for the program to sleep.
                std::thread::sleep(Duration::from_millis(2));
                tap.send_all(&frames(&[60], n << 20));
                while received.load(Relaxed) <= n {
                    assert!(Instant::now() < limit, "{} of {FRAMES} frames arrived", received.load(Relaxed));
                    std::thread::yield_now();
                }
            }
        });
        until("the monitor has all", || monitor.rxsync().is_ok() && u64::from(monitor.rx_rings()[0].space()) == FRAMES);
        assert_eq!(dropped(home, &monitor), 0);
    });
}

/// Programs come and go while their interface is monitored: each that is left is served.
#[test]
fn sessions_of_a_monitored_interface_come_and_go() {
    isolated_with_interfaces(|home| {
        let Some(net) = Net::new(home, DIRECT, CABLE) else { return };
        let (first, tap) = (net.open("netmap:va"), net.tap());
        let monitor = net.open("netmap:va/r");
        let shows = |from: u64| {
            let sent = frames(&[60; 50], from);
            tap.send_all(&sent);
            assert_same(&collect(&monitor, sent.len()), &sent);
        };
        shows(1 << 20);
        let second = net.open("netmap:va");
        shows(2 << 20);
        drop(first);
        shows(3 << 20);
        // What no program has read is delivered.
        until("it has all", || second.rxsync().is_ok() && second.rx_rings()[0].space() >= 150);
        drop(monitor);
        let monitor = net.open("netmap:va/rt");
        let sent = frames(&[80; 10], 4 << 20);
        tap.send_all(&sent);
        assert_same(&collect(&monitor, sent.len()), &sent);
        drop(second);
        until("the monitor ends with the port", || {
            monitor.poll(Interest::RX, Some(Duration::ZERO)).is_err_and(|e| e.errno() == EIO)
        });
        net.assert_given_back();
    });
}

fn queues_are_watched(home: &Home, policy: &str) {
    let cable = VethOptions { queues: 2, ..CABLE };
    let Some(net) = Net::new(home, policy, cable) else { return };
    let (port, tap) = (net.open("netmap:va"), net.tap());
    let (all, second) = (net.open("netmap:va/t"), net.open("netmap:va-1/t"));
    assert_eq!((all.rx_rings().len(), second.rx_rings().len()), (2, 1));
    let batches = [frames(&[60; 100], 0), frames(&[80; 100], 1 << 20)];
    for (queue, batch) in batches.iter().enumerate() {
        transmit(&port, queue, batch, BUFFER);
        assert_same(&tap.collect(batch.len()), batch);
    }
    until("all copies are there", || all.rxsync().is_ok() && all.rx_rings().iter().all(|ring| ring.space() == 100));
    assert_same(&take(&all, 0), &batches[0]);
    assert_same(&take(&all, 1), &batches[1]);
    assert_same(&collect(&second, 100), &batches[1]);
    // A queue that another program opens is monitored as well.
    let also = net.open("netmap:va-0");
    transmit(&also, 0, &batches[0], BUFFER);
    assert_same(&collect(&all, 100), &batches[0]);
    drop((port, also));
}

#[test]
fn single_queues_of_a_direct_interface_can_be_monitored() {
    isolated_with_interfaces(|home| queues_are_watched(home, DIRECT));
}

#[test]
fn single_queues_of_a_mediated_interface_can_be_monitored() {
    isolated_with_interfaces(|home| queues_are_watched(home, MEDIATED));
}

/// The switch copies what it delivers to a port and what it receives from it.
#[test]
fn ports_of_a_switch_can_be_monitored() {
    isolated_with_interfaces(|home| {
        let (a, b) = (open("vale0:a"), open("vale0:b"));
        let (sent, received, both) = (open("vale0:a/t"), open("vale0:b/r"), open("vale0:b/rt"));
        send(&a, 1, 0, 500).expect("room");
        expect(&b, 1, 0, 500);
        expect(&sent, 1, 0, 500);
        expect(&received, 1, 0, 500);
        expect(&both, 1, 0, 500);
        send(&b, 2, 0, 5).expect("room");
        until("the switch has taken them", || both.rxsync().is_ok() && both.rx_rings()[0].space() == 5);
        for (slot, seq) in both.rx_rings()[0].available().zip(0..) {
            assert_eq!(slot.flags(), NS_TXMON);
            assert_eq!(conformance::packet::check(&bytes_of(&slot)), Ok((2, seq)));
        }
        assert_nothing(&received, "that was sent");
        // Before the port's own program has received it.
        assert_nothing(&sent, "that was received");
        expect(&a, 2, 0, 5);
        for monitor in [&sent, &received, &both] {
            assert_eq!(dropped(home, monitor), 0, "{}", monitor.spec());
        }
        drop((sent, received, both));
        until("nobody watches", || home.snapshot().ports.len() == 2);
        send(&a, 1, 500, 1000).expect("room");
        expect(&b, 1, 500, 1000);
        let last = open("vale0:b/r");
        drop(b);
        until("it ends with its port", || {
            last.poll(Interest::RX, Some(Duration::ZERO)).is_err_and(|e| e.errno() == EIO)
        });
        drop((a, last));
        until("nothing is left", || home.snapshot().ports.is_empty() && home.snapshot().regions.is_empty());
    });
}

/// Exactly: packets copied to the monitor plus drops counted equal packets delivered to the port.
#[test]
fn a_slow_monitor_of_a_switch_port_loses_only_its_own_packets() {
    isolated_with_interfaces(|home| {
        const PACKETS: u64 = 50_000;
        let (a, b) = (open("vale0:a"), open("vale0:b"));
        let monitor = Port::options().rx_slots(128).open("vale0:b/r").expect("a monitor");
        let over = AtomicBool::new(false);
        let (received, seen) = std::thread::scope(|scope| {
            const NAP: Duration = Duration::from_millis(2);
            let seeing = scope.spawn(|| conformance::monitor::see_all(home, &monitor, &over, NAP));
            let receiving = scope.spawn(|| {
                let ring = &b.rx_rings()[0];
                let mut got = 0u64;
                loop {
                    let last = over.load(Relaxed);
                    let ready = b.poll(Interest::RX, Some(Duration::from_millis(100))).expect("an open port");
                    if ready.is_none() && last {
                        return got;
                    }
                    got += u64::from(ring.space());
                    ring.advance(ring.space());
                }
            });
            send(&a, 1, 0, PACKETS).expect("room on the transmit ring");
            until("all was taken", || a.txsync().is_ok() && !a.tx_rings()[0].pending());
            over.store(true, Relaxed);
            (receiving.join().expect("no panic"), seeing.join().expect("no panic"))
        });
        assert!(seen.in_order);
        assert_eq!(seen.copies + seen.dropped, received, "{seen:?}");
        assert!(seen.dropped > 0, "the slow monitor lost nothing");
        summary(&format!("sent {PACKETS}, delivered {received}, seen {} + {} dropped", seen.copies, seen.dropped));
    });
}

/// A monitor sees packets for other ports only if the monitored port receives them.
#[test]
fn a_monitor_sees_no_other_port() {
    isolated_with_interfaces(|_| {
        let ports = [open("vale0:a"), open("vale0:b"), open("vale0:c")];
        // The switch learns the address of each.
        for (n, port) in ports.iter().enumerate() {
            ether::send(port, BROADCAST, mac(n as u32), 1000 + n as u64, (0, 1));
        }
        for port in &ports {
            until("every port has received from every other", || {
                port.rxsync().is_ok() && port.rx_rings()[0].space() == 2
            });
        }
        let monitor = open("vale0:c/rt");
        ether::send(&ports[0], mac(1), mac(0), 7, (0, 100));
        until("they came", || ports[1].rxsync().is_ok() && ports[1].rx_rings()[0].space() == 102);
        assert_nothing(&monitor, "that was between two others");
    });
}

/// Host rings are not monitored, and do not disturb monitors of the other rings.
#[test]
fn an_interface_with_host_rings_can_be_monitored() {
    isolated_with_interfaces(|home| {
        let Some(net) = Net::new(home, DIRECT, CABLE) else { return };
        let (port, tap) = (net.open("netmap:va*"), net.tap());
        let monitor = net.open("netmap:va/t");
        assert_eq!(monitor.rx_rings().len(), 1);
        assert_eq!(net.refused("netmap:va^/t").0, EINVAL);
        let all = frames(&[60; 100], 0);
        transmit(&port, 0, &all, BUFFER);
        assert_same(&tap.collect(all.len()), &all);
        assert_same(&collect(&monitor, all.len()), &all);
        drop(port);
    });
}

/// Another user's interface cannot be monitored.
#[test]
fn a_user_can_monitor_only_interfaces_it_may_open() {
    isolated_with_interfaces(|home| {
        let Some(net) = Net::new(home, DIRECT, CABLE) else { return };
        let port = net.open("netmap:va");
        conformance::net::set_policy(home, MEDIATED);
        // From now on the policy gives root mediated access, unlike the monitored port.
        let (errno, why) = net.refused("netmap:va/r");
        assert_eq!(errno, EBUSY, "{why}");
        conformance::net::set_policy(home, "");
        drop(port);
    });
}
