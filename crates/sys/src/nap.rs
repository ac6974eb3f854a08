//! Naps: giving this processor to another process for as long as that has something to do here.
//!
//! `sched_yield` lets only tasks of one scheduling group take turns: of one session (autogroups), or one control group. A
//! short sleep on a word that both share hands the processor over whatever the groups are, for about three system calls.

use std::sync::atomic::AtomicU32;
use std::time::Duration;

use rustix::io::Errno;
use rustix::thread::ClockId;

use rustix::thread::futex::{self, Flags, Timespec, Wait, WaitFlags, WaitPtr, WaitvFlags};

use crate::clock::now_ns;

/// How long a nap lasts at most. A time beyond the next tick costs no programming of the timer (some 8 us in a virtual
/// machine).
pub const LIMIT: Duration = Duration::from_millis(5);

/// Sleeps, if `word` is `value` still, until [`wake`] or for 5 ms. May return early. Returns whether it was woken.
#[cold]
pub fn nap(word: &AtomicU32, value: u32) -> bool {
    let limit = Timespec { tv_sec: 0, tv_nsec: LIMIT.as_nanos() as i64 }; // below a second
    futex::wait(word, Flags::empty(), value, Some(&limit)).is_ok()
}

/// Words that [`nap_on_any`] takes at most.
pub const MOST: usize = 32;

/// Sleeps, if all of `words` are `value` still, until [`wake`] on one of them or for 5 ms; what comes behind [`MOST`] words
/// does not count. Returns whether it was woken.
///
/// Before Linux 5.16 only the first word counts.
#[cold]
pub fn nap_on_any<'a>(words: impl Iterator<Item = &'a AtomicU32>, value: u32) -> bool {
    let (mut all, mut n, mut first) = ([Wait::new(); MOST], 0, None);
    for (wait, word) in all.iter_mut().zip(words) {
        wait.val = u64::from(value);
        wait.uaddr = WaitPtr::new(word.as_ptr().cast());
        wait.flags = WaitFlags::SIZE_U32;
        n += 1;
        first = first.or(Some(word));
    }
    let end = now_ns() + LIMIT.as_nanos() as u64;
    let end = Timespec { tv_sec: (end / 1_000_000_000).cast_signed(), tv_nsec: (end % 1_000_000_000).cast_signed() };
    match futex::waitv(&all[..n], WaitvFlags::empty(), Some(&end), ClockId::Monotonic) {
        Ok(_) => true,
        Err(Errno::NOSYS | Errno::PERM) => first.is_some_and(|word| nap(word, value)),
        Err(_) => false,
    }
}

/// Wakes one who naps on `word`.
#[cold]
pub fn wake(word: &AtomicU32) {
    // Fails only where the word is in no memory.
    let _ = futex::wake(word, Flags::empty(), 1);
}

/// Whether the calling thread, when it is woken, interrupts who has the processor, as far as the scheduler finds that just; else
/// (`SCHED_BATCH`) it waits until he gives it up, or his time is over, a few milliseconds. About 0.5 us.
#[cold]
pub fn interrupts(others: bool) {
    let policy = if others { libc::SCHED_OTHER } else { libc::SCHED_BATCH };
    let none = libc::sched_param { sched_priority: 0 };
    // SAFETY: the kernel reads a struct that lives. It may refuse (a filter of system calls): then all stays as it was.
    unsafe { libc::sched_setscheduler(0, policy, &raw const none) };
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

    #[test]
    fn one_word_of_many_ends_a_nap() {
        let words: [AtomicU32; MOST] = std::array::from_fn(|_| AtomicU32::new(1));
        assert!(!nap_on_any(words.iter(), 0), "they are not what was said");
        assert!(!nap_on_any(words.iter(), 1), "nobody woke it");
        for word in [&words[0], &words[MOST - 1]] {
            let woken = AtomicU32::new(0);
            std::thread::scope(|scope| {
                scope.spawn(|| {
                    while woken.load(SeqCst) == 0 {
                        wake(word);
                        std::thread::yield_now();
                    }
                });
                // A nap may be over before the other thread has begun.
                while !nap_on_any(words.iter(), 1) {}
                woken.store(1, SeqCst);
            });
        }
    }
}
