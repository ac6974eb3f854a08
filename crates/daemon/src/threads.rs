// SPDX-License-Identifier: BSD-2-Clause
//! The daemon's threads: how they are started, and waited for. Only the control thread of root's daemon, and the one
//! that keeps interfaces alive, have a priority above their clients'.

use std::io;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread::{self, Builder, JoinHandle};
use std::time::{Duration, Instant};

use unetmap_sys::thread::{is_held, set_nice};

use crate::tuning::thread_waits::{END_POLL, LIMIT, LIMIT_OF_BUSY, POLL};

/// Starts a thread of this name.
///
/// # Errors
/// There are too many threads.
pub(crate) fn start<T: Send + 'static>(
    name: impl Into<String>,
    work: impl FnOnce() -> T + Send + 'static,
) -> io::Result<JoinHandle<T>> {
    Builder::new().name(name.into()).spawn(|| {
        // Inherited from the control thread. Everybody may be nicer.
        let _ = set_nice(0);
        work()
    })
}

/// Locks a mutex, also after a panic of a thread that had it.
pub(crate) fn lock<T>(what: &Mutex<T>) -> MutexGuard<'_, T> {
    what.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Waits for `done`, which waits for at most the time that it is given, and returns whether it is so; `tid` is the
/// thread that will do it. Returns `false` if that thread is held up, waiting for a page of memory that is swapped out,
/// say: it is left behind, and what it may still use is freed later.
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
