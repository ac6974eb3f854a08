// SPDX-License-Identifier: BSD-2-Clause
//! Likely causes of faults that are seen now, for `unetmap doctor --report`: from two snapshots of the daemons, their
//! events, and the states of processes.

use std::fs;
use std::thread;
use std::time::Duration;

use serde_json::Value;
use unetmap_core::control::events;
use unetmap_sys::process;

use crate::ls::{cell, members};

/// Time between two snapshots: a ring that drops packets shows in their difference.
const BETWEEN: Duration = Duration::from_millis(300);
/// The name of the daemon's processes.
const DAEMON: &str = "unetmapd";

/// The facts.
struct Seen<'a> {
    /// Two snapshots of each daemon that answers; or why none does.
    daemons: Result<Vec<[Value; 2]>, String>,
    /// The processes of daemons, with their states as /proc tells them.
    processes: Vec<(u32, char)>,
    /// Events of the daemons, the last one last.
    events: Vec<Value>,
    state_of: &'a dyn Fn(u32) -> Option<char>,
}

/// Returns a sentence about each fault that is seen, with its remedy; `silent`: why no daemon answers.
pub(super) fn likely(silent: Option<&String>) -> Vec<String> {
    let read = || {
        let all = unetmap::snapshots().map_err(|e| e.to_string())?;
        Ok::<Vec<Value>, String>(all.iter().filter_map(|text| serde_json::from_str(text).ok()).collect())
    };
    let daemons = silent.map_or(Ok(()), |why| Err(why.clone())).and_then(|()| {
        let before = read()?;
        thread::sleep(BETWEEN);
        Ok(before.into_iter().zip(read()?).map(|(before, after)| [before, after]).collect())
    });
    let events = if daemons.is_ok() { last_events() } else { Vec::new() };
    causes(&Seen { daemons, processes: daemon_processes(), events, state_of: &process::state })
}

/// The events that the daemons have kept.
fn last_events() -> Vec<Value> {
    let (mut after, mut all) = ([0, 0], Vec::new());
    while let Ok(answers) = events::read(after) {
        let before = all.len();
        for (after, answer) in after.iter_mut().zip(answers) {
            let answer: Value = answer.and_then(|text| serde_json::from_str(&text).ok()).unwrap_or_default();
            all.extend(members(&answer["events"]).cloned());
            *after = answer["last"].as_u64().unwrap_or(*after);
        }
        if all.len() == before {
            break;
        }
    }
    all
}

fn daemon_processes() -> Vec<(u32, char)> {
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    let numbers = entries.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
    let daemons = numbers.filter(|pid| process::program_name(*pid).is_some_and(|name| name == DAEMON));
    daemons.filter_map(|pid| Some((pid, process::state(pid)?))).collect()
}

fn is_stopped(state: Option<char>) -> bool {
    matches!(state, Some('T' | 't'))
}

fn causes(seen: &Seen<'_>) -> Vec<String> {
    let mut found = Vec::new();
    for (pid, _) in seen.processes.iter().filter(|(_, state)| is_stopped(Some(*state))) {
        found.push(format!("process {pid} of the daemon is stopped (kill -CONT {pid})"));
    }
    match &seen.daemons {
        Err(why) => found.push(format!("the daemon does not answer: {why}")),
        Ok(daemons) if daemons.is_empty() => {
            found.push(
                "no daemon runs: interfaces are the kernel's (the next program that opens a port starts one)".into(),
            );
        }
        Ok(daemons) => daemons.iter().for_each(|[before, after]| of_daemon(seen, before, after, &mut found)),
    }
    for (event, what) in [("budget-reached", "for lack of budget"), ("policy-refused", "by the policy")] {
        if let Some(last) = seen.events.iter().rfind(|last| last["event"] == event) {
            found.push(format!(
                "a request of user {} was refused {what}: {}",
                cell(&last["uid"]),
                cell(&last["reason"])
            ));
        }
    }
    found
}

fn of_daemon(seen: &Seen<'_>, before: &Value, after: &Value, found: &mut Vec<String>) {
    let protection = &after["daemon"]["crash_protection"];
    if protection["asked"] == true && protection["on"] == false {
        found.push(format!("a crash of the daemon would end ports: {}", cell(&protection["why"])));
    }
    let refusals = after["daemon"]["history"]["policy_refusals"].as_u64().unwrap_or(0);
    if refusals > 0 {
        found.push(format!("the policy has refused {refusals} requests and connections (unetmap-policy(5))"));
    }
    for user in members(&after["users"]) {
        for (resource, share) in user.as_object().into_iter().flatten() {
            let (used, limit) = (share["used"].as_u64(), share["limit"].as_u64());
            if used.zip(limit).is_some_and(|(used, limit)| used >= limit && limit > 0) {
                let who =
                    user.get("uid").map_or_else(|| "all users but root have".into(), |uid| format!("user {uid} has"));
                found.push(format!("{who} all of the budget {resource} (unetmap ls --users)"));
            }
        }
    }
    for session in members(&after["sessions"]) {
        let pid = session["pid"].as_u64().and_then(|pid| u32::try_from(pid).ok()).unwrap_or(0);
        if is_stopped((seen.state_of)(pid)) {
            let (program, port) = (cell(&session["program"]), cell(&session["port"]));
            found.push(format!("{program} ({pid}), which has {port} open, is stopped (kill -CONT {pid})"));
        }
    }
    for port in members(&after["ports"]) {
        let name = cell(&port["name"]);
        if port["manner"].as_str().is_some_and(|manner| manner.starts_with("down")) {
            found.push(format!("{name} is down: no packets move (ip link set {name} up)"));
        }
        let earlier = members(&before["ports"]).find(|old| old["name"] == port["name"] && old["kind"] == port["kind"]);
        found.extend(members(&port["rings"]).filter_map(|ring| of_ring(&name, earlier, ring)));
    }
}

/// A ring that is full, or drops packets now.
fn of_ring(port: &str, earlier: Option<&Value>, ring: &Value) -> Option<String> {
    let old = members(&earlier?["rings"]).find(|old| old["dir"] == ring["dir"] && old["id"] == ring["id"])?;
    let number = |ring: &Value, key: &str| ring[key].as_u64().unwrap_or(0);
    let name = format!("{} {} of {port}", cell(&ring["dir"]), cell(&ring["id"]));
    let dropped = number(ring, "dropped").saturating_sub(number(old, "dropped"));
    let is_full = number(ring, "slots") > 0 && number(ring, "queued") + 1 >= number(ring, "slots");
    let stands = number(ring, "crossed") == number(old, "crossed");
    match (is_full && stands, dropped) {
        (true, 0) => Some(format!("{name} is full, and nobody takes packets: the program that receives hangs")),
        (true, n) => Some(format!(
            "{name} is full: the program that receives takes nothing, and {n} packets were dropped meanwhile"
        )),
        (false, n) if n > 0 => {
            Some(format!("{name} drops packets, {n} in {BETWEEN:?}: unetmap ls --json has the reasons"))
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    /// The sentences about a daemon whose second snapshot has these parts.
    fn found(change: impl FnOnce(&mut Value), events: Vec<Value>) -> Vec<String> {
        let well = json!({
            "daemon": {"crash_protection": {"asked": true, "on": true}, "history": {"policy_refusals": 0}},
            "users": [{"uid": 7, "rings": {"used": 2, "limit": 3}}],
            "sessions": [{"pid": 70, "program": "fw", "port": "eth0"}],
            "ports": [{"name": "eth0", "kind": "nic", "manner": "native, copy", "rings": [
                {"dir": "rx", "id": 0, "slots": 64, "queued": 5, "crossed": 10, "dropped": 3}]}],
        });
        let mut now = well.clone();
        change(&mut now);
        let state_of = |pid| Some(if pid == 71 { 'T' } else { 'S' });
        causes(&Seen { daemons: Ok(vec![[well, now]]), processes: vec![(1, 'S')], events, state_of: &state_of })
    }

    #[test]
    fn each_fault_has_its_sentence_and_none_has_none() {
        assert_eq!(found(|_| {}, vec![]), [] as [&str; 0]);
        let ring = |now: &mut Value| now["ports"][0]["rings"][0].take();
        type Case = (fn(&mut Value), &'static str);
        let cases: [Case; 7] = [
            (
                |now| now["daemon"]["crash_protection"] = json!({"asked": true, "on": false, "why": "x"}),
                "would end ports: x",
            ),
            (|now| now["daemon"]["history"]["policy_refusals"] = json!(4), "policy has refused 4"),
            (|now| now["users"][0]["rings"]["used"] = json!(3), "user 7 has all of the budget rings"),
            (|now| now["sessions"][0]["pid"] = json!(71), "fw (71), which has eth0 open, is stopped (kill -CONT 71)"),
            (|now| now["ports"][0]["manner"] = json!("down (native, copy)"), "eth0 is down"),
            (|now| now["ports"][0]["rings"][0]["queued"] = json!(63), "rx 0 of eth0 is full, and nobody takes packets"),
            (|now| now["ports"][0]["rings"][0]["dropped"] = json!(9), "rx 0 of eth0 drops packets, 6 in 300ms"),
        ];
        for (fault, sentence) in cases {
            let found = found(fault, vec![]);
            assert!(found.len() == 1 && found[0].contains(sentence), "{sentence}: {found:?}");
        }
        // A ring that moves is not full for long; a ring that is gone says nothing.
        assert_eq!(
            found(
                |now| now["ports"][0]["rings"][0] =
                    json!({"dir": "rx", "id": 0, "slots": 64, "queued": 63, "crossed": 11, "dropped": 3}),
                vec![]
            )
            .len(),
            0
        );
        assert_eq!(found(|now| _ = ring(now), vec![]).len(), 0);
        let refused = |event| json!({"event": event, "uid": 7, "reason": "it is so"});
        let found = found(|_| {}, vec![refused("budget-reached"), refused("policy-refused")]);
        assert!(
            found.len() == 2 && found.iter().all(|text| text.contains("user 7") && text.ends_with("it is so")),
            "{found:?}"
        );
    }

    #[test]
    fn a_daemon_that_is_stopped_or_gone_is_told() {
        let of = |daemons, processes| causes(&Seen { daemons, processes, events: vec![], state_of: &|_| None });
        assert!(of(Ok(vec![]), vec![])[0].starts_with("no daemon runs"));
        let stopped = of(Err("no answer within 5 s".into()), vec![(8, 'S'), (9, 'T')]);
        assert_eq!(stopped.len(), 2, "{stopped:?}");
        assert!(stopped[0].contains("process 9 of the daemon is stopped (kill -CONT 9)"), "{stopped:?}");
        assert!(stopped[1].ends_with("does not answer: no answer within 5 s"), "{stopped:?}");
    }

    #[test]
    fn the_state_of_this_process_is_read() {
        // That of its first thread, which waits for the tests.
        assert!(matches!(process::state(process::pid()), Some('R' | 'S')));
        assert_eq!(process::state(0), None);
    }
}
