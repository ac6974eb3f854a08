//! The daemon's books: regions, ports, and the sessions that have them open. One thread, no lock.

use std::collections::BTreeMap;
use std::os::fd::{AsFd, OwnedFd};

use unetmap::bound::{Bound, BoundHead, BoundPool, BoundRing, Path};
use unetmap::errno::{EBUSY, EINVAL, ENOMEM, ENXIO, EOPNOTSUPP};
use unetmap_abi::*;
use unetmap_mem::{BufIdx, Iface, IfaceShape, IndexSet, LinePage, PoolShape, Pos};
use unetmap_sys::socket::Peer;

use crate::end::{Binding, End};
use crate::null::NullPort;
use crate::pipe::{MAX_PIPES, Pipe, end_index, wished_shape};
use crate::refusal::{Refusal, refuse};
use crate::region::{House, Sizes};

/// Most extra buffers that one session gets. The daemon links them into a list, and so touches a page for every two: that
/// must stay a matter of milliseconds, and not much memory.
const MAX_EXTRA: u32 = 16384;

/// Which port a session has open.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) enum PortKey {
    /// Parent and id, and the end's index.
    Pipe(PipeKey, usize),
    /// A port without a data path.
    Null(String),
}

/// Parent and id.
pub(crate) type PipeKey = (String, String);

/// An open port of one client.
pub(crate) struct Session {
    pub(crate) port: PortKey,
    pub(crate) name: String,
    pub(crate) peer: Peer,
    pub(crate) mem_id: u16,
    pub(crate) binding: Binding,
    iface: Iface,
    iface_offset: u64,
    extra: u32,
}

/// A port's region, the end that is meant, and for a pipe the pipe with that end's index.
type Found<'a> = (u16, &'a End, Option<(&'a Pipe, usize)>);

/// What REGISTER gives to the client.
pub(crate) struct Registered {
    pub(crate) session: u64,
    pub(crate) register: NmreqRegister,
    pub(crate) bound: Bound,
    pub(crate) fds: Vec<OwnedFd>,
}

/// Everything that the daemon has given out.
pub(crate) struct Books {
    pub(crate) houses: BTreeMap<u16, House>,
    pub(crate) pipes: BTreeMap<PipeKey, Pipe>,
    pub(crate) nulls: BTreeMap<String, NullPort>,
    pub(crate) sessions: BTreeMap<u64, Session>,
    sizes: Sizes,
    first_mem_id: u16,
    last_session: u64,
}

impl Books {
    pub(crate) fn new(sizes: Sizes, first_mem_id: u16) -> Books {
        Books {
            houses: BTreeMap::new(),
            pipes: BTreeMap::new(),
            nulls: BTreeMap::new(),
            sessions: BTreeMap::new(),
            sizes,
            first_mem_id,
            last_session: 0,
        }
    }

    /// Binds a port for a client.
    pub(crate) fn register(&mut self, name: &str, asked: &NmreqRegister, peer: Peer) -> Result<Registered, Refusal> {
        let spec = daemon_name(name)?;
        if asked.nr_flags & (NR_MONITOR_TX | NR_MONITOR_RX | NR_ZCOPY_MON) != 0 {
            return refuse(EOPNOTSUPP, "monitors are not served");
        }
        let key = if asked.nr_mode == NR_REG_NULL {
            self.make_null(&spec, asked)?
        } else {
            let Some(pipe) = &spec.pipe else { return no_such_port(&spec) };
            self.find_or_make_pipe(&spec.parent, &pipe.id, pipe.role, asked)?
        };
        let registered = self.open_session(key.clone(), name, asked, peer);
        if registered.is_err() {
            self.drop_if_unused(&key);
        }
        registered
    }

    /// Finds the pipe, or makes it in its parent's region, or in the region that was asked for.
    fn find_or_make_pipe(
        &mut self,
        parent: &str,
        id: &str,
        role: PipeRole,
        asked: &NmreqRegister,
    ) -> Result<PortKey, Refusal> {
        let key: PipeKey = (parent.into(), id.into());
        if let Some(pipe) = self.pipes.get(&key) {
            if asked.nr_mem_id != 0 && asked.nr_mem_id != pipe.mem_id {
                let why = format!("the pipe lives in region {}, not {}", pipe.mem_id, asked.nr_mem_id);
                return refuse(EINVAL, why);
            }
            return Ok(PortKey::Pipe(key, end_index(role)));
        }
        if self.pipes.keys().filter(|(p, _)| p == parent).count() >= MAX_PIPES {
            return refuse(EINVAL, format!("{parent} has {MAX_PIPES} pipes already"));
        }
        let shape = wished_shape(asked)?;
        let mem_id = self.house_for(parent, asked.nr_mem_id)?;
        let made = match self.houses.get_mut(&mem_id) {
            Some(house) => Pipe::make(house, shape, role),
            None => refuse(ENXIO, format!("there is no region {mem_id}")),
        };
        let made = made.inspect_err(|_| self.drop_house_if_unused(mem_id))?;
        self.pipes.insert(key.clone(), made);
        Ok(PortKey::Pipe(key, end_index(role)))
    }

    /// The region `mem_id`; or, where that is 0, the parent's, made now if need be.
    fn house_for(&mut self, parent: &str, mem_id: u16) -> Result<u16, Refusal> {
        if mem_id != 0 {
            return match self.houses.contains_key(&mem_id) {
                true => Ok(mem_id),
                false => refuse(EINVAL, format!("there is no region {mem_id} (unetmap ls shows them)")),
            };
        }
        let siblings = self.pipes.iter().find(|((p, _), _)| p == parent).map(|(_, pipe)| pipe.mem_id);
        if let Some(mem_id) = siblings {
            return Ok(mem_id);
        }
        let Some(mem_id) = (self.first_mem_id..=u16::MAX).find(|id| !self.houses.contains_key(id)) else {
            return refuse(ENOMEM, "all region numbers are in use");
        };
        self.houses.insert(mem_id, House::create(mem_id, parent, self.sizes)?);
        Ok(mem_id)
    }

    fn make_null(&mut self, spec: &PortSpec, asked: &NmreqRegister) -> Result<PortKey, Refusal> {
        if self.nulls.contains_key(&spec.name) {
            return refuse(EBUSY, "a port without a data path cannot be opened twice");
        }
        let Some(house) = self.houses.get_mut(&asked.nr_mem_id) else {
            return refuse(EINVAL, format!("there is no region {} for it (name one with @)", asked.nr_mem_id));
        };
        self.nulls.insert(spec.name.clone(), NullPort::make(house, asked)?);
        Ok(PortKey::Null(spec.name.clone()))
    }

    fn open_session(
        &mut self,
        key: PortKey,
        name: &str,
        asked: &NmreqRegister,
        peer: Peer,
    ) -> Result<Registered, Refusal> {
        let (mem_id, end, _) = self.port(&key)?;
        let binding = end.select(asked)?;
        let (house, end, lines) = self.parts(&key)?;
        let iface_shape = iface_shape(name, end, &binding);
        let (iface, iface_offset, extra) = house.make_iface(&iface_shape, asked.nr_extra_bufs.min(MAX_EXTRA))?;
        end.bind(&binding, lines);
        house.sessions += 1;
        self.last_session += 1;
        let id = self.last_session;
        let session = Session { port: key, name: name.into(), peer, mem_id, binding, iface, iface_offset, extra };
        let answer = self.answer(id, &session, asked);
        // From here on the session is in the books, so that its end undoes all of this.
        self.sessions.insert(id, session);
        match answer {
            Ok((register, bound, fds)) => Ok(Registered { session: id, register, bound, fds }),
            Err(e) => {
                self.close(id);
                Err(e)
            }
        }
    }

    /// What the client is told about its session.
    fn answer(
        &self,
        id: u64,
        session: &Session,
        asked: &NmreqRegister,
    ) -> Result<(NmreqRegister, Bound, Vec<OwnedFd>), Refusal> {
        let (_, end, pipe) = self.port(&session.port)?;
        let Some(house) = self.houses.get(&session.mem_id) else { return refuse(ENXIO, "the region has gone") };
        let geometry = house.region.geometry();
        let pool = |p: &PoolShape| BoundPool { offset: p.offset, count: p.count, size: p.size };
        let mut rings = Vec::new();
        let mut fds = vec![&house.fd, &end.page_fd, pipe.map_or(&end.page_fd, |(pipe, _)| &pipe.lines_fd)]
            .into_iter()
            .map(AsFd::as_fd)
            .collect::<Vec<_>>();
        let mine = session.binding.tx.iter().map(|&i| &end.tx[i]).chain(session.binding.rx.iter().map(|&i| &end.rx[i]));
        for ring in mine {
            let shape = ring.view.shape();
            let peer = pipe.map(|(pipe, at)| {
                let other = &pipe.ends[1 - at];
                let rings = if shape.dir == 0 { &other.rx } else { &other.tx };
                &rings[usize::from(shape.id)]
            });
            rings.push(BoundRing {
                offset: shape.offset,
                peer_offset: peer.map_or(0, |p| p.view.shape().offset),
                slots: shape.slots.get(),
                path: if peer.is_some() { Path::Pipe } else { Path::Null } as u32,
                state: ring.state as u32,
                line: ring.line.unwrap_or(0) as u32,
                spare: ring.spare.map_or(0, |b| b.0),
                id: shape.id,
                dir: shape.dir,
            });
            fds.extend([ring.bell.as_fd(), peer.map_or(ring.bell.as_fd(), |p| p.bell.as_fd())]);
        }
        let head = BoundHead {
            pools: [pool(&geometry.ifs), pool(&geometry.rings), pool(&geometry.bufs)],
            if_offset: session.iface_offset,
            session: id,
            rings: rings.len() as u32,
            states: (end.tx.len() + end.rx.len()) as u32,
            lines: pipe.map_or(0, |(pipe, _)| pipe.line_count) as u32,
            reserved: 0,
        };
        let register = NmreqRegister {
            nr_offset: session.iface_offset,
            nr_memsize: geometry.bytes(),
            nr_tx_slots: end.shape.tx_slots.get(),
            nr_rx_slots: end.shape.rx_slots.get(),
            nr_tx_rings: end.shape.tx_rings,
            nr_rx_rings: end.shape.rx_rings,
            nr_host_tx_rings: 1,
            nr_host_rx_rings: 1,
            nr_mem_id: session.mem_id,
            nr_extra_bufs: session.extra,
            ..*asked
        };
        let fds = fds.into_iter().map(|fd| fd.try_clone_to_owned()).collect::<std::io::Result<Vec<_>>>();
        let fds = fds.or_else(|e| refuse(ENOMEM, format!("no file descriptors left in the daemon: {e}")))?;
        Ok((register, Bound { head, rings }, fds))
    }

    /// A client's session is over, however it ended: everything it held is free again.
    pub(crate) fn close(&mut self, id: u64) {
        let Some(session) = self.sessions.remove(&id) else { return };
        match &session.port {
            PortKey::Pipe(key, at) => {
                if let Some(pipe) = self.pipes.get_mut(key) {
                    let (first, second) = pipe.ends.split_at_mut(1);
                    let (end, other) = if *at == 0 { (&mut first[0], &second[0]) } else { (&mut second[0], &first[0]) };
                    end.unbind(&session.binding, Some(&pipe.lines), Some(other));
                }
            }
            PortKey::Null(name) => {
                if let Some(port) = self.nulls.get_mut(name) {
                    port.end.unbind(&session.binding, None, None);
                }
            }
        }
        // Looking through all rings is only worth it for a program that left a list of extra buffers.
        let left = session.iface.bufs_head() != BufIdx(0);
        let living = if left { self.living(session.mem_id) } else { Vec::new() };
        if let Some(house) = self.houses.get_mut(&session.mem_id) {
            house.drop_iface(&session.iface, session.iface_offset, session.extra, left.then_some(&living[..]));
            house.sessions = house.sessions.saturating_sub(1);
        }
        // A process that exchanged buffers between two ports has them in both until both are closed: nothing of it is torn.
        let more = |other: &Session| other.mem_id == session.mem_id && other.peer.pid == session.peer.pid;
        if !self.sessions.values().any(more) {
            self.mend(session.mem_id);
        }
        self.drop_if_unused(&session.port);
    }

    /// Whoever dies in the middle of exchanging two buffers leaves one of them in two slots and the other in none. A slot
    /// of a ring that nobody has bound, whose buffer is in another slot too, gets a fresh one, or the next to bind the
    /// ring would share it with somebody. The buffer that is in no slot may just as well be in a living program's hands
    /// at this moment: it stays in quarantine until the region closes.
    fn mend(&mut self, mem_id: u16) {
        let Some(house) = self.houses.get_mut(&mem_id) else { return };
        let limits = house.region.limits();
        let mut seen = IndexSet::new(limits.bufs);
        let mut idle = Vec::new();
        for pipe in self.pipes.values().filter(|pipe| pipe.mem_id == mem_id) {
            for ring in pipe.ends.iter().flat_map(|end| &end.tx) {
                let slots = ring.view.slots().slots();
                let line = ring.words(Some(&pipe.lines)).and_then(|words| words.positions(slots));
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
            for idx in pipe.ends.iter().flat_map(End::exchanged) {
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
    pub(crate) fn living(&self, mem_id: u16) -> Vec<BufIdx> {
        let pipes = self.pipes.values().filter(|pipe| pipe.mem_id == mem_id).flat_map(|pipe| &pipe.ends);
        let nulls = self.nulls.values().filter(|port| port.mem_id == mem_id).map(|port| &port.end);
        pipes.chain(nulls).flat_map(End::buffers).collect()
    }

    /// Ends a port that nobody has open, and then its region, if that was its last.
    fn drop_if_unused(&mut self, key: &PortKey) {
        let mut ends = Vec::new();
        let mem_id = match key {
            PortKey::Pipe(key, _) => {
                if self.pipes.get(key).is_none_or(Pipe::in_use) {
                    return;
                }
                let Some(pipe) = self.pipes.remove(key) else { return };
                ends.extend(pipe.ends);
                pipe.mem_id
            }
            PortKey::Null(name) => {
                let Some(port) = self.nulls.remove(name) else { return };
                ends.push(port.end);
                port.mem_id
            }
        };
        let found: Vec<BufIdx> = ends.iter().flat_map(End::buffers).collect();
        let living = self.living(mem_id);
        if let Some(house) = self.houses.get_mut(&mem_id) {
            for end in &mut ends {
                end.drop_rings(house);
            }
            house.reclaim(&found, &living);
        }
        self.drop_house_if_unused(mem_id);
    }

    fn drop_house_if_unused(&mut self, mem_id: u16) {
        let used = self.houses.get(&mem_id).is_some_and(|house| house.sessions > 0)
            || self.pipes.values().any(|pipe| pipe.mem_id == mem_id)
            || self.nulls.values().any(|port| port.mem_id == mem_id);
        if !used && let Some(house) = self.houses.remove(&mem_id) {
            let census = house.census(&[]);
            tracing::debug!(mem_id, ?census, "region closed");
        }
    }

    /// Frees every lock that the dead process with `lease` held.
    pub(crate) fn break_locks(&self, lease: u32) -> usize {
        let pipes = self.pipes.values().flat_map(|pipe| &pipe.ends);
        pipes.chain(self.nulls.values().map(|port| &port.end)).map(|end| end.break_locks(lease)).sum()
    }

    /// A port's region, end and, for a pipe, the pipe with the end's index.
    fn port(&self, key: &PortKey) -> Result<Found<'_>, Refusal> {
        let found = match key {
            PortKey::Pipe(key, at) => self.pipes.get(key).map(|p| (p.mem_id, &p.ends[*at], Some((p, *at)))),
            PortKey::Null(name) => self.nulls.get(name).map(|p| (p.mem_id, &p.end, None)),
        };
        found.map_or_else(|| refuse(ENXIO, "the port has gone"), Ok)
    }

    /// The same, to change; with the lines where there are any.
    fn parts(&mut self, key: &PortKey) -> Result<(&mut House, &mut End, Option<&LinePage>), Refusal> {
        let (mem_id, end, lines) = match key {
            PortKey::Pipe(key, at) => match self.pipes.get_mut(key) {
                Some(pipe) => (pipe.mem_id, &mut pipe.ends[*at], Some(&pipe.lines)),
                None => return refuse(ENXIO, "the pipe has gone"),
            },
            PortKey::Null(name) => match self.nulls.get_mut(name) {
                Some(port) => (port.mem_id, &mut port.end, None),
                None => return refuse(ENXIO, "the port has gone"),
            },
        };
        match self.houses.get_mut(&mem_id) {
            Some(house) => Ok((house, end, lines)),
            None => refuse(ENXIO, "the region has gone"),
        }
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

fn no_such_port<T>(spec: &PortSpec) -> Result<T, Refusal> {
    let exists = spec.kind == PortKind::Netmap && std::path::Path::new("/sys/class/net").join(&spec.parent).exists();
    if exists {
        return refuse(EOPNOTSUPP, "network interfaces are not served by this daemon, pipes are (netmap:NAME{1)");
    }
    if spec.kind == PortKind::Vale {
        return refuse(EOPNOTSUPP, "switch ports are not served by this daemon, pipes are (netmap:NAME{1)");
    }
    refuse(ENXIO, "no such interface (unetmap ls shows the ports)")
}

/// The `netmap_if` of a session: offsets of the rings it bound, in netmap's order. There are no host rings, but the
/// counts say 1, as the original's do.
fn iface_shape(name: &str, end: &End, binding: &Binding) -> IfaceShape {
    let offsets = |rings: &[crate::end::PortRing], bound: &[usize]| {
        let all = rings.iter().enumerate();
        all.map(|(i, ring)| bound.contains(&i).then_some(ring.view.shape().offset)).collect::<Vec<_>>()
    };
    let mut rings = offsets(&end.tx, &binding.tx);
    rings.push(None);
    rings.extend(offsets(&end.rx, &binding.rx));
    rings.push(None);
    IfaceShape {
        name: name.into(),
        tx_rings: end.tx.len() as u32,
        rx_rings: end.rx.len() as u32,
        host_tx_rings: 1,
        host_rx_rings: 1,
        rings,
    }
}
