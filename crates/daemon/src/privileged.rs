//! What the daemon does with interfaces and needs capabilities for, one function for each operation. What is done in a
//! network namespace needs CAP_SYS_ADMIN if that is another one than the daemon's. Arguments are validated by callers.
//!
//! Operations of several steps that must be undone together stay where they are: pairs of veth
//! (`ports::nic::host_rings`, `ports::vale::persistent`), offloads (`ports::nic::offloads`) and what the keeper undoes.
//! `.ci/check-source` checks that nothing else enters a namespace.

use std::io;
use std::os::fd::BorrowedFd;

use unetmap_sys::link::{self, Channels, DriverInfo, Link, LinkWatch, XdpFeatures, veth};
use unetmap_sys::netns::Netns;
use unetmap_sys::probe;
use unetmap_sys::tcx::{self, RelayEnds, Tcx};
use unetmap_sys::xdp::dispatcher::{self, Attached};
use unetmap_sys::xdp::{ClassicInsn, Mode, Xdp};
use unetmap_sys::xsk::{self, BusyPoll, Queue, Umem, UnboundXsk};

/// Runs `work` inside; an error may be that of entering (`EPERM`: it needs CAP_SYS_ADMIN) or that of the work.
fn inside<T: Send>(netns: &Netns, work: impl FnOnce() -> io::Result<T> + Send) -> io::Result<T> {
    netns.run(work).and_then(|done| done)
}

/// The interface with an index; `None` if there is none.
pub(crate) fn link(netns: &Netns, index: u32) -> io::Result<Option<Link>> {
    inside(netns, || link::by_index(index))
}

/// The interface with a name or an alternative name; `None` if there is none.
pub(crate) fn link_named(netns: &Netns, name: &str) -> io::Result<Option<Link>> {
    inside(netns, || link::by_name(name))
}

/// All interfaces.
pub(crate) fn links(netns: &Netns) -> io::Result<Vec<Link>> {
    inside(netns, link::all)
}

/// The messages about changes of interfaces, from now on.
pub(crate) fn watch_links(netns: &Netns) -> io::Result<LinkWatch> {
    inside(netns, LinkWatch::new)
}

/// The indexes of the interfaces that have a default route.
pub(crate) fn default_routes(netns: &Netns) -> io::Result<Vec<u32>> {
    inside(netns, link::default_routes)
}

/// An interface's driver; `None` if it says nothing.
pub(crate) fn driver(netns: &Netns, name: &str) -> io::Result<Option<DriverInfo>> {
    inside(netns, || link::driver(name))
}

/// What an interface's driver says of XDP; `None` if the kernel cannot say.
pub(crate) fn xdp_features(netns: &Netns, index: u32) -> io::Result<Option<XdpFeatures>> {
    inside(netns, || link::xdp_features(index))
}

/// The numbers of an interface's queues.
pub(crate) fn channels(netns: &Netns, name: &str) -> io::Result<Channels> {
    inside(netns, || link::channels(name))
}

/// The NUMA node of an interface's device, if it is known.
pub(crate) fn numa_node(netns: &Netns, name: &str) -> io::Result<Option<u32>> {
    inside(netns, || link::numa_node(name))
}

/// An interface's own count of frames that it did not send; `None` if there is no such interface.
pub(crate) fn tx_dropped(netns: &Netns, index: u32) -> io::Result<Option<u64>> {
    inside(netns, || link::tx_dropped(index))
}

/// Whether AF_XDP sockets can be created.
pub(crate) fn probe_xdp_sockets(netns: &Netns) -> io::Result<()> {
    inside(netns, probe::xdp_socket)
}

/// Whether the rings of a bound AF_XDP socket can be mapped (from Linux 6.4 on).
pub(crate) fn maps_bound_rings(netns: &Netns, index: u32) -> io::Result<bool> {
    inside(netns, || xsk::maps_bound_rings(index))
}

/// Whether a socket can have these settings of busy polling. Needs CAP_NET_ADMIN.
pub(crate) fn try_busy_poll(netns: &Netns, busy_poll: BusyPoll) -> io::Result<()> {
    inside(netns, || xsk::try_busy_poll(busy_poll))
}

/// Creates an AF_XDP socket with its rings, not bound yet. Needs CAP_NET_RAW.
pub(crate) fn open_xsk<'a>(
    netns: &Netns,
    queue: Queue,
    umem: Umem,
    shared_with: Option<BorrowedFd<'a>>,
) -> io::Result<UnboundXsk<'a>> {
    inside(netns, || UnboundXsk::new(queue, umem, shared_with))
}

/// The XDP programs of an interface.
pub(crate) fn attached_xdp(netns: &Netns, index: u32) -> io::Result<Attached> {
    inside(netns, || dispatcher::attached(index))
}

/// Attaches the XDP program. Needs CAP_NET_ADMIN and CAP_BPF.
pub(crate) fn attach_xdp(netns: &Netns, (index, queues): (u32, u32), mode: Mode) -> io::Result<Xdp> {
    inside(netns, || Xdp::attach(index, queues, mode))
}

/// Adds the XDP program to an interface's dispatcher; `announce` is called with its number before it is a member. Needs
/// CAP_NET_ADMIN and CAP_BPF.
pub(crate) fn join_xdp(
    netns: &Netns,
    (index, queues): (u32, u32),
    mode_and_extras: (Mode, bool),
    announce: &mut (dyn FnMut(u32) -> io::Result<()> + Send),
) -> io::Result<Xdp> {
    inside(netns, || Xdp::join(index, queues, mode_and_extras, announce))
}

/// Attaches the tcx program of host rings. Needs CAP_NET_ADMIN and CAP_BPF.
pub(crate) fn attach_tcx(netns: &Netns, index: u32) -> io::Result<Tcx> {
    inside(netns, || Tcx::attach(index))
}

/// Attaches the tcx programs between an interface and a companion that has its rings. Needs CAP_NET_ADMIN and CAP_BPF.
pub(crate) fn attach_relay(netns: &Netns, far_netns: &Netns, ends: RelayEnds) -> io::Result<tcx::Relay> {
    inside(netns, || {
        tcx::Relay::attach(ends, |program| inside(far_netns, || tcx::attach_to_far_end(program, ends.far)))
    })
}

/// Sets an interface of the daemon's own up or down. Needs CAP_NET_ADMIN.
pub(crate) fn set_link(netns: &Netns, index: u32, up: bool) -> io::Result<()> {
    inside(netns, || veth::set_state(index, up))
}

/// Deletes a pair of veth, by one of its ends. Needs CAP_NET_ADMIN.
pub(crate) fn delete_veth(netns: &Netns, index: u32) -> io::Result<()> {
    inside(netns, || veth::delete(index))
}

/// The index that the other end of a veth has in the namespace `other`; `None` if it is not there.
pub(crate) fn veth_end_in(netns: &Netns, index: u32, other: &Netns) -> io::Result<Option<u32>> {
    inside(netns, || veth::peer_index_in(index, other))
}

/// The name of a loaded BPF program, in whatever namespace. Needs CAP_SYS_ADMIN.
pub(crate) fn program_name(prog_id: u32) -> io::Result<String> {
    probe::program_name(prog_id)
}

/// Loads a filter's program, to see whether the kernel accepts it. Needs CAP_BPF and CAP_NET_ADMIN.
pub(crate) fn try_filter(program: &[ClassicInsn]) -> io::Result<()> {
    Xdp::try_filter(program)
}
