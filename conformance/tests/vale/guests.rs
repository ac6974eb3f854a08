// SPDX-License-Identifier: BSD-2-Clause
//! Network stacks behind virtio-net headers, like those of virtual machines, on a switch with others: the switch
//! performs the offloads of a network card where the other side needs them.

use std::io::{BufRead as _, BufReader};
use std::process::Stdio;

use conformance::home::{Guard, summary};
use conformance::net::{BUFFER, CABLE, DIRECT, Net, open_in, pings, transmit};
use conformance::request::control;
use conformance::switch::{bring_up, host_on_switch, tcp, udp, udp_server};
use conformance::{Home, isolated_with_interfaces, until};
use lab::Ns;
use rustix::process::{Pid, Signal, kill_process};
use unetmap::abi::{NETMAP_REQ_PORT_HDR_SET, NmreqPortHdr};

/// Bytes of each connection.
const BYTES: usize = 4 << 20;

/// A network stack in a namespace, behind a tap with virtio-net headers, connected to the switch by the program
/// `guest`.
struct Guest {
    carrier: Guard,
    printed: std::io::Lines<BufReader<std::process::ChildStdout>>,
    /// The offloads that the kernel supports.
    offloads: u64,
}

/// Packets in one direction: all, those without a checksum, and GSO packets of TCP over IPv4, over IPv6, and of UDP.
type Count = [u64; 5];

impl Guest {
    #[track_caller]
    fn start(ns: &Ns, port: &str, tap: &str, header: u8, addresses: &[&str]) -> Guest {
        let mut command = ns.command(env!("CARGO_BIN_EXE_guest"));
        let mut carrier =
            Guard::spawn(command.args([&format!("vale0:{port}"), tap, &header.to_string()]).stdout(Stdio::piped()));
        let mut printed = BufReader::new(carrier.0.stdout.take().expect("a pipe")).lines();
        let ready = printed.next().expect("a carrier").expect("text");
        let offloads = ready.strip_prefix("ready 0x").and_then(|hex| u64::from_str_radix(hex, 16).ok());
        bring_up(ns, tap, addresses);
        Guest { carrier, printed, offloads: offloads.unwrap_or_else(|| panic!("the carrier printed {ready}")) }
    }

    /// Stops the program; returns its counts from the guest and to it.
    #[track_caller]
    fn end(mut self) -> [Count; 2] {
        kill_process(Pid::from_child(&self.carrier.0), Signal::TERM).expect("it runs");
        let counts = [(); 2].map(|()| {
            let line = self.printed.next().expect("a line").expect("text");
            let numbers: Vec<u64> = line.split(' ').map(|n| n.parse().expect("a number")).collect();
            numbers.try_into().expect("five numbers")
        });
        assert!(self.carrier.wait().success());
        counts
    }

    /// Whether the kernel supports UDP segmentation offload.
    fn cuts_udp(&self) -> bool {
        self.offloads & 0x20 != 0
    }
}

/// Two guests with headers of 10 and 12 bytes, and a host without.
struct Three {
    net: Net,
    host: Ns,
}

const TWELVE: [&str; 2] = ["10.8.0.1", "fd08::1"];
const TEN: [&str; 2] = ["10.8.0.2", "fd08::2"];
const PLAIN: [&str; 2] = ["10.8.0.3", "fd08::3"];

impl Three {
    #[track_caller]
    fn new(home: &Home) -> Option<(Three, Guest, Guest)> {
        let net = Net::new(home, DIRECT, CABLE)?;
        let host = net.lab.namespace("host").expect("a namespace");
        let long = |all: [&str; 2]| [format!("{}/24", all[0]), format!("{}/64", all[1])];
        let [twelve, ten, plain] = [TWELVE, TEN, PLAIN].map(long);
        let a = Guest::start(&net.near, "twelve", "tap12", 12, &twelve.each_ref().map(String::as_str));
        let b = Guest::start(&net.far, "ten", "tap10", 10, &ten.each_ref().map(String::as_str));
        host_on_switch(&host, "vi0", &plain.each_ref().map(String::as_str));
        Some((Three { net, host }, a, b))
    }
}

/// Number of invalid packets that ports of the switch sent.
fn bad(home: &Home) -> u64 {
    let ports = home.snapshot().ports;
    ports.iter().flat_map(|port| [port.lost.get("bad"), port.not_received.get("bad")]).flatten().sum()
}

#[test]
fn guests_with_vnet_headers_and_hosts_exchange_packets() {
    isolated_with_interfaces(|home| {
        let Some((three, a, b)) = Three::new(home) else { return };
        let (near, far, host) = (&three.net.near, &three.net.far, &three.host);
        let pairs = [
            (near, far, TEN),
            (far, near, TWELVE),
            (near, host, PLAIN),
            (host, near, TWELVE),
            (far, host, PLAIN),
            (host, far, TEN),
        ];
        for (from, to, [v4, v6]) in pairs {
            for address in [v4, v6] {
                until("they reach each other", || pings(from, address));
                tcp(from, to, address, BYTES);
                // IP fragments made by the sender's own stack.
                let server = udp_server(to, address, 1);
                assert_eq!(udp(from, address, 9000, 9000), server.last_line(), "by UDP to {address}");
            }
        }
        assert_eq!(bad(home), 0);
        let books = home.snapshot();
        let dropped = ["vale0:twelve", "vale0:ten", "vale0:vi0"].map(|port| books.ring(port, "rx", 0).dropped);
        let offloads = a.offloads;
        let [[from_a, to_a], [from_b, to_b]] = [a.end(), b.end()];
        // The guests used checksum and segmentation offload; what the other guest supports was passed on to it.
        for (way, count) in [("from 12", from_a), ("from 10", from_b), ("to 12", to_a), ("to 10", to_b)] {
            let [_, unfinished, tcp4, tcp6, _] = count;
            assert!(unfinished > 0 && tcp4 > 0 && tcp6 > 0, "{way}: {count:?}");
        }
        summary(&format!("offloads {offloads:#x}; from 12: {from_a:?}, from 10: {from_b:?}; dropped: {dropped:?}"));
    });
}

/// UDP packets that the sender's stack leaves to be segmented, into datagrams (newer kernels) or fragments (older
/// ones).
#[test]
fn coalesced_udp_datagrams_are_split_for_hosts() {
    isolated_with_interfaces(|home| {
        let Some((three, a, b)) = Three::new(home) else { return };
        let (near, far, host) = (&three.net.near, &three.net.far, &three.host);
        for (to, [v4, v6]) in [(host, PLAIN), (far, TEN)] {
            for address in [v4, v6] {
                until("they reach each other", || pings(near, address));
                let server = udp_server(to, address, 30);
                assert_eq!(udp(near, address, 30_000, 1000), server.last_line(), "30 datagrams in a row to {address}");
            }
        }
        let cut_by_others = a.cuts_udp();
        let ([from_a, _], [_, to_b]) = (a.end(), b.end());
        if cut_by_others {
            assert!(from_a[4] >= 4 && to_b[4] >= 2, "from 12: {from_a:?}, to 10: {to_b:?}");
        } else {
            summary("no rows of datagrams: this kernel's tap does not take them (6.2 and later do)");
        }
        fragments(home, &three);
    });
}

/// One datagram with a header that requests fragmentation (UFO), sent to the host stack, which reassembles it.
#[track_caller]
fn fragments(home: &Home, three: &Three) {
    let maker = open_in(&three.net.near, "vale0:maker");
    let header = NmreqPortHdr { nr_hdr_len: 12, ..Default::default() };
    control(NETMAP_REQ_PORT_HDR_SET, "vale0:maker", header).expect("a port");
    let mac = three.host.mac("vi0").expect("an interface");
    let payload: Vec<u8> = (0..8000u32).map(|i| ((i * 7) >> 3) as u8).collect();
    // Unicast; then broadcast, which each port receives in the form that it supports.
    for mac in [mac, [0xff; 6]] {
        let server = udp_server(&three.host, PLAIN[0], 1);
        transmit(&maker, 0, &[datagram(mac, &payload)], BUFFER);
        let printed = server.last_line();
        assert!(printed.starts_with("[8000] "), "{printed}");
        let digest = three.host.tool(
            "python3",
            &["-c", "import hashlib; print(hashlib.sha256(bytes(((i*7)>>3)&255 for i in range(8000))).hexdigest())"],
        );
        assert_eq!(printed.trim_start_matches("[8000] "), digest.expect("python3").trim());
    }
    assert_eq!(bad(home), 0);
}

/// A datagram from 10.8.0.9 to port 5002 of the host, to be fragmented into 1480 bytes each (`VIRTIO_NET_HDR_GSO_UDP`).
fn datagram(to: [u8; 6], payload: &[u8]) -> Vec<u8> {
    let mut bytes = vec![1, 3];
    let words = [34, 1480u16, 34, 6].map(u16::to_le_bytes).concat();
    bytes.extend(words);
    bytes.extend([0, 0]);
    bytes.extend(to);
    bytes.extend([2, 0, 0, 0, 0, 9, 0x08, 0x00]);
    let udp = (8 + payload.len() as u16).to_be_bytes();
    let total = (28 + payload.len() as u16).to_be_bytes();
    bytes.extend([0x45, 0, total[0], total[1], 0x77, 0x77, 0, 0, 64, 17, 0, 0, 10, 8, 0, 9, 10, 8, 0, 3]);
    bytes.extend([0x13, 0x8a, 0x13, 0x8a, udp[0], udp[1], 0, 0]);
    bytes.extend(payload);
    bytes
}
