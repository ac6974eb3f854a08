//! Moves packets from the receive rings of one port to the transmit rings of another.

use unetmap::{Port, Ring};
use unetmap_abi::{NS_BUF_CHANGED, NS_MOREFRAG};

/// Each receive ring has one transmit ring, so that the order in a ring is kept.
fn pairs<'a>(from: &'a Port, to: &'a Port) -> impl Iterator<Item = (&'a Ring, &'a Ring)> {
    from.rx_rings().iter().zip(to.tx_rings().iter().cycle())
}

/// Slots of the longest packet.
const MAX_FRAGS: u32 = 64;

/// What was moved.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Moved {
    pub(crate) packets: u64,
    pub(crate) bytes: u64,
}

impl Moved {
    pub(crate) fn add(&mut self, other: Moved) {
        self.packets += other.packets;
        self.bytes += other.bytes;
    }
}

/// One direction of the bridge.
pub(crate) struct Way<'a> {
    pub(crate) from: &'a Port,
    pub(crate) to: &'a Port,
    /// Exchange buffers; else copy.
    pub(crate) swap: bool,
    /// Slots moved in one go.
    pub(crate) burst: u32,
    pub(crate) total: Moved,
}

impl Way<'_> {
    /// Moves what there is and what there is room for; the rest stays where it is. Returns whether anything moved.
    pub(crate) fn go(&mut self) -> Result<bool, String> {
        let mut moved = false;
        for (from, to) in pairs(self.from, self.to) {
            let room = from.space().min(to.space());
            let n = match whole_packets(from, room.min(self.burst)) {
                0 => whole_packets(from, room.min(MAX_FRAGS)), // one packet may be more than a burst
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

    /// True if packets have come that there is no room for.
    pub(crate) fn is_blocked(&self) -> bool {
        pairs(self.from, self.to).any(|(from, _)| !from.is_empty())
    }

    /// Lets a wait for room wait for more than there is: what there is was not enough.
    pub(crate) fn wait_for_more_room(&self) {
        for (_, to) in pairs(self.from, self.to).filter(|(from, _)| !from.is_empty()) {
            to.set_cur(to.tail());
        }
    }

    /// A packet of more slots than the other port's whole ring would wait for ever.
    fn check_stuck(&self, from: &Ring, to: &Ring) -> Result<(), String> {
        let room = to.space();
        if room < to.num_slots() - 1 || from.space() <= room {
            return Ok(());
        }
        Err(format!(
            "{}: a packet takes more than {room} slots, and the rings of {} have no more: open it with more slots",
            self.from.spec(),
            self.to.spec()
        ))
    }
}

/// The slots of whole packets among the first `n` of the ring.
fn whole_packets(ring: &Ring, n: u32) -> u32 {
    if n == ring.space() {
        // Back ends deliver whole packets only; a chain that is cut here is cut for good.
        return n;
    }
    let ends = ring.window().take(n as usize).zip(1..).filter(|(slot, _)| slot.flags() & NS_MOREFRAG == 0);
    ends.last().map_or(0, |(_, end)| end)
}

/// Moves `n` slots by exchanging buffers: the payload is not touched.
fn swap(from: &Ring, to: &Ring, n: u32) -> Moved {
    let mut moved = Counter::default();
    for (source, target) in from.window().zip(to.window()).take(n as usize) {
        target.swap_from(&source);
        let flags = target.flags() & NS_MOREFRAG;
        target.set_flags(flags | NS_BUF_CHANGED);
        moved.slot(source.len(), flags);
    }
    moved.of(n)
}

/// Moves `n` slots by copying.
fn copy(from: &Ring, to: &Ring, n: u32) -> Moved {
    let mut moved = Counter::default();
    for (source, target) in from.window().zip(to.window()).take(n as usize) {
        let (len, flags) = (source.len(), source.flags() & NS_MOREFRAG);
        target.frame().copy_from(&source.frame(), usize::from(len));
        target.set_len_flags(len, flags);
        moved.slot(len, flags);
    }
    moved.of(n)
}

/// Counts slots, and how many of them did not end a packet.
#[derive(Default)]
struct Counter {
    bytes: u64,
    unfinished: u64,
}

impl Counter {
    #[inline(always)]
    fn slot(&mut self, len: u16, flags: u16) {
        self.bytes += u64::from(len);
        self.unfinished += u64::from(flags != 0);
    }

    fn of(self, slots: u32) -> Moved {
        Moved { packets: u64::from(slots) - self.unfinished, bytes: self.bytes }
    }
}
