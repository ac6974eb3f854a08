// SPDX-License-Identifier: BSD-2-Clause
//! The progress bar of a replay, on a terminal.

use std::io::IsTerminal as _;
use std::time::{Duration, Instant};

use tool_common::{note, note_part};

/// Characters of the bar.
const WIDTH: usize = 30;
/// Interval between two updates.
const DRAW_INTERVAL: Duration = Duration::from_millis(200);
/// Packets between two reads of the clock.
const CLOCK_INTERVAL: u32 = 64;

/// A progress bar of the packets that are sent: written into the ring and released by the receiver. Updated at
/// intervals. Nothing is drawn if standard error is not a terminal.
pub(crate) struct Progress {
    /// Bytes of all rounds; 0: unlimited rounds.
    total: u64,
    /// Bytes of the file; 0: unknown.
    per_round: u64,
    rounds: u64,
    /// Bytes of the file that were read in this round.
    position: u64,
    /// Packets written into the ring.
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
            rounds: 0,
            position: 0,
            packets: 0,
            begin: Instant::now(),
            drawn: None,
            since_clock: 0,
            enabled: !quiet && std::io::stderr().is_terminal(),
        }
    }

    /// Counts a packet written into the ring, which ends at byte `position` of the file. `unreleased` returns how many
    /// of the packets the receiver has not released.
    #[inline]
    pub(crate) fn packet(&mut self, position: u64, unreleased: impl FnOnce() -> u64) {
        if !self.enabled {
            return;
        }
        self.position = position;
        self.packets += 1;
        self.since_clock += 1;
        if self.since_clock >= CLOCK_INTERVAL || self.drawn.is_none() {
            self.since_clock = 0;
            self.draw_if_due(unreleased);
        }
    }

    /// Takes note that the next packet is not due yet.
    pub(crate) fn pause(&mut self, unreleased: impl FnOnce() -> u64) {
        if self.enabled && self.drawn.is_some() {
            self.draw_if_due(unreleased);
        }
    }

    /// Counts a round: the end of the file is reached.
    pub(crate) fn round(&mut self) {
        self.rounds += 1;
        self.position = 0;
    }

    /// Draws the final state and ends the line.
    pub(crate) fn end(&mut self, unreleased: u64) {
        if self.enabled && self.drawn.is_some() {
            self.draw(unreleased);
            note("");
        }
    }

    fn draw_if_due(&mut self, unreleased: impl FnOnce() -> u64) {
        if self.drawn.is_none_or(|drawn| drawn.elapsed() >= DRAW_INTERVAL) {
            self.draw(unreleased());
        }
    }

    fn draw(&mut self, unreleased: u64) {
        self.drawn = Some(Instant::now());
        let read = self.per_round.saturating_mul(self.rounds).saturating_add(self.position);
        let fraction = (self.total > 0).then(|| read as f64 / self.total as f64);
        let line = line(fraction, self.packets, unreleased, self.begin.elapsed());
        note_part(&format!("\r{line}   "));
    }
}

/// `fraction` of the file was read, and has this number of packets.
fn line(fraction: Option<f64>, packets: u64, unreleased: u64, time: Duration) -> String {
    let sent = packets.saturating_sub(unreleased);
    let rate = sent as f64 / time.as_secs_f64().max(1e-9);
    let Some(fraction) = fraction else { return format!("{sent} packets, {rate:.0} per second") };
    let fraction = (fraction * sent as f64 / packets.max(1) as f64).min(1.0);
    let full = (fraction * WIDTH as f64) as usize;
    let bar = format!("[{}{}]", "#".repeat(full), ".".repeat(WIDTH - full));
    format!("{bar} {:3.0} %, {sent} packets, {rate:.0} per second", fraction * 100.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_line_has_a_bar_if_the_total_is_known() {
        let second = Duration::from_secs(1);
        assert_eq!(line(None, 10, 0, second), "10 packets, 10 per second");
        let half = format!("[{}{}]  50 %, 4 packets, 2 per second", "#".repeat(15), ".".repeat(15));
        assert_eq!(line(Some(0.5), 4, 0, 2 * second), half);
        assert!(line(Some(1.1), 4, 0, second).contains("] 100 %"), "a file that grew");
    }

    #[test]
    fn packets_that_are_not_released_are_not_counted() {
        let second = Duration::from_secs(1);
        assert_eq!(line(None, 10, 4, second), "6 packets, 6 per second");
        let half = format!("[{}{}]  50 %, 5 packets, 5 per second", "#".repeat(15), ".".repeat(15));
        assert_eq!(line(Some(1.0), 10, 5, second), half, "the whole file is in the ring");
        assert!(line(Some(1.0), 10, 10, second).starts_with("[......"));
    }
}
