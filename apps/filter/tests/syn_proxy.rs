// SPDX-License-Identifier: BSD-2-Clause
//! Handshakes that are completed for servers: a model of a client and a server, each with its own numbers, sees right
//! checksums and numbers on both sides; requests take no state, and segments that nobody was asked for are dropped.

mod segments;

use segments::{ENDS, Ends, Segment, frame, parse};
use unetmap_filter::{Config, Direction, Engine, Headers, Now, Ruleset, Verdict, tcp};

const SYN_ACK: u8 = tcp::SYN | tcp::ACK;
const SACK: [u8; 2] = [4, 2];

/// A firewall, and what reaches its sides.
struct Wire {
    engine: Engine,
    set: Ruleset,
    ends: Ends,
    seconds: u64,
    to_client: Vec<Segment>,
    to_server: Vec<Segment>,
}

impl Wire {
    fn new(rule: &str, states: usize, ends: Ends) -> Wire {
        let (config, _) = Config::new(["a", "b"], 1, false).apply(rule).unwrap_or_else(|e| panic!("{e}"));
        let engine = Engine::new(0, states, 1);
        Wire { engine, set: config.compile(), ends, seconds: 1, to_client: Vec::new(), to_server: Vec::new() }
    }

    /// Passes a frame; returns the verdict.
    fn pass(&mut self, to_server: bool, frame: &[u8]) -> Verdict {
        let mut bytes = frame.to_vec();
        let n = bytes.len().min(128);
        let headers = Headers::parse(&bytes[..n], bytes.len()).expect("a valid frame");
        let now = Now { millis: self.seconds * 1000, seconds: self.seconds };
        let direction = if to_server { Direction::Out } else { Direction::In };
        let verdict = self.engine.evaluate(&self.set, &headers, direction, bytes.len() as u64, now, |_| {});
        if let Verdict::SynProxy(rule) = verdict {
            let mut frames = Vec::new();
            let passes = self.engine.proxy(&self.set, rule, &headers, &mut bytes[..n], now, |back, frame, len| {
                frames.push((to_server != back, frame[..len].to_vec()));
            });
            if passes {
                frames.push((to_server, bytes));
            }
            for (to_server, bytes) in frames {
                let segment = parse(self.ends, to_server, &bytes);
                if to_server { self.to_server.push(segment) } else { self.to_client.push(segment) }
            }
        }
        verdict
    }

    fn client(&mut self, segment: Segment) {
        self.pass(true, &frame(self.ends, true, &segment));
    }

    fn server(&mut self, segment: Segment) {
        self.pass(false, &frame(self.ends, false, &segment));
    }

    /// Returns the only segment that has reached the client since, and none the server.
    #[track_caller]
    fn at_client(&mut self) -> Segment {
        let [segment] = <[_; 1]>::try_from(std::mem::take(&mut self.to_client)).expect("one segment");
        assert_eq!(self.to_server, []);
        segment
    }

    #[track_caller]
    fn at_server(&mut self) -> Segment {
        let [segment] = <[_; 1]>::try_from(std::mem::take(&mut self.to_server)).expect("one segment");
        assert_eq!(self.to_client, []);
        segment
    }

    #[track_caller]
    fn nothing(&self) {
        assert_eq!((&self.to_client[..], &self.to_server[..]), (&[][..], &[][..]));
    }

    /// Asks for a connection; returns the cookie.
    #[track_caller]
    fn ask(&mut self, isn: u32, options: &[u8]) -> u32 {
        self.client(Segment { seq: isn, flags: tcp::SYN, window: 9000, options: options.into(), ..Segment::default() });
        let answer = self.at_client();
        assert_eq!((answer.ack, answer.flags, answer.window), (isn.wrapping_add(1), SYN_ACK, 0));
        answer.seq
    }

    /// Asks for a connection with scaled windows; returns the cookie.
    #[track_caller]
    fn ask_scaled(&mut self, isn: u32) -> u32 {
        self.ask(isn, &[&times(1, 0)[..], &[1, 3, 3, 9]].concat())
    }

    /// Opens a connection; returns the cookie.
    #[track_caller]
    fn open(&mut self, client: u32, server: u32) -> u32 {
        let cookie = self.ask(client, &[]);
        self.client(ack(client.wrapping_add(1), cookie.wrapping_add(1)));
        assert_eq!(self.at_server().flags, tcp::SYN);
        self.server(syn_ack(server, client));
        self.to_client.clear();
        self.to_server.clear();
        cookie
    }
}

fn ack(seq: u32, ack: u32) -> Segment {
    Segment { seq, ack, flags: tcp::ACK, window: 500, ..Segment::default() }
}

fn syn_ack(isn: u32, client: u32) -> Segment {
    Segment { seq: isn, ack: client.wrapping_add(1), flags: SYN_ACK, window: 7000, ..Segment::default() }
}

const RULE: &str = "add 10 synproxy tcp from any to any 80 out";

#[test]
fn both_ends_see_a_connection_with_each_others_numbers() {
    let v6 = Ends { client: (0x2001 << 112 | 1, 4000), server: (0x2001 << 112 | 2, 80), v6: true, tags: &[] };
    for (ends, client, server) in [(ENDS, 1000, 77), (ENDS, u32::MAX, u32::MAX - 5), (v6, 5, 0)] {
        let mut wire = Wire::new(RULE, 16, ends);
        // Its own options first, in any order; the window scale and timestamps are not taken.
        let options = [&[1, 3, 3, 7, 8, 10, 1, 2, 3, 4, 5, 6, 7, 8, 2, 4, 5, 150][..], &SACK].concat();
        wire.client(Segment { seq: client, flags: tcp::SYN, window: 9000, options, ..Segment::default() });
        let answer = wire.at_client();
        let cookie = answer.seq;
        assert_eq!((answer.ack, answer.flags, answer.window), (client.wrapping_add(1), SYN_ACK, 0));
        let mss = if ends.v6 { 1440u16 } else { 1460 }.to_be_bytes();
        assert_eq!(answer.options, [2, 4, mss[0], mss[1], 1, 1, 4, 2]);
        assert_eq!(wire.engine.states.counts().states, 0, "no state before the client has answered");

        wire.client(ack(client.wrapping_add(1), cookie.wrapping_add(1)));
        let asked = wire.at_server();
        assert_eq!((asked.seq, asked.flags, asked.window), (client, tcp::SYN, 500));
        // 1430 bytes were asked for: the next smaller size.
        assert_eq!(asked.options, [2, 4, 5, 120, 1, 1, 4, 2]);
        // A segment of the client repeats a request that was lost.
        wire.client(ack(client, cookie.wrapping_add(1)));
        assert_eq!(wire.at_server(), asked);

        wire.server(syn_ack(server, client));
        let (to_client, to_server) = (std::mem::take(&mut wire.to_client), std::mem::take(&mut wire.to_server));
        let window = Segment { window: 7000, ..ack(cookie.wrapping_add(1), client.wrapping_add(1)) };
        assert_eq!(to_client, [window], "the client learns the window");
        assert_eq!(to_server, [ack(client.wrapping_add(1), server.wrapping_add(1))]);
        wire.server(syn_ack(server, client));
        assert_eq!(wire.at_server(), to_server[0], "an answer that is repeated is acknowledged again");

        // Data, acknowledgements and blocks; an option may begin at an odd place.
        let block = |base: u32| {
            let numbers = [base.wrapping_add(11), base.wrapping_add(0x1_0200), base.wrapping_add(7), base];
            [&[1, 5, 18][..], &numbers.map(u32::to_be_bytes).concat(), &[1]].concat()
        };
        for data in [&b""[..], b"odd", &[9; 1000]] {
            let from_client = |base: u32| Segment { options: block(base), data: data.into(), ..ack(client, base) };
            wire.client(from_client(cookie.wrapping_add(1)));
            assert_eq!(wire.at_server(), from_client(server.wrapping_add(1)));
            // What the server acknowledges is the client's own.
            let from_server = |base: u32| Segment { options: block(client), data: data.into(), ..ack(base, client) };
            wire.server(from_server(server.wrapping_add(1)));
            assert_eq!(wire.at_client(), from_server(cookie.wrapping_add(1)));
        }
        for flags in [tcp::FIN | tcp::ACK, tcp::RST] {
            wire.server(Segment { flags, ..ack(server, 0) });
            assert_eq!(wire.at_client().seq, cookie);
        }
        wire.client(Segment { flags: tcp::RST, ..ack(client, 99) });
        assert_eq!(wire.at_server().ack, 99, "without the flag it is no acknowledgement");
        let counts = wire.engine.handshakes;
        assert_eq!([counts.cookies, counts.accepted, counts.opened, counts.invalid], [1, 1, 1, 0]);
    }
}

#[test]
fn ends_of_idle_connections_are_asked_with_the_numbers_that_they_know() {
    let mut wire = Wire::new(RULE, 16, ENDS);
    let cookie = wire.open(1000, 77);
    wire.client(ack(1001, cookie.wrapping_add(1)));
    assert_eq!(wire.at_server(), ack(1001, 78));
    wire.server(ack(78, 1001));
    (wire.to_client, wire.to_server) = Default::default();
    let now = Now { millis: wire.seconds * 1000 + 299_000, seconds: wire.seconds + 299 };
    let ends = wire.ends;
    wire.engine.ask_idle(&wire.set, now.millis, |direction, bytes, len| {
        let segment = parse(ends, direction == Direction::Out, &bytes[..len]);
        let to_client = direction == Direction::In;
        if to_client { wire.to_client.push(segment) } else { wire.to_server.push(segment) }
    });
    assert_eq!(wire.to_client, [Segment { window: 0, ..ack(cookie, 1001) }]);
    assert_eq!(wire.to_server, [Segment { window: 0, ..ack(1000, 78) }]);
}

#[test]
fn requests_take_no_state_and_what_no_cookie_allows_is_dropped() {
    let mut wire = Wire::new(RULE, 4, Ends { client: (0x0a00_0001, 5000), ..ENDS });
    wire.open(1, 2);
    let before = wire.engine.states.counts();
    for i in 0..100_000u32 {
        let ends = Ends { client: (0x0b00_0000 + u128::from(i), i as u16), ..ENDS };
        wire.ends = ends;
        wire.client(Segment { seq: i, flags: tcp::SYN, ..Segment::default() });
        wire.to_client.clear();
        // Nobody was told this number, whatever it is.
        wire.client(ack(i.wrapping_add(1), i.wrapping_mul(0x9e37_79b9)));
    }
    wire.nothing();
    assert_eq!((wire.engine.states.counts(), wire.engine.handshakes.invalid), (before, 100_000));

    wire.ends = ENDS;
    let cookie = wire.ask(50, &[]);
    for (changed, flags) in [
        // Another acknowledgement, another first number, other ends.
        (Ends { client: (0x0a00_0001, 4001), ..ENDS }, tcp::ACK),
        (Ends { client: (0x0a00_0003, 4000), ..ENDS }, tcp::ACK),
        (Ends { server: (0x0a00_0004, 80), ..ENDS }, tcp::ACK),
        (Ends { client: (0x0a00_0009, 4000), ..ENDS }, tcp::RST | tcp::ACK),
        (Ends { client: (0x0a00_0009, 4000), ..ENDS }, 0),
        (Ends { client: (0x0a00_0009, 4000), ..ENDS }, SYN_ACK),
    ] {
        wire.ends = changed;
        let before = wire.engine.handshakes.invalid;
        wire.client(Segment { flags, ..ack(51, cookie + 1) });
        wire.nothing();
        assert_eq!(wire.engine.handshakes.invalid, before + 1, "{changed:?} {flags}");
    }
    assert_eq!(wire.engine.states.counts(), before);
}

#[test]
fn a_cookie_is_valid_for_a_minute_and_for_two_at_most() {
    for (after, valid) in [(0, true), (60, true), (132, false), (264, false), (10_000, false)] {
        for begin in [1, 64, 65, 66, 130, 1000] {
            let mut wire = Wire::new(RULE, 4, ENDS);
            wire.seconds = begin;
            let cookie = wire.ask(9, &[]);
            wire.seconds += after;
            wire.client(ack(10, cookie.wrapping_add(1)));
            assert_eq!(wire.to_server.len(), usize::from(valid), "{begin} {after}");
        }
    }
}

#[test]
fn a_refusal_reaches_the_client_and_ends_can_begin_again() {
    let mut wire = Wire::new(RULE, 4, ENDS);
    let cookie = wire.ask(9, &[]);
    wire.client(ack(10, cookie.wrapping_add(1)));
    wire.at_server();
    // A refusal of another request is none of this one.
    wire.server(Segment { flags: tcp::RST | tcp::ACK, ..ack(0, 99) });
    wire.nothing();
    wire.server(Segment { flags: tcp::RST | tcp::ACK, ..ack(0, 10) });
    let refusal = wire.at_client();
    assert_eq!((refusal.seq, refusal.ack, refusal.flags), (cookie.wrapping_add(1), 10, tcp::RST | tcp::ACK));
    wire.client(ack(10, cookie.wrapping_add(1)));
    assert_eq!(wire.engine.handshakes.refused, 1);
    wire.to_server.clear();

    // A connection that is open is not disturbed by a request, which the server gets; one that has ended is followed.
    let mut wire = Wire::new(RULE, 4, ENDS);
    let cookie = wire.open(20, 500);
    wire.client(Segment { seq: 7, flags: tcp::SYN, ..Segment::default() });
    assert_eq!(wire.at_server().flags, tcp::SYN);
    wire.server(Segment { data: b"x".into(), ..ack(501, 21) });
    assert_eq!(wire.at_client().seq, cookie.wrapping_add(1));
    wire.server(Segment { flags: tcp::FIN | tcp::ACK, ..ack(502, 21) });
    wire.client(Segment { flags: tcp::FIN | tcp::ACK, ..ack(21, cookie.wrapping_add(3)) });
    wire.to_client.clear();
    wire.to_server.clear();
    let again = wire.ask(900, &[]);
    wire.client(ack(901, again.wrapping_add(1)));
    let asked = wire.at_server();
    assert_eq!((asked.seq, asked.flags), (900, tcp::SYN));
    assert_eq!(wire.engine.states.counts().states, 1);
}

#[test]
fn limits_apply_to_clients_that_exist() {
    let mut wire = Wire::new("add 10 synproxy mss 1300 tcp from any to any 80 limit src-addr 2", 16, ENDS);
    for port in 0..5 {
        wire.ends = Ends { client: (0x0a00_0001, port), ..ENDS };
        wire.client(Segment { seq: 9, flags: tcp::SYN, ..Segment::default() });
        let answer = wire.at_client();
        assert_eq!(answer.options, [2, 4, 5, 20], "the segment size of the rule");
        wire.client(ack(10, answer.seq.wrapping_add(1)));
        assert_eq!(wire.to_server.len(), usize::from(port < 2));
        wire.to_server.clear();
    }
    assert_eq!((wire.engine.states.counts().limited, wire.engine.handshakes.accepted), (3, 2));
}

/// The option of timestamps, after two that are nothing.
fn times(own: u32, repeated: u32) -> Vec<u8> {
    [&[1, 1, 8, 10][..], &own.to_be_bytes(), &repeated.to_be_bytes()].concat()
}

const SCALED: &str = "add 10 synproxy wscale 7 tcp from any to any 80 out";

#[test]
fn windows_are_scaled_by_what_both_ends_say() {
    let v6 = Ends { client: (0x2001 << 112 | 1, 4000), server: (0x2001 << 112 | 2, 80), v6: true, tags: &[] };
    // The server's scale, and its timestamp. The client's window field is 50 with a scale of 9.
    for (ends, scale, server_has_times, to_server, to_client) in [
        (ENDS, Some(4), true, 50, 1600 >> 3),
        (v6, Some(9), true, 50, 1600 << 2),
        (ENDS, Some(4), false, 50, 200),
        (ENDS, None, true, 50 << 9, 1600 >> 7),
        (v6, None, false, 50 << 9, 12),
        (ENDS, Some(14), true, 50, u16::MAX),
    ] {
        let mut wire = Wire::new(SCALED, 16, ends);
        let asked = [&[2, 4, 5, 180, 4, 2][..], &times(u32::MAX, 0)[2..], &[1, 3, 3, 9]].concat();
        wire.client(Segment { seq: 10, flags: tcp::SYN, window: 9000, options: asked, ..Segment::default() });
        let answer = wire.at_client();
        let (cookie, first) = (answer.seq, answer.seq & !15 | 9);
        let mss = if ends.v6 { [5, 160] } else { [5, 180] };
        let told = [&[2, 4, mss[0], mss[1], 4, 2][..], &times(first, u32::MAX)[2..], &[1, 3, 3, 7]].concat();
        assert_eq!((answer.window, answer.options), (0, told));

        let reply = Segment { options: times(1, first), window: 50, ..ack(11, cookie.wrapping_add(1)) };
        wire.client(reply);
        let request = wire.at_server();
        // Not scaled, as of each request.
        assert_eq!((request.seq, request.flags, request.window), (10, tcp::SYN, 50 << 9));
        let mss = if ends.v6 { [5, 160] } else { [5, 180] };
        let given = [&[2, 4, mss[0], mss[1], 4, 2][..], &times(1, 0)[2..], &[1, 3, 3, 9]].concat();
        assert_eq!(request.options.len(), given.len());
        assert_eq!(request.options[4..], given[4..]);

        let mut options = vec![2, 4, 5, 180];
        options.extend(scale.map_or(vec![], |scale| vec![1, 3, 3, scale]));
        if server_has_times {
            options.extend(times(777, 1));
        }
        wire.server(Segment { window: 64_000, options, ..syn_ack(500, 10) });
        let (got, sent) = (std::mem::take(&mut wire.to_client), std::mem::take(&mut wire.to_server));
        let with = |has: bool, own: u32, repeated: u32| if has { times(own, repeated) } else { vec![] };
        let has = server_has_times;
        let window = Segment { window: 500, options: with(has, first, 1), ..ack(cookie.wrapping_add(1), 11) };
        assert_eq!(got, [window], "64,000 in units of 128");
        assert_eq!(sent, [Segment { window: to_server, options: with(has, 1, 777), ..ack(11, 501) }]);
        // The answer once more.
        wire.server(Segment { window: 64_000, options: with(has, 780, 1), ..syn_ack(500, 10) });
        assert_eq!(wire.at_server(), Segment { window: to_server, options: with(has, 1, 780), ..ack(11, 501) });

        let data = Segment { data: b"a request".into(), window: 50, ..ack(11, cookie.wrapping_add(1)) };
        wire.client(Segment { options: times(5, first.wrapping_add(5)), ..data.clone() });
        let expected = times(5, if has { 782 } else { first.wrapping_add(5) });
        assert_eq!(wire.at_server(), Segment { ack: 501, window: to_server, options: expected, ..data.clone() });
        wire.server(Segment { seq: 501, ack: 20, window: 1600, options: with(has, 790, 5), ..data.clone() });
        let expected = with(has, first.wrapping_add(13), 5);
        let back = Segment { seq: cookie.wrapping_add(1), ack: 20, window: to_client, options: expected, ..data };
        assert_eq!(wire.at_client(), back);
    }
}

#[test]
fn clients_without_scale_or_timestamps_are_told_none() {
    for options in [times(7, 0), vec![1, 3, 3, 9], vec![]] {
        let mut wire = Wire::new(SCALED, 16, ENDS);
        wire.client(Segment { seq: 10, flags: tcp::SYN, options, ..Segment::default() });
        assert_eq!(wire.at_client().options, [2, 4, 5, 180]);
    }
    // A client that repeats another timestamp is not believed, and windows stay as they are.
    let mut wire = Wire::new(SCALED, 16, ENDS);
    let cookie = wire.ask_scaled(10);
    wire.client(Segment { options: times(1, cookie ^ 16), ..ack(11, cookie.wrapping_add(1)) });
    let request = wire.at_server();
    assert_eq!((request.window, request.options.len()), (500, 4));
    wire.server(syn_ack(500, 10));
    assert_eq!((wire.to_client[0].window, wire.to_server[0].window), (7000, 500));
}

#[test]
fn any_segment_is_safe() {
    any_segment(Wire::new(RULE, 16, ENDS), |wire| wire.open(20, 500));
    any_segment(Wire::new(SCALED, 16, ENDS), |wire| {
        let cookie = wire.ask_scaled(20);
        wire.client(Segment { options: times(1, cookie & !15 | 9), ..ack(21, cookie.wrapping_add(1)) });
        wire.server(Segment { options: [times(7, 1), vec![1, 3, 3, 2]].concat(), ..syn_ack(500, 20) });
        (wire.to_client, wire.to_server) = Default::default();
        cookie
    });
}

fn any_segment(mut wire: Wire, open: impl Fn(&mut Wire) -> u32) {
    let cookie = open(&mut wire);
    let options = [&times(9, 8)[1..], &[5, 18], &[7; 16], &[3, 3, 2, 1, 1]].concat();
    for to_server in [true, false] {
        for flags in [tcp::SYN, SYN_ACK, tcp::ACK, tcp::RST, tcp::FIN | tcp::ACK] {
            let segment =
                Segment { seq: 21, ack: cookie, flags, window: 1, options: options.clone(), data: vec![1; 30] };
            let whole = frame(ENDS, to_server, &segment);
            for at in 34..whole.len() {
                for value in [0, 1, 2, 5, 15, 63, 127, 240, 255] {
                    let mut bytes = whole.clone();
                    bytes[at] = value;
                    let n = bytes.len().min(128);
                    let Ok(h) = Headers::parse(&bytes[..n], bytes.len()) else { continue };
                    let now = Now { millis: 1000, seconds: 1 };
                    let verdict = wire.engine.evaluate(&wire.set, &h, Direction::Out, 100, now, |_| {});
                    if let Verdict::SynProxy(rule) = verdict {
                        // Whatever it does, it returns.
                        let len = bytes.len();
                        wire.engine.proxy(&wire.set, rule, &h, &mut bytes[..n], now, |_, _, _| {});
                        assert_eq!(bytes.len(), len);
                    }
                }
            }
        }
    }
}

#[test]
fn what_is_no_rule_for_whole_connections_is_refused() {
    let config = Config::new(["a", "b"], 1, false);
    for (rule, part) in [
        ("synproxy tcp from any to any 80 setup", "leave out other protocols, `setup`"),
        ("synproxy tcp from any to any established", "`established`"),
        ("synproxy udp from any to any", "other protocols"),
        ("synproxy tcp from any to any record-state", "leave out `record-state`"),
        ("synproxy tcp from any to any keep-state defer-action", "`defer-action`"),
        ("synproxy mss 5 tcp from any to any", "536 to 65535"),
        ("synproxy wscale 15 tcp from any to any", "0 to 14"),
    ] {
        let error = config.apply(&format!("add {rule}")).unwrap_err();
        assert!(error.message.contains(part), "{rule}: {error}");
    }
    let list = |rule: &str| config.apply(&format!("add 10 {rule}")).map(|(_, output)| output).expect(rule);
    assert_eq!(list("synproxy tcp from any to any 80"), "00010 synproxy tcp from any to any 80\n");
    let text = "00010 synproxy mss 1400 tcp from any to any 80 limit src-addr 9 :web\n";
    assert_eq!(list("synproxy mss 1400 tcp from any to any 80 limit src-addr 9 :web"), text);
    assert_eq!(
        list("synproxy mss 1400 wscale 7 tcp from any to any"),
        "00010 synproxy mss 1400 wscale 7 tcp from any to any\n"
    );
    // Other packets are not its.
    let mut wire = Wire::new("add 10 synproxy ip from any to any\nadd 20 reset tcp from any to any", 4, ENDS);
    let mut udp = frame(ENDS, true, &Segment::default());
    udp[23] = 17;
    assert_eq!(wire.pass(true, &udp), Verdict::Deny);
}
