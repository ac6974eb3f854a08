// SPDX-License-Identifier: BSD-2-Clause
//! The objects that the broker keeps.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io;
use std::mem;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::sleep;
use std::time::Duration;

use unetmap_sys::deadline::Deadline;
use unetmap_sys::kernel_path::{Found, KernelPath, KnownAddress};
use unetmap_sys::link::veth as sys_veth;
use unetmap_sys::memory_helper::Approvals;
use unetmap_sys::netns::{Netns, NetnsUse};
use unetmap_sys::tcx::{Relay, Tcx};
use unetmap_sys::xdp::{Mode, Xdp};

use super::setup::{Handle, Setup, XdpId, inside, not_made_here};
use super::undo::{UndoLog, UndoOnDrop};
use super::veth;
use crate::fault;
use crate::threads::lock;
use crate::tuning::broker::{MAX_DEADLINE, MAX_OBJECTS};

/// A change that is undone when it is dropped.
#[allow(clippy::large_enum_variant, reason = "there are few of them")]
pub(super) enum Object {
    /// A program, and its place in a dispatcher, if it has one, which it leaves afterwards.
    Xdp(Xdp, #[allow(dead_code, reason = "dropped")] Option<UndoOnDrop>),
    /// A program that stays, and duplicates of its sockets: see [`Broker::close_sockets`].
    Hidden(Xdp, Vec<OwnedFd>),
    Tcx(Tcx),
    Relay(Relay),
    Undo(#[allow(dead_code, reason = "dropped")] UndoOnDrop),
}

impl Object {
    pub(super) fn xdp(&mut self) -> Option<&mut Xdp> {
        if let Object::Xdp(xdp, _) | Object::Hidden(xdp, _) = self { Some(xdp) } else { None }
    }

    pub(super) fn tcx(&mut self) -> Option<&mut Tcx> {
        if let Object::Tcx(tcx) = self { Some(tcx) } else { None }
    }

    pub(super) fn relay(&mut self) -> Option<&mut Relay> {
        if let Object::Relay(relay) = self { Some(relay) } else { None }
    }
}

/// The state of the broker's process.
pub(super) struct Broker {
    pub(super) setup: Setup,
    pub(super) objects: Mutex<BTreeMap<Handle, Arc<Mutex<Object>>>>,
    /// Deadlines of programs among the objects. Apart, as an object may be in use for seconds.
    pub(super) deadlines: Mutex<BTreeMap<Handle, Arc<Deadline>>>,
    /// Ends of the pairs of veth that it made: their namespace and index.
    pub(super) pairs: Mutex<BTreeSet<(u64, u32)>>,
    /// The kernel's path between persistent ports, once it was needed.
    kernel_path: Mutex<Option<KernelPath>>,
    /// Memory helpers.
    pub(super) helpers: Mutex<BTreeMap<Handle, Approvals>>,
    /// The devices of the node's mounts, also of those that were unmounted: files of theirs may be open.
    pub(super) devices: Mutex<Vec<(u32, u32)>>,
    /// Names and threads that show that namespaces are in use, by inode number.
    uses: Mutex<BTreeMap<u64, NetnsUse>>,
    last: AtomicU64,
    pub(super) undo_log: Arc<UndoLog>,
}

impl Broker {
    pub(super) fn new(setup: Setup) -> Broker {
        Broker {
            undo_log: Arc::new(UndoLog::new(&setup.socket)),
            setup,
            objects: Mutex::default(),
            deadlines: Mutex::default(),
            pairs: Mutex::default(),
            kernel_path: Mutex::default(),
            helpers: Mutex::default(),
            devices: Mutex::default(),
            uses: Mutex::default(),
            last: AtomicU64::new(0),
        }
    }

    /// A handle that was never used.
    pub(super) fn handle(&self) -> Handle {
        Handle(self.last.fetch_add(1, Ordering::Relaxed) + 1)
    }

    /// The handle that was given out last.
    pub(super) fn last_handle(&self) -> Handle {
        Handle(self.last.load(Ordering::Relaxed))
    }

    /// Drops all objects that were made after this handle; the last first, as at the end.
    pub(super) fn forget_since(&self, last: Handle) {
        loop {
            let newest = lock(&self.objects).keys().next_back().copied();
            let Some(newest) = newest.filter(|newest| *newest > last) else { return };
            let _ = self.drop_object(newest);
        }
    }

    /// Keeps an object until it is dropped by its handle.
    pub(super) fn keep(&self, object: Object) -> io::Result<Handle> {
        let (handle, mut objects) = (self.handle(), lock(&self.objects));
        if objects.len() >= MAX_OBJECTS {
            return Err(io::Error::other(format!("the broker keeps {MAX_OBJECTS} programs and settings already")));
        }
        let deadline = match &object {
            Object::Xdp(xdp, _) => Some(xdp.deadline().clone()),
            Object::Tcx(tcx) => Some(tcx.deadline().clone()),
            Object::Relay(relay) => Some(relay.deadline().clone()),
            Object::Hidden(..) | Object::Undo(_) => None,
        };
        if let Some(deadline) = deadline {
            lock(&self.deadlines).insert(handle, deadline);
        }
        objects.insert(handle, Arc::new(Mutex::new(object)));
        Ok(handle)
    }

    /// Keeps a program, and its place in a dispatcher.
    pub(super) fn keep_xdp(&self, xdp: Xdp, place: Option<UndoOnDrop>) -> io::Result<(XdpId, Mode, bool, bool)> {
        let (mode, frags, calls_filter) = (xdp.mode(), xdp.frags(), xdp.calls_filter());
        Ok((XdpId(self.keep(Object::Xdp(xdp, place))?), mode, frags, calls_filter))
    }

    /// Keeps a change.
    pub(super) fn keep_undo(&self, undo: Option<UndoOnDrop>) -> io::Result<Option<Handle>> {
        undo.map(|undo| self.keep(Object::Undo(undo))).transpose()
    }

    /// Works with an object of the kind that `select` accepts; requests about others do not wait for it.
    pub(super) fn with<O, T>(
        &self,
        handle: Handle,
        select: fn(&mut Object) -> Option<&mut O>,
        work: impl FnOnce(&mut O) -> io::Result<T>,
    ) -> io::Result<T> {
        let object = lock(&self.objects).get(&handle).cloned().ok_or(io::ErrorKind::NotFound)?;
        let mut object = lock(&object);
        work(select(&mut object).ok_or(io::ErrorKind::NotFound)?)
    }

    /// Sets the deadline of a program to `ms` milliseconds from now. Returns for how many it was over.
    pub(super) fn extend(&self, program: Handle, ms: u32) -> io::Result<Option<u64>> {
        let over = self.deadline(program)?.extend(Duration::from_millis(ms.into()).min(MAX_DEADLINE))?;
        Ok(Some(over.as_millis() as u64))
    }

    /// The deadline of a program.
    pub(super) fn deadline(&self, program: Handle) -> io::Result<Arc<Deadline>> {
        lock(&self.deadlines).get(&program).cloned().ok_or_else(|| io::ErrorKind::NotFound.into())
    }

    /// Returns those of these namespaces that have a name or a thread. What was found for one is looked at first.
    pub(super) fn used_namespaces(&self, ids: Vec<u64>) -> Vec<u64> {
        let mut uses = lock(&self.uses);
        let mut known = mem::take(&mut *uses);
        let mut found = |id: u64| known.remove(&id).filter(|known| known.shows(id)).or_else(|| NetnsUse::find(id));
        *uses = ids.into_iter().take(MAX_OBJECTS).filter_map(|id| Some((id, found(id)?))).collect();
        uses.keys().copied().collect()
    }

    /// Creates the veth pair of a persistent port: see [`veth::create_persistent`].
    pub(super) fn create_persistent(
        &self,
        name: &str,
        queues: u32,
        (netns, hidden): (&Netns, &Netns),
        whole: bool,
    ) -> io::Result<u32> {
        let index = veth::create_persistent(name, queues, (netns, hidden), whole)?;
        lock(&self.pairs).insert((hidden.id(), index));
        Ok(index)
    }

    /// Has the kernel forward packets between these hidden ends, and no others.
    pub(super) fn forward_in_kernel(
        &self,
        hidden: &Netns,
        ports: &[(u32, u32)],
        places: &[KnownAddress],
    ) -> io::Result<Found> {
        let indexes: Vec<u32> = ports.iter().map(|(index, _)| *index).collect();
        self.in_kernel_path(hidden, &indexes, |path| path.set(ports, places))
    }

    /// Works with the kernel's path in the namespace of the hidden ends, all of which the broker has made or found.
    pub(super) fn in_kernel_path<T: Send>(
        &self,
        hidden: &Netns,
        ends: &[u32],
        work: impl FnOnce(&KernelPath) -> io::Result<T> + Send,
    ) -> io::Result<T> {
        let pairs = lock(&self.pairs);
        if !ends.iter().all(|index| pairs.contains(&(hidden.id(), *index))) {
            return Err(not_made_here());
        }
        drop(pairs);
        let mut path = lock(&self.kernel_path);
        let path = &mut *path;
        inside(hidden, || {
            let path = match path {
                Some(path) => path,
                none => none.insert(KernelPath::open()?),
            };
            work(path)
        })
    }

    /// Deletes a pair of veth, by one of its ends.
    pub(super) fn delete_pair(&self, netns: &Netns, index: u32) -> io::Result<()> {
        if !lock(&self.pairs).remove(&(netns.id(), index)) {
            return Err(not_made_here());
        }
        inside(netns, || sys_veth::delete(index))
    }

    /// Drops an object.
    pub(super) fn drop_object(&self, handle: Handle) -> io::Result<()> {
        wait_at_fault("interfaces", &self.setup.socket);
        lock(&self.deadlines).remove(&handle);
        let object = lock(&self.objects).remove(&handle);
        drop(object.ok_or(io::ErrorKind::NotFound)?);
        Ok(())
    }
}

/// If the daemon was started with this fault: waits while there is a file `hold` beside the socket. `interfaces`: as
/// for a driver that takes long; `network-lock`: as for the kernel's lock of the network configuration; `files`: when
/// it makes memory files immutable. Says so by a file `held`.
pub(super) fn wait_at_fault(fault: &str, socket: &Path) {
    let hold = socket.with_extension("hold");
    if !fault::is(fault) || !hold.exists() {
        return;
    }
    // Path: in builds for debugging alone, whose tests have the folder.
    let _ = fs::write(socket.with_extension("held"), "");
    while hold.exists() {
        sleep(Duration::from_millis(1));
    }
}
