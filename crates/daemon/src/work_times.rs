// SPDX-License-Identifier: BSD-2-Clause
//! How long the control thread takes for its work, for `unetmap ls --json`. The time in which it could run and other
//! programs had the processors is not counted: it says nothing about the work.

use std::collections::BTreeMap;
use std::fs::File;
use std::os::unix::fs::FileExt as _;
use std::time::{Duration, Instant};

use serde::Serialize;

use crate::tuning::server::LONG_WORK;

/// Measures pieces of work of one thread.
pub(crate) struct WorkClock {
    /// Its `schedstat` (proc(5)): nanoseconds on a processor, nanoseconds in which it waited for one, and a number.
    /// `None`: the kernel does not tell.
    schedstat: Option<File>,
}

/// The begin of a piece of work.
pub(crate) struct Begin {
    pub(crate) at: Instant,
    waited: Duration,
}

impl WorkClock {
    /// A clock of the calling thread.
    pub(crate) fn new() -> WorkClock {
        WorkClock { schedstat: File::open("/proc/thread-self/schedstat").ok() }
    }

    /// Reads for each piece how long the thread has waited, which takes 0.3 us: at the end of a long one it is too
    /// late, as what has come since the last one that was read belongs to the pieces between.
    pub(crate) fn begin(&self) -> Begin {
        Begin { at: Instant::now(), waited: self.waited() }
    }

    /// The time since `begin`, without that in which the thread waited for a processor. That is looked up for long
    /// pieces only.
    pub(crate) fn end(&self, begin: &Begin) -> Duration {
        let elapsed = begin.at.elapsed();
        if elapsed <= LONG_WORK {
            return elapsed;
        }
        elapsed.saturating_sub(self.waited().saturating_sub(begin.waited))
    }

    /// How long the thread has waited for a processor since it exists.
    fn waited(&self) -> Duration {
        let mut text = [0; 64];
        let length = self.schedstat.as_ref().and_then(|file| file.read_at(&mut text, 0).ok()).unwrap_or(0);
        let text = std::str::from_utf8(&text[..length]).unwrap_or_default();
        Duration::from_nanos(text.split(' ').nth(1).and_then(|nanos| nanos.parse().ok()).unwrap_or(0))
    }
}

/// Since the daemon was started. One piece of work is a request, the end of a connection, a job of the node, or an
/// event that concerns no user's connection.
#[derive(Clone, Default, Serialize)]
pub(crate) struct WorkTimes {
    pieces: u64,
    /// Pieces that took longer than [`LONG_WORK`].
    long: u64,
    /// The longest, in microseconds, and its user.
    longest_us: u64,
    longest_uid: u32,
    /// The same of each kind.
    kinds: BTreeMap<&'static str, KindTimes>,
}

#[derive(Clone, Copy, Default, Serialize)]
struct KindTimes {
    pieces: u64,
    total_us: u64,
    long: u64,
    longest_us: u64,
}

impl WorkTimes {
    /// Records a piece of work of a user.
    pub(crate) fn add(&mut self, uid: u32, kind: &'static str, time: Duration) {
        let us = u64::try_from(time.as_micros()).unwrap_or(u64::MAX);
        let long = u64::from(time > LONG_WORK);
        self.pieces += 1;
        self.long += long;
        if us > self.longest_us {
            (self.longest_us, self.longest_uid) = (us, uid);
        }
        let of_kind = self.kinds.entry(kind).or_default();
        of_kind.pieces += 1;
        of_kind.total_us = of_kind.total_us.saturating_add(us);
        of_kind.long += long;
        of_kind.longest_us = of_kind.longest_us.max(us);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, Ordering};
    use std::thread;

    use unetmap_sys::process;

    use super::*;

    #[test]
    fn time_in_which_others_had_the_processor_is_not_counted() {
        let cpu = process::cpus_allowed()[0];
        let is_done = AtomicBool::new(false);
        thread::scope(|scope| {
            let other = || {
                process::pin_to_cpu(cpu).expect("one of the allowed ones");
                while !is_done.load(Ordering::Relaxed) {
                    std::hint::spin_loop();
                }
            };
            scope.spawn(other);
            scope.spawn(|| {
                process::pin_to_cpu(cpu).expect("one of the allowed ones");
                let clock = WorkClock::new();
                let begin = clock.begin();
                // Until the other thread had it for long.
                let waits = begin.at + Duration::from_secs(60);
                while clock.waited() < begin.waited + LONG_WORK * 4 && Instant::now() < waits {}
                let (time, elapsed) = (clock.end(&begin), begin.at.elapsed());
                is_done.store(true, Ordering::Relaxed);
                if clock.waited().is_zero() {
                    return eprintln!("skipped: this kernel has no schedstat");
                }
                assert!(time + LONG_WORK * 4 <= elapsed, "{time:?} of {elapsed:?}");
            });
        });
    }

    #[test]
    fn the_longest_piece_is_kept_with_its_user_and_its_kind() {
        let mut times = WorkTimes::default();
        for (uid, kind, ms) in [(1, "a", 3), (2, "b", 7), (3, "a", 6)] {
            times.add(uid, kind, Duration::from_millis(ms));
        }
        let WorkTimes { pieces, long, longest_us, longest_uid, kinds } = times;
        assert_eq!((pieces, long, longest_us, longest_uid), (3, 2, 7000, 2));
        let of = |kind| {
            let KindTimes { pieces, total_us, long, longest_us } = kinds[kind];
            (pieces, total_us, long, longest_us)
        };
        assert_eq!((of("a"), of("b")), ((2, 9000, 1, 6000), (1, 7000, 1, 7000)));
    }
}
