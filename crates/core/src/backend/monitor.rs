// SPDX-License-Identifier: BSD-2-Clause
//! Monitors: copies of the packets that cross the rings of another port, from mirror rings that the syncs of that port
//! fill.
//!
//! A mirror ring is trusted no more than the peer of a pipe. A monitor's ring delivers the packets that one transmit
//! ring sends, that one receive ring receives, or both in the order in which they were copied.

use std::io;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use unetmap_abi::{NS_BUF_CHANGED, NS_MOREFRAG, NS_TXMON};
use unetmap_mem::{Geometry, Offsets, Pos, Receiver, Region, RingShape, RingView, SlotRing, SlotValue, Span};
use unetmap_sys::in_place::FileId;
use unetmap_sys::{Doorbell, clock};

use super::region_cache::{map_region, replace};
use super::ring::RingBackend;
use super::sides::{Delivered, InvalidPeerIndex, NextRing, RingParts, Rx, WakeupSource};
use super::times::Times;
use crate::control::binding::ZERO_COPY;

/// Stands for all invalid positions; not a position of any ring.
const INVALID: u32 = u32::MAX - 1;

/// Constructs a side of a ring: transmit rings are read-only.
pub(super) fn open(parts: &RingParts<'_>) -> Option<RingBackend> {
    if parts.is_tx() {
        return Some(RingBackend::ReadOnly);
    }
    let bound = parts.bound;
    let (fd, channels) = (parts.second_fd()?, parts.channels());
    let file = FileId::of(&fd).ok()?;
    let region = map_region(fd, parts.mirror, None).ok()?;
    let mirror = |offset: u64, channel: u32, mark: u16| {
        let shape = RingShape { offset, slots: parts.view.shape().slots, id: bound.id, dir: 0 };
        let slots = RingView::new(&region, shape)?.slots().clone();
        Some(MirrorRx {
            channel: Receiver::new(&channels, channel as usize, slots)?,
            region: Region::clone(&region),
            mark,
        })
    };
    let tx = mirror(bound.peer_offset, bound.channel, NS_TXMON);
    let rx = mirror(bound.second_offset, bound.second_channel, 0);
    if tx.is_none() && rx.is_none() {
        return None;
    }
    Some(RingBackend::Rx(Box::new(MonitorRx {
        mirrors: [tx, rx],
        memory: (region, parts.mirror),
        file: Mutex::new(file),
        ring: parts.view.slots().clone(),
        region: Region::clone(parts.region),
        offsets: parts.offsets(),
        zero_copy: bound.features & ZERO_COPY != 0,
        doorbell: parts.doorbell()?,
        times: OnceLock::new(),
    })))
}

/// The receiving end of a mirror ring.
pub(crate) struct MirrorRx {
    pub(crate) channel: Receiver,
    pub(crate) region: Region,
    /// `NS_TXMON` or 0.
    pub(crate) mark: u16,
}

/// A monitor's ring.
pub(crate) struct MonitorRx {
    /// Of the monitored transmit ring, of the monitored receive ring.
    pub(crate) mirrors: [Option<MirrorRx>; 2],
    /// Their memory, and its file.
    pub(crate) memory: (Arc<Region>, Geometry),
    pub(crate) file: Mutex<FileId>,
    pub(crate) ring: SlotRing,
    pub(crate) region: Region,
    /// Where in their buffers the program expects packets.
    pub(crate) offsets: Offsets,
    /// Whether the mirrors are in the same region, and buffers are exchanged.
    pub(crate) zero_copy: bool,
    /// Notified when packets were copied and this side sleeps.
    pub(crate) doorbell: Doorbell,
    /// The times of the slots, if the program requests them.
    pub(crate) times: OnceLock<MonitorTimes>,
}

/// The times of a monitor's slots.
pub(crate) struct MonitorTimes {
    times: Arc<Times>,
    /// Nanoseconds from the start of the monotonic clock, of which the mirror's times are, to that of the wall clock.
    wall_offset: u64,
}

/// How far one mirror ring was read.
struct Progress<'a> {
    mirror: &'a MirrorRx,
    /// Packets that are not read yet.
    waiting: Span,
}

impl<'a> Progress<'a> {
    fn of(mirror: &'a MirrorRx) -> Result<Progress<'a>, InvalidPeerIndex> {
        Ok(Progress { mirror, waiting: mirror.waiting()? })
    }

    /// Returns the time at which the next packet was copied.
    fn stamp(&self) -> Option<u64> {
        (self.waiting.from != self.waiting.to).then(|| self.mirror.channel.slots().ptr(self.waiting.from))
    }

    /// Returns the number of slots of the next packet, at most all that wait.
    fn slots(&self) -> u32 {
        let ring = self.mirror.channel.slots();
        let more = ring.slots().walk(self.waiting).take_while(|p| ring.flags(*p) & NS_MOREFRAG != 0).count() as u32;
        (more + 1).min(ring.slots().distance(self.waiting.from, self.waiting.to))
    }
}

impl MonitorRx {
    /// Returns the position of a mirror ring that has packets.
    fn first_waiting(&self) -> Option<u32> {
        let waiting = self.mirrors.iter().flatten().filter_map(|mirror| mirror.waiting().ok());
        waiting.filter(|span| span.from != span.to).map(|span| span.to.raw()).next()
    }

    /// Whether a mirror ring has invalid positions.
    fn has_invalid_index(&self) -> bool {
        self.mirrors.iter().flatten().any(|mirror| mirror.waiting().is_err())
    }

    /// Delivers one slot of a mirror ring into slot `at`; returns `false` if it was invalid and delivered empty.
    fn take(&self, mirror: &MirrorRx, from: Pos, at: Pos, last: bool) -> bool {
        let (slot, own) = (mirror.channel.slots().load(from), self.ring.load(at));
        if let Some(MonitorTimes { times, wall_offset }) = self.times.get() {
            times.set(at, slot.ptr.wrapping_add(*wall_offset));
        }
        let flags = mirror.mark | if last { 0 } else { NS_MOREFRAG };
        if self.zero_copy {
            let limits = self.region.limits();
            if !limits.allow(slot) || !limits.index_ok(own.buf_idx) {
                self.ring.store(at, SlotValue { len: 0, flags, ..own });
                return false;
            }
            self.ring.store(at, SlotValue { flags: flags | NS_BUF_CHANGED, ptr: 0, ..slot });
            mirror.channel.slots().set_buf_idx(from, own.buf_idx);
            return true;
        }
        let to = self.region.frame(own.buf_idx).skip(self.offsets.of(own.ptr) as usize);
        let len = to.copy_from(&mirror.region.frame(slot.buf_idx), usize::from(slot.len));
        self.ring.store(at, SlotValue { len: len as u16, flags, ..own });
        len == usize::from(slot.len)
    }
}

impl MirrorRx {
    fn waiting(&self) -> Result<Span, InvalidPeerIndex> {
        self.channel.words().positions(self.channel.slots().slots()).ok_or(InvalidPeerIndex)
    }
}

impl Rx for MonitorRx {
    fn release(&self, _span: Span) -> u32 {
        // The slots keep their buffers, and no sender waits for them.
        0
    }

    fn deliver(&self, held: Pos, received: Pos) -> Result<Delivered, InvalidPeerIndex> {
        let slots = self.ring.slots();
        let full = slots.prev(held);
        // A mirror ring with invalid positions is treated as empty; the other one may have packets.
        let mut rings = self.mirrors.each_ref().map(|mirror| Progress::of(mirror.as_ref()?).ok());
        let (mut at, mut bad) = (received, 0);
        loop {
            let stamp = |i: usize| rings[i].as_ref().and_then(Progress::stamp);
            let earliest = match (stamp(0), stamp(1)) {
                (Some(tx), Some(rx)) => usize::from(rx < tx),
                (Some(_), None) => 0,
                (None, Some(_)) => 1,
                (None, None) => break,
            };
            let Some(ring) = &mut rings[earliest] else { break };
            let count = ring.slots();
            if count > slots.distance(at, full) {
                break;
            }
            for left in (0..count).rev() {
                bad += u32::from(!self.take(ring.mirror, ring.waiting.from, at, left == 0));
                at = slots.next(at);
                ring.waiting.from = slots.next(ring.waiting.from);
            }
        }
        rings.iter().flatten().for_each(|ring| ring.mirror.channel.words().release(ring.waiting.from));
        if at == received && self.has_invalid_index() {
            return Err(InvalidPeerIndex);
        }
        Ok(Delivered { to: at, bad, bytes: 0 })
    }

    fn peer_moved(&self, _taken: Pos) -> Option<u32> {
        self.first_waiting().or_else(|| self.has_invalid_index().then_some(INVALID))
    }

    fn record_times(&self, times: &Arc<Times>) -> bool {
        let wall_offset = clock::wall_ns().wrapping_sub(clock::now_ns());
        self.times.set(MonitorTimes { times: times.clone(), wall_offset }).is_ok()
    }

    fn has_packets_left(&self, unread: bool) -> bool {
        unread || self.first_waiting().is_some()
    }

    fn wakeup(&self) -> Option<&dyn WakeupSource> {
        Some(self)
    }

    fn undelivered(&self, _received: Pos) -> u32 {
        let slots = self.ring.slots();
        let waiting = self.mirrors.iter().flatten().filter_map(|mirror| mirror.waiting().ok());
        waiting.map(|span| slots.distance(span.from, span.to)).sum()
    }

    fn go_on(&self, next: NextRing<'_>) -> io::Result<()> {
        let mut file = self.file.lock().unwrap_or_else(PoisonError::into_inner);
        let (region, layout) = &self.memory;
        // All rings of a monitor have it: the first replaces it.
        if !replace(region, *file, (&next.other, *layout), None)? {
            return Err(io::Error::other("the monitor's mirror is in use"));
        }
        *file = FileId::of(&next.other)?;
        self.doorbell.replace(next.doorbell)
    }
}

impl WakeupSource for MonitorRx {
    fn request_wakeup(&self) -> bool {
        self.mirrors.iter().flatten().for_each(|mirror| mirror.channel.words().consumer_request_wakeup());
        true
    }

    fn doorbell(&self) -> &Doorbell {
        &self.doorbell
    }
}
