// SPDX-License-Identifier: BSD-2-Clause
//! Interfaces whose packets begin with a virtio-net header.

use conformance::home::{Guard, summary};
use conformance::host::CABLE;
use conformance::net::{BUFFER, DIRECT, MEDIATED, Net, Tap, assert_same, collect, frames, transmit};
use conformance::packet::{assert_checksums, gso_packet};
use conformance::traffic::open;
use conformance::{Home, isolated_with_interfaces, program, until};
use rustix::process::Signal;
use unetmap::Port;
use unetmap::abi::{NETMAP_REQ_PORT_HDR_GET, NETMAP_REQ_PORT_HDR_SET, NR_ACCEPT_VNET_HDR, NmreqPortHdr};
use unetmap::errno::{EBUSY, EINVAL, EIO, ENXIO};

/// How a daemon opens interfaces: its policy, and an argument.
const WAYS: [(&str, &str, &str); 3] =
    [("native", DIRECT, "native"), ("generic", DIRECT, "generic"), ("mediated", MEDIATED, "best")];

fn request(net: &Net, request: u16, port: &str, bytes: u32) -> Result<u32, i32> {
    let body = NmreqPortHdr { nr_hdr_len: bytes, ..Default::default() };
    let answer = net.near.run(|| conformance::request::control(request, port, body)).expect("a namespace");
    answer.map(|(_, body)| body.nr_hdr_len)
}

/// Sets the header of a port that is not open.
pub(super) fn set(net: &Net, port: &str, bytes: u32) -> Result<(), i32> {
    request(net, NETMAP_REQ_PORT_HDR_SET, port, bytes).map(drop)
}

fn get(net: &Net, port: &str) -> Result<u32, i32> {
    request(net, NETMAP_REQ_PORT_HDR_GET, port, 0)
}

/// Opens a port and accepts its header.
fn accepting(net: &Net, spec: &str) -> Port {
    let mut opened = None;
    until("it is open", || {
        let result = net.near.run(|| Port::options().flags(NR_ACCEPT_VNET_HDR).open(spec)).expect("a namespace");
        opened = result.inspect_err(|e| assert_eq!(e.errno(), EBUSY, "{e}")).ok();
        opened.is_some()
    });
    opened.expect("it is open")
}

/// Checks frames that are the segments of a packet of 2500 bytes.
fn assert_segments(got: &[Vec<u8>]) {
    assert_eq!(got.iter().map(Vec::len).collect::<Vec<_>>(), [1054, 1054, 554]);
    for (i, frame) in got.iter().enumerate() {
        assert_checksums(frame);
        assert_eq!(frame[38..42], (5 + 1000 * i as u32).to_be_bytes());
    }
}

/// The TCP frames that arrive on a tap, up to `n`.
fn tcp(tap: &Tap, n: usize) -> Vec<Vec<u8>> {
    let next = || tap.next_of_any(conformance::home::LIMIT).expect("a frame");
    let frames = std::iter::repeat_with(next).filter(|frame| frame[12..14] == [8, 0] && frame[23] == 6);
    frames.take(n).collect()
}

fn packets_have_headers(home: &Home, (name, policy, admode): (&str, &str, &str)) {
    let Some(net) = Net::with(home, policy, CABLE, &["--admode", admode]) else { return };
    for (port, ns, interface) in [("netmap:va", &net.far, "vb"), ("netmap:va^", &net.near, "va")] {
        for bytes in [10, 12] {
            assert_eq!((set(&net, "va", bytes), get(&net, "va")), (Ok(()), Ok(bytes)), "{name}");
            let (open, tap, header) = (accepting(&net, port), Tap::on(ns, interface), vec![0; bytes as usize]);
            let sent = frames(&[60, 1514, 100], 7);
            let with_headers: Vec<_> = sent.iter().map(|frame| [&header, &frame[..]].concat()).collect();
            transmit(&open, 0, &with_headers, BUFFER);
            assert_same(&tap.collect(sent.len()), &sent);
            tap.send_all(&sent);
            let of_test = |packet: &Vec<u8>| packet[header.len() + 12..][..2] == [0x88, 0xb5];
            let mut got = Vec::new();
            while got.len() < sent.len() {
                got.extend(collect(&open, 1).into_iter().filter(of_test));
            }
            assert_same(&got, &with_headers);
            // What the header requests is done: the segments and their checksums, and a checksum alone.
            transmit(&open, 0, &[gso_packet(2500, header.len())], BUFFER);
            assert_segments(&tcp(&tap, 3));
            let mut unfinished = gso_packet(500, header.len());
            unfinished[1] = 0;
            // The IP header's checksum is the sender's, the field of the other holds the sum of the pseudo header.
            let ip = header.len() + 14;
            let sum = |bytes: &[u8], first: u32| {
                let all =
                    bytes.chunks(2).fold(first, |sum, word| sum + u32::from(u16::from_be_bytes([word[0], word[1]])));
                (all & 0xffff) + (all >> 16)
            };
            let of_ip = !(sum(&unfinished[ip..ip + 20], 0) as u16);
            unfinished[ip + 10..ip + 12].copy_from_slice(&of_ip.to_be_bytes());
            let pseudo = sum(&unfinished[ip + 12..ip + 20], 6 + 520) as u16;
            unfinished[ip + 36..ip + 38].copy_from_slice(&pseudo.to_be_bytes());
            transmit(&open, 0, &[unfinished], BUFFER);
            tcp(&tap, 1).iter().for_each(|frame| assert_checksums(frame));
            // A header that does not match its packet loses the packet, and no other.
            let mut wrong = gso_packet(2500, header.len());
            wrong[1] = 77;
            transmit(&open, 0, &[wrong, with_headers[0].clone()], BUFFER);
            assert_same(&tap.collect(1), &sent[..1]);
            // They are counted by reason; the header of the last one is cut off.
            transmit(&open, 0, &[vec![0; bytes as usize - 1], with_headers[0].clone()], BUFFER);
            assert_same(&tap.collect(1), &sent[..1]);
            let ports = home.snapshot().ports;
            let lost = ports.into_iter().find(|port| port.kind == "mediated").expect("the port").lost;
            assert_eq!(
                lost,
                [("bad", 1), ("long", 0), ("short", 1)].map(|(why, n)| (why.to_owned(), n)).into(),
                "{name}"
            );
            drop(open);
            conformance::until("the interface is closed", || set(&net, "va", 0) == Ok(()));
        }
    }
    summary(&format!("{name:<10} header of 10 and 12 bytes, interface and host rings"));
}

#[test]
fn packets_of_interfaces_have_the_header_that_was_set() {
    for way in WAYS {
        isolated_with_interfaces(|home| packets_have_headers(home, way));
    }
}

#[test]
fn headers_of_interfaces_are_set_before_they_are_opened() {
    isolated_with_interfaces(|home| {
        let Some(net) = Net::new(home, DIRECT, CABLE) else { return };
        assert_eq!((set(&net, "va", 11), set(&net, "nothing", 12)), (Err(EINVAL), Err(ENXIO)));
        assert_eq!(get(&net, "va"), Ok(0));
        let port = net.open("netmap:va");
        assert_eq!((set(&net, "va", 0), set(&net, "va", 12)), (Ok(()), Err(EBUSY)));
        drop(port);
        until("the interface is closed", || set(&net, "va", 12) == Ok(()));
        let (errno, why) = net.refused("netmap:va");
        assert!(errno == EIO && why.contains("12 bytes"), "{why}");
        // `unetmap nic` sets and removes it.
        net.near
            .tool(program("unetmap").to_str().expect("a path"), &["nic", "va", "header", "0"])
            .expect("unetmap nic");
        drop(net.open("netmap:va"));
        // An interface takes it along when it is removed.
        assert_eq!(set(&net, "va", 10), Ok(()));
        net.near.ip(&["link", "del", "va"]).expect("an interface");
        until("nothing is set", || get(&net, "va").is_err());
    });
}

#[test]
fn a_bridge_between_an_interface_and_a_switch_leaves_offloads_to_the_last() {
    isolated_with_interfaces(|home| {
        let Some(net) = Net::new(home, DIRECT, CABLE) else { return };
        assert_eq!(set(&net, "va", 12), Ok(()));
        let interface = accepting(&net, "netmap:va");
        let guest = net.near.run(|| open("vale0:guest")).expect("a namespace");
        assert_eq!(set(&net, "vale0:guest", 12), Ok(()));
        // In the region of the interface, so that the bridge exchanges buffers.
        let up = format!("vale0:up@{}", interface.mem_id());
        let _forwarder = net.near.run(|| open(&up)).expect("a namespace");
        let mut bridge = Guard::spawn(net.command(program("bridge")).args(["-w", "0", "-i", &up, "-i", "netmap:va"]));
        assert!(!bridge.wait().success(), "only one of the ports has a header");
        assert_eq!(set(&net, "vale0:up", 12), Ok(()));
        let mut bridge = net.start(home, program("bridge"), &["-w", "0", "-i", &up, "-i", "netmap:va"], 2);
        drop(interface);
        let tap = Tap::on(&net.far, "vb");
        transmit(&guest, 0, &[gso_packet(2500, 12)], BUFFER);
        assert_segments(&tcp(&tap, 3));
        let sent = frames(&[60, 1000], 1);
        tap.send_all(&sent);
        let wanted: Vec<_> = sent.iter().map(|frame| [&[0; 12], &frame[..]].concat()).collect();
        let of_test = |packet: &Vec<u8>| packet[24..26] == [0x88, 0xb5];
        let mut got = Vec::new();
        while got.len() < sent.len() {
            got.extend(collect(&guest, 1).into_iter().filter(of_test));
        }
        assert_same(&got, &wanted);
        bridge.signal(Signal::TERM);
        assert!(bridge.wait().success());
    });
}
