// SPDX-License-Identifier: BSD-2-Clause
//! `unetmap nic`: shows an interface's port; sets its filter, busy polling, way, what becomes of frames that no program
//! takes, RSS and steering rules.
//!
//! libpcap compiles the filter in this process. The daemon, which trusts no client, then only has to validate the
//! instructions instead of parsing expressions.

use pcap::{Capture, Linktype};
use serde_json::Value;
use tool_common::Failure;
use tool_common::table::align;
pub(crate) use unetmap_core::control::nic::NicAction as Action;
pub(crate) use unetmap_core::control::nic::Way;
use unetmap_core::control::nic::{Filter, MAX_EXPRESSION, MAX_INSNS, NicAction, NicRequest, send_request};
use unetmap_sys::link;
use unetmap_sys::xdp::ClassicInsn;

use crate::ls::{cell, header as titled, members, parse_reply};
use sample::Sample;

pub(crate) mod args;
pub(crate) mod busy;
pub(crate) mod failure;
mod position;
pub(crate) mod queues;
mod sample;

/// Returns the words of a filter: a sample, and an expression.
pub(crate) fn words(sample: Option<u32>, by_flow: bool, expression: &[String]) -> String {
    let unit = if by_flow { sample::Unit::Flows } else { sample::Unit::Frames };
    let sample = sample.map(|n| Sample { unit, n }.text());
    sample.into_iter().chain(expression.iter().cloned()).collect::<Vec<_>>().join(" ").trim().to_owned()
}

/// Shows an interface, or sets its filter: the words of a sample and an expression, or `off`.
pub(crate) fn run(interface: &str, filter: Option<&str>, json: bool) -> Result<String, Failure> {
    let action = match filter {
        None => Ok(NicAction::Show),
        Some("off") => Ok(NicAction::NoFilter),
        Some(expression) => compile(expression).map(NicAction::Filter),
    };
    send(interface, action, json)
}

/// Parses a way of packets.
pub(crate) fn way(word: &str) -> Result<Way, String> {
    Way::parse(word).ok_or_else(|| format!("give {}", Way::ALL.map(Way::as_str).join(", ")))
}

/// Parses the bytes of a virtio-net header.
pub(crate) fn header(text: &str) -> Result<u32, String> {
    text.parse().ok().filter(|bytes| [0, 10, 12].contains(bytes)).ok_or_else(|| "give 0, 10 or 12".into())
}

/// Sets the bytes of virtio-net header before each packet.
pub(crate) fn set_header(interface: &str, bytes: u32, json: bool) -> Result<String, Failure> {
    unetmap::switch::set_vnet_header(interface, bytes).map_err(|e| Failure::from(e).within("nic"))?;
    Ok(match bytes {
        _ if json => format!("{{\"interface\": {}, \"header\": {bytes}}}\n", Value::from(interface)),
        0 => format!("{interface}: packets have no virtio-net header\n"),
        _ => format!("{interface}: each packet begins with a virtio-net header of {bytes} bytes\n"),
    })
}

/// Sends a request to the daemon; returns the reply or the change as text.
pub(crate) fn send(interface: &str, action: Result<NicAction, String>, json: bool) -> Result<String, Failure> {
    let failed = |why: &dyn std::fmt::Display| format!("nic {interface}: {why}");
    let link = link::by_name(interface).map_err(|e| failed(&e))?;
    let Some(link) = link else { return Err(failed(&"no such interface (ip link shows them)").into()) };
    let action = action.map_err(|why| Failure::Usage(failed(&why)))?;
    let request = NicRequest { interface: link.name.clone(), action };
    let reply = send_request(&request).map_err(|e| format!("nic: {e}"))?;
    Ok(match reply {
        _ if request.action != NicAction::Show && !json => change_text(&link.name, &request.action),
        Some(reply) if json => format!("{reply}\n"),
        Some(reply) => state_text(&reply)? + &busy::napi(&link, &reply),
        None if json => "null\n".into(),
        None => failure::text_without_daemon(&link),
    })
}

/// Compiles an expression for Ethernet frames.
pub(crate) fn compile(expression: &str) -> Result<Filter, String> {
    if expression.is_empty() {
        return Err("no filter; give an expression (pcap-filter(7)), or off".into());
    }
    if expression.len() > MAX_EXPRESSION {
        return Err(format!("the filter is longer than {MAX_EXPRESSION} bytes; shorten it"));
    }
    let (sample, expression) = Sample::split(expression)?;
    let program = instructions(expression).map_err(|why| {
        let (reason, at) = position::explain(expression, &why, |part| instructions(part).map(drop));
        format!("the filter does not compile: {reason}, {at} (pcap-filter(7))")
    })?;
    let program = sample.map_or(program.clone(), |sample| sample.of(program));
    if program.len() > MAX_INSNS {
        let n = program.len();
        return Err(format!("the filter has {n} instructions, the limit is {MAX_INSNS}; give a simpler expression"));
    }
    let words = sample.map(Sample::text).into_iter().chain([expression.to_owned()]).filter(|part| !part.is_empty());
    Ok(Filter { expression: words.collect::<Vec<_>>().join(" "), program })
}

/// The mode of an instruction that loads from the frame (`BPF_ABS`), and the first offset of the kernel's extensions.
const FROM_FRAME: u16 = 0x20;
const EXTENSIONS: u32 = 0xffe0_0000;

/// Compiles an expression to instructions, or returns libpcap's message.
fn instructions(expression: &str) -> Result<Vec<ClassicInsn>, String> {
    let message = |e: pcap::Error| match e {
        pcap::Error::PcapError(message) => message,
        other => other.to_string(),
    };
    let program = Capture::dead(Linktype::ETHERNET).and_then(|dead| dead.compile(expression, true)).map_err(message)?;
    let all: Option<Vec<ClassicInsn>> = program.get_instructions().iter().map(|i| insn(&i.to_string())).collect();
    let all = all.ok_or("libpcap's instructions have an unknown format")?;
    // A socket filter reads the direction and other metadata at these offsets.
    match all.iter().any(|i| i.code & 0x07 == 0 && i.code & 0xe0 == FROM_FRAME && i.k >= EXTENSIONS) {
        true => Err("it uses data that is not in the frame".into()),
        false => Ok(all),
    }
}

/// Parses an instruction as the pcap crate formats it: four numbers.
fn insn(text: &str) -> Option<ClassicInsn> {
    let mut numbers = text.split(' ').map(str::parse::<u32>);
    let mut next = || numbers.next()?.ok();
    let (code, jt, jf, k) = (next()?, next()?, next()?, next()?);
    Some(ClassicInsn { code: code.try_into().ok()?, jt: jt.try_into().ok()?, jf: jf.try_into().ok()?, k })
}

/// Describes a change that was made.
fn change_text(name: &str, action: &NicAction) -> String {
    match action {
        NicAction::Filter(Filter { expression, program }) => format!(
            "{name}: frames of `{}` enter its port ({} instructions), the others stay with the kernel\n",
            cell(&Value::String(expression.clone())),
            program.len()
        ),
        NicAction::BusyPoll { usec, budget } => {
            format!("{name}: ports opened from now on use busy polling, {usec} us, {budget} packets per poll\n")
        }
        NicAction::OnFailure(to) => failure::change_text(name, to),
        NicAction::NoBusyPoll => format!("{name}: ports opened from now on do not use busy polling\n"),
        NicAction::Way(way) => {
            format!(
                "{name}: its way is `{}` from when it is opened again, after all programs have closed it\n",
                way.as_str()
            )
        }
        _ => format!("{name}: no filter, all frames of its bound queues enter its port\n"),
    }
}

/// Formats the daemon's reply.
fn state_text(json: &str) -> Result<String, String> {
    let all = parse_reply("nic", json)?;
    let (port, filter) = (&all["port"], &all["filter"]);
    let mut text = match port {
        Value::Null => format!(
            "{}: not open; queues: {} tx, {} rx; your access: {}\n",
            cell(&all["interface"]),
            cell(&all["tx_queues"]),
            cell(&all["rx_queues"]),
            cell(&all["access"])
        ),
        port => format!(
            "{}: open, {}: {}; region {}\n",
            cell(&all["interface"]),
            cell(&port["kind"]),
            cell(&port["manner"]),
            cell(&port["mem_id"])
        ),
    };
    if let Value::String(_) = &port["copied"] {
        text += &format!("copied: {}\n", cell(&port["copied"]));
    }
    text += &match filter {
        Value::Null => "filter: none\n".into(),
        filter => format!(
            "filter: {} ({} instructions, set by user {}, {})\n",
            cell(&filter["expression"]),
            cell(&filter["instructions"]),
            cell(&filter["uid"]),
            if filter["in_force"] == true { "active" } else { "active once a port is open" },
        ),
    };
    if let Some(way) = all["way"].as_str().filter(|way| *way != Way::Auto.as_str()) {
        text += &format!("way: {way}\n");
    }
    text += &failure::state_text(&all["failure"]);
    text += &frames_text(&all["frames"]);
    if let Some(bytes @ 1..) = all["header"].as_u64() {
        text += &format!("header: each packet begins with a virtio-net header of {bytes} bytes\n");
    }
    let queues_busy = members(&port["queues"]).filter(|queue| queue["busy_usec"].is_u64()).count();
    if let busy @ Value::Object(_) = &all["busy_poll"] {
        text += &format!(
            "busy polling: {} us, {} packets per poll, for ports opened from now on; queues that use it: {queues_busy}\n",
            cell(&busy["usec"]),
            cell(&busy["budget"])
        );
    } else if queues_busy > 0 {
        text += &format!("busy polling: off for ports opened from now on; queues that still use it: {queues_busy}\n");
    }
    for (title, rows, left) in [("Queues", queues(&port["queues"]), 0), ("Sessions", sessions(&port["sessions"]), 0)] {
        if rows.len() > 1 {
            text += &format!("\n{title}\n{}", align(&rows, left));
        }
    }
    Ok(text)
}

/// Formats the frames that the interface received; empty while no program is attached.
fn frames_text(frames: &Value) -> String {
    let Some(reasons) = frames["dropped"].as_object() else { return String::new() };
    let [received, to_programs, to_stack, refused, bypassed] =
        ["received", "to_programs", "to_stack", "refused", "bypassed"].map(|key| cell(&frames[key]));
    let reasons = reasons.iter().filter(|(_, frames)| frames.as_u64() > Some(0));
    let dropped: Vec<String> = reasons.map(|(reason, frames)| format!("{} {reason}", cell(frames))).collect();
    let dropped = if dropped.is_empty() { "0".into() } else { dropped.join(", ") };
    format!(
        "frames received: {received}; {to_programs} to programs, {to_stack} to the stack, {refused} refused by the filter, \
         {bypassed} bypassed; dropped: {dropped}\n"
    )
}

fn queues(queues: &Value) -> Vec<Vec<String>> {
    let titles = [
        "queue",
        "tx slots",
        "sessions",
        "sent",
        "refused",
        "rx slots",
        "sessions",
        "received",
        "bad slots",
        "dropped",
    ];
    let mut rows = titled(titles);
    for queue in members(queues) {
        let (tx, rx) = (&queue["tx"], &queue["rx"]);
        let cells = |ring: &Value, names: &[&str]| names.iter().map(|name| cell(&ring[*name])).collect::<Vec<_>>();
        rows.push(
            [
                vec![cell(&queue["id"])],
                cells(tx, &["slots", "sessions", "crossed", "bad_slots"]),
                cells(rx, &["slots", "sessions", "crossed", "bad_slots", "dropped"]),
            ]
            .concat(),
        );
    }
    rows
}

fn sessions(sessions: &Value) -> Vec<Vec<String>> {
    let mut rows = titled(["session", "pid", "uid", "tx rings", "rx rings", "exclusive"]);
    for s in members(sessions) {
        rows.push(vec![
            cell(&s["id"]),
            cell(&s["pid"]),
            cell(&s["uid"]),
            cell(&s["tx_rings"]),
            cell(&s["rx_rings"]),
            if s["exclusive"] == true { "yes" } else { "no" }.into(),
        ]);
    }
    rows
}

#[cfg(test)]
mod tests;
