// SPDX-License-Identifier: BSD-2-Clause
//! Puts the benchmark into a session of its own, so that the scheduler treats it as one group (autogroup).

use std::env;
use std::os::unix::process::ExitStatusExt;
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};

use nix::unistd::{Pid, getpgrp};
use rustix::process::{Signal, getpid, getppid, set_parent_process_death_signal};
use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::flag::{register, register_conditional_shutdown};
use unetmap_sys::process::own_session_high_priority;

/// Set by SIGINT and SIGTERM.
static INTERRUPTED: OnceLock<Arc<AtomicBool>> = OnceLock::new();

/// Returns an error after an interrupt. Called before each step, so that the started programs are stopped.
pub(crate) fn check() -> Result<(), String> {
    if INTERRUPTED.get().is_some_and(|flag| flag.load(Ordering::Relaxed)) {
        return Err("bench: interrupted".into());
    }
    Ok(())
}

fn watch_signals() {
    let flag = INTERRUPTED.get_or_init(Arc::default);
    for signal in [SIGINT, SIGTERM] {
        // Fails only for signals that cannot be caught. A second signal ends the program at once.
        let _ = register_conditional_shutdown(signal, 1, Arc::clone(flag));
        let _ = register(signal, Arc::clone(flag));
    }
}

/// Environment variable of the measuring process: the id of its parent, which waits for it.
const PARENT: &str = "UNETMAP_BENCH_PARENT";

/// Makes sure that this process can create a session. Returns `Some` status if a child has measured instead: exit with
/// it.
///
/// A process group leader, such as a command that a shell starts, cannot create a session. It runs itself again as a
/// child that can, and waits for it. The child is killed if the parent exits.
pub(crate) fn leave_group() -> Option<u8> {
    if started_by_us() {
        // If this fails, the child only survives an interrupted parent.
        let _ = set_parent_process_death_signal(Some(Signal::TERM));
    } else if leads_its_group() {
        return run_again();
    }
    None
}

/// Creates a session with the highest priority that is permitted. Programs started from now on share it.
pub(crate) fn raise_priority() {
    if !leads_its_group() {
        // Users other than root have no permission, which only reduces the accuracy.
        let _ = own_session_high_priority();
    }
    watch_signals();
}

/// Returns whether this process is the leader of its process group. In a PID namespace the group of a process that was
/// started from outside has the ID 0, which rustix's `getpgrp` does not accept.
fn leads_its_group() -> bool {
    getpgrp() == Pid::this()
}

/// Returns true in the child of [`run_again`], but not in a benchmark that is a peer of another and inherits the
/// variable.
fn started_by_us() -> bool {
    let parent = getppid().map(|pid| pid.as_raw_pid().to_string());
    env::var(PARENT).ok().is_some_and(|id| Some(id) == parent)
}

/// Runs this program again with the same arguments; `None` if it cannot be started.
fn run_again() -> Option<u8> {
    let program = env::current_exe().ok()?;
    let pid = getpid().as_raw_pid().to_string();
    let status = Command::new(program).args(env::args_os().skip(1)).env(PARENT, pid).status().ok()?;
    let code = status.code().or_else(|| status.signal().map(|s| 128 + s));
    Some(code.and_then(|c| u8::try_from(c).ok()).unwrap_or(1))
}
