//! Polls that are held: in a stream, a poll that finds nothing ready is answered a moment later, when something is.
//!
//! ```text
//! sent to sleep: poll, nothing; a bell rings, the watch looks and tells the kernel; the program asks again, and is answered
//! held:          poll ................... another file's request moves its rings: answered
//! ```
//! To be sent to sleep and woken takes two requests, a bell and the watch's turn: several times as long as a poll that
//! finds something. Nobody rings for a held poll. Whoever answers requests looks at the held ones of the same user after
//! each that may have moved their rings.
//!
//! The peer may be elsewhere, though (at another door, a switch), and then nobody looks. So a poll is held for [`HOLD`] and
//! no longer; then the watch takes over. After one that was held in vain the next of its file is not held, then the next
//! two, four, up to [`MOST_UNHELD`]; one that the peer's request ended ends that.
//!
//! While it is held its program waits in the kernel and does not learn of other files. So only a thread that polled this
//! file of the node last is held, and only while packets come.

use std::sync::atomic::{AtomicU32, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use unetmap::{Error, Interest};

use super::file::File;

/// How long a poll is held.
pub(super) const HOLD: Duration = Duration::from_micros(300);
/// Polls of a file that find nothing and are not held, at most, after some that were held in vain.
const MOST_UNHELD: u32 = 256;
/// Polls of one user that are held at a time: each is looked at after each request of his.
const MOST_OF_A_USER: usize = 4;
/// Polls that are held at a time.
const MOST: usize = 32;
/// Threads whose last poll is remembered. Of two whose numbers are a multiple of this apart neither is held while both poll.
const PLACES: usize = 4096;

/// A poll that waits for its answer.
pub(super) struct Held {
    pub(super) unique: u64,
    pub(super) file: Arc<File>,
    pub(super) kh: u64,
    pub(super) want: Interest,
    /// As its program asked.
    pub(super) events: u32,
}

/// Whether polls of a file are worth holding. Two threads that change it at the same time may lose one change.
#[derive(Default)]
pub(super) struct Worth {
    /// Polls that find nothing until one is held again.
    wait: AtomicU32,
    /// How many these were after the last that was held in vain.
    waits: AtomicU32,
}

impl Worth {
    /// Asked by each poll that found nothing.
    pub(super) fn ask(&self) -> bool {
        let wait = self.wait.load(Ordering::Relaxed);
        self.wait.store(wait.saturating_sub(1), Ordering::Relaxed);
        wait == 0
    }

    /// One was held until its peer made something ready.
    fn good(&self) {
        self.waits.store(0, Ordering::Relaxed);
    }

    /// One was held in vain.
    fn bad(&self) {
        let waits = (self.waits.load(Ordering::Relaxed) * 2).clamp(1, MOST_UNHELD);
        self.waits.store(waits, Ordering::Relaxed);
        self.wait.store(waits, Ordering::Relaxed);
    }
}

/// All polls that are held.
pub(super) struct Holds {
    /// How many there are.
    count: AtomicUsize,
    inner: Mutex<Inner>,
    /// The last polls of threads: the thread's number, and half of the file's.
    last: Box<[AtomicU64]>,
}

#[derive(Default)]
struct Inner {
    /// Each with when its time is over.
    held: Vec<(Instant, Held)>,
    /// The watch looks once in [`HOLD`] whether one is over.
    ticking: bool,
    /// Whether one was held since it looked.
    used: bool,
}

impl Default for Holds {
    fn default() -> Holds {
        let last = (0..PLACES).map(|_| AtomicU64::new(0)).collect();
        Holds { count: AtomicUsize::new(0), inner: Mutex::default(), last }
    }
}

impl Holds {
    fn inner(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Notes that a thread polls a file; whether that is the file that it polled last.
    pub(super) fn again(&self, tid: u32, file: &File) -> bool {
        let poll = u64::from(tid) << 32 | file.fh & u64::from(u32::MAX);
        self.last[tid as usize % PLACES].swap(poll, Ordering::Relaxed) == poll
    }

    /// Holds a poll; whether the watch is to be told so, or `None`: there are enough.
    pub(super) fn keep(&self, poll: Held) -> Option<bool> {
        let mut inner = self.inner();
        let of_user = inner.held.iter().filter(|(_, held)| held.file.uid == poll.file.uid).count();
        if of_user >= MOST_OF_A_USER || inner.held.len() >= MOST {
            return None;
        }
        inner.held.push((Instant::now() + HOLD, poll));
        inner.used = true;
        self.count.store(inner.held.len(), Ordering::Relaxed);
        Some(!std::mem::replace(&mut inner.ticking, true))
    }

    /// After a request about `file`: takes out those of the same estate for which something is ready, or which failed.
    pub(super) fn look(&self, file: &File, mut answer: impl FnMut(Held, Result<Interest, Error>)) {
        if self.count.load(Ordering::Relaxed) == 0 {
            return;
        }
        let mut inner = self.inner();
        let mut i = 0;
        while let Some((_, poll)) = inner.held.get(i) {
            let ready = match poll.file.port().filter(|_| Arc::ptr_eq(&poll.file.estate, &file.estate)) {
                Some(port) => port.glance(poll.want),
                None => Ok(Interest::NONE),
            };
            if matches!(ready, Ok(ready) if ready.is_none()) {
                i += 1;
                continue;
            }
            let (_, poll) = inner.held.swap_remove(i);
            self.count.store(inner.held.len(), Ordering::Relaxed);
            // Had the peer been elsewhere, it would be luck that somebody looked.
            if poll.file.is_peer_of(file) {
                poll.file.worth.good();
            }
            answer(poll, ready);
        }
    }

    /// Takes out the one of that number.
    pub(super) fn take(&self, unique: u64) -> Option<Held> {
        let mut inner = self.inner();
        let at = inner.held.iter().position(|(_, held)| held.unique == unique)?;
        let (_, poll) = inner.held.swap_remove(at);
        self.count.store(inner.held.len(), Ordering::Relaxed);
        Some(poll)
    }

    /// The file is closed.
    pub(super) fn forget(&self, file: &File) {
        let mut inner = self.inner();
        inner.held.retain(|(_, poll)| poll.file.fh != file.fh);
        self.count.store(inner.held.len(), Ordering::Relaxed);
    }

    /// Takes out those whose time is over, and says whether to come back for others.
    pub(super) fn over(&self, now: Instant) -> (Vec<Held>, bool) {
        let mut inner = self.inner();
        let over: Vec<Held> = inner.held.extract_if(.., |(end, _)| *end <= now).map(|(_, poll)| poll).collect();
        over.iter().for_each(|poll| poll.file.worth.bad());
        self.count.store(inner.held.len(), Ordering::Relaxed);
        inner.ticking = !inner.held.is_empty() || inner.used;
        inner.used = false;
        (over, inner.ticking)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// How many polls are not held after each of some that were held in vain.
    fn pauses(worth: &Worth, times: u32) -> Vec<u32> {
        let mut pauses = Vec::new();
        for _ in 0..times {
            worth.bad();
            pauses.push((0..).take_while(|_| !worth.ask()).count() as u32);
        }
        pauses
    }

    #[test]
    fn what_is_held_in_vain_is_held_less_and_less() {
        let worth = Worth::default();
        assert!(worth.ask());
        assert_eq!(pauses(&worth, 11), [1, 2, 4, 8, 16, 32, 64, 128, 256, 256, 256]);
        worth.good();
        assert!(worth.ask());
        assert_eq!(pauses(&worth, 2), [1, 2]);
    }
}
