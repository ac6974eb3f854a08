// SPDX-License-Identifier: BSD-2-Clause
//! Host rings: the host's own stack as a NIC.
//!
//! ```text
//!  the interface's namespace                              a namespace of its own
//!  stack -- interface == tcx == near end ---- veth ---- far end, queue k: a socket, host rings k
//! ```
//! The daemon and programs use the far end like any other interface. Its sockets have the same UMEM, so that a packet
//! moves between interface and host by an exchange of two buffer indexes. The near end is in the interface's namespace,
//! because frames can be redirected only there; no other frames pass it.
//!
//! ```text
//! bound rings                                                   frames that the host sends
//! a host receive ring                                           go to the host rings
//! no host ring, all rings of the interface, no filter, no `fwd` are dropped and counted
//! else                                                          go to the wire
//! ```
//! Only the daemon has the far end's namespace open. It ends with the daemon, which also removes both ends.

use std::io;
use std::os::fd::BorrowedFd;
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use unetmap_core::errno::{ENOMEM, EOPNOTSUPP, EPERM};
use unetmap_sys::kernel;
use unetmap_sys::netns::Netns;
use unetmap_sys::tcx::HostTxAction;
use unetmap_sys::xdp::{Failure, Mark};
use unetmap_sys::xsk::{Queue, UnboundXsk};

use super::heartbeat::Heartbeat;
use crate::broker::Handle;
use crate::descriptors::{FdIndex, Incoming, Outgoing};
use crate::privileged::{self, Deadline, HostVeth, KeptXdp, PacketMemory, Tcx, TcxPrograms, Xdp};
use crate::refusal::{Refusal, refuse};

/// Host rings as the daemon hands them to its successor.
#[derive(Serialize, Deserialize)]
pub(super) struct SavedHostRings {
    tcx: Option<Handle>,
    /// Whether the program that stays was in use.
    #[serde(default)]
    uses_staying: bool,
    veth: Option<SavedVeth>,
    capture: HostTxAction,
    relayed: bool,
}

/// The veth pair.
#[derive(Serialize, Deserialize)]
struct SavedVeth {
    near: u32,
    far_netns: FdIndex,
    far: u32,
    xdp: KeptXdp,
}

impl SavedHostRings {
    pub(super) fn restore(
        self,
        netns: &Arc<Netns>,
        (nic, queues): (u32, u32),
        fds: &mut Incoming,
    ) -> Result<HostRings, Refusal> {
        let SavedHostRings { tcx, uses_staying, veth, capture, relayed } = self;
        let veth = match veth {
            None => None,
            Some(SavedVeth { near, far_netns, far, xdp }) => {
                Some(HostVeth { near, far_netns: fds.take_netns(far_netns)?, far, xdp: Xdp::of(xdp) })
            }
        };
        let tcx = tcx.map(|handle| Tcx::new(TcxPrograms::of(handle), netns));
        let (staying, idle) = (None, HostTxAction::Pass);
        Ok(HostRings { netns: netns.clone(), nic, queues, tcx, staying, uses_staying, idle, veth, capture, relayed })
    }
}

/// The connection between an interface and the host's stack.
pub(super) struct HostRings {
    netns: Arc<Netns>,
    nic: u32,
    queues: u32,
    tcx: Option<Tcx>,
    /// The program of a closed interface, which stays, to be used in place of one of these rings.
    staying: Option<Arc<TcxPrograms>>,
    uses_staying: bool,
    /// The action without host rings.
    idle: HostTxAction,
    veth: Option<HostVeth>,
    capture: HostTxAction,
    relayed: bool,
}

impl HostRings {
    /// Nothing is attached or created yet.
    pub(super) fn new(netns: Arc<Netns>, nic: u32, queues: u32) -> HostRings {
        let (idle, capture) = (HostTxAction::Pass, HostTxAction::Pass);
        let (tcx, staying, veth) = (None, None, None);
        HostRings { netns, nic, queues, tcx, staying, uses_staying: false, idle, veth, capture, relayed: false }
    }

    pub(super) fn save<'a>(&'a self, fds: &mut Outgoing<'a>) -> SavedHostRings {
        let veth = self.veth.as_ref().map(|HostVeth { near, far_netns, far, xdp }| SavedVeth {
            near: *near,
            far_netns: fds.add(far_netns),
            far: *far,
            xdp: xdp.kept(),
        });
        let tcx = self.tcx.as_ref().filter(|_| !self.uses_staying).map(Tcx::handle);
        SavedHostRings { tcx, uses_staying: self.uses_staying, veth, capture: self.capture, relayed: self.relayed }
    }

    /// The deadlines of its programs.
    pub(super) fn deadlines(&self) -> impl Iterator<Item = &Arc<Deadline>> {
        let far = self.veth.iter().map(|veth| veth.xdp.deadline());
        self.tcx.iter().map(Tcx::deadline).chain(far)
    }

    /// Attaches the tcx program to the interface, if it is not attached. Frames still go to the wire.
    pub(super) fn attach(&mut self, heartbeat: &Heartbeat) -> Result<(), Refusal> {
        if self.tcx.is_some() {
            return Ok(());
        }
        self.uses_staying = self.staying.is_some();
        let tcx = match &self.staying {
            Some(staying) => Tcx::new(staying.clone(), &self.netns),
            None => {
                let attached = privileged::attach_tcx(&self.netns, self.nic).or_else(|e| explain(&e))?;
                Tcx::new(TcxPrograms::of(attached.0), &self.netns)
            }
        };
        let kept = heartbeat.add(tcx.deadline());
        kept.or_else(|e| refuse(EOPNOTSUPP, format!("the host's frames cannot be redirected: {e}")))?;
        (self.tcx, self.capture) = (Some(tcx), self.idle);
        self.set_relayed(self.relayed);
        Ok(())
    }

    /// Sets whether the interface is served behind a relay, which must leave frames to the host's stack alone.
    pub(super) fn set_relayed(&mut self, relayed: bool) {
        self.relayed = relayed;
        if let Some(tcx) = &mut self.tcx
            && let Err(e) = tcx.set_relayed(relayed)
        {
            tracing::error!("frames to the host cannot be told from received ones: {e}");
        }
    }

    /// Creates the veth pair, if there is none.
    pub(super) fn create(&mut self, frames: Mark, heartbeat: &Heartbeat) -> Result<(), Refusal> {
        self.attach(heartbeat)?;
        if self.veth.is_some() {
            return Ok(());
        }
        let failed = |e: io::Error| match e.raw_os_error() {
            Some(libc_errno::EPERM) => refuse(
                EPERM,
                "the daemon may not make the interfaces that host rings need: give it CAP_NET_ADMIN and CAP_SYS_ADMIN",
            ),
            _ => refuse(ENOMEM, format!("host rings need a pair of interfaces (veth), which cannot be made: {e}")),
        };
        let pair = HostVeth::create(&self.netns, (self.nic, self.queues), false).or_else(failed)?;
        // The deadline is not in force at its far end either.
        let closed = match &self.staying {
            Some(_) => pair.xdp.set_failure(&pair.far_netns, pair.far, Failure::Closed),
            None => Ok(()),
        };
        let Some(tcx) = &mut self.tcx else { return Ok(()) };
        let near = pair.near;
        let joined = closed.and_then(|()| heartbeat.add(pair.xdp.deadline()));
        let joined = joined.and_then(|()| tcx.set_mark(frames)).and_then(|()| tcx.attach_companion(near));
        self.veth = Some(pair);
        joined.or_else(|e| explain(&e))
    }

    /// Sets the mark that frames to the stack begin with.
    pub(super) fn set_mark(&mut self, mark: Mark) {
        if let Some(tcx) = &mut self.tcx
            && let Err(e) = tcx.set_mark(mark)
        {
            tracing::error!("frames to the host cannot be marked: {e}");
        }
    }

    /// Creates a socket for a queue of the far end, whose interface index this function completes in `queue`. The
    /// socket shares the UMEM registration of `shared`.
    pub(super) fn socket<'a>(
        &self,
        queue: Queue,
        memory: PacketMemory<'_>,
        shared: Option<BorrowedFd<'a>>,
    ) -> io::Result<UnboundXsk<'a>> {
        let Some(veth) = &self.veth else { return Err(io::ErrorKind::NotFound.into()) };
        let queue = Queue { ifindex: veth.far, ..queue };
        privileged::open_xsk(&veth.far_netns, queue, memory, shared)
    }

    /// The XDP program of the far end, which redirects frames to its sockets.
    pub(super) fn xdp(&self) -> Option<&Xdp> {
        self.veth.as_ref().map(|veth| &veth.xdp)
    }

    /// Has the program that stays take the place of one of these rings, which are closed or were restored.
    pub(super) fn use_staying(&mut self, staying: Option<Arc<TcxPrograms>>) {
        if self.uses_staying && self.tcx.is_none() {
            self.tcx = staying.as_ref().map(|staying| Tcx::new(staying.clone(), &self.netns));
        }
        self.staying = staying;
    }

    /// Sets the action without host rings.
    pub(super) fn set_idle(&mut self, idle: HostTxAction) {
        self.idle = idle;
    }

    /// Sets where frames that the host sends go.
    pub(super) fn set_capture(&mut self, capture: HostTxAction) {
        let Some(tcx) = &mut self.tcx else { return };
        if self.capture == capture {
            return;
        }
        match tcx.set_host_tx(capture) {
            Ok(()) => self.capture = capture,
            Err(e) => tracing::error!("the host's frames cannot be redirected: {e}"),
        }
    }

    /// Whether frames that the host sends go to host rings, or are dropped.
    pub(super) fn takes_host_frames(&self) -> bool {
        self.tcx.is_some() && self.capture != HostTxAction::Pass
    }

    /// Removes the veth pair.
    pub(super) fn remove(&mut self) {
        self.set_capture(self.idle);
        let Some(pair) = self.veth.take() else { return };
        if let Some(tcx) = &mut self.tcx {
            tcx.detach_companion();
        }
        let near = pair.near;
        // The end of its namespace would remove it too, but later.
        if let Err(e) = privileged::delete_veth(&self.netns, near) {
            tracing::debug!("the veth pair was removed already: {e}");
        }
    }

    /// Detaches from the interface.
    pub(super) fn detach(&mut self) {
        self.remove();
        (self.tcx, self.uses_staying) = (None, false);
    }

    /// Whether the veth pair exists.
    pub(super) fn has_veth(&self) -> bool {
        self.veth.is_some()
    }

    /// Whether the tcx program is attached.
    pub(super) fn is_attached(&self) -> bool {
        self.tcx.is_some()
    }

    /// Frames that the host sent and that went to the wire, since the deadline was over.
    pub(super) fn passed(&self) -> u64 {
        self.tcx.as_ref().map_or(0, |tcx| tcx.passed().unwrap_or(0))
    }

    /// Frames that the host sent and that were dropped.
    pub(super) fn dropped(&self) -> u64 {
        self.tcx.as_ref().map_or(0, |tcx| tcx.dropped().unwrap_or(0))
    }

    /// Whether interface `index` is the near end of the veth pair.
    pub(super) fn is_near(&self, index: u32) -> bool {
        self.veth.as_ref().is_some_and(|veth| veth.near == index)
    }
}

fn explain<T>(e: &io::Error) -> Result<T, Refusal> {
    match e.raw_os_error() {
        Some(libc_errno::EPERM) => {
            refuse(EPERM, "the daemon may not attach tcx programs: it needs CAP_NET_ADMIN and CAP_BPF")
        }
        Some(libc_errno::EINVAL | libc_errno::ENOTSUPP) => refuse(EOPNOTSUPP, kernel::HOST_RINGS.refusal()),
        _ => refuse(EOPNOTSUPP, format!("the host's frames cannot be redirected to host rings: {e}")),
    }
}

/// Error numbers of the kernel that this module distinguishes.
mod libc_errno {
    pub(super) const EPERM: i32 = 1;
    pub(super) const EINVAL: i32 = 22;
    pub(super) const ENOTSUPP: i32 = 524;
}
