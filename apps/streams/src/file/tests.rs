// SPDX-License-Identifier: BSD-2-Clause
//! Files of streams: what they mean, checked by another parser of packets, and what is refused.

use etherparse::{LaxPacketHeaders, NetSlice, SlicedPacket, TransportSlice, checksum};
use proptest::prelude::*;

use super::*;
use crate::{DEFAULT_LINK, Sender, signature};

const NO_CAPTURE: Load<'static> = &|_, _| Err("no capture".into());

fn parse(text: &str) -> Result<Vec<Stream>, String> {
    parse_file(text, DEFAULT_LINK, NO_CAPTURE)
}

/// The first `n` packets of a file's streams.
fn packets_of(streams: Vec<Stream>, n: usize) -> Vec<Vec<u8>> {
    let mut sender = Sender::new(streams);
    (0..n).map_while(|i| sender.take(i as u64 * 1000).map(<[u8]>::to_vec)).collect()
}

fn packets(layers: &str, size: &str, n: usize) -> Vec<Vec<u8>> {
    let text = format!("[[stream]]\nrate = 1\nsize = \"{size}\"\nlayers = [{layers}]");
    packets_of(parse(&text).unwrap_or_else(|e| panic!("{layers}: {e}")), n)
}

/// Checks lengths and checksums of a packet, and its signature.
fn verify(packet: &[u8]) -> SlicedPacket<'_> {
    assert!(signature::find(packet).is_some());
    verify_headers(packet)
}

fn verify_headers(packet: &[u8]) -> SlicedPacket<'_> {
    let sliced = SlicedPacket::from_ethernet(packet).unwrap_or_else(|e| panic!("{e}: {packet:02x?}"));
    let payload = sliced.net.as_ref().and_then(NetSlice::ip_payload_ref).map_or(&[][..], |p| p.payload);
    let mut pseudo = checksum::Sum16BitWords::new();
    let (v6, protocol) = match sliced.net.as_ref() {
        Some(NetSlice::Ipv4(ip)) => {
            let header = ip.header();
            assert_eq!(header.header_checksum(), header.to_header().calc_header_checksum());
            pseudo = pseudo.add_4bytes(header.source()).add_4bytes(header.destination());
            (false, header.protocol().0)
        }
        Some(NetSlice::Ipv6(ip)) => {
            pseudo = pseudo.add_16bytes(ip.header().source()).add_16bytes(ip.header().destination());
            (true, ip.header().next_header().0)
        }
        _ => return sliced,
    };
    pseudo = pseudo.add_2bytes([0, protocol]).add_2bytes((payload.len() as u16).to_be_bytes());
    match &sliced.transport {
        Some(TransportSlice::Udp(udp)) if udp.destination_port() == 4789 => {
            assert_eq!(udp.checksum(), 0);
            verify_headers(&udp.payload()[8..]);
        }
        Some(TransportSlice::Icmpv4(_)) => {
            assert_eq!(checksum::Sum16BitWords::new().add_slice(payload).ones_complement(), 0);
        }
        Some(_) => assert_eq!(pseudo.add_slice(payload).ones_complement(), 0, "IPv6 {v6}, protocol {protocol}"),
        None if protocol == 4 || protocol == 41 || protocol == 47 => {}
        None => panic!("no transport: {packet:02x?}"),
    }
    sliced
}

#[test]
fn packets_of_all_layers_have_correct_lengths_and_checksums() {
    for layers in [
        "{ ether = {} }, { ip = {} }, { udp = {} }",
        "{ ether = {} }, { ipv6 = {} }, { udp = {} }",
        "{ Ether = {} }, { Dot1Q = { vlan = 5, prio = 3 } }, { IP = {} }, { TCP = { flags = 2 } }",
        "{ ether = {} }, { qinq = { vlan = 9 } }, { vlan = { vlan = 5 } }, { ipv6 = {} }, { tcp = {} }",
        "{ ether = {} }, { ip = {} }, { icmp = {} }",
        "{ ether = {} }, { ipv6 = {} }, { icmp = {} }",
        "{ ether = {} }, { ip = {} }, { udp = {} }, { vxlan = { vni = 7 } }, { ether = {} }, { ip = {} }, { tcp = {} }",
        "{ ether = {} }, { ipv6 = {} }, { udp = {} }, { vxlan = {} }, { ether = {} }, { ipv6 = {} }, { udp = {} }",
    ] {
        for size in ["150", "151", "150-1514", "imix"] {
            for packet in packets(layers, size, 30) {
                verify(&packet);
            }
        }
    }
}

#[test]
fn tunnels_and_labels_contain_valid_packets() {
    let inner = "{ ip = { ttl = 9 } }, { udp = { dport = 77 } }";
    for (layers, at, protocol) in [
        (
            format!(
                "{{ ether = {{}} }}, {{ mpls = {{ label = 16 }} }}, {{ mpls = {{ label = 17, cos = 5 }} }}, {inner}"
            ),
            22,
            None,
        ),
        (format!("{{ ether = {{}} }}, {{ ip = {{}} }}, {{ gre = {{}} }}, {inner}"), 38, Some(47)),
        (format!("{{ ether = {{}} }}, {{ ip = {{}} }}, {inner}"), 34, Some(4)),
        (format!("{{ ether = {{}} }}, {{ ip = {{}} }}, {{ gre = {{}} }}, {{ ether = {{}} }}, {inner}"), 52, Some(47)),
    ] {
        for packet in packets(&layers, "98-103", 20) {
            // An Ethernet header of the test, before the inner packet.
            let frame = [&[0; 12][..], &[8, 0], &packet[at..]].concat();
            let sliced = verify(&frame);
            assert!(matches!(&sliced.transport, Some(TransportSlice::Udp(udp)) if udp.destination_port() == 77));
            match protocol {
                Some(protocol) => assert_eq!((packet[12..14] == [8, 0], packet[23]), (true, protocol)),
                None => {
                    assert_eq!(packet[12..14], [0x88, 0x47]);
                    assert_eq!(packet[14..22], [0, 1, 0, 64, 0, 1, 0x1b, 64], "labels, the second at the bottom");
                }
            }
        }
    }
}

#[test]
fn fields_change_from_packet_to_packet() {
    let layers = "{ ether = { src = { from = \"02:00:00:00:00:00\", step = 2 } } }, \
                  { ip = { src = [\"10.0.0.1\", \"10.9.0.1\"], dst = { from = \"10.1.0.0\", to = \"10.1.0.9\", random = true } } }, \
                  { udp = { dport = 53 } }";
    let all = packets(layers, "60-80", 200);
    for (i, packet) in all.iter().enumerate() {
        verify(packet);
        assert_eq!(packet[6..12], (0x0200_0000_0000_u64 + 2 * i as u64).to_be_bytes()[2..]);
        assert_eq!(packet[26..30], [10, [0, 9][i % 2], 0, 1]);
        assert!(packet[30..33] == [10, 1, 0] && packet[33] <= 9);
        assert_eq!(packet[36..38], [0, 53]);
        let number = signature::find(packet).map(|s| (s.stream, s.number, s.time));
        assert_eq!(number, Some((1, i as u32, i as u64 * 1000)));
    }
    let sizes: Vec<usize> = all.iter().map(Vec::len).collect();
    assert!(sizes.contains(&60) && sizes.contains(&80) && sizes.iter().all(|n| (60..=80).contains(n)));
}

#[test]
fn imix_has_its_shares() {
    let all = packets("{ ether = {} }, { ip = {} }, { udp = {} }", "imix", 1200);
    let count = |size| all.iter().filter(|packet| packet.len() == size).count();
    assert_eq!((count(60), count(590), count(1514)), (700, 400, 100));
}

#[test]
fn a_captured_packet_is_a_template() {
    let captured = packets(
        "{ ether = {} }, { vlan = { vlan = 3 } }, { ip = { src = \"192.0.2.1\" } }, { tcp = { seq = 77 } }",
        "200",
        1,
    );
    let mut captured = captured[0].clone();
    captured[100] = 0xab; // a payload of its own
    let load = |path: &Path, number: usize| {
        assert_eq!((path, number), (Path::new("x.pcap"), 3));
        Ok(captured.clone())
    };
    let text = "[[stream]]\nrate = 1\npcap = \"x.pcap\"\npacket = 3\n";
    for (changes, size) in [
        ("", 200),
        ("layers = [{ ip = { dst = { from = \"10.0.0.0\" } } }, { tcp = { dport = 80 } }]", 200),
        ("size = 77", 77),
    ] {
        let streams = parse_file(&format!("{text}{changes}"), DEFAULT_LINK, &load).unwrap();
        for packet in packets_of(streams, 5) {
            verify(&packet);
            assert_eq!((packet.len(), &packet[30..34]), (size, &[192, 0, 2, 1][..]));
            assert!(size < 200 || packet[100] == 0xab);
            assert!(!changes.contains("80") || packet[40..42] == [0, 80]);
        }
    }
    let wrong = format!("{text}layers = [{{ udp = {{}} }}]");
    let message = parse_file(&wrong, DEFAULT_LINK, &load).unwrap_err();
    assert!(message.contains("no such layer udp"), "{message}");
}

#[test]
fn the_checksum_of_captured_sctp_follows_the_signature() {
    let data = [0, 3, 0, 84, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0].into_iter().chain([0xab; 68]);
    let sctp: Vec<u8> = [0x30, 0x39, 0, 80, 0, 0, 0, 7, 1, 2, 3, 4].into_iter().chain(data).collect();
    let v4 = [&[8, 0, 0x45, 0, 0, 116, 0, 0, 0, 0, 9, 132, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2][..], &sctp].concat();
    let v6 = [&[0x86, 0xdd, 0x60, 0, 0, 0, 0, 96, 132, 9][..], &[0xfd; 32], &sctp].concat();
    for (rest, at) in [(v4, 34), (v6, 54)] {
        let captured = [&[2; 12][..], &rest].concat();
        let load = |_: &Path, _: usize| Ok(captured.clone());
        let text = "[[stream]]\nrate = 1\npcap = \"x\"\n";
        for size in ["", "size = 90", "size = \"101-110\""] {
            for packet in packets_of(parse_file(&format!("{text}{size}"), DEFAULT_LINK, &load).unwrap(), 4) {
                assert!(signature::find(&packet).is_some());
                let mut zeroed = packet.clone();
                zeroed[at + 8..at + 12].fill(0);
                assert_eq!(packet[at + 8..at + 12], crate::crc32c::of(&zeroed[at..]), "{size}");
                assert_ne!(packet[at + 8..at + 12], [1, 2, 3, 4]);
            }
        }
    }
}

proptest! {
    /// Any bytes may be in a capture: a packet is made of them, or a sentence.
    #[test]
    fn any_captured_bytes_are_a_template(bytes in prop::collection::vec(any::<u8>(), 0..200), kind in 0..6_usize) {
        let mut bytes = bytes;
        let kinds = [[8, 0, 0x45], [0x86, 0xdd, 0x60], [0x81, 0, 8], [0x88, 0x47, 0], [0x65, 0x58, 0], [8, 0, 0x4f]];
        if let Some(ethertype) = bytes.get_mut(12..15) {
            ethertype.copy_from_slice(&kinds[kind]);
        }
        let load = |_: &Path, _: usize| Ok(bytes.clone());
        let streams = parse_file("[[stream]]\nrate = 1\npcap = \"x\"", DEFAULT_LINK, &load);
        for packet in packets_of(streams.unwrap(), 3) {
            prop_assert!(signature::find(&packet).is_some());
            let _ = LaxPacketHeaders::from_ethernet(&packet);
        }
    }
}

#[test]
fn rates_are_held_within_a_thousandth_in_the_sum_of_streams() {
    let text = "link = \"1G\"\n[[stream]]\nrate = \"200kpps\"\n[[stream]]\nrate = \"100Mbps\"\nsize = \"imix\"\n\
        [[stream]]\nrate = \"10%\"\nsize = 500\n[[stream]]\nrate = \"50kpps\"\nshape = { burst = 16 }\n\
        [[stream]]\nrate = \"100kpps\"\nshape = \"poisson\"\nstop = \"10s\"";
    let mut sender = Sender::new(parse(text).unwrap());
    let mut before = 0;
    while let Some(due) = sender.due().filter(|due| *due < 10_000_000_000) {
        assert!(due >= before, "packets leave in order");
        before = due;
        sender.take(due);
    }
    let sent: Vec<_> = sender.streams().map(|(_, sent)| sent).collect();
    let held = |what: u64, expected: f64, within: f64| {
        assert!((what as f64 / expected - 1.0).abs() < within, "{what} in place of {expected}");
    };
    held(sent[0].packets, 2e6, 1e-3);
    held(sent[1].bytes * 8, 1e9, 1e-3);
    held((sent[2].bytes + 24 * sent[2].packets) * 8, 1e9, 1e-3);
    held(sent[3].packets, 5e5, 1e-3);
    // A million random distances: one part in a thousand is their standard deviation.
    held(sent[4].packets, 1e6, 4e-3);
}

#[test]
fn a_command_line_describes_a_stream() {
    let stream =
        parse_spec("rate=10kpps,size=64-100,src=10.0.0.9,dport=53,vlan=7,count=0.003k,name=x", 4, DEFAULT_LINK)
            .unwrap();
    assert_eq!((stream.id, stream.name.as_str()), (4, "x"));
    let all = packets_of(vec![stream], 10);
    assert_eq!(all.len(), 3);
    for packet in &all {
        verify(packet);
        assert_eq!(
            (&packet[12..16], &packet[30..34], &packet[40..42]),
            (&[0x81, 0, 0, 7][..], &[10, 0, 0, 9][..], &[0, 53][..])
        );
    }
    let v6 = parse_spec("rate=50%,dst=fd00::9,smac=02:00:00:00:00:09,burst=2", 1, DEFAULT_LINK).unwrap();
    assert_eq!(packets_of(vec![v6], 1)[0][12..14], [0x86, 0xdd]);
    for (text, part) in [
        ("size=60", "no rate"),
        ("rate=1,colour=red", "no key `colour`"),
        ("rate", "KEY=VALUE"),
        ("rate=1,vlan=x", "not a number"),
        ("rate=1,size=59", "need 60"),
        ("rate=1,burst=0", "at least 1"),
        ("rate=1,src=10.0.0.1,dst=fd00::1", "IPv6"),
    ] {
        let message = parse_spec(text, 1, DEFAULT_LINK).expect_err(text);
        assert!(message.contains(part), "{text}: {message}");
    }
}
