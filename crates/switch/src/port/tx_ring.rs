// SPDX-License-Identifier: BSD-2-Clause
//! A client's transmit ring, from which the switch takes batches of slots.

use std::io;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use unetmap_mem::{
    BufIdx, ChannelPage, Consumer, FutexWaitSet, Limits, MappedRange, MirrorSet, Offsets, Pos, ProdWord, Region,
    RingShape, SimdLevel, SlotRing, SlotValue, Slots, Span,
};
use unetmap_sys::thread::current_cpu;
use unetmap_sys::{Doorbell, Mapping, memfd};

use super::batch::{Batch, Served};
use super::counters::{TxCounters, TxCounts};
use super::offsets::HeadroomOffsets;
use super::ring::{RingConfig, lock_until};
use crate::backpressure::Backpressure;
use crate::forward::{FlowCache, PacketCutter};
use crate::policy::DropReason;

/// A client's transmit ring, as the switch sees it: the client produces, the switch consumes.
pub(crate) struct PortTx {
    pub(crate) channel: Consumer,
    /// Wakes the client when it waits for free slots.
    client_doorbell: Arc<Doorbell>,
    pub(super) state: Mutex<TxState>,
    /// Number of threads outside the switch that wait for the lock: they take precedence.
    pauses: AtomicU32,
    /// The client's position word at which the last poll found nothing.
    pub(super) empty_at: AtomicU32,
    pub(crate) offsets: HeadroomOffsets,
    counters: TxCounters,
    of_batch: OfBatch,
    pub(crate) monitors: MirrorSet,
}

/// Keeps the switch from taking slots of a transmit ring, see [`SwitchPort::pause_tx`](super::SwitchPort::pause_tx).
pub struct TxPause<'a> {
    pauses: &'a AtomicU32,
    _state: MutexGuard<'a, TxState>,
}

impl Drop for TxPause<'_> {
    fn drop(&mut self) {
        self.pauses.fetch_sub(1, Relaxed);
    }
}

/// State of a transmit ring and its sender that lasts across batches.
#[derive(Debug)]
pub(crate) struct TxState {
    /// All slots before it were released: the switch's own copy of the channel's `cons`.
    pub(super) cons: Pos,
    pub(crate) cutter: PacketCutter,
    pub(crate) cache: FlowCache,
}

/// Counts of the batch that is being forwarded. They are added to the counters, which outlive the process, when its
/// slots are released: after a crash before that the batch is forwarded, and counted, again.
#[derive(Default)]
struct OfBatch {
    copies: AtomicU64,
    has_drops: AtomicBool,
    /// By [`DropReason::SENT`].
    drops: [AtomicU64; DropReason::SENT.len()],
}

/// Adds to a counter that is written with the lock of the ring only.
#[inline(always)]
fn add(counter: &AtomicU64, n: u64) {
    counter.store(counter.load(Relaxed).wrapping_add(n), Relaxed);
}

impl PortTx {
    pub(crate) fn new(
        region: &Region,
        channels: &ChannelPage,
        config: RingConfig<'_>,
        counters: TxCounters,
    ) -> io::Result<PortTx> {
        let client_slots = config.view.slots().clone();
        let copies = private_slots(client_slots.slots())?;
        let channel =
            Consumer::new(channels, config.channel, client_slots, copies, region.shared_limits(), SimdLevel::best());
        let channel = channel.ok_or(io::ErrorKind::InvalidInput)?;
        let state = TxState { cons: Pos::ZERO, cutter: PacketCutter::default(), cache: FlowCache::default() };
        Ok(PortTx {
            channel,
            client_doorbell: Arc::new(config.doorbell),
            state: Mutex::new(state),
            pauses: AtomicU32::new(0),
            empty_at: AtomicU32::new(0),
            offsets: HeadroomOffsets::default(),
            counters,
            of_batch: OfBatch::default(),
            monitors: MirrorSet::default(),
        })
    }

    /// Waits until the current batch is done, and keeps the switch from taking another until the result is dropped;
    /// `None` if that takes longer than until `end`, as the switch waits for memory of a client.
    pub(crate) fn pause(&self, end: Instant) -> Option<TxPause<'_>> {
        let PortTx { state, pauses, .. } = self;
        pauses.fetch_add(1, Relaxed);
        let locked = lock_until(state, end).map(|state| TxPause { pauses, _state: state });
        if locked.is_none() {
            pauses.fetch_sub(1, Relaxed);
        }
        locked
    }

    /// Forgets the destinations of earlier packets.
    pub(crate) fn forget_flows(&self) {
        self.state.lock().unwrap_or_else(PoisonError::into_inner).cache = FlowCache::default();
    }

    /// Counts a packet that reaches no port.
    #[cold]
    pub(crate) fn count_drop(&self, reason: DropReason) {
        self.count_drops(reason, 1);
    }

    /// Counts `n` packets of the batch that reach no port.
    pub(crate) fn count_drops(&self, reason: DropReason, n: u64) {
        add(&self.of_batch.drops[reason as usize], n);
        self.of_batch.has_drops.store(true, Relaxed);
    }

    /// Counts `n` packets that another port is to get of the batch: a flooded one once for each port.
    #[inline(always)]
    pub(crate) fn count_copies(&self, n: u64) {
        add(&self.of_batch.copies, n);
    }

    /// Counts a batch of which so many packets were taken.
    #[inline(always)]
    fn count_batch(&self, packets: u32) {
        let (of_batch, counters) = (&self.of_batch, &self.counters);
        add(&counters.packets, packets.into());
        add(&counters.copies, of_batch.copies.load(Relaxed));
        of_batch.copies.store(0, Relaxed);
        if of_batch.has_drops.load(Relaxed) {
            of_batch.has_drops.store(false, Relaxed);
            for (counter, of_batch) in counters.drops.iter().zip(&of_batch.drops) {
                add(counter, of_batch.load(Relaxed));
                of_batch.store(0, Relaxed);
            }
        }
    }

    /// Returns what was counted.
    pub(crate) fn counts(&self) -> TxCounts {
        let TxCounters { packets, copies, bytes, drops } = &self.counters;
        let [packets, copies, bytes] = [packets, copies, bytes].map(|counter| counter.load(Relaxed));
        TxCounts { packets, copies, bytes, drops: std::array::from_fn(|i| drops[i].load(Relaxed)) }
    }

    /// Returns how often the client was woken by its doorbell.
    pub(crate) fn wakeups(&self) -> u64 {
        self.client_doorbell.notified()
    }

    /// True if the client may have sent; the position is not validated.
    #[inline(always)]
    pub(crate) fn may_have_slots(&self) -> bool {
        self.channel.words().raw_prod() != self.empty_at.load(Relaxed)
    }

    /// Returns the client's position word, for polling many rings.
    pub(crate) fn prod_word(&self) -> ProdWord {
        self.channel.prod_word()
    }

    /// Requests a wake-up; [`unetmap_mem::fence_before_sleep`] and another poll must follow.
    pub(crate) fn request_wakeup(&self) {
        self.channel.words().consumer_request_wakeup();
    }

    /// Takes the request back, if the client has not taken it: the thread is awake.
    pub(crate) fn withdraw_wakeup(&self) {
        self.channel.words().consumer_withdraw_wakeup();
    }

    /// Adds the ring to those that end a futex wait when their client sends; `false`: it cannot be added.
    pub(crate) fn add_to_wait<'a>(&'a self, wait: &mut FutexWaitSet<'a>) -> bool {
        wait.add_consumer(self.channel.words())
    }

    /// Locks the ring's state for a thread of the switch; `None`: the ring is paused, or about to be.
    #[inline]
    pub(crate) fn lock(&self) -> Option<MutexGuard<'_, TxState>> {
        let free = self.pauses.load(Relaxed) == 0;
        free.then(|| self.state.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Returns how many slots the client has sent that are not taken; 0 if its position is impossible, or the ring is
    /// paused.
    pub(crate) fn queued(&self) -> u32 {
        let Some(state) = self.lock() else { return 0 };
        let slots = self.channel.slots().slots();
        let sent = self.channel.words().validated_prod(slots, state.cons, state.cons);
        sent.map_or(0, |to| slots.distance(state.cons, to))
    }

    /// Takes up to `most` slots, copied and validated; `None` if there are none, or the client's position is
    /// impossible.
    #[inline]
    pub(crate) fn take(&self, state: &TxState, most: u32) -> Option<Batch<'_>> {
        let (slots, words) = (self.channel.slots(), self.channel.words());
        let word = words.raw_prod();
        let available = words
            .validated_prod(slots.slots(), state.cons, state.cons)
            .map_or(0, |to| slots.slots().distance(state.cons, to));
        if available == 0 {
            self.empty_at.store(word, Relaxed);
            return None;
        }
        let len = available.min(most);
        let span = Span { from: state.cons, to: slots.slots().add(state.cons, len) };
        let received = self.channel.receive(span, BufIdx(0));
        let mut has_invalid = received.invalid > 0;
        let offsets = self.offsets.get();
        if offsets.mask != 0 {
            has_invalid |= self.validate_offsets(span, offsets, self.channel.limits());
        }
        Some(Batch {
            channel: &self.channel,
            slots,
            start: state.cons,
            len,
            bytes: received.bytes,
            offsets,
            drained: len == available,
            has_invalid,
        })
    }

    /// Makes slots invalid whose packets would end outside their buffers; true if there were any.
    #[cold]
    fn validate_offsets(&self, span: Span, offsets: Offsets, limits: Limits) -> bool {
        let slots = self.channel.slots();
        let mut has_invalid = false;
        for p in slots.slots().walk(span) {
            let slot = slots.load(p);
            if offsets.of(slot.ptr) + u32::from(slot.len) > limits.buf_size {
                slots.store(p, SlotValue { buf_idx: BufIdx(0), len: 0, ..slot });
                has_invalid = true;
            }
        }
        has_invalid
    }

    /// After a panic: drops everything that was sent until now, as it would cause the same panic again; counts the
    /// slots.
    pub(crate) fn drop_sent(&self, backpressure: &Backpressure) {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let slots = self.channel.slots().slots();
        let sent = self.channel.words().validated_prod(slots, state.cons, state.cons);
        let count = sent.map_or(0, |to| slots.distance(state.cons, to));
        state.cutter = PacketCutter::default();
        state.cache = FlowCache::default();
        self.count_drops(DropReason::SwitchFault, count.into());
        self.count_batch(count);
        self.release(&mut state, count, backpressure);
    }

    /// Returns the slots of a batch that were served to the client, and counts their packets and bytes.
    #[inline]
    pub(crate) fn release_batch(
        &self,
        state: &mut TxState,
        batch: &Batch<'_>,
        served: Served,
        backpressure: &Backpressure,
    ) {
        add(&self.counters.bytes, batch.bytes_of(served.slots));
        self.count_batch(served.packets);
        self.release(state, served.slots, backpressure);
    }

    /// Returns the next `n` slots to the client. Wakes it if it waits for them; later if it is in a futex wait on
    /// this CPU.
    #[inline]
    fn release(&self, state: &mut TxState, n: u32, backpressure: &Backpressure) {
        state.cons = self.channel.slots().slots().add(state.cons, n);
        self.empty_at.store(state.cons.raw(), Relaxed);
        let cpu = current_cpu();
        self.channel.words().set_consumer_cpu(cpu);
        self.channel.words().release(state.cons);
        if self.channel.futex_waiter(cpu).is_some_and(|waiter| backpressure.defer_wakeup(waiter, &self.client_doorbell))
        {
            return;
        }
        if self.channel.words().take_producer_wakeup() {
            self.client_doorbell.notify();
        }
    }
}

/// Slots in memory that no client can map.
pub(crate) fn private_slots(slots: Slots) -> io::Result<SlotRing> {
    use std::os::fd::AsFd;
    let bytes = RingShape::bytes(slots);
    let fd = memfd::create_sealed("unetmap-switch", bytes as u64)?;
    let range = MappedRange::whole(Arc::new(Mapping::new(fd.as_fd(), bytes)?));
    SlotRing::new(&range, 0, slots).ok_or_else(|| io::ErrorKind::InvalidInput.into())
}
