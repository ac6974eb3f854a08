// SPDX-License-Identifier: BSD-2-Clause
//! Keeping the state for the case of a crash ([`crate::store`]).

use std::time::{Duration, Instant};

use unetmap_sys::socket;

use super::hand_over::Kept;
use super::{Client, Server};
use crate::descriptors::Outgoing;
use crate::handover::State;
use crate::service::Service;
use crate::store::Store;

impl Server {
    /// Keeps the state in this process from now on.
    pub(crate) fn set_store(&mut self, store: Store) {
        self.store = Some(store);
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

    /// Has the state kept, if it may have changed; returns the time until it is to be, if it is not yet.
    pub(super) fn keep(&mut self, service: &Service, now: Instant) -> Option<Duration> {
        if let Err(left) = self.store.as_ref()?.is_due(now) {
            return left;
        }
        if let Err(why) = self.keep_now(service) {
            tracing::error!("a crash will end all ports: {why}");
            self.store = None;
        }
        None
    }

    fn keep_now(&mut self, service: &Service) -> Result<(), String> {
        let Some(mut store) = self.store.take() else { return Ok(()) };
        let can_be_kept = self.daemon.can_be_kept() && !self.nodes.in_use();
        if can_be_kept {
            self.daemon.registry.tidy_all();
        }
        let kept = if !can_be_kept {
            store.keep(None).map_err(|e| e.to_string())
        } else if self.daemon.check_hand_over().is_err() {
            store.later();
            Ok(())
        } else {
            self.keep_in(&mut store, service)
        };
        self.store = Some(store);
        kept
    }

    fn keep_in(&self, store: &mut Store, service: &Service) -> Result<(), String> {
        let kept = Kept { broker: None, arenas: self.daemon.registry.regions.all_arenas(), nodes: self.nodes.paused() };
        let mark = store.mark().try_clone().map_err(|e| e.to_string())?;
        let mut fds = Outgoing::default();
        let state = self.save(service, &kept, is_kept, &mut fds).map_err(|refusal| refusal.why)?;
        let state = State { mark: Some(fds.add(&mark)), ..state };
        store.keep(Some((state, fds.fds()))).map_err(|e| e.to_string())
    }

    /// After a crash: ends the connection whose message was being answered, and wakes all programs, as the process that
    /// crashed may have been about to.
    pub(super) fn recover(&mut self, marked: Option<u64>) {
        if let Some(client) = marked.and_then(|token| self.clients.get(&token)) {
            tracing::warn!(pid = client.peer.pid, "the daemon crashed while it answered this process");
            socket::shut_down(&client.fd);
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
