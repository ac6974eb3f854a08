//! Naps: giving this processor to another process for as long as that has something to do here.
//!
//! `sched_yield` lets only tasks of one scheduling group take turns: of one session (autogroups), or one control group. A
//! short sleep on a word that both share hands the processor over whatever the groups are, for about three system calls.

use std::sync::atomic::AtomicU32;
use std::time::Duration;

use rustix::thread::futex::{self, Flags, Timespec};

/// How long a nap lasts at most. A time beyond the next tick costs no programming of the timer (some 8 us in a virtual
/// machine).
pub const LIMIT: Duration = Duration::from_millis(5);

/// Sleeps, if `word` is `value` still, until [`wake`] or for 5 ms. May return early.
#[cold]
pub fn nap(word: &AtomicU32, value: u32) {
    let limit = Timespec { tv_sec: 0, tv_nsec: LIMIT.as_nanos() as i64 }; // below a second
    // However it ends, the caller looks again.
    let _ = futex::wait(word, Flags::empty(), value, Some(&limit));
}

/// Wakes one who naps on `word`.
#[cold]
pub fn wake(word: &AtomicU32) {
    // Fails only where the word is in no memory.
    let _ = futex::wake(word, Flags::empty(), 1);
}

/// The number of the processor that the calling thread is on, as long as it stays there; a few nanoseconds.
#[inline]
pub fn this_cpu() -> u32 {
    // SAFETY: takes nothing.
    let cpu = unsafe { libc::sched_getcpu() };
    u32::try_from(cpu).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::Ordering::SeqCst;
    use std::time::Instant;

    use super::*;

    #[test]
    fn naps_end() {
        let word = AtomicU32::new(1);
        let start = Instant::now();
        nap(&word, 0);
        nap(&word, 1);
        assert!(start.elapsed() >= LIMIT / 2, "it did not sleep");
        std::thread::scope(|scope| {
            let waker = scope.spawn(|| {
                while word.load(SeqCst) != 3 {
                    word.store(2, SeqCst);
                    wake(&word);
                    std::thread::yield_now();
                }
            });
            while word.load(SeqCst) == 1 {
                nap(&word, 1);
            }
            nap(&word, 1);
            word.store(3, SeqCst);
            waker.join().unwrap();
        });
        assert!(this_cpu() < 1 << 20);
    }
}
