// SPDX-License-Identifier: BSD-2-Clause
//! Values of dummynet's parameters.

use std::fmt::Write as _;

use unetmap_shape::aqm::{Codel, Pie};
use unetmap_shape::{Delay, Fq, Kind, Limit, Loss, Mask, Nanos, Rate, value};

use super::Result;
use crate::parse::number;
use crate::parse::words::Words;

/// ipfw's limits of a queue.
const MAX_SLOTS: u32 = 100;
const MAX_BYTES: u64 = 1_048_576;
const MIN_BYTES: u64 = 1500;

/// Reads `N[K|M|G]{bit/s|Byte/s}`. 0 is unlimited.
pub(super) fn bandwidth(words: &mut Words<'_>) -> Result<Rate> {
    let word = words.required("a bandwidth such as 10Mbit/s")?;
    let wrong = || words.error(format!("`{word}`: give a bandwidth such as 10Mbit/s, 0 for none"));
    let digits = word.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(word.len());
    let (value, unit) = word.split_at(digits);
    let value: f64 = value.parse().map_err(|_| wrong())?;
    let (scale, unit) = match unit.chars().next().map(|c| c.to_ascii_lowercase()) {
        Some('k') => (1e3, &unit[1..]),
        Some('m') => (1e6, &unit[1..]),
        Some('g') => (1e9, &unit[1..]),
        _ => (1.0, unit),
    };
    let bits = match unit {
        "" | "bit/s" | "bits/s" | "b/s" | "bps" | "Bit/s" | "Bits/s" => 1.0,
        "B" | "B/s" | "Byte/s" | "Bytes/s" | "byte/s" | "bytes/s" => 8.0,
        _ => return Err(wrong()),
    };
    let rate = value * scale * bits;
    match rate {
        0.0 => Ok(Rate::Unlimited),
        rate if (1.0..=1e13).contains(&rate) => Ok(Rate::Bits(rate as u64)),
        _ => Err(wrong()),
    }
}

/// Reads milliseconds, or a distribution with units.
pub(super) fn delay(words: &mut Words<'_>) -> Result<Delay> {
    let word = words.required("a delay in milliseconds")?;
    let text = if word.parse::<f64>().is_ok() { format!("{word}ms") } else { word.to_owned() };
    if text.starts_with('@') {
        return Err(words.error("a file of a distribution is not supported here"));
    }
    let delay = value::delay(&text).map_err(|e| words.error(format!("`{word}`: {e}")))?;
    Ok(delay)
}

/// Reads a number of bytes with an optional suffix.
pub(super) fn size(words: &mut Words<'_>) -> Result<u64> {
    let word = words.required("a number of bytes")?;
    let (digits, scale) = match word.chars().last() {
        Some('k' | 'K') => (&word[..word.len() - 1], 1 << 10),
        Some('m' | 'M') => (&word[..word.len() - 1], 1 << 20),
        Some('g' | 'G') => (&word[..word.len() - 1], 1 << 30),
        _ => (word, 1u64),
    };
    let bytes = digits.parse::<u64>().ok().and_then(|n| n.checked_mul(scale)).filter(|&n| n < 1 << 48);
    bytes.ok_or_else(|| words.error(format!("`{word}`: give a number of bytes, with an optional suffix K, M or G")))
}

/// Reads slots, or bytes with a unit.
pub(super) fn limit(words: &mut Words<'_>) -> Result<Limit> {
    let word = words.required("the size of a queue")?;
    let wrong =
        || words.error(format!("`{word}`: give a queue of 1 to {MAX_SLOTS} slots, or of {MIN_BYTES}B to 1024KB"));
    let lower = word.to_ascii_lowercase();
    let digits = lower.find(|c: char| !c.is_ascii_digit()).unwrap_or(lower.len());
    let n: u64 = lower[..digits].parse().map_err(|_| wrong())?;
    let bytes = match &lower[digits..] {
        "" | "slots" if (1..=u64::from(MAX_SLOTS)).contains(&n) => return Ok(Limit::Packets(n as u32)),
        "b" | "bytes" | "byte" => n,
        "k" | "kb" | "kbytes" | "kbyte" => n.saturating_mul(1024),
        "m" | "mb" | "mbytes" | "mbyte" => n.saturating_mul(1 << 20),
        _ => return Err(wrong()),
    };
    if (MIN_BYTES..=MAX_BYTES).contains(&bytes) { Ok(Limit::Bytes(bytes)) } else { Err(wrong()) }
}

/// Reads `P`, or Gilbert's and Elliott's `K,p,H,r`: loss when good, good to bad, loss when bad, bad to good.
pub(super) fn loss(words: &mut Words<'_>) -> Result<Loss> {
    let word = words.required("a probability of loss")?;
    let wrong = |e| words.error(format!("`{word}`: {e}"));
    if word.contains(',') && !word.contains(':') {
        let parts: Vec<_> =
            word.split(',').map(value::probability).collect::<std::result::Result<_, _>>().map_err(wrong)?;
        return match *parts.as_slice() {
            [good, p, bad, r] => Ok(Loss::GilbertElliott { p, r, bad, good }),
            _ => Err(wrong("give a probability, or four: K,p,H,r".into())),
        };
    }
    value::loss(word).map_err(wrong)
}

pub(super) fn probability(words: &mut Words<'_>) -> Result<f64> {
    let word = words.required("a probability")?;
    value::probability(word).map_err(|e| words.error(format!("`{word}`: {e}")))
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

/// Reads a time: milliseconds, or with a unit.
fn time(words: &mut Words<'_>) -> Result<Nanos> {
    let word = words.required("a time such as 5ms")?;
    let text = if word.parse::<f64>().is_ok() { format!("{word}ms") } else { word.to_owned() };
    let nanos = value::time(&text).filter(|&nanos| nanos > 0);
    nanos.ok_or_else(|| words.error(format!("`{word}`: give a time such as 5ms, above 0")))
}

pub(super) fn codel(words: &mut Words<'_>, mut codel: Codel) -> Result<Codel> {
    while let Some(word) = words.peek().filter(|word| matches!(*word, "target" | "interval" | "ecn" | "noecn")) {
        words.next();
        match word {
            "target" => codel.target = time(words)?,
            "interval" => codel.interval = time(words)?,
            _ => codel.ecn = word == "ecn",
        }
    }
    Ok(codel)
}

pub(super) fn pie(words: &mut Words<'_>, mut pie: Pie) -> Result<Pie> {
    let factor = |words: &mut Words<'_>, max: f64| {
        let word = words.required("a number")?;
        let value = word.parse::<f64>().ok().filter(|value| (0.0..=max).contains(value));
        value.ok_or_else(|| words.error(format!("`{word}`: give a number from 0 to {max}")))
    };
    loop {
        match words.peek() {
            Some(word @ ("target" | "tupdate" | "max_burst" | "alpha" | "beta" | "max_ecnth" | "ecn" | "noecn")) => {
                words.next();
                match word {
                    "target" => pie.target = time(words)?,
                    "tupdate" => pie.update = time(words)?,
                    "max_burst" => pie.max_burst = time(words)?,
                    "alpha" => pie.alpha = factor(words, 7.0)?,
                    "beta" => pie.beta = factor(words, 7.0)?,
                    "max_ecnth" => pie.max_ecn = factor(words, 1.0)?,
                    _ => pie.ecn = word == "ecn",
                }
            }
            Some(word @ ("derand" | "noderand" | "capdrop" | "nocapdrop" | "onoff" | "dre" | "ts")) => {
                return Err(words.error_here(format!("the parameter `{word}` is not supported")));
            }
            _ => return Ok(pie),
        }
    }
}

pub(super) fn kind(words: &mut Words<'_>) -> Result<Kind> {
    let word = words.required("a scheduler: fifo, rr, wf2q+, qfq, fq_codel or fq_pie")?;
    let (mut fq, ecn_codel) = (Fq::default(), Codel { ecn: true, ..Codel::default() });
    let mut parameters = |words: &mut Words<'_>| -> Result<()> {
        while let Some(word) = words.peek().filter(|word| matches!(*word, "quantum" | "limit" | "flows")) {
            words.next();
            match word {
                "quantum" => fq.quantum = number(words, "a quantum", 256, 9000)?,
                "limit" => fq.limit = number(words, "a number of packets", 1, 20_480)?,
                _ => fq.flows = number(words, "a number of flows", 1, 65_536)?,
            }
        }
        Ok(())
    };
    match word.to_ascii_lowercase().as_str() {
        "fifo" => Ok(Kind::Fifo),
        "rr" => Ok(Kind::Drr),
        "wf2q+" => Ok(Kind::Wf2q),
        "qfq" => Ok(Kind::Qfq),
        "fq_codel" => {
            parameters(words)?;
            let codel = codel(words, ecn_codel)?;
            parameters(words)?;
            Ok(Kind::FqCodel(fq, codel))
        }
        "fq_pie" => {
            parameters(words)?;
            let pie = pie(words, Pie { ecn: true, ..Pie::default() })?;
            parameters(words)?;
            Ok(Kind::FqPie(fq, pie))
        }
        "prio" => Ok(Kind::Priority),
        _ => Err(words.error(format!("`{word}`: give fifo, rr, wf2q+, qfq, prio, fq_codel or fq_pie"))),
    }
}
