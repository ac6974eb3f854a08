// SPDX-License-Identifier: BSD-2-Clause
//! `unetmap ls`: shows the daemon's regions, switches, rings and sessions as tables.

use std::collections::BTreeMap;
use std::fmt::Display;
use std::time::Duration;

use rustix::process::geteuid;
use serde_json::Value;
pub(crate) use tool_common::reply::{members, parse_reply};
use tool_common::table::align;
use unetmap::abi::printable::word;

use crate::events::utc;
use crate::top::{Rate, rates, rings_of};

/// Text in a snapshot of a daemon that has switches.
const SWITCH_PORT: &str = "\"kind\":\"vale\"";
/// Time between the two snapshots from which the rates of switches are computed.
const RATE_INTERVAL: Duration = Duration::from_millis(200);

/// The note that no daemon runs, where that is no error.
pub(crate) const NO_DAEMON: &str = "No daemon is running; the first program that opens a port starts one.";

/// Prints the daemon's regions, ports and sessions, or its `users`. It is no error if no daemon runs.
pub(crate) fn run(users: bool, json: bool, wide: bool) -> Result<u8, String> {
    let mut snapshots = unetmap::snapshots().map_err(|e| e.to_string())?;
    let text = if json {
        // One object per daemon; `null` if none runs.
        match snapshots.is_empty() {
            true => "null\n".into(),
            false => snapshots.iter().map(|snapshot| format!("{snapshot}\n")).collect(),
        }
    } else if snapshots.is_empty() {
        format!("{NO_DAEMON}\n")
    } else if users {
        let texts = snapshots.iter().map(|snapshot| users_table(snapshot));
        texts.collect::<Result<Vec<String>, String>>()?.join("\n")
    } else {
        let earlier = if snapshots.iter().any(|snapshot| snapshot.contains(SWITCH_PORT)) {
            std::thread::sleep(RATE_INTERVAL);
            std::mem::replace(&mut snapshots, unetmap::snapshots().map_err(|e| e.to_string())?)
        } else {
            Vec::new()
        };
        let texts = snapshots.iter().map(|snapshot| tables(snapshot, &earlier, wide));
        texts.collect::<Result<Vec<String>, String>>()?.join("\n")
    };
    crate::print("ls", &text)
}

/// Formats what users have, as `used/budget`.
fn users_table(json: &str) -> Result<String, String> {
    let all = parse_reply("ls", json)?;
    let mut rows = header([
        "user",
        "connections",
        "descriptors",
        "in flight",
        "rings",
        "slots",
        "memory",
        "threads",
        "requests/s",
        "refused",
    ]);
    for user in members(&all["users"]) {
        let share = |key: &str, format: fn(&Value) -> String| match &user[key]["limit"] {
            Value::Null => format(&user[key]["used"]),
            limit => format!("{}/{}", format(&user[key]["used"]), format(limit)),
        };
        rows.push(vec![
            match (&user["uid"], &user["counts_for"]) {
                (Value::Null, _) => "all but root".into(),
                (uid, Value::Null) => cell(uid),
                (uid, owner) => format!("{uid} of {owner}"),
            },
            share("connections", cell),
            share("descriptors", cell),
            share("in_flight", cell),
            share("rings", cell),
            share("slots", cell),
            share("memory", size),
            share("threads", cell),
            cell(&user["requests"]),
            cell(&user["refused"]),
        ]);
    }
    let mut text = format!("Users of the daemon with pid {}\n{}", cell(&all["daemon"]["pid"]), align(&rows, 1));
    let mut rows = header(["all but root", "at most", "limited by"]);
    for total in members(&all["totals"]) {
        let amount = if total["resource"] == "memory" { size } else { cell };
        rows.push(vec![cell(&total["resource"]), amount(&total["total"]), cell(&total["limited_by"])]);
    }
    if rows.len() > 1 {
        text += &format!("\n{}", align(&rows, 3));
    }
    Ok(text)
}

/// Formats a snapshot. `earlier` are the snapshots of all daemons [`RATE_INTERVAL`] before, or empty.
fn tables(json: &str, earlier: &[String], wide: bool) -> Result<String, String> {
    let all = parse_reply("ls", json)?;
    let daemon = &all["daemon"];
    let mut text = format!(
        "unetmapd {}: pid {}, uid {}, up {}, {} clients\n",
        cell(&daemon["version"]),
        cell(&daemon["pid"]),
        cell(&daemon["uid"]),
        uptime(&daemon["uptime_seconds"]),
        cell(&daemon["connections"]),
    );
    if let Some((_, protection)) = protection(daemon) {
        text += &format!("crash protection: {protection}\n");
    }
    for (title, rows, left) in [
        ("Regions", regions(&all["regions"], wide), 2),
        ("Switches", switches(&all, earlier), 1),
        ("Rings", rings(&all["ports"], wide), if wide { 3 } else { 2 }),
        ("Sessions", sessions(&all["sessions"], wide), if wide { 3 } else { 2 }),
    ] {
        if rows.len() > 1 {
            text += &format!("\n{title}\n{}", align(&rows, left));
        }
        if title == "Rings" {
            text += &remarks(&all["ports"], wide);
        }
    }
    text += &returning(&all["persistent"]);
    Ok(text)
}

/// Persistent ports of an earlier daemon that this one does not serve yet.
fn returning(persistent: &Value) -> String {
    let mut by_state = BTreeMap::<String, Vec<String>>::new();
    for port in members(persistent).filter(|port| port["state"].is_string()) {
        by_state.entry(cell(&port["state"])).or_default().push(cell(&port["name"]));
    }
    let line = |(state, mut names): (String, Vec<String>)| {
        names.sort();
        format!("\n{state}: {}\n", names.join(", "))
    };
    by_state.into_iter().map(line).collect()
}

/// Whether a crash of the daemon would end no port, and a text that says so, or since when and why it would; `None`:
/// the daemon is of a version that does not say it.
pub(crate) fn protection(daemon: &Value) -> Option<(bool, String)> {
    let protection = daemon["crash_protection"].as_object()?;
    if protection["on"] == true {
        return Some((true, format!("on, {} sessions kept", cell(&daemon["kept_sessions"]))));
    }
    let since = protection["since_ms"].as_u64().map_or_else(String::new, |ms| format!(" since {}", utc(ms)));
    Some((false, format!("off{since}: {}", cell(&protection["why"]))))
}

pub(crate) fn header<const N: usize>(titles: [&str; N]) -> Vec<Vec<String>> {
    vec![titles.map(String::from).to_vec()]
}

fn regions(regions: &Value, wide: bool) -> Vec<Vec<String>> {
    let mut rows = if wide {
        header(["mem_id", "name", "size", "resident", "buffers", "free", "ring", "extra", "missing", "sessions"])
    } else {
        header(["mem_id", "name", "size", "resident", "buffers", "free", "missing", "sessions"])
    };
    for r in members(regions) {
        let b = &r["buffers"];
        let mut row = vec![cell(&r["mem_id"]), cell(&r["name"]), size(&r["bytes"]), size(&r["resident_bytes"])];
        row.extend(["total", "free"].map(|key| cell(&b[key])));
        if wide {
            row.extend(["in_rings", "extra"].map(|key| cell(&b[key])));
        }
        row.extend([cell(&b["missing"]), cell(&r["sessions"])]);
        rows.push(row);
    }
    rows
}

fn switches(all: &Value, earlier: &[String]) -> Vec<Vec<String>> {
    let mut rows = header(["switch", "owner", "ports", "addresses", "sent/s", "received/s", "lost/s", "lost"]);
    let parsed = earlier.iter().filter_map(|earlier| serde_json::from_str(earlier).ok());
    let before = parsed.flat_map(|earlier: Value| rings_of(&earlier)).collect();
    let rates = rates(&before, &rings_of(all), RATE_INTERVAL);
    for switch in members(&all["switches"]) {
        let prefix = format!("{}:", cell(&switch["switch"]));
        // Several users may have a switch of this name: select the ports by their owner.
        let names = members(&all["ports"]).filter(|port| port["kind"] == "vale" && port["uid"] == switch["uid"]);
        let names: Vec<String> =
            names.map(|port| cell(&port["name"])).filter(|name| name.starts_with(&prefix)).collect();
        let sum = |dir: &str, of: fn(&Rate) -> f64| -> f64 {
            rates
                .iter()
                .filter(|r| names.contains(&r.key.1) && (dir.is_empty() || r.key.2 == dir))
                .map(of)
                .fold(0.0, |a, b| a + b)
        };
        let by_reason = [&switch["lost"], &switch["not_received"]].into_iter().filter_map(Value::as_object);
        let lost: u64 = by_reason.flat_map(|reasons| reasons.values()).filter_map(Value::as_u64).sum();
        rows.push(vec![
            cell(&switch["switch"]),
            cell(&switch["uid"]),
            cell(&switch["ports"]),
            cell(&switch["addresses"]),
            format!("{:.0}", sum("tx", |rate| rate.packets)),
            format!("{:.0}", sum("rx", |rate| rate.packets)),
            format!("{:.0}", sum("", |rate| rate.lost)),
            lost.to_string(),
        ]);
    }
    rows
}

/// The ring's direction and number, which is `^` for the first host ring.
pub(crate) fn ring_name(port: &Value, ring: &Value) -> String {
    let dir = cell(&ring["dir"]);
    if ring["host"] != true {
        return format!("{dir} {}", cell(&ring["id"]));
    }
    let first = members(&port["rings"]).find(|other| other["host"] == true && other["dir"] == ring["dir"]);
    let number = |ring: &Value| ring["id"].as_u64().unwrap_or(0);
    match number(ring) - first.map_or(0, number) {
        0 => format!("{dir} ^"),
        n => format!("{dir} ^{n}"),
    }
}

fn rings(ports: &Value, wide: bool) -> Vec<Vec<String>> {
    let mut rows = if wide {
        header([
            "port",
            "open",
            "ring",
            "mem_id",
            "slots",
            "sessions",
            "queued",
            "crossed",
            "bytes",
            "batch",
            "bad slots",
            "bad pointers",
            "dropped",
            "kind",
        ])
    } else {
        header(["port", "ring", "queued", "crossed", "batch", "bad", "dropped", "kind"])
    };
    for port in members(ports) {
        for ring in members(&port["rings"]) {
            let [name, mem_id] = ["name", "mem_id"].map(|key| cell(&port[key]));
            let kind = kind(port);
            let [slots, sessions, queued, crossed, bytes, dropped] =
                ["slots", "sessions", "queued", "crossed", "bytes", "dropped"].map(|key| cell(&ring[key]));
            let batch = batch_size(&ring["crossed"], &ring["batches"]);
            let (slots_bad, pointers_bad) = (cell(&ring["bad_slots"]), cell(&ring["bad_pointers"]));
            let ring_name = ring_name(port, ring);
            if wide {
                let open = if port["open"] == true { "yes" } else { "no" }.into();
                let kind = match &port["manner"] {
                    Value::String(data_path) => format!("{kind} ({data_path})"),
                    _ => kind,
                };
                rows.push(vec![
                    name,
                    open,
                    ring_name,
                    mem_id,
                    slots,
                    sessions,
                    queued,
                    crossed,
                    bytes,
                    batch,
                    slots_bad,
                    pointers_bad,
                    dropped,
                    kind,
                ]);
            } else {
                let bad = ring["bad_slots"].as_u64().unwrap_or(0) + ring["bad_pointers"].as_u64().unwrap_or(0);
                rows.push(vec![
                    name,
                    ring_name,
                    queued,
                    crossed,
                    batch,
                    bad.to_string(),
                    dropped,
                    if port["open"] == true { kind } else { format!("{kind}, not open") },
                ]);
            }
        }
    }
    rows
}

/// The kind of a port, and of a pipe whose it is, if it is another user's: of one name several can have a pipe.
fn kind(port: &Value) -> String {
    let kind = cell(&port["kind"]);
    match port["uid"].as_u64() {
        Some(uid) if kind == "pipe" && uid != u64::from(geteuid().as_raw()) => format!("{kind} of user {uid}"),
        _ => kind,
    }
}

/// Lines about ports: their labels; of interfaces how packets move, if the table does not say it, why they are copied,
/// and queues without a ring.
fn remarks(ports: &Value, wide: bool) -> String {
    let of_port = |port: &Value| {
        let manner = (!wide && port["manner"].is_string()).then(|| cell(&port["manner"]));
        let copied = port["copied"].is_string().then(|| format!("packets are copied: {}", cell(&port["copied"])));
        let queues = port["other_queues"].is_string().then(|| cell(&port["other_queues"]));
        let name = cell(&port["name"]);
        let label = port["label"].is_string().then(|| cell(&port["label"]));
        label
            .into_iter()
            .chain(manner)
            .chain(copied)
            .chain(queues)
            .map(move |remark| format!("{name}: {remark}\n"))
            .collect::<String>()
    };
    members(ports).map(of_port).collect()
}

fn sessions(sessions: &Value, wide: bool) -> Vec<Vec<String>> {
    let mut rows = if wide {
        header(["port", "program", "exclusive", "session", "pid", "uid", "tx rings", "rx rings"])
    } else {
        header(["port", "program", "pid", "uid", "tx rings", "rx rings"])
    };
    for s in members(sessions) {
        let mut row = vec![cell(&s["port"]), cell(&s["program"])];
        if wide {
            row.extend([if s["exclusive"] == true { "yes" } else { "no" }.into(), cell(&s["id"])]);
        }
        row.extend(["pid", "uid", "tx_rings", "rx_rings"].map(|key| cell(&s[key])));
        rows.push(row);
    }
    rows
}

/// Formats a value; `-` if it is absent, as in a reply from a daemon of another version.
pub(crate) fn cell(value: &Value) -> String {
    match value {
        Value::Null => "-".into(),
        // Clients choose the names.
        Value::String(text) => word(text).into_owned(),
        other => other.to_string(),
    }
}

/// Formats a number of seconds in the largest unit of which there are at least two.
fn uptime(value: &Value) -> String {
    match value.as_u64() {
        None => cell(value),
        Some(seconds @ ..120) => format!("{seconds} s"),
        Some(seconds @ ..7200) => format!("{} min", seconds / 60),
        Some(seconds @ ..172_800) => format!("{} h", seconds / 3600),
        Some(seconds) => format!("{} d", seconds / 86400),
    }
}

/// Formats a number of bytes in the largest binary unit in which it is at least 1.
fn size(value: &Value) -> String {
    let Some(bytes) = value.as_u64() else {
        return cell(value);
    };
    let with = |unit: u64, name: &dyn Display| format!("{:.1} {name}", bytes as f64 / unit as f64);
    match bytes {
        b if b >= 1 << 30 => with(1 << 30, &"GiB"),
        b if b >= 1 << 20 => with(1 << 20, &"MiB"),
        b if b >= 1 << 10 => with(1 << 10, &"KiB"),
        b => format!("{b} B"),
    }
}

/// Formats the mean number of packets per batch.
fn batch_size(packets: &Value, batches: &Value) -> String {
    match (packets.as_f64(), batches.as_f64()) {
        (Some(packets), Some(batches)) if batches > 0.0 => format!("{:.1}", packets / batches),
        _ => "-".into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FULL: &str = r#"{
        "daemon": {"pid": 7, "uid": 1000, "version": "0.1.0", "uptime_seconds": 12, "connections": 3},
        "regions": [{"mem_id": 16384, "name": "p", "bytes": 10485760, "resident_bytes": 4096, "sessions": 1,
            "rings_in_use": 4, "buffers": {"total": 4094, "free": 2046, "in_rings": 2048, "extra": 0, "missing": 1}}],
        "switches": [{"switch": "vale0", "uid": 1000, "ports": 1, "addresses": 9, "age": 0,
            "lost": {"short": 3, "rate": 0}, "not_received": {"rate": 1}}],
        "ports": [{"name": "p{1", "kind": "pipe", "mem_id": 16384, "open": true, "rings": [
            {"dir": "tx", "id": 0, "slots": 1024, "sessions": 1, "queued": 5, "crossed": 1500, "batches": 3,
             "bad_slots": 0, "bad_pointers": 0, "dropped": 0}]},
           {"name": "vale0:a", "kind": "vale", "uid": 1000, "mem_id": 16385, "open": true, "rings": [
            {"dir": "tx", "id": 1, "host": true, "slots": 512, "sessions": 1, "queued": 0, "crossed": 300, "batches": 3,
             "bytes": 18000, "bad_slots": 1, "bad_pointers": 2, "dropped": 4}]}],
        "sessions": [{"id": 1, "port": "p{1\u001b", "program": "x\u202e", "pid": 4294967295, "uid": 1000, "tx_rings": 1, "rx_rings": 1,
            "exclusive": false}]
    }"#;

    #[test]
    fn all_tables_are_formatted() {
        let before = FULL.replace("\"crossed\": 300", "\"crossed\": 100");
        assert_eq!(
            tables(FULL, std::slice::from_ref(&before), false).unwrap(),
            "\
unetmapd 0.1.0: pid 7, uid 1000, up 12 s, 3 clients

Regions
mem_id  name      size  resident  buffers  free  missing  sessions
16384   p     10.0 MiB   4.0 KiB     4094  2046        1         1

Switches
switch  owner  ports  addresses  sent/s  received/s  lost/s  lost
vale0    1000      1          9    1000           0       0     4

Rings
port     ring  queued  crossed  batch  bad  dropped  kind
p{1      tx 0       5     1500  500.0    0        0  pipe
vale0:a  tx ^       0      300  100.0    3        4  vale

Sessions
port       program         pid   uid  tx rings  rx rings
p{1\\u001b  x\\u202e  4294967295  1000         1         1
"
        );
        assert_eq!(
            tables(FULL, &[before], true).unwrap().split_once("\nRings\n").unwrap().1,
            "\
port     open  ring  mem_id  slots  sessions  queued  crossed  bytes  batch  bad slots  bad pointers  dropped  kind
p{1      yes   tx 0   16384   1024         1       5     1500      -  500.0          0             0        0  pipe
vale0:a  yes   tx ^   16385    512         1       0      300  18000  100.0          1             2        4  vale

Sessions
port       program  exclusive  session         pid   uid  tx rings  rx rings
p{1\\u001b  x\\u202e  no               1  4294967295  1000         1         1
"
        );
    }

    #[test]
    fn crash_protection_is_said_with_its_reason() {
        let of = |json: &str| {
            let daemon = format!(r#"{{"daemon": {{"kept_sessions": 4, "crash_protection": {json}}}}}"#);
            tables(&daemon, &[], false).unwrap().lines().nth(1).map(str::to_owned)
        };
        assert_eq!(of("null"), None);
        assert_eq!(
            of(r#"{"asked": true, "on": true, "since_ms": null, "why": null}"#).unwrap(),
            "crash protection: on, 4 sessions kept"
        );
        assert_eq!(
            of(r#"{"asked": true, "on": false, "since_ms": 0, "why": "no room\u001b"}"#).unwrap(),
            "crash protection: off since 1970-01-01T00:00:00.000Z: no room\\u001b"
        );
        assert_eq!(
            of(r#"{"asked": false, "on": false, "since_ms": null, "why": "not asked for (unetmapd --keep-ports)"}"#)
                .unwrap(),
            "crash protection: off: not asked for (unetmapd --keep-ports)"
        );
    }

    #[test]
    fn persistent_ports_that_are_not_served_yet_are_named() {
        let ports = r#"{"daemon": {}, "persistent": [{"name": "b", "state": "being served again"}, {"name": "c"},
            {"name": "a", "state": "being served again"}]}"#;
        let text = tables(ports, &[], false).unwrap();
        assert!(text.ends_with("\n\nbeing served again: a, b\n"), "{text}");
    }

    #[test]
    fn names_and_numbers_of_usual_length_fit_80_columns() {
        let ring = r#"{"dir": "tx", "id": 0, "slots": 1024, "queued": 1023, "crossed": 12345678901, "batches": 40000000,
            "bad_slots": 0, "bad_pointers": 0, "dropped": 12345678}"#;
        let full = format!(
            r#"{{"daemon": {{"pid": 4194303, "uid": 65534, "version": "0.1.0 (2f6c35d9a1b0)", "uptime_seconds": 31536000,
            "connections": 8192}}, "ports": [{{"name": "vale0:interface15", "kind": "mediated", "open": true,
            "manner": "native, zero copy", "rings": [{ring}]}}], "regions": [{{"mem_id": 16384, "name": "interface15",
            "bytes": 536870912, "resident_bytes": 536870912, "sessions": 64, "buffers": {{"total": 100000, "free": 100000,
            "missing": 0}}}}], "sessions": [{{"port": "vale0:interface15", "pid": 1, "uid": 65534, "tx_rings": 16,
            "rx_rings": 16}}]}}"#
        );
        let text = tables(&full, &[], false).unwrap();
        assert!(text.lines().all(|line| line.chars().count() <= 80), "{text}");
    }

    #[test]
    fn users_and_their_budgets_are_formatted() {
        let json = r#"{"daemon": {"pid": 7}, "users": [
            {"uid": 0, "connections": {"used": 2, "limit": null}, "memory": {"used": 1536, "limit": null}, "refused": 0},
            {"uid": 1000, "connections": {"used": 3, "limit": 512}, "in_flight": {"used": 67, "limit": 512}, "memory": {"used": 0, "limit": 1048576},
             "requests": 2000, "refused": 1},
            {"uid": 100000, "counts_for": 1000, "connections": {"used": 1, "limit": 512}, "requests": 2000, "refused": 0},
            {"connections": {"used": 4, "limit": 8192}, "refused": 1}],
            "totals": [{"resource": "descriptors", "total": 56, "limited_by": "the limit of 128 open files"},
            {"resource": "memory", "total": 25165824, "limited_by": "the cgroup's memory.max of 64 MiB"}]}"#;
        assert_eq!(
            users_table(json).unwrap(),
            "\
Users of the daemon with pid 7
user            connections  descriptors  in flight  rings  slots       memory  threads  requests/s  refused
0                         2            -          -      -      -      1.5 KiB        -           -        0
1000                  3/512            -     67/512      -      -  0 B/1.0 MiB        -        2000        1
100000 of 1000        1/512            -          -      -      -            -        -        2000        0
all but root         4/8192            -          -      -      -            -        -           -        1

all but root  at most   limited by
descriptors   56        the limit of 128 open files
memory        24.0 MiB  the cgroup's memory.max of 64 MiB
"
        );
    }

    #[test]
    fn empty_tables_are_omitted() {
        let text = tables(r#"{"daemon": {"pid": 7}, "regions": [], "ports": [], "sessions": []}"#, &[], false).unwrap();
        assert_eq!(text, "unetmapd -: pid 7, uid -, up -, - clients\n");
        assert!(tables("{", &[], false).unwrap_err().contains("not valid JSON"));
        assert!(tables("[]", &[], false).unwrap().starts_with("unetmapd -"));
    }

    #[test]
    fn sizes_have_units() {
        for (bytes, text) in [(0, "0 B"), (1023, "1023 B"), (1024, "1.0 KiB"), (1536 << 20, "1.5 GiB")] {
            assert_eq!(size(&bytes.into()), text);
        }
    }
}
