// SPDX-License-Identifier: BSD-2-Clause
//! `unetmap stop`: ends this user's own daemon.

use std::io::{self, IsTerminal as _};
use std::time::Duration;

use clap::Args;
use serde_json::{Value, json};
use unetmap_core::control::stop::RunningDaemon;

use crate::ls::{cell, members, parse_reply};
use crate::nic::failure;

/// Time within which the daemon has closed everything. Drivers may take seconds for each interface.
const LIMIT: Duration = Duration::from_secs(60);

/// End this user's own daemon.
///
/// If ports are open, which the daemon's end closes, it lists them and asks; if standard input is no terminal, it
/// refuses. A daemon that a service manager has started is left to that. Persistent ports, attached
/// interfaces and settings of switches last: the next daemon goes on with them.
#[derive(Debug, Args)]
pub(crate) struct StopArgs {
    /// Do not ask: close all open ports
    #[arg(short, long)]
    force: bool,

    /// Remove what outlasts it, too: persistent ports, attached interfaces, and settings of switches
    #[arg(short, long)]
    all: bool,

    /// Print the result as JSON
    #[arg(long)]
    json: bool,
}

/// Has the daemon end, and waits until it has.
pub(crate) fn run(args: &StopArgs) -> Result<u8, String> {
    let failed = |e: unetmap::Error| format!("stop: {e}");
    let found = if args.all { RunningDaemon::connect_if_lasting() } else { RunningDaemon::connect() };
    let Some(daemon) = found.map_err(failed)? else {
        let nothing = if args.json { format!("{}\n", json!({"ends": false})) } else { "no daemon is running\n".into() };
        return crate::print("stop", &nothing);
    };
    let ask = |force| parse_reply("stop", &daemon.stop(force, args.all).map_err(failed)?);
    let mut reply = ask(args.force)?;
    if reply["ends"] != true {
        let open = list(&reply);
        if !io::stdin().is_terminal() {
            return Err(format!("stop: this would close {open} (end the programs first, or --force)"));
        }
        if !agrees(&open)? {
            return Err("stop: not stopped".into());
        }
        reply = ask(true)?;
    }
    let socket = daemon.socket().display().to_string();
    daemon.wait(LIMIT).map_err(failed)?;
    let kept = failure::kept_by_kernel();
    let text = match args.json {
        true => {
            reply["socket"] = socket.into();
            reply["kept_by_kernel"] = kept.into();
            format!("{reply}\n")
        }
        false => {
            let last = |of: &&Value| of["kind"] == "persistent" || of["kind"] == "attached";
            let (lasting, closed): (Vec<_>, Vec<_>) = members(&reply["ports"]).partition(last);
            let closed = if closed.is_empty() { "no ports".into() } else { names(closed) };
            let pid = cell(&reply["pid"]);
            let mut text = format!("the daemon at {socket} (process {pid}) has ended, and closed {closed}\n");
            if !lasting.is_empty() {
                let what = if args.all { "removed" } else { "left to the next daemon (--all removes them)" };
                text += &format!("{what}: {}\n", names(lasting));
            }
            if !kept.is_empty() {
                text += &format!("left to the kernel (unetmap nic IF failure open): {}\n", kept.join(", "));
            }
            text
        }
    };
    crate::print("stop", &text)
}

/// Asks on the terminal.
fn agrees(open: &str) -> Result<bool, String> {
    let mut answer = String::new();
    tool_common::note_part(&format!("This closes {open}. Stop the daemon? [y/N] "));
    io::stdin().read_line(&mut answer).map_err(|e| format!("stop: {e}"))?;
    Ok(matches!(answer.trim(), "y" | "Y" | "yes"))
}

/// The ports and sessions that close, in words.
fn list(reply: &Value) -> String {
    names(members(&reply["ports"]).collect())
}

fn names(ports: Vec<&Value>) -> String {
    let port = |of: &Value| {
        let name = cell(&of["port"]);
        match of["kind"].as_str().unwrap_or_default() {
            "open" => format!("{name} of {} ({})", cell(&of["program"]), cell(&of["pid"])),
            "attached" => format!("{name} (attached interface)"),
            "persistent" => format!("{name} (persistent port)"),
            "node" => format!("{name} (for programs of netmap)"),
            _ => name,
        }
    };
    ports.into_iter().map(port).collect::<Vec<_>>().join(", ")
}
