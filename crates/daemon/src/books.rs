//! The daemon's books: regions, ports, and the sessions that have them open. One thread, no lock.
//!
//! Here is what they record, and how a port is found, made and dropped; in `sessions` how a client opens and closes it,
//! in `answer` what the client is told about it, and in `regions` the memory that it lies in.

mod answer;
mod regions;
mod sessions;

use std::collections::BTreeMap;
use std::os::fd::OwnedFd;
use std::sync::{Arc, Weak};

use unetmap::bound::Bound;
use unetmap::errno::{EACCES, EBUSY, EINVAL, EIO, ENXIO};
use unetmap::request::FORCE;
use unetmap::watch::Board;
use unetmap_abi::*;
use unetmap_mem::Iface;
use unetmap_sys::netns::Netns;

use crate::caller::Caller;
use crate::end::{Binding, End};
use crate::estate::Estate;
use crate::filter::Filters;
use crate::interfaces::Watched;
use crate::knobs::Knobs;
use crate::mediator::Wire;
use crate::monitor::Monitor;
use crate::nic::{Nic, NicKey};
use crate::null::NullPort;
use crate::offsets::Wanted;
use crate::pipe::{MAX_PIPES, Pipe, end_index, wished_shape};
use crate::policy::{Access, PolicyFile};
use crate::refusal::{Refusal, refuse};
use crate::region::{House, HouseId, Scope};
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
            switches: Switches::new(knobs.plan().clone()),
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
