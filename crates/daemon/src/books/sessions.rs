//! A session from its beginning to its end: rings are bound for it, and everything is taken back after it.

use std::sync::Arc;

use unetmap::errno::{ENOMEM, ENXIO};
use unetmap_abi::*;
use unetmap_mem::BufIdx;
use unetmap_sys::process;

use super::answer::iface_shape;
use super::{Books, MAX_EXTRA, Options, PortKey, Registered, Session};
use crate::caller::Caller;
use crate::end::Binding;
use crate::estate::Estate;
use crate::refusal::{Refusal, refuse};

impl Books {
    pub(crate) fn open_session(
        &mut self,
        key: PortKey,
        name: &str,
        asked: &NmreqRegister,
        options: &Options,
        caller: &Caller,
    ) -> Result<Registered, Refusal> {
        let secret = process::random();
        let secret = secret.or_else(|e| refuse(ENOMEM, format!("no random number for the session: {e}")))?;
        let found = self.port(&key)?;
        let (house_id, binding) = (found.house, found.end.select(asked)?);
        let iface_shape = iface_shape(self.name_of(&key).unwrap_or(name), found.end, &binding);
        let offsets = self.grant_offsets(&key, &binding, options).map_err(|r| r.of_option(NETMAP_REQ_OPT_OFFSETS))?;
        if let PortKey::Nic(nic) = &key
            && let Some(nic) = self.nics.get_mut(nic)
        {
            nic.raise(&binding)?;
        }
        let Some(house) = self.houses.get_mut(&house_id) else { return refuse(ENXIO, "the region has gone") };
        let made = house.make_iface(&iface_shape, asked.nr_extra_bufs.min(MAX_EXTRA));
        let (iface, iface_offset, extra) = made.inspect_err(|_| self.settle(&key))?;
        if let Some(house) = self.houses.get_mut(&house_id) {
            house.sessions += 1;
        }
        self.bind(&key, &binding);
        self.last_session += 1;
        let id = self.last_session;
        let (pid, uid) = (caller.peer.pid, caller.peer.uid);
        let session = Session {
            port: key,
            name: name.into(),
            pid,
            uid,
            house: house_id,
            binding,
            key: secret,
            asked: *asked,
            iface,
            iface_offset,
            extra,
        };
        let answer = self.answer(id, &session);
        // From here on the session is in the books, so that its end undoes all of this.
        let port = session.port.clone();
        self.sessions.insert(id, session);
        let served = match &port {
            PortKey::Pipe(key, 0) if key.id.is_none() => self.settle_wire(key),
            _ => Ok(()),
        };
        match served.and(answer) {
            Ok((register, bound, fds)) => Ok(Registered { session: id, register, bound, fds, offsets }),
            Err(e) => {
                self.close(id);
                Err(e)
            }
        }
    }

    fn bind(&mut self, key: &PortKey, binding: &Binding) {
        match key {
            PortKey::Pipe(key, at) => {
                if let Some(pipe) = self.pipes.get_mut(key) {
                    let lines = pipe.lines.clone();
                    pipe.ends[*at].bind(binding, |ring, transmit| ring.at_line(Some(&lines), transmit));
                }
            }
            PortKey::Null(scope, name) => {
                if let Some(port) = self.nulls.get_mut(&(*scope, name.clone())) {
                    port.end.bind(binding, |ring, transmit| ring.at_line(None, transmit));
                }
            }
            PortKey::Nic(key) => {
                if let Some(nic) = self.nics.get_mut(key) {
                    nic.bind(binding);
                }
            }
            PortKey::Vale(key) => {
                if let Some(port) = self.vales.get_mut(key) {
                    let lines = port.lines.clone();
                    port.end.bind(binding, |ring, transmit| ring.at_line(Some(&lines), transmit));
                }
            }
            PortKey::Monitor(id) => {
                if let Some(monitor) = self.monitors.get_mut(id) {
                    monitor.end.bind(binding, |ring, transmit| ring.at_line(None, transmit));
                }
                self.tell_watched(*id);
            }
        }
    }

    /// Gives back to the kernel what nobody has bound of an interface.
    fn settle(&mut self, key: &PortKey) {
        if let PortKey::Nic(key) = key
            && let Some(nic) = self.nics.get_mut(key)
        {
            nic.settle();
        }
    }

    /// The name of a session's port, and what its client was told.
    pub(crate) fn again(&self, id: u64) -> Result<(String, Registered), Refusal> {
        let Some(session) = self.sessions.get(&id) else { return refuse(ENXIO, "the session is over") };
        let (register, bound, fds) = self.answer(id, session)?;
        Ok((session.name.clone(), Registered { session: id, register, bound, fds, offsets: None }))
    }

    /// A client's session is over, however it ended: everything it held is free again.
    pub(crate) fn close(&mut self, id: u64) {
        let Some(session) = self.sessions.remove(&id) else { return };
        self.boards.remove(&id);
        match &session.port {
            PortKey::Pipe(key, at) => {
                if let Some(pipe) = self.pipes.get_mut(key) {
                    let (first, second) = pipe.ends.split_at_mut(1);
                    let (end, other) = if *at == 0 { (&mut first[0], &second[0]) } else { (&mut second[0], &first[0]) };
                    end.unbind(&session.binding, Some(&pipe.lines), Some(other));
                }
            }
            PortKey::Null(scope, name) => {
                if let Some(port) = self.nulls.get_mut(&(*scope, name.clone())) {
                    port.end.unbind(&session.binding, None, None);
                }
            }
            PortKey::Nic(key) => {
                if let Some(nic) = self.nics.get_mut(key) {
                    nic.end.unbind(&session.binding, None, None);
                    nic.settle();
                }
            }
            PortKey::Vale(key) => {
                if let Some(port) = self.vales.get_mut(key) {
                    port.end.unbind(&session.binding, None, None);
                    // Whoever died may have sent and woken nobody any more.
                    port.bell.ring();
                }
            }
            PortKey::Monitor(id) => {
                if let Some(monitor) = self.monitors.get_mut(id) {
                    monitor.end.unbind(&session.binding, None, None);
                }
            }
        }
        self.end_monitors_of_closed(&session.port);
        // Looking through all rings is only worth it for a program that left a list of extra buffers.
        let left = session.iface.bufs_head() != BufIdx(0);
        let living = if left { self.living(session.house) } else { Vec::new() };
        if let Some(house) = self.houses.get_mut(&session.house) {
            house.drop_iface(&session.iface, session.iface_offset, session.extra, left.then_some(&living[..]));
            house.sessions = house.sessions.saturating_sub(1);
        }
        // A process that exchanged buffers between two ports has them in both until both are closed: nothing of it is torn.
        let more = |other: &Session| other.house == session.house && other.pid == session.pid;
        if !self.sessions.values().any(more) {
            self.mend(session.house);
        }
        if let PortKey::Pipe(key, 0) = &session.port
            && key.id.is_none()
        {
            self.drop_wire_if_unused(key);
            if let Err(e) = self.settle_wire(key) {
                tracing::warn!(name = session.name, "what is left of it cannot be served: {}", e.why);
            }
        }
        self.drop_if_unused(&session.port);
        self.settle_monitors();
    }

    /// Whether the node shows a session's region to its user.
    pub(crate) fn is_shown(&self, session: u64, estate: &Arc<Estate>) -> bool {
        let house = self.sessions.get(&session).and_then(|session| self.houses.get(&session.house));
        house.is_some_and(|house| house.is_in(estate))
    }
}
