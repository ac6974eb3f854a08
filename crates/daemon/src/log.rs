// SPDX-License-Identifier: BSD-2-Clause
//! The daemon's log: in systemd's journal if standard error leads there, else on standard error; at the level of
//! `--log`, or a more detailed one while the knob `verbose` is set.

mod journal;

use std::io::{self, Write};
use std::sync::OnceLock;

use tracing::Level;
use tracing::level_filters::LevelFilter;
use tracing_subscriber::prelude::*;
use tracing_subscriber::{Registry, fmt, reload};
use unetmap_abi::printable;
use unetmap_core::without_codes;

use journal::Journal;

/// The level at the start, and the handle that changes it.
static CHOICE: OnceLock<(Level, reload::Handle<LevelFilter, Registry>)> = OnceLock::new();

/// Starts logging messages of `level` and of higher severity.
pub(crate) fn start(level: Level) {
    let (filter, choice) = reload::Layer::new(LevelFilter::from_level(level));
    let journal = Journal::of_stderr();
    let lines = journal.is_none().then(|| {
        fmt::layer()
            .with_writer(|| PrintableLines(io::stderr()))
            .with_ansi(false)
            // A log that cannot be written, because the disk is full, must not stop the daemon.
            .log_internal_errors(false)
    });
    tracing_subscriber::registry().with(filter).with(lines).with(journal).init();
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
