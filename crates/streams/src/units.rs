// SPDX-License-Identifier: BSD-2-Clause
//! Numbers with units: rates, times and sizes, as `100kpps`, `2.5Gbps`, `50%`, `10ms`.

use crate::SECOND;
use crate::packet::{MAX_SIZE, Sizes};
use crate::schedule::{Rate, Unit};

/// Bits per second of a link of unknown speed.
pub const DEFAULT_LINK: u64 = 10_000_000_000;

/// Splits `2.5G` into 2.5e9; without a prefix the factor is 1.
fn scaled(text: &str) -> Option<f64> {
    let factor = match text.chars().last()? {
        'k' | 'K' => 1e3,
        'M' => 1e6,
        'G' => 1e9,
        _ => 1.0,
    };
    let digits = text.trim_end_matches(['k', 'K', 'M', 'G']);
    (digits.len() + 1 >= text.len()).then_some(())?;
    let plain = !digits.is_empty() && digits.bytes().all(|c| c.is_ascii_digit() || c == b'.');
    plain.then(|| digits.parse::<f64>().ok().map(|n| n * factor))?.filter(|n| (1e-3..=1e15).contains(n))
}

/// Parses bits per second, as `10G`, `10Gbps` or `100M`.
///
/// # Errors
/// A sentence that says what is allowed.
pub fn parse_link(text: &str) -> Result<u64, String> {
    let number = scaled(text.strip_suffix("bps").unwrap_or(text)).filter(|n| *n >= 1e3);
    number
        .map(|n| n as u64)
        .ok_or_else(|| format!("`{text}` is not a link's speed, as in 10G (bits per second, 1k at least)"))
}

/// Parses a rate: `100kpps` (or `100k`), `1Gbps` (bits of packets), `50%` (of the link, with framing).
pub(crate) fn rate(text: &str, link: u64) -> Result<Rate, String> {
    let bad = || format!("`{text}` is not a rate above 0, as in 100kpps, 2.5Gbps or 50% (prefixes are k, M and G)");
    let (number, unit) = if let Some(share) = text.strip_suffix('%') {
        let share = scaled(share).filter(|share| *share <= 100.0).ok_or_else(bad)?;
        (share / 100.0 * link as f64, Unit::LinkBits)
    } else if let Some(bits) = text.strip_suffix("bps") {
        (scaled(bits).ok_or_else(bad)?, Unit::Bits)
    } else {
        (scaled(text.strip_suffix("pps").unwrap_or(text)).ok_or_else(bad)?, Unit::Packets)
    };
    Rate::new(number, unit).ok_or_else(bad)
}

/// Parses a time, as `1.5s`, `10ms`, `20us` or `500ns`, into nanoseconds.
pub(crate) fn time(text: &str) -> Result<u64, String> {
    let bad = || format!("`{text}` is not a time, as in 1.5s, 10ms, 20us or 500ns");
    let units = [("ns", 1.0), ("us", 1e3), ("ms", 1e6), ("s", SECOND as f64)];
    let (digits, factor) = units.iter().find_map(|(unit, f)| Some((text.strip_suffix(unit)?, f))).ok_or_else(bad)?;
    let number = digits.parse::<f64>().map_err(|_| bad())? * factor;
    // At most 11 days.
    if (0.0..=1e15).contains(&number) { Ok(number.round() as u64) } else { Err(bad()) }
}

/// Parses a size: `64`, `64-1514` or `imix`.
pub(crate) fn sizes(text: &str) -> Result<Sizes, String> {
    let bad = || format!("`{text}` is not a size: give bytes as 60, a range as 60-1514, or imix");
    let one = |text: &str| text.parse::<usize>().ok().filter(|n| (1..=MAX_SIZE).contains(n)).ok_or_else(bad);
    match text.split_once('-') {
        _ if text == "imix" => Ok(Sizes::Imix),
        None => one(text).map(Sizes::Fixed),
        Some((from, to)) => {
            let (from, to) = (one(from)?, one(to)?);
            if from <= to { Ok(Sizes::Range(from, to)) } else { Err(bad()) }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_have_three_units() {
        let parsed = |text| rate(text, 10_000_000_000).map(|r| (r.per_second(), r.unit()));
        assert_eq!(parsed("100kpps"), Ok((1e5, Unit::Packets)));
        assert_eq!(parsed("0.5"), Ok((0.5, Unit::Packets)));
        assert_eq!(parsed("2.5Gbps"), Ok((2.5e9, Unit::Bits)));
        assert_eq!(parsed("25%"), Ok((2.5e9, Unit::LinkBits)));
        for bad in ["", "0", "-1", "101%", "1T", "1kk", "1e9", "fast", "NaN", "inf", "k", "%", "1..2"] {
            assert!(rate(bad, 1).is_err(), "{bad}");
        }
    }

    #[test]
    fn times_and_sizes_are_parsed() {
        for (text, ns) in [("1.5s", 1_500_000_000), ("10ms", 10_000_000), ("20us", 20_000), ("500ns", 500), ("0s", 0)] {
            assert_eq!(time(text), Ok(ns), "{text}");
        }
        for bad in ["", "5", "s", "-1s", "1h", "1e9s", "NaNs"] {
            assert!(time(bad).is_err(), "{bad}");
        }
        assert_eq!(sizes("60"), Ok(Sizes::Fixed(60)));
        assert_eq!(sizes("60-1514"), Ok(Sizes::Range(60, 1514)));
        assert_eq!(sizes("imix"), Ok(Sizes::Imix));
        for bad in ["", "-", "70-60", "65536", "IMIX", "6o"] {
            assert!(sizes(bad).is_err(), "{bad}");
        }
        assert_eq!(parse_link("10Gbps"), Ok(10_000_000_000));
        assert_eq!(parse_link("100M"), Ok(100_000_000));
        assert!(parse_link("1").is_err());
    }
}
