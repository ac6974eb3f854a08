// SPDX-License-Identifier: BSD-2-Clause
//! Forwarding: packets that a program releases with `NS_FORWARD`, in rings with `NR_FORWARD`, are carried to the other
//! side of the interface; and host rings that the daemon runs for a program.

use std::collections::BTreeMap;
use std::time::Duration;

use conformance::host::{ATTACHMENTS, CABLE, V4, net, stream, until_clean, until_it_works};
use conformance::net::{
    BUFFER, CABLE as QUIET, DIRECT, MEDIATED, Net, Tap, assert_same, collect, frame, frames, transmit,
};
use conformance::stop::Stop;
use conformance::traffic::bytes_of;
use conformance::{Home, isolated_with_interfaces, until};
use lab::VethOptions;
use unetmap::abi::NS_FORWARD;
use unetmap::{BufIdx, Interest, Port};

/// Enables forwarding in the port's receive rings and releases all packets that arrive, with `NS_FORWARD` if
/// `forwarded` returns true for the packet, until `done`.
#[track_caller]
fn release_all(port: &Port, forwarded: impl Fn(&[u8]) -> bool, what: &str, mut done: impl FnMut() -> bool) {
    port.rx_rings().iter().for_each(|ring| ring.set_forwarding(true));
    until(what, || {
        port.poll(Interest::RX, Some(Duration::from_millis(10))).expect("an open port");
        for ring in port.rx_rings() {
            let n = ring.space();
            for slot in ring.first(n) {
                if forwarded(&bytes_of(&slot)) {
                    slot.set_flags(slot.flags() | NS_FORWARD);
                }
            }
            ring.advance(n);
        }
        port.rxsync().expect("an open port");
        done()
    });
}

/// All frames that a tap has.
fn more(tap: &Tap, got: &mut Vec<Vec<u8>>) {
    while let Some(frame) = tap.next(Duration::ZERO) {
        got.push(frame);
    }
}

fn dropped(home: &Home) -> u64 {
    home.snapshot().ports.iter().flat_map(|port| &port.rings).map(|ring| ring.dropped).sum()
}

fn buffers_add_up(home: &Home) {
    for region in home.snapshot().regions {
        let b = region.buffers;
        assert_eq!(b.free + b.in_rings + b.extra + b.missing, b.total, "region {}", region.mem_id);
    }
}

/// Every second frame from the wire is forwarded to the stack, whether the port has host rings or not.
fn from_the_wire(home: &Home, policy: &str, spec: &str) {
    let Some(net) = Net::new(home, policy, QUIET) else { return };
    let port = net.open(spec);
    let (far, stack) = (net.tap(), Tap::on(&net.near, "va"));
    let sent = frames(&[60; 200], 0);
    far.send_all(&sent);
    let wanted: Vec<_> = sent.iter().step_by(2).cloned().collect();
    let mut got = Vec::new();
    let in_turn = |bytes: &[u8]| wanted.iter().any(|frame| frame == bytes);
    let arrived = || {
        more(&stack, &mut got);
        got.len() >= wanted.len()
    };
    // Where the interface is: another port may have to be opened.
    net.near.run(|| release_all(&port, in_turn, "they go on", arrived)).expect("a namespace");
    assert_same(&got, &wanted);
    stack.assert_quiet();
    assert_eq!(dropped(home), 0);
    buffers_add_up(home);
    // Without the ring's flag the slots' mean nothing.
    port.rx_rings().iter().for_each(|ring| ring.set_forwarding(false));
    far.send_all(&sent[..20]);
    let mut left = 20;
    until("they are given back", || {
        port.poll(Interest::RX, Some(Duration::from_millis(10))).expect("an open port");
        for ring in port.rx_rings() {
            ring.available().for_each(|slot| slot.set_flags(slot.flags() | NS_FORWARD));
            left -= ring.advance(u32::MAX);
        }
        port.rxsync().expect("an open port");
        left == 0
    });
    stack.assert_quiet();
    drop(port);
    until_clean(&net);
}

#[test]
fn packets_with_ns_forward_reach_the_host() {
    isolated_with_interfaces(|home| from_the_wire(home, DIRECT, "netmap:va*"));
}

#[test]
fn forwarding_opens_a_host_ring_for_a_port_without_one() {
    isolated_with_interfaces(|home| from_the_wire(home, DIRECT, "netmap:va"));
}

#[test]
fn packets_with_ns_forward_on_a_mediated_port_reach_the_host() {
    isolated_with_interfaces(|home| from_the_wire(home, MEDIATED, "netmap:va*"));
}

#[test]
fn forwarding_opens_a_host_ring_for_a_mediated_port_without_one() {
    isolated_with_interfaces(|home| from_the_wire(home, MEDIATED, "netmap:va"));
}

/// More at once than the other ring has slots.
#[test]
fn a_full_ring_is_forwarded() {
    isolated_with_interfaces(|home| {
        let Some(net) = Net::new(home, DIRECT, QUIET) else { return };
        let port = net.open("netmap:va*@conf:rx-slots=1024,tx-slots=64");
        let (far, stack) = (net.tap(), Tap::on(&net.near, "va"));
        let sent = frames(&[60; 1000], 0);
        far.send_all(&sent);
        let ring = &port.rx_rings()[0];
        until("all are there", || {
            port.rxsync().expect("an open port");
            ring.space() >= 1000
        });
        let mut got = Vec::new();
        release_all(
            &port,
            |_| true,
            "they go on",
            || {
                more(&stack, &mut got);
                got.len() >= sent.len()
            },
        );
        assert_same(&got, &sent);
        assert_eq!(dropped(home), 0);
    });
}

#[test]
fn host_packets_are_forwarded_to_the_wire_from_a_port_with_all_rings() {
    isolated_with_interfaces(|home| {
        for policy in [DIRECT, MEDIATED] {
            let Some(net) = Net::new(home, policy, VethOptions { queues: 2, ..QUIET }) else { return };
            let (far, stack) = (net.tap(), Tap::on(&net.near, "va"));
            let sent = frames(&[60; 100], 0);
            let port = net.open("netmap:va*");
            stack.send_all(&sent);
            let mut got = Vec::new();
            release_all(
                &port,
                |_| true,
                "they go on",
                || {
                    more(&far, &mut got);
                    got.len() >= sent.len()
                },
            );
            assert_same(&got, &sent);
            drop(port);
            until("it is closed", || home.snapshot().regions.is_empty());
            // A port without all of the interface's transmit rings forwards nothing, and no packet is lost.
            let port = net.open("netmap:va^");
            stack.send_all(&sent);
            let mut seen = 0;
            let count = std::cell::Cell::new(0);
            let counted = |bytes: &[u8]| {
                count.set(count.get() + u32::from(bytes.get(12..14) == Some(&[0x88, 0xb5])));
                true
            };
            release_all(&port, counted, "they come", || {
                seen = seen.max(count.get());
                seen >= 100
            });
            far.assert_quiet();
            assert_eq!(dropped(home), 0);
            drop(port);
            drop(net);
            home.end_daemon();
        }
    });
}

/// A program that marks everything is a wire between stack and interface.
#[test]
fn two_network_stacks_communicate_through_a_port_that_forwards_everything() {
    isolated_with_interfaces(|home| {
        for attachment in ATTACHMENTS {
            let Some(net) = net(home, attachment, 1500) else { return };
            let port = net.open("netmap:va*");
            let stop = std::sync::atomic::AtomicBool::new(false);
            std::thread::scope(|scope| {
                let end = Stop(&stop);
                scope.spawn(|| {
                    use std::sync::atomic::Ordering::Relaxed;
                    release_all(&port, |_| true, "the end", || stop.load(Relaxed));
                });
                until_it_works(attachment.name, &net);
                let both = stream(&net.far, &net.near, V4[0]).and_then(|()| stream(&net.near, &net.far, V4[1]));
                drop(end);
                both.expect("streams");
            });
            drop(port);
            until_clean(&net);
            drop(net);
            home.end_daemon();
        }
    });
}

/// Buffer numbers and lengths that mean nothing do no harm on the way.
#[test]
fn invalid_slots_are_not_forwarded() {
    isolated_with_interfaces(|home| {
        let Some(mut net) = Net::new(home, DIRECT, QUIET) else { return };
        let port = net.open("netmap:va*");
        let (far, stack) = (net.tap(), Tap::on(&net.near, "va"));
        let ring = &port.rx_rings()[0];
        ring.set_forwarding(true);
        for (turn, bad) in [0u32, 1, 0x7fff_ffff, u32::MAX].into_iter().enumerate() {
            far.send_all(&frames(&[60; 2], turn as u64 * 2));
            until("they come", || {
                port.rxsync().expect("an open port");
                ring.space() >= 2
            });
            let mut slots = ring.available();
            let (first, second) = (slots.next().expect("a slot"), slots.next().expect("a slot"));
            first.replace_buf(BufIdx(bad));
            first.set_len_flags(u16::MAX, NS_FORWARD);
            second.set_flags(NS_FORWARD);
            ring.advance(2);
            port.rxsync().expect("an open port");
            assert_same(&stack.collect(1), &[frame(60, turn as u64 * 2 + 1)]);
        }
        net.assert_alive();
        buffers_add_up(home);
    });
}

/// Host rings of a program that may not touch the interface: the daemon runs their sockets, and copies.
#[test]
fn mediated_host_rings_spread_flows_and_work_both_ways() {
    isolated_with_interfaces(|home| {
        let Some(net) = Net::new(home, MEDIATED, VethOptions { tx_checksum_off: true, ..CABLE }) else { return };
        let port = net.open("netmap:va^@conf:host-rings=4");
        assert_eq!((port.tx_rings().len(), port.rx_rings().len()), (4, 4));
        assert!(port.mem_id() > 1, "a region of its own");
        let (far, stack) = (net.tap(), Tap::on(&net.near, "va"));
        let sent = frames(&[14, 60, 500, 1514], 0);
        for ring in 0..4 {
            transmit(&port, ring, &sent, BUFFER);
            assert_same(&stack.collect(sent.len()), &sent);
        }
        stack.send_all(&sent[1..]);
        let got: BTreeMap<usize, Vec<u8>> = collect(&port, 3).into_iter().map(|frame| (frame.len(), frame)).collect();
        assert_same(&got.into_values().collect::<Vec<_>>(), &sent[1..]);
        far.assert_quiet();
        drop(port);
        until_clean(&net);
    });
}

#[test]
fn a_mediated_bridge_is_transparent() {
    isolated_with_interfaces(|home| {
        let Some(net) = Net::new(home, MEDIATED, CABLE) else { return };
        net.far.tool("ethtool", &["-K", "vb", "tx", "off"]).expect("ethtool");
        let mut program = net.start(home, conformance::program("bridge"), &["-w", "0", "-i", "netmap:va"], 2);
        until_it_works("a bridge", &net);
        stream(&net.far, &net.near, V4[0]).expect("a stream");
        stream(&net.near, &net.far, V4[1]).expect("a stream");
        program.kill();
        until_it_works("the stack has it", &net);
        until_clean(&net);
    });
}

/// With the knob set, a program that only reads packets does not disconnect the host.
#[test]
fn the_fwd_knob_forwards_for_programs_that_do_not_request_it() {
    isolated_with_interfaces(|home| {
        for policy in [DIRECT, MEDIATED] {
            let Some(net) = Net::new(home, policy, VethOptions { tx_checksum_off: true, ..CABLE }) else { return };
            net.near.ip(&["route", "add", "default", "via", V4[1], "dev", "va"]).expect("a route");
            let (errno, why) = net.refused("netmap:va");
            assert!(errno == 1 && why.contains("unetmap set fwd 1"), "{why}");
            let mut set = net.command(conformance::program("unetmap"));
            assert!(set.args(["set", "fwd", "1"]).status().expect("unetmap runs").success());
            let args = ["-i", "netmap:va", "-f", "rx", "-w", "0"];
            let mut looks = net.start(home, conformance::program("pkt-gen"), &args, 1);
            until_it_works("a receiver", &net);
            stream(&net.far, &net.near, V4[0]).expect("a stream");
            stream(&net.near, &net.far, V4[1]).expect("a stream");
            looks.kill();
            until_it_works("the stack has it", &net);
            until_clean(&net);
            drop(net);
            home.end_daemon();
        }
    });
}
