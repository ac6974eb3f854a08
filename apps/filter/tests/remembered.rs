// SPDX-License-Identifier: BSD-2-Clause
//! Verdicts that are remembered: packets that differ in what a rule tests, whatever that is, get their own verdicts
//! however often they come.

use unetmap_filter::{Config, Direction, Engine, Headers, Now, Ruleset, Verdict};

/// A TCP SYN from 10.0.0.1 port 99 to 10.0.0.2 port 80.
fn tcp4() -> Vec<u8> {
    let mut frame = vec![0; 54];
    frame[12..18].copy_from_slice(&[8, 0, 0x45, 0, 0, 40]);
    (frame[22], frame[23]) = (64, 6);
    frame[26..34].copy_from_slice(&[10, 0, 0, 1, 10, 0, 0, 2]);
    (frame[35], frame[37], frame[46], frame[47]) = (99, 80, 0x50, 2);
    frame
}

/// An ICMP echo request between the same hosts.
fn icmp4() -> Vec<u8> {
    let mut frame = tcp4();
    (frame[23], frame[34]) = (1, 8);
    frame
}

/// An ICMPv6 echo request.
fn icmp6() -> Vec<u8> {
    let mut frame = vec![0; 54 + 8];
    frame[12..15].copy_from_slice(&[0x86, 0xdd, 0x60]);
    (frame[19], frame[20], frame[21]) = (8, 58, 64);
    frame[22..38].copy_from_slice(&[1; 16]);
    frame[38..54].copy_from_slice(&[2; 16]);
    frame[54] = 128;
    frame
}

struct Filter {
    engine: Engine,
    set: Ruleset,
    logged: u32,
}

impl Filter {
    fn new(script: &str) -> Filter {
        let config = Config::new(["one", "two"], 1, false);
        let (config, _) = config.apply(script).unwrap_or_else(|e| panic!("{e}\n{script}"));
        Filter { engine: Engine::new(0, 64, 1), set: config.compile(), logged: 0 }
    }

    fn verdict(&mut self, frame: &[u8], direction: Direction) -> Verdict {
        let headers = Headers::parse(frame, frame.len()).unwrap_or_else(|e| panic!("{e:?}: {frame:x?}"));
        let now = Now { millis: 1, seconds: 1 };
        self.engine.evaluate(&self.set, &headers, direction, frame.len() as u64, now, |_| self.logged += 1)
    }
}

#[test]
fn packets_that_differ_in_what_a_rule_tests_get_their_own_verdicts() {
    let with = |mut frame: Vec<u8>, at: usize, value: u8| {
        frame[at] = value;
        frame
    };
    // A UDP packet whose ports are 0, or a fragment of it, which has none.
    let without_ports = |offset: u8| [with(with(tcp4()[..34].to_vec(), 23, 17), 21, offset), vec![0; 20]].concat();
    // A test; a packet that matches it, and one that does not.
    let cases = [
        ("from 10.0.0.1 to any", tcp4(), with(tcp4(), 29, 9)),
        ("from any to 10.0.0.2", tcp4(), with(tcp4(), 33, 9)),
        ("from any to 10.0.0.0/24{2,7}", tcp4(), with(tcp4(), 33, 9)),
        ("from table(t) to any", tcp4(), with(tcp4(), 29, 9)),
        ("from any 99 to any", tcp4(), with(tcp4(), 35, 98)),
        ("from any to any 80", tcp4(), with(tcp4(), 37, 81)),
        ("from any to any proto 6", tcp4(), with(tcp4(), 23, 17)),
        ("from any to any proto 17", with(tcp4(), 23, 17), with(tcp4(), 23, 136)),
        ("from any 0 to any", without_ports(0), without_ports(9)),
        ("from any to any tcpflags syn", tcp4(), with(tcp4(), 47, 16)),
        ("from any to any established", with(tcp4(), 47, 16), tcp4()),
        ("from any to any setup", tcp4(), with(tcp4(), 47, 18)),
        ("from any to any frag", with(with(tcp4(), 21, 9), 23, 50), with(tcp4(), 23, 50)),
        ("from any to any frag df", with(tcp4(), 20, 0x40), tcp4()),
        ("from any to any iptos lowdelay", with(tcp4(), 15, 0x10), tcp4()),
        ("from any to any dscp ef", with(tcp4(), 15, 46 << 2), tcp4()),
        ("from any to any ipprecedence 7", with(tcp4(), 15, 7 << 5), tcp4()),
        ("from any to any iplen 40", tcp4(), [with(tcp4(), 17, 41), vec![0]].concat()),
        ("from any to any ipid 5", with(tcp4(), 19, 5), tcp4()),
        ("from any to any ipttl 64", tcp4(), with(tcp4(), 22, 63)),
        ("from any to any tcpwin 5", with(tcp4(), 49, 5), tcp4()),
        ("from any to any tcpdatalen 0", tcp4(), [with(tcp4(), 17, 41), vec![0]].concat()),
        ("from any to any tcpseq 5", with(tcp4(), 41, 5), tcp4()),
        ("from any to any tcpack 5", with(tcp4(), 45, 5), tcp4()),
        ("from any to any icmptypes 8", icmp4(), with(icmp4(), 34, 0)),
        ("from any to any icmp6types 128", icmp6(), with(icmp6(), 54, 129)),
        ("from any to any ipversion 6", icmp6(), icmp4()),
        ("from 101:101:101:101:101:101:101:101 to any", icmp6(), with(icmp6(), 37, 9)),
        ("from any to 202:202:202:202:202:202:202:202", icmp6(), with(icmp6(), 46, 9)),
        ("from any to any mac any 00:00:00:00:00:07", with(tcp4(), 11, 7), tcp4()),
    ];
    for (test, yes, no) in &cases {
        let script = format!("table t create\ntable t add 10.0.0.1\nadd deny ip {test}\nadd allow ip from any to any");
        let mut filter = Filter::new(&script);
        for round in 0..3 {
            assert_eq!(filter.verdict(yes, Direction::Out), Verdict::Deny, "{test}, round {round}");
            assert_eq!(filter.verdict(no, Direction::Out), Verdict::Accept, "{test}, round {round}");
        }
        let counts: Vec<_> = filter.set.rules().iter().map(|rule| rule.counters.get().packets).collect();
        assert_eq!(counts, [3, 3, 0], "{test}");
    }
}

#[test]
fn directions_changes_counts_logs_and_states_are_not_forgotten() {
    let mut filter = Filter::new("add deny ip from any to any in\nadd allow ip from any to any");
    for _ in 0..3 {
        assert_eq!(filter.verdict(&tcp4(), Direction::In), Verdict::Deny);
        assert_eq!(filter.verdict(&tcp4(), Direction::Out), Verdict::Accept);
    }
    // A set that takes the place of another begins with nothing.
    filter.set = Filter::new("add deny ip from any to any").set;
    assert_eq!(filter.verdict(&tcp4(), Direction::Out), Verdict::Deny);

    // Rules on the way count, and log, each packet.
    let mut filter = Filter::new(
        "add count log tcp from any to any\nadd skipto 1000 ip from any to any\nadd 1000 allow log ip from any to any",
    );
    (0..3).for_each(|_| assert_eq!(filter.verdict(&tcp4(), Direction::Out), Verdict::Accept));
    assert_eq!(filter.logged, 6);
    assert!(filter.set.rules()[..3].iter().all(|rule| rule.counters.get().packets == 3));

    // A rule that is skipped by chance is asked about each packet.
    let mut filter = Filter::new("add prob 0.5 deny ip from any to any\nadd allow ip from any to any");
    let denied = (0..1000).filter(|_| filter.verdict(&tcp4(), Direction::Out) == Verdict::Deny).count();
    assert!((300..700).contains(&denied), "{denied} of 1000");

    // A state is installed by the first packet that may, not by one before it.
    let mut filter = Filter::new("add check-state\nadd allow tcp from any to any setup keep-state");
    let mut answer = tcp4();
    answer[26..34].rotate_left(4);
    answer[34..38].rotate_left(2);
    answer[47] = 18;
    assert_eq!(filter.verdict(&answer, Direction::In), Verdict::Deny);
    assert_eq!(filter.verdict(&tcp4(), Direction::Out), Verdict::Accept);
    assert_eq!(filter.verdict(&answer, Direction::In), Verdict::Accept);
}
