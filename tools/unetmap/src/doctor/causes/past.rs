// SPDX-License-Identifier: BSD-2-Clause
//! Faults of the last minutes, by the daemons' events: the last event of each kind and port.

use std::collections::BTreeSet;

use serde_json::Value;

use crate::events::cause;
use crate::ls::cell;

/// Milliseconds after which an event is no cause of a fault that is seen now.
const RECENT: u64 = 15 * 60 * 1000;
/// Seconds: a shorter time without a link, or without crash protection, belongs to the opening of a port.
const LONG: f64 = 1.0;
/// Most sentences.
const MOST: usize = 16;

/// Returns a sentence for each event, the last one first; `open` are the ports that programs have open.
pub(super) fn sentences(events: &[Value], open: &[String], now_ms: u64) -> Vec<String> {
    let (mut known, mut found) = (BTreeSet::new(), Vec::new());
    for (at, event) in events.iter().enumerate().rev() {
        let age = now_ms.saturating_sub(event["time_ms"].as_u64().unwrap_or(0));
        let Some(kind) = event["event"].as_str().filter(|_| age <= RECENT) else { continue };
        // Of events that end each other the last one counts.
        let kind = match kind {
            "reloaded" => "reload-failed",
            "link-down" => "link-up",
            "bypass-began" => "bypass-ended",
            "session-opened" => "session-closed",
            "crash-protection-off" => "crash-protection-on",
            kind => kind,
        };
        if known.insert((kind, cell(&event["port"]))) {
            found.extend(sentence(event, &events[..at], open).map(|text| format!("{text}, {} s ago", age / 1000)));
        }
    }
    found.truncate(MOST);
    found
}

/// `None`: it is no fault, or is told otherwise while it lasts.
fn sentence(event: &Value, before: &[Value], open: &[String]) -> Option<String> {
    let of = |key: &str| cell(&event[key]);
    let port = of("port");
    let is_open = open.contains(&port);
    let seconds = |key: &str| event[key].as_f64().unwrap_or(0.0);
    Some(match event["event"].as_str()? {
        "daemon-crashed" => format!("the daemon (process {}) crashed, and goes on with its ports", of("was")),
        "daemon-took-over" => format!("the daemon (process {}) was replaced", of("was")),
        "reload-failed" => format!("configuration or policy could not be read: {}", of("reason")),
        "requests-wait" => format!("requests of user {} waited: {}", of("uid"), of("reason")),
        "crash-protection-on" if seconds("off_seconds") >= LONG => {
            format!("until then a crash would have ended ports, for {:.1} s", seconds("off_seconds"))
        }
        "link-gone" if !is_open => {
            format!("the interface {port} was deleted or moved to another namespace: programs have to open it again")
        }
        "link-up" => {
            let down = before.iter().rfind(|down| down["event"] == "link-down" && down["port"] == event["port"])?;
            let seconds = (event["time_ms"].as_f64()? - down["time_ms"].as_f64()?) / 1000.0;
            (seconds >= LONG).then(|| format!("the interface {port} was down for {seconds:.1} s"))?
        }
        "frames-lost" => {
            format!("{} frames were lost in the rings of the program that had {port} open", of("frames"))
        }
        "bypass-ended" => {
            let lasted = seconds("seconds");
            format!("the kernel forwarded in place of the program at {port} for {lasted:.1} s: {}", cause(event))
        }
        // Others come and go as they like.
        "session-closed" if !is_open && is_interface(&port) => {
            format!("{} ({}) had {port} open, and ended or closed it; no program has it now", of("program"), of("pid"))
        }
        _ => return None,
    })
}

/// Whether a port is on an interface, by its name.
fn is_interface(port: &str) -> bool {
    !port.contains(['{', '}', ':'])
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn the_last_event_of_a_kind_and_port_is_told() {
        let now = 10_000_000;
        let event = |seconds_ago: u64, event: &str, port: &str| {
            json!({"time_ms": now - 1000 * seconds_ago, "uid": 0, "event": event, "port": port, "was": 5, "pid": 7,
                "program": "bridge", "frames": 9, "reason": "why", "seconds": 2.5, "off_seconds": 1.5, "cause": "stalled"})
        };
        let told = |events: &[Value], open: &[&str]| {
            let open: Vec<String> = open.iter().map(|port| (*port).to_owned()).collect();
            sentences(events, &open, now)
        };
        for (kind, words) in [
            ("daemon-crashed", "the daemon (process 5) crashed, and goes on with its ports, 7 s ago"),
            ("daemon-took-over", "(process 5) was replaced, 7 s ago"),
            ("reload-failed", "could not be read: why"),
            ("requests-wait", "of user 0 waited: why"),
            ("crash-protection-on", "would have ended ports, for 1.5 s, 7 s ago"),
            ("link-gone", "the interface eth1 was deleted"),
            ("frames-lost", "9 frames were lost in the rings of the program that had eth1"),
            ("bypass-ended", "at eth1 for 2.5 s: it took no frames"),
            ("session-closed", "bridge (7) had eth1 open, and ended or closed it"),
        ] {
            let found = told(&[event(900, kind, "eth1"), event(7, kind, "eth1")], &[]);
            assert!(found.len() == 1 && found[0].contains(words), "{kind}: {found:?}");
            assert!(told(&[event(901, kind, "eth1")], &[]).is_empty(), "{kind}: long ago");
        }
        let down_and_up = [event(9, "link-down", "eth1"), event(9, "link-down", "eth2"), event(7, "link-up", "eth1")];
        assert_eq!(told(&down_and_up, &[]), ["the interface eth1 was down for 2.0 s, 7 s ago"]);
        assert!(
            told(&[event(7, "link-down", "eth1"), event(7, "link-up", "eth1")], &[]).is_empty(),
            "as it was opened"
        );
        for (kind, then) in [
            ("reload-failed", "reloaded"),
            ("link-up", "link-down"),
            ("session-closed", "session-opened"),
            ("bypass-ended", "bypass-began"),
            ("crash-protection-on", "crash-protection-off"),
        ] {
            assert!(told(&[event(9, kind, "eth1"), event(8, then, "eth1")], &[]).is_empty(), "{kind}, then {then}");
        }
        assert!(told(&[event(1, "session-closed", "eth1"), event(1, "link-gone", "eth1")], &["eth1"]).is_empty());
        assert!(told(&[event(1, "session-closed", "vale0:a"), event(1, "session-closed", "p{1")], &[]).is_empty());
        let many: Vec<Value> = (0..40).map(|n| event(1, "frames-lost", &format!("eth{n}"))).collect();
        assert_eq!(told(&many, &[]).len(), MOST);
    }
}
