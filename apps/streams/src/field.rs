// SPDX-License-Identifier: BSD-2-Clause
//! The values of a header's field: fixed, incrementing, random, or from a list.

use std::net::{Ipv4Addr, Ipv6Addr};

use toml::Value;

use crate::Random;

/// How the values of a field are written in a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Number,
    Mac,
    Ipv4,
    Ipv6,
}

/// Values of a list, at most.
const MAX_LIST: usize = 65_536;

/// The values of a field in consecutive packets.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Values {
    Fixed(u128),
    /// `first`, `first + step`, ... up to `last`, then again.
    Increment {
        first: u128,
        last: u128,
        step: u128,
    },
    Random {
        first: u128,
        last: u128,
    },
    List(Vec<u128>),
}

impl Values {
    /// Parses a value, a list of values, or a table `{ from, to, step, random }`.
    pub(crate) fn parse(value: &Value, kind: Kind, bits: u32) -> Result<Values, String> {
        match value {
            Value::Array(list) if list.is_empty() || list.len() > MAX_LIST => {
                Err(format!("a list has 1 to {MAX_LIST} values"))
            }
            Value::Array(list) => {
                let values: Result<_, _> = list.iter().map(|value| one(value, kind, bits)).collect();
                values.map(Values::List)
            }
            Value::Table(table) => {
                if let Some(key) = table.keys().find(|key| !["from", "to", "step", "random"].contains(&key.as_str())) {
                    return Err(format!("there is no key {key}; a range has from, to, step and random"));
                }
                let given = |key: &str| table.get(key).map(|value| one(value, kind, bits)).transpose();
                let largest = u128::MAX >> (128 - bits);
                let (first, last) = (given("from")?.unwrap_or(0), given("to")?.unwrap_or(largest));
                if first > last {
                    return Err("a range ends (to) before it begins (from)".into());
                }
                match (table.get("random"), table.get("step")) {
                    (Some(Value::Boolean(true)), None) => Ok(Values::Random { first, last }),
                    (Some(Value::Boolean(true)), Some(_)) => Err("random values have no step".into()),
                    (None | Some(Value::Boolean(false)), None) => Ok(Values::Increment { first, last, step: 1 }),
                    (None | Some(Value::Boolean(false)), Some(Value::Integer(step))) if *step > 0 => {
                        Ok(Values::Increment { first, last, step: *step as u128 })
                    }
                    (Some(Value::Boolean(_)) | None, _) => Err("step is a number above 0".into()),
                    _ => Err("random is true or false".into()),
                }
            }
            single => one(single, kind, bits).map(Values::Fixed),
        }
    }

    /// Returns the value of the first packet.
    pub(crate) fn first(&self) -> u128 {
        match self {
            Values::Fixed(value) => *value,
            Values::Increment { first, .. } | Values::Random { first, .. } => *first,
            Values::List(list) => list.first().copied().unwrap_or(0),
        }
    }

    pub(crate) fn is_fixed(&self) -> bool {
        matches!(self, Values::Fixed(_))
    }
}

fn one(value: &Value, kind: Kind, bits: u32) -> Result<u128, String> {
    let number = match (value, kind) {
        (Value::Integer(n), Kind::Number) => u128::try_from(*n).ok(),
        (Value::Boolean(b), Kind::Number) => Some(u128::from(*b)),
        (Value::String(text), Kind::Number) => match text.strip_prefix("0x") {
            Some(hex) => u128::from_str_radix(hex, 16).ok(),
            None => text.parse().ok(),
        },
        (Value::String(text), Kind::Mac) => mac(text),
        (Value::String(text), Kind::Ipv4) => text.parse::<Ipv4Addr>().ok().map(|ip| u32::from(ip).into()),
        (Value::String(text), Kind::Ipv6) => text.parse::<Ipv6Addr>().ok().map(u128::from),
        _ => None,
    };
    let text = text_of(value);
    number.filter(|n| bits >= 128 || *n >> bits == 0).ok_or_else(|| match kind {
        Kind::Number => format!("{text} is not a number of at most {bits} bits (0 to {})", u128::MAX >> (128 - bits)),
        Kind::Mac => format!("{text} is not an Ethernet address, as \"02:00:00:00:00:01\""),
        Kind::Ipv4 => format!("{text} is not an IPv4 address, as \"10.0.0.1\""),
        Kind::Ipv6 => format!("{text} is not an IPv6 address, as \"fd00::1\""),
    })
}

/// Returns a value as text, as messages show it: a list and a table by their kind.
pub(crate) fn text_of(value: &Value) -> String {
    match value {
        Value::String(text) => text.clone(),
        Value::Integer(number) => number.to_string(),
        Value::Float(number) => format!("{number:?}"),
        Value::Boolean(flag) => flag.to_string(),
        Value::Datetime(time) => time.to_string(),
        Value::Array(_) => "a list".into(),
        Value::Table(_) => "a table".into(),
    }
}

fn mac(text: &str) -> Option<u128> {
    let parts: Vec<&str> = text.split(':').collect();
    let byte = |part: &&str| u8::from_str_radix(part, 16).ok().filter(|_| part.len() <= 2 && !part.starts_with('+'));
    let bytes: Option<Vec<u8>> = parts.iter().map(byte).collect();
    let bytes = bytes.filter(|bytes| bytes.len() == 6)?;
    Some(bytes.iter().fold(0, |all, byte| all << 8 | u128::from(*byte)))
}

/// A field whose values change, at its place in the packet.
#[derive(Clone, Debug)]
pub(crate) struct Varying {
    pub(crate) bit: usize,
    pub(crate) bits: u32,
    values: Values,
    /// Of increments the last value, of lists the last index.
    at: Option<u128>,
}

impl Varying {
    pub(crate) fn new(bit: usize, bits: u32, values: Values) -> Varying {
        Varying { bit, bits, values, at: None }
    }

    /// Returns the value of the next packet.
    pub(crate) fn next(&mut self, random: &mut Random) -> u128 {
        match &self.values {
            Values::Fixed(value) => *value,
            Values::Increment { first, last, step } => {
                let next = self.at.and_then(|at| at.checked_add(*step)).filter(|next| next <= last);
                *self.at.insert(next.unwrap_or(*first))
            }
            Values::Random { first, last } => {
                let bits = u128::from(random.next()) << 64 | u128::from(random.next());
                match (last - first).checked_add(1) {
                    Some(count) => first + bits % count,
                    None => bits,
                }
            }
            Values::List(list) => {
                let at = self.at.map_or(0, |at| (at + 1) % list.len() as u128);
                self.at = Some(at);
                list[at as usize]
            }
        }
    }
}

/// Writes the low `bits` bits of `value` into `bytes`, from bit `bit` on (0 is the highest bit of the first byte).
pub(crate) fn write_bits(bytes: &mut [u8], bit: usize, bits: u32, value: u128) {
    if bit.is_multiple_of(8) && bits.is_multiple_of(8) {
        let (at, len) = (bit / 8, bits as usize / 8);
        bytes[at..at + len].copy_from_slice(&value.to_be_bytes()[16 - len..]);
        return;
    }
    for i in 0..bits as usize {
        let (at, mask) = ((bit + i) / 8, 0x80 >> ((bit + i) % 8));
        match value >> (bits as usize - 1 - i) & 1 {
            0 => bytes[at] &= !mask,
            _ => bytes[at] |= mask,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str, kind: Kind, bits: u32) -> Result<Values, String> {
        let table: toml::Table = format!("v = {text}").parse().unwrap();
        Values::parse(&table["v"], kind, bits)
    }

    fn values(text: &str, kind: Kind, bits: u32, n: usize) -> Vec<u128> {
        let mut varying = Varying::new(0, bits, parse(text, kind, bits).unwrap());
        let mut random = Random(1);
        (0..n).map(|_| varying.next(&mut random)).collect()
    }

    #[test]
    fn values_are_fixed_incrementing_random_or_listed() {
        assert_eq!(values("7", Kind::Number, 8, 2), [7, 7]);
        assert_eq!(values("\"0x1f\"", Kind::Number, 8, 1), [31]);
        assert_eq!(values("[1, 5]", Kind::Number, 8, 3), [1, 5, 1]);
        assert_eq!(values("{ from = 250, step = 3 }", Kind::Number, 8, 4), [250, 253, 250, 253]);
        let ips = values("{ from = \"10.0.0.255\", to = \"10.0.1.0\" }", Kind::Ipv4, 32, 3);
        assert_eq!(ips, [0x0a00_00ff, 0x0a00_0100, 0x0a00_00ff]);
        let random = values("{ from = 10, to = 12, random = true }", Kind::Number, 8, 1000);
        for value in 10..=12 {
            assert!(random.iter().filter(|r| **r == value).count() > 250, "{value} is rare");
        }
        assert!(random.iter().all(|r| (10..=12).contains(r)));
        let all = values("{ from = \"::\", random = true }", Kind::Ipv6, 128, 100);
        assert!(all.iter().any(|ip| ip >> 127 == 1) && all.iter().any(|ip| ip >> 127 == 0));
        assert_eq!(values("\"2:0:0:0:0:a\"", Kind::Mac, 48, 1), [0x0200_0000_000a]);
    }

    #[test]
    fn wrong_values_are_refused() {
        for (text, kind, bits, part) in [
            ("256", Kind::Number, 8, "at most 8 bits"),
            ("-1", Kind::Number, 8, "not a number"),
            ("\"x\"", Kind::Number, 8, "not a number"),
            ("1.5", Kind::Number, 8, "not a number"),
            ("[]", Kind::Number, 8, "a list has"),
            ("\"1:2\"", Kind::Mac, 48, "Ethernet address"),
            ("\"+1:2:3:4:5:6\"", Kind::Mac, 48, "Ethernet address"),
            ("\"fd00::1\"", Kind::Ipv4, 32, "IPv4"),
            ("\"10.0.0.1\"", Kind::Ipv6, 128, "IPv6"),
            ("{ from = 2, to = 1 }", Kind::Number, 8, "before it begins"),
            ("{ from = 2, by = 1 }", Kind::Number, 8, "no key by"),
            ("{ step = 0 }", Kind::Number, 8, "above 0"),
            ("{ random = true, step = 1 }", Kind::Number, 8, "no step"),
            ("{ random = 1 }", Kind::Number, 8, "true or false"),
        ] {
            let message = parse(text, kind, bits).expect_err(text);
            assert!(message.contains(part), "{text}: {message}");
        }
    }

    #[test]
    fn bits_are_written_at_any_place() {
        let mut bytes = [0xff; 4];
        write_bits(&mut bytes, 4, 12, 0x123);
        assert_eq!(bytes, [0xf1, 0x23, 0xff, 0xff]);
        write_bits(&mut bytes, 16, 16, 0xabcd);
        assert_eq!(bytes, [0xf1, 0x23, 0xab, 0xcd]);
        write_bits(&mut bytes, 31, 1, 0);
        assert_eq!(bytes[3], 0xcc);
    }
}
