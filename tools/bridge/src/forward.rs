// SPDX-License-Identifier: BSD-2-Clause
//! Moves packets from the receive rings of one port to the transmit rings of another.

use unetmap::abi::{NS_BUF_CHANGED, NS_MOREFRAG};
use unetmap::{Port, Ring};

/// Returns the transmit ring for each receive ring. It is always the same one, so that packets of a ring stay in order.
fn ring_pairs<'a>(from: &'a Port, to: &'a Port) -> impl Iterator<Item = (&'a Ring, &'a Ring)> {
    from.rx_rings().iter().zip(to.tx_rings().iter().cycle())
}

/// Maximum number of slots of one packet.
const MAX_FRAGS: u32 = 64;

/// Counts of forwarded packets.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Counts {
    pub(crate) packets: u64,
    pub(crate) bytes: u64,
}

impl Counts {
    pub(crate) fn add(&mut self, other: Counts) {
        self.packets += other.packets;
        self.bytes += other.bytes;
    }
}

/// One direction of the bridge.
pub(crate) struct Direction<'a> {
    pub(crate) from: &'a Port,
    pub(crate) to: &'a Port,
    /// True to exchange buffers, false to copy.
    pub(crate) swap: bool,
    /// Maximum number of slots per batch.
    pub(crate) burst: u32,
    pub(crate) total: Counts,
}

impl Direction<'_> {
    /// Forwards the received packets for which the other port has room. The rest stays in the receive rings. Returns
    /// true if any packet was forwarded.
    pub(crate) fn forward(&mut self) -> Result<bool, String> {
        let mut moved = false;
        for (from, to) in ring_pairs(self.from, self.to) {
            let room = from.space().min(to.space());
            let n = match whole_packets(from, room.min(self.burst)) {
                0 => whole_packets(from, room.min(MAX_FRAGS)), // a packet may have more slots than a burst
                n => n,
            };
            if n == 0 {
                self.check_stuck(from, to)?;
                continue;
            }
            self.total.add(if self.swap { swap(from, to, n) } else { copy(from, to, n) });
            to.advance(n);
            from.advance(n);
            moved = true;
        }
        Ok(moved)
    }

    /// Returns true if received packets wait for room in the other port.
    pub(crate) fn is_blocked(&self) -> bool {
        ring_pairs(self.from, self.to).any(|(from, _)| !from.is_empty())
    }

    /// Makes the next wait for room end only if there are more free slots than now, which did not suffice.
    pub(crate) fn wait_for_more_room(&self) {
        for (_, to) in ring_pairs(self.from, self.to).filter(|(from, _)| !from.is_empty()) {
            to.set_cur(to.tail());
        }
    }

    /// Returns an error if a packet has more slots than the other port's whole ring, because it would wait forever.
    fn check_stuck(&self, from: &Ring, to: &Ring) -> Result<(), String> {
        let room = to.space();
        if room < to.num_slots() - 1 || from.space() <= room {
            return Ok(());
        }
        Err(format!(
            "{}: a packet has more than the {room} slots of a ring of {}; open that port with more slots (@conf:slots)",
            self.from.spec(),
            self.to.spec()
        ))
    }
}

/// Returns the number of slots among the first `n` of the ring that belong to complete packets.
fn whole_packets(ring: &Ring, n: u32) -> u32 {
    if n == ring.space() {
        // Back ends deliver complete packets only. If a packet is incomplete here, its rest will never arrive.
        return n;
    }
    let ends = ring.available().take(n as usize).zip(1..).filter(|(slot, _)| slot.flags() & NS_MOREFRAG == 0);
    ends.last().map_or(0, |(_, end)| end)
}

/// Forwards `n` slots by exchanging buffers, without access to the payload.
fn swap(from: &Ring, to: &Ring, n: u32) -> Counts {
    let mut counter = SlotCounter::default();
    for (source, target) in from.available().zip(to.available()).take(n as usize) {
        target.swap_from(&source);
        let flags = target.flags() & NS_MOREFRAG;
        target.set_flags(flags | NS_BUF_CHANGED);
        counter.add(source.len(), flags);
    }
    counter.total(n)
}

/// Forwards `n` slots by copying the payload.
fn copy(from: &Ring, to: &Ring, n: u32) -> Counts {
    let mut counter = SlotCounter::default();
    for (source, target) in from.available().zip(to.available()).take(n as usize) {
        let (len, flags) = (source.len(), source.flags() & NS_MOREFRAG);
        target.frame().copy_from(&source.frame(), usize::from(len));
        target.set_len_flags(len, flags);
        counter.add(len, flags);
    }
    counter.total(n)
}

/// Sums the bytes of slots, and counts slots that do not end a packet.
#[derive(Default)]
struct SlotCounter {
    bytes: u64,
    continued: u64,
}

impl SlotCounter {
    #[inline(always)]
    fn add(&mut self, len: u16, flags: u16) {
        self.bytes += u64::from(len);
        self.continued += u64::from(flags != 0);
    }

    fn total(self, slots: u32) -> Counts {
        Counts { packets: u64::from(slots) - self.continued, bytes: self.bytes }
    }
}
