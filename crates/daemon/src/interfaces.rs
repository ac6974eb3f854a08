//! The books' part about interfaces: who may open which, and how; and what happens when one changes.

use std::sync::Arc;
use std::time::{Duration, Instant};

use unetmap::errno::{EACCES, EBUSY, EINVAL, ENXIO, EPERM};
use unetmap_abi::{
    NR_REG_ALL_NIC, NR_REG_DEFAULT, NR_REG_ONE_NIC, NR_TX_RINGS_ONLY, NmreqRegister, PortKind, PortSpec,
};
use unetmap_sys::link::{self, Link, LinkEvent, Watch};
use unetmap_sys::netns::Netns;

use crate::books::{Books, PipeKey, PortKey};
use crate::caller::Caller;
use crate::end::EndShape;
use crate::host::ALIVE;
use crate::nic::{Nic, NicKey, is_down, shape_of};
use crate::pipe::Pipe;
use crate::policy::Access;
use crate::refusal::{Refusal, refuse};
use crate::region::{HouseId, Scope};

/// Whose the interfaces are that the daemon runs itself: no user has this number.
pub(crate) const DAEMON: u32 = u32::MAX;

/// In place of a namespace's number: of all that have interfaces with filters. No namespace has this number.
pub(crate) const ALL: u64 = 0;

/// How often the kernel's programs hear that the daemon is at work.
const KEEP: Duration = Duration::from_millis(200);

/// The changes of all interfaces of one namespace.
pub(crate) struct Watched {
    pub(crate) watch: Watch,
    pub(crate) netns: Arc<Netns>,
    /// Whether the event loop has it.
    pub(crate) waited_for: bool,
}

impl Books {
    /// Whether the caller may use this daemon for pipes that have no interface as parent.
    pub(crate) fn may_pipe(&mut self, caller: &Caller) -> Result<bool, Refusal> {
        if self.rules.only_user.is_some() || caller.peer.uid == 0 {
            return Ok(true);
        }
        Ok(self.policy()?.is_some_and(|policy| policy.pipes(&caller.who())))
    }

    /// Whether there is anything that the caller may use this daemon for.
    pub(crate) fn admits(&mut self, caller: &Caller) -> Result<bool, Refusal> {
        if self.rules.only_user.is_some() || caller.peer.uid == 0 {
            return Ok(true);
        }
        Ok(self.policy()?.is_some_and(|policy| policy.admits_anything(&caller.who())))
    }

    pub(crate) fn policy(&mut self) -> Result<Option<&crate::policy::Policy>, Refusal> {
        match &mut self.rules.policy {
            None => Ok(None),
            Some(file) => file.current().map(Some).or_else(|why| refuse(EACCES, why)),
        }
    }

    /// If `parent` is an interface that the caller may open: whose its pipes are, and how it may be opened.
    pub(crate) fn interface_of(&mut self, parent: &str, caller: &Caller) -> Result<Option<(Scope, Access)>, Refusal> {
        // A user's own daemon has no policy, and opens no interface.
        if self.rules.policy.is_none() {
            return Ok(None);
        }
        let found = match find_link(parent, caller) {
            // A daemon that cannot look opens no interface there either, and pipes need none.
            Err(refusal) if refusal.errno == EPERM => return Ok(None),
            found => found?,
        };
        let Some(link) = found else { return Ok(None) };
        let Some(access) = self.policy()?.and_then(|policy| policy.nic(&caller.who(), &link.name)) else {
            return Ok(None);
        };
        Ok(Some((Scope { netns: caller.netns_id(), ..self.scope(caller) }, access)))
    }

    /// Refuses to cut the host off: to take what is received by an interface that carries a default route, unless the host
    /// gets its part, by host rings, a filter, or the knob `fwd`, or whoever asks insists.
    pub(crate) fn spare_default_route(
        &mut self,
        spec: &PortSpec,
        asked: &NmreqRegister,
        caller: &Caller,
    ) -> Result<(), Refusal> {
        let takes = asked.nr_flags & NR_TX_RINGS_ONLY == 0
            && matches!(asked.nr_mode, NR_REG_DEFAULT | NR_REG_ALL_NIC | NR_REG_ONE_NIC);
        if !takes || spec.kind != PortKind::Netmap || spec.pipe.is_some() || self.rules.policy.is_none() {
            return Ok(());
        }
        let (Some(link), Some(netns)) = (find_link(&spec.parent, caller)?, &caller.netns) else { return Ok(()) };
        let passed_on = self.filters.of(caller.netns_id(), link.index).is_some()
            || match self.nic_of(caller.netns_id(), link.index) {
                Some((_, nic)) => nic.host_is_served() || nic.forwards,
                None => self.knobs.fwd(),
            };
        let routes = netns.run(link::default_routes).and_then(|found| found);
        if passed_on || !routes.is_ok_and(|routes| routes.contains(&link.index)) {
            return Ok(());
        }
        let name = &link.name;
        refuse(
            EPERM,
            format!(
                "it carries the default route, and this would cut the host off: open its host rings as well (netmap:{name}*), \
                 filter what you need (unetmap nic {name} filter), have what programs give back go on to it (unetmap set fwd 1), or \
                 insist (UNETMAP_FORCE=1, unetmap run --force)"
            ),
        )
    }

    /// Finds the interface, or takes it.
    pub(crate) fn find_or_make_nic(
        &mut self,
        spec: &PortSpec,
        asked: &NmreqRegister,
        caller: &Caller,
    ) -> Result<PortKey, Refusal> {
        let (link, access) = self.admitted(&spec.parent, caller)?;
        match access {
            Access::Direct => self.direct(&link, asked, caller),
            Access::Mediated => self.mediated(&link, asked, caller),
        }
    }

    /// The interface of that name, if the caller may open it, and how.
    pub(crate) fn admitted(&mut self, name: &str, caller: &Caller) -> Result<(Link, Access), Refusal> {
        if self.rules.policy.is_none() {
            let exists = link::by_name(name).is_ok_and(|link| link.is_some());
            return match exists {
                true => refuse(
                    EPERM,
                    "interfaces are opened by the system's daemon, and this is a user's (start one as root: unetmapd)",
                ),
                false => no_such_interface(),
            };
        }
        // Alternative names are names too; what the policy knows is the interface's own.
        let Some(link) = find_link(name, caller)? else { return no_such_interface() };
        let Some(access) = self.policy()?.and_then(|policy| policy.nic(&caller.who(), &link.name)) else {
            let uid = caller.peer.uid;
            return refuse(EACCES, format!("user {uid} may not open it (the policy says who may: unetmap-policy(5))"));
        };
        Ok((link, access))
    }

    /// The interface for a program that runs its sockets itself.
    fn direct(&mut self, link: &Link, asked: &NmreqRegister, caller: &Caller) -> Result<PortKey, Refusal> {
        let scope = Scope { netns: caller.netns_id(), ..self.scope(caller) };
        if let Some((key, nic)) = self.nic_of(caller.netns_id(), link.index) {
            if nic.scope != scope {
                return in_use(nic);
            }
            let lives = self.houses.get(&nic.house).map_or(0, |house| house.mem_id);
            if asked.nr_mem_id != 0 && asked.nr_mem_id != lives {
                return refuse(EINVAL, format!("the interface lives in region {lives}, not {}", asked.nr_mem_id));
            }
            return Ok(PortKey::Nic(key));
        }
        let house = match asked.nr_mem_id {
            0 | 1 => None,
            other => Some(self.numbered(other, caller)?),
        };
        let shape = new_shape(link, asked, caller)?;
        let house = match house {
            Some(house) => house,
            None => self.first_region(caller, shape.all_slots())?,
        };
        self.make_nic(house, scope, link, shape, caller).map(PortKey::Nic)
    }

    /// The interface for a program that may not touch it: a pipe, whose other end the daemon has.
    fn mediated(&mut self, link: &Link, asked: &NmreqRegister, caller: &Caller) -> Result<PortKey, Refusal> {
        let netns = caller.netns_id();
        let scope = Scope { netns, ..self.scope(caller) };
        if let Some((key, nic)) = self.nic_of(netns, link.index) {
            let mut mine = self.wires.iter().filter(|(pipe, wire)| wire.nic() == key && pipe.scope == scope);
            return mine.next().map_or_else(|| in_use(nic), |(pipe, _)| Ok(PortKey::Pipe(pipe.clone(), 0)));
        }
        let shape = new_shape(link, asked, caller)?;
        let rings = u32::from(shape.all_tx()) + u32::from(shape.all_rx());
        let slots = shape.all_slots();
        let own = Scope { uid: DAEMON, netns };
        let sizes = self.knobs.of_mediated().of_one_interface(rings, slots);
        let house = self.private_region(own, &link.name, sizes)?;
        let nic = self.make_nic(house, own, link, shape, caller)?;
        let made =
            self.private_region(scope, &link.name, self.knobs.of_mediated().with_pipe(&shape)).and_then(|house| {
                let made = match self.houses.get_mut(&house) {
                    Some(house) => Pipe::make(house, shape, unetmap_abi::PipeRole::Master),
                    None => refuse(ENXIO, "the region has gone"),
                };
                made.inspect_err(|_| self.drop_house_if_unused(house))
            });
        let pipe = made.inspect_err(|_| self.drop_if_unused(&PortKey::Nic(nic)))?;
        let key = PipeKey { scope, parent: link.name.clone(), id: None, serial: nic.serial };
        self.pipes.insert(key.clone(), pipe);
        self.wires.insert(key.clone(), crate::mediator::Wire::new(nic));
        Ok(PortKey::Pipe(key, 0))
    }

    pub(crate) fn make_nic(
        &mut self,
        house: HouseId,
        scope: Scope,
        link: &Link,
        shape: EndShape,
        caller: &Caller,
    ) -> Result<NicKey, Refusal> {
        let admode = self.knobs.admode();
        let made = caller.netns.clone().map_or_else(no_such_interface, |netns| {
            self.watch(&netns)?;
            match self.houses.get_mut(&house) {
                Some(house) => Nic::make(house, scope, netns, link, (shape, admode)),
                None => refuse(ENXIO, "the region has gone"),
            }
        });
        let mut nic = made.inspect_err(|_| {
            self.drop_house_if_unused(house);
            self.unwatch_if_unused(caller.netns_id());
        })?;
        nic.filter = self.filters.of(caller.netns_id(), link.index);
        nic.busy = self.filters.busy_of(caller.netns_id(), link.index);
        nic.forwards = self.knobs.fwd();
        self.last_nic += 1;
        let key = NicKey { netns: caller.netns_id(), index: link.index, serial: self.last_nic };
        self.nics.insert(key, nic);
        Ok(key)
    }

    /// The interface, if somebody has it open.
    pub(crate) fn nic_of(&self, netns: u64, index: u32) -> Option<(NicKey, &Nic)> {
        let mut found = self.nics.iter().filter(|(key, nic)| key.netns == netns && key.index == index && !nic.gone);
        found.next().map(|(key, nic)| (*key, nic))
    }

    /// What watches a namespace keeps it alive, with all that is in it: not longer than needed.
    pub(crate) fn unwatch_if_unused(&mut self, netns: u64) {
        if !self.nics.keys().any(|key| key.netns == netns) && !self.is_closet(netns) {
            self.watches.remove(&netns);
        }
    }

    pub(crate) fn watch(&mut self, netns: &Arc<Netns>) -> Result<(), Refusal> {
        if self.watches.contains_key(&netns.id()) {
            return Ok(());
        }
        let watch = netns.run(Watch::new).and_then(|made| made);
        let watch = watch.or_else(|e| refuse(ENXIO, format!("its changes cannot be watched: {e}")))?;
        self.watches.insert(netns.id(), Watched { watch, netns: netns.clone(), waited_for: false });
        Ok(())
    }

    /// Something changed in a namespace.
    pub(crate) fn links_changed(&mut self, netns: u64) {
        if netns == ALL {
            return self.filters.forget_gone();
        }
        let mut events = Vec::new();
        if let Some(watched) = self.watches.get_mut(&netns)
            && let Err(e) = watched.watch.read(&mut events)
        {
            tracing::debug!("reading what changed: {e}");
        }
        for event in events {
            match event {
                LinkEvent::Gone { index } => self.link_gone(netns, index),
                LinkEvent::Changed(link) => self.link_changed(netns, &link),
                LinkEvent::Lost => self.look_at_all(netns),
            }
        }
    }

    /// Says to the kernel's programs that the daemon is at work, if it is time for that. Returns when it will be time again;
    /// `None`: no interface is open.
    pub(crate) fn keep_interfaces(&mut self) -> Option<Duration> {
        if self.nics.is_empty() {
            self.last_keep = None;
            return None;
        }
        let since = self.last_keep.map_or(KEEP, |last| last.elapsed());
        if since < KEEP {
            return Some(KEEP - since);
        }
        self.nics.values_mut().for_each(Nic::keep);
        self.last_keep = Some(Instant::now());
        if since > ALIVE {
            let late = (since - ALIVE).as_millis();
            tracing::warn!("the daemon was held up: open interfaces were the kernel's for {late} ms");
        }
        Some(KEEP)
    }

    fn link_changed(&mut self, netns: u64, link: &Link) {
        for (_, nic) in self.nics.iter_mut().filter(|(key, _)| key.netns == netns && key.index == link.index) {
            if nic.name != link.name {
                tracing::info!(from = nic.name, to = link.name, "interface renamed");
                nic.name.clone_from(&link.name);
            }
            nic.changed(link);
        }
    }

    fn link_gone(&mut self, netns: u64, index: u32) {
        self.nics.iter_mut().filter(|(key, _)| key.netns == netns).for_each(|(_, nic)| nic.host_gone(index));
        let Some((key, nic)) = self.nic_of(netns, index) else { return self.uplink_gone(netns, index) };
        tracing::info!(name = nic.name, "interface gone");
        if let Some(nic) = self.nics.get_mut(&key) {
            nic.end_all();
        }
        self.end_monitors(&PortKey::Nic(key));
        let wires = self.wires.iter().filter(|(_, wire)| wire.nic() == key);
        let pipes = wires.filter_map(|(pipe, _)| self.pipes.get(pipe));
        pipes.for_each(|pipe| pipe.ends[0].end_all());
        self.uplink_gone(netns, index);
    }

    /// Events were lost.
    fn look_at_all(&mut self, netns: u64) {
        let Some(watched) = self.watches.get(&netns) else { return };
        let Ok(Ok(links)) = watched.netns.run(link::all) else { return };
        let mut open: Vec<u32> = self.nics.keys().filter(|key| key.netns == netns).map(|key| key.index).collect();
        if self.is_closet(netns) {
            open.extend(self.persistent.iter().map(|persistent| persistent.hidden));
        }
        for index in open {
            match links.iter().find(|link| link.index == index) {
                Some(link) => self.link_changed(netns, link),
                None => self.link_gone(netns, index),
            }
        }
    }
}

pub(crate) fn no_such_interface<T>() -> Result<T, Refusal> {
    refuse(ENXIO, "no such interface (ip link shows them; pipes are called NAME{ID and NAME}ID)")
}

pub(crate) fn in_use<T>(nic: &Nic) -> Result<T, Refusal> {
    match nic.scope.uid {
        DAEMON => refuse(EBUSY, "another user has it open, through the daemon"),
        uid => refuse(EBUSY, format!("user {uid} has it open")),
    }
}

pub(crate) fn find_link(name: &str, caller: &Caller) -> Result<Option<Link>, Refusal> {
    let Some(netns) = &caller.netns else {
        return refuse(EPERM, "the daemon cannot see your network namespace: give it CAP_NET_ADMIN");
    };
    match netns.run(|| link::by_name(name)) {
        Ok(found) => found.or_else(|e| refuse(ENXIO, format!("looking for the interface: {e}"))),
        Err(e) if e.raw_os_error() == Some(EPERM) => {
            refuse(EPERM, "the daemon may not enter your network namespace: give it CAP_SYS_ADMIN")
        }
        Err(e) => refuse(ENXIO, format!("entering your network namespace: {e}")),
    }
}

/// Of a port on an interface that nobody has open yet.
pub(crate) fn new_shape(link: &Link, asked: &NmreqRegister, caller: &Caller) -> Result<EndShape, Refusal> {
    if !link.up {
        return is_down(&link.name);
    }
    shape_of(&channels(link, caller)?, asked)
}

/// The queues of an interface in the caller's namespace.
pub(crate) fn channels(link: &Link, caller: &Caller) -> Result<link::Channels, Refusal> {
    let Some(netns) = &caller.netns else { return no_such_interface() };
    let found = netns.run(|| link::channels(&link.name)).and_then(|found| found);
    found.or_else(|e| refuse(ENXIO, format!("asking for its queues: {e}")))
}
