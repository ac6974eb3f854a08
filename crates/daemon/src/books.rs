//! The daemon's books: regions, ports, and the sessions that have them open. One thread, no lock.

use std::collections::BTreeMap;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::{Arc, Weak};

use unetmap::bound::{Bound, BoundHead, BoundPool, BoundRing, NO_TIMESTAMP, Path};
use unetmap::errno::{EACCES, EBUSY, EINVAL, EIO, ENOMEM, ENXIO};
use unetmap::request::FORCE;
use unetmap::watch::Board;
use unetmap_abi::*;
use unetmap_mem::{BufIdx, Iface, IfaceShape, IndexSet, PoolShape, Pos};
use unetmap_sys::netns::Netns;
use unetmap_sys::process;

use crate::caller::Caller;
use crate::end::{Binding, End, EndShape};
use crate::estate::Estate;
use crate::filter::Filters;
use crate::interfaces::{DAEMON, Watched};
use crate::knobs::Knobs;
use crate::mediator::Wire;
use crate::monitor::Monitor;
use crate::nic::{Nic, NicKey};
use crate::null::NullPort;
use crate::offsets::Wanted;
use crate::pipe::{MAX_PIPES, Pipe, end_index, wished_shape};
use crate::policy::{Access, PolicyFile};
use crate::refusal::{Refusal, refuse};
use crate::region::{House, HouseId, Scope, Sizes};
use crate::settings::Settings;
use crate::uplink::{Persistent, Uplink};
use crate::vale::{Switches, ValeKey, ValePort};

/// Most extra buffers that one session gets. The daemon links them into a list, and so touches a page for every two: that
/// must stay a matter of milliseconds, and not much memory.
pub(crate) const MAX_EXTRA: u32 = 16384;

/// Which port a session has open.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) enum PortKey {
    /// The pipe, and the end's index.
    Pipe(PipeKey, usize),
    /// A port without a data path.
    Null(Scope, String),
    /// An interface.
    Nic(NicKey),
    /// A port of a switch.
    Vale(ValeKey),
    /// A monitor, by its number.
    Monitor(u64),
}

/// Which pipe.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) struct PipeKey {
    pub(crate) scope: Scope,
    pub(crate) parent: String,
    /// `None`: the one whose other end the daemon runs, between a client and the interface `parent`.
    pub(crate) id: Option<String>,
    /// Then, which of the interfaces that had this name one after the other; else 0.
    pub(crate) serial: u64,
}

/// An open port of one client.
pub(crate) struct Session {
    pub(crate) port: PortKey,
    pub(crate) name: String,
    pub(crate) pid: u32,
    pub(crate) uid: u32,
    pub(crate) house: HouseId,
    pub(crate) binding: Binding,
    /// Shows that who asks about the session has it.
    pub(crate) key: u64,
    asked: NmreqRegister,
    iface: Iface,
    iface_offset: u64,
    extra: u32,
}

/// A port: its region, the end that is meant, and what moves its slots.
pub(crate) struct Found<'a> {
    pub(crate) house: HouseId,
    pub(crate) end: &'a End,
    pub(crate) by: By<'a>,
}

#[derive(Clone, Copy)]
pub(crate) enum By<'a> {
    Nothing,
    /// The pipe with the end's index.
    Pipe(&'a Pipe, usize),
    Nic(&'a Nic),
    Vale(&'a ValePort),
    Monitor(&'a Monitor),
}

/// What REGISTER gives to the client.
pub(crate) struct Registered {
    pub(crate) session: u64,
    pub(crate) register: NmreqRegister,
    pub(crate) bound: Bound,
    pub(crate) fds: Vec<OwnedFd>,
    /// What became of the option OFFSETS, if there was one.
    pub(crate) offsets: Option<Wanted>,
}

/// What REGISTER asks for besides its body.
#[derive(Default)]
pub(crate) struct Options {
    pub(crate) offsets: Option<NmreqOptOffsets>,
}

/// Everything that the daemon has given out.
pub(crate) struct Books {
    pub(crate) houses: BTreeMap<HouseId, House>,
    pub(crate) pipes: BTreeMap<PipeKey, Pipe>,
    pub(crate) nulls: BTreeMap<(Scope, String), NullPort>,
    pub(crate) nics: BTreeMap<NicKey, Nic>,
    pub(crate) vales: BTreeMap<ValeKey, ValePort>,
    pub(crate) switches: Switches,
    pub(crate) settings: Settings,
    pub(crate) uplinks: BTreeMap<ValeKey, Uplink>,
    pub(crate) persistent: Vec<Persistent>,
    /// Where the far ends of persistent ports are, while there are any.
    pub(crate) closet: Option<Arc<Netns>>,
    pub(crate) monitors: BTreeMap<u64, Monitor>,
    pub(crate) last_monitor: u64,
    /// Those whose buffers are not back yet.
    pub(crate) closed_monitors: Vec<Monitor>,
    /// By session: of those that the daemon runs itself.
    pub(crate) boards: BTreeMap<u64, Arc<Board>>,
    pub(crate) sessions: BTreeMap<u64, Session>,
    pub(crate) knobs: Knobs,
    pub(crate) rules: Rules,
    /// The daemon's side of the interfaces that programs have open through it.
    pub(crate) wires: BTreeMap<PipeKey, Wire>,
    /// By namespace.
    pub(crate) watches: BTreeMap<u64, Watched>,
    pub(crate) filters: Filters,
    pub(crate) last_nic: u64,
    /// Whether new regions are to be such that the node can show them.
    pub(crate) node: bool,
    /// By user; each lives as long as a region in it, or a file of the node that shows it.
    estates: BTreeMap<u32, Weak<Estate>>,
    /// When the kernel's programs last heard that the daemon is at work.
    pub(crate) last_keep: Option<std::time::Instant>,
    last_session: u64,
    /// The next region that is not named by its number alone.
    next_house: HouseId,
}

/// What the daemon may do, and for whom.
pub(crate) struct Rules {
    /// The first number of private regions.
    pub(crate) first_mem_id: u16,
    /// The only user it serves; `None`: each user by himself.
    pub(crate) only_user: Option<u32>,
    /// Who may open which interface; `None`: nobody, because the daemon itself may not.
    pub(crate) policy: Option<PolicyFile>,
}

impl Books {
    pub(crate) fn new(knobs: Knobs, rules: Rules) -> Books {
        Books {
            houses: BTreeMap::new(),
            pipes: BTreeMap::new(),
            nulls: BTreeMap::new(),
            nics: BTreeMap::new(),
            vales: BTreeMap::new(),
            switches: Switches::default(),
            settings: Settings::default(),
            uplinks: BTreeMap::new(),
            persistent: Vec::new(),
            closet: None,
            monitors: BTreeMap::new(),
            last_monitor: 0,
            closed_monitors: Vec::new(),
            boards: BTreeMap::new(),
            sessions: BTreeMap::new(),
            knobs,
            rules,
            wires: BTreeMap::new(),
            watches: BTreeMap::new(),
            filters: Filters::default(),
            last_nic: 0,
            node: false,
            estates: BTreeMap::new(),
            last_keep: None,
            last_session: 0,
            next_house: HouseId::from(u16::MAX) + 1,
        }
    }

    /// Whose names and regions `caller` means, where no interface is involved.
    pub(crate) fn scope(&self, caller: &Caller) -> Scope {
        Scope { uid: self.rules.only_user.unwrap_or(caller.peer.uid), netns: 0 }
    }

    /// Binds a port for a client.
    pub(crate) fn register(
        &mut self,
        name: &str,
        asked: &NmreqRegister,
        options: &Options,
        caller: &Caller,
    ) -> Result<Registered, Refusal> {
        let spec = daemon_name(name)?;
        let insists = asked.nr_flags & FORCE != 0;
        let asked = &NmreqRegister { nr_flags: asked.nr_flags & !FORCE, ..*asked };
        if matches!(asked.nr_mode, NR_REG_PIPE_MASTER | NR_REG_PIPE_SLAVE) {
            return refuse(EINVAL, "the modes of pipes are the older request's: name the pipe, parent{id or parent}id");
        }
        if asked.nr_flags & (NR_MONITOR_TX | NR_MONITOR_RX | NR_ZCOPY_MON) != 0 {
            let key = self.make_monitor(&spec, asked, caller)?;
            return self
                .open_session(key.clone(), name, asked, options, caller)
                .inspect_err(|_| self.drop_if_unused(&key));
        }
        let key = if asked.nr_mode == NR_REG_NULL {
            self.make_null(&spec, asked, caller)?
        } else {
            if !insists {
                self.spare_default_route(&spec, asked, caller)?;
            }
            self.find_or_make_port(&spec, asked, caller)?
        };
        if let PortKey::Vale(key) = &key
            && self.uplinks.contains_key(key)
        {
            return refuse(EBUSY, "an interface is attached to the switch as this port (vale-ctl -d takes it out)");
        }
        if let PortKey::Vale(key) = &key
            && let Some(header) = self.vales.get(key).map(ValePort::header).filter(|header| *header > 0)
            && asked.nr_flags & NR_ACCEPT_VNET_HDR == 0
        {
            return refuse(
                EIO,
                format!(
                    "its packets begin with a virtio-net header of {header} bytes, for which the program must be ready \
                     (NR_ACCEPT_VNET_HDR)"
                ),
            );
        }
        let registered = self.open_session(key.clone(), name, asked, options, caller);
        if registered.is_err() {
            if let PortKey::Pipe(pipe, 0) = &key {
                self.drop_wire_if_unused(pipe);
            }
            self.drop_if_unused(&key);
        }
        registered
    }

    /// Finds the pipe, the interface or the port of a switch, or makes it.
    fn find_or_make_port(
        &mut self,
        spec: &PortSpec,
        asked: &NmreqRegister,
        caller: &Caller,
    ) -> Result<PortKey, Refusal> {
        if let Some(pipe) = &spec.pipe {
            return self.find_or_make_pipe(&spec.parent, &pipe.id, pipe.role, asked, caller);
        }
        match spec.kind {
            PortKind::Vale => self.find_or_make_vale(spec, asked, caller),
            PortKind::Netmap => self.find_or_make_nic(spec, asked, caller),
        }
    }

    /// Finds the pipe, or makes it in its parent's region, or in the region that was asked for.
    fn find_or_make_pipe(
        &mut self,
        parent: &str,
        id: &str,
        role: PipeRole,
        asked: &NmreqRegister,
        caller: &Caller,
    ) -> Result<PortKey, Refusal> {
        let beside = self.interface_of(parent, caller)?;
        if beside.is_none() && !self.may_pipe(caller)? {
            return refuse(EACCES, "this daemon serves pipes to other users only where its policy says so");
        }
        let scope = beside.as_ref().map_or_else(|| self.scope(caller), |(scope, _)| *scope);
        let key = PipeKey { scope, parent: parent.into(), id: Some(id.into()), serial: 0 };
        if let Some(pipe) = self.pipes.get(&key) {
            let lives = self.houses.get(&pipe.house).map_or(0, |house| house.mem_id);
            if asked.nr_mem_id != 0 && asked.nr_mem_id != lives {
                return refuse(EINVAL, format!("the pipe lives in region {lives}, not {}", asked.nr_mem_id));
            }
            return Ok(PortKey::Pipe(key, end_index(role)));
        }
        let siblings = self.pipes.keys().filter(|k| k.scope == scope && k.parent == parent && k.id.is_some());
        if siblings.count() >= MAX_PIPES {
            return refuse(EINVAL, format!("{parent} has {MAX_PIPES} pipes already"));
        }
        let shape = wished_shape(asked)?;
        let house = match (asked.nr_mem_id, beside) {
            (0, Some((_, Access::Direct))) => self.first_region(caller, 0)?,
            (0, _) => self.house_of_parent(&key, &shape)?,
            (mem_id, _) => self.numbered(mem_id, caller)?,
        };
        let made = match self.houses.get_mut(&house) {
            Some(house) => Pipe::make(house, shape, role),
            None => refuse(ENXIO, "the region has gone"),
        };
        let made = made.inspect_err(|_| self.drop_house_if_unused(house))?;
        self.pipes.insert(key.clone(), made);
        Ok(PortKey::Pipe(key, end_index(role)))
    }

    /// The region of this caller's that programs call `mem_id`.
    pub(crate) fn numbered(&self, mem_id: u16, caller: &Caller) -> Result<HouseId, Refusal> {
        let scope = self.scope(caller);
        let mine = |house: &&House| match house.mem_id {
            1 => house.scope == (Scope { netns: caller.netns_id(), ..scope }),
            _ => house.scope.uid == scope.uid,
        };
        match self.houses.values().filter(|house| house.mem_id == mem_id).find(mine) {
            Some(house) => Ok(house.id),
            None => refuse(EINVAL, format!("there is no region {mem_id} (unetmap ls shows them)")),
        }
    }

    /// The region of a parent that is no interface, made now if need be, such that the pipe `first` fits.
    fn house_of_parent(&mut self, key: &PipeKey, first: &EndShape) -> Result<HouseId, Refusal> {
        let mut siblings = self.pipes.iter().filter(|(k, _)| k.scope == key.scope && k.parent == key.parent);
        if let Some((_, pipe)) = siblings.next() {
            return Ok(pipe.house);
        }
        self.private_region(key.scope, &key.parent, self.knobs.of_others().with_pipe(first))
    }

    /// A new region with a number of its own.
    pub(crate) fn private_region(&mut self, scope: Scope, name: &str, sizes: Sizes) -> Result<HouseId, Refusal> {
        let (id, mem_id) = self.free_number()?;
        let estate = self.estate_for(scope);
        self.houses.insert(id, House::create((id, mem_id), scope, name, sizes, estate.as_ref())?);
        Ok(id)
    }

    /// A number that no region has.
    pub(crate) fn free_number(&self) -> Result<(HouseId, u16), Refusal> {
        let free = |id: &u16| !self.houses.contains_key(&HouseId::from(*id));
        match (self.rules.first_mem_id..=u16::MAX).find(free) {
            Some(mem_id) => Ok((HouseId::from(mem_id), mem_id)),
            None => refuse(ENOMEM, "all region numbers are in use"),
        }
    }

    /// The region of all interfaces that this caller opens directly, and of their pipes. The first of them has so many
    /// `slots`.
    pub(crate) fn first_region(&mut self, caller: &Caller, slots: u32) -> Result<HouseId, Refusal> {
        if let Ok(id) = self.numbered(1, caller) {
            return Ok(id);
        }
        let scope = Scope { netns: caller.netns_id(), ..self.scope(caller) };
        let id = self.next_house;
        self.next_house += 1;
        let (sizes, estate) = (self.knobs.of_interfaces(slots), self.estate_for(scope));
        self.houses.insert(id, House::create((id, 1), scope, "interfaces", sizes, estate.as_ref())?);
        Ok(id)
    }

    /// The file of all regions of `uid`.
    pub(crate) fn estate(&mut self, uid: u32) -> Result<Arc<Estate>, Refusal> {
        if let Some(estate) = self.estates.get(&uid).and_then(Weak::upgrade) {
            return Ok(estate);
        }
        self.estates.retain(|_, estate| estate.strong_count() > 0);
        let made = Estate::new().or_else(|e| refuse(ENOMEM, format!("no memory for a user's regions: {e}")))?;
        let made = Arc::new(made);
        self.estates.insert(uid, Arc::downgrade(&made));
        Ok(made)
    }

    /// Where a new region of `scope` goes, if the node is on. No program sees the daemon's own regions.
    fn estate_for(&mut self, scope: Scope) -> Option<Arc<Estate>> {
        if !self.node || scope.uid == DAEMON {
            return None;
        }
        self.estate(scope.uid).inspect_err(|refusal| tracing::warn!("{}", refusal.why)).ok()
    }

    /// Whether the node shows a session's region to its user.
    pub(crate) fn is_shown(&self, session: u64, estate: &Arc<Estate>) -> bool {
        let house = self.sessions.get(&session).and_then(|session| self.houses.get(&session.house));
        house.is_some_and(|house| house.is_in(estate))
    }

    fn make_null(&mut self, spec: &PortSpec, asked: &NmreqRegister, caller: &Caller) -> Result<PortKey, Refusal> {
        let key = (self.scope(caller), spec.name.clone());
        if self.nulls.contains_key(&key) {
            return refuse(EBUSY, "a port without a data path cannot be opened twice");
        }
        let id = self.numbered(asked.nr_mem_id, caller)?;
        let Some(house) = self.houses.get_mut(&id) else { return refuse(ENXIO, "the region has gone") };
        self.nulls.insert(key.clone(), NullPort::make(house, asked)?);
        Ok(PortKey::Null(key.0, key.1))
    }

    pub(crate) fn open_session(
        &mut self,
        key: PortKey,
        name: &str,
        asked: &NmreqRegister,
        options: &Options,
        caller: &Caller,
    ) -> Result<Registered, Refusal> {
        let secret = process::random();
        let secret = secret.or_else(|e| refuse(ENOMEM, format!("no random number for the session: {e}")))?;
        let found = self.port(&key)?;
        let (house_id, binding) = (found.house, found.end.select(asked)?);
        let iface_shape = iface_shape(self.name_of(&key).unwrap_or(name), found.end, &binding);
        let offsets = self.grant_offsets(&key, &binding, options).map_err(|r| r.of_option(NETMAP_REQ_OPT_OFFSETS))?;
        if let PortKey::Nic(nic) = &key
            && let Some(nic) = self.nics.get_mut(nic)
        {
            nic.raise(&binding)?;
        }
        let Some(house) = self.houses.get_mut(&house_id) else { return refuse(ENXIO, "the region has gone") };
        let made = house.make_iface(&iface_shape, asked.nr_extra_bufs.min(MAX_EXTRA));
        let (iface, iface_offset, extra) = made.inspect_err(|_| self.settle(&key))?;
        if let Some(house) = self.houses.get_mut(&house_id) {
            house.sessions += 1;
        }
        self.bind(&key, &binding);
        self.last_session += 1;
        let id = self.last_session;
        let (pid, uid) = (caller.peer.pid, caller.peer.uid);
        let session = Session {
            port: key,
            name: name.into(),
            pid,
            uid,
            house: house_id,
            binding,
            key: secret,
            asked: *asked,
            iface,
            iface_offset,
            extra,
        };
        let answer = self.answer(id, &session);
        // From here on the session is in the books, so that its end undoes all of this.
        let port = session.port.clone();
        self.sessions.insert(id, session);
        let served = match &port {
            PortKey::Pipe(key, 0) if key.id.is_none() => self.settle_wire(key),
            _ => Ok(()),
        };
        match served.and(answer) {
            Ok((register, bound, fds)) => Ok(Registered { session: id, register, bound, fds, offsets }),
            Err(e) => {
                self.close(id);
                Err(e)
            }
        }
    }

    /// Asks about a port without opening it, though somebody may have it alone: an interface's packets stay the kernel's,
    /// and a pipe or a switch's port is made for as long as that takes.
    pub(crate) fn look_at<T>(
        &mut self,
        spec: &PortSpec,
        asked: &NmreqRegister,
        caller: &Caller,
        ask: impl FnOnce(&Books, &NmreqRegister) -> Result<T, Refusal>,
    ) -> Result<T, Refusal> {
        let key = self.find_or_make_port(spec, asked, caller)?;
        let told = self.describe(&key, asked).and_then(|register| ask(self, &register));
        if let PortKey::Pipe(pipe, _) = &key {
            self.drop_wire_if_unused(pipe);
        }
        self.drop_if_unused(&key);
        told
    }

    /// What a session of the port would be told of it.
    fn describe(&self, key: &PortKey, asked: &NmreqRegister) -> Result<NmreqRegister, Refusal> {
        let found = self.port(key)?;
        let Some(house) = self.houses.get(&found.house) else { return refuse(ENXIO, "the region has gone") };
        Ok(register_of(found.end, house, asked))
    }

    fn bind(&mut self, key: &PortKey, binding: &Binding) {
        match key {
            PortKey::Pipe(key, at) => {
                if let Some(pipe) = self.pipes.get_mut(key) {
                    let lines = pipe.lines.clone();
                    pipe.ends[*at].bind(binding, |ring, transmit| ring.at_line(Some(&lines), transmit));
                }
            }
            PortKey::Null(scope, name) => {
                if let Some(port) = self.nulls.get_mut(&(*scope, name.clone())) {
                    port.end.bind(binding, |ring, transmit| ring.at_line(None, transmit));
                }
            }
            PortKey::Nic(key) => {
                if let Some(nic) = self.nics.get_mut(key) {
                    nic.bind(binding);
                }
            }
            PortKey::Vale(key) => {
                if let Some(port) = self.vales.get_mut(key) {
                    let lines = port.lines.clone();
                    port.end.bind(binding, |ring, transmit| ring.at_line(Some(&lines), transmit));
                }
            }
            PortKey::Monitor(id) => {
                if let Some(monitor) = self.monitors.get_mut(id) {
                    monitor.end.bind(binding, |ring, transmit| ring.at_line(None, transmit));
                }
                self.tell_watched(*id);
            }
        }
    }

    /// Gives back to the kernel what nobody has bound of an interface.
    fn settle(&mut self, key: &PortKey) {
        if let PortKey::Nic(key) = key
            && let Some(nic) = self.nics.get_mut(key)
        {
            nic.settle();
        }
    }

    /// What the client is told about its session.
    fn answer(&self, id: u64, session: &Session) -> Result<(NmreqRegister, Bound, Vec<OwnedFd>), Refusal> {
        let found = self.port(&session.port)?;
        let end = found.end;
        let Some(house) = self.houses.get(&session.house) else { return refuse(ENXIO, "the region has gone") };
        let geometry = house.region.geometry();
        let pool = |p: &PoolShape| BoundPool { offset: p.offset, count: p.count, size: p.size };
        let (third, page_bytes) = match found.by {
            By::Nothing => (&end.page_fd, 0),
            By::Pipe(pipe, _) => (&pipe.lines_fd, pipe.lines_bytes),
            By::Nic(nic) => (&nic.sent_fd, nic.sent_bytes),
            By::Vale(port) => (&port.lines_fd, port.lines_bytes),
            By::Monitor(monitor) => (&monitor.lines_fd, monitor.lines_bytes),
        };
        let mut fds = vec![house.fd.as_fd(), end.page_fd.as_fd(), third.as_fd()];
        let mut rings = Vec::new();
        let mediated = match &session.port {
            PortKey::Pipe(pipe, 0) => self.wires.get(pipe).and_then(|wire| self.nics.get(&wire.nic())),
            _ => None,
        };
        let mine = session.binding.tx.iter().map(|&i| &end.tx[i]).chain(session.binding.rx.iter().map(|&i| &end.rx[i]));
        for ring in mine {
            let shape = ring.view.shape();
            let mut told = BoundRing {
                offset: shape.offset,
                slots: shape.slots.get(),
                path: Path::Null as u32,
                state: ring.state as u32,
                line: ring.line.unwrap_or(0) as u32,
                spare: ring.spare.map_or(0, |b| b.0),
                id: shape.id,
                dir: shape.dir,
                offset_mask: ring.offsets.mask,
                max_offset: ring.offsets.max,
                ..Default::default()
            };
            let other_fd = match found.by {
                By::Nothing => ring.bell.as_fd(),
                By::Pipe(pipe, at) => {
                    let other = &pipe.ends[1 - at];
                    let other = &(if shape.dir == 0 { &other.rx } else { &other.tx })[usize::from(shape.id)];
                    (told.path, told.peer_offset) = (Path::Pipe as u32, other.view.shape().offset);
                    told.features = mediated.map_or(0, Nic::forwarding);
                    other.bell.as_fd()
                }
                By::Nic(nic) => {
                    let Some(socket) = nic.socket(ring.pair) else { return refuse(ENXIO, "the interface has gone") };
                    told.path = Path::Nic as u32;
                    told.line = nic.first_sent(shape.id) as u32;
                    // What the daemon itself reads is in other programs' hands first.
                    let forwarding = if nic.scope.uid == DAEMON { 0 } else { nic.forwarding() };
                    told.features = nic.features(ring.pair) | forwarding;
                    told.headroom = nic.headroom(ring.pair);
                    socket
                }
                By::Vale(port) => {
                    told.path = Path::Vale as u32;
                    port.bell.as_fd()
                }
                By::Monitor(monitor) => monitor.tell(&mut told).unwrap_or(ring.bell.as_fd()),
            };
            rings.push(told);
            fds.extend([ring.bell.as_fd(), other_fd]);
        }
        let head = BoundHead {
            pools: [pool(&geometry.ifs), pool(&geometry.rings), pool(&geometry.bufs)],
            if_offset: session.iface_offset,
            session: id,
            key: session.key,
            shelf: if let By::Monitor(monitor) = found.by { monitor.pools() } else { Default::default() },
            rings: rings.len() as u32,
            states: (end.tx.len() + end.rx.len()) as u32,
            page_bytes: page_bytes as u32,
            flags: if self.knobs.no_timestamp() { NO_TIMESTAMP } else { 0 },
        };
        let register = NmreqRegister {
            nr_offset: session.iface_offset,
            nr_extra_bufs: session.extra,
            ..register_of(end, house, &session.asked)
        };
        let fds = fds.into_iter().map(|fd| fd.try_clone_to_owned()).collect::<std::io::Result<Vec<_>>>();
        let fds = fds.or_else(|e| refuse(ENOMEM, format!("no file descriptors left in the daemon: {e}")))?;
        Ok((register, Bound { head, rings }, fds))
    }

    /// The name of a session's port, and what its client was told.
    pub(crate) fn again(&self, id: u64) -> Result<(String, Registered), Refusal> {
        let Some(session) = self.sessions.get(&id) else { return refuse(ENXIO, "the session is over") };
        let (register, bound, fds) = self.answer(id, session)?;
        Ok((session.name.clone(), Registered { session: id, register, bound, fds, offsets: None }))
    }

    /// A client's session is over, however it ended: everything it held is free again.
    pub(crate) fn close(&mut self, id: u64) {
        let Some(session) = self.sessions.remove(&id) else { return };
        self.boards.remove(&id);
        match &session.port {
            PortKey::Pipe(key, at) => {
                if let Some(pipe) = self.pipes.get_mut(key) {
                    let (first, second) = pipe.ends.split_at_mut(1);
                    let (end, other) = if *at == 0 { (&mut first[0], &second[0]) } else { (&mut second[0], &first[0]) };
                    end.unbind(&session.binding, Some(&pipe.lines), Some(other));
                }
            }
            PortKey::Null(scope, name) => {
                if let Some(port) = self.nulls.get_mut(&(*scope, name.clone())) {
                    port.end.unbind(&session.binding, None, None);
                }
            }
            PortKey::Nic(key) => {
                if let Some(nic) = self.nics.get_mut(key) {
                    nic.end.unbind(&session.binding, None, None);
                    nic.settle();
                }
            }
            PortKey::Vale(key) => {
                if let Some(port) = self.vales.get_mut(key) {
                    port.end.unbind(&session.binding, None, None);
                    // Whoever died may have sent and woken nobody any more.
                    port.bell.ring();
                }
            }
            PortKey::Monitor(id) => {
                if let Some(monitor) = self.monitors.get_mut(id) {
                    monitor.end.unbind(&session.binding, None, None);
                }
            }
        }
        self.end_monitors_of_closed(&session.port);
        // Looking through all rings is only worth it for a program that left a list of extra buffers.
        let left = session.iface.bufs_head() != BufIdx(0);
        let living = if left { self.living(session.house) } else { Vec::new() };
        if let Some(house) = self.houses.get_mut(&session.house) {
            house.drop_iface(&session.iface, session.iface_offset, session.extra, left.then_some(&living[..]));
            house.sessions = house.sessions.saturating_sub(1);
        }
        // A process that exchanged buffers between two ports has them in both until both are closed: nothing of it is torn.
        let more = |other: &Session| other.house == session.house && other.pid == session.pid;
        if !self.sessions.values().any(more) {
            self.mend(session.house);
        }
        if let PortKey::Pipe(key, 0) = &session.port
            && key.id.is_none()
        {
            self.drop_wire_if_unused(key);
            if let Err(e) = self.settle_wire(key) {
                tracing::warn!(name = session.name, "what is left of it cannot be served: {}", e.why);
            }
        }
        self.drop_if_unused(&session.port);
        self.settle_monitors();
    }

    /// Whoever dies in the middle of exchanging two buffers leaves one of them in two slots and the other in none. A slot
    /// of a ring that nobody has bound, whose buffer is in another slot too, gets a fresh one, or the next to bind the
    /// ring would share it with somebody. The buffer that is in no slot may just as well be in a living program's hands
    /// at this moment: it stays in quarantine until the region closes.
    fn mend(&mut self, id: HouseId) {
        let Some(house) = self.houses.get_mut(&id) else { return };
        let limits = house.region.limits();
        let mut seen = IndexSet::new(limits.bufs);
        let mut idle = Vec::new();
        let pipes = self.pipes.values().filter(|pipe| pipe.house == id);
        let ends = pipes.flat_map(|pipe| pipe.ends.iter().map(move |end| (end, Some(&pipe.lines))));
        let nics = self.nics.values().filter(|nic| nic.house == id).map(|nic| (&nic.end, None));
        let vales = self.vales.values().filter(|port| port.house == id).map(|port| (&port.end, None));
        for (end, lines) in ends.chain(nics).chain(vales) {
            for ring in end.tx.iter().chain(end.rx.iter().filter(|ring| ring.owns())) {
                let slots = ring.view.slots().slots();
                let line = ring.words(lines).and_then(|words| words.positions(slots));
                // What was sent and not released is the receiver's to read.
                let sent =
                    |p: Pos| line.is_some_and(|line| slots.distance(line.from, p) < slots.distance(line.from, line.to));
                for p in House::positions(&ring.view) {
                    if ring.binders() == 0 && !sent(p) {
                        idle.push((&ring.view, p));
                    } else {
                        seen.insert(ring.view.slots().buf_idx(p));
                    }
                }
            }
            if lines.is_some() {
                for idx in end.exchanged() {
                    seen.insert(idx);
                }
            }
        }
        let monitors = self.monitors.values().chain(&self.closed_monitors);
        for end in monitors.filter(|monitor| monitor.house == id).flat_map(Monitor::ends) {
            for idx in end.buffers() {
                seen.insert(idx);
            }
        }
        for (view, p) in idle {
            let idx = view.slots().buf_idx(p);
            if (!limits.index_ok(idx) || !seen.insert(idx))
                && let Ok(fresh) = house.take_buf()
            {
                view.slots().set_buf_idx(p, fresh);
            }
        }
    }

    /// The indexes in all rings of a region.
    pub(crate) fn living(&self, id: HouseId) -> Vec<BufIdx> {
        let pipes = self.pipes.values().filter(|pipe| pipe.house == id).flat_map(|pipe| &pipe.ends);
        let nulls = self.nulls.values().filter(|port| port.house == id).map(|port| &port.end);
        let nics = self.nics.values().filter(|nic| nic.house == id).map(|nic| &nic.end);
        let vales = self.vales.values().filter(|port| port.house == id).map(|port| &port.end);
        let monitors = self.monitors.values().chain(&self.closed_monitors).filter(|port| port.house == id);
        let monitors = monitors.flat_map(Monitor::ends);
        pipes.chain(nulls).chain(nics).chain(vales).chain(monitors).flat_map(End::buffers).collect()
    }

    /// Ends a port that nobody has open, and then its region, if that was its last.
    pub(crate) fn drop_if_unused(&mut self, key: &PortKey) {
        let mut ends = Vec::new();
        let id = match key {
            PortKey::Pipe(key, _) => {
                if self.pipes.get(key).is_none_or(|pipe| pipe.in_use()) {
                    return;
                }
                let Some(pipe) = self.pipes.remove(key) else { return };
                ends.extend(pipe.ends);
                pipe.house
            }
            PortKey::Null(scope, name) => {
                let Some(port) = self.nulls.remove(&(*scope, name.clone())) else { return };
                ends.push(port.end);
                port.house
            }
            PortKey::Nic(key) => {
                if self.nics.get(key).is_none_or(|nic| nic.end.in_use()) {
                    return;
                }
                let Some(nic) = self.nics.remove(key) else { return };
                self.unwatch_if_unused(key.netns);
                let id = nic.house;
                ends.push(nic.into_end());
                id
            }
            PortKey::Vale(key) => {
                if self.vales.get(key).is_none_or(|port| port.end.in_use()) {
                    return;
                }
                let Some(port) = self.take_vale(key) else { return };
                ends.push(port.end);
                port.house
            }
            PortKey::Monitor(id) => {
                if self.monitors.get(id).is_none_or(|monitor| monitor.end.in_use()) {
                    return;
                }
                return self.drop_monitor(*id);
            }
        };
        self.give_back(id, ends);
    }

    /// Gives rings of a region back, and their buffers.
    pub(crate) fn give_back(&mut self, id: HouseId, mut ends: Vec<End>) {
        let found: Vec<BufIdx> = ends.iter().flat_map(End::buffers).collect();
        let living = self.living(id);
        if let Some(house) = self.houses.get_mut(&id) {
            for end in &mut ends {
                end.drop_rings(house);
            }
            house.reclaim(&found, &living);
        }
        self.drop_house_if_unused(id);
    }

    pub(crate) fn drop_house_if_unused(&mut self, id: HouseId) {
        let used = self.houses.get(&id).is_some_and(|house| house.sessions > 0)
            || self.pipes.values().any(|pipe| pipe.house == id)
            || self.nulls.values().any(|port| port.house == id)
            || self.nics.values().any(|nic| nic.house == id)
            || self.vales.values().any(|port| port.house == id)
            || self.monitors.values().chain(&self.closed_monitors).any(|port| port.house == id);
        if !used && let Some(house) = self.houses.remove(&id) {
            let census = house.census(&[]);
            tracing::debug!(house.mem_id, ?census, "region closed");
        }
    }

    /// Frees every lock that the dead process with `lease` held.
    pub(crate) fn break_locks(&self, lease: u32) -> usize {
        let pipes = self.pipes.values().flat_map(|pipe| &pipe.ends);
        let nulls = self.nulls.values().map(|port| &port.end);
        let vales = self.vales.values().map(|port| &port.end);
        let monitors = self.monitors.values().map(|port| &port.end);
        let broken: usize = pipes.chain(nulls).chain(vales).chain(monitors).map(|end| end.break_locks(lease)).sum();
        broken + self.nics.values().map(|nic| nic.break_locks(lease)).sum::<usize>()
    }

    /// The end of a port, as its programs have it.
    pub(crate) fn end_of(&self, key: &PortKey) -> Result<&End, Refusal> {
        self.port(key).map(|found| found.end)
    }

    /// The name of a port that is not called as its programs ask for it.
    pub(crate) fn name_of(&self, key: &PortKey) -> Option<&str> {
        match key {
            PortKey::Monitor(id) => self.monitors.get(id).map(|monitor| &monitor.name[..]),
            _ => None,
        }
    }

    pub(crate) fn port(&self, key: &PortKey) -> Result<Found<'_>, Refusal> {
        let found = match key {
            PortKey::Pipe(key, at) => {
                self.pipes.get(key).map(|p| Found { house: p.house, end: &p.ends[*at], by: By::Pipe(p, *at) })
            }
            PortKey::Null(scope, name) => {
                self.nulls.get(&(*scope, name.clone())).map(|p| Found { house: p.house, end: &p.end, by: By::Nothing })
            }
            PortKey::Nic(key) => self.nics.get(key).map(|n| Found { house: n.house, end: &n.end, by: By::Nic(n) }),
            PortKey::Vale(key) => self.vales.get(key).map(|p| Found { house: p.house, end: &p.end, by: By::Vale(p) }),
            PortKey::Monitor(id) => {
                self.monitors.get(id).map(|p| Found { house: p.house, end: &p.end, by: By::Monitor(p) })
            }
        };
        found.map_or_else(|| refuse(ENXIO, "the port has gone"), Ok)
    }
}

/// The request `asked`, answered as far as it is about the port.
fn register_of(end: &End, house: &House, asked: &NmreqRegister) -> NmreqRegister {
    NmreqRegister {
        nr_memsize: house.region.geometry().bytes(),
        nr_tx_slots: end.shape.tx_slots.get(),
        nr_rx_slots: end.shape.rx_slots.get(),
        nr_tx_rings: end.shape.tx_rings,
        nr_rx_rings: end.shape.rx_rings,
        nr_host_tx_rings: end.shape.host_tx_rings.max(1),
        nr_host_rx_rings: end.shape.host_rx_rings.max(1),
        nr_mem_id: house.mem_id,
        ..*asked
    }
}

/// Reads a name as requests carry it: no mode, flags, region or options.
pub(crate) fn daemon_name(name: &str) -> Result<PortSpec, Refusal> {
    let with_prefix =
        if name.starts_with(NM_BDG_NAME) && name.contains(':') { name.into() } else { format!("netmap:{name}") };
    // The client already decided what a '-' means.
    match PortSpec::parse_with(&with_prefix, |_| true) {
        Ok(spec) if spec.name == name => Ok(spec),
        Ok(_) => refuse(EINVAL, "a request names only the port, without rings, flags or options"),
        Err(e) => refuse(EINVAL, e.what()),
    }
}

/// The `netmap_if` of a session: offsets of the rings it bound, in netmap's order. Where there are no host rings the
/// counts say 1, as the original's do.
fn iface_shape(name: &str, end: &End, binding: &Binding) -> IfaceShape {
    let offsets = |rings: &[crate::end::PortRing], bound: &[usize], hosts: u16| {
        let all = rings.iter().enumerate();
        let mut all: Vec<_> = all.map(|(i, ring)| bound.contains(&i).then_some(ring.view.shape().offset)).collect();
        if hosts == 0 {
            all.push(None);
        }
        all
    };
    let shape = end.shape;
    let mut rings = offsets(&end.tx, &binding.tx, shape.host_tx_rings);
    rings.extend(offsets(&end.rx, &binding.rx, shape.host_rx_rings));
    IfaceShape {
        name: name.into(),
        tx_rings: shape.tx_rings.into(),
        rx_rings: shape.rx_rings.into(),
        host_tx_rings: shape.host_tx_rings.max(1).into(),
        host_rx_rings: shape.host_rx_rings.max(1).into(),
        rings,
    }
}
