// SPDX-License-Identifier: BSD-2-Clause
//! An interface in the registry. While a thread opens or closes its sockets (`kernel_work`) the interface is *away*:
//! then only what is here is known of it, and what concerns it is done when it is back.

use std::mem;
use std::os::fd::BorrowedFd;
use std::sync::{Mutex, PoisonError};

use unetmap_abi::NmreqRegister;
use unetmap_core::control::binding::BoundRing;

use super::packets;
use super::refusals::{check_header, no_such_interface, refuse_away};
use super::{Nic, NicKey, SavedNic, other_usage};
use crate::descriptors::Outgoing;
use crate::endpoint::{PortRing, RingSelection};
use crate::ports::snapshot::PortSnapshot;
use crate::refusal::Refusal;
use crate::region::SharedPage;
use crate::registry::{BufferRepair, Port, Record};

/// An open interface.
pub(crate) struct NicPort {
    pub(crate) key: NicKey,
    /// Bytes of the virtio-net header before each packet of programs that have its packet sockets; else 0.
    header: u8,
    state: State,
}

enum State {
    Here(Box<Nic>),
    Away(Away),
}

/// An interface that a thread has.
struct Away {
    name: String,
    /// Rings of sessions that were closed meanwhile.
    unbound: Vec<RingSelection>,
    /// Holder IDs of processes that exited meanwhile.
    exited: Mutex<Vec<u32>>,
    /// Whether sockets are being opened.
    is_open: bool,
}

impl NicPort {
    /// An open interface; `sent` is the page of its transmitted frames.
    pub(in crate::ports) fn new(nic: Nic, sent: SharedPage) -> Port<NicPort> {
        let record = Record {
            page: Some(sent),
            locks_buffers: true,
            other_usage: other_usage(nic.endpoint.shape)
                .and(nic.packets.as_ref().map(|_| packets::usage()).unwrap_or_default()),
            ..Record::new(nic.region, nic.scope, [nic.endpoint.clone()], BufferRepair::Slots)
        };
        let (key, header) = (nic.key, nic.packets.as_ref().map_or(0, |packets| packets.header));
        Port { record, kind: NicPort { key, header, state: State::Here(Box::new(nic)) } }
    }

    /// The interface; `None` while it is away.
    pub(crate) fn here(&self) -> Option<&Nic> {
        match &self.state {
            State::Here(nic) => Some(nic),
            State::Away(_) => None,
        }
    }

    /// The same, mutable.
    pub(crate) fn here_mut(&mut self) -> Option<&mut Nic> {
        match &mut self.state {
            State::Here(nic) => Some(nic),
            State::Away(_) => None,
        }
    }

    /// Whether a thread opens sockets of it.
    pub(crate) fn is_being_opened(&self) -> bool {
        matches!(&self.state, State::Away(away) if away.is_open)
    }

    /// Refuses a program that does not accept the header.
    pub(in crate::ports) fn check_request(&self, request: &NmreqRegister) -> Result<(), Refusal> {
        check_header(self.header, request)
    }

    /// Whether packets can begin behind the start of their buffers.
    pub(in crate::ports) fn supports_offsets(&self) -> bool {
        self.header == 0
    }

    /// Hands the interface over, to have sockets opened or for another reason; `None` if it is away already.
    pub(super) fn send_away(&mut self, is_open: bool) -> Option<Box<Nic>> {
        let nic = self.here()?;
        let away = Away { name: nic.name.clone(), unbound: Vec::new(), exited: Mutex::default(), is_open };
        match mem::replace(&mut self.state, State::Away(away)) {
            State::Here(nic) => Some(nic),
            State::Away(_) => None,
        }
    }
}

impl Port<NicPort> {
    /// Takes the interface back, and does what could not be done meanwhile. Returns whether sessions were closed.
    pub(super) fn take_back(&mut self, nic: Box<Nic>) -> bool {
        let State::Away(Away { unbound, exited, .. }) = mem::replace(&mut self.state, State::Here(nic)) else {
            return false;
        };
        unbound.iter().for_each(|selection| self.unbind(selection));
        let exited = exited.into_inner().unwrap_or_else(PoisonError::into_inner);
        exited.into_iter().for_each(|holder| _ = self.break_locks(holder));
        !unbound.is_empty()
    }

    /// Frees every lock that the exited process with this holder ID held: now, or when the interface is back.
    pub(in crate::ports) fn break_locks(&self, holder: u32) -> usize {
        match &self.state {
            State::Here(nic) => nic.break_locks(holder),
            State::Away(away) => {
                away.exited.lock().unwrap_or_else(PoisonError::into_inner).push(holder);
                0
            }
        }
    }

    pub(in crate::ports) fn check_headroom(&self, selection: &RingSelection, headroom: u32) -> Result<(), Refusal> {
        self.here().map_or(Ok(()), |nic| nic.check_open_headroom(selection, headroom))
    }

    /// Opens what no thread has opened: for sessions of the daemon's own.
    pub(in crate::ports) fn prepare(&mut self, selection: &RingSelection) -> Result<(), Refusal> {
        match self.here_mut() {
            None => refuse_away(),
            // While the open waited.
            Some(nic) if nic.gone => no_such_interface(),
            Some(nic) => nic.open_or_close(selection),
        }
    }

    pub(in crate::ports) fn bind(&mut self, selection: &RingSelection) {
        self.here_mut().into_iter().for_each(|nic| nic.bind(selection));
    }

    pub(in crate::ports) fn describe_ring<'a>(
        &'a self,
        ring: &'a PortRing,
        bound_ring: &mut BoundRing,
    ) -> Result<BorrowedFd<'a>, Refusal> {
        self.here().map_or_else(refuse_away, |nic| nic.describe_ring(ring, bound_ring))
    }

    /// The sockets are closed afterwards, by a thread.
    pub(in crate::ports) fn unbind(&mut self, selection: &RingSelection) {
        match &mut self.state {
            State::Here(nic) => nic.unbind(selection),
            State::Away(away) => away.unbound.push(selection.clone()),
        }
    }

    /// If nothing of it is open.
    pub(in crate::ports) fn is_releasable(&self) -> bool {
        self.here().is_some_and(|nic| !nic.has_unneeded())
    }

    pub(in crate::ports) fn save<'a>(&'a self, fds: &mut Outgoing<'a>) -> Result<SavedNic, Refusal> {
        let nic = self.here().map_or_else(refuse_away, Ok)?;
        Ok(nic.save(fds))
    }

    pub(in crate::ports) fn snapshot(&self, mem_id: u16) -> PortSnapshot {
        let of = |name: &str| PortSnapshot {
            serial: Some(self.key.serial),
            ..PortSnapshot::new(name.into(), "nic", mem_id, (&self.record, 0))
        };
        match &self.state {
            State::Here(nic) => nic.snapshot(of(&nic.name)),
            State::Away(away) => PortSnapshot { manner: Some("being opened or closed".into()), ..of(&away.name) },
        }
    }

    /// The interface, for the snapshot of a port in front of it; `None` while it is away.
    pub(in crate::ports) fn snapshot_if_here(&self, mem_id: u16) -> Option<PortSnapshot> {
        self.here().map(|_| self.snapshot(mem_id))
    }
}
