// SPDX-License-Identifier: BSD-2-Clause
//! Keeping the state for the case of a crash ([`crate::store`]).

use std::collections::BTreeSet;
use std::fs::File;
use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use unetmap_sys::socket;

use super::work::{INTERFACES, WATCHES};
use super::{Client, Server};
use crate::broker;
use crate::broker::Handle;
use crate::descriptors::{Incoming, Outgoing};
use crate::handover::{SavedForCrash, State};
use crate::node::{PausedNodes, SavedNodes};
use crate::ports::mediator::{self, DAEMON_HOLDER, PausedThread};
use crate::ports::nic;
use crate::refusal::Refusal;
use crate::service::Service;
use crate::store::Store;
use crate::user_arena::UserArena;

/// What is kept while the state refers to it.
pub(super) struct Kept {
    pub(super) broker: Option<Arc<broker::Duplicates>>,
    pub(super) arenas: Vec<(u32, Arc<UserArena>)>,
    pub(super) nodes: PausedNodes,
}

/// What was kept for a crash, besides the state.
pub(super) struct AfterCrash {
    /// The file with the token of the connection whose message was being answered.
    pub(super) mark: File,
    last_handle: Option<Handle>,
    /// Where the node was on.
    pub(super) node: Option<PathBuf>,
}

impl AfterCrash {
    pub(super) fn of(saved: SavedForCrash, fds: &mut Incoming) -> Result<AfterCrash, Refusal> {
        let SavedForCrash { mark, last_handle, node } = saved;
        Ok(AfterCrash { mark: File::from(fds.take(mark)?), last_handle, node })
    }
}

impl Server {
    /// Keeps the state in this process from now on.
    pub(crate) fn set_store(&mut self, mut store: Store) {
        match broker::Duplicates::new() {
            Ok(broker) => {
                store.set_broker(broker);
                self.store = Some(store);
            }
            Err(e) => tracing::error!("a crash will end all ports: {e}"),
        }
    }

    /// The daemon exits as it should.
    pub(crate) fn end_store(&mut self) {
        self.store.take().iter().for_each(Store::end);
    }

    /// The message of a connection is being answered; 0: other work is done.
    pub(super) fn mark(&mut self, token: u64) {
        let Some(store) = &mut self.store else { return };
        store.changed();
        if token != 0 {
            store.set_mark(token);
        }
    }

    /// It is done.
    pub(super) fn end_mark(&mut self, token: u64) {
        let Some(store) = self.store.as_mut().filter(|_| token != 0) else { return };
        store.set_mark(0);
        // Its answer follows later.
        let has_port = |client: &Client| client.session.is_some() || client.holder.is_some();
        if self.clients.get(&token).is_some_and(|client| has_port(client) && client.task.is_some()) {
            store.changed_now();
        }
    }

    /// An event was handled. A state with an interface that has changed must not be used, and a queue that was closed
    /// may be opened next.
    pub(super) fn event_changed(&mut self, service: &Service, token: u64) {
        if let Some(store) = self.store.as_mut().filter(|_| token == INTERFACES || token & WATCHES != 0) {
            store.changed_now();
            self.keep(service, Instant::now());
        }
    }

    /// Has the state kept, if it may have changed; returns the time until it is to be, if it is not yet.
    pub(super) fn keep(&mut self, service: &Service, now: Instant) -> Option<Duration> {
        if let Err(left) = self.store.as_ref()?.is_due(now) {
            return left;
        }
        if let Err(why) = self.keep_now(service) {
            tracing::error!("a crash will end ports that are opened from now on: {why}");
            // If only it is slow, it must not take this process for crashed.
            std::mem::forget(self.store.take());
        }
        None
    }

    fn keep_now(&mut self, service: &Service) -> Result<(), String> {
        let Some(mut store) = self.store.take() else { return Ok(()) };
        self.daemon.registry.tidy_all();
        let kept = match self.daemon.check_hand_over() {
            Ok(()) => self.keep_in(&mut store, service),
            Err(_) => store.later(nic::any_was_closed(), self.daemon.is_opening_interface()),
        };
        self.store = Some(store);
        kept.map_err(|e| e.to_string())
    }

    fn keep_in(&mut self, store: &mut Store, service: &Service) -> io::Result<()> {
        let closed = nic::any_was_closed();
        let keeps = self.daemon.has_interfaces() || self.nodes.in_use();
        let broker = store.broker().filter(|_| keeps).cloned();
        let last_handle = broker.as_ref().map(|_| broker::last_handle()).transpose()?;
        let mediators = mediator::running(&mut self.daemon);
        let kept = Kept { broker, arenas: self.daemon.registry.regions.all_arenas(), nodes: PausedNodes::default() };
        let mark = store.mark().try_clone()?;
        let mut fds = Outgoing::default();
        let state = match self.save(service, &kept, is_kept, &mut fds) {
            Ok(state) => state,
            Err(refusal) => {
                tracing::warn!("a crash will end all ports: {}", refusal.why);
                return store.keep(None, closed);
            }
        };
        let after_crash = SavedForCrash { mark: fds.add(&mark), last_handle, node: self.nodes.path() };
        let state = State { nodes: SavedNodes::default(), mediators, after_crash: Some(after_crash), ..state };
        store.keep(Some((state, fds.fds())), closed)
    }

    /// Takes what a daemon has left that has crashed, before its threads' work is continued: their locks, and the
    /// broker. Returns the sessions that belong to no connection and no thread: those of programs at the node, and of
    /// connections that are not kept.
    pub(super) fn take_from_crashed(&mut self, crash: &AfterCrash) -> Vec<u64> {
        let broken = self.daemon.registry.break_locks(DAEMON_HOLDER);
        if broken > 0 {
            tracing::debug!(broken, "the daemon that crashed was copying: its locks are broken");
        }
        if let Some(last) = crash.last_handle
            && let Err(e) = broker::go_on_after_crash(last)
        {
            tracing::error!("interfaces can be neither opened nor closed: {e}");
        }
        let of_threads = self.daemon.paused_mediators.iter().flat_map(PausedThread::sessions);
        let known: BTreeSet<u64> =
            self.clients.values().filter_map(|client| client.session).chain(of_threads).collect();
        self.daemon.registry.sessions.keys().copied().filter(|session| !known.contains(session)).collect()
    }

    /// After a crash: closes these sessions, ends the connection whose message was being answered, and wakes all
    /// programs, as the process that crashed may have been about to. The node, if it was on, is on again at `node`.
    pub(super) fn recover(&mut self, marked: Option<u64>, unknown: Vec<u64>, node: Option<PathBuf>) {
        if let Some(client) = marked.and_then(|token| self.clients.get(&token)) {
            tracing::warn!(pid = client.peer.pid, "the daemon crashed while it answered this process");
            socket::shut_down(&client.fd);
        }
        if !unknown.is_empty() {
            let closed = unknown.len();
            tracing::warn!(closed, "ports of programs at the node, or that were just being opened, end with the crash");
        }
        unknown.into_iter().for_each(|session| self.daemon.close(session));
        if let Some(path) = node
            && let Err(refusal) = self.nodes.on(&mut self.daemon, path)
        {
            tracing::error!("the node is off: {}", refusal.why);
        }
        self.daemon.registry.wake_all();
    }
}

/// Whether a connection can go on after a crash: nothing is being answered.
fn is_kept(client: &Client) -> bool {
    (client.session.is_some() || client.holder.is_some()) && client.task.is_none() && !client.is_ended
}

/// Fault injection for tests, in debug builds only.
pub(super) mod fault {
    /// `UNETMAP_FAULT=request`: a request on the connection of a port crashes the daemon.
    pub(in crate::server) fn at_request(is_session: bool) {
        if cfg!(debug_assertions)
            && is_session
            && std::env::var_os("UNETMAP_FAULT").is_some_and(|fault| fault == "request")
        {
            std::process::abort();
        }
    }
}
