//! The daemon's log: to standard error, as `--log` says, and more while the knob `verbose` is set.

use std::io::{self, IsTerminal};
use std::sync::OnceLock;

use tracing::Level;
use tracing::level_filters::LevelFilter;
use tracing_subscriber::prelude::*;
use tracing_subscriber::{Registry, fmt, reload};

/// What was chosen at the start, and where another choice is put.
static CHOICE: OnceLock<(Level, reload::Handle<LevelFilter, Registry>)> = OnceLock::new();

/// Begins to log what is at least as grave as `level`.
pub(crate) fn start(level: Level) {
    let (filter, choice) = reload::Layer::new(LevelFilter::from_level(level));
    let lines = fmt::layer()
        .with_writer(io::stderr)
        .with_ansi(io::stderr().is_terminal())
        // A log that cannot be written to, because the disk is full, is no reason to die.
        .log_internal_errors(false);
    tracing_subscriber::registry().with(filter).with(lines).init();
    let _ = CHOICE.set((level, choice));
}

/// Logs as at the start (0), also what is served and refused (1), or everything.
pub(crate) fn set_verbose(verbose: u64) {
    let Some((begun, choice)) = CHOICE.get() else { return };
    let wanted = match verbose {
        0 => *begun,
        1 => Level::DEBUG.max(*begun),
        _ => Level::TRACE,
    };
    // It fails only when there is no log any more.
    let _ = choice.modify(|filter| *filter = LevelFilter::from_level(wanted));
}
