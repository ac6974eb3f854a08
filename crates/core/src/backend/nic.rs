//! Network interfaces: a queue's AF_XDP socket, run by whoever holds it, with no daemon on the way.
//!
//! A netmap buffer is a frame of the socket's memory, so nothing is copied here. A slot of a transmit ring keeps its buffer
//! while the kernel has it. A receive ring's buffers are with the kernel where the program has not got them: the kernel
//! fills them in the order of the slots, nearly always; where it does not, two slots exchange their buffers, so that the
//! ring's slots name its buffers at every moment.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::Duration;

use unetmap_abi::NS_MOREFRAG;
use unetmap_mem::{BufIdx, Limits, Offsets, Packet, Pos, ReceiveRings, SendRings, SlotRing, SlotValue, Slots, Span};
use unetmap_sys::{Doorbell, xsk};

use super::{Filled, Nonsense, Rx, Sleeper, Tx};

/// The least bytes of a frame: an Ethernet header. Shorter ones are not sent; the driver pads the others as it must.
const LEAST_FRAME: u16 = 14;
/// Buffers that one packet may be spread over. Source: the kernel's `MAX_SKB_FRAGS` by default.
const MOST_FRAGS: u32 = 17;
/// When to look again for buffers that come back: no event tells.
const COME_BACK: Duration = Duration::from_micros(100);
/// Calls that one sync makes to have its packets sent. Each sends 32 in copy mode, or 256 since Linux 6.17.
const MOST_KICKS: u32 = 256;

/// What both halves share.
pub(crate) struct Half {
    pub(crate) slots: SlotRing,
    pub(crate) limits: Limits,
    pub(crate) socket: Arc<OwnedFd>,
    /// Rung by the daemon when the interface has gone, and by who shares the ring.
    pub(crate) mine: Doorbell,
    /// Whether packets may be spread over several buffers.
    pub(crate) frags: bool,
    /// Where in their buffers packets begin.
    pub(crate) offsets: Offsets,
    /// Whether the kernel looks into the queue in calls on the socket, and so wants them unasked.
    pub(crate) busy: bool,
}

impl Half {
    /// Whether the slot's packet lies in a buffer; and how many bytes before it.
    #[inline(always)]
    fn judge(&self, slot: SlotValue) -> (bool, u32) {
        let offset = self.offsets.of(slot.ptr);
        (self.limits.allow(slot) && offset + u32::from(slot.len) <= self.limits.buf_size, offset)
    }
}

/// The sending half.
pub(crate) struct NicTx {
    pub(crate) half: Half,
    pub(crate) rings: SendRings,
}

impl NicTx {
    fn count(&self) -> Slots {
        self.half.slots.slots()
    }

    /// Writes the entries of the complete packets of `[from, to)`; returns how many, and how many of them are refused.
    fn put(&self, from: Pos, to: Pos) -> (u32, u32) {
        let (ring, slots) = (&self.half.slots, self.count());
        let (mut written, mut bad) = (0, 0);
        // A packet of several slots: its first slot, and whether all of it is good so far.
        let mut chain: Option<(Pos, u32, bool)> = None;
        let mut p = from;
        while p != to {
            let slot = ring.load(p);
            let continued = slot.flags & NS_MOREFRAG != 0;
            let (inside, offset) = self.half.judge(slot);
            let good = inside && slot.len > 0;
            if chain.is_none() && !continued {
                // The usual case: a packet in one slot.
                let good = good && slot.len >= LEAST_FRAME;
                self.rings.put(p, good.then_some(packet(slot, offset, false)));
                bad += u32::from(!good);
                written += 1;
            } else {
                let (first, length, all_good) = chain.unwrap_or((p, 0, true));
                let all_good = all_good && good && self.half.frags && length < MOST_FRAGS;
                self.rings.put(p, good.then_some(packet(slot, offset, continued)));
                if continued {
                    chain = Some((first, length + 1, all_good));
                } else {
                    if !all_good {
                        slots.walk(Span { from: first, to: slots.next(p) }).for_each(|p| self.rings.put(p, None));
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

    /// Has the kernel send what it has not looked at. In copy mode a call sends a part of it.
    fn kick(&self) {
        if !self.half.busy && !self.rings.needs_wakeup() {
            return;
        }
        let mut left = self.rings.unseen();
        for _ in 0..MOST_KICKS {
            if left == 0 {
                return;
            }
            let result = xsk::kick_tx(&self.half.socket);
            let now = self.rings.unseen();
            if result.is_err() && now == left {
                return;
            }
            left = now;
        }
    }
}

#[inline(always)]
fn packet(slot: SlotValue, offset: u32, continued: bool) -> Packet {
    Packet { buf_idx: slot.buf_idx, offset, len: u32::from(slot.len), continued }
}

impl Tx for NicTx {
    #[inline]
    fn send(&self, window: Span) -> u32 {
        // What was left because its packet was not complete comes first.
        let from = self.rings.next();
        let slots = self.count();
        if !slots.between(from, window.from, window.to) {
            return 0;
        }
        let (written, bad) = self.put(from, window.to);
        if written > 0 {
            self.rings.publish(written);
            self.kick();
        }
        bad
    }

    #[inline]
    fn waits(&self) -> bool {
        self.rings.unseen() > 0
    }

    #[inline]
    fn finished(&self, known: Pos, sent: Pos) -> Result<Pos, Nonsense> {
        let published = self.rings.next();
        if !self.count().between(known, published, sent) {
            return Err(Nonsense);
        }
        // An interface that was down, or a driver that was busy, left something.
        if self.rings.unseen() > 0 {
            self.kick();
        }
        Ok(self.rings.finished(known, published))
    }

    #[inline]
    fn moved(&self, known: Pos) -> Option<u32> {
        let news = self.rings.unread() + self.rings.unseen() + u32::from(self.rings.is_finished(known));
        (news > 0).then_some(news)
    }

    fn sleeper(&self) -> Option<&dyn Sleeper> {
        Some(self)
    }
}

impl Sleeper for NicTx {
    fn arm(&self) {
        self.half.mine.notify_after(COME_BACK);
    }

    fn bell(&self) -> &Doorbell {
        &self.half.mine
    }
}

/// The receiving half.
pub(crate) struct NicRx {
    pub(crate) half: Half,
    pub(crate) rings: ReceiveRings,
}

impl NicRx {
    /// Slot `p` named `stale`, and got `idx`, which another slot that the kernel has, up to before `end`, names.
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
    fn release(&self, window: Span) -> u32 {
        let (ring, slots) = (&self.half.slots, self.half.slots.slots());
        let from = self.rings.next_offer();
        if !slots.between(window.from, from, window.to) {
            return 0;
        }
        let (mut n, mut bad) = (0, 0);
        for p in slots.runs(Span { from, to: window.to }).into_iter().flat_map(|run| slots.run(run)) {
            let idx = ring.buf_idx(p);
            let good = self.half.limits.index_ok(idx);
            self.rings.offer(p, good.then(|| (idx, self.half.offsets.of(ring.ptr(p)))));
            bad += u32::from(!good);
            n += 1;
        }
        self.rings.publish(n);
        if self.rings.needs_wakeup() {
            let _ = xsk::kick_rx(&self.half.socket);
        }
        bad
    }

    #[inline]
    fn fill(&self, held: Pos, taken: Pos) -> Result<Filled, Nonsense> {
        let (ring, slots, limits) = (&self.half.slots, self.half.slots.slots(), self.half.limits);
        if self.rings.next_packet() != taken {
            return Err(Nonsense);
        }
        // The kernel brings what the queue has, within the call.
        if self.half.busy && self.rings.waiting() == 0 {
            let _ = xsk::kick_rx(&self.half.socket);
        }
        // One slot stays the kernel's, so that a full ring and an empty one differ.
        let room = slots.distance(taken, slots.prev(held));
        let n = self.rings.waiting().min(room);
        let (mut p, mut to, mut complete, mut bad) = (taken, taken, 0, 0);
        for i in 0..n {
            let (place, len, continued) = self.rings.packet(i);
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
        self.rings.take(complete);
        Ok(Filled { to, bad })
    }

    fn rests(&self) -> bool {
        true
    }

    #[inline]
    fn moved(&self, _taken: Pos) -> Option<u32> {
        let waiting = self.rings.waiting();
        (waiting > 0).then_some(waiting)
    }

    fn sleeper(&self) -> Option<&dyn Sleeper> {
        Some(self)
    }
}

impl Sleeper for NicRx {
    fn arm(&self) {}

    fn bell(&self) -> &Doorbell {
        &self.half.mine
    }

    fn socket(&self) -> Option<BorrowedFd<'_>> {
        Some(self.half.socket.as_fd())
    }
}

#[cfg(test)]
mod tests;
