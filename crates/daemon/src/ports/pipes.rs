// SPDX-License-Identifier: BSD-2-Clause
//! Finding and creating pipes, and copied ends of them.

use unetmap_abi::PipeEnd;
use unetmap_core::control::request::NR_DEVICE;
use unetmap_core::errno::{EACCES, EBUSY, EINVAL};

use super::copied_end::CopiedEnd;
use super::key::{CopiedEndKey, EndpointKey, PipeKey, PortKey};
use super::mediated::{Mediated, thread_usage};
use super::pipe::{Pipe, endpoint_index};
use super::vale::{self, ValeState};
use super::{AnyPort, Asked, Daemon, Registry, nic, pipe_rings, sinks};
use crate::admission::Admission;
use crate::budget::Amounts;
use crate::caller::Caller;
use crate::policy::{Access, PipeOwner};
use crate::refusal::{Refusal, refuse};
use crate::region::{RegionKey, RegionMemory, Scope, Sizes};
use crate::registry::{Port, Record};
use crate::shape::{EndpointShape, MAX_PIPE_RINGS};

/// Pipes of one parent.
const MAX_PIPES: usize = 64;

/// Why a pipe is found or created.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Purpose {
    /// A session is opened on it.
    Open,
    /// A question is answered, after which a new pipe is released: it needs no rings for that.
    Inspect,
}

/// Finds the pipe, or creates it in the region of its parent, or in the region that was requested.
pub(super) fn find_or_create(
    daemon: &mut Daemon,
    (parent, spec): (&str, &PipeEnd),
    request: &mut Asked<'_>,
    caller: &Caller,
    purpose: Purpose,
) -> Result<EndpointKey, Refusal> {
    let interface = nic::admitted_interface(daemon, parent, caller)?;
    let (scope, is_shared) = owner(&mut daemon.admission, parent, interface, caller)?;
    let key = PipeKey { scope, parent: parent.into(), id: spec.id.clone() };
    let index = endpoint_index(spec.role);
    if let Some(existing) = find(&daemon.registry, &daemon.admission, &key, caller) {
        return end_for_request(daemon, existing, index, request, caller);
    }
    let at = EndpointKey { port: PortKey::Pipe(key.clone()), index };
    if daemon.registry.pipes_of(scope, parent).count() >= MAX_PIPES {
        return refuse(EINVAL, format!("{parent} has {MAX_PIPES} pipes already"));
    }
    if is_shared && request.nr_mem_id != 0 {
        return refuse(
            EINVAL,
            format!("{parent}: pipes that users share are in a region of their own: open one end without @N first"),
        );
    }
    let shape = EndpointShape::requested(request, MAX_PIPE_RINGS)?;
    let sizes = daemon.knobs.private_sizes().with_pipe(&shape);
    let payer = if is_shared { payer(&daemon.admission, scope, caller) } else { scope.uid };
    let paid = Scope { uid: payer, ..scope };
    daemon.check_budget(paid, Amounts::endpoints(2, shape).and(Amounts::region(sizes.bufs.0)))?;
    let region = match (request.nr_mem_id, interface) {
        (0, Some((_, access))) => match (daemon.vale.persistent.region_named(parent, caller)?, access) {
            (Some(region), _) => region,
            (None, Access::Direct) => {
                let link = nic::find_link(parent, caller)?;
                let zero_copy =
                    link.is_some_and(|link| nic::expects_zero_copy(&mut daemon.nics.settings, &link, caller));
                daemon.interface_region(caller, 0, zero_copy, request.memory)?
            }
            (None, Access::Mediated) => {
                region_of_parent(&mut daemon.registry, &daemon.vale, (scope, parent), sizes, request.memory)?
            }
        },
        // Neither in a file with others of its owner, nor with those that another member has opened.
        (0, None) if is_shared => {
            daemon.registry.regions.create_alone((scope, payer), parent, sizes, request.memory)?
        }
        (0, None) if request.nr_flags & NR_DEVICE != 0 => {
            device_of_parent(&mut daemon.registry, &daemon.vale, (scope, parent), sizes)?
        }
        (0, None) if sinks::number(&daemon.admission, parent, caller)?.is_some() => {
            daemon.requested_region(1, caller, request.memory)?
        }
        (0, _) => region_of_parent(&mut daemon.registry, &daemon.vale, (scope, parent), sizes, request.memory)?,
        (mem_id, _) => daemon.requested_region(mem_id, caller, request.memory)?,
    };
    let checked = daemon.check_buffers(region, shape.most_buffers(), false);
    daemon.registry.add(at.port.clone(), region, |region| {
        checked?;
        let record = match purpose {
            Purpose::Open => pipe_rings::create(region, scope, (shape, spec.role), false),
            Purpose::Inspect => pipe_rings::without_rings(region, scope, (shape, spec.role)),
        };
        Ok(AnyPort::Pipe(Port { record: Record { payer, ..record? }, kind: Pipe { key } }))
    })?;
    Ok(at)
}

/// The user that pays for a shared pipe which this caller opens: a member pays for itself, so that its programs, which
/// may keep the memory, cannot use up the owner's budget. A user without a budget pays for nothing of others.
fn payer(admission: &Admission, scope: Scope, caller: &Caller) -> u32 {
    let uid = caller.peer.uid;
    if admission.has_no_budget(uid) { scope.uid } else { uid }
}

/// Has a caller pay for a pipe of another user that it opens, for which its owner has paid until now.
pub(super) fn have_paid(daemon: &mut Daemon, port: &PortKey, caller: &Caller) -> Result<(), Refusal> {
    let PortKey::Pipe(key) = port else { return Ok(()) };
    let (payer, record) = (payer(&daemon.admission, key.scope, caller), daemon.registry.port(port)?.record());
    if record.payer != key.scope.uid || payer == record.payer {
        return Ok(());
    }
    let region = daemon.registry.regions.existing(record.region)?;
    let amounts = record.usage_with_memory().and(region.amounts());
    daemon.check_budget(Scope { uid: payer, ..key.scope }, amounts)?;
    daemon.registry.set_payer(port, payer);
    Ok(())
}

/// Returns whose the pipes of a parent are that the caller names: of an interface or a switch port its own; of another
/// name those of the user to whom the policy gives it, or its own. Also returns whether users share them.
pub(super) fn owner(
    admission: &mut Admission,
    parent: &str,
    interface: Option<(Scope, Access)>,
    caller: &Caller,
) -> Result<(Scope, bool), Refusal> {
    if let Some((scope, _)) = interface {
        return Ok((scope, false));
    }
    let is_name = !parent.contains(':') && sinks::number(admission, parent, caller)?.is_none();
    let policy = if is_name { admission.policy()? } else { None };
    match policy.map_or(PipeOwner::Each, |policy| policy.pipe_owner(&caller.identity(policy), parent)) {
        PipeOwner::Shared(uid) => Ok((Scope { uid, netns: 0 }, true)),
        PipeOwner::Denied(uid) => refuse(
            EACCES,
            format!(
                "user {} asked for a pipe of {parent}, which the policy gives to user {uid} and does not share with it: \
                 choose another name, or have root add the user to the [[share]] (unetmap-policy(5))",
                caller.peer.uid
            ),
        ),
        PipeOwner::Each if admission.may_use_pipes(caller)? => Ok((admission.scope(caller), false)),
        PipeOwner::Each => refuse(EACCES, "this daemon serves pipes to other users only where its policy says so"),
    }
}

/// Returns the key of a pipe, if it exists: `key`, or that of another scope if its parent became an interface, or
/// ceased to be one, since the pipe was opened.
pub(super) fn find(registry: &Registry, admission: &Admission, key: &PipeKey, caller: &Caller) -> Option<PipeKey> {
    let own = admission.scope(caller);
    let exists = |scope: &Scope| {
        let key = PipeKey { scope: *scope, ..key.clone() };
        registry.port(&PortKey::Pipe(key)).is_ok()
    };
    let found = [key.scope, own].into_iter().find(exists).or_else(|| {
        // Most callers have no such pipe in any namespace, so theirs is not asked for.
        let beside = of_namespaces(registry, own.uid).any(|other| (&other.parent, &other.id) == (&key.parent, &key.id));
        beside.then(|| admission.interface_scope(caller)).filter(exists)
    })?;
    Some(PipeKey { scope: found, ..key.clone() })
}

/// A user's pipes whose parents are interfaces, in all network namespaces.
fn of_namespaces(registry: &Registry, uid: u32) -> impl Iterator<Item = &PipeKey> {
    let first = PipeKey { scope: Scope { uid, netns: 1 }, parent: String::new(), id: String::new() };
    registry.pipes_from(first).map(|pipe| &pipe.kind.key).take_while(move |key| key.scope.uid == uid)
}

/// Returns the copied end in place of an end of an existing pipe, if there is one.
pub(super) fn copied_end(registry: &Registry, pipe: &PipeKey, index: usize) -> Option<EndpointKey> {
    let at = CopiedEndKey { pipe: pipe.clone(), index }.copied();
    registry.port(&at.port).is_ok().then_some(at)
}

/// Returns the end of an existing pipe that a request gets: the pipe's own, or, if it is closed and the request names
/// another region, a copied one, which is created.
fn end_for_request(
    daemon: &mut Daemon,
    pipe: PipeKey,
    index: usize,
    request: &mut Asked<'_>,
    caller: &Caller,
) -> Result<EndpointKey, Refusal> {
    let mem_id = request.nr_mem_id;
    if let Some(copied) = copied_end(&daemon.registry, &pipe, index) {
        let region = daemon.registry.record(&copied.port)?.region;
        daemon.registry.regions.check_number("pipe's end", region, mem_id)?;
        return Ok(copied);
    }
    let key = CopiedEndKey { pipe, index };
    let at = key.original();
    let (endpoint, pipe_region) = daemon.registry.endpoint(&at)?;
    let (shape, in_use) = (endpoint.shape, endpoint.in_use());
    if in_use || mem_id == 0 {
        daemon.registry.regions.check_number("pipe", pipe_region, mem_id)?;
        return Ok(at);
    }
    let region = daemon.requested_region(mem_id, caller, request.memory)?;
    if region == pipe_region {
        return Ok(at);
    }
    let usage = Amounts::endpoints(2, shape).and(thread_usage(shape.pairs()));
    let checked = daemon.check_budget(key.pipe.scope, usage).and_then(|()| {
        daemon.check_buffers(pipe_region, 0, true)?;
        daemon.check_buffers(region, shape.most_buffers(), true)
    });
    let copied = key.copied();
    daemon.registry.add(copied.port.clone(), region, |region| {
        let record = checked.and_then(|()| pipe_rings::create(region, key.pipe.scope, (shape, key.role()), true));
        Ok(AnyPort::CopiedEnd(CopiedEnd::new(record?, key)))
    })?;
    Ok(copied)
}

/// Returns the region of a parent that is no interface opened directly. It is created if the parent has no pipe yet,
/// of these sizes.
fn region_of_parent(
    registry: &mut Registry,
    vale: &ValeState,
    (scope, parent): (Scope, &str),
    sizes: Sizes,
    memory: &mut RegionMemory,
) -> Result<RegionKey, Refusal> {
    let mediated = registry.all::<Mediated>().filter(|port| port.key.scope == scope && port.key.interface == parent);
    let mut regions = mediated.map(|port| port.record.region).chain(vale::region_of(registry, vale, scope, parent));
    let found = regions.next().or_else(|| registry.region_of_pipes(scope, parent));
    drop(regions);
    if let Some(region) = found {
        return Ok(region);
    }
    registry.regions.create_private(scope, parent, sizes, memory)
}

/// As [`region_of_parent`], in the memory of a virtual machine's device.
fn device_of_parent(
    registry: &mut Registry,
    vale: &ValeState,
    (scope, parent): (Scope, &str),
    sizes: Sizes,
) -> Result<RegionKey, Refusal> {
    let present = vale::region_of(registry, vale, scope, parent).or_else(|| registry.region_of_pipes(scope, parent));
    match present {
        None => registry.regions.create_device(scope, parent, sizes),
        Some(region) if registry.regions.existing(region)?.is_device() => Ok(region),
        Some(_) => refuse(
            EBUSY,
            format!("{parent} has ports outside of a virtual machine's device: close them, or choose another name"),
        ),
    }
}
