//! A transmit ring of a port's: what its client sends is taken there, batch by batch.

use std::io;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use unetmap_mem::{
    BufIdx, Consumer, CopyKind, LinePage, Nap, Pos, Region, RingShape, SentWord, SlotRing, Slots, Span, Window,
};
use unetmap_sys::thread::current_cpu;
use unetmap_sys::{Doorbell, Mapping, memfd};

use crate::forward::{Cutter, Lost, Memory};
use crate::worker::backpressure::Patience;
use super::Given;
use super::batch::Batch;
use super::offsets::Begin;
use unetmap_core::sync::mirror::Watchers;

/// A client's transmit ring.
pub(in super::super) struct Outgoing {
    pub(crate) line: Consumer,
    /// Wakes the client that waits for slots.
    client: Arc<Doorbell>,
    state: Mutex<Sent>,
    /// How many wait for the lock who are not a thread of the switch: these come first.
    wanted: AtomicU32,
    /// The client's word for which the next look is in vain.
    seen: AtomicU32,
    pub(crate) begin: Begin,
    pub(crate) lost: [AtomicU64; Lost::ALL.len()],
    pub(in super::super) watchers: Watchers,
}

/// Holds a transmit ring as it is, see [`Attached::still`](super::Attached::still).
pub struct Still<'a> {
    wanted: &'a AtomicU32,
    _state: MutexGuard<'a, Sent>,
}

impl Drop for Still<'_> {
    fn drop(&mut self) {
        self.wanted.fetch_sub(1, Relaxed);
    }
}

/// How far a transmit ring was taken, and what its source remembers.
#[derive(Debug)]
pub(in super::super) struct Sent {
    at: Pos,
    pub(in super::super) cutter: Cutter,
    pub(in super::super) memory: Memory,
}

impl Outgoing {
    pub(crate) fn new(region: &Region, lines: &LinePage, given: Given<'_>) -> io::Result<Outgoing> {
        let theirs = given.view.slots().clone();
        let mine = own_slots(theirs.slots())?;
        let line = Consumer::new(lines, given.line, theirs, mine, region.limits(), CopyKind::best());
        let line = line.ok_or(io::ErrorKind::InvalidInput)?;
        let state = Mutex::new(Sent { at: Pos::ZERO, cutter: Cutter::default(), memory: Memory::default() });
        Ok(Outgoing {
            line,
            client: Arc::new(given.bell),
            state,
            wanted: AtomicU32::new(0),
            seen: AtomicU32::new(0),
            begin: Begin::default(),
            lost: Default::default(),
            watchers: Watchers::default(),
        })
    }

    /// Holds the ring as it is, when the batch that is on its way has been moved.
    pub(crate) fn still(&self) -> Still<'_> {
        let Outgoing { state, wanted, .. } = self;
        wanted.fetch_add(1, Relaxed);
        Still { wanted, _state: state.lock().unwrap_or_else(PoisonError::into_inner) }
    }

    /// A packet that was sent reaches no port.
    #[cold]
    pub(in super::super) fn lose(&self, why: Lost) {
        self.lost[why as usize].fetch_add(1, Relaxed);
    }

    /// Without judging: whether the client has sent.
    #[inline(always)]
    pub(in super::super) fn moved(&self) -> bool {
        self.line.words().sent_word() != self.seen.load(Relaxed)
    }

    /// The client's word, for glances at many rings.
    pub(in super::super) fn sent_word(&self) -> SentWord {
        self.line.sent_word()
    }

    /// Asks for a wake-up; [`unetmap_mem::fence_before_sleep`] and another glance must follow.
    pub(in super::super) fn ask(&self) {
        self.line.words().consumer_ask();
    }

    /// The thread is about to nap until the client has sent, among other things; `false`: it cannot.
    pub(in super::super) fn hear<'a>(&'a self, nap: &mut Nap<'a>) -> bool {
        nap.as_consumer(self.line.words())
    }

    /// The ring's state for a thread of the switch; `None`: somebody else holds the ring still, or is about to.
    #[inline]
    pub(in super::super) fn lock(&self) -> Option<MutexGuard<'_, Sent>> {
        let free = self.wanted.load(Relaxed) == 0;
        free.then(|| self.state.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Takes up to `most` slots, copied and judged; `None` when there are none, or the client's word cannot be.
    #[inline]
    pub(in super::super) fn take(&self, sent: &Sent, most: u32) -> Option<Batch<'_>> {
        let (slots, words) = (self.line.slots(), self.line.words());
        let word = words.sent_word();
        let there = words.sent(slots.slots(), sent.at, sent.at).map_or(0, |to| slots.slots().distance(sent.at, to));
        if there == 0 {
            self.seen.store(word, Relaxed);
            return None;
        }
        let len = there.min(most);
        let span = Span { from: sent.at, to: slots.slots().add(sent.at, len) };
        let mut bad = self.line.take(span, BufIdx(0)) > 0;
        let offsets = self.begin.get();
        if offsets.mask != 0 {
            bad |= self.judge_offsets(span, offsets, self.line.limits());
        }
        Some(Batch { line: &self.line, slots, start: sent.at, len, offsets, all: len == there, bad })
    }

    /// Drops what was sent until now, as something in it cannot be borne; counts the slots.
    pub(in super::super) fn skip(&self, patience: &Patience) {
        let mut sent = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let slots = self.line.slots().slots();
        let there = self.line.words().sent(slots, sent.at, sent.at).map_or(0, |to| slots.distance(sent.at, to));
        sent.cutter = Cutter::default();
        sent.memory = Memory::default();
        self.lost[Lost::Fault as usize].fetch_add(u64::from(there), Relaxed);
        self.release(&mut sent, there, patience);
    }

    /// The next `n` slots are the client's again, which is woken if it waits for that, or later if it naps on this processor.
    #[inline]
    pub(in super::super) fn release(&self, sent: &mut Sent, n: u32, patience: &Patience) {
        sent.at = self.line.slots().slots().add(sent.at, n);
        self.seen.store(sent.at.raw(), Relaxed);
        let cpu = current_cpu();
        self.line.words().consumer_is_on(cpu);
        self.line.words().release(sent.at);
        if self.line.napper(cpu).is_some_and(|one| patience.owes(one, &self.client)) {
            return;
        }
        if self.line.words().producer_sleeps() {
            self.client.notify_now();
        }
    }
}

/// Slots that nobody else can see.
pub(crate) fn own_slots(slots: Slots) -> io::Result<SlotRing> {
    use std::os::fd::AsFd;
    let bytes = RingShape::bytes(slots);
    let fd = memfd::create_sealed("unetmap-switch", bytes as u64)?;
    let window = Window::whole(Arc::new(Mapping::new(fd.as_fd(), bytes)?));
    SlotRing::new(&window, 0, slots).ok_or_else(|| io::ErrorKind::InvalidInput.into())
}
