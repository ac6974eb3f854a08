//! Naps: short sleeps on the `wants` words of lines, and how they end.

use std::sync::atomic::{AtomicU32, Ordering};

use unetmap_sys::clock::spin_hint;

use super::{ASLEEP, Found, LineWords, NAPPING, wanted};

/// Spin hints that take as long as a store to another processor.
const LAST_STORES: u32 = 8;

/// Naps on `word`, if nobody else sleeps there, and there is still nothing to do.
#[cold]
pub(super) fn nap(word: &AtomicU32, near: bool, idle: impl FnOnce() -> bool) {
    if word.compare_exchange(0, NAPPING, Ordering::SeqCst, Ordering::Relaxed).is_err() {
        return;
    }
    if !near {
        // By then a store of the other's that was under way has arrived.
        (0..LAST_STORES).for_each(|_| spin_hint());
    }
    if idle() {
        unetmap_sys::nap::nap(word, NAPPING);
    }
    // Nobody is to be woken any more; whoever woke us, or went to sleep meanwhile, has written something else.
    let _ = word.compare_exchange(NAPPING, 0, Ordering::Relaxed, Ordering::Relaxed);
}

/// One who naps or sleeps on a line, to be woken later.
pub struct Waiter {
    pub(super) words: Found<LineWords>,
    pub(super) consumer: bool,
}

impl Waiter {
    /// Whether both are the same party on the same line.
    pub fn is(&self, other: &Waiter) -> bool {
        self.consumer == other.consumer && std::ptr::eq(self.words(), other.words())
    }

    fn words(&self) -> &LineWords {
        &self.words
    }

    fn word(&self) -> &AtomicU32 {
        let words = self.words();
        if self.consumer { &words.consumer_wants.0 } else { &words.producer_wants.0 }
    }

    /// Whether he sleeps, and will need his bell.
    pub fn sleeps(&self) -> bool {
        self.word().load(Ordering::Relaxed) == ASLEEP
    }

    /// Wakes who naps there still; `true`: he sleeps, and the caller is to ring his bell.
    pub fn wake(&self) -> bool {
        wanted(self.word())
    }
}

/// A nap on many lines at once, by one who is the only party on its side of each, or goes without those where another is.
#[derive(Default)]
pub struct Nap<'a> {
    words: [Option<&'a AtomicU32>; unetmap_sys::nap::MOST],
    n: usize,
}

impl<'a> Nap<'a> {
    /// As the consumer of a line. `false`: there is no more room.
    pub fn as_consumer(&mut self, line: &'a LineWords) -> bool {
        self.on(&line.consumer_wants.0)
    }

    /// As the producer of a line. `false`: there is no more room.
    pub fn as_producer(&mut self, line: &'a LineWords) -> bool {
        self.on(&line.producer_wants.0)
    }

    fn on(&mut self, word: &'a AtomicU32) -> bool {
        let room = self.words.get_mut(self.n);
        let fits = room.is_some();
        if let Some(room) = room {
            *room = Some(word);
            self.n += 1;
        }
        fits
    }

    /// Naps until the other party of one of the lines has moved, or for 5 ms, if `idle` says that there is nothing to do.
    /// Returns whether it was woken. Where the kernel cannot (before Linux 5.16), only the first line counts.
    #[cold]
    pub fn take(&self, idle: impl FnOnce() -> bool) -> bool {
        let mut mine = self.words;
        let all = mine.iter_mut().filter_map(|place| Some((place.take()?, place)));
        // What an earlier sleep left there gives way; but another who naps there goes on.
        let kept = all.filter(|(word, _)| word.swap(NAPPING, Ordering::SeqCst) != NAPPING);
        kept.for_each(|(word, place)| *place = Some(word));
        // The other parties may be on other processors.
        (0..LAST_STORES).for_each(|_| spin_hint());
        let mine = || mine.iter().copied().flatten();
        let woken = idle() && unetmap_sys::nap::nap_on_any(mine(), NAPPING);
        for word in mine() {
            let _ = word.compare_exchange(NAPPING, 0, Ordering::Relaxed, Ordering::Relaxed);
        }
        woken
    }
}
