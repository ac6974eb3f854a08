//! Host rings: the host's own stack as a NIC.
//!
//! ```text
//!  the interface's namespace                              a namespace of its own
//!  stack -- interface == tcx == near end ---- veth ---- far end, queue k: a socket, host rings k
//! ```
//! The far end is to the daemon, and to programs, an interface like any other; its sockets have the same memory, so that a
//! packet moves between interface and host by an exchange of two buffer numbers. The near end lies where the interface
//! is, because frames can be redirected only there; nobody but the redirected frames passes it.
//!
//! ```text
//! a host receive ring is bound                           what the host sends goes to the host rings
//! none is, all rings of the interface are, no filter, no `fwd`   it is dropped, and counted
//! else                                                   it goes to the wire
//! ```
//! The namespace of the far end is known to nobody but the daemon and ends with it, and then both ends are gone.

use std::io;
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::time::Duration;

use unetmap::errno::{ENOMEM, EOPNOTSUPP, EPERM};
use unetmap_sys::link::{self, veth};
use unetmap_sys::netns::Netns;
use unetmap_sys::tcx::{Capture, Tcx};
use unetmap_sys::xdp::{Mark, Mode, Xdp};
use unetmap_sys::xsk::{Queue, Umem, Xsk};

use crate::refusal::{Refusal, refuse};

/// What the far end is called, where nobody looks.
const FAR: &str = "host";

/// How long after the daemon's last sign of life the interface is still a port's.
pub(crate) const ALIVE: Duration = Duration::from_millis(1750);

/// A companion: a cable whose far end stands for the host's stack.
struct Companion {
    /// The near end.
    near: u32,
    inside: Netns,
    far: u32,
    xdp: Xdp,
}

/// The side of an interface that leads to the host's stack.
pub(crate) struct Host {
    netns: Arc<Netns>,
    nic: u32,
    queues: u32,
    tcx: Option<Tcx>,
    companion: Option<Companion>,
    capture: Capture,
}

impl Host {
    /// Nothing is attached or made yet. There will be so many `queues`.
    pub(crate) fn new(netns: Arc<Netns>, nic: u32, queues: u32) -> Host {
        Host { netns, nic, queues, tcx: None, companion: None, capture: Capture::ToTheWire }
    }

    /// Attaches to the interface, if it is not yet. All goes on as before.
    pub(crate) fn attach(&mut self) -> Result<(), Refusal> {
        if self.tcx.is_some() {
            return Ok(());
        }
        let nic = self.nic;
        let attached = self.netns.run(|| Tcx::attach(nic)).and_then(|attached| attached);
        let mut tcx = attached.or_else(|e| explain(&e))?;
        let kept = tcx.keep(ALIVE);
        kept.or_else(|e| refuse(EOPNOTSUPP, format!("the host's traffic cannot be led: {e}")))?;
        (self.tcx, self.capture) = (Some(tcx), Capture::ToTheWire);
        Ok(())
    }

    /// Makes the companion, if there is none.
    pub(crate) fn raise(&mut self, frames: Mark) -> Result<(), Refusal> {
        self.attach()?;
        if self.companion.is_some() {
            return Ok(());
        }
        let failed = |e: io::Error| match e.raw_os_error() {
            Some(libc_errno::EPERM) => refuse(
                EPERM,
                "the daemon may not make the interfaces that host rings need: give it CAP_NET_ADMIN and CAP_SYS_ADMIN",
            ),
            _ => refuse(ENOMEM, format!("host rings need a pair of interfaces (veth), which cannot be made: {e}")),
        };
        let companion = Companion::make(&self.netns, self.nic, self.queues).or_else(failed)?;
        let Some(tcx) = &mut self.tcx else { return Ok(()) };
        let near = companion.near;
        let joined = self.netns.run(|| tcx.set_mark(frames).and_then(|()| tcx.join(near))).and_then(|joined| joined);
        self.companion = Some(companion);
        joined.or_else(|e| explain(&e))
    }

    /// What stands before frames to the stack from now on.
    pub(crate) fn set_mark(&mut self, mark: Mark) {
        if let Some(tcx) = &mut self.tcx
            && let Err(e) = tcx.set_mark(mark)
        {
            tracing::error!("frames to the host cannot be marked: {e}");
        }
    }

    /// Opens a queue of the far end, whose index alone is missing in `asked`; `beside` another one.
    pub(crate) fn bind_socket(&self, asked: Queue, umem: Umem, beside: Option<BorrowedFd<'_>>) -> io::Result<Xsk> {
        let Some(companion) = &self.companion else { return Err(io::ErrorKind::NotFound.into()) };
        let asked = Queue { ifindex: companion.far, ..asked };
        companion.inside.run(|| Xsk::bind(asked, umem, beside))?
    }

    /// What leads frames into the sockets of the far end.
    pub(crate) fn xdp(&mut self) -> Option<&mut Xdp> {
        self.companion.as_mut().map(|companion| &mut companion.xdp)
    }

    /// What becomes of what the host sends.
    pub(crate) fn set_capture(&mut self, capture: Capture) {
        let Some(tcx) = &mut self.tcx else { return };
        if self.capture == capture {
            return;
        }
        match tcx.capture(capture) {
            Ok(()) => self.capture = capture,
            Err(e) => tracing::error!("the host's traffic cannot be led: {e}"),
        }
    }

    /// The daemon is at work.
    pub(crate) fn keep(&mut self) {
        let kept = self.tcx.as_mut().map(|tcx| tcx.keep(ALIVE));
        let led = self.companion.as_mut().map(|companion| companion.xdp.keep(ALIVE));
        for e in [kept, led].into_iter().flatten().filter_map(Result::err) {
            tracing::error!("the host's traffic cannot be kept: {e}");
        }
    }

    /// Removes the companion.
    pub(crate) fn lower(&mut self) {
        self.set_capture(Capture::ToTheWire);
        let Some(companion) = self.companion.take() else { return };
        if let Some(tcx) = &mut self.tcx {
            tcx.leave();
        }
        let near = companion.near;
        // Its namespace would take it along, but not at once.
        if let Ok(Err(e)) = self.netns.run(|| veth::remove(near)) {
            tracing::debug!("the companion has gone already: {e}");
        }
    }

    /// Lets the interface go.
    pub(crate) fn detach(&mut self) {
        self.lower();
        self.tcx = None;
    }

    /// Frames that the host sent and nobody took.
    pub(crate) fn dropped(&self) -> u64 {
        self.tcx.as_ref().map_or(0, Tcx::dropped)
    }

    /// Whether this is the near end of the companion.
    pub(crate) fn is_near(&self, index: u32) -> bool {
        self.companion.as_ref().is_some_and(|companion| companion.near == index)
    }
}

impl Companion {
    /// Lays the cable; what a daemon that was killed has left in its place goes.
    fn make(netns: &Netns, nic: u32, queues: u32) -> io::Result<Companion> {
        let inside = Netns::new()?;
        let name = near_name(nic);
        let near = netns.run(|| {
            if let Some(left) = link::by_name(&name)?.filter(|link| link.kind.as_deref() == Some("veth")) {
                veth::remove(left.index)?;
            }
            let peer_netns = Some(std::os::fd::AsFd::as_fd(&inside));
            veth::lay(veth::Veth { name: &name, peer: FAR, peer_netns, queues })?;
            let near = link::by_name(&name)?.ok_or(io::ErrorKind::NotFound)?.index;
            prepare(near, &name).inspect_err(|_| drop(veth::remove(near)))?;
            Ok::<_, io::Error>(near)
        })??;
        let far = inside.run(|| {
            let far = link::by_name(FAR)?.ok_or(io::ErrorKind::NotFound)?.index;
            prepare(far, FAR)?;
            let mut xdp = Xdp::attach(far, queues, Mode::Native)?;
            xdp.keep(ALIVE)?;
            Ok::<_, io::Error>((far, xdp))
        });
        match far.and_then(|far| far) {
            Ok((far, xdp)) => Ok(Companion { near, inside, far, xdp }),
            Err(e) => {
                let _ = netns.run(|| veth::remove(near));
                Err(e)
            }
        }
    }
}

fn prepare(index: u32, name: &str) -> io::Result<()> {
    veth::make_bare(index, name)?;
    veth::set_up(index)
}

/// The near end's name, for interface `nic` of the same namespace.
pub(crate) fn near_name(nic: u32) -> String {
    format!("nmh{nic}")
}

fn explain<T>(e: &io::Error) -> Result<T, Refusal> {
    match e.raw_os_error() {
        Some(libc_errno::EPERM) => {
            refuse(EPERM, "the daemon may not attach tcx programs: it needs CAP_NET_ADMIN and CAP_BPF")
        }
        Some(libc_errno::EINVAL | libc_errno::ENOTSUPP) => {
            refuse(EOPNOTSUPP, "host rings need Linux 6.6 or newer (tcx); this kernel does not know them")
        }
        _ => refuse(EOPNOTSUPP, format!("the host's traffic cannot be led to host rings: {e}")),
    }
}

/// The kernel's errnos that mean something here.
mod libc_errno {
    pub(super) const EPERM: i32 = 1;
    pub(super) const EINVAL: i32 = 22;
    pub(super) const ENOTSUPP: i32 = 524;
}
