// SPDX-License-Identifier: BSD-2-Clause
//! Which port a name means: one that exists, or one that is created.

use unetmap_abi::*;
use unetmap_core::control::request::FORCE;
use unetmap_core::errno::EINVAL;

use super::copied_end;
use super::pipe::{self, PipeKey, Purpose, endpoint_index};
use super::port::{EndpointKey, PortKey};
use super::sessions::{Asked, Opening, Options};
use super::{mediated, monitor, nic, null, sink, vale};
use crate::caller::Caller;
use crate::daemon::Daemon;
use crate::policy::Access;
use crate::refusal::{Refusal, refuse};
use crate::region::RegionMemory;

impl Daemon {
    /// Begins to open a port for a client (REGISTER): the port exists.
    pub(crate) fn begin_open(
        &mut self,
        name: &str,
        request: &NmreqRegister,
        options: &Options,
        memory: &mut RegionMemory,
        caller: &Caller,
    ) -> Result<Opening, Refusal> {
        let spec = parse_port_name(name)?;
        let forced = request.nr_flags & FORCE != 0;
        let register = NmreqRegister { nr_flags: request.nr_flags & !FORCE, ..*request };
        let request = &mut Asked { register, memory };
        if matches!(request.nr_mode, NR_REG_PIPE_MASTER | NR_REG_PIPE_SLAVE) {
            return refuse(
                EINVAL,
                "the modes NR_REG_PIPE_* are those of the legacy request: name the pipe, parent{id or parent}id",
            );
        }
        let at = if request.nr_flags & (NR_MONITOR_TX | NR_MONITOR_RX | NR_ZCOPY_MON) != 0 {
            monitor::create(self, &spec, request, caller)?
        } else if request.nr_mode == NR_REG_NULL {
            null::create(self, &spec, request, caller)?
        } else {
            if !forced {
                nic::check_default_route(self, &spec, request, caller)?;
            }
            let at = self.find_or_create(&spec, request, caller, Purpose::Open)?;
            let allowed = self.registry.port(&at.port)?.check_request(request);
            allowed.inspect_err(|_| self.release_if_unused(&at.port))?;
            at
        };
        let chosen = self.choose_rings(at.clone(), name, request, options);
        chosen.inspect_err(|_| self.release_if_unused(&at.port))
    }

    /// Finds the pipe, the interface or the switch port, or creates it.
    fn find_or_create(
        &mut self,
        spec: &PortSpec,
        request: &mut Asked<'_>,
        caller: &Caller,
        purpose: Purpose,
    ) -> Result<EndpointKey, Refusal> {
        match (&spec.pipe, spec.kind) {
            (Some(pipe), _) => pipe::find_or_create(self, (&spec.parent, pipe), request, caller, purpose),
            (None, PortKind::Vale) => vale::find_or_create(self, spec, request, caller),
            (None, PortKind::Netmap) => match sink::number(&self.admission, &spec.parent, caller)? {
                Some(number) => sink::find_or_create(self, number, request, caller),
                None => nic::find_or_create(self, spec, request, caller),
            },
        }
    }

    /// Answers a question about a port without opening it, even if another session has it exclusively. A port that does
    /// not exist is created for the moment; the packets of an interface stay with the kernel.
    pub(crate) fn inspect<T>(
        &mut self,
        spec: &PortSpec,
        request: &NmreqRegister,
        caller: &Caller,
        question: impl FnOnce(&Daemon, &NmreqRegister) -> Result<T, Refusal>,
    ) -> Result<T, Refusal> {
        let asked = &mut Asked { register: *request, memory: &mut RegionMemory::AsUsed };
        let at = self.find_or_create(spec, asked, caller, Purpose::Inspect)?;
        let answer = self.answered_register(&at, request).and_then(|register| question(self, &register));
        self.release_if_unused(&at.port);
        answer
    }
}

/// Parses a name as requests carry it: without ring numbers, flags, region or options.
pub(crate) fn parse_port_name(name: &str) -> Result<PortSpec, Refusal> {
    let with_prefix =
        if name.starts_with(NM_BDG_NAME) && name.contains(':') { name.into() } else { format!("netmap:{name}") };
    // The client has already interpreted a '-'.
    match PortSpec::parse_with(&with_prefix, |_| true) {
        Ok(spec) if spec.name == name => Ok(spec),
        Ok(_) => refuse(EINVAL, "a request names only the port, without rings, flags or options"),
        Err(e) => refuse(EINVAL, e.message()),
    }
}

/// Returns the port that a program has open under the name in `spec`. For a mediated interface it is the daemon's port.
pub(super) fn find_open_port(daemon: &mut Daemon, spec: &PortSpec, caller: &Caller) -> Result<EndpointKey, Refusal> {
    let at = match (&spec.pipe, spec.kind) {
        (Some(pipe), _) => {
            let interface = nic::admitted_interface(daemon, &spec.parent, caller)?;
            let (scope, _) = pipe::owner(daemon, &spec.parent, interface, caller)?;
            let key = PipeKey { scope, parent: spec.parent.clone(), id: pipe.id.clone() };
            let key = pipe::find(daemon, &key, caller).unwrap_or(key);
            let index = endpoint_index(pipe.role);
            let copied = copied_end::find(&daemon.registry, &key, index);
            copied.unwrap_or(EndpointKey { port: PortKey::Pipe(key), index })
        }
        (None, PortKind::Vale) => {
            let key = vale::key_of(daemon, &spec.parent, caller)?;
            vale::program_port(&daemon.vale, key).into()
        }
        (None, PortKind::Netmap) => match sink::number(&daemon.admission, &spec.parent, caller)? {
            Some(number) => PortKey::Sink(daemon.admission.scope(caller), number).into(),
            None => find_open_interface(daemon, &spec.parent, caller)?.into(),
        },
    };
    match daemon.registry.endpoint(&at) {
        Ok((endpoint, _)) if endpoint.in_use() => Ok(at),
        _ => not_open(),
    }
}

fn find_open_interface(daemon: &mut Daemon, name: &str, caller: &Caller) -> Result<PortKey, Refusal> {
    let (link, access) = nic::admitted(daemon, name, caller)?;
    if let Some(hidden) = vale::persistent::of_link(&daemon.vale, &link, caller)? {
        return Ok(PortKey::Persistent(hidden));
    }
    let scope = daemon.admission.interface_scope(caller);
    let Some(nic) = nic::find(daemon, caller.netns_id(), link.index)? else { return not_open() };
    // One that the caller may open directly can be mediated, too: because of its header, or by an old kernel.
    let is_direct = access == Access::Direct && nic.scope == scope;
    let is_own = is_direct || mediated::find(&daemon.registry, nic.key, scope).is_some();
    if is_own { Ok(PortKey::Nic(nic.key)) } else { nic::in_use(daemon, nic) }
}

fn not_open<T>() -> Result<T, Refusal> {
    refuse(EINVAL, "no program has the port open, so there is nothing to monitor (open the port itself first)")
}
