//! `unetmap get` and `unetmap set`: the daemon's knobs.

use serde_json::Value;
use unetmap::knobs::{Wish, ask};
use unetmap_bench::align;

use crate::ls::{cell, header, members};

/// Shows a knob, or all.
pub(crate) fn get(name: Option<&str>, json: bool) -> Result<u8, String> {
    let answer = ask(&Wish::Get(name.map(str::to_owned))).map_err(|e| format!("get: {e}"))?;
    let text = match name {
        _ if json => format!("{answer}\n"),
        Some(_) => format!("{}\n", cell(&parse("get", &answer)?["value"])),
        None => table(&parse("get", &answer)?),
    };
    crate::print("get", &text)
}

/// Sets a knob, and says from when on that counts.
pub(crate) fn set(name: &str, value: u64, json: bool) -> Result<u8, String> {
    let answer = ask(&Wish::Set(name.into(), value)).map_err(|e| format!("set: {e}"))?;
    let text = if json { format!("{answer}\n") } else { said(&parse("set", &answer)?) };
    crate::print("set", &text)
}

fn parse(what: &str, json: &str) -> Result<Value, String> {
    serde_json::from_str(json).map_err(|e| {
        format!("{what}: the daemon's answer makes no sense ({e}); is it another version? --json shows it")
    })
}

fn table(all: &Value) -> String {
    // The text in the last column is flush left with its title.
    let mut rows = header(["knob", "applies", "value", "default", "least", "most"]);
    let mut about = vec!["about".to_owned()];
    for knob in members(all) {
        rows.push(["knob", "applies", "value", "default", "least", "most"].map(|name| cell(&knob[name])).to_vec());
        about.push(cell(&knob["about"]));
    }
    align(&rows, 2).lines().zip(about).map(|(line, about)| format!("{line}  {about}\n")).collect()
}

fn said(knob: &Value) -> String {
    let from = match knob["applies"].as_str() {
        Some("now") => "from now on".into(),
        Some("open") => "for ports that are opened from now on".into(),
        Some("region") => "for regions that are made from now on".into(),
        _ => format!("without effect here: {}", cell(&knob["about"])),
    };
    format!("{}: {}, {from}\n", cell(&knob["knob"]), cell(&knob["value"]))
}

/// A knob's value as people write it: decimal, or hexadecimal behind 0x.
pub(crate) fn value(text: &str) -> Result<u64, String> {
    let parsed = match text.strip_prefix("0x") {
        Some(digits) => u64::from_str_radix(digits, 16),
        None => text.parse(),
    };
    parsed.map_err(|_| "a value is a whole number from 0, such as 4096 or 0x1000".into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values() {
        for (text, number) in [("0", Some(0)), ("4096", Some(4096)), ("0x1000", Some(4096)), ("-1", None), ("1k", None)]
        {
            assert_eq!(value(text).ok(), number, "{text}");
        }
    }

    #[test]
    fn a_table_has_a_line_a_knob() {
        let all = serde_json::json!([{ "knob": "fwd", "value": 1, "default": 0, "applies": "open", "about": "x y" }]);
        let text = table(&all);
        let lines: Vec<&str> = text.lines().collect();
        assert!(lines[0].starts_with("knob") && lines[0].ends_with("about"), "{text}");
        assert!(lines[1].starts_with("fwd") && lines[1].ends_with("  x y"), "{text}");
    }
}
