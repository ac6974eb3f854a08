// SPDX-License-Identifier: BSD-2-Clause
//! Address translation: of each protocol, of errors and fragments, and what a full table keeps. Every translated packet
//! has right checksums.

use unetmap_filter::{Config, Direction, Engine, Headers, NatChange, NatEvent, Now, Ruleset, Translated, Verdict, tcp};

const UDP: u8 = 17;
const TCP: u8 = 6;
const ICMP: u8 = 1;
type End = ([u8; 4], u16);
const HOST: End = ([10, 0, 0, 5], 4000);
const SERVER: End = ([198, 51, 100, 7], 80);
const ALIAS: [u8; 4] = [203, 0, 113, 1];

struct Nat {
    engine: Engine,
    set: Ruleset,
    seconds: u64,
}

impl Nat {
    fn new(config: &str, max: usize) -> Nat {
        let script = format!("nat 1 config {config}\nadd nat 1 ip from any to any");
        let (config, _) = Config::new(["a", "b"], 1, false).apply(&script).unwrap_or_else(|e| panic!("{e}\n{script}"));
        Nat { engine: Engine::new(0, max, 1), set: config.compile(), seconds: 1 }
    }

    fn pass(&mut self, direction: Direction, frame: &mut [u8]) -> Translated {
        let headers = Headers::parse(&frame[..frame.len().min(128)], frame.len()).expect("a valid frame");
        let now = Now { millis: self.seconds * 1000, seconds: self.seconds };
        let verdict = self.engine.evaluate(&self.set, &headers, direction, frame.len() as u64, now, |_| {});
        assert_eq!(verdict, Verdict::Nat(1));
        let n = frame.len().min(128);
        let translated = self.engine.translate(&self.set, 1, direction, &headers, &mut frame[..n], now);
        self.engine.sweep(0, now.millis);
        translated
    }

    /// Sends a packet out; returns it.
    #[track_caller]
    fn out(&mut self, frame: &[u8]) -> Packet {
        let mut frame = frame.to_vec();
        assert_eq!(self.pass(Direction::Out, &mut frame), Translated::Pass);
        Packet::of(&frame)
    }

    #[track_caller]
    fn inward(&mut self, frame: &[u8]) -> Packet {
        let mut frame = frame.to_vec();
        assert_eq!(self.pass(Direction::In, &mut frame), Translated::Pass);
        Packet::of(&frame)
    }

    fn drops(&mut self, direction: Direction, frame: &[u8]) -> bool {
        self.pass(direction, &mut frame.to_vec()) == Translated::Drop
    }
}

#[derive(Debug, PartialEq, Eq)]
struct Packet {
    src: End,
    dst: End,
}

impl Packet {
    /// Reads the ends, and checks all checksums.
    #[track_caller]
    fn of(frame: &[u8]) -> Packet {
        assert_eq!(sum(&frame[14..34]), 0xffff, "header");
        let fragment = u16::from_be_bytes([frame[20], frame[21]]);
        let transport = &frame[34..];
        // The checksum of a fragmented packet covers what is not here.
        if fragment & 0x3fff == 0 {
            check_transport(frame[23], &frame[14..34], transport);
        }
        let port =
            |at: usize| if fragment & 0x1fff == 0 { u16::from_be_bytes([transport[at], transport[at + 1]]) } else { 0 };
        let ports = if frame[23] == ICMP { [port(4), 0] } else { [port(0), port(2)] };
        let address = |at: usize| [frame[at], frame[at + 1], frame[at + 2], frame[at + 3]];
        Packet { src: (address(26), ports[0]), dst: (address(30), ports[1]) }
    }
}

#[track_caller]
fn check_transport(proto: u8, header: &[u8], transport: &[u8]) {
    let pseudo = [&header[12..20], &[0, proto], &(transport.len() as u16).to_be_bytes()[..]].concat();
    match proto {
        ICMP => assert_eq!(sum(transport), 0xffff, "ICMP"),
        UDP if transport[6..8] == [0, 0] => {}
        TCP | UDP => assert_eq!(sum(&[&pseudo, transport].concat()), 0xffff, "transport"),
        _ => {}
    }
}

/// The one's complement sum.
fn sum(bytes: &[u8]) -> u16 {
    let word = |pair: &[u8]| u32::from(pair[0]) << 8 | u32::from(pair.get(1).copied().unwrap_or(0));
    let total: u32 = bytes.chunks(2).map(word).sum();
    let total = (total & 0xffff) + (total >> 16);
    ((total & 0xffff) + (total >> 16)) as u16
}

/// An IPv4 packet with right checksums; `fragment`: flags and offset.
fn ip(proto: u8, src: [u8; 4], dst: [u8; 4], fragment: u16, payload: &[u8]) -> Vec<u8> {
    let mut frame = [vec![2; 6], vec![4; 6], vec![8, 0, 0x45, 0]].concat();
    frame.extend(((20 + payload.len()) as u16).to_be_bytes());
    frame.extend([0, 77]);
    frame.extend(fragment.to_be_bytes());
    frame.extend([64, proto, 0, 0]);
    frame.extend([src, dst].concat());
    let header = !sum(&frame[14..34]);
    frame[24..26].copy_from_slice(&header.to_be_bytes());
    frame.extend(payload);
    frame
}

/// A packet of a protocol; `flags` of TCP, or the type of an ICMP query.
fn packet(proto: u8, src: End, dst: End, flags: u8) -> Vec<u8> {
    if !matches!(proto, TCP | UDP | ICMP) {
        return ip(proto, src.0, dst.0, 0, &[0; 12]);
    }
    let mut transport = match proto {
        ICMP => [vec![flags, 0, 0, 0], src.1.to_be_bytes().to_vec(), vec![0, 1, 9, 9]].concat(),
        _ => [src.1.to_be_bytes(), dst.1.to_be_bytes()].concat(),
    };
    match proto {
        TCP => transport.extend([0, 0, 0, 1, 0, 0, 0, 2, 0x50, flags, 1, 0, 0, 0, 0, 0, 1, 2, 3]),
        UDP => transport.extend([0, 11, 0, 0, 1, 2, 3]),
        _ => {}
    }
    let pseudo = [&src.0[..], &dst.0, &[0, proto], &(transport.len() as u16).to_be_bytes()].concat();
    let (at, covered) = match proto {
        ICMP => (2, transport.clone()),
        TCP => (16, [pseudo, transport.clone()].concat()),
        _ => (6, [pseudo, transport.clone()].concat()),
    };
    let checksum = !sum(&covered);
    transport[at..at + 2].copy_from_slice(&checksum.to_be_bytes());
    ip(proto, src.0, dst.0, 0, &transport)
}

#[test]
fn connections_of_each_protocol_are_translated_both_ways() {
    let mut nat = Nat::new("ip 203.0.113.1 deny_in", 64);
    for (proto, flags, back) in [(TCP, tcp::SYN, tcp::SYN | tcp::ACK), (UDP, 0, 0), (ICMP, 8, 0)] {
        let server = if proto == ICMP { (SERVER.0, 0) } else { SERVER };
        assert!(nat.drops(Direction::In, &packet(proto, SERVER, (ALIAS, 4000), flags)), "nobody asked");
        let sent = nat.out(&packet(proto, HOST, server, flags));
        assert_eq!((sent.src.0, sent.dst), (ALIAS, server));
        assert!(sent.src.1 >= 0x8000, "{sent:?}");
        // The same connection has the same port, another one another.
        assert_eq!(nat.out(&packet(proto, HOST, server, flags)), sent);
        let other = nat.out(&packet(proto, ([10, 0, 0, 6], 4000), server, flags));
        assert_ne!(other.src.1, sent.src.1);
        let answer = match proto {
            ICMP => packet(proto, (SERVER.0, sent.src.1), (ALIAS, 0), back),
            _ => packet(proto, SERVER, sent.src, back),
        };
        let got = nat.inward(&answer);
        match proto {
            ICMP => assert_eq!(got, Packet { src: (SERVER.0, HOST.1), dst: (HOST.0, 0) }),
            _ => assert_eq!(got, Packet { src: SERVER, dst: HOST }),
        }
        assert!(nat.drops(Direction::In, &packet(proto, ([198, 51, 100, 8], sent.src.1), (ALIAS, sent.src.1), back)));
    }
    assert_eq!((nat.engine.nat_counts().connections, nat.engine.nat_counts().denied_in), (6, 6));
    // A UDP packet without a checksum gets none. Frames of other kinds pass as they are.
    let mut without = packet(UDP, HOST, SERVER, 0);
    without[40..42].fill(0);
    let mut frame = without.clone();
    assert_eq!(nat.pass(Direction::Out, &mut frame), Translated::Pass);
    assert_eq!(frame[40..42], [0, 0]);
    let mut arp = [vec![2; 12], vec![8, 6], vec![1; 28]].concat();
    let before = arp.clone();
    assert_eq!((nat.pass(Direction::In, &mut arp), arp), (Translated::Pass, before));
}

#[test]
fn options_of_an_instance_decide_what_is_translated() {
    let syn = |src: End, dst: End| packet(TCP, src, dst, tcp::SYN);
    let mut nat = Nat::new("ip 203.0.113.1 same_ports unreg_only port_range 2000-2009", 64);
    assert_eq!(nat.out(&syn(HOST, SERVER)).src, (ALIAS, 4000));
    let second = nat.out(&syn(([10, 0, 0, 6], 4000), SERVER)).src.1;
    assert!((2000..2010).contains(&second), "the port is in use: one of the range, not {second}");
    let public = ([192, 0, 2, 9], 4000);
    assert_eq!(nat.out(&syn(public, SERVER)).src, public);
    assert_eq!(nat.inward(&syn(SERVER, (ALIAS, 99))).dst, (ALIAS, 99), "without deny_in it passes");
    let carrier = ([100, 64, 1, 1], 7);
    assert_eq!(nat.out(&syn(carrier, SERVER)).src, carrier);
    assert_eq!(Nat::new("ip 203.0.113.1 unreg_cgn", 64).out(&syn(carrier, SERVER)).src.0, ALIAS);

    let mut reversed = Nat::new("ip 203.0.113.1 reverse deny_in", 64);
    assert_eq!(reversed.inward(&syn(HOST, SERVER)).src.0, ALIAS);
    assert!(reversed.drops(Direction::Out, &syn(HOST, SERVER)));
    assert_eq!(Nat::new("proxy_only", 64).out(&syn(HOST, SERVER)).src, HOST);
    // No port is free: ten of the range for one server.
    let mut nat = Nat::new("ip 203.0.113.1 port_range 2000-2001", 64);
    let passed = (0..8).filter(|&i| !nat.drops(Direction::Out, &syn(([10, 0, 0, i], 1), SERVER))).count();
    assert_eq!((passed, nat.engine.nat_counts().no_port), (2, 6));
}

#[test]
fn redirects_admit_connections_from_outside() {
    let config = "ip 203.0.113.1 deny_in redirect_port tcp 10.0.0.9:80-89 8080-8089 \
                  redirect_port udp 10.0.0.9:53,10.0.0.10:53 203.0.113.2:53 redirect_addr 10.0.0.11 203.0.113.3 \
                  redirect_port tcp 10.0.0.9:22 22 198.51.100.7 redirect_proto gre 10.0.0.12";
    let mut nat = Nat::new(config, 64);
    let client = ([192, 0, 2, 1], 1234);
    let syn = |src: End, dst: End| packet(TCP, src, dst, tcp::SYN);
    assert_eq!(nat.inward(&syn(client, (ALIAS, 8083))).dst, ([10, 0, 0, 9], 83));
    assert_eq!(nat.out(&packet(TCP, ([10, 0, 0, 9], 83), client, tcp::SYN | tcp::ACK)).src, (ALIAS, 8083));
    assert!(nat.drops(Direction::In, &syn(client, (ALIAS, 8090))));
    // Servers take turns; a client stays with one.
    let ask = |nat: &mut Nat, port| nat.inward(&packet(UDP, (client.0, port), ([203, 0, 113, 2], 53), 0)).dst.0[3];
    let servers: Vec<_> = (0..4).map(|port| ask(&mut nat, port)).collect();
    assert_eq!(servers.iter().map(|&server| server as usize).sum::<usize>(), 38, "each twice: {servers:?}");
    assert_eq!((0..4).map(|port| ask(&mut nat, port)).collect::<Vec<_>>(), servers);
    // An address of its own, both ways, with all ports.
    assert_eq!(nat.inward(&syn(client, ([203, 0, 113, 3], 5))).dst, ([10, 0, 0, 11], 5));
    assert_eq!(nat.out(&syn(([10, 0, 0, 11], 777), SERVER)).src, ([203, 0, 113, 3], 777));
    // For one remote host only.
    assert!(nat.drops(Direction::In, &syn(client, (ALIAS, 22))));
    assert_eq!(nat.inward(&syn((SERVER.0, 5), (ALIAS, 22))).dst, ([10, 0, 0, 9], 22));
    let mut gre = ip(47, client.0, ALIAS, 0, &[0; 8]);
    assert_eq!((nat.pass(Direction::In, &mut gre), gre[33]), (Translated::Pass, 12));
}

#[test]
fn a_host_inside_reaches_a_redirect_and_gets_answers() {
    let mut nat = Nat::new("ip 203.0.113.1 deny_in redirect_port tcp 10.0.0.9:80 8080", 64);
    let server = ([10, 0, 0, 9], 80);
    let mut frame = packet(TCP, HOST, (ALIAS, 8080), tcp::SYN);
    assert_eq!(nat.pass(Direction::Out, &mut frame), Translated::Back);
    let there = Packet::of(&frame);
    assert_eq!((there.src.0, there.dst), (ALIAS, server));
    let mut frame = packet(TCP, server, there.src, tcp::SYN | tcp::ACK);
    assert_eq!(nat.pass(Direction::Out, &mut frame), Translated::Back);
    assert_eq!(Packet::of(&frame), Packet { src: (ALIAS, 8080), dst: HOST });
    assert_eq!(nat.engine.nat_counts().turned_back, 2);
}

/// An ICMP error that quotes the first `n` bytes of a frame's packet.
fn error(from: [u8; 4], to: [u8; 4], quoted: &[u8], n: usize) -> Vec<u8> {
    let mut body = [&[3, 3, 0, 0, 0, 0, 0, 0], &quoted[14..14 + n]].concat();
    let checksum = !sum(&body);
    body[2..4].copy_from_slice(&checksum.to_be_bytes());
    ip(ICMP, from, to, 0, &body)
}

#[test]
fn errors_are_translated_with_the_packet_that_they_quote() {
    let router = [198, 51, 100, 254];
    for (proto, flags) in [(TCP, tcp::SYN), (UDP, 0), (ICMP, 8)] {
        for n in [28, 30] {
            let mut nat = Nat::new("ip 203.0.113.1 deny_in redirect_port udp 10.0.0.9:53 53", 64);
            let sent = packet(proto, HOST, SERVER, flags);
            let mut translated = sent.clone();
            assert_eq!(nat.pass(Direction::Out, &mut translated), Translated::Pass);
            let got = {
                let mut frame = error(router, ALIAS, &translated, n);
                assert_eq!(nat.pass(Direction::In, &mut frame), Translated::Pass);
                frame
            };
            assert_eq!((&got[26..30], &got[30..34]), (&router[..], &HOST.0[..]));
            check_transport(ICMP, &got[14..34], &got[34..]);
            assert_eq!(got[42..42 + n], sent[14..14 + n], "the host sees its own packet: protocol {proto}");
            // About a packet of nobody, or cut.
            assert!(nat.drops(Direction::In, &error(router, ALIAS, &packet(proto, (ALIAS, 9), SERVER, flags), n)));
            assert!(nat.drops(Direction::In, &error(router, ALIAS, &translated, 24)));
        }
    }
    // From inside, about a packet that came in.
    let mut nat = Nat::new("ip 203.0.113.1 deny_in redirect_port udp 10.0.0.9:53 53", 64);
    let asked = packet(UDP, SERVER, (ALIAS, 53), 0);
    let mut inside = asked.clone();
    assert_eq!(nat.pass(Direction::In, &mut inside), Translated::Pass);
    let mut frame = error([10, 0, 0, 9], SERVER.0, &inside, 28);
    assert_eq!(nat.pass(Direction::Out, &mut frame), Translated::Pass);
    assert_eq!((&frame[26..30], &frame[42..70]), (&ALIAS[..], &asked[14..42]));
    check_transport(ICMP, &frame[14..34], &frame[34..]);
}

#[test]
fn fragments_follow_their_first() {
    let mut nat = Nat::new("ip 203.0.113.1", 64);
    let first = |src: End, dst: End| {
        let whole = packet(UDP, src, dst, 0);
        ip(UDP, src.0, dst.0, 0x2000, &whole[34..])
    };
    let later = |src: [u8; 4], dst: [u8; 4]| ip(UDP, src, dst, 3, &[7; 20]);
    assert!(nat.drops(Direction::Out, &later(HOST.0, SERVER.0)), "before the first");
    let alias = nat.out(&first(HOST, SERVER)).src;
    assert_eq!(nat.out(&later(HOST.0, SERVER.0)).src.0, ALIAS);
    nat.inward(&first(SERVER, alias));
    assert_eq!(nat.inward(&later(SERVER.0, ALIAS)).dst.0, HOST.0);
    assert!(nat.drops(Direction::In, &later([1, 2, 3, 4], ALIAS)));
    nat.seconds += 11;
    assert!(nat.drops(Direction::In, &later(SERVER.0, ALIAS)), "too late");
    assert_eq!(nat.engine.nat_counts().fragments, 3);
}

#[test]
fn a_full_table_keeps_connections_that_are_up_and_time_ends_all() {
    let mut nat = Nat::new("ip 203.0.113.1 same_ports deny_in", 4);
    let host = |i: u8| ([10, 0, 0, i], 1000 + u16::from(i));
    let alias = |i: u8| (ALIAS, host(i).1);
    for i in 1..=2 {
        nat.out(&packet(TCP, host(i), SERVER, tcp::SYN));
        nat.inward(&packet(TCP, SERVER, alias(i), tcp::SYN | tcp::ACK));
    }
    // A flood of half-open ones: each takes the place of the oldest such.
    for i in 10..200 {
        nat.out(&packet(TCP, host(i), SERVER, tcp::SYN));
    }
    let counts = nat.engine.nat_counts();
    assert_eq!((counts.connections, counts.dropped_half_open, counts.full), (4, 188, 0));
    for i in 1..=2 {
        assert_eq!(nat.inward(&packet(TCP, SERVER, alias(i), tcp::ACK)).dst, host(i));
    }
    // All are up: the next one is refused.
    for i in 198..200 {
        nat.inward(&packet(TCP, SERVER, alias(i), tcp::SYN | tcp::ACK));
    }
    assert!(nat.drops(Direction::Out, &packet(TCP, host(201), SERVER, tcp::SYN)));
    assert_eq!(nat.engine.nat_counts().full, 1);
    // One side closes: 90 s. Both: 10 s. UDP: 60 s.
    nat.out(&packet(TCP, host(1), SERVER, tcp::FIN | tcp::ACK));
    nat.out(&packet(TCP, host(2), SERVER, tcp::FIN | tcp::ACK));
    nat.inward(&packet(TCP, SERVER, alias(2), tcp::FIN | tcp::ACK));
    nat.seconds += 9;
    let left = |nat: &Nat| nat.engine.live_connections(nat.seconds * 1000);
    assert_eq!(left(&nat), 4);
    nat.seconds += 2;
    assert_eq!(left(&nat), 3);
    nat.out(&packet(UDP, host(3), SERVER, 0));
    nat.seconds += 61;
    assert_eq!(left(&nat), 3);
    nat.seconds += 30;
    assert_eq!(left(&nat), 2);
    nat.seconds += 86_400;
    assert!(nat.drops(Direction::In, &packet(TCP, SERVER, alias(199), tcp::ACK)));
    assert_eq!((left(&nat), nat.engine.nat_counts().connections), (0, 0));
}

/// Events are of connections, not of packets: of each when it begins, and when it ends, for whatever reason.
#[test]
fn connections_are_logged_when_they_begin_and_end() {
    let mut nat = Nat::new("ip 203.0.113.1 redirect_port tcp 10.0.0.9:8080 80", 2);
    nat.engine.log_nat();
    let end = |(address, port): End| (u32::from_be_bytes(address), port);
    let event = |millis, begins, proto, inside, alias, remote| {
        let (inside, alias, remote) = (end(inside), end(alias), end(remote));
        let change = if begins { NatChange::Begins } else { NatChange::Ends };
        NatEvent { millis, change, number: 1, proto, inside, alias, remote }
    };
    let taken = |nat: &mut Nat| {
        let mut events = Vec::new();
        nat.engine.take_nat_events(&mut events);
        events
    };
    let first = nat.out(&packet(UDP, HOST, SERVER, 0)).src;
    nat.out(&packet(UDP, HOST, SERVER, 0));
    nat.seconds = 2;
    let asked = (ALIAS, 80);
    nat.inward(&packet(TCP, SERVER, asked, tcp::SYN));
    let server = ([10, 0, 0, 9], 8080);
    let begun = [event(1000, true, UDP, HOST, first, SERVER), event(2000, true, TCP, server, asked, SERVER)];
    assert_eq!(taken(&mut nat), begun);
    // The table is full: the oldest makes room.
    nat.seconds = 3;
    let other = ([10, 0, 0, 6], 4000);
    let second = nat.out(&packet(UDP, other, SERVER, 0)).src;
    let changed = [event(3000, false, UDP, HOST, first, SERVER), event(3000, true, UDP, other, second, SERVER)];
    assert_eq!(taken(&mut nat), changed);
    nat.engine.sweep(0, 400_000);
    let expired =
        [event(400_000, false, TCP, server, asked, SERVER), event(400_000, false, UDP, other, second, SERVER)];
    assert_eq!(taken(&mut nat), expired);
    nat.seconds = 500;
    let third = nat.out(&packet(UDP, HOST, SERVER, 0)).src;
    let mut events = Vec::new();
    assert!(!nat.engine.end_nat(501_000, &mut events), "no connection is left");
    let both = [event(500_000, true, UDP, HOST, third, SERVER), event(501_000, false, UDP, HOST, third, SERVER)];
    assert_eq!((events, nat.engine.nat_counts().connections), (both.to_vec(), 0));
}

/// A connection that cannot be made is an event, once a second for each reason.
#[test]
fn connections_without_port_or_room_are_logged_once_a_second() {
    let mut nat = Nat::new("ip 203.0.113.1 port_range 50000-50001", 3);
    nat.engine.log_nat();
    let failures = |nat: &mut Nat| {
        let mut events = Vec::new();
        nat.engine.take_nat_events(&mut events);
        let failed = events.iter().filter(|event| !matches!(event.change, NatChange::Begins | NatChange::Ends));
        failed.map(|event| (event.millis, event.change, event.proto, event.alias.0)).collect::<Vec<_>>()
    };
    let other = ([10, 0, 0, 6], 4000);
    let alias = u32::from_be_bytes(ALIAS);
    for host in [HOST, ([10, 0, 0, 7], 4000)] {
        let alias = nat.out(&packet(UDP, host, SERVER, 0)).src;
        nat.inward(&packet(UDP, SERVER, alias, 0));
    }
    (0..5).for_each(|_| assert!(nat.drops(Direction::Out, &packet(UDP, other, SERVER, 0))));
    nat.seconds = 2;
    (0..5).for_each(|_| assert!(nat.drops(Direction::Out, &packet(UDP, other, SERVER, 0))));
    assert_eq!(failures(&mut nat), [1000, 2000].map(|millis| (millis, NatChange::NoPort, UDP, alias)));
    assert_eq!(nat.engine.nat_counts().no_port, 10);
    // Another server: a third connection, and then the table is full of those that were answered.
    let second = ([198, 51, 100, 8], 80);
    let public = nat.out(&packet(UDP, other, second, 0)).src;
    nat.inward(&packet(UDP, second, public, 0));
    (0..5).for_each(|_| assert!(nat.drops(Direction::Out, &packet(TCP, other, SERVER, tcp::SYN))));
    assert_eq!(failures(&mut nat), [(2000, NatChange::Full(3), TCP, alias)]);
    assert_eq!(nat.engine.nat_counts().full, 5);
}

/// A log that nobody takes events from grows no further, and counts what it lacks.
#[test]
fn a_full_log_counts_what_it_loses() {
    const N: u64 = 20_000;
    let mut nat = Nat::new("ip 203.0.113.1", N as usize);
    nat.engine.log_nat();
    for i in 0..N as u32 {
        let [_, high, middle, low] = i.to_be_bytes();
        nat.out(&packet(UDP, ([10, high, middle, low], 7), ([198, 51, 100, low], 80), 0));
    }
    let (mut events, lost) = (Vec::new(), nat.engine.nat_counts().lost_events);
    assert!(lost > 0 && nat.engine.nat_counts().connections == N, "{:?}", nat.engine.nat_counts());
    nat.engine.take_nat_events(&mut events);
    assert_eq!(events.len() as u64 + lost, N);
    events.clear();
    while nat.engine.end_nat(9000, &mut events) {}
    assert!(events.len() as u64 == N && events.iter().all(|event| event.change == NatChange::Ends), "{}", events.len());
    assert_eq!(nat.engine.nat_counts().lost_events, lost);
}

#[test]
fn an_instance_follows_its_interface() {
    use std::sync::atomic::{AtomicU8, Ordering::Relaxed};
    static LAST: AtomicU8 = AtomicU8::new(1);
    fn address(name: &str) -> Option<std::net::Ipv4Addr> {
        let last = LAST.load(Relaxed);
        (name == "eth0" && last > 0).then(|| [203, 0, 113, last].into())
    }
    let config = Config::new(["a", "b"], 1, false).with_interfaces(address);
    let script = "nat 1 config if eth0 reset same_ports deny_in\nadd nat 1 ip from any to any";
    let (config, _) = config.apply(script).unwrap();
    assert!(config.refresh().is_none());
    let mut nat = Nat { engine: Engine::new(0, 9, 1), set: config.compile(), seconds: 1 };
    assert_eq!(nat.out(&packet(UDP, HOST, SERVER, 0)).src, (ALIAS, 4000));
    LAST.store(2, Relaxed);
    let config = config.refresh().expect("another address");
    nat.set = config.compile();
    assert!(nat.drops(Direction::In, &packet(UDP, SERVER, (ALIAS, 4000), 0)), "reset: the old one is gone");
    assert_eq!(nat.out(&packet(UDP, HOST, SERVER, 0)).src, ([203, 0, 113, 2], 4000));
    LAST.store(0, Relaxed);
    nat.set = config.refresh().expect("no address").compile();
    assert!(nat.drops(Direction::Out, &packet(UDP, HOST, SERVER, 0)));
    let (_, shown) = config.apply("nat show").unwrap();
    assert_eq!(shown, "ipfw nat 1 config if eth0 reset same_ports deny_in\n");
}

#[test]
fn random_packets_are_translated_or_dropped() {
    let mut nat =
        Nat::new("ip 203.0.113.1 redirect_port udp 10.0.0.9:1-60000 1-60000 redirect_addr 10.0.0.8 203.0.113.9", 500);
    let mut state = 1u64;
    let mut random = |n: u64| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) % n
    };
    let (mut passed, mut all) = (0, 0);
    for _ in 0..200_000 {
        let proto = [TCP, UDP, ICMP, 47][random(4) as usize];
        let addresses = [HOST.0, SERVER.0, ALIAS, [203, 0, 113, 9], [10, 0, 0, 9]];
        let mut end = || (addresses[random(5) as usize], random(65536) as u16);
        let (src, dst) = (end(), end());
        let kind = random(20) as u8;
        let mut frame = packet(proto, src, dst, kind);
        if random(3) == 0 {
            let n = frame.len() - 14;
            frame = error(src.0, dst.0, &frame, n - random(n as u64 / 2) as usize);
        }
        for _ in 0..random(3) {
            let at = 14 + random(frame.len() as u64 - 14) as usize;
            frame[at] = random(256) as u8;
        }
        nat.seconds += u64::from(random(100) == 0);
        let Ok(headers) = Headers::parse(&frame, frame.len()) else { continue };
        let now = Now { millis: nat.seconds * 1000, seconds: nat.seconds };
        let direction = if random(2) == 0 { Direction::Out } else { Direction::In };
        let before = frame.clone();
        let translated = nat.engine.translate(&nat.set, 1, direction, &headers, &mut frame, now);
        nat.engine.sweep(0, now.millis);
        all += 1;
        passed += u32::from(translated != Translated::Drop);
        // A right checksum stays right, a wrong one wrong.
        let header = 14..14 + usize::from(before[14] & 15) * 4;
        if header.len() >= 20 && headers.ethertype == 0x0800 {
            assert_eq!(
                sum(&before[header.clone()]) == 0xffff,
                sum(&frame[header]) == 0xffff,
                "{before:x?}\n{frame:x?}"
            );
        }
        assert!(nat.engine.nat_counts().connections <= 500);
    }
    assert!(passed > all / 4 && passed < all, "{passed} of {all}");
}
