// SPDX-License-Identifier: BSD-2-Clause
//! Checks the frames with etherparse, an independent implementation.

use std::net::Ipv4Addr;

use etherparse::{NetSlice, PacketBuilder, SlicedPacket, TransportSlice};
use proptest::prelude::*;

use super::*;

const MAC: [u8; 6] = [2, 0, 0, 0, 0, 1];

fn header(flags: u8, gso: u8, gso_size: u16, start: u16, offset: u16) -> Vec<u8> {
    let words = [0, gso_size, start, offset].map(u16::to_le_bytes);
    [&[flags, gso][..], &words.concat()].concat()
}

fn tcp(v4: bool, payload: &[u8], tag: bool) -> Vec<u8> {
    let start = PacketBuilder::ethernet2(MAC, [2, 0, 0, 0, 0, 2]);
    let mut out = Vec::new();
    // The length fields of a GSO packet are arbitrary: here the actual length if it fits, else the largest.
    let build = |step: etherparse::PacketBuilderStep<etherparse::IpHeaders>, out: &mut Vec<u8>| {
        step.tcp(1000, 80, 77, 1000).ack(5).psh().fin().write(out, payload).expect("a packet");
    };
    match (v4, tag) {
        (true, false) => build(start.ipv4([10, 0, 0, 1], [10, 0, 0, 2], 64), &mut out),
        (false, false) => build(start.ipv6([1; 16], [2; 16], 64), &mut out),
        (true, true) => {
            let id = etherparse::VlanId::try_new(5).expect("a number");
            build(start.single_vlan(id).ipv4([10, 0, 0, 1], [10, 0, 0, 2], 64), &mut out);
        }
        (false, true) => unreachable!("no test uses tagged IPv6"),
    }
    out
}

fn udp(v4: bool, payload: &[u8]) -> Vec<u8> {
    let start = PacketBuilder::ethernet2(MAC, [2, 0, 0, 0, 0, 2]);
    let mut out = Vec::new();
    match v4 {
        true => start.ipv4([10, 0, 0, 1], [10, 0, 0, 2], 64).udp(1, 2).write(&mut out, payload),
        false => start.ipv6([1; 16], [2; 16], 64).udp(1, 2).write(&mut out, payload),
    }
    .expect("a packet");
    out
}

fn frames(packet: &[u8], header: &[u8]) -> Result<Vec<Vec<u8>>, HeaderMismatch> {
    let mut whole = [header, packet].concat();
    let mut out = Vec::new();
    let lost = finish(&mut whole, header.len(), |pieces| {
        out.push(pieces.concat());
        true
    });
    lost.map(|lost| {
        assert_eq!(lost, 0);
        out
    })
}

/// Checks all checksums of a frame, and returns its transport payload.
fn checked_payload(frame: &[u8]) -> Vec<u8> {
    let sliced = SlicedPacket::from_ethernet(frame).expect("a frame");
    let net = sliced.net.expect("IP");
    if let NetSlice::Ipv4(ip) = &net {
        let header = ip.header().to_header();
        assert_eq!(header.header_checksum, header.calc_header_checksum());
    }
    match sliced.transport.expect("a transport header") {
        TransportSlice::Tcp(tcp) => {
            let wanted = match &net {
                NetSlice::Ipv4(ip) => {
                    tcp.calc_checksum_ipv4(ip.header().source(), ip.header().destination()).expect("a length")
                }
                NetSlice::Ipv6(ip) => {
                    tcp.calc_checksum_ipv6(ip.header().source(), ip.header().destination()).expect("a length")
                }
                NetSlice::Arp(_) => panic!("no IP"),
            };
            // 0 and 0xffff are equivalent.
            let same = tcp.checksum() == wanted || [tcp.checksum(), wanted].iter().all(|c| [0, 0xffff].contains(c));
            assert!(same, "{:04x} in place of {wanted:04x}", tcp.checksum());
            tcp.payload().to_vec()
        }
        TransportSlice::Udp(udp) => {
            let header = udp.to_header();
            let wanted = match &net {
                NetSlice::Ipv4(ip) => {
                    header.calc_checksum_ipv4_raw(ip.header().source(), ip.header().destination(), udp.payload())
                }
                NetSlice::Ipv6(ip) => {
                    header.calc_checksum_ipv6_raw(ip.header().source(), ip.header().destination(), udp.payload())
                }
                NetSlice::Arp(_) => panic!("no IP"),
            };
            assert_eq!(header.checksum, wanted.expect("a length"));
            udp.payload().to_vec()
        }
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_packet_without_requests_is_unchanged() {
    let packet = udp(true, b"unchanged");
    for header in [vec![0; 10], vec![0; 12]] {
        assert_eq!(frames(&packet, &header).unwrap(), std::slice::from_ref(&packet));
    }
}

#[test]
fn a_requested_checksum_is_computed() {
    for v4 in [true, false] {
        let whole = udp(v4, b"some bytes of payload");
        let start = if v4 { 34 } else { 54 };
        let mut packet = whole.clone();
        // The sender stores the sum of the pseudo header.
        let layers = Layers::find(&packet).unwrap();
        let pseudo = layers.pseudo_sum(&packet, packet.len() - start) as u16;
        packet[start + 6..start + 8].copy_from_slice(&pseudo.to_be_bytes());
        let made = frames(&packet, &header(1, 0, 0, start as u16, 6)).unwrap();
        assert_eq!(made, [whole]);
    }
}

#[test]
fn a_header_that_does_not_match_is_refused() {
    let packet = tcp(true, &[7; 3000], false);
    let end = packet.len() as u16;
    for (what, wrong) in [
        ("checksum after the end", header(1, 0, 0, end, 0)),
        ("checksum across the end", header(1, 0, 0, end - 2, 1)),
        ("offset that wraps", header(1, 0, 0, 10, u16::MAX)),
        ("empty segments", header(1, 1, 0, 34, 16)),
        ("too many segments", header(1, 1, 20, 34, 16)),
        ("other address family", header(1, 4, 1000, 34, 16)),
        ("other protocol", header(1, 5, 1000, 34, 6)),
        ("fragments of TCP", header(1, 3, 1000, 34, 6)),
        ("unknown GSO type", header(0, 2, 1000, 0, 0)),
    ] {
        assert_eq!(frames(&packet, &wrong), Err(HeaderMismatch), "{what}");
    }
    let good = header(1, 1, 1000, 34, 16);
    for len in 0..54 {
        assert_eq!(frames(&packet[..len], &good), Err(HeaderMismatch), "{len} bytes");
    }
    assert_eq!(frames(&[0; 60], &good), Err(HeaderMismatch), "no IP");
    assert_eq!(finish(&mut [0; 9], 10, |_| true), Err(HeaderMismatch), "no header");
    assert_eq!(frames(&vec![0; MAX_PACKET + 1], &[0; 10]), Err(HeaderMismatch), "too long");
}

#[test]
fn segments_have_the_right_flags_and_tags() {
    let packet = tcp(true, &[9; 2500], true);
    let made = frames(&packet, &header(1, 1 | GSO_ECN, 1000, 38, 16)).unwrap();
    assert_eq!(made.iter().map(Vec::len).collect::<Vec<_>>(), [1058, 1058, 558]);
    for (i, frame) in made.iter().enumerate() {
        checked_payload(frame);
        let sliced = SlicedPacket::from_ethernet(frame).unwrap();
        assert_eq!(sliced.link_exts.len(), 1, "the tag stays");
        let Some(TransportSlice::Tcp(tcp)) = sliced.transport else { panic!("no TCP") };
        assert_eq!((tcp.psh(), tcp.fin()), (i == 2, i == 2));
        assert_eq!(tcp.sequence_number(), 77 + 1000 * i as u32);
        let Some(NetSlice::Ipv4(ip)) = sliced.net else { panic!("no IPv4") };
        assert_eq!(ip.header().source_addr(), Ipv4Addr::new(10, 0, 0, 1));
        assert_eq!(ip.header().identification(), i as u16);
    }
}

/// After the first frame without room the remaining ones are counted, but not made.
#[test]
fn frames_without_room_are_not_made() {
    let packets = [
        (tcp(true, &[7; 5000], false), header(1, GSO_TCP4, 100, 34, 16), 50),
        (udp(true, &[7; 5000]), header(1, GSO_UDP_L4, 100, 34, 6), 50),
        (udp(false, &[7; 4992]), header(1, GSO_UDP, 1000, 54, 6), 5),
        (udp(true, &[7; 100]), header(0, GSO_NONE, 0, 0, 0), 1),
    ];
    for (packet, header, count) in packets {
        for room in 0..=count {
            let (mut whole, mut calls) = ([&header[..], &packet].concat(), 0);
            let lost = finish(&mut whole, header.len(), |_| {
                calls += 1;
                calls <= room
            });
            assert_eq!((lost, calls), (Ok(count - room), count.min(room + 1)), "{room} of {count}");
        }
    }
}

#[test]
fn fragments_reassemble_to_the_packet() {
    for v4 in [true, false] {
        let payload: Vec<u8> = (0..5000u32).map(|i| (i * 7) as u8).collect();
        let packet = udp(v4, &payload);
        let made = frames(&packet, &header(1, 3, 1003, 0, 0)).unwrap();
        let mut data = Vec::new();
        for (i, frame) in made.iter().enumerate() {
            let sliced = SlicedPacket::from_ethernet(frame).unwrap();
            let net = sliced.net.unwrap();
            let last = i + 1 == made.len();
            match &net {
                NetSlice::Ipv4(ip) => {
                    let header = ip.header().to_header();
                    assert_eq!(header.header_checksum, header.calc_header_checksum());
                    assert_eq!(
                        (header.more_fragments, header.fragment_offset.byte_offset()),
                        (!last, data.len() as u16)
                    );
                    data.extend_from_slice(ip.payload().payload);
                }
                NetSlice::Ipv6(ip) => {
                    let payload = &frame[14 + 40..];
                    assert_eq!((ip.header().next_header().0, payload[0]), (NEXT_FRAGMENT, PROTOCOL_UDP));
                    let word = u16::from_be_bytes([payload[2], payload[3]]);
                    assert_eq!((word & !7, word & 1 == 1), (data.len() as u16, !last));
                    data.extend_from_slice(&payload[8..]);
                }
                NetSlice::Arp(_) => panic!("no IP"),
            }
        }
        // The reassembled fragments equal the packet.
        let start = if v4 { 34 } else { 54 };
        assert_eq!(data, packet[start..]);
    }
}

proptest! {
    #[test]
    fn segments_carry_the_whole_payload(v4: bool, is_tcp: bool, len in 0usize..20000, size in 160u16..4000) {
        let payload: Vec<u8> = (0..len).map(|i| (i * 31 % 251) as u8).collect();
        let (packet, gso) = match (is_tcp, v4) {
            (true, _) => (tcp(v4, &payload, false), if v4 { GSO_TCP4 } else { GSO_TCP6 }),
            (false, _) => (udp(v4, &payload), GSO_UDP_L4),
        };
        let made = frames(&packet, &header(1, gso, size, 0, 0)).unwrap();
        prop_assert_eq!(made.len(), len.div_ceil(usize::from(size)).max(1));
        let whole = [&header(1, gso, size, 0, 0)[..], &packet].concat();
        for buffer in [64, 512, 2112] {
            let taken: usize = made.iter().map(|frame| frame.len().div_ceil(buffer)).sum();
            prop_assert!(taken <= slots_needed(&whole, whole.len(), buffer), "{} slots of {} bytes", taken, buffer);
        }
        let got: Vec<u8> = made.iter().flat_map(|frame| checked_payload(frame)).collect();
        prop_assert_eq!(got, payload);
    }

    #[test]
    fn random_packets_do_not_panic(
        packet in proptest::collection::vec(any::<u8>(), 0..200),
        header in any::<[u8; 12]>(),
    ) {
        for bytes in VNET_HDR_LENS {
            let mut made = 0;
            let _ = frames(&packet, &header[..bytes]).map(|frames| made = frames.len());
            prop_assert!(made <= MAX_GSO_FRAMES);
        }
    }

    /// `fill_checksum` computes what `finish` would, and leaves no request; GSO packets do not change.
    #[test]
    fn fill_checksum_agrees_with_finish(
        packet in proptest::collection::vec(any::<u8>(), 14..200),
        flags in 0u8..3,
        at in 0u16..220,
        gso: bool,
    ) {
        for bytes in VNET_HDR_LENS {
            let mut header = header(flags, if gso { GSO_UDP } else { GSO_NONE }, 100, at, 2);
            header.resize(bytes, 0);
            let mut whole = [&header[..], &packet].concat();
            let result = fill_checksum(&mut whole, bytes);
            if gso {
                prop_assert_eq!((result, whole), (Ok(()), [&header[..], &packet].concat()));
                continue;
            }
            let finished = frames(&packet, &header);
            prop_assert_eq!(result.is_ok(), finished.is_ok());
            if let Ok(finished) = finished {
                prop_assert_eq!(&whole[bytes..], &finished[0][..]);
                prop_assert_eq!(frames(&whole[bytes..], &whole[..bytes]), Ok(finished));
                prop_assert_eq!(whole[0] & NEEDS_CHECKSUM, 0);
            }
        }
    }

    #[test]
    fn damaged_packets_do_not_panic(at in 0usize..80, with: u8, cut in 0usize..1200, gso in 0u8..7, size: u16) {
        for v4 in [true, false] {
            let mut packet = if gso % 2 == 0 { udp(v4, &[1; 1000]) } else { tcp(v4, &[1; 1000], false) };
            packet[at] = with;
            packet.truncate(cut);
            let _ = frames(&packet, &header(1, gso, size, at as u16, 6));
        }
    }
}
