// SPDX-License-Identifier: BSD-2-Clause
//! The alerts for Prometheus, `service/alerts.yml`: `promtool` takes the rules, and raises each in its case; the
//! metrics that they ask for exist.

use std::collections::BTreeSet;
use std::fs;
use std::path::PathBuf;
use std::process::Command;

use conformance::home::summary;
use conformance::net::{BUFFER, frames, transmit};
use conformance::traffic::{exchange, open};
use conformance::{isolated, kept, program};

fn file(name: &str) -> PathBuf {
    [env!("CARGO_MANIFEST_DIR"), "..", "service", name].iter().collect()
}

/// The metrics that a text names.
fn metrics_in(text: &str) -> BTreeSet<String> {
    let words = text.split(|c: char| !c.is_ascii_alphanumeric() && c != '_');
    words.filter(|word| word.starts_with("unetmap_")).map(str::to_owned).collect()
}

#[test]
fn each_alert_is_raised_in_its_case() {
    for (what, name) in [("check", "alerts.yml"), ("test", "alerts.test.yml")] {
        let Ok(output) = Command::new("promtool").args([what, "rules"]).arg(file(name)).output() else {
            return summary("skipped: promtool is not installed (Debian package prometheus)");
        };
        let said = [output.stdout, output.stderr].concat();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&said));
    }
    let [rules, cases] = ["alerts.yml", "alerts.test.yml"].map(|name| fs::read_to_string(file(name)).expect("a file"));
    for alert in rules.lines().filter_map(|line| line.trim().strip_prefix("- alert: ")) {
        assert_eq!(cases.matches(alert).count(), 2, "{alert}: a case without it and one with it");
    }
}

#[test]
fn the_metrics_of_the_alerts_exist() {
    isolated(|home| {
        let mut daemon = kept::start(home, None);
        let (a, _b) = (open("vale0:a"), open("vale0:b"));
        let (tx, rx) = (open("netmap:p{1"), open("netmap:p}1"));
        exchange(&tx, &rx, 0, 0, 100);
        transmit(&a, 0, &frames(&[60; 3], 0), BUFFER);
        let output = Command::new(program("unetmap")).arg("metrics").output().expect("it runs");
        let page = String::from_utf8(output.stdout).expect("text");
        let samples: BTreeSet<String> =
            page.lines().filter(|line| !line.starts_with('#')).flat_map(metrics_in).collect();
        let rules = fs::read_to_string(file("alerts.yml")).expect("a file");
        let expressions: String = rules.lines().filter(|line| line.contains("unetmap_")).collect();
        for metric in metrics_in(&expressions) {
            // Those of programs in `apps` are looked for where they run.
            if metric.starts_with("unetmap_fw_") || metric.starts_with("unetmap_flows_") {
                continue;
            }
            // A user's own daemon has no budgets, and this one no interface with the setting `failure`.
            let is_declared = ["unetmap_user_", "unetmap_bypass_", "unetmap_interface_"];
            let is_declared = is_declared.iter().any(|begin| metric.starts_with(begin)) && page.contains(&metric);
            assert!(samples.contains(&metric) || is_declared, "{metric}\n{page}");
        }
        daemon.kill();
    });
}
