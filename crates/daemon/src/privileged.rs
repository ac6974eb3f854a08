// SPDX-License-Identifier: BSD-2-Clause
//! What the daemon does with interfaces, callers and files and needs capabilities for, one function for each operation.
//! The broker does them ([`crate::broker`]); this is the worker's side. Arguments are validated by callers.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use unetmap_core::control::trusted_file;
use unetmap_sys::fuse::{Backing, Device};
use unetmap_sys::link::{Channels, DriverInfo, Link, LinkWatch, NetnsLinkWatch, Nsid, XdpFeatures};
use unetmap_sys::log::set_stderr;
use unetmap_sys::memory_helper::MemoryHelper;
use unetmap_sys::netns::Netns;
use unetmap_sys::place::Place;
use unetmap_sys::process;
use unetmap_sys::tcx::{HostTxAction, RelayEnds};
use unetmap_sys::thread::RemoteThread;
use unetmap_sys::xdp::dispatcher::Attached;
use unetmap_sys::xdp::{ClassicInsn, Mark, Mode};
use unetmap_sys::xsk::{BusyPoll, Queue, Umem, UnboundXsk};

use crate::broker::{Handle, Request, ask};
use crate::owner::owner;
use crate::policy::Policy;
use crate::refusal::Refusal;

/// Has an operation done that returns no descriptor.
fn value<T: serde::de::DeserializeOwned>(request: Request, fds: &[BorrowedFd<'_>]) -> io::Result<T> {
    ask(request, fds).map(|(value, _)| value)
}

/// Has an operation done that returns one descriptor, and nothing else.
fn descriptor(request: Request, fds: &[BorrowedFd<'_>]) -> io::Result<OwnedFd> {
    let ((), mut fds) = ask(request, fds)?;
    fds.pop().ok_or_else(|| io::ErrorKind::InvalidData.into())
}

/// The interface with an index; `None` if there is none.
pub(crate) fn link(netns: &Netns, index: u32) -> io::Result<Option<Link>> {
    value(Request::Link(index), &[netns.as_fd()])
}

/// The interface with a name or an alternative name; `None` if there is none.
pub(crate) fn link_named(netns: &Netns, name: &str) -> io::Result<Option<Link>> {
    value(Request::LinkNamed(name.into()), &[netns.as_fd()])
}

/// Whether there surely is no interface of this name. Does not wait for the kernel's lock of the network configuration,
/// as [`link_named`] may.
pub(crate) fn is_absent(netns: &Netns, name: &str) -> io::Result<bool> {
    value(Request::IsAbsent(name.into()), &[netns.as_fd()])
}

/// All interfaces.
pub(crate) fn links(netns: &Netns) -> io::Result<Vec<Link>> {
    value(Request::Links, &[netns.as_fd()])
}

/// The messages about changes of interfaces, from now on.
pub(crate) fn watch_links(netns: &Netns) -> io::Result<LinkWatch> {
    descriptor(Request::WatchLinks, &[netns.as_fd()]).map(LinkWatch::of_fd)
}

/// The messages about changes of interfaces of several namespaces, to which [`watch_namespace`] adds.
pub(crate) fn watch_namespaces() -> io::Result<NetnsLinkWatch> {
    descriptor(Request::WatchNamespaces, &[]).and_then(NetnsLinkWatch::of_fd)
}

/// Adds a namespace to those that are watched; returns its number there.
pub(crate) fn watch_namespace(netns: &Netns) -> io::Result<Nsid> {
    value(Request::WatchedNamespace, &[netns.as_fd()])
}

/// Whether an interface exists in a watched namespace.
pub(crate) fn exists_in(nsid: Nsid, index: u32) -> io::Result<bool> {
    value(Request::ExistsIn(nsid, index), &[])
}

/// The indexes of the interfaces that have a default route.
pub(crate) fn default_routes(netns: &Netns) -> io::Result<Vec<u32>> {
    value(Request::DefaultRoutes, &[netns.as_fd()])
}

/// An interface's driver; `None` if it says nothing.
pub(crate) fn driver(netns: &Netns, name: &str) -> io::Result<Option<DriverInfo>> {
    value(Request::Driver(name.into()), &[netns.as_fd()])
}

/// What an interface's driver says of XDP; `None` if the kernel cannot say.
pub(crate) fn xdp_features(netns: &Netns, index: u32) -> io::Result<Option<XdpFeatures>> {
    value(Request::XdpFeatures(index), &[netns.as_fd()])
}

/// The numbers of an interface's queues.
pub(crate) fn channels(netns: &Netns, name: &str) -> io::Result<Channels> {
    value(Request::Channels(name.into()), &[netns.as_fd()])
}

/// The NUMA node of an interface's device, if it is known.
pub(crate) fn numa_node(netns: &Netns, name: &str) -> io::Result<Option<u32>> {
    value(Request::NumaNode(name.into()), &[netns.as_fd()])
}

/// An interface's own count of frames that it did not send; `None` if there is no such interface.
pub(crate) fn tx_dropped(netns: &Netns, index: u32) -> io::Result<Option<u64>> {
    value(Request::TxDropped(index), &[netns.as_fd()])
}

/// Whether AF_XDP sockets can be created.
pub(crate) fn probe_xdp_sockets(netns: &Netns) -> io::Result<()> {
    value(Request::ProbeXdpSockets, &[netns.as_fd()])
}

/// Whether the rings of a bound AF_XDP socket can be mapped (from Linux 6.4 on).
pub(crate) fn maps_bound_rings(netns: &Netns, index: u32) -> io::Result<bool> {
    value(Request::MapsBoundRings(index), &[netns.as_fd()])
}

/// Whether a socket can have these settings of busy polling.
pub(crate) fn try_busy_poll(netns: &Netns, busy_poll: BusyPoll) -> io::Result<()> {
    let (usec, budget) = (busy_poll.usec().into(), busy_poll.budget().into());
    value(Request::TryBusyPoll { usec, budget }, &[netns.as_fd()])
}

/// Lets an AF_XDP socket busy poll.
pub(crate) fn set_busy_poll(socket: impl AsFd, busy_poll: BusyPoll) -> io::Result<()> {
    let (usec, budget) = (busy_poll.usec().into(), busy_poll.budget().into());
    value(Request::SetBusyPoll { usec, budget }, &[socket.as_fd()])
}

/// The buffers of a region: in this process's memory, and in the region's file, where the mapping begins at `base`.
pub(crate) struct PacketMemory<'a> {
    pub(crate) umem: Umem,
    pub(crate) file: BorrowedFd<'a>,
    pub(crate) base: u64,
}

/// Creates an AF_XDP socket with its rings, not bound yet.
pub(crate) fn open_xsk<'a>(
    netns: &Netns,
    queue: Queue,
    memory: PacketMemory<'_>,
    shared_with: Option<BorrowedFd<'a>>,
) -> io::Result<UnboundXsk<'a>> {
    let PacketMemory { umem, file, base } = memory;
    let (at, bytes, buffer) = (base + umem.offset as u64, umem.bytes as u64, umem.buffer);
    let request = Request::OpenXsk { queue, at, bytes, buffer, registers: shared_with.is_none() };
    let fd = descriptor(request, &[netns.as_fd(), file])?;
    Ok(UnboundXsk::of_fd(fd, queue, umem, shared_with))
}

/// The XDP programs of an interface.
pub(crate) fn attached_xdp(netns: &Netns, index: u32) -> io::Result<Attached> {
    value(Request::AttachedXdp(index), &[netns.as_fd()])
}

/// Something that the broker undoes when this is dropped.
#[derive(Debug)]
pub(crate) struct Undo(Handle);

impl Undo {
    /// What the broker keeps under this handle.
    pub(crate) fn of(handle: Handle) -> Undo {
        Undo(handle)
    }

    pub(crate) fn handle(&self) -> Handle {
        self.0
    }
}

impl Drop for Undo {
    fn drop(&mut self) {
        if let Err(e) = value::<()>(Request::Drop(self.0), &[]) {
            tracing::warn!("a change of an interface is not undone: {e}");
        }
    }
}

/// The deadline of a program. After it frames pass to the kernel.
#[derive(Debug)]
pub(crate) struct Deadline(Handle);

impl Deadline {
    /// Sets the deadline to `time` from now.
    pub(crate) fn extend(&self, time: Duration) -> io::Result<()> {
        match value(Request::Extend(self.0, u32::try_from(time.as_millis()).unwrap_or(u32::MAX)), &[]) {
            // The program was detached meanwhile.
            Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(()),
            other => other,
        }
    }
}

/// The XDP program of an interface, which is detached when this is dropped: see [`unetmap_sys::xdp::Xdp`].
#[derive(Debug)]
pub(crate) struct Xdp {
    program: Undo,
    deadline: Arc<Deadline>,
    mode: Mode,
    frags: bool,
    calls_filter: bool,
}

/// A program that the broker keeps: its mode, whether it accepts packets of several buffers, and calls a filter.
pub(crate) type KeptXdp = (Handle, Mode, bool, bool);

impl Xdp {
    pub(crate) fn of((handle, mode, frags, calls_filter): KeptXdp) -> Xdp {
        Xdp { program: Undo(handle), deadline: Arc::new(Deadline(handle)), mode, frags, calls_filter }
    }

    pub(crate) fn kept(&self) -> KeptXdp {
        (self.program.0, self.mode, self.frags, self.calls_filter)
    }

    pub(crate) fn mode(&self) -> Mode {
        self.mode
    }

    pub(crate) fn frags(&self) -> bool {
        self.frags
    }

    pub(crate) fn calls_filter(&self) -> bool {
        self.calls_filter
    }

    pub(crate) fn deadline(&self) -> &Arc<Deadline> {
        &self.deadline
    }

    pub(crate) fn set_mark(&mut self, mark: Mark) -> io::Result<()> {
        value(Request::XdpMark(self.program.0, mark), &[])
    }

    pub(crate) fn insert(&mut self, queue: u32, socket: impl AsFd) -> io::Result<()> {
        value(Request::XdpInsert(self.program.0, queue), &[socket.as_fd()])
    }

    pub(crate) fn remove(&mut self, queue: u32) -> io::Result<()> {
        value(Request::XdpRemove(self.program.0, queue), &[])
    }

    pub(crate) fn set_filter(&mut self, filter: Option<&[ClassicInsn]>) -> io::Result<()> {
        value(Request::XdpFilter(self.program.0, filter.map(<[ClassicInsn]>::to_vec)), &[])
    }
}

/// Attaches the XDP program.
pub(crate) fn attach_xdp(netns: &Netns, (index, queues): (u32, u32), mode: Mode) -> io::Result<Xdp> {
    value(Request::AttachXdp { index, queues, mode }, &[netns.as_fd()]).map(Xdp::of)
}

/// Adds the XDP program to an interface's dispatcher, which it leaves when it is dropped.
pub(crate) fn join_xdp(netns: &Netns, (index, queues): (u32, u32), (mode, extras): (Mode, bool)) -> io::Result<Xdp> {
    value(Request::JoinXdp { index, queues, mode, extras }, &[netns.as_fd()]).map(Xdp::of)
}

/// The tcx programs of an interface: see [`unetmap_sys::tcx::Tcx`].
pub(crate) struct Tcx {
    programs: Undo,
    deadline: Arc<Deadline>,
    netns: Arc<Netns>,
}

impl Tcx {
    /// The programs that the broker keeps under this handle.
    pub(crate) fn of(handle: Handle, netns: &Arc<Netns>) -> Tcx {
        Tcx { programs: Undo(handle), deadline: Arc::new(Deadline(handle)), netns: netns.clone() }
    }

    pub(crate) fn handle(&self) -> Handle {
        self.programs.0
    }

    pub(crate) fn deadline(&self) -> &Arc<Deadline> {
        &self.deadline
    }

    pub(crate) fn set_mark(&mut self, mark: Mark) -> io::Result<()> {
        value(Request::TcxMark(self.programs.0, mark), &[])
    }

    pub(crate) fn attach_companion(&mut self, near: u32) -> io::Result<()> {
        value(Request::TcxCompanion(self.programs.0, Some(near)), &[self.netns.as_fd()])
    }

    pub(crate) fn set_relayed(&mut self, relayed: bool) -> io::Result<()> {
        value(Request::TcxRelayed(self.programs.0, relayed), &[])
    }

    pub(crate) fn detach_companion(&mut self) {
        if let Err(e) = value::<()>(Request::TcxCompanion(self.programs.0, None), &[self.netns.as_fd()]) {
            tracing::warn!("the veth pair of host rings is not left: {e}");
        }
    }

    pub(crate) fn set_host_tx(&mut self, action: HostTxAction) -> io::Result<()> {
        value(Request::TcxHostTx(self.programs.0, action), &[])
    }

    pub(crate) fn dropped(&self) -> u64 {
        value(Request::TcxDropped(self.programs.0), &[]).unwrap_or(0)
    }
}

/// Attaches the tcx program of host rings.
pub(crate) fn attach_tcx(netns: &Arc<Netns>, index: u32) -> io::Result<Tcx> {
    value(Request::AttachTcx(index), &[netns.as_fd()]).map(|handle| Tcx::of(handle, netns))
}

/// The tcx programs between an interface and a companion that has its rings: see [`unetmap_sys::tcx::Relay`].
pub(crate) struct RelayPrograms {
    programs: Undo,
    deadline: Arc<Deadline>,
}

impl RelayPrograms {
    /// The programs that the broker keeps under this handle.
    pub(crate) fn of(handle: Handle) -> RelayPrograms {
        RelayPrograms { programs: Undo(handle), deadline: Arc::new(Deadline(handle)) }
    }

    pub(crate) fn handle(&self) -> Handle {
        self.programs.0
    }

    pub(crate) fn deadline(&self) -> &Arc<Deadline> {
        &self.deadline
    }
}

/// Attaches the tcx programs between an interface and a companion that has its rings.
pub(crate) fn attach_relay(netns: &Netns, far_netns: &Netns, ends: RelayEnds) -> io::Result<RelayPrograms> {
    let RelayEnds { nic, near, far } = ends;
    value(Request::AttachRelay { nic, near, far }, &[netns.as_fd(), far_netns.as_fd()]).map(RelayPrograms::of)
}

/// Sets the far end of a veth pair up or down.
pub(crate) fn set_link(netns: &Netns, index: u32, up: bool) -> io::Result<()> {
    value(Request::SetLink(index, up), &[netns.as_fd()])
}

/// A veth pair whose far end, in a namespace of its own, represents the host's stack, or the interface.
pub(crate) struct HostVeth {
    /// Interface index of the near end.
    pub(crate) near: u32,
    pub(crate) far_netns: Netns,
    pub(crate) far: u32,
    pub(crate) xdp: Xdp,
}

/// Creates the veth pair of the host rings of interface `nic`, or of the interface's own rings (`relay`).
pub(crate) fn create_veth(netns: &Netns, (nic, queues): (u32, u32), relay: bool) -> io::Result<HostVeth> {
    let ((near, far, program), mut fds) = ask(Request::CreateVeth { nic, queues, relay }, &[netns.as_fd()])?;
    let far_netns = Netns::of_fd(fds.pop().ok_or(io::ErrorKind::InvalidData)?)?;
    Ok(HostVeth { near, far_netns, far, xdp: Xdp::of(program) })
}

/// Disables the offloads that would hide parts of the frames of an interface; `None` if none is enabled.
pub(crate) fn disable_offloads(netns: &Netns, index: u32) -> io::Result<Option<Undo>> {
    disabled(Request::DisableOffloads(index), netns)
}

/// Disables GRO at an interface; `None` if it is off.
pub(crate) fn disable_merging(netns: &Netns, (index, name): (u32, &str)) -> Option<Undo> {
    let disabled = disabled(Request::DisableMerging { index, name: name.into() }, netns);
    disabled.inspect_err(|e| tracing::warn!("offloads stay as they are: {e}")).ok().flatten()
}

fn disabled(request: Request, netns: &Netns) -> io::Result<Option<Undo>> {
    let handle: Option<Handle> = value(request, &[netns.as_fd()])?;
    Ok(handle.map(Undo))
}

/// Deletes a pair of veth, by one of its ends.
pub(crate) fn delete_veth(netns: &Netns, index: u32) -> io::Result<()> {
    value(Request::DeleteVeth(index), &[netns.as_fd()])
}

/// The index that the other end of a veth has in the namespace `other`; `None` if it is not there.
pub(crate) fn veth_end_in(netns: &Netns, index: u32, other: &Netns) -> io::Result<Option<u32>> {
    value(Request::VethEndIn(index), &[netns.as_fd(), other.as_fd()])
}

/// A new namespace for the hidden ends of persistent ports.
pub(crate) fn create_hidden_namespace() -> io::Result<Netns> {
    descriptor(Request::HiddenNamespace, &[]).and_then(Netns::of_fd)
}

/// Creates the veth pair of a persistent port; returns the index of its hidden end.
pub(crate) fn create_persistent_veth(name: &str, queues: u32, netns: &Netns, hidden: &Netns) -> io::Result<u32> {
    value(Request::CreatePersistentVeth { name: name.into(), queues }, &[netns.as_fd(), hidden.as_fd()])
}

/// The name of a loaded BPF program, in whatever namespace.
pub(crate) fn program_name(prog_id: u32) -> io::Result<String> {
    value(Request::ProgramName(prog_id), &[])
}

/// Whether programs of this machine use dispatchers.
pub(crate) fn dispatchers_are_used() -> bool {
    value(Request::DispatchersAreUsed, &[]).unwrap_or(false)
}

/// Of network namespaces, by their inode numbers, those that have a name or a thread.
pub(crate) fn used_namespaces(ids: Vec<u64>) -> io::Result<Vec<u64>> {
    value(Request::UsedNamespaces(ids), &[])
}

/// The inode number of the network namespace that a file names; `None` if it names none.
pub(crate) fn namespace_at(path: &Path) -> Option<u64> {
    value(Request::NamespaceAt(path.into()), &[]).ok().flatten()
}

/// Loads a filter's program, to see whether the kernel accepts it.
pub(crate) fn try_filter(program: &[ClassicInsn]) -> io::Result<()> {
    value(Request::TryFilter(program.to_vec()), &[])
}

/// The network namespace in which the peer of an accepted connection made it.
pub(crate) fn netns_of_peer(connection: &OwnedFd) -> io::Result<Netns> {
    descriptor(Request::NamespaceOfPeer, &[connection.as_fd()]).and_then(Netns::of_fd)
}

/// A thread's network namespace.
pub(crate) fn netns_of_thread(thread: &RemoteThread) -> io::Result<Netns> {
    descriptor(Request::NamespaceOfThread(thread.tid()), &[thread.as_fd()]).and_then(Netns::of_fd)
}

/// Mounts one of the node's mounts.
pub(crate) fn mount_node(number: usize) -> Result<Device, Refusal> {
    let failed = |e: io::Error| Refusal { errno: e.raw_os_error().unwrap_or(EIO), why: e.to_string(), option: None };
    let (done, mut fds) = ask::<Result<(), (i32, String)>>(Request::MountNode(number), &[]).map_err(failed)?;
    done.map_err(|(errno, why)| Refusal { errno, why, option: None })?;
    fds.pop().map(Device::of_fd).ok_or_else(|| failed(io::ErrorKind::InvalidData.into()))
}

const EIO: i32 = 5;

/// Unmounts the node.
pub(crate) fn unmount_node() {
    if let Err(e) = value::<()>(Request::UnmountNode, &[]) {
        tracing::warn!("the node stays mounted: {e}");
    }
}

/// Checks that the link to the node can be made, or is there.
pub(crate) fn check_node_link(path: &Path) -> Result<(), Refusal> {
    refusable::<bool>(Request::CheckNodeLink(path.into())).map(drop)
}

/// Makes the link to the node, unless it is there.
pub(crate) fn link_node(path: &Path) -> Result<(), Refusal> {
    refusable(Request::LinkNode(path.into()))
}

/// Has an operation done that is refused with a sentence.
fn refusable<T: serde::de::DeserializeOwned>(request: Request) -> Result<T, Refusal> {
    let done: io::Result<Result<T, (i32, String)>> = value(request, &[]);
    let done = done.unwrap_or_else(|e| Err((e.raw_os_error().unwrap_or(EIO), e.to_string())));
    done.map_err(|(errno, why)| Refusal { errno, why, option: None })
}

/// Removes the link to the node.
pub(crate) fn unlink_node(path: &Path) {
    if let Err(e) = value::<()>(Request::UnlinkNode(path.into()), &[]) {
        tracing::warn!("{} stays: {e}", path.display());
    }
}

/// Registers a file as a backing file of a mount.
pub(crate) fn open_backing(device: &Device, file: BorrowedFd<'_>) -> io::Result<Backing> {
    value(Request::OpenBacking, &[device.as_fd(), file]).map(Backing::of_number)
}

/// Unregisters it.
pub(crate) fn close_backing(device: &Device, backing: Backing) {
    if let Err(e) = value::<()>(Request::CloseBacking(backing.number()), &[device.as_fd()]) {
        tracing::debug!("a user's memory stays registered: {e}");
    }
}

/// A process that accesses the memory of programs. It exits when this is dropped, unless it is occupied.
pub(crate) struct Helper {
    pub(crate) process: MemoryHelper,
    handle: Handle,
}

impl Helper {
    pub(crate) fn start() -> io::Result<Helper> {
        let (handle, fds) = ask(Request::StartMemoryHelper, &[])?;
        let [connection, pidfd] = <[OwnedFd; 2]>::try_from(fds).map_err(|_| io::ErrorKind::InvalidData)?;
        Ok(Helper { process: MemoryHelper::of_parts(connection, pidfd), handle })
    }

    /// Lets it access the memory of a thread of a program that has the node open, and of no other.
    pub(crate) fn use_for(&self, thread: &RemoteThread) -> io::Result<()> {
        value(Request::UseMemoryHelper(self.handle, thread.tid()), &[thread.as_fd()])
    }

    /// Kills it.
    pub(crate) fn kill(&self) {
        if let Err(e) = value::<()>(Request::KillMemoryHelper(self.handle), &[]) {
            tracing::debug!("a process that accesses programs' memory is not killed: {e}");
        }
    }
}

/// Makes memory files immutable, so that nobody can remove pages of them.
pub(crate) fn forbid_removal(files: &[BorrowedFd<'_>]) -> io::Result<()> {
    value(Request::ForbidRemoval, files)
}

/// The number of the process that keeps the privileges: this one, or its broker.
pub(crate) fn process_id() -> u32 {
    static ID: OnceLock<u32> = OnceLock::new();
    *ID.get_or_init(|| value(Request::ProcessId, &[]).unwrap_or_else(|_| process::pid()))
}

/// The policy, as [`Policy::load`] reads it.
pub(crate) fn policy(path: &Path) -> Result<Policy, String> {
    let read: io::Result<Option<Result<Policy, String>>> = value(Request::Policy, &[]);
    read.map_err(|e| e.to_string())?.unwrap_or_else(|| Policy::load(path))
}

/// The contents of the configuration's file; none if there is no file.
pub(crate) fn configuration(path: &Path) -> Result<Vec<u8>, String> {
    let read: io::Result<Option<Result<Option<Vec<u8>>, String>>> = value(Request::Configuration, &[]);
    let read = read.map_err(|e| e.to_string())?;
    Ok(read.unwrap_or_else(|| trusted_file::read(path, owner(), "configuration"))?.unwrap_or_default())
}

/// Opens the log's file again if it was moved away, or is too long.
pub(crate) fn open_log() -> io::Result<()> {
    set_stderr(descriptor(Request::OpenLog, &[])?)
}

/// Removes the daemon's socket.
pub(crate) fn remove_socket(path: &Path) -> io::Result<()> {
    match value(Request::RemoveSocket, &[])? {
        true => Ok(()),
        false => remove_own_socket(path),
    }
}

/// Removes the file of the daemon's socket, and nothing that a link of another user leads to.
pub(crate) fn remove_own_socket(path: &Path) -> io::Result<()> {
    let place = Place::of(path)?;
    place.identity().map_or(Ok(()), |socket| place.remove(socket))
}
