// SPDX-License-Identifier: BSD-2-Clause
//! Rules of `unetmap-fw`, and packets: a script of commands to the first zero byte, then frames with their lengths.
//!
//! A script is applied or refused as a whole. A rule is listed in a form that is read as the same rule. Whatever a
//! packet is, it is evaluated, translated, answered or proxied. A verdict that is recalled is that of a fresh
//! evaluation.
#![no_main]

use libfuzzer_sys::fuzz_target;
use unetmap_filter::{Config, Direction, Effect, Engine, HEADER_BYTES, Headers, MAX_REPLY, Now, Verdict, reply};
use unetmap_fuzz::bytes::Bytes;

/// States of an engine: few, so that the table is full.
const STATES: usize = 8;

/// Rules as they are listed are read as the same rules.
fn check_listing(config: &Config) {
    for rule in config.rules() {
        // The default rule has a number of its own.
        let Some(number) = Some(rule.number).filter(|&number| number < u16::MAX) else { continue };
        let again = config.apply(&format!("add {number} set {} {}", rule.set, rule.text));
        let listed = again.unwrap_or_else(|e| panic!("`{}` is refused: {e}", rule.text)).1;
        assert_eq!(listed, format!("{number:05} {}\n", rule.text));
    }
}

fuzz_target!(|bytes: &[u8]| {
    let end = bytes.iter().position(|&byte| byte == 0).unwrap_or(bytes.len());
    let script = String::from_utf8_lossy(&bytes[..end]);
    let config = Config::new(["a", "b"], 1, false);
    let config = match config.apply(&script) {
        Ok((config, _)) => config,
        Err(e) => {
            assert!(e.line >= 1 && e.line <= script.lines().count().max(1) && e.column >= 1, "{e}");
            return;
        }
    };
    check_listing(&config);
    let set = config.compile();
    let (mut engine, mut other) = (Engine::new(0, STATES, 1), Engine::new(0, STATES, 1));
    let mut input = Bytes(&bytes[end.min(bytes.len())..]);
    input.byte();
    let mut now = Now { millis: 1000, seconds: 1 };
    while !input.0.is_empty() {
        let how = input.byte();
        let direction = if how & 1 == 0 { Direction::Out } else { Direction::In };
        now.millis += u64::from(how >> 1) * 50;
        let len = usize::from(input.byte()) * 2;
        let mut frame = input.take(len).to_vec();
        // Frames are longer than what is parsed of them.
        let len = frame.len() + usize::from(how & 2) * 600;
        frame.truncate(HEADER_BYTES);
        // The other engine recalls nothing.
        let recalled = engine.recall(&set, &frame, len, direction, now);
        let Ok(headers) = Headers::parse(&frame, len) else {
            assert_eq!(recalled, None, "no verdict is remembered for what is malformed");
            continue;
        };
        let mut changes = Vec::new();
        let verdict = match recalled {
            Some(verdict) => {
                assert_eq!(other.evaluate(&set, &headers, direction, len as u64, now, |_| {}), verdict);
                verdict
            }
            None => engine.evaluate(&set, &headers, direction, len as u64, now, |effect| {
                if let Effect::Change(change) = effect {
                    changes.push(change);
                }
            }),
        };
        let before = frame.len();
        for change in changes {
            change.write(&headers, &mut frame);
            let after = Headers::parse(&frame, len).expect("a changed packet is valid");
            assert_eq!(after, Headers { tos: after.tos, ..headers }, "{change:?}");
        }
        match verdict {
            Verdict::Nat(number) => {
                engine.translate(&set, number, direction, &headers, &mut frame, now);
            }
            Verdict::SynProxy(rule) => {
                engine.proxy(&set, rule, &headers, &mut frame, now, |_, bytes, len| {
                    Headers::parse(&bytes[..len], len).expect("what is sent is valid");
                });
            }
            _ => {
                let mut out = [0; MAX_REPLY];
                if let Some(len) = reply(verdict, &headers, &frame, &mut out) {
                    Headers::parse(&out[..len], len).expect("a reply is valid");
                }
            }
        }
        assert_eq!(frame.len(), before);
        engine.sweep(4, now.millis);
    }
    let counts = engine.states.counts();
    assert!(counts.states <= STATES as u64 && counts.states <= counts.created, "{counts:?}");
});
