// SPDX-License-Identifier: BSD-2-Clause
//! Likely causes of faults that are seen now, for `unetmap doctor --report`.
//!
//! ```text
//! here     what two snapshots of the daemons, the states of processes and the interfaces say
//! past     faults of the last minutes, by the daemons' events
//! strain   what the machine lacks: time of its processors, memory, room on the disk; and its clock
//! ```

use std::fs;
use std::thread;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use serde_json::Value;
use unetmap_core::control::events;
use unetmap_sys::link::Link;
use unetmap_sys::{link, process};

use super::{gather, nic::Offloads};
use crate::ls::{cell, members};
use strain::Strain;

mod past;
mod strain;

/// Time between two snapshots: a ring that drops packets shows in their difference.
const BETWEEN: Duration = Duration::from_millis(300);
/// The beginning of the names of the daemon's processes.
const DAEMON: &str = "unetmapd";
/// The daemon's clock may be this far from where its start and its age put it: seconds of both are rounded.
const CLOCK_STEP: i64 = 3000;

/// The facts.
struct Seen<'a> {
    /// Two snapshots of each daemon that answers; or why none does.
    daemons: Result<Vec<[Value; 2]>, String>,
    /// The processes of daemons: numbers, names, and states as /proc tells them.
    processes: Vec<(u32, String, char)>,
    /// Events of the daemons, the last one last.
    events: Vec<Value>,
    /// Milliseconds since 1970.
    now_ms: u64,
    state_of: &'a dyn Fn(u32) -> Option<char>,
    interface_of: &'a dyn Fn(&str) -> Option<Interface>,
}

/// An interface of this network namespace on which a port is open.
struct Interface {
    mtu: u32,
    has_carrier: bool,
    /// Whether it, or its peer, was given offloads again that the daemon had switched off.
    hides_frames: bool,
}

/// Returns a sentence about each fault that is seen, with its remedy; `silent`: why no daemon answers.
pub(super) fn likely(silent: Option<&String>) -> Vec<String> {
    let read = || {
        let all = unetmap::snapshots().map_err(|e| e.to_string())?;
        Ok::<Vec<Value>, String>(all.iter().filter_map(|text| serde_json::from_str(text).ok()).collect())
    };
    let processes = daemon_processes();
    let mut strain = Strain::default();
    let daemons = silent.map_or(Ok(()), |why| Err(why.clone())).and_then(|()| {
        let before = read()?;
        let sessions = before.iter().flat_map(|all| members(&all["sessions"])).filter_map(pid_of);
        strain = Strain::begin(processes.iter().map(|(pid, ..)| *pid).chain(sessions));
        thread::sleep(BETWEEN);
        Ok(before.into_iter().zip(read()?).map(|(before, after)| [before, after]).collect())
    });
    let events = if daemons.is_ok() { last_events() } else { Vec::new() };
    let programs = events.iter().filter_map(|event| event["program"].as_str()).map(str::to_owned).collect();
    let now_ms = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_millis() as u64;
    let (state_of, interface_of) = (&process::state, &interface);
    let mut found = causes(&Seen { daemons, processes, events, now_ms, state_of, interface_of });
    found.extend(strain.end(&programs));
    found
}

fn pid_of(session: &Value) -> Option<u32> {
    session["pid"].as_u64().and_then(|pid| u32::try_from(pid).ok())
}

fn interface(name: &str) -> Option<Interface> {
    let link = link::by_name(name).ok().flatten()?;
    let hides_frames = matches!(
        gather::offloads(&link),
        Ok(Offloads::Driver { removes_tags: true } | Offloads::Veth { incomplete: Some(true) })
    );
    let Link { mtu, up, carrier, .. } = link;
    Some(Interface { mtu, has_carrier: carrier || !up, hides_frames })
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

fn daemon_processes() -> Vec<(u32, String, char)> {
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    let numbers = entries.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
    let daemons = numbers.filter_map(|pid| Some((pid, process::program_name(pid)?, process::state(pid)?)));
    daemons.filter(|(_, name, _)| name.starts_with(DAEMON)).collect()
}

fn is_stopped(state: Option<char>) -> bool {
    matches!(state, Some('T' | 't'))
}

fn causes(seen: &Seen<'_>) -> Vec<String> {
    let mut found = Vec::new();
    for (pid, name, _) in seen.processes.iter().filter(|(.., state)| is_stopped(Some(*state))) {
        found.push(format!("process {pid} of the daemon ({name}) is stopped (kill -CONT {pid})"));
    }
    match &seen.daemons {
        Err(why) => found.push(format!("the daemon does not answer: {why}")),
        Ok(daemons) if daemons.is_empty() => {
            found.push(
                "no daemon runs: interfaces are the kernel's, which also goes on with `failure closed` and `bypass` \
                 (unetmap nic IF says whether IF has one; the next program that opens a port starts a daemon; why the \
                 last one ended is in its log: journalctl -u unetmapd, or the file beside its socket)"
                    .into(),
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
    if let Ok(daemons) = &seen.daemons {
        let sessions = daemons.iter().flat_map(|[_, after]| members(&after["sessions"]));
        let open: Vec<String> = sessions.map(|session| cell(&session["port"])).collect();
        found.extend(past::sentences(&seen.events, &open, seen.now_ms));
    }
    found
}

fn of_daemon(seen: &Seen<'_>, before: &Value, after: &Value, found: &mut Vec<String>) {
    let protection = &after["daemon"]["crash_protection"];
    if protection["asked"] == true && protection["on"] == false {
        found.push(format!("a crash of the daemon would end ports: {}", cell(&protection["why"])));
    }
    found.extend(clock_step(&after["daemon"]));
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
        let pid = pid_of(session).unwrap_or(0);
        if is_stopped((seen.state_of)(pid)) {
            let (program, port) = (cell(&session["program"]), cell(&session["port"]));
            found.push(format!("{program} ({pid}), which has {port} open, is stopped (kill -CONT {pid})"));
        }
    }
    found.extend(members(&after["interfaces"]).filter_map(without_program));
    for port in members(&after["ports"]) {
        let name = cell(&port["name"]);
        if port["manner"].as_str().is_some_and(|manner| manner.starts_with("down")) {
            found.push(format!("{name} is down: no packets move (ip link set {name} up)"));
        }
        if let Some(why) = port["other_queues"].as_str() {
            found.push(format!("{name}: {why}"));
        }
        let earlier = members(&before["ports"]).find(|old| old["name"] == port["name"] && old["kind"] == port["kind"]);
        found.extend(members(&port["rings"]).filter_map(|ring| of_ring(&name, earlier, ring)));
    }
    of_interfaces(seen, after, found);
}

/// The interfaces of this namespace on which ports are open.
fn of_interfaces(seen: &Seen<'_>, after: &Value, found: &mut Vec<String>) {
    let ports = members(&after["ports"]).filter(|port| port["kind"] == "nic" || port["kind"] == "mediated");
    let known = ports.filter_map(|port| {
        let name = cell(&port["name"]);
        (seen.interface_of)(&name).map(|interface| (name, &port["mem_id"], interface))
    });
    let known: Vec<(String, &Value, Interface)> = known.collect();
    for (at, (name, region, interface)) in known.iter().enumerate() {
        if !interface.has_carrier {
            found.push(format!("{name} has no carrier: its cable is out, or the other end is down"));
        }
        if interface.hides_frames {
            found.push(format!(
                "offloads were switched on at {name}, or at the other end of its veth pair, while it is open: frames come \
                 without tags or checksums, or longer than the MTU (ethtool -K IF tx off tso off rxvlan off)"
            ));
        }
        // Programs move frames between interfaces of one region.
        let shorter = known[at + 1..].iter().find(|(_, other, with)| other == region && with.mtu != interface.mtu);
        if let Some((other, _, with)) = shorter {
            let (mtu, less) = (interface.mtu, with.mtu);
            found.push(format!(
                "{name} has an MTU of {mtu}, and {other} one of {less}: longer frames do not pass between the two"
            ));
        }
    }
}

/// An interface with the setting `failure` whose frames no program takes now.
fn without_program(interface: &Value) -> Option<String> {
    let name = cell(&interface["interface"]);
    let why = match interface["bypass"]["cause"].as_str()? {
        "no-program" => "no program has it open, or none has begun to take frames",
        "stalled" => "the program that has it open takes no frames: it hangs, or is stopped or starved",
        _ => "the daemon is stopped",
    };
    Some(format!("the kernel forwards the frames of {name} to {}: {why}", cell(&interface["partner"])))
}

/// How far the clock is from where the daemon's start puts it.
fn clock_step(daemon: &Value) -> Option<String> {
    let [clock, started, age] = ["clock_ms", "started_ms", "uptime_seconds"].map(|key| daemon[key].as_i64());
    let step = clock? - started? - 1000 * age?;
    (step.abs() > CLOCK_STEP).then(|| {
        let way = if step > 0 { "ahead" } else { "back" };
        format!(
            "the clock was set {} s {way} since the daemon began, or the machine slept: times of events and logs jump",
            step.abs() / 1000
        )
    })
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
            "daemon": {"crash_protection": {"asked": true, "on": true}, "history": {"policy_refusals": 0},
                "clock_ms": 1_000_900, "started_ms": 900_100, "uptime_seconds": 100},
            "users": [{"uid": 7, "rings": {"used": 2, "limit": 3}}],
            "sessions": [{"pid": 70, "program": "fw", "port": "eth0"}],
            "interfaces": [{"interface": "eth0", "action": "bypass", "partner": "eth1", "bypass": {"cause": null}}],
            "ports": [{"name": "eth0", "kind": "nic", "mem_id": 3, "manner": "native, copy", "rings": [
                {"dir": "rx", "id": 0, "slots": 64, "queued": 5, "crossed": 10, "dropped": 3}]}],
        });
        let mut now = well.clone();
        change(&mut now);
        let state_of = |pid| Some(if pid == 71 { 'T' } else { 'S' });
        let interface_of = |name: &str| match name {
            "eth0" => Some(Interface { mtu: 1500, has_carrier: true, hides_frames: false }),
            "eth1" => Some(Interface { mtu: 1400, has_carrier: false, hides_frames: true }),
            _ => None,
        };
        let processes = vec![(1, "unetmapd".into(), 'S')];
        let (state_of, interface_of) = (&state_of, &interface_of);
        causes(&Seen { daemons: Ok(vec![[well, now]]), processes, events, now_ms: 0, state_of, interface_of })
    }

    #[test]
    fn each_fault_has_its_sentence_and_none_has_none() {
        assert_eq!(found(|_| {}, vec![]), [] as [&str; 0]);
        let ring = |now: &mut Value| now["ports"][0]["rings"][0].take();
        type Case = (fn(&mut Value), &'static str);
        let cases: [Case; 12] = [
            (
                |now| now["daemon"]["clock_ms"] = json!(4_600_900),
                "the clock was set 3600 s ahead since the daemon began",
            ),
            (|now| now["daemon"]["clock_ms"] = json!(900_000), "the clock was set 100 s back since the daemon began"),
            (
                |now| now["interfaces"][0]["bypass"]["cause"] = json!("no-program"),
                "forwards the frames of eth0 to eth1: no program has it open",
            ),
            (
                |now| now["interfaces"][0]["bypass"]["cause"] = json!("stalled"),
                "the program that has it open takes no frames",
            ),
            (|now| now["ports"][0]["other_queues"] = json!("it has 1 queue now"), "eth0: it has 1 queue now"),
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
        // Another interface of the same region.
        let other = |now: &mut Value| {
            let port = json!({"name": "eth1", "kind": "nic", "mem_id": 3, "rings": []});
            now["ports"].as_array_mut().expect("a list").push(port);
        };
        let found_there = found(other, vec![]);
        for sentence in ["eth0 has an MTU of 1500, and eth1 one of 1400", "eth1 has no carrier", "switched on at eth1"]
        {
            assert!(found_there.iter().any(|text| text.contains(sentence)), "{sentence}: {found_there:?}");
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
        let of = |daemons, processes| {
            let (state_of, interface_of) = (&|_| None, &|_: &str| None);
            causes(&Seen { daemons, processes, events: vec![], now_ms: 0, state_of, interface_of })
        };
        let process = |pid, name: &str, state| (pid, name.to_owned(), state);
        assert!(of(Ok(vec![]), vec![])[0].starts_with("no daemon runs"));
        let stopped = of(
            Err("no answer within 5 s".into()),
            vec![process(8, "unetmapd", 'S'), process(9, "unetmapd-broker", 'T')],
        );
        assert_eq!(stopped.len(), 2, "{stopped:?}");
        assert!(
            stopped[0].contains("process 9 of the daemon (unetmapd-broker) is stopped (kill -CONT 9)"),
            "{stopped:?}"
        );
        assert!(stopped[1].ends_with("does not answer: no answer within 5 s"), "{stopped:?}");
    }

    #[test]
    fn the_state_of_this_process_is_read() {
        // That of its first thread, which waits for the tests.
        assert!(matches!(process::state(process::pid()), Some('R' | 'S')));
        assert_eq!(process::state(0), None);
    }
}
