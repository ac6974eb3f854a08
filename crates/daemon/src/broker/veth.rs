// SPDX-License-Identifier: BSD-2-Clause
//! Pairs of veth: for host rings, and for persistent ports.

use std::io;
use std::os::fd::AsFd as _;

use unetmap_core::errno::EEXIST;
use unetmap_sys::kernel;
use unetmap_sys::link::{self, OffloadKind, veth};
use unetmap_sys::netns::Netns;
use unetmap_sys::tcx::{Relay, RelayEnds};
use unetmap_sys::xdp::{Mode, Xdp};

use super::setup::inside;

/// The longest MTU with which a persistent port's frames all pass, on kernels whose sockets receive a frame in several
/// buffers (Linux 6.6); with others it is the kernel's, 1500.
const MOST_MTU: u32 = 9000;

/// The first word of the aliases of companions of hidden ends.
const COMPANION: &str = "unetmap-companion";

/// The far end's name, in a namespace of its own.
const FAR: &str = "host";

/// A veth pair whose far end represents the host's stack.
pub(super) struct HostVeth {
    /// Interface index of the near end.
    pub(super) near: u32,
    pub(super) far_netns: Netns,
    pub(super) far: u32,
    pub(super) xdp: Xdp,
}

/// Returns the near end's name for interface `nic`, which is in the same namespace.
pub(crate) fn near_name(nic: u32) -> String {
    format!("nmh{nic}")
}

/// Returns the far end's name of the companion of hidden end `nic`, in whose namespace both ends are.
fn far_name(nic: u32) -> String {
    format!("nmf{nic}")
}

/// The alias of both ends of the companion of a hidden end.
fn companion_alias(hidden: u32) -> String {
    format!("{COMPANION} {hidden}")
}

/// The hidden end whose companion has this alias at its ends.
pub(super) fn hidden_end_of(alias: &str) -> Option<u32> {
    alias.split_once(' ').filter(|(word, _)| *word == COMPANION)?.1.parse().ok()
}

/// Has the companion of a hidden end, in the namespace of the calling thread, which stays as the hidden end does, with
/// its programs and its offloads: as an earlier broker has left it, or made anew. Returns its near and its far end.
pub(super) fn keep_companion(hidden: u32) -> io::Result<(u32, u32)> {
    let (name, peer) = (relay_name(hidden), far_name(hidden));
    let index = |name: &str| Ok::<_, io::Error>(link::by_name(name)?.map(|link| link.index));
    // Brokers before had an XDP program at the far end.
    if link::by_name(&peer)?.is_some_and(|far| far.xdp.is_some()) {
        delete_companion(hidden)?;
    }
    if index(&name)?.is_none() {
        veth::create(veth::Veth { name: &name, peer: &peer, peer_netns: None, queues: 1 })?;
        let complete = || {
            // The near end, which sends at once, is set up last: see `create_pair`.
            for end in [&peer, &name] {
                let index = index(end)?.ok_or(io::ErrorKind::NotFound)?;
                veth::silence(index)?;
                veth::set_up(index)?;
                veth::set_alias(index, &companion_alias(hidden))?;
            }
            Ok(())
        };
        complete().inspect_err(|_: &io::Error| drop(delete_companion(hidden)))?;
    }
    let (near, far) = (index(&name)?, index(&peer)?);
    let (near, far) = near.zip(far).ok_or(io::ErrorKind::NotFound)?;
    Relay::keep(RelayEnds { nic: hidden, near, far })?;
    Ok((near, far))
}

/// Deletes the companion of a hidden end, if it has one, in the namespace of the calling thread.
pub(super) fn delete_companion(hidden: u32) -> io::Result<()> {
    link::by_name(&relay_name(hidden))?.map_or(Ok(()), |near| veth::delete(near.index))
}

/// Returns the near end's name of the pair behind which interface `nic` has its own rings.
pub(crate) fn relay_name(nic: u32) -> String {
    format!("nmr{nic}")
}

/// Creates the pair of an interface's host rings, or of its own. A near end that a killed daemon has left is removed
/// first.
pub(super) fn create_pair(netns: &Netns, name: &str, queues: u32) -> io::Result<HostVeth> {
    let far_netns = Netns::new()?;
    let near = inside(netns, || {
        if let Some(left) = link::by_name(name)?.filter(|link| link.kind.as_deref() == Some("veth")) {
            veth::delete(left.index)?;
        }
        let peer_netns = Some(far_netns.as_fd());
        veth::create(veth::Veth { name, peer: FAR, peer_netns, queues })?;
        let near = link::by_name(name)?.ok_or(io::ErrorKind::NotFound)?.index;
        veth::configure_passthrough(near, name).inspect_err(|_| drop(veth::delete(near)))?;
        Ok(near)
    })?;
    let far = inside(&far_netns, || {
        let far = link::by_name(FAR)?.ok_or(io::ErrorKind::NotFound)?.index;
        veth::configure_passthrough(far, FAR)?;
        veth::set_up(far)?;
        Ok((far, Xdp::attach(far, queues, Mode::Native)?))
    });
    // The end that is set up last sends at once. The other one drops what it should send until a thread of the kernel
    // has seen its carrier; the sockets of the far end send without a queue, which has no part in that.
    match far.and_then(|far| inside(netns, || veth::set_up(near)).map(|()| far)) {
        Ok((far, xdp)) => Ok(HostVeth { near, far_netns, far, xdp }),
        Err(e) => {
            let _ = inside(netns, || veth::delete(near));
            Err(e)
        }
    }
}

/// Creates the veth pair of a persistent port, with all offloads (`whole`), or such that frames are finished before
/// they arrive at the hidden end. Returns the index of that.
pub(super) fn create_persistent(
    name: &str,
    queues: u32,
    (netns, hidden): (&Netns, &Netns),
    whole: bool,
) -> io::Result<u32> {
    let peer = inside(netns, || {
        // A persistent port in another namespace may have the same name, so the hidden end may need another one.
        let peers = std::iter::once(name.to_string()).chain((0..u16::MAX).map(|n| format!("vi{n}")));
        for peer in peers {
            match veth::create(veth::Veth { name, peer: &peer, peer_netns: Some(hidden.as_fd()), queues }) {
                // The name of either end may be in use.
                Err(e) if e.raw_os_error() == Some(EEXIST) && link::by_name(name)?.is_none() => {}
                laid => {
                    laid?;
                    // No hardware would complete the stack's frames.
                    if !whole {
                        link::disable_offloads(name, OffloadKind::Transmit)?;
                    }
                    return Ok(peer);
                }
            }
        }
        Err(io::Error::from_raw_os_error(EEXIST))
    })?;
    inside(hidden, || {
        let index = link::by_name(&peer)?.map_or(0, |link| link.index);
        if !kernel::LARGE_FRAMES.is_newer_than_kernel() {
            veth::set_mtu(index, MOST_MTU)?;
        }
        veth::set_up(index).map(|()| index)
    })
}
