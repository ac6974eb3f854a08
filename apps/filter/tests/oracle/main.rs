// SPDX-License-Identifier: BSD-2-Clause
//! Random packets by random rule sets, against a naive evaluator that shares no code with the crate: it has its own
//! parser of packets, and the meaning of each rule as a function beside its text.
//!
//! `ORACLE_SETS` and `ORACLE_PACKETS` change how many rule sets, and packets for each (`make test-long`: 10,000 by
//! 100); `ORACLE_SEED` runs one rule set that failed.

mod naive;
mod packet;
mod random;
mod rules;

use std::net::IpAddr;

use unetmap_filter::{Config, Direction, Engine, HEADER_BYTES, Headers, Now, Verdict};

use naive::Naive;
use random::Random;
use rules::Style;

/// States that both tables hold, few enough to be full.
const STATES: usize = 12;

fn number(name: &str, default: u64) -> u64 {
    std::env::var(name).map_or(default, |text| text.parse().expect("a number"))
}

/// A rule set of `count` rules, as a script and as the naive evaluator has it.
fn rule_set(random: &mut Random, count: usize, max_number: u64, states: bool) -> (String, Naive) {
    let mut script = String::new();
    let tables: Vec<Vec<(IpAddr, u8, u32)>> = (0..random.below(3))
        .map(|_| {
            let mut entries: Vec<(IpAddr, u8, u32)> = Vec::new();
            for _ in 0..random.below(8) {
                let (address, bits) = match random.one_in(3) {
                    true => (IpAddr::V6(packet::address6(random)), *random.pick(&[128, 64])),
                    false => (IpAddr::V4(packet::address4(random)), *random.pick(&[32, 24, 16, 0])),
                };
                let is_same = |entry: &&mut (IpAddr, u8, u32)| {
                    entry.1 == bits && address.is_ipv4() == entry.0.is_ipv4() && rules::contains(entry.0, bits, address)
                };
                let value = random.below(4) as u32 * 10;
                match entries.iter_mut().find(is_same) {
                    Some(entry) => entry.2 = value,
                    None => entries.push((address, bits, value)),
                }
            }
            entries
        })
        .collect();
    for (i, entries) in tables.iter().enumerate() {
        script += &format!("table t{i} create\n");
        for (address, bits, value) in entries {
            script += &format!("table t{i} add {address}/{bits} {value}\n");
        }
    }
    let style = Style { tables: tables.len(), states, max_number };
    let mut list = Vec::new();
    for _ in 0..count {
        let (text, rule) = rules::rule(random, style);
        script += &format!("{text}\n");
        list.push(rule);
    }
    let disabled: Vec<u8> = (1..4).filter(|_| random.one_in(4)).collect();
    for set in &disabled {
        script += &format!("set disable {set}\n");
    }
    (script, Naive::new(list, disabled, tables, STATES))
}

/// Counts of verdicts, in the order of [`kind`].
type Tally = [u64; 6];

fn kind(verdict: Verdict) -> usize {
    match verdict {
        Verdict::Accept => 0,
        Verdict::Deny => 1,
        Verdict::Unreach(_) => 2,
        Verdict::Unreach6(_) => 3,
        Verdict::Reset | Verdict::Reset6 => 4,
        Verdict::Link(_) | Verdict::Nat(_) | Verdict::SynProxy(_) => {
            unreachable!("no rule of the oracle has a link, translates or completes handshakes")
        }
    }
}

/// Compares both evaluators on one rule set.
fn compare(seed: u64, packets: u64, count: usize, max_number: u64, tally: &mut Tally) {
    let mut random = Random::new(seed);
    let states = random.one_in(2);
    let (script, mut naive) = rule_set(&mut random, count, max_number, states);
    let config = Config::new(["one", "two"], 1, false);
    let (config, _) = config.apply(&script).unwrap_or_else(|e| panic!("seed {seed}: {e}\n{script}"));
    let set = config.compile();
    let mut engine = Engine::new(0, STATES, seed);
    let mut now = Now { millis: 1_000_000, seconds: 1000 };
    let mut earlier: Vec<Vec<u8>> = Vec::new();
    for i in 0..packets {
        // Half of the packets belong to few flows, in both directions.
        let frame = match random.below(4) {
            0 | 1 if !earlier.is_empty() => {
                let again = random.pick(&earlier).clone();
                let mut again = if random.one_in(2) { answer(&again) } else { again };
                // One that differs in little from a packet whose verdict is remembered.
                if !again.is_empty() && random.one_in(3) {
                    let at = random.below(again.len() as u64) as usize;
                    again[at] ^= 1 << random.below(8);
                }
                again
            }
            _ => packet::frame(&mut random),
        };
        if earlier.len() < 8 {
            earlier.push(frame.clone());
        }
        now.millis += *random.pick(&[0, 1, 100, 900, 3000]);
        let (out, bytes) = (random.one_in(2), frame.len() as u64);
        let expected = match packet::parse(&frame) {
            Some(fields) => naive.evaluate(&fields, out, bytes, now.millis),
            None => {
                tally[5] += 1;
                Verdict::Deny
            }
        };
        // What has expired counts no more, whether it was removed or not.
        engine.states.sweep(random.below(STATES as u64) as usize, now.millis);
        let direction = if out { Direction::Out } else { Direction::In };
        let found = match Headers::parse(&frame[..frame.len().min(HEADER_BYTES)], frame.len()) {
            Ok(headers) => engine.evaluate(&set, &headers, direction, bytes, now, |_| {}),
            Err(_) => Verdict::Deny,
        };
        let fields = packet::parse(&frame);
        assert_eq!(found, expected, "ORACLE_SEED={seed}, packet {i}, out {out}: {frame:02x?}\n{fields:?}\n{script}");
        tally[kind(found)] += 1;
    }
    for (rule, expected) in set.rules().iter().zip(&naive.rules) {
        let counts = rule.counters.get();
        assert_eq!(
            (counts.packets, counts.bytes),
            (expected.packets, expected.bytes),
            "ORACLE_SEED={seed}: counters of {} {}\n{script}",
            rule.number,
            rule.text
        );
    }
}

/// The frame with its IPv4 endpoints exchanged.
fn answer(frame: &[u8]) -> Vec<u8> {
    let mut frame = frame.to_vec();
    if frame.len() >= 38 && frame[12..15] == [8, 0, 0x45] {
        let (src, dst) = (frame[26..30].to_vec(), frame[30..34].to_vec());
        frame[26..30].copy_from_slice(&dst);
        frame[30..34].copy_from_slice(&src);
        if matches!(frame[23], 6 | 17) {
            frame[34..38].rotate_left(2);
        }
        if frame[23] == 6 && frame.len() >= 48 && frame[47] == 2 {
            frame[47] = 0x12;
        }
    }
    frame
}

#[test]
fn the_compiled_rules_agree_with_the_naive_evaluator() {
    let (sets, packets) = (number("ORACLE_SETS", 400), number("ORACLE_PACKETS", 100));
    let mut tally = Tally::default();
    let seeds = match std::env::var("ORACLE_SEED") {
        Ok(seed) => seed.parse().map(|seed| seed..seed + 1).expect("a number"),
        Err(_) => 0..sets,
    };
    for seed in seeds {
        let count = [1, 5, 20, 60, 150][seed as usize % 5];
        compare(seed, packets, count, [60, 1000, 60000][seed as usize % 3], &mut tally);
    }
    let [accept, deny, unreach, unreach6, reset, malformed] = tally;
    println!(
        "oracle: {} packets by {sets} rule sets agree: {accept} accepted, {deny} denied ({malformed} malformed), \
         {unreach} unreach, {unreach6} unreach6, {reset} reset",
        accept + deny + unreach + unreach6 + reset
    );
    if sets >= 100 {
        assert!(tally.iter().all(|&count| count > 0), "each verdict occurs: {tally:?}");
    }
}

#[test]
fn rule_sets_of_several_chunks_agree_with_the_naive_evaluator() {
    let mut tally = Tally::default();
    compare(77, 300, 9000, 60000, &mut tally);
}
