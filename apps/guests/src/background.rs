// SPDX-License-Identifier: BSD-2-Clause
//! `unetmap vale port --vhost-user`, `--memif`: starts and ends a process in the background that serves a port.

use std::ffi::OsString;
use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::FileExt as _;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use clap::Args;
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};
use tool_common::host::event::{PollFd, PollFlags, wait_readable};
use tool_common::host::log;
use tool_common::host::log::MAX_SERVER_LOG;
use tool_common::host::place::{Identity, Place};
use tool_common::host::process;
use tool_common::served::{Kind, Server, server_of};
use unetmap::abi::printable::Shown;
use unetmap::daemon::own_socket;

use crate::LOG_MODE;
use crate::memif::Spec;
use crate::vm::SocketPath;

/// Longest wait for a process that was started, or killed.
const START_LIMIT: Duration = Duration::from_secs(10);
/// Time that a process has to end after a signal, before it is killed: a peer may keep it from looking at the signal,
/// for instance by a file that blocks in place of an eventfd.
const END_LIMIT: Duration = Duration::from_secs(5);
const CHECK_INTERVAL: Duration = Duration::from_millis(5);
/// Most bytes of a log in which a process says how it has started.
const MAX_START: usize = 1 << 16;

/// How a process is to serve a port.
#[derive(Debug, Args)]
pub struct ServiceArgs {
    /// Serve a virtual machine on the port: listen on a UNIX socket at this path for its hypervisor (vhost-user),
    /// in a process in the background (unetmap-vm(7)); off: no longer
    #[arg(long, value_name = "PATH[,queues=N]|off", value_parser = socket)]
    vhost_user: Option<Setting>,

    /// The same, for a hypervisor that listens at this path
    #[arg(long, value_name = "PATH[,queues=N]|off", value_parser = socket, conflicts_with = "vhost_user")]
    vhost_user_client: Option<Setting>,

    /// Serve an interface of DPDK, VPP or another program on the port by memif, in a process in the background
    /// (unetmap-memif(7)); off: no longer
    #[arg(long, value_name = "PATH[,OPTION]...|off", value_parser = memif,
        conflicts_with_all = ["vhost_user", "vhost_user_client"])]
    memif: Option<Setting>,
}

/// A socket with its options in their normal form; `None`: off.
#[derive(Clone, Debug)]
struct Setting(Option<String>);

impl ServiceArgs {
    /// Returns how the port is to be served, and at which socket (`None`: no longer), if an option says so.
    pub fn setting(&self) -> Option<(Kind, Option<String>)> {
        let all = [
            (Kind::VhostUser, &self.vhost_user),
            (Kind::VhostUserClient, &self.vhost_user_client),
            (Kind::Memif, &self.memif),
        ];
        all.into_iter().find_map(|(kind, setting)| Some((kind, setting.as_ref()?.0.clone())))
    }
}

fn socket(text: &str) -> Result<Setting, String> {
    if text == "off" { Ok(Setting(None)) } else { SocketPath::parse(text).map(|path| Setting(Some(path.to_string()))) }
}

fn memif(text: &str) -> Result<Setting, String> {
    if text == "off" { Ok(Setting(None)) } else { Spec::parse(text).map(|spec| Setting(Some(spec.to_string()))) }
}

/// The command and its option that serve a port: `unetmap COMMAND serve PORT OPTION SOCKET`.
fn words(kind: Kind) -> [&'static str; 2] {
    match kind {
        Kind::VhostUser => ["vm", "--socket"],
        Kind::VhostUserClient => ["vm", "--client"],
        Kind::Memif => ["memif", "--memif"],
    }
}

/// Serves a port in the background, at a socket in its normal form (`None`: no longer). Returns what was done, as a
/// line. This program must have the command `vm` or `memif`.
///
/// # Errors
/// A sentence: the port does not exist or is served otherwise, or the process does not start or end.
pub fn set(port: &str, kind: Kind, socket: Option<&str>) -> Result<String, String> {
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
