// SPDX-License-Identifier: BSD-2-Clause
//! The binding in the reply to REGISTER: where the rings are, and which back end moves their slots.
//!
//! The client trusts these numbers. It does not trust the same numbers in the region, which other processes can write.
//! Descriptors come with the binding: the region, the endpoint state page, the channel page (for an interface the
//! tx-frames page), then two for each ring: the doorbell that wakes this side, and the peer's doorbell or the
//! queue's socket; see also [`DOORBELL_LATER`].

use unetmap_mem::{Geometry, PoolShape};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// The back end that moves a ring's slots.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u32)]
pub enum BackendKind {
    /// No data path.
    Null = 0,
    /// A channel to or from a peer process.
    Pipe = 1,
    /// The AF_XDP socket of an interface's queue.
    Nic = 2,
    /// A channel to or from a switch in the daemon.
    Vale = 3,
    /// Channels from the syncs of the monitored rings; a transmit ring is read-only.
    Monitor = 4,
    /// A transmit ring that discards its slots, at a set rate.
    Sink = 5,
    /// A packet socket of an interface.
    Packet = 6,
}

impl BackendKind {
    /// Returns the back end with that number.
    pub fn from_raw(raw: u32) -> Option<BackendKind> {
        use BackendKind::{Monitor, Nic, Null, Packet, Pipe, Sink, Vale};
        [Null, Pipe, Nic, Vale, Monitor, Sink, Packet].into_iter().find(|kind| *kind as u32 == raw)
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
    /// Bytes of each.
    pub size: u32,
}

/// The fixed part of a binding.
#[derive(Clone, Copy, Debug, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct BindingHead {
    /// Interfaces, rings, buffers.
    pub pools: [BoundPool; 3],
    /// The session's `netmap_if`, bytes from the start of the region.
    pub if_offset: u64,
    /// The session's number in `unetmap ls`.
    pub session: u64,
    /// Proves to the daemon that a process received this binding.
    pub key: u64,
    /// Of a monitor: interfaces, rings, buffers of the mirror that its packets come from (see `monitor`); else 0.
    pub mirror_pools: [BoundPool; 3],
    /// How many [`BoundRing`] follow.
    pub rings: u32,
    /// Ring states in the endpoint state page.
    pub states: u32,
    /// Bytes of the channel page or tx-frames page; 0: there is none.
    pub page_bytes: u32,
    /// [`NO_TIMESTAMP`], [`NO_WAKEUPS`].
    pub flags: u32,
    /// Where in their files the endpoint state page and the channel page begin, bytes: 0, or in the file of the region.
    pub page_offsets: [u64; 2],
}

/// In [`BindingHead::flags`]: receive rings get a timestamp only if the program requests it (`NR_TIMESTAMP`).
pub const NO_TIMESTAMP: u32 = 1;

/// In [`BindingHead::flags`]: the peer is outside of this virtual machine and cannot notify a doorbell here, nor be
/// notified: this side looks at its rings by a timer.
pub const NO_WAKEUPS: u32 = 2;

/// One bound ring.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct BoundRing {
    /// The ring, bytes from the start of the region.
    pub offset: u64,
    /// On a receive ring with a channel: the producer's ring. On a monitor's: the mirror ring of sent packets, or 0.
    pub peer_offset: u64,
    /// On a receive ring of a monitor: the mirror ring of received packets, or 0.
    pub second_offset: u64,
    /// Slots, of both rings.
    pub slots: u32,
    /// A [`BackendKind`].
    pub backend: u32,
    /// Index of the ring's state in the endpoint state page.
    pub state: u32,
    /// Index of its channel; on a transmit ring of an interface its first word in the transmit frames page; on a
    /// receive ring of a packet socket the bytes of a slot of the socket's ring.
    pub channel: u32,
    /// On a receive ring: the buffer of slots that are delivered empty. On a transmit ring: bytes of the longest frame
    /// that the port sends, without a virtio-net header; 0: as many as slots have.
    pub placeholder_or_longest: u32,
    /// Number within its direction.
    pub id: u16,
    /// 0 transmit, 1 receive.
    pub dir: u16,
    /// [`FRAGS`], [`ZERO_COPY`], [`FORWARD_MARKED`], [`FORWARD_ALL`], [`DOORBELL_LATER`].
    pub features: u32,
    /// On a receive ring of a monitor: index of the second channel. On a ring of a packet socket: bytes of the
    /// virtio-net header before each packet.
    pub second_channel: u32,
    /// Bytes that may stay free before packets: on an interface, the headroom of its socket.
    pub headroom: u32,
    /// The largest offset, bytes.
    pub max_offset: u32,
    /// The bits of a slot's `ptr` that hold the packet's offset in its buffer; 0: packets begin at the start.
    pub offset_mask: u64,
    /// On a transmit ring of a sink: nanoseconds that each slot takes.
    pub slot_ns: u64,
}

/// In [`BoundRing::features`]: a packet may have several buffers.
pub const FRAGS: u32 = 1;
/// In [`BoundRing::features`]: a monitor's ring receives packets by exchange of buffers.
pub const ZERO_COPY: u32 = 2;
/// In [`BoundRing::features`]: slots released with `NS_FORWARD` are forwarded if the ring has `NR_FORWARD`.
pub const FORWARD_MARKED: u32 = 4;
/// In [`BoundRing::features`]: all slots released on a receive ring are forwarded.
pub const FORWARD_ALL: u32 = 8;
/// In [`BoundRing::features`]: the other end of the pipe was never open, and its doorbell does not exist: another
/// descriptor stands in its place. A client that is to notify it asks for it
/// ([`PeerDoorbellsRequest`](super::PeerDoorbellsRequest)).
pub const DOORBELL_LATER: u32 = 16;

/// Bytes of the header at the end of a guest's device (see `port::device`).
pub const DEVICE_HEADER_BYTES: u64 = 16 << 10;

/// Returns the layout of a region with these pools.
pub(crate) fn geometry(pools: &[BoundPool; 3]) -> Geometry {
    let [ifs, rings, bufs] = pools.map(|p| PoolShape { offset: p.offset, count: p.count, size: p.size });
    Geometry { ifs, rings, bufs }
}

/// A whole binding.
#[derive(Clone, Debug, Default)]
pub struct Binding {
    /// The fixed part; `rings` is set by [`Binding::encode`].
    pub head: BindingHead,
    /// The rings, transmit first.
    pub rings: Vec<BoundRing>,
}

/// File descriptors before those of the rings: region, endpoint state page, channel page or tx-frames page.
pub const FIXED_FDS: usize = 3;

impl Binding {
    /// Returns the encoding.
    pub fn encode(&self) -> Vec<u8> {
        let head = BindingHead { rings: self.rings.len() as u32, ..self.head };
        let mut out = head.as_bytes().to_vec();
        out.extend_from_slice(self.rings.as_bytes());
        out
    }

    /// Parses an encoding; `None` if the sizes do not fit.
    pub fn decode(bytes: &[u8]) -> Option<Binding> {
        let (head, rest) = BindingHead::read_from_prefix(bytes).ok()?;
        let rings = <[BoundRing]>::ref_from_bytes(rest).ok()?;
        (rings.len() == head.rings as usize).then(|| Binding { head, rings: rings.to_vec() })
    }

    /// Returns the number of file descriptors that come with it.
    pub fn fds(&self) -> usize {
        FIXED_FDS + 2 * self.rings.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_binding_survives_encoding_and_decoding() {
        let bound = Binding {
            head: BindingHead { session: 9, ..Default::default() },
            rings: vec![BoundRing { slots: 7, ..Default::default() }; 3],
        };
        let back = Binding::decode(&bound.encode()).unwrap();
        assert_eq!((back.head.session, back.head.rings, back.rings.len(), back.rings[2].slots), (9, 3, 3, 7));
        assert!(Binding::decode(&bound.encode()[1..]).is_none());
        assert_eq!(bound.fds(), 9);
    }
}
