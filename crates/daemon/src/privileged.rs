// SPDX-License-Identifier: BSD-2-Clause
//! The operations of the broker for the rest of the daemon, with the owners of what the broker keeps.

use std::io;
use std::ops::Deref;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::path::Path;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use unetmap_core::control::trusted_file;
use unetmap_sys::deadline::Faults;
use unetmap_sys::log::set_stderr;
use unetmap_sys::memory_helper::MemoryHelper;
use unetmap_sys::netns::Netns;
use unetmap_sys::process;
use unetmap_sys::tcx::HostTxAction;
use unetmap_sys::thread::RemoteThread;
use unetmap_sys::xdp::Mode;
use unetmap_sys::xsk::{Queue, Umem, UnboundXsk};

use crate::broker::operations;
use crate::broker::{Handle, HiddenEnd, Parameter, TcxId, XdpId};
use crate::owner::owner;
use crate::policy::Policy;

pub(crate) use crate::broker::operations::*;

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
    PacketMemory { umem, file, base }: PacketMemory<'_>,
    shared_with: Option<BorrowedFd<'a>>,
) -> io::Result<UnboundXsk<'a>> {
    let (at, bytes) = (base + umem.offset as u64, umem.bytes as u64);
    let fd = operations::create_xsk(netns, file, queue, at, bytes, umem.buffer, shared_with.is_none())?;
    Ok(UnboundXsk::from_fd(fd, queue, umem, shared_with))
}

/// Opens a hidden end: its XDP program, and a socket for each of these queues, not bound yet.
pub(crate) fn open_hidden(
    hidden: &Netns,
    index: u32,
    queues: &[Queue],
    PacketMemory { umem, file, base }: PacketMemory<'_>,
) -> io::Result<(HiddenEnd, Vec<OwnedFd>)> {
    let buffers = (base + umem.offset as u64, umem.bytes as u64, umem.buffer);
    operations::open_hidden_end(hidden, file, index, queues, buffers)
}

/// An object that the broker undoes when this is dropped.
#[derive(Debug)]
pub(crate) struct Undo(Handle);

impl Undo {
    /// Owns the object that the broker keeps under this handle.
    pub(crate) fn of(handle: Handle) -> Undo {
        Undo(handle)
    }

    pub(crate) fn handle(&self) -> Handle {
        self.0
    }
}

impl Drop for Undo {
    fn drop(&mut self) {
        if let Err(e) = self.0.undo() {
            tracing::warn!("a change of an interface is not undone: {e}");
        }
    }
}

/// The deadline of a program. After it frames pass to the kernel.
#[derive(Debug)]
pub(crate) struct Deadline(Handle);

impl Deadline {
    /// Sets the deadline to `time` from now. Returns for how long it was over.
    pub(crate) fn extend(&self, time: Duration) -> io::Result<Duration> {
        unless_detached(self.0.extend(milliseconds(time)).map(|over| Duration::from_millis(over.unwrap_or(0))))
    }

    /// The faults that the program has found in frames, at which it looks from now on by this MTU.
    pub(crate) fn look(&self, mtu: u32) -> io::Result<Faults> {
        self.0.look(mtu)
    }

    /// Sets the deadline of a queue to `time` from now.
    pub(crate) fn extend_queue(&self, queue: u32, time: Duration) -> io::Result<()> {
        unless_detached(self.0.extend_queue(queue, milliseconds(time)))
    }
}

fn milliseconds(time: Duration) -> u32 {
    u32::try_from(time.as_millis()).unwrap_or(u32::MAX)
}

/// A program may be detached meanwhile.
fn unless_detached<T: Default>(extended: io::Result<T>) -> io::Result<T> {
    extended.or_else(|e| if e.kind() == io::ErrorKind::NotFound { Ok(T::default()) } else { Err(e) })
}

/// The XDP program of an interface, which is detached when this is dropped, unless it stays: see
/// [`unetmap_sys::xdp::Xdp`].
#[derive(Debug)]
pub(crate) struct Xdp {
    kept: KeptXdp,
    deadline: Arc<Deadline>,
    _undo: Undo,
}

impl Xdp {
    pub(crate) fn of(kept: KeptXdp) -> Xdp {
        let (XdpId(handle), ..) = kept;
        Xdp { kept, deadline: Arc::new(Deadline(handle)), _undo: Undo(handle) }
    }

    pub(crate) fn kept(&self) -> KeptXdp {
        self.kept
    }

    pub(crate) fn mode(&self) -> Mode {
        self.kept.1
    }

    pub(crate) fn frags(&self) -> bool {
        self.kept.2
    }

    pub(crate) fn calls_filter(&self) -> bool {
        self.kept.3
    }

    pub(crate) fn deadline(&self) -> &Arc<Deadline> {
        &self.deadline
    }
}

impl Deref for Xdp {
    type Target = XdpId;

    fn deref(&self) -> &XdpId {
        &self.kept.0
    }
}

/// The tcx program at an interface's egress, which is detached when this is dropped, unless it stays.
pub(crate) struct TcxPrograms {
    id: TcxId,
    deadline: Arc<Deadline>,
    _undo: Undo,
}

impl TcxPrograms {
    /// Owns the programs that the broker keeps under this handle.
    pub(crate) fn of(handle: Handle) -> Arc<TcxPrograms> {
        Arc::new(TcxPrograms { id: TcxId(handle), deadline: Arc::new(Deadline(handle)), _undo: Undo(handle) })
    }

    pub(crate) fn handle(&self) -> Handle {
        self.id.0
    }

    pub(crate) fn set_host_tx(&self, action: HostTxAction) -> io::Result<()> {
        self.id.set_host_tx(action)
    }
}

/// The tcx programs of an interface, in its namespace: see [`unetmap_sys::tcx::Tcx`].
pub(crate) struct Tcx {
    programs: Arc<TcxPrograms>,
    netns: Arc<Netns>,
}

impl Tcx {
    pub(crate) fn new(programs: Arc<TcxPrograms>, netns: &Arc<Netns>) -> Tcx {
        Tcx { programs, netns: netns.clone() }
    }

    pub(crate) fn handle(&self) -> Handle {
        self.programs.handle()
    }

    pub(crate) fn deadline(&self) -> &Arc<Deadline> {
        &self.programs.deadline
    }

    pub(crate) fn attach_companion(&self, near: u32) -> io::Result<()> {
        self.set_companion(&self.netns, Some(near))
    }

    pub(crate) fn detach_companion(&self) {
        if let Err(e) = self.set_companion(&self.netns, None) {
            tracing::warn!("the veth pair of host rings is not left: {e}");
        }
    }
}

impl Deref for Tcx {
    type Target = TcxId;

    fn deref(&self) -> &TcxId {
        &self.programs.id
    }
}

/// The tcx programs between an interface and a companion that has its rings: see [`unetmap_sys::tcx::Relay`].
pub(crate) struct RelayPrograms {
    programs: Undo,
    deadline: Arc<Deadline>,
}

impl RelayPrograms {
    /// Owns the programs that the broker keeps under this handle.
    pub(crate) fn of(handle: Handle) -> RelayPrograms {
        RelayPrograms { programs: Undo(handle), deadline: Arc::new(Deadline(handle)) }
    }

    pub(crate) fn handle(&self) -> Handle {
        self.programs.0
    }

    pub(crate) fn deadline(&self) -> &Arc<Deadline> {
        &self.deadline
    }

    /// Frames that the interface received and that passed the programs because their deadline was over.
    pub(crate) fn passed(&self) -> io::Result<u64> {
        self.programs.0.passed()
    }
}

/// A veth pair whose far end, in a namespace of its own, represents the host's stack, or the interface.
pub(crate) struct HostVeth {
    /// Interface index of the near end.
    pub(crate) near: u32,
    pub(crate) far_netns: Netns,
    pub(crate) far: u32,
    pub(crate) xdp: Xdp,
}

impl HostVeth {
    /// Creates the veth pair of the host rings of interface `nic`, or of the interface's own rings (`relay`).
    pub(crate) fn create(netns: &Netns, (nic, queues): (u32, u32), relay: bool) -> io::Result<HostVeth> {
        let ((near, far, program), far_netns) = operations::create_veth(netns, nic, queues, relay)?;
        Ok(HostVeth { near, far_netns, far, xdp: Xdp::of(program) })
    }
}

/// A process that accesses the memory of programs. It exits when this is dropped, unless it is occupied.
pub(crate) struct Helper {
    pub(crate) process: MemoryHelper,
    handle: Handle,
}

impl Helper {
    pub(crate) fn start() -> io::Result<Helper> {
        let (handle, (connection, pidfd)) = operations::start_memory_helper()?;
        Ok(Helper { process: MemoryHelper::of_parts(connection, pidfd), handle })
    }

    /// Lets it access the memory of a thread of a program that has the node open, and of no other.
    pub(crate) fn use_for(&self, thread: &RemoteThread) -> io::Result<()> {
        self.handle.use_memory_helper(thread, thread.tid())
    }

    /// Kills it.
    pub(crate) fn kill(&self) {
        if let Err(e) = self.handle.kill_memory_helper() {
            tracing::debug!("a process that accesses programs' memory is not killed: {e}");
        }
    }
}

/// An interface's own count of frames that it did not send; 0 if it cannot be read.
pub(crate) fn tx_dropped(netns: &Netns, index: u32) -> u64 {
    operations::frame_counts(netns, index).ok().flatten().map_or(0, |counts| counts.tx_dropped)
}

/// The number of the process that keeps the privileges: this one, or its broker.
pub(crate) fn pid() -> u32 {
    static PID: OnceLock<u32> = OnceLock::new();
    *PID.get_or_init(|| operations::process_id().unwrap_or_else(|_| process::pid()))
}

/// Why AF_XDP sockets and XDP programs cannot be had. Nothing of it changes while the daemon runs.
pub(crate) fn xdp_obstacle() -> Option<String> {
    static OBSTACLE: OnceLock<Option<String>> = OnceLock::new();
    OBSTACLE.get_or_init(|| operations::obstacle_of_xdp().unwrap_or_default()).clone()
}

/// The policy, as [`Policy::load`] reads it.
pub(crate) fn policy(path: &Path) -> Result<Policy, String> {
    operations::read_policy().map_err(|e| e.to_string())?.unwrap_or_else(|| Policy::load(path))
}

/// The contents of the configuration's file; none if there is no file.
pub(crate) fn configuration(path: &Path) -> Result<Vec<u8>, String> {
    let read = operations::read_configuration().map_err(|e| e.to_string())?;
    Ok(read.unwrap_or_else(|| trusted_file::read(path, owner(), "configuration"))?.unwrap_or_default())
}

/// Opens the log's file again if it was moved away, or is too long.
pub(crate) fn open_log() -> io::Result<()> {
    set_stderr(operations::reopen_log()?)
}

/// Removes the daemon's socket.
pub(crate) fn remove_socket(path: &Path) -> io::Result<()> {
    if operations::remove_bound_socket()? { Ok(()) } else { operations::remove_own_socket(path) }
}

/// Writes parameters into files beside the socket, where all users read them; unless `makes` only if there are files.
pub(crate) fn show_parameters(socket: &Path, all: Vec<Parameter>, makes: bool) -> io::Result<()> {
    if operations::show_bound_parameters(all.clone(), makes)? {
        return Ok(());
    }
    operations::show_own_parameters(socket, &all, makes)
}

/// Removes these files.
pub(crate) fn hide_parameters(socket: &Path) -> io::Result<()> {
    if operations::hide_bound_parameters()? { Ok(()) } else { operations::hide_own_parameters(socket) }
}
