// SPDX-License-Identifier: BSD-2-Clause
//! The Grafana dashboard, `service/grafana.json`: a Prometheus server scrapes the metrics of real traffic, and answers
//! each query of each panel.

use std::fs;
use std::process::{Command, Stdio};

use conformance::home::{Guard, summary};
use conformance::{isolated_with_interfaces, program, until};
use lab::{Lab, Ns};
use serde_json::Value;

/// Where metrics and Prometheus listen, in a namespace of their own.
const METRICS: &str = "127.0.0.1:9465";
const PROMETHEUS: &str = "127.0.0.1:9090";
const CONFIG: &str = "global: {scrape_interval: 200ms, scrape_timeout: 200ms}\n\
                      scrape_configs: [{job_name: unetmap, static_configs: [{targets: ['127.0.0.1:9465']}]}]\n";

/// The queries of the panels, with their titles and with values for Grafana's variables.
fn queries() -> Vec<(String, String)> {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../service/grafana.json");
    let dashboard: Value = serde_json::from_str(&fs::read_to_string(path).expect("a file")).expect("JSON");
    let list = |value: &Value| value.as_array().cloned().unwrap_or_default();
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let of = |panel: &Value| {
        let query = list(&panel["targets"]).iter().map(|target| text(&target["expr"])).collect::<Vec<_>>().join("");
        let query = [("$__rate_interval", "3s"), ("$daemon", ".*"), ("$port", ".*")]
            .iter()
            .fold(query, |query, (variable, value)| query.replace(variable, value));
        assert!(!query.contains('$') && !query.is_empty(), "{query}");
        (text(&panel["title"]), query)
    };
    list(&dashboard["panels"]).iter().map(of).collect()
}

/// The answer to a query: the values of its series.
fn ask(ns: &Ns, query: &str) -> Result<Vec<f64>, String> {
    let text = ns.tool("promtool", &["query", "instant", "-o", "json", &format!("http://{PROMETHEUS}"), query])?;
    let series: Value = serde_json::from_str(&text).map_err(|e| format!("{e}: {text}"))?;
    let value = |one: &Value| one["value"][1].as_str().and_then(|text| text.parse().ok());
    Ok(series.as_array().into_iter().flatten().filter_map(value).collect())
}

#[test]
fn the_dashboard_shows_a_load() {
    isolated_with_interfaces(|home| {
        if Command::new("prometheus").arg("--version").output().is_err() {
            return summary("skipped: prometheus is not installed (Debian package prometheus)");
        }
        let lab = match Lab::new() {
            Ok(lab) => lab,
            Err(why) => return summary(&format!("skipped: {why}")),
        };
        let ns = lab.namespace("metrics").expect("a namespace");
        let config = home.folder().join("prometheus.yml");
        fs::write(&config, CONFIG).expect("a file");
        let quietly = |command: &mut Command| Guard::spawn(command.stdout(Stdio::null()).stderr(Stdio::null()));
        let load = |args: &str| quietly(Command::new(program("pkt-gen")).args(args.split(' ')));
        let mut receiver = load("-i vale0:b -f rx -w 0");
        let mut sender = load("-i vale0:a -f tx -w 0 -R 20000");
        let mut metrics = quietly(ns.command(program("unetmap")).args(["metrics", "--listen", METRICS]));
        let mut prometheus = ns.command("prometheus");
        prometheus.arg("--config.file").arg(&config).arg("--storage.tsdb.path").arg(home.folder().join("data"));
        let mut prometheus = quietly(prometheus.args(["--web.listen-address", PROMETHEUS]));
        let known = Command::new(program("unetmap")).arg("metrics").output().expect("it runs").stdout;
        let known = String::from_utf8(known).expect("text");
        // What this daemon has none of: the names are known all the same.
        let may_be_empty = ["Missing", "Dropped", "Lost", "Queued", "Wake-ups", "Budgets"];
        for (title, query) in queries() {
            for name in
                query.split(|c: char| !c.is_ascii_alphanumeric() && c != '_').filter(|w| w.starts_with("unetmap_"))
            {
                let declared = format!("# TYPE {name} ");
                assert!(known.contains(&declared), "{title}: {name} is no metric");
            }
            let optional = may_be_empty.iter().any(|begin| title.starts_with(begin));
            let mut answer = Err(String::new());
            let check = || {
                answer = ask(&ns, &query);
                answer.as_ref().is_ok_and(|values| optional || values.iter().any(|value| *value > 0.0))
            };
            until(&format!("\"{title}\" has an answer: {query}"), check);
            summary(&format!("{title}: {} series", answer.map_or(0, |values| values.len())));
        }
        [&mut prometheus, &mut metrics, &mut sender, &mut receiver].into_iter().for_each(Guard::kill);
    });
}
