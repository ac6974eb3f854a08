// SPDX-License-Identifier: BSD-2-Clause
//! The broker's process: its connections, and what it keeps.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::io;
use std::mem;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Instant;

use unetmap_core::errno::EMFILE;
use unetmap_sys::deadline::Deadline;
use unetmap_sys::memory_helper::Approvals;
use unetmap_sys::netns::NetnsUse;
use unetmap_sys::place;
use unetmap_sys::process::{self, Signal};
use unetmap_sys::socket;
use unetmap_sys::tcx::{Relay, Tcx};
use unetmap_sys::xdp::Xdp;

use super::undo::{UndoLog, UndoOnDrop};
use super::{Answer, Failure, Handle, LANES, Request, Setup};
use crate::confinement;
use crate::handover::channel::{receive, send};
use crate::log;
use crate::threads;
use crate::tuning::broker::{FORMER_LIMIT, FORMER_POLL, MAX_OBJECTS, REQUEST_BYTES};

/// What is undone when it is dropped.
#[allow(clippy::large_enum_variant, reason = "there are few of them")]
pub(super) enum Object {
    /// A program, and its place in a dispatcher, if it has one, which it leaves afterwards.
    Xdp(Xdp, #[allow(dead_code, reason = "dropped")] Option<UndoOnDrop>),
    Tcx(Tcx),
    Relay(Relay),
    Undo(#[allow(dead_code, reason = "dropped")] UndoOnDrop),
}

impl Object {
    pub(super) fn xdp(&mut self) -> Option<&mut Xdp> {
        if let Object::Xdp(xdp, _) = self { Some(xdp) } else { None }
    }

    pub(super) fn tcx(&mut self) -> Option<&mut Tcx> {
        if let Object::Tcx(tcx) = self { Some(tcx) } else { None }
    }
}

/// What serves requests.
pub(super) struct Broker {
    pub(super) setup: Setup,
    pub(super) objects: Mutex<BTreeMap<Handle, Arc<Mutex<Object>>>>,
    /// Those of programs among the objects. Apart, as an object may be in use for seconds.
    pub(super) deadlines: Mutex<BTreeMap<Handle, Arc<Deadline>>>,
    /// Ends of the pairs of veth that it made: their namespace and index.
    pub(super) pairs: Mutex<BTreeSet<(u64, u32)>>,
    /// Memory helpers.
    pub(super) helpers: Mutex<BTreeMap<Handle, Approvals>>,
    /// The devices of the node's mounts, also of those that were unmounted: files of theirs may be open.
    pub(super) devices: Mutex<Vec<(u32, u32)>>,
    /// Names and threads that show that namespaces are in use, by inode number.
    uses: Mutex<BTreeMap<u64, NetnsUse>>,
    last: AtomicU64,
    pub(super) undo_log: Arc<UndoLog>,
}

pub(super) fn lock<T>(what: &Mutex<T>) -> MutexGuard<'_, T> {
    what.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Broker {
    pub(super) fn new(setup: Setup) -> Broker {
        Broker {
            undo_log: Arc::new(UndoLog::new(&setup.socket)),
            setup,
            objects: Mutex::default(),
            deadlines: Mutex::default(),
            pairs: Mutex::default(),
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
            Object::Undo(_) => None,
        };
        if let Some(deadline) = deadline {
            lock(&self.deadlines).insert(handle, deadline);
        }
        objects.insert(handle, Arc::new(Mutex::new(object)));
        Ok(handle)
    }

    /// Returns those of these namespaces that have a name or a thread. What was found for one is looked at first.
    pub(super) fn used_namespaces(&self, ids: Vec<u64>) -> Vec<u64> {
        let mut uses = lock(&self.uses);
        let mut known = mem::take(&mut *uses);
        let mut found = |id: u64| known.remove(&id).filter(|known| known.shows(id)).or_else(|| NetnsUse::find(id));
        *uses = ids.into_iter().take(MAX_OBJECTS).filter_map(|id| Some((id, found(id)?))).collect();
        uses.keys().copied().collect()
    }

    /// Serves the requests of a connection until its other end is closed.
    pub(super) fn serve_connection(&self, connection: &OwnedFd) {
        loop {
            let result = match receive::<Request>(connection, REQUEST_BYTES) {
                Ok(None) => return,
                Ok(Some((request, fds))) => self.serve(request, fds),
                Err(e) if e.kind() == io::ErrorKind::InvalidData || e.raw_os_error() == Some(EMFILE) => Err(e),
                Err(_) => return,
            };
            let (reply, fds) = match result {
                Ok((value, fds)) => (Ok(value), fds),
                Err(e) => (Err(Failure::from(&e)), Vec::new()),
            };
            let fds: Vec<_> = fds.iter().map(std::os::fd::AsFd::as_fd).collect();
            if send(connection, &reply, &fds).is_err() {
                return;
            }
        }
    }

    /// Drops an object.
    pub(super) fn drop_object(&self, handle: Handle) -> io::Result<Answer> {
        fault::wait("interfaces", &self.setup.socket);
        lock(&self.deadlines).remove(&handle);
        let object = lock(&self.objects).remove(&handle);
        drop(object.ok_or(io::ErrorKind::NotFound)?);
        Ok((serde_json::Value::Null, Vec::new()))
    }
}

/// Runs the broker, in a process of its own, until the worker exits.
///
/// # Errors
/// The worker does not say what the broker is for.
pub(crate) fn run_broker(control: &OwnedFd) -> io::Result<()> {
    // A service manager that stops the daemon signals this process as well, which ends after the worker.
    let _blocked = process::signals_as_fd(&[Signal::TERM, Signal::INT, Signal::HUP])?;
    let Some((setup, fds)) = receive::<Setup>(control, REQUEST_BYTES)? else { return Ok(()) };
    let Ok([deadlines, node, interfaces @ .., _alive]) = <[OwnedFd; LANES]>::try_from(fds) else {
        return Err(io::ErrorKind::InvalidData.into());
    };
    let lock_file = place::append(&setup.lock).ok();
    log::watch_file(&setup.socket, true);
    confinement::confine_broker();
    if setup.replaces {
        // What this broker changes is not what the former one has.
        threads::start("broker lock", move || keep_locked(lock_file))?;
    } else {
        wait_for_former(lock_file.as_ref());
    }
    let broker = Arc::new(Broker::new(setup));
    let serve = |name: &str, connection: OwnedFd| {
        let broker = broker.clone();
        threads::start(name, move || broker.serve_connection(&connection))
    };
    serve("broker deadlines", deadlines)?;
    serve("broker node", node)?;
    let interfaces: Vec<_> =
        interfaces.into_iter().map(|lane| serve("broker interfaces", lane)).collect::<io::Result<_>>()?;
    broker.serve_connection(control);
    // What they have changed is undone below. They end after the request that they serve.
    interfaces.into_iter().for_each(|thread| drop(thread.join()));
    // Before the lock is released; the last first, as offloads can be enabled only when no program is attached.
    while let Some((handle, _)) = lock(&broker.objects).pop_last() {
        lock(&broker.deadlines).remove(&handle);
    }
    Ok(())
}

/// Fault injection for tests, in debug builds only.
pub(super) mod fault {
    use std::path::Path;
    use std::thread::sleep;
    use std::time::Duration;

    /// If the daemon was started with this `UNETMAP_FAULT`: waits while there is a file `hold` beside the socket.
    /// `interfaces`: as for a driver that takes long; `network-lock`: as for the kernel's lock of the network
    /// configuration; `files`: when it makes memory files immutable.
    pub(in crate::broker) fn wait(fault: &str, socket: &Path) {
        if cfg!(debug_assertions) && std::env::var_os("UNETMAP_FAULT").is_some_and(|set| set == fault) {
            while socket.with_extension("hold").exists() {
                sleep(Duration::from_millis(1));
            }
        }
    }
}

/// Keeps the lock until this process exits, once the broker of the daemon that was replaced has released it.
fn keep_locked(lock: Option<File>) {
    while lock.as_ref().is_some_and(|lock| socket::try_lock(lock).is_ok_and(|locked| !locked)) {
        thread::sleep(FORMER_POLL);
    }
    mem::forget(lock);
}

/// Waits until the broker of an earlier worker has undone its changes.
fn wait_for_former(lock: Option<&File>) {
    let start = Instant::now();
    while lock.is_some_and(|lock| socket::try_lock(lock).is_ok_and(|locked| !locked)) {
        if start.elapsed() > FORMER_LIMIT {
            return tracing::warn!("the broker of an earlier daemon still runs");
        }
        thread::sleep(FORMER_POLL);
    }
}
