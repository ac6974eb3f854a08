//! The books' part about monitors: who watches which rings, and the shelves that the copies come by.
//!
//! A monitor is a port of its own, with one session, and a region of its own; one without copies is in the region of the
//! watched port, and its shelf, too. For each watched ring there is a ring on its
//! shelf (see `unetmap::watch`), with a line and a state of the same number.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use unetmap::bound::{BoundPool, BoundRing, Path, TRADES};
use unetmap::errno::{EBUSY, EINVAL, ENOMEM, ENXIO, EOPNOTSUPP};
use unetmap::watch::{Asked, Board, Told, ToldHead, ToldRing};
use unetmap_abi::*;
use unetmap_mem::{LinePage, Slots};

use crate::books::{Books, PipeKey, PortKey};
use crate::caller::Caller;
use crate::end::{Binding, End, EndShape, Way, shared_page};
use crate::interfaces::DAEMON;
use crate::pipe::end_index;
use crate::policy::Access;
use crate::refusal::{Refusal, refuse};
use crate::region::{House, HouseId, Scope, Sizes};

/// Monitors of one port: each makes the watched work more.
const MOST: usize = 16;
/// Slots of a ring.
const MOST_SLOTS: u32 = 4096;

/// A monitor; it exists as long as it is open.
pub(crate) struct Monitor {
    pub(crate) house: HouseId,
    pub(crate) scope: Scope,
    pub(crate) name: String,
    /// A transmit ring that sends nothing, and receive rings.
    pub(crate) end: End,
    pub(crate) lines_fd: OwnedFd,
    pub(crate) lines_bytes: usize,
    lines: LinePage,
    /// Its rings are transmit rings.
    on_shelf: End,
    shelf: Shelf,
    /// The ring on the shelf at the same place is of this watched ring.
    seen: Vec<Seen>,
    watched: PortKey,
    /// Whether the watched port has been closed.
    over: bool,
}

/// Where a shelf is.
enum Shelf {
    /// In memory that is in nobody else's books.
    Own(Box<House>),
    /// In the monitor's region, which is the watched port's: its file and its pools.
    Shared(OwnedFd, [BoundPool; 3]),
}

/// A watched ring.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Seen {
    transmit: bool,
    id: usize,
}

/// What is special about a monitor's rings in what its client is told.
impl Monitor {
    pub(crate) fn pools(&self) -> [BoundPool; 3] {
        match &self.shelf {
            Shelf::Own(house) => pools_of(house),
            Shelf::Shared(_, pools) => *pools,
        }
    }

    fn shelf_fd(&self) -> BorrowedFd<'_> {
        match &self.shelf {
            Shelf::Own(house) => house.fd.as_fd(),
            Shelf::Shared(fd, _) => fd.as_fd(),
        }
    }

    /// Whether it takes buffers in place of copies.
    pub(crate) fn trades(&self) -> bool {
        matches!(self.shelf, Shelf::Shared(..))
    }

    /// Its ends whose buffers belong to its region.
    pub(crate) fn ends(&self) -> impl Iterator<Item = &End> {
        std::iter::once(&self.end).chain(self.trades().then_some(&self.on_shelf))
    }

    /// The same, when it is closed.
    pub(crate) fn into_ends(self) -> Vec<End> {
        match self.shelf {
            Shelf::Own(_) => vec![self.end],
            Shelf::Shared(..) => vec![self.end, self.on_shelf],
        }
    }

    /// Completes what the client is told of a ring; returns the descriptor that goes with it, if it is not a bell.
    pub(crate) fn tell(&self, told: &mut BoundRing) -> Option<BorrowedFd<'_>> {
        told.path = Path::Monitor as u32;
        told.features = if self.trades() { TRADES } else { 0 };
        if told.dir == 0 {
            return None;
        }
        let found = |transmit| {
            let line = self.line_of(Seen { transmit, id: usize::from(told.id) })?;
            Some((self.on_shelf.tx[line].view.shape().offset, line as u32))
        };
        (told.peer_offset, told.line) = found(true).unwrap_or_default();
        (told.second_offset, told.second_line) = found(false).unwrap_or_default();
        Some(self.shelf_fd())
    }

    /// What those who run the watched rings are told, as far as they have them bound.
    fn told(&self, id: u64, bound: Option<&Binding>) -> Result<(Told, Vec<OwnedFd>), Refusal> {
        let meant = |seen: &Seen| {
            bound.is_none_or(|bound| (if seen.transmit { &bound.tx } else { &bound.rx }).contains(&seen.id))
        };
        let mut rings = Vec::new();
        let mut fds = vec![self.shelf_fd(), self.on_shelf.page_fd.as_fd(), self.lines_fd.as_fd()];
        for (line, seen) in self.seen.iter().enumerate().filter(|(_, seen)| meant(seen)) {
            let shape = self.on_shelf.tx[line].view.shape();
            rings.push(ToldRing {
                offset: shape.offset,
                slots: shape.slots.get(),
                line: line as u32,
                id: seen.id as u16,
                dir: u16::from(!seen.transmit),
                trades: self.trades().into(),
            });
            fds.push(self.end.rx[seen.id].bell.as_fd());
        }
        let head = ToldHead {
            monitor: id,
            pools: self.pools(),
            states: self.seen.len() as u32,
            lines_bytes: self.lines_bytes as u32,
        };
        let fds = fds.into_iter().map(|fd| fd.try_clone_to_owned()).collect::<std::io::Result<Vec<_>>>();
        let fds = fds.or_else(|e| refuse(ENOMEM, format!("no file descriptors left in the daemon: {e}")))?;
        Ok((Told { head, rings }, fds))
    }

    fn line_of(&self, seen: Seen) -> Option<usize> {
        self.seen.iter().position(|other| *other == seen)
    }

    /// Of a receive ring: slots on the shelf, and slots that had no room there.
    pub(crate) fn figures(&self, id: u16) -> (u32, u64) {
        let mut figures = (0, 0);
        for line in [true, false].into_iter().filter_map(|transmit| self.line_of(Seen { transmit, id: id.into() })) {
            let slots = self.on_shelf.shape.tx_slots;
            let waiting = self.lines.words(line).and_then(|words| words.positions(slots));
            figures.0 += waiting.map_or(0, |span| slots.distance(span.from, span.to));
            let state = self.on_shelf.page.state(line);
            figures.1 += state.map_or(0, |state| state.dropped.load(std::sync::atomic::Ordering::Relaxed));
        }
        figures
    }
}

fn pools_of(house: &House) -> [BoundPool; 3] {
    let g = house.region.geometry();
    [g.ifs, g.rings, g.bufs].map(|p| BoundPool { offset: p.offset, count: p.count, size: p.size })
}

/// The rings of `end` that `asked` wants to see.
fn seen_rings(end: &End, asked: &NmreqRegister) -> Vec<Seen> {
    let both = asked.nr_flags & NR_ZCOPY_MON != 0;
    let of = |rings: usize, transmit, flag| {
        let wanted = both || asked.nr_flags & flag != 0;
        let chosen = move |id: &usize| asked.nr_mode != NR_REG_ONE_NIC || usize::from(asked.nr_ringid) == *id;
        (0..rings).filter(move |id| wanted && chosen(id)).map(move |id| Seen { transmit, id })
    };
    let (tx, rx) = (end.shape.tx_rings.into(), end.shape.rx_rings.into());
    of(tx, true, NR_MONITOR_TX).chain(of(rx, false, NR_MONITOR_RX)).collect()
}

/// A monitor's rings: one transmit ring, which programs expect to find, and so many receive rings as the port has in
/// either direction.
fn wished_shape(end: &End, asked: &NmreqRegister) -> EndShape {
    let slots = |wish: u32, of_port: Slots| match wish {
        0 => Slots::new(of_port.get().min(MOST_SLOTS)).unwrap_or(of_port),
        wish => Slots::new(wish.clamp(2, MOST_SLOTS)).unwrap_or(of_port),
    };
    EndShape {
        tx_rings: 1,
        rx_rings: end.shape.tx_rings.max(end.shape.rx_rings),
        host_tx_rings: 0,
        host_rx_rings: 0,
        // In the watched port's region buffers are not for the taking.
        tx_slots: match asked.nr_flags & NR_ZCOPY_MON {
            0 => slots(asked.nr_tx_slots, end.shape.tx_slots),
            _ => Slots::new(2).unwrap_or(end.shape.tx_slots),
        },
        rx_slots: slots(asked.nr_rx_slots, end.shape.longest()),
    }
}

impl Books {
    /// Makes a monitor of a port that is open. `parent` is the watched one's name.
    pub(crate) fn make_monitor(
        &mut self,
        spec: &PortSpec,
        asked: &NmreqRegister,
        caller: &Caller,
    ) -> Result<PortKey, Refusal> {
        if !matches!(asked.nr_mode, NR_REG_ALL_NIC | NR_REG_ONE_NIC) {
            return refuse(EINVAL, "a monitor is opened on all rings or on one; it has no host rings");
        }
        let trades = asked.nr_flags & NR_ZCOPY_MON != 0;
        if asked.nr_mem_id != 0 && !trades {
            return refuse(EINVAL, "a monitor that copies has a region of its own, whose number is not chosen");
        }
        let watched = self.open_port(spec, caller)?;
        let others = self.monitors.values().filter(|monitor| monitor.watched == watched && !monitor.over);
        if others.count() >= MOST {
            return refuse(ENOMEM, format!("it has {MOST} monitors already"));
        }
        let shared = trades.then(|| self.shared_region(&watched, asked)).transpose()?;
        let end = self.end_of(&watched)?;
        let (shape, seen) = (wished_shape(end, asked), seen_rings(end, asked));
        if seen.is_empty() {
            return refuse(EINVAL, format!("there is no ring {} in that direction", asked.nr_ringid));
        }
        let id = self.last_monitor + 1;
        let flags = [(NR_ZCOPY_MON, "z"), (NR_MONITOR_RX, "r"), (NR_MONITOR_TX, "t")];
        let has = |flag| asked.nr_flags & flag != 0 || trades;
        let flags: String = flags.iter().filter(|(flag, _)| has(*flag)).map(|(_, name)| *name).collect();
        let name = format!("{}/{flags}#{id}", spec.name);
        let scope = self.scope(caller);
        let rx_slots = u32::from(shape.rx_rings) * shape.rx_slots.get();
        let slots = shape.tx_slots.get() + rx_slots + asked.nr_extra_bufs.min(crate::books::MAX_EXTRA);
        // What fits the watched port's buffers fits the monitor's.
        let (watched_region, others) = (self.port(&watched)?.house, self.knobs.of_others());
        let bytes = self.houses.get(&watched_region).map_or(others.bufs.1, |house| house.region.limits().buf_size);
        let sizes =
            Sizes { bufs: (others.bufs.0, bytes), ..others }.of_one_interface(1 + u32::from(shape.rx_rings), slots);
        let house = match shared {
            Some(house) => house,
            None => self.private_region(scope, &name, sizes)?,
        };
        let made = match self.houses.get_mut(&house) {
            Some(region) => make((region, sizes), (scope, name, trades), shape, seen, watched),
            None => refuse(ENXIO, "the region has gone"),
        };
        let monitor = made.inspect_err(|_| self.drop_house_if_unused(house))?;
        self.monitors.insert(id, monitor);
        self.last_monitor = id;
        Ok(PortKey::Monitor(id))
    }

    /// The region where a monitor can have the buffers of a port: of one that its program runs itself.
    fn shared_region(&self, watched: &PortKey, asked: &NmreqRegister) -> Result<HouseId, Refusal> {
        let (house, end) = match watched {
            PortKey::Pipe(key, at) => match self.pipes.get(key) {
                Some(pipe) => (pipe.house, &pipe.ends[*at]),
                None => return not_open(),
            },
            PortKey::Nic(key) => match self.nics.get(key) {
                Some(nic) if nic.scope.uid != DAEMON => (nic.house, &nic.end),
                _ => return only_copies("the daemon runs this interface, in memory that no program shares"),
            },
            _ => return only_copies("a switch copies its packets anyway"),
        };
        if end.tx.iter().chain(&end.rx).any(|ring| ring.offsets.mask != 0) {
            return only_copies("its packets begin behind the start of their buffers (OFFSETS)");
        }
        if self.monitors.values().any(|monitor| monitor.watched == *watched && monitor.trades() && !monitor.over) {
            return refuse(EBUSY, "another monitor has its buffers already (one that copies can join: flags t and r)");
        }
        let lives = self.houses.get(&house).map_or(0, |house| house.mem_id);
        if asked.nr_mem_id != 0 && asked.nr_mem_id != lives {
            return refuse(EINVAL, format!("the port lives in region {lives}, not {}", asked.nr_mem_id));
        }
        Ok(house)
    }

    /// The port that somebody has open under that name. Of one that the daemon runs for its program, the daemon's own.
    fn open_port(&mut self, spec: &PortSpec, caller: &Caller) -> Result<PortKey, Refusal> {
        let key = match (&spec.pipe, spec.kind) {
            (Some(pipe), _) => {
                let beside = self.interface_of(&spec.parent, caller)?;
                let scope = beside.map_or_else(|| self.scope(caller), |(scope, _)| scope);
                let key = PipeKey { scope, parent: spec.parent.clone(), id: Some(pipe.id.clone()), serial: 0 };
                PortKey::Pipe(key, end_index(pipe.role))
            }
            (None, PortKind::Vale) => PortKey::Vale(self.vale_key(spec, caller)?),
            (None, PortKind::Netmap) => self.open_interface(&spec.parent, caller)?,
        };
        match self.end_of(&key) {
            Ok(end) if end.in_use() => Ok(key),
            _ => not_open(),
        }
    }

    fn open_interface(&mut self, name: &str, caller: &Caller) -> Result<PortKey, Refusal> {
        let (link, access) = self.admitted(name, caller)?;
        let scope = Scope { netns: caller.netns_id(), ..self.scope(caller) };
        let Some((key, nic)) = self.nic_of(caller.netns_id(), link.index) else { return not_open() };
        let mine = match access {
            Access::Direct => nic.scope == scope,
            Access::Mediated => self.wires.iter().any(|(pipe, wire)| wire.nic() == key && pipe.scope == scope),
        };
        if mine { Ok(PortKey::Nic(key)) } else { crate::interfaces::in_use(nic) }
    }

    /// Those who run the watched rings are told that something has changed.
    pub(crate) fn tell_watched(&self, id: u64) {
        if let Some(monitor) = self.monitors.get(&id) {
            self.tell_about(monitor);
        }
    }

    /// Ends the monitors of a port that nobody has open any more.
    pub(crate) fn end_monitors_of_closed(&mut self, watched: &PortKey) {
        if !self.end_of(watched).is_ok_and(End::in_use) {
            self.end_monitors(watched);
        }
    }

    /// The port has ended: its monitors show what is on their shelves, and then fail.
    pub(crate) fn end_monitors(&mut self, watched: &PortKey) {
        for monitor in self.monitors.values_mut().filter(|monitor| monitor.watched == *watched && !monitor.over) {
            monitor.over = true;
            // Programs that sync all they have would fail at the other one, before they have read what is left.
            monitor.end.end_receiving();
        }
    }

    /// Takes a monitor that is closed out of the books, as far as nobody uses its shelf.
    pub(crate) fn drop_monitor(&mut self, id: u64) {
        let Some(monitor) = self.monitors.remove(&id) else { return };
        self.tell_about(&monitor);
        self.closed_monitors.push(monitor);
        self.settle_monitors();
    }

    /// Gives back what monitors had that were closed and whose shelves, in the region of the watched, somebody may have been
    /// using in that moment: he holds the lock of a watched ring.
    pub(crate) fn settle_monitors(&mut self) {
        while let Some(at) = self.closed_monitors.iter().position(|monitor| !self.is_in_use(monitor)) {
            let monitor = self.closed_monitors.swap_remove(at);
            self.give_back(monitor.house, monitor.into_ends());
        }
    }

    fn is_in_use(&self, monitor: &Monitor) -> bool {
        let Ok(end) = self.end_of(&monitor.watched) else { return false };
        let unheard = |seen: &Seen| {
            let ring = (if seen.transmit { &end.tx } else { &end.rx }).get(seen.id);
            ring.and_then(|ring| end.page.state(ring.state)).is_some_and(|state| !state.has_been_heard())
        };
        monitor.trades() && end.in_use() && monitor.seen.iter().any(unheard)
    }

    fn tell_about(&self, monitor: &Monitor) {
        if let PortKey::Vale(key) = &monitor.watched {
            // The switch shows what it moves, its programs do not.
            if let Some(port) = self.vales.get(key) {
                port.watched_by(self.monitors_of(&monitor.watched, None));
            }
            return;
        }
        for (session, board) in &self.boards {
            if let Some(session) = self.sessions.get(session).filter(|session| session.port == monitor.watched) {
                board.set(self.monitors_of(&session.port, Some(&session.binding)));
            }
        }
        let Ok(end) = self.end_of(&monitor.watched) else { return };
        for seen in monitor.seen.iter().filter(|_| !monitor.over) {
            let rings = if seen.transmit { &end.tx } else { &end.rx };
            if let Some(state) = rings.get(seen.id).and_then(|ring| end.page.state(ring.state)) {
                state.watchers_changed();
            }
        }
    }

    /// What a program is told of the next monitor of its port; `None` after the last.
    pub(crate) fn next_monitor(&self, asked: &Asked) -> Result<Option<(Told, Vec<OwnedFd>)>, Refusal> {
        let session = self.sessions.get(&asked.session).filter(|session| session.key == asked.key);
        let Some(session) = session else { return refuse(EINVAL, "no session of that number and key") };
        if matches!(session.port, PortKey::Vale(_)) {
            return Ok(None);
        }
        let mut later = self.monitors.range(asked.after.saturating_add(1)..);
        match later.find(|(_, monitor)| monitor.watched == session.port && !monitor.over) {
            Some((id, monitor)) => monitor.told(*id, Some(&session.binding)).map(Some),
            None => Ok(None),
        }
    }

    /// All monitors of a port, as far as they watch what is bound (`None`: all of it).
    fn monitors_of(&self, watched: &PortKey, bound: Option<&Binding>) -> Vec<(Told, Vec<OwnedFd>)> {
        let all = self.monitors.iter().filter(|(_, monitor)| monitor.watched == *watched && !monitor.over);
        let told = all.filter_map(|(id, monitor)| {
            monitor.told(*id, bound).inspect_err(|e| tracing::warn!(monitor.name, "it sees nothing: {}", e.why)).ok()
        });
        told.collect()
    }

    /// Where a session that the daemon runs itself is told who watches it.
    pub(crate) fn board_of(&mut self, session: u64) -> Arc<Board> {
        let board = Arc::new(Board::default());
        if let Some(opened) = self.sessions.get(&session) {
            board.set(self.monitors_of(&opened.port, Some(&opened.binding)));
        }
        self.boards.insert(session, board.clone());
        board
    }
}

fn not_open<T>() -> Result<T, Refusal> {
    refuse(EINVAL, "nobody has it open, and so there is nothing to watch (open the port itself first)")
}

fn only_copies<T>(why: &str) -> Result<T, Refusal> {
    refuse(EOPNOTSUPP, format!("{why}: it can be watched by copies only (flags t and r, without z)"))
}

fn make(
    (house, sizes): (&mut House, Sizes),
    (scope, name, trades): (Scope, String, bool),
    shape: EndShape,
    seen: Vec<Seen>,
    watched: PortKey,
) -> Result<Monitor, Refusal> {
    let lines_bytes = LinePage::bytes(seen.len());
    let (window, lines_fd) = shared_page("unetmap-lines", lines_bytes)?;
    let lines = LinePage::new(window);
    let count = seen.len() as u32;
    let shelves = EndShape { tx_rings: seen.len() as u16, rx_rings: 0, tx_slots: shape.rx_slots, ..shape };
    let (mut on_shelf, shelf) = if trades {
        let file = house.fd.try_clone();
        let file = file.or_else(|e| refuse(ENOMEM, format!("no file descriptors left in the daemon: {e}")))?;
        (End::make(house, shelves, Way::None)?, Shelf::Shared(file, pools_of(house)))
    } else {
        let sizes = sizes.of_one_interface(count, count * shape.rx_slots.get());
        let mut shelf = Box::new(House::create((0, 0), scope, &name, sizes, None)?);
        (End::make(&mut shelf, shelves, Way::None)?, Shelf::Own(shelf))
    };
    // As of an interface, each slot has a buffer of its own.
    let end = match End::make(house, shape, Way::Kernel) {
        Ok(end) => end,
        Err(refusal) => {
            if trades {
                let found = on_shelf.buffers();
                on_shelf.drop_rings(house);
                house.reclaim(&found, &[]);
            }
            return Err(refusal);
        }
    };
    let house = house.id;
    Ok(Monitor { house, scope, name, end, lines_fd, lines_bytes, lines, on_shelf, shelf, seen, watched, over: false })
}
