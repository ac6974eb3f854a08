//! A line: how slots cross between two parties that do not trust each other.
//!
//! ```text
//!            producer's slots (n of them, in the region)
//!            ... [ cons ........ prod ) ...
//!                  sent, not yet      free: the producer fills them
//!                  released
//!   producer -- writes prod, reads cons -->  two words, two cache lines
//!   consumer -- reads prod, writes cons -->
//! ```
//! `[cons, prod)` is the consumer's, the rest is the producer's. Each word has one writer and moves with one atomic
//! store, so a party that dies at any instruction leaves both words valid: what it had not yet published is still
//! its own, what it had not yet released is delivered again to its successor.
//!
//! The consumer lends: it copies the producer's slots into its own ring and works on the copies. On release it writes
//! back only the indexes that it exchanged.
//!
//! Waking: who is about to sleep sets its `wants` word, fences, and looks once more; who moved a position fences and
//! tests the other's word, and pays a system call only when somebody sleeps.
//!
//! Napping: who has nothing to do and finds that the other party was last on its own processor gives that away, by a short
//! sleep on its `wants` word itself. It brings no barrier: on one processor there is nothing to wait for, and if one of the
//! two moves to another in this very moment the nap ends by itself. Who moved a position and finds the other napping on the
//! own processor may wake it later, when it has nothing to do itself.

use crate::atomic::{AtomicU32, AtomicU64, Ordering, fence, fence_light_publisher, fence_publisher, fence_sleeper};
use crate::fetch;
use crate::pos::{Pos, Slots, Span};
use crate::slot::{Limits, SlotRing, SlotValue};
use crate::take::{CopyKind, any_changed, take};
use crate::window::{Found, Window};
use unetmap_abi::{NS_BUF_CHANGED, NS_MOREFRAG};

mod inbox;
#[cfg(not(loom))]
mod nap;

pub use inbox::Inbox;
#[cfg(not(loom))]
use nap::nap;
#[cfg(not(loom))]
pub use nap::{Nap, Waiter};

/// Bytes of one line's words in a line page.
pub const LINE_BYTES: usize = 512;

/// A word alone on its pair of cache lines (the adjacent-line prefetcher moves pairs).
#[repr(C, align(128))]
#[derive(Debug)]
struct Alone(AtomicU32);

/// The producer's position, and beside it, on the same cache line, a copy of the slot before it: a receiver that waits
/// for a single packet gets it with one transfer instead of two, and leaves the slot's own line with the producer.
#[repr(C, align(128))]
#[derive(Debug)]
struct Sent {
    prod: AtomicU32,
    /// The position whose predecessor is in `copy`; [`NO_COPY`] while that is being written.
    tag: AtomicU32,
    copy: [AtomicU64; 2],
    /// The producer's processor + 1; 0: unknown.
    cpu: AtomicU32,
}

/// The consumer's position.
#[repr(C, align(128))]
#[derive(Debug)]
struct Released {
    cons: AtomicU32,
    /// The consumer's processor + 1; 0: unknown.
    cpu: AtomicU32,
}

/// In place of a processor: it sleeps, and may wake up anywhere.
const ANYWHERE: u32 = u32::MAX;

/// In a `wants` word: asleep, until a bell rings.
const ASLEEP: u32 = 1;
/// In a `wants` word: napping on the word.
#[cfg(not(loom))]
const NAPPING: u32 = 2;

/// Not a position of any ring.
const NO_COPY: u32 = u32::MAX;

/// The shared words of one line. Both parties can write all of them, so each judges what it reads.
#[repr(C)]
#[derive(Debug)]
pub struct LineWords {
    /// One past the last slot sent. Written by the producer.
    sent: Sent,
    /// The first slot not yet released. Written by the consumer.
    cons: Released,
    /// Not 0: the producer sleeps until `cons` moves. Set by the producer, cleared by whoever wakes it.
    producer_wants: Alone,
    /// Not 0: the consumer sleeps until `prod` moves. Set by the consumer, cleared by whoever wakes it.
    consumer_wants: Alone,
}

#[cfg(not(loom))]
const _: () = assert!(size_of::<LineWords>() == LINE_BYTES);

impl LineWords {
    /// A line on which nothing was sent.
    #[allow(clippy::new_without_default)]
    pub fn new() -> LineWords {
        let word = || Alone(AtomicU32::new(0));
        let copy = [AtomicU64::new(0), AtomicU64::new(0)];
        let sent = Sent { prod: AtomicU32::new(0), tag: AtomicU32::new(NO_COPY), copy, cpu: AtomicU32::new(0) };
        let cons = Released { cons: AtomicU32::new(0), cpu: AtomicU32::new(0) };
        LineWords { sent, cons, producer_wants: word(), consumer_wants: word() }
    }

    /// Producer: everything before `to` is sent.
    #[inline(always)]
    pub fn publish(&self, to: Pos) {
        // A copy of an earlier round would belong to a position that comes again: a successor of the consumer may take
        // the last slot of this batch alone.
        self.sent.tag.store(NO_COPY, Ordering::Relaxed);
        self.sent.prod.store(to.raw(), Ordering::Release);
    }

    /// Producer: everything before `to` is sent, and the slot before it is `slot`. For a single slot; the consumer may
    /// find the copy instead of looking into the ring.
    #[inline(always)]
    pub fn publish_one(&self, to: Pos, slot: SlotValue) {
        self.sent.tag.store(NO_COPY, Ordering::Relaxed);
        fence(Ordering::Release);
        self.sent.copy[0].store(slot.head_word(), Ordering::Relaxed);
        self.sent.copy[1].store(slot.ptr, Ordering::Relaxed);
        self.sent.tag.store(to.raw(), Ordering::Release);
        self.sent.prod.store(to.raw(), Ordering::Release);
    }

    /// Consumer: the slot before `to`, if it came with its position and was not overwritten meanwhile.
    #[inline(always)]
    pub fn express(&self, to: Pos) -> Option<SlotValue> {
        if self.sent.tag.load(Ordering::Acquire) != to.raw() {
            return None;
        }
        let head = self.sent.copy[0].load(Ordering::Relaxed);
        let ptr = self.sent.copy[1].load(Ordering::Relaxed);
        fence(Ordering::Acquire);
        (self.sent.tag.load(Ordering::Relaxed) == to.raw()).then(|| SlotValue::from_words(head, ptr))
    }

    /// Consumer: everything before `to` is the producer's again.
    #[inline(always)]
    pub fn release(&self, to: Pos) {
        self.cons.cons.store(to.raw(), Ordering::Release);
    }

    /// Producer: how far the consumer has released, judged: it must lie in the walk from `known`, where it stood at the
    /// last look, to `sent`. `None`: the word is not a position that an honest consumer could have written.
    #[inline(always)]
    pub fn released(&self, slots: Slots, known: Pos, sent: Pos) -> Option<Pos> {
        let cons = slots.pos(self.cons.cons.load(Ordering::Acquire))?;
        slots.between(known, cons, sent).then_some(cons)
    }

    /// Consumer: how far the producer has sent, judged: it must lie in the walk from `taken`, the end of what was taken
    /// before, to the last slot before `held`, the first one not yet released. `None`: no honest producer wrote that.
    #[inline(always)]
    pub fn sent(&self, slots: Slots, held: Pos, taken: Pos) -> Option<Pos> {
        let prod = slots.pos(self.sent.prod.load(Ordering::Acquire))?;
        slots.between(taken, prod, slots.prev(held)).then_some(prod)
    }

    /// Producer: the consumer's word, if it is not `known` any more. A glance that judges nothing.
    #[inline(always)]
    pub fn released_beyond(&self, known: Pos) -> Option<u32> {
        let raw = self.cons.cons.load(Ordering::Relaxed);
        (raw != known.raw()).then_some(raw)
    }

    /// Consumer: the producer's word, if it is not `taken` any more. A glance that judges nothing.
    #[inline(always)]
    pub fn sent_beyond(&self, taken: Pos) -> Option<u32> {
        let raw = self.sent.prod.load(Ordering::Relaxed);
        (raw != taken.raw()).then_some(raw)
    }

    /// Producer, which will publish soon: has the word's cache line brought to be written.
    #[inline(always)]
    pub fn fetch_to_publish(&self) {
        fetch::to_write(&raw const self.sent);
    }

    /// Consumer, which has nothing to do before `prod` moves: has its cache line brought as if it were to write it. The
    /// producer's next store then takes the line over at once, and need not call copies back first.
    #[inline(always)]
    pub fn fetch_to_wait(&self) {
        fetch::to_write(&raw const self.sent);
    }

    /// Consumer: the producer's word as it stands, any number. For glances at many lines.
    #[inline(always)]
    pub fn sent_word(&self) -> u32 {
        self.sent.prod.load(Ordering::Relaxed)
    }

    /// The positions as they stand, for a successor that takes over one side. `None` when not positions of the ring.
    pub fn positions(&self, slots: Slots) -> Option<Span> {
        let cons = slots.pos(self.cons.cons.load(Ordering::Acquire))?;
        let prod = slots.pos(self.sent.prod.load(Ordering::Acquire))?;
        Some(Span { from: cons, to: prod })
    }

    /// Sets both positions; only while neither party runs.
    pub fn reset(&self, span: Span) {
        self.publish(span.to);
        self.release(span.from);
    }

    /// Consumer, about to sleep: asks to be woken when `prod` moves. It must look once more after this call.
    pub fn consumer_arm(&self) {
        self.consumer_wants.0.store(ASLEEP, Ordering::SeqCst);
        fence_sleeper();
    }

    /// Consumer of many lines, about to sleep: as [`LineWords::consumer_arm`], for this line alone and without the fence.
    /// One [`fence_before_sleep`] for all of them comes before the last look.
    #[inline]
    pub fn consumer_ask(&self) {
        self.consumer_wants.0.store(ASLEEP, Ordering::SeqCst);
    }

    /// Producer, about to sleep: asks to be woken when `cons` moves. It must look once more after this call.
    pub fn producer_arm(&self) {
        self.producer_wants.0.store(ASLEEP, Ordering::SeqCst);
        fence_sleeper();
    }

    /// Producer: tells that it is on processor `cpu`.
    #[inline(always)]
    pub fn producer_is_on(&self, cpu: u32) {
        if self.sent.cpu.load(Ordering::Relaxed) != cpu + 1 {
            self.sent.cpu.store(cpu + 1, Ordering::Relaxed);
        }
    }

    /// Producer, about to sleep: tells that it may wake up on any processor.
    pub fn producer_is_anywhere(&self) {
        self.sent.cpu.store(ANYWHERE, Ordering::Relaxed);
    }

    /// Consumer, which waits for a producer that it has just woken, or is about to: whether that one may need the caller's
    /// processor.
    #[inline]
    pub fn producer_is_just_up(&self) -> bool {
        self.sent.cpu.load(Ordering::Relaxed) == ANYWHERE
    }

    /// Consumer: tells that it is on processor `cpu`.
    #[inline(always)]
    pub fn consumer_is_on(&self, cpu: u32) {
        if self.cons.cpu.load(Ordering::Relaxed) != cpu + 1 {
            self.cons.cpu.store(cpu + 1, Ordering::Relaxed);
        }
    }

    /// Consumer, on processor `cpu`: whether the producer says that it is, or was, there as well.
    #[inline]
    pub fn producer_is_near(&self, cpu: u32) -> bool {
        self.sent.cpu.load(Ordering::Relaxed) == cpu + 1
    }

    /// Consumer, on processor `cpu`: whether the producer says that it is there as well, and does not sleep.
    #[inline]
    pub fn producer_shares(&self, cpu: u32) -> bool {
        self.producer_is_near(cpu) && self.producer_wants.0.load(Ordering::Relaxed) == 0
    }

    /// Producer, on processor `cpu`: whether the consumer says that it is there as well, and does not sleep.
    #[inline]
    pub fn consumer_shares(&self, cpu: u32) -> bool {
        self.cons.cpu.load(Ordering::Relaxed) == cpu + 1 && self.consumer_wants.0.load(Ordering::Relaxed) == 0
    }

    /// Producer, on processor `cpu`: whether the consumer says that it is on another, awake.
    #[inline]
    pub fn consumer_is_awake_elsewhere(&self, cpu: u32) -> bool {
        let theirs = self.cons.cpu.load(Ordering::Relaxed);
        theirs != 0 && theirs != cpu + 1 && self.consumer_wants.0.load(Ordering::Relaxed) == 0
    }

    /// Producer: whether the consumer has ever said where it is.
    pub fn consumer_is_somewhere(&self) -> bool {
        self.cons.cpu.load(Ordering::Relaxed) != 0
    }

    /// Consumer, which has nothing to do before `prod` is not `taken` any more: naps, until then or for 5 ms. `near`: the
    /// producer is on the same processor; should it move to another in this very moment, the wake-up may be lost.
    #[cfg(not(loom))]
    pub fn consumer_nap(&self, taken: Pos, near: bool) {
        nap(&self.consumer_wants.0, near, || self.sent_beyond(taken).is_none());
    }

    /// Producer, which has nothing to do before `cons` is not `known` any more: naps, until then or for 5 ms. `near` as above.
    #[cfg(not(loom))]
    pub fn producer_nap(&self, known: Pos, near: bool) {
        nap(&self.producer_wants.0, near, || self.released_beyond(known).is_none());
    }

    /// Producer, on processor `cpu`: whether the consumer naps there.
    #[cfg(not(loom))]
    #[inline]
    fn consumer_naps(&self, cpu: u32) -> bool {
        self.consumer_wants.0.load(Ordering::Relaxed) == NAPPING && self.cons.cpu.load(Ordering::Relaxed) == cpu + 1
    }

    /// Consumer, on processor `cpu`: whether the producer naps there.
    #[cfg(not(loom))]
    #[inline]
    fn producer_naps(&self, cpu: u32) -> bool {
        self.producer_wants.0.load(Ordering::Relaxed) == NAPPING && self.sent.cpu.load(Ordering::Relaxed) == cpu + 1
    }

    /// Whether the producer waits: naps or sleeps.
    #[inline]
    pub fn producer_waits(&self) -> bool {
        self.producer_wants.0.load(Ordering::Relaxed) != 0
    }

    /// Whether the consumer waits: naps or sleeps.
    #[inline]
    pub fn consumer_waits(&self) -> bool {
        self.consumer_wants.0.load(Ordering::Relaxed) != 0
    }

    /// Producer: the consumer's word as it stands, any number. For glances at many lines.
    #[inline(always)]
    pub fn released_word(&self) -> u32 {
        self.cons.cons.load(Ordering::Relaxed)
    }

    /// Producer, after `publish`: whether the consumer sleeps and is to be woken by the caller. At most one of several
    /// concurrent callers gets `true`. A consumer that naps is woken.
    #[inline(always)]
    pub fn consumer_sleeps(&self) -> bool {
        fence_publisher();
        wanted(&self.consumer_wants.0)
    }

    /// The same for a producer that is inside its ring as the owner, which only a registered process ever is.
    #[inline(always)]
    pub fn consumer_of_an_owner_sleeps(&self) -> bool {
        fence_light_publisher();
        wanted(&self.consumer_wants.0)
    }

    /// Consumer, after `release`: whether the producer sleeps and is to be woken by the caller. One that naps is woken.
    #[inline(always)]
    pub fn producer_sleeps(&self) -> bool {
        fence_publisher();
        wanted(&self.producer_wants.0)
    }
}

/// See [`LineWords::consumer_ask`].
pub fn fence_before_sleep() {
    fence_sleeper();
}

#[inline(always)]
fn wanted(word: &AtomicU32) -> bool {
    word.load(Ordering::Relaxed) != 0 && wake_napper(word)
}

/// Takes a wish back; wakes who naps. `true` if a bell is to be rung.
#[cold]
fn wake_napper(word: &AtomicU32) -> bool {
    match word.swap(0, Ordering::AcqRel) {
        0 => false,
        #[cfg(not(loom))]
        NAPPING => {
            unetmap_sys::nap::wake(word);
            false
        }
        _ => true,
    }
}

/// The mapped page or pages with the words of all lines of a pipe or port.
#[derive(Clone)]
pub struct LinePage {
    window: Window,
}

impl LinePage {
    /// A view of a mapping that holds `window.len() / LINE_BYTES` lines.
    pub fn new(window: Window) -> LinePage {
        LinePage { window }
    }

    /// Bytes to map for `lines` lines.
    pub fn bytes(lines: usize) -> usize {
        (lines * LINE_BYTES).next_multiple_of(4096)
    }

    /// The words of line `index`, or `None` when the page has no such line.
    pub fn words(&self, index: usize) -> Option<&LineWords> {
        let offset = index.checked_mul(LINE_BYTES)?;
        // SAFETY: LineWords is made of atomics only.
        let ptr = unsafe { self.window.at::<LineWords>(offset) }?;
        // SAFETY: in bounds and aligned (`at`), mapped while `self` lives (M2), atomics only (M1).
        Some(unsafe { &*ptr })
    }

    fn join(&self, index: usize) -> Option<Found<LineWords>> {
        // SAFETY: LineWords is made of atomics only.
        unsafe { self.window.found(index.checked_mul(LINE_BYTES)?) }
    }
}

/// The producer's side of a line.
#[derive(Clone)]
pub struct Producer {
    words: Found<LineWords>,
    slots: SlotRing,
}

/// The consumer's side of a line: the producer's slots, and the ring that they are copied to.
#[derive(Clone)]
pub struct Consumer {
    words: Found<LineWords>,
    theirs: SlotRing,
    mine: SlotRing,
    limits: Limits,
    copy: CopyKind,
}

/// Where a line's producer tells how far it has sent; see [`Consumer::sent_word`].
#[derive(Clone)]
pub struct SentWord {
    words: Found<LineWords>,
}

impl SentWord {
    /// The word as it stands, any number.
    #[inline(always)]
    pub fn get(&self) -> u32 {
        self.words.sent_word()
    }
}

impl Producer {
    /// Joins line `index` of `page` as the owner of `slots`; `None` when the page has no such line.
    pub fn new(page: &LinePage, index: usize, slots: SlotRing) -> Option<Producer> {
        Some(Producer { words: page.join(index)?, slots })
    }

    /// The words of the line.
    #[inline(always)]
    pub fn words(&self) -> &LineWords {
        &self.words
    }

    /// The producer's own slots.
    #[inline(always)]
    pub fn slots(&self) -> &SlotRing {
        &self.slots
    }

    /// The consumer, if it naps on processor `cpu`, the caller's.
    #[cfg(not(loom))]
    #[inline]
    pub fn napper(&self, cpu: u32) -> Option<Waiter> {
        self.words().consumer_naps(cpu).then(|| self.waiter())
    }

    /// The consumer, after `publish`, if it sleeps until its bell rings.
    #[cfg(not(loom))]
    #[inline]
    pub fn sleeper(&self) -> Option<Waiter> {
        fence_publisher();
        let sleeps = self.words().consumer_wants.0.load(Ordering::Relaxed) == ASLEEP;
        sleeps.then(|| self.waiter())
    }

    #[cfg(not(loom))]
    #[cold]
    fn waiter(&self) -> Waiter {
        Waiter { words: self.words.clone(), consumer: true }
    }

    /// Sends the slot `at`, before `next`, which no earlier call has sent, if it is a whole packet whose buffer was not exchanged.
    #[inline(always)]
    pub fn publish_plain(&self, at: Pos, next: Pos) -> bool {
        let slot = self.slots.load_by_field(at);
        let is_plain = slot.flags & (NS_BUF_CHANGED | NS_MOREFRAG) == 0;
        if is_plain {
            self.words().publish_one(next, slot);
        }
        is_plain
    }

    /// Sends the slots of `span`, the first of which no earlier call has sent.
    #[inline(always)]
    pub fn publish(&self, span: Span) {
        if self.slots.slots().next(span.from) != span.to {
            return self.words().publish(span.to);
        }
        let slot = self.slots.load_by_field(span.from);
        if slot.flags & NS_BUF_CHANGED != 0 {
            // The consumer may not come to this slot to clear it.
            self.slots.set_flags(span.from, slot.flags & !NS_BUF_CHANGED);
        }
        self.words().publish_one(span.to, slot);
    }
}

impl Consumer {
    /// Joins line `index` of `page`, to copy slots from `theirs` to `mine`, judged by `limits`. `None` when the page has
    /// no such line, or the rings differ in size.
    pub fn new(
        page: &LinePage,
        index: usize,
        theirs: SlotRing,
        mine: SlotRing,
        limits: Limits,
        copy: CopyKind,
    ) -> Option<Consumer> {
        let words = page.join(index)?;
        (theirs.slots() == mine.slots()).then_some(Consumer { words, theirs, mine, limits, copy })
    }

    /// The words of the line.
    #[inline(always)]
    pub fn words(&self) -> &LineWords {
        &self.words
    }

    /// The producer's word, for glances at many lines that are not to follow a path to each.
    pub fn sent_word(&self) -> SentWord {
        SentWord { words: self.words.clone() }
    }

    /// The consumer's own slots.
    #[inline(always)]
    pub fn slots(&self) -> &SlotRing {
        &self.mine
    }

    /// The producer's slots, of which those that are sent and not released are the consumer's to write.
    #[inline(always)]
    pub(crate) fn theirs(&self) -> &SlotRing {
        &self.theirs
    }

    /// The producer, if it naps on processor `cpu`, the caller's.
    #[cfg(not(loom))]
    #[inline]
    pub fn napper(&self, cpu: u32) -> Option<Waiter> {
        let naps = self.words().producer_naps(cpu);
        naps.then(|| Waiter { words: self.words.clone(), consumer: false })
    }

    /// How its slots are copied.
    #[cfg(target_arch = "x86_64")]
    #[inline(always)]
    pub(crate) fn copy_kind(&self) -> CopyKind {
        self.copy
    }

    /// What the slots are judged by.
    pub fn limits(&self) -> Limits {
        self.limits
    }

    /// Copies the slots of `span`, which must lie in `[cons, prod)`, into the own ring and claims their lines. A slot
    /// that breaks the limits is delivered as length 0 in the buffer `spare`; a chain that it is part of stays one. Returns
    /// how many those were.
    #[inline(always)]
    pub fn take(&self, span: Span, spare: crate::BufIdx) -> u32 {
        if self.mine.slots().next(span.from) == span.to
            && let Some(mut slot) = self.words().express(span.to)
        {
            slot.flags &= !NS_BUF_CHANGED;
            self.mine.store(span.from, slot);
            return if self.limits.allow(slot) { 0 } else { self.mend(span, spare) };
        }
        self.take_run(span, spare)
    }

    /// Not within the above: one packet is a few instructions, these are hundreds.
    #[inline(never)]
    fn take_run(&self, span: Span, spare: crate::BufIdx) -> u32 {
        if take(self.copy, &self.theirs, &self.mine, span, self.limits) { 0 } else { self.mend(span, spare) }
    }

    #[cold]
    fn mend(&self, span: Span, spare: crate::BufIdx) -> u32 {
        let mut bad = 0;
        for p in self.mine.slots().walk(span) {
            let slot = self.mine.load(p);
            if !self.limits.allow(slot) {
                self.mine.store(p, SlotValue { buf_idx: spare, len: 0, flags: slot.flags & NS_MOREFRAG, ptr: 0 });
                bad += 1;
            }
        }
        bad
    }

    /// Hands back the buffers that the program put into the slots of `span` in exchange (it marked them with
    /// `NS_BUF_CHANGED`), to be called before the release. A buffer that does not exist is not handed back; returns how
    /// many those were.
    #[inline]
    pub fn give_back(&self, span: Span) -> u32 {
        if any_changed(self.copy, &self.mine, span) { self.exchange(span) } else { 0 }
    }

    /// Done twice (by a successor of one who died in between), this changes nothing more.
    #[inline(never)]
    fn exchange(&self, span: Span) -> u32 {
        let mut bad = 0;
        for p in self.mine.slots().walk(span) {
            let v = self.mine.load(p);
            if v.flags & NS_BUF_CHANGED == 0 {
                continue;
            }
            if self.limits.index_ok(v.buf_idx) {
                self.theirs.set_buf_idx(p, v.buf_idx);
                self.theirs.set_flags(p, v.flags);
            } else {
                bad += 1;
            }
            self.mine.set_flags(p, v.flags & !NS_BUF_CHANGED);
        }
        bad
    }
}
