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
//! The control thread reads again what could not be read, and its error explains it. A user, with its subordinate
//! users, has one survey at a time, so that users with many requests delay nobody else's.

use std::collections::{BTreeSet, VecDeque};
use std::sync::Arc;

use unetmap_abi::{NETMAP_REQ_VALE_ATTACH, NETMAP_REQ_VALE_LIST, PortKind};
use unetmap_core::control::NetmapRequest;
use unetmap_sys::link::Link;
use unetmap_sys::netns::Netns;

use super::kernel_work::{Done, KernelWork};
use super::lookup::{is_away, may_have_interfaces};
use super::read_back;
use super::refusals::refuse_away;
use super::surveyed::{Place, Survey, Wanted};
use crate::broker;
use crate::caller::Caller;
use crate::needs::{Got, Needs};
use crate::ports::vale::ValeState;
use crate::ports::{Admission, Registry, parse_port_name};
use crate::privileged;
use crate::refusal::Refusal;
use crate::subordinates::Subordinates;
use crate::threads;
use crate::tuning::nic::{MAX_ROUNDS, MAX_SURVEYS};

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
        survey.unfinished = read_back::lasting(netns, link);
        survey.tx_dropped = Some(privileged::tx_dropped(netns, link.index));
    }
    survey
}

/// Facts about the interface that the request of a caller names; those that are `None` must be read.
impl Caller {
    fn surveyed_there(&self, is_it: impl Fn(&Survey) -> bool) -> Option<&Survey> {
        let is_here = |survey: &&Survey| survey.netns.is_none_or(|netns| netns == self.netns_id());
        self.survey.as_deref().filter(|survey| is_it(survey)).filter(is_here)
    }

    /// The interface of this name; the inner `None`: there is none.
    pub(super) fn surveyed_link(&self, name: &str) -> Option<Option<Link>> {
        self.surveyed_there(|survey| survey.name == name)?.link.clone()
    }

    /// The interface of this index.
    pub(super) fn surveyed(&self, index: u32) -> Option<&Survey> {
        self.surveyed_there(|survey| matches!(&survey.link, Some(Some(link)) if link.index == index))
    }
}

/// The surveys.
#[derive(Default)]
pub(crate) struct Surveys {
    /// Users for whom one is being made: the owners of subordinate users in their place.
    users: BTreeSet<u32>,
    /// With the numbers of the requests that need them.
    waiting: VecDeque<(u64, Wanted)>,
}

impl Surveys {
    /// Has a thread read what request `number` needs: before all that wait, if others wait for it (`is_awaited`).
    pub(crate) fn begin(&mut self, work: &KernelWork, (number, is_awaited): (u64, bool), wanted: Wanted) {
        if is_awaited {
            self.waiting.push_front((number, wanted));
        } else {
            self.waiting.push_back((number, wanted));
        }
        self.start_some(work);
    }

    /// A survey for this user is done: others can be made.
    pub(super) fn ended(&mut self, work: &KernelWork, uid: u32) {
        self.users.remove(&uid);
        self.start_some(work);
    }

    /// A request does not wait any more.
    pub(crate) fn forget(&mut self, number: u64) {
        self.waiting.retain(|(of, _)| *of != number);
    }

    /// Takes the first that may be made now, and the user for whom it counts.
    fn take_next(&mut self, subordinates: &Subordinates) -> Option<(u32, u64, Wanted)> {
        let Surveys { users, waiting } = self;
        if users.len() >= MAX_SURVEYS {
            return None;
        }
        let owner = |wanted: &Wanted| subordinates.owner(wanted.uid);
        let at = waiting.iter().position(|(_, wanted)| !users.contains(&owner(wanted)))?;
        let (number, wanted) = waiting.remove(at)?;
        users.insert(owner(&wanted));
        Some((owner(&wanted), number, wanted))
    }

    /// Starts threads for those that wait, as far as may be.
    fn start_some(&mut self, work: &KernelWork) {
        let Some(sender) = work.sender() else { return };
        let subordinates = Subordinates::of_system();
        while let Some((uid, number, Wanted { netns, name, .. })) = self.take_next(&subordinates) {
            let sender = sender.clone();
            let again = (sender.clone(), netns.clone(), name.clone());
            let read_it = move || {
                let survey = broker::beside_control(|| Box::new(read(&netns, name)));
                sender.send(Done::Survey { uid, number, survey });
            };
            if let Err(e) = threads::start("survey", read_it) {
                tracing::warn!("no thread reads about an interface, so all requests wait for it: {e}");
                let (sender, netns, name) = again;
                sender.send(Done::Survey { uid, number, survey: Box::new(read(&netns, name)) });
            }
        }
    }
}

/// An interface that a request names.
pub(crate) struct Named {
    name: String,
    /// Whether the request is about its port, too, which must be here.
    is_port: bool,
}

/// Returns the first need of a request that names an interface, or gives the caller what is known of it.
pub(crate) fn first_need<S>(
    admission: &mut Admission,
    (registry, work, vale): (&Registry, &KernelWork, &ValeState),
    named: Option<Named>,
    caller: &mut Caller,
    got: &Got<S>,
) -> Result<Option<Needs<S>>, Refusal> {
    let rounds = got.rounds();
    if let Got::Survey(survey, _) = got {
        caller.survey = Some(survey.clone());
    }
    let is_divided = admission.policy.is_some() && work.sender().is_some();
    let named = named.filter(|_| is_divided && matches!(may_have_interfaces(admission, caller), Ok(true)));
    let Some(Named { name, is_port }) = named else { return Ok(None) };
    if caller.survey.is_none() {
        if caller.lacks_interface(&name) {
            caller.survey = Some(Arc::new(absent(name)));
            return Ok(None);
        }
        let wanted = |netns| Needs::Survey(Wanted { uid: caller.peer.uid, netns, name }, rounds);
        return Ok(caller.netns().cloned().map(wanted));
    }
    let link = caller.surveyed_link(&name).flatten();
    if let Some(hidden) = link.as_ref().and_then(|link| vale.returning.behind_link(&vale.persistent, link, caller)) {
        caller.survey = None;
        return Ok(Some(Needs::Returning(Some(hidden), rounds)));
    }
    let place = link.filter(|_| is_port).map(|link| (caller.netns_id(), link.index));
    // One that has waited has the turn.
    let is_others = |place: Place| rounds == 0 && work.turns.is_wanted(place);
    let place = place.filter(|place| is_away(registry, *place) || is_others(*place));
    if place.is_some() {
        // It grows old.
        caller.survey = None;
    }
    place.map(|place| wait_for(place, rounds)).transpose()
}

/// Has a request wait for its turn at an interface, unless it has found it away at so many turns.
pub(crate) fn wait_for<S>(place: Place, rounds: u32) -> Result<Needs<S>, Refusal> {
    if rounds < MAX_ROUNDS { Ok(Needs::Interface(place, rounds + 1)) } else { refuse_away() }
}

impl Named {
    /// The interface of this name, and its port.
    pub(crate) fn port(name: String) -> Named {
        Named { name, is_port: true }
    }

    /// The interface that a netmap request may be about. Ports that are attached to a switch have its name, too.
    pub(crate) fn of_request(request: &NetmapRequest) -> Option<Named> {
        let name = request.name()?;
        let number = request.header.nr_reqtype;
        if number == NETMAP_REQ_VALE_ATTACH {
            return Some(Named::port(name.split_once(':')?.1.into()));
        }
        let spec = parse_port_name(name).ok()?;
        let is_its = spec.kind == PortKind::Netmap && number != NETMAP_REQ_VALE_LIST;
        is_its.then(|| Named { is_port: spec.pipe.is_none(), name: spec.parent })
    }
}

#[cfg(test)]
mod tests {
    use unetmap_core::errno::EAGAIN;

    use super::*;

    #[test]
    fn subordinate_users_have_one_survey_at_a_time() {
        let netns = Arc::new(Netns::current().expect("our own namespace"));
        let subordinates = Subordinates::parse("1000:100000:1000", |_| None);
        let mut surveys = Surveys::default();
        for (number, uid) in [1000].into_iter().chain(100_000..100_100).chain([1001, 1002]).enumerate() {
            let wanted = Wanted { uid, netns: netns.clone(), name: "x".into() };
            surveys.waiting.push_back((number as u64, wanted));
        }
        let mut next = || surveys.take_next(&subordinates).map(|(of, number, _)| (of, number));
        assert_eq!([(); 4].map(|()| next()), [Some((1000, 0)), Some((1001, 101)), Some((1002, 102)), None]);
        surveys.users.remove(&1000);
        assert_eq!(surveys.take_next(&subordinates).map(|(of, number, _)| (of, number)), Some((1000, 1)));
    }

    #[test]
    fn one_that_others_wait_for_is_read_about_first() {
        let (mut surveys, work) = (Surveys::default(), KernelWork::default());
        let netns = Arc::new(Netns::current().expect("our own namespace"));
        for (number, is_awaited) in [(2, false), (4, false), (6, true)] {
            surveys.begin(&work, (number, is_awaited), Wanted { uid: 1, netns: netns.clone(), name: "x".into() });
        }
        let next = surveys.take_next(&Subordinates::default());
        assert_eq!(next.map(|(_, number, _)| number), Some(6));
    }

    #[test]
    fn a_request_waits_for_an_interface_so_often_only() {
        let (place, mut rounds) = ((1, 2), 0);
        let refusal = loop {
            match wait_for::<()>(place, rounds) {
                Ok(Needs::Interface(of, again)) => {
                    assert_eq!((of, again), (place, rounds + 1));
                    // Memory that it waits for in between changes nothing.
                    rounds = Got::<()>::Memory(None, Got::<()>::Interface(again).rounds()).rounds();
                }
                Ok(_) => panic!("it needs the interface"),
                Err(refusal) => break refusal,
            }
        };
        assert_eq!((rounds, refusal.errno), (MAX_ROUNDS, EAGAIN));
    }
}
