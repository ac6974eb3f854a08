// SPDX-License-Identifier: BSD-2-Clause
//! Shared code of the command-line tools: port names, output, signals and exit codes.
#![forbid(unsafe_code)]

pub mod daemon;
pub mod failure;
pub mod forward;
pub mod generator;
pub mod host;
pub mod link;
pub mod metrics;
pub mod port;
pub mod reply;
pub mod rule;
pub mod served;
pub mod source;
mod suggestions;
pub mod table;
#[cfg(feature = "testing")]
pub mod testing;

use std::fmt;
use std::io::{self, Write as _};
use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, LazyLock};
use std::time::{Duration, Instant};

use clap::error::ErrorKind;
use clap::{Parser, ValueEnum as _};
use clap_complete::Shell;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use unetmap::abi::printable;
pub use unetmap_core::without_codes;

/// Mixes the bits: each bit of the result depends on every bit of `x` (the finalizer of SplitMix64).
pub fn mix(x: u64) -> u64 {
    let x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ (x >> 31)
}

/// Exit status of a wrong command line, the same as clap's.
const WRONG_USAGE: u8 = 2;
/// Interval at which a wait checks the stop flag.
const STOP_CHECK_INTERVAL: Duration = Duration::from_millis(50);

static STOP: LazyLock<Arc<AtomicBool>> = LazyLock::new(Arc::default);
static OUTPUT_LOST: AtomicBool = AtomicBool::new(false);

/// Why a program exits before its work is done, in a sentence.
#[derive(Debug, PartialEq, Eq)]
pub enum Failure {
    /// The command line is wrong, on any machine.
    Usage(String),
    /// The command line is valid, but the work could not be done.
    Work(String),
}

impl Failure {
    /// The same failure, of a part of the program: `part: why`.
    #[must_use]
    pub fn within(self, part: &str) -> Failure {
        match self {
            Failure::Usage(message) => Failure::Usage(format!("{part}: {message}")),
            Failure::Work(message) => Failure::Work(format!("{part}: {message}")),
        }
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (Failure::Usage(message) | Failure::Work(message)) = self;
        f.write_str(message)
    }
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

/// Prints a failure to standard error and returns the exit status: 2 for a wrong command line, 1 for other failures and
/// if output was lost because standard output could not be written.
pub fn exit_code(program: &str, result: Result<ExitCode, Failure>) -> ExitCode {
    let (message, status) = match result {
        Ok(_) if OUTPUT_LOST.load(Relaxed) => return ExitCode::FAILURE,
        Ok(status) => return status,
        Err(Failure::Usage(message)) => (message, ExitCode::from(WRONG_USAGE)),
        Err(Failure::Work(message)) => (message, ExitCode::FAILURE),
    };
    note(&format!("{program}: {message}"));
    status
}

/// Installs handlers for SIGINT and SIGTERM and returns the flag that they set. Further signals have no effect, because
/// `timeout` sends two. [`print`](fn@print) also sets the flag once the reader of standard output is gone.
///
/// # Errors
/// A sentence, if a handler cannot be installed.
pub fn stop_on_signals() -> Result<&'static AtomicBool, String> {
    for signal in [SIGINT, SIGTERM] {
        signal_hook::flag::register(signal, Arc::clone(&STOP))
            .map_err(|e| format!("cannot catch signal {signal}: {e}"))?;
    }
    Ok(&STOP)
}

/// Makes SIGHUP, which a terminal sends that is closed, set the flag of [`stop_on_signals`], too; unless it is ignored,
/// as below nohup(1).
///
/// # Errors
/// As of [`stop_on_signals`].
pub fn stop_on_hangup() -> Result<(), String> {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    if ignores(&status, SIGHUP) { Ok(()) } else { set_on_hangup(&STOP) }
}

/// Whether a process ignores a signal, by its file `status`.
fn ignores(status: &str, signal: i32) -> bool {
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    let mask = mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).unwrap_or(0);
    mask >> (signal - 1) & 1 != 0
}

/// Returns a flag that SIGHUP sets, for a program that reads its files again.
///
/// # Errors
/// As of [`stop_on_signals`].
pub fn flag_on_hangup() -> Result<Arc<AtomicBool>, String> {
    let flag = Arc::default();
    set_on_hangup(&flag).map(|()| flag)
}

fn set_on_hangup(flag: &Arc<AtomicBool>) -> Result<(), String> {
    let registered = signal_hook::flag::register(SIGHUP, Arc::clone(flag));
    registered.map(drop).map_err(|e| format!("cannot catch signal {SIGHUP}: {e}"))
}

/// Waits for `wait`, or until the flag is set: some links come up slowly after a port was opened. Then says which are
/// down, unless [`link::open`] has said it.
pub fn wait_for_link(wait: Duration, stop: &AtomicBool) {
    let begin = Instant::now();
    while !stop.load(Relaxed) {
        let left = wait.saturating_sub(begin.elapsed());
        if left.is_zero() {
            break;
        }
        std::thread::sleep(left.min(STOP_CHECK_INTERVAL));
    }
    if !wait.is_zero() {
        link::say_after_wait();
    }
}

/// Parses the command line. `--completions SHELL` alone prints completions of the program's options for bash, zsh, fish
/// and other shells, and exits: `make install` installs them.
pub fn parse<C: Parser>() -> C {
    let mut args = std::env::args().skip(1);
    if args.next().as_deref() != Some("--completions") {
        return C::try_parse().unwrap_or_else(|mut error| {
            let mut command = C::command();
            // Adds what clap adds to each command, such as --version.
            command.build();
            suggestions::add(&mut error, &command, std::env::args().skip(1));
            let message = error.to_string();
            if printable::text(&message) == message {
                error.exit()
            }
            // The words of the command line may be what somebody else chose.
            note_part(&message);
            std::process::exit(error.exit_code())
        });
    }
    let mut command = C::command();
    let shell = args.next().filter(|_| args.next().is_none()).and_then(|name| Shell::from_str(&name, false).ok());
    let Some(shell) = shell else {
        let shells: Vec<String> = Shell::value_variants().iter().map(Shell::to_string).collect();
        command.error(ErrorKind::InvalidValue, format!("--completions takes one of {}", shells.join(", "))).exit()
    };
    let name = command.get_name().to_owned();
    let mut text = Vec::new();
    clap_complete::generate(shell, &mut command, name, &mut text);
    print(&String::from_utf8_lossy(&text));
    std::process::exit(i32::from(OUTPUT_LOST.load(Relaxed)));
}

/// The sequence for bold, which [`write`](fn@write) lets pass besides printable text, for rows that stand out on a
/// terminal.
pub const BOLD: &str = "\x1b[1m";
/// As [`BOLD`].
pub const YELLOW: &str = "\x1b[33m";
/// As [`BOLD`]: the end of a style.
pub const PLAIN: &str = "\x1b[0m";

/// Writes text to standard output: lines, whose characters that are not printable are escaped
/// ([`printable`](mod@unetmap::abi::printable)). Programs write text by this function alone, and by those that call it:
/// `.ci/check-source` looks for others.
///
/// # Errors
/// The kernel's; `BrokenPipe` if the reader has closed it.
pub fn write(text: &str) -> io::Result<()> {
    let mut out = io::stdout().lock();
    out.write_all(shown(text).as_bytes()).and_then(|()| out.flush())
}

/// The text as a terminal gets it.
fn shown(text: &str) -> String {
    let (mut shown, mut left) = (String::with_capacity(text.len()), text);
    while let Some(at) = left.find('\x1b') {
        let style = [BOLD, YELLOW, PLAIN].into_iter().find(|style| left[at..].starts_with(style));
        let end = at + style.map_or(1, str::len);
        shown += &printable::text(&left[..at]);
        shown += style.unwrap_or("\\u001b");
        left = &left[end..];
    }
    shown + &printable::text(left)
}

/// Writes text to standard output, as [`write`](fn@write) does. If the reader has closed it, sets the stop flag, as a
/// signal does. Reports any other failure, such as a full disk, once; the program goes on.
pub fn print(text: &str) {
    let Err(error) = write(text) else { return };
    if error.kind() == io::ErrorKind::BrokenPipe {
        STOP.store(true, Relaxed);
    } else if !OUTPUT_LOST.swap(true, Relaxed) {
        note(&format!("standard output: {error}; further output is lost"));
    }
}

/// Writes a line to standard error, of which characters that are not printable are escaped. Ignores failures, because
/// there is nowhere left to report them.
pub fn note(line: &str) {
    let _ = writeln!(io::stderr(), "{}", printable::text(&without_codes(line)));
}

/// Writes a part of a line to standard error, as [`note`]: a question, or, after `\r`, a bar of progress.
pub fn note_part(part: &str) {
    let (start, rest) = part.strip_prefix('\r').map_or(("", part), |rest| ("\r", rest));
    let mut out = io::stderr().lock();
    let _ = write!(out, "{start}{}", printable::text(rest)).and_then(|()| out.flush());
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wait_for_link_lasts_the_given_time_and_ends_when_the_flag_is_set() {
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
    fn a_terminal_gets_printable_text_and_own_styles() {
        assert_eq!(shown("\x1b[1ma\x1b[0m\n\x1b[2Jb\u{202e}\x1b"), "\x1b[1ma\x1b[0m\n\\u001b[2Jb\\u202e\\u001b");
    }

    #[test]
    fn ignored_signals_are_known() {
        let status = "Name:\tx\nSigBlk:\t0000000000000000\nSigIgn:\t0000000000001001\nSigCgt:\t0000000000000002\n";
        assert_eq!([1, 2, 13].map(|signal| ignores(status, signal)), [true, false, true]);
        assert!(!ignores("", 1));
    }

    #[test]
    fn exit_codes_are_those_of_the_man_pages() {
        assert_eq!(exit_code("x", Err(Failure::Usage("from the test".into()))), ExitCode::from(2));
        assert_eq!(exit_code("x", Err(Failure::Work("from the test".into()))), ExitCode::from(1));
        assert_eq!(exit_code("x", Ok(ExitCode::SUCCESS)), ExitCode::SUCCESS);
    }
}
