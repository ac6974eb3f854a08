// SPDX-License-Identifier: BSD-2-Clause
//! `unetmap events`: what has happened to ports, sessions, interfaces, budgets and crash protection, and what happens.
//!
//! The daemons keep events, and a firewall the packets that its rules log; that drops begin is noticed here, from two
//! snapshots of the counters.

use std::collections::BTreeMap;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use clap::Args;
use serde_json::{Value, json};
use tool_common::{note, print, stop_on_signals};
use unetmap_core::control::events;
#[cfg(feature = "apps")]
use unetmap_fw_client::events as firewall_events;

use crate::ls::{NO_DAEMON, cell, members, parse_reply};
use crate::top::{RingCounters, RingKey, key_before, rates, rings_of};

#[cfg(not(feature = "apps"))]
fn firewall_events(_after: u64) -> Option<String> {
    None
}

/// Time between two questions for events.
const INTERVAL: Duration = Duration::from_millis(200);
/// Time between two snapshots of the counters.
const DROPS_INTERVAL: Duration = Duration::from_secs(1);
/// Time without drops after which they begin again.
const DROPS_END: Duration = Duration::from_secs(10);

/// Show what has happened in the daemon: ports, sessions, interfaces, budgets, crash protection.
///
/// Prints the last events that the daemon has kept, and packets that a firewall (unetmap-fw) has logged. Users other
/// than root and the daemon's own see their own only.
#[derive(Debug, Args)]
pub(crate) struct EventsArgs {
    /// Go on until a signal; also shows when a ring begins to drop packets
    #[arg(short, long)]
    follow: bool,

    /// Print one JSON object per event
    #[arg(long)]
    json: bool,
}

/// The place of the firewall in what was read.
const FIREWALL: usize = 2;

/// The part of the log that was read so far.
struct Reader {
    json: bool,
    /// Of the system's daemon, of the user's own, and of the firewall: its process, and its last event.
    seen: [(u64, u64); 3],
    drops: Drops,
}

/// The rings that drop packets.
#[derive(Default)]
struct Drops {
    /// When the counters were read, and what they were.
    last: Option<(Instant, BTreeMap<RingKey, RingCounters>)>,
    /// When each dropped for the last time.
    dropping: BTreeMap<RingKey, Instant>,
}

/// Prints the events of the daemons; with `--follow` until a signal, or until nobody reads standard output.
pub(crate) fn run(args: &EventsArgs) -> Result<u8, String> {
    let failed = |why: String| format!("events: {why}");
    let stop = stop_on_signals().map_err(failed)?;
    let mut reader = Reader { json: args.json, seen: [(0, 0); 3], drops: Drops::default() };
    let mut is_first = true;
    loop {
        let result = reader.read_events();
        if std::mem::take(&mut is_first) && result.is_ok() && reader.seen[..FIREWALL].iter().all(|(pid, _)| *pid == 0) {
            note(NO_DAEMON);
        }
        if !args.follow {
            return result.map(|()| 0).map_err(failed);
        }
        // A daemon that ends meanwhile is asked again when another one runs.
        if reader.drops.last.as_ref().is_none_or(|(at, _)| at.elapsed() >= DROPS_INTERVAL)
            && let Ok(snapshots) = unetmap::snapshots()
        {
            let snapshots: Vec<Value> = snapshots.iter().filter_map(|text| parse_reply("events", text).ok()).collect();
            for event in reader.drops.next(Instant::now(), &snapshots) {
                reader.print(&event);
            }
        }
        let next = Instant::now() + INTERVAL;
        while !stop.load(Relaxed) && Instant::now() < next {
            std::thread::sleep(INTERVAL / 4);
        }
        if stop.load(Relaxed) {
            return Ok(0);
        }
    }
}

impl Reader {
    /// Prints all events that were not printed yet.
    fn read_events(&mut self) -> Result<(), String> {
        loop {
            let [system, own, firewall] = self.seen.map(|(_, last)| last);
            let answers = events::read([system, own]).map_err(|e| e.to_string())?;
            let mut more = false;
            for (at, text) in answers.into_iter().chain([firewall_events(firewall)]).enumerate() {
                let Some(text) = text else {
                    self.daemon_is(at, 0);
                    continue;
                };
                let answer = parse_reply("events", &text)?;
                let pid = answer["pid"].as_u64().unwrap_or(0);
                self.daemon_is(at, pid);
                if self.seen[at].0 != pid && self.seen[at].1 != 0 {
                    // Another daemon, which counts from 1.
                    self.seen[at] = (pid, 0);
                    more = true;
                    continue;
                }
                let missed = answer["missed"].as_u64().unwrap_or(0);
                if missed > 0 {
                    self.print(&json!({"event": "missed", "time_ms": now_ms(), "events": missed}));
                }
                members(&answer["events"]).for_each(|event| self.print(event));
                more |= members(&answer["events"]).next().is_some();
                self.seen[at] = (pid, answer["last"].as_u64().unwrap_or(0));
            }
            if !more {
                return Ok(());
            }
        }
    }

    /// Prints that the daemon of which events were read has ended (`pid` 0), or is another process.
    fn daemon_is(&mut self, at: usize, pid: u64) {
        let was = self.seen[at].0;
        if at == FIREWALL || was == 0 || was == pid {
            return;
        }
        let event = if pid == 0 { "daemon-ended" } else { "daemon-replaced" };
        self.print(&json!({"time_ms": now_ms(), "event": event, "port": "unetmapd", "pid": pid, "was": was}));
        if pid == 0 {
            // The next one is read from its first event on.
            self.seen[at] = (0, 0);
        }
    }

    fn print(&self, event: &Value) {
        print(&if self.json { format!("{event}\n") } else { line(event) });
    }
}

impl Drops {
    /// Returns an event for each ring that began to drop packets since the last call.
    fn next(&mut self, now: Instant, snapshots: &[Value]) -> Vec<Value> {
        let rings: BTreeMap<RingKey, RingCounters> = snapshots.iter().flat_map(rings_of).collect();
        let owners: BTreeMap<String, Value> = snapshots
            .iter()
            .flat_map(|all| members(&all["sessions"]))
            .map(|session| (cell(&session["port"]), session["uid"].clone()))
            .collect();
        let mut begun = Vec::new();
        if let Some((at, before)) = &self.last {
            for key in rings.keys().filter(|key| !before.contains_key(key)) {
                let was = key_before(key, before, &rings).and_then(|was| self.dropping.remove(&was));
                self.dropping.extend(was.map(|since| (key.clone(), since)));
            }
            for rate in rates(before, &rings, now - *at).into_iter().filter(|rate| rate.lost > 0.0) {
                let (label, (_, port, dir, id)) = (rate.ring.label.clone(), rate.key.clone());
                let last = self.dropping.insert(rate.key, now);
                if last.is_none_or(|last| now - last >= DROPS_END) {
                    let uid = owners.get(&port).cloned().unwrap_or_default();
                    begun.push(json!({"time_ms": now_ms(), "uid": uid, "event": "drops-began", "port": port,
                        "label": label, "dir": dir, "ring": id, "per_second": rate.lost.round() as u64}));
                }
            }
        }
        self.dropping.retain(|key, last| rings.contains_key(key) && now - *last < DROPS_END);
        self.last = Some((now, rings));
        begun
    }
}

/// Milliseconds since 1970.
fn now_ms() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_millis() as u64
}

/// Formats an event: time, user, port, and what happened.
fn line(event: &Value) -> String {
    let of = |key: &str| cell(&event[key]);
    let process = || format!("{} ({})", of("program"), of("pid"));
    let what = match event["event"].as_str().unwrap_or_default() {
        "session-opened" => {
            format!("session opened by {}: {} tx and {} rx rings", process(), of("tx_rings"), of("rx_rings"))
        }
        "session-closed" => format!("session of {} closed", process()),
        "port-opened" => format!("port opened by {}", process()),
        "port-closed" => format!("port closed by {}", process()),
        kind @ ("attached" | "detached") if event["label"].is_string() => format!("{kind}: {}", of("label")),
        "link-renamed" => format!("interface renamed, was {}", of("was")),
        "frames-lost" => format!("{} frames were in the rings of a program that has closed", of("frames")),
        "bypass-began" => format!("the kernel forwards in place of a program: {}", cause(event)),
        "bypass-ended" => {
            let seconds = event["seconds"].as_f64().unwrap_or_default();
            format!("a program forwards again; the kernel did for {seconds:.1} s: {}", cause(event))
        }
        "frames-faulty" => of("reason"),
        "link-gone" => "interface gone".into(),
        "budget-reached" => format!("request refused: {}", of("reason")),
        "crash-protection-off" => format!("a crash will end ports: {}", of("reason")),
        "crash-protection-on" => {
            format!("a crash ends no port any more; it would have for {} s", of("off_seconds"))
        }
        "policy-refused" => format!("request refused by the policy: {}", of("reason")),
        "daemon-crashed" => format!("goes on after process {}, which crashed", of("was")),
        "daemon-took-over" => format!("has replaced process {}", of("was")),
        "reloaded" => "configuration and policy read again".into(),
        "reload-failed" => format!("configuration or policy cannot be read: {}", of("reason")),
        "requests-wait" => format!("requests wait: {}", of("reason")),
        "drops-began" => {
            let label = if event["label"].is_string() { format!(" of {}", of("label")) } else { String::new() };
            format!("drops begin at {} {}{label}: {} packets per second", of("dir"), of("ring"), of("per_second"))
        }
        "packet-logged" => of("line"),
        "daemon-ended" => format!("daemon ended, was process {}", of("was")),
        "daemon-replaced" => format!("daemon is process {}, was {}", of("pid"), of("was")),
        "missed" => format!("{} events missed: the daemon keeps the last ones only", of("events")),
        // attached and detached without a label, link-up, link-down.
        other => cell(&Value::from(other)).replace('-', " "),
    };
    let time = event["time_ms"].as_u64().map_or_else(|| "-".into(), utc);
    format!("{time} {:>5} {:<16} {what}\n", of("uid"), of("port"))
}

/// The cause of a bypass, for people.
pub(crate) fn cause(event: &Value) -> &'static str {
    match event["cause"].as_str() {
        Some("no-program") => "none has the interface open, or it has not begun",
        Some("stalled") => "it took no frames",
        _ => "the daemon was stopped",
    }
}

/// Formats a time as RFC 3339 has it, in UTC.
pub(crate) fn utc(ms: u64) -> String {
    let (days, of_day) = (ms / 86_400_000, ms % 86_400_000);
    // Years begin in March here, so that a leap day is the last day; 146097 days are 400 years.
    let since = days + 719_468;
    let (era, day) = (since / 146_097, since % 146_097);
    let year = (day - day / 1460 + day / 36_524 - day / 146_096) / 365;
    let day = day - (365 * year + year / 4 - year / 100);
    let month = (5 * day + 2) / 153;
    let (date, month) = (day - (153 * month + 2) / 5 + 1, if month < 10 { month + 3 } else { month - 9 });
    let year = year + era * 400 + u64::from(month <= 2);
    let (seconds, ms) = (of_day / 1000, of_day % 1000);
    let (hours, minutes, seconds) = (seconds / 3600, seconds / 60 % 60, seconds % 60);
    format!("{year:04}-{month:02}-{date:02}T{hours:02}:{minutes:02}:{seconds:02}.{ms:03}Z")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_formatted() {
        for (seconds, text) in [
            (0, "1970-01-01T00:00:00.007Z"),
            (951_782_399, "2000-02-28T23:59:59.007Z"),
            (951_782_400, "2000-02-29T00:00:00.007Z"),
            (951_868_800, "2000-03-01T00:00:00.007Z"),
            (1_767_225_599, "2025-12-31T23:59:59.007Z"),
            (4_107_542_400, "2100-03-01T00:00:00.007Z"),
        ] {
            assert_eq!(utc(seconds * 1000 + 7), text);
        }
    }

    #[test]
    fn drops_begin_once_and_again_after_a_pause() {
        let of = |pid: u64, dropped: u64| {
            json!({"daemon": {"pid": pid}, "sessions": [{"port": "p", "uid": 7}], "ports": [{"name": "p", "kind": "vale",
                "label": "default/web", "rings": [{"dir": "rx", "id": 0, "crossed": 10, "batches": 1, "queued": 0, "dropped": dropped}]}]})
        };
        let (mut drops, start) = (Drops::default(), Instant::now());
        let mut by = |pid, seconds, dropped| drops.next(start + Duration::from_secs(seconds), &[of(pid, dropped)]);
        let mut at = |seconds, dropped| by(1, seconds, dropped);
        assert!(at(0, 5).is_empty(), "what was dropped before is none");
        let begun = at(1, 7);
        assert_eq!((begun.len(), &begun[0]["per_second"], &begun[0]["uid"]), (1, &json!(2), &json!(7)));
        assert!(line(&begun[0]).contains("drops begin at rx 0 of default/web: 2 packets"), "{}", line(&begun[0]));
        assert!(at(2, 9).is_empty());
        assert!(at(3, 9).is_empty());
        assert!(at(4, 10).is_empty());
        assert!(at(14, 10).is_empty());
        assert_eq!(at(15, 11).len(), 1);
        // A successor of the daemon has its counters.
        assert!(by(2, 16, 11).is_empty() && by(2, 17, 12).is_empty());
        assert!(by(3, 18, 13).is_empty());
    }

    #[test]
    fn the_end_of_a_bypass_says_how_long_it_lasted() {
        let event = json!({"time_ms": 0, "uid": 0, "event": "bypass-ended", "port": "eth0", "cause": "stalled", "seconds": 1.24});
        let end = "a program forwards again; the kernel did for 1.2 s: it took no frames\n";
        assert!(line(&event).ends_with(end), "{}", line(&event));
    }

    #[test]
    fn events_are_lines() {
        let event = json!({"time_ms": 0, "uid": 0, "event": "link-down", "port": "eth0"});
        assert_eq!(line(&event), "1970-01-01T00:00:00.000Z     0 eth0             link down\n");
        let event = json!({"time_ms": 0, "uid": 0, "event": "attached", "port": "vale0:c", "label": "default/web"});
        assert!(line(&event).ends_with("vale0:c          attached: default/web\n"), "{}", line(&event));
        let event = json!({"time_ms": 0, "uid": 5, "event": "budget-reached", "reason": "x\u{1b}[2J"});
        assert!(line(&event).ends_with("request refused: x\\u001b[2J\n"), "{}", line(&event));
    }
}
