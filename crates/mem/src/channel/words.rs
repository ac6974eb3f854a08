// SPDX-License-Identifier: BSD-2-Clause
//! The shared words of a channel: positions, wake-up requests, CPU numbers.

#[cfg(not(loom))]
use super::CHANNEL_BYTES;
use crate::atomic::{
    AtomicU32, AtomicU64, Ordering, fence, fence_publisher, fence_registered_publisher, fence_sleeper,
};
use crate::pos::{Pos, Slots, Span};
use crate::prefetch;
use crate::slot::SlotValue;

#[cfg(loom)]
use super::wakeup::begin_futex_wait;
use super::wakeup::{WAITS_ON_DOORBELL, take_wakeup};
#[cfg(not(loom))]
use super::wakeup::{WAITS_ON_FUTEX, futex_wait};

/// A word alone on its pair of cache lines (the adjacent-line prefetcher moves pairs).
#[repr(C, align(128))]
#[derive(Debug)]
struct PaddedWord(AtomicU32);

/// The producer's position, and beside it, on the same cache line, a copy of the slot before it. A receiver that waits
/// for a single packet gets position and slot with one cache line transfer instead of two, and leaves the cache line of
/// the slot itself with the producer.
#[repr(C, align(128))]
#[derive(Debug)]
struct ProducerLine {
    prod: AtomicU32,
    /// The position whose predecessor is in `inline_slot`; [`NO_INLINE_SLOT`] while that is being written.
    inline_tag: AtomicU32,
    inline_slot: [AtomicU64; 2],
    /// The producer's CPU + 1; 0: unknown; [`ANY_CPU`].
    cpu: AtomicU32,
}

/// The consumer's position.
#[repr(C, align(128))]
#[derive(Debug)]
struct ConsumerLine {
    cons: AtomicU32,
    /// The consumer's CPU + 1; 0: unknown.
    cpu: AtomicU32,
}

/// In place of a CPU number: the side sleeps and may wake up on any CPU.
const ANY_CPU: u32 = u32::MAX;

/// In `cons`, beside a position: the consumer has left the channel, and counts the slots from there on as lost no more.
const LEFT: u32 = 1 << 31;

/// Not a position of any ring.
const NO_INLINE_SLOT: u32 = u32::MAX;

/// The shared words of one channel. Both peers can write all of them, so each side validates what it reads (M4).
#[repr(C)]
#[derive(Debug)]
pub struct ChannelWords {
    /// `prod`: one past the last published slot. Written by the producer.
    producer: ProducerLine,
    /// `cons`: the first slot not yet released. Written by the consumer.
    consumer: ConsumerLine,
    /// Wake-up request: not 0 while the producer waits for `cons` to move. Set by the producer, cleared by the side
    /// that wakes it, or by the producer when it gives up a futex wait.
    producer_wakeup: PaddedWord,
    /// Wake-up request: not 0 while the consumer waits for `prod` to move. Set by the consumer, cleared by the side
    /// that wakes it, or by the consumer when it gives up a futex wait.
    consumer_wakeup: PaddedWord,
}

#[cfg(not(loom))]
const _: () = assert!(size_of::<ChannelWords>() == CHANNEL_BYTES);

impl ChannelWords {
    /// A channel on which nothing was published.
    #[allow(clippy::new_without_default)]
    pub fn new() -> ChannelWords {
        let word = || AtomicU32::new(0);
        let producer = ProducerLine {
            prod: word(),
            inline_tag: AtomicU32::new(NO_INLINE_SLOT),
            inline_slot: [AtomicU64::new(0), AtomicU64::new(0)],
            cpu: word(),
        };
        let consumer = ConsumerLine { cons: word(), cpu: word() };
        let (producer_wakeup, consumer_wakeup) = (PaddedWord(word()), PaddedWord(word()));
        ChannelWords { producer, consumer, producer_wakeup, consumer_wakeup }
    }

    /// Producer: publishes all slots before `to`.
    #[inline(always)]
    pub fn publish(&self, to: Pos) {
        // An inline slot of an earlier round would match a position that comes again: a successor of the consumer may
        // receive the last slot of this batch alone. Relaxed (O1): the release store of `prod` orders it.
        self.producer.inline_tag.store(NO_INLINE_SLOT, Ordering::Relaxed);
        // Release: a consumer that reads this position sees the slots and buffers before it.
        self.producer.prod.store(to.raw(), Ordering::Release);
    }

    /// Producer: publishes all slots before `to`, of which the last is `slot`. For a single slot: the consumer may read
    /// the inline copy instead of the ring.
    #[inline(always)]
    pub fn publish_one(&self, to: Pos, slot: SlotValue) {
        self.producer.inline_tag.store(NO_INLINE_SLOT, Ordering::Relaxed);
        // Release fence: a reader that sees a word of the new copy also sees that the old tag is gone.
        fence(Ordering::Release);
        self.producer.inline_slot[0].store(slot.head_word(), Ordering::Relaxed);
        self.producer.inline_slot[1].store(slot.ptr, Ordering::Relaxed);
        // Release: a reader that sees the new tag sees the whole copy.
        self.producer.inline_tag.store(to.raw(), Ordering::Release);
        // Release: as in `publish`.
        self.producer.prod.store(to.raw(), Ordering::Release);
    }

    /// Consumer: the slot before `to`, if it was published inline and was not overwritten meanwhile (a seqlock read).
    #[inline(always)]
    pub fn inline_slot(&self, to: Pos) -> Option<SlotValue> {
        // Acquire: pairs with the release of the tag, so the copy read below is at least as new as the tag.
        if self.producer.inline_tag.load(Ordering::Acquire) != to.raw() {
            return None;
        }
        let head = self.producer.inline_slot[0].load(Ordering::Relaxed);
        let ptr = self.producer.inline_slot[1].load(Ordering::Relaxed);
        // Acquire fence: if a word above came from a later copy, the load below sees that copy's tag.
        fence(Ordering::Acquire);
        (self.producer.inline_tag.load(Ordering::Relaxed) == to.raw()).then(|| SlotValue::from_words(head, ptr))
    }

    /// Consumer: releases all slots before `to` to the producer.
    #[inline(always)]
    pub fn release(&self, to: Pos) {
        // Release: a producer that reads this position sees the indexes written back, and no read of ours comes later.
        self.consumer.cons.store(to.raw(), Ordering::Release);
    }

    /// Consumer that leaves the channel for good: it has counted all slots before `to`.
    pub fn leave(&self, to: Pos) {
        // Release: as in `release`.
        self.consumer.cons.store(to.raw() | LEFT, Ordering::Release);
    }

    /// Producer that leaves the channel for good: returns the end of the slots that its consumer has counted; `None`:
    /// the consumer has not left.
    pub fn left_at(&self, slots: Slots) -> Option<Pos> {
        let cons = self.consumer.cons.load(Ordering::Acquire);
        (cons & LEFT != 0).then(|| slots.pos(cons & !LEFT))?
    }

    /// Producer: returns `cons`, validated: it must lie in the walk from `known`, the last value read, to `sent`, the
    /// own `prod`. `None`: no correct consumer could have written the value.
    #[inline(always)]
    pub fn validated_cons(&self, slots: Slots, known: Pos, sent: Pos) -> Option<Pos> {
        // Acquire: pairs with `release`.
        let cons = slots.pos(self.consumer.cons.load(Ordering::Acquire))?;
        slots.between(known, cons, sent).then_some(cons)
    }

    /// Consumer: returns `prod`, validated: it must lie in the walk from `received`, the end of what was received
    /// before, to the slot before `held`, the first one not yet released. `None`: no correct producer could have
    /// written the value.
    #[inline(always)]
    pub fn validated_prod(&self, slots: Slots, held: Pos, received: Pos) -> Option<Pos> {
        // Acquire: pairs with `publish`.
        let prod = slots.pos(self.producer.prod.load(Ordering::Acquire))?;
        slots.between(received, prod, slots.prev(held)).then_some(prod)
    }

    /// Producer: returns the value of `cons` if it differs from `known`. Not validated. Relaxed: a hint (O3); the sync
    /// that follows loads it again with acquire.
    #[inline(always)]
    pub fn cons_if_moved(&self, known: Pos) -> Option<u32> {
        let raw = self.consumer.cons.load(Ordering::Relaxed);
        (raw != known.raw()).then_some(raw)
    }

    /// Consumer: returns the value of `prod` if it differs from `received`. Not validated. Relaxed: a hint (O3); the
    /// sync that follows loads it again with acquire.
    #[inline(always)]
    pub fn prod_if_moved(&self, received: Pos) -> Option<u32> {
        let raw = self.producer.prod.load(Ordering::Relaxed);
        (raw != received.raw()).then_some(raw)
    }

    /// Producer: prefetches the cache line of `prod` for writing, before it publishes.
    #[inline(always)]
    pub fn prefetch_for_publish(&self) {
        prefetch::for_write(&raw const self.producer);
    }

    /// Consumer that has no work until `prod` moves: prefetches the cache line of `prod` for writing. The producer's
    /// next store then takes the line over at once and need not invalidate shared copies first.
    #[inline(always)]
    pub fn prefetch_for_wait(&self) {
        prefetch::for_write(&raw const self.producer);
    }

    /// Consumer: the value of `prod`, not validated. Relaxed: a hint (O3), for polling many channels.
    #[inline(always)]
    pub fn raw_prod(&self) -> u32 {
        self.producer.prod.load(Ordering::Relaxed)
    }

    /// Producer: the value of `cons`, not validated. Relaxed: a hint (O3), for polling many channels.
    #[inline(always)]
    pub fn raw_cons(&self) -> u32 {
        self.consumer.cons.load(Ordering::Relaxed)
    }

    /// `[cons, prod)`, for a successor that takes over one side. `None` when they are not positions of the ring.
    pub fn positions(&self, slots: Slots) -> Option<Span> {
        // Acquire: a successor of the producer needs the consumer's write-backs, one of the consumer the published
        // slots.
        let cons = slots.pos(self.consumer.cons.load(Ordering::Acquire))?;
        let prod = slots.pos(self.producer.prod.load(Ordering::Acquire))?;
        Some(Span { from: cons, to: prod })
    }

    /// Sets both positions; only while neither side runs.
    pub fn reset(&self, span: Span) {
        self.publish(span.to);
        self.release(span.from);
    }

    /// Consumer, before it sleeps on its doorbell: requests a wake-up when `prod` moves. [`fence_before_sleep`], once
    /// for all channels that it waits for, and another check of `prod` must follow.
    #[inline]
    pub fn consumer_request_wakeup(&self) {
        // Relaxed (O6): the fence that follows orders it before the check.
        self.consumer_wakeup.0.store(WAITS_ON_DOORBELL, Ordering::Relaxed);
    }

    /// Producer, before it sleeps on its doorbell: requests a wake-up when `cons` moves. [`fence_before_sleep`], once
    /// for all channels that it waits for, and another check of `cons` must follow.
    #[inline]
    pub fn producer_request_wakeup(&self) {
        // Relaxed (O6): as above.
        self.producer_wakeup.0.store(WAITS_ON_DOORBELL, Ordering::Relaxed);
    }

    /// Consumer that is awake: takes back its request for a doorbell, so that the producer need not notify it.
    #[inline]
    pub fn consumer_withdraw_wakeup(&self) {
        if self.consumer_wakeup.0.load(Ordering::Relaxed) == WAITS_ON_DOORBELL {
            // Relaxed (O4): the producer may take the request first, and then notifies the doorbell.
            let taken = (WAITS_ON_DOORBELL, 0);
            let _ = self.consumer_wakeup.0.compare_exchange(taken.0, taken.1, Ordering::Relaxed, Ordering::Relaxed);
        }
    }

    // CPU numbers are hints for scheduling only (O3), written and read in any order: all accesses are relaxed.

    /// Producer: records that it runs on CPU `cpu`.
    #[inline(always)]
    pub fn set_producer_cpu(&self, cpu: u32) {
        if self.producer.cpu.load(Ordering::Relaxed) != cpu + 1 {
            self.producer.cpu.store(cpu + 1, Ordering::Relaxed);
        }
    }

    /// Producer, before it sleeps: records that it may wake up on any CPU.
    pub fn set_producer_cpu_any(&self) {
        // A store would take the cache line away from the consumer.
        if !self.producer_cpu_is_any() {
            self.producer.cpu.store(ANY_CPU, Ordering::Relaxed);
        }
    }

    /// Consumer that waits for a producer which was just woken, or is about to be: whether that producer may need the
    /// caller's CPU.
    #[inline]
    pub fn producer_cpu_is_any(&self) -> bool {
        self.producer.cpu.load(Ordering::Relaxed) == ANY_CPU
    }

    /// Consumer: records that it runs on CPU `cpu`.
    #[inline(always)]
    pub fn set_consumer_cpu(&self, cpu: u32) {
        if self.consumer.cpu.load(Ordering::Relaxed) != cpu + 1 {
            self.consumer.cpu.store(cpu + 1, Ordering::Relaxed);
        }
    }

    /// Consumer: returns the CPU that the producer recorded; `None` if it recorded none, or any.
    pub fn producer_cpu(&self) -> Option<u32> {
        Some(self.producer.cpu.load(Ordering::Relaxed)).filter(|cpu| *cpu != ANY_CPU)?.checked_sub(1)
    }

    /// Producer: returns the CPU that the consumer recorded; `None` if it recorded none.
    pub fn consumer_cpu(&self) -> Option<u32> {
        self.consumer.cpu.load(Ordering::Relaxed).checked_sub(1)
    }

    /// Consumer: whether the producer recorded CPU `cpu`, awake or not.
    #[inline]
    pub fn producer_cpu_is(&self, cpu: u32) -> bool {
        self.producer.cpu.load(Ordering::Relaxed) == cpu + 1
    }

    /// Consumer: whether the producer recorded CPU `cpu` and does not wait.
    #[inline]
    pub fn producer_runs_on(&self, cpu: u32) -> bool {
        self.producer_cpu_is(cpu) && !self.producer_waits()
    }

    /// Producer: whether the consumer recorded CPU `cpu` and does not wait.
    #[inline]
    pub fn consumer_runs_on(&self, cpu: u32) -> bool {
        self.consumer.cpu.load(Ordering::Relaxed) == cpu + 1 && !self.consumer_waits()
    }

    /// Producer, on CPU `cpu`: whether the consumer recorded another CPU and does not wait.
    #[inline]
    pub fn consumer_runs_on_other_cpu(&self, cpu: u32) -> bool {
        let theirs = self.consumer.cpu.load(Ordering::Relaxed);
        theirs != 0 && theirs != cpu + 1 && !self.consumer_waits()
    }

    /// Producer: whether the consumer has ever recorded a CPU.
    pub fn consumer_cpu_is_known(&self) -> bool {
        self.consumer.cpu.load(Ordering::Relaxed) != 0
    }

    /// Consumer that has no work while `prod` is `received`: futex wait until `prod` moves, at most 5 ms. `same_cpu`:
    /// the producer runs on the caller's CPU; if it migrates at that moment the wake-up may be lost.
    #[cfg(not(loom))]
    pub fn consumer_futex_wait(&self, received: Pos, same_cpu: bool) {
        futex_wait(&self.consumer_wakeup.0, same_cpu, || self.prod_if_moved(received).is_none());
    }

    /// For the model checker: the consumer's request at the beginning of a futex wait.
    #[cfg(loom)]
    pub fn consumer_begin_futex_wait(&self) -> bool {
        begin_futex_wait(&self.consumer_wakeup.0)
    }

    /// Producer that has no work while `cons` is `known`: futex wait until `cons` moves, at most 5 ms. `same_cpu` as
    /// above.
    #[cfg(not(loom))]
    pub fn producer_futex_wait(&self, known: Pos, same_cpu: bool) {
        futex_wait(&self.producer_wakeup.0, same_cpu, || self.cons_if_moved(known).is_none());
    }

    /// Producer: whether the consumer is in a futex wait on CPU `cpu`. Relaxed: a hint (O3); a missed waiter wakes up
    /// by its time limit.
    #[cfg(not(loom))]
    #[inline]
    pub(super) fn consumer_futex_waits_on(&self, cpu: u32) -> bool {
        self.consumer_wakeup.0.load(Ordering::Relaxed) == WAITS_ON_FUTEX
            && self.consumer.cpu.load(Ordering::Relaxed) == cpu + 1
    }

    /// Consumer: whether the producer is in a futex wait on CPU `cpu`. Relaxed: as above.
    #[cfg(not(loom))]
    #[inline]
    pub(super) fn producer_futex_waits_on(&self, cpu: u32) -> bool {
        self.producer_wakeup.0.load(Ordering::Relaxed) == WAITS_ON_FUTEX
            && self.producer.cpu.load(Ordering::Relaxed) == cpu + 1
    }

    /// Whether the producer waits, on its futex or its doorbell. Relaxed: a hint (O3).
    #[inline]
    pub fn producer_waits(&self) -> bool {
        self.producer_wakeup.0.load(Ordering::Relaxed) != 0
    }

    /// Whether the consumer waits, on its futex or its doorbell. Relaxed: a hint (O3).
    #[inline]
    pub fn consumer_waits(&self) -> bool {
        self.consumer_wakeup.0.load(Ordering::Relaxed) != 0
    }

    /// Producer, after `publish`: takes the consumer's wake-up request. A futex waiter is woken here. Returns `true` if
    /// the caller must notify the consumer's doorbell. At most one of several concurrent callers gets `true`.
    #[inline(always)]
    pub fn take_consumer_wakeup(&self) -> bool {
        fence_publisher();
        take_wakeup(&self.consumer_wakeup.0)
    }

    /// The same for a producer that syncs its ring by the lock's bias, which is always a registered process.
    #[inline(always)]
    pub fn take_consumer_wakeup_biased(&self) -> bool {
        fence_registered_publisher();
        take_wakeup(&self.consumer_wakeup.0)
    }

    /// Consumer, after `release`: takes the producer's wake-up request. A futex waiter is woken here. Returns `true` if
    /// the caller must notify the producer's doorbell.
    #[inline(always)]
    pub fn take_producer_wakeup(&self) -> bool {
        fence_publisher();
        take_wakeup(&self.producer_wakeup.0)
    }

    /// Producer, after `publish`: whether the consumer sleeps on its doorbell. The request stays.
    #[cfg(not(loom))]
    #[inline]
    pub(super) fn consumer_waits_on_doorbell(&self) -> bool {
        // Relaxed (O6): behind the fence.
        fence_publisher();
        self.consumer_wakeup.0.load(Ordering::Relaxed) == WAITS_ON_DOORBELL
    }

    /// The wake-up request word of one side.
    #[cfg(not(loom))]
    pub(super) fn wakeup_word(&self, of_consumer: bool) -> &AtomicU32 {
        if of_consumer { &self.consumer_wakeup.0 } else { &self.producer_wakeup.0 }
    }
}

/// The sleeper's fence, between its wake-up requests and its last check of the positions.
pub fn fence_before_sleep() {
    fence_sleeper();
}
