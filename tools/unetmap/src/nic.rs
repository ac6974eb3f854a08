//! `unetmap nic`: an interface's port, the filter before it, and how its sockets poll.
//!
//! The filter is compiled here, by libpcap, so that the daemon, which believes nobody, gets instructions to judge and not
//! a language to read.

use pcap::{Capture, Linktype};
use serde_json::Value;
use unetmap::nic::{Filter, MOST_EXPRESSION, MOST_INSNS, NicRequest, Wish, ask};
use unetmap_bench::align;
use unetmap_sys::link;
use unetmap_sys::xdp::ClassicInsn;

use crate::ls::{cell, header, members};

pub(crate) mod busy;
mod position;
pub(crate) mod queues;

/// Shows interface `interface`, or sets its filter: the words of an expression, or `off`.
pub(crate) fn run(interface: &str, filter: Option<&[String]>, json: bool) -> Result<u8, String> {
    let wish = match filter.map(|words| words.join(" ")).as_deref().map(str::trim) {
        None => Ok(Wish::Show),
        Some("off") => Ok(Wish::NoFilter),
        Some(expression) => compile(expression).map(Wish::Filter),
    };
    carry_out(interface, wish, json)
}

/// Asks the daemon, and shows what it says, or tells what was done.
fn carry_out(interface: &str, wish: Result<Wish, String>, json: bool) -> Result<u8, String> {
    let failed = |why: &dyn std::fmt::Display| format!("nic {interface}: {why}");
    let link = link::by_name(interface).map_err(|e| failed(&e))?;
    let Some(link) = link else { return Err(failed(&"no such interface (ip link shows them)")) };
    let wish = wish.map_err(|why| failed(&why))?;
    let request = NicRequest { interface: link.name.clone(), wish };
    let answer = ask(&request).map_err(|e| format!("nic: {e}"))?;
    let text = match answer {
        _ if request.wish != Wish::Show && !json => said(&link.name, &request.wish),
        Some(answer) if json => format!("{answer}\n"),
        Some(answer) => shown(&answer)? + &busy::napi(&link, &answer),
        None if json => "null\n".into(),
        None => format!("{}: not open, no filter: no daemon is running\n", link.name),
    };
    crate::print("nic", &text)
}

/// The filter that `expression` is, for frames of Ethernet.
pub(crate) fn compile(expression: &str) -> Result<Filter, String> {
    if expression.is_empty() {
        return Err("no filter; give an expression (pcap-filter(7)), or off".into());
    }
    if expression.len() > MOST_EXPRESSION {
        return Err(format!("the filter is longer than {MOST_EXPRESSION} bytes; shorten it"));
    }
    let program = instructions(expression).map_err(|why| {
        let (words, at) = position::explain(expression, &why, |part| instructions(part).map(drop));
        format!("the filter does not compile: {words}, {at} (pcap-filter(7))")
    })?;
    if program.len() > MOST_INSNS {
        let n = program.len();
        return Err(format!("the filter has {n} instructions, and {MOST_INSNS} are the most; give a simpler one"));
    }
    Ok(Filter { expression: expression.into(), program })
}

/// The mode of an instruction that loads from the frame (`BPF_ABS`), and the first offset of the kernel's extensions.
const FROM_FRAME: u16 = 0x20;
const EXTENSIONS: u32 = 0xffe0_0000;

/// What libpcap makes of an expression, or what it says.
fn instructions(expression: &str) -> Result<Vec<ClassicInsn>, String> {
    let words = |e: pcap::Error| match e {
        pcap::Error::PcapError(words) => words,
        other => other.to_string(),
    };
    let program = Capture::dead(Linktype::ETHERNET).and_then(|dead| dead.compile(expression, true)).map_err(words)?;
    let all: Option<Vec<ClassicInsn>> = program.get_instructions().iter().map(|i| insn(&i.to_string())).collect();
    let all = all.ok_or("libpcap's program is not of the form that is known here")?;
    // By such offsets a socket's filter is told the direction and the like.
    match all.iter().any(|i| i.code & 0x07 == 0 && i.code & 0xe0 == FROM_FRAME && i.k >= EXTENSIONS) {
        true => Err("it asks for what is not in the frame".into()),
        false => Ok(all),
    }
}

/// An instruction as the crate shows it: four numbers.
fn insn(text: &str) -> Option<ClassicInsn> {
    let mut numbers = text.split(' ').map(str::parse::<u32>);
    let mut next = || numbers.next()?.ok();
    let (code, jt, jf, k) = (next()?, next()?, next()?, next()?);
    Some(ClassicInsn { code: code.try_into().ok()?, jt: jt.try_into().ok()?, jf: jf.try_into().ok()?, k })
}

/// What was done.
fn said(name: &str, wish: &Wish) -> String {
    match wish {
        Wish::Filter(Filter { expression, program }) => format!(
            "{name}: frames of `{}` enter its port ({} instructions), the others stay with the kernel\n",
            cell(&Value::String(expression.clone())),
            program.len()
        ),
        Wish::BusyPoll { usec, budget } => {
            format!("{name}: ports opened from now on poll busily, {usec} us, {budget} packets a look\n")
        }
        Wish::NoBusyPoll => format!("{name}: ports opened from now on do not poll busily\n"),
        _ => format!("{name}: no filter, all frames of its queues that are bound enter its port\n"),
    }
}

/// The daemon's answer for people.
fn shown(json: &str) -> Result<String, String> {
    let all: Value = serde_json::from_str(json).map_err(|e| {
        format!("nic: the daemon's answer makes no sense ({e}); is it another version? --json shows it")
    })?;
    let (port, filter) = (&all["port"], &all["filter"]);
    let mut text = match port {
        Value::Null => format!(
            "{}: not open; queues: {} tx, {} rx; for you {}\n",
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
    text += &match filter {
        Value::Null => "filter: none\n".into(),
        filter => format!(
            "filter: {} ({} instructions, set by user {}, {})\n",
            cell(&filter["expression"]),
            cell(&filter["instructions"]),
            cell(&filter["uid"]),
            if filter["in_force"] == true { "in force" } else { "in force once a port is open" },
        ),
    };
    let queues_busy = members(&port["queues"]).filter(|queue| queue["busy_usec"].is_u64()).count();
    if let busy @ Value::Object(_) = &all["busy_poll"] {
        text += &format!(
            "busy polling: {} us, {} packets a look, set for ports opened from now on; queues that have it: {queues_busy}\n",
            cell(&busy["usec"]),
            cell(&busy["budget"])
        );
    } else if queues_busy > 0 {
        text += &format!("busy polling: off for ports opened from now on; queues that have it still: {queues_busy}\n");
    }
    for (title, rows, left) in [("Queues", queues(&port["queues"]), 0), ("Sessions", sessions(&port["sessions"]), 0)] {
        if rows.len() > 1 {
            text += &format!("\n{title}\n{}", align(&rows, left));
        }
    }
    Ok(text)
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
    let mut rows = header(titles);
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
    let mut rows = header(["session", "pid", "uid", "tx rings", "rx rings", "exclusive"]);
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
