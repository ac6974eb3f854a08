// SPDX-License-Identifier: BSD-2-Clause
//! `limit` counts states that have not expired, although nothing else has removed the others yet.

use unetmap_filter::{Config, Direction, Engine, Headers, Now, Ruleset, Verdict, tcp};

/// A TCP segment to port 80 of 10.0.0.2, from this port of 10.0.0.1; or, with `is_answer`, back.
fn segment(port: u16, flags: u8, is_answer: bool) -> Vec<u8> {
    let mut frame = vec![0; 54];
    frame[12..17].copy_from_slice(&[8, 0, 0x45, 0, 0]);
    (frame[17], frame[22], frame[23]) = (40, 64, 6);
    let (mut ends, mut ports) = ([[10, 0, 0, 1], [10, 0, 0, 2]], [port, 80]);
    if is_answer {
        ends.reverse();
        ports.reverse();
    }
    frame[26..34].copy_from_slice(ends.as_flattened());
    frame[34..36].copy_from_slice(&ports[0].to_be_bytes());
    frame[36..38].copy_from_slice(&ports[1].to_be_bytes());
    (frame[46], frame[47]) = (0x50, flags);
    frame
}

fn rules(most: u32) -> Ruleset {
    let script = format!("add 10 check-state\nadd 20 allow tcp from any to any setup limit src-addr {most}");
    Config::new(["one", "two"], 2, false).apply(&script).expect("rules").0.compile()
}

/// Nothing is swept.
fn evaluate(engine: &mut Engine, set: &Ruleset, frame: &[u8], millis: u64) -> Verdict {
    let headers = Headers::parse(frame, frame.len()).expect("a valid frame");
    engine.evaluate(set, &headers, Direction::Out, 54, Now { millis, seconds: millis / 1000 }, |_| {})
}

#[test]
fn expired_states_make_room_at_once() {
    let set = rules(3);
    let mut engine = Engine::new(0, 64, 1);
    let mut send = |port, flags, is_answer, millis| {
        (evaluate(&mut engine, &set, &segment(port, flags, is_answer), millis), engine.states.counts())
    };
    for (port, millis) in [(1, 0), (2, 5_000), (3, 10_000)] {
        assert_eq!(send(port, tcp::SYN, false, millis).0, Verdict::Accept);
    }
    // A state of a connection request lives for 20 s.
    let (verdict, counts) = send(4, tcp::SYN, false, 19_999);
    assert_eq!((verdict, counts.limited, counts.states), (Verdict::Deny, 1, 3));
    let (verdict, counts) = send(4, tcp::SYN, false, 20_000);
    assert_eq!((verdict, counts.limited, counts.states), (Verdict::Accept, 1, 3));
    let (verdict, counts) = send(5, tcp::SYN, false, 24_999);
    assert_eq!((verdict, counts.limited, counts.states), (Verdict::Deny, 2, 3));
    assert_eq!(send(5, tcp::SYN, false, 25_000).0, Verdict::Accept);
    // The server resets one: its lifetime becomes a second.
    assert_eq!(send(4, tcp::RST | tcp::ACK, true, 25_100).0, Verdict::Accept);
    assert_eq!(send(6, tcp::SYN, false, 26_099).0, Verdict::Deny);
    let (verdict, counts) = send(6, tcp::SYN, false, 26_100);
    assert_eq!((verdict, counts.limited, counts.states, counts.created), (Verdict::Accept, 3, 3, 6));
}

#[test]
fn states_of_other_threads_make_room() {
    let set = rules(40);
    let mut engines = Engine::for_threads(2, 65_536, 7);
    // In many parts of the shared table.
    for port in 1..=40 {
        let engine = &mut engines[usize::from(port % 2)];
        assert_eq!(evaluate(engine, &set, &segment(port, tcp::SYN, false), port.into()), Verdict::Accept);
    }
    for engine in &mut engines {
        assert_eq!(evaluate(engine, &set, &segment(99, tcp::SYN, false), 20_000), Verdict::Deny);
    }
    assert_eq!(engines[0].states.counts().limited, 2);
    // Those of ports 1 to 9 have expired.
    for (i, port) in (100..110).enumerate() {
        let verdict = evaluate(&mut engines[i % 2], &set, &segment(port, tcp::SYN, false), 20_009);
        assert_eq!(verdict == Verdict::Accept, i < 9, "port {port}");
    }
    let counts = engines[1].states.counts();
    assert_eq!((counts.states, counts.created, counts.limited), (40, 49, 3));
}

#[test]
fn a_value_with_many_states_is_not_searched_for_each_packet() {
    const MOST: u32 = 20_000;
    let set = rules(MOST);
    let mut engine = Engine::new(0, 32_768, 1);
    for port in 1..=MOST {
        // They expire one after the other, a millisecond apart.
        assert_eq!(evaluate(&mut engine, &set, &segment(port as u16, tcp::SYN, false), port.into()), Verdict::Accept);
    }
    // More room than the packets take is found by few searches: of 20,000 states, one each 78 ms.
    let (mut admitted, mut searches, mut before) = (0, 0, engine.states.counts().states);
    for i in 0..2000u64 {
        let frame = segment(40_000 + (i % 20_000) as u16, tcp::SYN, false);
        admitted += u32::from(evaluate(&mut engine, &set, &frame, 20_001 + i) == Verdict::Accept);
        let states = engine.states.counts().states;
        searches += u32::from(states < before);
        before = states;
    }
    assert!((1900..=2000).contains(&admitted), "{admitted}");
    assert!((1..=27).contains(&searches), "{searches}");
}
