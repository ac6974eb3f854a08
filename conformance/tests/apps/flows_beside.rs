// SPDX-License-Identifier: BSD-2-Clause
//! Flow records of programs that forward: `bridge --flows`, `unetmap-fw --flows`.

use std::process::Command;

use conformance::collector::{Collector, Decoder};
use conformance::forwarder::{Forwarder, receive};
use conformance::net::transmit;
use conformance::traffic::open;
use conformance::{isolated, program};

use crate::flows::{FRAME_OCTETS, PACKETS};
use crate::fw::{packet, start};

/// Numbers of fields.
const DROPPED_PACKETS: u16 = 133;
const FORWARDING_STATUS: u16 = 89;

/// The sum of a field over the flows of a domain.
#[track_caller]
fn sum(decoder: &Decoder, domain: u32, field: u16) -> u64 {
    decoder.flows().filter(|flow| flow.domain == domain).map(|flow| flow.number(field)).sum()
}

/// Each packet is in one record, of the port that it came from; with sampling, one packet of each N.
#[test]
fn a_bridge_records_what_it_forwards() {
    isolated(|_home| {
        let (near, far) = (open("netmap:p{1"), open("netmap:q}1"));
        let frames: Vec<_> = (0..2000).map(|i| packet((1, 2), 1000 + i % 50, 0, u32::from(i))).collect();
        // Slots that hold a frame, or half of one.
        for (args, n, slot) in [
            ("", 1, 2048),
            ("", 1, 30),
            ("--flows-sample 10", 10, 2048),
            ("--flows-sample 10", 10, 30),
            ("--flows-sample 100 --flows-sample-by count -c", 100, 2048),
        ] {
            let collector = Collector::start();
            let mut bridge = Command::new(program("bridge"));
            bridge.args(["-w", "0", "netmap:p}1", "netmap:q{1", "--flows", collector.address()]);
            let bridge = Forwarder::start(bridge.args(args.split_whitespace()));
            for chunk in frames.chunks(200) {
                transmit(&near, 0, chunk, slot);
                receive(&far, chunk.len(), |_| true);
            }
            transmit(&far, 0, &frames[..500], slot);
            receive(&near, 500, |_| true);
            let summary = bridge.summary();
            let decoder = collector.decoded();
            let of = |domain| sum(&decoder, domain, PACKETS);
            assert_eq!(of(1) + of(2), 2500 / n, "{args}: {summary}");
            assert!(n > 1 || of(2) == 500, "{args}: {summary}");
            assert_eq!(decoder.sum(FRAME_OCTETS), 60 * 2500 / n, "{args}");
            let counts = &summary["flows"];
            let wanted = (&2500.into(), &(2500 * 60).into(), &(2500 / n).into());
            assert_eq!((&counts["packets"], &counts["bytes"], &counts["sampled_packets"]), wanted, "{args}");
            let options: Vec<_> = decoder.records.iter().filter(|record| record.is_option).collect();
            assert!(options.iter().any(|option| option.bytes(34) == (n as u32).to_be_bytes()), "{args}: {options:?}");
            for name in ["netmap:p}1", "netmap:q{1"] {
                assert!(options.iter().any(|option| option.bytes(82) == name.as_bytes()), "{options:?}");
            }
        }
    });
}

/// Records have the packets that came, with those that did not pass, and why; of translated ones, the addresses that
/// they came with.
#[test]
fn a_firewall_records_what_it_drops_and_why() {
    isolated(|home| {
        let (near, far) = (open("netmap:p{1"), open("netmap:q}1"));
        let mut malformed = packet((1, 2), 30, 0, 0);
        malformed[14] = 0x41;
        // Packets of a flow, how many of them are dropped, and the status in its record.
        let flows = [
            (packet((1, 2), 10, 0, 0), 40, 0, 64),
            (packet((1, 2), 20, 0, 0), 30, 30, 129),
            (malformed, 20, 20, 136),
            (packet((1, 2), 40, 0, 0), 10, 0, 64),
        ];
        let sent: u64 = flows.iter().map(|(_, n, ..)| n).sum();
        let rules = "nat 1 config ip 10.0.0.77\nadd deny udp from any to any 20\nadd nat 1 udp from any to any 40 out\n\
                     add allow ip from any to any\n";
        let collector = Collector::start();
        let mut fw = Command::new(program("unetmap-fw"));
        fw.args(["--flows", collector.address()]);
        let fw = start(home, fw, "netmap:p}1 netmap:q{1", rules);
        for (frame, n, ..) in &flows {
            transmit(&near, 0, &vec![frame.clone(); *n as usize], 2048);
        }
        let passed = receive(&far, 50, |_| true);
        assert!(passed.iter().any(|frame| frame[26..30] == [10, 0, 0, 77]), "some are translated");
        let summary = fw.summary();
        let decoder = collector.decoded();
        assert_eq!((sum(&decoder, 1, PACKETS), sum(&decoder, 1, DROPPED_PACKETS)), (sent, 50), "{summary}");
        assert_eq!(summary["flows"][0]["packets"], sent, "{summary}");
        for (frame, n, dropped, status) in flows {
            let port = u64::from(u16::from_be_bytes([frame[36], frame[37]]));
            let found = decoder.flows().filter(|flow| flow.number(FORWARDING_STATUS) == status);
            // A malformed packet has no ports.
            let found: Vec<_> = found.filter(|flow| status == 136 || flow.number(11) == port).collect();
            let [flow] = found[..] else { panic!("{port}: {found:#?}") };
            assert_eq!((flow.number(PACKETS), flow.number(DROPPED_PACKETS)), (n, dropped), "{flow:?}");
            assert!(status == 136 || flow.bytes(8) == [10, 0, 0, 1], "as it came: {flow:?}");
        }
    });
}
