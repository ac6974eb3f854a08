// SPDX-License-Identifier: BSD-2-Clause
//! Pipes: two endpoints in one region, joined by a channel for each ring pair and direction.
//!
//! ```text
//! channel i             master tx i --> slave rx i
//! channel tx_rings + i  slave tx i  --> master rx i
//! ```

use serde::{Deserialize, Serialize};
use unetmap_abi::{PipeEnd, PipeRole};
use unetmap_core::control::request::NR_DEVICE;
use unetmap_core::errno::{EACCES, EBUSY, EINVAL};

use super::copied_end;
use super::mediated::Mediated;
use super::snapshot::PortSnapshot;
use super::vale::{self, persistent};
use super::{AnyPort, Asked, Daemon, EndpointKey, PortKey, Registry, nic, pipe_rings, sink};
use crate::budget::Amounts;
use crate::caller::Caller;
use crate::policy::{Access, PipeOwner};
use crate::refusal::{Refusal, refuse};
use crate::region::{RegionKey, RegionMemory, Scope, Sizes};
use crate::registry::Port;
use crate::shape::{EndpointShape, MAX_PIPE_RINGS};

/// Pipes of one parent.
const MAX_PIPES: usize = 64;

/// Identifies a pipe.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize, Deserialize)]
pub(crate) struct PipeKey {
    pub(crate) scope: Scope,
    pub(crate) parent: String,
    pub(crate) id: String,
}

/// A pipe between two programs. It exists as long as one of its endpoints is open.
pub(crate) struct Pipe {
    pub(super) key: PipeKey,
}

/// Why a pipe is found or created.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Purpose {
    /// A session is opened on it.
    Open,
    /// A question is answered, after which a new pipe is released: it needs no rings for that.
    Inspect,
}

/// The index of an endpoint.
pub(super) fn endpoint_index(role: PipeRole) -> usize {
    match role {
        PipeRole::Master => 0,
        PipeRole::Slave => 1,
    }
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
    let (scope, is_shared) = owner(daemon, parent, interface, caller)?;
    let key = PipeKey { scope, parent: parent.into(), id: spec.id.clone() };
    let index = endpoint_index(spec.role);
    if let Some(existing) = find(daemon, &key, caller) {
        return copied_end::find_or_create(daemon, existing, index, request, caller);
    }
    let at = EndpointKey { port: PortKey::Pipe(key.clone()), index };
    if children(&daemon.registry, scope, parent).count() >= MAX_PIPES {
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
    daemon.check_budget(scope, Amounts::endpoints(2, shape).and(Amounts::region(sizes.bufs.0)))?;
    let region = match (request.nr_mem_id, interface) {
        (0, Some((_, access))) => match (persistent::region_of(daemon, parent, caller)?, access) {
            (Some(region), _) => region,
            (None, Access::Direct) => {
                let link = nic::find_link(parent, caller)?;
                let zero_copy =
                    link.is_some_and(|link| nic::expects_zero_copy(&mut daemon.nics.settings, &link, caller));
                daemon.interface_region(caller, 0, zero_copy, request.memory)?
            }
            (None, Access::Mediated) => region_of_parent(daemon, (scope, parent), sizes, request.memory)?,
        },
        (0, None) if request.nr_flags & NR_DEVICE != 0 => device_of_parent(daemon, scope, parent, sizes)?,
        (0, None) if sink::number(&daemon.admission, parent, caller)?.is_some() => {
            daemon.requested_region(1, caller, request.memory)?
        }
        (0, _) => region_of_parent(daemon, (scope, parent), sizes, request.memory)?,
        (mem_id, _) => daemon.requested_region(mem_id, caller, request.memory)?,
    };
    let record = daemon.registry.regions.existing_mut(region)?;
    let created = match purpose {
        Purpose::Open => pipe_rings::create(record, scope, (shape, spec.role), false),
        Purpose::Inspect => pipe_rings::without_rings(record, scope, (shape, spec.role)),
    };
    let record = created.inspect_err(|_| daemon.registry.free_region_if_unused(region))?;
    daemon.registry.insert(at.port.clone(), AnyPort::Pipe(Port { record, kind: Pipe { key } }));
    Ok(at)
}

/// Returns whose the pipes of a parent are that the caller names: of an interface or a switch port its own; of another
/// name those of the user to whom the policy gives it, or its own. Also returns whether users share them.
pub(super) fn owner(
    daemon: &mut Daemon,
    parent: &str,
    interface: Option<(Scope, Access)>,
    caller: &Caller,
) -> Result<(Scope, bool), Refusal> {
    if let Some((scope, _)) = interface {
        return Ok((scope, false));
    }
    let is_name = !parent.contains(':') && sink::number(&daemon.admission, parent, caller)?.is_none();
    let policy = if is_name { daemon.admission.policy()? } else { None };
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
        PipeOwner::Each if daemon.admission.may_use_pipes(caller)? => Ok((daemon.admission.scope(caller), false)),
        PipeOwner::Each => refuse(EACCES, "this daemon serves pipes to other users only where its policy says so"),
    }
}

/// Returns the key of a pipe, if it exists: `key`, or that of another scope if its parent became an interface, or
/// ceased to be one, since the pipe was opened.
pub(super) fn find(daemon: &Daemon, key: &PipeKey, caller: &Caller) -> Option<PipeKey> {
    let own = daemon.admission.scope(caller);
    let exists = |scope: &Scope| {
        let key = PipeKey { scope: *scope, ..key.clone() };
        daemon.registry.port(&PortKey::Pipe(key)).is_ok()
    };
    let found = [key.scope, own].into_iter().find(exists).or_else(|| {
        // Most callers have no such pipe in any namespace, so theirs is not asked for.
        let beside =
            of_namespaces(&daemon.registry, own.uid).any(|other| (&other.parent, &other.id) == (&key.parent, &key.id));
        beside.then(|| daemon.admission.interface_scope(caller)).filter(exists)
    })?;
    Some(PipeKey { scope: found, ..key.clone() })
}

/// A user's pipes whose parents are interfaces, in all network namespaces.
fn of_namespaces(registry: &Registry, uid: u32) -> impl Iterator<Item = &PipeKey> {
    let first = PipeKey { scope: Scope { uid, netns: 1 }, parent: String::new(), id: String::new() };
    registry.pipes_from(first).map(|pipe| &pipe.kind.key).take_while(move |key| key.scope.uid == uid)
}

/// Returns the region of a parent that is no interface opened directly. It is created if the parent has no pipe yet,
/// of these sizes.
fn region_of_parent(
    daemon: &mut Daemon,
    (scope, parent): (Scope, &str),
    sizes: Sizes,
    memory: &mut RegionMemory,
) -> Result<RegionKey, Refusal> {
    let registry = &daemon.registry;
    let mediated = registry.all::<Mediated>().filter(|port| port.key.scope == scope && port.key.interface == parent);
    let mut regions = mediated.map(|port| port.record.region).chain(vale::region_of(daemon, scope, parent));
    let found = regions.next().or_else(|| region_of_pipes(&daemon.registry, scope, parent));
    drop(regions);
    if let Some(region) = found {
        return Ok(region);
    }
    daemon.registry.regions.create_private(scope, parent, sizes, memory)
}

/// As [`region_of_parent`], in the memory of a virtual machine's device.
fn device_of_parent(daemon: &mut Daemon, scope: Scope, parent: &str, sizes: Sizes) -> Result<RegionKey, Refusal> {
    let present = vale::region_of(daemon, scope, parent).or_else(|| region_of_pipes(&daemon.registry, scope, parent));
    match present {
        None => daemon.registry.regions.create_device(scope, parent, sizes),
        Some(region) if daemon.registry.regions.existing(region)?.is_device() => Ok(region),
        Some(_) => refuse(
            EBUSY,
            format!("{parent} has ports outside of a virtual machine's device: close them, or choose another name"),
        ),
    }
}

/// Returns the region of the pipes that a parent has, if it has any.
pub(crate) fn region_of_pipes(registry: &Registry, scope: Scope, parent: &str) -> Option<RegionKey> {
    children(registry, scope, parent).next()
}

/// The regions of a parent's pipes, one for each.
fn children(registry: &Registry, scope: Scope, parent: &str) -> impl Iterator<Item = RegionKey> {
    let first = PipeKey { scope, parent: parent.into(), id: String::new() };
    let pipes = registry.pipes_from(first).take_while(move |pipe| pipe.key.scope == scope && pipe.key.parent == parent);
    pipes.map(|pipe| pipe.record.region)
}

impl Port<Pipe> {
    /// Both ends, which people see as two ports.
    pub(super) fn snapshots(&self, mem_id: u16) -> Vec<PortSnapshot> {
        let PipeKey { scope, parent, id } = &self.key;
        let names = [format!("{parent}{{{id}"), format!("{parent}}}{id}")];
        let snapshot = |(index, name)| PortSnapshot {
            uid: Some(scope.uid),
            ..PortSnapshot::new(name, "pipe", mem_id, (&self.record, index))
        };
        names.into_iter().enumerate().map(snapshot).collect()
    }
}
