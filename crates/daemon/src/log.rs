// SPDX-License-Identifier: BSD-2-Clause
//! The daemon's log: in systemd's journal if standard error leads there, else on standard error; at the level of
//! `--log`, or a more detailed one while the knob `verbose` is set.

mod journal;

use std::io::{self, IsTerminal, Write};
use std::sync::OnceLock;

use tracing::Level;
use tracing::level_filters::LevelFilter;
use tracing_subscriber::prelude::*;
use tracing_subscriber::{Registry, fmt, reload};
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
            .with_writer(|| Plain)
            .with_ansi(io::stderr().is_terminal())
            // A log that cannot be written, because the disk is full, must not stop the daemon.
            .log_internal_errors(false)
    });
    tracing_subscriber::registry().with(filter).with(lines).with(journal).init();
    let _ = CHOICE.set((level, choice));
}

/// Standard error, for whole lines.
struct Plain;

impl Write for Plain {
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        io::stderr().write_all(without_codes(&String::from_utf8_lossy(line)).as_bytes())?;
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
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
