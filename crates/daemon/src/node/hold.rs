//! Polls that are held: in a stream, a poll that finds nothing ready is answered a moment later, when something is.
//!
//! ```text
//! sent to sleep: poll, nothing; a bell rings, the watch looks and tells the kernel; the program asks again, and is answered
//! held:          poll ................... another file's request moves its rings: answered
//! awaited:       poll, a look at the rings, and another, and another: answered
//! ```
//! To be sent to sleep and woken takes two requests, a bell and the watch's turn: several times as long as a poll that
//! finds something. Nobody rings for a held poll. Whoever answers requests looks at the held ones of the same user after
//! each that may have moved their rings.
//!
//! If the thread that answers a program's requests stays at the program's CPU (`follow`), and serves nobody else, it looks
//! at the rings itself first, for [`AWAKE`]: what the peer does in that time is found without any wake-up of a sleeping
//! CPU, which takes as long. While it looks others may have the CPU. What was looked at in vain is looked at less and
//! less, too.
//!
//! The peer may be elsewhere, though (at another door, a switch), and then nobody looks. So a poll is held for [`HOLD`] and
//! no longer; then the watch takes over. After one that was held in vain the next of its file is not held, then the next
//! two, four, up to [`MOST_UNHELD`]; one that the peer's request ended ends that.
//!
//! While it is held its program waits in the kernel and does not learn of other files. So only a thread that polled this
//! file of the node last is held, and only while packets come.

use std::io;
use std::sync::atomic::{AtomicU32, AtomicU64, AtomicUsize, Ordering, fence};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use unetmap_core::{Error, Interest, Port};

use super::file::{File, revents};
use super::way::Ticket;

/// How long a poll is held.
pub(super) const HOLD: Duration = Duration::from_micros(300);
/// How long is looked at the rings before a poll is held: about as long as it takes until another CPU has woken this one
/// and its program runs.
const AWAKE: Duration = Duration::from_micros(30);
/// Who comes back later from giving way had others run here.
const OTHERS: Duration = Duration::from_micros(20);
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
    pub(super) ticket: Ticket,
    pub(super) file: Arc<File>,
    pub(super) kh: u64,
    pub(super) want: Interest,
    /// As its program asked.
    pub(super) events: u32,
}

impl Held {
    /// Answers it, once.
    pub(super) fn answer(&self, ready: Result<Interest, Error>) -> io::Result<()> {
        self.ticket.way.dev.reply_poll(self.ticket.unique, revents(self.events, ready))
    }
}

/// Whether something is worth doing with polls of a file that find nothing: to hold them, to wait awake. Two threads that
/// change it at the same time may lose one change.
#[derive(Default)]
pub(super) struct Worth {
    /// Polls that find nothing until it is done again.
    wait: AtomicU32,
    /// How many these were after it was last done in vain.
    waits: AtomicU32,
}

impl Worth {
    /// Asked by each poll that found nothing.
    pub(super) fn ask(&self) -> bool {
        let wait = self.wait.load(Ordering::Relaxed);
        self.wait.store(wait.saturating_sub(1), Ordering::Relaxed);
        wait == 0
    }

    /// It was not done in vain: the peer made something ready.
    fn good(&self) {
        self.waits.store(0, Ordering::Relaxed);
    }

    /// It was done in vain.
    fn bad(&self) {
        let waits = (self.waits.load(Ordering::Relaxed) * 2).clamp(1, MOST_UNHELD);
        self.waits.store(waits, Ordering::Relaxed);
        self.wait.store(waits, Ordering::Relaxed);
    }
}

/// Whether nothing is ready, and nothing failed.
pub(super) fn is_none(ready: &Result<Interest, Error>) -> bool {
    matches!(ready, Ok(ready) if ready.is_none())
}

/// Looks at the rings of a file until something is ready, for [`AWAKE`] at most, and until others had the CPU.
pub(super) fn await_awake(file: &File, port: &Port, want: Interest) -> Result<Interest, Error> {
    let start = Instant::now();
    let mut last = start;
    loop {
        let ready = port.poll_now(want);
        if !is_none(&ready) {
            file.awaiting.good();
            return ready;
        }
        std::thread::yield_now();
        let now = Instant::now();
        if now - last > OTHERS || now - start > AWAKE {
            file.awaiting.bad();
            return ready;
        }
        last = now;
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
        // Counted before the rings are looked at once more.
        fence(Ordering::SeqCst);
        Some(!std::mem::replace(&mut inner.ticking, true))
    }

    /// After a request about `file`: takes out one of the same arena for which something is ready, or which failed. It is
    /// to be answered, and then to be looked for another.
    pub(super) fn look(&self, file: &File) -> Option<(Held, Result<Interest, Error>)> {
        // What the request moved must be seen by who holds a poll after this; who held one before is counted.
        fence(Ordering::SeqCst);
        if self.count.load(Ordering::Relaxed) == 0 {
            return None;
        }
        let mut inner = self.inner();
        let found = inner.held.iter().enumerate().find_map(|(i, (_, poll))| {
            let port = poll.file.port().filter(|_| Arc::ptr_eq(&poll.file.arena, &file.arena))?;
            let ready = port.poll_now(poll.want);
            (!is_none(&ready)).then_some((i, ready))
        });
        let (i, ready) = found?;
        let (_, poll) = inner.held.swap_remove(i);
        self.count.store(inner.held.len(), Ordering::Relaxed);
        // Had the peer been elsewhere, it would be luck that somebody looked.
        if poll.file.is_peer_of(file) {
            poll.file.holding.good();
        }
        Some((poll, ready))
    }

    /// Takes out the one of that ticket.
    pub(super) fn take(&self, ticket: &Ticket) -> Option<Held> {
        let mut inner = self.inner();
        let at = inner.held.iter().position(|(_, held)| held.ticket.key() == ticket.key())?;
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
        over.iter().for_each(|poll| poll.file.holding.bad());
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
