// SPDX-License-Identifier: BSD-2-Clause
//! Offloads that are disabled while a port is open, so that its frames are those on the wire: with their VLAN tags and
//! checksums, and not longer than the MTU. XDP programs and AF_XDP sockets see only a frame's bytes, not what the
//! kernel knows about it besides.
//!
//! ```text
//! interface      disabled                                       why
//! veth           the peer's transmit tags, checksums, segments  no hardware follows that would complete the frame
//! any other      its own removal of received tags               the driver removes them before the XDP program runs
//! generic mode   its own GRO                                    the stack merges segments before the XDP program runs
//! ```
//! The kernel disables LRO and hardware GRO when an XDP program is attached.
//! The settings are restored when the port closes, or by the undo process.

use std::io;
use std::sync::Arc;

use unetmap_sys::link::{self, OffloadKind, Offloads, veth};
use unetmap_sys::netns::Netns;

use super::undo::{Change, UndoLog, UndoOnDrop};

/// Disables the offloads that would hide parts of the frames of interface `index` in `netns`; `None` if none is
/// enabled.
pub(super) fn disable(netns: &Netns, index: u32, log: &Arc<UndoLog>) -> io::Result<Option<UndoOnDrop>> {
    let is_veth = |link: &link::Link| link.kind.as_deref() == Some("veth");
    let (target, index, kind) = netns.run(|| {
        if !link::by_index(index)?.is_some_and(|link| is_veth(&link)) {
            return Ok((None, index, OffloadKind::ReceivedTags));
        }
        let peer = veth::peer(index)?.ok_or(io::ErrorKind::NotFound)?;
        if peer.is_here() {
            return Ok((None, peer.index, OffloadKind::Transmit));
        }
        let found = Netns::find(|other| peer.is_in(other).unwrap_or(false));
        let found = found.ok_or_else(|| io::Error::other("the network namespace of its peer is not found"))?;
        Ok::<_, io::Error>((Some(found), peer.index, OffloadKind::Transmit))
    })??;
    disable_at(target.as_ref().unwrap_or(netns), index, kind, log)
}

/// Disables GRO at interface `index` in `netns`, whose XDP program is in generic mode; `None` if it is off. On failure
/// the port works as well, but some TCP segments are merged.
pub(super) fn disable_merging(netns: &Netns, (index, name): (u32, &str), log: &Arc<UndoLog>) -> Option<UndoOnDrop> {
    disable_at(netns, index, OffloadKind::Merging, log).unwrap_or_else(|e| {
        tracing::warn!(name, "received TCP segments may be merged: {e} (ethtool -K {name} gro off)");
        None
    })
}

fn disable_at(target: &Netns, index: u32, kind: OffloadKind, log: &Arc<UndoLog>) -> io::Result<Option<UndoOnDrop>> {
    log.wait_for_earlier()?;
    target.run(|| {
        let Some(link) = link::by_index(index)? else { return Ok(None) };
        let offloads = match link::changeable_offloads(&link.name, kind) {
            // A driver without offloads.
            Err(e) if e.kind() == io::ErrorKind::Unsupported => return Ok(None),
            offloads => offloads?,
        };
        if offloads == Offloads::default() {
            return Ok(None);
        }
        let disabled = UndoOnDrop::new(Change::Offloads { netns: target.id(), index, offloads }, log)?;
        link::set_offloads(&link.name, offloads, false)?;
        let left = link::still_active(&link.name, offloads)?;
        if !left.is_empty() {
            return Err(io::Error::other(format!("{} stays on although it was switched off", left.join(", "))));
        }
        tracing::debug!(name = link.name, "offloads disabled: {:#x}", offloads.0);
        Ok(Some(disabled))
    })?
}
