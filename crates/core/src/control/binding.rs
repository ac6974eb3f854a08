//! What a REGISTER bound, as the daemon tells the program's library: where things are, and by which back end they move.
//!
//! The program's library believes these numbers and none of those in the region, which others can write. With the
//! answer come file descriptors: the region, the end page, a third page (the lines; of an interface what was sent), then
//! two for each ring: its bell, rung to wake this side, and the other side's bell or the queue's socket.

use unetmap_mem::{Geometry, PoolShape};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// How a ring's slots move.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u32)]
pub enum Path {
    /// Nowhere.
    Null = 0,
    /// Along a line, to or from a peer.
    Pipe = 1,
    /// Through the AF_XDP socket of an interface's queue.
    Nic = 2,
    /// Along a line, to or from a switch in the daemon.
    Vale = 3,
    /// Along lines, from the syncs of another port's rings; nowhere from a transmit ring.
    Monitor = 4,
}

impl Path {
    /// The back end with that number.
    pub fn from_raw(raw: u32) -> Option<Path> {
        [Path::Null, Path::Pipe, Path::Nic, Path::Vale, Path::Monitor].into_iter().find(|p| *p as u32 == raw)
    }
}

/// Offset, count and object size of a pool.
#[derive(Clone, Copy, Debug, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct BoundPool {
    /// Bytes from the start of the region.
    pub offset: u64,
    /// Objects.
    pub count: u32,
    /// Bytes of one.
    pub size: u32,
}

/// The fixed part.
#[derive(Clone, Copy, Debug, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct BoundHead {
    /// Interfaces, rings, buffers.
    pub pools: [BoundPool; 3],
    /// Where the session's `netmap_if` is, bytes from the start of the region.
    pub if_offset: u64,
    /// The number that names the session in `unetmap ls`.
    pub session: u64,
    /// By which a process shows the daemon that the session is its own.
    pub key: u64,
    /// Of a monitor: interfaces, rings, buffers of the shelf that its copies come from (see `watch`); else 0.
    pub shelf: [BoundPool; 3],
    /// How many [`BoundRing`] follow.
    pub rings: u32,
    /// Ring states in the end page.
    pub states: u32,
    /// Bytes of the third page; 0: nothing is in it.
    pub page_bytes: u32,
    /// [`NO_TIMESTAMP`].
    pub flags: u32,
}

/// In [`BoundHead::flags`]: receive rings get the time only where the program asks for it (`NR_TIMESTAMP`).
pub const NO_TIMESTAMP: u32 = 1;

/// One bound ring.
#[derive(Clone, Copy, Debug, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct BoundRing {
    /// The ring, bytes from the start of the region.
    pub offset: u64,
    /// On a receive ring with a line: the producer's ring. On one of a monitor: the shelf ring of what is sent, or 0.
    pub peer_offset: u64,
    /// On a receive ring of a monitor: the shelf ring of what is received, or 0.
    pub second_offset: u64,
    /// Slots, of both rings.
    pub slots: u32,
    /// A [`Path`].
    pub path: u32,
    /// Index of the ring's state in the end page.
    pub state: u32,
    /// Index of its line; on a transmit ring of an interface its first word in the third page.
    pub line: u32,
    /// On a receive ring: the buffer for slots that are delivered empty.
    pub spare: u32,
    /// Number within its direction.
    pub id: u16,
    /// 0 transmit, 1 receive.
    pub dir: u16,
    /// [`FRAGS`], [`TRADES`], [`FORWARDS`], [`FORWARDS_ALL`].
    pub features: u32,
    /// On a receive ring of a monitor: index of the second line.
    pub second_line: u32,
    /// Bytes that may stay free before packets: on an interface, those that its socket leaves.
    pub headroom: u32,
    /// The most bytes of offset that count.
    pub max_offset: u32,
    /// The bits of a slot's `ptr` that say where in its buffer the packet begins; 0: at the start.
    pub offset_mask: u64,
}

/// In [`BoundRing::features`]: packets may be spread over several buffers.
pub const FRAGS: u32 = 1;
/// In [`BoundRing::features`]: a monitor's ring gets its packets by exchange of buffers.
pub const TRADES: u32 = 2;
/// In [`BoundRing::features`]: what a receive ring gives back with `NS_FORWARD` goes on if the ring says `NR_FORWARD`.
pub const FORWARDS: u32 = 4;
/// In [`BoundRing::features`]: whatever a receive ring gives back goes on.
pub const FORWARDS_ALL: u32 = 8;

/// The layout that pools say.
pub(crate) fn geometry(pools: &[BoundPool; 3]) -> Geometry {
    let [ifs, rings, bufs] = pools.map(|p| PoolShape { offset: p.offset, count: p.count, size: p.size });
    Geometry { ifs, rings, bufs }
}

/// The whole answer.
#[derive(Clone, Debug, Default)]
pub struct Bound {
    /// The fixed part; `rings` is set by [`Bound::encode`].
    pub head: BoundHead,
    /// The rings, transmit first.
    pub rings: Vec<BoundRing>,
}

/// File descriptors before those of the rings: region, end page, third page.
pub const FIXED_FDS: usize = 3;

impl Bound {
    /// The bytes that cross the socket.
    pub fn encode(&self) -> Vec<u8> {
        let head = BoundHead { rings: self.rings.len() as u32, ..self.head };
        let mut out = head.as_bytes().to_vec();
        out.extend_from_slice(self.rings.as_bytes());
        out
    }

    /// Takes the bytes apart; `None` when the sizes do not fit.
    pub fn decode(bytes: &[u8]) -> Option<Bound> {
        let (head, rest) = BoundHead::read_from_prefix(bytes).ok()?;
        let rings = <[BoundRing]>::ref_from_bytes(rest).ok()?;
        (rings.len() == head.rings as usize).then(|| Bound { head, rings: rings.to_vec() })
    }

    /// How many file descriptors come with it.
    pub fn fds(&self) -> usize {
        FIXED_FDS + 2 * self.rings.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_bound_comes_back() {
        let bound = Bound {
            head: BoundHead { session: 9, ..Default::default() },
            rings: vec![BoundRing { slots: 7, ..Default::default() }; 3],
        };
        let back = Bound::decode(&bound.encode()).unwrap();
        assert_eq!((back.head.session, back.head.rings, back.rings.len(), back.rings[2].slots), (9, 3, 3, 7));
        assert!(Bound::decode(&bound.encode()[1..]).is_none());
        assert_eq!(bound.fds(), 9);
    }
}
