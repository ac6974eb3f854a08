// SPDX-License-Identifier: BSD-2-Clause
//! The registry: which regions, ports and sessions exist. Only the daemon's main thread uses it, so it has no lock.
//!
//! The registry holds all ports in one map and treats them alike: it finds the buffers that they hold, and frees a
//! region after its last port. It uses a port's [`Record`] alone; the kinds are defined in the module `ports`.

mod record;
mod regions;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use unetmap_abi::NmreqRegister;
use unetmap_core::control::ServesRequest;
use unetmap_core::errno::{EINVAL, ENXIO};
use unetmap_mem::{BufIdx, Iface, IndexSet, Pos, Slots, Span};
use unetmap_switch::port::{ExchangePause, SwitchPort, TxPause};

use crate::endpoint::{Endpoint, RingSelection};
use crate::ledger::{Charge, Ledger};
use crate::refusal::{Refusal, refuse};
use crate::region::{DAEMON_UID, RegionKey, RegionRecord};

pub(crate) use record::{BufferRepair, Port, Record, SavedRecord};
pub(crate) use regions::Regions;

/// A port that one client has open.
pub(crate) struct Session<K> {
    pub(crate) port: K,
    /// Index of the endpoint in the port.
    pub(crate) endpoint: usize,
    /// The name in the request.
    pub(crate) name: String,
    pub(crate) pid: u32,
    /// The name of its program when it opened the session.
    pub(crate) program: Option<String>,
    pub(crate) uid: u32,
    pub(crate) region: RegionKey,
    pub(crate) selection: RingSelection,
    /// A random number: a client that sends it proves that it has the session open.
    pub(crate) key: u64,
    /// The request that opened it.
    pub(crate) request: NmreqRegister,
    pub(crate) iface: Iface,
    pub(crate) iface_offset: u64,
    /// Number of extra buffers that the session got.
    pub(crate) extra: u32,
    /// The service that its process says it offers with the port.
    pub(crate) serves: Option<ServesRequest>,
    /// Whether a process has the port that can ask for descriptors later: not the daemon itself.
    pub(crate) can_ask: bool,
    /// Descriptors that the daemon itself keeps for the session, of a file of the node: what its user is charged.
    pub(crate) descriptors: Option<Charge>,
}

/// All regions, ports and sessions. `K` identifies a port; `P` is a port of any kind.
pub(crate) struct Registry<K, P> {
    pub(crate) regions: Regions,
    ports: BTreeMap<K, Box<P>>,
    /// The ports in each region that has any.
    by_region: BTreeMap<RegionKey, BTreeSet<K>>,
    pub(crate) sessions: BTreeMap<u64, Session<K>>,
    last_session: u64,
    /// Regions that [`Registry::tidy`] is to look at, by owner, and the processes whose sessions there were closed.
    untidy: BTreeMap<(u32, RegionKey), BTreeSet<u32>>,
    pub(crate) ledger: Ledger,
}

impl<K: Ord + Clone, P: AsRef<Record> + AsMut<Record>> Registry<K, P> {
    /// Returns an empty registry. Private regions are numbered from `first_mem_id`.
    pub(crate) fn new(first_mem_id: u16, ledger: Ledger) -> Registry<K, P> {
        Registry {
            regions: Regions::new(first_mem_id, ledger.clone()),
            ports: BTreeMap::new(),
            by_region: BTreeMap::new(),
            sessions: BTreeMap::new(),
            last_session: 0,
            untidy: BTreeMap::new(),
            ledger,
        }
    }

    /// Adds a port, which stays in its region, and charges its user for as long as it is here.
    pub(crate) fn insert(&mut self, key: K, mut port: P) {
        let record = port.as_mut();
        self.by_region.entry(record.region).or_default().insert(key.clone());
        if record.scope.uid != DAEMON_UID {
            record.charges.push(Arc::new(self.ledger.charge(record.payer, record.usage())));
            if record.locks_buffers {
                record.charges.extend(self.charge_locked(record.region, record.scope.uid));
            }
        }
        self.ports.insert(key, Box::new(port));
    }

    /// Has another user pay for a port, and for its region.
    pub(crate) fn set_payer(&mut self, key: &K, uid: u32) {
        let Some(port) = self.ports.get_mut(key) else { return };
        let record = (**port).as_mut();
        record.payer = uid;
        record.charges = vec![Arc::new(self.ledger.charge(uid, record.usage()))];
        self.regions.set_payer(record.region, uid);
    }

    /// Charges the buffers of a region, which are locked once for all interfaces in it.
    fn charge_locked(&mut self, region: RegionKey, user: u32) -> Option<Arc<Charge>> {
        let record = self.regions.get_mut(region)?;
        Some(record.locked.upgrade().unwrap_or_else(|| {
            let charge = Arc::new(self.ledger.charge(user, record.locked_buffers()));
            record.locked = Arc::downgrade(&charge);
            charge
        }))
    }

    /// Removes a port, and ends what its user is charged for it. The caller frees its endpoints.
    pub(crate) fn remove(&mut self, key: &K) -> Option<P> {
        let mut port = *self.ports.remove(key)?;
        let record = port.as_mut();
        record.charges.clear();
        if let Some(keys) = self.by_region.get_mut(&record.region) {
            keys.remove(key);
            if keys.is_empty() {
                self.by_region.remove(&record.region);
            }
        }
        Some(port)
    }

    pub(crate) fn port(&self, key: &K) -> Result<&P, Refusal> {
        self.ports.get(key).map_or_else(|| refuse(ENXIO, "the port no longer exists"), |port| Ok(&**port))
    }

    pub(crate) fn port_mut(&mut self, key: &K) -> Result<&mut P, Refusal> {
        self.ports.get_mut(key).map_or_else(|| refuse(ENXIO, "the port no longer exists"), |port| Ok(&mut **port))
    }

    /// The ports from this key on, in order of their keys.
    pub(crate) fn ports_from<'a>(&'a self, first: &K) -> impl Iterator<Item = (&'a K, &'a P)> + use<'a, K, P> {
        self.ports.range(first..).map(|(key, port)| (key, &**port))
    }

    /// The same, mutable.
    pub(crate) fn ports_from_mut(&mut self, first: &K) -> impl Iterator<Item = (&K, &mut P)> {
        self.ports.range_mut(first..).map(|(key, port)| (key, &mut **port))
    }

    /// All ports, in order of their keys.
    pub(crate) fn ports(&self) -> impl Iterator<Item = (&K, &P)> {
        self.ports.iter().map(|(key, port)| (key, &**port))
    }

    /// The same, mutable.
    pub(crate) fn ports_mut(&mut self) -> impl Iterator<Item = (&K, &mut P)> {
        self.ports.iter_mut().map(|(key, port)| (key, &mut **port))
    }

    /// The records of all ports, in order of their keys.
    pub(crate) fn records(&self) -> impl Iterator<Item = &Record> {
        self.ports.values().map(|port| (**port).as_ref())
    }

    /// The same, mutable, with the keys.
    pub(crate) fn records_mut(&mut self) -> impl Iterator<Item = (&K, &mut Record)> {
        self.ports.iter_mut().map(|(key, port)| (key, (**port).as_mut()))
    }

    /// Returns the record of a port.
    pub(crate) fn record(&self, key: &K) -> Result<&Record, Refusal> {
        self.port(key).map(P::as_ref)
    }

    fn records_of(&self, region: RegionKey) -> impl Iterator<Item = &Record> {
        let keys = self.by_region.get(&region).into_iter().flatten();
        keys.filter_map(|key| self.record(key).ok())
    }

    /// Records a session, and returns its number.
    pub(crate) fn add_session(&mut self, session: Session<K>) -> u64 {
        self.last_session += 1;
        self.sessions.insert(self.last_session, session);
        self.last_session
    }

    /// Returns the session of which a process has shown the key.
    pub(crate) fn session_of(&self, id: u64, key: u64) -> Result<&Session<K>, Refusal> {
        let session = self.sessions.get(&id).filter(|session| session.key == key);
        session.map_or_else(|| refuse(EINVAL, "no session has this number and key"), Ok)
    }

    /// The number of the last session that was opened.
    pub(crate) fn last_session(&self) -> u64 {
        self.last_session
    }

    pub(crate) fn set_last_session(&mut self, last: u64) {
        self.last_session = last;
    }

    /// Whether any session has the port open.
    pub(crate) fn is_open(&self, key: &K) -> bool {
        self.record(key).is_ok_and(Record::is_open)
    }

    /// Returns the buffer indexes in all rings of a region; `None` if they cannot be known, as a thread that exchanges
    /// buffers does not pause.
    pub(crate) fn buffers_in_use(&self, region: RegionKey) -> Option<Vec<BufIdx>> {
        let _paused = pause_exchanges(self.records_of(region))?;
        let endpoints = self.records_of(region).flat_map(Record::buffer_holders);
        Some(endpoints.flat_map(|endpoint| endpoint.buffers()).collect())
    }

    /// Has [`Registry::tidy`] look at a region, because a port of it was removed or process `pid` closed a session.
    pub(crate) fn tidy_later(&mut self, region: RegionKey, pid: Option<u32>) {
        if let Some(record) = self.regions.get(region) {
            self.untidy.entry((record.scope.uid, region)).or_default().extend(pid);
        }
    }

    /// Before a request of a user: frees the buffers that closed rings and sessions left in the user's regions and the
    /// daemon's, and repairs unbound rings. It reads all rings of a region: once for all that closed between two
    /// requests, as ports that close together would otherwise each read the rings of all others.
    pub(crate) fn tidy(&mut self, uid: u32) {
        let of = |uid| self.untidy.range((uid, 0)..=(uid, RegionKey::MAX));
        let due: Vec<_> = of(uid).chain(of(DAEMON_UID)).map(|(key, _)| *key).collect();
        if due.is_empty() {
            return;
        }
        let regions: BTreeSet<RegionKey> = due.iter().map(|(_, region)| *region).collect();
        let open = self.sessions.values().map(|session| (session.region, session.pid));
        let open: BTreeSet<_> = open.filter(|(region, _)| regions.contains(region)).collect();
        for key @ (_, region) in due {
            let pids = self.untidy.remove(&key).unwrap_or_default();
            // Of buffers that other rings may hold it is not known: they are free when the region ends.
            let in_use = self.buffers_in_use(region);
            if let Some((record, in_use)) = self.regions.get_mut(region).zip(in_use) {
                record.reclaim(&in_use);
            }
            // A process that exchanges buffers between two ports has them in both until both sessions are closed: until
            // then no exchange was interrupted.
            if pids.into_iter().any(|pid| !open.contains(&(region, pid))) {
                self.repair_buffers(region);
            }
        }
    }

    /// Does [`Registry::tidy`] for all users.
    pub(crate) fn tidy_all(&mut self) {
        let users: BTreeSet<u32> = self.untidy.keys().map(|(uid, _)| *uid).collect();
        users.into_iter().for_each(|uid| self.tidy(uid));
    }

    /// Removes duplicate buffers from the unbound rings of a region. A process that is killed while it exchanges two
    /// buffers leaves one of them in two slots, and the other in none. A slot of an unbound ring whose buffer is also
    /// in another slot gets a free buffer, or the next session of the ring would share the buffer with another one. The
    /// buffer that is in no slot is not reused until the region ends, because a running program may hold it.
    fn repair_buffers(&mut self, region: RegionKey) {
        let keys = self.by_region.get(&region);
        let ports = || keys.into_iter().flatten().filter_map(|key| self.ports.get(key).map(|port| (**port).as_ref()));
        let Some(_paused) = pause_exchanges(ports()) else { return };
        let Some(record) = self.regions.get_mut(region) else { return };
        let limits = record.region.limits();
        let mut seen = IndexSet::new(limits.bufs);
        let mut unbound = Vec::new();
        for port in ports() {
            let channels = port.channels_between();
            for endpoint in port.endpoints.iter().filter(|_| port.repair == BufferRepair::Slots) {
                for ring in endpoint.rings().filter(|ring| ring.owns_buffers()) {
                    let slots = ring.view.slots().slots();
                    // Slots that were sent and not released are the receiver's to read.
                    let sent = ring.sent(channels);
                    let is_sent = |p| sent.is_some_and(|sent| is_within(slots, sent, p));
                    for p in RegionRecord::positions(&ring.view) {
                        if ring.binders() == 0 && !is_sent(p) {
                            unbound.push((&ring.view, p));
                        } else {
                            seen.insert(ring.view.slots().buf_idx(p));
                        }
                    }
                }
                if channels.is_some() {
                    endpoint.exchanged().into_iter().for_each(|idx| _ = seen.insert(idx));
                }
            }
        }
        for port in ports().filter(|port| port.repair == BufferRepair::Keep) {
            let held = port.buffer_holders().flat_map(|endpoint| endpoint.buffers());
            held.for_each(|idx| _ = seen.insert(idx));
        }
        for (view, p) in unbound {
            let idx = view.slots().buf_idx(p);
            if (!limits.index_ok(idx) || !seen.insert(idx))
                && let Ok(free) = record.take_buf()
            {
                view.slots().set_buf_idx(p, free);
            }
        }
    }

    /// After a daemon was killed, before switches go on: gives the slots that a switch is to fill buffers of their own.
    /// A thread that was exchanging the buffers of two such slots leaves one buffer in both, and the other in none.
    pub(crate) fn repair_receive_rings(&mut self) {
        for port in self.ports.values().map(|port| (**port).as_ref()).filter(|port| !port.switch_sides.is_empty()) {
            let Some(record) = self.regions.get_mut(port.region) else { continue };
            for ring in port.endpoints.iter().flat_map(|endpoint| &endpoint.rx) {
                let Some(sent) = ring.sent(port.channels.as_ref()) else { continue };
                let (slots, limits) = (ring.view.slots(), record.region.limits());
                let mut seen = IndexSet::new(limits.bufs);
                slots.slots().walk(sent).for_each(|p| _ = seen.insert(slots.buf_idx(p)));
                for p in RegionRecord::positions(&ring.view).filter(|p| !is_within(slots.slots(), sent, *p)) {
                    let idx = slots.buf_idx(p);
                    if limits.index_ok(idx)
                        && !seen.insert(idx)
                        && let Ok(free) = record.take_buf()
                    {
                        slots.set_buf_idx(p, free);
                    }
                }
            }
        }
    }

    /// Frees endpoints of a port that was removed, and the region if nothing else uses it. Their buffers are left to
    /// [`Registry::tidy`].
    pub(crate) fn free_endpoints(&mut self, region: RegionKey, endpoints: Vec<Arc<Endpoint>>) {
        if let Some(record) = self.regions.get_mut(region) {
            record.leave_bufs(endpoints.iter().flat_map(|endpoint| endpoint.buffers()));
            endpoints.into_iter().filter_map(Arc::into_inner).for_each(|mut endpoint| endpoint.free_rings(record));
        }
        self.tidy_later(region, None);
        self.free_region_if_unused(region);
    }

    /// Frees a region if it contains no port and no session is open in it.
    pub(crate) fn free_region_if_unused(&mut self, region: RegionKey) {
        let is_kept =
            |record: &RegionRecord| record.sessions > 0 || record.persistent_ports > 0 || record.retired_ports > 0;
        if !self.regions.get(region).is_some_and(is_kept) && self.records_of(region).next().is_none() {
            self.regions.remove(region);
        }
    }
}

/// Whether a position of a ring is one of `span`.
fn is_within(slots: Slots, span: Span, p: Pos) -> bool {
    slots.distance(span.from, p) < slots.distance(span.from, span.to)
}

/// The parts that pause at one side that faces a switch: what it sends, and the buffers of its receive slots.
type Paused<'a> = (Option<Vec<TxPause<'a>>>, Vec<ExchangePause<'a>>);

/// Stops the exchange of buffers by threads of the daemon until the result is dropped, so that no buffer is found
/// twice, or not at all; `None` if a thread does not pause. What is sent to ports of other regions is copied.
fn pause_exchanges<'a>(ports: impl Iterator<Item = &'a Record>) -> Option<Vec<Paused<'a>>> {
    let ports: Vec<&Record> = ports.filter(|port| port.exchanges_buffers()).collect();
    let has_others = ports.len() > 1;
    let pause = |side: &'a Arc<SwitchPort>| {
        let senders = if has_others { Some(side.pause_tx()?) } else { None };
        Some((senders, side.pause_exchanges()?))
    };
    ports.into_iter().flat_map(|port| &port.switch_sides).map(pause).collect()
}
