//! A session of our own, so that the scheduler weighs the benchmark against everything else as a whole.

use std::env;
use std::os::unix::process::ExitStatusExt;
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};

use rustix::process::{Signal, getpgrp, getpid, getppid, set_parent_process_death_signal};
use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::flag::{register, register_conditional_shutdown};
use unetmap_sys::process::own_session_high_priority;

/// Raised by SIGINT and SIGTERM.
static INTERRUPTED: OnceLock<Arc<AtomicBool>> = OnceLock::new();

/// An error once the user has had enough; asked before each step, so that the programs that we started are ended.
pub(crate) fn check() -> Result<(), String> {
    if INTERRUPTED.get().is_some_and(|flag| flag.load(Ordering::Relaxed)) {
        return Err("bench: interrupted".into());
    }
    Ok(())
}

fn watch_signals() {
    let flag = INTERRUPTED.get_or_init(Arc::default);
    for signal in [SIGINT, SIGTERM] {
        // Refused only for signals that nobody may catch. The second one ends the program at once.
        let _ = register_conditional_shutdown(signal, 1, Arc::clone(flag));
        let _ = register(signal, Arc::clone(flag));
    }
}

/// Set in the environment of the process that measures: the id of the one that waits for it.
const PARENT: &str = "UNETMAP_BENCH_PARENT";

/// Sees to it that this process can lead a session of its own. `Some` status: another process has measured; exit.
///
/// A process that leads a process group (whatever a shell starts) cannot leave its session, so it runs itself again as
/// a child that can, and waits for it. The child dies with us.
pub(crate) fn leave_group() -> Option<u8> {
    if started_by_us() {
        // Without a death signal the child would only outlive an interrupted parent.
        let _ = set_parent_process_death_signal(Some(Signal::TERM));
    } else if getpgrp() == getpid() {
        return run_again();
    }
    None
}

/// Takes the lead of a new session with the highest priority that we may have; programs started from now on share it.
pub(crate) fn raise() {
    if getpgrp() != getpid() {
        // What is refused costs accuracy only, and refusing it to ordinary users is normal.
        let _ = own_session_high_priority();
    }
    watch_signals();
}

/// True in the child of [`run_again`]; not in a benchmark that is run as a peer of another and inherits the variable.
fn started_by_us() -> bool {
    let parent = getppid().map(|pid| pid.as_raw_pid().to_string());
    env::var(PARENT).ok().is_some_and(|id| Some(id) == parent)
}

/// Runs this program again with the same arguments; `None` when it cannot be started.
fn run_again() -> Option<u8> {
    let program = env::current_exe().ok()?;
    let pid = getpid().as_raw_pid().to_string();
    let status = Command::new(program).args(env::args_os().skip(1)).env(PARENT, pid).status().ok()?;
    let code = status.code().or_else(|| status.signal().map(|s| 128 + s));
    Some(code.and_then(|c| u8::try_from(c).ok()).unwrap_or(1))
}
