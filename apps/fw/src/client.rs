// SPDX-License-Identifier: BSD-2-Clause
//! `unetmap fw`: shows and changes the rules of a firewall that runs.
#![forbid(unsafe_code)]

use std::io::{Read as _, Write as _};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::Args;
use tool_common::Failure;
use tool_common::source::{self, MAX_RULES};

/// Show or change the rules of a running unetmap-fw(1).
///
/// COMMAND is one of ipfw's: add RULE, delete NUMBER, list, show, zero, flush, set, table, pipe, queue, sched, nat; or
/// states, which lists them; graph; or load FILE, which replaces all rules, tables, pipes and NAT instances by those of
/// a file. A change takes effect between two batches and drops no packet. One with an error changes nothing.
#[derive(Debug, Args)]
pub struct FwArgs {
    /// Path of the firewall's socket [default: unetmap-fw.sock beside the daemon's socket]
    #[arg(long, value_name = "PATH")]
    control: Option<PathBuf>,

    /// Perform the commands of this file, or - for standard input, as one change: all of them, or with an error none
    #[arg(long, value_name = "FILE", conflicts_with_all = ["words", "counters", "sets", "json"])]
    file: Option<PathBuf>,

    /// Print the rules and all counters, or with `states` those, as a JSON object afterwards
    #[arg(long)]
    json: bool,

    /// With list: print counters, too, as show does
    #[arg(short = 'a')]
    counters: bool,

    /// With list and show: print the set of each rule, and rules of disabled sets, too
    #[arg(short = 'S')]
    sets: bool,

    /// Print nothing but lists and errors
    #[arg(short = 'q')]
    quiet: bool,

    /// Has no effect, as nothing is asked before a change; for scripts that were written for ipfw
    #[arg(short = 'f')]
    force: bool,

    /// The command and its words
    #[arg(
        required_unless_present = "file",
        trailing_var_arg = true,
        allow_hyphen_values = true,
        value_name = "COMMAND"
    )]
    words: Vec<String>,
}

/// Most bytes of a firewall's events.
const MAX_EVENTS: u64 = 4 << 20;
/// Longest wait for them.
const EVENTS_TIMEOUT: Duration = Duration::from_secs(1);

/// Returns the path of the socket at which a firewall of this user listens.
///
/// # Errors
/// The daemon's folder cannot be created, or belongs to another user.
pub fn socket() -> Result<PathBuf, String> {
    let daemon = unetmap::daemon::own_socket().map_err(|e| e.to_string())?;
    Ok(daemon.with_file_name("unetmap-fw.sock"))
}

/// Returns the packets that this user's firewall has logged after a number, as the daemon returns its events; `None` if
/// none runs, or it does not answer.
pub fn events(after: u64) -> Option<String> {
    let mut stream = UnixStream::connect(socket().ok()?).ok()?;
    stream.set_read_timeout(Some(EVENTS_TIMEOUT)).ok()?;
    stream.set_write_timeout(Some(EVENTS_TIMEOUT)).ok()?;
    stream.write_all(format!("events\n{after}").as_bytes()).ok()?;
    stream.shutdown(std::net::Shutdown::Write).ok()?;
    let mut reply = String::new();
    stream.take(MAX_EVENTS).read_to_string(&mut reply).ok()?;
    reply.strip_prefix("ok\n").map(str::to_owned)
}

/// Most bytes of any other answer.
const MAX_REPLY: u64 = 1 << 30;

/// A request to the firewall.
struct Request {
    format: &'static str,
    script: Vec<u8>,
    /// Whether the answer is not printed.
    is_quiet: bool,
}

impl Request {
    fn of(args: &FwArgs) -> Result<Request, Failure> {
        let read = |path: &Path| {
            let bytes = match path == Path::new("-") {
                true => source::read_all(std::io::stdin(), MAX_RULES),
                false => source::read(path, MAX_RULES),
            };
            bytes.map_err(|why| Failure::Work(format!("fw: {}: {why}", path.display())))
        };
        let of_file = |format, path: &Path| Ok(Request { format, script: read(path)?, is_quiet: args.quiet });
        if let Some(path) = &args.file {
            return of_file("text", path);
        }
        let (is_json, words) = match args.words.as_slice() {
            [words @ .., last] if last == "--json" && !words.is_empty() => (true, words),
            words => (args.json, words),
        };
        match words {
            [load, path] if load == "load" => return of_file("load", Path::new(path)),
            [load, ..] if load == "load" => return Err(Failure::Usage("fw: give one file: load FILE".into())),
            [states] if states == "states" => {
                let script = if is_json { "json" } else { "text" };
                return Ok(Request { format: "states", script: script.into(), is_quiet: false });
            }
            [states, ..] if states == "states" => return Err(Failure::Usage("fw: states has no more words".into())),
            // As ipfw has it.
            [path] if path.starts_with('/') => return of_file("text", Path::new(path)),
            _ => {}
        }
        let flags = [(args.counters, "-a "), (args.sets, "-S "), (args.quiet, "-q ")];
        let flags = flags.into_iter().filter_map(|(is_given, flag)| is_given.then_some(flag));
        let script = flags.collect::<String>() + &words.join(" ");
        Ok(Request { format: if is_json { "json" } else { "text" }, script: script.into(), is_quiet: false })
    }
}

/// Performs `unetmap fw`; returns what it prints.
///
/// # Errors
/// A sentence that begins with `fw:`.
pub fn run(args: &FwArgs) -> Result<String, Failure> {
    let Request { format, script, is_quiet } = Request::of(args)?;
    let path = args.control.clone().map_or_else(socket, Ok)?;
    let failed = |e: std::io::Error| match e.kind() {
        std::io::ErrorKind::NotFound | std::io::ErrorKind::ConnectionRefused => {
            format!("fw: no firewall listens at {}; start unetmap-fw, or give its socket (--control)", path.display())
        }
        _ => format!("fw: {}: {e}", path.display()),
    };
    let mut stream = UnixStream::connect(&path).map_err(failed)?;
    stream.write_all(&[format.as_bytes(), b"\n", &script].concat()).map_err(failed)?;
    stream.shutdown(std::net::Shutdown::Write).map_err(failed)?;
    // Another user's may have no end.
    let reply = source::read_all(stream, MAX_REPLY).and_then(source::text);
    let reply = reply.map_err(|why| format!("fw: {}: the answer: {why}", path.display()))?;
    match reply.split_once('\n') {
        Some(("ok", _)) if is_quiet => Ok(String::new()),
        Some(("ok", text)) => Ok(text.to_owned()),
        Some(("error", text)) => Err(Failure::Work(format!("fw: {text}"))),
        _ => Err(Failure::Work("fw: the firewall ended before it answered".into())),
    }
}
