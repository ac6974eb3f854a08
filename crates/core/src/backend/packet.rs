// SPDX-License-Identifier: BSD-2-Clause
//! Interfaces by packet sockets that the program itself has; the daemon takes no part in the data path. Packets begin
//! with virtio-net headers, and have up to 64 KB.
//!
//! ```text
//! slots [next(hwtail), hwcur) --sendmmsg--> wire         completed as soon as the kernel has its copy
//! wire --> socket's ring, or its queue --> slots from hwtail on
//! ```
//! Neither side has positions of its own: those of the ring's state say what is to be sent, and that of the socket's
//! ring, which is in its memory, which frame is next. So processes that share the port go on where others were.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use unetmap_abi::NS_MOREFRAG;
use unetmap_mem::{Frame, Pos, RingView, Slots, Span, SyncStateRef};
use unetmap_sys::Doorbell;
use unetmap_sys::in_place::{self, RingPlaces};
use unetmap_sys::packet_socket::{Received, Receiver, Vectors};

use super::ring::RingBackend;
use super::sides::{Delivered, InvalidPeerIndex, NextRing, RingParts, Rx, Tx, WakeupSource};
use crate::packets::{OWN_HEADER, Outbox, deliver, is_deliverable, program_header};
use crate::tuning::{PACKET_BATCH, TX_COMPLETION_POLL};

/// Constructs a side of a ring.
pub(super) fn open(parts: &RingParts<'_>) -> Option<RingBackend> {
    let half = Half {
        view: parts.view.clone(),
        state: parts.states.state_ref(parts.bound.state as usize)?,
        socket: Arc::new(parts.second_fd()?),
        doorbell: parts.doorbell()?,
        header: Some(parts.bound.second_channel as usize).filter(|header| *header <= OWN_HEADER)?,
    };
    if parts.is_tx() {
        let outbox = Mutex::new(Outbox::new(half.header));
        return Some(RingBackend::Tx(Box::new(PacketTx { half, outbox })));
    }
    let receiver = Receiver::new(Arc::clone(&half.socket), parts.bound.channel as usize).ok()?;
    Some(RingBackend::Rx(Box::new(PacketRx { half, receiver, vectors: Mutex::default(), left: Mutex::default() })))
}

/// The part that both sides have in common.
struct Half {
    view: RingView,
    state: SyncStateRef,
    socket: Arc<OwnedFd>,
    /// Notified by the daemon when the interface is removed, and by other users of the ring.
    doorbell: Doorbell,
    /// Bytes of the header before each packet.
    header: usize,
}

impl Half {
    fn slots(&self) -> Slots {
        self.view.shape().slots
    }

    /// The buffer of a slot; empty if it does not exist.
    fn frame(&self, p: Pos) -> Frame<'_> {
        let (region, idx) = (self.view.region(), self.view.slots().buf_idx(p));
        if region.limits().index_ok(idx) { region.frame(idx) } else { Frame::EMPTY }
    }

    fn count_lost(&self, packets: u64) {
        if packets > 0 {
            self.state.dropped.fetch_add(packets, Relaxed);
        }
    }

    /// The socket ends when no process has it any more.
    fn give_up(&self) -> io::Result<()> {
        in_place::replace_fd(self.socket.as_fd(), Doorbell::new()?.into())
    }

    fn go_on(&self, next: NextRing<'_>) -> io::Result<()> {
        if next.bound.second_channel as usize != self.header {
            return Err(io::Error::new(io::ErrorKind::InvalidData, "the packets have another header now"));
        }
        self.doorbell.replace(next.doorbell)?;
        in_place::replace_fd(self.socket.as_fd(), next.other)
    }
}

/// Takes what the ring's lock protects already: within this process nobody else has it.
fn lock<T>(of_ring: &Mutex<T>) -> MutexGuard<'_, T> {
    of_ring.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The sending side.
struct PacketTx {
    half: Half,
    outbox: Mutex<Outbox>,
}

impl Tx for PacketTx {
    /// [`Tx::completed`] sends, as it is told which slots were not sent by earlier syncs.
    fn send(&self, _span: Span) -> u32 {
        0
    }

    fn has_unsent(&self) -> bool {
        let slots = self.half.slots();
        self.half.state.positions(slots).is_some_and(|(hwcur, hwtail)| slots.next(hwtail) != hwcur)
    }

    fn completed(&self, known: Pos, sent: Pos) -> Result<Pos, InvalidPeerIndex> {
        let (half, slots, mut at) = (&self.half, self.half.slots(), known);
        if at == sent {
            return Ok(at);
        }
        let mut outbox = lock(&self.outbox);
        loop {
            let is_full = slots.distance(at, sent) + 1 >= slots.get();
            let of_slot = |p: Pos| {
                let (len, flags) = half.view.slots().len_flags(p);
                (half.frame(p), len, flags)
            };
            let done = outbox.send(half.socket.as_fd(), slots.walk(Span { from: at, to: sent }).map(of_slot), is_full);
            half.count_lost(done.lost);
            if done.bad > 0 {
                half.state.count_bad_slots(done.bad);
            }
            at = slots.add(at, done.slots);
            if done.slots == 0 || at == sent {
                return Ok(at);
            }
        }
    }

    fn peer_moved(&self, _known: Pos) -> Option<u32> {
        self.has_unsent().then_some(1)
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

impl WakeupSource for PacketTx {
    /// The kernel does not tell when there is room.
    fn request_wakeup(&self) -> bool {
        self.half.doorbell.notify_after(TX_COMPLETION_POLL);
        false
    }

    fn doorbell(&self) -> &Doorbell {
        &self.half.doorbell
    }
}

/// The receiving side.
struct PacketRx {
    half: Half,
    receiver: Receiver,
    vectors: Mutex<Vectors>,
    /// Where the socket's ring was mapped, after its daemon has ended.
    left: Mutex<RingPlaces>,
}

/// A frame that was taken: its slots, of which a lost one has none, and its bytes.
struct Taken {
    slots: u32,
    bytes: usize,
}

impl PacketRx {
    /// Has a frame written into the slots from `at` on, of which `room` are free; `None`: it does not fit yet.
    fn take(&self, received: &mut Received<'_>, at: Pos, room: u32) -> Option<Taken> {
        let (half, slots, ring) = (&self.half, self.half.slots(), self.half.view.slots());
        let lost = Some(Taken { slots: 0, bytes: 0 });
        if !is_deliverable(received) {
            return lost;
        }
        let capacity = half.view.region().limits().buf_size.min(u16::MAX.into()) as usize;
        let bytes = half.header + received.bytes();
        let needed = bytes.div_ceil(capacity) as u32;
        if needed > room && needed < slots.get() {
            return None;
        }
        let to = slots.add(at, needed.min(room));
        let run = || slots.walk(Span { from: at, to });
        let header = program_header(received);
        if !deliver(received, run().map(|p| half.frame(p)), capacity, &header[..half.header]) {
            return lost;
        }
        for (p, begin) in run().zip((0..bytes).step_by(capacity)) {
            let flags = if begin + capacity < bytes { NS_MOREFRAG } else { 0 };
            ring.set_len_flags(p, (bytes - begin).min(capacity) as u16, flags);
        }
        Some(Taken { slots: needed, bytes })
    }
}

impl Rx for PacketRx {
    fn release(&self, span: Span) -> u32 {
        let (ring, limits) = (self.half.view.slots(), self.half.view.region().limits());
        self.half.slots().walk(span).filter(|p| !limits.index_ok(ring.buf_idx(*p))).count() as u32
    }

    fn deliver(&self, held: Pos, received: Pos) -> Result<Delivered, InvalidPeerIndex> {
        let slots = self.half.slots();
        // One slot stays free, so that a full ring and an empty one differ.
        let room = slots.distance(received, slots.prev(held));
        let mut vectors = lock(&self.vectors);
        let (mut filled, mut bytes, mut lost) = (0, 0, 0);
        // Lost frames fill no slots.
        for _ in 0..PACKET_BATCH {
            let at = slots.add(received, filled);
            let take = |frame: &mut Received<'_>| self.take(frame, at, room - filled);
            let Some(taken) = self.receiver.receive(&mut vectors, &mut lost, take) else { break };
            filled += taken.slots;
            bytes += taken.bytes as u64;
            lost += u64::from(taken.slots == 0);
            if filled >= PACKET_BATCH {
                break;
            }
        }
        self.half.count_lost(lost);
        Ok(Delivered { to: slots.add(received, filled), bad: 0, bytes })
    }

    fn sleeps_between_polls(&self) -> bool {
        true
    }

    fn peer_moved(&self, _received: Pos) -> Option<u32> {
        self.receiver.has_frame().then_some(1)
    }

    fn wakeup(&self) -> Option<&dyn WakeupSource> {
        Some(self)
    }

    fn undelivered(&self, _received: Pos) -> u32 {
        self.receiver.waiting()
    }

    fn give_up(&self) -> io::Result<()> {
        *lock(&self.left) = RingPlaces::leave(&self.half.socket)?;
        self.half.give_up()
    }

    fn go_on(&self, next: NextRing<'_>) -> io::Result<()> {
        if next.bound.channel as usize != self.receiver.slot_bytes() {
            return Err(io::Error::new(io::ErrorKind::InvalidData, "the socket's ring has other slots now"));
        }
        lock(&self.left).take(next.other.as_fd())?;
        self.half.go_on(next)
    }
}

impl WakeupSource for PacketRx {
    fn request_wakeup(&self) -> bool {
        self.receiver.clear_error();
        false
    }

    fn doorbell(&self) -> &Doorbell {
        &self.half.doorbell
    }

    fn socket(&self) -> Option<BorrowedFd<'_>> {
        Some(self.half.socket.as_fd())
    }
}
