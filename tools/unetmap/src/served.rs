// SPDX-License-Identifier: BSD-2-Clause
//! Ports of switches that a process in the background serves: `unetmap vm serve`, `unetmap memif serve`.
//!
//! There is no list of such processes but the daemon's own of each port's programs: the command line of one of them
//! says what it serves.

use std::fs::{self, File};
use std::io;
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rustix::fs::OFlags;
use rustix::io::Errno;
use rustix::process::Signal;
use serde_json::Value;
use unetmap::abi::PortSpec;
use unetmap_core::control::client::own_socket;
use unetmap_core::control::vale::{ValeAction, ValeRequest, send_request};
use unetmap_sys::process;

use crate::ls::{members, parse_reply};

/// Longest wait for a process that was started, or killed.
const START_LIMIT: Duration = Duration::from_secs(10);
/// Time that a process has to end after a signal, before it is killed: a peer may keep it from looking at the signal,
/// for instance by a file that blocks in place of an eventfd.
const END_LIMIT: Duration = Duration::from_secs(5);
const CHECK_INTERVAL: Duration = Duration::from_millis(5);
/// Most bytes of a log to which another process adds its lines.
const MAX_LOG: u64 = 1 << 20;
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

/// Most bytes of a UNIX socket's path (`struct sockaddr_un`, less the NUL).
pub(crate) const MAX_PATH: usize = 107;

/// Checks the name of a port that is served.
///
/// # Errors
/// A sentence that says how ports are named.
pub(crate) fn port_name(text: &str) -> Result<String, String> {
    PortSpec::parse(text).map(|_| text.into()).map_err(|e| e.to_string())
}

/// Checks the length of a socket's path.
pub(crate) fn check_path(path: &str) -> Result<(), String> {
    match path.len() {
        0..=MAX_PATH => Ok(()),
        bytes => Err(format!("a socket's path has at most {MAX_PATH} bytes, and this one {bytes}")),
    }
}

/// Why nobody can listen at a path, in a sentence.
pub(crate) fn listen_error(path: &str, e: &io::Error) -> String {
    match e.kind() {
        io::ErrorKind::AddrInUse => {
            format!("{path}: another process listens there, or it is no socket: choose another path, or remove it")
        }
        io::ErrorKind::NotFound => format!("{path}: there is no such folder: create it"),
        _ => format!("{path}: {e}"),
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

/// Returns how a switch port in the daemon's reply is served, in the words that set it: `vhost-user /run/vm1.sock`.
pub(crate) fn setting_of(port: &Value) -> Option<String> {
    served_by(&port["pids"]).map(|server| format!("{} {}", &server.kind.words()[2][2..], server.socket))
}

/// Returns the socket of a switch port in the daemon's reply, if it is served in this way.
pub(crate) fn socket_of(port: &Value, kind: Kind) -> Option<String> {
    served_by(&port["pids"]).filter(|server| server.kind == kind).map(|server| server.socket)
}

/// Returns whether this port exists, as far as the caller may know, and the process that serves it.
fn server_of(port: &str) -> Result<(bool, Option<Server>), String> {
    let switch = port.split(':').next().unwrap_or(port).to_owned();
    let request = ValeRequest { name: switch, action: ValeAction::Show };
    // A switch that does not exist has no ports.
    let Ok(Some(reply)) = send_request(&request) else { return Ok((false, None)) };
    let all = parse_reply("vale", &reply)?;
    let found = members(&all["port"]).find(|other| other["name"] == port);
    Ok((found.is_some(), found.and_then(|port| served_by(&port["pids"]))))
}

/// Serves a port in the background, at a socket in its normal form (`None`: no longer). Returns what was done, as a
/// line.
pub(crate) fn set(port: &str, kind: Kind, socket: Option<&str>) -> Result<String, String> {
    let (exists, server) = server_of(port)?;
    match (server, socket) {
        (None, None) if !exists => Err(format!(
            "{port}: there is no such port, or none that you may see: unetmap vale show lists yours, sudo those of the \
             system's daemon"
        )),
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

/// The log of the process that serves a socket, `PATH[,OPTION]...`: beside it, or of an abstract name beside the
/// daemon's. Both ends of one socket can have one.
fn log_path(kind: Kind, socket: &str) -> Result<PathBuf, String> {
    let (path, options) = socket.split_once(',').unwrap_or((socket, ""));
    let connects = kind == Kind::VhostUserClient || options.split(',').any(|option| option == "role=client");
    let end = if connects { ".client.log" } else { ".log" };
    Ok(match path.strip_prefix('@') {
        Some(name) => {
            let daemon = own_socket().map_err(|e| format!("the daemon's folder: {e}"))?;
            daemon.with_file_name(format!("memif-{}{end}", name.replace('/', "-")))
        }
        None => PathBuf::from(format!("{path}{end}")),
    })
}

/// Opens a log to add lines: a file of this user's, in which nobody else has a name. One that is large begins anew.
/// Returns its length, too.
fn open_log(path: &Path) -> io::Result<(File, u64)> {
    let mut options = File::options();
    options.append(true).create(true).custom_flags((OFlags::NOFOLLOW | OFlags::NONBLOCK).bits() as i32);
    let log = options.open(path).map_err(|e| match Errno::from_io_error(&e) {
        Some(Errno::LOOP) => io::Error::other("it is a symbolic link: remove it, or choose another folder"),
        _ => e,
    })?;
    let meta = log.metadata()?;
    if !meta.is_file() || meta.nlink() != 1 || meta.uid() != rustix::process::geteuid().as_raw() {
        return Err(io::Error::other("it is no log of this user: remove it, or choose another folder"));
    }
    if meta.len() <= MAX_LOG {
        return Ok((log, meta.len()));
    }
    log.set_len(0)?;
    Ok((log, 0))
}

/// What the process that serves `port` has written since `from`, and then the lines of one that serves another port
/// with the same socket.
fn own_and_other_lines(log: &Path, from: u64, (command, port): (&str, &str)) -> [Vec<String>; 2] {
    let all = fs::read(log).unwrap_or_default();
    let text = String::from_utf8_lossy(all.get(from as usize..).unwrap_or_default()).into_owned();
    let of_process = format!("unetmap {command}: ");
    let is_own = |line: &&str| line.strip_prefix(&of_process).is_none_or(|rest| rest.starts_with(&format!("{port}: ")));
    let (own, others): (Vec<_>, Vec<_>) = text.lines().partition(is_own);
    [own, others].map(|lines| lines.into_iter().map(str::to_owned).collect())
}

fn start(port: &str, kind: Kind, socket: &str) -> Result<String, String> {
    let failed = |what: &str, e: io::Error| format!("{port}: {what}: {e}");
    let program = std::env::current_exe().map_err(|e| failed("the path of this program", e))?;
    let log_path = log_path(kind, socket)?;
    let (log, length) = open_log(&log_path).map_err(|e| failed(&format!("its log {}", log_path.display()), e))?;
    let [command, option, _] = kind.words();
    let args = [command, "serve", port, option, socket].map(Into::into);
    let null = File::open("/dev/null").map_err(|e| failed("/dev/null", e))?;
    let pid = process::spawn_detached(&program, &args, null.into(), log).map_err(|e| failed("cannot be served", e))?;
    let until = Instant::now() + START_LIMIT;
    loop {
        let is_running = is_running(pid as i32);
        let [lines, others] = own_and_other_lines(&log_path, length, (command, port));
        if lines.iter().any(|line| line.ends_with(": ready")) {
            return Ok(format!("{port}: process {pid} serves {socket}, its log is {}\n", log_path.display()));
        }
        if !is_running || Instant::now() >= until {
            if !is_running && length == 0 && others.is_empty() {
                let _ = fs::remove_file(&log_path);
            }
            let why = if lines.is_empty() { "it does not become ready".into() } else { lines.join("\n") };
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
