// SPDX-License-Identifier: BSD-2-Clause
//! Regions, ports and sessions as the daemon hands them to its successor.

use std::sync::Arc;

use serde::{Deserialize, Serialize};
use unetmap_abi::NmreqRegister;
use unetmap_core::control::{ControlRequest as _, ServesRequest};
use unetmap_mem::Iface;
use unetmap_sys::process;
use zerocopy::{FromBytes as _, IntoBytes as _};

use super::lifecycle::SavedPort;
use super::nic::NicPort;
use super::{Daemon, PortKey, Registry, Session};
use crate::budget::{Amounts, Resource};
use crate::descriptors::{FdIndex, Incoming, Outgoing, invalid};
use crate::endpoint::RingSelection;
use crate::refusal::{Refusal, refuse_for_now};
use crate::region::{RegionKey, SavedRegion};
use crate::shared_files::{FileKey, SavedFiles};
use crate::user_arena::UserArena;

/// The registry.
#[derive(Serialize, Deserialize)]
pub(crate) struct SavedRegistry {
    files: SavedFiles,
    /// Users, the files with their regions, and what is charged for these.
    arenas: Vec<(u32, FdIndex, Option<FileKey>)>,
    regions: Vec<SavedRegion>,
    next_region: RegionKey,
    ports: Vec<(PortKey, SavedPort)>,
    sessions: Vec<(u64, SavedSession)>,
    last_session: u64,
}

#[derive(Serialize, Deserialize)]
struct SavedSession {
    port: PortKey,
    endpoint: usize,
    name: String,
    pid: u32,
    program: Option<String>,
    uid: u32,
    region: RegionKey,
    selection: RingSelection,
    key: u64,
    /// `NmreqRegister`, as bytes.
    request: Vec<u8>,
    iface_offset: u64,
    extra: u32,
    /// `ServesRequest`, as bytes.
    serves: Option<Vec<u8>>,
    can_ask: bool,
    descriptors: u32,
}

impl Daemon {
    /// Whether the broker keeps something for an interface, or knows its namespace by a number.
    pub(crate) fn has_interfaces(&self) -> bool {
        self.registry.all::<NicPort>().next().is_some() || self.nics.has_settings()
    }

    /// Whether a thread opens an interface for a request.
    pub(crate) fn is_opening_interface(&self) -> bool {
        self.registry.all::<NicPort>().any(|port| port.is_being_opened())
    }

    /// Refuses to hand over what a successor cannot take over.
    pub(crate) fn check_hand_over(&self) -> Result<(), Refusal> {
        if self.registry.all::<NicPort>().any(|port| port.here().is_none()) || !self.mediators.stopping.is_empty() {
            return refuse_for_now("an interface is being opened or closed: try again");
        }
        if !self.vale.returning.is_empty() {
            return refuse_for_now("what an earlier daemon has left is being served again: try again");
        }
        self.vale.check_hand_over()
    }
}

impl Registry {
    /// Wakes all programs.
    pub(crate) fn wake_all(&self) {
        let endpoints = self.ports().flat_map(|(_, port)| &port.record().endpoints);
        endpoints.flat_map(|endpoint| endpoint.rings()).for_each(|ring| ring.doorbell.notify());
    }

    /// Returns what a successor needs. Nothing may be left to tidy.
    pub(crate) fn save<'a>(
        &'a self,
        arenas: &'a [(u32, Arc<UserArena>)],
        fds: &mut Outgoing<'a>,
    ) -> Result<SavedRegistry, Refusal> {
        let files = self.regions.files.save(fds);
        let key = |arena: &UserArena| arena.file().map(|file| file.key());
        let arenas = arenas.iter().map(|(uid, arena)| (*uid, fds.add(&**arena), key(arena))).collect();
        let regions = self.regions.iter().map(|record| record.save(fds)).collect();
        let mut ports = Vec::new();
        for (key, port) in self.ports() {
            let saved = port.save(fds).map_err(|refusal| {
                let name = self.sessions.values().find(|session| session.port == *key).map(|session| &*session.name);
                let name = port.record().name.as_deref().or(name).unwrap_or("a port");
                Refusal { why: format!("{name}: {}", refusal.why), ..refusal }
            })?;
            ports.push((key.clone(), saved));
        }
        let sessions = self.sessions.iter().map(|(id, session)| (*id, save_session(session))).collect();
        let (next_region, last_session) = (self.regions.next_key(), self.last_session());
        Ok(SavedRegistry { files, arenas, regions, next_region, ports, sessions, last_session })
    }

    /// Adds all that a daemon, the process `former`, has handed over to an empty registry. Returns the arenas, which
    /// that daemon still has.
    pub(crate) fn restore(
        &mut self,
        saved: SavedRegistry,
        former: u32,
        fds: &mut Incoming,
    ) -> Result<Vec<Arc<UserArena>>, Refusal> {
        self.regions.files.restore(saved.files, fds)?;
        let mut arenas = Vec::new();
        for (uid, fd, key) in saved.arenas {
            let file = key.map(|key| self.regions.files.existing(key)).transpose()?;
            let arena = Arc::new(UserArena::of_another(fds.take(fd)?).paid(file));
            self.regions.insert_arena(uid, &arena);
            arenas.push(arena);
        }
        for region in saved.regions {
            let arena = region.arena_of().and_then(|uid| self.regions.existing_arena(uid));
            let record = region.restore(arena.as_ref(), &self.regions.files, fds)?;
            self.regions.insert(record);
        }
        self.regions.set_next_key(saved.next_region);
        for (key, port) in saved.ports {
            let port = port.restore(&key, self, fds)?;
            self.insert(key, port);
        }
        for (id, session) in saved.sessions {
            let session = self.restore_session(session, former)?;
            self.sessions.insert(id, session);
        }
        self.set_last_session(saved.last_session);
        Ok(arenas)
    }

    fn restore_session(&self, saved: SavedSession, former: u32) -> Result<Session, Refusal> {
        let Ok(request) = NmreqRegister::read_from_bytes(&saved.request) else {
            return invalid("the request of a session");
        };
        let record = self.regions.existing(saved.region)?;
        let Some(iface) = Iface::new(&record.region, saved.iface_offset) else { return invalid("a session's memory") };
        let endpoint = self.record(&saved.port)?.endpoints.get(saved.endpoint);
        let has = |rings: &[usize], count: usize| rings.iter().all(|ring| *ring < count);
        let selection = &saved.selection;
        if !endpoint.is_some_and(|end| has(&selection.tx, end.tx.len()) && has(&selection.rx, end.rx.len())) {
            return invalid("the rings of a session");
        }
        Ok(Session {
            port: saved.port,
            endpoint: saved.endpoint,
            name: saved.name,
            // Of the daemon's own threads.
            pid: if saved.pid == former { process::pid() } else { saved.pid },
            program: saved.program,
            uid: saved.uid,
            region: saved.region,
            selection: saved.selection,
            key: saved.key,
            request,
            iface,
            iface_offset: saved.iface_offset,
            extra: saved.extra,
            serves: saved.serves.and_then(|bytes| ServesRequest::decode(&bytes).ok()),
            can_ask: saved.can_ask,
            descriptors: (saved.descriptors > 0)
                .then(|| self.ledger.charge(saved.uid, Amounts::of(Resource::Descriptors, saved.descriptors.into()))),
        })
    }
}

fn save_session(session: &Session) -> SavedSession {
    SavedSession {
        port: session.port.clone(),
        endpoint: session.endpoint,
        name: session.name.clone(),
        pid: session.pid,
        program: session.program.clone(),
        uid: session.uid,
        region: session.region,
        selection: session.selection.clone(),
        key: session.key,
        request: session.request.as_bytes().to_vec(),
        iface_offset: session.iface_offset,
        extra: session.extra,
        serves: session.serves.as_ref().map(ServesRequest::encode),
        can_ask: session.can_ask,
        descriptors: session.descriptors.as_ref().map_or(0, |charge| charge.amounts()[Resource::Descriptors] as u32),
    }
}
