//! Switch ports that no program has open: attached interfaces, and persistent ports, which are network interfaces of
//! the host.
//!
//! ```text
//! switch == port valeS:IF == [thread for each queue] == interface IF              attached
//! switch == port valeS:IF^ == [thread for each pair] == host rings of IF         attached with it
//! switch == port valeS:vi == [thread for each queue] == hidden end ------ vi      persistent, and attached
//! ```
//! To the switch such a port is like any other. On its other side is a mediator thread, as for mediated interfaces.
//!
//! A persistent port is a veth pair. Its hidden end is in the *hidden network namespace*, which only the daemon has
//! open: the namespace ends with the daemon, and both ends of the pair with it.

use std::collections::BTreeMap;
use std::fs;
use std::os::fd::AsFd;
use std::sync::Arc;

use unetmap_abi::*;
use unetmap_core::errno::{EBUSY, EEXIST, EFAULT, EINVAL, ENOMEM, ENXIO, EOPNOTSUPP, EPERM};
use unetmap_sys::link::veth::{self, Veth};
use unetmap_sys::link::{self, Link};
use unetmap_sys::netns::Netns;
use unetmap_sys::process;

use super::{ValeKey, ValePort, create, find, key_of};
use crate::caller::Caller;
use crate::ports::mediator::{self, Directions, MediatorThread};
use crate::ports::nic::{self, Nic, NicKey, find_link, no_such_interface};
use crate::ports::{Daemon, PortKey, parse_port_name};
use crate::refusal::{Refusal, refuse};
use crate::region::{DAEMON_UID, Scope};

/// Bytes of the longest interface name.
const MAX_NAME: usize = 15;

/// Which rings of an interface are attached.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Side {
    /// Those of its queues.
    Wire,
    /// Its host rings.
    Host,
}

impl Side {
    /// The REGISTER mode that selects a pair of these rings.
    fn mode(self) -> u32 {
        match self {
            Side::Wire => NR_REG_ONE_NIC,
            Side::Host => NR_REG_ONE_SW,
        }
    }
}

/// The port of an interface's host rings has the interface's name and this suffix.
const HOST_SUFFIX: char = '^';

/// An interface, or its host rings, attached to a switch.
pub(super) struct AttachedInterface {
    nic: NicKey,
    side: Side,
    threads: Vec<MediatorThread>,
    /// Whether threads poll on processors of their own.
    polling: bool,
}

/// The persistent ports, attached or not.
#[derive(Default)]
pub(crate) struct AttachedState {
    persistent: Vec<PersistentPort>,
    /// The namespace of the hidden ends, while there are any.
    hidden_namespace: Option<Arc<Netns>>,
}

/// A persistent port. Its visible end is the host's, which may rename it, and move it to any namespace.
struct PersistentPort {
    /// Interface index of the hidden end.
    hidden: u32,
    request: NmreqValeNewif,
}

impl AttachedState {
    pub(super) fn has_persistent_ports(&self) -> bool {
        !self.persistent.is_empty()
    }

    pub(crate) fn is_hidden_namespace(&self, netns: u64) -> bool {
        self.hidden_namespace.as_ref().is_some_and(|hidden| hidden.id() == netns)
    }

    /// Returns the indexes of all hidden ends, if `netns` is their namespace.
    pub(crate) fn hidden_links(&self, netns: u64) -> Vec<u32> {
        let ports = self.persistent.iter().filter(|_| self.is_hidden_namespace(netns));
        ports.map(|port| port.hidden).collect()
    }
}

impl ValePort {
    /// Of an attached interface: the queues that a processor of their own polls, and which processor.
    pub(super) fn polling_cpus(&self) -> BTreeMap<u16, u32> {
        let threads = self.attachment.iter().flat_map(|attachment| &attachment.threads);
        threads.filter_map(|thread| Some((thread.pair.1, thread.polling_cpu()?))).collect()
    }
}

/// Attaches an interface to a switch. Returns the number of its port.
pub(crate) fn attach(
    daemon: &mut Daemon,
    name: &str,
    request: &NmreqRegister,
    caller: &Caller,
) -> Result<u32, Refusal> {
    check_root(daemon, caller)?;
    let key = port_key(daemon, name, caller)?;
    if find(&daemon.registry, &key).is_some() {
        return refuse(EBUSY, "the switch has this port already (vale-ctl lists them)");
    }
    let with_host = match request.nr_mode {
        NR_REG_NIC_SW => true,
        NR_REG_DEFAULT | NR_REG_ALL_NIC => false,
        mode => {
            return refuse(
                EINVAL,
                format!(
                    "mode {mode}: either all rings of the interface are attached (NR_REG_ALL_NIC), or the host rings, too \
                     (NR_REG_NIC_SW)"
                ),
            );
        }
    };
    let host = host_key(&key);
    if with_host && find(&daemon.registry, &host).is_some() {
        return refuse(EBUSY, "the switch has a port of this name for the host already (vale-ctl lists them)");
    }
    let Some(found) = find_link(&key.port, caller)? else { return no_such_interface() };
    let admitted = daemon.policy()?.is_some_and(|policy| policy.nic(&caller.identity(), &found.name).is_some());
    let persistent = find_persistent(&daemon.vale.attached, &found, caller)?;
    if with_host && persistent.is_some() {
        return refuse(EINVAL, "a persistent port is the host's own end already (vale-ctl -a)");
    }
    let (link, link_caller, nic_request, mem_id) = match persistent {
        Some(port) => {
            let (link, link_caller) = hidden_end(&daemon.vale.attached, port)?;
            let nic_request = NmreqRegister {
                nr_tx_slots: port.request.nr_rx_slots,
                nr_rx_slots: port.request.nr_tx_slots,
                ..Default::default()
            };
            (link, link_caller, nic_request, port.request.nr_mem_id)
        }
        None if !admitted => {
            return refuse(EPERM, "you may not open this interface (the policy says who may: unetmap-policy(5))");
        }
        None => (found, caller.clone(), *request, 0),
    };
    // The region that was requested now, else the one requested when the persistent port was created.
    let mem_id = if request.nr_mem_id == 0 { mem_id } else { request.nr_mem_id };
    if let Some(nic) = nic::find(&daemon.registry, link_caller.netns_id(), link.index) {
        return nic::in_use(nic);
    }
    let shape = nic::new_shape(&link, &nic_request, &link_caller)?;
    let nic = nic::create_for_daemon(daemon, &link, shape, &link_caller)?;
    let attached = connect(daemon, &key, nic, Side::Wire, mem_id, caller).and_then(|index| {
        if with_host {
            connect(daemon, &host, nic, Side::Host, mem_id, caller)?;
        }
        Ok(index)
    });
    attached.inspect_err(|_| {
        disconnect(daemon, &key);
        daemon.release_if_unused(&PortKey::Nic(nic));
    })
}

/// The key of the port of an interface's host rings.
fn host_key(key: &ValeKey) -> ValeKey {
    ValeKey { port: format!("{}{HOST_SUFFIX}", key.port), ..key.clone() }
}

/// Creates a switch port for the interface, or for its host rings, in region `mem_id` (0: one of its own), and starts
/// the threads.
fn connect(
    daemon: &mut Daemon,
    key: &ValeKey,
    nic: NicKey,
    side: Side,
    mem_id: u16,
    caller: &Caller,
) -> Result<u32, Refusal> {
    let nic_port = daemon.registry.get::<Nic>(&PortKey::Nic(nic));
    let Some(shape) = nic_port.map(Nic::shape) else { return no_such_interface() };
    let (tx_rings, rx_rings) = match side {
        Side::Wire => (shape.tx_rings, shape.rx_rings),
        Side::Host => (shape.host_tx_rings, shape.host_rx_rings),
    };
    // The port sends what the interface receives.
    let mirrored = NmreqRegister {
        nr_tx_slots: shape.rx_slots.get(),
        nr_rx_slots: shape.tx_slots.get(),
        nr_tx_rings: rx_rings,
        nr_rx_rings: tx_rings,
        nr_mem_id: mem_id,
        ..Default::default()
    };
    let owner = Caller { peer: caller.peer, ..Caller::daemon() };
    create(daemon, key, &mirrored, Scope { uid: DAEMON_UID, netns: 0 }, &owner)?;
    let switch_port = PortKey::Vale(key.clone());
    let mut threads = Vec::new();
    for queue in 0..tx_rings.max(rx_rings) {
        let directions = Directions { tx: queue < tx_rings, rx: queue < rx_rings };
        // The switch has a port of its own for the host rings, so they are its ordinary rings.
        let pair = ((side.mode(), queue), NR_REG_ONE_NIC);
        let prepared = mediator::prepare(daemon, &switch_port.clone().into(), &key.port, nic, pair, directions);
        match prepared.and_then(|prepared| mediator::start(daemon, &key.port, prepared)) {
            Ok(thread) => threads.push(thread),
            Err(refusal) => {
                mediator::stop(daemon, threads);
                daemon.release_if_unused(&switch_port);
                return Err(refusal);
            }
        }
    }
    tracing::info!(port = key.name(), "attached");
    let Some(port) = daemon.registry.get_mut::<ValePort>(&switch_port) else { return Ok(0) };
    port.attachment = Some(AttachedInterface { nic, side, threads, polling: false });
    Ok(port.index().into())
}

/// Detaches an interface from its switch; returns the number that its port had.
pub(crate) fn detach(daemon: &mut Daemon, name: &str, caller: &Caller) -> Result<u32, Refusal> {
    check_system_daemon(daemon)?;
    check_root(daemon, caller)?;
    let key = port_key(daemon, name, caller)?;
    let Some(port) = find(&daemon.registry, &key) else {
        return refuse(ENXIO, "there is no switch that has this port");
    };
    let index = port.index();
    match &port.attachment {
        None => refuse(EBUSY, "a program has it open; the port is removed when the program closes it"),
        Some(attachment) if attachment.polling => {
            refuse(EBUSY, "processors of its own poll it; end that first (vale-ctl -P)")
        }
        Some(AttachedInterface { side: Side::Host, .. }) => {
            let interface = key.port.strip_suffix(HOST_SUFFIX).unwrap_or(&key.port);
            refuse(EBUSY, format!("it is detached with its interface (vale-ctl -d {}:{interface})", key.switch))
        }
        Some(_) => {
            disconnect(daemon, &key);
            Ok(index.into())
        }
    }
}

/// Detaches an interface, and its host rings.
fn disconnect(daemon: &mut Daemon, key: &ValeKey) {
    disconnect_side(daemon, &host_key(key));
    disconnect_side(daemon, key);
}

fn disconnect_side(daemon: &mut Daemon, key: &ValeKey) {
    let port_key = PortKey::Vale(key.clone());
    let port = daemon.registry.get_mut::<ValePort>(&port_key);
    let Some(AttachedInterface { nic, threads, .. }) = port.and_then(|port| port.attachment.take()) else { return };
    mediator::stop(daemon, threads);
    daemon.release_if_unused(&port_key);
    daemon.release_if_unused(&PortKey::Nic(nic));
    tracing::info!(port = key.name(), "detached");
}

/// Handles the end of an interface that may have been attached, or the hidden end of a persistent port.
pub(crate) fn interface_gone(daemon: &mut Daemon, netns: u64, index: u32) {
    let is_such = |attachment: &AttachedInterface| (attachment.nic.netns, attachment.nic.index) == (netns, index);
    let ports = daemon.registry.all::<ValePort>().filter(|port| port.attachment.as_ref().is_some_and(is_such));
    let keys: Vec<ValeKey> = ports.map(|port| port.key.clone()).collect();
    keys.iter().for_each(|key| disconnect(daemon, key));
    if daemon.vale.attached.is_hidden_namespace(netns) {
        daemon.vale.attached.persistent.retain(|port| port.hidden != index);
        close_hidden_namespace_if_unused(daemon);
    }
}

/// Creates a persistent port.
pub(crate) fn create_persistent(
    daemon: &mut Daemon,
    name: &str,
    request: NmreqValeNewif,
    caller: &Caller,
) -> Result<(), Refusal> {
    check_root(daemon, caller)?;
    if name.is_empty() || name.len() > MAX_NAME || name.starts_with(NM_BDG_NAME) {
        return refuse(
            EINVAL,
            format!("a persistent port has the name of an interface: 1 to {MAX_NAME} bytes, not vale..."),
        );
    }
    if find_link(name, caller)?.is_some() {
        return refuse(EEXIST, "there is an interface of this name already");
    }
    if request.nr_mem_id != 0 {
        daemon.region_by_number(request.nr_mem_id, caller)?;
    }
    let Some(netns) = caller.netns.clone() else { return no_such_interface() };
    let hidden_namespace = open_hidden_namespace(daemon)?;
    let created = create_veth_pair(name, &request, &netns, &hidden_namespace);
    let hidden = created.inspect_err(|_| close_hidden_namespace_if_unused(daemon))?;
    daemon.vale.attached.persistent.push(PersistentPort { hidden, request });
    Ok(())
}

/// Removes a persistent port.
pub(crate) fn delete_persistent(daemon: &mut Daemon, name: &str, caller: &Caller) -> Result<(), Refusal> {
    check_system_daemon(daemon)?;
    check_root(daemon, caller)?;
    let Some(link) = find_link(name, caller)? else { return no_such_interface() };
    let state = &daemon.vale.attached;
    let Some(hidden) = find_persistent(state, &link, caller)?.map(|port| port.hidden) else {
        return refuse(EINVAL, "it is no persistent port (vale-ctl -n creates them)");
    };
    let Some(hidden_namespace) = state.hidden_namespace.clone() else { return no_such_interface() };
    let is_such = |attachment: &AttachedInterface| {
        (attachment.nic.netns, attachment.nic.index) == (hidden_namespace.id(), hidden)
    };
    if daemon.registry.all::<ValePort>().any(|port| port.attachment.as_ref().is_some_and(is_such)) {
        return refuse(EBUSY, "it is attached to a switch (vale-ctl -d)");
    }
    if nic::find(&daemon.registry, caller.netns_id(), link.index).is_some() {
        return refuse(EBUSY, "a program has it open");
    }
    let removed = hidden_namespace.run(|| veth::delete(hidden)).and_then(|done| done);
    removed.or_else(|e| refuse(ENXIO, format!("removing it: {e}")))?;
    interface_gone(daemon, hidden_namespace.id(), hidden);
    Ok(())
}

/// Lets processors of their own poll an attached interface: one processor all queues, or, from the first queue on, each
/// queue the processor of its number, as netmap does. Other queues are served as before.
pub(crate) fn start_polling(
    daemon: &mut Daemon,
    name: &str,
    request: &NmreqValePolling,
    caller: &Caller,
) -> Result<(), Refusal> {
    let attachment = attachment_named(daemon, name, caller)?;
    let rings = attachment.threads.iter().filter(|thread| thread.receives()).count();
    if attachment.polling {
        return refuse(EFAULT, "processors of its own poll it already (vale-ctl -P ends that)");
    }
    let (first, last, by_queue) = polling_cpus(request, rings)?;
    for thread in &attachment.threads {
        let queue = u32::from(thread.pair.1);
        let cpu = if by_queue { queue } else { first };
        thread.set_polling_cpu(Some(cpu).filter(|cpu| (first..=last).contains(cpu)));
    }
    attachment.polling = true;
    Ok(())
}

/// Returns the first and the last processor that `request` selects for an interface with `rings` receive rings, and
/// whether each of them polls the queue of its number.
fn polling_cpus(request: &NmreqValePolling, rings: usize) -> Result<(u32, u32, bool), Refusal> {
    let (first, count) = (request.nr_first_cpu_id, request.nr_num_polling_cpus);
    let available = process::cpus_allowed();
    if count == 0 || count as usize >= available.len() {
        return refuse(
            EINVAL,
            format!("{count} of {} processors: at least one must poll, and at least one must remain", available.len()),
        );
    }
    let by_queue = match request.nr_mode {
        NETMAP_POLLING_MODE_SINGLE_CPU if count == 1 => false,
        NETMAP_POLLING_MODE_SINGLE_CPU => {
            return refuse(EINVAL, format!("mode {} is one processor, not {count}", request.nr_mode));
        }
        NETMAP_POLLING_MODE_MULTI_CPU => true,
        mode => {
            return refuse(EINVAL, format!("there is no mode {mode}: 1 is one processor, 2 one for each ring"));
        }
    };
    let last = first.saturating_add(count - 1);
    if by_queue && last as usize >= rings {
        return refuse(EINVAL, format!("rings {first} to {last} do not all exist, it has {rings}"));
    }
    if (first..=last).any(|cpu| !available.contains(&(cpu as usize))) {
        return refuse(EINVAL, format!("of processors {first} to {last} the daemon may use only {available:?}"));
    }
    Ok((first, last, by_queue))
}

/// Ends polling by processors of their own.
pub(crate) fn stop_polling(daemon: &mut Daemon, name: &str, caller: &Caller) -> Result<(), Refusal> {
    let attachment = attachment_named(daemon, name, caller)?;
    if !attachment.polling {
        return refuse(EFAULT, "no processors of its own poll it");
    }
    attachment.threads.iter().for_each(|thread| thread.set_polling_cpu(None));
    attachment.polling = false;
    Ok(())
}

fn attachment_named<'a>(
    daemon: &'a mut Daemon,
    name: &str,
    caller: &Caller,
) -> Result<&'a mut AttachedInterface, Refusal> {
    check_system_daemon(daemon)?;
    check_root(daemon, caller)?;
    let key = port_key(daemon, name, caller)?;
    let Some(port) = daemon.registry.get_mut::<ValePort>(&PortKey::Vale(key)) else {
        return refuse(ENXIO, "there is no switch that has this port");
    };
    match &mut port.attachment {
        Some(attachment) => Ok(attachment),
        None => refuse(EOPNOTSUPP, "only attached interfaces are polled by processors of their own"),
    }
}

fn check_system_daemon(daemon: &Daemon) -> Result<(), Refusal> {
    match daemon.admission.policy {
        None => refuse(ENXIO, "there is no such port: only the system's daemon has them, and this is a user's own"),
        Some(_) => Ok(()),
    }
}

fn check_root(daemon: &Daemon, caller: &Caller) -> Result<(), Refusal> {
    if daemon.admission.policy.is_none() {
        return refuse(
            EPERM,
            "only the system's daemon can do this, and this is a user's own (start one as root: unetmapd)",
        );
    }
    match caller.peer.uid {
        0 => Ok(()),
        uid => refuse(EPERM, format!("only root may do this, not user {uid}")),
    }
}

/// Returns the key of the port `valeS:P`. P may be any interface name, which allows more than a program's port name.
pub(super) fn port_key(daemon: &mut Daemon, name: &str, caller: &Caller) -> Result<ValeKey, Refusal> {
    if is_interface_on_switch(name) {
        return key_of(daemon, name, caller);
    }
    let spec = parse_port_name(name)?;
    if spec.kind != PortKind::Vale || spec.pipe.is_some() {
        return refuse(EINVAL, "a switch port is named valeS:P");
    }
    key_of(daemon, &spec.parent, caller)
}

/// Returns the hidden network namespace, and creates it if there is none.
fn open_hidden_namespace(daemon: &mut Daemon) -> Result<Arc<Netns>, Refusal> {
    if let Some(hidden) = &daemon.vale.attached.hidden_namespace {
        return Ok(hidden.clone());
    }
    let created =
        Netns::new().or_else(|e| refuse(EPERM, format!("the daemon cannot create a network namespace: {e}")))?;
    let created = Arc::new(created);
    // Its own stack must send nothing to the switches. Without IPv6 it sends nothing anyway.
    let _ = created.run(|| fs::write("/proc/sys/net/ipv6/conf/default/disable_ipv6", "1"));
    nic::watch(daemon, &created)?;
    daemon.vale.attached.hidden_namespace = Some(created.clone());
    Ok(created)
}

fn close_hidden_namespace_if_unused(daemon: &mut Daemon) {
    if daemon.vale.attached.persistent.is_empty()
        && let Some(hidden) = daemon.vale.attached.hidden_namespace.take()
    {
        nic::unwatch_if_unused(daemon, hidden.id());
    }
}

/// Returns the persistent port that an interface of the caller's namespace is the visible end of, wherever it was
/// created.
fn find_persistent<'a>(
    state: &'a AttachedState,
    link: &Link,
    caller: &Caller,
) -> Result<Option<&'a PersistentPort>, Refusal> {
    let (Some(hidden_namespace), Some(netns)) = (&state.hidden_namespace, &caller.netns) else { return Ok(None) };
    let hidden = netns.run(|| veth::peer_index_in(link.index, hidden_namespace)).and_then(|end| end);
    let hidden = hidden.or_else(|e| refuse(ENXIO, format!("looking for the other end of the interface: {e}")))?;
    Ok(state.persistent.iter().find(|port| Some(port.hidden) == hidden))
}

/// Returns the hidden end of a persistent port, and a caller in its namespace.
fn hidden_end(state: &AttachedState, port: &PersistentPort) -> Result<(Link, Caller), Refusal> {
    let Some(hidden_namespace) = state.hidden_namespace.clone() else { return no_such_interface() };
    let link = hidden_namespace.run(|| link::by_index(port.hidden)).ok().and_then(Result::ok).flatten();
    let Some(link) = link else { return no_such_interface() };
    Ok((link, Caller { netns: Some(hidden_namespace), ..Caller::daemon() }))
}

/// Creates the veth pair of a persistent port; returns the index of its hidden end.
fn create_veth_pair(
    name: &str,
    request: &NmreqValeNewif,
    netns: &Netns,
    hidden_namespace: &Netns,
) -> Result<u32, Refusal> {
    let queues = u32::from(request.nr_tx_rings.max(request.nr_rx_rings)).clamp(1, 16);
    let peer = netns.run(|| {
        // A persistent port in another namespace may have the same name, so the hidden end may need another one.
        let peers = std::iter::once(name.to_string()).chain((0..u16::MAX).map(|n| format!("vi{n}")));
        for peer in peers {
            match veth::create(Veth { name, peer: &peer, peer_netns: Some(hidden_namespace.as_fd()), queues }) {
                // The name of either end may be in use.
                Err(e) if e.raw_os_error() == Some(EEXIST) && link::by_name(name)?.is_none() => {}
                laid => {
                    laid?;
                    // No hardware would complete the checksums of the stack's frames.
                    link::disable_tx_checksum_offload(name)?;
                    return Ok(peer);
                }
            }
        }
        Err(std::io::Error::from_raw_os_error(EEXIST))
    });
    let peer = peer.and_then(|done| done).or_else(|e| refuse_veth(&e))?;
    let hidden = hidden_namespace.run(|| {
        let index = link::by_name(&peer)?.map_or(0, |link| link.index);
        veth::set_up(index).map(|()| index)
    });
    hidden.and_then(|done| done).or_else(|e| refuse_veth(&e))
}

fn refuse_veth<T>(e: &std::io::Error) -> Result<T, Refusal> {
    match e.raw_os_error() {
        Some(EEXIST) => refuse(EEXIST, "there is an interface of this name already"),
        Some(EPERM) => refuse(EPERM, "the daemon may not create interfaces: it needs CAP_NET_ADMIN"),
        Some(EOPNOTSUPP) => refuse(EOPNOTSUPP, "the kernel has no veth interfaces (modprobe veth)"),
        _ => refuse(ENOMEM, format!("creating the interface: {e}")),
    }
}

/// Whether this is `valeS:IF`, where IF is a valid name of an interface without the signs of pipes.
fn is_interface_on_switch(name: &str) -> bool {
    let Some((switch, interface)) = name.strip_prefix(NM_BDG_NAME).and_then(|rest| rest.split_once(':')) else {
        return false;
    };
    let ident = switch.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_');
    let named = interface.bytes().all(|b| b.is_ascii_graphic() && !b"/:{}".contains(&b));
    ident && named && (1..=MAX_NAME).contains(&interface.len()) && ![".", ".."].contains(&interface)
}
