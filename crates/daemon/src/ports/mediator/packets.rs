// SPDX-License-Identifier: BSD-2-Clause
//! Packet sockets in the place of an interface's rings (`nic::packets`), as a mediator thread serves them.
//!
//! ```text
//! program's slots -> sendmmsg, each frame behind a private copy of its header
//! slots of the socket's ring, or its queue of long frames -> program's slots
//! a frame that is not finished, for a program without headers: by way of a private copy
//! ```
//! A slot of the program is released once its frame was sent: what finds no room now is sent again later. A program
//! whose packets begin with virtio-net headers exchanges these with the kernel, which finishes what it sends.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, TryLockError};

use unetmap_abi::NS_MOREFRAG;
use unetmap_core::Ring;
use unetmap_offload::{self as offload, MAX_PACKET};
use unetmap_sys::Piece;
use unetmap_sys::packet_socket::{self, Batch, Frames, HEADER, NotSent, Received, Receiver};

use super::headers::{await_more_room, capacity, fits, put};
use crate::tuning::mediator::{BATCH, TRIES};

/// `VIRTIO_NET_HDR_F_NEEDS_CSUM`.
const NEEDS_CHECKSUM: u8 = 1;
/// Bytes of the two addresses, behind which a VLAN tag is.
const ADDRESSES: usize = 12;
/// Bytes of a program's header at most, and more.
const OWN_HEADER: usize = 16;

/// The sockets of an interface, as its thread uses them.
pub(crate) struct PacketDevice {
    /// Its thread alone takes frames from it, but an earlier one may not have ended yet.
    receiver: Option<PacketReceiver>,
    sender: Option<Arc<OwnedFd>>,
    counters: Arc<PacketCounters>,
    /// Bytes of the program's header: 0, 10 or 12.
    header: usize,
    /// Frames that are to be sent.
    batch: Batch,
    /// Packets of the program that begin its ring.
    outgoing: Vec<Outgoing>,
    /// Attempts to send the first frame, which found no room.
    tries: u32,
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

/// A packet that is to be sent.
struct Outgoing {
    /// Whether it is one of the batch; otherwise it cannot be sent.
    is_frame: bool,
    /// Slots and bytes in the program's ring.
    slots: u32,
    length: u64,
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
        let (batch, outgoing, packet) = (Batch::default(), Vec::new(), Vec::new());
        PacketDevice { receiver, sender, counters, header: 0, batch, outgoing, tries: 0, packet }
    }

    /// The program's packets begin with a header of so many bytes; `cuts`: the interface itself cuts those that are
    /// several frames yet.
    pub(crate) fn with_header(self, header: u8, cuts: bool) -> PacketDevice {
        if let Some(sender) = &self.sender
            && let Err(e) = packet_socket::bypass_queue(sender.as_fd(), header == 0 || cuts)
        {
            tracing::error!("packets of several frames may be lost: {e}");
        }
        PacketDevice { header: header.into(), ..self }
    }

    /// Sends what the program has sent. Returns the number of its slots that this took, and their bytes. Adds those
    /// that can never be sent to `bad`.
    pub(super) fn move_out(&mut self, from: Option<&Ring>, bad: &mut u32) -> (u32, u64) {
        let (Some(from), Some(sender)) = (from, &self.sender) else { return (0, 0) };
        let mut frames = self.batch.frames();
        list(from, self.header, &mut frames, &mut self.outgoing);
        let (mut done, mut frame, mut slots, mut bytes) = (0, 0, 0, 0);
        while let Some(first) = self.outgoing.get(done) {
            let most = self.outgoing[done..].iter().take_while(|packet| packet.is_frame).count();
            let (count, is_sent) = match frames.send(sender.as_fd(), frame, most) {
                Ok(count) if count > 0 => (count, true),
                Err(NotSent::Down) => break,
                Err(NotSent::NoRoom) if self.tries < TRIES => {
                    self.tries += 1;
                    break;
                }
                Err(NotSent::NoRoom) => (1, false),
                Ok(_) | Err(NotSent::Invalid) => {
                    *bad += first.slots;
                    (1, false)
                }
            };
            if !is_sent {
                tracing::trace!(length = first.length, "a packet cannot be sent");
                self.counters.sent.fetch_add(1, Relaxed);
            }
            self.tries = 0;
            for packet in &self.outgoing[done..done + count] {
                (slots, bytes) = (slots + packet.slots, bytes + packet.length);
                frame += usize::from(packet.is_frame);
            }
            done += count;
        }
        from.advance(slots);
        (slots, bytes)
    }

    /// Copies what has arrived to the program. Returns the number of slots filled, and their bytes.
    pub(super) fn move_back(&mut self, to: Option<&Ring>) -> (u32, u64) {
        let (Some(to), Some(mut receiver)) = (to, lock(self.receiver.as_ref())) else { return (0, 0) };
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
            let delivered = receiver.receive(&mut cut, take);
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

/// Lists the packets at the beginning of a ring, each with a private copy of its header.
fn list<'a>(from: &'a Ring, header: usize, frames: &mut Frames<'_, 'a>, outgoing: &mut Vec<Outgoing>) {
    outgoing.clear();
    let space = from.space();
    let (mut slots, mut length, mut all, mut own) = (0, 0, 0, [0; OWN_HEADER]);
    for slot in from.first(space) {
        if slots == 0 && all >= BATCH {
            return;
        }
        let (len, flags) = slot.len_flags();
        let frame = slot.frame();
        // A program may have written any length.
        let len = usize::from(len).min(frame.capacity());
        let of_header = header.saturating_sub(length).min(len);
        frame.read(0, &mut own[header.min(length)..][..of_header]);
        (slots, length) = (slots + 1, length + len);
        if len > of_header && length <= header + MAX_PACKET {
            frames.add(frame.skip(of_header).piece(len - of_header));
        }
        if flags & NS_MOREFRAG == 0 {
            // The last two bytes of a longer header tell the program something that the kernel does not know.
            let of_kernel = own.first_chunk().copied().unwrap_or_default();
            let is_frame = length <= header + MAX_PACKET && frames.end(of_kernel);
            frames.forget();
            outgoing.push(Outgoing { is_frame, slots, length: length as u64 });
            (all, slots, length, own) = (all + slots, 0, 0, [0; OWN_HEADER]);
        }
    }
    // A ring that is full of a packet can never complete it.
    if outgoing.is_empty() && slots > 0 && space + 1 >= from.num_slots() {
        outgoing.push(Outgoing { is_frame: false, slots, length: length as u64 });
    }
}

/// Copies a frame into slots, from `at` slots behind the head on, as the program expects it; `None`: there is no room.
fn deliver(
    received: &mut Received<'_>,
    (to, at): (&Ring, u32),
    header: usize,
    packet: &mut Vec<u8>,
) -> Option<Delivered> {
    let mut own = [0; OWN_HEADER];
    own[..HEADER].copy_from_slice(&received.header);
    own[0] &= NEEDS_CHECKSUM;
    let tag = received.tag.unwrap_or_default();
    let tag = if received.tag.is_some() { &tag[..] } else { &[] };
    let lost = Some(Delivered { slots: 0, length: 0, lost: 1 });
    if received.length < ADDRESSES || received.length + tag.len() > MAX_PACKET {
        // It is taken out of the queue.
        received.read(std::iter::empty());
        return lost;
    }
    if header > 0 || offload::requests_nothing(&own) {
        let length = header + received.length + tag.len();
        if !fits(to, at, length.div_ceil(capacity(to)) as u32) {
            return None;
        }
        let slots = match received.in_ring() {
            Some(frame) => {
                let (addresses, rest) = frame.split_at(ADDRESSES);
                put(to, at, &[&own[..header], addresses, tag, rest])
            }
            None => read(received, (to, at), &own[..header], tag),
        };
        return Some(Delivered { slots, length: length as u64, lost: u64::from(slots == 0) });
    }
    let needed = offload::slots_needed(&own, HEADER + received.length + tag.len(), capacity(to));
    if !fits(to, at, needed as u32) {
        return None;
    }
    packet.clear();
    packet.extend_from_slice(&own[..HEADER]);
    match received.in_ring() {
        Some(frame) => packet.extend_from_slice(frame),
        None => {
            packet.resize(HEADER + received.length, 0);
            if !received.read(std::iter::once(Piece::of(&mut packet[HEADER..]))) {
                return lost;
            }
        }
    }
    packet.splice(HEADER + ADDRESSES..HEADER + ADDRESSES, tag.iter().copied());
    let (mut slots, mut length) = (0, 0);
    let finished = offload::finish(packet, HEADER, |pieces| {
        let more = put(to, at + slots, &pieces);
        slots += more;
        length += if more > 0 { pieces.iter().map(|piece| piece.len() as u64).sum() } else { 0 };
        more > 0
    });
    Some(Delivered { slots, length, lost: finished.map_or(1, |lost| lost as u64) })
}

/// Has a frame that is in the socket's queue written into slots, from `at` slots behind the head on, behind a header.
/// Returns the number of slots; 0: it is lost.
fn read(received: &mut Received<'_>, (to, at): (&Ring, u32), header: &[u8], tag: &[u8]) -> u32 {
    let (bytes, capacity) = (header.len() + received.length + tag.len(), capacity(to));
    let slots = bytes.div_ceil(capacity) as u32;
    if at + slots > to.space() {
        received.read(std::iter::empty());
        return 0;
    }
    let run = || to.run(to.add(to.head(), at), slots).zip((0..bytes).step_by(capacity));
    let len = |begin: usize| (bytes - begin).min(capacity);
    let mut of_kernel = run().flat_map(|(slot, begin)| {
        let frame = slot.frame();
        if begin > 0 {
            return [frame.piece(len(begin)), frame.piece(0)];
        }
        frame.write(0, header);
        frame.write(header.len() + ADDRESSES, tag);
        let rest = header.len() + ADDRESSES + tag.len();
        [frame.skip(header.len()).piece(ADDRESSES), frame.skip(rest).piece(len(0) - rest)]
    });
    if !received.read(&mut of_kernel) {
        return 0;
    }
    for (slot, begin) in run() {
        slot.set_len_flags(len(begin) as u16, if begin + capacity < bytes { NS_MOREFRAG } else { 0 });
    }
    slots
}
