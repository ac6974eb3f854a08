// SPDX-License-Identifier: BSD-2-Clause
//! `unetmap scrub --return`: what passes leaves within GRE or with a VLAN tag, and the kernel at the other end takes it
//! out.

use std::net::UdpSocket;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Duration;

use conformance::forwarder::{Forwarder, Line};
use conformance::home::{LIMIT, summary};
use conformance::host::stream;
use conformance::net::{Tap, transmit};
use conformance::stop::Stop;
use conformance::traffic::open;
use conformance::{isolated, isolated_with_interfaces, program, until};
use lab::Ns;
use rustix::net::{AddressFamily, RecvFlags, SocketFlags, SocketType, ipproto, recv, socket_with};
use serde_json::Value;

use super::scrub::{MACS, dropped, frame, scrub, taken};

const GRE4: &str = "gre:10.8.0.1,10.8.0.2";
const GRE6: &str = "gre:fd08::1,fd08::2";

/// IPv6 with UDP and so many bytes of payload.
fn frame6(payload: usize) -> Vec<u8> {
    let udp = (8 + payload as u16).to_be_bytes();
    let mut bytes = [&MACS.concat()[..], &[0x86, 0xdd, 0x6b, 0x90, 0, 0], &udp, &[17, 64]].concat();
    bytes.extend([[0xfd, 9], [0, 0], [0, 0], [0, 0], [0, 0], [0, 0], [0, 0], [0, 1]].concat());
    bytes.extend([[0xfd, 9], [0, 0], [0, 0], [0, 0], [0, 0], [0, 0], [0, 0], [0, 2]].concat());
    bytes.extend([&[0x13, 0x88, 0, 53][..], &udp, &[0, 0]].concat());
    bytes.extend((0..payload).map(|i| i as u8));
    bytes
}

/// IPv4 with UDP, `len` bytes with its header, that may be fragmented or not.
fn frame4(len: u16, whole: bool) -> Vec<u8> {
    let mut bytes = frame(MACS, [10, 1, 0, 1], 1, [5000, 53], None);
    bytes[16..18].copy_from_slice(&len.to_be_bytes());
    bytes[38..40].copy_from_slice(&(len - 20).to_be_bytes());
    (bytes[15], bytes[20]) = (0xb9, if whole { 0x40 } else { 0 });
    bytes[24..26].fill(0);
    let sum = !folded(&bytes[14..34]);
    bytes[24..26].copy_from_slice(&sum.to_be_bytes());
    bytes.extend((bytes.len()..14 + usize::from(len)).map(|i| i as u8).collect::<Vec<_>>());
    bytes
}

/// The sum of RFC 1071: all ones of a header with its checksum.
fn folded(bytes: &[u8]) -> u16 {
    let sum: u32 = bytes.chunks(2).map(|pair| u32::from(pair[0]) << 8 | u32::from(pair[1])).sum();
    ((sum & 0xffff) + (sum >> 16)) as u16
}

fn arp() -> Vec<u8> {
    [&MACS.concat()[..], &[8, 6], &[7; 46]].concat()
}

/// Sends frames at the wire, or at the inside; returns what comes out of the inside, what comes out of the wire, and
/// the summary.
#[track_caller]
fn through(args: &[&str], frames: &[Vec<u8>], is_back: bool, ends: [usize; 2]) -> ([Vec<Vec<u8>>; 2], Value) {
    let mut command = scrub(&["netmap:a}1", "netmap:b{1", "-w", "0"]);
    let running = Forwarder::start(command.args(args));
    let (wire, inside) = (open("netmap:a{1"), open("netmap:b}1"));
    // In slots of 700 bytes, so that longer packets have several.
    transmit(if is_back { &inside } else { &wire }, 0, frames, 700);
    let mut got = [Vec::new(), Vec::new()];
    until("the packets come out", || {
        got[0].extend(taken(&inside));
        got[1].extend(taken(&wire));
        got[0].len() >= ends[0] && got[1].len() >= ends[1]
    });
    let last = running.summary();
    assert_eq!([0, 1].map(|i| got[i].len()), ends, "{last}");
    (got, last)
}

/// Checks a packet within GRE; returns the packet.
#[track_caller]
fn within(got: &[u8], sent: &[u8], v6: bool, whole: bool, inner: u16, class: u8) -> Vec<u8> {
    assert_eq!(got[..12], sent[..12], "Ethernet addresses");
    let (outer, gre) = match v6 {
        true => (&got[14..54], &got[54..]),
        false => (&got[14..34], &got[34..]),
    };
    assert_eq!(gre[..4], [0, 0, (inner >> 8) as u8, inner as u8], "GRE");
    if v6 {
        assert_eq!((&got[12..14], outer[0], outer[1]), (&[0x86, 0xdd][..], 0x60 | class >> 4, class << 4));
        assert_eq!((usize::from(outer[4]) << 8 | usize::from(outer[5]), outer[6]), (gre.len(), 47));
        let [local, remote] = ["fd08::1", "fd08::2"].map(|text| text.parse::<std::net::Ipv6Addr>().expect("one"));
        assert_eq!(outer[8..40], [local.octets(), remote.octets()].concat());
    } else {
        assert_eq!((&got[12..14], outer[0], outer[1]), (&[8, 0][..], 0x45, class));
        assert_eq!((usize::from(outer[2]) << 8 | usize::from(outer[3]), outer[9]), (20 + gre.len(), 47));
        assert_eq!((outer[6], folded(outer)), (if whole { 0x40 } else { 0 }, 0xffff), "flags and checksum");
        assert_eq!(outer[12..20], [10, 8, 0, 1, 10, 8, 0, 2]);
    }
    gre[4..].to_vec()
}

#[test]
fn clean_packets_leave_within_gre() {
    isolated(|_| {
        for (way, v6) in [(GRE4, false), (GRE6, true)] {
            let mut multicast = frame4(40, true);
            multicast[0] = 1;
            let mut tagged = frame4(1400, false);
            tagged.splice(12..12, [0x81, 0, 0, 9]);
            // 40 bytes and padding; several slots; IPv6; and what is of the link.
            let sent = [frame4(40, true), frame4(1400, false), frame6(1000), tagged, multicast, arp()];
            let ([got, back], last) = through(&["--return", way], &sent, false, [6, 0]);
            assert_eq!(within(&got[0], &sent[0], v6, true, 0x0800, 0xb9), sent[0][14..54]);
            assert_eq!(within(&got[1], &sent[1], v6, false, 0x0800, 0xb9), sent[1][14..]);
            assert_eq!(within(&got[2], &sent[2], v6, true, 0x86dd, 0xb9), sent[2][14..]);
            assert_eq!(got[3][12..16], [0x81, 0, 0, 9], "the tag stays before the packet outside");
            let without = [&got[3][..12], &got[3][16..]].concat();
            assert_eq!(within(&without, &sent[1], v6, false, 0x0800, 0xb9), sent[1][14..]);
            assert_eq!((&got[4..], back.len()), (&sent[4..], 0));
            let bytes: usize = got[..4].iter().map(Vec::len).sum();
            let returned = &last["returned"];
            assert_eq!((&returned["packets"], &returned["bytes"]), (&4.into(), &bytes.into()), "{last}");
            assert_eq!(last["passed"]["packets"], 6, "{last}");
        }
        // To other destinations packets leave as they came.
        let mut other = frame4(100, true);
        other[33] = 77;
        let sum = !folded(&[&other[14..24], &[0, 0], &other[26..34]].concat());
        other[24..26].copy_from_slice(&sum.to_be_bytes());
        let sent = [other, frame4(100, true), frame6(10)];
        let to = ["--return", GRE4, "--return-to", "10.9.0.1,fd09::/64"];
        let ([got, _], last) = through(&to, &sent, false, [3, 0]);
        assert_eq!((&got[0], &last["returned"]["packets"]), (&sent[0], &2.into()));
        within(&got[1], &sent[1], false, true, 0x0800, 0xb9);
        within(&got[2], &sent[2], false, true, 0x86dd, 0xb9);
    });
}

#[test]
fn clean_frames_leave_with_a_tag_and_come_back_without() {
    isolated(|_| {
        let sent = [frame4(40, true), frame4(1400, false), frame6(1000), arp()];
        let with_tag = |frame: &Vec<u8>, id: u8| {
            let mut frame = frame.clone();
            frame.splice(12..12, [0x81, 0, 0, id]);
            frame
        };
        let ([got, _], last) = through(&["--return", "vlan:5"], &sent, false, [4, 0]);
        assert_eq!(got, sent.each_ref().map(|frame| with_tag(frame, 5)));
        assert_eq!(last["returned"]["packets"], 4, "{last}");
        // A tag of another VLAN is another's; one more is below ours.
        let twice = with_tag(&with_tag(&sent[0], 7), 5);
        let back = [with_tag(&sent[1], 5), with_tag(&sent[3], 5), with_tag(&sent[2], 6), sent[0].clone(), twice];
        let ([_, got], _) = through(&["--return", "vlan:5"], &back, true, [0, 5]);
        let wanted = [sent[1].clone(), sent[3].clone(), with_tag(&sent[2], 6), sent[0].clone(), with_tag(&sent[0], 7)];
        assert_eq!(got, wanted);
        // Those to some destinations alone: nothing else has a tag.
        let to = ["--return", "vlan:5", "--return-to", "10.9.0.0/24"];
        let ([got, _], _) = through(&to, &sent, false, [4, 0]);
        assert_eq!(got[..2], [with_tag(&sent[0], 5), with_tag(&sent[1], 5)]);
        assert_eq!(got[2..], sent[2..]);
    });
}

/// A packet that has no room leaves in pieces if it may be fragmented; else it is counted, and its sender is told what
/// has room, ten times a second.
#[test]
fn packets_without_room_are_fragmented_or_told_and_counted() {
    isolated(|_| {
        let mut sent = vec![frame4(977, true); 30];
        // It would be five pieces.
        sent.extend([frame4(977, false), frame4(976, true), frame4(976, false), frame4(4200, false)]);
        let args = ["--return", GRE4, "--return-mtu", "1000", "--attack", "0"];
        let ([got, back], last) = through(&args, &sent, false, [4, 10]);
        let pieces = [0, 1].map(|i| within(&got[i], &sent[30], false, false, 0x0800, 0xb9));
        assert_eq!(pieces.each_ref().map(Vec::len), [972, 25]);
        assert_eq!(
            pieces.each_ref().map(|piece| (folded(&piece[..20]), [piece[6], piece[7]])),
            [(0xffff, [0x20, 0]), (0xffff, [0, 119])]
        );
        assert_eq!([&pieces[0][20..], &pieces[1][20..]].concat(), sent[30][34..]);
        assert_eq!(within(&got[2], &sent[31], false, true, 0x0800, 0xb9), sent[31][14..]);
        assert_eq!(within(&got[3], &sent[32], false, false, 0x0800, 0xb9), sent[32][14..]);
        let bytes: usize = got.iter().map(Vec::len).sum();
        assert_eq!((dropped(&last, "too-big"), &last["returned"]["packets"]), (31, &3.into()), "{last}");
        assert_eq!(last["returned"]["bytes"], bytes, "{last}");
        let counts = [&last["attacks"], &last["sources"], &last["replies"]];
        assert_eq!(counts, [&0.into(), &Value::Array(vec![]), &10.into()], "{last}");
        // Type 3, code 4, and 976 bytes; from the destination to the source.
        assert_eq!((&back[0][34..36], &back[0][38..42]), (&[3, 4][..], &[0, 0, 3, 208][..]));
        assert_eq!(back[0][..12], [MACS[1], MACS[0]].concat());
        assert_eq!(back[0][26..34], [10, 9, 0, 1, 10, 1, 0, 1]);

        let args = ["--return", GRE6, "--return-mtu", "1000"];
        let ([_, back], last) = through(&args, &[frame6(908), frame6(909)], false, [1, 1]);
        assert_eq!((&back[0][54..56], &back[0][58..62]), (&[2, 0][..], &[0, 0, 3, 188][..]));
        assert_eq!((dropped(&last, "too-big"), &last["passed"]["packets"]), (1, &1.into()), "{last}");
    });
}

/// The end of GRE in a namespace, which takes packets out.
enum Outlet {
    /// The kernel's device.
    Device,
    /// Where the kernel has none: its raw sockets, which check the packet outside; each packet comes in by a veth pair.
    Raw(OwnedFd, Tap, [[u8; 6]; 2]),
}

impl Outlet {
    fn new(right: &Ns, v6: bool) -> Outlet {
        let (kind, local, remote) = if v6 { ("ip6gre", "fd08::2", "fd08::1") } else { ("gre", "10.8.0.2", "10.8.0.1") };
        let address = format!("{local}{}", if v6 { "/128" } else { "/32" });
        let address = ["address", "add", &address, "dev", "right0"];
        right.ip(&[&address[..], if v6 { &["nodad"][..] } else { &[] }].concat()).expect("an address");
        let made = right.ip(&["link", "add", "out0", "type", kind, "local", local, "remote", remote]);
        if made.is_ok() {
            right.ip(&["link", "set", "out0", "up"]).expect("a device");
            enable_ipv6(right, "out0");
            return Outlet::Device;
        }
        right.ip(&["link", "add", "in0", "type", "veth", "peer", "name", "in1"]).expect("a veth pair");
        for name in ["in1", "in0"] {
            enable_ipv6(right, name);
            right.ip(&["link", "set", name, "up"]).expect("a veth pair");
        }
        right.wait_up("in0").expect("a veth pair");
        let family = if v6 { AddressFamily::INET6 } else { AddressFamily::INET };
        let raw = || socket_with(family, SocketType::RAW, SocketFlags::CLOEXEC, Some(ipproto::GRE));
        let socket = right.run(raw).expect("a namespace").expect("a raw socket");
        let macs = [right.mac("in1"), right.mac("in0")].map(|mac| mac.expect("an interface"));
        Outlet::Raw(socket, Tap::on(right, "in0"), macs)
    }

    /// Takes packets out until `stop`.
    fn run(&self, v6: bool, stop: &AtomicBool) {
        let Outlet::Raw(socket, tap, macs) = self else { return };
        let mut bytes = [0; 2048];
        while !stop.load(Relaxed) {
            let Ok((n, _)) = recv(socket, &mut bytes, RecvFlags::DONTWAIT) else {
                std::thread::sleep(Duration::from_micros(200));
                continue;
            };
            // The kernel gives the header of IPv4, and not that of IPv6.
            let gre = &bytes[if v6 { 0 } else { 20 }..n];
            assert_eq!(gre[..2], [0, 0]);
            tap.send(&[&macs.concat()[..], &gre[2..]].concat());
        }
    }
}

fn enable_ipv6(ns: &Ns, interface: &str) {
    ns.tool("sysctl", &["-q", "-w", &format!("net.ipv6.conf.{interface}.disable_ipv6=0")]).expect("IPv6");
}

/// A line with IPv6, whose right end takes packets whatever interface they come by.
fn line() -> Option<Line> {
    let line = Line::new()?;
    for (ns, interface, address) in [(&line.left, "left0", "fd09::1/64"), (&line.right, "right0", "fd09::2/64")] {
        enable_ipv6(ns, interface);
        ns.ip(&["address", "add", address, "dev", interface, "nodad"]).expect("an address");
    }
    for which in ["all", "default"] {
        line.right.tool("sysctl", &["-q", "-w", &format!("net.ipv4.conf.{which}.rp_filter=0")]).expect("a setting");
    }
    Some(line)
}

/// Datagrams that may be fragmented: one that is too long for GRE alone, and two of several packets.
fn datagrams(left: &Ns, right: &Ns) {
    let discovery = |off: &str| {
        left.tool("sysctl", &["-q", "-w", &format!("net.ipv4.ip_no_pmtu_disc={off}")]).expect("a setting");
    };
    discovery("1");
    let socket = |ns: &Ns, address: &str| ns.run(|| UdpSocket::bind(address)).expect("a namespace").expect("a socket");
    let (from, to) = (socket(left, "10.9.0.1:0"), socket(right, "10.9.0.2:0"));
    to.set_read_timeout(Some(LIMIT)).expect("a socket");
    let mut got = vec![0; 1 << 16];
    for len in [1472, 4000, 20_000] {
        let sent: Vec<u8> = (0..len).map(|i| (i * 7 % 251) as u8).collect();
        from.send_to(&sent, to.local_addr().expect("bound")).expect("sent");
        let n = to.recv(&mut got).unwrap_or_else(|e| panic!("a datagram of {len} bytes: {e}"));
        assert_eq!(got[..n], sent);
    }
    discovery("0");
}

/// 4 MiB of TCP by way of GRE to a host, which answers without it: the sender learns from ICMP how long its packets may
/// be. Then the connection requests of a handshake that the scrubber completes go that way, too.
fn tcp_arrives(address: &str, v6: bool) {
    let Some(line) = line() else { return };
    let Line { left, middle, right, .. } = &line;
    let outlet = Outlet::new(right, v6);
    let by = if matches!(outlet, Outlet::Device) { "the kernel's device" } else { "a raw socket: no device here" };
    let start = |more: &[&str]| {
        let mut command = middle.command(program("unetmap"));
        let way = if v6 { GRE6 } else { GRE4 };
        Forwarder::start(command.args(["scrub", "left1", "right1", "-w", "0", "--return", way]).args(more))
    };
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| outlet.run(v6, &stop));
        let _end = Stop(&stop);
        let running = start(&[]);
        if address == "10.9.0.2" {
            // Before the sender knows that packets have to be shorter.
            datagrams(left, right);
        }
        stream(left, right, address).expect("a stream");
        let last = running.summary();
        assert!(last["returned"]["bytes"].as_u64() > Some(4 << 20) && dropped(&last, "too-big") > 0, "{last}");
        assert!(last["replies"].as_u64() >= Some(1), "{last}");
        summary(&format!("4 MiB arrived by {by}; {} packets were too big at first", dropped(&last, "too-big")));
        let running = start(&["--syn-cookies", "any"]);
        stream(left, right, address).expect("a stream");
        let last = running.summary();
        assert!(last["returned"]["bytes"].as_u64() > Some(4 << 20), "{last}");
        assert!(dropped(&last, "handshake") > 0, "{last}");
    });
}

#[test]
fn tcp_arrives_behind_gre_over_ipv4() {
    isolated_with_interfaces(|_| tcp_arrives("10.9.0.2", false));
}

#[test]
fn tcp_arrives_behind_gre_over_ipv6() {
    isolated_with_interfaces(|_| tcp_arrives("10.9.0.2", true));
}

#[test]
fn tcp_over_ipv6_arrives_behind_gre_over_ipv4() {
    isolated_with_interfaces(|_| tcp_arrives("fd09::2", false));
}

/// The inside has its address on a VLAN alone.
#[test]
fn tcp_arrives_on_the_kernels_vlan_and_comes_back() {
    isolated_with_interfaces(|_| {
        let Some(line) = line() else { return };
        let Line { left, middle, right, .. } = &line;
        if let Err(why) = right.ip(&["link", "add", "link", "right0", "name", "vlan5", "type", "vlan", "id", "5"]) {
            return summary(&format!("skipped: this kernel makes no VLAN: {why}"));
        }
        right.ip(&["address", "del", "10.9.0.2/24", "dev", "right0"]).expect("an address");
        right.ip(&["address", "add", "10.9.0.2/24", "dev", "vlan5"]).expect("an address");
        right.ip(&["link", "set", "vlan5", "up"]).expect("a device");
        let mut command = middle.command(program("unetmap"));
        let running = Forwarder::start(command.args(["scrub", "left1", "right1", "-w", "0", "--return", "vlan:5"]));
        stream(left, right, "10.9.0.2").expect("a stream inwards");
        stream(right, left, "10.9.0.1").expect("a stream outwards");
        let last = running.summary();
        assert_eq!(last["dropped"], Value::Object(serde_json::Map::new()), "{last}");
        assert!(last["returned"]["bytes"].as_u64() > Some(4 << 20), "{last}");
    });
}
