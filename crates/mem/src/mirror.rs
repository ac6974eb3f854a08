// SPDX-License-Identifier: BSD-2-Clause
//! Mirrors: the sync that moves packets across a ring copies them to the ring's monitors.
//!
//! ```text
//! monitored program                                         monitor
//!   sync --copy--> slots and buffers of a mirror ring, [ cons .... prod ) --copy--> own ring, in a region of its own
//! ```
//! A mirror is memory that the monitor and the monitored programs share. They share nothing else, so neither can read
//! any other memory of its peer. Each monitored ring has a mirror ring and a channel of its own in it: only the holder
//! of the monitored ring's lock produces there. The producer never waits: packets without room are dropped whole, and
//! counted on the mirror ring.
//!
//! A zero-copy monitor has its mirror in the region of the monitored port, and receives the buffers themselves: when a
//! slot has been sent or released, its buffer moves to the mirror ring, and the buffer there takes its place
//! (`NS_BUF_CHANGED`).
//!
//! The daemon decides which monitors a port has. A word that each sync loads anyway, the status, contains the monitor
//! generation; when it changes, the sync stops until its caller has renewed the list.

use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, TryLockError};
use std::time::Instant;

use unetmap_abi::{NS_BUF_CHANGED, NS_MOREFRAG};
use unetmap_sys::{Doorbell, clock};

use crate::tuning::MIRROR_LOCK_LIMIT;
use crate::{
    ChannelPage, EndpointPage, Offsets, Pos, Producer, Region, RingShape, RingView, SlotRing, SlotValue, Span,
};

/// The producer's end of a mirror ring, used by the sync of the monitored ring.
pub struct MirrorTx {
    /// The monitor.
    id: u64,
    zero_copy: bool,
    region: Arc<Region>,
    channel: Producer,
    states: EndpointPage,
    /// Index of the mirror ring's state; the constructor checked that it exists.
    state: usize,
    /// Wakes the monitor.
    doorbell: Doorbell,
    /// Slots after `prod` that are filled: the start of a packet whose end has not arrived.
    begun: AtomicU32,
    /// Whether the start of such a packet was dropped.
    dropping: AtomicBool,
}

impl MirrorTx {
    /// Takes the ring `shape` of `region` as a mirror ring of `monitor` (its identity, and whether it is zero-copy),
    /// with the channel and the state of an index. `None` if there is no such ring, channel or state.
    pub fn new(
        monitor: (u64, bool),
        (region, shape): (&Arc<Region>, RingShape),
        (channels, states, index): (&ChannelPage, &EndpointPage, usize),
        doorbell: Doorbell,
    ) -> Option<MirrorTx> {
        let slots = RingView::new(region, shape)?.slots().clone();
        states.state(index)?;
        Some(MirrorTx {
            id: monitor.0,
            zero_copy: monitor.1,
            region: region.clone(),
            channel: Producer::new(channels, index, slots)?,
            states: states.clone(),
            state: index,
            doorbell,
            begun: AtomicU32::new(0),
            dropping: AtomicBool::new(false),
        })
    }

    /// Copies the packets of `span`, and drops those without room. The caller holds the lock of the ring `theirs`,
    /// whose buffers are in `region`.
    fn copy(&self, region: &Region, (theirs, offsets): (&SlotRing, Offsets), span: Span, time: u64) {
        let slots = self.channel.slots();
        self.put_all(theirs, span, |p, at| {
            let slot = theirs.load(p);
            let packet = region.frame(slot.buf_idx).skip(offsets.of(slot.ptr) as usize);
            let idx = slots.buf_idx(at);
            // A slot with an invalid buffer index is copied as an empty packet, one that is too long is truncated.
            let len = self.region.frame(idx).copy_from(&packet, usize::from(slot.len));
            slots.store(at, SlotValue { buf_idx: idx, len: len as u16, flags: slot.flags & NS_MOREFRAG, ptr: time });
            true
        });
    }

    /// Takes the buffers of `span`, whose packets have been sent or read, and leaves others. The caller holds the lock
    /// of the ring `theirs`. A buffer that was exchanged before holds another packet, or none; packets with an offset
    /// are dropped, because the monitor may have no offsets.
    fn exchange(&self, (theirs, offsets): (&SlotRing, Offsets), span: Span, time: u64) {
        let (slots, limits) = (self.channel.slots(), self.region.limits());
        self.put_all(theirs, span, |p, at| {
            let slot = theirs.load(p);
            let other = slots.buf_idx(at);
            if slot.flags & NS_BUF_CHANGED != 0
                || !limits.allow(slot)
                || !limits.index_ok(other)
                || offsets.of(slot.ptr) != 0
            {
                return false;
            }
            slots.store(at, SlotValue { flags: slot.flags & NS_MOREFRAG, ptr: time, ..slot });
            theirs.store(p, SlotValue { buf_idx: other, flags: slot.flags | NS_BUF_CHANGED, ..slot });
            true
        });
    }

    /// Calls `put` for each slot of `span` and its place in the mirror ring. Drops the packets of slots for which it
    /// returns `false` or that have no room.
    #[inline(always)]
    fn put_all(&self, theirs: &SlotRing, span: Span, mut put: impl FnMut(Pos, Pos) -> bool) {
        let (count, slots) = (theirs.slots(), self.channel.slots().slots());
        // The monitor can write both positions; any two valid ones delimit a part of the ring.
        let Some(used) = self.channel.words().positions(slots) else {
            return self.count(0, count.distance(span.from, span.to));
        };
        let full = slots.prev(used.from);
        let (mut whole, mut copied, mut dropped) = (used.to, 0, 0);
        let begun = self.begun.load(Relaxed).min(slots.distance(used.to, full));
        let mut at = slots.add(used.to, begun);
        let mut dropping = self.dropping.load(Relaxed);
        for p in count.walk(span) {
            let continued = theirs.flags(p) & NS_MOREFRAG != 0;
            if !dropping && (at == full || !put(p, at)) {
                // Drops the start of this packet with the rest of it.
                dropped += slots.distance(whole, at);
                at = whole;
                dropping = true;
            }
            if dropping {
                dropped += 1;
                dropping = continued;
                continue;
            }
            at = slots.next(at);
            if !continued {
                copied += slots.distance(whole, at);
                whole = at;
            }
        }
        self.begun.store(slots.distance(whole, at), Relaxed);
        self.dropping.store(dropping, Relaxed);
        self.count(copied, dropped);
        if whole != used.to {
            self.channel.words().publish(whole);
            if self.channel.words().take_consumer_wakeup() {
                self.doorbell.notify();
            }
        }
    }

    fn count(&self, copied: u32, dropped: u32) {
        let Some(state) = self.states.state(self.state) else { return };
        if copied > 0 {
            state.count_batch(copied);
        }
        if dropped > 0 {
            state.dropped.fetch_add(u64::from(dropped), Relaxed);
        }
    }
}

/// Bit of [`MirrorSet::summary`], above the status: a monitor gets copies.
const HAS_COPY: u64 = 1 << 32;
/// Bit of [`MirrorSet::summary`]: a monitor gets buffers.
const HAS_ZERO_COPY: u64 = 1 << 33;

/// The mirror rings of a ring's monitors, as of the last renewal.
#[derive(Default)]
pub struct MirrorSet {
    /// The status at the last renewal, [`HAS_COPY`], [`HAS_ZERO_COPY`]. One word: a thread that finds the list current
    /// also knows what kinds of monitors it has.
    summary: AtomicU64,
    /// Whether the list counts as current for any status.
    accepts_stale: AtomicBool,
    /// Whether the list's lock was given up: see [`MIRROR_LOCK_LIMIT`].
    stuck: AtomicBool,
    list: Mutex<Mirrors>,
}

type Mirrors = Arc<Vec<Arc<MirrorTx>>>;

impl MirrorSet {
    /// Whether the list is current for `status`.
    #[inline(always)]
    pub fn is_current(&self, status: u32) -> bool {
        self.summary.load(Relaxed) as u32 == status || self.accepts_stale.load(Relaxed) && !self.any_zero_copy()
    }

    /// Calls `sync`; the list counts as current meanwhile, unless a monitor is zero-copy.
    pub fn with_stale_monitors<T>(&self, sync: impl FnOnce() -> T) -> T {
        self.accepts_stale.store(true, Relaxed);
        let result = sync();
        self.accepts_stale.store(false, Relaxed);
        result
    }

    /// Whether any monitor gets copies.
    #[inline(always)]
    pub fn any_copy(&self) -> bool {
        self.summary.load(Relaxed) & HAS_COPY != 0
    }

    /// Whether any monitor gets buffers.
    #[inline(always)]
    pub fn any_zero_copy(&self) -> bool {
        self.summary.load(Relaxed) & HAS_ZERO_COPY != 0
    }

    /// Whether there is any monitor.
    #[inline(always)]
    pub fn any(&self) -> bool {
        self.any_copy() || self.any_zero_copy()
    }

    /// Copies the packets of `span` to all monitors that get copies. The caller holds the lock of the ring, whose
    /// buffers are in `region`.
    #[cold]
    pub fn copy(&self, region: &Region, ring: (&SlotRing, Offsets), span: Span) {
        let Some(list) = self.lock().map(|list| list.clone()) else { return };
        let time = clock::now_ns();
        list.iter().filter(|mirror| !mirror.zero_copy).for_each(|mirror| mirror.copy(region, ring, span, time));
    }

    /// Moves the buffers of `span`, whose packets have been sent or read, to the zero-copy monitors, in exchange for
    /// others. The caller holds the lock of the ring.
    #[cold]
    pub fn exchange(&self, ring: (&SlotRing, Offsets), span: Span) {
        let Some(list) = self.lock().map(|list| list.clone()) else { return };
        let time = clock::now_ns();
        list.iter().filter(|mirror| mirror.zero_copy).for_each(|mirror| mirror.exchange(ring, span, time));
    }

    fn lock(&self) -> Option<MutexGuard<'_, Mirrors>> {
        let mut since = None;
        while !self.stuck.load(Relaxed) {
            match self.list.try_lock() {
                Ok(list) => return Some(list),
                Err(TryLockError::Poisoned(list)) => return Some(list.into_inner()),
                Err(TryLockError::WouldBlock) => std::thread::yield_now(),
            }
            if since.get_or_insert_with(Instant::now).elapsed() > MIRROR_LOCK_LIMIT {
                self.stuck.store(true, Relaxed);
            }
        }
        None
    }

    /// Replaces the list. Mirror rings of monitors that were in it before are kept, with their state.
    pub fn replace(&self, new: Vec<MirrorTx>, status: u32) {
        let old = self.lock().map(|list| list.clone()).unwrap_or_default();
        let kept = |mirror: MirrorTx| {
            let known = old.iter().find(|known| known.id == mirror.id);
            known.cloned().unwrap_or_else(|| Arc::new(mirror))
        };
        let new: Mirrors = Arc::new(new.into_iter().map(kept).collect());
        let kinds = new.iter().map(|mirror| if mirror.zero_copy { HAS_ZERO_COPY } else { HAS_COPY });
        let summary = kinds.fold(u64::from(status), |all, kind| all | kind);
        if let Some(mut list) = self.lock() {
            *list = new;
        }
        self.summary.store(summary, Relaxed);
    }
}
