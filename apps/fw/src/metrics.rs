// SPDX-License-Identifier: BSD-2-Clause
//! The firewall's counters for `unetmap metrics`.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

use serde_json::Value;
use tool_common::metrics::{Metric, MetricsArgs, Served};
use unetmap_filter::Config;

use crate::control::snapshot;
use crate::shared::Shared;

/// Shows the counters of a firewall between these ports, if that is asked for.
///
/// # Errors
/// As of [`MetricsArgs::serve`].
pub(crate) fn serve(
    args: &MetricsArgs,
    [first, second]: [&str; 2],
    shared: &Arc<Shared>,
    config: &Arc<Mutex<Config>>,
) -> Result<Option<Served>, String> {
    let (shared, config) = (Arc::clone(shared), Arc::clone(config));
    args.serve(&format!("unetmap-fw {first} {second}"), move || {
        let config = config.lock().unwrap_or_else(PoisonError::into_inner).clone();
        of(&snapshot(&shared, &config))
    })
}

/// The metrics of a snapshot.
fn of(snapshot: &Value) -> Vec<Metric> {
    let number = |value: &Value| value.as_u64().unwrap_or(0);
    let mut rules: BTreeMap<(u64, String), [u64; 2]> = BTreeMap::new();
    for rule in snapshot["rules"].as_array().into_iter().flatten() {
        // Rules of one number, in one set, that have the same comment count together.
        let text = rule["rule"].as_str().unwrap_or_default();
        let comment = text.split_once(" // ").map_or("", |(_, comment)| comment);
        let sum = rules.entry((number(&rule["number"]), comment.to_owned())).or_default();
        *sum = [sum[0] + number(&rule["packets"]), sum[1] + number(&rule["bytes"])];
    }
    let mut of_rules = [
        Metric::counter("fw_rule_packets", "Packets that matched rules, by number and comment"),
        Metric::counter("fw_rule_bytes", "Bytes of these packets"),
    ];
    for ((rule, comment), counts) in rules {
        let rule = rule.to_string();
        let labels = [("rule", &*rule), ("comment", &*comment)];
        of_rules.iter_mut().zip(counts).for_each(|(metric, count)| metric.add(&labels, count));
    }
    let of_pipes = pipes(&snapshot["pipes"]);
    let by_way = |name: &str, help: &str, key: &str| {
        let value = |way: &str| number(&snapshot[way][key]);
        Metric::counter(name, help).with(&[("dir", "out")], value("out")).with(&[("dir", "in")], value("in"))
    };
    let group = |name: &str, help: &str, label: &str, group: &Value, keys: &[&str]| {
        let metric = Metric::counter(name, help);
        keys.iter().fold(metric, |metric, key| metric.with(&[(label, key)], number(&group[*key])))
    };
    let (states, nat) = (&snapshot["states"], &snapshot["nat"]);
    let mut all = [&of_rules[..], &of_pipes[..]].concat();
    all.extend([
        by_way("fw_passed_packets", "Packets that passed", "passed"),
        by_way("fw_dropped_packets", "Packets that did not", "dropped"),
        Metric::counter("fw_malformed_packets", "Of these, malformed ones").with(&[], number(&snapshot["malformed"])),
        Metric::gauge("fw_states", "States of connections").with(&[], number(&states["now"])),
        group(
            "fw_states_ended",
            "States, and packets that would have made one, that had no room, by reason",
            "reason",
            states,
            &["dropped_half_open", "full", "limited"],
        ),
        Metric::gauge("fw_nat_connections", "Connections that are translated").with(&[], number(&nat["now"])),
        group(
            "fw_nat_dropped_packets",
            "Packets that were not translated, by reason",
            "reason",
            nat,
            &["full", "no_port", "denied_in", "fragments"],
        ),
        Metric::counter(
            "fw_nat_lost_events",
            "Begins and ends of connections of NAT that have no record, as too many waited",
        )
        .with(&[], number(&nat["lost_events"])),
        Metric::counter("fw_unsent_records", "Records of flows and of NAT that the collector did not get")
            .with(&[], number(&snapshot["unsent_records"])),
        group(
            "fw_syn_proxy",
            "Handshakes of the SYN proxy, by event",
            "event",
            &snapshot["syn_proxy"],
            &["cookies", "accepted", "opened", "refused", "invalid"],
        ),
    ]);
    all
}

/// The metrics of pipes: of the link that a pipe is, and of that which its queues share.
fn pipes(pipes: &Value) -> [Metric; 4] {
    let mut all = [
        ("packets", Metric::counter("fw_pipe_packets", "Packets that came to pipes, and to their queues")),
        ("bytes", Metric::counter("fw_pipe_bytes", "Bytes of these packets")),
        ("dropped", Metric::counter("fw_pipe_dropped_packets", "Of these packets, those that were lost or dropped")),
        ("held", Metric::gauge("fw_pipe_held_packets", "Packets in the queues of pipes and on their way")),
    ];
    for pipe in pipes.as_array().into_iter().flatten() {
        let number = pipe["number"].to_string();
        for of in ["own", "queues"].into_iter().filter(|of| pipe[*of].is_object()) {
            for (key, metric) in &mut all {
                metric.add(&[("pipe", &*number), ("of", of)], pipe[of][*key].as_u64().unwrap_or(0));
            }
        }
    }
    all.map(|(_, metric)| metric)
}
