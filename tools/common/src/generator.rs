// SPDX-License-Identifier: BSD-2-Clause
//! Shared by pkt-gen and its tests in `apps/tester`: the processors of their threads, receivers that stall, and lines
//! of reports.

use std::io;
use std::time::{Duration, Instant};

use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};
use serde_json::{Map, Value, json};

use crate::{link, note, print};

/// Returns the processors that the calling thread may use, in ascending order. Empty if the kernel refuses.
pub fn allowed_cpus() -> Vec<usize> {
    let Ok(set) = sched_getaffinity(None) else { return Vec::new() };
    (0..CpuSet::MAX_CPU).filter(|&cpu| set.is_set(cpu)).collect()
}

/// Pins the calling thread, the one with this number, to its processor of `-a` and `-c`; not if there are none.
///
/// # Errors
/// A sentence.
pub fn pin(cpus: &[usize], number: usize) -> Result<(), String> {
    let Some(&cpu) = cpus.iter().cycle().nth(number) else { return Ok(()) };
    pin_thread(cpu).map_err(|e| format!("-a: cannot pin thread {number} to processor {cpu}: {e}"))
}

/// Pins the calling thread to one of [`allowed_cpus`].
fn pin_thread(cpu: usize) -> io::Result<()> {
    let mut set = CpuSet::new();
    set.set(cpu);
    Ok(sched_setaffinity(None, &set)?)
}

/// Longest wait of a loop before it checks the stop flag.
pub const STOP_CHECK_INTERVAL: Duration = Duration::from_millis(100);

/// Longest time without a released slot before a sender gives up.
pub const STALL_TIMEOUT: Duration = Duration::from_secs(5);
/// A sender that waits longer for a receiver says so.
const NOTE_AFTER: Duration = Duration::from_secs(1);

/// Detects that a receiver which has released slots releases no more. Before the first release there is no time limit:
/// the receiver may be started later.
#[derive(Default)]
pub struct Stall {
    since: Option<Instant>,
    noted: bool,
}

impl Stall {
    /// Takes note that packets were sent.
    #[inline(always)]
    pub fn sent(&mut self) {
        self.since = None;
    }

    /// Takes note that a ring of the port is full. `has_released` says whether its receiver has released slots. Returns
    /// true if the sender is to give up.
    #[cold]
    pub fn full(&mut self, port: &str, has_released: impl FnOnce() -> bool) -> bool {
        let time = self.since.get_or_insert_with(Instant::now).elapsed();
        if time > NOTE_AFTER && !self.noted {
            self.noted = true;
            let why = link::down_or(port, "waiting for a receiver that reads the packets");
            note(&format!("pkt-gen: {port}: its ring is full: {why}"));
        }
        time > STALL_TIMEOUT && has_released()
    }
}

/// Says that slots of a port were not released, and why that may be.
pub fn not_released(port: &str, slots: u64) -> String {
    match link::of(port) {
        Some(down) => format!("{port}: {slots} slots are not released: {down}"),
        None => format!("{port}: the peer has not released {slots} slots (is a receiver running?)"),
    }
}

/// Says at the end what a link that is down explains.
pub fn note_down(port: &str, what: &str) {
    if let Some(down) = link::of(port) {
        note(&format!("pkt-gen: {port}: {what}: {down}"));
    }
}

/// The reported percentiles, and their JSON names.
pub const PERCENTILES: [(f64, &str); 4] = [(50.0, "p50"), (90.0, "p90"), (99.0, "p99"), (99.9, "p99.9")];

/// Returns times for JSON: minimum, mean, maximum and the [`PERCENTILES`], in nanoseconds.
pub fn times_json(min: u64, max: u64, mean: f64, percentiles: [u64; 4]) -> Value {
    let mut values = json!({"min": min, "max": max, "mean": mean});
    for ((_, name), value) in PERCENTILES.iter().zip(percentiles) {
        values[name] = json!(value);
    }
    values
}

/// Prints a line of a report: to standard output if it is JSON, else to standard error.
pub fn print_report(line: &str, json: bool) {
    if json {
        print(&format!("{line}\n"));
    } else {
        note(line);
    }
}

/// Sums over all threads.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Totals {
    /// Packets.
    pub packets: u64,
    /// Their bytes.
    pub bytes: u64,
    /// Batches.
    pub batches: u64,
}

impl Totals {
    /// Returns the difference to an earlier sum.
    #[must_use]
    pub fn since(self, before: Totals) -> Totals {
        Totals {
            packets: self.packets - before.packets,
            bytes: self.bytes - before.bytes,
            batches: self.batches - before.batches,
        }
    }
}

/// Formats `value` with three decimals and the prefix of a unit, as in `14.881 M`.
pub fn scaled(value: f64, raw: bool) -> String {
    let (divisor, prefix) = match value {
        _ if raw => (1.0, ""),
        v if v >= 1e9 => (1e9, "G"),
        v if v >= 1e6 => (1e6, "M"),
        v if v >= 1e3 => (1e3, "K"),
        _ => (1.0, ""),
    };
    format!("{:.3} {prefix}", value / divisor)
}

/// Returns a rate; 0 if no time has passed.
pub fn per_second(n: u64, time: Duration) -> f64 {
    if time.is_zero() { 0.0 } else { n as f64 / time.as_secs_f64() }
}

/// Returns the members that all JSON objects have.
pub fn common_members(event: &str, function: &str, totals: Totals, time: Duration) -> Map<String, Value> {
    let object = json!({
        "event": event,
        "function": function,
        "packets": totals.packets,
        "bytes": totals.bytes,
        "seconds": time.as_secs_f64(),
        "pps": per_second(totals.packets, time),
        "bps": per_second(8 * totals.bytes, time),
        "batches": totals.batches,
    });
    match object {
        Value::Object(map) => map,
        _ => Map::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_have_three_decimals_and_a_unit_prefix() {
        for (value, text) in [
            (0.0, "0.000 "),
            (999.0, "999.000 "),
            (1000.0, "1.000 K"),
            (14_880_952.0, "14.881 M"),
            (1e9, "1.000 G"),
            (2.5e12, "2500.000 G"),
        ] {
            assert_eq!(scaled(value, false), text);
        }
        assert_eq!(scaled(14_880_952.0, true), "14880952.000 ");
    }
}
