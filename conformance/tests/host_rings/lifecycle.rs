// SPDX-License-Identifier: BSD-2-Clause
//! An interface with host rings: programs start and stop while a stream runs, and the administrator manages the
//! interface as before.

use std::net::UdpSocket;
use std::time::Duration;

use conformance::home::summary;
use conformance::host::{
    ATTACHMENTS, Attachment, V4, bridge, byte_at, during_a_stream, net, stream, until_clean, until_it_works,
};
use conformance::net::{Tap, collect};
use conformance::replace::replace;
use conformance::{Home, isolated_with_interfaces, until};
use nix::sys::socket::{setsockopt, sockopt};
use rustix::process::Signal;

/// Programs started and stopped.
const CYCLES: u32 = 50;
fn fifty_programs(home: &Home, attachment: Attachment) {
    let Some(net) = net(home, attachment, 1500) else { return };
    let bytes = during_a_stream([&net.near, &net.far], V4[0], |until_more| {
        for turn in 0..CYCLES {
            let mut program = bridge(&net, home, 1);
            until_more("the stream crosses a program");
            program.signal(if turn % 2 == 0 { Signal::TERM } else { Signal::KILL });
            program.wait();
            until_more("the stream crosses none");
        }
    });
    until_clean(&net);
    let regions = home.snapshot().regions;
    assert!(regions.is_empty(), "{regions:?}");
    let name = attachment.name;
    summary(&format!("{name}: programs {CYCLES} under one connection, {bytes} bytes, all in their places; left: 0"));
}

#[test]
fn fifty_programs_open_and_close_under_a_tcp_stream_native() {
    isolated_with_interfaces(|home| fifty_programs(home, ATTACHMENTS[0]));
}

#[test]
fn fifty_programs_open_and_close_under_a_tcp_stream_generic() {
    isolated_with_interfaces(|home| fifty_programs(home, ATTACHMENTS[2]));
}

/// Replaces the daemon while a program joins interface and stack, and a stream crosses it.
fn replaced(home: &Home, attachment: Attachment) {
    const REPLACEMENTS: u32 = 5;
    let Some(net) = net(home, attachment, 1500) else { return };
    let mut program = bridge(&net, home, 1);
    let bytes = during_a_stream([&net.near, &net.far], V4[0], |until_more| {
        until_more("the stream crosses the program");
        for _ in 0..REPLACEMENTS {
            replace(home);
            until_more("the stream goes on");
        }
        // Longer than the kernel's programs redirect frames if nobody renews their deadline: then the program would
        // receive nothing.
        std::thread::sleep(Duration::from_secs(2));
        let crossed =
            || home.snapshot().ports.iter().flat_map(|port| &port.rings).map(|ring| ring.crossed).sum::<u64>();
        let before = crossed();
        until("the stream still crosses the program", || crossed() > before + 100);
    });
    program.signal(Signal::TERM);
    program.wait();
    until_clean(&net);
    until("all regions are freed", || home.snapshot().regions.is_empty());
    let name = attachment.name;
    summary(&format!(
        "{name}: the daemon was replaced {REPLACEMENTS} times under one connection, {bytes} bytes; left: 0"
    ));
}

#[test]
fn a_stream_crosses_host_rings_while_the_daemon_is_replaced_native() {
    isolated_with_interfaces(|home| replaced(home, ATTACHMENTS[0]));
}

#[test]
fn a_stream_crosses_host_rings_while_the_daemon_is_replaced_generic() {
    isolated_with_interfaces(|home| replaced(home, ATTACHMENTS[2]));
}

/// Datagrams that the stack sends as one, for the interface to cut.
#[test]
fn coalesced_datagrams_are_split() {
    isolated_with_interfaces(|home| {
        const LEN: usize = 1000;
        let Some(net) = net(home, ATTACHMENTS[0], 1500) else { return };
        let far = net.far.mac("vb").expect("a MAC").map(|byte| format!("{byte:02x}")).join(":");
        net.near.ip(&["neigh", "replace", V4[1], "lladdr", &far, "dev", "va"]).expect("a neighbour");
        let port = net.open("netmap:va^");
        let socket = net.near.run(|| UdpSocket::bind((V4[0], 0))).expect("a namespace").expect("a socket");
        setsockopt(&socket, sockopt::UdpGsoSegment, &(LEN as i32)).expect("segments of datagrams");
        let sent: Vec<u8> = (0..20 * LEN as u64 + 300).map(byte_at).collect();
        socket.send_to(&sent, (V4[1], 9)).expect("a route");
        let got: Vec<Vec<u8>> = collect(&port, 21).into_iter().filter(|frame| frame[12..14] == [8, 0]).collect();
        assert_eq!(
            got.iter().map(|frame| frame.len() - 42).collect::<Vec<_>>(),
            [[LEN; 20].as_slice(), &[300]].concat()
        );
        assert!(got.iter().flat_map(|frame| &frame[42..]).eq(&sent), "other bytes");
    });
}

/// An administrator changes an interface while a program is between it and the wire.
#[test]
fn the_administrator_can_manage_the_interface_as_before() {
    isolated_with_interfaces(|home| {
        for attachment in [ATTACHMENTS[0], ATTACHMENTS[2]] {
            let Some(net) = net(home, attachment, 1500) else { return };
            let program = bridge(&net, home, 1);
            until_it_works("a bridge", &net);
            let ip = |words: &str| {
                net.near.ip(&words.split(' ').collect::<Vec<_>>()).unwrap_or_else(|e| panic!("{e}"));
            };
            let pings =
                |to: &str, from: &str| net.near.tool("ping", &["-n", "-c", "1", "-W", "1", "-I", from, to]).is_ok();
            // Addresses and routes.
            ip("addr add 10.9.0.77/24 dev va");
            until("a second address", || pings(V4[1], "10.9.0.77"));
            ip("addr del 10.9.0.77/24 dev va");
            net.far.ip(&["addr", "add", "10.99.0.1/32", "dev", "lo"]).expect("an address");
            ip("route add 10.99.0.0/24 via 10.9.0.2 dev va");
            until("a route", || pings("10.99.0.1", V4[0]));
            // Down and up.
            ip("link set va down");
            assert!(!pings(V4[1], V4[0]), "{}: a link that is down", attachment.name);
            ip("link set va up");
            until_it_works("the link is up again", &net);
            net.far.ip(&["link", "set", "vb", "down"]).expect("an interface");
            net.far.ip(&["link", "set", "vb", "up"]).expect("an interface");
            until_it_works("the carrier is back", &net);
            // Sizes, addresses of frames, offloads.
            ip("link set va mtu 1200");
            assert!(net.near.tool("ping", &["-c", "1", "-W", "1", "-M", "do", "-s", "1300", V4[1]]).is_err());
            until_it_works("a smaller MTU", &net);
            ip("link set va mtu 1500");
            until("the MTU of before", || {
                net.near.tool("ping", &["-n", "-c", "1", "-W", "1", "-M", "do", "-s", "1472", V4[1]]).is_ok()
            });
            ip("link set va address 02:00:00:00:00:77");
            net.far.ip(&["neigh", "flush", "dev", "vb"]).expect("neighbours");
            until_it_works("another address of frames", &net);
            for (feature, state) in [("tso", "off"), ("tx", "off"), ("tx", "on"), ("tso", "on")] {
                net.near.tool("ethtool", &["-K", "va", feature, state]).expect("ethtool");
                stream(&net.near, &net.far, V4[1]).unwrap_or_else(|e| panic!("{feature} {state}: {e}"));
            }
            drop(program);
            until_it_works("the stack has it", &net);
            net.far.ip(&["addr", "del", "10.99.0.1/32", "dev", "lo"]).expect("an address");
            until_clean(&net);
            drop(net);
            home.end_daemon();
        }
    });
}

/// A request for an address as clients make it, from a socket of packets on an interface without one, and the answer,
/// which a server of the far stack sends to all.
#[test]
fn dhcp_works_through_host_rings() {
    isolated_with_interfaces(|home: &Home| {
        for attachment in [ATTACHMENTS[0], ATTACHMENTS[2]] {
            let Some(net) = net(home, attachment, 1500) else { return };
            let program = bridge(&net, home, 1);
            until_it_works("a bridge", &net);
            net.near.ip(&["addr", "flush", "dev", "va"]).expect("addresses");
            let server = net.far.run(|| UdpSocket::bind("0.0.0.0:67")).expect("a namespace").expect("a socket");
            server.set_broadcast(true).expect("a socket");
            setsockopt(&server, sockopt::BindToDevice, &"vb".into()).expect("a socket");
            server.set_read_timeout(Some(Duration::from_millis(200))).expect("a socket");
            let client = Tap::on(&net.near, "va");
            let sent = discover(net.near.mac("va").expect("an address"));
            let mut got = vec![0; 1500];
            let n = loop {
                client.send(&sent);
                match server.recv_from(&mut got) {
                    Ok((n, from)) => {
                        assert_eq!(from.to_string(), "0.0.0.0:68");
                        break n;
                    }
                    Err(e) => assert!(e.kind() == std::io::ErrorKind::WouldBlock, "{e}"),
                }
            };
            assert_eq!(got[..n], sent[42..]);
            // An answer, with the address in it.
            got[0] = 2;
            got[16..20].copy_from_slice(&[10, 9, 0, 50]);
            server.send_to(&got[..n], "255.255.255.255:68").expect("a route");
            until("the answer comes", || {
                client.next_of_any(Duration::from_millis(50)).is_some_and(|frame| {
                    frame.len() >= 42 + n && frame[..6] == [0xff; 6] && frame[42..42 + n] == got[..n]
                })
            });
            net.near.ip(&["addr", "add", "10.9.0.50/24", "dev", "va"]).expect("an address");
            until("it is used", || net.near.tool("ping", &["-n", "-c", "1", "-W", "1", V4[1]]).is_ok());
            drop(program);
            until_clean(&net);
            drop(net);
            home.end_daemon();
        }
    });
}

/// DHCPDISCOVER of RFC 2131, as a frame.
fn discover(mac: [u8; 6]) -> Vec<u8> {
    let mut message = vec![1, 1, 6, 0, 0x12, 0x34, 0x56, 0x78];
    message.resize(28, 0);
    message.extend(mac);
    message.resize(236, 0);
    message.extend([99, 130, 83, 99, 53, 1, 1, 255]);
    let mut frame = [&[0xff; 6][..], &mac, &[8, 0]].concat();
    let (ip, udp) = ((28 + message.len()) as u16, (8 + message.len()) as u16);
    let mut header = vec![0x45, 0];
    header.extend(ip.to_be_bytes());
    header.extend([0, 0, 0, 0, 64, 17, 0, 0, 0, 0, 0, 0, 255, 255, 255, 255]);
    let sum: u32 = header.chunks(2).map(|two| u32::from(two[0]) << 8 | u32::from(two[1])).sum();
    let sum = !((sum & 0xffff) + (sum >> 16)) as u16;
    header[10..12].copy_from_slice(&sum.to_be_bytes());
    frame.extend(header);
    frame.extend([0, 68, 0, 67]);
    frame.extend(udp.to_be_bytes());
    // No sum, which UDP permits.
    frame.extend([0, 0]);
    frame.extend(message);
    frame
}
