//! The books' part about switches: their ports, and what their threads are told.
//!
//! A switch is there as long as it has ports, threads as long as there are switches. A thread works by a *view* of each
//! switch of whose ports it has any; whatever changes gives all threads new ones, and waits until they have let go of the
//! old (`threads`).

use std::collections::BTreeMap;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Instant;

use unetmap::errno::{EACCES, EINVAL, ENOENT, ENOMEM, ENXIO};
use unetmap::vale::ask::Plan;
use unetmap::vale::forward::Lost;
use unetmap::vale::learn::{PORTS, Table};
use unetmap::vale::port::{Attached, Given};
use unetmap::vale::rules::Ruled;
use unetmap::vale::thread::View;
use unetmap_abi::{NmreqRegister, NmreqValeList, PortSpec};
use unetmap_mem::{BufIdx, LinePage};
use unetmap_sys::{Bell, link};

use crate::books::{Books, PortKey};
use crate::caller::Caller;
use crate::end::{End, PortRing, Way, shared_page};
use crate::interfaces::find_link;
use crate::pipe::wished;
use crate::refusal::{Refusal, refuse};
use crate::region::{House, HouseId, Scope};
use crate::threads::{Load, Threads, spread};

/// Ring pairs of a port.
const MAX_RINGS: u16 = 16;
/// In place of a port's number.
const NO_PORT: u8 = 255;

/// Which port of which switch.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) struct ValeKey {
    pub(crate) scope: Scope,
    /// What stands before the colon: `vale0`.
    pub(crate) switch: String,
    pub(crate) port: String,
}

impl ValeKey {
    /// The whole name.
    pub(crate) fn name(&self) -> String {
        format!("{}:{}", self.switch, self.port)
    }
}

/// A port; it exists as long as it is open.
pub(crate) struct ValePort {
    pub(crate) house: HouseId,
    pub(crate) end: End,
    pub(crate) lines: LinePage,
    pub(crate) lines_fd: OwnedFd,
    pub(crate) lines_bytes: usize,
    /// Wakes the thread.
    pub(crate) bell: Bell,
    attached: Arc<Attached>,
}

impl ValePort {
    /// Packets that the port's ring lost: of a transmit ring those that reached no port, of a receive ring those that it
    /// had no room for.
    pub(crate) fn dropped(&self, transmit: bool, ring: u16) -> u64 {
        match transmit {
            true => self.attached.lost(ring.into()).iter().sum(),
            false => self.attached.dropped(ring.into()),
        }
    }

    /// Packets that came to the port's receive ring without being copied.
    pub(crate) fn swapped(&self, ring: u16) -> u64 {
        self.attached.swapped(ring.into())
    }

    /// Packets that the port sent and that reached no port, by reason.
    pub(crate) fn lost(&self) -> BTreeMap<&'static str, u64> {
        let rings = || (0..self.end.tx.len()).map(|ring| self.attached.lost(ring));
        let one = |why: Lost| (why.name(), rings().map(|lost| lost[why as usize]).sum());
        Lost::ALL.into_iter().map(one).collect()
    }

    /// Packets for the port that it did not receive, by reason.
    pub(crate) fn withheld(&self) -> BTreeMap<&'static str, u64> {
        let room = (0..self.end.rx.len()).map(|ring| self.attached.dropped(ring)).sum();
        let [filter, rate] = self.attached.refused();
        [("room", room), (Lost::Filter.name(), filter), (Lost::Rate.name(), rate)].into()
    }

    /// Slots that crossed its rings of one direction, as who runs them says.
    pub(crate) fn crossed(&self, transmit: bool) -> u64 {
        use std::sync::atomic::Ordering::Relaxed;
        let rings = if transmit { &self.end.tx } else { &self.end.rx };
        let of = |ring: &PortRing| self.end.page.state(ring.state).map_or(0, |state| state.slots.load(Relaxed));
        rings.iter().map(of).fold(0, u64::wrapping_add)
    }

    /// From now on its packets begin where its rings say.
    pub(crate) fn tell_offsets(&self) {
        for (transmit, rings) in [(true, &self.end.tx), (false, &self.end.rx)] {
            let all = rings.iter().enumerate();
            all.for_each(|(i, ring)| self.attached.set_offsets(transmit, i, ring.offsets));
        }
    }

    /// From the next view of its switch on it is treated by these rules.
    pub(crate) fn set_ruled(&self, ruled: Option<Arc<Ruled>>) {
        self.attached.set_ruled(ruled);
    }
}

/// All switches.
pub(crate) struct Switches {
    pub(crate) all: BTreeMap<(Scope, String), Switch>,
    pub(crate) threads: Threads,
}

pub(crate) struct Switch {
    /// Told by requests; the lowest that no other switch of the same scope had when it was made.
    number: u16,
    pub(crate) table: Arc<Table>,
    /// Its ports, by number.
    pub(crate) members: Vec<Option<Arc<Attached>>>,
    /// Which thread looks after each; `None`: none yet.
    threads: Vec<Option<usize>>,
    /// When its addresses are the next step older; `None`: not planned yet, or they do not age.
    pub(crate) next_tick: Option<Instant>,
}

impl ValePort {
    /// Bytes of the virtio-net header that its packets begin with.
    pub(crate) fn header(&self) -> u8 {
        self.attached.header()
    }

    /// Its number in its switch.
    pub(crate) fn index(&self) -> u8 {
        self.attached.index()
    }

    /// From now on its packets are shown to these monitors.
    pub(crate) fn watched_by(&self, monitors: Vec<unetmap::watch::Monitor>) {
        self.attached.watched_by(monitors);
    }

    fn make(house: &mut House, asked: &NmreqRegister, index: u8) -> Result<ValePort, Refusal> {
        let shape = wished(asked, MAX_RINGS)?;
        let (tx, rx) = (usize::from(shape.tx_rings), usize::from(shape.rx_rings));
        let lines_bytes = LinePage::bytes(tx + rx);
        let (window, lines_fd) = shared_page("unetmap-lines", lines_bytes)?;
        let lines = LinePage::new(window);
        let mut end = End::make(house, shape, Way::Switch { tx: 0, rx: tx })?;
        let made = Bell::new().and_then(|bell| {
            let given = |rings| given(rings).collect::<std::io::Result<Vec<_>>>();
            let rings = (given(&end.tx)?, given(&end.rx)?);
            Ok((Attached::new(index, &house.region, &lines, rings, bell.try_clone()?)?, bell))
        });
        match made {
            Ok((attached, bell)) => {
                let attached = Arc::new(attached);
                Ok(ValePort { house: house.id, end, lines, lines_fd, lines_bytes, bell, attached })
            }
            Err(e) => {
                let found = end.buffers();
                end.drop_rings(house);
                house.reclaim(&found, &[]);
                refuse(ENOMEM, format!("no descriptors or memory left in the daemon: {e}"))
            }
        }
    }
}

/// The rings as the switch's side needs them.
fn given(rings: &[PortRing]) -> impl Iterator<Item = std::io::Result<Given<'_>>> {
    rings.iter().map(|ring| {
        Ok(Given {
            view: &ring.view,
            line: ring.line.unwrap_or(0),
            bell: ring.bell.try_clone()?,
            spare: ring.spare.unwrap_or(BufIdx(0)),
        })
    })
}

impl Books {
    /// Finds the port, or makes it, and its switch if there is none.
    pub(crate) fn find_or_make_vale(
        &mut self,
        spec: &PortSpec,
        asked: &NmreqRegister,
        caller: &Caller,
    ) -> Result<PortKey, Refusal> {
        let key = self.vale_key(spec, caller)?;
        if let Some(port) = self.vales.get(&key) {
            let lives = self.houses.get(&port.house).map_or(0, |house| house.mem_id);
            if asked.nr_mem_id != 0 && asked.nr_mem_id != lives {
                return refuse(EINVAL, format!("the port lives in region {lives}, not {}", asked.nr_mem_id));
            }
            return Ok(PortKey::Vale(key));
        }
        if self.is_interface(&key.port, caller) {
            return refuse(
                EINVAL,
                format!("{} is an interface, which is attached to a switch (vale-ctl -a)", key.port),
            );
        }
        self.make_vale(&key, asked, key.scope, caller)?;
        Ok(PortKey::Vale(key))
    }

    /// Makes the port, in a region of `owner` where the request names none, and its switch if there is none.
    pub(crate) fn make_vale(
        &mut self,
        key: &ValeKey,
        asked: &NmreqRegister,
        owner: Scope,
        caller: &Caller,
    ) -> Result<(), Refusal> {
        let switch = self.switches.all.get(&(key.scope, key.switch.clone()));
        let free = switch.map_or(Some(0), |switch| switch.members.iter().position(Option::is_none));
        let Some(index) = free.and_then(|index| u8::try_from(index).ok()) else {
            return refuse(ENOMEM, format!("{} has {PORTS} ports already", key.switch));
        };
        let shape = wished(asked, MAX_RINGS)?;
        let house = match asked.nr_mem_id {
            0 => {
                let extra = asked.nr_extra_bufs.min(crate::books::MAX_EXTRA);
                let sizes = self.knobs.of_others().of_switch_port(&shape, extra);
                self.private_region(owner, &key.name(), sizes)?
            }
            mem_id => self.numbered(mem_id, caller)?,
        };
        let made = match self.houses.get_mut(&house) {
            Some(house) => ValePort::make(house, asked, index),
            None => refuse(ENXIO, "the region has gone"),
        };
        let port = made.inspect_err(|_| self.drop_house_if_unused(house))?;
        port.set_ruled(self.settings.ruled(key));
        self.switches.add(key, &port.attached);
        self.vales.insert(key.clone(), port);
        if let Err(refusal) = self.switches.order() {
            self.drop_if_unused(&PortKey::Vale(key.clone()));
            return Err(refusal);
        }
        Ok(())
    }

    /// The ports of switches that exchange buffers of a region. Who looks where its buffers are holds them still: else one
    /// could be seen twice, or nowhere.
    pub(crate) fn exchanging(&self, id: HouseId) -> Vec<Arc<Attached>> {
        let ports = self.vales.values().filter(|port| port.house == id);
        let ports: Vec<_> = ports.map(|port| port.attached.clone()).collect();
        if ports.len() > 1 { ports } else { Vec::new() }
    }

    fn is_interface(&self, name: &str, caller: &Caller) -> bool {
        match self.rules.policy {
            // Then it is this user's namespace, as far as the daemon can tell.
            None => link::by_name(name).is_ok_and(|link| link.is_some()),
            Some(_) => matches!(find_link(name, caller), Ok(Some(_))),
        }
    }

    pub(crate) fn vale_key(&mut self, spec: &PortSpec, caller: &Caller) -> Result<ValeKey, Refusal> {
        self.vale_key_of(&spec.parent, caller)
    }

    /// Of a name that was checked.
    pub(crate) fn vale_key_of(&mut self, name: &str, caller: &Caller) -> Result<ValeKey, Refusal> {
        if !self.may_pipe(caller)? {
            return refuse(EACCES, "this daemon serves switches to other users only where its policy says so");
        }
        let Some((switch, port)) = name.split_once(':') else {
            return refuse(EINVAL, "the name of a switch's port is valeS:P");
        };
        Ok(ValeKey { scope: self.scope(caller), switch: switch.into(), port: port.into() })
    }

    /// Which port of which switch: by name, or, without a name, the next one from the numbers `asked` on. The number of a
    /// name's port that does not exist is [`NO_PORT`].
    pub(crate) fn vale_list(
        &self,
        name: &str,
        asked: &NmreqValeList,
        caller: &Caller,
    ) -> Result<(String, NmreqValeList), Refusal> {
        let scope = self.scope(caller);
        let found = |switch: u16, port: u8| NmreqValeList {
            nr_bridge_idx: switch,
            nr_port_idx: port.into(),
            ..Default::default()
        };
        if name.is_empty() {
            let from = (asked.nr_bridge_idx, asked.nr_port_idx);
            let mine = self.vales.iter().filter(|(key, _)| key.scope == scope);
            let numbered = mine.filter_map(|(key, port)| {
                let switch = self.switches.all.get(&(scope, key.switch.clone()))?;
                Some(((switch.number, port.attached.index()), key))
            });
            let next = numbered.filter(|((switch, port), _)| (*switch, u32::from(*port)) >= from).min_by_key(|n| n.0);
            let Some(((switch, port), key)) = next else {
                return refuse(ENOENT, "there are no more ports of switches");
            };
            return Ok((key.name(), found(switch, port)));
        }
        let (switch, port) = name.split_once(':').unwrap_or((name, ""));
        let key = ValeKey { scope, switch: switch.into(), port: port.into() };
        let Some(switch) = self.switches.all.get(&(scope, key.switch.clone())) else {
            return refuse(ENOENT, format!("there is no switch {}", key.switch));
        };
        let port = self.vales.get(&key).map_or(NO_PORT, |port| port.attached.index());
        Ok((name.into(), found(switch.number, port)))
    }

    /// Whether there is such a port.
    pub(crate) fn has_vale(&self, name: &str, caller: &Caller) -> bool {
        self.vale_named(name, caller).is_some()
    }

    fn vale_named(&self, name: &str, caller: &Caller) -> Option<&ValePort> {
        let scope = self.scope(caller);
        self.vales.iter().find(|(key, _)| key.scope == scope && key.name() == name).map(|(_, port)| port)
    }

    /// Bytes of the header that the port's packets begin with; 0 where there is no such port.
    pub(crate) fn vale_header(&self, name: &str, caller: &Caller) -> u8 {
        self.vale_named(name, caller).map_or(0, |port| port.attached.header())
    }

    /// Changes that.
    pub(crate) fn set_vale_header(&self, name: &str, bytes: u8, caller: &Caller) {
        if let Some(port) = self.vale_named(name, caller) {
            port.attached.set_header(bytes);
        }
    }

    /// Takes a port out of its switch. Afterwards no thread uses it any more.
    pub(crate) fn take_vale(&mut self, key: &ValeKey) -> Option<ValePort> {
        let port = self.vales.remove(key)?;
        self.switches.remove(key, &port.attached);
        Some(port)
    }
}

impl Switches {
    pub(crate) fn new(plan: Plan) -> Switches {
        Switches { all: BTreeMap::new(), threads: Threads::new(plan) }
    }

    fn add(&mut self, key: &ValeKey, port: &Arc<Attached>) {
        let taken: Vec<u16> =
            self.all.iter().filter(|((scope, _), _)| *scope == key.scope).map(|(_, switch)| switch.number).collect();
        let switch = self.all.entry((key.scope, key.switch.clone())).or_insert_with(|| Switch {
            number: (0..=u16::MAX).find(|number| !taken.contains(number)).unwrap_or(u16::MAX),
            table: Arc::new(Table::new()),
            members: vec![None; PORTS],
            threads: vec![None; PORTS],
            next_tick: None,
        });
        switch.members[usize::from(port.index())] = Some(port.clone());
        switch.threads[usize::from(port.index())] = None;
    }

    fn remove(&mut self, key: &ValeKey, port: &Attached) {
        let name = (key.scope, key.switch.clone());
        let Some(switch) = self.all.get_mut(&name) else { return };
        switch.members[usize::from(port.index())] = None;
        let (table, empty) = (switch.table.clone(), switch.members.iter().all(Option::is_none));
        if empty {
            self.all.remove(&name);
        }
        if let Err(refusal) = self.order() {
            tracing::error!("a switch's port is not let go: {}", refusal.why);
        }
        table.forget(port.index());
    }

    /// All ports, in order of their switches and numbers.
    pub(crate) fn loads(&self) -> Vec<Load> {
        self.all.values().flat_map(Switch::ports).map(|(load, _)| load).collect()
    }

    /// The thread that looks after a port.
    pub(crate) fn thread_of(&self, key: &ValeKey, index: u8) -> Option<usize> {
        self.all.get(&(key.scope, key.switch.clone()))?.threads.get(usize::from(index)).copied()?
    }

    /// Has the threads work by what is in the books now; starts them for the first switch, and ends them after the last.
    pub(crate) fn order(&mut self) -> Result<(), Refusal> {
        if self.all.is_empty() {
            self.threads.end();
            return Ok(());
        }
        let threads = self.threads.start()?;
        let moved = self.spread(threads);
        let all = &self.all;
        let answered = self.threads.order(|n| all.values().filter_map(|switch| switch.view_of(n)).collect());
        moved.iter().for_each(|port| port.look_again());
        if answered { Ok(()) } else { refuse(ENOMEM, "the switch does not answer") }
    }

    /// Spreads the ports over so many threads; returns those that moved from one to another.
    fn spread(&mut self, threads: usize) -> Vec<Arc<Attached>> {
        let mut loads = self.loads();
        spread(&mut loads, threads);
        let mut moved = Vec::new();
        let placed = self.all.values_mut().flat_map(|switch| switch.threads.iter_mut().zip(&switch.members));
        let placed = placed.filter_map(|(thread, port)| Some((thread, port.as_ref()?)));
        for ((thread, port), load) in placed.zip(loads) {
            if thread.is_some() && *thread != load.thread {
                moved.push(port.clone());
            }
            *thread = load.thread;
        }
        moved
    }
}

impl Switch {
    /// Its ports, each with its thread.
    fn ports(&self) -> impl Iterator<Item = (Load, &Arc<Attached>)> {
        let ports = self.members.iter().zip(&self.threads);
        ports.filter_map(|(port, thread)| {
            let port = port.as_ref()?;
            Some((Load { rings: port.sending_rings(), thread: *thread }, port))
        })
    }

    /// As a thread sees it that looks after any of its ports.
    fn view_of(&self, thread: usize) -> Option<View> {
        let own = self.ports().filter(|(load, _)| load.thread == Some(thread));
        let own: Vec<u8> = own.map(|(_, port)| port.index()).collect();
        (!own.is_empty()).then(|| View::new(self.table.clone(), self.members.clone(), own))
    }
}
