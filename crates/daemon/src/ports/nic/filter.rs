//! Settings of interfaces: filters, which select the frames that enter the port (the others stay with the kernel), and
//! busy polling. And the request that sets and shows them (`unetmap nic`).
//!
//! ```text
//! set by      root, or a user who may open the interface directly, unless another user has it open
//! stored      for the interface (its namespace and index), whether a port is open or not
//! in force    filter: while an XDP program is attached; busy polling: for sockets that are opened from then on
//! removed     by request, or when the interface is deleted or moved to another namespace
//! ```
//! A mediated user sets none: the XDP program and the interface are the daemon's then, and the program can ignore
//! frames.
//!
//! The watch of these interfaces does not keep their namespaces alive: perhaps no process is left in them that could
//! remove the setting.

use std::collections::BTreeMap;
use std::io;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use serde::Serialize;
use unetmap_core::control::ControlRequest;
use unetmap_core::control::nic::{Filter, NicAction, NicRequest};
use unetmap_core::errno::{EACCES, EINVAL, ENOMEM, ENXIO, EOPNOTSUPP, EPERM};
use unetmap_sys::link::{Link, LinkEvent, NetnsLinkEvent, NetnsLinkWatch, Nsid};
use unetmap_sys::netns::Netns;
use unetmap_sys::xdp::Xdp;
use unetmap_sys::xsk::{self, BusyPoll};

use super::busy_poll::{BusyPollSnapshot, set_busy_poll};
use super::open::{denied, find, find_link, in_use, not_system_daemon, queues};
use super::{Nic, NicKey};
use crate::caller::Caller;
use crate::endpoint::PortRing;
use crate::policy::Access;
use crate::ports::mediated::Mediated;
use crate::ports::{Daemon, PortKey, Session};
use crate::refusal::{Refusal, refuse};
use crate::region::DAEMON_UID;

/// Most interfaces with settings.
const MAX_INTERFACES: usize = 1024;

/// A filter, and the user who set it.
#[derive(Debug)]
pub(super) struct StoredFilter {
    pub(super) filter: Filter,
    uid: u32,
}

/// The settings of an interface; at least one of the two.
struct Settings {
    nsid: Nsid,
    filter: Option<Arc<StoredFilter>>,
    busy_poll: Option<BusyPoll>,
}

/// The settings of all interfaces, by namespace and index.
#[derive(Default)]
pub(crate) struct InterfaceSettings {
    all: BTreeMap<(u64, u32), Settings>,
    /// Exists while anything is set.
    watch: Option<NetnsLinkWatch>,
    /// Whether the event loop waits for the watch.
    pub(crate) in_event_loop: bool,
}

impl InterfaceSettings {
    /// Whether nothing is set.
    pub(crate) fn is_empty(&self) -> bool {
        self.all.is_empty()
    }

    /// The watch that reports deleted interfaces.
    pub(crate) fn watch(&self) -> Option<&NetnsLinkWatch> {
        self.watch.as_ref()
    }

    /// Returns the filter of an interface that exists.
    pub(super) fn filter_of(&mut self, netns: u64, index: u32) -> Option<Arc<StoredFilter>> {
        // The kernel reuses both numbers, so settings of deleted interfaces are removed first.
        self.remove_gone();
        self.all.get(&(netns, index))?.filter.clone()
    }

    /// Returns the busy polling of sockets of an interface that exists.
    pub(super) fn busy_poll_of(&mut self, netns: u64, index: u32) -> Option<BusyPoll> {
        self.remove_gone();
        self.all.get(&(netns, index))?.busy_poll
    }

    fn store_filter(&mut self, netns: &Netns, index: u32, filter: Arc<StoredFilter>) -> Result<(), Refusal> {
        self.entry(netns, index).map(|settings| settings.filter = Some(filter))
    }

    pub(super) fn store_busy_poll(&mut self, netns: &Netns, index: u32, busy_poll: BusyPoll) -> Result<(), Refusal> {
        self.entry(netns, index).map(|settings| settings.busy_poll = Some(busy_poll))
    }

    /// Returns the settings of an interface that exists. The caller sets one of them.
    fn entry(&mut self, netns: &Netns, index: u32) -> Result<&mut Settings, Refusal> {
        let key = (netns.id(), index);
        if self.all.len() >= MAX_INTERFACES && !self.all.contains_key(&key) {
            return refuse(
                ENOMEM,
                format!(
                    "{MAX_INTERFACES} interfaces have filters or busy polling already (unetmap nic IF filter off, \
                     unetmap nic IF busy-poll off)"
                ),
            );
        }
        let nsid = self.add_to_watch(netns, index).or_else(|e| match e.raw_os_error() {
            Some(ENXIO) => refuse(ENXIO, "the interface has gone"),
            Some(EPERM) => refuse(
                EPERM,
                "the daemon may not receive changes in network namespaces, which such a setting needs: give it \
                 CAP_NET_BROADCAST and CAP_NET_ADMIN",
            ),
            _ => refuse(ENXIO, format!("changes of its namespace cannot be watched: {e}")),
        });
        let nsid = nsid.inspect_err(|_| self.close_watch_if_unused())?;
        let settings = self.all.entry(key).or_insert(Settings { nsid, filter: None, busy_poll: None });
        settings.nsid = nsid;
        Ok(settings)
    }

    /// Watches `netns`, too; `ENXIO` if the interface has gone meanwhile.
    fn add_to_watch(&mut self, netns: &Netns, index: u32) -> io::Result<Nsid> {
        let watch = match self.watch.take() {
            Some(watch) => watch,
            None => {
                self.in_event_loop = false;
                NetnsLinkWatch::new()?
            }
        };
        let watch = self.watch.insert(watch);
        let nsid = watch.add(netns)?;
        if !watch.exists(nsid, index)? {
            return Err(io::Error::from_raw_os_error(ENXIO));
        }
        // The number may have been that of a namespace whose end has not been read yet.
        self.read_events();
        Ok(nsid)
    }

    fn remove_filter(&mut self, netns: u64, index: u32) {
        self.remove(netns, index, |settings| settings.filter = None);
    }

    pub(super) fn remove_busy_poll(&mut self, netns: u64, index: u32) {
        self.remove(netns, index, |settings| settings.busy_poll = None);
    }

    fn remove(&mut self, netns: u64, index: u32, remove: impl FnOnce(&mut Settings)) {
        if let Some(settings) = self.all.get_mut(&(netns, index)) {
            remove(settings);
            if settings.filter.is_none() && settings.busy_poll.is_none() {
                self.all.remove(&(netns, index));
            }
        }
        self.close_watch_if_unused();
    }

    fn close_watch_if_unused(&mut self) {
        if self.all.is_empty() {
            self.watch = None;
        }
    }

    /// Removes the settings of interfaces that are gone.
    pub(super) fn remove_gone(&mut self) {
        self.read_events();
        self.close_watch_if_unused();
    }

    fn read_events(&mut self) {
        let Some(watch) = &mut self.watch else { return };
        let mut events = Vec::new();
        if let Err(e) = watch.read(&mut events) {
            tracing::debug!("reading the changes of interfaces: {e}");
        }
        for event in events {
            let (all, watch) = (&mut self.all, &self.watch);
            match event {
                NetnsLinkEvent::Link(nsid, LinkEvent::Gone { index }) => {
                    all.retain(|(_, i), set| (set.nsid, *i) != (nsid, index));
                }
                NetnsLinkEvent::Link(..) => {}
                NetnsLinkEvent::Gone(nsid) => all.retain(|_, set| set.nsid != nsid),
                NetnsLinkEvent::Lost => all.retain(|(_, index), set| {
                    watch.as_ref().is_some_and(|watch| watch.exists(set.nsid, *index).unwrap_or(true))
                }),
            }
        }
    }
}

/// What `unetmap nic` shows.
#[derive(Serialize)]
struct NicSnapshot<'a> {
    interface: &'a str,
    index: u32,
    up: bool,
    tx_queues: u32,
    rx_queues: u32,
    /// BindMode this caller may open it.
    access: &'static str,
    port: Option<OpenPort>,
    filter: Option<FilterSnapshot<'a>>,
    /// The busy polling of sockets that are opened from now on.
    busy_poll: Option<BusyPollSnapshot>,
}

/// The port of an interface that is open.
#[derive(Serialize)]
struct OpenPort {
    kind: &'static str,
    manner: String,
    mem_id: u16,
    queues: Vec<QueueSnapshot>,
    host_rings: Vec<QueueSnapshot>,
    /// Frames that the host sent and that were dropped: no host ring was bound, and all other rings were.
    host_dropped: u64,
    /// The caller's own sessions; for root all.
    sessions: Vec<SessionSnapshot>,
}

#[derive(Serialize)]
struct QueueSnapshot {
    id: u16,
    /// Microseconds for which its socket busy polls, according to the kernel; null: not at all, or it is not open.
    busy_usec: Option<u32>,
    tx: Option<QueueRing>,
    rx: Option<QueueRing>,
}

#[derive(Serialize)]
struct QueueRing {
    slots: u32,
    sessions: u32,
    crossed: u64,
    bad_slots: u64,
    dropped: u64,
}

#[derive(Serialize)]
struct SessionSnapshot {
    id: u64,
    pid: u32,
    uid: u32,
    tx_rings: usize,
    rx_rings: usize,
    exclusive: bool,
}

#[derive(Serialize)]
struct FilterSnapshot<'a> {
    expression: &'a str,
    instructions: usize,
    uid: u32,
    /// Whether an XDP program with this filter is attached.
    in_force: bool,
}

/// Answers a request about an interface with its state, as JSON.
pub(crate) fn answer_request(daemon: &mut Daemon, payload: &[u8], caller: &Caller) -> Result<String, Refusal> {
    let Ok(request) = NicRequest::decode(payload) else {
        return refuse(EINVAL, "the request about an interface cannot be decoded");
    };
    if daemon.admission.policy.is_none() {
        return not_system_daemon();
    }
    let Some(link) = find_link(&request.interface, caller)? else {
        return refuse(ENXIO, "no such interface (ip link shows them)");
    };
    let access = daemon.policy()?.and_then(|policy| policy.nic(&caller.identity(), &link.name));
    if access.is_none() && caller.peer.uid != 0 {
        return denied(caller);
    }
    match request.action {
        NicAction::Show => {}
        NicAction::Filter(filter) => set_filter(daemon, &link, Some(filter), access, caller)?,
        NicAction::NoFilter => set_filter(daemon, &link, None, access, caller)?,
        NicAction::BusyPoll { usec, budget } => set_busy_poll(daemon, &link, Some((usec, budget)), access, caller)?,
        NicAction::NoBusyPoll => set_busy_poll(daemon, &link, None, access, caller)?,
    }
    interface_as_json(daemon, &link, access, caller)
}

/// Sets the filter of an interface, or removes it.
fn set_filter(
    daemon: &mut Daemon,
    link: &Link,
    filter: Option<Filter>,
    access: Option<Access>,
    caller: &Caller,
) -> Result<(), Refusal> {
    let (uid, netns_id) = (caller.peer.uid, caller.netns_id());
    let open = check_may_set(daemon, "filter", link, access, caller)?.map(PortKey::Nic);
    let Some(netns) = &caller.netns else { return refuse(ENXIO, "no such interface (ip link shows them)") };
    let Daemon { registry, nics, .. } = daemon;
    let nic = open.and_then(|key| registry.get_mut::<Nic>(&key));
    let settings = &mut nics.settings;
    let Some(filter) = filter else {
        if let Some(nic) = nic {
            nic.set_filter(None)?;
        }
        settings.remove_filter(netns_id, link.index);
        tracing::info!(name = link.name, uid, "filter removed");
        return Ok(());
    };
    // Also tried where no XDP program is attached yet: a filter that cannot be used is not stored.
    Xdp::try_filter(&filter.program).or_else(|e| refuse_filter(&e))?;
    let (before, stored) = (settings.filter_of(netns_id, link.index), Arc::new(StoredFilter { filter, uid }));
    settings.store_filter(netns, link.index, stored.clone())?;
    if let Some(nic) = nic
        && let Err(refusal) = nic.set_filter(Some(stored.clone()))
    {
        match before {
            Some(before) => settings.store_filter(netns, link.index, before)?,
            None => settings.remove_filter(netns_id, link.index),
        }
        return Err(refusal);
    }
    tracing::info!(name = link.name, uid, expression = stored.filter.expression, "filter set");
    Ok(())
}

/// Refuses a caller who may not set `what` of an interface. Returns the interface if it is open.
pub(super) fn check_may_set(
    daemon: &Daemon,
    what: &str,
    link: &Link,
    access: Option<Access>,
    caller: &Caller,
) -> Result<Option<NicKey>, Refusal> {
    let uid = caller.peer.uid;
    if uid != 0 && access != Some(Access::Direct) {
        return refuse(
            EACCES,
            format!(
                "user {uid} gets it through the daemon; its {what} is set by root and by users who may open it directly \
                 (unetmap-policy(5))"
            ),
        );
    }
    match find(&daemon.registry, caller.netns_id(), link.index) {
        Some(nic) if uid != 0 && nic.scope.uid != uid => in_use(nic),
        open => Ok(open.map(|nic| nic.key)),
    }
}

fn interface_as_json(
    daemon: &mut Daemon,
    link: &Link,
    access: Option<Access>,
    caller: &Caller,
) -> Result<String, Refusal> {
    let queues = queues(link, caller)?;
    let stored = daemon.nics.settings.filter_of(caller.netns_id(), link.index);
    let busy_poll = daemon.nics.settings.busy_poll_of(caller.netns_id(), link.index);
    let open = find(&daemon.registry, caller.netns_id(), link.index);
    let attached = open.is_some_and(|nic| nic.xdp_config.is_some());
    let snapshot = NicSnapshot {
        interface: &link.name,
        index: link.index,
        up: link.up,
        tx_queues: queues.tx,
        rx_queues: queues.rx,
        access: match access {
            Some(Access::Direct) => "direct",
            Some(Access::Mediated) => "mediated",
            None => "none",
        },
        port: open.map(|nic| open_port(daemon, nic, caller)),
        filter: stored.as_ref().map(|stored| FilterSnapshot {
            expression: &stored.filter.expression,
            instructions: stored.filter.program.len(),
            uid: stored.uid,
            in_force: attached,
        }),
        busy_poll: busy_poll.map(BusyPollSnapshot::of),
    };
    serde_json::to_string(&snapshot).or_else(|e| refuse(EOPNOTSUPP, format!("the answer cannot be written: {e}")))
}

fn open_port(daemon: &Daemon, nic: &Nic, caller: &Caller) -> OpenPort {
    let uid = caller.peer.uid;
    let nic_pairs = nic.endpoint.shape.nic_pairs();
    // The daemon's own sessions are those of its threads. The program's is on the mediated port.
    let is_program = |session: &Session| match daemon.registry.get::<Mediated>(&session.port) {
        Some(port) => port.nic() == nic.key && session.endpoint == 0,
        None => session.port == PortKey::Nic(nic.key) && nic.scope.uid != DAEMON_UID,
    };
    let sessions = daemon.registry.sessions.iter().filter(|(_, session)| is_program(session));
    let sessions = sessions.filter(|(_, session)| uid == 0 || session.uid == uid);
    OpenPort {
        kind: if nic.scope.uid == DAEMON_UID { "mediated" } else { "direct" },
        manner: nic.describe_config(),
        mem_id: daemon.registry.regions.mem_id(nic.region),
        queues: queue_snapshots(nic, 0..nic_pairs),
        host_rings: queue_snapshots(nic, nic_pairs..nic.endpoint.shape.pairs()),
        host_dropped: nic.host_dropped(),
        sessions: sessions
            .map(|(id, session)| SessionSnapshot {
                id: *id,
                pid: session.pid,
                uid: session.uid,
                tx_rings: session.binding.tx.len(),
                rx_rings: session.binding.rx.len(),
                exclusive: session.binding.exclusive,
            })
            .collect(),
    }
}

fn queue_snapshots(nic: &Nic, pairs: Range<usize>) -> Vec<QueueSnapshot> {
    let ring = |rings: &[PortRing], pair: usize| {
        let ring = rings.iter().find(|ring| ring.pair == pair)?;
        let state = nic.endpoint.state_page.state(ring.state)?;
        let dropped = if ring.view.shape().dir == 0 { 0 } else { nic.statistics(pair).rx_dropped };
        Some(QueueRing {
            slots: ring.view.shape().slots.get(),
            sessions: ring.binders(),
            crossed: state.slots.load(Relaxed),
            bad_slots: state.bad_slots.load(Relaxed),
            dropped,
        })
    };
    let queues = pairs.zip(0u16..).map(|(pair, id)| QueueSnapshot {
        id,
        busy_usec: nic.socket(pair).and_then(xsk::busy_poll),
        tx: ring(&nic.endpoint.tx, pair),
        rx: ring(&nic.endpoint.rx, pair),
    });
    queues.collect()
}

/// Refuses a filter that the kernel, or the translation, does not accept.
pub(super) fn refuse_filter<T>(e: &io::Error) -> Result<T, Refusal> {
    match e.raw_os_error() {
        // The error is a sentence for people.
        None => refuse(EINVAL, e.to_string()),
        Some(EPERM) => {
            refuse(EPERM, "the daemon may not load BPF programs, which a filter is: give it CAP_NET_ADMIN and CAP_BPF")
        }
        Some(_) => refuse(EINVAL, format!("the kernel does not accept the filter: {e} (give a simpler one)")),
    }
}
