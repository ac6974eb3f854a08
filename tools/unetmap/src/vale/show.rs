// SPDX-License-Identifier: BSD-2-Clause
//! The output of `unetmap vale`: switches, their ports and addresses, threads, settings.

use std::io::{IsTerminal as _, stdout};
use std::time::Duration;

use serde_json::Value;
use tool_common::served;
use tool_common::table::align;
use tool_common::{BOLD, PLAIN, YELLOW};

use super::port::settings;
use crate::ls::{cell, header, members};

/// Returns true if standard output is a terminal and `NO_COLOR` is not set.
pub(super) fn use_colour() -> bool {
    stdout().is_terminal() && std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty())
}

pub(super) fn switch_list(all: &Value) -> String {
    let mut rows = header(["switch", "user", "ports", "addresses", "age"]);
    for switch in members(all) {
        rows.push(vec![
            cell(&switch["switch"]),
            cell(&switch["uid"]),
            cell(&switch["ports"]),
            cell(&switch["addresses"]),
            if switch["age"] == 0 { "off".into() } else { format!("{} s", cell(&switch["age"])) },
        ]);
    }
    if rows.len() == 1 { "There are no switches; opening a port creates one.\n".into() } else { align(&rows, 1) }
}

pub(super) fn threads(reply: &Value) -> String {
    let list: Vec<String> = members(&reply["cpus"]).map(cell).collect();
    let cpus = if list.is_empty() { "any processors".into() } else { format!("processors {}", list.join(",")) };
    let mut text = format!("threads: {}, on {cpus}\n", cell(&reply["threads"]));
    let mut rows = header(["thread", "id", "processor", "pinned", "ports", "rings"]);
    for thread in members(&reply["running"]) {
        rows.push(vec![
            cell(&thread["thread"]),
            cell(&thread["tid"]),
            cell(&thread["cpu"]),
            if thread["pinned"].is_null() { "no" } else { "yes" }.into(),
            cell(&thread["ports"]),
            cell(&thread["rings"]),
        ]);
    }
    match rows.len() {
        1 => text += "No thread is running: there are no switches.\n",
        _ => text += &format!("\n{}", align(&rows, 0)),
    }
    text
}

pub(super) fn heading(switch: &Value) -> String {
    let ageing = match switch["age"].as_u64() {
        Some(0) => "no aging".into(),
        _ => format!("aging {} s", cell(&switch["age"])),
    };
    format!(
        "{}: user {}, {} ports, {} of {} addresses, {ageing}",
        cell(&switch["switch"]),
        cell(&switch["uid"]),
        cell(&switch["ports"]),
        cell(&switch["addresses"]),
        cell(&switch["most_addresses"]),
    )
}

/// Formats a switch. The rates are computed from two replies, `time` apart.
pub(super) fn switch_details(before: &Value, after: &Value, time: Duration, colour: bool) -> String {
    let mut text = format!("{}\n", heading(after));
    let (rows, losing) = ports(before, after, time);
    for (title, rows, left) in [("Ports", rows, 6), ("Addresses", addresses(&after["table"]), 2)] {
        if rows.len() > 1 {
            text += &format!("\n{title}\n");
            for (n, line) in align(&rows, left).lines().enumerate() {
                let style = match n {
                    0 if colour => Some(BOLD),
                    n if colour && title == "Ports" && losing.contains(&n) => Some(YELLOW),
                    _ => None,
                };
                text += &style.map_or_else(|| format!("{line}\n"), |style| format!("{style}{line}{PLAIN}\n"));
            }
        }
    }
    text
}

/// Returns the rows of the ports, and the indices of the rows whose ports are losing packets.
fn ports(before: &Value, after: &Value, time: Duration) -> (Vec<Vec<String>>, Vec<usize>) {
    let titles = [
        "port",
        "kind",
        "settings",
        "lost",
        "dropped",
        "thread",
        "index",
        "sent",
        "received",
        "sent/s",
        "received/s",
        "lost/s",
    ];
    let (mut rows, mut losing) = (header(titles), Vec::new());
    let sum = |port: &Value| -> u64 {
        let all = [&port["lost"], &port["dropped"]].into_iter().filter_map(Value::as_object);
        all.flat_map(|reasons| reasons.values()).filter_map(Value::as_u64).sum()
    };
    for port in members(&after["port"]) {
        let was = members(&before["port"]).find(|was| was["name"] == port["name"] && was["index"] == port["index"]);
        let rate = |what: &dyn Fn(&Value) -> u64| {
            let difference = was.map_or(0, |was| what(port).saturating_sub(what(was)));
            difference as f64 / time.as_secs_f64().max(1e-9)
        };
        let (sent, received) =
            (|p: &Value| p["sent"].as_u64().unwrap_or(0), |p: &Value| p["received"].as_u64().unwrap_or(0));
        if rate(&sum) > 0.0 {
            losing.push(rows.len());
        }
        rows.push(vec![
            cell(&port["name"]),
            if port["open"] == true { cell(&port["kind"]) } else { "not open".into() },
            all_settings(port),
            reasons(&port["lost"]),
            reasons(&port["dropped"]),
            placement(port),
            cell(&port["index"]),
            cell(&port["sent"]),
            cell(&port["received"]),
            format!("{:.0}", rate(&sent)),
            format!("{:.0}", rate(&received)),
            format!("{:.0}", rate(&sum)),
        ]);
    }
    (rows, losing)
}

/// Formats the port's thread and its processor, and the processors that poll an interface's queues; before them,
/// whether the kernel forwards what needs no thread.
fn placement(port: &Value) -> String {
    if port["thread"].is_null() {
        return "-".into();
    }
    let queues = port["polled"].as_object().into_iter().flatten();
    let queues = queues.map(|(queue, cpu)| format!("; queue {queue} on {}", cell(cpu)));
    let kernel = if port["kernel"]["forwards"] == true { "kernel; " } else { "" };
    format!("{kernel}{} on {}{}", cell(&port["thread"]), cell(&port["cpu"]), queues.collect::<String>())
}

/// Formats the counters that are not 0.
fn reasons(counts: &Value) -> String {
    let all = counts.as_object().into_iter().flatten().filter(|(_, count)| count.as_u64() != Some(0));
    let shown: Vec<String> = all.map(|(why, count)| format!("{why} {count}")).collect();
    if shown.is_empty() { "-".into() } else { shown.join(", ") }
}

/// Formats the settings of a port of the daemon's reply, and how a process serves it.
fn all_settings(port: &Value) -> String {
    let rules = settings(port);
    match served::setting_of(port) {
        Some(served) if rules == "-" => served,
        Some(served) => format!("{served}; {rules}"),
        None => rules,
    }
}

fn addresses(table: &Value) -> Vec<Vec<String>> {
    let mut rows = header(["address", "port", "vlan", "age"]);
    for known in members(table) {
        rows.push(vec![
            cell(&known["address"]),
            format!("{}{}", cell(&known["port"]), if known["kernel"] == true { ", kernel" } else { "" }),
            if known["vlan"] == 0 { "-".into() } else { cell(&known["vlan"]) },
            if known["age"].is_null() { "-".into() } else { format!("{} s", cell(&known["age"])) },
        ]);
    }
    rows
}

#[cfg(test)]
mod tests {
    use super::*;

    fn reply(sent: u64, room: u64) -> Value {
        serde_json::from_str(&format!(
            r#"{{"switch": "vale0", "uid": 0, "ports": 1, "addresses": 1, "age": 300, "most_addresses": 4096,
            "port": [{{"name": "vale0:a", "open": true, "thread": 1, "cpu": 3, "polled": {{"0": 1}}, "index": 0, "kind": "program", "pids": [7], "sent": {sent},
                "received": 5, "lost": {{"bad": 0, "vlan": 2}}, "dropped": {{"room": {room}}},
                "rules": {{"access": 10, "limit_in": {{"packets": 10000, "bits": 0}}, "filter_out": {{"expression": "udp\u001b"}}}}}},
               {{"name": "vale0:b", "open": false, "index": null, "kind": "-", "sent": 0, "received": 0, "lost": {{}},
                "dropped": {{}}, "rules": {{"trunk": "10,20-30", "storm": 1000}}}}],
            "table": [{{"address": "02:00:00:00:00:01", "vlan": 10, "port": "a", "age": 18}}]}}"#
        ))
        .unwrap()
    }

    #[test]
    fn switch_details_have_rates_and_settings() {
        let (before, after) = (reply(100, 0), reply(300, 0));
        assert_eq!(
            switch_details(&before, &after, Duration::from_secs(2), false),
            "\
vale0: user 0, 1 ports, 1 of 4096 addresses, aging 300 s

Ports
port     kind      settings                                         lost    dropped  thread                index  sent  received  sent/s  received/s  lost/s
vale0:a  program   access 10; rate in 10kpps; filter out udp\\u001b  vlan 2  -        1 on 3; queue 0 on 1      0   300         5     100           0       0
vale0:b  not open  trunk 10,20-30; storm 1k                         -       -        -                         -     0         0       0           0       0

Addresses
address            port  vlan   age
02:00:00:00:00:01  a       10  18 s
"
        );
    }

    #[test]
    fn only_rows_of_losing_ports_are_coloured() {
        let text = switch_details(&reply(100, 0), &reply(100, 9), Duration::from_secs(1), true);
        assert!(text.contains("\x1b[33mvale0:a") && text.contains("\x1b[1mport"), "{text}");
        assert!(!text.contains("\x1b[33mvale0:b") && !text.contains("udp\x1b"), "{text}");
        assert!(!switch_details(&reply(1, 0), &reply(1, 0), Duration::from_secs(1), true).contains("\x1b[33m"));
    }
}
