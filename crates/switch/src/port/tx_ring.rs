// SPDX-License-Identifier: BSD-2-Clause
//! A client's transmit ring, from which the switch takes batches of slots.

use std::io;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use unetmap_mem::{
    BufIdx, ChannelPage, Consumer, FutexWaitSet, Limits, MappedRange, MirrorSet, Offsets, Pos, ProdWord, Region,
    RingShape, SimdLevel, SlotRing, SlotValue, Slots, Span,
};
use unetmap_sys::thread::current_cpu;
use unetmap_sys::{Doorbell, Mapping, memfd};

use super::batch::Batch;
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
    /// Bytes of the slots that were returned to the client. Written with the lock of `state`.
    bytes: AtomicU64,
    /// Dropped packets by [`DropReason`].
    drops: [AtomicU64; DropReason::ALL.len()],
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

impl PortTx {
    pub(crate) fn new(region: &Region, channels: &ChannelPage, config: RingConfig<'_>) -> io::Result<PortTx> {
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
            bytes: AtomicU64::new(0),
            drops: Default::default(),
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

    /// Counts `n` packets that reach no port.
    pub(crate) fn count_drops(&self, reason: DropReason, n: u64) {
        self.drops[reason as usize].fetch_add(n, Relaxed);
    }

    /// Returns the dropped packets, in the order of [`DropReason::ALL`].
    pub(crate) fn drops(&self) -> [u64; DropReason::ALL.len()] {
        std::array::from_fn(|i| self.drops[i].load(Relaxed))
    }

    /// Returns the bytes of the slots that were returned to the client.
    pub(crate) fn bytes(&self) -> u64 {
        self.bytes.load(Relaxed)
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
        self.release(&mut state, count, backpressure);
    }

    /// Returns the first `n` slots of a batch to the client, and counts their bytes.
    #[inline]
    pub(crate) fn release_batch(&self, state: &mut TxState, batch: &Batch<'_>, n: u32, backpressure: &Backpressure) {
        self.bytes.store(self.bytes.load(Relaxed).wrapping_add(batch.bytes_of(n)), Relaxed);
        self.release(state, n, backpressure);
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
