// SPDX-License-Identifier: BSD-2-Clause
//! The list of states, as ipfw prints it (`ipfw -D list`), or as JSON.

use std::collections::HashMap;
use std::fmt::Write as _;

use serde_json::json;
use unetmap_filter::{Config, RuleId, StateInfo, proto};

/// Returns the list of states of rules that exist, in the order of the rules.
pub(crate) fn list(mut states: Vec<StateInfo>, config: &Config, is_json: bool) -> String {
    let numbers: HashMap<RuleId, u16> = config.rules().iter().map(|rule| (rule.id, rule.number)).collect();
    states.retain(|state| numbers.contains_key(&state.rule));
    states.sort_by_key(|state| numbers[&state.rule]);
    if is_json {
        let all = states.iter().map(|state| as_json(state, numbers[&state.rule], config));
        return format!("{{\"states\":[{}]}}\n", all.collect::<Vec<_>>().join(","));
    }
    let width = |of: fn(&StateInfo) -> u64| states.iter().map(|s| of(s).to_string().len()).max().unwrap_or(1);
    let (packets, bytes) = (width(|state| state.packets), width(|state| state.bytes));
    let mut text = String::new();
    for state in &states {
        let [(src, src_port), (dst, dst_port)] = state.ends;
        let _ = writeln!(
            text,
            "{:05} {:packets$} {:bytes$} ({}s) {} {} {src} {src_port} <-> {dst} {dst_port} :{}",
            numbers[&state.rule],
            state.packets,
            state.bytes,
            state.left.div_ceil(1000),
            kind(state),
            protocol(state.proto),
            config.state_name(state.name),
        );
    }
    text
}

fn as_json(state: &StateInfo, rule: u16, config: &Config) -> String {
    let end = |i: usize| json!({"address": state.ends[i].0, "port": state.ends[i].1});
    json!({
        "rule": rule, "name": config.state_name(state.name), "kind": kind(state), "protocol": state.proto,
        "source": end(0), "destination": end(1), "packets": state.packets, "bytes": state.bytes,
        "expires_ms": state.left,
    })
    .to_string()
}

fn kind(state: &StateInfo) -> &'static str {
    if state.is_limited { "LIMIT" } else { "STATE" }
}

fn protocol(number: u8) -> String {
    match number {
        proto::TCP => "tcp".into(),
        proto::UDP => "udp".into(),
        proto::ICMP => "icmp".into(),
        proto::ICMP6 => "ipv6-icmp".into(),
        other => other.to_string(),
    }
}
