// SPDX-License-Identifier: BSD-2-Clause
//! Histograms, as both formats have them.

use std::fmt::Write as _;

use serde_json::Value;

use super::format::escaped;
use super::text_of;
use crate::ls::members;

/// The name and the meaning of the only one.
const NAME: &str = "switch_latency_seconds";
const HELP: &str = "How long packets were in a switch, by samples of its threads since the daemon started";

/// Formats the latency of the switches of all daemons.
pub(super) fn latency(snapshots: &[Value]) -> String {
    let mut page = format!("# HELP unetmap_{NAME} {HELP}.\n# TYPE unetmap_{NAME} histogram\n");
    for snapshot in snapshots {
        for switch in members(&snapshot["switches"]) {
            let names =
                [("daemon", &snapshot["daemon"]["uid"]), ("switch", &switch["switch"]), ("uid", &switch["uid"])];
            let labels: Vec<String> =
                names.iter().map(|(name, value)| format!("{name}=\"{}\"", escaped(&text_of(value)))).collect();
            series(&labels.join(","), &switch["latency"], &mut page);
        }
    }
    page
}

/// The lines of one switch; none of a daemon that does not sample.
fn series(labels: &str, latency: &Value, page: &mut String) {
    let Some(sum_ns) = latency["sum_ns"].as_f64() else { return };
    let mut count = 0;
    for bucket in members(&latency["buckets"]) {
        count += bucket[1].as_u64().unwrap_or(0);
        let bound = bucket[0].as_f64().map_or_else(|| "+Inf".into(), |ns| (ns / 1e9).to_string());
        // Writes to a String cannot fail.
        let _ = writeln!(page, "unetmap_{NAME}_bucket{{{labels},le=\"{bound}\"}} {count}");
    }
    let _ = writeln!(page, "unetmap_{NAME}_sum{{{labels}}} {}", sum_ns / 1e9);
    let _ = writeln!(page, "unetmap_{NAME}_count{{{labels}}} {count}");
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    #[test]
    fn buckets_add_up() {
        let latency = json!({"sum_ns": 1_500_000, "buckets": [[1000, 2], [2000, 0], [null, 1]]});
        let switches = json!([{"switch": "vale0", "uid": 7, "latency": latency}, {"switch": "vale1", "uid": 7}]);
        let page = super::latency(&[json!({"daemon": {"uid": 0}, "switches": switches})]);
        let lines: Vec<&str> = page.lines().skip(2).collect();
        let of = |part: &str, end: &str| {
            format!("unetmap_switch_latency_seconds_{part}{{daemon=\"0\",switch=\"vale0\",uid=\"7\"{end}")
        };
        assert_eq!(
            lines,
            [
                of("bucket", ",le=\"0.000001\"} 2"),
                of("bucket", ",le=\"0.000002\"} 2"),
                of("bucket", ",le=\"+Inf\"} 3"),
                of("sum", "} 0.0015"),
                of("count", "} 3")
            ]
        );
    }
}
