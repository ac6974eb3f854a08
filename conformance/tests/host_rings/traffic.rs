// SPDX-License-Identifier: BSD-2-Clause
//! Host rings: what a program sees there, what becomes of what it sends, and what is refused. All kinds of traffic with
//! all ways to attach stand in `host_matrix`, deaths in `host_death`.

use std::collections::BTreeMap;
use std::net::UdpSocket;
use std::time::Duration;

use conformance::home::summary;
use conformance::host::{ATTACHMENTS, V4, bridge, net, stream, until_clean, until_it_works};
use conformance::net::{BUFFER, CABLE as QUIET, DIRECT, Net, assert_same, collect, frames, take, transmit};
use conformance::packet::assert_checksums;
use conformance::stop::Stop;
use conformance::{Home, isolated_with_interfaces, until};
use rustix::process::Signal;
use unetmap::{Interest, Port};

/// Datagrams from the near stack to the far one, with a static ARP entry; each has a flow of its own.
#[track_caller]
fn send_flows(net: &Net, flows: u16, each: u32) {
    let far = net.far.mac("vb").expect("a MAC").map(|byte| format!("{byte:02x}")).join(":");
    net.near.ip(&["neigh", "replace", V4[1], "lladdr", &far, "dev", "va"]).expect("a neighbour");
    let sockets: Vec<UdpSocket> = (0..flows)
        .map(|_| net.near.run(|| UdpSocket::bind((V4[0], 0))).expect("a namespace").expect("a socket"))
        .collect();
    for n in 0..each {
        sockets.iter().for_each(|socket| drop(socket.send_to(&n.to_be_bytes(), (V4[1], 9))));
    }
}

/// The source port of a datagram over IPv4 without options.
fn flow_of(packet: &[u8]) -> Option<u16> {
    (packet.get(12..14)? == [8, 0] && packet.get(23)? == &17).then(|| u16::from_be_bytes([packet[34], packet[35]]))
}

#[test]
fn flows_are_spread_over_host_rings_and_keep_their_order() {
    isolated_with_interfaces(|home| {
        const FLOWS: u16 = 64;
        const EACH: u32 = 40;
        let Some(net) = net(home, ATTACHMENTS[0], 1500) else { return };
        let port = net.open("netmap:va^@conf:host-rings=4");
        let register = port.register();
        assert_eq!((register.nr_host_tx_rings, register.nr_host_rx_rings), (4, 4));
        assert_eq!((port.tx_rings().len(), port.rx_rings().len(), register.nr_tx_rings), (4, 4, 1));
        // By flow: the ring, and the number of the next datagram.
        let mut flows: BTreeMap<u16, (usize, u32)> = BTreeMap::new();
        let mut used = [0; 4];
        std::thread::scope(|scope| {
            scope.spawn(|| send_flows(&net, FLOWS, EACH));
            until("all datagrams came", || {
                port.poll(Interest::RX, Some(Duration::from_millis(10))).expect("the daemon runs");
                for (ring, used) in used.iter_mut().enumerate() {
                    for packet in take(&port, ring) {
                        let Some(flow) = flow_of(&packet) else { continue };
                        let number = u32::from_be_bytes(packet[42..46].try_into().expect("four bytes"));
                        let (at, next) = flows.entry(flow).or_insert((ring, 0));
                        assert_eq!((*at, *next), (ring, number), "flow {flow}");
                        *next += 1;
                        *used += 1;
                    }
                }
                used.iter().sum::<u32>() == u32::from(FLOWS) * EACH
            });
        });
        assert!(used.iter().all(|n| *n > 0), "{used:?}");
        drop(port);
        until_clean(&net);
        summary(&format!("datagrams {} of {FLOWS} flows by ring: {used:?}", used.iter().sum::<u32>()));
    });
}

/// Segments that hardware would cut, sum up and tag are whole here; the stack takes a program's packets as it takes
/// those from the wire.
#[test]
fn host_segments_are_split_and_checksums_computed() {
    isolated_with_interfaces(|home| {
        let Some(net) = net(home, ATTACHMENTS[0], 1500) else { return };
        let features = || net.near.tool("ethtool", &["-k", "va"]).expect("ethtool");
        let before = features();
        assert!(before.contains("tcp-segmentation-offload: on") && before.contains("tx-checksumming: on"), "{before}");
        let port = net.open("netmap:va*");
        assert_eq!((port.tx_rings().len(), port.rx_rings().len()), (2, 2));
        let (stop, mut segments) = (std::sync::atomic::AtomicBool::new(false), 0u32);
        std::thread::scope(|scope| {
            let sent = scope.spawn(|| {
                let _end = Stop(&stop);
                stream(&net.near, &net.far, V4[1])
            });
            while !stop.load(std::sync::atomic::Ordering::Relaxed) {
                port.poll(Interest::RX, Some(Duration::from_millis(10))).expect("the daemon runs");
                for (from, to) in [(0, 1), (1, 0)] {
                    let (source, target) = (&port.rx_rings()[from], &port.tx_rings()[to]);
                    let n = source.space().min(target.space());
                    for (source, target) in source.first(n).zip(target.first(n)) {
                        if from == 1 {
                            let bytes = conformance::traffic::bytes_of(&source);
                            assert!(bytes.len() <= 1514, "a segment of {} bytes", bytes.len());
                            assert_checksums(&bytes);
                            segments += 1;
                        }
                        target.swap_from(&source);
                    }
                    source.advance(n);
                    target.advance(n);
                }
            }
            sent.join().expect("no panic").expect("a stream");
        });
        assert!(segments > 1000, "{segments}");
        assert_eq!(features(), before, "the interface's own settings");
        summary(&format!("segments {segments}, each of at most 1514 bytes, with its sums"));
    });
}

#[test]
fn frames_longer_than_a_buffer_take_several_slots() {
    isolated_with_interfaces(|home| {
        for attachment in [ATTACHMENTS[0], ATTACHMENTS[2]] {
            let Some(net) = net(home, attachment, 9000) else { return };
            let mut program = bridge(&net, home, 1);
            for (from, to) in [(&net.near, V4[1]), (&net.far, V4[0])] {
                // Not to be cut: as long as the MTU allows.
                for size in ["1472", "2006", "2007", "8972"] {
                    from.tool("ping", &["-n", "-c", "2", "-i", "0.05", "-W", "5", "-M", "do", "-s", size, to])
                        .unwrap_or_else(|e| panic!("{}: {size} bytes: {e}", attachment.name));
                }
            }
            stream(&net.near, &net.far, V4[1]).expect("a stream");
            stream(&net.far, &net.near, V4[0]).expect("a stream");
            program.signal(Signal::TERM);
            assert!(program.wait().success());
            until_clean(&net);
            home.end_daemon();
        }
    });
}

#[test]
fn invalid_frames_are_not_sent_to_the_host() {
    isolated_with_interfaces(|home| {
        let Some(net) = Net::new(home, DIRECT, QUIET) else { return };
        let (port, tap) = (net.open("netmap:va^/T"), conformance::net::Tap::on(&net.near, "va"));
        let ring = &port.tx_rings()[0];
        let good = frames(&[14, 60, 1514, 2048], 0);
        let bad = [0u16, 1, 13, BUFFER as u16 + 1, u16::MAX];
        for (good, bad) in good.iter().zip(bad) {
            let mut slots = ring.available();
            slots.next().expect("room").set_len_flags(bad, 0);
            let slot = slots.next().expect("room");
            slot.frame().write(0, good);
            slot.set_len_flags(good.len() as u16, 0);
            ring.advance(2);
            port.txsync().expect("bad slots are no error");
        }
        assert_same(&tap.collect(good.len()), &good);
        let rings = home.snapshot().ports.into_iter().flat_map(|port| port.rings);
        assert_eq!(rings.map(|ring| ring.bad_slots).sum::<u64>(), good.len() as u64);
        // The wire saw none of it.
        let far = net.tap();
        transmit(&port, 0, &frames(&[60; 100], 100), BUFFER);
        assert_same(&tap.collect(100), &frames(&[60; 100], 100));
        far.assert_quiet();
    });
}

/// Without host rings, and with all others, what the host sends is dropped and counted; a port that has not got
/// everything leaves it to the wire.
#[test]
fn host_packets_without_a_reader_are_dropped_or_stay_with_the_kernel() {
    isolated_with_interfaces(|home| {
        let Some(net) = Net::new(home, DIRECT, QUIET) else { return };
        let port = net.open("netmap:va");
        let before = net.far.counters("vb").expect("an interface").rx_packets;
        send_flows(&net, 1, 50);
        let dropped =
            || home.snapshot().ports.iter().flat_map(|port| &port.rings).map(|ring| ring.dropped).sum::<u64>();
        assert!(dropped() >= 50, "{}", dropped());
        assert_eq!(net.far.counters("vb").expect("an interface").rx_packets, before);
        drop(port);
        for spec in ["netmap:va/T", "netmap:va/R", "netmap:va^/T"] {
            let before = net.far.counters("vb").expect("an interface").rx_packets;
            let _port = net.open(spec);
            send_flows(&net, 1, 50);
            let arrived = net.far.counters("vb").expect("an interface").rx_packets - before;
            assert!(arrived >= 50, "{spec}: {arrived} arrived");
        }
        until_clean(&net);
    });
}

#[test]
fn unsupported_host_ring_requests_are_refused() {
    isolated_with_interfaces(|home| {
        let Some(net) = net(home, ATTACHMENTS[0], 1500) else { return };
        for (spec, errno, says) in [
            ("netmap:va^1", 22, "there is no host ring 1 (1 transmit, 1 receive host rings, from 0)"),
            ("netmap:va^1@conf:host-rings=1", 22, "there is no host ring 1"),
            ("netmap:nowhere^", 6, "no such interface"),
            ("netmap:p{1@conf:host-rings=2", 95, "host-rings"),
        ] {
            let (got, why) = net.refused(spec);
            assert!(got == errno && why.contains(says), "{spec}: {got} {why}");
        }
        for mode in [unetmap::abi::NR_REG_SW, unetmap::abi::NR_REG_NIC_SW, unetmap::abi::NR_REG_ONE_SW] {
            let refused = Port::options().mode(mode).open("netmap:p{1").expect_err("a pipe has no host rings");
            assert!(refused.errno() == 22 && refused.to_string().contains("no host rings"), "{refused}");
        }
        // The first open chooses the number of host rings; a number above the maximum is reduced.
        let one = net.open("netmap:va");
        assert_eq!(net.open("netmap:va^@conf:host-rings=4").register().nr_host_tx_rings, 1);
        drop(one);
        until("it is closed", || home.snapshot().regions.is_empty());
        let port = net.open("netmap:va^3@conf:host-tx-rings=2,host-rx-rings=4");
        assert_eq!(
            (port.tx_rings()[0].id(), port.rx_rings()[0].id()),
            (1, 4),
            "the direction with fewer gives its first"
        );
        drop(port);
        until_clean(&net);
    });
}

#[test]
fn opening_the_default_route_interface_needs_confirmation() {
    isolated_with_interfaces(|home: &Home| {
        let Some(net) = net(home, ATTACHMENTS[0], 1500) else { return };
        for (family, to) in [("-4", V4[1]), ("-6", conformance::host::V6[1])] {
            net.near.ip(&[family, "route", "add", "default", "via", to, "dev", "va"]).expect("a route");
            for spec in ["netmap:va", "netmap:va-0", "netmap:va/R"] {
                let (errno, why) = net.refused(spec);
                assert!(errno == 1 && why.contains("netmap:va*") && why.contains("UNETMAP_FORCE=1"), "{spec}: {why}");
                until_clean(&net);
            }
            // Ports that leave the host its traffic can be opened, and requests without an open are allowed.
            for spec in ["netmap:va*", "netmap:va/T", "netmap:va^"] {
                drop(net.open(spec));
            }
            let host = net.open("netmap:va^");
            drop((net.open("netmap:va"), host));
            let mut program = bridge(&net, home, 1);
            until_it_works("a bridge", &net);
            program.kill();
            // With UNETMAP_FORCE.
            let mut insists = net.command(conformance::program("pkt-gen"));
            let mut insists = conformance::home::Guard::spawn(
                insists.args(["-i", "netmap:va", "-f", "rx", "-w", "0"]).env("UNETMAP_FORCE", "1"),
            );
            until("it has the interface", || !home.snapshot().sessions.is_empty());
            insists.kill();
            until_clean(&net);
            net.near.ip(&[family, "route", "del", "default"]).expect("a route");
        }
        drop(net.open("netmap:va"));
    });
}

#[test]
fn removing_the_companion_ends_only_the_host_rings() {
    isolated_with_interfaces(|home: &Home| {
        let Some(net) = Net::new(home, DIRECT, QUIET) else { return };
        let (nic, host) = (net.open("netmap:va"), net.open("netmap:va^"));
        assert!(nic.same_region(&host));
        let name = companion(&net);
        std::thread::scope(|scope| {
            let sleeper = scope.spawn(|| host.poll(Interest::RX, None));
            std::thread::sleep(Duration::from_millis(100));
            net.near.ip(&["link", "del", &name]).expect("an interface");
            let reported = sleeper.join().expect("no panic").expect_err("a port on nothing");
            assert!(reported.errno() == 6, "{reported}");
        });
        // The interface's own rings go on.
        let tap = net.tap();
        let sent = frames(&[60; 10], 0);
        transmit(&nic, 0, &sent, BUFFER);
        assert_same(&tap.collect(10), &sent);
        tap.send_all(&sent);
        until("they come", || {
            nic.rxsync().expect("an open port");
            nic.rx_rings()[0].space() >= 10
        });
        drop((nic, host));
        until_clean(&net);
        // An obstacle to a new companion is removed.
        net.near.ip(&["link", "add", &name, "type", "veth", "peer", "name", "other"]).expect("a cable");
        let mut program = bridge(&net, home, 1);
        until_it_works("a bridge", &net);
        program.kill();
        until_it_works("the stack has it", &net);
        until_clean(&net);
    });
}

/// The name of the near end of the only companion.
#[track_caller]
fn companion(net: &Net) -> String {
    let links = net.near.ip(&["-o", "link"]).expect("ip");
    let mut names =
        links.lines().filter_map(|line| Some(line.split_whitespace().nth(1)?.split('@').next()?.to_owned()));
    names.find(|name| name.starts_with("nmh")).unwrap_or_else(|| panic!("no companion: {links}"))
}

/// The host stack answers the frames that a filter leaves to it.
#[test]
fn the_host_answers_frames_that_a_filter_leaves_to_it() {
    isolated_with_interfaces(|home| {
        let Some(net) = net(home, ATTACHMENTS[0], 1500) else { return };
        let unetmap = || net.near.command(conformance::program("unetmap"));
        let set = unetmap().args(["nic", "va", "filter", "udp port 7777"]).output().expect("unetmap runs");
        if !set.status.success() {
            let printed = String::from_utf8_lossy(&set.stderr).into_owned();
            return summary(&format!("skipped: no filter can be compiled here: {printed}"));
        }
        let port = net.open("netmap:va");
        until_it_works("what the filter leaves", &net);
        let far = net.far.run(|| UdpSocket::bind((V4[1], 0))).expect("a namespace").expect("a socket");
        far.send_to(b"for the program", (V4[0], 7777)).expect("a route");
        assert_eq!(collect(&port, 1)[0][42..], *b"for the program");
    });
}
