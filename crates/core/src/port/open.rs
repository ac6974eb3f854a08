// SPDX-License-Identifier: BSD-2-Clause
//! Opening a port: from a name to mapped rings.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use unetmap_abi::{
    NETMAP_REQ_OPT_OFFSETS, NETMAP_REQ_PORT_INFO_GET, NETMAP_REQ_REGISTER, NmreqOptOffsets, NmreqOption,
    NmreqPortInfoGet, NmreqRegister, PortKind, PortSpec,
};
use unetmap_mem::{EndpointPage, Geometry, Iface, MappedRange, MirrorSet, Offsets, Region, RingShape, RingView, Slots};
use unetmap_sys::event::hung_up;
use unetmap_sys::xsk::SocketRings;
use unetmap_sys::{Doorbell, Mapping, process};
use zerocopy::IntoBytes;

use crate::backend::peer_doorbell::LaterDoorbells;
use crate::backend::region_cache::map_region;
use crate::backend::{RingParts, open_ring};
use crate::control::PeerDoorbellsRequest;
use crate::control::again::again_if_gone;
use crate::control::binding::{
    BackendKind, Binding, BoundRing, DOORBELL_LATER, FIXED_FDS, FORWARD_ALL, FORWARD_MARKED, NO_TIMESTAMP, NO_WAKEUPS,
    geometry,
};
use crate::control::client::{self, Connection, interface_exists};
use crate::control::monitor::MonitorList;
use crate::control::request::{NetmapReply, NetmapRequest};
use crate::error::{Error, errno};
use crate::port::extmem::{self, Pools};
use crate::port::lock_holder::{self, LockHolder};
use crate::port::reconnect::{self, Reconnect};
use crate::port::ring::Ring;
use crate::port::{MonitorSource, Port};
use crate::sync::{ForwardPolicy, NO_INDEX, SyncRing};

/// Flag of the register request, in addition to netmap's: the library records when each packet is received and sent.
/// In C: `include/unetmap.h`.
pub const NR_SLOT_TIMES: u64 = 1 << 31;

/// How to open a port: options that the name does not contain. 0 means the default. Slots and rings apply only if the
/// port is not open yet.
#[derive(Clone, Debug, Default)]
#[must_use]
pub struct OpenOptions {
    pub(super) register: NmreqRegister,
    pools: Option<Pools>,
    /// Whether the port waits for the next daemon, and how long.
    reconnects: bool,
    reconnect_limit: Option<Duration>,
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

    /// Requests buffers in addition to those of the rings; the daemon may grant fewer, see [`Port::extra_bufs`].
    pub fn extra_bufs(mut self, n: u32) -> Self {
        self.register.nr_extra_bufs = n;
        self
    }

    /// `NR_*` flags of the register request, in addition to those in the name; replaces earlier ones.
    pub fn flags(mut self, flags: u64) -> Self {
        self.register.nr_flags = flags;
        self
    }

    /// `NR_REG_*` mode that replaces the one in the name, for `NR_REG_NULL`.
    pub fn mode(mut self, mode: u32) -> Self {
        self.register.nr_mode = mode;
        self
    }

    /// Gives the port a region of its own with these pools: netmap's option EXTMEM without its address (see [`Pools`]).
    /// Other ports join that region by its number, [`Port::mem_id`]. `@extmem` in the name takes precedence.
    pub fn pools(mut self, pools: Pools) -> Self {
        self.pools = Some(pools);
        self
    }

    /// Records when each packet is received and sent, by this process: see [`Ring::slot_time`].
    pub fn slot_times(mut self, on: bool) -> Self {
        match on {
            true => self.register.nr_flags |= NR_SLOT_TIMES,
            false => self.register.nr_flags &= !NR_SLOT_TIMES,
        }
        self
    }

    /// Has the port wait for the next daemon when its daemon has ended, for at most `limit` (`None`: for ever), and go
    /// on with it: the same [`Port`], with the same rings at the same addresses. Until then no ring has slots, and a
    /// wait goes on. What was in the rings is lost ([`Port::lost_slots`]). A daemon that is replaced, or that goes on
    /// after a crash, loses nothing and is not noticed (unetmapd(8), `--keep-ports`).
    ///
    /// No daemon is started. The port is opened as any other: the next daemon may refuse it, or give it other rings;
    /// then, and after `limit`, every call fails. The environment variable `UNETMAP_RECONNECT=1` has the same effect,
    /// without a limit. Monitors without copies do not wait.
    pub fn reconnect(mut self, limit: Option<Duration>) -> Self {
        (self.reconnects, self.reconnect_limit) = (true, limit);
        self
    }

    /// Opens a port of the daemon.
    pub(super) fn open_parsed(&self, spec: &str, parsed: &PortSpec) -> Result<Opened, Error> {
        refuse_unserved(spec, parsed)?;
        let mut register = self.register;
        register.nr_flags |= parsed.flags;
        if register.nr_mode == 0 {
            register.nr_mode = parsed.nr_mode();
            register.nr_ringid = parsed.ring_id();
        }
        register.nr_mem_id = shared_region(spec, parsed)?;
        apply_conf(&mut register, parsed);
        let refused = |errno| Error::refused(spec, errno, "the name is too long");
        let mut request =
            NetmapRequest::new(NETMAP_REQ_REGISTER, &parsed.name, register.as_bytes()).map_err(refused)?;
        request.options.extend(offsets_option(parsed));
        let in_name = parsed.options.extmem.as_ref();
        let file = in_name.map(|extmem| extmem::open_file(spec, extmem)).transpose()?;
        let pools = in_name.zip(file.as_ref()).map(|(extmem, (_, bytes))| Pools::from_name(extmem, *bytes));
        request.options.extend(pools.or(self.pools).map(|pools| pools.option().as_bytes().to_vec()));
        unetmap_mem::register_publisher();
        process::count_forks().map_err(|e| Error::host(spec, e))?;
        let ((connection, (reply, fds)), holder) =
            request_with_holder(spec, parsed, &request).map_err(|e| explain_share(e, parsed))?;
        let malformed = || Error::malformed_reply(spec);
        let register = reply.request.body_as::<NmreqRegister>().ok_or_else(malformed)?;
        let binding = Binding::decode(&reply.binding).filter(|b| b.fds() == fds.len()).ok_or_else(malformed)?;
        let region = fds.first().map(OwnedFd::try_clone).ok_or_else(malformed)?.map_err(|e| Error::host(spec, e))?;
        let reconnect = match self.reconnects || reconnect::is_default() {
            true => Reconnect::new(self.reconnect_limit, &request, &register, &binding, &fds),
            false => Ok(None),
        };
        let mut port = assemble(spec, connection, holder, register, &binding, fds)?;
        port.go_on_with(reconnect.map_err(|e| Error::host(spec, e))?);
        if let Some((file, _)) = &file {
            extmem::fill_from(spec, &port, file)?;
        }
        Ok(Opened { port, register, binding, region })
    }
}

impl Port {
    /// Opens the port that `spec` names, with default options. See [`OpenOptions::open`].
    ///
    /// # Errors
    /// An invalid name, a refusal of the daemon, or no daemon.
    pub fn open(spec: &str) -> Result<Port, Error> {
        Port::options().open(spec)
    }

    /// Returns default options, to be changed before the port is opened.
    pub fn options() -> OpenOptions {
        OpenOptions::default()
    }
}

/// A port, and what the daemon replied.
pub(super) struct Opened {
    pub(super) port: Port,
    pub(super) register: NmreqRegister,
    pub(super) binding: Binding,
    /// The file of the region.
    pub(super) region: OwnedFd,
}

/// State that the daemon passes to a port that it runs itself.
pub struct InDaemon {
    /// Identifies the daemon in locks.
    pub holder: u32,
    /// The port's region, as the daemon has mapped it; `None`: it is mapped.
    pub region: Option<Region>,
    /// The port's monitors.
    pub monitors: Arc<MonitorList>,
    /// The rings of its sockets, as far as the daemon has mapped them. Linux before 6.4 maps them only once.
    pub socket_rings: Vec<SocketRings>,
}

/// Assembles a port that the daemon runs itself, from a binding that it made without a request. The port can be used
/// while the other end of `connection` is open.
///
/// # Errors
/// The binding is inconsistent, or cannot be mapped.
pub fn adopt(
    spec: &str,
    register: NmreqRegister,
    binding: &Binding,
    fds: Vec<OwnedFd>,
    connection: OwnedFd,
    daemon: InDaemon,
) -> Result<Port, Error> {
    unetmap_mem::register_publisher();
    let holder = LockHolder::of_daemon(daemon.holder, &connection).map_err(|e| Error::host(spec, e))?;
    let connection = Connection { fd: connection, socket: PathBuf::new() };
    let mapped = MappedBinding::map(binding, fds, (&register, daemon.region), spec)?;
    let mapped = MappedBinding { socket_rings: daemon.socket_rings, ..mapped };
    let mut port = assemble_mapped(spec, (connection, Arc::new(holder)), register, binding, mapped)?;
    port.monitor_source.list = Some(daemon.monitors);
    Ok(port)
}

/// Assembles a port in the memory of a virtual machine's device, which has no monitors that its guest knows.
pub(super) fn assemble_in_device(
    spec: &str,
    (connection, holder): (OwnedFd, u32),
    register: NmreqRegister,
    binding: &Binding,
    memory: &MappedRange,
) -> Result<Port, Error> {
    let host = |e: io::Error| Error::host(spec, e);
    unetmap_mem::register_publisher();
    let holder = LockHolder::of_daemon(holder, &connection).map_err(host)?;
    let doorbell = || Doorbell::new().map(OwnedFd::from);
    let fds = binding.rings.iter().map(|_| Ok([doorbell()?, doorbell()?])).collect::<io::Result<_>>().map_err(host)?;
    let mapped = MappedBinding::in_device(binding, memory, fds).ok_or_else(|| Error::malformed_reply(spec))?;
    let connection = Connection { fd: connection, socket: PathBuf::new() };
    let mut port = assemble_mapped(spec, (connection, Arc::new(holder)), register, binding, mapped)?;
    port.monitor_source.list = Some(Arc::default());
    if register.nr_flags & NR_SLOT_TIMES != 0 {
        port.record_times();
    }
    Ok(port)
}

pub(crate) fn assemble(
    spec: &str,
    connection: Connection,
    holder: Arc<LockHolder>,
    register: NmreqRegister,
    binding: &Binding,
    fds: Vec<OwnedFd>,
) -> Result<Port, Error> {
    let later_doorbells = later_doorbells(spec, &connection, &holder, binding);
    let mapped = MappedBinding {
        for_program: true,
        later_doorbells,
        ..MappedBinding::map(binding, fds, (&register, None), spec)?
    };
    let mut port = assemble_mapped(spec, (connection, holder), register, binding, mapped)?;
    if register.nr_flags & NR_SLOT_TIMES != 0 {
        port.record_times();
    }
    Ok(port)
}

/// Returns how a program gets the doorbells of its pipe's other end that its binding lacks; `None` if it has all.
fn later_doorbells(
    spec: &str,
    connection: &Connection,
    holder: &Arc<LockHolder>,
    binding: &Binding,
) -> Option<Arc<LaterDoorbells>> {
    binding.rings.iter().find(|ring| ring.features & DOORBELL_LATER != 0)?;
    let (spec, socket, holder) = (spec.to_owned(), connection.socket.clone(), Arc::downgrade(holder));
    let request = PeerDoorbellsRequest { session: binding.head.session, key: binding.head.key };
    Some(Arc::new(LaterDoorbells::new(binding.rings.len(), move || {
        // A forked child has a connection of its own.
        let of_this_process = holder.upgrade().filter(|holder| holder.forks == process::fork_count());
        let holder = of_this_process.or_else(|| lock_holder::of_this_process(&socket).ok())?;
        holder.peer_doorbells(&spec, &request)
    })))
}

fn assemble_mapped(
    spec: &str,
    (connection, holder): (Connection, Arc<LockHolder>),
    register: NmreqRegister,
    binding: &Binding,
    mapped: MappedBinding,
) -> Result<Port, Error> {
    let malformed = || Error::malformed_reply(spec);
    let rings = |dir: u16| -> Result<Vec<Ring>, Error> {
        let all = binding.rings.iter().zip(&mapped.ring_fds).enumerate();
        let of_dir = all.filter(|(_, (ring, _))| ring.dir == dir);
        of_dir.map(|(number, (ring, fds))| mapped.ring(number, ring, fds).ok_or_else(malformed)).collect()
    };
    let (tx, rx) = (rings(0)?, rings(1)?);
    let iface = Iface::new(&mapped.region, binding.head.if_offset).ok_or_else(malformed)?;
    let (session, key) = (binding.head.session.into(), binding.head.key.into());
    let source = MonitorSource { session, key, list: None };
    let mut port = Port::new(spec, connection, holder, register, mapped.region, iface, (tx, rx), source);
    port.is_switched = binding.rings.iter().any(|ring| ring.backend == BackendKind::Vale as u32);
    Ok(port)
}

/// A connection, and the reply on it.
type Replied = (Connection, (NetmapReply, Vec<OwnedFd>));

/// Has a port opened, and this process known as a lock holder. Both replies are waited for at once.
fn request_with_holder(
    spec: &str,
    parsed: &PortSpec,
    request: &NetmapRequest,
) -> Result<(Replied, Arc<LockHolder>), Error> {
    again_if_gone(|is_last| {
        let mut holder = None;
        let request_holder = |socket: &Path| holder = Some(lock_holder::Requested::send(socket));
        let replied = request_from_any(spec, parsed, request, is_last, request_holder)?;
        let socket = &replied.0.socket;
        let holder = holder.unwrap_or_else(|| lock_holder::Requested::send(socket))?.receive(socket)?;
        // The daemon may have crashed between the two.
        if hung_up(replied.0.fd.as_fd()) {
            return Err(Error::DaemonGone { subject: spec.into() });
        }
        Ok((replied, holder))
    })
}

/// Sends a request to the system's daemon if that runs and serves this user, else to this user's own. Calls `meanwhile`
/// with the socket of each, before it waits for the reply.
fn request_from_any(
    spec: &str,
    parsed: &PortSpec,
    request: &NetmapRequest,
    is_last: bool,
    mut meanwhile: impl FnMut(&Path),
) -> Result<Replied, Error> {
    if let Some(replied) = request_from_system(spec, parsed, request, is_last, &mut meanwhile) {
        return replied;
    }
    let connection = client::connect()?;
    let reply = client::send_netmap(connection.fd.as_fd(), spec, request, || meanwhile(&connection.socket))?;
    Ok((connection, reply))
}

/// Sends a request to the system's daemon. `None` if it does not run, is this user's own, or does not serve this user
/// and there is no interface of that name, which only the system's daemon could open; or if it ends at the last
/// attempt.
fn request_from_system(
    spec: &str,
    parsed: &PortSpec,
    request: &NetmapRequest,
    is_last: bool,
    meanwhile: impl FnOnce(&Path),
) -> Option<Result<Replied, Error>> {
    let connection = client::connect_system()?;
    match client::send_netmap(connection.fd.as_fd(), spec, request, || meanwhile(&connection.socket)) {
        Err(Error::Refused { errno: errno::EACCES, .. }) if !interface_exists(&parsed.parent) => None,
        Err(Error::DaemonGone { .. }) if is_last => None,
        // A daemon that does not answer must not keep users from their own.
        Err(Error::Host { .. }) if !interface_exists(&parsed.parent) => None,
        replied => Some(replied.map(|reply| (connection, reply))),
    }
}

/// Refuses options that the grammar has and this kind of port does not support.
fn refuse_unserved(spec: &str, parsed: &PortSpec) -> Result<(), Error> {
    let conf = &parsed.options.conf;
    let is_interface = parsed.kind == PortKind::Netmap && parsed.pipe.is_none();
    if is_interface || conf.host_tx_rings == 0 && conf.host_rx_rings == 0 {
        return Ok(());
    }
    Err(Error::refused(spec, errno::EOPNOTSUPP, "not supported: host-rings in @conf (only interfaces have host rings)"))
}

/// Returns the region that the name selects, by its number or by a port that is in it; 0 for neither.
fn shared_region(spec: &str, parsed: &PortSpec) -> Result<u16, Error> {
    let Some(other) = &parsed.options.share else { return Ok(parsed.mem_id) };
    let subject = other.to_string();
    let too_long = |errno| Error::refused(spec, errno, format!("the name of {subject} is too long"));
    let body = NmreqPortInfoGet::default();
    let request = NetmapRequest::new(NETMAP_REQ_PORT_INFO_GET, &other.name, body.as_bytes()).map_err(too_long)?;
    let (_, (reply, _)) = again_if_gone(|is_last| request_from_any(&subject, other, &request, is_last, |_| ()))?;
    let info = reply.request.body_as::<NmreqPortInfoGet>().ok_or_else(|| Error::malformed_reply(&subject))?;
    match parsed.mem_id {
        0 => Ok(info.nr_mem_id),
        mem_id if mem_id == info.nr_mem_id => Ok(mem_id),
        mem_id => {
            let reason = format!("{subject} is in region {}, not {mem_id}", info.nr_mem_id);
            Err(Error::refused(spec, errno::EINVAL, reason))
        }
    }
}

/// Adds to a refusal that the port whose region is to be shared must be open: the region of a port that is not open
/// exists only during the request for its number.
fn explain_share(e: Error, parsed: &PortSpec) -> Error {
    match (e, &parsed.options.share) {
        (Error::Refused { subject, errno: errno::EINVAL, reason }, Some(other)) => Error::refused(
            subject,
            errno::EINVAL,
            format!("{reason}; {other}, whose region is to be shared, must be open"),
        ),
        (e, _) => e,
    }
}

/// Returns the option of `@offset` in a name.
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

/// Applies `@conf:` in a name, which takes precedence over the program's options.
fn apply_conf(register: &mut NmreqRegister, spec: &PortSpec) {
    let conf = &spec.options.conf;
    fn set<T: Default + PartialEq + Copy>(to: &mut T, from: T) {
        if from != T::default() {
            *to = from;
        }
    }
    set(&mut register.nr_tx_slots, conf.tx_slots);
    set(&mut register.nr_rx_slots, conf.rx_slots);
    set(&mut register.nr_tx_rings, conf.tx_rings);
    set(&mut register.nr_rx_rings, conf.rx_rings);
    set(&mut register.nr_host_tx_rings, conf.host_tx_rings);
    set(&mut register.nr_host_rx_rings, conf.host_rx_rings);
}

/// The mapped descriptors of a binding.
struct MappedBinding {
    region: Arc<Region>,
    states: EndpointPage,
    /// Its contents depend on the back end.
    channels_or_tx_frames: MappedRange,
    /// For each ring: its doorbell, and the peer's doorbell or what the back end has in its place.
    ring_fds: Vec<[OwnedFd; 2]>,
    /// `None`: there are none.
    later_doorbells: Option<Arc<LaterDoorbells>>,
    /// The layout of a monitor's mirror.
    mirror: Geometry,
    /// Whether pointers in slots are addresses of this process.
    for_program: bool,
    timestamp_on_request: bool,
    no_wakeups: bool,
    /// The rings of sockets that are mapped already.
    socket_rings: Vec<SocketRings>,
}

impl MappedBinding {
    /// `known`: the region, if it is mapped.
    fn map(
        binding: &Binding,
        fds: Vec<OwnedFd>,
        (register, known): (&NmreqRegister, Option<Region>),
        spec: &str,
    ) -> Result<MappedBinding, Error> {
        let host = |e: io::Error| Error::host(spec, e);
        let mut fds = fds.into_iter();
        let mut next = || fds.next().ok_or_else(|| Error::host(spec, io::ErrorKind::UnexpectedEof.into()));
        let (file, layout) = (next()?, geometry(&binding.head.pools));
        let region = match known.filter(|known| *known.geometry() == layout) {
            Some(known) => Arc::new(known),
            None => map_region(file, layout, Some(register.nr_mem_id)).map_err(host)?,
        };
        let page = |fd: OwnedFd, offset: u64, bytes: usize| {
            Ok(MappedRange::whole(Arc::new(Mapping::part(fd.as_fd(), offset, bytes)?)))
        };
        let [states_at, channels_at] = binding.head.page_offsets;
        let states_bytes = EndpointPage::bytes(binding.head.states as usize);
        let states = EndpointPage::new(page(next()?, states_at, states_bytes).map_err(host)?);
        // Of a back end that does not use the page it is some other page.
        let channels_or_tx_frames =
            page(next()?, channels_at, (binding.head.page_bytes as usize).max(1)).map_err(host)?;
        debug_assert_eq!(binding.fds() - FIXED_FDS, 2 * binding.rings.len());
        let ring_fds: Vec<[OwnedFd; 2]> = std::iter::from_fn(|| Some([fds.next()?, fds.next()?])).collect();
        if ring_fds.len() != binding.rings.len() {
            return Err(Error::malformed_reply(spec));
        }
        Ok(MappedBinding {
            region,
            states,
            channels_or_tx_frames,
            ring_fds,
            later_doorbells: None,
            mirror: geometry(&binding.head.mirror_pools),
            for_program: false,
            timestamp_on_request: binding.head.flags & NO_TIMESTAMP != 0,
            no_wakeups: binding.head.flags & NO_WAKEUPS != 0,
            socket_rings: Vec::new(),
        })
    }

    /// As [`MappedBinding::map`], all of it in the memory of a virtual machine's device; `None` if it is not there.
    fn in_device(binding: &Binding, memory: &MappedRange, ring_fds: Vec<[OwnedFd; 2]>) -> Option<MappedBinding> {
        let [states_at, channels_at] = binding.head.page_offsets;
        let part = |at: u64, bytes: usize| memory.part(usize::try_from(at).ok()?, bytes);
        let states_bytes = EndpointPage::bytes(binding.head.states as usize);
        Some(MappedBinding {
            region: Arc::new(Region::in_range(memory, geometry(&binding.head.pools))?),
            states: EndpointPage::new(part(states_at, states_bytes)?),
            channels_or_tx_frames: part(channels_at, binding.head.page_bytes as usize)?,
            ring_fds,
            later_doorbells: None,
            mirror: geometry(&binding.head.mirror_pools),
            for_program: true,
            timestamp_on_request: binding.head.flags & NO_TIMESTAMP != 0,
            no_wakeups: true,
            socket_rings: Vec::new(),
        })
    }

    /// Constructs one ring; `None` if the binding is inconsistent.
    fn ring(&self, number: usize, bound: &BoundRing, fds: &[OwnedFd; 2]) -> Option<Ring> {
        let slots = Slots::new(bound.slots)?;
        let view =
            RingView::new(&self.region, RingShape { offset: bound.offset, slots, id: bound.id, dir: bound.dir })?;
        let max_offset = bound.max_offset.min(self.region.limits().buf_size);
        let view = view.with_offsets(Offsets { mask: bound.offset_mask, max: max_offset });
        let backend = open_ring(&RingParts {
            bound,
            view: &view,
            region: &self.region,
            states: &self.states,
            channels_or_tx_frames: &self.channels_or_tx_frames,
            mirror: self.mirror,
            has_own_pointers: self.for_program,
            no_wakeups: self.no_wakeups,
            number,
            later_doorbells: self.later_doorbells.as_ref(),
            fds,
            socket_rings: &self.socket_rings,
        })?;
        let longest = if bound.dir == 0 { bound.placeholder_or_longest } else { 0 };
        let ring = Ring::new(SyncRing {
            view,
            state: self.states.state_ref(bound.state as usize)?,
            backend,
            invalid_index: NO_INDEX.into(),
            mirrors: MirrorSet::default(),
            forward_policy: match bound.features {
                _ if bound.dir == 0 => ForwardPolicy::Never,
                features if features & FORWARD_ALL != 0 => ForwardPolicy::All,
                features if features & FORWARD_MARKED != 0 => ForwardPolicy::Marked,
                _ => ForwardPolicy::Never,
            },
            lock_history: Default::default(),
            timestamp_on_request: self.timestamp_on_request,
        });
        Some(ring.with_longest(longest))
    }
}
