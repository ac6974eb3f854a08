// SPDX-License-Identifier: BSD-2-Clause
//! Opening and closing the sockets of an interface, in a thread of its own: the kernel takes tens of milliseconds to
//! attach a program or to lock the buffers in memory, and a driver may take seconds.
//!
//! ```text
//! control thread                                thread
//! an open needs sockets: the interface    --->  opens them
//!   goes away, the open waits
//! others are served
//! the interface is back: before all else  <---  done, or why not
//!   the open goes on, and binds them
//! ```
//! Closing is the same, without an open. Other requests about an interface that is away wait before they do anything.
//! Opens of the daemon itself, for root's switches, are not divided: the control thread opens their sockets.

use std::collections::BTreeSet;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel, sync_channel};

use unetmap_sys::Doorbell;
use unetmap_sys::link::Link;
use unetmap_sys::netns::Netns;

use super::faults::Fault;
use super::lookup::{behind, port_mut};
use super::port::NicPort;
use super::surveyed::Survey;
use super::turns::InterfaceTurns;
use super::{Nic, NicKey};
use crate::broker;
use crate::endpoint::RingSelection;
use crate::ports::{EndpointKey, PortKey, Registry};
use crate::privileged;
use crate::refusal::Refusal;
use crate::threads;

/// A piece of work on an interface.
pub(super) enum Work {
    /// Opens what these rings need.
    Open(RingSelection),
    /// Closes what no session has bound.
    Close,
    /// Brings what belongs to the interface into its new state.
    Follow,
}

/// The result of a thread.
pub(super) enum Done {
    /// An interface is back.
    Interface(Box<Nic>, Result<(), Refusal>),
    /// The interfaces of a namespace were read.
    Links { netns: u64, links: io::Result<Vec<Link>> },
    /// Which of these namespaces are in use.
    Namespaces { asked: BTreeSet<u64>, used: io::Result<Vec<u64>> },
    /// An interface has handed on frames that are not those on the wire.
    Faulty(NicKey, Fault),
    /// The facts that request `number` needs were read; `uid`: the user for whom it counts.
    Survey { uid: u32, number: u64, survey: Box<Survey> },
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
    /// Ports that opens which wait will bind: one of an interface, as other requests about it wait until it is back.
    pub(crate) opening: BTreeSet<PortKey>,
    /// The requests that wait for interfaces.
    pub(crate) turns: InterfaceTurns,
    /// Interfaces of which something may be closed.
    pub(super) unneeded: BTreeSet<NicKey>,
}

impl KernelWork {
    /// Has threads do the work from now on.
    pub(super) fn use_threads(&mut self) -> io::Result<()> {
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

/// Has a thread open the sockets that a session on these rings needs, whose port is kept meanwhile. Returns the
/// interface; `None`: they are open, or no thread can.
pub(crate) fn begin_to_open(
    registry: &mut Registry,
    work: &mut KernelWork,
    at: &EndpointKey,
    selection: &RingSelection,
) -> Option<NicKey> {
    let key = behind(registry, at)?;
    registry.nic(&PortKey::Nic(key)).filter(|nic| !nic.has_open(selection))?;
    start(registry, work, key, Work::Open(selection.clone()))?;
    work.opening.insert(at.port.clone());
    Some(key)
}

/// Returns what a thread has done.
pub(super) fn next_done(work: &KernelWork) -> Option<Done> {
    let (DoneSender(_, doorbell), receiver) = work.channel.as_ref()?;
    doorbell.clear();
    receiver.try_recv().ok()
}

/// Has a thread read the interfaces of a namespace; returns `false` if no thread can.
pub(super) fn read_links(work: &KernelWork, netns: &Arc<Netns>) -> bool {
    let Some(sender) = work.sender() else { return false };
    let netns = netns.clone();
    let read = move || {
        let links = broker::beside_control(|| privileged::links(&netns));
        sender.send(Done::Links { netns: netns.id(), links });
    };
    threads::start("interfaces", read).is_ok()
}

/// Has a thread do work; returns `None` if no thread can.
pub(super) fn start(registry: &mut Registry, threads: &KernelWork, key: NicKey, work: Work) -> Option<()> {
    let sender = threads.sender()?;
    let is_open = matches!(work, Work::Open(_));
    let (give, take) = sync_channel::<Box<Nic>>(1);
    let run = move || {
        let Ok(mut nic) = take.recv() else { return };
        let result = broker::beside_control(|| nic.work(&work));
        sender.send(Done::Interface(nic, result));
    };
    if let Err(e) = crate::threads::start("interface", run) {
        tracing::warn!("no thread opens or closes an interface, so all requests wait for it: {e}");
        return None;
    }
    let nic = port_mut(registry, key)?.send_away(is_open)?;
    give.send(nic).ok()
}

impl Nic {
    fn work(&mut self, work: &Work) -> Result<(), Refusal> {
        match work {
            Work::Open(selection) => {
                self.open_or_close(selection)?;
                if !self.is_hidden {
                    self.read_name();
                }
                Ok(())
            }
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

    /// Reads its name by its index. It may have been renamed after it was found by its former name, and before its
    /// changes were watched; the policy is asked about it again.
    fn read_name(&mut self) {
        let Ok(Some(link)) = privileged::link(&self.netns, self.key.index) else { return };
        if link.name != self.name {
            tracing::info!(from = self.name, to = link.name, "interface renamed while it was opened");
            self.name = link.name;
        }
    }

    /// Opens what `selection` needs. On failure nothing has changed.
    pub(super) fn open_or_close(&mut self, selection: &RingSelection) -> Result<(), Refusal> {
        let opened = self.open_sockets(selection);
        opened.inspect_err(|_| self.close_unused_sockets())
    }

    /// Whether all that `selection` needs is open.
    fn has_open(&self, selection: &RingSelection) -> bool {
        if let Some(packets) = &self.packets {
            return packets.has_open(selection);
        }
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
        let bound = |pair: usize| self.endpoint.binds_pair(pair);
        let is_unneeded = |(pair, queue): (usize, &Option<super::queue::OpenQueue>)| {
            let (sends, receives) = bound(pair);
            queue.as_ref().is_some_and(|open| self.gone || !sends && !receives || open.in_xdp_map && !receives)
        };
        let is_idle = |mut pairs: std::ops::Range<usize>| self.gone || pairs.all(|pair| bound(pair) == (false, false));
        let (nic, host) = (0..own, own..self.queues.len());
        self.has_unneeded_packets()
            || self.queues.iter().enumerate().any(is_unneeded)
            || is_idle(nic.clone()) && (self.xdp.is_some() || self.offloads.is_some() || self.relay.is_some())
            || is_idle(host.clone()) && self.host.has_veth()
            || is_idle(nic) && is_idle(host) && self.host.is_attached()
    }
}

/// Has threads bring what belongs to the interfaces of a namespace into their new states.
pub(super) fn follow(registry: &mut Registry, work: &KernelWork, netns: u64) {
    let ports = registry.all::<NicPort>().filter(|port| port.key.netns == netns);
    let behind = ports.filter(|port| port.here().is_some_and(Nic::must_follow)).map(|port| port.key);
    for key in behind.collect::<Vec<_>>() {
        if start(registry, work, key, Work::Follow).is_none() {
            registry.nic_mut(&PortKey::Nic(key)).into_iter().for_each(Nic::follow);
        }
    }
}
