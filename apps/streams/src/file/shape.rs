// SPDX-License-Identifier: BSD-2-Clause
//! How the packets of a stream are spread, as it is written.

use toml::{Table, Value};

use super::{parse_rate, whole};
use crate::field::text_of;
use crate::schedule::{Rate, Shape};
use crate::units;

const ALL: &str = "there are \"constant\", \"poisson\", { burst = N }, { ramp = { from = RATE, over = TIME } } and \
                   { on-off = { on = TIME, off = TIME } }";

pub(super) fn parse(value: &Value, rate: Rate, link: u64) -> Result<Shape, String> {
    match value.as_str() {
        Some("constant") => return Ok(Shape::Constant),
        Some("poisson") => return Ok(Shape::Poisson),
        Some(other) => return Err(format!("there is no `{other}`; {ALL}")),
        None => {}
    }
    let mut items = value.as_table().into_iter().flatten();
    let (Some((kind, value)), None) = (items.next(), items.next()) else {
        return Err(format!("it has one form; {ALL}"));
    };
    match kind.as_str() {
        "burst" => {
            let what = "a number of packets, at least 1";
            let packets = whole(value, 1, what).ok().and_then(|packets| u32::try_from(packets).ok());
            packets.map(Shape::Burst).ok_or_else(|| format!("burst: `{}` is not {what}", text_of(value)))
        }
        "on-off" => {
            let [on, off] = both(value, "on-off", ["on", "off"])?;
            Ok(Shape::OnOff { on: above_zero("on-off.on", on)?, off: time("on-off.off", off)? })
        }
        "ramp" => {
            let [from, over] = both(value, "ramp", ["from", "over"])?;
            Ok(Shape::Ramp { from: begin(from, rate, link)?, over: above_zero("ramp.over", over)? })
        }
        other => Err(format!("there is no `{other}`; {ALL}")),
    }
}

/// Returns the values of two keys, which are all that the table has.
fn both<'v>(value: &'v Value, kind: &str, keys: [&str; 2]) -> Result<[&'v Value; 2], String> {
    let [one, other] = keys;
    let wrong = || format!("{kind}: it is a table of {one} and {other}; {ALL}");
    let table: &Table = value.as_table().filter(|table| table.len() == 2).ok_or_else(wrong)?;
    Ok([table.get(one).ok_or_else(wrong)?, table.get(other).ok_or_else(wrong)?])
}

/// Returns the rate at which a ramp begins, in the units of the rate at its end; 0 has any unit.
fn begin(value: &Value, rate: Rate, link: u64) -> Result<f64, String> {
    if value.as_integer() == Some(0) {
        return Ok(0.0);
    }
    let from = parse_rate(value, link).map_err(|e| format!("ramp.from: {e}"))?;
    if from.unit() != rate.unit() {
        return Err(
            "ramp.from: a ramp begins in another unit than the rate has: give both in pps, bps or percent".into()
        );
    }
    Ok(from.per_second())
}

fn time(key: &str, value: &Value) -> Result<u64, String> {
    units::time(&text_of(value)).map_err(|e| format!("{key}: {e}"))
}

fn above_zero(key: &str, value: &Value) -> Result<u64, String> {
    match time(key, value)? {
        0 => Err(format!("{key}: `{}` is not above 0", text_of(value))),
        time => Ok(time),
    }
}
