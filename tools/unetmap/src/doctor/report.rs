// SPDX-License-Identifier: BSD-2-Clause
//! `unetmap doctor --report`: what a user should attach to a report of a bug. Text and JSON have the same contents.

use std::fs;

use serde_json::{Map, Value, json};
use unetmap::abi::printable::word;
use unetmap_sys::link::{self, Link};

use super::{Check, Report, causes, gather, machine, nic};

/// The report's own words for the things that it leaves out.
const LEFT_OUT: &str = "IP addresses, routes, the second half of MAC addresses, names of hosts and users, the commands \
                        of processes other than the holder of an XDP program, and all interfaces but the given one";

/// Settings of the kernel that change how ports work; files below /proc/sys.
const SYSCTLS: [&str; 9] = [
    "kernel/unprivileged_bpf_disabled",
    "kernel/sched_rt_runtime_us",
    "net/core/bpf_jit_enable",
    "net/core/bpf_jit_harden",
    "net/core/busy_poll",
    "net/core/busy_read",
    "net/core/netdev_budget",
    "vm/nr_hugepages",
    "vm/overcommit_memory",
];

/// Builds the report of a machine, and of one interface.
pub(super) fn build(machine: &machine::Facts, report: &Report, link: Option<&Link>) -> Value {
    let mut all = Map::new();
    all.insert("unetmap".into(), unetmap::version().into());
    all.insert("left_out".into(), LEFT_OUT.into());
    all.insert("likely_causes".into(), causes::likely(machine.daemons.as_ref().err()).into());
    all.insert("machine".into(), this_machine(machine));
    all.insert("checks".into(), lines(&report.checks));
    all.insert("sysctls".into(), SYSCTLS.iter().map(|name| (name.replace('/', "."), setting(name))).collect());
    all.insert("limits".into(), limits("self"));
    // One that does not answer is asked once.
    let snapshots = if machine.daemons.is_ok() { unetmap::snapshots().unwrap_or_default() } else { Vec::new() };
    all.insert("daemons".into(), snapshots.iter().map(|snapshot| daemon(snapshot)).collect());
    if let (Some(link), Some(found)) = (link, report.interfaces.first()) {
        all.insert("interface".into(), interface(link, found));
    }
    Value::Object(all)
}

/// Formats a report: a line for each value, indented below its key.
pub(super) fn text(report: &Value) -> String {
    let mut text = String::new();
    write(report, 0, &mut text);
    text
}

fn write(value: &Value, depth: usize, text: &mut String) {
    let indent = "  ".repeat(depth);
    let mut item = |key: &str, value: &Value| {
        let leaf = match value {
            Value::Object(_) | Value::Array(_) => {
                *text += &format!("{indent}{}\n", key.trim_end());
                return write(value, depth + 1, text);
            }
            Value::String(value) => word(value).into_owned(),
            Value::Null => "-".to_owned(),
            other => other.to_string(),
        };
        *text += &format!("{indent}{key}{leaf}\n");
    };
    match value {
        Value::Object(map) => map.iter().for_each(|(key, value)| item(&format!("{key}: "), value)),
        Value::Array(list) => list.iter().for_each(|value| item("", value)),
        _ => {}
    }
}

fn lines(checks: &[Check]) -> Value {
    checks.iter().map(|check| format!("{}: {}: {}", check.state.word(), check.what, check.sentence())).collect()
}

fn this_machine(facts: &machine::Facts) -> Value {
    let first = |file: &str, key: &str| {
        let text = read(file);
        let line = text.lines().find_map(|line| line.strip_prefix(key));
        line.map(|rest| rest.trim_matches([' ', '\t', ':', '=', '"']).to_owned())
    };
    let nodes = fs::read_dir("/sys/devices/system/node").into_iter().flatten().flatten();
    let nodes =
        nodes.filter(|entry| entry.file_name().to_string_lossy().trim_start_matches("node").parse::<u32>().is_ok());
    json!({
        "kernel": facts.release,
        "architecture": std::env::consts::ARCH,
        "distribution": first("/etc/os-release", "PRETTY_NAME"),
        "processor": first("/proc/cpuinfo", "model name"),
        "processors": std::thread::available_parallelism().map_or(0, usize::from),
        "memory": first("/proc/meminfo", "MemTotal"),
        "numa_nodes": nodes.count(),
        "huge_pages_of_shared_memory": read("/sys/kernel/mm/transparent_hugepage/shmem_enabled").trim(),
        "lockdown": read("/sys/kernel/security/lockdown").trim(),
        "capabilities": facts.own.capabilities.map(|bits| format!("{bits:016x}")),
    })
}

fn limits(process: &str) -> Value {
    let text = read(&format!("/proc/{process}/limits"));
    let wanted =
        |line: &&str| ["Max locked memory", "Max open files", "Max processes"].iter().any(|key| line.starts_with(key));
    text.lines().filter(wanted).map(|line| line.split_whitespace().collect::<Vec<_>>().join(" ")).collect()
}

/// The version of a daemon, its limits and its ports, out of its snapshot.
fn daemon(snapshot: &str) -> Value {
    let all: Value = serde_json::from_str(snapshot).unwrap_or_default();
    let ports = all["ports"].as_array().into_iter().flatten();
    let ports = ports.map(|port| {
        let sessions = all["sessions"].as_array().into_iter().flatten();
        let open = sessions.filter(|session| session["port"] == port["name"]).count();
        let word = |key: &str| port[key].as_str().unwrap_or("-").to_owned();
        format!("{}, {}, {}, sessions: {open}", word("name"), word("kind"), word("manner"))
    });
    // The process that opens interfaces.
    let daemon = &all["daemon"];
    let pid = daemon.get("privileged_pid").unwrap_or(&daemon["pid"]).to_string();
    json!({
        "version": all["daemon"]["version"],
        "root": all["daemon"]["uid"] == 0,
        "capabilities": gather::privileges(&pid).capabilities.map(|bits| format!("{bits:016x}")),
        "limits": limits(&pid),
        "ports": ports.collect::<Vec<_>>(),
    })
}

fn interface(link: &Link, found: &nic::InterfaceReport) -> Value {
    let name = &link.name;
    let rss = link::rss(name).ok().flatten().map(|rss| {
        let mut queues = rss.table.clone();
        queues.sort_unstable();
        queues.dedup();
        json!({ "entries": rss.table.len(), "queues": queues, "key_bytes": rss.key.len() })
    });
    let rings = link::ring_sizes(name).ok().flatten();
    let stamps = link::timestamping(name).ok().flatten();
    let driver = link::driver(name).ok().flatten();
    let rules = link::ntuple::rules(name);
    // The check of the interface itself has the whole MAC address.
    let checks: Vec<Check> = found.checks.iter().filter(|check| check.what != "interface").cloned().collect();
    json!({
        "name": name,
        "kind": link.kind,
        "driver": driver.as_ref().map(|driver| &driver.name),
        "driver_version": driver.as_ref().map(|driver| &driver.version),
        "firmware": driver.as_ref().map(|driver| &driver.firmware),
        "bus": driver.as_ref().map(|driver| &driver.bus),
        "numa_node": link::numa_node(name).ok().flatten(),
        "mac": link.mac.map(|[a, b, c, ..]| format!("{a:02x}:{b:02x}:{c:02x}:...")),
        "mtu": link.mtu,
        "up": link.up,
        "carrier": link.carrier,
        "queues": found.queues,
        "rings": rings.map(|sizes| json!({
            "rx": sizes.rx, "tx": sizes.tx, "max_rx": sizes.max_rx, "max_tx": sizes.max_tx,
        })),
        "offloads": link::active_offloads(name).unwrap_or_default().join(" "),
        "xdp_features": found.features,
        "tried": found.tried,
        "rss": rss,
        "steering_rules": match rules {
            Ok(rules) => json!(rules.len()),
            Err(e) => json!(e.to_string()),
        },
        "time_stamps": stamps.map(|stamps| json!({
            "hardware_tx": stamps.hardware_tx, "hardware_rx": stamps.hardware_rx, "clock": stamps.clock,
        })),
        "checks": lines(&checks),
    })
}

fn setting(name: &str) -> Value {
    match fs::read_to_string(format!("/proc/sys/{name}")) {
        Ok(text) => text.trim().into(),
        Err(_) => Value::Null,
    }
}

/// Reads a small file as text; empty if it cannot be read.
fn read(path: &str) -> String {
    // Path: below /proc or /sys.
    fs::read_to_string(path).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_report_is_printed_line_by_line() {
        let report = json!({ "a": { "b": [1, "two\u{1b}"], "c": null }, "d": true });
        assert_eq!(text(&report), "a:\n  b:\n    1\n    two\\u001b\n  c: -\nd: true\n");
    }

    #[test]
    fn a_daemons_ports_are_listed() {
        let found = daemon(
            r#"{"daemon": {"pid": 0, "uid": 0, "version": "1.2"}, "ports": [{"name": "va", "kind": "nic",
            "manner": "native, copy"}], "sessions": [{"port": "va", "uid": 3, "pid": 4}]}"#,
        );
        assert_eq!(found["ports"], json!(["va, nic, native, copy, sessions: 1"]));
        assert_eq!((&found["version"], &found["root"]), (&json!("1.2"), &json!(true)));
        assert_eq!(daemon("{")["ports"], json!([]));
    }
}
