// SPDX-License-Identifier: BSD-2-Clause
//! The interfaces with the setting `failure` in `unetmap top`: what becomes of frames that no program takes, and
//! whether the kernel forwards now.

use serde_json::Value;
use tool_common::table::align;

use crate::ls::{cell, header};

/// Formats them as a table with an empty line below; empty if there are none.
pub(super) fn text(interfaces: &[Value]) -> String {
    if interfaces.is_empty() {
        return String::new();
    }
    let mut rows = header(["interface", "failure", "bypass", "bypass s", "bypassed", "dropped", "to stack", "lost"]);
    rows.extend(interfaces.iter().map(row));
    align(&rows, 3) + "\n"
}

fn row(interface: &Value) -> Vec<String> {
    let failure = match interface["partner"].as_str() {
        Some(partner) => format!("{} {partner}", cell(&interface["action"])),
        None => cell(&interface["action"]),
    };
    let bypass = &interface["bypass"];
    let now = match bypass["cause"].as_str() {
        Some(cause) => cause.into(),
        None if bypass.is_object() => "no".into(),
        None => "-".into(),
    };
    let seconds = bypass["seconds"].as_f64().map_or_else(|| "-".into(), |seconds| format!("{seconds:.1}"));
    let count = |key: &str| interface[key].as_u64().unwrap_or(0);
    let counts = ["bypassed", "dropped", "to_stack"].map(|key| count(key).to_string());
    let lost = (count("left_in_rings") + count("no_room")).to_string();
    [cell(&interface["interface"]), failure, now, seconds].into_iter().chain(counts).chain([lost]).collect()
}

/// Formats them as JSON, one object per line.
pub(super) fn lines(interfaces: &[Value]) -> String {
    interfaces.iter().map(|interface| format!("{interface}\n")).collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn the_state_of_a_bypass_and_the_counts_are_shown() {
        assert_eq!(text(&[]), "");
        let interfaces = [
            json!({"interface": "eth1", "action": "bypass", "partner": "eth2", "bypassed": 9, "left_in_rings": 2,
                "no_room": 1, "bypass": {"cause": "stalled", "seconds": 2.54}}),
            json!({"interface": "eth2", "action": "bypass", "partner": "eth1", "bypassed": 3,
                "bypass": {"cause": null, "seconds": 2.0}}),
            json!({"interface": "eth3", "action": "closed", "dropped": 5, "to_stack": 1}),
        ];
        let text = text(&interfaces);
        let rows: Vec<String> =
            text.lines().skip(1).take(3).map(|line| line.split_whitespace().collect::<Vec<_>>().join(" ")).collect();
        assert_eq!(
            rows,
            ["eth1 bypass eth2 stalled 2.5 9 0 0 3", "eth2 bypass eth1 no 2.0 3 0 0 0", "eth3 closed - - 0 5 1 0"]
        );
        assert_eq!(lines(&interfaces).lines().count(), 3);
    }
}
