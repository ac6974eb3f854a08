// SPDX-License-Identifier: BSD-2-Clause
//! A client's receive ring, which the switch fills: with same-destination runs, with lists of copies, or packet by
//! packet.

use std::io;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use unetmap_abi::NS_MOREFRAG;
use unetmap_mem::{
    BufIdx, ChannelPage, ConsWord, Frame, MAC_PAIR_BYTES, MirrorSet, Moved, Pos, Producer, Region, RingRef, Run,
    SimdLevel, SlotHead, Slots, Span, copy_list, copy_packet, copy_run, swap_one, swap_run,
};
use unetmap_sys::Doorbell;
use unetmap_sys::thread::current_cpu;

use super::batch::{Batch, BatchSource};
use super::counters::{RxCounters, RxCounts};
use super::gather::{MAX_VNET_HDR, gathered};
use super::offsets::HeadroomOffsets;
use super::prefault::Prefault;
use super::recent_buffers::RecentBuffers;
use super::ring::{RingConfig, lock_until};
use crate::backpressure::Backpressure;
use crate::forward::{MAX_FRAGS, Packet};
use crate::tuning::{BUFFER_PREFETCH_SLOTS, DEFER_WAKEUP_RING_SHARE, KEEPS_UP_RING_SHARE, MAX_FUTILE_WAITS};

/// Keeps the buffers of free receive slots where they are, see
/// [`SwitchPort::pause_exchanges`](super::SwitchPort::pause_exchanges).
pub struct ExchangePause<'a> {
    pauses: &'a AtomicU32,
}

impl Drop for ExchangePause<'_> {
    fn drop(&mut self) {
        self.pauses.fetch_sub(1, Relaxed);
    }
}

/// Slot flags of a packet of one slot: the number of its slots, without `NS_MOREFRAG`.
const ONE_SLOT: u16 = 1 << 8;

/// A client's receive ring, as the switch sees it: the switch produces, the client consumes.
pub(crate) struct PortRx {
    pub(crate) channel: Producer,
    /// Replaces a buffer index that does not exist.
    placeholder: BufIdx,
    /// Wakes the client when it waits for packets.
    client_doorbell: Arc<Doorbell>,
    state: Mutex<RxState>,
    /// Number of threads outside the switch that read the buffers of free slots: these are not exchanged.
    exchange_pauses: AtomicU32,
    counters: RxCounters,
    pub(crate) offsets: HeadroomOffsets,
    simd: SimdLevel,
    pub(crate) monitors: MirrorSet,
}

/// The positions of a receive ring, and what is known about its client.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RxState {
    /// Next slot to fill.
    pub(crate) prod: Pos,
    /// The client's position when it was read last: slots `[cons, prod)` are the client's.
    pub(crate) cons: Pos,
    /// Packets that were delivered, and bytes in their slots.
    packets: u64,
    bytes: u64,
    /// Waits for the client since it last read anything, weighted.
    pub(crate) futile_waits: u32,
    /// The batch in which it was waited for last.
    pub(crate) waited_in_batch: u32,
    /// The client had read most of its ring when its position was last read, not counting reads after a wait.
    pub(crate) keeps_up: bool,
    prefault: Prefault,
    recent: RecentBuffers,
}

impl RxState {
    /// Returns the number of free slots.
    #[inline(always)]
    pub(crate) fn room(self, n: Slots) -> u32 {
        n.get() - 1 - n.distance(self.cons, self.prod)
    }

    /// Counts packets that were delivered.
    #[inline(always)]
    fn count(&mut self, moved: Moved) {
        self.packets += u64::from(moved.packets);
        self.bytes += moved.bytes;
    }
}

/// Prefaults buffers, after a delivery.
#[inline(always)]
fn prefault(region: &Region, buffers: Option<(BufIdx, u32)>, backpressure: &Backpressure) {
    if let Some((first, n)) = buffers {
        // It takes long, so clients that wait on this CPU are woken before.
        backpressure.flush_wakeups();
        region.populate(first, n);
    }
}

impl PortRx {
    pub(crate) fn new(
        channels: &ChannelPage,
        config: RingConfig<'_>,
        buf_size: u32,
        counters: RxCounters,
    ) -> io::Result<PortRx> {
        let channel = Producer::new(channels, config.channel, config.view.slots().clone());
        let channel = channel.ok_or(io::ErrorKind::InvalidInput)?;
        let state = RxState {
            prod: Pos::ZERO,
            cons: Pos::ZERO,
            packets: 0,
            bytes: 0,
            futile_waits: 0,
            waited_in_batch: 0,
            keeps_up: true,
            prefault: Prefault::new(channel.slots().slots(), buf_size),
            recent: RecentBuffers::new(),
        };
        Ok(PortRx {
            channel,
            placeholder: config.placeholder,
            client_doorbell: Arc::new(config.doorbell),
            state: Mutex::new(state),
            exchange_pauses: AtomicU32::new(0),
            counters,
            offsets: HeadroomOffsets::default(),
            simd: SimdLevel::best(),
            monitors: MirrorSet::default(),
        })
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, RxState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits for a delivery that is under way, and keeps later ones from exchanging buffers of free slots until the
    /// result is dropped; `None` if that takes longer than until `end`, as the switch waits for memory of a client.
    pub(crate) fn pause_exchanges(&self, end: Instant) -> Option<ExchangePause<'_>> {
        // Relaxed: deliveries read it with the lock that is taken here afterwards.
        self.exchange_pauses.fetch_add(1, Relaxed);
        let pause = ExchangePause { pauses: &self.exchange_pauses };
        lock_until(&self.state, end).map(|_delivered| pause)
    }

    /// Returns the client's position, and its word, if the ring was full when the position was read last, and the
    /// client is not waited for until it reads.
    pub(crate) fn full_at(&self) -> Option<(u32, ConsWord)> {
        let state = self.lock();
        let is_full = state.room(self.channel.slots().slots()) == 0 && state.futile_waits >= MAX_FUTILE_WAITS;
        is_full.then(|| (state.cons.raw(), self.channel.cons_word()))
    }

    /// Goes on counting where another process stopped, which may have counted after this ring was made.
    pub(crate) fn read_counters(&self, state: &mut RxState) {
        (state.packets, state.bytes) = (self.counters.packets.load(Relaxed), self.counters.bytes.load(Relaxed));
    }

    /// Counts `n` packets without room.
    pub(crate) fn count_drops(&self, n: u64) {
        self.counters.dropped.fetch_add(n, Relaxed);
    }

    /// Counts `n` packets whose buffers were swapped.
    pub(crate) fn count_swaps(&self, n: u64) {
        self.counters.swapped.fetch_add(n, Relaxed);
    }

    /// Returns what was counted.
    pub(crate) fn counts(&self) -> RxCounts {
        let RxCounters { packets, bytes, dropped, swapped } = &self.counters;
        let [packets, bytes, dropped, swapped] = [packets, bytes, dropped, swapped].map(|n| n.load(Relaxed));
        RxCounts { packets, bytes, dropped, swapped }
    }

    /// Returns how often the client was woken by its doorbell.
    pub(crate) fn wakeups(&self) -> u64 {
        self.client_doorbell.notified()
    }

    /// Delivers a same-destination run of a batch, from slot `at` on: packets that begin with `addresses`. Returns
    /// how many packets that were, and whether the run ended because the ring is full.
    #[inline]
    pub(crate) fn fill_run(
        &self,
        region: &Region,
        BatchSource { region: source_region, batch, backpressure }: BatchSource<'_>,
        addresses: [u8; MAC_PAIR_BYTES],
        at: u32,
    ) -> (u32, bool) {
        let n = self.channel.slots().slots();
        let (source, target) =
            (RingRef { slots: batch.slots, region: source_region }, RingRef { slots: self.channel.slots(), region });
        let mut state = self.lock();
        let mut next = *state;
        let (mut done, mut full, swap) = (0, false, region.is_same_mapping(source_region));
        while at + done < batch.len {
            if next.room(n) == 0 {
                self.refresh(&mut next);
                full = next.room(n) == 0;
                if full {
                    break;
                }
            }
            let most = next.room(n).min(batch.len - at - done);
            if !swap {
                self.use_recent_buffers(&mut next, most);
            }
            let from = batch.at(at + done);
            // Up to the end of either ring at a time.
            let contiguous = most.min(n.get() - next.prod.raw()).min(batch.slots.slots().get() - from.raw());
            let run = Run { addresses, flags: ONE_SLOT, max: contiguous };
            let moved = match swap {
                true => swap_run(batch.channel, from, target.slots, next.prod, region, run),
                false => copy_run(self.simd, source, from, target, next.prod, run),
            };
            done += moved.packets;
            next.prod = n.add(next.prod, moved.packets);
            next.count(moved);
            if moved.packets < contiguous {
                break;
            }
        }
        if swap && done > 0 {
            self.count_swaps(done.into());
        }
        let buffers = self.publish(region, &mut state, next, backpressure);
        drop(state);
        prefault(region, buffers, backpressure);
        (done, full)
    }

    /// Delivers copies of single-slot packets, as far as there is room; returns how many.
    #[inline]
    pub(crate) fn fill_copies(&self, region: &Region, from: BatchSource<'_>, packets: &[SlotHead]) -> usize {
        let (source_region, backpressure) = (from.region, from.backpressure);
        let (ring, n) = (self.channel.slots(), self.channel.slots().slots());
        let target = RingRef { slots: ring, region };
        let mut state = self.lock();
        let (mut next, mut done) = (*state, 0);
        while let [first, ..] = &packets[done..] {
            let left = packets.len() - done;
            if (next.room(n) as usize) < left {
                self.refresh(&mut next);
                if next.room(n) == 0 {
                    break;
                }
            }
            self.use_recent_buffers(&mut next, left as u32);
            // Up to the end of the ring at a time.
            let contiguous = left.min(next.room(n).min(n.get() - next.prod.raw()) as usize);
            let list = &packets[done..done + contiguous];
            let mut moved = copy_list(self.simd, source_region, list, target, next.prod, ONE_SLOT);
            if moved.packets == 0 {
                let (to, from) = (self.buffer(region, next.prod), source_region.frame(first.buf_idx()));
                let len = copy_packet(self.simd, &to, &from, usize::from(first.len()));
                ring.set_len_flags(next.prod, len as u16, ONE_SLOT);
                moved = Moved { packets: 1, bytes: len as u64 };
            }
            next.prod = n.add(next.prod, moved.packets);
            next.count(moved);
            done += moved.packets as usize;
        }
        let buffers = self.publish(region, &mut state, next, backpressure);
        drop(state);
        prefault(region, buffers, backpressure);
        done
    }

    /// Delivers packet after packet, with `swap` by swapping buffers; returns the first packet without room.
    #[inline]
    pub(crate) fn fill_packets(
        &self,
        region: &Region,
        (BatchSource { region: source_region, batch, backpressure }, swap): (BatchSource<'_>, bool),
        first: Packet,
        packets: &mut impl Iterator<Item = Packet>,
    ) -> Option<Packet> {
        let (ring, n) = (self.channel.slots(), self.channel.slots().slots());
        let may_not_fit = region.limits().buf_size < source_region.limits().buf_size || !self.offsets.none();
        let mut state = self.lock();
        let mut next = *state;
        let (mut pending, mut swapped) = (Some(first), 0);
        if !swap {
            self.use_recent_buffers(&mut next, batch.len);
        }
        while let Some(packet) = pending {
            if may_not_fit && !self.fits(region, batch, packet, next.prod) {
                let split = |bytes: &[u8]| self.put_split(region, &mut next, bytes);
                match gathered(source_region, batch, packet, split) {
                    Some(true) => {}
                    Some(false) => break,
                    None => self.count_drops(1),
                }
                pending = packets.next();
                continue;
            }
            if next.room(n) < u32::from(packet.frags) {
                self.refresh(&mut next);
                if next.room(n) < u32::from(packet.frags) {
                    break;
                }
            }
            pending = packets.next();
            if !swap {
                // A hint: the ring may be full before that slot.
                region.prefetch_for_write(ring.buf_idx(n.add(next.prod, BUFFER_PREFETCH_SLOTS.min(n.get()))));
            }
            let mut copied = false;
            for i in 0..packet.frags {
                let from = batch.at(u32::from(packet.at + i));
                let more = if i + 1 == packet.frags { 0 } else { NS_MOREFRAG };
                let flags = packet.frags << 8 | more;
                let slot = batch.slots.load(from);
                let mut len = usize::from(slot.len);
                if !swap || !swap_one(batch.channel, from, ring, next.prod, flags) {
                    let to = self.buffer(region, next.prod);
                    let frame = batch.frame(source_region, slot);
                    len = copy_packet(self.simd, &to, &frame, len);
                    ring.set_len_flags(next.prod, len as u16, flags);
                    copied = true;
                }
                next.bytes += len as u64;
                next.prod = n.next(next.prod);
            }
            next.packets += 1;
            swapped += u64::from(!copied);
        }
        if swapped > 0 {
            self.count_swaps(swapped);
        }
        let buffers = self.publish(region, &mut state, next, backpressure);
        drop(state);
        prefault(region, buffers, backpressure);
        pending
    }

    /// Writes a packet into as many slots as it needs; `Some(false)` if they are not free now, `None` if they never
    /// are.
    #[cold]
    fn put_split(&self, region: &Region, next: &mut RxState, packet: &[u8]) -> Option<bool> {
        let slots = packet.len().div_ceil(self.slot_capacity(region));
        let most = (MAX_FRAGS as usize).min(self.channel.slots().slots().get() as usize - 1);
        let is_possible = slots <= most && self.offsets.get().max < region.limits().buf_size;
        is_possible.then(|| self.put(region, next, &[packet]))
    }

    /// Writes a packet that consists of `pieces` into the next slots; `false` if there is no room.
    pub(crate) fn put(&self, region: &Region, next: &mut RxState, pieces: &[&[u8]]) -> bool {
        let (ring, n) = (self.channel.slots(), self.channel.slots().slots());
        let size = self.slot_capacity(region);
        let bytes: usize = pieces.iter().map(|piece| piece.len()).sum();
        let frags = bytes.div_ceil(size).max(1);
        // With an offset that may reach the end of the buffer there is room in no slot.
        if self.offsets.get().max >= region.limits().buf_size || !self.has_room(next, frags) {
            return false;
        }
        let mut left = pieces.iter().flat_map(|piece| piece.chunks(size));
        let mut part: &[u8] = &[];
        for i in 0..frags {
            let buffer = self.buffer(region, next.prod);
            let mut len = 0;
            while len < size {
                if part.is_empty() {
                    match left.next() {
                        Some(chunk) => part = chunk,
                        None => break,
                    }
                }
                let now = part.len().min(size - len);
                buffer.write(len, &part[..now]);
                (len, part) = (len + now, &part[now..]);
            }
            let more = if i + 1 == frags { 0 } else { NS_MOREFRAG };
            ring.set_len_flags(next.prod, len as u16, (frags as u16) << 8 | more);
            next.prod = n.next(next.prod);
            next.bytes += len as u64;
        }
        next.packets += 1;
        true
    }

    /// Copies a frame of `len` bytes into the next slot, behind a virtio-net header of `header` bytes that requests
    /// nothing; `false` if there is no room. Both fit into a [slot](PortRx::slot_capacity).
    #[inline]
    pub(crate) fn put_frame(
        &self,
        region: &Region,
        next: &mut RxState,
        header: usize,
        (frame, len): (Frame<'_>, usize),
    ) -> bool {
        let (ring, n) = (self.channel.slots(), self.channel.slots().slots());
        if !self.has_room(next, 1) {
            return false;
        }
        // A hint: the ring may be full before that slot.
        region.prefetch_for_write(ring.buf_idx(n.add(next.prod, BUFFER_PREFETCH_SLOTS.min(n.get()))));
        let buffer = self.buffer(region, next.prod);
        buffer.write(0, &[0; MAX_VNET_HDR][..header]);
        let bytes = header + copy_packet(self.simd, &buffer.skip(header), &frame, len);
        ring.set_len_flags(next.prod, bytes as u16, ONE_SLOT);
        next.prod = n.next(next.prod);
        next.count(Moved { packets: 1, bytes: bytes as u64 });
        true
    }

    /// Ends a delivery: passes the filled slots, up to `next.prod`, to the client and wakes it if it sleeps (later if
    /// that suffices). Returns the buffers to [`prefault`] once the lock is released.
    #[inline(always)]
    pub(crate) fn publish(
        &self,
        region: &Region,
        state: &mut RxState,
        mut next: RxState,
        backpressure: &Backpressure,
    ) -> Option<(BufIdx, u32)> {
        let moved = next.prod != state.prod;
        if moved && self.monitors.any_copy() {
            let ring = (self.channel.slots(), self.offsets.get());
            self.monitors.copy(region, ring, Span { from: state.prod, to: next.prod });
        }
        let before = state.prod;
        if moved {
            let slots = self.channel.slots().slots().distance(before, next.prod);
            next.recent.delivered(slots, next.bytes.wrapping_sub(state.bytes));
        }
        *state = next;
        if moved {
            self.counters.packets.store(next.packets, Relaxed);
            self.counters.bytes.store(next.bytes, Relaxed);
            let cpu = current_cpu();
            self.channel.words().set_producer_cpu(cpu);
            self.channel.words().publish(next.prod);
            self.wake_client(cpu, next, backpressure);
            if next.prefault.unfinished() {
                return state.prefault.next(self.channel.slots(), Span { from: before, to: next.prod });
            }
        }
        None
    }

    /// After packets were published: wakes the client if it sleeps, or defers that.
    #[inline(always)]
    fn wake_client(&self, cpu: u32, filled: RxState, backpressure: &Backpressure) {
        let deferrable = match self.channel.futex_waiter(cpu) {
            None if backpressure.streaming() => {
                self.channel.doorbell_waiter().filter(|_| self.is_little_filled(filled))
            }
            waiter => waiter,
        };
        if deferrable.is_some_and(|waiter| backpressure.defer_wakeup(waiter, &self.client_doorbell)) {
            return;
        }
        if self.channel.words().take_consumer_wakeup() {
            self.client_doorbell.notify();
        }
    }

    /// True if less than a quarter of the ring is filled: the wake-up of a sleeping client may wait.
    #[cold]
    fn is_little_filled(&self, filled: RxState) -> bool {
        let n = self.channel.slots().slots();
        let cons = self.channel.words().validated_cons(n, filled.cons, filled.prod);
        cons.is_some_and(|cons| n.distance(cons, filled.prod) < n.get() / DEFER_WAKEUP_RING_SHARE)
    }

    /// Before the thread sleeps: it may be woken on any CPU, perhaps the client's.
    pub(crate) fn unset_cpu(&self) {
        self.channel.words().set_producer_cpu_any();
    }

    /// Before up to `most` large packets are copied: gives their slots buffers that are still in a cache.
    #[inline(always)]
    fn use_recent_buffers(&self, next: &mut RxState, most: u32) {
        if next.recent.matter() {
            self.exchange_buffers(next, most);
        }
    }

    #[cold]
    fn exchange_buffers(&self, next: &mut RxState, most: u32) {
        if self.exchange_pauses.load(Relaxed) > 0 {
            return;
        }
        let (ring, before) = (self.channel.slots(), next.cons);
        self.refresh(next);
        let room = next.room(ring.slots());
        next.recent.give(ring, next.prod, (most.min(room), room), next.cons != before);
    }

    /// Returns the buffer of slot `p`, from where the packet is to begin. Reads the client's buffer index once.
    #[inline(always)]
    fn buffer<'a>(&self, region: &'a Region, p: Pos) -> Frame<'a> {
        let mut idx = self.channel.slots().buf_idx(p);
        if !region.limits().index_ok(idx) {
            self.channel.slots().set_buf_idx(p, self.placeholder);
            idx = self.placeholder;
        }
        self.offsets.get().within(region.frame(idx), || self.channel.slots().ptr(p))
    }

    /// Reads the client's position. An impossible position changes nothing: the ring stays full.
    pub(crate) fn refresh(&self, state: &mut RxState) {
        if let Some(cons) = self.channel.words().validated_cons(self.channel.slots().slots(), state.cons, state.prod) {
            if cons != state.cons {
                state.futile_waits = 0;
            }
            state.cons = cons;
            let n = self.channel.slots().slots();
            state.keeps_up = state.room(n) >= n.get() / KEEPS_UP_RING_SHARE;
        }
    }

    /// True if there are `slots` free ones; reads the client's position if that is not known.
    pub(crate) fn has_room(&self, state: &mut RxState, slots: usize) -> bool {
        let n = self.channel.slots().slots();
        if (state.room(n) as usize) < slots {
            self.refresh(state);
        }
        state.room(n) as usize >= slots
    }

    /// Returns how many bytes of a packet each slot holds, wherever the packet may begin; at least 1, since callers
    /// divide by it.
    pub(crate) fn slot_capacity(&self, region: &Region) -> usize {
        (region.limits().buf_size.saturating_sub(self.offsets.get().max) as usize).max(1)
    }

    /// True if the buffers of the slots from `to` on hold those of a packet.
    #[cold]
    fn fits(&self, region: &Region, batch: &Batch<'_>, packet: Packet, to: Pos) -> bool {
        let (slots, offsets, size) = (self.channel.slots(), self.offsets.get(), region.limits().buf_size);
        (0..packet.frags).map(u32::from).all(|i| {
            let offset = offsets.of(slots.ptr(slots.slots().add(to, i)));
            let len = batch.slots.len(batch.at(u32::from(packet.at) + i));
            u32::from(len) + offset <= size
        })
    }
}

#[cfg(test)]
mod tests;
