// SPDX-License-Identifier: BSD-2-Clause
//! The sides of a ring that a back end implements, and the parts that it constructs them from.

use std::io;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::Arc;

use unetmap_mem::{ChannelPage, ChannelRef, EndpointPage, Geometry, MappedRange, Offsets, Pos, Region, RingView, Span};
use unetmap_sys::Doorbell;
use unetmap_sys::xsk::SocketRings;

use super::peer_doorbell::{LaterDoorbells, PeerDoorbell};
use super::times::Times;
use crate::control::binding::{BoundRing, DOORBELL_LATER};

/// A position that the peer wrote and that is not valid. The sync ignores and counts it.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct InvalidPeerIndex;

/// A ring of the next daemon's port, whose memory has taken the place of that of before.
pub(crate) struct NextRing<'a> {
    pub(crate) bound: &'a BoundRing,
    pub(crate) doorbell: OwnedFd,
    /// The peer's doorbell, or what the back end has in its place.
    pub(crate) other: OwnedFd,
}

/// Wakes a program that is about to sleep.
pub(crate) trait WakeupSource {
    /// Requests a wake-up. The caller checks the ring once more before it sleeps. Returns whether the request is a
    /// store that a peer reads: then `fence_before_sleep`, once for all rings, must come before that check.
    fn request_wakeup(&self) -> bool;

    /// Becomes readable when the program is woken.
    fn doorbell(&self) -> &Doorbell;

    /// Yields this CPU to the peer if the peer needs it, until the peer's position is not `known` any more or for a few
    /// milliseconds. Called before [`WakeupSource::request_wakeup`]. Returns whether it yielded.
    fn yield_to_peer(&self, known: Pos) -> bool {
        let _ = known;
        false
    }

    /// Returns the CPU that the peer published last, unless it sleeps and may wake up on any, or publishes none.
    fn peer_cpu(&self) -> Option<u32> {
        None
    }

    /// Another descriptor that is readable while packets are available.
    fn socket(&self) -> Option<BorrowedFd<'_>> {
        None
    }
}

/// The transmit side of one ring.
pub(crate) trait Tx: Send + Sync {
    /// Sends the slots of `span` and wakes a receiver that waits for them. Returns the number of slots that are not
    /// sent because they are invalid.
    fn send(&self, span: Span) -> u32;

    /// Most bytes of a packet in one slot, if these are fewer than those of a buffer.
    fn slot_size(&self) -> u32 {
        u32::MAX
    }

    /// Whether the last sync could not send everything; the next sync tries again.
    fn has_unsent(&self) -> bool {
        false
    }

    /// Returns the end of the slots of `window` that can be sent now; the next sync sends the others.
    fn sendable(&self, window: Span) -> Pos {
        window.to
    }

    /// Returns the addresses and lengths of the data in the program's memory that slots of `window` refer to.
    fn indirect_data(&self, window: Span) -> Vec<(u64, u16)> {
        let _ = window;
        Vec::new()
    }

    /// Returns the end of the completed slots: at least `known`, the last result, and at most `sent`.
    fn completed(&self, known: Pos, sent: Pos) -> Result<Pos, InvalidPeerIndex>;

    /// Returns the peer's position if it is not `known`. Takes no lock and does not validate.
    fn peer_moved(&self, known: Pos) -> Option<u32>;

    /// Wakes the program when more slots are completed; `None` if that never happens.
    fn wakeup(&self) -> Option<&dyn WakeupSource>;

    /// The daemon has ended: gives up what would keep the next one from serving the port.
    fn give_up(&self) -> io::Result<()> {
        Ok(())
    }

    /// Of a pipe: returns how many of the slots before `sent`, which the last sync sent, came after the receiver had
    /// left for the next daemon, and had counted what was lost until then.
    fn missed_by_receiver(&self, sent: Pos) -> u32 {
        let _ = sent;
        0
    }

    /// Goes on with the ring of the next daemon's port.
    fn go_on(&self, next: NextRing<'_>) -> io::Result<()>;

    /// The channel, if its words and the ring's pointers alone say whether a sync has something to do.
    fn channel(&self) -> Option<ChannelRef> {
        None
    }
}

/// The result of [`Rx::deliver`].
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Delivered {
    /// One past the last slot delivered.
    pub(crate) to: Pos,
    /// Slots among them that were delivered empty because they were invalid.
    pub(crate) bad: u32,
    /// Bytes of packets in the slots that were delivered now, where the back end counts them.
    pub(crate) bytes: u64,
}

/// The receive side of one ring.
pub(crate) trait Rx: Send + Sync {
    /// Returns the slots of `span` to the peer and wakes a sender that waits for them. Returns the number of buffers
    /// that do not exist.
    fn release(&self, span: Span) -> u32;

    /// Delivers the packets that have arrived: the program holds `[held, received)`, the slots from `received` to
    /// before `held` are free.
    fn deliver(&self, held: Pos, received: Pos) -> Result<Delivered, InvalidPeerIndex>;

    /// Whether the kernel delivers the packets, and polling slows it down: then the receiver of a stream sleeps between
    /// two polls instead of spinning.
    fn sleeps_between_polls(&self) -> bool {
        false
    }

    /// Whether the peer ran on the caller's CPU last: then it sends nothing while the caller runs there.
    fn peer_on_this_cpu(&self) -> bool {
        false
    }

    /// Returns the peer's position if it is not `received`. Takes no lock and does not validate.
    fn peer_moved(&self, received: Pos) -> Option<u32>;

    /// Whether the program may go on receiving although the port has ended, because packets are left. `unread`: it has
    /// slots beyond its wake-up point.
    fn has_packets_left(&self, unread: bool) -> bool {
        let _ = unread;
        false
    }

    /// Records the time of each packet from now on, if packets arrive with a time; else returns `false`.
    fn record_times(&self, times: &Arc<Times>) -> bool {
        let _ = times;
        false
    }

    /// Wakes the program when packets arrive; `None` if that never happens.
    fn wakeup(&self) -> Option<&dyn WakeupSource>;

    /// Returns how many slots the peer has sent beyond those `received`, which are lost with the daemon.
    fn undelivered(&self, received: Pos) -> u32 {
        let _ = received;
        0
    }

    /// As [`Tx::give_up`].
    fn give_up(&self) -> io::Result<()> {
        Ok(())
    }

    /// As [`Tx::go_on`].
    fn go_on(&self, next: NextRing<'_>) -> io::Result<()>;

    /// As [`Tx::channel`].
    fn channel(&self) -> Option<ChannelRef> {
        None
    }
}

/// Everything that a back end needs to construct one side of a ring.
pub(crate) struct RingParts<'a> {
    /// The daemon's description of the ring.
    pub(crate) bound: &'a BoundRing,
    pub(crate) view: &'a RingView,
    pub(crate) region: &'a Arc<Region>,
    /// The states of the port's rings.
    pub(crate) states: &'a EndpointPage,
    /// The channel page or, of an interface, the tx-frames page.
    pub(crate) channels_or_tx_frames: &'a MappedRange,
    /// The layout of a monitor's mirror.
    pub(crate) mirror: Geometry,
    /// Whether pointers in slots are addresses of this process.
    pub(crate) has_own_pointers: bool,
    /// Whether nobody notifies the doorbell, see [`NO_WAKEUPS`](crate::control::binding::NO_WAKEUPS).
    pub(crate) no_wakeups: bool,
    /// Its number in the binding.
    pub(crate) number: usize,
    /// Where doorbells of the other end come from that do not exist yet.
    pub(crate) later_doorbells: Option<&'a Arc<LaterDoorbells>>,
    /// The descriptors of the ring: its doorbell; the peer's doorbell, or what the back end has in its place.
    pub(crate) fds: &'a [OwnedFd; 2],
    /// The rings of AF_XDP sockets that this process has mapped already.
    pub(crate) socket_rings: &'a [SocketRings],
}

impl RingParts<'_> {
    pub(super) fn is_tx(&self) -> bool {
        self.bound.dir == 0
    }

    pub(super) fn channels(&self) -> ChannelPage {
        ChannelPage::new(self.channels_or_tx_frames.clone())
    }

    pub(super) fn offsets(&self) -> Offsets {
        self.view.offsets()
    }

    /// The doorbell that wakes this side.
    pub(super) fn doorbell(&self) -> Option<Doorbell> {
        Doorbell::from_fd(self.fds[0].try_clone().ok()?).ok()
    }

    /// The doorbell that wakes the peer.
    pub(super) fn peer_doorbell(&self) -> Option<PeerDoorbell> {
        if self.bound.features & DOORBELL_LATER != 0 {
            return Some(PeerDoorbell::Later(Arc::clone(self.later_doorbells?), self.number));
        }
        Some(PeerDoorbell::Known(Doorbell::from_fd(self.second_fd()?).ok()?))
    }

    pub(super) fn second_fd(&self) -> Option<OwnedFd> {
        self.fds[1].try_clone().ok()
    }
}
