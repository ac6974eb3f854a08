// SPDX-License-Identifier: BSD-2-Clause
//! Ports of switches that a process in the background serves: `unetmap vm serve`, `unetmap memif serve`.
//!
//! The daemon lists them: each tells it what it serves (`unetmap_core::control::serves`), and the daemon knows its
//! user. Command lines are not asked, as anybody can write what he likes into his own.

use std::ffi::OsString;
use std::fs::{self, File};
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::process::{Pid, PidfdFlags, Signal, geteuid, pidfd_open, pidfd_send_signal};
use serde_json::Value;
use tool_common::flag_on_hangup;
use unetmap::abi::PortSpec;
use unetmap::abi::printable::Shown;
use unetmap_core::control::client::own_socket;
use unetmap_core::control::vale::{ValeAction, ValeRequest, send_request};
use unetmap_sys::event::{PollFd, PollFlags, wait_readable};
use unetmap_sys::log::{self, Log, LogFile};
use unetmap_sys::place::{Identity, Place};
use unetmap_sys::process;
use unetmap_sys::tuning::log::MAX_SERVER_LOG;

use crate::ls::{members, parse_reply};

/// Longest wait for a process that was started, or killed.
const START_LIMIT: Duration = Duration::from_secs(10);
/// Time that a process has to end after a signal, before it is killed: a peer may keep it from looking at the signal,
/// for instance by a file that blocks in place of an eventfd.
const END_LIMIT: Duration = Duration::from_secs(5);
const CHECK_INTERVAL: Duration = Duration::from_millis(5);
/// The permissions of a log: the folder's owner may look what is wrong.
const LOG_MODE: u32 = 0o644;
/// Most bytes of a log in which a process says how it has started.
const MAX_START: usize = 1 << 16;

/// How a port is served.
pub(crate) use unetmap_core::control::serves::Service as Kind;

/// The command and its option that serve a port: `unetmap COMMAND serve PORT OPTION SOCKET`.
fn words(kind: Kind) -> [&'static str; 2] {
    match kind {
        Kind::VhostUser => ["vm", "--socket"],
        Kind::VhostUserClient => ["vm", "--client"],
        Kind::Memif => ["memif", "--memif"],
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

/// A process that says that it serves a port, and its user, as the daemon knows them.
struct Server {
    pid: i32,
    uid: u32,
    kind: Kind,
    socket: String,
}

impl Server {
    /// Whether what it says counts as a setting: a process of root or of this user. Any other can say what it likes.
    fn is_believed(&self) -> bool {
        self.uid == 0 || self.uid == geteuid().as_raw()
    }
}

/// Returns the process that serves a switch port in the daemon's reply; one that is believed, if there is any.
fn served_by(port: &Value) -> Option<Server> {
    let servers = members(&port["served"]).filter_map(|server| {
        let kind = Kind::ALL.into_iter().find(|kind| server["service"] == kind.name())?;
        let number = |key: &str| u32::try_from(server[key].as_u64()?).ok();
        let (pid, uid) = (i32::try_from(number("pid")?).ok()?, number("uid")?);
        Some(Server { pid, uid, kind, socket: server["socket"].as_str()?.into() })
    });
    servers.max_by_key(Server::is_believed)
}

/// Returns how a switch port in the daemon's reply is served, in the words that set it: `vhost-user /run/vm1.sock`.
/// What a process of another user says is marked as such.
pub(crate) fn setting_of(port: &Value) -> Option<String> {
    let server = served_by(port)?;
    let setting = format!("{} {}", server.kind.name(), Shown(&server.socket));
    Some(if server.is_believed() { setting } else { format!("user {} says: {setting}", server.uid) })
}

/// Returns the socket of a switch port in the daemon's reply, if a process that is believed serves it in this way.
pub(crate) fn socket_of(port: &Value, kind: Kind) -> Option<String> {
    served_by(port).filter(|server| server.kind == kind && server.is_believed()).map(|server| server.socket)
}

/// Returns whether this port exists, as far as the caller may know, and the process that serves it.
fn server_of(port: &str) -> Result<(bool, Option<Server>), String> {
    let switch = port.split(':').next().unwrap_or(port).to_owned();
    let request = ValeRequest { name: switch, action: ValeAction::Show };
    // A switch that does not exist has no ports.
    let Ok(Some(reply)) = send_request(&request) else { return Ok((false, None)) };
    let all = parse_reply("vale", &reply)?;
    let found = members(&all["port"]).find(|other| other["name"] == port);
    Ok((found.is_some(), found.and_then(served_by)))
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
        (None, None) => Ok(format!("{port}: no process serves it\n")),
        (None, Some(wanted)) => start(port, kind, wanted),
        (Some(server), _) if !server.is_believed() => Err(format!(
            "{port}: process {} of user {} has it, and says that it serves {}; only that user ends it",
            server.pid,
            server.uid,
            Shown(&server.socket)
        )),
        (Some(server), None) if server.kind == kind => {
            end(port, &server)?;
            Ok(format!("{port}: process {} has ended\n", server.pid))
        }
        (Some(Server { pid, kind: has, socket, .. }), Some(wanted)) if socket == wanted && has == kind => {
            Ok(format!("{port}: process {pid} serves {socket} already\n"))
        }
        (Some(Server { pid, kind, socket, .. }), _) => {
            Err(format!("{port}: process {pid} serves {socket}; end it first with --{} off", kind.name()))
        }
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

/// The log of a process that serves a port, on standard error or in a file, and SIGHUP has it opened again.
pub(crate) fn server_log(command: &str, path: Option<&Path>) -> Result<Log, String> {
    let open = |path: &Path| -> io::Result<Option<LogFile>> {
        // The process that has started this one may have opened it, and reads it.
        if let Some(file) = LogFile::of_stderr(path, MAX_SERVER_LOG) {
            return Ok(Some(file));
        }
        log::set_stderr(log::begin(path, MAX_SERVER_LOG, LOG_MODE)?)?;
        Ok(LogFile::of_stderr(path, MAX_SERVER_LOG))
    };
    let file = path.map(|path| open(path).map_err(|e| format!("--log {}: {e}", path.display()))).transpose()?.flatten();
    let again = if file.is_some() { flag_on_hangup()? } else { Arc::default() };
    let log = Log::new(&format!("unetmap {command}: "), |line| Shown(line).to_string(), file, again);
    // A peer that takes over the process must not come by the daemon's socket.
    let folder = |path: &Path| path.parent().and_then(|folder| fs::canonicalize(folder).ok());
    let is_beside_daemon = path.is_some_and(|path| own_socket().is_ok_and(|daemon| folder(&daemon) == folder(path)));
    Ok(if is_beside_daemon { log.never_opened_again() } else { log })
}

/// Returns the lines that the process serving `port` has written since `from`, and then the lines of one that serves
/// another port with the same socket; of the first [`MAX_START`] bytes.
fn own_and_other_lines(log: &File, from: u64, (command, port): (&str, &str)) -> [Vec<String>; 2] {
    let mut bytes = vec![0; MAX_START];
    let length = log.read_at(&mut bytes, from).unwrap_or(0);
    let text = String::from_utf8_lossy(&bytes[..length]).into_owned();
    let of_process = format!("unetmap {command}: ");
    let is_own = |line: &&str| line.strip_prefix(&of_process).is_none_or(|rest| rest.starts_with(&format!("{port}: ")));
    let (own, others): (Vec<_>, Vec<_>) = text.lines().partition(is_own);
    [own, others].map(|lines| lines.into_iter().map(str::to_owned).collect())
}

fn start(port: &str, kind: Kind, socket: &str) -> Result<String, String> {
    let failed = |what: &str, e: io::Error| format!("{port}: {what}: {e}");
    let program = std::env::current_exe().map_err(|e| failed("the path of this program", e))?;
    let log_path = log_path(kind, socket)?;
    // Read by the same descriptor: the folder may be another user's.
    let no_log = |e| failed(&format!("its log {}", log_path.display()), e);
    let log = log::begin(&log_path, MAX_SERVER_LOG, LOG_MODE).map_err(no_log)?;
    let (length, identity) = (log.metadata().map_err(no_log)?.len(), Identity::of(&log).map_err(no_log)?);
    let [command, option] = words(kind);
    let mut args = [command, "serve", port, option, socket, "--log"].map(OsString::from).to_vec();
    args.push(log_path.clone().into());
    let null = File::open("/dev/null").map_err(|e| failed("/dev/null", e))?;
    let its = log.try_clone().map_err(no_log)?;
    let started = process::spawn_detached(&program, program.as_os_str(), &args, null.into(), its);
    let pid = started.map_err(|e| failed("cannot be served", e))?;
    let process = Process::new(pid as i32);
    let until = Instant::now() + START_LIMIT;
    loop {
        let is_running = process.as_ref().is_some_and(Process::is_running);
        let [lines, others] = own_and_other_lines(&log, length, (command, port));
        if lines.iter().any(|line| line.ends_with(": ready")) {
            return Ok(format!("{port}: process {pid} serves {socket}, its log is {}\n", log_path.display()));
        }
        if !is_running || Instant::now() >= until {
            if !is_running && length == 0 && others.is_empty() {
                let _ = Place::of(&log_path).and_then(|place| place.remove(identity));
            }
            let why = if lines.is_empty() { "it does not become ready".into() } else { lines.join("\n") };
            return Err(why.trim_start_matches("unetmap: ").trim_start_matches(&format!("{command}: ")).to_owned());
        }
        std::thread::sleep(CHECK_INTERVAL);
    }
}

/// Ends the process that serves a port.
fn end(port: &str, server: &Server) -> Result<(), String> {
    let pid = server.pid;
    let Some(process) = Process::new(pid) else { return Ok(()) };
    // Only now is it sure that the descriptor is that process's, and not of one that has its number since.
    if server_of(port)?.1.is_none_or(|now| (now.pid, now.uid) != (pid, server.uid)) {
        return Ok(());
    }
    for (signal, limit) in [(Signal::TERM, END_LIMIT), (Signal::KILL, START_LIMIT)] {
        match pidfd_send_signal(&process.0, signal) {
            Err(e) if process.is_running() => return Err(format!("process {pid}: {e}")),
            _ if process.ends_within(limit) => return Ok(()),
            _ => {}
        }
    }
    Err(format!("process {pid} does not end"))
}

/// A process, by a descriptor: its number may be another's after its end.
struct Process(OwnedFd);

impl Process {
    /// `None`: it has ended.
    fn new(pid: i32) -> Option<Process> {
        pidfd_open(Pid::from_raw(pid)?, PidfdFlags::empty()).ok().map(Process)
    }

    fn is_running(&self) -> bool {
        !self.ends_within(Duration::ZERO)
    }

    fn ends_within(&self, limit: Duration) -> bool {
        let mut end = [PollFd::new(&self.0, PollFlags::IN)];
        wait_readable(&mut end, Some(limit)).is_ok() && !end[0].revents().is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn what_processes_of_other_users_say_is_no_setting() {
        let own = geteuid().as_raw();
        let served = |uid: u32, socket: &str| json!({"pid": 7, "uid": uid, "service": "memif", "socket": socket});
        let port = json!({"served": [served(own + 1, "/forged\u{1b}")]});
        assert_eq!(socket_of(&port, Kind::Memif), None);
        assert_eq!(setting_of(&port).unwrap(), format!("user {} says: memif /forged\\u001b", own + 1));
        let port = json!({"served": [served(own + 1, "/forged"), served(own, "/own"), served(own + 1, "/forged")]});
        assert_eq!(socket_of(&port, Kind::Memif).as_deref(), Some("/own"));
        assert_eq!((socket_of(&port, Kind::VhostUser), setting_of(&port).as_deref()), (None, Some("memif /own")));
        assert_eq!(setting_of(&json!({"pids": [7]})), None);
    }
}
