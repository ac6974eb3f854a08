// SPDX-License-Identifier: BSD-2-Clause
//! Streams as they are written: a TOML file, or words of a command line.
//!
//! ```toml
//! link = "10G"
//!
//! [[stream]]
//! name = "dns"
//! rate = "100kpps"
//! size = "60-300"
//! layers = [
//!     { ether = { dst = "02:00:00:00:00:02" } },
//!     { vlan = { vlan = 5 } },
//!     { ip = { src = { from = "10.0.0.1", to = "10.0.0.200" } } },
//!     { udp = { sport = { random = true }, dport = [53, 5353] } },
//! ]
//! ```

use std::path::{Path, PathBuf};

use serde::Deserialize;
use toml::{Table, Value};

use crate::field::{Values, text_of};
use crate::layer::Layer;
use crate::packet::{Described, Packet};
use crate::receiver::MAX_STREAMS;
use crate::schedule::{Rate, Schedule, Shape};
use crate::stream::Stream;
use crate::units;

/// Reads packet `number` (from 1) of a capture.
pub type Load<'a> = &'a dyn Fn(&Path, usize) -> Result<Vec<u8>, String>;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    link: Option<String>,
    stream: Vec<Written>,
}

/// A stream as it is written.
#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct Written {
    name: Option<String>,
    rate: Option<Value>,
    size: Option<Value>,
    count: Option<u64>,
    start: Option<String>,
    stop: Option<String>,
    shape: Option<WrittenShape>,
    layers: Option<Vec<Table>>,
    pcap: Option<PathBuf>,
    packet: Option<usize>,
    seed: Option<u64>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "lowercase")]
enum WrittenShape {
    Burst(u32),
    Poisson,
    Ramp {
        from: Value,
        over: String,
    },
    #[serde(rename = "on-off")]
    OnOff {
        on: String,
        off: String,
    },
}

/// Parses a file of streams. `link` is the speed for rates in percent, if the file gives none, in bits per second.
///
/// # Errors
/// A sentence that names the stream and says what is wrong.
pub fn parse_file(text: &str, link: u64, load: Load<'_>) -> Result<Vec<Stream>, String> {
    let file: File = toml::from_str(text).map_err(|e| e.to_string())?;
    let link = file.link.as_deref().map_or(Ok(link), units::parse_link)?;
    let count = file.stream.len();
    if !(1..=MAX_STREAMS).contains(&count) {
        return Err(format!("it has {count} streams; 1 to {MAX_STREAMS} are possible"));
    }
    let streams = file.stream.into_iter().zip(1..).map(|(written, id)| written.check(id, link, load));
    streams.collect()
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
        let string = || Value::String(value.into());
        let number = || value.parse::<i64>().map_err(|_| format!("{key}: `{value}` is not a number"));
        match key {
            "name" => written.name = Some(value.into()),
            "rate" => written.rate = Some(string()),
            "size" => written.size = Some(string()),
            "count" => written.count = Some(value.parse().map_err(|_| format!("count: `{value}` is not a number"))?),
            "start" => written.start = Some(value.into()),
            "stop" => written.stop = Some(value.into()),
            "burst" => {
                let packets = value.parse().map_err(|_| format!("burst: `{value}` is not a number"))?;
                written.shape = Some(WrittenShape::Burst(packets));
            }
            "smac" | "dmac" => drop(ether.insert(if key == "smac" { "src" } else { "dst" }.into(), string())),
            "vlan" => vlan = Some(Table::from_iter([("vlan".to_owned(), Value::Integer(number()?))])),
            "src" | "dst" => {
                v6 |= value.contains(':');
                ip.insert(key.into(), string());
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
    let layer = |name: &str, fields: Table| Table::from_iter([(name.to_owned(), Value::Table(fields))]);
    let mut layers = vec![layer("ether", ether)];
    layers.extend(vlan.map(|fields| layer("vlan", fields)));
    layers.extend([layer(if v6 { "ipv6" } else { "ip" }, ip), layer("udp", udp)]);
    written.layers = Some(layers);
    written.check(id, link, &|_, _| Err("a command line has no captured packet".into()))
}

impl Written {
    fn check(self, id: u16, link: u64, load: Load<'_>) -> Result<Stream, String> {
        let name = self.name.clone().unwrap_or_else(|| format!("stream{id}"));
        let (packet, schedule) = self.build(id, link, load).map_err(|e| format!("stream {name}: {e}"))?;
        Ok(Stream { id, name, packet, schedule })
    }

    fn build(self, id: u16, link: u64, load: Load<'_>) -> Result<(Packet, Schedule), String> {
        let seed = self.seed.unwrap_or_else(|| u64::from(id));
        let rate = parse_rate(self.rate.as_ref().ok_or("it has no rate")?, link)?;
        let sizes = self.size.as_ref().map(|size| units::sizes(&text_of(size))).transpose()?;
        let layers: Option<Vec<Described>> =
            self.layers.map(|layers| layers.iter().map(described).collect()).transpose()?;
        let packet = match (&self.pcap, self.packet) {
            (Some(path), number) => {
                let template = load(path, number.unwrap_or(1))?;
                Packet::from_template(&template, &layers.unwrap_or_default(), sizes, seed)?
            }
            (None, Some(_)) => return Err("packet is a number in a capture: give pcap too".into()),
            (None, None) => {
                let simple = || [Layer::Ethernet, Layer::Ipv4, Layer::Udp].map(|layer| (layer, Vec::new())).to_vec();
                Packet::new(&layers.unwrap_or_else(simple), sizes, seed)?
            }
        };
        let start = self.start.as_deref().map_or(Ok(0), units::time)?;
        let stop = self.stop.as_deref().map(units::time).transpose()?;
        if stop.is_some_and(|stop| stop <= start) {
            return Err("it stops before it starts".into());
        }
        let shape = self.shape.map_or(Ok(Shape::Constant), |shape| shape.check(rate, link))?;
        Ok((packet, Schedule::new(rate, shape, (start, stop), self.count.unwrap_or(u64::MAX), seed)))
    }
}

impl WrittenShape {
    fn check(self, rate: Rate, link: u64) -> Result<Shape, String> {
        let above_zero = |text: &str| match units::time(text)? {
            0 => Err(format!("`{text}` is not above 0")),
            time => Ok(time),
        };
        match self {
            WrittenShape::Burst(0) => Err("a burst has at least 1 packet".into()),
            WrittenShape::Burst(packets) => Ok(Shape::Burst(packets)),
            WrittenShape::Poisson => Ok(Shape::Poisson),
            WrittenShape::OnOff { on, off } => Ok(Shape::OnOff { on: above_zero(&on)?, off: units::time(&off)? }),
            WrittenShape::Ramp { from, over } => {
                let from = parse_rate(&from, link)?;
                if from.unit() != rate.unit() {
                    return Err("a ramp begins (from) in another unit than the rate".into());
                }
                Ok(Shape::Ramp { from: from.per_second(), over: above_zero(&over)? })
            }
        }
    }
}

fn parse_rate(value: &Value, link: u64) -> Result<Rate, String> {
    units::rate(&text_of(value), link)
}

/// Parses a layer: a table with one key, its name.
fn described(table: &Table) -> Result<Described, String> {
    let mut items = table.iter();
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
