// SPDX-License-Identifier: BSD-2-Clause
//! Time to parse and classify a packet of 60 bytes in a cache: `cargo bench -p unetmap-filter`.

use std::hint::black_box;
use std::time::{Duration, Instant};

use unetmap_filter::{Config, Direction, Engine, FETCH_STATES, Headers, Now, Ruleset};

/// Length of one measurement.
const TIME: Duration = Duration::from_millis(200);
/// Measurements of each case; the best is printed.
const SAMPLES: usize = 5;

/// A frame of 60 bytes, UDP, from one of 2^24 addresses.
fn frame(i: u32) -> [u8; 60] {
    let mut frame = [0; 60];
    frame[12..20].copy_from_slice(&[8, 0, 0x45, 0, 0, 46, 0, 0]);
    (frame[22], frame[23]) = (64, 17);
    frame[26..30].copy_from_slice(&(0x0a00_0000 | i & 0xff_ffff).to_be_bytes());
    frame[30..34].copy_from_slice(&[192, 168, 1, 1]);
    frame[34..38].copy_from_slice(&[0x80, 0, 0, 53]);
    frame
}

fn measure(name: &str, frames: &[[u8; 60]], set: &Ruleset, states: usize) {
    let (mut engine, mut headers) = (Engine::new(0, states, 1), [Headers::default(); FETCH_STATES]);
    let mut best = f64::MAX;
    for _ in 0..SAMPLES {
        let (begin, mut packets) = (Instant::now(), 0u64);
        while begin.elapsed() < TIME {
            for group in frames.chunks(FETCH_STATES) {
                let headers = &mut headers[..group.len()];
                for (headers, frame) in headers.iter_mut().zip(group) {
                    headers.set(black_box(frame), 60).expect("a valid frame");
                }
                engine.fetch(set, headers.iter());
                for headers in headers {
                    let now = Now { millis: 1, seconds: 1 };
                    black_box(engine.evaluate(set, headers, Direction::Out, 60, now, |_| {}));
                }
            }
            packets += frames.len() as u64;
        }
        best = best.min(begin.elapsed().as_secs_f64() * 1e9 / packets as f64);
    }
    println!("{name:24} {best:7.1} ns  {:6.1} Mpps", 1e3 / best);
}

fn main() {
    let compile = |script: &str| Config::new(["one", "two"], 1, false).apply(script).expect("valid rules").0.compile();
    let few: Vec<_> = (0..256).map(|i| frame(i * 0x1_0101)).collect();
    measure("1 rule, any tcp or udp", &few, &compile("add allow ip4 from any to any"), 0);
    // Too many flows for their verdicts to be remembered.
    let many: Vec<_> = (0..1_000_000u32).map(|i| frame(i.wrapping_mul(0x9e37_79b1))).collect();
    for rules in [10, 100, 1000, 10_000] {
        // Networks and ports that the packets do not have, then the rule that accepts them.
        let mut script = String::new();
        for i in 1..rules {
            let (a, b) = (i % 250, i / 250 % 250);
            script += &match i % 3 {
                0 => format!("add deny tcp from 172.{a}.{b}.0/24 to any dst-port {}\n", i % 1000),
                1 => format!("add deny udp from 10.{a}.{b}.0/24 to any dst-port {}\n", 1000 + i % 1000),
                _ => format!("add deny ip from any to 192.{a}.{b}.0/24\n"),
            };
        }
        script += "add allow udp from 10.0.0.0/8 to any dst-port 53\n";
        measure(&format!("{rules} rules"), &few, &compile(&script), 0);
        measure(&format!("{rules} rules, 10^6 flows"), &many, &compile(&script), 0);
    }
    let mut table = String::from("table t create\n");
    (0..1_000_000).for_each(|i| table += &format!("table t add 11.{}.{}.{}\n", i >> 16, i >> 8 & 255, i & 255));
    let set = compile(&format!("{table}add deny ip from table(t) to any\nadd allow ip from any to any"));
    measure("table of 1,000,000", &few, &set, 0);
    let keep = "add allow ip from any to any keep-state";
    measure("256 states", &few, &compile(keep), 1 << 10);
    measure("1,000,000 states", &many, &compile(keep), 1 << 20);
}
