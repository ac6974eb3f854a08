// SPDX-License-Identifier: BSD-2-Clause
//! Idle connections: their ends are asked before the state expires, each with the numbers that it knows; the state of a
//! connection with a silent end expires.

mod segments;

use segments::{ENDS, Ends, Segment, frame, parse};
use unetmap_filter::{Config, Direction, Engine, Headers, Now, Ruleset, Verdict, tcp};

const SYN_ACK: u8 = tcp::SYN | tcp::ACK;
const RULES: &str = "add 10 check-state\nadd 20 allow tcp from any to any setup keep-state";

/// A firewall between a client and a server.
struct Wire {
    engines: Vec<Engine>,
    set: Ruleset,
    ends: Ends,
    millis: u64,
    /// Whether the client's packets travel out.
    client_is_first: bool,
}

impl Wire {
    fn new(rules: &str, threads: usize, ends: Ends) -> Wire {
        let config = Config::new(["a", "b"], threads, false).apply(rules).unwrap_or_else(|e| panic!("{e}")).0;
        let engines = Engine::for_threads(threads, 4096, 1);
        Wire { engines, set: config.compile(), ends, millis: 1000, client_is_first: true }
    }

    fn now(&self) -> Now {
        Now { millis: self.millis, seconds: self.millis / 1000 }
    }

    fn send(&mut self, to_server: bool, seq: u32, ack: u32, flags: u8) -> Verdict {
        let segment = Segment { seq, ack, flags, window: 100, ..Segment::default() };
        let bytes = frame(self.ends, to_server, &segment);
        let headers = Headers::parse(&bytes, bytes.len()).expect("a valid frame");
        let direction = if to_server == self.client_is_first { Direction::Out } else { Direction::In };
        let now = self.now();
        self.engines[0].evaluate(&self.set, &headers, direction, 60, now, |_| {})
    }

    /// The client's first number is 100, the server's 500.
    fn connect(&mut self) {
        for (to_server, seq, ack, flags) in
            [(true, 100, 0, tcp::SYN), (false, 500, 101, SYN_ACK), (true, 101, 501, tcp::ACK)]
        {
            assert_eq!(self.send(to_server, seq, ack, flags), Verdict::Accept);
        }
    }

    /// Returns what a walk through all states sends: whether it goes to the server, and the segment.
    fn walk(&mut self) -> Vec<(bool, Segment)> {
        let (now, mut sent) = (self.now(), Vec::new());
        for engine in &mut self.engines {
            loop {
                engine.ask_idle(&self.set, now.millis, |direction, bytes, len| {
                    let to_server = (direction == Direction::Out) == self.client_is_first;
                    sent.push((to_server, parse(self.ends, to_server, &bytes[..len])));
                });
                if !engine.is_asking_idle() {
                    break;
                }
            }
        }
        sent
    }

    /// Lets time pass; returns what was sent meanwhile.
    fn wait(&mut self, seconds: u64) -> Vec<(bool, Segment)> {
        let mut sent = Vec::new();
        for _ in 0..seconds {
            self.millis += 1000;
            sent.extend(self.walk());
        }
        sent
    }

    fn states(&self) -> u64 {
        self.engines[0].states.counts().states
    }
}

fn question(to_server: bool, seq: u32, ack: u32) -> (bool, Segment) {
    (to_server, Segment { seq, ack, flags: tcp::ACK, ..Segment::default() })
}

#[test]
fn both_ends_of_an_idle_connection_are_asked_and_its_state_stays() {
    let v6 = Ends { client: (0xfe80 << 112 | 1, 4000), server: (0xfe80 << 112 | 2, 80), v6: true, tags: &[] };
    let tagged = Ends { tags: &[0x81, 0, 0, 7], ..ENDS };
    let twice = Ends { tags: &[0x88, 0xa8, 0x20, 5, 0x81, 0, 0, 7], ..v6 };
    // The higher endpoint is the client's, too.
    let swapped = Ends { client: ENDS.server, server: ENDS.client, ..ENDS };
    for (ends, client_is_first, threads) in
        [(ENDS, true, 1), (v6, true, 1), (tagged, false, 1), (twice, true, 3), (swapped, false, 2)]
    {
        let mut wire = Wire { client_is_first, ..Wire::new(RULES, threads, ends) };
        wire.connect();
        assert_eq!(wire.wait(278), [], "{ends:?}");
        let both = [question(false, 500, 101), question(true, 100, 501)];
        assert_eq!(wire.wait(7), both, "{ends:?}");
        // Only the client answers: from then on the server alone is asked.
        assert_eq!(wire.send(true, 101, 501, tcp::ACK), Verdict::Accept);
        assert_eq!(wire.wait(5), [question(true, 100, 501)], "{ends:?}");
        assert_eq!(wire.send(false, 501, 101, tcp::ACK), Verdict::Accept);
        assert_eq!(wire.wait(278), [], "{ends:?}: the lifetime begins anew");
        assert_eq!(wire.wait(5).len(), 2, "{ends:?}");
        assert_eq!(wire.engines[0].states.counts().keepalives, 5, "{ends:?}");
    }
}

#[test]
fn connections_with_a_silent_end_expire() {
    let mut wire = Wire::new(RULES, 1, ENDS);
    wire.connect();
    let mut asked = wire.wait(290);
    wire.send(true, 101, 501, tcp::ACK);
    asked.extend(wire.wait(20));
    // Each end at least twice in 20 s, and the one that answered no more.
    let of = |server: bool| asked.iter().filter(|(to_server, _)| *to_server == server).count();
    assert!((3..=5).contains(&of(true)) && (2..=3).contains(&of(false)), "{asked:?}");
    assert_eq!(wire.states(), 0, "also without any packet");
    assert_eq!(wire.send(false, 501, 101, tcp::ACK), Verdict::Deny);
}

#[test]
fn only_connections_that_are_up_are_asked() {
    // One that is closing by one side is up; not one that is closed by both, that was reset, or that nobody answered.
    for (segments, is_asked) in [
        (&[(true, 101, 501, tcp::FIN | tcp::ACK), (false, 501, 102, tcp::ACK)][..], true),
        (&[(true, 101, 501, tcp::FIN | tcp::ACK), (false, 501, 102, tcp::FIN | tcp::ACK)], false),
        (&[(false, 501, 101, tcp::RST | tcp::ACK)], false),
    ] {
        let mut wire = Wire::new(RULES, 1, ENDS);
        wire.connect();
        for &(to_server, seq, ack, flags) in segments {
            assert_eq!(wire.send(to_server, seq, ack, flags), Verdict::Accept);
        }
        assert_eq!(!wire.wait(300).is_empty(), is_asked, "{segments:?}");
    }
    let mut wire = Wire::new(RULES, 1, ENDS);
    wire.send(true, 100, 0, tcp::SYN);
    assert_eq!((wire.wait(30), wire.states()), (vec![], 0));
}

#[test]
fn what_rules_say_of_idle_connections_holds() {
    for (rules, is_asked) in [
        (format!("{RULES}\ndisable dyn_keepalive"), false),
        (format!("disable dyn_keepalive\n{RULES}\nenable dyn_keepalive"), true),
        // A state of a rule that drops, and one of a rule that translates, which has other addresses outside.
        ("add 20 deny tcp from any to any keep-state".into(), false),
        ("nat 1 config ip 10.0.0.9\nadd 20 nat 1 tcp from any to any keep-state".into(), false),
        ("pipe 1 config\nadd 20 pipe 1 tcp from any to any keep-state".into(), true),
    ] {
        let mut wire = Wire::new(&rules, 1, ENDS);
        for (to_server, seq, ack, flags) in
            [(true, 100, 0, tcp::SYN), (false, 500, 101, SYN_ACK), (true, 101, 501, tcp::ACK)]
        {
            wire.send(to_server, seq, ack, flags);
        }
        assert_eq!(!wire.wait(300).is_empty(), is_asked, "{rules}");
    }
    // Its rule is gone.
    let mut wire = Wire::new(RULES, 1, ENDS);
    wire.connect();
    wire.set = Wire::new("add 20 allow ip from any to any", 1, ENDS).set;
    assert_eq!(wire.wait(310), []);
}

#[test]
fn a_walk_through_many_states_is_in_steps() {
    const STATES: u16 = 3000;
    let mut wire = Wire::new(RULES, 1, ENDS);
    for port in 0..STATES {
        wire.ends.client.1 = 4000 + port;
        wire.connect();
    }
    wire.millis += 285_000;
    let (now, mut asked, mut steps) = (wire.now(), std::collections::HashSet::new(), 0);
    loop {
        let mut of_step = 0;
        wire.engines[0].ask_idle(&wire.set, now.millis, |_, bytes, _| {
            of_step += 1;
            asked.insert(bytes[..38].to_vec());
        });
        assert!(of_step <= 2 * unetmap_filter::EXAMINED_PER_CALL);
        steps += 1;
        if !wire.engines[0].is_asking_idle() {
            break;
        }
    }
    assert_eq!((asked.len(), steps), (2 * usize::from(STATES), 6));
}
