//! Filters: which frames of an interface enter its port, and which stay with the kernel.
//!
//! ```text
//! set by      root, or who opens the interface directly, unless it is in another user's hands
//!             (the same for busy polling, which is kept here too: `busy`)
//! kept        with the interface (its namespace and index), whether a port is open or not
//! in force    from the moment that an XDP program is attached until it is detached
//! forgotten   when it is taken off, or the interface is deleted or moved to another namespace
//! ```
//! A mediated user sets none: the XDP program and the interface are the daemon's then, and what the user does not want to
//! see the user can leave.
//!
//! News of interfaces come without keeping their namespaces alive: nobody may be there any more who could take it off.

use std::collections::BTreeMap;
use std::io;
use std::ops::Range;
use std::sync::Arc;

use serde::Serialize;
use unetmap::errno::{EACCES, EINVAL, ENOMEM, ENXIO, EOPNOTSUPP, EPERM};
use unetmap::nic::{Filter, NicRequest, Wish};
use unetmap_sys::link::{FarEvent, FarWatch, Link, LinkEvent, Nsid};
use unetmap_sys::netns::Netns;
use unetmap_sys::xdp::Xdp;
use unetmap_sys::xsk::{self, BusyPoll};

use crate::books::{Books, PortKey};
use crate::busy::ShownBusy;
use crate::caller::Caller;
use crate::interfaces::{DAEMON, channels, find_link, in_use};
use crate::nic::{Nic, NicKey};
use crate::policy::Access;
use crate::refusal::{Refusal, refuse};

/// Interfaces for which something is kept at most.
const MOST_KEPT: usize = 1024;

/// A filter, and whose it is.
#[derive(Debug)]
pub(crate) struct Kept {
    pub(crate) filter: Filter,
    uid: u32,
}

/// What is set of an interface; one of the two at least.
struct Settings {
    nsid: Nsid,
    filter: Option<Arc<Kept>>,
    busy: Option<BusyPoll>,
}

/// All filters and ways of busy polling, by namespace and index of the interface.
#[derive(Default)]
pub(crate) struct Filters {
    kept: BTreeMap<(u64, u32), Settings>,
    /// While something is kept.
    watch: Option<FarWatch>,
    /// Whether the event loop has the watch.
    pub(crate) waited_for: bool,
}

impl Filters {
    /// Whether there is none.
    pub(crate) fn is_empty(&self) -> bool {
        self.kept.is_empty()
    }

    /// What tells that interfaces go.
    pub(crate) fn watch(&self) -> Option<&FarWatch> {
        self.watch.as_ref()
    }

    /// The filter of an interface that exists.
    pub(crate) fn of(&mut self, netns: u64, index: u32) -> Option<Arc<Kept>> {
        // Both numbers are used again: first hear who has gone.
        self.forget_gone();
        self.kept.get(&(netns, index))?.filter.clone()
    }

    /// How sockets of an interface that exists poll busily, which are bound from now on.
    pub(crate) fn busy_of(&mut self, netns: u64, index: u32) -> Option<BusyPoll> {
        self.forget_gone();
        self.kept.get(&(netns, index))?.busy
    }

    fn keep(&mut self, netns: &Netns, index: u32, kept: Arc<Kept>) -> Result<(), Refusal> {
        self.settings_of(netns, index).map(|settings| settings.filter = Some(kept))
    }

    pub(crate) fn keep_busy(&mut self, netns: &Netns, index: u32, busy: BusyPoll) -> Result<(), Refusal> {
        self.settings_of(netns, index).map(|settings| settings.busy = Some(busy))
    }

    /// What is kept of an interface that exists, and has something set in the caller's next step.
    fn settings_of(&mut self, netns: &Netns, index: u32) -> Result<&mut Settings, Refusal> {
        let key = (netns.id(), index);
        if self.kept.len() >= MOST_KEPT && !self.kept.contains_key(&key) {
            return refuse(
                ENOMEM,
                format!(
                    "{MOST_KEPT} interfaces have filters or busy polling already (unetmap nic IF filter off, \
                     unetmap nic IF busy-poll off)"
                ),
            );
        }
        let nsid = self.watch_too(netns, index).or_else(|e| match e.raw_os_error() {
            Some(ENXIO) => refuse(ENXIO, "the interface has gone"),
            Some(EPERM) => refuse(
                EPERM,
                "the daemon may not hear of changes in network namespaces, which such a setting needs: give it \
                 CAP_NET_BROADCAST and CAP_NET_ADMIN",
            ),
            _ => refuse(ENXIO, format!("changes of its namespace cannot be watched: {e}")),
        });
        let nsid = nsid.inspect_err(|_| self.close_watch_if_unused())?;
        let settings = self.kept.entry(key).or_insert(Settings { nsid, filter: None, busy: None });
        settings.nsid = nsid;
        Ok(settings)
    }

    /// Hears of `netns` from now on; `ENXIO` when the interface has gone meanwhile.
    fn watch_too(&mut self, netns: &Netns, index: u32) -> io::Result<Nsid> {
        let watch = match self.watch.take() {
            Some(watch) => watch,
            None => {
                self.waited_for = false;
                FarWatch::new()?
            }
        };
        let watch = self.watch.insert(watch);
        let nsid = watch.add(netns)?;
        if !watch.exists(nsid, index)? {
            return Err(io::Error::from_raw_os_error(ENXIO));
        }
        // The number may have been that of a namespace of whose end we have not heard yet.
        self.hear();
        Ok(nsid)
    }

    fn forget(&mut self, netns: u64, index: u32) {
        self.forget_some(netns, index, |settings| settings.filter = None);
    }

    pub(crate) fn forget_busy(&mut self, netns: u64, index: u32) {
        self.forget_some(netns, index, |settings| settings.busy = None);
    }

    fn forget_some(&mut self, netns: u64, index: u32, forget: impl FnOnce(&mut Settings)) {
        if let Some(settings) = self.kept.get_mut(&(netns, index)) {
            forget(settings);
            if settings.filter.is_none() && settings.busy.is_none() {
                self.kept.remove(&(netns, index));
            }
        }
        self.close_watch_if_unused();
    }

    fn close_watch_if_unused(&mut self) {
        if self.kept.is_empty() {
            self.watch = None;
        }
    }

    /// Forgets what was set of interfaces that are gone.
    pub(crate) fn forget_gone(&mut self) {
        self.hear();
        self.close_watch_if_unused();
    }

    fn hear(&mut self) {
        let Some(watch) = &mut self.watch else { return };
        let mut events = Vec::new();
        if let Err(e) = watch.read(&mut events) {
            tracing::debug!("reading what changed: {e}");
        }
        for event in events {
            let (kept, watch) = (&mut self.kept, &self.watch);
            match event {
                FarEvent::Link(nsid, LinkEvent::Gone { index }) => {
                    kept.retain(|(_, i), set| (set.nsid, *i) != (nsid, index));
                }
                FarEvent::Link(..) => {}
                FarEvent::Gone(nsid) => kept.retain(|_, set| set.nsid != nsid),
                FarEvent::Lost => kept.retain(|(_, index), set| {
                    watch.as_ref().is_some_and(|watch| watch.exists(set.nsid, *index).unwrap_or(true))
                }),
            }
        }
    }
}

/// What `unetmap nic` shows.
#[derive(Serialize)]
struct Shown<'a> {
    interface: &'a str,
    index: u32,
    up: bool,
    tx_queues: u32,
    rx_queues: u32,
    /// What this caller would get.
    access: &'static str,
    port: Option<ShownPort>,
    filter: Option<ShownFilter<'a>>,
    /// What sockets get that are bound from now on.
    busy_poll: Option<ShownBusy>,
}

/// The port of an interface that somebody has open.
#[derive(Serialize)]
struct ShownPort {
    kind: &'static str,
    manner: String,
    mem_id: u16,
    queues: Vec<ShownQueue>,
    host_rings: Vec<ShownQueue>,
    /// Frames that the host sent while nobody had its rings, and the port had all others.
    host_dropped: u64,
    /// The caller's own, for root everybody's.
    sessions: Vec<ShownSession>,
}

#[derive(Serialize)]
struct ShownQueue {
    id: u16,
    /// Microseconds for which its socket polls busily, as the kernel says; null: not at all, or it is not bound.
    busy_usec: Option<u32>,
    tx: Option<ShownRing>,
    rx: Option<ShownRing>,
}

#[derive(Serialize)]
struct ShownRing {
    slots: u32,
    sessions: u32,
    crossed: u64,
    bad_slots: u64,
    dropped: u64,
}

#[derive(Serialize)]
struct ShownSession {
    id: u64,
    pid: u32,
    uid: u32,
    tx_rings: usize,
    rx_rings: usize,
    exclusive: bool,
}

#[derive(Serialize)]
struct ShownFilter<'a> {
    expression: &'a str,
    instructions: usize,
    uid: u32,
    /// Whether an XDP program with this filter is attached.
    in_force: bool,
}

impl Books {
    /// Answers a request about an interface: what the daemon then knows of it, as JSON.
    pub(crate) fn about_nic(&mut self, payload: &[u8], caller: &Caller) -> Result<String, Refusal> {
        let Some(request) = NicRequest::decode(payload) else {
            return refuse(EINVAL, "the request about an interface makes no sense");
        };
        if self.rules.policy.is_none() {
            return refuse(
                EPERM,
                "interfaces are opened by the system's daemon, and this is a user's (start one as root: unetmapd)",
            );
        }
        let name = &request.interface;
        let Some(link) = find_link(name, caller)? else {
            return refuse(ENXIO, "no such interface (ip link shows them)");
        };
        let access = self.policy()?.and_then(|policy| policy.nic(&caller.who(), &link.name));
        let uid = caller.peer.uid;
        if access.is_none() && uid != 0 {
            return refuse(EACCES, format!("user {uid} may not open it (the policy says who may: unetmap-policy(5))"));
        }
        match request.wish {
            Wish::Show => {}
            Wish::Filter(filter) => self.set_filter(&link, Some(filter), access, caller)?,
            Wish::NoFilter => self.set_filter(&link, None, access, caller)?,
            Wish::BusyPoll { usec, budget } => self.set_busy_poll(&link, Some((usec, budget)), access, caller)?,
            Wish::NoBusyPoll => self.set_busy_poll(&link, None, access, caller)?,
        }
        self.show(&link, access, caller)
    }

    fn set_filter(
        &mut self,
        link: &Link,
        filter: Option<Filter>,
        access: Option<Access>,
        caller: &Caller,
    ) -> Result<(), Refusal> {
        let (uid, netns_id) = (caller.peer.uid, caller.netns_id());
        let open = self.may_set("filter", link, access, caller)?;
        let Some(netns) = &caller.netns else { return refuse(ENXIO, "no such interface (ip link shows them)") };
        match filter {
            None => {
                if let Some(nic) = open.and_then(|key| self.nics.get_mut(&key)) {
                    nic.set_filter(None)?;
                }
                self.filters.forget(netns_id, link.index);
                tracing::info!(name = link.name, uid, "filter taken off");
            }
            Some(filter) => {
                // Also where it is not attached yet: what cannot be used is not kept.
                Xdp::try_filter(&filter.program).or_else(|e| refuse_filter(&e))?;
                let (before, kept) = (self.filters.of(netns_id, link.index), Arc::new(Kept { filter, uid }));
                self.filters.keep(netns, link.index, kept.clone())?;
                if let Some(nic) = open.and_then(|key| self.nics.get_mut(&key))
                    && let Err(refusal) = nic.set_filter(Some(kept.clone()))
                {
                    match before {
                        Some(before) => self.filters.keep(netns, link.index, before)?,
                        None => self.filters.forget(netns_id, link.index),
                    }
                    return Err(refusal);
                }
                tracing::info!(name = link.name, uid, expression = kept.filter.expression, "filter set");
            }
        }
        Ok(())
    }

    /// Whether the caller may set `what` of an interface. Returns the interface if it is open.
    pub(crate) fn may_set(
        &self,
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
                    "user {uid} gets it through the daemon; its {what} is set by root, and by who opens it directly \
                     (unetmap-policy(5))"
                ),
            );
        }
        match self.nic_of(caller.netns_id(), link.index) {
            Some((_, nic)) if uid != 0 && nic.scope.uid != uid => in_use(nic),
            open => Ok(open.map(|(key, _)| key)),
        }
    }

    fn show(&mut self, link: &Link, access: Option<Access>, caller: &Caller) -> Result<String, Refusal> {
        let queues = channels(link, caller)?;
        let kept = self.filters.of(caller.netns_id(), link.index);
        let busy = self.filters.busy_of(caller.netns_id(), link.index);
        let open = self.nic_of(caller.netns_id(), link.index);
        let attached = open.is_some_and(|(_, nic)| nic.manner.is_some());
        let shown = Shown {
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
            port: open.map(|(key, nic)| self.shown_port(key, nic, caller)),
            filter: kept.as_ref().map(|kept| ShownFilter {
                expression: &kept.filter.expression,
                instructions: kept.filter.program.len(),
                uid: kept.uid,
                in_force: attached,
            }),
            busy_poll: busy.map(ShownBusy::of),
        };
        serde_json::to_string(&shown).or_else(|e| refuse(EOPNOTSUPP, format!("it cannot be shown: {e}")))
    }

    fn shown_port(&self, key: NicKey, nic: &Nic, caller: &Caller) -> ShownPort {
        let uid = caller.peer.uid;
        let of_it = |port: &PortKey| match port {
            PortKey::Nic(nic) => *nic == key,
            PortKey::Pipe(pipe, 0) => self.wires.get(pipe).is_some_and(|wire| wire.nic() == key),
            _ => false,
        };
        // The daemon's own sessions are those of its threads.
        let programs = |port: &PortKey| nic.scope.uid != DAEMON || !matches!(port, PortKey::Nic(_));
        let sessions = self.sessions.iter().filter(|(_, session)| of_it(&session.port) && programs(&session.port));
        let sessions = sessions.filter(|(_, session)| uid == 0 || session.uid == uid);
        ShownPort {
            kind: if nic.scope.uid == DAEMON { "mediated" } else { "direct" },
            manner: nic.describe(),
            mem_id: self.houses.get(&nic.house).map_or(0, |house| house.mem_id),
            queues: shown_queues(nic, 0..nic.end.shape.nic_pairs()),
            host_rings: shown_queues(nic, nic.end.shape.nic_pairs()..nic.end.shape.pairs()),
            host_dropped: nic.host_dropped(),
            sessions: sessions
                .map(|(id, session)| ShownSession {
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
}

fn shown_queues(nic: &Nic, pairs: Range<usize>) -> Vec<ShownQueue> {
    use std::sync::atomic::Ordering::Relaxed;
    let ring = |rings: &[crate::end::PortRing], pair: usize| {
        let ring = rings.iter().find(|ring| ring.pair == pair)?;
        let state = nic.end.page.state(ring.state)?;
        let dropped = if ring.view.shape().dir == 0 { 0 } else { nic.statistics(pair).rx_dropped };
        Some(ShownRing {
            slots: ring.view.shape().slots.get(),
            sessions: ring.binders(),
            crossed: state.slots.load(Relaxed),
            bad_slots: state.bad_slots.load(Relaxed),
            dropped,
        })
    };
    let shown = pairs.zip(0u16..);
    shown
        .map(|(pair, id)| ShownQueue {
            id,
            busy_usec: nic.socket(pair).and_then(xsk::busy_poll),
            tx: ring(&nic.end.tx, pair),
            rx: ring(&nic.end.rx, pair),
        })
        .collect()
}

/// What the kernel, or the translation, has against a filter.
pub(crate) fn refuse_filter<T>(e: &io::Error) -> Result<T, Refusal> {
    match e.raw_os_error() {
        // Already a sentence.
        None => refuse(EINVAL, e.to_string()),
        Some(EPERM) => {
            refuse(EPERM, "the daemon may not load BPF programs, which a filter is: give it CAP_NET_ADMIN and CAP_BPF")
        }
        Some(_) => refuse(EINVAL, format!("the kernel does not take the filter: {e} (give a simpler one)")),
    }
}
