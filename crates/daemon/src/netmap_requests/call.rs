// SPDX-License-Identifier: BSD-2-Clause
//! A netmap request that is being answered, and an open that waits.

use unetmap_abi::*;
use unetmap_core::control::request::NetmapRequest;
use unetmap_core::errno::EINVAL;
use zerocopy::{FromBytes, Immutable, IntoBytes};

use crate::caller::Caller;
use crate::daemon::Daemon;
use crate::needs;
use crate::ports::{Opening, Registered, parse_port_name};
use crate::refusal::{Refusal, refuse};
use crate::region::RegionKey;

/// A request that is being answered.
pub(super) struct Call<'a> {
    pub(super) daemon: &'a mut Daemon,
    /// The handler completes it.
    pub(super) request: NetmapRequest,
    pub(super) caller: &'a Caller,
    /// The session that the connection has already.
    pub(super) session: Option<u64>,
    pub(super) got: Got,
}

/// How far a request has come; when it is done, with the session that REGISTER has opened.
pub(super) type Opened = needs::Step<Option<Registered>, Box<Open>>;

/// A need of a request, with REGISTER's state.
pub(crate) type Needs = needs::Needs<Box<Open>>;
/// The result with which a request goes on.
pub(crate) type Got = needs::Got<Box<Open>>;

/// An open that waits for sockets. Its port exists, and has no session yet.
pub(crate) struct Open {
    /// As far as it is completed.
    pub(super) request: NetmapRequest,
    pub(super) opening: Opening,
    /// The region that it has created for the option EXTMEM.
    pub(super) extmem: Option<RegionKey>,
    pub(super) offsets: Option<NmreqOptOffsets>,
}

impl Open {
    /// Gives back all that it has taken.
    pub(crate) fn give_up(self, daemon: &mut Daemon) {
        daemon.give_up_open(&self.opening);
        self.extmem.into_iter().for_each(|region| daemon.registry.free_region_if_unused(region));
    }
}

impl Call<'_> {
    /// The name of the port.
    pub(super) fn name(&self) -> Result<String, Refusal> {
        match self.request.name() {
            Some(name) => Ok(name.into()),
            None => refuse(EINVAL, "the name is not text, or not terminated within 64 bytes"),
        }
    }

    pub(super) fn body<T: FromBytes>(&self) -> Result<T, Refusal> {
        let body = self.request.body_as();
        body.map_or_else(|| refuse(EINVAL, "the body does not have the size of the request's structure"), Ok)
    }

    pub(super) fn set_body(&mut self, body: &(impl IntoBytes + Immutable)) {
        self.request.body = body.as_bytes().to_vec();
    }

    /// Answers a question about the port `name`. A port that does not exist is created for the moment, as `request`
    /// says.
    pub(super) fn inspect<T>(
        &mut self,
        name: &str,
        request: NmreqRegister,
        question: impl FnOnce(&Daemon, &NmreqRegister) -> Result<T, Refusal>,
    ) -> Result<T, Refusal> {
        let register = NmreqRegister { nr_mode: NR_REG_ALL_NIC, ..request };
        self.daemon.inspect(&parse_port_name(name)?, &register, self.caller, question)
    }
}
