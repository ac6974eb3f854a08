//! Opening a port: from a name to mapped rings.

use std::collections::HashMap;
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError, Weak};

use unetmap_abi::{
    NETMAP_REQ_OPT_OFFSETS, NETMAP_REQ_PORT_INFO_GET, NETMAP_REQ_REGISTER, NS_TXMON, NmreqOptOffsets, NmreqOption,
    NmreqPortInfoGet, NmreqRegister, PortKind, PortSpec,
};
use unetmap_mem::{
    BufIdx, Buffers, Consumer, CopyKind, EndPage, Geometry, Iface, Inbox, LinePage, Offsets, Producer, ReceiveRings,
    Region, RingShape, RingView, SendRings, SentPage, Slots, Window,
};
use unetmap_sys::{Doorbell, Mapping, link, process, xsk};
use zerocopy::IntoBytes;

use crate::backend::monitor::{MonitorRx, Shelf};
use crate::backend::nic::{Half, NicRx, NicTx};
use crate::backend::null::Null;
use crate::backend::pipe::{PipeRx, PipeTx};
use crate::backend::vale::{ValeRx, ValeTx};
use crate::control::binding::{Bound, BoundRing, FIXED_FDS, FORWARDS, FORWARDS_ALL, FRAGS, NO_TIMESTAMP, Path, TRADES, geometry};
use crate::control::client::{self, Connection};
use crate::error::{Error, errno};
use crate::port::extmem::{self, Pools};
use crate::port::forward::Onward;
use crate::port::lease::{self, Lease};
use crate::port::Port;
use crate::control::request::{Answer, Request};
use crate::port::ring::Ring;
use crate::sync::{NO_NONSENSE, Path as SyncPath, SyncRing};
use crate::sync::mirror::{Board, Source, Watchers};

/// How to open a port: what the name does not say. A wish that is 0 takes the default; wishes about slots and rings
/// count only for whoever opens the port first.
#[derive(Clone, Debug, Default)]
#[must_use]
pub struct OpenOptions {
    register: NmreqRegister,
    pools: Option<Pools>,
}

impl OpenOptions {
    /// Slots of each transmit ring, 2..=4096 for a pipe.
    pub fn tx_slots(mut self, n: u32) -> Self {
        self.register.nr_tx_slots = n;
        self
    }

    /// Slots of each receive ring, 2..=4096 for a pipe.
    pub fn rx_slots(mut self, n: u32) -> Self {
        self.register.nr_rx_slots = n;
        self
    }

    /// Transmit rings, up to 256 for a pipe.
    pub fn tx_rings(mut self, n: u16) -> Self {
        self.register.nr_tx_rings = n;
        self
    }

    /// Receive rings, up to 256 for a pipe.
    pub fn rx_rings(mut self, n: u16) -> Self {
        self.register.nr_rx_rings = n;
        self
    }

    /// Buffers besides those in rings; may be fewer, see [`Port::extra_bufs`].
    pub fn extra_bufs(mut self, n: u32) -> Self {
        self.register.nr_extra_bufs = n;
        self
    }

    /// `NR_*` flags of the register request, besides those in the name.
    pub fn flags(mut self, flags: u64) -> Self {
        self.register.nr_flags = flags;
        self
    }

    /// `NR_REG_*` mode in place of the one in the name, for `NR_REG_NULL`.
    pub fn mode(mut self, mode: u32) -> Self {
        self.register.nr_mode = mode;
        self
    }

    /// A region of the port's own, with pools as wished: netmap's option EXTMEM, without its address (see [`crate::port::extmem`]).
    /// Others get into that region by its number, [`Port::mem_id`]. `@extmem` in the name beats it.
    pub fn pools(mut self, pools: Pools) -> Self {
        self.pools = Some(pools);
        self
    }

    /// Opens the port that `spec` names, in netmap's grammar: `netmap:p{1`, `netmap:p}1@5`, `netmap:eth0-2/R`.
    ///
    /// # Errors
    /// A bad name, a refusal of the daemon, or no daemon.
    pub fn open(&self, spec: &str) -> Result<Port, Error> {
        let parsed = PortSpec::parse_with(spec, interface_exists)?;
        refuse_unserved(spec, &parsed)?;
        let mut register = self.register;
        register.nr_flags |= parsed.flags;
        if register.nr_mode == 0 {
            register.nr_mode = parsed.nr_mode();
            register.nr_ringid = parsed.ring_id();
        }
        register.nr_mem_id = shared_region(spec, &parsed)?;
        conf_wishes(&mut register, &parsed);
        let refused = |errno| Error::Refused { asked: spec.into(), errno, why: "the name is too long".into() };
        let mut request = Request::new(NETMAP_REQ_REGISTER, &parsed.name, register.as_bytes()).map_err(refused)?;
        request.options.extend(offsets_option(&parsed));
        let wish = parsed.options.extmem.as_ref();
        let file = wish.map(|wish| extmem::file(spec, wish)).transpose()?;
        let pools = wish.zip(file.as_ref()).map(|(wish, (_, bytes))| Pools::named(wish, *bytes)).or(self.pools);
        request.options.extend(pools.map(|pools| pools.option().as_bytes().to_vec()));
        unetmap_mem::register_publisher();
        process::count_forks().map_err(|e| Error::host(spec, e))?;
        let (connection, (answer, fds)) = match ask_system(spec, &parsed, &request) {
            Some(answered) => answered,
            None => ask_own(spec, &request),
        }
        .map_err(|e| about_share(e, &parsed))?;
        let garbled = || Error::host(spec, io::Error::other("the daemon's answer makes no sense"));
        let register = answer.request.body_as::<NmreqRegister>().ok_or_else(garbled)?;
        let bound = Bound::decode(&answer.bound).filter(|b| b.fds() == fds.len()).ok_or_else(garbled)?;
        let lease = lease::of_this_process(&connection.socket)?;
        let port = assemble(spec, connection, lease, register, &bound, fds)?;
        if let Some((file, _)) = &file {
            extmem::fill_from(spec, &port, file)?;
        }
        Ok(port)
    }
}

/// For the daemon: a port of its own, which it did not have to ask anybody for. It lives as long as the other end of
/// `connection` is open; `lease` names the daemon in locks, `board` tells who watches the
/// port.
///
/// # Errors
/// What was bound does not fit together, or cannot be mapped.
pub fn adopt(
    spec: &str,
    register: NmreqRegister,
    bound: &Bound,
    fds: Vec<OwnedFd>,
    connection: OwnedFd,
    lease: u32,
    board: Arc<Board>,
) -> Result<Port, Error> {
    unetmap_mem::register_publisher();
    let lease = Lease::of_daemon(lease, &connection).map_err(|e| Error::host(spec, e))?;
    let connection = Connection { fd: connection, socket: PathBuf::new() };
    let mut port = assemble_for(false, spec, (connection, Arc::new(lease)), register, bound, fds)?;
    port.source.board = Some(board);
    Ok(port)
}

pub(crate) fn assemble(
    spec: &str,
    connection: Connection,
    lease: Arc<Lease>,
    register: NmreqRegister,
    bound: &Bound,
    fds: Vec<OwnedFd>,
) -> Result<Port, Error> {
    assemble_for(true, spec, (connection, lease), register, bound, fds)
}

/// The same; `for_program`: pointers in slots are this process's own.
fn assemble_for(
    for_program: bool,
    spec: &str,
    (connection, lease): (Connection, Arc<Lease>),
    register: NmreqRegister,
    bound: &Bound,
    fds: Vec<OwnedFd>,
) -> Result<Port, Error> {
    let garbled = || Error::host(spec, io::Error::other("the daemon's answer makes no sense"));
    let parts = Parts { for_program, ..Parts::map(bound, fds, spec)? };
    let rings = |dir: u16| -> Result<Vec<Ring>, Error> {
        let of_dir = bound.rings.iter().enumerate().filter(|(_, ring)| ring.dir == dir);
        of_dir.map(|(i, ring)| parts.ring(i, ring).ok_or_else(garbled)).collect()
    };
    let (tx, rx) = (rings(0)?, rings(1)?);
    let iface = Iface::new(&parts.region, bound.head.if_offset).ok_or_else(garbled)?;
    let source = Source { session: bound.head.session, key: bound.head.key, board: None };
    Ok(Port::new(spec, connection, lease, register, parts.region, iface, (tx, rx), source))
}

/// A connection, and what was answered on it.
type Answered = (Connection, (Answer, Vec<OwnedFd>));

/// Asks the system's daemon. `None`: it does not run, is this user's own, or does not serve this user so, and there is no
/// interface of that name that only it could open.
fn ask_system(spec: &str, parsed: &PortSpec, request: &Request) -> Option<Result<Answered, Error>> {
    let connection = client::connect_system()?;
    match client::ctrl(connection.fd.as_fd(), spec, request) {
        Err(Error::Refused { errno: errno::EACCES, .. }) if !interface_exists(&parsed.parent) => None,
        Err(Error::DaemonGone { .. }) => None,
        // A daemon that does not answer must not keep users from their own.
        Err(Error::Host { .. }) if !interface_exists(&parsed.parent) => None,
        answered => Some(answered.map(|answered| (connection, answered))),
    }
}

/// Asks this user's own daemon; once more if it went away meanwhile, because it was idle.
fn ask_own(spec: &str, request: &Request) -> Result<Answered, Error> {
    let ask = || {
        let connection = client::connect()?;
        let answered = client::ctrl(connection.fd.as_fd(), spec, request)?;
        Ok((connection, answered))
    };
    match ask() {
        Err(Error::DaemonGone { .. }) => ask().map_err(|e| match e {
            Error::DaemonGone { .. } => Error::NoDaemon {
                why: "it ends at once when started (its log is beside its socket, see unetmapd(8))".into(),
                source: io::ErrorKind::ConnectionReset.into(),
            },
            other => other,
        }),
        other => other,
    }
}

/// What the grammar knows and this port does not have.
fn refuse_unserved(spec: &str, parsed: &PortSpec) -> Result<(), Error> {
    let conf = &parsed.options.conf;
    let is_interface = parsed.kind == PortKind::Netmap && parsed.pipe.is_none();
    if is_interface || conf.host_tx_rings == 0 && conf.host_rx_rings == 0 {
        return Ok(());
    }
    let why = "not served: host-rings in @conf (this port has none)".into();
    Err(Error::Refused { asked: spec.into(), errno: errno::EOPNOTSUPP, why })
}

/// The region that the name says: by its number, by a port that is in it, or neither (0).
fn shared_region(spec: &str, parsed: &PortSpec) -> Result<u16, Error> {
    let Some(with) = &parsed.options.share else { return Ok(parsed.mem_id) };
    let asked = with.to_string();
    let refused = |errno, why: String| Error::Refused { asked: spec.into(), errno, why };
    let request = Request::new(NETMAP_REQ_PORT_INFO_GET, &with.name, NmreqPortInfoGet::default().as_bytes());
    let request = request.map_err(|errno| refused(errno, format!("the name of {asked} is too long")))?;
    let (_, (answer, _)) = match ask_system(&asked, with, &request) {
        Some(answered) => answered?,
        None => ask_own(&asked, &request)?,
    };
    let info = answer.request.body_as::<NmreqPortInfoGet>();
    let info = info.ok_or_else(|| Error::host(&asked, io::Error::other("the daemon's answer makes no sense")))?;
    match parsed.mem_id {
        0 => Ok(info.nr_mem_id),
        mem_id if mem_id == info.nr_mem_id => Ok(mem_id),
        other => {
            let why = format!("{asked} lives in region {}, not {other}", info.nr_mem_id);
            Err(refused(errno::EINVAL, why))
        }
    }
}

/// The region of a port that nobody has open is there only while it is asked for.
fn about_share(e: Error, parsed: &PortSpec) -> Error {
    match (e, &parsed.options.share) {
        (Error::Refused { asked, errno: errno::EINVAL, why }, Some(with)) => {
            let why = format!("{why}; {with}, whose region it is to share, must be open");
            Error::Refused { asked, errno: errno::EINVAL, why }
        }
        (e, _) => e,
    }
}

/// `@offset` in a name.
fn offsets_option(spec: &PortSpec) -> Option<Vec<u8>> {
    let offset = spec.options.offset?;
    let option = NmreqOptOffsets {
        nro_opt: NmreqOption { nro_reqtype: NETMAP_REQ_OPT_OFFSETS, ..Default::default() },
        nro_max_offset: offset.initial,
        nro_initial_offset: offset.initial,
        nro_offset_bits: offset.bits,
        ..Default::default()
    };
    Some(option.as_bytes().to_vec())
}

/// Whether the whole of `name` is an interface, for names with a `-`.
pub(crate) fn interface_exists(name: &str) -> bool {
    // Not in /sys, which may show another network namespace than ours.
    link::by_name(name).is_ok_and(|link| link.is_some())
}

/// `@conf:` in a name beats the program's defaults.
fn conf_wishes(register: &mut NmreqRegister, spec: &PortSpec) {
    let conf = &spec.options.conf;
    fn wish<T: Default + PartialEq + Copy>(to: &mut T, from: T) {
        if from != T::default() {
            *to = from;
        }
    }
    wish(&mut register.nr_tx_slots, conf.tx_slots);
    wish(&mut register.nr_rx_slots, conf.rx_slots);
    wish(&mut register.nr_tx_rings, conf.tx_rings);
    wish(&mut register.nr_rx_rings, conf.rx_rings);
    wish(&mut register.nr_host_tx_rings, conf.host_tx_rings);
    wish(&mut register.nr_host_rx_rings, conf.host_rx_rings);
}

/// What the daemon's file descriptors became.
struct Parts {
    region: Arc<Region>,
    end: EndPage,
    /// What the third page holds depends on the port.
    third: Window,
    /// Two for each ring: its bell, and the other side's bell or the queue's socket.
    of_rings: Vec<OwnedFd>,
    /// Of a monitor.
    shelf: Geometry,
    /// Whether pointers in slots are this process's own.
    for_program: bool,
    /// Whether receive rings get the time only where the program asks for it.
    time_if_asked: bool,
}

/// Mapped regions by their file's device and inode, and where they begin in it.
type Regions = HashMap<(u64, u64, u64), Weak<Region>>;

/// What a process has mapped.
struct Mapped {
    /// How often the process had been forked from another.
    forks: u32,
    regions: Regions,
}

/// How many processes in a line of forks have lists of their own.
const LINE: usize = 64;

/// The regions that this process has mapped: each is mapped once. A child that is forked while a thread is at work on the
/// list finds it locked for ever, and perhaps half changed; so each child has the next list, and takes over what it can.
static REGIONS: [Mutex<Option<Mapped>>; LINE] = [const { Mutex::new(None) }; LINE];

/// Works on the regions of this process.
fn with_regions<T>(work: impl FnOnce(&mut Regions) -> T) -> T {
    let forks = process::fork_count();
    let list = |forks: u32| &REGIONS[forks as usize % LINE];
    let mut own = list(forks).lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(mapped) = own.as_mut().filter(|mapped| mapped.forks == forks) {
        return work(&mut mapped.regions);
    }
    let mut older = (1..LINE as u32).map_while(|back| forks.checked_sub(back));
    let inherited = older.find_map(|older| {
        let mapped = list(older).try_lock().ok()?;
        mapped.as_ref().filter(|mapped| mapped.forks == older).map(|mapped| mapped.regions.clone())
    });
    let regions = inherited.unwrap_or_default();
    work(&mut own.insert(Mapped { forks, regions }).regions)
}

/// A region, mapped now if it is not yet.
fn map_region(fd: OwnedFd, geometry: Geometry) -> io::Result<Arc<Region>> {
    let file = File::from(fd);
    let meta = file.metadata()?;
    let key = (meta.dev(), meta.ino(), geometry.ifs.offset);
    with_regions(|regions| {
        regions.retain(|_, region| region.strong_count() > 0);
        if let Some(region) = regions.get(&key).and_then(Weak::upgrade) {
            return Ok(region);
        }
        let region = Arc::new(Region::attach(file.as_fd(), geometry)?);
        regions.insert(key, Arc::downgrade(&region));
        Ok(region)
    })
}

/// See [`crate::port::file::has_region`].
pub(crate) fn has_region(inode: u64) -> bool {
    with_regions(|regions| {
        let mut living = regions.iter().filter(|(_, region)| region.strong_count() > 0);
        living.any(|((_, ino, _), _)| *ino == inode)
    })
}

impl Parts {
    fn map(bound: &Bound, fds: Vec<OwnedFd>, spec: &str) -> Result<Parts, Error> {
        let host = |e: io::Error| Error::host(spec, e);
        let mut fds = fds.into_iter();
        let mut next = || fds.next().ok_or_else(|| Error::host(spec, io::ErrorKind::UnexpectedEof.into()));
        let region = map_region(next()?, geometry(&bound.head.pools)).map_err(host)?;
        let page = |fd: OwnedFd, bytes: usize| Ok(Window::whole(Arc::new(Mapping::new(fd.as_fd(), bytes)?)));
        let end = EndPage::new(page(next()?, EndPage::bytes(bound.head.states as usize)).map_err(host)?);
        // A port that has nothing to say there gets some other page.
        let third = page(next()?, (bound.head.page_bytes as usize).max(1)).map_err(host)?;
        debug_assert_eq!(bound.fds() - FIXED_FDS, 2 * bound.rings.len());
        let (shelf, time_if_asked) = (geometry(&bound.head.shelf), bound.head.flags & NO_TIMESTAMP != 0);
        Ok(Parts { region, end, third, of_rings: fds.collect(), shelf, for_program: true, time_if_asked })
    }

    /// The ring that stands at `index` in the daemon's answer; `None` when what it says cannot be.
    fn ring(&self, index: usize, told: &BoundRing) -> Option<Ring> {
        let slots = Slots::new(told.slots)?;
        let view = RingView::new(&self.region, RingShape { offset: told.offset, slots, id: told.id, dir: told.dir })?;
        let limits = self.region.limits();
        let offsets = Offsets { mask: told.offset_mask, max: told.max_offset.min(limits.buf_size) };
        let view = view.with_offsets(offsets);
        let fd = |which: usize| self.of_rings.get(2 * index + which)?.try_clone().ok();
        let bell = |which: usize| Doorbell::from_fd(fd(which)?).ok();
        let lines = || LinePage::new(self.third.clone());
        let path = match (Path::from_raw(told.path)?, told.dir) {
            (Path::Null, 0) => SyncPath::Tx(Box::new(Null)),
            (Path::Null, _) => SyncPath::Rx(Box::new(Null)),
            (Path::Pipe, 0) => {
                let line = Producer::new(&lines(), told.line as usize, view.slots().clone())?;
                SyncPath::PipeTx(Box::new(PipeTx { line, mine: bell(0)?, theirs: bell(1)? }))
            }
            (Path::Pipe, _) => {
                let peer = RingShape { offset: told.peer_offset, slots, id: told.id, dir: 0 };
                let peer = RingView::new(&self.region, peer)?;
                let theirs = peer.slots().clone();
                let mine = view.slots().clone();
                let line = Consumer::new(&lines(), told.line as usize, theirs, mine, limits, CopyKind::best())?;
                let spare = BufIdx(told.spare);
                SyncPath::PipeRx(Box::new(PipeRx { line, spare, offsets, mine: bell(0)?, theirs: bell(1)? }))
            }
            (Path::Vale, 0) => {
                let line = Producer::new(&lines(), told.line as usize, view.slots().clone())?;
                let pipe = PipeTx { line, mine: bell(0)?, theirs: bell(1)? };
                let region = self.for_program.then(|| self.region.clone());
                SyncPath::Tx(Box::new(ValeTx { pipe, offsets, region }))
            }
            (Path::Vale, _) => {
                let line = Inbox::new(&lines(), told.line as usize, view.slots().clone())?;
                SyncPath::Rx(Box::new(ValeRx { line, mine: bell(0)? }))
            }
            (Path::Monitor, 0) => SyncPath::Mute,
            (Path::Monitor, _) => SyncPath::Rx(Box::new(self.monitor(told, &view, fd(1)?, bell(0)?)?)),
            (Path::Nic, dir) => {
                let socket = fd(1)?;
                let half = Half {
                    slots: view.slots().clone(),
                    limits,
                    busy: xsk::busy_poll(&socket).is_some(),
                    socket: Arc::new(socket),
                    mine: bell(0)?,
                    frags: told.features & FRAGS != 0,
                    offsets,
                };
                let buffers = Buffers { size: limits.buf_size, count: limits.bufs, headroom: told.headroom };
                if dir == 0 {
                    let sent = SentPage::new(self.third.clone());
                    let (tx, completion) = xsk::map_send_rings(&half.socket, slots.get()).ok()?;
                    let rings = SendRings::new(&tx, &completion, slots, buffers, sent, told.line as usize)?;
                    SyncPath::Tx(Box::new(NicTx { half, rings }))
                } else {
                    let (rx, fill) = xsk::map_receive_rings(&half.socket, slots.get()).ok()?;
                    let rings = ReceiveRings::new(&rx, &fill, slots, buffers)?;
                    SyncPath::Rx(Box::new(NicRx { half, rings }))
                }
            }
        };
        Some(Ring {
            inner: SyncRing {
                view,
                state: self.end.joined(told.state as usize)?,
                path,
                nonsense: NO_NONSENSE.into(),
                watchers: Watchers::default(),
                onward: match (told.features & FORWARDS_ALL != 0, told.features & FORWARDS != 0) {
                    _ if told.dir == 0 => Onward::Never,
                    (true, _) => Onward::All,
                    (false, true) => Onward::Marked,
                    (false, false) => Onward::Never,
                },
                habit: Default::default(),
                time_if_asked: self.time_if_asked,
            },
        })
    }

    /// The receive ring of a monitor, whose copies come from the shelf `memory`.
    fn monitor(&self, told: &BoundRing, view: &RingView, memory: OwnedFd, bell: Doorbell) -> Option<MonitorRx> {
        let (region, lines) = (map_region(memory, self.shelf).ok()?, LinePage::new(self.third.clone()));
        let one = |offset: u64, line: u32, mark: u16| {
            let shape = RingShape { offset, slots: view.shape().slots, id: told.id, dir: 0 };
            let slots = RingView::new(&region, shape)?.slots().clone();
            Some(Shelf { line: Inbox::new(&lines, line as usize, slots)?, region: Region::clone(&region), mark })
        };
        let (tx, rx) = (one(told.peer_offset, told.line, NS_TXMON), one(told.second_offset, told.second_line, 0));
        (tx.is_some() || rx.is_some()).then(|| MonitorRx {
            shelves: [tx, rx],
            mine: view.slots().clone(),
            region: Region::clone(&self.region),
            offsets: view.offsets(),
            trades: told.features & TRADES != 0,
            bell,
        })
    }
}
