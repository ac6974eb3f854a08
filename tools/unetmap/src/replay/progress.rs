// SPDX-License-Identifier: BSD-2-Clause
//! The progress bar of a replay, on a terminal.

use std::io::{IsTerminal as _, Write as _};
use std::time::{Duration, Instant};

/// Characters of the bar.
const WIDTH: usize = 30;
/// Interval between two updates.
const DRAW_INTERVAL: Duration = Duration::from_millis(200);
/// Bytes of a packet's header in a pcap file.
const PACKET_HEADER: u64 = 16;
/// Packets between two reads of the clock.
const CLOCK_INTERVAL: u32 = 64;

/// A progress bar, updated at intervals. Nothing is drawn if standard error is not a terminal.
pub(crate) struct Progress {
    /// Bytes of all rounds; 0: unlimited rounds.
    total: u64,
    /// Bytes of one round.
    per_round: u64,
    done: u64,
    rounds: u64,
    packets: u64,
    begin: Instant,
    drawn: Option<Instant>,
    /// Packets since the clock was read.
    since_clock: u32,
    enabled: bool,
}

impl Progress {
    /// Creates a bar for a file of `bytes` bytes, sent `times` times.
    pub(crate) fn new(bytes: u64, times: u64, quiet: bool) -> Progress {
        Progress {
            total: bytes.saturating_mul(times),
            per_round: bytes,
            done: 0,
            rounds: 0,
            packets: 0,
            begin: Instant::now(),
            drawn: None,
            since_clock: 0,
            enabled: !quiet && std::io::stderr().is_terminal(),
        }
    }

    /// Counts a packet.
    #[inline]
    pub(crate) fn sent(&mut self, bytes: u64) {
        if !self.enabled {
            return;
        }
        self.done += bytes + PACKET_HEADER;
        self.packets += 1;
        self.since_clock += 1;
        if self.since_clock >= CLOCK_INTERVAL || self.drawn.is_none() {
            self.since_clock = 0;
            if self.drawn.is_none_or(|drawn| drawn.elapsed() >= DRAW_INTERVAL) {
                self.draw();
            }
        }
    }

    /// Counts a round: the end of the file is reached.
    pub(crate) fn round(&mut self) {
        self.rounds += 1;
        self.done = self.per_round.saturating_mul(self.rounds);
    }

    /// Draws the final state and ends the line.
    pub(crate) fn end(&mut self) {
        if self.enabled && self.drawn.is_some() {
            self.draw();
            eprintln!();
        }
    }

    fn draw(&mut self) {
        self.drawn = Some(Instant::now());
        // A failure affects only the display.
        let _ = write!(std::io::stderr(), "\r{}   ", line(self.done, self.total, self.packets, self.begin.elapsed()));
    }
}

fn line(done: u64, total: u64, packets: u64, time: Duration) -> String {
    let rate = packets as f64 / time.as_secs_f64().max(1e-9);
    if total == 0 {
        return format!("{packets} packets, {rate:.0} per second");
    }
    let fraction = (done as f64 / total as f64).min(1.0);
    let full = (fraction * WIDTH as f64) as usize;
    let bar = format!("[{}{}]", "#".repeat(full), ".".repeat(WIDTH - full));
    format!("{bar} {:3.0} %, {packets} packets, {rate:.0} per second", fraction * 100.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_line_has_a_bar_if_the_total_is_known() {
        let second = Duration::from_secs(1);
        assert_eq!(line(0, 0, 10, second), "10 packets, 10 per second");
        let half = format!("[{}{}]  50 %, 4 packets, 2 per second", "#".repeat(15), ".".repeat(15));
        assert_eq!(line(500, 1000, 4, 2 * second), half);
        assert!(line(2000, 1000, 4, second).contains("] 100 %"), "the estimate may exceed the total");
    }
}
