// SPDX-License-Identifier: BSD-2-Clause
//! Packet sockets in the place of an interface's rings (`nic::packets`), as a mediator thread serves them.
//!
//! ```text
//! program's slots -> [ header | frame ] [ header | frame ] .. -> sendmmsg
//! slots of the socket's ring -> program's slots; a frame that is not finished: by way of a private copy
//! ```
//! A slot of the program is released once its frame was sent: what finds no room now is copied again later. A program
//! whose packets begin with virtio-net headers exchanges these with the kernel, which finishes what it sends.

use std::ops::Range;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, TryLockError};

use unetmap_abi::NS_MOREFRAG;
use unetmap_core::Ring;
use unetmap_offload::{self as offload, MAX_PACKET};
use unetmap_sys::packet_socket::{self, HEADER, NotSent, Received, Receiver};

use super::headers::{await_more_room, capacity, fits, put};
use crate::tuning::mediator::{BATCH, STAGED_BYTES, TRIES};

/// `VIRTIO_NET_HDR_F_NEEDS_CSUM`.
const NEEDS_CHECKSUM: u8 = 1;
/// Bytes of the two addresses, behind which a VLAN tag is.
const ADDRESSES: usize = 12;

/// The sockets of an interface, as its thread uses them.
pub(crate) struct PacketDevice {
    /// Its thread alone takes frames from it, but an earlier one may not have ended yet.
    receiver: Option<PacketReceiver>,
    sender: Option<Arc<OwnedFd>>,
    counters: Arc<PacketCounters>,
    /// Bytes of the program's header: 0, 10 or 12.
    header: usize,
    staged: Staged,
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

/// Copies of packets that are to be sent.
#[derive(Default)]
struct Staged {
    bytes: Vec<u8>,
    packets: Vec<StagedPacket>,
}

/// A packet that is to be sent.
struct StagedPacket {
    /// Its copy, behind a header of [`HEADER`] bytes; `None`: it cannot be sent.
    at: Option<Range<usize>>,
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
        let (staged, packet) = (Staged::default(), Vec::new());
        PacketDevice { receiver, sender, counters, header: 0, staged, tries: 0, packet }
    }

    /// The program's packets begin with a header of so many bytes.
    pub(super) fn with_header(self, header: u8) -> PacketDevice {
        PacketDevice { header: header.into(), ..self }
    }

    /// Sends what the program has sent. Returns the number of its slots that this took, and their bytes. Adds those
    /// that can never be sent to `bad`.
    pub(super) fn move_out(&mut self, from: Option<&Ring>, bad: &mut u32) -> (u32, u64) {
        let (Some(from), Some(sender)) = (from, &self.sender) else { return (0, 0) };
        self.staged.copy(from, self.header);
        let (mut done, mut slots, mut bytes) = (0, 0, 0);
        while let Some(first) = self.staged.packets.get(done) {
            let (count, is_sent) = match packet_socket::send(sender.as_fd(), self.staged.frames(done)) {
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
            for packet in &self.staged.packets[done..done + count] {
                (slots, bytes) = (slots + packet.slots, bytes + packet.length);
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
            let take = |received: &Received<'_>| {
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

impl Staged {
    /// Copies the packets at the beginning of a ring.
    fn copy(&mut self, from: &Ring, header: usize) {
        self.bytes.clear();
        self.packets.clear();
        let space = from.space();
        let (mut begin, mut slots, mut length, mut all) = (0, 0, 0, 0);
        for slot in from.first(space) {
            if slots == 0 {
                if all >= BATCH || self.bytes.len() >= STAGED_BYTES {
                    return;
                }
                begin = self.bytes.len();
                let own = if header == 0 { HEADER } else { 0 };
                self.bytes.resize(begin + own, 0);
            }
            let (len, flags) = slot.len_flags();
            let frame = slot.frame();
            // A program may have written any length.
            let len = usize::from(len).min(frame.capacity());
            (slots, length) = (slots + 1, length + len);
            if length <= header + MAX_PACKET {
                let at = self.bytes.len();
                self.bytes.resize(at + len, 0);
                frame.read(0, &mut self.bytes[at..]);
            }
            if flags & NS_MOREFRAG == 0 {
                let finished = self.finished(begin, (slots, length), header);
                self.packets.push(finished);
                (all, slots, length) = (all + slots, 0, 0);
            }
        }
        // A ring that is full of a packet can never complete it.
        if self.packets.is_empty() && slots > 0 && space + 1 >= from.num_slots() {
            self.packets.push(StagedPacket { at: None, slots, length: length as u64 });
        }
    }

    /// The packet whose copy begins at `begin` and ends with all bytes.
    fn finished(&mut self, begin: usize, (slots, length): (u32, usize), header: usize) -> StagedPacket {
        let mut at = None;
        if length >= header && length <= header + MAX_PACKET {
            // The last two bytes of a longer header tell the program something that the kernel does not know.
            let longer = header.saturating_sub(HEADER);
            self.bytes.copy_within(begin..begin + HEADER, begin + longer);
            at = Some(begin + longer..self.bytes.len());
        }
        StagedPacket { at, slots, length: length as u64 }
    }

    /// The frames from packet number `first` on, up to one that cannot be sent.
    fn frames(&self, first: usize) -> impl Iterator<Item = &[u8]> {
        self.packets[first..].iter().map_while(|packet| self.bytes.get(packet.at.clone()?))
    }
}

/// Copies a frame into slots, from `at` slots behind the head on, as the program expects it; `None`: there is no room.
fn deliver(received: &Received<'_>, (to, at): (&Ring, u32), header: usize, packet: &mut Vec<u8>) -> Option<Delivered> {
    let (addresses, rest) = received.frame.split_at(received.frame.len().min(ADDRESSES));
    let tag = received.tag.as_ref().map_or(&[][..], |tag| &tag[..]);
    let mut own = [0; 16];
    own[..HEADER].copy_from_slice(&received.header);
    own[0] &= NEEDS_CHECKSUM;
    if header > 0 || offload::requests_nothing(&own) {
        let pieces = [&own[..header], addresses, tag, rest];
        let length = pieces.iter().map(|piece| piece.len()).sum::<usize>();
        if !fits(to, at, length.div_ceil(capacity(to)) as u32) {
            return None;
        }
        let slots = put(to, at, &pieces);
        return Some(Delivered { slots, length: length as u64, lost: u64::from(slots == 0) });
    }
    packet.clear();
    [&own[..HEADER], addresses, tag, rest].into_iter().for_each(|piece| packet.extend_from_slice(piece));
    if !fits(to, at, offload::slots_needed(packet, capacity(to)) as u32) {
        return None;
    }
    let (mut slots, mut length) = (0, 0);
    let finished = offload::finish(packet, HEADER, |pieces| {
        let more = put(to, at + slots, &pieces);
        slots += more;
        length += if more > 0 { pieces.iter().map(|piece| piece.len() as u64).sum() } else { 0 };
        more > 0
    });
    Some(Delivered { slots, length, lost: finished.map_or(1, |lost| lost as u64) })
}
