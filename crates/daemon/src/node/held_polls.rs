// SPDX-License-Identifier: BSD-2-Clause
//! Held polls: in a stream of packets, a poll that finds nothing ready is answered a moment later, when something is.
//!
//! ```text
//! asleep:   poll, nothing; a doorbell, the waker checks and notifies the kernel; the program polls again: answered
//! held:     poll ................... another file's request moves its rings: answered
//! spinning: poll, a check of the rings, and another, and another: answered
//! ```
//! Letting a program sleep and waking it takes two requests, a doorbell and the waker's turn: several times as long as
//! a poll that finds something. A held poll needs no doorbell. The threads that answer requests check the held polls of
//! the same user after each request that may have moved their rings.
//!
//! If the thread that answers a program's requests is pinned to the program's CPU (`affinity`), and serves no other
//! program, it first spins on the rings itself, for [`POLL_SPIN`]: what the peer does in that time is found without
//! waking a sleeping CPU, which takes as long. While it spins it yields the CPU to others. Spinning without success
//! becomes rarer, too.
//!
//! The peer may use another access method, or be a switch, and then no request of this node checks the poll. So a poll
//! is held for [`HOLD`] and no longer; then the waker takes over. After a poll that was held without success the next
//! of its file is not held, then the next two, four, up to [`MAX_BACKOFF`]; a held poll that the peer's request ended
//! resets that.
//!
//! While a poll is held its program waits in the kernel, and gets no events of other files. So a poll is held only if
//! its thread polled this file of the node last, and only while packets come.

use std::io;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering, fence};
use std::sync::{Arc, Mutex};
use std::time::Instant;

use unetmap_core::{Error, Interest};

use super::file::{File, revents};
use super::mount::RequestId;
use crate::subordinates::Subordinates;
use crate::threads::lock;
use crate::tuning::node::{HOLD, MAX_HELD, MAX_HELD_OF_USER, POLL_SPIN, REMEMBERED_THREADS, SHARED_CPU_YIELD};

/// A poll that waits for its answer.
pub(super) struct HeldPoll {
    pub(super) id: RequestId,
    pub(super) file: Arc<File>,
    pub(super) kh: u64,
    pub(super) want: Interest,
    /// The events in the program's call.
    pub(super) events: u32,
}

impl HeldPoll {
    /// Answers the poll. It must be called once.
    pub(super) fn answer(&self, ready: Result<Interest, Error>) -> io::Result<()> {
        self.id.mount.dev.reply_poll(self.id.unique, revents(self.events, ready))
    }
}

/// Whether nothing is ready, and nothing failed.
pub(super) fn is_none(ready: &Result<Interest, Error>) -> bool {
    matches!(ready, Ok(ready) if ready.is_none())
}

/// Checks the rings of a file until something is ready, for [`POLL_SPIN`] at most, and not after other threads had the
/// CPU.
pub(super) fn spin_until_ready(file: &File, want: Interest) -> Result<Interest, Error> {
    let start = Instant::now();
    let mut last = start;
    loop {
        let ready = file.poll_now(want);
        if !is_none(&ready) {
            file.spinning.succeeded();
            return ready;
        }
        std::thread::yield_now();
        let now = Instant::now();
        if now - last > SHARED_CPU_YIELD || now - start > POLL_SPIN {
            file.spinning.failed();
            return ready;
        }
        last = now;
    }
}

/// All polls that are held.
pub(super) struct HeldPolls {
    /// The number of held polls.
    count: AtomicUsize,
    inner: Mutex<Inner>,
    /// The last poll of each thread: the thread's number, and the lower half of the file's.
    last: Box<[AtomicU64]>,
}

#[derive(Default)]
struct Inner {
    /// Each with the end of its time.
    held: Vec<(Instant, HeldPoll)>,
    /// Whether the waker checks once in [`HOLD`] for polls whose time has passed.
    ticking: bool,
    /// Whether a poll was held since the last check.
    used: bool,
}

impl Default for HeldPolls {
    fn default() -> HeldPolls {
        let last = (0..REMEMBERED_THREADS).map(|_| AtomicU64::new(0)).collect();
        HeldPolls { count: AtomicUsize::new(0), inner: Mutex::default(), last }
    }
}

impl HeldPolls {
    /// Records that a thread polls a file; returns whether that is the file that it polled last.
    pub(super) fn again(&self, tid: u32, file: &File) -> bool {
        let poll = u64::from(tid) << 32 | file.fh & u64::from(u32::MAX);
        self.last[tid as usize % REMEMBERED_THREADS].swap(poll, Ordering::Relaxed) == poll
    }

    /// Holds a poll. Returns whether the waker must be notified; `None` if too many are held.
    pub(super) fn hold(&self, poll: HeldPoll) -> Option<bool> {
        let mut inner = lock(&self.inner);
        let held = inner.held.iter().map(|(_, held)| (held.file.uid, 1));
        let of_user = Subordinates::of_system().sum(poll.file.uid, held) as usize;
        if of_user >= MAX_HELD_OF_USER || inner.held.len() >= MAX_HELD {
            return None;
        }
        inner.held.push((Instant::now() + HOLD, poll));
        inner.used = true;
        self.count.store(inner.held.len(), Ordering::Relaxed);
        // The poll must be counted before its rings are checked once more.
        fence(Ordering::SeqCst);
        Some(!std::mem::replace(&mut inner.ticking, true))
    }

    /// After a request about `file`: takes out a poll of the same arena for which something is ready, or which failed.
    /// The caller answers it, and calls again.
    pub(super) fn take_ready(&self, file: &File) -> Option<(HeldPoll, Result<Interest, Error>)> {
        // A thread that holds a poll after this fence sees what the request moved; a poll held before it is counted.
        fence(Ordering::SeqCst);
        if self.count.load(Ordering::Relaxed) == 0 {
            return None;
        }
        let mut inner = lock(&self.inner);
        let found = inner.held.iter().enumerate().find_map(|(i, (_, poll))| {
            if !Arc::ptr_eq(&poll.file.arena, &file.arena) {
                return None;
            }
            let ready = poll.file.poll_now(poll.want);
            (!is_none(&ready)).then_some((i, ready))
        });
        let (i, ready) = found?;
        let (_, poll) = inner.held.swap_remove(i);
        self.count.store(inner.held.len(), Ordering::Relaxed);
        // If the peer used another access method, the request that ended the poll came by chance.
        if poll.file.is_peer_of(file) {
            poll.file.holding.succeeded();
        }
        Some((poll, ready))
    }

    /// Takes out the poll of that request.
    pub(super) fn take(&self, id: &RequestId) -> Option<HeldPoll> {
        let mut inner = lock(&self.inner);
        let at = inner.held.iter().position(|(_, held)| held.id.key() == id.key())?;
        let (_, poll) = inner.held.swap_remove(at);
        self.count.store(inner.held.len(), Ordering::Relaxed);
        Some(poll)
    }

    /// Takes out all polls.
    pub(super) fn take_all(&self) -> Vec<HeldPoll> {
        let mut inner = lock(&self.inner);
        self.count.store(0, Ordering::Relaxed);
        let Inner { held, .. } = std::mem::take(&mut *inner);
        held.into_iter().map(|(_, poll)| poll).collect()
    }

    /// Removes the polls of a file that is closed.
    pub(super) fn forget(&self, file: &File) {
        let mut inner = lock(&self.inner);
        inner.held.retain(|(_, poll)| poll.file.fh != file.fh);
        self.count.store(inner.held.len(), Ordering::Relaxed);
    }

    /// Takes out the polls whose time has passed, and returns whether to check again.
    pub(super) fn take_expired(&self, now: Instant) -> (Vec<HeldPoll>, bool) {
        let mut inner = lock(&self.inner);
        let expired: Vec<HeldPoll> = inner.held.extract_if(.., |(end, _)| *end <= now).map(|(_, poll)| poll).collect();
        expired.iter().for_each(|poll| poll.file.holding.failed());
        self.count.store(inner.held.len(), Ordering::Relaxed);
        inner.ticking = !inner.held.is_empty() || inner.used;
        inner.used = false;
        (expired, inner.ticking)
    }
}
