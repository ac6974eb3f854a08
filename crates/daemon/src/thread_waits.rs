// SPDX-License-Identifier: BSD-2-Clause
//! Bounds how long the control thread waits for the threads that move packets: one that is held up, waiting for a page
//! of memory that is swapped out, say, is left behind. What it may still use is freed later.

use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use unetmap_sys::thread::is_held;

use crate::tuning::thread_waits::{END_POLL, LIMIT, LIMIT_OF_BUSY, POLL};

/// Waits for `done`, which waits for at most the time that it is given, and returns whether it is so; `tid` is the
/// thread that will do it. Returns `false` if that thread is held up.
pub(crate) fn wait_for_thread(tid: impl Fn() -> u32, mut done: impl FnMut(Duration) -> bool) -> bool {
    let start = Instant::now();
    if done(LIMIT) {
        return true;
    }
    // One that is preempted is waited for: it goes on as soon as it gets a processor.
    while start.elapsed() < LIMIT_OF_BUSY && !is_held(tid()) {
        if done(POLL) {
            return true;
        }
    }
    done(Duration::ZERO)
}

/// Waits for the end of a thread, as [`wait_for_thread`] does.
pub(crate) fn wait_for_end(thread: &JoinHandle<()>, tid: impl Fn() -> u32) -> bool {
    wait_for_thread(tid, |limit| {
        let end = Instant::now() + limit;
        while !thread.is_finished() && Instant::now() < end {
            thread::sleep(END_POLL);
        }
        thread.is_finished()
    })
}
