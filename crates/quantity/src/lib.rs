// SPDX-License-Identifier: BSD-2-Clause
//! Rates, sizes, times, shares and counts as people write them. All programs and files read them by this crate;
//! QUANTITIES in unetmap(7) is the table of spellings.
//!
//! An error says what to give. It does not name the option and the value, which the caller knows.
#![forbid(unsafe_code)]

mod number;

use std::fmt::Debug;
use std::ops::RangeInclusive;
use std::time::Duration;

pub use number::Number;

/// A rate, per second.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rate {
    /// Packets per second.
    Packets(Number),
    /// Bits per second.
    Bits(Number),
}

/// The unit that a rate counts.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Counted {
    Packets,
    Bits,
    Bytes,
    /// The unit is missing.
    Unknown,
}

const PACKETS: &str = "give packets per second, as in 10kpps or 1.5Mpps";
const BITS: &str = "give bits per second, as in 100Mbit or 2.5Gbit/s";
const EITHER: &str = "give packets per second as in 10kpps, or bits per second as in 100Mbit";

/// Splits the decimal prefix from a unit.
fn prefix(unit: &str) -> (u64, &str) {
    let factor = match unit.as_bytes().first() {
        Some(b'k' | b'K') => 1000,
        Some(b'm' | b'M') => 1_000_000,
        Some(b'g' | b'G') => 1_000_000_000,
        _ => return (1, unit),
    };
    (factor, &unit[1..])
}

/// Splits a rate; the number has the prefix in it. `None`: it is none.
fn split_rate(text: &str) -> Option<(Number, Counted)> {
    let (number, unit) = Number::split(text)?;
    let (factor, unit) = prefix(unit);
    let counted = match unit {
        "" => Counted::Unknown,
        // Only here a capital letter changes the meaning.
        "bps" | "b/s" => Counted::Bits,
        "Bps" | "B/s" => Counted::Bytes,
        _ => match &*unit.to_ascii_lowercase() {
            "pps" | "packet/s" | "packets/s" => Counted::Packets,
            "bit" | "bits" | "bit/s" | "bits/s" => Counted::Bits,
            "byte/s" | "bytes/s" => Counted::Bytes,
            _ => return None,
        },
    };
    Some((number.times(factor)?, counted))
}

/// Parses packets per second: `10kpps`, `10k`, `10000`. 0 is allowed.
///
/// # Errors
/// A sentence that says what to give.
pub fn packet_rate(text: &str) -> Result<Number, String> {
    match split_rate(text) {
        Some((number, Counted::Packets | Counted::Unknown)) => Ok(number),
        _ => Err(PACKETS.into()),
    }
}

/// Parses whole packets per second, as [`packet_rate`].
///
/// # Errors
/// A sentence that says what to give.
pub fn whole_packet_rate(text: &str) -> Result<u64, String> {
    packet_rate(text)?.whole().ok_or_else(|| format!("{PACKETS}, without a part of a packet"))
}

/// Parses whole bits per second: `100Mbit`, `12.5MByte/s`, `100M`. 0 is allowed.
///
/// # Errors
/// A sentence that says what to give.
pub fn bit_rate(text: &str) -> Result<u64, String> {
    let bits = match split_rate(text) {
        Some((number, Counted::Bits | Counted::Unknown)) => Some(number),
        Some((number, Counted::Bytes)) => number.times(8),
        _ => None,
    };
    bits.and_then(Number::whole).ok_or_else(|| BITS.into())
}

/// Parses a rate of packets or bits, which its unit says: `10kpps`, `100Mbit`. 0 is allowed.
///
/// # Errors
/// A sentence that says what to give; it names both rates that a number without a unit may mean.
pub fn rate(text: &str) -> Result<Rate, String> {
    match split_rate(text) {
        Some((number, Counted::Packets)) => Ok(Rate::Packets(number)),
        Some((number, Counted::Bits)) => Ok(Rate::Bits(number)),
        Some((number, Counted::Bytes)) => number.times(8).map(Rate::Bits).ok_or_else(|| EITHER.into()),
        Some((_, Counted::Unknown)) => {
            Err(format!("give {text}pps if packets per second are meant, {text}bit if bits per second are"))
        }
        None => Err(EITHER.into()),
    }
}

/// Parses a time; a number without a unit is in units of `bare` nanoseconds, or refused unless it is 0.
fn time_in(text: &str, bare: Option<u64>) -> Result<Duration, String> {
    let scale = |unit: &str| match &*unit.to_ascii_lowercase() {
        "ns" => Some(1),
        "us" | "\u{b5}s" | "\u{3bc}s" => Some(1000),
        "ms" => Some(1_000_000),
        "s" => Some(1_000_000_000),
        "min" => Some(60_000_000_000),
        "h" => Some(3_600_000_000_000),
        _ => None,
    };
    let split = Number::split(text);
    let nanos = match split {
        Some((number, "")) if number == Number::ZERO => Some(0),
        Some((_, "")) if bare.is_none() => {
            return Err(format!("give a time with its unit, as in {text}ms, {text}s or {text}min"));
        }
        Some((number, "")) => bare.and_then(|scale| number.times(scale)?.whole()),
        Some((number, unit)) => scale(unit).and_then(|scale| number.times(scale)?.whole()),
        None => None,
    };
    let all = "ns, us, ms, s, min or h";
    nanos.map(Duration::from_nanos).ok_or_else(|| match bare {
        None => format!("give a time such as 20ms (units are {all})"),
        Some(1_000_000_000) => format!("give a time in seconds, or with its unit, as in 500ms (units are {all})"),
        Some(1_000_000) => format!("give a time in milliseconds, or with its unit, as in 5s (units are {all})"),
        Some(1000) => format!("give a time in microseconds, or with its unit, as in 5ms (units are {all})"),
        Some(_) => format!("give a time in nanoseconds, or with its unit, as in 5us (units are {all})"),
    })
}

/// Parses a time with its unit: `20ms`, `1.5s`.
///
/// # Errors
/// A sentence that says what to give.
pub fn time(text: &str) -> Result<Duration, String> {
    time_in(text, None)
}

/// Parses a time; a number alone is in seconds.
///
/// # Errors
/// A sentence that says what to give.
pub fn seconds(text: &str) -> Result<Duration, String> {
    time_in(text, Some(1_000_000_000))
}

/// Parses a time; a number alone is in milliseconds.
///
/// # Errors
/// A sentence that says what to give.
pub fn milliseconds(text: &str) -> Result<Duration, String> {
    time_in(text, Some(1_000_000))
}

/// Parses a time; a number alone is in microseconds.
///
/// # Errors
/// A sentence that says what to give.
pub fn microseconds(text: &str) -> Result<Duration, String> {
    time_in(text, Some(1000))
}

/// Parses a time; a number alone is in nanoseconds.
///
/// # Errors
/// A sentence that says what to give.
pub fn nanoseconds(text: &str) -> Result<Duration, String> {
    time_in(text, Some(1))
}

/// Parses a size; a number alone is in units of `bare` bytes. `kilo` is what the prefix k alone stands for.
fn size_in(text: &str, bare: u64, kilo: u64) -> Option<u64> {
    let (number, unit) = Number::split(text)?;
    let lower = unit.to_ascii_lowercase();
    let (power, rest) = match lower.as_bytes().first() {
        Some(b'k') => (1, &lower[1..]),
        Some(b'm') => (2, &lower[1..]),
        Some(b'g') => (3, &lower[1..]),
        _ => (0, &*lower),
    };
    let (base, rest) = match rest.strip_prefix('i') {
        Some(rest) if power > 0 => (1024u64, rest),
        _ => (kilo, rest),
    };
    let factor = match rest {
        "" if power == 0 => bare,
        "" | "b" | "byte" | "bytes" => base.pow(power),
        _ => return None,
    };
    number.times(factor)?.whole()
}

/// Parses a number of bytes: `1500`, `64kB`, `1.5MB`, `4MiB`. k, M and G are powers of 1000, Ki, Mi and Gi of 1024.
///
/// # Errors
/// A sentence that says what to give.
pub fn bytes(text: &str) -> Result<u64, String> {
    size_in(text, 1, 1000).ok_or_else(|| "give bytes, as in 1500, 64kB (1000 each) or 4MiB (1024 x 1024 each)".into())
}

/// Parses a size as [`bytes`], but a number alone is in MiB. Returns bytes.
///
/// # Errors
/// A sentence that says what to give.
pub fn mebibytes(text: &str) -> Result<u64, String> {
    size_in(text, 1 << 20, 1000).ok_or_else(|| "give MiB, or a size such as 512MiB, 2GB or 2GiB".into())
}

/// Parses a number of bytes in ipfw's language, where k, M and G are powers of 1024.
///
/// # Errors
/// A sentence that says what to give.
pub fn ipfw_bytes(text: &str) -> Result<u64, String> {
    size_in(text, 1, 1024).ok_or_else(|| "give bytes, as in 1500 or 64KBytes (1024 each)".into())
}

/// Parses bits per second in ipfw's language: as [`bit_rate`], and `b`, `B`, `Byte` and `Bytes` need no `/s`.
///
/// # Errors
/// A sentence that says what to give.
pub fn ipfw_bandwidth(text: &str) -> Result<u64, String> {
    let lower = text.to_ascii_lowercase();
    match lower.ends_with(['b']) || lower.ends_with("byte") || lower.ends_with("bytes") {
        true => bit_rate(&format!("{text}/s")),
        false => bit_rate(text),
    }
}

/// Parses a whole number of things: `512`, `1.5k`, `10M`. k, M and G are powers of 1000.
///
/// # Errors
/// A sentence that says what to give.
pub fn count(text: &str) -> Result<u64, String> {
    let number = Number::split(text).and_then(|(number, unit)| match prefix(unit) {
        (factor, "") => number.times(factor)?.whole(),
        _ => None,
    });
    number.ok_or_else(|| "give a whole number, with an optional suffix k, M or G, as in 1.5k".into())
}

/// Parses a share of the whole, 0 to 1: `1%`, `0.01`, `1e-6`.
///
/// # Errors
/// A sentence that says what to give.
pub fn share(text: &str) -> Result<f64, String> {
    let (number, unit) = Number::split(text).ok_or(SHARE)?;
    match (unit, number.as_f64()) {
        ("%", percent) if percent <= 100.0 => Ok(number.hundredth().as_f64()),
        ("", part) if part <= 1.0 => Ok(part),
        ("", percent) if percent <= 100.0 => {
            Err(format!("give {text}% if percent are meant; a probability alone is 0 to 1"))
        }
        _ => Err(SHARE.into()),
    }
}

const SHARE: &str = "give a probability or a share: 0% to 100%, or a part of 1 such as 0.01";

/// Parses a value of one of netmap's knobs: a size if the knob's name ends in `_size`, a time if it ends in `_ns`, else
/// a count; or a hexadecimal number with `0x`.
///
/// # Errors
/// A sentence that says what to give.
pub fn knob(name: &str, text: &str) -> Result<u64, String> {
    if let Some(digits) = text.strip_prefix("0x") {
        return u64::from_str_radix(digits, 16).map_err(|_| "give hexadecimal digits after 0x".into());
    }
    if name.ends_with("_size") {
        bytes(text)
    } else if name.ends_with("_ns") {
        nanoseconds(text).map(|time| u64::try_from(time.as_nanos()).unwrap_or(u64::MAX))
    } else {
        count(text)
    }
}

/// A type of values that can have bounds.
pub trait Bounded: PartialOrd + Debug + Send + Sync + 'static {
    /// The word for a value in messages.
    const NAME: &str;
}

impl Bounded for u64 {
    const NAME: &str = "number";
}

impl Bounded for Duration {
    const NAME: &str = "time";
}

/// Returns a parser of values of `parse` that are in a range.
pub fn within<T: Bounded + Clone, U: TryFrom<T>>(
    parse: fn(&str) -> Result<T, String>,
    range: RangeInclusive<T>,
) -> impl Fn(&str) -> Result<U, String> + Clone + Send + Sync + 'static {
    move |text| {
        let value = parse(text)?;
        let fits = range.contains(&value).then(|| U::try_from(value).ok());
        fits.flatten().ok_or_else(|| format!("give a {} from {:?} to {:?}", T::NAME, range.start(), range.end()))
    }
}

#[cfg(test)]
mod tests;
