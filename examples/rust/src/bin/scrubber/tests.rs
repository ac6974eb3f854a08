use std::time::Duration;

use crate::filters::{Filter, Verdict, chain};
use crate::packet::{ACK, FIN, Packet, RST, SYN, TCP, checksum, long};
use crate::table::Table;

const SECOND: Duration = Duration::from_secs(1);

/// An IPv4 frame of 60 bytes; `payload` follows the header of 20.
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

/// The filter that stopped it, and its answer; the host's if none did.
fn ends(filters: &mut [Box<dyn Filter>], frame: &[u8], now: Duration) -> (&'static str, Option<Vec<u8>>) {
    let packet = Packet::new(frame, frame.len());
    for filter in filters {
        match filter.judge(&packet, now) {
            Verdict::Pass => {}
            Verdict::Drop => return (filter.name(), None),
            Verdict::Answer(frame) => return (filter.name(), Some(frame)),
        }
    }
    ("host", None)
}

#[test]
fn what_no_stack_sends_is_malformed() {
    let mut filters = chain(7, 1000);
    let good = ipv4([10, 9, 0, 2], 17, &[0; 20]);
    let mut end = |frame: &[u8]| ends(&mut filters, frame, SECOND).0;
    assert_eq!(end(&good), "host");
    // ARP is none of ours.
    assert_eq!(end(&[&good[..12], &[8, 6], &[0; 46]].concat()), "host");
    for (at, value) in [(14, 0x55), (14, 0x44), (17, 255), (17, 19), (24, 1), (21, 1)] {
        let mut bad = good.clone();
        bad[at] = value;
        assert_eq!(end(&bad), "malformed", "byte {at} is {value}");
    }
    for n in 0..good.len() - 10 {
        assert_eq!(end(&good[..n]), "malformed", "{n} bytes");
    }
    assert_eq!(end(&ipv4([10, 9, 0, 1], 17, &[0; 20])), "malformed", "from and to the same");
    for flags in [0, FIN, SYN | FIN, SYN | RST] {
        assert_eq!(end(&tcp([10, 9, 0, 2], flags, 0)), "malformed", "flags {flags}");
    }
    assert_eq!(end(&tcp([10, 9, 0, 2], ACK, 0)), "host");
    assert_eq!(end(&ipv4([10, 9, 0, 2], TCP, &[0; 19])), "malformed", "half a TCP header");
}

#[test]
fn nobodys_addresses_are_bogons() {
    let mut filters = chain(7, 1000);
    for (source, end) in [
        ([127, 0, 0, 1], "bogon"),
        ([0, 1, 2, 3], "bogon"),
        ([224, 0, 0, 1], "bogon"),
        ([255, 255, 255, 255], "bogon"),
        ([198, 19, 0, 1], "bogon"),
        ([198, 20, 0, 1], "host"),
        ([203, 0, 113, 9], "bogon"),
        ([223, 255, 255, 255], "host"),
        ([10, 9, 0, 2], "host"),
    ] {
        assert_eq!(ends(&mut filters, &ipv4(source, 17, &[0; 20]), SECOND).0, end, "{source:?}");
    }
    let mut v6 = vec![0; 60];
    v6[12..15].copy_from_slice(&[0x86, 0xdd, 0x60]);
    v6[53] = 2;
    for (first, last, end) in [(0, 1, "bogon"), (0xff, 1, "bogon"), (0xfd, 1, "host")] {
        (v6[22], v6[37]) = (first, last);
        assert_eq!(ends(&mut filters, &v6, SECOND).0, end);
    }
}

#[test]
fn each_source_has_its_rate() {
    let mut filters = chain(7, 100);
    let mut count = |source: u8, n: u32, now: Duration| {
        let frame = ipv4([10, 9, 0, source], 17, &[0; 20]);
        (0..n).filter(|_| ends(&mut filters, &frame, now).0 == "host").count()
    };
    assert_eq!(count(2, 500, SECOND), 100);
    assert_eq!(count(3, 50, SECOND), 50, "another source has its own");
    assert_eq!(count(2, 500, SECOND * 3 / 2), 50);
    assert_eq!(count(2, 500, SECOND * 60), 100);
}

#[test]
fn a_table_forgets_who_was_unseen_for_longest() {
    let mut table: Table<u32> = Table::new(4);
    for key in 1..=5 {
        *table.entry(key, Duration::from_secs(key), || 0) = key as u32;
    }
    assert_eq!((table.get(1), table.get(2), table.get(5)), (None, Some(2), Some(5)));
    assert_eq!(*table.entry(2, SECOND, || 9), 2);
}

#[test]
fn only_who_gets_the_answer_may_connect() {
    let mut filters = chain(7, 1000);
    let syn = tcp([10, 9, 0, 2], SYN, 1000);
    let (end, answer) = ends(&mut filters, &syn, SECOND);
    let answer = answer.expect("a SYN ACK");
    assert_eq!((end, answer.len()), ("syn", 54));
    assert_eq!((&answer[..6], &answer[26..30], answer[47]), (&syn[6..12], &[10, 9, 0, 1][..], SYN | ACK));
    assert_eq!(checksum(0, &answer[14..34]), 0);
    let pseudo = [&answer[26..34], &[0, TCP, 0, 20]].concat();
    assert_eq!(checksum(u32::from(!checksum(0, &pseudo)), &answer[34..]), 0);
    let cookie = long(&answer, 42).expect("54 bytes");
    // Neither another number, nor the right one from elsewhere or too late, is worth anything.
    for (source, seq, now) in [(2, cookie ^ 1, SECOND), (3, cookie, SECOND), (2, cookie, SECOND * 60)] {
        assert_eq!(ends(&mut filters, &tcp([10, 9, 0, source], RST, seq), now).0, "host");
    }
    assert_eq!(ends(&mut filters, &syn, SECOND).0, "syn");
    assert_eq!(ends(&mut filters, &tcp([10, 9, 0, 2], RST, cookie), SECOND * 2).0, "syn");
    assert_eq!(ends(&mut filters, &syn, SECOND * 2).0, "host");
    assert_eq!(ends(&mut filters, &tcp([10, 9, 0, 3], SYN, 1000), SECOND * 2).0, "syn");
    assert_eq!(ends(&mut filters, &syn, SECOND * 1000).0, "syn", "not for ever");
    assert_eq!(ends(&mut filters, &tcp([10, 9, 0, 9], SYN | ACK, 1), SECOND).0, "host", "the host's own connections");
}
