// SPDX-License-Identifier: BSD-2-Clause
//! Interfaces on which frames can arrive unfinished, for a reason that no offload of theirs changes: the writer of a
//! tap leaves checksums and segmentation to the receiver, an interface below has taken the VLAN tag out of the frame or
//! merged segments, or the namespace of a veth's peer is not found. XDP programs would see the bytes only.
//!
//! ```text
//!  the interface's namespace                                    a namespace of its own
//!  wire -- interface == tcx == near end ---- veth ---- far end, queue k: XDP program, socket, rings k
//! ```
//! The far end takes the interface's place. The kernel completes each frame as it sends it to the near end, which has
//! no offloads. What the XDP program passes goes back to the interface, and from there to the host's stack; what a
//! program sends leaves through the interface. The far end is up while the interface is.
//!
//! The companion of a hidden end ([`super::hidden`]) is in the namespace of that, with both ends, and stays: it has no
//! host.

use std::io;
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use unetmap_sys::netns::Netns;
use unetmap_sys::tcx::RelayEnds;

use super::heartbeat::Heartbeat;
use crate::broker::Handle;
use crate::descriptors::{FdIndex, Incoming, Outgoing};
use crate::privileged::{self, Deadline, HostVeth, RelayPrograms, Xdp};
use crate::refusal::Refusal;

/// The far end in an interface's place. Dropping it removes the pair.
pub(super) struct Relay {
    netns: Arc<Netns>,
    far_netns: Arc<Netns>,
    ends: RelayEnds,
    /// Until it is dropped; `None`: they stay, and so does the pair.
    tcx: Option<RelayPrograms>,
}

/// A relay as the daemon hands it to its successor.
#[derive(Serialize, Deserialize)]
pub(super) struct SavedRelay {
    far_netns: FdIndex,
    ends: RelayEnds,
    tcx: Option<Handle>,
}

impl SavedRelay {
    pub(super) fn restore(self, netns: &Arc<Netns>, fds: &mut Incoming) -> Result<Relay, Refusal> {
        let far_netns = Arc::new(fds.take_netns(self.far_netns)?);
        Ok(Relay { netns: netns.clone(), far_netns, ends: self.ends, tcx: self.tcx.map(RelayPrograms::of) })
    }
}

impl Relay {
    pub(super) fn save<'a>(&'a self, fds: &mut Outgoing<'a>) -> SavedRelay {
        let tcx = self.tcx.as_ref().map(RelayPrograms::handle);
        SavedRelay { far_netns: fds.add(&*self.far_netns), ends: self.ends, tcx }
    }

    /// The deadline of its programs, but for the XDP program.
    pub(super) fn deadline(&self) -> Option<&Arc<Deadline>> {
        self.tcx.as_ref().map(RelayPrograms::deadline)
    }

    /// Creates the pair for interface `nic`. The XDP program is that of the far end.
    pub(super) fn create(
        netns: &Arc<Netns>,
        (nic, queues): (u32, u32),
        up: bool,
        heartbeat: &Heartbeat,
    ) -> io::Result<(Relay, Xdp)> {
        let HostVeth { near, far_netns, far, xdp } = HostVeth::create(netns, (nic, queues), true)?;
        let ends = RelayEnds { nic, near, far };
        let remove = |_: &io::Error| drop(privileged::delete_veth(netns, near));
        let tcx = privileged::attach_relay(netns, &far_netns, nic, near, far).inspect_err(remove)?;
        let tcx = RelayPrograms::of(tcx);
        let deadline = tcx.deadline().clone();
        let relay = Relay { netns: netns.clone(), far_netns: Arc::new(far_netns), ends, tcx: Some(tcx) };
        heartbeat.add(xdp.deadline()).and_then(|()| heartbeat.add(&deadline))?;
        relay.set_up(up)?;
        Ok((relay, xdp))
    }

    /// The companion of a hidden end, which stays as this does; it is in the same namespace.
    pub(super) fn of_hidden_end(hidden: &Arc<Netns>, nic: u32, (near, far): (u32, u32)) -> Relay {
        Relay { netns: hidden.clone(), far_netns: hidden.clone(), ends: RelayEnds { nic, near, far }, tcx: None }
    }

    /// The namespace and the index of the interface that has the rings.
    pub(super) fn far(&self) -> (&Netns, u32) {
        (&self.far_netns, self.ends.far)
    }

    /// Whether interface `index` is the near end.
    pub(super) fn is_near(&self, index: u32) -> bool {
        self.ends.near == index
    }

    /// Sets the far end up, or down: what programs send then waits in their rings.
    pub(super) fn set_up(&self, up: bool) -> io::Result<()> {
        privileged::set_link(&self.far_netns, self.ends.far, up)
    }

    /// Frames that found no room in the far end's queues since the pair was created.
    pub(super) fn dropped(&self) -> u64 {
        privileged::tx_dropped(&self.netns, self.ends.near)
    }

    /// Frames that went to the host's stack because the deadline was over.
    pub(super) fn passed(&self) -> u64 {
        self.tcx.as_ref().and_then(|tcx| tcx.passed().ok()).unwrap_or(0)
    }
}

impl Drop for Relay {
    fn drop(&mut self) {
        // Frames go to the host before their way to the far end is gone.
        let Some(programs) = self.tcx.take() else { return };
        drop(programs);
        // The end of the far end's namespace would remove it too, but later.
        if let Err(e) = privileged::delete_veth(&self.netns, self.ends.near) {
            tracing::debug!("the veth pair was removed already: {e}");
        }
    }
}
