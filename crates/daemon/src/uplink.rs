//! The books' part about switch ports that belong to no program: attached interfaces, and the system's own end of a cable.
//!
//! ```text
//! switch == port valeS:IF == [thread for each queue] == interface IF              attached
//! switch == port valeS:IF^ == [thread for each pair] == host rings of IF         attached with it
//! switch == port valeS:vi == [thread for each queue] == closet's end ---- vi      persistent, and attached
//! ```
//! To the switch such a port is like any other; at its other end is a thread as for mediated ports (`mediator`).
//!
//! A persistent port is a cable. Its far end lies in the *closet*, a network namespace that only the daemon has open: when
//! the daemon dies, the closet goes, and with it both ends.

use std::collections::BTreeMap;
use std::fs;
use std::os::fd::AsFd;
use std::sync::Arc;

use unetmap::errno::{EBUSY, EEXIST, EFAULT, EINVAL, ENOMEM, ENXIO, EOPNOTSUPP, EPERM};
use unetmap_abi::*;
use unetmap_sys::link::veth::{self, Veth};
use unetmap_sys::link::{self, Link};
use unetmap_sys::netns::Netns;
use unetmap_sys::process;

use crate::books::{Books, PortKey, daemon_name};
use crate::caller::Caller;
use crate::interfaces::{DAEMON, find_link, in_use, new_shape, no_such_interface};
use crate::mediator::{Directions, Running};
use crate::nic::NicKey;
use crate::refusal::{Refusal, refuse};
use crate::region::Scope;
use crate::vale::ValeKey;

/// Bytes of an interface's name at most.
const NAME_MOST: usize = 15;

/// Which rings of an interface.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Side {
    /// Those of its queues.
    Wire,
    /// Those of its host's stack.
    Host,
}

impl Side {
    /// How a pair of them is bound.
    fn mode(self) -> u32 {
        match self {
            Side::Wire => NR_REG_ONE_NIC,
            Side::Host => NR_REG_ONE_SW,
        }
    }
}

/// What stands behind an interface's name in that of the port of its host's stack.
const HOST_MARK: char = '^';

/// An interface that is a port of a switch, or its host's stack.
pub(crate) struct Uplink {
    nic: NicKey,
    side: Side,
    running: Vec<Running>,
    /// Whether the threads stay awake on processors of their own.
    polling: bool,
}

/// A persistent port. Its other end is the system's, which may rename it, and move it to any namespace.
pub(crate) struct Persistent {
    /// The number of the daemon's end, in the closet.
    pub(crate) hidden: u32,
    shape: NmreqValeNewif,
}

impl Books {
    /// Whether the daemon is needed though nobody is connected.
    pub(crate) fn serves_the_system(&self) -> bool {
        !self.uplinks.is_empty() || !self.persistent.is_empty()
    }

    /// The number of an attached interface's port.
    pub(crate) fn attach(&mut self, name: &str, asked: &NmreqRegister, caller: &Caller) -> Result<u32, Refusal> {
        self.only_root(caller)?;
        let key = self.vale_port_named(name, caller)?;
        if self.vales.contains_key(&key) {
            return refuse(EBUSY, "the switch has this port already (vale-ctl lists them)");
        }
        let with_host = match asked.nr_mode {
            NR_REG_NIC_SW => true,
            NR_REG_DEFAULT | NR_REG_ALL_NIC => false,
            mode => {
                return refuse(
                    EINVAL,
                    format!("mode {mode}: all rings are attached (NR_REG_ALL_NIC), or the host's, too (NR_REG_NIC_SW)"),
                );
            }
        };
        let host = ValeKey { port: format!("{}{HOST_MARK}", key.port), ..key.clone() };
        if with_host && self.vales.contains_key(&host) {
            return refuse(EBUSY, "the switch has a port of this name for the host already (vale-ctl lists them)");
        }
        let Some(found) = find_link(&key.port, caller)? else { return no_such_interface() };
        let admitted = self.policy()?.is_some_and(|policy| policy.nic(&caller.who(), &found.name).is_some());
        let persistent = self.persistent_of(&found, caller)?;
        let wishes = persistent.map(|p| NmreqRegister {
            nr_tx_slots: p.shape.nr_rx_slots,
            nr_rx_slots: p.shape.nr_tx_slots,
            ..Default::default()
        });
        // Where the port is to be, if that was said when it was made.
        let said = persistent.map_or(0, |p| p.shape.nr_mem_id);
        let region = if asked.nr_mem_id == 0 { said } else { asked.nr_mem_id };
        if with_host && persistent.is_some() {
            return refuse(EINVAL, "a persistent port is the host's own end already (vale-ctl -a)");
        }
        let (link, behind) = match persistent {
            Some(persistent) => self.hidden_end(persistent)?,
            None if !admitted => {
                return refuse(EPERM, "you may not open this interface (the policy says who may: unetmap-policy(5))");
            }
            None => (found, caller.clone()),
        };
        let nic = self.take_nic(&link, &wishes.unwrap_or(*asked), &behind)?;
        let made = self.connect(&key, nic, Side::Wire, region, caller).and_then(|index| {
            if with_host {
                self.connect(&host, nic, Side::Host, region, caller)?;
            }
            Ok(index)
        });
        made.inspect_err(|_| {
            self.disconnect(&key);
            self.drop_if_unused(&PortKey::Nic(nic));
        })
    }

    /// Makes a port for the interface, or for its host's stack, in this region (0: one of its own), and starts the threads.
    fn connect(
        &mut self,
        key: &ValeKey,
        nic: NicKey,
        side: Side,
        region: u16,
        caller: &Caller,
    ) -> Result<u32, Refusal> {
        let Some(shape) = self.nics.get(&nic).map(|nic| nic.end.shape) else { return no_such_interface() };
        let (tx_rings, rx_rings) = match side {
            Side::Wire => (shape.tx_rings, shape.rx_rings),
            Side::Host => (shape.host_tx_rings, shape.host_rx_rings),
        };
        // What the interface receives, the port sends.
        let mirrored = NmreqRegister {
            nr_tx_slots: shape.rx_slots.get(),
            nr_rx_slots: shape.tx_slots.get(),
            nr_tx_rings: rx_rings,
            nr_rx_rings: tx_rings,
            nr_mem_id: region,
            ..Default::default()
        };
        let owner = Caller { peer: caller.peer, ..Caller::daemon() };
        self.make_vale(key, &mirrored, Scope { uid: DAEMON, netns: 0 }, &owner)?;
        let mut running = Vec::new();
        for queue in 0..tx_rings.max(rx_rings) {
            let directions = Directions { tx: queue < tx_rings, rx: queue < rx_rings };
            let lane = (side.mode(), queue);
            let prepared = self.prepare(&PortKey::Vale(key.clone()), &key.port, nic, lane, directions);
            match prepared.and_then(|prepared| self.start(&key.port, prepared)) {
                Ok(thread) => running.push(thread),
                Err(refusal) => {
                    for session in Running::stop(running) {
                        self.close(session);
                    }
                    self.drop_if_unused(&PortKey::Vale(key.clone()));
                    return Err(refusal);
                }
            }
        }
        self.uplinks.insert(key.clone(), Uplink { nic, side, running, polling: false });
        tracing::info!(port = key.name(), "attached");
        Ok(self.vales.get(key).map_or(0, |port| port.index().into()))
    }

    /// The interface, in the daemon's own hands.
    fn take_nic(&mut self, link: &Link, asked: &NmreqRegister, behind: &Caller) -> Result<NicKey, Refusal> {
        if let Some((_, nic)) = self.nic_of(behind.netns_id(), link.index) {
            return in_use(nic);
        }
        let shape = new_shape(link, asked, behind)?;
        let own = Scope { uid: DAEMON, netns: behind.netns_id() };
        let rings = u32::from(shape.all_tx()) + u32::from(shape.all_rx());
        let sizes = self.knobs.of_mediated().of_one_interface(rings, shape.all_slots());
        let house = self.private_region(own, &link.name, sizes)?;
        self.make_nic(house, own, link, shape, behind)
    }

    /// Takes an attached interface out of its switch; returns the number that its port had.
    pub(crate) fn detach(&mut self, name: &str, caller: &Caller) -> Result<u32, Refusal> {
        self.has_such_ports()?;
        self.only_root(caller)?;
        let key = self.vale_port_named(name, caller)?;
        let Some(port) = self.vales.get(&key) else { return refuse(ENXIO, "there is no switch that has this port") };
        let index = port.index();
        match self.uplinks.get(&key) {
            None => refuse(EBUSY, "a program has it open; the port goes when it closes it"),
            Some(uplink) if uplink.polling => {
                refuse(EBUSY, "processors of its own serve it; end that first (vale-ctl -P)")
            }
            Some(Uplink { side: Side::Host, .. }) => {
                let interface = key.port.strip_suffix(HOST_MARK).unwrap_or(&key.port);
                refuse(EBUSY, format!("it goes with its interface (vale-ctl -d {}:{interface})", key.switch))
            }
            Some(_) => {
                self.disconnect(&key);
                Ok(index.into())
            }
        }
    }

    /// Takes an interface, and its host's stack, out of a switch.
    fn disconnect(&mut self, key: &ValeKey) {
        self.disconnect_one(&ValeKey { port: format!("{}{HOST_MARK}", key.port), ..key.clone() });
        self.disconnect_one(key);
    }

    fn disconnect_one(&mut self, key: &ValeKey) {
        let Some(uplink) = self.uplinks.remove(key) else { return };
        for session in Running::stop(uplink.running) {
            self.close(session);
        }
        self.drop_if_unused(&PortKey::Vale(key.clone()));
        self.drop_if_unused(&PortKey::Nic(uplink.nic));
        tracing::info!(port = key.name(), "detached");
    }

    /// An interface has gone that may have been attached, or the hidden end of a persistent port.
    pub(crate) fn uplink_gone(&mut self, netns: u64, index: u32) {
        let of = |uplink: &Uplink| uplink.nic.netns == netns && uplink.nic.index == index;
        let ended: Vec<ValeKey> = self.uplinks.iter().filter(|(_, u)| of(u)).map(|(key, _)| key.clone()).collect();
        ended.iter().for_each(|key| self.disconnect(key));
        if self.closet.as_ref().is_some_and(|closet| closet.id() == netns) {
            self.persistent.retain(|persistent| persistent.hidden != index);
            self.empty_closet();
        }
    }

    /// Makes a persistent port.
    pub(crate) fn new_port(&mut self, name: &str, asked: NmreqValeNewif, caller: &Caller) -> Result<(), Refusal> {
        self.only_root(caller)?;
        if name.is_empty() || name.len() > NAME_MOST || name.starts_with(NM_BDG_NAME) {
            return refuse(
                EINVAL,
                format!("a persistent port has the name of an interface: 1 to {NAME_MOST} bytes, not vale..."),
            );
        }
        if find_link(name, caller)?.is_some() {
            return refuse(EEXIST, "there is an interface of this name already");
        }
        if asked.nr_mem_id != 0 {
            self.numbered(asked.nr_mem_id, caller)?;
        }
        let Some(netns) = caller.netns.clone() else { return no_such_interface() };
        let closet = self.closet()?;
        let laid = lay(name, &asked, &netns, &closet);
        let hidden = laid.inspect_err(|_| self.empty_closet())?;
        self.persistent.push(Persistent { hidden, shape: asked });
        Ok(())
    }

    /// Removes a persistent port.
    pub(crate) fn delete_port(&mut self, name: &str, caller: &Caller) -> Result<(), Refusal> {
        self.has_such_ports()?;
        self.only_root(caller)?;
        let Some(link) = find_link(name, caller)? else { return no_such_interface() };
        let Some(hidden) = self.persistent_of(&link, caller)?.map(|persistent| persistent.hidden) else {
            return refuse(EINVAL, "it is no persistent port (vale-ctl -n makes them)");
        };
        let Some(closet) = self.closet.clone() else { return no_such_interface() };
        if self.uplinks.values().any(|uplink| uplink.nic.netns == closet.id() && uplink.nic.index == hidden) {
            return refuse(EBUSY, "it is attached to a switch (vale-ctl -d)");
        }
        if self.nic_of(caller.netns_id(), link.index).is_some() {
            return refuse(EBUSY, "a program has it open");
        }
        let removed = closet.run(|| veth::remove(hidden)).and_then(|done| done);
        removed.or_else(|e| refuse(ENXIO, format!("removing it: {e}")))?;
        self.uplink_gone(closet.id(), hidden);
        Ok(())
    }

    /// Has an attached interface served by threads that stay awake on processors of their own: all of them on one, or the
    /// queues from the first on each on the processor of its own number, as netmap does. Queues that are not among these
    /// are served as before.
    pub(crate) fn polling_on(&mut self, name: &str, asked: &NmreqValePolling, caller: &Caller) -> Result<(), Refusal> {
        let rings = self.uplink_named(name, caller)?.running.iter().filter(|thread| thread.receives()).count();
        let uplink = self.uplink_named(name, caller)?;
        if uplink.polling {
            return refuse(EFAULT, "processors of its own serve it already (vale-ctl -P ends that)");
        }
        let (first, count) = (asked.nr_first_cpu_id, asked.nr_num_polling_cpus);
        let there = process::cpus_allowed();
        if count == 0 || count as usize >= there.len() {
            return refuse(
                EINVAL,
                format!("{count} processors of {}: at least one serves it, and one is left", there.len()),
            );
        }
        let by_queue = match asked.nr_mode {
            NETMAP_POLLING_MODE_SINGLE_CPU if count == 1 => false,
            NETMAP_POLLING_MODE_SINGLE_CPU => {
                return refuse(EINVAL, format!("mode {} is one processor, not {count}", asked.nr_mode));
            }
            NETMAP_POLLING_MODE_MULTI_CPU => true,
            mode => return refuse(EINVAL, format!("mode {mode} is none: 1 is one processor, 2 one for each ring")),
        };
        let last = first.saturating_add(count - 1);
        if by_queue && last as usize >= rings {
            return refuse(EINVAL, format!("rings {first} to {last} are not all there, it has {rings}"));
        }
        if (first..=last).any(|cpu| !there.contains(&(cpu as usize))) {
            return refuse(EINVAL, format!("of processors {first} to {last} the daemon has only {there:?}"));
        }
        for thread in &uplink.running {
            let own = u32::from(thread.lane.1);
            let cpu = if by_queue { own } else { first };
            thread.poll_from(Some(cpu).filter(|cpu| (first..=last).contains(cpu)));
        }
        uplink.polling = true;
        Ok(())
    }

    /// Ends that.
    pub(crate) fn polling_off(&mut self, name: &str, caller: &Caller) -> Result<(), Refusal> {
        let uplink = self.uplink_named(name, caller)?;
        if !uplink.polling {
            return refuse(EFAULT, "no processors of its own serve it");
        }
        uplink.running.iter().for_each(|thread| thread.poll_from(None));
        uplink.polling = false;
        Ok(())
    }

    /// Of an attached interface: the queues that have a processor of their own, and which.
    pub(crate) fn polled(&self, key: &ValeKey) -> BTreeMap<u16, u32> {
        let running = self.uplinks.get(key).into_iter().flat_map(|uplink| &uplink.running);
        running.filter_map(|thread| Some((thread.lane.1, thread.polls_from()?))).collect()
    }

    fn uplink_named(&mut self, name: &str, caller: &Caller) -> Result<&mut Uplink, Refusal> {
        self.has_such_ports()?;
        self.only_root(caller)?;
        let key = self.vale_port_named(name, caller)?;
        if !self.vales.contains_key(&key) {
            return refuse(ENXIO, "there is no switch that has this port");
        }
        match self.uplinks.get_mut(&key) {
            Some(uplink) => Ok(uplink),
            None => refuse(EOPNOTSUPP, "only attached interfaces are served by processors of their own"),
        }
    }

    fn has_such_ports(&self) -> Result<(), Refusal> {
        match self.rules.policy {
            None => refuse(ENXIO, "there is no such port: only the system's daemon has them, and this is a user's"),
            Some(_) => Ok(()),
        }
    }

    fn only_root(&self, caller: &Caller) -> Result<(), Refusal> {
        if self.rules.policy.is_none() {
            return refuse(
                EPERM,
                "this is done by the system's daemon, and this is a user's (start one as root: unetmapd)",
            );
        }
        match caller.peer.uid {
            0 => Ok(()),
            uid => refuse(EPERM, format!("only root may do this, not user {uid}")),
        }
    }

    /// The port `valeS:P`. P may be whatever an interface is called, which is more than a program may call its port.
    pub(crate) fn vale_port_named(&mut self, name: &str, caller: &Caller) -> Result<ValeKey, Refusal> {
        if is_interface_on_switch(name) {
            return self.vale_key_of(name, caller);
        }
        let spec = daemon_name(name)?;
        if spec.kind != PortKind::Vale || spec.pipe.is_some() {
            return refuse(EINVAL, "a port of a switch is named valeS:P");
        }
        self.vale_key(&spec, caller)
    }

    /// The closet, made if there is none.
    fn closet(&mut self) -> Result<Arc<Netns>, Refusal> {
        if let Some(closet) = &self.closet {
            return Ok(closet.clone());
        }
        let made =
            Netns::new().or_else(|e| refuse(EPERM, format!("the daemon cannot make a network namespace: {e}")))?;
        let made = Arc::new(made);
        // Nothing of its own stack is to be on the switches; where there is no IPv6 there is nothing to say.
        let _ = made.run(|| fs::write("/proc/sys/net/ipv6/conf/default/disable_ipv6", "1"));
        self.watch(&made)?;
        self.closet = Some(made.clone());
        Ok(made)
    }

    /// Whether what happens in a namespace matters though nobody has an interface of it open.
    pub(crate) fn is_closet(&self, netns: u64) -> bool {
        self.closet.as_ref().is_some_and(|closet| closet.id() == netns)
    }

    fn empty_closet(&mut self) {
        if self.persistent.is_empty()
            && let Some(closet) = self.closet.take()
        {
            self.unwatch_if_unused(closet.id());
        }
    }

    /// The persistent port that an interface of the caller's namespace is an end of, wherever it was made.
    fn persistent_of(&self, link: &Link, caller: &Caller) -> Result<Option<&Persistent>, Refusal> {
        let (Some(closet), Some(netns)) = (&self.closet, &caller.netns) else { return Ok(None) };
        let hidden = netns.run(|| veth::end_in(link.index, closet)).and_then(|end| end);
        let hidden = hidden.or_else(|e| refuse(ENXIO, format!("looking where the interface leads: {e}")))?;
        Ok(self.persistent.iter().find(|persistent| Some(persistent.hidden) == hidden))
    }

    /// The end of a persistent port that the daemon has, and whoever is to be asked for it.
    fn hidden_end(&self, persistent: &Persistent) -> Result<(Link, Caller), Refusal> {
        let Some(closet) = self.closet.clone() else { return no_such_interface() };
        let index = persistent.hidden;
        let link = closet.run(|| link::by_index(index)).ok().and_then(Result::ok).flatten();
        let Some(link) = link else { return no_such_interface() };
        Ok((link, Caller { netns: Some(closet), ..Caller::daemon() }))
    }
}

/// Lays the cable of a persistent port; returns the number of its hidden end.
fn lay(name: &str, asked: &NmreqValeNewif, netns: &Netns, closet: &Netns) -> Result<u32, Refusal> {
    let queues = u32::from(asked.nr_tx_rings.max(asked.nr_rx_rings)).clamp(1, 16);
    let peer = netns.run(|| {
        // Another namespace may have a port of the same name, so that the one in the closet is called otherwise.
        let peers = std::iter::once(name.to_string()).chain((0..u16::MAX).map(|n| format!("vi{n}")));
        for peer in peers {
            match veth::lay(Veth { name, peer: &peer, peer_netns: Some(closet.as_fd()), queues }) {
                // Either end's name may be the one that is taken.
                Err(e) if e.raw_os_error() == Some(EEXIST) && link::by_name(name)?.is_none() => {}
                laid => {
                    laid?;
                    // The stack's frames are not going to hardware that would finish them.
                    link::finish_checksums(name)?;
                    return Ok(peer);
                }
            }
        }
        Err(std::io::Error::from_raw_os_error(EEXIST))
    });
    let peer = peer.and_then(|done| done).or_else(|e| refuse_cable(&e))?;
    let hidden = closet.run(|| {
        let index = link::by_name(&peer)?.map_or(0, |link| link.index);
        veth::set_up(index).map(|()| index)
    });
    hidden.and_then(|done| done).or_else(|e| refuse_cable(&e))
}

fn refuse_cable<T>(e: &std::io::Error) -> Result<T, Refusal> {
    match e.raw_os_error() {
        Some(EEXIST) => refuse(EEXIST, "there is an interface of this name already"),
        Some(EPERM) => refuse(EPERM, "the daemon may not make interfaces: it needs CAP_NET_ADMIN"),
        Some(EOPNOTSUPP) => refuse(EOPNOTSUPP, "the kernel has no veth interfaces (modprobe veth)"),
        _ => refuse(ENOMEM, format!("making the interface: {e}")),
    }
}

/// Whether this is `valeS:IF` with what the kernel takes for an interface's name, apart from the signs of pipes.
fn is_interface_on_switch(name: &str) -> bool {
    let Some((switch, interface)) = name.strip_prefix(NM_BDG_NAME).and_then(|rest| rest.split_once(':')) else {
        return false;
    };
    let ident = switch.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_');
    let named = interface.bytes().all(|b| b.is_ascii_graphic() && !b"/:{}".contains(&b));
    ident && named && (1..=NAME_MOST).contains(&interface.len()) && ![".", ".."].contains(&interface)
}
