// SPDX-License-Identifier: BSD-2-Clause
//! Reading, in a thread of its own, what answering a request about an interface needs to know of it: the kernel
//! answers most questions about interfaces under its lock of the network configuration, which others may hold for long.
//!
//! ```text
//! control thread                                     thread
//! a request names an interface: it waits,  ------>   reads
//!   and others are served
//! it is answered by what was read          <------   done
//! ```
//! What could not be read is read again by the control thread, whose error explains it. A user has one survey at a
//! time, so that users with many requests delay nobody else's.

use std::collections::{BTreeSet, VecDeque};
use std::sync::Arc;

use unetmap_abi::{NETMAP_REQ_VALE_LIST, NmreqHeader, PortKind};
use unetmap_core::control::{ControlRequest, Kind, NetmapRequest, NicRequest};
use unetmap_sys::link::{Channels, DriverInfo, Link, XdpFeatures};
use unetmap_sys::netns::Netns;
use zerocopy::FromBytes as _;

use super::interface_tx_dropped;
use super::kernel_work::Done;
use super::lookup::may_have_interfaces;
use super::surveyed::Survey;
use crate::broker;
use crate::caller::Caller;
use crate::ports::{Daemon, parse_port_name};
use crate::privileged;
use crate::threads;
use crate::tuning::nic::MAX_SURVEYS;

/// That there is no such interface.
fn absent(name: String) -> Survey {
    Survey { name, link: Some(None), ..Default::default() }
}

fn read(netns: &Netns, name: String) -> Survey {
    let link = privileged::link_named(netns, &name).ok();
    let mut survey = Survey { netns: Some(netns.id()), name, link, ..Default::default() };
    if let Some(Some(link)) = &survey.link {
        survey.channels = privileged::channels(netns, &link.name).ok();
        survey.features = privileged::xdp_features(netns, link.index).ok();
        survey.driver = privileged::driver(netns, &link.name).ok();
        survey.default_routes = privileged::default_routes(netns).ok();
        survey.tx_dropped = Some(interface_tx_dropped(netns, link.index));
    }
    survey
}

/// What was read for the request of a caller; each is `None` if it must be read.
impl Caller {
    fn surveyed(&self) -> Option<&Survey> {
        self.survey.as_deref().filter(|survey| survey.netns.is_none_or(|netns| netns == self.netns_id()))
    }

    /// The interface of this name; the inner `None`: there is none.
    pub(super) fn surveyed_link(&self, name: &str) -> Option<Option<Link>> {
        self.surveyed().filter(|survey| survey.name == name)?.link.clone()
    }

    fn surveyed_index(&self, index: u32) -> Option<&Survey> {
        self.surveyed().filter(|survey| matches!(&survey.link, Some(Some(link)) if link.index == index))
    }

    pub(super) fn surveyed_channels(&self, index: u32) -> Option<Channels> {
        self.surveyed_index(index)?.channels
    }

    pub(super) fn surveyed_features(&self, index: u32) -> Option<Option<XdpFeatures>> {
        self.surveyed_index(index)?.features
    }

    pub(super) fn surveyed_driver(&self, index: u32) -> Option<Option<DriverInfo>> {
        self.surveyed_index(index)?.driver.clone()
    }

    pub(super) fn surveyed_default_routes(&self, index: u32) -> Option<Vec<u32>> {
        self.surveyed_index(index)?.default_routes.clone()
    }

    pub(super) fn surveyed_tx_dropped(&self, index: u32) -> Option<u64> {
        self.surveyed_index(index)?.tx_dropped
    }
}

/// A survey that is to be made for a connection.
struct Wanted {
    uid: u32,
    connection: u64,
    netns: Arc<Netns>,
    name: String,
}

/// The surveys.
#[derive(Default)]
pub(crate) struct Surveys {
    /// Users for whom one is being made.
    users: BTreeSet<u32>,
    waiting: VecDeque<Wanted>,
}

/// Whether a message waits for a survey.
pub(crate) enum Begun {
    /// It is not about an interface.
    Unneeded,
    /// It is known already.
    Known(Arc<Survey>),
    /// The connection's message is to be answered when it is done.
    Waits,
}

/// Begins to read what the message of a caller, on this connection, needs.
pub(crate) fn begin(daemon: &mut Daemon, message: (Kind, &[u8]), caller: &Caller, connection: u64) -> Begun {
    if daemon.admission.policy.is_none() || daemon.nics.work.sender().is_none() {
        return Begun::Unneeded;
    }
    let Some(name) = interface_of(message).filter(|_| matches!(may_have_interfaces(daemon, caller), Ok(true))) else {
        return Begun::Unneeded;
    };
    if caller.lacks_interface(&name) {
        return Begun::Known(Arc::new(absent(name)));
    }
    let Some(netns) = caller.netns().cloned() else { return Begun::Unneeded };
    daemon.nics.surveys.waiting.push_back(Wanted { uid: caller.peer.uid, connection, netns, name });
    start_some(daemon);
    Begun::Waits
}

/// A survey for this user is done: others can be made.
pub(super) fn ended(daemon: &mut Daemon, uid: u32) {
    daemon.nics.surveys.users.remove(&uid);
    start_some(daemon);
}

/// A connection does not wait any more.
pub(crate) fn forget(daemon: &mut Daemon, connection: u64) {
    daemon.nics.surveys.waiting.retain(|wanted| wanted.connection != connection);
}

/// The interface that a message may be about.
fn interface_of((kind, payload): (Kind, &[u8])) -> Option<String> {
    if kind == NicRequest::KIND {
        return NicRequest::decode(payload).ok().map(|request| request.interface);
    }
    let (header, _) = NmreqHeader::read_from_prefix(payload).ok().filter(|_| kind == NetmapRequest::KIND)?;
    let end = header.nr_name.iter().position(|&byte| byte == 0)?;
    let spec = parse_port_name(std::str::from_utf8(&header.nr_name[..end]).ok()?).ok()?;
    let is_listing = header.nr_reqtype == NETMAP_REQ_VALE_LIST;
    (spec.kind == PortKind::Netmap && !is_listing).then_some(spec.parent)
}

/// Starts threads for those that wait, as far as may be.
fn start_some(daemon: &mut Daemon) {
    while daemon.nics.surveys.users.len() < MAX_SURVEYS {
        let Surveys { users, waiting } = &mut daemon.nics.surveys;
        let Some(at) = waiting.iter().position(|wanted| !users.contains(&wanted.uid)) else { return };
        let Some(Wanted { uid, connection, netns, name }) = waiting.remove(at) else { return };
        let Some(sender) = daemon.nics.work.sender() else { return };
        let again = (sender.clone(), netns.clone(), name.clone());
        let work = move || {
            let survey = broker::beside_control(|| Box::new(read(&netns, name)));
            sender.send(Done::Survey { uid, connection, survey });
        };
        daemon.nics.surveys.users.insert(uid);
        if let Err(e) = threads::start("survey", work) {
            tracing::warn!("no thread reads about an interface, so all requests wait for it: {e}");
            let (sender, netns, name) = again;
            sender.send(Done::Survey { uid, connection, survey: Box::new(read(&netns, name)) });
        }
    }
}
