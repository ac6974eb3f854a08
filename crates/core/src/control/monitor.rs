// SPDX-License-Identifier: BSD-2-Clause
//! Requests about the monitors of a port: a program requests them one after the other.
//!
//! ```text
//! request   the session, its key, the monitor returned last (0 at first)
//! reply     the next monitor: a head, then its mirrored rings; empty after the last.
//!           Descriptors: the mirror's memory, its ring states, its channels, then each ring's doorbell
//! ```
//! See `unetmap_mem::MirrorSet` for what a program does with them. Ports that the daemon runs itself read theirs from a
//! [`MonitorList`].

use std::os::fd::{AsFd, OwnedFd};
use std::sync::{Arc, Mutex, PoisonError};

use unetmap_mem::{ChannelPage, EndpointPage, MappedRange, MirrorSet, MirrorTx, Region, RingShape, Slots};
use unetmap_sys::{Doorbell, Mapping};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use crate::control::binding::{BoundPool, geometry};
use crate::control::wire::{ControlRequest, Kind};
use crate::error::errno;

/// Asks for the next monitor of a session of the caller's own.
#[derive(Clone, Copy, PartialEq, Eq, Debug, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct NextMonitorRequest {
    /// The session.
    pub session: u64,
    /// The session's key, known only to processes that received its binding.
    pub key: u64,
    /// The monitor that was returned last; 0 asks for the first.
    pub after: u64,
}

impl ControlRequest for NextMonitorRequest {
    const KIND: Kind = Kind(8);

    fn encode(&self) -> Vec<u8> {
        self.as_bytes().to_vec()
    }

    fn decode(payload: &[u8]) -> Result<NextMonitorRequest, i32> {
        NextMonitorRequest::read_from_bytes(payload).map_err(|_| errno::EPROTO)
    }
}

/// The fixed part of the reply.
#[derive(Clone, Copy, Debug, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct MonitorHead {
    /// Identifies the monitor; never 0.
    pub monitor: u64,
    /// The mirror's interfaces (unused), rings, buffers.
    pub pools: [BoundPool; 3],
    /// Ring states, and channels.
    pub states: u32,
    /// Bytes of the channels' page.
    pub channels_bytes: u32,
}

/// A monitored ring and the mirror ring that its packets go to.
#[derive(Clone, Copy, Debug, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct MirroredRing {
    /// The mirror ring, bytes from the start of the mirror's memory.
    pub offset: u64,
    /// Its slots.
    pub slots: u32,
    /// Index of its channel and of its state.
    pub channel: u32,
    /// The monitored ring: its number within its direction.
    pub id: u16,
    /// The monitored ring: 0 transmit, 1 receive.
    pub dir: u16,
    /// 1: the mirror is in the monitored ring's region, and buffers are exchanged; 0: packets are copied.
    pub zero_copy: u32,
}

/// The reply: one monitor of a session's rings.
#[derive(Clone, Debug)]
pub struct MonitorReply {
    /// The fixed part.
    pub head: MonitorHead,
    /// The rings that it monitors.
    pub rings: Vec<MirroredRing>,
}

impl MonitorReply {
    /// Descriptors before those of the rings: the mirror's memory, its ring states, its channels.
    pub const FIXED_FDS: usize = 3;

    /// Returns the payload.
    pub fn encode(&self) -> Vec<u8> {
        let mut out = self.head.as_bytes().to_vec();
        out.extend_from_slice(self.rings.as_bytes());
        out
    }

    /// Parses a payload; `None` if the sizes do not fit.
    pub fn decode(bytes: &[u8]) -> Option<MonitorReply> {
        let (head, rest) = MonitorHead::read_from_prefix(bytes).ok()?;
        Some(MonitorReply { head, rings: <[MirroredRing]>::ref_from_bytes(rest).ok()?.to_vec() })
    }
}

/// The daemon's description of one monitor, with its descriptors.
pub type Monitor = (MonitorReply, Vec<OwnedFd>);

/// The monitors of a port that the daemon runs itself.
#[derive(Default)]
pub struct MonitorList(Mutex<Vec<Monitor>>);

impl MonitorList {
    /// Sets all monitors. The caller then changes the monitor generations of the monitored rings.
    pub fn set(&self, monitors: Vec<Monitor>) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = monitors;
    }

    /// Returns a copy, with duplicates of the descriptors.
    pub(crate) fn copy(&self) -> Vec<Monitor> {
        let monitors = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let duplicate = |(reply, fds): &Monitor| {
            let fds = fds.iter().map(OwnedFd::try_clone).collect::<std::io::Result<_>>().ok()?;
            Some((reply.clone(), fds))
        };
        monitors.iter().filter_map(duplicate).collect()
    }
}

/// Maps the mirror rings of all these monitors, for a port in the region `own`.
pub fn map_monitors(monitors: Vec<Monitor>, own: Option<&Arc<Region>>) -> Vec<(MirroredRing, MirrorTx)> {
    monitors.into_iter().filter_map(|(reply, fds)| map(&reply, fds, own)).flatten().collect()
}

/// Maps the mirror rings of one monitor; `None` if the reply is inconsistent.
fn map(reply: &MonitorReply, fds: Vec<OwnedFd>, own: Option<&Arc<Region>>) -> Option<Vec<(MirroredRing, MirrorTx)>> {
    let head = &reply.head;
    if fds.len() != MonitorReply::FIXED_FDS + reply.rings.len() {
        return None;
    }
    let mut fds = fds.into_iter();
    let (memory, layout) = (fds.next()?, geometry(&head.pools));
    let region = match reply.rings.first()?.zero_copy {
        0 => Arc::new(Region::attach(memory.as_fd(), layout).ok()?),
        _ => own.filter(|own| *own.geometry() == layout)?.clone(),
    };
    let mut page = |bytes: usize| Some(MappedRange::whole(Arc::new(Mapping::new(fds.next()?.as_fd(), bytes).ok()?)));
    let states = EndpointPage::new(page(EndpointPage::bytes(head.states as usize))?);
    let channels = ChannelPage::new(page(head.channels_bytes as usize)?);
    let rings = reply.rings.iter().zip(fds).map(|(ring, doorbell)| {
        let shape = RingShape { offset: ring.offset, slots: Slots::new(ring.slots)?, id: ring.id, dir: 0 };
        let words = (&channels, &states, ring.channel as usize);
        let monitor = (head.monitor, ring.zero_copy != 0);
        Some((*ring, MirrorTx::new(monitor, (&region, shape), words, Doorbell::from_fd(doorbell).ok()?)?))
    });
    rings.collect()
}

/// Moves the mirror rings of ring `id` of the direction `dir` (0 transmit, 1 receive) from `all` to its set.
pub fn assign(all: &mut Vec<(MirroredRing, MirrorTx)>, (dir, id): (u16, u16), to: &MirrorSet, status: u32) {
    let own = all.extract_if(.., |(ring, _)| (ring.dir, ring.id) == (dir, id));
    let own = own.map(|(_, mirror)| mirror).collect();
    to.replace(own, status);
}
