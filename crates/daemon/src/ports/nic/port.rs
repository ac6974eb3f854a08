// SPDX-License-Identifier: BSD-2-Clause
//! An interface in the registry. While a thread opens or closes its sockets (`kernel_work`) the interface is *away*:
//! then only what is here is known of it, and what concerns it is done when it is back.

use std::mem;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::slice;
use std::sync::{Arc, Mutex, PoisonError};

use unetmap_core::control::binding::BoundRing;
use unetmap_core::errno::EAGAIN;

use super::{Nic, NicKey, no_such_interface, other_usage, unwatch_if_unused};
use crate::budget::Amounts;
use crate::descriptors::Outgoing;
use crate::endpoint::{Endpoint, PortRing, RingSelection};
use crate::ports::snapshot::PortSnapshot;
use crate::ports::{Daemon, Description, Port, PortKey, Registry, SavedPort};
use crate::refusal::{Refusal, refuse};
use crate::region::{DAEMON_UID, RegionKey, Scope};
use crate::registry::{BufferRepair, PortRecord};

/// An open interface.
pub(crate) struct NicPort {
    pub(crate) key: NicKey,
    pub(crate) scope: Scope,
    region: RegionKey,
    /// The page of transmitted frames, and its bytes.
    sent: (OwnedFd, usize),
    /// The user for whom it was opened.
    pub(super) opened_for: u32,
    state: State,
}

enum State {
    Here(Box<Nic>),
    Away(Away),
}

/// An interface that a thread has.
struct Away {
    endpoint: Arc<Endpoint>,
    name: String,
    /// What sessions had bound that were closed meanwhile.
    unbound: Vec<RingSelection>,
    /// Holder IDs of processes that exited meanwhile.
    exited: Mutex<Vec<u32>>,
    /// Whether sockets are being opened.
    is_open: bool,
}

/// Refuses what concerns an interface that is away.
pub(super) fn refuse_away<T>() -> Result<T, Refusal> {
    refuse(EAGAIN, "the interface is being opened or closed for another session: try again")
}

impl NicPort {
    /// The interface that user `opened_for` opens; `sent` is the page of its transmitted frames.
    pub(super) fn new(nic: Nic, sent: (OwnedFd, usize), opened_for: u32) -> NicPort {
        let (key, scope, region) = (nic.key, nic.scope, nic.region);
        NicPort { key, scope, region, sent, opened_for, state: State::Here(Box::new(nic)) }
    }

    /// The interface; `None` while it is away.
    pub(crate) fn here(&self) -> Option<&Nic> {
        match &self.state {
            State::Here(nic) => Some(nic),
            State::Away(_) => None,
        }
    }

    /// Whether a thread opens sockets of it.
    pub(crate) fn is_being_opened(&self) -> bool {
        matches!(&self.state, State::Away(away) if away.is_open)
    }

    /// The same, mutable.
    pub(crate) fn here_mut(&mut self) -> Option<&mut Nic> {
        match &mut self.state {
            State::Here(nic) => Some(nic),
            State::Away(_) => None,
        }
    }

    /// Hands the interface over, to have sockets opened or for another reason; `None` if it is away already.
    pub(super) fn send_away(&mut self, is_open: bool) -> Option<Box<Nic>> {
        let nic = self.here()?;
        let (endpoint, name) = (nic.endpoint.clone(), nic.name.clone());
        let away = Away { endpoint, name, unbound: Vec::new(), exited: Mutex::default(), is_open };
        match mem::replace(&mut self.state, State::Away(away)) {
            State::Here(nic) => Some(nic),
            State::Away(_) => None,
        }
    }

    /// Takes the interface back, and does what could not be done meanwhile. Returns whether sessions were closed.
    pub(super) fn take_back(&mut self, nic: Box<Nic>) -> bool {
        let State::Away(away) = mem::replace(&mut self.state, State::Here(nic)) else { return false };
        let Away { endpoint, unbound, exited, .. } = away;
        // From here on the interface is the only one that has it.
        drop(endpoint);
        unbound.iter().for_each(|selection| self.unbind(0, selection));
        let exited = exited.into_inner().unwrap_or_else(PoisonError::into_inner);
        exited.into_iter().for_each(|holder| _ = self.break_locks(holder));
        !unbound.is_empty()
    }

    fn endpoint(&self) -> &Endpoint {
        match &self.state {
            State::Here(nic) => &nic.endpoint,
            State::Away(away) => &away.endpoint,
        }
    }
}

impl Registry {
    /// The interface that is this port, unless it is away.
    pub(crate) fn nic(&self, key: &PortKey) -> Option<&Nic> {
        self.get::<NicPort>(key)?.here()
    }

    /// The same, mutable.
    pub(crate) fn nic_mut(&mut self, key: &PortKey) -> Option<&mut Nic> {
        self.get_mut::<NicPort>(key)?.here_mut()
    }
}

impl PortRecord for NicPort {
    fn region(&self) -> RegionKey {
        self.region
    }

    fn endpoints(&self) -> &[Endpoint] {
        slice::from_ref(self.endpoint())
    }

    fn buffer_repair(&self) -> BufferRepair<'_> {
        BufferRepair::Slots(None)
    }

    fn break_locks(&self, holder: u32) -> usize {
        match &self.state {
            State::Here(nic) => nic.break_locks(holder),
            State::Away(away) => {
                away.exited.lock().unwrap_or_else(PoisonError::into_inner).push(holder);
                0
            }
        }
    }
}

impl Port for NicPort {
    fn endpoint_mut(&mut self, _index: usize) -> Option<&mut Endpoint> {
        Arc::get_mut(&mut self.here_mut()?.endpoint)
    }

    fn check_headroom(&self, selection: &RingSelection, headroom: u32) -> Result<(), Refusal> {
        self.here().map_or(Ok(()), |nic| nic.check_open_headroom(selection, headroom))
    }

    fn zero_copy_obstacle(&self) -> Option<&'static str> {
        (self.scope.uid == DAEMON_UID).then_some("the daemon runs this interface, in memory that no program shares")
    }

    /// Opens what no thread has opened: for sessions of the daemon's own.
    fn prepare(&mut self, selection: &RingSelection) -> Result<(), Refusal> {
        match self.here_mut() {
            None => refuse_away(),
            // While the open waited.
            Some(nic) if nic.gone => no_such_interface(),
            Some(nic) => nic.open_or_close(selection),
        }
    }

    fn bind(&mut self, _index: usize, selection: &RingSelection) {
        self.here_mut().into_iter().for_each(|nic| nic.bind(selection));
    }

    fn describe(&self, _index: usize) -> Description<'_> {
        let (page, page_bytes) = (Some(self.sent.0.as_fd()), self.sent.1);
        Description { page, page_offset: 0, page_bytes, mirror_pools: Default::default() }
    }

    fn describe_ring<'a>(
        &'a self,
        _daemon: &Daemon,
        _index: usize,
        ring: &'a PortRing,
        bound_ring: &mut BoundRing,
    ) -> Result<BorrowedFd<'a>, Refusal> {
        self.here().map_or_else(refuse_away, |nic| nic.describe_ring(ring, bound_ring))
    }

    /// The sockets are closed afterwards, by a thread.
    fn unbind(&mut self, _index: usize, selection: &RingSelection) {
        match &mut self.state {
            State::Here(nic) => nic.unbind(selection),
            State::Away(away) => away.unbound.push(selection.clone()),
        }
    }

    /// If nothing of it is open.
    fn is_releasable(&self, _daemon: &Daemon) -> bool {
        self.here().is_some_and(|nic| !nic.has_unneeded())
    }

    fn release(self: Box<Self>, daemon: &mut Daemon) -> Vec<Endpoint> {
        unwatch_if_unused(daemon, self.key.netns);
        match self.state {
            State::Here(nic) => Arc::into_inner(nic.endpoint).into_iter().collect(),
            State::Away(_) => Vec::new(),
        }
    }

    fn save<'a>(&'a self, fds: &mut Outgoing<'a>) -> Result<SavedPort, Refusal> {
        let nic = self.here().map_or_else(refuse_away, Ok)?;
        Ok(SavedPort::Nic(Box::new(nic.save((&self.sent.0, self.opened_for), fds))))
    }

    fn owner(&self) -> u32 {
        self.scope.uid
    }

    fn other_usage(&self) -> Amounts {
        other_usage(self.endpoint().shape)
    }

    fn snapshot(&self, daemon: &Daemon) -> Vec<PortSnapshot> {
        match &self.state {
            State::Here(nic) => nic.snapshot(daemon),
            State::Away(away) => {
                let mem_id = daemon.registry.regions.mem_id(self.region);
                let port = PortSnapshot::new(away.name.clone(), "nic", mem_id, &away.endpoint, None);
                vec![PortSnapshot { manner: Some("being opened or closed".into()), ..port }]
            }
        }
    }
}
