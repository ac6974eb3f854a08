// SPDX-License-Identifier: BSD-2-Clause
//! Numbers with units: rates, times and sizes, as `100kpps`, `2.5Gbps`, `50%`, `10ms`.

use std::time::Duration;

use unetmap_quantity::{bit_rate, bytes, packet_rate, share, within};

use crate::packet::{MAX_SIZE, Sizes};
use crate::schedule::{Rate, Unit};

/// Bits per second of a link of unknown speed.
pub const DEFAULT_LINK: u64 = 10_000_000_000;
/// Slowest and fastest link, bits per second.
const LINK: std::ops::RangeInclusive<u64> = 1000..=1_000_000_000_000_000;
/// Packets or bits per second.
const RATE: std::ops::RangeInclusive<f64> = 1e-3..=1e15;
/// About 11 days.
const MAX_TIME: Duration = Duration::from_secs(1_000_000);

/// Parses the speed of a link: `10Gbit`, `100M`.
///
/// # Errors
/// A sentence that says what is allowed.
pub fn parse_link(text: &str) -> Result<u64, String> {
    within(bit_rate, LINK)(text).map_err(|_| {
        format!("`{text}` is not a link's speed: give bits per second, as in 10G or 100Mbit, from 1k to 1000000G")
    })
}

/// Parses a rate: `100kpps` (or `100000`), `1Gbit` (bits of packets), `50%` (of the link, with framing).
pub(crate) fn rate(text: &str, link: u64) -> Result<Rate, String> {
    let bad = |why: &str| format!("`{text}` is not a rate above 0: {why}; or a share as 50% (prefixes are k, M and G)");
    let (number, unit) = if text.ends_with('%') {
        (share(text).map_err(|why| bad(&why))? * link as f64, Unit::LinkBits)
    } else if text.ends_with(|c: char| c.is_ascii_digit()) {
        (packet_rate(text).map_err(|why| bad(&why))?.as_f64(), Unit::Packets)
    } else {
        match unetmap_quantity::rate(text).map_err(|why| bad(&why))? {
            unetmap_quantity::Rate::Packets(number) => (number.as_f64(), Unit::Packets),
            unetmap_quantity::Rate::Bits(number) => (number.as_f64(), Unit::Bits),
        }
    };
    let rate = Some(number).filter(|number| RATE.contains(number)).and_then(|number| Rate::new(number, unit));
    rate.ok_or_else(|| bad("give 0.001 to 1e15 a second, as in 100kpps or 2.5Gbit"))
}

/// Parses a time, as `1.5s`, `10ms`, `20us` or `500ns`, into nanoseconds.
pub(crate) fn time(text: &str) -> Result<u64, String> {
    let time = within(unetmap_quantity::time, Duration::ZERO..=MAX_TIME)(text);
    time.map(|time: Duration| time.as_nanos() as u64)
        .map_err(|why| format!("`{text}` is not a time, as in 1.5s, 10ms, 20us or 500ns: {why}"))
}

/// Parses a size: `64`, `64-1514` or `imix`.
pub(crate) fn sizes(text: &str) -> Result<Sizes, String> {
    let bad = || format!("`{text}` is not a size: give bytes as 60, a range as 60-1514, or imix");
    let one = |text: &str| within(bytes, 1..=MAX_SIZE as u64)(text).map_err(|_: String| bad());
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
        for text in ["2.5Gbps", "2.5Gbit", "2.5gbit/s", "2500Mbit"] {
            assert_eq!(parsed(text), Ok((2.5e9, Unit::Bits)), "{text}");
        }
        assert_eq!(parsed("25%"), Ok((2.5e9, Unit::LinkBits)));
        for bad in ["", "0", "-1", "101%", "1T", "1kk", "1e19", "fast", "NaN", "inf", "k", "%", "1..2"] {
            assert!(rate(bad, 1).is_err(), "{bad}");
        }
        let error = rate("100M", 1).unwrap_err();
        assert!(error.contains("100Mpps") && error.contains("100Mbit"), "{error}");
    }

    #[test]
    fn times_and_sizes_are_parsed() {
        for (text, ns) in [("1.5s", 1_500_000_000), ("10ms", 10_000_000), ("20us", 20_000), ("500ns", 500), ("0s", 0)] {
            assert_eq!(time(text), Ok(ns), "{text}");
        }
        for bad in ["", "5", "s", "-1s", "1m", "1e9s", "NaNs"] {
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
