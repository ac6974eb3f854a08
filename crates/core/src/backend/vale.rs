// SPDX-License-Identifier: BSD-2-Clause
//! Ports of a switch: a channel each way, whose other end is a thread of the daemon.
//!
//! A slot may refer to data in the program's memory (`NS_INDIRECT`). The sync copies the data into the slot's
//! buffer, within the process, before it sends the slot: the switch never follows a pointer. The node, which syncs for
//! programs, reads the data from them before the sync, as reading may block ([`with_program_data`]).
//!
//! The client trusts the daemon, unlike the peer of a pipe. The switch takes every slot that is sent, sooner or
//! later, and drops the packets for which a receiver has no room.

use std::cell::{Cell, RefCell};
use std::io;
use std::sync::Arc;

use unetmap_abi::{NS_INDIRECT, NS_MOREFRAG};
use unetmap_mem::{BufIdx, ChannelRef, Offsets, Pos, Receiver, Region, Span};
use unetmap_sys::Doorbell;
use unetmap_sys::thread::current_cpu;
use unetmap_sys::user_memory::MAX_PIECES;

use super::pipe::PipeTx;
use super::ring::RingBackend;
use super::sides::{Delivered, InvalidPeerIndex, NextRing, RingParts, Rx, Tx, WakeupSource};

/// Constructs a side of a ring.
pub(super) fn open(parts: &RingParts<'_>) -> Option<RingBackend> {
    if parts.is_tx() {
        let (pipe, region) = (PipeTx::open(parts)?, parts.region.clone());
        let tx = ValeTx { pipe, offsets: parts.offsets(), region, has_own_pointers: parts.has_own_pointers };
        return Some(RingBackend::Tx(Box::new(tx)));
    }
    let channel = Receiver::new(&parts.channels(), parts.bound.channel as usize, parts.view.slots().clone())?;
    Some(RingBackend::Rx(Box::new(ValeRx { channel, doorbell: parts.doorbell()? })))
}

/// The sending end: that of a pipe, except that the last slot of a span always ends a packet. The switch validates the
/// slots.
pub(crate) struct ValeTx {
    pub(crate) pipe: PipeTx,
    pub(crate) offsets: Offsets,
    /// The region that indirect data is copied to.
    pub(crate) region: Arc<Region>,
    /// Whether slots hold addresses of this process. In the daemon they hold none, or those of a program.
    pub(crate) has_own_pointers: bool,
}

/// Data of a program for its indirect slots, in the order of the slots: address and bytes.
pub type ProgramData = Vec<(u64, Vec<u8>)>;

thread_local! {
    /// The data for the syncs of this thread, and how much of it they used.
    static PROGRAM_DATA: RefCell<(ProgramData, usize)> = const { RefCell::new((Vec::new(), 0)) };
}

thread_local! {
    /// Whether syncs of this thread leave packets with data that it does not have to later syncs.
    static DEFERS: Cell<bool> = const { Cell::new(false) };
}

/// From now on syncs of this thread, which are not requested by the program, leave packets with data in the program's
/// memory to later syncs, by [`with_program_data`].
pub fn defer_program_data() {
    DEFERS.set(true);
}

/// Runs syncs that take the data of indirect slots from `data`, which was read from the program.
pub fn with_program_data<T>(data: ProgramData, syncs: impl FnOnce() -> T) -> T {
    PROGRAM_DATA.set((data, 0));
    let defers = DEFERS.replace(false);
    let result = syncs();
    DEFERS.set(defers);
    PROGRAM_DATA.take();
    result
}

/// Writes the data that was read from `from` to the start of a buffer. Returns whether there is such data.
fn write_program_data(region: &Region, (from, len, idx): (u64, u16, BufIdx)) -> bool {
    PROGRAM_DATA.with_borrow_mut(|(data, used)| {
        let is_wanted = |(at, bytes): &(u64, Vec<u8>)| *at == from && bytes.len() == usize::from(len);
        let Some(skipped) = data.get(*used..).and_then(|left| left.iter().position(is_wanted)) else { return false };
        let is_buffer = region.limits().index_ok(idx) && u32::from(len) <= region.limits().buf_size;
        if is_buffer {
            region.frame(idx).write(0, &data[*used + skipped].1);
        }
        *used += skipped + 1;
        is_buffer
    })
}

impl ValeTx {
    /// Copies the data of indirect slots into their buffers. Empties slots whose data cannot be read or is longer than
    /// a buffer; the switch drops their packets. Returns how many slots it emptied.
    #[cold]
    #[inline(never)]
    fn copy_indirect(&self, span: Span) -> u32 {
        let ring = self.pipe.channel.slots();
        // With offsets configured, the pointers of slots hold offsets and not addresses.
        let has_addresses = self.offsets.mask == 0;
        let mut indirect = ring.slots().walk(span).filter(|p| ring.flags(*p) & NS_INDIRECT != 0).peekable();
        let mut bad = 0;
        while let Some(first) = indirect.peek().copied() {
            let (mut at, mut wanted) = ([first; MAX_PIECES], [(0, 0, BufIdx(0)); MAX_PIECES]);
            let mut n = 0;
            for p in indirect.by_ref().take(MAX_PIECES) {
                let slot = ring.load(p);
                (at[n], wanted[n]) = (p, (slot.ptr, slot.len, slot.buf_idx));
                n += 1;
            }
            let unreadable = match (has_addresses, self.has_own_pointers) {
                (false, _) => u64::MAX,
                (true, true) => self.region.copy_from_program(&wanted[..n]),
                (true, false) => {
                    (0..n).fold(0, |bad, i| bad | u64::from(!write_program_data(&self.region, wanted[i])) << i)
                }
            };
            for p in (0..n).filter(|i| unreadable & 1 << i != 0).map(|i| at[i]) {
                ring.set_len(p, 0);
                bad += 1;
            }
        }
        bad
    }
}

impl Tx for ValeTx {
    fn sendable(&self, window: Span) -> Pos {
        if self.has_own_pointers || !DEFERS.get() {
            return window.to;
        }
        let (ring, mut packet) = (self.pipe.channel.slots(), window.from);
        for p in ring.slots().walk(window) {
            let flags = ring.flags(p);
            if flags & NS_INDIRECT != 0 {
                return packet;
            }
            if flags & NS_MOREFRAG == 0 {
                packet = ring.slots().next(p);
            }
        }
        window.to
    }

    fn indirect_data(&self, window: Span) -> Vec<(u64, u16)> {
        let (ring, limits) = (self.pipe.channel.slots(), self.region.limits());
        let slots = ring.slots().walk(window).map(|p| ring.load(p)).filter(|slot| slot.flags & NS_INDIRECT != 0);
        slots.filter(|slot| u32::from(slot.len) <= limits.buf_size).map(|slot| (slot.ptr, slot.len)).collect()
    }

    #[inline]
    fn send(&self, span: Span) -> u32 {
        let ring = self.pipe.channel.slots();
        let last = ring.slots().prev(span.to);
        let flags = ring.flags(last);
        if flags & NS_MOREFRAG != 0 {
            ring.set_flags(last, flags & !NS_MOREFRAG);
        }
        let any = ring.slots().walk(span).fold(0, |any, p| any | ring.flags(p));
        let bad = if any & NS_INDIRECT != 0 { self.copy_indirect(span) } else { 0 };
        self.pipe.channel.words().set_producer_cpu(current_cpu());
        self.pipe.send(span) + bad
    }

    #[inline]
    fn completed(&self, known: Pos, sent: Pos) -> Result<Pos, InvalidPeerIndex> {
        self.pipe.completed(known, sent)
    }

    #[inline]
    fn peer_moved(&self, known: Pos) -> Option<u32> {
        self.pipe.peer_moved(known)
    }

    fn wakeup(&self) -> Option<&dyn WakeupSource> {
        Some(self)
    }

    fn channel(&self) -> Option<ChannelRef> {
        self.pipe.channel()
    }

    fn go_on(&self, next: NextRing<'_>) -> io::Result<()> {
        self.pipe.go_on(next)
    }
}

impl WakeupSource for ValeTx {
    fn request_wakeup(&self) -> bool {
        self.pipe.request_wakeup()
    }

    fn doorbell(&self) -> &Doorbell {
        self.pipe.doorbell()
    }

    fn yield_to_peer(&self, known: Pos) -> bool {
        let words = self.pipe.channel.words();
        let shares = words.consumer_runs_on(current_cpu());
        if shares {
            words.producer_futex_wait(known, true);
        }
        shares
    }

    fn peer_cpu(&self) -> Option<u32> {
        self.pipe.channel.words().consumer_cpu()
    }
}

/// The receiving end: the switch writes into the slots of the ring and into their buffers.
pub(crate) struct ValeRx {
    pub(crate) channel: Receiver,
    /// Notified by the switch when it delivered packets and this side sleeps.
    pub(crate) doorbell: Doorbell,
}

impl Rx for ValeRx {
    #[inline]
    fn release(&self, span: Span) -> u32 {
        // Wakes nobody: the switch drops what has no room, or waits until the ring is empty (see `deliver`).
        self.channel.words().set_consumer_cpu(current_cpu());
        self.channel.words().release(span.to);
        0
    }

    #[inline]
    fn deliver(&self, held: Pos, received: Pos) -> Result<Delivered, InvalidPeerIndex> {
        let to = self
            .channel
            .words()
            .validated_prod(self.channel.slots().slots(), held, received)
            .ok_or(InvalidPeerIndex)?;
        if to == received {
            if held == received {
                self.channel.words().take_producer_wakeup();
            }
            return Ok(Delivered { to, bad: 0, bytes: 0 });
        }
        self.channel.claim(Span { from: received, to });
        Ok(Delivered { to, bad: 0, bytes: 0 })
    }

    #[inline]
    fn peer_on_this_cpu(&self) -> bool {
        self.channel.words().producer_cpu_is(current_cpu())
    }

    #[inline]
    fn peer_moved(&self, received: Pos) -> Option<u32> {
        self.channel.words().prod_if_moved(received)
    }

    fn wakeup(&self) -> Option<&dyn WakeupSource> {
        Some(self)
    }

    fn channel(&self) -> Option<ChannelRef> {
        Some(self.channel.words_ref())
    }

    fn undelivered(&self, received: Pos) -> u32 {
        let slots = self.channel.slots().slots();
        let sent = self.channel.words().positions(slots);
        sent.map_or(0, |sent| slots.distance(received, sent.to))
    }

    fn go_on(&self, next: NextRing<'_>) -> io::Result<()> {
        self.doorbell.replace(next.doorbell)
    }
}

impl WakeupSource for ValeRx {
    fn request_wakeup(&self) -> bool {
        self.channel.words().consumer_request_wakeup();
        true
    }

    fn doorbell(&self) -> &Doorbell {
        &self.doorbell
    }

    fn yield_to_peer(&self, known: Pos) -> bool {
        let words = self.channel.words();
        // A switch thread that has just been woken may be waiting for this CPU.
        let near = words.producer_runs_on(current_cpu());
        let yields = near || words.producer_cpu_is_any();
        if yields {
            words.consumer_futex_wait(known, near);
        }
        yields
    }

    fn peer_cpu(&self) -> Option<u32> {
        self.channel.words().producer_cpu()
    }
}
