// SPDX-License-Identifier: BSD-2-Clause
//! Probes of the machine's current state: the distance of two cores, and the frequency of one.
//!
//! In a virtual machine both change within seconds, as the hypervisor moves virtual processors. Therefore each sample
//! is measured between two probes.

use std::hint;
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;

use unetmap_sys::{clock, process};

use crate::stats::{self, PlacementClass};

/// Round trips of one probe, after those that warm up.
const ROUNDS: u32 = 1200;
const WARM_UP: u32 = 300;
/// Round trips timed together: few enough that most groups have no interruption, many enough that the cost of reading
/// the clock is small.
const GROUP: u32 = 100;
/// Operations of one frequency measurement, a third of a millisecond, and the number of measurements.
const CHAIN: u32 = 1_000_000;
const TRIES: u32 = 10;

/// The two processors of a benchmark.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Cores {
    /// Sends.
    pub(crate) tx: usize,
    /// Receives.
    pub(crate) rx: usize,
}

impl Cores {
    /// Returns the first two processors that this process may use.
    pub(crate) fn first_two() -> Result<Cores, String> {
        match process::cpus_allowed()[..] {
            [tx, rx, ..] => Ok(Cores { tx, rx }),
            _ => Err("bench: needs two processors, and this process may use only one (see taskset(1))".into()),
        }
    }
}

/// Returns the time that the hypervisor has taken from the two processors, in ticks of the kernel's accounting (10 ms).
pub(crate) fn stolen(cores: Cores) -> u64 {
    let text = std::fs::read_to_string("/proc/stat").unwrap_or_default();
    let of = |cpu: usize| {
        let name = format!("cpu{cpu} ");
        let line = text.lines().find_map(|line| line.strip_prefix(name.as_str()))?;
        line.split_whitespace().nth(7)?.parse::<u64>().ok()
    };
    [cores.tx, cores.rx].into_iter().filter_map(of).sum()
}

/// Pins the calling thread to `cpu`.
pub(crate) fn pin(cpu: usize) -> Result<(), String> {
    process::pin_to_cpu(cpu).map_err(|e| format!("bench: pinning a thread to processor {cpu}: {e} (see taskset(1))"))
}

/// One word on cache lines of its own: two lines, because some processors prefetch pairs.
#[repr(align(128))]
struct SharedWord(AtomicU32);

/// Measures the current distance of the cores by 1500 round trips of one cache line between two threads, which takes
/// about a millisecond.
pub(crate) fn core_distance(cores: Cores) -> Result<PlacementClass, String> {
    Ok(PlacementClass::of_round_trip(round_trip_ns(cores)?))
}

/// Returns the median over groups of round trips, in nanoseconds.
fn round_trip_ns(cores: Cores) -> Result<f64, String> {
    let ball = SharedWord(AtomicU32::new(0));
    let hit = |from: u32| {
        while ball.0.load(Ordering::Acquire) != from {
            hint::spin_loop();
        }
        ball.0.store(from + 1, Ordering::Release);
    };
    thread::scope(|scope| {
        let far = scope.spawn(|| {
            // Continues if pinning fails, because the other thread waits for this one.
            let pinned = pin(cores.rx);
            (0..WARM_UP + ROUNDS).for_each(|i| hit(2 * i + 1));
            pinned
        });
        let near = scope.spawn(|| {
            let pinned = pin(cores.tx);
            (0..WARM_UP).for_each(|i| hit(2 * i));
            let mut groups = Vec::with_capacity((ROUNDS / GROUP) as usize);
            for group in 0..ROUNDS / GROUP {
                let start = clock::now_ns();
                let first = WARM_UP + group * GROUP;
                (first..first + GROUP).for_each(|i| hit(2 * i));
                groups.push((clock::now_ns() - start) as f64 / f64::from(GROUP));
            }
            pinned.map(|()| stats::median(&groups))
        });
        let ns = near.join().map_err(|_| "bench: the probe failed".to_string())?;
        far.join().map_err(|_| "bench: the probe failed".to_string())??;
        ns
    })
}

/// Measures the current frequency of the calling thread's processor, in GHz. This is the core clock; the timestamp
/// counter has a constant rate of its own. Returns the fastest of several measurements, because interrupts slow some of
/// them down.
pub(crate) fn core_ghz() -> f64 {
    // A chain of dependent additions and exclusive-ors: one cycle each on all common processors. The operands are
    // unknown to the compiler, which could otherwise compute the result.
    let (a, b) = hint::black_box((0x9e37_79b9_u64, 0x7f4a_7c15_u64));
    let mut x = hint::black_box(1_u64);
    let mut shortest = u64::MAX;
    for _ in 0..TRIES {
        let start = clock::now_ns();
        for _ in 0..CHAIN / 2 {
            x = x.wrapping_add(a) ^ b;
        }
        x = hint::black_box(x);
        shortest = shortest.min(clock::now_ns() - start);
    }
    f64::from(CHAIN) / shortest.max(1) as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_probe_ends_also_if_pinning_fails() {
        let Ok(cores) = Cores::first_two() else {
            eprintln!("skipped: this machine has one processor");
            return;
        };
        assert!(round_trip_ns(cores).unwrap() > 0.0);
        let nowhere = Cores { tx: cores.tx, rx: 1 << 20 };
        assert!(core_distance(nowhere).unwrap_err().contains("processor 1048576"));
    }

    #[test]
    fn the_core_frequency_is_positive() {
        let ghz = core_ghz();
        assert!(ghz > 0.0 && ghz.is_finite());
    }
}
