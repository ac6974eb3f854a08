// SPDX-License-Identifier: BSD-2-Clause
//! Opening a port by its name, and questions about ports.

use unetmap_abi::*;
use unetmap_core::control::request::FORCE;
use unetmap_core::errno::EINVAL;

use super::key::parse_port_name;
use super::pipes::Purpose;
use super::register::{Asked, Opening, Options};
use super::{monitor, nic, sinks};
use crate::caller::Caller;
use crate::daemon::Daemon;
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
            monitor::check_request(request)?;
            let watched = self.find_open_port(&spec, caller)?;
            monitor::create(self, (watched, &spec.name), request, caller)?
        } else if request.nr_mode == NR_REG_NULL {
            sinks::create_null(self, &spec, request, caller)?
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
