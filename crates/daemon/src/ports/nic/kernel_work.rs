// SPDX-License-Identifier: BSD-2-Clause
//! Opening and closing the sockets of an interface, in a thread of its own: the kernel takes tens of milliseconds to
//! attach a program or to lock the buffers in memory, and a driver may take seconds.
//!
//! ```text
//! control thread                                thread
//! a request needs sockets: the interface  --->  opens them
//!   goes away, the request waits
//! others are served
//! the interface is back                   <---  done, or why not
//! the request is answered again, from the
//!   start, and finds them open
//! ```
//! Closing is the same, without a request. Another request about an interface that is away waits, too, and is answered
//! again then. What a session needs that is answered again stays open until it was. Requests of the daemon itself, for
//! root's switches, are not divided: the control thread opens their sockets.

use std::cell::Cell;
use std::collections::BTreeSet;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel, sync_channel};

use unetmap_core::errno::EAGAIN;
use unetmap_sys::link::Link;
use unetmap_sys::netns::Netns;
use unetmap_sys::{Doorbell, process};

use super::port::{NicPort, is_away, refuse_away};
use super::surveyed::Survey;
use super::{Nic, NicKey};
use crate::awaited::Awaited;
use crate::broker;
use crate::caller::Caller;
use crate::endpoint::RingSelection;
use crate::ports::mediated::Mediated;
use crate::ports::{Daemon, EndpointKey, PortKey};
use crate::privileged;
use crate::refusal::Refusal;
use crate::threads;
use crate::tuning::nic::MAX_ROUNDS;

/// What is done to an interface.
pub(super) enum Work {
    /// Opens what these rings need.
    Open(RingSelection),
    /// Closes what no session has bound.
    Close,
    /// Brings what belongs to the interface into its new state.
    Follow,
}

/// What a thread has done.
pub(super) enum Done {
    /// An interface is back.
    Interface { nic: Box<Nic>, number: u64, result: Result<(), Refusal> },
    /// The interfaces of a namespace were read.
    Links { netns: u64, links: io::Result<Vec<Link>> },
    /// Which of these namespaces are in use.
    Namespaces { asked: BTreeSet<u64>, used: io::Result<Vec<u64>> },
    /// What a message of a connection waits for was read, for this user.
    Survey { uid: u32, connection: u64, survey: Box<Survey> },
}

/// Where a thread leaves what it has done.
#[derive(Clone)]
pub(super) struct DoneSender(Sender<Done>, Arc<Doorbell>);

impl DoneSender {
    /// Does nothing when the daemon exits.
    pub(super) fn send(&self, done: Done) {
        if self.0.send(done).is_ok() {
            self.1.notify();
        }
    }
}

/// The threads, as the control thread sees them.
#[derive(Default)]
pub(crate) struct KernelWork {
    /// `None`: there are no threads.
    channel: Option<(DoneSender, Receiver<Done>)>,
    last: u64,
    /// What the request that is being answered must wait for.
    pub(super) awaited: Cell<Option<Awaited>>,
    /// Interfaces of which something may be closed.
    pub(super) unneeded: BTreeSet<NicKey>,
}

impl KernelWork {
    /// Has threads do the work from now on.
    pub(crate) fn use_threads(&mut self) -> io::Result<()> {
        let (sender, receiver) = channel();
        self.channel = Some((DoneSender(sender, Arc::new(Doorbell::new()?)), receiver));
        Ok(())
    }

    /// For a new thread; `None`: there are no threads.
    pub(super) fn sender(&self) -> Option<DoneSender> {
        self.channel.as_ref().map(|(sender, _)| sender.clone())
    }

    /// Readable when a thread has done something: for [`super::settle::take_back`].
    pub(crate) fn doorbell(&self) -> Option<BorrowedFd<'_>> {
        self.channel.as_ref().map(|(DoneSender(_, doorbell), _)| doorbell.as_fd())
    }

    /// The same doorbell, for another thread.
    pub(crate) fn shared_doorbell(&self) -> Option<Arc<Doorbell>> {
        self.channel.as_ref().map(|(DoneSender(_, doorbell), _)| doorbell.clone())
    }

    /// Something of the interface may be unneeded now.
    pub(crate) fn check_later(&mut self, nic: NicKey) {
        self.unneeded.insert(nic);
    }
}

/// Begins to answer a request.
pub(crate) fn begin_request(daemon: &Daemon) {
    daemon.nics.work.awaited.set(None);
}

/// Ends a request, which `resumes` after it has waited: if it was refused because an interface is away, returns what it
/// waits for, after which it is to be answered again.
pub(crate) fn end_request(daemon: &mut Daemon, errno: i32, resumes: Option<Awaited>) -> Option<Awaited> {
    let rounds = resumes.map_or(0, |before| before.rounds + 1);
    let awaited = daemon.nics.work.awaited.take().filter(|_| errno == EAGAIN && rounds <= MAX_ROUNDS);
    let awaited = awaited.map(|awaited| Awaited { rounds, ..awaited });
    if let Some(awaited) = awaited
        && let Some(port) = port_mut(daemon, awaited.nic)
    {
        port.waiters += 1;
        port.opener = awaited.work.or(port.opener);
    }
    resumes.into_iter().for_each(|before| end_wait(daemon, before));
    awaited
}

/// A request does not wait any more.
pub(crate) fn end_wait(daemon: &mut Daemon, awaited: Awaited) {
    if let Some(port) = port_mut(daemon, awaited.nic) {
        port.waiters = port.waiters.saturating_sub(1);
        port.opener.take_if(|opener| awaited.work == Some(*opener));
        daemon.nics.work.check_later(awaited.nic);
    }
}

pub(super) fn port_mut(daemon: &mut Daemon, nic: NicKey) -> Option<&mut NicPort> {
    daemon.registry.get_mut(&PortKey::Nic(nic))
}

/// Whether any interface of a namespace is away.
pub(super) fn any_is_away(daemon: &Daemon, netns: u64) -> bool {
    daemon.registry.all::<NicPort>().any(|port| port.key.netns == netns && port.here().is_none())
}

/// Has a thread open the sockets that a session on these rings needs, unless they are open, or the daemon itself opens
/// the session.
pub(crate) fn open_queues(
    daemon: &mut Daemon,
    at: &EndpointKey,
    selection: &RingSelection,
    caller: &Caller,
) -> Result<(), Refusal> {
    let key = match &at.port {
        PortKey::Nic(key) => *key,
        // Its rings have the numbers of the interface's.
        PortKey::Mediated(_) if at.index == 0 => match daemon.registry.get::<Mediated>(&at.port) {
            Some(port) => port.nic(),
            None => return Ok(()),
        },
        _ => return Ok(()),
    };
    let Some(port) = port_mut(daemon, key) else { return Ok(()) };
    let Some(nic) = port.here() else { return is_away(daemon, key) };
    if nic.has_open(selection) || caller.peer.pid == process::pid() {
        return Ok(());
    }
    let begun = caller.resumes.and_then(|awaited| awaited.work);
    if let Some((_, refusal)) = port.failed.take_if(|(number, _)| Some(*number) == begun) {
        return Err(refusal);
    }
    match start(daemon, key, Work::Open(selection.clone())) {
        None => Ok(()),
        Some(number) => {
            daemon.nics.work.awaited.set(Some(Awaited { nic: key, work: Some(number), rounds: 0 }));
            refuse_away()
        }
    }
}

/// Returns what a thread has done.
pub(super) fn next_done(daemon: &Daemon) -> Option<Done> {
    let (DoneSender(_, doorbell), receiver) = daemon.nics.work.channel.as_ref()?;
    doorbell.clear();
    receiver.try_recv().ok()
}

/// Has a thread read the interfaces of a namespace; returns `false` if no thread can.
pub(super) fn read_links(daemon: &Daemon, netns: &Arc<Netns>) -> bool {
    let Some(sender) = daemon.nics.work.sender() else { return false };
    let netns = netns.clone();
    let read = move || {
        let links = broker::beside_control(|| privileged::links(&netns));
        sender.send(Done::Links { netns: netns.id(), links });
    };
    threads::start("interfaces", read).is_ok()
}

/// Has a thread do work; returns its number, or `None` if no thread can.
pub(super) fn start(daemon: &mut Daemon, key: NicKey, work: Work) -> Option<u64> {
    let (sender, number) = (daemon.nics.work.sender()?, daemon.nics.work.last + 1);
    let (give, take) = sync_channel::<Box<Nic>>(1);
    let run = move || {
        let Ok(mut nic) = take.recv() else { return };
        let result = broker::beside_control(|| nic.work(&work));
        sender.send(Done::Interface { nic, number, result });
    };
    let thread = threads::start("interface", run);
    if let Err(e) = thread {
        tracing::warn!("no thread opens or closes an interface, so all requests wait for it: {e}");
        return None;
    }
    let nic = port_mut(daemon, key)?.send_away()?;
    daemon.nics.work.last = number;
    give.send(nic).ok()?;
    Some(number)
}

impl Nic {
    fn work(&mut self, work: &Work) -> Result<(), Refusal> {
        match work {
            Work::Open(selection) => self.open_or_close(selection),
            Work::Close => {
                self.close_unused_sockets();
                Ok(())
            }
            Work::Follow => {
                self.follow();
                Ok(())
            }
        }
    }

    /// Opens what `selection` needs. On failure nothing has changed.
    pub(super) fn open_or_close(&mut self, selection: &RingSelection) -> Result<(), Refusal> {
        let opened = self.open_sockets(selection);
        opened.inspect_err(|_| self.close_unused_sockets())
    }

    /// Whether all that `selection` needs is open.
    fn has_open(&self, selection: &RingSelection) -> bool {
        let own = self.endpoint.shape.nic_pairs();
        let is_open = |pair: usize, receives: bool| {
            self.queues[pair].as_ref().is_some_and(|queue| queue.in_xdp_map || !receives)
                && (pair >= own || self.xdp.is_some())
        };
        selection.tx.iter().all(|&ring| is_open(self.endpoint.tx[ring].pair, false))
            && selection.rx.iter().all(|&ring| is_open(self.endpoint.rx[ring].pair, true))
    }

    /// Whether anything is open that no session has bound.
    pub(super) fn has_unneeded(&self) -> bool {
        let own = self.endpoint.shape.nic_pairs();
        let bound = |pair: usize| {
            let is_bound =
                |rings: &[crate::endpoint::PortRing]| rings.iter().any(|ring| ring.pair == pair && ring.binders() > 0);
            (is_bound(&self.endpoint.tx), is_bound(&self.endpoint.rx))
        };
        let is_unneeded = |(pair, queue): (usize, &Option<super::OpenQueue>)| {
            let (sends, receives) = bound(pair);
            queue.as_ref().is_some_and(|open| self.gone || !sends && !receives || open.in_xdp_map && !receives)
        };
        let is_idle = |mut pairs: std::ops::Range<usize>| self.gone || pairs.all(|pair| bound(pair) == (false, false));
        let (nic, host) = (0..own, own..self.queues.len());
        self.queues.iter().enumerate().any(is_unneeded)
            || is_idle(nic.clone()) && (self.xdp.is_some() || self.offloads.is_some() || self.relay.is_some())
            || is_idle(host.clone()) && self.host.has_veth()
            || is_idle(nic) && is_idle(host) && self.host.is_attached()
    }
}

/// Has threads bring what belongs to the interfaces of a namespace into their new states.
pub(super) fn follow(daemon: &mut Daemon, netns: u64) {
    let ports = daemon.registry.all::<NicPort>().filter(|port| port.key.netns == netns);
    let behind = ports.filter(|port| port.here().is_some_and(Nic::must_follow)).map(|port| port.key);
    for key in behind.collect::<Vec<_>>() {
        if start(daemon, key, Work::Follow).is_none() {
            daemon.registry.nic_mut(&PortKey::Nic(key)).into_iter().for_each(Nic::follow);
        }
    }
}
