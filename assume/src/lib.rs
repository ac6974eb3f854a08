// SPDX-License-Identifier: BSD-2-Clause
//! Checks of assumptions: one program under `src/bin` per behaviour of the kernel (or libc) that unetmap relies on.
//! Each prints one line and exits with 0 if the assumption holds, 1 if it is broken, 2 if it cannot be tested here.
//!
//! ```text
//! for p in target/debug/{atfork_runs_in_child,pidfd_readable_at_exit}; do $p; done
//! ```
//!
//! This library contains the common parts of the programs: results, forked children, and shared memory. The programs
//! are single-threaded.

#![deny(unsafe_code)]

use std::fmt::Display;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::process::ExitCode;
use std::sync::atomic::AtomicU32;
use std::time::Duration;

use rustix::process::{Pid, Signal, WaitOptions, kill_process, waitpid};
use rustix::thread::{UnshareFlags, unshare_unsafe};
use unetmap_sys::event::{PollFd, PollFlags, wait_readable};
use unetmap_sys::{Mapping, socket};

/// Longest wait for an event that must occur; it counts as broken afterwards. Any long time would do.
const EVENT_LIMIT: Duration = Duration::from_secs(20);

/// Why an assumption was not confirmed.
#[derive(Debug)]
pub enum Failure {
    /// The kernel behaves differently: description.
    Broken(String),
    /// A step that the check needs failed: reason.
    Untestable(String),
}

impl<E: Into<io::Error>> From<E> for Failure {
    fn from(error: E) -> Failure {
        Failure::Untestable(error.into().to_string())
    }
}

/// Result of a check.
pub type CheckResult = Result<(), Failure>;

/// Runs `check` of an assumption; prints the line and returns the exit code.
pub fn run_check(assumption: &str, check: impl FnOnce() -> CheckResult) -> ExitCode {
    let (word, why, code) = match check() {
        Ok(()) => ("holds", String::new(), 0),
        Err(Failure::Broken(why)) => ("BROKEN", format!(": {why}"), 1),
        Err(Failure::Untestable(why)) => ("cannot be tested here", format!(": {why}"), 2),
    };
    println!("{word}: {assumption}{why}");
    ExitCode::from(code)
}

/// Returns `Broken(what)` unless `holds`.
pub fn expect(holds: bool, what: impl Display) -> CheckResult {
    if holds { Ok(()) } else { Err(Failure::Broken(what.to_string())) }
}

/// Waits until `fd` has one of `events` (or a hang-up or an error); false on timeout.
pub fn becomes_ready(fd: impl AsFd, events: PollFlags) -> io::Result<bool> {
    Ok(wait_readable(&mut [PollFd::new(&fd, events)], Some(EVENT_LIMIT))? > 0)
}

/// Returns whether `fd` is readable now.
pub fn readable(fd: impl AsFd) -> io::Result<bool> {
    Ok(wait_readable(&mut [PollFd::new(&fd, PollFlags::IN)], Some(Duration::ZERO))? > 0)
}

/// Creates a connection like that of a client and the daemon: passes the path to connect to to `make_client` (which may
/// run in a child), and returns the accepted end and the result of `make_client`.
pub fn connection<T>(make_client: impl FnOnce(&std::path::Path) -> io::Result<T>) -> io::Result<(OwnedFd, T)> {
    let path = std::env::temp_dir().join(format!("unetmap-assume-{}", std::process::id()));
    let listener = socket::listen(&path, 0o600)?;
    let accepted = make_client(&path).and_then(|client| {
        becomes_ready(&listener, PollFlags::IN)?;
        Ok((socket::accept(&listener)?, client))
    });
    std::fs::remove_file(&path)?;
    accepted
}

/// A forked child; killed and waited for on drop.
#[derive(Debug)]
pub struct Child(Option<Pid>);

/// Outcome of a child.
#[derive(Debug, PartialEq, Eq)]
pub enum Outcome {
    /// It exited with this code.
    Exit(i32),
    /// This signal killed it.
    Signal(i32),
}

/// Forks. The child runs `child` and exits with its result.
pub fn fork(child: impl FnOnce() -> u8) -> io::Result<Child> {
    // SAFETY: K6: this process has one thread, so the child may call any function.
    #[allow(unsafe_code)]
    match unsafe { libc::fork() } {
        -1 => Err(io::Error::last_os_error()),
        0 => std::process::exit(child().into()),
        pid => Ok(Child(Pid::from_raw(pid))),
    }
}

/// Body of a child that waits until it is killed.
pub fn wait_for_kill() -> u8 {
    loop {
        std::thread::park();
    }
}

impl Child {
    /// Returns its process id.
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

    /// Waits until it ends.
    pub fn wait(mut self) -> io::Result<Outcome> {
        let status = loop {
            if let Some((_, status)) = waitpid(self.0, WaitOptions::empty())? {
                break status;
            }
        };
        self.0 = None;
        Ok(match status.exit_status() {
            Some(code) => Outcome::Exit(code),
            None => Outcome::Signal(status.terminating_signal().unwrap_or(0)),
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

/// Reads the byte at `at` through the mapping: a missing page raises SIGBUS.
#[allow(unsafe_code)]
pub fn read_byte(map: &Mapping, at: usize) -> u8 {
    assert!(at < map.len());
    // SAFETY: K3: in range (just checked), mapped while `map` is borrowed; a byte has any value.
    unsafe { map.as_ptr().add(at).read_volatile() }
}

/// Writes the byte at `at` through the mapping.
#[allow(unsafe_code)]
pub fn write_byte(map: &Mapping, at: usize, byte: u8) {
    assert!(at < map.len());
    // SAFETY: K3: as in `read_byte`; no reference to these bytes exists.
    unsafe { map.as_ptr().add(at).write_volatile(byte) }
}

/// Returns the word at byte `at` of the mapping, which other processes may write.
#[allow(unsafe_code)]
pub fn word(map: &Mapping, at: usize) -> &AtomicU32 {
    assert!(at.is_multiple_of(4) && at + 4 <= map.len());
    // SAFETY: K3: in range and aligned (just checked), mapped while `map` is borrowed, and only accessed atomically.
    unsafe { AtomicU32::from_ptr(map.as_ptr().add(at).cast()) }
}

/// Maps a page of private memory that the kernel zeroes in a forked child (`MADV_WIPEONFORK`), as libunetmap does. It
/// is never unmapped.
#[allow(unsafe_code)]
pub fn wiped_word() -> io::Result<&'static AtomicU32> {
    let (prot, flags) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
    // SAFETY: K3: a new mapping at an address that the kernel chooses; it is aligned to a page and stays mapped.
    unsafe {
        let page = libc::mmap(std::ptr::null_mut(), size_of::<AtomicU32>(), prot, flags, -1, 0);
        if page == libc::MAP_FAILED || libc::madvise(page, size_of::<AtomicU32>(), libc::MADV_WIPEONFORK) != 0 {
            return Err(io::Error::last_os_error());
        }
        Ok(AtomicU32::from_ptr(page.cast()))
    }
}

/// Runs `child` in a child that shares the memory of this process, as after vfork, and returns its result.
#[allow(unsafe_code)]
pub fn vfork(child: fn(&AtomicU32) -> u8, word: &'static AtomicU32) -> io::Result<Outcome> {
    struct Call(fn(&AtomicU32) -> u8, &'static AtomicU32);
    extern "C" fn run(call: *mut libc::c_void) -> libc::c_int {
        // SAFETY: K1: `call` is the structure below, whose thread waits until this child has exited.
        let Call(child, word) = unsafe { &*call.cast::<Call>() };
        child(word).into()
    }
    let (mut stack, mut call) = (vec![0u128; 16384], Call(child, word));
    let flags = libc::CLONE_VM | libc::CLONE_VFORK | libc::SIGCHLD;
    // SAFETY: K1, K6: the stack and the argument outlive the child, which has exited when clone returns.
    let pid = unsafe { libc::clone(run, stack.as_mut_ptr_range().end.cast(), flags, (&raw mut call).cast()) };
    if pid < 0 { Err(io::Error::last_os_error()) } else { Child(Pid::from_raw(pid)).wait() }
}

/// Returns the state letter of a process: `S` if it sleeps interruptibly.
pub fn state(pid: i32) -> io::Result<char> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat"))?;
    // The name before it is in parentheses and may contain any character.
    let after = stat.rsplit(") ").next().unwrap_or_default();
    Ok(after.chars().next().unwrap_or('?'))
}

/// Moves this process to a new network namespace, which contains only `lo` and ends with the process.
pub fn enter_new_network() -> io::Result<()> {
    // SAFETY: K7: this process has one thread, so that no other one changes its namespace unexpectedly.
    #[allow(unsafe_code)]
    unsafe {
        Ok(unshare_unsafe(UnshareFlags::NEWNET)?)
    }
}

/// Returns the path of a descriptor in `/proc/self/fd`.
pub fn proc_path(fd: BorrowedFd<'_>) -> String {
    format!("/proc/self/fd/{}", std::os::fd::AsRawFd::as_raw_fd(&fd))
}
