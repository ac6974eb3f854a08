// SPDX-License-Identifier: BSD-2-Clause
//! Requests about attached ports: attaching and detaching interfaces and persistent ports, and processors that poll
//! them.

use unetmap_abi::*;
use unetmap_core::errno::{EBUSY, EFAULT, EINVAL, ENXIO, EOPNOTSUPP, EPERM};
use unetmap_sys::link::Link;
use unetmap_sys::process;

use super::attached::{check_root, check_system_daemon, connect, disconnect, disconnect_all};
use super::open::key_of;
use super::persistent::MAX_NAME;
use super::port::{AttachedInterface, HOST_SUFFIX, Side, ValePort, host_key};
use super::{ValeKey, ValeState, persistent_ends, persistent_requests};
use crate::caller::Caller;
use crate::ports::mediator::MediatorThread;
use crate::ports::nic::{self, find_link, no_such_interface};
use crate::ports::{Admission, Daemon, PortKey, Registry, parse_port_name, sinks};
use crate::refusal::{Refusal, refuse};

/// Attaches an interface or a sink to a switch. Returns the number of its port.
pub(crate) fn attach(
    daemon: &mut Daemon,
    name: &str,
    request: &NmreqRegister,
    caller: &Caller,
) -> Result<u32, Refusal> {
    check_root(&daemon.admission, caller)?;
    let key = port_key(&mut daemon.admission, name, caller)?;
    if daemon.registry.switch_port(&key).is_some() {
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
    if with_host && daemon.registry.switch_port(&host).is_some() {
        return refuse(EBUSY, "the switch has a port of this name for the host already (vale-ctl lists them)");
    }
    let interface = match (sinks::number(&daemon.admission, &key.port, caller)?, find_link(&key.port, caller)?) {
        (Some(number), _) => sinks::open_for_switch(daemon, number, caller)?,
        (None, None) => return no_such_interface(),
        (None, Some(link)) => match daemon.vale.persistent.of_link(&link, caller)? {
            Some(hidden) => match persistent_requests::attach(daemon, hidden, (&key, request), &link)? {
                Some(index) => return Ok(index),
                None => open_persistent(&mut daemon.registry, &daemon.vale, hidden, caller)?,
            },
            None => open_interface(daemon, &link, request, caller)?,
        },
    };
    let mem_id = request.nr_mem_id;
    let attached = connect(daemon, &key, (&interface, Side::Wire), mem_id, caller).and_then(|(id, index)| {
        if with_host {
            let connected = connect(daemon, &host_key(&key), (&interface, Side::Host), mem_id, caller);
            connected.inspect_err(|_| disconnect(daemon, &id))?;
        }
        Ok(index)
    });
    attached.inspect_err(|_| daemon.release_if_unused(&interface))
}

/// Opens an interface that is to be attached.
pub(super) fn open_interface(
    daemon: &mut Daemon,
    link: &Link,
    request: &NmreqRegister,
    caller: &Caller,
) -> Result<PortKey, Refusal> {
    if daemon.admission.policy()?.is_none_or(|policy| policy.nic(&caller.identity(policy), &link.name).is_none()) {
        return refuse(EPERM, "you may not open this interface (the policy says who may: unetmap-policy(5))");
    }
    if let Some(nic) = nic::find(&daemon.registry, caller.netns_id(), link.index)? {
        return nic::in_use(&daemon.registry, nic);
    }
    let shape = nic::new_shape((&daemon.registry, &daemon.nics), link, request, caller)?;
    nic::create_for_daemon(daemon, link, shape, caller).map(PortKey::Nic)
}

/// Opens a persistent port that is attached to one switch and is to be attached to another.
pub(super) fn open_persistent(
    registry: &mut Registry,
    vale: &ValeState,
    hidden: u32,
    caller: &Caller,
) -> Result<PortKey, Refusal> {
    let id = PortKey::Persistent(hidden);
    if registry.is_open(&id) {
        return refuse(EBUSY, "a program has it open, or it is attached to a second switch already");
    }
    persistent_ends::find_or_create(registry, vale, hidden, &NmreqRegister::default(), caller)?;
    if let Some(port) = registry.get_mut::<ValePort>(&id) {
        port.is_wrapped = true;
    }
    Ok(id)
}

/// Detaches an interface from its switch; returns the number that its port had.
pub(crate) fn detach(daemon: &mut Daemon, name: &str, caller: &Caller) -> Result<u32, Refusal> {
    check_system_daemon(&daemon.admission)?;
    check_root(&daemon.admission, caller)?;
    let key = port_key(&mut daemon.admission, name, caller)?;
    let Some(port) = daemon.registry.switch_port(&key) else {
        return refuse(ENXIO, "there is no switch that has this port");
    };
    let (id, index) = (port.id.clone(), port.index());
    let persistent = daemon.vale.persistent.host_end(&key);
    let attached = persistent.map_or(Some(port), |host_end| daemon.registry.get::<ValePort>(host_end));
    match attached.and_then(|port| port.attachment.as_ref()) {
        None => refuse(EBUSY, "a program has it open; the port is removed when the program closes it"),
        Some(attachment) if attachment.polling => {
            refuse(EBUSY, "processors of its own poll it; end that first (vale-ctl -P)")
        }
        Some(AttachedInterface { side: Side::Host, .. }) => {
            let interface = key.port.strip_suffix(HOST_SUFFIX).unwrap_or(&key.port);
            refuse(EBUSY, format!("it is detached with its interface (vale-ctl -d {}:{interface})", key.switch))
        }
        Some(_) if persistent.is_some() => persistent_requests::detach(daemon, &key),
        Some(_) => {
            disconnect(daemon, &PortKey::Vale(host_key(&key)));
            disconnect(daemon, &id);
            Ok(index.into())
        }
    }
}

/// Handles the end of an interface that may have been attached, or the hidden end of a persistent port.
pub(crate) fn interface_gone(daemon: &mut Daemon, netns: u64, index: u32) {
    disconnect_all(daemon, |attachment| attachment.is_link(netns, index));
    persistent_requests::interface_gone(daemon, netns, index);
}

/// Lets processors of their own poll an attached interface: one processor all queues, or, from the first queue on, each
/// queue the processor of its number, as netmap does. Other queues are served as before.
pub(crate) fn start_polling(
    daemon: &mut Daemon,
    name: &str,
    request: &NmreqValePolling,
    caller: &Caller,
) -> Result<(), Refusal> {
    let (attachment, threads) = attachment_named(daemon, name, caller)?;
    let rings = threads.iter().filter(|thread| thread.receives()).count();
    if attachment.polling {
        return refuse(EFAULT, "processors of its own poll it already (vale-ctl -P ends that)");
    }
    let (first, last, by_queue) = polling_cpus(request, rings)?;
    for thread in threads {
        let queue = u32::from(thread.pair.1);
        let cpu = if by_queue { queue } else { first };
        thread.set_polling_cpu(Some(cpu).filter(|cpu| (first..=last).contains(cpu)));
    }
    attachment.polling = true;
    daemon.vale.has_unsaved = true;
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
    let (attachment, threads) = attachment_named(daemon, name, caller)?;
    if !attachment.polling {
        return refuse(EFAULT, "no processors of its own poll it");
    }
    threads.iter().for_each(|thread| thread.set_polling_cpu(None));
    attachment.polling = false;
    daemon.vale.has_unsaved = true;
    Ok(())
}

fn attachment_named<'a>(
    daemon: &'a mut Daemon,
    name: &str,
    caller: &Caller,
) -> Result<(&'a mut AttachedInterface, &'a [MediatorThread]), Refusal> {
    check_system_daemon(&daemon.admission)?;
    check_root(&daemon.admission, caller)?;
    let key = port_key(&mut daemon.admission, name, caller)?;
    let id = daemon.vale.persistent.host_end(&key).cloned().unwrap_or(PortKey::Vale(key));
    let Some(port) = daemon.registry.get_mut::<ValePort>(&id) else {
        return refuse(ENXIO, "there is no switch that has this port");
    };
    match &mut port.kind.attachment {
        Some(attachment) => Ok((attachment, &port.record.mediators)),
        None => refuse(EOPNOTSUPP, "only attached interfaces are polled by processors of their own"),
    }
}

/// Returns the key of the port `valeS:P`. P may be any interface name, which allows more than a program's port name.
pub(super) fn port_key(admission: &mut Admission, name: &str, caller: &Caller) -> Result<ValeKey, Refusal> {
    if is_interface_on_switch(name) {
        return key_of(admission, name, caller);
    }
    let spec = parse_port_name(name)?;
    if spec.kind != PortKind::Vale || spec.pipe.is_some() {
        return refuse(EINVAL, "a switch port is named valeS:P");
    }
    key_of(admission, &spec.parent, caller)
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
