// SPDX-License-Identifier: BSD-2-Clause
//! Virtio-net headers before the packets of an interface, on the program's side.
//!
//! ```text
//! from the interface   [ 0 .. 0 | frame ]    the frame is complete: nothing is left to do
//! to the interface     [ header | packet ]   its checksum is computed, and it is segmented, as the header requests
//! ```
//! AF_XDP carries finished frames only, so that packets which rely on offloads are finished here, by the switch's code.

use std::collections::BTreeMap;
use std::sync::atomic::Ordering::Relaxed;

use unetmap_abi::NS_MOREFRAG;
use unetmap_core::Ring;
use unetmap_mem::Counter;
use unetmap_offload::{self as offload, MAX_PACKET};
use unetmap_switch::policy::DropReason;

use crate::tuning::mediator::BATCH;

/// Packets that were lost because of their header or their length, by reason. A switch counts the same by the same
/// names.
#[derive(Clone)]
pub(crate) struct LostPackets([Counter; LOST_COUNTERS]);

/// In the order of the counters.
const REASONS: [DropReason; 3] = [DropReason::Runt, DropReason::InvalidSlot, DropReason::TooManyFragments];
/// Number of the counters.
pub(crate) const LOST_COUNTERS: usize = REASONS.len();

impl LostPackets {
    pub(crate) fn of(counters: [Counter; LOST_COUNTERS]) -> LostPackets {
        LostPackets(counters)
    }

    fn count(&self, why: DropReason) {
        let counter = REASONS.iter().position(|reason| *reason == why).and_then(|i| self.0.get(i));
        if let Some(counter) = counter {
            counter.fetch_add(1, Relaxed);
        }
    }

    fn sum(&self) -> u64 {
        self.0.iter().map(|count| count.load(Relaxed)).sum()
    }

    /// Returns the numbers by the names of the reasons.
    pub(crate) fn by_reason(&self) -> BTreeMap<&'static str, u64> {
        REASONS.iter().map(|reason| reason.name()).zip(self.0.iter().map(|count| count.load(Relaxed))).collect()
    }
}

/// Converts packets between a program and an interface.
pub(super) struct HeaderConverter {
    /// Bytes of the program's header: 10 or 12.
    header: usize,
    /// A private copy of a packet, with its header.
    packet: Vec<u8>,
    lost: LostPackets,
}

/// A packet that begins at a slot of a ring.
enum Gathered {
    /// It is complete, and has this many slots.
    Complete(u32),
    /// It is complete, and longer than a packet may be.
    TooLong(u32),
    /// Its last slots have not arrived.
    Incomplete,
}

impl HeaderConverter {
    /// `None` if packets have no header.
    pub(super) fn new(header: u8, lost: LostPackets) -> Option<HeaderConverter> {
        let header = usize::from(header);
        (header > 0).then(|| HeaderConverter { header, packet: Vec::with_capacity(header + MAX_PACKET), lost })
    }

    /// Moves packets that the program sent to the interface. Returns the number of slots of the program, and the bytes
    /// of their packets, with headers. Adds packets that cannot be sent to `bad`.
    pub(super) fn move_out(&mut self, from: Option<&Ring>, to: Option<&Ring>, bad: &mut u32) -> (u32, u64) {
        let (header, lost, before) = (self.header, self.lost.clone(), self.lost.sum());
        let moved = self.move_packets(from, to, 0, |packet, to, at| {
            let needed = offload::slots_needed(packet, packet.len(), capacity(to)) as u32;
            if !fits(to, at, needed) {
                return None;
            }
            let mut filled = 0;
            let finished = offload::finish(packet, header, |pieces| {
                let slots = put(to, at + filled, &pieces);
                filled += slots;
                slots > 0
            });
            match finished {
                Ok(0) => {}
                Ok(_) => lost.count(DropReason::TooManyFragments),
                Err(_) => lost.count(DropReason::InvalidSlot),
            }
            Some(filled)
        });
        *bad += self.lost.sum().wrapping_sub(before) as u32;
        moved
    }

    /// Moves packets that the interface received to the program. Returns the number of slots of the interface, and the
    /// bytes of their packets, with headers.
    pub(super) fn move_back(&mut self, from: Option<&Ring>, to: Option<&Ring>) -> (u32, u64) {
        let lost = self.lost.clone();
        self.move_packets(from, to, self.header, |packet, to, at| {
            let needed = packet.len().div_ceil(capacity(to)) as u32;
            fits(to, at, needed).then(|| match put(to, at, &[&*packet]) {
                0 => {
                    lost.count(DropReason::TooManyFragments);
                    0
                }
                slots => slots,
            })
        })
    }

    /// Copies one packet after the other behind `zeros` zero bytes, and calls `deliver` with the copy, the ring, and
    /// the number of slots that are filled already. It returns how many more it filled; `None`: there is no room yet.
    fn move_packets(
        &mut self,
        from: Option<&Ring>,
        to: Option<&Ring>,
        zeros: usize,
        mut deliver: impl FnMut(&mut [u8], &Ring, u32) -> Option<u32>,
    ) -> (u32, u64) {
        let (Some(from), Some(to)) = (from, to) else { return (0, 0) };
        let space = from.space();
        let (mut taken, mut filled, mut bytes, mut is_full) = (0, 0, 0, false);
        while taken < space.min(BATCH) {
            match self.gather(from, taken, space - taken, zeros) {
                Gathered::Complete(slots) => {
                    // Shorter than its header.
                    if self.packet.len() < self.header {
                        self.lost.count(DropReason::Runt);
                    } else {
                        let Some(more) = deliver(&mut self.packet, to, filled) else {
                            is_full = true;
                            break;
                        };
                        filled += more;
                        bytes += self.packet.len() as u64;
                    }
                    taken += slots;
                }
                Gathered::TooLong(slots) => {
                    self.lost.count(DropReason::TooManyFragments);
                    taken += slots;
                }
                // A ring that is full of it can never complete it.
                Gathered::Incomplete if taken == 0 && space + 1 >= from.num_slots() => {
                    self.lost.count(DropReason::TooManyFragments);
                    taken = space;
                }
                Gathered::Incomplete => break,
            }
        }
        to.advance(filled);
        if is_full {
            await_more_room(to);
        }
        from.advance(taken);
        (taken, bytes)
    }

    /// Copies the packet that begins `at` slots behind the head, of `space` slots that follow.
    fn gather(&mut self, from: &Ring, at: u32, space: u32, zeros: usize) -> Gathered {
        self.packet.clear();
        self.packet.resize(zeros, 0);
        let (mut slots, mut too_long) = (0, false);
        for slot in from.run(from.add(from.head(), at), space) {
            let (len, flags) = slot.len_flags();
            let (frame, begin) = (slot.frame(), self.packet.len());
            // A program may have written any length.
            let len = usize::from(len).min(frame.capacity());
            slots += 1;
            too_long |= begin + len > self.header + MAX_PACKET;
            if !too_long {
                self.packet.resize(begin + len, 0);
                frame.read(0, &mut self.packet[begin..]);
            }
            if flags & NS_MOREFRAG == 0 {
                return if too_long { Gathered::TooLong(slots) } else { Gathered::Complete(slots) };
            }
        }
        Gathered::Incomplete
    }
}

/// Has the next sync look for more free slots than there are now, which do not suffice for a packet.
pub(super) fn await_more_room(to: &Ring) {
    to.set_cur(to.tail());
}

/// Bytes of a slot.
pub(super) fn capacity(ring: &Ring) -> usize {
    ring.slot_size().min(u32::from(u16::MAX)) as usize
}

/// Whether `needed` slots are free behind the first `filled`, or the ring could not hold them if it were empty: then
/// the packet is lost, instead of those behind it being held up.
pub(super) fn fits(to: &Ring, filled: u32, needed: u32) -> bool {
    filled + needed <= to.space() || needed >= to.num_slots()
}

/// Writes the pieces of a frame one behind the other into slots, from `at` slots behind the head on. Returns the number
/// of slots; 0 if they are not free.
pub(super) fn put(to: &Ring, at: u32, pieces: &[&[u8]]) -> u32 {
    let (bytes, capacity) = (pieces.iter().map(|piece| piece.len()).sum::<usize>(), capacity(to));
    let slots = bytes.div_ceil(capacity) as u32;
    if at + slots > to.space() {
        return 0;
    }
    let mut pieces = pieces.iter();
    let mut rest: &[u8] = &[];
    for (slot, target) in (1..=slots).zip(to.run(to.add(to.head(), at), slots)) {
        let mut filled = 0;
        while filled < capacity {
            if rest.is_empty() {
                match pieces.next() {
                    Some(piece) => rest = piece,
                    None => break,
                }
            }
            let (now, later) = rest.split_at(rest.len().min(capacity - filled));
            target.frame().write(filled, now);
            (filled, rest) = (filled + now.len(), later);
        }
        target.set_len_flags(filled as u16, if slot < slots { NS_MOREFRAG } else { 0 });
    }
    slots
}
