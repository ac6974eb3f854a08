// SPDX-License-Identifier: BSD-2-Clause
//! `unetmap fw`: shows and changes the rules of a firewall that runs.

use std::io::{Read as _, Write as _};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::time::Duration;

use clap::Args;
use tool_common::fw_socket;

/// Show or change the rules of a running unetmap-fw(1).
///
/// COMMAND is one of ipfw's: add RULE, delete NUMBER, list, show, zero, flush, set, table, pipe, queue, sched, nat; or
/// load FILE, which replaces all of them by those of a file; or graph. A change takes effect between two batches and
/// drops no packet. One with an error changes nothing.
#[derive(Debug, Args)]
pub(crate) struct FwArgs {
    /// Path of the firewall's socket [default: unetmap-fw.sock beside the daemon's socket]
    #[arg(long, value_name = "PATH")]
    control: Option<PathBuf>,

    /// Print the rules and all counters as a JSON object afterwards
    #[arg(long)]
    json: bool,

    /// The command and its words
    #[arg(required = true, trailing_var_arg = true, allow_hyphen_values = true, value_name = "COMMAND")]
    words: Vec<String>,
}

/// Most bytes of a firewall's events.
const MAX_EVENTS: u64 = 4 << 20;
/// Longest wait for them.
const EVENTS_TIMEOUT: Duration = Duration::from_secs(1);

/// Returns the packets that this user's firewall has logged after a number, as the daemon returns its events; `None` if
/// none runs, or it does not answer.
pub(crate) fn events(after: u64) -> Option<String> {
    let mut stream = UnixStream::connect(fw_socket().ok()?).ok()?;
    stream.set_read_timeout(Some(EVENTS_TIMEOUT)).ok()?;
    stream.set_write_timeout(Some(EVENTS_TIMEOUT)).ok()?;
    stream.write_all(format!("events\n{after}").as_bytes()).ok()?;
    stream.shutdown(std::net::Shutdown::Write).ok()?;
    let mut reply = String::new();
    stream.take(MAX_EVENTS).read_to_string(&mut reply).ok()?;
    reply.strip_prefix("ok\n").map(str::to_owned)
}

/// Performs `unetmap fw`; returns what it prints.
pub(crate) fn run(args: &FwArgs) -> Result<String, String> {
    let (format, script) = match args.words.as_slice() {
        [load, path] if load == "load" => {
            let script = std::fs::read(path).map_err(|e| format!("fw: {path}: {e}"))?;
            ("load", script)
        }
        [load, ..] if load == "load" => return Err("fw: give one file: load FILE".into()),
        words => (if args.json { "json" } else { "text" }, words.join(" ").into_bytes()),
    };
    let path = args.control.clone().map_or_else(fw_socket, Ok)?;
    let failed = |e: std::io::Error| match e.kind() {
        std::io::ErrorKind::NotFound | std::io::ErrorKind::ConnectionRefused => {
            format!("fw: no firewall listens at {}; start unetmap-fw, or give its socket (--control)", path.display())
        }
        _ => format!("fw: {}: {e}", path.display()),
    };
    let mut stream = UnixStream::connect(&path).map_err(failed)?;
    let mut reply = String::new();
    stream.write_all(&[format.as_bytes(), b"\n", &script].concat()).map_err(failed)?;
    stream.shutdown(std::net::Shutdown::Write).map_err(failed)?;
    stream.read_to_string(&mut reply).map_err(failed)?;
    match reply.split_once('\n') {
        Some(("ok", text)) => Ok(text.to_owned()),
        Some(("error", text)) => Err(format!("fw: {text}")),
        _ => Err("fw: the firewall ended before it answered".into()),
    }
}
