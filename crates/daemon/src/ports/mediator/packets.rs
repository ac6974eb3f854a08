// SPDX-License-Identifier: BSD-2-Clause
//! Packet sockets in the place of an interface's rings (`nic::packets`), as a mediator thread serves them.
//!
//! ```text
//! program's slots -> socket, socket -> program's slots              `unetmap_core::packets`
//! a frame that is not finished, for a program without headers: by way of a private copy
//! ```
//! A slot of the program is released once its frame was sent: what finds no room now is sent again later.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, TryLockError};

use unetmap_abi::NS_MOREFRAG;
use unetmap_core::Ring;
use unetmap_core::packets::{self, ADDRESSES, Outbox};
use unetmap_offload as offload;
use unetmap_sys::Piece;
use unetmap_sys::packet_socket::{self, HEADER, Received, Receiver, Vectors};

use super::headers::{await_more_room, capacity, fits, put};
use crate::tuning::mediator::BATCH;

/// The sockets of an interface, as its thread uses them.
pub(crate) struct PacketDevice {
    /// Its thread alone takes frames from it, but an earlier one may not have ended yet.
    receiver: Option<PacketReceiver>,
    sender: Option<Arc<OwnedFd>>,
    counters: Arc<PacketCounters>,
    /// Bytes of the program's header: 0, 10 or 12.
    header: usize,
    outbox: Outbox,
    vectors: Vectors,
    /// A private copy of a frame that is not finished.
    packet: Vec<u8>,
}

/// A socket that receives, and its ring.
pub(crate) type PacketReceiver = (Arc<OwnedFd>, Arc<Mutex<Receiver>>);

/// Frames that were lost between the program and the kernel.
#[derive(Default)]
pub(crate) struct PacketCounters {
    /// Of those that arrived: longer than a slot while the queue of such frames was full, or malformed.
    pub(crate) received: AtomicU64,
    /// Of those that the program sent: too long, or the interface took none for long.
    pub(crate) sent: AtomicU64,
}

/// A frame that has arrived was delivered, or lost.
struct Delivered {
    slots: u32,
    length: u64,
    lost: u64,
}

impl PacketDevice {
    pub(crate) fn new(
        receiver: Option<PacketReceiver>,
        sender: Option<Arc<OwnedFd>>,
        counters: Arc<PacketCounters>,
    ) -> PacketDevice {
        let (outbox, vectors, packet) = (Outbox::new(0), Vectors::default(), Vec::new());
        PacketDevice { receiver, sender, counters, header: 0, outbox, vectors, packet }
    }

    /// The program's packets begin with a header of so many bytes; `cuts`: the interface itself cuts those that are
    /// several frames yet.
    pub(crate) fn with_header(self, header: u8, cuts: bool) -> PacketDevice {
        if let Some(sender) = &self.sender
            && let Err(e) = packet_socket::bypass_queue(sender.as_fd(), header == 0 || cuts)
        {
            tracing::error!("packets of several frames may be lost: {e}");
        }
        PacketDevice { header: header.into(), outbox: Outbox::new(header.into()), ..self }
    }

    /// Sends what the program has sent. Returns the number of its slots that this took, and their bytes. Adds those
    /// that can never be sent to `bad`.
    pub(super) fn move_out(&mut self, from: Option<&Ring>, bad: &mut u32) -> (u32, u64) {
        let (Some(from), Some(sender)) = (from, &self.sender) else { return (0, 0) };
        let space = from.space();
        let slots = from.first(space).map(|slot| {
            let (len, flags) = slot.len_flags();
            (slot.frame(), len, flags)
        });
        let sent = self.outbox.send(sender.as_fd(), slots, space + 1 >= from.num_slots());
        if sent.lost > 0 {
            tracing::trace!(?sent, "packets cannot be sent");
            self.counters.sent.fetch_add(sent.lost, Relaxed);
        }
        *bad += sent.bad;
        from.advance(sent.slots);
        (sent.slots, sent.bytes)
    }

    /// Copies what has arrived to the program. Returns the number of slots filled, and their bytes.
    pub(super) fn move_back(&mut self, to: Option<&Ring>) -> (u32, u64) {
        let (Some(to), Some(receiver)) = (to, lock(self.receiver.as_ref())) else { return (0, 0) };
        let (mut filled, mut bytes, mut lost, mut is_full, mut frames) = (0, 0, 0, false, 0);
        // Lost frames fill no slots.
        while filled < BATCH && frames < BATCH {
            frames += 1;
            let mut cut = 0;
            let take = |received: &mut Received<'_>| {
                let delivered = deliver(received, (to, filled), self.header, &mut self.packet);
                is_full = delivered.is_none();
                delivered
            };
            let delivered = receiver.receive(&mut self.vectors, &mut cut, take);
            lost += cut;
            let Some(delivered) = delivered else { break };
            filled += delivered.slots;
            bytes += delivered.length;
            lost += delivered.lost;
        }
        if lost > 0 {
            self.counters.received.fetch_add(lost, Relaxed);
        }
        to.advance(filled);
        if is_full {
            await_more_room(to);
        }
        (filled, bytes)
    }

    /// Whether a frame has arrived that was not taken.
    pub(super) fn has_frame(&self) -> bool {
        lock(self.receiver.as_ref()).is_some_and(|receiver| {
            receiver.clear_error();
            receiver.has_frame()
        })
    }

    /// Readable when a frame has arrived.
    pub(super) fn wait_fd(&self) -> Option<BorrowedFd<'_>> {
        self.receiver.as_ref().map(|(fd, _)| fd.as_fd())
    }
}

/// Takes hold of the receiving side, unless an earlier thread still has it.
fn lock(receiver: Option<&PacketReceiver>) -> Option<MutexGuard<'_, Receiver>> {
    match receiver?.1.try_lock() {
        Ok(receiver) => Some(receiver),
        Err(TryLockError::Poisoned(poisoned)) => Some(poisoned.into_inner()),
        Err(TryLockError::WouldBlock) => None,
    }
}

/// Copies a frame into slots, from `at` slots behind the head on, as the program expects it; `None`: there is no room.
fn deliver(
    received: &mut Received<'_>,
    (to, at): (&Ring, u32),
    header: usize,
    packet: &mut Vec<u8>,
) -> Option<Delivered> {
    let own = packets::program_header(received);
    let lost = Some(Delivered { slots: 0, length: 0, lost: 1 });
    if !packets::is_deliverable(received) {
        return lost;
    }
    if header > 0 || offload::requests_nothing(&own) {
        let length = header + received.bytes();
        if !fits(to, at, length.div_ceil(capacity(to)) as u32) {
            return None;
        }
        let slots = read(received, (to, at), &own[..header]);
        return Some(Delivered { slots, length: length as u64, lost: u64::from(slots == 0) });
    }
    let needed = offload::slots_needed(&own, HEADER + received.bytes(), capacity(to));
    if !fits(to, at, needed as u32) {
        return None;
    }
    packet.clear();
    packet.extend_from_slice(&own[..HEADER]);
    packet.resize(HEADER + received.length, 0);
    if !received.read(std::iter::once(Piece::of(&mut packet[HEADER..]))) {
        return lost;
    }
    packet.splice(HEADER + ADDRESSES..HEADER + ADDRESSES, received.tag.into_iter().flatten());
    let (mut slots, mut length) = (0, 0);
    let finished = offload::finish(packet, HEADER, |pieces| {
        let more = put(to, at + slots, &pieces);
        slots += more;
        length += if more > 0 { pieces.iter().map(|piece| piece.len() as u64).sum() } else { 0 };
        more > 0
    });
    Some(Delivered { slots, length, lost: finished.map_or(1, |lost| lost as u64) })
}

/// Has a frame written into slots, from `at` slots behind the head on, behind a header. Returns the number of slots; 0:
/// it is lost.
fn read(received: &mut Received<'_>, (to, at): (&Ring, u32), header: &[u8]) -> u32 {
    let (bytes, capacity) = (header.len() + received.bytes(), capacity(to));
    let slots = bytes.div_ceil(capacity) as u32;
    // A frame for which the ring is too short is taken out of the socket's queue.
    let run = || to.run(to.add(to.head(), at), slots.min(to.space().saturating_sub(at)));
    if !packets::deliver(received, run().map(|slot| slot.frame()), capacity, header) {
        return 0;
    }
    for (slot, begin) in run().zip((0..bytes).step_by(capacity)) {
        let flags = if begin + capacity < bytes { NS_MOREFRAG } else { 0 };
        slot.set_len_flags((bytes - begin).min(capacity) as u16, flags);
    }
    slots
}
