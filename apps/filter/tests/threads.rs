// SPDX-License-Identifier: BSD-2-Clause
//! Several threads evaluate packets: a flow has one state, whichever threads its packets come to, and limits count the
//! states of all.

use std::sync::Barrier;

use unetmap_filter::{Config, Direction, Engine, Headers, Now, Ruleset, Translated, Verdict, tcp};

const THREADS: usize = 4;

/// A TCP segment, or with `flags` 0 a UDP packet, between 10.0.a.b and 10.1.0.1.
fn frame(host: u16, port: u16, back: bool, flags: u8) -> Vec<u8> {
    let mut frame = vec![0; 60];
    frame[12..17].copy_from_slice(&[8, 0, 0x45, 0, 0]);
    (frame[17], frame[22], frame[23]) = (46, 64, if flags == 0 { 17 } else { 6 });
    let [high, low] = host.to_be_bytes();
    let mut ends = [([10, 0, high, low], port), ([10, 1, 0, 1], 80)];
    if back {
        ends.reverse();
    }
    for (i, (address, port)) in ends.into_iter().enumerate() {
        frame[26 + i * 4..30 + i * 4].copy_from_slice(&address);
        frame[34 + i * 2..36 + i * 2].copy_from_slice(&u16::to_be_bytes(port));
    }
    (frame[46], frame[47]) = (0x50, flags);
    frame
}

fn rules(script: &str) -> Ruleset {
    Config::new(["a", "b"], THREADS, false).apply(script).unwrap_or_else(|e| panic!("{e}")).0.compile()
}

const NOW: Now = Now { millis: 1000, seconds: 1 };

fn evaluate(engine: &mut Engine, set: &Ruleset, frame: &[u8], direction: Direction) -> Verdict {
    let headers = Headers::parse(frame, frame.len()).expect("a valid frame");
    engine.evaluate(set, &headers, direction, frame.len() as u64, NOW, |_| {})
}

#[test]
fn an_answer_finds_the_state_at_any_thread_under_concurrent_use() {
    const FLOWS: u16 = 2000;
    let set = rules("add 10 check-state\nadd 20 allow udp from any to any 80 out keep-state");
    let engines = Engine::for_threads(THREADS, usize::from(FLOWS) * THREADS * 2, 7);
    let barrier = Barrier::new(THREADS);
    let engines: Vec<Engine> = std::thread::scope(|scope| {
        let threads: Vec<_> = engines
            .into_iter()
            .enumerate()
            .map(|(i, mut engine)| {
                let (set, barrier) = (&set, &barrier);
                scope.spawn(move || {
                    let host = |thread: usize| thread as u16;
                    // Nobody's answers are refused, also while others install states.
                    for port in 1..=FLOWS {
                        let question = frame(host(i), port, false, 0);
                        assert_eq!(evaluate(&mut engine, set, &question, Direction::Out), Verdict::Accept);
                        let unasked = frame(99, port, true, 0);
                        assert_eq!(evaluate(&mut engine, set, &unasked, Direction::In), Verdict::Deny);
                        engine.sweep(16, NOW.millis);
                    }
                    barrier.wait();
                    // The questions of all other threads are answered at this one.
                    for other in 0..THREADS {
                        for port in 1..=FLOWS {
                            let answer = frame(host(other), port, true, 0);
                            let verdict = evaluate(&mut engine, set, &answer, Direction::In);
                            assert_eq!(verdict, Verdict::Accept, "flow {port} of {other} at {i}");
                        }
                    }
                    engine
                })
            })
            .collect();
        threads.into_iter().map(|thread| thread.join().expect("no panic")).collect()
    });
    let all = u64::from(FLOWS) * THREADS as u64;
    let counts = engines[0].shared_tables().expect("several threads").counts().0;
    assert_eq!((counts.states, counts.created, counts.full), (all, all, 0));
    assert_eq!(engines[3].states.list(NOW.millis).len() as u64, all);
    let counted = set.rules()[1].counters.get().packets;
    assert_eq!(counted, all + all * THREADS as u64, "each packet that passed, by all threads");
}

#[test]
fn limits_count_the_states_of_all_threads() {
    let set = rules("add allow tcp from any to any setup limit src-addr 5");
    let mut engines = Engine::for_threads(THREADS, 65536, 7);
    let mut allowed = [0; 3];
    for port in 1..=40 {
        for (host, allowed) in (0..).zip(&mut allowed) {
            let engine = &mut engines[usize::from(port) % THREADS];
            let verdict = evaluate(engine, &set, &frame(host, port, false, tcp::SYN), Direction::Out);
            *allowed += u32::from(verdict == Verdict::Accept);
        }
    }
    assert_eq!(allowed, [5; 3]);
    assert_eq!(engines[0].states.counts().limited, 35 * 3);
}

#[test]
fn connections_are_translated_back_at_another_thread() {
    let set = rules("nat 1 config ip 192.0.2.1 deny_in\nadd nat 1 ip from any to any");
    let mut engines = Engine::for_threads(2, 1024, 7);
    engines[0].log_nat();
    for port in 1..100 {
        let mut question = frame(1, port, false, 0);
        let headers = Headers::parse(&question, question.len()).expect("valid");
        let translated = engines[0].translate(&set, 1, Direction::Out, &headers, &mut question, NOW);
        assert_eq!((translated, &question[26..30]), (Translated::Pass, &[192, 0, 2, 1][..]));
        let mut answer = frame(1, port, true, 0);
        answer[30..34].copy_from_slice(&question[26..30]);
        answer[36..38].copy_from_slice(&question[34..36]);
        let headers = Headers::parse(&answer, answer.len()).expect("valid");
        let translated = engines[1].translate(&set, 1, Direction::In, &headers, &mut answer, NOW);
        assert_eq!((translated, &answer[30..38]), (Translated::Pass, &frame(1, port, true, 0)[30..38]));
    }
    assert_eq!(engines[1].nat_counts().connections, 99);
    // The log is that of both.
    let mut events = Vec::new();
    engines[1].take_nat_events(&mut events);
    engines[0].take_nat_events(&mut events);
    assert_eq!(events.iter().filter(|event| event.change == unetmap_filter::NatChange::Begins).count(), 99);
}

#[test]
fn a_cookie_is_valid_at_another_thread() {
    let set = rules("add synproxy tcp from any to any 80");
    let mut engines = Engine::for_threads(2, 1024, 7);
    let mut pass = |thread: usize, bytes: &[u8], direction| {
        let (mut bytes, engine) = (bytes.to_vec(), &mut engines[thread]);
        let headers = Headers::parse(&bytes, bytes.len()).expect("valid");
        let verdict = engine.evaluate(&set, &headers, direction, 60, NOW, |_| {});
        let Verdict::SynProxy(rule) = verdict else { panic!("{verdict:?}") };
        let mut sent = Vec::new();
        engine
            .proxy(&set, rule, &headers, &mut bytes, NOW, |back, frame, len| sent.push((back, frame[..len].to_vec())));
        sent
    };
    let answer = pass(0, &frame(1, 5, false, tcp::SYN), Direction::Out).swap_remove(0).1;
    let cookie = u32::from_be_bytes(answer[38..42].try_into().unwrap());
    let mut ack = frame(1, 5, false, tcp::ACK);
    ack[38..46].copy_from_slice(&[1u32.to_be_bytes(), (cookie + 1).to_be_bytes()].concat());
    let request = pass(1, &ack, Direction::Out);
    assert!(matches!(&request[..], [(false, frame)] if frame[47] == tcp::SYN), "{request:?}");
    let mut syn_ack = frame(1, 5, true, tcp::SYN | tcp::ACK);
    syn_ack[42..46].copy_from_slice(&1u32.to_be_bytes());
    assert_eq!(pass(0, &syn_ack, Direction::In).len(), 2, "the server's acknowledgement, and the client's window");
}

/// Threads take new rules one after the other.
#[test]
fn a_state_of_a_rule_that_a_thread_does_not_have_yet_stays() {
    let config = Config::new(["a", "b"], 2, false).apply("add 10 allow udp from any to any 80 keep-state").unwrap().0;
    let old = config.compile();
    let new = config.apply("add 5 allow udp from any to any 80 keep-state").unwrap().0.compile();
    let mut engines = Engine::for_threads(2, 1024, 7);
    assert_eq!(evaluate(&mut engines[0], &new, &frame(1, 9, false, 0), Direction::Out), Verdict::Accept);
    // By the old rules nobody has asked.
    assert_eq!(evaluate(&mut engines[1], &old, &frame(1, 9, true, 0), Direction::In), Verdict::Deny);
    assert_eq!(evaluate(&mut engines[1], &new, &frame(1, 9, true, 0), Direction::In), Verdict::Accept);
}
