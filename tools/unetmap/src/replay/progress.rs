//! How far it is, on a terminal.

use std::io::{IsTerminal as _, Write as _};
use std::time::{Duration, Instant};

/// Cells of the bar.
const CELLS: usize = 30;
/// How often it is drawn.
const EVERY: Duration = Duration::from_millis(200);
/// Bytes in a file for each packet besides its own.
const HEAD: u64 = 16;
/// Packets between two looks at the clock.
const LOOK: u32 = 64;

/// A bar, drawn at intervals; nothing where standard error is no terminal.
pub(crate) struct Progress {
    /// Of all rounds together; 0: it has no end.
    total: u64,
    of_round: u64,
    done: u64,
    rounds: u64,
    packets: u64,
    begun: Instant,
    drawn: Option<Instant>,
    unlooked: u32,
    shown: bool,
}

impl Progress {
    /// Of `bytes` in a file, `times` over.
    pub(crate) fn new(bytes: u64, times: u64, quiet: bool) -> Progress {
        Progress {
            total: bytes.saturating_mul(times),
            of_round: bytes,
            done: 0,
            rounds: 0,
            packets: 0,
            begun: Instant::now(),
            drawn: None,
            unlooked: 0,
            shown: !quiet && std::io::stderr().is_terminal(),
        }
    }

    /// One more packet.
    #[inline]
    pub(crate) fn sent(&mut self, bytes: u64) {
        if !self.shown {
            return;
        }
        self.done += bytes + HEAD;
        self.packets += 1;
        self.unlooked += 1;
        if self.unlooked >= LOOK || self.drawn.is_none() {
            self.unlooked = 0;
            if self.drawn.is_none_or(|drawn| drawn.elapsed() >= EVERY) {
                self.draw();
            }
        }
    }

    /// The file is at its end.
    pub(crate) fn round(&mut self) {
        self.rounds += 1;
        self.done = self.of_round.saturating_mul(self.rounds);
    }

    /// The line goes, what follows begins at its start.
    pub(crate) fn end(&mut self) {
        if self.shown && self.drawn.is_some() {
            self.draw();
            eprintln!();
        }
    }

    fn draw(&mut self) {
        self.drawn = Some(Instant::now());
        // Nothing depends on it.
        let _ = write!(std::io::stderr(), "\r{}   ", line(self.done, self.total, self.packets, self.begun.elapsed()));
    }
}

fn line(done: u64, total: u64, packets: u64, time: Duration) -> String {
    let rate = packets as f64 / time.as_secs_f64().max(1e-9);
    if total == 0 {
        return format!("{packets} packets, {rate:.0} a second");
    }
    let part = (done as f64 / total as f64).min(1.0);
    let full = (part * CELLS as f64) as usize;
    let bar = format!("[{}{}]", "#".repeat(full), ".".repeat(CELLS - full));
    format!("{bar} {:3.0} %, {packets} packets, {rate:.0} a second", part * 100.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_line() {
        let second = Duration::from_secs(1);
        assert_eq!(line(0, 0, 10, second), "10 packets, 10 a second");
        let half = format!("[{}{}]  50 %, 4 packets, 2 a second", "#".repeat(15), ".".repeat(15));
        assert_eq!(line(500, 1000, 4, 2 * second), half);
        assert!(line(2000, 1000, 4, second).contains("] 100 %"), "the estimate may be too large");
    }
}
