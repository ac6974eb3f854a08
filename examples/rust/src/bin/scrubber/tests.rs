// SPDX-License-Identifier: BSD-2-Clause
use std::sync::Arc;
use std::time::Duration;

use crate::filters::{Filter, Verdict};
use crate::packet::{ACK, FIN, Packet, RST, SYN, TCP, checksum, read_u32};
use crate::rules::Rules;
use crate::table::Table;

const SECOND: Duration = Duration::from_secs(1);

fn chain(secret: u64, rate: u32) -> Vec<Box<dyn Filter>> {
    crate::filters::chain(&Arc::new(Rules::new(1, None).expect("rules")), 0, secret, rate)
}

/// Builds an IPv4 frame of at least 60 bytes, with a header of 20 bytes before `payload`.
fn ipv4(source: [u8; 4], protocol: u8, payload: &[u8]) -> Vec<u8> {
    let mut ip = vec![0x45, 0, 0, 20 + payload.len() as u8, 0, 0, 0x40, 0, 64, protocol, 0, 0];
    ip.extend(source);
    ip.extend([10, 9, 0, 1]);
    let sum = checksum(0, &ip).to_be_bytes();
    ip[10..12].copy_from_slice(&sum);
    let mut frame = [&[2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2, 8, 0][..], &ip, payload].concat();
    frame.resize(frame.len().max(60), 0);
    frame
}

fn tcp(source: [u8; 4], flags: u8, seq: u32) -> Vec<u8> {
    let mut header = vec![0x10, 0, 0, 80];
    header.extend(seq.to_be_bytes());
    header.extend([0, 0, 0, 0, 0x50, flags, 1, 0, 0, 0, 0, 0]);
    ipv4(source, TCP, &header)
}

/// Returns the name of the filter that stopped the frame ("host" if none did), and the filter's reply.
fn apply(filters: &mut [Box<dyn Filter>], frame: &[u8], now: Duration) -> (&'static str, Option<Vec<u8>>) {
    let packet = Packet::new(frame, frame.len());
    for filter in filters {
        match filter.check(&packet, now) {
            Verdict::Pass => {}
            Verdict::Drop => return (filter.name(), None),
            Verdict::Reply(frame) => return (filter.name(), Some(frame)),
        }
    }
    ("host", None)
}

#[test]
fn invalid_packets_are_malformed() {
    let mut filters = chain(7, 1000);
    let good = ipv4([10, 9, 0, 2], 17, &[0; 20]);
    let mut end = |frame: &[u8]| apply(&mut filters, frame, SECOND).0;
    assert_eq!(end(&good), "host");
    // ARP passes.
    assert_eq!(end(&[&good[..12], &[8, 6], &[0; 46]].concat()), "host");
    for (at, value) in [(14, 0x55), (14, 0x44), (17, 255), (17, 19), (24, 1), (21, 1)] {
        let mut bad = good.clone();
        bad[at] = value;
        assert_eq!(end(&bad), "malformed", "byte {at} is {value}");
    }
    for n in 0..good.len() - 10 {
        assert_eq!(end(&good[..n]), "malformed", "{n} bytes");
    }
    assert_eq!(end(&ipv4([10, 9, 0, 1], 17, &[0; 20])), "malformed", "equal source and destination");
    for flags in [0, FIN, SYN | FIN, SYN | RST] {
        assert_eq!(end(&tcp([10, 9, 0, 2], flags, 0)), "malformed", "flags {flags}");
    }
    assert_eq!(end(&tcp([10, 9, 0, 2], ACK, 0)), "host");
    assert_eq!(end(&ipv4([10, 9, 0, 2], TCP, &[0; 19])), "malformed", "half a TCP header");
}

#[test]
fn invalid_source_addresses_are_bogons() {
    let mut filters = chain(7, 1000);
    for (source, end) in [
        ([127, 0, 0, 1], "rules"),
        ([0, 1, 2, 3], "rules"),
        ([224, 0, 0, 1], "rules"),
        ([255, 255, 255, 255], "rules"),
        ([198, 19, 0, 1], "rules"),
        ([198, 20, 0, 1], "host"),
        ([203, 0, 113, 9], "rules"),
        ([223, 255, 255, 255], "host"),
        ([10, 9, 0, 2], "host"),
    ] {
        assert_eq!(apply(&mut filters, &ipv4(source, 17, &[0; 20]), SECOND).0, end, "{source:?}");
    }
    let mut v6 = vec![0; 60];
    v6[12..15].copy_from_slice(&[0x86, 0xdd, 0x60]);
    // No next header.
    (v6[20], v6[53]) = (59, 2);
    for (first, last, end) in [(0, 1, "rules"), (0xff, 1, "rules"), (0xfd, 1, "host")] {
        (v6[22], v6[37]) = (first, last);
        assert_eq!(apply(&mut filters, &v6, SECOND).0, end);
    }
}

#[test]
fn each_source_has_a_rate_limit_of_its_own() {
    let mut filters = chain(7, 100);
    let mut count = |source: u8, n: u32, now: Duration| {
        let frame = ipv4([10, 9, 0, source], 17, &[0; 20]);
        (0..n).filter(|_| apply(&mut filters, &frame, now).0 == "host").count()
    };
    assert_eq!(count(2, 500, SECOND), 100);
    assert_eq!(count(3, 50, SECOND), 50, "another source has its own");
    assert_eq!(count(2, 500, SECOND * 3 / 2), 50);
    assert_eq!(count(2, 500, SECOND * 60), 100);
}

#[test]
fn a_full_table_replaces_the_least_recently_used_key() {
    let mut table: Table<u32> = Table::new(4);
    for key in 1..=5 {
        *table.entry(key, Duration::from_secs(key), || 0) = key as u32;
    }
    assert_eq!((table.get(1), table.get(2), table.get(5)), (None, Some(2), Some(5)));
    assert_eq!(*table.entry(2, SECOND, || 9), 2);
}

#[test]
fn only_sources_that_receive_the_cookie_may_connect() {
    let mut filters = chain(7, 1000);
    let syn = tcp([10, 9, 0, 2], SYN, 1000);
    let (end, reply) = apply(&mut filters, &syn, SECOND);
    let reply = reply.expect("a SYN ACK");
    assert_eq!((end, reply.len()), ("syn", 54));
    assert_eq!((&reply[..6], &reply[26..30], reply[47]), (&syn[6..12], &[10, 9, 0, 1][..], SYN | ACK));
    assert_eq!(checksum(0, &reply[14..34]), 0);
    let pseudo = [&reply[26..34], &[0, TCP, 0, 20]].concat();
    assert_eq!(checksum(u32::from(!checksum(0, &pseudo)), &reply[34..]), 0);
    let cookie = read_u32(&reply, 42).expect("54 bytes");
    // A wrong cookie, a cookie of another source, and an expired cookie are not accepted.
    for (source, seq, now) in [(2, cookie ^ 1, SECOND), (3, cookie, SECOND), (2, cookie, SECOND * 60)] {
        assert_eq!(apply(&mut filters, &tcp([10, 9, 0, source], RST, seq), now).0, "host");
    }
    assert_eq!(apply(&mut filters, &syn, SECOND).0, "syn");
    assert_eq!(apply(&mut filters, &tcp([10, 9, 0, 2], RST, cookie), SECOND * 2).0, "syn");
    assert_eq!(apply(&mut filters, &syn, SECOND * 2).0, "host");
    assert_eq!(apply(&mut filters, &tcp([10, 9, 0, 3], SYN, 1000), SECOND * 2).0, "syn");
    assert_eq!(apply(&mut filters, &syn, SECOND * 1000).0, "syn", "trust expires");
    assert_eq!(apply(&mut filters, &tcp([10, 9, 0, 9], SYN | ACK, 1), SECOND).0, "host", "the host's own connections");
}

#[test]
fn rules_are_read_again_and_denials_are_counted_by_reason() {
    let path = std::env::temp_dir().join(format!("scrubber-{}", std::process::id()));
    let write = |text: &str| std::fs::write(&path, text).expect("a file");
    write("table bad create\ntable bad add 10.9.0.7\nadd 200 deny ip from table(bad) to any // listed");
    let rules = Arc::new(Rules::new(1, Some(path.clone())).expect("rules"));
    let mut filters = crate::filters::chain(&rules, 0, 7, 1000);
    let mut end = |source: u8| apply(&mut filters, &ipv4([10, 9, 0, source], 17, &[0; 20]), SECOND).0;
    assert_eq!([end(7), end(8)], ["rules", "host"]);
    write("add 200 deny ip from any to any // listed\nadd deny ip frm any to any");
    assert!(rules.reload().unwrap_err().contains("line 2, column 13: "));
    assert_eq!([end(7), end(8)], ["rules", "host"], "the old rules stay");
    write("add 200 deny udp from 10.9.0.8 to any // listed");
    rules.reload().expect("rules");
    assert_eq!([end(7), end(8)], ["host", "rules"]);
    let denied = rules.denied();
    assert_eq!((denied["listed"], denied["bogon"]), ((3, 180), (0, 0)));
    std::fs::remove_file(&path).expect("our file");
}
