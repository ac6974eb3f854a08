//! What we assume, we run: one program under `src/bin` per promise of the kernel (or libc) that unetmap relies on. Each
//! prints one line and exits 0 when the promise holds, 1 when it is broken, 2 when it cannot be tested here.
//!
//! ```text
//! for p in target/debug/{atfork_runs_in_child,pidfd_tells_death}; do $p; done
//! ```
//!
//! This library is what the programs share: verdicts, a forked child, and bytes of shared memory. They run single-threaded.

#![deny(unsafe_code)]

use std::fmt::Display;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::process::ExitCode;
use std::time::Duration;

use rustix::process::{Pid, Signal, WaitOptions, kill_process, waitpid};
use rustix::thread::{UnshareFlags, unshare_unsafe};
use unetmap_sys::event::{PollFd, PollFlags, wait_readable};
use unetmap_sys::{Mapping, socket};

/// How long to wait for what must come, before it counts as broken. It only has to be long.
const PATIENCE: Duration = Duration::from_secs(20);

/// Why a promise was not seen to hold.
#[derive(Debug)]
pub enum Fault {
    /// The kernel did something else: what it did.
    Broken(String),
    /// What was needed to find out did not work: why.
    Untestable(String),
}

impl<E: Into<io::Error>> From<E> for Fault {
    fn from(error: E) -> Fault {
        Fault::Untestable(error.into().to_string())
    }
}

/// What a program's check comes to.
pub type Verdict = Result<(), Fault>;

/// Runs the check of `promise` and turns its verdict into the line and the exit code.
pub fn judge(promise: &str, check: impl FnOnce() -> Verdict) -> ExitCode {
    let (word, why, code) = match check() {
        Ok(()) => ("holds", String::new(), 0),
        Err(Fault::Broken(why)) => ("BROKEN", format!(": {why}"), 1),
        Err(Fault::Untestable(why)) => ("cannot be tested here", format!(": {why}"), 2),
    };
    println!("{word}: {promise}{why}");
    ExitCode::from(code)
}

/// `Broken(what)` unless `holds`.
pub fn expect(holds: bool, what: impl Display) -> Verdict {
    if holds { Ok(()) } else { Err(Fault::Broken(what.to_string())) }
}

/// Waits until `fd` has one of `events` (or a hang-up or an error); false when it does not come at all.
pub fn comes(fd: impl AsFd, events: PollFlags) -> io::Result<bool> {
    Ok(wait_readable(&mut [PollFd::new(&fd, events)], Some(PATIENCE))? > 0)
}

/// True when `fd` is readable now.
pub fn readable(fd: impl AsFd) -> io::Result<bool> {
    Ok(wait_readable(&mut [PollFd::new(&fd, PollFlags::IN)], Some(Duration::ZERO))? > 0)
}

/// Both ends of a new connection as a client and the daemon have it: `make_client` (which may be in a child) is given a
/// path to connect to; the result is the accepted end and what it returned.
pub fn connection<T>(make_client: impl FnOnce(&std::path::Path) -> io::Result<T>) -> io::Result<(OwnedFd, T)> {
    let path = std::env::temp_dir().join(format!("unetmap-assume-{}", std::process::id()));
    let door = socket::listen(&path, 0o600)?;
    let accepted = make_client(&path).and_then(|client| {
        comes(&door, PollFlags::IN)?;
        Ok((socket::accept(&door)?, client))
    });
    std::fs::remove_file(&path)?;
    accepted
}

/// A forked child; killed and waited for when dropped.
#[derive(Debug)]
pub struct Child(Option<Pid>);

/// How a child ended.
#[derive(Debug, PartialEq, Eq)]
pub enum End {
    /// It exited with this code.
    Exit(i32),
    /// This signal killed it.
    Signal(i32),
}

/// Forks; the child runs `child`, with a copy of all we have, and exits with its result.
pub fn fork(child: impl FnOnce() -> u8) -> io::Result<Child> {
    // SAFETY: this process has one thread, so its copy may do whatever the original may.
    #[allow(unsafe_code)]
    match unsafe { libc::fork() } {
        -1 => Err(io::Error::last_os_error()),
        0 => std::process::exit(child().into()),
        pid => Ok(Child(Pid::from_raw(pid))),
    }
}

/// What a child does that only has to be there.
pub fn stay() -> u8 {
    loop {
        std::thread::park();
    }
}

impl Child {
    /// Its process id.
    pub fn pid(&self) -> i32 {
        Pid::as_raw(self.0)
    }

    /// Kills it; it remains a zombie until it is waited for.
    pub fn kill(&self) -> io::Result<()> {
        match self.0 {
            Some(pid) => Ok(kill_process(pid, Signal::KILL)?),
            None => Ok(()),
        }
    }

    /// Waits for its end.
    pub fn wait(mut self) -> io::Result<End> {
        let status = loop {
            if let Some((_, status)) = waitpid(self.0, WaitOptions::empty())? {
                break status;
            }
        };
        self.0 = None;
        Ok(match status.exit_status() {
            Some(code) => End::Exit(code),
            None => End::Signal(status.terminating_signal().unwrap_or(0)),
        })
    }
}

impl Drop for Child {
    fn drop(&mut self) {
        if let Some(pid) = self.0 {
            let _ = kill_process(pid, Signal::KILL);
            let _ = waitpid(Some(pid), WaitOptions::empty());
        }
    }
}

/// The byte at `at`, read through the mapping: a page that is not there is a SIGBUS.
#[allow(unsafe_code)]
pub fn peek(map: &Mapping, at: usize) -> u8 {
    assert!(at < map.len());
    // SAFETY: in range (just checked) of what stays mapped while `map` is borrowed; bytes have any value.
    unsafe { map.as_ptr().add(at).read_volatile() }
}

/// Writes the byte at `at` through the mapping.
#[allow(unsafe_code)]
pub fn poke(map: &Mapping, at: usize, byte: u8) {
    assert!(at < map.len());
    // SAFETY: as in `peek`; no reference to these bytes exists anywhere.
    unsafe { map.as_ptr().add(at).write_volatile(byte) }
}

/// The state letter of a process: `S` when it sleeps and a signal could wake it.
pub fn state(pid: i32) -> io::Result<char> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat"))?;
    // The name before it is in parentheses and may contain anything.
    let after = stat.rsplit(") ").next().unwrap_or_default();
    Ok(after.chars().next().unwrap_or('?'))
}

/// Leaves for a network namespace of our own, in which there is nothing but `lo`, and which goes with this process.
pub fn own_network() -> io::Result<()> {
    // SAFETY: this process has one thread, so that none is left in another namespace than it believes.
    #[allow(unsafe_code)]
    unsafe {
        Ok(unshare_unsafe(UnshareFlags::NEWNET)?)
    }
}

/// A descriptor borrowed as the kernel's number for it, to name it in `/proc/self/fd`.
pub fn proc_path(fd: BorrowedFd<'_>) -> String {
    format!("/proc/self/fd/{}", std::os::fd::AsRawFd::as_raw_fd(&fd))
}
