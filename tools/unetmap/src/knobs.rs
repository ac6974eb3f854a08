// SPDX-License-Identifier: BSD-2-Clause
//! `unetmap get`, `set` and `reload`: show and set the daemon's knobs, and have their file read again.

use serde_json::Value;
use tool_common::Failure;
use tool_common::table::align;
use unetmap::Error;
use unetmap::errno::{EINVAL, ENOENT};
use unetmap_core::control::sysctl::{self, KnobRequest, send_request};

use crate::ls::{cell, header, members, parse_reply};

/// Prints the value of a knob, or a table of all knobs.
pub(crate) fn get(name: Option<&str>, json: bool) -> Result<u8, Failure> {
    let reply = send_request(&KnobRequest::Get(name.map(str::to_owned))).map_err(|e| failure("get", &e))?;
    let text = match name {
        _ if json => format!("{reply}\n"),
        Some(_) => format!("{}\n", cell(&parse_reply("get", &reply)?["value"])),
        None => table(&parse_reply("get", &reply)?),
    };
    Ok(crate::print("get", &text)?)
}

/// The failure that a refusal of the daemon is: knobs that it does not have, and values that they do not take, are
/// wrong usage.
fn failure(subcommand: &str, error: &Error) -> Failure {
    let message = format!("{subcommand}: {error}");
    match error {
        Error::Refused { errno: ENOENT | EINVAL, .. } => Failure::Usage(message),
        _ => Failure::Work(message),
    }
}

/// Sets a knob, and prints when the value takes effect.
pub(crate) fn set(name: &str, value: u64, json: bool) -> Result<u8, Failure> {
    let reply = send_request(&KnobRequest::Set(name.into(), value)).map_err(|e| failure("set", &e))?;
    let text = if json { format!("{reply}\n") } else { set_text(&parse_reply("set", &reply)?) };
    Ok(crate::print("set", &text)?)
}

/// Has the daemon read its configuration and policy again, and prints what that changed.
pub(crate) fn reload(json: bool) -> Result<u8, String> {
    let Some(reply) = sysctl::reload().map_err(|e| format!("reload: {e}"))? else {
        return Err("reload: no daemon runs (one that is started reads its files)".into());
    };
    let text = if json { format!("{reply}\n") } else { reload_text(&parse_reply("reload", &reply)?) };
    crate::print("reload", &text)
}

fn reload_text(reply: &Value) -> String {
    let mut lines: Vec<String> = members(&reply["knobs"])
        .map(|change| {
            format!("{}: {}, before {}", cell(&change["knob"]), cell(&change["now"]), cell(&change["before"]))
        })
        .collect();
    if let Some(threads) = reply["threads"].as_u64() {
        lines.push(format!("threads of switches: {threads}"));
    }
    if lines.is_empty() {
        lines.push("configuration: no change".into());
    }
    if let Some(rules) = reply["policy_rules"].as_u64() {
        lines.push(format!("policy: {rules} rule{}", if rules == 1 { "" } else { "s" }));
    }
    lines.join("\n") + "\n"
}

fn table(all: &Value) -> String {
    // The last column is left-aligned with its title.
    let mut rows = header(["knob", "applies", "value", "default", "least", "most"]);
    let mut about = vec!["about".to_owned()];
    for knob in members(all) {
        rows.push(["knob", "applies", "value", "default", "least", "most"].map(|name| cell(&knob[name])).to_vec());
        about.push(cell(&knob["about"]));
    }
    align(&rows, 2).lines().zip(about).map(|(line, about)| format!("{line}  {about}\n")).collect()
}

fn set_text(knob: &Value) -> String {
    let from = match knob["applies"].as_str() {
        Some("now") => "from now on".into(),
        Some("open") => "for ports that are opened from now on".into(),
        Some("region") => "for regions that are created from now on".into(),
        _ => format!("without effect here: {}", cell(&knob["about"])),
    };
    format!("{}: {}, {from}\n", cell(&knob["knob"]), cell(&knob["value"]))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_has_a_line_for_each_knob() {
        let all = serde_json::json!([{ "knob": "fwd", "value": 1, "default": 0, "applies": "open", "about": "x y" }]);
        let text = table(&all);
        let lines: Vec<&str> = text.lines().collect();
        assert!(lines[0].starts_with("knob") && lines[0].ends_with("about"), "{text}");
        assert!(lines[1].starts_with("fwd") && lines[1].ends_with("  x y"), "{text}");
    }
}
