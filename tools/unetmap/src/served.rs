// SPDX-License-Identifier: BSD-2-Clause
//! Ports of switches that a process in the background serves: `unetmap vm serve`, `unetmap memif serve`.
//!
//! There is no list of such processes but the daemon's own of each port's programs: the command line of one of them
//! says what it serves.

use std::fs::{self, File};
use std::io;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use rustix::process::Signal;
use serde_json::Value;
use unetmap_core::control::vale::{ValeAction, ValeRequest, send_request};
use unetmap_sys::process;

use crate::ls::{members, parse_reply};

/// Longest wait for a process that was started, or killed.
const START_LIMIT: Duration = Duration::from_secs(10);
/// Time that a process has to end after a signal, before it is killed: a peer may keep it from looking at the signal,
/// for instance by a file that blocks in place of an eventfd.
const END_LIMIT: Duration = Duration::from_secs(5);
const CHECK_INTERVAL: Duration = Duration::from_millis(5);
/// The options with which ports are served, each of one command: `unetmap COMMAND serve PORT OPTION SOCKET`.
const OPTIONS: [(&str, Kind); 3] =
    [("--socket", Kind::VhostUser), ("--client", Kind::VhostUserClient), ("--memif", Kind::Memif)];

/// How a port is served.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    VhostUser,
    VhostUserClient,
    Memif,
}

impl Kind {
    /// The command, its option, and the option of `unetmap vale port` that starts and ends it.
    fn words(self) -> [&'static str; 3] {
        match self {
            Kind::VhostUser => ["vm", "--socket", "--vhost-user"],
            Kind::VhostUserClient => ["vm", "--client", "--vhost-user-client"],
            Kind::Memif => ["memif", "--memif", "--memif"],
        }
    }
}

/// A process that serves a port, and the socket as its command line has it.
struct Server {
    pid: i32,
    kind: Kind,
    socket: String,
}

/// Returns the one of these processes that serves their port.
fn served_by(pids: &Value) -> Option<Server> {
    members(pids).find_map(|pid| {
        let pid = i32::try_from(pid.as_u64()?).ok()?;
        let line = fs::read(format!("/proc/{pid}/cmdline")).ok()?;
        let words: Vec<_> = line.split(|byte| *byte == 0).map(String::from_utf8_lossy).collect();
        let at = words.windows(2).position(|pair| pair[1] == "serve" && ["vm", "memif"].contains(&&*pair[0]))?;
        let (option, socket) = (words.get(at + 3)?, words.get(at + 4)?);
        let (_, kind) = OPTIONS.into_iter().find(|(name, kind)| name == option && kind.words()[0] == words[at])?;
        Some(Server { pid, kind, socket: socket.to_string() })
    })
}

/// Returns the socket of a switch port in the daemon's reply, if it is served in this way.
pub(crate) fn socket_of(port: &Value, kind: Kind) -> Option<String> {
    served_by(&port["pids"]).filter(|server| server.kind == kind).map(|server| server.socket)
}

/// Returns the process that serves this port.
fn server_of(port: &str) -> Result<Option<Server>, String> {
    let switch = port.split(':').next().unwrap_or(port).to_owned();
    let request = ValeRequest { name: switch, action: ValeAction::Show };
    // A switch that does not exist has no ports.
    let Ok(Some(reply)) = send_request(&request) else { return Ok(None) };
    let all = parse_reply("vale", &reply)?;
    Ok(members(&all["port"]).find(|other| other["name"] == port).and_then(|port| served_by(&port["pids"])))
}

/// Serves a port in the background, at a socket in its normal form (`None`: no longer). Returns what was done, as a
/// line.
pub(crate) fn set(port: &str, kind: Kind, socket: Option<&str>) -> Result<String, String> {
    match (server_of(port)?, socket) {
        (Some(server), None) if server.kind == kind => {
            end(server.pid)?;
            Ok(format!("{port}: process {} has ended\n", server.pid))
        }
        (None, None) => Ok(format!("{port}: no process serves it\n")),
        (Some(Server { pid, kind: has, socket }), Some(wanted)) if socket == wanted && has == kind => {
            Ok(format!("{port}: process {pid} serves {socket} already\n"))
        }
        (Some(Server { pid, kind, socket }), _) => {
            let [.., option] = kind.words();
            Err(format!("{port}: process {pid} serves {socket}; end it first with {option} off"))
        }
        (None, Some(wanted)) => start(port, kind, wanted),
    }
}

/// The log of the process that serves a socket: beside it, or of an abstract name in the folder of temporary files.
fn log_path(socket: &str) -> PathBuf {
    match socket.strip_prefix('@') {
        Some(name) => std::env::temp_dir().join(format!("unetmap-{}.log", name.replace('/', "-"))),
        None => PathBuf::from(format!("{socket}.log")),
    }
}

fn start(port: &str, kind: Kind, socket: &str) -> Result<String, String> {
    let failed = |what: &str, e: io::Error| format!("{port}: {what}: {e}");
    let program = std::env::current_exe().map_err(|e| failed("the path of this program", e))?;
    let log_path = log_path(socket.split(',').next().unwrap_or(socket));
    let log = File::create(&log_path).map_err(|e| failed(&log_path.display().to_string(), e))?;
    let [command, option, _] = kind.words();
    let args = [command, "serve", port, option, socket].map(Into::into);
    let null = File::open("/dev/null").map_err(|e| failed("/dev/null", e))?;
    let pid = process::spawn_detached(&program, &args, null.into(), log).map_err(|e| failed("cannot be served", e))?;
    let until = Instant::now() + START_LIMIT;
    loop {
        let is_running = is_running(pid as i32);
        let text = fs::read_to_string(&log_path).unwrap_or_default();
        if text.lines().any(|line| line.ends_with(": ready")) {
            return Ok(format!("{port}: process {pid} serves {socket}, its log is {}\n", log_path.display()));
        }
        if !is_running || Instant::now() >= until {
            let why = text.lines().last().unwrap_or("it does not become ready");
            return Err(why.trim_start_matches("unetmap: ").trim_start_matches(&format!("{command}: ")).to_owned());
        }
        std::thread::sleep(CHECK_INTERVAL);
    }
}

fn end(pid: i32) -> Result<(), String> {
    let at = rustix::process::Pid::from_raw(pid).ok_or("no process")?;
    for (signal, limit) in [(Signal::TERM, END_LIMIT), (Signal::KILL, START_LIMIT)] {
        match rustix::process::kill_process(at, signal) {
            Err(e) if is_running(pid) => return Err(format!("process {pid}: {e}")),
            _ => {}
        }
        let until = Instant::now() + limit;
        while Instant::now() < until {
            if !is_running(pid) {
                return Ok(());
            }
            std::thread::sleep(CHECK_INTERVAL);
        }
    }
    Err(format!("process {pid} does not end"))
}

fn is_running(pid: i32) -> bool {
    // An orphan that has ended may stay for a moment, without a command line.
    fs::read(format!("/proc/{pid}/cmdline")).is_ok_and(|line| !line.is_empty())
}
