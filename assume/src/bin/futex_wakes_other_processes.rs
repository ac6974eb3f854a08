// SPDX-License-Identifier: BSD-2-Clause
//! A process that sleeps on words of shared memory is woken by another process that maps the same memory elsewhere.

#![forbid(unsafe_code)]

use std::os::fd::AsFd;
use std::process::ExitCode;
use std::sync::atomic::Ordering::SeqCst;
use std::time::{Duration, Instant};

use assume::{CheckResult, Failure, Outcome, expect, fork, run_check, word};
use rustix::io::Errno;
use rustix::thread::ClockId;
use rustix::thread::futex::{WaitvFlags, waitv};
use unetmap_sys::futex::{MAX_WORDS, WAIT_LIMIT, wait, wait_any, wake_one};
use unetmap_sys::{Mapping, memfd};

const BYTES: usize = 4096;
/// Longest time until a waiter must have been woken once.
const LIMIT: Duration = Duration::from_secs(20);

fn main() -> ExitCode {
    run_check("futex waits on one word and on several (futex_waitv) are woken by another process", || {
        let fd = memfd::create_sealed("assume", BYTES as u64)?;
        // Two mappings: waits must not depend on the address.
        let (waiter, waker) = (Mapping::new(fd.as_fd(), BYTES)?, Mapping::new(fd.as_fd(), BYTES)?);
        one_word(&waiter, &waker)?;
        if waitv(&[], WaitvFlags::empty(), None, ClockId::Monotonic) == Err(Errno::NOSYS) {
            return Err(Failure::Untestable("this kernel has no futex_waitv (before Linux 5.16)".into()));
        }
        several_words(&waiter, &waker)
    })
}

/// A child waits repeatedly with `wait_once`, until it was woken; this process wakes `at` meanwhile.
fn woken_by(waker: &Mapping, at: usize, wait_once: impl Fn() -> bool) -> CheckResult {
    let done = word(waker, BYTES - 4);
    done.store(0, SeqCst);
    let child = fork(|| {
        let start = Instant::now();
        let mut woken = false;
        while !woken && start.elapsed() < LIMIT {
            woken = wait_once();
        }
        done.store(1, SeqCst);
        u8::from(!woken)
    })?;
    while done.load(SeqCst) == 0 {
        wake_one(word(waker, at));
        std::thread::yield_now();
    }
    let outcome = child.wait()?;
    expect(outcome == Outcome::Exit(0), format_args!("a waiter on word {at} was not woken: {outcome:?}"))
}

fn one_word(waiter: &Mapping, waker: &Mapping) -> CheckResult {
    expect(!wait(word(waiter, 0), 1), "a wait for another value reported a wake")?;
    woken_by(waker, 0, || wait(word(waiter, 0), 0))
}

fn several_words(waiter: &Mapping, waker: &Mapping) -> CheckResult {
    let words = || (0..MAX_WORDS).map(|i| word(waiter, i * 4));
    let start = Instant::now();
    expect(!wait_any(words(), 1), "a wait for other values reported a wake")?;
    expect(!wait_any(words(), 0), "a wait without a wake reported one")?;
    expect(start.elapsed() >= WAIT_LIMIT, "the wait ended before its timeout")?;
    for i in [0, MAX_WORDS / 2, MAX_WORDS - 1] {
        woken_by(waker, i * 4, || wait_any(words(), 0))?;
    }
    Ok(())
}
