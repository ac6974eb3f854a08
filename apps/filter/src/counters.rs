// SPDX-License-Identifier: BSD-2-Clause
//! Counters of rules. Each thread that evaluates packets has a cell of its own, so that counting needs no lock and no
//! shared cache line; readers add the cells up.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// Counts of one rule by one thread.
#[derive(Debug, Default)]
#[repr(align(64))]
struct Cell {
    packets: AtomicU64,
    bytes: AtomicU64,
    /// Seconds since the epoch of the last match; 0: none.
    last: AtomicU64,
}

/// Packets and bytes that matched a rule.
#[derive(Debug)]
pub struct RuleCounters {
    cells: Box<[Cell]>,
    /// Packets that were logged since the last reset.
    logged: AtomicU64,
    /// Counts when they were last set to zero. Only the thread that changes rules writes them.
    zero: [AtomicU64; 2],
}

/// Counts of a rule at one moment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Packets.
    pub packets: u64,
    /// Bytes of their frames.
    pub bytes: u64,
    /// Seconds since the epoch of the last match; 0: none.
    pub last: u64,
}

impl RuleCounters {
    /// Makes counters for `threads` threads.
    pub fn new(threads: usize) -> RuleCounters {
        RuleCounters {
            cells: (0..threads).map(|_| Cell::default()).collect(),
            logged: 0.into(),
            zero: Default::default(),
        }
    }

    /// Counts packets that matched at `now` (seconds). `thread` is the caller's number: only it writes this cell.
    #[inline(always)]
    pub fn add(&self, thread: usize, packets: u64, bytes: u64, now: u64) {
        let Some(cell) = self.cells.get(thread) else { return };
        cell.packets.store(cell.packets.load(Relaxed).wrapping_add(packets), Relaxed);
        cell.bytes.store(cell.bytes.load(Relaxed).wrapping_add(bytes), Relaxed);
        cell.last.store(now, Relaxed);
    }

    /// Returns true if another packet may be logged.
    pub fn log(&self, limit: u32) -> bool {
        let before = self.logged.fetch_add(1, Relaxed);
        limit == 0 || before < u64::from(limit)
    }

    /// Allows as many logged packets again as at first.
    pub fn reset_log(&self) {
        self.logged.store(0, Relaxed);
    }

    /// Returns what [`RuleCounters::zero`] and [`RuleCounters::reset_log`] change.
    pub(crate) fn marks(&self) -> [u64; 3] {
        [&self.zero[0], &self.zero[1], &self.logged].map(|word| word.load(Relaxed))
    }

    /// Undoes what they have changed since.
    pub(crate) fn set_marks(&self, [packets, bytes, logged]: [u64; 3]) {
        self.zero[0].store(packets, Relaxed);
        self.zero[1].store(bytes, Relaxed);
        self.logged.fetch_add(logged, Relaxed);
    }

    fn sum(&self) -> Counts {
        self.cells.iter().fold(Counts::default(), |sum, cell| Counts {
            packets: sum.packets.wrapping_add(cell.packets.load(Relaxed)),
            bytes: sum.bytes.wrapping_add(cell.bytes.load(Relaxed)),
            last: sum.last.max(cell.last.load(Relaxed)),
        })
    }

    /// Returns the counts since they were last set to zero.
    pub fn get(&self) -> Counts {
        let Counts { packets, bytes, last } = self.sum();
        let [zero_packets, zero_bytes] = [&self.zero[0], &self.zero[1]].map(|word| word.load(Relaxed));
        let packets = packets.wrapping_sub(zero_packets);
        Counts { packets, bytes: bytes.wrapping_sub(zero_bytes), last: if packets > 0 { last } else { 0 } }
    }

    /// Sets the counts to zero. Loses no packet that is counted meanwhile.
    pub fn zero(&self) {
        let Counts { packets, bytes, .. } = self.sum();
        self.zero[0].store(packets, Relaxed);
        self.zero[1].store(bytes, Relaxed);
        self.reset_log();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_of_all_threads_are_added_and_set_to_zero() {
        let counters = RuleCounters::new(2);
        counters.add(0, 2, 120, 7);
        counters.add(1, 1, 60, 9);
        counters.add(2, 1, 60, 9); // no such thread
        assert_eq!(counters.get(), Counts { packets: 3, bytes: 180, last: 9 });
        counters.zero();
        assert_eq!(counters.get(), Counts::default());
        counters.add(1, 1, 60, 11);
        assert_eq!(counters.get(), Counts { packets: 1, bytes: 60, last: 11 });
    }

    #[test]
    fn a_limited_log_stops_until_it_is_reset() {
        let counters = RuleCounters::new(1);
        assert_eq!([(); 3].map(|()| counters.log(2)), [true, true, false]);
        counters.reset_log();
        assert!(counters.log(2) && counters.log(0));
    }
}
