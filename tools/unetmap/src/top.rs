// SPDX-License-Identifier: BSD-2-Clause
//! `unetmap top`: shows the packet rates of all rings, and the interfaces with the setting `failure`, refreshed
//! periodically.

use std::collections::BTreeMap;
use std::io::{ErrorKind, IsTerminal as _, stdin, stdout};
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use tool_common::table::align;

mod interfaces;
mod screen;

use crate::ls::{NO_DAEMON, cell, header, members, parse_reply, ring_name};

/// Identifies a ring: the daemon's pid, the port's name, direction and ring number.
pub(crate) type RingKey = (u64, String, String, u64);

/// The daemon's counters of a ring.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct RingCounters {
    kind: String,
    /// The daemon's number of the interface, which keeps it when it is renamed.
    serial: Option<u64>,
    /// The port's name for people.
    pub(crate) label: Option<String>,
    /// Direction and number, as `ls` shows them.
    name: String,
    queued: u64,
    crossed: u64,
    batches: u64,
    /// Bytes, where they are counted.
    bytes: Option<u64>,
    /// Packets dropped because a ring was full, or sent without a destination.
    pub(crate) lost: u64,
}

/// The rates of a ring.
#[derive(Debug, PartialEq)]
pub(crate) struct Rate {
    pub(crate) key: RingKey,
    pub(crate) ring: RingCounters,
    /// Packets per second.
    pub(crate) packets: f64,
    /// Bits per second, where bytes are counted.
    bits: Option<f64>,
    /// Packets per batch.
    batch: f64,
    /// Lost packets per second.
    pub(crate) lost: f64,
}

/// Shows rates every `interval`, `count` times (0: unlimited): on a terminal as a screen, else as a table each time.
pub(crate) fn run(interval: Duration, count: u64, json: bool) -> Result<u8, String> {
    if stdin().is_terminal() && stdout().is_terminal() && !json {
        return screen::run(interval, count).map(|()| 0);
    }
    let counters = || Ok::<_, String>((Instant::now(), read_counters()?));
    let mut last = counters()?;
    let mut refreshes = 0;
    while count == 0 || refreshes < count {
        std::thread::sleep(interval);
        let now = counters()?;
        let text = match (&last.1, &now.1) {
            (_, None) if json => String::new(),
            (_, None) => format!("{NO_DAEMON}\n"),
            (before, Some(after)) => {
                let none = Counters::default();
                let rates = rates(&before.as_ref().unwrap_or(&none).rings, &after.rings, now.0 - last.0);
                let interfaces = &after.interfaces;
                match json {
                    true => lines(&rates) + &interfaces::lines(interfaces),
                    false => format!("{}\n{}", table(&rates), interfaces::text(interfaces)),
                }
            }
        };
        match tool_common::write(&text) {
            // A reader such as `head` closes the pipe early.
            Err(e) if e.kind() == ErrorKind::BrokenPipe => return Ok(0),
            written => written.map_err(|e| format!("top: standard output: {e}"))?,
        }
        (last, refreshes) = (now, refreshes + 1);
    }
    Ok(0)
}

/// The counters of all daemons.
#[derive(Default)]
struct Counters {
    rings: BTreeMap<RingKey, RingCounters>,
    /// The interfaces with the setting `failure`, as snapshots have them.
    interfaces: Vec<Value>,
}

/// Returns the counters of all daemons; `None` if none runs.
fn read_counters() -> Result<Option<Counters>, String> {
    let snapshots = unetmap::snapshots().map_err(|e| e.to_string())?;
    if snapshots.is_empty() {
        return Ok(None);
    }
    let mut counters = Counters::default();
    for snapshot in snapshots {
        let all = parse_reply("top", &snapshot)?;
        counters.rings.extend(rings_of(&all));
        counters.interfaces.extend(members(&all["interfaces"]).cloned());
    }
    Ok(Some(counters))
}

/// Returns the counters of all rings in a daemon's snapshot.
pub(crate) fn rings_of(all: &Value) -> BTreeMap<RingKey, RingCounters> {
    let number = |value: &Value| value.as_u64().unwrap_or(0);
    let pid = number(&all["daemon"]["pid"]);
    let of_port = |port: &Value| {
        let rings: Vec<(RingKey, RingCounters)> = members(&port["rings"])
            .map(|ring| {
                let dir = cell(&ring["dir"]);
                let lost = number(&ring["dropped"]);
                let [queued, crossed, batches] = ["queued", "crossed", "batches"].map(|name| number(&ring[name]));
                let key = (pid, cell(&port["name"]), dir, number(&ring["id"]));
                (
                    key,
                    RingCounters {
                        kind: cell(&port["kind"]),
                        serial: port["serial"].as_u64(),
                        label: port["label"].is_string().then(|| cell(&port["label"])),
                        name: ring_name(port, ring),
                        queued,
                        crossed,
                        batches,
                        bytes: ring["bytes"].as_u64(),
                        lost,
                    },
                )
            })
            .collect();
        rings
    };
    members(&all["ports"]).flat_map(of_port).collect()
}

/// Returns the key that a ring had in an earlier snapshot: another one if its interface was renamed, or if its daemon
/// has taken over from one that has ended, whose counters it goes on with.
pub(crate) fn key_before(
    key: &RingKey,
    before: &BTreeMap<RingKey, RingCounters>,
    after: &BTreeMap<RingKey, RingCounters>,
) -> Option<RingKey> {
    let serial = after.get(key).and_then(|ring| ring.serial);
    if before.get(key).is_some_and(|ring| ring.serial == serial) {
        return Some(key.clone());
    }
    let runs = |pid: u64, at: &BTreeMap<RingKey, RingCounters>| at.keys().any(|key| key.0 == pid);
    let is_new = !runs(key.0, before);
    let is_same = |(old, ring): &(&RingKey, &RingCounters)| {
        let same_daemon = if is_new { !runs(old.0, after) } else { old.0 == key.0 };
        let same_port = ring.serial == serial && (serial.is_some() || old.1 == key.1);
        same_daemon && same_port && (&old.2, old.3) == (&key.2, key.3)
    };
    before.iter().find(is_same).map(|(old, _)| old.clone())
}

/// Computes the rates between two snapshots. The counters of a ring that was created or reset in between start at 0.
pub(crate) fn rates(
    before: &BTreeMap<RingKey, RingCounters>,
    after: &BTreeMap<RingKey, RingCounters>,
    time: Duration,
) -> Vec<Rate> {
    let per_second = |n: u64| n as f64 / time.as_secs_f64().max(1e-9);
    let rate = |(key, ring): (&RingKey, &RingCounters)| {
        let since = key_before(key, before, after).and_then(|key| before.get(&key));
        let since = since.filter(|before| before.crossed <= ring.crossed && before.lost <= ring.lost);
        let (crossed, batches, lost) = since.map_or((0, 0, 0), |b| (b.crossed, b.batches, b.lost));
        let bytes = since.and_then(|before| before.bytes).unwrap_or(0);
        let (packets, batches) = (ring.crossed - crossed, ring.batches.saturating_sub(batches));
        Rate {
            key: key.clone(),
            ring: ring.clone(),
            packets: per_second(packets),
            bits: ring.bytes.map(|now| 8.0 * per_second(now.saturating_sub(bytes))),
            batch: if batches == 0 { 0.0 } else { packets as f64 / batches as f64 },
            lost: per_second(ring.lost - lost),
        }
    };
    after.iter().map(rate).collect()
}

/// Formats the rates as a table, the fastest ring first.
fn table(rates: &[Rate]) -> String {
    let mut sorted: Vec<&Rate> = rates.iter().collect();
    sorted.sort_by(|a, b| b.packets.total_cmp(&a.packets));
    if rates.is_empty() { "No port is open.".into() } else { align(&rows(&sorted), 2) }
}

/// A row of titles, and one for each ring.
fn rows(rates: &[&Rate]) -> Vec<Vec<String>> {
    let mut rows = header(["port", "ring", "packets/s", "Mbit/s", "batch", "lost/s", "queued", "kind"]);
    for Rate { key: (_, port, ..), ring, packets, bits, batch, lost } in rates {
        rows.push(vec![
            ring.label.as_ref().map_or_else(|| port.clone(), |label| format!("{port} ({label})")),
            ring.name.clone(),
            format!("{packets:.0}"),
            bits.map_or_else(|| "-".into(), |bits| format!("{:.1}", bits / 1e6)),
            format!("{batch:.1}"),
            format!("{lost:.0}"),
            ring.queued.to_string(),
            ring.kind.clone(),
        ]);
    }
    rows
}

/// Formats the rates as JSON, one object per line and ring.
fn lines(rates: &[Rate]) -> String {
    let line = |Rate { key: (pid, port, dir, id), ring, packets, bits, batch, lost }: &Rate| {
        let object = json!({
            "daemon": pid, "port": port, "label": ring.label, "dir": dir, "id": id, "kind": ring.kind, "packets_per_second": packets,
            "bits_per_second": bits, "bytes": ring.bytes, "batch": batch, "lost_per_second": lost, "queued": ring.queued, "crossed": ring.crossed, "lost": ring.lost,
        });
        format!("{object}\n")
    };
    rates.iter().map(line).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn snapshot(crossed: u64, dropped: u64) -> BTreeMap<RingKey, RingCounters> {
        let ring = |dir, crossed, dropped| {
            json!({"dir": dir, "id": 0, "queued": 5, "crossed": crossed, "batches": crossed / 100, "dropped": dropped,
                "bytes": (dir == "tx").then_some(60 * crossed)})
        };
        rings_of(&json!({
            "daemon": {"pid": 7},
            "ports": [
                {"name": "vale0:a", "kind": "vale", "lost": {"short": 3, "nobody": 4},
                 "rings": [ring("tx", crossed, 7), ring("rx", 0, dropped)]},
                {"name": "p{1", "kind": "pipe", "rings": [ring("tx", 9 * crossed, 0)]},
            ],
        }))
    }

    #[test]
    fn rates_are_differences_divided_by_the_time() {
        let (before, after) = (snapshot(1000, 10), snapshot(3000, 50));
        let rates = rates(&before, &after, Duration::from_secs(2));
        let of = |port: &str, dir: &str| rates.iter().find(|r| r.key.1 == port && r.key.2 == dir).unwrap();
        assert_eq!((of("vale0:a", "tx").packets, of("vale0:a", "tx").batch), (1000.0, 100.0));
        assert_eq!((of("vale0:a", "tx").ring.lost, of("vale0:a", "tx").lost), (7, 0.0));
        assert_eq!((of("vale0:a", "rx").packets, of("vale0:a", "rx").lost), (0.0, 20.0));
        assert_eq!((of("vale0:a", "tx").bits, of("vale0:a", "rx").bits), (Some(480_000.0), None));
        let table = table(&rates);
        assert!(table.lines().any(|line| line.split_whitespace().nth(4) == Some("0.5")), "{table}");
        let ports: Vec<&str> = table.lines().skip(1).filter_map(|line| line.split_whitespace().next()).collect();
        assert_eq!(ports, ["p{1", "vale0:a", "vale0:a"], "{table}");
        assert_eq!(lines(&rates).lines().count(), 3);
    }

    #[test]
    fn an_interface_that_is_renamed_goes_on_with_the_counters() {
        let of = |name: &str, serial: u64, dropped: u64| {
            rings_of(&json!({"daemon": {"pid": 7}, "ports": [{"name": name, "kind": "nic", "serial": serial, "rings": [
                {"dir": "rx", "id": 0, "queued": 0, "crossed": dropped, "batches": 1, "dropped": dropped}]}]}))
        };
        let lost = |after| rates(&of("eth0", 3, 1000), &after, Duration::from_secs(1)).remove(0).lost;
        assert_eq!((lost(of("wan", 3, 1005)), lost(of("eth0", 3, 1007))), (5.0, 7.0));
        // Another interface has its own, also under the name of the first.
        assert_eq!((lost(of("wan", 4, 2000)), lost(of("eth0", 4, 2000))), (2000.0, 2000.0));
    }

    #[test]
    fn a_daemon_that_takes_over_goes_on_with_the_counters() {
        let of = |pid: u64, all: BTreeMap<RingKey, RingCounters>| -> BTreeMap<_, _> {
            all.into_iter().map(|((_, port, dir, id), ring)| ((pid, port, dir, id), ring)).collect()
        };
        let after = of(8, snapshot(3000, 50));
        let changed = rates(&snapshot(1000, 10), &after, Duration::from_secs(2));
        let packets: Vec<f64> = changed.iter().map(|rate| rate.packets).collect();
        assert_eq!(
            packets,
            rates(&of(8, snapshot(1000, 10)), &after, Duration::from_secs(2))
                .iter()
                .map(|rate| rate.packets)
                .collect::<Vec<_>>()
        );
        // Another daemon beside the first, with ports of the same names, starts at 0.
        let both: BTreeMap<_, _> = snapshot(1000, 10).into_iter().chain(after).collect();
        let beside = rates(&snapshot(1000, 10), &both, Duration::from_secs(1));
        assert!(beside.iter().any(|rate| rate.key.0 == 8 && rate.packets == 3000.0));
        // So does one that was started anew, though it has the same ports.
        let anew = rates(&snapshot(1000, 0), &of(8, snapshot(10, 0)), Duration::from_secs(1));
        assert!(anew.iter().any(|rate| rate.packets == 10.0));
    }

    #[test]
    fn the_counters_of_a_new_ring_start_at_0() {
        let rates = rates(&snapshot(1000, 0), &snapshot(10, 0), Duration::from_secs(1));
        assert!(rates.iter().any(|rate| rate.packets == 10.0));
        assert_eq!(table(&[]), "No port is open.");
    }
}
