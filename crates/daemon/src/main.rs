// SPDX-License-Identifier: BSD-2-Clause
//! unetmapd: creates regions and ports, passes them to clients, and frees what clients held when they exit. The packets
//! of a pipe do not pass through it.
#![forbid(unsafe_code)]
#![cfg_attr(fuzzing, allow(dead_code, reason = "compiled as a library, for fuzz targets"))]

mod admission;
mod broker;
mod budget;
mod caller;
mod channel;
mod closer;
mod confinement;
mod daemon;
mod descriptors;
mod endpoint;
mod events;
mod fault;
#[cfg(fuzzing)]
pub mod fuzz;
mod handover;
mod history;
mod in_flight;
mod knobs;
mod ledger;
mod limits;
mod log;
mod memory_files;
mod needs;
mod netmap_requests;
mod node;
mod offsets;
mod owner;
mod pinned;
mod policy;
mod ports;
mod privileged;
mod refusal;
mod region;
mod region_freer;
mod region_preparer;
mod registry;
mod reload;
mod requests;
mod server;
mod service;
mod shape;
mod shared_files;
mod subordinates;
#[cfg(test)]
mod tests;
mod threads;
mod tuning;
mod turns;
mod user_arena;
mod users;
mod work_times;
mod written;

use std::cell::Cell;
use std::ffi::{CStr, OsString};
use std::fs;
use std::io::{self, Write as _};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use clap::builder::{PossibleValuesParser, TypedValueParser};
use clap::error::ErrorKind;
use clap::{CommandFactory as _, Parser};
use tracing::Level;
use unetmap_abi::printable;
use unetmap_quantity::{bytes, count, seconds, within};
use unetmap_sys::process::{self, Signal};
use unetmap_sys::thread::{Precedence, set_nice, set_precedence};
use unetmap_sys::{event, memory_helper, socket};

use handover::store::{self, Store};
use handover::{End, Predecessor, Taken};
use knobs::{Admode, KnobSources, Knobs};
use limits::Limits;
use policy::PolicyFile;
use ports::{Admission, Daemon};
use server::Server;
use service::Service;

/// The first number of private regions of a user's own daemon. The system's daemon uses lower ones, so that one number
/// never names two regions.
const FIRST_PRIVATE_ID: u16 = 0x4000;

/// The exit status of a daemon that cannot have what it needs: starting it again does not help. `EX_CONFIG`.
const LACKS: u8 = 78;

/// The least severe messages that are logged.
fn level() -> impl TypedValueParser<Value = Level> {
    PossibleValuesParser::new(["error", "warn", "info", "debug", "trace"]).try_map(|name| name.parse::<Level>())
}

/// The unetmap daemon. The first program that opens a port starts it; it need not be started by hand.
#[derive(Parser, Debug)]
#[command(name = "unetmapd", version = unetmap_core::version(), about)]
struct Args {
    /// Stay in the foreground and log to standard error. Otherwise a background daemon is started, which logs to a file
    /// beside its socket.
    #[arg(long)]
    foreground: bool,
    /// Path of the socket to listen at (default: the environment variable UNETMAP_SOCKET, or a path of the user's own).
    #[arg(long, value_name = "PATH", overrides_with = "socket")]
    socket: Option<PathBuf>,
    /// The file descriptor of a listening socket that the starting program bound to --socket.
    #[arg(long, value_name = "FD", hide = true)]
    listen_fd: Option<u32>,
    /// Take over from the daemon that listens at the socket, without closing a port, and exit with an error if that is
    /// impossible: then it goes on as before.
    #[arg(long)]
    replace: bool,
    /// With --replace: only if the daemon runs another file than this program, as after an installation.
    #[arg(long, requires = "replace", conflicts_with = "foreground")]
    if_changed: bool,
    /// After a crash, start again and go on with the open ports, which another process keeps. Programs notice nothing,
    /// except those at the node, whose ports end. A unit of systemd needs NotifyAccess=all.
    #[arg(long)]
    keep_ports: bool,
    /// Run as the process that keeps the ports of the daemon at the other end of this descriptor.
    #[arg(long, value_name = "FD", hide = true)]
    store: Option<u32>,
    /// Go on with what the process at the other end of this descriptor has kept.
    #[arg(long, value_name = "FD", hide = true)]
    restore: Option<u32>,
    /// The descriptor on which a successor in the background reports how that went.
    #[arg(long, value_name = "FD", hide = true)]
    report_fd: Option<u32>,
    /// Run as the process that restores offloads of interfaces after the daemon at the other end of this descriptor.
    #[arg(long, value_name = "FD", hide = true)]
    restore_offloads: Option<u32>,
    /// Run as the process that does what needs root's privileges, for the daemon at the other end of this descriptor.
    #[arg(long, value_name = "FD", hide = true)]
    privileged: Option<u32>,
    /// Run as a process that accesses the memory of the node's programs for the daemon at the other end of this
    /// descriptor.
    #[arg(long, value_name = "FD", hide = true)]
    access_memory: Option<u32>,
    /// Exit after so many seconds without a connection; 0: never.
    #[arg(long, value_name = "SECONDS", default_value = "30", value_parser = seconds, allow_hyphen_values = true)]
    idle_exit: Duration,
    /// File with the users who may open interfaces (unetmap-policy(5)). Only root's daemon reads it.
    #[arg(long, value_name = "PATH", env = "UNETMAP_POLICY", overrides_with = "policy")]
    policy: Option<PathBuf>,
    /// Least severe messages to log.
    #[arg(long, value_name = "LEVEL", env = "UNETMAPD_LOG", default_value = "info", value_parser = level())]
    log: Level,
    /// Configuration file with initial values of knobs (KNOBS in unetmapd(8)). Root's daemon reads
    /// /etc/unetmap/unetmapd.toml by default.
    #[arg(long, value_name = "PATH", env = "UNETMAPD_CONFIG", overrides_with = "config")]
    config: Option<PathBuf>,
    /// Where XDP programs are attached: in the driver if it supports that, else before the stack (best, the default),
    /// only in the driver (native), or only before the stack (generic).
    #[arg(long, value_name = "MODE")]
    admode: Option<Admode>,
    /// Sessions of a region (the knobs if_num and priv_if_num).
    #[arg(long, value_name = "N", value_parser = within::<u64, u32>(count, 0..=u32::MAX.into()), allow_hyphen_values = true)]
    if_num: Option<u32>,
    /// Bytes of a session's description: 8 for each ring, and 56.
    #[arg(long, value_name = "BYTES", value_parser = within::<u64, u32>(bytes, 0..=u32::MAX.into()), allow_hyphen_values = true)]
    if_size: Option<u32>,
    /// Rings of a region. A pipe needs 4 for each ring pair.
    #[arg(long, value_name = "N", value_parser = within::<u64, u32>(count, 0..=u32::MAX.into()), allow_hyphen_values = true)]
    ring_num: Option<u32>,
    /// Bytes of a ring: 16 for each slot, and 256.
    #[arg(long, value_name = "BYTES", value_parser = within::<u64, u32>(bytes, 0..=u32::MAX.into()), allow_hyphen_values = true)]
    ring_size: Option<u32>,
    /// Buffers of a region.
    #[arg(long, value_name = "N", value_parser = within::<u64, u32>(count, 0..=u32::MAX.into()), allow_hyphen_values = true)]
    buf_num: Option<u32>,
    /// Bytes of a buffer.
    #[arg(long, value_name = "BYTES", value_parser = within::<u64, u32>(bytes, 0..=u32::MAX.into()), allow_hyphen_values = true)]
    buf_size: Option<u32>,
}

impl Args {
    /// The process that this one is to be for a daemon, if it is to be none itself.
    fn helper(&self) -> Option<Helper> {
        let helpers: [(_, _, _, Run); 4] = [
            ("--privileged", self.privileged, c"unetmapd-broker", |daemon| broker::run_broker(&daemon)),
            ("--store", self.store, c"unetmapd-store", |daemon| {
                confinement::confine_store();
                store::run(daemon)
            }),
            ("--restore-offloads", self.restore_offloads, c"unetmapd-undo", |broker| {
                // The broker's is another.
                let _ = set_nice(0);
                broker::run_undo(broker)
            }),
            ("--access-memory", self.access_memory, c"unetmapd-memory", |daemon| {
                confinement::confine_memory_helper();
                memory_helper::serve(&daemon)
            }),
        ];
        helpers.into_iter().find_map(|(option, fd, name, run)| Some(Helper { option, fd: fd?, name, run }))
    }
}

type Run = fn(OwnedFd) -> io::Result<()>;

/// A process beside the daemon.
struct Helper {
    option: &'static str,
    /// The connection to the daemon.
    fd: u32,
    /// At most 15 bytes.
    name: &'static CStr,
    run: Run,
}

/// The section OPTIONS of `man/unetmapd.8` is generated from the flags above. After a change of these, run this test
/// with `UPDATE_MAN=1` in the environment.
#[test]
fn the_man_page_is_up_to_date() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../man/unetmapd.8");
    tool_common::testing::check_options(&[Args::command()], path);
}

fn main() -> ExitCode {
    let args = Args::parse();
    let helper = args.helper();
    process::set_program_name(helper.as_ref().map_or(c"unetmapd", |helper| helper.name));
    log::start(args.log);
    process::raise_fd_limit();
    // A daemon that begins, or replaces another, may refuse to.
    if helper.is_none()
        && args.restore.is_none()
        && let Err(why) = Limits::read(args.keep_ports).check()
    {
        let _ = writeln!(io::stderr(), "unetmapd: {why}");
        return ExitCode::from(LACKS);
    }
    let served = match helper {
        Some(Helper { option, fd, run, .. }) => {
            args.socket.iter().for_each(|socket| log::watch_file(socket, true));
            process::inherit_fd(fd).and_then(run).map_err(|e| format!("{option} {fd}: {e}"))
        }
        None => run(&args),
    };
    log::finish();
    match served {
        Ok(()) => ExitCode::SUCCESS,
        Err(why) => {
            // If standard error is closed, the exit status remains.
            let _ = writeln!(io::stderr(), "unetmapd: {}", printable::text(&unetmap_core::without_codes(&why)));
            ExitCode::FAILURE
        }
    }
}

fn run(args: &Args) -> Result<(), String> {
    if let Some(fd) = args.listen_fd.or(args.report_fd) {
        leave_namespaces(fd);
    }
    let sources = knob_sources(args)?;
    if let Err(refusal) = Knobs::default().with_options(&sources.sizes, sources.admode) {
        // The command line is wrong, whatever the file says.
        Args::command().error(ErrorKind::ValueValidation, refusal.why).exit();
    }
    let knobs = sources.load()?;
    let socket = match &args.socket {
        // The daemon's working directory is another one.
        Some(path) => absolute("--socket", path)?,
        None => unetmap_core::control::client::own_socket().map_err(|e| e.to_string())?,
    };
    // An error in the policy is reported now, on standard error, rather than when the first program opens a port.
    if let Some(policy) = args.policy.as_deref().filter(|_| process::uid() == 0) {
        let policy = absolute("--policy", policy)?;
        fs::metadata(&policy).map_err(|e| format!("--policy {}: {e}", policy.display()))?;
        PolicyFile::new(&policy)?.current()?;
    }
    let service = Service::new(args.listen_fd.is_some());
    let managed_fd = service.listener()?;
    if !args.foreground && args.report_fd.or(args.listen_fd).or(managed_fd).is_none() {
        return to_background(&socket, args);
    }
    let report_to = args.report_fd.map(process::inherit_fd).transpose().map_err(|e| format!("--report-fd: {e}"))?;
    args.report_fd.into_iter().for_each(process::close_inherited);
    let report_to = Cell::new(report_to);
    let report = |outcome: Result<(), &String>| {
        let outcome = outcome.map(|()| process::pid()).map_err(String::clone);
        // The process that started this one may not wait any more.
        report_to.take().iter().for_each(|to| _ = channel::send(to, &outcome, &[]));
    };
    let served = serve(args, (knobs, sources), &socket, (service, managed_fd), &report);
    served.inspect_err(|why| report(Err(why)))
}

/// Leaves the namespaces of the program that has started this daemon in the background, and has left it this socket.
fn leave_namespaces(fd: u32) {
    let starter = process::inherit_fd(fd).and_then(socket::peer).map_or(0, |starter| starter.pid);
    if let Err(e) = process::leave_namespaces(starter) {
        tracing::debug!("the daemon stays in the namespaces of the program that has started it: {e}");
    }
}

/// Serves until the daemon is no longer needed, or was replaced. `started` is called when it has replaced another one.
fn serve(
    args: &Args,
    (knobs, sources): (Knobs, KnobSources),
    socket: &Path,
    (mut service, managed_fd): (Service, Option<u32>),
    started: &dyn Fn(Result<(), &String>),
) -> Result<(), String> {
    let signals =
        process::signals_as_fd(&[Signal::TERM, Signal::INT, Signal::HUP]).map_err(|e| format!("signals: {e}"))?;
    let lock = unetmap_core::control::client::open_lock(socket).map_err(cannot_listen)?;
    let predecessor = predecessor(args, socket)?;
    let listener = match args.listen_fd.or(managed_fd) {
        _ if predecessor.is_some() => None,
        Some(fd) => {
            let listener = inherited(fd)?;
            process::close_inherited(fd);
            Some(listener)
        }
        None => Some(listen_here(socket, &lock)?),
    };
    let own_socket = file_at(socket);
    process::reset_inherited_limits();
    // A program may be a real-time one, and start the daemon.
    let _ = set_precedence(Precedence::None);
    let limits = Limits::read(args.keep_ports);
    let (admission, first_mem_id) = admission(args)?;
    let store = give_up_rights(args, socket, &sources)?;
    // From here on the daemon that is replaced waits.
    let mut taken = predecessor.map(Predecessor::take).transpose()?;
    let listener = match &mut taken {
        Some(taken) => Some(taken.fds.take(taken.state.listener).map_err(|refusal| refusal.why)?),
        None => listener,
    };
    // The kernel may take seconds to close the sockets of interfaces of a daemon that was killed. If it listened until
    // then, no other daemon could be started.
    let listener = process::move_up(listener.ok_or("no socket to listen at")?);
    let is_managed = taken.as_ref().map_or(managed_fd.is_some(), |taken| taken.state.service.listens);
    let listener_again = process::move_up(listener.try_clone().map_err(|e| e.to_string())?);
    let mut daemon = Daemon::new(knobs, admission, first_mem_id);
    daemon.users.keeps_ports = args.keep_ports;
    daemon.knob_sources = sources;
    daemon.socket = socket.to_owned();
    daemon.set_bounds(limits.bounds(daemon.knobs.thread_plan().threads));
    let mut server = Server::new(listener, daemon, socket, is_managed).map_err(|e| e.to_string())?;
    if let Some(taken) = taken {
        (server, service) = take_over(server, taken)?;
        started(Ok(()));
    } else {
        server.daemon.find_lasting();
    }
    if let Some(store) = store {
        // The service manager ends all processes of a unit whose main process has ended.
        store.pid().into_iter().for_each(|pid| service.main_process_is(pid));
        server.set_store(Ok(store));
    }
    tracing::info!(socket = %socket.display(), files = limits.files(), "serving");
    let idle = Some(args.idle_exit).filter(|time| !time.is_zero());
    // While the lock is held, no client that starts finds a socket about to be removed. A client that waits in the
    // listener's queue is served.
    let may_end = || {
        let free = lock.try_lock().is_ok();
        let waiting = socket_has_clients(&listener_again);
        if free && waiting {
            let _ = lock.unlock();
        }
        free && !waiting
    };
    if server.run(signals.as_fd(), &mut service, idle, may_end).map_err(|e| e.to_string())? == End::Replaced {
        // Nothing is freed: another process has it.
        std::process::exit(0);
    }
    server.end_store();
    // The listener is still open, so another daemon replaces the socket only after somebody removed it. The service
    // manager listens on.
    if !is_managed && file_at(socket) == own_socket {
        let _ = privileged::remove_socket(socket);
        let _ = privileged::hide_parameters(socket);
    }
    Ok(())
}

/// Starts the processes that keep rights and state, and gives up the rights of this one. Returns the store, if there is
/// one.
fn give_up_rights(args: &Args, socket: &Path, sources: &KnobSources) -> Result<Option<Store>, String> {
    let failed = |e| format!("starting the process that keeps root's privileges: {e}");
    let store = start_store(args, socket)?;
    if process::uid() == 0 {
        start_broker(args, socket, sources).map_err(failed)?;
    }
    log::watch_file(socket, false);
    confinement::confine_daemon(socket, sources.file.as_deref());
    if owner::owner() == 0 {
        let renewing = ports::nic::start_heartbeat();
        confinement::set_precedence_to(Precedence::None);
        renewing.map_err(|e| format!("starting the thread that renews deadlines: {e}"))?;
        confinement::keep_pages();
        policy::find_namespaces_by(|path| privileged::namespace_at(path).ok().flatten());
    }
    broker::end_with_broker().map_err(failed)?;
    Ok(store)
}

/// Returns the device and inode of the file at a path, which tell whether it was replaced.
fn file_at(path: &Path) -> Option<(u64, u64)> {
    let metadata = fs::symlink_metadata(path).ok()?;
    Some((metadata.dev(), metadata.ino()))
}

/// Returns whom the daemon serves, and the first number of private regions. The system's daemon opens interfaces, and
/// serves all users whom the policy admits; a user's own daemon serves only that user.
fn admission(args: &Args) -> Result<(Admission, u16), String> {
    if process::uid() != 0 {
        return Ok((Admission { only_user: Some(process::uid()), policy: None }, FIRST_PRIVATE_ID));
    }
    let policy = Some(PolicyFile::read_by(&policy_path(args)?, privileged::policy)?);
    Ok((Admission { only_user: None, policy }, 2))
}

/// The process that has what this one is to take over, if any.
fn predecessor(args: &Args, socket: &Path) -> Result<Option<Predecessor>, String> {
    match args.restore {
        Some(fd) => {
            let connection = process::inherit_fd(fd).map_err(|e| format!("--restore {fd}: {e}"))?;
            Ok(Some(Predecessor::store(connection)))
        }
        None => args.replace.then(|| Predecessor::connect(socket)).transpose(),
    }
}

/// Has the server go on with what another daemon had; returns it with its service manager.
fn take_over(mut server: Server, taken: Taken) -> Result<(Server, Service), String> {
    let pid = taken.state.pid;
    match server.take_over(taken) {
        Ok(service) => {
            tracing::info!(pid, "another daemon was replaced");
            Ok((server, service))
        }
        Err(refusal) => {
            // Nothing of what the other daemon still has may be freed.
            std::mem::forget(server);
            Err(refusal.why)
        }
    }
}

/// Starts the process that keeps the ports for the case of a crash, if there is to be one.
fn start_store(args: &Args, socket: &Path) -> Result<Option<Store>, String> {
    if !args.keep_ports || args.restore.is_some() {
        return Ok(None);
    }
    let files = [("--policy", args.policy.as_ref()), ("--config", args.config.as_ref())];
    let arguments = store::arguments(std::env::args_os().skip(1), socket, files);
    Store::start(arguments, socket)
        .map(Some)
        .map_err(|e| format!("--keep-ports: starting the process that keeps them: {e}"))
}

/// Starts the process that keeps root's privileges.
fn start_broker(args: &Args, socket: &Path, sources: &KnobSources) -> std::io::Result<()> {
    let policy = policy_path(args).map_err(io::Error::other)?;
    let lock = unetmap_core::control::client::lock_path(socket);
    broker::start(&broker::Setup {
        policy: Some(policy),
        config: sources.file.clone(),
        socket: socket.to_owned(),
        lock,
        // That of a daemon that has crashed may go on, too.
        replaces: args.replace || args.restore.is_some(),
    })
}

/// The policy's file.
fn policy_path(args: &Args) -> Result<PathBuf, String> {
    absolute("--policy", args.policy.as_deref().unwrap_or(Path::new(policy::DEFAULT_PATH)))
}

/// Returns where the initial knobs come from: the command line and the file.
fn knob_sources(args: &Args) -> Result<KnobSources, String> {
    let file = match &args.config {
        Some(path) => {
            let path = absolute("--config", path)?;
            fs::metadata(&path).map_err(|e| format!("--config {}: {e}", path.display()))?;
            Some(path)
        }
        None if process::uid() == 0 => Some(knobs::DEFAULT_PATH.into()),
        None => None,
    };
    let sizes = [
        ("if_num", args.if_num),
        ("if_size", args.if_size),
        ("ring_num", args.ring_num),
        ("ring_size", args.ring_size),
        ("buf_num", args.buf_num),
        ("buf_size", args.buf_size),
    ];
    let sizes = sizes.into_iter().filter_map(|(name, value)| Some((name, value?))).collect();
    Ok(KnobSources { file, sizes, admode: args.admode })
}

fn absolute(option: &str, path: &Path) -> Result<PathBuf, String> {
    std::path::absolute(path).map_err(|e| format!("{option} {}: {e}", path.display()))
}

/// Starts a background daemon, which is not a child of this process, with the same arguments.
fn to_background(socket: &Path, own: &Args) -> Result<(), String> {
    let program = std::env::current_exe().map_err(|e| format!("finding this program: {e}"))?;
    let mut args: Vec<OsString> = std::env::args_os().skip(1).collect();
    for (option, file) in [("--policy", &own.policy), ("--config", &own.config)] {
        if let Some(file) = file {
            args.extend([option.into(), absolute(option, file)?.into_os_string()]);
        }
    }
    if own.if_changed && !Predecessor::connect(socket)?.runs_another_file()? {
        let _ = writeln!(io::stdout(), "unetmapd: the daemon at {} runs this program already", socket.display());
        return Ok(());
    }
    if own.replace {
        return replace_in_background(socket, &program, args);
    }
    if !unetmap_core::control::client::start(socket, &program, &args).map_err(cannot_listen)? {
        return Err(format!("a daemon already listens at {}", socket.display()));
    }
    let written = writeln!(io::stdout(), "unetmapd: serving at {0}, log in {0}.log", socket.display());
    match written {
        // Standard output is not read.
        Err(e) if e.kind() == io::ErrorKind::BrokenPipe => Ok(()),
        written => written.map_err(|e| format!("standard output: {e}; the daemon serves at {}", socket.display())),
    }
}

/// Starts a successor in the background, and waits until it has replaced the daemon that listens at `socket`.
fn replace_in_background(socket: &Path, program: &Path, mut args: Vec<OsString>) -> Result<(), String> {
    let failed = |e: io::Error| format!("starting the daemon that replaces another one: {e}");
    // A service's standard error is the journal.
    let (log, place) = match std::env::var_os("JOURNAL_STREAM") {
        Some(_) => (fs::File::from(io::stderr().as_fd().try_clone_to_owned().map_err(failed)?), "the journal".into()),
        None => {
            let log = unetmap_core::control::client::open_log(socket).map_err(cannot_listen)?;
            (log, format!("{}.log", socket.display()))
        }
    };
    let (report, to) = socket::pair().map_err(failed)?;
    args.extend(["--report-fd".into(), "3".into(), "--socket".into(), socket.into()]);
    process::spawn_detached(program, program.as_os_str(), &args, to, log).map_err(failed)?;
    let pid = match channel::receive::<Result<u32, String>>(&report, 0).map_err(failed)? {
        Some((outcome, _)) => outcome?,
        None => return Err(format!("the daemon that was to replace another one has ended: see {place}")),
    };
    // Standard output may not be read.
    let _ = writeln!(io::stdout(), "unetmapd: process {pid} serves at {}, log in {place}", socket.display());
    Ok(())
}

fn socket_has_clients(listener: &OwnedFd) -> bool {
    let mut fds = [event::PollFd::new(listener, event::PollFlags::IN)];
    event::wait_readable(&mut fds, Some(Duration::ZERO)).is_ok_and(|n| n > 0)
}

fn listen_here(path: &Path, lock: &fs::File) -> Result<OwnedFd, String> {
    let listener = unetmap_core::control::client::listen_alone(path, lock).map_err(cannot_listen)?;
    let _ = lock.unlock();
    listener.ok_or_else(|| format!("a daemon already listens at {}", path.display()))
}

/// Returns why the socket could not be created.
fn cannot_listen(e: unetmap_core::Error) -> String {
    match e {
        unetmap_core::Error::NoDaemon { reason, source, .. } => format!("{reason}: {source}"),
        other => other.to_string(),
    }
}

/// Returns the listening socket that the starting program, or the service manager, left at descriptor `fd`.
fn inherited(fd: u32) -> Result<OwnedFd, String> {
    let failed = |why: &dyn std::fmt::Display| format!("--listen-fd {fd}: {why}");
    // A socket cannot be opened again through /proc, but its descriptor can be duplicated.
    let listener = process::inherit_fd(fd).map_err(|e| failed(&e))?;
    if !socket::is_seqpacket_listener(&listener) {
        return Err(failed(
            &"this is no listening socket of the type seqpacket (ListenSequentialPacket= in a systemd unit; without the \
              option unetmapd creates one)",
        ));
    }
    socket::set_nonblocking(&listener).map_err(|e| failed(&e))?;
    Ok(listener)
}
