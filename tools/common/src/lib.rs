//! What pkt-gen, bridge and vale-ctl have in common: how they name ports, what they write, and how they end.
#![forbid(unsafe_code)]

pub mod port;
pub mod request;
pub mod rule;
#[cfg(feature = "testing")]
pub mod testing;

use std::io::{self, Write as _};
use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, LazyLock};
use std::time::{Duration, Instant};

use signal_hook::consts::{SIGINT, SIGTERM};

/// Exit status of a wrong command line: clap's own.
const WRONG_USAGE: u8 = 2;
/// How long a wait lasts before it looks whether it should end.
const NAP: Duration = Duration::from_millis(50);

static STOP: LazyLock<Arc<AtomicBool>> = LazyLock::new(Arc::default);
static OUTPUT_LOST: AtomicBool = AtomicBool::new(false);

/// Why a program ends before its work is done, in a sentence.
#[derive(Debug, PartialEq, Eq)]
pub enum Failure {
    /// The command line is wrong, whatever the machine is like.
    Usage(String),
    /// It could not be done here and now.
    Work(String),
}

impl From<String> for Failure {
    fn from(message: String) -> Failure {
        Failure::Work(message)
    }
}

impl From<unetmap::Error> for Failure {
    fn from(error: unetmap::Error) -> Failure {
        match error {
            unetmap::Error::Name(_) => Failure::Usage(error.to_string()),
            _ => Failure::Work(error.to_string()),
        }
    }
}

/// The program's last words: a failure goes to standard error. Returns its exit status: 2 for a wrong command line, 1 for
/// other failures and where standard output could not take what was printed.
pub fn end(program: &str, result: Result<ExitCode, Failure>) -> ExitCode {
    let (message, status) = match result {
        Ok(_) if OUTPUT_LOST.load(Relaxed) => return ExitCode::FAILURE,
        Ok(status) => return status,
        Err(Failure::Usage(message)) => (message, ExitCode::from(WRONG_USAGE)),
        Err(Failure::Work(message)) => (message, ExitCode::FAILURE),
    };
    note(&format!("{program}: {message}"));
    status
}

/// The flag that SIGINT and SIGTERM raise from now on. A second signal changes nothing: `timeout` sends two, and the end
/// is near. [`print`](fn@print) raises it when nobody reads standard output any more.
///
/// # Errors
/// A sentence: the signals cannot be caught.
pub fn stop_on_signals() -> Result<&'static AtomicBool, String> {
    for signal in [SIGINT, SIGTERM] {
        signal_hook::flag::register(signal, Arc::clone(&STOP))
            .map_err(|e| format!("cannot catch signal {signal}: {e}"))?;
    }
    Ok(&STOP)
}

/// Waits so long, or until the flag is raised: for links that come up slowly after a port was opened.
pub fn wait_for_link(wait: Duration, stop: &AtomicBool) {
    let begin = Instant::now();
    while !stop.load(Relaxed) {
        let left = wait.saturating_sub(begin.elapsed());
        if left.is_zero() {
            return;
        }
        std::thread::sleep(left.min(NAP));
    }
}

/// Text for standard output. Where its reader has gone, the program is to stop as by a signal; another failure, such as a
/// full disk, is told once, and no reason to stop counting.
pub fn print(text: &str) {
    let mut out = io::stdout().lock();
    let Err(error) = out.write_all(text.as_bytes()).and_then(|()| out.flush()) else { return };
    if error.kind() == io::ErrorKind::BrokenPipe {
        STOP.store(true, Relaxed);
    } else if !OUTPUT_LOST.swap(true, Relaxed) {
        note(&format!("standard output: {error}; what is printed is lost"));
    }
}

/// A line for standard error. That nobody reads it is nothing to care about.
pub fn note(line: &str) {
    let _ = writeln!(io::stderr(), "{line}");
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wait_is_as_long_as_it_was_told_and_ends_when_the_flag_is_raised() {
        let flag = AtomicBool::new(false);
        let begin = Instant::now();
        wait_for_link(Duration::from_millis(120), &flag);
        assert!(begin.elapsed() >= Duration::from_millis(120));
        wait_for_link(Duration::ZERO, &flag);
        std::thread::scope(|scope| {
            scope.spawn(|| wait_for_link(Duration::MAX, &flag));
            flag.store(true, Relaxed);
        });
    }

    #[test]
    fn the_statuses_are_the_manuals() {
        assert_eq!(end("x", Err(Failure::Usage("told by the test".into()))), ExitCode::from(2));
        assert_eq!(end("x", Err(Failure::Work("told by the test".into()))), ExitCode::from(1));
        assert_eq!(end("x", Ok(ExitCode::SUCCESS)), ExitCode::SUCCESS);
    }
}
