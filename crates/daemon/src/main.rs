//! unetmapd: makes regions and ports, hands them to clients, and takes back what they held. No packet passes through
//! it on a pipe.
#![forbid(unsafe_code)]

mod books;
mod caller;
mod end;
mod estate;
mod extmem;
mod filter;
mod host;
mod interfaces;
mod mediator;
mod monitor;
mod nic;
mod node;
mod null;
mod offsets;
mod pipe;
mod policy;
mod queue;
mod refusal;
mod region;
mod request;
mod server;
mod snapshot;
#[cfg(test)]
mod tests;
mod uplink;
mod vale;

use std::ffi::OsString;
use std::fs;
use std::io::{self, IsTerminal};
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use clap::{Parser, ValueEnum};
use unetmap_sys::event;
use unetmap_sys::process::{self, Signal};

use books::{Books, Rules};
use policy::PolicyFile;
use region::Sizes;
use server::Server;

/// Region numbers of a user's daemon start here, so that it and the system's never name the same region.
const FIRST_PRIVATE_ID: u16 = 0x4000;

/// What is worth logging.
#[derive(Clone, Copy, Debug, ValueEnum)]
enum Level {
    Error,
    Warn,
    Info,
    Debug,
    Trace,
}

impl From<Level> for tracing::Level {
    fn from(level: Level) -> tracing::Level {
        match level {
            Level::Error => tracing::Level::ERROR,
            Level::Warn => tracing::Level::WARN,
            Level::Info => tracing::Level::INFO,
            Level::Debug => tracing::Level::DEBUG,
            Level::Trace => tracing::Level::TRACE,
        }
    }
}

/// How interfaces are opened; the name is netmap's knob's.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Admode {
    /// In the driver if it can, else before the stack.
    Best,
    /// In the driver, or not at all.
    Native,
    /// Before the stack, though the driver may be able to do better.
    Generic,
}

/// The unetmap daemon. The first program that opens a port starts one; there is no need to start it by hand.
#[derive(Parser, Debug)]
#[command(name = "unetmapd", version, about)]
struct Args {
    /// Stay in the foreground and log to standard error. Else a daemon in the background is started, which logs to a file
    /// beside its socket.
    #[arg(long)]
    foreground: bool,
    /// Where to listen (also in the environment, UNETMAP_SOCKET).
    #[arg(long, value_name = "PATH", overrides_with = "socket")]
    socket: Option<PathBuf>,
    /// A listening socket that the starter bound to --socket, as a file descriptor.
    #[arg(long, value_name = "FD", hide = true)]
    listen_fd: Option<u32>,
    /// End when nobody was connected for so many seconds; 0: never.
    #[arg(long, value_name = "SECONDS", default_value_t = 30)]
    idle_exit: u64,
    /// Who may open which interface (unetmap-policy(5)); counts only when the daemon is root's.
    #[arg(long, value_name = "PATH", env = "UNETMAP_POLICY", overrides_with = "policy")]
    policy: Option<PathBuf>,
    /// What to log.
    #[arg(long, value_name = "LEVEL", env = "UNETMAPD_LOG", default_value = "info")]
    log: Level,
    /// How interfaces are opened: as well as they can be, or only in their drivers, or only before the stack.
    #[arg(long, value_name = "MODE", default_value = "best")]
    admode: Admode,
    /// Sessions of a region.
    #[arg(long, value_name = "N", default_value_t = Sizes::default().ifs.0)]
    if_num: u32,
    /// Bytes for a session's description; 8 for each ring and 56.
    #[arg(long, value_name = "BYTES", default_value_t = Sizes::default().ifs.1)]
    if_size: u32,
    /// Rings of a region; a pipe takes 4 for each ring pair.
    #[arg(long, value_name = "N", default_value_t = Sizes::default().rings.0)]
    ring_num: u32,
    /// Bytes for a ring; 16 for each slot and 256.
    #[arg(long, value_name = "BYTES", default_value_t = Sizes::default().rings.1)]
    ring_size: u32,
    /// Buffers of a region.
    #[arg(long, value_name = "N", default_value_t = Sizes::default().bufs.0)]
    buf_num: u32,
    /// Bytes of a buffer.
    #[arg(long, value_name = "BYTES", default_value_t = Sizes::default().bufs.1)]
    buf_size: u32,
}

fn main() -> ExitCode {
    let args = Args::parse();
    tracing_subscriber::fmt()
        .with_max_level(tracing::Level::from(args.log))
        .with_writer(io::stderr)
        .with_ansi(io::stderr().is_terminal())
        // A log that cannot be written to, because the disk is full, is no reason to die.
        .log_internal_errors(false)
        .init();
    match run(&args) {
        Ok(()) => ExitCode::SUCCESS,
        Err(why) => {
            eprintln!("unetmapd: {why}");
            ExitCode::FAILURE
        }
    }
}

fn run(args: &Args) -> Result<(), String> {
    let sizes = Sizes {
        ifs: (args.if_num, args.if_size),
        rings: (args.ring_num, args.ring_size),
        bufs: (args.buf_num, args.buf_size),
    };
    unetmap_mem::Geometry::new(sizes.ifs, sizes.rings, sizes.bufs)?;
    let socket = match &args.socket {
        // Absolute, as the daemon works in another folder.
        Some(path) => std::path::absolute(path).map_err(|e| format!("--socket {}: {e}", path.display()))?,
        None => unetmap::client::own_socket().map_err(|e| e.to_string())?,
    };
    // Told at once where somebody reads it, and not at the first program's open.
    if let Some(policy) = args.policy.as_deref().filter(|_| process::uid() == 0) {
        let policy = absolute_policy(policy)?;
        fs::metadata(&policy).map_err(|e| format!("--policy {}: {e}", policy.display()))?;
        PolicyFile::new(&policy)?.current()?;
    }
    if !args.foreground && args.listen_fd.is_none() {
        return to_background(&socket, args.policy.as_deref());
    }
    let signals = process::signals_as_fd(&[Signal::TERM, Signal::INT]).map_err(|e| format!("signals: {e}"))?;
    let lock = unetmap::client::open_lock(&socket).map_err(|e| e.to_string())?;
    let listener = match args.listen_fd {
        Some(fd) => inherited(fd)?,
        None => listen_here(&socket, &lock)?,
    };
    process::forget_starter();
    let files = process::raise_fd_limit();
    let rules = rules(args)?;
    let listener_again = listener.try_clone().map_err(|e| e.to_string())?;
    let mut server = Server::new(listener, Books::new(sizes, rules), &socket).map_err(|e| e.to_string())?;
    tracing::info!(socket = %socket.display(), files, "serving");
    let idle = (args.idle_exit > 0).then(|| Duration::from_secs(args.idle_exit));
    // The lock keeps a starting client from finding the socket half gone; a client that is already waiting is served.
    let may_end = || {
        let free = lock.try_lock().is_ok();
        let waiting = socket_has_clients(&listener_again);
        if free && waiting {
            let _ = lock.unlock();
        }
        free && !waiting
    };
    server.run(signals.as_fd(), idle, may_end).map_err(|e| e.to_string())?;
    // The listener is still open, so nobody can have put another socket in the place of ours.
    let _ = fs::remove_file(&socket);
    Ok(())
}

/// The system's daemon opens interfaces, and serves everybody whom the policy admits; another's only its own user.
fn rules(args: &Args) -> Result<Rules, String> {
    let admode = args.admode;
    if process::uid() != 0 {
        return Ok(Rules { first_mem_id: FIRST_PRIVATE_ID, only_user: Some(process::uid()), policy: None, admode });
    }
    let path = args.policy.clone().unwrap_or_else(|| PathBuf::from(policy::DEFAULT_PATH));
    let policy = Some(PolicyFile::new(&absolute_policy(&path)?)?);
    Ok(Rules { first_mem_id: 2, only_user: None, policy, admode })
}

fn absolute_policy(path: &Path) -> Result<PathBuf, String> {
    std::path::absolute(path).map_err(|e| format!("--policy {}: {e}", path.display()))
}

/// Starts a daemon that is nobody's child, with the same arguments.
fn to_background(socket: &Path, policy: Option<&Path>) -> Result<(), String> {
    let program = std::env::current_exe().map_err(|e| format!("finding this program: {e}"))?;
    let mut args: Vec<OsString> = std::env::args_os().skip(1).collect();
    if let Some(policy) = policy {
        args.extend(["--policy".into(), absolute_policy(policy)?.into_os_string()]);
    }
    if !unetmap::client::start(socket, &program, &args).map_err(|e| e.to_string())? {
        return Err(format!("a daemon already listens at {}", socket.display()));
    }
    println!("unetmapd: serving at {0}, log in {0}.log", socket.display());
    Ok(())
}

fn socket_has_clients(listener: &OwnedFd) -> bool {
    let mut fds = [event::PollFd::new(listener, event::PollFlags::IN)];
    event::wait_readable(&mut fds, Some(Duration::ZERO)).is_ok_and(|n| n > 0)
}

fn listen_here(path: &Path, lock: &fs::File) -> Result<OwnedFd, String> {
    let listener = unetmap::client::listen_alone(path, lock).map_err(|e| e.to_string())?;
    let _ = lock.unlock();
    listener.ok_or_else(|| format!("a daemon already listens at {}", path.display()))
}

/// The listening socket that the starter left at descriptor `fd`.
fn inherited(fd: u32) -> Result<OwnedFd, String> {
    // Opening it again through /proc would not work for a socket; a duplicate, made by its number, does.
    process::inherit_fd(fd).map_err(|e| format!("--listen-fd {fd}: {e}"))
}
