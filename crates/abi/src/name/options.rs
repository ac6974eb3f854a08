// SPDX-License-Identifier: BSD-2-Clause
//! The options of a port name: `@conf:slots=256`, `@share=vale:b`, ...

use std::fmt;

use super::PortSpec;
use super::parse::{ParseError, Parser};

/// The options of a port name.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct PortOptions {
    /// `@conf:`: numbers of rings and slots.
    pub conf: Conf,
    /// `@share=`: the port whose region to use.
    pub share: Option<Box<PortSpec>>,
    /// `@extmem:`: the file that holds the region.
    pub extmem: Option<ExtMem>,
    /// `@offset:`: where packets begin in their buffers. libnetmap rejects it unless the program enables it.
    pub offset: Option<Offset>,
}

/// Requested numbers of rings and slots; 0: not requested.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Conf {
    /// Slots in each tx ring.
    pub tx_slots: u32,
    /// Slots in each rx ring.
    pub rx_slots: u32,
    /// tx rings.
    pub tx_rings: u16,
    /// rx rings.
    pub rx_rings: u16,
    /// Host tx rings.
    pub host_tx_rings: u16,
    /// Host rx rings.
    pub host_rx_rings: u16,
}

/// A region in a file, and its pools; 0: not requested.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct ExtMem {
    /// Path of the file, not empty.
    pub file: String,
    /// Number of objects in the interface pool.
    pub if_num: u32,
    /// Bytes of an interface object.
    pub if_size: u32,
    /// Number of objects in the ring pool.
    pub ring_num: u32,
    /// Bytes of a ring object.
    pub ring_size: u32,
    /// Number of buffers.
    pub buf_num: u32,
    /// Bytes of a buffer.
    pub buf_size: u32,
}

/// Where packets begin in their buffers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Offset {
    /// Initial offset of every slot: bytes from the start of the buffer.
    pub initial: u64,
    /// Bits of a slot's `ptr` that hold the offset, 0..=64; 0: all 64.
    pub bits: u32,
}

impl PortOptions {
    /// Parses all options, from the first `@` to the end of the name.
    pub(super) fn parse(parser: &mut Parser<'_>) -> Result<Self, ParseError> {
        let mut options = Self::default();
        let mut seen = Vec::new();
        while parser.eat('@') {
            let at = parser.at();
            let option = key(parser);
            if seen.contains(&option) {
                return parser.error_at(at, format!("option '{option}' is given twice"));
            }
            match option.as_str() {
                "conf" => options.conf = conf(parser)?,
                "share" => options.share = Some(share(parser)?),
                "extmem" => options.extmem = Some(extmem(parser)?),
                "offset" => options.offset = Some(offset(parser)?),
                "" => return parser.error_at(at, "an option or a region number is missing"),
                _ => {
                    let message = "unknown option (options are conf share extmem offset)";
                    return parser.error_at(at, message);
                }
            }
            seen.push(option);
        }
        parser.end()?;
        Ok(options)
    }
}

/// Parses a key; replaces each `_` by `-`.
fn key(parser: &mut Parser<'_>) -> String {
    parser.take_while(|c| c.is_ascii_alphanumeric() || c == '-' || c == '_').replace('_', "-")
}

/// Parses `":" kv { "," kv }`, or `"=" value` for the `default` key, if there is one. `set` parses one value, with a
/// parser that ends where the value does; `keys` are the valid keys.
fn pairs(
    parser: &mut Parser<'_>,
    keys: &[&str],
    default: Option<&str>,
    mut set: impl FnMut(&str, &mut Parser<'_>) -> Result<(), ParseError>,
) -> Result<(), ParseError> {
    if let Some(key) = default
        && parser.eat('=')
    {
        return value(parser, &['@'], |value| set(key, value));
    }
    let list = keys.join(" ");
    if !parser.eat(':') {
        return parser.error(match default {
            Some(key) => format!("'=' and the {key} are missing, or ':' and keys ({list})"),
            None => format!("':' and keys are missing ({list})"),
        });
    }
    let mut seen = Vec::new();
    loop {
        let at = parser.at();
        let key = key(parser);
        if key.is_empty() {
            return parser.error_at(at, format!("a key is missing ({list})"));
        }
        if !keys.contains(&key.as_str()) {
            return parser.error_at(at, format!("unknown key '{key}' (keys are {list})"));
        }
        if seen.contains(&key) {
            return parser.error_at(at, format!("key '{key}' is given twice"));
        }
        if !parser.eat('=') {
            return parser.error(format!("'=' and a value are missing after '{key}'"));
        }
        value(parser, &[',', '@'], |value| set(&key, value))?;
        seen.push(key);
        if !parser.eat(',') {
            return Ok(());
        }
    }
}

/// Parses the text up to one of `ends` with `read`, which must consume all of it.
fn value<T>(
    parser: &mut Parser<'_>,
    ends: &[char],
    read: impl FnOnce(&mut Parser<'_>) -> Result<T, ParseError>,
) -> Result<T, ParseError> {
    let from = parser.at();
    let text = parser.take_while(|c| !ends.contains(&c));
    if text.is_empty() {
        return parser.error("a value is missing");
    }
    let mut part = parser.part(from, parser.at());
    let read = read(&mut part)?;
    part.end()?;
    Ok(read)
}

fn number<T>(parser: &mut Parser<'_>, into: &mut T, max: T) -> Result<(), ParseError>
where
    T: TryFrom<u64> + Into<u64>,
{
    *into = parser.number("this number", 0, max.into())?;
    Ok(())
}

fn conf(parser: &mut Parser<'_>) -> Result<Conf, ParseError> {
    const KEYS: [&str; 9] = [
        "rings",
        "tx-rings",
        "rx-rings",
        "host-rings",
        "host-tx-rings",
        "host-rx-rings",
        "slots",
        "tx-slots",
        "rx-slots",
    ];
    let (mut slots, mut rings, mut host_rings) = (0, 0, 0);
    let mut conf = Conf::default();
    pairs(parser, &KEYS, None, |key, value| match key {
        "rings" => number(value, &mut rings, u16::MAX),
        "tx-rings" => number(value, &mut conf.tx_rings, u16::MAX),
        "rx-rings" => number(value, &mut conf.rx_rings, u16::MAX),
        "host-rings" => number(value, &mut host_rings, u16::MAX),
        "host-tx-rings" => number(value, &mut conf.host_tx_rings, u16::MAX),
        "host-rx-rings" => number(value, &mut conf.host_rx_rings, u16::MAX),
        "slots" => number(value, &mut slots, u32::MAX),
        "tx-slots" => number(value, &mut conf.tx_slots, u32::MAX),
        _ => number(value, &mut conf.rx_slots, u32::MAX),
    })?;
    // A key for one direction overrides the key for both, in any order.
    let or_both = |one: u16, both: u16| if one == 0 { both } else { one };
    Ok(Conf {
        tx_slots: if conf.tx_slots == 0 { slots } else { conf.tx_slots },
        rx_slots: if conf.rx_slots == 0 { slots } else { conf.rx_slots },
        tx_rings: or_both(conf.tx_rings, rings),
        rx_rings: or_both(conf.rx_rings, rings),
        host_tx_rings: or_both(conf.host_tx_rings, host_rings),
        host_rx_rings: or_both(conf.host_rx_rings, host_rings),
    })
}

/// `@share=SPEC` has only this form. The port has no options, because their `@` would end it.
fn share(parser: &mut Parser<'_>) -> Result<Box<PortSpec>, ParseError> {
    if !parser.eat('=') {
        return parser.error("'=' and the name of a port are missing");
    }
    value(parser, &['@'], |value| value.spec().map(Box::new))
}

fn extmem(parser: &mut Parser<'_>) -> Result<ExtMem, ParseError> {
    const KEYS: [&str; 7] = ["file", "if-num", "if-size", "ring-num", "ring-size", "buf-num", "buf-size"];
    let mut extmem = ExtMem::default();
    pairs(parser, &KEYS, Some("file"), |key, value| match key {
        "file" => {
            extmem.file = value.take_while(|_| true).to_owned();
            Ok(())
        }
        "if-num" => number(value, &mut extmem.if_num, u32::MAX),
        "if-size" => number(value, &mut extmem.if_size, u32::MAX),
        "ring-num" => number(value, &mut extmem.ring_num, u32::MAX),
        "ring-size" => number(value, &mut extmem.ring_size, u32::MAX),
        "buf-num" => number(value, &mut extmem.buf_num, u32::MAX),
        _ => number(value, &mut extmem.buf_size, u32::MAX),
    })?;
    if extmem.file.is_empty() {
        return parser.error("extmem requires file=PATH");
    }
    Ok(extmem)
}

fn offset(parser: &mut Parser<'_>) -> Result<Offset, ParseError> {
    let mut initial = None;
    let mut bits = 0;
    pairs(parser, &["initial", "bits"], Some("initial"), |key, value| match key {
        "initial" => number(value, initial.insert(0), u64::MAX),
        _ => number(value, &mut bits, 64),
    })?;
    match initial {
        Some(initial) => Ok(Offset { initial, bits }),
        None => parser.error("offset requires initial=BYTES"),
    }
}

impl fmt::Display for PortOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.conf.fmt(f)?;
        if let Some(port) = &self.share {
            write!(f, "@share={port}")?;
        }
        if let Some(extmem) = &self.extmem {
            extmem.fmt(f)?;
        }
        match self.offset {
            None => Ok(()),
            Some(Offset { initial, bits: 0 }) => write!(f, "@offset={initial}"),
            Some(Offset { initial, bits }) => write!(f, "@offset:initial={initial},bits={bits}"),
        }
    }
}

impl fmt::Display for Conf {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut separator = "@conf:";
        let values = [
            ("slots", self.tx_slots, self.rx_slots),
            ("rings", self.tx_rings.into(), self.rx_rings.into()),
            ("host-rings", self.host_tx_rings.into(), self.host_rx_rings.into()),
        ];
        for (key, tx, rx) in values {
            // "host-rings" for one direction is "host-tx-rings".
            let (host, key) = key.split_at(if key.starts_with("host-") { 5 } else { 0 });
            let pairs = if tx == rx { [("", tx), ("", 0)] } else { [("tx-", tx), ("rx-", rx)] };
            for (direction, value) in pairs.into_iter().filter(|(_, value)| *value != 0) {
                write!(f, "{separator}{host}{direction}{key}={value}")?;
                separator = ",";
            }
        }
        Ok(())
    }
}

impl fmt::Display for ExtMem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let file = &self.file;
        let values = [
            ("if-num", self.if_num),
            ("if-size", self.if_size),
            ("ring-num", self.ring_num),
            ("ring-size", self.ring_size),
            ("buf-num", self.buf_num),
            ("buf-size", self.buf_size),
        ];
        if values.iter().all(|(_, value)| *value == 0) {
            // In this form the path may contain a comma.
            return write!(f, "@extmem={file}");
        }
        write!(f, "@extmem:file={file}")?;
        for (key, value) in values.iter().filter(|(_, value)| *value != 0) {
            write!(f, ",{key}={value}")?;
        }
        Ok(())
    }
}
