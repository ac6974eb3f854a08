// SPDX-License-Identifier: BSD-2-Clause
//! The operations of the broker: each is written once, here, in the form that `table` explains. To add one, add it to
//! the list.

use std::fs;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::LazyLock;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use unetmap_core::control::{proofs, trusted_file};
use unetmap_core::errno::EPERM;
use unetmap_sys::deadline::Faults;
use unetmap_sys::fuse::{Backing, Device};
use unetmap_sys::kernel_path::{Found, KernelPath, KnownAddress};
use unetmap_sys::link::{
    self, ActiveOffload, Channels, DriverInfo, FrameCounts, Link, LinkWatch, NetnsLinkWatch, Nsid, OffloadKind,
    XdpFeatures, veth,
};
use unetmap_sys::netns::Netns;
use unetmap_sys::place::Place;
use unetmap_sys::tcx::{self, HostTxAction, RelayEnds, Tcx};
use unetmap_sys::thread::RemoteThread;
use unetmap_sys::xdp::dispatcher::{self, Attached};
use unetmap_sys::xdp::{self, Account, ClassicInsn, Failed, Failure, Mark, Mode, Noted, SocketFrames, Xdp};
use unetmap_sys::xsk::{self, BusyPoll, Queue};
use unetmap_sys::{kernel, memfd, packet_socket, probe, process};

use super::connection::{self, Lane};
use super::hidden::HiddenEnd;
use super::objects::{Broker, Object, wait_at_fault};
use super::parameters::{self, Parameter};
use super::setup::{Handle, Setup, TcxId, XdpId, inside, not_made_here};
use super::table::{Answer, Descriptors, Fd, Reply, With, operations};
use super::undo::{Change, UndoOnDrop};
use super::{mounts, offloads, veth as pairs};
use crate::log;
use crate::owner::owner;
use crate::policy::{self, Policy};
use crate::refusal::Refusal;
use crate::threads::lock;
use crate::tuning::broker::MAX_DEADLINE;

operations! { broker:
    // Reading in a namespace.

    /// The interface with an index; `None` if there is none.
    fn link[netns: Netns] Link(index: u32) -> Option<Link> { inside(&netns, || link::by_index(index)) }

    /// The interface with a name or an alternative name; `None` if there is none.
    fn link_named[netns: Netns] LinkNamed(name: String) -> Option<Link> {
        let found = inside(&netns, || link::by_name(&name))?;
        if found.is_some() {
            wait_at_fault("network-lock", &broker.setup.socket);
        }
        Ok(found)
    }

    /// Whether there surely is no interface of this name. Does not wait for the kernel's lock of the network
    /// configuration, as [`link_named`] may.
    fn is_absent[netns: Netns] IsAbsent(name: String) -> bool { inside(&netns, || Ok(link::is_absent(&name))) }

    /// All interfaces.
    fn links[netns: Netns] Links -> Vec<Link> {
        wait_at_fault("network-lock", &broker.setup.socket);
        inside(&netns, link::all)
    }

    /// The indexes of the interfaces that have a default route.
    fn default_routes[netns: Netns] DefaultRoutes -> Vec<u32> { inside(&netns, link::default_routes) }

    /// An interface's driver; `None` if it says nothing.
    fn driver[netns: Netns] Driver(name: String) -> Option<DriverInfo> { inside(&netns, || link::driver(&name)) }

    /// The offloads of an interface that are on, and by which frames can arrive otherwise than they were on the wire.
    fn received_offloads[netns: Netns] ReceivedOffloads(name: String) -> Vec<ActiveOffload> {
        inside(&netns, || link::active_of(&name, OffloadKind::Received))
    }

    /// The XDP features that an interface's driver states; `None` if the kernel cannot say.
    fn xdp_features[netns: Netns] XdpFeatures(index: u32) -> Option<XdpFeatures> {
        inside(&netns, || link::xdp_features(index))
    }

    /// Whether zero copy was proved with a driver on this machine and kernel.
    fn is_proved[] IsProved(driver: DriverInfo) -> bool {
        proofs::has(&proofs::path(), &driver, &kernel::release()).map_err(io::Error::other)
    }

    /// The numbers of an interface's queues.
    fn channels[netns: Netns] Channels(name: String) -> Channels {
        wait_at_fault("network-lock", &broker.setup.socket);
        inside(&netns, || link::channels(&name))
    }

    /// The NUMA node of an interface's device, if it is known.
    fn numa_node[netns: Netns] NumaNode(name: String) -> Option<u32> { inside(&netns, || link::numa_node(&name)) }

    /// An interface's own counts of frames; `None` if there is no such interface.
    fn frame_counts[netns: Netns] LinkFrames(index: u32) -> Option<FrameCounts> {
        inside(&netns, || link::frame_counts(index))
    }

    /// Whether AF_XDP sockets can be created.
    fn probe_xdp_sockets[netns: Netns] ProbeXdpSockets -> () { inside(&netns, probe::xdp_socket) }

    /// Why AF_XDP sockets and XDP programs cannot be had, as far as is known without an attempt.
    fn obstacle_of_xdp[] XdpObstacle -> Option<String> { Ok(probe::xdp_obstacle()) }

    /// Whether the rings of a bound AF_XDP socket can be mapped (from Linux 6.4 on).
    fn maps_bound_rings[netns: Netns] MapsBoundRings(index: u32) -> bool {
        inside(&netns, || xsk::maps_bound_rings(index))
    }

    /// The XDP programs of an interface.
    fn attached_xdp[netns: Netns] AttachedXdp(index: u32) -> Attached { inside(&netns, || dispatcher::attached(index)) }

    /// The index that the other end of a veth has in the namespace `other`; `None` if it is not there.
    fn veth_end_in[netns: Netns, other: Netns] VethEndIn(index: u32) -> Option<u32> {
        inside(&netns, || veth::peer_index_in(index, &other))
    }

    /// The messages about changes of interfaces, from now on.
    fn watch_links[netns: Netns] WatchLinks -> Fd<LinkWatch> { inside(&netns, LinkWatch::new) }

    /// The messages about changes of interfaces of several namespaces, to which [`watch_namespace`] adds.
    fn watch_namespaces[] WatchNamespaces -> Fd<NetnsLinkWatch> { NetnsLinkWatch::new() }

    /// Adds a namespace to those that are watched; returns its number there.
    fn watch_namespace[netns: Netns] WatchedNamespace -> Nsid { NetnsLinkWatch::new()?.add(&netns) }

    /// Whether an interface exists in a watched namespace.
    fn exists_in[] ExistsIn(nsid: Nsid, index: u32) -> bool { NetnsLinkWatch::new()?.exists(nsid, index) }

    /// The name of a loaded BPF program, in whatever namespace.
    fn program_name[] ProgramName(id: u32) -> String { probe::program_name(id) }

    /// Whether programs of this machine use dispatchers.
    fn dispatchers_are_used[] DispatchersAreUsed -> bool { Ok(dispatcher::are_used()) }

    /// Of network namespaces, by their inode numbers, those that have a name or a thread.
    fn used_namespaces[] UsedNamespaces(ids: Vec<u64>) -> Vec<u64> { Ok(broker.used_namespaces(ids)) }

    /// The inode number of the network namespace that a file names; `None` if it names none.
    fn namespace_at[] NamespaceAt(path: PathBuf) -> Option<u64> { Ok(policy::namespace_at(&path)) }

    // Sockets and programs.

    /// Whether a socket can have these settings of busy polling.
    fn try_busy_poll[netns: Netns] TryBusyPoll(busy_poll: BusyPoll) -> () {
        inside(&netns, || xsk::try_busy_poll(busy_poll))
    }

    /// Lets an AF_XDP socket busy poll.
    fn set_busy_poll[socket: OwnedFd] SetBusyPoll(busy_poll: BusyPoll) -> () {
        xsk::set_busy_poll(xsk::checked(socket)?, busy_poll)
    }

    /// Creates an AF_XDP socket with its rings, not bound yet. Its buffers begin at byte `at` of the region's file.
    fn create_xsk[netns: Netns, file: OwnedFd]
        OpenXsk { queue: Queue, at: u64, bytes: u64, buffer: u32, registers: bool } -> Fd<OwnedFd>
    {
        let umem = broker.buffers(&file, (at, bytes), buffer)?;
        inside(&netns, || xsk::create(&queue, &umem, registers))
    }

    /// Opens a hidden end: its XDP program, and a socket for each queue, not bound yet. `buffers`: where, all, each.
    fn open_hidden_end[hidden: Netns, file: OwnedFd]
        OpenHidden { index: u32, queues: Vec<Queue>, buffers: (u64, u64, u32) }
        -> With<HiddenEnd, Vec<OwnedFd>> { broker.open_hidden_end((&hidden, index), &queues, (&file, buffers)) }

    /// Has the companion of a hidden end: its near and its far end.
    fn open_companion[hidden: Netns] OpenCompanion(index: u32) -> (u32, u32) { broker.open_companion(&hidden, index) }

    /// Opens a packet socket that receives; each slot of its ring has `slot` bytes.
    fn packet_receiver[netns: Netns] PacketReceiver { index: u32, slot: usize } -> Fd<OwnedFd> {
        inside(&netns, || packet_socket::receiver(index, slot))
    }

    /// Opens a packet socket that sends, with a mark.
    fn packet_sender[netns: Netns] PacketSender { index: u32, mark: u32 } -> Fd<OwnedFd> {
        inside(&netns, || packet_socket::sender(index, mark))
    }

    /// Disconnects an interface from the host's stack, but for frames with a mark, until the socket is closed. Returns
    /// whether the stack's own frames are stopped, too.
    fn disconnect[netns: Netns] Disconnect { index: u32, name: String, mark: u32 } -> With<bool, OwnedFd> {
        inside(&netns, || link::disconnect((index, &name), mark)).map(|(table, stops_host)| (stops_host, table))
    }

    /// As [`disconnect`], until it is undone: where a table cannot belong to a socket (before Linux 5.12).
    fn disconnect_until_undone[netns: Netns]
        DisconnectUntilUndone { index: u32, name: String, mark: u32 } -> (bool, Handle)
    {
        let undo = UndoOnDrop::new(Change::Disconnected { netns: netns.id(), index, mark }, &broker.undo_log)?;
        let stops_host = inside(&netns, || link::disconnect_until_undone((index, &name), mark))?;
        Ok((stops_host, broker.keep(Object::Undo(undo))?))
    }

    /// Has the kernel drop the frames of every interface of a name but the known one; `None`: of none.
    fn set_closed_name[netns: Netns] ClosedName(name: String, known: Option<u32>) -> () {
        inside(&netns, || link::set_closed_name(&name, known))
    }

    /// Loads a filter's program, to see whether the kernel accepts it.
    fn try_filter[] TryFilter(program: Vec<ClassicInsn>) -> () { Xdp::try_filter(&program) }

    /// Attaches the XDP program.
    fn attach_xdp[netns: Netns] AttachXdp { index: u32, queues: u32, mode: Mode } -> KeptXdp {
        broker.keep_xdp(inside(&netns, || Xdp::attach(index, queues, mode))?, None)
    }

    /// Adds the XDP program to an interface's dispatcher.
    fn join_xdp[netns: Netns] JoinXdp { index: u32, queues: u32, mode: Mode, extras: bool } -> KeptXdp {
        let mut membership = None;
        let mut announce = |program| {
            membership = Some(UndoOnDrop::new(Change::Member { netns: netns.id(), program }, &broker.undo_log)?);
            Ok(())
        };
        // On failure the program leaves the dispatcher, should it be in one.
        let xdp = inside(&netns, || Xdp::join(index, queues, (mode, extras), &mut announce))?;
        broker.keep_xdp(xdp, membership)
    }

    /// Attaches the XDP program so that it stays, or replaces the one that has stayed.
    fn attach_to_stay[netns: Netns] AttachToStay { index: u32, queues: u32, mode: Mode, failure: Failure } -> KeptXdp {
        broker.keep_xdp(inside(&netns, || Xdp::attach_to_stay(index, queues, mode, failure))?, None)
    }

    /// Sets what becomes of the frames that no program takes, of a program that stays.
    fn set_failure of XdpId [netns: Netns] XdpFailure(xdp: XdpId, index: u32, failure: Failure) -> () {
        broker.with(xdp.0, Object::xdp, |xdp| inside(&netns, || xdp.set_failure(index, failure)))
    }

    /// The counts of such frames.
    fn failed of XdpId [] XdpFailed(xdp: XdpId) -> Failed { broker.with(xdp.0, Object::xdp, |xdp| xdp.failed()) }

    /// Adds frames to these counts.
    fn note of XdpId [] XdpNote(xdp: XdpId, frames: Noted) -> () {
        broker.with(xdp.0, Object::xdp, |xdp| xdp.note(frames))
    }

    /// The account of the interface's frames.
    fn account of XdpId [] XdpAccount(xdp: XdpId) -> Account { broker.with(xdp.0, Object::xdp, |xdp| xdp.account()) }

    /// Adds the frames of sockets that are closed.
    fn add_closed_sockets of XdpId [] XdpClosedSockets(xdp: XdpId, frames: SocketFrames) -> () {
        broker.with(xdp.0, Object::xdp, |xdp| xdp.add_closed_sockets(frames))
    }

    /// The policy of the program that has stayed at an interface, else that of its name.
    fn left_failure[netns: Netns] LeftFailure(index: u32, name: Option<String>) -> Failure {
        inside(&netns, || xdp::left(index, name.as_deref()))
    }

    /// Detaches the program that stays; returns whether there was one.
    fn detach_left[netns: Netns] DetachLeft(index: u32) -> bool { inside(&netns, || xdp::detach_left(index)) }

    /// Directs the frames of a queue to an AF_XDP socket.
    fn insert of XdpId [socket: OwnedFd] XdpInsert(xdp: XdpId, queue: u32) -> () {
        let socket = xsk::checked(socket)?;
        broker.with(xdp.0, Object::xdp, |xdp| xdp.insert(queue, &socket))
    }

    /// Directs the frames of a queue to the kernel again.
    fn remove of XdpId [] XdpRemove(xdp: XdpId, queue: u32) -> () {
        broker.with(xdp.0, Object::xdp, |xdp| xdp.remove(queue))
    }

    /// Sets the mark of frames.
    fn set_mark of XdpId [] XdpMark(xdp: XdpId, mark: Mark) -> () {
        broker.with(xdp.0, Object::xdp, |xdp| xdp.set_mark(mark))
    }

    /// Replaces the filter.
    fn set_filter of XdpId [] XdpFilter(xdp: XdpId, filter: Option<Vec<ClassicInsn>>) -> () {
        broker.with(xdp.0, Object::xdp, |xdp| xdp.set_filter(filter.as_deref()))
    }

    /// Attaches the tcx program of host rings.
    fn attach_tcx[netns: Netns] AttachTcx(index: u32) -> TcxId {
        broker.keep(Object::Tcx(inside(&netns, || Tcx::attach(index))?)).map(TcxId)
    }

    /// Attaches the tcx program of a closed interface so that it stays, or replaces the one that has stayed.
    fn attach_tcx_to_stay[netns: Netns] AttachTcxToStay(index: u32, action: HostTxAction) -> TcxId {
        broker.keep(Object::Tcx(inside(&netns, || Tcx::attach_to_stay(index, action))?)).map(TcxId)
    }

    /// Attaches the programs of the veth pair whose near end is `near`, or detaches them.
    fn set_companion of TcxId [netns: Netns] TcxCompanion(tcx: TcxId, near: Option<u32>) -> () {
        broker.with(tcx.0, Object::tcx, |tcx| match near {
            Some(near) => inside(&netns, || tcx.attach_companion(near)),
            None => { tcx.detach_companion(); Ok(()) }
        })
    }

    /// Sets whether a companion has the interface's own rings.
    fn set_relayed of TcxId [] TcxRelayed(tcx: TcxId, relayed: bool) -> () {
        broker.with(tcx.0, Object::tcx, |tcx| tcx.set_relayed(relayed))
    }

    /// Attaches the tcx programs between an interface and a companion that has its rings.
    fn attach_relay[netns: Netns, far_netns: Netns] AttachRelay { nic: u32, near: u32, far: u32 } -> Handle {
        let at_far_end = |program: &OwnedFd| inside(&far_netns, || tcx::attach_to_far_end(program, far));
        let relay = inside(&netns, || tcx::Relay::attach(RelayEnds { nic, near, far }, at_far_end))?;
        broker.keep(Object::Relay(relay))
    }

    /// Sets the mark of frames.
    fn set_mark of TcxId [] TcxMark(tcx: TcxId, mark: Mark) -> () {
        broker.with(tcx.0, Object::tcx, |tcx| tcx.set_mark(mark))
    }

    /// Sets what becomes of the frames that the host sends.
    fn set_host_tx of TcxId [] TcxHostTx(tcx: TcxId, action: HostTxAction) -> () {
        broker.with(tcx.0, Object::tcx, |tcx| tcx.set_host_tx(action))
    }

    /// The frames that the programs dropped.
    fn dropped of TcxId [] TcxDropped(tcx: TcxId) -> u64 { broker.with(tcx.0, Object::tcx, |tcx| Ok(tcx.dropped())) }

    /// The frames that passed the program of host rings because its deadline was over.
    fn passed of TcxId [] TcxPassed(tcx: TcxId) -> u64 { broker.with(tcx.0, Object::tcx, |tcx| Ok(tcx.passed())) }

    /// The received frames that passed the programs between an interface and a companion that has its rings.
    fn passed of Handle [] RelayPassed(relay: Handle) -> u64 {
        broker.with(relay, Object::relay, |relay| Ok(relay.passed()))
    }

    /// Sets the deadline of a program to `ms` from now. Returns for how many it was over; `None`: an earlier broker.
    fn extend of Handle [] Extend(program: Handle, ms: u32) in Deadlines -> Option<u64> { broker.extend(program, ms) }

    /// Sets the deadline of a queue of a program in the same way.
    fn extend_queue of Handle [] ExtendQueue(program: Handle, queue: u32, ms: u32) in Deadlines -> () {
        broker.deadline(program)?.extend_queue(queue, Duration::from_millis(ms.into()).min(MAX_DEADLINE))
    }

    /// The faults that an XDP program has found in frames, at which it looks from now on by this MTU.
    fn look of Handle [] Look(program: Handle, mtu: u32) in Deadlines -> Faults { broker.deadline(program)?.look(mtu) }

    /// Disables the offloads that would hide parts of the frames of an interface; `None` if none is enabled.
    fn disable_offloads[netns: Netns] DisableOffloads(index: u32) -> Option<Handle> {
        broker.keep_undo(offloads::disable(&netns, index, &broker.undo_log)?)
    }

    /// Disables GRO at an interface; `None` if it is off.
    fn disable_merging[netns: Netns] DisableMerging { index: u32, name: String } -> Option<Handle> {
        broker.keep_undo(offloads::disable_merging(&netns, (index, &name), &broker.undo_log))
    }

    /// Undoes and forgets it.
    fn undo of Handle [] Drop(object: Handle) -> () { broker.drop_object(object) }

    // Interfaces that the daemon makes.

    /// Creates the veth pair of the host rings of interface `nic`, or of the interface's own rings (`relay`). Returns
    /// the near end, the far end with its program, and the far end's namespace.
    fn create_veth[netns: Netns] CreateVeth { nic: u32, queues: u32, relay: bool } -> With<(u32, u32, KeptXdp), Netns> {
        let name = if relay { pairs::relay_name(nic) } else { pairs::near_name(nic) };
        let pairs::HostVeth { near, far_netns, far, xdp } = pairs::create_pair(&netns, &name, queues)?;
        lock(&broker.pairs).extend([(netns.id(), near), (far_netns.id(), far)]);
        Ok(((near, far, broker.keep_xdp(xdp, None)?), far_netns))
    }

    /// Sets the far end of such a pair up or down.
    fn set_link[netns: Netns] SetLink(index: u32, up: bool) -> () {
        if !lock(&broker.pairs).contains(&(netns.id(), index)) {
            return Err(not_made_here());
        }
        inside(&netns, || veth::set_state(index, up))
    }

    /// A new namespace for the hidden ends of persistent ports. Its own stack must send nothing to the switches:
    /// without IPv6 it sends nothing.
    fn create_hidden_namespace[] HiddenNamespace -> Fd<Netns> {
        let created = Netns::new()?;
        let _ = created.run(|| fs::write("/proc/sys/net/ipv6/conf/default/disable_ipv6", "1"));
        Ok(created)
    }

    /// Creates the veth pair of a persistent port, whose visible end keeps its offloads (`whole`) or not; returns the
    /// index of its hidden end.
    fn create_persistent_veth[netns: Netns, hidden: Netns] CreatePersistentVeth {
        name: String, queues: u32, whole: bool
    } -> u32 {
        broker.create_persistent(&name, queues, (&netns, &hidden), whole)
    }

    /// Has the kernel forward packets between these hidden ends, each with the number of its switch, by these
    /// addresses, and by no others.
    fn forward_in_kernel[hidden: Netns] ForwardInKernel { ports: Vec<(u32, u32)>, places: Vec<KnownAddress> } -> Found {
        broker.forward_in_kernel(&hidden, &ports, &places)
    }

    /// The addresses by which the kernel forwards between these hidden ends, as an earlier daemon has left them.
    fn places_in_kernel[hidden: Netns] PlacesInKernel(ports: Vec<u32>) -> Vec<KnownAddress> {
        broker.in_kernel_path(&hidden, &ports, KernelPath::places)
    }

    /// Deletes a pair of veth, by one of its ends.
    fn delete_veth[netns: Netns] DeleteVeth(index: u32) -> () { broker.delete_pair(&netns, index) }

    /// Deletes the companion of a hidden end that is gone.
    fn delete_companion[hidden: Netns] DeleteCompanion(index: u32) -> () { broker.delete_companion(&hidden, index) }

    // Persistent ports that outlast the daemon, and a text about them and their switches.

    /// Has a persistent port outlast the daemon, and marks its hidden end with a text about it, of at most 200 bytes.
    fn make_last[hidden: Netns] MakeLast { index: u32, text: String } -> () {
        if !lock(&broker.pairs).contains(&(hidden.id(), index)) {
            return Err(not_made_here());
        }
        broker.make_last(&hidden, index, &text)
    }

    /// The persistent ports that an earlier daemon has left: the index of each hidden end, with its text, the one with
    /// most frames first, and the namespace of all.
    fn find_lasting[] FindLasting -> With<Vec<(u32, String)>, Option<Netns>> { broker.find_lasting() }

    /// Lets the namespace of hidden ends end, of which none is left.
    fn end_lasting[] EndLasting -> () { broker.end_lasting() }

    /// Replaces the text about a user, or all else, which is in a memory file, and names these network namespaces. An
    /// empty one is removed.
    fn write_state[text: OwnedFd] [..namespaces] WriteState(user: Option<u32>) -> () {
        broker.write_state(user, text, namespaces)
    }

    /// The text about all else that was written last, and those of its namespaces that still exist.
    fn read_state[] ReadState -> With<Option<String>, Vec<Netns>> { broker.read_state() }

    /// The texts about users, or why one cannot be used.
    fn read_settings[] ReadSettings -> Vec<(u32, Result<String, String>)> { broker.read_settings() }

    // Callers.

    /// The network namespace in which the peer of an accepted connection made it.
    fn netns_of_peer[connection: OwnedFd] NamespaceOfPeer -> Fd<Netns> { Netns::of_socket(connection) }

    /// Whether the process that has connected could make packet sockets itself in the namespace in which it did.
    fn peer_may_have_packets[connection: OwnedFd] PeerMayHavePackets -> bool { packet_socket::peer_may_make(connection) }

    /// The network namespace of a thread, whose descriptor is a pidfd.
    fn netns_of_thread[pidfd: OwnedFd] NamespaceOfThread(tid: u32) in Node -> Fd<Netns> {
        RemoteThread::from_parts(tid, pidfd).ok_or(io::ErrorKind::InvalidInput)?.netns()
    }

    // The node.

    /// Mounts one of the node's mounts.
    fn mount_node[] MountNode(number: usize) -> With<Result<(), Refused>, Option<Device>> {
        Ok(match mounts::mount(&broker.setup, number, &mut lock(&broker.devices)) {
            Ok(device) => (Ok(()), Some(device)),
            Err(refusal) => (Err(refused(refusal)), None),
        })
    }

    /// Unmounts the node.
    fn unmount_node[] UnmountNode -> () {
        mounts::unmount(&broker.setup);
        Ok(())
    }

    /// Checks that the link to the node can be made; returns whether it is there.
    fn check_node_link[] CheckNodeLink(path: PathBuf) -> Result<bool, Refused> {
        Ok(mounts::check(&broker.setup, &path).map_err(refused))
    }

    /// Makes the link to the node, unless it is there.
    fn link_node[] LinkNode(path: PathBuf) -> Result<(), Refused> {
        Ok(mounts::link(&broker.setup, &path).map_err(refused))
    }

    /// Removes the link to the node.
    fn unlink_node[] UnlinkNode(path: PathBuf) -> () {
        mounts::unlink(&broker.setup, &path);
        Ok(())
    }

    /// Registers a file as a backing file of a mount; returns its number.
    fn open_backing[device: Device, file: OwnedFd] OpenBacking in Node -> i32 {
        Ok(device.open_backing(file.as_fd())?.number())
    }

    /// Unregisters it.
    fn close_backing[device: Device] CloseBacking(number: i32) in Node -> () {
        device.close_backing(Backing::of_number(number));
        Ok(())
    }

    /// Starts a process that accesses the memory of programs; returns the connection to it, and its pidfd.
    fn start_memory_helper[] StartMemoryHelper in Node -> With<Handle, (OwnedFd, OwnedFd)> {
        mounts::start_helper(broker)
    }

    /// Lets it access the memory of a thread, by its pidfd, of a program that has the node open, and of no other.
    fn use_memory_helper of Handle [pidfd: OwnedFd] UseMemoryHelper(helper: Handle, tid: u32) in Node -> () {
        if !mounts::has_node_open(tid, &lock(&broker.devices)) || !mounts::runs(&pidfd) {
            return Err(io::Error::from_raw_os_error(EPERM));
        }
        let thread = RemoteThread::from_parts(tid, pidfd).ok_or(io::ErrorKind::InvalidInput)?;
        lock(&broker.helpers).get(&helper).ok_or(io::ErrorKind::NotFound)?.approve(&thread)
    }

    /// Kills it.
    fn kill_memory_helper of Handle [] KillMemoryHelper(helper: Handle) in Node -> () {
        let helper = lock(&broker.helpers).remove(&helper);
        helper.ok_or(io::ErrorKind::NotFound)?.kill()
    }

    /// The number of the process that keeps the privileges: this one, or its broker.
    fn process_id[] ProcessId -> u32 { Ok(process::pid()) }

    // After a crash of the daemon.

    /// The handle that the broker gave out last.
    fn last_handle[] LastHandle -> Handle { Ok(broker.last_handle()) }

    /// Returns the text, which no other answer is: those before it were for a daemon that has crashed.
    [] Echo(text: String) -> String { Ok(text) }

    /// Undoes and forgets all that was made after this handle, of which no daemon knows.
    fn forget_since[] ForgetSince(last: Handle) -> () {
        broker.forget_since(last);
        Ok(())
    }

    // Files.

    /// Makes memory files immutable, so that nobody can remove pages of them.
    fn forbid_removal[] [..files] ForbidRemoval -> () {
        wait_at_fault("files", &broker.setup.socket);
        files.try_for_each(|file| memfd::forbid_removal(file.as_fd()))
    }

    /// The policy, if the broker was started with its file.
    fn read_policy[] Policy -> Option<Result<Policy, String>> { Ok(broker.setup.policy.as_deref().map(Policy::load)) }

    /// The contents of the configuration's file, if the broker was started with one.
    fn read_configuration[] Configuration -> Option<Result<Option<Vec<u8>>, String>> {
        let config = broker.setup.config.as_ref();
        Ok(config.map(|path| trusted_file::read(path, owner(), "configuration")))
    }

    /// Removes the daemon's socket; `false`: there is no broker.
    fn remove_bound_socket[] RemoveSocket -> bool {
        let socket = &broker.setup.socket;
        if socket.as_os_str().is_empty() { Ok(false) } else { remove_own_socket(socket).map(|()| true) }
    }

    /// Writes parameters into files beside the socket; unless `makes` only if there are files. `false`: there is no
    /// broker.
    fn show_bound_parameters[] ShowParameters(all: Vec<Parameter>, makes: bool) -> bool {
        let socket = &broker.setup.socket;
        if socket.as_os_str().is_empty() { Ok(false) } else { parameters::show(socket, &all, makes).map(|()| true) }
    }

    /// Removes these files; `false`: there is no broker.
    fn hide_bound_parameters[] HideParameters -> bool {
        let socket = &broker.setup.socket;
        if socket.as_os_str().is_empty() { Ok(false) } else { parameters::hide(socket).map(|()| true) }
    }

    /// Opens the log again if it was moved away, and begins it anew if it is too long.
    fn reopen_log[] OpenLog -> Fd<OwnedFd> { log::tend().and_then(|()| io::stderr().as_fd().try_clone_to_owned()) }
}

/// An XDP program that the broker keeps: its mode, whether it accepts packets of several buffers, and calls a filter.
pub(crate) type KeptXdp = (XdpId, Mode, bool, bool);

/// A refusal as it is sent.
pub(crate) type Refused = (i32, String);

fn refused(refusal: Refusal) -> Refused {
    (refusal.errno, refusal.why)
}

/// Removes the file of the daemon's socket, and nothing that a link of another user leads to.
pub(crate) fn remove_own_socket(path: &Path) -> io::Result<()> {
    let place = Place::of(path)?;
    place.identity().map_or(Ok(()), |socket| place.remove(socket))
}

/// Writes parameters into files, or removes these, without a broker.
pub(crate) use parameters::{hide as hide_own_parameters, show as show_own_parameters};

/// The operations of a process without broker.
static OWN: LazyLock<Broker> = LazyLock::new(|| Broker::new(Setup::default()));

/// Has an operation done, by the broker or, without one, here.
fn call<R: Reply>(request: Request, fds: Vec<BorrowedFd<'_>>) -> io::Result<R::Done> {
    let answer = match connection::ask(&request, request.lane(), &fds)? {
        Some(answer) => answer,
        None => OWN.serve(request, fds.iter().map(|fd| fd.try_clone_to_owned()).collect::<io::Result<_>>()?)?,
    };
    R::decode(answer)
}
