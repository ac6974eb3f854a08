// SPDX-License-Identifier: BSD-2-Clause
//! Streams as they are written: a TOML file, or words of a command line.
//!
//! ```toml
//! link = "10G"
//!
//! [[stream]]
//! name = "dns"
//! rate = "100kpps"
//! size = "64-300"
//! layers = [
//!     { ether = { dst = "02:00:00:00:00:02" } },
//!     { vlan = { vlan = 5 } },
//!     { ip = { src = { from = "10.0.0.1", to = "10.0.0.200" } } },
//!     { udp = { sport = { random = true }, dport = [53, 5353] } },
//! ]
//! ```

use std::collections::BTreeSet;
use std::path::Path;

use serde::Deserialize;
use toml::{Spanned, Table, Value};

use crate::field::{Values, text_of};
use crate::layer::Layer;
use crate::packet::{Described, Packet};
use crate::receiver::MAX_STREAMS;
use crate::schedule::{Rate, Schedule};
use crate::stream::Stream;
use crate::units;

mod shape;

/// Reads packet `number` (from 1) of a capture.
pub type Load<'a> = &'a dyn Fn(&Path, usize) -> Result<Vec<u8>, String>;

/// Characters of a name, at most.
const MAX_NAME: usize = 64;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    link: Option<Spanned<Value>>,
    #[serde(default)]
    stream: Vec<Spanned<Written>>,
}

/// A stream as it is written. Values are checked later, with messages that say what is right.
#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct Written {
    name: Option<Spanned<Value>>,
    rate: Option<Spanned<Value>>,
    size: Option<Spanned<Value>>,
    count: Option<Spanned<Value>>,
    start: Option<Spanned<Value>>,
    stop: Option<Spanned<Value>>,
    shape: Option<Spanned<Value>>,
    layers: Option<Spanned<Value>>,
    pcap: Option<Spanned<Value>>,
    packet: Option<Spanned<Value>>,
    seed: Option<Spanned<Value>>,
}

/// A fault, and the byte of the file where it is written, if that is known.
struct Fault {
    at: Option<usize>,
    text: String,
}

impl From<String> for Fault {
    fn from(text: String) -> Fault {
        Fault { at: None, text }
    }
}

/// Checks the value of a key, if it is given. A fault begins with the key.
fn checked<T>(
    key: &str,
    value: Option<&Spanned<Value>>,
    check: impl FnOnce(&Value) -> Result<T, String>,
) -> Result<Option<T>, Fault> {
    let fault = |at, e| Fault { at: Some(at), text: format!("{key}: {e}") };
    value.map(|value| check(value.get_ref()).map_err(|e| fault(value.span().start, e))).transpose()
}

/// Parses a file of streams. `link` is the speed for rates in percent, if the file gives none, in bits per second.
///
/// # Errors
/// A sentence that names the line and the stream, and says what is wrong.
pub fn parse_file(text: &str, link: u64, load: Load<'_>) -> Result<Vec<Stream>, String> {
    let hint = "STREAMS in pkt-gen(8) has all keys and an example";
    let file: File = toml::from_str(text).map_err(|e| format!("{}\n{hint}", e.to_string().trim_end()))?;
    let line = |at: usize| 1 + text.bytes().take(at).filter(|byte| *byte == b'\n').count();
    let speed = checked("link", file.link.as_ref(), |value| units::parse_link(&text_of(value)));
    let link = speed.map_err(|e| format!("line {}: {}", line(e.at.unwrap_or(0)), e.text))?.unwrap_or(link);
    let count = file.stream.len();
    if !(1..=MAX_STREAMS).contains(&count) {
        return Err(format!(
            "it has {count} streams; 1 to {MAX_STREAMS} are possible, each a table [[stream]] ({hint})"
        ));
    }
    let mut names = BTreeSet::new();
    let mut streams = Vec::with_capacity(count);
    for (written, id) in file.stream.into_iter().zip(1..) {
        let begin = written.span().start;
        let fault = |fault: Fault| format!("line {}: {}", line(fault.at.unwrap_or(begin)), fault.text);
        let stream = written.into_inner().check(id, link, load).map_err(fault)?;
        if !names.insert(stream.name.clone()) {
            let what = format!("name: another stream is named `{}` already", stream.name);
            return Err(fault(what.into()));
        }
        streams.push(stream);
    }
    Ok(streams)
}

/// Parses a stream of a command line: `rate=10kpps,size=60-1514,dst=10.1.0.1,dport=53`.
///
/// # Errors
/// A sentence that says what is wrong.
pub fn parse_spec(text: &str, id: u16, link: u64) -> Result<Stream, String> {
    let mut written = Written::default();
    let (mut ether, mut vlan, mut ip, mut udp) = (Table::new(), None, Table::new(), Table::new());
    let mut v6 = false;
    for word in text.split(',') {
        let (key, value) = word.split_once('=').ok_or_else(|| format!("`{word}` is not KEY=VALUE"))?;
        let string = || Some(Spanned::new(0..0, Value::String(value.into())));
        let number = || value.parse::<i64>().map_err(|_| format!("{key}: `{value}` is not a number"));
        let amount = || {
            let amount = unetmap_quantity::count(value).and_then(|n| i64::try_from(n).map_err(|e| e.to_string()));
            amount.map(Value::Integer).map_err(|why| format!("{key}: `{value}` is not a number: {why}"))
        };
        match key {
            "name" => written.name = string(),
            "rate" => written.rate = string(),
            "size" => written.size = string(),
            "count" => written.count = Some(Spanned::new(0..0, amount()?)),
            "start" => written.start = string(),
            "stop" => written.stop = string(),
            "burst" => {
                let shape = Table::from_iter([("burst".to_owned(), amount()?)]);
                written.shape = Some(Spanned::new(0..0, Value::Table(shape)));
            }
            "smac" | "dmac" => {
                ether.insert(if key == "smac" { "src" } else { "dst" }.into(), Value::String(value.into()));
            }
            "vlan" => vlan = Some(Table::from_iter([("vlan".to_owned(), Value::Integer(number()?))])),
            "src" | "dst" => {
                v6 |= value.contains(':');
                ip.insert(key.into(), Value::String(value.into()));
            }
            "sport" | "dport" => drop(udp.insert(key.into(), Value::Integer(number()?))),
            _ => {
                return Err(format!(
                    "there is no key `{key}`; there are name rate size count start stop burst smac dmac vlan src dst \
                     sport dport"
                ));
            }
        }
    }
    let layer = |name: &str, fields: Table| Value::Table(Table::from_iter([(name.to_owned(), Value::Table(fields))]));
    let mut layers = vec![layer("ether", ether)];
    layers.extend(vlan.map(|fields| layer("vlan", fields)));
    layers.extend([layer(if v6 { "ipv6" } else { "ip" }, ip), layer("udp", udp)]);
    written.layers = Some(Spanned::new(0..0, Value::Array(layers)));
    let no_capture: Load<'_> = &|_, _| Err("a command line has no captured packet".into());
    written.check(id, link, no_capture).map_err(|fault| fault.text)
}

impl Written {
    fn check(self, id: u16, link: u64, load: Load<'_>) -> Result<Stream, Fault> {
        let name = checked("name", self.name.as_ref(), name)?.unwrap_or_else(|| format!("stream{id}"));
        let of_stream = |fault: Fault| Fault { text: format!("stream {name}: {}", fault.text), ..fault };
        let (packet, schedule) = self.build(id, link, load).map_err(of_stream)?;
        Ok(Stream { id, name, packet, schedule })
    }

    fn build(&self, id: u16, link: u64, load: Load<'_>) -> Result<(Packet, Schedule), Fault> {
        let seed = checked("seed", self.seed.as_ref(), |value| whole(value, 0, "a number from 0 on, as 7"))?;
        let seed = seed.unwrap_or_else(|| u64::from(id));
        let rate = checked("rate", self.rate.as_ref(), |value| parse_rate(value, link))?;
        let rate = rate.ok_or_else(|| "it has no rate: give one, as in rate = \"100kpps\"".to_owned())?;
        let packet = self.packet(seed, load)?;
        let time = |value: &Value| units::time(&text_of(value));
        let start = checked("start", self.start.as_ref(), time)?.unwrap_or(0);
        let stop = checked("stop", self.stop.as_ref(), |value| match time(value)? {
            stop if stop <= start => Err(format!("`{}` is not after the start", text_of(value))),
            stop => Ok(stop),
        })?;
        let count = checked("count", self.count.as_ref(), |value| {
            whole(value, 1, "a number of packets, at least 1; leave count out for no limit")
        })?;
        let shape = checked("shape", self.shape.as_ref(), |value| shape::parse(value, rate, link))?;
        Ok((packet, Schedule::new(rate, shape.unwrap_or_default(), (start, stop), count.unwrap_or(u64::MAX), seed)))
    }

    fn packet(&self, seed: u64, load: Load<'_>) -> Result<Packet, Fault> {
        let sizes = checked("size", self.size.as_ref(), |value| units::sizes(&text_of(value)))?;
        let layers = checked("layers", self.layers.as_ref(), layers)?;
        let number = checked("packet", self.packet.as_ref(), |value| {
            whole(value, 1, "the number of a packet in the capture, from 1")
        })?;
        let place = |value: &Option<Spanned<Value>>| value.as_ref().map(|value| value.span().start);
        let captured = checked("pcap", self.pcap.as_ref(), |value| {
            let path = value.as_str().ok_or_else(|| format!("`{}` is not the path of a file", text_of(value)))?;
            load(Path::new(path), usize::try_from(number.unwrap_or(1)).unwrap_or(usize::MAX))
        })?;
        if number.is_some() && captured.is_none() {
            let text = "packet: it is a number in a capture: give pcap, the file, too".into();
            return Err(Fault { at: place(&self.packet), text });
        }
        let simple = || [Layer::Ethernet, Layer::Ipv4, Layer::Udp].map(|layer| (layer, Vec::new())).to_vec();
        let built = match captured {
            Some(template) => Packet::from_template(&template, &layers.unwrap_or_default(), sizes, seed),
            None => Packet::new(&layers.unwrap_or_else(simple), sizes, seed),
        };
        built.map_err(|text| {
            let of_size = text.starts_with("size");
            Fault { at: place(if of_size { &self.size } else { &self.layers }), text }
        })
    }
}

/// Returns a name: one line of printable characters.
fn name(value: &Value) -> Result<String, String> {
    let text = value.as_str().unwrap_or_default();
    let bad = text.is_empty() || text.chars().count() > MAX_NAME || text.chars().any(char::is_control);
    match bad {
        true => {
            Err(format!("`{}` is not a name: give 1 to {MAX_NAME} printable characters", text_of(value).escape_debug()))
        }
        false => Ok(text.to_owned()),
    }
}

/// Returns a whole number of at least `least`; `what` says what it is.
fn whole(value: &Value, least: i64, what: &str) -> Result<u64, String> {
    let number = value.as_integer().filter(|number| *number >= least);
    number.map(i64::cast_unsigned).ok_or_else(|| format!("`{}` is not {what}", text_of(value)))
}

fn parse_rate(value: &Value, link: u64) -> Result<Rate, String> {
    units::rate(&text_of(value), link)
}

fn layers(value: &Value) -> Result<Vec<Described>, String> {
    let list = value.as_array().filter(|list| !list.is_empty());
    let list = list.ok_or("it is a list of headers, as in [{ ether = {} }, { ip = { ttl = 9 } }, { udp = {} }]")?;
    list.iter().map(described).collect()
}

/// Parses a layer: a table with one key, its name.
fn described(value: &Value) -> Result<Described, String> {
    let mut items = value.as_table().into_iter().flatten();
    let (Some((name, fields)), None) = (items.next(), items.next()) else {
        return Err("a layer is a table with one name, as { udp = { dport = 53 } }".into());
    };
    let all = || Layer::ALL.map(|layer| layer.names()[0]).join(" ");
    let layer = Layer::by_name(name).ok_or_else(|| format!("there is no layer {name}; there are {}", all()))?;
    let fields = fields.as_table().ok_or_else(|| format!("{name}: its fields are a table, as {{ ttl = 3 }}"))?;
    let mut values = Vec::new();
    for (key, value) in fields {
        let field = layer.fields().iter().find(|field| field.name == key).ok_or_else(|| {
            let all: Vec<&str> = layer.fields().iter().map(|field| field.name).collect();
            format!("{name} has no field {key} that can be set; there are {}", all.join(" "))
        })?;
        let parsed = Values::parse(value, field.kind, field.bits).map_err(|e| format!("{name}.{key}: {e}"))?;
        values.push((field.name, parsed));
    }
    Ok((layer, values))
}

#[cfg(test)]
mod tests;
#[cfg(test)]
mod wrong;
