// SPDX-License-Identifier: BSD-2-Clause
//! The daemon's log: in systemd's journal if standard error leads there, else on standard error; at the level of
//! `--log`, or a more detailed one while the knob `verbose` is set.
//!
//! The log of a daemon in the background is a file beside its socket, which all its processes write to. The control
//! thread has it opened again on SIGHUP, when it has become too long, and when it was moved away
//! (`privileged::open_log`); the other processes follow before they write. What others can cause is bounded
//! ([`bounded`]).

mod bounded;
mod journal;

use std::io::{self, Write};
use std::path::Path;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use tracing::Level;
use tracing::level_filters::LevelFilter;
use tracing_subscriber::prelude::*;
use tracing_subscriber::{Registry, fmt, reload};
use unetmap_abi::printable;
use unetmap_core::control::client::log_path;
use unetmap_core::without_codes;
use unetmap_sys::log::LogFile;
use unetmap_sys::tuning::log::MAX_DAEMON_LOG;

use bounded::Bounded;
use journal::Journal;

pub(crate) use bounded::{Acting, finish, summarize};

/// The level at the start, and the handle that changes it.
static CHOICE: OnceLock<(Level, reload::Handle<LevelFilter, Registry>)> = OnceLock::new();

/// The file beside the socket, if standard error is it, and whether this process opens it by itself before it writes.
static FILE: OnceLock<(LogFile, bool)> = OnceLock::new();

/// Whether the file was moved away, or has become too long.
static OVER: AtomicBool = AtomicBool::new(false);

/// Starts logging messages of `level` and of higher severity.
pub(crate) fn start(level: Level) {
    let (filter, choice) = reload::Layer::new(LevelFilter::from_level(level));
    let journal = Journal::of_stderr();
    let lines = journal.is_none().then(|| {
        fmt::layer()
            .with_writer(|| PrintableLines(File))
            .with_ansi(false)
            // A log that cannot be written, because the disk is full, must not stop the daemon.
            .log_internal_errors(false)
    });
    tracing_subscriber::registry().with(filter).with(Bounded).with(lines).with(journal).init();
    let _ = CHOICE.set((level, choice));
}

/// Writes each message, which is one write, as one printable line without the numbers of the system's errors: messages
/// name what clients chose.
struct PrintableLines<W>(W);

impl<W: Write> Write for PrintableLines<W> {
    fn write(&mut self, message: &[u8]) -> io::Result<usize> {
        let line = printable::bytes(message.strip_suffix(b"\n").unwrap_or(message));
        self.0.write_all(format!("{}\n", without_codes(&line)).as_bytes()).map(|()| message.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.0.flush()
    }
}

/// Watches the file of the daemon that listens at `socket`. `follows`: this process opens it by itself.
pub(crate) fn watch_file(socket: &Path, follows: bool) {
    if let Some(file) = LogFile::of_stderr(&log_path(socket), MAX_DAEMON_LOG) {
        let _ = FILE.set((file, follows));
    }
}

/// Opens the file again if it was moved away.
pub(crate) fn follow() {
    if let Some((file, _)) = FILE.get() {
        // Else the lines go to the file that was moved away.
        let _ = file.follow();
    }
}

/// Opens the file again if it was moved away, and begins it anew if it is too long. Only for the process that does so
/// for the others.
///
/// # Errors
/// Another user's file is in its place; or the kernel's.
pub(crate) fn tend() -> io::Result<()> {
    FILE.get().map_or(Ok(()), |(file, _)| file.tend())
}

/// Whether the file is to be opened again, as it was moved away or is too long; once.
pub(crate) fn is_over() -> bool {
    OVER.load(Relaxed) && OVER.swap(false, Relaxed)
}

/// Sets the level to that of the start (0), to requests that are served or refused (1), or to everything.
pub(crate) fn set_verbose(verbose: u64) {
    let Some((initial, choice)) = CHOICE.get() else { return };
    let wanted = match verbose {
        0 => *initial,
        1 => Level::DEBUG.max(*initial),
        _ => Level::TRACE,
    };
    // Fails only if logging has ended.
    let _ = choice.modify(|filter| *filter = LevelFilter::from_level(wanted));
}

/// Standard error, as a file that may be opened again before each write.
struct File;

impl Write for File {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match FILE.get() {
            Some((_, true)) => follow(),
            Some((file, false)) if file.is_over() => OVER.store(true, Relaxed),
            _ => {}
        }
        io::stderr().write_all(bytes).map(|()| bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_is_one_printable_line() {
        let mut lines = PrintableLines(Vec::new());
        lines.write_all(b"x \x1b[2J\nforged \xff\xe2\x80\xae\n").unwrap();
        assert_eq!(lines.0, b"x \\u001b[2J\\nforged \\xff\\u202e\n");
    }
}
