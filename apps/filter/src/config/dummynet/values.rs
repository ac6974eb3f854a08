// SPDX-License-Identifier: BSD-2-Clause
//! Values of dummynet's parameters.

use std::fmt::Write as _;
use std::time::Duration;

use unetmap_quantity::{count, ipfw_bandwidth, ipfw_bytes, milliseconds, share, within};
use unetmap_shape::aqm::{Codel, Pie};
use unetmap_shape::{Delay, Fq, Kind, Limit, Loss, Mask, Nanos, Rate, value};

use super::Result;
use crate::parse::number;
use crate::parse::words::Words;

/// ipfw's limits of a queue.
const MAX_SLOTS: u32 = 100;
const MAX_BYTES: u64 = 1_048_576;
const MIN_BYTES: u64 = 1500;
/// Highest bandwidth, bits per second.
const MAX_BANDWIDTH: u64 = 10_000_000_000_000;
/// Longest burst, bytes.
const MAX_BURST: u64 = (1 << 48) - 1;
/// Longest time of a queue manager.
const MAX_TIME: Duration = Duration::from_secs(3600);
/// ipfw's bound of PIE's alpha and beta.
const MAX_FACTOR: f64 = 7.0;

/// Reads `N[K|M|G]{bit/s|Byte/s}`. 0 is unlimited.
pub(super) fn bandwidth(words: &mut Words<'_>) -> Result<Rate> {
    let wrong = |_| "give a bandwidth such as 10Mbit/s or 1MByte/s, at most 10000Gbit/s; 0 for none".to_owned();
    let parse = |word: &str| within(ipfw_bandwidth, 0..=MAX_BANDWIDTH)(word).map_err(wrong);
    match quantity(words, "a bandwidth such as 10Mbit/s", parse)? {
        0 => Ok(Rate::Unlimited),
        bits => Ok(Rate::Bits(bits)),
    }
}

/// Reads milliseconds, or a time with its unit, or a distribution.
pub(super) fn delay(words: &mut Words<'_>) -> Result<Delay> {
    if words.peek().is_some_and(|word| word.starts_with('@')) {
        return Err(words.error_here("a file of a distribution is not supported here"));
    }
    quantity(words, "a delay in milliseconds", value::ipfw_delay)
}

/// Reads a number of bytes with an optional suffix.
pub(super) fn size(words: &mut Words<'_>) -> Result<u64> {
    quantity(words, "a number of bytes", within(ipfw_bytes, 0..=MAX_BURST))
}

/// Reads a word as `parse` does.
fn quantity<T>(words: &mut Words<'_>, what: &str, parse: impl Fn(&str) -> std::result::Result<T, String>) -> Result<T> {
    let word = words.required(what)?;
    parse(word).map_err(|why| words.error(format!("`{word}`: {why}")))
}

/// Reads slots, or bytes with a unit.
pub(super) fn limit(words: &mut Words<'_>) -> Result<Limit> {
    let word = words.required("the size of a queue")?;
    let wrong =
        || words.error(format!("`{word}`: give a queue of 1 to {MAX_SLOTS} slots, or of {MIN_BYTES}B to 1024KB"));
    let slots = word.strip_suffix("slots").unwrap_or(word);
    if slots.ends_with(|c: char| c.is_ascii_digit()) {
        let slots = within(count, 1..=u64::from(MAX_SLOTS))(slots);
        return slots.map(Limit::Packets).map_err(|_| wrong());
    }
    within(ipfw_bytes, MIN_BYTES..=MAX_BYTES)(word).map(Limit::Bytes).map_err(|_| wrong())
}

/// Reads `P`, or Gilbert's and Elliott's `K,p,H,r`: loss when good, good to bad, loss when bad, bad to good.
pub(super) fn loss(words: &mut Words<'_>) -> Result<Loss> {
    let word = words.required("a probability of loss")?;
    let wrong = |e| words.error(format!("`{word}`: {e}"));
    if word.contains(',') && !word.contains(':') {
        let parts: Vec<_> = word.split(',').map(share).collect::<std::result::Result<_, _>>().map_err(wrong)?;
        return match *parts.as_slice() {
            [good, p, bad, r] => Ok(Loss::GilbertElliott { p, r, bad, good }),
            _ => Err(wrong("give a probability, or four: K,p,H,r".into())),
        };
    }
    value::loss(word).map_err(wrong)
}

pub(super) fn probability(words: &mut Words<'_>) -> Result<f64> {
    quantity(words, "a probability", share)
}

/// Reads the words of a mask; returns it, and how it is shown.
pub(super) fn mask(words: &mut Words<'_>) -> Result<(Mask, String)> {
    let (mut mask, mut shown, mut any) = (Mask::default(), String::from(" mask"), false);
    while let Some(field) = words.peek() {
        let max = match field {
            "all" => 0,
            "src-ip" | "dst-ip" => 32,
            "src-ip6" | "dst-ip6" => 128,
            "src-port" | "dst-port" => 16,
            "proto" => 8,
            "flow-id" | "queue" if any => break,
            "flow-id" => return Err(words.error_here("the mask `flow-id` is not supported")),
            _ => break,
        };
        words.next();
        any = true;
        let _ = write!(shown, " {field}");
        if max == 0 {
            mask = Mask::ALL;
            continue;
        }
        let word = words.required("the bits of a mask")?;
        let _ = write!(shown, " {word}");
        let bits = match field {
            "src-ip6" | "dst-ip6" => {
                let len = word.trim_start_matches('/').parse::<u32>().ok().filter(|&len| len <= 128);
                len.map(|len| u128::MAX.checked_shl(128 - len).unwrap_or(0))
            }
            _ => bits(word, max),
        };
        let bits =
            bits.ok_or_else(|| words.error(format!("`{word}`: give a mask such as 0xff, or /N of {max} bits")))?;
        match field {
            "src-ip" => mask.v4[0] = bits as u32,
            "dst-ip" => mask.v4[1] = bits as u32,
            "src-ip6" => mask.v6[0] = bits,
            "dst-ip6" => mask.v6[1] = bits,
            "src-port" => mask.ports[0] = bits as u16,
            "dst-port" => mask.ports[1] = bits as u16,
            _ => mask.proto = bits as u8,
        }
    }
    if any {
        Ok((mask, shown))
    } else {
        Err(words.error_here("give a mask: all, src-ip, dst-ip, src-port, proto, ..."))
    }
}

/// Reads a number, or `/n` for the low n bits, of `max` bits.
fn bits(word: &str, max: u32) -> Option<u128> {
    if let Some(n) = word.strip_prefix('/') {
        let n: u32 = n.parse().ok().filter(|&n| n <= max)?;
        return Some((1u128 << n) - 1);
    }
    let number = match word.strip_prefix("0x") {
        Some(hex) => u64::from_str_radix(hex, 16).ok()?,
        None => word.parse().ok()?,
    };
    (number < 1u64 << max).then_some(number.into())
}

/// Reads a time above 0: milliseconds, or with a unit.
fn time(words: &mut Words<'_>) -> Result<Nanos> {
    let time = within(milliseconds, Duration::from_nanos(1)..=MAX_TIME);
    quantity(words, "a time such as 5ms", time).map(|time: Duration| time.as_nanos() as Nanos)
}

/// Reads the parameters of CoDel that come next.
pub(super) fn codel(words: &mut Words<'_>, mut codel: Codel) -> Result<Codel> {
    while codel_parameter(words, &mut codel)? {}
    Ok(codel)
}

/// Reads one parameter, with its value; returns false if the next word is none.
fn codel_parameter(words: &mut Words<'_>, codel: &mut Codel) -> Result<bool> {
    let Some(word @ ("target" | "interval" | "ecn" | "noecn")) = words.peek() else { return Ok(false) };
    words.next();
    match word {
        "target" => codel.target = time(words)?,
        "interval" => codel.interval = time(words)?,
        _ => codel.ecn = word == "ecn",
    }
    Ok(true)
}

/// Reads the parameters of PIE that come next.
pub(super) fn pie(words: &mut Words<'_>, mut pie: Pie) -> Result<Pie> {
    while pie_parameter(words, &mut pie)? {}
    Ok(pie)
}

/// As [`codel_parameter`].
fn pie_parameter(words: &mut Words<'_>, pie: &mut Pie) -> Result<bool> {
    let factor = |words: &mut Words<'_>| {
        let word = words.required("a number")?;
        let value = word.parse::<f64>().ok().filter(|value| (0.0..=MAX_FACTOR).contains(value));
        value.ok_or_else(|| words.error(format!("`{word}`: give a number from 0 to {MAX_FACTOR}")))
    };
    match words.peek() {
        Some(word @ ("target" | "tupdate" | "max_burst" | "alpha" | "beta" | "max_ecnth" | "ecn" | "noecn")) => {
            words.next();
            match word {
                "target" => pie.target = time(words)?,
                "tupdate" => pie.update = time(words)?,
                "max_burst" => pie.max_burst = time(words)?,
                "alpha" => pie.alpha = factor(words)?,
                "beta" => pie.beta = factor(words)?,
                "max_ecnth" => pie.max_ecn = probability(words)?,
                _ => pie.ecn = word == "ecn",
            }
            Ok(true)
        }
        Some(word @ ("derand" | "noderand" | "capdrop" | "nocapdrop" | "onoff" | "dre" | "ts")) => {
            Err(words.error_here(format!("the parameter `{word}` is not supported; leave it out")))
        }
        _ => Ok(false),
    }
}

/// As [`codel_parameter`], of the flows of `fq_codel` and `fq_pie`.
fn fq_parameter(words: &mut Words<'_>, fq: &mut Fq) -> Result<bool> {
    let Some(word @ ("quantum" | "limit" | "flows")) = words.peek() else { return Ok(false) };
    words.next();
    match word {
        "quantum" => fq.quantum = number(words, "a quantum", 256, 9000)?,
        "limit" => fq.limit = number(words, "a number of packets", 1, 20_480)?,
        _ => fq.flows = number(words, "a number of flows", 1, 65_536)?,
    }
    Ok(true)
}

/// Reads a parameter of a scheduler of this type, with its value; returns false if the next word is none.
pub(super) fn kind_parameter(words: &mut Words<'_>, kind: &mut Kind) -> Result<bool> {
    match kind {
        Kind::FqCodel(fq, codel) => Ok(fq_parameter(words, fq)? || codel_parameter(words, codel)?),
        Kind::FqPie(fq, pie) => Ok(fq_parameter(words, fq)? || pie_parameter(words, pie)?),
        _ => Ok(false),
    }
}

/// Returns a scheduler by the name of its type, with the parameters that it has if none are given.
pub(super) fn kind(name: &str) -> Option<Kind> {
    match name.to_ascii_lowercase().as_str() {
        "fifo" => Some(Kind::Fifo),
        "rr" => Some(Kind::Drr),
        "wf2q+" => Some(Kind::Wf2q),
        "qfq" => Some(Kind::Qfq),
        "fq_codel" => Some(Kind::FqCodel(Fq::default(), Codel { ecn: true, ..Codel::default() })),
        "fq_pie" => Some(Kind::FqPie(Fq::default(), Pie { ecn: true, ..Pie::default() })),
        "prio" => Some(Kind::Priority),
        _ => None,
    }
}
