// SPDX-License-Identifier: BSD-2-Clause
//! Switch ports whose packets begin with a virtio-net header.

use conformance::net::{BUFFER, collect, frames, transmit};
use conformance::packet::gso_packet;
use conformance::request::control;
use conformance::traffic::open;
use conformance::{Home, isolated, until};
use unetmap::Port;
use unetmap::abi::{NETMAP_REQ_PORT_HDR_GET, NETMAP_REQ_PORT_HDR_SET, NR_ACCEPT_VNET_HDR, NmreqPortHdr};
use unetmap::errno::{EINVAL, EIO, ENXIO};

fn set(port: &str, bytes: u32) -> Result<(), i32> {
    control(NETMAP_REQ_PORT_HDR_SET, port, NmreqPortHdr { nr_hdr_len: bytes, ..Default::default() }).map(drop)
}

fn get(port: &str) -> u32 {
    control(NETMAP_REQ_PORT_HDR_GET, port, NmreqPortHdr::default()).expect("a port").1.nr_hdr_len
}

#[test]
fn header_lengths_are_set_and_reported() {
    isolated(|_| {
        assert_eq!(set("vale0:a", 10), Err(ENXIO), "there is no such port");
        let a = open("vale0:a");
        assert_eq!(get("vale0:a"), 0);
        for bytes in [10, 12] {
            assert_eq!(set("vale0:a", bytes), Ok(()));
            assert_eq!(get("vale0:a"), bytes);
        }
        for bytes in [1, 11, 14, u32::MAX] {
            assert_eq!(set("vale0:a", bytes), Err(EINVAL), "{bytes}");
        }
        assert_eq!(get("vale0:a"), 12);
        // A client that does not accept headers cannot open the port.
        let refused = Port::open("vale0:a").expect_err("a refusal");
        assert_eq!(refused.errno(), EIO);
        assert!(refused.to_string().contains("12 bytes"), "{refused}");
        drop(Port::options().flags(NR_ACCEPT_VNET_HDR).open("vale0:a").expect("a port"));
        assert_eq!(set("vale0:a", 0), Ok(()));
        drop(open("vale0:a"));
        drop(a);
    });
}

#[test]
fn packets_are_translated_between_all_header_lengths() {
    isolated(|_| {
        let ports = [("vale0:none", 0), ("vale0:ten", 10), ("vale0:twelve", 12), ("vale0:ten2", 10)];
        let open: Vec<(Port, usize)> = ports
            .iter()
            .map(|(name, bytes)| {
                let port = open(name);
                assert_eq!(set(name, *bytes), Ok(()));
                (port, *bytes as usize)
            })
            .collect();
        let mut seq = 0;
        for (i, (from, theirs)) in open.iter().enumerate() {
            let sent = frames(&[60, 1514, 100], seq);
            seq += 10;
            // Broadcasts, with headers that request no offload.
            let packets: Vec<_> = sent.iter().map(|frame| [&vec![0; *theirs], &frame[..]].concat()).collect();
            transmit(from, 0, &packets, BUFFER);
            for (_, (to, mine)) in open.iter().enumerate().filter(|(j, _)| *j != i) {
                let got = collect(to, sent.len());
                let wanted: Vec<_> = sent.iter().map(|frame| [&vec![0; *mine], &frame[..]].concat()).collect();
                assert_eq!(got, wanted, "from {theirs} to {mine}");
            }
        }
    });
}

#[test]
fn a_gso_packet_is_segmented_for_ports_without_headers() {
    isolated(|home| {
        let (from, plain, same) = (open("vale0:from"), open("vale0:plain"), open("vale0:same"));
        assert_eq!((set("vale0:from", 12), set("vale0:same", 12)), (Ok(()), Ok(())));
        let packet = gso_packet(2500, 12);
        transmit(&from, 0, std::slice::from_ref(&packet), BUFFER);
        // A port with the same header length receives it unsegmented.
        assert_eq!(collect(&same, 1), [packet]);
        let got = collect(&plain, 3);
        assert_eq!(got.iter().map(Vec::len).collect::<Vec<_>>(), [1054, 1054, 554]);
        for (i, frame) in got.iter().enumerate() {
            let sequence = u32::from_be_bytes(frame[38..42].try_into().unwrap());
            assert_eq!(sequence, 5 + 1000 * i as u32);
            assert_eq!(
                frame[54..],
                (0..2500).map(|i| (i % 251) as u8).collect::<Vec<_>>()[1000 * i..][..frame.len() - 54]
            );
        }
        // An invalid header is not delivered to ports that would have to segment, and is counted.
        let mut wrong = gso_packet(2500, 12);
        wrong[1] = 77;
        transmit(&from, 0, &[wrong.clone()], BUFFER);
        assert_eq!(collect(&same, 1), [wrong]);
        until("it is counted", || not_received(home) == 1);
    });
}

/// Number of invalid packets that ports did not get.
fn not_received(home: &Home) -> u64 {
    home.snapshot().ports.iter().filter_map(|port| port.not_received.get("bad")).sum()
}
