// SPDX-License-Identifier: BSD-2-Clause
//! Ports that wait for the next daemon when theirs has ended, and go on.
//!
//! ```text
//! serves -- the connection hangs up --> waits --> asks --> is answered --> serves
//!                                         ^  nobody listens, |
//!                                         '-- or not yet ----'
//! ```
//! A port is addresses and numbers to its program: mappings (region, endpoint state page, channels, rings of
//! sockets) and descriptors (connection, doorbells, sockets). The port is opened again as any other, at the same place
//! in its region; then the new files are mapped over the old ones, and their descriptors get the numbers of the old
//! ones (`sys::in_place`). Nothing on the way of a packet knows of it, and no pointer of the program changes. A daemon
//! that gives the port another shape is refused.
//!
//! While a port waits its syncs do nothing. Each call that finds the time come asks, and none waits for the answer. One
//! thread goes on for all, with the locks of all rings; the endpoint state pages, which contain these, are mapped last.
//! Ports of one region come back one after the other: the first brings the region, and a ring of another shows no slots
//! until its own port is back.

use std::fmt;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use unetmap_abi::{NmreqRegister, PipeRole, PortSpec};
use unetmap_mem::Region;
use unetmap_sys::event::Epoll;
use unetmap_sys::in_place::FileId;
use unetmap_sys::{Doorbell, process};

use crate::backend::region_cache;
use crate::control::asked::Asked;
use crate::control::binding::{BackendKind, Binding, BoundRing, FIXED_FDS, ZERO_COPY};
use crate::control::client::interface_exists;
use crate::control::request::NetmapRequest;
use crate::port::lock_holder::Requested;
use crate::tuning::{ANSWER_POLL, DAEMON_POLL};

/// A change of a port that waits for the next daemon.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum DaemonChange {
    /// The daemon has ended: the port waits.
    Ended,
    /// The port goes on with another daemon.
    #[non_exhaustive]
    Back {
        /// How long it has waited.
        waited: Duration,
        /// Slots that were lost: see [`Port::lost_slots`].
        lost: u64,
    },
}

impl fmt::Display for DaemonChange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            DaemonChange::Ended => f.write_str("unetmapd has ended: waits for the next one"),
            DaemonChange::Back { waited, lost } => {
                write!(f, "goes on with another unetmapd after {} ms; ", waited.as_millis())?;
                write!(f, "slots lost so far: {lost}")
            }
        }
    }
}

/// Whether ports wait for the next daemon if their options do not say so.
static BY_DEFAULT: AtomicBool = AtomicBool::new(false);

/// Has all ports that this process opens from now on wait for the next daemon, as
/// [`OpenOptions::reconnect`](crate::OpenOptions::reconnect) does without a limit.
pub fn reconnect_by_default() {
    BY_DEFAULT.store(true, Relaxed);
}

/// Whether ports wait that do not ask for it.
pub(crate) fn is_default() -> bool {
    BY_DEFAULT.load(Relaxed) || process::variable("UNETMAP_RECONNECT").is_some_and(|value| value != "0")
}

/// Called with the port's name and the change.
type Observer = fn(&str, &DaemonChange);

static OBSERVER: OnceLock<Observer> = OnceLock::new();

/// Tells the observer of a change.
pub(super) fn tell(spec: &str, change: &DaemonChange) {
    OBSERVER.get().into_iter().for_each(|observer| observer(spec, change));
}

/// Has `observer` called whenever the daemon of a port that waits for the next one has ended, and when the port goes
/// on: in the call on the port that noticed it. The first observer of a process stays.
pub fn observe_daemons(observer: Observer) {
    let _ = OBSERVER.set(observer);
}

/// Called by a port that was opened by a netmap file when the daemon has ended (`None`), and with the connection and
/// the region of the next one.
pub(crate) type Keeper = Box<dyn Fn(Option<(OwnedFd, OwnedFd)>) + Send + Sync>;

/// How a port goes on with the next daemon.
pub(crate) struct Reconnect {
    /// How long it waits.
    pub(super) limit: Option<Duration>,
    /// The request that opened it.
    pub(super) request: NetmapRequest,
    /// The reply of the first daemon.
    pub(super) shape: Binding,
    /// Whether it is the second of the two ends that were created together.
    pub(super) is_second: bool,
    pub(super) is_pipe: bool,
    /// Whether it is a monitor, which waits for the port that it watches.
    pub(super) is_monitor: bool,
    /// The files of the region, the endpoint state page, and the channels.
    pub(super) files: Mutex<[FileId; FIXED_FDS]>,
    pub(super) progress: Mutex<Progress>,
    /// The region, and whether this port counts as one that serves there.
    pub(super) region: OnceLock<Arc<Region>>,
    pub(super) serves: AtomicBool,
    pub(super) mem_id: AtomicU32,
    pub(super) count: AtomicU32,
    pub(super) lost: AtomicU64,
    /// Readable when it is time to ask, for event loops.
    pub(super) timer: Doorbell,
    /// Of the transmit and the receive direction, made when they are first waited for.
    pub(super) sets: [OnceLock<Epoll>; 2],
    /// Of a port that was opened by a netmap file.
    pub(crate) keeper: OnceLock<Keeper>,
}

#[derive(Default)]
pub(super) struct Progress {
    pub(super) ended_at: Option<Instant>,
    pub(super) ask_at: Option<Instant>,
    pub(super) asked: Option<Request>,
    /// Why it does not go on.
    pub(super) failed: Option<(i32, String)>,
}

/// A request that was sent.
pub(super) struct Request {
    pub(super) asked: Asked,
    pub(super) holder: Requested,
    pub(super) at: Instant,
    pub(super) forks: u32,
}

impl Reconnect {
    /// `fds`: those of the binding. `None`: this kind of port does not go on.
    pub(crate) fn new(
        limit: Option<Duration>,
        request: &NetmapRequest,
        register: &NmreqRegister,
        binding: &Binding,
        fds: &[OwnedFd],
    ) -> std::io::Result<Option<Box<Reconnect>>> {
        let monitors = || binding.rings.iter().filter(|ring| ring.backend == BackendKind::Monitor as u32);
        let is_monitor = monitors().next().is_some();
        // One without copies has its mirror among the buffers of the port that it watches.
        let is_zero_copy_monitor = monitors().any(|ring| ring.features & ZERO_COPY != 0);
        // Pages in the file of the region: a virtual machine has that, too.
        let is_device = binding.head.page_offsets != [0; 2];
        if is_zero_copy_monitor || is_device {
            return Ok(None);
        }
        let pipe =
            request.name().and_then(|name| PortSpec::parse_with(&format!("netmap:{name}"), interface_exists).ok());
        let pipe = pipe.and_then(|spec| spec.pipe).filter(|_| !is_monitor);
        let is_slave = pipe.as_ref().is_some_and(|pipe| pipe.role == PipeRole::Slave);
        let is_before = |ring: &BoundRing| ring.peer_offset != 0 && ring.peer_offset < ring.offset;
        // Of a monitor's ring the peer is in another file.
        let is_second = !is_monitor && binding.rings.iter().any(is_before);
        Ok(Some(Box::new(Reconnect {
            limit,
            request: request.clone(),
            shape: binding.clone(),
            is_second: is_slave || is_second,
            is_pipe: pipe.is_some(),
            is_monitor,
            files: Mutex::new(files_of(fds)?),
            progress: Mutex::default(),
            region: OnceLock::new(),
            serves: AtomicBool::new(false),
            mem_id: AtomicU32::new(register.nr_mem_id.into()),
            count: AtomicU32::new(0),
            lost: AtomicU64::new(0),
            timer: Doorbell::new()?,
            sets: Default::default(),
            keeper: OnceLock::new(),
        })))
    }

    /// The port of this region serves, or does not any more.
    pub(super) fn set_serving(&self, region: &Arc<Region>, serves: bool) {
        if self.serves.swap(serves, Relaxed) != serves {
            region_cache::serving(self.region.get_or_init(|| region.clone()), if serves { 1 } else { -1 });
        }
    }

    pub(crate) fn mem_id(&self) -> u16 {
        self.mem_id.load(Relaxed) as u16
    }

    pub(crate) fn count(&self) -> u32 {
        self.count.load(Relaxed)
    }

    pub(crate) fn lost(&self) -> u64 {
        self.lost.load(Relaxed)
    }

    /// How long a thread that waits may sleep before it tries again.
    pub(crate) fn pause(&self) -> Duration {
        let Ok(progress) = self.progress.try_lock() else { return ANSWER_POLL };
        match progress.ask_at {
            _ if progress.asked.is_some() => ANSWER_POLL,
            Some(at) => at.saturating_duration_since(Instant::now()),
            None => DAEMON_POLL,
        }
    }

    /// Keeps threads from going on meanwhile.
    pub(super) fn hold(&self) -> MutexGuard<'_, Progress> {
        self.progress.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Reconnect {
    fn drop(&mut self) {
        if let Some(region) = self.region.get().filter(|_| self.serves.load(Relaxed)) {
            region_cache::serving(region, -1);
        }
    }
}

/// Returns the files that a binding begins with.
pub(super) fn files_of(fds: &[OwnedFd]) -> std::io::Result<[FileId; FIXED_FDS]> {
    let [region, states, channels, ..] = fds else { return Err(std::io::ErrorKind::InvalidData.into()) };
    Ok([FileId::of(region)?, FileId::of(states)?, FileId::of(channels)?])
}
