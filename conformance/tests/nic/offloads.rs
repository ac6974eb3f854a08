// SPDX-License-Identifier: BSD-2-Clause
//! Frames are those on the wire, whatever a sender's stack leaves to its interface: with VLAN tags, which the kernel
//! keeps beside a frame, with checksums, and not longer than the MTU. Offloads that would prevent this are disabled
//! while a port is open, and restored afterwards.

use std::net::UdpSocket;
use std::time::Duration;

use conformance::home::summary;
use conformance::host::{CABLE, V4, bridge, stream, until_clean, until_it_works};
use conformance::net::{DIRECT, MEDIATED, Net, Tap, collect, frame, set_policy, start_daemon};
use conformance::packet::assert_checksums;
use conformance::switch::host_on_switch;
use conformance::{Home, bpf, isolated_with_interfaces, program, until};
use lab::Ns;
use nix::sys::socket::{setsockopt, sockopt};
use rustix::process::{Signal, kill_process};
use unetmap::{Interest, Port};

/// How a port gets its frames.
#[derive(Clone, Copy, PartialEq, Debug)]
enum Path {
    Native,
    Generic,
    Mediated,
    HostRings,
    Persistent,
}

/// Stacks of VLAN tags, outermost first: EtherType, priority and VLAN id of each.
const TAGS: [&[u32]; 4] = [&[0x8100_000a], &[0x8100_e00b], &[0x88a8_0005], &[0x88a8_0005, 0x8100_0007]];

/// Offloads of the sending interface.
const OFFLOADS: [&str; 4] = ["tx", "tso", "txvlan", "tx-vlan-stag-hw-insert"];

/// The state of all offloads of an interface.
fn features(ns: &Ns, interface: &str) -> String {
    ns.tool("ethtool", &["-k", interface]).expect("ethtool")
}

impl Path {
    fn net(self, home: &Home) -> Option<Net> {
        let (policy, mode) = match self {
            Path::Generic => (DIRECT, "generic"),
            Path::Mediated => (MEDIATED, "best"),
            Path::Native | Path::HostRings | Path::Persistent => (DIRECT, "native"),
        };
        Net::with(home, policy, CABLE, &["--admode", mode])
    }

    /// The sender: its namespace, its interface and its address.
    fn sender(self, net: &Net) -> (&Ns, &'static str, &'static str) {
        match self {
            Path::Native | Path::Generic | Path::Mediated => (&net.far, "vb", V4[1]),
            Path::HostRings => (&net.near, "va", V4[0]),
            Path::Persistent => (&net.near, "vi0", "10.8.0.1"),
        }
    }

    fn port(self, net: &Net) -> Port {
        match self {
            Path::HostRings => net.open("netmap:va^"),
            Path::Persistent => net.open("vale0:p"),
            _ => net.open("netmap:va"),
        }
    }
}

/// The next frame of the tests' EtherType behind its tags; those of the sender's own stack are skipped.
fn tagged(port: &Port, tags: usize) -> Vec<u8> {
    loop {
        let frame = collect(port, 1).remove(0);
        if [12 + 4 * tags, 12].iter().any(|&at| frame.get(at..at + 2) == Some(&[0x88, 0xb5])) {
            return frame;
        }
    }
}

fn tags_arrive(path: Path, net: &Net) {
    let (ns, interface, _) = path.sender(net);
    for (i, tags) in TAGS.into_iter().enumerate() {
        // Before the daemon's program, which is attached when the port is opened.
        let _pusher = ns.run(|| bpf::push_tags(interface, tags)).expect("a namespace").expect("a program");
        let (port, tap) = (path.port(net), Tap::on(ns, interface));
        let plain = frame(100 + i, i as u64);
        let mut wanted = plain.clone();
        wanted.splice(12..12, tags.iter().flat_map(|tag| tag.to_be_bytes()));
        tap.send(&plain);
        let got = tagged(&port, tags.len());
        assert!(got == wanted, "{path:?}: {tags:08x?}: {:02x?} instead of {:02x?}", &got[..24], &wanted[..24]);
    }
}

/// A datagram, and many that the stack passes on as one packet.
fn datagrams_arrive(path: Path, net: &Net) {
    const LEN: usize = 1000;
    let (ns, interface, address) = path.sender(net);
    let to = format!("{}.77", address.rsplit_once('.').expect("an address").0);
    ns.ip(&["neigh", "replace", &to, "lladdr", "02:00:00:00:00:77", "dev", interface]).expect("a neighbour");
    let port = path.port(net);
    let socket = ns.run(|| UdpSocket::bind((address, 0))).expect("a namespace").expect("a socket");
    socket.send_to(&[7; 300], (&*to, 9)).expect("a route");
    setsockopt(&socket, sockopt::UdpGsoSegment, &(LEN as i32)).expect("segments of datagrams");
    socket.send_to(&[8; 20 * LEN], (&*to, 9)).expect("a route");
    let mut got = Vec::new();
    until("all datagrams arrive", || {
        port.poll(Interest::RX, Some(Duration::from_millis(20))).expect("the daemon runs");
        let frames = (0..port.rx_rings().len()).flat_map(|ring| conformance::net::take(&port, ring));
        got.extend(frames.filter(|frame| frame[12..14] == [8, 0] && frame[23] == 17));
        got.iter().map(|frame| frame.len() - 42).sum::<usize>() >= 300 + 20 * LEN
    });
    assert_eq!(got.iter().map(Vec::len).max(), Some(LEN + 42), "{path:?}");
    got.iter().for_each(|frame| assert_checksums(frame));
}

fn frames_are_those_on_the_wire(home: &Home, path: Path) {
    let Some(net) = path.net(home) else { return };
    if path == Path::Persistent {
        host_on_switch(&net.near, "vi0", &["10.8.0.1/24"]);
    }
    let (ns, interface, _) = path.sender(&net);
    for state in ["on", "off"] {
        if path != Path::Persistent {
            for offload in OFFLOADS {
                ns.tool("ethtool", &["-K", interface, offload, state]).expect("ethtool");
            }
        }
        let before = features(ns, interface);
        tags_arrive(path, &net);
        datagrams_arrive(path, &net);
        until("the offloads are restored", || features(ns, interface) == before);
    }
    summary(&format!("{path:?}: tag stacks {}, checksums, segments: as on the wire, offloads on and off", TAGS.len()));
}

#[test]
fn frames_are_those_on_the_wire_native() {
    isolated_with_interfaces(|home| frames_are_those_on_the_wire(home, Path::Native));
}

#[test]
fn frames_are_those_on_the_wire_generic() {
    isolated_with_interfaces(|home| frames_are_those_on_the_wire(home, Path::Generic));
}

#[test]
fn frames_are_those_on_the_wire_mediated() {
    isolated_with_interfaces(|home| frames_are_those_on_the_wire(home, Path::Mediated));
}

#[test]
fn frames_are_those_on_the_wire_host_rings() {
    isolated_with_interfaces(|home| frames_are_those_on_the_wire(home, Path::HostRings));
}

#[test]
fn frames_are_those_on_the_wire_persistent_port() {
    isolated_with_interfaces(|home| frames_are_those_on_the_wire(home, Path::Persistent));
}

#[test]
fn offloads_are_restored_when_a_port_closes_and_when_a_process_is_killed() {
    isolated_with_interfaces(|home| {
        for policy in [DIRECT, MEDIATED] {
            let Some(net) = Net::new(home, policy, CABLE) else { return };
            let all = |net: &Net| [features(&net.near, "va"), features(&net.far, "vb")];
            let before = all(&net);
            assert!(before[1].contains("tx-checksumming: on") && before[1].contains("tx-vlan-offload: on"));
            let port = net.open("netmap:va");
            let open = all(&net);
            assert_eq!(open[0], before[0], "a veth's own offloads");
            assert!(
                open[1].contains("tx-checksumming: off") && open[1].contains("tx-vlan-offload: off"),
                "{}",
                open[1]
            );
            drop(port);
            until("they are restored after a close", || all(&net) == before);
            let mut client = net.start(home, program("pkt-gen"), &["-i", "netmap:va", "-f", "rx", "-w", "0"], 1);
            assert_eq!(all(&net), open);
            client.signal(Signal::KILL);
            client.wait();
            until("they are restored after a killed program", || all(&net) == before);
            let _client = net.start(home, program("pkt-gen"), &["-i", "netmap:va", "-f", "rx", "-w", "0"], 1);
            assert_eq!(all(&net), open);
            kill_process(home.daemon(), Signal::KILL).expect("our own daemon");
            until("they are restored after a killed daemon", || all(&net) == before);
            set_policy(home, policy);
            // The next daemon opens the interface before or after the offloads are restored.
            for _ in 0..5 {
                let daemon = start_daemon(home, &[]);
                let _client = net.start(home, program("pkt-gen"), &["-i", "netmap:va", "-f", "rx", "-w", "0"], 1);
                assert_eq!(all(&net), open);
                kill_process(home.daemon(), Signal::KILL).expect("our own daemon");
                drop(daemon);
            }
            let _daemon = start_daemon(home, &[]);
            let port = net.open("netmap:va");
            assert_eq!(all(&net), open);
            drop(port);
            until("they are restored by the next daemon", || all(&net) == before);
        }
    });
}

/// Streams between two stacks, each behind a veth, through a bridge that neither has been configured for.
#[test]
fn streams_cross_a_bridge_of_two_interfaces_without_ethtool() {
    isolated_with_interfaces(|home| {
        for mode in ["native", "generic"] {
            let Some(net) = Net::with(home, DIRECT, CABLE, &["--admode", mode]) else { return };
            let third = net.lab.namespace("third").expect("a namespace");
            let cable = lab::VethOptions { addresses: None, ..CABLE };
            net.lab.veth(&net.near, "vc", &third, "vd", cable).expect("a cable");
            net.near.ip(&["addr", "flush", "dev", "va"]).expect("addresses");
            third.ip(&["addr", "add", "10.9.0.3/24", "dev", "vd"]).expect("an address");
            let before = [features(&net.far, "vb"), features(&third, "vd")];
            let mut bridge = net.start(home, program("bridge"), &["-w", "0", "-i", "netmap:va", "-i", "netmap:vc"], 2);
            until("a bridge", || conformance::net::pings(&net.far, "10.9.0.3"));
            stream(&net.far, &third, "10.9.0.3").unwrap_or_else(|e| panic!("{mode}: {e}"));
            stream(&third, &net.far, V4[1]).unwrap_or_else(|e| panic!("{mode}: back: {e}"));
            bridge.signal(Signal::TERM);
            assert!(bridge.wait().success());
            until("the offloads are restored", || [features(&net.far, "vb"), features(&third, "vd")] == before);
            drop(net);
            home.end_daemon();
        }
    });
}

/// The same between an interface and the host behind it.
#[test]
fn streams_cross_a_bridge_to_the_host_without_ethtool() {
    isolated_with_interfaces(|home| {
        for mode in ["native", "generic"] {
            let Some(net) = Net::with(home, DIRECT, CABLE, &["--admode", mode]) else { return };
            let mut program = bridge(&net, home, 1);
            until_it_works("a bridge", &net);
            stream(&net.far, &net.near, V4[0]).unwrap_or_else(|e| panic!("{mode}: in: {e}"));
            stream(&net.near, &net.far, V4[1]).unwrap_or_else(|e| panic!("{mode}: out: {e}"));
            program.signal(Signal::TERM);
            assert!(program.wait().success());
            until_clean(&net);
            drop(net);
            home.end_daemon();
        }
    });
}
