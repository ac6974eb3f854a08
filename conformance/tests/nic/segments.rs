// SPDX-License-Identifier: BSD-2-Clause
//! Packets of up to 64 KB, with unfinished checksums, that cross user space as they are: between two interfaces with
//! packet sockets, whose packets begin with virtio-net headers. The program has the sockets itself, or by the daemon.

use conformance::home::{Guard, program, summary};
use conformance::host::CABLE;
use conformance::machine::{Machine, unfinished};
use conformance::net::{BUFFER, DIRECT, MEDIATED, Net, drain, take, transmit};
use conformance::packet::assert_checksums;
use conformance::switch::{bring_up, tcp};
use conformance::tool::done;
use conformance::{Home, isolated_with_interfaces, until};
use lab::Ns;
use rustix::process::Signal;
use unetmap::abi::NR_ACCEPT_VNET_HDR;
use unetmap::{Interest, Port};

/// Bytes of a transfer.
const BYTES: usize = 20 << 20;

/// Has an interface carry headers by packet sockets.
pub(super) fn with_headers(ns: &Ns, name: &str, bytes: &str) {
    done(ns, &[name, "way", "packet"]);
    done(ns, &[name, "header", bytes]);
}

pub(super) fn accepting(ns: &Ns, spec: &str) -> Port {
    ns.run(|| Port::options().flags(NR_ACCEPT_VNET_HDR).open(spec)).expect("a namespace").expect("a port")
}

/// Waits for a TCP packet over IPv4, behind a header of so many bytes.
#[track_caller]
fn next_tcp(port: &Port, header: usize) -> Vec<u8> {
    let mut found = None;
    until("a packet arrives", || {
        port.poll(Interest::RX, Some(std::time::Duration::from_millis(20))).expect("the daemon runs");
        let is_tcp =
            |packet: &Vec<u8>| packet.get(header + 12..header + 14) == Some(&[8, 0]) && packet[header + 23] == 6;
        found = take(port, 0).into_iter().find(is_tcp);
        found.is_some()
    });
    found.expect("a packet")
}

/// The packets that the port of this interface lost, of those that the program sent.
fn lost(home: &Home, name: &str) -> u64 {
    let ports = home.snapshot().ports;
    let of_kind = |kind: &str| ports.iter().find(|port| port.kind == kind && port.name == name);
    // A mediated port is in front of the daemon's.
    let port = of_kind("mediated").or_else(|| of_kind("nic")).expect("the port");
    port.rings.iter().filter(|ring| ring.dir == "tx").map(|ring| ring.dropped).sum()
}

/// A program receives a packet of 20 KB as a machine's tap has it, and sends it as it is; for a machine that takes
/// finished frames only, the kernel finishes it, and for a program without headers the daemon does.
#[test]
fn unfinished_packets_are_finished_only_for_those_who_need_it() {
    isolated_with_interfaces(|home| assert_finishing(home, DIRECT));
}

#[test]
fn unfinished_packets_are_finished_only_for_those_who_need_it_by_the_daemon() {
    isolated_with_interfaces(|home| assert_finishing(home, MEDIATED));
}

fn assert_finishing(home: &Home, policy: &str) {
    let Some(net) = Net::new(home, policy, CABLE) else { return };
    for header in [10, 12] {
        let names = ["tap0", "tap1"].map(|name| format!("{name}h{header}"));
        let [from, to] = [0, 1].map(|at| Machine::new(&net.near, &names[at]));
        let [a, b] = names.each_ref().map(|name| {
            with_headers(&net.near, name, &header.to_string());
            accepting(&net.near, &format!("netmap:{name}"))
        });
        for payload in [300, 20_000, 64_000] {
            let sent = unfinished(payload);
            from.send(&sent);
            let got = next_tcp(&a, header);
            // The kernel may name another length of the headers, which is a hint.
            assert_eq!((&got[..2], &got[4..10], &got[header..]), (&sent[..2], &sent[4..10], &sent[10..]));
            transmit(&b, 0, &[got], BUFFER);
            let mut bytes = 0;
            while bytes < payload {
                let frame = to.receive("a segment", |frame| frame[12..14] == [8, 0] && frame[23] == 6);
                assert_checksums(&frame);
                bytes += frame.len() - 54;
                assert!(frame.len() <= 1054, "{}", frame.len());
            }
            assert_eq!(bytes, payload);
        }
    }
    summary("packets of up to 64 KB, headers of 10 and 12 bytes");
}

/// Headers that do not match their packet, and packets that cannot be sent, are counted, and those behind are sent.
#[test]
fn a_hostile_header_is_refused_and_counted() {
    isolated_with_interfaces(|home| assert_hostile(home, DIRECT));
}

#[test]
fn a_hostile_header_is_refused_and_counted_by_the_daemon() {
    isolated_with_interfaces(|home| assert_hostile(home, MEDIATED));
}

fn assert_hostile(home: &Home, policy: &str) {
    let Some(net) = Net::new(home, policy, CABLE) else { return };
    let machine = Machine::new(&net.near, "tap0");
    with_headers(&net.near, "tap0", "12");
    let port = accepting(&net.near, "netmap:tap0");
    let good = {
        let packet = unfinished(3000);
        [&packet[..10], &[0; 2], &packet[10..]].concat()
    };
    let with = |change: &dyn Fn(&mut Vec<u8>)| {
        let mut packet = good.clone();
        change(&mut packet);
        packet
    };
    let set =
        |at: usize, value: u16| with(&|packet: &mut Vec<u8>| packet[at..at + 2].copy_from_slice(&value.to_le_bytes()));
    let wrong = [
        with(&|packet| packet[1] = 77),
        // The segments' size, and where the checksum begins, and is.
        set(4, 0),
        set(6, 60_000),
        set(8, 60_000),
        with(&|packet| packet.truncate(11)),
        with(&|packet| packet.truncate(12)),
        with(&|packet| packet.truncate(20)),
        with(&|packet| packet.resize(12 + 70_000, 0)),
    ];
    for packet in &wrong {
        let before = lost(home, "tap0");
        transmit(&port, 0, &[packet.clone(), good.clone()], BUFFER);
        for _ in 0..3 {
            assert_checksums(&machine.receive("the packet behind it", |frame| frame.get(12..14) == Some(&[8, 0])));
        }
        drain(&port);
        assert_eq!(lost(home, "tap0") - before, 1, "{:?} of {} bytes", &packet[..11], packet.len());
    }
}

/// `bridge` between two interfaces: streams arrive as they were sent, and most of them in packets longer than the MTU.
#[test]
fn a_bridge_passes_large_packets_on() {
    isolated_with_interfaces(|home| assert_bridging(home, DIRECT));
}

#[test]
fn a_bridge_passes_large_packets_on_by_the_daemon() {
    isolated_with_interfaces(|home| assert_bridging(home, MEDIATED));
}

fn assert_bridging(home: &Home, policy: &str) {
    let Some(net) = Net::new(home, policy, CABLE) else { return };
    let third = net.lab.namespace("third").expect("a namespace");
    let ends = [(&net.far, "vb", 1), (&third, "vd", 2)];
    net.lab.veth(&net.near, "vc", &third, "vd", lab::VethOptions { addresses: None, ..CABLE }).expect("a cable");
    for (ns, name, at) in ends {
        bring_up(ns, name, &[&format!("10.8.0.{at}/24"), &format!("fd08::{at}/64")]);
    }
    let mut pairs = vec![["10.8.0.1", "10.8.0.2"], ["fd08::1", "fd08::2"]];
    let tagged = |(ns, name, _): (&Ns, &str, u8)| {
        ns.ip(&["link", "add", "link", name, "name", "tagged", "type", "vlan", "id", "7"])
    };
    match ends.map(tagged) {
        [Ok(_), Ok(_)] => {
            ends.iter().for_each(|(ns, _, at)| bring_up(ns, "tagged", &[&format!("10.8.7.{at}/24")]));
            pairs.push(["10.8.7.1", "10.8.7.2"]);
        }
        [Err(why), _] | [_, Err(why)] => summary(&format!("no VLAN: {why}")),
    }
    for name in ["va", "vc"] {
        with_headers(&net.near, name, "12");
    }
    let mut bridge = net.start(home, program("bridge"), &["-w", "0", "-i", "netmap:va", "-i", "netmap:vc"], 2);
    for (mtu, offloads) in [("1500", "on"), ("9000", "on"), ("1500", "off")] {
        for name in ["va", "vc"] {
            net.near.ip(&["link", "set", name, "mtu", mtu]).expect("an interface");
        }
        for (ns, name, _) in ends {
            ns.ip(&["link", "set", name, "mtu", mtu]).expect("an interface");
            ns.tool("ethtool", &["-K", name, "tx", offloads, "tso", offloads]).expect("ethtool");
        }
        let before = ends.map(|(ns, name, _)| ns.counters(name).expect("an interface").rx_packets);
        for [first, second] in &pairs {
            tcp(ends[0].0, ends[1].0, second, BYTES);
            tcp(ends[1].0, ends[0].0, first, BYTES);
        }
        let after = ends.map(|(ns, name, _)| ns.counters(name).expect("an interface").rx_packets);
        let packets = after[0] - before[0] + after[1] - before[1];
        let bytes = (2 * pairs.len() * BYTES) as u64;
        summary(&format!("MTU {mtu}, offloads {offloads}: {packets} packets for {} MB", bytes >> 20));
        if offloads == "on" {
            assert!(packets < bytes / 5000, "{packets} packets, acknowledgements included");
        }
    }
    stop(&mut bridge);
}

fn stop(program: &mut Guard) {
    program.signal(Signal::TERM);
    assert!(program.wait().success());
}
