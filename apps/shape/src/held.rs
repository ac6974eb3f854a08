// SPDX-License-Identifier: BSD-2-Clause
//! Packets that a program keeps for a while, copied from the slots of a ring into memory of its own and later back:
//! the buffers of both ports stay in their rings, whatever happens to the program.

use unetmap::abi::NS_MOREFRAG;
use unetmap::{Pos, Ring, SlotIter};

use crate::{Nanos, Packet, Pool};

/// The slots of one packet.
pub struct PacketSlots {
    /// Position of the first one.
    pub start: Pos,
    /// Number of slots.
    pub slots: u32,
    /// Bytes of the packet.
    pub bytes: usize,
}

/// Takes the slots of the next packet from `slots`.
#[inline]
pub fn next_packet(slots: &mut SlotIter<'_>) -> Option<PacketSlots> {
    let first = slots.next()?;
    let (len, mut flags) = first.len_flags();
    let mut packet = PacketSlots { start: first.pos(), slots: 1, bytes: usize::from(len) };
    while flags & NS_MOREFRAG != 0 {
        let Some(slot) = slots.next() else { break };
        let len;
        (len, flags) = slot.len_flags();
        packet.bytes += usize::from(len);
        packet.slots += 1;
    }
    Some(packet)
}

/// Copies a packet from its slots in `from`; its first `header` bytes are not on the link. Returns `None` if the pool
/// is full.
#[inline]
pub fn store(
    pool: &mut Pool,
    from: &Ring,
    packet: &PacketSlots,
    header: usize,
    tag: u32,
    now: Nanos,
) -> Option<Packet> {
    let stored = pool.allocate(packet.bytes, header, tag, now)?;
    let mut cursor = pool.cursor(stored);
    for slot in from.run(packet.start, packet.slots) {
        // The lengths may have changed since they were added up: the cursor ends with the memory.
        let (frame, len, mut at) = (slot.frame(), usize::from(slot.len()), 0);
        while at < len {
            let part = cursor.next_mut(pool, len - at);
            if part.is_empty() {
                break;
            }
            at += part.len();
            let read = frame.read(at - part.len(), part);
            part[read..].fill(0);
        }
    }
    // No bytes of an earlier packet may show.
    loop {
        match cursor.next_mut(pool, usize::MAX) {
            [] => return Some(stored),
            part => part.fill(0),
        }
    }
}

/// Copies a packet to the next of `targets`, buffers of `buf_size` bytes, and frees it. Returns the number of slots.
/// The caller has checked that there are enough ([`slots_needed`]).
#[inline]
pub fn emit(pool: &mut Pool, packet: Packet, targets: &mut SlotIter<'_>, buf_size: u32) -> u32 {
    let (mut cursor, mut left, mut slots) = (pool.cursor(packet), pool.stored(packet), 0);
    let buf_size = slot_bytes(buf_size);
    for target in targets.by_ref() {
        let (frame, len, mut at) = (target.frame(), left.min(buf_size), 0);
        while at < len {
            let part = cursor.next(pool, len - at);
            frame.write(at, part);
            at += part.len();
        }
        left -= len;
        slots += 1;
        target.set_len_flags(len as u16, if left > 0 { NS_MOREFRAG } else { 0 });
        if left == 0 {
            break;
        }
    }
    pool.free(packet);
    slots
}

/// Returns the number of slots that a packet takes in a ring.
pub fn slots_needed(pool: &Pool, packet: Packet, buf_size: u32) -> u32 {
    pool.stored(packet).div_ceil(slot_bytes(buf_size)).max(1) as u32
}

/// Bytes of a packet that a slot can have: its length is a number of 16 bits.
fn slot_bytes(buf_size: u32) -> usize {
    buf_size.min(u16::MAX.into()) as usize
}
