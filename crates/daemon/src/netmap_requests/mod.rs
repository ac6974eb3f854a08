// SPDX-License-Identifier: BSD-2-Clause
//! netmap's requests (`NIOCCTRL`): each number and the function that answers it.
//!
//! To add a request: write its handler in the file of its subject, and add a row to [`HANDLERS`]. Numbers that are not
//! in the table are refused as netmap refuses them.

mod call;
mod extmem;
mod info;
mod register;
mod switch;

use std::mem;
use std::os::fd::OwnedFd;

use unetmap_abi::*;
use unetmap_core::control::request::{NetmapReply, NetmapRequest};
use unetmap_core::errno::{EINVAL, ENXIO, EOPNOTSUPP};
use zerocopy::IntoBytes;

use crate::caller::Caller;
use crate::needs;
use crate::ports::Daemon;
use crate::ports::nic::survey::{Named, first_need};
use crate::refusal::{Refusal, refuse};

use call::{Call, Opened};
pub(crate) use call::{Got, Needs, Open};

/// The answer to a request, and what it changed.
pub(crate) struct Outcome {
    pub(crate) errno: i32,
    pub(crate) answer: NetmapReply,
    pub(crate) fds: Vec<OwnedFd>,
    /// Whether it was refused for a reason that passes by itself within moments.
    pub(crate) passes: bool,
    /// The session that the connection has from now on, if the request opened one.
    pub(crate) session: Option<u64>,
}

/// How far a request has come.
pub(crate) type Step = needs::Step<Outcome, Box<Open>>;

/// Answers a request.
enum Handler {
    /// Completes the request, or refuses it.
    Completes(fn(&mut Call<'_>) -> Result<(), Refusal>),
    /// The same, if it needs nothing before; it opens a session.
    Opens(fn(&mut Call<'_>) -> Result<Opened, Refusal>),
}
use Handler::{Completes, Opens};

/// The name of each request, and its handler.
const HANDLERS: [(u16, &str, Handler); 12] = [
    (NETMAP_REQ_REGISTER, "REGISTER", Opens(register::register)),
    (NETMAP_REQ_PORT_INFO_GET, "PORT_INFO_GET", Completes(info::port_info)),
    (NETMAP_REQ_POOLS_INFO_GET, "POOLS_INFO_GET", Completes(info::pools_info)),
    (NETMAP_REQ_PORT_HDR_GET, "PORT_HDR_GET", Completes(info::port_header)),
    (NETMAP_REQ_PORT_HDR_SET, "PORT_HDR_SET", Completes(info::set_port_header)),
    (NETMAP_REQ_VALE_LIST, "VALE_LIST", Completes(switch::list)),
    (NETMAP_REQ_VALE_ATTACH, "VALE_ATTACH", Completes(switch::attach)),
    (NETMAP_REQ_VALE_DETACH, "VALE_DETACH", Completes(switch::detach)),
    (NETMAP_REQ_VALE_NEWIF, "VALE_NEWIF", Completes(switch::create_persistent)),
    (NETMAP_REQ_VALE_DELIF, "VALE_DELIF", Completes(switch::delete_persistent)),
    (NETMAP_REQ_VALE_POLLING_ENABLE, "VALE_POLLING_ENABLE", Completes(switch::start_polling)),
    (NETMAP_REQ_VALE_POLLING_DISABLE, "VALE_POLLING_DISABLE", Completes(switch::stop_polling)),
];

/// The name of a request; `None` if it is not served.
pub(crate) fn name(number: u16) -> Option<&'static str> {
    HANDLERS.iter().find(|(of, ..)| *of == number).map(|(_, name, _)| *name)
}

/// Answers a request of a client, which may have a session already, with what it got if it has waited.
pub(crate) fn answer(
    daemon: &mut Daemon,
    request: NetmapRequest,
    caller: &mut Caller,
    session: Option<u64>,
    got: Got,
) -> Step {
    let first = match got {
        Got::Sockets(..) => Ok(None),
        _ => {
            let returning = unserved(daemon, &request, caller).map(|of| Needs::Returning(of, got.rounds()));
            let open = (&daemon.registry, &daemon.nics.work, &daemon.vale);
            returning.map_or_else(
                || first_need(&mut daemon.admission, open, Named::of_request(&request), caller, &got),
                |needs| Ok(Some(needs)),
            )
        }
    };
    let mut call = Call { daemon, request, caller, session, got };
    let opened = first.and_then(|first| first.map_or_else(|| call.answer(), |needs| Ok(Opened::Needs(needs))));
    let (refusal, registered) = match opened {
        Ok(Opened::Needs(needs)) => return Step::Needs(needs),
        Ok(Opened::Done(registered)) => (None, registered),
        Err(refusal) => (Some(refusal), None),
    };
    let (binding, fds, session) = match registered {
        Some(registered) => (registered.bound.encode(), registered.fds, Some(registered.session)),
        None => (Vec::new(), Vec::new(), None),
    };
    let (errno, reason, passes) = refusal.map_or((0, String::new(), false), |r| (r.errno, r.why, r.passes));
    Step::Done(Outcome { errno, answer: NetmapReply { request: call.request, reason, binding }, fds, passes, session })
}

/// Returns the port of an earlier daemon that a request about a port of a switch waits for, as
/// [`Returning::behind_name`]; a list of ports waits for all.
///
/// [`Returning::behind_name`]: crate::ports::vale::returning::Returning::behind_name
fn unserved(daemon: &Daemon, request: &NetmapRequest, caller: &Caller) -> Option<Option<u32>> {
    let returning = &daemon.vale.returning;
    if request.header.nr_reqtype == NETMAP_REQ_VALE_LIST {
        return returning.awaits(None).then_some(None);
    }
    returning.behind_name(daemon.admission.scope(caller), request.name()?)
}

/// Repeats the answer to REGISTER, with its descriptors, for a process that was passed the connection.
pub(crate) fn repeat_answer(daemon: &Daemon, session: Option<u64>) -> Outcome {
    let repeated = match session {
        Some(session) => daemon.repeat_answer(session),
        None => refuse(ENXIO, "no port is bound to this file"),
    };
    let (errno, why, name, body, bound, fds) = match repeated {
        Ok((name, r)) => (0, String::new(), name, r.register.as_bytes().to_vec(), r.bound.encode(), r.fds),
        Err(Refusal { errno, why, .. }) => {
            (errno, why, String::new(), NmreqRegister::default().as_bytes().to_vec(), Vec::new(), Vec::new())
        }
    };
    // A name that was registered fits.
    let header = NmreqHeader { nr_version: NETMAP_API, nr_reqtype: NETMAP_REQ_REGISTER, ..Default::default() };
    let request = NetmapRequest::new(NETMAP_REQ_REGISTER, &name, &body);
    let request = request.unwrap_or(NetmapRequest { header, body, options: Vec::new() });
    Outcome { errno, answer: NetmapReply { request, reason: why, binding: bound }, fds, passes: false, session }
}

impl Call<'_> {
    fn answer(&mut self) -> Result<Opened, Refusal> {
        self.got = match mem::take(&mut self.got) {
            Got::Sockets(open, opened) => return register::go_on(self, *open, opened),
            got => got,
        };
        self.daemon.admission.check_admission(self.caller)?;
        // Client libraries check this, too.
        let options = self.request.check_options();
        options.or_else(|errno| refuse(errno, "an option does not exist, or is given twice"))?;
        let number = self.request.header.nr_reqtype;
        match HANDLERS.iter().find(|(of, ..)| *of == number) {
            Some((.., Completes(handler))) => handler(self).map(|()| Opened::Done(None)),
            Some((.., Opens(handler))) => handler(self),
            None => refuse_unserved(number, self.session),
        }
    }
}

/// Refuses a request that has no handler, with netmap's error for a port that has no control blocks.
fn refuse_unserved<T>(number: u16, session: Option<u64>) -> Result<T, Refusal> {
    match number {
        NETMAP_REQ_SYNC_KLOOP_START | NETMAP_REQ_SYNC_KLOOP_STOP if session.is_none() => {
            refuse(ENXIO, "no port is bound to this file")
        }
        NETMAP_REQ_SYNC_KLOOP_START => refuse(EINVAL, "a sync loop needs control blocks (the option CSB)"),
        NETMAP_REQ_CSB_ENABLE => refuse(EINVAL, "control blocks are enabled with the option CSB"),
        other => refuse(EOPNOTSUPP, format!("request {other} is not served")),
    }
}
