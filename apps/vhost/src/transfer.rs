// SPDX-License-Identifier: BSD-2-Clause
//! Copies packets between a guest's queue and a ring of the port.
//!
//! ```text
//!   guest:  chain, or several of them (mergeable buffers)  [ header 10 or 12 | frame .................... ]
//!   port:   slots, all but the last with NS_MOREFRAG       [ header 0 or 12  | frame ....] [....] [......]
//! ```
//! The header's requests (a checksum, segmentation) pass between guests unchanged. For a guest that has not negotiated
//! them they are carried out here; for ports without header by the switch. Packets of memif have no header on either
//! side.

use std::ops::Range;

use unetmap::abi::NS_MOREFRAG;
use unetmap::guest::GuestMemory;
use unetmap::{BufIdx, Pos, Ring, SlotRef};
use unetmap_offload::{self as offload, MAX_PACKET};

use crate::features::{
    CSUM, GUEST_CSUM, GUEST_TSO4, GUEST_TSO6, GUEST_UFO, GUEST_USO, HOST_OFFLOADS, HOST_TSO4, HOST_TSO6, HOST_UFO,
    HOST_USO, MRG_RXBUF,
};
use crate::queue::{Chains, Cursor, Fault, Queue};
use crate::tuning::{BATCH, LARGE_SLOT_BYTES, MAX_IN_FLIGHT_BYTES, PREFETCH_GROUP};

/// Bytes of the header in the port's slots.
pub(crate) const PORT_HEADER: usize = 12;
/// Bytes of an Ethernet header: shorter frames are dropped.
const ETHERNET: usize = 14;
/// `VIRTIO_NET_HDR_F_NEEDS_CSUM`, the only flag that is passed on: nobody has verified what a guest says it has.
const NEEDS_CSUM: u8 = 1;
/// `VIRTIO_NET_HDR_GSO_ECN`, a flag beside the kind of segmentation.
const GSO_ECN: u8 = 0x80;

/// A virtio-net header.
type Header = [u8; PORT_HEADER];

/// Counts of packets that one call moved.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Moved {
    pub(crate) packets: u64,
    /// The other side has no room for the next one.
    pub(crate) is_blocked: bool,
}

/// The result of delivering a packet to the guest.
#[derive(PartialEq, Eq)]
enum Delivery {
    Done,
    /// The guest offers no buffers, or too few.
    NoBuffers,
    /// The chain is not usable, or cannot hold it.
    Dropped,
}

/// Memory that is used again for each packet, and counts.
#[derive(Default)]
pub(crate) struct Transfer {
    /// Bytes of the header in the port's slots: [`PORT_HEADER`], or 0 if the guest has no offloads, or for memif.
    port_header: usize,
    chains: Chains,
    packet: Vec<u8>,
    /// Bytes of a slot, in the last batch that the guest sent.
    slot_bytes: u32,
    /// Packets that were malformed, too long for the chains, or without buffers when they had to be cut.
    pub(crate) dropped: u64,
}

/// The guest's side of a transfer.
pub(crate) struct Guest<'a> {
    pub(crate) memory: &'a GuestMemory,
    pub(crate) queue: &'a mut Queue,
    pub(crate) features: u64,
    /// Bytes of its headers.
    pub(crate) header: usize,
}

impl Guest<'_> {
    /// Whether headers that the guest writes matter: without offloads they are not read, which saves a cache line.
    #[inline]
    fn reads_headers(&self) -> bool {
        self.features & HOST_OFFLOADS != 0
    }

    /// Prefetches the buffers of later packets, before packet `n` of a batch.
    #[inline]
    fn prefetch(&self, n: u32) {
        let buffers = prefetched(n);
        // Another core has written the descriptors, too: they are fetched before their addresses are needed.
        self.queue.prefetch_descriptors(buffers.start + 2 * PREFETCH_GROUP..buffers.end + 2 * PREFETCH_GROUP);
        let skipped = if self.queue.writes() || self.reads_headers() { 0 } else { self.header };
        self.queue.prefetch(self.memory, buffers, skipped as u64);
    }
}

/// How far behind packet `n` of a batch the packets are that are prefetched before it: at each [`PREFETCH_GROUP`]th
/// packet the group after the next ones, at the start those as well.
#[inline(always)]
fn prefetched(n: u32) -> Range<u16> {
    let first = if n == 0 { 0 } else { PREFETCH_GROUP };
    if n.is_multiple_of(PREFETCH_GROUP.into()) { first..2 * PREFETCH_GROUP } else { 0..0 }
}

/// The slots that are prefetched before packet `n` of a batch, which begins `from` slots behind the ring's head.
#[inline(always)]
fn slots_ahead(ring: &Ring, n: u32, from: u32, space: u32) -> impl Iterator<Item = SlotRef<'_>> {
    let ahead = prefetched(n).map(move |ahead| from + u32::from(ahead)).take_while(move |ahead| *ahead < space);
    ahead.map(|ahead| ring.slot(ring.add(ring.head(), ahead)))
}

/// Returns whether each request of a header is one of `features`: by the bits of checksums, TSO4, TSO6, UFO and USO.
fn has_features(header: &Header, features: u64, [csum, tso4, tso6, ufo, uso]: [u64; 5]) -> bool {
    let needed = match header[1] & !GSO_ECN {
        0 => 0,
        1 => tso4,
        3 => ufo,
        4 => tso6,
        5 => uso,
        _ => return false,
    };
    let needed = needed | if header[0] & NEEDS_CSUM != 0 { csum } else { 0 };
    features & needed == needed
}

impl Transfer {
    pub(crate) fn new(port_header: usize) -> Transfer {
        Transfer { port_header, ..Transfer::default() }
    }

    pub(crate) fn port_header(&self) -> usize {
        self.port_header
    }

    pub(crate) fn set_port_header(&mut self, bytes: usize) {
        self.port_header = bytes;
    }

    /// Copies packets that the guest sends into free slots of `ring`, and drops them if there is no ring.
    pub(crate) fn send(&mut self, guest: &mut Guest<'_>, ring: Option<&Ring>) -> Result<Moved, Fault> {
        let (mut moved, mut slots) = (Moved::default(), 0);
        let (head, free) = ring.map_or((Pos::ZERO, 0), |ring| (ring.head(), ring.space()));
        let (is_large, mut bytes) = (self.slot_bytes >= LARGE_SLOT_BYTES, 0);
        // What the switch has not copied yet stays in a cache until then.
        let in_flight = ring.map_or(0, |ring| ring.num_slots() - 1 - free);
        let most = if is_large { MAX_IN_FLIGHT_BYTES / self.slot_bytes } else { u32::MAX };
        let space = free.min(most.saturating_sub(in_flight));
        for n in 0..BATCH {
            let mark = guest.queue.mark();
            self.chains.clear();
            if !guest.queue.pop(guest.memory, &mut self.chains)? {
                break;
            }
            guest.prefetch(n);
            if let Some(ring) = ring {
                if is_large {
                    self.use_recent_buffers(ring, slots, free);
                } else {
                    slots_ahead(ring, n, slots, space).for_each(|slot| slot.fetch_to_write());
                }
                let before = slots;
                if slots < space && self.copy_to_slot(guest, ring.slot(ring.add(head, slots))) {
                    slots += 1;
                } else {
                    match self.copy_to_slots(guest, ring, slots, space) {
                        Some(0) => {
                            guest.queue.rewind(mark);
                            moved.is_blocked = true;
                            break;
                        }
                        Some(used) => slots += used,
                        None => self.dropped += 1,
                    }
                }
                if slots > before {
                    bytes += self.chains.capacity();
                }
            }
            guest.queue.push_used(&self.chains, 0);
            moved.packets += 1;
        }
        if let Some(ring) = ring {
            ring.advance(slots);
            if slots > 0 {
                // A packet that is sent has at most 64 KiB.
                self.slot_bytes = (bytes / u64::from(slots)) as u32;
            }
        }
        Ok(moved)
    }

    /// Before the chain's packet is copied to the slots after the first `from` of `free` ones: exchanges their buffers
    /// for those of the slots that the switch has returned last.
    fn use_recent_buffers(&self, ring: &Ring, from: u32, free: u32) {
        let slots = self.chains.capacity().div_ceil(ring.buf_size().into()).min(free.into()) as u32;
        let at = |n| ring.slot(ring.add(ring.head(), n));
        for n in from..(from + slots).min(free / 2) {
            let (slot, recent) = (at(n), at(free - 1 - n));
            recent.replace_buf(slot.replace_buf(BufIdx(recent.buf_idx())));
        }
    }

    /// Copies the chain's packet into a slot, if it is one buffer that requests nothing, as most packets are. Returns
    /// whether it was.
    #[inline]
    fn copy_to_slot(&self, guest: &Guest<'_>, slot: SlotRef<'_>) -> bool {
        let Some(from) = self.chains.single(guest.memory) else { return false };
        let (to, frame) = (slot.frame(), from.skip(guest.header));
        let most = to.capacity().saturating_sub(self.port_header).min(MAX_PACKET);
        let fits = (ETHERNET..=most).contains(&frame.capacity());
        if !fits || guest.reads_headers() && !offload::requests_nothing(&from.header()) {
            return false;
        }
        to.write(0, &[0; PORT_HEADER][..self.port_header]);
        to.skip(self.port_header).copy_from(&frame, frame.capacity());
        slot.set_len_flags((self.port_header + frame.capacity()) as u16, 0);
        true
    }

    /// Copies the chain's packet into the slots after the first `from` of `space` free ones. Returns how many it took:
    /// 0 if there are too few; `None` if the packet is malformed.
    fn copy_to_slots(&self, guest: &Guest<'_>, ring: &Ring, from: u32, space: u32) -> Option<u32> {
        let frame = usize::try_from(self.chains.capacity()).ok()?.checked_sub(guest.header)?;
        if self.chains.is_unusable() || !(ETHERNET..=MAX_PACKET).contains(&frame) {
            return None;
        }
        let buf_size = ring.buf_size() as usize;
        let slots = (self.port_header + frame).div_ceil(buf_size) as u32;
        if slots >= ring.num_slots() {
            return None;
        }
        if slots > space - from {
            return Some(0);
        }
        let mut cursor = Cursor::new(guest.memory, &self.chains);
        let mut header = [0; PORT_HEADER];
        cursor.read(&mut header[..guest.header]);
        if !guest.reads_headers() {
            header.fill(0);
        }
        header[0] &= NEEDS_CSUM;
        // The number of buffers, which counts only in received packets.
        header[10..].fill(0);
        if !has_features(&header, guest.features, [CSUM, HOST_TSO4, HOST_TSO6, HOST_UFO, HOST_USO]) {
            return None;
        }
        let (mut left, mut before) = (frame, self.port_header);
        for slot in ring.run(ring.add(ring.head(), from), slots) {
            let buffer = slot.frame();
            if before > 0 {
                buffer.write(0, &header);
            }
            let here = left.min(buf_size - before);
            if cursor.read_frame(buffer.skip(before), here) < here {
                return None;
            }
            left -= here;
            let more = if left > 0 { NS_MOREFRAG } else { 0 };
            slot.set_len_flags((before + here) as u16, more);
            before = 0;
        }
        Some(slots)
    }

    /// Copies packets of `ring` into buffers that the guest offers.
    pub(crate) fn receive(&mut self, guest: &mut Guest<'_>, ring: &Ring) -> Result<Moved, Fault> {
        let (mut moved, mut taken, head, space) = (Moved::default(), 0, ring.head(), ring.space());
        for n in 0..BATCH {
            let Some((slots, bytes)) = next_packet(ring, taken, space) else { break };
            slots_ahead(ring, n, taken, space).for_each(|slot| slot.fetch());
            guest.prefetch(n);
            let first = ring.slot(ring.add(head, taken));
            let delivered = if slots == 1 { self.deliver_slot(guest, first, bytes)? } else { None };
            let delivered = match delivered {
                Some(delivery) => delivery,
                None => self.deliver_slots(guest, ring, taken, (slots, bytes))?,
            };
            match delivered {
                Delivery::NoBuffers => {
                    moved.is_blocked = true;
                    break;
                }
                Delivery::Dropped => self.dropped += 1,
                Delivery::Done => moved.packets += 1,
            }
            taken += slots;
        }
        ring.advance(taken);
        Ok(moved)
    }

    /// Delivers a packet of `bytes` bytes in one slot that requests nothing, if the guest's next chain is one buffer
    /// that holds it, as most are. `None`: it is another one.
    #[inline]
    fn deliver_slot(
        &mut self,
        guest: &mut Guest<'_>,
        slot: SlotRef<'_>,
        bytes: usize,
    ) -> Result<Option<Delivery>, Fault> {
        let from = slot.frame();
        let (frame, bytes) = (from.skip(self.port_header), bytes.saturating_sub(self.port_header));
        let fits = (ETHERNET..=MAX_PACKET.min(frame.capacity())).contains(&bytes);
        if !fits || self.port_header > 0 && !offload::requests_nothing(&from.header()) {
            return Ok(None);
        }
        let mark = guest.queue.mark();
        self.chains.clear();
        if !guest.queue.pop(guest.memory, &mut self.chains)? {
            return Ok(Some(Delivery::NoBuffers));
        }
        let to = self.chains.single(guest.memory).filter(|to| to.capacity() >= guest.header + bytes);
        let Some(to) = to else {
            guest.queue.rewind(mark);
            return Ok(None);
        };
        // One buffer.
        to.write(0, &[0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0][..guest.header]);
        to.skip(guest.header).copy_from(&frame, bytes);
        guest.queue.push_used(&self.chains, (guest.header + bytes) as u64);
        Ok(Some(Delivery::Done))
    }

    fn deliver_slots(
        &mut self,
        guest: &mut Guest<'_>,
        ring: &Ring,
        from: u32,
        (slots, bytes): (u32, usize),
    ) -> Result<Delivery, Fault> {
        let slots = || ring.run(ring.add(ring.head(), from), slots);
        let mut header: Header = [0; PORT_HEADER];
        let port_header = self.port_header;
        let first =
            slots().next().map_or(0, |slot| slot.frame().read(0, &mut header[..port_header]).min(slot.len().into()));
        if first < port_header || !(ETHERNET..=MAX_PACKET).contains(&bytes.saturating_sub(port_header)) {
            return Ok(Delivery::Dropped);
        }
        header[0] &= NEEDS_CSUM;
        if !has_features(&header, guest.features, [GUEST_CSUM, GUEST_TSO4, GUEST_TSO6, GUEST_UFO, GUEST_USO]) {
            self.packet.clear();
            for slot in slots() {
                let at = self.packet.len();
                self.packet.resize(at + usize::from(slot.len()), 0);
                slot.frame().read(0, &mut self.packet[at..]);
            }
            return self.deliver_finished(guest);
        }
        self.deliver(guest, &header, bytes - port_header, |cursor| {
            let mut skip = port_header;
            for slot in slots() {
                cursor.write_frame(slot.frame().skip(skip), usize::from(slot.len()).saturating_sub(skip));
                skip = 0;
            }
        })
    }

    /// Delivers a packet that begins with a header of the port, as one of its slots.
    #[cfg(any(test, fuzzing))]
    pub(crate) fn deliver_packet(&mut self, guest: &mut Guest<'_>, packet: &[u8]) -> Result<Moved, Fault> {
        self.packet.clear();
        self.packet.extend_from_slice(packet);
        let delivery = self.deliver_finished(guest)?;
        Ok(Moved { packets: (delivery == Delivery::Done).into(), is_blocked: false })
    }

    /// Carries out what the header of `self.packet` requests, and delivers the frames.
    #[cold]
    fn deliver_finished(&mut self, guest: &mut Guest<'_>) -> Result<Delivery, Fault> {
        let mut packet = std::mem::take(&mut self.packet);
        let mut state = Ok(Delivery::Done);
        let finished = offload::finish(&mut packet, PORT_HEADER, |pieces| {
            let bytes = pieces.iter().map(|piece| piece.len()).sum();
            state = self.deliver(guest, &[0; PORT_HEADER], bytes, |cursor| {
                for piece in pieces {
                    cursor.write(piece);
                }
            });
            matches!(state, Ok(Delivery::Done))
        });
        self.packet = packet;
        match (finished, state?) {
            // Frames that are missing are lost, as a receiver without room loses packets: the first ones have arrived.
            (Ok(0), Delivery::Done) => Ok(Delivery::Done),
            _ => Ok(Delivery::Dropped),
        }
    }

    /// Writes a header and the `frame` bytes that `copy` writes into the guest's next buffers.
    fn deliver(
        &mut self,
        guest: &mut Guest<'_>,
        header: &Header,
        frame: usize,
        copy: impl FnOnce(&mut Cursor<'_>),
    ) -> Result<Delivery, Fault> {
        let bytes = (guest.header + frame) as u64;
        let mark = guest.queue.mark();
        self.chains.clear();
        while self.chains.capacity() < bytes {
            if !guest.queue.pop(guest.memory, &mut self.chains)? {
                guest.queue.rewind(mark);
                return Ok(Delivery::NoBuffers);
            }
            if self.chains.is_unusable() {
                guest.queue.push_used(&self.chains, 0);
                return Ok(Delivery::Dropped);
            }
            if guest.features & MRG_RXBUF == 0 && self.chains.capacity() < bytes {
                guest.queue.rewind(mark);
                return Ok(Delivery::Dropped);
            }
        }
        let mut header = *header;
        // At most as many as there are segments.
        header[10..].copy_from_slice(&(self.chains.count() as u16).to_le_bytes());
        let mut cursor = Cursor::new(guest.memory, &self.chains);
        cursor.write(&header[..guest.header]);
        copy(&mut cursor);
        guest.queue.push_used(&self.chains, bytes);
        Ok(Delivery::Done)
    }
}

/// Returns the slots and bytes of the packet after the first `from` of `space` slots; `None` if there is no whole one.
fn next_packet(ring: &Ring, from: u32, space: u32) -> Option<(u32, usize)> {
    let mut bytes = 0;
    for (n, slot) in ring.run(ring.add(ring.head(), from), space - from).enumerate() {
        let (len, flags) = slot.len_flags();
        bytes += usize::from(len);
        if flags & NS_MOREFRAG == 0 {
            return Some((n as u32 + 1, bytes));
        }
    }
    None
}
