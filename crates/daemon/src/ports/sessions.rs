// SPDX-License-Identifier: BSD-2-Clause
//! Sessions: opening one binds rings of a port for a client, closing it frees everything that the client held.

use std::os::fd::OwnedFd;
use std::sync::Arc;

use unetmap_abi::*;
use unetmap_core::errno::{ENOMEM, ENXIO, EOPNOTSUPP};
use unetmap_sys::process;

use super::answer::iface_shape;
use super::register::{Opening, Options, Registered};
use super::{Daemon, EndpointKey, Session, monitor, nic, pipes};
use crate::budget::{Amounts, PAGE, Resource};
use crate::caller::Caller;
use crate::endpoint::RingSelection;
use crate::events::{By, What};
use crate::offsets::OffsetLayout;
use crate::refusal::{Refusal, refuse};
use crate::region::{Need, RegionKey, RegionMemory, Scope};
use crate::shape::wanted_place;
use crate::tuning::region::{MAX_EXTRA, MAX_EXTRA_BYTES_OF_USER};
use crate::user_arena::UserArena;

/// The process of a session, for events.
fn by(session: &Session) -> By {
    By { pid: session.pid, program: session.program.clone() }
}

impl Daemon {
    /// Opens a session of the daemon's own on an endpoint of a port that exists.
    pub(crate) fn open_session(
        &mut self,
        at: EndpointKey,
        name: &str,
        request: &NmreqRegister,
        options: &Options,
        caller: &Caller,
    ) -> Result<Registered, Refusal> {
        let opening = self.choose_rings(at, name, request, options)?;
        self.open(opening, caller)
    }

    /// Begins to open a session on an endpoint of a port that exists: chooses its rings, and sets their offsets.
    pub(super) fn choose_rings(
        &mut self,
        at: EndpointKey,
        name: &str,
        request: &NmreqRegister,
        options: &Options,
    ) -> Result<Opening, Refusal> {
        let (endpoint, region) = self.registry.endpoint(&at)?;
        let selection = endpoint.select(request)?;
        let offsets = self.set_offsets(&at, &selection, options).map_err(|r| r.of_option(NETMAP_REQ_OPT_OFFSETS))?;
        self.extra_buffers(region, request)?;
        self.registry.endpoint(&at)?.0.open(&selection)?;
        Ok(Opening { at, name: name.into(), request: *request, selection, offsets })
    }

    /// Completes an open that has waited for sockets; `result` is that of opening them.
    pub(crate) fn finish_open(
        &mut self,
        opening: Opening,
        result: Result<(), Refusal>,
        caller: &Caller,
    ) -> Result<Registered, Refusal> {
        let port = opening.at.port.clone();
        self.nics.work.opening.remove(&port);
        let opened = result.and_then(|()| self.open(opening, caller));
        opened.inspect_err(|_| self.release_if_unused(&port))
    }

    /// An open that waits for sockets ends.
    pub(crate) fn give_up_open(&mut self, opening: &Opening) {
        self.nics.work.opening.remove(&opening.at.port);
        self.release_if_unused(&opening.at.port);
    }

    /// Opens a session on the rings that were chosen.
    fn open(&mut self, opening: Opening, caller: &Caller) -> Result<Registered, Refusal> {
        let Opening { at, name, request, selection, offsets } = opening;
        let key = process::random();
        let key = key.or_else(|e| refuse(ENOMEM, format!("no random number for the session: {e}")))?;
        let (endpoint, region) = self.registry.endpoint(&at)?;
        let iface_shape =
            iface_shape(self.registry.record(&at.port)?.name.as_deref().unwrap_or(&name), endpoint, &selection);
        pipes::have_paid(self, &at.port, caller)?;
        let extra = self.extra_buffers(region, &request)?;
        self.registry.port_mut(&at.port)?.prepare(&selection)?;
        let record = self.registry.regions.existing_mut(region)?;
        let created = record.create_iface(&iface_shape, extra, wanted_place(&request).map(|(iface, _)| iface));
        let (iface, iface_offset, extra) = match created {
            Ok(created) => {
                record.sessions += 1;
                created
            }
            Err(refusal) => return Err(refusal),
        };
        let is_first = !self.registry.endpoint(&at)?.0.in_use();
        self.registry.port_mut(&at.port)?.bind(at.index, &selection);
        let session = Session {
            port: at.port.clone(),
            endpoint: at.index,
            name,
            pid: caller.peer.pid,
            program: process::program_name(caller.peer.pid),
            uid: caller.peer.uid,
            region,
            selection,
            key,
            request,
            iface,
            iface_offset,
            extra,
            serves: None,
            can_ask: caller.is_connected(),
            descriptors: None,
        };
        // From here on the session is registered, so that closing it undoes all of this.
        let id = self.registry.add_session(session);
        self.log_opened(id, is_first);
        let answer = self.session_answer(id);
        let opened = self.session_opened(&at);
        let opened = opened.and_then(|()| nic::check_disconnected(&self.registry, &at, &request));
        match opened.and(answer) {
            Ok((register, bound, fds)) => Ok(Registered { session: id, register, bound, fds, offsets }),
            Err(e) => {
                self.close(id);
                Err(e)
            }
        }
    }

    /// The name of a session's port, as snapshots have it.
    pub(crate) fn port_name<'a>(&'a self, session: &'a Session) -> &'a str {
        let port = self.registry.record(&session.port);
        port.ok().and_then(|port| port.name.as_deref()).unwrap_or(&session.name)
    }

    /// How the memory is made of a region that REGISTER creates: prepared, if the request will touch much of it, and
    /// the user may have that.
    pub(crate) fn region_memory(&mut self, request: &NmreqRegister, is_pipe: bool, caller: &Caller) -> RegionMemory {
        let scope = self.admission.scope(caller);
        let has_budget = !self.admission.has_no_budget(scope.uid);
        match Need::of(request, is_pipe, has_budget).filter(Need::is_large) {
            Some(need)
                if self.nics.work.doorbell().is_some()
                    && (!has_budget || self.budget_check().check(scope.uid, need.amounts()).is_ok()) =>
            {
                RegionMemory::Large(need)
            }
            _ => RegionMemory::AsUsed,
        }
    }

    /// Adds the events of a session that was opened; `is_first` if its port was not open.
    fn log_opened(&mut self, id: u64, is_first: bool) {
        // Not the sessions of the daemon's own threads.
        let Some(session) = self.registry.sessions.get(&id).filter(|session| session.pid != process::pid()) else {
            return;
        };
        let (uid, by, port) = (session.uid, by(session), self.port_name(session).to_owned());
        let (tx_rings, rx_rings) = (session.selection.tx.len(), session.selection.rx.len());
        tracing::debug!(port, uid, pid = by.pid, program = by.program, session = id, tx_rings, rx_rings, "opened");
        if is_first {
            self.events.add(uid, What::PortOpened { port: port.clone(), by: by.clone() });
        }
        self.events.add(uid, What::SessionOpened { port, session: id, by, tx_rings, rx_rings });
    }

    /// Returns how many extra buffers a session gets: those that it requests, up to a bound.
    fn extra_buffers(&mut self, region: RegionKey, request: &NmreqRegister) -> Result<u32, Refusal> {
        let record = self.registry.regions.existing(region)?;
        let scope = Scope { uid: record.payer, ..record.scope };
        let size = record.region.limits().buf_size;
        let of_user = (MAX_EXTRA_BYTES_OF_USER / u64::from(size).clamp(1, PAGE)) as u32;
        let most = if self.admission.has_no_budget(scope.uid) { MAX_EXTRA } else { of_user };
        let extra = request.nr_extra_bufs.min(most);
        let amounts = record.of_extra_buffers(extra);
        self.check_budget(scope, amounts)?;
        Ok(extra)
    }

    /// Records the descriptors that the daemon itself keeps for a session.
    pub(crate) fn keep_descriptors(&mut self, session: u64, fds: &[OwnedFd]) -> Result<(), Refusal> {
        let Some(found) = self.registry.sessions.get(&session) else { return Ok(()) };
        let scope = Scope { uid: found.uid, netns: 0 };
        let amounts = Amounts::of(Resource::Descriptors, fds.len() as u64);
        self.check_budget(scope, amounts)?;
        if let Some(found) = self.registry.sessions.get_mut(&session) {
            found.descriptors = Some(self.registry.ledger.charge(scope.uid, amounts));
        }
        Ok(())
    }

    /// Sets up the rings of a session for the option OFFSETS, or for packets at the start of their buffers.
    fn set_offsets(
        &mut self,
        at: &EndpointKey,
        selection: &RingSelection,
        options: &Options,
    ) -> Result<Option<OffsetLayout>, Refusal> {
        let port = self.registry.port(&at.port)?;
        let layout = match &options.offsets {
            None => None,
            Some(_) if !port.supports_offsets() => {
                return refuse(EOPNOTSUPP, "on this kind of port packets begin at the start of their buffers");
            }
            Some(option) => {
                let buffer = self.registry.regions.get(port.record().region).map_or(0, |r| r.region.limits().buf_size);
                let requested = OffsetLayout::validate(option, buffer)?;
                let layout = port.record().endpoints[at.index].validate_offsets(selection, requested)?;
                port.check_headroom(selection, layout.headroom)?;
                Some(layout)
            }
        };
        self.registry.port_mut(&at.port)?.set_offsets(at.index, selection, layout);
        Ok(layout)
    }

    /// Returns the name of a session's port, and the answer that its client was given.
    pub(crate) fn repeat_answer(&self, id: u64) -> Result<(String, Registered), Refusal> {
        let Some(session) = self.registry.sessions.get(&id) else { return refuse(ENXIO, "the session is closed") };
        let (register, bound, fds) = self.session_answer(id)?;
        Ok((session.name.clone(), Registered { session: id, register, bound, fds, offsets: None }))
    }

    /// Closes a session, for whatever reason it ended, and frees everything that it held.
    pub(crate) fn close(&mut self, id: u64) {
        self.arrivals.stop(id);
        let Some(session) = self.registry.sessions.remove(&id) else { return };
        let port = self.port_name(&session).to_owned();
        let at = EndpointKey { port: session.port.clone(), index: session.endpoint };
        self.monitors.lists.remove(&id);
        if let Ok(port) = self.registry.port_mut(&at.port) {
            port.unbind(at.index, &session.selection);
        }
        self.end_own_header(&at.port, session.uid);
        let is_last = !self.registry.endpoint(&at).is_ok_and(|(endpoint, _)| endpoint.in_use());
        if is_last {
            monitor::end_monitors(&mut self.registry, &at);
        }
        if session.pid != process::pid() {
            let by = by(&session);
            self.events.add(session.uid, What::SessionClosed { port: port.clone(), session: id, by: by.clone() });
            if is_last {
                self.events.add(session.uid, What::PortClosed { port, by });
            }
        }
        if let Some(record) = self.registry.regions.get_mut(session.region) {
            record.free_iface(&session.iface, session.iface_offset, session.extra);
            record.sessions = record.sessions.saturating_sub(1);
        }
        // It keeps the region mapped, which another thread is to free if it is large.
        drop(session.iface);
        // Before others are opened for other sessions of the port, whose budget is checked.
        drop(session.descriptors);
        self.registry.tidy_later(session.region, Some(session.pid));
        self.session_closed(&at, &session.name);
        self.release_if_unused(&at.port);
        let closed = monitor::closed_and_unused(&self.registry);
        closed.iter().for_each(|key| self.release_if_unused(key));
    }

    /// Whether a session's region lies in the arena that the node maps for its user.
    pub(crate) fn is_in_arena(&self, session: u64, arena: &Arc<UserArena>) -> bool {
        let session = self.registry.sessions.get(&session);
        let record = session.and_then(|session| self.registry.regions.get(session.region));
        record.is_some_and(|record| record.is_in(arena))
    }
}
