// SPDX-License-Identifier: BSD-2-Clause
//! Network interfaces: the AF_XDP socket of a queue, used by the client itself; the daemon takes no part in the data
//! path.
//!
//! A netmap buffer is a frame of the socket's memory (UMEM), so nothing is copied here. A slot of a transmit ring keeps
//! its buffer while the kernel has it. The kernel has those buffers of a receive ring that the program does not hold.
//! It nearly always fills them in the order of the slots; otherwise two slots exchange their buffers, so that the slots
//! of the ring name all its buffers at every moment.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, Mutex, PoisonError};

use unetmap_abi::NS_MOREFRAG;
use unetmap_mem::{
    BufIdx, Limits, Offsets, Pos, SlotRing, SlotValue, Slots, Span, TxFramesPage, UmemLayout, XskDesc, XskRxRings,
    XskTxRings,
};
use unetmap_sys::in_place::{self, RingPlaces};
use unetmap_sys::{Doorbell, xsk};

use super::ring::RingBackend;
use super::sides::{Delivered, InvalidPeerIndex, NextRing, RingParts, Rx, Tx, WakeupSource};
use crate::control::binding::FRAGS;
use crate::error::errno::EAGAIN;
use crate::tuning::{MAX_KICKS, SENT_PER_KICK, TX_COMPLETION_POLL};

/// The shortest frame that is sent, bytes: an Ethernet header. The driver pads frames as the hardware requires.
const MIN_FRAME: u16 = 14;

/// Constructs a side of a ring.
pub(super) fn open(parts: &RingParts<'_>) -> Option<RingBackend> {
    // All buffers are the socket's.
    let limits = parts.region.geometry().limits();
    let (socket, slots) = (parts.second_fd()?, parts.view.shape().slots);
    let mapped = parts.socket_rings.iter().find(|rings| rings.are_of(&socket));
    let half = Half {
        slots: parts.view.slots().clone(),
        limits,
        max_packet: match xsk::is_zero_copy(&socket) {
            // The kernel copies from all of the buffer; a device reads from one page alone.
            Ok(false) => limits.buf_size,
            Ok(true) | Err(_) => limits.buf_size.min(xsk::MAX_PACKET),
        },
        busy: xsk::busy_poll(&socket).is_some(),
        left: Mutex::default(),
        socket: Arc::new(socket),
        doorbell: parts.doorbell()?,
        frags: parts.bound.features & FRAGS != 0,
        offsets: parts.offsets(),
    };
    let buffers = UmemLayout { size: limits.buf_size, count: limits.bufs, headroom: parts.bound.headroom };
    if parts.is_tx() {
        let sent = TxFramesPage::new(parts.channels_or_tx_frames.clone());
        let (tx, completion) = match mapped {
            Some(rings) => (rings.tx.clone(), rings.completion.clone()),
            None => xsk::map_send_rings(&half.socket, slots.get()).ok()?,
        };
        let rings = XskTxRings::new(&tx, &completion, slots, buffers, sent, parts.bound.channel as usize)?;
        return Some(RingBackend::Tx(Box::new(NicTx { half, rings })));
    }
    let (rx, fill) = match mapped {
        Some(rings) => (rings.rx.clone(), rings.fill.clone()),
        None => xsk::map_receive_rings(&half.socket, slots.get()).ok()?,
    };
    let rings = XskRxRings::new(&rx, &fill, slots, buffers)?;
    Some(RingBackend::Rx(Box::new(NicRx { half, rings })))
}

/// The part that both sides have in common.
pub(crate) struct Half {
    pub(crate) slots: SlotRing,
    pub(crate) limits: Limits,
    /// Most bytes of a packet in one buffer that is sent, its offset included.
    pub(crate) max_packet: u32,
    pub(crate) socket: Arc<OwnedFd>,
    /// Notified by the daemon when the interface is removed, and by other users of the ring.
    pub(crate) doorbell: Doorbell,
    /// Whether a packet may have several buffers.
    pub(crate) frags: bool,
    /// Where in their buffers packets begin.
    pub(crate) offsets: Offsets,
    /// Whether the socket busy polls: the kernel processes the queue in system calls on the socket, which are made even
    /// if the kernel does not request a wake-up.
    pub(crate) busy: bool,
    /// Where the socket's rings were mapped, after its daemon has ended.
    pub(crate) left: Mutex<RingPlaces>,
}

impl Half {
    /// The kernel gives the queue to another socket once this one is neither mapped nor open.
    fn give_up(&self) -> io::Result<()> {
        let places = RingPlaces::leave(&self.socket)?;
        *self.left.lock().unwrap_or_else(PoisonError::into_inner) = places;
        // A descriptor of any other kind that can be waited for.
        in_place::replace_fd(self.socket.as_fd(), Doorbell::new()?.into())
    }

    fn go_on(&self, next: NextRing<'_>) -> io::Result<()> {
        self.left.lock().unwrap_or_else(PoisonError::into_inner).take(next.other.as_fd())?;
        self.doorbell.replace(next.doorbell)?;
        in_place::replace_fd(self.socket.as_fd(), next.other)
    }

    /// Whether the slot's packet is within a buffer; and its offset there.
    #[inline(always)]
    fn validate(&self, slot: SlotValue) -> (bool, u32) {
        let offset = self.offsets.of(slot.ptr);
        (self.limits.allow(slot) && offset + u32::from(slot.len) <= self.max_packet, offset)
    }
}

/// The sending side.
pub(crate) struct NicTx {
    pub(crate) half: Half,
    pub(crate) rings: XskTxRings,
}

impl NicTx {
    fn count(&self) -> Slots {
        self.half.slots.slots()
    }

    /// Writes the descriptors of the complete packets of `[from, to)`; returns how many, and how many of them are
    /// invalid.
    fn put(&self, from: Pos, to: Pos) -> (u32, u32) {
        let (ring, slots) = (&self.half.slots, self.count());
        let (mut written, mut bad) = (0, 0);
        // A packet of several slots: its first slot, its slots so far, and whether all are valid.
        let mut chain: Option<(Pos, u32, bool)> = None;
        let mut p = from;
        while p != to {
            let slot = ring.load(p);
            let continued = slot.flags & NS_MOREFRAG != 0;
            let (inside, offset) = self.half.validate(slot);
            let good = inside && slot.len > 0;
            if chain.is_none() && !continued {
                // The common case: a packet in one slot.
                let good = good && slot.len >= MIN_FRAME;
                self.rings.write_tx(p, good.then_some(packet(slot, offset, false)));
                bad += u32::from(!good);
                written += 1;
            } else {
                let (first, length, all_good) = chain.unwrap_or((p, 0, true));
                let all_good = all_good && good && self.half.frags && length < xsk::MAX_FRAGS;
                self.rings.write_tx(p, good.then_some(packet(slot, offset, continued)));
                if continued {
                    chain = Some((first, length + 1, all_good));
                } else {
                    if !all_good {
                        slots.walk(Span { from: first, to: slots.next(p) }).for_each(|p| self.rings.write_tx(p, None));
                        bad += length + 1;
                    }
                    written += length + 1;
                    chain = None;
                }
            }
            p = slots.next(p);
        }
        (written, bad)
    }

    /// Makes the kernel send the descriptors that it has not read, of which `new` were just written. In copy mode a
    /// call sends a part of them and fails with `EAGAIN`, as it does when it can send nothing now. Progress shows in
    /// the rings, but before Linux 6.17 the kernel publishes what it has read only when it has read all: then as many
    /// calls are made as the new descriptors need.
    fn kick(&self, new: u32) {
        if !self.half.busy && !self.rings.needs_wakeup() {
            return;
        }
        let seen = || (self.rings.tx_pending(), self.rings.completions_pending());
        let (mut before, mut calls) = (seen(), new.div_ceil(SENT_PER_KICK));
        for _ in 0..MAX_KICKS {
            if before.0 == 0 {
                return;
            }
            let result = xsk::kick_tx(&self.half.socket);
            let now = seen();
            if now == before {
                if calls == 0 || result.map_err(|e| e.raw_os_error()) != Err(EAGAIN) {
                    return;
                }
                calls -= 1;
            }
            before = now;
        }
    }
}

#[inline(always)]
fn packet(slot: SlotValue, offset: u32, continued: bool) -> XskDesc {
    XskDesc { buf_idx: slot.buf_idx, offset, len: u32::from(slot.len), continued }
}

impl Tx for NicTx {
    #[inline]
    fn send(&self, span: Span) -> u32 {
        // Slots of a packet that was incomplete in the last sync come first.
        let from = self.rings.next_tx();
        let slots = self.count();
        if !slots.between(from, span.from, span.to) {
            return 0;
        }
        let (written, bad) = self.put(from, span.to);
        if written > 0 {
            self.rings.submit(written);
            self.kick(written);
        }
        bad
    }

    fn slot_size(&self) -> u32 {
        self.half.max_packet
    }

    #[inline]
    fn has_unsent(&self) -> bool {
        self.rings.tx_pending() > 0
    }

    #[inline]
    fn completed(&self, known: Pos, sent: Pos) -> Result<Pos, InvalidPeerIndex> {
        let published = self.rings.next_tx();
        if !self.count().between(known, published, sent) {
            return Err(InvalidPeerIndex);
        }
        // An interface that was down, or a driver that was busy, left descriptors unread.
        if self.rings.tx_pending() > 0 {
            self.kick(0);
        }
        Ok(self.rings.reap_completions(known, published))
    }

    #[inline]
    fn peer_moved(&self, known: Pos) -> Option<u32> {
        let events =
            self.rings.completions_pending() + self.rings.tx_pending() + u32::from(self.rings.is_completed(known));
        (events > 0).then_some(events)
    }

    fn wakeup(&self) -> Option<&dyn WakeupSource> {
        Some(self)
    }

    fn give_up(&self) -> io::Result<()> {
        self.half.give_up()
    }

    fn go_on(&self, next: NextRing<'_>) -> io::Result<()> {
        self.half.go_on(next)
    }
}

impl WakeupSource for NicTx {
    fn request_wakeup(&self) -> bool {
        self.half.doorbell.notify_after(TX_COMPLETION_POLL);
        false
    }

    fn doorbell(&self) -> &Doorbell {
        &self.half.doorbell
    }
}

/// The receiving side.
pub(crate) struct NicRx {
    pub(crate) half: Half,
    pub(crate) rings: XskRxRings,
}

impl NicRx {
    /// Slot `p` had buffer `stale` and received `idx`: gives `stale` to the slot that had `idx`, one of those that the
    /// kernel has, up to before `end`.
    #[cold]
    fn exchange(&self, p: Pos, stale: BufIdx, idx: BufIdx, end: Pos) {
        let slots = self.half.slots.slots();
        let rest = Span { from: slots.next(p), to: end };
        if let Some(other) = slots.walk(rest).find(|&other| self.half.slots.buf_idx(other) == idx) {
            self.half.slots.set_buf_idx(other, stale);
        }
    }
}

impl Rx for NicRx {
    #[inline]
    fn release(&self, span: Span) -> u32 {
        let (ring, slots) = (&self.half.slots, self.half.slots.slots());
        let from = self.rings.next_fill();
        if !slots.between(span.from, from, span.to) {
            return 0;
        }
        let (mut n, mut bad) = (0, 0);
        for p in slots.runs(Span { from, to: span.to }).into_iter().flat_map(|run| slots.run(run)) {
            let idx = ring.buf_idx(p);
            let good = self.half.limits.index_ok(idx);
            self.rings.write_fill(p, good.then(|| (idx, self.half.offsets.of(ring.ptr(p)))));
            bad += u32::from(!good);
            n += 1;
        }
        self.rings.submit(n);
        if self.rings.needs_wakeup() {
            let _ = xsk::kick_rx(&self.half.socket);
        }
        bad
    }

    #[inline]
    fn deliver(&self, held: Pos, received: Pos) -> Result<Delivered, InvalidPeerIndex> {
        let (ring, slots, limits) = (&self.half.slots, self.half.slots.slots(), self.half.limits);
        if self.rings.next_rx() != received {
            return Err(InvalidPeerIndex);
        }
        // With busy polling the kernel delivers the packets of the queue within the call.
        // A driver that had no buffer looks for one in such a call alone.
        if self.rings.rx_available() == 0 && (self.half.busy || self.rings.is_left()) {
            let _ = xsk::kick_rx(&self.half.socket);
        }
        // The kernel keeps one slot, so that a full ring and an empty one differ.
        let room = slots.distance(received, slots.prev(held));
        let n = self.rings.rx_available().min(room);
        let (mut p, mut to, mut complete, mut bad) = (received, received, 0, 0);
        for i in 0..n {
            let (place, len, continued) = self.rings.peek_rx(i);
            let stale = ring.buf_idx(p);
            let slot = match place {
                Some((idx, offset)) if limits.index_ok(idx) && offset + len <= limits.buf_size => {
                    if idx != stale {
                        self.exchange(p, stale, idx, held);
                    }
                    let flags = if continued { NS_MOREFRAG } else { 0 };
                    let ptr = self.half.offsets.put(ring.ptr(p), offset);
                    SlotValue { buf_idx: idx, len: len as u16, flags, ptr }
                }
                _ => {
                    bad += 1;
                    SlotValue { buf_idx: stale, len: 0, flags: 0, ptr: 0 }
                }
            };
            ring.store(p, slot);
            p = slots.next(p);
            if !continued {
                (to, complete) = (p, i + 1);
            }
        }
        self.rings.release_rx(complete);
        Ok(Delivered { to, bad, bytes: 0 })
    }

    fn sleeps_between_polls(&self) -> bool {
        true
    }

    #[inline]
    fn peer_moved(&self, _taken: Pos) -> Option<u32> {
        let waiting = self.rings.rx_available();
        (waiting > 0).then_some(waiting)
    }

    fn wakeup(&self) -> Option<&dyn WakeupSource> {
        Some(self)
    }

    fn undelivered(&self, _received: Pos) -> u32 {
        self.rings.rx_available()
    }

    fn give_up(&self) -> io::Result<()> {
        self.half.give_up()
    }

    fn go_on(&self, next: NextRing<'_>) -> io::Result<()> {
        self.half.go_on(next)
    }
}

impl WakeupSource for NicRx {
    fn request_wakeup(&self) -> bool {
        false
    }

    fn doorbell(&self) -> &Doorbell {
        &self.half.doorbell
    }

    fn socket(&self) -> Option<BorrowedFd<'_>> {
        Some(self.half.socket.as_fd())
    }
}

#[cfg(test)]
mod tests;
