// SPDX-License-Identifier: BSD-2-Clause
//! Futex waits: short sleeps on a word of shared memory that hand this processor to another process.
//!
//! `sched_yield` lets only tasks of one scheduling group take turns: one session (autogroup) or one control group. A
//! short sleep on a word that both processes share hands the processor over across groups, for about three system
//! calls.

use std::sync::atomic::AtomicU32;

use rustix::io::Errno;
use rustix::thread::ClockId;
use rustix::thread::futex::{self, Flags, Timespec, Wait, WaitFlags, WaitPtr, WaitvFlags};

use crate::clock::now_ns;
pub use crate::tuning::{MAX_WORDS, WAIT_LIMIT};

/// Sleeps while `word` equals `value`, until [`wake_one`] or for [`WAIT_LIMIT`]. May return early. Returns whether it
/// was woken.
#[cold]
pub fn wait(word: &AtomicU32, value: u32) -> bool {
    let limit = Timespec { tv_sec: 0, tv_nsec: WAIT_LIMIT.as_nanos() as i64 }; // below a second
    futex::wait(word, Flags::empty(), value, Some(&limit)).is_ok()
}

/// Sleeps while all of `words` equal `value`, until [`wake_one`] on one of them or for [`WAIT_LIMIT`]. Words after the
/// first [`MAX_WORDS`] are ignored. Returns whether it was woken.
///
/// Before Linux 5.16 only the first word is waited for.
#[cold]
pub fn wait_any<'a>(words: impl Iterator<Item = &'a AtomicU32>, value: u32) -> bool {
    let (mut all, mut n, mut first) = ([Wait::new(); MAX_WORDS], 0, None);
    for (wait, word) in all.iter_mut().zip(words) {
        wait.val = u64::from(value);
        wait.uaddr = WaitPtr::new(word.as_ptr().cast());
        wait.flags = WaitFlags::SIZE_U32;
        n += 1;
        first = first.or(Some(word));
    }
    let end = now_ns() + WAIT_LIMIT.as_nanos() as u64;
    let end = Timespec { tv_sec: (end / 1_000_000_000).cast_signed(), tv_nsec: (end % 1_000_000_000).cast_signed() };
    match futex::waitv(&all[..n], WaitvFlags::empty(), Some(&end), ClockId::Monotonic) {
        Ok(_) => true,
        Err(Errno::NOSYS | Errno::PERM) => first.is_some_and(|word| wait(word, value)),
        Err(_) => false,
    }
}

/// Whether [`wait_any`] waits for all words here (Linux 5.16), not for the first alone.
pub fn can_wait_for_several() -> bool {
    futex::waitv(&[], WaitvFlags::empty(), None, ClockId::Monotonic) != Err(Errno::NOSYS)
}

/// Wakes one thread that waits on `word`.
#[cold]
pub fn wake_one(word: &AtomicU32) {
    // Fails only if the word is in unmapped memory.
    let _ = futex::wake(word, Flags::empty(), 1);
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::Ordering::SeqCst;
    use std::time::Instant;

    use super::*;

    #[test]
    fn a_wait_ends_by_wake_change_or_timeout() {
        let word = AtomicU32::new(1);
        let start = Instant::now();
        wait(&word, 0);
        wait(&word, 1);
        assert!(start.elapsed() >= WAIT_LIMIT / 2, "it did not sleep");
        std::thread::scope(|scope| {
            let waker = scope.spawn(|| {
                while word.load(SeqCst) != 3 {
                    word.store(2, SeqCst);
                    wake_one(&word);
                    std::thread::yield_now();
                }
            });
            while word.load(SeqCst) == 1 {
                wait(&word, 1);
            }
            wait(&word, 1);
            word.store(3, SeqCst);
            waker.join().unwrap();
        });
    }

    #[test]
    fn a_wake_of_any_word_ends_the_wait() {
        let words: [AtomicU32; MAX_WORDS] = std::array::from_fn(|_| AtomicU32::new(1));
        assert!(!wait_any(words.iter(), 0), "the values differ");
        if !can_wait_for_several() {
            eprintln!("skipped: this kernel, or its emulation, has no futex_waitv (Linux 5.16)");
            return;
        }
        assert!(!wait_any(words.iter(), 1), "no thread woke it");
        for word in [&words[0], &words[MAX_WORDS - 1]] {
            let woken = AtomicU32::new(0);
            std::thread::scope(|scope| {
                scope.spawn(|| {
                    while woken.load(SeqCst) == 0 {
                        wake_one(word);
                        std::thread::yield_now();
                    }
                });
                // A wait may time out before the other thread has started.
                while !wait_any(words.iter(), 1) {}
                woken.store(1, SeqCst);
            });
        }
    }
}
